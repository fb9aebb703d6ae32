//! Threads that change everything, and what a copy of it must be at any moment.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};
use std::thread::JoinHandle;
use vellum::{Database, Error, Table};

/// How many threads run transactions.
const WRITERS: usize = 3;
/// How many of its last transactions a writer keeps in the table.
const KEPT: u64 = 40;
/// How many entries a load has.
const LOADED: u64 = 1500;
/// The length of the one value that takes many reads.
const HUGE_BYTES: usize = 1_300_000;

/// How many transactions each writer has committed.
pub type Committed = [u64; WRITERS];

/// The threads.
pub struct Load {
    stop: Arc<AtomicBool>,
    committed: Arc<[AtomicU64; WRITERS]>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Begins.
    pub fn start(database: &Database, seed: u64) -> Self {
        for name in ["state", "log", "huge"] {
            database.create_table(name).unwrap();
        }
        database.table("huge").unwrap().put(b"huge", huge(0)).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let committed = Arc::new(std::array::from_fn(|_| AtomicU64::new(0)));
        let mut threads = Vec::new();
        for writer in 0..WRITERS {
            let (database, stop, committed) = (database.clone(), stop.clone(), committed.clone());
            threads.push(std::thread::spawn(move || write(&database, writer, &stop, &committed, seed)));
        }
        let (loaded, ended) = (database.clone(), stop.clone());
        threads.push(std::thread::spawn(move || load_tables(&loaded, &ended)));
        let (open, ended) = (database.clone(), stop.clone());
        threads.push(std::thread::spawn(move || keep_open(&open, &ended)));
        Self { stop, committed, threads }
    }

    /// What has been committed until now.
    pub fn committed(&self) -> Committed {
        std::array::from_fn(|writer| self.committed[writer].load(Ordering::SeqCst))
    }

    /// Ends, and gives what was committed.
    pub fn stop(self) -> Committed {
        self.stop.store(true, Ordering::SeqCst);
        let committed = self.committed.clone();
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        std::array::from_fn(|writer| committed[writer].load(Ordering::SeqCst))
    }
}

fn count_of(value: Option<Vec<u8>>) -> u64 {
    value.map_or(0, |value| u64::from_le_bytes(value[..8].try_into().unwrap()))
}

/// The value of a writer's transaction: what it saw of all writers, and bytes that follow from its number.
fn value(number: u64, seen: &Committed) -> Vec<u8> {
    let mut value: Vec<u8> = seen.iter().flat_map(|count| count.to_le_bytes()).collect();
    let length = match number % 16 {
        0 => 3000,
        7 => 150_000,
        rest => rest as usize * 30,
    };
    value.extend(std::iter::repeat_n(number as u8, length));
    value
}

fn log_key(writer: usize, number: u64) -> [u8; 9] {
    let mut key = [writer as u8; 9];
    // Not in order, so that many leaves change.
    key[1..].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key
}

fn write(database: &Database, writer: usize, stop: &AtomicBool, committed: &[AtomicU64; WRITERS], seed: u64) {
    let (state, log) = (database.table("state").unwrap(), database.table("log").unwrap());
    let mut number = 0;
    while !stop.load(Ordering::SeqCst) {
        number += 1;
        let rolls_back = (number + seed).is_multiple_of(11);
        let done = database.run(|transaction| {
            let seen: Committed =
                std::array::from_fn(|other| count_of(transaction.get(&state, [other as u8]).unwrap()));
            transaction.put(&log, log_key(writer, number), value(number, &seen))?;
            if number > KEPT {
                transaction.remove(&log, log_key(writer, number - KEPT))?;
            }
            transaction.put(&state, [writer as u8], number.to_le_bytes())?;
            if rolls_back { Err(Error::Ended) } else { Ok(()) }
        });
        match done {
            Ok(()) => committed[writer].store(number, Ordering::SeqCst),
            Err(Error::Ended) if rolls_back => {
                // The same again, so that the numbers are without gaps.
                database
                    .run(|transaction| {
                        let seen: Committed = std::array::from_fn(|other| {
                            count_of(transaction.get(&state, [other as u8]).unwrap())
                        });
                        transaction.put(&log, log_key(writer, number), value(number, &seen))?;
                        if number > KEPT {
                            transaction.remove(&log, log_key(writer, number - KEPT))?;
                        }
                        transaction.put(&state, [writer as u8], number.to_le_bytes())?;
                        Ok(())
                    })
                    .unwrap();
                committed[writer].store(number, Ordering::SeqCst);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn huge(version: u64) -> Vec<u8> {
    let mut value = version.to_le_bytes().to_vec();
    value.resize(HUGE_BYTES, version as u8);
    value
}

fn loaded_value(round: u64, number: u64, changed: bool) -> Vec<u8> {
    let length = if number.is_multiple_of(100) { 9000 } else { 60 };
    vec![(round + number + u64::from(changed)) as u8; length]
}

/// Makes tables, loads them, changes them record by record, and drops them.
fn load_tables(database: &Database, stop: &AtomicBool) {
    for round in 0.. {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let table = database.create_table(&format!("loaded-{round:06}")).unwrap();
        let entries = (0..LOADED).map(|number| (number.to_be_bytes(), loaded_value(round, number, false)));
        table.bulk_load(entries).unwrap();
        for number in (0..LOADED).step_by(40) {
            table.put(number.to_be_bytes(), loaded_value(round, number, true)).unwrap();
        }
        database.table("huge").unwrap().put(b"huge", huge(round)).unwrap();
        drop(table);
        if round >= 2 {
            database.drop_table(&format!("loaded-{:06}", round - 2)).unwrap();
        }
    }
}

/// A transaction that is open as good as always, has changed something and never commits.
fn keep_open(database: &Database, stop: &AtomicBool) {
    let table = database.table("state").unwrap();
    while !stop.load(Ordering::SeqCst) {
        let transaction = database.begin().unwrap();
        for number in 0..50u8 {
            transaction.put(&table, [100, number], vec![1; 100 * number as usize]).unwrap();
        }
        for _ in 0..30 {
            if !stop.load(Ordering::SeqCst) {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
        transaction.rollback().unwrap();
    }
}

/// Checks a copy that was made after `before` and before `after` had been committed.
pub fn check(database: &Database, before: &Committed, after: &Committed) {
    let report = database.verify(|_| {});
    assert!(report.is_clean(), "{:?}", report.problems);
    let (state, log) = (database.table("state").unwrap(), database.table("log").unwrap());
    let counts: Committed = std::array::from_fn(|writer| count_of(state.get([writer as u8]).unwrap()));
    let mut entries = 0;
    for writer in 0..WRITERS {
        let count = counts[writer];
        assert!(before[writer] <= count && count <= after[writer] + 1, "{before:?} {counts:?} {after:?}");
        for number in (count.saturating_sub(KEPT) + 1).max(1)..=count {
            let found = log.get(log_key(writer, number)).unwrap().unwrap();
            let seen: Committed =
                std::array::from_fn(|other| count_of(Some(found[other * 8..other * 8 + 8].to_vec())));
            assert!(found == value(number, &seen), "writer {writer}, transaction {number}");
            // What a transaction has seen is there if the transaction is.
            assert!((0..WRITERS).all(|other| seen[other] <= counts[other]), "{seen:?} {counts:?}");
            assert_eq!(seen[writer], number - 1);
            entries += 1;
        }
    }
    assert_eq!(log.shape().unwrap().entries, entries);
    // Nothing of what was open.
    assert!(state.cursor(&[100][..]..).unwrap().next().unwrap().is_none());
    let found = database.table("huge").unwrap().get(b"huge").unwrap().unwrap();
    assert!(found == huge(count_of(Some(found[..8].to_vec()))));
    for table in database.tables().unwrap() {
        if let Some(round) = table.name.strip_prefix("loaded-") {
            check_loaded(&database.table(&table.name).unwrap(), round.parse().unwrap());
        }
    }
}

/// Loaded not at all or whole, and changed up to some record.
fn check_loaded(table: &Table, round: u64) {
    let (mut cursor, mut number, mut is_changed) = (table.cursor(..).unwrap(), 0u64, true);
    while let Some(entry) = cursor.next().unwrap() {
        assert_eq!(entry.key(), number.to_be_bytes());
        let value = entry.value().unwrap().unwrap().to_vec();
        if number.is_multiple_of(40) {
            is_changed &= value == loaded_value(round, number, true);
        }
        let changed = is_changed && number.is_multiple_of(40);
        assert!(value == loaded_value(round, number, changed), "{number} of {round}");
        number += 1;
    }
    assert!(number == 0 || number == LOADED, "{number} of {round}");
}
