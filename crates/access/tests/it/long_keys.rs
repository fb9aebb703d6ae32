//! Keys so long that an inner node has room for one or two separators: the tree stays low whatever the order in which
//! they come and go, with threads side by side, and all changes are redone from their records.

use crate::recording::{RecordingPager, as_it_is, no_room};
use crate::support::{create_tree, options, seed, verify};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{collections::BTreeMap, ops::Bound, thread};
use vellum_access::{
    AccessError, PageChange, Tree,
    node::{MAX_KEY_BYTES, NODE_BYTES, NodeMut, NodeView, ValueKind},
};
use vellum_base::{Bytes, Extent, PageId};
use vellum_pool::{Navigation, Pool};

/// A key of `length` bytes, of which all but the last four are the group's.
fn key(group: u8, number: u32, length: usize) -> Vec<u8> {
    let mut key = vec![group; length - 4];
    key.extend(number.to_be_bytes());
    key
}

/// The most levels that a tree with so many leaves should have: see the module `settle`.
fn height_max(leaves: u64) -> u32 {
    (1.4405 * (leaves as f64).log2()).ceil() as u32 + 2
}

/// How many nodes with a single child are the only children of their parents, or have such a neighbour.
fn unsettled(pool: &Pool, page: PageId) -> usize {
    let read = |page: PageId| {
        pool.run(|| {
            let guard = pool.optimistic(page)?;
            let mut bytes = Vec::new();
            guard.bytes().append_to(0, NODE_BYTES, &mut bytes);
            guard.validate().map(|()| bytes)
        })
        .unwrap()
    };
    let node = read(page);
    let view = NodeView::new(&node[..]);
    if view.level() < 2 {
        return 0;
    }
    let children: Vec<_> = view.children().collect();
    let is_single = |child: &PageId| NodeView::new(&read(*child)[..]).count() == 0;
    let single: Vec<_> = children.iter().map(is_single).collect();
    let here = single.windows(2).filter(|pair| pair[0] && pair[1]).count() + usize::from(single == [true]);
    here + children.iter().map(|child| unsettled(pool, *child)).sum::<usize>()
}

/// Checks a tree against a map: its contents, and that it is low.
fn check(pool: &Pool, tree: &Tree<'_, Pool>, model: &BTreeMap<Vec<u8>, Vec<u8>>, what: &str) {
    let shape = verify(pool, tree).shape;
    let left = unsettled(pool, tree.root());
    println!(
        "{what}: {} levels, {} leaves, {} inner nodes, {left} unsettled",
        shape.height, shape.leaves, shape.inner_nodes
    );
    assert!(shape.height <= height_max(shape.leaves), "{what}: {shape:?}");
    assert!(shape.inner_nodes <= 3 * shape.leaves, "{what}: {shape:?}");
    let mut cursor = tree.range(Bound::Unbounded, Bound::Unbounded).unwrap();
    for (key, value) in model {
        let entry = cursor.next().unwrap().unwrap();
        assert_eq!((entry.key(), entry.inline_value()), (&key[..], Some(&value[..])));
        assert_eq!(tree.get(key).unwrap().as_ref(), Some(value));
    }
    assert!(cursor.next().unwrap().is_none());
}

/// Inserts some keys at random, and then those that `next` gives; removes all of them again.
fn fill(what: &str, base: u32, length: usize, mut next: impl FnMut(&mut StdRng) -> Vec<Vec<u8>>) {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::create(directory.path().join("tree"), &options(4096)).unwrap();
    let tree = create_tree(&pool).unwrap();
    let mut random = StdRng::seed_from_u64(seed());
    let mut model = BTreeMap::new();
    let mut keys: Vec<_> =
        (0..base).map(|_| key(random.random_range(0..40), random.random(), length)).collect();
    keys.extend(next(&mut random));
    for key in &keys {
        tree.upsert(key, b"v").unwrap();
        model.insert(key.clone(), b"v".to_vec());
    }
    check(&pool, &tree, &model, what);
    let full = tree.shape().unwrap();
    for key in keys.iter().step_by(2) {
        tree.remove(key).unwrap();
        model.remove(key);
    }
    check(&pool, &tree, &model, what);
    for key in &keys {
        tree.remove(key).unwrap();
    }
    // Leaves that became empty beside full ones may be left.
    let shape = verify(&pool, &tree).shape;
    assert!(shape.entries == 0 && shape.leaves <= 8 + full.leaves / 10, "{what}: {shape:?}");
}

const LENGTHS: [usize; 6] = [700, 850, 985, 1000, 1012, MAX_KEY_BYTES];

/// One run, as it grew the tree by one level for each split.
#[test]
fn a_run_among_long_keys() {
    for (base, length) in [20, 100].into_iter().flat_map(|base| LENGTHS.map(|length| (base, length))) {
        fill(&format!("a run after {base} keys of {length} bytes"), base, length, |random| {
            let (group, first) = (random.random_range(0..40), random.random_range(0..u32::MAX / 2));
            (0..1100).map(|number| key(group, first + number, length)).collect()
        });
    }
}

/// The number of the key that comes at this step.
type Order = fn(u32) -> u32;

#[test]
fn runs_in_both_directions_and_turns_among_long_keys() {
    for length in LENGTHS {
        let middle = u32::MAX / 2;
        let orders: [(&str, Order); 3] = [
            ("descending", |step| 600 - step),
            ("towards the middle", |step| if step % 2 == 0 { step } else { 1200 - step }),
            ("from the middle", |step| if step % 2 == 0 { 600 + step } else { 600 - step }),
        ];
        for (name, order) in orders {
            fill(&format!("{name}, keys of {length} bytes"), 30, length, |_| {
                (0..600).map(|step| key(20, middle + order(step), length)).collect()
            });
        }
    }
}

#[test]
fn long_keys_in_any_order() {
    for length in LENGTHS {
        fill(&format!("random keys of {length} bytes"), 500, length, |random| {
            (0..1500).map(|_| key(random.random_range(0..40), random.random_range(0..500), length)).collect()
        });
        fill(&format!("short runs of {length} bytes"), 50, length, |random| {
            let mut keys = Vec::new();
            for _ in 0..100 {
                let (group, first) = (random.random_range(0..40), random.random_range(0..1000));
                let down = random.random_bool(0.5);
                let number = |step: u32| if down { first + 20 - step } else { first + step };
                keys.extend((0..20).map(|step| key(group, number(step), length)));
            }
            keys
        });
    }
}

/// A key of a thread's own, among those of the others.
fn key_of(thread: u64, random: &mut StdRng) -> Vec<u8> {
    let number = random.random_range(0..300) * 4 + thread as u32;
    key(random.random_range(0..6), number, 990 + (number as usize * 7) % 35)
}

#[test]
fn threads_change_long_keys_in_a_small_pool() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tree");
    let pool = Pool::create(&path, &options(40)).unwrap();
    let tree = create_tree(&pool).unwrap();
    let change = |thread: u64| {
        let mut random = StdRng::seed_from_u64(seed() * 100 + thread);
        let mut model = BTreeMap::new();
        let mut run = key_of(thread, &mut random);
        for step in 0..3000u32 {
            // Insertions and removals by turns, some of them in runs.
            let removes = step / 700 % 2 == 1;
            if random.random_bool(0.3) {
                run = key_of(thread, &mut random);
            } else if let Some(last) = run.last_chunk_mut() {
                *last = (u32::from_be_bytes(*last) + 4).to_be_bytes();
            }
            if random.random_bool(if removes { 0.8 } else { 0.1 }) {
                let near =
                    model.range(run.clone()..).next().map(|(key, _): (&Vec<u8>, &Vec<u8>)| key.clone());
                let key = near.unwrap_or_else(|| run.clone());
                assert_eq!(retry(|| tree.remove(&key)), model.remove(&key).is_some());
            } else {
                let value = vec![step as u8; random.random_range(0..40)];
                retry(|| tree.upsert(&run, &value));
                model.insert(run.clone(), value);
            }
            if step % 8 == 0 {
                assert_eq!(retry(|| tree.get(&run)), model.get(&run).cloned());
            }
        }
        model
    };
    let model: BTreeMap<_, _> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || change(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    check(&pool, &tree, &model, "after threads");
    assert!(pool.statistics().pages_evicted > 100);
    for key in model.keys() {
        assert!(tree.remove(key).unwrap());
    }
    assert_eq!(verify(&pool, &tree).shape.entries, 0);
}

/// Retries an operation that finds all pages latched for a moment.
fn retry<T>(mut operation: impl FnMut() -> Result<T, AccessError>) -> T {
    loop {
        let result = operation();
        if !no_room(&result) {
            return result.unwrap();
        }
    }
}

#[test]
fn changes_of_long_keys_are_redone_from_their_records() {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::create(directory.path().join("tree"), &options(64)).unwrap();
    let root = Tree::create(&pool).unwrap().root();
    let pager = RecordingPager::new(pool);
    let start = pager.extents();
    thread::scope(|scope| {
        for thread in 0..3 {
            let pager = &pager;
            scope.spawn(move || {
                let tree = Tree::open(pager, root);
                let mut random = StdRng::seed_from_u64(seed() * 100 + thread);
                let mut run = key_of(thread, &mut random);
                for step in 0..1500 {
                    if random.random_bool(0.1) {
                        run = key_of(thread, &mut random);
                    } else if let Some(last) = run.last_chunk_mut() {
                        *last = (u32::from_be_bytes(*last) + 4).to_be_bytes();
                    }
                    if random.random_bool(if step > 1000 { 0.8 } else { 0.1 }) {
                        retry(|| tree.remove(&run));
                    } else {
                        retry(|| tree.upsert(&run, b"value"));
                    }
                    if step % 400 == 0 {
                        pager.checkpoint();
                    }
                }
            });
        }
    });
    let found = Tree::open(&pager, root).verify(|_| true).problems;
    assert!(found.is_empty(), "{found:#?}");
    let history = pager.history(start);
    let kinds = history.kinds();
    println!("{} records, {kinds:?}", history.records.len());
    assert!(kinds["Rearrange"] > 0 && kinds["Absorb"] > 0);
    for order in 0..3 {
        history.check(order, &as_it_is).unwrap();
    }
    history.undo(root, &as_it_is).unwrap();
    // They would be missed.
    let left_out = |change| (!matches!(change, PageChange::Rearrange { .. })).then_some(change);
    assert!(history.check(0, &left_out).is_err());
}

/// A tree of 256 levels, as earlier versions made them, whose nodes on the way to a key are all full.
#[test]
fn a_tree_that_cannot_become_higher_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::create(directory.path().join("tree"), &options(1024)).unwrap();
    let key = |first: u8, second: u8| {
        let mut key = vec![first, second];
        key.resize(MAX_KEY_BYTES, 7);
        key
    };
    let empty = || Tree::create(&pool).unwrap().root();
    let (aside, mut child) = (empty(), empty());
    let lower = key(1, 0);
    let mut page = pool.exclusive(Extent::page(child)).unwrap();
    let mut leaf = NodeMut::init(page.page_mut(), 0, Some(&lower), Some(&key(2, 1)), PageId(0)).unwrap();
    leaf.insert(&key(2, 0), &[7; 600], ValueKind::Inline).unwrap();
    drop(page);
    for level in 1..=u8::MAX {
        let id = empty();
        let mut page = pool.exclusive(Extent::page(id)).unwrap();
        let is_root = level == u8::MAX;
        let (above, upper) = (key(2, level), key(2, level.saturating_add(1)));
        let fences = if is_root { (None, None) } else { (Some(&lower[..]), Some(&upper[..])) };
        let mut node = NodeMut::init(page.page_mut(), level, fences.0, fences.1, child).unwrap();
        if is_root {
            // The child is the one beyond its lower fence.
            node.insert_separator(&lower, child).unwrap();
        }
        node.insert_separator(&above, aside).unwrap();
        if is_root {
            node.insert_separator(&key(3, 0), aside).unwrap();
        }
        child = id;
    }
    let tree = Tree::open(&pool, child);
    assert!(tree.get(&key(2, 0)).unwrap().is_some());
    // Between the two is no short separator.
    let mut next = key(2, 0);
    *next.last_mut().unwrap() += 1;
    let error = tree.insert(&next, &[7; 600]).unwrap_err();
    assert!(matches!(error, AccessError::TreeTooHigh { tree } if tree == child), "{error}");
    let message = error.to_string();
    assert!(message.contains("256 levels") && !message.contains("damaged"), "{message}");
    assert!(tree.get(&key(2, 0)).unwrap().is_some());
}

/// Two leaves were merged, and the root was not lowered: the process was killed between the two, or another thread was
/// faster.
#[test]
fn a_root_that_was_left_with_one_child_finds_what_is_put_below_it() {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::create(directory.path().join("tree"), &options(1024)).unwrap();
    let empty = || Tree::create(&pool).unwrap().root();
    let (root, child) = (empty(), empty());
    let mut page = pool.exclusive(Extent::page(root)).unwrap();
    let mut node = NodeMut::init(page.page_mut(), 1, None, None, child).unwrap();
    let separator = node.insert_separator(&[1; 8], child).unwrap();
    node.remove_separator(separator).unwrap();
    drop(page);
    let tree = Tree::open(&pool, root);
    let key = |last: u8| [2, 2, 2, 2, 2, 2, 2, last];
    for last in 0..100 {
        assert!(tree.insert(&key(last), &[last; 900]).unwrap());
    }
    for last in 0..100 {
        assert_eq!(tree.get(&key(last)).unwrap(), Some(vec![last; 900]));
    }
    verify(&pool, &tree);
}
