//! A log knows the last durable checkpoint of its database, so that an older copy of the file is told.

mod small;

use small::{open, options};
use std::sync::Arc;
use vellum_base::Lsn;
use vellum_vm::SimulatedDisk;
use vellum_wal::{Durability, Log, LogError};

fn append(log: &Log) -> Lsn {
    let lsn = log.append(&[1; 2000]).unwrap();
    log.wait(lsn, Durability::Synced).unwrap();
    lsn
}

#[test]
fn the_last_checkpoint_is_known_as_long_as_its_log_is_there() {
    let mut disk = SimulatedDisk::new(1);
    let mut known = Lsn(0);
    for round in 0..60_u64 {
        let (log, _) = open(&disk, &options());
        assert_eq!(log.known_checkpoint(), known, "round {round}");
        // Into other segments and not; and with what is logged before the mark, which is durable with what comes next.
        (0..round % 7).for_each(|_| {
            append(&log);
        });
        if round % 3 > 0 {
            let redo = append(&log);
            log.note_checkpoint(redo).unwrap();
            known = redo;
        }
        (0..1 + round % 5).for_each(|_| {
            append(&log);
        });
        disk = if round % 2 > 0 { disk.crash() } else { disk };
    }
}

/// What a checkpoint gives up is recycled, with its mark, and the last one stays.
#[test]
fn recycled_segments_say_nothing_of_checkpoints() {
    let mut disk = SimulatedDisk::new(2);
    let mut known = Lsn(0);
    for round in 0..20_u64 {
        let log = Log::open(Arc::new(disk.clone()), &options(), known, |_| Ok::<_, LogError>(())).unwrap();
        assert_eq!(log.known_checkpoint(), known);
        for _ in 0..round % 4 {
            (0..20).for_each(|_| {
                append(&log);
            });
            known = append(&log);
            log.note_checkpoint(known).unwrap();
            log.discard(known).unwrap();
        }
        append(&log);
        drop(log);
        disk = disk.crash();
    }
    let log = Log::open(Arc::new(disk.clone()), &options(), known, |_| Ok::<_, LogError>(())).unwrap();
    // Nothing of a checkpoint that was noted after the log has failed reaches a file.
    log.remove().unwrap();
    log.note_checkpoint(Lsn(u64::MAX)).unwrap();
    let (log, _) = open(&disk, &options());
    assert_eq!(log.known_checkpoint(), Lsn(0));
}
