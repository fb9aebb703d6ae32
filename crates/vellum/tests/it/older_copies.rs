//! The file of a database is exchanged for an older copy of it, beside the log of what was done since: what was committed is not
//! given up without a word.

use std::{io, path::Path};
use vellum::{Database, Durability, ErrorKind, LeftBy, Options, Salvage};

fn options() -> Options {
    crate::support::options().log_segment_bytes(64 << 10)
}

/// A directory with `older`, a closed copy of a database; `data`, the same one later; and the log of that, as a killed process leaves
/// them. What was done between the two are these numbers of puts, of a hundred bytes each, and checkpoints after each but the last.
fn copies(directory: &Path, puts: &[u32], durability: Durability) {
    let path = directory.join("at work");
    let database = Database::create(&path, &options()).unwrap();
    database.create_table("table").unwrap().put("old", "value").unwrap();
    database.close().unwrap();
    std::fs::copy(&path, directory.join("older")).unwrap();
    let database = Database::open(&path, &options().durability(durability)).unwrap();
    let table = database.table("table").unwrap();
    for (at, count) in puts.iter().enumerate() {
        if at > 0 {
            database.checkpoint().unwrap();
        }
        for number in 0..*count {
            table.put(number.to_be_bytes(), [7; 100]).unwrap();
        }
    }
    std::fs::copy(&path, directory.join("data")).unwrap();
    // Files that are no longer needed are removed in the background.
    while copy_all(&directory.join("at work-log"), &directory.join("log")).is_err() {
        std::fs::remove_dir_all(directory.join("log")).unwrap();
    }
    drop(table);
    database.close().unwrap();
}

fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir(to)?;
    std::fs::read_dir(from)?.try_for_each(|file| {
        let file = file?;
        std::fs::copy(file.path(), to.join(file.file_name())).map(drop)
    })
}

#[test]
fn an_older_copy_beside_a_newer_log_is_refused_and_the_log_stays() {
    // One record; several segments; a log whose beginning was given up; records that are in the buffer's file only.
    let logs: [(&[u32], Durability); 4] = [
        (&[1], Durability::Synced),
        (&[2000], Durability::Deferred),
        (&[2000, 2000, 3], Durability::Deferred),
        (&[1], Durability::Buffered),
    ];
    for (puts, durability) in logs {
        let place = tempfile::tempdir().unwrap();
        let path = |name| place.path().join(name);
        copies(place.path(), puts, durability);
        std::fs::rename(path("log"), path("d-log")).unwrap();
        std::fs::copy(path("older"), path("d")).unwrap();
        for options in [options(), options().log(false), options().read_only(true)] {
            let error = Database::open(path("d"), &options).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
            assert!(error.to_string().contains("it is an older copy"), "{error}");
        }
        // The one to which it belongs is put back, and nothing is lost.
        std::fs::copy(path("data"), path("d")).unwrap();
        let database = Database::open(path("d"), &options()).unwrap();
        let all: u32 = puts.iter().copied().max().unwrap();
        assert_eq!(database.table("table").unwrap().range(..).unwrap().count(), all as usize + 1, "{puts:?}");
        assert!(database.verify(|_| {}).is_clean());
        database.close().unwrap();
    }
}

#[test]
fn an_older_copy_is_opened_when_the_newer_log_was_moved_away() {
    let place = tempfile::tempdir().unwrap();
    let path = |name| place.path().join(name);
    copies(place.path(), &[5], Durability::Synced);
    let database = Database::open(path("older"), &options()).unwrap();
    assert_eq!(database.table("table").unwrap().range(..).unwrap().count(), 1);
    database.close().unwrap();
}

/// An opening that was interrupted before anything was changed has begun a log, which holds nothing.
#[test]
fn a_log_that_was_begun_and_holds_nothing_is_given_up() {
    let place = tempfile::tempdir().unwrap();
    let path = |name| place.path().join(name);
    copies(place.path(), &[], Durability::Synced);
    std::fs::rename(path("log"), path("older-log")).unwrap();
    for _ in 0..2 {
        let database = Database::open(path("older"), &options()).unwrap();
        database.table("table").unwrap().put("new", "value").unwrap();
        database.close().unwrap();
        assert!(!path("older-log").exists());
    }
}

#[test]
fn a_salvage_of_an_older_copy_says_what_it_is() {
    let place = tempfile::tempdir().unwrap();
    let path = |name| place.path().join(name);
    copies(place.path(), &[1], Durability::Synced);
    std::fs::copy(path("older"), path("d")).unwrap();
    let left = |path| format!("{:?}", Salvage::open(path, &options()).unwrap().left_by());
    assert_eq!(left(path("d")), "Closing");
    std::fs::rename(path("log"), path("d-log")).unwrap();
    let salvage = Salvage::open(path("d"), &options()).unwrap();
    assert!(
        matches!(salvage.left_by(), LeftBy::OlderCopy(error) if error.to_string().contains("older copy"))
    );
    assert_eq!(salvage.tables().0, ["table"]);
}

/// The copy was made while the database was open, so it needs the log, and redoes what is there of it. But a later checkpoint has
/// its map elsewhere, and what has the former place of the map would be lost when the log is given up.
#[test]
fn an_older_copy_of_an_open_file_beside_a_newer_log_is_refused_and_both_stay() {
    let place = tempfile::tempdir().unwrap();
    let path = |name| place.path().join(name);
    let database = Database::create(path("at work"), &options()).unwrap();
    let table = database.create_table("table").unwrap();
    let put = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            table.put(number.to_be_bytes(), [7; 1000]).unwrap();
        }
    };
    put(0..20);
    database.checkpoint().unwrap();
    std::fs::copy(path("at work"), path("d")).unwrap();
    put(20..30);
    database.checkpoint().unwrap();
    put(30..60);
    std::fs::copy(path("at work"), path("data")).unwrap();
    while copy_all(&path("at work-log"), &path("d-log")).is_err() {
        std::fs::remove_dir_all(path("d-log")).unwrap();
    }
    let former = std::fs::read(path("d")).unwrap();
    for options in [options(), options().read_only(true), options()] {
        let error = Database::open(path("d"), &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
        assert!(error.to_string().contains("it is an older copy"), "{error}");
        assert!(std::fs::read(path("d")).unwrap() == former);
    }
    std::fs::copy(path("data"), path("d")).unwrap();
    let database = Database::open(path("d"), &options()).unwrap();
    assert_eq!(database.table("table").unwrap().range(..).unwrap().count(), 60);
    assert!(database.verify(|_| {}).is_clean());
    database.close().unwrap();
}
