//! What a serializable transaction has read, to be tested against what others have written since.
//!
//! A transaction is serializable if everything that it has read is still the same at the moment of its commit: then it
//! might as well have happened at that moment, alone. So it keeps which keys it has read, whether they existed or not,
//! and which *ranges* it has requested, rather than what it found there. When it commits, every key that was written by
//! a transaction committed since its snapshot is tested against these (*precision locking*: Jordan, Banerjee, Batman,
//! *Precision Locks*, SIGMOD 1981; used at commit by Neumann, Mühlbauer, Kemper, *Fast Serializable Multi-Version
//! Concurrency Control*, SIGMOD 2015). Pages and leaves play no part, so neighbours in a leaf never conflict.
//!
//! Of each key only the hash is kept. The size of a set is bounded: beyond it the set becomes less exact, and may match
//! what was not read, but never misses what was. Hashes become bits of a bitmap, and neighbouring ranges become one.

use crate::before::hash_of;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};
use vellum_base::PageId;

/// How many keys are kept by their full hashes, 8 bytes each.
const KEYS_MAX: usize = 1 << 17;
/// The bits of the bitmap for more keys, 8 MiB: with a million keys it matches one in sixty that was not read.
const BITS: usize = 1 << 26;
/// How many ranges are kept separately, and how many bytes their ends may have.
const RANGES_MAX: usize = 1 << 12;
const RANGES_BYTES_MAX: usize = 1 << 20;

/// A place between keys, or after all of them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Edge {
    /// Right before or right after a key.
    At {
        /// The key.
        key: Vec<u8>,
        /// Whether it is right after the key.
        after: bool,
    },
    /// After all keys.
    End,
}

impl Edge {
    /// Where a range with this lower bound begins.
    pub fn lower(bound: Bound<&[u8]>) -> Self {
        match bound {
            Bound::Included(key) => Self::At { key: key.to_vec(), after: false },
            Bound::Excluded(key) => Self::At { key: key.to_vec(), after: true },
            Bound::Unbounded => Self::At { key: Vec::new(), after: false },
        }
    }

    /// Where a range with this upper bound ends.
    pub fn upper(bound: Bound<&[u8]>) -> Self {
        match bound {
            Bound::Included(key) => Self::At { key: key.to_vec(), after: true },
            Bound::Excluded(key) => Self::At { key: key.to_vec(), after: false },
            Bound::Unbounded => Self::End,
        }
    }

    fn is_before(&self, key: &[u8]) -> bool {
        matches!(self, Self::At { key: at, after } if (&at[..], *after) <= (key, false))
    }

    fn is_after(&self, key: &[u8]) -> bool {
        match self {
            Self::At { key: at, after } => (&at[..], *after) >= (key, true),
            Self::End => true,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::At { key, .. } => key.len(),
            Self::End => 0,
        }
    }
}

/// A range of keys of a tree.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ReadRange {
    pub tree: PageId,
    lower: Edge,
    upper: Edge,
}

impl ReadRange {
    /// The range of one key.
    pub fn of_key(tree: PageId, key: &[u8]) -> Self {
        let (lower, upper) = (Bound::Included(key), Bound::Included(key));
        Self { tree, lower: Edge::lower(lower), upper: Edge::upper(upper) }
    }

    /// The first key that it may contain.
    pub fn first_key(&self) -> Option<&[u8]> {
        match &self.lower {
            Edge::At { key, .. } => Some(key),
            Edge::End => None,
        }
    }

    fn bytes(&self) -> usize {
        self.lower.bytes() + self.upper.bytes()
    }
}

/// What a transaction has read.
#[derive(Default)]
pub(crate) struct ReadSet {
    /// The trees that were read: mostly few.
    trees: BTreeSet<PageId>,
    keys: Keys,
    ranges: Ranges,
    /// The ranges of cursors that are still open, each as it was requested.
    requested: BTreeMap<u64, ReadRange>,
    requests: u64,
}

impl ReadSet {
    /// Notes that a tree is read; returns whether this is the first time.
    pub fn add_tree(&mut self, tree: PageId) -> bool {
        self.trees.insert(tree)
    }

    /// Notes that a key was looked up.
    pub fn add_key(&mut self, tree: PageId, key: &[u8]) {
        self.keys.add(hash_of(tree, key));
    }

    /// Notes that an entire range was read.
    pub fn add_range(&mut self, tree: PageId, lower: Edge, upper: Edge) {
        if lower < upper {
            self.ranges.add(ReadRange { tree, lower, upper });
        }
    }

    /// Notes that part of a range will be read. It counts as read until [`fulfil`](Self::fulfil) is called with the
    /// number returned.
    pub fn request(&mut self, tree: PageId, lower: Edge, upper: Edge) -> u64 {
        self.requests += 1;
        self.requested.insert(self.requests, ReadRange { tree, lower, upper });
        self.requests
    }

    /// Notes that what was read of a requested range has been added.
    pub fn fulfil(&mut self, request: u64) {
        self.requested.remove(&request);
    }

    /// Notes that no more will be read.
    pub fn finish(&mut self) {
        for (_, range) in std::mem::take(&mut self.requested) {
            self.add_range(range.tree, range.lower, range.upper);
        }
        self.keys.sort();
        self.ranges.merge();
    }

    /// Whether part of this range was read as a range. The set is [finished](Self::finish).
    pub fn has_some_of(&self, range: &ReadRange) -> bool {
        self.ranges.has_some_of(range)
    }

    /// Whether something of this tree was read.
    pub fn has_tree(&self, tree: PageId) -> bool {
        self.trees.contains(&tree)
    }

    /// A hash of these that may be that of a key which was looked up; of very many, any.
    pub fn any_key_of(&self, hashes: &Bits) -> Option<u64> {
        match &self.keys {
            Keys::Hashes(own) => own.iter().copied().find(|hash| hashes.has(*hash)),
            Keys::Bits(own) => own.has_some_of(hashes).then_some(0),
        }
    }

    /// Whether this record was read. The set is [finished](Self::finish).
    pub fn has(&self, tree: PageId, key: &[u8]) -> bool {
        self.keys.has(hash_of(tree, key)) || self.ranges.has(tree, key)
    }
}

/// Keys by their hashes.
enum Keys {
    Hashes(Vec<u64>),
    Bits(Bits),
}

impl Default for Keys {
    fn default() -> Self {
        Self::Hashes(Vec::new())
    }
}

impl Keys {
    fn add(&mut self, hash: u64) {
        match self {
            Self::Hashes(hashes) => {
                hashes.push(hash);
                if hashes.len() >= KEYS_MAX {
                    self.shrink();
                }
            }
            Self::Bits(bits) => bits.set(hash),
        }
    }

    #[cold]
    fn shrink(&mut self) {
        self.sort();
        if let Self::Hashes(hashes) = self
            && hashes.len() > KEYS_MAX / 2
        {
            let mut bits = Bits::default();
            hashes.iter().for_each(|hash| bits.set(*hash));
            *self = Self::Bits(bits);
        }
    }

    fn sort(&mut self) {
        if let Self::Hashes(hashes) = self {
            hashes.sort_unstable();
            hashes.dedup();
        }
    }

    fn has(&self, hash: u64) -> bool {
        match self {
            Self::Hashes(hashes) => hashes.binary_search(&hash).is_ok(),
            Self::Bits(bits) => bits.has(hash),
        }
    }
}

/// Very many hashes, less exactly.
pub(crate) struct Bits(Box<[u64]>);

impl Default for Bits {
    fn default() -> Self {
        Self(vec![0; BITS / 64].into_boxed_slice())
    }
}

impl Bits {
    pub fn set(&mut self, hash: u64) {
        let (word, bit) = place(hash);
        if let Some(word) = self.0.get_mut(word) {
            *word |= bit;
        }
    }

    fn has(&self, hash: u64) -> bool {
        let (word, bit) = place(hash);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }

    fn has_some_of(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).any(|(word, other)| word & other != 0)
    }

    /// Takes over the hashes of others.
    pub fn join(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word |= other);
    }
}

fn place(hash: u64) -> (usize, u64) {
    let bit = hash as usize % BITS;
    (bit / 64, 1 << (bit % 64))
}

/// Ranges, which are in order and disjoint after they have been merged.
pub(crate) struct Ranges {
    ranges: Vec<ReadRange>,
    bytes: usize,
    /// Neighbours become one when there are so many ranges, or their ends have so many bytes.
    count_max: usize,
    bytes_max: usize,
    /// When they are joined next, by count and by bytes: later than that if they lie in so many trees that too few have
    /// neighbours. Otherwise each one that is added would have all of them looked at.
    next: (usize, usize),
}

impl Default for Ranges {
    fn default() -> Self {
        Self::new(RANGES_MAX, RANGES_BYTES_MAX)
    }
}

impl IntoIterator for Ranges {
    type Item = ReadRange;
    type IntoIter = std::vec::IntoIter<ReadRange>;

    fn into_iter(self) -> Self::IntoIter {
        self.ranges.into_iter()
    }
}

impl Ranges {
    /// Up to `count_max` ranges, whose ends have up to `bytes_max` bytes; or twice as many as there are trees, if those
    /// are more.
    pub fn new(count_max: usize, bytes_max: usize) -> Self {
        Self { ranges: Vec::new(), bytes: 0, count_max, bytes_max, next: (count_max, bytes_max) }
    }

    pub fn iter(&self) -> impl Iterator<Item = &ReadRange> + Clone {
        self.ranges.iter()
    }

    pub fn add(&mut self, range: ReadRange) {
        self.bytes += range.bytes();
        self.ranges.push(range);
        if self.is_large() {
            self.merge();
            self.coarsen();
            self.next = (self.count_max.max(2 * self.ranges.len()), self.bytes_max.max(2 * self.bytes));
        }
    }

    fn is_large(&self) -> bool {
        let (count, bytes) = self.next;
        self.ranges.len() >= count || self.bytes >= bytes
    }

    /// Joins neighbours until there is room for as many again.
    #[cold]
    fn coarsen(&mut self) {
        while self.ranges.len() > self.count_max / 2 || self.bytes > self.bytes_max / 2 {
            let before = self.ranges.len();
            let mut odd = false;
            self.join(|_, _| {
                odd = !odd;
                odd
            });
            if self.ranges.len() == before {
                return;
            }
        }
    }

    fn merge(&mut self) {
        self.ranges.sort_unstable();
        self.join(|last, next| next.lower <= last.upper);
    }

    /// Joins neighbours of one tree where `joins` says so.
    fn join(&mut self, mut joins: impl FnMut(&ReadRange, &ReadRange) -> bool) {
        self.ranges.dedup_by(|next, last| {
            let join = next.tree == last.tree && joins(last, next);
            if join && next.upper > last.upper {
                std::mem::swap(&mut next.upper, &mut last.upper);
            }
            join
        });
        self.bytes = self.ranges.iter().map(ReadRange::bytes).sum();
    }

    /// Whether part of this range is in one of the ranges, which have been merged.
    fn has_some_of(&self, range: &ReadRange) -> bool {
        let begun = self.ranges.partition_point(|own| (own.tree, &own.lower) < (range.tree, &range.upper));
        let last = begun.checked_sub(1).and_then(|last| self.ranges.get(last));
        last.is_some_and(|own| own.tree == range.tree && own.upper > range.lower)
    }

    fn has(&self, tree: PageId, key: &[u8]) -> bool {
        let begun = self
            .ranges
            .partition_point(|range| range.tree < tree || range.tree == tree && range.lower.is_before(key));
        let last = begun.checked_sub(1).and_then(|last| self.ranges.get(last));
        last.is_some_and(|range| range.tree == tree && range.upper.is_after(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    fn bound(random: &mut StdRng) -> Bound<Vec<u8>> {
        let key = vec![random.random_range(0..20u8); random.random_range(0..3)];
        match random.random_range(0..3) {
            0 => Bound::Included(key),
            1 => Bound::Excluded(key),
            _ => Bound::Unbounded,
        }
    }

    fn contains(lower: &Bound<Vec<u8>>, upper: &Bound<Vec<u8>>, key: &[u8]) -> bool {
        let above = match lower {
            Bound::Included(lower) => key >= &lower[..],
            Bound::Excluded(lower) => key > &lower[..],
            Bound::Unbounded => true,
        };
        above
            && match upper {
                Bound::Included(upper) => key <= &upper[..],
                Bound::Excluded(upper) => key < &upper[..],
                Bound::Unbounded => true,
            }
    }

    #[test]
    fn what_was_read_is_found_and_nothing_else() {
        let mut random = StdRng::seed_from_u64(1);
        for _ in 0..2000 {
            let mut reads = ReadSet::default();
            let (mut ranges, mut keys) = (Vec::new(), Vec::new());
            for _ in 0..random.random_range(0..6) {
                let tree = random.random_range(1..3);
                let (lower, upper) = (bound(&mut random), bound(&mut random));
                let edges = (
                    Edge::lower(lower.as_ref().map(|key| &key[..])),
                    Edge::upper(upper.as_ref().map(|key| &key[..])),
                );
                match random.random_range(0..3) {
                    0 => drop(reads.request(PageId(tree), edges.0, edges.1)),
                    1 => {
                        let request = reads.request(PageId(tree), Edge::lower(Bound::Unbounded), Edge::End);
                        reads.add_range(PageId(tree), edges.0, edges.1);
                        reads.fulfil(request);
                    }
                    _ => reads.add_range(PageId(tree), edges.0, edges.1),
                }
                ranges.push((tree, lower, upper));
                let key = vec![random.random_range(0..20u8); 1];
                reads.add_key(PageId(tree), &key);
                keys.push((tree, key));
            }
            reads.finish();
            for tree in 1..3 {
                for byte in 0..21 {
                    for length in 0..4 {
                        let key = vec![byte; length];
                        let expected = ranges
                            .iter()
                            .any(|(of, lower, upper)| *of == tree && contains(lower, upper, &key))
                            || keys.contains(&(tree, key.clone()));
                        assert_eq!(reads.has(PageId(tree), &key), expected, "{ranges:?} {key:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_large_set_is_kept_less_exactly_and_forgets_nothing() {
        let mut reads = ReadSet::default();
        for number in 0..300_000u32 {
            reads.add_key(PageId(7), &number.to_be_bytes());
        }
        for number in 0..20_000u32 {
            let key = |offset: u32| Bound::Included((number * 10 + offset).to_be_bytes());
            let (lower, upper) = (key(2), key(4));
            reads.add_range(
                PageId(8 + u64::from(number % 2)),
                Edge::lower(lower.as_ref().map(|key| &key[..])),
                Edge::upper(upper.as_ref().map(|key| &key[..])),
            );
            assert!(reads.ranges.ranges.len() < RANGES_MAX && reads.ranges.bytes < RANGES_BYTES_MAX);
        }
        reads.finish();
        assert!(matches!(reads.keys, Keys::Bits(_)));
        let is_read = |tree, number: u32| reads.has(PageId(tree), &number.to_be_bytes());
        assert!((0..300_000).all(|number| is_read(7, number)));
        assert!(
            (0..20_000).all(|number| (2..5).all(|key| is_read(8 + number % 2, number as u32 * 10 + key)))
        );
        let wrong = (1_000_000..1_100_000).filter(|number| is_read(7, *number)).count();
        assert!(wrong < 1000, "{wrong} of 100,000 keys match that were not read");
        assert!(!is_read(8, 1) && !is_read(8, 1_000_000) && !is_read(10, 12));
        // Reading one key again and again takes no more than reading it once.
        let mut again = ReadSet::default();
        (0..300_000).for_each(|number| again.add_key(PageId(1), &[(number % 100) as u8]));
        assert!(matches!(&again.keys, Keys::Hashes(hashes) if hashes.len() < KEYS_MAX));
    }

    /// Ranges of different trees cannot be joined. Each one that was added once had all of them sorted.
    #[test]
    fn ranges_of_very_many_trees_are_seldom_looked_at() {
        const TREES: u64 = 100_000;
        let mut ranges = Ranges::default();
        let mut rounds = 0;
        for tree in 0..TREES {
            let next = ranges.next;
            ranges.add(ReadRange::of_key(PageId(tree), b"key"));
            rounds += u32::from(ranges.next != next);
            assert!(ranges.ranges.len() as u64 == tree + 1);
        }
        assert!((1..=2 * TREES.ilog2()).contains(&rounds), "joined {rounds} times");
        ranges.merge();
        assert!((0..TREES).all(|tree| ranges.has(PageId(tree), b"key") && !ranges.has(PageId(tree), b"kez")));
        // Those of one tree are joined again.
        for number in 0..4 * TREES as u32 {
            ranges.add(ReadRange::of_key(PageId(TREES), &number.to_be_bytes()));
            assert!(ranges.ranges.len() as u64 <= 4 * TREES);
        }
    }
}
