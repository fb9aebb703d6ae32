//! The roots of trees that were replaced: when they are used again, and when they are free.

use crate::support::{assert_clean, database, options, pages};
use std::{collections::VecDeque, sync::Arc};
use vellum::{ChangesFrom, Database, Event, IsolationLevel, TableName, TransactionOptions};

const NUMBERS: TableName<u32, str> = TableName::new("numbers");

/// Roots of former trees are kept as long as a table has handles. When the last one goes, or the transaction that uses the
/// table ends after it, they are free, although no transaction has looked at them meanwhile.
#[test]
fn the_roots_of_former_trees_are_free_when_the_last_handle_goes() {
    for ends_later in [false, true] {
        let (_disk, database) = database(12, &options());
        let other = database.create_table("other").unwrap();
        other.put("a", "b").unwrap();
        drop(database.create_table(NUMBERS).unwrap());
        let before = pages(&database);
        let mut numbers = database.table(NUMBERS).unwrap();
        let mut snapshots = Vec::new();
        for round in 1..=20 {
            snapshots.push(database.begin().unwrap());
            // A second handle does not go last.
            let second = database.table(NUMBERS).unwrap();
            let transaction = database.begin().unwrap();
            transaction.clear_table("numbers").unwrap();
            transaction.bulk_load(&numbers, [(1, "loaded")]).unwrap();
            transaction.commit().unwrap();
            drop(std::mem::replace(&mut numbers, second));
            database.run(|transaction| transaction.put(&other, "a", "c")).unwrap();
            assert!(
                pages(&database) > before + round,
                "they are not used again as long as snapshots see them"
            );
        }
        drop(snapshots);
        let transaction = database.begin().unwrap();
        transaction.put(&numbers, 2, "stored").unwrap();
        if ends_later {
            drop(numbers);
            database.run(|transaction| transaction.put(&other, "a", "d")).unwrap();
            transaction.commit().unwrap();
        } else {
            transaction.commit().unwrap();
            drop(numbers);
        }
        database.run(|transaction| transaction.put(&other, "a", "e")).unwrap();
        assert_eq!(pages(&database), before, "{ends_later}");
        assert_clean(&database);
    }
}

/// A transaction may be the last that uses a table: one that has read it, if it is serializable, or has taken a change of
/// it as a whole back.
#[test]
fn the_roots_of_former_trees_are_free_when_the_last_transaction_that_uses_the_table_ends() {
    for drops in [false, true] {
        let (_disk, database) = database(12, &options());
        let other = database.create_table("other").unwrap();
        let go_on = || database.run(|transaction| transaction.put(&other, "a", "b").map(drop)).unwrap();
        go_on();
        drop(database.create_table("table").unwrap());
        let before = pages(&database);
        let table = database.table("table").unwrap();
        database.clear_table("table").unwrap();
        go_on();
        let serializable = TransactionOptions::default().isolation(IsolationLevel::Serializable);
        let transaction = database.begin_with(serializable).unwrap();
        let savepoint = transaction.savepoint();
        if drops {
            transaction.drop_table("table").unwrap();
        } else {
            assert!(transaction.first(&table).unwrap().is_none());
        }
        drop(table);
        go_on();
        assert_eq!(pages(&database), before + 1, "the transaction uses the table");
        transaction.rollback_to(savepoint).unwrap();
        transaction.commit().unwrap();
        go_on();
        assert_eq!(pages(&database), before, "{drops}");
        assert_clean(&database);
    }
}

/// They use the roots of former trees again, which changes nothing for snapshots, a feed and recovery.
#[test]
fn tables_that_are_loaded_again_and_again_need_no_more_roots() {
    let options = options().log_whole_values(true);
    let (disk, database) = database(9, &options);
    let numbers = database.create_table(NUMBERS).unwrap();
    let mut feed = database.changes(ChangesFrom::Now).unwrap();
    let mut expected = Vec::new();
    let mut after = |rounds: u32| {
        // Each with the contents that it sees.
        let mut snapshots = VecDeque::new();
        for round in 0..rounds {
            snapshots.push_back((database.begin().unwrap(), expected.last().cloned().unwrap_or_default()));
            let transaction = database.begin().unwrap();
            if round % 3 < 2 {
                // What nobody is to see: it goes with the tree.
                transaction.put(&numbers, 7, "never").unwrap();
            }
            transaction.clear_table("numbers").unwrap();
            let loaded = if round % 4 < 3 { round % 7 * 50 } else { 0 };
            let value = format!("loaded in round {round}");
            transaction.bulk_load(&numbers, (0..loaded).map(|key| (key, &*value))).unwrap();
            if round % 5 == 4 {
                transaction.rollback().unwrap();
            } else {
                transaction.commit().unwrap();
                expected.push((0..loaded).map(|key| (key, value.clone())).collect::<Vec<_>>());
            }
            if snapshots.len() > round as usize % 4 {
                let (snapshot, seen) = snapshots.pop_front().unwrap();
                let entries = snapshot.range(&numbers, ..).unwrap();
                assert_eq!(entries.collect::<Result<Vec<_>, _>>().unwrap(), seen, "round {round}");
            }
        }
        drop(snapshots);
        let shape = numbers.shape().unwrap();
        pages(&database) - shape.leaves - shape.inner_nodes
    };
    let (first, later) = (after(12), after(120));
    assert!(later <= first + 6, "{first} pages after 12 rounds, {later} after 132");
    assert_clean(&database);
    let mut told = Vec::new();
    while let Some(commit) = feed.next().unwrap() {
        let mut contents = Vec::new();
        for change in commit.changes {
            match change.event {
                Event::Dropped => contents.clear(),
                Event::Loaded { records } => {
                    let whole = records.for_each(|key, value| {
                        let value = str::from_utf8(value.inline().unwrap()).unwrap();
                        contents.push((u32::from_be_bytes(key.try_into().unwrap()), value.to_owned()));
                        Ok(true)
                    });
                    assert!(whole.unwrap());
                }
                Event::Inserted { .. } | Event::Replaced { .. } | Event::Created { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        told.push(contents);
    }
    assert!(told == expected);
    drop((feed, numbers));
    let last = expected.pop().unwrap();
    let disk = disk.crash();
    drop(database);
    let database = Database::open_in(Arc::new(disk), "data", &options).unwrap();
    let entries = database.table(NUMBERS).unwrap();
    assert_eq!(entries.range(..).unwrap().collect::<Result<Vec<_>, _>>().unwrap(), last);
    assert_clean(&database);
}
