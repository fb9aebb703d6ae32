//! Pages of a heap from which objects were deleted are used again, for objects of every size.

use crate::support::options;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::sync::Arc;
use vellum::objects::{Heap, Persistent, Text};
use vellum::{Database, Durability, Error, Result};
use vellum_vm::{AlignedBuffer, File, SimulatedDisk};

#[derive(Persistent)]
struct Thing {
    text: Text,
}

fn thing(bytes: usize) -> Thing {
    Thing { text: "x".repeat(bytes).into() }
}

fn created(disk: &SimulatedDisk) -> (Database, Heap) {
    let options = options().durability(Durability::Deferred);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options).unwrap();
    let heap = database.create_heap("heap").unwrap();
    (database, heap)
}

/// The allocated pages, after a checkpoint.
fn pages(database: &Database) -> u64 {
    database.checkpoint().unwrap();
    database.statistics().pages_allocated
}

#[test]
fn a_heap_whose_objects_are_all_deleted_does_not_grow() {
    for bytes in [200, 1900, 2100, 3000, 3900, 5000] {
        let (database, heap) = created(&SimulatedDisk::new(1));
        let mut most = Vec::new();
        for many in [1, 20] {
            let mut counts = (0..4).map(|_| {
                for _ in 0..10 {
                    let things: Vec<_> = (0..many).map(|_| heap.allocate(&thing(bytes)).unwrap()).collect();
                    things.into_iter().for_each(|thing| heap.delete(thing).unwrap());
                }
                pages(&database)
            });
            let first = counts.next().unwrap();
            most.push((first, counts.max().unwrap()));
        }
        assert!(most.iter().all(|(first, last)| *last < first + 20), "{bytes} bytes: {most:?}");
    }
}

#[test]
fn a_heap_of_objects_of_any_size_that_are_replaced_does_not_grow() {
    for most in [1500, 3900, 12_000] {
        let disk = SimulatedDisk::new(1);
        let (mut database, mut heap) = created(&disk);
        let mut random = StdRng::seed_from_u64(1);
        let mut draw = || thing(random.random_range(1..most));
        let mut live: Vec<_> = (0..200).map(|_| heap.allocate(&draw()).unwrap()).collect();
        let mut counts = Vec::new();
        for round in 0..4 {
            for at in 0..2000 {
                let place = at * 7 % live.len();
                heap.delete(live[place]).unwrap();
                live[place] = heap.allocate(&draw()).unwrap();
            }
            counts.push(pages(&database));
            if round == 1 {
                // What has room is known to the file as well.
                drop(heap);
                database.close().unwrap();
                database = Database::open_in(Arc::new(disk.clone()), "data", &options()).unwrap();
                heap = database.heap("heap").unwrap();
            }
        }
        assert!(counts[3] < counts[0] * 5 / 4, "objects of up to {most} bytes: {counts:?}");
    }
}

#[test]
fn a_heap_whose_changes_fail_does_not_grow() {
    let (database, heap) = created(&SimulatedDisk::new(1));
    let fail = || {
        for _ in 0..100 {
            let failed = heap.change(|change| -> Result<()> {
                change.allocate(&thing(1000))?;
                change.allocate(&thing(3000))?;
                Err(Error::Ended)
            });
            failed.unwrap_err();
        }
        pages(&database)
    };
    let first = fail();
    let last = (0..3).map(|_| fail()).max().unwrap();
    assert!(last < first + 10, "{first} pages, and later {last}");
}

#[test]
fn a_heap_with_a_damaged_page_is_dropped() {
    let disk = SimulatedDisk::new(1);
    let (database, heap) = created(&disk);
    let empty = pages(&database);
    for _ in 0..50 {
        heap.allocate(&thing(1000)).unwrap();
    }
    heap.allocate(&Thing { text: "the damaged one".into() }).unwrap();
    drop(heap);
    database.close().unwrap();
    let file = disk.file("data");
    let mut page = AlignedBuffer::new(4096);
    let mut places = (0..file.size().unwrap()).step_by(4096);
    let at = places.find(|at| {
        file.read_to(*at, &mut page).unwrap();
        page.windows(15).any(|part| part == b"the damaged one")
    });
    page[100] ^= 1;
    file.write_from(at.unwrap(), &page).unwrap();
    let database = Database::open_in(Arc::new(disk), "data", &options()).unwrap();
    assert!(!database.verify(|_| {}).is_clean());
    database.drop_heap("heap").unwrap();
    assert_eq!(database.heaps().unwrap(), Vec::<String>::new());
    database.create_heap("heap").unwrap();
    assert_eq!(pages(&database), empty);
    let report = database.verify(|_| {});
    assert!(report.is_clean(), "{:?}", report.problems);
}
