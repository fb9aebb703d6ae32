//! A database whose log is archived is not changed without the archive, unless that is asked for.

use crate::support::options;
use std::sync::Arc;
use vellum::{Backup, BackupOptions, Database, Error, ErrorKind, Options, RestoreOptions};
use vellum_vm::{CrashModel, Directory, FileOperation, SimulatedDisk};

fn archived(archive: &SimulatedDisk) -> Options {
    options().log_archive_in(Arc::new(archive.clone()))
}

fn open(disk: &SimulatedDisk, options: &Options) -> vellum::Result<Database> {
    Database::open_in(Arc::new(disk.clone()), "data", options)
}

/// Puts a record under a key of its own, and closes the database.
fn change(database: Database, key: &[u8]) {
    database.table("table").unwrap().put(key, b"value").unwrap();
    database.close().unwrap();
}

fn is_refused(disk: &SimulatedDisk, options: &Options) -> bool {
    match open(disk, options) {
        Err(error @ Error::ArchiveNotNamed { .. }) => {
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            true
        }
        Err(error) => panic!("{error}"),
        Ok(_) => false,
    }
}

/// A database with a table, and without an archive.
fn created() -> SimulatedDisk {
    let disk = SimulatedDisk::new(1);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
    database.create_table("table").unwrap();
    database.close().unwrap();
    disk
}

#[test]
fn it_is_refused_without_the_archive_whether_it_was_closed_or_not() {
    for is_closed in [true, false] {
        let (disk, archive) = (created(), SimulatedDisk::new(2));
        let database = open(&disk, &archived(&archive)).unwrap();
        database.table("table").unwrap().put(b"first", b"value").unwrap();
        let disk = if is_closed {
            database.close().unwrap();
            disk
        } else {
            // Dropping the database would close it.
            disk.crash_with(CrashModel::LoseAll)
        };
        let archive = archive.crash();
        let writes = |disk: &SimulatedDisk| disk.counts().of(FileOperation::Write);
        let before = writes(&disk);
        assert!(is_refused(&disk, &options()));
        if is_closed {
            // With a log that lacks what is needed it could not be opened anyway.
            assert!(
                is_refused(&disk, &options().log(false)) && is_refused(&disk, &archived(&archive).log(false))
            );
        }
        assert_eq!(writes(&disk), before, "nothing is written");
        let reader = open(&disk, &options().read_only(true)).unwrap();
        assert!(reader.table("table").unwrap().get(b"first").unwrap().is_some());
        drop(reader);
        change(open(&disk, &archived(&archive)).unwrap(), b"second");
        assert!(is_refused(&disk, &options()));
        // Nothing was changed in this life, so the archive has no gap.
        open(&disk, &options().end_log_archive(true)).unwrap().close().unwrap();
        assert!(is_refused(&disk, &options()));
        change(open(&disk, &options().end_log_archive(true)).unwrap(), b"third");
        change(open(&disk, &options()).unwrap(), b"fourth");
    }
}

#[test]
fn a_directory_that_holds_nothing_is_not_its_archive() {
    let (disk, archive) = (created(), SimulatedDisk::new(2));
    change(open(&disk, &archived(&archive)).unwrap(), b"first");
    let other = SimulatedDisk::new(3);
    assert!(is_refused(&disk, &archived(&other)) && other.names().unwrap().is_empty());
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    assert!(is_refused(&disk, &options().log_archive(&missing)) && !missing.exists());
    // It goes on in another one if that is meant.
    let database = open(&disk, &archived(&other).end_log_archive(true)).unwrap();
    change(database, b"second");
    assert!(!other.names().unwrap().is_empty());
    change(open(&disk, &archived(&other)).unwrap(), b"third");
    assert!(is_refused(&disk, &options()));
}

#[test]
fn one_that_crashed_before_anything_was_archived_needs_its_archive_only() {
    let (disk, archive) = (created(), SimulatedDisk::new(2));
    let database = open(&disk, &archived(&archive)).unwrap();
    database.table("table").unwrap().put(b"first", b"value").unwrap();
    let (disk, archive) = (disk.crash_with(CrashModel::LoseAll), archive.crash());
    drop(database);
    assert!(archive.names().unwrap().is_empty() && is_refused(&disk, &options()));
    let database = open(&disk, &archived(&archive)).unwrap();
    assert!(database.table("table").unwrap().get(b"first").unwrap().is_some());
    change(database, b"second");
    assert!(!archive.names().unwrap().is_empty());
}

#[test]
fn one_that_was_only_looked_at_with_an_archive_needs_none() {
    let disk = created();
    open(&disk, &archived(&SimulatedDisk::new(2))).unwrap().close().unwrap();
    assert!(!is_refused(&disk, &options()));
}

/// Nor one of which a superblock was written anew meanwhile.
#[test]
fn one_that_was_only_mended_with_an_archive_needs_none_and_without_it_needs_it_still() {
    let mend = |disk: &SimulatedDisk, options: &Options| {
        disk.file("data").flip_bit(4096 * 8 + 999);
        let database = open(disk, options).unwrap();
        assert_eq!(database.mend_superblocks().unwrap(), 1);
        database.close().unwrap();
    };
    let (disk, archive) = (created(), SimulatedDisk::new(2));
    mend(&disk, &archived(&archive));
    assert!(!is_refused(&disk, &options()));
    change(open(&disk, &archived(&archive)).unwrap(), b"first");
    mend(&disk, &options().end_log_archive(true));
    assert!(is_refused(&disk, &options()) && !is_refused(&disk, &archived(&archive)));
}

/// A first change that fails, of a life in which nothing is changed after that, leaves no gap in the archive.
#[test]
fn a_first_change_that_fails_leaves_no_gap() {
    for (has_archived, number) in [(true, 1), (true, 2), (false, 1), (false, 2)] {
        let (disk, archive, backups) = (created(), SimulatedDisk::new(2), SimulatedDisk::new(3));
        let database = open(&disk, &archived(&archive)).unwrap();
        if has_archived {
            database.table("table").unwrap().put(b"first", b"value").unwrap();
        }
        database.backup_in(Arc::new(backups.clone()), "backup", BackupOptions::default()).unwrap();
        database.close().unwrap();
        let database = open(&disk, &archived(&archive)).unwrap();
        disk.fail_nth_of(FileOperation::Write, number);
        let failed = database.table("table").unwrap().put(b"second", b"value");
        assert!(failed.is_err());
        disk.heal();
        database.close().unwrap();
        let database = open(&disk, &archived(&archive)).unwrap();
        database.table("table").unwrap().put(b"third", b"value").unwrap();
        database.archive_log().unwrap();
        let state = database.log_state().unwrap().archive.unwrap();
        assert_eq!(state.gap, None, "{has_archived}, {number}");
        database.close().unwrap();
        let backup = Backup::open_in(&backups, "backup").unwrap();
        let target: Arc<dyn Directory> = Arc::new(SimulatedDisk::new(4));
        let how = RestoreOptions::default().archive_in(Arc::new(archive.clone()));
        Backup::restore_in(&[backup], target.clone(), "data", &options(), how).unwrap();
        let restored = Database::open_in(target, "data", &options()).unwrap();
        let count = restored.table("table").unwrap().count(..).unwrap();
        assert_eq!(count, 1 + u64::from(has_archived), "{has_archived}, {number}");
    }
}

/// A database that cannot be closed because its archive is not there is changed as before, and takes checkpoints.
#[test]
fn after_a_close_that_failed_checkpoints_are_taken_as_before() {
    let (disk, archive) = (created(), SimulatedDisk::new(2));
    let options = archived(&archive).background_checkpoints(true).checkpoint_log_bytes(1 << 20);
    let mut database = open(&disk, &options).unwrap();
    database.table("table").unwrap().put(b"first", b"value").unwrap();
    archive.fail_from_of(FileOperation::Write, 1);
    assert!(database.close_in_place().is_err());
    archive.heal();
    let table = database.table("table").unwrap();
    let begun = std::time::Instant::now();
    let before = database.statistics().checkpoints;
    while database.statistics().checkpoints < before + 3 {
        table.put(b"second", [7; 900]).unwrap();
        assert!(begun.elapsed().as_secs() < 60, "no checkpoint is taken any more");
    }
    drop(table);
    database.close().unwrap();
}

#[test]
fn a_restored_one_needs_none() {
    let (disk, archive, backups) = (created(), SimulatedDisk::new(2), SimulatedDisk::new(3));
    let database = open(&disk, &archived(&archive)).unwrap();
    let table = database.table("table").unwrap();
    table.put(b"first", b"value").unwrap();
    database.backup_in(Arc::new(backups.clone()), "backup", BackupOptions::default()).unwrap();
    table.put(b"second", b"value").unwrap();
    drop(table);
    database.close().unwrap();
    for with_archive in [false, true] {
        let backup = Backup::open_in(&backups, "backup").unwrap();
        let target: Arc<dyn Directory> = Arc::new(SimulatedDisk::new(4));
        let how = RestoreOptions::default();
        let how = if with_archive { how.archive_in(Arc::new(archive.clone())) } else { how };
        Backup::restore_in(&[backup], target.clone(), "data", &options(), how).unwrap();
        let database = Database::open_in(target, "data", &options()).unwrap();
        assert_eq!(database.table("table").unwrap().count(..).unwrap(), 1 + u64::from(with_archive));
    }
}

/// Whatever fails in the first life that has an archive: once a change is acknowledged, it is known after a crash that it
/// is to be in the archive. And in the first life that has none any more the database is opened or refused, not damaged.
#[test]
fn it_is_known_before_the_first_change_is_acknowledged() {
    let mut acknowledged = 0;
    for operation in 1.. {
        let (disk, archive) = (created(), SimulatedDisk::new(2));
        disk.fail_from(operation);
        let database = open(&disk, &archived(&archive));
        let put = database.as_ref().is_ok_and(|database| {
            database.table("table").and_then(|table| table.put(b"first", b"value")).is_ok()
        });
        // Dropping the database would close it.
        let crashed = disk.crash_with(CrashModel::LoseAll);
        crashed.heal();
        drop(database);
        if !put {
            drop(open(&crashed, &options().end_log_archive(true)).unwrap());
            continue;
        }
        acknowledged += 1;
        assert!(is_refused(&crashed, &options()), "operation {operation}");
        if acknowledged == 5 {
            break;
        }
    }
}

#[test]
fn transactions_that_change_nothing_leave_nothing_in_the_archive() {
    for is_closed in [true, false] {
        let (disk, archive) = (created(), SimulatedDisk::new(2));
        change(open(&disk, &archived(&archive)).unwrap(), b"first");
        let database = open(&disk, &archived(&archive)).unwrap();
        let table = database.table("table").unwrap();
        for _ in 0..3 {
            assert!(!database.run(|transaction| transaction.remove(&table, b"absent")).unwrap());
        }
        database.archive_log().unwrap();
        drop(table);
        let disk = if is_closed {
            database.close().unwrap();
            disk
        } else {
            disk.kill()
        };
        let database = open(&disk, &archived(&archive)).unwrap();
        let table = database.table("table").unwrap();
        table.put(b"second", b"value").unwrap();
        database.archive_log().unwrap();
        assert_eq!(database.log_state().unwrap().archive.unwrap().error, None);
        drop(table);
        database.close().unwrap();
    }
}
