//! What covers old snapshots, beside versions: see [`covers`](super::covers).

use super::images::Images;
use crate::plant::{Bug, planted};
// No thread waits for what is noted in the bitmap, nor for these numbers.
use std::sync::{Arc, atomic::AtomicU64};
use vellum_base::primitive::Ordering;

/// The snapshots that a generation covers: those of transactions with numbers up to `id`, which see commits up to `time`.
#[derive(Clone, Copy)]
pub(crate) struct Covered {
    pub id: u64,
    pub time: u64,
}

/// What covers snapshots, beside versions.
#[derive(Default)]
pub(super) struct Cover {
    /// Leaves as they were before their first changes.
    pub images: Images,
    /// Which records have been changed.
    pub changed: Arc<Changed>,
    /// It covers the snapshots of transactions up to this number; zero if it does not, or not yet.
    pub covered: AtomicU64,
    /// Leaves with lesser LSNs have not changed since it was made.
    pub place: AtomicU64,
    /// How many covers had begun with it.
    pub number: AtomicU64,
}

/// Hashes of records that have been changed.
pub(crate) struct Changed(Box<[AtomicU64]>);

impl Default for Changed {
    fn default() -> Self {
        /// 2 MiB, one bit a hash: if a million records are changed, one in 16 that are not looks changed.
        const WORDS: usize = 1 << 18;
        Self((0..WORDS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Changed {
    fn bit(&self, hash: u64) -> Option<(&AtomicU64, u64)> {
        // The shards of the versions use other bits.
        let word = self.0.get((hash >> 6) as usize % self.0.len().max(1))?;
        Some((word, 1 << (hash % 64)))
    }

    /// Notes that a record has been changed.
    // Relaxed, here and below: bits are set under the lock of the record's shard, and asked for under it.
    #[inline]
    pub fn note(&self, hash: u64) {
        if let Some((word, bit)) = self.bit(hash)
            && word.load(Ordering::Relaxed) & bit == 0
            && !planted(Bug::CoveredChangeForgotten)
        {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    pub fn has(&self, hash: u64) -> bool {
        self.bit(hash).is_none_or(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }
}
