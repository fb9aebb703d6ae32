//! Long logs, which two threads read: each record in its place, up to where something is wrong.

use std::sync::Arc;
use vellum_base::{Lsn, PAGE_SIZE};
use vellum_vm::{Directory, FileOptions, SimulatedDisk};
use vellum_wal::{Durability, Log, LogError, LogOptions, segment_name};

const SEGMENT_BYTES: u64 = 1 << 20;

fn options() -> LogOptions {
    LogOptions { segment_bytes: SEGMENT_BYTES, buffer_bytes: 2 << 20, ..LogOptions::new([7; 16]) }
}

/// The bytes of a record; most are small, and some are longer than what goes from thread to thread at once.
fn payload(number: u32) -> Vec<u8> {
    let bytes = if number % 500 == 499 { 300_000 } else { number as usize * 7 % 900 };
    vec![number as u8; bytes]
}

/// A log of this many records, all of them durable.
fn filled(disk: &SimulatedDisk, count: u32) -> Vec<Lsn> {
    let log = Log::open(Arc::new(disk.clone()), &options(), Lsn(0), |_| Err(LogError::Closed)).unwrap();
    let places: Vec<_> = (0..count).map(|number| log.append(&payload(number)).unwrap()).collect();
    log.wait(*places.last().unwrap(), Durability::Synced).unwrap();
    places
}

/// Opens the log, which shows what is as it should be, until `end` says that it is not to go on.
fn open(disk: &SimulatedDisk, places: &[Lsn], end: usize) -> (usize, Result<Log, LogError>) {
    let mut shown = 0;
    let log = Log::open(Arc::new(disk.clone()), &options(), Lsn(0), |record| {
        assert_eq!(record.lsn, places[shown], "record {shown}");
        assert!(record.payload == payload(shown as u32), "record {shown}");
        shown += 1;
        if shown == end { Err(LogError::Closed) } else { Ok(()) }
    });
    (shown, log)
}

#[test]
fn all_records_are_shown_in_order() {
    let disk = SimulatedDisk::new(1);
    let places = filled(&disk, 3000);
    let (shown, log) = open(&disk, &places, usize::MAX);
    assert_eq!(shown, places.len());
    let mut reader = log.unwrap().reread(places[1000]).unwrap();
    let mut number = 1000;
    let read = reader.for_each(|record| {
        assert!(record.lsn == places[number] && record.payload == payload(number as u32), "record {number}");
        number += 1;
        Ok::<_, LogError>(())
    });
    assert!(number == places.len() && read.is_ok(), "{number}: {read:?}");
}

#[test]
fn nothing_is_shown_after_an_error() {
    let disk = SimulatedDisk::new(1);
    let places = filled(&disk, 3000);
    for end in [1, 300, 700, 1500, 2999, 3000] {
        let (shown, log) = open(&disk, &places, end);
        assert!(shown == end && matches!(log, Err(LogError::Closed)), "{shown} of {end}: {:?}", log.err());
    }
}

#[test]
fn what_is_before_a_hole_is_shown_before_it_is_told() {
    let disk = SimulatedDisk::new(1);
    let places = filled(&disk, 3000);
    for damaged in [100, 1500, 2400] {
        let disk = disk.crash();
        // It may have left frames in the buffer, which are taken where segments lack them.
        disk.remove("buffer").unwrap();
        // Behind its header.
        let at = places[damaged].0 + 17;
        let payload = SEGMENT_BYTES - PAGE_SIZE as u64;
        disk.file(&segment_name(at / payload)).flip_bit((PAGE_SIZE as u64 + at % payload) * 8);
        let (shown, log) = open(&disk, &places, usize::MAX);
        let is_told = matches!(log, Err(LogError::Hole { at, .. }) if at == places[damaged]);
        assert!(is_told && shown == damaged, "{shown} of {damaged}: {:?}", log.err());
    }
}

#[test]
fn a_panic_where_records_are_shown_is_the_callers() {
    let disk = SimulatedDisk::new(1);
    let places = filled(&disk, 3000);
    let shown = std::panic::catch_unwind(|| {
        Log::open(Arc::new(disk.clone()), &options(), Lsn(0), |record| {
            assert!(record.lsn < places[2000], "as far as this");
            Ok::<_, LogError>(())
        })
    });
    let panic = shown.err().expect("it was shown all");
    assert!(panic.downcast_ref::<&str>().is_some_and(|message| message.contains("as far as this")));
    let (shown, log) = open(&disk, &places, usize::MAX);
    assert!(shown == places.len() && log.is_ok(), "{shown}: {:?}", log.err());
}

#[test]
fn a_segment_that_was_cut_is_told_after_what_is_left_of_it() {
    let disk = SimulatedDisk::new(1);
    // The process ended long ago: no buffer has the end of the log.
    let places = filled(&disk, 1200);
    disk.remove("buffer").unwrap();
    let (last, bytes) = (*places.last().unwrap(), SEGMENT_BYTES - PAGE_SIZE as u64);
    let (number, start) = (last.0 / bytes, last.0 / bytes * bytes);
    let filled = (last.0 - start).next_multiple_of(PAGE_SIZE as u64);
    // To nothing; inside a record; a page after the last one.
    for left in [0, PAGE_SIZE as u64, filled / 2 / 4096 * 4096, filled + 2 * PAGE_SIZE as u64] {
        let disk = disk.crash();
        let file = disk.open(&segment_name(number), &FileOptions::default()).unwrap();
        file.truncate(left).unwrap();
        drop(file);
        // As much of the log is there.
        let there = start + left.saturating_sub(PAGE_SIZE as u64);
        let whole = places.windows(2).filter(|pair| pair[1].0 <= there).count();
        let whole = if there > last.0 { places.len() } else { whole };
        for _ in 0..2 {
            let (shown, log) = open(&disk, &places, usize::MAX);
            let is_told = matches!(log, Err(LogError::Hole { at, .. }) if at.0 <= there);
            assert!(is_told && shown == whole, "{left}: {shown} of {whole}: {:?}", log.err());
        }
    }
}
