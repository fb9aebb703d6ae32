//! Several threads with transactions and single operations, on a disk that crashes, with checkpoints and eviction in the
//! background.
//!
//! Each client has keys of its own, which it changes by numbered transactions, and moves money between accounts that all share.
//! In each transaction it notes how far the others are. So after a crash it is known exactly what must be there: of each
//! client a first part of its commits, at least what was acknowledged, nothing in part; if a commit is there all that it
//! has seen is there; and all the money is. Some of them count it. Meanwhile each sees what the others had done before it looked, and
//! nothing that they have not asked to be committed. Often a thread [watches](watch) old snapshots.
//!
//! How threads meet is not in the seed, but with `--cfg shuttle` (see `schedule`).

use crate::{for_seeds, watcher::watch};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};
use vellum::{Database, Durability, Error, Options, Result, Table, Transaction, TransactionOptions};
use vellum_base::primitive::{AtomicBool, thread};
use vellum_vm::SimulatedDisk;

const CLIENTS: u8 = 3;
const ACCOUNTS: u8 = 10;
const EACH: u64 = 1000;
const DURABILITY: [Durability; 3] = [Durability::Synced, Durability::Buffered, Durability::Deferred];

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// The keys that a commit has changed, in order, and what they have since.
type Commit = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// How far a client is, as it tells the others, beside the database. The scheduler does not know of it.
#[derive(Default)]
struct Progress {
    /// The number of the last commit that is done: it is seen from now on.
    done: AtomicU64,
    /// That of the last one that was asked for: no later one is seen.
    asked: AtomicU64,
}

/// What clients work on, and how.
struct Work<'w> {
    database: &'w Database,
    table: &'w Table,
    is_over: &'w AtomicBool,
    /// So many commits, and it ends.
    commits: usize,
    /// What single operations and transactions wait for.
    singly: Durability,
    durability: &'w [Durability],
    /// The longest pause between two of them.
    pause: Duration,
    value_bytes: usize,
    progress: &'w [Progress],
}

impl Work<'_> {
    fn done(&self) -> Vec<u64> {
        self.progress.iter().map(|progress| progress.done.load(SeqCst)).collect()
    }

    /// Whether what was seen of the clients is no less than was done, and no more than has been asked for since.
    fn is_between(&self, done: &[u64], seen: &[u64]) -> bool {
        let bounds = done.iter().zip(self.progress);
        seen.iter().zip(bounds).all(|(seen, (done, now))| (*done..=now.asked.load(SeqCst)).contains(seen))
    }
}

/// What one client has done since its database was opened.
struct Client {
    number: u8,
    /// What was there at the beginning, and the number of the last commit.
    records: Records,
    first: u64,
    /// What each commit has changed, those that may have failed included.
    commits: Vec<Commit>,
    /// How many of these were acknowledged as synced, and as written.
    synced: usize,
    buffered: usize,
    /// What it has seen last.
    seen: Vec<u64>,
    random: StdRng,
}

fn options(random: &mut StdRng) -> Options {
    Options::default()
        .pool_bytes([96 << 10, 256 << 10, 1 << 20][random.random_range(0..3)])
        .capacity_bytes(256 << 20)
        .log_segment_bytes(256 << 10)
        .log_buffer_bytes(4 << 20)
        .version_memory_bytes([0, 5000, 64 << 20][random.random_range(0..3)])
        .checkpoint_log_bytes(random.random_range(10_000..200_000))
        .checkpoint_interval(Duration::from_millis(random.random_range(0..5)))
        .huge_pages(false)
}

/// The record by which a client says how far it is, and how far it has seen the others.
fn mark(client: u8) -> Vec<u8> {
    vec![b'm', client]
}

fn account(number: u8) -> Vec<u8> {
    vec![b'a', number]
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
}

fn bytes(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn balance(transaction: &Transaction, table: &Table, number: u8) -> Result<u64> {
    let balance = transaction.get(table, account(number))?;
    Ok(balance.map_or(0, |balance| numbers(&balance)[0]))
}

/// How far all clients are.
fn marks(transaction: &Transaction, table: &Table) -> Result<Vec<u64>> {
    let count = |client| Ok(transaction.get(table, mark(client))?.map_or(0, |mark| numbers(&mark)[0]));
    (0..CLIENTS).map(count).collect()
}

impl Client {
    fn new(number: u8, seed: u64) -> Self {
        let random = StdRng::seed_from_u64(seed ^ u64::from(number) << 32);
        let (records, commits) = (Records::new(), Vec::new());
        let seen = vec![0; 1 + usize::from(CLIENTS)];
        Self { number, records, first: 0, commits, synced: 0, buffered: 0, seen, random }
    }

    /// Works until something fails, or it is over, or so many transactions were committed.
    fn work(&mut self, work: &Work<'_>) -> Result<()> {
        let end = self.commits.len() + work.commits;
        while !work.is_over.load(SeqCst) && self.commits.len() < end {
            let done = match self.random.random_range(0..12) {
                0..3 => self.put(work),
                3 => self.look(work),
                4 => work.database.run(|transaction| self.transfer(transaction, work.table)),
                5 => self.audit(&work.database.begin()?, work.table),
                _ => self.transact(work),
            };
            match done {
                Err(Error::Conflict { .. }) => thread::yield_now(),
                outcome => outcome?,
            }
            if !work.pause.is_zero() {
                thread::sleep(work.pause.mul_f64(self.random.random()));
            }
        }
        Ok(())
    }

    /// The number of its next commit.
    fn next(&self) -> u64 {
        self.first + self.commits.len() as u64 + 1
    }

    /// It is about to ask for a commit that changes this.
    fn ask(&mut self, work: &Work<'_>, changed: Commit) {
        work.progress[usize::from(self.number)].asked.store(self.next(), SeqCst);
        self.commits.push(changed);
    }

    /// Its last commit is done, and durable as far as this says.
    fn acknowledge(&mut self, work: &Work<'_>, durability: Durability) {
        work.progress[usize::from(self.number)].done.store(self.next() - 1, SeqCst);
        if durability >= Durability::Buffered {
            self.buffered = self.commits.len();
        }
        if durability == Durability::Synced {
            self.synced = self.commits.len();
        }
    }

    /// Does what is no transaction.
    fn put(&mut self, work: &Work<'_>) -> Result<()> {
        self.seen[0] = self.next();
        let mark = (mark(self.number), bytes(&self.seen));
        self.ask(work, vec![(mark.0.clone(), Some(mark.1.clone()))]);
        let done = work.table.put(mark.0, mark.1);
        match &done {
            Ok(_) => self.acknowledge(work, work.singly),
            Err(Error::Conflict { .. }) => drop(self.commits.pop()),
            Err(_) => {}
        }
        done.map(drop)
    }

    /// Sees how far one of them is, without a transaction.
    fn look(&mut self, work: &Work<'_>) -> Result<()> {
        let client = self.random.random_range(0..CLIENTS);
        let (done, at) = (work.done(), usize::from(client));
        let seen = work.table.get(mark(client))?.map_or(0, |mark| numbers(&mark)[0]);
        let asked = work.progress[at].asked.load(SeqCst);
        let known = done[at]..=asked;
        assert!(known.contains(&seen), "client {} sees commit {seen} of {client}, {known:?}", self.number);
        self.seen[1 + at] = seen;
        Ok(())
    }

    fn transact(&mut self, work: &Work<'_>) -> Result<()> {
        let durability = work.durability[self.random.random_range(0..work.durability.len())];
        let done = work.done();
        let transaction = work.database.begin_with(TransactionOptions::default().durability(durability))?;
        let (changed, seen) = match self.change(&transaction, work, &done) {
            Ok(changed) => changed,
            Err(conflict @ Error::Conflict { .. }) => {
                let committed = self.random.random() && transaction.commit().is_ok();
                assert!(!committed, "client {} commits after a conflict", self.number);
                return Err(conflict);
            }
            Err(error) => return Err(error),
        };
        if self.random.random_ratio(1, 8) {
            return transaction.rollback();
        }
        self.ask(work, changed);
        self.seen = seen;
        transaction.commit()?;
        self.acknowledge(work, durability);
        Ok(())
    }

    /// Changes some records, and at any moment its mark. Gives all that, and how far it has seen all of them.
    fn change(
        &mut self,
        transaction: &Transaction,
        work: &Work<'_>,
        done: &[u64],
    ) -> Result<(Commit, Vec<u64>)> {
        let table = work.table;
        let seen = marks(transaction, table)?;
        assert!(work.is_between(done, &seen), "client {} sees commits {seen:?} after {done:?}", self.number);
        let seen = [vec![self.next()], seen].concat();
        let mark = (mark(self.number), bytes(&seen));
        let (count, mut changed) = (self.random.random_range(0..6), Vec::new());
        let (marked, mut savepoint) = (self.random.random_range(0..=count), None);
        for number in 0..=count {
            if number == marked {
                transaction.put(table, &mark.0, &mark.1)?;
            }
            if number < count {
                changed.push(self.change_one(transaction, work)?);
            }
            if number >= marked && self.random.random_ratio(1, 6) {
                savepoint = Some((transaction.savepoint(), changed.len()));
            }
        }
        if let Some((savepoint, length)) = savepoint.filter(|_| self.random.random()) {
            transaction.rollback_to(savepoint)?;
            changed.truncate(length);
        }
        if self.random.random() {
            self.transfer(transaction, table)?;
        }
        if self.random.random_ratio(1, 4) {
            self.audit(transaction, table)?;
        }
        changed.push((mark.0, Some(mark.1)));
        Ok((changed, seen))
    }

    /// Changes a record of its own.
    fn change_one(
        &mut self,
        transaction: &Transaction,
        work: &Work<'_>,
    ) -> Result<(Vec<u8>, Option<Vec<u8>>)> {
        let key = vec![b'k', self.number, self.random.random_range(0..200), 7];
        let is_large = self.random.random_ratio(1, 20);
        let length = if is_large { 9000 } else { self.random.random_range(0..work.value_bytes) };
        let value = self.random.random_ratio(3, 4).then(|| vec![self.random.random(); length]);
        match &value {
            Some(value) => transaction.put(work.table, &key, value).map(drop)?,
            None => transaction.remove(work.table, &key).map(drop)?,
        }
        Ok((key, value))
    }

    fn transfer(&mut self, transaction: &Transaction, table: &Table) -> Result<()> {
        // Some are in great demand.
        let among = [2, ACCOUNTS][self.random.random_range(0..2)];
        let (from, to) = (self.random.random_range(0..among), self.random.random_range(0..among));
        let amount = self.random.random_range(1..50);
        let balance = |number| balance(transaction, table, number);
        let has = balance(from)?;
        if from != to && has >= amount {
            transaction.put(table, account(from), bytes(&[has - amount]))?;
            transaction.put(table, account(to), bytes(&[balance(to)? + amount]))?;
        }
        Ok(())
    }

    /// A snapshot has all the money, and stays as it is.
    fn audit(&self, transaction: &Transaction, table: &Table) -> Result<()> {
        let before = marks(transaction, table)?;
        let mut sum = 0;
        for number in 0..ACCOUNTS {
            sum += balance(transaction, table, number)?;
        }
        assert_eq!(sum, u64::from(ACCOUNTS) * EACH, "client {} sees in the accounts", self.number);
        assert_eq!(marks(transaction, table)?, before, "client {} sees a snapshot change", self.number);
        Ok(())
    }

    /// Whether all of it is there that should be, and nothing else; it goes on with that. What has been found is counted, and what
    /// was seen of the others.
    fn check(&mut self, database: &Table, least: usize) -> std::result::Result<Vec<u64>, String> {
        let mut found = Records::new();
        let mut add = |prefix: Vec<u8>| {
            let mut cursor = database.cursor(vellum::Prefix(&prefix))?;
            while let Some(entry) = cursor.next()? {
                let key = entry.key().to_vec();
                let value = database.get(&key)?.unwrap_or_default();
                found.insert(key, value);
            }
            Ok::<_, Error>(())
        };
        add(vec![b'k', self.number]).and_then(|()| add(mark(self.number))).map_err(|e| e.to_string())?;
        let seen = found.get(&mark(self.number)).map_or(vec![0; 1 + usize::from(CLIENTS)], |m| numbers(m));
        let there = seen[0].checked_sub(self.first).filter(|there| *there <= self.commits.len() as u64);
        let there = there.ok_or_else(|| format!("client {}: commit {} is there", self.number, seen[0]))?;
        if (there as usize) < least {
            return Err(format!("client {}: {there} commits are there, of {least}", self.number));
        }
        for changed in self.commits.drain(..).take(there as usize) {
            for (key, value) in changed {
                match value {
                    Some(value) => self.records.insert(key, value),
                    None => self.records.remove(&key),
                };
            }
        }
        if found != self.records {
            let wrong = self.records.keys().chain(found.keys());
            let wrong = wrong.into_iter().find(|key| self.records.get(*key) != found.get(*key));
            let short = |records: &Records| {
                wrong.and_then(|key| records.get(key)).map(|value| (value.len(), value.first().copied()))
            };
            let is = (short(&found), short(&self.records));
            return Err(format!(
                "client {}: {wrong:?} is not as commit {} left it: {is:?}",
                self.number, seen[0]
            ));
        }
        (self.first, self.synced, self.buffered) = (seen[0], 0, 0);
        self.seen.clone_from(&seen);
        Ok(seen)
    }
}

/// Whether a database that was opened again holds what its clients were told; they begin with that.
fn check(database: &Database, clients: &mut [Client], is_killed: bool) -> std::result::Result<(), String> {
    let table = database.table("table").map_err(|error| error.to_string())?;
    let mut marks = Vec::new();
    for client in clients.iter_mut() {
        let least = if is_killed { client.buffered } else { client.synced };
        marks.push(client.check(&table, least)?);
    }
    for (client, seen) in marks.iter().enumerate() {
        for (other, mark) in marks.iter().enumerate() {
            if seen[1 + other] > mark[0] {
                return Err(format!("client {client} has seen what is lost of client {other}"));
            }
        }
    }
    let mut sum = 0;
    for number in 0..ACCOUNTS {
        let balance = table.get(account(number)).map_err(|error| error.to_string())?;
        sum += balance.map_or(0, |balance| numbers(&balance)[0]);
    }
    if sum != u64::from(ACCOUNTS) * EACH {
        return Err(format!("the accounts have {sum}"));
    }
    let report = database.verify(|_| {});
    match report.problems.first() {
        Some(problem) => Err(format!("{} problems: {problem}", report.problems.len())),
        None => Ok(()),
    }
}

fn create(disk: &SimulatedDisk, options: &Options) -> Result<Database> {
    let database = Database::create_in(Arc::new(disk.clone()), "data", options)?;
    let table = database.create_table("table")?;
    for number in 0..ACCOUNTS {
        table.put(account(number), bytes(&[EACH]))?;
    }
    database.sync()?;
    Ok(database)
}

/// Lets all clients work, for a while or until they are done.
fn live(
    database: &Database,
    table: &Table,
    clients: &mut [Client],
    (is_last, singly): (bool, Durability),
    random: &mut StdRng,
) -> Vec<Result<()>> {
    let progress: Vec<_> = clients
        .iter()
        .map(|client| Progress { done: client.first.into(), asked: client.first.into() })
        .collect();
    let is_over = AtomicBool::new(false);
    let work = Work {
        database,
        table,
        is_over: &is_over,
        commits: if is_last { 30 } else { usize::MAX / 2 },
        singly,
        durability: &DURABILITY[random.random_range(0..3)..],
        pause: Duration::from_micros([0, 0, 20, 200][random.random_range(0..4)]),
        value_bytes: [300, 1200][random.random_range(0..2)],
        progress: &progress,
    };
    let pause = Duration::from_millis(random.random_range(1..40));
    let watcher = random.random_ratio(1, 2).then(|| StdRng::seed_from_u64(random.random()));
    let is_watched = AtomicBool::new(false);
    thread::scope(|scope| {
        let work = &work;
        let watcher = watcher.map(|random| scope.spawn(|| watch(database, table, &is_watched, random)));
        let threads: Vec<_> =
            clients.iter_mut().map(|client| scope.spawn(move || client.work(work))).collect();
        if !is_last {
            thread::sleep(pause);
            is_over.store(true, SeqCst);
        }
        let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        is_watched.store(true, SeqCst);
        let watched = watcher.map(|thread| thread.join().unwrap());
        outcomes.into_iter().map(|outcome| outcome.unwrap()).chain(watched).collect()
    })
}

pub fn run(seed: u64) -> std::result::Result<(), String> {
    let mut random = StdRng::seed_from_u64(seed);
    let singly = DURABILITY[random.random_range(0..3)];
    let options = options(&mut random).durability(singly);
    let mut disk = SimulatedDisk::new(seed);
    let mut clients: Vec<_> = (0..CLIENTS).map(|number| Client::new(number, seed)).collect();
    let database = create(&disk, &options).map_err(|error| error.to_string())?;
    let (mut database, mut is_killed) = (Some(database), false);
    for life in 0..4u64 {
        let open = |disk: &SimulatedDisk| {
            let opened = Database::open_in(Arc::new(disk.clone()), "data", &options);
            opened.map_err(|error| format!("life {life}: {error}"))
        };
        // Sometimes a copy is checked, so that the clients are the first to read what is left to be redone.
        let is_copied = life > 0 && (seed + life).is_multiple_of(2);
        if is_copied {
            let copy = disk.kill();
            let checked = check(&open(&copy)?, &mut clients, is_killed);
            checked.map_err(|why| format!("life {life}, a copy: {why}"))?;
            copy.fail_from(1);
        }
        let opened = database.take().map_or_else(|| open(&disk), Ok)?;
        if !is_copied {
            check(&opened, &mut clients, is_killed).map_err(|why| format!("life {life}: {why}"))?;
        }
        let table = opened.table("table").map_err(|error| error.to_string())?;
        // In the last one nothing fails, and everything has to end.
        let is_last = life == 3;
        let fails = !is_last && random.random_ratio(2, 3);
        if fails {
            disk.fail_from(random.random_range(1..1500));
        }
        let outcomes = live(&opened, &table, &mut clients, (is_last, singly), &mut random);
        if !fails {
            outcomes.into_iter().collect::<Result<()>>().map_err(|error| format!("life {life}: {error}"))?;
        }
        is_killed = random.random();
        let survivor = if is_killed { disk.kill() } else { disk.crash() };
        disk.fail_from(1);
        drop((table, opened));
        disk = survivor;
    }
    let opened = Database::open_in(Arc::new(disk.clone()), "data", &options);
    let opened = opened.map_err(|error| error.to_string())?;
    check(&opened, &mut clients, is_killed)?;
    opened.close().map_err(|error| error.to_string())
}

#[test]
fn clients() {
    for_seeds(60, run);
}
