//! The versions of a generation while they are in memory.

use crate::{chain::Chain, removed_keys::RemovedKeys, removed_range::RemovedRange};
use hashbrown::HashTable;
use vellum_base::PageId;

/// Versions that do not change any more.
pub(crate) struct Frozen {
    /// By the hashes of their records, in parts.
    parts: Vec<HashTable<Chain>>,
    /// The keys of removed records.
    pub removed: RemovedKeys,
    /// About how much memory the versions take.
    pub bytes: usize,
    /// The times of the snapshots that were open, in ascending order, and the number of the last commit then. Later
    /// snapshots see all these commits, so these say for good which versions can be joined.
    snapshots: (Vec<u64>, u64),
}

impl Frozen {
    /// The part of a record is `hash >> 32`, modulo the number of parts.
    pub fn new(
        parts: Vec<HashTable<Chain>>,
        removed: RemovedKeys,
        bytes: usize,
        snapshots: (Vec<u64>, u64),
    ) -> Self {
        Self { parts, removed, bytes, snapshots }
    }

    /// The times of the snapshots that were open when the versions were frozen, in ascending order, and the number of
    /// the last commit then.
    pub fn snapshots(&self) -> (&[u64], u64) {
        (&self.snapshots.0, self.snapshots.1)
    }

    pub fn find(&self, tree: PageId, key: &[u8], hash: u64) -> Option<&Chain> {
        let part = self.parts.get((hash >> 32) as usize % self.parts.len().max(1))?;
        part.find(hash, |chain| chain.is_of((tree, key), hash))
    }

    pub fn chains(&self) -> impl Iterator<Item = &Chain> {
        self.parts.iter().flatten()
    }

    /// Adds the keys of removed records of a tree.
    pub fn add_removed(&self, tree: PageId, range: &mut RemovedRange<'_>) {
        self.removed.add(tree, range);
    }

    /// How many records have versions.
    pub fn len(&self) -> usize {
        self.parts.iter().map(HashTable::len).sum()
    }
}
