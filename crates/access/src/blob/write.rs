//! Writing a value to an extent of its own.

use super::{BlobReference, CHUNK_BYTES, chunks, pages, trailer_at};
use crate::{
    AccessError, MAX_VALUE_BYTES,
    gateway::{BlobStream, new_blob},
};
use std::io::Read;
use vellum_base::{HEADER_BYTES, PageId, checksum};
use vellum_pool::Pager;

/// Writes `length` bytes from `source` to a new extent for a record of the tree with the root `tree`. Nothing refers to
/// the extent yet: the caller refers to it, or discards it.
pub(crate) fn write_blob<P: Pager>(
    pager: &P,
    tree: PageId,
    length: u64,
    source: &mut dyn Read,
) -> Result<BlobReference, AccessError> {
    if length > MAX_VALUE_BYTES {
        return Err(AccessError::ValueTooLong { bytes: length });
    }
    if pages(length) <= pager.comfortable_pages() {
        write_in_memory(pager, tree, length, source)
    } else {
        write_past(pager, tree, length, source)
    }
}

/// Fills the extent in the pool; eviction or closing writes it to storage.
fn write_in_memory<P: Pager>(
    pager: &P,
    tree: PageId,
    length: u64,
    source: &mut dyn Read,
) -> Result<BlobReference, AccessError> {
    let (head, digest) = new_blob(pager, tree, pages(length), |page| {
        let (body, trailer) = page.split_at_mut(trailer_at(length) as usize);
        let value = body.get_mut(HEADER_BYTES..HEADER_BYTES + length as usize).unwrap_or_default();
        source.read_exact(value).map_err(AccessError::Source)?;
        for (chunk, sum) in value.chunks(CHUNK_BYTES as usize).zip(trailer.chunks_exact_mut(8)) {
            sum.copy_from_slice(&checksum(chunk).to_le_bytes());
        }
        Ok(checksum(trailer.get(..8 * chunks(length) as usize).unwrap_or_default()))
    })?;
    Ok(BlobReference { head, length, digest })
}

/// Writes the extent chunk by chunk, past the pool.
fn write_past<P: Pager>(
    pager: &P,
    tree: PageId,
    length: u64,
    source: &mut dyn Read,
) -> Result<BlobReference, AccessError> {
    let mut stream = BlobStream::begin(pager, tree, pages(length))?;
    let mut sums = Vec::with_capacity(8 * chunks(length) as usize);
    let mut chunk = vec![0; CHUNK_BYTES as usize];
    let mut left = length;
    while left > 0 {
        let part = chunk.get_mut(..left.min(CHUNK_BYTES) as usize).unwrap_or_default();
        source.read_exact(part).map_err(AccessError::Source)?;
        stream.append(part)?;
        sums.extend(checksum(part).to_le_bytes());
        left -= part.len() as u64;
    }
    let padding = trailer_at(length) - HEADER_BYTES as u64 - length;
    stream.append([0; 8].get(..padding as usize).unwrap_or_default())?;
    stream.append(&sums)?;
    let digest = checksum(&sums);
    Ok(BlobReference { head: stream.finish(digest)?, length, digest })
}
