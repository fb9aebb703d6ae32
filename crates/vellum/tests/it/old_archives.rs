//! An older copy of a database is put back, and its archive has the log of what was done after the copy.

use crate::support::options;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use vellum::{
    ArchiveState, Backup, BackupOptions, ChangesFrom, Database, ErrorKind, Options, RestoreOptions,
};
use vellum_vm::{Directory, SimulatedDisk};

fn archived(archive: &SimulatedDisk) -> Options {
    options().log_segment_bytes(64 << 10).log_archive_in(Arc::new(archive.clone()))
}

fn open(disk: &SimulatedDisk, options: &Options) -> Database {
    Database::open_in(Arc::new(disk.clone()), "data", options).unwrap()
}

fn write(database: &Database, value: &str, count: u32) {
    let table = database.table("table").or_else(|_| database.create_table("table")).unwrap();
    for key in 0..count {
        table.put(key.to_be_bytes(), value).unwrap();
    }
}

fn state(database: &Database) -> ArchiveState {
    database.log_state().unwrap().archive.unwrap()
}

/// The value of a key in what is restored of a backup and an archive.
fn restored(backups: &SimulatedDisk, name: &str, archive: &SimulatedDisk) -> Vec<u8> {
    let disk: Arc<dyn Directory> = Arc::new(SimulatedDisk::new(9));
    let how = RestoreOptions::default().archive_in(Arc::new(archive.clone()));
    let backup = Backup::open_in(backups, name).unwrap();
    Backup::restore_in(&[backup], disk.clone(), "restored", &options(), how).unwrap();
    let database = Database::open_in(disk, "restored", &options()).unwrap();
    database.table("table").unwrap().get(0_u32.to_be_bytes()).unwrap().unwrap()
}

#[test]
fn an_older_copy_does_not_write_to_the_archive_of_what_was_done_since() {
    // It was copied when it was closed, or crashed; it writes less than was written since, or more.
    for (is_closed, count) in [(true, 20), (true, 3000), (false, 20), (false, 3000)] {
        let what = format!("closed {is_closed}, {count}");
        let (disk, archive, backups) = (SimulatedDisk::new(1), SimulatedDisk::new(2), SimulatedDisk::new(3));
        let database = Database::create_in(Arc::new(disk.clone()), "data", &archived(&archive)).unwrap();
        write(&database, "before", 10);
        database.backup_in(Arc::new(backups.clone()), "first", BackupOptions::default()).unwrap();
        let copy = if is_closed {
            database.close().unwrap();
            disk.crash()
        } else {
            database.archive_log().unwrap();
            disk.crash()
        };
        let database = open(&if is_closed { disk } else { disk.crash() }, &archived(&archive));
        write(&database, "old", 1000);
        database.archive_log().unwrap();
        drop(database);
        let parts = archive.names().unwrap();

        let database = open(&copy, &archived(&archive));
        write(&database, "new", count);
        let error = database.archive_log().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{what}: {error}");
        assert!(error.to_string().contains("name another directory"), "{what}: {error}");
        let told = state(&database);
        assert!(told.error.is_some_and(|error| error.contains("older copy")), "{what}");
        assert_eq!(told.end, None, "{what}");
        // Nobody need ask: the thread has found out by itself.
        let again = open(&copy.crash(), &archived(&archive));
        let begun = Instant::now();
        while state(&again).error.is_none() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(again);
        assert!(database.close().is_err(), "{what}");
        assert_eq!(archive.names().unwrap(), parts, "{what}");
        assert_eq!(restored(&backups, "first", &archive), b"old", "{what}");

        // With another archive and a backup it goes on, and nothing is lost.
        let other = SimulatedDisk::new(4);
        let database = open(&copy, &archived(&other));
        database.backup_in(Arc::new(backups.clone()), "second", BackupOptions::default()).unwrap();
        write(&database, "newer", 1);
        database.close().unwrap();
        assert_eq!(restored(&backups, "second", &other), b"newer", "{what}");
    }
}

#[test]
fn a_feed_of_an_older_copy_does_not_show_what_the_archive_has_of_the_other() {
    for is_closed in [true, false] {
        let (disk, archive) = (SimulatedDisk::new(1), SimulatedDisk::new(2));
        let database = Database::create_in(Arc::new(disk.clone()), "data", &archived(&archive)).unwrap();
        write(&database, "before", 10);
        let position = database.changes(ChangesFrom::Now).unwrap().position();
        write(&database, "before", 20);
        database.archive_log().unwrap();
        let (copy, database) = if is_closed {
            database.close().unwrap();
            (disk.crash(), open(&disk, &archived(&archive)))
        } else {
            (disk.crash(), database)
        };
        write(&database, "old", 1000);
        // A feed of the original reads all of it.
        let mut changes = database.changes(position).unwrap();
        let mut count = 0;
        while changes.next().unwrap().is_some() {
            count += 1;
        }
        assert_eq!(count, 1020);
        drop(changes);
        database.archive_log().unwrap();
        drop(database);

        let database = open(&copy, &archived(&archive));
        write(&database, "new", 3000);
        database.checkpoint().unwrap();
        let mut shown = Vec::new();
        let read = database.changes(position).and_then(|mut changes| {
            while let Some(commit) = changes.next()? {
                shown.push(commit);
            }
            Ok(())
        });
        let shown: Vec<String> = shown.iter().map(|commit| format!("{:?}", commit.changes)).collect();
        assert!(!shown.iter().any(|commit| commit.contains("old")), "closed {is_closed}");
        if is_closed {
            let error = read.unwrap_err().to_string();
            assert!(error.contains("older copy"), "{error}");
        } else {
            // The log has kept what was not archived.
            assert!(read.is_ok() && shown.len() == 3020, "{read:?}: {}", shown.len());
        }
    }
}

/// A database that was copied, each of the two going on by itself with changes of the same length, in archives of their own:
/// both have the same places and timelines.
#[test]
fn a_backup_is_not_restored_with_the_archive_of_a_copy() {
    for (is_closed, more) in [(true, 0), (true, 7), (false, 0), (false, 7)] {
        let (disk, archive) = (SimulatedDisk::new(1), SimulatedDisk::new(2));
        let (backups, other) = (SimulatedDisk::new(3), SimulatedDisk::new(4));
        let database = Database::create_in(Arc::new(disk.clone()), "data", &archived(&archive)).unwrap();
        write(&database, "before", 10);
        let copy = if is_closed {
            database.close().unwrap();
            disk.crash()
        } else {
            database.archive_log().unwrap();
            disk.crash()
        };
        let database = open(&if is_closed { disk } else { disk.crash() }, &archived(&archive));
        write(&database, "one", 5 + more);
        database.archive_log().unwrap();
        let copied = open(&copy, &archived(&other).end_log_archive(true));
        write(&copied, "two", 5);
        copied.backup_in(Arc::new(backups.clone()), "copy", BackupOptions::default()).unwrap();
        write(&copied, "tri", 2);
        copied.archive_log().unwrap();
        let what = format!("closed {is_closed}, {more} more");
        let refused = || {
            let disk: Arc<dyn Directory> = Arc::new(SimulatedDisk::new(9));
            let how = RestoreOptions::default().archive_in(Arc::new(archive.clone()));
            let backup = Backup::open_in(&backups, "copy").unwrap();
            Backup::restore_in(&[backup], disk.clone(), "restored", &options(), how).map(drop)
        };
        // It may also lack what is needed.
        let error = refused().expect_err(&what);
        assert!(more == 0 || error.to_string().contains("another copy"), "{what}: {error}");
        assert_eq!(restored(&backups, "copy", &other), b"tri", "{what}");
    }
}

/// A copy that went on without an archive ends where the archived one does, and is then opened with the archive of that.
#[test]
fn the_archive_of_a_copy_is_not_continued_although_both_end_at_the_same_place() {
    let (disk, archive) = (SimulatedDisk::new(1), SimulatedDisk::new(2));
    let database = Database::create_in(Arc::new(disk.clone()), "data", &archived(&archive)).unwrap();
    write(&database, "before", 10);
    database.close().unwrap();
    let copy = disk.crash();
    let database = open(&disk, &archived(&archive));
    write(&database, "one", 5);
    let end = database.log_state().unwrap().appended_bytes;
    database.close().unwrap();
    let copied = open(&copy, &options().log_segment_bytes(64 << 10).end_log_archive(true));
    write(&copied, "two", 5);
    // The archived one notes the time as well.
    while copied.log_state().unwrap().appended_bytes < end {
        write(&copied, "two", 1);
    }
    copied.close().unwrap();
    let copied = open(&copy, &archived(&archive).end_log_archive(true));
    write(&copied, "tri", 5);
    let error = copied.archive_log().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

/// The copy has the archive of what was before, and its own log begins after the end of the backup: no place has records of both.
#[test]
fn a_backup_is_not_restored_with_what_a_copy_has_logged_further_on() {
    let (disk, archive, backups) = (SimulatedDisk::new(1), SimulatedDisk::new(2), SimulatedDisk::new(3));
    let database = Database::create_in(Arc::new(disk.clone()), "data", &archived(&archive)).unwrap();
    write(&database, "before", 10);
    database.archive_log().unwrap();
    let (copy, other) = (disk.kill(), archive.kill());
    write(&database, "one", 50);
    let end = database.backup_in(Arc::new(backups.clone()), "one", BackupOptions::default()).unwrap().end;
    database.archive_log().unwrap();
    let copied = open(&copy, &archived(&other).log_segment_bytes(1 << 20));
    assert!(copied.log_state().unwrap().appended_bytes > end.0);
    write(&copied, "two", 5);
    copied.archive_log().unwrap();
    let disk: Arc<dyn Directory> = Arc::new(SimulatedDisk::new(9));
    let how = RestoreOptions::default().archive_in(Arc::new(other));
    let backup = Backup::open_in(&backups, "one").unwrap();
    let error = Backup::restore_in(&[backup], disk, "restored", &options(), how).unwrap_err();
    assert!(error.to_string().contains("another copy"), "{error}");
    assert_eq!(restored(&backups, "one", &archive), b"one");
}

/// The backup's database was opened after a crash, and has logged nothing: its log ends where its first segment begins. What the other
/// copy has logged begins beyond that, and follows on what the original has done in between.
#[test]
fn the_backup_of_a_copy_that_logged_nothing_is_not_restored_with_what_was_logged_elsewhere() {
    let (disk, archive, backups) = (SimulatedDisk::new(1), SimulatedDisk::new(2), SimulatedDisk::new(3));
    let database = Database::create_in(Arc::new(disk.clone()), "data", &archived(&archive)).unwrap();
    write(&database, "before", 10);
    let copied = open(&disk.kill(), &options().log_segment_bytes(64 << 10).end_log_archive(true));
    copied.finish_recovery().unwrap();
    copied.backup_in(Arc::new(backups.clone()), "copy", BackupOptions::default()).unwrap();
    write(&database, "original", 1000);
    database.archive_log().unwrap();
    let other_archive = archive.kill();
    let other = open(&disk.kill(), &archived(&other_archive));
    write(&other, "other", 50);
    other.archive_log().unwrap();
    let target: Arc<dyn Directory> = Arc::new(SimulatedDisk::new(9));
    let how = RestoreOptions::default().archive_in(Arc::new(other_archive));
    let backup = Backup::open_in(&backups, "copy").unwrap();
    let error = Backup::restore_in(&[backup], target, "restored", &options(), how).unwrap_err();
    assert!(error.to_string().contains("another copy"), "{error}");
}
