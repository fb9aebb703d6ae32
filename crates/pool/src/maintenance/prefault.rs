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
//! Such pages are zero, as those that were never touched. They form the *window*, which begins at the highest end that
//! the file has had, and are counted in the budget until they are allocated: whoever allocates them counts them anew,
//! or releases their memory if it writes past the pool. There are [`WINDOW_MAX`] and a run of them at most, and none
//! while memory is short.

use crate::{
    core::{Core, lock},
    primitive::AtomicU64,
};
use std::{
    ops::Range,
    sync::{
        Mutex,
        atomic::{Ordering, fence},
    },
    time::{Duration, Instant},
};
use vellum_base::{Extent, PAGE_SIZE, PageId};
use vellum_vm::Collapse;

/// How many pages ahead of the end of the file: at first, and at most (4 MiB).
const WINDOW_MIN: u64 = 64;
const WINDOW_MAX: u64 = 1024;
/// How many pages are fetched at once, before another look at whether memory is short.
const STEP: u64 = 64;
/// Huge pages that take longer than small ones may cost one part in so many of the time. For how many pages none are tried
/// after one that took long, at most.
const PART: u32 = 16;
const SMALL_MAX: u64 = 1 << 16;

/// Which memory has been fetched ahead, and when more is to be.
pub(crate) struct PrefaultWindow {
    /// The background thread is asked for more when the file ends beyond this page.
    ask_at: AtomicU64,
    /// The pages that have memory or will have it in a moment, are counted in the budget, and were never allocated.
    pages: Mutex<Range<u64>>,
    /// Locked while memory is fetched for pages that are in the window already, before `pages`.
    populating: Mutex<()>,
}

impl PrefaultWindow {
    /// For a file that ends at page `end`; nothing is ever fetched unless it is `wanted`.
    pub fn new(end: u64, wanted: bool) -> Self {
        Self {
            ask_at: AtomicU64::new(if wanted { end + WINDOW_MIN } else { u64::MAX }),
            pages: Mutex::new(end..end),
            populating: Mutex::new(()),
        }
    }

    /// The file ends at page `end` from now on. Returns the pages that leave the window: the caller owns their memory,
    /// and what they count in the budget.
    pub fn leave(&self, end: u64) -> Range<u64> {
        let mut pages = lock(&self.pages);
        let left = pages.start..pages.end.min(end.max(pages.start));
        let start = pages.start.max(end);
        *pages = start..pages.end.max(start);
        left
    }
}

/// How far the background thread has come.
pub(crate) struct Prefaulter {
    window: u64,
    /// How long a small page takes, on average.
    small_page: Duration,
    /// Before this page no huge ones are tried.
    small_before: u64,
}

impl Prefaulter {
    pub fn new() -> Self {
        Self { window: WINDOW_MIN, small_page: Duration::ZERO, small_before: 0 }
    }

    /// Fetches the memory of pages beyond the end of the file, after somebody has asked for it.
    pub fn run(&mut self, core: &Core) {
        let end = core.space.end();
        let stop = (end + self.window).min(core.capacity_pages);
        while core.budget.is_ample() && !core.budget.is_stopped() {
            let _populating = lock(&core.prefault.populating);
            let from = lock(&core.prefault.pages).end;
            if from >= stop {
                break;
            }
            if self.prefault_run(core, from) {
                continue;
            }
            let pages = STEP.min(stop - from).min(core.pages_to_run(from));
            let begun = Instant::now();
            let fetch = || core.pages.populate(from as usize * PAGE_SIZE, pages as usize * PAGE_SIZE);
            match core.prefault(from..from + pages, fetch) {
                Prefaulted::Done => {}
                Prefaulted::NotNow => break,
                // Without memory, or from a kernel that does not know how. Nobody asks again.
                Prefaulted::Refused => return,
            }
            self.small_page = (self.small_page * 7 + begun.elapsed() / pages as u32) / 8;
        }
        core.prefault.ask_at.store(stop - (stop - end) / 2, Ordering::Relaxed);
        self.window = (self.window * 2).min(WINDOW_MAX);
    }

    /// Gives back what was fetched: memory is short.
    pub fn release(&mut self, core: &Core) {
        let _populating = lock(&core.prefault.populating);
        core.shrink_window(0);
        self.window = WINDOW_MIN;
    }

    /// Fetches a run as a huge page, if one begins at page `from` and it is worth while. Returns whether it did.
    fn prefault_run(&mut self, core: &Core, from: u64) -> bool {
        if self.window < WINDOW_MAX || from < self.small_before {
            return false;
        }
        let begun = Instant::now();
        let Some(pages) = core.prefault_run(PageId(from)) else { return false };
        self.judge(from, pages, begun.elapsed());
        true
    }

    /// Decides whether huge pages go on, after one for the run at page `from` took so long.
    fn judge(&mut self, from: u64, pages: u64, took: Duration) {
        let lost = took.saturating_sub(self.small_page * pages as u32);
        let small = (lost * PART).as_nanos() / self.small_page.as_nanos().max(1);
        self.small_before = from + u64::try_from(small).unwrap_or(SMALL_MAX).min(SMALL_MAX);
    }
}

/// What became of an attempt to fetch memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Prefaulted {
    Done,
    /// There is no room in the budget, or the file has grown beyond the window meanwhile.
    NotNow,
    /// The system gave none.
    Refused,
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

    /// Takes the next pages into the window, and fetches their memory by `fetch`. `populating` is locked.
    pub(crate) fn prefault(&self, run: Range<u64>, fetch: impl FnOnce() -> bool) -> Prefaulted {
        let count = (run.end - run.start) as usize;
        if !self.budget.try_reserve(count) {
            return Prefaulted::NotNow;
        }
        let taken = {
            let mut pages = lock(&self.prefault.pages);
            let taken = pages.end == run.start;
            pages.end = if taken { run.end } else { pages.end };
            taken
        };
        if !taken {
            self.budget.give_back(count);
            return Prefaulted::NotNow;
        }
        let fetched = fetch();
        if !fetched {
            self.shrink_window(run.start);
        }
        // What was allocated meanwhile may have left memory again before its memory came.
        let start = lock(&self.prefault.pages).start;
        if start > run.start {
            self.note_strays(run.start..start.min(run.end));
        }
        if fetched { Prefaulted::Done } else { Prefaulted::Refused }
    }

    /// Backs the run that begins at a page beyond the end of the file with a huge page. Returns how many pages that
    /// are; nothing if no run begins there, the window does not end there, or it could not be.
    pub(crate) fn prefault_run(&self, first: PageId) -> Option<u64> {
        let huge = &self.huge;
        let behind = first.0.checked_sub(huge.first_page).filter(|_| huge.is_enabled())?;
        let (run, end) = (behind / huge.run_pages, first.0 + huge.run_pages);
        if behind % huge.run_pages != 0 || end > self.capacity_pages || huge.is_flagged(run) {
            return None;
        }
        // Before the run enters the window, which takes the lock that allocations take: whoever releases a page of the
        // run has allocated it later, and sees the flag.
        huge.flag(run);
        let bytes = huge.run_pages as usize * PAGE_SIZE;
        self.prefault_flagged(run, || {
            self.pages.populate_huge(first.offset() as usize, bytes) == Collapse::Done
        })
    }

    /// Fetches the memory of a flagged run by `fetch`.
    pub(super) fn prefault_flagged(&self, run: u64, fetch: impl FnOnce() -> bool) -> Option<u64> {
        let huge = &self.huge;
        let first = huge.first_page_of(run);
        let outcome = self.prefault(first..first + huge.run_pages, || {
            let fetched = fetch();
            // SeqCst: orders the memory before the look; see the module's invariant.
            fence(Ordering::SeqCst);
            if !huge.is_flagged(run) {
                // A page of it was allocated and released meanwhile, and split what was not there yet.
                self.pages.split(PageId(first).offset() as usize);
            }
            fetched
        });
        if outcome == Prefaulted::Done {
            return Some(huge.run_pages);
        }
        huge.unflag(run);
        None
    }

    /// Releases the memory of the window's pages from `from` on. `populating` is locked.
    fn shrink_window(&self, from: u64) {
        // While it is locked none of them can be allocated and written.
        let mut pages = lock(&self.prefault.pages);
        let from = from.max(pages.start);
        let released = from..pages.end.max(from);
        pages.end = from.min(pages.end);
        self.drop_prefaulted(released);
    }

    /// Releases memory that has left the window for pages that are written past the pool.
    pub(crate) fn release_prefaulted(&self, pages: Range<u64>) {
        if !pages.is_empty() {
            // Some of it may be coming only now.
            let _populating = lock(&self.prefault.populating);
            self.drop_prefaulted(pages);
        }
    }

    fn drop_prefaulted(&self, pages: Range<u64>) {
        let count = pages.end.saturating_sub(pages.start);
        if count > 0 {
            self.drop_memory(Extent { head: PageId(pages.start), pages: count as u32 });
            self.budget.give_back(count as usize);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{ExtentWriter, PageWriter, Streams};
    use crate::{Pool, PoolOptions};
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;
    use vellum_base::PageKind;
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
        with_memory(pool, pool.core().space.end(), 2 * WINDOW_MAX)
    }

    /// How many of so many pages have memory.
    fn with_memory(pool: &Pool, first: u64, pages: u64) -> usize {
        let first = pool.core().address(PageId(first)) as u64;
        let mut entries = vec![0; pages as usize * 8];
        let map = std::fs::File::open("/proc/self/pagemap").unwrap();
        map.read_exact_at(&mut entries, first / PAGE_SIZE as u64 * 8).unwrap();
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
        let (end, run) = (core.space.end(), core.pages_to_run(core.space.end()));
        let none = run == u64::MAX || {
            assert_eq!(core.prefault(end..end + run, || true), Prefaulted::Done);
            core.prefault_run(PageId(end + run)).is_none()
        };
        if none {
            eprintln!("the system gives no huge pages");
            return None;
        }
        let mut prefaulter = Prefaulter::new();
        prefaulter.release(core);
        let statistics = pool.statistics();
        assert_eq!((statistics.pages_huge, statistics.pages_resident), (0, 0));
        Some((pool, Prefaulter { window: WINDOW_MAX, small_page, ..prefaulter }))
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
    fn what_was_fetched_is_counted_until_it_is_allocated_or_released() {
        let pool = pool(1 << 26);
        let mut prefaulter = Prefaulter::new();
        let resident = || pool.statistics().pages_resident;
        prefaulter.run(pool.core());
        assert_eq!((resident(), ahead(&pool) as u64), (WINDOW_MIN, WINDOW_MIN));
        for _ in 0..10 {
            drop(pool.allocate(1, PageKind::USER).unwrap().keep());
        }
        drop(pool.allocate(2, PageKind::USER).unwrap().keep());
        assert_eq!(resident(), WINDOW_MIN, "what was counted is counted on");
        prefaulter.run(pool.core());
        assert_eq!(resident(), 12 + 2 * WINDOW_MIN);
        // Part of the window, and all of it and more, go to extents that are written past the pool.
        for pages in [100, 1100] {
            let stream = pool.stream(pages, PageKind::USER).unwrap();
            let extent = stream.extent();
            stream.finish().unwrap();
            assert_eq!(with_memory(&pool, extent.head.0, u64::from(pages)), 0);
            assert_eq!(resident() as usize, 12 + ahead(&pool));
        }
        assert_eq!(resident(), 12);
        prefaulter.run(pool.core());
        assert_eq!(resident(), 12 + 4 * WINDOW_MIN);
        prefaulter.release(pool.core());
        assert_eq!((resident(), ahead(&pool)), (12, 0));
        prefaulter.run(pool.core());
        assert_eq!((resident(), ahead(&pool) as u64), (12 + WINDOW_MIN, WINDOW_MIN));
    }

    #[test]
    fn what_is_allocated_and_freed_while_its_memory_comes_keeps_none() {
        let pool = pool(1 << 26);
        let core = pool.core();
        let end = core.space.end();
        let outcome = core.prefault(end..end + 64, || {
            drop(pool.allocate(4, PageKind::USER).unwrap().keep());
            drop(pool.allocate(3, PageKind::USER).unwrap());
            core.pages.populate(end as usize * PAGE_SIZE, 64 * PAGE_SIZE)
        });
        assert_eq!(outcome, Prefaulted::Done);
        let there = with_memory(&pool, 0, core.space.end() + WINDOW_MAX);
        assert_eq!((core.budget.used(), there), (64 - 3, 64 - 3));
    }

    #[test]
    fn pages_of_a_bulk_load_keep_no_memory_that_they_do_not_use() {
        let pool = pool(1 << 20);
        let core = pool.core();
        Prefaulter::new().run(core);
        assert_eq!(core.budget.used() as u64, WINDOW_MIN);
        // So little is free that pages are written past the pool.
        assert!(core.budget.try_reserve(150));
        let mut pages = pool.pages(PageKind::USER).unwrap();
        for _ in 0..40 {
            pages.append(|_| Ok::<(), crate::PoolError>(())).unwrap();
        }
        pages.settle().unwrap();
        pages.keep();
        let there = with_memory(&pool, 0, core.space.end() + WINDOW_MAX);
        assert!(there < 64 && core.budget.used() == 150 + there, "{there} of {}", core.budget.used());
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
