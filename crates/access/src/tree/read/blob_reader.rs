//! Reading a value in parts, with checks, without bringing all of it into memory.

use crate::blob::{BlobReference, CHUNK_BYTES, chunks, trailer_at};
use crate::error::{AccessError, damaged};
use crate::tree::{
    Tree,
    read::record::{Large, confirm},
};
use vellum_base::{HEADER_BYTES, PAGE_SIZE, checksum};
use vellum_pool::{Interrupt, Pager};
use vellum_vm::AlignedBuffer;

/// Reads a large value in parts: each part is checked, and only the parts asked for are read from storage.
///
/// Between two calls other operations may replace or remove the value. A later call then fails with
/// [`AccessError::ValueChanged`], unless it asks for the chunk that was read last.
///
/// ```
/// use vellum_access::Tree;
/// use vellum_pool::{Pool, PoolOptions};
///
/// let directory = tempfile::tempdir()?;
/// let pool = Pool::create(directory.path().join("file"), &PoolOptions::default())?;
/// let tree = Tree::create(&pool)?;
/// tree.upsert(b"song", &[7; 1_000_000])?;
///
/// let mut reader = tree.reader(b"song")?.expect("a value this long is a large one");
/// let mut part = [0; 16];
/// assert_eq!(reader.length(), 1_000_000);
/// assert_eq!(reader.read_at(500_000, &mut part)?, 16); // reads 64 KiB from storage, not all
/// assert_eq!(part, [7; 16]);
/// assert_eq!(reader.read_at(999_990, &mut part)?, 10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct BlobReader<'p, P: Pager> {
    tree: Tree<'p, P>,
    key: Vec<u8>,
    reference: BlobReference,
    sums: Option<Vec<u8>>,
    /// The chunk that was read last, and its number.
    chunk: Option<(u64, Vec<u8>)>,
}

impl<'p, P: Pager> BlobReader<'p, P> {
    pub(in crate::tree) fn new(tree: Tree<'p, P>, key: &[u8], reference: BlobReference) -> Self {
        Self { tree, key: key.to_vec(), reference, sums: None, chunk: None }
    }

    /// The length of the value in bytes.
    pub fn length(&self) -> u64 {
        self.reference.length
    }

    /// Reads bytes from `offset` on into `buffer`, and returns how many: fewer than `buffer` holds only at the end of
    /// the value, and none beyond it.
    ///
    /// # Errors
    /// If the value has changed, cannot be read, or is damaged.
    pub fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize, AccessError> {
        let length = self.reference.length.saturating_sub(offset).min(buffer.len() as u64) as usize;
        let mut target = buffer.get_mut(..length).unwrap_or_default();
        while !target.is_empty() {
            // Cannot overflow: `at` lies before the end of the value.
            let at = offset + (length - target.len()) as u64;
            let chunk = self.chunk(at / CHUNK_BYTES)?;
            let part = chunk.get((at % CHUNK_BYTES) as usize..).unwrap_or_default();
            let now = part.len().min(target.len());
            let (to, rest) = target.split_at_mut(now);
            to.copy_from_slice(part.get(..now).unwrap_or_default());
            if now == 0 {
                return Err(AccessError::ValueChanged);
            }
            target = rest;
        }
        Ok(length)
    }

    fn chunk(&mut self, index: u64) -> Result<&[u8], AccessError> {
        if !matches!(&self.chunk, Some((cached, _)) if *cached == index) {
            let bytes = self.tree.with_large(&self.key, |leaf, found| {
                let Some(large) = found.filter(|found| found.reference == self.reference) else {
                    return Ok(None);
                };
                let blob = Blob { tree: &self.tree, leaf, key: &self.key, large };
                let sums = match &mut self.sums {
                    Some(sums) => sums,
                    sums => sums.insert(blob.read_sums()?),
                };
                blob.read_chunk(sums, index).map(Some)
            })?;
            self.chunk = Some((index, bytes.ok_or(AccessError::ValueChanged)?));
        }
        Ok(self.chunk.as_ref().map(|(_, bytes)| bytes.as_slice()).unwrap_or_default())
    }
}

/// A large value that is seen under a key of a leaf.
struct Blob<'l, 'p, P: Pager + 'p> {
    tree: &'l Tree<'p, P>,
    leaf: &'l P::Optimistic<'p>,
    key: &'l [u8],
    large: Large,
}

impl<P: Pager> Blob<'_, '_, P> {
    /// Reads bytes `at..at + length` of the extent.
    fn read_range(&self, at: u64, length: usize) -> Result<Vec<u8>, Interrupt> {
        let first_page = at as usize / PAGE_SIZE;
        let end_page = (at as usize + length).div_ceil(PAGE_SIZE);
        let mut buffer = AlignedBuffer::new((end_page - first_page) * PAGE_SIZE);
        let extent = self.large.reference.extent();
        let read = self.tree.pager.read_part(self.leaf, extent, first_page as u32, &mut buffer);
        confirm(self.tree, self.leaf, (self.key, self.large), read)?;
        let start = at as usize % PAGE_SIZE;
        Ok(buffer.get(start..start + length).unwrap_or_default().to_vec())
    }

    /// Reads the checksums of the chunks, and checks them against the reference.
    fn read_sums(&self) -> Result<Vec<u8>, Interrupt> {
        let BlobReference { head, length, digest } = self.large.reference;
        let sums = self.read_range(trailer_at(length), 8 * chunks(length) as usize)?;
        if checksum(&sums) != digest {
            return Err(damaged(head, "the checksums of its parts are not those of its reference"));
        }
        Ok(sums)
    }

    /// Reads one chunk and checks it.
    fn read_chunk(&self, sums: &[u8], index: u64) -> Result<Vec<u8>, Interrupt> {
        let start = index * CHUNK_BYTES;
        let length = CHUNK_BYTES.min(self.large.reference.length - start) as usize;
        let chunk = self.read_range(HEADER_BYTES as u64 + start, length)?;
        let expected = sums.get(8 * index as usize..).and_then(|rest| rest.first_chunk::<8>());
        if expected != Some(&checksum(&chunk).to_le_bytes()) {
            let what = format!("the {length} bytes from {start} of its value are damaged");
            return Err(damaged(self.large.reference.head, what));
        }
        Ok(chunk)
    }
}
