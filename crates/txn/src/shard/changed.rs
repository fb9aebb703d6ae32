//! The records of the table of versions that have been changed since some moment.

use super::{SHARDS, shard_of};
use crate::plant::{Bug, planted};
// No thread waits for what is noted in the bitmap.
use std::sync::atomic::AtomicU64;
use vellum_base::primitive::Ordering;

/// Hashes of records that have been changed. The bits of one shard's records lie together, and are read and written
/// under that shard's lock.
pub(crate) struct Changed(Box<[AtomicU64]>);

/// 2 MiB, one bit a hash: if a million records are changed, one in 16 of the others seems to be changed.
const WORDS: usize = 1 << 18;

impl Default for Changed {
    fn default() -> Self {
        Self((0..WORDS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Changed {
    fn bit(&self, hash: u64) -> Option<(&AtomicU64, u64)> {
        const WORDS_EACH: usize = WORDS / SHARDS;
        let word = shard_of(hash) * WORDS_EACH + (hash >> 6) as usize % WORDS_EACH;
        Some((self.0.get(word)?, 1 << (hash % 64)))
    }

    /// Notes that a record has been changed.
    #[inline]
    pub fn note(&self, hash: u64) {
        if let Some((word, bit)) = self.bit(hash)
            && !planted(Bug::CoveredChangeForgotten)
        {
            // Relaxed, here and below, in two steps: the shard is locked. One step would cost the time of a cache miss.
            word.store(word.load(Ordering::Relaxed) | bit, Ordering::Relaxed);
        }
    }

    /// Whether this hash was noted, or another one with the same bit.
    pub fn has(&self, hash: u64) -> bool {
        self.bit(hash).is_none_or(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }
}
