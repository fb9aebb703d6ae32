//! Transactions and snapshots for which memory has no room.

use crate::support::options;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use vellum::{Database, Durability, Error, ErrorKind, Options, Table, Transaction};
use vellum_vm::{CreateMode, Directory, FileOperation, FileOptions, SimulatedDisk};

type World = BTreeMap<Vec<u8>, Vec<u8>>;

const ROOM: u64 = 64 << 10;

fn small() -> Options {
    options().version_memory_bytes(ROOM).durability(Durability::Deferred)
}

fn database(seed: u64) -> (SimulatedDisk, Database, Table) {
    let disk = SimulatedDisk::new(seed);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &small()).unwrap();
    let table = database.create_table("table").unwrap();
    (disk, database, table)
}

fn key(number: u32) -> Vec<u8> {
    let mut key = number.to_be_bytes().to_vec();
    // Some are so long that they differ at the end only of what fits a page's key.
    if number.is_multiple_of(97) {
        key.splice(0..0, [7; 1015]);
    }
    key
}

fn value(random: &mut StdRng) -> Vec<u8> {
    let length = if random.random_ratio(1, 50) { 5000 } else { random.random_range(0..300) };
    vec![random.random(); length]
}

fn fill(table: &Table, count: u32) -> World {
    let mut random = StdRng::seed_from_u64(1);
    let mut world = World::new();
    for number in 0..count {
        let (key, value) = (key(number), value(&mut random));
        table.put(&key, &value).unwrap();
        world.insert(key, value);
    }
    world
}

/// Changes, removes and inserts some records.
fn change(
    transaction: &Transaction,
    table: &Table,
    world: &mut World,
    numbers: std::ops::Range<u32>,
    seed: u64,
) {
    let mut random = StdRng::seed_from_u64(seed);
    for number in numbers {
        let key = key(number);
        if random.random_ratio(1, 3) {
            assert_eq!(transaction.remove(table, &key).unwrap(), world.remove(&key).is_some());
        } else {
            let value = value(&mut random);
            transaction.put(table, &key, &value).unwrap();
            world.insert(key, value);
        }
    }
}

fn seen_by(transaction: &Transaction, table: &Table) -> World {
    let mut cursor = transaction.cursor(table, ..).unwrap();
    let mut found = World::new();
    while let Some(entry) = cursor.next().unwrap() {
        found.insert(entry.key().to_vec(), entry.value().unwrap().unwrap().to_vec());
    }
    cursor.seek_to_end();
    let mut count = 0;
    while let Some(entry) = cursor.previous().unwrap() {
        assert!(found.contains_key(entry.key()));
        count += 1;
    }
    assert_eq!(count, found.len());
    found
}

fn look(transaction: &Transaction, table: &Table, world: &World, random: &mut StdRng) {
    assert!(seen_by(transaction, table) == *world);
    for _ in 0..300 {
        let key = key(random.random_range(0..6000));
        assert_eq!(transaction.get(table, &key).unwrap().as_ref(), world.get(&key));
    }
}

/// Nothing of the history is left, and the file is gone.
fn is_clean(database: &Database, disk: &SimulatedDisk) {
    nothing_is_left(database);
    assert!(!disk.names().unwrap().contains(&"spill".to_owned()));
}

fn nothing_is_left(database: &Database) {
    let history = database.history();
    assert_eq!((history.open, history.records, history.version_bytes, history.leftovers), (0, 0, 0, 0));
    assert!(database.verify(|_| {}).problems.is_empty());
}

#[test]
fn a_transaction_may_change_more_than_memory_has_room_for() {
    for seed in 0..6 {
        let mut random = StdRng::seed_from_u64(seed);
        let (disk, database, table) = database(seed);
        let before = fill(&table, 4000);
        let reader = database.begin().unwrap();
        let writer = database.begin().unwrap();
        let mut now = before.clone();
        change(&writer, &table, &mut now, 0..3000, seed);
        let (savepoint, saved) = (writer.savepoint(), now.clone());
        change(&writer, &table, &mut now, 1000..5000, seed + 100);
        let history = database.history();
        assert!(history.version_bytes < 4 * ROOM, "{history:?}");
        assert!(history.records > 3000, "{history:?}");
        look(&writer, &table, &now, &mut random);
        look(&reader, &table, &before, &mut random);
        // What it has changed is its own, though the file has it.
        for number in (0..4000).step_by(171) {
            let other = database.begin().unwrap();
            let done = other.put(&table, key(number), "other");
            assert!(matches!(done, Err(Error::Conflict { committed: false, .. })), "{number}: {done:?}");
        }
        if seed % 3 == 1 {
            writer.rollback_to(savepoint).unwrap();
            now = saved;
            look(&writer, &table, &now, &mut random);
            change(&writer, &table, &mut now, 2500..4500, seed + 200);
            look(&writer, &table, &now, &mut random);
        }
        let is_committed = seed % 3 < 2;
        if is_committed {
            writer.commit().unwrap()
        } else {
            writer.rollback().unwrap()
        }
        look(&reader, &table, &before, &mut random);
        let number = 2000;
        let late = reader.put(&table, key(number), "late");
        assert_eq!(matches!(late, Err(Error::Conflict { committed: true, .. })), is_committed, "{late:?}");
        drop(reader);
        let after = database.begin().unwrap();
        look(&after, &table, if is_committed { &now } else { &before }, &mut random);
        after.put(&table, key(number), "after").unwrap();
        after.commit().unwrap();
        is_clean(&database, &disk);
    }
}

#[test]
fn an_old_snapshot_sees_its_moment_whatever_is_changed_after_it() {
    let (disk, database, table) = database(9);
    let mut now = fill(&table, 1500);
    let mut random = StdRng::seed_from_u64(9);
    let mut readers = Vec::new();
    for round in 0..24 {
        if round % 4 == 0 {
            readers.push((database.begin().unwrap(), now.clone()));
        }
        if round % 5 == 4 {
            let reader = random.random_range(0..readers.len());
            let (reader, world) = readers.swap_remove(reader);
            look(&reader, &table, &world, &mut random);
        }
        for _ in 0..40 {
            let writer = database.begin().unwrap();
            let first = random.random_range(0..1500);
            let mut changed = now.clone();
            change(&writer, &table, &mut changed, first..first + 30, random.random());
            if random.random_ratio(4, 5) {
                writer.commit().unwrap();
                now = changed;
            } else {
                writer.rollback().unwrap();
            }
        }
        let (reader, world) = &readers[random.random_range(0..readers.len())];
        look(reader, &table, world, &mut random);
    }
    let history = database.history();
    assert!(history.version_bytes < 4 * ROOM, "{history:?}");
    for (reader, world) in readers {
        look(&reader, &table, &world, &mut random);
    }
    is_clean(&database, &disk);
}

#[test]
fn a_serializable_transaction_hears_of_changes_that_are_in_the_file() {
    let (_disk, database, table) = database(10);
    fill(&table, 3000);
    for (number, fails) in [(2999, true), (5, true), (4000, false)] {
        let options = vellum::TransactionOptions::default().isolation(vellum::IsolationLevel::Serializable);
        let reader = database.begin_with(options).unwrap();
        reader.get(&table, key(number)).unwrap();
        let large = database.begin().unwrap();
        change(&large, &table, &mut World::new_of(&large, &table), 0..3000, u64::from(number));
        large.commit().unwrap();
        reader.put(&table, "its own", "value").unwrap();
        assert_eq!(reader.commit().is_err(), fails, "{number}");
    }
}

trait Of {
    fn new_of(transaction: &Transaction, table: &Table) -> Self;
}

impl Of for World {
    fn new_of(transaction: &Transaction, table: &Table) -> Self {
        seen_by(transaction, table)
    }
}

/// The operation of this kind with this number fails, after a large transaction has begun. False if there are fewer.
fn fail(operation: FileOperation, number: u64) -> bool {
    let (disk, database, table) = database(number);
    let before = fill(&table, 1200);
    database.checkpoint().unwrap();
    let reader = database.begin().unwrap();
    let writer = database.begin().unwrap();
    disk.fail_nth_of(operation, number);
    let failures = disk.counts().scheduled_failures;
    let mut random = StdRng::seed_from_u64(number);
    let changed = (0..1200).try_for_each(|number| {
        let value = value(&mut random);
        if number % 5 == 0 {
            writer.remove(&table, key(number)).map(drop)
        } else {
            writer.put(&table, key(number), value).map(drop)
        }
    });
    let has_failed = disk.counts().scheduled_failures > failures;
    if changed.is_err() {
        assert!(has_failed, "{changed:?}");
    }
    disk.heal();
    let is_dead = database.checkpoint().is_err();
    if !is_dead {
        assert!(seen_by(&reader, &table) == before, "{operation} {number}");
        writer.rollback().unwrap();
        assert!(seen_by(&reader, &table) == before, "{operation} {number}");
        drop(reader);
        nothing_is_left(&database);
        table.put(key(3), "it goes on").unwrap();
        drop(table);
        database.close().unwrap();
        assert_eq!(disk.names().unwrap(), ["data"]);
    } else {
        drop((reader, writer, table, database));
        let database = Database::open_in(Arc::new(disk.clone()), "data", &small()).unwrap();
        let table = database.table("table").unwrap();
        assert!(seen_by(&database.begin().unwrap(), &table) == before, "{operation} {number}");
    }
    has_failed
}

#[test]
fn a_file_that_fails_ends_the_transaction_and_nothing_else() {
    for operation in [FileOperation::Read, FileOperation::Write, FileOperation::Sync, FileOperation::Name] {
        let mut number = 1;
        while fail(operation, number) {
            number += 1 + number / 4;
        }
        println!("up to {number} of the kind {operation}");
    }
}

/// A process that was killed has left the file, and that cannot be removed now. The error is that of the disk: it must not look as if
/// what was asked for were there.
#[test]
fn a_file_that_was_left_and_cannot_be_removed_is_an_error_of_the_disk() {
    let (disk, database, table) = database(1);
    drop(fill(&table, 1200));
    let left = FileOptions { create: CreateMode::CreateNew, ..FileOptions::default() };
    drop(disk.open("spill", &left).unwrap());
    let _reader = database.begin().unwrap();
    let writer = database.begin().unwrap();
    disk.fail_nth_of(FileOperation::Name, 1);
    let changed = (0..1200).try_for_each(|number| writer.put(&table, key(number), [1; 300]).map(drop));
    let error = changed.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.to_string().contains("cannot remove"), "{error}");
    writer.rollback().unwrap();
    disk.heal();
    let writer = database.begin().unwrap();
    (0..1200).try_for_each(|number| writer.put(&table, key(number), [1; 300]).map(drop)).unwrap();
    writer.commit().unwrap();
}

#[test]
fn on_a_full_disk_a_large_transaction_is_refused_and_rolled_back() {
    let mut refused = 0;
    for kibibytes in (0..2000).step_by(130) {
        let (disk, database, table) = database(kibibytes);
        let before = fill(&table, 2000);
        database.checkpoint().unwrap();
        let reader = database.begin().unwrap();
        let writer = database.begin().unwrap();
        disk.leave_free(kibibytes << 10);
        let mut random = StdRng::seed_from_u64(kibibytes);
        let mut put = |number| writer.put(&table, key(number), value(&mut random)).map(drop);
        let changed = (0..2000).chain(0..2000).try_for_each(&mut put);
        if let Err(error) = &changed {
            assert_eq!(error.kind(), ErrorKind::OutOfSpace, "{kibibytes} KiB: {error}");
            refused += 1;
        }
        // The disk is still full.
        writer.rollback().unwrap_or_else(|error| panic!("{kibibytes} KiB: {error}"));
        assert!(seen_by(&reader, &table) == before, "{kibibytes} KiB");
        drop(reader);
        disk.heal();
        nothing_is_left(&database);
        table.put(key(3), "it goes on").unwrap();
    }
    println!("{refused} were refused");
    assert!(refused > 3);
}

/// Each transaction is small, and few of them look at how much memory versions take as long as there is room.
#[test]
fn while_versions_have_no_room_anywhere_changes_are_refused_and_memory_is_bounded() {
    let disk = SimulatedDisk::new(1);
    // Without a log nothing else is written.
    let database = Database::create_in(Arc::new(disk.clone()), "data", &small().log(false)).unwrap();
    let table = database.create_table("table").unwrap();
    (0..2000).for_each(|number| _ = table.put(key(number), [1; 200]).unwrap());
    let old = database.begin().unwrap();
    let change =
        |number| database.run(|transaction| transaction.put(&table, key(number), [2; 200]).map(drop));
    disk.leave_free(0);
    let mut refused = 0;
    for error in (0..2000).filter_map(|number| change(number).err()) {
        assert_eq!(error.kind(), ErrorKind::OutOfSpace, "{error}");
        assert!(error.to_string().contains("memory has no room"), "{error}");
        refused += 1;
    }
    let version_bytes = database.history().version_bytes;
    assert!(refused > 1000 && version_bytes < ROOM * 5 / 4, "{refused} refused, {version_bytes} bytes");
    (0..2000).for_each(|number| assert_eq!(old.get(&table, key(number)).unwrap().unwrap(), [1; 200]));
    disk.heal();
    let began = Instant::now();
    while change(0).is_err() {
        assert!(began.elapsed() < Duration::from_secs(10), "nothing is written");
        thread::sleep(Duration::from_millis(10));
    }
    (0..2000).for_each(|number| change(number).unwrap());
    (0..2000).for_each(|number| assert_eq!(old.get(&table, key(number)).unwrap().unwrap(), [1; 200]));
    drop(old);
    is_clean(&database, &disk);
}
