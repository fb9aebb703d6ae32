//! The second pass over the log after a crash: changes are done again, page by page, by several threads. Then what was not
//! committed is undone, record by record, the latest first, with records of its own.
//!
//! Each thread reads the whole log and redoes what concerns its own pages. The redo of a page needs that page and its
//! records alone, in their order.

use crate::{
    TxnError,
    analysis::Analysis,
    change_log::Changes,
    plant::{Bug, planted},
    records::is_change,
    transaction::{log_rollback, undo},
};
use std::{sync::Mutex, thread};
use vellum_access::{ChangeRecord, PageRedo, free_large, redo};
use vellum_base::{Extent, Lsn, PageId, stamp_lsn};
use vellum_pool::{Pool, PoolError};
use vellum_wal::{Log, LogError};

/// The most threads; more would only read the log more often.
const THREADS_MAX: usize = 8;

/// What is done about pages that are damaged.
pub(crate) struct Damage {
    is_passed_over: bool,
    /// What was, once for each page.
    found: Mutex<Vec<TxnError>>,
}

impl Damage {
    pub fn new(is_passed_over: bool) -> Self {
        Self { is_passed_over, found: Mutex::default() }
    }

    pub fn into_found(self) -> Vec<TxnError> {
        self.found.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// An error that is not passed over.
    fn check(&self, done: Result<(), TxnError>) -> Result<(), TxnError> {
        let extent = |error: &TxnError| match error {
            TxnError::Pool(PoolError::Corruption { extent, .. }) => Some(*extent),
            _ => None,
        };
        match done {
            Err(error) if self.is_passed_over && extent(&error).is_some() => {
                let mut found = self.found.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                if found.iter().all(|other| extent(other) != extent(&error)) {
                    found.push(error);
                }
                Ok(())
            }
            done => done,
        }
    }
}

/// Redoes all changes from `from` on.
pub(crate) fn redo_all(
    pool: &Pool,
    log: &Log,
    from: Lsn,
    analysis: &Analysis,
    damage: &Damage,
) -> Result<(), TxnError> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    thread::scope(|scope| {
        let worker = |number| move || redo_some((pool, damage), log, from, analysis, number, threads);
        let workers: Vec<_> = (0..threads).map(|number| scope.spawn(worker(number))).collect();
        let outcomes = workers.into_iter().map(|worker| worker.join().unwrap_or(Err(TxnError::Panicked)));
        outcomes.collect::<Vec<_>>().into_iter().collect()
    })
}

/// Redoes the changes of the pages of one thread.
fn redo_some(
    (pool, damage): (&Pool, &Damage),
    log: &Log,
    from: Lsn,
    analysis: &Analysis,
    number: usize,
    threads: usize,
) -> Result<(), TxnError> {
    let mut reader = log.reread(from)?;
    while let Some(record) = reader.next()? {
        if !is_change(record.payload) {
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
                damage.check(pool.redo(page, fresh, apply).map(drop).map_err(TxnError::from))?;
            }
        }
    }
    Ok(())
}

/// Undoes what transactions have changed that did not end, and frees what those replaced that were committed. If that is
/// interrupted by a crash, the next recovery goes on after it.
pub(crate) fn undo_all(
    pool: &Pool,
    changes: &Changes,
    analysis: &mut Analysis,
    damage: &Damage,
) -> Result<(u64, u64), TxnError> {
    /// How many changes are read at once.
    const MANY: usize = 4096;
    let (losers, undone) = analysis.take_losers();
    let counts = (losers.len() as u64, undone.len() as u64);
    // The latest first.
    for undone in undone.rchunks(MANY) {
        let records = read_records(&changes.log, undone)?;
        for ((lsn, transaction), record) in undone.iter().zip(&records).rev() {
            let is_left = planted(Bug::LoserForgotten) && losers.iter().min() == Some(transaction);
            if is_left || planted(Bug::LosersNotUndone) {
                continue;
            }
            let faulty = |fault| TxnError::Record { lsn: *lsn, fault };
            let record = ChangeRecord::decode(record).map_err(faulty)?;
            if let Some((tree, change)) = record.undo().map_err(faulty)? {
                damage.check(undo(pool, tree, change, (*transaction, *lsn)))?;
            }
        }
    }
    losers.into_iter().for_each(|loser| log_rollback(changes, loser));
    for (tree, reference) in analysis.take_replaced() {
        damage.check(free_large(pool, tree, reference).map_err(TxnError::from))?;
    }
    Ok(counts)
}

/// The records at these places, which are in order.
fn read_records(log: &Log, places: &[(Lsn, u64)]) -> Result<Vec<Box<[u8]>>, TxnError> {
    let mut records = Vec::with_capacity(places.len());
    let Some((first, _)) = places.first() else { return Ok(records) };
    let mut reader = log.reread(*first)?;
    for (place, _) in places {
        loop {
            // It was read a moment ago.
            let record = reader.next()?.ok_or(LogError::Missing { from: *place, oldest: *first })?;
            if record.lsn == *place {
                records.push(record.payload.into());
                break;
            }
        }
    }
    Ok(records)
}

/// Which thread redoes a page. Neighbours often change together, so they go to different threads.
fn share(page: PageId, threads: usize) -> usize {
    (page.0 % threads as u64) as usize
}
