//! Redo, by several threads before the database opens, of what the analysis could not keep; what it has kept is redone
//! [on demand](crate::on_demand). Then uncommitted changes are undone, record by record, the latest first, and undo is
//! logged itself.
//!
//! Changes are dealt out by page to many [`shares`](crate::shares). Each thread has some shares, and redoes them part
//! by part, and each part page by page. Bringing a page into the processor's caches costs most, so it should happen as
//! rarely as possible. The redo of a page needs only that page and its records, in order.

use crate::{
    TxnError,
    analysis::{Analysis, Lives},
    change_log::Changes,
    gathered::{Gathered, PageChanges},
    plant::{Bug, planted},
    put_off::PutOff,
    records::is_change,
    shares::{PartChange, Shares},
    transaction::undo,
};
use std::{fmt::Display, iter};
use vellum_access::{
    ChangeRecord, PageRedo, UndoChange, free_large,
    node::{NodeError, NodeView},
};
use vellum_base::primitive::{Mutex, mpsc::sync_channel, spawn_scoped, thread};
use vellum_base::{Extent, Lsn, PageId, stamp_lsn};
use vellum_pool::{AsynchronousReads, FinishedRead, MissQueue, Misses, Navigation, Pool, PoolError};
use vellum_wal::{Log, LogError, Record};

/// The most threads; a thread that reads the log cannot supply more.
pub(crate) const THREADS_MAX: usize = 8;
/// How many parts wait for a thread at most.
const WORK_WAITING_MAX: usize = 16;
/// How many pages ahead the first bytes that a change needs are prefetched.
const AHEAD: usize = 8;
/// How many page reads overlap for each thread.
const READS: usize = 128;

/// What to do about damaged pages.
pub(crate) struct Damage {
    is_passed_over: bool,
    /// The damage that was passed over, once for each page.
    found: Mutex<Vec<TxnError>>,
}

impl Damage {
    pub fn new(is_passed_over: bool) -> Self {
        Self { is_passed_over, found: Mutex::default() }
    }

    pub fn take_found(&self) -> Vec<TxnError> {
        std::mem::take(&mut *self.found.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Returns an error that is not passed over.
    #[inline]
    pub fn check(&self, done: Result<(), TxnError>) -> Result<(), TxnError> {
        // Checked in place: a move would wait until what was just written is in the processor's cache.
        if done.is_ok() { Ok(()) } else { self.check_error(done) }
    }

    #[cold]
    fn check_error(&self, done: Result<(), TxnError>) -> Result<(), TxnError> {
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

/// Redoes the log from a place on, before anything else uses the pool.
pub(crate) fn redo_rest(
    pool: &Pool,
    log: &Log,
    from: Lsn,
    lives: &Lives,
    damage: &Damage,
) -> Result<(), TxnError> {
    let redo = Redo { pool, lives, damage };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    thread::scope(|scope| {
        let (mut senders, mut workers) = (Vec::new(), Vec::new());
        for _ in 0..if threads > 1 { threads } else { 0 } {
            let (sender, received) = sync_channel::<Vec<u8>>(WORK_WAITING_MAX);
            let work = move || {
                let mut worker = Worker::new(redo);
                received.iter().try_for_each(|part| worker.part(&part))
            };
            // If the system refuses a thread, the other threads and this one do its work.
            let Ok(worker) = spawn_scoped(scope, "vellum-redo", work) else { break };
            senders.push(sender);
            workers.push(worker);
        }
        let mut worker = Worker::new(redo);
        let dealt = deal(pool, log, from, |share, part| match senders.get(share % senders.len().max(1)) {
            Some(worker) => worker.send(part).map_err(|_| Stop::WorkerEnded),
            None => Ok(worker.part(&part)?),
        });
        drop(senders);
        let outcomes = workers.into_iter().map(|worker| worker.join().unwrap_or(Err(TxnError::Panicked)));
        let redone = outcomes.fold(Ok(()), Result::and);
        match dealt {
            Err(Stop::Error(error)) => Err(error),
            // A thread that has ended says why.
            Ok(()) | Err(Stop::WorkerEnded) => redone,
        }
    })
}

/// Why dealing out stops.
enum Stop {
    WorkerEnded,
    Error(TxnError),
}

impl<E: Into<TxnError>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

/// Gives the changes in the log from a place on to `redo`, part by part, each with the number of its share.
fn deal(
    pool: &Pool,
    log: &Log,
    from: Lsn,
    mut redo: impl FnMut(usize, Vec<u8>) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let (mut reader, mut shares) = (log.reread(from)?, Shares::new(pool.limit_pages()));
    reader.for_each(|Record { lsn, payload }| {
        if !is_change(payload) {
            return Ok(());
        }
        let faulty = |fault| TxnError::Record { lsn, fault };
        for change in ChangeRecord::decode(payload).map_err(faulty)?.page_changes() {
            let change = change.map_err(faulty)?;
            shares.deal(lsn, &change, &mut redo)?;
        }
        Ok::<_, Stop>(())
    })?;
    shares.into_parts().enumerate().try_for_each(|(share, part)| redo(share, part))
}

/// What redo works on.
#[derive(Clone, Copy)]
struct Redo<'r> {
    pool: &'r Pool,
    lives: &'r Lives,
    damage: &'r Damage,
}

/// Redoes changes, part by part.
struct Worker<'r> {
    redo: Redo<'r>,
    gathered: Gathered,
    /// Reads of pages. `None` before the first, and where the system refuses them: then pages are read one by one.
    reads: Option<MissQueue<'r>>,
    /// The pages that are being read for a part.
    missing: Vec<PageId>,
    finished: Vec<FinishedRead>,
}

impl<'r> Worker<'r> {
    fn new(redo: Redo<'r>) -> Self {
        let (missing, finished) = (Vec::new(), Vec::new());
        Self { redo, gathered: Gathered::default(), reads: None, missing, finished }
    }

    /// Redoes the changes of a part page by page: each page is found and latched once. Pages that must be read are read
    /// together, while the other pages are redone.
    fn part(&mut self, part: &[u8]) -> Result<(), TxnError> {
        self.gathered.gather(part, iter::once(0..part.len()))?;
        self.begin_reads();
        let Self { redo, gathered, .. } = &*self;
        let pages = gathered.pages();
        let (mut ahead, mut missing) = (pages.iter().skip(AHEAD), self.missing.iter().peekable());
        for page in pages {
            if let Some(PageChanges { page, .. }) = ahead.next() {
                redo.pool.prefetch(*page, 0, NodeView::<&[u8]>::GUIDE_BYTES);
            }
            if missing.next_if(|missing| **missing == page.page).is_none() {
                redo.damage.check(redo.page(page, gathered, part))?;
            }
        }
        self.end_reads();
        let Self { redo, gathered, .. } = &*self;
        let mut missing = self.missing.iter().peekable();
        for page in gathered.pages() {
            if missing.next_if(|missing| **missing == page.page).is_some() {
                redo.damage.check(redo.page(page, gathered, part))?;
            }
        }
        Ok(())
    }

    /// Begins to read pages that are not in memory and will not be initialized.
    fn begin_reads(&mut self) {
        let pool = self.redo.pool;
        let is_missing = |page: &&PageChanges| !page.fresh && pool.is_evicted(page.page);
        self.missing.clear();
        self.missing.extend(self.gathered.pages().iter().filter(is_missing).map(|page| page.page));
        if self.missing.is_empty() {
            return;
        }
        self.reads = self.reads.take().or_else(|| pool.misses(READS).ok());
        if let Some(reads) = &mut self.reads {
            reads.begin_read_ahead(&self.missing);
            reads.flush();
        }
    }

    /// Waits for the reads. A page that could not be read, or has been evicted again, is read once more when it is
    /// redone, which reports the error.
    fn end_reads(&mut self) {
        if let Some(reads) = &mut self.reads {
            while reads.under_way() > 0 {
                reads.reap(true, &mut self.finished);
            }
            self.finished.clear();
        }
    }
}

impl Redo<'_> {
    /// Redoes the gathered changes of a page.
    fn page(&self, of: &PageChanges, gathered: &Gathered, part: &[u8]) -> Result<(), TxnError> {
        let page = of.page;
        // Changes of an earlier life are not needed.
        let mut changes = gathered.changes(of, part);
        let Some(first) = changes.find(|change| self.lives.counts(page, change.lsn)) else {
            return Ok(());
        };
        if !self.pool.is_extent(Extent::page(page)) {
            return Ok(());
        }
        Ok(self
            .pool
            .redo(page, first.fresh, |bytes| redo_changes(bytes, iter::once(first).chain(changes)))?)
    }
}

/// Redoes changes of one page. The error says which change cannot be redone, and why.
pub(crate) fn redo_changes<'p>(
    page: &mut [u8],
    mut changes: impl Iterator<Item = PartChange<'p>>,
) -> Result<(), String> {
    changes.try_for_each(|PartChange { lsn, bytes: mut encoded, .. }| {
        let fault = |error: &dyn Display| format!("the record at {lsn} cannot be redone: {error}");
        let change = PageRedo::decode(&mut encoded).map_err(|error| fault(&error))?;
        redo_change(page, &change, lsn).map_err(|error| fault(&error))
    })
}

fn redo_change(page: &mut [u8], redo: &PageRedo<'_>, lsn: Lsn) -> Result<(), NodeError> {
    let PageRedo { page: id, change, .. } = redo;
    if planted(Bug::RedoTwice) && vellum_access::redo(page, *id, lsn, change)? {
        stamp_lsn(page, Lsn(0));
    }
    vellum_access::redo(page, *id, lsn, change)?;
    Ok(())
}

/// Undoes the changes of transactions that did not end, and frees what committed ones replaced. If a crash interrupts
/// that, the next recovery goes on from there.
pub(crate) fn undo_all(
    pool: &Pool,
    changes: &Changes,
    analysis: &mut Analysis,
    damage: &Damage,
) -> Result<(u64, u64), TxnError> {
    /// How many records are read at once.
    const MANY: usize = 4096;
    let (losers, undone) = analysis.take_losers();
    let counts = (losers.len() as u64, undone.len() as u64);
    let mut put_off = PutOff::default();
    // The latest first. Nothing is known of how much room undo may need, so leaves stay as they are.
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
                if let UndoChange::Restore { key, before: None } = change {
                    put_off.note(tree, key);
                }
                let undone =
                    pool.undo_space().holding_leaves(|| undo(pool, tree, change, (*transaction, *lsn)));
                damage.check(undone)?;
            }
        }
    }
    losers.into_iter().for_each(|loser| changes.log_rollback(loser));
    for (tree, reference) in analysis.take_replaced() {
        damage.check(free_large(pool, tree, reference).map_err(TxnError::from))?;
    }
    put_off.carry_out(pool);
    Ok(counts)
}

/// The records at these places, which are in order.
fn read_records(log: &Log, places: &[(Lsn, u64)]) -> Result<Vec<Box<[u8]>>, TxnError> {
    let mut records = Vec::with_capacity(places.len());
    let Some((first, _)) = places.first() else { return Ok(records) };
    let mut reader = log.reread(*first)?;
    for (place, _) in places {
        loop {
            // The analysis has read it a moment ago.
            let record = reader.next()?.ok_or(LogError::Missing { from: *place, oldest: *first })?;
            if record.lsn == *place {
                records.push(record.payload.into());
                break;
            }
        }
    }
    Ok(records)
}
