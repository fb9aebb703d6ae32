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
//! # Where to look
//! The state, and how snapshots are taken and looked at, is here. [`exposing`] has how a transaction claims records, and
//! shows what it has changed; [`searching`] where that is looked for. [`ending`] has commits, and what closing a snapshot
//! makes needless; [`leaving`] when that goes. [`making_room`] moves versions out of memory. [`history`] tells users what
//! is kept.
//!
//! # Lock order
//! [`lock_order`](crate::lock_order) has the order, and debug builds check it. While the state is locked, nothing else is
//! locked but the slot of an undo buffer, and the log reserves the record of a commit. A thread that searches undo
//! buffers holds the lock of no write set that others search.

#[cfg(test)]
mod covered_tests;
#[cfg(all(test, not(shuttle)))]
mod earlier_tests;
mod ending;
mod exposing;
mod history;
mod leaving;
mod making_room;
mod searching;
#[cfg(test)]
mod together_tests;

pub(crate) use ending::{Ended, Refused};
pub use history::{History, OldestSnapshot};

use crate::exposure::Exposure;
use crate::generations::{Covered, Oldest, OpenSnapshots};
use crate::leftovers::{Left, Leftovers};
use crate::loads::Loads;
use crate::lock_order::{OrderedGuard, OrderedMutex, rank};
use crate::places::Places;
use crate::plant::{Bug, planted};
use crate::settings::SnapshotLimit;
use crate::versions::{Spill, Versions};
use crate::waiting::Waiting;
use crate::write_set::WriteSet;
use crate::writer::Sight;
use searching::{InTable, Searched, Searching};
use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    panic::Location,
    sync::Arc,
};
use vellum_access::{Direction, Seen};
use vellum_base::primitive::{
    AtomicBool, AtomicU64, AtomicUsize, Instant, Ordering,
    thread::{self, ThreadId},
};
use vellum_base::{Apart, Lsn, PageId, Precedence};
use vellum_pool::{KeptPages, PoolError, UndoSpace};

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

    /// Whether something else than what the leaves of an empty tree hold is kept for an open snapshot: a record that it
    /// sees, or that one was stored that it does not see. No other thread changes the tree.
    ///
    /// # Errors
    /// As for [`Versions::seen`].
    pub fn is_any_kept(&self, tree: PageId) -> Result<bool, PoolError> {
        let state = self.lock_published();
        let sight = |begun: &Begun| Sight { time: begun.time, own: begun.id };
        let covered: Vec<_> = state.covered().map(sight).collect();
        // None of them has changed the tree, so those of one time see the same.
        let mut others: Vec<_> = state.others().map(sight).collect();
        others.dedup_by_key(|sight| sight.time);
        drop(state);
        if covered.iter().any(|sight| self.versions.generations().has_images(sight.own, tree)) {
            return Ok(true);
        }
        for sight in covered.into_iter().chain(others).filter(|sight| self.versions.has_removed(*sight)) {
            let all = (Bound::Unbounded, Bound::Unbounded);
            for key in self.versions.removed(sight, tree, all, (Direction::Forward, usize::MAX))?.keys {
                if self.versions.seen(tree, &key, sight)? != Seen::Leaf {
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

    /// The number of the next transaction.
    pub fn next_id(&self) -> u64 {
        self.lock().next_id
    }

    /// Whether no transaction is open, and nothing is left of those that have ended that is still to be freed.
    pub fn are_at_rest(&self) -> bool {
        let state = self.lock();
        let is_left = state.leftovers.iter().any(|(.., left)| !left.large().is_empty());
        state.all_open().next().is_none() && !is_left && state.freeing.is_empty() && state.unseen.is_empty()
    }

    /// See [`Earlier::are_over`](crate::Earlier::are_over).
    pub fn are_over(&self, next: u64, (commit, freeing): (&mut Option<u64>, &mut Option<u64>)) -> bool {
        let state = self.lock();
        if commit.is_none() && state.all_open().all(|begun| begun.id >= next) {
            *commit = Some(state.time);
        }
        let left = state.leftovers.front().map(|(time, _, left)| left.earliest(*time));
        let is_left = |commit: u64| left.is_some_and(|earliest| earliest <= commit);
        if freeing.is_none() && commit.is_some_and(|commit| !is_left(commit)) {
            *freeing = Some(state.last_freeing);
        }
        // Those that no snapshot sees have a number, too.
        freeing.is_some_and(|last| state.freeing.keys().next().is_none_or(|first| *first > last))
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
        // Very many may be open. Mostly one of those ends that began first, or one of the last.
        let count = self.writers.len();
        let is_it = |index: &usize| self.writers.get(*index).is_some_and(|(_, writer)| *writer == id);
        let index = (0..count.div_ceil(2)).flat_map(|index| [index, count - 1 - index]).find(is_it);
        if let Some(index) = index {
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
