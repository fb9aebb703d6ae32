//! Huge pages under what stays in memory.
//!
//! A lookup in a large pool spends much of its time in walks of the page table. Where all pages of an aligned run
//! (2 MiB on x86-64) are in memory and nothing will have to be evicted soon, the background thread has the kernel
//! copy the run into one huge page. When one of its pages must go after all, the huge page is split first, so
//! that the page's memory is free at once.
//!
//! It is done only while few pages a second are read from storage, written to it, allocated or evicted, because it takes
//! milliseconds a run and whoever touches the run meanwhile waits. Looks at pages in memory and changes of them do not
//! hold it up; but random ones nearly always meet the run that is being moved, so while other threads of the process use the
//! processor, the thread rests fifty times as long as it worked. Runs that hold extents of several pages are left alone.
//!
//! # Invariant
//! A run that a huge page backs is flagged, or a thread is about to flag it, or to find that one of its pages is
//! gone and split it. So whoever releases a page of it splits it first, or somebody does so behind it. It takes
//! two parties that each write and then read: who releases latches the page and then looks at the flag; who
//! collapses sets the flag and then looks at the latches; both across a sequentially consistent fence.

use crate::core::{Core, lock};
use std::{
    ops::Range,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering, fence},
    },
    time::{Duration, Instant},
};
use vellum_base::{Extent, PAGE_SIZE, PageId};
use vellum_vm::{Collapse, Mapping, cpu_time_of_others, huge_page_bytes};

/// How long it must have been quiet before the first run is collapsed.
const QUIET: Duration = Duration::from_millis(500);
/// It is quiet if not more pages a second are read, written, evicted and allocated, all together: 16 MiB. What happens there
/// while a run is collapsed has to wait, and memory for new pages is fetched by the same thread.
const QUIET_PAGES: u64 = 4096;
/// For how long runs are collapsed at a stretch while the process is idle, and for how long the thread then rests.
const STRETCH: Duration = Duration::from_millis(50);
const REST: Duration = Duration::from_millis(5);
/// While it is not, others lose one part in so many. It is idle if other threads use the processor for less than that.
const PART: u32 = 50;
/// How long to wait when all is done, or the system has no huge page to give.
const IDLE: Duration = Duration::from_secs(30);

/// The runs of a mapping, and which of them a huge page backs.
pub(crate) struct HugeRuns {
    /// The first page of the first run.
    pub(super) first_page: u64,
    /// The pages of a run; 0 if the system has no huge pages or none are wanted.
    pub(super) run_pages: u64,
    flags: Box<[AtomicU64]>,
    count: AtomicU64,
    /// The kernel does not know how.
    refused: AtomicBool,
    /// Pages that may have got memory which nobody counts.
    strays: Mutex<Vec<PageId>>,
}

impl HugeRuns {
    pub fn new(pages: &Mapping, wanted: bool) -> Self {
        let bytes = huge_page_bytes().filter(|_| wanted);
        let Some((bytes, first)) = bytes.map(|bytes| (bytes, pages.first_huge_page(bytes))) else {
            return Self::none();
        };
        let runs = pages.len().saturating_sub(first) / bytes;
        Self {
            first_page: (first / PAGE_SIZE) as u64,
            run_pages: if runs > 0 { (bytes / PAGE_SIZE) as u64 } else { 0 },
            flags: (0..runs.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            ..Self::none()
        }
    }

    fn none() -> Self {
        Self {
            first_page: 0,
            run_pages: 0,
            flags: Box::default(),
            count: AtomicU64::new(0),
            refused: AtomicBool::new(false),
            strays: Mutex::new(Vec::new()),
        }
    }

    /// Whether runs are ever collapsed.
    pub fn is_enabled(&self) -> bool {
        self.run_pages > 0 && !self.refused.load(Ordering::Relaxed)
    }

    /// How many pages huge pages back.
    pub fn pages(&self) -> u64 {
        self.count.load(Ordering::Relaxed) * self.run_pages
    }

    pub(super) fn first_page_of(&self, run: u64) -> u64 {
        self.first_page + run * self.run_pages
    }

    pub(super) fn is_flagged(&self, run: u64) -> bool {
        let word = self.flags.get((run / 64) as usize);
        // Relaxed: the fences of those who depend on the order are beside their calls.
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (run % 64) & 1 == 1)
    }

    pub(super) fn flag(&self, run: u64) {
        if let Some(word) = self.flags.get((run / 64) as usize)
            && word.fetch_or(1 << (run % 64), Ordering::Relaxed) >> (run % 64) & 1 == 0
        {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn unflag(&self, run: u64) -> bool {
        let Some(word) = self.flags.get((run / 64) as usize) else { return false };
        let was = word.fetch_and(!(1 << (run % 64)), Ordering::Relaxed) >> (run % 64) & 1 == 1;
        if was {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        was
    }
}

impl Core {
    /// Splits the huge pages that back parts of extents whose memory is about to be released. The caller has
    /// latched them exclusively.
    pub(crate) fn split_huge_pages(&self, extents: &[Extent]) {
        let huge = &self.huge;
        if huge.run_pages == 0 {
            return;
        }
        // SeqCst: orders the latches before the flags; see the module's invariant.
        fence(Ordering::SeqCst);
        if huge.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        for extent in extents {
            let mut page = extent.head.0.max(huge.first_page);
            while page < extent.end().0 {
                let run = (page - huge.first_page) / huge.run_pages;
                if huge.is_flagged(run) && huge.unflag(run) {
                    self.pages.split(PageId(page).offset() as usize);
                }
                page = huge.first_page_of(run + 1);
            }
        }
    }

    /// Whether every page of a run is in memory, an extent of its own, and not being changed.
    fn is_whole(&self, run: u64) -> bool {
        let first = self.huge.first_page_of(run);
        (first..first + self.huge.run_pages).all(|page| {
            let now = self.state(PageId(page)).load();
            !now.is_evicted() && !now.is_exclusive()
        })
    }

    /// Backs a run with a huge page.
    fn collapse(&self, run: u64) -> Collapse {
        let first = PageId(self.huge.first_page_of(run));
        let bytes = self.huge.run_pages as usize * PAGE_SIZE;
        let outcome = self.pages.collapse(first.offset() as usize, bytes);
        if outcome != Collapse::Done {
            return outcome;
        }
        self.huge.flag(run);
        // SeqCst: orders the flag before the latches; see the module's invariant.
        fence(Ordering::SeqCst);
        if self.is_whole(run) {
            return Collapse::Done;
        }
        // A page went away meanwhile, and the kernel has put zeroes in its place, which are not counted in the budget.
        self.huge.unflag(run);
        self.pages.split(first.offset() as usize);
        self.note_strays(first.0..first.0 + self.huge.run_pages);
        Collapse::Busy
    }

    /// Releases memory that was given to those of the pages that are not in memory.
    pub(crate) fn note_strays(&self, pages: Range<u64>) {
        lock(&self.huge.strays).extend(pages.map(PageId));
        self.release_strays();
    }

    /// Releases memory that was given to pages that are not in memory. What is latched, because it is just
    /// being evicted, say, is left for the next time.
    pub(crate) fn release_strays(&self) {
        let mut strays = lock(&self.huge.strays);
        strays.retain(|page| !self.release_stray(*page));
    }

    /// Releases the memory of a page unless it belongs to an extent in memory. Returns false if that cannot be told
    /// yet.
    fn release_stray(&self, page: PageId) -> bool {
        // Whether the page is in memory, the state of its extent's head tells; its own if it belongs to none.
        let head = self.space.head_of(page).unwrap_or(page);
        let state = self.state(head);
        let now = state.load();
        if !now.is_evicted() || !state.try_exclusive(now) {
            return !now.is_evicted()
                && !now.is_exclusive()
                && self.space.head_of(page).unwrap_or(page) == head;
        }
        // SeqCst: orders the latch before the look. An allocation that makes the page a part of an extent claims it
        // and then looks at its latch (see `Core::claim`), so one of the two sees the other.
        fence(Ordering::SeqCst);
        let certain = match self.space.head_of(page) {
            Some(found) => found == head,
            None => page == head && !self.space.is_claimed(page),
        };
        if certain {
            self.drop_memory(Extent::page(page));
        }
        self.wake(head, state.release_exclusive_evicted());
        certain
    }

    /// How many pages there are before the first run that begins behind a page.
    pub(crate) fn pages_to_run(&self, page: u64) -> u64 {
        let huge = &self.huge;
        match (page.checked_sub(huge.first_page), huge.run_pages) {
            (_, 0) => u64::MAX,
            (None, _) => huge.first_page - page,
            (Some(behind), pages) => pages - behind % pages,
        }
    }

    /// What changes when something is read, evicted, written or allocated.
    fn activity(&self) -> [u64; 4] {
        let counters = &self.counters;
        let numbers = [&counters.misses, &counters.pages_evicted, &counters.pages_written];
        let [misses, evicted, written] = numbers.map(crate::statistics::Counter::get);
        [misses, evicted, written, self.space.allocated_pages()]
    }
}

/// What the background thread does when it is not needed otherwise.
pub(crate) struct HugePageScheduler {
    /// How long to wait after the last look until the next one.
    patience: Duration,
    /// The next run to look at.
    run: u64,
    /// What there was at the last look, or when memory ran low.
    seen: Activity,
}

/// What the background thread goes by.
struct Activity {
    at: Instant,
    activity: [u64; 4],
    /// How much processor time others have used.
    used: Duration,
}

impl Activity {
    fn now(core: &Core) -> Self {
        Self { at: Instant::now(), activity: core.activity(), used: cpu_time_of_others() }
    }

    /// Whether other threads have used the processor since `before`.
    fn is_busy_since(&self, before: &Self) -> bool {
        self.used.saturating_sub(before.used) * PART > self.at - before.at
    }

    /// Whether little has happened since `before`.
    fn is_quiet_since(&self, before: &Self) -> bool {
        let pages: u64 =
            self.activity.iter().zip(before.activity).map(|(now, then)| now.abs_diff(then)).sum();
        u128::from(pages) * 1000 <= u128::from(QUIET_PAGES) * (self.at - before.at).as_millis()
    }
}

impl HugePageScheduler {
    pub fn new(core: &Core) -> Self {
        Self { patience: QUIET, run: 0, seen: Activity::now(core) }
    }

    /// How long the thread should sleep; for ever if nothing will ever be to do.
    pub fn patience(&self, core: &Core) -> Option<Duration> {
        core.huge.is_enabled().then(|| self.patience.saturating_sub(self.seen.at.elapsed()))
    }

    /// Memory ran low, so it will be a while.
    pub fn disturbed(&mut self, core: &Core) {
        (self.patience, self.seen) = (QUIET, Activity::now(core));
    }

    /// Collapses some runs, if it has been quiet since the last look.
    pub fn run(&mut self, core: &Core) {
        let now = Activity::now(core);
        let before = std::mem::replace(&mut self.seen, now);
        if !self.seen.is_quiet_since(&before) || !core.budget.is_ample() {
            (self.patience, self.run) = (QUIET, 0);
            return;
        }
        let busy = self.seen.is_busy_since(&before);
        self.collapse_some(core, busy);
        // What this thread did, and who had to wait for it, tells nothing of the others.
        self.seen = Activity::now(core);
    }

    fn collapse_some(&mut self, core: &Core, busy: bool) {
        let begun = Instant::now();
        let end = core.space.end().min(core.capacity_pages);
        while core.huge.first_page_of(self.run + 1) <= end {
            let run = self.run;
            self.run += 1;
            if core.huge.is_flagged(run) || !core.is_whole(run) {
                continue;
            }
            match core.collapse(run) {
                Collapse::Done | Collapse::Busy => {}
                Collapse::NoMemory => break,
                Collapse::Refused => {
                    core.huge.refused.store(true, Ordering::Relaxed);
                    break;
                }
            }
            let worked = begun.elapsed();
            if busy || worked >= STRETCH {
                self.patience = if busy { worked * PART } else { REST };
                return;
            }
        }
        (self.patience, self.run) = (IDLE, 0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::maintenance::prefault::Prefaulted;
    use crate::{Pool, PoolOptions};
    use std::sync::Arc;
    use vellum_base::PageKind;
    use vellum_vm::{ReleaseMethod, SimulatedFile};

    const PAGES: u64 = 4096;

    /// A pool of 32 MiB and `pages` pages in it, each filled with its number; collapsed as far as possible.
    fn collapsed(pages: u64) -> Option<Pool> {
        let options = PoolOptions::default()
            .pool_bytes(2 * PAGES * PAGE_SIZE as u64)
            .capacity_bytes(1 << 28)
            .background_eviction(false)
            .release_method(ReleaseMethod::Madvise);
        let pool = Pool::create_on(Arc::new(SimulatedFile::new(1)), &options).unwrap();
        for _ in 0..pages {
            let mut guard = pool.allocate(1, PageKind::USER).unwrap();
            let number = guard.id().0 as u8;
            guard.payload_mut().fill(number);
            drop(guard.keep());
        }
        let mut scheduler = HugePageScheduler::new(pool.core());
        while scheduler.patience != IDLE {
            scheduler.collapse_some(pool.core(), false);
        }
        if pool.statistics().pages_huge == 0 {
            eprintln!("the system gives no huge pages");
            return None;
        }
        Some(pool)
    }

    fn assert_contents(pool: &Pool, pages: impl Iterator<Item = u64>) {
        for page in pages {
            let guard = pool.shared(Extent::page(PageId(page))).unwrap();
            assert!(guard.payload().iter().all(|byte| *byte == page as u8), "page {page}");
        }
    }

    #[test]
    fn whole_runs_are_collapsed_and_keep_their_contents() {
        let Some(pool) = collapsed(PAGES) else { return };
        let huge = pool.statistics().pages_huge;
        assert!(huge >= PAGES - 3 * pool.core().huge.run_pages, "{huge} of {PAGES} pages");
        assert_contents(&pool, 2..PAGES);
    }

    /// Takes the memory of a page away, as eviction does.
    fn drop_page(core: &Core, page: PageId) {
        let state = core.state(page);
        assert!(state.try_exclusive(state.load()));
        assert!(core.resident.remove(page).is_some());
        core.drop_memory(Extent::page(page));
        core.budget.give_back(1);
        core.wake(page, state.release_exclusive_evicted());
    }

    #[test]
    fn evicted_pages_are_split_off_their_runs_and_read_in_again() {
        let Some(mut pool) = collapsed(PAGES) else { return };
        pool.checkpoint().unwrap();
        let huge = pool.statistics().pages_huge;
        let evicted: usize = (0..4).map(|_| pool.core().evict(512).unwrap()).sum();
        assert!(evicted > 0);
        assert!(pool.statistics().pages_huge < huge);
        assert_contents(&pool, 2..PAGES);
    }

    #[test]
    fn a_page_that_goes_splits_its_run_only() {
        let Some(pool) = collapsed(PAGES) else { return };
        let huge = pool.statistics().pages_huge;
        drop_page(pool.core(), PageId(PAGES / 2));
        assert_eq!(pool.statistics().pages_huge, huge - pool.core().huge.run_pages);
        assert_contents(&pool, (2..PAGES).filter(|page| *page != PAGES / 2));
    }

    #[test]
    fn a_page_that_goes_while_its_run_is_collapsed_is_empty_all_the_same() {
        let Some(pool) = collapsed(PAGES) else { return };
        let core = pool.core();
        let page = PageId(PAGES / 2);
        drop_page(core, page);
        // As if it had gone behind the look at its state.
        let run = (page.0 - core.huge.first_page) / core.huge.run_pages;
        assert_eq!(core.collapse(run), Collapse::Busy);
        assert!(!core.huge.is_flagged(run));
        // SAFETY: the mapping is readable, and nobody writes to the page.
        let bytes = unsafe { std::slice::from_raw_parts(core.address(page), PAGE_SIZE) };
        assert!(bytes.iter().all(|byte| *byte == 0));
        assert!(core.state(page).load().is_evicted());
    }

    /// Whether a page has memory.
    fn has_memory(core: &Core, page: PageId) -> bool {
        use std::os::unix::fs::FileExt;
        let mut entry = [0; 8];
        let map = std::fs::File::open("/proc/self/pagemap").unwrap();
        map.read_exact_at(&mut entry, core.address(page) as u64 / PAGE_SIZE as u64 * 8).unwrap();
        entry[7] & 0x80 != 0
    }

    #[test]
    fn a_page_that_is_being_evicted_while_its_run_is_collapsed_keeps_no_memory() {
        let Some(pool) = collapsed(PAGES) else { return };
        let core = pool.core();
        let page = PageId(PAGES / 2);
        let run = (page.0 - core.huge.first_page) / core.huge.run_pages;
        // Its evictor has latched it and released its memory, and has not unlatched it yet.
        let state = core.state(page);
        assert!(state.try_exclusive(state.load()));
        core.drop_memory(Extent::page(page));
        assert_eq!(core.collapse(run), Collapse::Busy);
        assert!(has_memory(core, page), "the collapse filled it");
        core.release_strays();
        assert!(core.resident.remove(page).is_some());
        core.budget.give_back(1);
        core.wake(page, state.release_exclusive_evicted());
        core.release_strays();
        assert!(core.state(page).load().is_evicted() && !has_memory(core, page));
        assert!(lock(&core.huge.strays).is_empty());
        assert_contents(&pool, (2..PAGES).filter(|other| *other != page.0));
    }

    #[test]
    fn an_extent_that_takes_the_place_of_pages_while_their_run_is_collapsed_keeps_its_contents() {
        let Some(pool) = collapsed(PAGES) else { return };
        let core = pool.core();
        let first = PAGES / 2;
        let run = (first - core.huge.first_page) / core.huge.run_pages;
        // Behind the look at the states, four pages are freed; an extent in memory takes the place of three.
        for page in first..first + 4 {
            pool.exclusive(Extent::page(PageId(page))).unwrap().free();
        }
        let mut guard = pool.allocate(3, PageKind::USER).unwrap();
        guard.payload_mut().fill(9);
        let extent = guard.keep().extent();
        assert_eq!(extent.head, PageId(first));
        assert_eq!(core.collapse(run), Collapse::Busy);
        assert!(pool.shared(extent).unwrap().payload().iter().all(|byte| *byte == 9));
        assert!(lock(&core.huge.strays).is_empty());
        // When it is evicted, what a collapse has given to its pages goes.
        let state = core.state(extent.head);
        assert!(state.try_exclusive(state.load()));
        assert!(core.resident.remove(extent.head).is_some());
        core.drop_memory(extent);
        core.budget.give_back(3);
        core.wake(extent.head, state.release_exclusive_evicted());
        assert_eq!(core.collapse(run), Collapse::Busy);
        assert!((first..first + 3).all(|page| !has_memory(core, PageId(page))));
    }

    #[test]
    fn a_run_whose_flag_is_cleared_while_its_memory_comes_is_split() {
        let Some(pool) = collapsed(PAGES) else { return };
        let core = pool.core();
        let (huge, end) = (pool.statistics().pages_huge, core.space.end());
        let first = end + core.pages_to_run(end);
        let run = (first - core.huge.first_page) / core.huge.run_pages;
        assert_eq!(core.prefault(end..first, || true), Prefaulted::Done);
        core.huge.flag(run);
        let outcome = core.prefault_flagged(run, || {
            while core.space.end() <= first + 4 {
                drop(pool.allocate(1, PageKind::USER).unwrap().keep());
            }
            drop_page(core, PageId(first + 1));
            let (offset, bytes) = (PageId(first).offset() as usize, core.huge.run_pages as usize * PAGE_SIZE);
            core.pages.populate_huge(offset, bytes) == Collapse::Done
        });
        assert!(outcome.is_some());
        assert_eq!(pool.statistics().pages_huge, huge);
        assert!(!has_memory(core, PageId(first + 1)));
        // The next one that goes frees its memory at once.
        drop_page(core, PageId(first + 2));
        assert!(!has_memory(core, PageId(first + 2)) && has_memory(core, PageId(first + 3)));
    }

    #[test]
    fn a_run_beyond_the_end_is_backed_before_its_pages_are_allocated() {
        let Some(pool) = collapsed(PAGES) else { return };
        let core = pool.core();
        let (run_pages, huge) = (core.huge.run_pages, pool.statistics().pages_huge);
        let end = core.space.end();
        let first = end + core.pages_to_run(end);
        assert_eq!(core.prefault_run(PageId(first)), None, "the window does not end there");
        assert_eq!(core.prefault(end..first, || true), Prefaulted::Done);
        assert_eq!(core.prefault_run(PageId(first + 1)), None, "no run begins there");
        assert_eq!(core.prefault_run(PageId(first - run_pages)), None, "it is in use");
        assert_eq!(pool.statistics().pages_huge, huge);
        assert_eq!(core.prefault_run(PageId(first)), Some(run_pages));
        assert_eq!(core.prefault_run(PageId(first)), None, "it was fetched");
        assert_eq!(pool.statistics().pages_huge, huge + run_pages);
        while core.space.end() <= first + 2 {
            let mut guard = pool.allocate(1, PageKind::USER).unwrap();
            assert!(guard.payload_mut().iter().all(|byte| *byte == 0));
            let number = guard.id().0 as u8;
            guard.payload_mut().fill(number);
            drop(guard.keep());
        }
        drop_page(core, PageId(first + 1));
        assert_eq!(pool.statistics().pages_huge, huge);
        assert_contents(&pool, (2..first + 3).filter(|page| *page != first + 1));
    }

    #[test]
    fn nothing_is_collapsed_in_a_full_pool() {
        let Some(pool) = collapsed(PAGES) else { return };
        let huge = pool.statistics().pages_huge;
        for _ in PAGES..2 * PAGES - 160 {
            drop(pool.allocate(1, PageKind::USER).unwrap().keep());
        }
        let mut scheduler = HugePageScheduler::new(pool.core());
        scheduler.run(pool.core());
        assert_eq!((pool.statistics().pages_huge, scheduler.patience), (huge, QUIET));
    }

    #[test]
    fn runs_are_collapsed_beside_growth_that_is_slow_enough() {
        let Some(pool) = collapsed(PAGES) else { return };
        let core = pool.core();
        let huge = pool.statistics().pages_huge;
        let first = PageId(core.huge.first_page + core.huge.run_pages);
        core.split_huge_pages(&[Extent { head: first, pages: 1 }]);
        let mut scheduler = HugePageScheduler::new(core);
        for collapsed in [false, true] {
            scheduler.seen = Activity::now(core);
            for _ in 0..64 {
                drop(pool.allocate(1, PageKind::USER).unwrap().keep());
            }
            // These pages have come in no time, or in a second.
            let second = Duration::from_secs(1);
            scheduler.seen.at = if collapsed { scheduler.seen.at - second } else { Instant::now() + second };
            scheduler.run(core);
            assert_eq!(pool.statistics().pages_huge >= huge, collapsed);
            assert_eq!(scheduler.patience == QUIET, !collapsed);
        }
    }

    #[test]
    fn who_works_in_the_process_is_not_held_up_often() {
        let Some(pool) = collapsed(PAGES) else { return };
        let core = pool.core();
        let runs = pool.statistics().pages_huge / core.huge.run_pages;
        let first = PageId(core.huge.first_page + core.huge.run_pages);
        core.split_huge_pages(&[Extent { head: first, pages: 3 * core.huge.run_pages as u32 }]);
        let mut scheduler = HugePageScheduler::new(core);
        for back in 1..=3 {
            let begun = Instant::now();
            scheduler.collapse_some(core, true);
            assert_eq!(
                pool.statistics().pages_huge / core.huge.run_pages,
                runs - 3 + back,
                "one run at a time"
            );
            assert!(scheduler.patience > REST && scheduler.patience <= begun.elapsed() * PART);
        }
        scheduler.collapse_some(core, true);
        assert_eq!(scheduler.patience, IDLE);
    }

    #[test]
    fn a_thread_that_works_is_noticed() {
        let Some(pool) = collapsed(PAGES) else { return };
        let before = Activity::now(pool.core());
        let working = AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while working.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            std::thread::sleep(Duration::from_millis(300));
            let busy = Activity::now(pool.core()).is_busy_since(&before);
            working.store(false, Ordering::Relaxed);
            assert!(busy);
        });
    }
}
