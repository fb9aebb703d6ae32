//! Changes of a value by what it is: to one of another length, from nothing and to nothing; compare-and-swap.

use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::collections::BTreeMap;
use vellum::{ChangesFrom, Database, Error, ErrorKind, Options, TableName};

fn database(log: bool) -> (tempfile::TempDir, Database) {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::default().durability(vellum::Durability::Deferred).log(log);
    let database = Database::create(directory.path().join("d"), &options).unwrap();
    (directory, database)
}

#[test]
fn random_changes_are_those_of_a_model() {
    for log in [false, true] {
        let (_directory, database) = database(log);
        let table = database.create_table("t").unwrap();
        let mut random = StdRng::seed_from_u64(11);
        let mut model: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
        // Small ones, ones that split leaves, and large ones.
        let value = |random: &mut StdRng| -> Vec<u8> {
            let length = [0, 3, 900, 1500, 9000][random.random_range(0..5)];
            vec![random.random_range(0..3); length]
        };
        for step in 0..3000 {
            let key = random.random_range(0..40);
            let new = value(&mut random);
            // Some within transactions, some as transactions of their own beside one that is open.
            let transaction = (log && step % 3 > 0).then(|| database.begin().unwrap());
            let within = transaction.as_ref().filter(|_| step % 3 == 1);
            let old = model.get(&key).cloned();
            match random.random_range(0..4) {
                0 => {
                    let new = random.random::<bool>().then_some(new);
                    let change = |found: Option<Vec<u8>>| {
                        assert_eq!(found, old);
                        new.clone()
                    };
                    match within {
                        Some(transaction) => transaction.update_with(&table, [key], change).unwrap(),
                        None => table.update_with([key], change).unwrap(),
                    }
                    match new {
                        Some(new) => model.insert(key, new),
                        None => model.remove(&key),
                    };
                }
                1 | 2 => {
                    let expected =
                        if random.random() { old.clone().unwrap_or_default() } else { value(&mut random) };
                    let done = match within {
                        Some(transaction) => transaction.compare_and_swap(&table, [key], &expected, &new),
                        None => table.compare_and_swap([key], &expected, &new),
                    };
                    assert_eq!(done.unwrap(), old.as_ref() == Some(&expected));
                    if old == Some(expected) {
                        model.insert(key, new);
                    }
                }
                _ => {
                    let expected =
                        if random.random() { old.clone().unwrap_or_default() } else { value(&mut random) };
                    let done = match within {
                        Some(transaction) => transaction.compare_and_remove(&table, [key], &expected),
                        None => table.compare_and_remove([key], &expected),
                    };
                    assert_eq!(done.unwrap(), old.as_ref() == Some(&expected));
                    if old == Some(expected) {
                        model.remove(&key);
                    }
                }
            }
            transaction.map_or(Ok(()), |transaction| transaction.commit()).unwrap();
            assert_eq!(table.get([key]).unwrap().as_ref(), model.get(&key), "step {step}");
        }
        let report = database.verify(|_| {});
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}

#[test]
fn a_small_value_that_stays_the_same_is_reserved_and_not_logged() {
    let (_directory, database) = database(true);
    let table = database.create_table("t").unwrap();
    for value in [&b""[..], b"x", &[1; 900]] {
        table.put("k", value).unwrap();
        database.sync().unwrap();
        let mut changes = database.changes(ChangesFrom::Now).unwrap();
        assert!(table.compare_and_swap("k", value, value).unwrap());
        table.update_with("k", |value| value).unwrap();
        assert!(!table.compare_and_swap("k", "other", value).unwrap());
        let transaction = database.begin().unwrap();
        assert!(transaction.compare_and_swap(&table, "k", value, value).unwrap());
        let other = database.begin().unwrap();
        let refused = other.put(&table, "k", "other").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        other.rollback().unwrap();
        transaction.commit().unwrap();
        database.sync().unwrap();
        assert!(changes.next().unwrap().is_none());
        assert_eq!(table.get("k").unwrap().as_deref(), Some(value));
    }
}

#[test]
fn threads_lose_no_change() {
    for (log, open) in [(false, false), (true, false), (true, true)] {
        let (_directory, database) = database(log);
        let words = database.create_table(TableName::<str, str>::new("words")).unwrap();
        let counts = database.create_table(TableName::<u8, u64>::new("counts")).unwrap();
        let reader = open.then(|| database.begin().unwrap());
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for number in 0..200u64 {
                        // The text becomes so long that it moves out of its leaf.
                        let longer = |text: Option<String>| Some(text.unwrap_or_default() + "word ");
                        retry(|| words.update_with("text", longer));
                        loop {
                            let old = counts.get((number % 3) as u8).unwrap();
                            let done = match old {
                                Some(old) => {
                                    retry(|| counts.compare_and_swap((number % 3) as u8, old, old + 1))
                                }
                                None => retry(|| counts.insert((number % 3) as u8, 1)),
                            };
                            if done {
                                break;
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(words.get("text").unwrap().map(|text| text.len()), Some(3 * 200 * 5));
        let sum: u64 = counts.range(..).unwrap().map(|entry| entry.unwrap().1).sum();
        assert_eq!(sum, 3 * 200);
        drop(reader);
    }
}

/// A single operation conflicts with another one only while transactions are open.
fn retry<T>(mut operation: impl FnMut() -> vellum::Result<T>) -> T {
    loop {
        match operation() {
            Err(Error::Conflict { .. }) => {}
            done => return done.unwrap(),
        }
    }
}

#[test]
fn the_second_transaction_hears_of_the_first_at_once() {
    let (_directory, database) = database(true);
    let table = database.create_table(TableName::<str, u64>::new("t")).unwrap();
    table.put("a", 1).unwrap();
    let (first, second, third) =
        (database.begin().unwrap(), database.begin().unwrap(), database.begin().unwrap());
    first.update_with(&table, "a", |old| old.map(|old| old + 1)).unwrap();
    let error = second.compare_and_swap(&table, "a", 1, 5).unwrap_err();
    assert!(matches!(error, Error::Conflict { committed: false, .. }), "{error}");
    first.commit().unwrap();
    let mut called = false;
    let error = third.update_with(&table, "a", |old| {
        called = true;
        old
    });
    assert!(matches!(error, Err(Error::Conflict { committed: true, .. })));
    assert!(!called, "it would have seen what the transaction does not");
    assert_eq!(table.get("a").unwrap(), Some(2));
}

#[test]
fn what_does_not_fit_leaves_the_value() {
    let (_directory, database) = database(true);
    let table = database.create_table(TableName::<str, [u8; 2]>::new("t")).unwrap();
    table.put("a", [1, 2]).unwrap();
    table.as_bytes().put("b", [1, 2, 3]).unwrap();
    let error = table.update_with("b", |old| old).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    let long = "k".repeat(vellum::MAX_KEY_BYTES + 1);
    assert_eq!(table.update_with(&long, |_| Some([0, 0])).unwrap_err().kind(), ErrorKind::InvalidInput);
    let swapped = database.run(|transaction| transaction.compare_and_swap(&table, &long, [1, 2], [0, 0]));
    assert_eq!(swapped.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(table.get("a").unwrap(), Some([1, 2]));
}

/// A source whose first read changes something through a transaction.
struct Source<'t>(Option<&'t dyn Fn()>);

impl std::io::Read for Source<'_> {
    fn read(&mut self, target: &mut [u8]) -> std::io::Result<usize> {
        if let Some(change) = self.0.take() {
            change();
        }
        target.fill(b's');
        Ok(target.len())
    }
}

#[test]
fn what_a_transaction_calls_for_a_value_may_use_the_transaction() {
    let (sender, receiver) = std::sync::mpsc::channel();
    // In a thread, because it would wait for itself for ever.
    let thread = std::thread::spawn(move || {
        let (_directory, database) = database(true);
        let table = database.create_table("t").unwrap();
        table.put("value", "old").unwrap();
        let transaction = database.begin().unwrap();
        let savepoint = transaction.savepoint();
        let mut seen = Vec::new();
        let change = |value: Option<Vec<u8>>| {
            seen.push(value.clone());
            transaction.put(&table, "beside", "1").unwrap();
            transaction.get_for_update(&table, "reserved").unwrap();
            transaction.create_table(format!("table {}", seen.len()).as_str()).unwrap();
            match seen.len() {
                // What it was called with is there no more.
                1 => _ = transaction.put(&table, "value", "other").unwrap(),
                2 => transaction.clear_table("t").unwrap(),
                3 => _ = transaction.put(&table, "value", vec![9; 5000]).unwrap(),
                4 => transaction.rollback_to(savepoint).unwrap(),
                _ => {}
            }
            Some("new")
        };
        transaction.update_with(&table, "value", change).unwrap();
        let old = |value: &str| Some(value.as_bytes().to_vec());
        assert_eq!(seen, [old("old"), old("other"), None, Some(vec![9; 5000]), old("old")]);
        assert_eq!(transaction.get(&table, "value").unwrap(), old("new"));
        for length in [10, 100_000] {
            let put = || _ = transaction.put(&table, "source", length.to_string()).unwrap();
            transaction.put_from(&table, "large", length, &mut Source(Some(&put))).unwrap();
            assert_eq!(transaction.get(&table, "source").unwrap(), old(&length.to_string()));
            assert_eq!(transaction.get(&table, "large").unwrap().unwrap(), vec![b's'; length as usize]);
        }
        transaction.commit().unwrap();
        assert_eq!((table.get("value").unwrap(), table.get("beside").unwrap()), (old("new"), old("1")));
        assert!(database.verify(&mut |_| ()).problems.is_empty());
        sender.send(()).unwrap();
    });
    let done = receiver.recv_timeout(std::time::Duration::from_secs(60));
    assert!(done != Err(std::sync::mpsc::RecvTimeoutError::Timeout), "it waits for itself");
    thread.join().unwrap();
}

#[test]
fn what_is_stored_inside_where_nothing_was_is_seen() {
    let (_directory, database) = database(true);
    let table = database.create_table("t").unwrap();
    // Stored through the transaction, and past it by a single operation in a single operation.
    for is_within in [true, false] {
        let transaction = is_within.then(|| database.begin().unwrap());
        let mut seen = Vec::new();
        let change = |value: Option<Vec<u8>>| {
            if value.is_none() {
                match &transaction {
                    Some(transaction) => transaction.put(&table, "k", "nested").unwrap(),
                    None => table.put("k", "nested").unwrap(),
                };
            }
            seen.push(value);
            None::<Vec<u8>>
        };
        match &transaction {
            Some(transaction) => transaction.update_with(&table, "k", change).unwrap(),
            None => table.update_with("k", change).unwrap(),
        }
        assert_eq!(seen, [None, Some(b"nested".to_vec())]);
        transaction.map_or(Ok(()), |transaction| transaction.commit()).unwrap();
        assert_eq!(table.get("k").unwrap(), None);
    }
    // What another transaction stores meanwhile is no conflict: this one changes nothing.
    let transaction = database.begin().unwrap();
    let mut calls = 0;
    let change = |value: Option<Vec<u8>>| {
        calls += 1;
        assert_eq!(value, None);
        table.put("k", "other").unwrap();
        None::<Vec<u8>>
    };
    transaction.update_with(&table, "k", change).unwrap();
    transaction.commit().unwrap();
    assert_eq!((calls, table.get("k").unwrap()), (1, Some(b"other".to_vec())));
}

#[test]
fn a_source_that_fails_leaves_the_transaction_as_it_was() {
    let (_directory, database) = database(true);
    let table = database.create_table("t").unwrap();
    let transaction = database.begin().unwrap();
    transaction.put(&table, "before", "1").unwrap();
    for length in [10, 5000, 1 << 20] {
        let error = transaction.put_from(&table, "none", length, &mut &b"few"[..]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert_eq!(transaction.get(&table, "none").unwrap(), None);
    }
    transaction.put(&table, "after", "2").unwrap();
    transaction.commit().unwrap();
    assert_eq!(table.count(..).unwrap(), 2);
    let report = database.verify(&mut |_| ());
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}
