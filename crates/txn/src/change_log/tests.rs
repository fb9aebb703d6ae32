//! Groups of records on a full device.

use super::*;
use std::{sync::Arc, thread};
use vellum_pool::undoing;
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
