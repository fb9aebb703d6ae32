//! One thread, a few lives of one database, on a disk that fails at any operation.

use crate::{
    for_seeds,
    life::{End, Journal},
    model::Operation,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::sync::Arc;
use vellum::{Database, Durability, Options};
use vellum_vm::{CrashModel, Directory, Faults, FileOperation, SimulatedDisk};

const NAME: &str = "data";

/// Options that make everything happen often, and nothing at another time than in the run before.
pub fn options(random: &mut StdRng) -> Options {
    let segment_bytes = [64 << 10, 256 << 10, 1 << 20, 1 << 20][random.random_range(0..4)];
    let durability = [Durability::Synced, Durability::Buffered, Durability::Deferred];
    Options::default()
        .pool_bytes([256 << 10, 512 << 10, 1 << 20][random.random_range(0..3)])
        .capacity_bytes(256 << 20)
        .log_segment_bytes(segment_bytes)
        .log_buffer_bytes(4 << 20)
        .durability(durability[[0, 0, 1, 2][random.random_range(0..4)]])
        .background_eviction(false)
        .background_checkpoints(false)
        .huge_pages(false)
}

/// A number below `most`, and as often below a tenth of it.
fn any_size(random: &mut StdRng, most: f64) -> u64 {
    random.random_range(0.0..most.ln()).exp() as u64
}

struct Run {
    random: StdRng,
    disk: SimulatedDisk,
    options: Options,
    durability: Durability,
    journal: Journal,
    is_created: bool,
    end: End,
    /// What has happened, for people.
    story: Vec<String>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let durability = [Durability::Synced, Durability::Buffered, Durability::Deferred];
        let durability = durability[[0, 0, 1, 2][random.random_range(0..4)]];
        let options = options(&mut random).durability(durability);
        let (disk, journal) = (SimulatedDisk::new(seed), Journal::default());
        Self {
            random,
            disk,
            options,
            durability,
            journal,
            is_created: false,
            end: End::Closed,
            story: Vec::new(),
        }
    }

    fn tell(&mut self, what: impl std::fmt::Display) {
        let operations = self.disk.counts().total();
        self.story.push(format!("{operations}: {what}"));
    }

    /// The disk as a crash leaves it, whatever handles there still are.
    fn crash(&mut self, database: Option<Database>, has_failed: bool) {
        let kills = !has_failed && self.random.random_ratio(1, 3);
        let survivor = if kills { self.disk.crash_with(CrashModel::KeepAll) } else { self.disk.crash() };
        self.end = if kills { End::Killed } else { End::PowerLoss };
        self.tell(format!("{:?}, {}", self.end, self.journal));
        self.disk.fail_from(1);
        drop(database);
        self.disk = survivor;
    }

    /// Opens the database, perhaps after a few attempts at which the disk fails.
    fn open(&mut self) -> Result<Database, String> {
        for _ in 0..3 {
            if self.random.random_ratio(2, 5) {
                self.disk.fail_from(1 + any_size(&mut self.random, 3000.0));
                match self.try_open() {
                    Ok(database) => {
                        self.disk.heal();
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
        self.disk.heal();
        self.try_open().map_err(|error| format!("it does not open after {:?}: {error}", self.end))
    }

    fn crash_again(&mut self) {
        let before = self.end;
        self.crash(None, true);
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
        let random = &mut self.random;
        match random.random_range(0..10) {
            0..5 => self.disk.fail_from(1 + any_size(random, 3000.0)),
            5 => self.disk.fail_nth_of(FileOperation::Write, 1 + any_size(random, 500.0)),
            6 => self.disk.fail_nth_of(FileOperation::Sync, 1 + any_size(random, 100.0)),
            7 => self.disk.fail_nth_of(FileOperation::Read, 1 + any_size(random, 100.0)),
            8 => {
                let capacity_bytes = Some(random.random_range(1..64) << 15);
                self.disk.set_faults(Faults { capacity_bytes, ..Faults::default() });
            }
            _ => {}
        }
    }

    /// Works until the disk fails for good, or enough has been done. Says whether something has failed.
    fn work(&mut self, database: &Database) -> Result<bool, String> {
        let mut has_failed = false;
        for _ in 0..1 + any_size(&mut self.random, 300.0) {
            match self.random.random_range(0..60) {
                number @ 0..2 => {
                    let outcome = if number == 0 { database.checkpoint() } else { database.sync() };
                    match outcome {
                        Ok(()) => self.journal.sync(),
                        Err(error) => {
                            self.tell(format!("checkpoint or sync {number}: {error}"));
                            has_failed = true;
                        }
                    }
                }
                _ => {
                    let operation = Operation::draw(&self.journal.now, &mut self.random);
                    match operation.perform(database) {
                        Ok(()) => self.journal.acknowledge(operation, self.durability),
                        Err(error) => {
                            self.tell(format!("{operation:.60?}: {error}"));
                            has_failed = true;
                            // Reading must not fail any more.
                            let goes_on = self.random.random_ratio(1, 2);
                            if !goes_on {
                                self.journal.attempt(operation);
                                return Ok(true);
                            }
                            self.disk.heal();
                            if !self.journal.settle(&operation, database)? {
                                return Ok(true);
                            }
                        }
                    }
                }
            }
        }
        Ok(has_failed)
    }

    fn live(&mut self) -> Result<(), String> {
        let database = self.open()?;
        self.journal.check(&database, self.end)?;
        self.tell(format!("opened, {:?}", database.recovery()));
        self.draw_faults();
        let has_failed = self.work(&database)?;
        if has_failed {
            self.journal.distrust();
        }
        if !has_failed && self.random.random_ratio(1, 3) {
            match database.close() {
                Ok(()) => {
                    self.journal.sync();
                    self.end = End::Closed;
                    self.disk.heal();
                }
                Err(_) => self.crash(None, true),
            }
        } else {
            self.crash(Some(database), has_failed);
        }
        Ok(())
    }
}

fn run(seed: u64) -> Result<(), String> {
    let mut run = Run::new(seed);
    let outcome = all_lives(&mut run);
    outcome.map_err(|why| format!("{why}\n  {:?}\n  {}", run.durability, run.story.join("\n  ")))
}

fn all_lives(run: &mut Run) -> Result<(), String> {
    for _ in 0..run.random.random_range(2..6) {
        run.live()?;
    }
    // Nothing fails any more, so everything goes well.
    run.disk.heal();
    let database = run.try_open().map_err(|error| format!("it does not open in the end: {error}"))?;
    run.journal.check(&database, run.end)?;
    for _ in 0..20 {
        let operation = Operation::draw(&run.journal.now, &mut run.random);
        operation.perform(&database).map_err(|error| format!("in the end: {error}"))?;
        run.journal.acknowledge(operation, run.durability);
    }
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
    for_seeds(200, run);
}
