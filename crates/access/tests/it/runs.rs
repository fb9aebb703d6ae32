//! Records that are appended at many places in turn, each place a run in ascending order: a tree agrees with a map
//! whatever the keys look like, and its leaves are full.

use crate::support::{create_tree, options, verify};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{collections::BTreeMap, ops::Bound};
use vellum_access::{Tree, TreeHints, node::MAX_KEY_BYTES};
use vellum_pool::Pool;

/// Appends to `places` runs in turn, up to `group` records at a time, and checks everything. The key of a record is made
/// of its place and its number there. Each place gets equally many, so that all seeds make the same records. Returns the
/// number of leaves.
fn append(sizes: (u32, u32, u32), value_bytes: usize, key: impl Fn(u32, u32) -> Vec<u8>) -> u64 {
    append_as_drawn(crate::support::seed(), sizes, value_bytes, key)
}

fn append_as_drawn(
    seed: u64,
    (records, places, group): (u32, u32, u32),
    value_bytes: usize,
    key: impl Fn(u32, u32) -> Vec<u8>,
) -> u64 {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::create(directory.path().join("tree"), &options(8192)).unwrap();
    let ends = TreeHints::default();
    let tree = create_tree(&pool).unwrap().with_hints(&ends);
    let mut random = StdRng::seed_from_u64(seed);
    let mut open: Vec<_> = (0..places).map(|place| (place, 0..records.div_ceil(places))).collect();
    let mut model = BTreeMap::new();
    while !open.is_empty() {
        let index = random.random_range(0..open.len());
        let (place, numbers) = &mut open[index];
        for number in numbers.by_ref().take(random.random_range(1..=group) as usize) {
            let (key, value) = (key(*place, number), vec![number as u8; value_bytes]);
            assert!(tree.insert(&key, &value).unwrap(), "{key:?}");
            assert!(model.insert(key, value).is_none());
        }
        if numbers.start == numbers.end {
            open.swap_remove(index);
        }
    }
    let shape = verify(&pool, &tree).shape;
    assert_eq!(shape.entries, model.len() as u64);
    agrees(&tree, &model);
    // All records can be removed again.
    for (index, key) in model.keys().enumerate() {
        assert!(index.is_multiple_of(3) || tree.remove(key).unwrap());
    }
    let mut index = 0;
    model.retain(|_, _| {
        index += 1;
        index % 3 == 1
    });
    verify(&pool, &tree);
    agrees(&tree, &model);
    shape.leaves
}

fn agrees(tree: &Tree<'_, Pool>, model: &BTreeMap<Vec<u8>, Vec<u8>>) {
    for (key, value) in model {
        assert_eq!(tree.get(key).unwrap().as_ref(), Some(value), "{key:?}");
    }
    let mut cursor = tree.range(Bound::Unbounded, Bound::Unbounded).unwrap();
    for (key, value) in model {
        let entry = cursor.next().unwrap().unwrap();
        assert_eq!((entry.key(), entry.inline_value()), (&key[..], Some(&value[..])));
    }
    assert!(cursor.next().unwrap().is_none());
}

/// The lines of an order, of which there are ten: the keys of TPC-C.
fn line(place: u32, number: u32) -> Vec<u8> {
    let order = (number / 10).to_be_bytes();
    vec![0, place as u8 / 10, place as u8 % 10, order[1], order[2], order[3], (number % 10) as u8]
}

#[test]
fn lines_of_orders() {
    let leaves = append((30_000, 40, 30), 49, line);
    assert!(leaves <= 505, "{leaves}");
}

#[test]
fn lines_one_by_one() {
    let leaves = append((15_000, 40, 1), 49, line);
    assert!(leaves <= 285, "{leaves}");
}

#[test]
fn lines_of_few_places() {
    let leaves = append((15_000, 3, 10), 30, line);
    assert!(leaves <= 160, "{leaves}");
}

#[test]
fn numbers_with_a_tail() {
    let key = |place: u32, number: u32| {
        [&place.to_be_bytes()[2..], &number.to_be_bytes(), &number.wrapping_mul(0x9e37_79b9).to_be_bytes()]
            .concat()
    };
    let leaves = append((30_000, 40, 10), 20, key);
    assert!(leaves <= 295, "{leaves}");
}

#[test]
fn words_and_numbers() {
    let key = |place, number| format!("customer/{place:04}/order/{number:08}").into_bytes();
    let leaves = append((20_000, 30, 10), 40, key);
    assert!(leaves <= 340, "{leaves}");
}

#[test]
fn bytes_that_are_the_greatest() {
    let key = |place: u32, number: u32| {
        let number = number + 0xff_fff0 - place * 500;
        [&[0xff, 0xf0 + place as u8, 0xff][..], &number.to_be_bytes(), &[0xff; 3]].concat()
    };
    let leaves = append((20_000, 16, 10), 30, key);
    assert!(leaves <= 245, "{leaves}");
}

#[test]
fn places_told_apart_by_the_greatest_bytes() {
    // Each place's keys begin with those of the next one, but for one byte 0xff less.
    let key = |place: u32, number: u32| {
        [&vec![0xff; 40 - place as usize][..], &[7], &number.to_be_bytes()].concat()
    };
    let leaves = append((20_000, 30, 10), 30, key);
    assert!(leaves <= 240, "{leaves}");
}

#[test]
fn longest_keys_that_differ_at_the_end() {
    let key = |place: u32, number: u32| {
        let mut key = vec![b'k'; MAX_KEY_BYTES - 5];
        key.push(place as u8);
        key.extend(number.to_be_bytes());
        key
    };
    let leaves = append((10_000, 10, 10), 40, key);
    assert!(leaves <= 182, "{leaves}");
}

#[test]
fn longest_keys_that_differ_in_the_middle() {
    let key = |place: u32, number: u32| {
        let mut key = vec![b'k'; MAX_KEY_BYTES];
        key[500] = place as u8;
        key[600..604].copy_from_slice(&number.to_be_bytes());
        key
    };
    let leaves = append((2_000, 7, 10), 40, key);
    assert!(leaves <= 400, "{leaves}");
}

#[test]
fn keys_that_begin_with_one_another() {
    let key = |place: u32, number: u32| vec![place as u8; 1 + number as usize];
    let leaves = append((8_000, 20, 10), 10, key);
    assert!(leaves <= 520, "{leaves}");
}

#[test]
fn keys_that_begin_with_one_another_and_the_greatest_byte() {
    let key = |place: u32, number: u32| [&[place as u8][..], &vec![0xff; number as usize]].concat();
    // No fence leaves room for the keys to come, so the number of leaves depends on the order of the keys: a fixed one.
    let leaves = append_as_drawn(0, (8_000, 20, 10), 10, key);
    assert!(leaves <= 690, "{leaves}");
}

#[test]
fn values_of_nothing_and_large_ones() {
    let key = |place: u32, number: u32| [&place.to_be_bytes()[..], &number.to_be_bytes()].concat();
    let leaves = append((40_000, 20, 10), 0, key) + append((4_000, 20, 10), 900, key);
    assert!(leaves <= 1145, "{leaves}");
}
