//! Handles in a child made by `fork`: the database stays its parent's.

use crate::support::copy_directory;
use std::{
    fs,
    time::{Duration, Instant},
};
use vellum::{Database, Error, Options, Table};

/// How a child ends that could drop or close its handles.
const DONE: i32 = 7;

/// Makes a database, lets a child do something with its handles, and goes on. Everything is there after a crash, and when the
/// database has been closed.
fn check(options: &Options, of_child: impl FnOnce(Database, Table)) {
    let directory = tempfile::tempdir().unwrap();
    let [place, copied] = ["place", "copied"].map(|name| directory.path().join(name));
    fs::create_dir(&place).unwrap();
    let database = Database::create(place.join("data"), options).unwrap();
    let table = database.create_table("table").unwrap();
    table.put("before", "1").unwrap();
    database.checkpoint().unwrap();
    // SAFETY: the child does what it is to do, and leaves.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let work = std::panic::AssertUnwindSafe(|| of_child(database, table));
        let code = if std::panic::catch_unwind(work).is_ok() { DONE } else { 1 };
        // SAFETY: ends the child without what its parent does at its end.
        unsafe { libc::_exit(code) };
    }
    let (begun, mut status) = (Instant::now(), 0);
    // SAFETY: waits for the child.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if begun.elapsed() > Duration::from_secs(20) {
            // SAFETY: ends the child, which is this function's.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == DONE, "the child ended with {status:#x}");

    table.put("after", "2").unwrap();
    copy_directory(&place, &copied);
    let crashed = Database::open(copied.join("data"), options).unwrap();
    assert_eq!(crashed.table("table").unwrap().get("after").unwrap().as_deref(), Some(&b"2"[..]));
    drop(table);
    database.close().unwrap();
    let again = Database::open(place.join("data"), options).unwrap();
    assert!(again.recovery().is_none());
    assert_eq!(again.table("table").unwrap().count(..).unwrap(), 2);
}

/// With and without threads of its own.
fn options() -> [Options; 2] {
    let options = Options::default().pool_bytes(4 << 20).log_buffer_bytes(4 << 20);
    [options.clone(), options.background_eviction(false).background_checkpoints(false)]
}

#[test]
fn a_child_that_drops_its_handles_leaves_the_database_to_its_parent() {
    options().iter().for_each(|options| {
        check(options, |database, table| drop((table, database)));
    });
}

#[test]
fn a_child_cannot_close_the_database_of_its_parent() {
    options().iter().for_each(|options| {
        check(options, |database, table| {
            drop(table);
            assert!(matches!(database.close(), Err(Error::Inherited)));
        });
    });
}
