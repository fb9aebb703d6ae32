//! Dumps, and loading them.

mod common;

use common::Place;
use std::{io::Write as _, process::Stdio};
use vellum::{Database, Durability, Options, TableName, TableOptions};
use vellum_base::stamp_checksum;

fn fill(place: &Place) {
    let database = Database::create(place.path("d"), &Options::default()).unwrap();
    let words = database.create_table(TableName::<(String, i64), str>::new("words")).unwrap();
    for number in -500..500 {
        words.put(("a\tword", number), &*format!("number {number}\n")).unwrap();
    }
    let bytes = database.create_table("with\ttab").unwrap();
    for key in [&b""[..], b"!end", b"!table\ta", b"a", &[0xff, 0, b'\\']] {
        bytes.put(key, key).unwrap();
    }
    bytes.put("large", vec![0xfe; 3_000_000]).unwrap();
    let plain = database.create_table_with("plain", TableOptions::default().versions(false)).unwrap();
    plain.put("key", "value").unwrap();
    database.create_table("without entries").unwrap();
    drop((words, bytes, plain));
    database.close().unwrap();
}

#[test]
fn what_is_dumped_and_loaded_is_the_same_database() {
    let place = Place::new();
    fill(&place);
    let run = place.run(&["dump", "d"]);
    assert!(run.err.contains("007 entries of 4 tables"), "{}", run.err);
    let dump = run.ok();
    let loaded = place.run_with_input(&["load", "e", "-", "--dump", "--json"], dump.as_bytes()).json();
    assert_eq!((&loaded[0]["entries"], &loaded[0]["database_created"]), (&1007.into(), &true.into()));
    assert_eq!(place.run(&["dump", "e"]).ok(), dump);
    place.run(&["verify", "e"]).ok();
    let tables = place.run(&["tables", "e", "--json"]).json();
    assert_eq!((&tables[0]["table"], &tables[0]["plain"]), (&"plain".into(), &true.into()));
    assert_eq!((&tables[3]["key_type"], &tables[3]["value_type"]), (&"(str, i64)".into(), &"str".into()));
    let database = Database::open(place.path("e"), &Options::default()).unwrap();
    let words = database.table(TableName::<(String, i64), str>::new("words")).unwrap();
    assert_eq!(words.get(("a\tword", -7)).unwrap().unwrap(), "number -7\n");
    assert_eq!(words.first().unwrap().unwrap().0.1, -500);
    drop((words, database));
    // Only some of it, beside what is there.
    let some = place.run(&["dump", "d", "--table", "plain", "--table", "without entries"]).ok();
    place
        .run_with_input(&["load", "e", "-", "--dump"], some.as_bytes())
        .fails(2, &["line 2", "there already is a table \"plain\"", "Nothing was stored"]);
    let renamed = some.replace("plain\tbytes", "other\tbytes").replace("without entries", "empty");
    place.run_with_input(&["load", "e", "-", "--dump"], renamed.as_bytes()).ok();
    assert_eq!(place.run(&["scan", "e", "--table", "other"]).ok(), "key\tvalue\n");
    let none = place.run(&["dump", "d", "--table", "none"]);
    assert!(none.out.is_empty(), "what is refused has no beginning: {none:?}");
    none.fails(1, &["there is no table \"none\""]);
    let missing = place.run(&["dump", "missing"]);
    assert!(missing.out.is_empty() && missing.code != Some(0), "{missing:?}");
    // Tables of other types are read, and written by dumps only.
    for command in [&["put", "e", "k", "v", "--table", "words"][..], &["load", "e", "-", "--table", "words"]]
    {
        place.run(command).fails(2, &["from (str, i64) to str", "vellum load --dump"]);
    }
    place.run(&["dump", "d", "--json"]).fails(2, &["scan --json"]);
    place.write("dump", &dump);
    place.run(&["load", "f", "dump"]).fails(2, &["is a dump", "--dump"]);
    place.run(&["load", "f", "dump", "--dump", "--table", "t"]).fails(2, &["cannot be used with"]);
}

#[test]
fn a_dump_that_is_not_whole_leaves_nothing() {
    let place = Place::new();
    fill(&place);
    place.run(&["put", "there", "key", "value"]).ok();
    let dump = place.run(&["dump", "d"]).ok();
    let lines: Vec<&str> = dump.split_inclusive('\n').collect();
    let without = |at: usize| {
        lines.iter().enumerate().filter(|(line, _)| *line != at).map(|(_, line)| *line).collect::<String>()
    };
    let cases: [(String, i32, &str); 7] = [
        (lines[..lines.len() - 1].concat(), 3, "without its last line"),
        (lines[..2].concat(), 3, "without its last line"),
        (lines[..1].concat(), 3, "without its last line"),
        (without(500), 3, "part of it is missing"),
        (without(0), 2, "this is no dump"),
        (dump.replacen("!table", "!tabel", 1), 3, "line 2 is none of a dump"),
        (dump.replacen("number -7\\n", "number -7\\q", 1), 2, "is not an escape"),
    ];
    for (dump, code, why) in cases {
        for database in ["new", "there"] {
            place.write("dump", &dump);
            let run = place.run(&["load", database, "dump", "--dump"]);
            run.fails(code, &[why, "Nothing was stored"]);
        }
        assert!(!place.path("new").exists());
        assert_eq!(place.run(&["tables", "there"]).ok(), "main\n");
    }
    place.run(&["verify", "there"]).ok();
}

#[test]
fn what_follows_the_end_of_a_dump_is_not_passed_over() {
    let place = Place::new();
    place.run(&["put", "one", "key", "1", "--table", "one"]).ok();
    place.run(&["put", "two", "key", "2", "--table", "two"]).ok();
    let [one, two] = ["one", "two"].map(|name| place.run(&["dump", name]).ok());
    place
        .run_with_input(&["load", "both", "-", "--dump"], [&one[..], &two].concat().as_bytes())
        .fails(3, &["line 5", "more after the last line", "Nothing was stored"]);
    let early = one.replace("!end\t1\t1\n", "!end\t1\t1\nlater\t2\n");
    place
        .run_with_input(&["load", "both", "-", "--dump"], early.as_bytes())
        .fails(3, &["line 5", "more after the last line"]);
    assert!(!place.path("both").exists());
    let plain = one.replace("versions", "plain") + "later\t2\n";
    place
        .run_with_input(&["load", "one", "-", "--dump"], plain.replace("one", "other").as_bytes())
        .fails(3, &["line 5"]);
    assert_eq!(place.run(&["tables", "one"]).ok(), "one\n");
}

#[test]
fn a_load_that_is_killed_leaves_no_table() {
    let place = Place::new();
    place.run(&["put", "d", "key", "value"]).ok();
    let value = "v".repeat(100_000);
    let entries: String = (0..50).map(|number| format!("key {number:02}\t{value}\n")).collect();
    let table = |name: &str| format!("!table\t{name}\tbytes\tbytes\tplain\n{entries}");
    let dump = format!("!vellum dump 1\n{}{}!end\t2\t100\n", table("first"), table("second"));
    let mut command = place.command(&["load", "d", "-", "--dump"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // Without its end: the first table is whole when more than its entries and a pipe have been taken.
    stdin.write_all(&dump.as_bytes()[..dump.len() - 100]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(place.run(&["tables", "d"]).ok(), "main\n");
    let run = place.run_with_input(&["load", "d", "-", "--dump"], dump.as_bytes());
    assert!(run.ok().starts_with("loaded 100 entries"));
    let tables = place.run(&["tables", "d", "--json"]).json();
    assert!(tables[0]["table"] == "first" && tables[0]["plain"] == true, "{tables:?}");
    place.run(&["verify", "d"]).ok();
}

#[test]
fn what_is_left_of_a_damaged_database_is_dumped() {
    let place = Place::new();
    fill(&place);
    let whole = place.run(&["dump", "d"]).ok();
    assert_eq!(place.run(&["dump", "d", "--salvage"]).ok(), whole);
    // The large value is lost.
    let mut bytes = std::fs::read(place.path("d")).unwrap();
    let at = bytes.windows(64).position(|window| window == [0xfe; 64]).unwrap();
    bytes[at + 1000] ^= 1;
    std::fs::write(place.path("d"), bytes).unwrap();
    place.run(&["dump", "d"]).fails(3, &[]);
    let run = place.run(&["dump", "d", "--salvage"]);
    assert_eq!(run.code, Some(3));
    assert!(run.err.contains("lost: table \"with\\ttab\", key \"large\""), "{}", run.err);
    let loaded = place.run_with_input(&["load", "saved", "-", "--dump", "--json"], &run.out).json();
    assert_eq!(loaded[0]["entries"], 1006);
    let tables = place.run(&["tables", "saved", "--json"]).json();
    assert_eq!(tables[3]["key_type"], "(str, i64)");
}

#[test]
fn tables_keep_their_types_where_another_part_of_the_catalog_is_damaged() {
    let place = Place::new();
    let options = Options::default().durability(Durability::Deferred);
    let database = Database::create(place.path("d"), &options).unwrap();
    // So many that the catalog has several leaves. The numbers come last, so that no leaf has them in its prefix.
    let name = |number: usize| format!("{}-{}-{number:03}.", number / 10, "n".repeat(200));
    for number in 0..90 {
        let table = TableOptions::default().versions(false).types("u64", "str");
        let table = database.create_table_with(name(number), table).unwrap();
        table.put(1u64.to_be_bytes(), "one").unwrap();
    }
    database.close().unwrap();
    let whole = place.run(&["dump", "d"]).ok();
    assert_eq!(place.run(&["dump", "d", "--salvage"]).ok(), whole);
    let mut bytes = std::fs::read(place.path("d")).unwrap();
    let at = bytes.windows(5).position(|window| window == b"-085.").unwrap();
    bytes[at] ^= 1;
    std::fs::write(place.path("d"), bytes).unwrap();
    let run = place.run(&["dump", "d", "--salvage"]);
    let dump = String::from_utf8(run.out.clone()).unwrap();
    run.fails(3, &["lost: tables: ", "lost: the names of tables, which are called lost-1"]);
    let tables: Vec<&str> = dump.lines().filter(|line| line.starts_with("!table")).collect();
    assert_eq!(tables.len(), 90);
    let (nameless, named): (Vec<&str>, Vec<&str>) = tables.iter().partition(|line| line.contains("\tlost-"));
    assert!(nameless.len() > 5 && named.len() > 50, "{nameless:?}");
    assert!(
        named.iter().all(|line| line.ends_with("\tu64\tstr\tplain") && whole.contains(*line)),
        "{named:?}"
    );
    assert!(nameless.iter().all(|line| line.ends_with("\tbytes\tbytes\tversions")), "{nameless:?}");
}

#[test]
fn an_entry_that_cannot_be_found_again_is_damage() {
    let place = Place::new();
    let tail = "t".repeat(90);
    let lines: String = (100..200).map(|number| format!("key{number}{tail}{number}.\tvalue\n")).collect();
    place.run_with_input(&["load", "d", "-"], lines.as_bytes()).ok();
    // A leaf with another key than that of which it has the fingerprint, and with the right checksum.
    let mut bytes = std::fs::read(place.path("d")).unwrap();
    let at = bytes.windows(4).position(|window| window == b"150.").unwrap();
    bytes[at + 3] = b'!';
    let page = at / 4096 * 4096;
    stamp_checksum(&mut bytes[page..page + 4096]);
    std::fs::write(place.path("d"), bytes).unwrap();
    for command in [&["dump", "d"][..], &["scan", "d"], &["scan", "d", "--json"]] {
        place.run(command).fails(3, &["key150", "is not found from its root", "`vellum verify`"]);
    }
    assert_eq!(place.run(&["scan", "d", "--keys"]).ok().lines().count(), 100);
    place.run(&["verify", "d"]).fails(3, &["found in d"]);
}

#[test]
fn a_table_whose_record_cannot_be_read_is_told() {
    let place = Place::new();
    fill(&place);
    let mut bytes = std::fs::read(place.path("d")).unwrap();
    // The record has a field that is not known, and that may not be passed over.
    let at = bytes.windows(13).position(|window| window == b"\x01\x0a\x00(str, i64)").unwrap();
    bytes[at] = 9;
    let page = at / 4096 * 4096;
    stamp_checksum(&mut bytes[page..page + 4096]);
    std::fs::write(place.path("d"), bytes).unwrap();
    let run = place.run(&["dump", "d", "--salvage"]);
    let dump = String::from_utf8(run.out.clone()).unwrap();
    assert!(dump.contains("!table\tplain\tbytes\tbytes\tplain\nkey\tvalue\n"), "{dump}");
    run.fails(3, &["lost: table \"words\": its types, and whether it keeps versions"]);
}
