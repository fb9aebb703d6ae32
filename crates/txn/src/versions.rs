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

use hashbrown::{HashTable, hash_table::Entry};
use smallvec::SmallVec;
use std::{
    cell::RefCell,
    collections::BTreeSet,
    ops::Bound,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};
use vellum_access::{BlobReference, Seen, SharedBytes, ValueImage, node::ValueKind};
use vellum_base::{PageId, checksum};

/// How many parts the table has, each with a lock of its own.
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

/// A record as it was before a change: its tree, its key, and the value that was under it, if there was one. The chain, the
/// transaction and readers share its memory.
#[derive(Clone, Debug)]
pub(crate) struct Before {
    pub tree: PageId,
    hash: u64,
    /// The key, then the value.
    bytes: Bytes,
    key_bytes: u32,
    kind: Option<ValueKind>,
}

/// Bytes that several share.
#[derive(Clone, Debug)]
enum Bytes {
    /// A few, each of which has its own: the key of a record that was not there, mostly.
    Few([u8; FEW_BYTES]),
    Shared(Arc<[u8]>),
}

/// A key of so many bytes needs no memory of its own.
const FEW_BYTES: usize = 31;

impl Before {
    pub fn new((tree, key): (PageId, &[u8]), hash: u64, value: Option<ValueImage<'_>>) -> Self {
        let key_bytes = key.len() as u32;
        let Some(ValueImage { kind, bytes: value }) = value else {
            let mut few = [0; FEW_BYTES];
            let bytes = match few.get_mut(..key.len()) {
                Some(place) => {
                    place.copy_from_slice(key);
                    Bytes::Few(few)
                }
                None => Bytes::Shared(key.into()),
            };
            return Self { tree, hash, bytes, key_bytes, kind: None };
        };
        thread_local! {
            static JOINED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        let bytes = JOINED.with_borrow_mut(|joined| {
            joined.clear();
            joined.extend_from_slice(key);
            joined.extend_from_slice(value);
            Bytes::Shared(Arc::from(&joined[..]))
        });
        Self { tree, hash, bytes, key_bytes, kind: Some(kind) }
    }

    pub fn key(&self) -> &[u8] {
        let bytes = match &self.bytes {
            Bytes::Few(bytes) => &bytes[..],
            Bytes::Shared(bytes) => bytes,
        };
        bytes.get(..self.key_bytes as usize).unwrap_or_default()
    }

    /// How many bytes the key and the value have.
    pub fn bytes(&self) -> u64 {
        match &self.bytes {
            Bytes::Few(_) => self.key_bytes.into(),
            Bytes::Shared(bytes) => bytes.len() as u64,
        }
    }

    /// As `bytes`, with what a large value has in the file.
    pub fn stored_bytes(&self) -> u64 {
        self.bytes() + self.large().map_or(0, |large| large.length)
    }

    /// The value, if there was one.
    pub fn value(&self) -> Option<ValueImage<'_>> {
        let Bytes::Shared(bytes) = &self.bytes else { return None };
        let bytes = bytes.get(self.key_bytes as usize..).unwrap_or_default();
        self.kind.map(|kind| ValueImage { kind, bytes })
    }

    /// The large value that was there, if it was one.
    pub fn large(&self) -> Option<BlobReference> {
        let value = self.value().filter(|value| value.kind == ValueKind::Blob)?;
        BlobReference::decode(value.bytes)
    }

    fn seen(&self) -> Seen {
        match (self.kind, &self.bytes) {
            (Some(ValueKind::Inline), Bytes::Shared(bytes)) => {
                Seen::Value(SharedBytes::new(bytes.clone(), self.key_bytes as usize))
            }
            // Only references that were found to be sound are kept.
            (Some(ValueKind::Blob), _) => self.large().map_or(Seen::Absent, Seen::Large),
            _ => Seen::Absent,
        }
    }

    /// Of the record.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Whether both are of one record.
    pub fn is_same(&self, other: &Self) -> bool {
        self.is_of((other.tree, other.key()), other.hash)
    }

    /// Only which record it is.
    pub fn without_value(&self) -> Self {
        Self::new((self.tree, self.key()), self.hash, None)
    }

    fn is_of(&self, (tree, key): (PageId, &[u8]), hash: u64) -> bool {
        self.hash == hash && self.tree == tree && self.key() == key
    }
}

/// A change of a record.
struct Version {
    writer: Arc<Writer>,
    before: Before,
}

/// The changes of one record, the latest last; at least one.
struct Chain(SmallVec<[Version; 1]>);

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
    shards: Vec<Mutex<HashTable<Chain>>>,
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
            removed: Mutex::default(),
            removed_count: AtomicUsize::new(0),
        }
    }

    /// How many records have versions.
    pub fn records(&self) -> usize {
        self.shards.iter().map(|shard| locked(shard).len()).sum()
    }

    /// How many versions there are, and how many bytes of keys and values they have. Walks them all.
    pub fn measure(&self) -> (usize, u64) {
        let (mut count, mut bytes) = (0, 0);
        for shard in &self.shards {
            for version in locked(shard).iter().flat_map(|chain| &chain.0) {
                count += 1;
                bytes += version.before.bytes();
            }
        }
        (count, bytes)
    }

    /// What a snapshot sees of a record, whose leaf was read before and is validated afterwards.
    pub fn seen(&self, tree: PageId, key: &[u8], sight: Sight) -> Seen {
        let hash = hash_of(tree, key);
        let shard = self.lock(hash);
        let Some(Chain(versions)) = shard.find(hash, |chain| chain.is_of((tree, key), hash)) else {
            return Seen::Leaf;
        };
        let unseen = versions.iter().rev().take_while(|version| !sight.sees(&version.writer));
        unseen.last().map_or(Seen::Leaf, |version| version.before.seen())
    }

    /// Notes that a writer is about to change a record, whose leaf is latched. `value` is what the leaf holds. Returns what is
    /// kept of that, and whether this is the writer's first change of the record. `snapshots` are the times of those that are
    /// open, in ascending order.
    pub fn claim(
        &self,
        (tree, key): (PageId, &[u8]),
        (writer, time): (&Arc<Writer>, u64),
        value: Option<ValueImage<'_>>,
        is_removal: bool,
        snapshots: impl FnOnce() -> Vec<u64>,
    ) -> Result<(Before, bool), Refusal> {
        let hash = hash_of(tree, key);
        let before = Before::new((tree, key), hash, value);
        let version = || Version { writer: writer.clone(), before: before.clone() };
        let mut shard = self.lock(hash);
        let is_first = match shard.entry(hash, |chain| chain.is_of((tree, key), hash), Chain::hash) {
            Entry::Vacant(place) => {
                place.insert(Chain(SmallVec::from_buf([version()])));
                true
            }
            Entry::Occupied(mut chain) => {
                let chain = chain.get_mut();
                let is_first = chain.admit(writer, time)?;
                if is_first {
                    chain.0.push(version());
                    if chain.0.len() > 2 {
                        chain.cut(&snapshots());
                    }
                }
                is_first
            }
        };
        drop(shard);
        self.note_removed(tree, key, is_removal);
        Ok((before, is_first))
    }

    /// Whether another writer than one's own keeps a record from being changed.
    pub fn check(&self, tree: PageId, key: &[u8], sight: Sight) -> Result<(), Refusal> {
        let hash = hash_of(tree, key);
        let shard = self.lock(hash);
        let last = shard.find(hash, |chain| chain.is_of((tree, key), hash)).and_then(|chain| chain.0.last());
        match last {
            Some(last) if !sight.sees(&last.writer) => {
                Err(if last.writer.committed().is_some() { Refusal::Later } else { Refusal::Open })
            }
            _ => Ok(()),
        }
    }

    /// Forgets the change of a writer that has been undone in the leaf.
    pub fn retract(&self, record: &Before, writer: u64) {
        self.change(record, |versions| {
            if versions.last().is_some_and(|last| last.writer.id == writer) {
                versions.pop();
            }
        });
    }

    /// Forgets the changes of a record that every snapshot sees: those that were committed up to `oldest`.
    pub fn prune(&self, record: &Before, oldest: u64) {
        self.change(record, |versions| {
            let seen_by_all =
                |version: &Version| version.writer.committed().is_some_and(|time| time <= oldest);
            match versions.iter().rposition(seen_by_all) {
                Some(last) if last + 1 == versions.len() => versions.clear(),
                Some(last) => drop(versions.drain(..=last)),
                None => {}
            }
        });
    }

    /// Changes a chain, and forgets it if nothing is left of it.
    fn change(&self, record: &Before, change: impl FnOnce(&mut SmallVec<[Version; 1]>)) {
        let (tree, key, hash) = (record.tree, record.key(), record.hash);
        let mut shard = self.lock(hash);
        let Ok(mut chain) = shard.find_entry(hash, |chain| chain.is_of((tree, key), hash)) else { return };
        change(&mut chain.get_mut().0);
        if !chain.get().0.is_empty() {
            return;
        }
        chain.remove();
        shrink(&mut shard);
        // Under the shard's lock, so that a later removal of the key is not forgotten.
        if self.removed_count.load(Ordering::Relaxed) > 0 && self.lock_removed().remove(&(tree, key.into())) {
            self.removed_count.fetch_sub(1, Ordering::Release);
        }
    }

    fn note_removed(&self, tree: PageId, key: &[u8], is_removal: bool) {
        if is_removal && self.lock_removed().insert((tree, key.into())) {
            self.removed_count.fetch_add(1, Ordering::Release);
        }
    }

    /// Forgets all versions of a tree that is gone.
    pub fn forget(&self, tree: PageId) {
        for shard in &self.shards {
            locked(shard).retain(|chain| chain.first().is_none_or(|first| first.tree != tree));
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
        self.lock(hash).find(hash, |chain| chain.is_of((tree, key), hash)).map_or(0, |chain| chain.0.len())
    }

    fn lock(&self, hash: u64) -> MutexGuard<'_, HashTable<Chain>> {
        // The table within a shard uses the lowest and the highest bits.
        let index = (hash >> 32) as usize % SHARDS;
        #[expect(clippy::indexing_slicing, reason = "there are as many")]
        let shard = &self.shards[index];
        locked(shard)
    }

    fn lock_removed(&self) -> MutexGuard<'_, BTreeSet<(PageId, Box<[u8]>)>> {
        self.removed.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Chain {
    fn first(&self) -> Option<&Before> {
        self.0.first().map(|version| &version.before)
    }

    fn is_of(&self, record: (PageId, &[u8]), hash: u64) -> bool {
        self.first().is_some_and(|first| first.is_of(record, hash))
    }

    fn hash(&self) -> u64 {
        self.first().map_or(0, |first| first.hash)
    }

    /// Whether a writer, whose snapshot is of `time`, would change the record for the first time.
    fn admit(&self, writer: &Writer, time: u64) -> Result<bool, Refusal> {
        match self.0.last().map(|last| (last.writer.id, last.writer.committed())) {
            Some((id, _)) if id == writer.id => Ok(false),
            Some((_, None)) => Err(Refusal::Open),
            Some((_, Some(committed))) if committed > time => Err(Refusal::Later),
            _ => Ok(true),
        }
    }

    /// Joins changes between which no snapshot was taken: what was between them nobody sees.
    fn cut(&mut self, snapshots: &[u64]) {
        let mut index = 1;
        while let Some([older, newer]) = self.0.get(index - 1..=index) {
            let (Some(from), Some(to)) = (older.writer.committed(), newer.writer.committed()) else {
                index += 1;
                continue;
            };
            let first = snapshots.partition_point(|time| *time < from);
            if snapshots.get(first).is_some_and(|time| *time < to) {
                index += 1;
                continue;
            }
            let older = self.0.remove(index - 1);
            if let Some(newer) = self.0.get_mut(index - 1) {
                newer.before = older.before;
            }
        }
    }
}

/// Gives up room that a large transaction needed: a table that is mostly empty costs cache misses.
fn shrink(shard: &mut HashTable<Chain>) {
    /// Not worth it below.
    const LEAST: usize = 14;
    if shard.capacity() > LEAST && shard.len() * 16 < shard.capacity() {
        shard.shrink_to(LEAST, Chain::hash);
    }
}

fn locked(shard: &Mutex<HashTable<Chain>>) -> MutexGuard<'_, HashTable<Chain>> {
    shard.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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
