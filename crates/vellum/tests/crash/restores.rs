//! Several threads change a database whose log is archived, while it is backed up and compacted. It crashes now and then.
//! A database restored to any place of the log holds of each thread exactly what that had committed by then.
//!
//! Each thread has tables of its own, and numbers what it commits. Transactions make, load, clear, rename and drop tables and
//! store large values; plain tables are changed by single operations. How threads meet is not in the seed.

use crate::{
    for_seeds,
    model::{Contents, contents, value},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};
use vellum::{
    Backup, BackupError, BackupOptions, Database, Durability, Error, Lsn, Options, RestoreOptions, Result,
    TableOptions, Transaction, TransactionOptions, Until,
};
use vellum_vm::{Directory, Faults, SimulatedDisk};

const NAME: &str = "data";
const CLIENTS: usize = 3;
/// Backups of one run.
const BACKUPS_MAX: usize = 5;

type Check<T = ()> = std::result::Result<T, String>;
type Entries = BTreeMap<Vec<u8>, Arc<Vec<u8>>>;
/// The tables of one client.
type Own = BTreeMap<String, Entries>;

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// What a client had after one of its commits, and where in the log that commit is at the least and at the most.
struct State {
    first: Lsn,
    last: Lsn,
    own: Own,
}

struct Client {
    number: usize,
    random: StdRng,
    /// In the order of its commits, of which the last may have failed.
    states: Vec<State>,
    /// The number of the last state that is certainly durable.
    synced: usize,
    /// The number of the last commit.
    count: u64,
}

/// What a life is about.
struct Life<'l> {
    database: &'l Database,
    /// Something has failed.
    is_over: &'l AtomicBool,
    /// How many clients still work.
    working: &'l AtomicU64,
    steps: u32,
}

fn end(database: &Database) -> Lsn {
    Lsn(database.log_state().map_or(0, |state| state.appended_bytes))
}

impl Client {
    fn new(number: usize, seed: u64) -> Self {
        let random = StdRng::seed_from_u64(seed ^ (number as u64 + 1) << 40);
        let states = vec![State { first: Lsn(0), last: Lsn(0), own: Own::new() }];
        Self { number, random, states, synced: 0, count: 0 }
    }

    fn now(&self) -> &State {
        &self.states[self.states.len() - 1]
    }

    /// Whether a table is one of its own.
    fn owns(&self, table: &str) -> bool {
        table.starts_with(&self.name(""))
    }

    fn name(&self, rest: &str) -> String {
        format!("client {} {rest}", self.number)
    }

    /// Works until it is over. Conflicts, which are with the compaction, are none of its errors.
    fn work(&mut self, life: &Life<'_>) -> Result<()> {
        for _ in 0..life.steps {
            if life.is_over.load(SeqCst) {
                break;
            }
            let done = match self.random.random_range(0..4) {
                0 => self.change_plain(life.database),
                _ => self.transact(life.database),
            };
            match done {
                Ok(()) | Err(Error::Conflict { .. }) => {}
                Err(error) => {
                    life.is_over.store(true, SeqCst);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Makes a plain table, loads it, or puts something into it: a commit of its own, which does not tell where it is.
    fn change_plain(&mut self, database: &Database) -> Result<()> {
        let name = self.name("plain");
        let mut own = self.now().own.clone();
        self.count += 1;
        let first = end(database);
        let done = match own.get_mut(&name) {
            None => {
                own.insert(name.clone(), Entries::new());
                database.create_table_with(&*name, TableOptions::default().versions(false)).map(drop)
            }
            Some(entries) => database.table(&*name).and_then(|table| {
                if entries.is_empty() && self.random.random() {
                    *entries = self.draw_entries();
                    return table.bulk_load(entries.iter().map(|(key, value)| (key, &**value))).map(drop);
                }
                let (key, value) = (self.draw_key(), self.draw_value());
                entries.insert(key.clone(), value.clone());
                table.put(key, &**value).map(drop)
            }),
        };
        if matches!(done, Err(Error::Conflict { .. })) {
            return done;
        }
        self.states.push(State {
            first,
            last: if done.is_ok() { end(database) } else { Lsn(u64::MAX) },
            own,
        });
        done?;
        // It is a commit as the options say.
        self.synced = self.states.len() - 1;
        Ok(())
    }

    fn transact(&mut self, database: &Database) -> Result<()> {
        let durability = [Durability::Synced, Durability::Buffered, Durability::Deferred];
        let durability = durability[self.random.random_range(0..durability.len())];
        let transaction = database.begin_with(TransactionOptions::default().durability(durability))?;
        let mut own = self.now().own.clone();
        let (mut savepoint, mut count) = (None, 0);
        for _ in 0..self.random.random_range(1..8) {
            self.change(&transaction, &mut own)?;
            count += 1;
            if self.random.random_ratio(1, 8) {
                savepoint = Some((transaction.savepoint(), own.clone()));
            }
            if self.random.random_ratio(1, 12)
                && let Some((to, then)) = savepoint.take()
            {
                transaction.rollback_to(to)?;
                own = then;
            }
        }
        if self.random.random_ratio(1, 6) || count == 0 {
            return transaction.rollback();
        }
        self.count += 1;
        let (mark, number) = (self.name("mark"), self.count.to_be_bytes().to_vec());
        if !own.contains_key(&mark) {
            transaction.create_table(&*mark)?;
        }
        transaction.put(&transaction.table(&*mark)?, "count", &number)?;
        own.entry(mark).or_default().insert(b"count".to_vec(), Arc::new(number));
        let first = end(database);
        self.states.push(State { first, last: Lsn(u64::MAX), own });
        let arrival = match transaction.commit_async() {
            Err(conflict @ Error::Conflict { .. }) => {
                self.states.pop();
                return Err(conflict);
            }
            committed => committed?,
        };
        let number = self.states.len() - 1;
        let state = &mut self.states[number];
        (state.first, state.last) = match &arrival {
            Some(arrival) => (arrival.lsn(), arrival.lsn()),
            None => (first, end(database)),
        };
        if durability == Durability::Synced {
            if let Some(arrival) = arrival {
                arrival.wait().map_err(|error| Error::Log(error.into()))?;
            }
            self.synced = number;
        }
        Ok(())
    }

    /// One change of a transaction.
    fn change(&mut self, transaction: &Transaction, own: &mut Own) -> Result<()> {
        let plain = self.name("plain");
        let names: Vec<_> = own.keys().filter(|name| name.contains("table")).cloned().collect();
        if names.is_empty() || (names.len() < 3 && self.random.random_ratio(1, 10)) {
            let number = self.random.random_range(0..1000);
            let name = self.name(&format!("table {number}"));
            if own.insert(name.clone(), Entries::new()).is_none() {
                let table = transaction.create_table(&*name)?;
                return self.load(transaction, &table, own.entry(name).or_default());
            }
            own.remove(&name);
            transaction.drop_table(&name)?;
            return Ok(());
        }
        let name = names[self.random.random_range(0..names.len())].clone();
        match self.random.random_range(0..40) {
            0 => {
                own.remove(&name);
                transaction.drop_table(&name)
            }
            1 => {
                transaction.clear_table(&name)?;
                own.insert(name, Entries::new());
                Ok(())
            }
            2 => {
                transaction.clear_table(&name)?;
                let table = transaction.table(&*name)?;
                let entries = own.entry(name).or_default();
                entries.clear();
                self.load(transaction, &table, entries)
            }
            3 => {
                let number = self.random.random_range(1000..2000);
                let new = self.name(&format!("table {number}"));
                if !own.contains_key(&new)
                    && let Some(entries) = own.remove(&name)
                {
                    transaction.rename_table(&name, &new)?;
                    own.insert(new, entries);
                }
                Ok(())
            }
            4 if own.remove(&plain).is_some() => transaction.drop_table(&plain),
            5..12 => {
                let entries = own.entry(name.clone()).or_default();
                let table = transaction.table(&*name)?;
                let known = entries.keys().nth(self.random.random_range(0..entries.len().max(1))).cloned();
                let key = known.unwrap_or_else(|| self.draw_key());
                entries.remove(&key);
                transaction.remove(&table, key).map(drop)
            }
            12..14 => {
                let (entries, table) = (own.entry(name.clone()).or_default(), transaction.table(&*name)?);
                let many = self.draw_entries();
                let put: Vec<_> = many.iter().map(|(key, value)| (key.clone(), value.to_vec())).collect();
                transaction.multi_put(&table, &put)?;
                entries.extend(many);
                Ok(())
            }
            _ => {
                let (key, value) = (self.draw_key(), self.draw_value());
                transaction.put(&transaction.table(&*name)?, &key, &**value)?;
                own.entry(name).or_default().insert(key, value);
                Ok(())
            }
        }
    }

    /// Loads an empty table, or leaves it empty.
    fn load(
        &mut self,
        transaction: &Transaction,
        table: &vellum::Table,
        entries: &mut Entries,
    ) -> Result<()> {
        if self.random.random() {
            *entries = self.draw_entries();
            transaction.bulk_load(table, entries.iter().map(|(key, value)| (key, &**value)))?;
        }
        Ok(())
    }

    fn draw_key(&mut self) -> Vec<u8> {
        let number: u16 = self.random.random_range(0..2000);
        let mut key = number.to_be_bytes().to_vec();
        key.resize(if number.is_multiple_of(17) { 200 } else { 6 }, number as u8);
        key
    }

    /// No two are the same.
    fn draw_value(&mut self) -> Arc<Vec<u8>> {
        let mut value = value(&mut self.random);
        value.extend(self.count.to_be_bytes());
        Arc::new(value)
    }

    fn draw_entries(&mut self) -> Entries {
        let count = [30, 400, 3000][self.random.random_range(0..3)];
        (0..count).map(|_| (self.draw_key(), self.draw_value())).collect()
    }

    /// What is its own of contents.
    fn own(&self, contents: &Contents) -> Contents {
        let own = contents.iter().filter(|(name, _)| self.owns(name));
        own.map(|(name, entries)| (name.clone(), entries.clone())).collect()
    }

    /// Finds how many of its commits are there after a crash, and goes on from there.
    fn go_on(&mut self, found: &Contents, end: Lsn) -> Check {
        let own = self.own(found);
        let Some(there) = self.states.iter().rposition(|state| is_same(&state.own, &own)) else {
            let why = differs(&self.now().own, &own);
            return Err(format!("client {} has no such state; to the last: {why}", self.number));
        };
        if there < self.synced {
            let why =
                format!("client {} has commit {there} of {} that were synced", self.number, self.synced);
            return Err(why);
        }
        self.states.truncate(there + 1);
        self.synced = there;
        let last = &mut self.states[there].last;
        *last = (*last).min(end);
        Ok(())
    }

    /// Whether contents are what it had at a place.
    fn check(&self, found: &Contents, at: Lsn) -> Check {
        let own = self.own(found);
        // All that are certain, and the one that may be.
        let certain = self.states.iter().rposition(|state| state.last <= at).unwrap_or(0);
        let possible = self.states.iter().rposition(|state| state.first <= at).unwrap_or(0);
        if (certain..=possible).any(|number| is_same(&self.states[number].own, &own)) {
            return Ok(());
        }
        let which = self.states.iter().position(|state| is_same(&state.own, &own));
        let why = differs(&self.states[certain].own, &own);
        Err(format!(
            "client {}: not commit {certain} (to {possible}), but {which:?} of {}: {why}",
            self.number,
            self.states.len()
        ))
    }
}

fn is_same(own: &Own, found: &Contents) -> bool {
    let is_equal =
        |(key, value): (&Vec<u8>, &Arc<Vec<u8>>), found: (&Vec<u8>, &Vec<u8>)| (key, &**value) == found;
    own.keys().eq(found.keys())
        && own.values().zip(found.values()).all(|(entries, found)| {
            entries.len() == found.len() && entries.iter().zip(found).all(|(one, other)| is_equal(one, other))
        })
}

/// Where they differ first, for people.
fn differs(own: &Own, found: &Contents) -> String {
    let plain =
        |entries: &Entries| entries.iter().map(|(key, value)| (key.clone(), value.to_vec())).collect();
    let own = own.iter().map(|(name, entries)| (name.clone(), plain(entries))).collect();
    crate::model::difference(found, &own)
}

struct Run {
    random: StdRng,
    disk: SimulatedDisk,
    archive: SimulatedDisk,
    backups: SimulatedDisk,
    options: Options,
    clients: Vec<Client>,
    /// The name of each backup, up to where it goes, and the one that it follows on.
    taken: Vec<(String, Lsn, Option<usize>)>,
    tried: usize,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let options = Options::default()
            .pool_bytes([256 << 10, 1 << 20][random.random_range(0..2)])
            .capacity_bytes(1 << 30)
            .log_segment_bytes([64 << 10, 256 << 10][random.random_range(0..2)])
            .log_buffer_bytes(4 << 20)
            .version_memory_bytes([0, 5000, 64 << 20][random.random_range(0..3)])
            .checkpoint_log_bytes(random.random_range(30_000..2_000_000))
            .huge_pages(false);
        Self {
            random,
            disk: SimulatedDisk::new(seed),
            archive: SimulatedDisk::new(seed + 1),
            backups: SimulatedDisk::new(seed + 2),
            options,
            clients: (0..CLIENTS).map(|number| Client::new(number, seed)).collect(),
            taken: Vec::new(),
            tried: 0,
        }
    }

    fn options(&self) -> Options {
        self.options.clone().log_archive_in(Arc::new(self.archive.clone()))
    }

    fn open(&mut self) -> Check<Database> {
        let database = Database::open_in(Arc::new(self.disk.clone()), NAME, &self.options()).map_err(told)?;
        let (found, end) = (contents(&database).map_err(told)?, end(&database));
        for client in &mut self.clients {
            client.go_on(&found, end)?;
        }
        Ok(database)
    }

    fn back_up(&mut self, database: &Database) -> Result<()> {
        let former = (!self.taken.is_empty() && self.random.random())
            .then(|| self.random.random_range(0..self.taken.len()));
        let opened =
            former.map(|former| Backup::open_in(&self.backups, &self.taken[former].0)).transpose()?;
        let options = opened
            .as_ref()
            .map_or_else(BackupOptions::default, |former| BackupOptions::default().since(former));
        self.tried += 1;
        let name = format!("backup {}", self.tried);
        let made = database.backup_in(Arc::new(self.backups.clone()), &name, options)?;
        self.taken.push((name, made.end, former));
        Ok(())
    }

    /// What else is done with the database while clients work. The disk may fail, and its archive.
    fn operate(&mut self, life: &Life<'_>) -> Result<()> {
        let database = life.database;
        let mut held = None;
        while life.working.load(SeqCst) > 0 {
            match self.random.random_range(0..12) {
                0 if self.taken.len() < BACKUPS_MAX => self.back_up(database)?,
                1 | 2 => drop(database.archive_log()),
                3 => self.archive.fail_from(self.random.random_range(1..20)),
                4..6 => self.archive.heal(),
                6 => database.checkpoint()?,
                7 => {
                    let mut left = self.random.random_range(0..20);
                    let go_on = |_: &_| {
                        left -= 1;
                        left > 0
                    };
                    let _ = database.compact(go_on)?;
                }
                // An old snapshot.
                8 => held = if held.is_none() { Some(database.begin()?) } else { None },
                _ => thread::sleep(Duration::from_millis(self.random.random_range(0..10))),
            }
        }
        Ok(())
    }

    fn live(&mut self, database: Database) -> Check {
        let fails = self.random.random_ratio(1, 2);
        if fails {
            self.disk.fail_from(self.random.random_range(1..6000));
        }
        if self.random.random_ratio(1, 3) {
            // Loads take longer, so that more happens beside them.
            let delay_max = Duration::from_micros(self.random.random_range(20..300));
            self.disk.set_faults(Faults { delay_max, ..Faults::default() });
        }
        let (is_over, working) = (AtomicBool::new(false), AtomicU64::new(CLIENTS as u64));
        let steps = self.random.random_range(5..60);
        let life = Life { database: &database, is_over: &is_over, working: &working, steps };
        let mut clients = std::mem::take(&mut self.clients);
        let outcomes: Vec<_> = thread::scope(|scope| {
            let started: Vec<_> = clients
                .iter_mut()
                .map(|client| {
                    let life = &life;
                    scope.spawn(move || {
                        let _done = Done(life.working);
                        client.work(life)
                    })
                })
                .collect();
            let operated = self.operate(&life);
            if operated.is_err() {
                is_over.store(true, SeqCst);
            }
            let joined = started.into_iter().map(|client| client.join());
            let worked = joined.map(|worked| worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            worked.chain([operated]).collect()
        });
        self.clients = clients;
        if let (false, Some(error)) = (fails, outcomes.into_iter().find_map(Result::err)) {
            return Err(format!("nothing fails, but: {error}"));
        }
        let is_healed = self.random.random();
        if is_healed {
            self.archive.heal();
        }
        if !fails && self.random.random() {
            // Without its archive it is not closed, which is as if it were killed.
            let closed = database.close();
            return closed.or_else(|error| match is_healed {
                true => Err(format!("nothing fails, but closing: {error}")),
                false => Ok(()),
            });
        }
        // Dropping it would close it.
        let (disk, archive) = (self.disk.clone(), self.archive.clone());
        let kills = self.random.random();
        let left = |disk: &SimulatedDisk| if kills { disk.kill() } else { disk.crash() };
        (self.disk, self.archive) = (left(&disk), left(&archive));
        disk.fail_from(1);
        archive.fail_from(1);
        drop(database);
        Ok(())
    }

    /// A backup, and those that it follows on, before it.
    fn row(&self, number: usize) -> Check<Vec<Backup>> {
        let mut numbers = vec![number];
        while let Some(former) = numbers.last().and_then(|last| self.taken[*last].2) {
            numbers.push(former);
        }
        let open = |number: &usize| Backup::open_in(&self.backups, &self.taken[*number].0);
        numbers.iter().rev().map(open).collect::<Result<_>>().map_err(told)
    }

    /// Restores a backup to a few places, and checks what is there.
    fn check(&mut self, number: usize, last: Lsn) -> Check {
        let (row, backup_end) = (self.row(number)?, self.taken[number].1);
        let mut untils = vec![(Until::End, last), (Until::Before(backup_end), Lsn(backup_end.0 - 1))];
        for _ in 0..3 {
            let client = &self.clients[self.random.random_range(0..CLIENTS)];
            let state = &client.states[self.random.random_range(0..client.states.len())];
            // Only the places of transactions are known.
            if state.first != state.last || state.last.0 == 0 {
                continue;
            }
            let at = state.last;
            untils.push(match self.random.random() {
                true => (Until::Lsn(at), at),
                false => (Until::Before(at), Lsn(at.0 - 1)),
            });
        }
        for (until, at) in untils {
            let what = format!("backup {number} up to {backup_end}, restored to {until:?}");
            let disk: Arc<dyn Directory> = Arc::new(SimulatedDisk::new(3));
            let how = RestoreOptions::default().until(until).archive_in(Arc::new(self.archive.clone()));
            match Backup::restore_in(&row, disk.clone(), "restored", &self.options, how) {
                Err(Error::Backup(BackupError::BeforeBackup { .. })) if at < backup_end => continue,
                restored => restored.map_err(|error| format!("{what}: {error}"))?,
            };
            let restored = Database::open_in(disk, "restored", &self.options);
            let restored = restored.map_err(|error| format!("{what}, opened: {error}"))?;
            let found = contents(&restored).map_err(|error| format!("{what}, read: {error}"))?;
            for client in &self.clients {
                client.check(&found, at).map_err(|why| format!("{what}: {why}"))?;
            }
            if let Some(problem) = restored.verify(|_| {}).problems.first() {
                return Err(format!("{what}, verified: {problem}"));
            }
        }
        Ok(())
    }
}

/// A client has ended, whatever the reason.
struct Done<'d>(&'d AtomicU64);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

fn run(seed: u64) -> Check {
    let mut run = Run::new(seed);
    let database = Database::create_in(Arc::new(run.disk.clone()), NAME, &run.options()).map_err(told)?;
    run.back_up(&database).map_err(told)?;
    run.live(database)?;
    for _ in 0..run.random.random_range(0..3) {
        run.disk.heal();
        let database = run.open()?;
        run.live(database)?;
    }
    run.disk.heal();
    run.archive.heal();
    let database = run.open()?;
    // The time of the last commit is later than that of all others.
    database.create_table("the last").map_err(told)?;
    let last = database.archive_log().map_err(told)?;
    let state = database.log_state().and_then(|state| state.archive).ok_or("it has no archive")?;
    if state.gap.is_some() || state.error.is_some() {
        return Err(format!("the archive is not whole: {state:?}"));
    }
    if let Some(problem) = database.verify(|_| {}).problems.first() {
        return Err(problem.to_string());
    }
    database.close().map_err(told)?;
    for number in 0..run.taken.len() {
        run.check(number, last)?;
    }
    Ok(())
}

#[test]
fn restores() {
    for_seeds(8, run);
}
