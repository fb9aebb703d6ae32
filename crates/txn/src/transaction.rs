//! A transaction: its snapshot, its changes, and how they are committed or undone.

use crate::{
    TxnError,
    before::BeforeImage,
    commit_error::CommitError,
    exposure::Exposure,
    leftovers,
    lock_order::{OrderedGuard, OrderedMutex, rank},
    places::Places,
    plant::{Bug, planted},
    put_off::PutOff,
    reads::{Edge, ReadSet},
    records::{COMMITTED, END_BYTES, end_record},
    transactions::{Ended, Refused, Snapshot, Transactions},
    undo_buffer::Undo,
    versions::Refusal,
    write_set::{FEW_CHANGES, Savepoint, State, WriteSet},
};
use std::{ops::Bound, panic::Location, sync::Arc};
use vellum_access::{
    BlobReference, Claim, Direction, Intent, Isolation, Removed, Seen, Tree, UndoChange, Unshared,
    ValueImage, View, Writer, free_large,
};
use vellum_base::primitive::{AtomicBool, AtomicU64, Mutex, Ordering};
use vellum_base::{Extent, Lsn, PageId};
use vellum_pool::{ChangeLog, Pool, PoolError, undoing};

/// How many changes there are between two checks of how much memory all transactions take.
const CALLS: u64 = 32;

/// An open transaction. If it is dropped and neither committed nor rolled back, others cannot change the records that
/// it has changed until the database is opened again. Its owner makes sure that this does not happen.
pub struct Transaction {
    transactions: Arc<Transactions>,
    snapshot: Snapshot,
    /// The snapshot's place in the log, as views take it.
    settled: AtomicU64,
    writes: Arc<WriteSet>,
    /// The number by which the log knows it; zero before it changes something.
    number: AtomicU64,
    /// How many changes have been requested.
    calls: AtomicU64,
    /// Whether its undo must be moved to a file, or the log must keep a different amount of room for it.
    needs_care: AtomicBool,
    /// Whether the file has no room but what others' undo may need.
    has_no_room: AtomicBool,
    /// Merges that are carried out when it has ended.
    put_off: Mutex<PutOff>,
    /// What it has read, if it is serializable.
    reads: Option<OrderedMutex<ReadSet, { rank::READS }>>,
}

impl Transaction {
    pub(crate) fn begin(
        transactions: &Arc<Transactions>,
        is_serializable: bool,
        place: &'static Location<'static>,
    ) -> Self {
        let places = &transactions.places;
        let snapshot = transactions.begin(is_serializable, place, || places.hold(), || places.divide());
        Self {
            transactions: transactions.clone(),
            settled: AtomicU64::new(snapshot.settled.0),
            writes: Arc::new(WriteSet::new(snapshot.id)),
            snapshot,
            number: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            needs_care: AtomicBool::new(false),
            has_no_room: AtomicBool::new(false),
            put_off: Mutex::default(),
            reads: is_serializable.then(OrderedMutex::default),
        }
    }

    /// Its number among all transactions since the database was opened; [`History`](crate::History) uses it.
    pub fn id(&self) -> u64 {
        self.snapshot.id
    }

    /// Whether the log knows it by a number: it has begun to change something.
    pub fn has_number(&self) -> bool {
        // Relaxed: only the threads that have the transaction ask, and they change something one after the other.
        self.number.load(Ordering::Relaxed) != 0
    }

    /// Whether its snapshot has been ended because it went beyond the limit. The transaction can then only be rolled
    /// back.
    #[inline]
    pub fn is_ended(&self) -> bool {
        self.transactions.is_ended(&self.snapshot)
    }

    /// Whether its snapshot is old and covered: it is shown the leaves of trees as they were when it was covered, and
    /// trees that were made later as they are.
    #[inline]
    pub fn is_covered(&self) -> bool {
        self.transactions.versions.generations().covers(self.snapshot.id)
    }

    /// Whether its reads must be noted: it is serializable.
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

    /// Notes that an entire range was read, if it is serializable.
    pub fn note_range(&self, tree: PageId, lower: Edge, upper: Edge) {
        self.note(|reads| reads.add_range(tree, lower, upper));
    }

    /// Notes that part of a range will be read, if it is serializable. The entire range counts as read until
    /// [`fulfil`](Self::fulfil) is called with the number returned.
    pub fn request(&self, tree: PageId, lower: Edge, upper: Edge) -> Option<u64> {
        self.note(|reads| reads.request(tree, lower, upper))
    }

    /// Notes that what was read of a requested range has been noted.
    pub fn fulfil(&self, request: u64) {
        self.note(|reads| reads.fulfil(request));
    }

    fn note<T>(&self, note: impl FnOnce(&mut ReadSet) -> T) -> Option<T> {
        let reads = self.reads.as_ref()?;
        Some(note(&mut reads.lock()))
    }

    /// The view by which it reads.
    pub fn reading(&self) -> View<'_> {
        View { settled: &self.settled, isolation: self, writer: Writer::None, open: None }
    }

    /// The view by which it changes something. No latch may be held: what memory has no room for goes to a file, and the
    /// pool's file may grow. If that has no room but what undoing others may need, only changes are allowed that take
    /// none.
    ///
    /// # Errors
    /// If that file fails.
    #[inline(always)]
    pub fn writing(&self, pool: &Pool) -> Result<View<'_>, TxnError> {
        // Relaxed: only this thread uses what it says, which is looked at again before the next change.
        if self.transactions.undo_space.is_scarce() || self.has_no_room.load(Ordering::Relaxed) {
            self.look_for_room(pool);
        }
        let writer = Writer::Transaction(self.begin_change()?);
        Ok(View { settled: &self.settled, isolation: self, writer, open: None })
    }

    /// Looks for room beside what undoing others may need.
    #[cold]
    fn look_for_room(&self, pool: &Pool) {
        let own = self.lock().undo_room.pages;
        self.has_no_room.store(pool.admit_growth(own).is_err(), Ordering::Relaxed);
    }

    /// Says that one call of [`writing`](Self::writing) has made many changes, and that more follow: the next call looks
    /// at how much memory all transactions take.
    pub fn expect_more(&self) {
        // Relaxed: as in `begin_change`.
        self.calls.store(self.calls.load(Ordering::Relaxed).next_multiple_of(CALLS), Ordering::Relaxed);
    }

    /// Prepares a change, and returns the number of the transaction in the log.
    fn begin_change(&self) -> Result<u64, TxnError> {
        // Relaxed, all three: the lock of the changes protects what they describe, or they only say when to check.
        // Threads that share a transaction change something one after the other.
        let (number, calls) = (self.number.load(Ordering::Relaxed), self.calls.load(Ordering::Relaxed));
        self.calls.store(calls.wrapping_add(1), Ordering::Relaxed);
        let number = if number == 0 || self.needs_care.load(Ordering::Relaxed) {
            self.prepare_to_write()?
        } else {
            number
        };
        // One of several small transactions checks as well, and each of them once there is no room at all.
        if calls.is_multiple_of(CALLS)
            && (calls > 0 || self.id().is_multiple_of(8) || self.transactions.versions.is_room_exceeded())
        {
            self.transactions.make_room(|| self.transactions.places.divide())?;
        }
        Ok(number)
    }

    /// Begins to change something, if this is the first change, and takes care of the undo. Returns the number in the
    /// log.
    #[cold]
    fn prepare_to_write(&self) -> Result<u64, TxnError> {
        let mut state = self.lock();
        let number = state.number.map_or_else(|| self.begin_writing(&mut state), |(number, _)| number);
        self.number.store(number, Ordering::Relaxed);
        let spill = self.transactions.versions.spill();
        if state.bytes > spill.bytes_each() {
            if state.exposure != Exposure::Entered {
                drop(state);
                self.transactions.enter_all();
                state = self.lock();
            }
            state.spill(&spill.file)?;
        }
        if let Some((more, fewer)) = state.undo_room.adjust() {
            self.transactions.places.keep_for_undo(more, fewer);
        }
        self.needs_care.store(false, Ordering::Relaxed);
        Ok(number)
    }

    /// Makes [`writing`](Self::writing) take care of the undo, if needed.
    #[inline]
    fn ask_for_care(&self, state: &State) {
        let bytes_max = self.transactions.versions.spill().bytes_each();
        if state.bytes > bytes_max || state.undo_room.is_to_be_adjusted() {
            self.needs_care.store(true, Ordering::Relaxed);
        }
    }

    fn begin_writing(&self, state: &mut State) -> u64 {
        self.transactions.precedence.heed();
        let mut place = Lsn(0);
        let (number, exposure) = self.transactions.begin_writing(&self.writes, || {
            place = self.transactions.places.end();
            place
        });
        state.number = Some((number, place));
        state.exposure = exposure;
        state.undo = leftovers::undo_buffer(FEW_CHANGES);
        number
    }

    /// A place to roll back to.
    pub fn savepoint(&self) -> Savepoint {
        Savepoint(self.lock().changes())
    }

    /// Undoes what was done since the savepoint. Other transactions still cannot change the records.
    ///
    /// # Errors
    /// If a page cannot be read or changed. What has been undone is undone; it may be tried again.
    pub fn rollback_to(&self, pool: &Pool, savepoint: Savepoint) -> Result<(), TxnError> {
        self.undo_to(pool, savepoint, |transactions, state, before| {
            transactions.note_absent(&self.writes, state, before);
        })
    }

    /// Undoes what was done since the savepoint. `note_absent` is given the records that are absent then.
    fn undo_to(
        &self,
        pool: &Pool,
        savepoint: Savepoint,
        note_absent: impl Fn(&Transactions, &State, BeforeImage<'_>),
    ) -> Result<(), TxnError> {
        loop {
            let mut state = self.lock();
            let Some((number, _)) = state.number else { return Ok(()) };
            if state.changes() <= savepoint.0 {
                return Ok(());
            }
            if state.undo.is_empty() {
                state.bring_back(savepoint)?;
            }
            // Others find it until it has been undone.
            let Some(Undo { before, lsn, .. }) = state.undo.last() else { return Ok(()) };
            let before = before.copy();
            drop(state);
            let restored = UndoChange::Restore { key: before.key(), before: before.value() };
            undo(pool, before.tree, restored, (number, lsn))?;
            if before.value().is_none() && self.transactions.undo_space.is_scarce() {
                self.put_off_merge(before.tree, before.key());
            }
            let mut state = self.lock();
            if before.value().is_none() {
                note_absent(&self.transactions, &state, before.image());
            }
            let pages = state.note_undone();
            drop(state);
            self.transactions.undo_space.release(pages);
        }
    }

    /// The extents of the large values that it has replaced or removed, which are in no tree, and will be again if it is rolled back.
    pub fn replaced_extents(&self) -> Vec<Extent> {
        self.lock().replaced_large().map(BlobReference::extent).collect()
    }

    /// Undoes all changes of the transaction, and ends it.
    ///
    /// # Errors
    /// As for [`rollback_to`](Self::rollback_to).
    pub fn rollback(&self, pool: &Pool) -> Result<(), TxnError> {
        self.rollback_before(pool, || {})
    }

    /// As [`rollback`](Self::rollback), and calls `after` when everything has been undone, before those that wait for the
    /// transaction are called: a waker may run its task at once. `after` must not use the transaction.
    ///
    /// # Errors
    /// As for `rollback`; `after` has not been called then.
    pub fn rollback_before(&self, pool: &Pool, after: impl FnOnce()) -> Result<(), TxnError> {
        if !self.has_number() {
            after();
            self.end(pool);
            return Ok(());
        }
        let first = Savepoint(if planted(Bug::HalfRollback) { 1 } else { 0 });
        // Nobody asks for what a transaction that was rolled back has claimed.
        self.undo_to(pool, first, |_, _, _| ())?;
        let mut state = self.lock();
        let number = state.number.take();
        self.number.store(0, Ordering::Relaxed);
        let is_logged = std::mem::take(&mut state.is_logged);
        let undo_room = std::mem::take(&mut state.undo_room);
        drop(state);
        self.give_back(undo_room.held());
        // Before trees that it has made are freed.
        self.carry_out_merges(pool);
        self.transactions.roll_back(&self.writes);
        if let Some((number, _)) = number {
            self.transactions.end_writing(self.snapshot.id);
            // If the log has no record of it, none says that it has ended: on a full disk, room for that may be lacking.
            if let Places::Log(changes) = &self.transactions.places
                && is_logged
            {
                changes.log_rollback(number);
            }
        }
        after();
        self.end(pool);
        Ok(())
    }

    /// Commits the transaction: later transactions see its changes. With a log it is durable when its record is, the
    /// last that this thread has reserved.
    ///
    /// # Errors
    /// If it has changed something, and its snapshot has been ended; or if it is serializable, and a transaction that
    /// has since been committed has changed something that it has read. It must then be rolled back.
    pub fn commit(&self, pool: &Pool) -> Result<(), CommitError> {
        self.commit_around(pool, (|| {}, || {}))
    }

    /// As [`commit`](Self::commit), and calls `before` when nothing can be in the way any more and no thread sees the changes
    /// yet, and `after` as soon as they are visible. `before` must not lock anything; neither may use the transaction.
    ///
    /// # Errors
    /// As for `commit`; neither has been called then.
    pub fn commit_around(
        &self,
        pool: &Pool,
        (before, after): (impl FnOnce(), impl FnOnce()),
    ) -> Result<(), CommitError> {
        let writing = self.has_number().then(|| self.lock());
        let numbered = writing.and_then(|state| Some((state.number?, state)));
        // One that has changed nothing happened when its snapshot was taken.
        let Some(((number, first), mut state)) = numbered else {
            after();
            self.end(pool);
            return Ok(());
        };
        let (is_logged, kept) = (state.is_logged, state.undo_room.held());
        // Nor does it matter what was read by one that has taken all its changes back.
        let reads = self.reads.as_ref().filter(|_| state.changes() > 0);
        let left = state.leave();
        // A thread that is about to publish or search the write set waits, and finds it committed.
        let hidden = (state.exposure != Exposure::Entered).then_some(state);
        let mut reads = reads.map(OrderedMutex::lock);
        if let Some(reads) = &mut reads {
            reads.finish();
        }
        let mut record = [0; END_BYTES];
        let by = (&**self.writes.writer(), &self.snapshot);
        let committed = self.transactions.commit(by, (first, left), reads.as_deref(), |time| {
            // If the log has no record of it, it has changed nothing: the file may not even be marked as in use.
            let lsn = match &self.transactions.places {
                Places::Log(changes) if is_logged => {
                    record = end_record(COMMITTED, number, time, first);
                    changes.reserve(record.len())
                }
                _ => Lsn(0),
            };
            before();
            lsn
        });
        drop(reads);
        match committed {
            Ok((lsn, ended)) => {
                *hidden.unwrap_or_else(|| self.lock()) = State::default();
                after();
                if let Places::Log(changes) = &self.transactions.places
                    && lsn > Lsn(0)
                {
                    changes.fill(lsn, &record);
                }
                self.give_back(kept);
                self.clean_up(pool, ended);
                Ok(())
            }
            Err(refused) => {
                let (refused, left) = *refused;
                hidden.unwrap_or_else(|| self.lock()).take_back(left);
                Err(match refused {
                    Refused::Changed(record) => {
                        CommitError::Invalidated { tree: record.tree, key: record.key().into() }
                    }
                    Refused::Loaded(tree) => CommitError::Invalidated { tree, key: Arc::default() },
                    Refused::Ended => CommitError::Ended,
                    Refused::Failed(error) => CommitError::Failed(error),
                })
            }
        }
    }

    /// Gives back room for undo that is no longer needed: bytes of log, and pages.
    fn give_back(&self, (bytes, pages): (u64, u64)) {
        self.transactions.places.keep_for_undo(0, bytes);
        if pages > 0 {
            self.transactions.undo_space.release(pages);
        }
    }

    /// Merges what could not be merged while undo might have needed it. The tables are still kept from being dropped.
    fn carry_out_merges(&self, pool: &Pool) {
        let put_off = self.put_off.lock().map(|mut put_off| std::mem::take(&mut *put_off));
        put_off.unwrap_or_default().carry_out(pool);
    }

    fn end(&self, pool: &Pool) {
        self.clean_up(pool, self.transactions.end(&self.snapshot));
    }

    fn clean_up(&self, pool: &Pool, ended: Ended) {
        let transactions = &self.transactions;
        let work = || {
            // Wakers are others' code: the record of the commit is filled, and nothing is locked.
            transactions.waiting.end(self.snapshot.id);
            if ended.is_last {
                transactions.places.release();
            }
            clean_up(pool, transactions, ended);
            if self.has_number() {
                self.carry_out_merges(pool);
            }
        };
        match &transactions.places {
            // What this logs, or a waker, is not what the end of the transaction waits for.
            Places::Log(changes) => changes.keep_last_change(work),
            Places::Clock(_) => work(),
        }
    }

    fn lock(&self) -> OrderedGuard<'_, State> {
        self.writes.lock()
    }
}

impl Isolation for Transaction {
    fn seen(&self, tree: PageId, key: &[u8]) -> Result<Seen, PoolError> {
        self.transactions.versions.seen(tree, key, self.snapshot.sight())
    }

    fn claim(
        &self,
        tree: PageId,
        key: &[u8],
        leaf: Lsn,
        before: Option<ValueImage<'_>>,
        intent: Intent,
    ) -> Result<(), Claim> {
        // Relaxed: this thread has just stored it.
        if self.has_no_room.load(Ordering::Relaxed) && intent.growth(key, before) > 0 {
            return Err(PoolError::KeptForUndo.into());
        }
        let by = (&*self.writes, &self.snapshot);
        let claimed = self.transactions.claim(by, (tree, key, leaf), before, intent)?;
        // With an ended snapshot it is chance whether what makes it too old is still there.
        let refused = |refusal| if self.is_ended() { Claim::Ended } else { denied(refusal) };
        let state = claimed.map_err(refused)?;
        self.ask_for_care(&state);
        drop(state);
        if self.is_ended() {
            // What others have committed since its snapshot may have been forgotten before the claim.
            self.give_up(None);
            return Err(Claim::Ended);
        }
        Ok(())
    }

    fn check(&self, tree: PageId, key: &[u8], leaf: Lsn) -> Result<(), Claim> {
        let versions = &self.transactions.versions;
        let checked =
            versions.check(versions.target((tree, key), leaf, self.snapshot.time), self.snapshot.sight())?;
        if self.is_ended() {
            return Err(Claim::Ended);
        }
        checked.map_err(denied)
    }

    fn is_ended(&self) -> bool {
        self.transactions.is_ended(&self.snapshot)
    }

    fn has_removed(&self) -> bool {
        self.transactions.versions.has_removed(self.snapshot.sight())
    }

    fn removed(
        &self,
        tree: PageId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        portion: (Direction, usize),
    ) -> Result<Removed, PoolError> {
        self.transactions.versions.removed(self.snapshot.sight(), tree, bounds, portion)
    }

    fn recorded(&self, lsn: Lsn) {
        let end = self.transactions.places.end();
        let mut state = self.lock();
        let pages = state.note_change(lsn, end);
        if pages > 0 {
            self.transactions.undo_space.keep(pages);
        }
        self.ask_for_care(&state);
    }

    fn unchanged(&self) {
        self.transactions.reserve(&mut self.lock());
    }

    #[cold]
    fn put_off_merge(&self, tree: PageId, key: &[u8]) {
        if let Ok(mut put_off) = self.put_off.lock() {
            put_off.note(tree, key);
        }
    }

    #[cold]
    fn give_up(&self, value: Option<&mut [u8]>) {
        let mut state = self.lock();
        let Some((before, is_first)) = state.take_claim() else { return };
        if let (Some(value), Some(ValueImage { bytes, .. })) = (value, before.value())
            && let Some(place) = value.get_mut(..bytes.len())
        {
            place.copy_from_slice(bytes);
        }
        if is_first && state.exposure == Exposure::Entered {
            self.transactions.retract(&self.writes, &mut state, before);
        }
    }
}

fn denied(refusal: Refusal) -> Claim {
    Claim::Conflict { committed: refusal == Refusal::Later }
}

/// Puts a record back as it was before a change, at `lsn`, by the transaction that the log knows by this number.
pub(crate) fn undo(
    pool: &Pool,
    tree: PageId,
    change: UndoChange<'_>,
    (transaction, of): (u64, Lsn),
) -> Result<(), TxnError> {
    // No check is needed: no other transaction can have changed it.
    static SETTLED: AtomicU64 = AtomicU64::new(u64::MAX);
    let view = View {
        settled: &SETTLED,
        isolation: &Unshared,
        writer: Writer::Undo { transaction, of },
        open: None,
    };
    Ok(undoing(|| Tree::open(pool, tree).with_view(view).undo(change))?)
}

/// Forgets what no snapshot needs any more, and frees its large values.
fn clean_up(pool: &Pool, transactions: &Transactions, ended: Ended) {
    transactions.prune(&ended);
    let Ended { oldest, free, pruned, .. } = ended;
    for (ticket, left) in free {
        let is_large = !left.large().is_empty();
        // What cannot be freed stays allocated until the next recovery; the transaction is committed.
        let freed = left.large().iter().map(|large| free_large(pool, large.record.tree, large.reference));
        if freed.fold(is_large, |all, freed| all & freed.is_ok()) {
            transactions.cleaned_up(ticket);
        }
        left.go_home();
    }
    pruned.go_home();
    transactions.versions.prune_spilled(&oldest);
}
