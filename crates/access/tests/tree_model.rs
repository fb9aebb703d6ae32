//! The tree does what a `BTreeMap` does, with a pool of 64 pages, so that each operation evicts.

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, HashSet},
    ops::Bound,
};
use vellum_access::{Tree, Written};
use vellum_pool::{Pool, PoolOptions};

const OPERATIONS: usize = 20_000;

/// Keys of many shapes: short and long, alike and not, some of them beginnings of others.
fn key(rng: &mut StdRng) -> Vec<u8> {
    let number = rng.random_range(0..3000u64);
    match number % 4 {
        0 => number.to_be_bytes().to_vec(),
        1 => format!("a prefix that many keys share/{number}").into_bytes(),
        2 => vec![b'x'; (number % 1025) as usize],
        _ => number.to_le_bytes()[..2].to_vec(),
    }
}

fn value(rng: &mut StdRng) -> Vec<u8> {
    let length = match rng.random_range(0..20) {
        0 => rng.random_range(1025..20_000),
        1 => rng.random_range(70_000..200_000),
        2..6 => rng.random_range(0..=1024),
        _ => rng.random_range(0..150),
    };
    let mut value = vec![0; length];
    rng.fill_bytes(&mut value);
    value
}

fn verify(pool: &Pool, tree: &Tree<'_, Pool>) {
    let mut owned: HashSet<_> = pool.own_extents().into_iter().collect();
    let report = tree.verify(|extent| {
        assert!(owned.insert(extent), "{extent} belongs to two things");
        true
    });
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    pool.for_each_extent(|extent| assert!(owned.remove(&extent), "{extent} belongs to nothing"));
    assert!(owned.is_empty(), "{owned:?} are not allocated");
}

fn compare(tree: &Tree<'_, Pool>, model: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let mut cursor = tree.range(Bound::Unbounded, Bound::Unbounded).unwrap();
    for (key, value) in model {
        let entry = cursor.next().unwrap().unwrap();
        assert_eq!(entry.key(), key);
        assert_eq!(&entry.value().unwrap().unwrap()[..], &value[..]);
    }
    assert!(cursor.next().unwrap().is_none());
    for key in model.keys().rev() {
        assert_eq!(cursor.previous().unwrap().unwrap().key(), key);
    }
    assert!(cursor.previous().unwrap().is_none());
}

#[test]
fn it_does_what_a_btreemap_does() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tree");
    let options = PoolOptions::default().pool_bytes(64 * 4096).capacity_bytes(1 << 32);
    let mut rng = StdRng::seed_from_u64(1);
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let pool = Pool::create(&path, &options).unwrap();
    let tree = Tree::create(&pool).unwrap();
    pool.set_root_slot(0, tree.root().0).unwrap();
    for step in 0..OPERATIONS {
        // First it grows, then it shrinks to almost nothing.
        let growing = step < OPERATIONS * 6 / 10;
        let key = key(&mut rng);
        match rng.random_range(0..10) {
            0 => {
                let value = value(&mut rng);
                let expected = !model.contains_key(&key);
                assert_eq!(tree.insert(&key, &value).unwrap(), expected);
                model.entry(key).or_insert(value);
            }
            1 => {
                let value = value(&mut rng);
                assert_eq!(tree.update(&key, &value).unwrap(), model.contains_key(&key));
                model.entry(key).and_modify(|old| *old = value);
            }
            2..6 if growing => {
                let value = value(&mut rng);
                let written = tree.upsert(&key, &value).unwrap();
                let old = model.insert(key, value);
                assert_eq!(written, if old.is_some() { Written::Replaced } else { Written::Inserted });
            }
            6..8 => {
                let found = tree.value(&key);
                match found {
                    // A value that does not fit into the pool is read in parts.
                    Err(_) => {
                        let mut reader = tree.reader(&key).unwrap().unwrap();
                        let mut bytes = vec![0; reader.length() as usize + 10];
                        let length = reader.read_at(0, &mut bytes).unwrap();
                        assert_eq!(&bytes[..length], model[&key]);
                    }
                    Ok(found) => assert_eq!(found.as_deref(), model.get(&key).map(|value| &value[..])),
                }
                let length = model.get(&key).map(|value| value.len() as u64);
                assert_eq!(tree.value_length(&key).unwrap(), length);
            }
            _ => assert_eq!(tree.remove(&key).unwrap(), model.remove(&key).is_some()),
        }
        if step % 4000 == 0 {
            verify(&pool, &tree);
            compare(&tree, &model);
        }
    }
    verify(&pool, &tree);
    compare(&tree, &model);
    pool.close().unwrap();

    let pool = Pool::open(&path, &options).unwrap();
    let tree = Tree::open(&pool, vellum_base::PageId(pool.root_slot(0)));
    verify(&pool, &tree);
    compare(&tree, &model);
    for key in model.keys() {
        assert!(tree.remove(key).unwrap());
    }
    verify(&pool, &tree);
    assert_eq!(tree.shape().unwrap().entries, 0);
    assert!(pool.statistics().pages_allocated < 8, "an empty tree keeps {:?}", pool.statistics());
}
