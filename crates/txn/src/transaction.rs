//! A transaction: its snapshot, what it has changed, and how that is committed or undone.

use crate::{
    TxnError,
    change_log::{Changes, undoing},
    plant::{Bug, planted},
    reads::{Edge, ReadSet},
    records::{COMMITTED, End, LogRecord, ROLLED_BACK, now},
    transactions::{Leftovers, Refused, Snapshot, Transactions},
    versions::{Before, Refusal, Writer as VersionWriter},
};
use std::{
    ops::Bound,
    panic::Location,
    sync::{Arc, Mutex, MutexGuard, atomic::AtomicU64},
};
use vellum_access::{
    Claim, Isolation, Seen, Tree, UndoChange, Unshared, ValueImage, View, Writer, free_large,
};
use vellum_base::{Lsn, PageId};
use vellum_pool::{ChangeLog, Pool};

/// An open transaction. One that is dropped neither committed nor rolled back keeps what it has changed from being changed
/// by others until the database is opened anew; its owner sees to that.
pub struct Transaction {
    transactions: Arc<Transactions>,
    changes: Arc<Changes>,
    snapshot: Snapshot,
    /// The place in the log of the snapshot, as views take it.
    settled: AtomicU64,
    writer: Arc<VersionWriter>,
    state: Mutex<State>,
    /// What it has read, if it is serializable.
    reads: Option<Mutex<ReadSet>>,
}

#[derive(Default)]
struct State {
    /// By what number the log knows it, and the place before its first record, once it has begun to change something.
    number: Option<(u64, Lsn)>,
    /// What is to be put back, in the order of the changes.
    undo: Vec<Undo>,
    /// The record that has been claimed, and is about to be changed.
    claimed: Option<Before>,
    touched: Vec<Before>,
}

/// A change that may have to be undone.
struct Undo {
    before: Before,
    lsn: Lsn,
}

/// Why a transaction cannot be committed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CommitError {
    /// It is serializable, and something that it has read was changed since.
    Invalidated {
        /// The root of the tree.
        tree: PageId,
        /// The key that was changed.
        key: Arc<[u8]>,
    },
    /// Its snapshot has been ended.
    Ended,
}

/// A place in a transaction to which it can be rolled back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Savepoint(usize);

impl Transaction {
    pub(crate) fn begin(
        transactions: &Arc<Transactions>,
        changes: &Arc<Changes>,
        is_serializable: bool,
        place: &'static Location<'static>,
    ) -> Self {
        let snapshot = transactions.begin(place, || changes.end());
        Self {
            transactions: transactions.clone(),
            changes: changes.clone(),
            settled: AtomicU64::new(snapshot.settled.0),
            writer: Arc::new(VersionWriter::new(snapshot.id)),
            snapshot,
            state: Mutex::default(),
            reads: is_serializable.then(Mutex::default),
        }
    }

    /// Its number among all since the database was opened, by which [`History`](crate::History) names it.
    pub fn id(&self) -> u64 {
        self.snapshot.id
    }

    /// Whether its snapshot has been ended, because it went beyond the limit: it can only be rolled back.
    #[inline]
    pub fn is_ended(&self) -> bool {
        self.transactions.is_ended(&self.snapshot)
    }

    /// Whether what it reads is to be noted: it is serializable.
    pub fn is_serializable(&self) -> bool {
        self.reads.is_some()
    }

    /// Notes that keys are looked up in a tree, if it is serializable. Returns whether these are its first reads of the tree.
    pub fn note_keys(&self, tree: PageId, keys: impl IntoIterator<Item: AsRef<[u8]>>) -> bool {
        let note = |reads: &mut ReadSet| {
            keys.into_iter().for_each(|key| reads.add_key(tree, key.as_ref()));
            reads.add_tree(tree)
        };
        self.note(note).unwrap_or_default()
    }

    /// Notes that all of a range was read, if it is serializable.
    pub fn note_range(&self, tree: PageId, lower: Edge, upper: Edge) {
        self.note(|reads| reads.add_range(tree, lower, upper));
    }

    /// Notes that some of a range will be read, if it is serializable. All of it counts as read until
    /// [`fulfil`](Self::fulfil) is told this number.
    pub fn request(&self, tree: PageId, lower: Edge, upper: Edge) -> Option<u64> {
        self.note(|reads| reads.request(tree, lower, upper))
    }

    /// What was read of a range that was requested has been noted.
    pub fn fulfil(&self, request: u64) {
        self.note(|reads| reads.fulfil(request));
    }

    fn note<T>(&self, note: impl FnOnce(&mut ReadSet) -> T) -> Option<T> {
        let reads = self.reads.as_ref()?;
        Some(note(&mut reads.lock().unwrap_or_else(|poisoned| poisoned.into_inner())))
    }

    /// How it reads.
    pub fn reading(&self) -> View<'_> {
        View { settled: &self.settled, isolation: self, writer: Writer::None }
    }

    /// How it changes something.
    pub fn writing(&self) -> View<'_> {
        let mut state = self.lock();
        let number = state.number.map_or_else(|| self.begin_writing(&mut state), |(number, _)| number);
        View { settled: &self.settled, isolation: self, writer: Writer::Transaction(number) }
    }

    #[cold]
    fn begin_writing(&self, state: &mut State) -> u64 {
        /// How many changes a transaction has mostly.
        const CHANGES: usize = 16;
        let mut place = Lsn(0);
        let number = self.transactions.begin_writing(self.snapshot.id, || {
            place = self.changes.end();
            place
        });
        state.number = Some((number, place));
        state.undo.reserve(CHANGES);
        state.touched.reserve(CHANGES);
        number
    }

    /// A place to roll back to.
    pub fn savepoint(&self) -> Savepoint {
        Savepoint(self.lock().undo.len())
    }

    /// Undoes what was done since the savepoint. Other transactions still cannot change the records.
    ///
    /// # Errors
    /// If a page cannot be read or changed. What has been undone is undone; it may be tried again.
    pub fn rollback_to(&self, pool: &Pool, savepoint: Savepoint) -> Result<(), TxnError> {
        loop {
            let mut state = self.lock();
            state.claimed = None;
            let Some((number, _)) = state.number else { return Ok(()) };
            if state.undo.len() <= savepoint.0 {
                return Ok(());
            }
            let Some(Undo { before, lsn }) = state.undo.pop() else { return Ok(()) };
            drop(state);
            let change = UndoChange::Restore { key: before.key(), before: before.value() };
            let undone = undo(pool, before.tree, change, (number, lsn));
            if undone.is_err() {
                self.lock().undo.push(Undo { before, lsn });
                return undone;
            }
        }
    }

    /// Undoes all it has changed, and ends it.
    ///
    /// # Errors
    /// As for [`rollback_to`](Self::rollback_to).
    pub fn rollback(&self, pool: &Pool) -> Result<(), TxnError> {
        self.rollback_to(pool, Savepoint(if planted(Bug::HalfRollback) { 1 } else { 0 }))?;
        let mut state = self.lock();
        let number = state.number.take();
        let touched = std::mem::take(&mut state.touched);
        drop(state);
        for record in touched {
            self.transactions.versions.retract(&record, self.snapshot.id);
        }
        if let Some((number, _)) = number {
            self.transactions.end_writing(self.snapshot.id);
            log_rollback(&self.changes, number);
        }
        let (oldest, free) = self.transactions.end(&self.snapshot);
        clean_up(pool, &self.transactions, oldest, free);
        Ok(())
    }

    /// Commits it: other transactions that begin see what it has changed. It is durable when its record is, which is the last
    /// that this thread has reserved.
    ///
    /// # Errors
    /// If it has changed something, and its snapshot has been ended, or it is serializable and something that it has read was
    /// changed since by a transaction that has been committed. It is to be rolled back then.
    pub fn commit(&self, pool: &Pool) -> Result<(), CommitError> {
        let mut state = self.lock();
        let touched = std::mem::take(&mut state.touched);
        let replaced =
            state.undo.iter().filter_map(|Undo { before, .. }| Some((before.tree, before.large()?)));
        let bytes = state.undo.iter().map(|undo| undo.before.stored_bytes()).sum();
        let left = Leftovers::new(touched, replaced.collect(), bytes);
        // What has changed nothing, has happened when its snapshot was taken.
        let reads = self.reads.as_ref().filter(|_| !state.undo.is_empty());
        let number = state.number;
        drop(state);
        let mut reads = reads.map(|reads| reads.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        if let Some(reads) = &mut reads {
            reads.finish();
        }
        if let Some((number, first)) = number {
            let mut record = [0; END_BYTES];
            let by = (&*self.writer, &self.snapshot);
            let committed = self.transactions.commit(by, (first, left), reads.as_deref(), |time| {
                record = end_record(COMMITTED, number, time, first);
                self.changes.reserve(record.len())
            });
            match committed {
                Ok(lsn) => self.changes.fill(lsn, &record),
                Err((refused, left)) => {
                    self.lock().touched = left.touched;
                    return Err(match refused {
                        Refused::Changed(record) => {
                            CommitError::Invalidated { tree: record.tree, key: record.key().into() }
                        }
                        Refused::Ended => CommitError::Ended,
                    });
                }
            }
        }
        *self.lock() = State::default();
        let (oldest, free) = self.transactions.end(&self.snapshot);
        clean_up(pool, &self.transactions, oldest, free);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Isolation for Transaction {
    fn seen(&self, tree: PageId, key: &[u8]) -> Seen {
        self.transactions.versions.seen(tree, key, self.snapshot.sight())
    }

    fn claim(
        &self,
        tree: PageId,
        key: &[u8],
        before: Option<ValueImage<'_>>,
        removes: bool,
    ) -> Result<(), Claim> {
        let writer = (&self.writer, self.snapshot.time);
        let snapshots = || self.transactions.snapshots();
        let claimed = self.transactions.versions.claim((tree, key), writer, before, removes, snapshots);
        let (before, is_first) =
            claimed.map_err(|refusal| Claim::Conflict { committed: refusal == Refusal::Later })?;
        let mut state = self.lock();
        if is_first {
            state.touched.push(before.clone());
        }
        if self.is_ended() {
            // What others have committed since its snapshot may have been forgotten before the claim.
            return Err(Claim::Ended);
        }
        state.claimed = Some(before);
        Ok(())
    }

    fn check(&self, tree: PageId, key: &[u8]) -> Result<(), Claim> {
        let checked = self.transactions.versions.check(tree, key, self.snapshot.sight());
        if self.is_ended() {
            return Err(Claim::Ended);
        }
        checked.map_err(|refusal| Claim::Conflict { committed: refusal == Refusal::Later })
    }

    fn is_ended(&self) -> bool {
        self.transactions.is_ended(&self.snapshot)
    }

    fn has_removed(&self) -> bool {
        self.transactions.versions.has_removed()
    }

    fn removed(&self, tree: PageId, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Vec<Box<[u8]>> {
        self.transactions.versions.removed(tree, lower, upper)
    }

    fn recorded(&self, lsn: Lsn) {
        let mut state = self.lock();
        if let Some(before) = state.claimed.take() {
            state.undo.push(Undo { before, lsn });
        }
    }
}

/// How operations see records that are no transaction: as the last commits left them.
pub(crate) struct Single {
    pub transactions: Arc<Transactions>,
}

impl Isolation for Single {
    fn seen(&self, tree: PageId, key: &[u8]) -> Seen {
        if planted(Bug::UncommittedRead) {
            return Seen::Leaf;
        }
        self.transactions.versions.seen(tree, key, self.transactions.now())
    }

    fn claim(&self, _: PageId, _: &[u8], _: Option<ValueImage<'_>>, _: bool) -> Result<(), Claim> {
        if self.transactions.none_open() { Ok(()) } else { Err(Claim::NeedsTransaction) }
    }

    fn check(&self, tree: PageId, key: &[u8]) -> Result<(), Claim> {
        let checked = self.transactions.versions.check(tree, key, self.transactions.now());
        checked.map_err(|_| Claim::NeedsTransaction)
    }

    fn has_removed(&self) -> bool {
        self.transactions.versions.has_removed()
    }

    fn removed(&self, tree: PageId, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Vec<Box<[u8]>> {
        self.transactions.versions.removed(tree, lower, upper)
    }

    fn recorded(&self, _: Lsn) {}
}

/// Puts a record back as it was before the change of a transaction that the log knows by its number, at `lsn`.
pub(crate) fn undo(
    pool: &Pool,
    tree: PageId,
    change: UndoChange<'_>,
    (transaction, of): (u64, Lsn),
) -> Result<(), TxnError> {
    // Nothing need be asked: nobody else can have changed it.
    static SETTLED: AtomicU64 = AtomicU64::new(u64::MAX);
    let view = View { settled: &SETTLED, isolation: &Unshared, writer: Writer::Undo { transaction, of } };
    Ok(undoing(|| Tree::open(pool, tree).with_view(view).undo(change))?)
}

/// Logs that a transaction has been undone.
pub(crate) fn log_rollback(changes: &Changes, number: u64) {
    let record = end_record(ROLLED_BACK, number, 0, Lsn(0));
    let lsn = changes.reserve(record.len());
    changes.fill(lsn, &record);
}

/// Forgets what no snapshot needs any more, and frees the large values among it.
fn clean_up(pool: &Pool, transactions: &Transactions, oldest: u64, free: Vec<(u64, Arc<Leftovers>)>) {
    for (time, left) in free {
        for record in left.records() {
            transactions.versions.prune(record, oldest);
        }
        let is_large = !left.large.is_empty();
        // What cannot be freed stays allocated until the next recovery; the transaction is committed.
        let freed = left.large.iter().map(|(tree, reference)| free_large(pool, *tree, *reference));
        if freed.fold(is_large, |all, freed| all & freed.is_ok()) {
            transactions.cleaned_up(time);
        }
    }
}

/// The length of the record of the end of a transaction.
const END_BYTES: usize = 1 + 4 * 8;

/// The record of the end of a transaction: its kind, its number, the number of the commit, the time of day in nanoseconds since
/// 1970, and the place before its first record, each of the four in 8 bytes.
fn end_record(kind: u8, number: u64, time: u64, first: Lsn) -> [u8; END_BYTES] {
    let mut record = [kind; END_BYTES];
    let (_, places) = record.as_rchunks_mut();
    for (place, field) in places.iter_mut().zip([number, time, now(), first.0]) {
        *place = field.to_le_bytes();
    }
    record
}

/// The transaction that a record ends, if it is such a record, and whether it was committed.
pub(crate) fn decode_end(record: &[u8]) -> Option<(u64, bool)> {
    match LogRecord::decode(record) {
        LogRecord::End(End { number, is_committed, .. }) => Some((number, is_committed)),
        _ => None,
    }
}
