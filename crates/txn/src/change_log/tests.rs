//! Groups of records on a full device.

use super::*;
use std::{sync::Arc, thread};
use vellum_pool::{Navigation as _, PoolError, PoolFile, PoolOptions, undoing};
use vellum_vm::SimulatedDisk;
use vellum_wal::LogOptions;

/// A group that has begun cannot wait for a checkpoint, which would wait for the group.
#[test]
fn a_group_that_has_begun_has_room_though_others_have_used_what_it_found() {
    let disk = Arc::new(SimulatedDisk::new(1));
    let options = LogOptions { segment_bytes: 16 << 10, buffer_bytes: 64 << 10, ..LogOptions::new([1; 16]) };
    let log = Arc::new(Log::begin(disk.clone(), &options).unwrap());
    let changes = Changes::new(log.clone(), &LogSettings::default(), false).unwrap();
    // As changes do, which are admitted before.
    let append = || {
        let lsn = log.reserve(1008).unwrap().fill(&[1; 1008]).unwrap();
        log.wait(lsn, Durability::Synced).unwrap();
    };
    changes.begin_group();
    disk.leave_free(0);
    let others = || {
        while changes.admit().is_ok() {
            append();
        }
    };
    thread::scope(|scope| scope.spawn(others).join().unwrap());
    // A quarter of the buffer at least.
    for number in 0..16 {
        changes.admit().unwrap_or_else(|error| panic!("{number}: {error}"));
        append();
    }
    // It leaves what others need to undo their changes.
    let mut more = 0;
    while changes.admit().is_ok() {
        append();
        more += 1;
    }
    assert!(more < 64, "{more}");
    undoing(|| changes.admit()).unwrap();
    changes.end_group();
    assert!(changes.admit().is_err());
    disk.heal();
    changes.admit().unwrap();
}

/// Changed pages stay in memory then, which is why there is no room.
#[test]
fn a_pool_whose_log_has_ended_says_that_where_it_has_no_room() {
    let disk = SimulatedDisk::new(1);
    let log = Arc::new(Log::begin(Arc::new(disk.clone()), &LogOptions::new([1; 16])).unwrap());
    let changes = Arc::new(Changes::new(log.clone(), &LogSettings::default(), false).unwrap());
    let options = PoolOptions::default().pool_bytes(1 << 20).capacity_bytes(1 << 24).huge_pages(false);
    let file = PoolFile::create_on(Arc::new(disk.file("data")), &options).unwrap();
    let pool = file.start(Some(changes)).unwrap();
    assert!(matches!(pool.no_room(), PoolError::PoolExhausted { .. }));
    log.fail(io::Error::from_raw_os_error(5));
    let text = pool.no_room().to_string();
    assert!(text.contains("os error 5") && text.contains("open the database anew"), "{text}");
}
