//! The limits on the size of a file and of an extent.
//!
//! The set of resident pages stores an extent in one 64-bit word: the page id of its head, and its length.

use vellum_base::PageId;

/// The number of bits of such a word for the page id; the length has the others.
pub(crate) const PAGE_BITS: u32 = PageId::BITS;

/// The largest page id: 4 PiB of storage.
pub const PAGE_ID_MAX: u64 = (1 << PAGE_BITS) - 1;

/// The longest extent, in pages: just under 64 GiB.
pub const EXTENT_PAGES_MAX: u32 = (1 << (u64::BITS - PAGE_BITS)) - 1;
