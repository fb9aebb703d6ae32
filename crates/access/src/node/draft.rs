//! Nodes that are made from records in the order of their keys, from nothing: what a bulk load makes.
//!
//! The fences of a node, and with them its prefix and the size of its records, are known only when the first key
//! behind it is. So records wait in a draft, which knows at any time that what it holds will fit into a node, and the
//! node is written at once when it is complete.

use super::build::Builder;
use super::edit::check_new;
use super::fault::NodeError;
use super::frame::Frame;
use super::layout::*;
use super::separator::shortest_separator;
use super::view::ValueKind;
use vellum_base::PageId;

/// Records that will be a leaf.
///
/// They fit into a leaf whose upper fence is the last of their keys. With a shorter fence they nearly always do as
/// well, and if not, that one is taken.
///
/// They wait as they will lie in the leaf if its prefix is what the lower fence has in common with all keys. Mostly it
/// is, and then they are copied as a whole.
pub(crate) struct LeafDraft {
    lower: Option<Vec<u8>>,
    /// The first bytes of the lower fence as a number.
    lower_word: u64,
    /// The keys, one after the other.
    keys: Vec<u8>,
    /// The first bytes of the last of them as a number.
    last_word: u64,
    records: Vec<Record>,
    /// The slots, with the places of the records in the heap of the draft.
    slots: Vec<Slot>,
    /// The heap ends where this does, and begins at `heap_start`.
    heap: Vec<u8>,
    heap_start: usize,
    /// What the lower fence has in common with all keys; nothing if there is no lower fence.
    prefix_length: usize,
    /// How many bytes of a node may be taken.
    limit: usize,
}

/// The fences and the prefix of a leaf.
pub(crate) struct LeafPlan(Frame);

/// A record of the draft.
#[derive(Clone, Copy)]
struct Record {
    /// Where its key is among the keys.
    key_at: u32,
    key_length: u16,
    value_length: u16,
}

impl Record {
    /// The bytes that it takes in a leaf, slot included.
    fn bytes(self, prefix_length: usize) -> usize {
        record_bytes(LEAF_STRIDE, self.key_length.into(), self.value_length.into(), prefix_length)
    }
}

/// The bytes of a slot and its record.
#[inline]
fn record_bytes(stride: usize, key_length: usize, value_length: usize, prefix_length: usize) -> usize {
    stride + align(key_length.saturating_sub(prefix_length + HEAD_BYTES) + value_length)
}

/// The bytes that may be taken when nodes are filled to `percent`.
fn limit(percent: u8) -> usize {
    BODY_BYTES * usize::from(percent) / 100
}

impl LeafDraft {
    /// An empty draft, for a leaf that is filled to `percent` but has at least one record.
    pub fn new(lower: Option<Vec<u8>>, percent: u8) -> Self {
        let mut draft = Self {
            lower: None,
            lower_word: 0,
            keys: Vec::with_capacity(NODE_BYTES),
            last_word: 0,
            records: Vec::with_capacity(MAX_LEAF_COUNT),
            slots: Vec::with_capacity(MAX_LEAF_COUNT),
            heap: vec![0; NODE_BYTES],
            heap_start: NODE_BYTES,
            prefix_length: 0,
            limit: limit(percent),
        };
        draft.begin(lower);
        draft
    }

    /// Becomes empty, with this lower fence.
    fn begin(&mut self, lower: Option<Vec<u8>>) {
        let fence = lower.as_deref().unwrap_or_default();
        (self.lower_word, self.prefix_length) = (key_word(fence), fence.len());
        self.lower = lower;
        self.keys.clear();
        self.last_word = 0;
        self.records.clear();
        self.slots.clear();
        self.heap_start = NODE_BYTES;
    }

    /// The key that was pushed last.
    #[inline]
    pub fn last_key(&self) -> Option<&[u8]> {
        self.records.last().map(|record| self.key(*record))
    }

    /// Whether a key is behind the one that was pushed last, if one was.
    #[inline]
    pub fn is_behind_last(&self, key: &[u8]) -> bool {
        // Words that differ say all: what a shorter key lacks is zero in its word.
        key_word(key) > self.last_word || self.last_key().is_none_or(|last| key > last)
    }

    /// Appends a record, whose key is behind all others and behind the lower fence; false if there is no room for it.
    ///
    /// # Errors
    /// [`NodeError::TooLarge`].
    #[inline]
    pub fn push(&mut self, key: &[u8], value: &[u8], kind: ValueKind) -> Result<bool, NodeError> {
        let value_code = check_new(key, value, kind)?;
        let common = if self.has_prefix(key) { self.prefix_length } else { self.common_with(key) };
        let used = self.used(common) + record_bytes(LEAF_STRIDE, key.len(), value.len(), common);
        let fences = fence_bytes(self.lower.as_ref().map_or(0, Vec::len), key.len(), common);
        if used + fences > self.limit && !self.records.is_empty() {
            return Ok(false);
        }
        if common < self.prefix_length && !self.records.is_empty() {
            self.place_anew(common);
        }
        self.prefix_length = common;
        // The limits of keys, values and nodes make all of these fit.
        self.records.push(Record {
            key_at: self.keys.len() as u32,
            key_length: key.len() as u16,
            value_length: value.len() as u16,
        });
        self.keys.extend_from_slice(key);
        self.last_word = key_word(key);
        let head = head_behind(key, self.last_word, common);
        self.place(key.get(common..).unwrap_or_default(), head, value_code, value);
        Ok(true)
    }

    /// Where in the leaf the records will begin that were pushed so far. A guess.
    #[inline]
    pub fn heap_start(&self) -> usize {
        self.heap_start
    }

    /// How many bytes there are for more, fences included.
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.used(self.prefix_length))
    }

    /// Whether a key begins with the prefix.
    #[inline]
    fn has_prefix(&self, key: &[u8]) -> bool {
        let length = self.prefix_length;
        if length > 8 {
            return self.lower.as_ref().is_some_and(|lower| lower.get(..length) == key.get(..length));
        }
        has_short_prefix(key, self.lower_word, length)
    }

    /// How much of the prefix a key begins with.
    #[cold]
    fn common_with(&self, key: &[u8]) -> usize {
        let lower = self.lower.as_deref().unwrap_or_default();
        common_length(lower.get(..self.prefix_length).unwrap_or_default(), key)
    }

    /// What slots and records take with a prefix.
    #[inline]
    fn used(&self, prefix_length: usize) -> usize {
        if prefix_length == self.prefix_length {
            self.slots.len() * LEAF_STRIDE + NODE_BYTES - self.heap_start
        } else {
            self.records.iter().map(|record| record.bytes(prefix_length)).sum()
        }
    }

    /// Places a record, whose key is `rest` behind the prefix and begins there with `head`.
    #[inline]
    fn place(&mut self, rest: &[u8], head: u32, value_code: usize, value: &[u8]) {
        let tail = rest.get(HEAD_BYTES..).unwrap_or_default();
        let bytes = align(value.len() + tail.len());
        self.heap_start = self.heap_start.saturating_sub(bytes);
        let at = if bytes == 0 { 0 } else { self.heap_start };
        self.slots.push(Slot::with_head(head, rest.len(), value_code, at));
        fill_record(self.heap.get_mut(at..at + bytes).unwrap_or_default(), value, tail);
    }

    /// Places all records anew, for a shorter prefix.
    #[cold]
    fn place_anew(&mut self, prefix_length: usize) {
        if self.records.iter().all(|record| record.key_length as usize <= prefix_length + HEAD_BYTES) {
            // The slots hold all that is behind the prefix, and the records stay where they are.
            for (record, slot) in self.records.iter().zip(&mut self.slots) {
                let at = record.key_at as usize;
                let key = self.keys.get(at..at + usize::from(record.key_length)).unwrap_or_default();
                let head = head_behind(key, key_word(key), prefix_length);
                *slot = slot.with_rest(head, key.len().saturating_sub(prefix_length));
            }
            return;
        }
        let heap = std::mem::replace(&mut self.heap, vec![0; NODE_BYTES]);
        let slots = std::mem::replace(&mut self.slots, Vec::with_capacity(MAX_LEAF_COUNT));
        let (records, keys) = (std::mem::take(&mut self.records), std::mem::take(&mut self.keys));
        self.heap_start = NODE_BYTES;
        for (record, slot) in records.iter().zip(slots) {
            let key = keys.get(record.key_at as usize..).and_then(|key| key.get(..record.key_length.into()));
            let key = key.unwrap_or_default();
            let value = heap.get(slot.at()..slot.tail_at()).unwrap_or_default();
            let head = head_behind(key, key_word(key), prefix_length);
            self.place(key.get(prefix_length..).unwrap_or_default(), head, slot.value_code(), value);
        }
        (self.records, self.keys) = (records, keys);
    }

    /// The fences and the prefix of the leaf: it ends before `next`, the first key behind it, if there is one.
    pub fn plan(&self, next: Option<&[u8]>) -> LeafPlan {
        LeafPlan(self.frame(next))
    }

    fn frame(&self, next: Option<&[u8]>) -> Frame {
        let key = |record: Option<&Record>| record.map_or(&[][..], |record| self.key(*record));
        let (first, last) = (key(self.records.first()), key(self.records.last()));
        let framed = |upper: Option<&[u8]>| {
            let mut frame = Frame::plain(self.lower.as_deref(), upper);
            frame.lengthen(0, (first, last, self.records.len()), |length| self.used(length));
            frame
        };
        let Some(next) = next else { return framed(None) };
        let frame = framed(Some(&shortest_separator(last, next)));
        let bytes = self.used(frame.prefix.len()) + frame.bytes(0, frame.prefix.len());
        if bytes <= BODY_BYTES { frame } else { framed(Some(last)) }
    }

    /// Writes the leaf to a page that is zero behind its header.
    ///
    /// # Errors
    /// None, if the keys were in order.
    pub fn write(&self, plan: &LeafPlan, page: &mut [u8]) -> Result<(), NodeError> {
        let mut leaf = Builder::new(page, 0, &plan.0, PageId(0))?;
        if plan.0.prefix.len() == self.prefix_length {
            leaf.append_placed(&self.heap, self.heap_start, &self.slots)?;
        } else {
            for (record, slot) in self.records.iter().zip(&self.slots) {
                let value = self.heap.get(slot.at()..slot.tail_at()).unwrap_or_default();
                leaf.append(self.key(*record), slot.value_code(), value, None)?;
            }
        }
        leaf.finish();
        Ok(())
    }

    /// Begins the next leaf, behind the one that was planned; gives the separator between the two.
    pub fn restart(&mut self, plan: LeafPlan) -> Vec<u8> {
        let fence = plan.0.upper.unwrap_or_default();
        self.begin(Some(fence.clone()));
        fence
    }

    #[inline]
    fn key(&self, record: Record) -> &[u8] {
        let at = record.key_at as usize;
        self.keys.get(at..at + usize::from(record.key_length)).unwrap_or_default()
    }
}

/// Children that will be an inner node, each with the separator behind it.
///
/// They fit into a node whose upper fence is the last of these separators.
pub(crate) struct InnerDraft {
    level: u8,
    lower: Option<Vec<u8>>,
    children: Vec<(PageId, Vec<u8>)>,
    /// What the lower fence has in common with all separators; nothing if there is no lower fence.
    prefix_length: usize,
    /// What the entries of all children take with this prefix.
    used: usize,
    limit: usize,
}

/// A part of a draft that is one node: so many separators, the child behind them, and the fences.
pub(crate) struct InnerPlan {
    separators: usize,
    last: PageId,
    frame: Frame,
}

impl InnerDraft {
    /// An empty draft, for a node that is filled to `percent` but has at least two children.
    pub fn new(level: u8, lower: Option<Vec<u8>>, percent: u8) -> Self {
        let prefix_length = lower.as_ref().map_or(0, Vec::len);
        Self { level, lower, children: Vec::new(), prefix_length, used: 0, limit: limit(percent) }
    }

    /// Appends a child and the separator behind it; gives the latter back if there is no room.
    pub fn push(&mut self, child: PageId, separator: Vec<u8>) -> Result<(), Vec<u8>> {
        let lower = self.lower.as_deref().unwrap_or_default();
        let start = lower.get(..self.prefix_length).unwrap_or_default();
        let prefix_length = common_length(start, &separator);
        let used = if prefix_length == self.prefix_length {
            self.used
        } else {
            self.entries_bytes(self.children.len(), prefix_length)
        };
        let fences = fence_bytes(lower.len(), separator.len(), prefix_length);
        // With one separator and two fences, a node has always room.
        if INNER_STRIDE + used + fences > self.limit && self.children.len() > 1 {
            return Err(separator);
        }
        self.prefix_length = prefix_length;
        self.used = used + record_bytes(INNER_STRIDE, separator.len(), 0, prefix_length);
        self.children.push((child, separator));
        Ok(())
    }

    /// The node of all children, whose upper fence is the last separator.
    pub fn plan(&self) -> Option<InnerPlan> {
        self.plan_of(self.children.len())
    }

    /// The last node of the level, whose last child is `last` and which has no fence behind it.
    ///
    /// # Errors
    /// If it has no room for all children: a node of all but the last two, which is to be written and then
    /// [taken](Self::take) off.
    pub fn last_plan(&self, last: PageId) -> Result<InnerPlan, InnerPlan> {
        let whole = self.planned(self.children.len(), last, None);
        let bytes = self.entries_bytes(whole.separators, whole.frame.prefix.len())
            + whole.frame.bytes(self.level, whole.frame.prefix.len());
        let part = self.plan_of(self.children.len().saturating_sub(1));
        // With one separator there always is room.
        part.filter(|_| bytes > BODY_BYTES).map_or(Ok(whole), Err)
    }

    /// The node of the first `count` children.
    fn plan_of(&self, count: usize) -> Option<InnerPlan> {
        let separators = count.checked_sub(1)?;
        let (last, upper) = self.children.get(separators)?;
        Some(self.planned(separators, *last, Some(upper)))
    }

    fn planned(&self, separators: usize, last: PageId, upper: Option<&[u8]>) -> InnerPlan {
        let mut frame = Frame::plain(self.lower.as_deref(), upper);
        let key = |index: usize| self.children.get(index).map_or(&[][..], |(_, key)| key);
        if separators > 0 {
            let keys = (key(0), key(separators - 1), separators);
            frame.lengthen(self.level, keys, |length| self.entries_bytes(separators, length));
        }
        InnerPlan { separators, last, frame }
    }

    /// Writes a node to a page that is zero behind its header.
    ///
    /// # Errors
    /// None, if the separators were in order.
    pub fn write(&self, plan: &InnerPlan, page: &mut [u8]) -> Result<(), NodeError> {
        let mut node = Builder::new(page, self.level, &plan.frame, plan.last)?;
        for (child, separator) in self.children.iter().take(plan.separators) {
            node.append(separator, 0, &[], Some(*child))?;
        }
        node.finish();
        Ok(())
    }

    /// Takes off what a node was written of; gives the separator behind it.
    pub fn take(&mut self, plan: InnerPlan) -> Vec<u8> {
        self.children.drain(..(plan.separators + 1).min(self.children.len()));
        let fence = plan.frame.upper.unwrap_or_default();
        self.lower = Some(fence.clone());
        let last = self.children.last().map_or(&fence, |(_, separator)| separator);
        self.prefix_length = common_length(&fence, last);
        self.used = self.entries_bytes(self.children.len(), self.prefix_length);
        fence
    }

    /// What the entries of the first `count` children take.
    fn entries_bytes(&self, count: usize, prefix_length: usize) -> usize {
        let bytes =
            |(_, separator): &(_, Vec<u8>)| record_bytes(INNER_STRIDE, separator.len(), 0, prefix_length);
        self.children.iter().take(count).map(bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::NodeView;
    use vellum_base::PAGE_SIZE;

    type Entry = (Vec<u8>, Vec<u8>);
    /// A page, and what must be in it.
    type Leaf = (Vec<u8>, Vec<Entry>);

    /// Leaves of entries in the order of their keys, each with what it must hold, and how often the prefix was the one
    /// that the draft had.
    fn leaves(entries: &[Entry], percent: u8) -> (Vec<Leaf>, usize) {
        let mut draft = LeafDraft::new(None, percent);
        let (mut leaves, mut copied, mut held) = (Vec::new(), 0, Vec::new());
        for (key, value) in entries.iter().map(|entry| (&entry.0, &entry.1)) {
            assert!(draft.is_behind_last(key));
            if !draft.push(key, value, ValueKind::Inline).unwrap() {
                let plan = draft.plan(Some(key));
                let mut page = vec![0; PAGE_SIZE];
                draft.write(&plan, &mut page).unwrap();
                copied += usize::from(plan.0.prefix.len() == draft.prefix_length);
                leaves.push((page, std::mem::take(&mut held)));
                draft.restart(plan);
                assert!(draft.push(key, value, ValueKind::Inline).unwrap());
            }
            assert!(!draft.is_behind_last(key) && draft.last_key() == Some(key));
            held.push((key.clone(), value.clone()));
        }
        let mut page = vec![0; PAGE_SIZE];
        draft.write(&draft.plan(None), &mut page).unwrap();
        leaves.push((page, held));
        (leaves, copied)
    }

    fn check(entries: &mut Vec<Entry>, percent: u8) -> (usize, usize) {
        entries.sort();
        entries.dedup_by(|a, b| a.0 == b.0);
        let (leaves, copied) = leaves(entries, percent);
        for (page, held) in &leaves {
            let view = NodeView::new(&page[..]);
            view.validate().unwrap();
            assert_eq!(view.count(), held.len());
            for (index, (key, value)) in held.iter().enumerate() {
                assert_eq!((view.find(key).index, view.find(key).found), (index, true));
                let mut found = Vec::new();
                view.append_value(index, &mut found);
                assert_eq!(&found, value);
            }
        }
        (leaves.len(), copied)
    }

    #[test]
    fn leaves_hold_what_was_pushed_whether_or_not_their_prefix_was_known() {
        let value = |number: u64| vec![number as u8; (number * 7 % 130) as usize];
        let shapes: [&dyn Fn(u64) -> Vec<u8>; 6] = [
            &|number| number.to_be_bytes().to_vec(),
            &|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec(),
            &|number| format!("a prefix that many keys share/{number}").into_bytes(),
            &|number| vec![(number % 3) as u8; (number % 300) as usize],
            &|number| [&[0xff; 6][..(number % 7) as usize], &(number as u32).to_be_bytes()].concat(),
            &|number| vec![b'z'; number as usize % 1025],
        ];
        for (number, shape) in shapes.iter().enumerate() {
            for percent in [50, 90, 100] {
                let mut entries = (0..4000).map(|number| (shape(number), value(number))).collect();
                let (leaves, copied) = check(&mut entries, percent);
                assert!(leaves > 3, "{number}");
                if number == 0 {
                    assert!(
                        copied * 10 > leaves * 8,
                        "only {copied} of {leaves} leaves were copied as they were"
                    );
                    assert!(copied + 1 < leaves, "none was written anew");
                }
            }
        }
    }

    /// Values without bytes, whose records are nowhere.
    #[test]
    fn records_without_bytes_have_no_place() {
        let mut entries = (0..2000u32).map(|number| (number.to_be_bytes().to_vec(), Vec::new())).collect();
        check(&mut entries, 100);
    }
}
