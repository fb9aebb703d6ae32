//! The frame of a node: its fences and its prefix, and the bytes that they take.

use super::{layout::*, view::NodeView};
use std::ops::Range;

/// The fences of a node (absent is infinite) and its prefix.
///
/// If there are both fences, the prefix is what they have in common. Else every key and fence of the node begins
/// with it, and its length was chosen when the node was written.
#[derive(Clone, Debug)]
pub(super) struct Frame<K = Vec<u8>> {
    pub lower: Option<K>,
    pub upper: Option<K>,
    pub prefix: K,
}

impl<K: AsRef<[u8]>> Frame<K> {
    /// The bytes of an empty node with these fences and a prefix of this length, without its two headers and
    /// its hints.
    pub fn bytes(&self, level: u8, prefix_length: usize) -> usize {
        let last = if level == 0 { 0 } else { INNER_STRIDE };
        let length = |fence: &K| fence.as_ref().len();
        let lower_length = self.lower.as_ref().map_or(prefix_length, length);
        last + fence_bytes(lower_length, self.upper.as_ref().map_or(0, length), prefix_length)
    }
}

impl Frame {
    /// A frame whose prefix follows from the fences: it is empty unless there are both.
    pub fn plain(lower: Option<&[u8]>, upper: Option<&[u8]>) -> Self {
        let prefix = lower.zip(upper).and_then(|(lower, upper)| lower.get(..common_length(lower, upper)));
        Self {
            lower: lower.map(<[u8]>::to_vec),
            upper: upper.map(<[u8]>::to_vec),
            prefix: prefix.unwrap_or(&[]).to_vec(),
        }
    }

    /// The frame that a node has.
    pub fn of(view: NodeView<&[u8]>) -> Self {
        let (lower, upper) = view.fences();
        let mut frame = Self::plain(lower.as_deref(), upper.as_deref());
        if !frame.is_closed() {
            view.append_prefix(&mut frame.prefix);
        }
        frame
    }

    /// Whether there are both fences, so that the prefix follows from them.
    pub fn is_closed(&self) -> bool {
        self.lower.is_some() && self.upper.is_some()
    }

    /// Lengthens the prefix to what all of `count` keys from `first` to `last` have in common with each other
    /// and with a fence, if a leaf then takes no more bytes, or if an inner node has room for it. `records` gives the bytes of slots and records
    /// for a prefix length.
    ///
    /// A single key without any fence says nothing about keys to come. But an inner node gets few keys soon: there the
    /// prefix becomes so long that a hint holds the rest. Most keys that are searched for begin like the single one,
    /// and its hint tells them apart.
    pub fn lengthen(
        &mut self,
        level: u8,
        (first, last, count): (&[u8], &[u8], usize),
        records: impl Fn(usize) -> usize,
    ) {
        if self.is_closed() {
            return;
        }
        let length = if self.lower.is_none() && self.upper.is_none() && count < 2 {
            if level == 0 { 0 } else { first.len().saturating_sub(HINT_BYTES) }
        } else {
            let fences = [&self.lower, &self.upper].into_iter().flatten();
            fences.map(|fence| common_length(fence, first)).fold(common_length(first, last), usize::min)
        };
        let bytes = |length| self.bytes(level, length) + records(length);
        // In an inner node it may cost some bytes, which heads of eight bytes do not give back: hints have half of a head.
        let most = if level == 0 { bytes(self.prefix.len()) } else { BODY_BYTES };
        if length > self.prefix.len() && bytes(length) <= most {
            self.prefix = first.iter().take(length).copied().collect();
        }
    }

    /// [`Frame::lengthen`] for a node that gets the slots `range` of `view` and nothing else.
    pub fn lengthen_for(&mut self, view: NodeView<&[u8]>, range: Range<usize>) {
        if range.is_empty() || self.is_closed() {
            return;
        }
        let keys = (&view.key(range.start)[..], &view.key(range.end - 1)[..], range.len());
        self.lengthen(view.level(), keys, |length| view.records_bytes(range.clone(), length));
    }
}
