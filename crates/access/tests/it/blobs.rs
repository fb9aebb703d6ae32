//! Large values: held by readers while they are replaced, larger than the pool, and damaged.

use crate::support::{create_tree, open_tree, options, problems, sealed, unseal, verify};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    ops::Bound,
    sync::Arc,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};
use vellum_access::{AccessError, MAX_VALUE_BYTES, Written};
use vellum_pool::{Pool, PoolError};
use vellum_vm::SimulatedFile;

#[test]
fn readers_hold_values_while_writers_replace_and_remove_them() {
    const KEYS: u64 = 12;
    let directory = tempfile::tempdir().unwrap();
    let mut pool = Pool::create(directory.path().join("tree"), &options(64)).unwrap();
    {
        let tree = create_tree(&pool).unwrap();
        let done = AtomicBool::new(false);
        let (tree, done) = (&tree, &done);
        let seen: u64 = thread::scope(|scope| {
            for thread in 0..2u64 {
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(thread);
                    for version in 1..3000 {
                        // Each writes half of the keys, so versions of a key grow.
                        let key = random.random_range(0..KEYS / 2) * 2 + thread;
                        if random.random_ratio(1, 5) {
                            tree.remove(&key.to_be_bytes()).unwrap();
                        } else {
                            let length = random.random_range(1025..25_000);
                            tree.upsert(&key.to_be_bytes(), &sealed(key, version, length)).unwrap();
                        }
                    }
                    done.store(true, Ordering::Relaxed);
                });
            }
            let readers: Vec<_> = (2..5)
                .map(|thread| {
                    scope.spawn(move || {
                        let mut random = StdRng::seed_from_u64(thread);
                        let (mut last, mut seen) = ([0; KEYS as usize], 0);
                        // The last values stay, so this loop ends however late the thread begins.
                        while !done.load(Ordering::Relaxed) || seen < 100 {
                            let key = random.random_range(0..KEYS);
                            let bytes = key.to_be_bytes();
                            if let Some(value) = tree.value(&bytes).unwrap() {
                                assert!(value.is_in_place());
                                let version = unseal(key, &value);
                                assert!(version >= last[key as usize], "key {key}");
                                last[key as usize] = version;
                                // A value stays what it is as long as it is held.
                                thread::yield_now();
                                assert_eq!(unseal(key, &value), version);
                                seen += 1;
                            }
                            if let Some(mut reader) = tree.reader(&bytes).unwrap() {
                                let mut part = vec![0; reader.length() as usize];
                                match reader.read_at(0, &mut part) {
                                    Ok(_) => drop(unseal(key, &part)),
                                    Err(AccessError::ValueChanged) => {}
                                    Err(error) => panic!("{error}"),
                                }
                            }
                        }
                        seen
                    })
                })
                .collect();
            readers.into_iter().map(|reader| reader.join().unwrap()).sum()
        });
        assert!(seen >= 300, "{seen} values were seen");
    }
    // Values that were still held when they were replaced are freed now.
    pool.checkpoint().unwrap();
    verify(&pool, &open_tree(&pool));
}

#[test]
fn a_thread_may_replace_what_it_holds() {
    let directory = tempfile::tempdir().unwrap();
    let mut pool = Pool::create(directory.path().join("tree"), &options(64)).unwrap();
    {
        let tree = create_tree(&pool).unwrap();
        tree.upsert(b"key", &sealed(1, 0, 9000)).unwrap();
        let mut held = Vec::new();
        for version in 1..12 {
            held.push(tree.value(b"key").unwrap().unwrap());
            assert_eq!(tree.upsert(b"key", &sealed(1, version, 9000)).unwrap(), Written::Replaced);
        }
        let last = tree.value(b"key").unwrap().unwrap();
        assert!(tree.remove(b"key").unwrap());
        assert!(tree.value(b"key").unwrap().is_none());
        for (version, value) in held.iter().chain([&last]).enumerate() {
            assert_eq!(unseal(1, value), version as u64);
        }
    }
    pool.checkpoint().unwrap();
    verify(&pool, &open_tree(&pool));
    assert!(pool.statistics().pages_allocated < 8, "{:?}", pool.statistics());
}

#[test]
fn values_larger_than_the_pool_are_written_and_read_in_parts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tree");
    let pool = Pool::create(&path, &options(64)).unwrap();
    let tree = create_tree(&pool).unwrap();
    const LENGTH: usize = 3_000_001;
    let value = sealed(7, 1, LENGTH);
    assert_eq!(tree.upsert_from(b"large", LENGTH as u64, &mut &value[..]).unwrap(), Written::Inserted);
    // A source that ends too early changes nothing.
    let refused = tree.upsert_from(b"large", LENGTH as u64 + 1, &mut &value[..]);
    assert!(matches!(refused, Err(AccessError::Source(_))), "{refused:?}");
    let refused = tree.upsert_from(b"large", 20_000, &mut &value[..100]);
    assert!(matches!(refused, Err(AccessError::Source(_))), "{refused:?}");
    let refused = tree.upsert_from(b"small", 200, &mut &value[..100]);
    assert!(matches!(refused, Err(AccessError::Source(_))), "{refused:?}");
    verify(&pool, &tree);
    pool.close().unwrap();

    let pool = Pool::open(&path, &options(64)).unwrap();
    let tree = open_tree(&pool);
    let whole = tree.value(b"large");
    assert!(matches!(whole, Err(AccessError::Pool(PoolError::LargerThanPool { .. }))), "{whole:?}");
    let mut reader = tree.reader(b"large").unwrap().unwrap();
    let before = pool.statistics().pages_read;
    let mut part = [0; 1000];
    assert_eq!(reader.read_at(2_000_000, &mut part).unwrap(), 1000);
    assert_eq!(part, value[2_000_000..2_001_000]);
    let read = pool.statistics().pages_read - before;
    assert!(read < 24, "{read} pages were read for one part");
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..60 {
        let at = random.random_range(0..LENGTH + 10);
        let mut part = vec![0; random.random_range(0..200_000)];
        let length = reader.read_at(at as u64, &mut part).unwrap();
        assert_eq!(length, part.len().min(LENGTH.saturating_sub(at)));
        assert!(part[..length] == value[at.min(LENGTH)..][..length]);
    }
    assert_eq!(reader.read_at(u64::MAX, &mut [0; 10]).unwrap(), 0);
    assert_eq!(reader.read_at(u64::MAX - 5, &mut [0; 10]).unwrap(), 0);
    assert_eq!(reader.read_at(0, &mut []).unwrap(), 0);
    let too_large = tree.upsert_from(b"x", MAX_VALUE_BYTES + 1, &mut std::io::repeat(0));
    assert!(matches!(too_large, Err(AccessError::ValueTooLong { .. })));
    assert!(tree.remove(b"large").unwrap());
    assert!(matches!(reader.read_at(0, &mut part), Err(AccessError::ValueChanged)));
    verify(&pool, &tree);
}

#[test]
fn values_of_the_lengths_at_which_something_changes() {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::create(directory.path().join("tree"), &options(64)).unwrap();
    let tree = create_tree(&pool).unwrap();
    let lengths =
        [0, 1, 887, 888, 889, 890, 1023, 1024, 1025, 4056, 4057, 4064, 4065, 65_535, 65_536, 65_537];
    for key_length in [0, 1, 8, 887, 888, 889, 1024] {
        let key = vec![b'k'; key_length];
        for (round, length) in lengths.into_iter().chain(lengths.into_iter().rev()).enumerate() {
            let value = vec![round as u8; length];
            tree.upsert(&key, &value).unwrap();
            assert_eq!(tree.get(&key).unwrap().as_ref(), Some(&value), "{key_length} {length}");
            assert_eq!(tree.value_length(&key).unwrap(), Some(length as u64));
            let inline = length <= 1024 && key_length + length <= 1912;
            assert_eq!(tree.reader(&key).unwrap().is_none(), inline, "{key_length} {length}");
            assert_eq!(tree.value(&key).unwrap().unwrap().is_in_place(), !inline);
            let mut cursor = tree.range(Bound::Included(&key), Bound::Included(&key)).unwrap();
            let entry = cursor.next().unwrap().unwrap();
            assert_eq!((entry.key(), entry.value_length()), (&key[..], length as u64));
            assert_eq!(entry.value().unwrap().unwrap()[..], value[..]);
        }
    }
    assert!(matches!(tree.get(&[0; 1025]), Err(AccessError::KeyTooLong { bytes: 1025 })));
    assert!(matches!(tree.insert(&[0; 1025], b""), Err(AccessError::KeyTooLong { bytes: 1025 })));
    assert!(matches!(tree.remove(&[0; 1025]), Err(AccessError::KeyTooLong { bytes: 1025 })));
    assert_eq!(verify(&pool, &tree).shape.entries, 7);
}

/// A chunk damaged on storage is found by reads of that part, and by no others; and by `verify`.
#[test]
fn a_damaged_chunk_is_found_by_reading_it_and_by_verify() {
    let file = SimulatedFile::new(1);
    let pool = Pool::create_on(Arc::new(file.clone()), &options(64)).unwrap();
    let tree = create_tree(&pool).unwrap();
    let value = sealed(1, 1, 500_000);
    tree.upsert(b"key", &value).unwrap();
    let mut extent = None;
    pool.for_each_extent(|found| extent = if found.pages > 100 { Some(found) } else { extent });
    pool.close().unwrap();
    let start = extent.unwrap().head.offset();
    let reopen = || Pool::open_on(Arc::new(file.clone()), &options(64)).unwrap();
    let flip = |at: u64| file.flip_bit((start + at) * 8 + 3);

    flip(32 + 200_000);
    let pool = reopen();
    let tree = open_tree(&pool);
    let mut reader = tree.reader(b"key").unwrap().unwrap();
    let mut part = [0; 100];
    assert_eq!(reader.read_at(100_000, &mut part).unwrap(), 100);
    assert_eq!(part, value[100_000..100_100]);
    let error = reader.read_at(200_000, &mut part).unwrap_err();
    assert!(error.to_string().contains("are damaged"), "{error}");
    assert!(problems(&pool, &tree).0.iter().any(|problem| problem.contains("are damaged")));
    drop(pool);
    flip(32 + 200_000);

    // The header, the checksums of the parts, the padding after them.
    for at in [3, 10, 20, 25, 28, 29, 30, 32 + 500_000 + 9, extent.unwrap().bytes() as u64 - 1] {
        flip(at);
        let pool = reopen();
        assert_eq!(problems(&pool, &open_tree(&pool)).0.len(), 1, "byte {at}");
        drop(pool);
        flip(at);
    }
    let pool = reopen();
    verify(&pool, &open_tree(&pool));
}

/// Values that do not fit into memory together evict each other, and their leaf, while threads read them all the time. Each
/// thread gets its value after some tries.
#[test]
fn threads_whose_values_do_not_fit_together_get_them() {
    for (one, other) in [(9, 15), (12, 13), (15, 15), (22, 20)] {
        let pool = Pool::create_on(Arc::new(SimulatedFile::new(2)), &options(24)).unwrap();
        let tree = create_tree(&pool).unwrap();
        let values = [(1u8, one), (2, other), (3, one), (4, other)];
        for (key, pages) in values {
            tree.upsert(&[key], &vec![key; pages * 4096 - 100]).unwrap();
        }
        thread::scope(|scope| {
            for (key, pages) in values {
                let tree = &tree;
                scope.spawn(move || {
                    for _ in 0..2000 {
                        let value = tree.get(&[key]).unwrap().unwrap();
                        assert!(value.len() == pages * 4096 - 100 && value.iter().all(|byte| *byte == key));
                    }
                });
            }
        });
    }
}
