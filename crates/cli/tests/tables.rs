//! Tables as a whole: dropped, cleared and renamed.

mod common;

use common::{Place, Run, noise, signal, wait_for_size};
use std::{fs::File, process::Stdio};

/// A database with two tables.
fn place() -> Place {
    let place = Place::new();
    place.run(&["put", "d", "apple", "red"]).ok();
    place.run(&["put", "d", "pear", "green"]).ok();
    place.run(&["put", "d", "beet", "red", "--table", "roots"]).ok();
    place
}

#[test]
fn a_table_is_dropped_with_its_entries() {
    let place = place();
    place.run(&["drop-table", "d", "roots"]).fails(
        2,
        &["drop-table removes all entries of the table \"roots\"", "--yes", "vellum tables d --sizes"],
    );
    place.run(&["drop-table", "d", "fruit"]).fails(1, &["there is no table \"fruit\" in d"]);
    assert_eq!(place.run(&["tables", "d"]).ok(), "main\nroots\n");
    let dropped = place.run(&["drop-table", "d", "roots", "--yes"]);
    assert!(dropped.err.contains("dropped roots"), "{}", dropped.err);
    assert_eq!(dropped.ok(), "");
    assert_eq!(place.run(&["tables", "d"]).ok(), "main\n");
    place.run(&["get", "d", "beet", "--table", "roots"]).fails(1, &["no table \"roots\""]);
    assert_eq!(place.run(&["get", "d", "apple"]).ok(), "red");
    place
        .run(&["drop-table", "d", "roots", "--yes"])
        .fails(1, &["there is no table \"roots\" in d", "the only one is \"main\""]);
    let main = place.run(&["drop-table", "d", "main", "-y", "--json"]).json();
    assert_eq!(main, [serde_json::json!({ "table": "main", "result": "dropped" })]);
    place.run(&["drop-table", "d", "main", "-y"]).fails(1, &["no tables yet"]);
    place.run(&["verify", "d"]).ok();
    // The name is free.
    place.run(&["put", "d", "plum", "blue"]).ok();
    assert_eq!(place.run(&["scan", "d"]).ok(), "plum\tblue\n");
}

#[test]
fn a_table_is_cleared_and_stays_and_its_room_is_free() {
    let place = place();
    place.run_with_input(&["put", "d", "large", "-f", "-"], &noise(1, 3 << 20)).ok();
    place.run(&["clear-table", "d", "main"]).fails(2, &["clear-table removes all entries", "--yes"]);
    assert_eq!(place.run(&["get", "d", "apple"]).ok(), "red");
    let cleared = place.run(&["clear-table", "d", "main", "--yes", "--json"]).json();
    assert_eq!(cleared, [serde_json::json!({ "table": "main", "result": "cleared" })]);
    assert_eq!(place.run(&["scan", "d"]).ok(), "");
    assert_eq!(place.run(&["tables", "d"]).ok(), "main\nroots\n");
    assert_eq!(place.run(&["scan", "d", "--table", "roots"]).ok(), "beet\tred\n");
    place.run(&["compact", "d"]).ok();
    assert!(std::fs::metadata(place.path("d")).unwrap().len() < 1 << 20);
    place.run(&["verify", "d"]).ok();
    let other = place.run(&["clear-table", "d", "fruit", "--yes"]);
    other.fails(1, &["no table \"fruit\"", "\"main\", \"roots\""]);
}

#[test]
fn a_table_gets_another_name() {
    let place = place();
    let renamed = place.run(&["rename-table", "d", "main", "fruit"]);
    assert!(renamed.err.contains("renamed main to fruit"), "{}", renamed.err);
    assert_eq!(place.run(&["scan", "d", "--table", "fruit", "--keys"]).ok(), "apple\npear\n");
    place
        .run(&["rename-table", "d", "fruit", "roots"])
        .fails(2, &["already is a table \"roots\"", "Choose another name"]);
    place.run(&["rename-table", "d", "main", "x"]).fails(1, &["no table \"main\"", "\"fruit\", \"roots\""]);
    place.run(&["rename-table", "d", "fruit", ""]).fails(2, &["1 to 255 bytes"]);
    let object = place.run(&["rename-table", "d", "fruit", "main", "--json"]).json();
    let expected = serde_json::json!({ "table": "fruit", "result": "renamed", "new_name": "main" });
    assert_eq!(object, [expected]);
    assert_eq!(place.run(&["get", "d", "pear"]).ok(), "green");
    let quiet = place.run(&["rename-table", "d", "main", "fruit", "--quiet"]);
    assert!(quiet.err.is_empty(), "{}", quiet.err);
}

#[test]
fn a_put_that_fails_leaves_no_table() {
    let place = place();
    let huge = File::create(place.path("huge")).unwrap();
    huge.set_len(60 << 20).unwrap();
    let put = ["put", "d", "k", "--file", "huge", "--table", "new"];
    // Of blocks of 512 or 1024 bytes, as the shell counts.
    let program = env!("CARGO_BIN_EXE_vellum");
    place.shell(&format!("ulimit -f 40000; exec {program} {}", put.join(" "))).fails(5, &["ulimit -f"]);
    assert_eq!(place.run(&["tables", "d"]).ok(), "main\nroots\n");

    huge.set_len(1 << 30).unwrap();
    let before = std::fs::metadata(place.path("d")).unwrap().len();
    let mut command = place.command(&put);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_size(&place.path("d"), before + (1 << 20));
    signal(&child, "INT");
    Run::from(child.wait_with_output().unwrap()).fails(130, &["interrupted; nothing was stored"]);
    assert_eq!(place.run(&["tables", "d"]).ok(), "main\nroots\n");

    place.run(&["put", "d", "k", "--file", ".", "--table", "new"]).fails(2, &["is a directory"]);
    place.run(&["put", "d", "k", "--file", "none", "--table", "new"]).fails(6, &["cannot read none"]);
    assert_eq!(place.run(&["tables", "d"]).ok(), "main\nroots\n");
    place.run(&["verify", "d"]).ok();
    huge.set_len(3 << 20).unwrap();
    place.run(&put).ok();
    assert_eq!(place.run(&["get", "d", "k", "--table", "new"]).out, vec![0; 3 << 20]);
    assert_eq!(place.run(&["tables", "d"]).ok(), "main\nnew\nroots\n");
}

#[test]
fn what_is_missing_is_refused_and_created_by_none_of_them() {
    let place = Place::new();
    for command in [
        &["drop-table", "none", "t", "--yes"][..],
        &["clear-table", "none", "t", "-y"],
        // Before it is asked whether that is meant.
        &["drop-table", "none", "t"],
        &["clear-table", "none", "t"],
        &["rename-table", "none", "t", "u"],
    ] {
        place.run(command).fails(6, &["there is no file none"]);
    }
    place.run(&["drop-table", "none"]).fails(2, &["<TABLE>"]);
    place.run(&["rename-table", "none", "t"]).fails(2, &["<NEW_NAME>"]);
    assert!(!place.path("none").exists());
    for command in ["drop-table", "clear-table", "rename-table"] {
        let help = place.run(&[command, "--help"]).ok();
        assert!(
            help.contains(&format!("vellum {command} data.vellum")) && help.contains("Exits with 1"),
            "{help}"
        );
    }
}

#[test]
fn the_names_that_are_printed_are_taken_back() {
    let place = Place::new();
    for argument in [r"a\\b", r"line\nbreak\x1b", "größe"] {
        place.run(&["put", "d", "k", "v", "--table", argument]).ok();
        let listed = place.run(&["tables", "d"]).ok();
        assert_eq!(listed.trim_end_matches('\n'), argument);
        let object = &place.run(&["tables", "d", "--json"]).json()[0];
        assert_eq!(object["table"], argument, "as keys are");
        assert_eq!(place.run(&["get", "d", "k", "--table", argument]).ok(), "v");
        assert!(place.run(&["dump", "d", "--table", argument]).ok().contains("k\tv\n"));
        let run = place.run(&["get", "d", "k", "--table", "none"]);
        assert!(run.err.contains(&format!("\"{argument}\"")), "{}", run.err);
        place.run(&["clear-table", "d", argument, "-y"]).ok();
        let renamed = place.run(&["rename-table", "d", argument, r"\\new"]).err;
        assert_eq!(renamed, format!("renamed {argument} to \\\\new\n"));
        let dropped = place.run(&["drop-table", "d", r"\\new", "-y", "--json"]).json();
        assert_eq!(dropped, [serde_json::json!({ "table": r"\\new", "result": "dropped" })]);
    }
    place.run(&["get", "d", "k", "--table", r"a\b"]).fails(2, &[r"\b at byte 1 is not an escape"]);
    place.run(&["get", "d", "k", "--table", r"\xff"]).fails(2, &["is text in UTF-8"]);
}

#[test]
fn a_name_that_is_too_long_is_told_from_a_key() {
    let place = place();
    for length in [256, 2000] {
        let name = "t".repeat(length);
        for command in
            [&["put", "d", "k", "v", "--table", &name[..]][..], &["rename-table", "d", "main", &name]]
        {
            place.run(command).fails(2, &["a table's name has 1 to 255 bytes"]);
        }
        place.run(&["get", "d", "k", "--table", &name]).fails(1, &["there is no table"]);
        place.run(&["drop-table", "d", &name, "-y"]).fails(1, &["there is no table"]);
    }
}
