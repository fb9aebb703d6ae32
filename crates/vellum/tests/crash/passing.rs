//! Errors that pass: the disk fails once, or until a step is over, and is well then. A step that has failed has done nothing, or all of it
//! where it says that its outcome is unknown; a snapshot shows what it has shown; and the step is done when it is tried again.
//!
//! The steps are what other suites have little of: tables as a whole in transactions, loads, large values, heaps, compaction, backups with
//! increments, restoring and opening.
//!
//! `VELLUM_PASSING=1` lets each operation fail; usually every so many do.

use crate::{number, run_all};
use std::{
    collections::BTreeMap,
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};
use vellum::objects::{Array, Persistent, Ref, Text};
use vellum::{
    Backup, BackupOptions, Database, Error, ErrorKind, Options, RestoreOptions, Result, TableOptions,
    Transaction,
};
use vellum_vm::{FileOperation, SimulatedDisk};

const NAME: &str = "data";
/// How long a step may be refused after the disk is well.
const LONGEST: Duration = Duration::from_secs(5);

#[derive(Persistent, Clone, PartialEq, Debug)]
struct Item {
    number: u64,
    text: Text,
}

#[derive(Persistent, Clone, PartialEq, Debug, Default)]
struct All {
    items: Array<Ref<Item>>,
}

/// The entries of each table, and the objects of each heap.
type State = BTreeMap<String, Entries>;
type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

struct Place {
    disk: SimulatedDisk,
    backups: SimulatedDisk,
    /// `None` while it is closed and opened.
    database: Option<Database>,
    options: Options,
    snapshot: Option<(Transaction, State)>,
}

struct Step {
    name: &'static str,
    does: fn(&mut Place) -> Result<()>,
    /// The heap that it drops, which goes in several changes.
    drops: Option<&'static str>,
}

const fn step(name: &'static str, does: fn(&mut Place) -> Result<()>) -> Step {
    Step { name, does, drops: None }
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn value(number: u32, length: usize) -> Vec<u8> {
    vec![number as u8; length]
}

const STEPS: [Step; 20] = [
    step("create tables", |place| {
        place.run(|tx| {
            ["a", "b", "c"].into_iter().try_for_each(|name| tx.create_table(name).map(drop))?;
            tx.create_table_with("plain", TableOptions::default().versions(false)).map(drop)
        })
    }),
    step("fill them", |place| {
        place.run(|tx| {
            for name in ["a", "b", "c"] {
                let table = tx.table(name)?;
                (0..200).try_for_each(|number| tx.put(&table, key(number), value(number, 200)).map(drop))?;
            }
            Ok(())
        })
    }),
    step("change tables as a whole", |place| {
        place.run(|tx| {
            let new = tx.create_table("new")?;
            let length = |number| if number % 97 == 0 { 9000 } else { 60 };
            tx.bulk_load(&new, (0..400).map(|number| (key(number), value(number, length(number)))))?;
            let savepoint = tx.savepoint();
            tx.rename_table("new", "newer")?;
            tx.drop_table("b")?;
            let again = tx.create_table("b")?;
            tx.put(&again, "x", "y")?;
            tx.clear_table("a")?;
            tx.rollback_to(savepoint)?;
            let table = tx.table("a")?;
            tx.put(&table, key(3), value(9, 3000))?;
            tx.clear_table("c")?;
            let table = tx.table("c")?;
            tx.put(&table, "x", "y")?;
            tx.rename_table("a", "between")?;
            tx.rename_table("b", "a")?;
            tx.rename_table("between", "b")
        })
    }),
    step("clear a table", |place| place.run(|tx| tx.clear_table("a"))),
    step("load a table", |place| {
        let length = |number| if number % 150 == 0 { 20_000 } else { 100 };
        let entries = (0..900).map(|number| (key(number), value(number, length(number))));
        place.database().table("a")?.bulk_load(entries).map(drop)
    }),
    step("remove a range", |place| {
        place.run(|tx| {
            let table = tx.table("a")?;
            tx.remove_range(&table, key(200)..key(700)).map(drop)
        })
    }),
    step("compact", |place| place.database().compact(|_| true).map(drop)),
    step("back up", |place| place.back_up("full", BackupOptions::default())),
    step("large values", |place| {
        place.run(|tx| {
            let table = tx.table("a")?;
            for number in 0..3 {
                tx.put_from(&table, key(2000 + number), 30_000, &mut &value(number, 30_000)[..])?;
            }
            tx.update_with(&table, key(2000), |old| old.map(|old| old[..10_000].to_vec()))?;
            tx.pop_first(&table)?;
            tx.pop_last(&table)?;
            tx.modify(&table, key(151), |bytes| bytes[50] = 77).map(drop)
        })
    }),
    step("back up what has changed", |place| {
        let full = Backup::open_in(&place.backups, "full")?;
        place.back_up("increment", BackupOptions::default().since(&full))
    }),
    step("restore", |place| {
        let chain = [Backup::open_in(&place.backups, "full")?, Backup::open_in(&place.backups, "increment")?];
        let disk = Arc::new(SimulatedDisk::new(99));
        Backup::restore_in(&chain, disk.clone(), NAME, &place.options, RestoreOptions::default())?;
        let restored = Database::open_in(disk, NAME, &place.options)?;
        assert_eq!(problems(&restored), Ok(()));
        assert_eq!(state(&restored)?, state(place.database())?);
        Ok(())
    }),
    step("create a heap", |place| place.database().create_heap("heap").map(drop)),
    step("fill the heap", |place| {
        place.database().heap("heap")?.change(|change| {
            let mut all = All::default();
            for number in 0..20 {
                let length = if number % 7 == 0 { 5000 } else { 300 };
                all.items.push(change.allocate(&Item { number, text: "x".repeat(length).into() })?);
            }
            let all = change.allocate(&all)?;
            change.set_root(Some(all))
        })
    }),
    step("change the heap", |place| {
        let heap = place.database().heap("heap")?;
        let root = heap.root::<All>()?.expect("it was set");
        heap.change(|change| {
            let mut all: All = change.get(root)?;
            for at in 0..3 {
                let item = all.items.remove(at);
                change.delete(item)?;
            }
            for item in &all.items {
                change.update(*item, |item: &mut Item| {
                    item.number += 100;
                    if item.number.is_multiple_of(3) {
                        item.text = "y".repeat(6000).into();
                    }
                })?;
            }
            change.set(root, &all)
        })
    }),
    step("put into a plain table", |place| {
        place.database().table("plain")?.put(key(1), value(1, 40_000)).map(drop)
    }),
    step("drop a table, and create it", |place| {
        place.run(|tx| {
            tx.drop_table("new")?;
            let table = tx.create_table("new")?;
            (0..100).try_for_each(|number| tx.put(&table, key(number), value(number, 500)).map(drop))
        })
    }),
    Step { name: "drop the heap", does: |place| place.database().drop_heap("heap"), drops: Some("heap") },
    step("compact again", |place| place.database().compact(|_| true).map(drop)),
    step("checkpoint", |place| place.database().checkpoint()),
    step("close and open", |place| {
        place.snapshot = None;
        if let Some(database) = place.database.take() {
            database.close()?;
        }
        place.database = Some(Database::open_in(Arc::new(place.disk.clone()), NAME, &place.options)?);
        Ok(())
    }),
];

/// Everything that is in a database.
fn state(database: &Database) -> Result<State> {
    let mut state = State::new();
    for table in database.tables()? {
        let entries = database.table_as_bytes(&table.name)?.range(..)?.collect::<Result<_>>()?;
        state.insert(table.name, entries);
    }
    for name in database.heaps()? {
        let heap = database.heap(&name)?;
        let mut objects = Entries::new();
        if let Some(root) = heap.root::<All>()? {
            for item in &heap.get(root)?.items {
                let item = heap.get(*item)?;
                objects.insert(item.number.to_be_bytes().to_vec(), item.text.as_bytes().to_vec());
            }
        }
        state.insert(format!("heap {name}"), objects);
    }
    Ok(state)
}

fn problems(database: &Database) -> std::result::Result<(), String> {
    let report = database.verify(|_| {});
    if report.is_clean() { Ok(()) } else { Err(format!("{:?}", report.problems)) }
}

fn is_unknown(error: &Error) -> bool {
    error.kind() == ErrorKind::OutcomeUnknown
}

impl Place {
    fn new() -> Self {
        let options = Options::default()
            .pool_bytes(256 << 10)
            .capacity_bytes(1 << 30)
            .log_segment_bytes(64 << 10)
            .log_buffer_bytes(4 << 20)
            .background_eviction(false)
            .background_checkpoints(false)
            .huge_pages(false);
        let disk = SimulatedDisk::new(1);
        let database = Database::create_in(Arc::new(disk.clone()), NAME, &options).unwrap();
        let backups = SimulatedDisk::new(2);
        Self { disk, backups, database: Some(database), options, snapshot: None }
    }

    fn database(&self) -> &Database {
        self.database.as_ref().expect("it is open between steps")
    }

    fn run(&self, what: impl FnMut(&Transaction) -> Result<()>) -> Result<()> {
        self.database().run(what)
    }

    fn back_up(&self, name: &str, options: BackupOptions) -> Result<()> {
        self.database().backup_in(Arc::new(self.backups.clone()), name, options).map(drop)
    }

    /// What a program does that is told to open the database anew.
    fn open_anew(&mut self, is_crash: bool) -> std::result::Result<(), String> {
        self.snapshot = None;
        let disk = if is_crash { self.disk.crash() } else { self.disk.kill() };
        self.database = None;
        disk.heal();
        self.disk = disk;
        let opened = Database::open_in(Arc::new(self.disk.clone()), NAME, &self.options);
        self.database = Some(opened.map_err(|error| format!("opening anew: {error:?}"))?);
        Ok(())
    }

    /// Compares what is there with what one of these steps should have left.
    fn must_be(&self, step: &Step, states: &[&State]) -> std::result::Result<(), String> {
        let without = |state: &State| {
            let mut state = state.clone();
            step.drops.map(|heap| state.remove(&format!("heap {heap}")));
            state
        };
        problems(self.database())?;
        let now = without(&state(self.database()).map_err(|error| format!("reading: {error:?}"))?);
        if let Some((snapshot, seen)) = &self.snapshot {
            // Neither heaps nor plain tables have versions.
            for (name, entries) in
                seen.iter().filter(|(name, _)| *name != "plain" && !name.starts_with("heap "))
            {
                let read = || snapshot.range(&snapshot.table(name)?, ..)?.collect::<Result<Entries>>();
                let read = read().map_err(|error| format!("the snapshot of {name}: {error:?}"))?;
                if read != *entries {
                    return Err(format!("the snapshot of {name} has changed"));
                }
            }
        }
        if states.iter().any(|state| without(state) == now) {
            Ok(())
        } else {
            Err("it is something else".to_owned())
        }
    }

    /// Does a step that has failed, until it is done.
    fn repeat(&mut self, step: &Step) -> std::result::Result<(), String> {
        let begun = Instant::now();
        loop {
            match (step.does)(self) {
                Ok(()) => return Ok(()),
                // The attempt that failed has dropped it.
                Err(error) if step.drops.is_some() && error.kind() == ErrorKind::NotFound => return Ok(()),
                Err(error) if is_unknown(&error) || begun.elapsed() > LONGEST => {
                    return Err(format!("tried again: {error:?}"));
                }
                Err(_) => sleep(Duration::from_millis(50)),
            }
        }
    }
}

/// What fails.
#[derive(Clone, Copy)]
struct Failure {
    operation: Option<FileOperation>,
    /// Whether all fail from that operation on, until the step is over.
    lasts: bool,
    has_snapshots: bool,
}

impl Failure {
    fn plan(self, disk: &SimulatedDisk, at: u64) {
        match (self.operation, self.lasts) {
            (Some(operation), false) => disk.fail_nth_of(operation, at),
            (None, false) => disk.fail_nth(at),
            (Some(operation), true) => disk.fail_from_of(operation, at),
            (None, true) => disk.fail_from(at),
        }
    }

    /// Runs all steps, of which the operation of this number fails.
    fn run(self, at: u64, states: &[State]) -> std::result::Result<(), String> {
        let mut place = Place::new();
        self.plan(&place.disk, at);
        for (number, step) in STEPS.iter().enumerate() {
            let (before, after) = (&states[number], &states[number + 1]);
            if self.has_snapshots && number % 5 == 2 {
                place.snapshot = place.database().begin().ok().map(|snapshot| (snapshot, before.clone()));
            }
            if let Err(error) = (step.does)(&mut place) {
                self.recover(&mut place, step, &error, at, [before, after])
                    .map_err(|why| format!("{}: {error}: {why}", step.name))?;
            }
        }
        place.disk.heal();
        let end = STEPS.len();
        place.must_be(&STEPS[end - 1], &[&states[end]])?;
        place.open_anew(true)?;
        place
            .must_be(&STEPS[end - 1], &[&states[end]])
            .map_err(|why| format!("after a crash at the end: {why}"))
    }

    /// A step has failed: it has done nothing, or all if that is unknown, and can be done now.
    fn recover(
        self,
        place: &mut Place,
        step: &Step,
        error: &Error,
        at: u64,
        [before, after]: [&State; 2],
    ) -> std::result::Result<(), String> {
        if !matches!(error.kind(), ErrorKind::Io | ErrorKind::OutcomeUnknown | ErrorKind::Busy) {
            return Err(format!("it is of the kind {:?}", error.kind()));
        }
        place.disk.heal();
        if place.database.is_none() || is_unknown(error) || self.lasts && at.is_multiple_of(3) {
            place.open_anew(at.is_multiple_of(2))?;
        }
        let possible: &[&State] = if is_unknown(error) { &[before, after] } else { &[before] };
        place.must_be(step, possible)?;
        let is_done = before != after && place.must_be(step, &[after]).is_ok() && step.drops.is_none();
        if !is_done && place.repeat(step).is_err() {
            // An error that does not pass says to open the database anew.
            place.open_anew(true)?;
            place.must_be(step, &[before, after])?;
            if before == after || place.must_be(step, &[after]).is_err() {
                place.repeat(step)?;
            }
        }
        place.must_be(step, &[after]).map_err(|why| format!("after it was tried again: {why}"))
    }

    fn sweep(self) {
        let mut place = Place::new();
        let mut states = vec![state(place.database()).unwrap()];
        for step in &STEPS {
            (step.does)(&mut place).unwrap();
            assert_eq!(problems(place.database()), Ok(()), "{}", step.name);
            states.push(state(place.database()).unwrap());
        }
        let counts = place.disk.counts();
        let total = self.operation.map_or(counts.total(), |operation| counts.of(operation));
        let every = number("VELLUM_PASSING").unwrap_or(total / 12 + 1);
        // The run past the last one meets no failure.
        let numbers: Vec<u64> = (1..=total + every).step_by(every as usize).collect();
        run_all(&numbers, |at| self.run(at, &states));
    }
}

fn once(operation: FileOperation) {
    Failure { operation: Some(operation), lasts: false, has_snapshots: true }.sweep();
}

#[test]
fn reads() {
    once(FileOperation::Read);
}

#[test]
fn writes() {
    once(FileOperation::Write);
}

#[test]
fn syncs() {
    once(FileOperation::Sync);
}

#[test]
fn sizes() {
    once(FileOperation::Resize);
}

#[test]
fn names() {
    once(FileOperation::Name);
}

#[test]
fn reads_until_the_step_is_over() {
    Failure { operation: Some(FileOperation::Read), lasts: true, has_snapshots: true }.sweep();
}

#[test]
fn everything_until_the_step_is_over() {
    Failure { operation: None, lasts: true, has_snapshots: false }.sweep();
}
