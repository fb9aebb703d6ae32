//! Very many changed keys in little memory, for covered serializable transactions.
//!
//! Such a transaction is refused if others have changed what it has read. While it is open they may change any number of
//! keys. Beyond a number, these are kept *coarsely*: a bitmap of their hashes, against which the keys are tested that
//! it has looked up, and ranges that contain them, against which the ranges are tested that it has read. That may match
//! a key that was not changed, but never misses one that was: the transaction is then refused in vain.

use crate::before::{Before, BeforeImage, hash_of};
use crate::reads::{Bits, Ranges, ReadRange, ReadSet};
use vellum_base::PageId;

/// How many keys are kept one by one.
pub(crate) const KEYS_MAX: usize = if cfg!(test) { 64 } else { 1 << 17 };
/// How many ranges there are at most, and how many bytes their ends may have.
const RANGES_MAX: usize = if cfg!(test) { 16 } else { 1 << 15 };
const RANGES_BYTES_MAX: usize = 4 << 20;

/// Changed keys.
pub(crate) struct Coarse {
    hashes: Bits,
    ranges: Ranges,
}

impl Default for Coarse {
    fn default() -> Self {
        Self { hashes: Bits::default(), ranges: Ranges::new(RANGES_MAX, RANGES_BYTES_MAX) }
    }
}

impl Coarse {
    pub fn add(&mut self, record: BeforeImage<'_>) {
        self.hashes.set(record.hash());
        self.ranges.add(ReadRange::of_key(record.tree, record.key()));
    }

    /// Takes over the keys of another one.
    pub fn join(&mut self, other: Self) {
        self.hashes.join(&other.hashes);
        other.ranges.into_iter().for_each(|range| self.ranges.add(range));
    }

    /// Whether a transaction with these reads may have read one of the keys: one of them, or one near it.
    pub fn find(&self, reads: &ReadSet) -> Option<Before> {
        let mut ranges = self.ranges.iter();
        let found = if let Some(range) = ranges.clone().find(|range| reads.has_some_of(range)) {
            Some(range)
        } else {
            let hash = reads.any_key_of(&self.hashes)?;
            let is_it =
                |range: &&ReadRange| range.first_key().is_some_and(|key| hash_of(range.tree, key) == hash);
            let is_near = |range: &&ReadRange| reads.has_tree(range.tree);
            ranges.clone().find(is_it).or_else(|| ranges.clone().find(is_near)).or_else(|| ranges.next())
        };
        let (tree, key) =
            found.map_or((PageId(0), &[][..]), |range| (range.tree, range.first_key().unwrap_or_default()));
        Some(Before::of((tree, key), None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reads::Edge;
    use std::ops::Bound;

    const TREE: PageId = PageId(7);

    fn key(number: u32) -> [u8; 4] {
        number.to_be_bytes()
    }

    /// What was changed: every tenth number.
    fn coarse(numbers: std::ops::Range<u32>) -> Coarse {
        let mut coarse = Coarse::default();
        numbers.for_each(|number| coarse.add(BeforeImage::new((TREE, &key(number * 10)), 0, None)));
        coarse
    }

    fn finds(coarse: &Coarse, read: impl FnOnce(&mut ReadSet)) -> Option<Before> {
        let mut reads = ReadSet::default();
        read(&mut reads);
        reads.finish();
        coarse.find(&reads)
    }

    fn range(tree: PageId, numbers: std::ops::Range<u32>) -> impl FnOnce(&mut ReadSet) {
        let edges = (
            Edge::lower(Bound::Included(&key(numbers.start))),
            Edge::upper(Bound::Excluded(&key(numbers.end))),
        );
        move |reads| reads.add_range(tree, edges.0, edges.1)
    }

    #[test]
    fn no_changed_key_is_missed_and_few_others_are_found() {
        const MANY: u32 = 5000;
        let mut joined = coarse(0..MANY / 2);
        joined.join(coarse(MANY / 2..MANY));
        assert!(joined.ranges.iter().count() < RANGES_MAX);
        for number in 0..MANY {
            let found = finds(&joined, |reads| reads.add_key(TREE, &key(number * 10)));
            assert!(found.is_some_and(|found| found.tree == TREE), "{number}");
            assert!(finds(&joined, range(TREE, number * 10..number * 10 + 1)).is_some(), "{number}");
        }
        let wrong = (0..MANY)
            .filter(|number| finds(&joined, |reads| reads.add_key(TREE, &key(number * 10 + 1))).is_some());
        assert!(wrong.count() < 10);
        assert!(finds(&joined, range(TREE, MANY * 10..u32::MAX)).is_none());
        assert!(finds(&joined, range(PageId(8), 0..u32::MAX)).is_none());
        let many = |reads: &mut ReadSet| (0..200_000).for_each(|number| reads.add_key(TREE, &key(number)));
        assert!(finds(&joined, many).is_some());
    }

    #[test]
    fn a_key_that_is_known_is_named() {
        let few = coarse(0..10);
        let found = finds(&few, |reads| reads.add_key(TREE, &key(50))).unwrap();
        assert_eq!((found.tree, found.key()), (TREE, &key(50)[..]));
        let found = finds(&few, range(TREE, 55..65)).unwrap();
        assert_eq!((found.tree, found.key()), (TREE, &key(60)[..]));
        assert!(finds(&few, range(TREE, 51..60)).is_none());
    }
}
