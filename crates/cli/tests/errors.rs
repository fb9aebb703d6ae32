//! What goes wrong, and what the program says and returns then.

mod common;

use common::{Place, noise, without_privileges};
use std::{
    fs::Permissions,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::fs::{FileExt as _, PermissionsExt as _},
    process::Stdio,
    sync::atomic::{AtomicBool, Ordering},
};
use vellum::{Database, Options};

#[test]
fn what_is_not_a_database_is_refused() {
    let place = Place::new();
    std::fs::create_dir(place.path("directory")).unwrap();
    place.write("text", "not a database\n");
    place.write("large", noise(1, 100_000));
    place.write("empty", "");
    for command in [&["get", "nothing", "k"][..], &["scan", "nothing"], &["delete", "nothing", "k"]] {
        place.run(command).fails(6, &["there is no file nothing", "vellum import"]);
    }
    place.run(&["get", "directory", "k"]).fails(2, &["is a directory", "vellum import DATABASE directory"]);
    place
        .run(&["import", "directory", "text"])
        .fails(2, &["text is not a directory", "--file text", "The database comes first"]);
    for file in ["text", "large"] {
        place.run(&["stat", file]).fails(3, &[file, "not a Vellum file"]);
        place.run(&["put", file, "k", "v"]).fails(3, &["not a Vellum file"]);
    }
    place.run(&["stat", "empty"]).fails(3, &["not a Vellum file yet", "interrupted", "`vellum put`"]);
    std::os::unix::fs::symlink("no/such", place.path("link")).unwrap();
    for command in [&["put", "link", "k", "v"][..], &["get", "link", "k"], &["import", "link", "directory"]] {
        place.run(command).fails(6, &["link is a symbolic link to no/such, which does not exist"]);
    }
    assert_eq!(std::fs::read(place.path("text")).unwrap(), b"not a database\n", "left as it was");
    place.run(&["get", "/dev/null", "k"]).fails(2, &["not a regular file"]);
    place.run(&["put", "no/such/directory", "k", "v"]).fails(6, &["Is there a directory no/such?"]);
    place.run(&["import", "d", "nothing"]).fails(6, &["cannot look at nothing"]);
}

#[test]
fn commands_that_make_no_sense_are_refused_before_anything_is_done() {
    let place = Place::new();
    place.run(&["put", "d", "k", "v"]).ok();
    place.run(&["scan", "d", "--prefix", "a", "--from", "b"]).fails(2, &["--prefix", "cannot be used with"]);
    place.run(&["scan", "d", "--from", "b", "--to", "a"]).fails(2, &["--from is behind --to"]);
    place.run(&["pmem", "create", "p", "--chunk", "1MiB"]).ok();
    for command in [
        &["scan", "d"][..],
        &["get", "d", "k"],
        &["put", "d", "k", "w"],
        &["delete", "d", "k"],
        &["pmem", "put", "p", "k", "v"],
        &["pmem", "get", "p", "k"],
        &["pmem", "delete", "p", "k"],
        &["pmem", "scan", "p"],
    ] {
        place.run(&[command, &["--raw", "--json"]].concat()).fails(2, &["exclude each other", "--hex"]);
    }
    place.run(&["scan", "d", "--limit", "many"]).fails(2, &["many"]);
    place.run(&["stat", "d", "--pool", "64 elephants"]).fails(2, &["not a size", "64MiB"]);
    place.run(&["stat", "d", "--pool", "-1"]).fails(2, &["a size cannot be negative"]);
    place.run(&["stat", "d", "--pool", "1KiB"]).fails(2, &["too small", "65536"]);
    place.run(&["stat", "d", "--io-engine", "magic"]).fails(2, &["io_uring, pread"]);
    place.run(&["put", "new", "k", "v", "--io-engine", "simulated"]).fails(2, &["io_uring, pread"]);
    for pool in ["999999GiB", "20TiB"] {
        place
            .run(&["put", "new", "k", "v", "--pool", pool])
            .fails(2, &["memory of this machine", "lower the pool"]);
    }
    place.run(&["get", "d", r"\q"]).fails(2, &[r"\q at byte 0 is not an escape", "--raw"]);
    place.run(&["get", "d", "xyz", "--hex"]).fails(2, &["hexadecimal"]);
    place.run(&["get", "d", "k", "--hex", "--raw"]).fails(2, &["cannot be used with"]);
    place.run(&["put", "d", "k"]).fails(2, &["VALUE"]);
    place.run(&["put", "d", "k", "v", "--file", "f"]).fails(2, &["cannot be used with"]);
    place.run(&["put", "d", "k", "--file", "nothing"]).fails(6, &["cannot read nothing"]);
    place.run(&["put", "d", "k", "--file", "."]).fails(2, &["is a directory", "vellum import"]);
    place.run(&["put", "d", "k", "--file", "d"]).fails(2, &["cannot be stored in itself"]);
    place.run(&["get", "d", "k", "--output", "d"]).fails(2, &["database file itself"]);
    place.run(&["put", "new", &"k".repeat(1025), "v"]).fails(2, &["1025 bytes", "1024"]);
    place.run(&["put", "new", "k", "v", "--table", ""]).fails(2, &["1 to 255 bytes"]);
    assert!(!place.path("new").exists(), "nothing is left of a database that was created for nothing");
    place.run(&["frobnicate"]).fails(2, &["frobnicate"]);
    assert_eq!(place.run(&["get", "d", "k"]).ok(), "v");
}

/// Messages name tables as arguments do.
#[test]
fn names_of_tables_have_the_escapes_that_arguments_have() {
    let place = Place::new();
    place.run(&["put", "d", "key", "value", "--table", r"a\x01b"]).ok();
    place.run(&["get", "d", "other", "--table", r"a\x01b"]).fails(1, &[r#"in table "a\x01b" of"#]);
    place.run(&["get", "d", "key", "--table", "c"]).fails(1, &[r#"the only one is "a\x01b""#]);
    place.run(&["drop-table", "d", r"a\x01b"]).fails(2, &[r#"all entries of the table "a\x01b" for good"#]);
}

#[test]
fn errors_are_objects_for_programs() {
    let place = Place::new();
    let failed = place.run(&["get", "nothing", "k", "--json"]);
    let object: serde_json::Value = serde_json::from_str(&failed.err).unwrap();
    assert_eq!((&object["kind"], &object["exit_code"]), (&"error".into(), &6.into()));
    assert_eq!(failed.code, Some(6));
}

#[test]
fn a_database_that_somebody_writes_is_busy() {
    let place = Place::new();
    let database = Database::create(place.path("d"), &Options::default()).unwrap();
    place.run(&["get", "d", "k"]).fails(4, &["d is locked", "open for writing"]);
    place.run(&["put", "d", "k", "v"]).fails(4, &["d is locked"]);
    place.run(&["tour", "/", "--database", "d"]).fails(4, &["d is locked"]);
    database.close().unwrap();
    place.run(&["put", "d", "k", "v"]).ok();
}

#[test]
fn a_database_that_was_not_closed_and_lacks_its_log_is_refused() {
    let place = Place::new();
    let database = Database::create(place.path("open"), &Options::default()).unwrap();
    std::fs::copy(place.path("open"), place.path("copy")).unwrap();
    drop(database);
    for command in [&["get", "copy", "k"][..], &["verify", "copy"], &["put", "copy", "k", "v"]] {
        place.run(command).fails(3, &["the log is needed from", "is not there", "was not closed"]);
    }
    let database = Database::create(place.path("bare"), &Options::default().log(false)).unwrap();
    std::fs::copy(place.path("bare"), place.path("copy")).unwrap();
    drop(database);
    assert!(!place.path("copy-log").exists(), "what was refused leaves no directory");
    for command in [&["get", "copy", "k"][..], &["verify", "copy"], &["put", "copy", "k", "v"]] {
        place.run(command).fails(3, &["copy was not closed cleanly", "it cannot be recovered"]);
    }
}

#[test]
fn a_log_that_is_left_of_another_database_is_named() {
    let place = Place::new();
    let other = Database::create(place.path("other"), &Options::default()).unwrap();
    other.create_table("table").unwrap();
    std::fs::create_dir(place.path("d-log")).unwrap();
    let segment = "segment-0000000000000001";
    std::fs::copy(place.path("other-log").join(segment), place.path("d-log").join(segment)).unwrap();
    drop(other);
    place.run(&["put", "d", "k", "v"]).fails(3, &["segment-", "of another one's"]);
    std::fs::remove_dir_all(place.path("d-log")).unwrap();
    place.run(&["put", "d", "k", "v"]).ok();
    assert!(!place.path("d-log").exists());
}

#[test]
fn damage_is_found_and_named() {
    let place = Place::new();
    let value = place.write("value", noise(1, 300_000));
    place.run(&["put", "d", "large", "--file", value.to_str().unwrap()]).ok();
    place.run(&["put", "d", "small", "v"]).ok();
    let mut bytes = std::fs::read(place.path("d")).unwrap();
    let sound = bytes.clone();
    let at = bytes.windows(64).position(|window| window == &noise(1, 64)[..]).unwrap() + 100_000;
    bytes[at] ^= 1;
    place.write("flipped", &bytes);
    place.run(&["get", "flipped", "large"]).fails(3, &["damaged"]);
    assert_eq!(place.run(&["get", "flipped", "small"]).ok(), "v", "what is sound can be read");
    place.run(&["get", "flipped", "large", "--output", "out"]).fails(3, &["damaged", "out is incomplete"]);
    let verify = place.run(&["verify", "flipped"]);
    assert!(String::from_utf8_lossy(&verify.out).contains("problem: "), "{verify:?}");
    verify.fails(3, &["1 problem found in flipped"]);
    let verify = place.run(&["verify", "flipped", "--json"]);
    assert!(String::from_utf8_lossy(&verify.out).contains(r#""kind":"problem""#), "{verify:?}");
    place.write("short", &sound[..sound.len() - 4096]);
    place.run(&["stat", "short"]).fails(3, &["truncated"]);
}

#[test]
fn permissions_are_respected_and_named() {
    let place = Place::new();
    place.run(&["put", "d", "k", "v"]).ok();
    let allow = |mode| std::fs::set_permissions(place.path("d"), Permissions::from_mode(mode)).unwrap();
    let run = |arguments: &[&str]| -> common::Run {
        without_privileges(&mut place.command(arguments)).output().unwrap().into()
    };
    allow(0o400);
    assert_eq!(run(&["get", "d", "k"]).ok(), "v", "reading needs no permission to write");
    run(&["put", "d", "k", "w"]).fails(6, &["Permission denied", "work on a copy"]);
    allow(0o000);
    run(&["get", "d", "k"]).fails(6, &["Permission denied"]);
    std::fs::create_dir(place.path("closed")).unwrap();
    place.write("tree/file", "x");
    std::fs::set_permissions(place.path("closed"), Permissions::from_mode(0o500)).unwrap();
    run(&["put", "closed/d", "k", "v"]).fails(6, &["You may not make files in closed"]);
    let tour = run(&["tour", "tree", "--database", "closed/d"]);
    assert!(!tour.err.contains("was removed"), "{}", tour.err);
    tour.fails(6, &["You may not make files in closed"]);
    std::fs::set_permissions(place.path("closed"), Permissions::from_mode(0o000)).unwrap();
    run(&["import", "new", "closed"]).fails(6, &["cannot read closed: Permission denied"]);
    assert!(!place.path("new").exists());
    std::fs::set_permissions(place.path("closed"), Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn output_that_cannot_be_written_is_an_error_except_in_a_closed_pipe() {
    let place = Place::new();
    for (key, length) in [("a", 200_000), ("b", 200_000)] {
        let value = place.write("value", "x".repeat(length));
        place.run(&["put", "d", key, "--file", value.to_str().unwrap()]).ok();
    }
    let program = env!("CARGO_BIN_EXE_vellum");
    place.shell(&format!("{program} scan d --full > /dev/full")).fails(5, &["No space left on device"]);
    place.shell(&format!("{program} get d a > /dev/full")).fails(5, &["No space left on device"]);
    place.run(&["get", "d", "a", "--output", "/dev/full"]).fails(5, &["/dev/full", "No space left"]);

    let mut command = place.command(&["scan", "d", "--full"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = Vec::new();
    BufReader::with_capacity(16, child.stdout.take().unwrap()).read_until(b'\t', &mut line).unwrap();
    assert_eq!(line, b"a\t");
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((child.wait().unwrap().code(), said.as_str()), (Some(0), ""), "it ends in silence");
}

#[test]
fn a_file_that_may_not_grow_is_no_room() {
    let place = Place::new();
    for number in 0..40 {
        place.write(&format!("tree/{number}"), noise(number, 1_000_000));
    }
    let program = env!("CARGO_BIN_EXE_vellum");
    // Of blocks of 512 or 1024 bytes, as the shell counts.
    let limited = |command: &str| place.shell(&format!("ulimit -f 40000; exec {program} {command}"));
    limited("import d tree --pool 1MiB")
        .fails(5, &["cannot store tree/", "ulimit -f", "the database was closed"]);
    place.run(&["verify", "d"]).ok();
    let stored = place.run(&["scan", "d", "--json"]).json();
    assert!(stored.len() < 40, "{}", stored.len());
    let entry = &stored[0];
    let key = entry["key"].as_str().unwrap();
    assert!(place.run(&["get", "d", key]).out == std::fs::read(place.path("tree").join(key)).unwrap());
    limited("tour tree").fails(5, &["ulimit -f", "The incomplete database was removed"]);
    assert!(!place.path("tour.vellum").exists() && !place.path("tour.vellum.partial").exists());
}

#[test]
fn wrong_usage_is_an_object_too() {
    let place = Place::new();
    let object = |arguments: &[&str]| -> serde_json::Value {
        let run = place.run(arguments);
        assert_eq!((run.code, run.out.len()), (Some(2), 0), "{run:?}");
        serde_json::from_str(&run.err).unwrap()
    };
    for (arguments, word) in [
        (&["--json"][..], "a command is missing"),
        (&["frobnicate", "--json"], "frobnicate"),
        (&["get", "--json"], "<KEY>"),
        (&["--json", "stat", "d", "--pool", "64 elephants"], "64MiB"),
        (&["put", "--json", "d", "-key", "v"], "'-- -k"),
    ] {
        let error = object(arguments);
        assert_eq!((&error["reason"], &error["exit_code"]), (&"usage".into(), &2.into()));
        let message = error["error"].as_str().unwrap();
        assert!(message.contains(word) && !message.contains("Usage:"), "{message}");
    }
    // Here it is a value.
    assert!(place.run(&["put", "d", "k", "--", "v", "w", "--json"]).err.starts_with("error: "));
    assert!(place.run(&["get", "--json", "--help"]).ok().contains("Examples:"));
}

#[test]
fn an_interrupted_creation_is_not_in_the_way() {
    let place = Place::new();
    for (number, left_behind) in [vec![], vec![0; 8192]].iter().enumerate() {
        place.write("d", left_behind);
        place.write("tree/file", "contents");
        place.write("lines", "a\t1\n");
        match number {
            0 => place.run(&["put", "d", "a", "1"]),
            _ => place.run(&["load", "d", "lines"]),
        }
        .ok();
        assert_eq!(place.run(&["get", "d", "a"]).ok(), "1");
        place.write("e", left_behind);
        place.run(&["import", "e", "tree"]).ok();
        place.write("tour.vellum", left_behind);
        place.write("tour.vellum.partial", left_behind);
        place.run(&["tour", "tree"]).ok();
        std::fs::remove_file(place.path("tour.vellum")).unwrap();
    }
    let program = env!("CARGO_BIN_EXE_vellum");
    place.shell(&format!("ulimit -f 4; exec {program} put new k v")).fails(5, &["ulimit -f"]);
    assert!(!place.path("new").exists(), "nothing is left of a creation that failed");
}

#[test]
fn a_database_whose_user_was_killed_is_not_said_to_be_in_use() {
    let place = Place::new();
    place.write("text", "one\n");
    for _ in 0..10 {
        let _ = std::fs::remove_file(place.path("d"));
        let mut command = place.command(&["load", "d", "-"]);
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        common::wait_for_size(&place.path("d"), 1);
        let busy = place.run(&["get", "d", "k"]);
        busy.fails(4, &[&format!("process {} (vellum) has it open", child.id())]);
        child.kill().unwrap();
        // It is recovered in memory, and empty.
        let killed = place.run(&["get", "d", "k"]);
        assert_eq!(killed.code, Some(1), "{killed:?}");
        child.wait().unwrap();
        place.run(&["recover", "d"]).ok();
        assert!(!place.path("d-log").exists());
    }
}

#[test]
fn long_and_commanding_paths_are_not_printed_as_they_are() {
    let place = Place::new();
    let long = "directory/".repeat(500);
    for arguments in [&["get", &long, "k"][..], &["import", "d", &long], &["put", "d", "k", "--file", &long]]
    {
        let run = place.run(arguments);
        assert!(run.err.len() < 600, "{} bytes", run.err.len());
        run.fails(6, &["File name too long", "directory/directory/"]);
    }
    place.run(&["get", "a\u{1b}[31mb", "k"]).fails(6, &["a\\u{1b}[31mb"]);
}

#[test]
fn remarks_are_objects_where_results_are() {
    let place = Place::new();
    let put = place.run(&["put", "d", "k", "v", "--json"]);
    assert_eq!(put.err, "{\"kind\":\"remark\",\"remark\":\"created d\"}\n");
    assert_eq!(place.run(&["put", "e", "k", "v", "--json", "--quiet"]).err, "");
}

#[test]
fn help_that_cannot_be_printed_is_a_failure() {
    let place = Place::new();
    for command in ["help", "--version", "help put"] {
        let line = format!("'{}' {command} > /dev/full", env!("CARGO_BIN_EXE_vellum"));
        place.shell(&line).fails(5, &["cannot write the results"]);
    }
}

#[test]
fn a_command_that_fails_leaves_an_empty_file_that_was_there() {
    let place = Place::new();
    place.write("tree/file", "x");
    place.write("lines", "b\t1\na\t2\n");
    place.write("real", "");
    std::os::unix::fs::symlink("real", place.path("link")).unwrap();
    for database in ["real", "link"] {
        for command in [&["load", database, "lines"][..], &["put", database, "k", "v", "--table", ""]] {
            place.run(&[command, &["--archive", "archive"]].concat()).fails(2, &[]);
            assert_eq!(std::fs::metadata(place.path("real")).unwrap().len(), 0);
            assert!(!place.path("real-log").exists() && place.path("link").is_symlink());
            assert_eq!(std::fs::read_dir(place.path("archive")).unwrap().count(), 0);
        }
    }
    place.run(&["put", "link", "k", "v", "--archive", "archive"]).ok();
    assert_eq!(place.run(&["get", "real", "k"]).ok(), "v");
}

#[test]
fn a_file_that_is_rewritten_while_it_is_stored_is_refused() {
    let place = Place::new();
    let path = place.write("file", noise(1, 30_000_000));
    place.run(&["put", "d", "k", "before"]).ok();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                file.write_all_at(b"other", 0).unwrap();
            }
        });
        let run = place.run(&["put", "d", "k", "--file", "file"]);
        is_over.store(true, Ordering::Relaxed);
        run.fails(6, &["the file was changed while it was being read; nothing was stored"]);
    });
    assert_eq!(place.run(&["get", "d", "k"]).ok(), "before");
    place.run(&["put", "d", "k", "--file", "file"]).ok();
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_wherever_it_is_met() {
    let place = Place::new();
    let program = env!("CARGO_BIN_EXE_vellum");
    place.write("large", vec![b'a'; 9_000_000]);
    // What comes from standard input is kept in a temporary file, whose limit it exceeds.
    let put = format!("ulimit -f 9000; {program} put d large - < large");
    place.shell(&put).fails(5, &["keep standard input in a temporary file", "File too large"]);
    place.run(&["put", "d", "large", "--file", "large"]).ok();
    for command in ["get d large", "dump d"] {
        let printed = format!("ulimit -f 9000; {program} {command} > printed");
        place.shell(&printed).fails(5, &["File too large"]);
    }
}
