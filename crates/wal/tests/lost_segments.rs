//! Segments that have lost their first page, or their name, are no end of the log.

mod small;

use small::{open, options};
use std::sync::Arc;
use vellum_base::Lsn;
use vellum_vm::{Directory as _, File as _, SimulatedDisk};
use vellum_wal::{Durability, Log, LogError, segment_name};

const PAYLOAD: u64 = 12 << 10;

/// A timeline whose first segment has lost its first page, or is gone, is no end of the one before.
#[test]
fn a_lost_header_of_a_new_timeline_is_noticed() {
    for (records, durability) in [(1, Durability::Synced), (3, Durability::Synced), (2, Durability::Buffered)]
    {
        let disk = SimulatedDisk::new(6);
        let (log, _) = open(&disk, &options());
        log.wait(log.append(b"before").unwrap(), Durability::Synced).unwrap();
        drop(log);
        let (log, _) = open(&disk, &options());
        let segment = segment_name(log.end().0 / PAYLOAD);
        for _ in 0..records {
            log.wait(log.append(b"after").unwrap(), durability).unwrap();
        }
        let left = disk.kill();
        drop(log);
        let told = |disk: SimulatedDisk, what| {
            for _ in 0..2 {
                let opened = Log::open(Arc::new(disk.kill()), &options(), Lsn(0), |_| Ok(()));
                let error = opened.map(|_| ()).unwrap_err();
                let is_told = matches!(&error, LogError::HeaderLost { segment: told } if *told == segment);
                assert!(is_told, "{records} {durability:?} {what}: {error}");
            }
        };
        for bit in [0, 8 * 33, 8 * 4090] {
            let damaged = left.kill();
            damaged.file(&segment).flip_bit(bit);
            told(damaged, "damaged");
        }
        let blank = left.kill();
        blank.file(&segment).overwrite(0, &[0; 4096]);
        told(blank, "blank");
        let gone = left.kill();
        gone.remove(&segment).unwrap();
        told(gone, "gone");
        let cut = left.kill();
        cut.file(&segment).truncate(0).unwrap();
        told(cut, "cut");
        let (_, found) = open(&left, &options());
        assert_eq!(found.len(), 1 + records);
    }
}

/// Two segments have got each other's name, at any place of the log.
#[test]
fn segments_that_are_exchanged_are_noticed() {
    let disk = SimulatedDisk::new(7);
    let (log, _) = open(&disk, &options());
    let first = log.end().0 / PAYLOAD;
    while log.end().0 < (first + 4) * PAYLOAD {
        log.wait(log.append(&[7; 1000]).unwrap(), Durability::Synced).unwrap();
    }
    let last = log.end().0 / PAYLOAD;
    let left = disk.kill();
    drop(log);
    left.remove("buffer").unwrap();
    let (_, found) = open(&left.kill(), &options());
    for one in first..=last {
        for other in one + 1..=last {
            let exchanged = left.kill();
            for (from, to) in [
                (segment_name(one), "x".into()),
                (segment_name(other), segment_name(one)),
                ("x".into(), segment_name(other)),
            ] {
                exchanged.rename(&from, &to).unwrap();
            }
            let opened =
                Log::open(Arc::new(exchanged.kill()), &options(), found[0], |_| Ok::<_, LogError>(()));
            assert!(opened.is_err(), "{one} and {other} of {first} to {last}");
            if one > first {
                let opened = Log::open(Arc::new(exchanged), &options(), Lsn(0), |_| Ok::<_, LogError>(()));
                assert!(opened.is_err(), "{one} and {other} of {first} to {last}");
            }
        }
    }
}
