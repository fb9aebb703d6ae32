//! The open transactions, what each of them may see, and when what they leave behind can go.
//!
//! # Time
//! Commits are numbered. A snapshot is the number of the last commit that it sees. A commit gets its number, its log
//! record and its visibility under one lock, so commits are in the same order in the log as they become visible.
//!
//! # When a reader need not look for versions
//! A snapshot knows a place in the log before which everything was done by transactions that it sees. A leaf with an
//! older LSN holds exactly what the snapshot sees, so the reader looks nowhere else. A transaction that begins to
//! change something is entered with a place that is not after its first record, before it reserves that record, let
//! alone latches a leaf. So a reader of a leaf that the transaction has changed finds the place as well. Readers
//! outside transactions compare with the least of these places, loaded after they have read a leaf and before they
//! validate it.
//!
//! # Which threads know of changes
//! While only one transaction is open, no reader can ask for an earlier version. So its changes are shown to no other
//! thread: its write set is *private*. A thread that takes a snapshot, or meets a leaf that the transaction may have
//! changed, publishes the write set first. To do so it takes the lock of the write set, which is held throughout the
//! commit: a thread that comes during the commit finds the transaction committed.
//!
//! While few transactions change something, others search their [undo buffers](crate::undo_buffers). Otherwise, and when
//! old snapshots hold back many commits, changes are entered in the table of [versions](crate::versions).
//!
//! # Covered snapshots
//! Once memory has no room for versions, all open snapshots are covered, if something was committed since the oldest of
//! them: see [`generations::covers`](crate::generations). What commits leave behind then goes when all other snapshots
//! see it. Only the large values that they have replaced stay, and the keys, if a covered transaction is serializable: see
//! [`leaving`].
//!
//! # Lock order
//! [`lock_order`](crate::lock_order) has the order, and debug builds check it. While the state is locked, nothing else is
//! locked but the slot of an undo buffer, and the log reserves the record of a commit. A thread that searches undo
//! buffers holds the lock of no write set that others search.

#[cfg(test)]
mod covered_tests;
mod exposing;
mod leaving;
mod searching;
#[cfg(test)]
mod together_tests;

// Over 600 lines: what is done under the lock of the state is read together.
use crate::before::Before;
use crate::exposure::Exposure;
use crate::generations::{Covered, Oldest, OpenSnapshots};
use crate::leftovers::{Left, Leftovers};
use crate::loads::Loads;
use crate::lock_order::{OrderedGuard, OrderedMutex, rank};
use crate::places::Places;
use crate::plant::{Bug, planted};
use crate::reads::ReadSet;
use crate::settings::SnapshotLimit;
use crate::undo_buffers::UndoBuffers;
use crate::versions::{Spill, Turn, Versions};
use crate::waiting::Waiting;
use crate::write_set::WriteSet;
use crate::writer::{Sight, Writer};
use searching::{InTable, Searched, Searching};
use smallvec::SmallVec;
use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    panic::Location,
    sync::Arc,
    time::Duration,
};
use vellum_access::Seen;
use vellum_base::primitive::{
    AtomicBool, AtomicU64, AtomicUsize, Instant, Ordering,
    thread::{self, ThreadId},
};
use vellum_base::{Apart, Lsn, PageId, Precedence};
use vellum_pool::{KeptPages, PoolError, UndoSpace};

/// Why a transaction cannot be committed.
#[derive(Debug)]
pub(crate) enum Refused {
    /// A record that it has read was changed: this one.
    Changed(Box<Before>),
    /// Something was loaded into this tree, of which it has read something.
    Loaded(PageId),
    /// Its snapshot has been ended.
    Ended,
    /// Others' changes cannot be read.
    Failed(PoolError),
}

fn refuse_if(found: Result<Option<Before>, PoolError>) -> Result<(), Refused> {
    match found {
        Ok(None) => Ok(()),
        Ok(Some(record)) => Err(Refused::Changed(Box::new(record))),
        Err(error) => Err(Refused::Failed(error)),
    }
}

/// The transactions of a database.
pub(crate) struct Transactions {
    pub versions: Versions,
    /// Gives changes their LSNs.
    pub places: Places,
    pub precedence: Precedence,
    pub waiting: Arc<Waiting>,
    /// The pages that are kept for undo.
    pub undo_space: Arc<UndoSpace>,
    state: OrderedMutex<State, { rank::STATE }>,
    /// One if transactions are open, else zero.
    open: AtomicUsize,
    /// Everything before this place in the log was done by transactions that have ended. `u64::MAX` if no transaction
    /// that changes something is open.
    settled: AtomicU64,
    /// The number of the last commit.
    time: AtomicU64,
    limit: SnapshotLimit,
    /// Snapshots with lower times have been ended.
    ended_before: Apart<AtomicU64>,
    /// Whether a write set is private.
    has_private: AtomicBool,
    /// The end of the log when a record was last reserved that was not changed.
    reserved: Apart<AtomicU64>,
}

struct State {
    next_id: u64,
    /// The number by which the log will know the next transaction that changes something.
    next_writer: u64,
    time: u64,
    /// How many transactions are open.
    open: usize,
    /// The open snapshots, in the order in which they were taken.
    snapshots: VecDeque<Begun>,
    /// Those that have been ended, as long as their transactions are open, in the same order.
    ended: VecDeque<Begun>,
    /// The open transactions that change something, each with a place before its first record, ordered by place.
    writers: VecDeque<(Lsn, u64)>,
    /// What ended transactions have left behind, in the order of their commits.
    leftovers: VecDeque<(u64, Lsn, Arc<Leftovers>)>,
    /// How many bytes of keys and old values all commits together have changed.
    changed_bytes: u64,
    /// The covered snapshots.
    covered: Covered,
    /// Snapshots of transactions up to this number are covered, or about to be.
    covering: u64,
    /// The versions of commits up to this one have been pruned.
    pruned: u64,
    /// The leftovers whose large values are being freed, each by a number with a place before the records of their
    /// commits; and the last of the numbers.
    freeing: BTreeMap<u64, Lsn>,
    last_freeing: u64,
    /// Large values that no snapshot sees although older ones are open, which are to be freed.
    unseen: Left,
    /// From when on undo buffers are searched.
    searching: Searching,
    /// The private write set.
    private: Option<Arc<WriteSet>>,
    searched: Searched,
    in_table: InTable,
    loads: Loads,
}

/// An open snapshot: its time, its transaction, and when and where it was taken.
#[derive(Clone, Copy)]
struct Begun {
    time: u64,
    id: u64,
    when: Instant,
    place: &'static Location<'static>,
    /// The thread that took it; another thread may have the transaction now.
    thread: ThreadId,
    is_serializable: bool,
    /// How many bytes had been changed before.
    changed_bytes: u64,
}

/// What is to be done after a snapshot has been closed.
pub(crate) struct Ended {
    pub oldest: Oldest,
    /// No transaction is open any more.
    pub is_last: bool,
    /// What transactions have left behind and no snapshot needs any more, each with the number by which
    /// [`cleaned_up`](Transactions::cleaned_up) knows it.
    pub free: Left,
    pub pruned: Pruned,
    /// Undo buffers that are to be forgotten, each by its commit and its slot, once their records are noted as changed.
    pub forgotten: SmallVec<[(u64, usize); 2]>,
    /// Whether so many undo buffers are searched that the oldest are to be entered in the table of versions.
    pub are_many_searched: bool,
}

/// Leftovers whose versions are no longer needed, each with its commit.
#[derive(Default)]
pub(crate) struct Pruned {
    pub all: Left,
    /// Whether some of them are still needed for their keys.
    have_stayed: bool,
}

/// A snapshot, and the transaction that reads by it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Snapshot {
    /// The number of the transaction.
    pub id: u64,
    /// The number of the last commit that it sees.
    pub time: u64,
    /// It sees everything before this place in the log.
    pub settled: Lsn,
}

impl Snapshot {
    pub fn sight(&self) -> Sight {
        Sight { time: self.time, own: self.id }
    }
}

/// The state of the history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct History {
    /// How many transactions are open, those included whose snapshots have been ended.
    pub open: usize,
    /// How many leaves are kept as they were for old snapshots.
    pub kept_leaves: usize,
    /// The transaction that holds back the most: one whose snapshot has been ended and that has changed something, or
    /// else the oldest snapshot.
    pub oldest: Option<OldestSnapshot>,
    /// How many records have earlier versions.
    pub records: usize,
    /// How many earlier versions there are.
    pub versions: usize,
    /// How many bytes of keys and values they have.
    pub version_bytes: u64,
    /// How many ended transactions have left something behind. Those with no snapshot between them may count as one.
    pub leftovers: usize,
    /// How many bytes of log must stay because they are needed to undo open transactions, or to free large values.
    pub log_bytes: u64,
}

/// The transaction that has been open for longest, and what is kept for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OldestSnapshot {
    /// Its number: see [`Transaction::id`](crate::Transaction::id).
    pub transaction: u64,
    /// How long it has been open.
    pub age: Duration,
    /// Where the program began it.
    pub begun_at: &'static Location<'static>,
    /// How many transactions have been committed since.
    pub commits: u64,
    /// How many bytes of keys and values these have changed, counting the old keys and values.
    pub bytes: u64,
}

impl Transactions {
    /// Begins with no transactions. The log has no transaction with a number from `first` on. `kept` holds the pages
    /// that are kept for old snapshots; `places` gives changes their LSNs.
    pub fn new(
        first: u64,
        limit: SnapshotLimit,
        spill: Spill,
        (kept, undo_space): (Arc<KeptPages>, Arc<UndoSpace>),
        places: Places,
    ) -> Self {
        let state = State {
            next_id: 1,
            next_writer: first,
            time: 1,
            open: 0,
            snapshots: VecDeque::new(),
            ended: VecDeque::new(),
            writers: VecDeque::new(),
            leftovers: VecDeque::new(),
            changed_bytes: 0,
            covered: Covered { id: 0, time: 0 },
            covering: 0,
            pruned: 0,
            freeing: BTreeMap::new(),
            last_freeing: 0,
            unseen: Left::new(),
            searching: Searching::default(),
            private: None,
            searched: Searched::default(),
            in_table: InTable::default(),
            loads: Loads::default(),
        };
        Self {
            versions: Versions::new(spill, kept),
            places,
            precedence: Precedence::default(),
            waiting: Arc::default(),
            undo_space,
            state: OrderedMutex::new(state),
            open: AtomicUsize::new(0),
            settled: AtomicU64::new(u64::MAX),
            time: AtomicU64::new(1),
            limit,
            ended_before: Apart(AtomicU64::new(0)),
            has_private: AtomicBool::new(false),
            reserved: Apart(AtomicU64::new(0)),
        }
    }

    /// Takes a snapshot for a new transaction. Calls `hold` if no transaction was open; `end` gives the end of the log.
    pub fn begin(
        &self,
        is_serializable: bool,
        place: &'static Location<'static>,
        hold: impl FnOnce(),
        end: impl FnOnce() -> Lsn,
    ) -> Snapshot {
        let (when, thread) = (Instant::now(), thread::current().id());
        // The snapshot is added under the same lock under which no write set is private.
        let mut state = if planted(Bug::PublishedTooEarly) {
            self.publish_private();
            self.lock()
        } else {
            self.lock_published()
        };
        if state.open == 0 {
            hold();
            // SeqCst: a change outside transactions reads this under the latch of its leaf. If it finds none open, this
            // snapshot reads the leaf after that change.
            self.open.store(1, Ordering::SeqCst);
        }
        state.open += 1;
        let id = state.next_id;
        state.next_id += 1;
        let time = state.time;
        let changed_bytes = state.changed_bytes;
        state.snapshots.push_back(Begun { time, id, when, place, thread, is_serializable, changed_bytes });
        let settled = state.settled().min(end());
        Snapshot { id, time, settled }
    }

    /// Where this thread began the open transaction that keeps others from changing a record, if this thread did.
    pub fn begun_here(&self, tree: PageId, key: &[u8]) -> Option<&'static Location<'static>> {
        self.publish_private();
        let keeper = self.versions.keeper(tree, key)?;
        self.begun_by_this_thread().into_iter().find(|(id, _)| *id == keeper).map(|(_, place)| place)
    }

    /// Whether an open snapshot sees a record of a tree that is no longer in its leaf. No other thread changes the tree.
    ///
    /// # Errors
    /// As for [`Versions::seen`].
    pub fn is_any_removed_seen(&self, tree: PageId) -> Result<bool, PoolError> {
        let state = self.lock_published();
        let sight = |begun: &Begun| Sight { time: begun.time, own: begun.id };
        let covered: Vec<_> = state.covered().map(sight).collect();
        // None of them has changed the tree, so those of one time see the same.
        let mut others: Vec<_> = state.others().map(sight).collect();
        others.dedup_by_key(|sight| sight.time);
        drop(state);
        for sight in covered.into_iter().chain(others).filter(|sight| self.versions.has_removed(*sight)) {
            let all = (Bound::Unbounded, Bound::Unbounded);
            for key in self.versions.removed(sight, tree, all, usize::MAX)?.keys {
                if let Seen::Value(_) | Seen::Large(_) = self.versions.seen(tree, &key, sight)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// See [`Loads::begin`].
    pub fn begin_load(&self, tree: PageId) {
        self.lock().loads.begin(tree);
    }

    /// See [`Loads::end`].
    pub fn end_load(&self, tree: PageId) {
        let mut state = self.lock();
        let State { loads, snapshots, ended, next_id, .. } = &mut *state;
        let serializable = snapshots.iter().chain(&*ended).filter(|begun| begun.is_serializable);
        loads.end(tree, *next_id, serializable.map(|begun| begun.id).min());
    }

    /// The open transactions that this thread began, and where it began them.
    pub fn begun_by_this_thread(&self) -> Vec<(u64, &'static Location<'static>)> {
        let thread = thread::current().id();
        let state = self.lock();
        let own = state.all_open().filter(|begun| begun.thread == thread);
        own.map(|begun| (begun.id, begun.place)).collect()
    }

    /// Whether a snapshot has been ended, so that answers from versions obtained before this call are void.
    #[inline]
    pub fn is_ended(&self, snapshot: &Snapshot) -> bool {
        // Acquire: a thread that ends snapshots raises the number before it forgets versions under their locks, and
        // versions are looked up under those locks before this is called.
        snapshot.time < self.ended_before.0.load(Ordering::Acquire)
            || self.versions.generations().has_lost(snapshot.id)
    }

    /// Whether no transaction and no snapshot is open: then a change may be made at once, under the latch of its leaf.
    pub fn none_open(&self) -> bool {
        self.open.load(Ordering::SeqCst) == 0
    }

    /// Whether the transaction with this number is open.
    pub fn is_open(&self, id: u64) -> bool {
        self.lock().all_open().any(|begun| begun.id == id)
    }

    /// Whether no open transaction has changed anything.
    pub fn has_no_writers(&self) -> bool {
        self.lock().writers.is_empty()
    }

    /// One if transactions are open, else zero.
    pub fn open(&self) -> &AtomicUsize {
        &self.open
    }

    /// The number of the last commit.
    pub fn last_commit(&self) -> u64 {
        self.time.load(Ordering::Acquire)
    }

    /// The times of the open snapshots, in ascending order, and the last commit that all of them see.
    pub fn open_snapshots(&self) -> (Vec<u64>, u64) {
        let state = self.lock();
        let mut times: Vec<u64> = state.snapshots.iter().map(|begun| begun.time).collect();
        times.dedup();
        (times, state.oldest().of_all)
    }

    /// Where readers outside transactions begin to look: see the module.
    pub fn settled(&self) -> &AtomicU64 {
        &self.settled
    }

    /// A transaction is about to make its first change. Its write set is locked. Returns its number in the log, and
    /// where others find its changes from now on.
    pub fn begin_writing(&self, writes: &Arc<WriteSet>, end: impl FnOnce() -> Lsn) -> (u64, Exposure) {
        /// After how many transactions it is checked again whether the table of versions is still needed.
        const TRANSACTIONS: u64 = 16;
        let mut state = self.lock();
        let number = state.next_writer;
        state.next_writer += 1;
        state.writers.push_back((end(), writes.id()));
        // All that was committed since it began would be left behind.
        let is_alone = state.snapshots.len() == 1
            // A transaction whose snapshot has been ended is open beside those in the list.
            && state.snapshots.front().is_some_and(|begun| begun.id == writes.id())
            && state.writers.len() == 1
            && state.leftovers.is_empty()
            // For a covered one too, but then those leftovers have been pruned, so they do not show. And it would be
            // shown the old leaves if its changes were not among the versions.
            && (writes.id() > state.covering || planted(Bug::PrivateThoughCovered));
        if is_alone {
            state.private = Some(writes.clone());
            // Relaxed: a thread that meets a leaf changed by it has latched the leaf, or read its version, after this.
            self.has_private.store(true, Ordering::Relaxed);
            self.publish(&state);
            return (number, Exposure::Private);
        }
        self.publish(&state);
        let is_searched = state.searches(number) && writes.id() > state.covering;
        let slot = if is_searched { self.versions.buffers().take(writes) } else { None };
        if slot.is_none() {
            state.in_table.add(writes.id());
            self.versions.note_in_table(state.in_table.seen_from());
        }
        drop(state);
        match slot {
            Some(slot) => {
                if writes.id().is_multiple_of(TRANSACTIONS) {
                    self.versions.rest();
                }
                (number, Exposure::Searched(slot))
            }
            None => {
                // What the transaction will enter is newer than what is in the buffers, which is therefore entered
                // first.
                self.enter_buffers();
                (number, Exposure::Entered)
            }
        }
    }

    /// Commits a transaction whose records begin after `first`, takes over what it leaves behind, and closes its
    /// snapshot. `reserve` reserves the last record.
    ///
    /// # Errors
    /// If its snapshot has been ended. If it has `reads`, and another transaction that was committed after the snapshot
    /// was taken has changed one of them. What it leaves behind comes back; nothing has happened then.
    pub fn commit(
        &self,
        (writer, snapshot): (&Writer, &Snapshot),
        (first, left): (Lsn, Leftovers),
        reads: Option<&ReadSet>,
        reserve: impl FnOnce(u64) -> Lsn,
    ) -> Result<(Lsn, Ended), Box<(Refused, Leftovers)>> {
        let tested = reads.map_or(Ok(0), |reads| self.test(snapshot.time, reads));
        let left = Arc::new(left);
        // No other thread has it.
        let take_back = |left| Arc::into_inner(left).unwrap_or_default();
        let mut state = self.lock();
        // Snapshots are ended while the state is locked; a test without that lock may have been incomplete.
        if self.is_ended(snapshot) {
            return Err(Box::new((Refused::Ended, take_back(left))));
        }
        let tested = match (tested, reads) {
            (Ok(since), Some(reads)) => {
                state.since(since).try_for_each(|(.., left)| refuse_if(left.find(reads))).and_then(|()| {
                    state.loads.find(snapshot.id, reads).map_or(Ok(()), |tree| Err(Refused::Loaded(tree)))
                })
            }
            (tested, _) => tested.map(drop),
        };
        if let Err(refused) = tested {
            return Err(Box::new((refused, take_back(left))));
        }
        let time = state.time + 1;
        let lsn = reserve(time);
        writer.commit(time);
        state.time = time;
        state.end_writing(writer.id, Some(time));
        state.end_private(&self.has_private, writer.id);
        // Under the same lock, so that at every moment one of the two keeps the log.
        state.changed_bytes += left.bytes;
        self.versions.buffers().commit((writer.id, time), &left);
        if let Some(slot) = left.slot {
            state.searched.push(time, slot, &left);
        }
        state.leftovers.push_back((time, first, left));
        state.join_at(time - 1);
        // Release: a thread that finds this time finds the undo buffers of all commits up to it.
        self.time.store(time, Ordering::Release);
        self.publish(&state);
        Ok((lsn, self.close(state, snapshot)))
    }

    /// Tests the reads of a transaction whose snapshot is of `time` against the commits since, except the last few, so
    /// that little is left to test while the state is locked. Returns the last commit that was tested.
    ///
    /// # Errors
    /// As for [`commit`](Self::commit).
    fn test(&self, time: u64, reads: &ReadSet) -> Result<u64, Refused> {
        /// How many commits may be left.
        const FEW: usize = 4;
        /// How many are tested at a time.
        const MANY: usize = 1024;
        let mut since = time;
        loop {
            let state = self.lock();
            // They stay as long as the snapshot is open.
            let newer: Vec<_> =
                state.since(since).take(MANY).map(|(time, _, left)| (*time, left.clone())).collect();
            drop(state);
            // If possible, nothing is read from a file while the state is locked, and not much is tested.
            if newer.len() <= FEW && newer.iter().all(|(_, left)| !left.is_long_to_test()) {
                return Ok(since);
            }
            for (time, left) in newer {
                refuse_if(left.find(reads))?;
                since = time;
            }
        }
    }

    /// Notes that a transaction has undone everything.
    pub fn end_writing(&self, id: u64) {
        let mut state = self.lock();
        state.end_writing(id, None);
        state.end_private(&self.has_private, id);
        self.publish(&state);
    }

    /// Closes the snapshot of a transaction that has not been committed. Those that wait for it are yet to be called.
    pub fn end(&self, snapshot: &Snapshot) -> Ended {
        self.close(self.lock(), snapshot)
    }

    /// Closes a snapshot, and ends those beyond the limit.
    fn close(&self, mut state: OrderedGuard<'_, State>, snapshot: &Snapshot) -> Ended {
        // If its snapshot was ended before, its transaction is still open: single operations must heed its changes.
        if let Ok(index) = state.snapshots.binary_search_by_key(&snapshot.id, |begun| begun.id) {
            state.snapshots.remove(index);
        } else {
            state.ended.retain(|begun| begun.id != snapshot.id);
        }
        state.open -= 1;
        let is_last = state.open == 0;
        if is_last {
            self.open.store(0, Ordering::SeqCst);
        }
        let (mut free, mut pruned) = (SmallVec::new(), Pruned::default());
        loop {
            let mut oldest = state.oldest();
            state.free_up_to(oldest.of_all, &mut free);
            match state.beyond(&self.limit) {
                Some(time) => {
                    // Release, and before versions are forgotten: see `is_ended`.
                    self.ended_before.0.store(time + 1, Ordering::Release);
                    let count = state.snapshots.partition_point(|begun| begun.time <= time);
                    let State { snapshots, ended, .. } = &mut *state;
                    ended.extend(snapshots.drain(..count));
                }
                None => {
                    state.join_at(snapshot.time);
                    state.prune_up_to(oldest.of_others, &mut pruned);
                    free.append(&mut state.unseen);
                    self.versions.settle(oldest.of_others);
                    let forgotten = state.forget_buffers(oldest.of_others, self.versions.buffers());
                    let are_many_searched = state.searched.are_many(self.versions.spill().bytes);
                    oldest.open = (!self.versions.generations().is_empty()).then(|| state.open_snapshots());
                    drop(state);
                    return Ended { oldest, is_last, free, pruned, forgotten, are_many_searched };
                }
            }
        }
    }

    /// Makes room in memory if versions take more than they may; `end` gives the end of the log. No latch is held.
    ///
    /// # Errors
    /// If the file fails, and versions take so much more than they may that nothing may be changed. Nothing is lost.
    pub fn make_room(&self, end: impl FnOnce() -> Lsn) -> Result<(), PoolError> {
        /// Covering snapshots pays once so many transactions have been committed since the oldest.
        const COMMITS: u64 = if cfg!(test) { 3 } else { 8 };
        let is_old = || {
            let (times, now) = self.snapshots_now();
            times.first().is_some_and(|oldest| now - oldest >= COMMITS)
        };
        let Some(turn) = self.versions.turn_to_move(is_old) else { return Ok(()) };
        turn.end(|turn| {
            // What could not be written before comes first: until that is done, memory is to have no more of it.
            turn.write_frozen()?;
            match (is_old(), turn.is_full()) {
                _ if !turn.is_little() => Ok(()),
                (true, _) => self.cover(turn, end),
                (false, true) => turn.spill(|| self.snapshots_now()),
                (false, false) => Ok(()),
            }
        })
    }

    /// Covers the open snapshots.
    ///
    /// # Errors
    /// If the file fails. Nothing is lost.
    fn cover(&self, turn: &Turn<'_>, end: impl FnOnce() -> Lsn) -> Result<(), PoolError> {
        let generations = self.versions.generations();
        let spill = self.versions.spill();
        let generation = generations.begin_cover(&spill.file, spill.bytes)?;
        let mut state = self.lock_entered();
        let covered = Covered { id: state.next_id - 1, time: state.time };
        state.covering = covered.id;
        let times: Vec<_> = state.others().map(|begun| begun.time).collect();
        drop(state);
        turn.freeze(&generation, (times, covered.time), || generations.arm(&generation, end));
        generations.count(&generation);
        let mut pruned = Pruned::default();
        let mut others = 0;
        if generations.complete(&generation, covered) {
            let mut state = self.lock();
            state.covered = covered;
            others = state.oldest().of_others;
            state.prune_up_to(others, &mut pruned);
            self.versions.settle(others);
        } else {
            generations.give_up(&generation);
            // Versions may be left in undo buffers again.
            let mut state = self.lock();
            state.covering = state.covered.id;
        }
        generation.rest();
        let written = turn.write_frozen();
        pruned.all.iter().for_each(|(_, left)| self.versions.prune_all(left, others));
        self.condense(&pruned);
        written
    }

    /// The times of the open snapshots that are not covered, in ascending order, and the number of the last commit.
    pub fn snapshots_now(&self) -> (Vec<u64>, u64) {
        self.lock().others_and_now()
    }

    /// Notes that the leftovers of this number are gone, and that the log says so.
    pub fn cleaned_up(&self, number: u64) {
        self.lock().freeing.remove(&number);
    }

    /// The times of the open snapshots that are not covered, in ascending order.
    pub fn snapshots(&self) -> Vec<u64> {
        self.snapshots_now().0
    }

    /// Returns the end of the log, as `end` gives it, and the place from which the log is needed, as of the moment when
    /// it ends there: to undo what is not committed, and to free what is no longer needed.
    ///
    /// A transaction that ends after that moment may be open again after a crash, because the record of its end need
    /// not be durable. One that makes its first change after it has all its records after that place.
    pub fn needed_at(&self, end: impl FnOnce() -> Lsn) -> (Lsn, Lsn) {
        let state = self.lock();
        let end = end();
        let left =
            state.leftovers.iter().filter(|(.., left)| !left.large().is_empty()).map(|(_, first, _)| *first);
        let freeing = state.freeing.values().copied();
        let writers = state.writers.iter().map(|(first, _)| *first);
        let needed = writers.chain(left).chain(freeing).min();
        (end, needed.unwrap_or(end))
    }

    /// Where the transaction was begun that needs the log from the earliest place on, if it is still open.
    pub fn keeps_log(&self) -> Option<&'static Location<'static>> {
        let state = self.lock();
        let (_, id) = *state.writers.front()?;
        state.all_open().find(|begun| begun.id == id).map(|begun| begun.place)
    }

    /// Whether a transaction has changed something that is neither committed nor undone.
    pub fn has_writers(&self) -> bool {
        !self.lock().writers.is_empty()
    }

    /// The state of the history, and of the log, which ends at `end`.
    pub fn history(&self, end: Lsn) -> History {
        self.enter_all();
        self.versions.sweep_all();
        let (versions, version_bytes) = self.versions.measure();
        let records = self.versions.records();
        let log_bytes = end.0.saturating_sub(self.needed_at(|| end).1.0);
        // Last: under it no versions are looked at.
        let state = self.lock();
        // One that has been ended holds back the log of its changes, if it has made any.
        let is_writer = |begun: &&Begun| state.writers.iter().any(|(_, id)| *id == begun.id);
        let oldest = state.ended.iter().find(is_writer).or(state.snapshots.front());
        let oldest = oldest.map(|begun| OldestSnapshot {
            transaction: begun.id,
            age: begun.when.elapsed(),
            begun_at: begun.place,
            commits: state.time - begun.time,
            bytes: state.changed_bytes - begun.changed_bytes,
        });
        History {
            kept_leaves: self.versions.generations().images(),
            open: state.open,
            oldest,
            records,
            versions,
            version_bytes,
            leftovers: state.leftovers.len(),
            log_bytes,
        }
    }

    /// Publishes the place up to which everything has settled.
    fn publish(&self, state: &State) {
        // Release: a reader that finds a leaf as a transaction left it, which latched the leaf after this, finds this
        // too. A reader that finds that a transaction has ended finds it committed.
        self.settled.store(state.settled().0, Ordering::Release);
        self.versions.note_in_table(state.in_table.seen_from());
    }

    fn lock(&self) -> OrderedGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn settled(&self) -> Lsn {
        self.writers.front().map_or(Lsn(u64::MAX), |(first, _)| *first)
    }

    /// Whether the undo buffer of a transaction of this number is searched: few change something, and have for a while if
    /// several threads would wait for the one that enters what is in the buffers.
    fn searches(&mut self, number: u64) -> bool {
        const SEVERAL: usize = if cfg!(test) { 2 } else { 5 };
        let is_few = self.is_few();
        if !is_few && self.snapshots.len() >= SEVERAL {
            self.searching.pause(number);
        }
        is_few && number >= self.searching.from
    }

    /// Whether undo buffers can be searched: so few transactions change something, and no snapshots are about to be covered:
    /// at that moment all versions are in the table.
    fn is_few(&self) -> bool {
        const WRITERS_MAX: usize = if cfg!(test) { 4 } else { 32 };
        self.writers.len() <= WRITERS_MAX && self.covering == self.covered.id
    }

    /// Gives up the slots of commits up to this one; their undo buffers are searched no more. If there are covered
    /// snapshots, returns them instead.
    fn forget_buffers(&mut self, oldest: u64, buffers: &UndoBuffers) -> SmallVec<[(u64, usize); 2]> {
        let oldest = if planted(Bug::BufferForgottenEarly) { u64::MAX } else { oldest };
        let are_noted = self.covered_count() > 0;
        let mut to_be_noted = SmallVec::new();
        while let Some((time, slot)) = self.searched.pop(oldest) {
            if are_noted {
                to_be_noted.push((time, slot));
            } else {
                buffers.forget(slot, time);
            }
        }
        to_be_noted
    }

    /// The time of the oldest snapshots, if they are to be ended. Either all snapshots of one time are ended or none,
    /// for each holds back what the others do.
    fn beyond(&self, limit: &SnapshotLimit) -> Option<u64> {
        if limit.age.is_none() && limit.bytes.is_none() {
            return None;
        }
        let time = self.snapshots.front()?.time;
        let youngest = self.snapshots.iter().take_while(|begun| begun.time == time).last()?;
        let is_old = limit.age.is_some_and(|age| youngest.when.elapsed() > age);
        let changed = self.changed_bytes - youngest.changed_bytes;
        let is_large = limit.bytes.is_some_and(|bytes| changed > bytes);
        (self.time > time && (is_old || is_large)).then_some(time)
    }

    /// Notes that the write set of this transaction is no longer private.
    fn end_private(&mut self, has_private: &AtomicBool, id: u64) {
        if self.private.as_ref().is_some_and(|writes| writes.id() == id) {
            self.private = None;
            // Release: pairs with `publish_private`. A thread that finds this finds the slot; one that finds it late
            // publishes nothing.
            has_private.store(false, Ordering::Release);
        }
    }

    /// Notes that a transaction has ended, whose changes have been undone or were committed at this time.
    fn end_writing(&mut self, id: u64, committed: Option<u64>) {
        self.in_table.end(id, committed);
        if let Some(index) = self.writers.iter().position(|(_, writer)| *writer == id) {
            self.writers.remove(index);
        }
    }

    /// The times up to which all open snapshots see everything.
    fn oldest(&self) -> Oldest {
        let first = self.snapshots.front();
        Oldest {
            of_all: first.map_or(self.time, |begun| begun.time),
            of_others: self.others().next().map_or(self.time, |begun| begun.time),
            open: None,
        }
    }

    /// The open snapshots.
    fn open_snapshots(&self) -> OpenSnapshots {
        let all = self.snapshots.iter().map(|begun| (begun.id, begun.time)).collect();
        OpenSnapshots { all, next: (self.next_id, self.time) }
    }

    /// The open snapshots that are covered, in the order in which they were taken.
    fn covered(&self) -> impl Iterator<Item = &Begun> {
        self.snapshots.range(..self.covered_count())
    }

    /// The open snapshots that are not covered.
    fn others(&self) -> impl Iterator<Item = &Begun> {
        self.snapshots.range(self.covered_count()..)
    }

    /// The times of the open snapshots that are not covered, in ascending order, and the number of the last commit.
    fn others_and_now(&self) -> (Vec<u64>, u64) {
        let mut times: Vec<u64> = self.others().map(|begun| begun.time).collect();
        times.dedup();
        (times, self.time)
    }

    /// The open transactions, those first whose snapshots have been ended.
    fn all_open(&self) -> impl Iterator<Item = &Begun> {
        self.ended.iter().chain(&self.snapshots)
    }

    fn covered_count(&self) -> usize {
        self.snapshots.partition_point(|begun| begun.id <= self.covered.id)
    }
}
