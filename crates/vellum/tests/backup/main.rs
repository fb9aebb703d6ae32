//! Backups: made beside threads that change everything, interrupted, of a full disk and of damaged files, and restored.

mod early;
mod faults;
mod full;
#[path = "../hooked/mod.rs"]
mod hooked;
mod increments;
mod load;
mod logged_loads;
mod refused;
mod unfinished;

use load::{Load, check};
use std::{path::Path, sync::Arc};
use vellum::{Backup, BackupOptions, Database, Directory, DiskDirectory, Options, RestoreOptions};
use vellum_vm::SimulatedDisk;

/// A small pool, small segments, and checkpoints all the time.
fn options() -> Options {
    Options::default()
        .pool_bytes(1 << 20)
        .capacity_bytes(1 << 30)
        .log_segment_bytes(1 << 20)
        .log_buffer_bytes(4 << 20)
        .checkpoint_log_bytes(1 << 20)
        .huge_pages(false)
}

/// Where a database, its backups and what is restored of them lie.
trait Place {
    fn create(&self) -> Database;
    fn back_up(&self, database: &Database, name: &str, options: BackupOptions<'_>) -> vellum::BackupSummary;
    fn open_backup(&self, name: &str) -> Backup;
    fn restore(&self, backups: &[Backup], name: &str) -> vellum::Result<Database>;
}

/// Two simulated disks, and one for each database that is restored.
struct Simulated {
    database: SimulatedDisk,
    backups: SimulatedDisk,
}

impl Simulated {
    fn new(seed: u64) -> Self {
        Self { database: SimulatedDisk::new(seed), backups: SimulatedDisk::new(seed + 1) }
    }
}

impl Place for Simulated {
    fn create(&self) -> Database {
        Database::create_in(Arc::new(self.database.clone()), "data", &options()).unwrap()
    }

    fn back_up(&self, database: &Database, name: &str, options: BackupOptions<'_>) -> vellum::BackupSummary {
        database.backup_in(Arc::new(self.backups.clone()), name, options).unwrap()
    }

    fn open_backup(&self, name: &str) -> Backup {
        Backup::open_in(&self.backups, name).unwrap()
    }

    fn restore(&self, backups: &[Backup], name: &str) -> vellum::Result<Database> {
        let disk: Arc<dyn Directory> = Arc::new(SimulatedDisk::new(3));
        Backup::restore_in(backups, disk.clone(), name, &options(), RestoreOptions::default())?;
        assert_eq!(disk.names().unwrap(), [name]);
        Database::open_in(disk, name, &options())
    }
}

/// A directory of the file system.
struct Real(tempfile::TempDir);

impl Real {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Place for Real {
    fn create(&self) -> Database {
        Database::create(self.path().join("data"), &options()).unwrap()
    }

    fn back_up(&self, database: &Database, name: &str, options: BackupOptions<'_>) -> vellum::BackupSummary {
        database.backup_with(self.path().join(name), options).unwrap()
    }

    fn open_backup(&self, name: &str) -> Backup {
        Backup::open(self.path().join(name)).unwrap()
    }

    fn restore(&self, backups: &[Backup], name: &str) -> vellum::Result<Database> {
        let path = self.path().join(name);
        Backup::restore(backups, &path, &options())?;
        let names = DiskDirectory::new(self.path()).names().unwrap();
        assert!(!names.iter().any(|name| name.contains("unfinished")), "{names:?}");
        Database::open(path, &options())
    }
}

/// Full backups beside the load, each restored and looked at.
fn beside_writers(place: &dyn Place, rounds: usize, seed: u64) {
    let database = place.create();
    let load = Load::start(&database, seed);
    let mut taken = Vec::new();
    for round in 0..rounds {
        let before = load.committed();
        let summary = place.back_up(&database, &format!("backup-{round}"), BackupOptions::default());
        assert!(summary.rounds > 0 && summary.pages > 0, "{summary:?}");
        taken.push((before, load.committed()));
    }
    load.stop();
    for (round, (before, after)) in taken.into_iter().enumerate() {
        let backup = place.open_backup(&format!("backup-{round}"));
        let restored = place.restore(&[backup], &format!("restored-{round}")).unwrap();
        check(&restored, &before, &after);
        restored.close().unwrap();
    }
    // The database itself is as ever.
    let report = database.verify(|_| {});
    assert!(report.is_clean(), "{:?}", report.problems);
    database.close().unwrap();
}

#[test]
fn a_backup_beside_writers_is_a_prefix_of_the_commits() {
    for seed in 0..3 {
        beside_writers(&Simulated::new(seed), 4, seed);
    }
}

#[test]
fn so_it_is_on_real_files() {
    beside_writers(&Real::new(), 6, 77);
}

#[test]
fn a_database_that_is_only_read_is_backed_up_too() {
    let place = Real::new();
    let database = place.create();
    let load = Load::start(&database, 5);
    std::thread::sleep(std::time::Duration::from_millis(300));
    let committed = load.stop();
    database.close().unwrap();
    let path = place.path().join("data");
    let closed = Database::open(&path, &options().read_only(true)).unwrap();
    // Two at once, and beside another reader.
    let other = Database::open(&path, &options().read_only(true)).unwrap();
    let backups = [
        place.back_up(&closed, "a", BackupOptions::default()),
        place.back_up(&other, "b", BackupOptions::default()),
    ];
    assert!(backups.iter().all(|backup| backup.rounds == 0 && backup.log_bytes == 0), "{backups:?}");
    for name in ["a", "b"] {
        let restored = place.restore(&[place.open_backup(name)], &format!("restored-{name}")).unwrap();
        check(&restored, &committed, &committed);
        restored.close().unwrap();
    }
}

#[test]
fn without_a_log_a_database_is_backed_up_when_it_is_closed() {
    let place = Real::new();
    let path = place.path().join("data");
    let database = Database::create(&path, &options().log(false)).unwrap();
    database.create_table("table").unwrap().put(b"key", b"value").unwrap();
    let error = database.backup(place.path().join("backup")).unwrap_err();
    assert!(error.to_string().contains("close it"), "{error}");
    assert!(!place.path().join("backup.unfinished").exists());
    database.close().unwrap();
    let database = Database::open(&path, &options()).unwrap();
    database.backup(place.path().join("backup")).unwrap();
    database.close().unwrap();
    let former = place.open_backup("backup");
    let restored = place.restore(&[place.open_backup("backup")], "restored").unwrap();
    // What is changed without a log no increment would find.
    let database = Database::open(&path, &options().log(false)).unwrap();
    database.table("table").unwrap().put(b"key", b"later").unwrap();
    database.close().unwrap();
    let database = Database::open(&path, &options()).unwrap();
    let since = BackupOptions::default().since(&former);
    let error = database.backup_with(place.path().join("increment"), since).unwrap_err();
    assert!(error.to_string().contains("leave --since out"), "{error}");
    assert_eq!(restored.table("table").unwrap().get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
}
