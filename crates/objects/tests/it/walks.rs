//! Walks through all objects of a type, while there are other ones.

use crate::support::{Leaf, Node, Store, node};
use std::collections::BTreeSet;
use vellum_objects::{Array, ObjectError, Ref};

#[test]
fn a_walk_ends_although_it_makes_an_object_of_each() {
    let store = Store::new(512);
    let heap = store.heap();
    let made: BTreeSet<Ref<Node>> =
        (0..1500).map(|id| heap.allocate(&node(id, &"made before".repeat(100))).unwrap()).collect();
    let mut shown = BTreeSet::new();
    let walked = heap.for_each(|place: Ref<Node>| {
        assert!(shown.insert(place), "it is shown twice");
        assert!(shown.len() < 20_000, "the walk does not end");
        let node = heap.get(place)?;
        heap.allocate(&node)?;
        heap.allocate(&Leaf { value: 1, parts: Array::default() })?;
        Ok::<_, ObjectError>(true)
    });
    walked.unwrap();
    assert!(made.is_subset(&shown));
    // So does one that makes a longer object instead of each.
    let mut calls = 0;
    let walked = heap.for_each(|place: Ref<Node>| {
        calls += 1;
        assert!(calls < 20_000, "the walk does not end");
        let node = Node { name: "longer than before".repeat(80).into(), ..heap.get(place)? };
        heap.delete(place)?;
        heap.allocate(&node)?;
        Ok::<_, ObjectError>(true)
    });
    walked.unwrap();
    assert!(made.iter().all(|place| matches!(heap.get(*place), Err(ObjectError::Dangling { .. }))));
}
