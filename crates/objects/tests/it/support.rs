//! A heap on a simulated file, and types of objects.

use std::{collections::BTreeSet, sync::Arc};
use vellum_access::Tree;
use vellum_base::{Extent, PAGE_SIZE, PageId};
use vellum_objects::{Array, Heap, HeapReport, HeapState, Persistent, Ref, Text};
use vellum_pool::{Pool, PoolOptions};
use vellum_vm::SimulatedFile;

#[derive(Persistent, Clone, PartialEq, Debug)]
#[persistent(crate = "vellum_objects")]
pub struct Node {
    pub id: u32,
    pub name: Text,
    pub edges: Array<Ref<Node>>,
    pub next: Option<Ref<Node>>,
    pub kind: Kind,
    pub weight: f64,
    pub tail: [u16; 3],
}

#[derive(Persistent, Clone, PartialEq, Debug)]
#[persistent(crate = "vellum_objects")]
pub enum Kind {
    Plain,
    Weighted(i64, bool),
    Named { label: Text, at: Option<Ref<Leaf>>, of: Option<u8> },
}

#[derive(Persistent, Clone, PartialEq, Debug)]
#[persistent(crate = "vellum_objects")]
pub struct Leaf {
    pub value: u64,
    pub parts: Array<Part>,
}

#[derive(Persistent, Clone, PartialEq, Debug)]
#[persistent(crate = "vellum_objects")]
pub struct Part {
    pub label: Text,
    pub sign: char,
    pub wide: i128,
}

/// The root of a test's objects: all of them.
#[derive(Persistent, Clone, PartialEq, Debug, Default)]
#[persistent(crate = "vellum_objects")]
pub struct All {
    pub nodes: Array<Ref<Node>>,
    pub leaves: Array<Ref<Leaf>>,
}

pub struct Store {
    pub pool: Pool,
    pub state: HeapState,
    pub file: SimulatedFile,
}

pub fn options(pages: usize) -> PoolOptions {
    PoolOptions::default().pool_bytes((pages * PAGE_SIZE) as u64).capacity_bytes(1 << 30)
}

impl Store {
    /// An empty heap, with a pool of so many pages.
    pub fn new(pages: usize) -> Self {
        let file = SimulatedFile::new(1);
        let pool = Pool::create_on(Arc::new(file.clone()), &options(pages)).unwrap();
        pool.set_root_slot(0, Tree::create(&pool).unwrap().root().0).unwrap();
        Self { pool, state: HeapState::default(), file }
    }

    pub fn heap(&self) -> Heap<'_, Pool> {
        Heap::open(&self.pool, PageId(self.pool.root_slot(0)), &self.state)
    }

    /// Closes the file, and opens it again.
    pub fn reopen(self, pages: usize) -> Self {
        self.pool.close().unwrap();
        let pool = Pool::open_on(Arc::new(self.file.clone()), &options(pages)).unwrap();
        Self { pool, state: HeapState::default(), file: self.file }
    }

    /// Verifies the heap and its directory, and that every extent of the file belongs to one of them.
    pub fn verify(&self) -> HeapReport {
        let mut claimed: BTreeSet<u64> = self.pool.own_extents().iter().map(|extent| extent.head.0).collect();
        let tree = Tree::open(&self.pool, PageId(self.pool.root_slot(0)));
        let found = tree.verify(|extent| claimed.insert(extent.head.0));
        assert!(found.problems.is_empty(), "{:?}", found.problems);
        let report = self.heap().verify(&mut |extent: Extent| claimed.insert(extent.head.0));
        self.pool.for_each_extent(|extent| assert!(claimed.contains(&extent.head.0), "{extent} is leaked"));
        report
    }
}

pub fn node(id: u32, name: &str) -> Node {
    Node {
        id,
        name: name.into(),
        edges: Array::default(),
        next: None,
        kind: Kind::Plain,
        weight: f64::from(id) / 2.0,
        tail: [1, 2, id as u16],
    }
}
