//! Syncs that fail, also because the file system finds only then that it is full: each error says why, and what to do.

use crate::asynchronous::block_on;
use crate::support::options;
use std::sync::Arc;
use std::time::Duration;
use vellum::{Database, Durability, Error, ErrorKind, Table, Task, TransactionOptions};
use vellum_vm::{Directory, Faults, FileOperation, SimulatedDisk};

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

/// The change that finds out is in memory, and perhaps another one. Later ones are refused before they are made; what is open
/// can be taken back.
#[test]
fn after_the_log_has_ended_no_change_is_made_but_what_is_open_is_taken_back() {
    let (disk, database, table) = begun();
    let open = database.begin().unwrap();
    open.put(&table, "first", "other").unwrap();
    open.put(&table, "open", "value").unwrap();
    let savepoint = open.savepoint();
    open.put(&table, "open", "later").unwrap();
    spoil_log(&disk, &always(false));
    for key in ["second", "third"] {
        let refused = table.put(key, "value").unwrap_err();
        assert_says(&refused, ErrorKind::OutcomeUnknown, &["open the database anew"]);
    }
    disk.heal();
    let refused = [
        table.put("fourth", "value").map(drop),
        table.remove("first").map(drop),
        table.modify("second", |_| {}).map(drop),
        block_on(table.put_async("fourth", "value")).map(drop),
        table.multi_put(&[("fourth", "value")]).remove(0).map(drop),
        database.begin().and_then(|transaction| transaction.put(&table, "fourth", "value")).map(drop),
        database.create_table("other").map(drop),
    ];
    for refused in refused {
        assert_says(&refused.unwrap_err(), ErrorKind::OutcomeUnknown, &["open the database anew"]);
    }
    assert_eq!(table.get("fourth").unwrap(), None);
    assert_eq!(table.get("first").unwrap().as_deref(), Some(&b"value"[..]));
    open.rollback_to(savepoint).unwrap();
    assert_eq!(open.get(&table, "open").unwrap().as_deref(), Some(&b"value"[..]));
    open.rollback().unwrap();
    assert_eq!(table.get("open").unwrap(), None);
    check(&disk);
}

/// What is deferred is acknowledged before it is written, but not when it never will be.
#[test]
fn nothing_deferred_is_acknowledged_after_the_log_has_ended() {
    let deferred = options().durability(Durability::Deferred);
    let disk = SimulatedDisk::new(1);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &deferred).unwrap();
    let table = database.create_table("table").unwrap();
    table.put("first", "value").unwrap();
    database.sync().unwrap();
    let begin = |key: &str| {
        let options = TransactionOptions::default().durability(Durability::Deferred);
        let transaction = database.begin_with(options).unwrap();
        transaction.put(&table, key, "value").unwrap();
        transaction
    };
    let (at_once, later) = (begin("second"), begin("third"));
    spoil_log(&disk, &always(false));
    table.put("fourth", "value").unwrap();
    let ended =
        |done: vellum::Result<()>| assert_says(&done.unwrap_err(), ErrorKind::OutcomeUnknown, &["anew"]);
    ended(database.sync());
    ended(at_once.commit());
    ended(later.commit_async().and_then(|arrival| Ok(block_on(arrival.expect("it waits"))?)));
    ended(table.put("fifth", "value").map(drop));
    ended(block_on(table.put_async("sixth", "value")).map(drop));
    ended(table.multi_put(&[("seventh", "value")]).remove(0).map(drop));
    ended(database.create_table("other").map(drop));
    // It is refused before it is made, so its answer says so.
    let mut answers = Vec::new();
    let done =
        table.multi_run([("eighth", Task::Upsert("value"))], |_, answer| answers.push(answer.map(drop)));
    done.unwrap();
    assert_eq!(answers.len(), 1);
    ended(answers.remove(0));
    check(&disk);
}

#[test]
fn a_close_that_cannot_remove_the_log_says_that_nothing_is_lost() {
    let (begun, _database, _table) = begun();
    let mut seen = false;
    for number in 1.. {
        let disk = begun.kill();
        let mut database = Database::open_in(Arc::new(disk.clone()), "data", &options()).unwrap();
        disk.fail_nth_of(FileOperation::Sync, number);
        let closed = database.close_in_place();
        disk.heal();
        drop(database);
        check(&disk);
        match closed {
            Ok(()) => break,
            Err(error) if error.to_string().contains("remove the segments") => {
                assert_says(&error, ErrorKind::Io, &["os error 5", "Nothing is lost: the next opening"]);
                seen = true;
            }
            Err(error) => assert_says(&error, ErrorKind::Io, &["os error 5", "open it again"]),
        }
    }
    assert!(seen);
}

#[test]
fn a_log_for_whose_directory_there_is_no_room_or_no_permission_says_what_to_do() {
    for (number, kind, text) in [
        (28, ErrorKind::OutOfSpace, "Make room on the disk"),
        (13, ErrorKind::Io, "must be allowed to make it"),
        (20, ErrorKind::Io, "something else has this name: move it away"),
        (36, ErrorKind::Io, "choose a shorter name for the database"),
    ] {
        let source = std::io::Error::from_raw_os_error(number);
        assert_says(&Error::LogDirectory { path: "log".into(), source }, kind, &[text]);
    }
}

/// The system tells of a failed write once. A checkpoint whose map a sync of another thread has lost must not name it.
#[test]
fn a_sync_that_fails_in_one_thread_is_not_passed_over_by_a_checkpoint_in_another() {
    for number in 1..20 {
        let (disk, database, table) = begun();
        let large = vec![7; 100_000];
        let delay_max = Duration::from_millis(1);
        disk.file("data").set_faults(Faults { delay_max, ..Faults::default() });
        disk.file("data").fail_nth_of(FileOperation::Sync, number);
        let failed = std::sync::atomic::AtomicBool::new(false);
        let until_failed = |work: &dyn Fn() -> bool| {
            while !failed.load(std::sync::atomic::Ordering::Relaxed) {
                if !work() {
                    failed.store(true, std::sync::atomic::Ordering::Relaxed);
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| until_failed(&|| table.put("large", &large).is_ok()));
            until_failed(&|| database.checkpoint().is_ok());
        });
        check(&disk);
    }
}
