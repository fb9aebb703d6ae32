//! Snapshot isolation as simple as can be, for tests: one mutex, and the full history of every record.
#![allow(dead_code, reason = "each test uses a part")]

pub mod comparison;

use crate::recording::{RecordingPager, no_room};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};
use vellum_access::{
    AccessError, BlobReference, ChangeRecord, Claim, Direction, Intent, Isolation, RecordKind, Removed, Seen,
    SharedBytes, Tree, UndoChange, Unshared, ValueImage, View, Writer, free_large, node::ValueKind,
};
use vellum_base::{Lsn, PageId};
use vellum_pool::PoolError;

/// A bug that is planted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Bug {
    #[default]
    None,
    /// Cursors do not hear of removed records.
    ForgottenRemovals,
    /// A record is claimed only after it was changed, and its leaf released.
    LateClaims,
    /// Writes that change nothing are not checked.
    NoChecks,
    /// The first place of a transaction in the log is not published.
    NoPlace,
    /// What is undone does not free the large values that were brought.
    UndoFreesNothing,
    /// It is not said that LSNs are asked for.
    NotHeld,
}

/// The entries of a tree.
pub type World = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, PartialEq, Eq, Debug)]
struct Before(Option<(ValueKind, Arc<[u8]>)>);

impl Before {
    fn of(image: Option<ValueImage<'_>>) -> Self {
        Self(image.map(|image| (image.kind, image.bytes.into())))
    }

    fn image(&self) -> Option<ValueImage<'_>> {
        self.0.as_ref().map(|(kind, bytes)| ValueImage { kind: *kind, bytes })
    }

    fn large(&self) -> Option<BlobReference> {
        let (kind, bytes) = self.0.as_ref()?;
        (*kind == ValueKind::Blob).then(|| BlobReference::decode(bytes).unwrap())
    }

    fn seen(&self) -> Seen {
        match (&self.0, self.large()) {
            (None, _) => Seen::Absent,
            (Some(_), Some(reference)) => Seen::Large(reference),
            (Some((_, bytes)), None) => Seen::Value(SharedBytes::new(bytes.clone(), 0..bytes.len())),
        }
    }
}

/// A change of a record.
struct Change {
    by: u64,
    before: Before,
}

#[derive(Default)]
struct State {
    time: u64,
    ids: u64,
    changes: BTreeMap<Vec<u8>, Vec<Change>>,
    removed: BTreeSet<Vec<u8>>,
    /// When transactions were committed.
    committed: HashMap<u64, u64>,
    snapshots: BTreeMap<u64, u64>,
    /// The transactions that change something, each with a place before its first record.
    writers: BTreeMap<u64, Lsn>,
    /// Large values that were replaced, and when.
    left: Vec<(u64, BlobReference)>,
    /// What transactions should see, by the number of commits.
    worlds: Vec<Arc<World>>,
    /// The keys that each commit has changed.
    commits: Vec<BTreeSet<Vec<u8>>>,
}

/// All transactions of one tree.
pub struct Reference {
    pub pager: RecordingPager,
    pub root: PageId,
    bug: Bug,
    state: Mutex<State>,
    settled: AtomicU64,
}

impl Reference {
    pub fn new(pager: RecordingPager, root: PageId, world: World, bug: Bug) -> Self {
        let state = State { worlds: vec![Arc::new(world)], ..State::default() };
        Self { pager, root, bug, state: Mutex::new(state), settled: AtomicU64::new(u64::MAX) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// How many commits there were.
    pub fn time(&self) -> u64 {
        self.lock().time
    }

    /// The entries after so many commits.
    pub fn world(&self, time: u64) -> Arc<World> {
        self.lock().worlds[time as usize].clone()
    }

    /// The keys that were changed by commits after the first `time`.
    pub fn changed_since(&self, time: u64) -> BTreeSet<Vec<u8>> {
        self.lock().commits[time as usize..].iter().flatten().cloned().collect()
    }

    /// The tree as it is without transactions.
    pub fn newest(&self) -> Tree<'_, RecordingPager> {
        Tree::open(&self.pager, self.root)
    }

    /// The tree as single operations see it.
    pub fn single(&self) -> Tree<'_, RecordingPager> {
        self.single_by(self)
    }

    /// The tree as single operations see it, if they ask `isolation`.
    pub fn single_by<'t>(&'t self, isolation: &'t dyn Isolation) -> Tree<'t, RecordingPager> {
        self.newest().with_view(View { settled: &self.settled, isolation, writer: Writer::None, open: None })
    }

    pub fn begin(&self) -> Transaction<'_> {
        if self.bug != Bug::NotHeld {
            self.pager.clock().hold();
        }
        let mut state = self.lock();
        state.ids += 1;
        let (id, time) = (state.ids, state.time);
        state.snapshots.insert(id, time);
        let first = state.writers.values().copied().min().unwrap_or(Lsn(u64::MAX));
        let settled = first.min(self.pager.end());
        let world = (*state.worlds[time as usize]).clone();
        Transaction {
            reference: self,
            id,
            time,
            settled: AtomicU64::new(settled.0),
            state: Mutex::default(),
            world,
            changed: BTreeSet::new(),
        }
    }

    fn publish(&self, state: &State) {
        let settled = state.writers.values().copied().min().unwrap_or(Lsn(u64::MAX));
        self.settled.store(settled.0, Ordering::SeqCst);
    }

    fn seen(&self, key: &[u8], own: u64, time: Option<u64>) -> Seen {
        let state = self.lock();
        let time = time.unwrap_or(state.time);
        let mut seen = Seen::Leaf;
        for change in state.changes.get(key).into_iter().flatten().rev() {
            if change.by == own || state.committed.get(&change.by).is_some_and(|commit| *commit <= time) {
                break;
            }
            seen = change.before.seen();
        }
        seen
    }

    /// Whether the last change of a record is one that is not seen.
    fn check_by(&self, key: &[u8], own: u64, time: u64) -> Result<(), Claim> {
        if self.bug == Bug::NoChecks {
            return Ok(());
        }
        self.conflict(&self.lock(), key, own, time)
    }

    fn conflict(&self, state: &State, key: &[u8], own: u64, time: u64) -> Result<(), Claim> {
        let Some(last) = state.changes.get(key).and_then(|changes| changes.last()) else { return Ok(()) };
        match state.committed.get(&last.by) {
            _ if last.by == own => Ok(()),
            None => Err(Claim::Conflict { committed: false }),
            Some(commit) if *commit > time => Err(Claim::Conflict { committed: true }),
            Some(_) => Ok(()),
        }
    }

    /// In small portions, if portions are wanted.
    fn removed_within(
        &self,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        (direction, most): (Direction, usize),
    ) -> Removed {
        let state = self.lock();
        let mut keys: Vec<Box<[u8]>> =
            state.removed.range::<[u8], _>(bounds).map(|key| key[..].into()).collect();
        let most = if most == usize::MAX { most } else { 3 };
        let more = keys.len().saturating_sub(most);
        let last = match direction {
            Direction::Forward => {
                keys.truncate(most);
                keys.last()
            }
            Direction::Backward => {
                keys.drain(..more);
                keys.first()
            }
        };
        let complete_to = last.filter(|_| more > 0).cloned();
        Removed { keys, complete_to }
    }

    /// Frees what no snapshot sees any more, and forgets when it was there.
    fn clean(&self) {
        let mut state = self.lock();
        let oldest = state.snapshots.values().copied().min().unwrap_or(state.time);
        let State { changes, committed, removed, left, .. } = &mut *state;
        changes.retain(|key, changes| {
            let old = |change: &Change| committed.get(&change.by).is_some_and(|commit| *commit <= oldest);
            let kept = changes.iter().rposition(old).map_or(0, |last| last + 1);
            changes.drain(..kept);
            if changes.is_empty() {
                removed.remove(key);
            }
            !changes.is_empty()
        });
        let free: Vec<_> = left.extract_if(.., |(commit, _)| *commit <= oldest).collect();
        drop(state);
        for (_, reference) in free {
            free_large(&self.pager, self.root, reference).unwrap();
        }
    }

    /// How many records have a history, and how many large values wait to be freed.
    pub fn left(&self) -> (usize, usize, usize) {
        let state = self.lock();
        (state.changes.len(), state.removed.len(), state.left.len())
    }
}

/// How single operations see the tree.
impl Isolation for Reference {
    fn seen(&self, _: PageId, key: &[u8]) -> Result<Seen, PoolError> {
        Ok(self.seen(key, 0, None))
    }

    fn claim(&self, _: PageId, _: &[u8], _: Lsn, _: Option<ValueImage<'_>>, _: Intent) -> Result<(), Claim> {
        if self.lock().snapshots.is_empty() { Ok(()) } else { Err(Claim::NeedsTransaction) }
    }

    fn check(&self, _: PageId, key: &[u8], _: Lsn) -> Result<(), Claim> {
        let time = self.time();
        self.check_by(key, 0, time).map_err(|_| Claim::NeedsTransaction)
    }

    fn has_removed(&self) -> bool {
        self.bug != Bug::ForgottenRemovals
    }

    fn removed(
        &self,
        _: PageId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        portion: (Direction, usize),
    ) -> Result<Removed, PoolError> {
        Ok(self.removed_within(bounds, portion))
    }

    fn recorded(&self, _: Lsn) {}
}

/// A transaction, and what it should see.
pub struct Transaction<'r> {
    reference: &'r Reference,
    pub id: u64,
    /// How many commits it sees.
    pub time: u64,
    settled: AtomicU64,
    state: Mutex<Undoing>,
    /// The entries that it should see.
    pub world: World,
    /// The keys that it has changed.
    pub changed: BTreeSet<Vec<u8>>,
}

struct Undo {
    key: Vec<u8>,
    before: Before,
    lsn: Lsn,
}

#[derive(Default)]
struct Undoing {
    claimed: Option<Undo>,
    done: Vec<Undo>,
    late: Vec<(Vec<u8>, Before, bool)>,
}

impl<'r> Transaction<'r> {
    pub fn pager(&self) -> &RecordingPager {
        &self.reference.pager
    }

    /// The tree as it sees it.
    pub fn reading(&self) -> Tree<'_, RecordingPager> {
        let view = View { settled: &self.settled, isolation: self, writer: Writer::None, open: None };
        self.reference.newest().with_view(view)
    }

    /// The tree as it changes it.
    pub fn writing(&self) -> Tree<'_, RecordingPager> {
        let mut state = self.reference.lock();
        if self.reference.bug != Bug::NoPlace {
            state.writers.entry(self.id).or_insert_with(|| self.reference.pager.end());
            self.reference.publish(&state);
        }
        let view = View {
            settled: &self.settled,
            isolation: self,
            writer: Writer::Transaction(self.id),
            open: None,
        };
        self.reference.newest().with_view(view)
    }

    /// After an operation.
    pub fn settle(&self) {
        let late: Vec<_> = self.state.lock().unwrap().late.drain(..).collect();
        let mut state = self.reference.lock();
        for (key, before, removes) in late {
            self.enter(&mut state, &key, before, removes);
        }
    }

    fn enter(&self, state: &mut State, key: &[u8], before: Before, removes: bool) {
        let changes = state.changes.entry(key.to_vec()).or_default();
        if changes.last().is_none_or(|last| last.by != self.id) {
            changes.push(Change { by: self.id, before });
        }
        if removes {
            state.removed.insert(key.to_vec());
        }
    }

    pub fn commit(self) {
        let reference = self.reference;
        let mut state = reference.lock();
        if !self.changed.is_empty() {
            state.time += 1;
            let time = state.time;
            state.committed.insert(self.id, time);
            let mut world = (*state.worlds[time as usize - 1]).clone();
            for key in &self.changed {
                match self.world.get(key) {
                    Some(value) => drop(world.insert(key.clone(), value.clone())),
                    None => drop(world.remove(key)),
                }
            }
            state.worlds.push(Arc::new(world));
            state.commits.push(self.changed.clone());
            let done = std::mem::take(&mut self.state.lock().unwrap().done);
            let large = done.iter().filter_map(|undo| undo.before.large());
            state.left.extend(large.map(|reference| (time, reference)));
        }
        self.end(state);
    }

    /// Undoes its changes by what the log says of them, or by what was kept.
    pub fn rollback(self, from_log: bool) -> Result<(), AccessError> {
        let reference = self.reference;
        static SETTLED: AtomicU64 = AtomicU64::new(u64::MAX);
        let done = std::mem::take(&mut self.state.lock().unwrap().done);
        for undo in done.iter().rev() {
            let writer = match reference.bug {
                Bug::UndoFreesNothing => Writer::Transaction(self.id),
                _ => Writer::Undo { transaction: self.id, of: undo.lsn },
            };
            let view = View { settled: &SETTLED, isolation: &Unshared, writer, open: None };
            let tree = reference.newest().with_view(view);
            let record;
            let change = if from_log {
                record = reference.pager.record(undo.lsn);
                let record = ChangeRecord::decode(&record).unwrap();
                assert_eq!(record.kind, RecordKind::Transaction(self.id));
                let (root, change) = record.undo().unwrap().unwrap();
                assert_eq!(root, reference.root);
                change
            } else {
                UndoChange::Restore { key: &undo.key, before: undo.before.image() }
            };
            retry(|| tree.undo(change))?;
        }
        let mut state = reference.lock();
        for change in state.changes.values_mut() {
            change.retain(|change| change.by != self.id);
        }
        self.end(state);
        Ok(())
    }

    fn end(&self, mut state: MutexGuard<'_, State>) {
        state.snapshots.remove(&self.id);
        state.writers.remove(&self.id);
        self.reference.publish(&state);
        drop(state);
        if self.reference.bug != Bug::NotHeld {
            self.reference.pager.clock().release();
        }
        self.reference.clean();
    }
}

impl Isolation for Transaction<'_> {
    fn seen(&self, _: PageId, key: &[u8]) -> Result<Seen, PoolError> {
        Ok(self.reference.seen(key, self.id, Some(self.time)))
    }

    fn claim(
        &self,
        tree: PageId,
        key: &[u8],
        _: Lsn,
        before: Option<ValueImage<'_>>,
        intent: Intent,
    ) -> Result<(), Claim> {
        assert_eq!(tree, self.reference.root);
        let mut state = self.reference.lock();
        self.reference.conflict(&state, key, self.id, self.time)?;
        let (before, removes) = (Before::of(before), intent == Intent::Remove);
        let mut undoing = self.state.lock().unwrap();
        if self.reference.bug == Bug::LateClaims {
            undoing.late.push((key.to_vec(), before.clone(), removes));
        } else {
            self.enter(&mut state, key, before.clone(), removes);
        }
        undoing.claimed = Some(Undo { key: key.to_vec(), before, lsn: Lsn(0) });
        Ok(())
    }

    fn check(&self, _: PageId, key: &[u8], _: Lsn) -> Result<(), Claim> {
        self.reference.check_by(key, self.id, self.time)
    }

    fn has_removed(&self) -> bool {
        self.reference.bug != Bug::ForgottenRemovals
    }

    fn removed(
        &self,
        _: PageId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        portion: (Direction, usize),
    ) -> Result<Removed, PoolError> {
        Ok(self.reference.removed_within(bounds, portion))
    }

    fn recorded(&self, lsn: Lsn) {
        let mut undoing = self.state.lock().unwrap();
        let undo = undoing.claimed.take().expect("each record of a transaction has been claimed");
        undoing.done.push(Undo { lsn, ..undo });
    }
}

/// Repeats an operation that finds all pages latched for a moment.
pub fn retry<T>(mut operation: impl FnMut() -> Result<T, AccessError>) -> Result<T, AccessError> {
    loop {
        let result = operation();
        if !no_room(&result) {
            return result;
        }
    }
}
