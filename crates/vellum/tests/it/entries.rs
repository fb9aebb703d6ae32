//! Ranges as iterators: both ends in any turns, beside changes, in transactions; and the entries at the ends of tables.

use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{collections::BTreeMap, ops::Bound, time::Duration};
use vellum::{Database, Entries, Error, Options, Prefix, Result, Table, TableName, Transaction};

const NUMBERS: TableName<i32, str> = TableName::new("numbers");

fn database() -> (tempfile::TempDir, Database) {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::default().durability(vellum::Durability::Deferred);
    let database = Database::create(directory.path().join("d"), &options).unwrap();
    (directory, database)
}

fn all<T>(entries: impl Iterator<Item = Result<T>>) -> Vec<T> {
    entries.collect::<Result<_>>().unwrap()
}

/// So long that some leaves hold only a few, and some are large values.
fn value(number: i32) -> String {
    let length = if number % 97 == 0 { 5000 } else { 40 + number.rem_euclid(150) };
    format!("{number:>length$}", length = length as usize)
}

#[test]
fn both_ends_meet_in_the_middle_whatever_the_turns() {
    let (_directory, database) = database();
    let table = database.create_table(NUMBERS).unwrap();
    let mut random = StdRng::seed_from_u64(5);
    let mut model = BTreeMap::new();
    for _ in 0..1500 {
        let number = random.random_range(-1000..1000);
        table.put(number, value(number)).unwrap();
        model.insert(number, value(number));
    }
    let transaction = database.begin().unwrap();
    for round in 0..300 {
        let (one, other) = (random.random_range(-1100..1100), random.random_range(-1100..1100));
        let bound = |random: &mut StdRng, number| match random.random_range(0..3) {
            0 => Bound::Included(number),
            1 => Bound::Excluded(number),
            _ => Bound::Unbounded,
        };
        let bounds = (bound(&mut random, one.min(other)), bound(&mut random, one.max(other)));
        if bounds == (Bound::Excluded(one), Bound::Excluded(one)) {
            continue;
        }
        let (mut expected, mut found) = (
            model.range(bounds),
            match round % 3 {
                0 => table.range(bounds),
                1 => transaction.range(&table, bounds),
                _ => transaction.range_untracked(&table, bounds),
            }
            .unwrap(),
        );
        let limit = match random.random_range(0..4) {
            0 => Some(random.random_range(0..5)),
            1 => Some(random.random_range(0..1000)),
            _ => None,
        };
        if let Some(limit) = limit {
            // The lower one stands.
            found = found.limit(limit).limit(limit + 1);
        }
        let mut left = limit.unwrap_or(usize::MAX);
        // Mostly from one end, now and then in turns.
        let share = [0.0, 0.02, 0.5, 1.0][random.random_range(0..4)];
        loop {
            let (expected, found) = match random.random_bool(share) {
                true => (expected.next_back(), found.next_back()),
                false => (expected.next(), found.next()),
            };
            let expected = expected.filter(|_| left > 0);
            left = left.saturating_sub(1);
            let found = found.transpose().unwrap();
            assert_eq!(found.as_ref().map(|(key, value)| (key, value)), expected, "{bounds:?}, {share}");
            if expected.is_none() {
                break;
            }
        }
        assert!(found.next().is_none() && found.next_back().is_none(), "it stays at its end");
    }
}

#[test]
fn ends_that_others_change_meanwhile_show_each_entry_once() {
    let (_directory, database) = database();
    let table = database.create_table(NUMBERS).unwrap();
    for number in 0..2000 {
        table.put(number * 2, value(number)).unwrap();
    }
    let mut random = StdRng::seed_from_u64(8);
    let (mut entries, mut low, mut high, mut seen) = (table.range(..).unwrap(), -1, 4001, Vec::new());
    loop {
        // Odd ones come and go, even ones stay.
        for _ in 0..3 {
            let number = random.random_range(0..2000) * 2 + 1;
            table.put(number, value(number)).unwrap();
            table.remove(random.random_range(0..2000) * 2 + 1).unwrap();
        }
        let is_back = random.random();
        let entry = if is_back { entries.next_back() } else { entries.next() };
        let Some(entry) = entry else { break };
        let (number, _) = entry.unwrap();
        assert!(low < number && number < high, "{number} between {low} and {high}");
        *if is_back { &mut high } else { &mut low } = number;
        if number % 2 == 0 {
            seen.push(number);
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..2000).map(|number| number * 2).collect::<Vec<_>>());
}

#[test]
fn an_iterator_of_a_transaction_shows_one_moment_and_its_own_changes() {
    let (_directory, database) = database();
    let table = database.create_table(NUMBERS).unwrap();
    for number in 0..10 {
        table.put(number, "before").unwrap();
    }
    let transaction = database.begin().unwrap();
    transaction.put(&table, 20, "own").unwrap();
    transaction.remove(&table, 0).unwrap();
    let mut entries = transaction.range(&table, ..).unwrap();
    assert_eq!(entries.next().unwrap().unwrap(), (1, "before".to_owned()));
    for number in 0..30 {
        // What the transaction has changed conflicts.
        let changed = table.put(number, "after").is_ok();
        assert_eq!(changed, number != 0 && number != 20);
    }
    assert_eq!(entries.next_back().unwrap().unwrap(), (20, "own".to_owned()));
    let rest = all(entries);
    assert_eq!(rest, (2..10).map(|number| (number, "before".to_owned())).collect::<Vec<_>>());
    assert_eq!(transaction.first(&table).unwrap(), Some((1, "before".to_owned())));
    assert_eq!(transaction.last(&table).unwrap().unwrap().0, 20);
    assert_eq!((transaction.count(&table, ..).unwrap(), transaction.count(&table, 5..).unwrap()), (10, 6));
    assert_eq!(transaction.pop_first(&table).unwrap_err().kind(), vellum::ErrorKind::Conflict);
    drop(transaction);
    assert_eq!(table.count(..).unwrap(), 29);
}

#[test]
fn entries_are_taken_from_the_ends() {
    let (_directory, database) = database();
    let table = database.create_table(NUMBERS).unwrap();
    assert_eq!(
        (table.first().unwrap(), table.last().unwrap(), table.pop_last().unwrap()),
        (None, None, None)
    );
    let before = database.begin().unwrap();
    assert!(table.is_empty().unwrap() && before.is_empty(&table).unwrap());
    for number in -3..3 {
        table.put(number, value(number)).unwrap();
    }
    assert!(!table.is_empty().unwrap() && before.is_empty(&table).unwrap());
    drop(before);
    let emptied = database.begin().unwrap();
    emptied.remove_range(&table, ..).unwrap();
    assert!(!table.is_empty().unwrap() && emptied.is_empty(&table).unwrap());
    emptied.rollback().unwrap();
    assert_eq!((table.first().unwrap().unwrap().0, table.last().unwrap().unwrap().0), (-3, 2));
    assert_eq!(table.pop_first().unwrap(), Some((-3, value(-3))));
    assert_eq!(table.pop_last().unwrap(), Some((2, value(2))));
    let popped = database.run(|transaction| {
        let pair = (transaction.pop_first(&table)?, transaction.pop_last(&table)?);
        assert_eq!(transaction.first(&table)?.map(|(number, _)| number), Some(-1));
        Ok(pair)
    });
    assert_eq!(popped.unwrap(), (Some((-2, value(-2))), Some((1, value(1)))));
    assert_eq!(all(table.range(..).unwrap()), [(-1, value(-1)), (0, value(0))]);
}

/// It waits for the transaction that has changed the first entry, and sees all that this one has committed.
#[test]
fn what_waits_for_a_transaction_to_take_an_entry_takes_what_is_the_first_then() {
    let (_directory, database) = database();
    let table = database.create_table(NUMBERS).unwrap();
    let mut taken = 0;
    for round in 0..60 {
        let is_last = round % 2 == 1;
        table.put(2, "before").unwrap();
        let other = database.begin().unwrap();
        other.put(&table, 2, "changed").unwrap();
        other.put(&table, if is_last { 3 } else { 1 }, "beside").unwrap();
        std::thread::scope(|scope| {
            let takes = scope.spawn(|| if is_last { table.pop_last() } else { table.pop_first() });
            std::thread::sleep(Duration::from_millis(3));
            other.commit().unwrap();
            match takes.join().unwrap() {
                // It waits for some milliseconds only.
                Err(Error::Conflict { .. }) => {}
                popped => {
                    assert_eq!(popped.unwrap().unwrap().1, "beside", "round {round}");
                    taken += 1;
                }
            }
        });
        table.remove_range(..).unwrap();
    }
    assert!(taken > 0);
}

#[test]
fn each_entry_of_a_queue_goes_to_one_thread() {
    let (_directory, database) = database();
    let table = database.create_table(NUMBERS).unwrap();
    for number in 0..600 {
        table.put(number, value(number)).unwrap();
    }
    // With transactions open and without, single operations go different ways.
    for open in [false, true] {
        let reader = open.then(|| database.begin().unwrap());
        let take = |from_back: bool| {
            let mut taken = Vec::new();
            while taken.len() < 75
                && let Some((number, text)) =
                    if from_back { table.pop_last() } else { table.pop_first() }.unwrap()
            {
                assert_eq!(text, value(number));
                taken.push(number);
            }
            taken
        };
        let mut taken: Vec<i32> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || take(thread % 2 == 0))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), 300);
        drop(reader);
    }
    assert_eq!(table.count(..).unwrap(), 0);
}

#[test]
fn prefixes_are_ranges() {
    let (_directory, database) = database();
    let table = database.create_table(TableName::<(String, u8), u8>::new("t")).unwrap();
    for (name, number) in [("a", 1), ("a", 2), ("ab", 1), ("b", 255)] {
        table.put((name, number), number).unwrap();
    }
    assert_eq!(all(table.prefix(("a",)).unwrap().map(|entry| Ok(entry?.1))), [1, 2]);
    assert_eq!(table.count(Prefix(("b",))).unwrap(), 1);
    assert_eq!(table.count(("a", 2)..).unwrap(), 3);
    assert_eq!(
        all(table.range(("a", 2)..=("ab", 1)).unwrap()),
        [(("a".into(), 2), 2), (("ab".into(), 1), 1)]
    );
    let removed = database.run(|transaction| transaction.remove_range(&table, Prefix(("a",))));
    assert_eq!((removed.unwrap(), table.count(..).unwrap()), (2, 2));
}

#[test]
fn an_entry_that_is_not_of_the_type_ends_the_iterator() {
    let (_directory, database) = database();
    let table = database.create_table(NUMBERS).unwrap();
    table.put(1, "one").unwrap();
    table.as_bytes().put([0x80, 0, 0], "key").unwrap();
    let mut entries = table.range(..).unwrap();
    let refused = entries.next().unwrap().unwrap_err();
    assert!(refused.to_string().starts_with("the key \"\\x80\\x00\\x00\" of table"), "{refused}");
    assert!(matches!(refused, Error::Malformed { what: "key", key: Some(key), .. } if key == [0x80, 0, 0]));
    assert!(entries.next().is_none());
    assert!(matches!(table.pop_first(), Err(Error::Malformed { .. })));
    assert_eq!(table.count(..).unwrap(), 2);
}

#[test]
fn iterators_go_to_other_threads() {
    fn is_send<T: Send>(_: &T) {}
    fn check(table: &Table<i32, str>, transaction: &Transaction) {
        let entries: Entries<'_, i32, str> = transaction.range(table, ..).unwrap();
        is_send(&entries);
        is_send(&table.cursor(..).unwrap());
        let counted = std::thread::scope(|scope| scope.spawn(move || entries.count()).join().unwrap());
        assert_eq!(counted, 1);
    }
    let (_directory, database) = database();
    let table = database.create_table(NUMBERS).unwrap();
    table.put(7, "seven").unwrap();
    check(&table, &database.begin().unwrap());
}
