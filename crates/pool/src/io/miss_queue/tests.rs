//! A queue of misses in a whole pool.

use super::*;
use crate::{AsynchronousReads as _, Navigation as _, Pool, PoolOptions};
use vellum_base::PageKind;
use vellum_vm::{Completion, Queue, Request, SimulatedFile};

#[test]
fn nothing_but_a_reap_waits_for_a_thread_that_has_locked_the_queue() {
    let options = PoolOptions::default().pool_bytes(64 * 4096).capacity_bytes(1 << 24);
    let file = SimulatedFile::new(1);
    let pool = Pool::create_on(Arc::new(file.clone()), &options).unwrap();
    let page = pool.allocate(1, PageKind::USER).unwrap().keep().extent();
    pool.close().unwrap();
    let pool = Pool::open_on(Arc::new(file), &options).unwrap();
    let (locked, unlock) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
    std::thread::scope(|scope| {
        let mut queue = MissQueue::new(&pool.allocator().io, 4).unwrap();
        let reads = queue.reads.clone();
        // Unlocks after a while even if it is waited for, so that the test fails and does not hang.
        scope.spawn(move || {
            let _held = lock(&reads);
            locked.0.send(()).unwrap();
            let _ = unlock.1.recv_timeout(std::time::Duration::from_secs(2));
        });
        locked.1.recv().unwrap();
        let begun = std::time::Instant::now();
        assert_eq!(queue.begin(&Miss::certain(page)).unwrap(), Begun::NoRoom);
        assert_eq!(queue.begin_read_ahead(&[page.head]), 0);
        queue.flush();
        queue.reap(false, &mut Vec::new());
        assert!(begun.elapsed() < std::time::Duration::from_secs(1));
        assert_eq!(pool.statistics().pages_resident, 0);
        unlock.0.send(()).unwrap();
        while queue.begin(&Miss::certain(page)).unwrap() == Begun::NoRoom {
            std::thread::yield_now();
        }
        let mut finished = Vec::new();
        queue.reap(true, &mut finished);
        assert!(finished.pop().unwrap().result.is_ok());
    });
}

/// A pool with single pages, none of which is in memory, and no two of which are neighbours.
fn pool_with_pages(seed: u64, count: usize) -> (Pool, Vec<PageId>) {
    let options = PoolOptions::default().pool_bytes(64 * 4096).capacity_bytes(1 << 24);
    let file = SimulatedFile::new(seed);
    let pool = Pool::create_on(Arc::new(file.clone()), &options).unwrap();
    let allocate = |_| pool.allocate(1, PageKind::USER).unwrap().keep().extent().head;
    let pages = (0..2 * count).map(allocate).step_by(2).collect();
    pool.close().unwrap();
    (Pool::open_on(Arc::new(file), &options).unwrap(), pages)
}

#[test]
fn a_read_whose_owner_is_elsewhere_is_completed_without_waiting() {
    let (pool, pages) = pool_with_pages(3, 2);
    let mut queue = MissQueue::new(&pool.allocator().io, 4).unwrap();
    assert_eq!(queue.begin(&Miss::certain(Extent::page(pages[0]))).unwrap(), Begun::Reading);
    // Each call finds what is done by then.
    let attempts = (0..1000).take_while(|_| {
        pool.complete_read(pages[1]);
        assert!(pool.is_latched(pages[0]), "another page was asked for");
        pool.complete_read(pages[0]);
        pool.is_latched(pages[0])
    });
    assert!(attempts.count() < 1000);
    let mut finished = Vec::new();
    queue.reap(false, &mut finished);
    assert!(finished.pop().unwrap().result.is_ok());
    assert_eq!(queue.under_way(), 0);
}

/// Its owner has begun to read what fills the pool, and does not look whether that is over.
#[test]
fn a_read_whose_owner_is_elsewhere_leaves_room_to_others() {
    let options = PoolOptions::default().pool_bytes(64 * 4096).capacity_bytes(1 << 24);
    let file = SimulatedFile::new(6);
    let pool = Pool::create_on(Arc::new(file.clone()), &options).unwrap();
    let large = pool.allocate(64, PageKind::USER).unwrap().keep().extent();
    let page = pool.allocate(1, PageKind::USER).unwrap().keep().extent();
    pool.close().unwrap();
    let pool = Pool::open_on(Arc::new(file), &options).unwrap();
    type Other<'p> = &'p dyn Fn() -> Result<(), PoolError>;
    let read: Other<'_> = &|| pool.shared_certain(page).map(drop);
    let allocate: Other<'_> = &|| pool.allocate(1, PageKind::USER).map(drop);
    for other in [read, allocate] {
        let mut queue = MissQueue::new(&pool.allocator().io, 4).unwrap();
        assert_eq!(queue.begin(&Miss::certain(large)).unwrap(), Begun::Reading);
        queue.flush();
        other().unwrap();
        let mut finished = Vec::new();
        queue.reap(true, &mut finished);
        assert!(finished.pop().unwrap().result.is_ok());
        assert!(pool.is_evicted(large.head), "the owner will read it again");
    }
}

/// The pages that an operation needs evict each other, and so are never there at once, as long as the read holds the rest.
#[test]
fn a_read_whose_owner_is_elsewhere_leaves_room_for_an_operation_that_needs_many_pages() {
    let options = PoolOptions::default().pool_bytes(64 * 4096).capacity_bytes(1 << 24);
    let file = SimulatedFile::new(7);
    let pool = Pool::create_on(Arc::new(file.clone()), &options).unwrap();
    let large = pool.allocate(30, PageKind::USER).unwrap().keep().extent();
    let pages: Vec<_> =
        (0..40).map(|_| pool.allocate(1, PageKind::USER).unwrap().keep().extent().head).collect();
    pool.close().unwrap();
    let pool = Pool::open_on(Arc::new(file), &options).unwrap();
    let mut queue = MissQueue::new(&pool.allocator().io, 4).unwrap();
    assert_eq!(queue.begin(&Miss::certain(large)).unwrap(), Begun::Reading);
    queue.flush();
    let all = pool.run(|| pages.iter().map(|page| pool.root(*page)).collect::<Result<Vec<_>, _>>());
    assert_eq!(all.unwrap().len(), pages.len());
}

#[test]
fn the_reads_of_a_leaked_queue_are_over_before_the_mapping_goes() {
    for closes in [false, true] {
        let (pool, pages) = pool_with_pages(4, 10);
        let mut queue = MissQueue::new(&pool.allocator().io, 4).unwrap();
        assert_eq!(queue.begin_read_ahead(&pages), pages.len());
        let reads = queue.reads.clone();
        std::mem::forget(queue);
        if closes {
            pool.close().unwrap();
        } else {
            drop(pool);
        }
        assert_eq!(lock(&reads).queue.under_way(), 0);
    }
}

#[test]
fn all_reads_are_waited_for_at_once_and_the_pages_are_there() {
    let (pool, pages) = pool_with_pages(2, 10);
    let mut queue = MissQueue::new(&pool.allocator().io, 4).unwrap();
    assert_eq!(queue.begin_read_ahead(&pages), pages.len());
    let mut finished = Vec::new();
    queue.reap_all(&mut finished);
    assert_eq!((queue.under_way(), finished.len()), (0, pages.len()));
    for page in pages {
        let state = pool.table().state(page).load();
        assert!(!state.is_evicted() && !state.is_exclusive(), "{page:?}");
    }
}

/// A queue whose ring has failed, or has not.
#[derive(Debug)]
struct Idle {
    is_degraded: bool,
}

impl Queue for Idle {
    fn depth(&self) -> usize {
        8
    }

    fn under_way(&self) -> usize {
        0
    }

    fn is_degraded(&self) -> bool {
        self.is_degraded
    }

    unsafe fn submit(&mut self, _request: Request, _tag: u64) {
        unreachable!("nothing is read");
    }

    fn flush(&mut self) {}

    fn reap(&mut self, _wait: Wait, _done: &mut Vec<Completion>) {}
}

#[test]
fn a_queue_whose_ring_has_failed_is_not_lent_again() {
    let (pool, _) = pool_with_pages(5, 1);
    let io = &pool.allocator().io;
    for is_degraded in [true, false] {
        let reads = Arc::new(Mutex::new(Reads::new(Box::new(Idle { is_degraded }))));
        io.take_back(&reads);
        let lent = io.queue(4).unwrap();
        assert_eq!(Arc::ptr_eq(&lent, &reads), !is_degraded);
    }
}
