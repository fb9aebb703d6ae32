//! Using a database inside a change of one of its values: a panic in debug builds, where it would wait for itself.
#![cfg(debug_assertions)]

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vellum::objects::{Heap, Persistent, Ref};
use vellum::{BackupOptions, Database, Options, Table};
use vellum_vm::SimulatedDisk;

struct Place {
    _directory: tempfile::TempDir,
    database: Database,
    table: Table,
    other: Table,
    heap: Heap,
    number: Ref<Number>,
}

#[derive(Persistent)]
struct Number(u64);

fn place() -> Place {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::default().pool_bytes(1 << 20).capacity_bytes(1 << 30);
    let database = Database::create(directory.path().join("database"), &options).unwrap();
    let (table, other) = (database.create_table("t").unwrap(), database.create_table("u").unwrap());
    for key in ["a", "b"] {
        table.put(key, [0]).unwrap();
        other.put(key, [0]).unwrap();
        table.put(format!("large {key}"), vec![0; 100_000]).unwrap();
    }
    let heap = database.create_heap("h").unwrap();
    let number = heap.allocate(&Number(0)).unwrap();
    Place { _directory: directory, database, table, other, heap, number }
}

/// What a change said when it panicked.
fn panic_of(change: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(change)).expect_err("it should have panicked");
    match panic.downcast::<String>() {
        Ok(said) => *said,
        Err(panic) => (*panic.downcast_ref::<&str>().unwrap()).to_owned(),
    }
}

#[test]
fn every_use_inside_a_change_is_a_panic() {
    let uses: &[fn(&Place)] = &[
        |place| drop(place.table.get("a")),
        |place| drop(place.table.get("b")),
        |place| drop(place.other.get("a")),
        |place| drop(place.table.put("c", "d")),
        |place| drop(place.table.remove("b")),
        |place| drop(place.table.reader("large a")),
        |place| drop(place.table.modify("b", |_| ())),
        |place| drop(place.table.multi_get(&["a"])),
        |place| drop(place.table.cursor(..)),
        |place| drop(place.table.bulk_loader()),
        |place| drop(place.table.submissions()),
        |place| drop(place.database.tables()),
        |place| drop(place.database.create_table("v")),
        |place| drop(place.database.table("u")),
        |place| drop(place.database.checkpoint()),
        |place| drop(place.database.sync()),
        |place| {
            let target = Arc::new(SimulatedDisk::new(1));
            drop(place.database.backup_in(target, "backup", BackupOptions::default()));
        },
        |place| drop(place.heap.get(place.number)),
        |place| drop(place.heap.update(place.number, |number: &mut Number| number.0 += 1)),
        |place| drop(place.heap.allocate(&Number(1))),
        |place| drop(place.heap.for_each::<Number>(|_| Ok(true))),
    ];
    for (number, use_it) in uses.iter().enumerate() {
        for key in ["a", "large a"] {
            let place = place();
            let said = panic_of(|| drop(place.table.modify(key, |_| use_it(&place))));
            assert!(said.contains("uses the same database"), "use {number}: {said}");
            // The mark is gone with the panic.
            place.table.value_length("b").unwrap();
        }
    }
    let place = place();
    let said = panic_of(|| drop(place.table.multi_modify(&["a", "b"], |_, _| drop(place.table.get("b")))));
    assert!(said.contains("multi_modify"), "{said}");
}

#[test]
fn what_was_begun_before_must_not_be_used_inside_either() {
    let first = place();
    let mut cursor = first.table.cursor(..).unwrap();
    let said = panic_of(|| drop(first.table.modify("a", |_| drop(cursor.next()))));
    assert!(said.contains("uses the same database"), "{said}");
    let second = place();
    let mut reader = second.table.reader("large a").unwrap().unwrap();
    let said = panic_of(|| drop(second.table.modify("a", |_| drop(reader.read_at(0, &mut [0])))));
    assert!(said.contains("uses the same database"), "{said}");
}

#[test]
fn what_is_shown_where_it_lies_must_not_use_the_database() {
    let place = place();
    let mut cursor = place.table.cursor(..).unwrap();
    let said = panic_of(|| {
        let _ = cursor.scan(|_| ControlFlow::Break(place.table.put("a", [1])));
    });
    assert!(said.contains("or `scan`"), "{said}");
    // The latch is gone with the panic, and the cursor stands after what it showed.
    place.table.put("a", [1]).unwrap();
    let shown = cursor
        .scan(|entry| ControlFlow::Break((entry.key().to_vec(), entry.value().unwrap().unwrap().to_vec())));
    assert_eq!(shown.unwrap(), ControlFlow::Break((b"b".to_vec(), vec![0])));
    // A large value is shown without a latch.
    let bytes = cursor.scan(|entry| {
        assert!(place.table.put(entry.key(), [2]).is_ok());
        ControlFlow::Break(entry.value_length())
    });
    assert_eq!(bytes.unwrap(), ControlFlow::Break(100_000));
}

#[test]
fn another_database_may_be_used_inside() {
    let (one, two) = (place(), place());
    let changed = one.table.modify("a", |value| {
        value[0] = 1 + two.table.get("a").unwrap().unwrap()[0];
        two.table.put("b", [7]).unwrap();
        two.table.modify("a", |value| value[0] = 9).unwrap().unwrap();
    });
    changed.unwrap().unwrap();
    assert_eq!(one.table.get("a").unwrap(), Some(vec![1]));
    assert_eq!(two.table.get("a").unwrap(), Some(vec![9]));
    let said = panic_of(|| {
        drop(one.table.modify("a", |_| drop(two.table.modify("a", |_| drop(one.table.get("b"))))));
    });
    assert!(said.contains("uses the same database"), "{said}");
}

#[test]
fn other_threads_are_not_disturbed() {
    let place = place();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let others: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        place.table.get("a").unwrap().unwrap();
                        place.table.modify("b", |value| value[0] ^= 1).unwrap().unwrap();
                    }
                })
            })
            .collect();
        for _ in 0..2000 {
            place.table.modify("a", |value| value[0] ^= 1).unwrap().unwrap();
            place.table.multi_modify(&["a", "b"], |_, value| value[0] ^= 1);
        }
        done.store(true, Ordering::Relaxed);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn the_database_may_be_used_between_the_changes_of_many() {
    let place = place();
    let mut seen = 0;
    let visit = |_, changed: vellum::Result<bool>| {
        assert!(changed.unwrap());
        seen += place.table.get("a").unwrap().unwrap()[0];
    };
    place.table.multi_modify_with(&["a", "b"], |_, value| value[0] = 1, visit).unwrap();
    assert_eq!(seen, 2);
}
