//! Everything at once: real threads use all that a database has, on files, and look whether what must hold does.
//!
//! Tests under a scheduler choose how threads meet, and find what goes wrong there sooner. But they know only the operations
//! that they were told of, and a thread of theirs never waits in the system. Here threads meet as they like.
//!
//! What must hold, in whatever a transaction sees:
//! - transfers between accounts keep the sum of all;
//! - each record of `records` has one entry in `index`, and each entry its record;
//! - the numbers in `queue` have no holes;
//! - serializable transactions never bring the sum of `credit` below zero.

use crate::support::assert_clean;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, HashMap},
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    process,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};
use vellum::{
    Backup, ChangesFrom, Database, Durability, Error, ErrorKind, Event, IsolationLevel, Options, Result,
    SnapshotLimit, Table, Transaction, TransactionOptions,
};

const ACCOUNTS: u64 = 200;
const SUM: i64 = 1000 * ACCOUNTS as i64;
const RECORDS: u64 = 2000;

struct Tables {
    accounts: Table,
    records: Table,
    index: Table,
    queue: Table,
    credit: Table,
}

impl Tables {
    fn create(database: &Database) -> Result<()> {
        for name in ["accounts", "records", "index", "queue", "credit"] {
            database.create_table(name)?;
        }
        let tables = Self::open(database)?;
        for number in 0..ACCOUNTS {
            tables.accounts.put(number.to_be_bytes(), account(1000, number as usize % 300))?;
        }
        for number in 0..20_u64 {
            tables.credit.put(number.to_be_bytes(), 1_i64.to_le_bytes())?;
        }
        Ok(())
    }

    fn open(database: &Database) -> Result<Self> {
        let table = |name| database.table(name);
        let (accounts, records, index) = (table("accounts")?, table("records")?, table("index")?);
        Ok(Self { accounts, records, index, queue: table("queue")?, credit: table("credit")? })
    }

    fn all(&self) -> [&Table; 5] {
        [&self.accounts, &self.records, &self.index, &self.queue, &self.credit]
    }
}

/// An account with so much, and further bytes that follow from that.
fn account(balance: i64, padding: usize) -> Vec<u8> {
    let mut bytes = balance.to_le_bytes().to_vec();
    bytes.resize(8 + padding, balance as u8);
    bytes
}

fn number(bytes: &[u8]) -> i64 {
    i64::from_le_bytes(bytes[..8].try_into().unwrap())
}

fn balance(account: &[u8]) -> i64 {
    let balance = number(account);
    assert!(account[8..].iter().all(|byte| *byte == balance as u8), "an account in parts");
    balance
}

fn index_key(key: &[u8], value: &[u8]) -> Vec<u8> {
    [&value[..value.len().min(40)], key].concat()
}

/// A value: small, large, or in between.
fn value(random: &mut StdRng) -> Vec<u8> {
    let length = match random.random_range(0..40) {
        0 => random.random_range(1000..9000),
        1..5 => random.random_range(0..900),
        _ => random.random_range(0..60),
    };
    let mut value = vec![random.random(); length];
    value.iter_mut().take(2).for_each(|byte| *byte = random.random());
    value
}

/// Whether a transaction failed for a reason that is nobody's fault.
fn is_usual(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Conflict | ErrorKind::SnapshotTooOld)
}

/// What was done, unless it failed for such a reason.
#[track_caller]
fn unless_usual<T>(done: Result<T>) -> Option<T> {
    match done {
        Err(error) if is_usual(&error) => None,
        done => Some(done.unwrap()),
    }
}

/// Looks whether what must hold does, in what a transaction sees.
fn check(transaction: &Transaction, tables: &Tables, random: &mut StdRng) -> Result<()> {
    let balances: Vec<i64> = match random.random_range(0..4) {
        0 => transaction
            .range(&tables.accounts, ..)?
            .map(|entry| Ok(balance(&entry?.1)))
            .collect::<Result<_>>()?,
        1 => {
            let backwards = transaction.range(&tables.accounts, ..)?.rev();
            backwards.map(|entry| Ok(balance(&entry?.1))).collect::<Result<_>>()?
        }
        2 => {
            let mut balances = Vec::new();
            let _ = transaction.cursor(&tables.accounts, ..)?.scan(|entry| {
                balances.push(balance(entry.inline_value().unwrap()));
                ControlFlow::<()>::Continue(())
            })?;
            balances
        }
        _ => {
            let keys: Vec<_> = (0..ACCOUNTS).map(u64::to_be_bytes).collect();
            let values = transaction.multi_get(&tables.accounts, &keys)?;
            values.into_iter().map(|value| Ok(balance(&value?.unwrap()))).collect::<Result<_>>()?
        }
    };
    assert_eq!((balances.len() as u64, balances.iter().sum::<i64>()), (ACCOUNTS, SUM));
    let records: BTreeMap<_, _> = transaction.range(&tables.records, ..)?.collect::<Result<_>>()?;
    let indexed: Vec<_> =
        transaction.range(&tables.index, ..)?.map(|entry| Ok(entry?.0)).collect::<Result<_>>()?;
    let mut expected: Vec<_> = records.iter().map(|(key, value)| index_key(key, value)).collect();
    expected.sort_unstable();
    assert_eq!(indexed, expected);
    let queue: Vec<_> =
        transaction.range(&tables.queue, ..)?.map(|entry| Ok(entry?.0)).collect::<Result<_>>()?;
    let queue: Vec<_> = queue.iter().map(|key| u64::from_be_bytes(key[..].try_into().unwrap())).collect();
    assert!(queue.windows(2).all(|pair| pair[1] == pair[0] + 1), "{queue:?}");
    assert!(sum_of(transaction, &tables.credit)? >= 0);
    Ok(())
}

fn sum_of(transaction: &Transaction, table: &Table) -> Result<i64> {
    transaction.range(table, ..)?.map(|entry| Ok(number(&entry?.1))).sum()
}

/// What a transaction sees of all tables.
fn contents(transaction: &Transaction, tables: &Tables) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut contents = Vec::new();
    for table in tables.all() {
        for entry in transaction.range(table, ..)? {
            contents.push(entry?);
        }
    }
    Ok(contents)
}

/// Gives a record a value, or removes it, with its index entry.
fn set(transaction: &Transaction, tables: &Tables, key: u64, value: Option<&[u8]>) -> Result<()> {
    let key = key.to_be_bytes();
    let former = transaction.get_for_update(&tables.records, key)?;
    if let Some(former) = &former {
        assert!(transaction.remove(&tables.index, index_key(&key, former))?);
    }
    match (value, former) {
        (None, former) => assert_eq!(transaction.remove(&tables.records, key)?, former.is_some()),
        (Some(value), None) => assert!(transaction.insert(&tables.records, key, value)?),
        (Some(value), Some(_)) => assert!(transaction.update(&tables.records, key, value)?),
    }
    if let Some(value) = value {
        assert!(transaction.insert(&tables.index, index_key(&key, value), [])?);
    }
    Ok(())
}

/// One thing that a client does.
fn work(database: &Database, tables: &Tables, random: &mut StdRng) {
    let durability =
        [Durability::Synced, Durability::Buffered, Durability::Deferred][random.random_range(0..3)];
    let snapshot = TransactionOptions::default().durability(durability);
    let serializable = snapshot.isolation(IsolationLevel::Serializable);
    let any = if random.random_range(0..5) == 0 { serializable } else { snapshot };
    match random.random_range(0..100) {
        0..30 => transfer(database, tables, any, random),
        30..60 => change_records(database, tables, any, random),
        60..66 => {
            unless_usual(database.run_with(snapshot, |transaction| {
                let last = transaction.last(&tables.queue)?;
                let next = last.map_or(0, |(key, _)| u64::from_be_bytes(key[..].try_into().unwrap()) + 1);
                transaction.insert(&tables.queue, next.to_be_bytes(), [7; 50])
            }));
        }
        66..70 => {
            // One stays, which tells the next number.
            unless_usual(database.run_with(snapshot, |transaction| {
                match transaction.count(&tables.queue, ..)? {
                    0..2 => Ok(None),
                    _ => transaction.pop_first(&tables.queue),
                }
            }));
        }
        70..78 => {
            let (key, amount) =
                (random.random_range(0..20_u64).to_be_bytes(), if random.random() { -1 } else { 1 });
            let options = serializable.retry_for(Duration::from_millis(100));
            unless_usual(database.run_with(options, |transaction| {
                if sum_of(transaction, &tables.credit)? + amount >= 0 {
                    let credit = number(&transaction.get(&tables.credit, key)?.unwrap());
                    transaction.put(&tables.credit, key, (credit + amount).to_le_bytes())?;
                }
                Ok(())
            }));
        }
        78..82 => {
            let first = random.random_range(0..RECORDS);
            let range = first.to_be_bytes()..(first + random.random_range(1..20)).to_be_bytes();
            unless_usual(database.run_with(any, |transaction| {
                let gone: Vec<_> =
                    transaction.range(&tables.records, range.clone())?.collect::<Result<_>>()?;
                for (key, value) in &gone {
                    assert!(transaction.remove(&tables.index, index_key(key, value))?);
                }
                assert_eq!(transaction.remove_range(&tables.records, range.clone())?, gone.len() as u64);
                Ok(())
            }));
        }
        82..85 => {
            // A panic in what the caller does: the transaction is undone.
            let key = random.random_range(0..ACCOUNTS).to_be_bytes();
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                database.run(|transaction| -> Result<()> {
                    transaction.put(&tables.accounts, key, account(5, 3))?;
                    std::panic::resume_unwind(Box::new("the caller's"));
                })
            }));
            assert!(panicked.is_err() || unless_usual(panicked.unwrap()).is_none());
        }
        85..88 => tables_come_and_go(database, random),
        _ => {
            let transaction = database.begin_with(any).unwrap();
            if unless_usual(check(&transaction, tables, random)).is_some() {
                unless_usual(transaction.commit());
            }
        }
    }
}

fn transfer(database: &Database, tables: &Tables, options: TransactionOptions, random: &mut StdRng) {
    let (from, to) = (random.random_range(0..ACCOUNTS), random.random_range(0..ACCOUNTS));
    let (amount, way, padding) =
        (random.random_range(1..50), random.random_range(0..3), random.random_range(0..300));
    if from == to {
        return;
    }
    unless_usual(database.run_with(options, |transaction| {
        for (key, more) in [(from.to_be_bytes(), -amount), (to.to_be_bytes(), amount)] {
            if way == 0 {
                transaction.modify(&tables.accounts, key, |bytes| {
                    let changed = account(balance(bytes) + more, bytes.len() - 8);
                    bytes.copy_from_slice(&changed);
                })?;
                continue;
            }
            let changed = account(balance(&transaction.get(&tables.accounts, key)?.unwrap()) + more, padding);
            if way == 1 {
                transaction.put(&tables.accounts, key, changed)?;
            } else {
                assert!(transaction.remove(&tables.accounts, key)?);
                assert!(transaction.insert(&tables.accounts, key, changed)?);
            }
        }
        Ok(())
    }));
}

/// A few records, now and then many, some of which are taken back; and any end.
fn change_records(database: &Database, tables: &Tables, options: TransactionOptions, random: &mut StdRng) {
    let transaction = database.begin_with(options).unwrap();
    let count = if random.random_range(0..40) == 0 { 400 } else { random.random_range(1..8) };
    let mut savepoint = None;
    for index in 0..count {
        if index == count / 2 && random.random() {
            savepoint = Some(transaction.savepoint());
        }
        let value = (random.random_range(0..5) > 0).then(|| value(random));
        let key = random.random_range(0..RECORDS);
        if unless_usual(set(&transaction, tables, key, value.as_deref())).is_none() {
            // It is dropped, and undone by that.
            return;
        }
    }
    if let Some(savepoint) = savepoint {
        transaction.rollback_to(savepoint).unwrap();
    }
    unless_usual(match random.random_range(0..5) {
        0 => transaction.rollback(),
        1 => return,
        2 => transaction.commit_async().map(|_| ()),
        _ => transaction.commit(),
    });
}

fn tables_come_and_go(database: &Database, random: &mut StdRng) {
    let name = format!("other {}", random.random_range(0..3));
    let transaction = database.begin().unwrap();
    let mut change = || {
        if transaction.tables()?.iter().all(|table| table.name != name) {
            let table = transaction.create_table(&name[..])?;
            for key in 0..random.random_range(0..60_u64) {
                transaction.put(&table, key.to_be_bytes(), value(random))?;
            }
            return Ok(());
        }
        match random.random_range(0..3) {
            0 => transaction.drop_table(&name),
            1 => transaction.clear_table(&name),
            _ => {
                transaction.rename_table(&name, "renamed")?;
                transaction.drop_table("renamed")
            }
        }
    };
    let changed =
        change().and_then(|()| if random.random() { transaction.commit() } else { transaction.rollback() });
    // Another thread may have been faster.
    let is_expected = |error: &Error| {
        let expected = [ErrorKind::NotFound, ErrorKind::AlreadyExists, ErrorKind::Busy];
        is_usual(error) || expected.contains(&error.kind())
    };
    if let Err(error) = changed {
        assert!(is_expected(&error), "{error:?}");
    }
}

/// A snapshot that is held sees the same throughout.
fn hold_snapshots(database: &Database, tables: &Tables, end: Instant, random: &mut StdRng) {
    while Instant::now() < end {
        let transaction = database.begin().unwrap();
        let Some(first) = unless_usual(contents(&transaction, tables)) else { continue };
        for _ in 0..random.random_range(1..4) {
            thread::sleep(Duration::from_millis(random.random_range(1..150)));
            let Some(now) = unless_usual(contents(&transaction, tables)) else { break };
            assert!(now == first, "snapshot {} has changed", transaction.id());
        }
    }
}

/// Checkpoints, compaction, backups that are restored and checked, and questions about the state.
fn look_after(database: &Database, options: &Options, directory: &Path, end: Instant, random: &mut StdRng) {
    let (mut copies, has_log) = (0, database.log_state().is_some());
    while Instant::now() < end {
        match random.random_range(0..5) {
            0 if has_log => database.checkpoint().unwrap(),
            1 => _ = database.compact(|_| true).unwrap(),
            2 if has_log => {
                copies += 1;
                let (copy, restored) =
                    (directory.join(format!("copy {copies}")), directory.join(format!("restored {copies}")));
                database.backup(&copy).unwrap();
                Backup::restore(&[Backup::open(&copy).unwrap()], &restored, options).unwrap();
                let restored = Database::open(&restored, options).unwrap();
                let tables = Tables::open(&restored).unwrap();
                check(&restored.begin().unwrap(), &tables, random).unwrap();
                assert_clean(&restored);
            }
            _ => {
                for _ in 0..100 {
                    assert!(database.history().open < 100);
                    _ = database.statistics();
                }
            }
        }
    }
}

/// A feed of changes sees whole transfers, in their order.
fn follow(database: &Database, end: Instant) {
    let mut changes = database.changes(ChangesFrom::Now).unwrap();
    let mut accounts: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
    while Instant::now() < end {
        let Some(commit) = changes.next_within(Duration::from_millis(50)).unwrap() else { continue };
        for change in commit.changes.into_iter().filter(|change| &*change.table == "accounts") {
            match change.event {
                Event::Inserted { key, value } | Event::Replaced { key, value } => {
                    accounts.insert(key, value.inline().unwrap().to_vec());
                }
                Event::Patched { key, offset, bytes } => {
                    if let Some(account) = accounts.get_mut(&key) {
                        account[offset..offset + bytes.len()].copy_from_slice(&bytes);
                    }
                }
                Event::Removed { key } => _ = accounts.remove(&key),
                event => panic!("{event:?}"),
            }
        }
        if accounts.len() as u64 == ACCOUNTS {
            assert_eq!(accounts.values().map(|account| balance(account)).sum::<i64>(), SUM);
        }
    }
}

fn everything_at_once(options: &Options, clients: u64) {
    let time = std::env::var("VELLUM_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1.5);
    let seed = std::env::var("VELLUM_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let database = Database::create(&path, options).unwrap();
    Tables::create(&database).unwrap();
    let tables = Tables::open(&database).unwrap();
    let random = |thread| StdRng::seed_from_u64(seed * 1000 + thread);
    // A test that waits for ever tells nothing.
    let (_ended, running) = mpsc::channel::<()>();
    let patience = Duration::from_secs_f64(time) + Duration::from_secs(120);
    thread::spawn(move || {
        if running.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            eprintln!("threads wait for each other: look at the stack of each (gdb -p)");
            process::abort();
        }
    });
    let end = Instant::now() + Duration::from_secs_f64(time);
    thread::scope(|scope| {
        let (database, tables, directory) = (&database, &tables, directory.path());
        for client in 0..clients {
            scope.spawn(move || {
                let mut random = random(client);
                while Instant::now() < end {
                    work(database, tables, &mut random);
                }
            });
        }
        scope.spawn(move || hold_snapshots(database, tables, end, &mut random(100)));
        scope.spawn(move || look_after(database, options, directory, end, &mut random(101)));
        if database.log_state().is_some() {
            scope.spawn(move || follow(database, end));
        }
    });
    check(&database.begin().unwrap(), &tables, &mut random(102)).unwrap();
    let history = database.history();
    assert_eq!((history.open, history.versions, history.leftovers), (0, 0, 0), "{history:?}");
    assert_clean(&database);
    drop(tables);
    database.close().unwrap();
    let database = Database::open(&path, options).unwrap();
    check(&database.begin().unwrap(), &Tables::open(&database).unwrap(), &mut random(103)).unwrap();
}

fn options() -> Options {
    Options::default().capacity_bytes(1 << 32).log_segment_bytes(1 << 20).checkpoint_log_bytes(4 << 20)
}

#[test]
fn in_memory() {
    everything_at_once(&options().pool_bytes(64 << 20), 3);
}

#[test]
fn beyond_memory_with_little_room_for_versions() {
    everything_at_once(&options().pool_bytes(1 << 20).version_memory_bytes(256 << 10), 12);
}

#[test]
fn without_a_log() {
    everything_at_once(&options().pool_bytes(8 << 20).log(false), 4);
}

#[test]
fn with_snapshots_that_are_ended() {
    let limit = SnapshotLimit::default().age(Duration::from_millis(100));
    everything_at_once(&options().pool_bytes(8 << 20).snapshot_limit(limit).log_whole_values(true), 6);
}
