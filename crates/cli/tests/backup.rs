//! `vellum backup` and `vellum restore`, and what is said to people that use them wrongly.

mod common;

use common::{Place, noise};
use vellum::{Database, Options};

fn filled(place: &Place) {
    let lines: String = (0..3000).map(|number| format!("key-{number:05}\tvalue {number}\n")).collect();
    place.write("lines", lines);
    place.run(&["load", "d", "lines"]).ok();
}

/// The word of the database's first life, which has a bit for backups.
fn life(place: &Place) -> u64 {
    let bytes = std::fs::read(place.path("d")).unwrap();
    u64::from_le_bytes(bytes[272..280].try_into().unwrap())
}

#[test]
fn a_backup_becomes_a_database_again() {
    let place = Place::new();
    filled(&place);
    let before = place.run(&["scan", "d", "--full"]).ok();
    let unmarked = life(&place);
    let said = place.run(&["backup", "d", "full"]).ok();
    assert!(said.contains("pages in full") && said.contains("; it ends before "), "{said}");
    assert_eq!(life(&place), unmarked | 1 << 63, "the database says that a backup was made of it");
    place.run(&["put", "d", "key-00007", "changed"]).ok();
    place.run(&["delete", "d", "key-00008"]).ok();
    let after = place.run(&["scan", "d", "--full"]).ok();
    let said = place.run(&["backup", "d", "increment", "--since", "full", "--json"]).json();
    assert_eq!(said[0]["increment"], true);
    assert!(said[0]["pages"].as_u64().unwrap() < 10, "{said:?}");
    place.run(&["restore", "full", "old"]).ok();
    let said = place.run(&["restore", "full", "increment", "new"]);
    assert!(said.err.contains("vellum verify new"), "{}", said.err);
    assert_eq!(place.run(&["scan", "old", "--full"]).ok(), before);
    assert_eq!(place.run(&["scan", "new", "--full"]).ok(), after);
    place.run(&["verify", "old"]).ok();
    place.run(&["verify", "new"]).ok();
    assert!(!place.path("new.unfinished").exists() && !place.path("new.unfinished-log").exists());
}

#[test]
fn what_was_killed_is_recovered_and_backed_up() {
    let place = Place::new();
    filled(&place);
    let options = Options::default().background_checkpoints(false);
    let database = Database::open(place.path("d"), &options).unwrap();
    database.table("main").unwrap().put(b"last", b"word").unwrap();
    std::fs::create_dir(place.path("crashed-log")).unwrap();
    std::fs::copy(place.path("d"), place.path("crashed")).unwrap();
    for file in std::fs::read_dir(place.path("d-log")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), place.path("crashed-log").join(file.file_name())).unwrap();
    }
    // It is open here.
    place.run(&["backup", "d", "b"]).fails(4, &["Database::backup", "may go on meanwhile"]);
    assert!(!place.path("b").exists());
    place
        .run(&["backup", "crashed", "b"])
        .fails(2, &["crashed was not closed", "`vellum recover`", "--archive"]);
    assert!(!place.path("b").exists() && place.path("crashed-log").exists());
    place.run(&["recover", "crashed"]).ok();
    place.run(&["backup", "crashed", "b"]).ok();
    place.run(&["restore", "b", "r"]).ok();
    assert_eq!(place.run(&["get", "r", "last"]).ok(), "word");
}

#[test]
fn a_command_that_only_reads_gives_up_no_log_that_is_to_be_archived() {
    let place = Place::new();
    place.run(&["put", "d", "zero", "v", "--archive", "ar"]).ok();
    place.run(&["backup", "d", "full"]).ok();
    place.run(&["put", "d", "one", "v", "--archive", "ar"]).ok();
    // The disk of the archive is away.
    std::fs::rename(place.path("ar"), place.path("away")).unwrap();
    place.write("ar", "");
    place.run(&["put", "d", "two", "v", "--archive", "ar"]).fails(2, &["ar is not a directory"]);
    // A program notices that when it closes the database.
    let options = Options::default().log_archive(place.path("ar"));
    let database = Database::open(place.path("d"), &options).unwrap();
    database.table("main").unwrap().put(b"two", b"v").unwrap();
    let error = database.close().unwrap_err().to_string();
    assert!(error.contains("Nothing is lost"), "{error}");
    std::fs::remove_file(place.path("ar")).unwrap();
    std::fs::rename(place.path("away"), place.path("ar")).unwrap();
    let files = || {
        let mut all = vec![(place.path("d"), std::fs::read(place.path("d")).unwrap())];
        for file in std::fs::read_dir(place.path("d-log")).unwrap() {
            let path = file.unwrap().path();
            all.push((path.clone(), std::fs::read(path).unwrap()));
        }
        all.sort();
        all
    };
    let before = files();
    let reading = [
        &["get", "d", "two"][..],
        &["scan", "d"],
        &["tables", "d", "--sizes"],
        &["stat", "d"],
        &["verify", "d"],
        &["dump", "d"],
    ];
    for command in reading {
        let run = place.run(command);
        assert!(
            run.err.contains("was done again in memory") && run.err.contains("`vellum recover`"),
            "{run:?}"
        );
        run.ok();
        assert!(!place.run(&[command, &["--quiet"]].concat()).err.contains("in memory"));
        assert!(files() == before, "{command:?} has changed a file");
    }
    place.run(&["recover", "d", "--archive", "ar"]).ok();
    place.run(&["put", "d", "three", "v", "--archive", "ar"]).ok();
    place.run(&["restore", "full", "r", "--archive", "ar"]).ok();
    assert_eq!(place.run(&["scan", "r", "--keys"]).ok(), "one\nthree\ntwo\nzero\n");
    // Options may come anywhere.
    place.run(&["restore", "--archive", "ar", "full", "first"]).ok();
    place.run(&["restore", "full", "--archive", "ar", "between"]).ok();
    assert_eq!(place.run(&["scan", "between", "--keys"]).ok(), "one\nthree\ntwo\nzero\n");
    for command in [&["restore", "full"][..], &["restore", "--archive", "ar", "full"]] {
        place.run(command).fails(2, &["only one file is named"]);
    }
}

#[test]
fn a_log_is_beside_the_file_to_which_a_link_leads() {
    let place = Place::new();
    filled(&place);
    let options = Options::default().background_checkpoints(false);
    let database = Database::open(place.path("d"), &options).unwrap();
    database.table("main").unwrap().put(b"last", b"word").unwrap();
    place.write("directory/empty", "");
    std::fs::create_dir(place.path("directory/crashed-log")).unwrap();
    std::fs::copy(place.path("d"), place.path("directory/crashed")).unwrap();
    for file in std::fs::read_dir(place.path("d-log")).unwrap() {
        let file = file.unwrap();
        let copy = place.path("directory/crashed-log").join(file.file_name());
        std::fs::copy(file.path(), copy).unwrap();
    }
    std::os::unix::fs::symlink("directory/crashed", place.path("first")).unwrap();
    std::os::unix::fs::symlink(place.path("first"), place.path("link")).unwrap();
    assert_eq!(Database::log_path(place.path("link")), place.path("directory/crashed-log"));
    assert_eq!(place.run(&["get", "link", "last"]).ok(), "word");
    place.run(&["put", "link", "last", "words"]).ok();
    assert_eq!(place.run(&["get", "directory/crashed", "last"]).ok(), "words");
    assert!(!place.path("link-log").exists() && !place.path("first-log").exists());
    drop(database);
}

#[test]
fn wrong_things_are_refused_with_what_to_do() {
    let place = Place::new();
    filled(&place);
    place.run(&["backup", "nothing", "b"]).fails(6, &["there is no file nothing"]);
    place.run(&["backup", "d", "no/such/place"]).fails(6, &["no/such/place"]);
    place.run(&["backup", "d"]).fails(2, &["BACKUP"]);
    for directory in ["x/", "x/.", "."] {
        place.run(&["backup", "d", directory]).fails(2, &["name of a directory"]);
        place.run(&["restore", "lines", directory]).fails(2, &["name of a directory"]);
    }
    assert!(!place.path("x").exists());
    place.run(&["backup", "d", "d"]).fails(2, &["d is there already", "overwrites nothing"]);
    place.run(&["backup", "d", "lines"]).fails(2, &["lines is there already"]);
    place.run(&["backup", "d", "full"]).ok();
    place.run(&["put", "d", "k", "1"]).ok();
    place.run(&["backup", "d", "one", "--since", "full"]).ok();
    place.run(&["put", "d", "k", "2"]).ok();
    place.run(&["backup", "d", "two", "--since", "one"]).ok();
    // A backup taken for a database, and the other way round.
    for command in [&["get", "full", "k"][..], &["verify", "full"], &["backup", "full", "b"]] {
        place.run(command).fails(3, &["full is a backup", "vellum restore", "Backup::restore"]);
    }
    place.run(&["restore", "d", "r"]).fails(3, &["cannot use d", "not a backup", "vellum backup"]);
    place.run(&["restore", "full", "d"]).fails(2, &["d is there already", "another place"]);
    place.run(&["restore", "full"]).fails(2, &["DATABASE"]);
    std::fs::create_dir(place.path("directory")).unwrap();
    for command in [&["restore", "directory", "r"][..], &["backup", "d", "b", "--since", "directory"]] {
        let run = place.run(command);
        assert!(!run.err.contains("import"), "{}", run.err);
        run.fails(2, &["directory is a directory, and a backup is one file"]);
    }
    // Increments without what they follow on, or out of order.
    place.run(&["restore", "one", "r"]).fails(2, &["is an increment", "name the full backup first"]);
    place.run(&["restore", "full", "two", "r"]).fails(2, &["backup 2 does not follow", "in the order"]);
    place.run(&["restore", "full", "two", "one", "r"]).fails(2, &["backup 2 does not follow"]);
    place.run(&["restore", "full", "full", "r"]).fails(2, &["it is a full backup"]);
    place.run(&["restore", "full", "one", "two", "r"]).ok();
    assert_eq!(place.run(&["get", "r", "k"]).ok(), "2");
    // What was restored is another database, and so is what is made anew.
    place.run(&["backup", "r", "b", "--since", "two"]).fails(2, &["of another database", "--since"]);
    place.run(&["put", "other", "k", "v"]).ok();
    place.run(&["backup", "other", "b", "--since", "full"]).fails(2, &["of another database"]);
    place.run(&["backup", "other", "foreign"]).ok();
    place.run(&["restore", "full", "foreign", "r2"]).fails(2, &["it is a full backup"]);
    // Cut off while it was copied.
    let bytes = std::fs::read(place.path("full")).unwrap();
    place.write("cut", &bytes[..bytes.len() / 2]);
    place.run(&["restore", "cut", "r2"]).fails(3, &["cannot use cut", "not whole"]);
    assert!(!place.path("r2").exists() && !place.path("b").exists());
}

#[test]
fn what_has_the_name_of_an_unfinished_file_is_left_alone() {
    let place = Place::new();
    filled(&place);
    place.run(&["put", "other", "k", "v"]).ok();
    place.run(&["backup", "d", "full"]).ok();
    let [of_backup, of_database] = ["full", "d"].map(|file| std::fs::read(place.path(file)).unwrap());
    let (blank, cut_off) = ([vec![], vec![0; 10_000]], of_backup[..4096].to_vec());
    for (command, left) in
        [(&["backup", "d", "made"][..], Some(&cut_off)), (&["restore", "full", "made"], None)]
    {
        let unfinished = place.path("made.unfinished");
        for contents in [b"precious\n".to_vec(), noise(1, 10_000), of_backup.clone(), of_database.clone()] {
            place.write("made.unfinished", &contents);
            place.run(command).fails(2, &["made.unfinished is there already", "move it away"]);
            assert!(std::fs::read(&unfinished).unwrap() == contents);
            std::fs::remove_file(&unfinished).unwrap();
        }
        for target in ["other", "lines", "nothing"] {
            std::os::unix::fs::symlink(target, &unfinished).unwrap();
            place.run(command).fails(2, &["made.unfinished is there already"]);
            std::fs::remove_file(&unfinished).unwrap();
        }
        assert_eq!(place.run(&["get", "other", "k"]).ok(), "v");
        assert!(!place.path("nothing").exists() && !place.path("made").exists());
        // What an interrupted attempt leaves is replaced.
        for contents in blank.iter().chain(left) {
            place.write("made.unfinished", contents);
            place.run(command).ok();
            assert!(!unfinished.exists());
            std::fs::remove_file(place.path("made")).unwrap();
        }
    }
}

#[test]
fn a_process_that_may_have_few_files_open_is_told_that_and_leaves_nothing() {
    let place = Place::new();
    filled(&place);
    let program = env!("CARGO_BIN_EXE_vellum");
    let mut codes = Vec::new();
    // From one with which the database can be looked at to one with which all can be done.
    for files in 6..=16 {
        let name = format!("backup-{files}");
        let run = place.shell(&format!("ulimit -n {files}; exec {program} backup d {name}"));
        codes.push(run.code);
        let is_whole = run.code == Some(0) || run.err.contains("is there and whole");
        assert_eq!(place.path(&name).exists(), is_whole, "{files}: {run:?}");
        if run.code != Some(0) {
            run.fails(6, &["Too many open files"]);
        }
        assert!(!place.path(&format!("{name}.unfinished")).exists(), "{files}");
    }
    assert!(codes.contains(&Some(6)) && codes.contains(&Some(0)), "{codes:?}");
}

#[test]
fn what_is_damaged_is_named_and_the_rest_is_saved() {
    let place = Place::new();
    filled(&place);
    place.run(&["recover", "d"]).ok();
    let said = place.run(&["recover", "d", "--report"]).ok();
    assert!(
        said.contains("needs no recovery") && said.contains("all of whose entries can be read"),
        "{said}"
    );
    place.run(&["recover", "nothing", "--report"]).fails(6, &["there is no file nothing"]);
    place.run(&["recover", "lines", "--report"]).fails(3, &["not a Vellum file"]);
    // The last leaf that was loaded.
    let mut bytes = std::fs::read(place.path("d")).unwrap();
    let at = bytes
        .windows(9)
        .rposition(|window| window == b"key-02999")
        .or_else(|| bytes.windows(10).rposition(|window| window == b"value 2999"));
    bytes[at.unwrap()] ^= 1;
    place.write("d", &bytes);
    place.run(&["recover", "d", "--report"]).fails(3, &["was not changed", "--salvage", "vellum load"]);
    let run = place.run(&["recover", "d", "--report", "--json"]);
    let said = String::from_utf8(run.out).unwrap();
    let lost: serde_json::Value = serde_json::from_str(said.lines().nth(1).unwrap()).unwrap();
    assert_eq!((lost["kind"].as_str(), lost["table"].as_str()), (Some("lost"), Some("main")), "{said}");
    place.run(&["backup", "d", "b"]).fails(3, &["is damaged", "page"]);
    let run = place.shell(&format!("{} scan d --salvage > saved", env!("CARGO_BIN_EXE_vellum")));
    run.fails(3, &["lost: table \"main\", keys after", "is lost; what could be read was printed"]);
    place.run(&["load", "new", "saved"]).ok();
    let saved = place.run(&["scan", "new", "--full"]).ok();
    let all = std::fs::read_to_string(place.path("lines")).unwrap();
    assert!(saved.lines().count() > 2800 && saved.lines().count() < 3000);
    assert!(saved.lines().all(|line| all.contains(line)));
    assert!(std::fs::read(place.path("d")).unwrap() == bytes, "nothing was changed");
    place.run(&["scan", "d", "--salvage", "--prefix", "k"]).fails(2, &["cannot be used with"]);
}

#[test]
fn a_database_without_superblocks_is_saved() {
    let place = Place::new();
    filled(&place);
    place.run(&["recover", "d"]).ok();
    let all = place.run(&["scan", "d", "--full"]).ok();
    let mut bytes = std::fs::read(place.path("d")).unwrap();
    bytes[..8192].fill(0);
    place.write("d", &bytes);
    place.run(&["scan", "d", "--full"]).fails(3, &["not a Vellum file"]);
    let run = place.run(&["recover", "d", "--report"]);
    let said = String::from_utf8(run.out.clone()).unwrap();
    assert!(said.contains("not known") && said.contains("pages of the file were read instead"), "{said}");
    run.fails(3, &["was not changed", "--salvage"]);
    let run = place.shell(&format!("{} scan d --full --salvage > saved", env!("CARGO_BIN_EXE_vellum")));
    run.fails(3, &["were read instead", "all of the table \"main\" that was found was printed"]);
    assert_eq!(std::fs::read_to_string(place.path("saved")).unwrap(), all);
    assert!(std::fs::read(place.path("d")).unwrap() == bytes, "nothing was changed");
    // Its catalog is lost as well, which is in the first page.
    bytes[2 * 4096 + 100] ^= 1;
    place.write("d", &bytes);
    place.run(&["recover", "d", "--report"]).fails(3, &["was not changed"]);
    let run = place
        .shell(&format!("{} scan d --full --salvage --table lost-1 > saved", env!("CARGO_BIN_EXE_vellum")));
    run.fails(3, &["that was found was printed"]);
    assert_eq!(std::fs::read_to_string(place.path("saved")).unwrap(), all);
}

#[test]
fn a_database_is_restored_to_a_point_in_time() {
    let place = Place::new();
    place.run(&["put", "d", "key", "one", "--archive", "log"]).ok();
    let said = place.run(&["backup", "d", "full", "--json"]).json();
    let end_of_backup = said[0]["end"].as_u64().unwrap().to_string();
    place.run(&["put", "d", "key", "two", "--archive", "log"]).ok();
    std::thread::sleep(std::time::Duration::from_millis(20));
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let between = format!("{}.{:09}", since.as_secs(), since.subsec_nanos());
    std::thread::sleep(std::time::Duration::from_millis(20));
    place.run(&["put", "d", "key", "three", "--archive", "log"]).ok();
    let run = place.run(&["restore", "full", "then", "--archive", "log", "--until", &between]);
    assert!(run.err.contains("needs log-") && run.err.contains("of the archive"), "{}", run.err);
    assert_eq!(place.run(&["get", "then", "key"]).ok(), "two");
    let said = place.run(&["restore", "full", "now", "--archive", "log", "--json"]).json();
    let end = said[0]["end"].as_u64().unwrap_or_else(|| panic!("{said:?}")).to_string();
    assert_eq!(place.run(&["get", "now", "key"]).ok(), "three");
    place.run(&["verify", "now"]).ok();
    // The place that it has told is that before which everything is there.
    place.run(&["restore", "full", "again", "--archive", "log", "--before-lsn", &end]).ok();
    assert_eq!(place.run(&["get", "again", "key"]).ok(), "three");
    place.run(&["restore", "full", "first", "--archive", "log", "--before-lsn", &end_of_backup]).ok();
    assert_eq!(place.run(&["get", "first", "key"]).ok(), "one");
    // Targets that cannot be reached, and what makes no sense.
    let restore = |more: &[&str]| place.run(&[&["restore", "full", "r", "--archive", "log"], more].concat());
    restore(&["--until", "2001-01-01T00:00:00Z"]).fails(2, &["lies before that", "use an earlier backup"]);
    // The last one has more nanoseconds than fit into 64 bits.
    for late in ["2201-01-01T00:00:00Z", "1790000000000"] {
        restore(&["--until", late]).fails(2, &["the archive ends at", "to the end of what there is"]);
    }
    restore(&["--log", "nowhere"]).fails(6, &["there is no directory nowhere", "a log should be"]);
    std::fs::create_dir(place.path("empty")).unwrap();
    restore(&["--log", "empty"]).fails(2, &["does not go on where the archive ends", "leave it out"]);
    restore(&["--log", "full"]).fails(2, &["full is not a directory"]);
    place.run(&["restore", "full", "r", "--archive", "nowhere"]).fails(6, &["there is no directory nowhere"]);
    restore(&["--until", "yesterday"]).fails(2, &["it is not a time"]);
    restore(&["--until", &between, "--until-lsn", "7"]).fails(2, &["cannot be used with"]);
    restore(&["--before-lsn", "7", "--until-lsn", "7"]).fails(2, &["cannot be used with"]);
    restore(&["--before-lsn", "9999999999"]).fails(2, &["takes in what comes after that"]);
    place.run(&["restore", "full", "r", "--until", &between]).fails(2, &["--archive"]);
    // The archive of another database, a gap, and files that are missing.
    place
        .run(&["put", "other", "key", "value", "--archive", "log"])
        .fails(3, &["another database", "name another directory"]);
    // An archive that was forgotten leaves no gap.
    let before = std::fs::read(place.path("d")).unwrap();
    for command in [&["put", "d", "key", "four"][..], &["compact", "d"], &["recover", "d"]] {
        place.run(command).fails(2, &["the log of d is archived", "`--archive`", "`--no-archive`"]);
        place
            .run(&[command, &["--archive", "lgo"]].concat())
            .fails(2, &["the directory that was named holds nothing of it", "`--archive`", "`--no-archive`"]);
    }
    assert!(std::fs::read(place.path("d")).unwrap() == before && !place.path("d-log").exists());
    assert!(!place.path("lgo").exists());
    place.run(&["put", "d", "key", "four", "--no-archive"]).ok();
    place.run(&["put", "d", "key", "five", "--archive", "log"]).ok();
    restore(&[]).fails(6, &["the archive lacks the log from"]);
    place.run(&["restore", "full", "before", "--archive", "log", "--until", &between]).ok();
    std::fs::rename(place.path("log"), place.path("elsewhere")).unwrap();
    std::fs::create_dir(place.path("log")).unwrap();
    restore(&[]).fails(6, &["holds nothing"]);
    assert!(!place.path("r").exists() && !place.path("r.unfinished").exists());
}
