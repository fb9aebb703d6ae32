//! Segments: their memory, their locks, how they split and how the directory grows.

use super::Index;
use crate::mapping::Mapping;
use std::sync::{
    PoisonError,
    atomic::{AtomicU64, Ordering},
};

/// Buckets of a segment.
pub const BUCKETS: usize = 256;
/// Entries of a bucket, which is two cache lines.
pub const SLOTS: usize = 8;
/// In how many buckets an entry may be.
pub const PROBES: usize = 4;
/// Words of an entry: the hash, then the place.
pub const ENTRY_WORDS: usize = 2;
/// Words of a segment.
pub const SEGMENT_WORDS: usize = BUCKETS * SLOTS * ENTRY_WORDS;
/// Words of the description of a segment: lock, pattern and depth, count; the rest is padding that separates the locks.
pub const META_WORDS: usize = 8;
/// A place that marks a removed entry of a bucket that was full.
pub const TOMBSTONE: u64 = 1;

/// The bucket in which a hash is searched first. The directory uses the lowest bits, so this uses the highest.
#[inline]
pub fn home(hash: u64) -> usize {
    (hash >> 56) as usize % BUCKETS
}

/// The places of a bucket.
pub fn places(bucket: &[AtomicU64]) -> impl Iterator<Item = &AtomicU64> {
    bucket.iter().skip(1).step_by(ENTRY_WORDS)
}

/// A locked segment.
pub struct Locked<'a> {
    lock: &'a AtomicU64,
    /// Its number.
    pub number: u32,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Release: changes under the lock become visible before its end.
        self.lock.store(0, Ordering::Release);
    }
}

impl Index {
    /// The words of a mapping.
    fn words(mapping: &Mapping, first: usize, count: usize) -> &[AtomicU64] {
        assert!((first + count) * 8 <= mapping.len(), "beyond the index");
        // SAFETY: the range lies in the mapping, which is aligned, reads as zeroes until it is written, lives as long
        // as the index, and is only ever accessed as atomic words.
        unsafe { std::slice::from_raw_parts(mapping.base().as_ptr().cast::<AtomicU64>().add(first), count) }
    }

    /// `COUNT` words of a mapping.
    #[inline]
    fn array<const COUNT: usize>(mapping: &Mapping, first: usize) -> &[AtomicU64; COUNT] {
        let words = Self::words(mapping, first, COUNT).first_chunk();
        words.unwrap_or_else(|| unreachable!("as many words as were asked for"))
    }

    /// A bucket of a segment.
    #[inline]
    pub(super) fn bucket(&self, segment: u32, bucket: usize) -> &[AtomicU64] {
        let words = SLOTS * ENTRY_WORDS;
        Self::words(&self.arena, segment as usize * SEGMENT_WORDS + bucket * words, words)
    }

    /// All entries of a segment.
    pub(super) fn entries(&self, segment: u32) -> &[AtomicU64] {
        Self::words(&self.arena, segment as usize * SEGMENT_WORDS, SEGMENT_WORDS)
    }

    fn meta(&self, segment: u32) -> &[AtomicU64; META_WORDS] {
        Self::array(&self.metas, segment as usize * META_WORDS)
    }

    /// How many entries a segment has.
    pub(super) fn count(&self, segment: u32) -> &AtomicU64 {
        &self.meta(segment)[2]
    }

    /// The lowest bits that all hashes of a segment share, and their number.
    pub(super) fn pattern(&self, segment: u32) -> (u64, u32) {
        let word = self.meta(segment)[1].load(Ordering::Relaxed);
        (word >> 8, (word & 0xff) as u32)
    }

    fn set_pattern(&self, segment: u32, pattern: u64, depth: u32) {
        self.meta(segment)[1].store((pattern << 8) | u64::from(depth), Ordering::Relaxed);
    }

    /// The segment to which the directory leads.
    #[inline]
    pub(super) fn directory_entry(&self, hash: u64) -> u32 {
        // Acquire: the part of the directory that this depth makes visible was written before.
        let depth = self.depth.load(Ordering::Acquire);
        let entry = (hash & ((1 << depth) - 1)) as usize;
        // Acquire: the segment was filled before the directory led to it.
        let [segment] = Self::array(&self.directory, entry);
        segment.load(Ordering::Acquire) as u32
    }

    fn lock_segment(&self, number: u32) -> Locked<'_> {
        let lock = &self.meta(number)[0];
        let mut tries = 0u32;
        // Acquire: the changes of the last holder are visible.
        while lock.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            tries += 1;
            if tries.is_multiple_of(64) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        Locked { lock, number }
    }

    /// Locks the segment to which a hash belongs.
    pub(super) fn lock_segment_of(&self, hash: u64) -> Locked<'_> {
        loop {
            let segment = self.lock_segment(self.directory_entry(hash));
            let (pattern, depth) = self.pattern(segment.number);
            // The segment may have split before the lock was acquired.
            if hash & ((1 << depth) - 1) == pattern {
                return segment;
            }
        }
    }

    /// A vacant entry for a hash in a locked segment.
    pub(super) fn vacancy(&self, segment: u32, hash: u64) -> Option<&[AtomicU64]> {
        (0..PROBES).find_map(|probe| {
            let bucket = self.bucket(segment, (home(hash) + probe) % BUCKETS);
            let is_vacant = |entry: &&[AtomicU64]| {
                matches!(entry, [_, place] if matches!(place.load(Ordering::Relaxed), 0 | TOMBSTONE))
            };
            bucket.chunks_exact(ENTRY_WORDS).find(is_vacant)
        })
    }

    /// The bucket and the place of an entry in a locked segment.
    pub(super) fn entry_in(&self, segment: u32, hash: u64, at: u64) -> Option<(&[AtomicU64], &AtomicU64)> {
        (0..PROBES).find_map(|probe| {
            let bucket = self.bucket(segment, (home(hash) + probe) % BUCKETS);
            bucket.chunks_exact(ENTRY_WORDS).find_map(|entry| match entry {
                [entry_hash, place]
                    if place.load(Ordering::Relaxed) == at && entry_hash.load(Ordering::Relaxed) == hash =>
                {
                    Some((bucket, place))
                }
                _ => None,
            })
        })
    }

    /// The place of an entry in a locked segment.
    pub(super) fn place_in(&self, segment: u32, hash: u64, at: u64) -> Option<&AtomicU64> {
        self.entry_in(segment, hash, at).map(|(_, place)| place)
    }

    /// Prepares an empty index, which no thread uses yet, for a number of entries.
    pub fn expect(&self, entries: u64) {
        // Segments are this full on average.
        let segments = entries.div_ceil((BUCKETS * SLOTS) as u64 * 5 / 8).max(1).next_power_of_two();
        let most = u64::from(self.segments_max.min(1 << self.depth_max));
        let depth = segments.min(1 << most.ilog2()).trailing_zeros();
        for number in 0..1u32 << depth {
            self.set_pattern(number, u64::from(number), depth);
            let [segment] = Self::array(&self.directory, number as usize);
            segment.store(u64::from(number), Ordering::Relaxed);
        }
        self.segments.store(1 << depth, Ordering::Release);
        self.depth.store(depth, Ordering::Release);
    }

    /// Splits a locked segment in two; returns `false` if the index can grow no further.
    pub(super) fn split(&self, old: &Locked<'_>) -> bool {
        // Nothing is half done if a thread panicked while holding the lock: the directory is changed by single stores.
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let (pattern, depth) = self.pattern(old.number);
        let number = self.segments.load(Ordering::Relaxed);
        if number >= self.segments_max || depth >= self.depth_max {
            return false;
        }
        let new = self.lock_segment(number);
        let bit = 1 << depth;
        self.set_pattern(number, pattern | bit, depth + 1);
        if !self.copy_upper_half(old.number, number, bit) {
            // The entries cluster so badly that not even half of them fit: clear the copies; no other thread knows of
            // them.
            places(self.entries(number)).for_each(|place| place.store(0, Ordering::Relaxed));
            self.count(number).store(0, Ordering::Relaxed);
            return false;
        }
        self.segments.store(number + 1, Ordering::Release);
        self.set_pattern(old.number, pattern, depth + 1);
        self.lead_to(number, pattern | bit, depth);
        self.clear_upper_half(old.number, bit);
        drop(new);
        true
    }

    /// Copies the entries whose hash has the bit set to a new segment.
    fn copy_upper_half(&self, old: u32, new: u32, bit: u64) -> bool {
        let mut copied = 0;
        for entry in self.entries(old).chunks_exact(ENTRY_WORDS) {
            let [hash, place] = entry else { continue };
            let (hash, at) = (hash.load(Ordering::Relaxed), place.load(Ordering::Relaxed));
            if at == 0 || at == TOMBSTONE || hash & bit == 0 {
                continue;
            }
            let Some([new_hash, new_place]) = self.vacancy(new, hash) else { return false };
            new_hash.store(hash, Ordering::Relaxed);
            // The directory publishes the entry.
            new_place.store(at, Ordering::Relaxed);
            copied += 1;
        }
        self.count(new).store(copied, Ordering::Relaxed);
        true
    }

    /// Makes the directory lead to a new segment; doubles the directory if necessary. `depth` is that of the old
    /// segment.
    fn lead_to(&self, number: u32, pattern: u64, depth: u32) {
        let mut bits = self.depth.load(Ordering::Relaxed);
        if bits == depth {
            let half = 1 << bits;
            let entries = Self::words(&self.directory, 0, 2 * half);
            let (lower, upper) = entries.split_at(half);
            for (from, to) in lower.iter().zip(upper) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            bits += 1;
            // Release: a thread that uses the longer directory sees its upper half.
            self.depth.store(bits, Ordering::Release);
        }
        let entries = Self::words(&self.directory, 0, 1 << bits);
        for entry in entries.iter().skip(pattern as usize).step_by(2 << depth) {
            // Release: a thread that is led to the segment sees its entries.
            entry.store(u64::from(number), Ordering::Release);
        }
    }

    /// Clears the entries that were copied.
    fn clear_upper_half(&self, old: u32, bit: u64) {
        let mut cleared = 0;
        for bucket in self.entries(old).chunks_exact(SLOTS * ENTRY_WORDS) {
            let has_room = places(bucket).any(|place| place.load(Ordering::Relaxed) == 0);
            for entry in bucket.chunks_exact(ENTRY_WORDS) {
                let [hash, place] = entry else { continue };
                let at = place.load(Ordering::Relaxed);
                if at != 0 && at != TOMBSTONE && hash.load(Ordering::Relaxed) & bit != 0 {
                    // Release: a thread that sees the entry cleared sees the directory that leads to its copy.
                    place.store(if has_room { 0 } else { TOMBSTONE }, Ordering::Release);
                    cleared += 1;
                }
            }
        }
        self.count(old).fetch_sub(cleared, Ordering::Relaxed);
    }
}
