//! Several threads change a database whose log is archived, while it is backed up and compacted. It crashes now and then.
//! A database restored to any place of the log holds of each thread exactly what that had committed by then.
//!
//! What each thread does is in `numbered`. How threads meet is not in the seed.

use crate::{
    for_seeds,
    model::contents,
    numbered::{Client, Life, end},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};
use vellum::{
    Backup, BackupError, BackupOptions, Database, Error, Lsn, Options, RestoreOptions, Result, Until,
};
use vellum_vm::{Directory, Faults, SimulatedDisk};

const NAME: &str = "data";
const CLIENTS: usize = 3;
/// Backups of one run.
const BACKUPS_MAX: usize = 5;

type Check<T = ()> = std::result::Result<T, String>;

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
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
    for_seeds(4, run);
}
