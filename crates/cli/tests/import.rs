//! Importing directory trees.

mod common;

use common::{Place, Run, noise, signal, wait_for_size, without_privileges};
use std::{
    ffi::OsStr,
    fs::{File, Permissions},
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    process::Stdio,
};

#[test]
fn regular_files_are_stored_under_their_relative_paths() {
    let place = Place::new();
    let files = [("a", 0), ("b/c.txt", 10), ("b/d/e", 5000), ("b/large", 3_000_000)];
    for (name, length) in files {
        place.write(&format!("tree/{name}"), noise(length as u64 + 1, length));
    }
    let tree = place.path("tree");
    std::fs::write(tree.join(OsStr::from_bytes(b"not \xff text\n")), "x").unwrap();
    std::os::unix::fs::symlink("a", tree.join("link")).unwrap();
    std::os::unix::fs::symlink("..", tree.join("b/circle")).unwrap();
    assert!(place.shell("mkfifo tree/pipe").code == Some(0));

    let summary = place.run(&["import", "d", "tree", "--pool", "1MiB", "--json"]).json().pop().unwrap();
    assert_eq!((&summary["files"], &summary["bytes"]), (&5.into(), &3_005_011.into()));
    assert_eq!((&summary["complete"], &summary["replaced"]), (&true.into(), &0.into()));
    let keys = place.run(&["scan", "d", "--keys"]).ok();
    assert_eq!(keys.lines().collect::<Vec<_>>(), ["a", "b/c.txt", "b/d/e", "b/large", r"not \xff text\n"]);
    for (name, length) in files {
        assert!(place.run(&["get", "d", name]).out == noise(length as u64 + 1, length), "{name}");
    }
    assert_eq!(place.run(&["get", "d", r"not \xff text\n"]).ok(), "x");

    place.write("tree/a", "new");
    let again = place.run(&["import", "d", "tree", "--threads", "1"]).ok();
    assert!(again.contains("imported 5 files") && again.contains("5 replaced"), "{again}");
    assert_eq!(place.run(&["get", "d", "a"]).ok(), "new");
    place.run(&["import", "d", "tree/b", "--key-prefix", "p/", "--table", "t", "-q"]).ok();
    assert_eq!(place.run(&["scan", "d", "--table", "t", "--keys"]).ok(), "p/c.txt\np/d/e\np/large\n");
    place.run(&["verify", "d"]).ok();
}

#[test]
fn the_archive_of_the_log_is_not_imported() {
    let place = Place::new();
    place.write("tree/file", noise(1, 100_000));
    std::fs::create_dir(place.path("tree/deep")).unwrap();
    for _ in 0..3 {
        place.run(&["import", "tree/d", "tree", "--archive", "tree/deep/archive", "-q"]).ok();
    }
    assert!(place.path("tree/deep/archive").read_dir().unwrap().count() > 0);
    assert_eq!(place.run(&["scan", "tree/d", "--keys"]).ok(), "file\n");
}

#[test]
fn an_import_goes_on_with_the_threads_that_there_are() {
    let place = Place::new();
    for number in 0..20 {
        place.write(&format!("tree/{number}"), noise(number, 10_000));
    }
    let program = env!("CARGO_BIN_EXE_vellum");
    let mut codes = Vec::new();
    // With more and more memory there are none, some and all threads.
    for kilobytes in (160_000..=400_000).step_by(20_000) {
        let command = format!("import d{kilobytes} tree --pool 1MiB --threads 64");
        let run = place.shell(&format!("ulimit -v {kilobytes}; exec {program} {command}"));
        assert!(!run.err.contains("failed to spawn"), "{kilobytes}: {}", run.err);
        codes.push(run.code);
    }
    // Each thread has a stack of 2 MiB, so the least of these limits have no room for all.
    assert!(codes.iter().take(6).any(|code| *code == Some(0)), "{codes:?}");
}

#[test]
fn an_import_that_may_open_no_more_files_fails_and_omits_none() {
    let place = Place::new();
    for number in 0..8 {
        place.write(&format!("tree/{number}/deep/file"), "contents");
    }
    let program = env!("CARGO_BIN_EXE_vellum");
    let mut codes = Vec::new();
    // From one with which the database can be opened to one with which the tree can be read.
    for files in 8..=24 {
        let command = format!("import d{files} tree --threads 2 -q");
        let run = place.shell(&format!("ulimit -n {files}; exec {program} {command}"));
        assert!(!run.err.contains("unreadable"), "{files}: {}", run.err);
        codes.push(run.code);
        if run.code == Some(0) {
            assert!(String::from_utf8_lossy(&run.out).starts_with("imported 8 files"), "{files}: {run:?}");
        } else {
            run.fails(6, &["ulimit -n"]);
        }
    }
    assert!(codes.contains(&Some(6)) && codes.contains(&Some(0)), "{codes:?}");
}

#[test]
fn what_cannot_be_stored_is_reported_and_the_rest_is_stored() {
    let place = Place::new();
    place.write("tree/good", "good");
    place.write("tree/secret", "secret");
    place.write("tree/closed/inside", "inside");
    std::fs::set_permissions(place.path("tree/secret"), Permissions::from_mode(0o000)).unwrap();
    std::fs::set_permissions(place.path("tree/closed"), Permissions::from_mode(0o000)).unwrap();
    File::create(place.path("tree/huge")).unwrap().set_len((1 << 30) + 1).unwrap();
    let deep = format!("tree/{}", "directory/".repeat(110));
    place.write(&format!("{deep}file"), "too deep");
    let run = |arguments: &[&str]| -> Run {
        without_privileges(&mut place.command(arguments)).output().unwrap().into()
    };

    let text = run(&["import", "tree/d", "tree"]);
    for words in ["unreadable: tree/secret: Permission denied", "unreadable: tree/closed: Permission denied"]
    {
        assert!(text.err.contains(words), "{}", text.err);
    }
    for words in
        ["tree/huge: it is 1.0 GiB long", "its key has 1104 bytes", "tree/d: it is the database itself"]
    {
        assert!(text.err.contains(words), "{}", text.err);
    }
    let text = text.ok();
    assert!(text.starts_with("imported 1 file (4 B)") && text.contains("2 unreadable; 3 skipped"), "{text}");
    assert_eq!(place.run(&["scan", "tree/d"]).ok(), "good\tgood\n");

    let objects = run(&["import", "tree/d", "tree", "--json"]).json();
    let count = |kind: &str| objects.iter().filter(|object| object["kind"] == kind).count();
    assert_eq!((count("unreadable"), count("skipped"), count("summary")), (2, 3, 1));

    run(&["import", "strict", "tree", "--strict"])
        .fails(6, &["Permission denied", "the database was closed"]);
    place.run(&["verify", "strict"]).ok();
    std::fs::set_permissions(place.path("tree/closed"), Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn a_strict_import_fails_where_a_file_is_too_large_or_its_name_too_long() {
    let place = Place::new();
    place.write("large/small", "small");
    File::create(place.path("large/huge")).unwrap().set_len(6 << 30).unwrap();
    place.run(&["import", "d", "large"]).ok();
    place
        .run(&["import", "d", "large", "--strict"])
        .fails(6, &["cannot store large/huge", "6.0 GiB", "1.0 GiB"]);
    place.write(&format!("long/{}/file", ["n".repeat(250), "m".repeat(250)].join("/")), "x");
    let prefix = "p".repeat(600);
    place
        .run(&["import", "d", "long", "--key-prefix", &prefix, "--strict"])
        .fails(6, &["cannot store", "1024"]);
    // What is left out on purpose does not end it.
    place.write("tree/file", "x");
    place.run(&["import", "tree/d", "tree", "--strict"]).ok();
    place.run(&["import", "new", "tree", "--table", ""]).fails(2, &["1 to 255 bytes"]);
    assert!(!place.path("new").exists(), "nothing is left of a database that was created for nothing");
}

#[test]
fn a_failed_import_fails_also_if_nothing_reads_its_summary() {
    let place = Place::new();
    place.write("small/file", "small");
    place.write("large/file", "small");
    File::create(place.path("large/huge")).unwrap().set_len(6 << 30).unwrap();
    let failed = place.run_unread(&["import", "d", "large", "--strict", "--json"]);
    failed.fails(6, &["\"exit_code\":6", "cannot store large/huge", "1.0 GiB"]);
    place.run_unread(&["import", "d", "large", "--strict"]).fails(6, &["cannot store large/huge"]);
    for command in [&["import", "d", "small"][..], &["import", "d", "small", "--json"]] {
        let run = place.run_unread(command);
        assert_eq!((run.code, run.err.as_str()), (Some(0), ""), "it ends in silence");
    }
    assert_eq!(place.run(&["get", "d", "file"]).ok(), "small");
}

#[test]
fn files_that_are_not_as_long_as_they_say_are_not_stored() {
    let place = Place::new();
    let text = place.run(&["import", "d", "/proc/self/fdinfo"]);
    assert!(text.err.contains("/proc/self/fdinfo/0: it is said to be empty and is not"), "{}", text.err);
    assert!(text.ok().starts_with("imported 0 files"));
    assert_eq!(place.run(&["scan", "d"]).ok(), "");
    // What was stored earlier stays.
    place.run(&["put", "d", "0", "earlier"]).ok();
    assert!(
        place.run(&["import", "d", "/proc/self/fdinfo"]).err.contains("fdinfo/0: it is said to be empty")
    );
    assert_eq!(place.run(&["get", "d", "0"]).ok(), "earlier");
}

#[test]
fn a_file_that_is_written_all_the_time_does_not_stop_an_import() {
    let place = Place::new();
    let (even, odd) = (vec![b'0'; 1 << 20], vec![b'1'; (1 << 20) + 1]);
    let path = place.write("tree/unsteady", &even);
    place.write("tree/steady", "steady");
    place.run(&["import", "d", "tree"]).ok();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                std::fs::write(&path, &odd).unwrap();
                std::fs::write(&path, &even).unwrap();
            }
        });
        for _ in 0..5 {
            let run = place.run(&["import", "d", "tree"]);
            assert_eq!(run.code, Some(0), "{}", run.err);
            assert_eq!(place.run(&["scan", "d", "--keys"]).ok(), "steady\nunsteady\n", "{}", run.err);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(place.run(&["get", "d", "steady"]).ok(), "steady");
    place.run(&["verify", "d"]).ok();
}

#[test]
fn a_signal_ends_an_import_and_closes_the_database() {
    for name in ["INT", "TERM"] {
        let place = Place::new();
        place.write("before/small", "small");
        place.run(&["import", "d", "before"]).ok();
        let before = std::fs::metadata(place.path("d")).unwrap().len();
        // Files that take long to import, and take no room until they are.
        std::fs::create_dir(place.path("tree")).unwrap();
        for number in 0..4 {
            File::create(place.path(&format!("tree/{number}"))).unwrap().set_len(1 << 30).unwrap();
        }
        let mut command = place.command(&["import", "d", "tree", "--threads", "1"]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for_size(&place.path("d"), before + (1 << 20));
        signal(&child, name);
        let run = Run::from(child.wait_with_output().unwrap());
        run.fails(130, &["interrupted", "the database was closed", "run the same command again"]);
        place.run(&["verify", "d"]).ok();
        assert_eq!(place.run(&["get", "d", "small"]).ok(), "small");
    }
}
