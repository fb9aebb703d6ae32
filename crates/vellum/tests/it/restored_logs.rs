//! Archives and options with which a database is restored to a point, or is not: sizes of segments, damaged files, links.

use crate::support::options;
use std::{
    fs, io,
    os::unix::fs::symlink,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};
use vellum::{Backup, BackupOptions, BackupProgress, Database, Options, RestoreOptions};
use vellum_vm::{CrashModel, CreateMode, Directory, File, FileOptions, SimulatedDisk, VmError};

/// A database with an archive of several files, which is closed, and a backup of its beginning.
fn make(directory: &Path, count: u32) -> Options {
    let options = options().log_segment_bytes(16 << 10).log_archive(directory.join("archive"));
    let database = Database::create(directory.join("data"), &options).unwrap();
    let table = database.create_table("table").unwrap();
    database.backup(directory.join("backup")).unwrap();
    for key in 0..count {
        table.put(key.to_be_bytes(), [key as u8; 1000]).unwrap();
    }
    drop(table);
    database.close().unwrap();
    options
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn restore(directory: &Path, options: &Options) -> vellum::Result<u64> {
    let backup = Backup::open(directory.join("backup"))?;
    let how = RestoreOptions::default().archive(directory.join("archive"));
    Backup::restore_with(&[backup], directory.join("restored"), options, how)?;
    let database = Database::open(directory.join("restored"), &options.clone().log(false))?;
    database.table("table")?.count(..)
}

#[test]
fn a_restore_checks_the_size_of_segments_as_a_creation_does() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    make(directory, 40);
    let before = names(directory);
    for bytes in [1 << 63, u64::MAX / 4096 * 4096, 1, 0] {
        let options = options().log_segment_bytes(bytes);
        let refused = restore(directory, &options).unwrap_err();
        let of_creation = Database::create(directory.join("other"), &options).unwrap_err();
        assert_eq!(refused.to_string(), of_creation.to_string(), "{bytes}");
        assert_eq!(names(directory), before, "{bytes}");
    }
    // A disk that is large has room for it.
    let large = restore(directory, &options().log_segment_bytes(1 << 40));
    assert!(
        large.as_ref().map_or_else(|error| error.to_string().contains("segment"), |count| *count == 40),
        "{large:?}"
    );
    if large.is_err() {
        assert_eq!(names(directory), before);
        assert_eq!(restore(directory, &options()).unwrap(), 40);
    }
}

#[test]
fn the_files_of_an_archive_may_be_links() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    make(directory, 40);
    let (archive, elsewhere) = (directory.join("archive"), directory.join("elsewhere"));
    fs::create_dir(&elsewhere).unwrap();
    for name in names(&archive) {
        fs::rename(archive.join(&name), elsewhere.join(&name)).unwrap();
        symlink(elsewhere.join(&name), archive.join(&name)).unwrap();
    }
    assert_eq!(restore(directory, &options()).unwrap(), 40);
    // The last one leads nowhere: what it had is not passed over.
    fs::remove_file(directory.join("restored")).unwrap();
    fs::remove_file(elsewhere.join(names(&elsewhere).last().unwrap())).unwrap();
    let error = restore(directory, &options()).unwrap_err().to_string();
    assert!(error.contains("archive"), "{error}");
}

#[test]
fn a_damaged_last_file_of_an_archive_is_written_again() {
    for bytes in [0, 100, 4096] {
        let (disk, archive, backups) = (SimulatedDisk::new(1), SimulatedDisk::new(2), SimulatedDisk::new(3));
        let archived = |archive: &SimulatedDisk| {
            options().log_segment_bytes(16 << 10).log_archive_in(Arc::new(archive.clone()))
        };
        let database = Database::create_in(Arc::new(disk.clone()), "data", &archived(&archive)).unwrap();
        let table = database.create_table("table").unwrap();
        database.backup_in(Arc::new(backups.clone()), "backup", BackupOptions::default()).unwrap();
        for key in 0..40_u32 {
            table.put(key.to_be_bytes(), [key as u8; 1000]).unwrap();
        }
        database.archive_log().unwrap();
        // It crashes with the log of which the last file was made. Dropping the database would close it.
        let (disk, archive) = (disk.crash(), archive.crash());
        let last = archive.names().unwrap().pop().unwrap();
        archive.open(&last, &FileOptions::default()).unwrap().truncate(bytes).unwrap();
        let database = Database::open_in(Arc::new(disk), "data", &archived(&archive)).unwrap();
        database.table("table").unwrap().put(b"later", b"value").unwrap();
        database.archive_log().unwrap();
        let state = database.log_state().unwrap().archive.unwrap();
        assert_eq!((state.gap, state.error), (None, None), "{bytes}");
        database.close().unwrap();
        let target: Arc<dyn Directory> = Arc::new(SimulatedDisk::new(4));
        let how = RestoreOptions::default().archive_in(Arc::new(archive));
        let backup = Backup::open_in(&backups, "backup").unwrap();
        Backup::restore_in(&[backup], target.clone(), "restored", &options(), how).unwrap();
        let restored = Database::open_in(target, "restored", &options()).unwrap();
        assert_eq!(restored.table("table").unwrap().count(..).unwrap(), 41, "{bytes}");
    }
}

#[test]
fn a_damaged_last_file_of_an_archive_that_the_log_lacks_leaves_a_gap() {
    let (disk, archive) = (SimulatedDisk::new(1), SimulatedDisk::new(2));
    let archived = options().log_segment_bytes(16 << 10).log_archive_in(Arc::new(archive.clone()));
    let database = Database::create_in(Arc::new(disk.clone()), "data", &archived).unwrap();
    let table = database.create_table("table").unwrap();
    for key in 0..40_u32 {
        table.put(key.to_be_bytes(), [key as u8; 1000]).unwrap();
    }
    drop(table);
    database.close().unwrap();
    let last = archive.names().unwrap().pop().unwrap();
    archive.open(&last, &FileOptions::default()).unwrap().truncate(0).unwrap();
    let database = Database::open_in(Arc::new(disk), "data", &archived).unwrap();
    database.table("table").unwrap().put(b"later", b"value").unwrap();
    database.archive_log().unwrap();
    assert!(database.log_state().unwrap().archive.unwrap().gap.is_some());
    database.close().unwrap();
}

/// A disk on which no segment of a log is open when another one is made.
#[derive(Debug)]
struct OneSegment {
    disk: SimulatedDisk,
    /// How many were made.
    made: AtomicU32,
}

impl Directory for OneSegment {
    fn open(&self, name: &str, options: &FileOptions) -> Result<Arc<dyn File>, VmError> {
        if options.create == CreateMode::CreateNew && name.starts_with("segment-") {
            let names = self.disk.names().unwrap().into_iter().filter(|name| name.starts_with("segment-"));
            let open = names.filter(|name| self.disk.open(name, &FileOptions::default()).is_err()).count();
            assert_eq!(open, 0, "segments that have been written are closed");
            self.made.fetch_add(1, Ordering::SeqCst);
        }
        self.disk.open(name, options)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.disk.names()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }
}

#[test]
fn a_log_that_is_restored_takes_few_files() {
    let (disk, backups) = (Arc::new(SimulatedDisk::new(1)), Arc::new(SimulatedDisk::new(2)));
    let options = options().log_segment_bytes(16 << 10);
    let database = Database::create_in(disk, "data", &options).unwrap();
    let table = database.create_table("table").unwrap();
    table.put(0u32.to_be_bytes(), [0; 1000]).unwrap();
    let mut count = 1_u32;
    let mut progress = |_: BackupProgress| {
        for key in count..200 {
            table.put(key.to_be_bytes(), [key as u8; 1000]).unwrap();
        }
        count = 200;
        true
    };
    let how = BackupOptions::default().progress(&mut progress);
    database.backup_in(backups.clone(), "backup", how).unwrap();
    let backup = Backup::open_in(&*backups, "backup").unwrap();
    let restored = SimulatedDisk::new(3);
    let target = Arc::new(OneSegment { disk: restored.clone(), made: AtomicU32::new(0) });
    Backup::restore_in(&[backup], target.clone(), "data", &options, RestoreOptions::default()).unwrap();
    assert!(target.made.load(Ordering::SeqCst) > 10, "{target:?}");
    let crashed = Arc::new(restored.crash_with(CrashModel::LoseAll));
    let database = Database::open_in(crashed, "data", &options).unwrap();
    assert_eq!(database.table("table").unwrap().count(..).unwrap(), 200);
}
