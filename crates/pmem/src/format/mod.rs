//! How records lie in blocks: of one size ([`Fixed`](fixed::Fixed)) or of any ([`Variable`](variable::Variable)).
//!
//! Both share the record itself: a sequence number, two checksums, the word that was changed last, the key, the value, each
//! padded to whole words. They
//! differ in what says that a record must be right, an occupancy bit or a word of a log, and in how space in a block is used up. A block
//! is written once, from its start page round to the page before it; places are not used again before the block is
//! free as a whole, except for what recovery finds unused.

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
    /// Where its sequence number lies.
    pub at: u64,
    /// The length of its key.
    pub key_bytes: usize,
    /// The length of its value.
    pub value_bytes: usize,
}

impl Record {
    /// The length with its head, in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        RECORD_HEAD_BYTES + padded(self.key_bytes) + padded(self.value_bytes)
    }

    /// Where its checksums lie.
    #[inline]
    pub fn sums_at(&self) -> u64 {
        self.at + 8
    }

    /// Where the word lies that was changed in its value last, as it is now.
    #[inline]
    pub fn changed_word_at(&self) -> u64 {
        self.at + 16
    }

    /// Where its value lies.
    #[inline]
    pub fn value_at(&self) -> u64 {
        self.at + (RECORD_HEAD_BYTES + padded(self.key_bytes)) as u64
    }

    /// Its sequence number.
    #[inline]
    pub fn sequence<M: Medium>(&self, medium: &M) -> u64 {
        // Acquire: not older than the entry that led here; what is read after it is validated.
        medium.memory().word(self.at).load(Ordering::Acquire)
    }

    /// Whether it is that of a key.
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

    /// Whether one of its checksums is right for what was read of it.
    pub fn is_sound<M: Medium>(&self, medium: &M, key: &[u8], value: &[u8]) -> bool {
        self.sound_sum(medium, key, value).is_some()
    }

    /// Whether what was read of it is right, and all that was acknowledged: see `update.rs`.
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

    /// The checksum of what was read of it, if one of those that it has is that.
    pub fn sound_sum<M: Medium>(&self, medium: &M, key: &[u8], value: &[u8]) -> Option<u32> {
        let memory = medium.memory();
        let sum = record_sum(memory.word(self.at).load(Ordering::Relaxed), key, value);
        let sums = memory.word(self.sums_at()).load(Ordering::Relaxed);
        (sums as u32 == sum || (sums >> 32) as u32 == sum).then_some(sum)
    }

    /// Writes it to a place that nothing leads to, not fenced: after a word, if one is given, and with `behind` bytes of zeroes
    /// that follow.
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
        // The index leads to it after a fence, by a release.
        let (sequence, sums) = (sequence.to_le_bytes(), sums.to_le_bytes());
        let word = word.map(u64::to_le_bytes);
        let before: &[u8] = word.as_ref().map_or(&[], |word| word);
        let at = self.at - before.len() as u64;
        medium.write(lane, site, at, &[before, &sequence, &sums, &[0; WORD], key, value], behind);
    }
}

/// What a record turned out to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judgement {
    /// It is right.
    Sound,
    /// A crash came between a change of one word, which was acknowledged, and the word: it is this one of the value, and is to
    /// be this.
    Late {
        /// Which word of the value.
        number: usize,
        /// What it is to be.
        word: u64,
    },
    /// It is damaged, or was never written to its end.
    Unsound,
}

/// Which word of a value has to be another for the value to be right, if any.
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

/// Makes one word of a value another; the last may have fewer than eight bytes.
pub fn replace_word(value: &mut [u8], number: usize, word: u64) {
    if let Some(chunk) = value.chunks_mut(WORD).nth(number) {
        chunk.iter_mut().zip(word.to_le_bytes()).for_each(|(to, from)| *to = from);
    }
}

/// What a block holds, found by walking it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Walked {
    /// A record that is not retracted, and whether it must be right. One that need not be was perhaps never written to its end:
    /// if it is right, it counts, and otherwise it is not there.
    Record(Place, Record, bool),
    /// A record that was retracted, of so many units.
    Retracted(u32),
    /// Something is damaged; what follows it in its page cannot be told.
    Damage(Damage),
}

/// Where the next record goes.
pub enum Next {
    /// Here.
    At(Place, Record, usize),
    /// The block is used up.
    BlockFull,
    /// It takes so many blocks of its own.
    Large(u64),
}

/// What the records of a store are like: [`Fixed`](fixed::Fixed) or [`Variable`](variable::Variable).
pub trait Layout: Format {
    /// A key.
    type Key: ?Sized + AsRef<[u8]>;
    /// A value.
    type Value: ?Sized + AsRef<[u8]>;
}

/// How records lie in blocks. All functions take the medium and the geometry, and keep nothing.
pub trait Format: Sized + Send + Sync + 'static {
    /// A client's position in its block.
    type Cursor: Send + std::fmt::Debug;

    /// What records are like.
    fn shape() -> Shape;

    /// Units of a block, by which its dead share is measured.
    fn units_of_block(geometry: Geometry) -> u32;

    /// Units of a record, and of what is left free behind it.
    fn units(record: &Record) -> u32;

    /// Prepares a block that was handed out, whatever it was before; a fresh one reads as zeroes. Whether records carry checksums.
    ///
    /// # Errors
    /// If it cannot be made durable.
    fn format<M: Medium>(
        medium: &M,
        geometry: Geometry,
        lane: &mut Lane,
        block: u64,
        is_fresh: bool,
        checksums: bool,
    ) -> Result<()>;

    /// The position in a formatted block, from a page on.
    fn begin(geometry: Geometry, block: u64, page: u32) -> Self::Cursor;

    /// The position in a block that a client gave back.
    fn resume(geometry: Geometry, block: u64, spare: &[u64]) -> Self::Cursor;

    /// The block of a position.
    fn block(cursor: &Self::Cursor) -> u64;

    /// What is unused in the block of a position; nothing if it is used up.
    fn suspend(cursor: &Self::Cursor) -> Option<Box<[u64]>>;

    /// Uses up the place for a record of these lengths.
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

    /// Asks for what a thread that looks at the record of a place reads first.
    fn prefetch<M: Medium>(medium: &M, geometry: Geometry, place: Place);

    /// Where the record of a place is, whether it is still valid or not; nothing if no record can be there, because the
    /// place was used otherwise since. The record lies within the store, whatever the memory holds.
    fn locate<M: Medium>(medium: &M, geometry: Geometry, place: Place) -> Option<Record>;

    /// Makes a durable record valid, or a record invalid, by one word, and flushes that.
    fn set_valid<M: Medium>(
        medium: &M,
        geometry: Geometry,
        lane: &mut Lane,
        site: Site,
        at: (Place, &Record),
        valid: bool,
    );

    /// The word of a page, and what is to be added to it, for a durable record that is valid by being right: it must be right then.
    fn settling(geometry: Geometry, at: (Place, &Record)) -> (u64, u64);

    /// Where the word lies that says that a record is not valid any more.
    fn retracted_at(geometry: Geometry, at: (Place, &Record)) -> u64;

    /// Whether a record that is durable is valid by being right, where records carry checksums: then nothing publishes it.
    fn is_evident(geometry: Geometry, record: &Record) -> bool;

    /// The word before such a record, which is written with it, if there is one.
    fn word_before(record: &Record) -> Option<u64>;

    /// The word of a page that says which of its records must be right, and what is to be added, when nothing more will be written
    /// to what the word stands for.
    fn take_full(geometry: Geometry, cursor: &mut Self::Cursor) -> Option<(u64, u64)>;

    /// The same of the page that is being filled.
    fn begun(geometry: Geometry, cursor: &Self::Cursor) -> Option<(u64, u64)>;

    /// Adds to such a word, in a block that is the caller's alone, and flushes it.
    fn settle<M: Medium>(medium: &M, lane: &mut Lane, site: Site, what: (u64, u64));

    /// Shows everything in a block; `end` is the end of the used blocks. Changes nothing. How many blocks it takes: 1 but for large
    /// records; and whether they are to be dismantled, because the record there is not valid.
    fn walk<M: Medium>(
        medium: &M,
        geometry: Geometry,
        block: u64,
        end: u64,
        visit: &mut dyn FnMut(Walked),
    ) -> Extent;

    /// What is unused in a block, when no thread uses the store yet. Takes away the locks that a crash left on pages that will be
    /// written to.
    fn spare<M: Medium>(medium: &M, geometry: Geometry, block: u64) -> Option<Box<[u64]>>;

    /// Whether blocks may hold large records, so that one must know the blocks before to know what a block is.
    const HAS_LARGE: bool;
}

/// What a block turned out to be the beginning of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// How many blocks belong together.
    pub blocks: u64,
    /// What they are.
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
    /// What is left of a large record.
    Remains,
}

impl Extent {
    /// One block.
    pub const fn one(kind: ExtentKind) -> Self {
        Self { blocks: 1, kind }
    }
}
