//! Huge pages in a whole pool.

use super::*;
use crate::{Pool, PoolOptions, replacement::resident_pages::Prefaulted};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use vellum_base::{Extent, PAGE_SIZE, PageId, PageKind};
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
    let mut scheduler = HugePageScheduler::new(pool.allocator());
    while scheduler.patience != IDLE {
        scheduler.collapse_some(pool.allocator(), false);
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
    assert!(huge >= PAGES - 3 * pool.table().huge_runs.run_pages(), "{huge} of {PAGES} pages");
    assert_contents(&pool, 2..PAGES);
}

/// Takes the memory of a page away, as eviction does.
fn drop_page(pool: &Pool, page: PageId) {
    assert!(pool.table().try_latch(page).is_some());
    assert!(pool.evictor().pages.remove(page).is_some());
    pool.table().drop_memory(Extent::page(page));
    pool.table().unlatch_evicted(page);
}

#[test]
fn evicted_pages_are_split_off_their_runs_and_read_in_again() {
    let Some(mut pool) = collapsed(PAGES) else { return };
    pool.checkpoint().unwrap();
    let huge = pool.statistics().pages_huge;
    let evicted: usize = (0..4).map(|_| pool.evictor().evict_batch().unwrap()).sum();
    assert!(evicted > 0);
    assert!(pool.statistics().pages_huge < huge);
    assert_contents(&pool, 2..PAGES);
}

#[test]
fn a_page_that_goes_splits_its_run_only() {
    let Some(pool) = collapsed(PAGES) else { return };
    let huge = pool.statistics().pages_huge;
    drop_page(&pool, PageId(PAGES / 2));
    assert_eq!(pool.statistics().pages_huge, huge - pool.table().huge_runs.run_pages());
    assert_contents(&pool, (2..PAGES).filter(|page| *page != PAGES / 2));
}

#[test]
fn a_page_that_goes_while_its_run_is_collapsed_is_empty_all_the_same() {
    let Some(pool) = collapsed(PAGES) else { return };
    let table = pool.table();
    let page = PageId(PAGES / 2);
    drop_page(&pool, page);
    // As if the page had left after the check of its state.
    let run = table.huge_runs.run_of(page.0);
    let pages = &pool.evictor().pages;
    assert_eq!(pages.collapse(run), Collapse::Busy);
    assert!(!table.huge_runs.is_flagged(run));
    // SAFETY: the mapping is readable, and no thread writes to the page.
    let bytes = unsafe { std::slice::from_raw_parts(table.address(page), PAGE_SIZE) };
    assert!(bytes.iter().all(|byte| *byte == 0));
    assert!(table.state(page).load().is_evicted());
}

/// Whether a page has memory.
fn has_memory(pool: &Pool, page: PageId) -> bool {
    use std::os::unix::fs::FileExt;
    let mut entry = [0; 8];
    let map = std::fs::File::open("/proc/self/pagemap").unwrap();
    map.read_exact_at(&mut entry, pool.table().address(page) as u64 / PAGE_SIZE as u64 * 8).unwrap();
    entry[7] & 0x80 != 0
}

#[test]
fn a_page_that_is_being_evicted_while_its_run_is_collapsed_keeps_no_memory() {
    let Some(pool) = collapsed(PAGES) else { return };
    let (table, pages) = (pool.table(), &pool.evictor().pages);
    let page = PageId(PAGES / 2);
    let run = table.huge_runs.run_of(page.0);
    // Its evictor has latched it and released its memory, and has not unlatched it yet.
    let state = table.state(page);
    assert!(state.try_exclusive(state.load()));
    table.drop_memory(Extent::page(page));
    assert_eq!(pages.collapse(run), Collapse::Busy);
    assert!(has_memory(&pool, page), "the collapse filled it");
    pages.release_strays();
    assert!(pages.remove(page).is_some());
    table.unlatch_evicted(page);
    pages.release_strays();
    assert!(table.state(page).load().is_evicted() && !has_memory(&pool, page));
    assert!(pages.strays.is_empty());
    assert_contents(&pool, (2..PAGES).filter(|other| *other != page.0));
}

#[test]
fn an_extent_that_takes_the_place_of_pages_while_their_run_is_collapsed_keeps_its_contents() {
    let Some(pool) = collapsed(PAGES) else { return };
    let (table, pages) = (pool.table(), &pool.evictor().pages);
    let first = PAGES / 2;
    let run = table.huge_runs.run_of(first);
    // After the check of the states, four pages are freed; an extent in memory takes the place of three.
    for page in first..first + 4 {
        pool.exclusive(Extent::page(PageId(page))).unwrap().free();
    }
    let mut guard = pool.allocate(3, PageKind::USER).unwrap();
    guard.payload_mut().fill(9);
    let extent = guard.keep().extent();
    assert_eq!(extent.head, PageId(first));
    assert_eq!(pages.collapse(run), Collapse::Busy);
    assert!(pool.shared(extent).unwrap().payload().iter().all(|byte| *byte == 9));
    assert!(pages.strays.is_empty());
    // When the extent is evicted, the memory that a collapse has given to its pages is released.
    let state = table.state(extent.head);
    assert!(state.try_exclusive(state.load()));
    assert!(pages.remove(extent.head).is_some());
    table.drop_memory(extent);
    table.unlatch_evicted(extent.head);
    assert_eq!(pages.collapse(run), Collapse::Busy);
    assert!((first..first + 3).all(|page| !has_memory(&pool, PageId(page))));
}

#[test]
fn a_run_whose_flag_is_cleared_while_its_memory_comes_is_split() {
    let Some(pool) = collapsed(PAGES) else { return };
    let (table, pages, space) = (pool.table(), &pool.evictor().pages, &pool.allocator().storage().space);
    let (huge, end) = (pool.statistics().pages_huge, space.end());
    let first = end + table.huge_runs.pages_to_run(end);
    assert_eq!(pages.prefault(end..first, || true), Prefaulted::Done);
    let outcome = table.huge_runs.populate(&table.pages, PageId(first), |run, fetch| {
        let fetch = || {
            while space.end() <= first + 4 {
                drop(pool.allocate(1, PageKind::USER).unwrap().keep());
            }
            drop_page(&pool, PageId(first + 1));
            fetch()
        };
        pages.prefault(run, fetch) == Prefaulted::Done
    });
    assert!(outcome.is_some());
    assert_eq!(pool.statistics().pages_huge, huge);
    assert!(!has_memory(&pool, PageId(first + 1)));
    // The next page that leaves frees its memory at once.
    drop_page(&pool, PageId(first + 2));
    assert!(!has_memory(&pool, PageId(first + 2)) && has_memory(&pool, PageId(first + 3)));
}

#[test]
fn a_run_beyond_the_end_is_backed_before_its_pages_are_allocated() {
    let Some(pool) = collapsed(PAGES) else { return };
    let table = pool.table();
    let (run_pages, huge) = (table.huge_runs.run_pages(), pool.statistics().pages_huge);
    let space = &pool.allocator().storage().space;
    let end = space.end();
    let first = end + table.huge_runs.pages_to_run(end);
    let pages = &pool.evictor().pages;
    let populate = |first: u64| pages.prefault_run(PageId(first));
    assert_eq!(populate(first), None, "the window does not end there");
    assert_eq!(pages.prefault(end..first, || true), Prefaulted::Done);
    assert_eq!(populate(first + 1), None, "no run begins there");
    assert_eq!(populate(first - run_pages), None, "it is in use");
    assert_eq!(pool.statistics().pages_huge, huge);
    assert_eq!(populate(first), Some(run_pages));
    assert_eq!(populate(first), None, "it was fetched");
    assert_eq!(pool.statistics().pages_huge, huge + run_pages);
    while space.end() <= first + 2 {
        let mut guard = pool.allocate(1, PageKind::USER).unwrap();
        assert!(guard.payload_mut().iter().all(|byte| *byte == 0));
        let number = guard.id().0 as u8;
        guard.payload_mut().fill(number);
        drop(guard.keep());
    }
    drop_page(&pool, PageId(first + 1));
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
    let mut scheduler = HugePageScheduler::new(pool.allocator());
    scheduler.run(pool.allocator());
    assert_eq!((pool.statistics().pages_huge, scheduler.patience), (huge, QUIET));
}

#[test]
fn runs_are_collapsed_beside_growth_that_is_slow_enough() {
    let Some(pool) = collapsed(PAGES) else { return };
    let table = pool.table();
    let huge = pool.statistics().pages_huge;
    let first = PageId(table.huge_runs.pages_of(1).start);
    table.split_huge_pages(&[Extent { head: first, pages: 1 }]);
    let mut scheduler = HugePageScheduler::new(pool.allocator());
    for collapsed in [false, true] {
        scheduler.seen = Activity::now(pool.allocator());
        for _ in 0..64 {
            drop(pool.allocate(1, PageKind::USER).unwrap().keep());
        }
        // These pages have come in no time, or in a second.
        let second = Duration::from_secs(1);
        scheduler.seen.at = if collapsed { scheduler.seen.at - second } else { Instant::now() + second };
        scheduler.run(pool.allocator());
        assert_eq!(pool.statistics().pages_huge >= huge, collapsed);
        assert_eq!(scheduler.patience == QUIET, !collapsed);
    }
}

#[test]
fn threads_that_work_are_not_held_up_often() {
    let Some(pool) = collapsed(PAGES) else { return };
    let table = pool.table();
    let runs = pool.statistics().pages_huge / table.huge_runs.run_pages();
    let first = PageId(table.huge_runs.pages_of(1).start);
    table.split_huge_pages(&[Extent { head: first, pages: 3 * table.huge_runs.run_pages() as u32 }]);
    let mut scheduler = HugePageScheduler::new(pool.allocator());
    for back in 1..=3 {
        let begun = Instant::now();
        scheduler.collapse_some(pool.allocator(), true);
        assert_eq!(
            pool.statistics().pages_huge / table.huge_runs.run_pages(),
            runs - 3 + back,
            "one run at a time"
        );
        assert!(scheduler.patience > REST && scheduler.patience <= begun.elapsed() * PART);
        assert!(scheduler.found.is_none(), "the run has got what was found");
    }
    scheduler.collapse_some(pool.allocator(), true);
    assert_eq!(scheduler.patience, IDLE);
}

/// Runs that are written cannot be collapsed: a huge page is not found for each of them in vain.
#[test]
fn a_huge_page_that_no_run_has_got_is_not_found_again() {
    let Some(pool) = collapsed(PAGES) else { return };
    let mut scheduler = HugePageScheduler::new(pool.allocator());
    assert!(scheduler.find_spare() > Duration::ZERO);
    let found = scheduler.found.unwrap();
    // However long this thread is held up.
    let just_now = Some(found + Duration::from_secs(100));
    scheduler.found = just_now;
    assert_eq!((scheduler.find_spare(), scheduler.found), (Duration::ZERO, just_now));
    let Some(long_ago) = found.checked_sub(KEPT) else { return };
    scheduler.found = Some(long_ago);
    assert!(scheduler.find_spare() > Duration::ZERO);
    assert!(scheduler.found > Some(found));
}

#[test]
fn a_thread_that_works_is_noticed() {
    let Some(pool) = collapsed(PAGES) else { return };
    let before = Activity::now(pool.allocator());
    let working = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while working.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        std::thread::sleep(Duration::from_millis(300));
        let busy = Activity::now(pool.allocator()).is_busy_since(&before);
        working.store(false, Ordering::Relaxed);
        assert!(busy);
    });
}
