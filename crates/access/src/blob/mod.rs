//! Values too large for a leaf: each in an extent of its own.
//!
//! # Layout
//! After the page header come the bytes of the value, zeroes up to a multiple of 8, and the checksums (XXH3-64) of each
//! 64 KiB of the value. The record in the leaf holds a reference of 24 bytes: the extent's first page, the value's
//! length, and the *digest*, a checksum of the checksums. So any part of a value can be read and checked without the
//! rest, starting from the leaf, whether or not the pool has room for the whole value.
//!
//! # Life
//! A blob is written, and durable if there is a log, before the record that refers to it, and freed after no record
//! refers to it any more. A reader latches it shared while the leaf is still valid, so an operation that frees it
//! waits, or defers.

mod check;

use crate::node::BLOB_REFERENCE_BYTES;
use vellum_base::{
    Bytes, Extent, HEADER_BYTES, PAGE_SIZE, PageHeader, PageId, PageKind, checksum, verify_header,
};

pub(crate) use check::BlobCheck;

/// The longest value, in bytes: 1 GiB.
pub const MAX_VALUE_BYTES: u64 = 1 << 30;

/// The unit in which a blob is checked, in bytes.
pub const CHUNK_BYTES: u64 = 64 << 10;

/// Page ids are below this: no page lies beyond what 64 bits can address.
const HEAD_LIMIT: u64 = 1 << 51;

/// The place of a blob, and the digest by which it is recognised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlobReference {
    /// The extent's first page.
    pub head: PageId,
    /// The length of the value in bytes.
    pub length: u64,
    /// The checksum of the chunks' checksums.
    pub digest: u64,
}

impl BlobReference {
    /// Decodes a reference; `None` if it cannot be one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != BLOB_REFERENCE_BYTES {
            return None;
        }
        let (head, length) = (bytes.u64_at(0), bytes.u64_at(8));
        (head < HEAD_LIMIT && length <= MAX_VALUE_BYTES).then(|| Self {
            head: PageId(head),
            length,
            digest: bytes.u64_at(16),
        })
    }

    /// Whether `page` is the extent for which the reference was made, judged by its header and the checksums of its
    /// chunks. The chunks themselves are not read.
    ///
    /// The extent was checked when it was read from storage, but a damaged reference may lead to another one.
    pub(crate) fn leads_to(self, page: &[u8]) -> bool {
        let start = trailer_at(self.length) as usize;
        let sums = page.get(start..).and_then(|rest| rest.get(..8 * chunks(self.length) as usize));
        page.len() == self.extent().bytes()
            && PageHeader::read(page).kind == PageKind::BLOB
            && sums.is_some_and(|sums| checksum(sums) == self.digest)
    }

    /// The value, if the extent that was read is the one for which the reference was made.
    pub fn value_in(self, pages: &[u8]) -> Option<&[u8]> {
        let is_sound = pages.len() == self.extent().bytes() && verify_header(pages, self.extent()).is_ok();
        if !is_sound || !self.leads_to(pages) {
            return None;
        }
        pages.get(HEADER_BYTES..)?.get(..self.length as usize)
    }

    /// The bytes of the reference, which [`decode`](Self::decode) decodes again.
    pub fn encode(self) -> [u8; BLOB_REFERENCE_BYTES] {
        let mut bytes = [0; BLOB_REFERENCE_BYTES];
        for (target, number) in bytes.chunks_exact_mut(8).zip([self.head.0, self.length, self.digest]) {
            target.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// The extent that the blob takes.
    pub fn extent(self) -> Extent {
        Extent { head: self.head, pages: pages(self.length) }
    }
}

/// Where the checksums of a blob begin.
pub(crate) fn trailer_at(length: u64) -> u64 {
    (HEADER_BYTES as u64 + length).next_multiple_of(8)
}

pub(crate) fn chunks(length: u64) -> u64 {
    length.div_ceil(CHUNK_BYTES)
}

/// The number of pages that a value takes.
pub(crate) fn pages(length: u64) -> u32 {
    (trailer_at(length) + 8 * chunks(length)).div_ceil(PAGE_SIZE as u64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_come_back() {
        let reference = BlobReference { head: PageId(77), length: 5_000_000, digest: u64::MAX - 3 };
        assert_eq!(BlobReference::decode(&reference.encode()), Some(reference));
        assert_eq!(BlobReference::decode(&[0xff; 24]), None);
        assert_eq!(BlobReference::decode(&[0; 23]), None);
        let beyond = BlobReference { head: PageId(u64::MAX - 1), ..reference };
        assert_eq!(BlobReference::decode(&beyond.encode()), None);
    }

    #[test]
    fn a_value_of_any_length_has_room_for_its_checksums() {
        for length in [0, 1, 4063, 4064, 65_535, 65_536, 65_537, 1 << 20, 1 << 30] {
            let end = trailer_at(length) + 8 * chunks(length);
            assert!(end <= pages(length) as u64 * PAGE_SIZE as u64);
            assert!(trailer_at(length) >= HEADER_BYTES as u64 + length);
        }
    }
}
