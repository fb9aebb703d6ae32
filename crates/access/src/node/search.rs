//! Searching a node: the innermost loop of everything.
//!
//! Hints say in one cache line in which range of 2^k slots the key must be; within the range, slots below
//! the probe are counted, with loads that do not depend on each other, instead of searched by bisection.
//! Key bytes in the heap are touched only if the head agrees and the key goes beyond it.

use super::layout::*;
use super::view::{Find, NodeView, ValueAt, child_place};
use std::cmp::Ordering;
use vellum_base::Bytes;

impl<B: Bytes> NodeView<B> {
    /// Finds the first slot whose key is not less than `key`, which may have any length and need not lie
    /// between the fences.
    #[inline]
    pub fn find(self, key: &[u8]) -> Find {
        let (index, slot) =
            if self.is_leaf() { self.search::<LEAF_STRIDE>(key) } else { self.search::<INNER_STRIDE>(key) };
        Find { index, found: slot.is_some() }
    }

    /// Where the value of `key` lies, if the leaf has it. The same as [`NodeView::find`] followed by
    /// [`NodeView::value_location`], but only for leaves, and a little faster.
    #[inline]
    pub fn get(self, key: &[u8]) -> Option<ValueAt> {
        let (_, slot) = self.search::<LEAF_STRIDE>(key);
        slot.map(|slot| ValueAt { at: slot.at(), length: slot.value_length(), kind: slot.kind() })
    }

    /// The byte in the page where the id of the child stands that covers `key`: that of the first separator
    /// not less than `key`, or else the last child. Only for inner nodes. Always a place within the page,
    /// and one that [`NodeView::child_place`] gives.
    #[inline]
    pub fn child_for(self, key: &[u8]) -> usize {
        child_place(self.search::<INNER_STRIDE>(key).0)
    }

    /// The first slot whose key is not less than `key`, and what it holds if the key is equal.
    #[inline]
    fn search<const STRIDE: usize>(self, key: &[u8]) -> (usize, Option<Slot>) {
        let word = self.word();
        let count =
            word.count().min(const { if STRIDE == LEAF_STRIDE { MAX_LEAF_COUNT } else { MAX_INNER_COUNT } });
        let prefix_length = word.prefix_length();
        let key_word = key_word(key);
        let mask = !u64::MAX.checked_shr(8 * prefix_length.min(8) as u32).unwrap_or(0);
        let begins = key_word & mask == self.bytes.u64_at(PREFIX_WORD_AT);
        if !begins || prefix_length > key.len().min(8) {
            match self.compare_prefix(prefix_length, key) {
                Ordering::Less => return (count, None),
                Ordering::Greater => return (0, None),
                Ordering::Equal => {}
            }
        }
        let head = head_behind(key, key_word, prefix_length);
        let rest_length = key.len().saturating_sub(prefix_length);
        let probe = Slot::probe(head, rest_length);
        let index = self.count_less::<STRIDE>(count, probe);
        if index >= count {
            return (count, None);
        }
        let slot = self.slot_at::<STRIDE>(index);
        if slot.head() != head {
            return (index, None);
        }
        if rest_length <= HEAD_BYTES {
            return (index, slot.agrees(probe).then_some(slot));
        }
        self.search_tails::<STRIDE>(index, count, head, key.get(prefix_length..).unwrap_or(&[]))
    }

    /// What hint `index` must be in a node with `count` slots.
    pub(super) fn hint_due(self, count: usize, index: usize) -> u32 {
        let slot = ((index + 1) << hint_shift(count)) - 1;
        if slot < count { self.slot(slot).head() } else { u32::MAX }
    }

    /// How many slots are less than `probe`.
    #[inline]
    fn count_less<const STRIDE: usize>(self, count: usize, probe: u64) -> usize {
        let shift = hint_shift(count);
        let head = (probe >> 32) as u32;
        let mut range = 0;
        for pair in 0..HINT_COUNT / 2 {
            let hints = self.bytes.u64_at(HINTS_AT + 8 * pair);
            range += usize::from((hints as u32) < head) + usize::from(((hints >> 32) as u32) < head);
        }
        let start = (range << shift).min(count);
        let end = (start + (1 << shift)).min(count);
        let mut index = start;
        for candidate in start..end {
            index += usize::from(self.slot_at::<STRIDE>(candidate).0 < probe);
        }
        // Only keys with the same head, but shorter ones, can make this go on into the next range.
        while index >= end && index < count && self.slot_at::<STRIDE>(index).0 < probe {
            index += 1;
        }
        index
    }

    /// Goes on among the slots from `index` on, whose heads are `head` or greater, by what follows the head.
    #[inline(never)]
    fn search_tails<const STRIDE: usize>(
        self,
        index: usize,
        count: usize,
        head: u32,
        rest: &[u8],
    ) -> (usize, Option<Slot>) {
        let (mut low, mut high) = (index, count);
        // Mostly the first one is it: heads rarely tie.
        let mut middle = index;
        while low < high {
            let slot = self.slot_at::<STRIDE>(middle);
            match self.compare_rest(slot, head, rest) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return (middle, Some(slot)),
                Ordering::Greater => high = middle,
            }
            middle = low + (high - low) / 2;
        }
        (low, None)
    }

    /// How the prefix compares with the beginning of `key`.
    #[inline(never)]
    fn compare_prefix(self, prefix_length: usize, key: &[u8]) -> Ordering {
        self.bytes.compare(self.lower_at(), prefix_length, key.get(..prefix_length).unwrap_or(key))
    }

    #[inline]
    fn slot_at<const STRIDE: usize>(self, index: usize) -> Slot {
        Slot(self.bytes.u64_at(SLOTS_AT + index * STRIDE))
    }
}
