//! Cursors at the edges: of their range, of leaves that split and merge under them, of storage that fails.

use crate::support::{create_tree, options};
use std::{ops::Bound, sync::Arc};
use vellum_access::{Cursor, Tree};
use vellum_pool::Pool;
use vellum_vm::{FileOperation, SimulatedFile};

const KEYS: u64 = 400;

/// Even numbers, a few dozen in a leaf.
fn with_tree(test: impl FnOnce(&SimulatedFile, &Tree<'_, Pool>)) {
    let file = SimulatedFile::new(1);
    let pool = Pool::create_on(Arc::new(file.clone()), &options(16).background_eviction(false)).unwrap();
    let tree = create_tree(&pool).unwrap();
    for key in (0..KEYS).step_by(2) {
        tree.insert(&key.to_be_bytes(), &[7; 200]).unwrap();
    }
    assert!(tree.shape().unwrap().leaves > 8);
    test(&file, &tree);
}

fn next(cursor: &mut Cursor<'_, Pool>) -> Option<u64> {
    cursor.next().unwrap().map(|entry| u64::from_be_bytes(entry.key().try_into().unwrap()))
}

fn previous(cursor: &mut Cursor<'_, Pool>) -> Option<u64> {
    cursor.previous().unwrap().map(|entry| u64::from_be_bytes(entry.key().try_into().unwrap()))
}

#[test]
fn ranges_with_all_kinds_of_bounds() {
    with_tree(|_, tree| {
        // Bounds that are there and bounds that are not, within a leaf, at its edges, beyond all keys.
        for lower in (0..KEYS + 4).step_by(23).chain([KEYS - 2, KEYS - 1]) {
            for upper in (0..KEYS + 4).step_by(29).chain([lower, lower + 1, lower + 2]) {
                let (low, high) = (lower.to_be_bytes(), upper.to_be_bytes());
                for (from, to) in [
                    (Bound::Included(&low[..]), Bound::Included(&high[..])),
                    (Bound::Included(&low[..]), Bound::Excluded(&high[..])),
                    (Bound::Excluded(&low[..]), Bound::Included(&high[..])),
                    (Bound::Excluded(&low[..]), Bound::Excluded(&high[..])),
                    (Bound::Unbounded, Bound::Excluded(&high[..])),
                    (Bound::Excluded(&low[..]), Bound::Unbounded),
                ] {
                    let within = |key: &u64| {
                        let key = key.to_be_bytes();
                        let above = match from {
                            Bound::Included(low) => key[..] >= *low,
                            Bound::Excluded(low) => key[..] > *low,
                            Bound::Unbounded => true,
                        };
                        above
                            && match to {
                                Bound::Included(high) => key[..] <= *high,
                                Bound::Excluded(high) => key[..] < *high,
                                Bound::Unbounded => true,
                            }
                    };
                    let expected: Vec<u64> = (0..KEYS).step_by(2).filter(within).collect();
                    let mut cursor = tree.range(from, to).unwrap();
                    assert_eq!(previous(&mut cursor), None);
                    let found: Vec<u64> = std::iter::from_fn(|| next(&mut cursor)).collect();
                    assert_eq!(found, expected, "{from:?} {to:?}");
                    assert_eq!(next(&mut cursor), None);
                    let found: Vec<u64> = std::iter::from_fn(|| previous(&mut cursor)).collect();
                    assert!(found.iter().rev().eq(&expected), "{from:?} {to:?}, backwards");
                    cursor.seek_to_end();
                    assert_eq!(next(&mut cursor), None);
                    assert_eq!(previous(&mut cursor), expected.last().copied());
                    cursor.seek_to_start();
                    assert_eq!(next(&mut cursor), expected.first().copied());
                }
            }
        }
    });
}

#[test]
fn a_seek_stays_within_the_range() {
    with_tree(|_, tree| {
        let (low, high) = (100u64.to_be_bytes(), 201u64.to_be_bytes());
        let mut cursor = tree.range(Bound::Included(&low), Bound::Excluded(&high)).unwrap();
        for (to, before, after) in [
            (0, None, Some(100)),
            (99, None, Some(100)),
            (100, None, Some(100)),
            (101, Some(100), Some(102)),
            (150, Some(148), Some(150)),
            (200, Some(198), Some(200)),
            (201, Some(200), None),
            (390, Some(200), None),
        ] {
            let to: u64 = to;
            cursor.seek(&to.to_be_bytes()).unwrap();
            assert_eq!(next(&mut cursor), after, "{to}");
            cursor.seek(&to.to_be_bytes()).unwrap();
            assert_eq!(previous(&mut cursor), before, "{to}");
        }
        assert!(cursor.seek(&[0; 1025]).is_err());
        assert!(tree.range(Bound::Included(&[0; 1025]), Bound::Unbounded).is_err());
    });
}

/// The leaf in which a cursor stands is merged with the next one, or with the one before, or split.
#[test]
fn leaves_that_merge_or_split_under_a_cursor_show_nothing_twice() {
    for stop in [60, 75, 90, 105, 120] {
        for backwards in [false, true] {
            for splitting in [false, true] {
                with_tree(|_, tree| {
                    let mut cursor = tree.range(Bound::Unbounded, Bound::Unbounded).unwrap();
                    if backwards {
                        cursor.seek_to_end();
                    }
                    let mut step = || if backwards { previous(&mut cursor) } else { next(&mut cursor) };
                    let mut seen: Vec<u64> = (0..stop).filter_map(|_| step()).collect();
                    // Every tenth key stays throughout; what is between comes or goes.
                    for key in (0..KEYS).filter(|key| key % 10 != 0) {
                        if splitting {
                            tree.upsert(&key.to_be_bytes(), &[8; 200]).unwrap();
                        } else {
                            tree.remove(&key.to_be_bytes()).unwrap();
                        }
                    }
                    seen.extend(std::iter::from_fn(step));
                    if backwards {
                        seen.reverse();
                    }
                    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "{seen:?}");
                    let staying = seen.into_iter().filter(|key| key % 10 == 0);
                    assert!(staying.eq((0..KEYS).step_by(10)), "stopped at {stop}");
                });
            }
        }
    }
}

#[test]
fn a_step_that_fails_can_be_tried_again() {
    with_tree(|file, tree| {
        // So large that the pool holds only a part of the tree.
        for key in (0..KEYS).step_by(2) {
            tree.upsert(&key.to_be_bytes(), &[7; 900]).unwrap();
        }
        for backwards in [false, true] {
            let mut cursor = tree.range(Bound::Unbounded, Bound::Unbounded).unwrap();
            if backwards {
                cursor.seek_to_end();
            }
            let (mut seen, mut failures, mut failed) = (Vec::new(), 0, false);
            loop {
                // Each step that reads fails at first.
                if !failed {
                    file.fail_nth_of(FileOperation::Read, 1);
                }
                let step = if backwards { cursor.previous() } else { cursor.next() };
                failed = step.is_err();
                match step {
                    Ok(Some(entry)) => seen.push(u64::from_be_bytes(entry.key().try_into().unwrap())),
                    Ok(None) => break,
                    Err(_) => failures += 1,
                }
                file.heal();
            }
            file.heal();
            if backwards {
                seen.reverse();
            }
            assert!(seen.into_iter().eq((0..KEYS).step_by(2)));
            assert!(failures > 4, "{failures} steps failed");
        }
    });
}

#[test]
fn an_empty_tree_has_nothing_in_either_direction() {
    let file = SimulatedFile::new(1);
    let pool = Pool::create_on(Arc::new(file), &options(16)).unwrap();
    let tree = create_tree(&pool).unwrap();
    let mut cursor = tree.range(Bound::Unbounded, Bound::Unbounded).unwrap();
    assert_eq!((next(&mut cursor), previous(&mut cursor)), (None, None));
    cursor.seek_to_end();
    assert_eq!((previous(&mut cursor), next(&mut cursor)), (None, None));
    // The empty key is a key like any other, and the first.
    tree.insert(b"", b"nothing").unwrap();
    cursor.seek(b"").unwrap();
    assert_eq!(cursor.next().unwrap().unwrap().key(), b"");
    assert!(cursor.next().unwrap().is_none());
}
