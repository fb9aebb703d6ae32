//! Histories that fork: a database, copies of its files that go on by themselves, and databases restored from its backups, with
//! its archive and its log. A feed's position is accepted by the databases that have the state at it, and by no other. What is
//! restored is what one of the histories had.
//!
//! Each commit of a history has a number of its own, which is in its records, so that contents tell the history.

mod feeds;
mod history;
mod restoring;

use crate::for_seeds;
use history::{Check, Fact, History, contents, told};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::sync::Arc;
use vellum::{ChangesFrom, ChangesPosition, Database, Lsn, Options};
use vellum_vm::SimulatedDisk;

const NAME: &str = "data";
/// How many databases there are at a time.
const DATABASES_MAX: usize = 4;

/// One of the databases.
struct Branch {
    name: usize,
    disk: SimulatedDisk,
    archive: Option<SimulatedDisk>,
    /// How many facts of its history came before its archive.
    archived_from: usize,
    segment_bytes: u64,
    history: History,
    /// The database, while it is open.
    database: Option<Database>,
    /// What it is, for people.
    origin: String,
    /// Whether it was changed without a log: no increment builds on a backup from before that.
    forgets: bool,
    /// The numbers of the backups of it, and of what it was a copy of before.
    backups: Vec<usize>,
    /// Where the log ended that it was restored from. Of what came before, the database knows no life.
    restored_end: Option<Lsn>,
    /// Which database it is to backups: one that was restored, or changed without a log, is another one.
    identity: usize,
}

/// A position that a feed has told.
struct Position {
    position: ChangesPosition,
    /// The commits before it.
    before: Vec<history::Commit>,
    /// Who told it, for people.
    origin: String,
}

struct Run {
    random: StdRng,
    backups: SimulatedDisk,
    taken: Vec<restoring::Taken>,
    positions: Vec<Position>,
    branches: Vec<Branch>,
    /// The number of the next commit.
    next: u64,
    names: usize,
}

impl Run {
    fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            backups: SimulatedDisk::new(seed),
            taken: Vec::new(),
            positions: Vec::new(),
            branches: Vec::new(),
            next: 1,
            names: 0,
        }
    }

    fn name(&mut self) -> usize {
        self.names += 1;
        self.names
    }

    /// Opens a branch, and compares what is in it with its history.
    fn open(&mut self, branch: &mut Branch) -> Check {
        if self.random.random_ratio(1, 5) {
            branch.segment_bytes = [16 << 10, 32 << 10, 64 << 10][self.random.random_range(0..3)];
        }
        let opened = Database::open_in(Arc::new(branch.disk.clone()), NAME, &branch.options());
        branch.database = Some(opened.map_err(|error| format!("{}: {error}", branch.name))?);
        branch.compare()?;
        if self.random.random() {
            self.note_end(branch)?;
        }
        Ok(())
    }

    /// Ends the session: the database is closed, or killed, or the power fails.
    fn end(&mut self, branch: &mut Branch) -> Check {
        let Some(database) = branch.database.take() else { return Ok(()) };
        if self.random.random() {
            return database.close().map_err(told);
        }
        let is_killed = self.random.random();
        let left = |disk: &SimulatedDisk| {
            let left = if is_killed { disk.kill() } else { disk.crash() };
            left.heal();
            left
        };
        // What is dropped reaches nothing any more.
        branch.disk.fail_from(1);
        branch.archive.iter().for_each(|archive| archive.fail_from(1));
        let (disk, archive) = (left(&branch.disk), branch.archive.as_ref().map(left));
        drop(database);
        (branch.disk, branch.archive) = (disk, archive);
        Ok(())
    }

    /// A copy of the files, which goes on by itself, with a copy of the archive or without one.
    fn copy(&mut self, branch: &Branch) -> Check<Branch> {
        if let Some(database) = branch.database.as_ref().filter(|_| branch.archive.is_some()) {
            database.archive_log().map_err(told)?;
        }
        let archive = branch.archive.as_ref().filter(|_| self.random.random()).map(SimulatedDisk::kill);
        let archived_from = if archive.is_some() { branch.archived_from } else { usize::MAX };
        let disk = if self.random.random() { branch.disk.kill() } else { branch.disk.crash() };
        Ok(Branch {
            name: self.name(),
            disk,
            archive,
            archived_from,
            segment_bytes: branch.segment_bytes,
            history: branch.history.clone(),
            database: None,
            origin: format!("copy of {} [{}]", branch.name, branch.origin),
            forgets: branch.forgets,
            backups: branch.backups.clone(),
            restored_end: branch.restored_end,
            identity: branch.identity,
        })
    }

    /// A session without a log, in which something is changed or not.
    fn without_log(&mut self, branch: &mut Branch) -> Check {
        let Some(database) = branch.database.take() else { return Ok(()) };
        database.close().map_err(told)?;
        let archive = branch.archive.take();
        let options = branch.options().log(false);
        let database = Database::open_in(Arc::new(branch.disk.clone()), NAME, &options).map_err(told)?;
        if self.random.random() {
            branch.archive = archive;
            return database.close().map_err(told);
        }
        let (id, row) = (self.next, branch.history.records());
        self.next += 1;
        let table = database.table("log").or_else(|_| database.create_table("log")).map_err(told)?;
        table.put(row.to_be_bytes(), id.to_le_bytes()).map_err(told)?;
        drop(table);
        database.close().map_err(told)?;
        branch.history.push(Fact::commit(id, 1, None));
        (branch.forgets, branch.identity, branch.archived_from) = (true, self.name(), usize::MAX);
        branch.restored_end = None;
        if self.random.random() {
            branch.archive = Some(SimulatedDisk::new(self.names as u64 + 5000));
            branch.archived_from = branch.history.len();
        }
        Ok(())
    }

    fn step(&mut self) -> Check {
        let at = self.random.random_range(0..self.branches.len());
        let mut branch = self.branches.swap_remove(at);
        let is_room = self.branches.len() + 1 < DATABASES_MAX;
        let Some(database) = &branch.database else {
            if is_room && self.random.random_ratio(1, 5) {
                let copy = self.copy(&branch)?;
                self.branches.push(copy);
            }
            self.open(&mut branch)?;
            self.follow_all(&branch)?;
            self.branches.push(branch);
            return Ok(());
        };
        match self.random.random_range(0..24) {
            0..9 => {
                let count = self.random.random_range(1..40);
                self.commit(&mut branch, count)?;
            }
            9..12 => self.end(&mut branch)?,
            12 => self.follow_all(&branch)?,
            13 => database.checkpoint().map_err(told)?,
            14 | 15 => self.back_up(&mut branch)?,
            16 if is_room => {
                let copy = self.copy(&branch)?;
                self.branches.push(copy);
            }
            17..19 if is_room => {
                let restored = self.restore(&branch)?;
                self.branches.extend(restored);
            }
            // It is lost.
            19 if !self.branches.is_empty() => {
                branch.disk.fail_from(1);
                branch.archive.iter().for_each(|archive| archive.fail_from(1));
                return Ok(());
            }
            20 if self.random.random_ratio(1, 3) => self.without_log(&mut branch)?,
            21 => self.note_end(&mut branch)?,
            22 if branch.archive.is_some() => drop(database.archive_log().map_err(told)?),
            _ => {}
        }
        self.branches.push(branch);
        Ok(())
    }

    /// Notes the position of a feed that begins now.
    fn note_end(&mut self, branch: &mut Branch) -> Check {
        let changes = branch.open_database()?.changes(ChangesFrom::Now).map_err(told)?;
        self.note(branch, changes.position(), "the end");
        Ok(())
    }

    fn note(&mut self, branch: &mut Branch, position: ChangesPosition, what: &str) {
        let (index, before) = (self.positions.len(), branch.history.commits());
        let origin = format!("{what} of {}: {position}, after {} commits", branch.name, before.len());
        self.positions.push(Position { position, before, origin });
        branch.history.push(Fact::Told { index, lsn: position.lsn() });
    }
}

impl Branch {
    fn options(&self) -> Options {
        let options = Options::default()
            .pool_bytes(1 << 20)
            .capacity_bytes(64 << 20)
            .log_segment_bytes(self.segment_bytes)
            .log_buffer_bytes(4 << 20)
            .background_eviction(false)
            .background_checkpoints(false)
            .huge_pages(false);
        match &self.archive {
            Some(archive) => options.log_archive_in(Arc::new(archive.clone())),
            None => options.end_log_archive(true),
        }
    }

    fn open_database(&self) -> Check<&Database> {
        self.database.as_ref().ok_or_else(|| format!("{} is not open", self.name))
    }

    /// What is in the database is what its history says.
    fn compare(&self) -> Check {
        let (found, expected) = (contents(self.open_database()?)?, self.history.contents());
        if found == expected {
            return Ok(());
        }
        Err(format!("{} [{}] has {found:?}, and not {expected:?}", self.name, self.origin))
    }
}

#[test]
fn forks() {
    for_seeds(40, |seed| {
        let mut run = Run::new(seed);
        let mut first = Branch {
            name: run.name(),
            disk: SimulatedDisk::new(seed + 1),
            archive: run.random.random_ratio(3, 4).then(|| SimulatedDisk::new(seed + 2)),
            archived_from: 0,
            segment_bytes: 16 << 10,
            history: History::default(),
            database: None,
            origin: "the first".to_owned(),
            forgets: false,
            backups: Vec::new(),
            restored_end: None,
            identity: 0,
        };
        let created = Database::create_in(Arc::new(first.disk.clone()), NAME, &first.options());
        first.database = Some(created.map_err(told)?);
        run.branches.push(first);
        (0..run.random.random_range(20..120)).try_for_each(|_| run.step())
    });
}
