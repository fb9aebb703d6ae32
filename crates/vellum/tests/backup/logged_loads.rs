//! Bulk loads whose contents go to the log because it is archived: what others do meanwhile, and what backups made
//! meanwhile have of them.

use crate::{hooked::Hooked, options};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};
use vellum::{Backup, BackupOptions, Database, RestoreOptions, Table};
use vellum_vm::SimulatedDisk;

/// Entries of 23 MiB, among them large values.
const ENTRIES: u32 = 12000;

/// How many backups are made during a load.
const BACKUPS: usize = 3;

fn value(key: u32) -> Vec<u8> {
    vec![key as u8; if key.is_multiple_of(1000) { 1 << 20 } else { 1000 }]
}

fn check(database: &Database, large: usize) {
    let loaded = database.table("loaded").unwrap();
    assert_eq!(loaded.count(..).unwrap(), u64::from(ENTRIES));
    for key in 0..ENTRIES {
        let is_changed = key.is_multiple_of(3) || key.is_multiple_of(5);
        let expected = value(key + u32::from(is_changed));
        assert!(loaded.get(key.to_be_bytes()).unwrap() == Some(expected), "{key}");
    }
    assert_eq!(database.table("other").unwrap().count(..).unwrap(), large as u64);
    assert!(database.verify(|_| {}).is_clean());
}

/// Fills the table on another thread, and calls `meanwhile` again and again while the contents are being logged, with a
/// function that says whether they still are.
fn load(
    database: &Database,
    loaded: &Table,
    in_transaction: bool,
    mut meanwhile: impl FnMut(usize, &dyn Fn() -> bool),
) {
    let end = || database.log_state().unwrap().appended_bytes;
    let (is_done, begin) = (AtomicBool::new(false), end());
    let entries = || (0..ENTRIES).map(|key| (key.to_be_bytes(), value(key)));
    thread::scope(|scope| {
        scope.spawn(|| {
            if in_transaction {
                let transaction = database.begin().unwrap();
                transaction.bulk_load(loaded, entries()).unwrap();
                is_done.store(true, Ordering::SeqCst);
                transaction.commit().unwrap();
            } else {
                loaded.bulk_load(entries()).unwrap();
                is_done.store(true, Ordering::SeqCst);
            }
        });
        while end() - begin < 1 << 20 {
            thread::yield_now();
        }
        let is_loading = || !is_done.load(Ordering::SeqCst);
        for round in (0..).take_while(|_| is_loading()) {
            meanwhile(round, &is_loading);
        }
    });
}

#[test]
fn checkpoints_backups_and_large_values_do_not_wait_for_a_load_that_is_logged() {
    for in_transaction in [false, true] {
        let (disk, archive) = (SimulatedDisk::new(1), Arc::new(SimulatedDisk::new(2)));
        let is_slow = Arc::new(AtomicBool::new(false));
        let slow = is_slow.clone();
        let disk = Hooked::new(disk, move || {
            if slow.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(10));
            }
        });
        let archived =
            options().pool_bytes(8 << 20).log_segment_bytes(256 << 10).log_archive_in(archive.clone());
        let database = Database::create_in(disk, "data", &archived).unwrap();
        let loaded = database.create_table("loaded").unwrap();
        let other = database.create_table("other").unwrap();
        let backups = SimulatedDisk::new(3);
        let back_up = |number: usize| {
            let options = BackupOptions::default();
            database.backup_in(Arc::new(backups.clone()), &number.to_string(), options).unwrap();
        };
        // Because of it all backups have the log from here on.
        let open = database.begin().unwrap();
        open.put(&other, "open", "").unwrap();
        is_slow.store(true, Ordering::SeqCst);
        let (mut rounds, mut checkpoints) = (0, 0);
        load(&database, &loaded, in_transaction, |round, is_loading| {
            other.put((round as u32).to_be_bytes(), [7; 20_000]).unwrap();
            database.checkpoint().unwrap();
            checkpoints += u32::from(is_loading());
            rounds = round + 1;
            if round < BACKUPS {
                back_up(round);
            }
        });
        is_slow.store(false, Ordering::SeqCst);
        assert!(checkpoints > 0, "all waited for the load");
        // These changes are before the redo point of the last backup, the contents that they change, too.
        for key in (0..ENTRIES).step_by(3) {
            loaded.put(key.to_be_bytes(), value(key + 1)).unwrap();
        }
        back_up(BACKUPS);
        for key in (0..ENTRIES).step_by(5) {
            loaded.put(key.to_be_bytes(), value(key + 1)).unwrap();
        }
        open.commit().unwrap();
        database.archive_log().unwrap();
        check(&database, rounds + 1);
        drop((loaded, other, database));
        for number in (0..rounds.min(BACKUPS)).chain([BACKUPS]) {
            let backup = Backup::open_in(&backups, &number.to_string()).unwrap();
            let target = Arc::new(SimulatedDisk::new(4));
            let how = RestoreOptions::default().archive_in(archive.clone());
            Backup::restore_in(&[backup], target.clone(), "restored", &options(), how).unwrap();
            let restored = Database::open_in(target, "restored", &options()).unwrap();
            check(&restored, rounds + 1);
        }
    }
}
