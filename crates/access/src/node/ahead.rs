//! Where a search will look, so that it can be fetched ahead.

use super::layout::*;
use super::view::NodeView;
use vellum_base::Bytes;

impl<B: Bytes> NodeView<B> {
    /// The bytes of a node that say where a search will look: its headers and hints, from the beginning of the page.
    pub const GUIDE_BYTES: usize = SLOTS_AT;

    /// The slots among which a search for `key` will look, as the hints tell: the first byte and the length. It is
    /// a guess, which says nothing about where the key is.
    #[inline]
    pub fn search_range(self, key: &[u8]) -> (usize, usize) {
        let word = self.word();
        let count = word.count().min(word.count_max());
        let head = head_of(key.get(word.prefix_length()..).unwrap_or(&[]));
        let before = |index: usize| usize::from(self.bytes.u32_at(HINTS_AT + 4 * index) < head);
        let quarter = 4 * (before(3) + before(7) + before(11));
        let range =
            quarter + before(quarter) + before(quarter + 1) + before(quarter + 2) + before(quarter + 3);
        let shift = hint_shift(count);
        let stride = word.stride();
        let first = (range << shift).min(count);
        (SLOTS_AT + first * stride, stride << shift)
    }
}
