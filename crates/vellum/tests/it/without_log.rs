//! Transactions in a database that has no log: all is as with one, but nothing survives a crash.

use crate::support::{assert_clean, options};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};
use vellum::{Database, Error, IsolationLevel, Options, TransactionOptions};
use vellum_vm::{FileOperation, SimulatedDisk};

fn unlogged() -> Options {
    options().log(false)
}

#[test]
fn transactions_are_kept_apart_without_a_log() {
    let disk = Arc::new(SimulatedDisk::new(1));
    let database = Database::create_in(disk, "data", &unlogged()).unwrap();
    let table = database.create_table("table").unwrap();
    let large = vec![7; 20_000];
    table.put("large", &large).unwrap();
    table.put("small", "1").unwrap();
    let (first, second) = (database.begin().unwrap(), database.begin().unwrap());
    first.put(&table, "small", "2").unwrap();
    let savepoint = first.savepoint();
    first.remove(&table, "large").unwrap();
    // Enough for many splits, which move what others must not see.
    for number in 0..500u32 {
        first.put(&table, number.to_be_bytes(), [1; 100]).unwrap();
    }
    assert_eq!((second.count(&table, ..).unwrap(), table.count(..).unwrap()), (2, 2));
    assert_eq!(second.get(&table, "small").unwrap().unwrap(), b"1");
    assert!(matches!(second.put(&table, "small", "3"), Err(Error::Conflict { committed: false, .. })));
    drop(second);
    first.rollback_to(savepoint).unwrap();
    assert_eq!(first.get(&table, "large").unwrap().unwrap(), large);
    let old = database.begin().unwrap();
    first.commit().unwrap();
    assert_eq!(table.get("small").unwrap().unwrap(), b"2");
    assert_eq!(old.get(&table, "small").unwrap().unwrap(), b"1");
    assert!(matches!(old.remove(&table, "small"), Err(Error::Conflict { committed: true, .. })));
    drop(old);
    // Serializable: both read what the other changes.
    let options = TransactionOptions::default().isolation(IsolationLevel::Serializable);
    let [one, other] = [(); 2].map(|()| database.begin_with(options).unwrap());
    one.get(&table, "small").unwrap();
    other.get(&table, "large").unwrap();
    one.put(&table, "large", "1").unwrap();
    other.put(&table, "small", "1").unwrap();
    one.commit().unwrap();
    assert!(matches!(other.commit(), Err(Error::Conflict { committed: true, .. })));
    assert_eq!(database.run(|transaction| transaction.count(&table, ..)).unwrap(), 2);
    // Tables, too.
    let transaction = database.begin().unwrap();
    transaction.create_table("other").unwrap();
    transaction.rename_table("table", "renamed").unwrap();
    assert!(database.table("other").is_err());
    transaction.rollback().unwrap();
    database.run(|transaction| transaction.drop_table("table")).unwrap();
    let history = database.history();
    assert_eq!((history.open, history.records, history.log_bytes), (0, 0, 0));
    assert!(matches!(database.sync(), Err(Error::WithoutLog)));
    drop(table);
    assert_clean(&database);
    assert!(database.tables().unwrap().is_empty());
    database.close().unwrap();
}

#[test]
fn a_crash_loses_all_of_it_and_says_so() {
    let disk = SimulatedDisk::new(2);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &unlogged()).unwrap();
    let table = database.create_table("table").unwrap();
    let puts = |transaction: &vellum::Transaction| {
        (0..5000u32).try_for_each(|number| transaction.put(&table, number.to_be_bytes(), [1; 300]).map(drop))
    };
    database.run(puts).unwrap();
    let crashed = Arc::new(disk.crash());
    for options in [options(), unlogged()] {
        let error = Database::open_in(crashed.clone(), "data", &options).unwrap_err().to_string();
        assert!(error.contains("was not closed cleanly"), "{error}");
    }
}

/// What is changed without a log in between has LSNs that a log must not take for its own: then what it holds would count as
/// done, and the images of torn pages would be missing.
#[test]
fn lsns_go_on_from_one_session_to_the_next() {
    for seed in 0..20 {
        let mut disk = SimulatedDisk::new(seed);
        for round in 0..3u8 {
            let database = if round == 0 {
                let database = Database::create_in(Arc::new(disk.clone()), "data", &unlogged()).unwrap();
                database.create_table("table").unwrap();
                database
            } else {
                Database::open_in(Arc::new(disk.clone()), "data", &unlogged()).unwrap()
            };
            let table = database.table("table").unwrap();
            let open = database.begin().unwrap();
            for number in 0..2000u32 {
                table.put((number % 300).to_be_bytes(), [round; 90]).unwrap();
            }
            open.commit().unwrap();
            drop(table);
            database.close().unwrap();
            let database = Database::open_in(Arc::new(disk.clone()), "data", &options()).unwrap();
            let table = database.table("table").unwrap();
            let is_changed = |number: u32| number % 7 == u32::from(round);
            for number in (0..300).filter(|number| is_changed(*number)) {
                table.put(number.to_be_bytes(), [100 + round; 80]).unwrap();
            }
            disk = disk.crash();
            drop((table, database));
            let database = Database::open_in(Arc::new(disk.clone()), "data", &options()).unwrap();
            let table = database.table("table").unwrap();
            for number in 0..300 {
                let expected = if is_changed(number) { vec![100 + round; 80] } else { vec![round; 90] };
                let found = table.get(number.to_be_bytes()).unwrap().unwrap();
                assert_eq!(found, expected, "{number} of seed {seed} in round {round}");
            }
            assert_clean(&database);
            drop(table);
            database.close().unwrap();
        }
    }
}

#[test]
fn what_memory_has_no_room_for_goes_to_a_directory_that_is_there_only_then() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let database = Database::create(&path, &unlogged().version_memory_bytes(10_000)).unwrap();
    let table = database.create_table("table").unwrap();
    table.put("before", "1").unwrap();
    assert!(!Database::log_path(&path).exists());
    let old = database.begin().unwrap();
    database
        .run(|transaction| {
            (0..5000u32).try_for_each(|number| transaction.put(&table, number.to_be_bytes(), "2").map(drop))
        })
        .unwrap();
    assert!(Database::log_path(&path).is_dir());
    let undone = database.begin().unwrap();
    assert_eq!(undone.remove_range(&table, ..).unwrap(), 5001);
    undone.rollback().unwrap();
    assert_eq!((old.count(&table, ..).unwrap(), table.count(..).unwrap()), (1, 5001));
    drop((old, table));
    assert_clean(&database);
    database.close().unwrap();
    assert!(!Database::log_path(&path).exists());
    // Where there is no directory, memory has all of it.
    let file = Arc::new(vellum_vm::SimulatedFile::new(3));
    let database = Database::create_on(file, &options().version_memory_bytes(0)).unwrap();
    let table = database.create_table("table").unwrap();
    let transaction = database.begin().unwrap();
    for number in 0..5000u32 {
        transaction.put(&table, number.to_be_bytes(), "2").unwrap();
    }
    transaction.rollback().unwrap();
    assert_eq!(table.count(..).unwrap(), 0);
}

#[test]
fn what_is_open_for_reading_only_has_snapshots() {
    let disk = Arc::new(SimulatedDisk::new(4));
    for is_logged in [true, false] {
        let name = format!("data {is_logged}");
        let database = Database::create_in(disk.clone(), &name, &options().log(is_logged)).unwrap();
        let table = database.create_table("table").unwrap();
        database.run(|transaction| transaction.put(&table, "key", "value").map(drop)).unwrap();
        drop(table);
        database.close().unwrap();
        let database = Database::open_in(disk.clone(), &name, &unlogged().read_only(true)).unwrap();
        let (table, transaction) = (database.table("table").unwrap(), database.begin().unwrap());
        assert_eq!(transaction.get(&table, "key").unwrap().unwrap(), b"value");
        assert_eq!(transaction.count(&table, ..).unwrap(), 1);
        assert!(transaction.put(&table, "key", "2").is_err());
        drop(transaction);
        assert!(database.run(|transaction| transaction.create_table("other").map(drop)).is_err());
        assert_eq!(table.get("key").unwrap().unwrap(), b"value");
    }
}

/// A database that has no log is closed only when it holds what was committed and nothing else.
#[test]
fn a_transaction_that_cannot_be_rolled_back_keeps_the_database_open() {
    let disk = SimulatedDisk::new(5);
    let mut database = Database::create_in(Arc::new(disk.clone()), "data", &unlogged()).unwrap();
    let table = database.create_table("table").unwrap();
    for number in 0..5000u32 {
        table.put(number.to_be_bytes(), [1; 200]).unwrap();
    }
    let transaction = database.begin().unwrap();
    for number in 0..5000u32 {
        transaction.put(&table, number.to_be_bytes(), [2; 150]).unwrap();
    }
    // What it has changed is not in memory any more.
    disk.fail_from_of(FileOperation::Read, 1);
    assert!(transaction.rollback().is_err());
    drop(table);
    assert!(database.close_in_place().unwrap_err().to_string().contains("could not be rolled back"));
    disk.heal();
    database.close_in_place().unwrap();
    drop(database);
    let database = Database::open_in(Arc::new(disk), "data", &options()).unwrap();
    let table = database.table("table").unwrap();
    for number in 0..5000u32 {
        assert_eq!(table.get(number.to_be_bytes()).unwrap().unwrap(), [1; 200]);
    }
}

#[test]
fn a_panic_in_a_change_leaves_the_value_as_it_was() {
    let disk = Arc::new(SimulatedDisk::new(4));
    let database = Database::create_in(disk, "data", &unlogged()).unwrap();
    let table = database.create_table("table").unwrap();
    for key in ["one", "other"] {
        table.put(key, "1").unwrap();
    }
    // Alone, beside another one, and beside so many that versions are in the table.
    for beside in [0, 1, 40] {
        let others: Vec<_> = (0..beside).map(|_| database.begin().unwrap()).collect();
        let transaction = database.begin().unwrap();
        transaction.put(&table, "other", "1").unwrap();
        let modified = catch_unwind(AssertUnwindSafe(|| {
            transaction.modify(&table, "one", |value| {
                value[0] = b'9';
                panic!("of the caller");
            })
        }));
        assert!(modified.is_err());
        assert_eq!(transaction.get(&table, "one").unwrap().unwrap(), b"1", "beside {beside}");
        transaction.rollback().unwrap();
        assert_eq!(table.get("one").unwrap().unwrap(), b"1", "beside {beside}");
        drop(others);
    }
    let history = database.history();
    assert_eq!((history.open, history.records, history.leftovers), (0, 0, 0));
}

#[test]
fn what_an_interrupted_close_left_of_the_log_is_not_in_the_way_later() {
    for removed in 1..4 {
        let disk = SimulatedDisk::new(removed);
        let database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
        database.create_table("table").unwrap().put("key", "1").unwrap();
        disk.fail_nth_of(FileOperation::Name, removed);
        let _ = database.close();
        disk.heal();
        let database = Database::open_in(Arc::new(disk.clone()), "data", &unlogged()).unwrap();
        database.table("table").unwrap().put("key", "2").unwrap();
        database.close().unwrap();
        let database = Database::open_in(Arc::new(disk), "data", &options()).unwrap();
        assert_eq!(database.table("table").unwrap().get("key").unwrap().as_deref(), Some(&b"2"[..]));
        assert_clean(&database);
    }
}
