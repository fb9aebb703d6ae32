//! Increments of a database that has another history than the backup on which they would be based.

use crate::support::{assert_clean, options};
use std::sync::Arc;
use vellum::{Backup, BackupError, BackupOptions, Database, Error};
use vellum_vm::{Directory, SimulatedDisk};

const COUNT: u32 = 600;

fn open(disk: &SimulatedDisk) -> Database {
    Database::open_in(Arc::new(disk.clone()), "data", &options()).unwrap()
}

fn write(database: &Database, keys: std::ops::Range<u32>, value: u8) {
    let table = database.table("table").or_else(|_| database.create_table("table")).unwrap();
    for key in keys {
        table.put(key.to_be_bytes(), [value; 100]).unwrap();
    }
}

fn back_up(database: &Database, disk: &SimulatedDisk, name: &str, since: Option<&str>) -> vellum::Result<()> {
    let former = since.map(|since| Backup::open_in(disk, since).unwrap());
    let options = BackupOptions::default();
    let options = match &former {
        Some(former) => options.since(former),
        None => options,
    };
    database.backup_in(Arc::new(disk.clone()), name, options).map(drop)
}

fn values(database: &Database) -> Vec<u8> {
    let table = database.table("table").unwrap();
    (0..COUNT).map(|key| table.get(key.to_be_bytes()).unwrap().map_or(0, |value| value[0])).collect()
}

fn restored(disk: &SimulatedDisk, names: &[&str]) -> Vec<u8> {
    let target: Arc<dyn Directory> = Arc::new(SimulatedDisk::new(9));
    let backups: Vec<Backup> = names.iter().map(|name| Backup::open_in(disk, name).unwrap()).collect();
    Backup::restore_in(&backups, target.clone(), "restored", &options(), Default::default()).unwrap();
    let database = Database::open_in(target, "restored", &options()).unwrap();
    assert_clean(&database);
    values(&database)
}

#[test]
fn an_increment_is_not_made_of_an_older_copy_that_was_put_back() {
    // The copy was made of a closed database, or is what a crash left; the backup in the same life as the copy, or later.
    for (is_closed, is_later) in [(true, true), (false, true), (false, false)] {
        let what = format!("closed {is_closed}, later {is_later}");
        let (disk, backups) = (SimulatedDisk::new(1), SimulatedDisk::new(2));
        let database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
        write(&database, 0..COUNT, 1);
        back_up(&database, &backups, "before", None).unwrap();
        let (copy, database) = if is_closed {
            database.close().unwrap();
            (disk.crash(), open(&disk))
        } else if is_later {
            let copy = disk.crash();
            drop(database);
            (copy, open(&disk.crash()))
        } else {
            (disk.crash(), database)
        };
        write(&database, 0..200, 2);
        back_up(&database, &backups, "full", None).unwrap();
        back_up(&database, &backups, "increment", Some("before")).unwrap();
        drop(database);

        let database = open(&copy);
        write(&database, 300..400, 3);
        database.checkpoint().unwrap();
        for _ in 0..8 {
            write(&database, 500..COUNT, 4);
        }
        database.checkpoint().unwrap();
        for former in ["full", "increment"] {
            let refused = back_up(&database, &backups, "mixed", Some(former)).unwrap_err();
            assert!(matches!(refused, Error::Backup(BackupError::Order(_))), "{what}: {refused}");
            assert!(refused.to_string().contains("older copy"), "{what}: {refused}");
        }
        // What was made before the copy is of both histories.
        back_up(&database, &backups, "other", Some("before")).unwrap();
        assert_eq!(restored(&backups, &["before", "other"]), values(&database), "{what}");
    }
}

#[test]
fn increments_go_on_over_closes_and_crashes() {
    let (mut disk, backups) = (SimulatedDisk::new(1), SimulatedDisk::new(2));
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
    write(&database, 0..COUNT, 1);
    back_up(&database, &backups, "0", None).unwrap();
    disk = disk.crash();
    drop(database);
    let mut names = vec!["0".to_owned()];
    for round in 1..6 {
        let database = open(&disk);
        write(&database, round * 50..round * 50 + 20, round as u8);
        let name = round.to_string();
        back_up(&database, &backups, &name, names.last().map(String::as_str)).unwrap();
        names.push(name);
        write(&database, round * 50 + 10..round * 50 + 30, round as u8);
        if round % 2 == 0 {
            database.close().unwrap();
        }
        // Otherwise it is recovered.
        disk = disk.crash();
    }
    let database = open(&disk);
    back_up(&database, &backups, "last", names.last().map(String::as_str)).unwrap();
    names.push("last".to_owned());
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(restored(&backups, &names), values(&database));
}

#[test]
fn a_backup_of_a_closed_database_is_the_base_of_increments() {
    let (disk, backups) = (SimulatedDisk::new(1), SimulatedDisk::new(2));
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
    write(&database, 0..COUNT, 1);
    database.close().unwrap();
    let database = Database::open_in(Arc::new(disk.clone()), "data", &options().read_only(true)).unwrap();
    back_up(&database, &backups, "full", None).unwrap();
    drop(database);
    let copy = disk.crash();
    for disk in [disk, copy] {
        let database = open(&disk);
        write(&database, 10..20, 2);
        back_up(&database, &backups, "increment", Some("full")).unwrap();
        assert_eq!(restored(&backups, &["full", "increment"]), values(&database));
        backups.remove("increment").unwrap();
    }
}

#[test]
fn a_backup_is_the_base_of_increments_however_often_the_database_is_opened() {
    // More often than lives are noted: one is of the database in use, one of the closed one, and of that nothing is noted.
    let (place, backups) = (tempfile::tempdir().unwrap(), SimulatedDisk::new(2));
    let path = place.path().join("data");
    let open = || Database::open(&path, &options()).unwrap();
    let database = Database::create(&path, &options()).unwrap();
    write(&database, 0..COUNT, 1);
    database.close().unwrap();
    let read_only = |name: &str| {
        let options = options().read_only(true);
        let database = Database::open(&path, &options).unwrap();
        back_up(&database, &backups, name, None).unwrap();
    };
    read_only("noted");
    Backup::open_in(&backups, "noted").unwrap().note_in(&path).unwrap();
    let database = open();
    write(&database, 0..10, 2);
    back_up(&database, &backups, "in use", None).unwrap();
    database.close().unwrap();
    write(&open(), 10..20, 3);
    read_only("not noted");
    for round in 0..240 {
        write(&open(), round..round + 1, 4);
    }
    let database = open();
    for name in ["noted", "in use"] {
        let increment = format!("since {name}");
        back_up(&database, &backups, &increment, Some(name)).unwrap();
        assert_eq!(restored(&backups, &[name, &increment]), values(&database));
    }
    let refused = back_up(&database, &backups, "refused", Some("not noted")).unwrap_err();
    assert!(refused.to_string().contains("opened too often since"), "{refused}");
    // Nothing is noted where the database is open.
    let noted = Backup::open_in(&backups, "not noted").unwrap().note_in(&path);
    assert!(noted.unwrap_err().to_string().contains("has it open"));
}

/// What is restored or new is backed up at once, before anything is changed in it.
#[test]
fn a_backup_of_an_unchanged_database_is_the_base_of_increments() {
    for is_restored in [false, true] {
        for how in ["open", "opened and closed", "read only"] {
            let (mut disk, backups) = (SimulatedDisk::new(1), SimulatedDisk::new(2));
            let database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
            if is_restored {
                write(&database, 0..COUNT, 1);
                back_up(&database, &backups, "first", None).unwrap();
                disk = SimulatedDisk::new(3);
                let (target, first) = (Arc::new(disk.clone()), Backup::open_in(&backups, "first").unwrap());
                Backup::restore_in(&[first], target, "data", &options(), Default::default()).unwrap();
            }
            drop(database);
            if how == "opened and closed" {
                open(&disk).close().unwrap();
            }
            let read_only = options().read_only(how == "read only");
            let database = Database::open_in(Arc::new(disk.clone()), "data", &read_only).unwrap();
            back_up(&database, &backups, "full", None).unwrap();
            let copy = disk.crash();
            let database = if how == "open" {
                database
            } else {
                drop(database);
                open(&disk)
            };
            let what = format!("restored {is_restored}, {how}");
            let mut names = vec!["full"];
            for (number, name) in ["one", "two"].into_iter().enumerate() {
                write(&database, 10..20, 2 + number as u8);
                let made = back_up(&database, &backups, name, names.last().copied());
                made.unwrap_or_else(|error| panic!("{what}: {error}"));
                names.push(name);
                assert_eq!(restored(&backups, &names), values(&database), "{what}");
            }
            // A copy that goes on by itself has the same beginning, and no more.
            let copy = open(&copy);
            write(&copy, 50..60, 9);
            let refused = back_up(&copy, &backups, "mixed", Some("one")).unwrap_err();
            assert!(matches!(refused, Error::Backup(BackupError::Order(_))), "{what}: {refused}");
            back_up(&copy, &backups, "other", Some("full")).unwrap();
            assert_eq!(restored(&backups, &["full", "other"]), values(&copy), "{what}");
        }
    }
}
