//! Writing to a node: a page, bytes at a place in it, its frame and its hints. Nothing here finds room.

use super::{
    entry::Item,
    fault::NodeFault,
    frame::Frame,
    layout::*,
    shape::Shape,
    view::{NodeView, child_place},
};
use vellum_base::{Bytes, HEADER_BYTES, PageId};

/// A node to change, under an exclusive latch.
///
/// No method panics or writes to the page header (bytes 0..32), whatever the bytes are; a damaged page gives
/// a [`NodeFault`] or stays damaged. The gateway records the change and sets the LSN of the page.
#[derive(Debug)]
pub struct NodeMut<'a> {
    pub(super) bytes: &'a mut [u8],
}

impl<'a> NodeMut<'a> {
    /// Takes the bytes of a whole page for a node.
    #[inline]
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes }
    }

    /// Makes an empty node of the page, except for its header, with the fences given (`None` is infinite).
    /// `upper_child` is the last child of an inner node; a leaf ignores it.
    ///
    /// # Errors
    /// If `bytes` is not one page, a fence is longer than [`MAX_KEY_BYTES`], or they are out of order.
    pub fn init(
        bytes: &'a mut [u8],
        level: u8,
        lower: Option<&[u8]>,
        upper: Option<&[u8]>,
        upper_child: PageId,
    ) -> Result<Self, NodeFault> {
        let mut node = Self { bytes };
        node.fill_zero();
        node.write_frame(level, &Frame::plain(lower, upper), upper_child)?;
        node.write_hints(0);
        Ok(node)
    }

    /// [`NodeMut::init`] with a prefix, with which the fences begin, for a page that is zero, and without the hints.
    pub(super) fn write_frame<K: AsRef<[u8]>>(
        &mut self,
        level: u8,
        frame: &Frame<K>,
        upper_child: PageId,
    ) -> Result<(), NodeFault> {
        let node = self;
        if node.bytes.len() != NODE_BYTES {
            return Err(NodeFault::Size { bytes: node.bytes.len() });
        }
        let (lower, upper) = (frame.lower.as_ref().map(K::as_ref), frame.upper.as_ref().map(K::as_ref));
        let flags =
            if lower.is_some() { FLAG_LOWER } else { 0 } | if upper.is_some() { FLAG_UPPER } else { 0 };
        let flags = flags | if level > 0 { FLAG_LONG_HEADS } else { 0 };
        let prefix = frame.prefix.as_ref();
        // Without a lower fence, the prefix alone stands in its place.
        let (low, high) = (lower.unwrap_or(prefix), upper.unwrap_or(&[]));
        if low.len() > MAX_KEY_BYTES || high.len() > MAX_KEY_BYTES {
            return Err(NodeFault::Fences { flags, lower: low.len(), upper: high.len() });
        }
        if lower.is_some() && upper.is_some() && low >= high {
            return Err(NodeFault::FenceOrder);
        }
        let prefix_length = prefix.len();
        if !low.starts_with(prefix) || upper.is_some_and(|upper| !upper.starts_with(prefix)) {
            return Err(NodeFault::Prefix { length: prefix_length });
        }
        let high_rest = high.get(prefix_length..).unwrap_or(&[]);
        let fences = fence_bytes(low.len(), high.len(), prefix_length);
        node.put_u16(PREFIX_LENGTH_AT, prefix_length);
        node.put(LEVEL_AT, &[level]);
        node.put(FLAGS_AT, &[flags]);
        node.put_u16(HEAP_START_AT, NODE_BYTES - fences);
        node.put_u64(PREFIX_WORD_AT, key_word(prefix));
        node.put_u16(LOWER_LENGTH_AT, low.len());
        node.put_u16(UPPER_LENGTH_AT, high.len());
        node.put_u16(HEAP_USED_AT, fences);
        node.put(NODE_BYTES - low.len(), low);
        node.put(NODE_BYTES - low.len() - high_rest.len(), high_rest);
        if level > 0 {
            node.put_child(child_place(0), upper_child);
        }
        Ok(())
    }

    /// The node to read from.
    #[inline]
    pub fn view(&self) -> NodeView<&[u8]> {
        NodeView::new(self.bytes)
    }

    /// Checks the header, and whether the node is a leaf as expected.
    #[inline]
    pub(super) fn shape(&self, leaf: bool) -> Result<Shape, NodeFault> {
        let shape = Shape::read(self.bytes)?;
        let level = shape.word.level();
        if leaf == (level == 0) { Ok(shape) } else { Err(NodeFault::Level { level }) }
    }

    /// Copies another node over this one, except for the page header.
    pub(crate) fn take_over(&mut self, other: &[u8]) {
        if let (Some(to), Some(from)) = (self.bytes.get_mut(HEADER_BYTES..), other.get(HEADER_BYTES..))
            && to.len() == from.len()
        {
            to.copy_from_slice(from);
        }
    }

    /// Sets the hints from number `first` on from the slots.
    pub(super) fn write_hints(&mut self, first: usize) {
        let view = self.view();
        let (count, stride) = (view.count(), view.word().stride());
        let shift = hint_shift(count);
        let mut hints = [u32::MAX.to_le_bytes(); HINT_COUNT];
        let changed = hints.get_mut(first..).unwrap_or_default();
        for (index, hint) in (first..count >> shift).zip(&mut *changed) {
            let slot = ((index + 1) << shift) - 1;
            *hint = view.bytes.u32_at(SLOTS_AT + slot * stride + 4).to_le_bytes();
        }
        self.put(HINTS_AT + 4 * first, changed.as_flattened());
    }

    /// Writes the record of a key with this rest, of which the head holds `head_bytes`.
    #[inline]
    pub(super) fn put_record(&mut self, at: usize, value: &[u8], rest: &[u8], head_bytes: usize) {
        let tail = rest.get(head_bytes..).unwrap_or(&[]);
        let end = align(at + value.len() + tail.len());
        let Some(record) = self.bytes.get_mut(at..end).filter(|_| at >= HEADER_BYTES) else { return };
        fill_record(record, value, tail);
    }

    /// Writes slot or entry `index` of a node of the present layout. The child of the entry stays what it is.
    #[inline]
    pub(super) fn put_item(&mut self, level: u8, index: usize, item: Item) {
        if level == 0 {
            let slot = Slot::with_head((item.head >> 32) as u32, item.rest_length, item.value_code, item.at);
            return self.put_u64(SLOTS_AT + index * LEAF_STRIDE, slot.0);
        }
        self.put_u64(SLOTS_AT + index * INNER_STRIDE, item.head);
        let place = child_place(index);
        let lengths = (item.rest_length as u64) << ENTRY_REST_SHIFT | (item.at as u64 / 4) << ENTRY_AT_SHIFT;
        self.put_u64(place, self.view().child_at(place).0 | lengths);
    }

    /// Makes the child whose id stands at `place` another one. No page has an id that does not fit.
    pub(super) fn put_child(&mut self, place: usize, child: PageId) {
        let word = self.view().bytes.u64_at(place);
        self.put_u64(place, (word ^ PageId::referred(word).0) | PageId::referred(child.0).0);
    }

    #[inline]
    pub(super) fn put_u16(&mut self, at: usize, value: usize) {
        self.put(at, &(value as u16).to_le_bytes());
    }

    #[inline]
    pub(super) fn put_u64(&mut self, at: usize, value: u64) {
        self.put(at, &value.to_le_bytes());
    }

    /// Copies `from` to `at`, if that is in the page and after the page header.
    #[inline]
    pub(super) fn put(&mut self, at: usize, from: &[u8]) {
        if at >= HEADER_BYTES
            && let Some(to) = self.bytes.get_mut(at..).and_then(|rest| rest.get_mut(..from.len()))
        {
            to.copy_from_slice(from);
        }
    }

    /// Moves the bytes from `start` to `end` to `to`, if that is in the page and after the page header.
    #[inline]
    pub(super) fn shift(&mut self, start: usize, end: usize, to: usize) {
        let length = end.saturating_sub(start);
        if start >= HEADER_BYTES && to >= HEADER_BYTES && start.max(to) + length <= self.bytes.len() {
            self.bytes.copy_within(start..start + length, to);
        }
    }

    pub(super) fn fill_zero(&mut self) {
        if let Some(body) = self.bytes.get_mut(HEADER_BYTES..) {
            body.fill(0);
        }
    }
}
