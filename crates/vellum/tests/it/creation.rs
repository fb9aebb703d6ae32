//! A creation that fails leaves nothing that is in the way of the next one.

use crate::support::options;
use std::sync::Arc;
use vellum::{Database, ErrorKind};
use vellum_vm::{Directory, Faults, FileOperation, SimulatedDisk};

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
