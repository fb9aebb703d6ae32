//! Paths that are not text in UTF-8, which the file system allows.

use crate::support::options;
use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
use vellum::{Backup, BackupError, Database, Error};

#[test]
fn a_backup_may_have_any_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &[u8]| directory.path().join(OsStr::from_bytes(name));
    let database = Database::create(path(b"data\xff"), &options()).unwrap();
    database.create_table("table").unwrap().put("key", "value").unwrap();
    database.backup(path(b"backup\xff")).unwrap();
    let again = database.backup(path(b"backup\xff")).unwrap_err();
    assert!(matches!(again, Error::Backup(BackupError::Exists { .. })), "{again}");
    let backup = Backup::open(path(b"backup\xff")).unwrap();
    Backup::restore(&[backup], path(b"restored\xff"), &options()).unwrap();
    let restored = Database::open(path(b"restored\xff"), &options()).unwrap();
    assert_eq!(restored.table("table").unwrap().get("key").unwrap().unwrap(), b"value");
    // A name that looks the same when it is shown is another one.
    assert!(Backup::open(path("backup\u{fffd}".as_bytes())).is_err());
}
