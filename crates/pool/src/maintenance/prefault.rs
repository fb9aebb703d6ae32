//! Memory for the pages to come.
//!
//! Whoever fills a new page first waits for the kernel to find memory and to clear it: on a virtual machine, whose host
//! may have to find it too, several microseconds. While a structure grows at the end of the file, the background
//! thread fetches the memory of the next pages ahead of it. How far it is ahead starts small and doubles, so that
//! little is fetched for somebody who allocates little.
//!
//! Once the window spans a run that a huge page can back, such runs come as huge pages: in half the time, and readers
//! walk the page table less. But on a virtual machine that has to get the memory for it from its host first it takes
//! several times as long, and small pages, which are more often there, are fetched until the loss is a small part of all.
//!
//! Such pages are zero, as those that were never touched, and not counted in the budget: there are
//! [`WINDOW_MAX`] of them at most, and none while memory is short.

use crate::{core::Core, primitive::AtomicU64};
use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};
use vellum_base::{PAGE_SIZE, PageId};

/// How many pages ahead of the end of the file: at first, and at most (4 MiB).
const WINDOW_MIN: u64 = 64;
const WINDOW_MAX: u64 = 1024;
/// How many pages are fetched at once, before another look at whether memory is short.
const STEP: u64 = 64;
/// Huge pages that take longer than small ones may cost one part in so many of the time. For how many pages none are tried
/// after one that took long, at most.
const PART: u32 = 16;
const SMALL_MAX: u64 = 1 << 16;

/// When memory is to be fetched ahead.
pub(crate) struct PrefaultRequests {
    /// The background thread is asked for more when the file ends beyond this page.
    ask_at: AtomicU64,
}

impl PrefaultRequests {
    /// For a file that ends at page `end`; nothing is ever fetched unless it is `wanted`.
    pub fn new(end: u64, wanted: bool) -> Self {
        Self { ask_at: AtomicU64::new(if wanted { end + WINDOW_MIN } else { u64::MAX }) }
    }
}

/// How far the background thread has come.
pub(crate) struct Prefaulter {
    window: u64,
    /// The memory of the pages before this one is populated, or lies below the end of the file.
    fetched: u64,
    /// How long a small page takes, on average.
    small_page: Duration,
    /// Before this page no huge ones are tried.
    small_before: u64,
}

impl Prefaulter {
    pub fn new() -> Self {
        Self { window: WINDOW_MIN, fetched: 0, small_page: Duration::ZERO, small_before: 0 }
    }

    /// Fetches the memory of pages beyond the end of the file, after somebody has asked for it.
    pub fn run(&mut self, core: &Core) {
        let end = core.space.end();
        let stop = (end + self.window).min(core.capacity_pages);
        let mut from = self.fetched.max(end);
        while from < stop && core.budget.is_ample() && !core.budget.is_stopped() {
            if let Some(pages) = self.prefault_run(core, from) {
                from += pages;
                continue;
            }
            let pages = STEP.min(stop - from).min(core.pages_to_run(from));
            let begun = Instant::now();
            if !core.pages.populate(from as usize * PAGE_SIZE, pages as usize * PAGE_SIZE) {
                // Without memory, or from a kernel that does not know how. Nobody asks again.
                return;
            }
            self.small_page = (self.small_page * 7 + begun.elapsed() / pages as u32) / 8;
            from += pages;
        }
        self.fetched = from;
        core.prefault.ask_at.store(stop - (stop - end) / 2, Ordering::Relaxed);
        self.window = (self.window * 2).min(WINDOW_MAX);
    }

    /// Fetches a run as a huge page, if one begins at page `from` and it is worth while. Returns how many pages it has.
    fn prefault_run(&mut self, core: &Core, from: u64) -> Option<u64> {
        if self.window < WINDOW_MAX || from < self.small_before {
            return None;
        }
        let begun = Instant::now();
        let pages = core.prefault_run(PageId(from))?;
        self.judge(from, pages, begun.elapsed());
        Some(pages)
    }

    /// Decides whether huge pages go on, after one for the run at page `from` took so long.
    fn judge(&mut self, from: u64, pages: u64, took: Duration) {
        let lost = took.saturating_sub(self.small_page * pages as u32);
        let small = (lost * PART).as_nanos() / self.small_page.as_nanos().max(1);
        self.small_before = from + u64::try_from(small).unwrap_or(SMALL_MAX).min(SMALL_MAX);
    }
}

impl Core {
    /// Notes that an extent was allocated that ends before page `end`.
    #[inline]
    pub(crate) fn allocated_up_to(&self, end: u64) {
        // Relaxed: all that depends on it is who asks, and when.
        if end > self.prefault.ask_at.load(Ordering::Relaxed)
            && self.prefault.ask_at.swap(u64::MAX, Ordering::Relaxed) != u64::MAX
        {
            self.budget.ask_for_memory();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Pool, PoolOptions};
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;
    use vellum_base::{Extent, PageKind};
    use vellum_vm::{ReleaseMethod, SimulatedFile};

    /// A pool in memory that page faults bring, whatever the machine has.
    fn pool(pool_bytes: u64) -> Pool {
        let options = PoolOptions::default()
            .pool_bytes(pool_bytes)
            .capacity_bytes(1 << 28)
            .background_eviction(false)
            .huge_pages(false)
            .release_method(ReleaseMethod::Madvise);
        Pool::create_on(Arc::new(SimulatedFile::new(1)), &options).unwrap()
    }

    /// How many of the pages behind the end of the file have memory.
    fn ahead(pool: &Pool) -> usize {
        let end = pool.core().address(PageId(pool.core().space.end())) as u64;
        let mut entries = vec![0; 2 * WINDOW_MAX as usize * 8];
        let map = std::fs::File::open("/proc/self/pagemap").unwrap();
        map.read_exact_at(&mut entries, end / PAGE_SIZE as u64 * 8).unwrap();
        // Bit 63 of the 64 for each page says that it is in memory.
        entries.chunks_exact(8).filter(|entry| entry[7] & 0x80 != 0).count()
    }

    #[test]
    fn the_memory_of_the_next_pages_is_there_before_they_are() {
        let pool = pool(1 << 26);
        let mut prefaulter = Prefaulter::new();
        assert_eq!(ahead(&pool), 0);
        for expected in [WINDOW_MIN, 2 * WINDOW_MIN] {
            prefaulter.run(pool.core());
            assert_eq!(ahead(&pool) as u64, expected);
        }
        for _ in 0..WINDOW_MIN {
            let page = pool.allocate(1, PageKind::USER).unwrap().keep();
            assert!(page.payload().iter().all(|byte| *byte == 0));
        }
        assert_eq!(ahead(&pool), WINDOW_MIN as usize);
        for _ in 0..10 {
            prefaulter.run(pool.core());
        }
        assert_eq!(ahead(&pool), WINDOW_MAX as usize);
    }

    /// A pool of 64 MiB with huge pages, and a prefaulter that has come as far as it fetches whole runs; it has seen a small
    /// page take so long.
    fn with_runs(small_page: Duration) -> Option<(Pool, Prefaulter)> {
        let options = PoolOptions::default()
            .pool_bytes(1 << 26)
            .capacity_bytes(1 << 28)
            .background_eviction(false)
            .release_method(ReleaseMethod::Madvise);
        let pool = Pool::create_on(Arc::new(SimulatedFile::new(1)), &options).unwrap();
        let core = pool.core();
        let run = core.pages_to_run(core.space.end());
        if run == u64::MAX || core.prefault_run(PageId(core.space.end() + run)).is_none() {
            eprintln!("the system gives no huge pages");
            return None;
        }
        core.split_huge_pages(&[Extent::page(PageId(core.space.end() + run))]);
        assert_eq!(pool.statistics().pages_huge, 0);
        Some((pool, Prefaulter { window: WINDOW_MAX, small_page, ..Prefaulter::new() }))
    }

    #[test]
    fn whole_runs_are_fetched_as_huge_pages() {
        let Some((pool, mut prefaulter)) = with_runs(Duration::from_secs(1)) else { return };
        // The first run was tried out, and is small pages.
        while pool.statistics().pages_allocated < 4 * WINDOW_MAX {
            prefaulter.run(pool.core());
            let mut page = pool.allocate(1, PageKind::USER).unwrap();
            assert!(page.payload_mut().iter().all(|byte| *byte == 0));
            page.payload_mut().fill(1);
            drop(page.keep());
        }
        let statistics = pool.statistics();
        assert!(statistics.pages_huge >= 3 * WINDOW_MAX, "{} pages", statistics.pages_huge);
        assert!(statistics.pages_huge <= 6 * WINDOW_MAX, "{} pages", statistics.pages_huge);
    }

    #[test]
    fn after_a_run_that_took_longer_than_small_pages_these_are_fetched_for_a_while() {
        let Some((pool, mut prefaulter)) = with_runs(Duration::from_micros(1)) else { return };
        for (took, from, small_before) in [
            (0, 0, 0),
            (512, 512, 512),
            (513, 1024, 1024 + u64::from(PART)),
            (612, 2048, 2048 + 100 * u64::from(PART)),
            (1_000_000, 65536, 65536 + SMALL_MAX),
        ] {
            prefaulter.judge(from, 512, Duration::from_micros(took));
            assert_eq!(prefaulter.small_before, small_before);
        }
        prefaulter.run(pool.core());
        assert_eq!((ahead(&pool) as u64, pool.statistics().pages_huge), (WINDOW_MAX, 0));
    }

    #[test]
    fn nothing_is_fetched_while_memory_is_short() {
        let pool = pool(1 << 20);
        while pool.core().budget.is_ample() {
            drop(pool.allocate(1, PageKind::USER).unwrap().keep());
        }
        Prefaulter::new().run(pool.core());
        assert_eq!(ahead(&pool), 0);
    }
}
