//! Places of the log and times to which a database is restored: what is before them, and the last ones there are.

use crate::support::options;
use std::{sync::Arc, time::Duration};
use vellum::{
    Backup, BackupError, BackupOptions, ChangesFrom, Database, Error, Lsn, Options, RestoreOptions, Restored,
    Until,
};
use vellum_vm::{Directory, SimulatedDisk};

struct Disks {
    archive: Arc<SimulatedDisk>,
    backups: Arc<SimulatedDisk>,
}

impl Disks {
    fn new() -> Self {
        Self { archive: Arc::new(SimulatedDisk::new(2)), backups: Arc::new(SimulatedDisk::new(3)) }
    }

    fn create(&self) -> Database {
        let options = options().log_archive_in(self.archive.clone());
        Database::create_in(Arc::new(SimulatedDisk::new(1)), "data", &options).unwrap()
    }

    /// Makes a backup; returns up to where it goes.
    fn back_up(&self, database: &Database) -> Lsn {
        database.backup_in(self.backups.clone(), "backup", BackupOptions::default()).unwrap().end
    }

    /// What is restored, and the value of a key there.
    fn restore(&self, until: Until) -> vellum::Result<(Restored, Option<Vec<u8>>)> {
        let backup = Backup::open_in(&*self.backups, "backup")?;
        let disk: Arc<dyn Directory> = Arc::new(SimulatedDisk::new(4));
        let how = RestoreOptions::default().archive_in(self.archive.clone()).until(until);
        let restored = Backup::restore_in(&[backup], disk.clone(), "restored", &options(), how)?;
        let value = Database::open_in(disk, "restored", &options())?.table("table")?.get("key")?;
        Ok((restored, value))
    }

    fn value_at(&self, until: Until) -> String {
        let (_, value) = self.restore(until).unwrap_or_else(|error| panic!("{until:?}: {error}"));
        value.map_or_else(|| "none".to_owned(), |value| String::from_utf8(value).unwrap())
    }

    fn assert_after_archive(&self, until: Until) {
        let error = self.restore(until).map(|(restored, _)| restored).unwrap_err();
        assert!(matches!(error, Error::Backup(BackupError::AfterArchive { .. })), "{until:?}: {error}");
    }
}

#[test]
fn what_begins_at_a_place_that_was_told_is_not_before_it() {
    let disks = Disks::new();
    let database = disks.create();
    let table = database.create_table("table").unwrap();
    table.put("key", "first").unwrap();
    let backed_up = disks.back_up(&database);
    let mut changes = database.changes(ChangesFrom::Now).unwrap();
    let mut commits = Vec::new();
    let mut archived = Vec::new();
    for value in ["second", "third", "fourth"] {
        archived.push(database.archive_log().unwrap());
        table.put("key", value).unwrap();
        commits.push(changes.next().unwrap().unwrap());
    }
    archived.push(database.archive_log().unwrap());
    assert_eq!(commits.last().unwrap().position.lsn(), archived[3]);
    for (index, value) in ["first", "second", "third", "fourth"].into_iter().enumerate() {
        assert_eq!(disks.value_at(Until::Before(archived[index])), value);
        if let Some(commit) = commits.get(index) {
            assert_eq!(disks.value_at(Until::Before(commit.lsn)), value);
        }
        if let Some(commit) = index.checked_sub(1).map(|before| &commits[before]) {
            assert_eq!(disks.value_at(Until::Before(commit.position.lsn())), value);
            assert_eq!(disks.value_at(Until::Lsn(commit.lsn)), value);
        }
    }
    assert_eq!(disks.value_at(Until::Before(backed_up)), "first");
    // What comes next begins exactly at the place that was told, unless a record of the time of day comes first.
    let told = (0..10_000).map(|number| {
        let (before, value) = (database.archive_log().unwrap(), format!("value {number}"));
        table.put("key", &value).unwrap();
        (before, changes.next().unwrap().unwrap().lsn, value)
    });
    let (before, _, value) = { told }.find(|(before, commit, _)| before == commit).unwrap();
    database.archive_log().unwrap();
    assert_ne!(disks.value_at(Until::Before(before)), value);
    assert_eq!(disks.value_at(Until::Lsn(before)), value);
    let before = disks.restore(Until::Before(Lsn(1))).map(|(restored, _)| restored).unwrap_err();
    assert!(matches!(before, Error::Backup(BackupError::BeforeBackup { .. })), "{before}");
}

#[test]
fn the_last_place_and_the_last_time_of_an_archive_are_reached() {
    let disks = Disks::new();
    let database = disks.create();
    let table = database.create_table("table").unwrap();
    let backed_up = disks.back_up(&database);
    // Nothing follows on the backup.
    let end = database.archive_log().unwrap();
    assert_eq!(disks.value_at(Until::Before(backed_up)), "none");
    assert_eq!(disks.value_at(Until::Before(end)), "none");
    let mut changes = database.changes(ChangesFrom::Now).unwrap();
    database.run(|transaction| transaction.put(&table, "key", "last")).unwrap();
    let commit = changes.next().unwrap().unwrap();
    let (end, time) = (database.archive_log().unwrap(), commit.time.unwrap());
    assert_eq!(end, commit.position.lsn());
    for until in [Until::End, Until::Before(end), Until::Lsn(commit.lsn), Until::Time(time)] {
        let (restored, value) = disks.restore(until).unwrap_or_else(|error| panic!("{until:?}: {error}"));
        assert_eq!(value.as_deref(), Some(&b"last"[..]), "{until:?}");
        let point = restored.point.unwrap();
        assert_eq!((point.end, point.time), (end, Some(time)), "{until:?}");
    }
    // What begins at the end, or comes later, is not known.
    let later = [Until::Lsn(end), Until::Before(Lsn(end.0 + 1)), Until::Time(time + Duration::from_nanos(1))];
    later.into_iter().for_each(|until| disks.assert_after_archive(until));
    // An archive that ends before the backup suffices for nothing that the backup has not by itself.
    disks.backups.remove("backup").unwrap();
    let held = database.begin().unwrap();
    held.put(&table, "held", "a record").unwrap();
    let end = database.archive_log().unwrap();
    table.put("key", "later").unwrap();
    let backed_up = disks.back_up(&database);
    assert!(end < backed_up, "{end} {backed_up}");
    disks.assert_after_archive(Until::End);
    assert_eq!(disks.value_at(Until::Before(backed_up)), "later");
    for until in [Until::Before(end), Until::Lsn(Lsn(end.0 - 1))] {
        let error = disks.restore(until).map(|(restored, _)| restored).unwrap_err();
        assert!(matches!(error, Error::Backup(BackupError::BeforeBackup { .. })), "{until:?}: {error}");
    }
    drop(held);
}

/// What lies beyond the point to which is restored may be missing or damaged: the error for a later point says up to
/// where all is there.
#[test]
fn what_lies_before_a_gap_can_be_restored() {
    for is_damaged in [false, true] {
        let (disks, disk) = (Disks::new(), SimulatedDisk::new(1));
        let with_archive = || options().log_archive_in(disks.archive.clone());
        let open = |options: &Options| Database::open_in(Arc::new(disk.clone()), "data", options).unwrap();
        let put = |database: &Database, value: &str| {
            database.table("table").unwrap().put("key", value).unwrap();
        };
        let database = Database::create_in(Arc::new(disk.clone()), "data", &with_archive()).unwrap();
        database.create_table("table").unwrap();
        disks.back_up(&database);
        let mut changes = database.changes(ChangesFrom::Now).unwrap();
        put(&database, "first");
        let end = database.archive_log().unwrap();
        let commit = changes.next().unwrap().unwrap().lsn;
        drop(changes);
        database.close().unwrap();
        if !is_damaged {
            let database = open(&options().end_log_archive(true));
            put(&database, "not archived");
            database.close().unwrap();
        }
        let database = open(&with_archive());
        put(&database, "last");
        database.close().unwrap();
        if is_damaged {
            let last = disks.archive.names().unwrap().into_iter().max().unwrap();
            disks.archive.file(&last).flip_bit(4096 * 8 + 99);
        }
        assert!(disks.restore(Until::End).is_err());
        assert!(disks.restore(Until::Before(Lsn(end.0 + 100))).is_err());
        for until in [Until::Before(end), Until::Lsn(commit)] {
            assert_eq!(disks.value_at(until), "first", "{until:?}, damaged: {is_damaged}");
        }
    }
}

/// The time of day is logged before the operation that it is for. If that is not restored, it is not the time of a commit.
#[test]
fn the_time_of_a_point_is_that_of_the_last_commit_before_it() {
    let disks = Disks::new();
    let database = disks.create();
    let table = database.create_table("table").unwrap();
    disks.back_up(&database);
    let mut changes = database.changes(ChangesFrom::Now).unwrap();
    let mut commits = Vec::new();
    for value in ["first", "second", "third"] {
        // Each is logged with a time of its own.
        std::thread::sleep(Duration::from_millis(5));
        table.put("key", value).unwrap();
        commits.push(changes.next().unwrap().unwrap());
    }
    std::thread::sleep(Duration::from_millis(5));
    database.run(|transaction| transaction.put(&table, "key", "fourth")).unwrap();
    commits.push(changes.next().unwrap().unwrap());
    database.archive_log().unwrap();
    for (index, value) in ["first", "second", "third"].into_iter().enumerate() {
        for until in [Until::Lsn(commits[index].lsn), Until::Before(commits[index + 1].lsn)] {
            let (restored, found) = disks.restore(until).unwrap();
            assert_eq!(found.as_deref(), Some(value.as_bytes()), "{until:?}");
            assert_eq!(restored.point.unwrap().time, commits[index].time, "{until:?}");
        }
    }
}
