//! How many files of the process a log takes. A program of its own: others open files at the same time.

use std::{fs, path::PathBuf, sync::Arc};
use vellum_base::Lsn;
use vellum_vm::DiskDirectory;
use vellum_wal::{Durability, Log, LogError, LogOptions, LogReader};

/// What the process has open.
fn open_files() -> Vec<PathBuf> {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap();
    descriptors.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok()).collect()
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
