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

#[test]
fn the_log_is_not_its_own_archive() {
    let place = Place::new();
    place.run(&["put", "d", "k", "v"]).ok();
    std::os::unix::fs::symlink("d", place.path("link")).unwrap();
    for (database, archive) in [("d", "d-log"), ("./d", "d-log/"), ("link", "d-log")] {
        for is_there in [false, true] {
            if is_there {
                std::fs::create_dir(place.path("d-log")).unwrap();
            }
            let run = place.run(&["recover", database, "--archive", archive]);
            run.fails(2, &["the directory of the database's log itself", "name another directory"]);
            if is_there {
                std::fs::remove_dir(place.path("d-log")).unwrap();
            }
        }
    }
    place.run(&["recover", "d", "--archive", "other-log"]).ok();
}

#[test]
fn a_small_change_takes_little_room_and_follows_on_logs_of_all_sizes() {
    let place = Place::new();
    place.write("tree/a", "a".repeat(100_000));
    place.run(&["put", "d", "k", "v"]).ok();
    place.run(&["backup", "d", "copy"]).ok();
    let archive = ["--archive", "archive"];
    for round in 0..2 {
        let key = format!("k{round}");
        place.run(&[&["put", "d", &key, "v"][..], &archive].concat()).ok();
        place.run(&[&["import", "d", "tree", "--table", "tree"][..], &archive].concat()).ok();
        place.run(&[&["delete", "d", "k"][..], &archive].concat()).code.unwrap();
    }
    place.run(&["restore", "copy", "again", "--archive", "archive"]).ok();
    assert_eq!(place.run(&["dump", "again"]).ok(), place.run(&["dump", "d"]).ok());
    // A file system of its own, where a user may make one.
    let line = format!(
        "mkdir small && unshare -rm sh -c 'mount -t tmpfs -o size=20m none small || exit 99; cp d small; \
         {vellum} put small/d k v --no-archive && {vellum} delete small/d k && {vellum} drop-table small/d tree --yes && \
         {vellum} import small/d tree --table tree && {vellum} compact small/d && {vellum} recover small/d && \
         {vellum} verify small/d; head -c 18m /dev/zero > small/other; {vellum} import small/d tree; echo code $?'",
        vellum = env!("CARGO_BIN_EXE_vellum")
    );
    let run = place.shell(&line);
    if run.out.is_empty() {
        return;
    }
    let said = run.err.clone();
    let printed = run.ok();
    assert!(
        printed.contains("everything is as it should be") && printed.contains("code 5"),
        "{printed} {said}"
    );
    assert!(said.contains("the log takes 12.0 MiB in small"), "{said}");
}

#[test]
fn an_archive_that_did_not_end_yet_is_told() {
    let place = Place::new();
    place.run(&["put", "d", "k", "v", "--archive", "archive"]).ok();
    let told = "its archive ends with the first change that a command with --no-archive makes";
    for (command, code) in [(&["recover", "d"][..], 0), (&["delete", "d", "missing"], 1)] {
        place.run(&[command, &["--no-archive"]].concat()).fails(code, &[told]);
        place.run(command).fails(2, &["the log of d is archived"]);
    }
    assert!(!place.run(&["recover", "d", "--archive", "archive"]).err.contains(told));
    let run = place.run(&["put", "d", "k", "w", "--no-archive"]);
    assert!(!run.err.contains(told), "{}", run.err);
    run.ok();
    assert!(!place.run(&["recover", "d", "--no-archive"]).err.contains(told));
    place.run(&["recover", "d"]).ok();
}

/// What a command could not do is told, and not only that the database could not be closed then.
#[test]
fn a_close_that_fails_does_not_hide_what_failed_before() {
    let place = Place::new();
    place.run(&["put", "d", "k", "v", "--archive", "archive"]).ok();
    // Nothing can be archived.
    std::fs::create_dir(place.path("archive/log.unfinished")).unwrap();
    let vellum = env!("CARGO_BIN_EXE_vellum");
    place.write("large", vec![1; 9_000_000]);
    // A segment of the log has 4 MiB.
    let put = format!("ulimit -f 9000; {vellum} put d large --file large --archive archive");
    place.shell(&put).fails(5, &["in a file", "ulimit -f", "cannot close d", "could not be archived"]);
    place.run(&["get", "d", "large"]).fails(1, &[]);
    let words = ["cannot close d", "could not be archived", "What this command was to do is done"];
    place.run(&["put", "d", "small", "v", "--archive", "archive"]).fails(6, &words);
    assert_eq!(place.run(&["get", "d", "small"]).ok(), "v");
    std::fs::remove_dir(place.path("archive/log.unfinished")).unwrap();
    place.run(&["recover", "d", "--archive", "archive"]).ok();
    assert_eq!(place.run(&["scan", "d", "--full"]).ok(), "k\tv\nsmall\tv\n");
}
