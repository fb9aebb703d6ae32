//! Crashes, full disks and damage while a backup is made or restored.

use crate::{
    Place, Simulated,
    load::{Load, check},
    options,
};
use std::sync::Arc;
use vellum::{Backup, BackupOptions, Database, Directory, Error, ErrorKind, RestoreOptions};
use vellum_vm::{Faults, SimulatedDisk};

/// A database of a few hundred pages with a large value, on a disk of its own.
fn small(seed: u64) -> (SimulatedDisk, Database) {
    let disk = SimulatedDisk::new(seed);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
    let table = database.create_table("table").unwrap();
    for number in 0..2000u32 {
        table.put(number.to_be_bytes(), vec![number as u8; 100]).unwrap();
    }
    table.put(b"large", vec![9; 50_000]).unwrap();
    (disk, database)
}

fn check_small(database: &Database) {
    let report = database.verify(|_| {});
    assert!(report.is_clean(), "{:?}", report.problems);
    let table = database.table("table").unwrap();
    assert_eq!(table.shape().unwrap().entries, 2001);
    assert_eq!(table.get(b"large").unwrap().unwrap(), vec![9; 50_000]);
}

#[test]
fn a_crash_in_the_middle_leaves_the_database_and_no_half_backup() {
    let mut outcomes = [0, 0];
    for seed in 0..60 {
        let (disk, database) = small(seed);
        // The backup lies beside the database, so that the power goes for both.
        disk.fail_from(1 + seed * seed / 8);
        let made = database.backup_in(Arc::new(disk.clone()), "backup", BackupOptions::default());
        let after = disk.crash();
        drop(database);
        if after.names().unwrap().iter().any(|name| name == "backup") {
            let restored: Arc<dyn Directory> = Arc::new(SimulatedDisk::new(1));
            let backup = Backup::open_in(&after, "backup").unwrap();
            Backup::restore_in(
                &[backup],
                restored.clone(),
                "restored",
                &options(),
                RestoreOptions::default(),
            )
            .unwrap();
            check_small(&Database::open_in(restored, "restored", &options()).unwrap());
            outcomes[0] += 1;
        } else {
            assert!(made.is_err(), "seed {seed}");
            outcomes[1] += 1;
        }
        let after: Arc<dyn Directory> = Arc::new(after);
        let database = Database::open_in(after.clone(), "data", &options()).unwrap();
        check_small(&database);
        // What is left of it is in nobody's way.
        if made.is_err() && !after.names().unwrap().contains(&"backup".to_owned()) {
            // Unless it is whole, and only its name is not: that is left to its owner.
            let is_whole = Backup::open_in(&*after, "backup.unfinished").is_ok();
            match database.backup_in(after, "backup", BackupOptions::default()) {
                Err(Error::UnfinishedExists { .. }) if is_whole => {}
                made => drop(made.unwrap()),
            }
        }
    }
    assert!(outcomes.iter().all(|count| *count > 5), "{outcomes:?}");
}

#[test]
fn a_full_disk_refuses_the_backup_and_leaves_the_database() {
    for pages in [0, 1, 3, 20, 60] {
        let (_, database) = small(pages);
        let target = SimulatedDisk::new(pages);
        let full = Faults { capacity_bytes: Some(pages * 4096), ..Faults::default() };
        target.set_faults(full);
        let error =
            database.backup_in(Arc::new(target.clone()), "backup", BackupOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfSpace, "{error}");
        assert!(error.to_string().contains("make room"), "{error}");
        assert!(target.names().unwrap().is_empty());
        target.set_faults(Faults::default());
        database.backup_in(Arc::new(target.clone()), "backup", BackupOptions::default()).unwrap();
        check_small(&database);
        // Restoring meets a full disk as well.
        let restored = SimulatedDisk::new(9);
        restored.set_faults(Faults { capacity_bytes: Some(pages * 4096), ..Faults::default() });
        let backup = [Backup::open_in(&target, "backup").unwrap()];
        let restore = || {
            Backup::restore_in(
                &backup,
                Arc::new(restored.clone()),
                "restored",
                &options(),
                RestoreOptions::default(),
            )
        };
        let error = restore().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfSpace, "{error}");
        assert!(restored.names().unwrap().is_empty(), "{:?}", restored.names());
        restored.set_faults(Faults::default());
        restore().unwrap();
        check_small(&Database::open_in(Arc::new(restored.clone()), "restored", &options()).unwrap());
    }
}

#[test]
fn every_failing_operation_of_a_restore_leaves_nothing_behind() {
    let (_, database) = small(3);
    let target = SimulatedDisk::new(4);
    database.backup_in(Arc::new(target.clone()), "backup", BackupOptions::default()).unwrap();
    let backup = [Backup::open_in(&target, "backup").unwrap()];
    let mut failures = 0;
    for nth in 1..150 {
        let restored = SimulatedDisk::new(nth);
        restored.fail_nth(nth);
        let made = Backup::restore_in(
            &backup,
            Arc::new(restored.clone()),
            "restored",
            &options(),
            RestoreOptions::default(),
        );
        restored.heal();
        let names = restored.names().unwrap();
        if made.is_err() {
            // The last is that its name is made durable.
            failures += 1;
        }
        if !names.contains(&"restored".to_owned()) {
            Backup::restore_in(
                &backup,
                Arc::new(restored.clone()),
                "restored",
                &options(),
                RestoreOptions::default(),
            )
            .unwrap();
        }
        check_small(&Database::open_in(Arc::new(restored.clone()), "restored", &options()).unwrap());
    }
    assert!(failures > 20, "{failures}");
}

#[test]
fn a_damaged_page_is_not_copied_as_if_it_were_sound() {
    let mut noticed = 0;
    for page in 2..40 {
        let (disk, database) = small(page);
        database.close().unwrap();
        disk.file("data").flip_bit(page * 4096 * 8 + 20_000);
        let disk: Arc<dyn Directory> = Arc::new(disk);
        let target = SimulatedDisk::new(page);
        let database = match Database::open_in(disk, "data", &options()) {
            Ok(database) => database,
            // The space map.
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
                continue;
            }
        };
        let made = database.backup_in(Arc::new(target.clone()), "backup", BackupOptions::default());
        match made {
            Ok(_) => assert!(database.verify(|_| {}).is_clean(), "page {page}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corruption);
                assert!(error.to_string().contains(&format!("page {page}")), "{error}");
                assert!(target.names().unwrap().is_empty());
                noticed += 1;
            }
        }
    }
    assert!(noticed > 20, "{noticed}");
}

#[test]
fn damage_to_a_backup_is_noticed_wherever_it_is() {
    let (_, database) = small(1);
    let target = SimulatedDisk::new(4);
    database.backup_in(Arc::new(target.clone()), "backup", BackupOptions::default()).unwrap();
    let size = target.file("backup").snapshot().size();
    let restore = || {
        let disk: Arc<dyn Directory> = Arc::new(SimulatedDisk::new(3));
        let backup = Backup::open_in(&target, "backup")?;
        Backup::restore_in(&[backup], disk.clone(), "restored", &options(), RestoreOptions::default())?;
        assert_eq!(disk.names().unwrap(), ["restored"]);
        Ok::<_, Error>(())
    };
    restore().unwrap();
    for page in 0..size / 4096 {
        let bit = page * 4096 * 8 + 8000 + page * 97;
        target.file("backup").flip_bit(bit);
        let error = restore().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Corruption | ErrorKind::Incompatible), "{page}: {error}");
        target.file("backup").flip_bit(bit);
    }
    restore().unwrap();
}

#[test]
fn a_backup_that_is_stopped_leaves_nothing() {
    let place = Simulated::new(8);
    let database = place.create();
    let load = Load::start(&database, 8);
    std::thread::sleep(std::time::Duration::from_millis(300));
    let mut calls = 0;
    let mut stop = |_| {
        calls += 1;
        calls < 2
    };
    let options = BackupOptions::default().progress(&mut stop);
    let error = database.backup_in(Arc::new(place.backups.clone()), "backup", options);
    // A small database takes one round.
    if let Err(error) = error {
        assert!(error.to_string().contains("interrupted"), "{error}");
        assert!(place.backups.names().unwrap().is_empty());
    }
    let before = load.committed();
    place.back_up(&database, "another", BackupOptions::default());
    let after = load.stop();
    check(&place.restore(&[place.open_backup("another")], "restored").unwrap(), &before, &after);
}

#[test]
fn nothing_is_overwritten() {
    let place = crate::Real::new();
    let database = place.create();
    database.create_table("table").unwrap();
    database.checkpoint().unwrap();
    let backup = place.path().join("backup");
    std::fs::write(&backup, b"mine").unwrap();
    let error = database.backup(&backup).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    let error = database.backup(place.path().join("data")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    assert_eq!(std::fs::read(&backup).unwrap(), b"mine");
    let error = Backup::open(&backup).err().unwrap();
    assert!(error.to_string().contains("not a backup"), "{error}");
    database.backup(place.path().join("good")).unwrap();
    let good = [place.open_backup("good")];
    let error = Backup::restore(&good, place.path().join("data"), &options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    // The log of a database that is gone.
    std::fs::create_dir(place.path().join("lost-log")).unwrap();
    std::fs::write(place.path().join("lost-log/segment-0000000000000001"), b"log").unwrap();
    let error = Backup::restore(&good, place.path().join("lost"), &options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    assert!(error.to_string().contains("lost-log"), "{error}");
}
