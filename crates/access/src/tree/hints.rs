//! What the handles of a tree share, in memory only.

use vellum_base::primitive::{AtomicUsize, Ordering};
use vellum_pool::AppendHints;

/// Hints that all handles of a tree share. Each saves work, and none is needed for correctness.
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

    /// The number of leaves that hold this many entries: see [`LeafSizes::count_of`].
    pub(in crate::tree) fn leaves_of(hints: Option<&Self>, entries: usize, from_edge: bool) -> usize {
        match hints {
            Some(hints) => hints.leaves.count_of(entries, from_edge),
            None => LeafSizes::default().count_of(entries, from_edge),
        }
    }
}

/// The average number of entries of the leaves that were read lately.
#[derive(Debug, Default)]
pub(in crate::tree) struct LeafSizes {
    /// In fractions of an entry; zero before the first leaf.
    // Relaxed throughout: an estimate, which orders nothing. Notes that threads make at the same moment may be lost.
    mean: AtomicUsize,
}

/// Fractions of an entry.
const PARTS: usize = 256;

impl LeafSizes {
    /// Notes that a leaf with this many entries was read.
    pub fn note(&self, entries: usize) {
        /// A new leaf counts as one of this many.
        const LEAVES: usize = 16;
        let (mean, now) = (self.mean.load(Ordering::Relaxed), entries * PARTS);
        let next = if mean == 0 { now } else { mean - mean / LEAVES + now / LEAVES };
        self.mean.store(next, Ordering::Relaxed);
    }

    /// The number of leaves that hold this many entries, which begin at the edge of a leaf or somewhere in its middle.
    /// A leaf that is needed in fewer than one case of four is not counted.
    pub fn count_of(&self, entries: usize, from_edge: bool) -> usize {
        /// The mean before any leaf was read: that of entries of a hundred bytes, inserted at random.
        const LIKELY: usize = 28 * PARTS;
        let mean = match self.mean.load(Ordering::Relaxed) {
            0 => LIKELY,
            mean => mean,
        };
        let leaves = |entries: usize| (entries * PARTS * 4).div_ceil(mean);
        // From the middle: one leaf more, unless the first leaf has all of them, which is the likelier the fewer there
        // are.
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
