//! Bulk loads as part of transactions: who sees them and when, what conflicts, and when their space is free.

use crate::support::{assert_clean, assert_conflict, options};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};
use vellum::{
    ChangesFrom, Database, Error, ErrorKind, Event, IsolationLevel, Options, Table, TableName, TableOptions,
    Transaction, TransactionOptions,
};
use vellum_vm::{FileOperation, SimulatedDisk};

pub(crate) const NUMBERS: TableName<u32, str> = TableName::new("numbers");

pub(crate) fn database(seed: u64, options: &Options) -> (SimulatedDisk, Database) {
    let disk = SimulatedDisk::new(seed);
    let database = Database::create_in(Arc::new(disk.clone()), "data", options).unwrap();
    (disk, database)
}

pub(crate) fn open(disk: SimulatedDisk) -> Database {
    Database::open_in(Arc::new(disk), "data", &options()).unwrap()
}

/// How many pages are allocated. What was freed is when that is durable.
fn pages(database: &Database) -> u64 {
    drop(database.begin().unwrap());
    let _ = database.checkpoint();
    database.statistics().pages_allocated
}

/// So many entries, some of them large.
pub(crate) fn entries(count: u32) -> impl Iterator<Item = (u32, String)> {
    (0..count).map(|number| (number, "x".repeat(if number % 400 == 7 { 20_000 } else { 100 })))
}

pub(crate) fn count(table: &Table<u32, str>) -> u64 {
    table.count(..).unwrap()
}

#[track_caller]
fn assert_full<T: std::fmt::Debug>(done: vellum::Result<T>) {
    assert_eq!(done.unwrap_err().kind(), ErrorKind::AlreadyExists);
}

#[test]
fn others_see_it_when_it_is_committed() {
    for with_log in [true, false] {
        let (disk, database) = database(1, &options().log(with_log));
        let numbers = database.create_table(NUMBERS).unwrap();
        let older = database.begin().unwrap();
        let transaction = database.begin().unwrap();
        let mut loader = transaction.bulk_loader(&numbers).unwrap();
        entries(3000).for_each(|(key, value)| loader.push(key, value).unwrap());
        assert_eq!(transaction.count(&numbers, ..).unwrap(), 0);
        assert_eq!(loader.finish().unwrap(), 3000);
        let during = database.begin().unwrap();
        assert_eq!(transaction.count(&numbers, ..).unwrap(), 3000);
        assert_eq!((count(&numbers), during.count(&numbers, ..).unwrap()), (0, 0));
        assert_eq!(database.table(NUMBERS).unwrap().get(7).unwrap(), None);
        // It goes on with what it has loaded, as with any other records.
        transaction.put(&numbers, 5000, "more").unwrap();
        transaction.remove(&numbers, 7).unwrap();
        transaction.put(&numbers, 8, "eight").unwrap();
        let killed = disk.kill();
        transaction.commit().unwrap();
        for table in [&numbers, &database.table(NUMBERS).unwrap()] {
            assert_eq!(
                (count(table), table.get(407).unwrap().map(|value| value.len())),
                (3000, Some(20_000))
            );
            assert_eq!(table.get(8).unwrap().as_deref(), Some("eight"));
            for snapshot in [&older, &during] {
                assert_eq!((snapshot.count(table, ..).unwrap(), snapshot.get(table, 8).unwrap()), (0, None));
            }
        }
        assert_conflict(older.put(&numbers, 1, "uno"), true);
        numbers.put(7, "seven").unwrap();
        database.run(|later| later.put(&numbers, 9, "nine").map(drop)).unwrap();
        drop((older, during));
        assert_eq!(count(&numbers), 3001);
        assert_clean(&database);
        let crashed = disk.crash();
        drop((numbers, database));
        if with_log {
            for (disk, expected) in [(killed, 0), (crashed, 3001)] {
                let database = open(disk);
                assert_eq!(count(&database.table(NUMBERS).unwrap()), expected);
                assert_clean(&database);
            }
        }
    }
}

#[test]
fn what_is_not_committed_leaves_nothing() {
    let (disk, database) = database(2, &options());
    let numbers = database.create_table(NUMBERS).unwrap();
    let empty = pages(&database);
    for round in 0..12_u32 {
        let transaction = database.begin().unwrap();
        match round % 4 {
            // Not finished.
            0 => {
                let mut loader = transaction.bulk_loader(&numbers).unwrap();
                entries(2000).for_each(|(key, value)| loader.push(key, value).unwrap());
                drop(loader);
                assert_eq!(transaction.count(&numbers, ..).unwrap(), 0);
                transaction.commit().unwrap();
            }
            1 => {
                transaction.bulk_load(&numbers, entries(2000)).unwrap();
                transaction.rollback().unwrap();
            }
            // Taken back, and once more.
            2 => {
                let before = transaction.savepoint();
                transaction.bulk_load(&numbers, entries(2000)).unwrap();
                transaction.put(&numbers, 1, "one").unwrap();
                transaction.rollback_to(before).unwrap();
                assert_eq!(transaction.count(&numbers, ..).unwrap(), 0);
                transaction.bulk_load(&numbers, entries(20)).unwrap();
                assert_eq!(transaction.count(&numbers, ..).unwrap(), 20);
                drop(transaction);
            }
            _ => {
                transaction.bulk_load(&numbers, entries(2000)).unwrap();
                // The power goes before it is committed.
                database.sync().unwrap();
                let crashed = open(disk.crash());
                assert_eq!(count(&crashed.table(NUMBERS).unwrap()), 0);
                assert_clean(&crashed);
                assert!(pages(&crashed) <= empty + 1, "{} more", pages(&crashed) - empty);
                drop(transaction);
            }
        }
        assert_eq!(count(&numbers), 0);
        numbers.put(1, "one").unwrap();
        numbers.remove(1).unwrap();
        // The roots of trees that were not used stay, until the table has no handles.
        let left = pages(&database) - empty;
        assert!(left <= u64::from(round) * 2 + 2, "{left} pages after {round} rounds");
    }
    drop(numbers);
    assert_eq!(pages(&database), empty);
    assert_clean(&database);
}

#[test]
fn a_load_is_dated_when_it_is_finished() {
    let (_disk, database) = database(3, &options());
    let numbers = database.create_table(NUMBERS).unwrap();
    let transaction = database.begin().unwrap();
    let before = transaction.savepoint();
    let mut loader = transaction.bulk_loader(&numbers).unwrap();
    loader.push(1, "one").unwrap();
    transaction.create_table("other").unwrap();
    let between = transaction.savepoint();
    loader.push(2, "two").unwrap();
    loader.finish().unwrap();
    transaction.rollback_to(between).unwrap();
    assert_eq!(transaction.count(&numbers, ..).unwrap(), 0);
    assert!(transaction.table("other").is_ok());
    // One that has begun before what is taken back may be finished.
    let mut loader = transaction.bulk_loader(&numbers).unwrap();
    loader.push(3, "three").unwrap();
    transaction.rollback_to(before).unwrap();
    loader.push(4, "four").unwrap();
    loader.finish().unwrap();
    transaction.commit().unwrap();
    assert_eq!((count(&numbers), database.tables().unwrap().len()), (2, 1));
    assert_clean(&database);
}

#[test]
fn tables_that_change_in_the_same_transaction_are_loaded() {
    let (disk, database) = database(4, &options());
    let old = database.create_table(TableName::<u32, str>::new("old")).unwrap();
    for number in 0..100 {
        old.put(number, "old").unwrap();
    }
    let transaction = database.begin().unwrap();
    let numbers = transaction.create_table(NUMBERS).unwrap();
    transaction.bulk_load(&numbers, entries(1000)).unwrap();
    assert_full(transaction.bulk_load(&numbers, entries(1000)));
    transaction.clear_table("numbers").unwrap();
    transaction.bulk_load(&numbers, entries(2000)).unwrap();
    transaction.rename_table("numbers", "digits").unwrap();
    assert_eq!(transaction.count(&numbers, ..).unwrap(), 2000);
    // By a handle from before it was renamed, and after all was removed.
    transaction.rename_table("old", "new").unwrap();
    assert_full(transaction.bulk_load(&old, entries(10)));
    transaction.remove_range(&old, ..).unwrap();
    transaction.bulk_load(&old, transaction.range(&numbers, ..50).unwrap().map(Result::unwrap)).unwrap();
    // While it is loaded it is dropped.
    let gone = transaction.create_table(TableName::<u32, str>::new("gone")).unwrap();
    let mut loader = transaction.bulk_loader(&gone).unwrap();
    loader.push(1, "one").unwrap();
    transaction.drop_table("gone").unwrap();
    assert!(matches!(loader.finish(), Err(Error::NoSuchTable { name }) if name == "gone"));
    assert!(matches!(transaction.bulk_load(&gone, entries(1)), Err(Error::NoSuchTable { .. })));
    drop(gone);
    transaction.commit().unwrap();
    assert_eq!((count(&old), count(&numbers)), (50, 2000));
    assert_clean(&database);
    let crashed = disk.crash();
    drop((old, numbers, database));
    let database = open(crashed);
    let names: Vec<_> = database.tables().unwrap().into_iter().map(|table| table.name).collect();
    assert_eq!(names, ["digits", "new"]);
    assert_eq!(count(&database.table(TableName::new("new")).unwrap()), 50);
    assert_clean(&database);
}

/// Though nothing was changed between the beginning of the load and the savepoint.
#[test]
fn a_savepoint_after_the_beginning_of_a_load_leaves_the_table_to_the_transaction() {
    let (_disk, database) = database(6, &options());
    let numbers = database.create_table(NUMBERS).unwrap();
    let transaction = database.begin().unwrap();
    let before = transaction.savepoint();
    drop(transaction.bulk_loader(&numbers).unwrap());
    transaction.rollback_to(before).unwrap();
    // The load has begun after that one.
    numbers.put(1, "one").unwrap();
    numbers.remove(1).unwrap();
    let mut loader = transaction.bulk_loader(&numbers).unwrap();
    let after = transaction.savepoint();
    transaction.rollback_to(after).unwrap();
    assert_conflict(numbers.put(1, "one"), false);
    loader.push(2, "two").unwrap();
    loader.finish().unwrap();
    transaction.rollback_to(after).unwrap();
    assert_conflict(numbers.put(1, "one"), false);
    assert_eq!(transaction.bulk_load(&numbers, entries(5)).unwrap(), 5);
    transaction.rollback_to(before).unwrap();
    numbers.put(1, "one").unwrap();
    transaction.commit().unwrap();
    assert_eq!(count(&numbers), 1);
    assert_clean(&database);
}

#[test]
fn the_table_is_the_transactions_from_the_beginning_of_the_load() {
    let (_disk, database) = database(5, &options());
    let numbers = database.create_table(NUMBERS).unwrap();
    let transaction = database.begin().unwrap();
    let mut outside = numbers.bulk_loader().unwrap();
    outside.push(1, "one").unwrap();
    let mut loader = transaction.bulk_loader(&numbers).unwrap();
    let other = database.begin().unwrap();
    assert_conflict(numbers.put(1, "one"), false);
    assert_conflict(numbers.multi_put(&[(1, "one")]).remove(0), false);
    assert_conflict(other.put(&numbers, 1, "one"), false);
    assert_conflict(database.clear_table("numbers"), false);
    assert_conflict(outside.finish(), false);
    assert_conflict(database.begin().unwrap().bulk_load(&numbers, entries(1)), false);
    loader.push(2, "two").unwrap();
    loader.finish().unwrap();
    assert_conflict(numbers.put(1, "one"), false);
    transaction.commit().unwrap();
    numbers.put(1, "one").unwrap();
    drop(other);

    // Others were first: they are still open, or have been committed since.
    database.clear_table("numbers").unwrap();
    let (first, second) = (database.begin().unwrap(), database.begin().unwrap());
    first.put(&numbers, 1, "one").unwrap();
    assert_conflict(second.bulk_load(&numbers, entries(1)), false);
    assert!(matches!(second.commit(), Err(Error::Ended)));
    let second = database.begin().unwrap();
    first.commit().unwrap();
    assert_conflict(second.bulk_load(&numbers, entries(1)), true);
    drop(second);
    numbers.remove(1).unwrap();
    let second = database.begin().unwrap();
    numbers.put(2, "two").unwrap();
    assert_conflict(second.bulk_load(&numbers, entries(1)), true);
    drop(second);
    // What came and went is nothing.
    numbers.remove(2).unwrap();
    let second = database.begin().unwrap();
    numbers.put(3, "three").unwrap();
    numbers.remove(3).unwrap();
    second.bulk_load(&numbers, entries(5)).unwrap();
    second.commit().unwrap();
    assert_eq!(count(&numbers), 5);

    // A table is not empty if its own transaction stores something in it.
    database.clear_table("numbers").unwrap();
    let transaction = database.begin().unwrap();
    transaction.put(&numbers, 1, "one").unwrap();
    assert_full(transaction.bulk_load(&numbers, entries(5)));
    transaction.remove(&numbers, 1).unwrap();
    let mut loader = transaction.bulk_loader(&numbers).unwrap();
    loader.push(1, "uno").unwrap();
    transaction.put(&numbers, 2, "two").unwrap();
    assert_full(loader.finish());
    transaction.remove(&numbers, 2).unwrap();
    transaction.bulk_load(&numbers, entries(5)).unwrap();
    transaction.commit().unwrap();
    assert_eq!(count(&numbers), 5);
    let plain = database.create_table_with("plain", TableOptions::default().versions(false)).unwrap();
    let refused = database.begin().unwrap().bulk_load(&plain, [("key", "value")]);
    assert!(matches!(refused, Err(Error::PlainTable { .. })), "{refused:?}");
    assert_clean(&database);
}

#[test]
fn serializable_transactions_and_loads_conflict() {
    let (_disk, database) = database(6, &options().isolation(IsolationLevel::Serializable));
    let numbers = database.create_table(NUMBERS).unwrap();
    let other = database.create_table("other").unwrap();
    // It has seen the table empty.
    for looks in [
        |transaction: &Transaction, table: &Table<u32, str>| transaction.get(table, 2000).map(drop),
        |transaction: &Transaction, table: &Table<u32, str>| transaction.count(table, 5..6).map(drop),
    ] {
        let reader = database.begin().unwrap();
        looks(&reader, &numbers).unwrap();
        database.run(|load| load.bulk_load(&numbers, entries(100)).map(drop)).unwrap();
        reader.put(&other, "a", "b").unwrap();
        assert_conflict(reader.commit(), true);
        database.clear_table("numbers").unwrap();
    }
    // One that loads has read what was changed since.
    let load = database.begin().unwrap();
    assert_eq!(load.get(&other, "a").unwrap(), None);
    load.bulk_load(&numbers, entries(100)).unwrap();
    other.put("a", "c").unwrap();
    assert_conflict(load.commit(), true);
    assert_eq!(count(&numbers), 0);
    // Two that read what the other loads.
    let more = database.create_table(TableName::<u32, str>::new("more")).unwrap();
    let (first, second) = (database.begin().unwrap(), database.begin().unwrap());
    assert_eq!(first.count(&numbers, ..).unwrap() + second.count(&more, ..).unwrap(), 0);
    first.bulk_load(&more, entries(10)).unwrap();
    second.bulk_load(&numbers, entries(10)).unwrap();
    first.commit().unwrap();
    assert_conflict(second.commit(), true);
    assert_eq!((count(&numbers), count(&more)), (0, 10));
    // By snapshots alone both would have gone through. That a load was refused is a read, too.
    let load = database.begin().unwrap();
    assert_full(load.bulk_load(&more, entries(10)));
    more.remove(0).unwrap();
    load.put(&other, "more", "is full").unwrap();
    assert_conflict(load.commit(), true);
    assert_clean(&database);
}

#[test]
fn a_feed_tells_of_it_with_its_transaction() {
    for logs_values in [true, false] {
        let (_disk, database) = database(7, &options().log_whole_values(logs_values));
        let numbers = database.create_table(NUMBERS).unwrap();
        let mut changes = database.changes(ChangesFrom::Now).unwrap();
        let transaction = database.begin().unwrap();
        transaction.put(&numbers, 9999, "before").unwrap();
        let before = transaction.savepoint();
        transaction.remove(&numbers, 9999).unwrap();
        transaction.bulk_load(&numbers, entries(10)).unwrap();
        transaction.rollback_to(before).unwrap();
        transaction.remove(&numbers, 9999).unwrap();
        transaction.bulk_load(&numbers, entries(1500)).unwrap();
        transaction.put(&numbers, 5000, "after").unwrap();
        // A feed that begins before the commit.
        let mut later = database.changes(ChangesFrom::Now).unwrap();
        database.create_table("other").unwrap();
        transaction.commit().unwrap();
        database.begin().unwrap().bulk_load(&database.table("other").unwrap(), [("a", "b")]).unwrap();
        numbers.put(5001, "later").unwrap();
        for feed in [&mut changes, &mut later] {
            let mut told = Vec::new();
            while let Some(commit) = feed.next().unwrap() {
                for change in commit.changes {
                    told.push(match change.event {
                        Event::Inserted { key, .. } => {
                            format!("{}", u32::from_be_bytes(key.try_into().unwrap()))
                        }
                        Event::Removed { .. } => "removed".to_owned(),
                        Event::Dropped => "dropped".to_owned(),
                        Event::Created { .. } => format!("created {}", change.table),
                        Event::Loaded { records } => {
                            let mut count = 0;
                            let is_whole = records.for_each(|_, value| {
                                count += u32::from(value.read()?.value().is_some());
                                Ok(true)
                            });
                            assert_eq!(is_whole.unwrap(), logs_values);
                            format!("loaded {}", if logs_values { count } else { 1500 })
                        }
                        other => panic!("{other:?}"),
                    });
                }
                told.push(";".to_owned());
            }
            let told = told.join(" ");
            let expected = "created other ; 9999 removed dropped created numbers loaded 1500 5000 ; 5001 ;";
            assert_eq!(told, expected);
        }
    }
}

/// Each operation of the disk fails in turn while a table is loaded. Then it is as it was, or loaded, and nothing is lost.
#[test]
fn a_disk_that_fails_leaves_the_table_as_it_was() {
    for operation in [FileOperation::Write, FileOperation::Sync, FileOperation::Read] {
        let mut refused = 0;
        for number in 1.. {
            let (disk, database) = database(number, &options().pool_bytes(256 << 10));
            let numbers = database.create_table(NUMBERS).unwrap();
            database.checkpoint().unwrap();
            let before = disk.counts().of(operation);
            disk.fail_nth_of(operation, number);
            let loaded = database.run(|load| load.bulk_load(&numbers, entries(800)).map(drop));
            let failed = disk.counts().of(operation) - before >= number;
            let crashed = disk.crash();
            let expected = if loaded.is_ok() { 800 } else { 0 };
            refused += u64::from(loaded.is_err());
            let is_unknown = |error: &Error| error.kind() == ErrorKind::OutcomeUnknown;
            if !loaded.as_ref().is_err_and(is_unknown) {
                assert_eq!(count(&numbers), expected, "{operation} {number}: {loaded:?}");
            }
            drop((numbers, database));
            let database = open(crashed);
            let found = count(&database.table(NUMBERS).unwrap());
            assert!(found == expected || loaded.is_err_and(|error| is_unknown(&error)) && found == 800);
            assert_clean(&database);
            if !failed {
                break;
            }
        }
        assert!(refused > 0 || operation == FileOperation::Read, "{operation} fails");
    }
}

/// Threads load a table, clear it and store single entries in it, by transactions and by themselves. What was acknowledged is there until
/// it is cleared.
#[test]
fn loads_meet_others_that_change_the_table() {
    for (seed, with_log) in [(8, true), (9, false)] {
        let (_disk, database) = database(seed, &options().background_eviction(true).log(with_log));
        let numbers = database.create_table(NUMBERS).unwrap();
        let (is_over, loads, puts) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            let (database, numbers, is_over, loads, puts) = (&database, &numbers, &is_over, &loads, &puts);
            for thread in 0..2_u32 {
                scope.spawn(move || {
                    let key = 1_000_000 + thread;
                    while !is_over.load(Ordering::SeqCst) {
                        // Nobody else removes it, and who loads finds the table empty.
                        let put = match thread {
                            0 => numbers.put(key, "value").map(drop),
                            _ => database.run(|transaction| transaction.put(numbers, key, "value").map(drop)),
                        };
                        match put {
                            Ok(()) => {
                                puts.fetch_add(1, Ordering::SeqCst);
                                assert!(numbers.contains(key).unwrap(), "a load has taken it away");
                                while numbers.remove(key).is_err() {}
                            }
                            Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
                        }
                        thread::sleep(Duration::from_micros(u64::from(thread) * 300));
                        // On a busy machine a load would hardly ever find the table empty.
                        while puts.load(Ordering::SeqCst) > 5 * loads.load(Ordering::SeqCst) + 50
                            && !is_over.load(Ordering::SeqCst)
                        {
                            thread::sleep(Duration::from_millis(1));
                        }
                    }
                });
            }
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    // All of it or nothing.
                    let transaction = database.begin().unwrap();
                    let found: BTreeMap<_, _> =
                        transaction.range(numbers, ..1_000_000).unwrap().map(Result::unwrap).collect();
                    assert!(found.is_empty() || found.len() == 300, "{}", found.len());
                }
            });
            for round in 0..200_000_u64 {
                let transaction = database.begin().unwrap();
                let loaded = transaction.bulk_load(numbers, entries(300));
                let loaded = loaded.and_then(|_| {
                    if round % 3 == 0 {
                        transaction.rollback().map(|()| false)
                    } else {
                        transaction.commit().map(|()| true)
                    }
                });
                match loaded {
                    Ok(is_committed) => {
                        loads.fetch_add(1, Ordering::SeqCst);
                        // What the others have stored since stays.
                        while is_committed
                            && database.run(|all| all.remove_range(numbers, ..1_000_000).map(drop)).is_err()
                        {
                        }
                    }
                    Err(error) => assert!(
                        matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists),
                        "{error}"
                    ),
                }
                if loads.load(Ordering::SeqCst) > 60 && puts.load(Ordering::SeqCst) > 300 {
                    break;
                }
            }
            is_over.store(true, Ordering::SeqCst);
        });
        let met = (loads.into_inner(), puts.into_inner());
        assert!(met.0 > 60 && met.1 > 300, "{met:?}");
        assert_eq!(count(&numbers), 0);
        assert_clean(&database);
    }
}

#[test]
fn it_is_refused_where_nothing_may_be_changed() {
    let (_disk, database) = database(10, &options());
    let numbers = database.create_table(NUMBERS).unwrap();
    let other = self::database(11, &options()).1;
    let refused = other.begin().unwrap().bulk_load(&numbers, entries(1));
    assert!(matches!(refused, Err(Error::OtherDatabase { .. })), "{refused:?}");
    // The snapshot does not see the table.
    let older = database.begin().unwrap();
    let later = database.create_table(TableName::<u32, str>::new("later")).unwrap();
    let refused = older.bulk_load(&later, entries(1));
    assert!(matches!(refused, Err(Error::NoSuchTable { .. })), "{refused:?}");
    // Misplaced entries are left out, and the load goes on.
    let snapshot = TransactionOptions::default().isolation(IsolationLevel::Snapshot);
    let transaction = database.begin_with(snapshot).unwrap();
    let mut loader = transaction.bulk_loader(&later).unwrap();
    loader.push(2, "two").unwrap();
    assert_eq!(loader.push(1, "one").unwrap_err().kind(), ErrorKind::InvalidInput);
    loader.push(3, "three").unwrap();
    assert_eq!((loader.count(), loader.finish().unwrap()), (2, 2));
    assert_eq!(transaction.bulk_load(&numbers, entries(0)).unwrap(), 0);
    transaction.commit().unwrap();
    assert_eq!((count(&later), count(&numbers)), (2, 0));
    assert_clean(&database);
}
