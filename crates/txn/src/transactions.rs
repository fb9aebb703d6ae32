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
//! # Lock order
//! The state; nothing is locked while it is, except the log's reservation of a commit record.

use crate::reads::ReadSet;
use crate::versions::{Sight, Versions, Writer};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};
use vellum_access::BlobReference;
use vellum_base::{Lsn, PageId};

/// A record that a transaction has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Touched {
    pub tree: PageId,
    pub key: Arc<[u8]>,
}

/// What a transaction leaves behind that goes when no snapshot needs it any more.
#[derive(Default)]
pub(crate) struct Leftovers {
    /// The records that it has changed.
    pub touched: Vec<Touched>,
    /// The large values that it has replaced, each with its tree.
    pub large: Vec<(PageId, BlobReference)>,
}

impl Leftovers {
    /// A record that was changed, and that a transaction with these reads has read.
    fn find(&self, reads: &ReadSet) -> Option<Touched> {
        self.touched.iter().find(|touched| reads.has(touched.tree, &touched.key)).cloned()
    }
}

/// The transactions of a database.
pub(crate) struct Transactions {
    pub versions: Versions,
    state: Mutex<State>,
    /// How many snapshots are open.
    open: AtomicUsize,
    /// Everything before this place of the log was done by transactions that have ended; the highest number if none that
    /// changes something is open.
    settled: AtomicU64,
    /// The number of the last commit.
    time: AtomicU64,
}

struct State {
    next_id: u64,
    /// The number by which the log knows the next transaction that changes something.
    next_writer: u64,
    time: u64,
    /// The open snapshots: their time, and what tells those of the same time apart. Since when they are open.
    snapshots: BTreeMap<(u64, u64), Instant>,
    /// The open transactions that change something, each with a place before its first record.
    writers: BTreeMap<u64, Lsn>,
    /// What ended transactions have left behind, in the order of their commits.
    leftovers: VecDeque<(u64, Lsn, Arc<Leftovers>)>,
    /// The commits whose large values are being freed, each with a place before its records.
    freeing: BTreeMap<u64, Lsn>,
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
    /// How many transactions and snapshots are open.
    pub open: usize,
    /// How long the oldest of them has been open.
    pub oldest: Option<std::time::Duration>,
    /// How many records have earlier versions.
    pub records: usize,
    /// How many ended transactions have left something behind.
    pub leftovers: usize,
}

impl Transactions {
    /// No transaction has begun; numbers from `first` on are not in the log.
    pub fn new(first: u64) -> Self {
        let state = State {
            next_id: 1,
            next_writer: first,
            time: 1,
            snapshots: BTreeMap::new(),
            writers: BTreeMap::new(),
            leftovers: VecDeque::new(),
            freeing: BTreeMap::new(),
        };
        Self {
            versions: Versions::new(),
            state: Mutex::new(state),
            open: AtomicUsize::new(0),
            settled: AtomicU64::new(u64::MAX),
            time: AtomicU64::new(1),
        }
    }

    /// Takes a snapshot, for a transaction of its own number. `end` gives the end of the log.
    pub fn begin(&self, end: impl FnOnce() -> Lsn) -> Snapshot {
        // SeqCst: a change that is no transaction looks at this under the latch of its leaf. If it sees none open, this
        // snapshot reads the leaf after it.
        self.open.fetch_add(1, Ordering::SeqCst);
        let mut state = self.lock();
        let id = state.next_id;
        state.next_id += 1;
        let time = state.time;
        state.snapshots.insert((time, id), Instant::now());
        let settled = state.settled().min(end());
        Snapshot { id, time, settled }
    }

    /// Whether no transaction and no snapshot is open: a change may be made at once, under the latch of its leaf.
    pub fn none_open(&self) -> bool {
        self.open.load(Ordering::SeqCst) == 0
    }

    /// What is seen outside of transactions: all commits so far.
    pub fn now(&self) -> Sight {
        Sight { time: self.time.load(Ordering::Acquire), own: 0 }
    }

    /// Where readers that are no transaction begin to look: see the module.
    pub fn settled(&self) -> &AtomicU64 {
        &self.settled
    }

    /// A transaction is about to change something for the first time. Gives its number in the log.
    pub fn begin_writing(&self, id: u64, end: impl FnOnce() -> Lsn) -> u64 {
        let mut state = self.lock();
        let number = state.next_writer;
        state.next_writer += 1;
        state.writers.insert(id, end());
        self.publish(&state);
        number
    }

    /// Commits a transaction whose records begin after `first`: `reserve` reserves the last. What it leaves behind is taken
    /// over.
    ///
    /// # Errors
    /// If it has `reads`, the first of them that another transaction has changed which was committed after its snapshot was
    /// taken; and what it leaves behind. Nothing has happened then.
    pub fn commit(
        &self,
        writer: &Writer,
        (first, left): (Lsn, Leftovers),
        reads: Option<(&Snapshot, &ReadSet)>,
        reserve: impl FnOnce(u64) -> Lsn,
    ) -> Result<Lsn, (Touched, Leftovers)> {
        let tested = reads.map_or(Ok(0), |(snapshot, reads)| self.test(snapshot.time, reads));
        let mut state = self.lock();
        let conflict = match (tested, reads) {
            (Err(conflict), _) => Some(conflict),
            (Ok(since), Some((_, reads))) => state.since(since).find_map(|(.., left)| left.find(reads)),
            (Ok(_), None) => None,
        };
        if let Some(conflict) = conflict {
            return Err((conflict, left));
        }
        let time = state.time + 1;
        let lsn = reserve(time);
        writer.commit(time);
        state.time = time;
        state.writers.remove(&writer.id);
        // Together with that: the log is needed for one of the two at any moment.
        state.leftovers.push_back((time, first, Arc::new(left)));
        self.time.store(time, Ordering::Release);
        self.publish(&state);
        Ok(lsn)
    }

    /// Tests what a transaction has read, whose snapshot is of `time`, against the commits since, but for the last few, so that
    /// little is left to be done while the state is locked. Returns up to which commit it has.
    ///
    /// # Errors
    /// As for [`commit`](Self::commit).
    fn test(&self, time: u64, reads: &ReadSet) -> Result<u64, Touched> {
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
            if newer.len() <= FEW {
                return Ok(since);
            }
            for (time, left) in newer {
                if let Some(conflict) = left.find(reads) {
                    return Err(conflict);
                }
                since = time;
            }
        }
    }

    /// A transaction has undone everything.
    pub fn end_writing(&self, id: u64) {
        let mut state = self.lock();
        state.writers.remove(&id);
        self.publish(&state);
    }

    /// Closes a snapshot. Returns what no snapshot needs any more of what transactions have left behind, each with its commit, and
    /// up to which commit all that are open see everything.
    pub fn end(&self, snapshot: &Snapshot) -> (u64, Vec<(u64, Arc<Leftovers>)>) {
        let mut state = self.lock();
        state.snapshots.remove(&(snapshot.time, snapshot.id));
        self.open.fetch_sub(1, Ordering::SeqCst);
        let oldest = state.oldest();
        let mut free = Vec::new();
        while let Some((time, ..)) = state.leftovers.front()
            && *time <= oldest
            && let Some((time, first, left)) = state.leftovers.pop_front()
        {
            if !left.large.is_empty() {
                state.freeing.insert(time, first);
            }
            free.push((time, left));
        }
        (oldest, free)
    }

    /// What the commit of this number had left behind is gone, and the log says so.
    pub fn cleaned_up(&self, time: u64) {
        self.lock().freeing.remove(&time);
    }

    /// The times of the open snapshots, in ascending order.
    pub fn snapshots(&self) -> Vec<u64> {
        let mut times: Vec<u64> = self.lock().snapshots.keys().map(|(time, _)| *time).collect();
        times.dedup();
        times
    }

    /// The log from this place on is needed to undo what is not committed, and to free what is not needed any more.
    pub fn needed_from(&self, end: Lsn) -> Lsn {
        let state = self.lock();
        let left =
            state.leftovers.iter().filter(|(.., left)| !left.large.is_empty()).map(|(_, first, _)| *first);
        let freeing = state.freeing.values().copied();
        state.writers.values().copied().chain(left).chain(freeing).min().unwrap_or(end)
    }

    /// Whether a transaction has changed something that is neither committed nor undone.
    pub fn has_writers(&self) -> bool {
        !self.lock().writers.is_empty()
    }

    /// How the history stands.
    pub fn history(&self) -> History {
        let state = self.lock();
        History {
            open: state.snapshots.len(),
            oldest: state.snapshots.values().next().map(Instant::elapsed),
            records: self.versions.records(),
            leftovers: state.leftovers.len(),
        }
    }

    /// Publishes up to where everything has settled.
    fn publish(&self, state: &State) {
        // Release: a reader that finds a leaf as a transaction left it, which latched the leaf after this, finds this too;
        // and one that finds that a transaction has ended finds it committed.
        self.settled.store(state.settled().0, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    fn settled(&self) -> Lsn {
        self.writers.values().copied().min().unwrap_or(Lsn(u64::MAX))
    }

    /// The commits after this one, with what they have left behind.
    fn since(&self, time: u64) -> impl Iterator<Item = &(u64, Lsn, Arc<Leftovers>)> {
        let first = self.leftovers.partition_point(|(of, ..)| *of <= time);
        self.leftovers.range(first..)
    }

    /// All open snapshots see the commits up to this one.
    fn oldest(&self) -> u64 {
        self.snapshots.keys().next().map_or(self.time, |(time, _)| *time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::versions::{Before, Seen};
    use rand::{RngExt, SeedableRng, rngs::StdRng};
    use std::collections::BTreeMap;

    const TREE: PageId = PageId(9);

    /// A transaction of the test, and what it should see.
    struct Open {
        snapshot: Snapshot,
        writer: Arc<Writer>,
        first: Option<Lsn>,
        /// How many commits there were at its beginning.
        commits: u64,
        /// The records at its beginning, with its own changes.
        world: BTreeMap<u8, u32>,
        changed: BTreeMap<u8, Option<u32>>,
        touched: Vec<Touched>,
    }

    /// A database of one leaf: what the leaf holds and its LSN.
    struct Place {
        transactions: Transactions,
        leaf: BTreeMap<u8, u32>,
        lsn: u64,
        end: u64,
        committed: BTreeMap<u8, u32>,
        /// How many commits there were, and the last one that changed a record.
        commits: u64,
        last_commit: BTreeMap<u8, u64>,
        open: Vec<Open>,
    }

    fn before(value: Option<&u32>) -> Before {
        value.map_or(Before::Absent, |value| Before::Inline(Arc::from(&value.to_le_bytes()[..])))
    }

    impl Place {
        fn new() -> Self {
            let transactions = Transactions::new(1);
            let (leaf, committed) = (BTreeMap::new(), BTreeMap::new());
            let last_commit = BTreeMap::new();
            Self {
                transactions,
                leaf,
                lsn: 0,
                end: 100,
                committed,
                commits: 0,
                last_commit,
                open: Vec::new(),
            }
        }

        fn record(&mut self) -> Lsn {
            self.end += 10;
            Lsn(self.end - 10)
        }

        fn begin(&mut self) {
            let end = self.end;
            let snapshot = self.transactions.begin(|| Lsn(end));
            self.open.push(Open {
                writer: Arc::new(Writer::new(snapshot.id)),
                snapshot,
                first: None,
                commits: self.commits,
                world: self.committed.clone(),
                changed: BTreeMap::new(),
                touched: Vec::new(),
            });
        }

        fn change(&mut self, number: usize, key: u8, value: Option<u32>) {
            let end = self.end;
            let conflict = self.conflicts(number, key);
            let transaction = &mut self.open[number];
            if transaction.first.is_none() {
                self.transactions.begin_writing(transaction.snapshot.id, || Lsn(end));
                transaction.first = Some(Lsn(end));
            }
            let (writer, time) = (&transaction.writer, transaction.snapshot.time);
            let before = before(self.leaf.get(&key));
            let claimed = self.transactions.versions.claim(
                TREE,
                &[key],
                (writer, time),
                &before,
                value.is_none(),
                || self.transactions.snapshots(),
            );
            assert_eq!(claimed.is_err(), conflict, "{claimed:?}");
            let Ok((shared, first)) = claimed else { return };
            if first {
                transaction.touched.push(Touched { tree: TREE, key: shared });
            }
            transaction.changed.insert(key, value);
            set(&mut transaction.world, key, value);
            set(&mut self.leaf, key, value);
            self.lsn = self.record().0;
        }

        /// First updater wins.
        fn conflicts(&self, number: usize, key: u8) -> bool {
            let me = &self.open[number];
            if me.changed.contains_key(&key) {
                return false;
            }
            let others = self.open.iter().any(|other| other.changed.contains_key(&key));
            others || self.last_commit.get(&key).is_some_and(|commit| *commit > me.commits)
        }

        fn end(&mut self, number: usize, commit: bool) {
            let open = self.open.swap_remove(number);
            if let Some(first) = open.first {
                if commit {
                    let lsn = self.record();
                    let left = Leftovers { touched: open.touched, large: Vec::new() };
                    let done = self.transactions.commit(&open.writer, (first, left), None, |_| lsn);
                    assert!(done.is_ok());
                    self.commits += 1;
                    for (key, value) in &open.changed {
                        set(&mut self.committed, *key, *value);
                        self.last_commit.insert(*key, self.commits);
                    }
                } else {
                    for key in open.changed.keys() {
                        let old = self.committed.get(key).copied();
                        set(&mut self.leaf, *key, old);
                        self.lsn = self.record().0;
                        self.transactions.versions.retract(TREE, &[*key], open.writer.id);
                    }
                    self.transactions.end_writing(open.snapshot.id);
                }
            }
            let (oldest, free) = self.transactions.end(&open.snapshot);
            for (time, left) in free {
                for Touched { tree, key } in &left.touched {
                    self.transactions.versions.prune(*tree, key, oldest);
                }
                self.transactions.cleaned_up(time);
            }
        }

        fn look(&self, world: &BTreeMap<u8, u32>, sight: Sight, settled: Lsn) {
            for key in 0..12 {
                let held = self.leaf.get(&key);
                let seen = match Lsn(self.lsn) < settled {
                    true => Seen::Leaf,
                    false => self.transactions.versions.seen(TREE, &[key], sight),
                };
                let seen = match seen {
                    Seen::Leaf => before(held),
                    Seen::Earlier(earlier) => earlier,
                };
                assert_eq!(seen, before(world.get(&key)), "{key} by {sight:?}");
            }
        }
    }

    fn set(world: &mut BTreeMap<u8, u32>, key: u8, value: Option<u32>) {
        match value {
            Some(value) => world.insert(key, value),
            None => world.remove(&key),
        };
    }

    #[test]
    fn each_snapshot_sees_its_moment_and_nothing_is_left_at_the_end() {
        for seed in 0..300 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut place = Place::new();
            for step in 0..400 {
                match random.random_range(0..10) {
                    0 if place.open.len() < 6 => place.begin(),
                    1..7 if !place.open.is_empty() => {
                        let number = random.random_range(0..place.open.len());
                        let value = random.random_ratio(2, 3).then_some(step);
                        place.change(number, random.random_range(0..12), value);
                    }
                    7 if !place.open.is_empty() => {
                        let number = random.random_range(0..place.open.len());
                        place.end(number, random.random_ratio(3, 4));
                    }
                    _ => {}
                }
                for open in &place.open {
                    place.look(&open.world, open.snapshot.sight(), open.snapshot.settled);
                }
                let settled = Lsn(place.transactions.settled().load(Ordering::Acquire));
                place.look(&place.committed, place.transactions.now(), settled);
            }
            while !place.open.is_empty() {
                place.end(0, true);
            }
            let history = place.transactions.history();
            assert_eq!((history.open, history.records, history.leftovers), (0, 0, 0), "seed {seed}");
            assert!(place.transactions.none_open() && !place.transactions.versions.has_removed());
        }
    }

    #[test]
    fn a_chain_has_no_more_entries_than_there_are_snapshots() {
        let mut place = Place::new();
        place.begin();
        for round in 0..100 {
            place.begin();
            place.change(1, 3, Some(round));
            place.end(1, true);
            assert!(place.transactions.versions.length(TREE, &[3]) <= 3);
        }
        let open = &place.open[0];
        place.look(&open.world, open.snapshot.sight(), open.snapshot.settled);
        assert_eq!(place.transactions.history().records, 1);
        place.end(0, true);
        assert_eq!(place.transactions.history().records, 0);
    }
}
