//! Stores of persistent memory on the command line. The files of these tests are ordinary ones, so msync it is.

mod common;

use common::Place;

#[test]
fn a_store_is_made_filled_listed_and_checked() {
    let place = Place::new();
    for (name, sizes) in [("any", None), ("one", Some("8/8"))] {
        let mut create = vec!["pmem", "create", name, "--chunk", "1MiB"];
        create.extend(sizes.iter().flat_map(|sizes| ["--sizes", sizes]));
        let created = place.run(&create);
        assert_eq!(created.code, Some(0), "{}", created.err);
        assert!(created.err.contains("msync"), "{}", created.err);
        place.run(&create).fails(2, &["exists"]);
        let put = place.run(&["pmem", "put", name, "key-0001", "value--1"]);
        assert!(put.err.contains("inserted key-0001"), "{}", put.err);
        let replaced = place.run(&["pmem", "put", name, "key-0001", "value--2", "--json"]).json();
        assert_eq!(replaced[0]["result"], "replaced");
        place.run(&["pmem", "put", name, "key-0002", "other--1"]).ok();
        assert_eq!(place.run(&["pmem", "get", name, "key-0001"]).ok(), "value--2");
        assert_eq!(place.run(&["pmem", "get", name, "key-0002", "--json"]).json()[0]["value"], "other--1");
        let listed = place.run(&["pmem", "scan", name, "--json"]).json();
        assert_eq!(listed.len(), 2);
        assert_eq!(place.run(&["pmem", "scan", name, "--prefix", "key-0002"]).ok(), "key-0002\tother--1\n");
        place.run(&["pmem", "delete", name, "key-0002"]).ok();
        place.run(&["pmem", "get", name, "key-0002"]).fails(1, &["no key key-0002"]);
        let stat = place.run(&["pmem", "stat", name, "--json"]).json();
        assert_eq!(
            (stat[0]["record_count"].as_u64(), stat[0]["persistence"].as_str()),
            (Some(1), Some("msync"))
        );
        assert!(place.run(&["pmem", "verify", name]).ok().contains("as it should be"));
    }
    let created = place.run(&["pmem", "create", "other", "--chunk", "1MiB", "--json"]).json();
    assert_eq!((&created[0]["store"], &created[0]["persistence"]), (&"other".into(), &"msync".into()));
    let verified = place.run(&["pmem", "verify", "any"]).ok();
    assert!(verified.contains("zeroes counts as free"), "{verified}");
    place.run(&["pmem", "put", "one", "short", "value--1"]).fails(2, &["8 bytes"]);
}

#[test]
fn values_are_given_as_to_a_database() {
    let place = Place::new();
    place.run(&["pmem", "create", "s", "--chunk", "1MiB"]).ok();
    for put in [&["put", "d"][..], &["pmem", "put", "s"]] {
        place.run_with_input(&[put, &["a", "-"]].concat(), b"\x00 one\n").ok();
        place.run_with_input(&[put, &["b", "--file", "-"]].concat(), b"\x00 two\n").ok();
        place.run(&[put, &["c", "-5"]].concat()).ok();
    }
    let mut stored: Vec<String> = place.run(&["pmem", "scan", "s"]).ok().lines().map(str::to_owned).collect();
    stored.sort();
    assert_eq!(stored, place.run(&["scan", "d"]).ok().lines().collect::<Vec<_>>());
}

#[test]
fn damage_is_named_and_has_its_exit_code() {
    let place = Place::new();
    place.run(&["pmem", "create", "s", "--chunk", "1MiB"]).ok();
    place.run(&["pmem", "put", "s", "key", "a value that will be damaged"]).ok();
    place.run(&["pmem", "put", "s", "other", "is as it was"]).ok();
    let path = place.path("s");
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(7).position(|part| part == b"damaged").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    place.run(&["pmem", "verify", "s"]).fails(3, &["1 problem"]);
    // Also if nobody reads what it prints.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let unread = place.command(&["pmem", "verify", "s"]).stdout(writer).output().unwrap();
    assert_eq!(unread.status.code(), Some(3));
    place.run(&["pmem", "get", "s", "key"]).fails(3, &["fails its checksum", "scan --tolerate-damage"]);
    assert_eq!(place.run(&["pmem", "scan", "s", "--tolerate-damage"]).ok(), "other\tis as it was\n");
    std::fs::write(&path, "something else").unwrap();
    place.run(&["pmem", "stat", "s"]).fails(3, &["not a store"]);
    place.run(&["pmem", "stat", "/dev/null"]).fails(6, &["no device of persistent memory"]);
}

#[test]
fn what_the_system_does_not_confirm_is_refused_unless_vouched_for() {
    let place = Place::new();
    place.run(&["pmem", "create", "s", "--persistence", "flushless"]).fails(2, &["vouch"]);
    assert!(!place.path("s").exists());
    let bench = ["pmem", "bench", "s", "--records", "2000", "--seconds", "0", "--json"];
    let figures = place.run(&bench).json();
    assert!(figures.iter().any(|row| row["step"] == "recovery" && row["operations"] == 2000), "{figures:?}");
    assert!(!place.path("s").exists(), "it is removed");
}

#[test]
fn a_measurement_leaves_a_file_that_it_has_not_made() {
    let place = Place::new();
    let bench = ["pmem", "bench", "s", "--records", "10", "--seconds", "0"];
    std::fs::write(place.path("s"), "not a store").unwrap();
    place.run(&bench).fails(2, &["exists", "can be made and removed"]);
    assert_eq!(std::fs::read(place.path("s")).unwrap(), b"not a store");
    // What lies there can also come to light when the store is made: a link that leads nowhere.
    std::fs::remove_file(place.path("s")).unwrap();
    std::os::unix::fs::symlink("nowhere", place.path("s")).unwrap();
    place.run(&bench).fails(2, &["cannot create"]);
    assert!(place.path("s").is_symlink());
}

#[test]
fn a_value_without_end_is_refused() {
    let place = Place::new();
    let program = env!("CARGO_BIN_EXE_vellum");
    place.run(&["pmem", "create", "store", "--chunk", "1MiB"]).ok();
    for from in ["--file /dev/zero", "- < /dev/zero"] {
        let line = format!("ulimit -v 1000000; exec {program} pmem put store key {from}");
        place.shell(&line).fails(5, &["cannot read", "out of memory"]);
    }
    place.run(&["pmem", "get", "store", "key"]).fails(1, &["there is no key"]);
}

#[test]
fn a_file_that_may_not_grow_is_no_room() {
    let place = Place::new();
    let program = env!("CARGO_BIN_EXE_vellum");
    place.shell(&format!("ulimit -f 4; exec {program} pmem create store")).fails(5, &["ulimit -f"]);
    assert!(!place.path("store").exists());
}
