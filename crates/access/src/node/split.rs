//! Splitting a full node.

use super::{
    build::Builder,
    fault::{NodeError, NodeFault},
    frame::Frame,
    layout::*,
    separator::{separator_after_run, separator_length, shortest_separator},
    shape::Shape,
    view::{Find, NodeView, child_place},
    write::NodeMut,
};
use std::ops::Range;
use vellum_base::PageId;

/// How many records may move to the leaf beyond, where the new fence takes more bytes than are free.
pub(super) const MOVED_MAX: usize = 4;

/// Where to split a node, and what goes into its parent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Split {
    /// In a leaf the slots before `index` stay, the others go to the right. In an inner node separator
    /// `index` moves up, and what is beyond it goes to the right.
    pub index: usize,
    /// The new upper fence of the left node, inclusive, and lower fence of the right one, exclusive.
    pub separator: Vec<u8>,
}

/// In a leaf of at most so many records the incoming one counts for the split: it is a good part of a half.
const FEW_RECORDS: usize = 8;

/// The halves may differ by one part in so many of a node's bytes for the sake of a shorter separator.
const WINDOW_PART: usize = 8;

impl NodeView<&[u8]> {
    /// Chooses where to split a node that has no room for the key `incoming`, or that is to be split for
    /// another reason.
    ///
    /// Halves are balanced by bytes; near the middle the place with the shortest separator is taken. If
    /// `incoming` lies beyond the last key, or before the first one, all records stay on the other side, or all but a
    /// few if the leaf has no room for its new fence, so that loading in order leaves full nodes. If `incoming` comes
    /// right after the two keys of a leaf that were added last, the records beyond it go to the right, so that runs in
    /// ascending order leave full leaves too. Both halves are certain to fit. It may take more than one split until
    /// `incoming` has room, but each one makes progress.
    ///
    /// # Errors
    /// A fault, if the node is damaged or has too little in it: an inner node needs one separator; a leaf needs two
    /// records, or one with a key other than `incoming`.
    pub fn choose_separator(self, incoming: Option<&[u8]>) -> Result<Split, NodeFault> {
        let shape = Shape::read(self.bytes)?;
        let planner = Planner::new(self, shape);
        if shape.word.level() == 0 { planner.leaf(incoming) } else { planner.inner(incoming) }
    }

    /// The index of the [`Split`] with this separator, which an inner node must have.
    fn split_index(self, separator: &[u8]) -> Result<usize, NodeFault> {
        let Find { index, found } = self.find(separator);
        match self.is_leaf() {
            true => Ok(index + usize::from(found)),
            false if found => Ok(index),
            false => Err(NodeFault::Split),
        }
    }
}

impl NodeMut<'_> {
    /// Fills `bytes`, but for the page header, as the right half of `left`, which has not been split yet.
    ///
    /// # Errors
    /// If `left` is damaged or `split` does not fit it.
    pub fn begin_right(bytes: &mut [u8], left: NodeView<&[u8]>, split: &Split) -> Result<(), NodeError> {
        let shape = Shape::read(left.bytes)?;
        let index = left.split_index(&split.separator)?;
        if index != split.index {
            return Err(NodeFault::Index { index: split.index }.into());
        }
        let start = index + usize::from(shape.word.level() > 0);
        NodeMut { bytes: &mut *bytes }.fill_zero();
        fill(bytes, left, start..shape.count, (Some(&split.separator), left.fences().1.as_deref()))
    }

    /// Fills `bytes`, which are zero after the page header, as the left half of `whole`: up to the separator of a
    /// [`Split`].
    ///
    /// # Errors
    /// If `whole` is damaged or the separator does not fit it.
    pub fn begin_left(bytes: &mut [u8], whole: NodeView<&[u8]>, separator: &[u8]) -> Result<(), NodeError> {
        Shape::read(whole.bytes)?;
        let count = whole.split_index(separator)?;
        fill(bytes, whole, 0..count, (whole.fences().0.as_deref(), Some(separator)))
    }

    /// Cuts the right half off: this node becomes the left half, with the separator of a [`Split`] as its upper fence.
    /// The caller gives the separator to the parent, see [`NodeMut::insert_separator`].
    ///
    /// # Errors
    /// If the node is damaged or the separator does not fit it. It is then as it was.
    pub fn split_off(&mut self, separator: &[u8]) -> Result<(), NodeError> {
        let mut page = [0; NODE_BYTES];
        NodeMut::begin_left(&mut page, self.view(), separator)?;
        self.take_over(&page);
        Ok(())
    }
}

/// Fills an empty page with the slots `range` of `whole`, between these fences.
pub(super) fn fill(
    bytes: &mut [u8],
    whole: NodeView<&[u8]>,
    range: Range<usize>,
    (lower, upper): (Option<&[u8]>, Option<&[u8]>),
) -> Result<(), NodeError> {
    let last_child = if whole.is_leaf() { PageId(0) } else { whole.child_at(child_place(range.end)) };
    let mut frame = Frame::plain(lower, upper);
    frame.lengthen_for(whole, range.clone());
    let mut node = Builder::new(bytes, whole.level(), &frame, last_child)?;
    node.append_range(whole, range)?;
    node.finish();
    Ok(())
}

impl NodeView<&[u8]> {
    /// Whether a leaf of `count` records is to be split evenly for `incoming`: it has few, and `incoming` continues no
    /// run.
    pub(super) fn evenly_for(self, incoming: &[u8], count: usize) -> bool {
        if !(2..=FEW_RECORDS).contains(&count) {
            return false;
        }
        let index = self.find(incoming).index;
        let is_newest = |index: usize| self.slot(index).at() == self.word().heap_start();
        let continues = match index {
            // In descending order: the newest record is the first, and the second was added before it.
            0 => {
                let first = self.slot(0);
                self.is_first() || is_newest(0) && self.slot(1).at() == first.at() + first.record_bytes()
            }
            index => index == count && self.is_last() || is_newest(index - 1) && self.goes_on(index - 1),
        };
        !continues
    }
}

/// A node that is to be split, with its fences and the sizes of its records.
struct Planner<'a> {
    view: NodeView<&'a [u8]>,
    shape: Shape,
    lower: Option<Vec<u8>>,
    upper: Option<Vec<u8>>,
    /// The bytes of slots and records before each slot, and at last of all.
    before: Vec<usize>,
}

impl<'a> Planner<'a> {
    fn new(view: NodeView<&'a [u8]>, shape: Shape) -> Self {
        let (lower, upper) = view.fences();
        let mut before = Vec::with_capacity(shape.count + 1);
        let mut sum = 0;
        before.push(0);
        for index in 0..shape.count {
            sum += shape.word.stride() + view.item(index).record_bytes();
            before.push(sum);
        }
        Self { view, shape, lower, upper, before }
    }

    fn leaf(&self, incoming: Option<&[u8]>) -> Result<Split, NodeFault> {
        let count = self.shape.count;
        let ends = self.key(0).zip(self.key(count.wrapping_sub(1)));
        let (first, last) = ends.ok_or(NodeFault::Split)?;
        let make = |index: usize| {
            let separator = shortest_separator(&self.key(index - 1)?, &self.key(index)?);
            self.fits(index..index, &separator).then_some(Split { index, separator })
        };
        if let Some(key) = incoming {
            if let Some(split) = self.view.evenly_for(key, count).then(|| self.evenly(key)).flatten() {
                return Ok(split);
            }
            // A separator without the prefix would leave all keys without it, and maybe without room. Then one with
            // the prefix is tried, if there is one.
            let beyond_all = *key > *last;
            let (index, separators) = if beyond_all {
                (count, [Some(shortest_separator(&last, key)), Some(last)])
            } else if *key < *first {
                let mut prefix = Vec::new();
                self.view.append_prefix(&mut prefix);
                let separates = *key <= *prefix && *prefix < *first;
                (0, [Some(shortest_separator(key, &first)), separates.then_some(prefix)])
            } else {
                (0, [None, None])
            };
            let fitting = |separator: &Vec<u8>| self.fits(index..index, separator);
            if let Some(separator) = separators.into_iter().flatten().find(fitting) {
                return Ok(Split { index, separator });
            }
            let mut few = (1..=MOVED_MAX.min(count - 1)).map(|moved| count - moved);
            // If there is no room for the fence after all records, there is before the last few.
            let near = if beyond_all { few.find_map(make) } else { self.after_run(key) };
            if let Some(split) = near {
                return Ok(split);
            }
        }
        let (mut left, mut right) = (Vec::new(), Vec::new());
        let length = |index: usize| {
            left.clear();
            right.clear();
            self.view.append_key(index - 1, &mut left);
            self.view.append_key(index, &mut right);
            separator_length(&left, &right)
        };
        self.best(1..count, 0, length, make)
    }

    /// The split between two of few records that makes the halves most equal once `incoming` is in one of them. Its
    /// record is assumed to be as long as the others.
    fn evenly(&self, incoming: &[u8]) -> Option<Split> {
        let count = self.shape.count;
        let Find { index: place, found } = self.view.find(incoming);
        if found {
            return None;
        }
        let total = self.before.last().copied()?;
        let one = total / count.max(1);
        let candidates = (1..count).flat_map(|index| {
            let left = self.before.get(index).copied().unwrap_or(total);
            // If `incoming` is at the border, it may go to either side.
            let to_left = (place <= index).then_some(((left + one).abs_diff(total - left), index, true));
            let to_right = (place >= index).then_some((left.abs_diff(total - left + one), index, false));
            to_left.into_iter().chain(to_right)
        });
        let (_, index, goes_left) = candidates.min_by_key(|(skew, ..)| *skew)?;
        let (left, right) = (self.key(index - 1)?, self.key(index)?);
        let separator = match (place == index, goes_left) {
            (true, true) => shortest_separator(incoming, &right),
            (true, false) => shortest_separator(&left, incoming),
            (false, _) => shortest_separator(&left, &right),
        };
        self.fits(index..index, &separator).then_some(Split { index, separator })
    }

    /// The split right after `incoming`, if that continues a run of keys in ascending order: the two keys that were
    /// added last are the two before it. The records beyond leave the leaf, so that the keys to come fill it.
    fn after_run(&self, incoming: &[u8]) -> Option<Split> {
        let Find { index, found } = self.view.find(incoming);
        if found || index < 2 || index >= self.shape.count {
            return None;
        }
        let is_newest = self.view.slot(index - 1).at() == self.shape.heap_start;
        if !is_newest || !self.view.goes_on(index - 1) {
            return None;
        }
        let beyond = self.key(index)?;
        let shortest = Some(shortest_separator(incoming, &beyond));
        // The keys to come will lie between the leaf's fences: the more these share, the better heads tell keys apart.
        let separators = [separator_after_run(incoming, &beyond), shortest].into_iter().flatten();
        let mut splits = separators.map(|separator| Split { index, separator });
        splits.find(|split| self.fits(index..index, &split.separator))
    }

    fn inner(&self, incoming: Option<&[u8]>) -> Result<Split, NodeFault> {
        let count = self.shape.count;
        let ends = self.key(0).zip(self.key(count.wrapping_sub(1)));
        let (first, last) = ends.ok_or(NodeFault::Split)?;
        let make = |index: usize| {
            let separator = self.key(index)?;
            self.fits(index..index + 1, &separator).then_some(Split { index, separator })
        };
        let edge = match incoming {
            Some(key) if *key > *last => make(count - 1),
            Some(key) if *key < *first => make(0),
            _ => None,
        };
        if let Some(split) = edge {
            return Ok(split);
        }
        let length = |index: usize| self.view.item(index).rest_length;
        // A half without a separator has a single child, which saves nobody a step on the way down.
        let inside = if count > 2 { self.best(1..count - 1, 1, length, make).ok() } else { None };
        inside.map_or_else(|| self.best(0..count, 1, length, make), Ok)
    }

    /// The split in `range` with the shortest separator near the middle or, if that does not fit, the one nearest to
    /// the middle that does. `taken` slots go up into the parent.
    fn best(
        &self,
        range: Range<usize>,
        taken: usize,
        mut length: impl FnMut(usize) -> usize,
        make: impl Fn(usize) -> Option<Split>,
    ) -> Result<Split, NodeFault> {
        let total = self.before.last().copied().unwrap_or(0);
        let bytes_before = |index: usize| self.before.get(index).copied().unwrap_or(total);
        // How far the halves are from equal.
        let skew =
            |index: usize| bytes_before(index).abs_diff(total - bytes_before(index + taken).min(total));
        let middle = range.clone().min_by_key(|&index| skew(index)).ok_or(NodeFault::Split)?;
        let limit = skew(middle).max(total / WINDOW_PART);
        let shortest = range
            .clone()
            .filter(|&index| skew(index) <= limit)
            .min_by_key(|&index| (length(index), skew(index)));
        if let Some(split) = shortest.and_then(&make) {
            return Ok(split);
        }
        let mut others: Vec<usize> = range.collect();
        others.sort_by_key(|&index| skew(index));
        others.into_iter().find_map(make).ok_or(NodeFault::Split)
    }

    /// Whether both halves fit, if the slots `taken` go up and `separator` bounds both nodes.
    fn fits(&self, taken: Range<usize>, separator: &[u8]) -> bool {
        let fits = |range, lower: Option<&[u8]>, upper: Option<&[u8]>| {
            let mut frame = Frame::plain(lower, upper);
            frame.lengthen_for(self.view, Range::clone(&range));
            let records = self.view.records_bytes(range, frame.prefix.len());
            records + frame.bytes(self.shape.word.level(), frame.prefix.len()) <= BODY_BYTES
        };
        fits(0..taken.start, self.lower.as_deref(), Some(separator))
            && fits(taken.end..self.shape.count, Some(separator), self.upper.as_deref())
    }

    fn key(&self, index: usize) -> Option<Vec<u8>> {
        (index < self.shape.count).then(|| self.view.key(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::layout::ValueKind;

    /// Where a leaf of three records, added in the order of `keys`, is split for `incoming`, and whether that goes left.
    fn split_of(keys: [u8; 3], incoming: u8) -> (usize, bool) {
        let mut page = vec![0; NODE_BYTES];
        let mut node = NodeMut::init(&mut page, 0, Some(b"a"), Some(b"z"), PageId(0)).unwrap();
        for key in keys {
            node.insert(&[key, 7], &[key; 1000], ValueKind::Inline).unwrap();
        }
        if node.view().plan_end(&[incoming, 7]).unwrap().is_some() {
            return (3, false);
        }
        let split = node.view().choose_separator(Some(&[incoming, 7])).unwrap();
        (split.index, [incoming, 7][..] <= split.separator[..])
    }

    #[test]
    fn a_leaf_of_few_records_is_split_evenly_unless_a_run_goes_on() {
        // Two records on each side, whichever key comes.
        assert_eq!(split_of(*b"hcm", b'b'), (1, true));
        assert_eq!(split_of(*b"hmc", b'd'), (1, true));
        assert_eq!(split_of(*b"hcm", b'j'), (2, false));
        assert_eq!(split_of(*b"mch", b'p'), (2, false));
        // Runs leave full leaves.
        assert_eq!(split_of(*b"chm", b'p').0, 3);
        assert_eq!(split_of(*b"mhc", b'b').0, 0);
        assert_eq!(split_of(*b"mbc", b'd').0, 2);
    }

    /// The leaf in which a run goes on has an upper fence that shares the run's place, so that heads tell its keys apart.
    #[test]
    fn a_run_within_a_leaf_gets_a_fence_of_its_own_place() {
        let key = |place: u8, number: u32| [&[place][..], &number.to_be_bytes()].concat();
        let mut page = vec![0; NODE_BYTES];
        let mut node = NodeMut::init(&mut page, 0, Some(b"\x02"), Some(b"\x05"), PageId(0)).unwrap();
        node.insert(&key(4, 0), &[4; 100], ValueKind::Inline).unwrap();
        let mut number = 0;
        while node.insert(&key(3, number), &[3; 100], ValueKind::Inline).is_ok() {
            number += 1;
        }
        let split = node.view().choose_separator(Some(&key(3, number))).unwrap();
        assert_eq!(split, Split { index: number as usize, separator: vec![3, 0xff] });
        let mut right = vec![0; NODE_BYTES];
        NodeMut::begin_right(&mut right, node.view(), &split).unwrap();
        node.split_off(&split.separator).unwrap();
        let end = node.view().plan_end(&key(3, number)).unwrap().unwrap();
        let mut next = vec![0; NODE_BYTES];
        NodeMut::begin_at(&mut next, node.view(), &end).unwrap();
        node.end_at(&end);
        for page in [&node.bytes[..], &next, &right] {
            NodeView::new(page).validate().unwrap();
        }
        // The heads tell all keys apart.
        assert_eq!(NodeView::new(&next[..]).prefix_len(), 1);
    }
}
