//! Backups and restores that make no sense are refused before anything is done.

use crate::{Place as _, Real, options};
use vellum::{Backup, BackupOptions, Error, ErrorKind, LogArchive, Lsn, RestoreOptions, Until};

#[test]
fn options_of_which_a_restore_can_make_nothing_are_refused() {
    let place = Real::new();
    let database = place.create();
    database.create_table("table").unwrap().put(b"key", b"value").unwrap();
    let made = database.backup(place.path().join("backup")).unwrap();
    let path = place.path().join("restored");
    let backup = [place.open_backup("backup")];
    for (options, what) in [(options().read_only(true), "read_only"), (options().log(false), "log(false)")] {
        let error = Backup::restore(&backup, &path, &options).unwrap_err();
        assert!(matches!(error, Error::RestoreOptions { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
    let log = place.path().join("data-log");
    for how in [
        RestoreOptions::default().until(Until::Before(Lsn(1))),
        RestoreOptions::default().until(Until::Before(made.end)),
        RestoreOptions::default().until(Until::Time(std::time::SystemTime::now())),
        RestoreOptions::default().log(log),
    ] {
        let error = Backup::restore_with(&backup, &path, &options(), how).unwrap_err();
        assert!(matches!(error, Error::RestoreOptions { .. }), "{error}");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("RestoreOptions::archive"), "{error}");
    }
    let error = Backup::restore(&[], &path, &options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains("no backup was named"), "{error}");
    let mut names: Vec<_> =
        std::fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["backup", "data", "data-log"]);
}

#[test]
fn a_restore_to_the_end_of_a_backup_needs_nothing_of_the_archive() {
    let place = Real::new();
    let archive = place.path().join("archive");
    let database =
        vellum::Database::create(place.path().join("data"), &options().log_archive(&archive)).unwrap();
    database.create_table("table").unwrap().put(b"key", b"value").unwrap();
    let end = database.backup(place.path().join("backup")).unwrap().end;
    let backup = [place.open_backup("backup")];
    let restore = |name: &str, until| {
        let how = RestoreOptions::default().archive(&archive).until(until);
        Backup::restore_with(&backup, place.path().join(name), &options(), how)
    };
    let restored = restore("restored", Until::Before(end)).unwrap();
    assert_eq!(restored.point.map(|point| point.end), Some(end));
    let copy = vellum::Database::open(place.path().join("restored"), &options()).unwrap();
    assert_eq!(copy.table("table").unwrap().get(b"key").unwrap().unwrap(), b"value");
    // Whether it is the right directory is not known.
    let error = restore("again", Until::End).unwrap_err();
    assert!(matches!(error, Error::EmptyArchive), "{error}");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("restore without it"), "{error}");
    // A mistyped name is told in the same way.
    let how = RestoreOptions::default().archive(place.path().join("nowhere"));
    let error =
        Backup::restore_with(&backup, place.path().join("again"), &options(), how).map(drop).unwrap_err();
    assert!(matches!(error, Error::EmptyArchive), "{error}");
    let error = LogArchive::open(place.path().join("nowhere"), &backup[0]).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    database.archive_log().unwrap();
    assert_eq!(restore("again", Until::End).unwrap().point.map(|point| point.end >= end), Some(true));
}

#[test]
fn a_backup_inside_the_progress_of_a_backup_is_an_error() {
    let place = Real::new();
    let [database, other] = ["data", "other"].map(|name| {
        let database = vellum::Database::create(place.path().join(name), &options()).unwrap();
        database.create_table("table").unwrap().put(b"key", b"value").unwrap();
        database
    });
    let mut calls = 0;
    let mut progress = |_| {
        calls += 1;
        let error = database.backup(place.path().join("inner")).unwrap_err();
        assert!(matches!(error, Error::NestedBackup), "{error}");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        // One of another database, and other uses of this one, do not wait.
        other.backup(place.path().join(format!("other-{calls}"))).unwrap();
        database.compact(|_| true).unwrap();
        true
    };
    let how = BackupOptions::default().progress(&mut progress);
    database.backup_with(place.path().join("outer"), how).unwrap();
    assert!(calls > 0 && !place.path().join("inner").exists());
    database.backup(place.path().join("inner")).unwrap();
}
