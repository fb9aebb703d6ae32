//! A feed of changes, followed by a replica that must be what a model was after each commit: with transactions that are committed,
//! rolled back in part and whole, and open while others are; tables made, renamed and dropped; large values; bulk loads. The feed is
//! now and then far behind, cannot read what it wants to, and is begun anew at places where it had come to; with an archive also
//! after the database was closed, or has crashed. What has been told is there after a crash.

use crate::{
    for_seeds,
    model::{Contents, Operation, contents, difference, is_plain},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};
use vellum::{
    Change, ChangedValue, Changes, ChangesFrom, Commit, Database, Durability, Error, Event, Lsn, Options,
    Transaction,
};
use vellum_vm::{FileOperation, SimulatedDisk};

const NAME: &str = "data";

type Check<T = ()> = Result<T, String>;

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// What a program that follows has.
struct Replica {
    contents: Contents,
    last: Lsn,
    /// The log has all contents: no value may be gone.
    is_whole: bool,
    /// The tables that were read in the commit that is applied, because the log did not have what was loaded: they are as the commit
    /// has left them.
    read: BTreeSet<String>,
}

impl Replica {
    fn apply(&mut self, commit: &Commit, model: &Contents) -> Check {
        if commit.lsn < self.last || commit.position.lsn() <= commit.lsn || commit.changes.is_empty() {
            return Err(format!("{} comes after {}", commit.lsn, self.last));
        }
        self.last = commit.position.lsn();
        self.read.clear();
        for Change { table, event, .. } in &commit.changes {
            self.change(table, event, model)
                .map_err(|why| format!("{why}: {event:.200?} of {table} in {}", commit.lsn))?;
        }
        Ok(())
    }

    fn read(&self, value: &ChangedValue) -> Check<Vec<u8>> {
        match value.read().map_err(told)?.value() {
            Some(value) => Ok(value),
            // It has been replaced since.
            None if !self.is_whole && value.inline().is_none() => Ok(b"gone".to_vec()),
            None => Err("its value is gone".to_owned()),
        }
    }

    fn change(&mut self, table: &str, event: &Event, model: &Contents) -> Check {
        if let Event::Created { is_plain: plain, .. } = event {
            assert_eq!(*plain, is_plain(table));
            return match self.contents.insert(table.to_owned(), BTreeMap::new()) {
                None => Ok(()),
                Some(_) => Err("it was there".to_owned()),
            };
        }
        let mut entries = self.contents.remove(table).ok_or("no such table")?;
        let mut name = table;
        let was_there = match event {
            Event::Dropped => {
                self.read.remove(table);
                return Ok(());
            }
            Event::Renamed { to } => {
                name = to;
                !self.contents.contains_key(name)
            }
            Event::Inserted { .. }
            | Event::Replaced { .. }
            | Event::Removed { .. }
            | Event::Patched { .. }
                if self.read.contains(table) =>
            {
                true
            }
            Event::Inserted { key, value } => entries.insert(key.clone(), self.read(value)?).is_none(),
            Event::Replaced { key, value } => entries.insert(key.clone(), self.read(value)?).is_some(),
            Event::Removed { key } => entries.remove(key).is_some(),
            Event::Patched { key, offset, bytes } => {
                let value = entries.get_mut(key).ok_or("no such key")?;
                let part = value.get_mut(*offset..offset + bytes.len()).ok_or("out of the value")?;
                part.copy_from_slice(bytes);
                true
            }
            Event::Loaded { records } if entries.is_empty() => {
                let is_whole = records
                    .for_each(|key, value| {
                        let value = self.read(&value).map_err(|name| Error::NoSuchTable { name })?;
                        assert!(entries.last_key_value().is_none_or(|(last, _)| *last < key));
                        entries.insert(key, value);
                        Ok(true)
                    })
                    .map_err(told)?;
                if !is_whole {
                    // A program reads the table.
                    let now = model.get(table).ok_or("it was read, and is not there")?;
                    entries.clone_from(now);
                    self.read.insert(table.to_owned());
                }
                is_whole || !self.is_whole
            }
            _ => false,
        };
        self.contents.insert(name.to_owned(), entries);
        if was_there { Ok(()) } else { Err("it cannot have happened".to_owned()) }
    }
}

/// A transaction that stays open while others come and go, and what its table is if it is committed.
struct Held {
    transaction: Transaction,
    table: String,
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
}

struct Run {
    random: StdRng,
    disk: SimulatedDisk,
    archive: Option<SimulatedDisk>,
    options: Options,
    model: Contents,
    /// What the model was after each commit that has not been followed.
    ahead: VecDeque<Contents>,
    replica: Replica,
    held: Option<Held>,
    names: u32,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let (archive, logs_values) = (random.random_ratio(1, 2), random.random_ratio(1, 3));
        let durability = [Durability::Synced, Durability::Buffered, Durability::Deferred];
        let options = Options::default()
            .pool_bytes(1 << 20)
            .capacity_bytes(256 << 20)
            .log_segment_bytes([32 << 10, 256 << 10][random.random_range(0..2)])
            .log_buffer_bytes(4 << 20)
            .log_whole_values(logs_values)
            .durability(durability[random.random_range(0..3)])
            .background_eviction(false)
            .background_checkpoints(false)
            .huge_pages(false);
        Self {
            random,
            disk: SimulatedDisk::new(seed),
            archive: archive.then(|| SimulatedDisk::new(seed + 1)),
            options,
            model: Contents::new(),
            ahead: VecDeque::new(),
            replica: Replica {
                contents: Contents::new(),
                last: Lsn(0),
                is_whole: archive || logs_values,
                read: BTreeSet::new(),
            },
            held: None,
            names: 0,
        }
    }

    fn options(&self) -> Options {
        match &self.archive {
            Some(archive) => self.options.clone().log_archive_in(Arc::new(archive.clone())),
            None => self.options.clone(),
        }
    }

    fn name(&mut self, what: &str) -> String {
        self.names += 1;
        format!("{what} {}", self.names)
    }

    /// Something was committed.
    fn commit(&mut self, then: Contents) {
        self.model.clone_from(&then);
        self.ahead.push_back(then);
    }

    /// What the replica must be after all that was committed.
    fn compare(&self, expected: &Contents) -> Check {
        if self.replica.contents == *expected {
            Ok(())
        } else {
            Err(difference(&self.replica.contents, expected))
        }
    }

    /// Reads one more commit, which may fail now and then.
    fn next(&mut self, changes: &mut Changes) -> Check<Option<Commit>> {
        if !self.random.random_ratio(1, 30) {
            return changes.next().map_err(told);
        }
        self.disk.fail_nth_of(FileOperation::Read, self.random.random_range(1..4));
        let next = changes.next();
        self.disk.heal();
        next.or_else(|_| changes.next()).map_err(told)
    }

    /// Reads what is told by now; returns how much that was.
    fn follow_some(&mut self, changes: &mut Changes) -> Check<usize> {
        let mut count = 0;
        while let Some(commit) = self.next(changes)? {
            let expected = self.ahead.pop_front();
            let expected =
                expected.ok_or_else(|| format!("a commit is told that was none: {commit:.300?}"))?;
            self.replica.apply(&commit, &expected)?;
            // A large value that is gone is told of later.
            if self.replica.is_whole || self.ahead.is_empty() {
                self.compare(&expected)?;
            }
            count += 1;
        }
        Ok(count)
    }

    /// Reads all that was committed.
    fn follow(&mut self, database: &Database, changes: &mut Changes) -> Check {
        database.sync().map_err(told)?;
        let missing = self.ahead.len();
        let count = self.follow_some(changes)?;
        if count < missing {
            return Err(format!("{count} of {missing} commits are told"));
        }
        let model = self.model.clone();
        self.compare(&model)
    }

    /// Begins the feed anew where it is.
    fn begin_again(&mut self, database: &Database, changes: &mut Changes) -> Check {
        self.archive.iter().for_each(SimulatedDisk::heal);
        *changes = database.changes(changes.position()).map_err(told)?;
        Ok(())
    }

    /// What operations may change.
    fn free(&self) -> Contents {
        let mut free = self.model.clone();
        if let Some(held) = &self.held {
            free.remove(&held.table);
        }
        free
    }

    /// A transaction that changes some records, and what the model is if it is committed. The rest is its own.
    fn change(&mut self, transaction: &Transaction, database: &Database) -> Check<Option<Contents>> {
        let (mut then, mut at) = (self.free(), None);
        for _ in 0..self.random.random_range(1..12) {
            if self.random.random_ratio(1, 5) {
                at = Some((transaction.savepoint(), then.clone()));
            }
            let operation = Operation::draw(&then, &mut self.random);
            if operation.record_of_transactions().is_some() || operation.loaded_by_transactions().is_some() {
                operation.perform_in(transaction, database).map_err(told)?;
                operation.apply(&mut then);
            }
            if self.random.random_ratio(1, 6)
                && let Some((savepoint, before)) = at.take()
            {
                transaction.rollback_to(savepoint).map_err(told)?;
                then = before;
            }
        }
        let is_change = then != self.free();
        Ok(is_change.then(|| self.with_held(then)))
    }

    fn with_held(&self, mut then: Contents) -> Contents {
        if let Some(held) = &self.held {
            then.insert(held.table.clone(), self.model[&held.table].clone());
        }
        then
    }

    /// Tables are made, renamed and dropped in a transaction.
    fn change_tables(&mut self, transaction: &Transaction) -> Check<Contents> {
        let mut then = self.free();
        let (new, other) = (self.name("made"), self.name("renamed"));
        let table = transaction.create_table(new.as_str()).map_err(told)?;
        transaction.put(&table, b"first", b"value").map_err(told)?;
        then.insert(new.clone(), BTreeMap::from([(b"first".to_vec(), b"value".to_vec())]));
        drop(table);
        if self.random.random() {
            transaction.rename_table(&new, &other).map_err(told)?;
            let entries = then.remove(&new).unwrap_or_default();
            then.insert(other, entries);
        }
        let old = self.free().into_keys().next();
        match (old, self.random.random_range(0..3)) {
            (Some(old), 0) => {
                transaction.drop_table(&old).map_err(told)?;
                then.remove(&old);
            }
            (Some(old), 1) => {
                let mut name = self.name("renamed");
                if is_plain(&old) {
                    name.push_str(" plain");
                }
                transaction.rename_table(&old, &name).map_err(told)?;
                let entries = then.remove(&old).unwrap_or_default();
                then.insert(name, entries);
            }
            _ => {}
        }
        Ok(self.with_held(then))
    }

    /// Begins a transaction that stays open, or goes on with it, or ends it.
    fn hold(&mut self, database: &Database) -> Check {
        let Some(mut held) = self.held.take() else {
            let name = self.name("held");
            let table = database.create_table(name.as_str()).map_err(told)?;
            table.put("a", "record").map_err(told)?;
            let mut then = self.model.clone();
            then.insert(name.clone(), BTreeMap::new());
            self.commit(then.clone());
            let entries = BTreeMap::from([(b"a".to_vec(), b"record".to_vec())]);
            then.insert(name.clone(), entries.clone());
            self.commit(then);
            let transaction = database.begin().map_err(told)?;
            self.held = Some(Held { transaction, table: name, entries });
            return Ok(());
        };
        let before = &self.model[&held.table];
        if held.entries != *before && self.random.random_ratio(1, 3) {
            if self.random.random_ratio(1, 4) {
                return held.transaction.rollback().map_err(told);
            }
            held.transaction.commit().map_err(told)?;
            let mut then = self.model.clone();
            then.insert(held.table, held.entries);
            self.commit(then);
            return Ok(());
        }
        let table = database.table(&held.table).map_err(told)?;
        for _ in 0..self.random.random_range(1..20) {
            let key = self.random.random_range(0..100_u8);
            let length = [3, 30, 300, 6000][self.random.random_range(0..4)];
            let value = vec![self.random.random(); length];
            held.transaction.put(&table, [key], &value).map_err(told)?;
            held.entries.insert(vec![key], value);
        }
        self.held = Some(held);
        Ok(())
    }

    fn step(&mut self, database: &Database, changes: &mut Changes) -> Check {
        match self.random.random_range(0..40) {
            0..2 => database.checkpoint().map_err(told)?,
            2..4 => {
                self.begin_again(database, changes)?;
                self.follow(database, changes)?;
                self.begin_again(database, changes)?;
            }
            4..6 => self.begin_again(database, changes)?,
            6..9 => self.hold(database)?,
            9 => {
                if let Some(archive) = &self.archive {
                    archive.fail_from(self.random.random_range(1..20));
                }
            }
            10 => {
                if let Some(archive) = &self.archive {
                    archive.heal();
                    database.archive_log().map_err(told)?;
                }
            }
            11..22 => {
                let transaction = database.begin().map_err(told)?;
                let then = match self.random.random_range(0..5) {
                    0 => Some(self.change_tables(&transaction)?),
                    _ => self.change(&transaction, database)?,
                };
                match then.filter(|_| self.random.random_ratio(4, 5)) {
                    Some(then) => {
                        transaction.commit().map_err(told)?;
                        self.commit(then);
                    }
                    None => transaction.rollback().map_err(told)?,
                }
            }
            _ => {
                let mut then = self.free();
                let operation = Operation::draw(&then, &mut self.random);
                operation.perform(database).map_err(told)?;
                if operation.changes(&then) {
                    operation.apply(&mut then);
                    self.commit(self.with_held(then));
                }
            }
        }
        // The archive may be out of order, and then what it has cannot be read.
        if let Some(archive) = self.archive.as_ref().filter(|_| self.random.random_ratio(2, 3)) {
            archive.heal();
        }
        match self.random.random_range(0..6) {
            0..4 if self.archive.is_none() || self.random.random_ratio(1, 4) => {
                self.archive.iter().for_each(SimulatedDisk::heal);
                self.follow(database, changes)
            }
            4 => {
                self.archive.iter().for_each(SimulatedDisk::heal);
                self.follow_some(changes).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Closes the database, or lets it crash, and opens it again, where the feed goes on if that can be.
    fn reopen(&mut self, database: Database, changes: Changes) -> Check<(Database, Changes)> {
        let position = changes.position();
        self.archive.iter().for_each(SimulatedDisk::heal);
        let closes = self.random.random();
        if closes {
            drop((self.held.take(), changes));
            database.close().map_err(told)?;
        } else {
            let kills = self.random.random();
            // At once: an archive never has more than the log was durable, nor less than it has given up.
            self.disk.fail_from(1);
            self.archive.iter().for_each(|archive| archive.fail_from(1));
            let left = |disk: &SimulatedDisk| {
                let left = if kills { disk.kill() } else { disk.crash() };
                left.heal();
                left
            };
            let (disk, archive) = (left(&self.disk), self.archive.as_ref().map(left));
            drop((self.held.take(), changes, database));
            (self.disk, self.archive) = (disk, archive);
        }
        let disk = Arc::new(self.disk.clone());
        let database = Database::open_in(disk, NAME, &self.options()).map_err(told)?;
        // A crash takes the last commits back that were not durable, and none that was told.
        let found = contents(&database).map_err(told)?;
        let states = std::iter::once(&self.replica.contents).chain(&self.ahead);
        let kept: Vec<_> =
            (0..).zip(states).filter(|(_, state)| **state == found).map(|(kept, _)| kept).collect();
        let is_certain = kept.len() == 1;
        let kept = kept.last().copied();
        let kept =
            kept.ok_or_else(|| format!("what was told is lost: {}", difference(&found, &self.model)))?;
        if closes && found != self.model {
            return Err(format!("it was closed: {}", difference(&found, &self.model)));
        }
        self.ahead.truncate(kept);
        self.model = found;
        match database.changes(position) {
            Ok(mut changes) => {
                // All of it is durable, but less than that may have led to the same.
                if !is_certain {
                    self.follow_some(&mut changes)?;
                    self.ahead.clear();
                    let model = self.model.clone();
                    self.compare(&model)?;
                }
                Ok((database, changes))
            }
            Err(Error::ChangesDiscarded { from, .. }) if from == position.lsn() && self.archive.is_none() => {
                let changes = database.changes(ChangesFrom::Now).map_err(told)?;
                self.ahead.clear();
                self.replica.contents.clone_from(&self.model);
                Ok((database, changes))
            }
            Err(error) => Err(told(error)),
        }
    }
}

fn run(seed: u64) -> Check {
    let mut run = Run::new(seed);
    let mut database = Database::create_in(Arc::new(run.disk.clone()), NAME, &run.options()).map_err(told)?;
    let mut changes = database.changes(ChangesFrom::Now).map_err(told)?;
    for _ in 0..3 {
        for _ in 0..run.random.random_range(5..80) {
            run.step(&database, &mut changes)?;
        }
        (database, changes) = run.reopen(database, changes)?;
    }
    run.follow(&database, &mut changes)?;
    match changes.next_within(Duration::ZERO).map_err(told)? {
        Some(commit) => Err(format!("a commit is told that was none: {commit:.300?}")),
        None => Ok(()),
    }
}

#[test]
fn feeds() {
    for_seeds(40, run);
}

/// A load that is no transaction may be durable in part where a feed has come to. Where that is, another one goes on that has all of it.
#[test]
fn a_feed_that_goes_on_while_a_load_is_logged_has_all_of_it() {
    fn load(seed: u64) -> Check {
        let options = Options::default()
            .pool_bytes(1 << 20)
            .capacity_bytes(256 << 20)
            .log_buffer_bytes(4 << 20)
            .log_whole_values(true)
            .huge_pages(false);
        let database =
            Database::create_in(Arc::new(SimulatedDisk::new(seed)), NAME, &options).map_err(told)?;
        let table = database.create_table("table").map_err(told)?;
        let mut changes = database.changes(ChangesFrom::Now).map_err(told)?;
        let (pushed, is_pushed) = mpsc::channel();
        let (held, is_held) = mpsc::channel();
        let is_loaded = thread::scope(|scope| {
            let table = &table;
            let loading = scope.spawn(move || {
                let mut loader = table.bulk_loader()?;
                // The last values are large ones, of each of which a change of its own tells.
                let value = |key| vec![7; if key < 1000 { 300 } else { 3000 }];
                (0..1020_u32).try_for_each(|key| loader.push(key.to_be_bytes(), value(key)))?;
                let _ = pushed.send(());
                let _ = is_held.recv();
                loader.finish()
            });
            is_pushed.recv().map_err(told)?;
            // What the load logs before its last record is there, and it waits for this transaction.
            let transaction = database.begin().map_err(told)?;
            transaction.put(table, "in the way", "of the load").map_err(told)?;
            let end = || database.log_state().map(|state| state.appended_bytes);
            let begin = end();
            held.send(()).map_err(told)?;
            let mut last = begin;
            while end() == begin || end() != last {
                last = end();
                thread::sleep(Duration::from_millis(2));
            }
            database.sync().map_err(told)?;
            if let Some(commit) = changes.next().map_err(told)? {
                return Err(format!("a commit is told that was none: {commit:?}"));
            }
            changes = database.changes(changes.position()).map_err(told)?;
            transaction.rollback().map_err(told)?;
            Ok(loading.join().map_err(|_| "it panicked")?.is_ok())
        })?;
        let told_of = changes.next().map_err(told)?.and_then(|commit| commit.changes.into_iter().next());
        let is_whole = match told_of.map(|change| change.event) {
            Some(Event::Loaded { records }) => records.for_each(|_, _| Ok(true)).map_err(told)?,
            // It has not waited long enough.
            None if !is_loaded => return load(seed),
            other => return Err(format!("it is told as {other:?}")),
        };
        if is_whole { Ok(()) } else { Err("not all of it is told".to_owned()) }
    }
    for_seeds(1, load);
}
