//! The shortest and the longest times: each is refused, or does what it says.

use crate::options;
use std::{sync::Arc, time::Duration};
use vellum::{
    BackupOptions, ChangesFrom, ChangesOptions, Database, Options, SnapshotLimit, TransactionOptions,
};
use vellum_vm::SimulatedDisk;

/// Works with a database with these options, if they are not refused. Returns whether they are.
fn is_refused(options: &Options) -> bool {
    let disk = Arc::new(SimulatedDisk::new(1));
    let database = match Database::create_in(disk.clone(), "data", options) {
        Ok(database) => database,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return true;
        }
    };
    let table = database.create_table("table").unwrap();
    for number in 0..300u32 {
        table.put(number.to_be_bytes(), vec![7; 20 * number as usize]).unwrap();
    }
    let snapshot = database.begin().unwrap();
    table.put(b"key", b"value").unwrap();
    // A limit of nothing ends it.
    let _ = snapshot.get(&table, b"key");
    drop(snapshot);
    database.checkpoint().unwrap();
    database.backup_in(disk.clone(), "backup", BackupOptions::default()).unwrap();
    drop(table);
    database.close().unwrap();
    let database = Database::open_in(disk, "data", options).unwrap();
    assert_eq!(database.table("table").unwrap().range(..).unwrap().count(), 301);
    false
}

#[test]
fn no_time_is_too_short_or_too_long() {
    for time in [Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(i64::MAX as u64), Duration::MAX]
    {
        assert!(!is_refused(&options().checkpoint_interval(time)));
        assert!(!is_refused(&options().snapshot_limit(SnapshotLimit::default().age(time))));
        let disk = Arc::new(SimulatedDisk::new(1));
        let database = Database::create_in(disk, "data", &options()).unwrap();
        let table = database.create_table("table").unwrap();
        let again = TransactionOptions::default().retry_for(time);
        database.run_with(again, |transaction| transaction.put(&table, b"key", b"value")).unwrap();
        let keep = ChangesOptions::default().keep_bytes(u64::MAX);
        let mut changes = database.changes_with(ChangesFrom::Now, keep).unwrap();
        table.put(b"key", b"later").unwrap();
        // A commit is there at once or, with no time to wait for it, at the next call.
        let commit = changes.next_within(time).unwrap().or_else(|| changes.next().unwrap());
        assert_eq!(commit.unwrap().changes.len(), 1);
    }
}
