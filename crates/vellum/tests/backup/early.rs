//! Backups made right after a recovery, before anything else was logged.

use crate::options;
use std::sync::Arc;
use vellum::{Backup, BackupOptions, Database, Directory, RestoreOptions};
use vellum_vm::SimulatedDisk;

/// The log of such a backup has a segment of the life that the file knows as the last.
#[test]
fn a_backup_right_after_a_recovery_is_restored() {
    let disk = SimulatedDisk::new(1);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
    database.create_table("table").unwrap().put("key", "value").unwrap();
    let left = disk.kill();
    drop(database);
    for options in [options(), options().background_checkpoints(false)] {
        let database = Database::open_in(Arc::new(left.kill()), "data", &options).unwrap();
        for _ in 0..3 {
            let backups = SimulatedDisk::new(2);
            database.backup_in(Arc::new(backups.clone()), "backup", BackupOptions::default()).unwrap();
            let backup = Backup::open_in(&backups, "backup").unwrap();
            let place: Arc<dyn Directory> = Arc::new(SimulatedDisk::new(3));
            let how = RestoreOptions::default();
            Backup::restore_in(&[backup], place.clone(), "restored", &options, how).unwrap();
            let restored = Database::open_in(place, "restored", &options).unwrap();
            assert_eq!(restored.table("table").unwrap().get("key").unwrap().as_deref(), Some(&b"value"[..]));
        }
    }
}
