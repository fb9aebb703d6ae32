//! Changing a node in place: records are added, removed and replaced.

use super::{
    entry::Item,
    fault::{NodeError, NodeFault},
    frame::Frame,
    layout::*,
    shape::{Shape, check_record, entry_bytes},
    view::child_place,
    write::NodeMut,
};
use vellum_base::PageId;

impl NodeMut<'_> {
    /// Adds a record to a leaf, compacting it if need be, and returns its slot.
    ///
    /// # Errors
    /// [`NodeError::Exists`], [`NodeError::Full`] and [`NodeError::TooLarge`] leave the contents as they were, and so
    /// does a fault. A key that is not between the fences is a fault too.
    pub fn insert(&mut self, key: &[u8], value: &[u8], kind: ValueKind) -> Result<usize, NodeError> {
        let shape = self.shape(true)?;
        let code = check_new(key, value, kind)?;
        let find = self.view().find(key);
        if find.found {
            return Err(NodeError::Exists);
        }
        self.add_as_it_is(&shape, find.index, key, code, value)?;
        self.lengthen_prefix(shape.count + 1);
        Ok(find.index)
    }

    /// [`NodeMut::insert`] of a key that [`NodeView::find`](super::NodeView::find) has not found, and for which it gave
    /// this index, both since the node was last changed.
    ///
    /// # Errors
    /// As [`NodeMut::insert`], but the caller vouches for the index: a wrong one leaves the node out of order.
    pub fn insert_at(
        &mut self,
        index: usize,
        key: &[u8],
        value: &[u8],
        kind: ValueKind,
    ) -> Result<(), NodeError> {
        let shape = self.shape(true)?;
        let code = check_new(key, value, kind)?;
        self.add_as_it_is(&shape, index, key, code, value)?;
        self.lengthen_prefix(shape.count + 1);
        Ok(())
    }

    /// Adds a separator to an inner node after a child was split: the child that covers `key` becomes the one
    /// for the keys up to `key`, and `right` the one for the keys beyond. Returns the separator's slot,
    /// which is also the number of the left child; `right` is the child after it.
    ///
    /// # Errors
    /// As [`NodeMut::insert`].
    pub fn insert_separator(&mut self, key: &[u8], right: PageId) -> Result<usize, NodeError> {
        let shape = self.inner_shape()?;
        if key.len() > MAX_KEY_BYTES {
            return Err(NodeError::TooLarge);
        }
        let find = self.view().find(key);
        if find.found {
            return Err(NodeError::Exists);
        }
        // Opening a place copies the child along, so that it stands on both sides; the right one is replaced.
        self.add_as_it_is(&shape, find.index, key, 0, &[])?;
        self.put_child(child_place(find.index + 1), right);
        self.lengthen_prefix(shape.count + 1);
        Ok(find.index)
    }

    /// Makes an inner node refer to another page for one of its children.
    ///
    /// # Errors
    /// If it has no such child.
    pub fn redirect(&mut self, from: PageId, to: PageId) -> Result<(), NodeError> {
        let shape = self.shape(false)?;
        let mut places = (0..=shape.count).map(child_place);
        let place =
            places.find(|place| self.view().child_at(*place) == from).ok_or(NodeFault::NotRecorded)?;
        self.put_child(place, to);
        Ok(())
    }

    /// Replaces the value of slot `index` of a leaf, in place if the record keeps its size.
    ///
    /// # Errors
    /// As [`NodeMut::insert`]. If there is no room, the old value stays.
    pub fn replace(&mut self, index: usize, value: &[u8], kind: ValueKind) -> Result<(), NodeError> {
        let shape = self.shape(true)?;
        let code = value_code(value, kind).ok_or(NodeError::TooLarge)?;
        let old = self.record(&shape, index)?;
        let prefix_length = shape.word.prefix_length();
        if prefix_length + old.rest_length + value.len() > MAX_INLINE_RECORD_BYTES {
            return Err(NodeError::TooLarge);
        }
        let new_bytes = align(value.len() + old.tail_length());
        if new_bytes > shape.free() + old.record_bytes() {
            return Err(NodeError::Full);
        }
        if value.len() == old.value_length() {
            self.put(old.at, value);
            self.put_item(0, index, Item { value_code: code, ..old });
            return Ok(());
        }
        let key = self.view().key(index);
        let rest = key.get(prefix_length..).unwrap_or(&[]);
        if new_bytes <= old.record_bytes() || new_bytes <= shape.gap() {
            let at = if new_bytes == 0 {
                0
            } else if new_bytes <= old.record_bytes() {
                old.at
            } else {
                self.put_u16(HEAP_START_AT, shape.heap_start - new_bytes);
                shape.heap_start - new_bytes
            };
            self.put_record(at, value, rest, HEAD_BYTES);
            self.put_item(0, index, Item { value_code: code, at, ..old });
            self.put_u16(HEAP_USED_AT, shape.heap_used.saturating_sub(old.record_bytes()) + new_bytes);
            return Ok(());
        }
        // Rebuilt without the old record, the node has room for the new one.
        let count = shape.count;
        let frame = Frame::of(self.view());
        self.rebuild(&frame, |old, new| {
            new.append_range(old, 0..index)?;
            new.append(&key, code, value, None)?;
            new.append_range(old, index + 1..count)
        })
    }

    /// The value of slot `index` of a leaf, to be changed without changing its length.
    ///
    /// # Errors
    /// A fault, if there is no such slot or the node is damaged.
    pub fn value_mut(&mut self, index: usize) -> Result<&mut [u8], NodeFault> {
        let (view, level) = (self.view(), self.view().level());
        if level != 0 {
            return Err(NodeFault::Level { level });
        }
        if index >= view.count() {
            return Err(NodeFault::Index { index });
        }
        let slot = view.slot(index);
        if !is_value_code(slot.value_code()) {
            return Err(NodeFault::Slot { index });
        }
        // Checked less than for other changes, as only the value is written: it must lie in the heap.
        let (start, end) = (slot.at(), slot.at() + slot.value_length());
        if start < end && start < view.word().heap_start().max(SLOTS_AT) || end > view.lower_at() {
            return Err(NodeFault::Record { index });
        }
        self.bytes.get_mut(start..end).ok_or(NodeFault::Record { index })
    }

    /// Removes the record of slot `index` from a leaf.
    ///
    /// # Errors
    /// A fault, if there is no such slot or the node is damaged.
    pub fn remove(&mut self, index: usize) -> Result<(), NodeFault> {
        let shape = self.shape(true)?;
        let item = self.record(&shape, index)?;
        let place = SLOTS_AT + index * LEAF_STRIDE;
        self.shift(place + LEAF_STRIDE, shape.slots_end, place);
        self.forget(&shape, index, item);
        Ok(())
    }

    /// Removes separator `index` from an inner node, when the child after it is merged into the one before it:
    /// child `index` takes over the keys of child `index + 1`, which is dropped.
    ///
    /// # Errors
    /// A fault, if there is no such separator or the node is damaged.
    pub fn remove_separator(&mut self, index: usize) -> Result<(), NodeError> {
        let shape = self.inner_shape()?;
        let item = self.record(&shape, index)?;
        let left = self.view().child_at(child_place(index));
        let place = SLOTS_AT + index * INNER_STRIDE;
        self.shift(place + INNER_STRIDE, shape.slots_end, place);
        self.put_child(child_place(index), left);
        self.forget(&shape, index, item);
        Ok(())
    }

    /// Makes this node a root that is one level higher and has two children, one for the keys up to `separator` and one
    /// for those beyond. The contents have been copied to the children.
    ///
    /// # Errors
    /// If the tree would be too high or the separator is too long. The node is then as it was.
    pub(crate) fn raise(&mut self, left: PageId, separator: &[u8], right: PageId) -> Result<(), NodeError> {
        let level = self.view().level();
        let level = level.checked_add(1).ok_or(NodeFault::Level { level })?;
        let mut page = [0; NODE_BYTES];
        NodeMut::init(&mut page, level, None, None, left)?.insert_separator(separator, right)?;
        self.take_over(&page);
        Ok(())
    }

    /// The header of an inner node, which is written anew if it is from an earlier file.
    fn inner_shape(&mut self) -> Result<Shape, NodeError> {
        let shape = self.shape(false)?;
        if shape.word.has_long_heads() {
            return Ok(shape);
        }
        let frame = Frame::of(self.view());
        self.rebuild(&frame, |old, new| new.append_range(old, 0..shape.count))?;
        Ok(Shape::read(self.bytes)?)
    }

    /// The slot or entry `index`, after a check that its record lies in the heap.
    fn record(&self, shape: &Shape, index: usize) -> Result<Item, NodeFault> {
        if index >= shape.count {
            return Err(NodeFault::Index { index });
        }
        let item = self.view().item(index);
        check_record(shape, item, index)?;
        Ok(item)
    }

    /// Adds a record whose key belongs at `index`.
    fn add_as_it_is(
        &mut self,
        shape: &Shape,
        index: usize,
        key: &[u8],
        code: usize,
        value: &[u8],
    ) -> Result<(), NodeError> {
        if index > shape.count {
            return Err(NodeFault::Index { index }.into());
        }
        if !self.view().admits_at(index, key) {
            return Err(NodeFault::OutsideFences { index }.into());
        }
        let view = self.view();
        let may_lengthen = shape.count == 0 && view.may_lengthen_prefix(key.get(shape.word.prefix_length()));
        let rebuilt;
        let shape = if may_lengthen || !view.has_prefix_of(key) {
            rebuilt = self.choose_prefix(shape, index, key, value.len())?;
            &rebuilt
        } else if entry_bytes(shape, key.len(), value.len()) > shape.gap() {
            rebuilt = self.make_room(shape, key.len(), value.len())?;
            &rebuilt
        } else {
            shape
        };
        self.place(shape, index, key, code, value)
    }

    /// Compacts the node, if it then has room for a new record.
    fn make_room(
        &mut self,
        shape: &Shape,
        key_length: usize,
        value_length: usize,
    ) -> Result<Shape, NodeError> {
        if entry_bytes(shape, key_length, value_length) > shape.free() {
            return Err(NodeError::Full);
        }
        let frame = Frame::of(self.view());
        self.rebuild(&frame, |old, new| new.append_range(old, 0..shape.count))?;
        Ok(Shape::read(self.bytes)?)
    }

    /// Gives a node that lacks a fence a prefix with which `key`, which is to be added, begins.
    fn choose_prefix(
        &mut self,
        shape: &Shape,
        index: usize,
        key: &[u8],
        value_length: usize,
    ) -> Result<Shape, NodeError> {
        let view = self.view();
        let mut frame = Frame::of(view);
        if frame.is_closed() {
            return Err(NodeFault::OutsideFences { index }.into());
        }
        let before = frame.prefix.clone();
        if shape.count == 0 {
            frame.prefix.clear();
            frame.lengthen(shape.word.level(), (key, key, 1), |_| 0);
        } else {
            frame.prefix.truncate(common_length(&frame.prefix, key));
        }
        if !view.has_room_for(key, value_length) {
            return Err(NodeError::Full);
        }
        // A root that has lost its last separator still has the prefix of that one.
        let same = shape.count == 0 && frame.prefix == before;
        if !same || shape.heap_start != shape.heap_end {
            self.rebuild(&frame, |old, new| new.append_range(old, 0..shape.count))?;
        }
        Ok(Shape::read(self.bytes)?)
    }

    /// Lengthens the prefix of a node that has got its key number `count`, and that lacks a fence, to what its keys now
    /// share. Compares them only when their number has doubled, so that it costs little.
    #[inline]
    fn lengthen_prefix(&mut self, count: usize) {
        if count.is_power_of_two() && (count > 1 || self.view().level() > 0) {
            self.lengthen_prefix_now();
        }
    }

    fn lengthen_prefix_now(&mut self) {
        let view = self.view();
        let count = view.count();
        let (first, last) = (view.item(0).first_byte(), view.item(count - 1).first_byte());
        if first.is_none() || first != last || !view.may_lengthen_prefix(first.as_ref()) {
            return;
        }
        let mut frame = Frame::of(view);
        let before = frame.prefix.len();
        frame.lengthen_for(view, 0..count);
        if frame.prefix.len() > before {
            // If the node is damaged, it stays as it is: nothing needs the longer prefix.
            let _ = self.rebuild(&frame, |old, new| new.append_range(old, 0..count));
        }
    }

    /// Places a record into the gap and opens a slot for it at `index`.
    #[inline]
    fn place(
        &mut self,
        shape: &Shape,
        index: usize,
        key: &[u8],
        code: usize,
        value: &[u8],
    ) -> Result<(), NodeError> {
        let rest = key.get(shape.word.prefix_length()..).unwrap_or(&[]);
        let need = entry_bytes(shape, key.len(), value.len());
        if need > shape.gap() || index > shape.count || rest.len() > MAX_KEY_BYTES {
            return Err(NodeError::Full);
        }
        let stride = shape.word.stride();
        let record = need - stride;
        let start = shape.heap_start - record;
        let at = if record == 0 { 0 } else { start };
        let place = SLOTS_AT + index * stride;
        if place < shape.slots_end {
            self.shift(place, shape.slots_end, place + stride);
        }
        let head_bytes = head_bytes(stride);
        self.put_record(at, value, rest, head_bytes);
        let item = Item::new(rest, head_bytes, code, at);
        self.put_item(shape.word.level(), index, item);
        self.put_u64(WORD_AT, shape.word.changed_to(shape.count + 1, start));
        self.put_u16(HEAP_USED_AT, shape.heap_used + record);
        if self.note_added(shape, index, key) {
            return Ok(());
        }
        let shift = hint_shift(shape.count + 1);
        if index < shape.count || shift != hint_shift(shape.count) {
            self.write_hints_of_change(index, shape.count);
        } else if (index + 1).is_multiple_of(1 << shift) {
            // The last slot changes no hint but that of the range which it completes.
            self.put(HINTS_AT + 4 * (index >> shift), &((item.head >> 32) as u32).to_le_bytes());
        }
        Ok(())
    }

    /// Updates header and hints after slot `index` was removed.
    fn forget(&mut self, shape: &Shape, index: usize, item: Item) {
        let record = item.record_bytes();
        let start = if shape.count == 1 {
            shape.heap_end
        } else if record > 0 && item.at == shape.heap_start {
            shape.heap_start + record
        } else {
            shape.heap_start
        };
        let fences = NODE_BYTES - shape.heap_end;
        self.put_u16(COUNT_AT, shape.count - 1);
        self.put_u16(HEAP_START_AT, start);
        self.put_u16(HEAP_USED_AT, shape.heap_used.saturating_sub(record).max(fences));
        if shape.word.has_fingerprints() {
            self.forget_fingerprint(index);
        } else {
            self.write_hints_of_change(index, shape.count);
        }
    }

    /// Sets the hints that change when a slot is added or removed at `index` of a node that had `count_before` slots.
    fn write_hints_of_change(&mut self, index: usize, count_before: usize) {
        let shift = hint_shift(self.view().count());
        self.write_hints(if shift == hint_shift(count_before) { index >> shift } else { 0 });
    }
}

/// Checks that a new record is not too large, and gives the code of its value.
#[inline]
pub(super) fn check_new(key: &[u8], value: &[u8], kind: ValueKind) -> Result<usize, NodeError> {
    let fits = key.len() <= MAX_KEY_BYTES && key.len() + value.len() <= MAX_INLINE_RECORD_BYTES;
    value_code(value, kind).filter(|_| fits).ok_or(NodeError::TooLarge)
}
