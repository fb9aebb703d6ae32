//! Earlier versions of records that were changed lately, for snapshots that must not see the changes.
//!
//! A leaf holds the newest version of each record, by whatever transaction. What a transaction replaces it keeps here first,
//! under the leaf's latch, with its own number. So a reader that finds a leaf changed since its snapshot looks here, by key,
//! and then makes sure that the leaf has not changed meanwhile. A leaf whose LSN is older than the reader's snapshot needs no
//! look: that is nearly every one. Records carry no header, and nothing of this is logged or survives a crash.
//!
//! Versions go as soon as no snapshot needs them: when the transaction ends, if there is no other, and otherwise when those
//! have ended that were open then. A chain is also cut while it grows, so that it has no more entries than there are
//! snapshots (Böttcher, Leis, Neumann, Kemper: *Scalable Garbage Collection for In-Memory MVCC Systems*, VLDB 2020).
//!
//! # Removed records
//! A removed record is not in its leaf any more. The keys of those that have versions are kept in order, for scans.

use smallvec::SmallVec;
use std::{
    collections::{BTreeSet, HashMap},
    hash::{BuildHasherDefault, Hasher},
    ops::Bound,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};
use vellum_base::{PageId, checksum};

/// How many parts the map has, each with a lock of its own.
const SHARDS: usize = 64;

/// A transaction that changes something, as its versions refer to it.
#[derive(Debug)]
pub(crate) struct Writer {
    pub id: u64,
    /// When it was committed; zero as long as it was not.
    committed: AtomicU64,
}

impl Writer {
    pub fn new(id: u64) -> Self {
        Self { id, committed: AtomicU64::new(0) }
    }

    /// When it was committed, if it was.
    pub fn committed(&self) -> Option<u64> {
        // Acquire: pairs with `commit`, so a reader that sees the commit sees the changes.
        Some(self.committed.load(Ordering::Acquire)).filter(|time| *time > 0)
    }

    pub fn commit(&self, time: u64) {
        self.committed.store(time, Ordering::Release);
    }
}

/// What was under a key before a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Before {
    /// Nothing.
    Absent,
    /// A value.
    Inline(Arc<[u8]>),
    /// A reference to a large value.
    Large(Arc<[u8]>),
}

impl Before {
    /// The bytes of the value, or of the reference to it.
    pub fn len(&self) -> usize {
        match self {
            Self::Absent => 0,
            Self::Inline(bytes) | Self::Large(bytes) => bytes.len(),
        }
    }
}

/// A change of a record.
struct Version {
    writer: Arc<Writer>,
    before: Before,
}

/// The changes of one record, the latest last.
struct Chain {
    tree: PageId,
    key: Arc<[u8]>,
    versions: SmallVec<[Version; 1]>,
}

/// The chains of one hash: mostly one.
type Chains = SmallVec<[Chain; 1]>;

/// What a snapshot sees of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Seen {
    /// What the leaf holds.
    Leaf,
    /// Something else.
    Earlier(Before),
}

/// Why a record cannot be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// A transaction that is open has changed it.
    Open,
    /// One that was committed after the snapshot was taken has.
    Later,
}

/// All earlier versions.
pub(crate) struct Versions {
    shards: Vec<Mutex<HashMap<u64, Chains, BuildHasherDefault<Identity>>>>,
    /// How many records have versions.
    records: AtomicUsize,
    /// The keys of removed records that have versions.
    removed: Mutex<BTreeSet<(PageId, Box<[u8]>)>>,
    removed_count: AtomicUsize,
}

/// What a reader or a writer may see: commits up to a time, and its own changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    pub time: u64,
    pub own: u64,
}

impl Sight {
    fn sees(self, writer: &Writer) -> bool {
        writer.id == self.own || writer.committed().is_some_and(|time| time <= self.time)
    }
}

impl Versions {
    pub fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            records: AtomicUsize::new(0),
            removed: Mutex::default(),
            removed_count: AtomicUsize::new(0),
        }
    }

    /// How many records have versions.
    pub fn records(&self) -> usize {
        self.records.load(Ordering::Relaxed)
    }

    /// How many versions there are, and how many bytes of values they have. Walks them all.
    pub fn measure(&self) -> (usize, u64) {
        let (mut count, mut bytes) = (0, 0);
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            for version in shard.values().flatten().flat_map(|chain| &chain.versions) {
                count += 1;
                bytes += version.before.len() as u64;
            }
        }
        (count, bytes)
    }

    /// What a snapshot sees of a record, whose leaf was read before and is validated afterwards.
    pub fn seen(&self, tree: PageId, key: &[u8], sight: Sight) -> Seen {
        let hash = hash_of(tree, key);
        let shard = self.lock(hash);
        let Some(chain) = shard.get(&hash).and_then(|chains| find(chains, tree, key)) else {
            return Seen::Leaf;
        };
        let mut seen = None;
        for version in chain.versions.iter().rev() {
            if sight.sees(&version.writer) {
                break;
            }
            seen = Some(&version.before);
        }
        seen.map_or(Seen::Leaf, |before| Seen::Earlier(before.clone()))
    }

    /// Notes that a writer is about to change a record, whose leaf is latched. `before` is what the leaf holds. Returns the
    /// key, and whether this is the writer's first change of the record. `snapshots` are the times of those that are open, in
    /// ascending order.
    pub fn claim(
        &self,
        tree: PageId,
        key: &[u8],
        (writer, time): (&Arc<Writer>, u64),
        before: &Before,
        is_removal: bool,
        snapshots: impl FnOnce() -> Vec<u64>,
    ) -> Result<(Arc<[u8]>, bool), Refusal> {
        let hash = hash_of(tree, key);
        let mut shard = self.lock(hash);
        let chains = shard.entry(hash).or_default();
        let chain = match chains.iter_mut().position(|chain| chain.is_of(tree, key)) {
            Some(index) => chains.get_mut(index),
            None => {
                self.records.fetch_add(1, Ordering::Relaxed);
                chains.push(Chain { tree, key: key.into(), versions: SmallVec::new() });
                chains.last_mut()
            }
        };
        let Some(chain) = chain else { return Ok((key.into(), false)) };
        let shared = chain.key.clone();
        if let Some(last) = chain.versions.last() {
            match last.writer.committed() {
                _ if last.writer.id == writer.id => {
                    drop(shard);
                    self.note_removed(tree, key, is_removal);
                    return Ok((shared, false));
                }
                None => return Err(Refusal::Open),
                Some(committed) if committed > time => return Err(Refusal::Later),
                Some(_) => {}
            }
        }
        chain.versions.push(Version { writer: writer.clone(), before: before.clone() });
        if chain.versions.len() > 2 {
            chain.cut(&snapshots());
        }
        drop(shard);
        self.note_removed(tree, key, is_removal);
        Ok((shared, true))
    }

    /// Whether another writer than one's own keeps a record from being changed.
    pub fn check(&self, tree: PageId, key: &[u8], sight: Sight) -> Result<(), Refusal> {
        let hash = hash_of(tree, key);
        let shard = self.lock(hash);
        let last = shard.get(&hash).and_then(|chains| find(chains, tree, key)?.versions.last());
        match last {
            Some(last) if !sight.sees(&last.writer) => {
                Err(if last.writer.committed().is_some() { Refusal::Later } else { Refusal::Open })
            }
            _ => Ok(()),
        }
    }

    /// Forgets the change of a writer that has been undone in the leaf.
    pub fn retract(&self, tree: PageId, key: &[u8], writer: u64) {
        self.change(tree, key, |chain| {
            if chain.versions.last().is_some_and(|last| last.writer.id == writer) {
                chain.versions.pop();
            }
        });
    }

    /// Forgets the changes of a record that every snapshot sees: those that were committed up to `oldest`. Returns whether
    /// nothing is left.
    pub fn prune(&self, tree: PageId, key: &[u8], oldest: u64) -> bool {
        self.change(tree, key, |chain| {
            let seen_by_all =
                |version: &Version| version.writer.committed().is_some_and(|time| time <= oldest);
            let last = chain.versions.iter().rposition(seen_by_all);
            chain.versions.drain(..last.map_or(0, |last| last + 1));
        })
    }

    /// Changes a chain, and forgets it if nothing is left of it, which is returned.
    fn change(&self, tree: PageId, key: &[u8], change: impl FnOnce(&mut Chain)) -> bool {
        let hash = hash_of(tree, key);
        let mut shard = self.lock(hash);
        let Some(chains) = shard.get_mut(&hash) else { return true };
        let Some(index) = chains.iter().position(|chain| chain.is_of(tree, key)) else { return true };
        let Some(chain) = chains.get_mut(index) else { return true };
        change(chain);
        if !chain.versions.is_empty() {
            return false;
        }
        chains.swap_remove(index);
        if chains.is_empty() {
            shard.remove(&hash);
            shrink(&mut shard);
        }
        self.records.fetch_sub(1, Ordering::Relaxed);
        // Under the shard's lock, so that a later removal of the key is not forgotten.
        if self.removed_count.load(Ordering::Relaxed) > 0 && self.lock_removed().remove(&(tree, key.into())) {
            self.removed_count.fetch_sub(1, Ordering::Release);
        }
        true
    }

    fn note_removed(&self, tree: PageId, key: &[u8], is_removal: bool) {
        if is_removal && self.lock_removed().insert((tree, key.into())) {
            self.removed_count.fetch_add(1, Ordering::Release);
        }
    }

    /// Forgets all versions of a tree that is gone.
    pub fn forget(&self, tree: PageId) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            shard.retain(|_, chains| {
                let before = chains.len();
                chains.retain(|chain| chain.tree != tree);
                self.records.fetch_sub(before - chains.len(), Ordering::Relaxed);
                !chains.is_empty()
            });
        }
        let mut removed = self.lock_removed();
        let before = removed.len();
        removed.retain(|(of, _)| *of != tree);
        self.removed_count.fetch_sub(before - removed.len(), Ordering::Release);
    }

    /// Whether scans need to look for removed records.
    pub fn has_removed(&self) -> bool {
        // Acquire: pairs with the removal, which happens under the leaf's latch.
        self.removed_count.load(Ordering::Acquire) > 0
    }

    /// The keys of a tree within bounds whose records were removed and have versions, in ascending order.
    pub fn removed(&self, tree: PageId, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Vec<Box<[u8]>> {
        let bound = |bound: Bound<&[u8]>, open: Bound<(PageId, Box<[u8]>)>| match bound {
            Bound::Included(key) => Bound::Included((tree, key.into())),
            Bound::Excluded(key) => Bound::Excluded((tree, key.into())),
            Bound::Unbounded => open,
        };
        let first: (PageId, Box<[u8]>) = (tree, Box::default());
        let beyond: (PageId, Box<[u8]>) = (PageId(tree.0 + 1), Box::default());
        let (lower, upper) = (bound(lower, Bound::Included(first)), bound(upper, Bound::Excluded(beyond)));
        if is_empty(&lower, &upper) {
            return Vec::new();
        }
        self.lock_removed().range((lower, upper)).map(|(_, key)| key.clone()).collect()
    }

    /// How many versions a record has.
    #[cfg(test)]
    pub fn length(&self, tree: PageId, key: &[u8]) -> usize {
        let hash = hash_of(tree, key);
        let shard = self.lock(hash);
        shard.get(&hash).and_then(|chains| find(chains, tree, key)).map_or(0, |chain| chain.versions.len())
    }

    fn lock(&self, hash: u64) -> MutexGuard<'_, HashMap<u64, Chains, BuildHasherDefault<Identity>>> {
        // The map within a shard uses the lowest and the highest bits.
        let index = (hash >> 32) as usize % SHARDS;
        #[expect(clippy::indexing_slicing, reason = "there are as many")]
        let shard = &self.shards[index];
        shard.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn lock_removed(&self) -> MutexGuard<'_, BTreeSet<(PageId, Box<[u8]>)>> {
        self.removed.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Chain {
    fn is_of(&self, tree: PageId, key: &[u8]) -> bool {
        self.tree == tree && *self.key == *key
    }

    /// Joins changes between which no snapshot was taken: what was between them nobody sees.
    fn cut(&mut self, snapshots: &[u64]) {
        let mut index = 1;
        while let Some([older, newer]) = self.versions.get(index - 1..=index) {
            let (Some(from), Some(to)) = (older.writer.committed(), newer.writer.committed()) else {
                index += 1;
                continue;
            };
            let first = snapshots.partition_point(|time| *time < from);
            if snapshots.get(first).is_some_and(|time| *time < to) {
                index += 1;
                continue;
            }
            let older = self.versions.remove(index - 1);
            if let Some(newer) = self.versions.get_mut(index - 1) {
                newer.before = older.before;
            }
        }
    }
}

/// Gives up room that a large transaction needed: a table that is mostly empty costs cache misses.
fn shrink(shard: &mut HashMap<u64, Chains, BuildHasherDefault<Identity>>) {
    /// Not worth it below.
    const LEAST: usize = 32;
    if shard.capacity() > LEAST && shard.len() * 16 < shard.capacity() {
        shard.shrink_to(LEAST);
    }
}

fn find<'c>(chains: &'c Chains, tree: PageId, key: &[u8]) -> Option<&'c Chain> {
    chains.iter().find(|chain| chain.is_of(tree, key))
}

fn is_empty<T: Ord>(lower: &Bound<T>, upper: &Bound<T>) -> bool {
    match (lower, upper) {
        (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
        (
            Bound::Included(lower) | Bound::Excluded(lower),
            Bound::Included(upper) | Bound::Excluded(upper),
        ) => lower >= upper,
        _ => false,
    }
}

/// The hash of a record's key.
pub(crate) fn hash_of(tree: PageId, key: &[u8]) -> u64 {
    checksum(key) ^ tree.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The keys of the map are hashes.
#[derive(Default)]
pub(crate) struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}
