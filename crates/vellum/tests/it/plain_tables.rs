//! Plain tables: single operations beside transactions, which cannot use them.

use crate::support::options;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};
use vellum::{
    Backup, BackupOptions, Database, Error, ErrorKind, RestoreOptions, Table, TableName, TableOptions, Task,
};
use vellum_vm::{Faults, SimulatedDisk};

fn plain() -> TableOptions {
    TableOptions::default().versions(false)
}

fn database(seed: u64) -> (Arc<SimulatedDisk>, Database) {
    let disk = Arc::new(SimulatedDisk::new(seed));
    let database = Database::create_in(disk.clone(), "data", &options()).unwrap();
    (disk, database)
}

fn assert_plain(database: &Database, expected: &[(&str, bool)]) {
    let tables = database.tables().unwrap();
    let found: Vec<_> = tables.iter().map(|table| (table.name.as_str(), table.is_plain)).collect();
    assert_eq!(found, expected);
    let report = database.verify(|_| {});
    assert!(report.is_clean(), "{:?}", report.problems);
}

#[test]
fn transactions_cannot_use_a_plain_table_and_say_why() {
    let (_disk, database) = database(1);
    let table = database.create_table_with("plain", plain()).unwrap();
    let other = database.create_table("other").unwrap();
    table.put("key", "value").unwrap();
    let transaction = database.begin().unwrap();
    transaction.put(&other, "key", "1").unwrap();
    let refused = |error: Option<Error>| {
        let error = error.expect("a transaction uses a plain table");
        assert!(matches!(&error, Error::PlainTable { table } if table == "plain"), "{error}");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("outside of the transaction"), "{error}");
    };
    refused(transaction.get(&table, "key").err());
    refused(transaction.get_for_update(&table, "key").err());
    refused(transaction.multi_get(&table, &["key"]).err());
    refused(transaction.range(&table, ..).and_then(|mut range| range.next().transpose()).err());
    refused(transaction.cursor(&table, ..).err());
    refused(transaction.count(&table, ..).err());
    refused(transaction.put(&table, "key", "1").err());
    refused(transaction.insert(&table, "new", "1").err());
    refused(transaction.update(&table, "key", "1").err());
    refused(transaction.modify(&table, "key", |_| ()).err());
    refused(transaction.remove(&table, "key").err());
    refused(transaction.remove_range(&table, ..).err());
    refused(transaction.compare_and_swap(&table, "key", "value", "1").err());
    refused(transaction.pop_first(&table).err());
    // It is a fault of the program and no conflict: the transaction goes on.
    transaction.commit().unwrap();
    assert_eq!(other.get("key").unwrap().unwrap(), b"1");
    assert_eq!(table.get("key").unwrap().unwrap(), b"value");
}

/// Every way of changing something, beside a snapshot that would make a table with versions keep them.
#[test]
fn beside_transactions_it_keeps_nothing_of_the_past() {
    let (_disk, database) = database(2);
    let table = database.create_table_with("plain", plain()).unwrap();
    let other = database.create_table("other").unwrap();
    let open = database.begin().unwrap();
    open.put(&other, "mine", "1").unwrap();
    let history = database.history();
    for number in 0..3000u32 {
        table.put(number.to_be_bytes(), [number as u8; 60]).unwrap();
    }
    table.modify(7u32.to_be_bytes(), |value| value[0] = 70).unwrap();
    assert!(table.compare_and_swap(8u32.to_be_bytes(), [8; 60], "swapped").unwrap());
    table.put_from("large", 50_000, &mut &[5; 50_000][..]).unwrap();
    table.put("large", vec![6; 40_000]).unwrap();
    assert!(table.multi_modify(&[9u32.to_be_bytes()], |_, value| value[0] = 90)[0].as_ref().unwrap());
    let keys: Vec<_> = (100..200u32).map(u32::to_be_bytes).collect();
    let removals = keys.iter().map(|key| (key, Task::<&[u8]>::Remove));
    table.multi_run(removals, |_, answer| assert!(answer.is_ok())).unwrap();
    futures_lite(table.put_async("async", "1"));
    let mut submissions = table.submissions();
    submissions.submit("submitted", Task::Upsert(b"1".to_vec()), 1);
    while !submissions.is_empty() {
        submissions.wait();
        submissions.reap(|_, _, answer| assert!(answer.is_ok()));
    }
    drop(submissions);
    assert_eq!(table.count(..).unwrap(), 3000 + 1 - 100 + 2);
    assert_eq!(table.get(9u32.to_be_bytes()).unwrap().unwrap()[0], 90);
    let now = database.history();
    assert_eq!((now.records, now.versions, now.leftovers), (history.records, history.versions, 0));
    let loaded = database.create_table_with("loaded", plain()).unwrap();
    loaded.bulk_load((0..100u32).map(|number| (number.to_be_bytes(), "1"))).unwrap();
    assert_eq!(loaded.count(..).unwrap(), 100);
    drop(open);
    assert_plain(&database, &[("loaded", true), ("other", false), ("plain", true)]);
}

/// Drives a future that needs no runtime.
fn futures_lite<T>(future: vellum::TableFuture<T>) {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    while Future::poll(future.as_mut(), &mut context).is_pending() {
        thread::yield_now();
    }
}

#[test]
fn a_table_remains_plain_whatever_becomes_of_it() {
    const TYPED: TableName<str, u64> = TableName::new("typed");
    let (disk, mut database) = database(3);
    database.create_table_with(TYPED, plain()).unwrap().put("key", 1).unwrap();
    database.run(|transaction| transaction.create_table_with("made", plain()).map(drop)).unwrap();
    database.create_table("versions").unwrap();
    database.run(|transaction| transaction.rename_table("made", "renamed")).unwrap();
    let expected = [("renamed", true), ("typed", true), ("versions", false)];
    assert_plain(&database, &expected);
    database.backup_in(disk.clone(), "backup", BackupOptions::default()).unwrap();
    for has_log in [false, true] {
        database.close().unwrap();
        database = Database::open_in(disk.clone(), "data", &options().log(has_log)).unwrap();
        assert_plain(&database, &expected);
        let table = database.table(TYPED).unwrap();
        let transaction = database.begin().unwrap();
        assert!(matches!(transaction.get(&table, "key"), Err(Error::PlainTable { .. })));
        assert_eq!(table.get("key").unwrap(), Some(1));
    }
    database.close().unwrap();
    let backup = Backup::open_in(&*disk, "backup").unwrap();
    Backup::restore_in(&[backup], disk.clone(), "restored", &options(), RestoreOptions::default()).unwrap();
    let restored = Database::open_in(disk, "restored", &options()).unwrap();
    assert_plain(&restored, &expected);
    assert_eq!(restored.table(TYPED).unwrap().get("key").unwrap(), Some(1));
}

#[test]
fn it_is_created_and_dropped_in_transactions() {
    let (_disk, database) = database(4);
    let transaction = database.begin().unwrap();
    let table = transaction.create_table_with("plain", plain()).unwrap();
    assert!(matches!(table.put("key", "1"), Err(Error::Conflict { committed: false, .. })));
    transaction.rollback().unwrap();
    assert!(matches!(table.put("key", "1"), Err(Error::NoSuchTable { .. })));
    drop(table);
    let table = database.create_table_with("plain", plain()).unwrap();
    table.put("key", "1").unwrap();
    let transaction = database.begin().unwrap();
    transaction.drop_table("plain").unwrap();
    assert!(matches!(table.put("key", "2"), Err(Error::Conflict { committed: false, .. })));
    assert_eq!(table.get("key").unwrap().unwrap(), b"1");
    transaction.rollback().unwrap();
    table.put("key", "3").unwrap();
    database.run(|transaction| transaction.drop_table("plain")).unwrap();
    assert!(matches!(table.put("key", "4"), Err(Error::NoSuchTable { .. })));
    drop(table);
    assert_plain(&database, &[]);
}

#[test]
fn it_is_loaded_by_the_transaction_that_creates_it() {
    let (disk, database) = database(9);
    let entries = || (0..20_000_u32).map(|number| (number.to_be_bytes(), number.to_string()));
    let there = database.create_table_with("there", plain()).unwrap();
    let transaction = database.begin().unwrap();
    let error = transaction.bulk_load(&there, entries()).unwrap_err();
    assert!(matches!(error, Error::PlainTable { .. }), "{error}");
    let table = transaction.create_table_with("loaded", plain()).unwrap();
    assert_eq!(transaction.bulk_load(&table, entries()).unwrap(), 20_000);
    // It is not empty any more, and nobody else has it.
    let error = transaction.bulk_load(&table, entries()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    assert!(matches!(transaction.get(&table, "key"), Err(Error::PlainTable { .. })));
    assert_eq!(table.put("key", "value").unwrap_err().kind(), ErrorKind::Conflict);
    assert!(matches!(database.table("loaded"), Err(Error::NoSuchTable { .. })));
    // Dropped within the transaction, and rolled back to a savepoint.
    let gone = transaction.create_table_with("gone", plain()).unwrap();
    transaction.bulk_load(&gone, entries()).unwrap();
    transaction.drop_table("gone").unwrap();
    let savepoint = transaction.savepoint();
    let undone = transaction.create_table_with("undone", plain()).unwrap();
    transaction.bulk_load(&undone, entries()).unwrap();
    transaction.rollback_to(savepoint).unwrap();
    assert!(transaction.bulk_load(&undone, entries()).is_err());
    transaction.rename_table("loaded", "renamed").unwrap();
    transaction.commit().unwrap();
    assert_eq!(table.count(..).unwrap(), 20_000);
    table.put("key", "value").unwrap();
    // One that is open when the process is killed leaves nothing.
    let transaction = database.begin().unwrap();
    let open = transaction.create_table_with("open", plain()).unwrap();
    transaction.bulk_load(&open, entries()).unwrap();
    database.sync().unwrap();
    let (_disk, database) = {
        let disk = Arc::new(disk.crash());
        let database = Database::open_in(disk.clone(), "data", &options()).unwrap();
        (disk, database)
    };
    assert_plain(&database, &[("renamed", true), ("there", true)]);
    let table = database.table("renamed").unwrap();
    assert_eq!(table.count(..).unwrap(), 20_001);
    assert_eq!(table.get(7_u32.to_be_bytes()).unwrap().unwrap(), b"7");
}

/// What was acknowledged is there after a crash, and what transactions beside it have not committed is not.
#[test]
fn what_is_acknowledged_survives_a_crash_beside_transactions() {
    for seed in 0..30 {
        let (disk, database) = database(seed);
        let table = database.create_table_with("plain", plain()).unwrap();
        let other = database.create_table("other").unwrap();
        let fill = |table: &Table, from: u32| {
            for number in from..from + 100 {
                table.put(number.to_be_bytes(), [1; 100]).unwrap();
            }
        };
        fill(&table, 0);
        let open = database.begin().unwrap();
        for number in 0..100u32 {
            open.put(&other, number.to_be_bytes(), [2; 100]).unwrap();
        }
        fill(&table, 100);
        table.put("large", vec![seed as u8; 30_000]).unwrap();
        if seed % 2 == 0 {
            database.checkpoint().unwrap();
        }
        fill(&table, 200);
        let crashed = disk.crash();
        drop((open, table, other, database));
        let database = Database::open_in(Arc::new(crashed), "data", &options()).unwrap();
        let table = database.table("plain").unwrap();
        assert_eq!(table.count(..).unwrap(), 301, "seed {seed}");
        assert_eq!(table.get("large").unwrap().unwrap(), vec![seed as u8; 30_000]);
        assert_eq!(database.table("other").unwrap().count(..).unwrap(), 0, "seed {seed}");
        assert_plain(&database, &[("other", false), ("plain", true)]);
    }
}

/// Threads count in one record, while transactions change another table.
#[test]
fn its_operations_are_atomic_beside_transactions() {
    const EACH: u64 = 400;
    let (_disk, database) = database(5);
    let table = database.create_table_with(TableName::<str, u64>::new("plain"), plain()).unwrap();
    let other = database.create_table(TableName::<str, u64>::new("other")).unwrap();
    table.put("count", 0).unwrap();
    other.put("count", 0).unwrap();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    table.update_with("count", |count| Some(count.unwrap_or(0) + 1)).unwrap();
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..EACH {
                let add = |count: Option<u64>| Some(count.unwrap_or(0) + 1);
                database.run(|transaction| transaction.update_with(&other, "count", add)).unwrap();
            }
        });
    });
    assert_eq!(table.get("count").unwrap(), Some(3 * EACH));
    assert_eq!(other.get("count").unwrap(), Some(EACH));
}

/// Between a look at its record and the read of its contents a large value can go, and its space become another's.
#[test]
fn large_values_are_never_reported_damaged_beside_others_that_replace_them() {
    const KEYS: u64 = 24;
    let disk = Arc::new(SimulatedDisk::new(6));
    let options = options().pool_bytes(64 * 4096);
    let database = Database::create_in(disk.clone(), "data", &options).unwrap();
    let table = database.create_table_with(TableName::<u64, [u8]>::new("plain"), plain()).unwrap();
    // All bytes of a value are the same, and other than those of the value before.
    let length = |key: u64, round: u64| match key % 12 {
        // More than the pool.
        7 => 300_000,
        _ => 5_000 + 4_096 * ((key + round) % 9),
    };
    let value = |key: u64, round: u64| vec![(key * 7 + round) as u8; length(key, round) as usize];
    (0..KEYS).for_each(|key| assert!(table.insert(key, value(key, 0)).unwrap()));
    disk.set_faults(Faults { delay_max: Duration::from_micros(200), ..Faults::default() });
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for reader in 0..3 {
            let (table, is_over) = (&table, &is_over);
            scope.spawn(move || {
                for turn in reader.. {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let key = turn * 5 % KEYS;
                    if let Some(found) = table.get(key).unwrap() {
                        assert!(
                            found.iter().all(|byte| *byte == found[0]),
                            "a value of {} bytes",
                            found.len()
                        );
                    }
                }
            });
        }
        for round in 1..60 {
            for key in 0..KEYS {
                match (key + round) % 3 {
                    0 => drop(table.remove(key).unwrap()),
                    _ => drop(table.put(key, value(key, round)).unwrap()),
                }
            }
            if round % 10 == 0 {
                database.compact(|_| true).unwrap();
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(database.verify(|_| {}).is_clean());
}
