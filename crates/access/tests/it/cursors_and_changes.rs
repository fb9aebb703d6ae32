//! Cursors while the tree changes under them, between two steps and during one: leaves split, merge, lose the records
//! that are next, and values become large ones and small ones again.

use crate::support::{create_tree, options, sealed, unseal, verify};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    ops::{Bound, ControlFlow},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};
use vellum_access::{Cursor, Entry, Tree, TreeHints};
use vellum_pool::Pool;
use vellum_vm::SimulatedFile;

const KEYS: u64 = 1500;
/// Keys that are there throughout.
const FIXED_STEP: u64 = 8;

/// Half of them share a long beginning with their neighbours, so that separators are long and the tree has three levels.
fn bytes(key: u64) -> Vec<u8> {
    let group = key / 64;
    let mut bytes = group.to_be_bytes().to_vec();
    bytes.resize(8 + group as usize % 2 * 250, b'k');
    bytes.extend(key.to_be_bytes());
    bytes
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(*bytes.last_chunk().unwrap())
}

fn length(random: &mut StdRng) -> usize {
    match random.random_range(0..30) {
        0 => random.random_range(1025..6000),
        1..6 => random.random_range(300..=1024),
        _ => random.random_range(24..120),
    }
}

struct Walk<'p> {
    tree: Tree<'p, Pool>,
    cursor: Cursor<'p, Pool>,
    /// Where the cursor stands: before the keys whose double is not less than this, and after the others.
    gap: u64,
    /// The keys of the cursor's range.
    range: (u64, u64),
    model: BTreeMap<u64, Vec<u8>>,
    random: StdRng,
    /// Nothing has changed since the cursor was moved.
    settled: bool,
    version: u64,
}

impl<'p> Walk<'p> {
    fn new(tree: Tree<'p, Pool>, seed: u64) -> Self {
        let cursor = tree.range(Bound::Unbounded, Bound::Unbounded).unwrap();
        let mut model = BTreeMap::new();
        for key in (0..KEYS).filter(|key| key % FIXED_STEP == 0 || key % 3 == 0) {
            model.insert(key, sealed(key, 0, 60));
            tree.insert(&bytes(key), &model[&key]).unwrap();
        }
        let random = StdRng::seed_from_u64(seed);
        Self { tree, cursor, gap: 0, range: (0, KEYS), model, random, settled: true, version: 0 }
    }

    /// Begins a new range, or the old one from elsewhere.
    fn begin(&mut self) {
        let at = self.random.random_range(0..KEYS);
        match self.random.random_range(0..6) {
            0 => {
                let (low, high) = (at, self.random.random_range(at..=KEYS));
                let (lower, upper) = (bytes(low), bytes(high));
                let range = (Bound::Included(&lower[..]), Bound::Excluded(&upper[..]));
                (self.cursor, self.range) = (self.tree.range(range.0, range.1).unwrap(), (low, high));
                self.gap = 2 * low;
            }
            1 => {
                self.cursor = self.tree.range(Bound::Unbounded, Bound::Unbounded).unwrap();
                (self.range, self.gap) = ((0, KEYS), 0);
            }
            2 => {
                self.cursor.seek_to_start();
                self.gap = 2 * self.range.0;
            }
            3 => {
                self.cursor.seek_to_end();
                self.gap = 2 * self.range.1;
            }
            _ => {
                self.cursor.seek(&bytes(at)).unwrap();
                self.gap = 2 * at.clamp(self.range.0, self.range.1);
            }
        }
        // What is expected changes what is copied, and nothing that is shown.
        self.cursor.expect([1, 2, 7, 30, 1000, usize::MAX][self.random.random_range(0..6)]);
        self.settled = true;
    }

    fn change(&mut self) {
        // Mostly near the cursor, so that it is its leaf that changes.
        let near = self.gap / 2 + self.random.random_range(0..60);
        let key = if self.random.random_ratio(1, 6) { self.random.random_range(0..KEYS) } else { near };
        let key = key.saturating_sub(30).min(KEYS - 1);
        if key % FIXED_STEP != 0 && self.random.random_ratio(1, 2) {
            assert_eq!(self.tree.remove(&bytes(key)).unwrap(), self.model.remove(&key).is_some());
        } else {
            self.version += 1;
            let value = sealed(key, self.version, length(&mut self.random));
            self.tree.upsert(&bytes(key), &value).unwrap();
            self.model.insert(key, value);
        }
        self.settled = false;
    }

    fn next(&mut self) {
        let shown = self.cursor.next().unwrap().map(|entry| Self::look(&self.model, &entry));
        self.check_next(shown);
    }

    /// Several entries where they lie.
    fn scan(&mut self, mut entries: usize) {
        let (mut shown, model) = (Vec::new(), &self.model);
        let flow = self.cursor.scan(|entry| {
            shown.push(Some(Self::look(model, &entry)));
            entries -= 1;
            if entries == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if flow.unwrap().is_continue() {
            shown.push(None);
        }
        shown.into_iter().for_each(|shown| self.check_next(shown));
    }

    fn check_next(&mut self, shown: Option<u64>) {
        let end = shown.unwrap_or(self.range.1);
        let fixed = (0..KEYS).step_by(FIXED_STEP as usize).find(|key| 2 * key >= self.gap);
        assert!(2 * end >= self.gap, "{shown:?} once more, for the cursor stands at {}", self.gap);
        assert!(fixed.is_none_or(|fixed| fixed >= end), "{fixed:?} is missing before {shown:?}");
        if self.settled {
            let first = (self.gap.div_ceil(2)..self.range.1).find(|key| self.model.contains_key(key));
            assert_eq!(shown, first);
        }
        assert!(shown.is_none_or(|key| (self.range.0..self.range.1).contains(&key)));
        self.gap = shown.map_or(2 * self.range.1, |key| 2 * key + 1);
    }

    fn previous(&mut self) {
        let shown = self.cursor.previous().unwrap().map(|entry| Self::look(&self.model, &entry));
        let fixed = (0..KEYS).step_by(FIXED_STEP as usize).take_while(|key| 2 * key < self.gap).last();
        let fixed = fixed.filter(|fixed| *fixed >= self.range.0);
        assert!(shown.is_none_or(|key| 2 * key < self.gap), "{shown:?} once more, from {}", self.gap);
        assert!(fixed.is_none() || fixed <= shown, "{fixed:?} is missing after {shown:?}");
        if self.settled {
            let keys = self.range.0..self.gap.div_ceil(2);
            assert_eq!(shown, keys.rev().find(|key| self.model.contains_key(key)));
        }
        assert!(shown.is_none_or(|key| (self.range.0..self.range.1).contains(&key)));
        self.gap = shown.map_or(2 * self.range.0, |key| 2 * key);
    }

    /// Checks that key and value of an entry belong together, and that a large value is the present one.
    fn look(model: &BTreeMap<u64, Vec<u8>>, entry: &Entry<'_, 'p, Pool>) -> u64 {
        let key = number(entry.key());
        assert_eq!(entry.key(), bytes(key));
        match entry.inline_value() {
            Some(value) => {
                unseal(key, value);
                assert_eq!(entry.value_length(), value.len() as u64);
                assert_eq!(&entry.value().unwrap().unwrap()[..], value);
            }
            None => {
                let value = entry.value().unwrap();
                assert_eq!(value.as_deref(), model.get(&key).map(|value| &value[..]), "{key}");
            }
        }
        key
    }
}

fn walk(pool_pages: u64, seed: u64, rounds: usize) {
    let file = SimulatedFile::new(seed);
    let pool = Pool::create_on(Arc::new(file), &options(pool_pages)).unwrap();
    let tree = create_tree(&pool).unwrap();
    let mut walk = Walk::new(tree, seed);
    for _ in 0..rounds {
        walk.begin();
        // From single records, which come in small groups, to many leaves.
        let steps = [1, 3, 10, 40, 400][walk.random.random_range(0..5)];
        let changing = [0.0, 0.02, 0.3, 1.0][walk.random.random_range(0..4)];
        let forward = walk.random.random_range(0.0..1.0);
        for _ in 0..steps {
            if walk.random.random_bool(forward) {
                match walk.random.random_range(0..6) {
                    0 => {
                        let entries = walk.random.random_range(1..60);
                        walk.scan(entries);
                    }
                    _ => walk.next(),
                }
            } else {
                walk.previous()
            }
            if walk.random.random_bool(changing) {
                for _ in 0..walk.random.random_range(1..20) {
                    walk.change();
                }
            }
        }
    }
    assert!(verify(&pool, &tree).shape.height >= 3, "splits and merges of parents are wanted too");
}

#[test]
fn a_cursor_knows_its_place_whatever_changes_between_two_steps() {
    for seed in 0..4 {
        walk(4096, seed, 400);
    }
}

#[test]
fn so_it_does_when_its_leaves_are_evicted_too() {
    for seed in 0..4 {
        walk(32, seed, 150);
    }
}

/// Between two steps the next record is removed, then all that follow in the leaf, and at last all of the leaf.
#[test]
fn records_that_go_are_not_shown_out_of_a_leaf_that_is_looked_at_anew() {
    let file = SimulatedFile::new(1);
    let pool = Pool::create_on(Arc::new(file), &options(256)).unwrap();
    let tree = create_tree(&pool).unwrap();
    for key in 0..400u64 {
        tree.insert(&key.to_be_bytes(), &sealed(key, 0, 120)).unwrap();
    }
    // Of 120 bytes each, a first group has few, and not all of a leaf.
    let mut cursor = tree.range(Bound::Unbounded, Bound::Unbounded).unwrap();
    assert_eq!(cursor.next().unwrap().map(|entry| number(entry.key())), Some(0));
    for key in 1..200u64 {
        tree.remove(&key.to_be_bytes()).unwrap();
    }
    let shown: Vec<_> =
        std::iter::from_fn(|| cursor.next().unwrap().map(|entry| number(entry.key()))).collect();
    let stale = shown.iter().take_while(|key| **key < 200).count();
    assert!(stale < 8, "{stale} records were shown that had gone");
    assert!(shown[stale..].iter().copied().eq(200..400));
    // Likewise backwards.
    cursor.seek_to_end();
    assert_eq!(cursor.previous().unwrap().map(|entry| number(entry.key())), Some(399));
    for key in 250..399u64 {
        tree.remove(&key.to_be_bytes()).unwrap();
    }
    let shown: Vec<_> =
        std::iter::from_fn(|| cursor.previous().unwrap().map(|entry| number(entry.key()))).collect();
    let stale = shown.iter().take_while(|key| **key >= 250).count();
    assert!(stale < 8, "{stale} records were shown that had gone");
    assert!(shown[stale..].iter().copied().eq((200..250).rev().chain([0])));
}

/// Records that are inserted after the cursor's place, in a leaf of which it has copied a part, are shown.
#[test]
fn records_that_come_into_the_rest_of_a_leaf_are_shown() {
    let file = SimulatedFile::new(1);
    let pool = Pool::create_on(Arc::new(file), &options(256)).unwrap();
    let tree = create_tree(&pool).unwrap();
    for key in (0..400u64).step_by(2) {
        tree.insert(&key.to_be_bytes(), &sealed(key, 0, 120)).unwrap();
    }
    let mut cursor = tree.range(Bound::Unbounded, Bound::Unbounded).unwrap();
    assert_eq!(cursor.next().unwrap().map(|entry| number(entry.key())), Some(0));
    for key in (1..400u64).step_by(2) {
        tree.insert(&key.to_be_bytes(), &sealed(key, 0, 120)).unwrap();
    }
    let shown: Vec<_> =
        std::iter::from_fn(|| cursor.next().unwrap().map(|entry| number(entry.key()))).collect();
    let missed = (1..400).filter(|key| !shown.contains(key)).count();
    assert!(missed < 8, "{missed} records are missing that were there before the cursor came to them");
}

/// Readers, each with a cursor that it uses again and again for short ranges, and writers in the same leaves.
#[test]
fn short_ranges_while_others_write() {
    ranges_while_others_write(4096);
}

/// Leaves split and merge, and are evicted, while a range reads several of them together.
#[test]
fn short_ranges_beyond_memory_while_others_write() {
    ranges_while_others_write(64);
}

fn ranges_while_others_write(pool_pages: u64) {
    let file = SimulatedFile::new(1);
    let pool = Pool::create_on(Arc::new(file), &options(pool_pages)).unwrap();
    let hints = TreeHints::default();
    let tree = create_tree(&pool).unwrap().with_hints(&hints);
    for key in (0..KEYS).step_by(FIXED_STEP as usize) {
        tree.insert(&bytes(key), &sealed(key, 0, 60)).unwrap();
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..2 {
            let stop = &stop;
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(thread);
                for version in 1.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let key = random.random_range(0..KEYS);
                    if key % FIXED_STEP != 0 && random.random_ratio(1, 2) {
                        tree.remove(&bytes(key)).unwrap();
                    } else {
                        tree.upsert(&bytes(key), &sealed(key, version, length(&mut random))).unwrap();
                    }
                }
            });
        }
        let readers: Vec<_> = (2..4).map(|thread| scope.spawn(move || read_ranges(&tree, thread))).collect();
        let results: Vec<_> = readers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|result| result.unwrap());
    });
    verify(&pool, &tree);
}

/// Each range shows its keys in order, and all those that are there throughout.
fn read_ranges(tree: &Tree<'_, Pool>, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut cursor = tree.range(Bound::Unbounded, Bound::Unbounded).unwrap();
    for _ in 0..6000 {
        let at = random.random_range(0..KEYS);
        let steps = [1, 2, 8, 30, 200][random.random_range(0..5)];
        let forward: bool = random.random();
        cursor.seek(&bytes(at)).unwrap();
        cursor.expect(if random.random() { steps } else { usize::MAX });
        let mut fixed = if forward {
            at.next_multiple_of(FIXED_STEP)
        } else {
            at.next_multiple_of(FIXED_STEP).wrapping_sub(FIXED_STEP)
        };
        let mut last = None;
        for _ in 0..steps {
            let entry = if forward { cursor.next() } else { cursor.previous() }.unwrap();
            let Some(entry) = entry else {
                assert!(fixed >= KEYS, "{fixed} is missing at the end");
                break;
            };
            let key = number(entry.key());
            assert_eq!(entry.key(), bytes(key));
            assert!(if forward { key >= at } else { key < at });
            assert!(last.is_none_or(|last| if forward { key > last } else { key < last }));
            last = Some(key);
            if let Some(value) = entry.inline_value() {
                unseal(key, value);
            } else if let Some(value) = entry.value().unwrap() {
                unseal(key, &value);
            }
            assert!(if forward { key <= fixed } else { key >= fixed || fixed > KEYS }, "{fixed} is missing");
            if key == fixed {
                fixed = if forward { fixed + FIXED_STEP } else { fixed.wrapping_sub(FIXED_STEP) };
            }
        }
    }
}
