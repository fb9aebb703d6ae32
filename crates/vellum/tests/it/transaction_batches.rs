//! Many records in one call of a transaction: what puts and gets one after the other would do.

use crate::support::{assert_clean, assert_conflict, options};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{collections::BTreeMap, sync::Arc};
use vellum::{Database, Error, ErrorKind, MAX_KEY_BYTES, Options, Put, Table, TableName};
use vellum_vm::SimulatedDisk;

fn database(seed: u64, options: &Options) -> (Database, Table) {
    let database = Database::create_in(Arc::new(SimulatedDisk::new(seed)), "data", options).unwrap();
    let table = database.create_table("table").unwrap();
    (database, table)
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn contents(table: &Table) -> Model {
    table.range(..).unwrap().map(Result::unwrap).collect()
}

#[test]
fn many_puts_leave_what_puts_one_after_the_other_leave() {
    for seed in 0..40 {
        let mut random = StdRng::seed_from_u64(seed);
        // A pool of 1 MiB, and several times as much data in some rounds.
        let keys = if seed % 2 == 0 { 200u64 } else { 20_000 };
        let (database, table) = database(seed, &options());
        let mut model = Model::new();
        for _ in 0..12 {
            let before = model.clone();
            let transaction = database.begin().unwrap();
            for _ in 0..random.random_range(1..5) {
                let entries: Vec<(Vec<u8>, Vec<u8>)> = (0..random.random_range(0..400))
                    .map(|_| {
                        let key = random.random_range(0..keys).to_be_bytes().to_vec();
                        let length =
                            if random.random_bool(0.01) { 5000 } else { random.random_range(0..300) };
                        (key, vec![random.random(); length])
                    })
                    .collect();
                let puts = transaction.multi_put(&table, &entries).unwrap();
                assert_eq!(puts.len(), entries.len());
                for ((key, value), put) in entries.into_iter().zip(puts) {
                    let was_there = model.insert(key, value).is_some();
                    assert_eq!(put, if was_there { Put::Replaced } else { Put::Inserted }, "seed {seed}");
                }
            }
            assert!(contents(&table) == before, "seed {seed}: others see it before it is committed");
            let keys: Vec<_> = model.keys().take(500).collect();
            let mut found = 0;
            transaction
                .multi_get_with(&table, &keys, |place, value| {
                    assert_eq!(value.unwrap(), model.get(keys[place]).map(Vec::as_slice));
                    found += 1;
                })
                .unwrap();
            assert_eq!(found, keys.len());
            if random.random_bool(0.7) {
                transaction.commit().unwrap();
            } else {
                transaction.rollback().unwrap();
                model = before;
            }
            assert!(contents(&table) == model, "seed {seed}");
        }
        assert_clean(&database);
    }
}

#[test]
fn of_a_key_that_occurs_twice_the_last_value_stays() {
    let (database, table) = database(1, &options());
    let entries: Vec<_> =
        (0..300u32).map(|number| ((number % 7).to_be_bytes(), number.to_be_bytes())).collect();
    let puts = database.run(|transaction| transaction.multi_put(&table, &entries)).unwrap();
    assert!(puts[..7].iter().all(|put| *put == Put::Inserted));
    assert!(puts[7..].iter().all(|put| *put == Put::Replaced));
    for key in 0..7u32 {
        let last = (0..300u32).rev().find(|number| number % 7 == key).unwrap();
        assert_eq!(table.get(key.to_be_bytes()).unwrap(), Some(last.to_be_bytes().to_vec()));
    }
}

#[test]
fn a_conflict_names_table_and_key_and_nothing_of_the_transaction_stays() {
    let (database, table) = database(2, &options());
    for committed in [false, true] {
        let (first, second) = (database.begin().unwrap(), database.begin().unwrap());
        first.put(&table, "key 50", "first").unwrap();
        let first = if committed { first.commit().map(|()| None).unwrap() } else { Some(first) };
        let entries: Vec<_> = (0..100).map(|number| (format!("key {number}"), "second")).collect();
        let done = second.multi_put(&table, &entries);
        let Err(Error::Conflict { table: name, key, .. }) = &done else { panic!("{done:?}") };
        assert_eq!((name.as_str(), key.as_slice()), ("table", &b"key 50"[..]));
        assert_conflict(done, committed);
        assert!(matches!(second.multi_put(&table, &[("other", "x")]), Err(Error::Ended)));
        assert!(matches!(second.commit(), Err(Error::Ended)));
        drop(first);
    }
    assert_eq!(contents(&table), Model::from([(b"key 50".to_vec(), b"first".to_vec())]));
    assert_clean(&database);
}

#[test]
fn what_cannot_be_stored_stores_nothing_and_the_transaction_goes_on() {
    let (database, table) = database(3, &options());
    let long = vec![0; MAX_KEY_BYTES + 1];
    let entries = [(b"good".to_vec(), "1"), (long, "2"), (b"also good".to_vec(), "3")];
    let transaction = database.begin().unwrap();
    let refused = transaction.multi_put(&table, &entries).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    assert_eq!(transaction.count(&table, ..).unwrap(), 0);
    transaction.multi_put(&table, &entries[..1]).unwrap();
    transaction.commit().unwrap();
    assert_eq!(table.get("good").unwrap(), Some(b"1".to_vec()));
    let numbers = database.create_table(TableName::<u32, String>::new("numbers")).unwrap();
    let puts =
        database.run(|transaction| transaction.multi_put(&numbers, &[(2, "two"), (1, "one")])).unwrap();
    assert_eq!(puts, [Put::Inserted; 2]);
    assert_eq!(numbers.first().unwrap(), Some((1, "one".to_owned())));
    assert_eq!(
        database.run(|transaction| transaction.multi_put(&numbers, &[] as &[(u32, &str)])).unwrap(),
        []
    );
}

/// An invalid request does not end a transaction, so it must not have changed anything.
#[test]
fn a_key_that_is_too_long_is_refused_before_any_value_is_changed() {
    let (database, table) = database(9, &options());
    let keys = [b"a".to_vec(), vec![0; MAX_KEY_BYTES + 1], b"b".to_vec()];
    ["a", "b"].iter().for_each(|key| assert!(table.insert(key, [0]).unwrap()));
    let transaction = database.begin().unwrap();
    let error = transaction.multi_modify(&table, &keys, |_, value| value[0] += 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    transaction.commit().unwrap();
    assert!(contents(&table).values().all(|value| *value == [0]));
}

/// Threads that share a transaction take each entry once, and find it empty when it is.
#[test]
fn threads_that_share_a_transaction_take_each_entry_once() {
    for round in 0..10 {
        let (database, table) = database(round, &options());
        let count = 400_u32;
        (0..count).for_each(|number| assert!(table.insert(number.to_be_bytes(), [1]).unwrap()));
        let transaction = database.begin().unwrap();
        let mut taken: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let takes = |first: bool| {
                let (transaction, table) = (&transaction, &table);
                scope.spawn(move || {
                    let pop =
                        || if first { transaction.pop_first(table) } else { transaction.pop_last(table) };
                    std::iter::from_fn(|| pop().unwrap()).map(|(key, _)| key).collect::<Vec<_>>()
                })
            };
            let threads = [takes(true), takes(true), takes(false)];
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        taken.sort_unstable();
        let all: Vec<_> = (0..count).map(|number| number.to_be_bytes().to_vec()).collect();
        assert_eq!(taken, all);
        transaction.commit().unwrap();
        assert!(contents(&table).is_empty());
    }
}
