//! The second pass over the log after a crash: changes are done again, page by page, by several threads. Then what was not
//! committed is undone, record by record, the latest first, with records of its own.
//!
//! Each thread reads the whole log and redoes what concerns its own pages. The redo of a page needs that page and its
//! records alone, in their order.

use crate::{
    TxnError,
    analysis::{Analysis, LoggedChange},
    change_log::Changes,
    plant::{Bug, planted},
    transaction::{decode_end, log_rollback, undo},
};
use std::thread;
use vellum_access::{ChangeRecord, PageRedo, free_large, redo};
use vellum_base::{Extent, Lsn, PageId, stamp_lsn};
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
        // The records of the ends of transactions change no page.
        if decode_end(record.payload).is_some() {
            continue;
        }
        let lsn = record.lsn;
        let faulty = |fault| TxnError::Record { lsn, fault };
        for change in ChangeRecord::decode(record.payload).map_err(faulty)?.page_changes() {
            let PageRedo { page, change, fresh } = change.map_err(faulty)?;
            let is_mine = share(page, threads) == number;
            if is_mine && analysis.counts(page, lsn) && pool.is_extent(Extent::page(page)) {
                let apply = |bytes: &mut [u8]| {
                    let apply = |bytes: &mut [u8]| {
                        redo(bytes, page, lsn, &change)
                            .map_err(|error| format!("the record at {lsn} cannot be redone: {error}"))
                    };
                    if planted(Bug::RedoTwice) && apply(bytes)? {
                        stamp_lsn(bytes, Lsn(0));
                    }
                    apply(bytes)
                };
                pool.redo(page, fresh, apply)?;
            }
        }
    }
    Ok(())
}

/// Undoes what transactions have changed that did not end, and frees what those replaced that were committed. If that is
/// interrupted by a crash, the next recovery goes on after it.
pub(crate) fn undo_all(pool: &Pool, changes: &Changes, analysis: &mut Analysis) -> Result<(), TxnError> {
    let (losers, undone) = analysis.take_losers();
    for LoggedChange { transaction, lsn, record } in undone {
        let is_left = planted(Bug::LoserForgotten) && losers.iter().min() == Some(&transaction);
        if is_left || planted(Bug::LosersNotUndone) {
            continue;
        }
        let faulty = |fault| TxnError::Record { lsn, fault };
        let record = ChangeRecord::decode(&record).map_err(faulty)?;
        if let Some((tree, change)) = record.undo().map_err(faulty)? {
            undo(pool, tree, change, (transaction, lsn))?;
        }
    }
    losers.into_iter().for_each(|loser| log_rollback(changes, loser));
    for (tree, reference) in analysis.take_replaced() {
        free_large(pool, tree, reference)?;
    }
    Ok(())
}

/// Which thread redoes a page. Neighbours often change together, so they go to different threads.
fn share(page: PageId, threads: usize) -> usize {
    (page.0 % threads as u64) as usize
}
