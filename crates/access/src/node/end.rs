//! Ending a full leaf after its last key, so that the keys beyond go into a new leaf.
//!
//! Loading in order does nothing else, once for every leaf. So no record is built anew: the heap moves by the few
//! bytes that the new fence takes more or less, and where the new fence lets the prefix grow, the heads are shifted
//! and the tails cut in place.

use super::{
    build::Builder,
    fault::{NodeError, NodeFault},
    frame::Frame,
    layout::*,
    separator::shortest_separator,
    shape::{Shape, check_record},
    split::MOVED_MAX,
    view::NodeView,
    write::NodeMut,
};
use vellum_base::{Bytes, PageId};

/// How a leaf is to end; see [`NodeView::plan_end`].
#[derive(Clone, Debug)]
pub struct End {
    /// The new upper fence of the leaf, inclusive, and the lower fence of the one beyond, exclusive.
    pub separator: Vec<u8>,
    shape: Shape,
    /// The number of records that stay.
    kept: usize,
    /// By how many bytes the prefix grows.
    longer: usize,
    /// The bytes that the fences will take.
    fence_bytes: usize,
    /// The bytes that fences and records will take.
    heap_used: usize,
    /// Where the lowest record that stays begins before the end.
    lowest: usize,
    /// The leaf beyond.
    next: Frame,
}

impl End {
    /// Where a byte of the heap comes to lie.
    fn moved(&self, at: usize) -> usize {
        (at + (NODE_BYTES - self.fence_bytes)).saturating_sub(self.shape.heap_end)
    }

    /// Whether the records that do not stay fit into the leaf beyond.
    fn next_fits(&self, view: NodeView<&[u8]>) -> bool {
        let prefix_length = self.next.prefix.len();
        let records = view.records_bytes(self.kept..self.shape.count, prefix_length);
        self.next.bytes(0, prefix_length) + records <= BODY_BYTES
    }
}

impl NodeView<&[u8]> {
    /// How this leaf can be ended between its last key and `incoming`, or a few records before, if it has no room for
    /// the fence there.
    ///
    /// `None` if `incoming` does not lie beyond the last key, or if the leaf cannot end near it with at least its
    /// present prefix: then [`NodeView::choose_separator`] splits it.
    ///
    /// # Errors
    /// A fault, if the node is damaged.
    pub fn plan_end(self, incoming: &[u8]) -> Result<Option<End>, NodeFault> {
        let shape = Shape::read(self.bytes)?;
        let Some(last_index) = shape.count.checked_sub(1).filter(|_| self.is_leaf()) else { return Ok(None) };
        let mut last = self.key(last_index);
        if *incoming <= *last || !self.covers(incoming) || self.evenly_for(incoming, shape.count) {
            return Ok(None);
        }
        let mut plan = Plan::new(self, shape)?;
        let mut separator = shortest_separator(&last, incoming);
        let mut before = Vec::new();
        loop {
            if let Some(fences) = plan.with_room(&separator) {
                return plan
                    .end(separator, fences, Some(incoming))
                    .map(|end| end.next_fits(self).then_some(end));
            }
            plan.move_last();
            let Some(index) = plan.kept.checked_sub(1).filter(|_| shape.count - plan.kept <= MOVED_MAX)
            else {
                return Ok(None);
            };
            before.clear();
            self.append_key(index, &mut before);
            separator = shortest_separator(&before, &last);
            std::mem::swap(&mut before, &mut last);
        }
    }

    /// The end of this leaf with an upper fence that [`NodeView::plan_end`] chose for it earlier.
    ///
    /// # Errors
    /// A fault, if the leaf cannot end there.
    pub(crate) fn planned_end(self, separator: &[u8]) -> Result<End, NodeFault> {
        let mut plan = Plan::new(self, Shape::read(self.bytes)?)?;
        let find = self.find(separator);
        while plan.kept > find.index + usize::from(find.found) {
            plan.move_last();
        }
        let fences = plan.with_room(separator).filter(|_| self.is_leaf()).ok_or(NodeFault::Split)?;
        plan.end(separator.to_vec(), fences, None)
    }
}

/// Which records stay in a leaf that is to end.
struct Plan<'a> {
    view: NodeView<&'a [u8]>,
    shape: Shape,
    /// The number of records that stay.
    kept: usize,
    /// No record that stays begins before this byte.
    lowest: usize,
    /// The bytes of the records that stay.
    used: usize,
    /// Whether some keys are longer than their heads.
    tails: bool,
}

impl<'a> Plan<'a> {
    /// A plan in which all records stay.
    fn new(view: NodeView<&'a [u8]>, shape: Shape) -> Result<Self, NodeFault> {
        let (kept, lowest) = (shape.count, shape.heap_start);
        let mut plan = Self { view, shape, kept, lowest, used: 0, tails: false };
        for (index, slot) in view.leaf_slots(kept).enumerate() {
            check_record(&shape, slot.into(), index)?;
            plan.used += slot.record_bytes();
            plan.tails |= !slot.is_whole();
        }
        Ok(plan)
    }

    /// Moves the last record that stays to the leaf beyond.
    fn move_last(&mut self) {
        self.kept -= 1;
        let slot = self.view.slot(self.kept);
        self.used -= slot.record_bytes();
        if slot.at() == self.lowest {
            self.lowest += slot.record_bytes();
        }
    }

    /// By how many bytes the prefix becomes longer with this upper fence, and the bytes that the fences then take;
    /// `None` if the prefix would become shorter, or if there is no room.
    fn with_room(&self, separator: &[u8]) -> Option<(usize, usize)> {
        let (view, shape) = (self.view, &self.shape);
        let prefix_length = if view.is_first() {
            view.prefix_len()
        } else {
            let lower = view.bytes.get(view.lower_at()..).unwrap_or(&[]);
            if *lower >= *separator {
                return None;
            }
            common_length(lower, separator)
        };
        let longer = prefix_length.checked_sub(shape.word.prefix_length())?;
        let fence_bytes = fence_bytes(view.lower_length(), separator.len(), prefix_length);
        let room =
            self.lowest + NODE_BYTES >= SLOTS_AT + self.kept * LEAF_STRIDE + shape.heap_end + fence_bytes;
        (room && view.has_prefix_of(separator)).then_some((longer, fence_bytes))
    }

    /// The end with this upper fence. `incoming` will be the first new key of the leaf beyond.
    fn end(
        self,
        separator: Vec<u8>,
        (longer, fence_bytes): (usize, usize),
        incoming: Option<&[u8]>,
    ) -> Result<End, NodeFault> {
        let Self { view, shape, kept, lowest, used, tails } = self;
        if view.leaf_slots(kept).any(|slot| slot.rest_length() < longer) {
            return Err(NodeFault::Prefix { length: shape.word.prefix_length() });
        }
        let cut = |slot: Slot| align(slot.value_length() + slot.tail_length().saturating_sub(longer));
        let records = if tails { view.leaf_slots(kept).map(cut).sum() } else { used };
        let heap_used = fence_bytes + records;
        let (_, upper) = view.fences();
        let mut next = Frame::plain(Some(&separator), upper.as_deref());
        if let (None, Some(incoming)) = (upper, incoming) {
            // The leaf beyond begins with few keys.
            next.prefix = separator.iter().take(common_length(&separator, incoming)).copied().collect();
        }
        Ok(End { separator, shape, kept, longer, fence_bytes, heap_used, lowest, next })
    }
}

impl<'a> NodeView<&'a [u8]> {
    /// The first `count` slots of a leaf.
    fn leaf_slots(self, count: usize) -> impl Iterator<Item = Slot> + use<'a> {
        let slots = self.bytes.get(SLOTS_AT..).unwrap_or(&[]).as_chunks().0;
        slots.iter().take(count).map(|slot| Slot(u64::from_le_bytes(*slot)))
    }
}

impl NodeMut<'_> {
    /// Ends the leaf as planned. It has not changed since the plan was made.
    pub fn end_at(&mut self, end: &End) {
        let End { separator, shape, kept, longer, .. } = end;
        let prefix_length = shape.word.prefix_length() + longer;
        let (prefix, rest) = separator.split_at_checked(prefix_length).unwrap_or((separator, &[]));
        let lower_at = self.view().lower_at();
        let heap_start = end.moved(end.lowest);
        self.shift(end.lowest, shape.heap_end, heap_start);
        for index in 0..*kept {
            let place = SLOTS_AT + index * LEAF_STRIDE;
            let mut slot = Slot(self.view().bytes.u64_at(place));
            if slot.record_bytes() > 0 {
                slot = slot.with_place(end.moved(slot.at()));
            }
            if *longer > 0 {
                slot = self.cut_rest(slot, *longer);
            }
            self.put_u64(place, slot.0);
        }
        self.put(lower_at.saturating_sub(rest.len()), rest);
        self.put_u16(PREFIX_LENGTH_AT, prefix_length);
        self.put_u64(PREFIX_WORD_AT, key_word(prefix));
        self.put(FLAGS_AT, &[shape.word.flags() | FLAG_UPPER]);
        self.put_u16(UPPER_LENGTH_AT, separator.len());
        self.put_u16(HEAP_START_AT, heap_start);
        self.put_u16(HEAP_USED_AT, end.heap_used);
        if *longer > 0 || *kept < shape.count {
            self.put_u16(COUNT_AT, *kept);
            if shape.word.has_fingerprints() {
                self.keep_fingerprints(*kept);
            } else {
                self.write_hints(0);
            }
        }
    }

    /// Cuts `bytes` off the beginning of the rest of a slot's key, and closes the gap in its record.
    fn cut_rest(&mut self, slot: Slot, bytes: usize) -> Slot {
        let rest_length = slot.rest_length().saturating_sub(bytes);
        if slot.is_whole() {
            return slot.with_rest(slot.head().unbounded_shl(8 * bytes as u32), rest_length);
        }
        let (tail_at, tail_end) = (slot.tail_at(), slot.tail_at() + slot.tail_length());
        let tail = self.bytes.get(tail_at..tail_end).unwrap_or(&[]);
        let head = match bytes.checked_sub(HEAD_BYTES) {
            Some(beyond) => head_of(tail.get(beyond..).unwrap_or(&[])),
            None => (((slot.head() as u64) << 32 | head_of(tail) as u64) << (8 * bytes) >> 32) as u32,
        };
        let cut = slot.with_rest(head, rest_length);
        let end = tail_at + cut.tail_length();
        self.shift(tail_end - cut.tail_length(), tail_end, tail_at);
        self.put(end, [0; 4].get(..align(end) - end).unwrap_or(&[]));
        if cut.record_bytes() > 0 { cut } else { cut.with_place(0) }
    }

    /// Fills `bytes`, but for the page header, as the leaf beyond `left`, with the records that do not stay there.
    /// `left` has not been ended yet.
    ///
    /// # Errors
    /// If `bytes` is not one page, or `left` is damaged.
    pub fn begin_at(bytes: &mut [u8], left: NodeView<&[u8]>, end: &End) -> Result<(), NodeError> {
        let mut node = NodeMut { bytes };
        node.fill_zero();
        if end.kept == end.shape.count {
            // A builder would read what it has written to the page and wait for memory: 2 % of an append.
            node.write_frame(0, &end.next, PageId(0))?;
            node.write_hints(0);
            return Ok(());
        }
        let mut node = Builder::new(node.bytes, 0, &end.next, PageId(0))?;
        node.append_range(left, end.kept..end.shape.count)?;
        node.finish();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{fault::NodeError, layout::ValueKind};

    type Fence = Option<&'static [u8]>;

    fn records(view: NodeView<&[u8]>) -> Vec<(Vec<u8>, Vec<u8>)> {
        let record = |index| {
            let (mut key, mut value) = (Vec::new(), Vec::new());
            view.append_key(index, &mut key);
            view.append_value(index, &mut value);
            (key, value)
        };
        (0..view.count()).map(record).collect()
    }

    /// How often a leaf ended, its prefix grew, records went into the leaf beyond, a record was left without bytes.
    #[derive(Default, Debug)]
    struct Seen {
        ended: u32,
        longer: u32,
        moved: u32,
        emptied: u32,
    }

    /// Fills a leaf with keys in ascending order, then ends it.
    fn fill_and_end(
        fences: (Fence, Fence),
        key: impl Fn(u32) -> Vec<u8>,
        value_bytes: usize,
        seen: &mut Seen,
    ) {
        let mut page = vec![0; NODE_BYTES];
        let mut node = NodeMut::init(&mut page, 0, fences.0, fences.1, PageId(0)).unwrap();
        let mut number = 0;
        loop {
            match node.insert(&key(number), &vec![number as u8; value_bytes], ValueKind::Inline) {
                Ok(_) => number += 1,
                Err(NodeError::Full) => break,
                Err(error) => panic!("{error}"),
            }
        }
        let incoming = key(number);
        assert!(node.view().plan_end(&key(number - 1)).unwrap().is_none(), "not beyond the last key");
        let end = node.view().plan_end(&incoming).unwrap().unwrap();
        let (before, prefix_before) = (records(node.view()), node.view().prefix_len());
        let empty = |view: NodeView<&[u8]>| {
            (0..view.count()).filter(|&index| view.slot(index).record_bytes() == 0).count()
        };
        let empty_before = empty(node.view());
        let mut next = vec![0x77; NODE_BYTES];
        NodeMut::begin_at(&mut next, node.view(), &end).unwrap();
        assert_eq!(records(node.view()), before);
        node.end_at(&end);
        node.view().validate().unwrap();
        let mut next = NodeMut::new(&mut next);
        next.view().validate().unwrap();
        let moved = next.view().count();
        assert!(moved <= MOVED_MAX && node.view().count() > 0);
        assert_eq!([records(node.view()), records(next.view())].concat(), before);
        assert!(!node.view().covers(&incoming) && next.view().covers(&incoming));
        let (mut upper, mut lower) = (Vec::new(), Vec::new());
        assert!(node.view().upper_fence(&mut upper) && next.view().lower_fence(&mut lower));
        assert_eq!((&upper, &lower), (&end.separator, &end.separator));
        let mut above = Vec::new();
        assert_eq!(next.view().upper_fence(&mut above).then_some(&above[..]), fences.1);
        let mut below = Vec::new();
        assert_eq!(node.view().lower_fence(&mut below).then_some(&below[..]), fences.0);
        if fences.0.is_some() {
            // The leaf is what it would be if it were made anew.
            let mut page = vec![0; NODE_BYTES];
            let mut anew = NodeMut::init(&mut page, 0, fences.0, Some(&end.separator), PageId(0)).unwrap();
            for (key, value) in records(node.view()) {
                anew.insert(&key, &value, ValueKind::Inline).unwrap();
            }
            let slots = |view: NodeView<&[u8]>| -> Vec<_> {
                (0..view.count()).map(|index| view.slot(index).with_place(0)).collect()
            };
            assert_eq!(slots(node.view()), slots(anew.view()));
            assert_eq!(node.view().free_bytes(), anew.view().free_bytes());
            assert_eq!(node.view().prefix_len(), anew.view().prefix_len());
        }
        seen.ended += 1;
        seen.longer += u32::from(node.view().prefix_len() > prefix_before);
        seen.moved += u32::from(moved > 0);
        seen.emptied += u32::from(empty(node.view()) > empty_before);
        next.insert(&incoming, b"value", ValueKind::Inline).unwrap();
        next.view().validate().unwrap();
    }

    /// Keys that begin with `start`, a number after it and `tail` bytes more.
    fn numbered(start: &[u8], first: u32, tail: usize) -> impl Fn(u32) -> Vec<u8> {
        move |number| {
            let number = first + number;
            [start, &number.to_be_bytes()[..], &vec![number as u8; tail]].concat()
        }
    }

    #[test]
    fn a_full_leaf_ends_after_its_last_key_and_keeps_its_records() {
        let mut seen = [const { Seen { ended: 0, longer: 0, moved: 0, emptied: 0 } }; 6];
        for first in [0, 250, 65_530, 1 << 30] {
            for value_bytes in [0, 1, 2, 3, 4, 49, 100, 1024] {
                for tail in [0, 1, 2, 3, 4, 30] {
                    // Without an upper fence; with one that is shorter or longer than the one that takes its place, or
                    // shares less with the lower one.
                    let kinds: [(Fence, Fence, &[u8]); 6] = [
                        (None, None, b""),
                        (Some(b"kab"), None, b"kab"),
                        (Some(b"kab"), Some(b"kabz"), b"kab"),
                        (Some(b"kab\0\0"), Some(b"kb"), b"kab"),
                        (Some(b"kab"), Some(&[b'k'; 400]), &[b'k'; 300]),
                        (Some(&[b'k'; 290]), Some(b"l"), &[b'k'; 300]),
                    ];
                    for ((lower, upper, start), seen) in kinds.into_iter().zip(&mut seen) {
                        fill_and_end((lower, upper), numbered(start, first, tail), value_bytes, seen);
                    }
                }
            }
        }
        assert!(seen.iter().all(|seen| seen.ended == 192), "{seen:#?}");
        assert!(seen.iter().all(|seen| [0, 192].contains(&seen.longer)), "{seen:#?}");
        assert!(seen[3].longer > 0 && seen[5].longer > 0, "{seen:#?}");
        assert!(seen[0].moved > 0 && seen[3].moved > 0 && seen[3].emptied > 0, "{seen:#?}");
    }

    /// The record that goes into the leaf beyond need not have the new prefix of the leaf that ends.
    #[test]
    fn what_does_not_stay_may_be_shorter_than_the_new_prefix() {
        let start = b"k\xff\xff\xff\xff\xff";
        let lower = [&start[..], &[0, 0]].concat();
        let mut page = vec![0; NODE_BYTES];
        let mut node = NodeMut::init(&mut page, 0, Some(&lower), None, PageId(0)).unwrap();
        for number in 1..=60u8 {
            node.insert(&[&start[..], &[number, 5]].concat(), &[number; 20], ValueKind::Inline).unwrap();
        }
        node.insert(b"l", &[], ValueKind::Inline).unwrap();
        for number in 61..=62u8 {
            node.insert(&[&start[..], &[number]].concat(), &[number; 900], ValueKind::Inline).unwrap();
        }
        let last = node.view().find(b"l").index;
        let value = vec![7; node.view().free_bytes()];
        node.replace(last, &value, ValueKind::Inline).unwrap();
        assert_eq!((node.view().free_bytes(), node.view().prefix_len()), (0, 0));
        let before = records(node.view());
        let end = node.view().plan_end(b"m").unwrap().unwrap();
        let mut next = vec![0; NODE_BYTES];
        NodeMut::begin_at(&mut next, node.view(), &end).unwrap();
        node.end_at(&end);
        let next = NodeView::new(&next[..]);
        node.view().validate().unwrap();
        next.validate().unwrap();
        assert_eq!((node.view().prefix_len(), next.count()), (start.len(), 1));
        assert_eq!([records(node.view()), records(next)].concat(), before);
    }
}
