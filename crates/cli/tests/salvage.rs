//! What is lost of crashed and damaged databases is said by all commands that print what is left.

mod common;

use common::{Place, Run, without_privileges};
use std::{fs::Permissions, os::unix::fs::PermissionsExt as _};
use vellum::{
    Database, Options,
    objects::{Persistent, Ref, Text},
};

/// Makes a database that has crashed: two entries are in its file, and fifty in its log only.
fn crashed(place: &Place, name: &str) {
    for number in 0..2 {
        place.run(&["put", "origin", &format!("a{number}"), "v"]).ok();
    }
    let options = Options::default().background_checkpoints(false);
    let database = Database::open(place.path("origin"), &options).unwrap();
    let table = database.table("main").unwrap();
    for number in 0..50 {
        table.put(format!("b{number}").as_bytes(), b"v").unwrap();
    }
    place.copy_crashed("origin", name);
}

/// The commands that look at what is left.
const SALVAGING: [&[&str]; 3] =
    [&["dump", "d", "--salvage"], &["scan", "d", "--salvage"], &["recover", "d", "--report"]];

fn segments(place: &Place) -> Vec<std::path::PathBuf> {
    let files = std::fs::read_dir(place.path("d-log")).unwrap();
    files.map(|file| file.unwrap().path()).filter(|path| path.to_string_lossy().contains("segment")).collect()
}

#[test]
fn a_log_that_is_lost_is_a_loss_for_all() {
    let place = Place::new();
    crashed(&place, "d");
    let whole = place.run(&["dump", "d", "--salvage"]).ok();
    assert!(whole.ends_with("!end\t1\t52\n"), "{whole}");
    place.run(&["scan", "d", "--salvage"]).ok();
    assert!(place.run(&["recover", "d", "--report"]).ok().contains("all of whose entries can be read"));
    let all_say = |what: &str| {
        for command in SALVAGING {
            let run = place.run(command);
            let said = format!("{}{}", run.err, String::from_utf8_lossy(&run.out));
            assert!(said.contains(what), "{said}");
            run.fails(3, &["damaged"]);
        }
    };
    // The file of each segment is cut, then all are gone, and then the directory is.
    std::fs::remove_file(place.path("d-log/buffer")).unwrap();
    for path in segments(&place) {
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(2000).unwrap();
    }
    all_say("what is in its log only");
    for path in segments(&place) {
        std::fs::remove_file(path).unwrap();
    }
    all_say("what is in its log only");
    std::fs::remove_dir_all(place.path("d-log")).unwrap();
    all_say("what is in its log only");
    // A table that is not found may have been in the log.
    place.run(&["scan", "d", "--salvage", "--table", "t"]).fails(3, &["\"t\" was not found in what is left"]);
    place.run(&["dump", "d", "--salvage", "--table", "t"]).fails(3, &["lost: the table \"t\""]);
}

#[test]
fn files_that_end_within_a_sector_are_read_to_their_ends() {
    let place = Place::new();
    crashed(&place, "d");
    for path in segments(&place) {
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(60_001).unwrap();
    }
    for command in SALVAGING.into_iter().chain([&["verify", "d"][..], &["dump", "d"], &["recover", "d"]]) {
        let run = place.run(command);
        assert!(matches!(run.code, Some(0 | 3)) && !run.err.contains("Invalid argument"), "{run:?}");
    }
    let lines: String = (0..2000).map(|number| format!("key{number:04}\tvalue {number}\n")).collect();
    place.run_with_input(&["load", "e", "-"], lines.as_bytes()).ok();
    let length = std::fs::metadata(place.path("e")).unwrap().len();
    let file = std::fs::OpenOptions::new().write(true).open(place.path("e")).unwrap();
    file.set_len(length / 2 / 4096 * 4096 + 1001).unwrap();
    let [direct, buffered] = [&[][..], &["--buffered"]].map(|how| {
        let run = place.run(&[&["dump", "e", "--salvage"], how].concat());
        let found = String::from_utf8_lossy(&run.out).into_owned();
        run.fails(3, &["lost: "]);
        found
    });
    assert!(direct.contains("key0001\tvalue 1\n") && direct == buffered, "{direct}");
    place.run(&["recover", "e", "--report"]).fails(3, &["is damaged, and was not changed"]);
}

#[test]
fn a_log_that_is_elsewhere_is_put_back_and_nothing_is_lost() {
    let place = Place::new();
    crashed(&place, "d");
    std::fs::rename(place.path("d-log"), place.path("away")).unwrap();
    let report = ["recover", "d", "--report"];
    place.run(&report).fails(3, &["damaged without its log", "Put the log where it was"]);
    place.write("d-log", b"notes");
    for command in [&["get", "d", "b1"][..], &["put", "d", "k", "v"]] {
        place.run(command).fails(6, &["something else has", "move it away"]);
    }
    place.run(&report).fails(3, &["damaged without its log", "Put the log where it was"]);
    std::fs::remove_file(place.path("d-log")).unwrap();
    std::fs::rename(place.path("away"), place.path("d-log")).unwrap();
    assert!(place.run(&report).ok().contains("all of whose entries can be read"));
    assert_eq!(place.run(&["get", "d", "b1"]).ok(), "v");
}

#[test]
fn a_log_that_may_not_be_read_is_not_damaged() {
    let place = Place::new();
    crashed(&place, "d");
    let allow = |mode| std::fs::set_permissions(place.path("d-log"), Permissions::from_mode(mode)).unwrap();
    let run = |command: &[&str]| -> Run {
        without_privileges(&mut place.command(command)).output().unwrap().into()
    };
    allow(0o000);
    for command in SALVAGING {
        let run = run(command);
        assert_eq!(run.out, b"", "nothing is printed that looks whole");
        run.fails(6, &["Permission denied", "Ask its owner for permission"]);
    }
    run(&["get", "d", "b1"]).fails(6, &["Permission denied"]);
    allow(0o700);
    for command in SALVAGING {
        run(command).ok();
    }
}

#[test]
fn a_table_that_was_never_there_is_not_dumped() {
    let place = Place::new();
    place.run(&["put", "d", "k", "v"]).ok();
    for command in
        [["dump", "d", "--salvage", "--table", "typo"], ["scan", "d", "--salvage", "--table", "typo"]]
    {
        let run = place.run(&command);
        assert_eq!(run.out, b"");
        run.fails(1, &["there is no table \"typo\" in d: the only one is \"main\""]);
    }
}

#[derive(Persistent)]
struct Node {
    name: Text,
}

#[derive(Persistent)]
struct Beginning {
    next: Ref<Node>,
}

#[test]
fn damaged_heaps_are_reported_and_their_names_are_escaped() {
    let place = Place::new();
    place.run(&["put", "d", "k", "v"]).ok();
    let database = Database::open(place.path("d"), &Options::default()).unwrap();
    let heap = database.create_heap("h\u{1b}[31mred").unwrap();
    let first = heap.allocate(&Node { name: Text::from("the marked one") }).unwrap();
    let second = heap.allocate(&Beginning { next: first }).unwrap();
    heap.set_root(Some(second)).unwrap();
    drop(heap);
    database.close().unwrap();
    let said = place.run(&["verify", "d"]).ok();
    assert!(said.contains("heap h") && said.contains("[31mred") && !said.contains('\u{1b}'), "{said}");
    let said = place.run(&["recover", "d", "--report"]).ok();
    assert!(said.contains("1 heap of objects, all of whose objects can"), "{said}");
    let mut bytes = std::fs::read(place.path("d")).unwrap();
    let at = bytes.windows(14).position(|window| window == b"the marked one").unwrap();
    bytes[at] ^= 1;
    place.write("d", bytes);
    place.run(&["verify", "d"]).fails(3, &["vellum dump --salvage"]);
    let run = place.run(&["recover", "d", "--report"]);
    let said = String::from_utf8_lossy(&run.out).into_owned();
    assert!(said.contains("[31mred") && !said.contains('\u{1b}') && !said.contains("all of whose"), "{said}");
    run.fails(3, &["is damaged, and was not changed"]);
}

#[test]
fn one_damaged_superblock_is_no_loss_and_is_mended() {
    let place = Place::new();
    place.run(&["put", "d", "k", "v"]).ok();
    let whole = std::fs::read(place.path("d")).unwrap();
    for at in [100, 4096 + 100] {
        let mut bytes = whole.clone();
        bytes[at..at + 3].fill(0xff);
        place.write("d", &bytes);
        let run = place.run(&["verify", "d"]);
        assert!(!run.err.contains("backup"), "{}", run.err);
        run.fails(3, &["nothing is lost", "`vellum recover` writes it again"]);
        place.run(&["recover", "d", "--report"]).fails(3, &["nothing is lost", "`vellum recover`"]);
        let report = place.run(&["recover", "d", "--report", "--json"]);
        assert!(String::from_utf8_lossy(&report.out).contains("\"damaged_superblocks\":1"));
        place.run(&["dump", "d", "--salvage"]).ok();
        assert!(std::fs::read(place.path("d")).unwrap() == bytes, "nothing was changed");
        assert!(place.run(&["recover", "d"]).ok().contains("was written again"));
        place.run(&["verify", "d"]).ok();
        assert!(!place.run(&["recover", "d"]).ok().contains("was written again"));
        assert_eq!(place.run(&["get", "d", "k"]).ok(), "v");
    }
}

#[test]
fn damage_with_which_nothing_is_lost_is_reported() {
    let place = Place::new();
    let value = place.write("value", vec![b'v'; 5000]);
    place.run(&["put", "d", "k", "--file", value.to_str().unwrap()]).ok();
    let mut bytes = std::fs::read(place.path("d")).unwrap();
    // Behind the header of its two pages; what follows its checksum means nothing.
    let at = bytes.windows(5000).position(|window| window.iter().all(|byte| *byte == b'v')).unwrap();
    bytes[at - 32 + 8191] ^= 1;
    place.write("d", &bytes);
    place.run(&["verify", "d"]).fails(3, &["1 problem"]);
    assert_eq!(place.run(&["get", "d", "k"]).out, [b'v'; 5000]);
    let run = place.run(&["recover", "d", "--report"]);
    let said = String::from_utf8_lossy(&run.out);
    assert!(said.contains("damaged: table \"main\": page") && said.contains("all of whose"), "{said}");
    run.fails(3, &["is damaged, and was not changed"]);
    let run = place.run(&["recover", "d", "--report", "--json"]);
    assert!(String::from_utf8_lossy(&run.out).contains("\"kind\":\"damaged\""), "{run:?}");
    run.fails(3, &[]);
    place.run(&["dump", "d", "--salvage"]).ok();
}

#[test]
fn damage_shows_in_the_exit_code_also_if_nothing_reads_what_is_printed() {
    let place = Place::new();
    let lines: String = (0..2000).map(|number| format!("key{number:04}\tvalue {number}\n")).collect();
    place.run_with_input(&["load", "whole", "-"], lines.as_bytes()).ok();
    let mut bytes = std::fs::read(place.path("whole")).unwrap();
    let at = bytes.windows(10).position(|window| window == b"value 1000").unwrap();
    bytes[at] ^= 1;
    place.write("d", bytes);
    for command in SALVAGING.into_iter().chain([&["verify", "d"][..], &["verify", "d", "--json"]]) {
        place.run_unread(command).fails(3, &[]);
    }
    let whole: [&[&str]; 3] = [&["dump", "whole", "--salvage"], &["verify", "whole"], &["dump", "whole"]];
    for command in whole {
        let run = place.run_unread(command);
        assert_eq!(run.code, Some(0), "{run:?}");
    }
}

#[test]
fn a_superblock_that_is_damaged_in_a_crashed_database_is_told() {
    let place = Place::new();
    crashed(&place, "d");
    place.run(&["verify", "d"]).ok();
    let mut bytes = std::fs::read(place.path("d")).unwrap();
    bytes[4096 + 100] ^= 1;
    place.write("d", &bytes);
    let run = place.run(&["verify", "d"]);
    assert!(
        String::from_utf8_lossy(&run.out).contains("the copy of the superblock on page 1 is damaged"),
        "{run:?}"
    );
    run.fails(3, &["nothing is lost", "`vellum recover` writes it again"]);
    assert!(std::fs::read(place.path("d")).unwrap() == bytes, "nothing was changed");
    place.run(&["recover", "d"]).ok();
    place.run(&["verify", "d"]).ok();
}

#[test]
fn a_damaged_buffer_of_the_log_is_told() {
    let place = Place::new();
    crashed(&place, "d");
    let mut bytes = std::fs::read(place.path("d-log/buffer")).unwrap();
    bytes[33] ^= 1;
    place.write("d-log/buffer", &bytes);
    for command in [&["verify", "d"] as &[&str], &["recover", "d", "--report"]] {
        let run = place.run(command);
        let told =
            String::from_utf8_lossy(&run.out).contains("the first page of the buffer of the log is damaged");
        assert!(told, "{run:?}");
        run.fails(3, &["the buffer of the log", "all that was durable is there", "`vellum recover`"]);
    }
    let recovered = place.run(&["recover", "d"]).ok();
    assert!(recovered.contains("the first page of the buffer of the log is damaged"), "{recovered}");
    place.run(&["verify", "d"]).ok();
}
