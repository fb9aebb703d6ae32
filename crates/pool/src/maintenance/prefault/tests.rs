//! Fetching memory ahead in a whole pool.

use super::*;
use crate::{ExtentWriter, PageWriter, Streams};
use crate::{Pool, PoolOptions};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use vellum_base::{PAGE_SIZE, PageKind};
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

/// How many of the pages beyond the end of the file have memory.
fn ahead(pool: &Pool) -> usize {
    with_memory(pool, pool.allocator().storage().space.end(), 2 * WINDOW_MAX)
}

/// How many of this many pages have memory.
fn with_memory(pool: &Pool, first: u64, pages: u64) -> usize {
    let first = pool.table().address(PageId(first)) as u64;
    let mut entries = vec![0; pages as usize * 8];
    let map = std::fs::File::open("/proc/self/pagemap").unwrap();
    map.read_exact_at(&mut entries, first / PAGE_SIZE as u64 * 8).unwrap();
    // Bit 63 of a page's 64 bits says that the page is in memory.
    entries.chunks_exact(8).filter(|entry| entry[7] & 0x80 != 0).count()
}

#[test]
fn the_memory_of_the_next_pages_is_there_before_they_are() {
    let pool = pool(1 << 26);
    let mut prefaulter = Prefaulter::new();
    assert_eq!(ahead(&pool), 0);
    for expected in [WINDOW_MIN, 2 * WINDOW_MIN] {
        prefaulter.run(pool.allocator());
        assert_eq!(ahead(&pool) as u64, expected);
    }
    for _ in 0..WINDOW_MIN {
        let page = pool.allocate(1, PageKind::USER).unwrap().keep();
        assert!(page.payload().iter().all(|byte| *byte == 0));
    }
    assert_eq!(ahead(&pool), WINDOW_MIN as usize);
    for _ in 0..10 {
        prefaulter.run(pool.allocator());
    }
    assert_eq!(ahead(&pool), WINDOW_MAX as usize);
}

/// A pool of 64 MiB with huge pages, and a prefaulter whose window is so wide that it fetches whole runs; a small page
/// has taken this long.
fn with_runs(small_page: Duration) -> Option<(Pool, Prefaulter)> {
    let options = PoolOptions::default()
        .pool_bytes(1 << 26)
        .capacity_bytes(1 << 28)
        .background_eviction(false)
        .release_method(ReleaseMethod::Madvise);
    let pool = Pool::create_on(Arc::new(SimulatedFile::new(1)), &options).unwrap();
    let pages = &pool.evictor().pages;
    let end = pages.storage.space.end();
    let run = pool.table().huge_runs.pages_to_run(end);
    let none = run == u64::MAX || {
        assert_eq!(pages.prefault(end..end + run, || true), Prefaulted::Done);
        pages.prefault_run(PageId(end + run)).is_none()
    };
    if none {
        eprintln!("the system gives no huge pages");
        return None;
    }
    let mut prefaulter = Prefaulter::new();
    prefaulter.release(pool.allocator());
    let statistics = pool.statistics();
    assert_eq!((statistics.pages_huge, statistics.pages_resident), (0, 0));
    Some((pool, Prefaulter { window: WINDOW_MAX, small_page, ..prefaulter }))
}

#[test]
fn whole_runs_are_fetched_as_huge_pages() {
    let Some((pool, mut prefaulter)) = with_runs(Duration::from_secs(1)) else { return };
    // The first run was tried out, and is small pages.
    while pool.statistics().pages_allocated < 4 * WINDOW_MAX {
        prefaulter.run(pool.allocator());
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
fn no_run_is_fetched_that_takes_more_than_a_quarter_of_the_pool() {
    if with_runs(Duration::from_secs(1)).is_none() {
        return;
    }
    let options = PoolOptions::default()
        .pool_bytes(1 << 22)
        .capacity_bytes(1 << 28)
        .background_eviction(false)
        .release_method(ReleaseMethod::Madvise);
    let pool = Pool::create_on(Arc::new(SimulatedFile::new(1)), &options).unwrap();
    let small_page = Duration::from_secs(1);
    let mut prefaulter = Prefaulter { window: WINDOW_MAX, small_page, ..Prefaulter::new() };
    for _ in 0..700 {
        prefaulter.run(pool.allocator());
        assert!(ahead(&pool) <= (1 << 22) / PAGE_SIZE / 4, "{} pages", ahead(&pool));
        drop(pool.allocate(1, PageKind::USER).unwrap().keep());
    }
}

#[test]
fn after_a_run_that_took_longer_than_small_pages_these_are_fetched_for_a_while() {
    let Some((pool, mut prefaulter)) = with_runs(Duration::from_micros(1)) else { return };
    let (begun, micros) = (Instant::now(), Duration::from_micros);
    for (took, lost) in [(0, 0), (512, 0), (513, 1), (612, 100), (1 << 30, (1 << 30) - 512)] {
        prefaulter.judge(512, begun, begun + micros(took));
        assert_eq!(prefaulter.small_until, begun + micros(lost) * PART);
    }
    prefaulter.run(pool.allocator());
    assert_eq!((ahead(&pool) as u64, pool.statistics().pages_huge), (WINDOW_MAX, 0));
}

#[test]
fn what_was_fetched_is_counted_until_it_is_allocated_or_released() {
    let pool = pool(1 << 26);
    let mut prefaulter = Prefaulter::new();
    let resident = || pool.statistics().pages_resident;
    prefaulter.run(pool.allocator());
    assert_eq!((resident(), ahead(&pool) as u64), (WINDOW_MIN, WINDOW_MIN));
    for _ in 0..10 {
        drop(pool.allocate(1, PageKind::USER).unwrap().keep());
    }
    drop(pool.allocate(2, PageKind::USER).unwrap().keep());
    assert_eq!(resident(), WINDOW_MIN, "what was counted is counted on");
    prefaulter.run(pool.allocator());
    assert_eq!(resident(), 12 + 2 * WINDOW_MIN);
    // Part of the window, and then all of it and more, goes to extents that are written past the pool.
    for pages in [100, 1100] {
        let stream = pool.stream(pages, PageKind::USER).unwrap();
        let extent = stream.extent();
        stream.finish().unwrap();
        assert_eq!(with_memory(&pool, extent.head.0, u64::from(pages)), 0);
        assert_eq!(resident() as usize, 12 + ahead(&pool));
    }
    assert_eq!(resident(), 12);
    prefaulter.run(pool.allocator());
    assert_eq!(resident(), 12 + 4 * WINDOW_MIN);
    prefaulter.release(pool.allocator());
    assert_eq!((resident(), ahead(&pool)), (12, 0));
    prefaulter.run(pool.allocator());
    assert_eq!((resident(), ahead(&pool) as u64), (12 + WINDOW_MIN, WINDOW_MIN));
}

#[test]
fn what_is_allocated_and_freed_while_its_memory_comes_keeps_none() {
    let pool = pool(1 << 26);
    let (table, pages) = (pool.table(), &pool.evictor().pages);
    let end = pages.storage.space.end();
    let outcome = pages.prefault(end..end + 64, || {
        drop(pool.allocate(4, PageKind::USER).unwrap().keep());
        drop(pool.allocate(3, PageKind::USER).unwrap());
        table.populate(PageId(end), 64)
    });
    assert_eq!(outcome, Prefaulted::Done);
    let there = with_memory(&pool, 0, pages.storage.space.end() + WINDOW_MAX);
    assert_eq!((pages.budget.used(), there), (64 - 3, 64 - 3));
}

#[test]
fn pages_of_a_bulk_load_keep_no_memory_that_they_do_not_use() {
    let pool = pool(1 << 20);
    let budget = &pool.allocator().pages().budget;
    Prefaulter::new().run(pool.allocator());
    assert_eq!(budget.used() as u64, WINDOW_MIN);
    // Too little is free, so pages are written past the pool.
    assert!(budget.try_reserve(150));
    let mut pages = pool.pages(PageKind::USER).unwrap();
    for _ in 0..40 {
        pages.append(|_| Ok::<(), crate::PoolError>(())).unwrap();
    }
    pages.settle().unwrap();
    pages.keep(vellum_base::Lsn(0));
    let there = with_memory(&pool, 0, pool.allocator().storage().space.end() + WINDOW_MAX);
    assert!(there < 64 && budget.used() == 150 + there, "{there} of {}", budget.used());
}

#[test]
fn nothing_is_fetched_while_memory_is_short() {
    let pool = pool(1 << 20);
    while pool.allocator().pages().budget.is_ample() {
        drop(pool.allocate(1, PageKind::USER).unwrap().keep());
    }
    Prefaulter::new().run(pool.allocator());
    assert_eq!(ahead(&pool), 0);
}

/// The thread that gives the memory back may not run for long: meanwhile readers need the rest of the pool.
#[test]
fn a_small_pool_is_not_filled() {
    for pool_pages in [16, 64, 100] {
        let pool = pool(pool_pages * 4096);
        let budget = &pool.allocator().pages().budget;
        let mut prefaulter = Prefaulter::new();
        for _ in 0..5 {
            prefaulter.run(pool.allocator());
            assert!(budget.used() as u64 <= pool_pages / 4, "{} of {pool_pages} pages", budget.used());
        }
        assert_eq!(budget.used() as u64, pool_pages / 4);
    }
}
