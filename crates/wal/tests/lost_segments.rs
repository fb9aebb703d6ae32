//! Segments that have lost their first page, or their name, are no end of the log.

mod small;

use small::{open, options};
use std::sync::Arc;
use vellum_base::Lsn;
use vellum_vm::{Directory as _, File as _, SimulatedDisk};
use vellum_wal::{Durability, Log, LogError, LogOptions, segment_name};

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

/// The last segment of a timeline has lost its first page, and all that it holds came by one sync.
#[test]
fn a_lost_header_of_a_segment_that_was_synced_once_is_noticed() {
    let options = LogOptions { buffer_bytes: 256 << 10, ..options() };
    let mut told = 0;
    // Records that cross into the segment, or begin with it, or take all of it; and how many more come by the same sync.
    for (bytes, more) in
        [(1000, 0), (1000, 5), (1008, 0), (PAYLOAD / 4 - 16, 0), (PAYLOAD / 4 - 16, 2), (30_000, 0)]
    {
        let disk = SimulatedDisk::new(12);
        let (log, _) = open(&disk, &options);
        let first = log.end().0 / PAYLOAD;
        let append = || log.append(&vec![7; bytes as usize]).unwrap();
        while log.end().0 + bytes + 16 <= (first + 1) * PAYLOAD {
            log.wait(append(), Durability::Synced).unwrap();
        }
        let last = (0..more).fold(append(), |_, _| append());
        log.wait(last, Durability::Synced).unwrap();
        let left = disk.kill();
        drop(log);
        left.remove("buffer").unwrap();
        let numbers = first + 1..=(last.0 + bytes) / PAYLOAD;
        assert!(!numbers.is_empty());
        for number in numbers {
            let segment = segment_name(number);
            for bit in [None, Some(0), Some(8 * 33), Some(8 * 4090)] {
                let damaged = left.kill();
                match bit {
                    Some(bit) => damaged.file(&segment).flip_bit(bit),
                    None => damaged.file(&segment).overwrite(0, &[0; 4096]),
                }
                let opened = Log::open(Arc::new(damaged), &options, Lsn(0), |_| Ok::<_, LogError>(()));
                match opened.map(|_| ()).expect_err("records are lost") {
                    LogError::HeaderLost { segment: lost } => assert_eq!(lost, segment),
                    // It came by two syncs.
                    error => {
                        assert!(matches!(error, LogError::Hole { .. }), "{bytes} {more} {bit:?}: {error}")
                    }
                }
                told += 1;
            }
        }
        let (_, found) = open(&left, &options);
        assert_eq!(found.last(), Some(&last));
    }
    assert!(told >= 24, "{told}");
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

/// The last segment of a timeline is gone, with all that was committed last, and the buffer with it.
#[test]
fn a_last_segment_that_is_gone_is_noticed() {
    for durability in [Durability::Synced, Durability::Buffered] {
        let disk = SimulatedDisk::new(8);
        let (log, _) = open(&disk, &options());
        let first = log.end().0 / PAYLOAD;
        let mut noticed = 0;
        for count in 1..60 {
            log.wait(log.append(&[7; 1000]).unwrap(), durability).unwrap();
            let last = log.end().0 / PAYLOAD;
            let left = disk.kill();
            left.remove("buffer").unwrap();
            let whole = left.kill();
            left.remove(&segment_name(last)).unwrap();
            let opened = Log::open(Arc::new(left), &options(), Lsn(0), |_| Ok::<_, LogError>(()));
            // Of the first one the database knows that it is there, and in another there may not be anything yet.
            if last > first && log.horizon(Durability::Synced) > Lsn(last * PAYLOAD) {
                let told = opened.map(|_| ()).unwrap_err();
                assert!(
                    matches!(&told, LogError::HeaderLost { segment } if *segment == segment_name(last)),
                    "{told}"
                );
                noticed += 1;
            }
            let (again, found) = open(&whole, &options());
            assert!(durability == Durability::Buffered || found.len() == count);
            drop(again);
            // The next opening may recycle the file of a segment that was not begun.
            open(&whole.crash(), &options());
        }
        assert!(noticed > 20 || durability == Durability::Buffered, "{noticed}");
    }
}

/// The file of a database is an older copy, which was closed, and the only segment of the log that its original wrote since has lost its
/// first page.
#[test]
fn a_log_after_a_close_that_has_lost_its_header_is_newer() {
    let disk = SimulatedDisk::new(13);
    let log = Log::begin(Arc::new(disk.clone()), &options()).unwrap();
    log.wait(log.append(b"before").unwrap(), Durability::Synced).unwrap();
    let closed = LogOptions { least: log.end(), ..options() };
    let removed = disk.kill();
    log.remove().unwrap();
    drop(log);
    let refuse = |disk: &SimulatedDisk| {
        let directory: Arc<dyn vellum_vm::Directory> = Arc::new(disk.clone());
        vellum_wal::refuse_newer(&directory, &closed)
    };
    refuse(&disk).unwrap();
    // The log from before could not be removed, and has lost its first page.
    removed.file(&segment_name(0)).flip_bit(8 * 33);
    removed.file(&segment_name(1)).flip_bit(8 * 33);
    refuse(&removed).unwrap();
    let log = Log::begin(Arc::new(disk.clone()), &closed).unwrap();
    let segment = segment_name(log.end().0 / PAYLOAD);
    log.wait(log.append(&[7; 2000]).unwrap(), Durability::Synced).unwrap();
    for bit in [0, 8 * 33, 8 * 4090] {
        let left = disk.kill();
        left.file(&segment).flip_bit(bit);
        assert!(matches!(refuse(&left), Err(LogError::Newer { .. })), "{bit}");
    }
}

/// All segments of the last opening are gone, whose life the database knows.
#[test]
fn a_last_life_that_is_gone_is_noticed() {
    let options = |life, last_life| LogOptions { life, last_life, ..options() };
    let disk = SimulatedDisk::new(9);
    let (log, _) = open(&disk, &options(1, 0));
    log.wait(log.append(b"first").unwrap(), Durability::Synced).unwrap();
    drop(log);
    let (log, _) = open(&disk, &options(2, 1));
    let second = segment_name(log.end().0 / PAYLOAD);
    drop(log);
    // Nothing was logged; but that cannot be known.
    let gone = disk.kill();
    gone.remove(&second).unwrap();
    let told = Log::open(Arc::new(gone.kill()), &options(3, 2), Lsn(0), |_| Ok::<_, LogError>(()));
    let told = told.map(|_| ()).unwrap_err();
    assert!(matches!(told, LogError::LastLifeMissing { life: 2 }), "{told}");
    // The same if its segment lost its first page.
    let damaged = disk.kill();
    damaged.file(&second).flip_bit(8 * 33);
    let told = Log::open(Arc::new(damaged), &options(3, 2), Lsn(0), |_| Ok::<_, LogError>(()));
    assert!(matches!(told.map(|_| ()).unwrap_err(), LogError::LastLifeMissing { life: 2 }));
    // A life that is taken back is not looked for, however often that happens, and takes no room.
    let mut files = None;
    for life in 3..40 {
        let (log, found) = open(&disk, &options(life, life - 1));
        assert_eq!(found.len(), 1);
        log.withdraw().unwrap();
        drop(log);
        let there = disk.names().unwrap().len();
        assert_eq!(*files.get_or_insert(there), there);
        let crashed = disk.crash();
        open(&crashed, &options(life + 1, life));
    }
    let (_, found) = open(&disk, &options(41, 39));
    assert_eq!(found.len(), 1);
}
