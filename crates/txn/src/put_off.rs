//! Merges of leaves that are put off until a transaction has ended, because undo may need the leaves as they are: see
//! `undo_space` of the pool.

use std::collections::{BTreeMap, BTreeSet};
use vellum_access::{AccessError, Tree, Unshared, View, Writer};
use vellum_base::PageId;
use vellum_base::primitive::AtomicU64;
use vellum_pool::Pool;

/// How many bytes of keys are noted one by one.
const BYTES_MAX: usize = 1 << 20;
/// About how many bytes a key takes besides its own.
const KEY_BYTES: usize = 32;

/// Leaves that may be sparse, by keys in them.
#[derive(Default)]
pub(crate) struct PutOff {
    trees: BTreeMap<PageId, Keys>,
    /// How many bytes the keys take that are noted one by one.
    bytes: usize,
}

enum Keys {
    Each(BTreeSet<Box<[u8]>>),
    /// The first, the last, and how many there are.
    Between(Box<[u8]>, Box<[u8]>, u64),
}

impl PutOff {
    /// Notes that the leaf of a key may be sparse.
    pub fn note(&mut self, tree: PageId, key: &[u8]) {
        match self.trees.entry(tree).or_insert_with(|| Keys::Each(BTreeSet::new())) {
            Keys::Each(keys) => {
                if keys.insert(key.into()) {
                    self.bytes += key.len() + KEY_BYTES;
                }
            }
            Keys::Between(first, last, count) => {
                *count += 1;
                if *key < **first {
                    *first = key.into();
                } else if *key > **last {
                    *last = key.into();
                }
            }
        }
        if self.bytes > BYTES_MAX {
            self.bytes = 0;
            self.trees.values_mut().for_each(Keys::join);
        }
    }

    /// Merges what is sparse. The trees are still there, and nobody can free them. What cannot be merged costs space until the
    /// next removal nearby.
    pub fn carry_out(self, pool: &Pool) {
        static SETTLED: AtomicU64 = AtomicU64::new(u64::MAX);
        let view = View { settled: &SETTLED, isolation: &Unshared, writer: Writer::None, open: None };
        for (root, keys) in self.trees {
            let tree = Tree::open(pool, root).with_view(view);
            let merge = |key: &[u8]| if pool.may_merge_leaves() { tree.merge_at(key) } else { Ok(()) };
            let _: Result<(), AccessError> = match keys {
                Keys::Each(keys) => keys.iter().try_for_each(|key| merge(key)),
                Keys::Between(first, last, count) if pool.may_merge_leaves() => {
                    // Where they are far apart it is not worth it to look at all leaves between them.
                    tree.merge_between((&first, &last), 2 * count)
                }
                Keys::Between(..) => Ok(()),
            };
        }
    }
}

impl Keys {
    fn join(&mut self) {
        let Self::Each(keys) = self else { return };
        let count = keys.len() as u64;
        if let Some(first) = keys.pop_first() {
            let last = keys.pop_last().unwrap_or_else(|| first.clone());
            *self = Self::Between(first, last, count);
        }
    }
}
