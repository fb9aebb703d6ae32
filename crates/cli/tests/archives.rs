//! The archive of the log, as commands that change a database name it.

mod common;

use common::{Place, Run, without_privileges};
use std::{fs::Permissions, os::unix::fs::PermissionsExt as _};

#[test]
fn an_archive_that_cannot_be_is_refused_before_anything_is_changed() {
    let place = Place::new();
    place.run(&["put", "d", "k", "v"]).ok();
    place.write("file", "no directory");
    place.write("tree/a", "a");
    std::os::unix::fs::symlink("nowhere", place.path("dangling")).unwrap();
    let before = std::fs::read(place.path("d")).unwrap();
    let commands: [&[&str]; 7] = [
        &["put", "d", "new", "v"],
        &["delete", "d", "k"],
        &["import", "d", "tree"],
        &["drop-table", "d", "main", "--yes"],
        &["compact", "d"],
        &["recover", "d"],
        &["put", "created", "new", "v"],
    ];
    for (archive, code, words) in [
        ("file", 2, "file is not a directory, which the archive of a log is"),
        ("file/below", 2, "file is not a directory"),
        ("dangling", 6, "dangling is a symbolic link to nowhere, which does not exist"),
        ("missing/archive", 6, "there is no directory missing, where the archive should be"),
    ] {
        for command in commands {
            place.run(&[command, &["--archive", archive]].concat()).fails(code, &[words]);
            assert!(std::fs::read(place.path("d")).unwrap() == before, "{archive:?}");
            assert!(!place.path("d-log").exists() && !place.path("created").exists());
        }
    }
    std::fs::create_dir(place.path("closed")).unwrap();
    std::fs::set_permissions(place.path("closed"), Permissions::from_mode(0o555)).unwrap();
    for archive in ["closed", "closed/archive"] {
        let command = ["put", "d", "new", "v", "--archive", archive];
        let run: Run = without_privileges(&mut place.command(&command)).output().unwrap().into();
        run.fails(6, &["cannot archive the log in", "Permission denied"]);
        assert!(std::fs::read(place.path("d")).unwrap() == before);
    }
    place.run(&["put", "d", "new", "v", "--archive", "archive"]).ok();
    place.run(&["put", "d", "newer", "v", "--archive", "archive"]).ok();
}
