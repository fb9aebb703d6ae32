//! The index: a hash table in ordinary memory from the hash of a key to the place of its record.
//!
//! Extendible hashing, as in *Write-Optimized Dynamic Hashing for Persistent Memory* (Nam et al., FAST 2019), though
//! nothing here is persistent: a directory of segments, each of a fixed size, which split one at a time when they are
//! full. The directory is indexed by the lowest bits of the hash, so that it doubles in place: its upper half begins as
//! a copy of its lower half, and a thread that still uses the shorter directory finds the same segments.
//!
//! - Readers take no lock. An entry is two words, the hash and the place; a place of zero means no entry. Entries never
//!   move, except when a segment splits: then half of them are copied to the new segment, the directory leads there,
//!   and only then are they cleared in the old one. So a reader that finds nothing searches again if the directory has
//!   changed meanwhile; and an entry that still holds a place is the only entry of its key.
//! - Writers lock the segment. The new segment of a split stays locked until the old one is cleared, so that of the two
//!   copies that exist for a moment neither can change.
//! - A thread that changes the entry of a key holds the lock of that key (`stripes.rs`), so a key has at most one
//!   entry.
//!
//! Hashes that agree in more bits than the directory can have go to a list with a lock. Only an accident of 2^-64, or
//! an adversary who knows the seed, can produce many of them.
//!
//! Lock order: a segment, then `growing`.

mod segment;
mod visit;

use crate::{
    cpu::{self, LINE},
    error::Result,
    mapping::Mapping,
    memory::WORD,
};
use segment::{BUCKETS, ENTRY_WORDS, META_WORDS, PROBES, SEGMENT_WORDS, TOMBSTONE, home, places};
use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
};
use vellum_base::PAGE_SIZE;

/// The index.
#[derive(Debug)]
pub struct Index {
    /// The segments, one after the other.
    arena: Mapping,
    /// Their descriptions.
    metas: Mapping,
    /// The directory: numbers of segments, each in a word of its own half.
    directory: Mapping,
    /// How many bits of the hash the directory uses.
    depth: AtomicU32,
    depth_max: u32,
    /// How many segments there are.
    segments: AtomicU32,
    segments_max: u32,
    /// Held while the directory changes.
    growing: Mutex<()>,
    /// Entries that no segment can take.
    overflow: Mutex<Vec<(u64, u64)>>,
    overflowing: AtomicUsize,
}

/// An entry found by a search.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    place: Option<&'a AtomicU64>,
    /// The place it held.
    pub at: u64,
    index: &'a Index,
    hash: u64,
}

impl Entry<'_> {
    /// Whether the key's place is still the same.
    #[inline]
    pub fn still_holds(&self) -> bool {
        match self.place {
            // Acquire: pairs with the release of the thread that wrote it. The caller's earlier reads are ordered
            // before this by the fence in `end_read`.
            Some(place) => place.load(Ordering::Acquire) == self.at,
            None => self.index.lock_overflow().contains(&(self.hash, self.at)),
        }
    }
}

/// What to do with a candidate of a search.
pub enum Look<T> {
    /// The candidate is the one.
    Found(T),
    /// The candidate has another key.
    Pass,
    /// The candidate was changing: search again.
    Again,
}

impl Index {
    /// An empty index that may grow to `segments_max` segments; `huge` requests huge pages.
    ///
    /// # Errors
    /// If there is not enough address space.
    pub fn new(segments_max: u32, huge: bool) -> Result<Self> {
        let segments_max = segments_max.clamp(1, 1 << 22);
        let depth_max = (32 - segments_max.leading_zeros() + 1).min(24);
        let bytes = |words: usize| (words * 8).next_multiple_of(PAGE_SIZE);
        let reserve =
            |words: usize, least: usize, purpose| Mapping::reserve_up_to(bytes(words), bytes(least), purpose);
        let arena = reserve(SEGMENT_WORDS * segments_max as usize, SEGMENT_WORDS, "an index")?;
        let segments_max = (arena.len() / (SEGMENT_WORDS * 8)) as u32;
        let metas = Mapping::reserve(bytes(META_WORDS * segments_max as usize), "the segments of an index")?;
        let directory = Mapping::reserve(bytes(1 << depth_max), "the directory of an index")?;
        let arena = if huge { arena.for_table() } else { arena };
        Ok(Self {
            arena,
            metas,
            directory,
            depth: AtomicU32::new(0),
            depth_max,
            // The first segment has number 0, pattern 0, depth 0, as a fresh mapping says.
            segments: AtomicU32::new(1),
            segments_max,
            growing: Mutex::new(()),
            overflow: Mutex::new(Vec::new()),
            overflowing: AtomicUsize::new(0),
        })
    }

    /// How many entries there are.
    pub fn len(&self) -> u64 {
        // Acquire: the segments below were described before they were counted. A split in between may or may not move
        // some entries beyond the end of this loop; the sum is exact when no thread writes.
        let segments = self.segments.load(Ordering::Acquire);
        let counted: u64 = (0..segments).map(|segment| self.count(segment).load(Ordering::Relaxed)).sum();
        counted + self.overflowing.load(Ordering::Relaxed) as u64
    }

    /// The memory that it uses, in bytes.
    pub fn bytes(&self) -> u64 {
        let segments = u64::from(self.segments.load(Ordering::Relaxed));
        segments * (SEGMENT_WORDS + META_WORDS) as u64 * 8 + (8 << self.depth.load(Ordering::Relaxed))
    }

    /// Prefetches the bucket of a hash.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        self.prefetch_bucket(self.directory_entry(hash), hash);
    }

    /// Prefetches what a change of the entry of a hash needs.
    #[inline]
    pub fn prefetch_for_change(&self, hash: u64) {
        let segment = self.directory_entry(hash);
        cpu::prefetch_to_write(self.count(segment).as_ptr().cast());
        self.prefetch_bucket(segment, hash);
    }

    #[inline]
    fn prefetch_bucket(&self, segment: u32, hash: u64) {
        let bucket = self.bucket(segment, home(hash));
        for line in bucket.chunks(LINE as usize / WORD) {
            cpu::prefetch(line.as_ptr().cast());
        }
    }

    /// A place to which the home bucket of a hash leads, if any: a guess of what [`find`](Self::find) will find.
    #[inline]
    pub fn guess(&self, hash: u64) -> Option<u64> {
        // Relaxed: nothing is read at the place because of this.
        let bucket = self.bucket(self.directory_entry(hash), home(hash));
        bucket.chunks_exact(ENTRY_WORDS).find_map(|entry| match entry {
            [entry_hash, place] if entry_hash.load(Ordering::Relaxed) == hash => {
                Some(place.load(Ordering::Relaxed)).filter(|at| *at != 0 && *at != TOMBSTONE)
            }
            _ => None,
        })
    }

    /// Calls `look` with the entries with this hash until it accepts one. While others write, it may be called with an
    /// entry of another hash: it tells the key by the record.
    #[inline]
    pub fn find<T>(&self, hash: u64, mut look: impl FnMut(Entry<'_>) -> Look<T>) -> Option<T> {
        'again: loop {
            let segment = self.directory_entry(hash);
            for probe in 0..PROBES {
                let bucket = self.bucket(segment, (home(hash) + probe) % BUCKETS);
                let mut has_room = false;
                for entry in bucket.chunks_exact(ENTRY_WORDS) {
                    let [entry_hash, place] = entry else { continue };
                    // Acquire on the hash: a thread that sees the hash of an entry that was cleared by a split and then
                    // taken again sees the directory that leads to the copy. Acquire on the place: the record there was
                    // written before it. A stale hash beside a new place shows another key's record, which `look`
                    // skips, or hides an entry that is being made.
                    let found = entry_hash.load(Ordering::Acquire);
                    let at = place.load(Ordering::Acquire);
                    has_room |= at == 0;
                    if found != hash || at == 0 || at == TOMBSTONE {
                        continue;
                    }
                    match look(Entry { place: Some(place), at, index: self, hash }) {
                        Look::Found(found) => return Some(found),
                        Look::Pass => {}
                        Look::Again => continue 'again,
                    }
                }
                // Entries go to the next bucket only when one is full, and a full bucket stays marked: see `remove`.
                if has_room {
                    break;
                }
            }
            match self.find_overflow(hash, &mut look) {
                Look::Found(found) => return Some(found),
                Look::Again => continue 'again,
                Look::Pass => {}
            }
            // Acquire in `directory_entry`: a thread that saw an entry cleared by a split sees the directory that leads
            // to its copy.
            if self.directory_entry(hash) == segment {
                return None;
            }
        }
    }

    #[inline]
    fn find_overflow<T>(&self, hash: u64, look: &mut impl FnMut(Entry<'_>) -> Look<T>) -> Look<T> {
        // Acquire: pairs with the release in `insert`.
        if self.overflowing.load(Ordering::Acquire) == 0 {
            return Look::Pass;
        }
        let places: Vec<u64> = self
            .lock_overflow()
            .iter()
            .filter(|(other, _)| *other == hash)
            .map(|(_, place)| *place)
            .collect();
        for at in places {
            match look(Entry { place: None, at, index: self, hash }) {
                Look::Pass => {}
                other => return other,
            }
        }
        Look::Pass
    }

    /// Adds an entry for a key that has none. The caller holds the lock of the key.
    pub fn insert(&self, hash: u64, place: u64) {
        debug_assert!(place != 0 && place != TOMBSTONE);
        loop {
            let segment = self.lock_segment_of(hash);
            if let Some(entry) = self.vacancy(segment.number, hash) {
                let [entry_hash, entry_place] = entry else { continue };
                // Release, twice: what `find` needs of each. A thread that sees the place sees the record.
                entry_hash.store(hash, Ordering::Release);
                entry_place.store(place, Ordering::Release);
                self.count(segment.number).fetch_add(1, Ordering::Relaxed);
                return;
            }
            if !self.split(&segment) {
                self.lock_overflow().push((hash, place));
                // Release: a thread that sees the number finds the entry.
                self.overflowing.fetch_add(1, Ordering::Release);
                return;
            }
        }
    }

    /// Changes the place in the entry of a key from `old` to `new`. The caller holds the lock of the key, so the entry
    /// exists.
    pub fn replace(&self, hash: u64, old: u64, new: u64) {
        let segment = self.lock_segment_of(hash);
        if let Some(place) = self.place_in(segment.number, hash, old) {
            // Release: a thread that sees the new place sees the record.
            place.store(new, Ordering::Release);
            return;
        }
        drop(segment);
        for entry in self.lock_overflow().iter_mut().filter(|entry| **entry == (hash, old)) {
            entry.1 = new;
        }
    }

    /// Removes the entry of a key. The caller holds the lock of the key.
    pub fn remove(&self, hash: u64, old: u64) {
        let segment = self.lock_segment_of(hash);
        if let Some((bucket, place)) = self.entry_in(segment.number, hash, old) {
            // A bucket that was ever full stays full for threads that search, as they must go on to the next.
            let has_room = places(bucket).any(|place| place.load(Ordering::Relaxed) == 0);
            // Release: the record may be overwritten after this.
            place.store(if has_room { 0 } else { TOMBSTONE }, Ordering::Release);
            self.count(segment.number).fetch_sub(1, Ordering::Relaxed);
            return;
        }
        drop(segment);
        let mut overflow = self.lock_overflow();
        let before = overflow.len();
        overflow.retain(|entry| *entry != (hash, old));
        self.overflowing.fetch_sub(before - overflow.len(), Ordering::Relaxed);
    }

    fn lock_overflow(&self) -> MutexGuard<'_, Vec<(u64, u64)>> {
        // Each change of the list is one operation: a panic elsewhere leaves it right.
        self.overflow.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
