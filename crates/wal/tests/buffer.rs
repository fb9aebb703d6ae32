//! The buffer of the log in a file: what is in it survives the process.

mod small;

use small::{open, options};
use std::{
    fs,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    sync::Arc,
};
use vellum_base::Lsn;
use vellum_vm::{CrashModel, DiskDirectory, File as _, FileOperation, SimulatedDisk};
use vellum_wal::{BufferFlaw, Durability, Log, LogError, LogOptions, LogReader};

#[test]
fn what_was_filled_survives_the_process_and_what_was_not_ends_the_log() {
    for (bytes, count) in [(10, 30), (900, 7), (1900, 3)] {
        let disk = SimulatedDisk::new(bytes as u64);
        let (log, _) = open(&disk, &options());
        assert!(log.has_mapped_buffer());
        let begin = log.end();
        let mut appended: Vec<Lsn> = (0..count).map(|_| log.append(&vec![7; bytes]).unwrap()).collect();
        let writes = disk.counts().of(FileOperation::Write);
        log.wait(*appended.last().unwrap(), Durability::Buffered).unwrap();
        assert_eq!(disk.counts().of(FileOperation::Write), writes, "nothing was written for that");
        assert_eq!(log.horizon(Durability::Synced), begin);
        let gap = log.reserve(100).unwrap();
        let after = log.append(b"after the gap").unwrap();
        assert_eq!(log.horizon(Durability::Buffered), gap.lsn());
        let with_gap = disk.kill();
        gap.fill(&[1; 100]).unwrap();
        assert!(log.horizon(Durability::Buffered) > after);
        // Looking changes nothing.
        let mut looked = Vec::new();
        let mut reader = LogReader::open(Arc::new(with_gap.clone()), &options(), begin).unwrap();
        while let Some(record) = reader.next().unwrap() {
            looked.push(record.lsn);
        }
        drop(reader);
        assert_eq!(looked, appended);
        for _ in 0..2 {
            let (again, found) = open(&with_gap.kill(), &options());
            assert_eq!(found, appended);
            assert!(again.end() > after, "places are not used again");
        }
        let (_, found) = open(&disk.crash_with(CrashModel::LoseAll), &options());
        assert_eq!(found, []);
        appended.extend([Lsn(looked.last().unwrap().0 + frame(bytes)), after]);
        let (again, found) = open(&disk.kill(), &options());
        assert_eq!(found, appended);
        // What came from the buffer is durable then, and the next buffer has nothing of it.
        let survivor = disk.kill();
        drop(again);
        let (_, found) = open(&survivor, &options());
        assert_eq!(found, appended);
        let (_, found) = open(&survivor.crash_with(CrashModel::LoseAll), &options());
        assert_eq!(found, appended);
    }
}

/// The size of the frame of a record.
fn frame(bytes: usize) -> u64 {
    (bytes as u64 + 16).next_multiple_of(16)
}

#[test]
fn without_a_mapped_buffer_the_log_is_written() {
    let disk = SimulatedDisk::new(3);
    disk.fail_from_of(FileOperation::Map, 1);
    let (log, _) = open(&disk, &options());
    assert!(!log.has_mapped_buffer());
    let lsn = log.append(b"a record").unwrap();
    assert!(log.horizon(Durability::Buffered) <= lsn);
    log.wait(lsn, Durability::Buffered).unwrap();
    let late = log.append(b"another one").unwrap();
    let (_, found) = open(&disk.kill(), &options());
    assert_eq!(found, [lsn]);
    log.wait(late, Durability::Buffered).unwrap();
    let (_, found) = open(&disk.kill(), &options());
    assert_eq!(found, [lsn, late]);
}

/// What is found, and what is told of the buffer.
fn find(disk: &SimulatedDisk) -> (Vec<Lsn>, Option<(BufferFlaw, u64)>) {
    let (log, found) = open(disk, &options());
    (found, log.buffer_damage().map(|damage| (damage.flaw, damage.bytes_taken)))
}

#[test]
fn a_buffer_of_another_database_is_told() {
    let disk = SimulatedDisk::new(4);
    let (log, _) = open(&disk, &options());
    let lsn = log.append(b"a record").unwrap();
    let left = disk.kill();
    drop(log);
    let other = SimulatedDisk::new(5);
    let (log, _) = open(&other, &LogOptions { database: [8; 16], ..options() });
    log.append(b"another").unwrap();
    let all = other.file("buffer").snapshot().to_vec();
    drop(log);
    // The other one's buffer, where this one's was.
    let foreign = left.kill();
    foreign.file("buffer").overwrite(0, &all);
    assert_eq!(find(&foreign), (vec![], Some((BufferFlaw::Foreign, 0))));
    assert_eq!(find(&left), (vec![lsn], None));
}

#[test]
fn a_buffer_whose_first_page_is_damaged_is_read_all_the_same_and_told() {
    let disk = SimulatedDisk::new(4);
    let (log, _) = open(&disk, &options());
    let lsn = log.append(b"a record").unwrap();
    let left = disk.kill();
    drop(log);
    for bit in [0, 8 * 8, 8 * 16, 8 * 32, 8 * 40, 8 * 300, 8 * 4095] {
        let damaged = left.kill();
        damaged.file("buffer").flip_bit(bit);
        assert_eq!(find(&damaged), (vec![lsn], Some((BufferFlaw::Header, frame(8)))), "{bit}");
    }
    let damaged = left.kill();
    damaged.file("buffer").overwrite(0, &[0xa5; 4096]);
    assert_eq!(find(&damaged), (vec![lsn], Some((BufferFlaw::Header, frame(8)))));
    // As a crash may leave it.
    for sectors in [0..512, 3584..4096, 0..4096, 512..1024] {
        let torn = left.kill();
        torn.file("buffer").overwrite(sectors.start, &vec![0; (sectors.end - sectors.start) as usize]);
        assert_eq!(find(&torn), (vec![lsn], None), "{sectors:?}");
    }
}

#[test]
fn a_buffer_that_was_cut_is_told_and_one_that_was_being_made_is_none() {
    let disk = SimulatedDisk::new(4);
    let (log, _) = open(&disk, &options());
    // It is on the second one of the two pages of the ring.
    let lsn = log.append(b"a record").unwrap();
    let left = disk.kill();
    drop(log);
    assert_eq!(find(&left.kill()), (vec![lsn], None));
    for (size, told) in [(0, None), (4096, None), (8192, Some((BufferFlaw::Size, 0)))] {
        let cut = left.kill();
        cut.file("buffer").truncate(size).unwrap();
        assert_eq!(find(&cut), (vec![], told), "{size}");
    }
}

/// A system that could not write a page of the buffer's file may drop it, and read the former one.
#[test]
fn what_the_buffer_has_lost_is_not_acknowledged() {
    // In one part that is written; and in several, of which the second record of each three crosses a border, or three do.
    for (lost, bytes) in
        [5000, 100_000, 130_000].into_iter().flat_map(|bytes| [0, 1, 2].map(|lost| (lost, bytes)))
    {
        let directory = tempfile::tempdir().unwrap();
        let options =
            LogOptions { segment_bytes: 1 << 20, buffer_bytes: 1 << 20, ..LogOptions::new([7; 16]) };
        let open = |found: &mut Vec<Lsn>| {
            Log::open(Arc::new(DiskDirectory::new(directory.path())), &options, Lsn(0), |record| {
                found.push(record.lsn);
                Ok::<_, LogError>(())
            })
        };
        let log = open(&mut Vec::new()).unwrap();
        if !log.has_mapped_buffer() {
            return;
        }
        let first = log.append(&[1; 5000]).unwrap();
        log.wait(first, Durability::Synced).unwrap();
        let appended = [(); 3].map(|()| log.append(&vec![7; bytes]).unwrap());
        // A page within one of them, after the page of the file's header.
        let page = 1 + (appended[lost].0 + bytes as u64 / 2 + 2048) % (1 << 20) / 4096;
        let file = fs::File::options().write(true).open(directory.path().join("buffer")).unwrap();
        file.write_all_at(&[0; 4096], page * 4096).unwrap();
        for _ in 0..2 {
            let refused = log.wait(appended[2], Durability::Synced).unwrap_err();
            assert!(matches!(refused, LogError::OutcomeUnknown { .. }), "{refused}");
        }
        assert!(log.append(b"another one").and_then(|lsn| log.wait(lsn, Durability::Synced)).is_err());
        assert!(log.horizon(Durability::Synced) <= appended[0]);
        drop(log);
        let mut found = Vec::new();
        drop(open(&mut found).unwrap());
        assert_eq!(found.first(), Some(&first));
        assert!(!found.contains(&appended[lost]), "{found:?}");
    }
}

/// Words that are stored where the file system has no room end the process.
#[test]
fn there_is_room_for_all_of_the_buffer_also_in_a_copy_with_holes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("buffer");
    let options = LogOptions { segment_bytes: 1 << 20, buffer_bytes: 1 << 20, ..LogOptions::new([7; 16]) };
    let open = || {
        let mut found = Vec::new();
        let log = Log::open(Arc::new(DiskDirectory::new(directory.path())), &options, Lsn(0), |record| {
            found.push(record.lsn);
            Ok::<_, LogError>(())
        });
        (log.unwrap(), found)
    };
    let (log, _) = open();
    if !log.has_mapped_buffer() {
        return;
    }
    let lsn = log.append(b"a record").unwrap();
    log.wait(lsn, Durability::Buffered).unwrap();
    let contents = fs::read(&path).unwrap();
    drop(log);
    // As `cp` makes it.
    fs::remove_file(&path).unwrap();
    let copy = fs::File::create(&path).unwrap();
    copy.set_len(contents.len() as u64).unwrap();
    for (page, at) in contents.chunks(4096).zip((0..).step_by(4096)) {
        if page.iter().any(|byte| *byte != 0) {
            copy.write_all_at(page, at).unwrap();
        }
    }
    drop(copy);
    let allocated = || fs::metadata(&path).unwrap().blocks() * 512;
    assert!(allocated() < contents.len() as u64);
    let (log, found) = open();
    assert_eq!(found, [lsn]);
    assert!(log.has_mapped_buffer() && allocated() >= contents.len() as u64, "{} bytes", allocated());
}

/// Two copies of a log that was left by a crash, each of which goes on in a life of its own.
#[test]
fn a_buffer_of_a_copy_is_refused_where_it_has_what_the_segments_lack() {
    let disk = SimulatedDisk::new(8);
    let (log, _) = open(&disk, &LogOptions { life: 1, ..options() });
    let first = log.append(b"what both have").unwrap();
    log.wait(first, Durability::Synced).unwrap();
    let left = disk.kill();
    drop(log);
    let go_on = |life| {
        let copy = left.kill();
        let (log, found) = open(&copy, &LogOptions { life, ..options() });
        assert_eq!(found, [first]);
        let lsn = log.append(&[life as u8; 10]).unwrap();
        (copy.kill(), lsn)
    };
    let ((one, lsn), (two, _)) = (go_on(2), go_on(3));
    let exchanged = one.kill();
    exchanged.file("buffer").overwrite(0, &two.file("buffer").snapshot().to_vec());
    let outcome =
        Log::open(Arc::new(exchanged.kill()), &options(), Lsn(0), |_| Ok::<_, LogError>(())).map(drop);
    match outcome {
        Err(error @ LogError::OtherLife { life: 3, known: 2, .. }) => {
            assert!(
                error.to_string().starts_with("buffer, a file of the log, was written by a copy"),
                "{error}"
            );
        }
        other => panic!("{other:?}"),
    }
    // Of which life the buffer or the segments are may be unknown.
    assert_eq!(open(&one.kill(), &options()).1, [first, lsn]);
    // What an opening has left that was taken back has nothing.
    let blank = left.kill();
    drop(open(&blank, &LogOptions { life: 4, ..options() }));
    exchanged.file("buffer").overwrite(0, &blank.file("buffer").snapshot().to_vec());
    assert_eq!(find(&exchanged), (vec![first], None));
}
