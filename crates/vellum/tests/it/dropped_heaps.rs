//! What is left of a heap whose dropping was interrupted.

use crate::support::options;
use std::sync::Arc;
use vellum::objects::{Array, Persistent, Ref, Text};
use vellum::{Database, Durability, Problem};
use vellum_vm::SimulatedDisk;

#[derive(Persistent)]
struct Item {
    name: Text,
    next: Option<Ref<Item>>,
}

#[derive(Persistent)]
struct All {
    items: Array<Ref<Item>>,
}

#[derive(Persistent)]
#[persistent(name = "a type whose name is so long that the object with the roots soon has to move")]
struct Other {
    number: u64,
}

#[test]
fn a_heap_whose_dropping_was_interrupted_is_not_damaged() {
    let options = options().durability(Durability::Deferred);
    let mut interrupted = 0;
    for failing in 1..80 {
        let disk = SimulatedDisk::new(failing);
        let database = Database::create_in(Arc::new(disk.clone()), "data", &options).unwrap();
        let heap = database.create_heap("heap").unwrap();
        let mut items: Vec<Ref<Item>> = Vec::new();
        // The object with the roots moves, as its page is filled before it grows.
        heap.set_root(Some(heap.allocate(&Other { number: 1 }).unwrap())).unwrap();
        let first = heap.root::<Other>().unwrap();
        for number in 0..1200 {
            let name = "n".repeat(if number % 100 == 0 { 9000 } else { 1500 }).into();
            items.push(heap.allocate(&Item { name, next: items.last().copied() }).unwrap());
        }
        heap.set_root(items.last().copied()).unwrap();
        heap.set_root(Some(heap.allocate(&All { items: items.into() }).unwrap())).unwrap();
        assert_eq!(heap.root::<Other>().unwrap(), first);
        drop(heap);
        database.checkpoint().unwrap();
        disk.fail_from(failing);
        let done = database.drop_heap("heap");
        let crashed = if failing % 2 == 0 { disk.crash() } else { disk.kill() };
        drop(database);
        crashed.heal();
        let database = Database::open_in(Arc::new(crashed), "data", &options).unwrap();
        let report = database.verify(|_| {});
        let is_wrong = |problem: &&Problem| !matches!(problem, Problem::Unreachable { .. });
        let wrong: Vec<_> = report.problems.iter().filter(is_wrong).collect();
        assert!(wrong.is_empty(), "{failing}: {wrong:?}");
        if !report.problems.is_empty() {
            interrupted += 1;
            let heap = database.heap("heap").unwrap();
            assert_eq!(heap.root::<All>().unwrap(), None, "{failing}");
            assert_eq!(heap.root::<Item>().unwrap(), None, "{failing}");
            heap.set_root(Some(heap.allocate(&Other { number: 2 }).unwrap())).unwrap();
        }
        if database.heaps().unwrap() == ["heap"] {
            database.drop_heap("heap").unwrap();
        }
        let report = database.verify(|_| {});
        assert!(report.is_clean(), "{failing}: {:?}", report.problems);
        if done.is_ok() {
            break;
        }
    }
    assert!(interrupted > 10, "{interrupted}");
}
