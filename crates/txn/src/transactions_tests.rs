//! Transactions and their versions on a database of one leaf, against a model; and snapshots that are ended.

use crate::before::{Before, BeforeImage, hash_of};
use crate::exposure::Exposure;
use crate::leftovers::{Large, Leftovers};
use crate::places::Places;
use crate::reads::ReadSet;
use crate::removed_range::in_portions;
use crate::settings::SnapshotLimit;
use crate::transactions::{Ended, Refused, Snapshot, Transactions};
use crate::undo_buffer::UndoBuffer;
use crate::versions::{Spill, Versions};
use crate::write_set::WriteSet;
use crate::writer::{Sight, Writer};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    panic::Location,
    sync::{Arc, atomic::Ordering},
};
use vellum_access::{
    BlobReference, Direction, Intent, Seen, SharedBytes, ValueImage,
    node::{NODE_BYTES, NodeMut, ValueKind},
};
use vellum_base::{Lsn, PageId};
use vellum_pool::{KeptPages, PageKeeper as _};
use vellum_vm::SimulatedDisk;

const TREE: PageId = PageId(9);

/// A transaction of the test, and what it should see.
struct Open {
    snapshot: Snapshot,
    writes: Arc<WriteSet>,
    /// How many commits there were when it began.
    commits: u64,
    /// The records when it began, with its own changes.
    world: BTreeMap<u8, u32>,
    changed: BTreeMap<u8, Option<u32>>,
    read: BTreeSet<u8>,
    reads: Option<ReadSet>,
}

/// A database of one leaf: what the leaf holds and its LSN.
struct Place {
    transactions: Transactions,
    kept: Arc<KeptPages>,
    leaf: BTreeMap<u8, u32>,
    lsn: u64,
    end: u64,
    /// Whether changes get their LSNs from a clock, as without a log: it goes on when a snapshot is taken and when
    /// versions are moved, and several changes have the same LSN.
    has_clock: bool,
    /// How many changes and commits there have been, by which the test varies what it does.
    steps: u64,
    /// Whether versions are moved during changes, as by other threads.
    are_moved: bool,
    committed: BTreeMap<u8, u32>,
    /// How many commits there have been, and the last one that changed a record.
    commits: u64,
    last_commit: BTreeMap<u8, u64>,
    open: Vec<Open>,
    /// Where the last change of a record was undone.
    undone: BTreeMap<u8, Lsn>,
    /// Whether threads may do nothing for a while between the end of a transaction and what follows on it.
    threads_are_late: bool,
    late: Vec<Ended>,
}

/// The key of a record: short or long; the last ones differ only at their ends.
fn name(key: u8) -> Vec<u8> {
    match key {
        0..9 => vec![key; 1 + key as usize % 3 * 20],
        _ => [&[9; 1010][..], &[key]].concat(),
    }
}

/// Memory has room for this many bytes of versions.
fn spill(bytes: u64) -> Spill {
    Spill::new(Some(Arc::new(SimulatedDisk::new(1))), bytes)
}

/// What gives changes their LSNs, which the tests choose themselves.
fn places() -> Places {
    Places::Clock(Arc::default())
}

fn record(key: u8) -> Before {
    let name = name(key);
    Before::new((TREE, &name), hash_of(TREE, &name), None)
}

fn seen(value: Option<&u32>) -> Seen {
    let bytes = |value: &u32| SharedBytes::new(Arc::from(&value.to_le_bytes()[..]), 0..4);
    value.map_or(Seen::Absent, |value| Seen::Value(bytes(value)))
}

impl Place {
    fn new(version_memory_bytes: u64) -> Self {
        let kept = Arc::<KeptPages>::default();
        let spill = spill(version_memory_bytes);
        let pages = (kept.clone(), Arc::default());
        let transactions = Transactions::new(1, SnapshotLimit::default(), spill, pages, places());
        let (leaf, committed) = (BTreeMap::new(), BTreeMap::new());
        let last_commit = BTreeMap::new();
        Self {
            transactions,
            kept,
            leaf,
            lsn: 0,
            end: 100,
            has_clock: false,
            steps: 0,
            are_moved: true,
            committed,
            commits: 0,
            last_commit,
            open: Vec::new(),
            undone: BTreeMap::new(),
            threads_are_late: false,
            late: Vec::new(),
        }
    }

    /// The LSN of a change or a commit.
    fn record(&mut self) -> Lsn {
        self.steps += 1;
        let lsn = Lsn(self.end);
        self.end += if self.has_clock { 0 } else { 10 };
        lsn
    }

    /// What lies between the changes so far and those that follow.
    fn divide(&mut self) -> Lsn {
        self.end += u64::from(self.has_clock);
        Lsn(self.end)
    }

    fn make_room(&mut self) {
        let end = self.divide();
        self.transactions.make_room(|| end).unwrap();
    }

    /// What the gateway does before a leaf is changed.
    fn keep(&self) {
        if Lsn(self.lsn) >= self.kept.from() {
            return;
        }
        let mut page = [0; NODE_BYTES];
        let mut node = NodeMut::init(&mut page, 0, None, None, PageId(0)).unwrap();
        for (key, value) in &self.leaf {
            node.insert(&name(*key), &value.to_le_bytes(), ValueKind::Inline).unwrap();
        }
        self.transactions.versions.generations().keep(TREE, &page);
    }

    /// Begins a transaction; every second one is serializable.
    fn begin(&mut self) {
        let (end, is_serializable) = (self.divide(), self.steps.is_multiple_of(2));
        let snapshot = self.transactions.begin(is_serializable, Location::caller(), || (), || end);
        self.open.push(Open {
            writes: Arc::new(WriteSet::new(snapshot.id)),
            snapshot,
            commits: self.commits,
            world: self.committed.clone(),
            changed: BTreeMap::new(),
            read: BTreeSet::new(),
            reads: is_serializable.then(ReadSet::default),
        });
    }

    fn change(&mut self, number: usize, key: u8, value: Option<u32>) {
        let end = self.end;
        let conflict = self.conflicts(number, key);
        let transaction = &mut self.open[number];
        let (writes, leaf) = (transaction.writes.clone(), Lsn(self.lsn));
        let mut state = writes.lock();
        if state.number.is_none() {
            let (number, exposure) = self.transactions.begin_writing(&writes, || Lsn(end));
            (state.number, state.exposure) = (Some((number, Lsn(end))), exposure);
        }
        drop(state);
        let held = self.leaf.get(&key).map(|value| value.to_le_bytes());
        let held = held.as_ref().map(|bytes| ValueImage { kind: ValueKind::Inline, bytes });
        let (name, is_removal) = (name(key), value.is_none());
        let by = (&*writes, &transaction.snapshot);
        let intent = if is_removal { Intent::Remove } else { Intent::SameLength };
        let claimed = self.transactions.claim(by, (TREE, &name, leaf), held, intent).unwrap();
        // A covered one may be refused for a change that was rolled back.
        let undone = self.undone.get(&key).is_some_and(|undone| *undone > transaction.snapshot.settled);
        let is_covered = self.transactions.versions.generations().covers(transaction.snapshot.id);
        if claimed.is_err() && !conflict && undone && is_covered {
            return;
        }
        assert_eq!(claimed.as_ref().err().is_some(), conflict);
        let Ok(state) = claimed else { return };
        drop(state);
        transaction.changed.insert(key, value);
        set(&mut transaction.world, key, value);
        if self.are_moved && self.steps.is_multiple_of(7) {
            // Another thread may publish at this moment.
            self.make_room();
        }
        self.keep();
        set(&mut self.leaf, key, value);
        let lsn = self.record();
        self.lsn = lsn.0;
        writes.lock().note_change(lsn, Lsn(lsn.0 + 100));
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

    /// Ends a transaction; returns how many records must be looked at again because of that.
    fn end(&mut self, number: usize, commit: bool) -> usize {
        let mut open = self.open.swap_remove(number);
        open.reads.iter_mut().for_each(ReadSet::finish);
        let changed = |key: &u8| self.last_commit.get(key).is_some_and(|commit| *commit > open.commits);
        let invalid = open.read.iter().any(changed);
        let mut state = open.writes.lock();
        let mut ended = None;
        if let Some((_, first)) = state.number {
            let is_committed = commit && {
                let lsn = self.record();
                let left = state.leave();
                let by = (&**open.writes.writer(), &open.snapshot);
                let done = self.transactions.commit(by, (first, left), open.reads.as_ref(), |_| lsn);
                assert_eq!(done.is_err(), invalid, "it has read {:?}", open.read);
                ended = done.map_err(|refused| state.take_back(refused.1)).ok().map(|(_, ended)| ended);
                ended.is_some()
            };
            drop(state);
            if is_committed {
                self.commits += 1;
                for (key, value) in &open.changed {
                    set(&mut self.committed, *key, *value);
                    self.last_commit.insert(*key, self.commits);
                }
            } else {
                self.undo(&open);
                self.transactions.roll_back(&open.writes);
                self.transactions.end_writing(open.snapshot.id);
            }
        }
        let ended = ended.unwrap_or_else(|| self.transactions.end(&open.snapshot));
        if self.threads_are_late && self.steps.is_multiple_of(3) && !self.open.is_empty() {
            // The thread does nothing for a while.
            self.late.push(ended);
            return 0;
        }
        let is_time = !self.threads_are_late || self.steps.is_multiple_of(5) || self.open.is_empty();
        let late = if is_time { std::mem::take(&mut self.late) } else { Vec::new() };
        late.into_iter().chain([ended]).map(|ended| self.clean_up(ended)).sum()
    }

    /// Forgets what no snapshot needs any more; returns as `end` does.
    fn clean_up(&self, Ended { oldest, free, pruned, forgotten, are_many_searched, .. }: Ended) -> usize {
        forgotten.iter().for_each(|(time, slot)| self.transactions.versions.forget_buffer(*slot, *time));
        let mut records = 0;
        for (_, left) in pruned.all.iter().chain(&free).filter(|(_, left)| left.is_entered()) {
            left.for_each_to_prune(|record| {
                records += 1;
                self.transactions.versions.prune(record, oldest.of_others);
            })
            .unwrap();
        }
        free.iter().for_each(|(time, _)| self.transactions.cleaned_up(*time));
        if are_many_searched {
            self.transactions.enter_oldest();
        }
        self.transactions.versions.prune_spilled(&oldest);
        records
    }

    /// Undoes all changes of a transaction, the last first. Others look meanwhile.
    fn undo(&mut self, open: &Open) {
        loop {
            let last = open.writes.lock().undo.last().map(|undo| undo.before.copy());
            let Some(before) = last else { break };
            let key = (0..12).find(|key| name(*key) == before.key()).unwrap();
            let value = before.value().map(|value| u32::from_le_bytes(value.bytes.try_into().unwrap()));
            self.keep();
            set(&mut self.leaf, key, value);
            self.lsn = self.record().0;
            self.undone.insert(key, Lsn(self.lsn));
            open.writes.lock().note_undone();
            if self.are_moved && self.steps.is_multiple_of(3) {
                self.make_room();
            }
            for other in &self.open {
                self.look(&other.world, other.snapshot.sight(), other.snapshot.settled);
            }
        }
    }

    fn look(&self, world: &BTreeMap<u8, u32>, sight: Sight, settled: Lsn) {
        let versions = &self.transactions.versions;
        let bounds = (Bound::Unbounded, Bound::Unbounded);
        let removed = versions.removed(sight, TREE, bounds, (Direction::Forward, usize::MAX)).unwrap().keys;
        for direction in [Direction::Forward, Direction::Backward] {
            let found = in_portions(bounds, direction, |bounds| {
                versions.removed(sight, TREE, bounds, (direction, 2)).unwrap()
            });
            assert_eq!(found, removed);
        }
        assert!(removed.is_sorted() && (removed.is_empty() || versions.has_removed(sight)));
        for key in 0..12 {
            let held = self.leaf.get(&key);
            let mut shown = Seen::Leaf;
            if Lsn(self.lsn) >= settled {
                shown = versions.seen(TREE, &name(key), sight).unwrap();
                let is_found = removed.binary_search_by(|removed| (**removed).cmp(&name(key))).is_ok();
                assert!(is_found || held.is_some() || !world.contains_key(&key), "{key} was removed");
            }
            let shown = if shown == Seen::Leaf { seen(held) } else { shown };
            assert_eq!(shown, seen(world.get(&key)), "{key} by {sight:?}");
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
    (0..300).for_each(|seed| live(seed, 1 << 20));
}

#[test]
fn so_it_is_with_versions_for_which_memory_has_no_room() {
    (0..300).for_each(|seed| live(seed, [0, 400, 2000, 10_000][seed as usize % 4]));
}

/// Several transactions that change, read and end at random.
fn live(seed: u64, version_memory_bytes: u64) {
    {
        let mut random = StdRng::seed_from_u64(seed);
        let mut place = Place::new(version_memory_bytes);
        place.threads_are_late = seed % 8 >= 4;
        place.has_clock = seed % 16 >= 8;
        for step in 0..400 {
            match random.random_range(0..10) {
                0 if place.open.len() < 6 => place.begin(),
                1..7 if !place.open.is_empty() => {
                    let number = random.random_range(0..place.open.len());
                    let value = random.random_ratio(2, 3).then_some(step);
                    place.change(number, random.random_range(0..12), value);
                }
                8 if !place.open.is_empty() => {
                    let number = random.random_range(0..place.open.len());
                    let (key, open) = (random.random_range(0..12), &mut place.open[number]);
                    if let Some(reads) = &mut open.reads {
                        open.read.insert(key);
                        reads.add_key(TREE, &name(key));
                    }
                }
                9 => place.make_room(),
                7 if !place.open.is_empty() => {
                    let number = random.random_range(0..place.open.len());
                    place.end(number, random.random_ratio(3, 4));
                }
                _ => {}
            }
            for open in &place.open {
                place.look(&open.world, open.snapshot.sight(), open.snapshot.settled);
            }
            // Rarely, so that write sets stay private for long.
            if random.random_ratio(1, 16) {
                place.transactions.publish_private();
                let settled = Lsn(place.transactions.settled().load(Ordering::Acquire));
                place.look(&place.committed, Sight::ALL_COMMITS, settled);
            }
        }
        while !place.open.is_empty() {
            place.end(0, true);
        }
        let history = place.transactions.history(Lsn(0));
        assert_eq!((history.open, history.records, history.leftovers), (0, 0, 0), "seed {seed}");
        assert!(
            place.transactions.none_open() && !place.transactions.versions.has_removed(Sight::ALL_COMMITS)
        );
    }
}

#[test]
fn one_that_is_covered_between_its_claim_and_its_change_sees_the_change() {
    let mut place = Place::new(0);
    place.are_moved = false;
    place.begin();
    // This many commits make it old, some of them are no longer in undo buffers, and it is not alone.
    for round in 0..6 {
        place.begin();
        place.change(1, 3, Some(round));
        place.end(1, true);
    }
    (place.are_moved, place.steps) = (true, 14);
    place.change(0, 5, Some(7));
    assert!(place.transactions.versions.generations().covers(place.open[0].snapshot.id));
    let open = &place.open[0];
    place.look(&open.world, open.snapshot.sight(), open.snapshot.settled);
}

#[test]
fn one_that_is_about_to_be_covered_does_not_become_private() {
    let mut place = Place::new(0);
    place.are_moved = false;
    place.begin();
    // More commits than undo buffers are searched of.
    for round in 0..8 {
        place.begin();
        place.change(1, 3, Some(round));
        place.end(1, true);
    }
    place.begin();
    let (old, young) = (place.open[0].snapshot, place.open[1].writes.clone());
    let mut exposure = Exposure::Private;
    // The old one ends while versions are about to be taken; then the other one begins to write.
    place
        .transactions
        .make_room(|| {
            // By another thread: this one has locked versions, and may not lock the state after that.
            std::thread::scope(|scope| {
                let others = scope.spawn(|| {
                    place.transactions.end(&old);
                    place.transactions.begin_writing(&young, || Lsn(500)).1
                });
                exposure = others.join().unwrap();
            });
            Lsn(500)
        })
        .unwrap();
    assert!(place.transactions.versions.generations().covers(young.id()));
    assert_eq!(
        exposure,
        Exposure::Entered,
        "else it would be shown what leaves were, and not what it has changed"
    );
}

#[test]
fn a_chain_has_no_more_entries_than_there_are_snapshots() {
    let mut place = Place::new(1 << 20);
    place.begin();
    for round in 0..100 {
        place.begin();
        place.change(1, 3, Some(round));
        place.end(1, true);
        assert!(place.transactions.versions.length(TREE, &name(3)) <= 3);
    }
    let open = &place.open[0];
    place.look(&open.world, open.snapshot.sight(), open.snapshot.settled);
    assert_eq!(place.transactions.history(Lsn(0)).records, 1);
    // No more is left behind than was changed.
    let left = place.transactions.history(Lsn(0)).leftovers;
    assert!(left <= 3, "{left} commits");
    let records = place.end(0, true);
    assert!(records <= 4, "{records} records");
    assert_eq!(place.transactions.history(Lsn(0)).records, 0);
}

#[test]
fn one_that_was_ended_cannot_be_committed() {
    let limit = SnapshotLimit::default().bytes(10);
    let transactions = Transactions::new(1, limit, spill(1 << 20), Default::default(), places());
    let begin = || {
        let snapshot = transactions.begin(false, Location::caller(), || (), || Lsn(100));
        let writes = Arc::new(WriteSet::new(snapshot.id));
        transactions.begin_writing(&writes, || Lsn(100));
        (writes, snapshot)
    };
    let commit = |writes: &WriteSet, snapshot: &Snapshot, bytes| {
        let left =
            Leftovers::new((UndoBuffer::default(), Vec::new(), None), Vec::new(), bytes, Exposure::Entered);
        let done = transactions.commit((writes.writer(), snapshot), (Lsn(100), left), None, |_| Lsn(200));
        done.map(drop).map_err(|refused| refused.0)
    };
    let (old, other, young) = (begin(), begin(), begin());
    assert!(!transactions.is_ended(&old.1), "one is ended when a transaction ends");
    assert!(commit(&other.0, &other.1, 11).is_ok());
    assert!(transactions.is_ended(&old.1) && transactions.is_ended(&young.1));
    assert!(matches!(commit(&old.0, &old.1, 1), Err(Refused::Ended)));
    assert!(!transactions.none_open(), "what it has changed is there still");
    for (writes, snapshot) in [&old, &young] {
        transactions.end_writing(writes.id());
        transactions.end(snapshot);
    }
    assert!(transactions.none_open() && transactions.history(Lsn(300)).leftovers == 0);
}

#[test]
fn the_log_is_needed_from_the_first_commit_whose_large_values_are_there_still() {
    let large = |number: u64| {
        let reference = BlobReference { head: PageId(number), length: 1, digest: 0 };
        vec![Large { record: record(number as u8), reference }]
    };
    for which in 0..1_u64 << 6 {
        let transactions =
            Transactions::new(1, SnapshotLimit::default(), spill(1 << 20), Default::default(), places());
        let old = transactions.begin(false, Location::caller(), || (), || Lsn(50));
        let mut expected = Lsn(1000);
        for number in 0..6 {
            let is_large = which >> number & 1 == 1;
            let first = Lsn(100 + 100 * number);
            let snapshot = transactions.begin(false, Location::caller(), || (), || first);
            let writes = Arc::new(WriteSet::new(snapshot.id));
            transactions.begin_writing(&writes, || first);
            let left = if is_large { large(number) } else { Vec::new() };
            let left = Leftovers::new(
                (UndoBuffer::default(), vec![record(number as u8)], None),
                left,
                1,
                Exposure::Entered,
            );
            transactions
                .commit((writes.writer(), &snapshot), (first, left), None, |_| Lsn(first.0 + 10))
                .unwrap_or_else(|refused| panic!("{:?}", refused.0));
            if is_large && expected == Lsn(1000) {
                expected = first;
            }
            assert_eq!(transactions.needed_at(|| Lsn(1000)), (Lsn(1000), expected), "{which:b}, {number}");
        }
        assert!(transactions.history(Lsn(1000)).leftovers <= 3);
        // What is being freed needs its log records until the free is logged.
        let free = transactions.end(&old).free;
        assert_eq!(transactions.needed_at(|| Lsn(1000)).1, expected, "{which:b}");
        free.iter().for_each(|(time, _)| transactions.cleaned_up(*time));
        assert_eq!(transactions.needed_at(|| Lsn(1000)).1, Lsn(1000), "{which:b}");
    }
}

#[test]
fn no_transaction_ends_between_the_end_of_the_log_and_what_is_needed_there() {
    let transactions =
        Transactions::new(1, SnapshotLimit::default(), spill(1 << 20), Default::default(), places());
    let snapshot = transactions.begin(false, Location::caller(), || (), || Lsn(100));
    transactions.begin_writing(&Arc::new(WriteSet::new(snapshot.id)), || Lsn(100));
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let end = || {
            scope.spawn(|| {
                transactions.end_writing(snapshot.id);
                sender.send(()).unwrap();
            });
            // The record of its end would lie after this place.
            assert!(receiver.recv_timeout(std::time::Duration::from_millis(100)).is_err());
            Lsn(500)
        };
        assert_eq!(transactions.needed_at(end), (Lsn(500), Lsn(100)));
    });
    assert_eq!(transactions.needed_at(|| Lsn(600)), (Lsn(600), Lsn(600)));
}

#[test]
fn nothing_is_left_of_two_that_roll_back_at_once() {
    let versions = Versions::new(spill(1 << 20), Arc::default());
    let claim = |writer: &Arc<Writer>| {
        let target = versions.target((TREE, b"key"), Lsn(1), 0);
        assert_eq!(versions.claim(target, (writer, 0), None, true, Vec::new).unwrap(), Ok(true));
    };
    let (first, second) = (Arc::new(Writer::new(1)), Arc::new(Writer::new(2)));
    claim(&first);
    let record = BeforeImage::new((TREE, b"key"), 0, None);
    first.roll_back(0);
    // Before the first one has taken its version back.
    claim(&second);
    versions.retract(record, first.id);
    assert_eq!(versions.records(), 1);
    second.roll_back(0);
    versions.retract(record, second.id);
    assert_eq!(versions.records(), 0);
    assert!(!versions.has_removed(Sight { time: 1, own: 3 }));
}
