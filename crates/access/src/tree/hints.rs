//! What the handles of a tree know of it together, in memory only.

use vellum_base::primitive::{AtomicUsize, Ordering};
use vellum_pool::AppendHints;

/// Hints that all handles of a tree share: each saves work, and none is needed.
///
/// ```
/// use vellum_access::{Tree, TreeHints};
/// use vellum_pool::{Pool, PoolOptions};
///
/// let directory = tempfile::tempdir()?;
/// let pool = Pool::create(directory.path().join("file"), &PoolOptions::default())?;
/// let hints = TreeHints::default();
/// let tree = Tree::create(&pool)?.with_hints(&hints);
/// tree.insert(b"key", b"value")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct TreeHints {
    /// The leaves to which threads append records.
    pub(in crate::tree) ends: AppendHints,
    pub(in crate::tree) leaves: LeafSizes,
}

impl TreeHints {
    /// The leaves to which threads append records.
    pub fn ends(&self) -> &AppendHints {
        &self.ends
    }

    /// In how many leaves so many entries are: see [`LeafSizes::count_of`].
    pub(in crate::tree) fn leaves_of(hints: Option<&Self>, entries: usize, from_edge: bool) -> usize {
        match hints {
            Some(hints) => hints.leaves.count_of(entries, from_edge),
            None => LeafSizes::default().count_of(entries, from_edge),
        }
    }
}

/// How many entries leaves have that were read lately, on average.
#[derive(Debug, Default)]
pub(in crate::tree) struct LeafSizes {
    /// In parts of an entry; zero before the first leaf.
    // Relaxed throughout: a guess, which orders nothing. What threads note at the same moment may be lost.
    mean: AtomicUsize,
}

/// Parts of an entry.
const PARTS: usize = 256;

impl LeafSizes {
    /// Notes that a leaf was read which has so many entries.
    pub fn note(&self, entries: usize) {
        /// A new leaf counts as one of so many.
        const LEAVES: usize = 16;
        let (mean, now) = (self.mean.load(Ordering::Relaxed), entries * PARTS);
        let next = if mean == 0 { now } else { mean - mean / LEAVES + now / LEAVES };
        self.mean.store(next, Ordering::Relaxed);
    }

    /// In how many leaves so many entries are that begin with the first or the last one of a leaf, or somewhere in the middle. One that is
    /// needed in fewer than one case of four is not counted.
    pub fn count_of(&self, entries: usize, from_edge: bool) -> usize {
        /// Before a leaf was read: those of a hundred bytes each, and of random inserts.
        const LIKELY: usize = 28 * PARTS;
        let mean = match self.mean.load(Ordering::Relaxed) {
            0 => LIKELY,
            mean => mean,
        };
        let leaves = |entries: usize| (entries * PARTS * 4).div_ceil(mean);
        // From the middle: one more, unless the first one has them all, as it has the more often the fewer there are.
        let quarters = if from_edge { leaves(entries) } else { leaves(entries.saturating_sub(1)) + 3 };
        quarters.div_ceil(4).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_are_counted_as_those_that_were_read_lately() {
        let leaves = LeafSizes::default();
        assert_eq!((leaves.count_of(28, true), leaves.count_of(29, true)), (1, 2));
        leaves.note(10);
        assert_eq!((leaves.count_of(10, true), leaves.count_of(11, true)), (1, 2));
        assert_eq!((leaves.count_of(20, true), leaves.count_of(21, true)), (2, 3));
        // Two of ten places are such that three entries go on beyond the leaf, four of ten if there are five.
        assert_eq!((leaves.count_of(3, false), leaves.count_of(5, false)), (1, 2));
        assert_eq!((leaves.count_of(10, false), leaves.count_of(20, false)), (2, 3));
        assert_eq!((leaves.count_of(0, true), leaves.count_of(0, false)), (1, 1));
        (0..200).for_each(|number| leaves.note(if number % 2 == 0 { 1 } else { 4 }));
        assert!((7..=9).contains(&leaves.count_of(20, true)), "{}", leaves.count_of(20, true));
        (0..200).for_each(|_| leaves.note(0));
        assert!(leaves.count_of(1, true) >= 1);
    }
}
