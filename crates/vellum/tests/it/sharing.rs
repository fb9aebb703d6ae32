//! Threads that share a transaction: it makes one change at a time, and a change of a whole table is one.

use crate::support::{assert_clean, options};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};
use vellum::{Database, Durability, Error, Options, Savepoint, Table, Transaction};
use vellum_vm::SimulatedDisk;

type World = BTreeMap<Vec<u8>, Vec<u8>>;
type Change = fn(&Transaction) -> vellum::Result<()>;

const DROPS: Change = |transaction| transaction.drop_table("fruit");
const CLEARS: Change = |transaction| transaction.clear_table("fruit");
const RENAMES: Change = |transaction| transaction.rename_table("fruit", "new");

/// How a transaction ends.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Ending {
    Commit,
    Rollback,
    /// By the recovery, after the process has been killed.
    Kill,
}

/// Memory has room for few changes: their undo is moved to a file again and again.
fn small() -> Options {
    options().version_memory_bytes(64 << 10).durability(Durability::Deferred)
}

fn database(seed: u64, options: &Options) -> (Arc<SimulatedDisk>, Database) {
    let disk = Arc::new(SimulatedDisk::new(seed));
    let database = Database::create_in(disk.clone(), "data", options).unwrap();
    (disk, database)
}

fn contents(table: &Table) -> World {
    table.range(..).unwrap().map(Result::unwrap).collect()
}

fn key(thread: u8, number: u32) -> Vec<u8> {
    [&[thread][..], &number.to_be_bytes()].concat()
}

/// A value of this length, or a large one now and then.
fn value(byte: u8, number: u32) -> Vec<u8> {
    vec![byte; if number.is_multiple_of(50) { 5000 } else { 100 }]
}

/// Stores many records at once, again and again. Returns what it has stored.
fn put_many(transaction: &Transaction, table: &Table) -> World {
    let mut stored = World::new();
    for round in 0..20_u8 {
        let numbers = (0..400).map(|number| number * 5 + u32::from(round) % 5);
        let entries: Vec<_> = numbers.map(|number| (key(0, number), value(round, number))).collect();
        transaction.multi_put(table, &entries).unwrap();
        stored.extend(entries);
        // The others have their turn.
        thread::sleep(Duration::from_millis(1));
    }
    stored
}

/// Changes one record after the other, none of which others change. Returns what it has left.
fn put_some(transaction: &Transaction, table: &Table, thread: u8, is_over: &AtomicBool) -> World {
    let mut random = StdRng::seed_from_u64(thread.into());
    let mut left = World::new();
    while !is_over.load(Ordering::Relaxed) {
        // They come at any time while many records are stored.
        thread::sleep(Duration::from_micros(random.random_range(0..1000)));
        let number = random.random_range(0..100);
        let (key, value) = (key(thread, number), value(random.random(), number));
        match random.random_range(0..4) {
            0 => {
                let found = transaction.get_for_update(table, &key).unwrap();
                assert_eq!(found.as_ref(), left.get(&key));
            }
            1 => {
                let was_there = transaction.remove(table, &key).unwrap();
                assert_eq!(was_there, left.remove(&key).is_some());
            }
            2 => {
                transaction.put_from(table, &key, value.len() as u64, &mut &value[..]).unwrap();
                left.insert(key, value);
            }
            _ => {
                transaction.put(table, &key, &value).unwrap();
                left.insert(key, value);
            }
        }
    }
    left
}

/// One thread stores many records, and the undo of that is moved to a file when another one comes.
#[test]
fn a_change_of_many_records_is_not_disturbed_by_other_threads() {
    for (seed, ending) in (1..).zip([Ending::Commit, Ending::Rollback, Ending::Kill]) {
        let (disk, database) = database(seed, &small());
        let table = database.create_table("table").unwrap();
        let before: World = (0..1000).map(|number| (key(0, number), value(255, number * 2))).collect();
        for (key, value) in &before {
            table.put(key, value).unwrap();
        }
        let transaction = database.begin().unwrap();
        let (is_over, mut now) = (AtomicBool::new(false), before.clone());
        thread::scope(|scope| {
            let (transaction, table, is_over) = (&transaction, &table, &is_over);
            let some = |thread| scope.spawn(move || put_some(transaction, table, thread, is_over));
            let others: Vec<_> = (1..5).map(some).collect();
            let many = scope.spawn(move || put_many(transaction, table)).join();
            is_over.store(true, Ordering::Relaxed);
            now.extend(many.unwrap());
            others.into_iter().for_each(|other| now.extend(other.join().unwrap()));
        });
        let seen: World = transaction.range(&table, ..).unwrap().map(Result::unwrap).collect();
        assert!(seen == now, "{ending:?}");
        let expected = if ending == Ending::Commit { now } else { before };
        let disk = if ending == Ending::Kill {
            database.sync().unwrap();
            let left = disk.kill();
            drop((transaction, table, database));
            Arc::new(left)
        } else {
            let ended = if ending == Ending::Commit { transaction.commit() } else { transaction.rollback() };
            ended.unwrap();
            assert!(contents(&table) == expected, "{ending:?}");
            drop(table);
            assert_clean(&database);
            database.close().unwrap();
            disk
        };
        let database = Database::open_in(disk, "data", &small()).unwrap();
        database.finish_recovery().unwrap();
        assert!(contents(&database.table("table").unwrap()) == expected, "{ending:?}");
        assert_clean(&database);
    }
}

/// To find out whether the outer transaction holds a record that it has only reserved, it is reserved once more.
#[test]
fn a_conflict_with_a_transaction_that_another_thread_uses_is_found() {
    let (_disk, database) = database(4, &small());
    let table = database.create_table("table").unwrap();
    let reserved = database.create_table("reserved").unwrap();
    let mut stored = World::new();
    let ran = database.run(|transaction| {
        transaction.get_for_update(&reserved, "key")?;
        thread::scope(|scope| {
            let many = scope.spawn(|| put_many(transaction, &table));
            while !many.is_finished() {
                let done = database.run(|inner| inner.put(&reserved, "key", "value"));
                assert!(matches!(done, Err(Error::OwnConflict { .. })), "{done:?}");
            }
            stored = many.join().unwrap();
        });
        Ok(())
    });
    ran.unwrap();
    assert!(contents(&table) == stored);
    assert_clean(&database);
}

/// Fills a new table.
fn create(database: &Database) -> Table {
    let table = database.create_table("fruit").unwrap();
    for key in ["apples", "limes", "pears"] {
        table.put(key, "value").unwrap();
    }
    table
}

/// Nothing is left after all tables were dropped, also when the database has been opened again.
fn check_empty(disk: Arc<SimulatedDisk>, database: Database) {
    assert_eq!(database.tables().unwrap().len(), 0);
    assert_clean(&database);
    database.close().unwrap();
    let database = Database::open_in(disk, "data", &options()).unwrap();
    assert!(database.recovery().is_none());
    assert_eq!(database.tables().unwrap().len(), 0);
    assert_clean(&database);
}

/// Makes a change while this thread makes savepoints, and returns those.
fn savepoints_beside(transaction: &Transaction, change: Change) -> Vec<Savepoint> {
    let (barrier, is_done) = (Barrier::new(2), AtomicBool::new(false));
    thread::scope(|scope| {
        let changing = scope.spawn(|| {
            barrier.wait();
            let done = change(transaction);
            is_done.store(true, Ordering::Relaxed);
            done
        });
        barrier.wait();
        let mut savepoints = vec![transaction.savepoint()];
        while !is_done.load(Ordering::Relaxed) {
            savepoints.push(transaction.savepoint());
        }
        changing.join().unwrap().unwrap();
        savepoints
    })
}

#[test]
fn a_savepoint_is_not_inside_a_change_of_a_whole_table() {
    for (seed, change, is_clear) in [(10, RENAMES, false), (11, CLEARS, true)] {
        let (disk, database) = database(seed, &options());
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..40 {
            drop(create(&database));
            let transaction = database.begin().unwrap();
            let savepoints = savepoints_beside(&transaction, change);
            let chosen = random.random_range(0..savepoints.len());
            for savepoint in savepoints[chosen..].iter().rev() {
                transaction.rollback_to(*savepoint).unwrap();
                let tables = transaction.tables().unwrap();
                assert_eq!(tables.len(), 1, "{tables:?}");
                let table = transaction.table(&tables[0].name[..]).unwrap();
                let count = transaction.range(&table, ..).unwrap().count();
                assert!(count == 3 || is_clear && count == 0, "{count} entries");
            }
            transaction.commit().unwrap();
            let tables = database.tables().unwrap();
            let name = &tables[0].name[..];
            assert!(matches!(contents(&database.table(name).unwrap()).len(), 0 | 3));
            database.drop_table(name).unwrap();
        }
        check_empty(disk, database);
    }
}

/// Makes these changes through the transaction at once, each by a thread of its own.
fn at_once<const COUNT: usize>(
    transaction: &Transaction,
    changes: [Change; COUNT],
) -> [vellum::Result<()>; COUNT] {
    let barrier = Barrier::new(COUNT);
    thread::scope(|scope| {
        let threads = changes.map(|change| {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                change(transaction)
            })
        });
        threads.map(|thread| thread.join().unwrap())
    })
}

#[test]
fn changes_of_a_whole_table_by_several_threads_come_one_after_the_other() {
    let (disk, database) = database(20, &options());
    for round in 0..200 {
        // Half of the rounds have a handle on the table.
        let table = Some(create(&database)).filter(|_| round % 2 == 0);
        let transaction = database.begin().unwrap();
        let all = at_once(&transaction, [DROPS, CLEARS, RENAMES]);
        let is_known = |done: &vellum::Result<()>| matches!(done, Ok(()) | Err(Error::NoSuchTable { .. }));
        assert!(all.iter().all(is_known), "{all:?}");
        let [dropped, cleared, renamed] = all.map(|done| done.is_ok());
        assert!(dropped != renamed, "the second one of these two finds no table");
        let expected = if round % 3 == 0 {
            transaction.rollback().unwrap();
            Some(("fruit", 3))
        } else {
            transaction.commit().unwrap();
            renamed.then_some(("new", if cleared { 0 } else { 3 }))
        };
        drop(table);
        let tables = database.tables().unwrap();
        let names: Vec<_> = tables.iter().map(|table| &table.name[..]).collect();
        assert_eq!(names, expected.iter().map(|(name, _)| *name).collect::<Vec<_>>());
        if let Some((name, count)) = expected {
            assert_eq!(contents(&database.table(name).unwrap()).len(), count);
            database.drop_table(name).unwrap();
        }
    }
    check_empty(disk, database);
}

#[test]
fn of_threads_that_create_the_same_table_one_does() {
    let (disk, database) = database(30, &options());
    for _ in 0..100 {
        let transaction = database.begin().unwrap();
        let creates: Change = |transaction| transaction.create_table("fruit").map(drop);
        let all = at_once(&transaction, [creates; 3]);
        assert_eq!(all.iter().filter(|done| done.is_ok()).count(), 1, "{all:?}");
        let is_known = |done: &vellum::Result<()>| matches!(done, Ok(()) | Err(Error::TableExists { .. }));
        assert!(all.iter().all(is_known), "{all:?}");
        transaction.commit().unwrap();
        database.drop_table("fruit").unwrap();
    }
    check_empty(disk, database);
}

/// If it owned the table while it waits, the transaction with precedence would conflict with it.
#[test]
fn a_change_of_a_whole_table_waits_for_precedence_before_it_takes_the_table() {
    /// So many attempts have no precedence.
    const EQUAL: u32 = 8;
    for (seed, change) in (40..).zip([CLEARS, DROPS]) {
        let (_disk, database) = database(seed, &options());
        let table = create(&database);
        let mut attempts = 0;
        thread::scope(|scope| {
            let (begin, begun) = mpsc::channel();
            let other = scope.spawn(|| {
                begun.into_iter().next().unwrap();
                let transaction = database.begin()?;
                change(&transaction)?;
                transaction.commit()
            });
            let ran = database.run(|transaction| {
                attempts += 1;
                if attempts == EQUAL {
                    // The next attempt has precedence for up to twice as long.
                    thread::sleep(Duration::from_millis(500));
                }
                if attempts <= EQUAL {
                    // As if another one had been faster.
                    return Err(Error::Conflict { table: "fruit".into(), key: vec![], committed: true });
                }
                // In the meantime the other one begins to wait.
                if attempts == EQUAL + 1 {
                    begin.send(()).unwrap();
                    thread::sleep(Duration::from_millis(100));
                }
                transaction.put(&table, "plums", "value").map(drop)
            });
            ran.unwrap();
            other.join().unwrap().unwrap();
        });
        assert_eq!(attempts, EQUAL + 1, "it met the other one although it had precedence");
    }
}
