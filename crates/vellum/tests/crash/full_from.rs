//! Disks that are full from one operation on, whatever is being done then: each call says so, and ends soon; nothing that was
//! acknowledged is lost; and all goes on when there is room, in the same process, after a close, a kill and a crash.
//!
//! Full is either what takes more room than the files have, or every write: on a file system that writes elsewhere each time.
//!
//! `VELLUM_FULL_FROM=1000` begins at each of the first thousand operations that may take room; usually at some of all.

use crate::{
    life::{End, Journal},
    model::{Contents, Operation, contents},
    number, run_all,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};
use vellum::{BackupOptions, Database, Durability, Error, ErrorKind, Options, Transaction};
use vellum_vm::SimulatedDisk;

const NAME: &str = "data";
const TABLE: &str = "table";
/// How many steps there are at most, and how many of them while the disk is full.
const STEPS: (u64, usize) = (60, 18);
/// No call takes longer, on a busy machine either.
const LONGEST: Duration = Duration::from_secs(10);

/// What comes after the disk was full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Then {
    Room,
    Close,
    Kill,
    Crash,
}

/// A disk that becomes full.
#[derive(Clone, Copy, Debug)]
struct Fill {
    /// From which operation on.
    from: u64,
    overwriting: bool,
    segment_bytes: u64,
}

impl Fill {
    fn options(self) -> Options {
        Options::default()
            .pool_bytes(512 << 10)
            .capacity_bytes(256 << 20)
            .log_segment_bytes(self.segment_bytes)
            .log_buffer_bytes(4 << 20)
            .background_eviction(false)
            .background_checkpoints(false)
            .huge_pages(false)
    }
}

struct Run {
    disk: Arc<SimulatedDisk>,
    fill: Fill,
    journal: Journal,
    /// What may have been done, though it was refused: the log has ended.
    doubtful: Vec<Operation>,
    /// Whether the log has ended, so that the database is to be opened anew.
    is_ended: bool,
    random: StdRng,
    number: u64,
}

/// What a call has returned, if that is an error that says what is to be done: whether it is that the database is to be opened
/// anew.
fn is_ended(error: &Error) -> Result<bool, String> {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::OutOfSpace
            if ["ake room", "free space", "when they have ended"].iter().any(|what| text.contains(what)) =>
        {
            Ok(false)
        }
        ErrorKind::OutcomeUnknown if text.contains("open the database anew") => Ok(true),
        kind => Err(format!("it says {kind:?}, {text:?}")),
    }
}

/// Does something that is to end soon.
fn soon<T>(what: &str, call: impl FnOnce() -> T) -> Result<T, String> {
    let begun = Instant::now();
    let done = call();
    let taken = begun.elapsed();
    if taken < LONGEST { Ok(done) } else { Err(format!("{what} takes {taken:?}")) }
}

impl Run {
    fn new(fill: Fill) -> Self {
        Self {
            disk: Arc::new(SimulatedDisk::new(fill.from)),
            fill,
            journal: Journal::default(),
            doubtful: Vec::new(),
            is_ended: false,
            random: StdRng::seed_from_u64(fill.segment_bytes),
            number: 0,
        }
    }

    fn key(&mut self) -> Vec<u8> {
        self.random.random_range(0..20_000_u32).to_be_bytes().to_vec()
    }

    fn put(&mut self, bytes: usize) -> Operation {
        let value = vec![self.random.random(); bytes];
        Operation::Put { table: TABLE.to_owned(), key: self.key(), value }
    }

    fn commit(&mut self, count: usize) -> Operation {
        let changed =
            (0..count).map(|_| ((TABLE.to_owned(), self.key()), Some(vec![self.random.random(); 300])));
        Operation::Commit { changed: changed.collect() }
    }

    /// What is done next: a change, or something else.
    fn next(&mut self, database: &Database) -> (String, Option<Operation>, Result<(), Error>) {
        self.number += 1;
        let number = self.number;
        let last = self.journal.now.keys().rfind(|name| *name != TABLE).cloned();
        let operation = match (number % 15, last) {
            (0 | 7, _) => self.put(700),
            (1 | 8, _) => self.commit(60),
            (2, _) => self.put(90_000),
            (4, _) => Operation::Create { table: format!("table {number}") },
            (5, Some(table)) if self.journal.now[&table].is_empty() => {
                let entries: BTreeMap<_, _> = (0..600).map(|_| (self.key(), vec![3; 250])).collect();
                Operation::Load { table, entries }
            }
            (6, _) => match self.journal.now[TABLE].keys().nth(number as usize).cloned() {
                Some(key) => Operation::Remove { table: TABLE.to_owned(), key },
                None => self.put(2500),
            },
            (10, Some(table)) if number.is_multiple_of(2) => Operation::Drop { table },
            (10, Some(table)) => Operation::Clear { table },
            (12, _) => self.put(2500),
            (other, _) => {
                let (what, done) = self.other(other, database);
                return (what.to_owned(), None, done);
            }
        };
        let done = match &operation {
            Operation::Commit { changed } => database.begin().and_then(|transaction| {
                put_all(&transaction, database, changed)?;
                transaction.commit()
            }),
            single => single.perform(database),
        };
        let what = format!("{operation:?}").chars().take(40).collect();
        (what, Some(operation), done)
    }

    /// What changes nothing.
    fn other(&mut self, which: u64, database: &Database) -> (&'static str, Result<(), Error>) {
        match which {
            3 | 13 => ("a checkpoint", database.checkpoint()),
            9 => {
                let name = format!("backup {}", self.number);
                let made = database.backup_in(self.disk.clone(), &name, BackupOptions::default());
                ("a backup", made.map(drop))
            }
            11 => ("compaction", database.compact(|_| true).map(drop)),
            14 => {
                let Operation::Commit { changed } = self.commit(40) else { return ("", Ok(())) };
                let undone = database.begin().and_then(|transaction| {
                    let put = put_all(&transaction, database, &changed);
                    transaction.rollback().and(put)
                });
                ("what is rolled back", undone)
            }
            _ => ("a sync", database.sync()),
        }
    }

    /// Takes a step; says why it was refused, if it was.
    fn step(&mut self, database: &Database) -> Result<Option<String>, String> {
        let begun = Instant::now();
        let (what, operation, done) = self.next(database);
        let taken = begun.elapsed();
        let at = |why: String| format!("{what}: {why}");
        if taken > LONGEST {
            return Err(at(format!("it takes {taken:?}")));
        }
        match (done, operation) {
            (Ok(()), operation) => {
                operation.into_iter().for_each(|done| self.journal.acknowledge(done, Durability::Synced));
                Ok(None)
            }
            (Err(error), operation) => {
                self.is_ended |= is_ended(&error).map_err(at)?;
                let before = self.journal.count();
                self.is_ended |= !self.journal.settle(operation.as_ref(), database).map_err(at)?;
                if self.is_ended && self.journal.count() == before {
                    self.doubtful.extend(operation);
                }
                Ok(Some(at(error.to_string())))
            }
        }
    }

    /// Whether a database that was opened holds what it should.
    fn check(&mut self, database: &Database, end: End) -> Result<(), String> {
        let doubtful = std::mem::take(&mut self.doubtful);
        for chosen in (0..1 << doubtful.len()).rev() {
            let mut with_some = self.journal.clone();
            let is_chosen = |number: usize| chosen >> number & 1 == 1;
            let some = doubtful.iter().enumerate().filter(|(number, _)| is_chosen(*number));
            some.for_each(|(_, operation)| with_some.attempt(operation.clone()));
            if with_some.clone().check_contents(database, end).is_ok() {
                self.journal = with_some;
                break;
            }
        }
        self.journal.check(database, end)
    }

    /// Opens the database on the full disk, and on one that is full from some operations later on. What it holds is right, and
    /// it can always be read.
    fn open_without_room(&mut self, end: End) -> Result<(), String> {
        let options = self.fill.options();
        for from in [1, 2, 4, 3 + self.fill.from % 40] {
            let at = |why: String| format!("without room from {from}: {why}");
            let disk = Arc::new(self.disk.kill());
            disk.fill_from(from, self.fill.overwriting);
            let reader = Database::open_in(disk.clone(), NAME, &options.clone().read_only(true));
            let seen = reader.and_then(|reader| contents(&reader));
            let seen = seen.map_err(|error| at(format!("it cannot be read: {error}")))?;
            let opened = soon("opening", || Database::open_in(disk.clone(), NAME, &options)).map_err(at)?;
            let database = match opened {
                Ok(database) => database,
                Err(error) => {
                    is_ended(&error).map_err(at)?;
                    self.check_left(&disk, end, &seen).map_err(at)?;
                    continue;
                }
            };
            if contents(&database).map_err(|error| at(format!("it cannot be read: {error}")))? != seen {
                return Err(at("a writer and a reader see different things".to_owned()));
            }
            for bytes in [10, 5000] {
                let put = self.put(bytes).perform(&database);
                put.map_or_else(|error| is_ended(&error).map(drop), |()| Ok(())).map_err(at)?;
            }
            let closed = soon("closing", || database.close()).map_err(at)?;
            closed.map_or_else(|error| is_ended(&error).map(drop), |()| Ok(())).map_err(at)?;
        }
        Ok(())
    }

    /// What a failed opening has left opens when there is room.
    fn check_left(&self, disk: &SimulatedDisk, end: End, seen: &Contents) -> Result<(), String> {
        let left = Arc::new(disk.kill());
        let database = Database::open_in(left, NAME, &self.fill.options());
        let database = database.map_err(|error| format!("then with room it does not open: {error}"))?;
        let found = contents(&database).map_err(|error| error.to_string())?;
        if found == *seen { Ok(()) } else { Err(format!("after {end:?} then it holds something else")) }
    }
}

fn put_all(
    transaction: &Transaction,
    database: &Database,
    changed: &crate::model::Changed,
) -> Result<(), Error> {
    changed.iter().try_for_each(|((table, key), value)| {
        let value = value.as_deref().unwrap_or_default();
        transaction.put(&database.table(table)?, key, value).map(drop)
    })
}

/// Whether the disk became full.
fn run(fill: Fill, then: Then) -> Result<bool, String> {
    let say = |error: Error| error.to_string();
    let mut run = Run::new(fill);
    let database = Database::create_in(run.disk.clone(), NAME, &fill.options()).map_err(say)?;
    let mut operations = vec![Operation::Create { table: TABLE.to_owned() }];
    operations.extend((0..200).map(|_| run.put(400)));
    for operation in operations {
        operation.perform(&database).map_err(say)?;
        run.journal.acknowledge(operation, Durability::Synced);
    }
    run.disk.fill_from(fill.from, fill.overwriting);
    let mut full_steps = 0;
    while run.number < STEPS.0 && full_steps < STEPS.1 && !run.is_ended {
        run.step(&database)?;
        full_steps += usize::from(run.disk.is_filled());
    }
    let is_filled = run.disk.is_filled();
    if run.is_ended {
        // Each call says so.
        let late = run.put(10);
        let refused = [database.sync(), late.perform(&database), database.checkpoint()];
        run.doubtful.push(late);
        for refused in refused {
            let error = refused.err().ok_or("the log has ended, and something is acknowledged")?;
            is_ended(&error)?;
        }
    }
    let (database, end) = match then {
        Then::Room if !run.is_ended => {
            run.disk.heal();
            (database, None)
        }
        Then::Room | Then::Close => {
            let closed = soon("closing", || database.close())?;
            let end = if closed.is_ok() { End::Closed } else { End::Killed };
            closed.map_or_else(|error| is_ended(&error).map(drop), |()| Ok(()))?;
            if then == Then::Close {
                run.open_without_room(end)?;
            }
            run.disk.heal();
            (Database::open_in(run.disk.clone(), NAME, &fill.options()).map_err(say)?, Some(end))
        }
        Then::Kill | Then::Crash => {
            let left = if then == Then::Kill { run.disk.kill() } else { run.disk.crash() };
            run.disk.fail_from(1);
            drop(database);
            run.disk = Arc::new(left);
            let end = if then == Then::Kill { End::Killed } else { End::PowerLoss };
            run.open_without_room(end)?;
            (Database::open_in(run.disk.clone(), NAME, &fill.options()).map_err(say)?, Some(end))
        }
    };
    run.is_ended = false;
    end.map_or(Ok(()), |end| run.check(&database, end))?;
    go_on(&mut run, &database)?;
    database.close().map_err(say)?;
    let database = Database::open_in(run.disk.clone(), NAME, &fill.options()).map_err(say)?;
    if database.recovery().is_some() {
        return Err("it was closed and is recovered".to_owned());
    }
    run.check(&database, End::Closed)?;
    Ok(is_filled)
}

/// All kinds of steps succeed when there is room. What was refused just before is tried again after a pause.
fn go_on(run: &mut Run, database: &Database) -> Result<(), String> {
    for _ in 0..30 {
        let begun = Instant::now();
        while let Some(refused) = run.step(database)? {
            if begun.elapsed() > LONGEST || run.is_ended {
                return Err(format!("with room: {refused}"));
            }
            sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

fn sweep(overwriting: bool, segment_bytes: u64) {
    let mut last = 1;
    while matches!(run(Fill { from: last, overwriting, segment_bytes }, Then::Room), Ok(true)) {
        last *= 2;
    }
    let froms: Vec<u64> = match number("VELLUM_FULL_FROM") {
        Some(most) => (1..=most.min(last)).collect(),
        None => (1..8).chain((8..=last).step_by(last as usize / 9 + 1)).chain([last]).collect(),
    };
    println!("up to {last} operations");
    run_all(&froms, |from| {
        for then in [Then::Room, Then::Close, Then::Kill, Then::Crash] {
            run(Fill { from, overwriting, segment_bytes }, then)
                .map_err(|why| format!("then {then:?}: {why}"))?;
        }
        Ok(())
    });
}

#[test]
fn growing() {
    sweep(false, 256 << 10);
}

#[test]
fn writing() {
    sweep(true, 256 << 10);
}

#[test]
fn growing_with_long_segments() {
    sweep(false, 16 << 20);
}
