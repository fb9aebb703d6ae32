//! A creation that fails leaves nothing that is in the way of the next one.

use crate::support::options;
use std::{
    io,
    sync::{Arc, Mutex},
};
use vellum::{Database, ErrorKind};
use vellum_vm::{CreateMode, Directory, Faults, File, FileOperation, FileOptions, SimulatedDisk, VmError};

/// Creates a database of which the operation of this kind with this number fails. False if there are fewer.
fn create(operation: FileOperation, number: u64) -> bool {
    let disk = SimulatedDisk::new(number);
    let directory: Arc<dyn Directory> = Arc::new(disk.clone());
    let create = || Database::create_in(directory.clone(), "data", &options());
    disk.fail_nth_of(operation, number);
    let created = create();
    let has_failed = disk.counts().scheduled_failures > 0;
    disk.heal();
    let what = format!("{operation} {number}");
    let database = match created {
        Ok(database) => database,
        Err(_) => {
            assert_eq!(disk.names().unwrap(), [""; 0], "{what}");
            create().unwrap_or_else(|error| panic!("after {what} failed: {error}"))
        }
    };
    assert!(database.was_created());
    database.create_table("table").unwrap().put("key", "value").unwrap();
    database.close().unwrap();
    let database = Database::open_in(directory, "data", &options()).unwrap();
    assert_eq!(database.table("table").unwrap().get("key").unwrap().unwrap(), b"value", "{what}");
    has_failed
}

#[test]
fn a_creation_that_failed_can_be_tried_again() {
    for operation in [FileOperation::Read, FileOperation::Write, FileOperation::Sync, FileOperation::Name] {
        let failed = (1..).take_while(|number| create(operation, *number)).count();
        println!("{failed} times the kind {operation}");
        assert!(failed > 0 || operation == FileOperation::Read);
    }
}

#[test]
fn a_disk_may_be_too_small_for_a_new_database() {
    for kibibytes in (4..4096).step_by(60) {
        let disk = SimulatedDisk::new(1);
        let directory: Arc<dyn Directory> = Arc::new(disk.clone());
        disk.set_faults(Faults { capacity_bytes: Some(kibibytes << 10), ..Faults::default() });
        let created = Database::create_in(directory.clone(), "data", &options()).map(drop);
        if let Err(error) = created {
            assert_eq!(error.kind(), ErrorKind::OutOfSpace, "{error}");
            assert_eq!(disk.names().unwrap(), [""; 0], "{kibibytes} KiB");
            disk.set_faults(Faults::default());
            Database::create_in(directory, "data", &options()).unwrap();
        }
    }
}

/// A directory that tells whether a file is locked when it is removed.
#[derive(Debug)]
struct Watched {
    disk: SimulatedDisk,
    was_locked: Mutex<Option<bool>>,
}

impl Directory for Watched {
    fn open(&self, name: &str, options: &FileOptions) -> Result<Arc<dyn File>, VmError> {
        self.disk.open(name, options)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.disk.names()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        if name == "data" {
            let options = FileOptions { create: CreateMode::OpenExisting, ..FileOptions::default() };
            let opened = self.disk.open(name, &options);
            *self.was_locked.lock().unwrap() = Some(matches!(opened, Err(VmError::Locked { .. })));
        }
        self.disk.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }
}

/// Otherwise another process that waits for it could create its database in it before it is removed.
#[test]
fn the_file_of_a_failed_creation_is_locked_until_it_is_removed() {
    for operation in [FileOperation::Write, FileOperation::Sync, FileOperation::Name] {
        for number in 1.. {
            let watched = Arc::new(Watched { disk: SimulatedDisk::new(1), was_locked: Mutex::default() });
            watched.disk.fail_nth_of(operation, number);
            if Database::create_in(watched.clone(), "data", &options()).is_ok() {
                break;
            }
            let was_locked = watched.was_locked.lock().unwrap().take();
            assert!(was_locked.is_none_or(|was| was), "{operation} {number}");
        }
    }
    let watched = Arc::new(Watched { disk: SimulatedDisk::new(1), was_locked: Mutex::default() });
    assert!(Database::create_in(watched.clone(), "data", &options().log_buffer_bytes(3)).is_err());
    assert_eq!(watched.was_locked.lock().unwrap().take(), Some(true));
}

#[test]
fn a_failed_creation_leaves_the_file_that_was_there_and_the_link_to_it() {
    let directory = tempfile::tempdir().unwrap();
    let (file, link) = (directory.path().join("file"), directory.path().join("link"));
    std::fs::write(&file, []).unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for path in [&file, &link] {
        assert!(Database::open_or_create(path, &options().log_buffer_bytes(3)).is_err());
        assert_eq!(std::fs::metadata(&file).unwrap().len(), 0);
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    }
    let database = Database::open_or_create(&link, &options()).unwrap();
    assert!(database.was_created());
    database.close().unwrap();
    assert!(std::fs::metadata(&file).unwrap().len() > 0);
}

#[test]
fn what_was_not_closed_is_opened_for_reading_whether_or_not_it_might_be_created() {
    let directory = tempfile::tempdir().unwrap();
    let [path, copy] = ["data", "copy"].map(|name| directory.path().join(name));
    let database = Database::create(&path, &options()).unwrap();
    database.create_table("table").unwrap().put("key", "value").unwrap();
    database.sync().unwrap();
    std::fs::copy(&path, &copy).unwrap();
    let (log, log_copy) = (Database::log_path(&path), Database::log_path(&copy));
    std::fs::create_dir(&log_copy).unwrap();
    for entry in std::fs::read_dir(log).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), log_copy.join(entry.file_name())).unwrap();
    }
    let reader = Database::open_or_create(&copy, &options().read_only(true)).unwrap();
    assert!(reader.recovery().is_some());
    assert_eq!(reader.table("table").unwrap().get("key").unwrap().as_deref(), Some(&b"value"[..]));
}
