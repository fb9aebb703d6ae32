//! The header with which every page on storage begins, and its checksum.

use crate::{Extent, Lsn, PAGE_SIZE, PageId};
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

/// The size of [`PageHeader`] on storage, in bytes. The bytes after it belong to the owner of the page.
pub const HEADER_BYTES: usize = 32;

/// The offset of the LSN in the header.
pub const LSN_AT: usize = 16;

/// The version of the header's layout.
pub const PAGE_FORMAT_VERSION: u8 = 1;

/// The kind of a page, so that a reference that leads to the wrong place is noticed.
///
/// The pool attaches no meaning to a kind beyond [`PageKind::SUPERBLOCK`] and [`PageKind::SPACE_MAP`];
/// it only checks that a kind is not zero. Kinds from 64 on are free for users of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct PageKind(pub u8);

impl PageKind {
    /// One of the two pages at the beginning of a file that describe it.
    pub const SUPERBLOCK: Self = Self(1);
    /// The extent that records which pages are allocated.
    pub const SPACE_MAP: Self = Self(2);
    /// A node of a B+tree.
    pub const TREE_NODE: Self = Self(3);
    /// The extent of a large value.
    pub const BLOB: Self = Self(4);
    /// A page of a heap of objects.
    pub const OBJECTS: Self = Self(5);
    /// The first kind that is free for users of the pool; Vellum itself will never use it or a later one.
    pub const USER: Self = Self(64);
}

/// The first 32 bytes of every extent, little-endian.
///
/// | bytes | field |
/// |---|---|
/// | 0..8 | checksum: XXH3-64 over bytes 8 to the end of the extent |
/// | 8..16 | page id of the head |
/// | 16..24 | LSN of the last change |
/// | 24..28 | length of the extent in pages |
/// | 28 | kind |
/// | 29 | version of this layout |
/// | 30..32 | zero |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageHeader {
    /// The extent. It reveals a page that was written to the wrong place.
    pub extent: Extent,
    /// The log record of the last change.
    pub lsn: Lsn,
    /// The kind of the page.
    pub kind: PageKind,
}

/// Why the bytes of an extent are not what they should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderFault {
    /// The checksum stored in the header is not that of the contents.
    Checksum {
        /// The checksum in the header.
        stored: u64,
        /// The checksum of the contents.
        computed: u64,
    },
    /// The header names another page: a write or a read went to the wrong place.
    PageId {
        /// The page that the header names.
        found: u64,
    },
    /// The header gives another length.
    Length {
        /// The length in pages that the header gives.
        found: u32,
    },
    /// The kind is zero or the layout's version is unknown.
    Format {
        /// The kind found.
        kind: u8,
        /// The version found.
        version: u8,
    },
}

impl std::fmt::Display for HeaderFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Checksum { stored, computed } => {
                write!(f, "its checksum is {computed:016x} but its header says {stored:016x}")
            }
            Self::PageId { found } => write!(f, "its header says that it is page {found}"),
            Self::Length { found } => write!(f, "its header says that it is {found} pages long"),
            Self::Format { kind, version } => {
                write!(f, "its header has kind {kind} and layout version {version}, which are unknown")
            }
        }
    }
}

impl PageHeader {
    /// Writes the header, with a zero checksum, to the beginning of `bytes`.
    ///
    /// # Panics
    /// If `bytes` is shorter than a header: extents are at least one page.
    pub fn write(&self, bytes: &mut [u8]) {
        let Some(head) = bytes.first_chunk_mut::<HEADER_BYTES>() else { panic!("{SHORT}") };
        head[0..8].fill(0);
        head[8..16].copy_from_slice(&self.extent.head.0.to_le_bytes());
        head[16..24].copy_from_slice(&self.lsn.0.to_le_bytes());
        head[24..28].copy_from_slice(&self.extent.pages.to_le_bytes());
        head[28] = self.kind.0;
        head[29] = PAGE_FORMAT_VERSION;
        head[30..32].fill(0);
    }

    /// Reads the header without checking it; see [`verify_header`].
    ///
    /// # Panics
    /// If `bytes` is shorter than a header.
    pub fn read(bytes: &[u8]) -> Self {
        let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else { panic!("{SHORT}") };
        Self {
            extent: Extent {
                head: PageId(u64::from_le_bytes(array(&head[8..16]))),
                pages: u32::from_le_bytes(array(&head[24..28])),
            },
            lsn: Lsn(u64::from_le_bytes(array(&head[16..24]))),
            kind: PageKind(head[28]),
        }
    }
}

/// The checksum of all data on storage: XXH3-64.
pub fn checksum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// The same checksum, for bytes that come piece by piece.
#[derive(Default)]
pub struct ChecksumStream(Xxh3Default);

impl ChecksumStream {
    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all bytes so far.
    pub fn finish(&self) -> u64 {
        self.0.digest()
    }
}

/// Computes the checksum of an extent and stores it in its header.
///
/// # Panics
/// If `bytes` is shorter than a header.
pub fn stamp_checksum(bytes: &mut [u8]) {
    let Some((sum, rest)) = bytes.split_first_chunk_mut() else { panic!("{SHORT}") };
    *sum = xxh3_64(rest).to_le_bytes();
}

/// Stores the LSN of a page's last change in its header. Does nothing if `bytes` is shorter than a header.
#[inline]
pub fn stamp_lsn(bytes: &mut [u8], lsn: Lsn) {
    if let Some(target) = bytes.get_mut(16..24) {
        target.copy_from_slice(&lsn.0.to_le_bytes());
    }
}

/// Checks that `bytes`, just read from storage, are the requested extent.
///
/// # Errors
/// The first fault found; the checksum is checked first, because without it the rest means little.
pub fn verify_header(bytes: &[u8], extent: Extent) -> Result<PageHeader, HeaderFault> {
    debug_assert!(bytes.len() >= PAGE_SIZE);
    let Some((stored, rest)) = bytes.split_first_chunk() else { panic!("{SHORT}") };
    let (stored, computed) = (u64::from_le_bytes(*stored), xxh3_64(rest));
    if stored != computed {
        return Err(HeaderFault::Checksum { stored, computed });
    }
    let header = PageHeader::read(bytes);
    if header.extent.head != extent.head {
        return Err(HeaderFault::PageId { found: header.extent.head.0 });
    }
    if header.extent.pages != extent.pages {
        return Err(HeaderFault::Length { found: header.extent.pages });
    }
    let version = bytes.get(29).copied().unwrap_or(0);
    if header.kind.0 == 0 || version != PAGE_FORMAT_VERSION {
        return Err(HeaderFault::Format { kind: header.kind.0, version });
    }
    Ok(header)
}

/// The panic message for bytes that are no extent.
const SHORT: &str = "an extent is at least one page";

/// The first `N` bytes of a slice that is known to be at least that long.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.first_chunk().copied().unwrap_or([0; N])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Vec<u8>, Extent) {
        let extent = Extent { head: PageId(7), pages: 2 };
        let mut bytes = vec![0xabu8; extent.bytes()];
        PageHeader { extent, lsn: Lsn(9), kind: PageKind::BLOB }.write(&mut bytes);
        stamp_checksum(&mut bytes);
        (bytes, extent)
    }

    #[test]
    fn a_header_comes_back_as_it_was_written() {
        let (bytes, extent) = sample();
        let header = verify_header(&bytes, extent).unwrap();
        assert_eq!(header, PageHeader { extent, lsn: Lsn(9), kind: PageKind::BLOB });
    }

    #[test]
    fn a_stream_has_the_checksum_of_the_whole() {
        let bytes: Vec<u8> = (0..5000u32).map(|index| (index * 7) as u8).collect();
        let mut stream = ChecksumStream::default();
        bytes.chunks(333).for_each(|chunk| stream.update(chunk));
        assert_eq!(stream.finish(), checksum(&bytes));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let (mut bytes, extent) = sample();
        for bit in (0..bytes.len() * 8).step_by(97).chain(0..HEADER_BYTES * 8) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(verify_header(&bytes, extent).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_page_in_the_wrong_place_is_noticed() {
        let (bytes, _) = sample();
        let elsewhere = Extent { head: PageId(8), pages: 2 };
        assert_eq!(verify_header(&bytes, elsewhere), Err(HeaderFault::PageId { found: 7 }));
    }
}
