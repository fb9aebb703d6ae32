//! The state shared by all handles of a store, and reading. Puts and deletes are in `change.rs`, durability in
//! `settling.rs`.
//!
//! # The order of things
//!
//! A put writes the record where nothing leads to it, and searches the index while it goes to the memory; makes it
//! durable; makes it valid by one word, durably, unless it is valid because its checksum is right
//! ([`Format::is_evident`]); makes the index lead to it; makes the record that it replaces invalid; and only then is
//! acknowledged. The last two steps happen under the lock of the key. So after a crash the valid record of a key with the
//! highest sequence number is the latest one: before a record is durable, its sequence number is above that of the
//! replaced record. The invalidation of the replaced record need not be durable yet: the client
//! leaves the fence to its next operation, and the stripe of the key remembers the record until then (`stripes.rs`).
//! Its space is not reused before. A delete first makes durable what its stripe remembers, and then makes the record
//! invalid, durably, before the index forgets it: so no caller is told that a key is gone that might come back.
//!
//! # Reading
//!
//! A reader takes no lock: it reads the index, the change counter of the stripe, the page version and the record, and then
//! checks all four again. It accepts what it copied if no value of the stripe was changed in place, the page was not locked
//! or changed, the sequence number stayed the same, and the index still leads there. So what it returns was durable, and
//! current at some moment of the call. It waits only while a word of a value of the stripe is being stored, and while a
//! record in the same page is being changed in place, because what it would read might yet be lost.
//!
//! The counter comes before the page version. So if it stays the same, the version is not older than the last change that
//! it counts, which was durable if the page is not locked. A change is of a record of the key that the reader looks for, so
//! the key's stripe is the only one that matters, in batches of keys, too.
//!
//! Lock order: stripes of keys, then one of: a page, the lists of blocks, or a segment of the index. None of these is
//! held while another of them is taken, except that the lists are locked while the recorded end is made durable.

use crate::{
    error::{Damage, PmemError, Result},
    format::{Format, Record, large, replace_word},
    index::{Index, Look},
    layout::{Geometry, KEY_BYTES_MAX, Place, VALUE_BYTES_MAX, mix, record_sum},
    lock,
    medium::{Lane, Medium, Site},
    numbers::Numbers,
    options::ReclaimOptions,
    owed::Owed,
    scratch::Scratch,
    space::{Purpose, Space},
    stripes::Stripes,
    superblock::{Shape, Superblock},
};
use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, RandomState},
    marker::PhantomData,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// How many bits of a sequence number identify the client that drew it.
pub const CLIENT_BITS: u32 = 16;
/// The highest clock of a record: no store lives to see it, and as many again can be drawn above it.
pub const CLOCK_MAX: u64 = 1 << 47;

/// The result of a put.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Put {
    /// The key was new.
    Inserted,
    /// The key had a value, which was replaced.
    Replaced,
}

/// The state shared by all handles.
#[derive(Debug)]
pub struct Core<L, M> {
    pub medium: M,
    pub geometry: Geometry,
    pub superblock: Superblock,
    pub index: Index,
    pub space: Space,
    pub stripes: Stripes,
    pub read_only: bool,
    pub reclaim: ReclaimOptions,
    /// The highest clock of any client that ended, and of any record found.
    pub clock: AtomicU64,
    /// Counts records that became invalid, so that reclaiming knows whether there may be something to do.
    pub retractions: AtomicU64,
    /// Blocks that were compacted so far.
    pub compacted: AtomicU64,
    /// Words of values whose change was interrupted by a crash, by the places of their records, in a store that is only
    /// read.
    pub late: OnceLock<BTreeMap<u64, (usize, u64)>>,
    poisoned: AtomicBool,
    pub clients: Mutex<Numbers>,
    hash_seed: u64,
    layout: PhantomData<fn() -> L>,
}

/// The state of a client that writes.
#[derive(Debug)]
pub struct Writer<L: Format> {
    pub lane: Lane,
    pub cursor: Option<L::Cursor>,
    pub clock: u64,
    pub id: u16,
    pub purpose: Purpose,
    pub scratch: Scratch,
    /// The words that it has left to its next fences.
    pub owed: Owed,
}

/// The sites of the two steps by which records are created.
#[derive(Clone, Copy)]
pub struct Sites {
    pub record: Site,
    pub publish: Site,
}

pub const ONE: Sites = Sites { record: Site::Record, publish: Site::Publish };

impl<L: Format, M: Medium> Core<L, M> {
    /// Puts the parts together. Nothing is known yet of the contents of the store.
    pub fn new(
        medium: M,
        superblock: Superblock,
        (index, space): (Index, Space),
        read_only: bool,
        reclaim: ReclaimOptions,
    ) -> Self {
        Self {
            medium,
            geometry: Geometry::new(superblock.pages_per_block),
            superblock,
            index,
            space,
            stripes: Stripes::new(),
            read_only,
            reclaim,
            clock: AtomicU64::new(0),
            retractions: AtomicU64::new(0),
            compacted: AtomicU64::new(0),
            late: OnceLock::new(),
            poisoned: AtomicBool::new(false),
            clients: Mutex::default(),
            // Differs from one opening to the next, so that an adversary cannot prepare keys that collide.
            hash_seed: RandomState::new().hash_one(0),
            layout: PhantomData,
        }
    }

    /// The hash of a key. For a key of eight bytes it is a permutation of the key: equal hashes mean equal keys.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        match key.as_array::<8>() {
            Some(key) => mix(u64::from_le_bytes(*key) ^ self.hash_seed),
            None => xxh3_64_with_seed(key, self.hash_seed),
        }
    }

    /// Hands out a writer.
    ///
    /// # Errors
    /// [`PmemError::ReadOnly`], or [`PmemError::Clients`] if there are 65 536 already.
    pub fn writer(&self, purpose: Purpose) -> Result<Writer<L>> {
        if self.read_only {
            return Err(PmemError::ReadOnly);
        }
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let id = clients.take().ok_or(PmemError::Clients)?;
        // Relaxed: the lock orders this after the end of the client that had the number before.
        let clock = self.clock.load(Ordering::Relaxed);
        let lane = Lane { number: u64::from(id), ..Lane::default() };
        Ok(Writer {
            lane,
            cursor: None,
            clock,
            id,
            purpose,
            scratch: Scratch::default(),
            owed: Owed::default(),
        })
    }

    /// Fails if changes are not accepted.
    pub fn check_writable(&self) -> Result<()> {
        if self.poisoned.load(Ordering::Relaxed) { Err(PmemError::Poisoned) } else { Ok(()) }
    }

    /// Notes failures after which it is unknown what is durable.
    pub fn watch<T>(&self, outcome: Result<T>) -> Result<T> {
        if matches!(outcome, Err(PmemError::Persist(_))) {
            self.poisoned.store(true, Ordering::Relaxed);
        }
        outcome
    }

    pub fn check_lengths(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let check = |what, bytes: usize, most: usize| {
            if bytes > most { Err(PmemError::TooLong { what, bytes, most }) } else { Ok(()) }
        };
        match L::shape() {
            Shape::Variable => {
                check("key", key.len(), KEY_BYTES_MAX)?;
                check("value", value.len(), VALUE_BYTES_MAX)
            }
            Shape::Fixed { value_bytes, .. } if value.len() != value_bytes as usize => {
                Err(PmemError::OtherLength { bytes: value.len(), wanted: value_bytes as usize })
            }
            Shape::Fixed { .. } => Ok(()),
        }
    }

    /// Reads the record of a key: `take` copies what it wants, perhaps several times; its last result counts.
    #[inline]
    pub fn read<T>(&self, hash: u64, key: &[u8], mut take: impl FnMut(&Record) -> T) -> Result<Option<T>> {
        let matching = |record: &Record| record.has_key(&self.medium, key).then(|| take(record));
        self.read_matching(hash, matching)
    }

    /// Reads the record with this hash that `take` accepts.
    #[inline]
    pub fn read_matching<T>(
        &self,
        hash: u64,
        mut take: impl FnMut(&Record) -> Option<T>,
    ) -> Result<Option<T>> {
        let changes = self.stripes.changes(hash);
        let found = self.index.find(hash, |entry| {
            let place = Place(entry.at);
            let Some(changes_seen) = lock::begin_read(changes) else {
                std::thread::yield_now();
                return Look::Again;
            };
            let head = self.medium.memory().word(self.geometry.page_at_of(place));
            let seen = match lock::begin_read(head) {
                Some(seen) => seen,
                // A crash has left the lock, and a store opened for reading cannot clear it. No thread changes
                // anything.
                None if self.read_only => head.load(Ordering::Relaxed),
                None => {
                    std::thread::yield_now();
                    return Look::Again;
                }
            };
            let Some(record) = L::locate(&self.medium, self.geometry, place) else {
                if !entry.still_holds() {
                    return Look::Again;
                }
                let at = self.geometry.page_at_of(place);
                return Look::Found(Err(PmemError::Damaged(Damage::Word { at })));
            };
            let sequence = record.sequence(&self.medium);
            let taken = take(&record);
            let stayed = lock::end_read(changes, changes_seen)
                && lock::end_read(head, seen)
                && record.sequence(&self.medium) == sequence
                && entry.still_holds();
            match taken {
                _ if !stayed => Look::Again,
                Some(taken) => Look::Found(Ok(taken)),
                None => Look::Pass,
            }
        });
        found.transpose()
    }

    /// Copies the value of a record.
    #[inline]
    pub fn load_value(&self, record: &Record, value: &mut Vec<u8>) {
        record.load_value(&self.medium, value);
        if let Some((number, word)) = self.late.get().and_then(|late| late.get(&record.at)) {
            replace_word(value, *number, *word);
        }
    }

    /// Finds the record of a key whose stripe the caller holds.
    pub fn find_locked(&self, hash: u64, key: &[u8]) -> Option<(Place, Record)> {
        self.index.find(hash, |entry| {
            let place = Place(entry.at);
            // The next steps read all of it, and change the head: the misses overlap.
            L::prefetch(&self.medium, self.geometry, place);
            match L::locate(&self.medium, self.geometry, place) {
                Some(record) if record.has_key(&self.medium, key) => Look::Found((place, record)),
                _ => Look::Pass,
            }
        })
    }

    /// Makes a durable record valid; flushed, not fenced.
    pub fn make_valid(&self, writer: &mut Writer<L>, site: Site, place: Place, record: &Record) {
        L::set_valid(&self.medium, self.geometry, &mut writer.lane, site, (place, record), true);
    }

    /// Makes a record invalid; flushed, not fenced.
    pub fn retract(&self, writer: &mut Writer<L>, site: Site, place: Place, record: &Record) {
        L::set_valid(&self.medium, self.geometry, &mut writer.lane, site, (place, record), false);
    }

    /// Frees the space of a record that is durably invalid, and to which the index no longer leads.
    pub fn freed(&self, writer: &mut Writer<L>, place: Place, record: &Record) -> Result<()> {
        self.freed_in(writer, self.geometry.block_of(place), record)
    }

    /// The same for a record in a block, the first one of a large record.
    pub fn freed_in(&self, writer: &mut Writer<L>, block: u64, record: &Record) -> Result<()> {
        self.retractions.fetch_add(1, Ordering::Relaxed);
        if self.space.block(block).load().0 == crate::blocks::State::Large {
            let blocks = large::blocks_for(self.geometry, record.key_bytes, record.value_bytes);
            let outcome = large::dismantle(&self.medium, self.geometry, &mut writer.lane, block, blocks);
            self.watch(outcome)?;
            self.space.release_run(block, blocks);
        } else {
            self.space.retracted(block, L::units(record));
        }
        Ok(())
    }

    /// Draws a sequence number above this one and above all that the writer drew before.
    ///
    /// # Errors
    /// [`PmemError::Clock`] if there is none.
    pub fn draw(writer: &mut Writer<L>, above: u64) -> Result<u64> {
        let clock = writer.clock.max(above >> CLIENT_BITS) + 1;
        if clock >> (u64::BITS - CLIENT_BITS) != 0 {
            return Err(PmemError::Clock);
        }
        writer.clock = clock;
        Ok((clock << CLIENT_BITS) | u64::from(writer.id))
    }

    /// The checksums of a new record: two equal ones, or zero if records carry none.
    pub fn sums(&self, sequence: u64, key: &[u8], value: &[u8]) -> u64 {
        if !self.superblock.checksums {
            return 0;
        }
        let sum = u64::from(record_sum(sequence, key, value));
        sum | sum << 32
    }
}
