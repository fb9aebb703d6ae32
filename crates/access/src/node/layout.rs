//! Where things are in the page; see the tables in the documentation of the parent module.

use vellum_base::{HEADER_BYTES, PAGE_SIZE};

/// The size of a node in bytes: one page.
pub const NODE_BYTES: usize = PAGE_SIZE;
/// The longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 1024;
/// The longest value that is stored in a leaf itself, in bytes.
pub const MAX_INLINE_VALUE_BYTES: usize = 1024;
/// The size of the reference that stands for the value of a blob, in bytes.
pub const BLOB_REFERENCE_BYTES: usize = 24;
/// The largest sum of the lengths of a key and its inline value, in bytes.
pub const MAX_INLINE_RECORD_BYTES: usize = BODY_BYTES - 2 * MAX_KEY_BYTES - LEAF_STRIDE;
/// The most slots that a leaf can have.
pub const MAX_LEAF_COUNT: usize = BODY_BYTES / LEAF_STRIDE;
/// The most separators that an inner node can have.
pub const MAX_INNER_COUNT: usize = BODY_BYTES / INNER_STRIDE - 1;

/// Where the 64-bit word with count, prefix length, level, flags and heap start stands.
pub(super) const WORD_AT: usize = 32;
pub(super) const COUNT_AT: usize = 32;
pub(super) const PREFIX_LENGTH_AT: usize = 34;
pub(super) const LEVEL_AT: usize = 36;
pub(super) const FLAGS_AT: usize = 37;
pub(super) const HEAP_START_AT: usize = 38;
pub(super) const PREFIX_WORD_AT: usize = 40;
pub(super) const LOWER_LENGTH_AT: usize = 48;
pub(super) const UPPER_LENGTH_AT: usize = 50;
pub(super) const HEAP_USED_AT: usize = 52;
pub(super) const RESERVED_AT: usize = 54;
pub(super) const HINTS_AT: usize = 64;
pub(super) const SLOTS_AT: usize = 128;

pub(super) const HINT_COUNT: usize = 16;
pub(super) const HINT_BYTES: usize = 4;
pub(super) const LEAF_STRIDE: usize = 8;
pub(super) const INNER_STRIDE: usize = 16;
/// How many bytes slots, records and fences share.
pub(super) const BODY_BYTES: usize = NODE_BYTES - SLOTS_AT;
/// How many bytes of a key the slot of a leaf holds, and how many the entry of an inner node.
pub(super) const HEAD_BYTES: usize = 4;
pub(super) const INNER_HEAD_BYTES: usize = 8;

pub(super) const FLAG_LOWER: u8 = 1;
pub(super) const FLAG_UPPER: u8 = 2;
/// A leaf has fingerprints in the place of hints.
pub(super) const FLAG_FINGERPRINTS: u8 = 4;
/// An inner node has entries with heads of eight bytes; without it, slots as in leaves, as earlier versions wrote them.
pub(super) const FLAG_LONG_HEADS: u8 = 8;
/// So many have room there, a byte each.
pub(super) const FINGERPRINT_COUNT: usize = 64;

/// The value code of a reference to a blob.
const BLOB_CODE: usize = MAX_INLINE_VALUE_BYTES + 1;
pub(super) const LENGTH_MASK: u64 = 0x7ff;
const REST_SHIFT: u32 = 21;
const VALUE_SHIFT: u32 = 10;
pub(super) const AT_MASK: u64 = 0x3ff;
/// Where place and length stand in the second word of an inner node's entry, above the child.
pub(super) const ENTRY_AT_SHIFT: u32 = 40;
pub(super) const ENTRY_REST_SHIFT: u32 = 53;

const _: () = {
    // The hints fill one cache line, and slots begin at a cache line.
    assert!(HINTS_AT.is_multiple_of(64) && HINT_COUNT * HINT_BYTES == 64 && SLOTS_AT == HINTS_AT + 64);
    assert!(WORD_AT >= HEADER_BYTES && RESERVED_AT < HINTS_AT);
    // These three are read at once.
    assert!(LOWER_LENGTH_AT.is_multiple_of(8) && UPPER_LENGTH_AT == LOWER_LENGTH_AT + 2);
    assert!(HEAP_USED_AT == LOWER_LENGTH_AT + 4);
    // Two maximal fences and one maximal record fit into a leaf; none of the parts needs padding.
    assert!(MAX_KEY_BYTES.is_multiple_of(4) && MAX_INLINE_RECORD_BYTES.is_multiple_of(4));
    assert!(2 * MAX_KEY_BYTES + LEAF_STRIDE + MAX_INLINE_RECORD_BYTES <= BODY_BYTES);
    assert!(MAX_INLINE_RECORD_BYTES >= MAX_KEY_BYTES + BLOB_REFERENCE_BYTES);
    // Two maximal fences, one maximal separator and the last child fit into an inner node.
    assert!(2 * MAX_KEY_BYTES + 2 * INNER_STRIDE + MAX_KEY_BYTES <= BODY_BYTES);
    // Lengths and places fit into their bits, and hints reach all slots.
    assert!(MAX_KEY_BYTES as u64 <= LENGTH_MASK && BLOB_CODE as u64 <= LENGTH_MASK);
    assert!(NODE_BYTES <= (AT_MASK as usize + 1) * 4);
    assert!(hint_shift(MAX_LEAF_COUNT) == 5 && hint_shift(MAX_INNER_COUNT) == 4);
};

/// The slot of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slot(pub u64);

/// Stands for the slot of a key that is absent: no slot has such lengths.
/// (A pair of numbers is returned in registers; an `Option` would go through memory.)
pub(super) const ABSENT: Slot = Slot(u64::MAX);

impl Slot {
    /// A slot for a key with this rest. `at` is a multiple of 4.
    #[inline]
    pub fn new(rest: &[u8], value_code: usize, at: usize) -> Self {
        Self::with_head(head_of(rest), rest.len(), value_code, at)
    }

    /// A slot for a key whose rest has this head and length. `at` is a multiple of 4.
    #[inline]
    pub fn with_head(head: u32, rest_length: usize, value_code: usize, at: usize) -> Self {
        let lengths = (rest_length as u64) << REST_SHIFT | (value_code as u64) << VALUE_SHIFT;
        Self((head as u64) << 32 | lengths | (at / 4) as u64)
    }

    /// The least slot that a key with this head and this length of the rest could have, if the length is
    /// at most 4; else the least one of all keys with this head and more than 4 bytes.
    ///
    /// Slots of shorter keys with the same head are less, whatever their records.
    #[inline]
    pub fn probe(head: u32, rest_length: usize) -> Self {
        Self((head as u64) << 32 | (rest_length.min(HEAD_BYTES + 1) as u64) << REST_SHIFT)
    }

    /// Whether the head of a probe, or of a slot, is all that its key has after the prefix.
    #[inline]
    pub fn is_whole(self) -> bool {
        self.rest_length() <= HEAD_BYTES
    }

    /// Whether head and length are those that `probe` was made of.
    #[inline]
    pub fn agrees(self, probe: Self) -> bool {
        self.0 >> REST_SHIFT == probe.0 >> REST_SHIFT
    }

    #[inline]
    pub fn head(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline]
    pub fn rest_length(self) -> usize {
        (self.0 >> REST_SHIFT & LENGTH_MASK) as usize
    }

    /// How many bytes of the key are in the heap.
    #[inline]
    pub fn tail_length(self) -> usize {
        self.rest_length().saturating_sub(HEAD_BYTES)
    }

    #[inline]
    pub fn value_code(self) -> usize {
        (self.0 >> VALUE_SHIFT & LENGTH_MASK) as usize
    }

    #[inline]
    pub fn kind(self) -> ValueKind {
        if self.value_code() < BLOB_CODE { ValueKind::Inline } else { ValueKind::Blob }
    }

    #[inline]
    pub fn value_length(self) -> usize {
        value_length(self.value_code())
    }

    /// This slot with another key.
    pub fn with_rest(self, head: u32, rest_length: usize) -> Self {
        Self((head as u64) << 32 | (rest_length as u64) << REST_SHIFT | self.0 & ((1 << REST_SHIFT) - 1))
    }

    /// This slot with its record at another place.
    pub fn with_place(self, at: usize) -> Self {
        Self(self.0 & !AT_MASK | (at / 4) as u64)
    }

    /// Where the record, and with it the value, begins.
    #[inline]
    pub fn at(self) -> usize {
        (self.0 & AT_MASK) as usize * 4
    }

    #[inline]
    pub fn tail_at(self) -> usize {
        self.at() + self.value_length()
    }

    /// The bytes of heap that the record takes.
    #[inline]
    pub fn record_bytes(self) -> usize {
        align(self.value_length() + self.tail_length())
    }
}

/// What the bytes of a value mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueKind {
    /// The bytes are the value itself.
    Inline,
    /// The bytes are a reference to the value, [`BLOB_REFERENCE_BYTES`] long, which this module does not interpret.
    Blob,
}

/// The value code of a slot; `None` if the value is too long or has not the length of a reference.
pub(super) fn value_code(value: &[u8], kind: ValueKind) -> Option<usize> {
    match kind {
        ValueKind::Inline => (value.len() <= MAX_INLINE_VALUE_BYTES).then_some(value.len()),
        ValueKind::Blob => (value.len() == BLOB_REFERENCE_BYTES).then_some(BLOB_CODE),
    }
}

/// How many bytes of a record are the value, by its code.
#[inline]
pub(super) fn value_length(value_code: usize) -> usize {
    if value_code < BLOB_CODE { value_code } else { BLOB_REFERENCE_BYTES }
}

/// Whether a value code means something.
pub(super) fn is_value_code(value_code: usize) -> bool {
    value_code <= BLOB_CODE
}

/// Rounds up to a multiple of 4.
#[inline]
pub(super) const fn align(bytes: usize) -> usize {
    bytes.saturating_add(3) & !3
}

/// The base-2 logarithm of the number of slots between two hints. Has no meaning for a count beyond the limits.
#[cfg_attr(not(test), expect(clippy::indexing_slicing, reason = "a remainder by the length"))]
#[inline]
pub(super) const fn hint_shift(count: usize) -> u32 {
    SHIFTS[count.wrapping_sub(1) / HINT_COUNT % SHIFTS.len()] as u32
}

/// [`hint_shift`] by count: one entry for sixteen counts each, from 1 on.
#[cfg_attr(not(test), expect(clippy::indexing_slicing, reason = "computed by the compiler"))]
const SHIFTS: [u8; 32] = {
    let mut shifts = [0; 32];
    let mut index = 1;
    while index < shifts.len() {
        shifts[index] = usize::BITS as u8 - index.leading_zeros() as u8;
        index += 1;
    }
    shifts
};

/// The heap that the two fences take: the prefix, which they share, is stored once.
#[inline]
pub(super) const fn fence_bytes(lower_length: usize, upper_length: usize, prefix_length: usize) -> usize {
    align(lower_length + upper_length.saturating_sub(prefix_length))
}

/// How many bytes two keys have in common at their beginning.
pub(super) fn common_length(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// The head of a key whose prefix has been cut off.
#[inline]
pub(super) fn head_of(rest: &[u8]) -> u32 {
    (key_word(rest) >> 32) as u32
}

/// The first 8 bytes of a key as a big-endian number, zero-padded.
#[inline]
pub(super) fn key_word(key: &[u8]) -> u64 {
    if let Some(first) = key.first_chunk() {
        return u64::from_be_bytes(*first);
    }
    if let (Some(first), Some(last)) = (key.first_chunk(), key.last_chunk()) {
        // The last four bytes overlap the first four: push those out at the top.
        let low = (u32::from_be_bytes(*last) as u64) << (8 * (8 - key.len()));
        return (u32::from_be_bytes(*first) as u64) << 32 | low & 0xffff_ffff;
    }
    let word = key.iter().fold(0, |word, &byte| word << 8 | byte as u64);
    word.checked_shl(64 - 8 * key.len() as u32).unwrap_or(0)
}

/// Whether `key` begins with a prefix of up to 8 bytes, given as the word `prefix_word`.
#[inline]
pub(super) fn has_short_prefix(key: &[u8], prefix_word: u64, length: usize) -> bool {
    let unlike = key_word(key) ^ prefix_word;
    length <= key.len() && unlike.checked_shr(64 - 8 * length as u32).unwrap_or(0) == 0
}

/// Fills the whole of a record: a value, the tail of its key, and zeroes.
#[inline]
pub(super) fn fill_record(record: &mut [u8], value: &[u8], tail: &[u8]) {
    if let Some(padded) = record.last_chunk_mut::<4>() {
        *padded = [0; 4];
    }
    if let Some((to, after)) = record.split_at_mut_checked(value.len()) {
        to.copy_from_slice(value);
        after.iter_mut().zip(tail).for_each(|(to, from)| *to = *from);
    }
}

/// The head of `key` after its first `prefix_length` bytes; `word` is its [`key_word`].
#[inline]
pub(super) fn head_after(key: &[u8], word: u64, prefix_length: usize) -> u32 {
    if prefix_length <= 4 || key.len() <= 8 {
        // In two shifts, as one by 64 bits would be none.
        let half = 4 * prefix_length as u32;
        return (word.wrapping_shl(half).wrapping_shl(half) >> 32) as u32;
    }
    let rest = key.get(prefix_length..).unwrap_or(&[]);
    match (rest.first_chunk(), key.last_chunk()) {
        (Some(head), _) => u32::from_be_bytes(*head),
        (None, Some(last)) => ((u32::from_be_bytes(*last) as u64) << (8 * (HEAD_BYTES - rest.len()))) as u32,
        (None, None) => 0,
    }
}

/// [`head_after`] with eight bytes.
#[inline]
pub(super) fn long_head_after(key: &[u8], word: u64, prefix_length: usize) -> u64 {
    if key.len() <= 8 {
        let half = 4 * prefix_length as u32;
        return word.wrapping_shl(half).wrapping_shl(half);
    }
    let rest = key.get(prefix_length..).unwrap_or(&[]);
    match (rest.first_chunk(), key.last_chunk()) {
        (Some(head), _) => u64::from_be_bytes(*head),
        // Shorter than eight bytes, and the last ones of the key.
        (None, Some(last)) => u64::from_be_bytes(*last).checked_shl(64 - 8 * rest.len() as u32).unwrap_or(0),
        (None, None) => 0,
    }
}

/// How many bytes of a key an entry of so many bytes holds, as nodes are written now.
#[inline]
pub(super) const fn head_bytes(stride: usize) -> usize {
    if stride == LEAF_STRIDE { HEAD_BYTES } else { INNER_HEAD_BYTES }
}

/// The bytes of a slot or an entry, which are `stride`, and of its record.
#[inline]
pub(super) fn record_bytes(
    stride: usize,
    key_length: usize,
    value_length: usize,
    prefix_length: usize,
) -> usize {
    stride + align(key_length.saturating_sub(prefix_length + head_bytes(stride)) + value_length)
}

/// The bytes of slots, records and fences that a node is filled with to `percent`.
pub(super) fn fill_limit(percent: u8) -> usize {
    BODY_BYTES * usize::from(percent) / 100
}
