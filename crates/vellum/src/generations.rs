//! The trees that a table has had since it was opened.
//!
//! They are found by their roots, and by their numbers without a lock. None is removed as long as the table is open:
//! operations may be on their way in it.

use crate::driver::lock;
use std::{collections::HashMap, sync::OnceLock};
use vellum_access::TreeHints;
use vellum_base::PageId;
use vellum_base::primitive::{AtomicU64, Mutex, Ordering};

/// A tree that the table has or had.
pub(crate) struct Generation {
    pub(crate) root: PageId,
    pub(crate) hints: TreeHints,
    /// Only snapshots that see a later commit than this one see the tree.
    since: AtomicU64,
}

/// All trees of a table.
pub(crate) struct Generations {
    pub(crate) first: Generation,
    /// The others: part `n` has 2ⁿ of them.
    parts: OnceLock<Box<[Part; PARTS]>>,
    /// Their numbers, from zero, by their roots.
    numbers: Mutex<HashMap<PageId, usize>>,
}

type Part = OnceLock<Box<[OnceLock<Generation>]>>;

const PARTS: usize = 32;

impl Generation {
    fn new(root: PageId) -> Self {
        Self { root, hints: TreeHints::default(), since: AtomicU64::new(0) }
    }

    /// Only snapshots that see a later commit than this one see the tree.
    pub(crate) fn since(&self) -> u64 {
        // Relaxed, here and below: the catalog's record of the table orders those who replace its tree.
        self.since.load(Ordering::Relaxed)
    }

    /// The tree is about to become a table's; `time` is the last commit.
    pub(crate) fn begin(&self, time: u64) {
        self.since.store(time, Ordering::Relaxed);
    }
}

impl Generations {
    /// The first one has this root.
    pub(crate) fn new(root: PageId) -> Self {
        let numbers = Mutex::new(HashMap::from([(root, 0)]));
        Self { first: Generation::new(root), parts: OnceLock::new(), numbers }
    }

    /// Adds the one with this root, if it is not there yet, and returns its number.
    pub(crate) fn add(&self, root: PageId) -> usize {
        let mut numbers = lock(&self.numbers);
        let next = numbers.len();
        *numbers.entry(root).or_insert_with(|| {
            if let Some(place) = self.place(next) {
                let _ = place.set(Generation::new(root));
            }
            next
        })
    }

    fn place(&self, number: usize) -> Option<&OnceLock<Generation>> {
        let part = number.checked_ilog2()? as usize;
        let parts = self.parts.get_or_init(Box::default);
        let part = parts.get(part)?.get_or_init(|| (0..1 << part).map(|_| OnceLock::new()).collect());
        part.get(number - part.len())
    }

    /// The one with this number, which has been added.
    #[inline]
    pub(crate) fn get(&self, number: usize) -> &Generation {
        self.place(number).and_then(OnceLock::get).unwrap_or(&self.first)
    }

    /// The one with this root.
    pub(crate) fn find(&self, root: PageId) -> Option<&Generation> {
        let number = *lock(&self.numbers).get(&root)?;
        Some(self.get(number))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Generation> {
        let count = lock(&self.numbers).len();
        (0..count).map(|number| self.get(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_found_by_its_number_and_by_its_root() {
        let generations = Generations::new(PageId(7));
        for number in 1..100 {
            assert_eq!(generations.add(PageId(7 + number * 3)), number as usize);
        }
        assert_eq!((generations.add(PageId(7)), generations.add(PageId(37))), (0, 10));
        for number in 0..100 {
            let root = PageId(7 + number * 3);
            assert_eq!(generations.get(number as usize).root, root);
            assert_eq!(generations.find(root).map(|generation| generation.root), Some(root));
        }
        assert!(generations.find(PageId(8)).is_none());
        assert_eq!(generations.iter().count(), 100);
    }
}
