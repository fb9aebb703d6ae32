//! What must not make a serializable transaction fail: what others only claimed or undid, and ranges without keys.

use crate::serializable::{assert_conflict, commit, database, key, options};
use std::{ops::Bound, sync::Arc};
use vellum::{Database, Error, Table, Transaction};
use vellum_vm::SimulatedDisk;

#[test]
fn what_was_reserved_or_changed_in_vain_makes_nobody_fail() {
    // The room for changes is so small that many go to a file.
    for (is_small, many) in [(false, 1), (false, 200), (true, 2000)] {
        let disk = SimulatedDisk::new(21);
        let options = options().version_memory_bytes(if is_small { 64 << 10 } else { 8 << 20 });
        let database = Database::create_in(Arc::new(disk), "data", &options).unwrap();
        let (table, other) =
            (database.create_table("table").unwrap(), database.create_table("other").unwrap());
        (0..many).for_each(|number| _ = table.put(key(number), [0; 200]).unwrap());
        let reader = || {
            let transaction = database.begin().unwrap();
            assert_eq!(transaction.count(&table, ..).unwrap(), u64::from(many));
            transaction
        };
        let reserves = |transaction: &Transaction, number| {
            drop(transaction.get_for_update(&table, key(number)).unwrap());
        };
        let undoes = |transaction: &Transaction, number| {
            let savepoint = transaction.savepoint();
            transaction.put(&table, key(number), [1; 200]).unwrap();
            transaction.rollback_to(savepoint).unwrap();
        };
        // One transaction that does it to all records, then one for each record.
        for is_one in [true, false] {
            for (touches, is_undone) in [(&reserves as &dyn Fn(&Transaction, u32), false), (&undoes, true)] {
                let old = reader();
                let mut writer = database.begin().unwrap();
                let savepoint = writer.savepoint();
                for number in 0..many {
                    if is_one && is_undone {
                        _ = writer.put(&table, key(number), [1; 200]).unwrap();
                    } else {
                        touches(&writer, number);
                    }
                    if !is_one {
                        writer.put(&other, "one after the other", key(number)).unwrap();
                        writer.commit().unwrap();
                        writer = database.begin().unwrap();
                    }
                }
                if is_one {
                    if is_undone {
                        writer.rollback_to(savepoint).unwrap();
                    }
                    writer.put(&other, "all at once", "1").unwrap();
                }
                writer.commit().unwrap();
                commit(old, &other).unwrap();
            }
        }
        // What has been changed does, though it was reserved and changed in vain as well.
        for is_early in [false, true] {
            let (old, last) = (reader(), many - 1);
            for round in 0..many.min(100) {
                let writer = database.begin().unwrap();
                undoes(&writer, last);
                if is_early == (round == 0) {
                    _ = writer.put(&table, key(last), [2; 200]).unwrap();
                }
                reserves(&writer, last);
                writer.put(&other, "one after the other", key(round)).unwrap();
                writer.commit().unwrap();
            }
            if many > 1 || is_early {
                assert_conflict(commit(old, &other), &table, &key(last));
            }
        }
        // And a change of what was reserved since it began is refused.
        let old = database.begin().unwrap();
        let writer = database.begin().unwrap();
        reserves(&writer, 0);
        writer.put(&other, "one after the other", "1").unwrap();
        assert!(matches!(old.put(&table, key(0), "3"), Err(Error::Conflict { .. })));
        writer.commit().unwrap();
    }
}

#[test]
fn a_range_that_ends_before_it_begins_reads_nothing() {
    let (database, table, other) = database(22);
    (0..10).for_each(|number| _ = table.put(key(number), "0").unwrap());
    type Reads = fn(&Transaction, &Table, (Bound<[u8; 4]>, Bound<[u8; 4]>));
    let all: [Reads; 5] = [
        |transaction, table, range| assert_eq!(transaction.range(table, range).unwrap().count(), 0),
        |transaction, table, range| assert_eq!(transaction.range(table, range).unwrap().rev().count(), 0),
        |transaction, table, range| assert_eq!(transaction.count(table, range).unwrap(), 0),
        |transaction, table, range| assert_eq!(transaction.remove_range(table, range).unwrap(), 0),
        |transaction, table, range| {
            let mut cursor = transaction.cursor(table, range).unwrap();
            cursor.seek(key(5)).unwrap();
            assert!(cursor.next().unwrap().is_none() && cursor.previous().unwrap().is_none());
        },
    ];
    let ranges = [
        (Bound::Included(key(7)), Bound::Excluded(key(3))),
        (Bound::Excluded(key(5)), Bound::Included(key(5))),
        (Bound::Included(key(5)), Bound::Excluded(key(5))),
    ];
    for reads in all {
        for range in ranges {
            let transaction = database.begin().unwrap();
            reads(&transaction, &table, range);
            table.put(key(5), "1").unwrap();
            commit(transaction, &other).unwrap();
        }
    }
    // One that has only its first key reads that.
    let transaction = database.begin().unwrap();
    assert_eq!(transaction.range(&table, key(5)..=key(5)).unwrap().count(), 1);
    table.put(key(5), "2").unwrap();
    assert_conflict(commit(transaction, &other), &table, &key(5));
}

#[test]
fn untracked_reads_of_a_table_that_is_cleared_meanwhile_are_not_refused() {
    let (database, table, other) = database(23);
    _ = table.put(key(1), "1").unwrap();
    for is_tracked in [false, true] {
        let transaction = database.begin().unwrap();
        _ = transaction.get_untracked(&other, key(1)).unwrap();
        database.clear_table("table").unwrap();
        // From now on it has to look for the tree that it sees.
        assert_eq!(transaction.get_untracked(&table, key(1)).unwrap().is_some(), !is_tracked);
        assert_eq!(transaction.range_untracked(&table, ..).unwrap().count(), usize::from(!is_tracked));
        if is_tracked {
            assert_eq!(transaction.count(&table, ..).unwrap(), 0);
        }
        let committed = commit(transaction, &other);
        if is_tracked {
            assert!(matches!(committed, Err(Error::Conflict { .. })), "{committed:?}");
        } else {
            committed.unwrap();
        }
    }
}

/// By its handle it is found among all tables, of which others may be created meanwhile.
#[test]
fn a_load_of_a_table_that_was_renamed_reads_nothing_of_other_tables() {
    let (database, table, other) = database(23);
    database.rename_table(table.name(), "renamed").unwrap();
    let transaction = database.begin().unwrap();
    assert_eq!(transaction.bulk_load(&table, [(key(1), "1")]).unwrap(), 1);
    drop(database.create_table("new").unwrap());
    commit(transaction, &other).unwrap();
    assert_eq!(table.count(..).unwrap(), 1);
}
