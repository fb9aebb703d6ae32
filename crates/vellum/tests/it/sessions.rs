//! Databases that are opened again and again, each time with other options, and chains of backups of them.
//!
//! `VELLUM_FIRST_SEED` and `VELLUM_SEEDS` choose the seeds.

use crate::support::{assert_clean, options};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{collections::BTreeMap, env, sync::Arc};
use vellum::{Backup, BackupOptions, Database, Options, RestoreOptions, Result, TableOptions};
use vellum_vm::SimulatedDisk;

type State = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

/// The names of backups, each of which but the first is based on the one before, and what the last of them holds.
type Chain = (Vec<String>, State);

fn state(database: &Database) -> State {
    let entries = |name: &str| database.table_as_bytes(name)?.range(..)?.collect::<Result<_>>();
    let tables = database.tables().unwrap().into_iter().map(|table| table.name);
    tables
        .map(|name| (name.clone(), entries(&name).unwrap_or_else(|error| panic!("{name}: {error}"))))
        .collect()
}

struct Sessions {
    random: StdRng,
    seed: u64,
    disk: SimulatedDisk,
    backups: SimulatedDisk,
    archive: SimulatedDisk,
    state: State,
    chains: Vec<Chain>,
    exists: bool,
    /// It was not closed, so it needs its log.
    needs_log: bool,
    /// How many backups were begun.
    made: u64,
}

impl Sessions {
    fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            seed,
            disk: SimulatedDisk::new(seed),
            backups: SimulatedDisk::new(seed + 1),
            archive: SimulatedDisk::new(seed + 2),
            state: State::new(),
            chains: Vec::new(),
            exists: false,
            needs_log: false,
            made: 0,
        }
    }

    fn one_of<const N: usize>(&mut self, of: [u64; N]) -> u64 {
        of[self.random.random_range(0..N)]
    }

    fn sizes(&mut self) -> Options {
        options()
            .pool_bytes(self.one_of([128 << 10, 256 << 10, 1 << 20, 8 << 20]))
            .log_segment_bytes(self.one_of([8 << 10, 64 << 10, 1 << 20]))
            .checkpoint_log_bytes(self.one_of([16 << 10, 1 << 20, u64::MAX]))
            .background_checkpoints(self.random.random_bool(0.3))
            .background_eviction(self.random.random_bool(0.3))
    }

    /// Opens the database, does this and that, and closes it or lets it crash.
    fn session(&mut self, number: u64) {
        let what = format!("seed {}, session {number}", self.seed);
        let has_log = self.needs_log || self.random.random_bool(0.65);
        let is_read_only = self.exists && self.random.random_bool(0.15);
        let mut options = self.sizes().log(has_log).read_only(is_read_only).end_log_archive(true);
        let is_archived = has_log && self.random.random_bool(0.3);
        println!("{what}: log {has_log}, archived {is_archived}, read-only {is_read_only}");
        if is_archived {
            options = options.log_archive_in(Arc::new(self.archive.clone()));
        } else if !has_log {
            // After changes without a log it counts as another database.
            self.archive = SimulatedDisk::new(self.seed * 100 + number);
        }
        options = options.log_whole_values(self.random.random_bool(0.2));
        let directory = Arc::new(self.disk.clone());
        let opened = match self.exists {
            true => Database::open_in(directory, "data", &options),
            false => Database::create_in(directory, "data", &options),
        };
        let database = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
        self.exists = true;
        assert!(state(&database) == self.state, "{what}: it does not hold what it did");
        let changes = if is_read_only { 0 } else { self.random.random_range(0..30) };
        for _ in 0..changes {
            if self.random.random_bool(0.1) {
                self.back_up(&database);
            }
            self.change(&database).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        if self.random.random_bool(0.4) {
            self.back_up(&database);
        }
        self.state = state(&database);
        if self.random.random_bool(0.3) {
            assert_clean(&database);
        }
        if has_log && !is_read_only && self.random.random_bool(0.4) {
            let is_crash = self.random.random();
            println!("{what}: it ends by a {}", if is_crash { "crash" } else { "kill" });
            // The database that is dropped below goes on with the disks as they were.
            for disk in [&mut self.disk, &mut self.archive] {
                *disk = if is_crash { disk.crash() } else { disk.kill() };
            }
            self.needs_log = true;
        } else {
            database.close().unwrap_or_else(|error| panic!("{what}: {error}"));
            self.needs_log &= is_read_only;
        }
    }

    /// Makes a full backup, or an increment of any that there is. Histories that have parted are refused, and files that are not of one moment.
    fn back_up(&mut self, database: &Database) {
        self.made += 1;
        let name = format!("backup {}", self.made);
        let is_increment = !self.chains.is_empty() && self.random.random_bool(0.75);
        let mut names = Vec::new();
        if is_increment {
            let (former, _) = &self.chains[self.random.random_range(0..self.chains.len())];
            names = former.clone();
        }
        let former = names.last().map(|former| Backup::open_in(&self.backups, former).unwrap());
        let how = BackupOptions::default();
        let how = if let Some(former) = &former { how.since(former) } else { how };
        match database.backup_in(Arc::new(self.backups.clone()), &name, how) {
            Ok(_) => {
                names.push(name);
                self.chains.push((names, state(database)));
            }
            Err(error) => {
                let text = error.to_string();
                let reasons = ["leave --since out", "open it for writing and with a log"];
                assert!(reasons.iter().any(|reason| text.contains(reason)), "{name}: {text}");
            }
        }
    }

    fn value(&mut self) -> Vec<u8> {
        let length = self.one_of([0, 1, 30, 200, 1024, 1025, 4000, 4096, 9000, 40_000]);
        vec![self.random.random(); length as usize]
    }

    fn key(&mut self) -> [u8; 4] {
        self.random.random_range(0..2000_u32).to_be_bytes()
    }

    fn change(&mut self, database: &Database) -> Result<()> {
        let tables = database.tables()?;
        if tables.is_empty() {
            return database.create_table("first").map(drop);
        }
        let chosen = &tables[self.random.random_range(0..tables.len())];
        let (name, new) = (chosen.name.as_str(), format!("table {}", self.random.random_range(0..6)));
        let is_new = tables.iter().all(|table| table.name != new);
        let table = database.table(name)?;
        match self.random.random_range(0..12) {
            0 if is_new => {
                let options = TableOptions::default().versions(self.random.random_bool(0.7));
                database.create_table_with(new.as_str(), options)?;
            }
            1 if is_new => database.rename_table(name, &new)?,
            2 if tables.len() > 2 => {
                drop(table);
                database.drop_table(name)?;
            }
            3 => database.run(|transaction| transaction.clear_table(name))?,
            4 if table.first()?.is_none() => {
                let value = |number: u32| vec![number as u8; if number % 211 == 7 { 9000 } else { 60 }];
                let many = self.random.random_range(1..2000_u32);
                table.bulk_load((0..many).map(|number| (number.to_be_bytes(), value(number))))?;
            }
            5 => {
                let (from, many) = (self.random.random_range(0..1500_u32), self.random.random_range(0..900));
                table.remove_range(from.to_be_bytes()..(from + many).to_be_bytes())?;
            }
            6 => drop(database.compact(|_| true)?),
            7 if database.log_state().is_some() => database.checkpoint()?,
            8 | 9 if !chosen.is_plain => {
                let transaction = database.begin()?;
                for _ in 0..self.random.random_range(1..60) {
                    if self.random.random_bool(0.3) {
                        transaction.remove(&table, self.key())?;
                    } else {
                        transaction.put(&table, self.key(), self.value())?;
                    }
                }
                let savepoint = transaction.savepoint();
                for _ in 0..self.random.random_range(1..60) {
                    transaction.put(&table, self.key(), self.value())?;
                }
                if self.random.random() {
                    transaction.rollback_to(savepoint)?;
                }
                if self.random.random_bool(0.8) { transaction.commit()? } else { transaction.rollback()? }
            }
            _ => {
                for _ in 0..self.random.random_range(1..40) {
                    table.put(self.key(), self.value())?;
                }
            }
        }
        Ok(())
    }

    /// Restores each chain of backups, and compares it with what the database held.
    fn restore(&mut self) {
        for (names, expected) in std::mem::take(&mut self.chains) {
            let what = format!("seed {}, {names:?}", self.seed);
            let open = |name: &String| Backup::open_in(&self.backups, name).unwrap();
            let backups: Vec<_> = names.iter().map(open).collect();
            let (target, options) = (Arc::new(SimulatedDisk::new(7)), self.sizes());
            let how = RestoreOptions::default();
            Backup::restore_in(&backups, target.clone(), "restored", &options, how)
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            let database = Database::open_in(target, "restored", &options).unwrap();
            assert!(state(&database) == expected, "{what}: it holds something else");
            assert_clean(&database);
        }
    }
}

#[test]
fn what_is_there_survives_each_change_of_options_and_each_backup_holds_what_was_there() {
    let number = |name: &str| env::var(name).ok().and_then(|number| number.parse().ok());
    let first: u64 = number("VELLUM_FIRST_SEED").unwrap_or(0);
    let mut restored = 0;
    for seed in first..first + number("VELLUM_SEEDS").unwrap_or(8) {
        let mut sessions = Sessions::new(seed);
        (0..14).for_each(|number| sessions.session(number));
        restored += sessions.chains.iter().filter(|(names, _)| names.len() > 1).count();
        sessions.restore();
    }
    assert!(restored > 0, "no increment was restored");
}
