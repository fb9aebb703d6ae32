//! A queue of misses in a whole pool.

use super::*;
use crate::{Pool, PoolOptions};
use vellum_base::PageKind;
use vellum_vm::SimulatedFile;

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

#[test]
fn all_reads_are_waited_for_at_once_and_the_pages_are_there() {
    let options = PoolOptions::default().pool_bytes(64 * 4096).capacity_bytes(1 << 24);
    let file = SimulatedFile::new(2);
    let pool = Pool::create_on(Arc::new(file.clone()), &options).unwrap();
    let pages: Vec<_> =
        (0..20).map(|_| pool.allocate(1, PageKind::USER).unwrap().keep().extent().head).collect();
    pool.close().unwrap();
    let pool = Pool::open_on(Arc::new(file), &options).unwrap();
    let mut queue = MissQueue::new(&pool.allocator().io, 4).unwrap();
    // Every other one, so that no two are one request.
    let pages: Vec<_> = pages.into_iter().step_by(2).collect();
    assert_eq!(queue.begin_read_ahead(&pages), pages.len());
    let mut finished = Vec::new();
    queue.reap_all(&mut finished);
    assert_eq!((queue.under_way(), finished.len()), (0, pages.len()));
    for page in pages {
        let state = pool.table().state(page).load();
        assert!(!state.is_evicted() && !state.is_exclusive(), "{page:?}");
    }
}
