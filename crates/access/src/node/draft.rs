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
pub(crate) struct LeafDraft {
    lower: Option<Vec<u8>>,
    /// Keys and values one after the other.
    bytes: Vec<u8>,
    records: Vec<Record>,
    /// What the lower fence has in common with all keys; nothing if there is no lower fence.
    prefix_length: usize,
    /// What slots and records take with this prefix.
    used: usize,
    /// How many bytes of a node may be taken.
    limit: usize,
}

/// The fences and the prefix of a leaf.
pub(crate) struct LeafPlan(Frame);

/// Where a record is in the draft.
#[derive(Clone, Copy)]
struct Record {
    at: u32,
    key_length: u16,
    value_length: u16,
    /// What its slot will say of the value.
    value_code: u16,
}

impl Record {
    /// The bytes that it takes in a leaf, slot included.
    fn bytes(self, prefix_length: usize) -> usize {
        record_bytes(LEAF_STRIDE, self.key_length.into(), self.value_length.into(), prefix_length)
    }
}

/// The bytes of a slot and its record.
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
        let prefix_length = lower.as_ref().map_or(0, Vec::len);
        let (bytes, records) = (Vec::with_capacity(2 * NODE_BYTES), Vec::with_capacity(MAX_LEAF_COUNT));
        Self { lower, bytes, records, prefix_length, used: 0, limit: limit(percent) }
    }

    /// The key that was pushed last.
    #[inline]
    pub fn last_key(&self) -> Option<&[u8]> {
        self.records.last().map(|record| self.key(*record))
    }

    /// Appends a record, whose key is behind all others and behind the lower fence; false if there is no room for it.
    ///
    /// # Errors
    /// [`NodeError::TooLarge`].
    #[inline]
    pub fn push(&mut self, key: &[u8], value: &[u8], kind: ValueKind) -> Result<bool, NodeError> {
        let value_code = check_new(key, value, kind)?;
        let lower = self.lower.as_deref().unwrap_or_default();
        let start = lower.get(..self.prefix_length).unwrap_or_default();
        let (prefix_length, used) = if key.starts_with(start) {
            (self.prefix_length, self.used)
        } else {
            let common = common_length(start, key);
            (common, self.records_bytes(common))
        };
        let used = used + record_bytes(LEAF_STRIDE, key.len(), value.len(), prefix_length);
        let fences = fence_bytes(lower.len(), key.len(), prefix_length);
        if used + fences > self.limit && !self.records.is_empty() {
            return Ok(false);
        }
        (self.prefix_length, self.used) = (prefix_length, used);
        // The limits of keys, values and nodes make all of these fit.
        self.records.push(Record {
            at: self.bytes.len() as u32,
            key_length: key.len() as u16,
            value_length: value.len() as u16,
            value_code: value_code as u16,
        });
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        Ok(true)
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
            frame.lengthen(0, (first, last, self.records.len()), |length| self.records_bytes(length));
            frame
        };
        let Some(next) = next else { return framed(None) };
        let frame = framed(Some(&shortest_separator(last, next)));
        let bytes = self.records_bytes(frame.prefix.len()) + frame.bytes(0, frame.prefix.len());
        if bytes <= BODY_BYTES { frame } else { framed(Some(last)) }
    }

    /// Writes the leaf to a page that is zero behind its header.
    ///
    /// # Errors
    /// None, if the keys were in order.
    pub fn write(&self, plan: &LeafPlan, page: &mut [u8]) -> Result<(), NodeError> {
        let mut leaf = Builder::new(page, 0, &plan.0, PageId(0))?;
        for record in &self.records {
            leaf.append(self.key(*record), record.value_code.into(), self.value(*record), None)?;
        }
        leaf.finish();
        Ok(())
    }

    /// Begins the next leaf, behind the one that was planned; gives the separator between the two.
    pub fn restart(&mut self, plan: LeafPlan) -> Vec<u8> {
        let fence = plan.0.upper.unwrap_or_default();
        self.prefix_length = fence.len();
        self.lower = Some(fence.clone());
        self.bytes.clear();
        self.records.clear();
        self.used = 0;
        fence
    }

    #[inline]
    fn key(&self, record: Record) -> &[u8] {
        let at = record.at as usize;
        self.bytes.get(at..at + usize::from(record.key_length)).unwrap_or_default()
    }

    #[inline]
    fn value(&self, record: Record) -> &[u8] {
        let at = record.at as usize + usize::from(record.key_length);
        self.bytes.get(at..at + usize::from(record.value_length)).unwrap_or_default()
    }

    fn records_bytes(&self, prefix_length: usize) -> usize {
        self.records.iter().map(|record| record.bytes(prefix_length)).sum()
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
