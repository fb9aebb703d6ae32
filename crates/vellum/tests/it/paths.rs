//! Paths that are not text in UTF-8, which the file system allows, and paths that lead to something that is no file.

use crate::support::options;
use std::{ffi::OsStr, os::unix::ffi::OsStrExt, process::Command, sync::mpsc, time::Duration};
use vellum::{Backup, BackupError, Database, Error, Salvage};

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

/// Opening a pipe for reading would wait until another process opens it for writing.
#[test]
fn what_is_no_file_is_refused_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in [pipe, directory.path().to_owned(), "/dev/null".into()] {
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            let error = [
                Database::open(&path, &options().read_only(true)).map(drop),
                Database::open(&path, &options()).map(drop),
                Salvage::open(&path, &options()).map(drop),
                Backup::open(&path).map(drop),
            ];
            send.send(error.map(|opened| opened.unwrap_err().to_string())).unwrap();
        });
        let errors = receive.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(errors.iter().all(|error| error.ends_with("it is not a regular file")), "{errors:?}");
    }
}
