//! The tour: its figures, its limit of memory, and what it leaves alone.

mod common;

use common::{Place, Run, noise, signal, wait_for_size};
use serde_json::Value;
use std::{
    fs::File,
    path::Path,
    process::Stdio,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, SystemTime},
};
use vellum::{Database, Options};

const POOL_BYTES: u64 = 8 << 20;

/// 64 MiB in files of all sizes, one of them larger than the pool.
fn make_tree(place: &Place) -> (u64, u64) {
    let (mut files, mut bytes, mut seed) = (0, 0, 0);
    let mut write = |name: String, length: usize| {
        seed += 1;
        place.write(&name, noise(seed, length));
        files += 1;
        bytes += length as u64;
    };
    write("tree/larger than the pool".into(), 20 << 20);
    for number in 0..20 {
        write(format!("tree/it's large/{number}"), (1 << 20) + number);
    }
    for number in 0..600 {
        write(format!("tree/medium/{}/{number}", number % 7), 1000 + 97 * number % 60_000);
    }
    for number in 0..3000 {
        write(format!("tree/small/{}/{number}.txt", number % 50), number % 1500);
    }
    place.write("tree/readme.txt", "A text.\n".repeat(40));
    (files + 1, bytes + 320)
}

fn summary(run: Run) -> Value {
    let summary = run.json().pop().unwrap();
    assert_eq!(summary["kind"], "summary");
    summary
}

#[test]
fn a_tour_compares_everything_within_its_memory() {
    let place = Place::new();
    let (files, bytes) = make_tree(&place);
    assert!((40 << 20..70 << 20).contains(&bytes), "{bytes}");
    let objects = place.run(&["tour", "tree", "--json", "--pool", "8MiB"]).json();
    let (summary, phases) = objects.split_last().unwrap();
    assert_eq!((&summary["files"], &summary["bytes"]), (&files.into(), &bytes.into()));
    assert_eq!((&summary["files_same"], &summary["files_compared"]), (&files.into(), &files.into()));
    for nothing in ["files_different", "files_missing", "files_changed", "files_unreadable", "files_skipped"]
    {
        assert_eq!(summary[nothing], 0, "{nothing}");
    }
    assert_eq!(summary["random_reads"], 10_000);
    assert_eq!((&summary["prefix"], &summary["prefix_entries"]), (&"small/".into(), &3000.into()));
    let names: Vec<_> = phases.iter().map(|phase| phase["phase"].as_str().unwrap()).collect();
    assert_eq!(names, ["import", "close", "open", "compare with disk", "random reads", "scan of a prefix"]);
    assert!(phases[0]["pages_evicted"].as_u64().unwrap() > 1000, "the data is larger than the pool");
    assert!(summary["misses"].as_u64().unwrap() > 1000);

    let resident = summary["resident_bytes_max"].as_u64().unwrap();
    let limit = POOL_BYTES + 16 * bytes.div_ceil(4096) + (64 << 20);
    assert!(resident < limit, "{resident} bytes were resident, and the limit is {limit}");
    assert!(place.path("tour.vellum").exists() && !place.path("tour.vellum.partial").exists());
}

#[test]
fn the_commands_that_it_prints_work_as_they_are_printed() {
    let place = Place::new();
    place.write("tree/it's a text", "A text.\n".repeat(40));
    place.write("tree/\u{e4}/\\backslash", [0, 1, 2, 255]);
    let run = place.run(&["tour", "tree", "--database", "my tour.db"]);
    let text = run.ok();
    assert!(text.contains("2 files are byte for byte"), "{text}");
    let commands: Vec<_> = text.lines().rev().take(3).collect();
    for command in &commands {
        let run = place.shell(command);
        assert_eq!(run.code, Some(0), "{command}: {}", run.err);
        assert!(!run.out.is_empty(), "{command}");
    }
    assert!(place.shell(commands[2]).out == "A text.\n".repeat(40).as_bytes(), "{}", commands[2]);
    for word in ["memory of the process", "misses", "pages evicted", "I/O through", "random reads", "scan"] {
        assert!(text.contains(word), "{word:?} is not in {text}");
    }
}

#[test]
fn an_earlier_tour_is_replaced_and_anything_else_left_alone() {
    let place = Place::new();
    place.write("tree/a", "one");
    place.run(&["tour", "tree"]).ok();
    place.write("tree/a", "two");
    place.run(&["tour", "tree"]).ok();
    assert_eq!(place.run(&["get", "tour.vellum", "a"]).ok(), "two");

    place.write("notes", "mine");
    place.run(&["put", "other", "k", "v"]).ok();
    place.run(&["tour", "tree", "--database", "notes"]).fails(2, &["notes is there already", "--force"]);
    place.run(&["tour", "tree", "--database", "other"]).fails(2, &["not of a tour", "--database"]);
    place.run(&["tour", "tree", "--database", "tree"]).fails(2, &["is a directory"]);
    assert_eq!(std::fs::read(place.path("notes")).unwrap(), b"mine");
    place.run(&["tour", "tree", "--database", "other", "--force"]).ok();
    assert_eq!(place.run(&["get", "other", "a"]).ok(), "two");

    place.write("tour.vellum.partial", "mine, too");
    place.run(&["tour", "tree"]).fails(2, &["tour.vellum.partial is there already"]);
    place.write("tour.vellum.partial", "");
    place.run(&["tour", "tree"]).ok();
}

#[test]
fn a_database_that_only_has_the_name_of_an_incomplete_one_is_left_alone() {
    let place = Place::new();
    place.write("tree/a", "one");
    let left_alone = |why: &str| {
        let before = std::fs::read(place.path("data.partial")).unwrap();
        let run = place.run(&["tour", "tree", "--database", "data"]);
        run.fails(2, &["data.partial is there already", why, "Move it away, or choose another --database"]);
        assert!(std::fs::read(place.path("data.partial")).unwrap() == before, "{why}");
        assert!(!place.path("data").exists());
    };
    place.run(&["put", "data.partial", "k", "v"]).ok();
    left_alone("not of a tour");
    assert_eq!(place.run(&["get", "data.partial", "k"]).ok(), "v");
    let whole = std::fs::read(place.path("data.partial")).unwrap();
    let mut damaged = whole.clone();
    for at in [100, 4096 + 100] {
        damaged[at..at + 3].fill(0xff);
    }
    place.write("data.partial", damaged);
    left_alone("damaged");
    place.write("data.partial", &whole[..whole.len() - 4096]);
    left_alone("truncated");

    std::fs::remove_file(place.path("data.partial")).unwrap();
    place.run(&["put", "data.partial", "k", "v", "--archive", "archive"]).ok();
    left_alone("not of a tour");

    let options = Options::default().background_checkpoints(false);
    let database = Database::create(place.path("origin"), &options).unwrap();
    database.create_table("main").unwrap().put("k", "v").unwrap();
    place.copy_crashed("origin", "data.partial");
    drop(database);
    left_alone("not of a tour");
    assert_eq!(place.run(&["get", "data.partial", "k"]).ok(), "v");
}

#[test]
fn what_a_killed_tour_has_left_is_removed() {
    let place = Place::new();
    place.write("tree/a", "one");
    // Killed before the database was closed, and before it had its name.
    let unfinished = Database::create(place.path("unfinished"), &Options::default().log(false)).unwrap();
    unfinished.create_table("main").unwrap().put("a", "on").unwrap();
    std::fs::copy(place.path("unfinished"), place.path("data.partial")).unwrap();
    drop(unfinished);
    place.run(&["tour", "tree", "--database", "data"]).ok();
    std::fs::rename(place.path("data"), place.path("data.partial")).unwrap();
    place.run(&["tour", "tree", "--database", "data"]).ok();
    assert!(!place.path("data.partial").exists());
    assert_eq!(place.run(&["get", "data", "a"]).ok(), "one");
}

#[test]
fn the_log_of_an_earlier_tour_that_crashed_goes_with_it() {
    let place = Place::new();
    place.write("tree/a", "one");
    for name in ["origin", "closed"] {
        place.run(&["tour", "tree", "--database", name]).ok();
    }
    let options = Options::default().background_checkpoints(false);
    let database = Database::open(place.path("origin"), &options).unwrap();
    database.table("main").unwrap().put("b", "two").unwrap();
    for name in ["crashed", "forced", "gone", "other"] {
        place.copy_crashed("origin", name);
    }
    drop(database);
    for (name, force) in [("crashed", &[][..]), ("forced", &["--force"])] {
        assert_eq!(place.run(&["get", name, "b"]).ok(), "two", "it is in the log");
        place.run(&[&["tour", "tree", "--database", name], force].concat()).ok();
        assert!(!place.path(&format!("{name}-log")).exists());
        place.run(&["get", name, "b"]).fails(1, &["no key b"]);
        place.run(&["put", name, "b", "three"]).ok();
        assert_eq!(place.run(&["get", name, "b"]).ok(), "three");
    }

    // A log of anything else stays.
    std::fs::remove_file(place.path("gone")).unwrap();
    let tour = place.run(&["tour", "tree", "--database", "gone"]);
    tour.fails(2, &["the log in gone-log would be in the way", "one that is gone", "Move it away"]);
    place.write("other", "mine");
    let tour = place.run(&["tour", "tree", "--database", "other", "--force"]);
    tour.fails(2, &["the log in other-log would be in the way", "not a Vellum file", "Move it away"]);
    assert_eq!(std::fs::read(place.path("other")).unwrap(), b"mine");
    std::fs::rename(place.path("gone-log"), place.path("closed-log")).unwrap();
    let tour = place.run(&["tour", "tree", "--database", "closed"]);
    tour.fails(3, &["the log in closed-log would be in the way", "of another one's", "Move it away"]);
    assert_eq!(place.run(&["get", "closed", "a"]).ok(), "one");
    for name in ["other", "closed"] {
        assert!(std::fs::read_dir(place.path(&format!("{name}-log"))).unwrap().count() > 0);
    }
    place.write("notes-log/file", "mine");
    place.run(&["tour", "tree", "--database", "notes"]).ok();
    place.run(&["put", "notes", "k", "v"]).ok();
    assert_eq!(std::fs::read(place.path("notes-log/file")).unwrap(), b"mine");
}

#[test]
fn a_wrong_database_shows_in_the_exit_code_also_if_nothing_reads_what_is_printed() {
    let place = Place::new();
    // Two trees whose files differ, and seem to be the same ones. Meanwhile `tree` is now the one, now the other.
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for tree in ["one", "two"] {
        for number in 0..1000 {
            let path = place.write(&format!("{tree}/{number}"), tree);
            File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
        }
    }
    let lead_to = |tree: &str| {
        std::os::unix::fs::symlink(tree, place.path("next")).unwrap();
        std::fs::rename(place.path("next"), place.path("tree")).unwrap();
    };
    lead_to("one");
    let stop = AtomicBool::new(false);
    let runs = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                lead_to("two");
                lead_to("one");
            }
        });
        let runs = [&["tour", "tree"][..], &["tour", "tree", "--json"]].map(|tour| place.run_unread(tour));
        stop.store(true, Ordering::Relaxed);
        runs
    });
    for run in runs {
        run.fails(3, &["not in tour.vellum as they were on disk", "run `vellum verify`"]);
    }
    let run = place.run_unread(&["tour", "tree"]);
    assert_eq!(run.code, Some(0), "{run:?}");
}

#[test]
fn a_tour_of_the_directory_in_which_its_database_is_leaves_that_out() {
    let place = Place::new();
    place.write("a", "one");
    for _ in 0..2 {
        let summary = summary(place.run(&["tour", ".", "--json"]));
        assert_eq!((&summary["files"], &summary["files_same"]), (&1.into(), &1.into()));
    }
}

#[test]
fn a_tour_of_nothing_is_refused() {
    let place = Place::new();
    std::fs::create_dir(place.path("empty")).unwrap();
    place.run(&["tour", "empty"]).fails(2, &["no regular files under empty"]);
    place.run(&["tour", "nothing"]).fails(6, &["cannot look at nothing"]);
    place.run(&["tour", "empty", "--pool", "x"]).fails(2, &["64MiB"]);
    place.write("tree/a", "one");
    place.run(&["tour", "tree", "--database", "no/d"]).fails(6, &["there is no directory no"]);
    assert!(!place.path("tour.vellum").exists() && !place.path("tour.vellum.partial").exists());
}

#[test]
fn files_with_no_contents_make_a_tour() {
    let place = Place::new();
    place.write("tree/nothing", "");
    let summary = summary(place.run(&["tour", "tree", "--json"]));
    assert_eq!((&summary["files"], &summary["bytes"]), (&1.into(), &0.into()));
    assert_eq!(summary["files_same"], 1);
}

#[test]
fn an_interrupted_tour_leaves_the_earlier_one() {
    let place = Place::new();
    place.write("tree/a", "one");
    place.run(&["tour", "tree"]).ok();
    std::fs::create_dir(place.path("long")).unwrap();
    for number in 0..4 {
        File::create(place.path(&format!("long/{number}"))).unwrap().set_len(1 << 30).unwrap();
    }
    let mut command = place.command(&["tour", "long", "--pool", "1MiB", "--threads", "1"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let partial = place.path("tour.vellum.partial");
    wait_for_size(Path::new(&partial), 1 << 20);
    place.run(&["tour", "tree"]).fails(4, &["Another tour is making it"]);
    signal(&child, "INT");
    let run = Run::from(child.wait_with_output().unwrap());
    run.fails(130, &["interrupted", "The incomplete database was removed"]);
    assert!(!partial.exists());
    assert_eq!(place.run(&["get", "tour.vellum", "a"]).ok(), "one");
}

#[test]
fn a_tour_of_files_that_are_all_too_large_says_so() {
    let place = Place::new();
    std::fs::create_dir(place.path("tree")).unwrap();
    std::fs::File::create(place.path("tree/huge")).unwrap().set_len(6 << 30).unwrap();
    place.run(&["tour", "tree"]).fails(2, &["1 file under tree cannot be imported", "1.0 GiB"]);
    assert!(!place.path("tour.vellum").exists());
}

#[test]
fn awkward_names_make_commands_that_work() {
    let place = Place::new();
    place.write("tree/- $x 'y'", "some text that is short\n");
    let run = place.run(&["tour", "tree", "--database=-d b"]);
    let text = run.ok();
    assert!(text.contains("1 file is byte for byte in the database what it is on disk."), "{text}");
    let commands: Vec<_> = text.lines().filter(|line| line.contains("./-d b")).map(str::trim).collect();
    assert!(commands.len() >= 3, "{text}");
    for command in &commands {
        place.shell(command).ok();
    }
    assert_eq!(place.shell(commands[0]).ok(), "some text that is short\n");
}
