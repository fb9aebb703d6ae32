//! Memory for the pages to come.
//!
//! Whoever fills a new page first waits for the kernel to find memory and to clear it: on a virtual machine, whose host
//! may have to find it too, several microseconds. While a structure grows at the end of the file, the background
//! thread fetches the memory of the next pages ahead of it. How far it is ahead starts small and doubles, so that
//! little is fetched for somebody who allocates little.
//!
//! Such pages are zero, as those that were never touched, and not counted in the budget: there are
//! [`WINDOW_MAX`] of them at most, and none while memory is short.

use crate::{core::Core, primitive::AtomicU64};
use std::sync::atomic::Ordering;
use vellum_base::PAGE_SIZE;

/// How many pages ahead of the end of the file: at first, and at most (4 MiB).
const WINDOW_MIN: u64 = 64;
const WINDOW_MAX: u64 = 1024;
/// How many pages are fetched at once, before another look at whether memory is short.
const STEP: u64 = 64;

/// When memory is to be fetched ahead.
pub(crate) struct Ahead {
    /// The background thread is asked for more when the file ends beyond this page.
    ask_at: AtomicU64,
}

impl Ahead {
    /// For a file that ends at page `end`; nothing is ever fetched unless it is `wanted`.
    pub fn new(end: u64, wanted: bool) -> Self {
        Self { ask_at: AtomicU64::new(if wanted { end + WINDOW_MIN } else { u64::MAX }) }
    }
}

/// How far the background thread has come.
pub(crate) struct Fetcher {
    window: u64,
    /// The memory of the pages before this one was fetched, or was none of its business.
    fetched: u64,
}

impl Fetcher {
    pub fn new() -> Self {
        Self { window: WINDOW_MIN, fetched: 0 }
    }

    /// Fetches the memory of pages beyond the end of the file, after somebody has asked for it.
    pub fn fetch(&mut self, core: &Core) {
        let end = core.space.end();
        let stop = (end + self.window).min(core.capacity_pages);
        let mut from = self.fetched.max(end);
        while from < stop && core.budget.is_ample() && !core.budget.is_stopped() {
            let pages = STEP.min(stop - from);
            if !core.pages.populate(from as usize * PAGE_SIZE, pages as usize * PAGE_SIZE) {
                // Without memory, or from a kernel that does not know how. Nobody asks again.
                return;
            }
            from += pages;
        }
        self.fetched = from;
        core.ahead.ask_at.store(stop - (stop - end) / 2, Ordering::Relaxed);
        self.window = (self.window * 2).min(WINDOW_MAX);
    }
}

impl Core {
    /// Notes that an extent was allocated that ends before page `end`.
    #[inline]
    pub(crate) fn allocated_up_to(&self, end: u64) {
        // Relaxed: all that depends on it is who asks, and when.
        if end > self.ahead.ask_at.load(Ordering::Relaxed)
            && self.ahead.ask_at.swap(u64::MAX, Ordering::Relaxed) != u64::MAX
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
    use vellum_base::{PageId, PageKind};
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
        let mut fetcher = Fetcher::new();
        assert_eq!(ahead(&pool), 0);
        for expected in [WINDOW_MIN, 2 * WINDOW_MIN] {
            fetcher.fetch(pool.core());
            assert_eq!(ahead(&pool) as u64, expected);
        }
        for _ in 0..WINDOW_MIN {
            let page = pool.allocate(1, PageKind::USER).unwrap().keep();
            assert!(page.payload().iter().all(|byte| *byte == 0));
        }
        assert_eq!(ahead(&pool), WINDOW_MIN as usize);
        for _ in 0..10 {
            fetcher.fetch(pool.core());
        }
        assert_eq!(ahead(&pool), WINDOW_MAX as usize);
    }

    #[test]
    fn nothing_is_fetched_while_memory_is_short() {
        let pool = pool(1 << 20);
        while pool.core().budget.is_ample() {
            drop(pool.allocate(1, PageKind::USER).unwrap().keep());
        }
        Fetcher::new().fetch(pool.core());
        assert_eq!(ahead(&pool), 0);
    }
}
