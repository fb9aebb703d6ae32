//! Transactions on a tree larger than memory, at random. Whatever others do, each sees the entries of the moment when it
//! began, and its own changes, by every way of reading. A change conflicts exactly if another transaction, which this one does
//! not see, has changed the record. What is undone, from what was kept or from the log, is as it was. In the end nothing is left
//! of all that, and the records of the changes give the same pages. Planted bugs are noticed.
//!
//! Over 600 lines: one reference, and one comparison with it, serve all of these tests.

mod recording;
mod reference;
mod support;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use recording::{RecordingPager, as_it_is};
use reference::{Bug, Reference, Transaction, World, retry};
use std::{
    collections::BTreeSet,
    ops::Bound,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};
use support::{options, seed};
use vellum_access::{
    AccessError, Answer, Batch, Claim, Isolation, Task, Tree, ValueImage, View, Writer, Written,
};
use vellum_base::{Lsn, PageId};
use vellum_pool::Pool;

const KEYS: u64 = 500;

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
        1..4 => random.random_range(1025..9000),
        4..15 => random.random_range(200..=1024),
        _ => random.random_range(1..150),
    };
    (0..length).map(|at| (at as u8).wrapping_mul(31) ^ random.random::<u8>() & 1).collect()
}

/// A tree with some records in a pool of a few pages.
fn reference(seed: u64, bug: Bug) -> Reference {
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
    Reference::new(RecordingPager::new(pool), root, world, bug)
}

type Seen<'t> = Tree<'t, RecordingPager>;

/// Compares one record in every way with what should be seen.
fn compare_record(tree: &Seen<'_>, world: &World, key: &[u8], random: &mut StdRng) {
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
                vellum_access::Answer::Value(value) => assert_eq!(value, expected.map(|value| &value[..])),
                other => panic!("{other:?}"),
            });
            assert!(recording::no_room(&found) || found.is_ok());
        }
    }
}

/// Compares all entries, by cursors and in groups.
fn compare(tree: &Seen<'_>, world: &World, random: &mut StdRng) {
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    let mut wanting = Vec::new();
    tree.multi_get(&keys, 8, |index, value| match value {
        Ok(value) => assert_eq!(value, world.get(&keys[index]).map(|value| &value[..])),
        error => {
            assert!(recording::no_room(&error.map(drop)));
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

/// Performs a task by a queue, or at once if that is possible.
fn perform<'t>(
    pager: &'t RecordingPager,
    tree: &Seen<'t>,
    key: &[u8],
    task: Task<&Vec<u8>>,
) -> Result<Answer<'static>, AccessError> {
    let done = |answer: Answer<'_>| match answer {
        Answer::Value(_) => panic!("this is no read"),
        Answer::Written(written) => Answer::Written(written),
        Answer::Removed(removed) => Answer::Removed(removed),
    };
    retry(|| {
        if let Some(answer) = tree.try_now(key, task, done)? {
            return Ok(answer);
        }
        let mut result = None;
        Batch::new(pager, 4).run(*tree, [(key, task)], |_, answer| result = Some(answer.map(done)));
        result.unwrap()
    })
}

/// One random change by a transaction: it does what it should, unless it conflicts.
fn change(
    transaction: &mut Transaction<'_>,
    key: &[u8],
    random: &mut StdRng,
    growing: bool,
) -> Result<(), AccessError> {
    let before = transaction.world.get(key).cloned();
    let tree = transaction.writing();
    let value = value(random);
    let (changed, after) = match random.random_range(0..12) {
        0..2 => {
            let inserted = match random.random() {
                true => retry(|| tree.insert(key, &value))?,
                false => {
                    perform(transaction.pager(), &tree, key, Task::Insert(&value))?
                        == Answer::Written(Written::Inserted)
                }
            };
            assert_eq!(inserted, before.is_none());
            (inserted, if inserted { Some(value) } else { before })
        }
        2..4 => {
            let updated = match random.random() {
                true => retry(|| tree.update(key, &value))?,
                false => {
                    perform(transaction.pager(), &tree, key, Task::Update(&value))?
                        == Answer::Written(Written::Replaced)
                }
            };
            assert_eq!(updated, before.is_some());
            (updated, if updated { Some(value) } else { before })
        }
        4..6 => {
            let mut length = None;
            let by = random.random_range(1..=255u8);
            let mut add = |value: &mut [u8]| {
                length = Some(value.len());
                value.iter_mut().take(3).for_each(|byte| *byte = byte.wrapping_add(by));
            };
            let modified = if random.random() {
                retry(|| tree.modify(key, &mut add))?.is_some()
            } else {
                retry(|| {
                    let mut modified = Ok(false);
                    tree.multi_modify(&[key], 4, |_, value| add(value), |_, result| modified = result);
                    modified
                })?
            };
            assert_eq!(length.filter(|_| modified), before.as_ref().map(Vec::len));
            let mut after = before;
            for byte in after.iter_mut().flatten().take(3) {
                *byte = byte.wrapping_add(by);
            }
            (modified, after)
        }
        6..10 if growing => {
            let written = match random.random_range(0..3) {
                0 => Answer::Written(retry(|| tree.upsert(key, &value))?),
                1 => Answer::Written(retry(|| tree.upsert_from(key, value.len() as u64, &mut &value[..]))?),
                _ => perform(transaction.pager(), &tree, key, Task::Upsert(&value))?,
            };
            assert_eq!(written == Answer::Written(Written::Replaced), before.is_some());
            (true, Some(value))
        }
        _ => {
            let removed = match random.random() {
                true => retry(|| tree.remove(key))?,
                false => perform(transaction.pager(), &tree, key, Task::Remove)? == Answer::Removed(true),
            };
            assert_eq!(removed, before.is_some());
            (removed, None)
        }
    };
    match after {
        Some(value) => drop(transaction.world.insert(key.to_vec(), value)),
        None => drop(transaction.world.remove(key)),
    }
    if changed {
        transaction.changed.insert(key.to_vec());
    }
    Ok(())
}

/// In the end the tree is as the commits have left it, nothing else is left, and the records tell all of it.
fn finish(reference: Reference, random: &mut StdRng) {
    let world = reference.world(reference.time());
    compare(&reference.newest(), &world, random);
    compare(&reference.single(), &world, random);
    assert_eq!(reference.left(), (0, 0, 0));
    support::verify(&reference.pager.pool, &Tree::open(&reference.pager.pool, reference.root));
}

/// Several transactions at once, step by step on one thread. Returns how many conflicts there were.
fn step_by_step(seed: u64, steps: u64, bug: Bug) -> u64 {
    let reference = reference(seed, bug);
    let start = reference.pager.extents();
    let mut random = StdRng::seed_from_u64(seed ^ 0x5eed);
    let mut open: Vec<Transaction<'_>> = Vec::new();
    let mut conflicts = 0;
    for step in 0..steps {
        let growing = (step * 6 / steps).is_multiple_of(2);
        match random.random_range(0..40) {
            0..3 if open.len() < 6 => open.push(reference.begin()),
            3 if !open.is_empty() => {
                let transaction = open.swap_remove(random.random_range(0..open.len()));
                match random.random_range(0..4) {
                    0 => transaction.rollback(false).unwrap(),
                    1 => transaction.rollback(true).unwrap(),
                    _ => transaction.commit(),
                }
            }
            4 => {
                let time = reference.time();
                compare(&reference.single(), &reference.world(time), &mut random);
            }
            5 if !open.is_empty() => {
                let transaction = &open[random.random_range(0..open.len())];
                compare(&transaction.reading(), &transaction.world, &mut random);
            }
            6..12 if !open.is_empty() => {
                let transaction = &open[random.random_range(0..open.len())];
                let key = key(random.random_range(0..KEYS));
                compare_record(&transaction.reading(), &transaction.world, &key, &mut random);
            }
            12..15 => {
                let world = reference.world(reference.time());
                compare_record(&reference.single(), &world, &key(random.random_range(0..KEYS)), &mut random);
            }
            _ if !open.is_empty() => {
                conflicts += u64::from(attempt(&mut open, &reference, &mut random, growing))
            }
            _ => {}
        }
    }
    for transaction in open {
        transaction.commit();
    }
    let history = reference.pager.history(start);
    finish(reference, &mut random);
    history.check(seed, &as_it_is).unwrap();
    conflicts
}

/// A change by one of several transactions, which conflicts exactly if it should.
fn attempt(open: &mut [Transaction<'_>], reference: &Reference, random: &mut StdRng, growing: bool) -> bool {
    let index = random.random_range(0..open.len());
    // The keys that others have changed, whose changes this one does not see.
    let others = open.iter().enumerate().filter(|(other, _)| *other != index);
    let held: BTreeSet<_> = others.flat_map(|(_, other)| other.changed.iter().cloned()).collect();
    let transaction = &mut open[index];
    let later = reference.changed_since(transaction.time);
    let key = key(random.random_range(0..KEYS));
    transaction.settle();
    let result = change(transaction, &key, random, growing);
    let is_own = transaction.changed.contains(&key);
    match result {
        Ok(()) => {
            assert!(is_own || !held.contains(&key) && !later.contains(&key), "no conflict on {key:?}");
            false
        }
        Err(AccessError::Conflict { tree, key: on, committed }) => {
            assert_eq!((tree, &on), (reference.root, &key));
            assert!(!is_own && (held.contains(&key) || later.contains(&key)), "a conflict on {key:?}");
            assert_eq!(committed, !held.contains(&key));
            true
        }
        Err(error) => panic!("{error}"),
    }
}

/// Threads run transactions of some steps each. One more reads outside of transactions.
fn side_by_side(seed: u64, transactions: u64, bug: Bug) {
    const THREADS: u64 = 3;
    let reference = reference(seed, bug);
    let start = reference.pager.extents();
    let running = AtomicU64::new(THREADS);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (reference, running) = (&reference, &running);
            scope.spawn(move || {
                let _ended = Ended(running);
                let mut random = StdRng::seed_from_u64(seed * 100 + thread);
                for number in 0..transactions {
                    let mut transaction = reference.begin();
                    let growing = (number * 6 / transactions).is_multiple_of(2);
                    let mut result = Ok(());
                    for _ in 0..random.random_range(0..25) {
                        let key = key(random.random_range(0..KEYS));
                        if random.random_ratio(1, 3) {
                            compare_record(&transaction.reading(), &transaction.world, &key, &mut random);
                        } else if random.random_ratio(1, 40) {
                            compare(&transaction.reading(), &transaction.world, &mut random);
                        } else {
                            result = change(&mut transaction, &key, &mut random, growing);
                            transaction.settle();
                            if result.is_err() {
                                break;
                            }
                        }
                    }
                    match result {
                        Ok(()) if random.random_ratio(4, 5) => transaction.commit(),
                        Ok(()) | Err(AccessError::Conflict { .. }) => {
                            transaction.rollback(random.random()).unwrap();
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        let mut random = StdRng::seed_from_u64(!seed);
        while running.load(Ordering::SeqCst) > 0 {
            let key = key(random.random_range(0..KEYS));
            let first = reference.time();
            let found = retry(|| reference.single().get(&key)).unwrap();
            let seen =
                (first..=reference.time()).any(|time| reference.world(time).get(&key) == found.as_ref());
            assert!(seen, "nobody has committed the value of {key:?}");
        }
    });
    let history = reference.pager.history(start);
    finish(reference, &mut StdRng::seed_from_u64(seed));
    history.check(seed, &as_it_is).unwrap();
}

/// A thread that is over, also if it panics.
struct Ended<'r>(&'r AtomicU64);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn each_transaction_sees_its_moment_and_conflicts_are_those_of_first_updater_wins() {
    let conflicts: u64 = (0..6).map(|number| step_by_step(seed() * 100 + number, 2500, Bug::None)).sum();
    assert!(conflicts > 100, "{conflicts} conflicts");
}

#[test]
fn transactions_of_several_threads_see_their_moments() {
    (0..3).for_each(|number| side_by_side(seed() * 100 + number, 60, Bug::None));
}

/// Whether one of some runs notices a bug.
fn is_noticed(run: impl Fn(u64)) -> bool {
    (0..8).any(|seed| catch_unwind(AssertUnwindSafe(|| run(seed))).is_err())
}

#[test]
fn planted_bugs_of_the_isolation_are_noticed() {
    use Bug::*;
    for bug in [ForgottenRemovals, LateClaims, NoChecks, NoPlace, UndoFreesNothing] {
        assert!(is_noticed(|seed| assert!(step_by_step(seed, 1500, bug) > 0)), "nobody notices {bug:?}");
    }
}

/// Asks another isolation, and does something the first time it is asked about a record, before or after it answers.
struct Meanwhile<'r> {
    isolation: &'r dyn Isolation,
    /// After so many questions.
    when: AtomicU64,
    before: bool,
    action: Mutex<Option<Box<dyn FnOnce() + Send + 'r>>>,
}

impl<'r> Meanwhile<'r> {
    fn new(isolation: &'r dyn Isolation, when: u64, before: bool, action: impl FnOnce() + Send + 'r) -> Self {
        let action: Box<dyn FnOnce() + Send + 'r> = Box::new(action);
        Self { isolation, when: AtomicU64::new(when), before, action: Mutex::new(Some(action)) }
    }

    fn has_happened(&self) -> bool {
        self.action.lock().unwrap().is_none()
    }
}

impl Isolation for Meanwhile<'_> {
    fn seen(&self, tree: PageId, key: &[u8]) -> vellum_access::Seen {
        let now = self.when.fetch_sub(1, Ordering::SeqCst) == 0;
        let action = if now { self.action.lock().unwrap().take() } else { None };
        let (before, after) = if self.before { (action, None) } else { (None, action) };
        before.into_iter().for_each(|action| action());
        let seen = self.isolation.seen(tree, key);
        after.into_iter().for_each(|action| action());
        seen
    }

    fn claim(
        &self,
        tree: PageId,
        key: &[u8],
        before: Option<ValueImage<'_>>,
        removes: bool,
    ) -> Result<(), Claim> {
        self.isolation.claim(tree, key, before, removes)
    }

    fn check(&self, tree: PageId, key: &[u8]) -> Result<(), Claim> {
        self.isolation.check(tree, key)
    }

    fn has_removed(&self) -> bool {
        self.isolation.has_removed()
    }

    fn removed(&self, tree: PageId, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Vec<Box<[u8]>> {
        self.isolation.removed(tree, lower, upper)
    }

    fn recorded(&self, lsn: Lsn) {
        self.isolation.recorded(lsn);
    }
}

/// Ways of reading the value of a key.
type Read = fn(&RecordingPager, &Seen<'_>, &[u8]) -> Option<Vec<u8>>;

const READS: [(&str, Read); 8] = [
    ("get", |_, tree, key| tree.get(key).unwrap()),
    ("get_part", |_, tree, key| {
        let mut part = Vec::new();
        tree.get_part_into(key, 0..1 << 20, &mut part).unwrap().then_some(part)
    }),
    ("value", |_, tree, key| tree.value(key).unwrap().map(|value| value.to_vec())),
    ("reader", |_, tree, key| {
        loop {
            let Some(mut reader) = tree.reader(key).unwrap() else { return tree.get(key).unwrap() };
            let mut value = vec![0; reader.length() as usize];
            match reader.read_at(0, &mut value) {
                Ok(_) => return Some(value),
                Err(AccessError::ValueChanged) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }),
    ("multi_get", |_, tree, key| {
        let mut found = None;
        tree.multi_get(&[key], 4, |_, value| found = value.unwrap().map(<[u8]>::to_vec));
        found
    }),
    ("queue", |pager, tree, key| {
        let mut batch: Batch<'_, _, &[u8], &[u8]> = Batch::new(pager, 4);
        batch.begin(*tree, key, Task::Get, 0);
        loop {
            batch.advance(true);
            let found = batch.take(|_, _, answer| match answer.unwrap() {
                Answer::Value(value) => value.map(<[u8]>::to_vec),
                other => panic!("{other:?}"),
            });
            if let Some(found) = found {
                return found;
            }
        }
    }),
    ("forwards", |_, tree, key| {
        let mut cursor = tree.range(Bound::Included(key), Bound::Included(key)).unwrap();
        cursor.next().unwrap().and_then(|entry| Some(entry.value().unwrap()?.to_vec()))
    }),
    ("backwards", |_, tree, key| {
        let mut cursor = tree.range(Bound::Included(key), Bound::Included(key)).unwrap();
        cursor.seek_to_end();
        cursor.previous().unwrap().and_then(|entry| Some(entry.value().unwrap()?.to_vec()))
    }),
];

#[test]
fn what_a_reader_is_told_and_what_it_has_read_belong_to_one_moment() {
    for (name, read) in READS {
        for old in [Some(&b"old"[..]), None] {
            let reference = reference(1, Bug::None);
            let key = b"the key".to_vec();
            if let Some(old) = old {
                let mut transaction = reference.begin();
                transaction.writing().insert(&key, old).unwrap();
                transaction.world.insert(key.clone(), old.to_vec());
                transaction.changed.insert(key.clone());
                transaction.commit();
            }
            let other = reference.begin();
            other.writing().upsert(&key, b"new").unwrap();
            // The reader has found the new value. Before it is told anything, that is undone.
            let meanwhile = Meanwhile::new(&reference, 0, true, || other.rollback(false).unwrap());
            let found = read(&reference.pager, &reference.single_by(&meanwhile), &key);
            assert!(meanwhile.has_happened(), "{name}");
            assert_eq!(found.as_deref(), old, "{name}");
        }
    }
}

#[test]
fn an_earlier_large_value_may_be_freed_while_it_is_being_read() {
    for (name, read) in READS {
        // After it was seen, and after it was latched, and seen once more, or missed.
        for (when, evicted) in [(0, false), (1, false), (0, true), (1, true)] {
            let reference = reference(2, Bug::None);
            let key = b"the key".to_vec();
            let mut transaction = reference.begin();
            transaction.writing().insert(&key, &[7; 20_000]).unwrap();
            transaction.world.insert(key.clone(), vec![7; 20_000]);
            transaction.changed.insert(key.clone());
            transaction.commit();
            let mut other = reference.begin();
            other.writing().upsert(&key, b"new").unwrap();
            other.world.insert(key.clone(), b"new".to_vec());
            other.changed.insert(key.clone());
            if evicted {
                for number in (0..KEYS).chain(0..KEYS) {
                    reference.newest().get(&self::key(number)).unwrap();
                }
            }
            let meanwhile = Meanwhile::new(&reference, when, false, || other.commit());
            let found = read(&reference.pager, &reference.single_by(&meanwhile), &key).unwrap();
            if meanwhile.has_happened() {
                assert!(found == b"new" || found == [7; 20_000], "{name}");
                assert_eq!(reference.left(), (0, 0, 0));
            }
            assert!(meanwhile.has_happened() || when > 0, "{name}");
            drop(meanwhile);
        }
    }
}

/// Gives wrong answers. A question may be asked about a leaf that is just being evicted, whose LSN is not read as it is; the
/// answer has no meaning, because the leaf is not validated.
struct Wrong;

impl Isolation for Wrong {
    fn seen(&self, _: PageId, _: &[u8]) -> vellum_access::Seen {
        vellum_access::Seen::Value(vellum_access::SharedBytes::new(
            b"a value that nobody stored"[..].into(),
            0,
        ))
    }

    fn claim(&self, _: PageId, _: &[u8], _: Option<ValueImage<'_>>, _: bool) -> Result<(), Claim> {
        Err(Claim::NeedsTransaction)
    }

    fn check(&self, _: PageId, _: &[u8]) -> Result<(), Claim> {
        Err(Claim::NeedsTransaction)
    }

    fn has_removed(&self) -> bool {
        true
    }

    fn removed(&self, _: PageId, _: Bound<&[u8]>, _: Bound<&[u8]>) -> Vec<Box<[u8]>> {
        vec![b"removed"[..].into()]
    }

    fn recorded(&self, _: Lsn) {}
}

#[test]
fn a_leaf_that_is_older_than_the_snapshot_needs_no_question() {
    let reference = reference(3, Bug::None);
    let transaction = reference.begin();
    let settled = AtomicU64::new(reference.pager.end().0);
    let view = View { settled: &settled, isolation: &Wrong, writer: Writer::None };
    let tree = reference.newest().with_view(view);
    for (_, read) in READS {
        let found = read(&reference.pager, &tree, &key(2));
        assert_eq!(found.as_ref(), transaction.world.get(&key(2)));
    }
    compare(&tree, &transaction.world, &mut StdRng::seed_from_u64(3));
    assert!(!tree.insert(&key(2), b"value").unwrap() && !tree.remove(b"absent").unwrap());
    assert!(matches!(tree.remove(&key(2)), Err(AccessError::NeedsTransaction { .. })));
    settled.store(0, Ordering::SeqCst);
    for (name, read) in READS {
        let found = read(&reference.pager, &tree, &key(2));
        assert_eq!(found.as_deref(), Some(&b"a value that nobody stored"[..]), "{name}");
    }
}

#[test]
fn single_operations_need_a_transaction_while_one_is_open() {
    let reference = reference(4, Bug::None);
    let large = vec![7; 50_000];
    let open = reference.begin();
    let end = reference.pager.end();
    let tree = reference.single();
    let refused = [
        tree.insert(b"new", b"value").map(drop),
        tree.insert(b"new", &large).map(drop),
        tree.upsert(&key(2), &large).map(drop),
        tree.update(&key(2), b"value").map(drop),
        tree.remove(&key(2)).map(drop),
        tree.modify(&key(2), |value| value[0] ^= 1).map(drop),
    ];
    for result in refused {
        assert!(matches!(result, Err(AccessError::NeedsTransaction { .. })), "{result:?}");
    }
    assert_eq!(reference.pager.end(), end);
    // What changes nothing needs none.
    assert!(!tree.insert(&key(2), b"value").unwrap() && !tree.remove(b"new").unwrap());
    compare(&tree, &open.world, &mut StdRng::seed_from_u64(4));
    open.commit();
    assert_eq!(tree.upsert(&key(2), &large).unwrap(), Written::Replaced);
    assert!(tree.remove(&key(2)).unwrap());
    support::verify(&reference.pager.pool, &Tree::open(&reference.pager.pool, reference.root));
}

#[test]
fn a_record_that_was_claimed_and_not_changed_conflicts_too() {
    let reference = reference(5, Bug::None);
    let (first, second) = (reference.begin(), reference.begin());
    assert_eq!(
        first.writing().modify(&key(2), |value| value.len()).unwrap(),
        Some(first.world[&key(2)].len())
    );
    let refused = second.writing().upsert(&key(2), b"value");
    let is_open = |error: &AccessError| matches!(error, AccessError::Conflict { committed: false, key: on, .. } if *on == key(2));
    assert!(refused.as_ref().is_err_and(is_open), "{refused:?}");
    first.rollback(false).unwrap();
    assert_eq!(second.writing().upsert(&key(2), b"value").unwrap(), Written::Replaced);
    second.rollback(true).unwrap();
    finish(reference, &mut StdRng::seed_from_u64(5));
}
