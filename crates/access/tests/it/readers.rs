//! What a reader is told while others change, undo and free what it reads, in every way of reading; and when a single operation
//! needs a transaction.

use crate::recording::RecordingPager;
use crate::reference::{
    Bug,
    comparison::{KEYS, Seen, compare, finish, reference},
};
use crate::support::records::key;
use rand::{SeedableRng, rngs::StdRng};
use std::{
    ops::Bound,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};
use vellum_access::{
    AccessError, Answer, Batch, Claim, Direction, Intent, Isolation, Removed, Task, Tree, ValueImage, View,
    Writer, Written,
};
use vellum_base::{Lsn, PageId};
use vellum_pool::PoolError;

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
    fn seen(&self, tree: PageId, key: &[u8]) -> Result<vellum_access::Seen, PoolError> {
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
        leaf: Lsn,
        before: Option<ValueImage<'_>>,
        intent: Intent,
    ) -> Result<(), Claim> {
        self.isolation.claim(tree, key, leaf, before, intent)
    }

    fn check(&self, tree: PageId, key: &[u8], leaf: Lsn) -> Result<(), Claim> {
        self.isolation.check(tree, key, leaf)
    }

    fn has_removed(&self) -> bool {
        self.isolation.has_removed()
    }

    fn removed(
        &self,
        tree: PageId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        portion: (Direction, usize),
    ) -> Result<Removed, PoolError> {
        self.isolation.removed(tree, bounds, portion)
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
                    reference.newest().get(&crate::support::records::key(number)).unwrap();
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
    fn seen(&self, _: PageId, _: &[u8]) -> Result<vellum_access::Seen, PoolError> {
        let value = &b"a value that nobody stored"[..];
        let value = vellum_access::SharedBytes::new(value.into(), 0..value.len());
        Ok(vellum_access::Seen::Value(value))
    }

    fn claim(&self, _: PageId, _: &[u8], _: Lsn, _: Option<ValueImage<'_>>, _: Intent) -> Result<(), Claim> {
        Err(Claim::NeedsTransaction)
    }

    fn check(&self, _: PageId, _: &[u8], _: Lsn) -> Result<(), Claim> {
        Err(Claim::NeedsTransaction)
    }

    fn has_removed(&self) -> bool {
        true
    }

    fn removed(
        &self,
        _: PageId,
        _: (Bound<&[u8]>, Bound<&[u8]>),
        _: (Direction, usize),
    ) -> Result<Removed, PoolError> {
        Ok(Removed { keys: vec![b"removed"[..].into()], complete_to: None })
    }

    fn recorded(&self, _: Lsn) {}
}

#[test]
fn a_leaf_that_is_older_than_the_snapshot_needs_no_question() {
    let reference = reference(3, Bug::None);
    let transaction = reference.begin();
    let settled = AtomicU64::new(reference.pager.end().0);
    let view = View { settled: &settled, isolation: &Wrong, writer: Writer::None, open: None };
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
        tree.modify(&key(2), |value| value.fill(1)).map(drop),
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
    crate::support::verify(&reference.pager.pool, &Tree::open(&reference.pager.pool, reference.root));
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
