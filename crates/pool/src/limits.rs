//! How large a file and an extent may be.
//!
//! The set of resident pages keeps an extent in one word of 64 bits: the page id of its head, and its length.

/// How many bits of such a word the page id takes; the length has the others.
pub(crate) const PAGE_BITS: u32 = 40;

/// The largest page id: 4 PiB of storage.
pub const PAGE_ID_MAX: u64 = (1 << PAGE_BITS) - 1;

/// The longest extent, in pages: just under 64 GiB.
pub const EXTENT_PAGES_MAX: u32 = (1 << (u64::BITS - PAGE_BITS)) - 1;
