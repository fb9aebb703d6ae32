//! Databases that are full: open transactions have removed records, others have used the room, and everything can be
//! undone all the same, by the process or by the recovery after it.

use crate::full_files::Limit;
use crate::support::options;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use std::{collections::BTreeMap, sync::Arc};
use vellum::{Database, Durability, Error, ErrorKind, Options, Savepoint, Table, Transaction};
use vellum_vm::SimulatedDisk;

/// How the transactions are undone.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Ending {
    Rollback,
    /// By the recovery, after the process has been killed.
    Kill,
    Crash,
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn limited(limit: Limit, has_log: bool) -> Options {
    let options = options()
        .durability(Durability::Buffered)
        .log(has_log)
        .log_segment_bytes(256 << 10)
        .log_buffer_bytes(4 << 20);
    if limit == Limit::Capacity { options.capacity_bytes(520 * 4096) } else { options }
}

fn key(random: &mut StdRng) -> Vec<u8> {
    let number: u16 = random.random_range(0..20_000);
    let mut key = number.to_be_bytes().to_vec();
    // The same number has always the same key.
    key.resize(2 + usize::from(number % 40), b'k');
    key
}

fn value(random: &mut StdRng) -> Vec<u8> {
    let longest = match random.random_range(0..100) {
        0..30 => 40,
        30..60 => 400,
        60..99 => 1200,
        _ => 9000,
    };
    vec![random.random(); random.random_range(0..longest)]
}

/// Whether there was no room; any other error is a failure.
fn is_full(error: &Error) -> bool {
    assert_eq!(error.kind(), ErrorKind::OutOfSpace, "{error}");
    true
}

/// An open transaction.
struct Open {
    transaction: Transaction,
    /// What it sees.
    own: Model,
    /// A place to roll back to, and what it saw then.
    savepoint: Option<(Savepoint, Model)>,
    has_failed: bool,
}

impl Open {
    /// Notes that it can only be rolled back: there was no room, maybe in the log, or another has changed the record.
    fn fail(&mut self, error: &Error) {
        self.has_failed = error.kind() == ErrorKind::Conflict || is_full(error);
    }
}

struct Full {
    table: Table,
    /// What has been committed.
    model: Model,
    /// The keys that open transactions have changed, each with its transaction.
    claimed: BTreeMap<Vec<u8>, usize>,
    random: StdRng,
}

impl Full {
    /// Puts records by themselves until many puts have failed. Returns how many did not.
    fn fill(&mut self, refused_max: usize) -> usize {
        let (mut refused, mut stored) = (0, 0);
        while refused < refused_max {
            let (key, value) = (key(&mut self.random), value(&mut self.random));
            if self.claimed.contains_key(&key) {
                continue;
            }
            match self.table.put(&key, &value) {
                Ok(_) => {
                    stored += 1;
                    self.model.insert(key, value);
                }
                Err(error) => refused += usize::from(is_full(&error)),
            }
        }
        stored
    }

    /// Lets a transaction change something.
    fn change(&mut self, number: usize, open: &mut Open) {
        // Mostly what there is.
        let mut key = key(&mut self.random);
        if self.random.random_bool(0.9)
            && let Some((next, _)) = self.model.range(key.clone()..).next()
        {
            key = next.clone();
        }
        if open.has_failed || self.claimed.get(&key).is_some_and(|other| *other != number) {
            return;
        }
        self.claimed.insert(key.clone(), number);
        if self.random.random_bool(0.7) {
            match open.transaction.remove(&self.table, &key) {
                Ok(removed) => assert_eq!(removed, open.own.remove(&key).is_some()),
                Err(error) => open.fail(&error),
            }
            return;
        }
        let value = value(&mut self.random);
        match open.transaction.put(&self.table, &key, &value) {
            Ok(_) => _ = open.own.insert(key, value),
            Err(error) => open.fail(&error),
        }
    }

    fn check(&self, what: &str) {
        let held: Model = self.table.range(..).unwrap().map(|entry| entry.unwrap()).collect();
        assert_eq!(held.len(), self.model.len(), "{what}");
        assert!(held == self.model, "{what}");
    }
}

fn everything_is_undone(limit: Limit, ending: Ending, has_log: bool, seed: u64) {
    let what = format!("{limit:?}, {ending:?}, with a log: {has_log}, seed {seed}");
    let disk = Arc::new(SimulatedDisk::new(seed));
    let database = Database::create_in(disk.clone(), "data", &limited(limit, has_log)).unwrap();
    let table = database.create_table("table").unwrap();
    table.put([], []).unwrap();
    if limit == Limit::Disk {
        disk.leave_free(2 << 20);
    }
    let (model, random) = (Model::from([(vec![], vec![])]), StdRng::seed_from_u64(seed));
    let mut full = Full { table, model, claimed: BTreeMap::new(), random };
    full.fill(100);
    let begin = |_| Open {
        transaction: database.begin().unwrap(),
        own: full.model.clone(),
        savepoint: None,
        has_failed: false,
    };
    let count = full.random.random_range(1..4);
    let mut open: Vec<Open> = (0..count).map(begin).collect();
    for round in 0..4 {
        for (number, open) in open.iter_mut().enumerate() {
            if full.random.random_bool(0.5) && !open.has_failed {
                open.savepoint = Some((open.transaction.savepoint(), open.own.clone()));
            }
            for _ in 0..full.random.random_range(0..60) {
                full.change(number, open);
            }
        }
        full.fill(60);
        if round == 1 && has_log {
            database.checkpoint().unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        for open in open.iter_mut().filter(|open| !open.has_failed) {
            if full.random.random_bool(0.3)
                && let Some((savepoint, then)) = open.savepoint.take()
            {
                let undone = open.transaction.rollback_to(savepoint);
                undone.unwrap_or_else(|error| panic!("{what}, to a savepoint: {error}"));
                open.own = then;
            }
        }
    }
    full.fill(60);
    if ending == Ending::Rollback {
        for open in open {
            open.transaction.rollback().unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        full.claimed.clear();
        full.check(&what);
        assert!(database.verify(|_| {}).is_clean(), "{what}");
        // What was kept is free again.
        let removed: Vec<_> = full.model.keys().step_by(2).cloned().collect();
        for key in removed {
            assert!(full.table.remove(&key).unwrap());
            full.model.remove(&key);
        }
        assert!(full.fill(100) > 100, "{what}");
        full.check(&what);
        drop(full);
        database.close().unwrap_or_else(|error| panic!("{what}: {error}"));
        return;
    }
    database.sync().unwrap();
    let left = if ending == Ending::Kill { disk.kill() } else { disk.crash() };
    drop(open);
    let Full { model, random, .. } = full;
    drop((database, full.table));
    if limit == Limit::Disk && ending == Ending::Kill {
        left.leave_free(0);
    }
    let opened = Database::open_in(Arc::new(left), "data", &limited(limit, has_log));
    let database = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
    database.finish_recovery().unwrap_or_else(|error| panic!("{what}: {error}"));
    let table = database.table("table").unwrap();
    let full = Full { table, model, claimed: BTreeMap::new(), random };
    full.check(&what);
    assert!(database.verify(|_| {}).is_clean(), "{what}");
    drop(full);
    database.close().unwrap_or_else(|error| panic!("{what}: {error}"));
}

#[test]
fn a_full_database_undoes_its_open_transactions() {
    for limit in [Limit::Capacity, Limit::Disk] {
        for seed in 0..8 {
            for ending in [Ending::Rollback, Ending::Kill, Ending::Crash] {
                everything_is_undone(limit, ending, true, seed);
            }
            everything_is_undone(limit, Ending::Rollback, false, seed);
        }
    }
}

/// One call that changes more than the log has room for keeps the room that undoing it needs.
#[test]
fn a_large_batch_that_has_filled_the_disk_can_be_undone() {
    const RECORDS: u32 = 20_000;
    let key = |number: u32| number.to_be_bytes();
    let entries = |with: u8| (0..RECORDS).map(|number| (key(number), [with; 300])).collect::<Vec<_>>();
    for (is_put, free) in [(true, 0), (true, 3 << 20), (true, 6 << 20), (false, 0), (false, 3 << 20)] {
        for ending in [Ending::Rollback, Ending::Kill, Ending::Crash] {
            let what = format!("{free} bytes, puts: {is_put}, {ending:?}");
            let disk = Arc::new(SimulatedDisk::new(1));
            let options = limited(Limit::Disk, true);
            let database = Database::create_in(disk.clone(), "data", &options).unwrap();
            let table = database.create_table("table").unwrap();
            table.multi_put(&entries(1)).into_iter().for_each(|put| _ = put.unwrap());
            database.checkpoint().unwrap();
            disk.leave_free(free);
            let transaction = database.begin().unwrap();
            let refused = if is_put {
                transaction.multi_put(&table, &entries(2)).map(drop)
            } else {
                let keys: Vec<_> = (0..RECORDS).map(key).collect();
                transaction.multi_modify(&table, &keys, |_, value| value.fill(2)).map(drop)
            };
            assert!(is_full(&refused.expect_err(&what)));
            let database = match ending {
                Ending::Rollback => {
                    transaction.rollback().unwrap_or_else(|error| panic!("{what}: {error}"));
                    database
                }
                Ending::Kill | Ending::Crash => {
                    let left = if ending == Ending::Kill { disk.kill() } else { disk.crash() };
                    left.leave_free(0);
                    let opened = Database::open_in(Arc::new(left), "data", &options);
                    opened.unwrap_or_else(|error| panic!("{what}: {error}"))
                }
            };
            let table = database.table("table").unwrap();
            assert!(
                table
                    .range(..)
                    .unwrap()
                    .map(Result::unwrap)
                    .eq(entries(1).into_iter().map(|(key, value)| (key.to_vec(), value.to_vec()))),
                "{what}"
            );
            assert!(database.verify(|_| {}).is_clean(), "{what}");
        }
    }
}
