//! Tests of the index by itself.

use super::*;
use crate::layout::mix;
use std::collections::HashMap;

fn get(index: &Index, hash: u64) -> Option<u64> {
    index.find(hash, |entry| Look::Found(entry.at))
}

/// Whether the entry of a key leads to the key's place. A thread that searches while others write must ask so: an entry
/// that is taken again may show the hash that it had and the place that it has, which the store tells by the record.
fn leads_to(index: &Index, hash: u64, place: u64) -> bool {
    let look = |entry: Entry<'_>| if entry.at == place { Look::Found(()) } else { Look::Pass };
    index.find(hash, look).is_some()
}

fn all(index: &Index) -> Vec<u64> {
    let (mut seen, mut hashes, mut cursor) = (Vec::new(), Vec::new(), Some(0));
    while let Some(at) = cursor {
        cursor = index.visit(at, &mut hashes);
        seen.extend_from_slice(&hashes);
    }
    seen
}

#[test]
fn it_behaves_as_a_map_through_many_splits() {
    let index = Index::new(1 << 12, false).unwrap();
    let mut model = HashMap::new();
    for step in 0..200_000u64 {
        let hash = mix(step % 70_000 + 1);
        let place = step + 2;
        match model.get(&hash).copied() {
            Some(old) if step % 3 == 0 => {
                index.remove(hash, old);
                model.remove(&hash);
            }
            Some(old) => {
                index.replace(hash, old, place);
                model.insert(hash, place);
            }
            None => {
                index.insert(hash, place);
                model.insert(hash, place);
            }
        }
    }
    assert_eq!(index.len(), model.len() as u64);
    assert!(index.segments.load(Ordering::Relaxed) > 16);
    for step in 0..80_000u64 {
        let hash = mix(step + 1);
        assert_eq!(get(&index, hash), model.get(&hash).copied());
    }
    let mut seen = all(&index);
    seen.sort_unstable();
    let mut expected: Vec<u64> = model.keys().copied().collect();
    expected.sort_unstable();
    assert_eq!(seen, expected);
}

#[test]
fn equal_hashes_of_different_keys_all_have_entries() {
    let index = Index::new(1 << 6, false).unwrap();
    // More than the buckets that an entry may be in can hold.
    let places: Vec<u64> = (2..102).collect();
    places.iter().for_each(|place| index.insert(7, *place));
    assert!(index.overflowing.load(Ordering::Relaxed) > 0);
    let found =
        |wanted| index.find(7, |e| if e.at == wanted { Look::Found(e.still_holds()) } else { Look::Pass });
    assert!(places.iter().all(|place| found(*place) == Some(true)));
    assert_eq!(index.len(), 100);
    assert_eq!(all(&index), [7]);
    for place in &places {
        index.replace(7, *place, place + 1000);
        assert_eq!(found(*place), None);
        index.remove(7, place + 1000);
    }
    assert_eq!((index.len(), all(&index).len()), (0, 0));
}

#[test]
fn an_index_that_may_not_grow_still_takes_everything() {
    let index = Index::new(1, false).unwrap();
    for key in 1..=5000u64 {
        index.insert(mix(key), key + 1);
    }
    assert!((1..=5000u64).all(|key| get(&index, mix(key)) == Some(key + 1)));
    assert_eq!(all(&index).len(), 5000);
}

#[test]
fn readers_find_what_is_there_while_others_make_it_grow() {
    let index = Index::new(1 << 10, false).unwrap();
    for key in 1..=1000u64 {
        index.insert(mix(key), key + 1);
    }
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let index = &index;
            scope.spawn(move || {
                for key in 1..=50_000u64 {
                    let key = key * 2 + thread + 10_000;
                    index.insert(mix(key), key);
                }
            });
        }
        scope.spawn(|| {
            for round in 0..100u64 {
                for key in 1..=1000u64 {
                    assert!(
                        leads_to(&index, mix(key), key + 1),
                        "round {round}: the entry of {key} was not found"
                    );
                }
                let hashes = all(&index);
                let distinct: std::collections::HashSet<_> = hashes.iter().collect();
                assert_eq!(distinct.len(), hashes.len(), "an entry was visited twice");
                assert!((1..=1000u64).all(|key| distinct.contains(&mix(key))), "an entry was not visited");
            }
        });
    });
    assert_eq!(index.len(), 101_000);
}

#[test]
fn an_index_that_expects_entries_takes_them_and_more() {
    for (segments_max, expected) in [(1 << 8, 0), (1 << 8, 50_000), (1 << 8, u64::MAX >> 20), (3, 1 << 20)] {
        let index = Index::new(segments_max, false).unwrap();
        index.expect(expected);
        for key in 1..=60_000u64 {
            index.insert(mix(key), key + 1);
        }
        assert!((1..=60_000u64).all(|key| get(&index, mix(key)) == Some(key + 1)));
        let mut hashes = all(&index);
        hashes.dedup();
        assert_eq!(hashes.len(), 60_000, "{segments_max} {expected}");
    }
}
