//! Ending a full leaf behind its last key, so that the keys beyond go into a new leaf.
//!
//! Loading in order does nothing else, once for every leaf. All records stay, so that none is built anew: the heap
//! moves by the few bytes that the new fence takes more or less.

use super::edit::{NodeMut, Shape, check_record};
use super::fault::NodeFault;
use super::frame::Frame;
use super::layout::*;
use super::separator::shortest_separator;
use super::view::NodeView;
use vellum_base::PageId;

/// How a leaf is to end; see [`NodeView::plan_end`].
#[derive(Clone, Debug)]
pub struct End {
    /// The new upper fence of the leaf, inclusive, and the lower fence of the one beyond, exclusive.
    pub separator: Vec<u8>,
    shape: Shape,
    /// The bytes that the fences will take.
    fence_bytes: usize,
    /// The leaf beyond.
    next: Frame,
}

impl End {
    /// Where a byte of the heap will be.
    fn moved(&self, at: usize) -> usize {
        (at + (NODE_BYTES - self.fence_bytes)).saturating_sub(self.shape.heap_end)
    }
}

impl NodeView<&[u8]> {
    /// How this leaf can be ended between its last key and `incoming`.
    ///
    /// Nothing if `incoming` does not lie beyond its last key, or if that would change the prefix or take more
    /// free bytes than lie together: then it is for [`NodeMut::choose_separator`].
    ///
    /// # Errors
    /// A fault, if the node is damaged.
    pub fn plan_end(self, incoming: &[u8]) -> Result<Option<End>, NodeFault> {
        let shape = Shape::read(self.bytes)?;
        let Some(last_index) = shape.count.checked_sub(1).filter(|_| self.is_leaf()) else { return Ok(None) };
        let mut last = Vec::new();
        self.append_key(last_index, &mut last);
        if *incoming <= *last || !self.covers(incoming) {
            return Ok(None);
        }
        let separator = shortest_separator(&last, incoming);
        let (mut lower, mut upper) = (Vec::new(), Vec::new());
        let lower = self.lower_fence(&mut lower).then_some(&lower[..]);
        let upper = self.upper_fence(&mut upper).then_some(&upper[..]);
        let prefix_length = shape.word.prefix_length();
        let same_prefix = common_prefix(lower, Some(&separator)) == prefix_length;
        let fence_bytes = fence_bytes(lower.map_or(0, <[u8]>::len), separator.len(), prefix_length);
        let fits = fence_bytes <= NODE_BYTES - shape.heap_end + shape.gap();
        let ordered = lower.is_none_or(|lower| *lower < *separator);
        if !same_prefix || !fits || !ordered {
            return Ok(None);
        }
        for index in 0..shape.count {
            check_record(&shape, self.slot(index), index)?;
        }
        let mut next = Frame::plain(Some(&separator), upper);
        if upper.is_none() {
            // There will be one key in it to begin with.
            next.prefix = separator.iter().take(common_length(&separator, incoming)).copied().collect();
        }
        Ok(Some(End { separator, shape, fence_bytes, next }))
    }
}

impl NodeMut<'_> {
    /// Ends the leaf as planned, since when it has not changed.
    pub fn end_at(&mut self, end: &End) {
        let End { separator, shape, .. } = end;
        let rest = separator.get(shape.word.prefix_length()..).unwrap_or(&[]);
        let lower_at = self.view().lower_at();
        let heap_start = end.moved(shape.heap_start);
        self.shift(shape.heap_start, shape.heap_end, heap_start);
        for index in 0..shape.count {
            let slot = self.view().slot(index);
            if slot.record_bytes() > 0 {
                self.put_u64(SLOTS_AT + index * LEAF_STRIDE, slot.with_place(end.moved(slot.at())).0);
            }
        }
        self.put(lower_at.saturating_sub(rest.len()), rest);
        self.put(FLAGS_AT, &[shape.word.flags() | FLAG_UPPER]);
        self.put_u16(UPPER_LENGTH_AT, separator.len());
        self.put_u16(HEAP_START_AT, heap_start);
        let fences_before = NODE_BYTES - shape.heap_end;
        self.put_u16(HEAP_USED_AT, (shape.heap_used + end.fence_bytes).saturating_sub(fences_before));
    }

    /// Makes the empty leaf beyond the end of another of `bytes`, whose page header it leaves alone.
    ///
    /// # Errors
    /// If `bytes` is not one page.
    pub fn begin_at(bytes: &mut [u8], end: &End) -> Result<(), NodeFault> {
        let mut node = NodeMut { bytes };
        node.fill_zero();
        node.write_frame(0, &end.next, PageId(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{NodeError, ValueKind};

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

    /// Fills a leaf with numbered keys, which begin with `start`, then ends it; says whether that could be.
    fn fill_and_end(fences: (Fence, Fence), start: &[u8], first: u32, value_bytes: usize) -> bool {
        let mut page = vec![0; NODE_BYTES];
        let mut node = NodeMut::init(&mut page, 0, fences.0, fences.1, PageId(0)).unwrap();
        let mut number = first;
        let key = |number: u32| [start, &number.to_be_bytes()[..]].concat();
        loop {
            match node.insert(&key(number), &vec![number as u8; value_bytes], ValueKind::Inline) {
                Ok(_) => number += 1,
                Err(NodeError::Full) => break,
                Err(error) => panic!("{error}"),
            }
        }
        let incoming = key(number);
        assert!(node.view().plan_end(&key(number - 1)).unwrap().is_none(), "not beyond the last key");
        let Some(end) = node.view().plan_end(&incoming).unwrap() else { return false };
        let before = records(node.view());
        node.end_at(&end);
        node.view().validate().unwrap();
        assert_eq!(records(node.view()), before);
        assert!(!node.view().covers(&incoming) && node.view().covers(&key(number - 1)));
        let mut next = vec![0x77; NODE_BYTES];
        NodeMut::begin_at(&mut next, &end).unwrap();
        let (mut upper, mut lower) = (Vec::new(), Vec::new());
        assert!(node.view().upper_fence(&mut upper) && NodeView::new(&next[..]).lower_fence(&mut lower));
        assert_eq!((&upper, &lower), (&end.separator, &end.separator));
        let mut next = NodeMut::new(&mut next);
        let mut above = Vec::new();
        assert_eq!(next.view().upper_fence(&mut above).then_some(&above[..]), fences.1);
        next.insert(&incoming, b"value", ValueKind::Inline).unwrap();
        next.view().validate().unwrap();
        true
    }

    #[test]
    fn a_full_leaf_ends_behind_its_last_key_and_keeps_its_records() {
        let mut ended = [0; 3];
        for first in [0, 250, 65_530, 1 << 30] {
            for value_bytes in [0, 3, 100, 1024] {
                // Open above; with a fence there that is shorter or longer than the one that takes its place.
                let kinds: [(Fence, Fence, &[u8]); 3] = [
                    (Some(b"kab"), None, b"kab"),
                    (Some(b"kab"), Some(b"kabz"), b"kab"),
                    (Some(b"kab"), Some(&[b'k'; 400]), &[b'k'; 300]),
                ];
                for ((lower, upper, start), ended) in kinds.into_iter().zip(&mut ended) {
                    *ended += u32::from(fill_and_end((lower, upper), start, first, value_bytes));
                }
                fill_and_end((None, None), b"", first, value_bytes);
            }
        }
        assert!(ended.iter().all(|ended| *ended >= 4), "{ended:?}");
    }
}
