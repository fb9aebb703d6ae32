//! Tables whose contents are replaced by transactions that clear and load them, beside operations outside of transactions.

use crate::{
    asynchronous::block_on,
    support::{assert_clean, options},
};
use std::{
    cell::RefCell,
    collections::BTreeMap,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};
use vellum::{Answer, Database, Durability, Table, TableName, Task, Written};
use vellum_vm::{Faults, SimulatedDisk};

const KEYS: u64 = 2000;

type Numbers = Table<u64, [u8]>;
type Read = (&'static str, fn(&Numbers, u64) -> bool);

/// Ways to read a record, each of which says whether it is there.
const READS: [Read; 12] = [
    ("get", |table, key| table.get(key).unwrap().is_some()),
    ("get_part", |table, key| table.get_part(key, 0..4).unwrap().is_some()),
    ("value", |table, key| table.value(key).unwrap().is_some()),
    ("value_length", |table, key| table.value_length(key).unwrap().is_some()),
    ("contains", |table, key| table.contains(key).unwrap()),
    ("multi_get", |table, key| table.multi_get(&[key, 1]).into_iter().all(|found| found.unwrap().is_some())),
    ("lookups", |table, key| table.lookups([key, 2]).all(|found| found.1.unwrap().is_some())),
    ("get_async", |table, key| block_on(table.get_async(key)).unwrap().is_some()),
    ("first", |table, _| table.first().unwrap().is_some_and(|(first, _)| first == 0)),
    ("last", |table, _| table.last().unwrap().is_some_and(|(last, _)| last == KEYS - 1)),
    ("range", |table, key| table.range(key..).unwrap().next().is_some_and(|entry| entry.unwrap().0 == key)),
    ("count", |table, key| table.count(key..=key).unwrap() == 1),
];

/// What is there before and after is there at any time.
#[test]
fn no_read_finds_nothing_in_between() {
    let disk = SimulatedDisk::new(1);
    let options = options().pool_bytes(64 * 4096);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options).unwrap();
    let name = TableName::<u64, [u8]>::new("table");
    let table = database.create_table(name).unwrap();
    let entries = |round: u8| (0..KEYS).map(move |key| (key, vec![round; 100]));
    table.bulk_load(entries(0)).unwrap();
    // Whoever waits for a page meets the next contents.
    disk.set_faults(Faults { delay_max: Duration::from_micros(300), ..Faults::default() });
    let is_over = AtomicBool::new(false);
    let missed = thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|reader| {
                let (table, is_over) = (&table, &is_over);
                scope.spawn(move || {
                    let mut missed = BTreeMap::new();
                    for turn in reader.. {
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                        let (name, read) = READS[turn as usize % READS.len()];
                        if !read(table, turn * 7919 % KEYS) {
                            *missed.entry(name).or_insert(0) += 1;
                        }
                    }
                    missed
                })
            })
            .collect();
        for round in 1..60 {
            let transaction = database.begin().unwrap();
            transaction.clear_table("table").unwrap();
            transaction.bulk_load(&transaction.table(name).unwrap(), entries(round)).unwrap();
            if round % 4 == 0 {
                transaction.rollback().unwrap();
            } else {
                transaction.commit().unwrap();
            }
        }
        is_over.store(true, Ordering::Relaxed);
        let joined = readers.into_iter().map(|reader| reader.join().unwrap());
        joined.flatten().fold(BTreeMap::new(), |mut sum: BTreeMap<_, i32>, (name, count)| {
            *sum.entry(name).or_default() += count;
            sum
        })
    });
    assert!(missed.is_empty(), "{missed:?}");
    disk.heal();
    assert_clean(&database);
}

/// A change that is under way meets the next contents, which have the same keys: it does not find that there is none.
#[test]
fn no_change_under_way_finds_nothing_in_between() {
    type Kind = fn(Vec<u8>) -> Task<Vec<u8>>;
    let kinds: [Kind; 4] = [Task::Update, |_| Task::Remove, Task::Insert, |_| Task::Get];
    for (number, kind) in kinds.into_iter().enumerate() {
        for polls in 0..4 {
            let options =
                options().pool_bytes(256 << 10).log(polls % 2 == 0).durability(Durability::Deferred);
            let database = Database::create_in(Arc::new(SimulatedDisk::new(1)), "data", &options).unwrap();
            let table = database.create_table("table").unwrap();
            let entries = || (0..1500_u64).map(|key| (key.to_be_bytes(), vec![1; 400]));
            table.bulk_load(entries()).unwrap();
            table.count(..).unwrap();
            let mut submissions = table.submissions();
            for key in (0..1500_u64).step_by(10) {
                submissions.submit(key.to_be_bytes(), kind(vec![2; 400]), key);
            }
            (0..polls).for_each(|_| submissions.poll());
            let transaction = database.begin().unwrap();
            transaction.clear_table("table").unwrap();
            transaction.bulk_load(&table, entries()).unwrap();
            transaction.commit().unwrap();
            // What was cleared is freed in the background, and its pages leave memory or are used again.
            thread::sleep(Duration::from_millis(30));
            let other = database.create_table("other").unwrap();
            other.bulk_load((0..1500_u32).map(|key| (key.to_be_bytes(), [9; 300]))).unwrap();
            table.count(..).unwrap();
            while !submissions.is_empty() {
                submissions.wait();
                submissions.reap(|key, _, answer| {
                    let is_right = matches!(
                        (number, &answer),
                        (0, Ok(Answer::Written(Written::Replaced)))
                            | (1, Ok(Answer::Removed(true)))
                            | (2, Ok(Answer::Written(Written::Refused)))
                            | (3, Ok(Answer::Value(Some(_))))
                    );
                    assert!(is_right, "task {number} of {key} after {polls} polls: {answer:?}");
                });
            }
            drop(submissions);
            assert_clean(&database);
        }
    }
}

/// An entry that is there all the while is shown once, in both directions.
#[test]
fn ranges_go_on_in_what_has_replaced_their_tree() {
    let database =
        Database::create_in(Arc::new(SimulatedDisk::new(3)), "data", &options().pool_bytes(4 << 20)).unwrap();
    let name = TableName::<u64, [u8]>::new("table");
    let table = database.create_table(name).unwrap();
    let replace = |bytes: usize| {
        let transaction = database.begin().unwrap();
        transaction.clear_table("table").unwrap();
        let entries = (0..KEYS).map(|key| (key, vec![7; bytes]));
        transaction.bulk_load(&transaction.table(name).unwrap(), entries).unwrap();
        transaction.commit().unwrap();
    };
    // With different numbers of leaves.
    for (round, pause) in [1, 3, 40, 700, 1999].into_iter().enumerate() {
        replace(100);
        let (mut forwards, mut backwards) = (Vec::new(), Vec::new());
        for entry in table.range(5..).unwrap() {
            let (key, _) = entry.unwrap();
            forwards.push(key);
            if key % pause == 0 && forwards.len() < 60 * pause as usize {
                replace([20, 300, 900][(round + forwards.len()) % 3]);
            }
        }
        assert!(forwards.iter().copied().eq(5..KEYS), "pauses of {pause}: {} entries", forwards.len());
        for entry in table.range(..KEYS - 5).unwrap().rev() {
            let (key, _) = entry.unwrap();
            backwards.push(key);
            if key % pause == 0 && backwards.len() < 60 * pause as usize {
                replace([20, 300, 900][(round + backwards.len()) % 3]);
            }
        }
        assert!(
            backwards.iter().copied().eq((0..KEYS - 5).rev()),
            "pauses of {pause}, backwards: {} entries",
            backwards.len()
        );
    }
    assert_clean(&database);
}

/// A transaction stores records, and then clears the table and loads it: nobody ever sees those.
#[test]
fn ranges_show_nothing_that_was_never_committed() {
    for (keeps_old, steps, is_backward) in [false, true]
        .into_iter()
        .flat_map(|keeps| [1, 30, 400].map(|steps| (keeps, steps)))
        .flat_map(|(keeps, steps)| [false, true].map(|is_backward| (keeps, steps, is_backward)))
    {
        let database =
            Database::create_in(Arc::new(SimulatedDisk::new(4)), "data", &options().pool_bytes(4 << 20))
                .unwrap();
        let name = TableName::<u64, [u8]>::new("table");
        let table = database.create_table(name).unwrap();
        let entries = |value| (0..KEYS).map(move |key| (2 * key, vec![value; 100]));
        table.bulk_load(entries(1)).unwrap();
        // The old contents stay for it.
        let old = keeps_old.then(|| database.begin().unwrap());
        let mut range = table.range(..).unwrap();
        let mut step = || if is_backward { range.next_back() } else { range.next() };
        let mut shown: Vec<_> = (0..steps).map(|_| step().unwrap().unwrap()).collect();
        let transaction = database.begin().unwrap();
        (0..KEYS).for_each(|key| _ = transaction.put(&table, 2 * key, &[2; 100][..]).unwrap());
        // Few new ones, so that no leaf is split.
        (0..KEYS).step_by(100).for_each(|key| _ = transaction.put(&table, 2 * key + 1, &[2][..]).unwrap());
        transaction.clear_table("table").unwrap();
        transaction.bulk_load(&transaction.table(name).unwrap(), entries(3)).unwrap();
        transaction.commit().unwrap();
        shown.extend(std::iter::from_fn(step).map(Result::unwrap));
        let never = shown.iter().filter(|(key, value)| key % 2 == 1 || value[0] == 2).count();
        let case = format!("old {keeps_old}, after {steps}, backward {is_backward}");
        assert_eq!((never, shown.len() as u64), (0, KEYS), "{case}");
        drop(old);
    }
}

/// What is under way when that happens: none of it has been read, or part of it.
#[test]
fn reads_under_way_show_nothing_that_was_never_committed() {
    let file = SimulatedDisk::new(6);
    let database = Database::create_in(Arc::new(file), "data", &options().pool_bytes(64 << 12)).unwrap();
    let table = database.create_table("table").unwrap();
    let replace = |value: u8| {
        let transaction = database.begin().unwrap();
        (0..KEYS).for_each(|key| _ = transaction.put(&table, key.to_be_bytes(), [99; 100]).unwrap());
        transaction.clear_table("table").unwrap();
        let entries = (0..KEYS).map(|key| (key.to_be_bytes(), [value; 100]));
        transaction.bulk_load(&transaction.table("table").unwrap(), entries).unwrap();
        transaction.commit().unwrap();
    };
    replace(1);
    for value in 2..6 {
        // The old contents stay for it.
        let old = database.begin().unwrap();
        let shown = RefCell::new(BTreeMap::<&str, Vec<u8>>::new());
        let note = |way, value: &[u8]| shown.borrow_mut().entry(way).or_default().push(value[0]);
        let keys: Vec<_> = (0..1000).map(|key| (key * 7919 % KEYS).to_be_bytes()).collect();
        for (number, (_, found)) in table.lookups(&keys).enumerate() {
            note("lookups", &found.unwrap().unwrap());
            if number % 300 == 100 {
                replace(value);
            }
        }
        let mut submissions = table.submissions();
        keys.iter().for_each(|key| submissions.submit_get(key, 0));
        submissions.poll();
        replace(value);
        while !submissions.is_empty() {
            submissions.wait();
            submissions.reap(|_, _, answer| match answer.unwrap() {
                Answer::Value(Some(found)) => note("submissions", found),
                other => panic!("{other:?}"),
            });
        }
        let mut number = 0;
        table.multi_get_with(&keys, |_, found| {
            note("multi_get_with", found.unwrap().unwrap());
            number += 1;
            if number == 100 {
                replace(value);
            }
        });
        table.multi_get_part_with(&keys, 0..4, |_, found| {
            note("multi_get_part_with", found.unwrap().unwrap());
            number += 1;
            if number == 1300 {
                replace(value);
            }
        });
        for (way, shown) in shown.into_inner() {
            assert_eq!(shown.len(), 1000, "{way}");
            let never = shown.iter().filter(|found| **found == 99).count();
            assert_eq!(never, 0, "{way} in round {value}");
        }
        drop(old);
    }
}

/// The driver of futures has begun to read before a commit that replaces the tree, and goes on after it.
#[test]
fn futures_show_nothing_that_was_never_committed() {
    let disk = SimulatedDisk::new(8);
    let options = options().pool_bytes(64 * 4096);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options).unwrap();
    let name = TableName::<u64, [u8]>::new("table");
    let table = database.create_table(name).unwrap();
    let entries = |value: u8| (0..KEYS).map(move |key| (key, vec![value; 900]));
    table.bulk_load(entries(1)).unwrap();
    for value in 2..6 {
        // The former contents stay for it.
        let old = database.begin().unwrap();
        let transaction = database.begin().unwrap();
        entries(99).for_each(|(key, never)| _ = transaction.put(&table, key, &never[..]).unwrap());
        transaction.clear_table("table").unwrap();
        transaction.bulk_load(&table, entries(value)).unwrap();
        // A few hundred leaves are to be read, and at most a quarter of the pool at once.
        disk.set_faults(Faults { delay_max: Duration::from_millis(4), ..Faults::default() });
        let mut reads: Vec<_> = (0..KEYS).map(|key| Box::pin(table.get_async(key * 7919 % KEYS))).collect();
        let mut shown = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        reads.retain_mut(|read| match read.as_mut().poll(&mut context) {
            Poll::Ready(found) => {
                shown.push(found.unwrap());
                false
            }
            Poll::Pending => true,
        });
        assert!(reads.len() as u64 > KEYS / 2, "{} wait for pages", reads.len());
        // The driver begins to read.
        thread::sleep(Duration::from_millis(5));
        transaction.commit().unwrap();
        disk.heal();
        shown.extend(reads.into_iter().map(|read| block_on(read).unwrap()));
        let mut counts = BTreeMap::new();
        shown.into_iter().for_each(|found| *counts.entry(found.map(|found| found[0])).or_insert(0) += 1);
        let is_right = |found: &Option<u8>| [Some(value - 1), Some(value)].contains(found);
        assert!(counts.keys().all(is_right), "in round {value}: {counts:?}");
        drop(old);
    }
    assert_clean(&database);
}

/// Threads that read meanwhile, while commits wait for pages.
#[test]
fn threads_see_nothing_that_was_never_committed() {
    let disk = SimulatedDisk::new(7);
    let options = options().pool_bytes(96 * 4096);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options).unwrap();
    let name = TableName::<u64, [u8]>::new("table");
    let table = database.create_table(name).unwrap();
    table.bulk_load((0..KEYS).map(|key| (key, [1; 100]))).unwrap();
    disk.set_faults(Faults { delay_max: Duration::from_micros(300), ..Faults::default() });
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers = [0_u64, 1, 2].map(|reader| {
            let (table, is_over) = (&table, &is_over);
            scope.spawn(move || {
                let mut never = BTreeMap::new();
                for turn in reader.. {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let key = turn * 7919 % KEYS;
                    let (way, found) = match turn % 6 {
                        0 => ("get", table.get(key).unwrap()),
                        1 => ("multi_get", table.multi_get(&[key, 1]).swap_remove(0).unwrap()),
                        2 => ("lookups", table.lookups([key]).next().unwrap().1.unwrap()),
                        3 => ("get_async", block_on(table.get_async(key)).unwrap()),
                        4 => ("range", table.range(key..).unwrap().next().map(|entry| entry.unwrap().1)),
                        _ => ("first", table.first().unwrap().map(|entry| entry.1)),
                    };
                    if found.is_none_or(|found| found[0] == 99) {
                        *never.entry(way).or_insert(0) += 1;
                    }
                }
                never
            })
        });
        for round in 0..40 {
            let transaction = database.begin().unwrap();
            (0..KEYS).for_each(|key| _ = transaction.put(&table, key, [99; 100]).unwrap());
            transaction.clear_table("table").unwrap();
            transaction.bulk_load(&table, (0..KEYS).map(|key| (key, [round; 100]))).unwrap();
            transaction.commit().unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        for never in readers.map(|reader| reader.join().unwrap()) {
            assert!(never.is_empty(), "{never:?}");
        }
    });
    disk.heal();
    assert_clean(&database);
}

/// A cursor reads them again when it comes to them.
#[test]
fn large_values_are_looked_up_in_what_has_replaced_their_tree() {
    let database =
        Database::create_in(Arc::new(SimulatedDisk::new(5)), "data", &options().pool_bytes(4 << 20)).unwrap();
    let name = TableName::<u64, [u8]>::new("table");
    let table = database.create_table(name).unwrap();
    let replace = || {
        let transaction = database.begin().unwrap();
        // Nobody ever sees these.
        (0..200).for_each(|key| _ = transaction.put(&table, key, &[99; 3000][..]).unwrap());
        transaction.clear_table("table").unwrap();
        let entries = (0..200).map(|key| (key, vec![7; 3000]));
        transaction.bulk_load(&transaction.table(name).unwrap(), entries).unwrap();
        transaction.commit().unwrap();
    };
    replace();
    for is_kept in [false, true] {
        // The former trees stay for it.
        let old = is_kept.then(|| database.begin().unwrap());
        let mut shown = Vec::new();
        for entry in table.range(..).unwrap() {
            let (key, value) = entry.unwrap();
            assert!(value == [7; 3000], "{key}: {}", value[0]);
            shown.push(key);
            if shown.len() % 60 == 7 {
                replace();
            }
        }
        assert!(shown.iter().copied().eq(0..200), "{} entries", shown.len());
        let (mut cursor, mut count) = (table.cursor(..).unwrap(), 0);
        cursor.seek_to_end();
        while let Some(entry) = cursor.previous().unwrap() {
            if count % 60 == 7 {
                replace();
            }
            let key = u64::from_be_bytes(entry.key().try_into().unwrap());
            let value = entry.value().unwrap().map(|value| value.to_vec());
            assert!(value == Some(vec![7; 3000]), "{key}: {:?}", value.map(|value| value[0]));
            count += 1;
        }
        assert_eq!(count, 200);
        drop(old);
    }
    assert_clean(&database);
}
