//! Times in which no page can be written.

mod common;

use common::log::MemoryLog;
use std::sync::{Arc, atomic::Ordering};
use vellum_base::{Extent, PAGE_SIZE, PageKind};
use vellum_pool::{Allocation, Pool, PoolError, PoolFile, PoolOptions};
use vellum_vm::{Faults, SimulatedFile};

/// A new page, whose change has a record that is not durable yet.
fn page(pool: &Pool, log: &MemoryLog) -> Result<Extent, PoolError> {
    let lsn = log.append(b"a page");
    let extent = pool.allocate(1, PageKind::USER)?.keep().extent();
    pool.note_allocated(extent, lsn);
    pool.exclusive(extent)?.set_lsn(lsn);
    Ok(extent)
}

/// A page cannot be written, and then the log ends too. Once there is room again, no write shows it, because no page
/// may be written before its record: what is left to say is that the log has ended.
#[test]
fn the_end_of_the_log_is_not_hidden_by_an_earlier_error_of_a_write() {
    let options = PoolOptions::default()
        .pool_bytes(32 * PAGE_SIZE as u64)
        .capacity_bytes(1 << 24)
        .background_eviction(false);
    let simulated = SimulatedFile::new(1);
    let file = PoolFile::create_on(Arc::new(simulated.clone()), &options).unwrap();
    let log = Arc::new(MemoryLog::new(file.redo()));
    let pool = file.start(Some(log.clone())).unwrap();
    let durable = page(&pool, &log).unwrap();
    log.make_all_durable();
    // Only the superblocks have their storage.
    simulated.set_faults(Faults { reserved_bytes: Some(2 * PAGE_SIZE as u64), ..Faults::default() });
    log.broken.store(true, Ordering::SeqCst);
    let refused = |attempt: Result<Extent, PoolError>| matches!(attempt, Err(PoolError::Write { .. }));
    assert!((0..100).any(|_| refused(page(&pool, &log))), "no write was tried");
    simulated.heal();
    // A reader keeps the page that could be written now.
    let reader = pool.shared(durable).unwrap();
    let error = page(&pool, &log).unwrap_err();
    assert!(matches!(error, PoolError::Log(_)), "{error}");
    drop(reader);
    log.broken.store(false, Ordering::SeqCst);
    page(&pool, &log).unwrap();
    pool.close().unwrap();
}
