//! Each figure of the statistics means what it says.

mod common;

use common::fill;
use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use vellum_base::{Extent, Lsn, PageKind};
use vellum_pool::{Allocation, ChangeLog, Interrupt, Navigation, Pool, PoolError, PoolOptions};
use vellum_vm::SimulatedFile;

fn options() -> PoolOptions {
    PoolOptions::default().pool_bytes(16 * 4096).capacity_bytes(1 << 24).background_eviction(false)
}

fn allocate(pool: &Pool, pages: u32) -> Extent {
    let mut guard = pool.allocate(pages, PageKind::USER).unwrap();
    let extent = guard.extent();
    fill(extent, 0, guard.payload_mut());
    drop(guard.keep());
    extent
}

/// A closed file with eight extents of two pages.
fn sample() -> (SimulatedFile, Vec<Extent>) {
    let file = SimulatedFile::new(1);
    let pool = Pool::create_on(Arc::new(file.clone()), &options()).unwrap();
    let extents = (0..8).map(|_| allocate(&pool, 2)).collect();
    pool.close().unwrap();
    (file, extents)
}

fn open(file: &SimulatedFile, options: &PoolOptions) -> Pool {
    Pool::open_on(Arc::new(file.clone()), options).unwrap()
}

#[test]
fn misses_reads_evictions_and_writes_are_counted() {
    let (file, extents) = sample();
    let mut pool = open(&file, &options());
    let start = pool.statistics();
    assert_eq!((start.misses, start.pages_read, start.pages_written, start.pages_evicted), (0, 0, 0, 0));
    assert_eq!((start.pages_resident, start.pages_limit), (0, 16));
    assert_eq!((start.pages_allocated, start.pages_in_file), (2 + 16 + 1, 19));

    for extent in &extents {
        drop(pool.shared(*extent).unwrap());
        drop(pool.shared(*extent).unwrap());
    }
    let read = pool.statistics();
    assert_eq!((read.misses, read.pages_read, read.pages_resident), (8, 16, 16));
    assert_eq!((read.pages_evicted, read.eviction_batches, read.pages_written), (0, 0, 0));

    // Clean pages go without a write.
    let ninth = allocate(&pool, 2);
    let evicted = pool.statistics();
    assert!(evicted.pages_evicted >= 2 && evicted.eviction_batches >= 1);
    assert_eq!(evicted.pages_written, 0);
    assert_eq!(evicted.pages_resident, 16 + 2 - evicted.pages_evicted);
    // What was the map's has been given back.
    assert_eq!(evicted.pages_allocated, 2 + 16 + 2);

    // Changed pages are written, once each.
    pool.checkpoint().unwrap();
    assert_eq!(pool.statistics().pages_written, 2);
    pool.exclusive(ninth).unwrap().payload_mut().fill(1);
    pool.checkpoint().unwrap();
    pool.checkpoint().unwrap();
    let written = pool.statistics();
    assert_eq!(written.pages_written, 4);
    assert_eq!((written.write_errors, written.frees_refused), (0, 0));
    assert_eq!(written.hits, None);

    // Freed pages stay in the file until it is closed.
    pool.exclusive(ninth).unwrap().free();
    let freed = pool.statistics();
    // The old map goes, too, when the file is marked as in use.
    assert_eq!(freed.pages_allocated, written.pages_allocated - 2 - 1);
    assert_eq!(freed.pages_in_file, written.pages_in_file);
}

#[test]
fn a_failed_write_is_counted_and_what_it_was_for_stays() {
    let (file, extents) = sample();
    let mut pool = open(&file, &options());
    pool.set_root_slot(0, 1).unwrap();
    for extent in &extents {
        pool.exclusive(*extent).unwrap().payload_mut().fill(7);
    }
    file.fail_from(1);
    assert!(matches!(pool.allocate(1, PageKind::USER).map(drop), Err(PoolError::Write { .. })));
    let failed = pool.statistics();
    assert!(failed.write_errors > 0);
    assert_eq!((failed.pages_written, failed.pages_evicted, failed.pages_resident), (0, 0, 16));
    file.heal();
    for extent in &extents {
        assert!(pool.shared(*extent).unwrap().payload().iter().all(|byte| *byte == 7));
    }
    pool.checkpoint().unwrap();
    let healed = pool.statistics();
    assert_eq!((healed.write_errors, healed.pages_written), (failed.write_errors, 16));
}

#[test]
fn hits_are_counted_when_asked_for() {
    let (file, _) = sample();
    let pool = open(&file, &options().count_hits(true));
    let page = allocate(&pool, 1).head;
    assert_eq!(pool.statistics().hits, Some(0));
    for _ in 0..5 {
        pool.run(|| pool.root(page).map(drop)).unwrap();
    }
    assert_eq!(pool.statistics().hits, Some(5));
    assert_eq!(pool.statistics().restarts, 0);
}

#[test]
fn restarts_are_counted_by_cause_or_not_at_all() {
    let (file, _) = sample();
    let pool = open(&file, &options());
    let page = allocate(&pool, 1);
    let guard = pool.run(|| pool.root(page.head)).unwrap();
    pool.exclusive(page).unwrap().payload_mut().fill(1);
    let conflict = guard.validate().unwrap_err();
    assert!(matches!(conflict, Interrupt::Conflict(at) if at == page.head));
    pool.resolve(conflict).unwrap();
    assert_eq!(pool.statistics().restarts, 1);
    // Every page goes, so that the next look misses.
    drop(pool.allocate(16, PageKind::USER).unwrap());
    let miss = pool.root(page.head).map(drop).unwrap_err();
    assert!(matches!(miss, Interrupt::Miss(_)));
    pool.resolve(miss).unwrap();
    let statistics = pool.statistics();
    assert_eq!((statistics.restarts, statistics.misses, statistics.pages_read), (2, 1, 1));
    assert_eq!(pool.root(page.head).unwrap().id(), page.head);
}

#[test]
fn a_thread_that_sleeps_for_a_latch_is_counted() {
    let (file, extents) = sample();
    let pool = open(&file, &options());
    let guard = pool.exclusive(extents[0]).unwrap();
    assert_eq!(pool.statistics().waits, 0);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| drop(pool.shared(extents[0]).unwrap()));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waiter.is_finished());
        drop(guard);
    });
    assert_eq!(pool.statistics().waits, 1);
}

/// A log that remembers what it was asked for.
#[derive(Default)]
struct Log {
    durable: Mutex<Vec<Lsn>>,
    broken: AtomicBool,
    checkpoints: AtomicU64,
}

impl ChangeLog for Log {
    fn request_checkpoint(&self) {
        self.checkpoints.fetch_add(1, Ordering::Relaxed);
    }

    fn reserve(&self, _: usize) -> Lsn {
        Lsn(1000)
    }

    fn cancel(&self, _: Lsn, _: usize) {}

    fn fill(&self, _: Lsn, _: &[u8]) {}

    fn begin_group(&self) -> u64 {
        1
    }

    fn end_group(&self) {}

    fn images_from(&self) -> Lsn {
        Lsn(0)
    }

    fn end(&self) -> Lsn {
        Lsn(1000)
    }

    fn durable(&self) -> Lsn {
        Lsn(self.durable.lock().unwrap().iter().max().map_or(0, |last| last.0 + 1))
    }

    fn request_durable(&self) {}

    fn make_durable(&self, lsn: Lsn) -> io::Result<()> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(io::Error::other("the log is gone"));
        }
        self.durable.lock().unwrap().push(lsn);
        Ok(())
    }
}

#[test]
fn the_log_is_durable_before_the_pages_it_covers() {
    let (file, extents) = sample();
    let log = Arc::new(Log::default());
    let mut pool = open(&file, &options().change_log(log.clone()));
    for (number, extent) in (100..).zip(&extents[..3]) {
        let mut guard = pool.exclusive(*extent).unwrap();
        guard.payload_mut().fill(5);
        guard.set_lsn(Lsn(number));
    }
    log.broken.store(true, Ordering::Relaxed);
    let before = file.snapshot();
    assert!(matches!(pool.checkpoint(), Err(PoolError::Log(_))));
    let statistics = pool.statistics();
    assert_eq!((statistics.pages_written, statistics.write_errors), (0, 3));
    let (mut old, mut new) = ([0; 4096], [0; 4096]);
    for extent in &extents[..3] {
        before.read(extent.head.offset(), &mut old);
        file.snapshot().read(extent.head.offset(), &mut new);
        assert_eq!(old, new, "{extent} was written before the log that covers it");
    }
    log.broken.store(false, Ordering::Relaxed);
    pool.checkpoint().unwrap();
    assert_eq!(log.durable.lock().unwrap().iter().max(), Some(&Lsn(102)));
    assert_eq!(pool.statistics().pages_written, 6);
}

/// Otherwise a thread that frees a very large table would use memory for all of it.
#[test]
fn a_checkpoint_is_asked_for_when_much_space_has_changed_hands() {
    let (file, extents) = sample();
    let log = Arc::new(Log::default());
    let pool = open(&file, &options().change_log(log.clone()));
    for number in 1..=1_u64 << 20 {
        assert_eq!(log.checkpoints.load(Ordering::Relaxed), 0, "after {number} events");
        pool.note_allocated(extents[0], Lsn(number));
    }
    assert_eq!(log.checkpoints.load(Ordering::Relaxed), 1);
}

#[test]
fn memory_that_is_set_aside_is_not_there_for_pages_until_it_is_given_back() {
    let (file, extents) = sample();
    let pool = open(&file, &options());
    assert!(pool.set_aside(17 * 4096).is_none());
    let half = pool.set_aside(8 * 4096 - 1).unwrap();
    assert!(pool.set_aside(9 * 4096).is_none());
    assert_eq!(pool.statistics().pages_resident, 8);
    for extent in &extents {
        drop(pool.shared(*extent).unwrap());
        assert!(pool.statistics().pages_resident <= 16);
    }
    assert!(pool.statistics().pages_evicted >= 8);
    let before = pool.statistics().pages_resident;
    drop(half);
    assert_eq!(pool.statistics().pages_resident, before - 8);
}
