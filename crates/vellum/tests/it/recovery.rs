//! Databases that were not closed.

use crate::support::options;
use std::sync::Arc;
use vellum::{Database, Durability, Error, ErrorKind, Options};
use vellum_vm::{CrashModel, Directory, Faults, FileOperation, SimulatedDisk};

fn key(number: u32) -> [u8; 4] {
    number.wrapping_mul(0x9e37_79b1).to_be_bytes()
}

fn value(number: u32) -> Vec<u8> {
    let length = if number.is_multiple_of(97) { 5000 } else { number as usize % 150 };
    vec![number as u8; length]
}

#[test]
fn what_was_done_is_there_after_a_crash() {
    for seed in 0..6 {
        let disk = SimulatedDisk::new(seed);
        let database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
        let table = database.create_table("table").unwrap();
        for number in 0..3000 {
            table.put(key(number), value(number)).unwrap();
            match (number % 5, number % 1000) {
                (4, _) => assert!(table.remove(key(number - 2)).unwrap()),
                (_, 700) => database.checkpoint().unwrap(),
                _ => {}
            }
        }
        let crashed = disk.crash();
        drop((table, database));
        let database = Database::open_in(Arc::new(crashed.clone()), "data", &options()).unwrap();
        let recovery = database.recovery().unwrap();
        assert!(recovery.records > 100, "{recovery:?}");
        let table = database.table("table").unwrap();
        for number in 0..3000 {
            let expected = (number % 5 != 2).then(|| value(number));
            assert_eq!(table.get(key(number)).unwrap(), expected, "{number} of seed {seed}");
        }
        let report = database.verify(|_| {});
        assert!(report.is_clean(), "seed {seed}: {:?}", report.problems);
        drop(table);
        database.close().unwrap();
        let database = Database::open_in(Arc::new(crashed), "data", &options()).unwrap();
        assert!(database.recovery().is_none());
        assert!(database.verify(|_| {}).is_clean());
    }
}

#[test]
fn a_recovery_tells_how_much_log_there_was() {
    let disk = SimulatedDisk::new(9);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
    let table = database.create_table("table").unwrap();
    database.checkpoint().unwrap();
    let before = database.log_state().unwrap().log_bytes;
    for number in 0..500 {
        table.put(key(number), value(number)).unwrap();
    }
    let written = database.log_state().unwrap().log_bytes - before;
    let killed = Arc::new(disk.kill());
    drop((table, database));
    let database = Database::open_in(killed, "data", &options()).unwrap();
    let told = database.recovery().unwrap().log_bytes;
    // There may be a record of what the checkpoint did.
    assert!((written..written + 1024).contains(&told), "{told} of {written}");
}

#[test]
fn what_was_recovered_is_recovered_again_until_there_is_a_checkpoint() {
    for seed in 0..4 {
        let mut disk = SimulatedDisk::new(seed);
        let mut database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
        database.create_table("table").unwrap();
        let mut told = 0;
        for round in 0..5 {
            let table = database.table("table").unwrap();
            for number in 0..200 {
                table.put(key(round * 200 + number), value(number)).unwrap();
            }
            // Nobody commits this, and the next recovery undoes it.
            let open = database.begin().unwrap();
            open.put(&table, key(0), "never committed").unwrap();
            table.put(key(u32::MAX), round.to_string()).unwrap();
            disk = disk.crash();
            drop(open);
            drop((table, database));
            database = Database::open_in(Arc::new(disk.clone()), "data", &options()).unwrap();
            let recovery = database.recovery().unwrap();
            assert!(recovery.log_bytes > told, "round {round}: {recovery:?} after {told}");
            told = recovery.log_bytes;
            let table = database.table("table").unwrap();
            for number in 0..(round + 1) * 200 {
                assert_eq!(table.get(key(number)).unwrap(), Some(value(number % 200)), "{number} of {round}");
            }
            assert_eq!(table.get(key(u32::MAX)).unwrap(), Some(round.to_string().into_bytes()));
            let report = database.verify(|_| {});
            assert!(report.is_clean(), "seed {seed}, round {round}: {:?}", report.problems);
        }
        database.checkpoint().unwrap();
        drop(database);
        let database = Database::open_in(Arc::new(disk.crash()), "data", &options()).unwrap();
        assert!(database.recovery().is_none_or(|recovery| recovery.log_bytes < told / 10));
        assert!(database.verify(|_| {}).is_clean());
    }
}

#[test]
fn after_a_recovery_a_checkpoint_is_taken_in_the_background_or_if_there_is_much_log() {
    let disk = SimulatedDisk::new(3);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
    let table = database.create_table("table").unwrap();
    for number in 0..2000 {
        table.put(key(number), value(number)).unwrap();
    }
    let much = database.log_state().unwrap().log_bytes;
    let killed = disk.kill();
    drop((table, database));
    let log_bytes = |database: &Database| database.log_state().unwrap().log_bytes;

    let database = Database::open_in(Arc::new(killed.kill()), "data", &options()).unwrap();
    assert!(log_bytes(&database) >= much, "{} of {much}", log_bytes(&database));
    drop(database);

    let is_too_much = options().checkpoint_log_bytes(much / 2);
    let database = Database::open_in(Arc::new(killed.kill()), "data", &is_too_much).unwrap();
    assert!(log_bytes(&database) < much / 10, "{} of {much}", log_bytes(&database));
    drop(database);

    let background = options().background_checkpoints(true);
    let database = Database::open_in(Arc::new(killed.kill()), "data", &background).unwrap();
    let begun = std::time::Instant::now();
    while log_bytes(&database) >= much / 10 {
        assert!(begun.elapsed().as_secs() < 60, "{} of {much}", log_bytes(&database));
        std::thread::yield_now();
    }
    assert!(database.verify(|_| {}).is_clean());
}

#[test]
fn a_checkpoint_that_the_power_takes_back_is_one_that_nobody_has_relied_on() {
    for failing in 1..12 {
        let disk = SimulatedDisk::new(failing);
        let database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
        let table = database.create_table("table").unwrap();
        for number in 0..300 {
            table.put(key(number), value(number)).unwrap();
        }
        database.checkpoint().unwrap();
        table.put(key(0), "changed").unwrap();
        disk.fail_from_of(FileOperation::Sync, failing);
        let _ = database.checkpoint();
        // What was written is there, and not durable.
        let killed = disk.kill();
        disk.fail_from(1);
        drop((table, database));
        let database = Database::open_in(Arc::new(killed.clone()), "data", &options()).unwrap();
        // The place of the map before is free if the checkpoint counts.
        for number in 0..20 {
            let other = database.create_table(&format!("table {number}")).unwrap();
            // No large one, for which the file is made durable.
            other.put(key(number), "value").unwrap();
        }
        let crashed = killed.crash_with(CrashModel::LoseAll);
        drop(database);
        let database = Database::open_in(Arc::new(crashed), "data", &options()).unwrap();
        let report = database.verify(|_| {});
        assert!(report.is_clean(), "sync {failing}: {:?}", report.problems);
        assert_eq!(report.tables.len(), 21, "sync {failing}");
    }
}

/// A pool that has room for the log of some thousand changes.
fn roomy() -> Options {
    options().pool_bytes(8 << 20)
}

/// A database of a thousand records, all of which were changed after its last checkpoint, and a record of each fifth key removed; not closed.
fn changed(seed: u64) -> SimulatedDisk {
    let disk = SimulatedDisk::new(seed);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &roomy()).unwrap();
    let table = database.create_table("table").unwrap();
    for number in 0..1000 {
        table.put(key(number), value(number + 1)).unwrap();
    }
    database.checkpoint().unwrap();
    for number in 0..1000 {
        table.put(key(number), value(number)).unwrap();
        if number % 5 == 4 {
            table.remove(key(number)).unwrap();
        }
    }
    disk.kill()
}

fn check_changed(database: &Database) {
    let table = database.table("table").unwrap();
    for number in 0..1000 {
        let expected = (number % 5 != 4).then(|| value(number));
        assert_eq!(table.get(key(number)).unwrap(), expected, "{number}");
    }
}

#[test]
fn pages_are_redone_when_they_are_read_and_by_a_checkpoint() {
    let killed = changed(1);
    let open = || Database::open_in(Arc::new(killed.kill()), "data", &roomy()).unwrap();
    let database = open();
    assert!(database.is_recovering());
    check_changed(&database);
    assert!(database.verify(|_| {}).is_clean());
    database.close().unwrap();

    let database = open();
    let read = database.statistics().pages_resident;
    database.finish_recovery().unwrap();
    assert!(!database.is_recovering() && database.statistics().pages_resident > read);
    check_changed(&database);

    let disk = killed.kill();
    let database = Database::open_in(Arc::new(disk.clone()), "data", &roomy()).unwrap();
    database.checkpoint().unwrap();
    assert!(!database.is_recovering());
    let disk = disk.kill();
    drop(database);
    let database = Database::open_in(Arc::new(disk), "data", &roomy()).unwrap();
    assert!(database.recovery().is_none_or(|recovery| recovery.records < 10));
    check_changed(&database);
}

#[test]
fn what_is_changed_before_all_is_redone_is_there_after_the_next_crash() {
    for seed in 0..8 {
        let disk = changed(seed);
        let database = Database::open_in(Arc::new(disk.clone()), "data", &roomy()).unwrap();
        let table = database.table("table").unwrap();
        // Pages are freed, and allocated anew, of which the log tells something of their life before.
        for number in 0..1000 {
            if number / 100 % 2 == 0 {
                table.remove(key(number)).unwrap();
            }
        }
        let other = database.create_table("other").unwrap();
        for number in 0..500 {
            other.put(key(number), value(number + 7)).unwrap();
        }
        let crashed = if seed % 2 == 0 { disk.crash() } else { disk.kill() };
        drop((table, other, database));
        let database = Database::open_in(Arc::new(crashed), "data", &roomy()).unwrap();
        let (table, other) = (database.table("table").unwrap(), database.table("other").unwrap());
        for number in 0..1000 {
            let is_left = number / 100 % 2 == 1 && number % 5 != 4;
            assert_eq!(table.get(key(number)).unwrap(), is_left.then(|| value(number)), "{number} of {seed}");
        }
        for number in 0..500 {
            assert_eq!(other.get(key(number)).unwrap(), Some(value(number + 7)), "{number} of {seed}");
        }
        let report = database.verify(|_| {});
        assert!(report.is_clean(), "seed {seed}: {:?}", report.problems);
    }
}

#[test]
fn a_log_that_memory_has_no_room_for_is_done_again_before_the_database_opens() {
    let disk = SimulatedDisk::new(5);
    let large = options().pool_bytes(8 << 20).checkpoint_log_bytes(1 << 30).durability(Durability::Deferred);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &large).unwrap();
    let table = database.create_table("table").unwrap();
    for number in 0..30_000 {
        table.put(key(number), vec![number as u8; 100]).unwrap();
    }
    database.sync().unwrap();
    let killed = disk.kill();
    drop((table, database));
    for (pool, is_left) in [(1 << 20, false), (64 << 20, true)] {
        let options = large.clone().pool_bytes(pool);
        let database = Database::open_in(Arc::new(killed.kill()), "data", &options).unwrap();
        assert_eq!(database.is_recovering(), is_left, "a pool of {pool} bytes");
        let table = database.table("table").unwrap();
        for number in 0..30_000 {
            assert_eq!(table.get(key(number)).unwrap(), Some(vec![number as u8; 100]), "{number}");
        }
        assert!(database.verify(|_| {}).is_clean());
    }
}

#[test]
fn threads_that_read_at_once_find_all_redone() {
    for seed in 0..4 {
        let database = Database::open_in(Arc::new(changed(seed)), "data", &roomy()).unwrap();
        std::thread::scope(|scope| {
            (0..3).for_each(|_| drop(scope.spawn(|| check_changed(&database))));
            database.checkpoint().unwrap();
        });
        assert!(!database.is_recovering());
        database.close().unwrap();
    }
}

#[test]
fn places_of_a_log_that_nothing_is_needed_of_are_not_used_again() {
    let end = |database: &Database| database.log_state().unwrap().appended_bytes;
    for failing in 1..30 {
        let disk = SimulatedDisk::new(failing);
        let database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
        database.create_table("table").unwrap();
        database.close().unwrap();
        let database = Database::open_in(Arc::new(disk.clone()), "data", &options()).unwrap();
        disk.fail_from(failing);
        let transaction = database.begin().unwrap();
        let _ = database.table("table").and_then(|table| transaction.put(&table, "key", "value"));
        drop(transaction);
        let told = end(&database);
        let left = disk.crash();
        drop(database);
        for _ in 0..3 {
            let database = Database::open_in(Arc::new(left.clone()), "data", &options()).unwrap();
            assert!(end(&database) >= told, "{} after {told}, operation {failing}", end(&database));
            database.close().unwrap();
        }
    }
}

#[test]
fn without_a_log_a_database_that_was_not_closed_is_refused() {
    let disk = SimulatedDisk::new(1);
    let options = options().log(false);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options).unwrap();
    assert!(matches!(database.checkpoint(), Err(Error::WithoutLog)));
    database.create_table("table").unwrap().put("key", "value").unwrap();
    let crashed = disk.crash();
    drop(database);
    let refused = Database::open_in(Arc::new(crashed), "data", &options).unwrap_err();
    assert_eq!(refused.kind(), vellum::ErrorKind::NotClosedCleanly);
}

#[test]
fn a_log_can_be_left_out_for_a_while() {
    let disk: Arc<SimulatedDisk> = Arc::new(SimulatedDisk::new(1));
    for round in 0..6u32 {
        let options = options().log(round % 2 == 0).durability(Durability::Deferred);
        let database = match round {
            0 => Database::create_in(disk.clone(), "data", &options).unwrap(),
            _ => Database::open_in(disk.clone(), "data", &options).unwrap(),
        };
        let table = database.table_or_create("table").unwrap();
        for number in 0..500 {
            table.put(key(number), [&round.to_le_bytes()[..], &[7; 100]].concat()).unwrap();
            table.put(key(round * 10_000 + number), value(number)).unwrap();
        }
        drop(table);
        database.close().unwrap();
    }
    let database = Database::open_in(disk, "data", &options()).unwrap();
    let table = database.table("table").unwrap();
    for number in 500..1000 {
        assert_eq!(table.get(key(number)).unwrap(), None);
    }
    assert_eq!(table.get(key(3)).unwrap().unwrap()[..4], 5u32.to_le_bytes());
    assert!(database.verify(|_| {}).is_clean());
}

#[test]
fn a_log_buffer_too_small_for_a_record_is_refused() {
    for bytes in [0, 8192, 2 << 20, (4 << 20) + 1, 6 << 20] {
        let disk = Arc::new(SimulatedDisk::new(1));
        let refused = Database::create_in(disk, "data", &options().log_buffer_bytes(bytes)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
        assert!(refused.to_string().contains("4194304"), "{refused}");
    }
}

#[test]
fn what_comes_after_a_close_in_place_says_so() {
    let disk = Arc::new(SimulatedDisk::new(1));
    let mut database = Database::create_in(disk.clone(), "data", &options()).unwrap();
    database.create_table("table").unwrap().put("key", "value").unwrap();
    database.close_in_place().unwrap();
    let syncs = disk.counts();
    let table = database.table("table").unwrap();
    assert_eq!(table.get("key").unwrap().as_deref(), Some(&b"value"[..]));
    let refused = table.put("key", "other").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");
    assert!(refused.to_string().contains("has been closed"), "{refused}");
    assert_eq!(
        database.begin().unwrap().put(&table, "key", "other").unwrap_err().kind(),
        ErrorKind::ReadOnly
    );
    drop(table);
    // A second time there is nothing to do.
    database.close().unwrap();
    assert_eq!(disk.counts(), syncs);
    let database = Database::open_in(disk, "data", &options()).unwrap();
    assert!(database.recovery().is_none());
}

#[test]
fn a_full_disk_refuses_changes_with_its_own_kind_and_ends() {
    let disk = Arc::new(SimulatedDisk::new(1));
    let options = options().durability(Durability::Deferred);
    let database = Database::create_in(disk.clone(), "data", &options).unwrap();
    let table = database.create_table("table").unwrap();
    // What it would undo the log keeps.
    let transaction = database.begin().unwrap();
    transaction.put(&table, "held", "value").unwrap();
    // The file need not grow, but the log needs another segment.
    disk.set_faults(Faults { capacity_bytes: Some(600 << 10), ..Faults::default() });
    let refused = (0..200_000).find_map(|number| table.put(key(number % 100), value(number)).err()).unwrap();
    assert_eq!(refused.kind(), ErrorKind::OutOfSpace, "{refused}");
    let failed = database.checkpoint().map_err(|error| error.kind());
    let state = database.log_state().unwrap();
    assert_eq!(state.checkpoint_error.is_some(), failed.is_err(), "{state:?}");
    disk.heal();
    table.put("after", "value").unwrap();
    transaction.commit().unwrap();
    database.checkpoint().unwrap();
    assert_eq!(database.log_state().unwrap().checkpoint_error, None);
    drop(table);
    database.close().unwrap();
}

/// A backup begins with a checkpoint: what it says counts, too.
#[test]
fn the_error_of_a_checkpoint_is_forgotten_when_a_backup_has_taken_one() {
    let mut forgotten = 0;
    for number in 1..20 {
        let disk = Arc::new(SimulatedDisk::new(number));
        let database = Database::create_in(disk.clone(), "data", &options()).unwrap();
        database.create_table("table").unwrap().put("key", "value").unwrap();
        disk.fail_nth_of(FileOperation::Write, number);
        let failed = database.checkpoint().is_err();
        disk.heal();
        let error = || database.log_state().unwrap().checkpoint_error;
        assert_eq!(error().is_some(), failed, "write {number}");
        let target = Arc::new(SimulatedDisk::new(0));
        let backed_up = database.backup_in(target, "backup", vellum::BackupOptions::default());
        assert_eq!(error().is_some(), backed_up.is_err(), "write {number}");
        forgotten += usize::from(failed && backed_up.is_ok());
    }
    assert!(forgotten > 0);
}

#[test]
fn a_transaction_that_could_not_be_rolled_back_is_when_the_disk_works_again() {
    let disk = Arc::new(SimulatedDisk::new(1));
    let options = options().durability(Durability::Deferred);
    let database = Database::create_in(disk.clone(), "data", &options).unwrap();
    let table = database.create_table("table").unwrap();
    let old = |number: u32| vec![number as u8; 1500];
    for number in 0..8000 {
        table.put(key(number), old(number)).unwrap();
    }
    database.checkpoint().unwrap();
    let transaction = database.begin().unwrap();
    for number in 0..2000 {
        transaction.put(&table, key(number), [7; 1500]).unwrap();
    }
    // Most of the pages have left memory.
    disk.fail_from_of(FileOperation::Read, 1);
    let refused = transaction.rollback().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Io, "{refused}");
    assert!(table.put(key(0), "other").is_err());
    disk.heal();
    table.put(key(0), "other").unwrap();
    assert_eq!(table.get(key(0)).unwrap().unwrap(), b"other");
    for number in 1..8000 {
        assert_eq!(table.get(key(number)).unwrap().unwrap(), old(number), "{number}");
    }
    drop(table);
    database.close().unwrap();
    let database = Database::open_in(disk, "data", &options).unwrap();
    assert!(database.recovery().is_none() && database.verify(|_| {}).is_clean());
}

#[test]
fn openings_that_fail_again_and_again_take_no_more_room() {
    let disk = SimulatedDisk::new(1);
    let options = options().durability(Durability::Deferred);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options).unwrap();
    let table = database.create_table("table").unwrap();
    for number in 0..3000 {
        table.put(key(number), value(number)).unwrap();
    }
    database.checkpoint().unwrap();
    // Recovery undoes this, and reads the pages for that.
    let open = database.begin().unwrap();
    for number in 0..300 {
        open.put(&table, key(10 * number), "never committed").unwrap();
    }
    database.sync().unwrap();
    let killed = Arc::new(disk.kill());
    drop((open, table, database));

    let segments = |disk: &SimulatedDisk| {
        let names = Directory::names(disk).unwrap();
        names.iter().filter(|name| name.starts_with("segment-")).count()
    };
    let (before, mut failed) = (segments(&killed), 0);
    for n in 1..60 {
        let disk = Arc::new(killed.kill());
        for _ in 0..20 {
            disk.fail_nth(n);
            let opened = Database::open_in(disk.clone(), "data", &options);
            disk.heal();
            if opened.is_ok() {
                break;
            }
            failed += 1;
            assert!(segments(&disk) <= before + 1, "{} after {before}, operation {n}", segments(&disk));
        }
        let database = Database::open_in(disk, "data", &options).unwrap();
        let table = database.table("table").unwrap();
        assert!((0..3000).all(|number| table.get(key(number)).unwrap() == Some(value(number))), "{n}");
        assert!(database.verify(|_| {}).is_clean(), "{n}");
    }
    assert!(failed > 20, "{failed}");
}

#[test]
fn a_log_that_storage_may_still_need_is_not_removed_by_an_opening_without_one() {
    let (mut without, mut failed) = (0, 0);
    for operation in [FileOperation::Sync, FileOperation::Write] {
        for n in 1..40 {
            let disk = SimulatedDisk::new(n);
            let mut database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
            let table = database.create_table("table").unwrap();
            for number in 0..200 {
                table.put(key(number), value(number)).unwrap();
            }
            drop(table);
            disk.fail_nth_of(operation, n);
            let closed = database.close_in_place();
            let killed = disk.kill();
            disk.fail_from(1);
            drop(database);
            if closed.is_ok() {
                break;
            }
            failed += 1;
            let opened = Database::open_in(Arc::new(killed.clone()), "data", &options().log(false));
            without += usize::from(opened.is_ok());
            drop(opened);
            let crashed = Arc::new(killed.crash_with(CrashModel::LoseAll));
            let database = Database::open_in(crashed, "data", &options()).unwrap();
            let table = database.table("table").unwrap();
            assert!((0..200).all(|number| table.get(key(number)).unwrap() == Some(value(number))), "{n}");
        }
    }
    assert!(without > 0 && failed > without, "{without} of {failed}");
}
