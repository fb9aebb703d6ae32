//! The n-th operation fails, for every n; the disk is full; options and files are wrong.

use std::sync::Arc;
use vellum_base::Lsn;
use vellum_vm::{CrashModel, Directory, Faults, FileOperation, SimulatedDisk};
use vellum_wal::{Durability, Log, LogError, LogOptions};

fn options() -> LogOptions {
    LogOptions { segment_bytes: 16 << 10, buffer_bytes: 8 << 10, ..LogOptions::new([7; 16]) }
}

fn open(disk: &SimulatedDisk, options: &LogOptions) -> Result<(Log, Vec<Lsn>), LogError> {
    let mut found = Vec::new();
    let log = Log::open(Arc::new(disk.clone()), options, Lsn(0), |record| {
        found.push(record.lsn);
        Ok::<_, LogError>(())
    })?;
    Ok((log, found))
}

/// Appends records and syncs them one by one, over several segments; says which were acknowledged, and how it ended, or
/// whether the buffer was mapped.
fn script(disk: &SimulatedDisk) -> (Vec<Lsn>, Result<bool, LogError>) {
    let mut acknowledged = Vec::new();
    let outcome = (|| {
        let (log, _) = open(disk, &options())?;
        for number in 0..60 {
            let lsn = log.append(&vec![number; 900])?;
            log.wait(lsn, Durability::Synced)?;
            acknowledged.push(lsn);
        }
        Ok(log.has_mapped_buffer())
    })();
    (acknowledged, outcome)
}

#[test]
fn whatever_operation_fails_what_was_acknowledged_is_there() {
    let mut n = 1;
    loop {
        let disk = SimulatedDisk::new(n);
        disk.fail_nth(n);
        let (acknowledged, outcome) = script(&disk);
        let failed = disk.counts().scheduled_failures > 0;
        // Without its file the buffer lies in memory.
        let is_hindered = !matches!(outcome, Ok(true));
        assert_eq!(is_hindered, failed, "operation {n}: {outcome:?}");
        let (_, found) =
            open(&disk.crash(), &options()).unwrap_or_else(|error| panic!("operation {n}: {error}"));
        assert!(found.starts_with(&acknowledged), "operation {n}: {} of {}", found.len(), acknowledged.len());
        if !failed {
            break;
        }
        n += 1;
    }
    assert!(n > 150, "only {n} operations were tried");
}

#[test]
fn after_a_failed_sync_nothing_is_accepted_and_the_error_says_why() {
    let disk = SimulatedDisk::new(1);
    let (log, _) = open(&disk, &options()).unwrap();
    let first = log.append(b"first").unwrap();
    log.wait(first, Durability::Synced).unwrap();
    disk.fail_nth_of(vellum_vm::FileOperation::Sync, 1);
    let second = log.append(b"second").unwrap();
    for _ in 0..2 {
        let error = log.wait(second, Durability::Synced).unwrap_err();
        assert!(matches!(error, LogError::OutcomeUnknown { .. }), "{error}");
        assert!(error.to_string().contains("is unknown: open the database anew"), "{error}");
    }
    // What was durable is.
    log.wait(first, Durability::Synced).unwrap();
    drop(log);
    assert!(open(&disk.crash(), &options()).unwrap().1.contains(&first));
}

#[test]
fn no_other_thread_makes_up_for_a_failed_sync() {
    for seed in 0..200 {
        let disk = SimulatedDisk::new(seed);
        let (log, _) = open(&disk, &options()).unwrap();
        disk.fail_nth_of(vellum_vm::FileOperation::Sync, 1 + seed % 20);
        let acknowledged = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    // The failure may also be that of a segment's name, which ends only one thread.
                    for _ in 0..200 {
                        let Ok(lsn) = log.append(&[1; 1900]) else { break };
                        if log.wait(lsn, Durability::Synced).is_err() {
                            break;
                        }
                        acknowledged.lock().unwrap().push(lsn);
                    }
                });
            }
        });
        drop(log);
        let (_, found) = open(&disk.crash_with(CrashModel::LoseAll), &options()).unwrap();
        let acknowledged = acknowledged.into_inner().unwrap();
        let lost = acknowledged.iter().find(|lsn| !found.contains(lsn));
        assert_eq!(lost, None, "seed {seed}: {} records of {}", found.len(), acknowledged.len());
    }
}

#[test]
fn a_full_disk_refuses_and_when_there_is_room_it_goes_on() {
    let disk = SimulatedDisk::new(1);
    let options = options();
    let (log, _) = open(&disk, &options).unwrap();
    disk.set_faults(Faults { capacity_bytes: Some(4096), ..Faults::default() });
    let mut appended = Vec::new();
    let error = loop {
        match log.append(&[1; 900]).and_then(|lsn| log.wait(lsn, Durability::Synced).map(|()| lsn)) {
            Ok(lsn) => appended.push(lsn),
            Err(error) => break error,
        }
        assert!(appended.len() < 1000, "a file of 4096 bytes holds no segment");
    };
    assert!(matches!(error, LogError::NoRoom { .. }), "{error}");
    assert!(error.to_string().contains("Make room on the disk"), "{error}");
    // What was accepted before is durable all the same.
    log.wait(*appended.last().unwrap(), Durability::Synced).unwrap();
    disk.heal();
    for _ in 0..100 {
        let lsn = log.append(&[2; 900]).unwrap();
        log.wait(lsn, Durability::Synced).unwrap();
        appended.push(lsn);
    }
    drop(log);
    assert_eq!(open(&disk.crash(), &options).unwrap().1, appended);
}

#[test]
fn a_segment_that_could_not_be_made_is_made_later() {
    // A new segment takes so many operations; in which of them it fails makes no difference.
    for n in 1..12 {
        let disk = SimulatedDisk::new(n);
        let (log, _) = open(&disk, &options()).unwrap();
        disk.fail_nth(n);
        let lsn = match log.append(&[1; 900]) {
            Err(error) => {
                assert!(matches!(error, LogError::NoRoom { .. }), "operation {n}: {error}");
                log.append(&[1; 900]).unwrap_or_else(|error| panic!("operation {n}: {error}"))
            }
            // It failed later, or in what the simulated disk repeats.
            Ok(lsn) => lsn,
        };
        if disk.counts().scheduled_failures > 0 {
            log.wait(lsn, Durability::Synced).unwrap();
            drop(log);
            assert_eq!(open(&disk.crash(), &options()).unwrap().1, [lsn], "operation {n}");
        }
    }
}

#[test]
fn the_log_of_another_database_or_version_is_refused() {
    let disk = SimulatedDisk::new(1);
    let (log, _) = open(&disk, &options()).unwrap();
    assert!(matches!(open(&disk, &options()), Err(LogError::Open(_))), "one log is open once");
    drop(log);
    let other = LogOptions { database: [8; 16], ..options() };
    let Err(error) = open(&disk, &other) else { panic!("it is another one's") };
    assert_eq!(
        error.to_string(),
        "segment-0000000000000001, where the log should be, is not part of this database's log but of another one's: move it to \
         its database, or remove it if there is none any more"
    );
    // A log keeps its size of segments.
    let larger = LogOptions { segment_bytes: 1 << 20, ..options() };
    let (log, _) = open(&disk, &larger).unwrap();
    for _ in 0..30 {
        log.wait(log.append(&[1; 900]).unwrap(), Durability::Synced).unwrap();
    }
    assert!(disk.names().unwrap().len() > 2);
}

#[test]
fn wrong_options_and_records_that_are_too_long_are_refused() {
    let disk = SimulatedDisk::new(1);
    for (segment_bytes, buffer_bytes) in
        [(4096, 8192), (10_000, 8192), (8192, 4096), (8192, 12288), (0, 0), (1 << 41, 8192)]
    {
        let options = LogOptions { segment_bytes, buffer_bytes, ..options() };
        let Err(error @ LogError::Option { option, .. }) = open(&disk, &options) else {
            panic!("a segment of {segment_bytes} bytes and a buffer of {buffer_bytes} are not refused");
        };
        // It tells of the option that is wrong, and of no other.
        let is_segment = option == "log_segment_bytes";
        assert_eq!(error.to_string().contains("tebibyte"), is_segment, "{error}");
        assert_eq!(error.to_string().contains("power of two"), !is_segment, "{error}");
    }
    let (log, _) = open(&disk, &options()).unwrap();
    let longest = options().record_bytes_max();
    let lsn = log.append(&vec![1; longest]).unwrap();
    let error = log.append(&vec![1; longest + 1]).unwrap_err();
    assert_eq!(error.to_string(), "a log record of 2033 bytes is too long: at most 2032 bytes fit");
    log.wait(lsn, Durability::Synced).unwrap();
}

#[test]
fn a_log_is_read_from_where_it_was_discarded_or_the_error_says_what_is_missing() {
    let disk = SimulatedDisk::new(1);
    let options = || LogOptions { spare_segments_min: 0, ..options() };
    let (log, _) = open(&disk, &options()).unwrap();
    let appended: Vec<_> = (0..60).map(|_| log.append(&[1; 900]).unwrap()).collect();
    log.wait(appended[59], Durability::Synced).unwrap();
    log.discard(appended[40]).unwrap();
    drop(log);
    let read = |from: Lsn| {
        let mut found = Vec::new();
        Log::open(Arc::new(disk.crash()), &options(), from, |record| {
            found.push(record.lsn);
            Ok::<_, LogError>(())
        })
        .map(|_| found)
    };
    assert_eq!(read(appended[40]).unwrap(), appended[40..]);
    let error = read(appended[0]).unwrap_err().to_string();
    let says = ["the log is needed from LSN ", "and begins at LSN ", "was not closed"];
    assert!(says.iter().all(|words| error.contains(words)), "{error}");
}

#[test]
fn a_removed_log_leaves_nothing_and_the_next_goes_on_after_it() {
    let disk = SimulatedDisk::new(1);
    let (log, _) = open(&disk, &options()).unwrap();
    for _ in 0..60 {
        log.append(&[1; 900]).and_then(|lsn| log.wait(lsn, Durability::Synced)).unwrap();
    }
    let end = log.end();
    log.remove().unwrap();
    let error = log.append(b"late").and_then(|lsn| log.wait(lsn, Durability::Buffered)).unwrap_err();
    assert!(matches!(error, LogError::Closed), "{error}");
    assert!(log.prepare().is_err(), "no segments are made for it any more");
    assert_eq!(disk.names().unwrap(), [""; 0]);
    drop(log);
    let disk = disk.crash_with(CrashModel::LoseAll);
    assert_eq!(disk.names().unwrap(), [""; 0]);

    // What is needed of it is missing; what is not can be begun anew, with other segments too.
    let read = Log::open(Arc::new(disk.clone()), &options(), end, |_| Ok::<_, LogError>(()));
    assert!(matches!(read, Err(LogError::Missing { from, .. }) if from == end));
    let options = LogOptions { least: end, segment_bytes: 64 << 10, ..options() };
    let log = Log::begin(Arc::new(disk.clone()), &options).unwrap();
    assert!(log.end() >= end && log.reread(log.end()).is_err());
    let (begun, lsn) = (log.end(), log.append(b"new").unwrap());
    log.wait(lsn, Durability::Synced).unwrap();
    drop(log);
    let log = Log::open(Arc::new(disk.crash()), &options, begun, |record| {
        assert_eq!((record.lsn, record.payload), (lsn, &b"new"[..]));
        Ok::<_, LogError>(())
    });
    let mut again = log.as_ref().unwrap().reread(begun).unwrap();
    assert_eq!(again.next().unwrap().map(|record| record.lsn), Some(lsn));
    assert_eq!(again.next().unwrap(), None, "the log has begun anew here");
}

#[test]
fn whatever_operation_fails_while_a_log_is_removed_the_next_begins_after_it() {
    for segment_bytes in [8 << 10, 16 << 10, 64 << 10] {
        fail_while_a_log_is_removed(&LogOptions { segment_bytes, ..options() });
    }
}

/// The next log has these options.
fn fail_while_a_log_is_removed(next: &LogOptions) {
    let mut n = 1;
    loop {
        let disk = SimulatedDisk::new(n);
        let (log, _) = open(&disk, &options()).unwrap();
        for number in 0..60 {
            log.append(&[number; 900]).and_then(|lsn| log.wait(lsn, Durability::Synced)).unwrap();
        }
        let end = log.end();
        log.prepare().unwrap();
        disk.fail_from(n);
        let is_removed = log.remove().is_ok();
        drop(log);
        disk.heal();
        let disk = if n.is_multiple_of(2) { disk.crash() } else { disk };
        let log = Log::begin(Arc::new(disk.clone()), &LogOptions { least: end, ..next.clone() }).unwrap();
        let begun = log.end();
        assert!(begun >= end, "operation {n}: {begun} is used again");
        let names = disk.names().unwrap();
        let segments = names.iter().filter(|name| name.starts_with("segment-")).count();
        assert!(segments <= 1 + options().spare_segments_min && names.len() <= segments + 1, "operation {n}");
        let appended: Vec<_> = (0..60).map(|_| log.append(&[7; 900]).unwrap()).collect();
        log.wait(appended[59], Durability::Synced).unwrap();
        drop(log);
        let mut found = Vec::new();
        let log = Log::open(Arc::new(disk.crash()), next, begun, |record| {
            found.push(record.lsn);
            Ok::<_, LogError>(())
        });
        assert!(log.is_ok() && found == appended, "operation {n}: {} records, {:?}", found.len(), log.err());
        if is_removed {
            break;
        }
        n += 1;
    }
    assert!(n > 5, "only {n} operations were tried");
}

#[test]
fn an_error_of_reading_names_the_file() {
    let disk = SimulatedDisk::new(3);
    let (log, _) = open(&disk, &options()).unwrap();
    let lsn = log.append(&[1; 1000]).unwrap();
    log.wait(lsn, Durability::Synced).unwrap();
    let left = disk.kill();
    drop(log);
    let mut named = 0;
    for read in 1.. {
        let failing = left.kill();
        failing.fail_nth_of(FileOperation::Read, read);
        let opened = Log::open(Arc::new(failing), &options(), lsn, |_| Ok::<_, LogError>(()));
        let Err(error) = opened else { break };
        named += usize::from(error.to_string().starts_with("cannot read segment-0000000000000"));
    }
    // Its first page, and its contents.
    assert!(named >= 2, "{named}");
}
