//! Syncs that fail, also because the file system finds only then that it is full: each error says why, and what to do.

use crate::support::options;
use std::sync::Arc;
use vellum::{Database, Error, ErrorKind, Table};
use vellum_vm::{Directory, Faults, SimulatedDisk};

fn begun() -> (SimulatedDisk, Database, Table) {
    let disk = SimulatedDisk::new(1);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
    let table = database.create_table("table").unwrap();
    table.put("first", "value").unwrap();
    (disk, database, table)
}

/// Sets the faults of the files of the log.
fn spoil_log(disk: &SimulatedDisk, faults: &Faults) {
    let names = disk.names().unwrap();
    names.iter().filter(|name| *name != "data").for_each(|name| disk.file(name).set_faults(faults.clone()));
}

fn always(full_syncs: bool) -> Faults {
    Faults { sync_error: 1.0, full_syncs, ..Faults::default() }
}

fn assert_says(error: &Error, kind: ErrorKind, texts: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for text in texts {
        assert!(error.to_string().contains(text), "{text} is missing: {error}");
    }
}

/// A database that opens again, and holds what was acknowledged.
fn check(disk: &SimulatedDisk) {
    let database = Database::open_in(Arc::new(disk.crash()), "data", &options()).unwrap();
    assert_eq!(database.table("table").unwrap().get("first").unwrap().as_deref(), Some(&b"value"[..]));
}

#[test]
fn a_log_that_ends_because_the_device_is_full_says_to_make_room_first() {
    let no_room = Faults { reserved_bytes: Some(0), ..Faults::default() };
    for faults in [always(true), no_room] {
        let (disk, database, table) = begun();
        spoil_log(&disk, &faults);
        let refused = table.put("second", "value").unwrap_err();
        let texts = ["No space left", "make room first, and open the database anew"];
        assert_says(&refused, ErrorKind::OutcomeUnknown, &texts);
        disk.heal();
        for refused in [table.put("third", "value").map(drop), database.sync(), database.checkpoint()] {
            assert_says(&refused.unwrap_err(), ErrorKind::OutcomeUnknown, &texts);
        }
        check(&disk);
    }
    let (disk, _database, table) = begun();
    spoil_log(&disk, &always(false));
    let refused = table.put("second", "value").unwrap_err();
    assert_says(&refused, ErrorKind::OutcomeUnknown, &["os error 5", "is unknown: open the database anew"]);
    check(&disk);
}

#[test]
fn a_sync_of_the_file_that_finds_no_room_says_so_and_so_does_all_that_it_refuses_afterwards() {
    for (is_full, kind, reason, advice) in [
        (true, ErrorKind::OutOfSpace, "No space left", "Make room, and if it has a log, open it again"),
        (false, ErrorKind::Io, "os error 5", "If it has a log, open it again"),
    ] {
        let (disk, database, table) = begun();
        disk.file("data").set_faults(always(is_full));
        assert_says(&database.checkpoint().unwrap_err(), kind, &[reason, advice]);
        disk.heal();
        for refused in [table.put("second", "value").map(drop), database.checkpoint()] {
            assert_says(&refused.unwrap_err(), kind, &["an earlier attempt failed", reason, advice]);
        }
        check(&disk);
    }
}
