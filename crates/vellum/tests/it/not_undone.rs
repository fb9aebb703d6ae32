//! A transaction that has ended and could not be rolled back: verification, and what others may do meanwhile.

use crate::support::options;
use std::{sync::Arc, time::Instant};
use vellum::{Database, Durability, ErrorKind, Options, Table};
use vellum_vm::{FileOperation, SimulatedDisk};

const LARGE_BYTES: usize = 100_000;
const RECORDS: u32 = 4000;

fn small_pool() -> Options {
    options().durability(Durability::Deferred)
}

/// A database with large values, and a transaction that has replaced and removed them, created and cleared tables, and
/// could not be rolled back, because a page could not be read.
fn with_a_failed_rollback(disk: &Arc<SimulatedDisk>) -> (Database, Table) {
    let database = Database::create_in(disk.clone(), "data", &small_pool()).unwrap();
    let table = database.create_table("table").unwrap();
    let cleared = database.create_table("cleared").unwrap();
    for key in ["replaced", "removed"] {
        table.put(key, vec![1; LARGE_BYTES]).unwrap();
        cleared.put(key, vec![2; LARGE_BYTES]).unwrap();
    }
    drop(cleared);
    for number in 0..RECORDS {
        table.put(number.to_be_bytes(), [1; 1500]).unwrap();
    }
    database.checkpoint().unwrap();
    let transaction = database.begin().unwrap();
    transaction.put(&table, "replaced", vec![3; LARGE_BYTES]).unwrap();
    transaction.remove(&table, "removed").unwrap();
    transaction.clear_table("cleared").unwrap();
    let created = transaction.create_table("created").unwrap();
    transaction.put(&created, "new", vec![4; LARGE_BYTES]).unwrap();
    drop(created);
    for number in 0..RECORDS / 4 {
        transaction.put(&table, number.to_be_bytes(), [7; 1500]).unwrap();
    }
    // The first pages have left memory.
    for number in RECORDS / 2..RECORDS {
        table.get(number.to_be_bytes()).unwrap();
    }
    disk.fail_from_of(FileOperation::Read, 1);
    assert_eq!(transaction.rollback().unwrap_err().kind(), ErrorKind::Io);
    disk.heal();
    (database, table)
}

/// Whether everything is as it was before the transaction.
fn check_undone(database: &Database, table: &Table) {
    for key in ["replaced", "removed"] {
        assert_eq!(table.get(key).unwrap().unwrap(), [1; LARGE_BYTES]);
        let cleared = database.table("cleared").unwrap();
        assert_eq!(cleared.get(key).unwrap().unwrap(), [2; LARGE_BYTES]);
    }
    assert_eq!(table.get(0_u32.to_be_bytes()).unwrap().unwrap(), [1; 1500]);
    assert!(database.table("created").is_err());
}

#[test]
fn verifying_rolls_back_first_what_could_not_be_rolled_back() {
    let disk = Arc::new(SimulatedDisk::new(1));
    let (database, table) = with_a_failed_rollback(&disk);
    let report = database.verify(|_| {});
    assert!(report.is_clean(), "{:?}", report.problems.first());
    assert!(report.rollback_error.is_none());
    check_undone(&database, &table);
    drop(table);
    database.close().unwrap();
    let database = Database::open_in(disk, "data", &small_pool()).unwrap();
    assert!(database.recovery().is_none() && database.verify(|_| {}).is_clean());
}

/// On a device that fails, each attempt may take seconds.
#[test]
fn not_every_transaction_that_begins_tries_again() {
    let disk = Arc::new(SimulatedDisk::new(4));
    let (database, table) = with_a_failed_rollback(&disk);
    disk.fail_from_of(FileOperation::Read, 1);
    let before = disk.counts().of(FileOperation::Read);
    let began = Instant::now();
    (0..1000).for_each(|_| drop(database.begin().unwrap()));
    let (reads, elapsed) = (disk.counts().of(FileOperation::Read) - before, began.elapsed());
    // At first every tenth of a second, and then less often.
    assert!(reads > 0 && u128::from(reads) <= 20 * (1 + elapsed.as_millis() / 100), "{reads} in {elapsed:?}");
    // One that meets a change of it does.
    disk.heal();
    table.put("replaced", "other").unwrap();
    drop(table);
    assert!(database.verify(|_| {}).is_clean());
}

/// It is rolled back, and run again, as it is told to.
#[test]
fn a_transaction_that_meets_what_is_not_rolled_back_lets_the_next_one_try() {
    let disk = Arc::new(SimulatedDisk::new(5));
    let (database, table) = with_a_failed_rollback(&disk);
    disk.fail_from_of(FileOperation::Read, 1);
    // It tries in vain, and later ones wait a while before they try.
    drop(database.begin().unwrap());
    disk.heal();
    let refused = database.begin().unwrap().put(&table, "replaced", "other");
    if let Err(conflict) = refused {
        assert_eq!(conflict.kind(), ErrorKind::Conflict, "{conflict:?}");
    }
    let transaction = database.begin().unwrap();
    transaction.put(&table, "replaced", "other").unwrap();
    transaction.rollback().unwrap();
    check_undone(&database, &table);
}

#[test]
fn what_a_transaction_needs_that_is_still_not_rolled_back_is_no_leak() {
    let disk = Arc::new(SimulatedDisk::new(2));
    let (database, table) = with_a_failed_rollback(&disk);
    // Verification begins with another attempt to roll back, which meets this.
    disk.fail_nth_of(FileOperation::Read, 1);
    let report = database.verify(|_| {});
    assert!(report.is_clean(), "{:?}", report.problems.first());
    assert_eq!(report.rollback_error.unwrap().kind(), ErrorKind::Io);
    let report = database.verify(|_| {});
    assert!(report.is_clean(), "{:?}", report.problems.first());
    check_undone(&database, &table);
    drop(table);
    database.close().unwrap();
}

/// What it has changed in a table is still to be put back, so the table must stay as it is.
#[test]
fn what_has_changed_a_table_keeps_it_until_that_is_rolled_back() {
    for is_dropped_first in [false, true] {
        let disk = Arc::new(SimulatedDisk::new(3));
        let (database, table) = with_a_failed_rollback(&disk);
        drop(table);
        // The catalog is in memory from now on.
        database.tables().unwrap();
        disk.fail_from_of(FileOperation::Read, 1);
        assert_eq!(database.tables().unwrap().len(), 2);
        // The conflict is with a transaction that has ended, so the error is why that cannot be rolled back.
        let assert_refused = |done: vellum::Result<()>| {
            let error = done.expect_err("it is refused");
            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        };
        for _ in 0..2 {
            assert_refused(database.begin().unwrap().drop_table("table"));
            assert_refused(database.clear_table("table"));
            assert_refused(database.drop_table("table"));
        }
        assert_eq!(database.tables().unwrap().len(), 2);
        disk.heal();
        if is_dropped_first {
            // Before that, the transaction is rolled back.
            database.drop_table("table").unwrap();
        } else {
            drop(database.begin().unwrap());
            check_undone(&database, &database.table("table").unwrap());
            database.clear_table("table").unwrap();
            assert_eq!(database.table("table").unwrap().range(..).unwrap().count(), 0);
            database.drop_table("table").unwrap();
        }
        for key in ["replaced", "removed"] {
            let cleared = database.table("cleared").unwrap();
            assert_eq!(cleared.get(key).unwrap().unwrap(), [2; LARGE_BYTES]);
        }
        assert!(database.verify(|_| {}).is_clean());
        database.close().unwrap();
        let database = Database::open_in(disk, "data", &small_pool()).unwrap();
        assert!(database.recovery().is_none() && database.verify(|_| {}).is_clean());
        assert_eq!(database.tables().unwrap().len(), 1);
    }
}
