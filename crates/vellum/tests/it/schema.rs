//! Tables created, renamed and dropped in transactions: what each sees, what conflicts, when space is free, and what is left
//! after a crash.

use crate::support::{assert_clean, assert_conflict, options};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{collections::BTreeMap, sync::Arc};
use vellum::{Database, Error, ErrorKind, IsolationLevel, Table, TableName, Transaction, TransactionOptions};
use vellum_vm::SimulatedDisk;

const NUMBERS: TableName<u32, str> = TableName::new("numbers");

fn database(seed: u64) -> (SimulatedDisk, Database) {
    let disk = SimulatedDisk::new(seed);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
    (disk, database)
}

fn names(tables: Vec<vellum::TableInformation>) -> Vec<String> {
    tables.into_iter().map(|table| table.name).collect()
}

fn pages(database: &Database) -> u64 {
    database.statistics().pages_allocated
}

#[test]
fn what_is_created_is_seen_when_it_is_committed() {
    let (_disk, database) = database(1);
    let transaction = database.begin().unwrap();
    let numbers = transaction.create_table(NUMBERS).unwrap();
    transaction.put(&numbers, 1, "one").unwrap();
    assert_eq!(names(transaction.tables().unwrap()), ["numbers"]);
    assert_eq!(transaction.table(NUMBERS).unwrap().name(), "numbers");
    assert!(matches!(transaction.create_table(NUMBERS), Err(Error::TableExists { .. })));
    assert!(matches!(transaction.table("numbers"), Err(Error::TableTypes { .. })));
    let other = database.begin().unwrap();
    assert!(matches!(other.table(NUMBERS), Err(Error::NoSuchTable { .. })));
    assert!(matches!(database.table(NUMBERS), Err(Error::NoSuchTable { .. })));
    assert!(other.tables().unwrap().is_empty() && database.tables().unwrap().is_empty());
    // Somebody may be given the handle.
    assert_conflict(numbers.put(2, "two"), false);
    assert_eq!(numbers.get(1).unwrap(), None);
    transaction.commit().unwrap();
    assert!(matches!(other.table(NUMBERS), Err(Error::NoSuchTable { .. })), "its snapshot is older");
    assert_conflict(other.create_table(NUMBERS), true);
    drop(other);
    numbers.put(2, "two").unwrap();
    assert_eq!(database.table(NUMBERS).unwrap().count(..).unwrap(), 2);
    assert_clean(&database);
}

#[test]
fn what_is_rolled_back_leaves_nothing() {
    let (_disk, database) = database(2);
    database.create_table("old").unwrap().put("key", "value").unwrap();
    let before = pages(&database);
    let transaction = database.begin().unwrap();
    let numbers = transaction.create_table(NUMBERS).unwrap();
    for number in 0..2000 {
        transaction.put(&numbers, number, "some text that fills pages").unwrap();
    }
    transaction.drop_table("old").unwrap();
    transaction.rename_table("numbers", "old").unwrap();
    assert_eq!(names(transaction.tables().unwrap()), ["old"]);
    transaction.rollback().unwrap();
    assert_eq!(names(database.tables().unwrap()), ["old"]);
    assert_eq!(database.table("old").unwrap().get("key").unwrap().as_deref(), Some(&b"value"[..]));
    // The handle holds the table's pages, and is of no other use.
    assert!(pages(&database) > before);
    assert!(matches!(numbers.put(1, "one"), Err(Error::NoSuchTable { .. })));
    assert!(matches!(numbers.bulk_loader().map(drop), Err(Error::NoSuchTable { .. })));
    assert!(numbers.multi_put(&[(1, "one")]).pop().unwrap().is_err());
    drop(numbers);
    database.begin().unwrap().commit().unwrap();
    assert_eq!(pages(&database), before);
    assert_clean(&database);
}

#[test]
fn a_savepoint_takes_tables_back() {
    let (_disk, database) = database(3);
    let old = database.create_table("old").unwrap();
    let before = pages(&database);
    let transaction = database.begin().unwrap();
    let first = transaction.create_table("first").unwrap();
    let savepoint = transaction.savepoint();
    let second = transaction.create_table("second").unwrap();
    transaction.drop_table("first").unwrap();
    transaction.drop_table("old").unwrap();
    transaction.rollback_to(savepoint).unwrap();
    assert_eq!(names(transaction.tables().unwrap()), ["first", "old"]);
    transaction.put(&first, "key", "value").unwrap();
    transaction.put(&old, "key", "value").unwrap();
    assert!(matches!(transaction.put(&second, "key", "value"), Err(Error::NoSuchTable { .. })));
    transaction.commit().unwrap();
    assert_eq!((first.count(..).unwrap(), old.count(..).unwrap()), (1, 1));
    drop(second);
    database.drop_table("first").unwrap_err();
    drop(first);
    database.drop_table("first").unwrap();
    assert_eq!(pages(&database), before);
    assert_clean(&database);
}

#[test]
fn older_snapshots_see_what_was_dropped_and_its_space_is_free_after_them() {
    let (_disk, database) = database(4);
    let empty = pages(&database);
    let numbers = database.create_table(NUMBERS).unwrap();
    numbers.bulk_load((0..3000).map(|number| (number, "text that fills some pages"))).unwrap();
    let (older, oldest) = (database.begin().unwrap(), database.begin().unwrap());
    let full = pages(&database);
    database.run(|transaction| transaction.drop_table("numbers")).unwrap();
    assert!(matches!(database.table(NUMBERS), Err(Error::NoSuchTable { .. })));
    // By a handle that there was, and by name.
    assert_eq!(older.count(&numbers, ..).unwrap(), 3000);
    drop(numbers);
    let again = older.table(NUMBERS).unwrap();
    assert_eq!(older.get(&again, 2999).unwrap().as_deref(), Some("text that fills some pages"));
    // Another one of that name is another one.
    let new = database.create_table(NUMBERS).unwrap();
    new.put(1, "new").unwrap();
    assert_eq!(
        older.get(&older.table(NUMBERS).unwrap(), 1).unwrap().as_deref(),
        Some("text that fills some pages")
    );
    assert_conflict(older.put(&again, 1, "lost"), true);
    drop(again);
    drop(older);
    assert!(pages(&database) > full, "one snapshot still sees it");
    assert_eq!(oldest.count(&oldest.table(NUMBERS).unwrap(), ..).unwrap(), 3000);
    drop(oldest);
    drop(new);
    database.drop_table("numbers").unwrap();
    assert_eq!(pages(&database), empty);
    assert_clean(&database);
    database.close().unwrap();
}

#[test]
fn the_first_to_change_a_table_or_its_record_wins() {
    let (_disk, database) = database(5);
    let numbers = database.create_table(NUMBERS).unwrap();
    let begin = || database.begin().unwrap();

    // A writer keeps others from dropping the table, but not itself.
    let (writer, dropper) = (begin(), begin());
    writer.put(&numbers, 1, "one").unwrap();
    assert_conflict(dropper.drop_table("numbers"), false);
    assert!(matches!(dropper.tables(), Err(Error::Ended)));
    let savepoint = writer.savepoint();
    writer.drop_table("numbers").unwrap();
    writer.rollback_to(savepoint).unwrap();
    writer.commit().unwrap();
    drop(dropper);

    // One that drops it keeps all from writing, until it is undone.
    let (writer, dropper) = (begin(), begin());
    dropper.drop_table("numbers").unwrap();
    assert_conflict(writer.put(&numbers, 2, "two"), false);
    assert_conflict(numbers.put(2, "two"), false);
    assert_conflict(begin().drop_table("numbers"), false);
    assert_conflict(begin().rename_table("numbers", "digits"), false);
    assert_eq!(numbers.get(1).unwrap().as_deref(), Some("one"), "readers are not kept");
    drop(dropper);
    numbers.put(2, "two").unwrap();

    // Two tables of one name.
    let (one, other) = (begin(), begin());
    one.create_table("new").unwrap();
    assert_conflict(other.create_table("new"), false);
    assert_conflict(begin().rename_table("numbers", "new"), false);
    one.commit().unwrap();
    drop(other);
    assert!(matches!(database.create_table("new"), Err(Error::TableExists { .. })));
    assert_eq!(names(database.tables().unwrap()), ["new", "numbers"]);
    assert_clean(&database);
}

#[test]
fn a_renamed_table_keeps_its_handles_and_its_records() {
    let (_disk, database) = database(6);
    let numbers = database.create_table(NUMBERS).unwrap();
    numbers.put(1, "one").unwrap();
    database.create_table("other").unwrap();
    let older = database.begin().unwrap();
    let renamed = database.run(|transaction| {
        assert!(matches!(transaction.rename_table("numbers", "other"), Err(Error::TableExists { .. })));
        assert!(matches!(transaction.rename_table("none", "some"), Err(Error::NoSuchTable { .. })));
        transaction.rename_table("numbers", "digits")
    });
    renamed.unwrap();
    let digits = database.table(TableName::<u32, str>::new("digits")).unwrap();
    assert_eq!((digits.name(), digits.get(1).unwrap().as_deref()), ("digits", Some("one")));
    numbers.put(2, "two").unwrap();
    assert_eq!(digits.count(..).unwrap(), 2);
    assert_eq!(names(older.tables().unwrap()), ["numbers", "other"]);
    assert_eq!(older.count(&older.table(NUMBERS).unwrap(), ..).unwrap(), 1);
    // Three names in a circle.
    database
        .run(|transaction| {
            transaction.rename_table("digits", "x")?;
            transaction.rename_table("other", "digits")?;
            transaction.rename_table("x", "other")
        })
        .unwrap();
    assert_eq!(database.table(TableName::<u32, str>::new("other")).unwrap().count(..).unwrap(), 2);
    assert_clean(&database);
}

#[test]
fn what_a_transaction_has_dropped_it_does_not_change() {
    let (_disk, database) = database(8);
    let old = database.create_table("t").unwrap();
    old.put("k", "v").unwrap();
    let before = pages(&database);
    let transaction = database.begin().unwrap();
    transaction.put(&old, "own", "1").unwrap();
    let savepoint = transaction.savepoint();
    let assert_refused = |done: vellum::Result<()>| {
        assert!(matches!(done, Err(Error::NoSuchTable { .. })), "{done:?}");
    };
    let drop_in = |length: u64| {
        let mut source = Dropping { transaction: &transaction, is_dropped: false };
        transaction.put_from(&old, "large", length, &mut source).map(drop)
    };
    let drop_and_change = |_: Option<Vec<u8>>| {
        transaction.drop_table("t").unwrap();
        Some("v")
    };
    assert_refused(transaction.update_with(&old, "k", drop_and_change));
    let new = transaction.create_table("t").unwrap();
    for done in [
        transaction.put(&old, "own", "2").map(drop),
        transaction.insert(&old, "none", "2").map(drop),
        transaction.remove(&old, "k").map(drop),
        transaction.get_for_update(&old, "k").map(drop),
        transaction.multi_put(&old, &[("a", "1"), ("b", "2")]).map(drop),
        transaction.remove_range(&old, ..).map(drop),
    ] {
        assert_refused(done);
    }
    // It shows what it held, and the transaction goes on.
    assert_eq!(transaction.get(&old, "own").unwrap().unwrap(), b"1");
    transaction.put(&new, "k", "new").unwrap();
    drop(new);
    // When the drop is undone, the table is what it was.
    for length in [100, 100_000] {
        transaction.rollback_to(savepoint).unwrap();
        transaction.put(&old, "own", length.to_string()).unwrap();
        assert_refused(drop_in(length));
    }
    transaction.rollback_to(savepoint).unwrap();
    transaction.put(&old, "k", "last").unwrap();
    transaction.commit().unwrap();
    assert_eq!(old.get("k").unwrap().unwrap(), b"last");
    assert_clean(&database);
    assert_eq!(pages(&database), before);
}

/// A source that drops the table for which it is read.
struct Dropping<'t> {
    transaction: &'t Transaction,
    is_dropped: bool,
}

impl std::io::Read for Dropping<'_> {
    fn read(&mut self, target: &mut [u8]) -> std::io::Result<usize> {
        if !std::mem::replace(&mut self.is_dropped, true) {
            self.transaction.drop_table("t").unwrap();
        }
        target.fill(1);
        Ok(target.len())
    }
}

#[test]
fn who_has_read_what_was_cleared_or_dropped_is_not_serializable() {
    for drops in [false, true] {
        let (_disk, database) = database(8);
        let (numbers, other) =
            (database.create_table(NUMBERS).unwrap(), database.create_table("other").unwrap());
        numbers.put(1, "one").unwrap();
        let options = TransactionOptions::default().isolation(IsolationLevel::Serializable);
        let (first, second) = (database.begin_with(options).unwrap(), database.begin_with(options).unwrap());
        // Each reads what the other changes.
        assert_eq!(first.count(&numbers, ..).unwrap(), 1);
        first.put(&other, "counted", "1").unwrap();
        assert_eq!(second.get(&other, "counted").unwrap(), None);
        if drops {
            second.drop_table("numbers").unwrap();
        } else {
            second.clear_table("numbers").unwrap();
        }
        second.commit().unwrap();
        assert_conflict(first.commit(), true);
    }
}

/// What a database or a transaction holds: of each table which it is, and how often it was cleared, and its records.
type World = BTreeMap<String, (u64, BTreeMap<u32, String>)>;

/// An operation of a transaction, done again when it is committed on what is there then.
enum Done {
    Create { name: String, which: u64 },
    Drop { name: String, which: u64 },
    Clear { name: String, which: u64 },
    Rename { name: String, new_name: String, which: u64 },
    Put { which: u64, key: u32, value: String },
}

impl Done {
    /// That it can be done shows that what conflicts with it was refused.
    fn apply(&self, world: &mut World) {
        match self {
            Self::Create { name, which } => {
                assert!(world.insert(name.clone(), (*which, BTreeMap::new())).is_none(), "{name} is there");
            }
            Self::Drop { name, which } => {
                assert_eq!(world.remove(name).map(|table| table.0), Some(*which), "{name}");
            }
            Self::Clear { name, which } => {
                let before = world.insert(name.clone(), (which + 1, BTreeMap::new()));
                assert_eq!(before.map(|table| table.0), Some(*which), "{name}");
            }
            Self::Rename { name, new_name, which } => {
                let table = world.remove(name).filter(|table| table.0 == *which).expect("it is there");
                assert!(world.insert(new_name.clone(), table).is_none(), "{new_name} is there");
            }
            Self::Put { which, key, value } => {
                let (_, records) = world.values_mut().find(|table| table.0 == *which).expect("it is there");
                records.insert(*key, value.clone());
            }
        }
    }
}

/// How many bits of which table it is say how often it was cleared.
const CLEARED_BITS: u32 = 10;

struct Open {
    transaction: Transaction,
    world: World,
    done: Vec<Done>,
}

impl Open {
    /// Does something at random. False if it conflicts.
    fn step(&mut self, (random, which): (&mut StdRng, u64), handles: &[(Table<u32, str>, u64)]) -> bool {
        let mut name = || ["a", "b", "c", "d", "e"][random.random_range(0..5)].to_owned();
        let (name, new_name) = (name(), name());
        let here = self.world.get(&name).map(|table| table.0);
        let typed = TableName::<u32, str>::new(&name);
        let (result, done) = match random.random_range(0..11) {
            0..2 => {
                (self.transaction.create_table(typed).map(drop), Done::Create { name: name.clone(), which })
            }
            2 => (
                self.transaction.drop_table(&name),
                Done::Drop { name: name.clone(), which: here.unwrap_or(0) },
            ),
            4 => {
                let done = Done::Clear { name: name.clone(), which: here.unwrap_or(0) };
                (self.transaction.clear_table(&name), done)
            }
            3 => {
                let which = here.unwrap_or(0);
                let result = self.transaction.rename_table(&name, &new_name);
                (result, Done::Rename { name: name.clone(), new_name: new_name.clone(), which })
            }
            _ => {
                let (key, value) = (random.random_range(0..50), "x".repeat(random.random_range(0..1500)));
                let put = |table: &Table<u32, str>| self.transaction.put(table, key, &value).map(drop);
                let is_same =
                    |which: u64| here.is_some_and(|here| here >> CLEARED_BITS == which >> CLEARED_BITS);
                // By a handle of any age, if there is one.
                let result = match handles.iter().find(|(_, which)| is_same(*which)) {
                    Some((table, _)) => put(table),
                    None => self.transaction.table(typed).and_then(|table| put(&table)),
                };
                (result, Done::Put { which: here.unwrap_or(0), key, value })
            }
        };
        match result {
            Ok(()) => {
                done.apply(&mut self.world);
                self.done.push(done);
                true
            }
            Err(Error::Conflict { .. }) => false,
            Err(Error::NoSuchTable { .. }) => {
                assert!(here.is_none() && !matches!(done, Done::Create { .. }));
                true
            }
            Err(Error::TableExists { name }) => {
                assert!(self.world.contains_key(&name));
                true
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn check(&self, handles: &[(Table<u32, str>, u64)]) {
        let tables = names(self.transaction.tables().unwrap());
        assert!(tables.iter().eq(self.world.keys()), "{tables:?}, {:?}", self.world.keys());
        for (table, which) in handles {
            if let Some(records) = records_of(&self.world, *which) {
                let found: vellum::Result<BTreeMap<_, _>> =
                    self.transaction.range(table, ..).unwrap().collect();
                assert_eq!(found.unwrap(), *records);
            }
        }
        for (name, (_, records)) in &self.world {
            let table = self.transaction.table(TableName::<u32, str>::new(name)).unwrap();
            let found =
                self.transaction.range(&table, ..).unwrap().collect::<vellum::Result<BTreeMap<_, _>>>();
            assert_eq!(found.unwrap(), *records, "{name}");
        }
    }
}

/// The records of a table, however often it was cleared.
fn records_of(world: &World, which: u64) -> Option<&BTreeMap<u32, String>> {
    let mut tables = world.values();
    tables.find(|table| table.0 >> CLEARED_BITS == which >> CLEARED_BITS).map(|(_, records)| records)
}

fn check(database: &Database, committed: &World, handles: &[(Table<u32, str>, u64)]) {
    for (table, which) in handles {
        if let Some(records) = records_of(committed, *which) {
            let found = table.range(..).unwrap().collect::<vellum::Result<BTreeMap<_, _>>>();
            assert_eq!(found.unwrap(), *records);
        }
    }
    let tables = names(database.tables().unwrap());
    assert!(tables.iter().eq(committed.keys()), "{tables:?}, {:?}", committed.keys());
    for (name, (_, records)) in committed {
        let table = database.table(TableName::<u32, str>::new(name)).unwrap();
        let found = table.range(..).unwrap().collect::<vellum::Result<BTreeMap<_, _>>>();
        assert_eq!(found.unwrap(), *records, "{name}");
    }
}

/// Several transactions at a time that create, rename, drop and fill tables, compared with a model; crashes among them.
fn history(seed: u64, steps: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut disk, mut database) = database(seed);
    let empty = pages(&database);
    let (mut committed, mut open, mut handles) = (World::new(), Vec::<Open>::new(), Vec::new());
    for step in 1..=steps {
        match random.random_range(0..100) {
            0..15 if open.len() < 4 => {
                let transaction = database.begin().unwrap();
                open.push(Open { transaction, world: committed.clone(), done: Vec::new() });
            }
            0..60 if !open.is_empty() => {
                let number = random.random_range(0..open.len());
                if !open[number].step((&mut random, (seed << 32 | step) << CLEARED_BITS), &handles) {
                    open.swap_remove(number).transaction.rollback().unwrap();
                }
            }
            60..75 if !open.is_empty() => {
                let Open { transaction, done, .. } = open.swap_remove(random.random_range(0..open.len()));
                if random.random_ratio(3, 4) {
                    transaction.commit().unwrap();
                    done.iter().for_each(|done| done.apply(&mut committed));
                } else {
                    drop(transaction);
                }
            }
            75..85 => open.iter().for_each(|open| open.check(&handles)),
            85..90 => check(&database, &committed, &handles),
            90..93 => database.checkpoint().unwrap(),
            93..95 => handles.clear(),
            95..97 => {
                let crashed = disk.crash();
                (open, handles) = (Vec::new(), Vec::new());
                drop(database);
                disk = crashed;
                database = Database::open_in(Arc::new(disk.clone()), "data", &options()).unwrap();
                check(&database, &committed, &handles);
                let report = database.verify(|_| {});
                assert!(report.is_clean(), "{:?}", report.problems);
            }
            _ => handles.extend(committed.iter().next().map(|(name, (which, _))| {
                (database.table(TableName::<u32, str>::new(name)).unwrap(), *which)
            })),
        }
    }
    drop((open, handles));
    for name in committed.keys() {
        database.drop_table(name).unwrap();
    }
    // Pages that recovery or the last drop has freed can be reused when the record of that is durable.
    database.sync().unwrap();
    assert_eq!(pages(&database), empty, "all space is free");
    assert_clean(&database);
    database.close().unwrap();
}

#[test]
fn random_histories_are_those_of_a_model_also_through_crashes() {
    let seeds = std::env::var("VELLUM_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(100);
    for seed in 0..seeds {
        println!("seed {seed}");
        history(seed, 300);
    }
}

#[test]
fn a_read_only_database_says_so_when_a_table_is_dropped_that_is_open() {
    let disk = SimulatedDisk::new(1);
    let mut database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
    database.create_table("table").unwrap();
    database.close_in_place().unwrap();
    drop(database);
    let database = Database::open_in(Arc::new(disk), "data", &options().read_only(true)).unwrap();
    let _table = database.table("table").unwrap();
    assert_eq!(database.drop_table("table").unwrap_err().kind(), ErrorKind::ReadOnly);
}
