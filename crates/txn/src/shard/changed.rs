//! The records of the table of versions that have been changed since some moment.

use super::{SHARDS, shard_of};
use crate::plant::{Bug, planted};
// No thread waits for what is noted in the filter.
use std::sync::atomic::AtomicU64;
use vellum_base::primitive::Ordering;

/// Hashes of records that have been changed: a Bloom filter in which all bits of a hash lie in one line of the processor's
/// cache (Putze, Sanders, Singler: *Cache-, Hash- and Space-Efficient Bloom Filters*, WEA 2007). The lines of one
/// shard's records lie together, and are read and written under that shard's lock.
pub(crate) struct Changed(Box<[Line]>);

#[repr(align(64))]
#[derive(Default)]
struct Line([AtomicU64; 8]);

/// At least 2 MiB, in which 300,000 changed records match one in 20,000 of the others; at most 16 MiB, in which a million
/// match one in a million.
const BYTES_MIN: usize = 2 << 20;
const BYTES_MAX: usize = 16 << 20;

impl Changed {
    /// A filter for a table of versions that may take so many bytes: it takes a quarter of that, within limits.
    pub fn new(version_bytes: usize) -> Self {
        let bytes = (version_bytes / 4).clamp(BYTES_MIN, BYTES_MAX);
        Self::with_lines(bytes / size_of::<Line>())
    }

    /// An empty filter of [this size](Self::lines).
    pub fn with_lines(lines: usize) -> Self {
        Self((0..lines).map(|_| Line::default()).collect())
    }

    /// Its size.
    pub fn lines(&self) -> usize {
        self.0.len()
    }

    /// The four bits of a hash, each with its word.
    fn bits(&self, hash: u64) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let lines_each = self.0.len() / SHARDS;
        // The shard is chosen by the bits from 32 on.
        let line = self.0.get(shard_of(hash) * lines_each + (hash as u32 >> 18) as usize % lines_each);
        let places = [hash, hash >> 9, hash >> 40, hash >> 49];
        line.into_iter().flat_map(move |Line(words)| {
            places.into_iter().filter_map(|place| {
                Some((words.get((place >> 6) as usize % words.len())?, 1 << (place % u64::from(u64::BITS))))
            })
        })
    }

    /// Notes that a record has been changed.
    #[inline]
    pub fn note(&self, hash: u64) {
        if planted(Bug::CoveredChangeForgotten) {
            return;
        }
        for (word, bit) in self.bits(hash) {
            // Relaxed, here and below, in two steps: the shard is locked. One step would cost the time of a cache miss.
            word.store(word.load(Ordering::Relaxed) | bit, Ordering::Relaxed);
        }
    }

    /// Notes all that was noted in another filter of the same size. Nobody notes anything in either, or asks.
    pub fn note_all(&self, other: &Self) {
        let (words, others) =
            [self, other].map(|filter| filter.0.iter().flat_map(|Line(words)| words)).into();
        for (word, more) in words.zip(others) {
            word.store(word.load(Ordering::Relaxed) | more.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Whether this hash was noted, or others with the same bits.
    #[inline]
    pub fn has(&self, hash: u64) -> bool {
        // No branch that waits for memory: the lines of several hashes are fetched at once.
        self.bits(hash).fold(true, |all, (word, bit)| all & (word.load(Ordering::Relaxed) & bit != 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::before::hash_of;
    use vellum_base::PageId;

    #[test]
    fn what_was_noted_is_found_and_little_else() {
        for (version_bytes, noted, others_max) in
            [(0, 300_000_u32, 60), (64 << 20, 300_000, 2), (64 << 20, 1_000_000, 20)]
        {
            let changed = Changed::new(version_bytes);
            let hash = |number: u32| hash_of(PageId(7), &number.to_be_bytes());
            (0..noted).for_each(|number| changed.note(hash(number)));
            assert!((0..noted).all(|number| changed.has(hash(number))));
            let others = (noted..noted + 1_000_000).filter(|number| changed.has(hash(*number))).count();
            assert!(
                others < others_max,
                "{others} of a million, after {noted} in a filter for {version_bytes}"
            );
        }
    }
}
