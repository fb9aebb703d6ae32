//! The entry of an inner node, and what code for nodes of all kinds sees of a slot or an entry.
//!
//! An entry has a head of eight bytes, and one word with the child, the place of the record and the length of the rest. The
//! nodes of earlier files have a slot as in leaves instead, with a head of four bytes, and the child beside it: they lack
//! [`FLAG_LONG_HEADS`]. They are read as they are, and written anew at their first change.

use super::layout::*;
use vellum_base::PageId;

const _: () = {
    assert!(ENTRY_AT_SHIFT == PageId::BITS && ENTRY_REST_SHIFT == 64 - LENGTH_MASK.count_ones());
    assert!(ENTRY_AT_SHIFT + AT_MASK.count_ones() <= ENTRY_REST_SHIFT);
};

/// The entry of a separator, without the child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub head: u64,
    /// The second word. The length of the rest is in its upper bits.
    pub word: u64,
}

impl Entry {
    #[inline]
    pub fn rest_length(self) -> usize {
        (self.word >> ENTRY_REST_SHIFT) as usize
    }

    /// Where the record begins, which is the tail.
    #[inline]
    pub fn at(self) -> usize {
        (self.word >> ENTRY_AT_SHIFT & AT_MASK) as usize * 4
    }

    #[inline]
    pub fn tail_length(self) -> usize {
        self.rest_length().saturating_sub(INNER_HEAD_BYTES)
    }
}

/// What a slot or an entry says of its key and its record, whatever the layout of the node is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    /// The first bytes of the rest as a big-endian number, padded with zeroes.
    pub head: u64,
    /// How many bytes of the rest may be in the head: the others are the tail.
    pub head_bytes: usize,
    pub rest_length: usize,
    /// Zero in inner nodes.
    pub value_code: usize,
    /// Where the record begins.
    pub at: usize,
}

impl From<Slot> for Item {
    #[inline]
    fn from(slot: Slot) -> Self {
        Self {
            head: (slot.head() as u64) << 32,
            head_bytes: HEAD_BYTES,
            rest_length: slot.rest_length(),
            value_code: slot.value_code(),
            at: slot.at(),
        }
    }
}

impl From<Entry> for Item {
    #[inline]
    fn from(entry: Entry) -> Self {
        Self {
            head: entry.head,
            head_bytes: INNER_HEAD_BYTES,
            rest_length: entry.rest_length(),
            value_code: 0,
            at: entry.at(),
        }
    }
}

impl Item {
    /// That of a key with this rest.
    #[inline]
    pub fn new(rest: &[u8], head_bytes: usize, value_code: usize, at: usize) -> Self {
        let head = key_word(rest) & u64::MAX << (64 - 8 * head_bytes);
        Self { head, head_bytes, rest_length: rest.len(), value_code, at }
    }

    #[inline]
    pub fn tail_length(self) -> usize {
        self.rest_length.saturating_sub(self.head_bytes)
    }

    #[inline]
    pub fn value_length(self) -> usize {
        value_length(self.value_code)
    }

    #[inline]
    pub fn tail_at(self) -> usize {
        self.at + self.value_length()
    }

    /// The bytes of heap that the record takes.
    #[inline]
    pub fn record_bytes(self) -> usize {
        align(self.value_length() + self.tail_length())
    }

    /// The first byte of the rest, if it has one.
    pub fn first_byte(self) -> Option<u8> {
        (self.rest_length > 0).then_some((self.head >> 56) as u8)
    }
}
