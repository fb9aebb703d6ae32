//! Conflicts about a table as a whole: the error says which table it was, by the name that it has, and is true.

use crate::support::options;
use std::{
    sync::{Arc, Barrier},
    time::Duration,
};
use vellum::{Database, Error, IsolationLevel, Table, Transaction, TransactionOptions};
use vellum_vm::SimulatedDisk;

type Change = fn(&Transaction) -> vellum::Result<()>;

const CREATES: Change = |transaction| transaction.create_table("new").map(drop);
const CLEARS: Change = |transaction| transaction.clear_table("fruit");
const DROPS: Change = |transaction| transaction.drop_table("fruit");
const RENAMES: Change = |transaction| transaction.rename_table("fruit", "new");
const STORES: Change = |transaction| {
    let fruit = transaction.table("fruit")?;
    transaction.put(&fruit, "key", "value").map(drop)
};

fn database() -> Database {
    let disk = SimulatedDisk::new(1);
    let database = Database::create_in(Arc::new(disk), "data", &options()).unwrap();
    // It had another name before, by which its handles know it.
    let old = database.create_table("old").unwrap();
    old.put("a", "b").unwrap();
    database.rename_table("old", "fruit").unwrap();
    drop(database.create_table("other").unwrap());
    std::mem::forget(old);
    database
}

/// The message of a conflict about a table, which is not told as one about a record.
#[track_caller]
fn assert_says(error: &Error, name: &str, is_committed: bool) {
    let Error::Conflict { table, key, committed } = error else { panic!("{error:?}") };
    assert_eq!((&table[..], &key[..], *committed), ("", name.as_bytes(), is_committed), "{error}");
    let message = error.to_string();
    let begin = if is_committed {
        format!(
            "table {name:?} was created, changed, renamed or dropped by a transaction that was committed after"
        )
    } else {
        format!("table {name:?} is being created, changed, renamed or dropped by another transaction")
    };
    assert!(message.starts_with(&begin), "{message}");
}

#[test]
fn a_conflict_about_a_table_names_it() {
    for (first, second, name) in [
        (CREATES, CREATES, "new"),
        (RENAMES, CREATES, "new"),
        (CREATES, RENAMES, "new"),
        (RENAMES, RENAMES, "fruit"),
        (RENAMES, DROPS, "fruit"),
        (DROPS, RENAMES, "fruit"),
        (DROPS, DROPS, "fruit"),
        (CLEARS, DROPS, "fruit"),
        (CLEARS, STORES, "fruit"),
        (DROPS, STORES, "fruit"),
        (CLEARS, RENAMES, "fruit"),
        (RENAMES, CLEARS, "fruit"),
    ] {
        for is_committed in [false, true] {
            let database = database();
            let (one, two) = (database.begin().unwrap(), database.begin().unwrap());
            first(&one).unwrap();
            if is_committed {
                one.commit().unwrap();
            }
            assert_says(&second(&two).unwrap_err(), name, is_committed);
        }
    }
}

/// Records that were stored and committed are cleared, and dropped, with the table.
#[test]
fn so_does_one_about_all_records_of_a_table() {
    for second in [CLEARS, DROPS] {
        let database = database();
        let (one, two) = (database.begin().unwrap(), database.begin().unwrap());
        STORES(&one).unwrap();
        assert_says(&second(&two).unwrap_err(), "fruit", false);
        drop(two);
        let three = database.begin().unwrap();
        one.commit().unwrap();
        second(&three).unwrap();
    }
}

#[test]
fn so_do_single_operations_and_runs() {
    let database = database();
    let fruit = database.table("fruit").unwrap();
    let open = database.begin().unwrap();
    open.clear_table("fruit").unwrap();
    assert_says(&fruit.put("a", "c").unwrap_err(), "fruit", false);
    drop(open);
    let error = database.run(|transaction| {
        transaction.clear_table("fruit")?;
        database.drop_table("fruit").map_err(|error| match error {
            Error::TableInUse { .. } => database.rename_table("fruit", "new").unwrap_err(),
            error => error,
        })
    });
    let error = error.unwrap_err();
    assert!(matches!(error, Error::OwnConflict { .. }), "{error:?}");
    assert!(error.to_string().starts_with("table \"fruit\" is being changed by a transaction"), "{error}");
}

#[test]
fn what_a_serializable_transaction_has_read_of_the_catalog_is_a_table() {
    let serializable = || TransactionOptions::default().isolation(IsolationLevel::Serializable);
    let database = database();
    let other = database.table("other").unwrap();
    let transaction = database.begin_with(serializable()).unwrap();
    assert!(matches!(transaction.table("new"), Err(Error::NoSuchTable { .. })));
    transaction.put(&other, "key", "value").unwrap();
    drop(database.create_table("new").unwrap());
    assert_says(&transaction.commit().unwrap_err(), "new", true);
}

/// Tables are known by the names that they had when they were opened first.
#[test]
fn what_a_serializable_transaction_has_read_is_of_a_table_by_the_name_that_it_has_now() {
    let serializable = || TransactionOptions::default().isolation(IsolationLevel::Serializable);
    let database = database();
    let (fruit, other) = (database.table("fruit").unwrap(), database.table("other").unwrap());
    let read = || {
        let transaction = database.begin_with(serializable()).unwrap();
        assert!(transaction.get(&fruit, "a").unwrap().is_some());
        transaction.put(&other, "key", "value").unwrap();
        transaction
    };
    let assert_names = |transaction: Transaction, name: &str| match transaction.commit().unwrap_err() {
        Error::Conflict { table, key, committed: true } => {
            assert_eq!((&table[..], &key[..]), (name, &b"a"[..]))
        }
        error => panic!("{error:?}"),
    };
    let transaction = read();
    fruit.put("a", "c").unwrap();
    assert_names(transaction, "fruit");
    let transaction = read();
    fruit.put("a", "d").unwrap();
    database.rename_table("fruit", "vegetables").unwrap();
    drop(database.create_table("fruit").unwrap());
    assert_names(transaction, "vegetables");
    let transaction = read();
    database.clear_table("vegetables").unwrap();
    assert_says(&transaction.commit().unwrap_err(), "vegetables", true);
}

#[test]
fn what_keeps_a_load_from_a_table_is_of_the_table_by_the_name_that_it_has_now() {
    let database = database();
    let fruit = database.table("fruit").unwrap();
    database.clear_table("fruit").unwrap();
    database.rename_table("fruit", "vegetables").unwrap();
    let transaction = database.begin().unwrap();
    fruit.put("key", "value").unwrap();
    let error = transaction.bulk_load(&fruit, [("a", "b")]).unwrap_err();
    assert!(matches!(&error, Error::Conflict { table, .. } if table == "vegetables"), "{error:?}");
}

#[test]
fn a_table_may_have_any_name() {
    let disk = SimulatedDisk::new(2);
    let database = Database::create_in(Arc::new(disk), "data", &options()).unwrap();
    let table = database.create_table("(catalog)").unwrap();
    let open = database.begin().unwrap();
    open.put(&table, "key", "value").unwrap();
    let error = table.put("key", "another").unwrap_err().to_string();
    assert!(error.starts_with("the record with the key \"key\" of table \"(catalog)\" is"), "{error}");
}

/// Handles that know a table by a name that it had once.
#[test]
fn what_conflicts_with_the_transaction_around_it_says_so_by_the_name_that_the_table_has_now() {
    for takes_name in [false, true] {
        let database = Database::create_in(Arc::new(SimulatedDisk::new(4)), "data", &options()).unwrap();
        let table = database.create_table("old").unwrap();
        table.put("key", "0").unwrap();
        database.rename_table("old", "new").unwrap();
        let other = takes_name.then(|| database.create_table("old").unwrap());
        let mut attempts = 0;
        let error = database.run(|transaction| {
            attempts += 1;
            assert!(attempts < 100, "it is tried again and again");
            transaction.put(&table, "key", "1")?;
            table.put("key", "2").map(drop)
        });
        let error = error.unwrap_err();
        assert!(matches!(&error, Error::OwnConflict { table, .. } if table == "new"), "{error:?}");
        // An open transaction of another thread, which is waited for by that name.
        let open = database.begin().unwrap();
        open.put(&table, "key", "3").unwrap();
        let conflict = database.begin().unwrap().put(&table, "key", "4").unwrap_err();
        assert!(matches!(&conflict, Error::Conflict { table, .. } if table == "new"), "{conflict:?}");
        let waited = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| database.wait_for_other(&conflict, Duration::MAX));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiting.is_finished(), "it waits");
            open.commit().unwrap();
            waiting.join()
        });
        waited.unwrap();
        drop(other);
    }
}

#[test]
fn threads_that_open_or_create_a_table_at_once_all_have_it() {
    for round in 0..40 {
        let database = Database::create_in(Arc::new(SimulatedDisk::new(round)), "data", &options()).unwrap();
        let barrier = Barrier::new(4);
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let (database, barrier) = (&database, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    database.table_or_create("table").unwrap().put([thread], [thread]).unwrap();
                    database.heap_or_create("heap").unwrap();
                });
            }
        });
        assert_eq!(database.table("table").unwrap().range(..).unwrap().count(), 4);
    }
}

/// One that was not told of a table, and stores what the table's creator has not seen, comes before it and after it.
#[test]
fn a_table_that_a_serializable_transaction_does_not_see_yet_counts_as_read() {
    type Asks = fn(&Transaction, &Table) -> Result<(), Error>;
    let asks: [Asks; 8] = [
        |transaction, table| transaction.get(table, "key").map(drop),
        |transaction, table| transaction.multi_get(table, &["key"]).map(drop),
        |transaction, table| transaction.lookups(table, ["key"]).map(drop),
        |transaction, table| transaction.count(table, ..).map(drop),
        |transaction, table| transaction.put(table, "key", "").map(drop),
        |transaction, table| transaction.put_from(table, "key", 1, &mut &b"1"[..]).map(drop),
        |transaction, table| transaction.bulk_load(table, [("key", "")]).map(drop),
        |transaction, table| transaction.get_untracked(table, "key").map(drop),
    ];
    // The second time its snapshot is covered, because there is no room for versions.
    for (room, number) in
        [64 << 20, 3000].into_iter().flat_map(|room| (0..asks.len()).map(move |n| (room, n)))
    {
        let options = options().isolation(IsolationLevel::Serializable).version_memory_bytes(room);
        let database = Database::create_in(Arc::new(SimulatedDisk::new(9)), "data", &options).unwrap();
        let [other, busy] = ["other", "busy"].map(|name| database.create_table(name).unwrap());
        let [old, stranger] = [(); 2].map(|()| database.begin().unwrap());
        (0..200_u32).for_each(|key| _ = busy.put((key % 20).to_be_bytes(), [1; 100]).unwrap());
        let creator = database.begin().unwrap();
        assert!(creator.get(&other, "key").unwrap().is_none());
        let table = creator.create_table("new").unwrap();
        creator.bulk_load(&table, [("key", "value")]).unwrap();
        creator.commit().unwrap();
        database.rename_table("new", "renamed").unwrap();
        for _ in 0..2 {
            let asked = asks[number](&old, &table);
            assert!(matches!(&asked, Err(Error::NoSuchTable { .. })), "{asked:?}");
        }
        old.put(&other, "key", "").unwrap();
        if number == asks.len() - 1 {
            old.commit().unwrap();
        } else {
            assert_says(&old.commit().unwrap_err(), "renamed", true);
        }
        stranger.put(&other, "another key", "").unwrap();
        stranger.commit().unwrap();
    }
}
