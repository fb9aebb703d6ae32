//! A part of the table of versions, which has its own lock, and when it is swept.
//!
//! A version is *dead* when every snapshot sees the commit of its writer, and every later one will. The dead versions
//! of small transactions are not looked up one by one to be removed. A claim that finds the versions of its record dead
//! takes their place. A shard that has twice as many chains as after its last *sweep* is swept by the claim that adds
//! the next one. So a shard has no more chains than that, few claims pay for others, and what they touch stays in the
//! processor's cache.

mod changed;

pub(crate) use changed::Changed;

use crate::chain::Chain;
use crate::lock_order::{OrderedGuard, OrderedMutex, rank};
use hashbrown::{HashTable, hash_table::Entry};
use std::sync::Arc;
use vellum_base::PageId;
use vellum_base::primitive::{AtomicUsize, Ordering};

/// How many parts the table has.
pub(crate) const SHARDS: usize = 128;

/// The shard of the records with this hash.
#[inline]
pub(crate) fn shard_of(hash: u64) -> usize {
    // The hash table within a shard uses the lowest and the highest bits.
    (hash >> 32) as usize % SHARDS
}

/// A shard with fewer chains is not swept.
const FEW_CHAINS: usize = if cfg!(test) { 3 } else { 14 };

/// A part of the table of versions.
// Threads lock different ones at the same time.
#[repr(align(64))]
#[derive(Default)]
pub(crate) struct Shard {
    chains: OrderedMutex<Chains, { rank::SHARD }>,
    /// About how much memory the chains take; changed under their lock.
    bytes: AtomicUsize,
}

/// The chains of a shard.
pub(crate) struct Chains {
    table: HashTable<Chain>,
    /// It is swept when it has this many chains.
    sweep_at: usize,
    /// Where to note which records had versions that have been removed, for covered snapshots.
    pub changed: Option<Arc<Changed>>,
}

impl Default for Chains {
    fn default() -> Self {
        Self { table: HashTable::new(), sweep_at: FEW_CHAINS, changed: None }
    }
}

impl Shard {
    pub fn lock(&self) -> OrderedGuard<'_, Chains> {
        self.chains.lock()
    }

    /// Locks it beside other shards, those of lesser numbers first.
    pub fn lock_in_turn(&self) -> OrderedGuard<'_, Chains> {
        self.chains.lock_in_turn()
    }

    pub fn bytes(&self) -> usize {
        // Relaxed: readers need no more than an estimate.
        self.bytes.load(Ordering::Relaxed)
    }

    /// How many bytes the chains took, which have been taken out.
    pub fn take_bytes(&self) -> usize {
        // Relaxed: as above.
        self.bytes.swap(0, Ordering::Relaxed)
    }

    pub fn grow(&self, bytes: usize) {
        // Relaxed: the chains are locked, so no other thread changes it.
        self.bytes.store(self.bytes().saturating_add(bytes), Ordering::Relaxed);
    }

    pub fn shrink(&self, bytes: usize) {
        self.bytes.store(self.bytes().saturating_sub(bytes), Ordering::Relaxed);
    }
}

impl Chains {
    /// Takes all chains out. From now on `changed` notes the records whose versions are removed.
    pub fn take(&mut self, changed: Option<Arc<Changed>>) -> HashTable<Chain> {
        std::mem::replace(self, Self { changed, ..Self::default() }).table
    }

    /// Notes that versions of a record are removed, some of them of commits.
    pub fn note_changed(&self, hash: u64) {
        if let Some(changed) = &self.changed {
            changed.note(hash);
        }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Chain> {
        self.table.iter()
    }

    pub fn find(&self, (tree, key): (PageId, &[u8]), hash: u64) -> Option<&Chain> {
        self.table.find(hash, |chain| chain.is_of((tree, key), hash))
    }

    /// The entry of the chain for which `is_it` is true.
    pub fn entry(&mut self, hash: u64, is_it: impl FnMut(&Chain) -> bool) -> Entry<'_, Chain> {
        self.table.entry(hash, is_it, Chain::hash)
    }

    /// Whether it has grown so much that it must be swept before a chain is added.
    pub fn is_to_be_swept(&self) -> bool {
        self.table.len() >= self.sweep_at
    }

    /// Keeps the chains for which `stays`, with the versions that it leaves, none of which is dead.
    pub fn sweep(&mut self, stays: impl FnMut(&mut Chain) -> bool) {
        self.table.retain(stays);
        self.sweep_at = usize::MAX;
        self.give_up_room();
    }

    /// Keeps the chains for which `stays`.
    pub fn retain(&mut self, stays: impl FnMut(&mut Chain) -> bool) {
        self.table.retain(stays);
        self.give_up_room();
    }

    /// Gives up room that a large transaction needed, after chains have been removed. A table that is mostly empty
    /// costs cache misses.
    pub fn give_up_room(&mut self) {
        let table = &mut self.table;
        if table.capacity() > FEW_CHAINS && table.len() * 16 < table.capacity() {
            table.shrink_to(FEW_CHAINS, Chain::hash);
        }
        self.sweep_at = self.sweep_at.min((table.len() * 2).max(FEW_CHAINS));
    }
}
