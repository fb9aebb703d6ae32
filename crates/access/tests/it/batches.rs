//! Batches do what single operations do, whatever the device does meanwhile.

use crate::recording::RecordingPager;
use crate::support::{create_tree, open_tree, options, print_counts, sealed, seed, unseal, verify};
use rand::{
    Rng, RngExt, SeedableRng,
    rngs::StdRng,
    seq::{IndexedRandom, SliceRandom},
};
use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use vellum_access::{AccessError, Answer, Batch, Task, Tree, Written};
use vellum_pool::{Pool, PoolError};
use vellum_vm::{Faults, FileOperation, SimulatedFile};

type Owned = Result<Option<Vec<u8>>, AccessError>;

/// The values that a batch of lookups finds.
fn multi_get<K: AsRef<[u8]>>(tree: &Tree<'_, Pool>, keys: &[K], depth: usize) -> Vec<Owned> {
    let mut found = Vec::new();
    tree.multi_get(keys, depth, |index, value| {
        assert_eq!(index, found.len(), "answers come in the order of the keys");
        found.push(value.map(|value| value.map(<[u8]>::to_vec)));
    });
    assert_eq!(found.len(), keys.len());
    found
}

fn big_endian(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// A closed file with a tree of so many sealed values of version 1, 100 bytes each but for some large ones.
fn filled(file: &SimulatedFile, count: u64) {
    let mut pool = Pool::create_on(Arc::new(file.clone()), &options(256)).unwrap();
    let tree = create_tree(&pool).unwrap();
    for number in 0..count {
        let length = if number % 97 == 96 { 9000 } else { 100 };
        tree.insert(&big_endian(number), &sealed(number, 1, length)).unwrap();
    }
    pool.checkpoint().unwrap();
}

#[test]
fn they_do_what_a_btreemap_does_beyond_memory() {
    let pages_read = they_do_what_a_btreemap_does(64);
    assert!(pages_read > 10_000, "most of it happened beyond memory: {pages_read}");
}

#[test]
fn they_do_what_a_btreemap_does_in_memory() {
    assert_eq!(they_do_what_a_btreemap_does(1 << 14), 0);
}

/// Returns how many pages a pool of so many pages has read.
fn they_do_what_a_btreemap_does(pool_pages: u64) -> u64 {
    let directory = tempfile::tempdir().unwrap();
    let mut rng = StdRng::seed_from_u64(2 + seed());
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut operations = 0;
    let pool = Pool::create(directory.path().join("tree"), &options(pool_pages)).unwrap();
    let tree = create_tree(&pool).unwrap();
    for round in 0..150 {
        // Each key once: operations on the same key may happen in any order.
        let mut keys: Vec<Vec<u8>> = (0..3000u64)
            .filter(|_| rng.random_range(0..20) == 0)
            .map(|number| match number % 3 {
                0 => number.to_be_bytes().to_vec(),
                1 => format!("a prefix that many keys share/{number}").into_bytes(),
                _ => vec![b'x'; (number % 1025) as usize],
            })
            .collect::<HashSet<_>>()
            .into_iter()
            .collect();
        keys.sort();
        keys.shuffle(&mut rng);
        let tasks: Vec<_> = keys
            .into_iter()
            .map(|key| {
                let length = [30, 30, 30, 200, 1000, 5000][rng.random_range(0..6)];
                let mut value = vec![0; length];
                rng.fill_bytes(&mut value);
                let removing = round > 80;
                let task = match rng.random_range(0..10) {
                    0 => Task::Insert(value),
                    1 => Task::Update(value),
                    2..5 if !removing => Task::Upsert(value),
                    2..5 => Task::Remove,
                    5 => Task::GetPart {
                        offset: rng.random_range(0..6000),
                        length: *[0, 10, 4000, usize::MAX].choose(&mut rng).unwrap(),
                    },
                    _ => Task::Get,
                };
                (key, task)
            })
            .collect();
        let depth = [1, 7, 64][round % 3];
        let mut batch = Batch::new(&pool, depth);
        let mut answered = 0;
        batch.run(tree, tasks.iter().map(|(key, task)| (key, as_slice(task))), |index, request, answer| {
            assert_eq!(request.0, &tasks[index].0);
            assert_eq!(index, answered);
            answered += 1;
            let (key, task) = &tasks[index];
            let before = model.get(key);
            match (task, answer.unwrap()) {
                (Task::Get, Answer::Value(value)) => assert_eq!(value, before.map(|value| &value[..])),
                (Task::GetPart { offset, length }, Answer::Value(value)) => {
                    let expected = before.map(|value| value[..].get(*offset..).unwrap_or_default());
                    assert_eq!(value, expected.map(|value| &value[..(*length).min(value.len())]));
                }
                (Task::Insert(_), Answer::Written(written)) => {
                    let new = before.is_none();
                    assert_eq!(written, if new { Written::Inserted } else { Written::Refused });
                }
                (Task::Update(_), Answer::Written(written)) => {
                    let new = before.is_none();
                    assert_eq!(written, if new { Written::Refused } else { Written::Replaced });
                }
                (Task::Upsert(_), Answer::Written(written)) => {
                    let new = before.is_none();
                    assert_eq!(written, if new { Written::Inserted } else { Written::Replaced });
                }
                (Task::Remove, Answer::Removed(removed)) => assert_eq!(removed, before.is_some()),
                other => panic!("{other:?}"),
            }
        });
        assert_eq!(answered, tasks.len());
        operations += tasks.len() as u64;
        for (key, task) in tasks {
            match task {
                Task::Insert(value) => drop(model.entry(key).or_insert(value)),
                Task::Update(value) => drop(model.get_mut(&key).map(|old| *old = value)),
                Task::Upsert(value) => drop(model.insert(key, value)),
                Task::Remove => drop(model.remove(&key)),
                Task::Get | Task::GetPart { .. } => {}
            }
        }
        let all: Vec<_> = model.keys().collect();
        for (found, expected) in multi_get(&tree, &all, depth).into_iter().zip(model.values()) {
            assert_eq!(found.unwrap().as_ref(), Some(expected));
        }
        let part = [0..3, 10..100, 700..4000, 4999..9000][round % 4].clone();
        let expected =
            |value: &Vec<u8>| value[part.start.min(value.len())..part.end.min(value.len())].to_vec();
        let mut values = model.values();
        tree.multi_get_part(&all, depth, part.clone(), |_, found| {
            assert_eq!(found.unwrap(), Some(&expected(values.next().unwrap())[..]));
        });
        assert_eq!(values.next(), None);
        let mut found = Vec::new();
        for (key, value) in model.iter().skip(round % 50).step_by(50) {
            assert!(tree.get_part_into(key, part.clone(), &mut found).unwrap());
            assert_eq!(found, expected(value));
        }
        assert!(!tree.get_part_into(b"there is no such key", part, &mut found).unwrap() && found.is_empty());
    }
    print_counts(operations, &pool.statistics());
    verify(&pool, &tree);
    pool.statistics().pages_read
}

fn as_slice(task: &Task<Vec<u8>>) -> Task<&[u8]> {
    match task {
        Task::Get => Task::Get,
        Task::GetPart { offset, length } => Task::GetPart { offset: *offset, length: *length },
        Task::Insert(value) => Task::Insert(value),
        Task::Update(value) => Task::Update(value),
        Task::Upsert(value) => Task::Upsert(value),
        Task::Remove => Task::Remove,
    }
}

#[test]
fn keys_that_are_too_long_have_an_error_of_their_own() {
    let file = SimulatedFile::new(3);
    filled(&file, 100);
    let pool = Pool::open_on(Arc::new(file), &options(64)).unwrap();
    let keys = [vec![0; 8], vec![7; 1025], big_endian(99).to_vec(), vec![]];
    let found = multi_get(&open_tree(&pool), &keys, 8);
    assert!(matches!(found[1], Err(AccessError::KeyTooLong { bytes: 1025 })));
    assert_eq!(unseal(0, found[0].as_ref().unwrap().as_ref().unwrap()), 1);
    assert_eq!(unseal(99, found[2].as_ref().unwrap().as_ref().unwrap()), 1);
    assert_eq!(found[3].as_ref().unwrap(), &None);
}

/// Lookups of one leaf's keys read it once.
#[test]
fn lookups_that_miss_the_same_page_read_it_once() {
    let file = SimulatedFile::new(4);
    filled(&file, 2000);
    let pool = Pool::open_on(Arc::new(file), &options(256)).unwrap();
    let tree = open_tree(&pool);
    let height = 2;
    let found = multi_get(&tree, &[big_endian(500); 40], 64);
    assert!(found.iter().all(|value| unseal(500, value.as_ref().unwrap().as_ref().unwrap()) == 1));
    assert_eq!(pool.statistics().pages_read, height);
}

/// The n-th read fails, for every n: that is an error of the lookups which needed that page, and of no others.
#[test]
fn each_read_that_fails_is_an_error_of_those_who_needed_it() {
    let file = SimulatedFile::new(5);
    filled(&file, 1500);
    let mut failed = 0;
    for n in 1.. {
        let pool = Pool::open_on(Arc::new(file.clone()), &options(64).read_only(true)).unwrap();
        let tree = open_tree(&pool);
        file.fail_nth_of(FileOperation::Read, n);
        let before = file.counts().scheduled_failures;
        let keys: Vec<_> = (0..1500).step_by(11).map(big_endian).collect();
        let found = multi_get(&tree, &keys, 16);
        let happened = file.counts().scheduled_failures > before;
        let errors = found.iter().filter(|value| value.is_err()).count();
        assert!(errors <= if n <= 1 { keys.len() } else { 40 }, "{errors} lookups shared a page");
        failed += errors;
        for (value, key) in found.into_iter().zip(&keys) {
            match value {
                Ok(value) => assert_eq!(unseal(u64::from_be_bytes(*key), &value.unwrap()), 1),
                Err(error) => assert!(matches!(&error, AccessError::Pool(PoolError::Read { .. })), "{error}"),
            }
        }
        file.heal();
        // Nothing is left behind.
        for value in multi_get(&tree, &keys, 16) {
            assert!(value.unwrap().is_some());
        }
        if !happened {
            break;
        }
    }
    assert!(failed > 10, "{failed}");
}

/// A leaf is damaged: the lookups of its keys say so and name it, all others find what they look for.
#[test]
fn a_damaged_page_is_an_error_of_those_who_need_it_and_names_it() {
    let file = SimulatedFile::new(6);
    filled(&file, 1500);
    let pages = {
        let pool = Pool::open_on(Arc::new(file.clone()), &options(64).read_only(true)).unwrap();
        pool.statistics().pages_in_file
    };
    let mut damaged_leaves = 0;
    for page in (3..pages).step_by(5) {
        file.flip_bit(page * 4096 * 8 + 20_000);
        let Ok(pool) = Pool::open_on(Arc::new(file.clone()), &options(64).read_only(true)) else {
            // It was the space map.
            file.flip_bit(page * 4096 * 8 + 20_000);
            continue;
        };
        let tree = open_tree(&pool);
        let keys: Vec<_> = (0..1500).map(big_endian).collect();
        let one_by_one: Vec<_> = keys.iter().map(|key| tree.get(key).is_ok()).collect();
        let found = multi_get(&tree, &keys, 32);
        for ((number, value), fine) in found.into_iter().enumerate().zip(one_by_one) {
            assert_eq!(value.is_ok(), fine, "key {number}, page {page}");
            match value {
                Ok(value) => assert_eq!(unseal(number as u64, &value.unwrap()), 1),
                Err(AccessError::Pool(PoolError::Corruption { extent, .. })) => {
                    assert!((extent.head.0..extent.end().0).contains(&page));
                    damaged_leaves += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
        file.flip_bit(page * 4096 * 8 + 20_000);
    }
    assert!(damaged_leaves > 20);
}

/// A batch has begun reads and is not advanced. Other operations that need the pages get them all the same: a call for
/// one key, another batch, on the same thread or another one.
#[test]
fn nobody_waits_for_a_batch_that_nobody_advances() {
    let file = SimulatedFile::new(7);
    filled(&file, 3000);
    let pool = Pool::open_on(Arc::new(file), &options(512)).unwrap();
    let tree = open_tree(&pool);
    // The root must be there, so that several leaves are under way at once.
    tree.get(&big_endian(0)).unwrap();
    let begin = |from: u64| {
        let mut batch: Batch<'_, Pool, [u8; 8], Vec<u8>> = Batch::new(&pool, 64);
        for number in (from..3000).step_by(300) {
            batch.begin(tree, big_endian(number), Task::Get, number);
        }
        (0..4).for_each(|_| batch.advance(false));
        batch
    };
    let (mut first, mut second) = (begin(100), begin(200));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| tree.get(&big_endian(400)).unwrap());
        assert_eq!(unseal(400, &other.join().unwrap().unwrap()), 1);
    });
    assert_eq!(unseal(700, &tree.get(&big_endian(700)).unwrap().unwrap()), 1);
    // Each batch needs what the other reads.
    for number in (200..3000).step_by(300) {
        first.begin(tree, big_endian(number), Task::Get, number);
        second.begin(tree, big_endian(number - 100), Task::Get, number - 100);
    }
    for batch in [&mut first, &mut second] {
        let mut seen = HashSet::new();
        while !batch.is_empty() {
            batch.advance(true);
            while let Some(number) = batch.take(|tag, (key, _), answer| {
                assert_eq!(key, big_endian(tag));
                let Answer::Value(Some(value)) = answer.unwrap() else { panic!("nothing found") };
                assert_eq!(unseal(tag, value), 1);
                tag
            }) {
                assert!(seen.insert(number));
            }
        }
        assert_eq!(seen.len(), 20);
    }
}

/// A batch has begun a read and is not advanced. Another one needs the page, and always has reads of its own under way.
#[test]
fn a_batch_that_is_never_idle_gets_a_page_that_another_one_reads() {
    let file = SimulatedFile::new(9);
    filled(&file, 3000);
    let pool = Pool::open_on(Arc::new(file), &options(64)).unwrap();
    let tree = open_tree(&pool);
    tree.get(&big_endian(0)).unwrap();
    let mut idle: Batch<'_, Pool, [u8; 8], Vec<u8>> = Batch::new(&pool, 8);
    idle.begin(tree, big_endian(2000), Task::Get, 2000);
    let is_reading = |batch: &mut Batch<'_, Pool, [u8; 8], Vec<u8>>| {
        let before = pool.statistics().misses;
        batch.advance(false);
        pool.statistics().misses > before
    };
    while !is_reading(&mut idle) {}
    let mut busy: Batch<'_, Pool, [u8; 8], Vec<u8>> = Batch::new(&pool, 8);
    busy.begin(tree, big_endian(2000), Task::Get, 2000);
    let mut numbers = (0..3000).filter(|number| !(1900..2100).contains(number)).cycle().step_by(67);
    for round in 0.. {
        assert!(round < 10_000, "the operation starves");
        while busy.has_room() {
            let number = numbers.next().unwrap();
            busy.begin(tree, big_endian(number), Task::Get, number);
        }
        busy.advance(true);
        let mut answered = Vec::new();
        while let Some(number) = busy.take(|tag, _, answer| answer.map(|_| tag).unwrap()) {
            answered.push(number);
        }
        if answered.contains(&2000) {
            break;
        }
    }
    while !idle.is_empty() {
        idle.advance(true);
        idle.take(|_, _, answer| assert!(matches!(answer, Ok(Answer::Value(Some(_))))));
    }
}

/// The device works on the reads while the owner of a batch does something else. A call that returns only when all is done
/// waits for the device anyway, and submits nothing apart.
#[test]
fn reads_reach_the_device_before_the_batch_is_advanced_again() {
    let file = SimulatedFile::new(10);
    filled(&file, 3000);
    let pager = RecordingPager::new(Pool::open_on(Arc::new(file), &options(64)).unwrap());
    let tree = Tree::open(&pager, open_tree(&pager.pool).root());
    let requests = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
    let keys: Vec<_> = (0..3000).step_by(40).map(big_endian).collect();
    tree.multi_get(&keys, 16, |_, value| assert!(value.unwrap().is_some()));
    assert!(requests(&pager.requests.begun) > 50);
    assert_eq!(requests(&pager.requests.flushes), 0);
    for waits in [false, true] {
        let [begun, flushes] = [&pager.requests.begun, &pager.requests.flushes].map(requests);
        let mut batch: Batch<'_, RecordingPager, [u8; 8], Vec<u8>> = Batch::new(&pager, 16);
        let mut rounds = 0;
        keys.iter().for_each(|key| _ = batch.begin(tree, *key, Task::Get, 0));
        while !batch.is_empty() {
            batch.advance(waits);
            rounds += 1;
            assert_eq!(requests(&pager.requests.unsubmitted), 0, "in round {rounds}");
            while batch.take(|_, _, answer| assert!(answer.is_ok())).is_some() {}
        }
        assert!(requests(&pager.requests.begun) > begun, "the pool does not hold all pages");
        assert!((1..=rounds).contains(&(requests(&pager.requests.flushes) - flushes)));
    }
}

#[test]
fn a_batch_that_is_dropped_leaves_nothing_behind() {
    let file = SimulatedFile::new(8);
    filled(&file, 3000);
    let pool = Pool::open_on(Arc::new(file), &options(64)).unwrap();
    let tree = open_tree(&pool);
    for round in 0..50u64 {
        let mut batch: Batch<'_, Pool, [u8; 8], Vec<u8>> = Batch::new(&pool, 16);
        for number in (round..3000).step_by(50) {
            batch.begin(tree, big_endian(number), Task::Get, number);
        }
        (0..round % 7).for_each(|_| batch.advance(false));
    }
    let resident = pool.statistics().pages_resident;
    assert!(resident <= 64);
    // Everything can be latched and evicted again.
    for number in 0..3000 {
        assert_eq!(unseal(number, &tree.get(&big_endian(number)).unwrap().unwrap()), 1);
    }
    drop(pool.allocate(64, vellum_base::PageKind::USER).expect("the whole pool can be had"));
}

/// Batches, writers and the evictor meet on a slow device that completes in any order.
#[test]
fn batches_meet_writers_and_the_evictor() {
    batches_meet_writers(64);
}

#[test]
fn batches_meet_writers_in_memory() {
    batches_meet_writers(1 << 14);
}

fn batches_meet_writers(pool_pages: u64) {
    const KEYS: u64 = 2000;
    let file = SimulatedFile::new(9);
    filled(&file, KEYS);
    let faults = Faults { delay_max: Duration::from_micros(20), short: 0.1, ..Faults::default() };
    file.set_faults(faults);
    let pool = Pool::open_on(Arc::new(file.clone()), &options(pool_pages)).unwrap();
    let tree = open_tree(&pool);
    let (over, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let first_seed = seed() * 1000;
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2u64)
            .map(|seed| {
                scope.spawn(move || {
                    let mut rng = StdRng::seed_from_u64(first_seed + seed);
                    for round in 0..60 {
                        let keys: Vec<_> = (0..100).map(|_| big_endian(rng.random_range(0..KEYS))).collect();
                        for (key, value) in keys.iter().zip(multi_get(&tree, &keys, 1 + round % 40)) {
                            let value = value.unwrap().expect("no key is ever removed");
                            assert!(unseal(u64::from_be_bytes(*key), &value) >= 1);
                        }
                    }
                })
            })
            .collect();
        let writers: Vec<_> = (0..2u64)
            .map(|seed| {
                let (over, pool, written) = (&over, &pool, &written);
                scope.spawn(move || {
                    let mut rng = StdRng::seed_from_u64(first_seed + seed + 100);
                    let mut version = 2;
                    while !over.load(Ordering::Relaxed) {
                        let keys: HashSet<u64> = (0..30).map(|_| rng.random_range(0..KEYS)).collect();
                        let entries: Vec<_> = keys
                            .into_iter()
                            .map(|key| (key, sealed(key, version, 24 + (version * 37 % 300) as usize)))
                            .collect();
                        written.fetch_add(entries.len() as u64, Ordering::Relaxed);
                        let tasks =
                            entries.iter().map(|(key, value)| (big_endian(*key), Task::Upsert(value)));
                        Batch::new(pool, 16).run(tree, tasks, |_, _, answer| {
                            assert_eq!(answer.unwrap(), Answer::Written(Written::Replaced));
                        });
                        version += 1;
                    }
                })
            })
            .collect();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        over.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
    file.set_faults(Faults::default());
    print_counts(2 * 60 * 100 + written.into_inner(), &pool.statistics());
    verify(&pool, &tree);
}

/// What a batch wrote is there after the file is closed and opened again, and a crash before that is noticed.
#[test]
fn what_batches_wrote_survives_a_close_and_not_a_crash() {
    let file = SimulatedFile::new(10);
    filled(&file, 1000);
    let mut pool = Pool::open_on(Arc::new(file.clone()), &options(64)).unwrap();
    let tree = open_tree(&pool);
    let entries: Vec<_> = (0..1000).map(|key| (big_endian(key), sealed(key, 2, 150))).collect();
    let tasks = entries.iter().map(|(key, value)| (key, Task::Upsert(value)));
    Batch::new(&pool, 32).run(tree, tasks, |_, _, answer| assert!(answer.is_ok()));
    let crashed = Pool::open_on(Arc::new(file.crash()), &options(64));
    assert!(matches!(crashed.err(), Some(PoolError::NotClosedCleanly { .. })));
    pool.checkpoint().unwrap();
    drop(pool);
    let pool = Pool::open_on(Arc::new(file.crash()), &options(64)).unwrap();
    let tree = open_tree(&pool);
    let keys: Vec<_> = (0..1000).map(big_endian).collect();
    for (key, value) in multi_get(&tree, &keys, 32).into_iter().enumerate() {
        assert_eq!(unseal(key as u64, &value.unwrap().unwrap()), 2);
    }
    verify(&pool, &tree);
}
