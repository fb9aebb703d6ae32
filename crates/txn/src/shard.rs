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
    /// The trees of their records, and perhaps others.
    trees: Trees,
    /// It is swept when it has this many chains.
    sweep_at: usize,
    /// Where to note which records had versions that have been removed, for covered snapshots.
    pub changed: Option<Arc<Changed>>,
}

/// A set of trees, one bit for each 64th of them. So a tree that is gone need not be looked for in each shard, chain by
/// chain, while a large transaction has changed other ones.
#[derive(Clone, Copy, Default)]
struct Trees(u64);

impl Trees {
    fn of(tree: PageId) -> Self {
        // Roots that follow each other have different bits.
        Self(1 << (tree.0 % 64))
    }

    fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }

    fn may_have(self, tree: PageId) -> bool {
        self.0 & Self::of(tree).0 != 0
    }
}

impl Default for Chains {
    fn default() -> Self {
        Self { table: HashTable::new(), trees: Trees::default(), sweep_at: FEW_CHAINS, changed: None }
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

    /// The entry of the chain of a record of this tree for which `is_it` is true.
    pub fn entry(&mut self, tree: PageId, hash: u64, is_it: impl FnMut(&Chain) -> bool) -> Entry<'_, Chain> {
        // A chain may be entered there.
        self.trees.add(Trees::of(tree));
        self.table.entry(hash, is_it, Chain::hash)
    }

    /// Whether it has grown so much that it must be swept before a chain is added.
    pub fn is_to_be_swept(&self) -> bool {
        self.table.len() >= self.sweep_at
    }

    /// Keeps the chains for which `stays`, with the versions that it leaves, none of which is dead.
    pub fn sweep(&mut self, stays: impl FnMut(&mut Chain) -> bool) {
        self.retain(stays);
        self.sweep_at = usize::MAX;
        self.give_up_room();
    }

    /// Removes the chains of records of a tree. Each is shown before it goes.
    pub fn forget(&mut self, tree: PageId, mut show: impl FnMut(&Chain)) {
        if self.trees.may_have(tree) {
            self.retain(|chain| {
                let is_kept = chain.tree() != Some(tree);
                if !is_kept {
                    show(chain);
                }
                is_kept
            });
            self.give_up_room();
        }
    }

    fn retain(&mut self, mut stays: impl FnMut(&mut Chain) -> bool) {
        let mut trees = Trees::default();
        self.table.retain(|chain| {
            let is_kept = stays(chain);
            if is_kept && let Some(tree) = chain.tree() {
                trees.add(Trees::of(tree));
            }
            is_kept
        });
        self.trees = trees;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        before::{BeforeImage, hash_of},
        chain::Version,
        writer::Writer,
    };

    fn enter(chains: &mut Chains, tree: PageId, key: &[u8]) {
        let hash = hash_of(tree, key);
        let before = BeforeImage::new((tree, key), hash, None).copy();
        let chain = Chain::new(Version { writer: Arc::new(Writer::new(1)), before });
        let Entry::Vacant(place) = chains.entry(tree, hash, |chain| chain.is_of((tree, key), hash)) else {
            panic!("it was entered before");
        };
        place.insert(chain);
    }

    fn forgotten(chains: &mut Chains, tree: PageId) -> usize {
        let mut count = 0;
        chains.forget(tree, |chain| {
            assert_eq!(chain.tree(), Some(tree));
            count += 1;
        });
        count
    }

    #[test]
    fn the_records_of_a_tree_are_forgotten_and_no_others() {
        let mut chains = Chains::default();
        // The last two have the same bit.
        let trees = [PageId(5), PageId(6), PageId(70)];
        for key in 0..40u8 {
            trees.into_iter().for_each(|tree| enter(&mut chains, tree, &[key]));
        }
        assert_eq!((forgotten(&mut chains, PageId(134)), chains.len()), (0, 120));
        assert_eq!((forgotten(&mut chains, PageId(6)), chains.len()), (40, 80));
        assert_eq!((forgotten(&mut chains, PageId(6)), chains.len()), (0, 80));
        chains.sweep(|chain| chain.tree() == Some(PageId(5)));
        assert_eq!((forgotten(&mut chains, PageId(70)), chains.len()), (0, 40));
        enter(&mut chains, PageId(70), b"key");
        assert_eq!((forgotten(&mut chains, PageId(70)), chains.len()), (1, 40));
        assert_eq!((forgotten(&mut chains, PageId(5)), chains.len()), (40, 0));
    }

    #[test]
    fn a_tree_without_records_is_not_looked_for_among_those_of_others() {
        let mut chains = Chains::default();
        enter(&mut chains, PageId(5), b"key");
        assert!(chains.trees.may_have(PageId(5)) && !chains.trees.may_have(PageId(6)));
        enter(&mut chains, PageId(6), b"key");
        assert!(chains.trees.may_have(PageId(5)) && chains.trees.may_have(PageId(6)));
        assert_eq!(forgotten(&mut chains, PageId(6)), 1);
        assert!(chains.trees.may_have(PageId(5)) && !chains.trees.may_have(PageId(6)));
        chains.sweep(|_| false);
        assert!(!chains.trees.may_have(PageId(5)));
        enter(&mut chains, PageId(5), b"key");
        assert!(chains.take(None).len() == 1 && !chains.trees.may_have(PageId(5)));
    }
}
