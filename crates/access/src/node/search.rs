//! Searching a node: the innermost loop of everything.
//!
//! Hints say in one cache line in which range of 2^k slots the key must be. Hints and range alike are cut to a
//! quarter by three comparisons at a time, which do not depend on each other and do not jump.
//! Key bytes in the heap are touched only if the head agrees and the key goes beyond it.

use super::layout::*;
use super::view::{Find, NodeView, ValueAt, child_place};
use std::cmp::Ordering;
use vellum_base::Bytes;

/// What [`NodeView::search`] gives instead of the slot of a key that is not there: no slot has such lengths.
/// (A pair of numbers is returned in registers; an `Option` would go through memory.)
const ABSENT: Slot = Slot(u64::MAX);

impl<B: Bytes> NodeView<B> {
    /// Finds the first slot whose key is not less than `key`, which may have any length and need not lie
    /// between the fences.
    #[inline]
    pub fn find(self, key: &[u8]) -> Find {
        let (index, slot) =
            if self.is_leaf() { self.search::<LEAF_STRIDE>(key) } else { self.search::<INNER_STRIDE>(key) };
        Find { index, found: slot != ABSENT }
    }

    /// Where the value of `key` lies, if the leaf has it. The same as [`NodeView::find`] followed by
    /// [`NodeView::value_location`], but only for leaves, and a little faster.
    #[inline]
    pub fn get(self, key: &[u8]) -> Option<ValueAt> {
        let (_, slot) = self.search::<LEAF_STRIDE>(key);
        (slot != ABSENT).then(|| ValueAt { at: slot.at(), length: slot.value_length(), kind: slot.kind() })
    }

    /// The byte in the page where the id of the child stands that covers `key`: that of the first separator
    /// not less than `key`, or else the last child. Only for inner nodes. Always a place within the page,
    /// and one that [`NodeView::child_place`] gives.
    #[inline]
    pub fn child_for(self, key: &[u8]) -> usize {
        child_place(self.search::<INNER_STRIDE>(key).0)
    }

    /// The first slot whose key is not less than `key`, and it itself if the key is equal, else [`ABSENT`].
    #[inline]
    fn search<const STRIDE: usize>(self, key: &[u8]) -> (usize, Slot) {
        let word = self.word();
        let count =
            word.count().min(const { if STRIDE == LEAF_STRIDE { MAX_LEAF_COUNT } else { MAX_INNER_COUNT } });
        let prefix_length = word.prefix_length();
        let key_word = key_word(key);
        let prefix_bits = 8 * prefix_length.min(8) as u32;
        let unlike =
            (key_word ^ self.bytes.u64_at(PREFIX_WORD_AT)).checked_shr(64 - prefix_bits).unwrap_or(0);
        if unlike != 0 || prefix_length > key.len().min(8) {
            match self.compare_prefix(prefix_length, key) {
                Ordering::Less => return (count, ABSENT),
                Ordering::Greater => return (0, ABSENT),
                Ordering::Equal => {}
            }
        }
        let head = head_behind(key, key_word, prefix_length);
        let rest_length = key.len().saturating_sub(prefix_length);
        let probe = Slot::probe(head, rest_length);
        let index = self.count_less::<STRIDE>(count, probe);
        if index >= count {
            return (count, ABSENT);
        }
        let slot = self.slot_at::<STRIDE>(index);
        if slot.head() != head {
            return (index, ABSENT);
        }
        if rest_length <= HEAD_BYTES {
            return (index, if slot.agrees(probe) { slot } else { ABSENT });
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
        let before = |index: usize| usize::from(self.bytes.u32_at(HINTS_AT + 4 * index) < head);
        let quarter = 4 * (before(3) + before(7) + before(11));
        let range =
            quarter + before(quarter) + before(quarter + 1) + before(quarter + 2) + before(quarter + 3);
        // All slots before the range are less, and its last one, whose head is the hint, is not. The loads of
        // a round do not depend on each other, so that the processor fetches their cache lines at once.
        let less = |index: usize| (index < count) & (self.slot_at::<STRIDE>(index).0 < probe);
        let mut index = range << shift;
        let mut size = 1 << shift;
        while size > 4 {
            size /= 4;
            let ends = [index + size, index + 2 * size, index + 3 * size];
            index += size * ends.into_iter().map(|end| usize::from(less(end - 1))).sum::<usize>();
        }
        // Of 1, 2 or 4 slots, all but the last.
        if size > 2 {
            index += usize::from(less(index)) + usize::from(less(index + 1)) + usize::from(less(index + 2));
        } else if size > 1 {
            index += usize::from(less(index));
        }
        // Only keys with the same head, but shorter ones, can make this go on.
        while less(index) {
            index += 1;
        }
        index.min(count)
    }

    /// Goes on among the slots from `index` on, whose heads are `head` or greater, by what follows the head.
    #[inline(never)]
    fn search_tails<const STRIDE: usize>(
        self,
        index: usize,
        count: usize,
        head: u32,
        rest: &[u8],
    ) -> (usize, Slot) {
        let tail = rest.get(HEAD_BYTES..).unwrap_or(&[]);
        let (tail_word, long) = (key_word(tail), tail.len() > 8);
        let (mut low, mut high) = (index, count);
        // Mostly the first one is it: heads rarely tie.
        let mut middle = index;
        while low < high {
            let slot = self.slot_at::<STRIDE>(middle);
            // Up to eight bytes of the tail as a number, read so that they end where the bytes end, and do not
            // leave the page; what is beyond is looked at only if they are the same.
            let length = slot.tail_length().min(8);
            let bytes = self.bytes.be_word_at((slot.tail_at() + length).saturating_sub(8));
            let word = bytes.checked_shl(64 - 8 * length as u32).unwrap_or(0);
            let order = (slot.head(), word).cmp(&(head, tail_word));
            let order = match order {
                Ordering::Equal if long || slot.tail_length() > 8 => self.compare_rest(slot, head, rest),
                Ordering::Equal => slot.rest_length().cmp(&rest.len()),
                unequal => unequal,
            };
            match order {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return (middle, slot),
                Ordering::Greater => high = middle,
            }
            middle = low + (high - low) / 2;
        }
        (low, ABSENT)
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
