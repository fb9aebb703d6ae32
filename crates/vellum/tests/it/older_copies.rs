//! The file of a database is exchanged for an older copy of it, beside the log of what was done since: what was committed is not
//! given up without a word.

use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{collections::BTreeMap, io, path::Path, sync::Arc};
use vellum::{Database, Durability, ErrorKind, LeftBy, Options, Salvage};
use vellum_vm::{AlignedBuffer, CrashModel, File, SimulatedDisk};

fn options() -> Options {
    crate::support::options().log_segment_bytes(64 << 10)
}

/// A directory with `older`, a closed copy of a database; `data`, the same one later; and the log of that, as a killed process leaves
/// them. What was done between the two are these numbers of puts, of a hundred bytes each, and checkpoints after each but the last.
fn copies(directory: &Path, puts: &[u32], durability: Durability) {
    let path = directory.join("at work");
    let database = Database::create(&path, &options()).unwrap();
    database.create_table("table").unwrap().put("old", "value").unwrap();
    database.close().unwrap();
    std::fs::copy(&path, directory.join("older")).unwrap();
    let database = Database::open(&path, &options().durability(durability)).unwrap();
    let table = database.table("table").unwrap();
    for (at, count) in puts.iter().enumerate() {
        if at > 0 {
            database.checkpoint().unwrap();
        }
        for number in 0..*count {
            table.put(number.to_be_bytes(), [7; 100]).unwrap();
        }
    }
    std::fs::copy(&path, directory.join("data")).unwrap();
    // Files that are no longer needed are removed in the background.
    while copy_all(&directory.join("at work-log"), &directory.join("log")).is_err() {
        std::fs::remove_dir_all(directory.join("log")).unwrap();
    }
    drop(table);
    database.close().unwrap();
}

fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir(to)?;
    std::fs::read_dir(from)?.try_for_each(|file| {
        let file = file?;
        std::fs::copy(file.path(), to.join(file.file_name())).map(drop)
    })
}

#[test]
fn an_older_copy_beside_a_newer_log_is_refused_and_the_log_stays() {
    // One record; several segments; a log whose beginning was given up; records that are in the buffer's file only.
    let logs: [(&[u32], Durability); 4] = [
        (&[1], Durability::Synced),
        (&[2000], Durability::Deferred),
        (&[2000, 2000, 3], Durability::Deferred),
        (&[1], Durability::Buffered),
    ];
    for (puts, durability) in logs {
        let place = tempfile::tempdir().unwrap();
        let path = |name| place.path().join(name);
        copies(place.path(), puts, durability);
        std::fs::rename(path("log"), path("d-log")).unwrap();
        std::fs::copy(path("older"), path("d")).unwrap();
        for options in [options(), options().log(false), options().read_only(true)] {
            let error = Database::open(path("d"), &options).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
            assert!(error.to_string().contains("it is an older copy"), "{error}");
        }
        // The one to which it belongs is put back, and nothing is lost.
        std::fs::copy(path("data"), path("d")).unwrap();
        let database = Database::open(path("d"), &options()).unwrap();
        let all: u32 = puts.iter().copied().max().unwrap();
        assert_eq!(database.table("table").unwrap().range(..).unwrap().count(), all as usize + 1, "{puts:?}");
        assert!(database.verify(|_| {}).is_clean());
        database.close().unwrap();
    }
}

#[test]
fn an_older_copy_is_opened_when_the_newer_log_was_moved_away() {
    let place = tempfile::tempdir().unwrap();
    let path = |name| place.path().join(name);
    copies(place.path(), &[5], Durability::Synced);
    let database = Database::open(path("older"), &options()).unwrap();
    assert_eq!(database.table("table").unwrap().range(..).unwrap().count(), 1);
    database.close().unwrap();
}

/// An opening that was interrupted before anything was changed has begun a log, which holds nothing.
#[test]
fn a_log_that_was_begun_and_holds_nothing_is_given_up() {
    let place = tempfile::tempdir().unwrap();
    let path = |name| place.path().join(name);
    copies(place.path(), &[], Durability::Synced);
    std::fs::rename(path("log"), path("older-log")).unwrap();
    for _ in 0..2 {
        let database = Database::open(path("older"), &options()).unwrap();
        database.table("table").unwrap().put("new", "value").unwrap();
        database.close().unwrap();
        assert!(!path("older-log").exists());
    }
}

#[test]
fn a_salvage_of_an_older_copy_says_what_it_is() {
    let place = tempfile::tempdir().unwrap();
    let path = |name| place.path().join(name);
    copies(place.path(), &[1], Durability::Synced);
    std::fs::copy(path("older"), path("d")).unwrap();
    let left = |path| format!("{:?}", Salvage::open(path, &options()).unwrap().left_by());
    assert_eq!(left(path("d")), "Closing");
    std::fs::rename(path("log"), path("d-log")).unwrap();
    let salvage = Salvage::open(path("d"), &options()).unwrap();
    assert!(
        matches!(salvage.left_by(), LeftBy::OlderCopy(error) if error.to_string().contains("older copy"))
    );
    assert_eq!(salvage.tables().0, ["table"]);
}

/// The copy was made while the database was open, so it needs the log, and redoes what is there of it. But a later checkpoint has
/// its map elsewhere, and what has the former place of the map would be lost when the log is given up.
#[test]
fn an_older_copy_of_an_open_file_beside_a_newer_log_is_refused_and_both_stay() {
    let place = tempfile::tempdir().unwrap();
    let path = |name| place.path().join(name);
    let database = Database::create(path("at work"), &options()).unwrap();
    let table = database.create_table("table").unwrap();
    let put = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            table.put(number.to_be_bytes(), [7; 1000]).unwrap();
        }
    };
    put(0..20);
    database.checkpoint().unwrap();
    std::fs::copy(path("at work"), path("d")).unwrap();
    put(20..30);
    database.checkpoint().unwrap();
    put(30..60);
    std::fs::copy(path("at work"), path("data")).unwrap();
    while copy_all(&path("at work-log"), &path("d-log")).is_err() {
        std::fs::remove_dir_all(path("d-log")).unwrap();
    }
    let former = std::fs::read(path("d")).unwrap();
    for options in [options(), options().read_only(true), options()] {
        let error = Database::open(path("d"), &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
        assert!(error.to_string().contains("it is an older copy"), "{error}");
        assert!(std::fs::read(path("d")).unwrap() == former);
    }
    std::fs::copy(path("data"), path("d")).unwrap();
    let database = Database::open(path("d"), &options()).unwrap();
    assert_eq!(database.table("table").unwrap().range(..).unwrap().count(), 60);
    assert!(database.verify(|_| {}).is_clean());
    database.close().unwrap();
}

/// Here nothing lies where the copy has its map. The log says that there was a later checkpoint, and when it is idle it says so once.
#[test]
fn an_older_copy_of_an_open_file_is_refused_after_any_later_checkpoint() {
    let place = tempfile::tempdir().unwrap();
    let path = |name| place.path().join(name);
    let database = Database::create(path("at work"), &options()).unwrap();
    let table = database.create_table("table").unwrap();
    table.put("a", "1").unwrap();
    database.checkpoint().unwrap();
    std::fs::copy(path("at work"), path("d")).unwrap();
    table.put("large", vec![7; 100_000]).unwrap();
    database.checkpoint().unwrap();
    let idle = database.log_state().unwrap();
    assert_eq!(idle.log_bytes, 0);
    table.put("b", "2").unwrap();
    std::fs::copy(path("at work"), path("data")).unwrap();
    while copy_all(&path("at work-log"), &path("d-log")).is_err() {
        std::fs::remove_dir_all(path("d-log")).unwrap();
    }
    let former = std::fs::read(path("d")).unwrap();
    for options in [options(), options().read_only(true), options()] {
        let error = Database::open(path("d"), &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
        assert!(error.to_string().contains("it is an older copy"), "{error}");
        assert!(std::fs::read(path("d")).unwrap() == former);
    }
    std::fs::copy(path("data"), path("d")).unwrap();
    let database = Database::open(path("d"), &options()).unwrap();
    let table = database.table("table").unwrap();
    assert_eq!(table.get("large").unwrap().unwrap(), vec![7; 100_000]);
    assert_eq!(table.range(..).unwrap().count(), 3);
    assert!(database.verify(|_| {}).is_clean());
    drop(table);
    database.close().unwrap();
}

/// The file as it was at some moment, beside the log of a process that was killed later.
#[test]
fn an_older_copy_is_refused_or_leads_to_what_the_log_has() {
    let (mut refused, mut opened) = (0, 0);
    for seed in 0..40 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut disk = SimulatedDisk::new(seed);
        let open = |disk: &SimulatedDisk| Database::open_in(Arc::new(disk.clone()), "data", &options());
        let read = |disk: &SimulatedDisk| {
            let file = disk.file("data");
            let mut bytes = AlignedBuffer::new(file.size().unwrap() as usize);
            file.read_to(0, &mut bytes).unwrap();
            bytes
        };
        let contents = |database: &Database| {
            let table = database.table("table").unwrap();
            let entries = table.range(..).unwrap().map(Result::unwrap);
            entries.map(|(key, value)| (key.to_vec(), value.to_vec())).collect::<BTreeMap<_, _>>()
        };
        let mut database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
        database.create_table("table").unwrap();
        let end = |database: &Database| database.log_state().unwrap().appended_bytes;
        // Where the log ended at the last checkpoint, and at the last one of each copy; and how often the database was opened.
        let (mut model, mut copies, mut last, mut openings) = (BTreeMap::new(), Vec::new(), 0, 0);
        for number in 0..60_u64 {
            let key = random.random_range(0..30_u64).to_be_bytes();
            match random.random_range(0..20) {
                0..12 => {
                    // Small, so that the log has it.
                    let value = vec![number as u8; random.random_range(0..500)];
                    database.table("table").unwrap().put(key, &value).unwrap();
                    model.insert(key.to_vec(), value);
                }
                12..14 => {
                    database.table("table").unwrap().remove(key).unwrap();
                    model.remove(&key[..]);
                }
                14..16 => {
                    database.checkpoint().unwrap();
                    last = end(&database);
                }
                16..18 => copies.push((read(&disk), last, openings)),
                _ => {
                    disk = disk.crash_with(CrashModel::KeepAll);
                    drop(database);
                    database = open(&disk).unwrap();
                    openings += 1;
                }
            }
            assert!(contents(&database) == model);
        }
        let killed = disk.crash_with(CrashModel::KeepAll);
        drop(database);
        copies.push((read(&killed), last, openings));
        for (bytes, redo, opening) in copies {
            let disk = killed.crash_with(CrashModel::KeepAll);
            let file = disk.file("data");
            file.truncate(bytes.len() as u64).unwrap();
            file.write_from(0, &bytes).unwrap();
            match open(&disk) {
                Ok(database) => {
                    assert_eq!((redo, opening), (last, openings), "seed {seed}");
                    assert!(contents(&database) == model, "seed {seed}");
                    assert!(database.verify(|_| {}).is_clean(), "seed {seed}");
                    database.close().unwrap();
                    opened += 1;
                }
                Err(error) => {
                    assert!((redo, opening) < (last, openings), "seed {seed}: {error}");
                    assert!(read(&disk)[..] == bytes[..], "seed {seed}: {error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 50 && opened > 50, "{refused} refused, {opened} opened");
}
