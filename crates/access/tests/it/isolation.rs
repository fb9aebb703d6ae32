//! Transactions on a tree larger than memory, at random. Whatever others do, each sees the entries of the moment when it
//! began, and its own changes, by every way of reading. A change conflicts exactly if another transaction, which this one does
//! not see, has changed the record. What is undone, from what was kept or from the log, is as it was. In the end nothing is left
//! of all that, and the records of the changes give the same pages. All of it holds too where changes are not recorded, only
//! counted. Planted bugs are noticed.

use crate::recording::{RecordingPager, as_it_is};
use crate::reference::{
    Bug, Reference, Transaction,
    comparison::{KEYS, Seen, compare, compare_record, finish, reference_with},
    retry,
};
use crate::support::{
    records::{key, value},
    seed,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
    thread,
};
use vellum_access::{AccessError, Answer, Batch, Task, Written};

/// Performs a task by a queue, or at once if that is possible.
fn perform<'t>(
    pager: &'t RecordingPager,
    tree: &Seen<'t>,
    key: &[u8],
    task: Task<&Vec<u8>>,
) -> Result<Answer<'static>, AccessError> {
    let done = |answer: Answer<'_>| match answer {
        Answer::Value(_) => panic!("this is no read"),
        Answer::Written(written) => Answer::Written(written),
        Answer::Removed(removed) => Answer::Removed(removed),
    };
    retry(|| {
        if let Some(answer) = tree.try_now(key, task, done)? {
            return Ok(answer);
        }
        let mut result = None;
        Batch::new(pager, 4).run(*tree, [(key, task)], |_, _, answer| result = Some(answer.map(done)));
        result.unwrap()
    })
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
            let inserted = match random.random() {
                true => retry(|| tree.insert(key, &value))?,
                false => {
                    perform(transaction.pager(), &tree, key, Task::Insert(&value))?
                        == Answer::Written(Written::Inserted)
                }
            };
            assert_eq!(inserted, before.is_none());
            (inserted, if inserted { Some(value) } else { before })
        }
        2..4 => {
            let updated = match random.random() {
                true => retry(|| tree.update(key, &value))?,
                false => {
                    perform(transaction.pager(), &tree, key, Task::Update(&value))?
                        == Answer::Written(Written::Replaced)
                }
            };
            assert_eq!(updated, before.is_some());
            (updated, if updated { Some(value) } else { before })
        }
        4..6 => {
            let mut length = None;
            let by = random.random_range(1..=255u8);
            let mut add = |value: &mut [u8]| {
                length = Some(value.len());
                value.iter_mut().take(3).for_each(|byte| *byte = byte.wrapping_add(by));
            };
            let modified = if random.random() {
                retry(|| tree.modify(key, &mut add))?.is_some()
            } else {
                retry(|| {
                    let mut modified = Ok(false);
                    tree.multi_modify(&[key], 4, |_, value| add(value), |_, result| modified = result);
                    modified
                })?
            };
            assert_eq!(length.filter(|_| modified), before.as_ref().map(Vec::len));
            let mut after = before;
            for byte in after.iter_mut().flatten().take(3) {
                *byte = byte.wrapping_add(by);
            }
            (modified, after)
        }
        6..10 if growing => {
            let written = match random.random_range(0..3) {
                0 => Answer::Written(retry(|| tree.upsert(key, &value))?),
                1 => Answer::Written(retry(|| tree.upsert_from(key, value.len() as u64, &mut &value[..]))?),
                _ => perform(transaction.pager(), &tree, key, Task::Upsert(&value))?,
            };
            assert_eq!(written == Answer::Written(Written::Replaced), before.is_some());
            (true, Some(value))
        }
        _ => {
            let removed = match random.random() {
                true => retry(|| tree.remove(key))?,
                false => perform(transaction.pager(), &tree, key, Task::Remove)? == Answer::Removed(true),
            };
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

/// Several transactions at once, step by step on one thread. Returns how many conflicts there were.
fn step_by_step(seed: u64, steps: u64, (bug, records): (Bug, bool)) -> u64 {
    let reference = reference_with(seed, bug, records);
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
                    1 => transaction.rollback(records).unwrap(),
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
    let history = records.then(|| reference.pager.history(start));
    finish(reference, &mut random);
    history.inspect(|history| history.check(seed, &as_it_is).unwrap());
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
fn side_by_side(seed: u64, transactions: u64, records: bool) {
    const THREADS: u64 = 3;
    let reference = reference_with(seed, Bug::None, records);
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
                            transaction.rollback(records && random.random()).unwrap();
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
    let history = records.then(|| reference.pager.history(start));
    finish(reference, &mut StdRng::seed_from_u64(seed));
    history.inspect(|history| history.check(seed, &as_it_is).unwrap());
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
    for records in [true, false] {
        let run = |number| step_by_step(seed() * 100 + number, 2500, (Bug::None, records));
        let conflicts: u64 = (0..6).map(run).sum();
        assert!(conflicts > 100, "{conflicts} conflicts");
    }
}

#[test]
fn transactions_of_several_threads_see_their_moments() {
    (0..3).for_each(|number| side_by_side(seed() * 100 + number, 60, true));
    (0..3).for_each(|number| side_by_side(seed() * 100 + number, 60, false));
}

/// Whether one of some runs notices a bug.
fn is_noticed(run: impl Fn(u64)) -> bool {
    (0..8).any(|seed| catch_unwind(AssertUnwindSafe(|| run(seed))).is_err())
}

#[test]
fn planted_bugs_of_the_isolation_are_noticed() {
    use Bug::*;
    let recorded =
        [ForgottenRemovals, LateClaims, NoChecks, NoPlace, UndoFreesNothing].map(|bug| (bug, true));
    for bug in recorded.into_iter().chain([NoPlace, NotHeld].map(|bug| (bug, false))) {
        assert!(is_noticed(|seed| assert!(step_by_step(seed, 1500, bug) > 0)), "nobody notices {bug:?}");
    }
}
