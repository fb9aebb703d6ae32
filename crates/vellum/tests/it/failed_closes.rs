//! Closing that fails, after which the database is used on, and then a crash.

use crate::support::{assert_clean, options};
use std::sync::Arc;
use vellum::{Database, Options};
use vellum_vm::{CrashModel, FileOperation, SimulatedDisk};

fn open(disk: &SimulatedDisk, options: &Options) -> Database {
    Database::open_in(Arc::new(disk.clone()), "data", options).unwrap()
}

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// Runs `after` on a database whose closing has failed at each of its writes, and on one that was closed. `begin`
/// changes something before that.
fn at_each_write(
    begun: &SimulatedDisk,
    options: &Options,
    begin: impl Fn(&Database),
    mut after: impl FnMut(u64, SimulatedDisk, Database),
) {
    for number in 1.. {
        let disk = begun.kill();
        let mut database = open(&disk, options);
        begin(&database);
        let before = disk.counts().of(FileOperation::Write);
        disk.fail_nth_of(FileOperation::Write, number);
        let closed = database.close_in_place();
        let is_over = disk.counts().of(FileOperation::Write) < before + number;
        disk.heal();
        if is_over {
            closed.unwrap();
            assert!(number > 3, "closing wrote {number} times");
            return;
        }
        if closed.is_err() {
            after(number, disk, database);
        }
    }
}

/// The space map of the failed closing covers fewer pages than the one before, and has fewer pages itself.
#[test]
fn a_map_that_has_become_shorter_can_be_read_after_a_crash() {
    let (disk, options) = (SimulatedDisk::new(1), options());
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options).unwrap();
    let table = database.create_table("table").unwrap();
    table.put("small", "value").unwrap();
    table.put("place", vec![1; 100_000]).unwrap();
    // A page of the map is for some 16,000 pages.
    let large: Vec<_> = (0..18).map(|number| (key(number), vec![number as u8; 4 << 20])).collect();
    large.iter().for_each(|(key, value)| _ = table.put(key, value).unwrap());
    // The map of the first closing lies before them, and does not keep the file long.
    database.checkpoint().unwrap();
    table.remove("place").unwrap();
    database.checkpoint().unwrap();
    drop(table);
    database.close().unwrap();
    let remove = |database: &Database| {
        let table = database.table("table").unwrap();
        large.iter().skip(1).for_each(|(key, _)| assert!(table.remove(key).unwrap()));
        database.sync().unwrap();
    };
    let mut failed = 0;
    at_each_write(&disk, &options, remove, |number, disk, database| {
        let table = database.table("table").unwrap();
        // Marks the file as in use again.
        table.put("small", "other").unwrap();
        let database = open(&disk.kill(), &options);
        let table = database.table("table").unwrap();
        assert_eq!(table.get("small").unwrap().as_deref(), Some(&b"other"[..]), "after write {number}");
        assert_eq!(table.count(..).unwrap(), 2);
        drop(table);
        assert_clean(&database);
        failed += 1;
    });
    assert!(failed > 1, "{failed}");
}

/// Recovery begins where the failed closing has written everything: pages that change later need images after that.
#[test]
fn pages_that_change_after_a_failed_closing_can_be_torn() {
    let (disk, options) = (SimulatedDisk::new(2), options());
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options).unwrap();
    let table = database.create_table("table").unwrap();
    let value = |number: u64, version: u8| vec![version ^ number as u8; 300];
    (0..4_000).for_each(|number| _ = table.put(key(number), value(number, 1)).unwrap());
    drop(table);
    database.close().unwrap();
    let change = |database: &Database, version: u8| {
        let table = database.table("table").unwrap();
        (0..4_000).step_by(13).for_each(|number| _ = table.put(key(number), value(number, version)).unwrap());
    };
    let mut failed = 0;
    at_each_write(
        &disk,
        &options,
        |database| change(database, 2),
        |number, disk, database| {
            if number % 3 > 0 && number > 12 {
                return;
            }
            // More than the pool has, so that most is written, and nothing of it synced.
            change(&database, 3);
            let table = database.table("table").unwrap();
            assert_eq!(table.count(..).unwrap(), 4_000);
            for _ in 0..3 {
                let database = open(&disk.crash_with(CrashModel::Tear), &options);
                let table = database.table("table").unwrap();
                for number in 0..4_000 {
                    let version = if number % 13 == 0 { 3 } else { 1 };
                    assert_eq!(table.get(key(number)).unwrap(), Some(value(number, version)), "{number}");
                }
            }
            failed += 1;
        },
    );
    assert!(failed > 1, "{failed}");
}
