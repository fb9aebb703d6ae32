//! Transactions: what each sees, which conflict, and what is left of them after a crash.

use crate::support::options;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};
use vellum::{Database, Durability, Error, ErrorKind, Options, Table, Transaction};
use vellum_vm::SimulatedDisk;

fn database(seed: u64) -> (SimulatedDisk, Database, Table) {
    database_with(seed, &options())
}

fn database_with(seed: u64, options: &Options) -> (SimulatedDisk, Database, Table) {
    let disk = SimulatedDisk::new(seed);
    let database = Database::create_in(Arc::new(disk.clone()), "data", options).unwrap();
    let table = database.create_table("table").unwrap();
    (disk, database, table)
}

/// Records: of each value its length and its first byte, which is that of all others.
type World = BTreeMap<String, (usize, u8)>;

fn entry(key: &[u8], value: &[u8]) -> (String, (usize, u8)) {
    (String::from_utf8_lossy(key).into_owned(), summary(value))
}

fn summary(value: &[u8]) -> (usize, u8) {
    let first = value.first().copied().unwrap_or_default();
    assert!(value.iter().all(|byte| *byte == first));
    (value.len(), first)
}

fn contents(table: &Table) -> World {
    let mut cursor = table.cursor(..).unwrap();
    let mut world = World::new();
    while let Some(entry) = cursor.next().unwrap() {
        world.extend([self::entry(entry.key(), &entry.value().unwrap().unwrap())]);
    }
    world
}

fn seen(transaction: &Transaction, table: &Table) -> World {
    let mut cursor = transaction.cursor(table, ..).unwrap();
    let mut world = World::new();
    while let Some(entry) = cursor.next().unwrap() {
        let value = entry.inline_value().map(<[u8]>::to_vec);
        let value = value.unwrap_or_else(|| transaction.get(table, entry.key()).unwrap().unwrap());
        world.extend([self::entry(entry.key(), &value)]);
    }
    let mut rest = world.iter();
    let shown = transaction.cursor(table, ..).unwrap().scan(|entry| {
        let (key, (bytes, first)) = rest.next().unwrap();
        assert_eq!((entry.key(), entry.value_length()), (key.as_bytes(), *bytes as u64));
        assert!(entry.inline_value().is_none_or(|value| value.first().is_none_or(|byte| byte == first)));
        ControlFlow::<()>::Continue(())
    });
    assert!(shown.unwrap().is_continue() && rest.next().is_none(), "scans show the same");
    let mut backwards = transaction.cursor(table, ..).unwrap();
    backwards.seek_to_end();
    let mut keys = Vec::new();
    while let Some(entry) = backwards.previous().unwrap() {
        keys.push(String::from_utf8_lossy(entry.key()).into_owned());
    }
    assert!(keys.iter().rev().eq(world.keys()), "both directions show the same");
    world
}

#[test]
fn a_transaction_happens_when_it_is_committed_and_not_otherwise() {
    let (_, database, table) = database(1);
    table.put("old", "1").unwrap();
    let transaction = database.begin().unwrap();
    transaction.put(&table, "new", "2").unwrap();
    transaction.update(&table, "old", "3").unwrap();
    assert_eq!(transaction.get(&table, "old").unwrap().unwrap(), b"3");
    assert_eq!(table.get("new").unwrap(), None);
    assert_eq!(table.get("old").unwrap().unwrap(), b"1");
    assert_eq!(contents(&table).len(), 1);
    transaction.commit().unwrap();
    assert_eq!(table.get("new").unwrap().unwrap(), b"2");
    assert_eq!(table.get("old").unwrap().unwrap(), b"3");
    let transaction = database.begin().unwrap();
    assert!(transaction.remove(&table, "old").unwrap());
    assert!(!transaction.insert(&table, "new", "4").unwrap());
    transaction.rollback().unwrap();
    assert_eq!(table.get("old").unwrap().unwrap(), b"3");
    drop(database.begin().unwrap());
    let history = database.history();
    assert_eq!((history.open, history.records, history.leftovers), (0, 0, 0));
}

#[test]
fn a_transaction_belongs_to_no_thread() {
    fn belongs_to_none<T: Send + Sync + 'static>() {}
    belongs_to_none::<Transaction>();
    let (_, database, table) = database(6);
    let transaction = database.begin().unwrap();
    transaction.put(&table, "here", "1").unwrap();
    let transaction = thread::scope(|scope| {
        let there = scope.spawn(|| {
            transaction.put(&table, "there", "2").unwrap();
            transaction
        });
        there.join().unwrap()
    });
    let arrival = transaction.commit_async().unwrap().unwrap();
    assert_eq!(contents(&table).len(), 2, "it is visible before it is durable");
    arrival.wait().unwrap();
    // One that has changed nothing waits for nothing.
    assert!(database.begin().unwrap().commit_async().unwrap().is_none());
}

#[test]
fn threads_that_share_a_transaction_change_one_thing_after_the_other() {
    const EACH: u32 = 300;
    let (_, database, table) = database(7);
    let key = |thread: u32, number: u32| format!("{thread} {:03}", number % 100);
    for number in 0..100 {
        table.put(key(0, number), "ooo").unwrap();
    }
    let before = contents(&table);
    let transaction = database.begin().unwrap();
    transaction.put(&table, "first", "1").unwrap();
    let savepoint = transaction.savepoint();
    let work = || {
        thread::scope(|scope| {
            for thread in 0..3 {
                let (transaction, table) = (&transaction, &table);
                scope.spawn(move || {
                    for number in 0..EACH {
                        let value = vec![thread as u8; number as usize % 50];
                        transaction.put(table, key(thread, number), value).unwrap();
                        if number % 7 == 0 {
                            transaction.remove(table, key(thread, number + 50)).unwrap();
                        }
                    }
                });
            }
        });
    };
    work();
    transaction.rollback_to(savepoint).unwrap();
    assert_eq!(seen(&transaction, &table).len(), before.len() + 1);
    work();
    transaction.rollback().unwrap();
    assert_eq!(contents(&table), before);
    assert_eq!(database.history().records, 0);
}

#[test]
fn a_panic_of_the_caller_changes_nothing_and_keeps_nothing_open() {
    let (_, database, table) = database(8);
    let large = vec![1; 20_000];
    table.put("small", "1").unwrap();
    table.put("large", &large).unwrap();
    let before = contents(&table);
    let panicking = |key: &str| {
        let modified = catch_unwind(AssertUnwindSafe(|| {
            table.modify(key, |value| {
                value[0] = 9;
                panic!("of the caller");
            })
        }));
        assert!(modified.is_err());
    };
    for key in ["small", "large"] {
        panicking(key);
        let open = database.begin().unwrap();
        panicking(key);
        assert_eq!(database.history().open, 1);
        let modified =
            catch_unwind(AssertUnwindSafe(|| open.modify(&table, key, |_| panic!("of the caller"))));
        assert!(modified.is_err());
        assert_eq!(seen(&open, &table), before);
        open.put(&table, "other", "2").unwrap();
        open.rollback().unwrap();
        assert_eq!(contents(&table), before);
        let history = database.history();
        assert_eq!((history.open, history.records, history.leftovers), (0, 0, 0));
    }
    table.put("small", "2").unwrap();
    let report = database.verify(|_| {});
    assert!(report.is_clean(), "{:?}", report.problems);
    drop(table);
    database.close().unwrap();
}

#[test]
fn a_transaction_that_a_panic_rolls_back_leaves_the_database_sound() {
    let (disk, database, table) = database(9);
    table.put("key", "1").unwrap();
    let panicking = |work: &dyn Fn(&Transaction)| {
        let run = || {
            database.run(|transaction| -> vellum::Result<()> {
                work(transaction);
                panic!("of the caller");
            })
        };
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        assert_eq!(database.history().open, 0);
        assert_eq!(table.get("key").unwrap().unwrap(), b"1");
        database.checkpoint().unwrap();
    };
    panicking(&|transaction| _ = transaction.put(&table, "key", "2").unwrap());
    panicking(&|transaction| _ = transaction.put(&table, "large", vec![1; 100_000]).unwrap());
    panicking(&|transaction| drop(transaction.create_table("new").unwrap()));
    panicking(&|transaction| transaction.clear_table("table").unwrap());
    let load = || {
        let empty = database.create_table("loaded").unwrap();
        let mut loader = empty.bulk_loader().unwrap();
        (0..10_000_u32).for_each(|key| loader.push(key.to_be_bytes(), [0; 100]).unwrap());
        panic!("of the caller");
    };
    assert!(catch_unwind(AssertUnwindSafe(load)).is_err());
    database.checkpoint().unwrap();
    let report = database.verify(|_| {});
    assert!(report.is_clean(), "{:?}", report.problems);
    drop(table);
    database.close().unwrap();
    let database = Database::open_in(Arc::new(disk), "data", &options()).unwrap();
    assert!(database.recovery().is_none());
}

#[test]
fn the_first_to_change_a_record_wins() {
    let (_, database, table) = database(2);
    table.put("record", "0").unwrap();
    let (first, second) = (database.begin().unwrap(), database.begin().unwrap());
    first.put(&table, "record", "1").unwrap();
    let conflict = second.put(&table, "record", "2").unwrap_err();
    assert!(
        matches!(&conflict, Error::Conflict { key, committed: false, .. } if key == b"record"),
        "{conflict}"
    );
    assert_eq!(conflict.kind(), ErrorKind::Conflict);
    assert!(matches!(second.get(&table, "record"), Err(Error::Ended)));
    assert!(matches!(second.commit(), Err(Error::Ended)));
    let third = database.begin().unwrap();
    first.commit().unwrap();
    assert_eq!(third.get(&table, "record").unwrap().unwrap(), b"0");
    let conflict = third.remove(&table, "record").unwrap_err();
    assert!(matches!(conflict, Error::Conflict { committed: true, .. }), "{conflict}");
    drop(third);
    // What is no transaction takes its turn.
    let open = database.begin().unwrap();
    open.put(&table, "mine", "1").unwrap();
    table.put("record", "4").unwrap();
    assert!(matches!(table.put("mine", "2"), Err(Error::Conflict { committed: false, .. })));
    assert!(matches!(table.insert("mine", "2"), Err(Error::Conflict { .. })));
    open.rollback().unwrap();
    assert!(table.insert("mine", "2").unwrap());
    // Two inserts of one key, and a key that comes back.
    let (first, second) = (database.begin().unwrap(), database.begin().unwrap());
    assert!(first.insert(&table, "unique", "1").unwrap());
    assert!(matches!(second.insert(&table, "unique", "2"), Err(Error::Conflict { .. })));
    assert!(first.remove(&table, "unique").unwrap());
    assert!(first.insert(&table, "unique", "3").unwrap());
    first.commit().unwrap();
    assert_eq!(table.get("unique").unwrap().unwrap(), b"3");
}

#[test]
fn a_table_that_is_being_changed_stays_and_one_of_another_database_is_refused() {
    let (_, database, table) = database(3);
    let (_, other, _) = self::database(4);
    let transaction = database.begin().unwrap();
    transaction.put(&table, "key", "value").unwrap();
    drop(table);
    assert!(matches!(database.drop_table("table"), Err(Error::TableInUse { .. })));
    let stranger = other.begin().unwrap();
    let table = database.table("table").unwrap();
    assert!(matches!(stranger.get(&table, "key"), Err(Error::OtherDatabase { .. })));
    drop((transaction, table));
    database.drop_table("table").unwrap();
}

#[test]
fn savepoints_take_back_what_came_after_them() {
    let (_, database, table) = database(5);
    let large = vec![7; 20_000];
    table.put("large", &large).unwrap();
    let transaction = database.begin().unwrap();
    transaction.put(&table, "one", "1").unwrap();
    let savepoint = transaction.savepoint();
    transaction.put(&table, "one", "2").unwrap();
    transaction.put(&table, "large", vec![8; 30_000]).unwrap();
    transaction.put(&table, "large", vec![9; 10]).unwrap();
    transaction.modify(&table, "one", |value| value[0] = b'3').unwrap();
    assert_eq!(transaction.remove_range(&table, "a".."z").unwrap(), 2);
    assert!(seen(&transaction, &table).is_empty());
    transaction.rollback_to(savepoint).unwrap();
    assert_eq!(transaction.get(&table, "one").unwrap().unwrap(), b"1");
    assert_eq!(transaction.get(&table, "large").unwrap().unwrap(), large);
    transaction.commit().unwrap();
    assert_eq!(contents(&table), [entry(b"large", &large), entry(b"one", b"1")].into());
    let report = database.verify(|_| {});
    assert!(report.is_clean(), "{:?}", report.problems);
}

/// A transaction of a random history, and what it should see.
struct Open {
    transaction: Transaction,
    world: World,
    changed: BTreeMap<String, Option<(usize, u8)>>,
    commits: u64,
}

/// A random history of one thread with several transactions open at a time. Everything that any of them sees is compared with
/// what it should. Then the process is killed, or the power lost, or the database closed, and opened again with a log or without.
fn history(seed: u64, steps: u32) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut has_log = !seed.is_multiple_of(3);
    let (mut disk, mut database, mut table) = database_with(seed, &options().log(has_log));
    let mut committed = World::new();
    let (mut commits, mut last_commit) = (0, BTreeMap::<String, u64>::new());
    let mut open: Vec<Open> = Vec::new();
    for step in 0..steps {
        let key = format!("{:03}", random.random_range(0..60));
        let length = match random.random_range(0..20) {
            0 => 3000,
            1 => 900,
            _ => random.random_range(0..120),
        };
        let value = vec![step as u8; length];
        match random.random_range(0..100) {
            0..10 if open.len() < 5 => {
                let transaction = database.begin().unwrap();
                open.push(Open { transaction, world: committed.clone(), changed: BTreeMap::new(), commits });
            }
            10..60 if !open.is_empty() => {
                let number = random.random_range(0..open.len());
                let taken = |other: &Open| other.changed.contains_key(&key);
                let mine = taken(&open[number]);
                let conflicts = !mine
                    && (open.iter().any(taken)
                        || last_commit.get(&key).is_some_and(|commit| *commit > open[number].commits));
                let Open { transaction, world, changed, .. } = &mut open[number];
                let new = random.random_ratio(2, 3).then_some(value);
                let done = match &new {
                    Some(value) => transaction.put(&table, &key, value).map(drop),
                    None => transaction.remove(&table, &key).map(drop),
                };
                if !conflicts || (new.is_none() && done.is_ok()) {
                    assert!(done.is_ok(), "{done:?} of seed {seed} at {step}");
                    if new.is_some() || world.contains_key(&key) {
                        assert!(!conflicts, "seed {seed} at {step}");
                        let new = new.as_deref().map(summary);
                        changed.insert(key.clone(), new);
                        match new {
                            Some(value) => world.insert(key, value),
                            None => world.remove(&key),
                        };
                    }
                } else {
                    assert!(matches!(done, Err(Error::Conflict { .. })), "{done:?} of seed {seed} at {step}");
                    drop(open.swap_remove(number));
                }
            }
            60..70 if !open.is_empty() => {
                let Open { transaction, changed, .. } = open.swap_remove(random.random_range(0..open.len()));
                if random.random_ratio(3, 4) {
                    transaction.commit().unwrap();
                    commits += 1;
                    for (key, value) in changed {
                        last_commit.insert(key.clone(), commits);
                        match value {
                            Some(value) => committed.insert(key, value),
                            None => committed.remove(&key),
                        };
                    }
                } else {
                    transaction.rollback().unwrap();
                }
            }
            70..80 if !open.iter().any(|other| other.changed.contains_key(&key)) => {
                commits += 1;
                last_commit.insert(key.clone(), commits);
                table.put(&key, &value).unwrap();
                committed.insert(key, summary(&value));
            }
            80..90 if !open.is_empty() => {
                let Open { transaction, world, .. } = &open[random.random_range(0..open.len())];
                assert_eq!(seen(transaction, &table), *world, "seed {seed} at {step}");
            }
            90..94 => assert_eq!(contents(&table), committed, "seed {seed} at {step}"),
            94..96 if has_log => database.checkpoint().unwrap(),
            97 => {
                open.clear();
                drop(table);
                database.close().unwrap();
                has_log = random.random();
                let options = options().log(has_log);
                database = Database::open_in(Arc::new(disk.clone()), "data", &options).unwrap();
                assert_eq!(database.recovery(), None);
                table = database.table("table").unwrap();
                assert_eq!(contents(&table), committed, "seed {seed} after the close at {step}");
                let report = database.verify(|_| {});
                assert!(report.is_clean(), "seed {seed} at {step}: {:?}", report.problems);
            }
            96 if has_log => {
                // The open transactions are lost.
                let crashed = disk.crash();
                // What the old ones still do, they do to a disk of the past.
                open.clear();
                drop((table, database));
                disk = crashed;
                database = Database::open_in(Arc::new(disk.clone()), "data", &options()).unwrap();
                table = database.table("table").unwrap();
                assert_eq!(contents(&table), committed, "seed {seed} after the crash at {step}");
                let report = database.verify(|_| {});
                assert!(report.is_clean(), "seed {seed} at {step}: {:?}", report.problems);
            }
            _ => {
                for Open { transaction, world, .. } in &open {
                    let found = transaction.get(&table, &key).unwrap();
                    assert_eq!(
                        found.as_deref().map(summary),
                        world.get(&key).copied(),
                        "seed {seed} at {step}"
                    );
                }
                let found = table.get(&key).unwrap();
                assert_eq!(
                    found.as_deref().map(summary),
                    committed.get(&key).copied(),
                    "seed {seed} at {step}"
                );
            }
        }
    }
    drop(open);
    assert_eq!(contents(&table), committed);
    let history = database.history();
    assert_eq!((history.open, history.records, history.leftovers), (0, 0, 0), "seed {seed}");
    let report = database.verify(|_| {});
    assert!(report.is_clean(), "seed {seed}: {:?}", report.problems);
    drop(table);
    database.close().unwrap();
}

#[test]
fn random_histories_are_what_snapshots_say() {
    let seeds = std::env::var("VELLUM_SEEDS").map_or(30, |seeds| seeds.parse().unwrap());
    let first = std::env::var("VELLUM_SEED").map_or(0, |seed| seed.parse().unwrap());
    for seed in first..first + seeds {
        history(seed, 600);
    }
}

/// Threads move money between accounts; all of it is there at any moment, in every snapshot.
#[test]
fn money_is_neither_made_nor_lost() {
    const ACCOUNTS: u64 = 40;
    const EACH: u64 = 1000;
    let directory = tempfile::tempdir().unwrap();
    let options = Options::default().pool_bytes(1 << 20).durability(Durability::Deferred);
    let database = Database::create(directory.path().join("bank"), &options).unwrap();
    let table = database.create_table("accounts").unwrap();
    for account in 0..ACCOUNTS {
        table.put(account.to_be_bytes(), EACH.to_le_bytes()).unwrap();
    }
    let balance = |bytes: Vec<u8>| u64::from_le_bytes(bytes.try_into().unwrap());
    let (stop, moved, begin) = (AtomicBool::new(false), AtomicU64::new(0), Barrier::new(4));
    thread::scope(|scope| {
        for seed in 0..3 {
            let (database, table, stop, moved, begin) = (&database, &table, &stop, &moved, &begin);
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed);
                begin.wait();
                while !stop.load(Ordering::Relaxed) {
                    let (from, to) = (random.random_range(0..ACCOUNTS), random.random_range(0..ACCOUNTS));
                    let amount = random.random_range(1..50);
                    database
                        .run(|transaction| {
                            let has = balance(transaction.get(table, from.to_be_bytes())?.unwrap());
                            if has < amount || from == to {
                                return Ok(());
                            }
                            transaction.put(table, from.to_be_bytes(), (has - amount).to_le_bytes())?;
                            let other = balance(transaction.get(table, to.to_be_bytes())?.unwrap());
                            transaction.put(table, to.to_be_bytes(), (other + amount).to_le_bytes())?;
                            Ok(())
                        })
                        .unwrap();
                    moved.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        begin.wait();
        let mut sums = Vec::new();
        while sums.len() < 200 || moved.load(Ordering::Relaxed) < 3000 {
            let transaction = database.begin().unwrap();
            let sum = |cursor: &mut vellum::Cursor<'_>| {
                let mut sum = 0;
                while let Some(entry) = cursor.next().unwrap() {
                    sum += balance(entry.inline_value().unwrap().to_vec());
                }
                sum
            };
            let mut cursor = transaction.cursor(&table, ..).unwrap();
            sums.push(sum(&mut cursor));
            cursor.seek_to_start();
            sums.push(sum(&mut cursor));
        }
        stop.store(true, Ordering::Relaxed);
        assert!(sums.iter().all(|sum| *sum == ACCOUNTS * EACH), "{sums:?}");
    });
    assert_eq!(database.history().records, 0);
    drop(table);
    database.close().unwrap();
}

/// One thread changes records, and is mostly alone. What others see by single operations, and by snapshots that they take in the midst of
/// a transaction, is committed: values are even then, and equal.
#[test]
fn a_transaction_that_was_alone_shows_nothing_before_its_commit() {
    const KEYS: u64 = 24;
    let directory = tempfile::tempdir().unwrap();
    let options = Options::default().pool_bytes(1 << 20).durability(Durability::Deferred);
    let database = Database::create(directory.path().join("alone"), &options).unwrap();
    let table = database.create_table("numbers").unwrap();
    let key = |number: u64| number.to_be_bytes();
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    for record in 0..KEYS / 2 {
        table.put(key(record), 0u64.to_le_bytes()).unwrap();
    }
    let (stop, looks) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = StdRng::seed_from_u64(7);
            let mut committed = 0;
            // Readers that fail look no more.
            while committed < 1000 || looks.load(Ordering::Relaxed) < 4000 && committed < 100_000 {
                let transaction = database.begin().unwrap();
                let next: u64 = random.random::<u64>() & !1;
                // Half of the records are there at any time, the one half or the other.
                let base = if transaction.get(&table, key(0)).unwrap().is_some() { 0 } else { KEYS / 2 };
                for record in 0..KEYS / 2 {
                    let there = key(base + record);
                    let elsewhere = key(KEYS / 2 - base + record);
                    transaction.get_for_update(&table, there).unwrap();
                    transaction.put(&table, there, (next | 1).to_le_bytes()).unwrap();
                    transaction.insert(&table, elsewhere, next.to_le_bytes()).unwrap();
                    transaction.remove(&table, there).unwrap();
                }
                let outcome = random.random_range(0..6);
                if outcome == 0 {
                    transaction.rollback().unwrap();
                } else {
                    transaction.commit().unwrap();
                    committed += 1;
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        for seed in 0..2 {
            let (database, table, stop, looks) = (&database, &table, &stop, &looks);
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed);
                while !stop.load(Ordering::Relaxed) {
                    looks.fetch_add(1, Ordering::Relaxed);
                    if random.random_ratio(1, 8) {
                        let snapshot = database.begin().unwrap();
                        let values: Vec<u64> = (0..KEYS)
                            .filter_map(|record| Some(number(&snapshot.get(table, key(record)).unwrap()?)))
                            .collect();
                        let scanned: Vec<u64> = snapshot
                            .range(table, ..)
                            .unwrap()
                            .map(|entry| number(&entry.unwrap().1))
                            .collect();
                        assert!(values.iter().all(|value| *value == values[0]) && values[0] & 1 == 0);
                        assert_eq!((values.len() as u64, &values), (KEYS / 2, &scanned));
                    } else {
                        let value = table.get(key(random.random_range(0..KEYS))).unwrap();
                        assert!(value.is_none_or(|value| number(&value) & 1 == 0));
                    }
                }
            });
        }
    });
    assert_eq!(database.history().records, 0);
    drop(table);
    database.close().unwrap();
}
