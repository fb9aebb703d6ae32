//! The log of a database is exchanged for that of a copy of it that went on by itself, with the same places and timelines: what the
//! two have done is not mixed. And no sound database is refused because of that, wherever an opening ends.

use crate::support::{self, assert_clean};
use std::{collections::BTreeMap, io, path::Path, sync::Arc};
use vellum::{Database, Durability, ErrorKind, LeftBy, Options, Salvage};
use vellum_base::checksum;
use vellum_vm::{Directory as _, SimulatedDisk};

fn options() -> Options {
    support::options().log_segment_bytes(64 << 10)
}

fn copy_all(from: &Path, to: &Path) {
    // Files that are no longer needed are removed in the background.
    while try_to_copy_all(from, to).is_err() {
        std::fs::remove_dir_all(to).unwrap();
    }
}

fn try_to_copy_all(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir(to)?;
    std::fs::read_dir(from)?.try_for_each(|file| {
        let file = file?;
        std::fs::copy(file.path(), to.join(file.file_name())).map(drop)
    })
}

/// A database `one` and its copy `two`, each with its log. Both were left by a crash, recovered, and went on.
fn copies(place: &Path, checkpoints: bool, records: u32, durability: Durability) {
    let path = |name: &str| place.join(name);
    let database = Database::create(path("at work"), &options()).unwrap();
    database.create_table("table").unwrap().put("old", "value").unwrap();
    database.sync().unwrap();
    for name in ["one", "two"] {
        std::fs::copy(path("at work"), path(name)).unwrap();
        copy_all(&path("at work-log"), &path(&format!("{name}-log")));
    }
    for (name, value) in [("one", 1), ("two", 2)] {
        let database = Database::open(path(name), &options().durability(durability)).unwrap();
        if checkpoints {
            database.checkpoint().unwrap();
        }
        let table = database.table("table").unwrap();
        for number in 0..records {
            table.put((number * value + 7).to_be_bytes(), [value as u8; 100]).unwrap();
        }
        if durability == Durability::Deferred {
            database.sync().unwrap();
        }
        std::fs::copy(path(name), path(&format!("{name}-left"))).unwrap();
        copy_all(&path(&format!("{name}-log")), &path(&format!("{name}-left-log")));
    }
}

fn exchange(place: &Path, one: &str, two: &str) {
    let path = |name: &str| place.join(name);
    std::fs::rename(path(one), path("aside")).unwrap();
    std::fs::rename(path(two), path(one)).unwrap();
    std::fs::rename(path("aside"), path(two)).unwrap();
}

#[test]
fn exchanged_logs_of_two_copies_are_refused_and_stay() {
    for (checkpoints, records) in [(true, 200), (false, 200), (true, 2000), (false, 1)] {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        copies(place.path(), checkpoints, records, Durability::Deferred);
        exchange(place.path(), "one-left-log", "two-left-log");
        for name in ["one-left", "two-left"] {
            for options in [options(), options().read_only(true)] {
                let error = Database::open(path(name), &options).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
                let text = error.to_string();
                assert!(text.contains("segment-0") && text.contains("went on by itself"), "{text}");
                assert!(text.contains("by default a directory beside it"), "{text}");
            }
            let salvage = Salvage::open(path(name), &options()).unwrap();
            let LeftBy::CrashWithoutLog(error) = salvage.left_by() else { panic!("{:?}", salvage.left_by()) };
            assert!(error.to_string().contains("went on by itself"), "{error}");
        }
        exchange(place.path(), "one-left-log", "two-left-log");
        for (name, value) in [("one-left", 1), ("two-left", 2)] {
            let database = Database::open(path(name), &options()).unwrap();
            let table = database.table("table").unwrap();
            assert_eq!(table.count(..).unwrap(), u64::from(records) + 1);
            for number in 0..records {
                let found = table.get((number * value + 7).to_be_bytes()).unwrap().unwrap();
                assert_eq!(*found, [value as u8; 100]);
            }
            assert_clean(&database);
        }
    }
}

#[test]
fn exchanged_buffers_of_two_copies_are_refused_and_stay() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name);
    copies(place.path(), true, 3, Durability::Buffered);
    exchange(place.path(), "one-left-log/buffer", "two-left-log/buffer");
    for options in [options(), options().read_only(true)] {
        let error = Database::open(path("one-left"), &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
        assert!(error.to_string().starts_with("buffer, a file of the log"), "{error}");
    }
    exchange(place.path(), "one-left-log/buffer", "two-left-log/buffer");
    let database = Database::open(path("one-left"), &options()).unwrap();
    assert_eq!(database.table("table").unwrap().count(..).unwrap(), 4);
    assert_clean(&database);
}

/// What one copy has committed is in its own log only, also if the other one has been opened and has logged nothing.
#[test]
fn a_log_that_has_nothing_of_the_last_life_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name);
    copies(place.path(), false, 0, Durability::Deferred);
    let database = Database::open(path("one-left"), &options()).unwrap();
    let table = database.table("table").unwrap();
    (0..30_u32).for_each(|number| table.put(number.to_be_bytes(), [1; 100]).map(drop).unwrap());
    database.sync().unwrap();
    std::fs::copy(path("one-left"), path("more")).unwrap();
    copy_all(&path("one-left-log"), &path("more-log"));
    exchange(place.path(), "more-log", "two-left-log");
    for options in [options(), options().read_only(true)] {
        let error = Database::open(path("more"), &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
        let text = error.to_string();
        assert!(text.contains("has no file of life") && text.contains("belong to a copy"), "{text}");
        let error = Database::open(path("two-left"), &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    }
    exchange(place.path(), "more-log", "two-left-log");
    for (name, count) in [("more", 31), ("two-left", 1)] {
        let database = Database::open(path(name), &options()).unwrap();
        assert_eq!(database.table("table").unwrap().count(..).unwrap(), count);
        assert_clean(&database);
    }
}

/// The files of the last opening are gone, with all that was committed since.
#[test]
fn a_log_without_the_files_of_the_last_opening_is_refused() {
    let (disk, database) = support::database(3, &options());
    let table = database.create_table("table").unwrap();
    table.put("old", "value").unwrap();
    let left = disk.kill();
    drop((table, database));
    let before = left.names().unwrap();
    let open = |disk: &SimulatedDisk| Database::open_in(Arc::new(disk.clone()), "data", &options());
    let database = open(&left).unwrap();
    let table = database.table("table").unwrap();
    (0..3000_u32).for_each(|number| table.put(number.to_be_bytes(), [1; 100]).map(drop).unwrap());
    let crashed = left.kill();
    drop((table, database));
    let mut segments = crashed.names().unwrap();
    segments.retain(|name| name.starts_with("segment-") && !before.contains(name));
    segments.sort();
    assert!(segments.len() > 3, "{segments:?}");
    // Any number of them from the end on; of the last one nothing may have been begun.
    for first in 0..segments.len() {
        let cut = crashed.kill();
        segments[first..].iter().for_each(|name| cut.remove(name).unwrap());
        if cut.names().unwrap().contains(&"buffer".to_owned()) {
            cut.remove("buffer").unwrap();
        }
        match open(&cut) {
            Ok(database) => {
                assert_eq!(database.table("table").unwrap().count(..).unwrap(), 3001, "{first}");
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corruption, "{first}: {error}"),
        }
    }
    assert_eq!(open(&crashed).unwrap().table("table").unwrap().count(..).unwrap(), 3001);
}

/// Makes the first page of a file one that an earlier version has written: with zeroes, and its checksum.
fn without(file: &Path, zeroes: std::ops::Range<usize>, checksum_at: usize) {
    let mut bytes = std::fs::read(file).unwrap();
    bytes[8..12].copy_from_slice(&1_u32.to_le_bytes());
    bytes[zeroes].fill(0);
    let sum = checksum(&bytes[..checksum_at]);
    bytes[checksum_at..checksum_at + 8].copy_from_slice(&sum.to_le_bytes());
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn a_log_of_an_earlier_version_is_read() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name);
    copies(place.path(), false, 1000, Durability::Deferred);
    let mut names: Vec<_> = std::fs::read_dir(path("one-left-log")).unwrap().map(|it| it.unwrap()).collect();
    // A segment that was being made has no contents yet.
    names.retain(|entry| entry.file_name() != "unfinished");
    names.sort_by_key(|entry| entry.file_name());
    // All of them; then only some, as if the versions had taken turns.
    for step in [2, 1] {
        for (at, entry) in names.iter().enumerate().filter(|(at, _)| at % step == 0) {
            let name = entry.file_name().into_string().unwrap();
            let zeroes = if name == "buffer" { 48..56 } else { 72..4088 };
            assert!(name == "buffer" || name.starts_with("segment-"), "{at} {name}");
            without(&entry.path(), zeroes, 4088);
        }
        let options = options().read_only(true);
        let database = Database::open(path("one-left"), &options).unwrap();
        assert_eq!(database.table("table").unwrap().count(..).unwrap(), 1001);
        assert_clean(&database);
    }
}

/// Another version has changed the file in between: it does not note from where on all lives are known.
#[test]
fn a_life_that_another_version_may_have_forgotten_is_read() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name);
    copies(place.path(), false, 10, Durability::Deferred);
    let mut file = std::fs::read(path("one-left")).unwrap();
    for page in file[..8192].chunks_exact_mut(4096) {
        assert!(page[264..272] != [0; 8] && page[4072..4080] != [0; 8], "there are lives, and all are known");
        page[264..4080].fill(0);
        let sum = checksum(&page[8..]);
        page[..8].copy_from_slice(&sum.to_le_bytes());
    }
    std::fs::write(path("one-left"), file).unwrap();
    let database = Database::open(path("one-left"), &options()).unwrap();
    assert_eq!(database.table("table").unwrap().count(..).unwrap(), 11);
    // The lives since are known, the others are still needed.
    std::fs::copy(path("one-left"), path("again")).unwrap();
    copy_all(&path("one-left-log"), &path("again-log"));
    let again = Database::open(path("again"), &options()).unwrap();
    assert_eq!(again.table("table").unwrap().count(..).unwrap(), 11);
}

/// What the disk has of the table, if the database opens.
fn contents(disk: &SimulatedDisk) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let database = Database::open_in(Arc::new(disk.clone()), "data", &options()).unwrap();
    let table = database.table("table").unwrap();
    let found = table.range(..).unwrap().map(|record| record.unwrap());
    found.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// The disk fails at each operation of an opening, again at some of the next one, and after that the power is lost or the process ends.
#[test]
fn a_database_is_sound_wherever_openings_end() {
    for is_closed in [false, true] {
        let (disk, database) = support::database(1, &options());
        let table = database.create_table("table").unwrap();
        (0..20_u32).for_each(|number| table.put(number.to_be_bytes(), [1; 100]).map(drop).unwrap());
        database.checkpoint().unwrap();
        (20..40_u32).for_each(|number| table.put(number.to_be_bytes(), [1; 100]).map(drop).unwrap());
        let left = if is_closed {
            drop(table);
            database.close().unwrap();
            disk.kill()
        } else {
            // To be undone: so the next life logs something at once.
            let transaction = database.begin().unwrap();
            transaction.put(&table, "uncommitted", "value").unwrap();
            database.sync().unwrap();
            disk.kill()
        };
        let expected = contents(&left.kill());
        assert_eq!(expected.len(), 40);
        // Returns whether the disk did not fail any more.
        let open_failing = |disk: &SimulatedDisk, at: u64| {
            disk.fail_from(at);
            let opened = Database::open_in(Arc::new(disk.clone()), "data", &options());
            let outcome = opened.and_then(|database| {
                database.table("table")?.put(0_u32.to_be_bytes(), [1; 100])?;
                database.sync()
            });
            outcome.is_ok()
        };
        let mut seconds = 0;
        for first in 1.. {
            let begun = left.kill();
            let is_done = open_failing(&begun, first);
            for second in (1 + first % 5..).step_by(131) {
                let crashed = if (first + second) % 3 == 0 { begun.kill() } else { begun.crash() };
                let is_second_done = open_failing(&crashed, second);
                for again in [crashed.crash(), crashed.kill()] {
                    again.heal();
                    assert_eq!(contents(&again), expected, "failing at {first}, then at {second}");
                }
                seconds += 1;
                if is_second_done {
                    break;
                }
            }
            if is_done {
                break;
            }
        }
        assert!(seconds > 30, "{seconds}");
    }
}
