//! The records of the table of versions that have been changed since some moment.

use super::{SHARDS, shard_of};
use crate::plant::{Bug, planted};
// No thread waits for what is noted in the bitmap.
use std::sync::atomic::AtomicU64;
use vellum_base::primitive::Ordering;

/// Hashes of records that have been changed. The bits of one shard's records lie together, and are read and written
/// under that shard's lock.
pub(crate) struct Changed(Box<[AtomicU64]>);

/// 2 MiB, two bits a hash: if a million records are changed, one in 80 of the others seems to be changed, of 300,000 one
/// in 800.
const WORDS: usize = 1 << 18;

impl Default for Changed {
    fn default() -> Self {
        Self((0..WORDS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Changed {
    /// The bits of a hash, each with its word.
    fn bits(&self, hash: u64) -> impl Iterator<Item = (&AtomicU64, u64)> {
        const WORDS_EACH: usize = WORDS / SHARDS;
        let first = shard_of(hash) * WORDS_EACH;
        // The shard is chosen by the bits between the two.
        [hash, hash >> 40].into_iter().filter_map(move |bits| {
            Some((self.0.get(first + (bits >> 6) as usize % WORDS_EACH)?, 1 << (bits % 64)))
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

    /// Notes so much that every hash counts as noted.
    #[cfg(test)]
    pub fn note_everything(&self) {
        self.0.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
    }

    /// Whether this hash was noted, or others with the same bits.
    pub fn has(&self, hash: u64) -> bool {
        self.bits(hash).all(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::before::hash_of;
    use vellum_base::PageId;

    #[test]
    fn what_was_noted_is_found_and_little_else() {
        const NOTED: u32 = 300_000;
        let changed = Changed::default();
        let hash = |number: u32| hash_of(PageId(7), &number.to_be_bytes());
        (0..NOTED).for_each(|number| changed.note(hash(number)));
        assert!((0..NOTED).all(|number| changed.has(hash(number))));
        let others = (NOTED..2 * NOTED).filter(|number| changed.has(hash(*number))).count();
        assert!(others < 900, "{others}");
    }
}
