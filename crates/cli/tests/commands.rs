//! Storing, finding, listing and removing entries.

mod common;

use common::{Place, noise};
use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

#[test]
fn a_value_is_stored_found_replaced_and_removed() {
    let place = Place::new();
    let put = place.run(&["put", "d", "greeting", "hello"]);
    assert!(put.err.contains("created d") && put.err.contains("inserted greeting: 5 bytes"), "{}", put.err);
    assert_eq!(place.run(&["get", "d", "greeting"]).ok(), "hello", "no line break in a pipe");
    let replaced = place.run(&["put", "d", "greeting", "hi", "--json"]).json();
    assert_eq!(replaced[0]["result"], "replaced");
    assert_eq!(replaced[0]["database_created"], false);
    assert_eq!(place.run(&["get", "d", "greeting", "--json"]).json()[0]["value"], "hi");
    assert_eq!(place.run(&["delete", "d", "greeting", "--json"]).json()[0]["result"], "deleted");
    place.run(&["get", "d", "greeting"]).fails(1, &["no key greeting", "vellum scan"]);
    place.run(&["delete", "d", "greeting"]).fails(1, &["no key greeting"]);
    place.run(&["verify", "d"]).ok();
}

#[test]
fn what_scan_prints_can_be_given_back() {
    let place = Place::new();
    let awkward: [&[u8]; 6] =
        [b"\x00\xff\\", b" space ", b"line\nbreak\ttab", "größe 世界".as_bytes(), b"\xf0\x9f", b"-dash"];
    for key in awkward {
        let mut arguments = vec!["put", "d", "--raw", "--"].into_iter().map(OsStr::new).collect::<Vec<_>>();
        // An argument cannot hold a zero: that key goes in escaped.
        let escaped = OsStr::from_bytes(br"\x00\xff\\");
        if key.contains(&0) {
            arguments.remove(2);
            arguments.extend([escaped, escaped]);
        } else {
            arguments.extend([OsStr::from_bytes(key), OsStr::from_bytes(key)]);
        }
        assert_eq!(place.run(&arguments).code, Some(0), "{key:?}");
    }
    let printed = place.run(&["scan", "d"]).ok();
    assert_eq!(printed.lines().count(), awkward.len());
    for line in printed.lines() {
        let (key, value) = line.split_once('\t').unwrap();
        assert_eq!(key, value);
        let raw = place.run(&["get", "d", "--", key]).out;
        assert!(awkward.contains(&&raw[..]), "{raw:?}");
        assert_eq!(place.run(&["get", "d", "--escape", "--", key]).ok(), format!("{key}\n"));
    }
    for object in place.run(&["scan", "d", "--json"]).json() {
        let key = object["key"].as_str().unwrap();
        assert_eq!(place.run(&["delete", "d", "--", key]).code, Some(0), "{key}");
    }
    assert_eq!(place.run(&["scan", "d"]).ok(), "");
}

#[test]
fn a_file_is_made_shorter_after_much_was_removed() {
    let place = Place::new();
    let (large, small) = (noise(1, 3 << 20), noise(2, 20_000));
    assert_eq!(place.run_with_input(&["put", "d", "large", "-f", "-"], &large).code, Some(0));
    assert_eq!(place.run_with_input(&["put", "d", "small", "-f", "-"], &small).code, Some(0));
    place.run(&["delete", "d", "large"]).ok();
    let length = || std::fs::metadata(place.path("d")).unwrap().len();
    let before = length();
    assert!(before > 3 << 20, "the last value keeps it long");
    let done = place.run(&["compact", "d", "--json"]).json().remove(0);
    assert_eq!((&done["bytes_before"], &done["bytes"]), (&before.into(), &length().into()));
    assert!(length() < 100_000 && done["values_moved"] == 1, "{done}");
    assert_eq!(place.run(&["get", "d", "small"]).out, small);
    place.run(&["verify", "d"]).ok();
    let again = place.run(&["compact", "d"]).ok();
    assert!(again.contains("0 nodes and 0 large values moved"), "{again}");
    place.run(&["compact", "none"]).fails(6, &["there is no file none"]);
}

#[test]
fn hexadecimal_goes_in_and_comes_out() {
    let place = Place::new();
    place.run(&["put", "d", "00ff", "68690a", "--hex"]).ok();
    assert_eq!(place.run(&["get", "d", "00FF", "--hex"]).ok(), "68690a\n");
    assert_eq!(place.run(&["get", "d", "00ff", "--hex", "--output", "-"]).ok(), "hi\n");
    assert_eq!(place.run(&["get", "d", r"\x00\xff"]).ok(), "hi\n");
    assert_eq!(place.run(&["scan", "d", "--hex"]).ok(), "00ff\t68690a\n");
    assert_eq!(place.run(&["scan", "d", "--hex", "--json"]).json()[0]["key"], "00ff");
    assert_eq!(place.run(&["scan", "d", "--prefix", "00", "--hex", "--keys"]).ok(), "00ff\n");
}

#[test]
fn large_values_pass_through_files_and_pipes_with_a_small_pool() {
    let place = Place::new();
    let contents = noise(1, 5_000_001);
    let file = place.write("in", &contents);
    let file = file.to_str().unwrap();
    place.run(&["put", "d", "from file", "--file", file, "--pool", "1MiB"]).ok();
    let stored = place.run_with_input(&["put", "d", "from pipe", "-", "--pool", "1MiB"], &contents);
    assert!(stored.err.contains("5,000,001 bytes"), "{}", stored.err);
    place.run_with_input(&["put", "d", "short", "--file", "-"], b"from a pipe").ok();
    assert_eq!(place.run(&["get", "d", "short"]).ok(), "from a pipe");
    for key in ["from file", "from pipe"] {
        assert!(place.run(&["get", "d", key, "--pool", "1MiB"]).out == contents, "{key}");
        place.run(&["get", "d", key, "--pool", "1MiB", "--output", "out"]).ok();
        assert!(std::fs::read(place.path("out")).unwrap() == contents, "{key}");
    }
    let hex = place.run(&["get", "d", "from file", "--hex"]);
    hex.fails(2, &["hexadecimal"]);
    assert_eq!(place.run(&["scan", "d", "--json", "--keys"]).json()[0]["value_length"], 5_000_001);
    place.run(&["verify", "d", "--pool", "64KiB"]).ok();
}

#[test]
fn an_empty_key_and_an_empty_value_are_a_key_and_a_value() {
    let place = Place::new();
    place.run(&["put", "d", "", ""]).ok();
    assert_eq!(place.run(&["get", "d", ""]).ok(), "");
    assert_eq!(place.run(&["scan", "d"]).ok(), "\t\n");
    place.run(&["put", "d", "n", "-5"]).ok();
    assert_eq!(place.run(&["get", "d", "n"]).ok(), "-5");
}

#[test]
fn scans_cover_prefixes_and_ranges_in_both_directions() {
    let place = Place::new();
    for key in ["a", "b/1", "b/2", "b/3", "c"] {
        place.run(&["put", "d", key, "v"]).ok();
    }
    let keys = |arguments: &[&str]| {
        let all = [&["scan", "d", "--keys"], arguments].concat();
        place.run(&all).ok().lines().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(keys(&[]), "a b/1 b/2 b/3 c");
    assert_eq!(keys(&["--prefix", "b/"]), "b/1 b/2 b/3");
    assert_eq!(keys(&["--prefix", "-b"]), "", "keys may begin like options");
    assert_eq!(keys(&["--prefix", "b/", "--reverse"]), "b/3 b/2 b/1");
    assert_eq!(keys(&["--prefix", "x"]), "");
    assert_eq!(keys(&["--from", "b/2"]), "b/2 b/3 c");
    assert_eq!(keys(&["--to", "b/2"]), "a b/1");
    assert_eq!(keys(&["--from", "b", "--to", "c"]), "b/1 b/2 b/3");
    assert_eq!(keys(&["--from", "b", "--to", "c", "--reverse", "--limit", "2"]), "b/3 b/2");
    assert_eq!(keys(&["--from", "b", "--to", "b"]), "");
    assert_eq!(keys(&["-n", "1"]), "a");
    assert_eq!(keys(&["-r", "-n", "1"]), "c");
    assert_eq!(keys(&["--limit", "0"]), "");
}

#[test]
fn long_values_are_cut_unless_asked_for() {
    let place = Place::new();
    let value = "ä".repeat(33);
    place.run(&["put", "d", "k", &value]).ok();
    place.run(&["put", "d", "short", &"x".repeat(64)]).ok();
    let printed = place.run(&["scan", "d"]).ok();
    assert!(printed.starts_with(&format!("k\t{}… (66 bytes)\n", "ä".repeat(32))), "{printed}");
    assert!(printed.ends_with(&format!("short\t{}\n", "x".repeat(64))), "{printed}");
    assert!(place.run(&["scan", "d", "--full"]).ok().starts_with(&format!("k\t{value}\n")));
    assert_eq!(place.run(&["scan", "d", "--json"]).json()[0]["value"], value);
}

#[test]
fn tables_are_kept_apart_and_listed() {
    let place = Place::new();
    place.run(&["put", "d", "k", "one"]).ok();
    place.run(&["put", "d", "k", "two!", "--table", "second table"]).ok();
    assert_eq!(place.run(&["get", "d", "k"]).ok(), "one");
    assert_eq!(place.run(&["get", "d", "k", "--table", "second table"]).ok(), "two!");
    assert_eq!(place.run(&["tables", "d"]).ok(), "main\nsecond table\n");
    let tables = place.run(&["tables", "d", "--sizes", "--json"]).json();
    assert_eq!((&tables[1]["table"], &tables[1]["entries"]), (&"second table".into(), &1.into()));
    assert_eq!(tables[1]["data_bytes"], 5);
    assert!(place.run(&["tables", "d", "--sizes"]).ok().contains("second table"));
    place
        .run(&["get", "d", "k", "--table", "third"])
        .fails(1, &["\"third\"", "\"main\"", "\"second table\""]);
}

#[test]
fn stat_and_verify_tell_programs_what_they_find() {
    let place = Place::new();
    place.run(&["put", "d", "k", "v"]).ok();
    let stat = place.run(&["stat", "d", "--json", "--pool", "2MiB", "--io-engine", "pread"]).json().remove(0);
    assert_eq!(stat["io_engine"], "pread");
    assert_eq!(stat["pool_bytes"], 2 << 20);
    assert_eq!(stat["file_bytes"], std::fs::metadata(place.path("d")).unwrap().len());
    assert!(["process_madvise", "madvise", "exmap"].contains(&stat["release_method"].as_str().unwrap()));
    let stat =
        place.run(&["stat", "d", "--json", "--release-method", "madvise", "--buffered"]).json().remove(0);
    assert_eq!((&stat["release_method"], &stat["direct_io"]), (&"madvise".into(), &false.into()));
    assert!(place.run(&["stat", "d"]).ok().contains("eviction through"));
    let summary = place.run(&["verify", "d", "--json"]).json().pop().unwrap();
    assert_eq!((&summary["kind"], &summary["clean"]), (&"summary".into(), &true.into()));
}

#[test]
fn every_command_explains_itself_with_examples_and_exit_codes() {
    let place = Place::new();
    for command in ["tour", "import", "get", "put", "delete", "scan", "tables", "stat", "verify"] {
        let help = place.run(&[command, "--help"]).ok();
        assert!(help.contains("Examples:") && help.contains(&format!("vellum {command}")), "{help}");
        assert!(help.contains("--release-method"), "{help}");
    }
    for command in ["create", "put", "get", "delete", "scan", "stat", "verify", "bench"] {
        let help = place.run(&["pmem", command, "--help"]).ok();
        let example = format!("\n  vellum pmem {command} /");
        assert!(help.contains("\nExample") && help.contains(&example), "{help}");
    }
    for (asked, about) in [
        (&["help"][..], "Exit codes:"),
        (&["help", "get"], "vellum get data.vellum"),
        (&["pmem", "help"], "vellum pmem create"),
        (&["help", "pmem"], "vellum pmem create"),
        (&["help", "pmem", "create"], "--sizes"),
        (&["pmem", "help", "create"], "--sizes"),
    ] {
        let help = place.run(asked).ok();
        assert!(help.contains(about), "{asked:?}: {help}");
    }
    place.run(&["help", "frobnicate"]).fails(2, &["frobnicate"]);
    let help = place.run(&["--help"]).ok();
    assert!(help.contains("Exit codes:") && help.contains("130"), "{help}");
}

#[test]
fn several_processes_read_at_once() {
    let place = Place::new();
    place.run(&["put", "d", "k", "v"]).ok();
    let reading = vellum::Options::default().read_only(true);
    let database = vellum::Database::open(place.path("d"), &reading).unwrap();
    assert_eq!(place.run(&["get", "d", "k"]).ok(), "v");
    place.run(&["scan", "d"]).ok();
    place.run(&["tables", "d"]).ok();
    place.run(&["stat", "d"]).ok();
    place.run(&["verify", "d"]).ok();
    let own = format!("process {} (", std::process::id());
    place.run(&["put", "d", "k", "w"]).fails(4, &["d is locked", "close that first", &own]);
    drop(database);
    place.run(&["put", "d", "k", "w"]).ok();
}

#[test]
fn files_that_the_kernel_makes_up_are_stored() {
    let place = Place::new();
    place.write("empty", "");
    for file in ["/proc/version", "/proc/self/status", "/sys/kernel/mm/transparent_hugepage/enabled", "empty"]
    {
        place.run(&["put", "d", "k", "--file", file]).ok();
        let stored = place.run(&["get", "d", "k"]).out;
        if file != "/proc/self/status" {
            assert_eq!(stored, std::fs::read(place.path(file)).unwrap(), "{file}");
        } else {
            assert!(stored.starts_with(b"Name:\tvellum"), "{}", String::from_utf8_lossy(&stored));
        }
    }
}
