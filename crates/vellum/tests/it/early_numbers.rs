//! Feeds of changes, and transactions that got their numbers long before they changed anything: their commits say that
//! they began then. There is no archive, so the log itself must have what is read again.

use std::sync::Arc;
use vellum::{Changes, ChangesFrom, Commit, Contents, Database, Event, Options, Table};
use vellum_vm::SimulatedDisk;

const SEGMENT_BYTES: u64 = 64 << 10;

fn create(seed: u64, options: Options) -> (Database, Table) {
    let options = options
        .pool_bytes(32 << 20)
        .capacity_bytes(1 << 30)
        .log_segment_bytes(SEGMENT_BYTES)
        .log_buffer_bytes(4 << 20)
        .background_checkpoints(false)
        .huge_pages(false);
    let database = Database::create_in(Arc::new(SimulatedDisk::new(seed)), "data", &options).unwrap();
    let table = database.create_table("table").unwrap();
    (database, table)
}

fn all(changes: &mut Changes) -> Vec<Commit> {
    std::iter::from_fn(|| changes.next().unwrap()).collect()
}

/// Commits more than some segments hold.
fn fill_segments(table: &Table) {
    for number in 0..400_u32 {
        table.put(number.to_be_bytes(), [7; 900]).unwrap();
    }
}

/// The keys and values that were stored.
fn stored(commit: &Commit) -> Vec<(Vec<u8>, Contents)> {
    let stored = commit.changes.iter().map(|change| match &change.event {
        Event::Inserted { key, value } | Event::Replaced { key, value } => {
            (key.clone(), value.read().unwrap())
        }
        other => panic!("{other:?}"),
    });
    stored.collect()
}

#[test]
fn a_large_transaction_is_told_though_it_began_in_a_part_of_the_log_that_was_given_up() {
    let (database, table) = create(1, Options::default());
    let mut changes = database.changes(ChangesFrom::Now).unwrap();
    let transaction = database.begin().unwrap();
    assert!(transaction.get_for_update(&table, "absent").unwrap().is_none());
    fill_segments(&table);
    assert_eq!(all(&mut changes).len(), 400);
    // More than a feed gathers.
    let expected: Vec<_> = (0..22_000_u32).map(|number| (number + 1000).to_be_bytes().to_vec()).collect();
    for (index, key) in expected.iter().enumerate() {
        transaction.put(&table, key, [9; 800]).unwrap();
        if index == 10 {
            table.put("between", "them").unwrap();
            assert_eq!(all(&mut changes).len(), 1);
        }
    }
    table.put("after", "them").unwrap();
    assert_eq!(all(&mut changes).len(), 1);
    transaction.commit().unwrap();
    database.checkpoint().unwrap();
    // Another feed at the same place needs the same.
    let mut other = database.changes(changes.position()).unwrap();
    for changes in [&mut changes, &mut other] {
        let commit = changes.next().unwrap().unwrap();
        let told: Vec<_> = stored(&commit).into_iter().map(|(key, _)| key).collect();
        assert!(told == expected, "{} of {}", told.len(), expected.len());
        assert!(changes.next().unwrap().is_none());
    }
}

#[test]
fn a_feed_goes_on_where_another_one_is_before_the_first_change_of_a_transaction() {
    let (database, table) = create(2, Options::default());
    let mut changes = database.changes(ChangesFrom::Now).unwrap();
    let transaction = database.begin().unwrap();
    transaction.remove(&table, "absent").unwrap();
    fill_segments(&table);
    assert_eq!(all(&mut changes).len(), 400);
    transaction.put(&table, "key", "value").unwrap();
    transaction.commit().unwrap();
    database.checkpoint().unwrap();
    let mut other = database.changes(changes.position()).unwrap();
    for changes in [&mut changes, &mut other] {
        let commit = changes.next().unwrap().unwrap();
        assert_eq!(stored(&commit), [(b"key".to_vec(), Contents::Value(b"value".to_vec()))]);
    }
    // Both know by now that it has ended, and neither needs that part of the log.
    let begin = changes.position();
    drop(other);
    fill_segments(&table);
    assert_eq!(all(&mut changes).len(), 400);
    database.checkpoint().unwrap();
    database.changes(begin).unwrap_err();
}

#[test]
fn the_contents_of_an_open_transaction_are_kept_after_its_changes_were_read() {
    let (database, table) = create(3, Options::default().log_whole_values(true));
    let value = |byte: u8| vec![byte; 4 * SEGMENT_BYTES as usize];
    let mut changes = database.changes(ChangesFrom::Now).unwrap();
    let transaction = database.begin().unwrap();
    transaction.put(&table, "large", value(1)).unwrap();
    table.put("between", "them").unwrap();
    assert_eq!(all(&mut changes).len(), 1);
    assert!(changes.next().unwrap().is_none());
    transaction.commit().unwrap();
    // Its place is used again.
    table.remove("large").unwrap();
    for number in 0..20_u32 {
        table.put(number.to_be_bytes(), value(2)).unwrap();
    }
    database.checkpoint().unwrap();
    let commit = changes.next().unwrap().unwrap();
    assert!(stored(&commit) == [(b"large".to_vec(), Contents::Value(value(1)))]);
}
