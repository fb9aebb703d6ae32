//! What every search of a node looks at: its prefix, its hints, its slots and tails.

use super::{layout::*, view::NodeView};
use std::cmp::Ordering;
use vellum_base::Bytes;

/// The tails of so many keys with the same head are fetched at once, before the first of them is compared.
pub(super) const TIES_FETCHED: usize = 16;

/// A multiple of 8 within the page. The place of a slot stays what it is, but the compiler now knows its bounds.
#[inline]
pub(super) fn within_page(at: usize) -> usize {
    at & (NODE_BYTES - 8)
}

impl<B: Bytes> NodeView<B> {
    /// How the prefix compares with the beginning of `key`, whose first bytes are `key_word`.
    #[inline(always)]
    pub(super) fn prefix_order(self, prefix_length: usize, key: &[u8], key_word: u64) -> Ordering {
        // Up to seven bytes are compared as a number, which two shifts free of the rest.
        let unlike = (key_word ^ self.bytes.u64_at(PREFIX_WORD_AT)) >> 1;
        if prefix_length <= key.len().min(7) && unlike.wrapping_shr(63 - 8 * prefix_length as u32) == 0 {
            Ordering::Equal
        } else {
            self.compare_prefix(prefix_length, key)
        }
    }

    /// How the prefix compares with the beginning of `key`.
    #[inline(never)]
    fn compare_prefix(self, prefix_length: usize, key: &[u8]) -> Ordering {
        self.bytes.compare(self.lower_at(), prefix_length, key.get(..prefix_length).unwrap_or(key))
    }

    /// The slot at byte `at`, which is one where a slot stands.
    #[inline(always)]
    pub(super) fn slot_at(self, at: usize) -> Slot {
        Slot(self.bytes.u64_at(within_page(at)))
    }

    /// The range of slots which, by the hints, has the first slot that is not less than `head`: the byte at which it
    /// begins, and its length in bytes. All slots before the range are less. Its last slot, whose head is the hint, is
    /// not, unless all slots are less.
    #[inline(always)]
    pub(super) fn range_of<const STRIDE: usize>(self, count: usize, head: u32) -> (usize, usize) {
        let shift = hint_shift(count);
        let range = self.bytes.less_of_16(HINTS_AT, head) << shift;
        // Near the end of the node the range is moved back until it ends with the last slot, and so begins with some
        // that are less.
        let start = range.min(count.saturating_sub(1 << shift));
        (SLOTS_AT + start * STRIDE, STRIDE << shift)
    }

    /// Up to eight bytes of a tail as a big-endian number, padded with zeroes.
    #[inline(always)]
    pub(super) fn tail_word(self, at: usize, length: usize) -> u64 {
        // The read ends where these bytes end, so that it does not leave the page.
        let length = length.min(8);
        let bytes = self.bytes.be_word_at((at + length).saturating_sub(8));
        bytes.checked_shl(64 - 8 * length as u32).unwrap_or(0)
    }
}
