//! The published interface, as a user meets it.

use std::io::Read;
use vellum::{
    Backup, Database, Durability, Error, ErrorKind, LogArchive, Options, Put, Salvage, Table, TableOptions,
    Transaction,
};

fn options() -> Options {
    Options::default().pool_bytes(1 << 20).capacity_bytes(1 << 32)
}

#[test]
fn tables_come_and_go_and_keep_what_they_hold() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let mut database = Database::create(&path, &options()).unwrap();
    for name in ["one", "two", "three"] {
        let table = database.create_table(name).unwrap();
        for number in 0..2000u64 {
            let value = format!("{name} {number}").repeat((number % 7) as usize * 40 + 1);
            assert_eq!(table.put(number.to_be_bytes(), &value).unwrap(), Put::Inserted);
        }
    }
    assert!(matches!(database.create_table("one"), Err(Error::TableExists { .. })));
    assert!(matches!(database.create_table(""), Err(Error::TableName { .. })));
    // What is said of a name is not as long as the name. It may be cut inside a character.
    let long = database.create_table(format!("{}{}", "x".repeat(99), "é".repeat(5000)).as_str()).unwrap_err();
    let name = format!("and \"{}\"... has 10099", "x".repeat(99));
    assert!(matches!(long, Error::TableName { .. }) && long.to_string().ends_with(&name), "{long}");
    assert!(matches!(database.table("four"), Err(Error::NoSuchTable { .. })));
    let two = database.table("two").unwrap();
    assert!(matches!(database.drop_table("two"), Err(Error::TableInUse { .. })));
    assert!(matches!(database.close_in_place(), Err(Error::StillInUse { .. })));
    database.checkpoint().unwrap();
    drop(two);
    database.drop_table("two").unwrap();
    database.checkpoint().unwrap();
    database.close().unwrap();

    let database = Database::open(&path, &options().read_only(true)).unwrap();
    let names: Vec<_> = database.tables().unwrap().into_iter().map(|table| table.name).collect();
    assert_eq!(names, ["one", "three"]);
    let table = database.table("three").unwrap();
    for number in 0..2000u64 {
        let value = format!("three {number}").repeat((number % 7) as usize * 40 + 1);
        assert_eq!(table.get(number.to_be_bytes()).unwrap().unwrap(), value.as_bytes());
    }
    assert_eq!(table.put("x", "y").unwrap_err().kind(), ErrorKind::ReadOnly);
    let report = database.verify(|_| {});
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!(report.tables.len(), 2);
}

#[test]
fn a_value_larger_than_the_pool_is_stored_and_read_in_parts() {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::create(directory.path().join("database"), &options()).unwrap();
    let table = database.create_table("large").unwrap();
    let contents: Vec<u8> = (0..5_000_000u32).map(|index| (index ^ index >> 11) as u8).collect();
    table.put_from("key", contents.len() as u64, &mut &contents[..]).unwrap();
    assert_eq!(table.value("key").unwrap_err().kind(), ErrorKind::OutOfMemory);
    let mut read = Vec::new();
    table.reader("key").unwrap().unwrap().read_to_end(&mut read).unwrap();
    assert!(read == contents);
    let report = database.verify(|_| {});
    assert!(report.is_clean(), "{:?}", report.problems);
    assert!(table.remove("key").unwrap());
    let before = database.statistics().pages_allocated;
    assert!(before < 20, "the space of the value is free again, but {before} pages are allocated");
}

#[test]
fn ranges_and_prefixes_select_what_they_say() {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::create(directory.path().join("database"), &options()).unwrap();
    let table = database.create_table("words").unwrap();
    for word in ["a", "aa", "ab", "b", "ba", "c"] {
        table.put(word, word.to_uppercase()).unwrap();
    }
    let collect = |mut cursor: vellum::Cursor<'_>| {
        let mut keys = Vec::new();
        while let Some(entry) = cursor.next().unwrap() {
            keys.push(String::from_utf8(entry.key().to_vec()).unwrap());
        }
        keys
    };
    assert_eq!(collect(table.cursor(..).unwrap()).len(), 6);
    assert_eq!(collect(table.cursor("aa".."b").unwrap()), ["aa", "ab"]);
    assert_eq!(collect(table.cursor("aa"..="b").unwrap()), ["aa", "ab", "b"]);
    assert_eq!(collect(table.cursor(..="a").unwrap()), ["a"]);
    assert_eq!(collect(table.cursor(vellum::Prefix("a")).unwrap()), ["a", "aa", "ab"]);
    assert_eq!(collect(table.cursor(vellum::Prefix("")).unwrap()).len(), 6);
    assert_eq!(collect(table.cursor("x"..).unwrap()).len(), 0);
    let mut cursor = table.cursor(vellum::Prefix("b")).unwrap();
    cursor.seek("bb").unwrap();
    assert!(cursor.next().unwrap().is_none());
    assert_eq!(cursor.previous().unwrap().unwrap().key(), b"ba");
    assert_eq!(cursor.previous().unwrap().unwrap().key(), b"b");
    assert!(cursor.previous().unwrap().is_none());
}

#[test]
fn a_database_that_is_dropped_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let table = Database::create(&path, &options()).unwrap().create_table("t").unwrap();
    table.put("k", "v").unwrap();
    let other = Database::open(&path, &options());
    assert_eq!(other.unwrap_err().kind(), ErrorKind::Busy);
    drop(table);
    let database = Database::open(&path, &options()).unwrap();
    assert_eq!(database.table("t").unwrap().get("k").unwrap().unwrap(), b"v");
}

#[test]
fn what_fits_into_no_pool_is_copied_all_the_same_or_named() {
    let directory = tempfile::tempdir().unwrap();
    for (pool_bytes, bytes) in
        [(64 << 10, 50_000), (64 << 10, 60_000), (64 << 10, 300_000), (1 << 20, 5_000_000)]
    {
        let path = directory.path().join(format!("{pool_bytes} {bytes}"));
        let database = Database::create(path, &options().pool_bytes(pool_bytes)).unwrap();
        let table = database.create_table("large").unwrap();
        let contents: Vec<u8> = (0..bytes).map(|index: u32| (index ^ index >> 11) as u8).collect();
        table.put("small", "s").unwrap();
        table.put("key", &contents).unwrap();
        for _ in 0..3 {
            assert!(table.get("key").unwrap().unwrap() == contents, "{bytes} of {pool_bytes}");
        }
        let mut target = vec![1, 2, 3];
        assert!(table.get_into("key", &mut target).unwrap() && target == contents);
        let several = table.multi_get(&["small", "key", "none"]);
        let several: Vec<_> = several.into_iter().collect::<Result<_, _>>().unwrap();
        assert!(several == [Some(b"s".to_vec()), Some(contents.clone()), None]);
        match table.value("key") {
            Ok(value) => assert!(value.unwrap()[..] == contents),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::OutOfMemory);
                let message = error.to_string();
                for word in ["\"key\"", &bytes.to_string(), &pool_bytes.to_string(), "Table::reader"] {
                    assert!(message.contains(word), "{word:?} is not in {message:?}");
                }
            }
        }
        assert_eq!(table.get("small").unwrap().as_deref(), Some(&b"s"[..]));
    }
}

#[test]
fn a_database_is_created_where_a_creation_was_interrupted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    for left_behind in [vec![], vec![0; 8192]] {
        std::fs::write(&path, &left_behind).unwrap();
        assert_eq!(Database::open(&path, &options()).unwrap_err().kind(), ErrorKind::Incompatible);
        let database = Database::open_or_create(&path, &options()).unwrap();
        assert!(database.was_created());
        database.create_table("t").unwrap().put("k", "v").unwrap();
        database.close().unwrap();
        let database = Database::open_or_create(&path, &options()).unwrap();
        assert!(!database.was_created());
        assert_eq!(database.table("t").unwrap().get("k").unwrap().as_deref(), Some(&b"v"[..]));
    }
}

#[test]
fn what_is_waited_for_is_durable() {
    let directory = tempfile::tempdir().unwrap();
    let options = options().durability(Durability::Buffered);
    let database = Database::create(directory.path().join("d"), &options).unwrap();
    let table = database.create_table("t").unwrap();
    for number in 0..20_u8 {
        database.sync().unwrap();
        // The next record lies just there.
        let place = database.durable_horizon().unwrap();
        table.put([number], "value").unwrap();
        database.wait_until_durable(place).unwrap();
        assert!(database.durable_horizon().unwrap() > place);
        let transaction = database.begin().unwrap();
        transaction.put(&table, [number], "another").unwrap();
        let arrival = transaction.commit_async().unwrap().unwrap();
        let commit = arrival.lsn();
        arrival.wait().unwrap();
        database.wait_until_durable(commit).unwrap();
        assert!(database.durable_horizon().unwrap() > commit);
    }
    drop(table);
    database.close().unwrap();
    let database = Database::open(directory.path().join("d"), &options.clone().read_only(true)).unwrap();
    assert!(database.durable_horizon().is_none());
    let refused = [
        database.sync(),
        database.checkpoint(),
        database.wait_until_durable(vellum::Lsn(0)),
        database.changes(vellum::ChangesFrom::Now).map(drop),
        database.rename_table("t", "u"),
    ];
    for refused in refused {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ReadOnly);
    }
    drop(database);
    let database = Database::open(directory.path().join("d"), &options.log(false)).unwrap();
    assert!(matches!(database.wait_until_durable(vellum::Lsn(0)), Err(Error::WithoutLog)));
}

#[test]
fn ranges_are_removed_at_one_moment_and_of_plain_tables_one_by_one() {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::create(directory.path().join("d"), &options()).unwrap();
    let versions = database.create_table("versions").unwrap();
    let plain = database.create_table_with("plain", TableOptions::default().versions(false)).unwrap();
    let keys =
        |table: &Table| -> Vec<u8> { table.range(..).unwrap().map(|entry| entry.unwrap().0[0]).collect() };
    for table in [&versions, &plain] {
        (0..100_u8).for_each(|key| _ = table.put([key], "value").unwrap());
        assert_eq!(table.remove_range([10]..[90]).unwrap(), 80);
        assert_eq!(table.remove_range([10]..[90]).unwrap(), 0);
        assert_eq!(table.remove_range(..=[0]).unwrap(), 1);
        assert_eq!(table.remove_range([95]..).unwrap(), 5);
        assert_eq!(keys(table), (1..10).chain(90..95).collect::<Vec<_>>());
    }
    // An open transaction sees all or nothing of it, and keeps it from what it has changed.
    let snapshot = database.begin().unwrap();
    assert_eq!(versions.remove_range([5]..).unwrap(), 10);
    assert_eq!(snapshot.count(&versions, ..).unwrap(), 14);
    database.rename_table("versions", "renamed").unwrap();
    assert_eq!(keys(&database.table("renamed").unwrap()), [1, 2, 3, 4]);
}

/// Uses a database when the thread ends.
struct AtTheEnd {
    table: Table,
    database: Database,
    transactions: Vec<Transaction>,
}

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        let Self { table, database, transactions } = self;
        transactions.pop().unwrap().commit().unwrap();
        transactions.pop().unwrap().rollback().unwrap();
        transactions.clear();
        table.put("b", "2").unwrap();
        table.modify("b", |value| value[0] += 1).unwrap();
        database.run(|transaction| transaction.put(table, "c", "3").map(drop)).unwrap();
        assert_eq!(
            table.range(..).unwrap().map(|entry| entry.unwrap().1).collect::<Vec<_>>(),
            [b"1", b"3", b"3"]
        );
        database.compact(|_| true).unwrap();
        database.sync().unwrap();
    }
}

#[test]
fn a_thread_that_ends_can_use_the_database_in_its_last_moments() {
    thread_local! {
        static HELD: std::cell::RefCell<Option<AtTheEnd>> = const { std::cell::RefCell::new(None) };
    }
    let directory = tempfile::tempdir().unwrap();
    let database = Database::create(directory.path().join("d"), &options()).unwrap();
    let table = database.create_table("table").unwrap();
    let held = AtTheEnd { table: table.clone(), database: database.clone(), transactions: Vec::new() };
    let thread = std::thread::spawn(move || {
        // What a thread has used first goes last: all that Vellum keeps for it is gone then.
        HELD.with_borrow_mut(|own| {
            let held = own.insert(held);
            held.database.run(|transaction| transaction.put(&held.table, "c", "0").map(drop)).unwrap();
            held.table.modify("c", |value| value[0] += 1).unwrap();
            held.table.range(..).unwrap().for_each(|entry| drop(entry.unwrap()));
            held.transactions.extend((0..3).map(|_| held.database.begin().unwrap()));
            for (transaction, key) in held.transactions.iter().zip(["x", "y", "a"]) {
                transaction.put(&held.table, key, "1").unwrap();
            }
        });
    });
    thread.join().unwrap();
    assert_eq!(table.get("c").unwrap(), Some(b"3".to_vec()));
    assert_eq!(database.history().open, 0);
    drop(table);
    database.close().unwrap();
}

#[test]
fn what_a_program_holds_can_be_shown_for_debugging() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name| directory.path().join(name);
    let given = options().log_archive(path("archive"));
    assert!(format!("{given:?}").contains("pool_bytes"), "{given:?}");
    let database = Database::create(path("data"), &given).unwrap();
    let table = database.create_table("table").unwrap();
    table.put("key", "value").unwrap();
    assert_eq!(format!("{:?}", table.cursor(..).unwrap()), "cursor");
    let mut cursor = table.cursor(..).unwrap();
    assert_eq!(format!("{:?}", cursor.next().unwrap().unwrap()), "entry \"key\" of 5 bytes");
    assert_eq!(format!("{:?}", table.reader("key").unwrap().unwrap()), "reader at 0 of 5 bytes");
    let empty = database.create_table("empty").unwrap();
    assert_eq!(format!("{:?}", empty.bulk_loader().unwrap()), "load of table \"empty\"");
    assert_eq!(format!("{:?}", database.create_heap("heap").unwrap()), "heap \"heap\"");
    database.backup(path("backup")).unwrap();
    let backup = Backup::open(path("backup")).unwrap();
    assert!(format!("{backup:?}").starts_with("full backup of "), "{backup:?}");
    database.archive_log().unwrap();
    let archive = LogArchive::open(path("archive"), &backup).unwrap();
    assert_eq!(format!("{archive:?}"), format!("archive of a log in {} files", archive.parts().len()));
    assert!(Backup::open(path("nowhere")).unwrap_err().to_string().contains("nowhere"));
    let nowhere = Salvage::open(path("nowhere"), &options()).unwrap_err();
    assert_eq!(nowhere.kind(), ErrorKind::NotFound, "{nowhere}");
}

#[test]
fn a_database_in_a_directory_that_does_not_exist_is_refused_with_a_question() {
    let directory = tempfile::tempdir().unwrap();
    let (made_in, path) = (directory.path().join("none"), directory.path().join("none/database"));
    for refused in [Database::create(&path, &options()), Database::open_or_create(&path, &options())] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let question = format!("Is there a directory {}?", made_in.display());
        assert!(error.to_string().ends_with(&question), "{error}");
    }
    let error = Database::open(&path, &options()).unwrap_err();
    assert!(!error.to_string().contains("Is there"), "{error}");
}
