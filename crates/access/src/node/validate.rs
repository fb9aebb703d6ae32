//! Checking every invariant of a node.

use super::{
    fault::NodeFault,
    fingerprints::check_fingerprints,
    layout::*,
    shape::{Shape, check_record},
    view::{NodeView, child_place},
};
use vellum_base::{Bytes, PageId};

impl<B: Bytes> NodeView<B> {
    /// Checks that the page is a node in which every invariant of the format holds: counts, places and lengths,
    /// no overlap, strictly ascending keys between the fences, prefix, hints, and the accounting of space.
    ///
    /// Only for a page that does not change meanwhile. Children and blobs are not checked.
    ///
    /// # Errors
    /// The first fault found.
    pub fn validate(self) -> Result<(), NodeFault> {
        let size = self.bytes.size();
        if size != NODE_BYTES {
            return Err(NodeFault::Size { bytes: size });
        }
        let mut copy = Vec::with_capacity(NODE_BYTES);
        self.bytes.append_to(0, NODE_BYTES, &mut copy);
        let view = NodeView::new(&copy[..]);
        let shape = Shape::read(&copy)?;
        check_fences(view)?;
        check_reserved(view, &shape)?;
        check_records(view, &shape)?;
        check_order(view, &shape)?;
        if shape.word.has_fingerprints() {
            return check_fingerprints(view, &shape);
        }
        for index in 0..HINT_COUNT {
            if view.bytes.u32_at(HINTS_AT + 4 * index) != view.hint_due(shape.count, index) {
                return Err(NodeFault::Hint { index });
            }
        }
        Ok(())
    }
}

fn check_fences(view: NodeView<&[u8]>) -> Result<(), NodeFault> {
    let flags = view.word().flags();
    let lower_stored = view.bytes.u16_at(LOWER_LENGTH_AT) as usize;
    let upper_stored = view.bytes.u16_at(UPPER_LENGTH_AT) as usize;
    let (mut lower, mut upper, mut prefix) = (Vec::new(), Vec::new(), Vec::new());
    let has_lower = view.lower_fence(&mut lower);
    let has_upper = view.upper_fence(&mut upper);
    view.append_prefix(&mut prefix);
    // `Shape::read` has checked that an absent fence has no bytes of its own and that the prefix is not longer than a
    // fence. That keys begin with the prefix follows from how they are stored.
    let known = FLAG_LOWER | FLAG_UPPER | if view.is_leaf() { FLAG_FINGERPRINTS } else { FLAG_LONG_HEADS };
    if flags & !known != 0 || has_lower && lower.len() != lower_stored || upper.len() != upper_stored {
        return Err(NodeFault::Fences { flags, lower: lower_stored, upper: upper_stored });
    }
    if has_lower && has_upper && lower >= upper {
        return Err(NodeFault::FenceOrder);
    }
    let length = view.word().prefix_length();
    let follows = !has_lower || !has_upper || length == common_length(&lower, &upper);
    if !follows || prefix.len() != length || view.bytes.u64_at(PREFIX_WORD_AT) != key_word(&prefix) {
        return Err(NodeFault::Prefix { length });
    }
    Ok(())
}

fn check_reserved(view: NodeView<&[u8]>, shape: &Shape) -> Result<(), NodeFault> {
    let is_inner = shape.word.level() > 0;
    let last = child_place(shape.count);
    // All of the last entry but the child.
    let entry = (last - 8..last).chain(last + PageId::BITS as usize / 8..last + 8);
    let entry = entry.filter(|_| is_inner);
    if let Some(at) = (RESERVED_AT..HINTS_AT).chain(entry).find(|&at| view.bytes.u8_at(at) != 0) {
        return Err(NodeFault::Reserved { at });
    }
    // Beside the child of an entry: what is between place and length, or, in earlier nodes, all.
    let spare = if shape.word.has_long_heads() {
        (1 << ENTRY_REST_SHIFT) - ((AT_MASK + 1) << ENTRY_AT_SHIFT)
    } else {
        u64::MAX << PageId::BITS
    };
    let mut entries = 0..if is_inner { shape.count } else { 0 };
    match entries.find(|&index| view.bytes.u64_at(child_place(index)) & spare != 0) {
        Some(index) => Err(NodeFault::Slot { index }),
        None => Ok(()),
    }
}

/// Checks that each record lies in the heap, that none overlap, and that they add up.
fn check_records(view: NodeView<&[u8]>, shape: &Shape) -> Result<(), NodeFault> {
    let mut taken = [false; NODE_BYTES / 4];
    let mut used = NODE_BYTES - shape.heap_end;
    for index in 0..shape.count {
        let item = view.item(index);
        check_record(shape, item, index)?;
        used += item.record_bytes();
        let units = item.at / 4..(item.at + item.record_bytes()) / 4;
        for unit in taken.get_mut(units).unwrap_or(&mut []) {
            if std::mem::replace(unit, true) {
                return Err(NodeFault::Overlap { index });
            }
        }
    }
    if used != shape.heap_used {
        return Err(NodeFault::HeapUsed { stored: shape.heap_used, computed: used });
    }
    Ok(())
}

fn check_order(view: NodeView<&[u8]>, shape: &Shape) -> Result<(), NodeFault> {
    let (mut key, mut before) = (Vec::new(), Vec::new());
    for index in 0..shape.count {
        key.clear();
        view.append_key(index, &mut key);
        if index > 0 && key <= before {
            return Err(NodeFault::Order { index });
        }
        if !view.admits(&key) {
            return Err(NodeFault::OutsideFences { index });
        }
        std::mem::swap(&mut key, &mut before);
    }
    Ok(())
}
