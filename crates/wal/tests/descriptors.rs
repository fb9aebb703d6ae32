//! How many files of the process a log takes. A program of its own: others open files at the same time.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};
use vellum_base::Lsn;
use vellum_vm::DiskDirectory;
use vellum_wal::{Archive, Durability, FollowedLog, Log, LogArchiver, LogError, LogOptions, LogReader};

/// The most files that a log with a small buffer has open: its buffer, the segment that is written, perhaps a second time,
/// the two that are prepared, the one that is read, and the one read ahead.
const FILES_MAX: usize = 8;

/// What the process has open.
fn open_files() -> Vec<PathBuf> {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap();
    descriptors.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok()).collect()
}

/// The files of a directory that the process has open, and there are few of them.
fn assert_few(place: &Path) {
    let place = place.canonicalize().unwrap();
    let open: Vec<_> = open_files().into_iter().filter(|file| file.starts_with(&place)).collect();
    assert!(open.len() <= FILES_MAX, "{} files are open: {open:#?}", open.len());
}

fn segments(place: &Path) -> usize {
    let names = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with("segment-")).count()
}

fn small() -> LogOptions {
    LogOptions { segment_bytes: 16 << 10, buffer_bytes: 8 << 10, ..LogOptions::new([1; 16]) }
}

fn open(place: &Path, options: &LogOptions) -> (Arc<Log>, Vec<Lsn>) {
    let mut found = Vec::new();
    let log = Log::open(Arc::new(DiskDirectory::new(place)), options, Lsn(0), |record| {
        assert!(record.payload.iter().all(|byte| *byte == record.payload[0]));
        if found.len() % 50 == 0 {
            assert_few(place);
        }
        found.push(record.lsn);
        Ok::<_, LogError>(())
    });
    (Arc::new(log.unwrap()), found)
}

/// Appends `count` records of a kibibyte.
fn append(log: &Log, count: usize) -> Vec<Lsn> {
    let append = |number: usize| log.append(&[number as u8; 1008]).unwrap();
    let appended: Vec<_> = (0..count).map(append).collect();
    log.wait(*appended.last().unwrap(), Durability::Synced).unwrap();
    appended
}

#[test]
fn a_log_that_is_kept_takes_few_files() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let (log, _) = open(place, &small());
    let appended = append(&log, 600);
    assert!(segments(place) >= 50);
    assert_few(place);
    // A feed, a backup and a copy read it.
    let followed = FollowedLog::new(log.clone(), None);
    let _keep = followed.keep(Lsn(0), u64::MAX);
    let mut reader = followed.read(appended[0]);
    let mut read = Vec::new();
    let end = log.horizon(Durability::Synced);
    while read.len() < 300 {
        let stop = read.len() + 100;
        let taken = reader.read(end, |record| {
            read.push(record.lsn);
            Ok::<_, LogError>(read.len() < stop)
        });
        taken.unwrap();
        assert_few(place);
    }
    assert_eq!(read, appended[..300]);
    let mut parts = 0;
    let mut copy = log.copy(appended[0]).unwrap();
    let write = |_: vellum_wal::LogPart<'_>| {
        parts += 1;
        assert_few(place);
        Ok::<_, LogError>(())
    };
    copy.advance(end, write, |_| Ok(())).unwrap();
    assert!(parts >= 50);
    drop(copy);
    drop((reader, followed, _keep));
    // What an archive lags behind is archived.
    let archived = tempfile::tempdir().unwrap();
    let archive = Archive::new(Arc::new(DiskDirectory::new(archived.path())), [1; 16]);
    let archiver = LogArchiver::start(log.clone(), archive).unwrap();
    archiver.archive_all(false).unwrap();
    assert_few(place);
    assert_eq!(archiver.archive().parts().unwrap().len(), 50);
}

#[test]
fn a_long_log_is_opened_read_and_used_again_with_few_files() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let (log, _) = open(place, &small());
    let appended = append(&log, 600);
    drop(log);
    let mut reader = LogReader::open(Arc::new(DiskDirectory::new(place)), &small(), appended[0]).unwrap();
    for lsn in &appended {
        assert_eq!(reader.next().unwrap().unwrap().lsn, *lsn);
    }
    assert_few(place);
    drop(reader);
    let (log, found) = open(place, &small());
    assert_eq!(found, appended);
    assert_few(place);
    // What is read again is not used again meanwhile, nor is it gone.
    let mut reader = log.reread(appended[0]).unwrap();
    let mut later = append(&log, 1);
    log.discard(log.end()).unwrap();
    later.extend(append(&log, 600));
    assert_few(place);
    for lsn in &appended {
        assert_eq!(reader.next().unwrap().unwrap().lsn, *lsn);
    }
    assert_few(place);
    drop(reader);
    log.discard(log.end()).unwrap();
    let files = segments(place);
    assert!((50..110).contains(&files), "{files}");
    let last = append(&log, 400);
    assert_eq!(segments(place), files, "segments are used again");
    assert_few(place);
    drop(log);
    let (_, found) = open(place, &small());
    assert!(found.ends_with(&last));
}

#[test]
fn what_is_kept_for_undo_takes_few_files() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let (log, _) = open(place, &small());
    log.keep_for_undo(600 << 10, 0);
    log.prepare().unwrap();
    let files = segments(place);
    assert!(files > 50);
    assert_few(place);
    // The transaction is undone, in the segments that are kept for it.
    let mut appended = Vec::new();
    for _ in 0..500 {
        appended.extend(append(&log, 1));
        log.keep_for_undo(0, 1 << 10);
        assert_eq!(segments(place), files);
    }
    assert_few(place);
    log.keep_for_undo(0, 100 << 10);
    log.discard(appended[499]).unwrap();
    assert!(segments(place) < 10, "{}", segments(place));
    append(&log, 100);
    assert_few(place);
}

#[test]
fn a_log_takes_no_rings() {
    let place = tempfile::tempdir().unwrap();
    let options = LogOptions { segment_bytes: 64 << 10, buffer_bytes: 1 << 20, ..LogOptions::new([1; 16]) };
    for _ in 0..2 {
        let log =
            Log::open(
                Arc::new(DiskDirectory::new(place.path())),
                &options,
                Lsn(0),
                |_| Ok::<_, LogError>(()),
            );
        let log = log.unwrap();
        for _ in 0..200 {
            let record = log.append(&[7; 4000]).unwrap();
            log.wait(record, Durability::Synced).unwrap();
        }
        assert!(fs::read_dir(place.path()).unwrap().count() > 12);
        assert_no_rings();
    }
    // Nor does a log that is only read.
    let reader = LogReader::open(Arc::new(DiskDirectory::new(place.path())), &options, Lsn(0)).unwrap();
    assert_no_rings();
    drop(reader);
}

fn assert_no_rings() {
    let rings = open_files().iter().filter(|file| file.to_string_lossy().contains("io_uring")).count();
    assert_eq!(rings, 0, "{:?}", open_files());
}
