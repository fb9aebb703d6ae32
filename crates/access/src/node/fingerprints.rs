//! Fingerprints: leaves of few records are searched by a hash of the whole key.
//!
//! In a leaf of up to 64 records whose keys go beyond their heads, 64 fingerprints of a byte stand in the place of the
//! hints: fingerprint `i` is the lowest byte of the hash of the key of slot `i`, prefix included, so that it stays what it
//! is when the prefix changes; those after the last are zero. All are compared at once, and a lookup of one key then reads the
//! one record that it is about. A search by heads would read the tail of another record for each comparison of keys that tie
//! in their heads, one cache miss after the other. Searches for a place in the order go by heads all the same.
//!
//! After the hash leaves of Mueller, Benson, Leis, *B-Trees Are Back: Engineering Fast and Pageable Node Layouts*, SIGMOD 2025,
//! and the fingerprints of Oukid et al., *FPTree*, SIGMOD 2016. Unlike those this leaf stays sorted.

use super::{
    fault::NodeFault,
    layout::*,
    shape::Shape,
    view::{NodeView, Word},
    write::NodeMut,
};
use std::cmp::Ordering;
use vellum_base::{Bytes, checksum};

/// The fingerprint of a key.
#[inline]
fn fingerprint(key: &[u8]) -> u8 {
    checksum(key) as u8
}

/// The fingerprints of a node that is being built, as far as they are known without reading the keys again.
pub(super) struct Known {
    fingerprints: [u8; FINGERPRINT_COUNT],
    count: usize,
}

impl Known {
    pub const NONE: Self = Self { fingerprints: [0; FINGERPRINT_COUNT], count: 0 };

    /// Adds that of the slot which comes next, `count` being the number of slots before it.
    #[inline]
    pub fn push(&mut self, count: usize, key: &[u8]) {
        self.set(count, fingerprint(key));
    }

    /// [`push`](Self::push) for slot `index` of another leaf, if that has fingerprints.
    #[inline]
    pub fn push_from(&mut self, count: usize, source: NodeView<&[u8]>, index: usize) {
        if source.word().has_fingerprints() {
            self.set(count, source.bytes.u8_at(place_of(index)));
        }
    }

    #[inline]
    fn set(&mut self, count: usize, fingerprint: u8) {
        if self.count == count
            && let Some(place) = self.fingerprints.get_mut(count)
        {
            *place = fingerprint;
            self.count += 1;
        }
    }
}

/// Where the fingerprint of slot `index` stands.
const fn place_of(index: usize) -> usize {
    HINTS_AT + index
}

impl<B: Bytes> NodeView<B> {
    /// The number of the slot of `key` in a leaf with fingerprints, and the slot itself or, if there is none, [`ABSENT`].
    ///
    /// If the leaf has both fences, `key` lies between them and so has the prefix, which is not compared.
    #[inline(always)]
    pub(super) fn search_fingerprints(self, word: Word, key: &[u8]) -> (usize, Slot) {
        let prefix_length = word.prefix_length();
        if !word.is_closed() && self.prefix_order(prefix_length, key, key_word(key)) != Ordering::Equal {
            return (0, ABSENT);
        }
        let tail = key.get(prefix_length + HEAD_BYTES..).unwrap_or_default();
        let is_it =
            |(_, slot): &(usize, Slot)| self.bytes.compare(slot.tail_at(), slot.tail_length(), tail).is_eq();
        self.candidates(word, key).find(is_it).unwrap_or((0, ABSENT))
    }

    /// The slots of a leaf with fingerprints that have the fingerprint, the head and the length of `key`, each with its number.
    #[inline(always)]
    pub(super) fn candidates(self, word: Word, key: &[u8]) -> impl Iterator<Item = (usize, Slot)> {
        let probe = Slot::new(key.get(word.prefix_length()..).unwrap_or_default(), 0, 0);
        let mut equal = self.bytes.equal_of_64(HINTS_AT, fingerprint(key));
        std::iter::from_fn(move || {
            while equal != 0 {
                let index = equal.trailing_zeros() as usize;
                equal &= equal - 1;
                let slot = self.slot_at(SLOTS_AT + index * LEAF_STRIDE);
                if index < word.count() && slot.agrees(probe) {
                    return Some((index, slot));
                }
            }
            None
        })
    }
}

impl NodeMut<'_> {
    /// Writes hints or, if they find the records of this leaf faster, fingerprints, for all slots of a new node.
    pub(super) fn write_guide(&mut self, known: Known) {
        let view = self.view();
        let count = view.count();
        let pays = view.is_leaf()
            && (1..=FINGERPRINT_COUNT).contains(&count)
            && (0..count).any(|index| !view.slot(index).is_whole());
        if !pays {
            return self.write_hints(0);
        }
        let Known { mut fingerprints, count: first } = known;
        let mut key = Vec::new();
        for (index, to) in (0..count).zip(&mut fingerprints).skip(first) {
            key.clear();
            view.append_key(index, &mut key);
            *to = fingerprint(&key);
        }
        self.put(FLAGS_AT, &[view.word().flags() | FLAG_FINGERPRINTS]);
        self.put(HINTS_AT, &fingerprints);
    }

    /// Adds the fingerprint of a key whose slot was opened at `index` of a leaf with fingerprints, or of one that gets its
    /// first key; false if the node has hints.
    #[inline]
    pub(super) fn note_added(&mut self, before: &Shape, index: usize, key: &[u8]) -> bool {
        let (word, count) = (before.word, before.count);
        if !word.has_fingerprints() {
            let begins = count == 0
                && word.level() == 0
                && key.len().saturating_sub(word.prefix_length()) > HEAD_BYTES;
            if !begins {
                return false;
            }
            self.put(FLAGS_AT, &[word.flags() | FLAG_FINGERPRINTS]);
            self.put(HINTS_AT, &[0; FINGERPRINT_COUNT]);
        }
        if count >= FINGERPRINT_COUNT {
            self.put(FLAGS_AT, &[word.flags() & !FLAG_FINGERPRINTS]);
            self.write_hints(0);
            return true;
        }
        self.shift(place_of(index), place_of(count), place_of(index + 1));
        self.put(place_of(index), &[fingerprint(key)]);
        true
    }

    /// Removes the fingerprint of a slot that was removed.
    pub(super) fn forget_fingerprint(&mut self, index: usize) {
        self.shift(place_of(index + 1), place_of(FINGERPRINT_COUNT), place_of(index));
        self.put(place_of(FINGERPRINT_COUNT - 1), &[0]);
    }

    /// Forgets the fingerprints after the first `count`.
    pub(super) fn keep_fingerprints(&mut self, count: usize) {
        self.put(place_of(count), [0; FINGERPRINT_COUNT].get(count..).unwrap_or_default());
    }
}

/// Checks that each fingerprint is that of its key.
pub(super) fn check_fingerprints(view: NodeView<&[u8]>, shape: &Shape) -> Result<(), NodeFault> {
    let is_right = |index: usize| {
        let due = if index < shape.count { fingerprint(&view.key(index)) } else { 0 };
        view.bytes.u8_at(place_of(index)) == due
    };
    if shape.count > FINGERPRINT_COUNT {
        return Err(NodeFault::Count { count: shape.count });
    }
    match (0..FINGERPRINT_COUNT).find(|index| !is_right(*index)) {
        Some(index) => Err(NodeFault::Hint { index }),
        None => Ok(()),
    }
}
