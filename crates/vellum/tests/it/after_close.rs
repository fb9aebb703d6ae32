//! What is called after `Database::close_in_place` leaves the closed database as it is.

use crate::support::{assert_clean, options};
use std::sync::Arc;
use vellum::{BackupOptions, ChangesFrom, Database, ErrorKind, Result, TableOptions};
use vellum_vm::SimulatedDisk;

type Call = (&'static str, bool, fn(&Database) -> Result<()>);

/// The calls, and whether they need the log.
const CALLS: [Call; 13] = [
    ("get", false, |database| database.table("table")?.get("key").map(drop)),
    ("put", true, |database| database.table("table")?.put("key", "other").map(drop)),
    ("put plain", true, |database| database.table("plain")?.put("key", "other").map(drop)),
    ("put large", true, |database| database.table("table")?.put("key", [1; 9000]).map(drop)),
    ("remove", true, |database| database.table("table")?.remove("key").map(drop)),
    ("bulk load", true, |database| database.table("empty")?.bulk_load([("a", "b")]).map(drop)),
    ("create table", true, |database| database.create_table("new").map(drop)),
    ("drop table", true, |database| database.drop_table("empty")),
    ("compact", true, |database| database.compact(|_| true).map(drop)),
    ("back up", true, |database| {
        let target = Arc::new(SimulatedDisk::new(9));
        database.backup_in(target, "backup", BackupOptions::default()).map(drop)
    }),
    ("checkpoint", false, Database::checkpoint),
    ("sync", false, Database::sync),
    ("follow", false, |database| database.changes(ChangesFrom::Now).map(drop)),
];

#[test]
fn no_call_makes_a_closed_database_need_the_log_that_was_removed() {
    for (name, needs_log, call) in CALLS {
        let disk = SimulatedDisk::new(1);
        let mut database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
        database.create_table("table").unwrap().put("key", "value").unwrap();
        database.create_table("empty").unwrap();
        let plain = TableOptions::default().versions(false);
        database.create_table_with("plain", plain).unwrap().put("key", "value").unwrap();
        database.close_in_place().unwrap();
        match call(&database) {
            Err(error) if needs_log => {
                assert!(error.to_string().contains("the database has been closed"), "{name}: {error}");
                assert_eq!(error.kind(), ErrorKind::ReadOnly, "{name}: {error}");
            }
            done => assert!(!needs_log, "{name}: {done:?}"),
        }
        let killed = disk.kill();
        drop(database);
        for disk in [killed, disk] {
            let opened = Database::open_in(Arc::new(disk), "data", &options());
            let database = opened.unwrap_or_else(|error| panic!("{name}: {error}"));
            let table = database.table("table").unwrap();
            assert_eq!(table.get("key").unwrap().as_deref(), Some(&b"value"[..]), "{name}");
            assert_clean(&database);
        }
    }
}
