//! Changing the values of many keys in place.

use super::{Batch, task::Task};
use crate::error::AccessError;
use crate::tree::descend::group::GROUP_SIZE;
use crate::tree::{Tree, change::modify::ChangedLeaf, read::record::RecordLocation};
use vellum_pool::{Navigation, OptimisticPage, Pager, PoolError};

/// How much of a value to be changed is prefetched, in bytes. A change of a long value seldom touches all of it.
const CHANGE_BYTES: usize = 256;

/// Whether a key equals the one before it, or differs from it only in the last byte.
#[inline]
fn follows<K: AsRef<[u8]>>(keys: &[K], index: usize) -> bool {
    let key = |index: usize| keys.get(index).and_then(|key| key.as_ref().split_last());
    let before = index.checked_sub(1).and_then(key);
    before.zip(key(index)).is_some_and(|((_, before), (_, this))| before == this)
}

type Location<'p, P> = RecordLocation<<P as Navigation>::Optimistic<'p>>;
type Locations<'p, P> = [Option<Location<'p, P>>; GROUP_SIZE];

impl<'p, P: Pager> Tree<'p, P> {
    /// Does for many keys what [`modify`](Self::modify) does for one, with up to `depth` reads under way at once: lets
    /// `change` change the values, each with the number of its key, and tells `visit` for each key whether it had a
    /// value. Each change is atomic by itself. If a key occurs twice, its value is changed twice.
    ///
    /// Several changes descend to their leaves at once, so that their cache misses overlap.
    ///
    /// # Errors
    /// Each change has its own error, as for [`modify`](Self::modify).
    pub fn multi_modify<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        depth: usize,
        mut change: impl FnMut(usize, &mut [u8]),
        mut visit: impl FnMut(usize, Result<bool, AccessError>),
    ) {
        let (mut number, mut last) = (0, None);
        let mut rest = keys;
        'groups: while !rest.is_empty() {
            let (group, located) = self.locate_firsts(rest);
            let Some(located) = located else { break };
            let mut firsts = located.into_iter();
            for (index, key) in group.iter().map(AsRef::as_ref).enumerate() {
                let located = if follows(group, index) {
                    self.locate_beside(key, last).map(Some).or_else(|| self.locate_one(key))
                } else {
                    firsts.next()
                };
                let Some(located) = located else { break 'groups };
                let mut change_it = |value: &mut [u8]| change(number, value);
                // `modify_at` fails if the leaf has changed since, or the value is large or must not be changed.
                let changed = match located {
                    Some(at) if self.modify_at((at, key), &mut last, &mut change_it) => Ok(true),
                    None if self.view.is_none() => Ok(false),
                    // With a view, the code for one key decides at the leaf whether there is no value.
                    _ => self.modify(key, change_it).map(|changed| changed.is_some()),
                };
                visit(number, changed);
                number += 1;
                rest = rest.get(1..).unwrap_or_default();
            }
        }
        if rest.is_empty() {
            return;
        }
        // A page has to be read: as many as possible are read at once.
        let tasks = rest.iter().map(|key| (key, Task::<&[u8]>::GetPart { offset: 0, length: 0 }));
        let first = number;
        Batch::new(self.pager, depth).run_queue(*self, tasks, |index, _, there| {
            let number = first + index;
            let key = rest.get(index).map(AsRef::as_ref).unwrap_or_default();
            // The pool need not have room for a large value as a whole: `modify` changes it in parts.
            let there = match there {
                Err(AccessError::Pool(
                    PoolError::LargerThanPool { .. } | PoolError::PoolExhausted { .. },
                )) => Ok(()),
                there => there.map(drop),
            };
            let changed = there.and_then(|()| self.modify(key, |value| change(number, value)));
            visit(number, changed.map(|changed| changed.is_some()));
        });
    }

    /// The keys of the next group, and the locations of the values of keys that do not [follow](follows) another one;
    /// `None` if one cannot be found without waiting. A key that follows is usually in the same leaf, searched first.
    fn locate_firsts<'k, K: AsRef<[u8]>>(&self, keys: &'k [K]) -> (&'k [K], Option<Locations<'p, P>>) {
        let mut firsts = [&[][..]; GROUP_SIZE];
        let (mut count, mut end) = (0, 0);
        for (index, key) in keys.iter().enumerate() {
            if !follows(keys, index) {
                let Some(first) = firsts.get_mut(count) else { break };
                *first = key.as_ref();
                count += 1;
            }
            end = index + 1;
        }
        let located = firsts.get(..count).and_then(|firsts| self.locate_group(firsts));
        (keys.get(..end).unwrap_or_default(), located)
    }

    /// The location of the value of a key, `Some(None)` if there is none; `None` if it cannot be found without waiting.
    fn locate_one(&self, key: &[u8]) -> Option<Option<Location<'p, P>>> {
        self.locate_group(&[key]).and_then(|located| located.first().copied())
    }

    /// The location of the value of a key, if it is in the leaf in which a value was changed last.
    fn locate_beside(&self, key: &[u8], last: Option<ChangedLeaf>) -> Option<Location<'p, P>> {
        let ChangedLeaf { page, left, .. } = last?;
        // The leaf need not cover the key.
        let at = RecordLocation::of_any(self.pager.reacquire(page, left)?, key);
        at.leaf.validate().ok()?;
        at.found.then_some(at)
    }

    /// The locations of the values of up to [`GROUP_SIZE`] keys, which are being fetched into the cache. `None` if one
    /// of them cannot be found without waiting.
    #[inline]
    pub(super) fn locate_group<K: AsRef<[u8]>>(&self, keys: &[K]) -> Option<Locations<'p, P>> {
        let leaves = self.leaves(keys, AsRef::as_ref)?;
        let mut located = [None; GROUP_SIZE];
        for ((leaf, located), key) in leaves.into_iter().zip(&mut located).zip(keys) {
            let at = RecordLocation::of(leaf, key.as_ref());
            let fetch = at.value(CHANGE_BYTES);
            at.leaf.validate().ok()?;
            if at.found {
                fetch.begin(self.pager);
                *located = Some(at);
            }
        }
        Some(located)
    }
}

#[cfg(test)]
mod tests {
    use crate::Tree;
    use std::sync::Arc;
    use vellum_pool::{Pool, PoolOptions};
    use vellum_vm::SimulatedFile;

    /// A key that follows another one is searched first in the leaf where a value was changed last. That leaf may not
    /// cover the key, and may hold a key with the same ending.
    #[test]
    fn a_leaf_that_does_not_cover_a_key_is_not_changed_for_it() {
        let options = PoolOptions::default().pool_bytes(1 << 24).capacity_bytes(1 << 28);
        for tail in [&[][..], b"and what goes beyond the head"] {
            let key = |a: u8, b: u8, c: u8, d: u8| [&[a, b, c][..], tail, &[d]].concat();
            let pool = Pool::create_on(Arc::new(SimulatedFile::new(1)), &options).unwrap();
            let tree = Tree::create(&pool).unwrap();
            for (a, b, c) in (0..2).flat_map(|a| (0..20).flat_map(move |b| (0..16).map(move |c| (a, b, c)))) {
                for d in 0..16 {
                    // Such a value is not changed in the leaf, so the leaf before stays the leaf that was changed last.
                    let bytes = if (a, c, d) == (1, 3, 1) { 2000 } else { 8 };
                    tree.insert(&key(a, b, c, d), &vec![0; bytes]).unwrap();
                }
            }
            for b in 0..20 {
                let keys = [key(0, b, 3, 1), key(1, b, 3, 1), key(1, b, 3, 2)];
                let mut changed = 0;
                let change = |_: usize, value: &mut [u8]| value[0] = 1;
                tree.multi_modify(&keys, 8, change, |_, done| changed += usize::from(done.unwrap()));
                assert_eq!(changed, 3);
                assert!(keys.iter().all(|key| tree.get(key).unwrap().unwrap()[0] == 1), "{b}");
                assert_eq!(tree.get(&key(0, b, 3, 2)).unwrap(), Some(vec![0; 8]), "{b}");
            }
        }
    }
}
