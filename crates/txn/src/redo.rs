//! The second pass over the log after a crash: changes are done again, page by page, by several threads. Then what was not
//! committed is undone, record by record, the latest first, with records of its own.
//!
//! One thread reads the log and deals the changes out to others, each of which has pages of its own. The redo of a page needs that
//! page and its records alone, in their order.

use crate::{
    TxnError,
    analysis::Analysis,
    change_log::Changes,
    plant::{Bug, planted},
    records::is_change,
    transaction::{log_rollback, undo},
};
use vellum_access::{
    ChangeRecord, PageRedo, free_large,
    node::{NODE_BYTES, NodeView},
    redo,
};
use vellum_base::primitive::{
    Mutex,
    mpsc::{SendError, SyncSender, sync_channel},
    thread,
};
use vellum_base::{Extent, Lsn, PageId, stamp_lsn};
use vellum_pool::{Navigation, Pool, PoolError};
use vellum_wal::{Log, LogError, Record};

/// The most threads; one that reads the log has no work for more.
const THREADS_MAX: usize = 8;
/// How many bytes of changes a thread is handed at once: they stay in the processor's cache.
const PART_BYTES: usize = 64 << 10;
/// How many parts wait for a thread at most.
const PARTS_WAITING_MAX: usize = 16;
/// How many changes are looked up side by side, at most 64.
const BATCH_CHANGES: usize = 32;

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
        let begin = |_| {
            let (parts, received) = sync_channel(PARTS_WAITING_MAX);
            let worker =
                move || received.iter().try_for_each(|part| redo_part(pool, &part, analysis, damage));
            (Share { parts, next: Part::default() }, scope.spawn(worker))
        };
        let (shares, workers): (Vec<_>, Vec<_>) = (0..threads).map(begin).unzip();
        let dealt = deal(log, from, shares);
        let outcomes = workers.into_iter().map(|worker| worker.join().unwrap_or(Err(TxnError::Panicked)));
        outcomes.fold(dealt, Result::and)
    })
}

/// Reads the log from `from` on and hands each change to the thread that redoes it, until one of them has failed.
fn deal(log: &Log, from: Lsn, mut shares: Vec<Share>) -> Result<(), TxnError> {
    let mut reader = log.reread(from)?;
    while let Some(Record { lsn, payload }) = reader.next()? {
        if !is_change(payload) {
            continue;
        }
        let faulty = |fault| TxnError::Record { lsn, fault };
        for redo in ChangeRecord::decode(payload).map_err(faulty)?.page_changes() {
            let redo = redo.map_err(faulty)?;
            // Neighbours often change together, so they go to different threads.
            let number = (redo.page.0 % shares.len() as u64) as usize;
            if shares.get_mut(number).is_some_and(|share| share.add(lsn, &redo).is_err()) {
                return Ok(());
            }
        }
    }
    // A thread that takes it no more says why.
    shares.iter_mut().for_each(|share| drop(share.send()));
    Ok(())
}

/// Changes of pages of one thread, in the order of the log.
#[derive(Default)]
struct Part {
    bytes: Vec<u8>,
    changes: Vec<DealtChange>,
}

struct DealtChange {
    lsn: Lsn,
    page: PageId,
    /// Where its bytes end.
    end: usize,
}

/// What goes to one thread.
struct Share {
    parts: SyncSender<Part>,
    /// What it is given next.
    next: Part,
}

impl Share {
    /// Adds a change; an error if the thread has ended.
    fn add(&mut self, lsn: Lsn, redo: &PageRedo<'_>) -> Result<(), SendError<Part>> {
        self.next.bytes.extend_from_slice(redo.bytes);
        self.next.changes.push(DealtChange { lsn, page: redo.page, end: self.next.bytes.len() });
        if self.next.bytes.len() < PART_BYTES { Ok(()) } else { self.send() }
    }

    fn send(&mut self) -> Result<(), SendError<Part>> {
        let bytes = Vec::with_capacity(PART_BYTES + NODE_BYTES);
        let changes = Vec::with_capacity(self.next.changes.len());
        self.parts.send(std::mem::replace(&mut self.next, Part { bytes, changes }))
    }
}

/// Redoes changes of the pages of one thread.
fn redo_part(pool: &Pool, part: &Part, analysis: &Analysis, damage: &Damage) -> Result<(), TxnError> {
    let mut from = 0;
    for batch in part.changes.chunks(BATCH_CHANGES) {
        // What they need is in no cache. It is fetched for all of them side by side.
        let mut counts = 0u64;
        for (number, change) in batch.iter().enumerate() {
            pool.prefetch(change.page, 0, NodeView::<&[u8]>::GUIDE_BYTES);
            let is_there =
                analysis.counts(change.page, change.lsn) && pool.is_extent(Extent::page(change.page));
            counts |= u64::from(is_there) << number;
        }
        for (number, change) in batch.iter().enumerate() {
            let bytes = part.bytes.get(from..change.end).unwrap_or_default();
            from = change.end;
            if counts >> number & 1 != 0 {
                damage.check(redo_change(pool, change.lsn, bytes))?;
            }
        }
    }
    Ok(())
}

fn redo_change(pool: &Pool, lsn: Lsn, bytes: &[u8]) -> Result<(), TxnError> {
    let PageRedo { page, change, fresh, .. } =
        PageRedo::decode(bytes).map_err(|fault| TxnError::Record { lsn, fault })?;
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
    Ok(pool.redo(page, fresh, apply).map(drop)?)
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
