//! Several threads at random under a pool of 64 pages, so that each operation evicts.
//!
//! Each thread has keys of its own, on which it knows exactly what it must find. All share some others, whose
//! values say which key and version they belong to; there a single key behaves like one register: a reader
//! never sees a version older than one that was there before it began. Scans see keys in order, every key that
//! is there throughout, and nothing of another range.

use crate::support::{create_tree, options, print_counts, sealed, seed, unseal, verify};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    ops::{Bound, ControlFlow},
    sync::atomic::{AtomicU64, Ordering},
    thread,
};
use vellum_access::{AccessError, Entry, Tree, TreeHints, Written};
use vellum_base::Extent;
use vellum_pool::{Pool, PoolError, PoolOptions};
use vellum_vm::ReleaseMethod;

const THREADS: u64 = 4;
const OPERATIONS: u64 = 4000;
const OWN_KEYS: u64 = 1200;
const SHARED_KEYS: u64 = 60;
/// Keys that are there throughout: every 16th of all numbers.
const FIXED_STEP: u64 = 16;

/// Keys of all threads interleave, so that they meet in the same leaves.
fn own_key(thread: u64, number: u64) -> u64 {
    (number * (THREADS + 2) + thread + 1) * FIXED_STEP + 1 + thread
}

fn shared_key(number: u64) -> u64 {
    (number * 41 + 1) * FIXED_STEP + 9
}

fn fixed_keys() -> impl Iterator<Item = u64> {
    (0..OWN_KEYS * (THREADS + 2)).step_by(7).map(|number| number * FIXED_STEP)
}

fn bytes(key: u64) -> Vec<u8> {
    // Some keys are long, so that nodes are small and split and merge often.
    let mut bytes = key.to_be_bytes().to_vec();
    if key.is_multiple_of(3) {
        bytes.resize(8 + (key % 200) as usize, b'k');
    }
    bytes
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[..8].try_into().unwrap())
}

fn length(random: &mut StdRng) -> usize {
    match random.random_range(0..40) {
        0 => random.random_range(1025..9000),
        1..8 => random.random_range(200..=1024),
        _ => random.random_range(24..150),
    }
}

/// What all threads know of a shared key: an operation that begins later sees no version below `written`.
struct Shared {
    next: AtomicU64,
    written: Vec<AtomicU64>,
}

struct Worker<'a, 'p> {
    tree: Tree<'p, Pool>,
    thread: u64,
    random: StdRng,
    model: BTreeMap<u64, Vec<u8>>,
    shared: &'a Shared,
}

impl Worker<'_, '_> {
    fn step(&mut self, step: u64) {
        // The tree grows and shrinks in turn, so that nodes split and merge.
        let growing = (step / (OPERATIONS / 4)).is_multiple_of(2);
        match self.random.random_range(0..20) {
            0..3 => self.shared_key(),
            3 => self.scan(),
            4..7 => self.get(),
            7..13 if growing => self.put(step),
            7..9 => self.put(step),
            _ if growing && self.random.random_ratio(1, 2) => self.get(),
            _ => self.remove(),
        }
    }

    fn own(&mut self) -> u64 {
        own_key(self.thread, self.random.random_range(0..OWN_KEYS))
    }

    fn get(&mut self) {
        let key = self.own();
        let found = self.tree.value(&bytes(key)).unwrap();
        assert_eq!(found.as_deref(), self.model.get(&key).map(|value| &value[..]), "key {key}");
    }

    fn put(&mut self, version: u64) {
        let key = self.own();
        let value = sealed(key, version, length(&mut self.random));
        let there = self.model.contains_key(&key);
        match self.random.random_range(0..4) {
            0 => {
                assert_eq!(self.tree.insert(&bytes(key), &value).unwrap(), !there, "key {key}");
                if there {
                    return;
                }
            }
            1 => {
                assert_eq!(self.tree.update(&bytes(key), &value).unwrap(), there, "key {key}");
                if !there {
                    return;
                }
            }
            _ => {
                let expected = if there { Written::Replaced } else { Written::Inserted };
                assert_eq!(self.tree.upsert(&bytes(key), &value).unwrap(), expected, "key {key}");
            }
        }
        self.model.insert(key, value);
    }

    fn remove(&mut self) {
        let key = self.own();
        assert_eq!(self.tree.remove(&bytes(key)).unwrap(), self.model.remove(&key).is_some(), "key {key}");
    }

    /// Versions come from one counter, so of two writes that do not overlap the later has the greater one.
    fn shared_key(&mut self) {
        let number = self.random.random_range(0..SHARED_KEYS);
        let key = shared_key(number);
        let least = self.shared.written[number as usize].load(Ordering::SeqCst);
        if self.random.random_ratio(1, 3) {
            // Only thread `number % THREADS` writes a key, so its versions grow in the tree too.
            if number % THREADS == self.thread {
                let version = self.shared.next.fetch_add(1, Ordering::SeqCst);
                let value = sealed(key, version, length(&mut self.random));
                self.tree.upsert(&bytes(key), &value).unwrap();
                self.shared.written[number as usize].store(version, Ordering::SeqCst);
            }
        } else if let Some(value) = self.tree.value(&bytes(key)).unwrap() {
            let version = unseal(key, &value);
            assert!(version >= least, "key {key}: version {version} after {least}");
        } else {
            assert_eq!(least, 0, "key {key} has vanished");
        }
    }

    fn scan(&mut self) {
        let all = OWN_KEYS * (THREADS + 2) * FIXED_STEP;
        let from = self.random.random_range(0..all);
        let to = from + self.random.random_range(0..all / 4);
        let mut expected: Vec<u64> = fixed_keys().filter(|key| (from..to).contains(key)).collect();
        let mut own: Vec<u64> = self.model.range(from..to).map(|(key, _)| *key).collect();
        let (lower, upper) = (from.to_be_bytes(), to.to_be_bytes());
        let range = (Bound::Included(&lower[..]), Bound::Excluded(&upper[..]));
        let mut cursor = self.tree.range(range.0, range.1).unwrap();
        let backwards = self.random.random();
        if backwards {
            cursor.seek_to_end();
            expected.reverse();
            own.reverse();
        }
        let (mut expected, mut own) = (expected.into_iter(), own.into_iter());
        let mut last = None;
        let mut look = |entry: Entry<'_, '_, _>| {
            let key = number(entry.key());
            assert_eq!(bytes(key), entry.key());
            assert!((from..to).contains(&key), "{key} is not in {from}..{to}");
            assert!(
                last.is_none_or(|last| if backwards { key < last } else { key > last }),
                "{key}, {last:?}"
            );
            last = Some(key);
            if let Some(value) = entry.inline_value() {
                unseal(key, value);
            } else if let Some(value) = entry.value().unwrap() {
                unseal(key, &value);
            }
            if key.is_multiple_of(FIXED_STEP) {
                assert_eq!(Some(key), expected.next(), "a key that is there throughout");
            } else if key % FIXED_STEP == 1 + self.thread {
                assert_eq!(Some(key), own.next(), "a key of this thread");
                assert_eq!(entry.value().unwrap().as_deref(), Some(&self.model[&key][..]));
            }
        };
        if !backwards && self.random.random() {
            let ended = cursor.scan(|entry| {
                look(entry);
                ControlFlow::<()>::Continue(())
            });
            assert!(ended.unwrap().is_continue());
        } else {
            while let Some(entry) = if backwards { cursor.previous() } else { cursor.next() }.unwrap() {
                look(entry);
            }
        }
        assert_eq!((expected.next(), own.next()), (None, None), "the scan of {from}..{to} ended too early");
    }
}

fn run(options: &PoolOptions) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tree");
    let pool = Pool::create(&path, options).unwrap();
    let end = TreeHints::default();
    let tree = create_tree(&pool).unwrap().with_hints(&end);
    for key in fixed_keys() {
        assert!(tree.insert(&bytes(key), &sealed(key, 1, 300)).unwrap());
    }
    let shared =
        Shared { next: AtomicU64::new(1), written: (0..SHARED_KEYS).map(|_| AtomicU64::new(0)).collect() };
    let models: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let random = StdRng::seed_from_u64(seed() * THREADS + thread);
                let mut worker = Worker { tree, thread, random, model: BTreeMap::new(), shared: &shared };
                scope.spawn(move || {
                    (0..OPERATIONS).for_each(|step| worker.step(step));
                    worker.model
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let statistics = pool.statistics();
    assert!(statistics.pages_evicted > OPERATIONS, "{statistics:?}");
    assert!(statistics.pages_resident <= 64, "{statistics:?}");
    print_counts(THREADS * OPERATIONS, &statistics);
    pool.close().unwrap();

    let pool = Pool::open(&path, options).unwrap();
    let tree = crate::support::open_tree(&pool);
    let report = verify(&pool, &tree);
    let own: usize = models.iter().map(BTreeMap::len).sum();
    let written = shared.written.iter().filter(|version| version.load(Ordering::SeqCst) > 0).count();
    assert_eq!(report.shape.entries as usize, own + written + fixed_keys().count());
    assert_eq!(tree.shape().unwrap(), report.shape);
    for (key, value) in models.iter().flatten() {
        assert_eq!(tree.get(&bytes(*key)).unwrap().as_ref(), Some(value), "key {key}");
    }
}

#[test]
fn threads_agree_with_their_models() {
    run(&options(64));
}

#[test]
fn threads_agree_without_background_eviction() {
    run(&options(64).background_eviction(false));
}

#[test]
fn threads_agree_whichever_way_memory_is_released() {
    run(&options(64).release_method(ReleaseMethod::Madvise));
}

/// Threads that meet in one leaf, in ascending order: the place where two want to split the same node.
#[test]
fn threads_that_load_in_order_do_not_split_each_others_leaves() {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::create(directory.path().join("tree"), &options(256)).unwrap();
    let end = TreeHints::default();
    let tree = create_tree(&pool).unwrap().with_hints(&end);
    let next = AtomicU64::new(0);
    const KEYS: u64 = 60_000;
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let key = next.fetch_add(1, Ordering::Relaxed);
                    if key >= KEYS {
                        break;
                    }
                    assert!(tree.insert(&key.to_be_bytes(), &sealed(key, 0, 120)).unwrap());
                }
            });
        }
    });
    let shape = verify(&pool, &tree).shape;
    assert_eq!(shape.entries, KEYS);
    let fill = shape.leaf_bytes_used as f64 / (shape.leaves * 3968) as f64;
    assert!(fill > 0.5, "leaves are {fill} full");
    // The records are removed again, from both ends and the middle.
    thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for index in 0..KEYS / 4 {
                    let key = match thread {
                        0 => index,
                        1 => KEYS - 1 - index,
                        2 => KEYS / 2 + index,
                        _ => KEYS / 2 - 1 - index,
                    };
                    assert!(tree.remove(&key.to_be_bytes()).unwrap(), "key {key}");
                }
            });
        }
    });
    let shape = verify(&pool, &tree).shape;
    assert_eq!((shape.entries, shape.height), (0, 1), "{shape:?}");
    print_counts(2 * KEYS, &pool.statistics());
}

/// The page that an append hint names is given to another tree: what is appended goes to its own tree all the same.
#[test]
fn an_append_hint_does_not_outlive_its_leaf() {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::create(directory.path().join("tree"), &options(64)).unwrap();
    let (end, other_end) = (TreeHints::default(), TreeHints::default());
    let tree = create_tree(&pool).unwrap().with_hints(&end);
    let mut reused = 0;
    for round in 0..20 {
        for key in 0..500u64 {
            assert!(tree.insert(&key.to_be_bytes(), &sealed(key, round, 120)).unwrap());
        }
        let (last, _) = end.ends().mine().get().unwrap();
        // All leaves but one are merged away, the marked one among them.
        for key in 20..500u64 {
            assert!(tree.remove(&key.to_be_bytes()).unwrap());
        }
        let other = Tree::create(&pool).unwrap().with_hints(&other_end);
        for key in 0..2000u64 {
            assert!(other.insert(&key.to_be_bytes(), &sealed(key, round, 120)).unwrap());
        }
        for key in 20..40u64 {
            assert!(tree.insert(&key.to_be_bytes(), &sealed(key, round, 120)).unwrap());
        }
        reused += u64::from(
            other_end.ends().mine().get().is_some_and(|(page, _)| page == last)
                || pool.is_extent(Extent::page(last)),
        );
        assert_eq!(other.shape().unwrap().entries, 2000);
        assert_eq!(tree.shape().unwrap().entries, 40);
        other.destroy().unwrap();
        for key in 0..40u64 {
            assert!(tree.remove(&key.to_be_bytes()).unwrap());
        }
    }
    assert!(reused > 0, "no page was used again");
}

/// In the smallest pool with many threads there may be no room at times; that is an error and loses nothing.
#[test]
fn a_pool_too_small_for_many_threads_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let options = options(16);
    let path = directory.path().join("tree");
    let pool = Pool::create(&path, &options).unwrap();
    let tree = create_tree(&pool).unwrap();
    let done: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8u64)
            .map(|thread| {
                scope.spawn(move || {
                    let mut done = Vec::new();
                    for number in 0..250u64 {
                        let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) & !7 | thread;
                        let mut long = key.to_be_bytes().to_vec();
                        long.resize(600, 7);
                        match tree.insert(&long, &sealed(key, number, 24 + (number % 900) as usize)) {
                            Ok(inserted) => {
                                assert!(inserted);
                                done.push(key);
                            }
                            Err(AccessError::Pool(PoolError::PoolExhausted { .. })) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                    done
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(done.len() > 100, "hardly anything worked: {} of 2000", done.len());
    pool.close().unwrap();
    let pool = Pool::open(&path, &options).unwrap();
    let tree = crate::support::open_tree(&pool);
    let shape = verify(&pool, &tree).shape;
    assert!(shape.height >= 3, "{shape:?}");
    assert_eq!(shape.entries as usize, done.len());
    for key in done {
        let mut long = key.to_be_bytes().to_vec();
        long.resize(600, 7);
        unseal(key, &tree.get(&long).unwrap().unwrap());
    }
}

/// A thread that latches all pages gets an error that says so, and all works again afterwards.
#[test]
fn a_pool_full_of_latched_values_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::create(directory.path().join("tree"), &options(16)).unwrap();
    let tree = create_tree(&pool).unwrap();
    for key in 0..400u64 {
        tree.insert(&key.to_be_bytes(), &sealed(key, 0, if key < 20 { 3000 } else { 800 })).unwrap();
    }
    let mut held = Vec::new();
    let error = loop {
        match tree.value(&(held.len() as u64).to_be_bytes()) {
            Ok(value) => held.push(value.unwrap()),
            Err(error) => break error,
        }
        assert!(held.len() < 20, "20 latched pages in a pool of 16");
    };
    assert!(matches!(error, AccessError::Pool(PoolError::PoolExhausted { pool_pages: 16, .. })), "{error}");
    assert!(held.len() >= 8, "{}", held.len());
    // A change may find room or not; if not, it leaves nothing behind.
    let inserted = match tree.insert(b"new", &sealed(1, 1, 3000)) {
        Ok(inserted) => inserted,
        Err(AccessError::Pool(PoolError::PoolExhausted { .. })) => false,
        Err(error) => panic!("{error}"),
    };
    held.iter().enumerate().for_each(|(key, value)| assert_eq!(unseal(key as u64, value), 0));
    drop(held);
    assert_eq!(tree.insert(b"new", &sealed(1, 1, 3000)).unwrap(), !inserted);
    assert_eq!(verify(&pool, &tree).shape.entries, 401);
}
