//! Reading a node, latched or not.

use super::{
    entry::{Entry, Item},
    layout::*,
};
use std::{cmp::Ordering, ops::Range};
use vellum_base::{Bytes, HEADER_BYTES, PageId};

/// Where a key is, or would be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Find {
    /// The first slot whose key is not less than the one searched for; the count if there is none.
    pub index: usize,
    /// Whether the key of that slot is the one searched for.
    pub found: bool,
}

/// Where a value lies in the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ValueAt {
    /// Its first byte, a multiple of 4.
    pub at: usize,
    /// Its length in bytes. In a damaged or changing page the value may cross the end of the page.
    pub length: usize,
    /// What its bytes mean.
    pub kind: ValueKind,
}

/// The first 64-bit word of a node's own header, read at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word(u64);

impl Word {
    /// The count as stored, not clamped.
    #[inline]
    pub fn count(self) -> usize {
        self.0 as u16 as usize
    }

    #[inline]
    pub fn prefix_length(self) -> usize {
        (self.0 >> 16) as u16 as usize
    }

    #[inline]
    pub fn level(self) -> u8 {
        (self.0 >> 32) as u8
    }

    #[inline]
    pub fn flags(self) -> u8 {
        (self.0 >> 40) as u8
    }

    /// Whether there are both fences.
    #[inline]
    pub fn is_closed(self) -> bool {
        self.flags() & (FLAG_LOWER | FLAG_UPPER) == FLAG_LOWER | FLAG_UPPER
    }

    /// Whether it is a leaf with fingerprints.
    #[inline]
    pub fn has_fingerprints(self) -> bool {
        self.flags() & FLAG_FINGERPRINTS != 0
    }

    /// Whether it is an inner node whose entries have heads of eight bytes.
    #[inline]
    pub fn has_long_heads(self) -> bool {
        self.level() > 0 && self.flags() & FLAG_LONG_HEADS != 0
    }

    /// [`is_closed`](Self::is_closed) and [`has_long_heads`](Self::has_long_heads) in one, for an inner node.
    #[inline]
    pub fn is_closed_with_long_heads(self) -> bool {
        const ALL: u8 = FLAG_LOWER | FLAG_UPPER | FLAG_LONG_HEADS;
        self.flags() & ALL == ALL
    }

    /// How many bytes of a key a slot or an entry holds.
    #[inline]
    pub fn head_bytes(self) -> usize {
        if self.has_long_heads() { INNER_HEAD_BYTES } else { HEAD_BYTES }
    }

    #[inline]
    pub fn heap_start(self) -> usize {
        (self.0 >> 48) as usize
    }

    #[inline]
    pub fn stride(self) -> usize {
        if self.level() == 0 { LEAF_STRIDE } else { INNER_STRIDE }
    }

    /// The most slots that a node of this level can have.
    #[inline]
    pub fn count_max(self) -> usize {
        if self.level() == 0 { MAX_LEAF_COUNT } else { MAX_INNER_COUNT }
    }

    /// This word with another count and heap start, as the number that stands in the page.
    #[inline]
    pub fn changed_to(self, count: usize, heap_start: usize) -> u64 {
        self.0 & 0x0000_ffff_ffff_0000 | count as u16 as u64 | (heap_start as u64) << 48
    }

    /// The byte after the last slot, for a count within the limit.
    #[inline]
    pub fn slots_end(self) -> usize {
        let last = if self.level() == 0 { 0 } else { INNER_STRIDE };
        SLOTS_AT + self.count() * self.stride() + last
    }
}

/// A node to read from.
///
/// Every method ends and none panics, whatever the bytes are and even if they change meanwhile. The result
/// then has no meaning, but stays within the documented bounds.
///
/// ```
/// use vellum_access::node::{NODE_BYTES, NodeMut, NodeView, ValueKind};
/// use vellum_base::PageId;
///
/// let mut page = vec![0; NODE_BYTES];
/// let mut leaf = NodeMut::init(&mut page, 0, None, None, PageId(0))?;
/// leaf.insert(b"key", b"value", ValueKind::Inline)?;
///
/// let leaf = NodeView::new(&page[..]);
/// let value = leaf.get(b"key").unwrap();
/// assert_eq!(&page[value.at..value.at + value.length], b"value");
/// # Ok::<(), vellum_access::node::NodeError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct NodeView<B: Bytes> {
    pub(super) bytes: B,
}

impl<B: Bytes> NodeView<B> {
    /// Takes the bytes of a whole page for a node.
    #[inline]
    pub fn new(bytes: B) -> Self {
        Self { bytes }
    }

    /// The bytes of the page.
    #[inline]
    pub fn bytes(self) -> B {
        self.bytes
    }

    /// The height above the leaves, which have level 0.
    #[inline]
    pub fn level(self) -> u8 {
        self.bytes.u8_at(LEVEL_AT)
    }

    /// Whether its slots hold values and not children.
    #[inline]
    pub fn is_leaf(self) -> bool {
        self.level() == 0
    }

    /// The number of slots; at most [`MAX_LEAF_COUNT`] or [`MAX_INNER_COUNT`], whatever the bytes say.
    #[inline]
    pub fn count(self) -> usize {
        let word = self.word();
        word.count().min(word.count_max())
    }

    /// The length in bytes of the prefix, which all keys of the node have in common and which is stored once.
    #[inline]
    pub fn prefix_len(self) -> usize {
        self.word().prefix_length().min(MAX_KEY_BYTES)
    }

    /// Where the value of slot `index` lies. Only for leaves.
    #[inline]
    pub fn value_location(self, index: usize) -> ValueAt {
        let slot = self.slot(index);
        ValueAt { at: slot.at(), length: slot.value_length(), kind: slot.kind() }
    }

    /// The byte in the page where the id of child `index` stands, a multiple of 8. Child `count` is the last
    /// one. Only for inner nodes.
    #[inline]
    pub fn child_place(self, index: usize) -> usize {
        child_place(index)
    }

    /// The number of the child whose id stands at `place`, which [`NodeView::child_place`] gave.
    #[inline]
    pub fn child_index(self, place: usize) -> usize {
        place.saturating_sub(child_place(0)) / INNER_STRIDE
    }

    /// The child whose id stands at byte `place` of the page.
    #[inline]
    pub fn child_at(self, place: usize) -> PageId {
        PageId::referred(self.bytes.u64_at(place))
    }

    /// The children in the order of their keys: one more than there are separators. Empty for a leaf.
    pub fn children(self) -> impl Iterator<Item = PageId> {
        let word = self.word();
        let count = if word.level() == 0 { 0 } else { word.count().min(MAX_INNER_COUNT) + 1 };
        (0..count).map(move |index| self.child_at(child_place(index)))
    }

    /// Appends the key of slot `index`, prefix included, to `target`.
    pub fn append_key(self, index: usize, target: &mut Vec<u8>) {
        self.append_prefix(target);
        self.append_rest_of(self.item(index), target);
    }

    /// Appends what the key of slot `index` has behind the prefix to `target`. Only for leaves.
    #[inline]
    pub(crate) fn append_rest(self, index: usize, target: &mut Vec<u8>) {
        self.append_rest_of(self.slot(index).into(), target);
    }

    #[inline]
    fn append_rest_of(self, item: Item, target: &mut Vec<u8>) {
        let head = item.head.to_be_bytes();
        target.extend_from_slice(head.get(..item.rest_length.min(item.head_bytes)).unwrap_or_default());
        if item.tail_length() > 0 {
            self.bytes.append_to(item.tail_at(), item.tail_length(), target);
        }
    }

    /// The key of slot `index`, prefix included.
    pub fn key(self, index: usize) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.prefix_len() + self.item(index).rest_length);
        self.append_key(index, &mut key);
        key
    }

    /// Appends the value of slot `index`, or the reference to its blob, to `target`. Only for leaves.
    pub fn append_value(self, index: usize, target: &mut Vec<u8>) -> ValueKind {
        let value = self.value_location(index);
        self.bytes.append_to(value.at, value.length, target);
        value.kind
    }

    /// Appends the lower fence, which is exclusive, to `target`; false if there is none.
    pub fn lower_fence(self, target: &mut Vec<u8>) -> bool {
        let exists = self.word().flags() & FLAG_LOWER != 0;
        if exists {
            self.bytes.append_to(self.lower_at(), self.lower_length(), target);
        }
        exists
    }

    /// Appends the prefix of all keys of the node to `target`.
    pub(crate) fn append_prefix(self, target: &mut Vec<u8>) {
        self.bytes.append_to(self.lower_at(), self.prefix_len(), target);
    }

    /// Appends the upper fence, which is inclusive, to `target`; false if there is none.
    pub fn upper_fence(self, target: &mut Vec<u8>) -> bool {
        let rest = self.upper_length().saturating_sub(self.prefix_len());
        self.bytes.append_to(self.lower_at(), self.prefix_len().min(self.upper_length()), target);
        self.bytes.append_to(self.lower_at().saturating_sub(rest), rest, target);
        self.word().flags() & FLAG_UPPER != 0
    }

    /// The lower and the upper fence, as far as there are any.
    pub fn fences(self) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
        let [mut lower, mut upper] = [self.lower_length(), self.upper_length()].map(Vec::with_capacity);
        let lower = self.lower_fence(&mut lower).then_some(lower);
        (lower, self.upper_fence(&mut upper).then_some(upper))
    }

    /// Whether the node has no upper fence.
    #[inline]
    pub fn is_last(self) -> bool {
        self.word().flags() & FLAG_UPPER == 0
    }

    /// Whether the node has no lower fence.
    #[inline]
    pub fn is_first(self) -> bool {
        self.word().flags() & FLAG_LOWER == 0
    }

    /// Whether the record that was just added at `index` continues a run in ascending order: its key comes after all
    /// others of the tree, or right after the key that was added before it.
    #[inline]
    pub fn goes_on(self, index: usize) -> bool {
        let word = self.word();
        if word.flags() & FLAG_UPPER == 0 && index + 1 == word.count() {
            return true;
        }
        let Some(before) = index.checked_sub(1) else { return false };
        // Records are placed from the end of the page towards its beginning.
        let (slot, before) = (self.slot(index), self.slot(before));
        slot.record_bytes() > 0 && before.at() == slot.at() + slot.record_bytes()
    }

    /// Whether `key` lies between the fences, so that it is in this node if it is anywhere.
    #[inline]
    pub fn covers(self, key: &[u8]) -> bool {
        self.compare_lower_fence(key) == Ordering::Less && self.compare_upper_fence(key) != Ordering::Less
    }

    /// Whether the keys right after `key` lie between the fences.
    pub fn covers_after(self, key: &[u8]) -> bool {
        self.compare_lower_fence(key) != Ordering::Greater
            && self.compare_upper_fence(key) == Ordering::Greater
    }

    /// Whether all keys between the fences are less than `key`.
    #[inline]
    pub(crate) fn ends_before(self, key: &[u8]) -> bool {
        self.compare_upper_fence(key) == Ordering::Less
    }

    /// Whether the node may hold `key`: whether it covers the key, but for a separator at the upper fence, which
    /// would leave nothing to the last child.
    pub(super) fn admits(self, key: &[u8]) -> bool {
        self.admits_at(0, key) && self.admits_at(MAX_LEAF_COUNT, key)
    }

    /// [`NodeView::admits`] for a key whose place is known to be at `index`. Except at the ends, the key lies between
    /// its neighbours, and with them between the fences.
    #[inline]
    pub(super) fn admits_at(self, index: usize, key: &[u8]) -> bool {
        let word = self.word();
        let above = index > 0 || self.compare_lower_fence(key) == Ordering::Less;
        let below = index < word.count()
            || match self.compare_upper_fence(key) {
                Ordering::Less => false,
                // A separator there would leave nothing to the last child.
                Ordering::Equal => word.level() == 0,
                Ordering::Greater => true,
            };
        above && below
    }

    /// How the lower fence compares with `key`; less, if there is none.
    // In a damaged node too the fences are what `lower_fence` and `upper_fence` give: a walk from fence to fence must
    // come to an end.
    #[inline(always)]
    fn compare_lower_fence(self, key: &[u8]) -> Ordering {
        if self.word().flags() & FLAG_LOWER == 0 {
            return Ordering::Less;
        }
        let length = self.lower_length();
        // Mostly the first eight bytes differ. If not, and there are no more, the shorter one is the lesser.
        match self.word_at_end(NODE_BYTES - length).cmp(&key_word(key)) {
            Ordering::Equal if length <= 8 => length.cmp(&key.len()),
            Ordering::Equal => self.compare_long(NODE_BYTES - length, length, key),
            unequal => unequal,
        }
    }

    /// How the upper fence compares with `key`; greater, if there is none.
    #[inline(always)]
    fn compare_upper_fence(self, key: &[u8]) -> Ordering {
        let word = self.word();
        if word.flags() & FLAG_UPPER == 0 {
            return Ordering::Greater;
        }
        let [lower_length, length, _] = self.lengths().map(|length| length.min(MAX_KEY_BYTES));
        let at = NODE_BYTES - lower_length;
        let prefix_length = word.prefix_length().min(length);
        let rest_at = at.saturating_sub(length - prefix_length);
        if prefix_length <= lower_length.min(8) {
            let first = |length: usize| u64::MAX.unbounded_shl(64 - 8 * length.min(8) as u32);
            let rest = self.word_at_end(rest_at).unbounded_shr(8 * prefix_length as u32);
            let prefix = self.word_at_end(at) & first(prefix_length);
            match ((prefix | rest) & first(length)).cmp(&key_word(key)) {
                Ordering::Equal if length <= 8 => return length.cmp(&key.len()),
                Ordering::Equal => {}
                unequal => return unequal,
            }
        }
        let (start, rest) = key.split_at_checked(prefix_length).unwrap_or((key, &[]));
        self.compare_long(at, prefix_length, start)
            .then_with(|| self.compare_long(rest_at, length - prefix_length, rest))
    }

    /// How bytes of the node compare with `other`, for the comparisons with fences whose first bytes are equal.
    // Not inlined, so that the comparisons that end with the first bytes are.
    #[inline(never)]
    fn compare_long(self, at: usize, length: usize, other: &[u8]) -> Ordering {
        self.bytes.compare(at, length, other)
    }

    /// The eight bytes from `at` on as a big-endian number; bytes beyond the page count as zero.
    #[inline]
    fn word_at_end(self, at: usize) -> u64 {
        // Read so that it does not leave the page.
        let from = at.min(NODE_BYTES - 8);
        self.bytes.be_word_at(from).unbounded_shl(8 * (at - from) as u32)
    }

    /// Whether the new key `key`, between the fences, with a value of `value_length` bytes has room, after
    /// compaction if need be, and after shortening the prefix to what `key` shares. Exact, not an estimate. In
    /// an inner node the length of the value is ignored.
    pub fn has_room_for(self, key: &[u8], value_length: usize) -> bool {
        let word = self.word();
        let mut prefix = Vec::new();
        self.append_prefix(&mut prefix);
        let common = common_length(&prefix, key);
        let tail = key.len().saturating_sub(common + head_bytes(word.stride()));
        let value = if word.level() == 0 { value_length } else { 0 };
        let need = word.stride() + align(tail.saturating_add(value));
        if common == prefix.len() {
            need <= self.free_bytes()
        } else {
            let last = if word.level() == 0 { 0 } else { INNER_STRIDE };
            let lower_length = if self.is_first() { common } else { self.lower_length() };
            let fences = fence_bytes(lower_length, self.upper_length(), common);
            let used = last + fences + self.records_bytes(0..self.count(), common);
            need.saturating_add(used) <= BODY_BYTES
        }
    }

    /// Whether the prefix may become longer if all keys have the byte `next` after it. If the node has one fence, that
    /// byte of the fence decides.
    pub(super) fn may_lengthen_prefix(self, next: Option<&u8>) -> bool {
        let word = self.word();
        let length = self.prefix_len();
        let is_next = |at: usize| next.is_some_and(|next| self.bytes.u8_at(at) == *next);
        match (word.flags() & FLAG_LOWER != 0, word.flags() & FLAG_UPPER != 0) {
            (false, false) => true,
            (true, false) => length < self.lower_length() && is_next(self.lower_at() + length),
            (false, true) => {
                let rest = self.upper_length().saturating_sub(length);
                rest > 0 && is_next(self.lower_at().saturating_sub(rest))
            }
            (true, true) => false,
        }
    }

    /// Whether `key` begins as all keys of the node do.
    #[inline]
    pub(super) fn has_prefix_of(self, key: &[u8]) -> bool {
        let length = self.prefix_len();
        if length <= 8 {
            return has_short_prefix(key, self.bytes.u64_at(PREFIX_WORD_AT), length);
        }
        key.get(..length).is_some_and(|start| self.bytes.compare(self.lower_at(), length, start).is_eq())
    }

    /// Whether the value of slot `index` can be replaced by one of `value_length` bytes, after compaction if
    /// need be. Only for leaves.
    pub fn has_room_to_replace(self, index: usize, value_length: usize) -> bool {
        let old = self.slot(index);
        align(old.tail_length().saturating_add(value_length)) <= self.free_bytes() + old.record_bytes()
    }

    /// The bytes that the two fences take.
    pub fn fence_bytes(self) -> usize {
        fence_bytes(self.lower_length(), self.upper_length(), self.prefix_len())
    }

    /// The bytes that are free, holes between records included.
    pub fn free_bytes(self) -> usize {
        let heap_used = self.bytes.u16_at(HEAP_USED_AT) as usize;
        NODE_BYTES.saturating_sub(self.word().slots_end()).saturating_sub(heap_used)
    }

    /// The bytes taken by slots, records and fences; the rest of what they share is free.
    pub fn used_bytes(self) -> usize {
        BODY_BYTES - self.free_bytes().min(BODY_BYTES)
    }

    #[inline]
    pub(super) fn word(self) -> Word {
        Word(self.bytes.u64_at(WORD_AT))
    }

    /// The slot `index`. Only for leaves.
    #[inline]
    pub(super) fn slot(self, index: usize) -> Slot {
        Slot(self.bytes.u64_at(SLOTS_AT + index.min(MAX_LEAF_COUNT) * LEAF_STRIDE))
    }

    /// What slot or entry `index` says.
    #[inline]
    pub(super) fn item(self, index: usize) -> Item {
        let word = self.word();
        let at = SLOTS_AT + index.min(MAX_LEAF_COUNT) * word.stride();
        if word.head_bytes() == INNER_HEAD_BYTES {
            self.entry_at(at).into()
        } else {
            Slot(self.bytes.u64_at(at)).into()
        }
    }

    /// The entry at byte `at`.
    #[inline]
    pub(super) fn entry_at(self, at: usize) -> Entry {
        Entry { head: self.bytes.u64_at(at), word: self.bytes.u64_at(at + 8) }
    }

    /// The bytes that some slots and records take in a node with another prefix, as nodes are written now.
    pub(super) fn records_bytes(self, range: Range<usize>, prefix_length: usize) -> usize {
        let word = self.word();
        let size = |index| {
            let item = self.item(index);
            let key_length = word.prefix_length() + item.rest_length;
            record_bytes(word.stride(), key_length, item.value_length(), prefix_length)
        };
        range.map(size).sum()
    }

    /// The lengths of the lower and the upper fence, and the heap bytes in use, as they stand in the page.
    #[inline]
    pub(super) fn lengths(self) -> [usize; 3] {
        let lengths = self.bytes.u64_at(LOWER_LENGTH_AT);
        [0, 16, 32].map(|shift| (lengths >> shift) as u16 as usize)
    }

    pub(super) fn lower_length(self) -> usize {
        (self.bytes.u16_at(LOWER_LENGTH_AT) as usize).min(MAX_KEY_BYTES)
    }

    pub(super) fn upper_length(self) -> usize {
        (self.bytes.u16_at(UPPER_LENGTH_AT) as usize).min(MAX_KEY_BYTES)
    }

    /// Where the lower fence begins, and with it the prefix.
    #[inline]
    pub(super) fn lower_at(self) -> usize {
        NODE_BYTES - self.lower_length()
    }

    /// How the key of slot `index` compares with `key`, without copying it.
    pub fn compare_key(self, index: usize, key: &[u8]) -> Ordering {
        let prefix_length = self.prefix_len();
        let (start, rest) = key.split_at_checked(prefix_length).unwrap_or((key, &[]));
        self.bytes
            .compare(self.lower_at(), prefix_length, start)
            .then_with(|| self.compare_rest(self.item(index), rest))
    }

    /// How the rest of an item's key compares with `rest`.
    #[inline]
    pub(super) fn compare_rest(self, item: Item, rest: &[u8]) -> Ordering {
        let head = key_word(rest) & u64::MAX << (64 - 8 * item.head_bytes);
        match item.head.cmp(&head) {
            // Where the heads agree and one key ends within its head, it is a prefix of the other.
            Ordering::Equal if item.rest_length.min(rest.len()) <= item.head_bytes => {
                item.rest_length.cmp(&rest.len())
            }
            Ordering::Equal => {
                let tail = rest.get(item.head_bytes..).unwrap_or(&[]);
                self.bytes.compare(item.tail_at(), item.tail_length(), tail)
            }
            unequal => unequal,
        }
    }
}

/// The byte in an inner node where the id of child `index` stands.
#[inline]
pub(super) fn child_place(index: usize) -> usize {
    SLOTS_AT + index.min(MAX_INNER_COUNT) * INNER_STRIDE + 8
}

impl<'a> NodeView<&'a [u8]> {
    /// The value of slot `index`, or the reference to its blob; `None` if the slot is damaged. Only for leaves.
    #[inline]
    pub(crate) fn value(self, index: usize) -> Option<(ValueKind, &'a [u8])> {
        let ValueAt { at, length, kind } = self.value_location(index);
        self.bytes.get(at..at + length).map(|bytes| (kind, bytes))
    }

    /// The bytes from the page header to the end of the slots, and those from the heap on: all but the free bytes
    /// between them. Of a damaged node the first part is all of it.
    pub(crate) fn parts(self) -> (&'a [u8], &'a [u8]) {
        let body = self.bytes.get(HEADER_BYTES..).unwrap_or_default();
        let (slots_end, heap_start) = (self.word().slots_end(), self.word().heap_start());
        let heap = self.bytes.get(heap_start..).filter(|_| slots_end <= heap_start);
        let front = self.bytes.get(HEADER_BYTES..slots_end);
        front.zip(heap).unwrap_or((body, &[]))
    }
}
