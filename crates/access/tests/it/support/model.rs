//! A random workload on a tree that is compared with a `BTreeMap`, for any pager.

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, HashSet},
    ops::{Bound, ControlFlow},
};
use vellum_access::{Tree, Written};
use vellum_base::Extent;
use vellum_pool::Pager;

/// The entries that a tree should hold.
pub type Model = BTreeMap<Vec<u8>, Vec<u8>>;

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

/// Asserts that the tree is sound, and that its pages and those that the pool `owned` before are all that is allocated.
pub fn verify<P: Pager>(tree: &Tree<'_, P>, mut owned: HashSet<Extent>, allocated: &[Extent]) {
    let report = tree.verify(|extent| {
        assert!(owned.insert(extent), "{extent} belongs to two things");
        true
    });
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    for extent in allocated {
        assert!(owned.remove(extent), "{extent} belongs to nothing");
    }
    assert!(owned.is_empty(), "{owned:?} are not allocated");
}

/// Asserts that cursors show the entries of the model, in both directions.
pub fn compare<P: Pager>(tree: &Tree<'_, P>, model: &Model) {
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
    // A scan goes on where it was broken off.
    let mut rest = model.iter();
    while cursor
        .scan(|entry| {
            let (key, value) = rest.next().expect("an entry that the model has");
            assert_eq!((entry.key(), entry.value_length()), (&key[..], value.len() as u64));
            assert!(entry.inline_value().is_none_or(|inline| inline == &value[..]));
            if key.len() % 5 == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap()
        .is_break()
    {}
    assert_eq!(rest.next(), None);
}

/// Changes a tree at random, compares every step with the model, and calls `verify` now and then. First the tree grows,
/// then it shrinks to almost nothing.
pub fn run<P: Pager>(tree: &Tree<'_, P>, seed: u64, verify: impl Fn()) -> Model {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut model = Model::new();
    for step in 0..OPERATIONS {
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
            verify();
            compare(tree, &model);
        }
    }
    verify();
    compare(tree, &model);
    model
}
