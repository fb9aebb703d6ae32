//! Earlier versions of records that were changed lately, for snapshots that must not see the changes.
//!
//! A leaf holds the newest version of each record, by whatever transaction. Before a transaction replaces a value, it
//! keeps the before-image with its own number, under the leaf's latch: in the table here or, while few transactions are
//! open, only in its [undo buffer](crate::undo_buffers), which is searched before the table. A reader that finds a leaf
//! changed since its snapshot looks here, by key, and then checks that the leaf has not changed meanwhile. A leaf with
//! an older LSN, as nearly all have, needs no such lookup. Records carry no header, and nothing of this is logged or
//! survives a crash.
//!
//! Versions are dead as soon as no snapshot needs them: when the transaction ends, if no other is open, otherwise when
//! those have ended that were open then. Large transactions take theirs out then; small ones leave them to later
//! claims: see [`shard`](crate::shard). A chain is also cut while it grows, so that it has about twice as many entries as
//! there are snapshots, at most (Böttcher, Leis, Neumann, Kemper: *Scalable Garbage Collection for In-Memory MVCC Systems*, VLDB
//! 2020).
//!
//! What memory has no room for goes to a file: see [`generations`](crate::generations). Old snapshots are served from
//! there alone: they are *covered*, and no longer count when it is decided which versions are needed.
//!
//! # Removed records
//! A removed record is no longer in its leaf. For scans, the keys of those that have versions are kept in order: see
//! [`removed_keys`](crate::removed_keys).

mod claiming;
mod entering;
mod failure;
mod moving;
mod searching;

pub(crate) use moving::Turn;
pub(crate) use searching::Target;

use crate::{
    before::{Before, BeforeImage, hash_of},
    chain::{Chain, Version},
    generations::{Generations, Oldest},
    leftovers::Leftovers,
    lock_order::{OrderedGuard, OrderedMutex, rank},
    plant::{Bug, planted},
    removed_keys::RemovedKeys,
    removed_range::RemovedRange,
    shard::{Chains, SHARDS, Shard, shard_of},
    spill::SpillFile,
    undo_buffers::UndoBuffers,
    writer::{Sight, State, Writer},
};
use failure::Failure;
use hashbrown::hash_table::Entry;
use smallvec::SmallVec;
use std::{ops::Bound, sync::Arc};
use vellum_access::{Direction, Removed, Seen};
use vellum_base::primitive::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use vellum_base::{Apart, PageId};
use vellum_pool::{KeptPages, PoolError};
use vellum_vm::Directory;

/// Why a record cannot be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// An open transaction has changed it.
    Open,
    /// A transaction that was committed after the snapshot was taken has changed it.
    Later,
}

/// All earlier versions.
pub(crate) struct Versions {
    shards: Vec<Shard>,
    /// The keys of removed records that have versions.
    removed: OrderedMutex<RemovedKeys, { rank::REMOVED }>,
    removed_count: AtomicUsize,
    /// Where versions go for which memory has no room.
    spill: Spill,
    generations: Arc<Generations>,
    /// Locked by the thread that moves them there; the last failure, until that has succeeded.
    turn: OrderedMutex<Option<Failure>, { rank::TURN }>,
    /// Whether they take so much memory that nothing may be added, and the file fails.
    is_room_exceeded: AtomicBool,
    /// The commits up to this one are seen by every snapshot that is not covered, and will be by every later one.
    seen_by_all: Apart<AtomicU64>,
    /// Versions that are not in the table.
    buffers: UndoBuffers,
    /// Locked by the thread that enters them in the table.
    entering: OrderedMutex<(), { rank::ENTERING }>,
    /// Whether the table may have versions.
    is_used: AtomicBool,
    /// Snapshots of this time or a later one see everything that is in the table.
    in_table: Apart<AtomicU64>,
}

/// Where versions and undo go for which memory has no room.
pub(crate) struct Spill {
    pub file: SpillFile,
    /// How many bytes all versions may take in memory.
    pub bytes: usize,
}

impl Spill {
    /// Versions may take `bytes` in memory, and as many as they need if there is no directory for the spill file.
    pub fn new(directory: Option<Arc<dyn Directory>>, bytes: u64) -> Self {
        /// Enough for some inner pages and many leaves that are being written.
        const POOL_BYTES_MIN: u64 = 1 << 20;
        Self {
            bytes: directory.as_ref().and_then(|_| usize::try_from(bytes).ok()).unwrap_or(usize::MAX),
            file: SpillFile::new(directory, (bytes / 4).max(POOL_BYTES_MIN)),
        }
    }

    /// How many bytes of undo a transaction may have in memory.
    pub fn bytes_each(&self) -> usize {
        self.bytes / 8
    }
}

impl Versions {
    pub fn new(spill: Spill, kept: Arc<KeptPages>) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            removed: OrderedMutex::default(),
            removed_count: AtomicUsize::new(0),
            spill,
            generations: Generations::new(kept),
            turn: OrderedMutex::default(),
            is_room_exceeded: AtomicBool::new(false),
            seen_by_all: Apart(AtomicU64::new(0)),
            buffers: UndoBuffers::default(),
            entering: OrderedMutex::default(),
            is_used: AtomicBool::new(false),
            in_table: Apart(AtomicU64::new(0)),
        }
    }

    /// The undo buffers that are searched where they are.
    pub fn buffers(&self) -> &UndoBuffers {
        &self.buffers
    }

    /// Whether versions that a snapshot of this time needs may exist outside undo buffers. Called after the buffers have
    /// been searched.
    #[inline]
    fn has_others(&self, time: u64) -> bool {
        // Acquire: pairs with `note_in_table`. What is no longer in a buffer was entered before.
        self.in_table.0.load(Ordering::Acquire) > time || !self.generations.is_empty()
    }

    /// From now on snapshots of this time or a later one see everything that is in the table. Called before anything is
    /// entered that earlier ones do not see, with the transactions locked.
    pub fn note_in_table(&self, seen_from: u64) {
        // Relaxed: the lock orders it after other stores. Most do not change it, and leave other threads the line.
        if self.in_table.0.load(Ordering::Relaxed) != seen_from {
            // Release: pairs with `has_others`.
            self.in_table.0.store(seen_from, Ordering::Release);
        }
    }

    /// Notes that a chain has been added to a shard, which is locked.
    #[inline]
    fn note_used(&self) {
        // Relaxed: it is cleared while all shards are locked. A thread that finds it set leaves others the line.
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
    }

    /// From now on the commits up to this one are seen by every snapshot that is not covered, and will be by every
    /// later one. Called while no snapshot can be taken.
    pub fn settle(&self, oldest: u64) {
        // Release: a thread that takes a version for dead also finds the snapshots ended that needed it.
        self.seen_by_all.0.store(oldest, Ordering::Release);
    }

    /// Every snapshot that is not covered sees the commits up to this one.
    fn seen_by_all(&self) -> u64 {
        // Acquire: pairs with `settle`.
        let oldest = self.seen_by_all.0.load(Ordering::Acquire);
        if planted(Bug::DeadTooEarly) { u64::MAX } else { oldest }
    }

    pub fn spill(&self) -> &Spill {
        &self.spill
    }

    /// Versions for which memory has no room, and what covered snapshots see.
    pub fn generations(&self) -> &Generations {
        &self.generations
    }

    /// How many records have versions, dead ones included: see [`sweep_all`](Self::sweep_all).
    pub fn records(&self) -> usize {
        let in_memory: usize = self.shards.iter().map(|shard| shard.lock().len()).sum();
        in_memory + self.generations.records()
    }

    /// How many versions there are in memory, dead ones included, and how many bytes of keys and values they have. Walks them all.
    pub fn measure(&self) -> (usize, u64) {
        let (mut count, mut bytes) = (0, 0);
        for shard in &self.shards {
            for version in shard.lock().iter().flat_map(|chain| &chain.versions) {
                count += 1;
                bytes += version.before.bytes();
            }
        }
        (count, bytes)
    }

    /// What a snapshot sees of a record, whose leaf was read before this call and is validated after it.
    ///
    /// # Errors
    /// If the spill file fails.
    pub fn seen(&self, tree: PageId, key: &[u8], sight: Sight) -> Result<Seen, PoolError> {
        let hash = hash_of(tree, key);
        let in_buffers = self.seen_in_buffers((tree, key), hash, sight);
        if !self.has_others(sight.time) {
            return Ok(in_buffers);
        }
        let shard = self.lock(hash);
        if self.generations.covers(sight.own) {
            let is_own = shard.find((tree, key), hash).is_some_and(|chain| chain.has(sight.own));
            drop(shard);
            return if is_own {
                Ok(Seen::Leaf)
            } else {
                self.generations.seen_by_covered((tree, key, hash), sight)
            };
        }
        let mut oldest = None;
        if let Some(Chain { versions, .. }) = shard.find((tree, key), hash) {
            for version in versions.iter().rev() {
                match version.writer.state() {
                    State::RolledBack(_) => {}
                    state if sight.sees(version.writer.id, state) => {
                        return Ok(oldest.map_or(in_buffers, Before::seen));
                    }
                    _ => oldest = Some(&version.before),
                }
            }
        }
        let oldest = oldest.map_or(in_buffers, Before::seen);
        drop(shard);
        if !self.generations.may_have(sight.time) {
            return Ok(oldest);
        }
        self.generations.seen((tree, key, hash), sight, oldest)
    }

    /// Forgets a writer's change that has been undone in the leaf.
    pub fn retract(&self, record: BeforeImage<'_>, writer: u64) {
        self.change(record, |chain| {
            // Another writer may have claimed the record as soon as this one counted as rolled back.
            (false, chain.retract(writer))
        });
    }

    /// Forgets a claim that has come to nothing, unless its version is on its way to the file, or there. Returns whether it
    /// was forgotten.
    pub fn retract_claim(&self, record: BeforeImage<'_>, writer: u64) -> bool {
        let mut is_retracted = false;
        self.change(record, |chain| {
            // The shard is locked: a thread that moves versions has entered a generation before it copies them.
            is_retracted = self.generations.is_empty();
            (false, if is_retracted { chain.retract(writer) } else { 0 })
        });
        is_retracted
    }

    /// Drops generations that no snapshot needs.
    pub fn prune_spilled(&self, oldest: &Oldest) {
        if self.generations.prune(oldest) {
            self.note_no_more();
        }
    }

    /// Forgets what commits have left behind, as far as all snapshots that are not covered see it: up to `oldest`.
    pub fn prune_all(&self, left: &Leftovers, oldest: u64) {
        if left.is_entered() {
            // If they cannot be read, their versions stay in memory, and every snapshot sees them.
            let _ = left.for_each_to_prune(|record| self.prune(record, oldest));
        }
    }

    /// Forgets the changes of a record that all snapshots that are not covered see: those committed up to `oldest`.
    pub fn prune(&self, record: BeforeImage<'_>, oldest: u64) {
        self.change(record, |chain| {
            let lost = chain.drop_dead(oldest);
            (lost > 0, lost)
        });
    }

    /// Removes all dead versions.
    pub fn sweep_all(&self) {
        for shard in &self.shards {
            self.sweep(shard, &mut shard.lock(), self.seen_by_all());
        }
    }

    /// Removes the dead versions of a shard.
    #[cold]
    fn sweep(&self, shard: &Shard, chains: &mut Chains, seen_by_all: u64) {
        let (are_noted, mut changed) = (chains.changed.is_some(), SmallVec::<[u64; 64]>::new());
        chains.sweep(|chain| {
            let hash = chain.hash();
            let record = chain.first().filter(|_| chain.is_removed).cloned();
            let lost = chain.drop_dead(seen_by_all);
            if lost == 0 {
                return true;
            }
            changed.extend(are_noted.then_some(hash));
            shard.shrink(lost);
            if !chain.versions.is_empty() {
                return true;
            }
            shard.shrink(Chain::WEIGHT);
            if let Some(record) = record {
                // Under the shard's lock: see `change`.
                self.forget_removed(record.image());
            }
            false
        });
        // All at a time: most are in memory, and the processor fetches several lines at once if little is between.
        changed.into_iter().for_each(|hash| chains.note_changed(hash));
    }

    /// Changes a chain; removes it if it is empty then. `change` says whether commits go that a covered snapshot may
    /// not see, and what weight the chain loses.
    fn change(&self, record: BeforeImage<'_>, change: impl FnOnce(&mut Chain) -> (bool, usize)) {
        let (tree, key, hash) = (record.tree, record.key(), record.hash());
        let shard = self.shard(hash);
        let mut chains = shard.lock();
        let Entry::Occupied(mut chain) = chains.entry(tree, hash, |chain| chain.is_of((tree, key), hash))
        else {
            return;
        };
        let (commits_go, lost) = change(chain.get_mut());
        shard.shrink(lost);
        let is_forgotten = chain.get().versions.is_empty() && chain.get().is_removed;
        if chain.get().versions.is_empty() {
            shard.shrink(Chain::WEIGHT);
            chain.remove();
            chains.give_up_room();
        }
        if commits_go {
            chains.note_changed(hash);
        }
        // Under the shard's lock, so that a later removal of the key is not forgotten.
        if is_forgotten {
            self.forget_removed(record);
        }
    }

    fn forget_removed(&self, record: BeforeImage<'_>) {
        let mut removed = self.lock_removed();
        removed.remove(record.tree, record.key());
        self.removed_count.store(removed.len(), Ordering::Release);
    }

    /// Keeps the key of a chain whose record its last writer is about to remove. Its shard is locked, so key and chain go
    /// together.
    fn note_removed(&self, chain: &mut Chain, writer: &Arc<Writer>) {
        chain.is_removed = true;
        if let Some(record) = chain.first() {
            let mut removed = self.lock_removed();
            removed.insert(record.tree, record.key(), writer);
            self.removed_count.store(removed.len(), Ordering::Release);
        }
    }

    /// Notes that a leaf lacks a record that a writer has claimed, as it did before.
    pub fn note_absent(&self, record: BeforeImage<'_>, writer: &Arc<Writer>) {
        let hash = record.hash();
        let mut chains = self.lock(hash);
        if let Entry::Occupied(mut chain) = chains.entry(record.tree, hash, |chain| chain.is_same(record)) {
            self.note_removed(chain.get_mut(), writer);
        }
    }

    /// Forgets all versions of a tree that is gone. Those in undo buffers have been entered in the table.
    pub fn forget(&self, tree: PageId) {
        for shard in &self.shards {
            shard.lock().forget(tree, |chain| shard.shrink(chain.weight()));
        }
        let mut removed = self.lock_removed();
        removed.forget(tree);
        self.removed_count.store(removed.len(), Ordering::Release);
        drop(removed);
        // After memory: a cover that has taken versions out of it meanwhile is among them.
        self.generations.forget(tree);
    }

    /// Whether scans by a snapshot must look for records that are no longer in a leaf.
    pub fn has_removed(&self, sight: Sight) -> bool {
        self.buffers.has_removals(sight.time)
            || self.any_removed()
            || self.generations.has_removed(sight)
            || self.generations.covers(sight.own)
    }

    fn any_removed(&self) -> bool {
        // Acquire: pairs with the removal, which happens under the leaf's latch.
        self.removed_count.load(Ordering::Acquire) > 0
    }

    /// Returns the keys of a tree within bounds that come first in a direction: those of all records that a snapshot may see
    /// and that are no longer in a leaf, and perhaps others. A portion says in which direction, and how many of each place
    /// where they are kept.
    ///
    /// # Errors
    /// As for [`seen`](Self::seen).
    pub fn removed(
        &self,
        sight: Sight,
        tree: PageId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        portion: (Direction, usize),
    ) -> Result<Removed, PoolError> {
        let mut range = RemovedRange::new(bounds, portion);
        // Undo buffers before memory, memory before the file: what the first forgets was in the next before.
        self.buffers.for_each_removed(tree, sight, |key| range.add(key));
        range.begin();
        self.lock_removed().add_unseen(sight, tree, &mut range);
        let is_covered = self.generations.covers(sight.own);
        if is_covered {
            self.generations.add_covered(sight.own, tree, &mut range)?;
        }
        if is_covered || self.generations.has_removed(sight) {
            self.generations.add_removed(sight, tree, &mut range)?;
        }
        Ok(range.finish())
    }

    /// How many versions a record has.
    #[cfg(test)]
    pub fn length(&self, tree: PageId, key: &[u8]) -> usize {
        let hash = hash_of(tree, key);
        self.lock(hash).find((tree, key), hash).map_or(0, |chain| chain.versions.len())
    }

    fn lock(&self, hash: u64) -> OrderedGuard<'_, Chains> {
        self.shard(hash).lock()
    }

    fn shard(&self, hash: u64) -> &Shard {
        #[expect(clippy::indexing_slicing, reason = "there are as many")]
        let shard = &self.shards[shard_of(hash)];
        shard
    }

    fn lock_removed(&self) -> OrderedGuard<'_, RemovedKeys> {
        self.removed.lock()
    }
}
