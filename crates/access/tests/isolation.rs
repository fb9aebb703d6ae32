//! Transactions on a tree larger than memory, at random. Whatever others do, each sees the entries of the moment when it
//! began, and its own changes, by every way of reading. A change conflicts exactly if another transaction, which this one does
//! not see, has changed the record. What is undone, from what was kept or from the log, is as it was. In the end nothing is left
//! of all that, and the records of the changes give the same pages. Planted bugs are noticed.

mod recording;
mod reference;
mod support;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use recording::{RecordingPager, as_it_is};
use reference::{Bug, Reference, Transaction, World, retry};
use std::{
    collections::BTreeSet,
    ops::Bound,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
    thread,
};
use support::{options, seed};
use vellum_access::{AccessError, Task, Tree, Written};
use vellum_pool::Pool;

const KEYS: u64 = 500;

/// A long or a short key; the order of the keys is not that of their numbers.
fn key(number: u64) -> Vec<u8> {
    let mut key = (number % 7 * KEYS + number).to_be_bytes()[5..].to_vec();
    if number.is_multiple_of(3) {
        key.resize(8 + (number % 200) as usize, b'k');
    }
    key
}

fn value(random: &mut StdRng) -> Vec<u8> {
    let length = match random.random_range(0..60) {
        0 => random.random_range(30_000..80_000),
        1..4 => random.random_range(1025..9000),
        4..15 => random.random_range(200..=1024),
        _ => random.random_range(1..150),
    };
    (0..length).map(|at| (at as u8).wrapping_mul(31) ^ random.random::<u8>() & 1).collect()
}

/// A tree with some records in a pool of a few pages.
fn reference(seed: u64, bug: Bug) -> Reference {
    let file = vellum_vm::SimulatedFile::new(seed);
    let pool = Pool::create_on(std::sync::Arc::new(file), &options(64)).unwrap();
    let mut random = StdRng::seed_from_u64(seed);
    let tree = Tree::create(&pool).unwrap();
    let mut world = World::new();
    for number in 0..KEYS / 2 {
        let value = value(&mut random);
        assert!(tree.insert(&key(2 * number), &value).unwrap());
        world.insert(key(2 * number), value);
    }
    let root = tree.root();
    Reference::new(RecordingPager::new(pool), root, world, bug)
}

type Seen<'t> = Tree<'t, RecordingPager>;

/// Compares one record in every way with what should be seen.
fn compare_record(tree: &Seen<'_>, world: &World, key: &[u8], random: &mut StdRng) {
    let expected = world.get(key);
    match random.random_range(0..6) {
        0 => assert_eq!(retry(|| tree.get(key)).unwrap().as_ref(), expected),
        1 => {
            let length = retry(|| tree.value_length(key)).unwrap();
            assert_eq!(length, expected.map(|value| value.len() as u64));
        }
        2 => {
            let mut part = Vec::new();
            let range = random.random_range(0..2000)..random.random_range(2000..9000);
            let found = retry(|| tree.get_part_into(key, range.clone(), &mut part)).unwrap();
            assert_eq!(found, expected.is_some());
            if let Some(value) = expected {
                assert_eq!(part, value[range.start.min(value.len())..range.end.min(value.len())]);
            }
        }
        3 => {
            let found = retry(|| tree.value(key)).unwrap();
            assert_eq!(found.as_deref(), expected.map(|value| &value[..]));
        }
        4 => {
            if let Some(mut reader) = retry(|| tree.reader(key)).unwrap() {
                let mut values = vec![0; reader.length() as usize + 1];
                let length = retry(|| reader.read_at(0, &mut values)).unwrap();
                assert_eq!(Some(&values[..length]), expected.map(|value| &value[..]));
            } else {
                assert!(expected.is_none_or(|value| value.len() <= 1024));
            }
        }
        _ => {
            let found = tree.try_now(key, Task::<&[u8]>::Get, |answer| match answer {
                vellum_access::Answer::Value(value) => assert_eq!(value, expected.map(|value| &value[..])),
                other => panic!("{other:?}"),
            });
            assert!(recording::no_room(&found) || found.is_ok());
        }
    }
}

/// Compares all entries, by cursors and in groups.
fn compare(tree: &Seen<'_>, world: &World, random: &mut StdRng) {
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    let mut wanting = Vec::new();
    tree.multi_get(&keys, 8, |index, value| match value {
        Ok(value) => assert_eq!(value, world.get(&keys[index]).map(|value| &value[..])),
        error => {
            assert!(recording::no_room(&error.map(drop)));
            wanting.push(index);
        }
    });
    for index in wanting {
        assert_eq!(retry(|| tree.get(&keys[index])).unwrap().as_ref(), world.get(&keys[index]));
    }
    let bounds = [key(random.random_range(0..KEYS)), key(random.random_range(0..KEYS))];
    let [from, to] = if bounds[0] <= bounds[1] { bounds } else { [bounds[1].clone(), bounds[0].clone()] };
    let ranges = [
        (Bound::Unbounded, Bound::Unbounded),
        (Bound::Included(&from[..]), Bound::Excluded(&to[..])),
        (Bound::Excluded(&from[..]), Bound::Included(&to[..])),
    ];
    for (lower, upper) in ranges {
        if from == to && lower != Bound::Unbounded {
            continue;
        }
        let expected: Vec<_> = world.range::<[u8], _>((lower, upper)).collect();
        let mut cursor = tree.range(lower, upper).unwrap();
        for (key, value) in &expected {
            let entry = loop {
                match cursor.next() {
                    Err(AccessError::Pool(_)) => {}
                    entry => break entry.unwrap().expect("an entry more"),
                }
            };
            assert_eq!((entry.key(), entry.value_length()), (&key[..], value.len() as u64));
            if let Some(inline) = entry.inline_value() {
                assert_eq!(inline, &value[..]);
            } else if random.random_ratio(1, 10) {
                assert_eq!(&retry(|| entry.value()).unwrap().unwrap()[..], &value[..]);
            }
        }
        assert!(cursor.next().unwrap().is_none());
        for (key, _) in expected.iter().rev() {
            assert_eq!(cursor.previous().unwrap().unwrap().key(), &key[..]);
        }
        assert!(cursor.previous().unwrap().is_none());
        cursor.seek_to_end();
        assert_eq!(
            cursor.previous().unwrap().map(|entry| entry.key().to_vec()).as_ref(),
            expected.last().map(|(key, _)| *key)
        );
        for _ in 0..10 {
            // Between any two, and to and fro.
            let at = key(random.random_range(0..KEYS));
            if lower != Bound::Unbounded && (at < from || at > to) {
                continue;
            }
            cursor.seek(&at).unwrap();
            let mut index = expected.partition_point(|(key, _)| **key < at);
            for _ in 0..20 {
                let entry = if random.random() {
                    index += 1;
                    (cursor.next().unwrap().map(|entry| entry.key().to_vec()), index - 1)
                } else {
                    index = index.wrapping_sub(1);
                    (cursor.previous().unwrap().map(|entry| entry.key().to_vec()), index)
                };
                assert_eq!(entry.0.as_ref(), expected.get(entry.1).map(|(key, _)| *key), "from {at:?}");
                if entry.0.is_none() {
                    break;
                }
            }
        }
    }
}

/// One random change by a transaction: it does what it should, unless it conflicts.
fn change(
    transaction: &mut Transaction<'_>,
    key: &[u8],
    random: &mut StdRng,
    growing: bool,
) -> Result<(), AccessError> {
    let before = transaction.world.get(key).cloned();
    let tree = transaction.writing();
    let value = value(random);
    let (changed, after) = match random.random_range(0..12) {
        0..2 => {
            let inserted = retry(|| tree.insert(key, &value))?;
            assert_eq!(inserted, before.is_none());
            (inserted, if inserted { Some(value) } else { before })
        }
        2..4 => {
            let updated = retry(|| tree.update(key, &value))?;
            assert_eq!(updated, before.is_some());
            (updated, if updated { Some(value) } else { before })
        }
        4..6 => {
            let mut length = None;
            let by = random.random_range(1..=255u8);
            let modified = retry(|| {
                tree.modify(key, |value| {
                    length = Some(value.len());
                    value.iter_mut().take(3).for_each(|byte| *byte = byte.wrapping_add(by));
                })
            })?;
            assert_eq!(modified.and(length), before.as_ref().map(Vec::len));
            let mut after = before;
            for byte in after.iter_mut().flatten().take(3) {
                *byte = byte.wrapping_add(by);
            }
            (modified.is_some(), after)
        }
        6..10 if growing => {
            let written = if random.random() {
                retry(|| tree.upsert(key, &value))?
            } else {
                retry(|| tree.upsert_from(key, value.len() as u64, &mut &value[..]))?
            };
            assert_eq!(written == Written::Replaced, before.is_some());
            (true, Some(value))
        }
        _ => {
            let removed = retry(|| tree.remove(key))?;
            assert_eq!(removed, before.is_some());
            (removed, None)
        }
    };
    match after {
        Some(value) => drop(transaction.world.insert(key.to_vec(), value)),
        None => drop(transaction.world.remove(key)),
    }
    if changed {
        transaction.changed.insert(key.to_vec());
    }
    Ok(())
}

/// In the end the tree is as the commits have left it, nothing else is left, and the records tell all of it.
fn finish(reference: Reference, random: &mut StdRng) {
    let world = reference.world(reference.time());
    compare(&reference.newest(), &world, random);
    compare(&reference.single(), &world, random);
    assert_eq!(reference.left(), (0, 0, 0));
    support::verify(&reference.pager.pool, &Tree::open(&reference.pager.pool, reference.root));
}

/// Several transactions at once, step by step on one thread. Returns how many conflicts there were.
fn step_by_step(seed: u64, steps: u64, bug: Bug) -> u64 {
    let reference = reference(seed, bug);
    let start = reference.pager.extents();
    let mut random = StdRng::seed_from_u64(seed ^ 0x5eed);
    let mut open: Vec<Transaction<'_>> = Vec::new();
    let mut conflicts = 0;
    for step in 0..steps {
        let growing = (step * 6 / steps).is_multiple_of(2);
        match random.random_range(0..40) {
            0..3 if open.len() < 6 => open.push(reference.begin()),
            3 if !open.is_empty() => {
                let transaction = open.swap_remove(random.random_range(0..open.len()));
                match random.random_range(0..4) {
                    0 => transaction.rollback(false).unwrap(),
                    1 => transaction.rollback(true).unwrap(),
                    _ => transaction.commit(),
                }
            }
            4 => {
                let time = reference.time();
                compare(&reference.single(), &reference.world(time), &mut random);
            }
            5 if !open.is_empty() => {
                let transaction = &open[random.random_range(0..open.len())];
                compare(&transaction.reading(), &transaction.world, &mut random);
            }
            6..12 if !open.is_empty() => {
                let transaction = &open[random.random_range(0..open.len())];
                let key = key(random.random_range(0..KEYS));
                compare_record(&transaction.reading(), &transaction.world, &key, &mut random);
            }
            12..15 => {
                let world = reference.world(reference.time());
                compare_record(&reference.single(), &world, &key(random.random_range(0..KEYS)), &mut random);
            }
            _ if !open.is_empty() => {
                conflicts += u64::from(attempt(&mut open, &reference, &mut random, growing))
            }
            _ => {}
        }
    }
    for transaction in open {
        transaction.commit();
    }
    let history = reference.pager.history(start);
    finish(reference, &mut random);
    history.check(seed, &as_it_is).unwrap();
    conflicts
}

/// A change by one of several transactions, which conflicts exactly if it should.
fn attempt(open: &mut [Transaction<'_>], reference: &Reference, random: &mut StdRng, growing: bool) -> bool {
    let index = random.random_range(0..open.len());
    // The keys that others have changed, whose changes this one does not see.
    let others = open.iter().enumerate().filter(|(other, _)| *other != index);
    let held: BTreeSet<_> = others.flat_map(|(_, other)| other.changed.iter().cloned()).collect();
    let transaction = &mut open[index];
    let later = reference.changed_since(transaction.time);
    let key = key(random.random_range(0..KEYS));
    transaction.settle();
    let result = change(transaction, &key, random, growing);
    let is_own = transaction.changed.contains(&key);
    match result {
        Ok(()) => {
            assert!(is_own || !held.contains(&key) && !later.contains(&key), "no conflict on {key:?}");
            false
        }
        Err(AccessError::Conflict { tree, key: on, committed }) => {
            assert_eq!((tree, &on), (reference.root, &key));
            assert!(!is_own && (held.contains(&key) || later.contains(&key)), "a conflict on {key:?}");
            assert_eq!(committed, !held.contains(&key));
            true
        }
        Err(error) => panic!("{error}"),
    }
}

/// Threads run transactions of some steps each. One more reads outside of transactions.
fn side_by_side(seed: u64, transactions: u64, bug: Bug) {
    const THREADS: u64 = 3;
    let reference = reference(seed, bug);
    let start = reference.pager.extents();
    let running = AtomicU64::new(THREADS);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (reference, running) = (&reference, &running);
            scope.spawn(move || {
                let _ended = Ended(running);
                let mut random = StdRng::seed_from_u64(seed * 100 + thread);
                for number in 0..transactions {
                    let mut transaction = reference.begin();
                    let growing = (number * 6 / transactions).is_multiple_of(2);
                    let mut result = Ok(());
                    for _ in 0..random.random_range(0..25) {
                        let key = key(random.random_range(0..KEYS));
                        if random.random_ratio(1, 3) {
                            compare_record(&transaction.reading(), &transaction.world, &key, &mut random);
                        } else if random.random_ratio(1, 40) {
                            compare(&transaction.reading(), &transaction.world, &mut random);
                        } else {
                            result = change(&mut transaction, &key, &mut random, growing);
                            transaction.settle();
                            if result.is_err() {
                                break;
                            }
                        }
                    }
                    match result {
                        Ok(()) if random.random_ratio(4, 5) => transaction.commit(),
                        Ok(()) | Err(AccessError::Conflict { .. }) => {
                            transaction.rollback(random.random()).unwrap();
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        let mut random = StdRng::seed_from_u64(!seed);
        while running.load(Ordering::SeqCst) > 0 {
            let key = key(random.random_range(0..KEYS));
            let first = reference.time();
            let found = retry(|| reference.single().get(&key)).unwrap();
            let seen =
                (first..=reference.time()).any(|time| reference.world(time).get(&key) == found.as_ref());
            assert!(seen, "nobody has committed the value of {key:?}");
        }
    });
    let history = reference.pager.history(start);
    finish(reference, &mut StdRng::seed_from_u64(seed));
    history.check(seed, &as_it_is).unwrap();
}

/// A thread that is over, also if it panics.
struct Ended<'r>(&'r AtomicU64);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn each_transaction_sees_its_moment_and_conflicts_are_those_of_first_updater_wins() {
    let conflicts: u64 = (0..6).map(|number| step_by_step(seed() * 100 + number, 2500, Bug::None)).sum();
    assert!(conflicts > 100, "{conflicts} conflicts");
}

#[test]
fn transactions_of_several_threads_see_their_moments() {
    (0..3).for_each(|number| side_by_side(seed() * 100 + number, 60, Bug::None));
}

/// Whether one of some runs notices a bug.
fn is_noticed(run: impl Fn(u64)) -> bool {
    (0..8).any(|seed| catch_unwind(AssertUnwindSafe(|| run(seed))).is_err())
}

#[test]
fn planted_bugs_of_the_isolation_are_noticed() {
    for bug in [Bug::ForgottenRemovals, Bug::LateClaims, Bug::NoChecks, Bug::LatePlace] {
        assert!(is_noticed(|seed| assert!(step_by_step(seed, 1500, bug) > 0)), "nobody notices {bug:?}");
    }
}
