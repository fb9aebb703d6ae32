//! Builds a leaf from records in the order of their keys, for bulk loads.
//!
//! The fences of a leaf, and with them its prefix and the size of its records, are known only when the first key
//! beyond it is. So records wait in a builder, which makes sure at any time that they fit into a leaf, and the leaf is
//! written at once when it is complete.

use super::{
    build::Builder, edit::check_new, fault::NodeError, frame::Frame, layout::*, separator::shortest_separator,
};
use vellum_base::PageId;

/// Records that will be a leaf.
///
/// The records fit into a leaf whose upper fence is the last of their keys. With a shorter fence they nearly always fit
/// as well; if not, the last key becomes the fence.
///
/// The records are placed as for a leaf whose prefix is what the lower fence has in common with all keys. Mostly that
/// is its prefix; if not, they are placed anew before they are copied.
pub(crate) struct LeafBuilder {
    /// Slots and records, as in a page whose fences are the shortest possible. So what fits into the leaf fits here.
    image: Box<[u8; NODE_BYTES]>,
    count: usize,
    /// Where the records begin and end.
    heap_start: usize,
    heap_end: usize,
    /// The slot of the last record; before the first one, [`NO_SLOT`], whose head is the greatest.
    last: Slot,
    lower: Option<Vec<u8>>,
    /// The first bytes of the lower fence as a number.
    lower_word: u64,
    /// The length that the lower fence has in common with all keys; 0 if there is no lower fence.
    prefix_length: usize,
    /// How many bytes of a node may be used, and how many are left for records and fences.
    limit: usize,
    left: usize,
    /// The last key of the leaf that is planned.
    last_key: Vec<u8>,
}

/// The upper fence of a complete leaf, and the length of its prefix.
pub(crate) struct LeafPlan {
    upper: Option<Vec<u8>>,
    prefix_length: usize,
}

/// The slot of no record.
const NO_SLOT: Slot = Slot(u64::MAX);

impl LeafBuilder {
    /// An empty builder without a lower fence, for a leaf that is filled to `percent`, with at least one record.
    pub fn new(percent: u8) -> Self {
        let limit = fill_limit(percent);
        Self {
            image: Box::new([0; NODE_BYTES]),
            count: 0,
            heap_start: NODE_BYTES,
            heap_end: NODE_BYTES,
            last: NO_SLOT,
            lower: None,
            lower_word: 0,
            prefix_length: 0,
            limit,
            left: limit,
            last_key: Vec::new(),
        }
    }

    /// The key that was pushed last, if there is one.
    pub fn last_key(&self) -> Option<Vec<u8>> {
        let mut key = Vec::new();
        self.append_key(self.count.checked_sub(1)?, &mut key);
        Some(key)
    }

    /// Appends a record with an inline value in the common case: there are records, the key is greater than theirs and
    /// has their prefix, and there is room. In all other cases does nothing and returns false.
    #[inline(always)]
    pub fn push_next(&mut self, key: &[u8], value: &[u8]) -> bool {
        /// Keys of up to this length have room beside any inline value.
        const KEY_BYTES: usize = MAX_INLINE_RECORD_BYTES - MAX_INLINE_VALUE_BYTES;
        if key.len() > KEY_BYTES || value.len() > MAX_INLINE_VALUE_BYTES || !self.has_prefix(key) {
            return false;
        }
        let head = head_after(key, key_word(key), self.prefix_length);
        let rest = key.get(self.prefix_length..).unwrap_or_default();
        if head <= self.last.head() && !self.is_after_last(head, rest) {
            return false;
        }
        let bytes = record_bytes(LEAF_STRIDE, rest.len(), value.len(), 0);
        if bytes + self.fences_before(rest.len()) > self.left {
            return false;
        }
        self.left -= bytes;
        self.place(rest, head, value.len(), value);
        true
    }

    /// Whether a key is greater than the one that was pushed last, if one was.
    pub fn is_next(&self, key: &[u8]) -> bool {
        if self.has_prefix(key) {
            let rest = key.get(self.prefix_length..).unwrap_or_default();
            return self.count == 0 || self.is_after_last(head_of(rest), rest);
        }
        self.last_key().is_none_or(|last| key > &last[..])
    }

    /// Whether one was pushed, and the key with the rest `rest`, which begins with `head`, is greater than the last.
    fn is_after_last(&self, head: u32, rest: &[u8]) -> bool {
        let probe = |head, length| Slot::probe(head, length).0;
        let (own, last) = (probe(head, rest.len()), probe(self.last.head(), self.last.rest_length()));
        if own != last {
            return own > last;
        }
        // Of long rests that agree in their heads, the tails decide.
        self.count > 0 && tail_of(&self.image, self.last) < rest.get(HEAD_BYTES..).unwrap_or_default()
    }

    /// Appends a record, whose key is greater than all others and the lower fence; false if there is no room for it.
    ///
    /// # Errors
    /// [`NodeError::TooLarge`].
    pub fn push(&mut self, key: &[u8], value: &[u8], kind: ValueKind) -> Result<bool, NodeError> {
        let value_code = check_new(key, value, kind)?;
        let common = if self.has_prefix(key) { self.prefix_length } else { self.common_with(key) };
        let rest = key.get(common..).unwrap_or_default();
        let bytes = self.used(common) + record_bytes(LEAF_STRIDE, rest.len(), value.len(), 0);
        if bytes + self.fences_before(rest.len()) > self.limit && self.count > 0 {
            return Ok(false);
        }
        self.take_prefix(common);
        self.left = self.limit.saturating_sub(bytes);
        self.place(rest, head_of(rest), value_code, value);
        Ok(true)
    }

    /// Where in the leaf the records pushed so far will begin. A guess.
    #[inline]
    pub fn heap_start(&self) -> usize {
        self.heap_start
    }

    /// How many bytes are left for more records, fences included.
    pub fn room(&self) -> usize {
        self.left
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

    /// The length that the prefix has in common with a key.
    fn common_with(&self, key: &[u8]) -> usize {
        let lower = self.lower.as_deref().unwrap_or_default();
        common_length(lower.get(..self.prefix_length).unwrap_or_default(), key)
    }

    /// The bytes that the fences take if the rest of the upper one has this length.
    #[inline]
    fn fences_before(&self, rest_length: usize) -> usize {
        fence_bytes(self.lower.as_ref().map_or(0, Vec::len), rest_length, 0)
    }

    /// The bytes that slots and records take with a prefix of this length.
    fn used(&self, prefix_length: usize) -> usize {
        if prefix_length == self.prefix_length {
            return self.count * LEAF_STRIDE + self.heap_end - self.heap_start;
        }
        let bytes = |slot: Slot| {
            let key_length = self.prefix_length + slot.rest_length();
            record_bytes(LEAF_STRIDE, key_length, slot.value_length(), prefix_length)
        };
        (0..self.count).map(|index| bytes(self.slot(index))).sum()
    }

    #[inline]
    fn slot(&self, index: usize) -> Slot {
        slot_of(&self.image, index)
    }

    fn set_slot(&mut self, index: usize, slot: Slot) {
        let at = SLOTS_AT + index * LEAF_STRIDE;
        if let Some(place) = self.image.get_mut(at..).and_then(|image| image.first_chunk_mut()) {
            *place = slot.0.to_le_bytes();
        }
    }

    fn append_key(&self, index: usize, key: &mut Vec<u8>) {
        let lower = self.lower.as_deref().unwrap_or_default();
        key.extend_from_slice(lower.get(..self.prefix_length).unwrap_or_default());
        append_rest(&self.image, self.slot(index), key);
    }

    /// Places a record, whose key is the prefix and `rest`, which begins with `head`. There is room for it.
    #[inline]
    fn place(&mut self, rest: &[u8], head: u32, value_code: usize, value: &[u8]) {
        let tail = rest.get(HEAD_BYTES..).unwrap_or_default();
        let bytes = align(value.len() + tail.len());
        debug_assert!(SLOTS_AT + (self.count + 1) * LEAF_STRIDE + bytes <= self.heap_start, "no room");
        self.heap_start = self.heap_start.saturating_sub(bytes);
        let at = if bytes == 0 { 0 } else { self.heap_start };
        fill_record(self.image.get_mut(at..at + bytes).unwrap_or_default(), value, tail);
        self.last = Slot::with_head(head, rest.len(), value_code, at);
        self.set_slot(self.count, self.last);
        self.count += 1;
    }

    /// Takes another prefix, with which all keys begin.
    #[inline]
    fn take_prefix(&mut self, prefix_length: usize) {
        if prefix_length != self.prefix_length && self.count > 0 {
            self.place_anew(prefix_length);
        }
        self.prefix_length = prefix_length;
    }

    /// Places all records for another prefix.
    #[cold]
    fn place_anew(&mut self, prefix_length: usize) {
        let (before, count) = (self.prefix_length, self.count);
        let lower = self.lower.as_deref().unwrap_or_default();
        let longest = (0..count).map(|index| self.slot(index).rest_length()).max().unwrap_or(0);
        if prefix_length < before && longest + before - prefix_length <= HEAD_BYTES {
            // The slots still hold all that follows the prefix, and the records stay where they are.
            let start = head_of(lower.get(prefix_length..before).unwrap_or_default());
            let more = before - prefix_length;
            for index in 0..count {
                let slot = self.slot(index);
                let head = start | slot.head().checked_shr(8 * more as u32).unwrap_or(0);
                self.last = slot.with_rest(head, more + slot.rest_length());
                self.set_slot(index, self.last);
            }
            return;
        }
        let mut key = lower.get(..before).unwrap_or_default().to_vec();
        let old = self.image.clone();
        (self.heap_start, self.count) = (self.heap_end, 0);
        for slot in (0..count).map(|index| slot_of(&old, index)) {
            key.truncate(before);
            append_rest(&old, slot, &mut key);
            let rest = key.get(prefix_length..).unwrap_or_default();
            let value = old.get(slot.at()..slot.tail_at()).unwrap_or_default();
            self.place(rest, head_of(rest), slot.value_code(), value);
        }
    }

    /// Plans the leaf of all records. `next` is the first key beyond it, if there is one.
    pub fn plan(&mut self, next: Option<&[u8]>) -> LeafPlan {
        let mut last = std::mem::take(&mut self.last_key);
        last.clear();
        if let Some(index) = self.count.checked_sub(1) {
            self.append_key(index, &mut last);
        }
        let upper = next.map(|next| shortest_separator(&last, next));
        let mut plan = LeafPlan { prefix_length: self.prefix_before(upper.as_deref(), &last), upper };
        if self.used(plan.prefix_length) + self.frame(&plan, &last).bytes(0, plan.prefix_length) > BODY_BYTES
        {
            plan =
                LeafPlan { prefix_length: self.prefix_before(Some(&last), &last), upper: Some(last.clone()) };
        }
        self.take_prefix(plan.prefix_length);
        self.last_key = last;
        plan
    }

    /// The length of the prefix of a leaf with the last key `last` and this upper fence.
    fn prefix_before(&self, upper: Option<&[u8]>, last: &[u8]) -> usize {
        if let (Some(lower), Some(upper)) = (&self.lower, upper) {
            return common_length(lower, upper);
        }
        let mut first = Vec::new();
        self.append_key(0, &mut first);
        let mut frame = Frame::plain(self.lower.as_deref(), upper);
        frame.lengthen(0, (&first, last, self.count), |length| self.used(length));
        frame.prefix.len()
    }

    /// The frame of the planned leaf, whose last key is `last`.
    fn frame<'a>(&'a self, plan: &'a LeafPlan, last: &'a [u8]) -> Frame<&'a [u8]> {
        let prefix = last.get(..plan.prefix_length).unwrap_or_default();
        Frame { lower: self.lower.as_deref(), upper: plan.upper.as_deref(), prefix }
    }

    /// Writes the leaf to a page that is zero after its header.
    ///
    /// # Errors
    /// None, if the keys were in order.
    pub fn write(&self, plan: &LeafPlan, page: &mut [u8]) -> Result<(), NodeError> {
        let frame = self.frame(plan, &self.last_key);
        let mut leaf = Builder::new(page, 0, &frame, PageId(0))?;
        leaf.append_placed(&self.image, self.heap_start..self.heap_end, self.count)?;
        leaf.finish();
        Ok(())
    }

    /// Begins the leaf after the planned one; gives the separator between the two.
    pub fn restart(&mut self, plan: LeafPlan) -> Vec<u8> {
        let fence = plan.upper.unwrap_or_default();
        let lower = self.lower.get_or_insert_default();
        lower.clear();
        lower.extend_from_slice(&fence);
        (self.lower_word, self.prefix_length) = (key_word(lower), lower.len());
        // The upper fence will be greater, so it has at least one byte of its own.
        self.heap_end = NODE_BYTES - fence_bytes(lower.len(), 1, 0);
        (self.heap_start, self.count, self.last, self.left) = (self.heap_end, 0, NO_SLOT, self.limit);
        fence
    }
}

#[inline]
fn slot_of(image: &[u8; NODE_BYTES], index: usize) -> Slot {
    let bytes = image.get(SLOTS_AT + index * LEAF_STRIDE..).and_then(|image| image.first_chunk());
    bytes.map_or(NO_SLOT, |bytes| Slot(u64::from_le_bytes(*bytes)))
}

/// Appends the rest of a slot's key.
fn append_rest(image: &[u8; NODE_BYTES], slot: Slot, key: &mut Vec<u8>) {
    let head = slot.head().to_be_bytes();
    key.extend_from_slice(head.get(..slot.rest_length()).unwrap_or(&head));
    key.extend_from_slice(tail_of(image, slot));
}

fn tail_of(image: &[u8; NODE_BYTES], slot: Slot) -> &[u8] {
    image.get(slot.tail_at()..).and_then(|image| image.get(..slot.tail_length())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::view::NodeView;
    use vellum_base::PAGE_SIZE;

    type Entry = (Vec<u8>, Vec<u8>);
    /// A page, and what must be in it.
    type Leaf = (Vec<u8>, Vec<Entry>);

    /// How records went into leaves.
    #[derive(Default)]
    struct Counts {
        leaves: usize,
        /// Leaves whose prefix the builder had right.
        copied: usize,
        /// Records that [`LeafBuilder::push_next`] took.
        simple: usize,
    }

    /// Leaves of entries in the order of their keys, each with what it must hold.
    fn leaves(entries: &[Entry], percent: u8) -> (Vec<Leaf>, Counts) {
        let mut builder = LeafBuilder::new(percent);
        let (mut leaves, mut counts, mut held) = (Vec::new(), Counts::default(), Vec::<Entry>::new());
        for (key, value) in entries.iter().map(|entry| (&entry.0, &entry.1)) {
            assert!(builder.is_next(key));
            if builder.push_next(key, value) {
                counts.simple += 1;
            } else if !builder.push(key, value, ValueKind::Inline).unwrap() {
                let prefix_length = builder.prefix_length;
                let plan = builder.plan(Some(key));
                counts.copied += usize::from(plan.prefix_length == prefix_length);
                let mut page = vec![0; PAGE_SIZE];
                builder.write(&plan, &mut page).unwrap();
                leaves.push((page, std::mem::take(&mut held)));
                builder.restart(plan);
                assert!(builder.is_next(key) && !builder.push_next(key, value));
                assert!(builder.push(key, value, ValueKind::Inline).unwrap());
            }
            held.push((key.clone(), value.clone()));
            assert_eq!(builder.last_key().as_ref(), Some(key));
            for (before, _) in held.iter().rev().take(3) {
                assert!(!builder.is_next(before) && !builder.push_next(before, value));
            }
        }
        let mut page = vec![0; PAGE_SIZE];
        let plan = builder.plan(None);
        builder.write(&plan, &mut page).unwrap();
        leaves.push((page, held));
        counts.leaves = leaves.len();
        (leaves, counts)
    }

    fn check(entries: &mut Vec<Entry>, percent: u8) -> Counts {
        entries.sort();
        entries.dedup_by(|a, b| a.0 == b.0);
        let (leaves, counts) = leaves(entries, percent);
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
        counts
    }

    #[test]
    fn leaves_hold_what_was_pushed_whether_or_not_their_prefix_was_known() {
        let value = |number: u64| vec![number as u8; (number * 7 % 130) as usize];
        let shapes: [&dyn Fn(u64) -> Vec<u8>; 8] = [
            &|number| number.to_be_bytes().to_vec(),
            &|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec(),
            &|number| format!("a prefix that many keys share/{number}").into_bytes(),
            &|number| format!("{:02}/and then more than a head/{number}", number / 50).into_bytes(),
            &|number| vec![(number % 3) as u8; (number % 300) as usize],
            &|number| [&[0xff; 6][..(number % 7) as usize], &(number as u32).to_be_bytes()].concat(),
            &|number| vec![b'z'; number as usize % 1025],
            &|number| vec![0xff; number as usize % 1000],
        ];
        for (number, shape) in shapes.iter().enumerate() {
            for percent in [50, 90, 100] {
                let mut entries = (0..4000).map(|number| (shape(number), value(number))).collect();
                let Counts { leaves, copied, simple } = check(&mut entries, percent);
                assert!(leaves > 3, "{number}");
                if number == 0 {
                    assert!(
                        copied * 10 > leaves * 8,
                        "only {copied} of {leaves} leaves were copied as they were"
                    );
                    assert!(copied + 1 < leaves, "none was placed anew");
                    assert!(simple * 10 > entries.len() * 8, "only {simple} records were simple");
                }
            }
        }
    }

    /// Values without bytes, whose records have none either.
    #[test]
    fn records_without_bytes_have_no_place() {
        let mut entries = (0..2000u32).map(|number| (number.to_be_bytes().to_vec(), Vec::new())).collect();
        check(&mut entries, 100);
    }
}
