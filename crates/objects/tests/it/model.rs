//! Objects that are made, changed and deleted at random, beside a map of them.

use crate::support::{All, Kind, Leaf, Node, Part, Store, node};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::collections::{BTreeMap, BTreeSet};
use vellum_objects::{Array, HeapProblem, ObjectError, Ref};

#[derive(Default, Clone)]
struct Model {
    nodes: BTreeMap<Ref<Node>, Node>,
    leaves: BTreeMap<Ref<Leaf>, Leaf>,
    gone: BTreeSet<Ref<Node>>,
}

impl Model {
    fn node(&self, random: &mut StdRng) -> Option<Ref<Node>> {
        let count = self.nodes.len().max(1);
        self.nodes.keys().nth(random.random_range(0..count)).copied()
    }

    fn leaf(&self, random: &mut StdRng) -> Option<Ref<Leaf>> {
        let count = self.leaves.len().max(1);
        self.leaves.keys().nth(random.random_range(0..count)).copied()
    }

    fn some_node(&self, random: &mut StdRng) -> Node {
        let length = match random.random_range(0..40) {
            0 => 20_000,
            1..4 => 3000,
            _ => random.random_range(0..200),
        };
        let mut node = node(random.random(), &"x".repeat(length));
        node.edges = (0..random.random_range(0..6)).filter_map(|_| self.node(random)).collect();
        node.next = self.node(random).filter(|_| random.random());
        node.kind = match random.random_range(0..3) {
            0 => Kind::Plain,
            1 => Kind::Weighted(random.random(), random.random()),
            _ => Kind::Named {
                label: "é".repeat(random.random_range(0..30)).into(),
                at: self.leaf(random),
                of: random.random::<bool>().then(|| random.random()),
            },
        };
        node
    }

    fn references(node: &Node) -> impl Iterator<Item = Ref<Node>> {
        node.edges.iter().copied().chain(node.next)
    }
}

fn some_leaf(random: &mut StdRng) -> Leaf {
    let parts = (0..random.random_range(0..5)).map(|_| Part {
        label: "part".repeat(random.random_range(0..4)).into(),
        sign: ['a', 'ß', '🦀'][random.random_range(0..3)],
        wide: random.random(),
    });
    Leaf { parts: parts.collect(), value: random.random() }
}

fn step(store: &Store, model: &mut Model, random: &mut StdRng) -> Result<(), ObjectError> {
    let heap = store.heap();
    match random.random_range(0..12) {
        0..3 => {
            let node = model.some_node(random);
            let reference = match model.node(random) {
                Some(near) if random.random() => heap.allocate_near(near, &node)?,
                _ => heap.allocate(&node)?,
            };
            assert!(!model.gone.contains(&reference), "a reference comes back");
            assert!(model.nodes.insert(reference, node).is_none());
        }
        3 => {
            let leaf = some_leaf(random);
            let reference = heap.allocate(&leaf)?;
            model.leaves.insert(reference, leaf);
        }
        4..7 => {
            let Some(reference) = model.node(random) else { return Ok(()) };
            let node = model.some_node(random);
            heap.set(reference, &node)?;
            model.nodes.insert(reference, node);
        }
        7 => {
            let Some(reference) = model.node(random) else { return Ok(()) };
            let more = "y".repeat(random.random_range(0..50));
            let length = heap.update(reference, |node: &mut Node| {
                node.name.push_str(&more);
                node.name.len()
            })?;
            let node = model.nodes.get_mut(&reference).unwrap();
            node.name.push_str(&more);
            assert_eq!(node.name.len(), length);
        }
        8 => {
            let Some(reference) = model.node(random) else { return Ok(()) };
            heap.delete(reference)?;
            model.nodes.remove(&reference);
            model.gone.insert(reference);
        }
        9 => {
            // Several at once: a circle.
            let (first, second) = heap.change(|change| {
                let first = change.reserve::<Node>()?;
                let second = change.allocate_near(first, &Node { next: Some(first), ..node(2, "second") })?;
                change.set(first, &Node { next: Some(second), ..node(1, "first") })?;
                Ok::<_, ObjectError>((first, second))
            })?;
            model.nodes.insert(first, Node { next: Some(second), ..node(1, "first") });
            model.nodes.insert(second, Node { next: Some(first), ..node(2, "second") });
        }
        10 => {
            // Several that do not happen.
            let victim = model.node(random);
            let failed = heap.change(|change| {
                change.allocate(&model.some_node(random))?;
                if let Some(victim) = victim {
                    change.update(victim, |node: &mut Node| node.name = "z".repeat(9000).into())?;
                    assert_eq!(change.get(victim)?.name.len(), 9000);
                    change.delete(victim)?;
                    assert!(matches!(change.get(victim), Err(ObjectError::Dangling { .. })));
                }
                Err::<(), _>(ObjectError::TooLong)
            });
            assert!(matches!(failed, Err(ObjectError::TooLong)));
        }
        _ => {
            if let Some(gone) = model.gone.iter().nth(random.random_range(0..model.gone.len().max(1))) {
                assert!(matches!(heap.get(*gone), Err(ObjectError::Dangling { .. })));
                assert!(matches!(heap.set(*gone, &node(0, "")), Err(ObjectError::Dangling { .. })));
            }
            if let Some(reference) = model.node(random) {
                assert_eq!(heap.get(reference)?, model.nodes[&reference]);
                let wrong = heap.get(reference.any().typed::<Leaf>());
                assert!(matches!(wrong, Err(ObjectError::OtherType { wanted: "Leaf", .. })), "{wrong:?}");
            }
        }
    }
    Ok(())
}

fn compare(store: &Store, model: &Model) {
    let heap = store.heap();
    for (reference, node) in &model.nodes {
        assert_eq!(heap.get(*reference).unwrap(), *node);
    }
    for (reference, leaf) in &model.leaves {
        assert_eq!(heap.get(*reference).unwrap(), *leaf);
    }
    let mut seen = BTreeSet::new();
    heap.for_each::<Node, ObjectError>(|reference| {
        assert!(seen.insert(reference), "an object is shown twice");
        Ok(true)
    })
    .unwrap();
    assert!(seen.iter().eq(model.nodes.keys()));
    let all = All {
        nodes: model.nodes.keys().copied().collect(),
        leaves: model.leaves.keys().copied().collect::<Vec<_>>().into(),
    };
    match heap.root().unwrap() {
        Some(root) => heap.set(root, &all).unwrap(),
        None => {
            let root = heap.allocate(&all).unwrap();
            heap.set_root(Some(root)).unwrap();
        }
    }
    let report = store.verify();
    let dangling = report.problems.iter().map(|problem| match problem {
        HeapProblem::Dangling { from, to, wanted } => {
            assert_eq!(wanted, "Node");
            (from.unwrap().typed(), to.typed())
        }
        other => panic!("{other:?}"),
    });
    let mut dangling: Vec<(Ref<Node>, Ref<Node>)> = dangling.collect();
    let mut expected = Vec::new();
    for (reference, node) in &model.nodes {
        let gone = Model::references(node).filter(|to| !model.nodes.contains_key(to));
        expected.extend(gone.map(|to| (*reference, to)));
    }
    dangling.sort_unstable();
    expected.sort_unstable();
    assert_eq!(dangling, expected);
    assert_eq!(report.objects.get("Node").copied().unwrap_or(0), model.nodes.len() as u64);
    assert_eq!(report.objects.get("Leaf").copied().unwrap_or(0), model.leaves.len() as u64);
}

fn runs(pages: usize, seeds: std::ops::Range<u64>, steps: usize) {
    for seed in seeds {
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let (mut store, mut model) = (Store::new(pages), Model::default());
        for _ in 0..3 {
            for _ in 0..steps {
                step(&store, &mut model, &mut random).unwrap();
            }
            // Some nodes go, with what refers to them: what is deleted is not referred to any more.
            let heap = store.heap();
            for reference in model.nodes.keys().copied().collect::<Vec<_>>() {
                let node = model.nodes.get_mut(&reference).unwrap();
                let before = node.clone();
                node.edges = node.edges.iter().copied().filter(|to| !model.gone.contains(to)).collect();
                node.next = node.next.filter(|to| !model.gone.contains(to));
                if *node != before && random.random() {
                    heap.set(reference, node).unwrap();
                } else {
                    *node = before;
                }
            }
            compare(&store, &model);
            store = store.reopen(pages);
            compare(&store, &model);
        }
    }
}

#[test]
fn a_heap_holds_what_a_map_holds() {
    runs(1024, 0..6, 300);
}

#[test]
fn a_pool_of_a_few_pages_is_enough() {
    runs(32, 100..106, 300);
}

#[test]
fn empty_arrays_and_texts_come_back() {
    let store = Store::new(64);
    let (heap, leaf) = (store.heap(), Leaf { value: 0, parts: Array::default() });
    let reference = heap.allocate(&leaf).unwrap();
    assert_eq!(heap.get(reference).unwrap(), leaf);
}
