//! Full databases of which a transaction removes so much that leaves might be merged, which takes more room to undo than it
//! gives.

use crate::full_files::Limit;
use crate::support::{assert_clean, database, options, pages};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use std::sync::Arc;
use vellum::{Database, Options, Table, Transaction};
use vellum_vm::{Faults, SimulatedDisk};

const FILE_BYTES: u64 = 2 << 20;

/// Which records are removed.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Pattern {
    Rest,
    Middle,
    Random,
    /// All but a few in a hundred.
    Most,
}

const PATTERNS: [Pattern; 4] = [Pattern::Rest, Pattern::Middle, Pattern::Random, Pattern::Most];

fn limited(limit: Limit) -> Options {
    let options = options().log_segment_bytes(256 << 10).log_buffer_bytes(4 << 20);
    if limit == Limit::Capacity { options.capacity_bytes(FILE_BYTES) } else { options }
}

fn set_limit(disk: &SimulatedDisk, limit: Limit) {
    if limit != Limit::Capacity {
        disk.file("data").set_faults(Faults { capacity_bytes: Some(FILE_BYTES), ..Faults::default() });
    }
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// A database whose file can hold no more, and how many records its only table has, in full leaves.
fn full(limit: Limit, value: &[u8]) -> (SimulatedDisk, Database, Table, u32) {
    let disk = SimulatedDisk::new(1);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &limited(limit)).unwrap();
    let table = database.create_table("table").unwrap();
    set_limit(&disk, limit);
    let loaded = (FILE_BYTES as usize / (value.len() + 40) * 3 / 4) as u32;
    table.bulk_load((0..loaded).map(|number| (key(number), value))).unwrap();
    let count = (loaded..).find(|number| table.put(key(*number), value).is_err()).unwrap();
    (disk, database, table, count)
}

fn remove(transaction: &Transaction, table: &Table, count: u32, pattern: Pattern) {
    match pattern {
        Pattern::Rest => _ = transaction.remove_range(table, &key(9)[..]..).unwrap(),
        Pattern::Middle => {
            let range = &key(9)[..]..&key(count - 9)[..];
            transaction.remove_range(table, range).unwrap();
        }
        Pattern::Random => {
            let mut random = StdRng::seed_from_u64(5);
            for _ in 0..count {
                transaction.remove(table, key(random.random_range(0..count))).unwrap();
            }
        }
        Pattern::Most => {
            for number in (0..count).filter(|number| number % 100 > 5) {
                transaction.remove(table, key(number)).unwrap();
            }
        }
    }
}

fn assert_whole(database: &Database, count: u32, value: &[u8]) {
    let table = database.table("table").unwrap();
    let found: Vec<(Vec<u8>, Vec<u8>)> = table.range(..).unwrap().map(Result::unwrap).collect();
    assert_eq!(found.len(), count as usize);
    assert!(found.iter().zip(0..).all(|((found, bytes), number)| *found == key(number) && bytes == value));
    assert_clean(database);
}

#[test]
fn what_is_removed_from_a_full_file_can_be_put_back() {
    for (limit, bytes) in [(Limit::Capacity, 190), (Limit::Disk, 190), (Limit::Disk, 700)] {
        let value = vec![7; bytes];
        for pattern in PATTERNS {
            let (_disk, database, table, count) = full(limit, &value);
            let what = format!("{limit:?}, {bytes} bytes, {pattern:?}");
            let transaction = database.begin().unwrap();
            let savepoint = transaction.savepoint();
            remove(&transaction, &table, count, pattern);
            transaction.rollback_to(savepoint).unwrap_or_else(|error| panic!("{what}: {error}"));
            remove(&transaction, &table, count, pattern);
            transaction.rollback().unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_whole(&database, count, &value);
        }
    }
}

#[test]
fn a_database_on_a_full_disk_opens_after_a_crash_in_a_large_removal() {
    for limit in [Limit::Capacity, Limit::Disk] {
        for (number, pattern) in PATTERNS.into_iter().enumerate() {
            let value = [7; 190];
            let (disk, database, table, count) = full(limit, &value);
            let transaction = database.begin().unwrap();
            remove(&transaction, &table, count, pattern);
            database.sync().unwrap();
            let left = if number % 2 == 0 { disk.kill() } else { disk.crash() };
            drop((transaction, table, database));
            set_limit(&left, limit);
            let opened = Database::open_in(Arc::new(left), "data", &limited(limit));
            let database = opened.unwrap_or_else(|error| panic!("{limit:?}, {pattern:?}: {error}"));
            database.finish_recovery().unwrap();
            assert_whole(&database, count, &value);
        }
    }
}

#[test]
fn removals_that_are_committed_make_room_in_a_full_file() {
    for limit in [Limit::Capacity, Limit::Disk] {
        for pattern in PATTERNS {
            let (_disk, database, table, count) = full(limit, &[7; 190]);
            let before = pages(&database);
            let transaction = database.begin().unwrap();
            remove(&transaction, &table, count, pattern);
            transaction.commit().unwrap();
            let (after, left) = (pages(&database), table.count(..).unwrap());
            // Leaves that are two fifths full.
            let expected = before * left / u64::from(count) * 5 / 2 + 16;
            assert!(
                after <= expected,
                "{limit:?}, {pattern:?}: {before} pages, then {after} with {left} of {count}"
            );
            (0..100).for_each(|number| _ = table.put(key(count + number), [9; 190]).unwrap());
            assert_clean(&database);
        }
    }
}

#[test]
fn small_transactions_free_the_pages_of_a_full_file() {
    let (_disk, database, table, count) = full(Limit::Disk, &[7; 190]);
    let before = pages(&database);
    for number in 0..count {
        let transaction = database.begin().unwrap();
        transaction.remove(&table, key(number)).unwrap();
        transaction.commit().unwrap();
    }
    assert!(pages(&database) < before / 20, "{before} pages, then {}", pages(&database));
    assert_clean(&database);
}

#[test]
fn what_was_stored_beside_a_removal_is_taken_back_and_its_pages_too() {
    let (_disk, database, table, count) = full(Limit::Disk, &[7; 190]);
    // Others have made some room.
    (0..count / 4).for_each(|number| _ = table.remove(key(number)).unwrap());
    let before = pages(&database);
    let transaction = database.begin().unwrap();
    let stored = (0..).take_while(|number| transaction.put(&table, key(*number), [8; 190]).is_ok()).count();
    assert!(stored > 100, "{stored}");
    transaction.rollback().unwrap();
    assert!(pages(&database) <= before + 16, "{before} pages, then {}", pages(&database));
    assert_clean(&database);
}

#[test]
fn a_recovery_frees_the_pages_of_what_it_undoes() {
    let (disk, database) = database(1, &options());
    let table = database.create_table("table").unwrap();
    (0..1000).for_each(|number| _ = table.put(key(number * 1000), [7; 190]).unwrap());
    let before = pages(&database);
    let transaction = database.begin().unwrap();
    for number in (0..1_000_000).filter(|number| number % 1000 != 0).step_by(20) {
        transaction.put(&table, key(number), [8; 190]).unwrap();
    }
    database.sync().unwrap();
    assert!(pages(&database) > 10 * before, "{before}");
    let left = disk.kill();
    drop((transaction, table, database));
    let database = Database::open_in(Arc::new(left), "data", &options()).unwrap();
    database.finish_recovery().unwrap();
    assert_eq!(database.table("table").unwrap().count(..).unwrap(), 1000);
    // Leaves that are two fifths full; they were full.
    assert!(pages(&database) <= before * 5 / 2 + 16, "{before} pages, then {}", pages(&database));
    assert_clean(&database);
}
