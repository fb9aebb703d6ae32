//! Building a node from others, as compaction, splits and merges do.

use super::{
    entry::Item,
    fault::{NodeError, NodeFault},
    fingerprints::Known,
    frame::Frame,
    layout::*,
    shape::{Shape, check_record, entry_bytes},
    view::{NodeView, child_place},
    write::NodeMut,
};
use std::ops::Range;
use vellum_base::PageId;

/// Fills an empty node with records in the order of their keys. Slots, records and children are written at
/// once; header and hints only by [`Builder::finish`].
pub(super) struct Builder<'a> {
    node: NodeMut<'a>,
    shape: Shape,
    prefix: &'a [u8],
    fingerprints: Known,
}

impl<'a> Builder<'a> {
    /// Makes an empty node of `page`, which is zero after the page header.
    pub fn new<K: AsRef<[u8]>>(
        page: &'a mut [u8],
        level: u8,
        frame: &'a Frame<K>,
        last_child: PageId,
    ) -> Result<Self, NodeFault> {
        let mut node = NodeMut { bytes: page };
        node.write_frame(level, frame, last_child)?;
        let shape = Shape::read(node.bytes)?;
        Ok(Self { node, shape, prefix: frame.prefix.as_ref(), fingerprints: Known::NONE })
    }

    /// Appends a record, or a separator together with the child below it.
    ///
    /// # Errors
    /// [`NodeError::Full`], or a fault if the key cannot be in this node.
    pub fn append(
        &mut self,
        key: &[u8],
        code: usize,
        value: &[u8],
        child: Option<PageId>,
    ) -> Result<(), NodeError> {
        let outside = NodeFault::OutsideFences { index: self.shape.count };
        let rest = key.strip_prefix(self.prefix).ok_or(outside)?;
        if key.len() > MAX_KEY_BYTES {
            return Err(outside.into());
        }
        let record = entry_bytes(&self.shape, key.len(), value.len()) - self.shape.word.stride();
        let at = self.reserve(record)?;
        let head_bytes = self.shape.word.head_bytes();
        self.node.put_record(at, value, rest, head_bytes);
        if self.shape.word.level() == 0 {
            self.fingerprints.push(self.shape.count, key);
        }
        self.open(Item::new(rest, head_bytes, code, at), child);
        Ok(())
    }

    /// Appends records of another node of the same level.
    ///
    /// # Errors
    /// [`NodeError::Full`], or a fault if the other node is damaged or its keys cannot be in this one. Of the
    /// keys, the first and the last are compared with the fences and the prefix.
    pub fn append_range(&mut self, source: NodeView<&[u8]>, range: Range<usize>) -> Result<(), NodeError> {
        let shape = Shape::read(source.bytes)?;
        if range.is_empty() {
            return Ok(());
        }
        let level = shape.word.level();
        if level != self.shape.word.level() {
            return Err(NodeFault::Level { level }.into());
        }
        if range.end > shape.count {
            return Err(NodeFault::Index { index: range.end }.into());
        }
        let mut key = Vec::new();
        for index in [range.start, range.end - 1] {
            key.clear();
            source.append_key(index, &mut key);
            if !key.starts_with(self.prefix) || !self.node.view().admits(&key) {
                return Err(NodeFault::OutsideFences { index }.into());
            }
        }
        let is_alike = shape.word.prefix_length() == self.prefix.len()
            && shape.word.head_bytes() == self.shape.word.head_bytes();
        for index in range {
            let item = source.item(index);
            check_record(&shape, item, index)?;
            let child = (level > 0).then(|| source.child_at(child_place(index)));
            if is_alike {
                let from = source.bytes.get(item.at..item.at + item.record_bytes()).unwrap_or(&[]);
                let at = self.reserve(from.len())?;
                self.node.put(at, from);
                self.fingerprints.push_from(self.shape.count, source, index);
                self.open(Item { at, ..item }, child);
            } else {
                key.clear();
                source.append_key(index, &mut key);
                let value = source.bytes.get(item.at..item.tail_at()).unwrap_or(&[]);
                self.append(&key, item.value_code, value, child)?;
            }
        }
        Ok(())
    }

    /// Appends the records of an image to an empty leaf: `count` slots, and the heap in which the slots say where their
    /// records are. They were placed for the prefix of the leaf.
    ///
    /// # Errors
    /// [`NodeError::Full`].
    pub fn append_placed(
        &mut self,
        image: &[u8; NODE_BYTES],
        heap: Range<usize>,
        count: usize,
    ) -> Result<(), NodeError> {
        let slots_bytes = count * LEAF_STRIDE;
        let records = image.get(heap.clone()).unwrap_or_default();
        let slots = image.get(SLOTS_AT..SLOTS_AT + slots_bytes).unwrap_or_default();
        if self.shape.gap() < records.len() + slots_bytes {
            return Err(NodeError::Full);
        }
        self.shape.heap_start -= records.len();
        self.shape.heap_used += records.len();
        self.shape.slots_end += slots_bytes;
        self.shape.count = count;
        let to = self.shape.heap_start;
        self.node.put(to, records);
        if to == heap.start {
            self.node.put(SLOTS_AT, slots);
            return Ok(());
        }
        let targets = self.node.bytes.get_mut(SLOTS_AT..SLOTS_AT + slots_bytes).unwrap_or_default();
        for (target, slot) in targets.as_chunks_mut().0.iter_mut().zip(slots.as_chunks().0) {
            let slot = Slot(u64::from_le_bytes(*slot));
            // A record without bytes has no place.
            let slot = if slot.at() == 0 { slot } else { slot.with_place(to + slot.at() - heap.start) };
            *target = slot.0.to_le_bytes();
        }
        Ok(())
    }

    /// Writes header and hints.
    pub fn finish(mut self) {
        self.node.put_u16(COUNT_AT, self.shape.count);
        self.node.put_u16(HEAP_START_AT, self.shape.heap_start);
        self.node.put_u16(HEAP_USED_AT, self.shape.heap_used);
        self.node.write_guide(self.fingerprints);
    }

    /// Takes `record` bytes from the heap if a slot has room too, and gives their place.
    fn reserve(&mut self, record: usize) -> Result<usize, NodeError> {
        if record + self.shape.word.stride() > self.shape.gap() {
            return Err(NodeError::Full);
        }
        self.shape.heap_start -= record;
        self.shape.heap_used += record;
        Ok(if record == 0 { 0 } else { self.shape.heap_start })
    }

    /// Writes the next slot or entry.
    fn open(&mut self, item: Item, child: Option<PageId>) {
        let (level, count) = (self.shape.word.level(), self.shape.count);
        if let Some(child) = child {
            // The last child stands in the entry that is now taken, and moves on to one that is still zero.
            let last = self.node.view().child_at(child_place(count));
            self.node.put_child(child_place(count), child);
            self.node.put_child(child_place(count + 1), last);
        }
        self.node.put_item(level, count, item);
        self.shape.count += 1;
        self.shape.slots_end += self.shape.word.stride();
    }
}

impl NodeMut<'_> {
    /// Builds the node anew in another page, with the same last child and a frame of the same fences, and takes over
    /// the result.
    pub(super) fn rebuild(
        &mut self,
        frame: &Frame,
        fill: impl FnOnce(NodeView<&[u8]>, &mut Builder<'_>) -> Result<(), NodeError>,
    ) -> Result<(), NodeError> {
        let old = self.view();
        let last = old.child_at(child_place(old.count()));
        let mut page = [0; NODE_BYTES];
        let mut new = Builder::new(&mut page, old.level(), frame, last)?;
        fill(old, &mut new)?;
        new.finish();
        self.take_over(&page);
        Ok(())
    }
}
