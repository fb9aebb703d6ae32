//! The name that a file has while it is made: what else may have it, and attempts that meet.

use crate::{Place as _, Real, options};
use std::{
    fmt, fs, io,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};
use vellum::{Backup, BackupOptions, Database, Directory, Error, ErrorKind, RestoreOptions};
use vellum_vm::{CreateMode, File, FileOptions, SimulatedDisk, VmError};

/// A database with a hundred records.
fn fill(database: &Database) {
    let table = database.create_table("table").unwrap();
    for number in 0..100u32 {
        table.put(number.to_be_bytes(), [number as u8; 100]).unwrap();
    }
}

#[track_caller]
fn check(path: &Path) {
    let database = Database::open(path, &options()).unwrap();
    assert_eq!(database.table("table").unwrap().count(..).unwrap(), 100);
    assert!(database.verify(|_| {}).is_clean());
    database.close().unwrap();
}

fn names(path: &Path) -> Vec<String> {
    let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// A directory with a database and a backup of it.
fn backed_up() -> (Real, Database) {
    let place = Real::new();
    let database = place.create();
    fill(&database);
    database.backup(place.path().join("backup")).unwrap();
    (place, database)
}

/// Where a file system cannot rename and see that the name is free at once, a file has both names for a moment.
#[test]
fn a_finished_file_that_still_has_the_former_name_stays_as_it_is() {
    let (place, database) = backed_up();
    let path = |name: &str| place.path().join(name);
    Backup::restore(&[place.open_backup("backup")], path("restored"), &options()).unwrap();
    for (name, kept) in [("backup", "backup.old"), ("restored", "restored.old")] {
        fs::hard_link(path(name), path(&format!("{name}.unfinished"))).unwrap();
        fs::rename(path(name), path(kept)).unwrap();
    }
    let former = fs::read(path("backup.old")).unwrap();
    database.table("table").unwrap().put(b"later", b"value").unwrap();
    database.backup(path("backup")).unwrap();
    assert!(fs::read(path("backup.old")).unwrap() == former && fs::read(path("backup")).unwrap() != former);
    Backup::restore(&[place.open_backup("backup.old")], path("restored"), &options()).unwrap();
    let restored = Database::open(path("restored"), &options()).unwrap();
    restored.table("table").unwrap().put(b"later", b"value").unwrap();
    restored.close().unwrap();
    check(&path("restored.old"));
    assert!(!names(place.path()).iter().any(|name| name.contains("unfinished")));
}

#[test]
fn a_whole_file_of_that_name_is_refused() {
    let (place, database) = backed_up();
    let path = |name: &str| place.path().join(name);
    let backup = [place.open_backup("backup")];
    fs::copy(path("backup"), path("again.unfinished")).unwrap();
    let before = fs::read(path("backup")).unwrap();
    let error = database.backup(path("again")).unwrap_err();
    assert!(matches!(error, Error::UnfinishedExists { .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(fs::read(path("again.unfinished")).unwrap() == before && !path("again").exists());
    // A database that was not closed, with its log.
    fs::copy(path("data"), path("crashed.unfinished")).unwrap();
    fs::create_dir(path("crashed.unfinished-log")).unwrap();
    for name in names(&path("data-log")) {
        fs::copy(path("data-log").join(&name), path("crashed.unfinished-log").join(&name)).unwrap();
    }
    // One that was closed.
    let closed = Database::create(path("closed.unfinished"), &options()).unwrap();
    fill(&closed);
    closed.close().unwrap();
    for name in ["crashed", "closed"] {
        let error = Backup::restore(&backup, path(name), &options()).unwrap_err();
        assert!(matches!(error, Error::UnfinishedExists { .. }), "{error}");
        assert!(error.to_string().contains("move it away"), "{error}");
        assert!(!path(name).exists());
        check(&path(&format!("{name}.unfinished")));
    }
    // The log of a database that was moved without it.
    fs::create_dir(path("lost.unfinished-log")).unwrap();
    fs::write(path("lost.unfinished-log/segment-0000000000000001"), b"log").unwrap();
    let error = Backup::restore(&backup, path("lost"), &options()).unwrap_err();
    assert!(matches!(error, Error::RestoreExists { .. }), "{error}");
    assert!(error.to_string().contains("or remove this directory"), "{error}");
    assert_eq!(names(&path("lost.unfinished-log")), ["segment-0000000000000001"]);
    assert!(!path("lost.unfinished").exists());
}

#[test]
fn what_an_interrupted_restore_leaves_is_no_database_and_is_replaced() {
    let disk = SimulatedDisk::new(1);
    let database = Database::create_in(Arc::new(disk), "data", &options()).unwrap();
    fill(&database);
    let target = SimulatedDisk::new(4);
    database.backup_in(Arc::new(target.clone()), "backup", BackupOptions::default()).unwrap();
    let backup = [Backup::open_in(&target, "backup").unwrap()];
    let restore = |disk: &SimulatedDisk| {
        let how = RestoreOptions::default();
        Backup::restore_in(&backup, Arc::new(disk.clone()), "restored", &options(), how)
    };
    let (mut replaced, mut whole, mut nth, mut ends) = (0, 0, 0, 0);
    loop {
        nth += 1;
        let disk = SimulatedDisk::new(nth);
        disk.fail_from(nth);
        if restore(&disk).is_ok() {
            // How many operations there are depends on how many segments are made ahead. Only the last one leaves a whole
            // database, so its number is missed at times.
            ends += 1;
            if whole > 0 || ends == 100 {
                break;
            }
            nth = nth.saturating_sub(5);
            continue;
        }
        let disk = disk.kill();
        let left = disk.names().unwrap();
        if left.contains(&"restored".to_owned()) {
            continue;
        }
        let opened = Database::open_in(Arc::new(disk.kill()), "restored.unfinished", &options());
        match restore(&disk) {
            Ok(_) => {
                assert!(opened.is_err(), "{nth}: it is replaced, but is a database");
                replaced += 1;
            }
            // It is complete, and only its name is not.
            Err(error) => {
                assert!(matches!(error, Error::UnfinishedExists { .. }), "{nth}: {error}");
                assert_eq!(left, ["restored.unfinished"], "{nth}: its log is gone");
                opened.unwrap();
                disk.rename("restored.unfinished", "restored").unwrap();
                whole += 1;
            }
        }
        let database = Database::open_in(Arc::new(disk), "restored", &options()).unwrap();
        assert_eq!(database.table("table").unwrap().count(..).unwrap(), 100, "{nth}");
    }
    assert!(replaced > 20 && whole > 0, "{replaced} {whole}");
}

/// A disk that looks, at each operation on names, whether the unfinished file can be opened by another.
struct Watched {
    disk: SimulatedDisk,
    unfinished: String,
    /// After which operations it could.
    open: Mutex<Vec<String>>,
    looks: AtomicU64,
}

impl Watched {
    fn new(name: &str) -> Arc<Self> {
        let unfinished = format!("{name}.unfinished");
        Arc::new(Self {
            disk: SimulatedDisk::new(7),
            unfinished,
            open: Mutex::default(),
            looks: AtomicU64::new(0),
        })
    }

    fn look(&self, what: &str) {
        match self.disk.open(&self.unfinished, &FileOptions::default()) {
            Ok(_) => self.open.lock().unwrap().push(what.to_owned()),
            Err(VmError::Locked { .. }) => drop(self.looks.fetch_add(1, Ordering::Relaxed)),
            Err(_) => {}
        }
    }

    #[track_caller]
    fn check(&self, name: &str) {
        assert_eq!(*self.open.lock().unwrap(), [""; 0]);
        assert!(self.looks.load(Ordering::Relaxed) > 0);
        assert_eq!(self.disk.names().unwrap(), [name]);
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.disk.fmt(formatter)
    }
}

impl Directory for Watched {
    fn open(&self, name: &str, options: &FileOptions) -> Result<Arc<dyn File>, VmError> {
        self.look(&format!("open {name}"));
        self.disk.open(name, options)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.look("names");
        self.disk.names()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.look(&format!("remove {name}"));
        self.disk.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.look(&format!("rename {from}"));
        self.disk.rename(from, to)
    }

    fn sync(&self) -> io::Result<()> {
        self.look("sync");
        self.disk.sync()
    }
}

#[test]
fn a_file_is_locked_until_it_has_its_name() {
    let (place, database) = backed_up();
    let disk = Watched::new("again");
    database.backup_in(disk.clone(), "again", BackupOptions::default()).unwrap();
    disk.check("again");
    let (backup, disk) = ([place.open_backup("backup")], Watched::new("restored"));
    let how = RestoreOptions::default();
    Backup::restore_in(&backup, disk.clone(), "restored", &options(), how).unwrap();
    disk.check("restored");
    // What others make of that name is not touched.
    let other = FileOptions { create: CreateMode::CreateNew, ..FileOptions::default() };
    disk.disk.open("restored.unfinished", &other).unwrap();
}

#[test]
fn one_of_two_restores_to_a_name_is_refused_and_the_other_is_whole() {
    let (place, database) = backed_up();
    let path = place.path().join("restored");
    let backup = [place.open_backup("backup")];
    let mut refused = 0;
    let mut progress = |_, _| {
        let error = Backup::restore(&backup, &path, &options()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(error.to_string().contains("is running"), "{error}");
        assert!(place.path().join("restored.unfinished-log").exists());
        refused += 1;
        true
    };
    Backup::restore_with(&backup, &path, &options(), RestoreOptions::default().progress(&mut progress))
        .unwrap();
    assert!(refused > 0);
    check(&path);
    let mut refused = 0;
    let mut progress = |_| {
        let error = std::thread::scope(|scope| {
            scope.spawn(|| database.backup(place.path().join("again")).unwrap_err()).join().unwrap()
        });
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        refused += 1;
        true
    };
    database
        .backup_with(place.path().join("again"), BackupOptions::default().progress(&mut progress))
        .unwrap();
    assert!(refused > 0);
    assert_eq!(names(place.path()), ["again", "backup", "data", "data-log", "restored"]);
}
