//! The keys of removed records that have versions.
//!
//! They are in order and in chunks. It is known of each chunk which snapshots see all removals in it, so these pass over
//! it. Otherwise each reader of a queue, from whose beginning records are removed, would look at all that was removed
//! since the oldest snapshot.

use crate::{
    removed_range::RemovedRange,
    writer::{Sight, State, Writer},
};
use std::{
    collections::BTreeMap,
    ops::{Bound, RangeBounds as _},
    sync::Arc,
};
use vellum_access::Direction;
use vellum_base::PageId;

/// The keys of removed records, each with the last writer that has removed it.
#[derive(Default)]
pub(crate) struct RemovedKeys {
    trees: BTreeMap<PageId, Keys>,
    count: usize,
}

/// Those of a tree.
#[derive(Default)]
struct Keys {
    chunks: Chunks,
    /// Of all chunks, so that a transaction which removes from a queue need not look at each one.
    seen_by: SeenBy,
}

/// By a key each that is not above those of the chunk, and above those of the chunk before.
type Chunks = BTreeMap<Box<[u8]>, Chunk>;

#[derive(Default)]
struct Chunk {
    removed: Vec<Removed>,
    seen_by: SeenBy,
}

struct Removed {
    key: Box<[u8]>,
    writer: Arc<Writer>,
}

/// Which snapshots see all removals of a chunk: perhaps some more do.
#[derive(Clone, Copy, Default)]
struct SeenBy {
    /// The time that they have at least.
    from: u64,
    /// The only transaction whose snapshot does, if one of the writers is open.
    only: Option<u64>,
}

impl SeenBy {
    fn add(&mut self, writer: &Writer) {
        match writer.state() {
            State::Committed(time) => self.from = self.from.max(time),
            State::Open if self.only.is_none_or(|only| only == writer.id) => self.only = Some(writer.id),
            // Another one may have removed the record before.
            State::Open | State::RolledBack(_) => self.from = u64::MAX,
        }
    }

    /// Of two parts together.
    fn and(self, other: Self) -> Self {
        let is_one = self.only.is_none() || other.only.is_none() || self.only == other.only;
        let from = if is_one { self.from.max(other.from) } else { u64::MAX };
        Self { from, only: self.only.or(other.only) }
    }

    fn has(self, sight: Sight) -> bool {
        self.from <= sight.time && self.only.is_none_or(|only| only == sight.own)
    }
}

impl Chunk {
    /// The most keys of a chunk.
    const MOST: usize = 256;

    fn find(&self, key: &[u8]) -> Result<usize, usize> {
        self.removed.binary_search_by(|removed| (*removed.key).cmp(key))
    }

    /// Finds out anew which snapshots see all of it: writers that were open may have been committed.
    fn look_again(&mut self) {
        self.seen_by = SeenBy::default();
        self.removed.iter().for_each(|removed| self.seen_by.add(&removed.writer));
    }

    /// Adds a key, or notes that it was removed again. Returns whether it is new, and the upper part of the chunk if that
    /// has become too long.
    fn insert(&mut self, key: &[u8], writer: &Arc<Writer>) -> (bool, Option<Self>) {
        self.seen_by.add(writer);
        let index = match self.find(key) {
            Ok(index) => {
                let last = self.removed.get_mut(index).map(|removed| &mut removed.writer);
                // What was committed earlier may be entered later.
                let is_older =
                    |last: &Writer| writer.committed().is_some_and(|time| last.committed() > Some(time));
                if let Some(last) = last.filter(|last| !is_older(last)) {
                    *last = writer.clone();
                }
                return (false, None);
            }
            Err(index) => index,
        };
        self.removed.insert(index, Removed { key: key.into(), writer: writer.clone() });
        let count = self.removed.len();
        let upper = (count > Self::MOST).then(|| {
            // Often they come in key order: then the chunk stays full.
            let from = if index + 1 == count { index } else { count / 2 };
            let mut upper = Self { removed: self.removed.split_off(from), seen_by: SeenBy::default() };
            upper.look_again();
            upper
        });
        (true, upper)
    }
}

impl RemovedKeys {
    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Notes that a writer is about to remove a record.
    pub fn insert(&mut self, tree: PageId, key: &[u8], writer: &Arc<Writer>) {
        let Keys { chunks, seen_by } = self.trees.entry(tree).or_default();
        seen_by.add(writer);
        let found = chunks.range_mut::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back();
        let (is_new, upper) = match found {
            Some((_, chunk)) => chunk.insert(key, writer),
            // It may have keys of any kind, below those of the next one.
            None => chunks.entry(Box::default()).or_default().insert(key, writer),
        };
        if let Some(upper) = upper
            && let Some(first) = upper.removed.first()
        {
            chunks.insert(first.key.clone(), upper);
        }
        self.count += usize::from(is_new);
    }

    /// Forgets a key whose record has no versions any more.
    pub fn remove(&mut self, tree: PageId, key: &[u8]) {
        let Some(Keys { chunks, .. }) = self.trees.get_mut(&tree) else { return };
        let found = chunks.range_mut::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back();
        let Some((first, chunk)) = found else { return };
        let Ok(index) = chunk.find(key) else { return };
        chunk.removed.remove(index);
        self.count -= 1;
        if chunk.removed.is_empty() {
            let first = first.clone();
            chunks.remove(&first);
            if chunks.is_empty() {
                self.trees.remove(&tree);
            }
        }
    }

    /// Forgets the keys of a tree.
    pub fn forget(&mut self, tree: PageId) {
        let Keys { chunks, .. } = self.trees.remove(&tree).unwrap_or_default();
        self.count -= chunks.values().map(|chunk| chunk.removed.len()).sum::<usize>();
    }

    /// Adds the keys of records of a tree whose last removal a snapshot does not see.
    pub fn add_unseen(&mut self, sight: Sight, tree: PageId, range: &mut RemovedRange<'_>) {
        let Some(Keys { chunks, seen_by }) = self.trees.get_mut(&tree) else { return };
        if seen_by.has(sight) {
            return;
        }
        let (mut seen, mut count) = (SeenBy::default(), 0);
        let all_count = chunks.len();
        let first = first_chunk(chunks, range.bounds());
        let chunks = chunks.range_mut::<[u8], _>((first.as_ref().map(|first| &first[..]), range.bounds().1));
        all(chunks, range.direction(), |(_, chunk)| {
            if chunk.seen_by.has(sight) {
                (seen, count) = (seen.and(chunk.seen_by), count + 1);
                return true;
            }
            chunk.look_again();
            (seen, count) = (seen.and(chunk.seen_by), count + 1);
            let is_unseen = |writer: &Writer| !sight.sees(writer.id, writer.state());
            chunk.seen_by.has(sight)
                || all(&chunk.removed, range.direction(), |Removed { key, writer }| {
                    !range.bounds().contains(&key[..]) || !is_unseen(writer) || range.add_next(key)
                })
        });
        // Each was looked at.
        if count == all_count {
            *seen_by = seen;
        }
    }

    /// Adds the keys of a tree.
    pub fn add(&self, tree: PageId, range: &mut RemovedRange<'_>) {
        let Some(Keys { chunks, .. }) = self.trees.get(&tree) else { return };
        let first = first_chunk(chunks, range.bounds());
        let chunks = chunks.range::<[u8], _>((first.as_ref().map(|first| &first[..]), range.bounds().1));
        let keys = chunks.flat_map(|(_, chunk)| &chunk.removed).map(|removed| &removed.key[..]);
        all(keys, range.direction(), |key| !range.bounds().contains(key) || range.add_next(key));
    }
}

/// Below which bound no chunk has keys within bounds. It is not above the upper one of these.
fn first_chunk(chunks: &Chunks, bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> Bound<Box<[u8]>> {
    let (Bound::Included(key) | Bound::Excluded(key), upper) = bounds else { return Bound::Unbounded };
    let key = match upper {
        Bound::Included(upper) | Bound::Excluded(upper) => key.min(upper),
        Bound::Unbounded => key,
    };
    let before = chunks.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back();
    before.map_or(Bound::Unbounded, |(first, _)| Bound::Included(first.clone()))
}

/// Shows items in this direction until `show` returns false; returns whether it has shown all.
fn all<I: IntoIterator<IntoIter: DoubleEndedIterator>>(
    items: I,
    direction: Direction,
    show: impl FnMut(I::Item) -> bool,
) -> bool {
    match direction {
        Direction::Forward => items.into_iter().all(show),
        Direction::Backward => items.into_iter().rev().all(show),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::removed_range::in_portions;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    const TREE: PageId = PageId(7);

    /// In each direction, in portions of any size.
    fn shown(
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        mut show: impl FnMut(&mut RemovedRange<'_>),
    ) -> Vec<Box<[u8]>> {
        let mut shown = [Direction::Forward, Direction::Backward].map(|direction| {
            let mut most = 1;
            in_portions(bounds, direction, |bounds| {
                let mut range = RemovedRange::new(bounds, (direction, most));
                show(&mut range);
                most *= 3;
                range.finish()
            })
        });
        assert_eq!(shown[0], shown[1]);
        std::mem::take(&mut shown[0])
    }

    fn unseen(keys: &mut RemovedKeys, sight: Sight, bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> Vec<Box<[u8]>> {
        shown(bounds, |range| keys.add_unseen(sight, TREE, range))
    }

    #[test]
    fn a_snapshot_is_shown_the_keys_whose_last_removal_it_does_not_see() {
        for seed in 0..40 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut keys = RemovedKeys::default();
            let mut model = BTreeMap::<Vec<u8>, Arc<Writer>>::new();
            let (mut writers, mut time) = (Vec::<Arc<Writer>>::new(), 1);
            let range = if seed % 2 == 0 { 300 } else { 60_000_u16 };
            let key = |number: u16| number.to_be_bytes()[usize::from(number.is_multiple_of(7))..].to_vec();
            for step in 0..6_000 {
                match random.random_range(0..100) {
                    0..60 => {
                        if writers.is_empty() || random.random_range(0..10) == 0 {
                            writers.push(Arc::new(Writer::new(1000 + step)));
                        }
                        let writer = &writers[random.random_range(0..writers.len())];
                        let key = key(random.random_range(0..range));
                        // No other writer removes what an open one has removed.
                        if model
                            .get(&key)
                            .is_none_or(|last| last.state() != State::Open || last.id == writer.id)
                        {
                            keys.insert(TREE, &key, writer);
                            model.insert(key, writer.clone());
                        }
                    }
                    60..75 => {
                        let key = key(random.random_range(0..range));
                        keys.remove(TREE, &key);
                        model.remove(&key);
                    }
                    75..90 if writers.len() > 2 => {
                        let writer = writers.swap_remove(random.random_range(0..writers.len()));
                        time += 1;
                        if random.random_range(0..5) == 0 { writer.roll_back(0) } else { writer.commit(time) }
                    }
                    _ => {
                        let own = if random.random_range(0..2) == 0 || writers.is_empty() {
                            1
                        } else {
                            writers[random.random_range(0..writers.len())].id
                        };
                        let sight = Sight { time: random.random_range(0..=time), own };
                        let (one, other) =
                            (key(random.random_range(0..range)), key(random.random_range(0..range)));
                        let (lower, upper) = (one.clone().min(other.clone()), one.max(other));
                        let bounds = match random.random_range(0..4) {
                            0 => (Bound::Unbounded, Bound::Unbounded),
                            1 => (Bound::Excluded(&lower[..]), Bound::Included(&upper[..])),
                            2 => (Bound::Included(&lower[..]), Bound::Excluded(&upper[..])),
                            _ => (Bound::Included(&lower[..]), Bound::Unbounded),
                        };
                        let is_within = |key: &[u8]| bounds.contains(key);
                        let within = model.iter().filter(|(key, _)| is_within(key));
                        let is_unseen = |writer: &Writer| !sight.sees(writer.id, writer.state());
                        let expected: Vec<_> = within
                            .clone()
                            .filter(|(_, writer)| is_unseen(writer))
                            .map(|(key, _)| Box::from(&key[..]))
                            .collect();
                        assert_eq!(unseen(&mut keys, sight, bounds), expected, "seed {seed}, step {step}");
                        let all = shown(bounds, |range| keys.add(TREE, range));
                        assert!(all.iter().map(|key| &key[..]).eq(within.map(|(key, _)| &key[..])));
                    }
                }
                assert_eq!(keys.len(), model.len());
            }
            keys.forget(PageId(8));
            assert_eq!(keys.len(), model.len());
            keys.forget(TREE);
            assert_eq!((keys.len(), keys.trees.len()), (0, 0));
        }
    }

    #[test]
    fn what_everybody_sees_is_passed_over() {
        let mut keys = RemovedKeys::default();
        let own = Arc::new(Writer::new(1));
        for number in 0..10_000_u32 {
            let stranger = Arc::new(Writer::committed_at(2, 5));
            keys.insert(TREE, &number.to_be_bytes(), if number < 5_000 { &own } else { &stranger });
        }
        let chunks = &keys.trees[&TREE].chunks;
        assert!(chunks.len() <= 10_000 / Chunk::MOST + 1, "{} chunks", chunks.len());
        let passed = |sight: Sight| chunks.values().filter(|chunk| chunk.seen_by.has(sight)).count();
        assert_eq!(passed(Sight { time: 5, own: 1 }), chunks.len());
        assert!(passed(Sight { time: 5, own: 3 }) >= chunks.len() / 2 - 1);
        assert_eq!(passed(Sight { time: 4, own: 3 }), 0);
        // No chunk is looked at by those who see all of them.
        let whole = |keys: &RemovedKeys, sight| keys.trees[&TREE].seen_by.has(sight);
        assert!(whole(&keys, Sight { time: 5, own: 1 }) && !whole(&keys, Sight { time: 4, own: 1 }));
        keys.insert(TREE, b"other", &Arc::new(Writer::committed_at(4, 7)));
        own.commit(8);
        assert!(!whole(&keys, Sight { time: 9, own: 5 }));
        let all = (Bound::Unbounded, Bound::Unbounded);
        assert!(unseen(&mut keys, Sight { time: 9, own: 5 }, all).is_empty());
        assert!(whole(&keys, Sight { time: 9, own: 5 }) && !whole(&keys, Sight { time: 7, own: 5 }));
    }

    /// The key may be one of those that another writer has removed before.
    #[test]
    fn what_was_rolled_back_is_shown() {
        let mut keys = RemovedKeys::default();
        let (first, second) = (Writer::committed_at(1, 5), Arc::new(Writer::new(2)));
        keys.insert(TREE, b"key", &Arc::new(first));
        keys.insert(TREE, b"key", &second);
        second.roll_back(0);
        let all = (Bound::Unbounded, Bound::Unbounded);
        assert_eq!(unseen(&mut keys, Sight { time: 4, own: 3 }, all), [Box::from(&b"key"[..])]);
        assert_eq!(unseen(&mut keys, Sight { time: 9, own: 3 }, all), [Box::from(&b"key"[..])]);
        // What was committed earlier is entered later.
        let later = Arc::new(Writer::committed_at(4, 9));
        keys.insert(TREE, b"key", &later);
        keys.insert(TREE, b"key", &Arc::new(Writer::committed_at(3, 6)));
        assert_eq!(unseen(&mut keys, Sight { time: 8, own: 5 }, all), [Box::from(&b"key"[..])]);
        assert!(unseen(&mut keys, Sight { time: 9, own: 5 }, all).is_empty());
    }
}
