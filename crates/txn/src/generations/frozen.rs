//! The versions of a generation while they are in memory.

use crate::chain::Chain;
use hashbrown::HashTable;
use std::{
    collections::BTreeSet,
    ops::{Bound, RangeBounds as _},
};
use vellum_base::PageId;

/// Versions that do not change any more.
pub(crate) struct Frozen {
    /// By the hashes of their records, in parts.
    parts: Vec<HashTable<Chain>>,
    /// The keys of removed records.
    pub removed: BTreeSet<(PageId, Box<[u8]>)>,
    /// About how much memory the versions take.
    pub bytes: usize,
}

impl Frozen {
    /// The part of a record is `hash >> 32`, modulo the number of parts.
    pub fn new(parts: Vec<HashTable<Chain>>, removed: BTreeSet<(PageId, Box<[u8]>)>, bytes: usize) -> Self {
        Self { parts, removed, bytes }
    }

    pub fn find(&self, tree: PageId, key: &[u8], hash: u64) -> Option<&Chain> {
        let part = self.parts.get((hash >> 32) as usize % self.parts.len().max(1))?;
        part.find(hash, |chain| chain.is_of((tree, key), hash))
    }

    pub fn chains(&self) -> impl Iterator<Item = &Chain> {
        self.parts.iter().flatten()
    }

    /// Adds the keys, within bounds, of removed records of a tree.
    pub fn add_removed(&self, tree: PageId, bounds: (Bound<&[u8]>, Bound<&[u8]>), keys: &mut Vec<Box<[u8]>>) {
        let first = match bounds.0 {
            Bound::Included(key) | Bound::Excluded(key) => key.into(),
            Bound::Unbounded => Box::default(),
        };
        let from = self.removed.range((tree, first)..).take_while(|(of, _)| *of == tree);
        let within =
            from.map(|(_, key)| key).take_while(|key| (Bound::Unbounded, bounds.1).contains(&key[..]));
        keys.extend(within.filter(|key| bounds.contains(&key[..])).cloned());
    }

    /// How many records have versions.
    pub fn len(&self) -> usize {
        self.parts.iter().map(HashTable::len).sum()
    }
}
