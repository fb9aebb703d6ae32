//! The counters of the pool.

use std::sync::atomic::{AtomicU64, Ordering};
use vellum_vm::{FileDescription, ReleaseMethod};

/// The counters. Except for `hits`, each is touched only where something slow happens anyway.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) hits: Counter,
    pub(crate) misses: Counter,
    pub(crate) pages_read: Counter,
    pub(crate) pages_evicted: Counter,
    pub(crate) pages_written: Counter,
    pub(crate) write_errors: Counter,
    pub(crate) eviction_batches: Counter,
    pub(crate) waits: Counter,
    pub(crate) restarts: Counter,
    pub(crate) frees_refused: Counter,
    pub(crate) releases_refused: Counter,
    pub(crate) checkpoints: Counter,
    pub(crate) checkpoint_pages_written: Counter,
}

/// One counter. Relaxed throughout: no decision depends on it.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What the pool has done since it was opened, and its present state.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolStatistics {
    /// Optimistic reads that found their page in memory; `None` unless
    /// [`PoolOptions::count_hits`](crate::PoolOptions::count_hits) was asked for.
    pub hits: Option<u64>,
    /// Extents that were needed, were not in memory, and were read from storage, or should have been.
    pub misses: u64,
    /// Pages read from storage. What the pool reads for itself when it opens a file is not counted.
    pub pages_read: u64,
    /// Pages whose memory was given back to make room.
    pub pages_evicted: u64,
    /// Pages written to storage. What the pool writes for itself, the superblocks and the space map, is not
    /// counted.
    pub pages_written: u64,
    /// How often an extent could not be written, because the write failed or because the log could not be made durable
    /// first. Its changes are still in memory.
    pub write_errors: u64,
    /// Batches in which at least one page was evicted.
    pub eviction_batches: u64,
    /// How often a thread had to sleep for a latch.
    pub waits: u64,
    /// How often [`Navigation::resolve`](crate::Navigation::resolve) let an operation restart, because of a conflict or
    /// a miss.
    pub restarts: u64,
    /// How often an operation wanted to free what is not allocated. Nothing was freed; the structure that asked for it
    /// is damaged.
    pub frees_refused: u64,
    /// How often the system refused to take memory back, for example because the process had locked it (`mlockall`);
    /// the pool's memory was then unlocked.
    pub releases_refused: u64,
    /// How often [`Pool::checkpoint_at`](crate::Pool::checkpoint_at) has completed.
    pub checkpoints: u64,
    /// Pages that it has written, including those of attempts that failed, and those written by
    /// [`Allocation::persist`](crate::Allocation::persist).
    pub checkpoint_pages_written: u64,
    /// Pages that are freed, and will be reused when the record that frees them is durable.
    pub pages_quarantined: u64,
    /// Pages that are in memory or about to be: the number that counts against the limit.
    pub pages_resident: u64,
    /// The most pages that may be in memory.
    pub pages_limit: u64,
    /// Pages in memory that are backed by huge pages.
    pub pages_huge: u64,
    /// Pages allocated in the file, including the pool's own.
    pub pages_allocated: u64,
    /// Pages of the file up to the last one that was ever allocated, including the free ones among them.
    pub pages_in_file: u64,
    /// How memory is given back to the system.
    pub release_method: ReleaseMethod,
    /// How the file is read and written.
    pub file: FileDescription,
}
