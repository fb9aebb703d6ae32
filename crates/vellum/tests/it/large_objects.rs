//! Objects that are larger than the pool.

use crate::support::{assert_clean, options};
use std::sync::Arc;
use vellum::objects::{Heap, Persistent, Ref, Text};
use vellum::{Database, ErrorKind, Options};
use vellum_vm::{AlignedBuffer, File, SimulatedDisk};

#[derive(Persistent, Clone, PartialEq, Debug)]
struct Letter {
    text: Text,
    next: Option<Ref<Letter>>,
}

/// As the second version of a program has it.
#[derive(Persistent, Clone, PartialEq, Debug)]
#[persistent(name = "Letter")]
struct Dated {
    text: Text,
    next: Option<Ref<Dated>>,
    day: u64,
}

/// A pool of 16 pages.
fn small() -> Options {
    options().pool_bytes(64 << 10)
}

fn text(bytes: usize) -> Text {
    "letters ".repeat(bytes / 8).into()
}

fn open(disk: &SimulatedDisk) -> (Database, Heap) {
    let database = Database::open_in(Arc::new(disk.clone()), "data", &small()).unwrap();
    let heap = database.heap("heap").unwrap();
    (database, heap)
}

#[test]
fn objects_larger_than_the_pool_are_read_and_changed() {
    for bytes in [60_000, 70_000, 1 << 20, 3 << 20] {
        let disk = SimulatedDisk::new(1);
        let database = Database::create_in(Arc::new(disk.clone()), "data", &small()).unwrap();
        let heap = database.create_heap("heap").unwrap();
        let last = heap.allocate(&Letter { text: text(8), next: None }).unwrap();
        let letter = Letter { text: text(bytes), next: Some(last) };
        let first = heap
            .change(|change| {
                let first = change.allocate(&letter)?;
                change.set_root(Some(first))?;
                // It is not committed yet.
                assert_eq!(change.get(first)?, letter);
                Ok(first)
            })
            .unwrap();
        assert_eq!(heap.get(first).unwrap(), letter);
        assert_clean(&database);
        heap.update(first, |letter: &mut Letter| letter.text.push_str("the end ")).unwrap();
        drop((heap, database));
        let (database, heap) = open(&disk.crash());
        let longer = heap.get(first).unwrap();
        assert_eq!((longer.text.len(), longer.next), (bytes + 8, Some(last)));
        assert_clean(&database);
        let dated = |old: Letter| Dated { text: old.text, next: None, day: 5 };
        heap.convert(dated).unwrap();
        let root: Ref<Dated> = heap.root().unwrap().unwrap();
        assert_eq!(heap.get(root).unwrap().text.len(), bytes + 8);
        heap.delete(root).unwrap();
        drop(heap);
        database.drop_heap("heap").unwrap();
        assert_clean(&database);
    }
}

#[test]
fn a_damaged_object_larger_than_the_pool_is_told() {
    let disk = SimulatedDisk::new(1);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &small()).unwrap();
    let heap = database.create_heap("heap").unwrap();
    let letter = heap.allocate(&Letter { text: text(1 << 20), next: None }).unwrap();
    heap.set_root(Some(letter)).unwrap();
    drop(heap);
    database.close().unwrap();
    let file = disk.file("data");
    let mut page = AlignedBuffer::new(4096);
    let is_letter = |page: &[u8]| page.windows(16).any(|part| part == b"letters letters ");
    let mut pages = (0..file.size().unwrap()).step_by(4096);
    let at = pages.find(|at| {
        file.read_to(*at, &mut page).unwrap();
        is_letter(&page)
    });
    page[100] ^= 1;
    file.write_from(at.unwrap(), &page).unwrap();
    let (database, heap) = open(&disk);
    assert_eq!(heap.get(letter).unwrap_err().kind(), ErrorKind::Corruption);
    assert!(!database.verify(|_| {}).is_clean());
}
