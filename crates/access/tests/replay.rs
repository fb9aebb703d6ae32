//! Threads change trees larger than memory at random, and all changes are recorded. Redone from the records, page by
//! page, they give every byte of every page, except for the checksums, which depend on when a page was written. Undone
//! with the old values in the records, they give the entries of the beginning. Planted bugs in either are noticed.

mod recording;
mod support;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use recording::{Alter, History, RecordingPager, as_it_is, no_room};
use std::{collections::HashMap, thread};
use support::{options, seed};
use vellum_access::{AccessError, Batch, PageChange, Task, Tree, ValueImage, node::NodeMut};
use vellum_base::{Extent, PageId};
use vellum_pool::{AppendHints, Pool};

const THREADS: u64 = 3;
const KEYS: u64 = 1500;

/// A long or a short key; the order of the keys is not that of their numbers.
fn key(number: u64) -> Vec<u8> {
    let mut key = (number % 7 * KEYS + number).to_be_bytes()[5..].to_vec();
    if number.is_multiple_of(3) {
        key.resize(8 + (number % 200) as usize, b'k');
    }
    key
}

fn value(random: &mut StdRng) -> Vec<u8> {
    let length = match random.random_range(0..60) {
        0 => random.random_range(30_000..80_000),
        1..3 => random.random_range(1025..9000),
        3..10 => random.random_range(200..=1024),
        _ => random.random_range(0..150),
    };
    (0..length).map(|at| (at as u8).wrapping_mul(31) ^ random.random::<u8>() & 1).collect()
}

/// Retries an operation that finds all pages latched for a moment, as may happen in a pool of a few pages.
fn retry<T>(mut operation: impl FnMut() -> Result<T, AccessError>) -> T {
    loop {
        let result = operation();
        if !no_room(&result) {
            return result.unwrap();
        }
    }
}

/// One random operation on the tree that all threads share.
fn change(pager: &RecordingPager, tree: &Tree<'_, RecordingPager>, random: &mut StdRng, growing: bool) {
    let number = random.random_range(0..KEYS);
    let key = key(number);
    match random.random_range(0..24) {
        0..4 => drop(retry(|| {
            tree.modify(&key, |value| {
                value.iter_mut().take(9).skip(2).for_each(|byte| *byte = byte.wrapping_add(1))
            })
        })),
        4 => drop(retry(|| tree.modify(&key, |value| value.len()))),
        5..7 => {
            let value = value(random);
            retry(|| tree.update(&key, &value));
        }
        7 => {
            let keys: Vec<_> = (number..number + 20).map(self::key).collect();
            let add = |index: usize, value: &mut [u8]| value.iter_mut().for_each(|byte| *byte ^= index as u8);
            tree.multi_modify(&keys, 8, add, |_, result| {
                unless_no_room(result);
            });
        }
        8 => batch(pager, tree, random, number),
        9 => pager.see(PageId(random.random_range(2..600))),
        10..15 if growing => {
            let value = value(random);
            retry(|| tree.insert(&key, &value));
        }
        15..20 if growing => {
            let value = value(random);
            retry(|| tree.upsert(&key, &value));
        }
        _ if growing && random.random_ratio(2, 3) => drop(retry(|| tree.get(&key))),
        _ => drop(retry(|| tree.remove(&key))),
    }
}

/// One of many operations may find no room; it has then changed nothing.
fn unless_no_room<T>(result: Result<T, AccessError>) -> Option<T> {
    if no_room(&result) { None } else { Some(result.unwrap()) }
}

fn batch<'p>(pager: &'p RecordingPager, tree: &Tree<'p, RecordingPager>, random: &mut StdRng, number: u64) {
    let mut tasks = Vec::new();
    for number in number..number + 30 {
        let task = match random.random_range(0..4) {
            0 => Task::Upsert(value(random)),
            1 => Task::Insert(value(random)),
            2 => Task::Update(value(random)),
            _ => Task::Remove,
        };
        tasks.push((key(number), task));
    }
    Batch::new(pager, 8).run(*tree, tasks, |_, answer| {
        unless_no_room(answer.map(drop));
    });
}

/// Trees that come and go: loaded in bulk or appended to, changed, and destroyed; some loads fail. The last one is only
/// appended to, and stays.
fn trees_of_its_own(pager: &RecordingPager, random: &mut StdRng, rounds: u64) {
    for round in 0..rounds {
        let hints = AppendHints::default();
        let tree = retry(|| Tree::create(pager)).with_append_hints(&hints);
        let is_last = round + 1 == rounds;
        let count = if is_last { 2000 } else { random.random_range(0..2000u64) };
        if !is_last && round.is_multiple_of(2) {
            let mut load = retry(|| tree.bulk_load(80));
            for number in 0..count {
                let value = if number == 700 { vec![7; 50_000] } else { vec![number as u8; 60] };
                if no_room(&load.push(&number.to_be_bytes(), &value)) {
                    break;
                }
            }
            if !round.is_multiple_of(6) {
                unless_no_room(load.finish());
            }
        }
        for number in count..2 * count {
            retry(|| tree.insert(&number.to_be_bytes(), &number.to_le_bytes()));
        }
        if is_last {
            return;
        }
        for number in 0..2 * count {
            retry(|| tree.remove(&(number * 7 % (2 * count)).to_be_bytes()));
            if round.is_multiple_of(3) && number == count {
                break;
            }
        }
        retry(|| tree.destroy());
    }
}

/// Runs some threads on a pool of a few pages that holds a tree with records.
fn run(operations: u64, beside: impl FnOnce(&RecordingPager, PageId)) -> (History, PageId) {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::create(directory.path().join("tree"), &options(64)).unwrap();
    let mut random = StdRng::seed_from_u64(seed());
    let tree = Tree::create(&pool).unwrap();
    for number in 0..KEYS / 2 {
        tree.insert(&key(2 * number), &value(&mut random)).unwrap();
    }
    let root = tree.root();
    let pager = RecordingPager::new(pool);
    let start = pager.extents();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (pager, mut random) = (&pager, StdRng::seed_from_u64(seed() * 100 + thread));
            scope.spawn(move || {
                let tree = Tree::open(pager, root);
                for step in 0..operations {
                    change(pager, &tree, &mut random, step * 4 / operations % 2 == 1);
                }
            });
        }
        trees_of_its_own(&pager, &mut random, operations / 150);
    });
    beside(&pager, root);
    let found = Tree::open(&pager, root).verify(|_| true).problems;
    assert!(found.is_empty(), "{found:#?}");
    let evicted = pager.pool.statistics().pages_evicted;
    assert!(evicted > operations / 2, "nearly all of it fit into memory: {evicted}");
    (pager.history(start), root)
}

#[test]
fn all_changes_are_redone_and_undone_from_their_records() {
    let (history, tree) = run(6000, |_, _| {});
    let kinds = history.kinds();
    println!("{} records, {kinds:?}, {} pages at the end", history.records.len(), history.end.len());
    assert_eq!(kinds.len(), 14, "some kind of change did not happen: {kinds:?}");
    for order in 0..3 {
        history.redo(order, &as_it_is).unwrap();
    }
    history.undo(tree, &as_it_is).unwrap();
    large_values_are_written_before_they_are_referred_to(&history);
}

fn large_values_are_written_before_they_are_referred_to(history: &History) {
    let mut written = HashMap::new();
    for (.., page, change) in history.changes() {
        let refers = match change {
            PageChange::Write { digest, .. } => {
                written.insert(page, digest);
                continue;
            }
            PageChange::Insert { value, .. } | PageChange::Replace { value, .. } => value,
            _ => continue,
        };
        if refers.kind == vellum_access::node::ValueKind::Blob {
            let word = |at: usize| u64::from_le_bytes(refers.bytes[at..at + 8].try_into().unwrap());
            assert_eq!(written.get(&PageId(word(0))), Some(&word(16)));
        }
    }
}

#[test]
fn a_change_past_the_gateway_is_noticed() {
    let changes: [fn(&mut [u8]); 3] =
        [|page| NodeMut::new(page).remove_separator(0).unwrap(), |page| page[2000] ^= 1, |page| page[30] = 1];
    for change in changes {
        let past = |pager: &RecordingPager, root| {
            // A tree of its own: the other one is verified before the history is taken.
            let aside = Tree::create(pager).unwrap();
            for number in 0..600u64 {
                aside.insert(&number.to_be_bytes(), &[7; 40]).unwrap();
            }
            assert_ne!(aside.root(), root);
            change(pager.pool.exclusive(Extent::page(aside.root())).unwrap().page_mut());
        };
        let error = run(300, past).0.redo(0, &as_it_is).unwrap_err();
        assert!(error.starts_with("byte "), "{error}");
    }
}

#[test]
fn a_change_that_is_wrong_on_replay_is_noticed() {
    let (history, _) = run(3000, |_, _| {});
    history.redo(0, &as_it_is).unwrap();
    let kinds = history.kinds();
    assert_eq!(kinds.len(), 14, "some kind of change did not happen: {kinds:?}");
    // All changes of one kind are left out.
    for kind in kinds.keys() {
        let left_out =
            |change: PageChange<'_>| (!format!("{change:?}").starts_with(&format!("{kind} "))).then_some(());
        let alter: Alter<'_> = &|change| left_out(change).map(|()| change);
        assert!(history.redo(0, alter).is_err(), "nobody misses {kind}");
    }
    // Changes are done otherwise.
    let bugs: [(&str, Alter<'_>); 5] = [
        ("a value that lacks its end", &|change| {
            Some(match change {
                PageChange::Insert { key, value: ValueImage { kind, bytes } } if bytes.len() > 24 => {
                    PageChange::Insert { key, value: ValueImage { kind, bytes: &bytes[..bytes.len() - 1] } }
                }
                change => change,
            })
        }),
        ("a patch one byte off", &|change| {
            Some(match change {
                PageChange::Patch { key, offset, bytes, before } if offset > 0 => {
                    PageChange::Patch { key, offset: offset - 1, bytes, before }
                }
                change => change,
            })
        }),
        ("the other child", &|change| {
            Some(match change {
                PageChange::RaiseRoot { left, separator, right } => {
                    PageChange::RaiseRoot { left: right, separator, right: left }
                }
                change => change,
            })
        }),
        ("an old value", &|change| {
            Some(match change {
                PageChange::Replace { key, before, .. } => PageChange::Replace { key, value: before, before },
                change => change,
            })
        }),
        ("another digest", &|change| {
            Some(match change {
                PageChange::Write { kind, pages, digest } => {
                    PageChange::Write { kind, pages, digest: digest ^ 1 }
                }
                change => change,
            })
        }),
    ];
    for (bug, alter) in bugs {
        assert!(history.redo(0, alter).is_err(), "nobody notices {bug}");
    }
}

#[test]
fn a_wrong_before_image_is_noticed() {
    let (history, tree) = run(2000, |_, _| {});
    history.undo(tree, &as_it_is).unwrap();
    const OTHER: ValueImage<'_> =
        ValueImage { kind: vellum_access::node::ValueKind::Inline, bytes: b"another value" };
    let bugs: [(&str, Alter<'_>); 4] = [
        ("of a replaced value", &|change| {
            Some(match change {
                PageChange::Replace { key, value, .. } => PageChange::Replace { key, value, before: OTHER },
                change => change,
            })
        }),
        ("of a removed record", &|change| {
            Some(match change {
                PageChange::Remove { key, .. } => PageChange::Remove { key, before: OTHER },
                change => change,
            })
        }),
        ("of a patch", &|change| {
            Some(match change {
                PageChange::Patch { key, offset, bytes, .. } => {
                    PageChange::Patch { key, offset, bytes, before: bytes }
                }
                change => change,
            })
        }),
        ("of an insertion, which has none, left out", &|change| {
            (!matches!(change, PageChange::Insert { .. })).then_some(change)
        }),
    ];
    for (bug, alter) in bugs {
        assert!(history.undo(tree, alter).is_err(), "nobody notices a wrong image {bug}");
    }
}
