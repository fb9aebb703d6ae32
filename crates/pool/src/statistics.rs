//! What the pool counts.

use std::sync::atomic::{AtomicU64, Ordering};
use vellum_vm::{FileDescription, ReleaseMethod};

/// The counters; each is touched only where something slow happens anyway, except `hits`.
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
}

/// One counter. Relaxed throughout: nothing is decided by it.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What the pool has done since it was opened, and how it stands.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolStatistics {
    /// Optimistic reads that found their page in memory; `None` unless
    /// [`PoolOptions::count_hits`](crate::PoolOptions::count_hits) was asked for.
    pub hits: Option<u64>,
    /// Extents that had to be read from storage.
    pub misses: u64,
    /// Pages read from storage.
    pub pages_read: u64,
    /// Pages whose memory was given back to make room.
    pub pages_evicted: u64,
    /// Pages written to storage.
    pub pages_written: u64,
    /// Writes that failed; what they should have written is still in memory.
    pub write_errors: u64,
    /// Batches in which pages were evicted.
    pub eviction_batches: u64,
    /// How often a thread had to sleep for a latch.
    pub waits: u64,
    /// How often an operation had to begin anew, because of a conflict or a miss.
    pub restarts: u64,
    /// Pages in memory now.
    pub pages_resident: u64,
    /// The most pages that may be in memory.
    pub pages_limit: u64,
    /// Pages allocated in the file.
    pub pages_allocated: u64,
    /// Pages in the file that were ever allocated, the free ones among them included.
    pub pages_in_file: u64,
    /// How memory is given back to the system.
    pub release_method: ReleaseMethod,
    /// How the file is read and written.
    pub file: FileDescription,
}

impl Counters {
    pub(crate) fn collect(&self, core: &crate::core::Core) -> PoolStatistics {
        PoolStatistics {
            hits: core.count_hits.then(|| self.hits.get()),
            misses: self.misses.get(),
            pages_read: self.pages_read.get(),
            pages_evicted: self.pages_evicted.get(),
            pages_written: self.pages_written.get(),
            write_errors: self.write_errors.get(),
            eviction_batches: self.eviction_batches.get(),
            waits: self.waits.get(),
            restarts: self.restarts.get(),
            pages_resident: core.budget.used() as u64,
            pages_limit: core.budget.limit() as u64,
            pages_allocated: core.space.allocated_pages(),
            pages_in_file: core.space.end(),
            release_method: core.releaser.method(),
            file: core.file.description(),
        }
    }
}
