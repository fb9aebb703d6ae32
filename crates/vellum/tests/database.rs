//! The published interface, as a user meets it.

use std::io::Read;
use vellum::{Database, Error, ErrorKind, Options, Put};

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
    assert!(matches!(database.table("four"), Err(Error::NoSuchTable { .. })));
    let two = database.table("two").unwrap();
    assert!(matches!(database.drop_table("two"), Err(Error::TableInUse { .. })));
    assert!(matches!(database.checkpoint(), Err(Error::StillInUse { .. })));
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
    assert_eq!(collect(table.range(..).unwrap()).len(), 6);
    assert_eq!(collect(table.range("aa".."b").unwrap()), ["aa", "ab"]);
    assert_eq!(collect(table.range("aa"..="b").unwrap()), ["aa", "ab", "b"]);
    assert_eq!(collect(table.range(..="a").unwrap()), ["a"]);
    assert_eq!(collect(table.prefix("a").unwrap()), ["a", "aa", "ab"]);
    assert_eq!(collect(table.prefix("").unwrap()).len(), 6);
    assert_eq!(collect(table.range("x"..).unwrap()).len(), 0);
    let mut cursor = table.prefix("b").unwrap();
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
