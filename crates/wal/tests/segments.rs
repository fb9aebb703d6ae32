//! Files of segments are used again, and written twice only where that pays.

use std::sync::Arc;
use vellum_base::Lsn;
use vellum_vm::{Directory, FileOperation, SimulatedDisk};
use vellum_wal::{Durability, Log, LogError, LogOptions};

const SEGMENT_BYTES: u64 = 256 << 10;

fn open(disk: &SimulatedDisk) -> Log {
    let options = LogOptions {
        segment_bytes: SEGMENT_BYTES,
        buffer_bytes: 128 << 10,
        spare_segments_min: 1,
        ..LogOptions::new([7; 16])
    };
    Log::open(Arc::new(disk.clone()), &options, Lsn(0), |_| Ok::<_, LogError>(())).unwrap()
}

/// Appends so many bytes, each `flush_bytes` of them flushed; makes segments ahead as the thread in the background does.
fn append(log: &Log, bytes: u64, flush_bytes: u64, durability: Durability) {
    const RECORD_BYTES: u64 = 4080;
    let mut unflushed = 0;
    for _ in 0..bytes / RECORD_BYTES {
        let lsn = log.append(&[1; RECORD_BYTES as usize]).unwrap();
        unflushed += RECORD_BYTES;
        if unflushed >= flush_bytes {
            log.wait(lsn, durability).unwrap();
            log.prepare().unwrap();
            unflushed = 0;
        }
    }
}

fn segments(disk: &SimulatedDisk) -> u64 {
    disk.names().unwrap().iter().filter(|name| name.starts_with("segment-")).count() as u64
}

#[test]
fn a_busy_log_makes_no_segments_anew_and_a_quiet_one_gives_them_up() {
    let disk = SimulatedDisk::new(1);
    let log = open(&disk);
    let cycle = |segments: u64| {
        append(&log, segments * SEGMENT_BYTES, 32 << 10, Durability::Synced);
        log.discard(log.end()).unwrap();
    };
    cycle(12);
    cycle(12);
    let (files, resized) = (segments(&disk), disk.counts().of(FileOperation::Resize));
    assert!((12..=16).contains(&files), "{files}");
    (0..5).for_each(|_| cycle(12));
    // A cycle may begin a segment more than the one before.
    let made = disk.counts().of(FileOperation::Resize) - resized;
    assert!(segments(&disk) <= files + 1 && made <= 1, "{made} were made anew");
    (0..20).for_each(|_| cycle(1));
    assert!(segments(&disk) <= 5, "{}", segments(&disk));
}

/// How many bytes of files there are written for each byte of the log, about, while there is nothing to be used again.
fn written(flush_bytes: u64, durability: Durability) -> f64 {
    let disk = SimulatedDisk::new(2);
    let log = open(&disk);
    let before = disk.counts().bytes_written;
    append(&log, 20 * SEGMENT_BYTES, flush_bytes, durability);
    (disk.counts().bytes_written - before) as f64 / (20 * SEGMENT_BYTES) as f64
}

#[test]
fn segments_are_written_ahead_for_small_syncs_only() {
    let small = written(8 << 10, Durability::Synced);
    assert!((1.8..2.8).contains(&small), "{small}");
    for (flush_bytes, durability) in [(100 << 10, Durability::Synced), (8 << 10, Durability::Buffered)] {
        let once = written(flush_bytes, durability);
        assert!(once < 1.2, "{once}: {flush_bytes} {durability:?}");
    }
}
