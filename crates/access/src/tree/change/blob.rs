//! Writing a value to an extent of its own.

use crate::blob::{BlobReference, CHUNK_BYTES, MAX_VALUE_BYTES, chunks, pages, trailer_at};
use crate::error::AccessError;
use crate::gateway::{Append, new_blob, stream_blob};
use std::io::Read;
use vellum_base::{HEADER_BYTES, checksum};
use vellum_pool::Pager;

/// Writes `length` bytes from `source` to a new extent. Nothing refers to the extent yet: the caller persists it and
/// refers to it, or abandons it.
pub(crate) fn write_blob<P: Pager>(
    pager: &P,
    length: u64,
    source: &mut dyn Read,
) -> Result<BlobReference, AccessError> {
    if length > MAX_VALUE_BYTES {
        return Err(AccessError::ValueTooLong { bytes: length });
    }
    let (head, digest) = if pages(length) <= pager.comfortable_pages() {
        new_blob(pager, pages(length), |page| fill(page, length, source))?
    } else {
        stream_blob(pager, pages(length), |append| write_chunks(length, source, append))?
    };
    Ok(BlobReference { head, length, digest })
}

/// Fills an extent in the pool; eviction or closing writes it to storage. Returns the digest.
fn fill(page: &mut [u8], length: u64, source: &mut dyn Read) -> Result<u64, AccessError> {
    let (body, trailer) = page.split_at_mut(trailer_at(length) as usize);
    let value = body.get_mut(HEADER_BYTES..HEADER_BYTES + length as usize).unwrap_or_default();
    source.read_exact(value).map_err(AccessError::Source)?;
    for (chunk, sum) in value.chunks(CHUNK_BYTES as usize).zip(trailer.chunks_exact_mut(8)) {
        sum.copy_from_slice(&checksum(chunk).to_le_bytes());
    }
    Ok(checksum(trailer.get(..8 * chunks(length) as usize).unwrap_or_default()))
}

/// Writes an extent chunk by chunk, past the pool. Returns the digest.
fn write_chunks(length: u64, source: &mut dyn Read, append: Append<'_>) -> Result<u64, AccessError> {
    let mut sums = Vec::with_capacity(8 * chunks(length) as usize);
    let mut chunk = vec![0; CHUNK_BYTES as usize];
    let mut left = length;
    while left > 0 {
        let part = chunk.get_mut(..left.min(CHUNK_BYTES) as usize).unwrap_or_default();
        source.read_exact(part).map_err(AccessError::Source)?;
        append(part)?;
        sums.extend(checksum(part).to_le_bytes());
        left -= part.len() as u64;
    }
    let padding = trailer_at(length) - HEADER_BYTES as u64 - length;
    append([0; 8].get(..padding as usize).unwrap_or_default())?;
    append(&sums)?;
    Ok(checksum(&sums))
}
