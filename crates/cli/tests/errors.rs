//! What goes wrong, and what the program says and returns then.

mod common;

use common::{Place, noise, without_privileges};
use std::{
    fs::Permissions,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::fs::PermissionsExt as _,
    process::Stdio,
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
    place.run(&["import", "directory", "text"]).fails(2, &["text is not a directory", "--file text"]);
    for file in ["text", "large", "empty"] {
        place.run(&["stat", file]).fails(3, &[file, "not a Vellum file"]);
        place.run(&["put", file, "k", "v"]).fails(3, &["not a Vellum file"]);
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
    place.run(&["scan", "d", "--raw", "--json"]).fails(2, &["exclude each other"]);
    place.run(&["scan", "d", "--limit", "many"]).fails(2, &["many"]);
    place.run(&["stat", "d", "--pool", "64 elephants"]).fails(2, &["not a size", "64MiB"]);
    place.run(&["stat", "d", "--pool", "1KiB"]).fails(2, &["too small", "65536"]);
    place.run(&["stat", "d", "--io-engine", "magic"]).fails(2, &["io_uring, pread"]);
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
fn a_database_that_was_not_closed_is_refused() {
    let place = Place::new();
    let database = Database::create(place.path("open"), &Options::default()).unwrap();
    std::fs::copy(place.path("open"), place.path("copy")).unwrap();
    drop(database);
    for command in [&["get", "copy", "k"][..], &["verify", "copy"], &["put", "copy", "k", "v"]] {
        place.run(command).fails(3, &["copy was not closed cleanly", "import its data again"]);
    }
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
        place.write(&format!("tree/{number}"), noise(number, 100_000));
    }
    let program = env!("CARGO_BIN_EXE_vellum");
    // Of blocks of 512 or 1024 bytes, as the shell counts.
    let limited = |command: &str| place.shell(&format!("ulimit -f 2048; exec {program} {command}"));
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
