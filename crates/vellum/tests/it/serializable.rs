//! Serializable transactions: what makes one fail, and that nothing else does.

use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Bound, ControlFlow},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};
use vellum::{
    Database, Durability, Error, ErrorKind, IsolationLevel, Options, Table, Transaction, TransactionOptions,
};
use vellum_vm::SimulatedDisk;

pub(crate) fn options() -> Options {
    crate::support::options().durability(Durability::Deferred).isolation(IsolationLevel::Serializable)
}

/// A database whose transactions are serializable, and two tables.
pub(crate) fn database(seed: u64) -> (Database, Table, Table) {
    let disk = SimulatedDisk::new(seed);
    let database = Database::create_in(Arc::new(disk), "data", &options()).unwrap();
    let (table, other) = (database.create_table("table").unwrap(), database.create_table("other").unwrap());
    (database, table, other)
}

pub(crate) fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// Makes a transaction one that changes something, which nobody else does, and commits it.
pub(crate) fn commit(transaction: Transaction, other: &Table) -> Result<(), Error> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    transaction.put(other, number.to_be_bytes(), "changed").unwrap();
    transaction.commit()
}

pub(crate) fn assert_conflict(result: Result<(), Error>, table: &Table, key: &[u8]) {
    match result {
        Err(Error::Conflict { table: of, key: found, committed: true }) => {
            assert_eq!((&of[..], &found[..]), (table.name(), key));
        }
        result => panic!("there is no conflict about {key:?}: {result:?}"),
    }
}

#[test]
fn write_skew_is_refused_and_leaves_nothing_behind() {
    let (database, table, _) = database(1);
    table.put("on call: a", "yes").unwrap();
    table.put("on call: b", "yes").unwrap();
    let (first, second) = (database.begin().unwrap(), database.begin().unwrap());
    for (transaction, me, other) in [(&first, "a", "b"), (&second, "b", "a")] {
        assert!(transaction.contains(&table, format!("on call: {other}")).unwrap());
        assert!(transaction.remove(&table, format!("on call: {me}")).unwrap());
    }
    first.commit().unwrap();
    assert_conflict(second.commit(), &table, b"on call: a");
    assert!(!table.contains("on call: a").unwrap() && table.contains("on call: b").unwrap());
    let history = database.history();
    assert_eq!((history.open, history.records, history.leftovers), (0, 0, 0));
    // By snapshots alone both go through.
    let options = TransactionOptions::default().isolation(IsolationLevel::Snapshot);
    table.put("on call: a", "yes").unwrap();
    let (first, second) = (database.begin_with(options).unwrap(), database.begin_with(options).unwrap());
    assert!(first.contains(&table, "on call: b").unwrap() && second.contains(&table, "on call: a").unwrap());
    assert!(first.remove(&table, "on call: a").unwrap() && second.remove(&table, "on call: b").unwrap());
    first.commit().unwrap();
    second.commit().unwrap();
    assert!(!table.contains("on call: a").unwrap() && !table.contains("on call: b").unwrap());
}

#[test]
fn all_that_tells_what_is_there_counts_as_read() {
    /// How something is read, and what happens meanwhile.
    type Use = fn(&Transaction, &Table);
    let reads: [(&str, Use); 13] = [
        ("get", |transaction, table| drop(transaction.get(table, key(5)).unwrap())),
        ("get_into", |transaction, table| {
            transaction.get_into(table, key(5), &mut Vec::new()).unwrap();
        }),
        ("contains", |transaction, table| {
            transaction.contains(table, key(5)).unwrap();
        }),
        ("multi_get", |transaction, table| drop(transaction.multi_get(table, &[key(1), key(5)]).unwrap())),
        ("multi_get_part_with", |transaction, table| {
            transaction.multi_get_part_with(table, &[key(1), key(5)], 0..0, |_, _| {}).unwrap();
        }),
        ("range", |transaction, table| {
            let mut cursor = transaction.cursor(table, &key(4)[..]..=&key(6)[..]).unwrap();
            while cursor.next().unwrap().is_some() {}
        }),
        ("prefix", |transaction, table| {
            let mut cursor = transaction.cursor(table, vellum::Prefix(key(5))).unwrap();
            while cursor.next().unwrap().is_some() {}
        }),
        ("scan", |transaction, table| {
            let mut cursor = transaction.cursor(table, &key(4)[..]..=&key(6)[..]).unwrap();
            assert!(cursor.scan(|_| ControlFlow::<()>::Continue(())).unwrap().is_continue());
        }),
        ("a cursor that is never dropped", |transaction, table| {
            std::mem::forget(transaction.cursor(table, &key(4)[..]..=&key(6)[..]).unwrap());
        }),
        // What follows tells of a key that is not there. Of one that is there, it changes the record.
        ("update", |transaction, table| assert!(!transaction.update(table, key(5), "new").unwrap())),
        ("modify", |transaction, table| {
            assert!(transaction.modify(table, key(5), |_| ()).unwrap().is_none());
            let changed = transaction.multi_modify(table, &[key(5)], |_, _| ()).unwrap();
            assert_eq!(changed, [false]);
        }),
        ("remove", |transaction, table| assert!(!transaction.remove(table, key(5)).unwrap())),
        ("remove_range", |transaction, table| {
            assert_eq!(transaction.remove_range(table, &key(4)[..]..=&key(6)[..]).unwrap(), 0);
        }),
    ];
    let changes: [(&str, Use); 4] = [
        ("put", |transaction, table| _ = transaction.put(table, key(5), "x").unwrap()),
        ("insert", |transaction, table| assert!(transaction.insert(table, key(5), "x").unwrap())),
        ("large", |transaction, table| _ = transaction.put(table, key(5), vec![1; 10_000]).unwrap()),
        ("twice", |transaction, table| {
            assert!(transaction.insert(table, key(5), "x").unwrap());
            assert!(transaction.remove(table, key(5)).unwrap());
        }),
    ];
    for (read, run) in reads {
        for (change, change_by) in changes {
            let (database, table, other) = database(2);
            let before = database.begin().unwrap();
            let transaction = database.begin().unwrap();
            run(&transaction, &table);
            run(&before, &table);
            let writer = database.begin().unwrap();
            change_by(&writer, &table);
            writer.commit().unwrap();
            let result = commit(transaction, &other);
            assert!(matches!(result, Err(Error::Conflict { .. })), "{read}, {change}: {result:?}");
            assert_conflict(result, &table, &key(5));
            // One that changes nothing goes through, though it could not say so of itself later.
            before.commit().unwrap();
            assert_eq!(database.history().records, 0, "{read}, {change}");
        }
    }
}

#[test]
fn what_outsiders_do_counts_as_well() {
    let outside: [fn(&Table); 4] = [
        |table| _ = table.put(key(5), "single").unwrap(),
        |table| assert!(table.insert(key(5), vec![7; 20_000]).unwrap()),
        |table| assert!(table.multi_put(&[(key(5), "one of many")]).iter().all(Result::is_ok)),
        |table| {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
            runtime.block_on(table.put_async(key(5), "async")).unwrap();
        },
    ];
    for change in outside {
        let (database, table, other) = database(3);
        let transaction = database.begin().unwrap();
        assert_eq!(transaction.get(&table, key(5)).unwrap(), None);
        change(&table);
        assert_conflict(commit(transaction, &other), &table, &key(5));
    }
    // A key that is there, and is removed.
    let (database, table, other) = database(3);
    table.put("unique", "taken").unwrap();
    let transaction = database.begin().unwrap();
    assert!(!transaction.insert(&table, "unique", "mine").unwrap());
    assert!(table.remove("unique").unwrap());
    assert_conflict(commit(transaction, &other), &table, b"unique");
    // One of several that are removed together.
    (0..10).for_each(|number| _ = table.put(key(number), "there").unwrap());
    let transaction = database.begin().unwrap();
    assert!(transaction.contains(&table, key(5)).unwrap());
    let writer = database.begin().unwrap();
    assert_eq!(writer.remove_range(&table, &key(3)[..]..&key(8)[..]).unwrap(), 5);
    writer.commit().unwrap();
    assert_conflict(commit(transaction, &other), &table, &key(5));
}

#[test]
fn a_table_that_was_read_cannot_be_dropped_meanwhile() {
    let (database, table, other) = database(4);
    let transaction = database.begin().unwrap();
    assert!(!transaction.contains(&table, "key").unwrap());
    drop(table);
    assert!(matches!(database.drop_table("table"), Err(Error::TableInUse { .. })));
    commit(transaction, &other).unwrap();
    database.drop_table("table").unwrap();
}

#[test]
fn reads_may_be_left_untracked() {
    let (database, table, other) = database(5);
    table.put("counter", "1").unwrap();
    let transaction = database.begin().unwrap();
    assert!(transaction.get_untracked(&table, "counter").unwrap().is_some());
    transaction.range_untracked(&table, ..).unwrap().for_each(|entry| drop(entry.unwrap()));
    // What a transaction changes without looking it has not read. The first to change it wins, as ever.
    transaction.put(&table, "mine", "1").unwrap();
    table.put("counter", "2").unwrap();
    commit(transaction, &other).unwrap();
}

#[test]
fn one_that_changes_nothing_never_fails_and_sees_a_state_that_was() {
    // Fekete, O'Neil, O'Neil: A Read-Only Transaction Anomaly Under Snapshot Isolation. A withdrawal with a fee for an account
    // that is overdrawn, a deposit, and a look at both accounts in between.
    let (database, table, _) = database(6);
    table.put("checking", "0").unwrap();
    table.put("savings", "0").unwrap();
    let run = |isolation| {
        let options = TransactionOptions::default().isolation(isolation);
        let withdrawal = database.begin_with(options).unwrap();
        let sum = [b"checking".as_slice(), b"savings"].map(|key| withdrawal.get(&table, key).unwrap());
        assert!(sum.into_iter().all(|value| value.unwrap() == b"0"));
        let deposit = database.begin_with(options).unwrap();
        deposit.get(&table, "savings").unwrap();
        deposit.put(&table, "savings", "20").unwrap();
        deposit.commit().unwrap();
        let look = database.begin_with(options).unwrap();
        assert_eq!(look.get(&table, "savings").unwrap().unwrap(), b"20");
        assert_eq!(look.get(&table, "checking").unwrap().unwrap(), b"0");
        look.commit().unwrap();
        withdrawal.put(&table, "checking", "-11").unwrap();
        withdrawal.commit()
    };
    assert_conflict(run(IsolationLevel::Serializable), &table, b"savings");
    table.put("savings", "0").unwrap();
    run(IsolationLevel::Snapshot).unwrap();
}

#[test]
fn neighbours_in_a_leaf_never_conflict() {
    let (database, table, other) = database(7);
    (0..100).for_each(|number| _ = table.put(key(number * 10), "x").unwrap());
    let mut random = StdRng::seed_from_u64(7);
    let mut conflicts = 0;
    for _ in 0..500 {
        let mut numbers: Vec<u32> = (0..1000).collect();
        let mut pick = || numbers.swap_remove(random.random_range(0..numbers.len()));
        let (reader, writer) = (database.begin().unwrap(), database.begin().unwrap());
        let (read, written): (Vec<_>, Vec<_>) = (0..10).map(|_| (pick(), pick())).unzip();
        for (read, written) in read.iter().zip(&written) {
            reader.get(&table, key(*read)).unwrap();
            writer.put(&table, key(*written), "y").unwrap();
        }
        let (first, last) = (*written.iter().min().unwrap(), *written.iter().max().unwrap());
        let below = reader.cursor(&table, ..key(first)).unwrap();
        let above = reader.cursor(&table, (Bound::Excluded(key(last)), Bound::Unbounded)).unwrap();
        for mut cursor in [below, above] {
            while cursor.next().unwrap().is_some() {}
        }
        writer.commit().unwrap();
        conflicts += u32::from(commit(reader, &other).is_err());
    }
    assert_eq!(conflicts, 0);
}

/// What a walk of a cursor should have read, in keys: a place between keys is twice the number of the key after it, and a key
/// that and one.
struct Walk {
    read: BTreeSet<u32>,
    place: u32,
    range: (u32, u32),
}

impl Walk {
    fn step(&mut self, found: Option<u32>, forward: bool) {
        let from = self.place;
        self.place = match (found, forward) {
            (Some(found), true) => 2 * found + 2,
            (Some(found), false) => 2 * found,
            (None, true) => self.range.1,
            (None, false) => self.range.0,
        };
        let (low, high) = (from.min(self.place), from.max(self.place));
        self.read.extend((low..high).filter(|place| place % 2 == 1).map(|place| place / 2));
    }
}

/// A transaction walks about in a range, and another one changes a key, at some moment. The first fails exactly if the key
/// lies where it has walked.
#[test]
fn a_cursor_has_read_where_it_has_walked() {
    const KEYS: u32 = 60;
    let (mut conflicts, mut successes) = (0, 0);
    for seed in 0..400 {
        let mut random = StdRng::seed_from_u64(seed);
        let (database, table, other) = database(seed);
        // Some leaves, and some keys that are not there.
        let mut world = BTreeMap::new();
        for number in 0..KEYS {
            if random.random_ratio(2, 3) {
                table.put(key(number), vec![1; random.random_range(1..600)]).unwrap();
                world.insert(number, ());
            }
        }
        let (low, high) = (random.random_range(0..KEYS), random.random_range(0..KEYS));
        let (low, high) = (low.min(high), low.max(high));
        let lower = [Bound::Included(low), Bound::Excluded(low), Bound::Unbounded][random.random_range(0..3)];
        let upper =
            [Bound::Included(high), Bound::Excluded(high), Bound::Unbounded][random.random_range(0..3)];
        let start = [2 * low, 2 * low + 2, 0][[Bound::Included(low), Bound::Excluded(low), Bound::Unbounded]
            .iter()
            .position(|bound| *bound == lower)
            .unwrap()];
        let end = [2 * high + 2, 2 * high, 2 * KEYS][[
            Bound::Included(high),
            Bound::Excluded(high),
            Bound::Unbounded,
        ]
        .iter()
        .position(|bound| *bound == upper)
        .unwrap()];
        let transaction = database.begin().unwrap();
        let changed = random.random_range(0..KEYS);
        let change = |random: &mut StdRng| {
            if world.contains_key(&changed) && random.random_ratio(1, 2) {
                assert!(table.remove(key(changed)).unwrap());
            } else {
                table.put(key(changed), "changed").unwrap();
            }
        };
        let change_at = random.random_range(0..12);
        let mut walk = Walk { read: BTreeSet::new(), place: start, range: (start, end.max(start)) };
        let mut cursor = transaction.cursor(&table, (lower.map(key), upper.map(key))).unwrap();
        for step in 0..12 {
            if step == change_at {
                change(&mut random);
            }
            let found = |entry: Option<vellum::Entry<'_, '_>>| {
                entry.map(|entry| u32::from_be_bytes(entry.key().try_into().unwrap()))
            };
            match random.random_range(0..8) {
                0 => {
                    let to = random.random_range(0..KEYS);
                    cursor.seek(key(to)).unwrap();
                    walk.place = (2 * to).clamp(start, end.max(start));
                }
                1 => {
                    cursor.seek_to_end();
                    walk.place = walk.range.1;
                }
                2 => {
                    cursor.seek_to_start();
                    walk.place = start;
                }
                3 | 4 => walk.step(found(cursor.previous().unwrap()), false),
                5 => {
                    let mut left = random.random_range(1..20);
                    let flow = cursor.scan(|entry| {
                        walk.step(found(Some(entry)), true);
                        left -= 1;
                        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                    });
                    if flow.unwrap().is_continue() {
                        walk.step(None, true);
                    }
                }
                _ => {
                    for _ in 0..random.random_range(1..20) {
                        walk.step(found(cursor.next().unwrap()), true);
                    }
                }
            }
        }
        drop(cursor);
        let expected = walk.read.contains(&changed);
        match commit(transaction, &other) {
            Ok(()) => {
                assert!(!expected, "seed {seed}: {changed} was read and changed");
                successes += 1;
            }
            conflict => {
                assert!(expected, "seed {seed}: {changed} was not read, of {lower:?} to {upper:?}");
                assert_conflict(conflict, &table, &key(changed));
                conflicts += 1;
            }
        }
    }
    assert!(conflicts > 50 && successes > 50, "{conflicts} conflicts, {successes} successes");
}

#[test]
fn run_repeats_what_was_refused() {
    let (database, table, _) = database(8);
    (0..2).for_each(|number| _ = table.put(key(number), [100]).unwrap());
    // The sum of both must not fall below 100. Each thread takes from one of them what the other allows.
    thread::scope(|scope| {
        for thread in 0..2 {
            let (database, table) = (&database, &table);
            scope.spawn(move || {
                for _ in 0..100 {
                    database
                        .run(|transaction| {
                            let other = transaction.get(table, key(1 - thread))?.unwrap()[0];
                            thread::yield_now();
                            let mine = transaction.get(table, key(thread))?.unwrap()[0];
                            if u32::from(mine) + u32::from(other) > 100 && mine > 0 {
                                transaction.put(table, key(thread), [mine - 1])?;
                            }
                            Ok(())
                        })
                        .unwrap();
                }
            });
        }
    });
    let sum: u32 = (0..2).map(|number| u32::from(table.get(key(number)).unwrap().unwrap()[0])).sum();
    assert_eq!(sum, 100);
    let failed = database.run(|transaction| -> vellum::Result<()> {
        transaction.put(&table, "new", "value")?;
        Err(Error::NoSuchTable { name: "of one's own".to_owned() })
    });
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!table.contains("new").unwrap());
}

#[test]
fn long_transactions_are_tested_against_many_commits() {
    let (database, table, other) = database(9);
    let long = || {
        let transaction = database.begin().unwrap();
        (0..1000).for_each(|number| drop(transaction.get(&table, key(number * 2)).unwrap()));
        transaction
    };
    let (unharmed, harmed, last) = (long(), long(), long());
    assert!(harmed.get(&table, key(4001)).unwrap().is_none());
    assert!(last.get(&table, key(9999)).unwrap().is_none());
    for number in 0..3000 {
        let writer = database.begin().unwrap();
        writer.put(&table, key(number * 2 + 1), "x").unwrap();
        writer.commit().unwrap();
    }
    commit(unharmed, &other).unwrap();
    assert_conflict(commit(harmed, &other), &table, &key(4001));
    table.put(key(9999), "the very last").unwrap();
    assert_conflict(commit(last, &other), &table, &key(9999));
}

/// It reads, or changes, what others change all the time, and takes a hundred times as long as they do.
#[test]
fn a_long_transaction_is_done_among_short_ones() {
    const KEYS: u32 = 32;
    const ATTEMPTS: u32 = 16;
    /// So many attempts have no precedence.
    const EQUAL: u32 = 8;
    /// What is done beside each of these.
    const BESIDE: u64 = 20;
    for isolation in [IsolationLevel::Serializable, IsolationLevel::Snapshot] {
        let (database, table, _) = database(13);
        for number in 0..KEYS {
            table.put(key(number), "at first").unwrap();
        }
        let (is_over, short, mut attempts) = (AtomicBool::new(false), AtomicU64::new(0), 0);
        thread::scope(|scope| {
            for seed in 0..2 {
                let (database, table, is_over, short) = (&database, &table, &is_over, &short);
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(seed);
                    while !is_over.load(Ordering::Relaxed) {
                        let number = random.random_range(0..KEYS);
                        if random.random() {
                            // It gives up some time while the long one has changed the record.
                            let put = table.put(key(number), "by one operation").map(drop);
                            assert!(matches!(put, Ok(()) | Err(Error::Conflict { committed: false, .. })));
                        } else {
                            database.run(|transaction| transaction.put(table, key(number), "short")).unwrap();
                        }
                        short.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let done = database.run_with(TransactionOptions::default().isolation(isolation), |transaction| {
                attempts += 1;
                // If it is starved, that ends some time.
                is_over.store(attempts > ATTEMPTS, Ordering::Relaxed);
                // Without precedence it loses to these.
                let enough = short.load(Ordering::Relaxed) + BESIDE;
                while attempts <= EQUAL && short.load(Ordering::Relaxed) < enough {
                    thread::sleep(Duration::from_millis(1));
                }
                for number in 0..KEYS {
                    match isolation {
                        IsolationLevel::Serializable => drop(transaction.get(&table, key(number))?),
                        _ => drop(transaction.put(&table, key(number), "long")?),
                    }
                    thread::sleep(Duration::from_millis(1));
                }
                transaction.put(&table, "sum", attempts.to_string()).map(drop)
            });
            is_over.store(true, Ordering::Relaxed);
            done.unwrap();
        });
        assert!((2..=ATTEMPTS).contains(&attempts), "{attempts} attempts, {isolation:?}");
        assert!(short.load(Ordering::Relaxed) >= u64::from(attempts.min(EQUAL)) * BESIDE);
    }
}

#[test]
fn a_transaction_with_precedence_may_wait_for_others() {
    let (database, table, other) = database(14);
    let mut conflicts = 20;
    let conflict = || Error::Conflict { table: "table".into(), key: b"key".into(), committed: true };
    database
        .run(|transaction| {
            // As if another one had been faster.
            conflicts -= 1;
            if conflicts > 0 {
                return Err(conflict());
            }
            database.run(|inner| inner.put(&other, "by the same thread", ""))?;
            thread::scope(|scope| scope.spawn(|| other.put("by another thread", "")).join().unwrap())?;
            transaction.put(&table, "key", "value")
        })
        .unwrap();
    assert_eq!((other.range(..).unwrap().count(), table.range(..).unwrap().count()), (2, 1));
}

/// The closure has seen the value even if it panics, and the transaction can go on.
#[test]
fn what_a_closure_saw_counts_as_read_although_it_has_panicked() {
    for number in 0..3 {
        let (database, table, other) = database(77 + number);
        table.put("key", "0").unwrap();
        let transaction = database.begin().unwrap();
        let panics = || match number {
            0 => {
                transaction.update_with(&table, "key", |_| -> Option<&str> { panic!("on purpose") }).map(drop)
            }
            1 => transaction.modify(&table, "key", |_| panic!("on purpose")).map(drop),
            _ => transaction.multi_modify(&table, &["key"], |_, _| panic!("on purpose")).map(drop),
        };
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        table.put("key", "1").unwrap_or_else(|error| panic!("{error}"));
        assert_conflict(commit(transaction, &other), &table, b"key");
    }
}

/// It commits nothing, and still what was read before is different after it.
#[test]
fn a_load_outside_of_transactions_refuses_those_that_have_read_the_table() {
    let (database, table, other) = database(90);
    let [reader, stranger] = [(); 2].map(|()| database.begin().unwrap());
    assert!(reader.range(&table, ..).unwrap().next().is_none());
    assert!(stranger.get(&other, "y").unwrap().is_none());
    // One without records changes nothing.
    let first = database.begin().unwrap();
    assert!(first.get(&table, "loaded").unwrap().is_none());
    assert_eq!(table.bulk_load([("", ""); 0]).unwrap(), 0);
    commit(first, &other).unwrap();
    let ended = database.begin().unwrap();
    assert!(ended.get(&table, "loaded").unwrap().is_none());
    commit(ended, &other).unwrap();
    assert_eq!(table.bulk_load([("loaded", "")]).unwrap(), 1);
    // It happens after the load, and before the reader, which happens before the load.
    let between = database.begin().unwrap();
    assert!(between.get(&table, "loaded").unwrap().is_some());
    assert!(between.get(&other, "y").unwrap().is_none());
    commit(between, &other).unwrap();
    reader.put(&other, "y", "").unwrap();
    let error = reader.commit().unwrap_err();
    let Error::Conflict { table: of, committed: true, .. } = &error else { panic!("{error:?}") };
    assert_eq!(of, table.name());
    commit(stranger, &other).unwrap();
    // A load that fails has changed nothing, and a later reader sees all that was loaded.
    let later = database.begin().unwrap();
    assert!(later.get(&table, "loaded").unwrap().is_some());
    assert!(table.bulk_load([("again", "")]).is_err());
    commit(later, &other).unwrap();
}
