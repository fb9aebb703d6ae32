//! Versions for which memory has no room.
//!
//! All versions go together, into the tree of a [`Generation`]; what is changed after that begins in memory again. So the chain of
//! a record is what memory has of it, and then what the generations have, the latest first. A generation is dropped as a whole,
//! once no snapshot needs any of it. It takes more as long as the snapshot is the same that holds back most, because it goes when
//! that ends; after that another is begun.

use crate::{
    before::Before,
    plant::{Bug, planted},
    spill::{SpillFile, SpillTree, damaged, put_value, take_value},
    writer::{Sight, State, Writer},
};
use smallvec::SmallVec;
use std::{
    collections::BTreeMap,
    ops::{Bound, RangeBounds as _},
    sync::{Arc, PoisonError},
};
use vellum_access::{BlobReference, Seen, SharedBytes, ValueImage, node::ValueKind};
use vellum_base::PageId;
use vellum_base::primitive::{AtomicBool, Mutex, MutexGuard, Ordering, RwLock};
use vellum_pool::PoolError;

/// The longest key of a tree.
const KEY_BYTES_MAX: usize = vellum_access::node::MAX_KEY_BYTES;
/// Of a longer key of a record only so much is in the key of its chain, and its hash.
const PREFIX_BYTES: usize = KEY_BYTES_MAX - 16;

/// Versions that went to the file together, or while the same snapshot held back most.
pub(crate) struct Generation {
    tree: SpillTree,
    /// The oldest snapshot when it was begun.
    oldest: u64,
    contents: Mutex<Contents>,
    has_removed: AtomicBool,
}

#[derive(Default)]
struct Contents {
    /// It is taking versions, so it is needed.
    is_taking: bool,
    /// The last commit of which there are versions.
    latest: u64,
    /// Those that were open when versions of theirs came here.
    writers: BTreeMap<u64, Arc<Writer>>,
    chains: usize,
}

/// The versions of a record on their way to the file, the latest last.
pub(crate) struct Chain {
    pub tree: PageId,
    pub key: Box<[u8]>,
    pub hash: u64,
    /// Whether the record was removed.
    pub is_removed: bool,
    pub versions: SmallVec<[(Arc<Writer>, State, Before); 1]>,
}

/// A version as it is in the file.
struct Version<'v> {
    writer: u64,
    /// Zero if that is to be asked.
    committed: u64,
    kind: Option<ValueKind>,
    value: &'v [u8],
}

/// All generations.
#[derive(Default)]
pub(crate) struct Generations {
    /// The latest last.
    all: RwLock<SmallVec<[Arc<Generation>; 2]>>,
    is_any: AtomicBool,
}

impl Generations {
    /// Whether there is nothing in the file.
    #[inline]
    pub fn is_empty(&self) -> bool {
        // Acquire: what is not in memory any more was entered here before.
        !self.is_any.load(Ordering::Acquire)
    }

    /// The generation that takes more, while `oldest` is the oldest snapshot. It stays until it [has](Generation::rest).
    pub fn current(&self, file: &SpillFile, oldest: u64) -> Result<Arc<Generation>, PoolError> {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = all.last().filter(|last| last.oldest == oldest) {
            lock(&last.contents).is_taking = true;
            return Ok(last.clone());
        }
        let generation = Arc::new(Generation {
            tree: SpillTree::create(file)?,
            oldest,
            contents: Mutex::new(Contents { is_taking: true, ..Contents::default() }),
            has_removed: AtomicBool::new(false),
        });
        all.push(generation.clone());
        self.is_any.store(true, Ordering::Release);
        Ok(generation)
    }

    fn all(&self) -> SmallVec<[Arc<Generation>; 2]> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Drops the generations of which every snapshot sees everything: all commits up to `oldest`.
    pub fn prune(&self, oldest: u64) {
        if self.is_empty() {
            return;
        }
        let mut gone = Vec::new();
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|generation| {
            let is_needed = generation.is_needed(oldest) && !planted(Bug::SpilledDroppedEarly);
            if !is_needed {
                gone.push(generation.clone());
            }
            is_needed
        });
        self.is_any.store(!all.is_empty(), Ordering::Release);
        drop(all);
        // Their trees are freed here, or by a reader that still has one.
        drop(gone);
    }

    /// What is seen of a record of which memory has no version that is seen: `newer` is the oldest that it has, or what the leaf
    /// holds.
    pub fn seen(
        &self,
        (tree, key, hash): (PageId, &[u8], u64),
        sight: Sight,
        newer: Seen,
    ) -> Result<Seen, PoolError> {
        let mut oldest = newer;
        for generation in self.all().iter().rev() {
            let Some(chain) = generation.get(tree, key, hash)? else { continue };
            for version in versions(&chain)?.iter().rev() {
                match generation.state(version) {
                    State::RolledBack => {}
                    state if sight.sees(version.writer, state) => return Ok(oldest),
                    _ => oldest = version.seen()?,
                }
            }
        }
        Ok(oldest)
    }

    /// The writer of the last version of a record, and how that stands.
    pub fn last(&self, tree: PageId, key: &[u8], hash: u64) -> Result<Option<(u64, State)>, PoolError> {
        for generation in self.all().iter().rev() {
            let Some(chain) = generation.get(tree, key, hash)? else { continue };
            for version in versions(&chain)?.iter().rev() {
                match generation.state(version) {
                    State::RolledBack => {}
                    state => return Ok(Some((version.writer, state))),
                }
            }
        }
        Ok(None)
    }

    /// Whether there are removed records.
    pub fn has_removed(&self) -> bool {
        !self.is_empty() && self.all().iter().any(|generation| generation.has_removed.load(Ordering::Acquire))
    }

    /// Adds the keys of a tree within bounds of records that were removed.
    pub fn add_removed(
        &self,
        tree: PageId,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        keys: &mut Vec<Box<[u8]>>,
    ) -> Result<(), PoolError> {
        for generation in
            self.all().iter().filter(|generation| generation.has_removed.load(Ordering::Acquire))
        {
            generation.add_removed(tree, (lower, upper), keys)?;
        }
        Ok(())
    }

    /// How many records have versions in the file; one in several generations counts several times.
    pub fn records(&self) -> usize {
        self.all().iter().map(|generation| lock(&generation.contents).chains).sum()
    }
}

impl Generation {
    fn is_needed(&self, oldest: u64) -> bool {
        let contents = lock(&self.contents);
        contents.is_taking
            || contents.latest > oldest
            || contents.writers.values().any(|writer| match writer.state() {
                State::Open => true,
                State::Committed(time) => time > oldest,
                State::RolledBack => false,
            })
    }

    /// It takes no more for now.
    pub fn rest(&self) {
        lock(&self.contents).is_taking = false;
    }

    /// Takes the versions of some records. `snapshots` are the times of those that are open, in ascending order, and `now` the last
    /// commit that the youngest of them may see.
    pub fn take(&self, chains: &[Chain], (snapshots, now): (&[u64], u64)) -> Result<(), PoolError> {
        let mut contents = lock(&self.contents);
        for (writer, state, _) in chains.iter().flat_map(|chain| &chain.versions) {
            match state {
                State::Committed(time) => contents.latest = contents.latest.max(*time),
                _ => _ = contents.writers.insert(writer.id, writer.clone()),
            }
        }
        if chains.iter().any(|chain| chain.is_removed) {
            // Release: before the keys are forgotten in memory.
            self.has_removed.store(true, Ordering::Release);
        }
        drop(contents);
        for chain in chains {
            let place = place_of(chain.tree, &chain.key, chain.hash);
            let former = self.get(chain.tree, &chain.key, chain.hash)?;
            let mut all: SmallVec<[Version<'_>; 4]> = SmallVec::new();
            let was_removed = match &former {
                Some(former) => {
                    all.extend(versions(former)?);
                    former.first() == Some(&1)
                }
                None => false,
            };
            for (writer, state, before) in &chain.versions {
                // Of a writer whose first change of the record is there, a later one tells nothing.
                if all.iter().all(|version| version.writer != writer.id) {
                    all.push(Version {
                        writer: writer.id,
                        committed: if let State::Committed(time) = state { *time } else { 0 },
                        kind: before.value().map(|value| value.kind),
                        value: before.value().map_or(&[], |value| value.bytes),
                    });
                }
            }
            self.cut(&mut all, (snapshots, now));
            let is_removed = (chain.is_removed || was_removed) && !planted(Bug::SpilledRemovalForgotten);
            let mut entry = vec![u8::from(is_removed)];
            let whole = if place.len() < KEY_BYTES_MAX { &[][..] } else { &chain.key };
            entry.extend_from_slice(&(whole.len() as u16).to_le_bytes());
            entry.extend_from_slice(whole);
            all.iter().for_each(|version| version.encode(&mut entry));
            self.tree.put(&place, &entry)?;
            if former.is_none() {
                lock(&self.contents).chains += 1;
            }
        }
        Ok(())
    }

    /// Joins versions between which no snapshot was taken, and forgets those that do not count.
    fn cut(&self, versions: &mut SmallVec<[Version<'_>; 4]>, (snapshots, now): (&[u64], u64)) {
        versions.retain(|version| self.state(version) != State::RolledBack);
        let mut index = 1;
        while let Some([older, newer]) = versions.get(index - 1..=index) {
            let is_one = match (self.state(older), self.state(newer)) {
                // What was committed later than the snapshots were looked at may have one before it that is not known.
                (State::Committed(from), State::Committed(to)) if to <= now => {
                    let first = snapshots.partition_point(|time| *time < from);
                    snapshots.get(first).is_none_or(|time| *time >= to)
                }
                _ => false,
            };
            if !is_one {
                index += 1;
                continue;
            }
            let older = versions.remove(index - 1);
            if let Some(newer) = versions.get_mut(index - 1) {
                (newer.kind, newer.value) = (older.kind, older.value);
            }
        }
    }

    fn get(&self, tree: PageId, key: &[u8], hash: u64) -> Result<Option<Vec<u8>>, PoolError> {
        let chain = self.tree.get(&place_of(tree, key, hash))?;
        if let Some(chain) = &chain
            && whole_key(chain).is_none_or(|whole| !whole.is_empty() && whole != key)
        {
            return Err(damaged());
        }
        Ok(chain)
    }

    fn state(&self, version: &Version<'_>) -> State {
        match version.committed {
            0 => {
                let contents = lock(&self.contents);
                contents.writers.get(&version.writer).map_or(State::RolledBack, |writer| writer.state())
            }
            time => State::Committed(time),
        }
    }

    fn add_removed(
        &self,
        tree: PageId,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        keys: &mut Vec<Box<[u8]>>,
    ) -> Result<(), PoolError> {
        let bounds = (lower, upper);
        // Keys that are cut off are ordered by their beginnings only, so some are looked at beyond the bounds.
        let lower = match lower {
            Bound::Included(key) | Bound::Excluded(key) => place_of_prefix(tree, key),
            Bound::Unbounded => tree.0.to_be_bytes().to_vec(),
        };
        let upper = match upper {
            Bound::Included(key) | Bound::Excluded(key) => {
                let mut place = place_of_prefix(tree, key);
                if place.len() == 8 + PREFIX_BYTES {
                    place.extend_from_slice(&[0xff; 8]);
                }
                Bound::Included(place)
            }
            Bound::Unbounded => Bound::Excluded((tree.0 + 1).to_be_bytes().to_vec()),
        };
        let upper = match &upper {
            Bound::Included(upper) => Bound::Included(&upper[..]),
            Bound::Excluded(upper) => Bound::Excluded(&upper[..]),
            Bound::Unbounded => Bound::Unbounded,
        };
        self.tree.scan(Bound::Included(&lower), upper, |place, chain| {
            if chain.first() == Some(&1)
                && let Some(whole) = whole_key(chain)
            {
                let key = if whole.is_empty() { place.get(8..).unwrap_or_default() } else { whole };
                if bounds.contains(key) {
                    keys.push(key.into());
                }
            }
            Some(())
        })
    }
}

/// The key of a chain in a generation's tree: the tree's root, then the record's key, or the beginning of a long one and its hash.
fn place_of(tree: PageId, key: &[u8], hash: u64) -> Vec<u8> {
    let mut place = place_of_prefix(tree, key);
    if key.len() >= PREFIX_BYTES {
        place.extend_from_slice(&hash.to_be_bytes());
    }
    place
}

fn place_of_prefix(tree: PageId, key: &[u8]) -> Vec<u8> {
    let mut place = Vec::with_capacity(16 + key.len());
    place.extend_from_slice(&tree.0.to_be_bytes());
    place.extend_from_slice(key.get(..PREFIX_BYTES).unwrap_or(key));
    place
}

/// The whole key of a chain's record; empty if that is in the key of the chain.
fn whole_key(chain: &[u8]) -> Option<&[u8]> {
    let (length, rest) = chain.get(1..)?.split_first_chunk()?;
    rest.get(..u16::from_le_bytes(*length).into())
}

/// The versions of a chain.
fn versions(chain: &[u8]) -> Result<SmallVec<[Version<'_>; 4]>, PoolError> {
    let decode = || {
        let mut rest = chain.get(3 + whole_key(chain)?.len()..)?;
        let mut versions = SmallVec::new();
        while !rest.is_empty() {
            let (writer, after) = rest.split_first_chunk()?;
            let (committed, after) = after.split_first_chunk()?;
            let (kind, value, after) = take_value(after)?;
            let (writer, committed) = (u64::from_le_bytes(*writer), u64::from_le_bytes(*committed));
            versions.push(Version { writer, committed, kind, value });
            rest = after;
        }
        Some(versions)
    };
    decode().ok_or_else(damaged)
}

impl Version<'_> {
    fn encode(&self, entry: &mut Vec<u8>) {
        entry.extend_from_slice(&self.writer.to_le_bytes());
        entry.extend_from_slice(&self.committed.to_le_bytes());
        put_value(entry, self.kind.map(|kind| ValueImage { kind, bytes: self.value }));
    }

    fn seen(&self) -> Result<Seen, PoolError> {
        Ok(match self.kind {
            None => Seen::Absent,
            Some(ValueKind::Inline) => Seen::Value(SharedBytes::new(self.value.into(), 0..self.value.len())),
            Some(ValueKind::Blob) => Seen::Large(BlobReference::decode(self.value).ok_or_else(damaged)?),
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
