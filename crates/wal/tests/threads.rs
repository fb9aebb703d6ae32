//! Many threads append and wait at once: nothing is lost, and they share their syncs.

use std::{
    cell::Cell,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};
use vellum_base::Lsn;
use vellum_vm::{Directory, DiskDirectory, Faults, FileOperation, SimulatedDisk};
use vellum_wal::{Durability, Log, LogError, LogOptions};

fn options(segment_bytes: u64, buffer_bytes: u64) -> LogOptions {
    LogOptions { segment_bytes, buffer_bytes, ..LogOptions::new([7; 16]) }
}

fn open(directory: Arc<dyn Directory>, options: &LogOptions, from: Lsn) -> (Log, Vec<(Lsn, Vec<u8>)>) {
    let mut found = Vec::new();
    let log = Log::open(directory, options, from, |record| {
        found.push((record.lsn, record.payload.to_vec()));
        Ok::<_, LogError>(())
    });
    (log.unwrap(), found)
}

/// Appends from several threads, of which each waits for every n-th record; says what was appended.
fn append_from_all(log: &Log, threads: u64, records: u64, wait_every: u64) -> Vec<(Lsn, Vec<u8>)> {
    let all = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for thread in 0..threads {
            let all = &all;
            scope.spawn(move || {
                for number in 0..records {
                    let bytes = (number * 37 + thread * 11) % 700;
                    let payload = vec![(thread * 31 + number) as u8; bytes as usize];
                    let lsn = log.append(&payload).unwrap();
                    all.lock().unwrap().push((lsn, payload));
                    if number % wait_every == 0 {
                        log.wait(lsn, Durability::Synced).unwrap();
                        assert!(log.horizon(Durability::Synced) > lsn);
                    }
                }
            });
        }
    });
    let mut all = all.into_inner().unwrap();
    all.sort_unstable();
    all
}

#[test]
fn all_threads_share_a_small_buffer() {
    let disk = SimulatedDisk::new(5);
    disk.set_faults(Faults { short: 0.1, interrupted: 0.1, ..Faults::default() });
    // A buffer of two pages is full most of the time, and a segment holds a dozen records.
    let options = options(16 << 10, 8 << 10);
    let (log, _) = open(Arc::new(disk.clone()), &options, Lsn(0));
    let appended = append_from_all(&log, 4, 2000, 50);
    log.wait(appended.last().unwrap().0, Durability::Synced).unwrap();
    drop(log);
    assert!(open(Arc::new(disk.crash()), &options, Lsn(0)).1 == appended);
}

#[test]
fn what_one_thread_syncs_others_need_not() {
    let disk = SimulatedDisk::new(6);
    disk.set_faults(Faults { delay_max: Duration::from_millis(4), ..Faults::default() });
    let options = options(1 << 20, 1 << 20);
    let (log, _) = open(Arc::new(disk.clone()), &options, Lsn(0));
    let before = disk.counts().of(FileOperation::Sync);
    append_from_all(&log, 8, 100, 1);
    let syncs = disk.counts().of(FileOperation::Sync) - before;
    println!("{syncs} syncs for 800 records");
    // While four wait for one flush the other four, which it did not take along, wait for the next.
    assert!(syncs < 800 / 3, "{syncs} syncs for 800 records");
}

#[test]
fn a_log_on_disk_is_read_again_after_each_of_many_openings() {
    let folder = tempfile::tempdir().unwrap();
    let directory = Arc::new(DiskDirectory::new(folder.path()));
    let options = options(64 << 10, 32 << 10);
    let (mut all, mut from) = (Vec::new(), Lsn(0));
    for round in 0..10 {
        let (log, found) = open(directory.clone(), &options, from);
        assert!(found == all, "round {round}: {} of {}", found.len(), all.len());
        all.extend(append_from_all(&log, 2, 300, 25));
        log.wait(all.last().unwrap().0, Durability::Synced).unwrap();
        if round % 3 == 2 {
            // Nothing before the last hundred is needed any more.
            all.drain(..all.len() - 100);
            from = all[0].0;
            log.discard(from).unwrap();
        }
    }
    let names = directory.names().unwrap();
    assert!(names.len() < 30, "discarded segments are used again: {names:?}");
}

#[test]
fn a_panic_between_reserving_and_filling_holds_nobody_up() {
    let disk = SimulatedDisk::new(8);
    let options = options(64 << 10, 32 << 10);
    let (log, _) = open(Arc::new(disk.clone()), &options, Lsn(0));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _place = log.reserve(100).unwrap();
        panic!("as the caller's code may");
    }));
    assert!(panicked.is_err());
    let lsn = log.append(b"after").unwrap();
    log.wait(lsn, Durability::Synced).unwrap();
    drop(log);
    assert_eq!(open(Arc::new(disk.crash()), &options, Lsn(0)).1, [(lsn, b"after".to_vec())]);
}

#[test]
fn a_destructor_that_writes_while_its_thread_unwinds_does_not_end_the_log() {
    struct LastWords<'l> {
        log: &'l Log,
        are_durable: &'l Cell<bool>,
    }
    impl Drop for LastWords<'_> {
        fn drop(&mut self) {
            let written = self.log.append(b"last words");
            let durable = written.and_then(|lsn| self.log.wait(lsn, Durability::Synced));
            self.are_durable.set(durable.is_ok());
        }
    }
    let disk = SimulatedDisk::new(12);
    let (log, _) = open(Arc::new(disk), &options(64 << 10, 32 << 10), Lsn(0));
    let are_durable = Cell::new(false);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _last_words = LastWords { log: &log, are_durable: &are_durable };
        panic!("as the caller's code may");
    }));
    assert!(panicked.is_err() && are_durable.get());
    let write = || log.wait(log.append(b"after").unwrap(), Durability::Synced);
    thread::scope(|scope| scope.spawn(write).join()).unwrap().unwrap();
}

#[test]
fn a_reader_of_the_horizon_never_sees_what_a_crash_takes_back() {
    let disk = SimulatedDisk::new(9);
    let options = options(64 << 10, 32 << 10);
    let (log, _) = open(Arc::new(disk.clone()), &options, Lsn(0));
    let (seen, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let crashed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            append_from_all(&log, 2, 1000, 7);
            done.store(1, Ordering::SeqCst);
        });
        while done.load(Ordering::SeqCst) == 0 {
            seen.store(log.horizon(Durability::Synced).0, Ordering::SeqCst);
            crashed.lock().unwrap().push((seen.load(Ordering::SeqCst), disk.crash()));
            thread::sleep(Duration::from_millis(5));
        }
    });
    drop(log);
    for (seen, disk) in crashed.into_inner().unwrap() {
        let (log, found) = open(Arc::new(disk), &options, Lsn(0));
        drop(log);
        let end = found.last().map_or(0, |(lsn, payload)| lsn.0 + 16 + payload.len() as u64);
        assert!(end.next_multiple_of(16) >= seen || found.is_empty() && seen <= 65536, "{end} of {seen}");
    }
}

#[test]
fn several_threads_read_again_what_is_discarded_meanwhile() {
    let disk = SimulatedDisk::new(10);
    let options = LogOptions { spare_segments_min: 1, ..options(64 << 10, 32 << 10) };
    let (log, _) = open(Arc::new(disk.clone()), &options, Lsn(0));
    let appended = append_from_all(&log, 2, 1500, 50);
    log.wait(appended.last().unwrap().0, Durability::Synced).unwrap();
    drop(log);
    let (log, found) = open(Arc::new(disk.crash()), &options, Lsn(0));
    assert!(found == appended);
    let begun = log.end();
    thread::scope(|scope| {
        for number in 0..4 {
            let (first, log, appended) = (number * 500, &log, &appended);
            let mut reader = log.reread(appended[first].0).unwrap();
            scope.spawn(move || {
                for (lsn, payload) in &appended[first..] {
                    let record = reader.next().unwrap().unwrap();
                    assert!((record.lsn, record.payload) == (*lsn, payload.as_slice()), "{lsn}");
                }
                assert_eq!(reader.next().unwrap(), None);
            });
        }
        // Enough for every segment that is given up to be used again.
        for _ in 0..3 {
            log.discard(log.end()).unwrap();
            append_from_all(&log, 1, 500, 100);
        }
    });
    assert!(log.reread(appended[0].0).is_err_and(|error| matches!(error, LogError::Missing { .. })));
    assert!(begun < log.end());
}

#[test]
fn places_are_filled_and_given_up_by_their_lsn_alone() {
    let disk = SimulatedDisk::new(11);
    let options = options(64 << 10, 8 << 10);
    let (log, _) = open(Arc::new(disk.clone()), &options, Lsn(0));
    let expected = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for thread in 0..3_u8 {
            let (log, expected) = (&log, &expected);
            scope.spawn(move || {
                for number in 0..500 {
                    log.admit().unwrap();
                    let payload = vec![thread; number % 300];
                    let lsn = log.reserve(payload.len()).unwrap().into_lsn();
                    if number % 5 == 0 {
                        log.cancel_at(lsn, payload.len()).unwrap();
                    } else {
                        log.fill_at(lsn, &payload).unwrap();
                        expected.lock().unwrap().push((lsn, payload));
                    }
                }
            });
        }
    });
    let mut expected = expected.into_inner().unwrap();
    expected.sort_unstable();
    log.wait(expected.last().unwrap().0, Durability::Synced).unwrap();
    drop(log);
    assert!(open(Arc::new(disk.crash()), &options, Lsn(0)).1 == expected);
}
