//! What a verification finds.

use crate::support::{All, Leaf, Node, Store, node};
use vellum_objects::{HeapProblem, Ref};

#[test]
fn what_no_root_leads_to_is_found() {
    let store = Store::new(64);
    let heap = store.heap();
    let nodes: Vec<Ref<Node>> = (0..50).map(|id| heap.allocate(&node(id, "some")).unwrap()).collect();
    let mut all = All { nodes: nodes.iter().copied().take(47).collect(), ..All::default() };
    let root = heap.allocate(&all).unwrap();
    assert_eq!(store.verify().problems.len(), 2, "nothing is a root, so neither type is reached");
    heap.set_root(Some(root)).unwrap();
    let report = store.verify();
    assert!(
        matches!(&report.problems[..], [HeapProblem::Unreachable { objects: 3, type_name, first }]
            if type_name == "Node" && *first == nodes[47].any()),
        "{:?}",
        report.problems
    );
    heap.update(nodes[3], |node: &mut Node| node.edges = nodes[47..].to_vec().into()).unwrap();
    assert!(store.verify().problems.is_empty());
    heap.delete(nodes[48]).unwrap();
    let report = store.verify();
    assert!(
        matches!(&report.problems[..], [HeapProblem::Dangling { from: Some(from), to, wanted }]
            if *from == nodes[3].any() && *to == nodes[48].any() && wanted == "Node"),
        "{:?}",
        report.problems
    );
    heap.update(nodes[3], |node: &mut Node| node.edges.clear()).unwrap();
    all.leaves.push(nodes[0].any().typed::<Leaf>());
    heap.set(root, &all).unwrap();
    assert!(matches!(&store.verify().problems[..],
        [HeapProblem::Dangling { wanted, .. }, HeapProblem::Unreachable { objects: 2, .. }] if wanted == "Leaf"));
}

#[test]
fn a_heap_that_is_cleared_leaves_nothing() {
    let mut store = Store::new(64);
    let heap = store.heap();
    for id in 0..500 {
        let length = if id % 50 == 0 { 9000 } else { 100 };
        let made = heap.allocate(&node(id, &"n".repeat(length))).unwrap();
        heap.set_root(Some(made)).unwrap();
    }
    heap.clear().unwrap();
    let report = store.verify();
    assert!(report.pages == 0 && report.problems.is_empty(), "{report:?}");
    assert_eq!(store.pool.statistics().pages_allocated, 3, "two superblocks, and the directory's root");
    // And can be used again.
    let made = store.heap().allocate(&node(1, "again")).unwrap();
    store.heap().set_root(Some(made)).unwrap();
    store = store.reopen(64);
    assert_eq!(store.heap().root::<Node>().unwrap(), Some(made));
    let report = store.verify();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}
