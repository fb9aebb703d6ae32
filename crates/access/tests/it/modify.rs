//! Changing values where they lie: what is returned, what is left, and that several threads lose nothing.

use crate::support::{create_tree, open_tree, options, verify};
use std::{sync::Arc, thread};
use vellum_access::{AccessError, Tree};
use vellum_pool::Pool;
use vellum_vm::SimulatedFile;

const THREADS: u64 = 4;
const KEYS: u64 = 40;
const ROUNDS: u64 = 300;

/// Adds one to the number at the beginning of a value; returns the old number.
fn count(value: &mut [u8]) -> u64 {
    let (number, rest) = value.split_first_chunk_mut::<8>().unwrap();
    let before = u64::from_le_bytes(*number);
    *number = (before + 1).to_le_bytes();
    // The last byte changes too, so that a value that is half changed is noticed.
    if let Some(last) = rest.last_mut() {
        *last = number[0];
    }
    before
}

fn key(number: u64) -> Vec<u8> {
    number.to_be_bytes().repeat(1 + number as usize % 5)
}

/// Numbers alone, small values, and values with an extent of their own.
fn length(number: u64) -> usize {
    [8, 300, 1024, 1025, 9000][number as usize % 5]
}

#[test]
fn a_value_is_changed_and_nothing_else_is() {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::create(directory.path().join("file"), &options(256)).unwrap();
    let tree = create_tree(&pool).unwrap();
    for number in 0..KEYS {
        tree.insert(&key(number), &vec![0; length(number)]).unwrap();
    }
    for number in (0..KEYS).step_by(3) {
        assert_eq!(tree.modify(&key(number), count).unwrap(), Some(0));
        assert_eq!(tree.modify(&key(number), count).unwrap(), Some(1));
    }
    for number in 0..KEYS {
        let mut expected = vec![0; length(number)];
        if number.is_multiple_of(3) {
            *expected.last_mut().unwrap() = if length(number) > 8 { 2 } else { 0 };
            expected[0] = 2;
        }
        assert_eq!(tree.get(&key(number)).unwrap(), Some(expected), "{number}");
    }
    verify(&pool, &tree);
}

#[test]
fn without_a_value_nothing_is_called_or_changed() {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::create(directory.path().join("file"), &options(256)).unwrap();
    let tree = create_tree(&pool).unwrap();
    tree.insert(b"empty", b"").unwrap();
    assert_eq!(tree.modify(b"absent", |_| panic!("there is none")).unwrap(), None::<()>);
    assert_eq!(tree.modify(b"empty", |value| value.len()).unwrap(), Some(0));
    let long = vec![0; 1025];
    assert!(matches!(tree.modify(&long, |_| ()), Err(AccessError::KeyTooLong { bytes: 1025 })));
    assert_eq!(verify(&pool, &tree).shape.entries, 1);
}

/// Counts in the values of keys, some of them together; returns how many counts there were.
fn count_together(tree: Tree<'_, Pool>, keys: &[Vec<u8>], depth: usize) -> u64 {
    let (mut next, mut changed) = (0, 0);
    tree.multi_modify(
        keys,
        depth,
        |place, value| {
            assert_eq!(value.len(), length_of(&keys[place]), "the value of another key");
            count(value);
        },
        |place, result| {
            assert_eq!(place, next, "told in the order of the keys");
            next += 1;
            changed += u64::from(result.unwrap());
        },
    );
    assert_eq!(next, keys.len());
    changed
}

fn length_of(key: &[u8]) -> usize {
    length(u64::from_be_bytes(*key.first_chunk().unwrap()))
}

#[test]
fn many_values_are_changed_in_one_call() {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::create(directory.path().join("file"), &options(64)).unwrap();
    let tree = create_tree(&pool).unwrap();
    for number in 0..1000 {
        tree.insert(&key(number), &vec![0; length(number)]).unwrap();
    }
    for depth in [1, 16] {
        // Every third of them, twice, and some that are not there.
        let keys: Vec<_> = (0..1200).chain(0..1200).filter(|number| number % 3 == 0).map(key).collect();
        assert_eq!(count_together(tree, &keys, depth), 2 * 334);
    }
    for number in 0..1000 {
        let expected = if number % 3 == 0 { 4 } else { 0 };
        assert_eq!(tree.modify(&key(number), count).unwrap(), Some(expected), "{number}");
    }
    let mut outcomes = Vec::new();
    let keys = [key(0), vec![0; 1025], key(3)];
    tree.multi_modify(&keys, 8, |_, value| _ = count(value), |_, result| outcomes.push(result));
    assert!(matches!(outcomes[..], [Ok(true), Err(AccessError::KeyTooLong { bytes: 1025 }), Ok(true)]));
    verify(&pool, &tree);
}

/// Keys that follow each other, over the borders of leaves, some of them absent, some with large values, some twice.
#[test]
fn values_that_lie_side_by_side_are_changed_once_each() {
    const COUNT: u64 = 4000;
    for pool_pages in [64, 1 << 13] {
        let directory = tempfile::tempdir().unwrap();
        let pool = Pool::create(directory.path().join("file"), &options(pool_pages)).unwrap();
        let tree = create_tree(&pool).unwrap();
        let is_there = |number: u64| number % 11 != 3;
        for number in (0..COUNT).filter(|number| is_there(*number)) {
            let bytes = if number % 501 == 0 { 5000 } else { 8 + number as usize % 60 };
            assert!(tree.insert(&number.to_be_bytes(), &vec![0; bytes]).unwrap());
        }
        let twice = |number: u64| 1 + usize::from(number.is_multiple_of(7));
        let keys: Vec<_> =
            (0..COUNT).flat_map(|number| std::iter::repeat_n(number.to_be_bytes(), twice(number))).collect();
        let mut expected = keys.iter();
        tree.multi_modify(
            &keys,
            8,
            |number, value| {
                value[0] += 1;
                value[1..7].copy_from_slice(&keys[number][2..]);
            },
            |number, changed| {
                let key = expected.next().unwrap();
                assert_eq!(changed.unwrap(), is_there(u64::from_be_bytes(*key)), "{number}");
            },
        );
        assert_eq!(expected.next(), None);
        for number in (0..COUNT).filter(|number| is_there(*number)) {
            let value = tree.get(&number.to_be_bytes()).unwrap().unwrap();
            assert_eq!(usize::from(value[0]), twice(number), "{number}");
            assert_eq!(value[1..7], number.to_be_bytes()[2..], "{number}");
        }
        verify(&pool, &tree);
    }
}

/// The missing leaves of keys that follow each other are read at once, and not one after the other.
#[test]
fn values_side_by_side_that_are_not_in_memory_are_read_together() {
    let file = SimulatedFile::new(11);
    let pool = Pool::create_on(Arc::new(file.clone()), &options(256)).unwrap();
    let tree = create_tree(&pool).unwrap();
    // Only so many that they differ in their last bytes alone.
    let keys: Vec<_> = (0..256u64).map(u64::to_be_bytes).collect();
    keys.iter().for_each(|key| assert!(tree.insert(key, &[0; 300]).unwrap()));
    let leaves = tree.shape().unwrap().leaves;
    pool.close().unwrap();
    let pool = Pool::open_on(Arc::new(file.clone()), &options(256)).unwrap();
    let tree = open_tree(&pool);
    assert!(tree.get(&keys[0]).unwrap().is_some(), "its leaf is in memory");
    let before = file.history().lines().count();
    tree.multi_modify(&keys, 64, |_, value| value[0] += 1, |_, changed| assert!(changed.unwrap()));
    let history = file.history();
    let places: Vec<u64> = history
        .lines()
        .skip(before)
        .filter_map(|line| line.split_once(" read 4096 bytes at ")?.1.split(':').next()?.parse().ok())
        .collect();
    assert_eq!(places.len() as u64, leaves - 1, "{history}");
    // The simulated file ends reads that are under way at once in any order; the leaves lie in that of their keys.
    assert!(!places.is_sorted(), "{places:?}");
    keys.iter().for_each(|key| assert_eq!(tree.get(key).unwrap().unwrap()[0], 1));
}

fn count_at_random(tree: Tree<'_, Pool>, thread: u64) {
    let mut state = thread + 1;
    for round in 0..ROUNDS * KEYS / 10 / 4 {
        let numbers = [(); 4].map(|()| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 33) % KEYS
        });
        if round % 2 == 0 {
            assert_eq!(count_together(tree, &numbers.map(key), 4), 4);
        } else {
            numbers.iter().for_each(|number| _ = tree.modify(&key(*number), count).unwrap().unwrap());
        }
        // Records of other keys come and go in the same leaf.
        for number in numbers {
            let other = [b"x".as_slice(), &key(number), &[thread as u8]].concat();
            tree.upsert(&other, &vec![1; (state >> 50) as usize % 900]).unwrap();
        }
    }
}

#[test]
fn several_threads_count_in_the_same_values() {
    let directory = tempfile::tempdir().unwrap();
    // A pool so small that pages are evicted all the time.
    let pool = Pool::create(directory.path().join("file"), &options(64)).unwrap();
    let tree = create_tree(&pool).unwrap();
    for number in 0..KEYS {
        tree.insert(&key(number), &vec![0; length(number)]).unwrap();
    }
    thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || count_at_random(tree, thread));
        }
    });
    let total: u64 = (0..KEYS).map(|number| tree.modify(&key(number), count).unwrap().unwrap()).sum();
    assert_eq!(total, THREADS * (ROUNDS * KEYS / 10));
    verify(&pool, &tree);
}

/// A value that is larger than the pool is changed in parts, also if the leaf that refers to it has to be read first.
#[test]
fn values_larger_than_the_pool_are_changed_together_with_others() {
    const LENGTH: usize = 1 << 20;
    let file = SimulatedFile::new(12);
    let pool = Pool::create_on(Arc::new(file.clone()), &options(64)).unwrap();
    let tree = create_tree(&pool).unwrap();
    tree.upsert_from(b"large", LENGTH as u64, &mut &vec![1; LENGTH][..]).unwrap();
    tree.insert(b"small", &[1]).unwrap();
    pool.close().unwrap();
    let pool = Pool::open_on(Arc::new(file), &options(64)).unwrap();
    let tree = open_tree(&pool);
    let keys: [&[u8]; 3] = [b"large", b"none", b"small"];
    let mut found = Vec::new();
    tree.multi_modify(&keys, 8, |_, value| value[0] += 1, |_, changed| found.push(changed.unwrap()));
    assert_eq!(found, [true, false, true]);
    let mut first = [0];
    tree.reader(b"large").unwrap().unwrap().read_at(0, &mut first).unwrap();
    assert_eq!((first, tree.get(b"small").unwrap()), ([2], Some(vec![2])));
}
