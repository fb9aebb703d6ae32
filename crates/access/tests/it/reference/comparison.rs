//! A tree, and the reference, compared by every way of reading.

use super::{Bug, Reference, World, retry};
use crate::{
    recording::{RecordingPager, no_room},
    support::{
        options,
        records::{key, value},
        verify,
    },
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::ops::{Bound, ControlFlow};
use vellum_access::{AccessError, Answer, Task, Tree};
use vellum_pool::Pool;

/// How many keys there may be.
pub const KEYS: u64 = 500;

/// A tree with some records in a pool of a few pages.
pub fn reference(seed: u64, bug: Bug) -> Reference {
    reference_with(seed, bug, true)
}

/// The same; its changes are recorded or not.
pub fn reference_with(seed: u64, bug: Bug, records: bool) -> Reference {
    let file = vellum_vm::SimulatedFile::new(seed);
    let pool = Pool::create_on(std::sync::Arc::new(file), &options(64)).unwrap();
    let mut random = StdRng::seed_from_u64(seed);
    let tree = Tree::create(&pool).unwrap();
    let mut world = World::new();
    for number in 0..KEYS / 2 {
        let value = value(&mut random);
        assert!(tree.insert(&key(2 * number), &value).unwrap());
        world.insert(key(2 * number), value);
    }
    let root = tree.root();
    let mut pager = RecordingPager::new(pool);
    pager.is_recording = records;
    Reference::new(pager, root, world, bug)
}

pub type Seen<'t> = Tree<'t, RecordingPager>;

/// Compares one record in every way with what should be seen.
pub fn compare_record(tree: &Seen<'_>, world: &World, key: &[u8], random: &mut StdRng) {
    let expected = world.get(key);
    match random.random_range(0..6) {
        0 => assert_eq!(retry(|| tree.get(key)).unwrap().as_ref(), expected),
        1 => {
            let length = retry(|| tree.value_length(key)).unwrap();
            assert_eq!(length, expected.map(|value| value.len() as u64));
        }
        2 => {
            let mut part = Vec::new();
            let range = random.random_range(0..2000)..random.random_range(2000..9000);
            let found = retry(|| tree.get_part_into(key, range.clone(), &mut part)).unwrap();
            assert_eq!(found, expected.is_some());
            if let Some(value) = expected {
                assert_eq!(part, value[range.start.min(value.len())..range.end.min(value.len())]);
            }
        }
        3 => {
            let found = retry(|| tree.value(key)).unwrap();
            assert_eq!(found.as_deref(), expected.map(|value| &value[..]));
        }
        4 => {
            if let Some(mut reader) = retry(|| tree.reader(key)).unwrap() {
                let mut values = vec![0; reader.length() as usize + 1];
                let length = retry(|| reader.read_at(0, &mut values)).unwrap();
                assert_eq!(Some(&values[..length]), expected.map(|value| &value[..]));
            } else {
                assert!(expected.is_none_or(|value| value.len() <= 1024));
            }
        }
        _ => {
            let found = tree.try_now(key, Task::<&[u8]>::Get, |answer| match answer {
                Answer::Value(value) => assert_eq!(value, expected.map(|value| &value[..])),
                other => panic!("{other:?}"),
            });
            assert!(no_room(&found) || found.is_ok());
        }
    }
}

/// Compares all entries, by cursors and in groups.
pub fn compare(tree: &Seen<'_>, world: &World, random: &mut StdRng) {
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    let mut wanting = Vec::new();
    tree.multi_get(&keys, 8, |index, value| match value {
        Ok(value) => assert_eq!(value, world.get(&keys[index]).map(|value| &value[..])),
        error => {
            assert!(no_room(&error.map(drop)));
            wanting.push(index);
        }
    });
    for index in wanting {
        assert_eq!(retry(|| tree.get(&keys[index])).unwrap().as_ref(), world.get(&keys[index]));
    }
    let bounds = [key(random.random_range(0..KEYS)), key(random.random_range(0..KEYS))];
    let [from, to] = if bounds[0] <= bounds[1] { bounds } else { [bounds[1].clone(), bounds[0].clone()] };
    let ranges = [
        (Bound::Unbounded, Bound::Unbounded),
        (Bound::Included(&from[..]), Bound::Excluded(&to[..])),
        (Bound::Excluded(&from[..]), Bound::Included(&to[..])),
    ];
    for (lower, upper) in ranges {
        if from == to && lower != Bound::Unbounded {
            continue;
        }
        let expected: Vec<_> = world.range::<[u8], _>((lower, upper)).collect();
        let mut cursor = tree.range(lower, upper).unwrap();
        for (key, value) in &expected {
            let entry = loop {
                match cursor.next() {
                    Err(AccessError::Pool(_)) => {}
                    entry => break entry.unwrap().expect("an entry more"),
                }
            };
            assert_eq!((entry.key(), entry.value_length()), (&key[..], value.len() as u64));
            if let Some(inline) = entry.inline_value() {
                assert_eq!(inline, &value[..]);
            } else if random.random_ratio(1, 10) {
                assert_eq!(&retry(|| entry.value()).unwrap().unwrap()[..], &value[..]);
            }
        }
        assert!(cursor.next().unwrap().is_none());
        for (key, _) in expected.iter().rev() {
            assert_eq!(cursor.previous().unwrap().unwrap().key(), &key[..]);
        }
        assert!(cursor.previous().unwrap().is_none());
        let mut rest = expected.iter();
        loop {
            let shown = cursor.scan(|entry| {
                let (key, value) = rest.next().expect("an entry more");
                assert_eq!((entry.key(), entry.value_length()), (&key[..], value.len() as u64));
                assert!(entry.inline_value().is_none_or(|inline| inline == &value[..]));
                if random.random_ratio(1, 5) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            match shown {
                Ok(ControlFlow::Continue(())) => break,
                Ok(ControlFlow::Break(())) | Err(AccessError::Pool(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert!(rest.next().is_none());
        cursor.seek_to_end();
        assert_eq!(
            cursor.previous().unwrap().map(|entry| entry.key().to_vec()).as_ref(),
            expected.last().map(|(key, _)| *key)
        );
        for _ in 0..10 {
            // Between any two, and to and fro.
            let at = key(random.random_range(0..KEYS));
            if lower != Bound::Unbounded && (at < from || at > to) {
                continue;
            }
            cursor.seek(&at).unwrap();
            let mut index = expected.partition_point(|(key, _)| **key < at);
            for _ in 0..20 {
                let entry = if random.random() {
                    index += 1;
                    (cursor.next().unwrap().map(|entry| entry.key().to_vec()), index - 1)
                } else {
                    index = index.wrapping_sub(1);
                    (cursor.previous().unwrap().map(|entry| entry.key().to_vec()), index)
                };
                assert_eq!(entry.0.as_ref(), expected.get(entry.1).map(|(key, _)| *key), "from {at:?}");
                if entry.0.is_none() {
                    break;
                }
            }
        }
    }
}

/// In the end the tree is as the commits have left it, nothing else is left, and the records tell all of it.
pub fn finish(reference: Reference, random: &mut StdRng) {
    let world = reference.world(reference.time());
    compare(&reference.newest(), &world, random);
    compare(&reference.single(), &world, random);
    assert_eq!(reference.left(), (0, 0, 0));
    verify(&reference.pager.pool, &Tree::open(&reference.pager.pool, reference.root));
}
