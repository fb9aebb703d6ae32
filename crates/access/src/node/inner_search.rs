//! Searching an inner node, by heads of eight bytes.
//!
//! Hints say in which range of 2^k entries the separator is, as in leaves. They are the upper halves of heads: where those tie,
//! the separator may be in a later range. The rare search that goes on there, or meets the whole head of its key, does so
//! in a function of its own.

use super::{
    layout::*,
    probe::{TIES_FETCHED, within_page},
    view::{NodeView, Word},
};
use std::cmp::Ordering;
use vellum_base::Bytes;

impl<B: Bytes> NodeView<B> {
    /// The byte in the page where the word of the child stands that covers `key`: that of the first separator
    /// not less than `key`, or else the last child. Only for inner nodes. Always a place within the page,
    /// and one that [`NodeView::child_place`] gives.
    ///
    /// If the node has both fences, `key` lies between them and so has the prefix, which is not compared. If it does
    /// not, the result is some child.
    #[inline(always)]
    pub fn child_for(self, key: &[u8]) -> usize {
        let word = self.word();
        // The count is not clamped: whatever it is, no entry beyond the page is read.
        within_page(self.seek_entry::<true>(word, word.count(), key).0 + 8)
    }

    /// The first entry whose separator is not less than `key`, as a byte of the page, and whether that is `key` itself. Of
    /// a node with both fences the prefix is not compared if the key is `COVERED`.
    #[inline(always)]
    pub(super) fn seek_entry<const COVERED: bool>(
        self,
        word: Word,
        count: usize,
        key: &[u8],
    ) -> (usize, bool) {
        let end = SLOTS_AT + count * INNER_STRIDE;
        let key_word = key_word(key);
        if !COVERED || !word.is_closed_with_long_heads() {
            if !word.has_long_heads() {
                return self.seek_separator(count.min(MAX_INNER_COUNT), key);
            }
            match self.prefix_order(word.prefix_length(), key, key_word) {
                Ordering::Less => return (end, false),
                Ordering::Greater => return (SLOTS_AT, false),
                Ordering::Equal => {}
            }
        }
        let head = long_head_after(key, key_word, word.prefix_length());
        let at = self.seek_head(count, head);
        // What stands after the last separator may be anything.
        if at < end && self.head_at(at) <= head {
            self.seek_among(at, end, head, key)
        } else {
            (at.min(end), false)
        }
    }

    /// Calls `fetch` with where the tails of the first separators lie that have the same head as `key`, which the node covers, unless
    /// the key ends within its head.
    #[inline(always)]
    pub(super) fn ties_for(self, word: Word, key: &[u8], fetch: impl FnMut(usize)) {
        let prefix_length = word.prefix_length();
        if key.len() <= prefix_length + INNER_HEAD_BYTES || !word.has_long_heads() {
            return;
        }
        let (count, head) = (word.count(), long_head_after(key, key_word(key), prefix_length));
        let entries = (self.seek_head(count, head)..SLOTS_AT + count * INNER_STRIDE).step_by(INNER_STRIDE);
        // Where hints tie, it begins with some that are less.
        let entries = entries.take(TIES_FETCHED).take_while(|at| self.head_at(*at) <= head);
        let ties = entries.filter(|at| self.head_at(*at) == head);
        ties.map(|at| self.entry_at(within_page(at)).at()).for_each(fetch);
    }

    /// The byte where the first entry stands whose head is not less than `head`, as far as hints tell: see
    /// [`seek_heads`](Self::seek_heads).
    #[inline(always)]
    fn seek_head(self, count: usize, head: u64) -> usize {
        match self.bytes.search_16(HINTS_AT, SLOTS_AT, hint_shift(count), head) {
            Some(at) => at,
            None => self.seek_heads(count, head),
        }
    }

    #[inline(always)]
    fn head_at(self, at: usize) -> u64 {
        self.bytes.u64_at(within_page(at))
    }

    /// The byte where the first entry stands whose head is not less than `head`, as far as hints tell: at the latest the last
    /// one of the range that they give, or one after the last of the node.
    #[inline(always)]
    fn seek_heads(self, count: usize, head: u64) -> usize {
        let less = |at: usize| usize::from(self.head_at(at) < head);
        let (mut at, mut step) = self.range_of::<INNER_STRIDE>(count, (head >> 32) as u32);
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

    /// The first of the entries from byte `from` on whose separator is not less than `key`, which has this head, and whether
    /// it is equal.
    #[inline(never)]
    fn seek_among(self, from: usize, end: usize, head: u64, key: &[u8]) -> (usize, bool) {
        let rest = key.get(self.word().prefix_length()..).unwrap_or(&[]);
        let end = self.end_of_ties(end, head);
        let (mut low, mut high) = (0, end.saturating_sub(from) / INNER_STRIDE);
        // Where many tie, each comparison would wait for a tail.
        for index in 0..high.min(TIES_FETCHED) {
            let at = from + index * INNER_STRIDE;
            if self.head_at(at) > head {
                high = index;
                break;
            }
            self.bytes.prefetch(self.entry_at(within_page(at)).at());
        }
        // Mostly it is the first one: heads rarely tie.
        let mut middle = low;
        while low < high {
            let at = from + middle * INNER_STRIDE;
            let order = match self.head_at(at).cmp(&head) {
                Ordering::Equal => self.compare_behind_head(at, rest),
                unequal => unequal,
            };
            match order {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return (at, true),
                Ordering::Greater => high = middle,
            }
            middle = low + (high - low) / 2;
        }
        (from + low * INNER_STRIDE, false)
    }

    /// An entry whose head is greater than all that share their upper halves with `head`, and not far behind them by the hints;
    /// `end` if there is none.
    #[inline(always)]
    fn end_of_ties(self, end: usize, head: u64) -> usize {
        let Some(next) = ((head >> 32) as u32).checked_add(1) else { return end };
        let shift = hint_shift((end - SLOTS_AT) / INNER_STRIDE);
        let last = ((self.bytes.less_of_16(HINTS_AT, next) + 1) << shift) - 1;
        end.min(SLOTS_AT + last * INNER_STRIDE)
    }

    /// How the separator of the entry at byte `at` compares with a key that has the same head, and the rest `rest`.
    #[inline(always)]
    fn compare_behind_head(self, at: usize, rest: &[u8]) -> Ordering {
        let entry = self.entry_at(within_page(at));
        let tail = rest.get(INNER_HEAD_BYTES..).unwrap_or(&[]);
        if entry.tail_length() == 0 || tail.is_empty() {
            // Where the heads agree and one key ends within its head, it is a prefix of the other.
            return entry.rest_length().cmp(&rest.len());
        }
        let near = self.tail_word(entry.at(), entry.tail_length());
        match near.cmp(&key_word(tail)) {
            Ordering::Equal if entry.tail_length().max(tail.len()) > 8 => {
                self.bytes.compare(entry.at(), entry.tail_length(), tail)
            }
            Ordering::Equal => entry.tail_length().cmp(&tail.len()),
            unequal => unequal,
        }
    }

    /// [`seek_entry`](Self::seek_entry) in a node of an earlier file, which has short heads.
    #[cold]
    #[inline(never)]
    fn seek_separator(self, count: usize, key: &[u8]) -> (usize, bool) {
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.compare_key(middle, key) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return (SLOTS_AT + middle * INNER_STRIDE, true),
                Ordering::Greater => high = middle,
            }
        }
        (SLOTS_AT + low * INNER_STRIDE, false)
    }
}
