//! Backups of a database that is full, while values are replaced all the time: each needs the space of another one.

use crate::{hooked::Hooked, options};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};
use std::{thread, time::Duration};
use vellum::{
    Backup, BackupError, BackupOptions, BackupProgress, BackupSummary, Database, Directory, Error, ErrorKind,
    Options, RestoreOptions, Table,
};
use vellum_vm::{Faults, SimulatedDisk};

/// How large the database can be.
const CAPACITY: u64 = 4 << 20;
/// The length of a value: five pages.
const VALUE_BYTES: usize = 20_000;
/// So many values are removed before the load begins.
const FREE: u64 = 3;

/// What makes the database full.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Limit {
    Capacity,
    Disk,
}

/// Which values are replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Replaced {
    /// All in turn.
    All,
    /// Two by turns.
    Two,
}

impl Replaced {
    fn key(self, number: u64, keys: u64) -> u64 {
        match self {
            Self::All => FREE + number % (keys - FREE),
            Self::Two => FREE + number % 2,
        }
    }
}

fn value(number: u64) -> Vec<u8> {
    let mut value = number.to_be_bytes().to_vec();
    value.resize(VALUE_BYTES, number as u8);
    value
}

fn full_options(limit: Limit) -> Options {
    match limit {
        Limit::Capacity => options().capacity_bytes(CAPACITY),
        Limit::Disk => options(),
    }
}

/// A full database on this disk, and how many values it has had.
fn fill(disk: &SimulatedDisk, limit: Limit) -> (Database, Table, u64) {
    let database = Database::create_in(Arc::new(disk.clone()), "data", &full_options(limit)).unwrap();
    if limit == Limit::Disk {
        disk.file("data").set_faults(Faults { capacity_bytes: Some(CAPACITY), ..Faults::default() });
    }
    let table = database.create_table("table").unwrap();
    let mut keys = 0u64;
    let full = loop {
        match table.put(keys.to_be_bytes(), value(0)) {
            Ok(_) => keys += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::OutOfSpace, "{full}");
    (0..FREE).for_each(|key| assert!(table.remove(key.to_be_bytes()).unwrap()));
    (database, table, keys)
}

/// Checks that a copy holds what the first so many changes have left, and returns how many.
fn check_prefix(database: &Database, replaced: Replaced, keys: u64) -> u64 {
    let report = database.verify(|_| {});
    assert!(report.is_clean(), "{:?}", report.problems);
    let table = database.table("table").unwrap();
    let number_of = |key: u64| {
        let found = table.get(key.to_be_bytes()).unwrap().unwrap();
        let number = u64::from_be_bytes(found[..8].try_into().unwrap());
        assert!(found == value(number), "the value of key {key}");
        number
    };
    let numbers: Vec<u64> = (FREE..keys).map(number_of).collect();
    let last = numbers.iter().copied().max().unwrap();
    let mut expected = vec![0; (keys - FREE) as usize];
    (1..=last).for_each(|number| expected[(replaced.key(number, keys) - FREE) as usize] = number);
    assert_eq!(numbers, expected);
    assert_eq!(table.shape().unwrap().entries, keys - FREE);
    last
}

/// A full database, and a thread that replaces values.
struct Load<'t> {
    table: &'t Table,
    replaced: Replaced,
    keys: u64,
    stop: AtomicBool,
    /// How many values it has replaced.
    done: Arc<AtomicU64>,
}

impl<'t> Load<'t> {
    fn new(table: &'t Table, replaced: Replaced, keys: u64) -> Self {
        Self { table, replaced, keys, stop: AtomicBool::new(false), done: Arc::default() }
    }

    fn done(&self) -> u64 {
        self.done.load(Ordering::SeqCst)
    }

    /// Does something beside the thread.
    fn beside<T>(&self, work: impl FnOnce() -> T) -> T {
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in self.done() + 1.. {
                    if self.stop.load(Ordering::SeqCst) {
                        break;
                    }
                    // There is always room for one more.
                    let key = self.replaced.key(number, self.keys);
                    self.table.put(key.to_be_bytes(), value(number)).unwrap();
                    self.done.store(number, Ordering::SeqCst);
                }
            });
            let enough = self.done() + 2 * self.keys;
            while self.done() < enough {
                thread::yield_now();
            }
            let result = work();
            self.stop.store(true, Ordering::SeqCst);
            result
        })
    }

    /// A backup beside the thread, restored and looked at.
    fn check_backup(&self, database: &Database, target: &SimulatedDisk) {
        // The pages are one call, and so is each round.
        let mut calls = 0;
        let mut progress = |_| {
            calls += 1;
            calls < 20
        };
        let options = BackupOptions::default().progress(&mut progress);
        let (before, summary, after): (u64, BackupSummary, u64) = self.beside(|| {
            let before = self.done();
            let summary = database.backup_in(Arc::new(target.clone()), "backup", options);
            (before, summary.unwrap(), self.done() + 1)
        });
        assert!(summary.rounds <= 4, "{summary:?}");
        assert!(summary.pages * 4096 <= 4 * CAPACITY, "{summary:?}");
        let restored: Arc<dyn Directory> = Arc::new(SimulatedDisk::new(7));
        let backup = Backup::open_in(target, "backup").unwrap();
        let how = RestoreOptions::default();
        Backup::restore_in(&[backup], restored.clone(), "restored", &crate::options(), how).unwrap();
        let copy = Database::open_in(restored, "restored", &crate::options()).unwrap();
        let last = check_prefix(&copy, self.replaced, self.keys);
        assert!(before <= last && last <= after, "{before} {last} {after}");
        assert_eq!(check_prefix(database, self.replaced, self.keys), self.done());
        // Nothing is held any more: there is room for what was removed.
        for key in 1..FREE {
            self.table.put(key.to_be_bytes(), value(0)).unwrap();
        }
    }
}

/// A backup to a disk that takes up to so long for each write.
fn beside_replacements(limit: Limit, replaced: Replaced, delay_max: Duration) {
    let (disk, target) = (SimulatedDisk::new(5), SimulatedDisk::new(6));
    let (database, table, keys) = fill(&disk, limit);
    target.set_faults(Faults { delay_max, ..Faults::default() });
    Load::new(&table, replaced, keys).check_backup(&database, &target);
}

#[test]
fn a_backup_of_a_full_database_ends() {
    for replaced in [Replaced::All, Replaced::Two] {
        for delay in [0, 3] {
            beside_replacements(Limit::Capacity, replaced, Duration::from_millis(delay));
        }
    }
}

#[test]
fn so_does_one_of_a_database_on_a_full_disk() {
    for replaced in [Replaced::All, Replaced::Two] {
        beside_replacements(Limit::Disk, replaced, Duration::from_millis(1));
    }
}

/// Each round takes until all values have been replaced twice, however long the thread waits for it.
#[test]
fn one_that_changes_cannot_wait_for_fails() {
    let (disk, target) = (SimulatedDisk::new(5), SimulatedDisk::new(6));
    let (database, table, keys) = fill(&disk, Limit::Capacity);
    let load = Load::new(&table, Replaced::All, keys);
    let (done, wanted) = (load.done.clone(), Arc::new(AtomicU64::new(0)));
    let stalled = Hooked::new(target.clone(), {
        let wanted = wanted.clone();
        move || {
            while done.load(Ordering::SeqCst) < wanted.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let mut rounds = 0;
    let mut progress = |progress: BackupProgress| {
        if progress.pages_done == progress.pages_total {
            rounds += 1;
            // So that the round has more to write than the backup keeps in memory.
            let replaced_twice = load.done() + 2 * keys;
            while load.done() < replaced_twice {
                thread::sleep(Duration::from_millis(1));
            }
            wanted.store(load.done() + 2 * keys, Ordering::SeqCst);
        }
        rounds < 20
    };
    let options = BackupOptions::default().progress(&mut progress);
    let made = load.beside(|| database.backup_in(stalled, "backup", options));
    let error = made.unwrap_err();
    assert!(matches!(error, Error::Backup(BackupError::Full)), "{error}");
    assert_eq!(error.kind(), ErrorKind::OutOfSpace);
    assert!(target.names().unwrap().is_empty(), "{:?}", target.names());
    assert_eq!(check_prefix(&database, Replaced::All, keys), load.done());
    let again = Load { stop: AtomicBool::new(false), ..load };
    again.check_backup(&database, &target);
}
