//! The values of the keys of an iterator, beside changes, and beyond memory.

use crate::support::*;
use std::{cell::Cell, collections::BTreeMap};
use vellum::{Database, Error, ErrorKind, IsolationLevel, Table, TableName, TransactionOptions};
use vellum_vm::FileOperation;

const TEXTS: TableName<u32, str> = TableName::new("texts");

fn value(number: u32) -> String {
    let length = if number.is_multiple_of(211) { 9000 } else { number as usize % 700 };
    format!("{number:>length$}")
}

/// A database, a table of it, and what that holds.
fn filled(directory: &tempfile::TempDir) -> (Database, Table<u32, str>, BTreeMap<u32, String>) {
    let database = Database::create(directory.path().join("d"), &options()).unwrap();
    let table = database.create_table(TEXTS).unwrap();
    let model: BTreeMap<_, _> = (0..6000).step_by(2).map(|number| (number, value(number))).collect();
    for (number, text) in &model {
        table.put(*number, text).unwrap();
    }
    (database, table, model)
}

#[test]
fn each_key_comes_with_its_value_in_order_while_others_change() {
    let directory = tempfile::tempdir().unwrap();
    let (database, table, model) = filled(&directory);
    // 3 MiB in a pool of 1 MiB.
    database.checkpoint().unwrap();
    let numbers = || (0..9000u32).map(|step| step.wrapping_mul(6151) % 6200);
    let read_before = database.statistics().pages_read;
    let mut shown = 0u32;
    for (number, (found, text)) in numbers().zip(table.lookups(numbers())) {
        assert_eq!((found, text.unwrap()), (number, model.get(&number).cloned()));
        shown += 1;
        if shown.is_multiple_of(7) {
            // Others than those that are asked for.
            table.put(10_000 + shown, value(shown)).unwrap();
        }
    }
    assert_eq!(shown, 9000);
    assert!(database.statistics().pages_read > read_before + 1000, "nothing came from the file");
    // Of no keys, and of none of the table.
    assert_eq!(table.lookups([0; 0]).count(), 0);
    assert!(table.lookups([1, 7001]).all(|(_, text)| text.unwrap().is_none()));
    assert_clean(&database);
}

#[test]
fn keys_are_taken_only_as_far_ahead_as_lookups_overlap() {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::create(directory.path().join("d"), &options().read_depth(8)).unwrap();
    let table = database.create_table("t").unwrap();
    for number in 0..4000u32 {
        table.put(number.to_be_bytes(), vec![7; 900]).unwrap();
    }
    database.checkpoint().unwrap();
    let taken = Cell::new(0);
    let numbers = (0..4000u32).map(|step| {
        taken.set(step + 1);
        (step.wrapping_mul(2999) % 4000).to_be_bytes()
    });
    for (shown, (_, found)) in table.lookups(numbers).enumerate() {
        assert!(found.unwrap().is_some());
        assert!(taken.get() as usize <= shown + 64, "{} are taken when {shown} are shown", taken.get());
    }
    assert_eq!(taken.get(), 4000);
}

#[test]
fn each_lookup_has_its_own_error() {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::create(directory.path().join("d"), &options()).unwrap();
    let table = database.create_table("t").unwrap();
    // Larger than the pool, and read past it.
    let large: Vec<u8> = (0..3u32 << 20).map(|place| (place / 7) as u8).collect();
    table.put("large", &large).unwrap();
    table.put("lime", "green").unwrap();
    let keys = [b"lime".to_vec(), vec![b'x'; 2000], b"large".to_vec(), b"none".to_vec(), b"lime".to_vec()];
    let found: Vec<_> = table.lookups(keys.iter().map(Vec::as_slice)).map(|(_, value)| value).collect();
    assert!(matches!(&found[1], Err(Error::Access(_))), "{:?}", found[1]);
    let found: Vec<_> = found.into_iter().map(Result::ok).collect();
    assert_eq!(found[0], Some(Some(b"green".to_vec())));
    assert!(found[2] == Some(Some(large)), "a value that is larger than the pool");
    assert_eq!(found[3..], [Some(None), found[0].clone()]);
    // The table goes away under lookups that are under way.
    let mut lookups = table.lookups(std::iter::repeat("lime"));
    assert_eq!(lookups.next().unwrap().1.unwrap(), Some(b"green".to_vec()));
    database.clear_table("t").unwrap();
    let after = lookups.by_ref().skip(100).take(100).filter(|(_, found)| matches!(found, Ok(None))).count();
    assert_eq!(after, 100, "nothing is found any more");
}

#[test]
fn a_transaction_is_shown_one_moment_and_its_own_changes() {
    let directory = tempfile::tempdir().unwrap();
    let (database, table, mut model) = filled(&directory);
    let transaction = database.begin().unwrap();
    for number in (0..6000).step_by(5) {
        transaction.put(&table, number, value(number + 1)).unwrap();
        model.insert(number, value(number + 1));
    }
    assert!(transaction.remove(&table, 2).unwrap());
    model.remove(&2);
    database.checkpoint().unwrap();
    let read_before = database.statistics().pages_read;
    let numbers = || (0..9000u32).map(|step| step.wrapping_mul(6151) % 6200);
    for (number, (found, text)) in numbers().zip(transaction.lookups(&table, numbers()).unwrap()) {
        assert_eq!((found, text.unwrap()), (number, model.get(&number).cloned()));
        // Others change, and remove, what they may.
        let other = number.wrapping_mul(17) % 6000;
        if other % 5 > 0 && other != 2 {
            if other.is_multiple_of(3) {
                table.remove(other).unwrap();
            } else {
                table.put(other, "later").unwrap();
            }
        }
    }
    assert!(database.statistics().pages_read > read_before + 1000, "nothing came from the file");
    transaction.commit().unwrap();
    assert_clean(&database);
}

#[test]
fn a_serializable_transaction_has_read_the_keys_whose_values_were_shown() {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::create(directory.path().join("d"), &options()).unwrap();
    let (table, other) = (database.create_table(TEXTS).unwrap(), database.create_table("other").unwrap());
    let serializable = TransactionOptions::default().isolation(IsolationLevel::Serializable);
    table.put(3, "three").unwrap();
    for (changed, is_read) in [(3, true), (4, true), (5, false)] {
        let transaction = database.begin_with(serializable).unwrap();
        let mut lookups = transaction.lookups(&table, 3..6).unwrap();
        // The last one is taken ahead, and not shown.
        assert_eq!(lookups.by_ref().take(2).filter(|(_, text)| text.is_ok()).count(), 2);
        drop(lookups);
        table.put(changed, "changed").unwrap();
        transaction.put(&other, "key", "value").unwrap();
        let committed = transaction.commit();
        assert_eq!(matches!(committed, Err(Error::Conflict { .. })), is_read, "{changed}: {committed:?}");
    }
}

#[test]
fn a_transaction_that_is_over_says_so_with_each_key() {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::create(directory.path().join("d"), &options()).unwrap();
    let table = database.create_table(TEXTS).unwrap();
    let transaction = database.begin().unwrap();
    let mut lookups = transaction.lookups(&table, 0..5).unwrap();
    assert!(lookups.next().unwrap().1.unwrap().is_none());
    table.put(1, "another's").unwrap();
    transaction.put(&table, 1, "mine").unwrap_err();
    let (keys, ends): (Vec<_>, Vec<_>) = lookups.unzip();
    assert_eq!(keys, [1, 2, 3, 4]);
    assert!(ends.iter().all(|end| matches!(end, Err(Error::Ended))), "{ends:?}");
    assert!(matches!(transaction.lookups(&table, 0..5).err(), Some(Error::Ended)));
}

/// Such a value is read past the pool. What fails then is the device, and not the pool.
#[test]
fn a_value_larger_than_the_pool_that_cannot_be_read_says_why() {
    let (disk, database) = database(1, &options().pool_bytes(64 << 10));
    let table = database.create_table(TEXTS).unwrap();
    table.put(1, "x".repeat(400_000)).unwrap();
    database.checkpoint().unwrap();
    let transaction = database.begin().unwrap();
    let all = |number: usize| match number {
        0 => table.multi_get(&[1]).remove(0),
        1 => transaction.multi_get(&table, &[1]).unwrap().remove(0),
        2 => table.lookups([1]).next().unwrap().1,
        _ => transaction.lookups(&table, [1]).unwrap().next().unwrap().1,
    };
    for number in 0..4 {
        assert_eq!(all(number).unwrap().unwrap().len(), 400_000);
        disk.fail_from_of(FileOperation::Read, 1);
        let failed = all(number).unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Io, "{number}: {failed:?}");
        disk.heal();
    }
}

/// Keys are looked up in advance. What comes from a tree that the transaction has then replaced was read there: if another
/// one has changed it since, this one did not happen after that.
#[test]
fn what_was_looked_up_before_the_table_was_cleared_counts_as_read() {
    for (is_changed, clears) in [(true, 1), (true, 2), (false, 1)] {
        let (_disk, database) = database(12, &options());
        let [table, other] = ["table", "other"].map(|name| database.create_table(name).unwrap());
        for key in 0..40_u8 {
            table.put([key], "old").unwrap();
        }
        let serializable = TransactionOptions::default().isolation(IsolationLevel::Serializable);
        let transaction = database.begin_with(serializable).unwrap();
        let mut lookups = transaction.lookups(&table, (0..40_u8).map(|key| [key])).unwrap();
        assert_eq!(lookups.next().unwrap().1.unwrap().as_deref(), Some(&b"old"[..]));
        let changed = if is_changed { 1 } else { 39 };
        database.run(|writer| writer.put(&table, [changed], "new")).unwrap();
        let mut seen = None;
        for _ in 0..clears {
            transaction.clear_table("table").unwrap();
            seen = seen.or(lookups.next().unwrap().1.unwrap());
        }
        drop(lookups);
        transaction.put(&other, "seen", seen.clone().unwrap_or_default()).unwrap();
        let committed = transaction.commit();
        assert!(seen.is_some(), "it was looked up in advance");
        assert_eq!(committed.is_err(), is_changed, "{committed:?}");
    }
}
