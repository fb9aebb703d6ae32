//! Bulk loads outside of transactions, beside transactions that change the same table.

use crate::{
    loading::{NUMBERS, count, database, entries, open},
    support::{assert_clean, assert_conflict, options},
};
use std::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};
use vellum::{Database, Table};

type Numbers = Table<u32, str>;

#[test]
fn a_load_outside_of_transactions_is_refused_while_one_has_removed_or_reserved_records() {
    let (disk, database) = database(91, &options());
    let numbers = database.create_table(NUMBERS).unwrap();
    // What was put in the same transaction is not there any more, nor is what was there before it.
    let transaction = database.begin().unwrap();
    transaction.insert(&numbers, 1, "inserted").unwrap();
    transaction.remove(&numbers, 1).unwrap();
    assert_conflict(numbers.bulk_load(entries(10)), false);
    transaction.rollback().unwrap();
    numbers.put(1, "put").unwrap();
    let transaction = database.begin().unwrap();
    transaction.remove(&numbers, 1).unwrap();
    assert_conflict(numbers.bulk_load(entries(10)), false);
    assert_eq!(numbers.get(1).unwrap().as_deref(), Some("put"));
    transaction.commit().unwrap();
    let transaction = database.begin().unwrap();
    assert!(transaction.get_for_update(&numbers, 1).unwrap().is_none());
    assert_conflict(numbers.bulk_load(entries(10)), false);
    drop(transaction);
    // Of another table, of which nothing is loaded.
    let other = database.create_table("other").unwrap();
    let transaction = database.begin().unwrap();
    transaction.put(&other, "key", "value").unwrap();
    assert_eq!(numbers.bulk_load(entries(500)).unwrap(), 500);
    transaction.put(&numbers, 1, "changed").unwrap();
    transaction.rollback().unwrap();
    assert_eq!((count(&numbers), numbers.get(1).unwrap().map(|value| value.len())), (500, Some(100)));
    drop((numbers, other, database));
    let database = open(disk.crash());
    assert_eq!(count(&database.table(NUMBERS).unwrap()), 500);
    assert_clean(&database);
}

#[test]
fn what_a_snapshot_sees_of_a_table_that_has_become_empty_is_not_loaded_over() {
    for has_log in [true, false] {
        for (count, many) in [(5, 5), (100, 2000)] {
            let (_, database) = database(93, &options().log(has_log));
            let numbers = database.create_table(NUMBERS).unwrap();
            let mut early = numbers.bulk_loader().unwrap();
            entries(many).try_for_each(|(key, value)| early.push(key, value)).unwrap();
            (1..=count).for_each(|number| _ = numbers.put(number, "old").unwrap());
            let snapshot = database.begin().unwrap();
            assert_eq!(snapshot.get(&numbers, 5).unwrap().as_deref(), Some("old"));
            database.run(|transaction| transaction.remove_range(&numbers, ..).map(drop)).unwrap();
            assert_conflict(numbers.bulk_load(entries(many)), true);
            assert_conflict(early.finish(), true);
            assert_eq!(snapshot.get(&numbers, 5).unwrap().as_deref(), Some("old"));
            assert_eq!(snapshot.count(&numbers, ..).unwrap(), u64::from(count));
            drop(snapshot);
            // One that sees the table empty is shown what is loaded, as it is documented.
            let later = database.begin().unwrap();
            assert_eq!(numbers.bulk_load(entries(many)).unwrap(), u64::from(many));
            assert!(later.get(&numbers, 4).unwrap().is_some());
            drop(later);
            assert_clean(&database);
        }
    }
}

/// Changes another table until memory has no room for versions.
fn cover_snapshots(database: &Database, other: &Table) {
    let mut rounds = 0_u8..;
    while database.history().kept_leaves == 0 {
        let round = rounds.next().unwrap();
        (0..100_u8).for_each(|number| _ = other.put([number], [round; 200]).unwrap());
    }
}

/// A snapshot that is shown what is loaded is shown the same whatever is changed beside it later.
#[test]
fn what_a_snapshot_is_shown_of_a_load_stays() {
    for has_log in [true, false] {
        for (many, is_covered) in [(5, false), (2000, false), (5, true), (2000, true)] {
            let options = options().log(has_log).version_memory_bytes(20_000);
            let (_, database) = database(94, &options);
            let numbers = database.create_table(NUMBERS).unwrap();
            let other = database.create_table("other").unwrap();
            let old = database.begin().unwrap();
            if is_covered {
                cover_snapshots(&database, &other);
            }
            assert_eq!(numbers.bulk_load(entries(many)).unwrap(), u64::from(many));
            let all = || old.range(&numbers, ..).unwrap().map(Result::unwrap).collect::<Vec<_>>();
            let loaded = all();
            assert_eq!(loaded.len(), many as usize);
            numbers.put(3, "put").unwrap();
            numbers.remove(2).unwrap();
            _ = numbers.put(100_000, "put").unwrap();
            assert!(all() == loaded, "{} of {many} are left, covered {is_covered}", all().len());
            old.put(&numbers, 0, "own").unwrap();
            assert!(all()[1..] == loaded[1..], "{} of {many} are left, covered {is_covered}", all().len());
            old.commit().unwrap();
            assert_clean(&database);
        }
    }
}

/// Versions of what was stored and removed, or only reserved, would hide what is loaded, once its leaf is changed.
#[test]
fn a_table_that_has_been_used_since_a_snapshot_was_taken_is_not_loaded() {
    type Use = fn(&Database, &Numbers);
    let uses: [(&str, Use); 5] = [
        ("put and removed", |_, numbers| {
            numbers.put(4, "put").unwrap();
            numbers.remove(4).unwrap();
        }),
        ("reserved", |database, numbers| {
            let reserved = database.run(|transaction| transaction.get_for_update(numbers, 4)).unwrap();
            assert!(reserved.is_none());
        }),
        ("reserved beside others", |database, numbers| {
            let (one, other) = (database.begin().unwrap(), database.begin().unwrap());
            one.put(numbers, 400, "put").unwrap();
            other.get_for_update(numbers, 4).unwrap();
            other.commit().unwrap();
            one.rollback().unwrap();
        }),
        ("put and taken back", |database, numbers| put_and_take_back(database, numbers, 4..5)),
        ("put and taken back, many", |database, numbers| put_and_take_back(database, numbers, 4..1000)),
    ];
    let mut loaded = Vec::new();
    for (name, used) in uses {
        for is_covered in [false, true] {
            let (_, database) = database(95, &options().version_memory_bytes(20_000));
            let numbers = database.create_table(NUMBERS).unwrap();
            let other = database.create_table("other").unwrap();
            let old = database.begin().unwrap();
            if is_covered {
                cover_snapshots(&database, &other);
            }
            used(&database, &numbers);
            assert_eq!(count(&numbers), 0);
            let refused = numbers.bulk_load(entries(10));
            // The leaf has not been changed since the snapshot was covered, so it goes on to see what is loaded there.
            if is_covered && name == "reserved" && refused.is_ok() {
                numbers.put(5, "later").unwrap();
                assert_eq!(old.count(&numbers, ..).unwrap(), 10);
                continue;
            }
            if refused.is_ok() {
                loaded.push((name, is_covered));
                continue;
            }
            assert_conflict(refused, true);
            // As part of a transaction it is possible, and not shown to the snapshot.
            database.run(|transaction| transaction.bulk_load(&numbers, entries(10))).unwrap();
            assert_eq!((old.count(&numbers, ..).unwrap(), count(&numbers)), (0, 10));
            drop(old);
            assert_clean(&database);
        }
    }
    assert!(loaded.is_empty(), "{loaded:?}");
}

fn put_and_take_back(database: &Database, numbers: &Numbers, keys: Range<u32>) {
    let transaction = database.begin().unwrap();
    let savepoint = transaction.savepoint();
    keys.for_each(|key| _ = transaction.put(numbers, key, "put").unwrap());
    transaction.rollback_to(savepoint).unwrap();
    transaction.commit().unwrap();
}

#[test]
fn loads_outside_of_transactions_and_transactions_at_once_lose_nothing() {
    for round in 0..60 {
        let (_, database) = database(round, &options());
        let numbers = database.create_table(NUMBERS).unwrap();
        let is_over = AtomicBool::new(false);
        let loaded = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let transaction = database.begin().unwrap();
                    let _ =
                        transaction.insert(&numbers, 1, "mine").and_then(|_| transaction.remove(&numbers, 1));
                    drop(transaction);
                }
            });
            let load = |count| {
                numbers.bulk_loader().and_then(|mut loader| {
                    entries(count).try_for_each(|(key, value)| loader.push(key, value))?;
                    loader.finish()
                })
            };
            let loads = [300, 0, 500].map(|count| scope.spawn(move || load(count)));
            let loaded: u64 = loads.into_iter().map(|load| load.join().unwrap().unwrap_or(0)).sum();
            is_over.store(true, Ordering::Relaxed);
            loaded
        });
        assert!([0, 300, 500].contains(&loaded));
        assert_eq!(count(&numbers), loaded, "round {round}");
        assert_eq!(numbers.get(1).unwrap().map_or(0, |value| value.len()), if loaded > 0 { 100 } else { 0 });
    }
}
