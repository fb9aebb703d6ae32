//! Bulk loads against a model, and all that may go wrong with one.

use crate::support::{create_tree, open_tree, options, problems, sealed, verify};
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use vellum_access::{AccessError, Tree, node::NodeMut, node::NodeView};
use vellum_base::{Extent, PageId};
use vellum_pool::{Pool, PoolError};
use vellum_vm::{Faults, SimulatedFile};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Keys with long and short common beginnings, values with and without extents of their own.
fn random_model(rng: &mut StdRng, count: usize) -> Model {
    let style = rng.random_range(0..5);
    let stems: Vec<Vec<u8>> = (0..rng.random_range(1..6)).map(|_| random_bytes(rng, 0, 300)).collect();
    let mut model = Model::new();
    for number in 0..count {
        let key = match style {
            0 => (number as u64 * 3).to_be_bytes().to_vec(),
            1 => random_bytes(rng, 0, 12),
            2 => random_bytes(rng, 0, 1024),
            _ => {
                let mut key = stems[rng.random_range(0..stems.len())].clone();
                key.extend(random_bytes(rng, 0, if style == 3 { 5 } else { 700 }));
                key
            }
        };
        let length = match rng.random_range(0..40) {
            0 => rng.random_range(1025..30_000),
            1..4 => rng.random_range(200..1025),
            4 => 0,
            _ => rng.random_range(0..130),
        };
        model.insert(key, random_bytes(rng, length, length));
    }
    model
}

fn random_bytes(rng: &mut StdRng, least: usize, most: usize) -> Vec<u8> {
    let mut bytes = vec![0; rng.random_range(least..=most)];
    // Few different bytes, so that keys share more than their beginnings.
    let few = rng.random_ratio(1, 2);
    rng.fill_bytes(&mut bytes);
    if few {
        bytes.iter_mut().for_each(|byte| *byte = [0, 1, 0xfe, 0xff][usize::from(*byte % 4)]);
    }
    bytes
}

fn load(tree: &Tree<'_, Pool>, model: &Model, fill_percent: u8) -> Result<u64, AccessError> {
    let mut load = tree.bulk_load(fill_percent)?;
    for (number, (key, value)) in model.iter().enumerate() {
        if number % 7 == 3 {
            load.push_from(key, value.len() as u64, &mut &value[..])?;
        } else {
            load.push(key, value)?;
        }
    }
    load.finish()
}

fn assert_equal(tree: &Tree<'_, Pool>, model: &Model) {
    let mut cursor = tree.range(Bound::Unbounded, Bound::Unbounded).unwrap();
    for (key, value) in model {
        let entry = cursor.next().unwrap().expect("the cursor ends too early");
        assert_eq!(entry.key(), key);
        assert!(*entry.value().unwrap().unwrap() == value[..], "the value of {key:?}");
    }
    assert!(cursor.next().unwrap().is_none(), "the cursor ends too late");
    for (key, value) in model.iter().step_by(17) {
        assert!(tree.get(key).unwrap().as_ref() == Some(value), "the value of {key:?}");
    }
}

#[test]
fn what_was_loaded_is_what_a_map_holds_and_can_be_changed_on() {
    for seed in 0..60 {
        let mut rng = StdRng::seed_from_u64(seed);
        let count = [0, 1, 2, 40, 500, 3000][seed as usize % 6];
        let mut model = random_model(&mut rng, count);
        // In a small pool nearly all pages are written past it.
        let pool_pages = [24, 64, 4096][rng.random_range(0..3)];
        let pool = Pool::create_on(Arc::new(SimulatedFile::new(seed)), &options(pool_pages)).unwrap();
        let tree = create_tree(&pool).unwrap();
        let fill_percent = [100, 95, 70, 50, 0, 255][rng.random_range(0..6)];
        assert_eq!(load(&tree, &model, fill_percent).unwrap(), model.len() as u64, "seed {seed}");
        let report = verify(&pool, &tree);
        assert_eq!(report.shape.entries, model.len() as u64, "seed {seed}");
        assert_equal(&tree, &model);
        assert!(pool.statistics().pages_resident <= pool_pages);
        for _ in 0..count {
            let key = if rng.random() && !model.is_empty() {
                model.keys().nth(rng.random_range(0..model.len())).unwrap().clone()
            } else {
                random_bytes(&mut rng, 0, 40)
            };
            if rng.random() {
                assert_eq!(tree.remove(&key).unwrap(), model.remove(&key).is_some());
            } else {
                let value = random_bytes(&mut rng, 0, 1500);
                tree.upsert(&key, &value).unwrap();
                model.insert(key, value);
            }
        }
        verify(&pool, &tree);
        assert_equal(&tree, &model);
    }
}

#[test]
fn a_loaded_tree_survives_a_close() {
    for pool_pages in [24, 4096] {
        let model = random_model(&mut StdRng::seed_from_u64(5), 2000);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tree");
        let pool = Pool::create(&path, &options(pool_pages)).unwrap();
        load(&create_tree(&pool).unwrap(), &model, 100).unwrap();
        pool.close().unwrap();
        let pool = Pool::open(&path, &options(pool_pages)).unwrap();
        verify(&pool, &open_tree(&pool));
        assert_equal(&open_tree(&pool), &model);
    }
}

fn numbered(count: u64, length: usize) -> Model {
    (0..count).map(|key| (key.to_be_bytes().to_vec(), sealed(key, 0, length))).collect()
}

/// The pages of the leaves, in the order of their keys.
fn leaf_pages(pool: &Pool, page: PageId, found: &mut Vec<u64>) {
    let bytes = pool.shared(Extent::page(page)).unwrap().page().to_vec();
    let view = NodeView::new(&bytes[..]);
    if view.is_leaf() {
        found.push(page.0);
    }
    view.children().for_each(|child| leaf_pages(pool, child, found));
}

#[test]
fn leaves_are_full_and_consecutive() {
    for pool_pages in [64, 1 << 16] {
        let pool = Pool::create_on(Arc::new(SimulatedFile::new(1)), &options(pool_pages)).unwrap();
        let tree = create_tree(&pool).unwrap();
        load(&tree, &numbered(60_000, 120), 100).unwrap();
        let shape = tree.shape().unwrap();
        assert_eq!((shape.entries, shape.height), (60_000, 3));
        // No leaf but the last has room for one record more.
        assert!(shape.leaf_bytes_used > (shape.leaves - 1) * (3968 - 132), "{shape:?}");
        let mut pages = Vec::new();
        leaf_pages(&pool, tree.root(), &mut pages);
        let neighbours = pages.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert_eq!(pages.len() as u64, shape.leaves);
        assert!(neighbours * 100 > pages.len() * 97, "{neighbours} of {}", pages.len());
        // The pages left of the last run are free again.
        let used = pool.statistics().pages_allocated;
        assert_eq!(used, shape.leaves + shape.inner_nodes + pool.own_extents().len() as u64);
    }
}

#[test]
fn leaves_are_as_full_as_was_asked_for() {
    let pool = Pool::create_on(Arc::new(SimulatedFile::new(1)), &options(4096)).unwrap();
    let tree = create_tree(&pool).unwrap();
    load(&tree, &numbered(20_000, 100), 70).unwrap();
    let shape = verify(&pool, &tree).shape;
    let percent = shape.leaf_bytes_used * 100 / (shape.leaves * 3968);
    assert!((66..=70).contains(&percent), "{percent} %");
}

#[test]
fn keys_out_of_order_are_refused_and_the_load_goes_on() {
    let pool = Pool::create_on(Arc::new(SimulatedFile::new(1)), &options(64)).unwrap();
    let tree = create_tree(&pool).unwrap();
    let mut load = tree.bulk_load(100).unwrap();
    for key in 100..300u64 {
        load.push(&key.to_be_bytes(), &sealed(key, 0, 300)).unwrap();
    }
    let error = load.push(b"\0", b"").unwrap_err();
    assert!(matches!(error, AccessError::KeyOrder { number: 201, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(r#"record 201 of the bulk load has the key "\x00""#), "{text}");
    assert!(text.contains(r#"\x00\x00\x00\x00\x00\x00\x01+"#), "{text}");
    let error = load.push(&299u64.to_be_bytes(), b"").unwrap_err();
    assert!(matches!(error, AccessError::KeyTwice { number: 201, .. }), "{error}");
    let error = load.push(&[9; 1025], b"").unwrap_err();
    assert!(matches!(error, AccessError::KeyTooLong { bytes: 1025 }), "{error}");
    let error = load.push_from(&[9; 5], 5000, &mut &[1; 4999][..]).unwrap_err();
    assert!(matches!(error, AccessError::Source(_)), "{error}");
    let error = load.push_from(&[9; 5], 2 << 30, &mut &[1; 4999][..]).unwrap_err();
    assert!(matches!(error, AccessError::ValueTooLong { .. }), "{error}");
    load.push(&[9; 5], &[7; 3000]).unwrap();
    assert_eq!(load.count(), 201);
    assert_eq!(load.finish().unwrap(), 201);
    let shape = verify(&pool, &tree).shape;
    assert_eq!((shape.entries, shape.large_values), (201, 1));
    // A long key is not shown whole.
    let other = Tree::create(&pool).unwrap();
    let mut load = other.bulk_load(100).unwrap();
    load.push(&[b'x'; 1000], b"").unwrap();
    let text = load.push(&[b'x'; 999], b"").unwrap_err().to_string();
    assert!(text.len() < 500 && text.contains("xxx..."), "{text}");
}

#[test]
fn a_tree_that_holds_something_is_refused() {
    let pool = Pool::create_on(Arc::new(SimulatedFile::new(1)), &options(64)).unwrap();
    let tree = create_tree(&pool).unwrap();
    // A record is inserted while a load is under way.
    let mut load = tree.bulk_load(100).unwrap();
    for key in 0..2000u64 {
        load.push(&key.to_be_bytes(), &sealed(key, 0, if key % 100 == 0 { 5000 } else { 100 })).unwrap();
    }
    assert!(tree.insert(b"key", b"value").unwrap());
    assert!(matches!(load.finish(), Err(AccessError::NotEmpty)));
    assert_eq!(verify(&pool, &tree).shape.entries, 1);
    assert!(matches!(tree.bulk_load(100), Err(AccessError::NotEmpty)));
    // Once the tree is empty again, it can be loaded; a load of nothing works too.
    assert!(tree.remove(b"key").unwrap());
    assert_eq!(tree.bulk_load(100).unwrap().finish().unwrap(), 0);
    let model = numbered(100, 100);
    assert_eq!(self::load(&tree, &model, 100).unwrap(), 100);
    assert_equal(&tree, &model);
    verify(&pool, &tree);
}

#[test]
fn a_load_that_is_dropped_leaves_nothing_behind() {
    for (pool_pages, background) in [(24, false), (64, true), (4096, true)] {
        let options = options(pool_pages).background_eviction(background);
        let pool = Pool::create_on(Arc::new(SimulatedFile::new(1)), &options).unwrap();
        let tree = create_tree(&pool).unwrap();
        for count in [0, 1, 100, 5000] {
            let before = pool.statistics().pages_allocated;
            let mut load = tree.bulk_load(90).unwrap();
            for key in 0..count {
                let length = if key % 50 == 1 { 10_000 } else { 100 };
                load.push(&u64::to_be_bytes(key), &sealed(key, 0, length)).unwrap();
            }
            drop(load);
            assert_eq!(pool.statistics().pages_allocated, before);
            assert_eq!(verify(&pool, &tree).shape.entries, 0);
        }
        // The space is used again.
        let model = numbered(5000, 100);
        let end = pool.statistics().pages_in_file;
        load(&tree, &model, 100).unwrap();
        assert_eq!(pool.statistics().pages_in_file, end);
        assert_equal(&tree, &model);
        verify(&pool, &tree);
        pool.close().unwrap();
    }
}

#[test]
fn a_load_that_is_forgotten_does_not_keep_the_file_from_opening() {
    for (pool_pages, count) in [(4096, 1), (4096, 5000), (64, 5000)] {
        let file = SimulatedFile::new(1);
        let pool = Pool::create_on(Arc::new(file.clone()), &options(pool_pages)).unwrap();
        let tree = create_tree(&pool).unwrap();
        let mut load = tree.bulk_load(90).unwrap();
        for key in 0..count {
            let length = if key % 50 == 1 { 10_000 } else { 100 };
            load.push(&u64::to_be_bytes(key), &sealed(key, 0, length)).unwrap();
        }
        std::mem::forget(load);
        let model = numbered(100, 100);
        self::load(&tree, &model, 100).unwrap();
        pool.close().unwrap();
        let pool = Pool::open_on(Arc::new(file), &options(pool_pages)).unwrap();
        assert_equal(&open_tree(&pool), &model);
    }
}

#[test]
fn free_space_is_used_before_the_file_grows() {
    let pool = Pool::create_on(Arc::new(SimulatedFile::new(1)), &options(256)).unwrap();
    let tree = create_tree(&pool).unwrap();
    let others: Vec<_> = (0..20)
        .map(|_| {
            let other = Tree::create(&pool).unwrap();
            load(&other, &numbered(1000, 100), 100).unwrap();
            other
        })
        .collect();
    let end = pool.statistics().pages_in_file;
    others.into_iter().for_each(|other| other.destroy().unwrap());
    let model = numbered(18_000, 100);
    load(&tree, &model, 100).unwrap();
    assert_eq!(pool.statistics().pages_in_file, end);
    assert_equal(&tree, &model);
    verify(&pool, &tree);
}

#[test]
fn what_others_use_stays_in_memory() {
    let pool = Pool::create_on(Arc::new(SimulatedFile::new(1)), &options(1024)).unwrap();
    let (used, loaded) = (create_tree(&pool).unwrap(), Tree::create(&pool).unwrap());
    for key in 0..10_000u64 {
        used.insert(&key.to_be_bytes(), &sealed(key, 0, 150)).unwrap();
    }
    let read_all = || {
        for key in (0..10_000u64).step_by(5) {
            used.get(&key.to_be_bytes()).unwrap().unwrap();
        }
    };
    read_all();
    let before = pool.statistics();
    load(&loaded, &numbered(200_000, 120), 100).unwrap();
    let after = pool.statistics();
    assert!(after.pages_evicted - before.pages_evicted < 64, "{before:?}\n{after:?}");
    assert!(after.pages_resident <= 1024);
    read_all();
    assert!(pool.statistics().misses - after.misses < 64, "{:?}", pool.statistics());
    assert_eq!(loaded.shape().unwrap().entries, 200_000);
}

/// A separator that is off by one would lead to the wrong leaf: `verify` sees it.
#[test]
fn a_wrong_separator_is_found() {
    let pool = Pool::create_on(Arc::new(SimulatedFile::new(1)), &options(4096)).unwrap();
    let tree = create_tree(&pool).unwrap();
    load(&tree, &numbered(10_000, 120), 100).unwrap();
    verify(&pool, &tree);
    let mut guard = pool.exclusive(Extent::page(tree.root())).unwrap();
    let (mut key, right) = {
        let view = NodeView::new(guard.page());
        let mut key = Vec::new();
        view.append_key(0, &mut key);
        (key, view.child_at(view.child_place(1)))
    };
    let mut node = NodeMut::new(guard.page_mut());
    node.remove_separator(0).unwrap();
    *key.last_mut().unwrap() -= 1;
    node.insert_separator(&key, right).unwrap();
    drop(guard);
    let found = problems(&pool, &tree).0;
    let expected = "its fences are not the separators of its parent";
    assert!(found.iter().any(|problem| problem.contains(expected)), "{found:?}");
}

/// The records that are loaded while I/O fails: small values and large ones, within the pool and past it.
fn faulty_model() -> Model {
    let length = |key: u64| match key % 40 {
        7 => 5000,
        20 if key < 40 => 60_000,
        _ => 300,
    };
    (0..500u64).map(|key| (key.to_be_bytes().to_vec(), sealed(key, 0, length(key)))).collect()
}

#[test]
fn the_nth_operation_fails() {
    let options = options(24).background_eviction(false);
    let model = faulty_model();
    let before = |file: &SimulatedFile| {
        let pool = Pool::create_on(Arc::new(file.clone()), &options).unwrap();
        create_tree(&pool).unwrap();
        pool
    };
    let file = SimulatedFile::new(1);
    let pool = before(&file);
    let start = file.counts().total();
    load(&open_tree(&pool), &model, 100).unwrap();
    let operations = file.counts().total() - start;
    assert!(operations > 20, "{operations} operations");
    drop(pool);
    let mut failures = 0;
    for n in 1..=operations {
        for transient in [true, false] {
            let file = SimulatedFile::new(n);
            let pool = before(&file);
            let (tree, allocated) = (open_tree(&pool), pool.statistics().pages_allocated);
            if transient {
                file.fail_nth(n)
            } else {
                file.fail_from(n)
            }
            let error = match load(&tree, &model, 100) {
                Err(error) => error,
                // The file could not grow by as much as it should, and grew later.
                Ok(_) if transient => {
                    assert_equal(&tree, &model);
                    verify(&pool, &tree);
                    continue;
                }
                Ok(_) => panic!("operation {n} and all later ones failed unnoticed"),
            };
            failures += 1;
            assert!(matches!(error, AccessError::Pool(_)), "{error}");
            // Freeing reads nothing, so all is free although no I/O works any more.
            assert_eq!(pool.statistics().pages_allocated, allocated, "operation {n}: {error}");
            file.heal();
            assert_eq!(verify(&pool, &tree).shape.entries, 0);
            load(&tree, &model, 100).unwrap();
            assert_equal(&tree, &model);
            verify(&pool, &tree);
            pool.close().unwrap();
        }
    }
    assert!(failures * 2 > operations * 3, "{failures} of {operations} operations, twice each");
}

#[test]
fn a_load_that_has_failed_says_so() {
    let file = SimulatedFile::new(1);
    let pool = Pool::create_on(Arc::new(file.clone()), &options(24)).unwrap();
    let tree = create_tree(&pool).unwrap();
    let mut load = tree.bulk_load(100).unwrap();
    load.push(b"a", b"").unwrap();
    file.fail_from(1);
    let mut key = 0u64;
    let failure = loop {
        key += 1;
        if let Err(error) = load.push(format!("b{key:09}").as_bytes(), &[1; 200]) {
            break error;
        }
    };
    assert!(matches!(failure, AccessError::Pool(PoolError::Write { .. } | PoolError::StorageFull { .. })));
    assert!(matches!(load.push(b"c", b""), Err(AccessError::LoadFailed)));
    assert!(matches!(load.finish(), Err(AccessError::LoadFailed)));
    file.heal();
    assert_eq!(verify(&pool, &tree).shape.entries, 0);
}

#[test]
fn a_full_disk_at_any_size_is_an_error_and_loses_nothing() {
    let (model, options) = (faulty_model(), options(24));
    let (mut refused, mut fitted) = (0, 0);
    for capacity in (8..=200).chain((200..800).step_by(37)) {
        let file = SimulatedFile::new(capacity);
        let pool = Pool::create_on(Arc::new(file.clone()), &options).unwrap();
        file.set_faults(Faults { capacity_bytes: Some(capacity * 4096), ..Faults::default() });
        let tree = create_tree(&pool).unwrap();
        let allocated = pool.statistics().pages_allocated;
        match load(&tree, &model, 100) {
            Ok(_) => {
                fitted += 1;
                assert_equal(&tree, &model);
            }
            Err(error) => {
                refused += 1;
                assert!(matches!(error, AccessError::Pool(PoolError::StorageFull { .. })), "{error}");
                assert_eq!(pool.statistics().pages_allocated, allocated);
            }
        }
        verify(&pool, &tree);
    }
    assert!(refused > 10 && fitted > 0, "{refused} refused, {fitted} fitted");
}

/// Other threads read and write another tree, and look at the loaded one, meanwhile.
#[test]
fn it_appears_at_once_while_others_are_at_work() {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::create(directory.path().join("tree"), &options(256)).unwrap();
    let (tree, other) = (create_tree(&pool).unwrap(), Tree::create(&pool).unwrap());
    let (model, over) = (numbered(30_000, 100), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            load(&tree, &model, 100).unwrap();
            over.store(true, Ordering::Relaxed);
        });
        scope.spawn(|| {
            // This thread frees and allocates pages that the loader may have been given or will be.
            for round in 0..20u64 {
                for key in 0..300u64 {
                    other.upsert(&key.to_be_bytes(), &sealed(key, round, 500)).unwrap();
                }
                for key in 0..300u64 {
                    assert!(other.remove(&key.to_be_bytes()).unwrap());
                }
            }
        });
        scope.spawn(|| {
            let mut seen = false;
            while !over.load(Ordering::Relaxed) {
                let first = tree.get(&0u64.to_be_bytes()).unwrap().is_some();
                let last = tree.get(&29_999u64.to_be_bytes()).unwrap().is_some();
                assert!((first || !seen) && (last || !first), "a part of the load was seen");
                seen = first;
            }
        });
    });
    assert_equal(&tree, &model);
    let mut owned: std::collections::HashSet<_> = pool.own_extents().into_iter().collect();
    for tree in [&tree, &other] {
        let report = tree.verify(|extent| owned.insert(extent));
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
    pool.for_each_extent(|extent| assert!(owned.contains(&extent), "{extent} belongs to nothing"));
}
