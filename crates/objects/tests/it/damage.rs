//! Files with wrong bytes in them. Nothing panics and nothing runs for ever; what is wrong is an error, and verification tells it.

use crate::support::{All, Node, Store, node, options};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::sync::Arc;
use vellum_access::Tree;
use vellum_base::{Extent, PAGE_SIZE, PageHeader, PageId, PageKind, stamp_checksum, verify_header};
use vellum_objects::{Heap, HeapState, ObjectError, Ref};
use vellum_pool::Pool;
use vellum_vm::{Image, SimulatedFile};

struct Sample {
    bytes: Vec<u8>,
    nodes: Vec<Ref<Node>>,
    /// Its pages of objects.
    pages: Vec<usize>,
}

fn sample() -> Sample {
    let store = Store::new(64);
    let heap = store.heap();
    let mut nodes: Vec<Ref<Node>> = Vec::new();
    for id in 0..200 {
        let length = if id % 40 == 0 { 9000 } else { 60 };
        let next = nodes.last().copied();
        nodes.push(heap.allocate(&Node { next, ..node(id, &"n".repeat(length)) }).unwrap());
    }
    for reference in nodes.iter().step_by(7) {
        heap.update(*reference, |node: &mut Node| node.name.push_str(&"m".repeat(500))).unwrap();
    }
    let root = heap.allocate(&All { nodes: nodes.clone().into(), ..All::default() }).unwrap();
    heap.set_root(Some(root)).unwrap();
    assert!(store.verify().problems.is_empty());
    store.pool.close().unwrap();
    let bytes = store.file.snapshot().to_vec();
    let is_objects = |page: &usize| {
        let bytes = &bytes[page * PAGE_SIZE..][..PAGE_SIZE];
        verify_header(bytes, Extent::page(PageId(*page as u64)))
            .is_ok_and(|header| header.kind == PageKind::OBJECTS)
    };
    let pages = (0..bytes.len() / PAGE_SIZE).filter(is_objects).collect();
    Sample { bytes, nodes, pages }
}

/// Uses a file that is damaged. Returns whether verification says so.
fn survive(bytes: &[u8], nodes: &[Ref<Node>]) -> bool {
    let file = SimulatedFile::from_image(1, Image::from_bytes(bytes));
    let Ok(pool) = Pool::open_on(Arc::new(file), &options(64).background_eviction(false)) else {
        return true;
    };
    let state = HeapState::default();
    let heap = Heap::open(&pool, PageId(pool.root_slot(0)), &state);
    let tree = Tree::open(&pool, PageId(pool.root_slot(0)));
    let is_noticed = !tree.verify(|_| true).problems.is_empty()
        || !heap.verify(&mut |_| true).problems.is_empty()
        || !pool.damaged_superblocks().is_empty();
    for (number, reference) in nodes.iter().enumerate() {
        let _ = heap.get(*reference);
        let _ = match number % 4 {
            0 => heap.update(*reference, |node: &mut Node| node.name.push_str("more")),
            1 => heap.delete(*reference),
            2 => heap.allocate_near(*reference, &node(1, "new")).map(drop),
            _ => heap.set(*reference, &node(1, &"x".repeat(300))),
        };
    }
    let _ = heap.root::<All>();
    let _ = heap.for_each::<Node, ObjectError>(|_| Ok(true));
    let _ = heap.convert(|all: All| all);
    let _ = heap.clear();
    let _ = pool.close();
    is_noticed
}

#[test]
fn flipped_bits_are_noticed() {
    let Sample { bytes, nodes, pages } = sample();
    assert!(!survive(&bytes, &nodes));
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..150 {
        let page = pages[random.random_range(0..pages.len())];
        let mut damaged = bytes.clone();
        damaged[page * PAGE_SIZE + random.random_range(0..PAGE_SIZE)] ^= 1 << random.random_range(0..8);
        assert!(survive(&damaged, &nodes));
    }
}

/// Bytes that are wrong and have the right checksum: as a bug would leave them.
#[test]
fn wrong_bytes_under_a_right_checksum_are_survived() {
    let Sample { bytes, nodes, pages } = sample();
    let mut random = StdRng::seed_from_u64(2);
    for _ in 0..250 {
        let mut damaged = bytes.clone();
        let page = pages[random.random_range(0..pages.len())];
        let page = &mut damaged[page * PAGE_SIZE..][..PAGE_SIZE];
        for _ in 0..random.random_range(1..4) {
            let at = if random.random() {
                random.random_range(32..200)
            } else {
                random.random_range(32..PAGE_SIZE)
            };
            let length = random.random_range(1..9).min(PAGE_SIZE - at);
            let byte = [0, 1, 0x7f, 0xff, random.random()][random.random_range(0..5)];
            page[at..at + length].fill(byte);
        }
        assert_eq!(PageHeader::read(page).kind, PageKind::OBJECTS);
        stamp_checksum(page);
        survive(&damaged, &nodes);
    }
}

/// Objects find room in other pages than one that is damaged, although there is room in that, too.
#[test]
fn a_page_that_cannot_be_read_keeps_no_object_out_of_the_others() {
    let store = Store::new(64);
    let heap = store.heap();
    let nodes: Vec<Ref<Node>> =
        (0..300).map(|id| heap.allocate(&node(id, &"n".repeat(60))).unwrap()).collect();
    let page = nodes[150].any().page();
    let mut neighbours = nodes.into_iter().filter(|node| node.any().page() == page);
    let damaged = neighbours.next().unwrap();
    neighbours.for_each(|node| heap.delete(node).unwrap());
    store.pool.close().unwrap();
    let mut bytes = store.file.snapshot().to_vec();
    bytes[page.0 as usize * PAGE_SIZE + 1000] ^= 1;
    let file = SimulatedFile::from_image(1, Image::from_bytes(&bytes));
    let pool = Pool::open_on(Arc::new(file), &options(64)).unwrap();
    let state = HeapState::default();
    let heap = Heap::open(&pool, PageId(pool.root_slot(0)), &state);
    for length in [60, 1000, 3000, 9000] {
        let new = heap.allocate(&node(1, &"x".repeat(length))).unwrap();
        assert_eq!(heap.get(new).unwrap(), node(1, &"x".repeat(length)));
        let near = heap.allocate_near(damaged, &node(2, &"y".repeat(length))).unwrap();
        assert_eq!(heap.get(near).unwrap(), node(2, &"y".repeat(length)));
    }
    assert!(heap.get(damaged).is_err() && heap.delete(damaged).is_err());
    assert!(!heap.verify(&mut |_| true).problems.is_empty());
}
