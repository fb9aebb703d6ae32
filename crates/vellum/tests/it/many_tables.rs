//! Thousands of tables that are cleared and dropped: others do not pay for what is still to be freed, and it is freed.

use crate::support::{assert_clean, database, options, pages};
use std::time::{Duration, Instant};
use vellum::{Database, Durability, Table};

fn name(number: usize) -> String {
    format!("table {number}")
}

fn create(database: &Database, count: usize) -> Vec<Table> {
    let create = |transaction: &vellum::Transaction| {
        (0..count).map(|number| transaction.create_table(name(number).as_str())).collect()
    };
    database.run(create).unwrap()
}

fn clear(database: &Database, count: usize) {
    database
        .run(|transaction| (0..count).try_for_each(|number| transaction.clear_table(&name(number))))
        .unwrap();
}

/// How long a small transaction takes, when nothing else is in its way.
fn smallest(database: &Database, table: &Table) -> Duration {
    let put = |_| {
        let begun = Instant::now();
        for number in 0..20u8 {
            database.run(|transaction| transaction.put(table, [number], b"value").map(drop)).unwrap();
        }
        begun.elapsed() / 20
    };
    (0..20).map(put).min().unwrap()
}

#[test]
fn small_transactions_do_not_look_at_thousands_of_tables_that_wait_for_a_snapshot() {
    const COUNT: usize = 3000;
    let large = options().pool_bytes(64 << 20).capacity_bytes(1 << 30).durability(Durability::Buffered);
    let (_disk, database) = database(1, &large);
    let table = database.create_table("other").unwrap();
    let tables = create(&database, COUNT);
    let snapshot = database.begin().unwrap();
    let before = smallest(&database, &table);
    clear(&database, COUNT);
    let beside = smallest(&database, &table);
    // To look at all of them takes about a hundred times as long as a small transaction.
    assert!(beside < 20 * before, "{before:?} without them, {beside:?} with them");
    drop((snapshot, tables));
}

/// Until trees that are to be freed were found by their tables, each clearing and each drop looked at those of all tables,
/// several times.
#[test]
fn a_table_is_cleared_and_dropped_as_fast_beside_thousands_that_were() {
    const COUNT: usize = 2000;
    let large = options().pool_bytes(128 << 20).capacity_bytes(1 << 30).durability(Durability::Deferred);
    let (_disk, database) = database(3, &large);
    let _other: Table = database.create_table("other").unwrap();
    let smallest = || {
        let clear = |_| {
            let begun = Instant::now();
            (0..20).for_each(|_| database.clear_table("other").unwrap());
            begun.elapsed()
        };
        (0..20).map(clear).min().unwrap()
    };
    let before = smallest();
    let tables = create(&database, COUNT);
    clear(&database, COUNT);
    let beside = smallest();
    assert!(beside < 5 * before, "{before:?} without them, {beside:?} with them");
    drop(tables);
    let snapshot = database.begin().unwrap();
    let drops = |from: usize| {
        let begun = Instant::now();
        (from..from + 100).for_each(|number| database.drop_table(&name(number)).unwrap());
        begun.elapsed()
    };
    let times: Vec<_> = (0..COUNT).step_by(100).map(drops).collect();
    let (first, last) = times.split_at(times.len() / 2);
    let (first, last) = (first.iter().min().unwrap(), last.iter().min().unwrap());
    assert!(*last < 5 * *first, "{first:?} at first, {last:?} at last");
    drop(snapshot);
    assert!(pages(&database) < 200);
    assert_clean(&database);
}

/// Handles know a table by the name that it had. As long as snapshots see another tree of it, each read of a transaction looks for
/// the present name.
#[test]
fn a_table_that_was_renamed_among_thousands_is_found_as_fast_as_another() {
    const COUNT: usize = 2000;
    let large = options().pool_bytes(64 << 20).capacity_bytes(1 << 30).durability(Durability::Deferred);
    let (_disk, database) = database(2, &large);
    let tables = create(&database, COUNT);
    let (same, renamed) = (&tables[0], &tables[1]);
    database.rename_table(renamed.name(), "another name").unwrap();
    let snapshot = database.begin().unwrap();
    for cleared in [same.name(), "another name"] {
        database.run(|transaction| transaction.clear_table(cleared)).unwrap();
    }
    let later = database.begin().unwrap();
    for transaction in [&snapshot, &later] {
        let time = |table: &Table| {
            let get = |_| {
                let begun = Instant::now();
                assert!((0..20u8).all(|key| transaction.get(table, [key]).unwrap().is_none()));
                begun.elapsed()
            };
            (0..20).map(get).min().unwrap()
        };
        let (usual, other) = (time(same), time(renamed));
        assert!(other < 10 * usual, "{usual:?} for one, {other:?} for one that was renamed");
    }
    drop((snapshot, later));
    // Conflicts name it.
    let holder = database.begin().unwrap();
    for table in [same, renamed] {
        holder.put(table, "key", "value").unwrap();
    }
    let time = |table: &Table| {
        let conflict = |_| {
            let transaction = database.begin().unwrap();
            let begun = Instant::now();
            assert!(transaction.put(table, "key", "another").is_err());
            begun.elapsed()
        };
        (0..20).map(conflict).min().unwrap()
    };
    let (usual, other) = (time(same), time(renamed));
    assert!(other < 30 * usual, "{usual:?} for a conflict, {other:?} for one of a table that was renamed");
    drop((holder, tables));
    assert_clean(&database);
}

#[test]
fn what_waits_for_snapshots_and_handles_is_freed_when_the_last_of_them_is_gone() {
    const COUNT: usize = 200;
    for order in 0..6 {
        let (_disk, database) = database(order, &options());
        let value = vec![7; 30_000];
        let first = pages(&database);
        let tables = create(&database, COUNT);
        let fill = || {
            for table in &tables {
                table.put(b"key", &value).unwrap();
            }
        };
        fill();
        let full = pages(&database);
        let old = database.begin().unwrap();
        clear(&database, COUNT);
        fill();
        let young = database.begin().unwrap();
        clear(&database, COUNT);
        let other = database.create_table("other").unwrap();
        let go_on = || {
            for number in 0..10u8 {
                other.put([number], b"value").unwrap();
            }
        };
        go_on();
        assert!(pages(&database) > full + (full - first) / 2, "the snapshots see both");
        if order % 2 == 0 {
            drop(young);
            assert!(pages(&database) < full + (full - first) / 2, "nobody sees what the second one saw");
            go_on();
            drop(old);
        } else {
            drop(old);
            assert!(pages(&database) < full + (full - first) / 2, "nobody sees what the first one saw");
            go_on();
            drop(young);
        }
        assert!(pages(&database) < first + (full - first) / 2, "roots are left, because of the handles");
        let snapshot = database.begin().unwrap();
        database
            .run(|transaction| (0..COUNT).try_for_each(|number| transaction.drop_table(&name(number))))
            .unwrap();
        let (half, rest) = tables.split_at(COUNT / 2);
        let (half, rest) = (half.to_vec(), rest.to_vec());
        drop(tables);
        match order / 2 {
            0 => {
                drop((half, rest));
                go_on();
                drop(snapshot);
            }
            1 => {
                drop(half);
                go_on();
                drop(snapshot);
                drop(rest);
            }
            _ => {
                drop(snapshot);
                go_on();
                drop((half, rest));
            }
        }
        go_on();
        drop(other);
        database.drop_table("other").unwrap();
        assert_clean(&database);
        assert!(pages(&database) <= first + 4, "{} pages, and {first} at first", pages(&database));
    }
}

#[test]
fn a_commit_of_thousands_of_new_tables_takes_no_longer_for_each() {
    let each = |count: usize| {
        let commit = |seed| {
            let large =
                options().pool_bytes(64 << 20).capacity_bytes(1 << 30).durability(Durability::Deferred);
            let (_disk, database) = database(seed, &large);
            let transaction = database.begin().unwrap();
            for number in 0..count {
                drop(transaction.create_table(&name(number)[..]).unwrap());
            }
            let begun = Instant::now();
            transaction.commit().unwrap();
            begun.elapsed()
        };
        (0..3).map(commit).min().unwrap() / count as u32
    };
    let (few, many) = (each(500), each(4000));
    assert!(many < 3 * few, "{few:?} for each of 500, {many:?} for each of 4000");
}
