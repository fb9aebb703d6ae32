//! What the tests of this crate share.

use std::{fs, io, path::Path, sync::Arc};
use vellum::{Database, Error, Options};
use vellum_vm::SimulatedDisk;

/// A small database of which nothing happens in the background.
pub fn options() -> Options {
    Options::default()
        .pool_bytes(1 << 20)
        .capacity_bytes(1 << 30)
        .log_segment_bytes(1 << 20)
        .log_buffer_bytes(4 << 20)
        .background_eviction(false)
        .huge_pages(false)
        .background_checkpoints(false)
}

/// A new database, and the disk on which it is.
pub fn database(seed: u64, options: &Options) -> (SimulatedDisk, Database) {
    let disk = SimulatedDisk::new(seed);
    let database = Database::create_in(Arc::new(disk.clone()), "data", options).unwrap();
    (disk, database)
}

/// How many pages are allocated. What was freed is when that is durable.
pub fn pages(database: &Database) -> u64 {
    drop(database.begin().unwrap());
    // Without a log there is none, and what was freed is free.
    let _ = database.checkpoint();
    database.statistics().pages_allocated
}

/// A transaction has changed what this would change: one that was committed, or one that is open.
#[track_caller]
pub fn assert_conflict<T: std::fmt::Debug>(done: vellum::Result<T>, is_committed: bool) {
    assert!(
        matches!(&done, Err(Error::Conflict { committed, .. }) if *committed == is_committed),
        "{done:?}"
    );
}

/// Every page is sound.
#[track_caller]
pub fn assert_clean(database: &Database) {
    let report = database.verify(|_| {});
    assert!(report.is_clean(), "{:?}", report.problems);
}

/// Copies a directory with all that is in it, as a file system's snapshot would. The database may still prepare a segment of
/// its log: then a file that was listed is gone under that name, and the copy is made again.
pub fn copy_directory(from: &Path, to: &Path) {
    while let Err(error) = try_to_copy(from, to) {
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
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
