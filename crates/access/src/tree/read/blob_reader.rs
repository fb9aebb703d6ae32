//! Reading a value in parts, checked, without bringing all of it into memory.

use crate::{
    AccessError,
    blob::{BlobReference, CHUNK_BYTES, chunks, trailer_at},
    error::damaged,
    tree::Tree,
};
use vellum_base::{HEADER_BYTES, PAGE_SIZE, checksum};
use vellum_pool::{Interrupt, Pager};
use vellum_vm::AlignedBuffer;

/// Reads bytes `at..at + length` of the extent to which `leaf` refers.
fn read_range<'p, P: Pager>(
    pager: &'p P,
    leaf: &P::Optimistic<'p>,
    reference: BlobReference,
    at: u64,
    length: usize,
) -> Result<Vec<u8>, Interrupt> {
    let first_page = at as usize / PAGE_SIZE;
    let end_page = (at as usize + length).div_ceil(PAGE_SIZE);
    let mut buffer = AlignedBuffer::new((end_page - first_page) * PAGE_SIZE);
    pager.read_part(leaf, reference.extent(), first_page as u32, &mut buffer)?;
    let start = at as usize % PAGE_SIZE;
    Ok(buffer.get(start..start + length).unwrap_or_default().to_vec())
}

/// Reads the checksums of the chunks, and checks them against the reference.
fn read_sums<'p, P: Pager>(
    pager: &'p P,
    leaf: &P::Optimistic<'p>,
    reference: BlobReference,
) -> Result<Vec<u8>, Interrupt> {
    let length = 8 * chunks(reference.length) as usize;
    let sums = read_range(pager, leaf, reference, trailer_at(reference.length), length)?;
    if checksum(&sums) != reference.digest {
        return Err(damaged(reference.head, "the checksums of its parts are not those of its reference"));
    }
    Ok(sums)
}

/// Reads one chunk and checks it.
fn read_chunk<'p, P: Pager>(
    pager: &'p P,
    leaf: &P::Optimistic<'p>,
    reference: BlobReference,
    sums: &[u8],
    index: u64,
) -> Result<Vec<u8>, Interrupt> {
    let start = index * CHUNK_BYTES;
    let length = CHUNK_BYTES.min(reference.length - start) as usize;
    let chunk = read_range(pager, leaf, reference, HEADER_BYTES as u64 + start, length)?;
    let expected = sums.get(8 * index as usize..).and_then(|rest| rest.first_chunk::<8>());
    if expected != Some(&checksum(&chunk).to_le_bytes()) {
        return Err(damaged(
            reference.head,
            format!("the {length} bytes from {start} of its value are damaged"),
        ));
    }
    Ok(chunk)
}

/// Reads one chunk of a blob to which `leaf` refers. The first call reads the checksums too, into `sums`.
fn read_part<'p, P: Pager>(
    pager: &'p P,
    leaf: &P::Optimistic<'p>,
    reference: BlobReference,
    sums: &mut Option<Vec<u8>>,
    index: u64,
) -> Result<Vec<u8>, Interrupt> {
    let sums = match sums {
        Some(sums) => sums,
        None => sums.insert(read_sums(pager, leaf, reference)?),
    };
    read_chunk(pager, leaf, reference, sums, index)
}

/// Reads a large value in parts: each part is checked, and only the parts asked for are read from storage.
///
/// Between two calls other operations may replace or remove the value. A later call then fails with
/// [`AccessError::ValueChanged`], unless its part was read last.
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
            let (pager, reference, sums) = (self.tree.pager, self.reference, &mut self.sums);
            let bytes = self.tree.with_blob(&self.key, |leaf, found| {
                if found != Some(reference) {
                    return Ok(None);
                }
                read_part(pager, leaf, reference, sums, index).map(Some)
            })?;
            self.chunk = Some((index, bytes.ok_or(AccessError::ValueChanged)?));
        }
        Ok(self.chunk.as_ref().map(|(_, bytes)| bytes.as_slice()).unwrap_or_default())
    }
}
