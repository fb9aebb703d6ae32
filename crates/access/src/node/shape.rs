//! The header of a node, checked before the node is written to.

use super::{
    entry::Item,
    fault::NodeFault,
    layout::*,
    view::{NodeView, Word},
};

/// The header of a node whose sizes have been checked against each other, so that free space is where it
/// is said to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub word: Word,
    pub count: usize,
    pub slots_end: usize,
    pub heap_start: usize,
    /// Where records end and fences begin.
    pub heap_end: usize,
    pub heap_used: usize,
}

impl Shape {
    #[inline]
    pub fn read(bytes: &[u8]) -> Result<Self, NodeFault> {
        if bytes.len() != NODE_BYTES {
            return Err(NodeFault::Size { bytes: bytes.len() });
        }
        // Of known length, which saves the checks below.
        let bytes = bytes.first_chunk::<NODE_BYTES>().map_or(bytes, |bytes| bytes);
        let view = NodeView::new(bytes);
        let word = view.word();
        let count = word.count();
        if count > word.count_max() {
            return Err(NodeFault::Count { count });
        }
        let [lower, upper, heap_used] = view.lengths();
        let (flags, prefix_length) = (word.flags(), word.prefix_length());
        if lower.max(upper) > MAX_KEY_BYTES || flags & FLAG_UPPER == 0 && upper != 0 {
            return Err(NodeFault::Fences { flags, lower, upper });
        }
        if flags & FLAG_LOWER == 0 && lower != prefix_length {
            return Err(NodeFault::Fences { flags, lower, upper });
        }
        if prefix_length > lower || flags & FLAG_UPPER != 0 && prefix_length > upper {
            return Err(NodeFault::Prefix { length: prefix_length });
        }
        let fences = fence_bytes(lower, upper, prefix_length);
        let slots_end = word.slots_end();
        let heap_start = word.heap_start();
        let heap_end = NODE_BYTES - fences;
        if heap_start < slots_end || heap_start > heap_end || !heap_start.is_multiple_of(4) {
            return Err(NodeFault::HeapStart { start: heap_start });
        }
        if heap_used < fences || heap_used > NODE_BYTES - heap_start {
            return Err(NodeFault::HeapUsed { stored: heap_used, computed: NODE_BYTES - heap_start });
        }
        Ok(Self { word, count, slots_end, heap_start, heap_end, heap_used })
    }

    /// The free bytes between slots and heap.
    pub fn gap(&self) -> usize {
        self.heap_start - self.slots_end
    }

    /// All free bytes.
    pub fn free(&self) -> usize {
        NODE_BYTES.saturating_sub(self.slots_end).saturating_sub(self.heap_used)
    }
}

/// The bytes that a new key with its value takes, slot included.
#[inline]
pub(super) fn entry_bytes(shape: &Shape, key_length: usize, value_length: usize) -> usize {
    record_bytes(shape.word.stride(), key_length, value_length, shape.word.prefix_length())
}

/// Checks that the record of a slot or an entry lies in the heap and is no longer than records can be.
pub(super) fn check_record(shape: &Shape, item: Item, index: usize) -> Result<(), NodeFault> {
    let value_is_known =
        if shape.word.level() == 0 { is_value_code(item.value_code) } else { item.value_code == 0 };
    let key_length = shape.word.prefix_length() + item.rest_length;
    if !value_is_known
        || key_length > MAX_KEY_BYTES
        || key_length + item.value_length() > MAX_INLINE_RECORD_BYTES
        || item.rest_length < item.head_bytes && item.head << (8 * item.rest_length) != 0
    {
        return Err(NodeFault::Slot { index });
    }
    let (at, size) = (item.at, item.record_bytes());
    let fits = if size == 0 { at == 0 } else { at >= shape.heap_start && at + size <= shape.heap_end };
    if fits { Ok(()) } else { Err(NodeFault::Record { index }) }
}
