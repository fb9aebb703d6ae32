//! Which transactions there are, what each may see, and when what they leave behind can go.
//!
//! # Time
//! Commits are numbered. A snapshot is the number of the last commit that it sees. The number, the record of the commit and its
//! visibility are given under one lock, so the order of commits in the log is that of their visibility.
//!
//! # What needs no look
//! A snapshot knows a place of the log before which everything was done by transactions that it sees. A leaf with an older LSN
//! holds what it sees, and nothing else is looked at. A transaction that begins to change something is entered with a place
//! that is not after its first record, before it reserves that, let alone latches a leaf. So who reads a leaf that it has
//! changed finds the place as well. Readers that are no transaction compare with the least of these places at the
//! moment when they have read a leaf and not yet validated it.
//!
//! # Who knows of changes
//! Nobody can ask for an earlier version as long as one transaction is open only. So what it changes is told to nobody: its write set is
//! *private*. Everybody else publishes it first who takes a snapshot, or meets a leaf that may have been changed by it. That takes the lock of the
//! write set, which is kept throughout its commit: who comes then finds it committed.
//!
//! As long as few are open, others search their [undo buffers](crate::undo_buffers). Otherwise what they change is entered in the table of
//! [versions](crate::versions).
//!
//! # Covered snapshots
//! Once versions have no room in memory, all snapshots that are there are covered, if something was committed since the oldest of them: see
//! [`generations::covers`](crate::generations). What commits leave behind then goes when all others see it, but for the large values that they have
//! replaced, and the keys, if a covered transaction is serializable.
//!
//! # Lock order
//! What keeps versions from being taken back, and the turn to move them; a write set of the thread's own, unless others search it; the turn to enter versions;
//! a write set that is searched; the state; the slot of an undo buffer; a shard of the table. Nothing else is locked while the state is,
//! but the log's reservation of a commit record. Who searches undo buffers has locked no write set that others search.

mod exposing;

// Over 600 lines: what is done under the lock of the state is read together.
use crate::before::Before;
use crate::exposure::Exposure;
use crate::generations::{Covered, Oldest};
use crate::leftovers::Leftovers;
use crate::lock_order::{OrderedGuard, OrderedMutex, rank};
use crate::places::Places;
use crate::plant::{Bug, planted};
use crate::precedence::Precedence;
use crate::reads::ReadSet;
use crate::settings::SnapshotLimit;
use crate::undo_buffers::UndoBuffers;
use crate::versions::{Spill, Versions};
use crate::write_set::WriteSet;
use crate::writer::{Sight, Writer};
use smallvec::SmallVec;
use std::{
    collections::{BTreeMap, VecDeque},
    panic::Location,
    sync::Arc,
    time::Duration,
};
use vellum_base::primitive::{
    AtomicBool, AtomicU64, AtomicUsize, Instant, Ordering,
    thread::{self, ThreadId},
};
use vellum_base::{Apart, Lsn, PageId};
use vellum_pool::{KeptPages, PoolError};

/// Why a transaction cannot be committed.
#[derive(Debug)]
pub(crate) enum Refused {
    /// This record, which it has read, was changed.
    Changed(Box<Before>),
    /// Its snapshot has been ended.
    Ended,
    /// What others have changed cannot be read.
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
    /// What gives changes their LSNs.
    pub places: Places,
    pub precedence: Precedence,
    state: OrderedMutex<State, { rank::STATE }>,
    /// One if transactions are open, and else zero.
    open: AtomicUsize,
    /// Everything before this place of the log was done by transactions that have ended; the highest number if none that
    /// changes something is open.
    settled: AtomicU64,
    /// The number of the last commit.
    time: AtomicU64,
    limit: SnapshotLimit,
    /// Snapshots of lesser times have been ended.
    ended_before: Apart<AtomicU64>,
    /// Whether there is a private write set.
    has_private: AtomicBool,
}

/// The number of no transaction, and of a reader that is none.
const NOBODY: u64 = u64::MAX;

struct State {
    next_id: u64,
    /// The number by which the log knows the next transaction that changes something.
    next_writer: u64,
    time: u64,
    /// How many transactions are open.
    open: usize,
    /// The open snapshots, in the order in which they were taken.
    snapshots: VecDeque<Begun>,
    /// The open transactions that change something, each with a place before its first record, in the order of those.
    writers: VecDeque<(Lsn, u64)>,
    /// What ended transactions have left behind, in the order of their commits.
    leftovers: VecDeque<(u64, Lsn, Arc<Leftovers>)>,
    /// How many bytes of keys and old values all commits have changed.
    changed_bytes: u64,
    /// The covered snapshots.
    covered: Covered,
    /// Those of transactions up to this number are covered, or about to be.
    covering: u64,
    /// What commits up to this one have left behind is not among the versions any more.
    pruned: u64,
    /// The commits whose large values are being freed, each with a place before its records.
    freeing: BTreeMap<u64, Lsn>,
    /// The write set that is private.
    private: Option<Arc<WriteSet>>,
    /// The commits whose undo buffers have a slot still, or had, in their order.
    in_buffers: VecDeque<(u64, usize)>,
}

/// An open snapshot: its time, whose it is, when and where it was taken.
#[derive(Clone, Copy)]
struct Begun {
    time: u64,
    id: u64,
    when: Instant,
    place: &'static Location<'static>,
    /// By which thread; another one may have the transaction now.
    thread: ThreadId,
    is_serializable: bool,
    /// How many bytes were changed before.
    changed_bytes: u64,
}

/// What there is to do when a snapshot has been closed.
pub(crate) struct Ended {
    pub oldest: Oldest,
    /// No transaction is open any more.
    pub is_last: bool,
    /// What transactions have left behind that no snapshot needs any more, each with its commit.
    pub free: SmallVec<[(u64, Arc<Leftovers>); 2]>,
    /// What is not needed among the versions any more.
    pub pruned: SmallVec<[Arc<Leftovers>; 2]>,
}

/// A snapshot, and a transaction that reads by it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Snapshot {
    /// Of the transaction.
    pub id: u64,
    /// The number of the last commit that it sees.
    pub time: u64,
    /// Everything before this place of the log it sees.
    pub settled: Lsn,
}

impl Snapshot {
    pub fn sight(&self) -> Sight {
        Sight { time: self.time, own: self.id }
    }
}

/// How the history stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct History {
    /// How many transactions are open.
    pub open: usize,
    /// How many leaves are kept as they were for snapshots that are old.
    pub kept_leaves: usize,
    /// The one that holds back the most.
    pub oldest: Option<OldestSnapshot>,
    /// How many records have earlier versions.
    pub records: usize,
    /// How many such versions there are.
    pub versions: usize,
    /// How many bytes their values have.
    pub version_bytes: u64,
    /// How many ended transactions have left something behind; some together, between which there is no snapshot.
    pub leftovers: usize,
    /// How much of the log cannot go, in bytes, because open transactions would be undone by it, or large values freed.
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
    /// How many transactions were committed since.
    pub commits: u64,
    /// How many bytes of keys and values these have changed, by what they were before.
    pub bytes: u64,
}

impl Transactions {
    /// No transaction has begun; numbers from `first` on are not in the log.
    /// `kept` are the pages that are kept for old snapshots, and `places` gives changes their LSNs.
    pub fn new(first: u64, limit: SnapshotLimit, spill: Spill, kept: Arc<KeptPages>, places: Places) -> Self {
        let state = State {
            next_id: 1,
            next_writer: first,
            time: 1,
            open: 0,
            snapshots: VecDeque::new(),
            writers: VecDeque::new(),
            leftovers: VecDeque::new(),
            changed_bytes: 0,
            covered: Covered { id: 0, time: 0 },
            covering: 0,
            pruned: 0,
            freeing: BTreeMap::new(),
            private: None,
            in_buffers: VecDeque::new(),
        };
        Self {
            versions: Versions::new(spill, kept),
            places,
            precedence: Precedence::default(),
            state: OrderedMutex::new(state),
            open: AtomicUsize::new(0),
            settled: AtomicU64::new(u64::MAX),
            time: AtomicU64::new(1),
            limit,
            ended_before: Apart(AtomicU64::new(0)),
            has_private: AtomicBool::new(false),
        }
    }

    /// Takes a snapshot, for a transaction of its own number. `hold` is called if no transaction was open, and `end` gives the end of the log.
    pub fn begin(
        &self,
        is_serializable: bool,
        place: &'static Location<'static>,
        hold: impl FnOnce(),
        end: impl FnOnce() -> Lsn,
    ) -> Snapshot {
        let (when, thread) = (Instant::now(), thread::current().id());
        // The snapshot is there under the lock under which no write set is private.
        let mut state = if planted(Bug::PublishedTooEarly) {
            self.publish_private();
            self.lock()
        } else {
            self.lock_published()
        };
        if state.open == 0 {
            hold();
            // SeqCst: a change that is no transaction looks at this under the latch of its leaf. If it sees none open, this
            // snapshot reads the leaf after it.
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

    /// Where this thread has begun the open transaction that keeps others from changing a record; none if another one has.
    pub fn begun_here(&self, tree: PageId, key: &[u8]) -> Option<&'static Location<'static>> {
        self.publish_private();
        let keeper = self.versions.keeper(tree, key)?;
        let state = self.lock();
        let begun = state.snapshots.iter().find(|begun| begun.id == keeper)?;
        (begun.thread == thread::current().id()).then_some(begun.place)
    }

    /// Whether a snapshot has been ended, so that nothing counts that versions told before this was asked.
    #[inline]
    pub fn is_ended(&self, snapshot: &Snapshot) -> bool {
        // Acquire: a thread that ends snapshots raises the number before it forgets versions under their locks, and versions are
        // looked up under these before this is asked.
        snapshot.time < self.ended_before.0.load(Ordering::Acquire)
            || self.versions.generations().has_lost(snapshot.id)
    }

    /// Whether no transaction and no snapshot is open: a change may be made at once, under the latch of its leaf.
    pub fn none_open(&self) -> bool {
        self.open.load(Ordering::SeqCst) == 0
    }

    /// Whether no transaction that is open has changed anything.
    pub fn has_no_writers(&self) -> bool {
        self.lock().writers.is_empty()
    }

    /// One if transactions are open, and else zero.
    pub fn open(&self) -> &AtomicUsize {
        &self.open
    }

    /// What is seen outside of transactions: all commits so far.
    pub fn now(&self) -> Sight {
        Sight { time: self.time.load(Ordering::Acquire), own: NOBODY }
    }

    /// All open snapshots see the commits up to this one.
    pub fn oldest(&self) -> u64 {
        self.lock().oldest().of_all
    }

    /// Where readers that are no transaction begin to look: see the module.
    pub fn settled(&self) -> &AtomicU64 {
        &self.settled
    }

    /// A transaction is about to change something for the first time. Its write set is locked. Gives its number in the log, and who
    /// knows of its changes from now on.
    pub fn begin_writing(&self, writes: &Arc<WriteSet>, end: impl FnOnce() -> Lsn) -> (u64, Exposure) {
        /// How often it is asked whether the table of versions is needed still.
        const TRANSACTIONS: u64 = 16;
        let mut state = self.lock();
        let number = state.next_writer;
        state.next_writer += 1;
        state.writers.push_back((end(), writes.id()));
        // All that was committed since it began would be left behind.
        let is_alone = state.snapshots.len() == 1
            // One whose snapshot has been ended is open beside those that are there.
            && state.snapshots.front().is_some_and(|begun| begun.id == writes.id())
            && state.writers.len() == 1
            && state.leftovers.is_empty()
            // Of a covered one, too, but that has been pruned. And it is shown what leaves were, if its changes are not among the versions.
            && (writes.id() > state.covering || planted(Bug::PrivateThoughCovered));
        if is_alone {
            state.private = Some(writes.clone());
            // Relaxed: who meets a leaf that it has changed has latched it, or seen its version, after this.
            self.has_private.store(true, Ordering::Relaxed);
            self.publish(&state);
            return (number, Exposure::Private);
        }
        self.publish(&state);
        let is_searched = state.is_few() && self.versions.generations().is_empty();
        let slot = if is_searched { self.versions.buffers().take(writes) } else { None };
        drop(state);
        match slot {
            Some(slot) => {
                if writes.id().is_multiple_of(TRANSACTIONS) {
                    self.versions.rest();
                }
                (number, Exposure::Searched(slot))
            }
            None => {
                // What it enters is newer than what it sees.
                self.enter_buffers();
                (number, Exposure::Entered)
            }
        }
    }

    /// Commits a transaction whose records begin after `first`, and closes its snapshot: `reserve` reserves the last record. What it
    /// leaves behind is taken over.
    ///
    /// # Errors
    /// If its snapshot has been ended, and if it has `reads`, one of them that another transaction has changed which was
    /// committed after its snapshot was taken; and what it leaves behind. Nothing has happened then.
    pub fn commit(
        &self,
        (writer, snapshot): (&Writer, &Snapshot),
        (first, left): (Lsn, Leftovers),
        reads: Option<&ReadSet>,
        reserve: impl FnOnce(u64) -> Lsn,
    ) -> Result<(Lsn, Ended), Box<(Refused, Leftovers)>> {
        let tested = reads.map_or(Ok(0), |reads| self.test(snapshot.time, reads));
        let left = Arc::new(left);
        // Nobody else has it.
        let take_back = |left| Arc::into_inner(left).unwrap_or_default();
        let mut state = self.lock();
        // Snapshots are ended while the state is locked; what was tested without may have been incomplete.
        if self.is_ended(snapshot) {
            return Err(Box::new((Refused::Ended, take_back(left))));
        }
        let tested = match (tested, reads) {
            (Ok(since), Some(reads)) => {
                state.since(since).try_for_each(|(.., left)| refuse_if(left.find(reads)))
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
        state.end_writing(writer.id);
        state.end_private(&self.has_private, writer.id);
        // Together with that: the log is needed for one of the two at any moment.
        state.changed_bytes += left.bytes;
        if let Some(slot) = left.slot {
            self.versions.buffers().commit(slot, (writer.id, time), left.clone());
            state.in_buffers.push_back((time, slot));
        }
        state.leftovers.push_back((time, first, left));
        state.join_at(time - 1);
        // Release: who finds this time finds the undo buffers of the commits up to it.
        self.time.store(time, Ordering::Release);
        self.publish(&state);
        Ok((lsn, self.close(state, snapshot)))
    }

    /// Tests what a transaction has read, whose snapshot is of `time`, against the commits since, but for the last few, so that
    /// little is left to be done while the state is locked. Returns up to which commit it has.
    ///
    /// # Errors
    /// As for [`commit`](Self::commit).
    fn test(&self, time: u64, reads: &ReadSet) -> Result<u64, Refused> {
        /// How many commits are left.
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
            // Nothing is read from a file while the state is locked, if that can be helped.
            if newer.len() <= FEW && newer.iter().all(|(_, left)| !left.has_spilled()) {
                return Ok(since);
            }
            for (time, left) in newer {
                refuse_if(left.find(reads))?;
                since = time;
            }
        }
    }

    /// A transaction has undone everything.
    pub fn end_writing(&self, id: u64) {
        let mut state = self.lock();
        state.end_writing(id);
        state.end_private(&self.has_private, id);
        self.publish(&state);
    }

    /// Closes the snapshot of a transaction that has not been committed.
    pub fn end(&self, snapshot: &Snapshot) -> Ended {
        self.close(self.lock(), snapshot)
    }

    /// Closes a snapshot, and ends those that go beyond the limit.
    fn close(&self, mut state: OrderedGuard<'_, State>, snapshot: &Snapshot) -> Ended {
        // One that has been ended before its transaction is open nevertheless: single operations must heed what it has changed.
        if let Ok(index) = state.snapshots.binary_search_by_key(&snapshot.id, |begun| begun.id) {
            state.snapshots.remove(index);
        }
        state.open -= 1;
        let is_last = state.open == 0;
        if is_last {
            self.open.store(0, Ordering::SeqCst);
        }
        let (mut free, mut pruned) = (SmallVec::new(), SmallVec::new());
        loop {
            let oldest = state.oldest();
            state.free_up_to(oldest.of_all, &mut free);
            match state.beyond(&self.limit) {
                Some(time) => {
                    // Release, and before versions are forgotten: see `is_ended`.
                    self.ended_before.0.store(time + 1, Ordering::Release);
                    while state.snapshots.front().is_some_and(|begun| begun.time <= time) {
                        state.snapshots.pop_front();
                    }
                }
                None => {
                    state.join_at(snapshot.time);
                    state.prune_up_to(oldest.of_others, &mut pruned);
                    self.versions.settle(oldest.of_others);
                    state.forget_buffers(oldest.of_others, self.versions.buffers());
                    return Ended { oldest, is_last, free, pruned };
                }
            }
        }
    }

    /// Makes room in memory if versions take more of it than they may; `end` gives the end of the log. Nothing is latched.
    ///
    /// # Errors
    /// If the file fails. Nothing is lost.
    pub fn make_room(&self, end: impl FnOnce() -> Lsn) -> Result<(), PoolError> {
        /// Covering snapshots is worth it if so many transactions were committed since the oldest.
        const COMMITS: u64 = if cfg!(test) { 3 } else { 8 };
        let is_old = || {
            let (times, now) = self.snapshots_now();
            times.first().is_some_and(|oldest| now - oldest >= COMMITS)
        };
        let Some(turn) = self.versions.turn_to_move(is_old) else { return Ok(()) };
        if !is_old() {
            return if turn.is_full { turn.spill(|| self.snapshots_now()) } else { Ok(()) };
        }
        let generations = self.versions.generations();
        let generation = generations.begin_cover(&self.versions.spill().file)?;
        let mut state = self.lock_entered();
        let covered = Covered { id: state.next_id - 1, time: state.time };
        state.covering = covered.id;
        let times: Vec<_> = state.others().map(|begun| begun.time).collect();
        drop(state);
        turn.freeze(&generation, || generations.arm(&generation, end));
        generations.count(&generation);
        let mut pruned = SmallVec::new();
        let mut others = 0;
        if generations.complete(&generation, covered) {
            let mut state = self.lock();
            state.covered = covered;
            others = state.oldest().of_others;
            state.prune_up_to(others, &mut pruned);
            self.versions.settle(others);
        } else {
            generations.give_up(&generation);
        }
        generation.rest();
        let written = turn.write_frozen(&generation, (&times, covered.time));
        pruned.iter().for_each(|left| self.versions.prune_all(left, others));
        written
    }

    /// The times of the open snapshots that are not covered, in ascending order, and the number of the last commit.
    pub fn snapshots_now(&self) -> (Vec<u64>, u64) {
        let state = self.lock();
        let mut times: Vec<u64> = state.others().map(|begun| begun.time).collect();
        times.dedup();
        (times, state.time)
    }

    /// What the commit of this number had left behind is gone, and the log says so.
    pub fn cleaned_up(&self, time: u64) {
        self.lock().freeing.remove(&time);
    }

    /// The times of the open snapshots that are not covered, in ascending order.
    pub fn snapshots(&self) -> Vec<u64> {
        self.snapshots_now().0
    }

    /// The end of the log, as `end` gives it, and from where on the log is needed, at the moment at which it ends there, to undo
    /// what is not committed, and to free what is not needed any more.
    ///
    /// A transaction that ends after that moment may be open again after a crash, because the record of its end need not be
    /// durable; one that begins to change something after it has its records after that place.
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

    /// Where the transaction was begun, if it is open still, by which the log is needed from the earliest place on.
    pub fn keeps_log(&self) -> Option<&'static Location<'static>> {
        let state = self.lock();
        let (_, id) = *state.writers.front()?;
        state.snapshots.iter().find(|begun| begun.id == id).map(|begun| begun.place)
    }

    /// Whether a transaction has changed something that is neither committed nor undone.
    pub fn has_writers(&self) -> bool {
        !self.lock().writers.is_empty()
    }

    /// How the history stands, and the log, which ends at `end`.
    pub fn history(&self, end: Lsn) -> History {
        self.enter_all();
        self.versions.sweep_all();
        let (versions, version_bytes) = self.versions.measure();
        let records = self.versions.records();
        let log_bytes = end.0.saturating_sub(self.needed_at(|| end).1.0);
        // Last: under it no versions are looked at.
        let state = self.lock();
        let oldest = state.snapshots.front().map(|begun| OldestSnapshot {
            transaction: begun.id,
            age: begun.when.elapsed(),
            begun_at: begun.place,
            commits: state.time - begun.time,
            bytes: state.changed_bytes - begun.changed_bytes,
        });
        History {
            kept_leaves: self.versions.generations().images(),
            open: state.snapshots.len(),
            oldest,
            records,
            versions,
            version_bytes,
            leftovers: state.leftovers.len(),
            log_bytes,
        }
    }

    /// Publishes up to where everything has settled.
    fn publish(&self, state: &State) {
        // Release: a reader that finds a leaf as a transaction left it, which latched the leaf after this, finds this too;
        // and one that finds that a transaction has ended finds it committed.
        self.settled.store(state.settled().0, Ordering::Release);
    }

    fn lock(&self) -> OrderedGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn settled(&self) -> Lsn {
        self.writers.front().map_or(Lsn(u64::MAX), |(first, _)| *first)
    }

    /// Whether so few transactions are open, and have left something behind, that undo buffers are searched, and none is covered or
    /// about to be: what changed after that is told by the table only.
    fn is_few(&self) -> bool {
        const SNAPSHOTS_MAX: usize = if cfg!(test) { 4 } else { 8 };
        const LEFTOVERS_MAX: usize = if cfg!(test) { 2 } else { 24 };
        self.snapshots.len() <= SNAPSHOTS_MAX
            && self.leftovers.len() <= LEFTOVERS_MAX
            && self.snapshots.front().is_some_and(|first| first.id > self.covering)
    }

    /// The undo buffers of commits up to this one are searched no more.
    fn forget_buffers(&mut self, oldest: u64, buffers: &UndoBuffers) {
        let oldest = if planted(Bug::BufferForgottenEarly) { u64::MAX } else { oldest };
        while let Some((time, slot)) = self.in_buffers.front()
            && *time <= oldest
        {
            buffers.forget(*slot, *time);
            self.in_buffers.pop_front();
        }
    }

    /// Moves what was left behind by commits up to this one to `free`.
    fn free_up_to(&mut self, oldest: u64, free: &mut SmallVec<[(u64, Arc<Leftovers>); 2]>) {
        while let Some((time, ..)) = self.leftovers.front()
            && *time <= oldest
            && let Some((time, first, left)) = self.leftovers.pop_front()
        {
            if !left.large().is_empty() {
                self.freeing.insert(time, first);
            }
            free.push((time, left));
        }
    }

    /// Takes what commits up to this one, which all snapshots see that are not covered, have left behind for versions to `pruned`. What covered
    /// ones need of it stays.
    fn prune_up_to(&mut self, others: u64, pruned: &mut SmallVec<[Arc<Leftovers>; 2]>) {
        if others <= self.pruned {
            return;
        }
        let from = self.leftovers.partition_point(|(time, ..)| *time <= self.pruned);
        let to = self.leftovers.partition_point(|(time, ..)| *time <= others);
        self.pruned = others;
        if from == to {
            return;
        }
        // Its keys are what it may be refused for.
        let stays = self.covered().any(|begun| begun.is_serializable);
        let rest = self.leftovers.split_off(to);
        let taken = self.leftovers.split_off(from);
        for (time, first, left) in taken {
            let large = left.only_large();
            pruned.push(left.clone());
            match large {
                _ if stays => self.leftovers.push_back((time, first, left)),
                Some(large) => self.leftovers.push_back((time, first, Arc::new(large))),
                None => {}
            }
            self.join_at(time - 1);
        }
        self.leftovers.extend(rest);
    }

    /// Joins what the last commit up to this one has left behind with that of the next, if no snapshot sees only one of them. So
    /// what is kept for an old snapshot grows with the records that were changed, and not with the changes.
    fn join_at(&mut self, time: u64) {
        /// It is not worth it for fewer commits.
        const FEW: usize = if cfg!(test) { 2 } else { 64 };
        if self.leftovers.len() <= FEW {
            return;
        }
        let index = self.leftovers.partition_point(|(of, ..)| *of <= time);
        if index == 0 || index == self.leftovers.len() {
            return;
        }
        let snapshots = &self.snapshots;
        let seen_apart = |from, to| {
            let first = snapshots.partition_point(|begun| begun.time < from);
            snapshots.get(first).is_some_and(|begun| begun.time < to)
        };
        let mut both = self.leftovers.range_mut(index - 1..=index);
        if let (Some((from, older_first, older)), Some((to, first, newer))) = (both.next(), both.next())
            && !seen_apart(*from, *to)
            // Somebody may be testing against them.
            && let (Some(older), Some(newer)) = (Arc::get_mut(older), Arc::get_mut(newer))
        {
            // What has replaced no large value needs no log: that may have been given up.
            match (older.large().is_empty(), newer.large().is_empty()) {
                (true, _) => {}
                (false, true) => *first = *older_first,
                (false, false) => *first = (*first).min(*older_first),
            }
            newer.join(std::mem::take(older));
            self.leftovers.remove(index - 1);
        }
    }

    /// The time of the oldest snapshots, if they are to be ended. It is all of the same time or none, for each holds back what
    /// the others do.
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

    /// The write set of a transaction is not private any more.
    fn end_private(&mut self, has_private: &AtomicBool, id: u64) {
        if self.private.as_ref().is_some_and(|writes| writes.id() == id) {
            self.private = None;
            // Relaxed: who finds it false too late publishes nothing.
            has_private.store(false, Ordering::Relaxed);
        }
    }

    fn end_writing(&mut self, id: u64) {
        if let Some(index) = self.writers.iter().position(|(_, writer)| *writer == id) {
            self.writers.remove(index);
        }
    }

    /// The commits after this one, with what they have left behind.
    fn since(&self, time: u64) -> impl Iterator<Item = &(u64, Lsn, Arc<Leftovers>)> {
        let first = self.leftovers.partition_point(|(of, ..)| *of <= time);
        self.leftovers.range(first..)
    }

    /// What all open snapshots see.
    fn oldest(&self) -> Oldest {
        let first = self.snapshots.front();
        Oldest {
            of_all: first.map_or(self.time, |begun| begun.time),
            of_others: self.others().next().map_or(self.time, |begun| begun.time),
            transaction: first.map(|begun| begun.id),
        }
    }

    /// The open snapshots that are covered, in the order in which they were taken.
    fn covered(&self) -> impl Iterator<Item = &Begun> {
        self.snapshots.range(..self.covered_count())
    }

    /// The open snapshots that are not.
    fn others(&self) -> impl Iterator<Item = &Begun> {
        self.snapshots.range(self.covered_count()..)
    }

    fn covered_count(&self) -> usize {
        self.snapshots.partition_point(|begun| begun.id <= self.covered.id)
    }
}
