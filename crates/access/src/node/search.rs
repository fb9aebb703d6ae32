//! Searching a node: the innermost loop of everything.
//!
//! Hints say in one cache line in which range of 2^k slots the key must be; all sixteen are compared at once.
//! So is the range, or all of a leaf with few slots, where the processor can; elsewhere the range is cut to a quarter by
//! three comparisons at a time, which do not depend on each other and do not jump.
//! Key bytes in the heap are touched only if the head agrees and the key goes beyond it.

use super::{
    layout::*,
    view::{Find, NodeView, ValueAt},
};
use std::cmp::Ordering;
use vellum_base::Bytes;

/// Stands for the slot of a key that is absent: no slot has such lengths.
/// (A pair of numbers is returned in registers; an `Option` would go through memory.)
const ABSENT: Slot = Slot(u64::MAX);

/// A multiple of 8 within the page. The place of a slot stays what it is, but the compiler now knows its bounds.
#[inline]
fn within_page(at: usize) -> usize {
    at & (NODE_BYTES - 8)
}

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
        let (index, slot) =
            if self.is_leaf() { self.search::<LEAF_STRIDE>(key) } else { self.search::<INNER_STRIDE>(key) };
        Find { index, found: slot != ABSENT }
    }

    /// Where the value of `key` lies, if the leaf has it: [`NodeView::find`] and [`NodeView::value_location`] in one,
    /// a little faster. Only for leaves.
    #[inline(always)]
    pub fn get(self, key: &[u8]) -> Option<ValueAt> {
        let (_, slot) = self.search::<LEAF_STRIDE>(key);
        (slot != ABSENT).then(|| ValueAt { at: slot.at(), length: slot.value_length(), kind: slot.kind() })
    }

    /// The byte in the page where the id of the child stands that covers `key`: that of the first separator
    /// not less than `key`, or else the last child. Only for inner nodes. Always a place within the page,
    /// and one that [`NodeView::child_place`] gives.
    ///
    /// If the node has both fences, `key` lies between them and so has the prefix, which is not compared. If it does
    /// not, the result is some child.
    #[inline(always)]
    pub fn child_for(self, key: &[u8]) -> usize {
        let word = self.word();
        // Not clamped: whatever the count is, no slot beyond the page is read.
        let count = word.count();
        let end = SLOTS_AT + count * INNER_STRIDE;
        let key_word = key_word(key);
        if !word.is_closed() {
            match self.prefix_order(word.prefix_length(), key, key_word) {
                Ordering::Less => return within_page(end + 8),
                Ordering::Greater => return SLOTS_AT + 8,
                Ordering::Equal => {}
            }
        }
        let head = head_after(key, key_word, word.prefix_length());
        let bound = (head as u64) << 32;
        let at = match self.bytes.search_16(HINTS_AT, SLOTS_AT, hint_shift(count), bound) {
            Some(at) => at,
            None => self.seek_heads(count, head),
        };
        // What stands after the last separator may be anything: `search_tails` does not go beyond `end`.
        if self.slot_at(at).head() == head {
            return within_page(self.search_tails::<INNER_STRIDE>(at.min(end), end, key).0 + 8);
        }
        let at = at.min(end);
        within_page(at + 8)
    }

    /// The byte where the first separator stands whose head is not less than `head`, or one after the last.
    #[inline(always)]
    fn seek_heads(self, count: usize, head: u32) -> usize {
        let less = |at: usize| usize::from(self.slot_at(at).0 < (head as u64) << 32);
        let (mut at, mut step) = self.range_of::<INNER_STRIDE>(count, head);
        while step > 4 * INNER_STRIDE {
            step /= 4;
            let last = at + step - INNER_STRIDE;
            at += step * (less(last) + less(last + step) + less(last + 2 * step));
        }
        let pair = |at| less(at) + less(at + INNER_STRIDE);
        let before = match step / INNER_STRIDE {
            1 => less(at),
            2 => pair(at),
            _ => pair(at) + pair(at + 2 * INNER_STRIDE),
        };
        at + INNER_STRIDE * before
    }

    /// The index of the first slot whose key is not less than `key`, and the slot itself if the key is equal, else
    /// [`ABSENT`].
    #[inline(always)]
    fn search<const STRIDE: usize>(self, key: &[u8]) -> (usize, Slot) {
        let seek = self.seek::<STRIDE>(key);
        let slot = self.slot_at(seek.at);
        let (at, slot) = if seek.at >= seek.end || slot.head() != seek.probe.head() {
            (seek.at, ABSENT)
        } else if seek.probe.is_whole() {
            (seek.at, if slot.agrees(seek.probe) { slot } else { ABSENT })
        } else {
            self.search_tails::<STRIDE>(seek.at, seek.end, key)
        };
        ((at - SLOTS_AT) / STRIDE, slot)
    }

    /// The right value of hint `index` in a node with `count` slots.
    pub(super) fn hint_due(self, count: usize, index: usize) -> u32 {
        let slot = ((index + 1) << hint_shift(count)) - 1;
        if slot < count { self.slot(slot).head() } else { u32::MAX }
    }

    /// Finds the place of a key by heads and lengths.
    ///
    /// Much of the engine's time is spent here, so this counts in bytes and not in slots, and branches only where the
    /// processor can predict it.
    #[inline(always)]
    fn seek<const STRIDE: usize>(self, key: &[u8]) -> Seek {
        let word = self.word();
        let count =
            word.count().min(const { if STRIDE == LEAF_STRIDE { MAX_LEAF_COUNT } else { MAX_INNER_COUNT } });
        let end = SLOTS_AT + count * STRIDE;
        let prefix_length = word.prefix_length();
        let key_word = key_word(key);
        match self.prefix_order(prefix_length, key, key_word) {
            Ordering::Less => return Seek { at: end, end, probe: ABSENT },
            // As if no slots were left: after another prefix a rest says nothing, so none is compared.
            Ordering::Greater => return Seek { at: SLOTS_AT, end: SLOTS_AT, probe: ABSENT },
            Ordering::Equal => {}
        }
        let head = head_after(key, key_word, prefix_length);
        let probe = Slot::probe(head, key.len().wrapping_sub(prefix_length));
        // Few slots are compared all at once.
        if STRIDE == LEAF_STRIDE
            && count <= 32
            && let Some(at) = self.bytes.search_32(SLOTS_AT, probe.0)
        {
            return Seek { at: at.min(end), end, probe };
        }
        let (mut at, mut step) = self.range_of::<STRIDE>(count, head);
        // The loads of a round do not depend on each other, so that the processor fetches their cache lines at once.
        let less = |at: usize| usize::from(self.slot_at(at).0 < probe.0);
        while step > 4 * STRIDE {
            step /= 4;
            let last = at + step - STRIDE;
            at += step * (less(last) + less(last + step) + less(last + 2 * step));
        }
        // Of 1, 2 or 4 slots, all but the last.
        if step > 2 * STRIDE {
            at += STRIDE * (less(at) + less(at + STRIDE) + less(at + 2 * STRIDE));
        } else if step > STRIDE {
            at += STRIDE * less(at);
        }
        // This goes on only over shorter keys with the same head, or if all slots are less.
        while at < end && less(at) == 1 {
            at += STRIDE;
        }
        Seek { at: at.min(end), end, probe }
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

    /// How the prefix compares with the beginning of `key`, whose first bytes are `key_word`.
    #[inline(always)]
    fn prefix_order(self, prefix_length: usize, key: &[u8], key_word: u64) -> Ordering {
        // Up to seven bytes are compared as a number, which two shifts free of the rest.
        let unlike = (key_word ^ self.bytes.u64_at(PREFIX_WORD_AT)) >> 1;
        if prefix_length <= key.len().min(7) && unlike.wrapping_shr(63 - 8 * prefix_length as u32) == 0 {
            Ordering::Equal
        } else {
            self.compare_prefix(prefix_length, key)
        }
    }

    /// Searches the slots from byte `from` on, whose heads are that of `key` or greater, by what follows the head. Gives
    /// the byte where the first one stands that is not less, and the slot itself if it is equal, else [`ABSENT`].
    #[inline(never)]
    fn search_tails<const STRIDE: usize>(self, from: usize, end: usize, key: &[u8]) -> (usize, Slot) {
        let rest = key.get(self.word().prefix_length()..).unwrap_or(&[]);
        let head = head_of(rest);
        let tail = rest.get(HEAD_BYTES..).unwrap_or(&[]);
        let (tail_word, long) = (key_word(tail), tail.len() > 8);
        let (mut low, mut high) = (0, end.saturating_sub(from) / STRIDE);
        // Mostly it is the first one: heads rarely tie.
        let mut middle = low;
        while low < high {
            let at = from + middle * STRIDE;
            let slot = self.slot_at(at);
            // Up to eight bytes of the tail as a number. The read ends where these bytes end, so that it does not
            // leave the page. What is beyond is compared only if they are the same.
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
                Ordering::Equal => return (at, slot),
                Ordering::Greater => high = middle,
            }
            middle = low + (high - low) / 2;
        }
        (from + low * STRIDE, ABSENT)
    }

    /// How the prefix compares with the beginning of `key`.
    #[inline(never)]
    fn compare_prefix(self, prefix_length: usize, key: &[u8]) -> Ordering {
        self.bytes.compare(self.lower_at(), prefix_length, key.get(..prefix_length).unwrap_or(key))
    }

    /// The slot at byte `at`, which is one where a slot stands.
    #[inline(always)]
    fn slot_at(self, at: usize) -> Slot {
        Slot(self.bytes.u64_at(within_page(at)))
    }
}
