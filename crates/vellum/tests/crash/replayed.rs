//! Several threads with transactions of every kind on a few tables that come and go, which are done again one after the other.
//!
//! A feed of changes tells in which order they were committed. A map of the tables goes through the same in that order. A serializable
//! transaction must have seen what the map shows it at its commit; any other one what the map showed at some moment between its beginning
//! and its end, with its own changes. Of what that has changed nobody else has changed anything since that moment.
//!
//! How threads meet is not in the seed, but with `--cfg shuttle` (see `schedule`).
mod asked;
mod explained;
mod world;

use crate::for_seeds;
use asked::{ask, ask_alone};
use explained::check;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};
use vellum::{
    ChangesFrom, Database, Durability, Error, IsolationLevel, Options, Result, Savepoint, SnapshotLimit,
    Table, Transaction, TransactionOptions,
};
use vellum_base::primitive::{AtomicBool, thread};
use vellum_vm::SimulatedDisk;
use world::{CLIENTS, Done, KEYS, NAMES, Past, Seen, Single, Step, Value, Way, World, bytes, key};

#[derive(Default)]
struct Progress {
    done: [AtomicU64; CLIENTS],
    asked: [AtomicU64; CLIENTS],
}

fn all(of: &[AtomicU64; CLIENTS]) -> Vec<u64> {
    of.iter().map(|number| number.load(SeqCst)).collect()
}

struct Client<'w> {
    database: &'w Database,
    marks: &'w Table,
    progress: &'w Progress,
    number: usize,
    random: StdRng,
    next: u32,
    commits: u64,
    /// Values that it has seen, for comparisons.
    known: BTreeMap<u8, Value>,
    past: Vec<Past>,
    singles: Vec<Single>,
}

fn mark(client: usize, commit: u64) -> Vec<u8> {
    [&[client as u8][..], &commit.to_be_bytes()].concat()
}

impl Client<'_> {
    fn fresh(&mut self) -> u32 {
        self.next += 1;
        (self.number as u32 + 1) * 1_000_000 + self.next
    }

    fn value(&mut self) -> Value {
        let length = match self.random.random_range(0..30) {
            0 => self.random.random_range(1020..5000),
            1..8 => self.random.random_range(200..1000),
            _ => self.random.random_range(4..120),
        };
        (self.fresh(), length)
    }

    fn key(&mut self) -> u8 {
        self.random.random_range(0..KEYS)
    }

    fn keys(&mut self) -> Vec<u8> {
        (0..self.random.random_range(1..12)).map(|_| self.key()).collect()
    }

    fn pairs(&mut self) -> Vec<(u8, Value)> {
        (0..self.random.random_range(1..10)).map(|_| (self.key(), self.value())).collect()
    }

    fn bounds(&mut self) -> (u8, u8) {
        let (one, other) = (self.key(), self.key());
        if self.random.random_ratio(1, 20) {
            (one.max(other), one.min(other))
        } else {
            (one.min(other), one.max(other))
        }
    }

    fn draw(&mut self, saved: usize) -> Step {
        match self.random.random_range(0..100) {
            0..12 => Step::Get(self.key()),
            12..16 => Step::MultiGet(self.keys()),
            16..19 => Step::Lookups(self.keys()),
            19..33 => {
                let (low, high) = self.bounds();
                let take = if self.random.random() { usize::MAX } else { self.random.random_range(0..8) };
                let way = match self.random.random_range(0..6) {
                    0 => Way::Forward,
                    1 => Way::Backward,
                    2 => Way::Limited,
                    3 => Way::LimitedBackward,
                    4 => Way::Both(self.random.random()),
                    _ => Way::Scan,
                };
                Step::Range { low, high, way, take }
            }
            33..36 => Step::End { is_first: self.random.random() },
            36..39 => {
                let (low, high) = self.bounds();
                Step::Count { low, high }
            }
            39..49 => Step::Put(self.key(), self.value()),
            49..53 => Step::Insert(self.key(), self.value()),
            53..56 => Step::Update(self.key(), self.value()),
            56..62 => Step::Remove(self.key()),
            62..66 => {
                let new = self.random.random_ratio(2, 3).then(|| self.value());
                Step::Exchange(self.key(), new)
            }
            66..70 => {
                let key = self.key();
                let old = self.known.get(&key).copied().unwrap_or((7, 7));
                let new = if self.random.random_ratio(1, 4) { old } else { self.value() };
                Step::Compare(key, old, new)
            }
            70..74 => Step::Modify(self.key()),
            74..77 => {
                let (low, high) = self.bounds();
                Step::RemoveRange { low, high: high.min(low.saturating_add(4)) }
            }
            77..80 => Step::Pop { is_first: self.random.random() },
            80..83 => Step::ForUpdate(self.key()),
            83..85 => Step::MultiPut(self.pairs()),
            85..87 => Step::MultiModify(self.keys()),
            87 => Step::Clear,
            88 => {
                let pairs: BTreeMap<u8, Value> = self.pairs().into_iter().collect();
                Step::Load(pairs.into_iter().collect())
            }
            89 | 90 => Step::Create(self.fresh()),
            91 => Step::Drop,
            92 => Step::Rename(self.random.random_range(0..NAMES.len())),
            93..97 => Step::Save,
            _ if saved > 0 => Step::Back(self.random.random_range(0..saved)),
            _ => Step::Get(self.key()),
        }
    }

    /// Runs one transaction.
    fn transact(&mut self) -> Result<()> {
        let is_serializable = self.random.random_ratio(1, 2);
        let isolation = if is_serializable { IsolationLevel::Serializable } else { IsolationLevel::Snapshot };
        let done = all(&self.progress.done);
        let transaction = self.database.begin_with(TransactionOptions::default().isolation(isolation))?;
        let asked = all(&self.progress.asked);
        let mut past =
            Past { client: self.number, is_serializable, done, asked, steps: Vec::new(), commit: None };
        let (has_mark, is_early) = (self.random.random_ratio(5, 6), self.random.random::<bool>());
        let outcome = self.work(&transaction, &mut past, (has_mark, is_early));
        let ended = match outcome {
            Ok(()) if self.random.random_ratio(1, 10) => transaction.rollback(),
            Ok(()) if has_mark => {
                self.progress.asked[self.number].store(self.commits + 1, SeqCst);
                let committed = transaction.commit();
                if committed.is_ok() {
                    self.commits += 1;
                    past.commit = Some(self.commits);
                    self.progress.done[self.number].store(self.commits, SeqCst);
                }
                committed
            }
            // Without a mark it is not known when it was committed.
            Ok(()) => transaction.rollback(),
            Err(error) => Err(error),
        };
        self.past.push(past);
        match ended {
            Err(Error::Conflict { .. } | Error::SnapshotTooOld) => Ok(()),
            ended => ended,
        }
    }

    fn work(
        &mut self,
        transaction: &Transaction,
        past: &mut Past,
        (has_mark, is_early): (bool, bool),
    ) -> Result<()> {
        let mark = mark(self.number, self.commits + 1);
        if has_mark && is_early {
            transaction.put(self.marks, &mark, "")?;
        }
        let mut tables: [Option<Table>; NAMES.len()] = Default::default();
        let mut saved: Vec<Savepoint> = Vec::new();
        let first = self.random.random_range(0..NAMES.len());
        for _ in 0..self.random.random_range(1..9) {
            let table =
                if self.random.random_ratio(1, 4) { self.random.random_range(0..NAMES.len()) } else { first };
            let step = self.draw(saved.len());
            if self.random.random_ratio(1, 4) {
                thread::yield_now();
            }
            let seen = match &step {
                Step::Save => {
                    saved.push(transaction.savepoint());
                    Seen::new()
                }
                Step::Back(to) => {
                    transaction.rollback_to(saved[*to])?;
                    saved.truncate(to + 1);
                    tables = Default::default();
                    Seen::new()
                }
                step => ask(transaction, &mut tables, table, step)?,
            };
            self.known.extend(seen.iter().filter_map(|(key, value)| Some((*key, (*value)?))));
            past.steps.push(Done { table, step, seen });
        }
        if has_mark && !is_early {
            transaction.put(self.marks, &mark, "")?;
        }
        Ok(())
    }

    /// An operation of a table itself. The feed tells what it has done.
    fn alone(&mut self) -> Result<()> {
        let name = self.random.random_range(0..NAMES.len());
        let done = all(&self.progress.done);
        let table = match self.database.table(NAMES[name]) {
            Err(Error::NoSuchTable { .. } | Error::Conflict { .. }) => return Ok(()),
            table => table?,
        };
        let small = |client: &mut Self| (client.fresh(), client.random.random_range(4..300));
        let step = loop {
            match self.draw(0) {
                Step::Clear
                | Step::Load(_)
                | Step::Create(_)
                | Step::Drop
                | Step::Rename(_)
                | Step::Save
                | Step::Back(_)
                | Step::ForUpdate(_)
                | Step::Count { .. } => {}
                Step::Put(key, _) => break Step::Put(key, small(self)),
                Step::Insert(key, _) => break Step::Insert(key, small(self)),
                Step::Update(key, _) => break Step::Update(key, small(self)),
                Step::Exchange(key, Some(_)) => break Step::Exchange(key, Some(small(self))),
                Step::Compare(key, old, _) => break Step::Compare(key, old, small(self)),
                Step::MultiPut(pairs) => {
                    let keys: BTreeSet<u8> = pairs.into_iter().map(|pair| pair.0).collect();
                    break Step::MultiPut(keys.into_iter().map(|key| (key, small(self))).collect());
                }
                Step::MultiModify(keys) => {
                    let keys: BTreeSet<u8> = keys.into_iter().collect();
                    break Step::MultiModify(keys.into_iter().collect());
                }
                step => break step,
            }
        };
        let is_async = self.random.random_ratio(1, 3);
        match ask_alone(&table, &step, is_async) {
            Err(Error::Conflict { .. } | Error::NoSuchTable { .. } | Error::SnapshotTooOld) => Ok(()),
            Err(error) => Err(error),
            Ok(seen) => {
                let asked = all(&self.progress.asked);
                self.known.extend(seen.iter().filter_map(|(key, value)| Some((*key, (*value)?))));
                self.singles.push(Single { done, asked, all: Done { table: name, step, seen } });
                Ok(())
            }
        }
    }

    fn run(&mut self, transactions: usize) -> Result<()> {
        for _ in 0..transactions {
            while self.random.random_ratio(1, 2) {
                self.alone()?;
            }
            self.transact()?;
        }
        Ok(())
    }
}

fn options(random: &mut StdRng, is_whole: bool) -> Options {
    Options::default()
        .pool_bytes([128 << 10, 256 << 10, 1 << 20][random.random_range(0..3)])
        .capacity_bytes(256 << 20)
        .log_segment_bytes(256 << 10)
        .log_buffer_bytes(4 << 20)
        .version_memory_bytes([0, 5000, 30_000, 64 << 20][random.random_range(0..4)])
        .checkpoint_log_bytes(random.random_range(10_000..200_000))
        .checkpoint_interval(Duration::from_millis(random.random_range(0..5)))
        .durability(Durability::Deferred)
        .log_whole_values(is_whole)
        .snapshot_limit(match random.random_range(0..4) {
            0 => SnapshotLimit::default().age(Duration::from_micros(random.random_range(100..5000))),
            1 => SnapshotLimit::default().bytes(random.random_range(1000..50_000)),
            _ => SnapshotLimit::default(),
        })
        .huge_pages(false)
}

/// A thread that holds snapshots, so that versions stay, and old ones are covered.
fn hold(database: &Database, is_over: &AtomicBool, compacts: bool, mut random: StdRng) -> Result<()> {
    let mut held = Vec::new();
    while !is_over.load(SeqCst) {
        if held.len() < 3 {
            let level = [IsolationLevel::Serializable, IsolationLevel::Snapshot][random.random_range(0..2)];
            held.push(database.begin_with(TransactionOptions::default().isolation(level))?);
        } else {
            held.swap_remove(random.random_range(0..3)).rollback()?;
        }
        match random.random_range(0..6) {
            0 if compacts => _ = database.compact(|_| true)?,
            1 => database.checkpoint()?,
            _ => {}
        }
        for _ in 0..random.random_range(1..200) {
            thread::yield_now();
        }
    }
    Ok(())
}

pub fn run(seed: u64) -> std::result::Result<(), String> {
    let mut random = StdRng::seed_from_u64(seed);
    // A value that a compaction has moved is told by a feed, and must be read then.
    let is_whole = random.random();
    let options = options(&mut random, is_whole);
    let disk = SimulatedDisk::new(seed);
    let told = |error: Error| error.to_string();
    let database = Database::create_in(Arc::new(disk), "data", &options).map_err(told)?;
    let marks = database.create_table("marks").map_err(told)?;
    let mut first = World::default();
    for (name, text) in NAMES.iter().enumerate().skip(1) {
        let table = database.create_table(text).map_err(told)?;
        first.step(name, &Step::Create(name as u32));
        for number in 0..KEYS / 2 {
            let value = (u32::from(number), 100 + usize::from(number) * 10);
            table.put(key(number * 2), bytes(value)).map_err(told)?;
            first.step(name, &Step::Put(number * 2, value));
        }
    }
    let mut changes = database.changes(ChangesFrom::Now).map_err(told)?;
    let transactions = if cfg!(shuttle) { 14 } else { 80 };
    let (progress, is_over, past) = (Progress::default(), AtomicBool::new(false), Mutex::new(Vec::new()));
    let singles = Mutex::new(Vec::new());
    let holder = random.random_ratio(1, 2).then(|| StdRng::seed_from_u64(random.random()));
    let outcomes: Vec<Result<()>> = thread::scope(|scope| {
        let (database, marks, progress, past, is_over) = (&database, &marks, &progress, &past, &is_over);
        let singles = &singles;
        let holder = holder.map(|random| scope.spawn(move || hold(database, is_over, is_whole, random)));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                scope.spawn(move || {
                    let random = StdRng::seed_from_u64(seed ^ (number as u64 + 1) << 40);
                    let mut client = Client {
                        database,
                        marks,
                        progress,
                        number,
                        random,
                        next: 0,
                        commits: 0,
                        known: BTreeMap::new(),
                        past: Vec::new(),
                        singles: Vec::new(),
                    };
                    let done = client.run(transactions);
                    past.lock().unwrap().append(&mut client.past);
                    singles.lock().unwrap().append(&mut client.singles);
                    done
                })
            })
            .collect();
        let outcomes: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        is_over.store(true, SeqCst);
        let held = holder.map(|thread| thread.join().unwrap());
        outcomes.into_iter().chain(held).collect()
    });
    outcomes.into_iter().collect::<Result<()>>().map_err(told)?;
    database.sync().map_err(told)?;
    let mut feed = Vec::new();
    while let Some(commit) = changes.next().map_err(told)? {
        feed.push(commit);
    }
    check(past.into_inner().unwrap(), &singles.into_inner().unwrap(), feed, first)?;
    let report = database.verify(|_| {});
    if let Some(problem) = report.problems.first() {
        return Err(format!("{} problems: {problem}", report.problems.len()));
    }
    drop((changes, marks));
    database.close().map_err(told)
}

#[test]
fn replayed() {
    for_seeds(40, run);
}
