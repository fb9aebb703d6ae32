//! Databases that are moved while they are open.

use std::{
    fs,
    io::{self, ErrorKind},
    path::Path,
};
use vellum::{Database, Options};

fn options() -> Options {
    Options::default().pool_bytes(4 << 20).log_segment_bytes(64 << 10).log_buffer_bytes(4 << 20)
}

/// Copies a directory with all that is in it, as a file system's snapshot would. The database may still prepare a segment of
/// its log: then a file that was listed is gone under that name, and the copy is made again.
fn copy(from: &Path, to: &Path) {
    while let Err(error) = try_to_copy(from, to) {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        fs::remove_dir_all(to).unwrap();
    }
}

fn try_to_copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            try_to_copy(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

#[test]
fn a_database_that_is_moved_stays_apart_from_the_one_at_its_former_place() {
    const RECORDS: u32 = 4000;
    let directory = tempfile::tempdir().unwrap();
    let [place, moved, copied] = ["place", "moved", "copied"].map(|name| directory.path().join(name));
    fs::create_dir(&place).unwrap();
    let first = Database::create(place.join("data"), &options()).unwrap();
    let of_first = first.create_table("table").unwrap();
    fs::rename(&place, &moved).unwrap();
    fs::create_dir(&place).unwrap();
    let second = Database::create(place.join("data"), &options()).unwrap();
    let of_second = second.create_table("table").unwrap();
    // Both make, and use again, many segments with the same names.
    for number in 0..RECORDS {
        of_first.put(number.to_be_bytes(), [1; 100]).unwrap();
        of_second.put(number.to_be_bytes(), [2; 100]).unwrap();
        if number % 1500 == 1499 {
            first.checkpoint().unwrap();
            second.checkpoint().unwrap();
        }
    }
    first.sync().unwrap();
    second.sync().unwrap();
    fs::create_dir(&copied).unwrap();
    for (from, byte) in [(&moved, 1), (&place, 2)] {
        let to = copied.join(byte.to_string());
        copy(from, &to);
        let database = Database::open(to.join("data"), &options()).unwrap();
        assert!(database.recovery().is_some());
        let table = database.table("table").unwrap();
        for number in 0..RECORDS {
            assert_eq!(table.get(number.to_be_bytes()).unwrap(), Some(vec![byte; 100]), "{number} of {byte}");
        }
        assert!(database.verify(|_| {}).is_clean());
    }
    drop((of_first, of_second));
    first.close().unwrap();
    second.close().unwrap();
    for place in [moved, place] {
        let database = Database::open(place.join("data"), &options()).unwrap();
        assert!(database.recovery().is_none());
    }
}
