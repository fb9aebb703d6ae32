//! Readers that follow a log whose files disappear in front of them.

use std::sync::Arc;
use vellum_base::Lsn;
use vellum_vm::{Directory, SimulatedDisk};
use vellum_wal::{
    Archive, ArchiveError, Durability, FollowedLog, FollowingReader, LifeEnds, Log, LogArchiver, LogError,
    LogOptions, LogReader, ReadableLives, segment_name,
};

fn options(least: Lsn) -> LogOptions {
    LogOptions { segment_bytes: 16 << 10, buffer_bytes: 8 << 10, least, ..LogOptions::new([1; 16]) }
}

fn begin(disk: &SimulatedDisk) -> Arc<Log> {
    Arc::new(Log::begin(Arc::new(disk.clone()), &options(Lsn(0))).unwrap())
}

fn archive(log: &Arc<Log>) -> LogArchiver {
    let archive = Archive::new(Arc::new(SimulatedDisk::new(2)), [1; 16]);
    LogArchiver::start(log.clone(), archive).unwrap()
}

/// Appends records that take 1120 bytes of a log whose segments hold 12 KiB. Most segments end inside one.
fn append(log: &Log, count: usize) -> Vec<Lsn> {
    let appended: Vec<_> = (0..count).map(|_| log.append(&[1; 1100]).unwrap()).collect();
    log.wait(*appended.last().unwrap(), Durability::Synced).unwrap();
    appended
}

/// The numbers of the segments, in order.
fn segments(disk: &SimulatedDisk) -> Vec<u64> {
    (0..100).filter(|number| disk.names().unwrap().contains(&segment_name(*number))).collect()
}

/// Reads up to `count` records before `to`; what was read also comes with an error.
fn read(reader: &mut FollowingReader, to: Lsn, count: usize) -> (Vec<Lsn>, Result<(), LogError>) {
    let mut found = Vec::new();
    let outcome = reader.read(to, |record| {
        found.push(record.lsn);
        Ok(found.len() < count)
    });
    (found, outcome)
}

#[track_caller]
fn read_all(reader: &mut FollowingReader, to: Lsn) -> Vec<Lsn> {
    let (found, outcome) = read(reader, to, usize::MAX);
    outcome.unwrap();
    found
}

#[track_caller]
fn assert_missing(outcome: Result<(), LogError>) {
    assert!(matches!(outcome, Err(LogError::Missing { .. })), "{outcome:?}");
}

#[test]
fn a_file_that_was_removed_is_read_from_the_archive() {
    let all = {
        let disk = SimulatedDisk::new(1);
        append(&begin(&disk), 100);
        segments(&disk)
    };
    // One file or two, where a reader is, before it, and after it. The last segment is still written.
    for removed in all[..all.len() - 1].windows(2).flat_map(|pair| [&pair[..1], pair]) {
        let disk = SimulatedDisk::new(1);
        let log = begin(&disk);
        let appended = append(&log, 100);
        let archiver = archive(&log);
        let to = archiver.archive_all(false).unwrap();
        let followed = FollowedLog::new(log.clone(), Some(archiver.checked()));
        let mut living = followed.read(appended[0]);
        assert_eq!(read(&mut living, to, 30).0, appended[..30]);
        removed.iter().for_each(|number| disk.remove(&segment_name(*number)).unwrap());
        assert_eq!(read(&mut living, to, 30).0, appended[30..60], "{removed:?}");
        assert_eq!(read_all(&mut living, to), appended[60..], "{removed:?}");
        for from in [0, 11, 12, 13, 50, 99] {
            assert_eq!(read_all(&mut followed.read(appended[from]), to), appended[from..], "{removed:?}");
        }
        // What the log has, and the archive does not, follows.
        drop(archiver);
        let later = append(&log, 30);
        assert_eq!(read_all(&mut living, log.end()), later);
    }
}

#[test]
fn what_was_removed_and_is_not_in_the_archive_is_missing() {
    let disk = SimulatedDisk::new(1);
    let log = begin(&disk);
    let mut appended = append(&log, 50);
    let archiver = archive(&log);
    let archived = archiver.archive_all(false).unwrap();
    let followed = FollowedLog::new(log.clone(), Some(archiver.checked()));
    drop(archiver);
    appended.append(&mut append(&log, 70));
    let all = segments(&disk);
    let mut living = followed.read(appended[0]);
    assert_eq!(read(&mut living, log.end(), 5).0, appended[..5]);
    // The archive has it up to the middle of this segment.
    let half = all[4];
    disk.remove(&segment_name(half)).unwrap();
    for reader in [&mut living, &mut followed.read(appended[5])] {
        let (found, outcome) = read(reader, log.end(), usize::MAX);
        assert_eq!(found, appended[5..50]);
        assert_missing(outcome);
        assert_eq!(reader.at(), archived);
        let (found, outcome) = read(reader, log.end(), usize::MAX);
        assert_eq!(found, []);
        assert_missing(outcome);
    }
    // Beyond it all is there.
    assert_eq!(read_all(&mut followed.read(appended[70]), log.end()), appended[70..]);
    // Without an archive as well.
    let alone = FollowedLog::new(log.clone(), None);
    let (found, outcome) = read(&mut alone.read(appended[0]), log.end(), usize::MAX);
    assert_eq!(found, appended[..43]);
    assert_missing(outcome);
}

/// The archive ends with a segment, in the middle of a record.
#[test]
fn the_rest_of_a_record_may_be_missing() {
    let disk = SimulatedDisk::new(1);
    let log = begin(&disk);
    let mut appended = append(&log, 60);
    let archiver = archive(&log);
    while archiver.state().end.is_none_or(|end| end <= appended[54]) {
        std::thread::yield_now();
    }
    let followed = FollowedLog::new(log.clone(), Some(archiver.checked()));
    drop(archiver);
    appended.append(&mut append(&log, 30));
    let (all, end) = (segments(&disk), log.end());
    disk.remove(&segment_name(all[1])).unwrap();
    assert_eq!(read_all(&mut followed.read(appended[0]), end), appended);
    disk.remove(&segment_name(all[5])).unwrap();
    let (found, outcome) = read(&mut followed.read(appended[0]), end, usize::MAX);
    assert_eq!(found, appended[..54]);
    assert_missing(outcome);
}

#[test]
fn what_the_log_gives_up_in_front_of_a_reader_is_read() {
    let disk = SimulatedDisk::new(1);
    let log = begin(&disk);
    let mut appended = append(&log, 100);
    let archiver = archive(&log);
    archiver.archive_all(false).unwrap();
    let followed = FollowedLog::new(log.clone(), Some(archiver.checked()));
    let mut living = followed.read(appended[0]);
    assert_eq!(read(&mut living, log.end(), 5).0, appended[..5]);
    for _ in 0..3 {
        log.discard(log.end()).unwrap();
        appended.append(&mut append(&log, 100));
        archiver.archive_all(false).unwrap();
    }
    assert_eq!(read_all(&mut living, log.end()), appended[5..]);
    assert_eq!(read_all(&mut followed.read(appended[0]), log.end()), appended);
}

#[test]
fn a_reader_that_outlives_the_log_reads_the_archive() {
    let disk = SimulatedDisk::new(1);
    let log = begin(&disk);
    let mut appended = append(&log, 100);
    let archiver = archive(&log);
    let followed = FollowedLog::new(log.clone(), Some(archiver.checked()));
    let (mut living, mut lasting) = (followed.read(appended[0]), followed.read(appended[0]));
    assert_eq!(read(&mut living, log.end(), 5).0, appended[..5]);
    // This one has opened the archive before that has all of the log.
    archiver.archive_all(false).unwrap();
    log.discard(log.end()).unwrap();
    assert_eq!(read(&mut lasting, log.end(), 5).0, appended[..5]);
    appended.append(&mut append(&log, 40));
    let end = archiver.archive_all(true).unwrap();
    drop(archiver);
    let alone = FollowedLog::new(log.clone(), None);
    let (mut late, mut ended) = (alone.read(appended[130]), alone.read(appended[130]));
    assert_eq!(read(&mut late, end, 2).0, appended[130..132]);
    assert_eq!(read_all(&mut ended, end), appended[130..]);
    log.remove().unwrap();
    // Another database has its log in the same place.
    let other = Log::begin(Arc::new(disk.clone()), &LogOptions { database: [2; 16], ..options(Lsn(0)) });
    append(&other.unwrap(), 140);
    assert_eq!(read_all(&mut living, end), appended[5..]);
    assert_eq!(read_all(&mut lasting, end), appended[5..]);
    for from in [0, 12, 99, 139] {
        assert_eq!(read_all(&mut followed.read(appended[from]), end), appended[from..]);
    }
    assert_eq!(read_all(&mut ended, end), []);
    for reader in [&mut late, &mut alone.read(appended[130])] {
        let (found, outcome) = read(reader, end, usize::MAX);
        assert_eq!(found, []);
        assert_missing(outcome);
    }
}

/// A place that was reserved in vain lies directly before the place up to which it is read.
#[test]
fn a_void_before_the_end_of_what_is_wanted_is_passed_over() {
    let disk = SimulatedDisk::new(1);
    let log = begin(&disk);
    let mut appended = append(&log, 2);
    let reserved = [0, 600, 40].map(|bytes| log.reserve(bytes).unwrap().lsn());
    appended.append(&mut append(&log, 100));
    let archiver = archive(&log);
    archiver.archive_all(false).unwrap();
    let followed = FollowedLog::new(log.clone(), Some(archiver.checked()));
    for is_discarded in [false, true] {
        if is_discarded {
            log.discard(log.end()).unwrap();
        }
        for from in [appended[0], appended[1], reserved[0], reserved[2]] {
            let before: Vec<_> = appended[..2].iter().copied().filter(|lsn| *lsn >= from).collect();
            let mut reader = followed.read(from);
            // Up to each of the voids, and up to what follows on them.
            for to in reserved.into_iter().chain([appended[2]]).filter(|to| *to > from) {
                assert_eq!(read_all(&mut followed.read(from), to), before, "{from} to {to}");
                let expected = if reader.at() == from { &before[..] } else { &[] };
                assert_eq!(read_all(&mut reader, to), expected, "{from} to {to}");
                assert_eq!(reader.at(), to);
            }
            assert_eq!(read_all(&mut reader, log.end()), appended[2..]);
        }
    }
}

/// What the process has in memory, in MiB.
fn resident_mib() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 256
}

/// A feed stops after the commit that it tells, and waits for the next one. Each took 2 MiB meanwhile, all of which was
/// cleared for each commit.
#[test]
fn readers_that_have_stopped_at_the_end_take_little_memory() {
    let disk = SimulatedDisk::new(1);
    let log = begin(&disk);
    let followed = FollowedLog::new(log.clone(), None);
    let mut readers: Vec<_> = (0..400).map(|_| followed.read(log.end())).collect();
    let before = resident_mib();
    for _ in 0..3 {
        let appended = append(&log, 1);
        for reader in &mut readers {
            let (found, outcome) = read(reader, log.end(), 1);
            assert_eq!(found, appended);
            outcome.unwrap();
        }
    }
    let taken = resident_mib().saturating_sub(before);
    assert!(taken < 200, "{taken} MiB");
}

/// Another life had begun there, so it was a copy that went on.
#[test]
fn what_a_life_has_logged_after_its_end_is_of_another_history() {
    let disk = SimulatedDisk::new(1);
    let options = LogOptions { life: 1, ..options(Lsn(0)) };
    let log = Arc::new(Log::begin(Arc::new(disk.clone()), &options).unwrap());
    log.lives.note(Lsn(0), 1);
    let appended = append(&log, 40);
    let archiver = archive(&log);
    archiver.archive_all(false).unwrap();
    for at in [1, 9, 10, 11, 39] {
        let lives = [(Lsn(0), 1), (appended[at], 2)];
        let mut archived = archiver.archive().read(appended[0]).unwrap();
        archived.expect_lives(appended[at], &lives, 16 << 10).unwrap();
        (0..at).for_each(|at| assert_eq!(archived.next().unwrap().unwrap().lsn, appended[at]));
        assert!(matches!(archived.next(), Err(ArchiveError::OtherHistory { .. })), "{at}");

        let numbers = lives.iter().map(|(_, number)| *number).collect();
        let readable = ReadableLives::only(numbers, Lsn(0)..appended[at]).that_end(LifeEnds::of(&lives));
        let reading = LogOptions { life: 0, readable, ..options.clone() };
        let mut logged = LogReader::open(Arc::new(disk.kill()), &reading, appended[0]).unwrap();
        (0..at).for_each(|at| assert_eq!(logged.next().unwrap().unwrap().lsn, appended[at]));
        assert!(matches!(logged.next(), Err(LogError::OtherLife { .. })), "{at}");
    }
}
