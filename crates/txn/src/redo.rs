//! The second pass over the log after a crash: changes are done again, page by page, by several threads.
//!
//! Each thread reads the whole log and redoes what concerns its own pages. The redo of a page needs that page and its
//! records alone, in their order.

use crate::{TxnError, analysis::Analysis};
use std::thread;
use vellum_access::{ChangeRecord, PageRedo, redo};
use vellum_base::{Extent, Lsn, PageId};
use vellum_pool::Pool;
use vellum_wal::Log;

/// The most threads; more would only read the log more often.
const THREADS_MAX: usize = 8;

/// Redoes all changes from `from` on.
pub(crate) fn redo_all(pool: &Pool, log: &Log, from: Lsn, analysis: &Analysis) -> Result<(), TxnError> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    thread::scope(|scope| {
        let worker = |number| move || redo_some(pool, log, from, analysis, number, threads);
        let workers: Vec<_> = (0..threads).map(|number| scope.spawn(worker(number))).collect();
        let outcomes = workers.into_iter().map(|worker| worker.join().unwrap_or(Err(TxnError::Panicked)));
        outcomes.collect::<Vec<_>>().into_iter().collect()
    })
}

/// Redoes the changes of the pages of one thread.
fn redo_some(
    pool: &Pool,
    log: &Log,
    from: Lsn,
    analysis: &Analysis,
    number: usize,
    threads: usize,
) -> Result<(), TxnError> {
    let mut reader = log.reread(from)?;
    while let Some(record) = reader.next()? {
        let lsn = record.lsn;
        let faulty = |fault| TxnError::Record { lsn, fault };
        for change in ChangeRecord::decode(record.payload).map_err(faulty)?.page_changes() {
            let PageRedo { page, change, fresh } = change.map_err(faulty)?;
            let is_mine = share(page, threads) == number;
            if is_mine && analysis.counts(page, lsn) && pool.is_extent(Extent::page(page)) {
                let apply = |bytes: &mut [u8]| {
                    redo(bytes, page, lsn, &change)
                        .map_err(|error| format!("the record at {lsn} cannot be redone: {error}"))
                };
                pool.redo(page, fresh, apply)?;
            }
        }
    }
    Ok(())
}

/// Which thread redoes a page. Neighbours often change together, so they go to different threads.
fn share(page: PageId, threads: usize) -> usize {
    (page.0 % threads as u64) as usize
}
