//! Threads change trees larger than memory at random, and all changes are recorded. Redone from the records, page by
//! page, they give every byte of every page, except for the checksums, which depend on when a page was written. Redone from
//! any checkpoint with all later pages torn, they give every node. The extents of which records tell are those that are
//! allocated. Undone with the old values in the records, they give the entries of the beginning. Planted bugs are noticed.

use crate::recording::{Alter, History, RecordingPager, as_it_is, no_room};
use crate::support::{
    options,
    records::{key, value},
    seed,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::thread;
use vellum_access::{
    AccessError, Batch, PageChange, RecordGroup, Task, Tree, TreeHints, ValueImage, node::NodeMut,
};
use vellum_base::{Extent, Lsn, PageId};
use vellum_pool::Pool;

const THREADS: u64 = 3;
const KEYS: u64 = 1500;
/// How many kinds of changes there are.
const KINDS: usize = 16;

/// A long or a short key; the order of the keys is not that of their numbers.
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
        9 if random.random_ratio(1, 8) => pager.checkpoint(),
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
    Batch::new(pager, 8).run(*tree, tasks, |_, _, answer| {
        unless_no_room(answer.map(drop));
    });
}

/// Makes a tree, and a record of it in the catalog; sometimes neither, because the catalog has the name.
fn create<'p>(
    pager: &'p RecordingPager,
    catalog: &Tree<'p, RecordingPager>,
    name: u64,
) -> Option<Tree<'p, RecordingPager>> {
    loop {
        let mut group = RecordGroup::begin(pager);
        // More trees than one, so that their record is divided.
        let trees = (0..6).map(|_| Tree::create_in(&mut group)).collect::<Result<Vec<_>, _>>();
        if no_room(&trees) {
            continue;
        }
        let trees = trees.unwrap();
        let roots: Vec<_> = trees.iter().flat_map(|tree| tree.root().0.to_le_bytes()).collect();
        let value = [&roots[..], &[7; 900]].concat();
        let inserted = catalog.insert_last(group, &name.to_be_bytes(), &value);
        if !no_room(&inserted) {
            return inserted.unwrap().then(|| trees[0]);
        }
    }
}

/// Frees trees and their record in the catalog.
fn destroy<'p>(pager: &'p RecordingPager, catalog: &Tree<'p, RecordingPager>, name: u64) {
    let collect = |group: &mut _| {
        let roots = retry(|| catalog.get(&name.to_be_bytes())).unwrap();
        for root in roots[..48].chunks(8) {
            let tree = Tree::open(pager, PageId(u64::from_le_bytes(root.try_into().unwrap())));
            if no_room(&tree.destroy_in(group)) {
                return false;
            }
        }
        true
    };
    // A group that is given up changes nothing.
    collect(&mut RecordGroup::begin(pager));
    loop {
        let mut group = RecordGroup::begin(pager);
        if collect(&mut group) {
            let removed = catalog.remove_last(group, &name.to_be_bytes());
            if !no_room(&removed) {
                assert!(removed.unwrap());
                return;
            }
        }
    }
}

/// Trees that come and go: loaded in bulk or appended to, changed, and destroyed; some loads fail. The last one is only
/// appended to, and stays.
fn trees_of_its_own(pager: &RecordingPager, random: &mut StdRng, rounds: u64) {
    let catalog = retry(|| Tree::create(pager));
    for round in 0..rounds {
        let hints = TreeHints::default();
        let tree = create(pager, &catalog, round).unwrap().with_hints(&hints);
        assert!(create(pager, &catalog, round).is_none());
        let is_last = round + 1 == rounds;
        let count = if is_last { 2000 } else { random.random_range(0..2000u64) };
        if !is_last && round.is_multiple_of(2) {
            bulk_load(&tree, count, round);
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
        destroy(pager, &catalog, round);
    }
}

/// Loads a tree, of which every sixth load is dropped, and every sixth refused.
fn bulk_load(tree: &Tree<'_, RecordingPager>, count: u64, round: u64) {
    let mut load = retry(|| tree.bulk_load(80));
    for number in 0..count {
        let value = if number == 700 || number % 16 == 5 { vec![7; 5_000] } else { vec![number as u8; 60] };
        if no_room(&load.push(&number.to_be_bytes(), &value)) {
            return;
        }
    }
    match round % 6 {
        0 => {}
        2 => {
            retry(|| tree.insert(b"", b"makes the tree one that is not empty"));
            let refused = load.finish();
            assert!(count == 0 || no_room(&refused) || matches!(refused, Err(AccessError::NotEmpty)));
        }
        _ => drop(unless_no_room(load.finish())),
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
    println!("{} checkpoints, {} places given up", history.checkpoints.len(), history.cancelled);
    println!("{} groups, and {} incomplete", history.complete_groups(), history.incomplete_groups());
    assert_eq!(kinds.len(), KINDS, "some kind of change did not happen: {kinds:?}");
    assert!(history.cancelled > 0 && history.complete_groups() > 0 && history.incomplete_groups() > 0);
    for order in 0..3 {
        history.check(order, &as_it_is).unwrap();
    }
    history.undo(tree, &as_it_is).unwrap();
    assert!(history.large_values_precede_their_references().unwrap() > 0);
}

#[test]
fn records_that_are_incomplete_or_too_late_are_noticed() {
    let (mut history, _) = run(3000, |_, _| {});
    history.check(0, &as_it_is).unwrap();
    assert!(history.compare_space_of_all().is_err(), "a group counts without its last record");
    // A large value is recorded after its reference.
    history.large_values_precede_their_references().unwrap();
    let refers = |bytes: &[u8]| bytes[0] == 1 && bytes[17] == 13 && bytes[39] <= 2;
    let at = history.records.iter().position(|(_, bytes)| refers(bytes)).unwrap();
    let (lsn, bytes) = &mut history.records[at];
    let late = (Lsn(lsn.0 + 1), bytes[..31].to_vec());
    bytes.drain(9..31);
    history.records.insert(at + 1, late);
    history.check(0, &as_it_is).unwrap();
    assert!(history.large_values_precede_their_references().is_err());
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
    history.check(0, &as_it_is).unwrap();
    let kinds = history.kinds();
    assert_eq!(kinds.len(), KINDS, "some kind of change did not happen: {kinds:?}");
    // All changes of one kind are left out.
    for kind in kinds.keys() {
        let left_out =
            |change: PageChange<'_>| (!format!("{change:?}").starts_with(&format!("{kind} "))).then_some(());
        let alter: Alter<'_> = &|change| left_out(change).map(|()| change);
        assert!(history.check(0, alter).is_err(), "nobody misses {kind}");
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
        ("a run without its last node", &|change| {
            Some(match change {
                PageChange::Nodes { count } => PageChange::Nodes { count: count - 1 },
                change => change,
            })
        }),
    ];
    for (bug, alter) in bugs {
        assert!(history.check(0, alter).is_err(), "nobody notices {bug}");
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
