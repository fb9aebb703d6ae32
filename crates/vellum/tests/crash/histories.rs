//! A few lives of one database, on a disk that fails at any operation.
//!
//! One thread does what several clients would do: up to four transactions are open at a time, and single operations are done, tables
//! made and dropped, and checkpoints taken among them. So the seed says all, how clients meet included.

use crate::{
    for_seeds,
    life::{End, Journal},
    model::{Operation, contents, difference},
    open::{Commit, Step, Transactions, all_of, is_conflict},
    table_changes, tables,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{collections::BTreeMap, sync::Arc};
use vellum::{Arrival, Database, Durability, Error, Options, Transaction, TxnError};
use vellum_vm::{CrashModel, Directory, Faults, FileOperation, OperationCounts, SimulatedDisk};

const NAME: &str = "data";

/// Options that make everything happen often, and nothing at another time than in the run before.
fn options(random: &mut StdRng) -> Options {
    let segment_bytes = [64 << 10, 256 << 10, 1 << 20, 1 << 20][random.random_range(0..4)];
    let durability = [Durability::Synced, Durability::Buffered, Durability::Deferred];
    Options::default()
        .pool_bytes([256 << 10, 512 << 10, 1 << 20][random.random_range(0..3)])
        .capacity_bytes(256 << 20)
        .log_segment_bytes(segment_bytes)
        .log_buffer_bytes(4 << 20)
        .version_memory_bytes([0, 5000, 64 << 20][random.random_range(0..3)])
        .durability(durability[[0, 0, 1, 2][random.random_range(0..4)]])
        .background_eviction(false)
        .background_checkpoints(false)
        .huge_pages(false)
}

/// A number below `most`, and as often below a tenth of it.
fn any_size(random: &mut StdRng, most: f64) -> u64 {
    random.random_range(0.0..most.ln()).exp() as u64
}

const PAGE_BYTES: usize = 4096;

/// Files, and what they hold.
type Files = BTreeMap<String, Vec<u8>>;

fn files(disk: &SimulatedDisk) -> Files {
    // Of a copy: the thread that makes segments changes names.
    let disk = disk.kill();
    let names = disk.names().unwrap_or_default().into_iter();
    names.map(|name| (name.clone(), disk.file(&name).snapshot().to_vec())).collect()
}

pub struct Run {
    random: StdRng,
    /// Which databases are read as a whole when they are opened.
    reads: StdRng,
    /// What becomes of whole tables in transactions. Not in every fourth history: other transactions are alone more often there.
    tables: StdRng,
    changes_tables: bool,
    disk: SimulatedDisk,
    options: Options,
    durability: Durability,
    journal: Journal,
    transactions: Transactions,
    /// Commits that have not been waited for, how much is acknowledged when they are durable, and how durable.
    arrivals: Vec<(Arrival, usize, Durability)>,
    is_created: bool,
    /// The power may go at any moment.
    is_failing: bool,
    /// The file is compacted now and then.
    compacts: bool,
    /// The only operation that fails: its kind, and its number. What was done with the disks before this one.
    only: Option<(FileOperation, u64)>,
    done: Vec<OperationCounts>,
    end: End,
    /// How often the database was opened; perhaps what the files held after one of these times.
    lives: u64,
    before: Option<(Files, u64)>,
    /// What has happened, for people.
    story: Vec<String>,
}

impl Run {
    pub fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let durability = [Durability::Synced, Durability::Buffered, Durability::Deferred];
        let durability = durability[[0, 0, 1, 2][random.random_range(0..4)]];
        let options = options(&mut random).durability(durability);
        let (disk, journal) = (SimulatedDisk::new(seed), Journal::default());
        Self {
            random,
            reads: StdRng::seed_from_u64(!seed),
            tables: StdRng::seed_from_u64(seed.rotate_left(32) + 1),
            changes_tables: seed % 4 != 3,
            disk,
            options,
            durability,
            journal,
            transactions: Transactions::default(),
            arrivals: Vec::new(),
            is_created: false,
            is_failing: true,
            compacts: false,
            only: None,
            done: Vec::new(),
            end: End::Closed,
            lives: 0,
            before: None,
            story: Vec::new(),
        }
    }

    /// One in which the file is compacted now and then.
    pub fn compacting(seed: u64) -> Self {
        Self { compacts: true, ..Self::new(seed) }
    }

    /// One in which nothing fails but the operation of this kind with this number.
    pub fn failing_only(seed: u64, operation: FileOperation, number: u64) -> Self {
        let run = Self { is_failing: false, only: Some((operation, number)), ..Self::new(seed) };
        run.heal();
        run
    }

    fn tell(&mut self, what: impl std::fmt::Display) {
        let operations = self.disk.counts().total();
        self.story.push(format!("{operations}: {what}"));
    }

    /// The disk as a crash leaves it, whatever handles there still are.
    fn crash(&mut self, database: Option<Database>) {
        let kills = self.random.random_ratio(1, 3);
        let survivor = if kills { self.disk.kill() } else { self.disk.crash() };
        // What the power has taken does not come back.
        let is_lost = !kills || (database.is_none() && self.end == End::PowerLoss);
        self.end = if is_lost { End::PowerLoss } else { End::Killed };
        self.tell(format!("{:?}, {}", self.end, self.journal));
        self.done.push(self.disk.counts());
        self.disk.fail_from(1);
        self.transactions.clear();
        self.arrivals.clear();
        drop(database);
        self.disk = survivor;
        self.heal();
    }

    /// Nothing fails any more, but for what is to fail yet.
    pub fn heal(&self) {
        self.disk.heal();
        if let Some((operation, number)) = self.only
            && let Some(left @ 1..) = number.checked_sub(self.count(operation))
        {
            self.disk.fail_nth_of(operation, left);
        }
    }

    /// How many operations of a kind there were.
    pub fn count(&self, operation: FileOperation) -> u64 {
        self.done.iter().chain([&self.disk.counts()]).map(|counts| counts.of(operation)).sum()
    }

    /// Opens the database, perhaps after a few attempts at which the disk fails.
    fn open(&mut self) -> Result<Database, String> {
        for _ in 0..3 {
            if self.only.is_some() || (self.is_failing && self.random.random_ratio(2, 5)) {
                if self.is_failing {
                    self.disk.fail_from(1 + any_size(&mut self.random, 3000.0));
                }
                match self.try_open() {
                    Ok(database) => {
                        self.heal();
                        return Ok(database);
                    }
                    // What a killed process had only written is lost if the power goes while the next one recovers.
                    Err(error) => {
                        self.tell(format!("opening: {error}"));
                        self.crash_again();
                    }
                }
            }
        }
        self.heal();
        self.try_open().map_err(|error| format!("it does not open after {:?}: {error}", self.end))
    }

    fn crash_again(&mut self) {
        let before = self.end;
        self.crash(None);
        if before == End::Closed && self.is_created {
            self.journal.sync();
        }
    }

    fn try_open(&mut self) -> vellum::Result<Database> {
        let directory: Arc<dyn Directory> = Arc::new(self.disk.clone());
        if !self.is_created {
            // What is left of a creation that was interrupted is in nobody's way.
            for name in self.disk.names().unwrap_or_default() {
                let _ = self.disk.remove(&name);
            }
            let database = Database::create_in(directory, NAME, &self.options)?;
            self.is_created = true;
            return Ok(database);
        }
        Database::open_in(directory, NAME, &self.options)
    }

    /// Draws what is going to fail. Says whether that ends.
    fn draw_faults(&mut self) {
        if !self.is_failing {
            return;
        }
        let random = &mut self.random;
        match random.random_range(0..14) {
            0..5 => self.disk.fail_from(1 + any_size(random, 3000.0)),
            5 => self.disk.fail_nth_of(FileOperation::Write, 1 + any_size(random, 500.0)),
            6 => self.disk.fail_nth_of(FileOperation::Sync, 1 + any_size(random, 100.0)),
            7 => self.disk.fail_nth_of(FileOperation::Read, 1 + any_size(random, 100.0)),
            8 => {
                let capacity_bytes = Some(random.random_range(1..64) << 15);
                self.disk.set_faults(Faults { capacity_bytes, ..Faults::default() });
            }
            9 => self.disk.set_faults(Faults { bit_flip_on_read: 0.02, ..Faults::default() }),
            _ => {}
        }
    }

    /// Works until the disk fails for good, or enough has been done. Says whether something has failed.
    fn work(&mut self, database: &Database) -> Result<bool, String> {
        let mut has_failed = false;
        for _ in 0..1 + any_size(&mut self.random, 300.0) {
            let failure = match self.random.random_range(0..120) {
                _ if self.changes_tables && self.tables.random_ratio(1, 6) => self.change_tables(database)?,
                0..7 if self.compacts => self.compact(database).map(|error| (error, None)),
                number @ 0..4 => {
                    let outcome = if number < 2 { database.checkpoint() } else { database.sync() };
                    outcome.map(|()| self.journal.sync()).err().map(|error| (error, None))
                }
                4..7 => self.look(database)?.map(|error| (error, None)),
                7..10 => self.wait().map(|error| (error, None)),
                10..20 => {
                    self.transactions.begin(database, &mut self.random)?;
                    None
                }
                20..70 if !self.transactions.is_empty() => {
                    match self.transactions.step(database, &self.journal.now, &mut self.random)? {
                        Step::Done => None,
                        Step::Commit(commit) => self.commit(*commit),
                        Step::Failed(error) => Some((error, None)),
                    }
                }
                _ => self.single(database)?,
            };
            let Some((error, operation)) = failure else { continue };
            self.tell(format!("{operation:.60?}: {error}"));
            has_failed = true;
            let goes_on = self.random.random_ratio(1, 2);
            if !goes_on {
                operation.into_iter().for_each(|operation| self.journal.attempt(operation));
                return Ok(true);
            }
            // Reading must not fail now.
            self.disk.heal();
            let goes_on = self.journal.settle(operation.as_ref(), database)?;
            self.heal();
            if !goes_on {
                return Ok(true);
            }
        }
        Ok(has_failed)
    }

    fn compact(&mut self, database: &Database) -> Option<Error> {
        self.aim();
        // Large values are moved by transactions.
        for (table, entries) in &self.journal.now {
            for key in entries.iter().filter(|(_, value)| value.len() > 900).map(|(key, _)| key) {
                self.transactions.note_attempt((table.clone(), key.clone()));
            }
        }
        self.transactions.tables.note_moves();
        let most = any_size(&mut self.random, 200.0);
        let mut steps = 0;
        let compacted = database.compact(|_| {
            steps += 1;
            steps < most
        });
        compacted.map(|done| self.tell(format!("{done:?}"))).err()
    }

    /// Does something that is no transaction. What has failed may be done all the same.
    fn single(&mut self, database: &Database) -> Result<Option<(Error, Option<Operation>)>, String> {
        let operation = Operation::draw(&self.journal.now, &mut self.random);
        if operation.whole_table().is_some_and(|table| self.transactions.use_table(table)) {
            return Ok(None);
        }
        let record = operation.record();
        if record.is_none() {
            self.aim();
        }
        let (may_conflict, must) =
            record.as_ref().map_or((false, false), |record| self.transactions.refuse(record));
        let changes = operation.changes(&self.journal.now);
        // The table gets another tree, which those that see the one before cannot change.
        let replaced = match &operation {
            Operation::Clear { table } | Operation::Drop { table } => Some(all_of(table)),
            load => load.loaded_by_transactions().map(all_of),
        };
        match operation.perform(database) {
            Ok(()) if must && changes => Err(format!("{operation:.60?} of what a transaction has changed")),
            Ok(()) => {
                if let Operation::Drop { table } | Operation::Clear { table } = &operation {
                    self.transactions.forget_table(table);
                }
                replaced.into_iter().for_each(|table| self.transactions.note_attempt(table));
                record.into_iter().filter(|_| changes).for_each(|record| self.transactions.note(record));
                self.journal.acknowledge(operation, self.durability);
                Ok(None)
            }
            Err(error) if is_conflict(&error) && may_conflict => Ok(None),
            Err(error) if is_conflict(&error) => Err(format!("{operation:.60?}: {error}")),
            Err(error) => {
                record.into_iter().chain(replaced).for_each(|record| self.transactions.note_attempt(record));
                Ok(Some((error, Some(operation))))
            }
        }
    }

    /// Sometimes the power goes in the next moments: what takes several records may be cut in the middle.
    fn aim(&mut self) {
        if self.is_failing && self.random.random_ratio(1, 6) {
            self.disk.fail_from(1 + any_size(&mut self.random, 12.0));
        }
    }

    fn commit(&mut self, commit: Commit) -> Option<(Error, Option<Operation>)> {
        let Commit { transaction, durability, changed, reserved } = commit;
        self.aim();
        self.transactions.note_commit(&changed, reserved);
        self.finish(transaction, durability, Operation::Commit { changed })
    }

    /// A step of the clients that change tables as a whole.
    fn change_tables(&mut self, database: &Database) -> Result<Option<(Error, Option<Operation>)>, String> {
        let others = self.transactions.count();
        let tables = &mut self.transactions.tables;
        let step = tables.step(database, (&self.journal.now, others), &mut self.tables);
        let done = tables.done.join("; ");
        self.tell(format!("tables: {done}"));
        Ok(match step? {
            tables::Step::Done => None,
            tables::Step::Acknowledged(operation) => {
                self.journal.acknowledge(operation, self.durability);
                None
            }
            tables::Step::Failed(error, operation) => Some((error, operation)),
            tables::Step::Commit(commit) => {
                let table_changes::Commit { transaction, durability, operation, committed } = *commit;
                self.aim();
                let failure = self.finish(transaction, durability, operation);
                match failure {
                    None => self.transactions.tables.note_commit(committed),
                    Some(_) => self.transactions.tables.note_failure(),
                }
                failure
            }
        })
    }

    /// Commits a transaction that has done this.
    fn finish(
        &mut self,
        transaction: Transaction,
        durability: Durability,
        operation: Operation,
    ) -> Option<(Error, Option<Operation>)> {
        if self.random.random_ratio(1, 3) {
            let arrival = match transaction.commit_async() {
                Ok(arrival) => arrival,
                Err(error) => return Some((error, Some(operation))),
            };
            self.journal.attempt(operation);
            self.arrivals.extend(arrival.map(|arrival| (arrival, self.journal.count(), durability)));
            return None;
        }
        match transaction.commit() {
            Ok(()) => {
                self.journal.acknowledge(operation, durability);
                None
            }
            Err(error) => Some((error, Some(operation))),
        }
    }

    /// Waits for what has not been waited for.
    fn wait(&mut self) -> Option<Error> {
        for (arrival, count, durability) in self.arrivals.drain(..) {
            match arrival.wait() {
                Ok(()) => self.journal.acknowledge_to(count, durability),
                Err(error) => return Some(TxnError::from(error).into()),
            }
        }
        None
    }

    /// Whether a reader that is no transaction sees just what counts, whatever is open.
    fn look(&mut self, database: &Database) -> Result<Option<Error>, String> {
        match contents(database) {
            Ok(found) if found == self.journal.now => Ok(None),
            Ok(found) => Err(format!("a reader sees {}", difference(&found, &self.journal.now))),
            Err(error) => Ok(Some(error)),
        }
    }

    /// Damages what a crash has left, in a copy: mostly what the last life has logged. Either that is noticed, or it is in nobody's
    /// way. The last pages of the log are spared: what nothing was synced after cannot be told from what was being written.
    fn damage(&mut self) -> Result<(), String> {
        let Some((before, _)) = self.before.take().filter(|(_, life)| *life == self.lives) else {
            return Ok(());
        };
        let disk = self.disk.crash_with(CrashModel::KeepAll);
        let mut pages = Vec::new();
        let in_log = self.random.random_ratio(4, 5);
        for (name, bytes) in files(&disk).into_iter().filter(|(name, _)| (name != NAME) == in_log) {
            let old = before.get(&name).map_or(&[][..], |bytes| bytes);
            let old = old.chunks(PAGE_BYTES).chain(std::iter::repeat(&[][..]));
            let changed = bytes
                .chunks(PAGE_BYTES)
                .zip(old)
                .enumerate()
                .filter(|(_, (new, old))| new != old && new.iter().any(|byte| *byte != 0));
            pages.extend(changed.map(|(page, _)| (name.clone(), page)));
        }
        if in_log {
            pages.truncate(pages.len().saturating_sub(8));
        }
        if pages.is_empty() {
            return Ok(());
        }
        let (name, page) = &pages[self.random.random_range(0..pages.len())];
        let bit = page * PAGE_BYTES * 8 + self.random.random_range(0..PAGE_BYTES * 8);
        disk.file(name).flip_bit(bit as u64);
        let Ok(database) = Database::open_in(Arc::new(disk.clone()), NAME, &self.options) else {
            return Ok(());
        };
        if contents(&database).is_ok() {
            let checked = self.journal.clone().check_contents(&database, End::Damaged);
            checked.map_err(|why| format!("with bit {bit} of {name} inverted: {why}"))?;
        }
        disk.fail_from(1);
        Ok(())
    }

    /// What a database holds after it was opened, which is checked.
    fn check(&self, database: &Database) -> Result<Journal, String> {
        let failures = self.disk.counts().scheduled_failures;
        let mut checked = self.journal.clone();
        if let Err(why) = checked.check(database, self.end) {
            if self.disk.counts().scheduled_failures == failures {
                return Err(why);
            }
            // It was a read of this that was to fail.
            checked = self.journal.clone();
            checked.check(database, self.end)?;
        }
        Ok(checked)
    }

    /// Sometimes checks a copy of what a crash has left, so that nothing need be read in the database itself. None if it was not checked.
    fn check_copy(&mut self) -> Result<Option<Journal>, String> {
        if !self.is_created || self.end == End::Closed || self.only.is_some() || self.reads.random_ratio(1, 2)
        {
            return Ok(None);
        }
        let copy = self.disk.kill();
        let Ok(database) = Database::open_in(Arc::new(copy.clone()), NAME, &self.options) else {
            return Ok(None);
        };
        let mut checked = self.journal.clone();
        checked.check(&database, self.end)?;
        copy.fail_from(1);
        Ok(Some(checked))
    }

    fn live(&mut self) -> Result<(), String> {
        if self.end != End::Closed {
            self.damage()?;
        }
        let (known, crashes) = (self.check_copy()?, self.done.len());
        let database = self.open()?;
        self.journal = match known.filter(|_| self.done.len() == crashes) {
            // It shows the same as its copy, and what was not read is yet to be redone.
            Some(known) => known,
            None => self.check(&database)?,
        };
        self.lives += 1;
        self.before = self.random.random_ratio(1, 3).then(|| (files(&self.disk), self.lives));
        self.tell(format!("opened, {:?}", database.recovery()));
        self.draw_faults();
        let has_failed = self.work(&database)?;
        if has_failed {
            self.journal.distrust();
        }
        if has_failed || self.durability != Durability::Synced {
            self.before = None;
        }
        if !has_failed && self.random.random_ratio(1, 3) {
            self.arrivals.clear();
            let ended = self.transactions.end();
            match ended.and_then(|()| database.close()) {
                Ok(()) => {
                    self.journal.sync();
                    self.end = End::Closed;
                    self.heal();
                }
                Err(_) => {
                    self.end = End::Killed;
                    self.crash(None);
                }
            }
        } else {
            self.crash(Some(database));
        }
        Ok(())
    }
}

/// All that a history has.
pub fn live(run: &mut Run) -> Result<(), String> {
    let outcome = all_lives(run);
    outcome.map_err(|why| format!("{why}\n  {:?}\n  {}", run.durability, run.story.join("\n  ")))
}

fn all_lives(run: &mut Run) -> Result<(), String> {
    for _ in 0..run.random.random_range(2..6) {
        run.live()?;
    }
    // Nothing fails any more, so everything goes well.
    (run.is_failing, run.only) = (false, None);
    run.disk.heal();
    let database = run.try_open().map_err(|error| format!("it does not open in the end: {error}"))?;
    run.journal.check(&database, run.end)?;
    let end = |error| format!("in the end: {error}");
    for _ in 0..60 {
        run.transactions.begin(&database, &mut run.random)?;
        let failure = match run.transactions.step(&database, &run.journal.now, &mut run.random)? {
            Step::Done => run.single(&database)?,
            Step::Commit(commit) => run.commit(*commit),
            Step::Failed(error) => Some((error, None)),
        };
        let changes_tables = run.changes_tables && run.tables.random_ratio(1, 8);
        let changed = if changes_tables { run.change_tables(&database)? } else { None };
        if let Some((error, operation)) = failure.or(changed) {
            return Err(format!("in the end: {operation:.60?}: {error}"));
        }
    }
    run.wait().map_or(Ok(()), |error| Err(end(error)))?;
    run.transactions.end().map_err(end)?;
    run.look(&database)?.map_or(Ok(()), |error| Err(end(error)))?;
    database.close().map_err(|error| format!("it does not close in the end: {error}"))?;
    let database =
        run.try_open().map_err(|error| format!("it does not open after it was closed: {error}"))?;
    if database.recovery().is_some() {
        return Err("it was closed and is recovered".to_owned());
    }
    run.journal.check(&database, End::Closed)
}

#[test]
fn histories() {
    for_seeds(200, |seed| live(&mut Run::new(seed)));
}
