//! Tables that are cleared: who sees what by which handle, what conflicts, and when the space is free.

use crate::support::{assert_clean, assert_conflict, database, options, pages};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};
use vellum::{ChangesFrom, Database, Error, ErrorKind, Event, Table, TableName, TableOptions, Task};

const NUMBERS: TableName<u32, str> = TableName::new("numbers");

/// 500 records, the last of which is a large one.
fn fill(numbers: &Table<u32, str>) {
    let long = "x".repeat(50_000);
    numbers.put(1, "one").unwrap();
    for number in 2..500 {
        numbers.put(number, &long[..200]).unwrap();
    }
    numbers.put(500, &long).unwrap();
}

fn keys(table: &Table<u32, str>) -> Vec<u32> {
    table.range(..).unwrap().map(|entry| entry.unwrap().0).collect()
}

#[test]
fn handles_of_any_age_see_what_whoever_asks_sees() {
    let (_disk, database) = database(1, &options());
    let numbers = database.create_table(NUMBERS).unwrap();
    fill(&numbers);
    let older = database.begin().unwrap();
    let transaction = database.begin().unwrap();
    let before = transaction.savepoint();
    transaction.clear_table("numbers").unwrap();
    assert!(transaction.first(&numbers).unwrap().is_none());
    transaction.put(&numbers, 7, "seven").unwrap();
    // Others wait for how it ends, and see what was there.
    assert_conflict(numbers.put(2, "two"), false);
    assert_conflict(database.clear_table("numbers"), false);
    let during = database.begin().unwrap();
    assert_eq!((numbers.count(..).unwrap(), during.count(&numbers, ..).unwrap()), (500, 500));
    // Once more, and back.
    let again = transaction.savepoint();
    transaction.clear_table("numbers").unwrap();
    transaction.put(&numbers, 8, "eight").unwrap();
    assert_eq!(transaction.first(&numbers).unwrap().unwrap().0, 8);
    transaction.rollback_to(again).unwrap();
    assert_eq!(transaction.first(&numbers).unwrap().unwrap().0, 7);
    transaction.rollback_to(before).unwrap();
    assert_eq!(transaction.count(&numbers, ..).unwrap(), 500);
    transaction.clear_table("numbers").unwrap();
    transaction.put(&numbers, 9, "nine").unwrap();
    transaction.commit().unwrap();
    // All handles see it, and snapshots that are older what was there, by handles of before and after.
    let after = database.table(NUMBERS).unwrap();
    assert_eq!((keys(&numbers), keys(&after)), (vec![9], vec![9]));
    for snapshot in [&older, &during] {
        for table in [&numbers, &after, &snapshot.table(NUMBERS).unwrap()] {
            assert_eq!(snapshot.count(table, ..).unwrap(), 500);
            assert_eq!(snapshot.get(table, 500).unwrap().map(|value| value.len()), Some(50_000));
        }
    }
    numbers.put(1000, "ten").unwrap();
    assert_eq!(after.get(1000).unwrap().as_deref(), Some("ten"));
    assert_eq!(during.get(&after, 1000).unwrap(), None);
    assert_conflict(older.put(&after, 1, "uno"), true);
    assert_conflict(during.clear_table("numbers"), true);
    database.run(|later| later.put(&numbers, 1001, "eleven").map(drop)).unwrap();
    drop((older, during));
    assert_eq!(keys(&after), [9, 1000, 1001]);
    assert_clean(&database);
}

#[test]
fn what_is_undone_leaves_the_table_as_it_was() {
    let (_disk, database) = database(2, &options());
    let numbers = database.create_table(NUMBERS).unwrap();
    fill(&numbers);
    let held = pages(&database);
    for _ in 0..20 {
        let transaction = database.begin().unwrap();
        transaction.clear_table("numbers").unwrap();
        fill_in(&transaction, &numbers);
        transaction.clear_table("numbers").unwrap();
        transaction.rename_table("numbers", "digits").unwrap();
        transaction.drop_table("digits").unwrap();
        drop(transaction);
        numbers.put(1, "uno").unwrap();
        assert_eq!(numbers.count(..).unwrap(), 500);
    }
    drop(database.begin().unwrap());
    assert!(
        pages(&database) <= held + 3,
        "what was undone is free, but for roots: {}",
        pages(&database) - held
    );
    drop(numbers);
    assert_eq!(pages(&database), held);
    // All of it at once.
    let transaction = database.begin().unwrap();
    transaction.clear_table("numbers").unwrap();
    transaction.rename_table("numbers", "digits").unwrap();
    transaction.drop_table("digits").unwrap();
    transaction.commit().unwrap();
    assert!(database.tables().unwrap().is_empty() && pages(&database) < held / 4);
    assert_clean(&database);
}

fn fill_in(transaction: &vellum::Transaction, numbers: &Table<u32, str>) {
    for number in 0..100 {
        transaction.put(numbers, number, "x".repeat(number as usize * 20)).unwrap();
    }
}

#[test]
fn a_transaction_goes_on_after_a_clearing_that_it_took_back() {
    let (disk, database) = database(9, &options());
    let numbers = database.create_table(NUMBERS).unwrap();
    fill(&numbers);
    let transaction = database.begin().unwrap();
    transaction.put(&numbers, 1, "uno").unwrap();
    let before = transaction.savepoint();
    for _ in 0..3 {
        transaction.clear_table("numbers").unwrap();
        fill_in(&transaction, &numbers);
        transaction.rollback_to(before).unwrap();
        // What it stored there is freed while it is open.
        assert_eq!(numbers.count(..).unwrap(), 500);
        pages(&database);
    }
    assert_eq!(transaction.get(&numbers, 1).unwrap().as_deref(), Some("uno"));
    // It goes on to keep others from the record of the table.
    assert_conflict(database.clear_table("numbers"), false);
    transaction.put(&numbers, 2, "due").unwrap();
    let killed = disk.kill();
    transaction.commit().unwrap();
    assert_eq!(numbers.get(2).unwrap().as_deref(), Some("due"));
    database.clear_table("numbers").unwrap();
    assert_eq!(keys(&numbers), []);
    assert_clean(&database);
    let database = Database::open_in(Arc::new(killed), "data", &options()).unwrap();
    let numbers = database.table(NUMBERS).unwrap();
    assert_eq!((numbers.count(..).unwrap(), numbers.get(1).unwrap().as_deref()), (500, Some("one")));
    assert_clean(&database);
}

#[test]
fn space_is_free_as_soon_as_no_snapshot_sees_it_also_with_handles() {
    let (disk, database) = database(3, &options());
    let numbers = database.create_table(NUMBERS).unwrap();
    let empty = pages(&database);
    fill(&numbers);
    let full = pages(&database);
    for round in 0..30 {
        database.clear_table("numbers").unwrap();
        assert!(numbers.is_empty_now());
        assert!(pages(&database) <= empty + 2, "{} pages after {round} rounds", pages(&database) - empty);
        fill(&numbers);
        assert!(pages(&database) <= full + 2);
    }
    // What an older snapshot sees is not, and what came after it is.
    let snapshot = database.begin().unwrap();
    for round in 1..5 {
        database.clear_table("numbers").unwrap();
        fill(&numbers);
        assert_eq!(snapshot.count(&numbers, ..).unwrap(), 500);
        let (held, both) = (pages(&database), full + (full - empty));
        assert!((both - 2..=both + 4).contains(&held), "{held} pages and not {both} after {round} rounds");
    }
    database.clear_table("numbers").unwrap();
    drop(snapshot);
    // The roots are used again.
    let rest = pages(&database);
    assert!(rest <= empty + 3, "{} pages", rest - empty);
    for _ in 0..9 {
        database.clear_table("numbers").unwrap();
        assert_eq!(pages(&database), rest);
    }
    assert_clean(&database);
    // After a crash nothing is left of it.
    let crashed = disk.crash();
    drop((numbers, database));
    let database = Database::open_in(Arc::new(crashed), "data", &options()).unwrap();
    assert!(database.table(NUMBERS).unwrap().is_empty_now());
    assert_eq!(pages(&database), empty);
    assert_clean(&database);
}

trait IsEmpty {
    fn is_empty_now(&self) -> bool;
}

impl IsEmpty for Table<u32, str> {
    fn is_empty_now(&self) -> bool {
        self.first().unwrap().is_none()
    }
}

/// The page of a tree that was made and taken back is the root of another one later. Its record in the catalog must not be kept from
/// the transaction that makes that.
#[test]
fn what_a_transaction_took_back_keeps_nobody_from_making_tables() {
    for (seed, is_cleared) in [(17, false), (18, true)] {
        let (_disk, database) = database(seed, &options());
        drop(database.create_table("cleared").unwrap());
        let old = database.begin().unwrap();
        let transaction = database.begin().unwrap();
        let before = transaction.savepoint();
        for round in 0..4 {
            if is_cleared {
                transaction.clear_table("cleared").unwrap();
            } else {
                transaction.create_table("made").unwrap();
            }
            transaction.rollback_to(before).unwrap();
            // While it is open.
            drop(database.create_table(format!("table {round}")).unwrap());
        }
        let other = database.create_table("other").unwrap();
        drop(transaction);
        let transaction = database.begin().unwrap();
        let before = transaction.savepoint();
        if is_cleared {
            transaction.clear_table("cleared").unwrap();
        } else {
            transaction.create_table("made").unwrap();
        }
        transaction.rollback_to(before).unwrap();
        transaction.put(&other, "a", "b").unwrap();
        transaction.commit().unwrap();
        // After it, by a transaction that began before it was committed.
        for round in 0..4 {
            drop(old.create_table(format!("old {round}")).unwrap());
        }
        old.commit().unwrap();
        assert_eq!(database.tables().unwrap().len(), 10);
        let pages = pages(&database);
        (0..4).for_each(|round| database.drop_table(&format!("old {round}")).unwrap());
        assert_eq!(self::pages(&database), pages - 4);
        assert_clean(&database);
    }
}

#[test]
fn a_plain_table_is_cleared_and_stays_plain() {
    let (disk, database) = database(4, &options());
    let plain = database.create_table_with(NUMBERS, TableOptions::default().versions(false)).unwrap();
    plain.put(1, "one").unwrap();
    let transaction = database.begin().unwrap();
    transaction.clear_table("numbers").unwrap();
    assert_eq!(plain.count(..).unwrap(), 1);
    assert_conflict(plain.put(2, "two"), false);
    drop(transaction);
    plain.put(2, "two").unwrap();
    database.clear_table("numbers").unwrap();
    plain.put(3, "three").unwrap();
    assert_eq!(keys(&plain), [3]);
    drop(plain);
    let crashed = disk.crash();
    drop(database);
    let database = Database::open_in(Arc::new(crashed), "data", &options()).unwrap();
    assert!(database.tables().unwrap()[0].is_plain);
    assert_eq!(keys(&database.table(NUMBERS).unwrap()), [3]);
    assert_clean(&database);
}

#[test]
fn what_had_begun_before_is_refused_or_ends() {
    let (_disk, database) = database(5, &options());
    let table = database.create_table("table").unwrap();
    for number in 0..3000_u32 {
        table.put(number.to_be_bytes(), [7; 100]).unwrap();
    }
    let mut cursor = table.cursor(..).unwrap();
    assert!(cursor.next().unwrap().is_some());
    let mut submissions = table.submissions();
    submissions.submit("early", Task::Upsert(b"value".to_vec()), 1);
    database.clear_table("table").unwrap();
    submissions.wait();
    submissions.submit("late", Task::Upsert(b"value".to_vec()), 2);
    while !submissions.is_empty() {
        submissions.wait();
        // What was not done yet comes after the clearing, as that of an operation by itself would.
        submissions.reap(|tag, _, answer| {
            answer.unwrap_or_else(|error| panic!("{tag}: {error}"));
        });
    }
    assert!(cursor.count_rest() < 3000);
    assert_eq!(table.count(..).unwrap(), 2);
    database.clear_table("table").unwrap();
    let mut loader = table.bulk_loader().unwrap();
    loader.push("key", "value").unwrap();
    database.clear_table("table").unwrap();
    assert_eq!(loader.finish().unwrap_err().kind(), ErrorKind::Conflict);
    assert!(table.first().unwrap().is_none());
    // What goes on inside an operation comes after it.
    table.put("key", "value").unwrap();
    let mut calls = 0;
    table
        .update_with("key", |value| {
            calls += 1;
            if calls == 1 {
                database.clear_table("table").unwrap();
            }
            Some([value.unwrap_or_default(), b"+".to_vec()].concat())
        })
        .unwrap();
    assert!((2..4).contains(&calls));
    assert_eq!(table.get("key").unwrap(), Some(b"+".to_vec()));
    drop((submissions, cursor));
    assert_clean(&database);
}

trait CountRest {
    fn count_rest(&mut self) -> u64;
}

impl CountRest for vellum::Cursor<'_> {
    fn count_rest(&mut self) -> u64 {
        let mut count = 0;
        while self.next().unwrap().is_some() {
            count += 1;
        }
        count
    }
}

#[test]
fn a_feed_tells_that_it_was_dropped_and_created() {
    let (_disk, database) = database(6, &options());
    let numbers = database.create_table(NUMBERS).unwrap();
    numbers.put(1, "one").unwrap();
    let mut changes = database.changes(ChangesFrom::Now).unwrap();
    let transaction = database.begin().unwrap();
    transaction.put(&numbers, 2, "two").unwrap();
    transaction.clear_table("numbers").unwrap();
    transaction.put(&numbers, 3, "three").unwrap();
    transaction.commit().unwrap();
    numbers.put(4, "four").unwrap();
    let mut told = Vec::new();
    while let Some(commit) = changes.next().unwrap() {
        told.extend(commit.changes.into_iter().map(|change| {
            assert_eq!(&*change.table, "numbers");
            match change.event {
                Event::Inserted { key, .. } => format!("{}", key[3]),
                Event::Dropped => "dropped".to_owned(),
                Event::Created { key_type, .. } => key_type,
                other => panic!("{other:?}"),
            }
        }));
    }
    assert_eq!(told, ["2", "dropped", "u32", "3", "4"]);
}

/// A value that tells its key.
fn value_of(key: u32, round: u64) -> Vec<u8> {
    let length = if key.is_multiple_of(97) { 3000 } else { 40 + key as usize % 300 };
    [&key.to_be_bytes()[..], &round.to_be_bytes(), &vec![key as u8; length]].concat()
}

/// Threads read and write by single operations, in batches and in transactions, while another one clears the table again and again: pages
/// are freed under readers and writers, and are soon something else.
#[test]
fn readers_and_writers_meet_clearing() {
    for (seed, is_plain, with_log) in [(7, false, true), (8, true, true), (9, false, false)] {
        let (_disk, database) = database(seed, &options().background_eviction(true).log(with_log));
        let table = database.create_table_with("table", TableOptions::default().versions(!is_plain)).unwrap();
        let empty = pages(&database);
        let (round, is_over) = (AtomicU64::new(1), AtomicBool::new(false));
        thread::scope(|scope| {
            let check = |key: u32, value: &[u8]| {
                let round = u64::from_be_bytes(value[4..12].try_into().unwrap());
                assert!(value == value_of(key, round), "{value:?} of {key}");
            };
            for thread in 0..3_u32 {
                let (database, table, round, is_over) = (&database, &table, &round, &is_over);
                scope.spawn(move || {
                    for number in 0.. {
                        if is_over.load(Ordering::SeqCst) {
                            break;
                        }
                        let key = (number * 7919 + thread * 31) % 2000;
                        let now = round.load(Ordering::SeqCst);
                        let put = match number % 8 {
                            0..5 => table.put(key.to_be_bytes(), value_of(key, now)).map(drop),
                            5 if !is_plain => {
                                let put = |transaction: &vellum::Transaction| {
                                    let now = round.load(Ordering::SeqCst);
                                    transaction.put(table, key.to_be_bytes(), value_of(key, now)).map(drop)
                                };
                                database.run(put)
                            }
                            _ => {
                                let entries = [1, 2, 3]
                                    .map(|more| ((key + more).to_be_bytes(), value_of(key + more, now)));
                                table.multi_put(&entries).into_iter().try_for_each(|put| put.map(drop))
                            }
                        };
                        assert!(matches!(put, Ok(()) | Err(Error::Conflict { .. })), "{put:?}");
                    }
                });
            }
            let (table, is_over) = (&table, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    for key in 0..2000_u32 {
                        table.get(key.to_be_bytes()).unwrap().iter().for_each(|value| check(key, value));
                    }
                    for entry in table.range(..).unwrap() {
                        let (key, value) = entry.unwrap();
                        check(u32::from_be_bytes(key.try_into().unwrap()), &value);
                    }
                }
            });
            for attempt in 0..100 {
                thread::sleep(std::time::Duration::from_millis(2));
                // Where many processors let the threads write at once, most single attempts conflict.
                let cleared = match attempt % 4 {
                    0 => database.run(|transaction| transaction.clear_table("table")),
                    _ => database.clear_table("table"),
                };
                match cleared {
                    Ok(()) => drop(round.fetch_add(1, Ordering::SeqCst)),
                    Err(error) => assert!(attempt % 4 > 0 && error.kind() == ErrorKind::Conflict, "{error}"),
                }
            }
            is_over.store(true, Ordering::SeqCst);
        });
        assert!(round.load(Ordering::SeqCst) > 25, "{round:?} rounds");
        database.clear_table("table").unwrap();
        drop(database.begin().unwrap());
        assert!(table.first().unwrap().is_none());
        // The roots of earlier generations stay as long as the table has handles.
        drop(table);
        assert!(pages(&database) <= empty + 2, "{} pages", pages(&database) - empty);
        assert_clean(&database);
    }
}

#[test]
fn what_no_open_snapshot_has_seen_is_free_though_older_ones_are_open() {
    let (_disk, database) = database(12, &options());
    let numbers = database.create_table(NUMBERS).unwrap();
    fill(&numbers);
    let old = database.begin().unwrap();
    let mut held = 0;
    let mut young = Vec::new();
    for round in 0..60 {
        database.clear_table("numbers").unwrap();
        database.run(|transaction| transaction.put(&numbers, round, "x".repeat(20_000)).map(drop)).unwrap();
        numbers.put(1000, "a thousand").unwrap();
        assert_eq!(keys(&numbers), [round, 1000]);
        if round % 20 == 10 {
            young.push((round, database.begin().unwrap()));
        }
        if round == 2 {
            held = pages(&database);
        }
    }
    let more = pages(&database).saturating_sub(held);
    assert!(more < 40, "{more} pages more");
    assert_eq!(old.count(&numbers, ..).unwrap(), 500);
    assert_eq!(old.get(&numbers, 500).unwrap().unwrap().len(), 50_000);
    for (round, snapshot) in &young {
        let seen: Vec<_> = snapshot.range(&numbers, ..).unwrap().map(|entry| entry.unwrap().0).collect();
        assert_eq!(seen, [*round, 1000]);
    }
    // What is rolled back does not make the table look as if all saw the same.
    let undone = database.begin().unwrap();
    undone.clear_table("numbers").unwrap();
    drop(undone);
    database.clear_table("numbers").unwrap();
    database.run(|transaction| transaction.bulk_load(&numbers, [(5, "five")]).map(drop)).unwrap();
    assert_eq!(old.count(&numbers, ..).unwrap(), 500);
    assert_conflict(old.put(&numbers, 1, "one"), true);
    drop(old);
    for (round, snapshot) in &young {
        assert!(snapshot.get(&numbers, round).unwrap().is_some());
    }
    drop(young);
    assert_eq!(keys(&numbers), [5]);
    assert_clean(&database);
}

#[test]
fn dropped_tables_that_no_open_snapshot_has_seen_take_a_page_each_while_older_ones_are_open() {
    let (disk, database) = database(13, &options());
    drop(database.create_table("other").unwrap());
    let before = pages(&database);
    let old = database.begin().unwrap();
    let mut young = Vec::new();
    for round in 0..60 {
        let kept = if round % 3 == 0 {
            // No snapshot can have seen it.
            database
                .run(|transaction| {
                    let numbers = transaction.create_table(NUMBERS)?;
                    (0..50).try_for_each(|number| {
                        transaction.put(&numbers, number, "x".repeat(5_000)).map(drop)
                    })?;
                    transaction.drop_table("numbers")?;
                    Ok(numbers)
                })
                .unwrap()
        } else {
            let numbers = database.create_table(NUMBERS).unwrap();
            fill(&numbers);
            if round % 20 == 10 {
                let snapshot = database.begin().unwrap();
                young.push((snapshot.table(NUMBERS).unwrap(), snapshot));
            }
            let transaction = database.begin().unwrap();
            transaction.drop_table("numbers").unwrap();
            transaction.commit().unwrap();
            numbers
        };
        if round % 3 == 1 {
            // Those that have a handle on it still see what it held.
            assert_eq!(keys(&kept).len(), 500);
        }
    }
    // Three tables are still seen.
    let seen = 3 * pages_of_one();
    let more = pages(&database) - before;
    assert!(more < seen + 80, "{more} pages more, of which {seen} are seen");
    for (numbers, snapshot) in &young {
        assert_eq!(snapshot.count(numbers, ..).unwrap(), 500);
        assert_eq!(snapshot.get(numbers, 500).unwrap().unwrap().len(), 50_000);
    }
    // What the older snapshot does not see is in the way of no table that it makes.
    for number in 0..100 {
        old.create_table(&format!("new {number}")).map(drop::<Table>).unwrap();
    }
    assert_clean(&database);
    assert_clean(&Database::open_in(Arc::new(disk.crash()), "data", &options()).unwrap());
    drop((old, young));
    assert!(pages(&database) <= before + 2);
    assert_clean(&database);
}

/// How many pages a table takes that is filled.
fn pages_of_one() -> u64 {
    let (_disk, database) = database(14, &options());
    let before = pages(&database);
    fill(&database.create_table(NUMBERS).unwrap());
    pages(&database) - before
}
