//! Databases that are moved while they are open.

use crate::support::copy_directory;
use std::fs;
use vellum::{Database, Options};

fn options() -> Options {
    Options::default().pool_bytes(4 << 20).log_segment_bytes(64 << 10).log_buffer_bytes(4 << 20)
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
        copy_directory(from, &to);
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
