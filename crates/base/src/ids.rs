//! Identifiers: a page, an extent of pages, a place in the log.

use crate::PAGE_SIZE;
use std::fmt;

/// The number of a page: its place in the file and, in the pool, its place in the mapping.
///
/// Page `p` lives at byte `4096 * p` of the file and at `base + 4096 * p` in memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct PageId(pub u64);

impl PageId {
    /// How many bits a page id has at most.
    pub const BITS: u32 = 40;

    /// The page to which a word of a page refers: its lower [`BITS`](Self::BITS) bits. The others belong to the page.
    #[inline]
    pub const fn referred(word: u64) -> Self {
        Self(word & ((1 << Self::BITS) - 1))
    }

    /// The byte offset of the page, in the file and in the mapping alike.
    #[inline]
    pub const fn offset(self) -> u64 {
        self.0 * PAGE_SIZE as u64
    }
}

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {}", self.0)
    }
}

/// A run of consecutive pages that is allocated, latched, read, written and evicted as one.
///
/// Only the state of its first page, the head, is used. A tree node is an extent of one page; a large
/// value is an extent of as many pages as it needs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Extent {
    /// The first page, which identifies the extent.
    pub head: PageId,
    /// The number of pages; at least 1.
    pub pages: u32,
}

impl Extent {
    /// The extent that is the single page `head`.
    #[inline]
    pub const fn page(head: PageId) -> Self {
        Self { head, pages: 1 }
    }

    /// The size in bytes, including the header.
    #[inline]
    pub const fn bytes(self) -> usize {
        self.pages as usize * PAGE_SIZE
    }

    /// The page after the last one; the greatest page id, if a damaged reference reaches beyond it.
    #[inline]
    pub const fn end(self) -> PageId {
        PageId(self.head.0.saturating_add(self.pages as u64))
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pages == 1 { self.head.fmt(f) } else { write!(f, "pages {}..{}", self.head.0, self.end().0) }
    }
}

/// A log sequence number: a byte position in the log. Zero means "before any log record".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Lsn(pub u64);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LSN {}", self.0)
    }
}
