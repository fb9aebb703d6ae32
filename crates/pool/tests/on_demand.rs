//! After a crash pages are redone before somebody sees them.

mod common;

use common::log::MemoryLog;
use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};
use vellum_base::{Bytes, Extent, HEADER_BYTES, Lsn, PageId, PageKind};
use vellum_pool::{
    AsynchronousReads, Begun, Miss, Misses, Navigation, Pool, PoolError, PoolFile, PoolOptions, RedoOnDemand,
    Redoer,
};
use vellum_vm::{FileOperation, SimulatedFile};

fn options(pages: u64) -> PoolOptions {
    PoolOptions::default().pool_bytes(pages * 4096).capacity_bytes(1 << 28).background_eviction(false)
}

/// A file of so many pages, each of which is full of its index.
fn closed(pages: usize) -> (SimulatedFile, Vec<PageId>) {
    let file = SimulatedFile::new(1);
    let pool = Pool::create_on(Arc::new(file.clone()), &options(64)).unwrap();
    let filled = (0..pages).map(|index| {
        let mut guard = pool.allocate(1, PageKind::TREE_NODE).unwrap();
        guard.payload_mut().fill(index as u8);
        guard.keep().id()
    });
    let filled = filled.collect();
    pool.close().unwrap();
    (file, filled)
}

fn start(file: &SimulatedFile, pool_pages: u64) -> Pool {
    let opened = PoolFile::open_on(Arc::new(file.clone()), &options(pool_pages)).unwrap();
    let log = Arc::new(MemoryLog::new(opened.redo()));
    opened.start(Some(log)).unwrap()
}

/// Adds 100 to each byte of the pages, one half after the other; gives those for which that fails.
fn redo(redoer: &Redoer, pages: &[PageId], refused: Option<PageId>) -> Vec<(PageId, PoolError)> {
    let add = |page| {
        redoer.redo_evicted(page, false, |bytes| {
            let payload = &mut bytes[HEADER_BYTES..];
            let middle = payload.len() / 2;
            payload[..middle].iter_mut().for_each(|byte| *byte += 100);
            thread::yield_now();
            if refused == Some(page) {
                return Err("half done".to_owned());
            }
            payload[middle..].iter_mut().for_each(|byte| *byte += 100);
            Ok(())
        })
    };
    pages.iter().filter_map(|page| Some((*page, add(*page).err()?))).collect()
}

/// Redoes each page when it is asked for, once.
struct Debts {
    redoer: Redoer,
    left: Mutex<HashSet<PageId>>,
    refused: Mutex<Option<PageId>>,
    forgotten: Mutex<Vec<PageId>>,
}

impl Debts {
    fn begin(pool: &Pool, left: &[PageId]) -> Arc<Self> {
        let (redoer, left) = (pool.redoer(), Mutex::new(left.iter().copied().collect()));
        let begun = Arc::new(Self { redoer, left, refused: Mutex::default(), forgotten: Mutex::default() });
        let asked: Weak<Self> = Arc::downgrade(&begun);
        begun.redoer.begin_on_demand(asked);
        begun
    }
}

impl RedoOnDemand for Debts {
    fn redo(&self, page: PageId) -> Result<(), PoolError> {
        let mut left = self.left.lock().unwrap();
        if left.contains(&page) {
            if let Some((_, error)) = redo(&self.redoer, &[page], *self.refused.lock().unwrap()).pop() {
                return Err(error);
            }
            left.remove(&page);
        }
        Ok(())
    }

    fn forget(&self, page: PageId) {
        self.left.lock().unwrap().remove(&page);
        self.forgotten.lock().unwrap().push(page);
    }
}

fn byte(pool: &Pool, page: PageId) -> u8 {
    let guard = pool.shared(Extent::page(page)).unwrap();
    let payload = guard.payload();
    assert!(payload.iter().all(|byte| *byte == payload[0]), "{page} is half redone");
    payload[0]
}

#[test]
fn each_way_into_memory_asks_first() {
    let (file, pages) = closed(12);
    let pool = start(&file, 64);
    let debts = Debts::begin(&pool, &pages);
    assert_eq!(byte(&pool, pages[0]), 100);
    assert_eq!(pool.exclusive(Extent::page(pages[1])).unwrap().payload()[0], 101);
    let seen = pool.run(|| {
        let guard = Navigation::root(&pool, pages[2])?;
        let mut byte = [0];
        guard.bytes().copy_to(HEADER_BYTES, &mut byte);
        guard.validate()?;
        Ok::<_, vellum_pool::Interrupt>(byte[0])
    });
    assert_eq!(seen.unwrap(), 102);
    let mut misses = pool.misses(8).unwrap();
    assert_eq!(misses.begin(&Miss::certain(Extent::page(pages[3]))).unwrap(), Begun::Ready);
    misses.begin_read_ahead(&pages[4..7]);
    let mut finished = Vec::new();
    while misses.under_way() > 0 {
        misses.reap(true, &mut finished);
    }
    for (index, page) in pages.iter().enumerate().take(7).skip(3) {
        assert!(!pool.is_evicted(*page) && byte(&pool, *page) == 100 + index as u8, "{page}");
    }
    // What is begun anew is redone before, too, or its changes would come after it.
    pool.redo(pages[7], true, |_| Ok(())).unwrap();
    assert_eq!(debts.left.lock().unwrap().len(), 4);
    debts.redoer.end_on_demand();
    assert_eq!(byte(&pool, pages[11]), 11, "nobody is asked any more");
}

#[test]
fn what_is_in_memory_asks_nobody_and_stays() {
    let (file, pages) = closed(3);
    let pool = start(&file, 64);
    assert_eq!(byte(&pool, pages[0]), 0);
    let debts = Debts::begin(&pool, &pages);
    assert_eq!((byte(&pool, pages[0]), debts.left.lock().unwrap().len()), (0, 3));
    // Nor is it redone again.
    assert!(redo(&debts.redoer, &pages, None).is_empty());
    assert_eq!([0, 1, 2].map(|index| byte(&pool, pages[index])), [0, 101, 102]);
}

#[test]
fn what_cannot_be_redone_is_as_on_storage_and_is_asked_for_again() {
    let (file, pages) = closed(3);
    let pool = start(&file, 64);
    let debts = Debts::begin(&pool, &pages);
    *debts.refused.lock().unwrap() = Some(pages[1]);
    for _ in 0..2 {
        let refused = pool.shared(Extent::page(pages[1])).map(|_| ()).unwrap_err();
        assert!(refused.to_string().contains("half done"), "{refused}");
        assert!(pool.is_evicted(pages[1]));
    }
    assert_eq!(byte(&pool, pages[2]), 102);
    *debts.refused.lock().unwrap() = None;
    assert_eq!(byte(&pool, pages[1]), 101);
    // Without its owner nothing is read that may lack something.
    drop(debts);
    let refused = pool.shared(Extent::page(pages[0])).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("not redone yet"), "{refused}");
}

#[test]
fn what_is_not_redone_yet_can_be_read_after_a_sync_has_failed() {
    let (file, pages) = closed(3);
    let pool = start(&file, 64);
    let debts = Debts::begin(&pool, &pages);
    assert_eq!(byte(&pool, pages[0]), 100);
    pool.exclusive(Extent::page(pages[0])).unwrap().payload_mut().fill(100);
    file.fail_nth_of(FileOperation::Sync, 1);
    assert!(pool.checkpoint_at(Lsn(1)).is_err());
    assert!(pool.exclusive(Extent::page(pages[0])).is_err(), "nothing may be changed any more");
    assert_eq!([1, 2].map(|index| byte(&pool, pages[index])), [101, 102]);
    assert!(debts.left.lock().unwrap().is_empty());
}

#[test]
fn what_is_allocated_anew_is_forgotten_before() {
    let (file, pages) = closed(3);
    let pool = start(&file, 64);
    pool.exclusive(Extent::page(pages[1])).unwrap().free();
    let debts = Debts::begin(&pool, &pages);
    let again = pool.allocate(1, PageKind::TREE_NODE).unwrap().keep().id();
    assert_eq!(*debts.forgotten.lock().unwrap(), [again]);
}

#[test]
fn many_pages_are_redone_in_a_small_pool() {
    for pool_pages in [16, 40] {
        let (file, pages) = closed(150);
        let pool = start(&file, pool_pages);
        let redoer = pool.redoer();
        assert!(redo(&redoer, &pages, Some(pages[77])).iter().all(|(page, _)| *page == pages[77]));
        assert!(pool.statistics().pages_resident <= pool_pages);
        for (index, page) in pages.iter().enumerate() {
            assert_eq!(byte(&pool, *page), index as u8 + if index == 77 { 0 } else { 100 });
        }
    }
}

#[test]
fn a_read_that_fails_concerns_its_page_alone() {
    for failing in [1, 7, 150] {
        let (file, pages) = closed(150);
        let pool = start(&file, 40);
        let redoer = pool.redoer();
        file.fail_nth_of(FileOperation::Read, failing);
        let failed: HashSet<_> = redo(&redoer, &pages, None).into_iter().map(|(page, _)| page).collect();
        file.heal();
        assert!(!failed.is_empty());
        for (index, page) in pages.iter().enumerate() {
            let added = if failed.contains(page) { 0 } else { 100 };
            assert_eq!(byte(&pool, *page), index as u8 + added, "{page}, {failing}");
        }
    }
}

#[test]
fn nobody_sees_a_page_that_is_half_redone() {
    let (file, pages) = closed(150);
    let pool = start(&file, 32);
    let debts = Debts::begin(&pool, &pages);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for first in 0..3 {
            let (pool, pages, is_over) = (&pool, &pages, &is_over);
            scope.spawn(move || {
                for round in first.. {
                    let index = round * 31 % pages.len();
                    assert_eq!(byte(pool, pages[index]), index as u8 + 100);
                    if round > 3000 && is_over.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        for page in &pages {
            debts.redo(*page).unwrap();
        }
        debts.redoer.end_on_demand();
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(debts.left.lock().unwrap().is_empty());
}
