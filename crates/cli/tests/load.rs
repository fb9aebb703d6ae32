//! Loading sorted lines.

mod common;

use common::{Place, Run, signal, wait_for_size};
use std::{
    io::Write as _,
    process::Stdio,
    time::{Duration, Instant},
};

fn lines(count: u32) -> String {
    (0..count).map(|number| format!("key {number:06}\tvalue {number}\n")).collect()
}

#[test]
fn what_scan_prints_can_be_loaded() {
    let place = Place::new();
    place.write("lines", lines(5000));
    let run = place.run(&["load", "d", "lines", "--table", "words"]);
    assert!(run.err.contains("created d"), "{}", run.err);
    let printed = run.ok();
    assert!(printed.starts_with("loaded 5") && printed.contains("entries"), "{printed}");
    assert_eq!(place.run(&["get", "d", "key 004999", "--table", "words"]).ok(), "value 4999");
    let printed = place.run(&["scan", "d", "--table", "words", "--full"]).ok();
    assert_eq!(printed, lines(5000));
    // Bytes that are no text, an empty value, and no line break at the end.
    let awkward = "\\x00\\xff\ta\\tb\nempty\t\nno tab\nz\t\\n\\\\";
    let loaded = place.run_with_input(&["load", "other", "-", "--json"], awkward.as_bytes()).json();
    assert_eq!((&loaded[0]["entries"], &loaded[0]["database_created"]), (&4.into(), &true.into()));
    let copied = place.run(&["scan", "other", "--full"]).ok();
    assert_eq!(copied, "\\x00\\xff\ta\\tb\nempty\t\nno tab\t\nz\t\\n\\\\\n");
    let again = place.run_with_input(&["load", "third", "-", "--fill", "60"], copied.as_bytes());
    assert!(again.ok().starts_with("loaded 4 entries"));
    assert_eq!(place.run(&["scan", "third", "--full"]).ok(), copied);
    let hex =
        place.run_with_input(&["load", "third", "-", "--hex", "--table", "hex"], b"00ff\t6869\n0a00\t\n");
    assert!(hex.ok().starts_with("loaded 2 entries"));
    for database in ["d", "other", "third"] {
        place.run(&["verify", database]).ok();
    }
}

#[test]
fn what_cannot_be_loaded_is_named_and_nothing_is_stored() {
    let place = Place::new();
    let run = place.run_with_input(&["load", "d", "-"], b"a\t1\nc\t2\nb\t3\n");
    run.fails(
        2,
        &["line 3", "key \"b\"", "does not come after", "\"c\"", "Nothing was stored", "LC_ALL=C sort"],
    );
    let run = place.run_with_input(&["load", "d", "-"], b"a\t1\na\t2\n");
    run.fails(2, &["line 2", "same key", "\"a\"", "LC_ALL=C sort -u", "keeps one of each key"]);
    place.run_with_input(&["load", "d", "-"], b"a\t1\n\\q\t2\n").fails(2, &["line 2", "is not an escape"]);
    assert!(!place.path("d").exists(), "nothing is left of a database that was created for nothing");
    place.run(&["put", "d", "key", "value"]).ok();
    place.run_with_input(&["load", "d", "-"], b"a\t1\n").fails(2, &["needs an empty table", "--table"]);
    let run = place.run_with_input(&["load", "d", "-", "--table", "t"], b"b\t1\na\t2\n");
    run.fails(2, &["line 2"]);
    let long = format!("{}\t1\n", "k".repeat(1025));
    let run = place.run_with_input(&["load", "d", "-", "--table", "t"], long.as_bytes());
    assert!(!run.err.contains("LC_ALL"), "sorting does not help: {}", run.err);
    run.fails(2, &["line 1", "1025 bytes", "the limit is 1024", "Nothing was stored"]);
    assert!(!place.run(&["tables", "d", "--json"]).ok().contains("\"t\""), "a table was created for nothing");
    assert_eq!(place.run(&["scan", "d"]).ok(), "key\tvalue\n");
    place.run(&["load", "d", "nothing"]).fails(6, &["cannot read nothing"]);
    place.run(&["load", "d", "."]).fails(2, &["is a directory", "vellum import"]);
    place.run(&["load", "d", "d"]).fails(2, &["cannot be loaded from itself"]);
    place.run(&["load", "d", "-", "--fill", "20"]).fails(2, &["20"]);
    place.run(&["verify", "d"]).ok();
}

#[test]
fn the_advice_to_sort_works() {
    let place = Place::new();
    let program = env!("CARGO_BIN_EXE_vellum");
    // Equal keys with other values, and keys of which one begins another.
    place.write("lines", "b\t2\na\t1\nb\t1\na b\t3\nab\t4\na\t1\n");
    for (sort, entries) in [("sort", 0), ("sort -u", 4)] {
        let sorted = format!("LC_ALL=C {sort} -t \"$(printf '\\t')\" -k1,1 lines | {program} load d -");
        let run = place.shell(&sorted);
        if entries == 0 {
            run.fails(2, &["same key", "LC_ALL=C sort -u -t \"$(printf '\\t')\" -k1,1"]);
        } else {
            assert!(run.ok().starts_with(&format!("loaded {entries} entries")));
        }
    }
    // As text, an escape comes after a letter; as a byte, before it.
    place.write("escaped", "A\t1\n\\x01\t2\n");
    for table in ["t", "u"] {
        let run = place.shell(&format!("LC_ALL=C sort escaped | {program} load d - --table {table}"));
        assert!(!run.err.contains("LC_ALL"), "sorting does not help: {}", run.err);
        run.fails(2, &["Escapes do not sort", "--hex"]);
    }
    place.run(&["put", "e", "A", "1"]).ok();
    place.run(&["put", "e", "\\x01", "2"]).ok();
    let copy = format!("{program} scan e --full --hex | LC_ALL=C sort | {program} load f - --hex");
    assert!(place.shell(&copy).ok().starts_with("loaded 2 entries"));
    assert_eq!(place.run(&["scan", "f"]).ok(), place.run(&["scan", "e"]).ok());
}

#[test]
fn lines_without_escapes_are_told_to_be_sorted_whatever_their_bytes_are() {
    let place = Place::new();
    // A mark of the order of bytes, another encoding than UTF-8, line breaks with carriage returns.
    for lines in [&b"\xef\xbb\xbfa\t1\nb\t2\n"[..], b"b\xe9\t1\na\xe9\t2\n", b"a\t1\r\n\r\n"] {
        let run = place.run_with_input(&["load", "d", "-"], lines);
        assert!(!run.err.contains("Escapes"), "there are none: {}", run.err);
        run.fails(2, &["line 2", "does not come after", "`LC_ALL=C sort -t"]);
    }
    let twice = place.run_with_input(&["load", "d", "-"], b"\xe9\t1\n\xe9\t2\n");
    twice.fails(2, &["line 2", "same key", "`LC_ALL=C sort -u -t"]);
    // The key before has an escape, or this one.
    for lines in ["b\\x00\t1\na\t2\n", "b\t1\n\\x61\t2\n"] {
        place.run_with_input(&["load", "d", "-"], lines.as_bytes()).fails(2, &["Escapes do not sort"]);
    }
    let twice = place.run_with_input(&["load", "d", "-"], b"a\t1\n\\x61\t2\n");
    assert!(!twice.err.contains("LC_ALL"), "sorting does not help: {}", twice.err);
}

#[test]
fn what_failed_at_first_leaves_nothing_in_the_archive() {
    let place = Place::new();
    let load = ["load", "d", "-", "--archive", "ar"];
    place.run_with_input(&load, b"b\t1\na\t2\n").fails(2, &["Nothing was stored"]);
    place.run(&["put", "d", "k", "v", "--table", "", "--archive", "ar"]).fails(2, &["1 to 255 bytes"]);
    assert!(!place.path("d").exists() && !place.path("d-log").exists());
    assert_eq!(std::fs::read_dir(place.path("ar")).unwrap().count(), 0);
    place.run_with_input(&load, b"a\t1\nb\t2\n").ok();
    place.run(&["backup", "d", "full"]).ok();
    place.run(&["put", "d", "c", "3", "--archive", "ar"]).ok();
    // What belongs to another database stays.
    place
        .run_with_input(&["load", "other", "-", "--archive", "ar"], b"b\t1\na\t2\n")
        .fails(3, &["another database"]);
    place.run(&["restore", "full", "r", "--archive", "ar"]).ok();
    assert_eq!(place.run(&["scan", "r"]).ok(), "a\t1\nb\t2\nc\t3\n");
}

#[test]
fn what_is_too_long_is_refused_before_it_is_read_to_its_end() {
    let place = Place::new();
    let program = env!("CARGO_BIN_EXE_vellum");
    place.run(&["put", "there", "key", "value"]).ok();
    // With little memory, and from inputs without end.
    for (input, options, words) in [
        ("cat /dev/zero", "--table t", ["line 1", "no tab in its first 4096 bytes"]),
        ("cat /dev/zero", "--dump", ["line 1", "no tab in its first 4096 bytes"]),
        (
            "(printf 'a\\t1\\nb\\t'; cat /dev/zero)",
            "--table t",
            ["line 2", "the value is longer than a value can be (1.0 GiB)"],
        ),
    ] {
        for database in ["new", "there"] {
            let line = format!("ulimit -v 4000000; {input} | {program} load {database} - {options}");
            place.shell(&line).fails(2, &[words[0], words[1], "Nothing was stored"]);
        }
        assert!(!place.path("new").exists());
    }
    assert_eq!(place.run(&["tables", "there"]).ok(), "main\n");
    let limited = format!("ulimit -v 1000000; (printf 'a\\t'; cat /dev/zero) | {program} load new -");
    place.shell(&limited).fails(5, &["line 1", "not enough memory for the value", "Nothing was stored"]);
    assert!(!place.path("new").exists());
}

#[test]
fn values_larger_than_a_buffer_are_loaded() {
    let place = Place::new();
    let value = format!("{}\\n\\x00{}", "v".repeat(3_000_000), "w\tw".repeat(1000));
    let run = place.run_with_input(&["load", "d", "-"], format!("a\t{value}\nb\t2\n").as_bytes());
    assert!(run.ok().starts_with("loaded 2 entries"));
    let stored = value.replace("\\n", "\n").replace("\\x00", "\0");
    assert!(place.run(&["get", "d", "a"]).ok() == stored);
    assert_eq!(place.run(&["get", "d", "b"]).ok(), "2");
}

#[test]
fn a_signal_ends_a_load_that_waits_for_input() {
    for (name, options) in [("INT", &[][..]), ("TERM", &["--dump"]), ("HUP", &[])] {
        let place = Place::new();
        let mut command = place.command(&[&["load", "d", "-"], options].concat());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let first = if options.is_empty() { "a\t1\n" } else { "!vellum dump 1\n" };
        stdin.write_all(format!("{first}half a line").as_bytes()).unwrap();
        wait_for_size(&place.path("d"), 1);
        std::thread::sleep(Duration::from_millis(200));
        signal(&child, name);
        let start = Instant::now();
        while child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < Duration::from_secs(10), "{name} did not end it");
            std::thread::sleep(Duration::from_millis(10));
        }
        let run = Run::from(child.wait_with_output().unwrap());
        run.fails(130, &["interrupted", "Nothing was stored", "run the same command again"]);
        drop(stdin);
        assert!(!place.path("d").exists() && !place.path("d-log").exists());
    }
}
