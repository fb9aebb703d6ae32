//! Keys of removed records that have versions in generations.

use super::{
    Generation, Generations,
    stored::{PREFIX_BYTES, place_of_prefix, whole_key},
};
use crate::{removed_range::RemovedRange, writer::Sight};
use std::ops::Bound;
use vellum_base::PageId;
use vellum_pool::PoolError;

impl Generations {
    /// Adds the keys of removed records of a tree that a snapshot may see.
    pub fn add_removed(
        &self,
        sight: Sight,
        tree: PageId,
        range: &mut RemovedRange<'_>,
    ) -> Result<(), PoolError> {
        let is_covered = self.covers(sight.own);
        for generation in self.all().iter().filter(|generation| self.has_removed_in(generation, sight)) {
            if is_covered || generation.may_have_unseen_removal(tree, sight) {
                range.begin();
                generation.add_removed(tree, range)?;
            }
        }
        Ok(())
    }
}

impl Generation {
    fn add_removed(&self, tree: PageId, range: &mut RemovedRange<'_>) -> Result<(), PoolError> {
        if let Some(frozen) = self.frozen() {
            frozen.add_removed(tree, range);
            return Ok(());
        }
        // Truncated keys are ordered by their prefixes only, so the scan looks at some keys beyond the bounds.
        let (lower, upper) = range.bounds();
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
        self.tree.scan((Bound::Included(&lower), upper), range.direction(), |place, chain| {
            if chain.first() == Some(&1)
                && let Some(whole) = whole_key(chain)
            {
                let key = if whole.is_empty() { place.get(8..).unwrap_or_default() } else { whole };
                if range.is_full() && range.last().is_some_and(|last| !are_together(last, key)) {
                    range.cut();
                    return Ok(false);
                }
                range.add(key);
            }
            Ok(true)
        })
    }
}

/// Whether the order of two keys is not that of their places.
fn are_together(one: &[u8], other: &[u8]) -> bool {
    let prefix = one.get(..PREFIX_BYTES);
    prefix.is_some() && prefix == other.get(..PREFIX_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        before::Before,
        generations::Moving,
        removed_range::in_portions,
        spill::SpillFile,
        writer::{State, Writer},
    };
    use smallvec::smallvec;
    use std::{collections::BTreeSet, ops::RangeBounds as _, sync::Arc};
    use vellum_access::Direction;
    use vellum_vm::SimulatedDisk;

    const TREE: PageId = PageId(7);

    /// Keys of which the file has the prefixes and hashes only are not in key order there: a portion that ended between two
    /// with one prefix would leave some out.
    #[test]
    fn portions_have_all_keys_also_where_these_are_not_in_order() {
        let file = SpillFile::new(Some(Arc::new(SimulatedDisk::new(1))), 1 << 20);
        let generation = Generation::create(&file, 1, None).unwrap();
        let mut keys = BTreeSet::new();
        for group in 0..20_u8 {
            // Keys as long as a prefix, longer, and shorter.
            let prefix = vec![group; PREFIX_BYTES];
            for number in 0..group % 9 {
                keys.insert([&prefix[..], &[number][..usize::from(number.min(1))]].concat());
            }
            keys.insert(vec![group; usize::from(group)]);
        }
        let writer = Arc::new(Writer::committed_at(1, 5));
        let moving = |tree: PageId, key: &Vec<u8>, is_removed| {
            let before = Before::of((tree, key), None);
            Moving { is_removed, versions: smallvec![(writer.clone(), State::Committed(5), before)] }
        };
        let mut chains: Vec<_> = keys.iter().map(|key| moving(TREE, key, true)).collect();
        // Neither these of other trees nor what was not removed.
        chains.extend(keys.iter().flat_map(|key| [6, 8].map(|tree| moving(PageId(tree), key, true))));
        chains.extend((0..50_u8).map(|number| moving(TREE, &vec![number; 30], false)));
        generation.take(&chains, (&[1], 5)).unwrap();
        let keys: Vec<_> = keys.iter().map(|key| &key[..]).collect();
        for direction in [Direction::Forward, Direction::Backward] {
            for most in [1, 2, 3, 5, 100] {
                for (from, to) in [(0, keys.len() - 1), (30, 70), (31, 32), (17, 60)] {
                    for bounds in [
                        (Bound::Unbounded, Bound::Unbounded),
                        (Bound::Included(keys[from]), Bound::Included(keys[to])),
                        (Bound::Excluded(keys[from]), Bound::Excluded(keys[to])),
                    ] {
                        let found = in_portions(bounds, direction, |bounds| {
                            let mut range = RemovedRange::new(bounds, (direction, most));
                            generation.add_removed(TREE, &mut range).unwrap();
                            range.finish()
                        });
                        let expected = keys.iter().filter(|key| bounds.contains(**key));
                        assert!(
                            found.iter().map(|key| &key[..]).eq(expected.copied()),
                            "{direction:?} {most}"
                        );
                    }
                }
            }
        }
    }
}
