//! Disks on which the log finds no room: what a checkpoint gives up makes room for it. What keeps the log is named.

use crate::asynchronous::block_on;
use crate::support::options;
use std::{sync::Arc, thread, time::Duration};
use vellum::{BackupOptions, ChangesFrom, Database, Error, ErrorKind, Options, Table, Transaction};
use vellum_vm::{Faults, SimulatedDisk};

fn small() -> Options {
    // A checkpoint is asked for long after the disk is full.
    options().log_segment_bytes(256 << 10).log_buffer_bytes(4 << 20).checkpoint_log_bytes(1 << 30)
}

fn key(number: u32) -> [u8; 4] {
    (number % 500).to_be_bytes()
}

/// A database with some records, on a disk that has so little room left that the log gets no more segments soon.
fn filled(options: &Options) -> (Arc<SimulatedDisk>, Database, Table) {
    let disk = Arc::new(SimulatedDisk::new(1));
    let database = Database::create_in(disk.clone(), "data", options).unwrap();
    let table = database.create_table("table").unwrap();
    for number in 0..3000 {
        table.put(key(number), [number as u8; 1000]).unwrap();
    }
    disk.leave_free(300_000);
    (disk, database, table)
}

fn check(disk: Arc<SimulatedDisk>, database: Database, table: Table, options: &Options) {
    let expected: Vec<_> = table.range(..).unwrap().map(Result::unwrap).collect();
    drop(table);
    database.close().unwrap();
    let database = Database::open_in(disk, "data", options).unwrap();
    assert!(database.recovery().is_none() && database.verify(|_| {}).is_clean());
    let found: Vec<_> = database.table("table").unwrap().range(..).unwrap().map(Result::unwrap).collect();
    assert!(found == expected);
}

#[test]
fn changes_go_on_in_what_a_checkpoint_gives_up() {
    for in_background in [false, true] {
        let options = small().background_checkpoints(in_background);
        let (disk, database, table) = filled(&options);
        for number in 0..30_000_u32 {
            let value = number.to_le_bytes().repeat(250);
            let put = table.put(key(number), value).map(drop);
            put.unwrap_or_else(|error| panic!("change {number} of 1000 bytes: {error}"));
            if number % 5000 == 0 {
                database
                    .run(|transaction| transaction.put(&table, key(number), "in a transaction").map(drop))
                    .unwrap();
            }
        }
        check(disk, database, table, &options);
    }
}

/// What is refused says that the disk is full, how much log there is, and what keeps it.
fn assert_kept_by(refused: &Error, keeper: &str) {
    let text = refused.to_string();
    assert_eq!(refused.kind(), ErrorKind::OutOfSpace, "{text}");
    assert!(text.contains("No space left") && text.contains("the log holds"), "{text}");
    assert!(text.contains(keeper), "{text}");
}

/// Changes records until that is refused.
fn fill(table: &Table) -> Error {
    (0..100_000)
        .find_map(|number| table.put(key(number), [number as u8; 1000]).err())
        .expect("the disk is full")
}

/// Does something again that conflicts with what another thread does.
fn again<T>(mut change: impl FnMut() -> vellum::Result<T>) -> T {
    loop {
        match change() {
            Err(error) if error.kind() == ErrorKind::Conflict => {}
            done => return done.unwrap(),
        }
    }
}

/// Some threads change records of their own, so many times each.
fn change_in_many_ways(database: &Database, table: &Table, count: u32) {
    thread::scope(|scope| {
        for thread in 0..4_u32 {
            scope.spawn(move || {
                for number in 0..count {
                    let own = |number: u32| [thread, number % 300].map(u32::to_be_bytes).concat();
                    match number % 6 {
                        0 => {
                            let put = |transaction: &Transaction| {
                                for number in number..number + 10 {
                                    transaction.put(table, own(number), [1; 1500])?;
                                }
                                Ok(())
                            };
                            database.run(put).unwrap();
                        }
                        1 => drop(again(|| table.remove(own(number)))),
                        2 => drop(again(|| table.put(own(number), vec![2; 30_000]))),
                        3 => drop(again(|| block_on(table.put_async(own(number), vec![3; 900])))),
                        4 => {
                            let entries: Vec<_> =
                                (number..number + 20).map(|number| (own(number), [4; 500])).collect();
                            again(|| {
                                table.multi_put(&entries).into_iter().collect::<vellum::Result<Vec<_>>>()
                            });
                        }
                        _ => {
                            let transaction = database.begin().unwrap();
                            transaction.put(table, own(number), [5; 2000]).unwrap();
                            transaction.rollback().unwrap();
                        }
                    }
                }
            });
        }
    });
}

#[test]
fn many_threads_go_on_with_all_kinds_of_changes() {
    let options = small();
    let (disk, database, table) = filled(&options);
    disk.heal();
    // All that there will be at once has its place then, and what is freed late too: nothing is as long as there is a transaction.
    // A thread that the system does not run for a while holds a snapshot as the second one: each record has another version.
    let transaction = database.begin().unwrap();
    change_in_many_ways(&database, &table, 300);
    let second = database.begin().unwrap();
    change_in_many_ways(&database, &table, 300);
    transaction.rollback().unwrap();
    second.rollback().unwrap();
    disk.leave_free(1 << 20);
    let appended = || database.log_state().unwrap().appended_bytes;
    let before = appended();
    change_in_many_ways(&database, &table, 1500);
    let appended = appended() - before;
    assert!(appended > 24 << 20, "only {appended} bytes of log");
    check(disk, database, table, &options);
}

#[test]
fn a_transaction_that_keeps_the_log_is_named_and_can_always_be_rolled_back() {
    let options = small();
    let (disk, database, table) = filled(&options);
    let transaction = database.begin().unwrap();
    let line = line!() - 1;
    transaction.put(&table, "held", "value").unwrap();
    let refused = fill(&table);
    assert_kept_by(&refused, &format!("full_log.rs:{line}"));
    // Nothing is waited for, or written, in vain.
    // A backup needs no room in the log.
    let elsewhere = Arc::new(SimulatedDisk::new(3));
    database.backup_in(elsewhere, "backup", BackupOptions::default()).unwrap();
    let written = disk.counts().bytes_written;
    assert_kept_by(&table.put("other", "value").unwrap_err(), "full_log.rs");
    assert_eq!(disk.counts().bytes_written, written);
    transaction.rollback().unwrap();
    for number in 0..10_000 {
        table.put(key(number), [7; 1000]).unwrap();
    }
    assert_eq!(table.get("held").unwrap(), None);
    check(disk, database, table, &options);
}

#[test]
fn an_archive_that_keeps_the_log_is_named_and_waited_for() {
    let archive = Arc::new(SimulatedDisk::new(2));
    let options = small().log_archive_in(archive.clone());
    let (disk, database, table) = filled(&options);
    for number in 0..10_000 {
        table.put(key(number), [7; 1000]).unwrap();
    }
    archive.leave_free(0);
    assert_kept_by(&fill(&table), "the archive");
    archive.heal();
    for number in 0..10_000 {
        table.put(key(number), [8; 1000]).unwrap();
    }
    check(disk, database, table, &options);
}

#[test]
fn a_feed_that_keeps_the_log_is_named() {
    let options = small();
    let (disk, database, table) = filled(&options);
    let feed = database.changes(ChangesFrom::Now).unwrap();
    assert_kept_by(&fill(&table), "a feed of changes");
    drop(feed);
    for number in 0..10_000 {
        table.put(key(number), [8; 1000]).unwrap();
    }
    check(disk, database, table, &options);
}

#[test]
fn a_checkpoint_that_cannot_be_taken_is_named_and_taken_later() {
    let options = small();
    let (disk, database, table) = filled(&options);
    disk.file("data").set_faults(Faults { write_error: 1.0, ..Faults::default() });
    assert_kept_by(&fill(&table), "no checkpoint could be taken");
    disk.file("data").set_faults(Faults::default());
    for number in 0..10_000 {
        table.put(key(number), [8; 1000]).unwrap();
    }
    check(disk, database, table, &options);
}

#[test]
fn data_finds_the_room_that_the_log_keeps_for_later() {
    // A spare segment is kept for each that was begun from one checkpoint to the next.
    let segments = 40_u64;
    let options = small();
    let (disk, database, table) = filled(&options);
    disk.heal();
    for _ in 0..2 {
        let until = database.log_state().unwrap().appended_bytes + segments * (256 << 10);
        let mut number = 0;
        while database.log_state().unwrap().appended_bytes < until {
            table.put(key(number), number.to_le_bytes().repeat(250)).unwrap();
            number += 1;
        }
        database.checkpoint().unwrap();
    }
    disk.leave_free(0);
    let fill = |first: u32| {
        let put =
            |number: &u32| table.put([2_u32, *number].map(u32::to_be_bytes).concat(), [2; 1000]).is_ok();
        (first..).take_while(put).count() as u64
    };
    let stored = fill(0);
    // A record needs about as much of the log.
    assert!(stored * 1000 > segments * (256 << 10) / 4, "only {stored} records");
    // What is there can still be changed.
    for number in 0..5000 {
        table.put(key(number), [3; 1000]).unwrap();
    }
    disk.heal();
    check(disk, database, table, &options);
}

#[test]
fn data_finds_the_room_of_the_log_that_a_checkpoint_gives_up() {
    let log_bytes = 40 * (256_u64 << 10);
    let options = small().background_checkpoints(true);
    let (disk, database, table) = filled(&options);
    disk.heal();
    let until = database.log_state().unwrap().appended_bytes + log_bytes;
    for number in (0..5000).cycle() {
        table.put(key(number), [4; 1000]).unwrap();
        if database.log_state().unwrap().appended_bytes >= until {
            break;
        }
    }
    disk.leave_free(0);
    // What is refused asks for a checkpoint, and finds room a moment later.
    let put = |number: u32| table.put([2_u32, number].map(u32::to_be_bytes).concat(), [2; 1000]).is_ok();
    let puts_soon = |number: &u32| {
        (0..100).any(|round| {
            thread::sleep(Duration::from_millis(if round == 0 { 0 } else { 20 }));
            put(*number)
        })
    };
    let stored = (0..).take_while(puts_soon).count() as u64;
    assert!(stored * 1000 > log_bytes / 4, "only {stored} records");
    disk.heal();
    check(disk, database, table, &options);
}

#[test]
fn what_fills_a_disk_can_be_removed_on_it() {
    for free in [0_u64, 50_000, 1 << 20, 9 << 20, 17 << 20] {
        let options = small();
        let (disk, database, table) = filled(&options);
        disk.leave_free(free);
        let fill = || {
            let full = (0..100_000_u32).find_map(|number| {
                let put = table.insert(number.wrapping_mul(0x9e37_79b1).to_be_bytes(), [1; 1000]);
                put.err().map(|error| (number, error))
            });
            full.expect("the disk becomes full")
        };
        let (first, refused) = fill();
        assert_eq!(refused.kind(), ErrorKind::OutOfSpace, "{refused}");
        for number in 0..first {
            let removed = table.remove(number.wrapping_mul(0x9e37_79b1).to_be_bytes());
            removed.unwrap_or_else(|error| panic!("{free} left, {number} of {first} removed: {error}"));
        }
        let (second, _) = fill();
        assert!(second > first / 2, "{first}, then {second} with {free} left");
        disk.heal();
        check(disk, database, table, &options);
    }
}

#[test]
fn a_transaction_that_has_filled_the_disk_can_be_undone_on_it() {
    for (free, is_killed) in
        [(0_u64, false), (2 << 20, true), (16 << 20, false), (40 << 20, true), (40 << 20, false)]
    {
        let options = small();
        let (disk, database, table) = filled(&options);
        disk.leave_free(free);
        let expected: Vec<_> = table.range(..).unwrap().map(Result::unwrap).collect();
        let transaction = database.begin().unwrap();
        let change = |number: u32| transaction.put(&table, key(number), number.to_le_bytes().repeat(250));
        let refused = (0..100_000_u32).find_map(|number| change(number).err());
        assert_eq!(refused.unwrap().kind(), ErrorKind::OutOfSpace);
        // From now on the first change of each page is logged with the page.
        database.checkpoint().unwrap();
        if is_killed {
            let killed = disk.kill();
            killed.leave_free(0);
            let killed = Arc::new(killed);
            let opened = Database::open_in(killed.clone(), "data", &options).unwrap();
            assert!(opened.recovery().unwrap().undone_changes > 0);
            let table = opened.table("table").unwrap();
            assert!(table.range(..).unwrap().map(Result::unwrap).eq(expected.iter().cloned()), "{free} left");
            table.put(key(0), &expected[0].1).unwrap();
            killed.heal();
            check(killed, opened, table, &options);
        }
        transaction.rollback().unwrap();
        assert!(table.range(..).unwrap().map(Result::unwrap).eq(expected), "{free} left");
        for number in 0..3000 {
            table.put(key(number), [number as u8; 1000]).unwrap();
        }
        disk.heal();
        check(disk, database, table, &options);
    }
}

#[test]
fn what_is_refused_on_a_full_disk_takes_no_room_of_the_log() {
    let (disk, database, table) = filled(&small());
    let open = database.begin().unwrap();
    open.put(&table, "key", "open").unwrap();
    disk.leave_free(0);
    fill(&table);
    for attempt in 0..100_000 {
        let transaction = database.begin().unwrap();
        match transaction.put(&table, key(attempt), [1; 1000]) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::OutOfSpace, "attempt {attempt}: {error}"),
            Ok(_) => transaction.rollback().unwrap(),
        }
    }
    open.rollback().unwrap_or_else(|error| panic!("{error}"));
    database.sync().unwrap_or_else(|error| panic!("{error}"));
    assert!(table.get("key").unwrap().is_none());
}
