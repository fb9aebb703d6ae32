//! A copy of a leaf, or of some of its records.
//!
//! Each byte has the same place in the copy as in the leaf, so the copy is read like the leaf itself. The rest of the
//! copy is zero or left over from another leaf, and has no meaning.
//!
//! A leaf may be copied while it changes. The copy is then a mixture, which the caller discards. Copying ends, does
//! not panic, and stays within the page all the same.

use super::{layout::*, view::NodeView};
use std::{cell::Cell, mem, ops::Range};
use vellum_base::Bytes;

/// A record counts for at least so many bytes: to copy a smaller one takes as long.
const LEAST_BYTES: usize = 32;

thread_local! {
    /// The memory of a copy that is no longer used, for the next one of this thread. To allocate and clear a page
    /// would be a large part of a cursor's work on a short range.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Some or all records of a leaf, with its fences. Keeps its memory from leaf to leaf.
///
/// ```
/// use vellum_access::node::{CopySize, LeafCopy, NODE_BYTES, NodeMut, NodeView, ValueKind};
/// use vellum_base::PageId;
///
/// let mut page = vec![0; NODE_BYTES];
/// let mut leaf = NodeMut::init(&mut page, 0, None, None, PageId(0))?;
/// for key in [b"one", b"six", b"two"] {
///     leaf.insert(key, b"value", ValueKind::Inline)?;
/// }
/// let mut copy = LeafCopy::default();
/// copy.begin(NodeView::new(&page[..]));
/// copy.add_from(NodeView::new(&page[..]), 1, CopySize::Records(1));
/// assert_eq!((copy.count(), copy.holds(0), copy.holds(1), copy.holds(2)), (3, false, true, false));
/// let mut key = Vec::new();
/// copy.view().append_key(1, &mut key);
/// assert_eq!(key, b"six");
/// # Ok::<(), vellum_access::node::NodeError>(())
/// ```
#[derive(Debug, Default)]
pub struct LeafCopy {
    /// A page, or nothing before the first leaf.
    bytes: Vec<u8>,
    /// The slots whose records have been copied.
    held: Range<usize>,
    count: usize,
}

/// How much of a leaf is copied at once, if it has so much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopySize {
    /// Records of so many bytes at least. Small records count for 32 bytes each.
    Bytes(usize),
    /// So many records.
    Records(usize),
}

impl CopySize {
    /// Whether another record is copied after so many that count for so many bytes.
    #[inline]
    fn goes_on(self, records: usize, bytes: usize) -> bool {
        records == 0
            || match self {
                Self::Bytes(bytes_min) => bytes < bytes_min,
                Self::Records(count) => records < count,
            }
    }
}

/// What one call has added of a leaf.
#[derive(Default)]
struct Copied {
    /// The bytes that slots and records count for.
    total: usize,
    /// Adjacent records that are still to be copied.
    range: Range<usize>,
}

impl LeafCopy {
    /// Forgets the leaf.
    #[inline]
    pub fn clear(&mut self) {
        (self.held, self.count) = (0..0, 0);
    }

    /// Copies header and fences of a leaf, and none of its records.
    pub fn begin<B: Bytes>(&mut self, leaf: NodeView<B>) {
        self.take_page();
        self.copy_bytes(leaf, WORD_AT..HINTS_AT);
        // Where the fences are is read from the copy, which does not change any more.
        self.copy_bytes(leaf, self.view().range_of_fences());
        (self.held, self.count) = (0..0, self.view().count());
    }

    /// Copies all of a leaf.
    pub fn copy_all<B: Bytes>(&mut self, leaf: NodeView<B>) {
        self.take_page();
        // Not what is free between slots and heap: it would be read from memory for nothing.
        let [slots, heap] = leaf.bytes_in_use();
        self.copy_bytes(leaf, WORD_AT..slots.end);
        self.copy_bytes(leaf, heap);
        self.count = self.view().count();
        self.held = 0..self.count;
    }

    /// Adds the record of slot `index` of the same leaf and those after it.
    pub fn add_from<B: Bytes>(&mut self, leaf: NodeView<B>, index: usize, size: CopySize) {
        let mut copied = Copied::default();
        let mut end = index;
        while end < self.count && size.goes_on(end - index, copied.total) {
            self.add(leaf, end, &mut copied);
            end += 1;
        }
        self.copy_bytes(leaf, copied.range);
        let start =
            if self.held.contains(&index) || self.held.end == index { self.held.start } else { index };
        self.held = start..end;
    }

    /// Adds the record of the slot before `index` and those before it.
    pub fn add_before<B: Bytes>(&mut self, leaf: NodeView<B>, index: usize, size: CopySize) {
        let index = index.min(self.count);
        let mut copied = Copied::default();
        let mut start = index;
        while start > 0 && size.goes_on(index - start, copied.total) {
            start -= 1;
            self.add(leaf, start, &mut copied);
        }
        self.copy_bytes(leaf, copied.range);
        let end = if self.held.start == index { self.held.end.max(index) } else { index };
        self.held = start..end;
    }

    /// Copies a slot, and adds its record to those that are copied at once: adjacent ones, as records are that came
    /// into the leaf in the order of their keys, or against it.
    #[inline]
    fn add<B: Bytes>(&mut self, leaf: NodeView<B>, index: usize, copied: &mut Copied) {
        let slot_at = SLOTS_AT + index.min(MAX_LEAF_COUNT - 1) * LEAF_STRIDE;
        // Read once: the record is copied from where this slot says, even if the leaf changes meanwhile.
        let slot = Slot(leaf.bytes().u64_at(slot_at));
        if let Some(target) = self.bytes.get_mut(slot_at..slot_at + LEAF_STRIDE) {
            target.copy_from_slice(&slot.0.to_le_bytes());
        }
        let (start, end) = (slot.at(), slot.at() + slot.record_bytes());
        copied.total += LEAST_BYTES.max(LEAF_STRIDE + end - start);
        if end == copied.range.start {
            copied.range.start = start;
        } else if start == copied.range.end {
            copied.range.end = end;
        } else if start < end {
            self.copy_bytes(leaf, mem::replace(&mut copied.range, start..end));
        }
    }

    /// Copies a range of bytes, as far as it lies in the page.
    #[inline]
    fn copy_bytes<B: Bytes>(&mut self, leaf: NodeView<B>, range: Range<usize>) {
        let end = range.end.min(NODE_BYTES);
        if let Some(target) = self.bytes.get_mut(range.start..end) {
            leaf.bytes().copy_to(range.start, target);
        }
    }

    fn take_page(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = SPARE.try_with(Cell::take).unwrap_or_default();
        }
        self.bytes.resize(NODE_BYTES, 0);
    }

    /// [Holds](Self::holds) no record any more. What was copied stays.
    pub fn hide(&mut self) {
        self.held = 0..0;
    }

    /// How many slots the leaf has.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether the record of slot `index` has been copied.
    #[inline]
    pub fn holds(&self, index: usize) -> bool {
        self.held.contains(&index)
    }

    /// Whether the last record of the leaf has been copied, or the first.
    #[inline]
    pub fn holds_end(&self, last: bool) -> bool {
        self.holds(if last { self.count.wrapping_sub(1) } else { 0 })
    }

    /// The leaf as far as it has been copied: count, fences and prefix, and the records that this
    /// [`holds`](Self::holds). All other answers have no meaning, those of a search included.
    #[inline]
    pub fn view(&self) -> NodeView<&[u8]> {
        NodeView::new(&self.bytes)
    }
}

impl Drop for LeafCopy {
    fn drop(&mut self) {
        if !self.bytes.is_empty() {
            // A thread that is ending needs no spare memory.
            let _ = SPARE.try_with(|spare| spare.set(mem::take(&mut self.bytes)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{fault::NodeError, layout::ValueKind, write::NodeMut};
    use vellum_base::PageId;

    type Fence = Option<&'static [u8]>;

    /// A leaf to which records were added in the order of their keys, against it, or in neither.
    fn leaf(lower: Fence, upper: Fence, value_bytes: usize, order: usize) -> Vec<u8> {
        let mut page = vec![0; NODE_BYTES];
        let mut node = NodeMut::init(&mut page, 0, lower, upper, PageId(0)).unwrap();
        for step in 0u16.. {
            let number = [step, 999 - step.min(999), step.wrapping_mul(7919) % 1009][order];
            let mut key = b"some/key/".to_vec();
            key.extend(number.to_be_bytes());
            key.extend(std::iter::repeat_n(b'x', number as usize % 7));
            match node.insert(&key, &vec![number as u8; value_bytes], ValueKind::Inline) {
                Ok(_) | Err(NodeError::Exists) => {}
                Err(NodeError::Full) => break,
                Err(error) => panic!("{error}"),
            }
        }
        page
    }

    fn record(view: NodeView<&[u8]>, index: usize) -> (Vec<u8>, Vec<u8>) {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        view.append_key(index, &mut key);
        view.append_value(index, &mut value);
        (key, value)
    }

    fn agrees(copy: &LeafCopy, page: &[u8]) {
        let (ours, theirs) = (copy.view(), NodeView::new(page));
        assert_eq!(copy.count(), theirs.count());
        let fences = |view: NodeView<&[u8]>| {
            let (mut lower, mut upper) = (Vec::new(), Vec::new());
            (view.lower_fence(&mut lower), lower, view.upper_fence(&mut upper), upper)
        };
        assert_eq!(fences(ours), fences(theirs));
        for index in (0..copy.count()).filter(|index| copy.holds(*index)) {
            assert_eq!(record(ours, index), record(theirs, index), "{index}");
        }
    }

    #[test]
    fn parts_of_a_leaf_are_what_they_are_in_the_leaf() {
        let fences: [(Fence, Fence); 4] = [
            (None, None),
            (Some(b"some/key"), None),
            (None, Some(b"some/key/~and more")),
            (Some(b"some/key/"), Some(b"some/key/~")),
        ];
        let mut copy = LeafCopy::default();
        for (lower, upper) in fences {
            for (value_bytes, order) in
                [0, 3, 50, 1000].into_iter().flat_map(|bytes| (0..3).map(move |order| (bytes, order)))
            {
                let page = leaf(lower, upper, value_bytes, order);
                let view = NodeView::new(&page[..]);
                let count = view.count();
                let bytes = [0, 1, 200, 1000, usize::MAX].map(CopySize::Bytes);
                for size in bytes.into_iter().chain([1, 2, 7, usize::MAX].map(CopySize::Records)) {
                    for start in [0, 1, count / 2, count - 1] {
                        copy.begin(view);
                        assert!((0..count).all(|index| !copy.holds(index)));
                        copy.add_from(view, start, size);
                        assert!(copy.holds(start) && (start == 0 || !copy.holds(start - 1)));
                        match size {
                            CopySize::Bytes(bytes) => assert!(bytes < usize::MAX || copy.holds(count - 1)),
                            CopySize::Records(records) => {
                                let end = start.saturating_add(records);
                                assert_eq!(copy.held, start..end.min(count));
                            }
                        }
                        agrees(&copy, &page);
                        // What is added right after joins it; what is added elsewhere replaces it.
                        let end = (start..count).find(|index| !copy.holds(*index)).unwrap_or(count);
                        copy.add_from(view, end, size);
                        assert!(copy.holds(start) && (end == count || copy.holds(end)));
                        copy.add_before(view, start, size);
                        assert!(copy.holds(start) && (start == 0 || copy.holds(start - 1)));
                        agrees(&copy, &page);
                        copy.add_before(view, count, CopySize::Bytes(1));
                        assert!(copy.holds(count - 1));
                        agrees(&copy, &page);
                    }
                }
                copy.copy_all(view);
                assert!((0..count).all(|index| copy.holds(index)) && !copy.holds(count));
                agrees(&copy, &page);
                copy.clear();
                assert!(!copy.holds(0));
            }
        }
    }
}
