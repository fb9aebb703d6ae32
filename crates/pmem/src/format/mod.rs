//! The layout of records in blocks: of one size ([`Fixed`](fixed::Fixed)) or of any ([`Variable`](variable::Variable)).
//!
//! Both share the record itself: a sequence number, two checksums, the word that was changed last, the key and the
//! value, each padded to whole words. They differ in what says that a record must be right, an occupancy bit or a word
//! of a log, and in how space in a block is used up. A block is written once, from its start page round to the page
//! before it; places are not reused before the whole block is free, except for those that recovery finds unused.

pub mod fixed;
pub mod large;
pub mod variable;

use crate::{
    error::{Damage, Result},
    layout::{Geometry, ONE_FENCE_BYTES_MAX, Place, RECORD_HEAD_BYTES, record_sum},
    medium::{Lane, Medium, Site},
    memory::{WORD, equal_bytes, load_bytes, padded, words_of},
    superblock::Shape,
};
use std::sync::atomic::Ordering;

/// A record in the memory of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// The offset of its sequence number.
    pub at: u64,
    /// The length of its key.
    pub key_bytes: usize,
    /// The length of its value.
    pub value_bytes: usize,
}

impl Record {
    /// The length in bytes, including its head.
    #[inline]
    pub fn bytes(&self) -> usize {
        RECORD_HEAD_BYTES + padded(self.key_bytes) + padded(self.value_bytes)
    }

    /// The offset of its checksums.
    #[inline]
    pub fn sums_at(&self) -> u64 {
        self.at + 8
    }

    /// The offset of the copy of the word that was changed last in its value.
    #[inline]
    pub fn changed_word_at(&self) -> u64 {
        self.at + 16
    }

    /// The offset of its value.
    #[inline]
    pub fn value_at(&self) -> u64 {
        self.at + (RECORD_HEAD_BYTES + padded(self.key_bytes)) as u64
    }

    /// Its sequence number.
    #[inline]
    pub fn sequence<M: Medium>(&self, medium: &M) -> u64 {
        // Acquire: not older than the entry that led here; data read after it is validated.
        medium.memory().word(self.at).load(Ordering::Acquire)
    }

    /// Whether its key is `key`.
    #[inline]
    pub fn has_key<M: Medium>(&self, medium: &M, key: &[u8]) -> bool {
        let at = self.at + RECORD_HEAD_BYTES as u64;
        self.key_bytes == key.len() && equal_bytes(medium.memory().words(at, words_of(self.key_bytes)), key)
    }

    /// Copies its key.
    pub fn load_key<M: Medium>(&self, medium: &M, key: &mut Vec<u8>) {
        key.resize(self.key_bytes, 0);
        let at = self.at + RECORD_HEAD_BYTES as u64;
        load_bytes(medium.memory().words(at, words_of(self.key_bytes)), key);
    }

    /// Copies its value.
    #[inline]
    pub fn load_value<M: Medium>(&self, medium: &M, value: &mut Vec<u8>) {
        value.resize(self.value_bytes, 0);
        load_bytes(medium.memory().words(self.value_at(), words_of(self.value_bytes)), value);
    }

    /// Whether one of its checksums matches what was read of it.
    pub fn is_sound<M: Medium>(&self, medium: &M, key: &[u8], value: &[u8]) -> bool {
        self.sound_sum(medium, key, value).is_some()
    }

    /// Whether what was read of it is right, and everything that was acknowledged: see `update.rs`.
    pub fn judge<M: Medium>(&self, medium: &M, key: &[u8], value: &[u8]) -> Judgement {
        let memory = medium.memory();
        let sequence = memory.word(self.at).load(Ordering::Relaxed);
        let sums = memory.word(self.sums_at()).load(Ordering::Relaxed);
        let (before, after) = (sums as u32, (sums >> 32) as u32);
        match record_sum(sequence, key, value) {
            sum if sum == after => Judgement::Sound,
            sum if sum != before => Judgement::Unsound,
            _ if value.len() > ONE_FENCE_BYTES_MAX => Judgement::Sound,
            _ => {
                let word = memory.word(self.changed_word_at()).load(Ordering::Relaxed);
                let found = find_changed_word(value, word, |value| record_sum(sequence, key, value) == after);
                found.map_or(Judgement::Sound, |number| Judgement::Late { number, word })
            }
        }
    }

    /// The checksum of what was read of it, if one of the stored ones matches.
    pub fn sound_sum<M: Medium>(&self, medium: &M, key: &[u8], value: &[u8]) -> Option<u32> {
        let memory = medium.memory();
        let sum = record_sum(memory.word(self.at).load(Ordering::Relaxed), key, value);
        let sums = memory.word(self.sums_at()).load(Ordering::Relaxed);
        (sums as u32 == sum || (sums >> 32) as u32 == sum).then_some(sum)
    }

    /// Writes it to a place to which nothing leads, not fenced: after a word, if one is given, and followed by `behind`
    /// bytes of zeroes.
    #[inline]
    pub fn write<M: Medium>(
        &self,
        medium: &M,
        lane: &mut Lane,
        site: Site,
        (word, behind): (Option<u64>, usize),
        (sequence, sums): (u64, u64),
        (key, value): (&[u8], &[u8]),
    ) {
        // The index leads to it only after a fence, by a release store.
        let (sequence, sums) = (sequence.to_le_bytes(), sums.to_le_bytes());
        let word = word.map(u64::to_le_bytes);
        let before: &[u8] = word.as_ref().map_or(&[], |word| word);
        let at = self.at - before.len() as u64;
        medium.write(lane, site, at, &[before, &sequence, &sums, &[0; WORD], key, value], behind);
    }
}

/// The verdict on a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judgement {
    /// It is right.
    Sound,
    /// A crash interrupted a change of one word that may have been acknowledged: this word of the value is to become
    /// `word`.
    Late {
        /// The number of the word in the value.
        number: usize,
        /// Its new content.
        word: u64,
    },
    /// It is damaged, or was never completely written.
    Unsound,
}

/// The word of a value that has to be replaced for the value to be right, if any.
fn find_changed_word(value: &[u8], word: u64, is_right: impl Fn(&[u8]) -> bool) -> Option<usize> {
    let mut changed = value.to_vec();
    (0..words_of(value.len())).find(|number| {
        replace_word(&mut changed, *number, word);
        let found = is_right(&changed);
        let from = number * WORD;
        let to = value.len().min(from + WORD);
        if let (Some(there), Some(was)) = (changed.get_mut(from..to), value.get(from..to)) {
            there.copy_from_slice(was);
        }
        found
    })
}

/// Replaces one word of a value; the last word may have fewer than eight bytes.
pub fn replace_word(value: &mut [u8], number: usize, word: u64) {
    if let Some(chunk) = value.chunks_mut(WORD).nth(number) {
        chunk.iter_mut().zip(word.to_le_bytes()).for_each(|(to, from)| *to = from);
    }
}

/// An item found by walking a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Walked {
    /// A record that is not retracted, and whether it must be right. A record that need not be was perhaps never
    /// completely written: if it is right, it counts, and otherwise it does not exist.
    Record(Place, Record, bool),
    /// A retracted record, with its size in units.
    Retracted(u32),
    /// Something is damaged; the rest of its page cannot be interpreted.
    Damage(Damage),
}

/// Where the next record goes.
pub enum Next {
    /// At this place, followed by a number of unused bytes.
    At(Place, Record, usize),
    /// The block is used up.
    BlockFull,
    /// In this number of separate blocks.
    Large(u64),
}

/// The layout of the records of a store: [`Fixed`](fixed::Fixed) or [`Variable`](variable::Variable).
pub trait Layout: Format {
    /// A key.
    type Key: ?Sized + AsRef<[u8]>;
    /// A value.
    type Value: ?Sized + AsRef<[u8]>;
}

/// The format of records in blocks. All functions take the medium and the geometry, and keep no state.
pub trait Format: Sized + Send + Sync + 'static {
    /// A client's position in its block.
    type Cursor: Send + std::fmt::Debug;

    /// The shape of records.
    fn shape() -> Shape;

    /// The size of a block in units, by which its dead share is measured.
    fn units_of_block(geometry: Geometry) -> u32;

    /// The size of a record in units, with the gap after it.
    fn units(record: &Record) -> u32;

    /// Prepares a block that was handed out, whatever it was before; a fresh one reads as zeroes. `checksums` says
    /// whether records carry checksums.
    ///
    /// # Errors
    /// If the changes cannot be made durable.
    fn format<M: Medium>(
        medium: &M,
        geometry: Geometry,
        lane: &mut Lane,
        block: u64,
        is_fresh: bool,
        checksums: bool,
    ) -> Result<()>;

    /// The initial position in a formatted block, starting at a page.
    fn begin(geometry: Geometry, block: u64, page: u32) -> Self::Cursor;

    /// The position in a block that a client gave back.
    fn resume(geometry: Geometry, block: u64, spare: &[u64]) -> Self::Cursor;

    /// The block of a position.
    fn block(cursor: &Self::Cursor) -> u64;

    /// The unused part of the block of a position; none if it is used up.
    fn suspend(cursor: &Self::Cursor) -> Option<Box<[u64]>>;

    /// Allocates the place for a record of these lengths.
    ///
    /// # Errors
    /// If a page cannot be prepared durably.
    fn next<M: Medium>(
        medium: &M,
        geometry: Geometry,
        lane: &mut Lane,
        cursor: &mut Self::Cursor,
        key_bytes: usize,
        value_bytes: usize,
    ) -> Result<Next>;

    /// Prefetches what a thread that accesses the record of a place reads first.
    fn prefetch<M: Medium>(medium: &M, geometry: Geometry, place: Place);

    /// The record of a place, whether or not it is still valid; none if no record can be there, because the place has
    /// been reused. The record lies within the store, whatever the memory holds.
    fn locate<M: Medium>(medium: &M, geometry: Geometry, place: Place) -> Option<Record>;

    /// Makes a durable record valid, or any record invalid, by one word, and flushes that.
    fn set_valid<M: Medium>(
        medium: &M,
        geometry: Geometry,
        lane: &mut Lane,
        site: Site,
        at: (Place, &Record),
        valid: bool,
    );

    /// The word of a page, and what must be added to it, for a durable record that is valid because its checksum is
    /// right: from then on the record must be right.
    fn settling(geometry: Geometry, at: (Place, &Record)) -> (u64, u64);

    /// The offset of the word that says that a record is no longer valid.
    fn retracted_at(geometry: Geometry, at: (Place, &Record)) -> u64;

    /// The record whose word of that kind lies at `at`, while nothing else is written there.
    fn retracted_record<M: Medium>(medium: &M, at: u64) -> Option<Record>;

    /// Whether a durable record is valid because its checksum is right, in stores with checksums: such a record is not
    /// published.
    fn is_evident(geometry: Geometry, record: &Record) -> bool;

    /// The word before such a record, which is written together with it, if there is one.
    fn word_before(record: &Record) -> Option<u64>;

    /// The word of a page that says which of its records must be right, and what must be added to it, once nothing more
    /// will be written to the part that the word covers.
    fn take_full(geometry: Geometry, cursor: &mut Self::Cursor) -> Option<(u64, u64)>;

    /// The same for the page that is being filled.
    fn begun(geometry: Geometry, cursor: &Self::Cursor) -> Option<(u64, u64)>;

    /// Adds to such a word, in a block that belongs to the caller alone, and flushes it.
    fn settle<M: Medium>(medium: &M, lane: &mut Lane, site: Site, what: (u64, u64));

    /// Calls `visit` with everything in a block; `end` is the end of the used blocks. Changes nothing. Returns how many
    /// blocks belong together (1 except for large records), and what they are: blocks of a large record that is not
    /// valid are to be dismantled.
    fn walk<M: Medium>(
        medium: &M,
        geometry: Geometry,
        block: u64,
        end: u64,
        visit: &mut dyn FnMut(Walked),
    ) -> Extent;

    /// The unused part of a block, while no thread uses the store yet. Clears the locks that a crash has left on pages
    /// that will be written to.
    fn spare<M: Medium>(medium: &M, geometry: Geometry, block: u64) -> Option<Box<[u64]>>;

    /// Whether blocks may hold large records, so that the meaning of a block depends on the blocks before it.
    const HAS_LARGE: bool;
}

/// A number of blocks that belong together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// How many blocks belong together.
    pub blocks: u64,
    /// Their kind.
    pub kind: ExtentKind,
}

/// See [`Extent`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentKind {
    /// An unformatted block.
    Unformatted,
    /// A block of pages.
    Pages,
    /// A large record.
    Large,
    /// The remains of a large record.
    Remains,
}

impl Extent {
    /// One block.
    pub const fn one(kind: ExtentKind) -> Self {
        Self { blocks: 1, kind }
    }
}
