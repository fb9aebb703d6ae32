//! Discarding a database removes what belongs to it, and nothing else.

use crate::support::options;
use std::{env, fs, os::unix::fs::symlink, path::Path, process::Command};
use vellum::{Database, ErrorKind};

/// A variable that tells a child process where to work.
const PLACE: &str = "VELLUM_TEST_DISCARDED";

fn create(path: impl AsRef<Path>) -> Database {
    let database = Database::create(path, &options()).unwrap();
    database.create_table("table").unwrap().put("key", "value").unwrap();
    database
}

fn names(path: &Path) -> Vec<String> {
    let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[track_caller]
fn check(path: &Path) {
    let database = Database::open(path, &options()).unwrap();
    assert_eq!(database.table("table").unwrap().get("key").unwrap().unwrap(), b"value");
    database.close().unwrap();
}

#[test]
fn an_archive_that_has_the_log_of_another_copy_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let archived = options().log_segment_bytes(64 << 10).log_archive(path("archive"));
    create(path("data")).close().unwrap();
    let database = Database::open(path("data"), &archived).unwrap();
    database.archive_log().unwrap();
    database.close().unwrap();
    fs::copy(path("data"), path("copy")).unwrap();
    let database = Database::open(path("data"), &archived).unwrap();
    let table = database.table("table").unwrap();
    for number in 0..1000u32 {
        table.put(number.to_be_bytes(), [1; 100]).unwrap();
    }
    database.archive_log().unwrap();
    let parts = names(&path("archive"));
    assert!(!parts.is_empty());
    for is_changed in [false, true] {
        fs::copy(path("copy"), path("again")).unwrap();
        let copy = Database::open(path("again"), &archived).unwrap();
        if is_changed {
            copy.table("table").unwrap().put("key", "another").unwrap();
        }
        copy.discard().unwrap();
        assert_eq!(names(&path("archive")), parts, "changed: {is_changed}");
        assert!(!path("again").exists() && !path("again-log").exists());
    }
    drop(table);
    database.discard().unwrap();
    assert!(names(&path("archive")).is_empty());
}

#[test]
fn the_file_to_which_a_link_leads_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    create(directory.path().join("real")).close().unwrap();
    symlink("real", directory.path().join("link")).unwrap();
    Database::open(directory.path().join("link"), &options()).unwrap().discard().unwrap();
    assert_eq!(names(directory.path()), ["link"]);
}

#[test]
fn what_stands_at_the_former_place_of_a_moved_database_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    for is_replaced in [true, false] {
        let database = create(path("data"));
        fs::rename(path("data"), path("moved")).unwrap();
        if is_replaced {
            fs::rename(path("data-log"), path("moved-log")).unwrap();
            create(path("data")).close().unwrap();
        }
        let error = database.discard().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        let what = if is_replaced { "another file" } else { "was moved" };
        assert!(error.to_string().contains(what) && error.to_string().contains("data"), "{error}");
        check(&path("moved"));
        if is_replaced {
            check(&path("data"));
            fs::remove_file(path("data")).unwrap();
        }
        fs::remove_file(path("moved")).unwrap();
    }
    // One that was removed is gone already.
    let database = create(path("data"));
    fs::remove_file(path("data")).unwrap();
    database.discard().unwrap();
    assert!(!path("data-log").exists());
}

#[test]
fn one_that_is_open_for_reading_only_is_not_discarded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    create(&path).close().unwrap();
    let database = Database::open(&path, &options().read_only(true)).unwrap();
    assert_eq!(database.discard().unwrap_err().kind(), ErrorKind::ReadOnly);
    check(&path);
}

/// In a process of its own, because the working directory belongs to all of it.
#[test]
fn a_relative_path_leads_to_the_same_file_from_another_directory() {
    if let Some(place) = env::var_os(PLACE) {
        let place = Path::new(&place);
        env::set_current_dir(place.join("first")).unwrap();
        let database = create("data");
        env::set_current_dir(place.join("second")).unwrap();
        database.discard().unwrap();
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::create_dir(path("first")).unwrap();
    fs::create_dir(path("second")).unwrap();
    create(path("second/data")).close().unwrap();
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", "discarded::a_relative_path_leads_to_the_same_file_from_another_directory"]);
    let ended = child.env(PLACE, directory.path()).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
    assert!(names(&path("first")).is_empty());
    check(&path("second/data"));
}
