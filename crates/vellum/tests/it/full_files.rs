//! Databases that are full: they can be checkpointed, closed, opened after a crash, and records can be removed.

use crate::support::options;
use std::sync::Arc;
use vellum::{Database, ErrorKind, Options, Table};
use vellum_vm::SimulatedDisk;

/// What a database is full of.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Limit {
    Disk,
    Capacity,
}

/// How a round ends.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Ending {
    None,
    Close,
    Kill,
    Crash,
}

const CAPACITY: u64 = 300 * 4096;

fn limited(limit: Limit) -> Options {
    // The segments are smaller than the buffer, for which the log has some of them at any time.
    let options = options().log_segment_bytes(256 << 10).log_buffer_bytes(4 << 20);
    if limit == Limit::Capacity { options.capacity_bytes(CAPACITY) } else { options }
}

/// Adds records until there is no room, and returns how many there were.
fn fill(table: &Table, next: &mut u32) -> u32 {
    let first = *next;
    loop {
        match table.insert(next.to_be_bytes(), [*next as u8; 900]) {
            Ok(inserted) => assert!(inserted),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::OutOfSpace, "{error}");
                return *next - first;
            }
        }
        *next += 1;
    }
}

#[test]
fn a_full_database_goes_on() {
    for (limit, endings) in [
        (Limit::Disk, &[Ending::Close, Ending::Kill][..]),
        (Limit::Capacity, &[Ending::None, Ending::Close, Ending::Crash]),
    ] {
        for ending in endings.iter().copied() {
            let mut disk = Arc::new(SimulatedDisk::new(1));
            let mut database = Database::create_in(disk.clone(), "data", &limited(limit)).unwrap();
            let mut table = database.create_table("table").unwrap();
            let (mut next, mut first) = (0, 0);
            if limit == Limit::Disk {
                table.put([], []).unwrap();
                disk.leave_free(6 << 20);
            }
            for round in 0..2 {
                let what = format!("{limit:?}, {ending:?}, round {round}");
                for _ in 0..2 {
                    fill(&table, &mut next);
                    database.checkpoint().unwrap_or_else(|error| panic!("{what}: {error}"));
                }
                fill(&table, &mut next);
                assert!(database.verify(|_| {}).is_clean(), "{what}");
                if ending != Ending::None {
                    database.sync().unwrap();
                    let left = match ending {
                        Ending::Kill => disk.kill(),
                        Ending::Crash => disk.crash(),
                        _ => (*disk).clone(),
                    };
                    drop(table);
                    if ending == Ending::Close {
                        database.close().unwrap_or_else(|error| panic!("{what}: {error}"));
                    } else {
                        drop(database);
                        if limit == Limit::Disk {
                            left.leave_free(0);
                        }
                    }
                    disk = Arc::new(left);
                    let opened = Database::open_in(disk.clone(), "data", &limited(limit));
                    database = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
                    table = database.table("table").unwrap();
                    assert!(database.verify(|_| {}).is_clean(), "{what}");
                    fill(&table, &mut next);
                }
                let count = (next - first) / 3;
                for number in first..first + count {
                    let removed = table.remove(number.to_be_bytes());
                    assert!(removed.unwrap_or_else(|error| panic!("{what}: {error}")), "{what}");
                }
                first += count;
                database.checkpoint().unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(fill(&table, &mut next) > count / 2, "{what}");
                assert_eq!(table.count(first.to_be_bytes()..).unwrap(), u64::from(next - first));
            }
            drop(table);
            database.close().unwrap();
            let database = Database::open_in(disk, "data", &limited(limit)).unwrap();
            assert!(database.verify(|_| {}).is_clean());
        }
    }
}

/// A table is cleared where there is no page left for a new tree: its records are removed instead.
#[test]
fn a_table_can_be_cleared_although_the_file_is_full() {
    let options = limited(Limit::Capacity);
    let database = Database::create_in(Arc::new(SimulatedDisk::new(2)), "data", &options).unwrap();
    let table = database.create_table("table").unwrap();
    let mut next = 0;
    for _ in 0..2 {
        fill(&table, &mut next);
        database.checkpoint().unwrap();
    }
    fill(&table, &mut next);
    database.clear_table("table").unwrap();
    assert_eq!(table.count(..).unwrap(), 0);
    assert!(database.verify(|_| {}).is_clean());
    database.checkpoint().unwrap();
    let again = fill(&table, &mut next);
    assert!(again > next / 3, "{again} of {next}");
    // In a transaction, and taken back.
    let transaction = database.begin().unwrap();
    transaction.clear_table("table").unwrap();
    assert!(transaction.first(&table).unwrap().is_none());
    transaction.rollback().unwrap();
    assert_eq!(table.count(..).unwrap(), u64::from(again));
    let transaction = database.begin().unwrap();
    transaction.clear_table("table").unwrap();
    transaction.commit().unwrap();
    assert_eq!(table.count(..).unwrap(), 0);
    assert!(database.verify(|_| {}).is_clean());
}
