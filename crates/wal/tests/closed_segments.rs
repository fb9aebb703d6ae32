//! Segments that are closed, and cannot be opened again: for want of descriptors, which passes, or because they are gone.

use std::{
    io,
    sync::{Arc, Mutex},
};
use vellum_base::Lsn;
use vellum_vm::{CreateMode, Directory, File, FileOptions, SimulatedDisk, VmError};
use vellum_wal::{
    Archive, Durability, FollowedLog, Log, LogArchiver, LogError, LogOptions, Record, segment_name,
};

/// A disk on which openings of files that exist fail for want of descriptors: the next `.0` succeed, and the `.1` after
/// them fail.
#[derive(Debug)]
struct ShortOfDescriptors {
    disk: SimulatedDisk,
    schedule: Mutex<(u32, u32)>,
}

impl Directory for ShortOfDescriptors {
    fn open(&self, name: &str, options: &FileOptions) -> Result<Arc<dyn File>, VmError> {
        let mut schedule = self.schedule.lock().unwrap();
        if options.create == CreateMode::OpenExisting {
            let (before, failures) = *schedule;
            if before == 0 && failures > 0 {
                schedule.1 -= 1;
                let source = io::Error::from_raw_os_error(24);
                return Err(VmError::Open { path: name.into(), action: "open", source });
            }
            schedule.0 = before.saturating_sub(1);
        }
        self.disk.open(name, options)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.disk.names()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }
}

impl ShortOfDescriptors {
    fn new() -> Arc<Self> {
        Arc::new(Self { disk: SimulatedDisk::new(1), schedule: Mutex::default() })
    }

    /// The next `before` openings succeed, and the `failures` after them fail.
    fn fail(&self, before: u32, failures: u32) {
        *self.schedule.lock().unwrap() = (before, failures);
    }

    fn has_failed(&self) -> bool {
        self.schedule.lock().unwrap().1 == 0
    }

    fn segments(&self) -> usize {
        self.names().unwrap().iter().filter(|name| name.starts_with("segment-")).count()
    }
}

fn options() -> LogOptions {
    LogOptions { segment_bytes: 16 << 10, buffer_bytes: 8 << 10, ..LogOptions::new([1; 16]) }
}

fn open(disk: &Arc<ShortOfDescriptors>) -> Result<(Arc<Log>, Vec<Lsn>), LogError> {
    let mut found = Vec::new();
    let log = Log::open(disk.clone(), &options(), Lsn(0), |record| {
        found.push(record.lsn);
        Ok::<_, LogError>(())
    })?;
    Ok((Arc::new(log), found))
}

/// Appends records of a kibibyte, of which a segment holds twelve.
fn append(log: &Log, count: usize) -> Vec<Lsn> {
    let appended: Vec<_> = (0..count).map(|_| log.append(&[1; 1008]).unwrap()).collect();
    log.wait(*appended.last().unwrap(), Durability::Synced).unwrap();
    appended
}

#[track_caller]
fn assert_passes(error: &LogError) {
    assert!(matches!(error, LogError::Open(_) | LogError::NoRoom { .. }), "{error:?}");
    assert!(error.to_string().contains("`ulimit -n`"), "{error}");
}

#[test]
fn a_log_is_opened_once_all_its_segments_can_be() {
    let disk = ShortOfDescriptors::new();
    let appended = append(&open(&disk).unwrap().0, 60);
    let (mut before, mut failures) = (0, 0);
    loop {
        let disk = Arc::new(ShortOfDescriptors { disk: disk.disk.kill(), schedule: Mutex::new((before, 1)) });
        match open(&disk) {
            Ok((_, found)) => assert_eq!(found, appended),
            Err(error) => {
                assert_passes(&error);
                failures += 1;
            }
        }
        if !disk.has_failed() {
            break;
        }
        before += 1;
    }
    assert!(failures >= 10, "{failures}");
}

#[test]
fn a_reader_goes_on_where_a_segment_could_not_be_opened() {
    let disk = ShortOfDescriptors::new();
    let appended = append(&open(&disk).unwrap().0, 100);
    let (log, _) = open(&disk).unwrap();
    let mut reader = log.reread(appended[0]).unwrap();
    let (mut read, mut failures, mut failed_at) = (Vec::new(), 0, usize::MAX);
    loop {
        // Reading ahead fails, and reading does.
        if read.len() % 12 == 3 && std::mem::replace(&mut failed_at, read.len()) != read.len() {
            disk.fail(0, 3);
        }
        match reader.next() {
            Ok(Some(record)) => read.push(record.lsn),
            Ok(None) => break,
            Err(error) => {
                assert_passes(&error);
                failures += 1;
            }
        }
    }
    assert_eq!(read, appended);
    assert!(failures >= 8, "{failures}");
}

#[test]
fn a_segment_that_could_not_be_opened_is_used_again_later() {
    let disk = ShortOfDescriptors::new();
    let (log, _) = open(&disk).unwrap();
    append(&log, 200);
    log.discard(log.end()).unwrap();
    let (files, mut appended, mut failures) = (disk.segments(), Vec::new(), 0);
    for _ in 0..100 {
        if disk.has_failed() {
            disk.fail(1, 2);
        }
        let lsn = loop {
            match log.append(&[2; 1008]).and_then(|lsn| log.wait(lsn, Durability::Synced).map(|()| lsn)) {
                Ok(lsn) => break lsn,
                Err(error) => assert_passes(&error),
            }
            failures += 1;
        };
        appended.push(lsn);
        log.discard(lsn).unwrap();
    }
    assert!(failures >= 4, "{failures}");
    assert!(disk.segments() <= files, "{} files instead of {files}: none is made anew", disk.segments());
    drop(log);
    disk.fail(0, 0);
    assert_eq!(open(&disk).unwrap().1.last(), appended.last());
}

#[test]
fn a_segment_that_was_prepared_long_before_is_opened_before_records_reach_it() {
    let disk = ShortOfDescriptors::new();
    let (log, _) = open(&disk).unwrap();
    log.keep_for_undo(400 << 10, 0);
    log.prepare().unwrap();
    let files = disk.segments();
    let (mut appended, mut failures) = (Vec::new(), 0);
    for number in 0..350 {
        if number % 100 == 0 {
            disk.fail(0, 100);
        }
        log.keep_for_undo(0, 1 << 10);
        // What is admitted is written; a record that no thread waits for would end the log if it could not be.
        while let Err(error) = log.admit_undo() {
            assert_passes(&error);
            failures += 1;
        }
        let place = log.reserve(1008).unwrap();
        appended.push(place.fill(&[1; 1008]).unwrap());
        if number % 50 == 0 {
            log.wait(appended[number], Durability::Synced).unwrap();
        }
    }
    assert!(failures >= 20, "{failures}");
    assert_eq!(disk.segments(), files, "none is made anew");
    log.wait(*appended.last().unwrap(), Durability::Synced).unwrap();
    drop(log);
    disk.fail(0, 0);
    assert_eq!(open(&disk).unwrap().1, appended);
}

#[test]
fn what_could_not_be_archived_or_copied_is_later() {
    let disk = ShortOfDescriptors::new();
    let (log, _) = open(&disk).unwrap();
    let appended = append(&log, 100);
    let mut copied = Vec::new();
    let mut copy = log.copy(appended[0]).unwrap();
    let mut show = |record: vellum_wal::Record<'_>| {
        copied.push(record.lsn);
        Ok(())
    };
    let mut advance = || copy.advance(log.end(), |_| Ok(()), &mut show);
    for before in [0, 3, 8, 5] {
        disk.fail(before, 1);
        assert_passes(&advance().unwrap_err());
    }
    advance().unwrap();
    assert!(copied.ends_with(&appended));
    drop(copy);
    let archive = Archive::new(Arc::new(SimulatedDisk::new(2)), [1; 16]);
    disk.fail(2, 2);
    let archiver = LogArchiver::start(log.clone(), archive).unwrap();
    let mut refused = 0;
    while let Err(error) = archiver.archive_all(false) {
        let says = ["cannot read what the archive of the log does not have yet: cannot open", "`ulimit -n`"];
        assert!(says.iter().all(|words| error.to_string().contains(words)), "{error}");
        refused += 1;
    }
    // The thread of the archiver may have met the failures.
    assert!(refused <= 2 && disk.has_failed());
    let mut reader = archiver.archive().read(appended[0]).unwrap();
    for lsn in appended {
        assert_eq!(reader.next().unwrap().unwrap().lsn, lsn);
    }
}

#[test]
fn a_segment_that_was_removed_is_missing() {
    let disk = ShortOfDescriptors::new();
    let (log, _) = open(&disk).unwrap();
    let appended = append(&log, 100);
    drop(log);
    let (log, _) = open(&disk).unwrap();
    let mut reader = log.reread(appended[0]).unwrap();
    let mut copy = log.copy(appended[0]).unwrap();
    disk.remove(&segment_name(3)).unwrap();
    let mut read = Vec::new();
    let error = loop {
        match reader.next() {
            Ok(record) => read.push(record.unwrap().lsn),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LogError::Missing { .. }), "{error}");
    assert!(appended.starts_with(&read) && (11..=24).contains(&read.len()), "{}", read.len());
    let error = copy.advance(log.end(), |_| Ok(()), |_| Ok::<_, LogError>(())).unwrap_err();
    assert!(matches!(error, LogError::Missing { .. }), "{error}");
    drop((reader, copy));
    let archive = Archive::new(Arc::new(SimulatedDisk::new(2)), [1; 16]);
    let archiver = LogArchiver::start(log.clone(), archive).unwrap();
    let error = archiver.archive_all(false).unwrap_err().to_string();
    assert!(error.contains(&segment_name(3)), "{error}");
    drop(archiver);
    // The log goes on, and does not take it for one that can be used again.
    append(&log, 100);
    log.discard(log.end()).unwrap();
    let mut refused = 0;
    for _ in 0..200 {
        while let Err(error) = log.admit() {
            assert!(matches!(error, LogError::NoRoom { .. }) && error.to_string().contains(&segment_name(3)));
            refused += 1;
        }
        log.wait(log.append(&[1; 1008]).unwrap(), Durability::Synced).unwrap();
    }
    assert!(refused <= 1, "{refused}");
}

/// A crash may take back the removal of a segment, and not that of the ones that followed on it.
#[test]
fn what_was_given_up_before_a_gap_is_missing_and_no_damage() {
    let disk = ShortOfDescriptors::new();
    let (log, _) = open(&disk).unwrap();
    let appended = append(&log, 100);
    drop(log);
    [2, 3].into_iter().for_each(|number| disk.remove(&segment_name(number)).unwrap());
    // What is needed is missing; what is not need not be there.
    let (first, later) = (appended[0], appended[12 * 4]);
    let open_from = |from| Log::open(disk.clone(), &options(), from, |_| Ok::<_, LogError>(()));
    for from in [Lsn(0), first] {
        assert!(matches!(open_from(from), Err(LogError::Hole { .. })));
    }
    let log = Arc::new(open_from(later).unwrap());
    let follow = |from: Lsn| {
        let mut read = Vec::new();
        let take = |record: Record<'_>| {
            read.push(record.lsn);
            Ok::<_, LogError>(true)
        };
        FollowedLog::new(log.clone(), None).read(from).read(log.end(), take).map(|()| read)
    };
    let error = follow(first).unwrap_err();
    assert!(
        matches!(error, LogError::Missing { oldest, .. } if first < oldest && oldest <= later),
        "{error}"
    );
    assert!(appended.ends_with(&follow(later).unwrap()));
}
