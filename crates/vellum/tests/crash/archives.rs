//! A few lives of a database whose log is archived, on disks that fail at any operation, and databases that are restored to points in
//! time with its backups: each is what a model was at that point.

use crate::{
    for_seeds,
    model::{Contents, Operation, contents, difference},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    sync::Arc,
    thread::sleep,
    time::{Duration, SystemTime},
};
use vellum::{
    Backup, BackupError, BackupOptions, Database, Error, LogArchive, Lsn, Options, RestoreOptions,
    Transaction, Until,
};
use vellum_vm::{Directory, SimulatedDisk};

const NAME: &str = "data";

/// A point, and what the database holds there.
struct Mark {
    until: Until,
    end: Lsn,
    contents: Contents,
}

struct Run {
    random: StdRng,
    disk: SimulatedDisk,
    archive: SimulatedDisk,
    backups: SimulatedDisk,
    options: Options,
    now: Contents,
    marks: Vec<Mark>,
    /// Up to where each backup goes, and the one that it follows on.
    taken: Vec<(Lsn, Option<usize>)>,
    held: u64,
    /// The last place of the log that was marked.
    last: Lsn,
}

type Check<T = ()> = Result<T, String>;

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn end(database: &Database) -> Lsn {
    Lsn(database.log_state().map_or(0, |state| state.appended_bytes))
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let archive = SimulatedDisk::new(seed + 1);
        let options = Options::default()
            .pool_bytes([256 << 10, 1 << 20][random.random_range(0..2)])
            .capacity_bytes(256 << 20)
            .log_segment_bytes([32 << 10, 64 << 10, 256 << 10][random.random_range(0..3)])
            .log_buffer_bytes(4 << 20)
            .background_eviction(false)
            .background_checkpoints(false)
            .huge_pages(false);
        Self {
            random,
            disk: SimulatedDisk::new(seed),
            archive,
            backups: SimulatedDisk::new(seed + 2),
            options,
            now: Contents::new(),
            marks: Vec::new(),
            taken: Vec::new(),
            held: 0,
            last: Lsn(0),
        }
    }

    fn options(&self) -> Options {
        self.options.clone().log_archive_in(Arc::new(self.archive.clone()))
    }

    fn open(&self) -> vellum::Result<Database> {
        Database::open_in(Arc::new(self.disk.clone()), NAME, &self.options())
    }

    /// Opens it after faults, when it holds what it did, or the operation that failed as well.
    fn open_again(&mut self, failed: Option<Operation>) -> Check<Database> {
        let database = self.open().map_err(told)?;
        // What was there is perhaps lost, but no place means something else later.
        if end(&database) < self.last {
            return Err(format!("the log goes on at {}, and had come to {}", end(&database), self.last));
        }
        let found = contents(&database).map_err(told)?;
        if let Some(failed) = failed
            && found != self.now
        {
            failed.apply(&mut self.now);
        }
        if found == self.now { Ok(database) } else { Err(difference(&found, &self.now)) }
    }

    fn mark(&mut self, database: &Database) {
        let end = end(database);
        self.last = self.last.max(end);
        let until = if self.random.random_ratio(1, 8) {
            sleep(Duration::from_millis(3));
            let now = SystemTime::now();
            sleep(Duration::from_millis(3));
            Until::Time(now)
        } else {
            place(end, &mut self.random)
        };
        self.marks.push(Mark { until, end, contents: self.now.clone() });
    }

    /// A transaction that is committed, or not, with a part that is taken back.
    #[expect(clippy::result_large_err, reason = "it is looked at once a life")]
    fn transact(&mut self, database: &Database) -> Result<(), (Error, Option<Operation>)> {
        let transaction = database.begin().map_err(|error| (error, None))?;
        let mut then = self.now.clone();
        let mut changed = std::collections::BTreeMap::new();
        let mut at = None;
        for _ in 0..self.random.random_range(1..12) {
            if self.random.random_ratio(1, 6) {
                at = Some((transaction.savepoint(), then.clone(), changed.clone()));
            }
            let operation = Operation::draw(&then, &mut self.random);
            let Some((table, key)) = operation.record_of_transactions() else { continue };
            operation.perform_in(&transaction, database).map_err(|error| (error, None))?;
            operation.apply(&mut then);
            changed.insert((table.clone(), key.clone()), then[&table].get(&key).cloned());
            if self.random.random_ratio(1, 10)
                && let Some((savepoint, before, changes)) = at.take()
            {
                transaction.rollback_to(savepoint).map_err(|error| (error, None))?;
                (then, changed) = (before, changes);
            }
        }
        if self.random.random_ratio(1, 5) {
            return transaction.rollback().map_err(|error| (error, None));
        }
        transaction.commit().map_err(|error| (error, Some(Operation::Commit { changed })))?;
        self.now = then;
        Ok(())
    }

    /// A transaction that stays open while others go on.
    fn hold(&mut self, database: &Database) -> vellum::Result<Option<Transaction>> {
        let Some(name) = self.now.keys().next() else { return Ok(None) };
        let transaction = database.begin()?;
        for _ in 0..3 {
            self.held += 1;
            let key = format!("held {}", self.held);
            transaction.put(&database.table(name)?, key.as_bytes(), b"never committed")?;
        }
        Ok(Some(transaction))
    }

    fn back_up(&mut self, database: &Database) -> vellum::Result<()> {
        let number = self.taken.len();
        let former = (number > 0 && self.random.random()).then(|| self.random.random_range(0..number));
        let opened = former.map(|former| Backup::open_in(&self.backups, &former.to_string())).transpose()?;
        let options = opened
            .as_ref()
            .map_or_else(BackupOptions::default, |former| BackupOptions::default().since(former));
        let made = database.backup_in(Arc::new(self.backups.clone()), &number.to_string(), options)?;
        self.taken.push((made.end, former));
        Ok(())
    }

    /// Does one thing. What has failed is perhaps there.
    #[expect(clippy::result_large_err, reason = "it is looked at once a life")]
    fn step(&mut self, database: &Database) -> Result<(), (Error, Option<Operation>)> {
        match self.random.random_range(0..40) {
            0 => database.checkpoint().map_err(|error| (error, None)),
            1 if self.taken.len() < 5 => self.back_up(database).map_err(|error| (error, None)),
            // The archive may be out of order.
            2 => {
                let _ = database.archive_log();
                Ok(())
            }
            3 => {
                self.archive.fail_from(self.random.random_range(1..20));
                Ok(())
            }
            4..7 => {
                self.archive.heal();
                Ok(())
            }
            7..18 => self.transact(database),
            _ => {
                let operation = Operation::draw(&self.now, &mut self.random);
                operation.perform(database).map_err(|error| (error, Some(operation.clone())))?;
                operation.apply(&mut self.now);
                Ok(())
            }
        }
    }

    /// A life: until the disk fails, or for so many steps.
    fn live(&mut self, database: Database) -> Check {
        if self.random.random_ratio(1, 2) {
            self.disk.fail_from(self.random.random_range(1..1500));
        }
        let mut failed = None;
        for _ in 0..self.random.random_range(5..100) {
            if let Err((_, operation)) = self.step(&database) {
                failed = Some(operation);
                break;
            }
            if self.random.random_ratio(1, 5) {
                self.mark(&database);
            }
            if self.random.random_ratio(1, 12) {
                // A transaction is open at the point, and is not there when that is restored.
                let held = self.hold(&database);
                self.mark(&database);
                drop(held);
            }
        }
        if self.random.random_ratio(1, 3) {
            self.archive.heal();
        }
        if failed.is_none() && self.random.random_ratio(1, 2) {
            let closed = database.close();
            if closed.is_err() {
                self.crash();
            }
        } else {
            // Dropping it would close it.
            let (disk, archive) = (self.disk.clone(), self.archive.clone());
            self.crash();
            disk.fail_from(1);
            archive.fail_from(1);
            drop(database);
        }
        self.disk.heal();
        let database = self.open_again(failed.flatten())?;
        drop(database.close());
        Ok(())
    }

    fn crash(&mut self) {
        let kills = self.random.random();
        let left = |disk: &SimulatedDisk| if kills { disk.kill() } else { disk.crash() };
        (self.disk, self.archive) = (left(&self.disk), left(&self.archive));
    }

    fn restore(&self, row: &[Backup], how: RestoreOptions<'_>) -> vellum::Result<Database> {
        let disk: Arc<dyn Directory> = Arc::new(SimulatedDisk::new(3));
        let how = how.archive_in(Arc::new(self.archive.clone()));
        Backup::restore_in(row, disk.clone(), "restored", &self.options, how)?;
        Database::open_in(disk, "restored", &self.options)
    }

    /// A backup, and those that it follows on, before it.
    fn row(&self, number: usize) -> Check<Vec<Backup>> {
        let mut numbers = vec![number];
        while let Some(former) = numbers.last().and_then(|last| self.taken[*last].1) {
            numbers.push(former);
        }
        let opened = numbers.iter().rev().map(|number| Backup::open_in(&self.backups, &number.to_string()));
        opened.collect::<vellum::Result<_>>().map_err(told)
    }

    /// Restores to a few points with a backup.
    fn check(&mut self, number: usize) -> Check {
        let row = self.row(number)?;
        let backup_end = self.taken[number].0;
        for _ in 0..4.min(self.marks.len()) {
            let mark = &self.marks[self.random.random_range(0..self.marks.len())];
            let until = mark.until;
            let what = format!("backup {number} up to {backup_end}, restored to {:?} at {}", until, mark.end);
            match self.restore(&row, RestoreOptions::default().until(until)) {
                Ok(restored) => {
                    compare(&restored, &mark.contents).map_err(|why| format!("{what}: {why}"))?;
                }
                Err(Error::Backup(BackupError::BeforeBackup { .. })) if mark.end < backup_end => {}
                // A time at which the backup had not begun is refused, also if nothing was done between.
                Err(Error::Backup(BackupError::BeforeBackup { .. }))
                    if matches!(until, Until::Time(_)) && mark.end <= backup_end => {}
                // Nothing was done after it that would tell the time.
                Err(Error::Backup(BackupError::AfterArchive { .. })) if matches!(until, Until::Time(_)) => {
                    let later = self.marks.iter().any(|other| other.end.0 > mark.end.0 + 4096);
                    if later {
                        return Err(format!("{what}: the archive does not reach it"));
                    }
                }
                Err(error) => return Err(format!("{what}: {error}")),
            }
        }
        for until in [Until::End, place(self.last, &mut self.random)] {
            let what = format!("to {until:?} with backup {number}");
            let restored = self.restore(&row, RestoreOptions::default().until(until));
            let restored = restored.map_err(|error| format!("{what}: {error}"))?;
            compare(&restored, &self.now).map_err(|why| format!("{what}: {why}"))?;
        }
        Ok(())
    }
}

/// What was committed before a place.
fn place(end: Lsn, random: &mut StdRng) -> Until {
    if random.random() { Until::Before(end) } else { Until::Lsn(Lsn(end.0 - 1)) }
}

fn compare(database: &Database, expected: &Contents) -> Check {
    let found = contents(database).map_err(told)?;
    if found != *expected {
        return Err(difference(&found, expected));
    }
    match database.verify(|_| {}).problems.first() {
        Some(problem) => Err(problem.to_string()),
        None => Ok(()),
    }
}

fn run(seed: u64) -> Check {
    let mut run = Run::new(seed);
    let database = Database::create_in(Arc::new(run.disk.clone()), NAME, &run.options()).map_err(told)?;
    for _ in 0..run.random.random_range(0..10) {
        run.step(&database).map_err(|(error, _)| told(error))?;
    }
    run.back_up(&database).map_err(told)?;
    run.archive.heal();
    database.close().map_err(told)?;
    for _ in 0..run.random.random_range(1..5) {
        let database = run.open_again(None)?;
        run.live(database)?;
    }
    run.archive.heal();
    let database = run.open_again(None)?;
    let operation = Operation::Create { table: "the last".to_owned() };
    operation.perform(&database).map_err(told)?;
    operation.apply(&mut run.now);
    if run.random.random_ratio(1, 3) {
        // It is lost, and its log is left.
        let (backups, lost) = (run.row(0)?, Arc::new(run.disk.crash()));
        let how = RestoreOptions::default().log_in(lost);
        let restored = run.restore(&backups, how).map_err(|error| format!("with the log: {error}"))?;
        compare(&restored, &run.now).map_err(|why| format!("with the log: {why}"))?;
    }
    run.last = database.archive_log().map_err(told)?;
    let state = database.log_state().and_then(|state| state.archive).ok_or("it has no archive")?;
    if state.gap.is_some() || state.error.is_some() {
        return Err(format!("the archive is not whole: {state:?}"));
    }
    database.close().map_err(told)?;
    for number in 0..run.taken.len() {
        run.check(number)?;
    }
    let last = run.taken.len() - 1;
    let backup = &run.row(last)?[0];
    let archive = LogArchive::open_in(Arc::new(run.archive.clone()), backup).map_err(told)?;
    let needed = archive.needed_by(backup).ok_or("nothing is needed")?.start;
    for part in archive.parts().iter().filter(|part| part.start < needed) {
        run.archive.remove(&part.name()).map_err(told)?;
    }
    if run.taken[last].1.is_none() {
        run.check(last)?;
    }
    Ok(())
}

#[test]
fn archives() {
    for_seeds(40, run);
}
