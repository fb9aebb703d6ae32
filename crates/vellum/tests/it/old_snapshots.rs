//! Old snapshots: what the database tells of them, and what becomes of those that go beyond the limit.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};
use vellum::{Database, Durability, Error, ErrorKind, Options, SnapshotLimit, Table};
use vellum_vm::SimulatedDisk;

fn database(limit: SnapshotLimit) -> (Database, Table) {
    let options = Options::default()
        .pool_bytes(4 << 20)
        .capacity_bytes(1 << 30)
        .log_segment_bytes(1 << 20)
        .log_buffer_bytes(4 << 20)
        .background_eviction(false)
        .huge_pages(false)
        .durability(Durability::Deferred)
        .snapshot_limit(limit);
    let disk = SimulatedDisk::new(1);
    let database = Database::create_in(Arc::new(disk), "data", &options).unwrap();
    let table = database.create_table("table").unwrap();
    (database, table)
}

fn assert_too_old<T: std::fmt::Debug>(result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::SnapshotTooOld)), "{result:?}");
}

#[test]
fn the_oldest_is_named_with_what_it_costs() {
    let (database, table) = database(SnapshotLimit::default());
    (0..10u8).for_each(|key| _ = table.put([key], [key; 100]).unwrap());
    assert_eq!(database.history().oldest, None);
    let line = line!() + 1;
    let oldest = database.begin().unwrap();
    let writer = database.begin().unwrap();
    for key in 0..10u8 {
        table.put([key], [1; 50]).unwrap();
    }
    for _ in 0..5 {
        table.put([0], [2; 50]).unwrap();
    }
    assert!(writer.insert(&table, "new", "value").unwrap());
    let history = database.history();
    let named = history.oldest.unwrap();
    assert_eq!((history.open, named.transaction, named.commits), (2, oldest.id(), 15));
    assert!(named.begun_at.file().ends_with("old_snapshots.rs") && named.begun_at.line() == line);
    assert!(named.age < Duration::from_secs(60));
    // Keys have a byte, and all was counted that they have replaced.
    assert_eq!(named.bytes, 10 * 101 + 5 * 51);
    // Between the changes of the first key there was no snapshot, so few of them are kept.
    assert_eq!(history.records, 11);
    assert!((11..=13).contains(&history.versions), "{history:?}");
    assert!((1000..1200).contains(&history.version_bytes), "{history:?}");
    assert!(history.log_bytes > 0, "the writer would be undone by it");
    drop((oldest, writer));
    let history = database.history();
    assert_eq!((history.versions, history.version_bytes, history.leftovers), (0, 0, 0));
    assert_eq!((history.log_bytes, history.oldest), (0, None));
    // One that `run` begins is named by the place of that.
    let named = |_: &vellum::Transaction| Ok(database.history().oldest.unwrap().begun_at.line());
    assert_eq!(database.run(named).unwrap(), line!());
}

#[test]
fn one_that_holds_back_too_much_is_ended_and_younger_ones_are_not() {
    let (database, table) = database(SnapshotLimit::default().bytes(70_000));
    for key in 0..100u8 {
        table.put([key], [key; 500]).unwrap();
    }
    table.put("large", vec![7; 50_000]).unwrap();
    let old = database.begin().unwrap();
    assert_eq!(old.get(&table, [3]).unwrap().unwrap(), [3; 500]);
    old.put(&table, "mine", "reserved").unwrap();
    let mut cursor = old.cursor(&table, ..).unwrap();
    assert_eq!(cursor.next().unwrap().unwrap().key(), [0]);
    table.put("large", vec![8; 50_000]).unwrap();
    for key in 0..20u8 {
        table.put([key], [0; 500]).unwrap();
    }
    assert_eq!(old.get(&table, [3]).unwrap().unwrap(), [3; 500], "it is within the limit");
    let young = database.begin().unwrap();
    for key in 20..50u8 {
        table.put([key], [0; 500]).unwrap();
    }
    // What lies in a part of the table that did not change is right; the rest it does not get.
    while let Some(entry) = cursor.next().transpose() {
        match entry {
            Ok(entry) => assert_eq!(entry.inline_value().unwrap(), [entry.key()[0]; 500]),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::SnapshotTooOld);
                break;
            }
        }
    }
    assert!(cursor.next().is_err());
    drop(cursor);
    assert_too_old(old.get(&table, [3]));
    assert_too_old(old.multi_get(&table, &[[99]]));
    assert_too_old(old.put(&table, [99], "new"));
    assert_too_old(old.remove(&table, [3]));
    let history = database.history();
    assert_eq!(
        (history.open, history.oldest.unwrap().transaction),
        (2, old.id()),
        "it keeps its changes' log"
    );
    assert_eq!(history.versions, 31, "what the young one needs, and a record that the old one has changed");
    assert_eq!(young.get(&table, [3]).unwrap().unwrap(), [0; 500]);
    assert_eq!(young.get(&table, [30]).unwrap().unwrap(), [30; 500]);
    // What it has changed is reserved until it is rolled back.
    assert!(matches!(table.put("mine", "other"), Err(Error::Conflict { .. })));
    assert_too_old(old.commit());
    assert_eq!(table.get("mine").unwrap(), None);
    table.put("mine", "other").unwrap();
    let history = database.history();
    assert_eq!((history.open, history.oldest.unwrap().transaction), (1, young.id()));
    young.commit().unwrap();
    assert_eq!(database.history().records, 0);
    assert!(database.verify(&mut |_| ()).problems.is_empty());
    // `run` does not run it again.
    let mut runs = 0;
    let result = database.run(|transaction| {
        runs += 1;
        (0..200u8).for_each(|key| _ = table.put([key % 100], [key; 500]).unwrap());
        transaction.get(&table, [0])
    });
    assert_too_old(result);
    assert_eq!(runs, 1);
}

#[test]
fn one_that_is_too_old_is_ended_when_something_has_changed() {
    let age = Duration::from_millis(200);
    let (database, table) = database(SnapshotLimit::default().age(age));
    table.put("key", "1").unwrap();
    let old = database.begin().unwrap();
    thread::sleep(age * 2);
    drop(database.begin().unwrap());
    assert_eq!(old.get(&table, "key").unwrap().unwrap(), b"1", "nothing has changed, so it costs nothing");
    // One that sees the same and is younger holds back the same.
    let young = database.begin().unwrap();
    table.put("key", "2").unwrap();
    assert_eq!(old.get(&table, "key").unwrap().unwrap(), b"1");
    assert_eq!(young.get(&table, "key").unwrap().unwrap(), b"1");
    thread::sleep(age * 2);
    let other = database.begin().unwrap();
    table.put("key", "3").unwrap();
    assert_too_old(old.get(&table, "key"));
    assert_too_old(young.get(&table, "key"));
    assert_eq!(other.get(&table, "key").unwrap().unwrap(), b"2");
}

/// A transaction is ended between two records that it changes. It must not change the second, which another transaction has
/// changed, though of that nothing is known any more.
#[test]
fn one_that_is_ended_while_it_changes_something_overwrites_nothing() {
    let (database, table) = database(SnapshotLimit::default().bytes(20_000));
    (0..100u8).for_each(|key| _ = table.put([key], [1; 700]).unwrap());
    let old = database.begin().unwrap();
    let mut seen = Vec::new();
    let keys = [[0], [99]];
    let result = old.multi_modify(&table, &keys, |place, value| {
        seen.push(value[0]);
        value[0] = 3;
        if seen.len() == 1 {
            // None of these lies in the leaf that is latched now.
            let others: Vec<u8> = (30..70).chain([keys[1 - place][0]]).collect();
            thread::scope(|scope| {
                scope.spawn(|| others.iter().for_each(|key| _ = table.put([*key], [2; 700]).unwrap()));
            });
        }
    });
    assert_too_old(result);
    assert_eq!(seen, [1]);
    assert_too_old(old.commit());
    let values = keys.map(|key| table.get(key).unwrap().unwrap()[0]);
    assert!(values == [1, 2] || values == [2, 1], "{values:?}");
}

/// Writers replace all values by those of a new generation. A reader sees one generation, or hears that it is too old.
#[test]
fn readers_that_are_ended_while_they_read_see_nothing_wrong() {
    const KEYS: u8 = 40;
    let (database, table) = database(SnapshotLimit::default().bytes(30_000));
    let value = |generation: u64, key: u8| {
        let mut value = generation.to_le_bytes().to_vec();
        // Every eighth is a large one.
        value.resize(if key.is_multiple_of(8) { 3000 } else { 100 }, key);
        value
    };
    let generation = |value: &[u8]| u64::from_le_bytes(*value.first_chunk().unwrap());
    let write = |number: u64| {
        database.run(|transaction| {
            for key in 0..KEYS {
                // A removed record takes another way.
                if key % 5 == 0 {
                    transaction.remove(&table, [key])?;
                }
                transaction.put(&table, [key], value(number, key))?;
            }
            Ok(())
        })
    };
    write(0).unwrap();
    let (ends, ended, read) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for reader in 0..3u64 {
            let (database, table, ends, ended, read) = (&database, &table, &ends, &ended, &read);
            scope.spawn(move || {
                let mut round = 0;
                while !ends.load(Ordering::Relaxed) {
                    round += 1;
                    let transaction = database.begin().unwrap();
                    let result = (|| {
                        let first = generation(&transaction.get(table, [KEYS - 1])?.unwrap());
                        for _ in 0..5 {
                            match (reader + round) % 4 {
                                0 => {
                                    for key in 0..KEYS {
                                        let found = transaction.get(table, [key])?.unwrap();
                                        assert_eq!(found, value(first, key));
                                    }
                                }
                                1 => {
                                    let keys: Vec<_> = (0..KEYS).map(|key| [key]).collect();
                                    for (key, found) in (0..KEYS).zip(transaction.multi_get(table, &keys)?) {
                                        assert_eq!(found?.unwrap(), value(first, key));
                                    }
                                }
                                2 => {
                                    let key = (round % u64::from(KEYS)) as u8;
                                    let seen = transaction.modify(table, [key], |value| generation(value))?;
                                    assert_eq!(seen, Some(first));
                                }
                                _ => {
                                    let mut cursor = transaction.cursor(table, ..)?;
                                    let mut next = 0;
                                    while let Some(entry) = cursor.next()? {
                                        assert_eq!(entry.key(), [next]);
                                        assert_eq!(&*entry.value()?.unwrap(), &value(first, next)[..]);
                                        next += 1;
                                    }
                                    assert_eq!(next, KEYS);
                                }
                            }
                            thread::yield_now();
                        }
                        Ok(())
                    })();
                    match result {
                        Ok(()) => read.fetch_add(1, Ordering::Relaxed),
                        Err(Error::Conflict { .. }) => 0,
                        Err(Error::SnapshotTooOld) => ended.fetch_add(1, Ordering::Relaxed),
                        Err(error) => panic!("{error}"),
                    };
                }
            });
        }
        let mut number = 0;
        while number < 400 || number < 4000 && ended.load(Ordering::Relaxed) < 20 {
            number += 1;
            write(number).unwrap();
            if number % 10 == 0 {
                // Some get to their end.
                thread::sleep(Duration::from_millis(2));
            }
        }
        ends.store(true, Ordering::Relaxed);
    });
    println!("{ended:?} were ended, {read:?} were not");
    assert!(read.into_inner() > 0 && ended.into_inner() > 0);
    assert_eq!(database.history().records, 0);
    assert!(database.verify(&mut |_| ()).problems.is_empty());
}

#[test]
fn a_single_operation_whose_snapshot_is_ended_begins_again() {
    let (database, table) = database(SnapshotLimit::default().bytes(1000));
    table.put("large", vec![1; 5000]).unwrap();
    for attempts in [2, 3, 5, 6] {
        // As one is open, the operation is a transaction.
        let open = database.begin().unwrap();
        let mut called = 0;
        let done = table.update_with("counted", |_| {
            called += 1;
            if called < attempts {
                // Others replace more than the limit allows.
                table.put("large", vec![called as u8; 5000]).unwrap();
            }
            Some(vec![called as u8])
        });
        drop(open);
        if attempts < 6 {
            done.unwrap();
            assert_eq!(table.get("counted").unwrap().unwrap(), [attempts as u8]);
        } else {
            assert_too_old(done);
            // Once before it was known that it has to be a transaction, and then as often as is tried.
            assert_eq!(called, 5);
        }
    }
}

#[test]
fn large_values_that_none_has_seen_are_freed() {
    let (database, table) = database(SnapshotLimit::default());
    let value = |round: u8| vec![round; 50_000];
    let pages = || {
        database.checkpoint().unwrap();
        database.statistics().pages_allocated
    };
    table.put("kept", value(0)).unwrap();
    table.put("removed", value(0)).unwrap();
    let old = database.begin().unwrap();
    let mut young = None;
    let mut held = 0;
    for round in 1..150u8 {
        table.put("kept", value(round)).unwrap();
        database
            .run(|transaction| {
                transaction.put(&table, [round], value(round))?;
                let savepoint = transaction.savepoint();
                transaction.put(&table, "removed", value(round))?;
                transaction.remove(&table, [round - 1])?;
                transaction.rollback_to(savepoint)?;
                transaction.remove(&table, [round - 1]).map(drop)
            })
            .unwrap();
        if round == 60 {
            held = pages();
            young = Some(database.begin().unwrap());
        }
    }
    let more = pages().saturating_sub(held);
    assert!(more < 15 * 10, "{more} pages more");
    let young = young.unwrap();
    for (snapshot, round) in [(&old, 0), (&young, 60)] {
        assert_eq!(snapshot.get(&table, "kept").unwrap(), Some(value(round)));
        assert_eq!(snapshot.get(&table, "removed").unwrap(), Some(value(0)));
        assert_eq!(snapshot.get(&table, [60]).unwrap().is_some(), round == 60);
    }
    drop(young);
    assert_eq!(old.get(&table, "kept").unwrap(), Some(value(0)));
    drop(old);
    table.put("kept", value(150)).unwrap();
    assert_eq!(table.get("kept").unwrap(), Some(value(150)));
    crate::support::assert_clean(&database);
}
