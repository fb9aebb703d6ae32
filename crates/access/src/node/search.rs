//! Searching a node: the innermost loop of everything. What is particular to inner nodes is in `inner_search.rs`.
//!
//! Hints say in one cache line in which range of 2^k slots the key must be; all sixteen are compared at once.
//! So is the range, or all of a leaf with few slots, where the processor can; elsewhere the range is cut to a quarter by
//! three comparisons at a time, which do not depend on each other and do not jump.
//! Key bytes in the heap are touched only if the head agrees and the key goes beyond it.

use super::{
    layout::*,
    probe::TIES_FETCHED,
    view::{Find, NodeView, ValueAt},
};
use std::cmp::Ordering;
use vellum_base::Bytes;

/// The first slot that is not less than the head and the length of a key.
#[derive(Clone, Copy)]
struct Seek {
    /// The byte where that slot stands, or [`Seek::end`].
    at: usize,
    /// The byte after the last slot that may hold the key: [`Seek::at`] if the key has not the node's prefix.
    end: usize,
    /// The slot of the key that is searched for. Has no meaning if no slot is left to compare it with.
    probe: Slot,
}

impl<B: Bytes> NodeView<B> {
    /// Finds the first slot whose key is not less than `key`, which may have any length and need not lie
    /// between the fences.
    #[inline]
    pub fn find(self, key: &[u8]) -> Find {
        let word = self.word();
        if word.level() == 0 {
            let (index, slot) = self.search::<false>(key);
            return Find { index, found: slot != ABSENT };
        }
        let (at, found) = self.seek_entry::<false>(word, word.count().min(MAX_INNER_COUNT), key);
        Find { index: (at - SLOTS_AT) / INNER_STRIDE, found }
    }

    /// [`NodeView::find`] in a leaf, of a key that lies between its fences or is one of them: it has the leaf's prefix, which is not compared.
    #[inline]
    pub fn find_between_fences(self, key: &[u8]) -> Find {
        let (index, slot) = self.search::<true>(key);
        Find { index, found: slot != ABSENT }
    }

    /// [`NodeView::find`] in a leaf, of a key that it covers and most likely has.
    #[inline(always)]
    pub fn find_covered(self, key: &[u8]) -> Find {
        let word = self.word();
        if word.has_fingerprints() {
            let (index, slot) = self.search_fingerprints(word, key);
            if slot != ABSENT {
                return Find { index, found: true };
            }
        }
        let (index, slot) = self.search::<true>(key);
        Find { index, found: slot != ABSENT }
    }

    /// Where the value of `key`, which the leaf covers, lies, if the leaf has it: [`NodeView::find_covered`] and
    /// [`NodeView::value_location`] in one, a little faster. Only for leaves.
    #[inline(always)]
    pub fn get(self, key: &[u8]) -> Option<ValueAt> {
        let word = self.word();
        let slot = if word.has_fingerprints() {
            self.search_fingerprints(word, key).1
        } else {
            self.search::<true>(key).1
        };
        (slot != ABSENT).then(|| ValueAt { at: slot.at(), length: slot.value_length(), kind: slot.kind() })
    }

    /// The index of the first slot whose key is not less than `key`, and the slot itself if the key is equal, else
    /// [`ABSENT`].
    #[inline(always)]
    fn search<const COVERED: bool>(self, key: &[u8]) -> (usize, Slot) {
        let seek = self.seek::<COVERED>(key);
        let slot = self.slot_at(seek.at);
        let (at, slot) = if seek.at >= seek.end || slot.head() != seek.probe.head() {
            (seek.at, ABSENT)
        } else if seek.probe.is_whole() {
            (seek.at, if slot.agrees(seek.probe) { slot } else { ABSENT })
        } else {
            self.search_tails(seek.at, seek.end, key)
        };
        ((at - SLOTS_AT) / LEAF_STRIDE, slot)
    }

    /// The right value of hint `index` in a node with `count` slots.
    pub(super) fn hint_due(self, count: usize, index: usize) -> u32 {
        let slot = ((index + 1) << hint_shift(count)) - 1;
        // The upper half of a slot, or of the first word of an entry.
        let at = SLOTS_AT + slot * self.word().stride() + 4;
        if slot < count { self.bytes.u32_at(at) } else { u32::MAX }
    }

    /// Finds the place of a key by heads and lengths.
    ///
    /// Much of the engine's time is spent here, so this counts in bytes and not in slots, and branches only where the
    /// processor can predict it.
    #[inline(always)]
    fn seek<const COVERED: bool>(self, key: &[u8]) -> Seek {
        let word = self.word();
        let count = word.count().min(MAX_LEAF_COUNT);
        let end = SLOTS_AT + count * LEAF_STRIDE;
        let prefix_length = word.prefix_length();
        let key_word = key_word(key);
        if !COVERED || !word.is_closed() {
            match self.prefix_order(prefix_length, key, key_word) {
                Ordering::Less => return Seek { at: end, end, probe: ABSENT },
                // As if no slots were left: after another prefix a rest says nothing, so none is compared.
                Ordering::Greater => return Seek { at: SLOTS_AT, end: SLOTS_AT, probe: ABSENT },
                Ordering::Equal => {}
            }
        }
        let head = head_after(key, key_word, prefix_length);
        let probe = Slot::probe(head, key.len().wrapping_sub(prefix_length));
        // Few slots are compared all at once.
        if count <= 32 || word.has_fingerprints() {
            /// Where the second half of up to 64 slots begins.
            const HALF: usize = SLOTS_AT + 32 * LEAF_STRIDE;
            let is_beyond = count > 32 && self.slot_at(HALF - LEAF_STRIDE).0 < probe.0;
            if let Some(at) = self.bytes.search_32(if is_beyond { HALF } else { SLOTS_AT }, probe.0) {
                return Seek { at: at.min(end), end, probe };
            }
        }
        if word.has_fingerprints() {
            return Seek { at: self.seek_few(count, probe), end, probe };
        }
        let (mut at, mut step) = self.range_of::<LEAF_STRIDE>(count, head);
        // The loads of a round do not depend on each other, so that the processor fetches their cache lines at once.
        let less = |at: usize| usize::from(self.slot_at(at).0 < probe.0);
        while step > 4 * LEAF_STRIDE {
            step /= 4;
            let last = at + step - LEAF_STRIDE;
            at += step * (less(last) + less(last + step) + less(last + 2 * step));
        }
        // Of 1, 2 or 4 slots, all but the last.
        if step > 2 * LEAF_STRIDE {
            at += LEAF_STRIDE * (less(at) + less(at + LEAF_STRIDE) + less(at + 2 * LEAF_STRIDE));
        } else if step > LEAF_STRIDE {
            at += LEAF_STRIDE * less(at);
        }
        // This goes on only over shorter keys with the same head, or if all slots are less.
        while at < end && less(at) == 1 {
            at += LEAF_STRIDE;
        }
        Seek { at: at.min(end), end, probe }
    }

    /// The byte where the first slot of a leaf with fingerprints stands that is not less than `probe`, or one after the last.
    fn seek_few(self, count: usize, probe: Slot) -> usize {
        let (mut from, mut left) = (0, count);
        while left > 0 {
            let half = left / 2;
            let is_less = self.slot_at(SLOTS_AT + (from + half) * LEAF_STRIDE).0 < probe.0;
            (from, left) = if is_less { (from + half + 1, left - half - 1) } else { (from, half) };
        }
        SLOTS_AT + from * LEAF_STRIDE
    }

    /// Searches the slots from byte `from` on, whose heads are that of `key` or greater, by what follows the head. Gives
    /// the byte where the first one stands that is not less, and the slot itself if it is equal, else [`ABSENT`].
    #[inline(never)]
    fn search_tails(self, from: usize, end: usize, key: &[u8]) -> (usize, Slot) {
        let rest = key.get(self.word().prefix_length()..).unwrap_or(&[]);
        let head = head_of(rest);
        let tail = rest.get(HEAD_BYTES..).unwrap_or(&[]);
        let (tail_word, long) = (key_word(tail), tail.len() > 8);
        let (mut low, mut high) = (0, end.saturating_sub(from) / LEAF_STRIDE);
        // Where many tie, each comparison would wait for a tail.
        for index in 0..high.min(TIES_FETCHED) {
            let slot = self.slot_at(from + index * LEAF_STRIDE);
            if slot.head() != head {
                high = index;
                break;
            }
            self.bytes.prefetch(slot.tail_at());
        }
        // Mostly it is the first one: heads rarely tie.
        let mut middle = low;
        while low < high {
            let at = from + middle * LEAF_STRIDE;
            let slot = self.slot_at(at);
            // What is beyond is compared only if these bytes are the same.
            let word = self.tail_word(slot.tail_at(), slot.tail_length());
            let order = (slot.head(), word).cmp(&(head, tail_word));
            let order = match order {
                Ordering::Equal if long || slot.tail_length() > 8 => self.compare_rest(slot.into(), rest),
                Ordering::Equal => slot.rest_length().cmp(&rest.len()),
                unequal => unequal,
            };
            match order {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return (at, slot),
                Ordering::Greater => high = middle,
            }
            middle = low + (high - low) / 2;
        }
        (from + low * LEAF_STRIDE, ABSENT)
    }
}
