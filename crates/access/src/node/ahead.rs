//! The bytes that a search will read, for prefetching.

use super::{layout::*, view::NodeView};
use std::ops::Range;
use vellum_base::Bytes;

impl<B: Bytes> NodeView<B> {
    /// The length of a node's headers and hints, which a search reads first, from the beginning of the page.
    pub const GUIDE_BYTES: usize = SLOTS_AT;

    /// The slots that a search for `key` will read, by the hints: the first byte and the length. A guess, only for
    /// prefetching.
    #[inline]
    pub fn search_range(self, key: &[u8]) -> (usize, usize) {
        let word = self.word();
        let count = word.count().min(word.count_max());
        let head = head_of(key.get(word.prefix_length()..).unwrap_or(&[]));
        if word.has_fingerprints() {
            (SLOTS_AT, count * LEAF_STRIDE)
        } else if word.level() == 0 {
            self.range_of::<LEAF_STRIDE>(count, head)
        } else {
            // Sixteen entries are compared at once.
            let (at, bytes) = self.range_of::<INNER_STRIDE>(count, head);
            (at, bytes.max(16 * INNER_STRIDE))
        }
    }

    /// Calls `fetch` with where the bytes lie with which a search for `key`, which the node covers, compares it, if heads or a
    /// fingerprint are those of `key`. The slots have been fetched. A guess, only for prefetching.
    #[inline(always)]
    pub fn compared_at(self, key: &[u8], fetch: impl FnMut(usize)) {
        let word = self.word();
        match word.level() {
            0 if word.has_fingerprints() => {
                self.candidates(word, key).take(1).map(|(_, slot)| slot.tail_at()).for_each(fetch);
            }
            0 => {}
            _ => self.ties_for(word, key, fetch),
        }
    }

    /// The bytes of the record of slot `index`, as far as they lie in the page. Only for leaves.
    #[inline]
    pub fn record_range(self, index: usize) -> Range<usize> {
        let slot = self.slot(index);
        slot.at().min(NODE_BYTES)..(slot.at() + slot.record_bytes()).min(NODE_BYTES)
    }

    /// The bytes of the fences, with the prefix.
    #[inline]
    pub fn range_of_fences(self) -> Range<usize> {
        let upper_rest = self.upper_length().saturating_sub(self.prefix_len());
        self.lower_at().saturating_sub(upper_rest)..NODE_BYTES
    }

    /// The bytes in use beyond [`GUIDE_BYTES`](Self::GUIDE_BYTES): slots, and then records with fences.
    #[inline]
    pub fn bytes_in_use(self) -> [Range<usize>; 2] {
        let word = self.word();
        let slots_end = word.slots_end().min(NODE_BYTES);
        [SLOTS_AT..slots_end, word.heap_start().clamp(slots_end, NODE_BYTES)..NODE_BYTES]
    }
}
