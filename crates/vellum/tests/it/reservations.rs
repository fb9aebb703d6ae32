//! What transactions take back, reserve, and read of values that the pool has no room for.

use crate::support::options;
use std::sync::Arc;
use vellum::{Database, Entries, Error, Options, Table};
use vellum_vm::SimulatedDisk;

fn database(seed: u64, options: &Options) -> (Database, Table) {
    let database = Database::create_in(Arc::new(SimulatedDisk::new(seed)), "data", options).unwrap();
    let table = database.create_table("table").unwrap();
    (database, table)
}

/// The keys, one after the other.
fn keys(entries: Entries<'_>) -> String {
    entries.map(|entry| String::from_utf8(entry.unwrap().0).unwrap()).collect()
}

#[test]
fn savepoints_that_are_gone_and_those_of_others_are_refused() {
    let (database, table) = database(10, &options());
    let transaction = database.begin().unwrap();
    let own = || keys(transaction.range(&table, ..).unwrap());
    let first = transaction.savepoint();
    transaction.put(&table, "a", "1").unwrap();
    let second = transaction.savepoint();
    transaction.put(&table, "b", "1").unwrap();
    let third = transaction.savepoint();
    transaction.put(&table, "c", "1").unwrap();
    transaction.rollback_to(second).unwrap();
    transaction.put(&table, "d", "1").unwrap();
    transaction.put(&table, "e", "1").unwrap();
    let error = transaction.rollback_to(third).unwrap_err();
    assert!(matches!(error, Error::NoSuchSavepoint), "{error}");
    assert_eq!(own(), "ade");
    let other = database.begin().unwrap();
    assert!(matches!(other.rollback_to(first), Err(Error::NoSuchSavepoint)));
    // It may be gone back to as often as one likes, and the transaction goes on.
    transaction.rollback_to(second).unwrap();
    transaction.rollback_to(second).unwrap();
    assert_eq!(own(), "a");
    let fourth = transaction.savepoint();
    transaction.put(&table, "f", "1").unwrap();
    transaction.rollback_to(fourth).unwrap();
    assert_eq!(own(), "a");
    transaction.rollback_to(first).unwrap();
    assert!(matches!(transaction.rollback_to(second), Err(Error::NoSuchSavepoint)));
    assert_eq!(own(), "");
    transaction.put(&table, "g", "1").unwrap();
    transaction.commit().unwrap();
    assert_eq!(keys(table.range(..).unwrap()), "g");
}

#[test]
fn a_transaction_that_can_only_be_rolled_back_does_not_go_back_to_a_savepoint() {
    let (database, table) = database(16, &options());
    let (other, transaction) = (database.begin().unwrap(), database.begin().unwrap());
    other.put(&table, "taken", "1").unwrap();
    let savepoint = transaction.savepoint();
    transaction.put(&table, "own", "1").unwrap();
    assert!(matches!(transaction.put(&table, "taken", "2"), Err(Error::Conflict { .. })));
    let error = transaction.rollback_to(savepoint).unwrap_err();
    assert!(matches!(error, Error::Ended), "{error}");
    transaction.rollback().unwrap();
    assert_eq!(keys(table.range(..).unwrap()), "");
}

#[test]
fn what_is_got_for_update_is_reserved_whatever_it_is() {
    let (database, table) = database(11, &options());
    let large = vec![3; 300_000];
    table.put("small", "1").unwrap();
    table.put("large", &large).unwrap();
    for ends_in in ["commit", "rollback"] {
        let (first, second, alone) =
            (database.begin().unwrap(), database.begin().unwrap(), database.begin().unwrap());
        drop(alone);
        assert_eq!(first.get_for_update(&table, "small").unwrap().unwrap(), b"1");
        assert_eq!(first.get_for_update(&table, "none").unwrap(), None);
        let logged = || database.log_state().unwrap().appended_bytes;
        let before = logged();
        assert_eq!(first.get_for_update(&table, "large").unwrap().unwrap(), large);
        assert!(logged() - before < 1000, "a large value is not stored again");
        for key in ["small", "none", "large"] {
            let other = database.begin().unwrap();
            assert!(
                matches!(other.put(&table, key, "2"), Err(Error::Conflict { committed: false, .. })),
                "{key}"
            );
            assert!(matches!(table.put(key, "2"), Err(Error::Conflict { .. })), "{key}");
        }
        assert_eq!(second.get(&table, "none").unwrap(), None);
        if ends_in == "commit" {
            first.commit().unwrap()
        } else {
            first.rollback().unwrap()
        }
        assert_eq!(keys(table.range(..).unwrap()), "largesmall");
        // An older snapshot must not change what a transaction has reserved that is committed.
        assert_eq!(second.put(&table, "none", "2").is_err(), ends_in == "commit");
        drop(second);
        table.put("none", "2").unwrap();
        table.remove("none").unwrap();
    }
    // Also by a transaction that is alone, and before others begin.
    let alone = database.begin().unwrap();
    alone.get_for_update(&table, "none").unwrap();
    alone.get_for_update(&table, "small").unwrap();
    let other = database.begin().unwrap();
    assert!(matches!(other.insert(&table, "none", "2"), Err(Error::Conflict { .. })));
    alone.put(&table, "none", "3").unwrap();
    alone.commit().unwrap();
    assert_eq!(table.get("none").unwrap().unwrap(), b"3");
}

#[test]
fn what_is_changed_to_what_it_was_is_reserved() {
    for is_logged in [true, false] {
        let (database, table) = database(13, &options().log(is_logged));
        table.put("key", "1").unwrap();
        // The leaf is older than all that is open.
        let snapshots = [(); 3].map(|()| database.begin().unwrap());
        let [first, second, third] = &snapshots;
        first.modify(&table, "key", |_| ()).unwrap();
        assert!(matches!(second.put(&table, "key", "2"), Err(Error::Conflict { committed: false, .. })));
        assert!(matches!(third.get_for_update(&table, "key"), Err(Error::Conflict { committed: false, .. })));
        let later = database.begin().unwrap();
        assert!(matches!(later.put(&table, "key", "2"), Err(Error::Conflict { committed: false, .. })));
    }
}

#[test]
fn values_that_the_pool_has_no_room_for_are_read_and_changed_all_the_same() {
    let (database, table) = database(12, &options().pool_bytes(1 << 18));
    let large = |byte: u8| vec![byte; 1 << 20];
    table.put("key", large(1)).unwrap();
    let old = database.begin().unwrap();
    let transaction = database.begin().unwrap();
    assert_eq!(transaction.get(&table, "key").unwrap().unwrap(), large(1));
    assert_eq!(transaction.get_for_update(&table, "key").unwrap().unwrap(), large(1));
    let mut target = Vec::new();
    assert!(transaction.get_into(&table, "key", &mut target).unwrap());
    assert_eq!(target, large(1));
    assert_eq!(transaction.range(&table, ..).unwrap().next().unwrap().unwrap().1, large(1));
    assert_eq!(transaction.multi_get(&table, &["key"]).unwrap().pop().unwrap().unwrap().unwrap(), large(1));
    transaction.put_from(&table, "key", 1 << 20, &mut std::io::repeat(2)).unwrap();
    assert_eq!(transaction.get(&table, "key").unwrap().unwrap(), large(2));
    transaction
        .update_with(&table, "key", |value| {
            value.map(|mut value| {
                value.push(2);
                value
            })
        })
        .unwrap();
    assert!(transaction.compare_and_swap(&table, "key", vec![2; (1 << 20) + 1], large(3)).unwrap());
    transaction.modify(&table, "key", |value| value.fill(4)).unwrap().unwrap();
    let mut part = vec![0; 10];
    transaction.reader(&table, "key").unwrap().unwrap().read_at(1 << 19, &mut part).unwrap();
    assert_eq!(
        (part, transaction.get_part(&table, "key", 5..7).unwrap().unwrap()),
        (vec![4; 10], vec![4; 2])
    );
    assert_eq!(old.get(&table, "key").unwrap().unwrap(), large(1));
    assert_eq!(table.get("key").unwrap().unwrap(), large(1));
    transaction.commit().unwrap();
    assert_eq!(old.get(&table, "key").unwrap().unwrap(), large(1));
    drop(old);
    table.modify("key", |value| value.fill(5)).unwrap().unwrap();
    table.update_with("key", |value| value.map(|_| large(6))).unwrap();
    assert!(table.compare_and_swap("key", large(6), large(7)).unwrap());
    let popped = database.run(|transaction| transaction.pop_last(&table)).unwrap().unwrap();
    assert_eq!(popped.1, large(7));
    table.put("key", large(8)).unwrap();
    assert_eq!(table.pop_first().unwrap().unwrap().1, large(8));
    assert_eq!(table.count(..).unwrap(), 0);
}

#[test]
fn a_record_beside_ones_own_changes_is_not_changed_if_another_has_reserved_it() {
    for is_logged in [true, false] {
        let (database, table) = database(14, &options().log(is_logged));
        let first = database.begin().unwrap();
        // Nobody else has changed the leaf.
        first.put(&table, "a", "1").unwrap();
        let second = database.begin().unwrap();
        second.get_for_update(&table, "b").unwrap();
        let refused = first.put(&table, "b", "1");
        assert!(matches!(refused, Err(Error::Conflict { committed: false, .. })), "{refused:?}");
        let third = database.begin().unwrap();
        third.put(&table, "c", "1").unwrap();
        second.put(&table, "d", "2").unwrap();
        second.commit().unwrap();
        // What was changed beside one's own changes and committed.
        let refused = third.put(&table, "d", "1");
        assert!(matches!(refused, Err(Error::Conflict { committed: true, .. })), "{refused:?}");
    }
}
