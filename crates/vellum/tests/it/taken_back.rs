//! Tables that a transaction makes and clears, and takes back by savepoints while it goes on: what that costs.

use crate::support::{assert_clean, options};
use std::sync::Arc;
use vellum::{ChangesFrom, Database, Error, ErrorKind, Event, Table, TableName, TableOptions, Transaction};
use vellum_vm::SimulatedDisk;

const MADE: TableName<u32, str> = TableName::new("made");

fn database(seed: u64) -> (SimulatedDisk, Database) {
    let disk = SimulatedDisk::new(seed);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
    database.create_table("cleared").unwrap().put("a", "b").unwrap();
    (disk, database)
}

/// How many pages are allocated, although no other transaction ends. What was freed is when that is durable.
fn pages(database: &Database) -> u64 {
    database.checkpoint().unwrap();
    database.statistics().pages_allocated
}

fn fill(transaction: &Transaction, table: &Table<u32, str>, count: u32) {
    for number in 0..count {
        transaction.put(table, number, "x".repeat(if number % 50 == 7 { 9000 } else { 100 })).unwrap();
    }
}

/// What a transaction does in each round, and takes back.
type Round = fn(&Transaction);

const ROUNDS: [Round; 5] = [
    |transaction| transaction.clear_table("cleared").unwrap(),
    |transaction| fill(transaction, &transaction.create_table(MADE).unwrap(), 3),
    |transaction| {
        let made = transaction.create_table(MADE).unwrap();
        fill(transaction, &made, 2);
        transaction.clear_table("made").unwrap();
        fill(transaction, &made, 1);
        transaction.clear_table("cleared").unwrap();
        transaction.rename_table("made", "renamed").unwrap();
    },
    |transaction| {
        for number in 0..3_u32 {
            let loaded = transaction.create_table(TableName::<u32, str>::new(&number.to_string())).unwrap();
            transaction.bulk_load(&loaded, (0..3).map(|key| (key, "value"))).unwrap();
        }
        transaction.drop_table("2").unwrap();
    },
    |transaction| {
        let plain = TableOptions::default().versions(false);
        drop(transaction.create_table_with(MADE, plain).unwrap());
        transaction.clear_table("cleared").unwrap();
        transaction.clear_table("cleared").unwrap();
    },
];

#[test]
fn what_is_made_and_taken_back_again_and_again_takes_no_space() {
    for (seed, round) in (1..).zip(ROUNDS) {
        for commits in [true, false] {
            let (disk, database) = database(seed);
            let mut changes = database.changes(ChangesFrom::Now).unwrap();
            let before = pages(&database);
            let transaction = database.begin().unwrap();
            let mut held = 0;
            for number in 0..600 {
                let savepoint = transaction.savepoint();
                round(&transaction);
                transaction.rollback_to(savepoint).unwrap();
                // Others make tables meanwhile.
                if number % 200 == 5 {
                    drop(database.create_table(format!("other {number}")).unwrap());
                    database.drop_table(&format!("other {number}")).unwrap();
                }
                if number == 10 {
                    held = pages(&database);
                }
            }
            let more = pages(&database).saturating_sub(held);
            // What others have made and dropped, this transaction's snapshot might see.
            assert!(more <= 2, "{more} pages after {seed}");
            let kept = transaction.create_table(MADE).unwrap();
            assert!(transaction.first(&kept).unwrap().is_none());
            fill(&transaction, &kept, 1);
            let killed = disk.kill();
            if commits {
                transaction.commit().unwrap();
                assert_eq!(
                    (kept.count(..).unwrap(), kept.get(0).unwrap().map(|value| value.len())),
                    (1, Some(100))
                );
                drop(kept);
                let mut told = Vec::new();
                while let Some(commit) = changes.next().unwrap() {
                    told.extend(commit.changes.into_iter().filter(|change| &*change.table == "made"));
                }
                assert!(
                    matches!(&told[..], [created, put] if matches!(created.event, Event::Created { .. })
                        && matches!(put.event, Event::Inserted { .. })),
                    "{told:?}"
                );
                database.drop_table("made").unwrap();
            } else {
                drop((transaction, kept));
            }
            assert_eq!(database.tables().unwrap().len(), 1);
            assert!(pages(&database) <= before + 1, "after {seed}: {} and not {before}", pages(&database));
            assert_clean(&database);
            drop((changes, database));
            let database = Database::open_in(Arc::new(killed), "data", &options()).unwrap();
            assert!(pages(&database) <= before + 1, "after {seed}: {} and not {before}", pages(&database));
            assert_eq!(database.tables().unwrap().len(), 1);
            assert_clean(&database);
        }
    }
}

#[test]
fn what_was_stored_in_a_table_that_was_taken_back_is_freed_at_once() {
    let (_disk, database) = database(11);
    let before = pages(&database);
    let transaction = database.begin().unwrap();
    let savepoint = transaction.savepoint();
    let made = transaction.create_table(MADE).unwrap();
    let loaded = transaction.create_table(TableName::<u32, str>::new("loaded")).unwrap();
    fill(&transaction, &made, 3000);
    let entries = (0..3000).map(|number| (number, "x".repeat(200)));
    transaction.bulk_load(&loaded, entries).unwrap();
    assert!(pages(&database) > before + 300);
    transaction.rollback_to(savepoint).unwrap();
    assert_eq!(loaded.count(..).unwrap(), 0);
    drop(loaded);
    // Its handles are of no use, and show nothing.
    assert!(pages(&database) <= before + 4, "{} and not {before}", pages(&database));
    assert_eq!((made.count(..).unwrap(), transaction.count(&made, ..).unwrap_or_default()), (0, 0));
    assert_eq!(made.put(1, "one").unwrap_err().kind(), ErrorKind::NotFound);
    // The roots are not those of other tables as long as there are handles.
    let again = transaction.create_table(MADE).unwrap();
    fill(&transaction, &again, 5);
    assert_eq!(made.count(..).unwrap(), 0);
    transaction.commit().unwrap();
    assert_eq!((made.count(..).unwrap(), again.count(..).unwrap()), (0, 5));
    drop((made, again));
    database.drop_table("made").unwrap();
    assert!(pages(&database) <= before + 1);
    assert_clean(&database);
}

/// A covered snapshot is shown leaves as they were then, also a leaf that is the root of another table now.
#[test]
fn an_old_transaction_sees_what_it_makes_after_what_it_took_back() {
    for is_cleared in [false, true] {
        let disk = SimulatedDisk::new(12);
        let small = options().version_memory_bytes(20_000);
        let database = Database::create_in(Arc::new(disk), "data", &small).unwrap();
        let table = database.create_table("table").unwrap();
        let numbers = database.create_table(TableName::<u32, str>::new("numbers")).unwrap();
        let transaction = database.begin().unwrap();
        let make = || {
            if is_cleared {
                transaction.clear_table("numbers").unwrap();
                numbers.clone()
            } else {
                transaction.create_table(MADE).unwrap()
            }
        };
        let savepoint = transaction.savepoint();
        let made = make();
        fill(&transaction, &made, 3);
        let mut round = 0_u32;
        while database.history().kept_leaves == 0 {
            for number in 0..100u32 {
                let put = |other: &Transaction| other.put(&table, number.to_be_bytes(), round.to_be_bytes());
                database.run(|other| put(other).map(drop)).unwrap();
            }
            round += 1;
        }
        drop(made);
        transaction.rollback_to(savepoint).unwrap();
        for _ in 0..3 {
            let made = make();
            assert_eq!(transaction.get(&made, 1).unwrap(), None);
            assert_eq!(transaction.count(&made, ..).unwrap(), 0);
            transaction.put(&made, 5, "five").unwrap();
            let keys: Vec<_> = transaction.range(&made, ..).unwrap().map(|entry| entry.unwrap().0).collect();
            assert_eq!(keys, [5]);
            drop(made);
            transaction.rollback_to(savepoint).unwrap();
        }
        drop(make());
        transaction.commit().unwrap();
        assert_clean(&database);
    }
}

#[test]
fn a_table_that_was_taken_back_refuses_changes_and_the_next_table_is_empty() {
    let database = Database::create_in(Arc::new(SimulatedDisk::new(1)), "data", &options()).unwrap();
    let transaction = database.begin().unwrap();
    let savepoint = transaction.savepoint();
    let old = transaction.create_table("t").unwrap();
    let _ = transaction.put(&old, "before", "value").unwrap();
    transaction.rollback_to(savepoint).unwrap();
    let refused = transaction.put(&old, "after", "value");
    let others = old.put("other", "value");
    drop(old);
    // It may have the pages of the old one.
    let new = transaction.create_table("t").unwrap();
    assert_eq!(transaction.count(&new, ..).unwrap(), 0);
    assert!(matches!(refused, Err(Error::NoSuchTable { .. })), "{refused:?}");
    assert!(matches!(others, Err(Error::NoSuchTable { .. })), "{others:?}");
    let _ = transaction.put(&new, "key", "value").unwrap();
    transaction.commit().unwrap();
    assert_eq!(new.count(..).unwrap(), 1);
    assert_clean(&database);
}
