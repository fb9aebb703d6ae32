//! Threads that wait for one another while there is a log.

mod common;

use common::log::MemoryLog;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{RecvTimeoutError, channel},
    },
    thread,
    time::Duration,
};
use vellum_base::{Extent, Lsn, PageHeader, PageKind};
use vellum_pool::{Allocation, ChangeLog, Pool, PoolError, PoolFile, PoolOptions};
use vellum_vm::SimulatedFile;

/// A page with this LSN that changes are recorded of.
fn page(pool: &Pool, lsn: Lsn) -> Extent {
    try_page(pool, lsn).unwrap()
}

fn try_page(pool: &Pool, lsn: Lsn) -> Result<Extent, PoolError> {
    let mut guard = pool.allocate(1, PageKind::TREE_NODE)?;
    guard.payload_mut().fill(7);
    let guard = guard.keep();
    let extent = guard.extent();
    drop(guard);
    pool.note_allocated(extent, lsn);
    pool.exclusive(extent).unwrap().set_lsn(lsn);
    Ok(extent)
}

#[test]
fn a_thread_that_waits_for_memory_keeps_no_record_from_being_filled() {
    let options =
        PoolOptions::default().pool_bytes(64 * 4096).capacity_bytes(1 << 28).background_eviction(false);
    let file = PoolFile::create_on(Arc::new(SimulatedFile::new(1)), &options).unwrap();
    let log = Arc::new(MemoryLog::new(file.redo()));
    let pool = Arc::new(file.start(Some(log.clone())).unwrap());
    let add = |_| {
        let other = page(&pool, log.append(b"a page"));
        log.make_all_durable();
        other
    };
    let others: Vec<_> = (0..200).map(add).collect();
    // This record is not filled yet. New pages have later changes, until there is memory only for readers.
    let freed = log.reserve(10);
    let waits = log.waits.load(Ordering::SeqCst);
    let (filling, later) = (pool.clone(), log.clone());
    let fill = thread::spawn(move || {
        for _ in 0..100 {
            let lsn = later.append(b"a change");
            // On a busy machine the others may take longer than it waits for memory.
            while let Err(error) = try_page(&filling, lsn) {
                assert!(matches!(error, PoolError::PoolExhausted { .. }), "{error}");
            }
        }
    });
    let wait_for = |more: u64| {
        while log.waits.load(Ordering::SeqCst) < waits + more {
            thread::yield_now();
        }
    };
    wait_for(1);
    // A reader keeps what it has read, until there is none for it either.
    let (sender, ended) = channel();
    let (reading, its_sender) = (pool.clone(), sender.clone());
    let (at, of_reader) = (Arc::new(AtomicUsize::new(0)), others.clone());
    let reads = at.clone();
    let read = thread::spawn(move || {
        let mut held = Vec::new();
        for other in of_reader {
            match reading.shared(other) {
                Ok(guard) => held.push(guard),
                // It was freed meanwhile, or nothing is left.
                Err(_) => break,
            }
            reads.fetch_add(1, Ordering::SeqCst);
        }
        drop(its_sender);
    });
    wait_for(2);
    // What it waits to read is freed by that record, which is filled once no thread is on it any more.
    let node = others[at.load(Ordering::SeqCst)];
    let writing = (pool.clone(), log.clone());
    let write = thread::spawn(move || {
        writing.0.discard_now(node, freed).unwrap();
        writing.1.fill(freed, &[0; 10]);
        drop(sender);
    });
    let outcome = ended.recv_timeout(Duration::from_secs(20));
    assert_eq!(outcome, Err::<(), _>(RecvTimeoutError::Disconnected), "they wait for each other");
    [read, fill, write].into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_page_that_is_made_while_a_checkpoint_chooses_its_redo_point_lies_before_it() {
    let options =
        PoolOptions::default().pool_bytes(64 * 4096).capacity_bytes(1 << 28).background_eviction(false);
    let file = PoolFile::create_on(Arc::new(SimulatedFile::new(1)), &options).unwrap();
    let log = Arc::new(MemoryLog::new(file.redo()));
    let pool = Arc::new(file.start(Some(log.clone())).unwrap());
    log.append(b"a change");
    log.set_images_from(Lsn(u64::MAX));
    let redo = log.end();
    // These come while it is on its way.
    log.append(b"another");
    log.append(b"the last");
    log.make_all_durable();
    let (making, sender) = (pool.clone(), channel());
    let make = thread::spawn(move || {
        let mut guard = making.allocate(1, PageKind::TREE_NODE).unwrap();
        sender.0.send(PageHeader::read(guard.page_mut()).lsn).unwrap();
    });
    thread::sleep(Duration::from_millis(50));
    log.set_images_from(redo);
    let lsn = sender.1.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(lsn < redo, "{lsn} is not before {redo}: the first change would not carry the page");
    make.join().unwrap();
}
