//! Backups, and what is restored of them: what was committed at one moment, whatever was open then.

use super::{
    Run, assert_clean,
    model::{Clash, Entries, Id, Key, Touch, Value, View, short},
};
use rand::RngExt;
use std::{
    collections::BTreeMap,
    rc::Rc,
    sync::Arc,
    thread::sleep,
    time::{Duration, SystemTime},
};
use vellum::{
    Backup, BackupError, BackupOptions, Database, Error, ErrorKind, Lsn, Options, RestoreOptions, Until,
};
use vellum_vm::{Directory, FileOperation, SimulatedDisk};

/// The backups of a run.
pub struct Backups {
    disk: SimulatedDisk,
    /// With these, and no archive, a database is restored.
    options: Options,
    taken: Vec<Taken>,
    count: u32,
    marks: Vec<Mark>,
}

/// A moment, and what was committed then.
struct Mark {
    until: Until,
    /// How far the log is archived at least.
    end: Lsn,
    /// How many commits and backups there were.
    counts: (usize, usize),
    contents: Rc<Contents>,
}

struct Taken {
    name: String,
    /// What it is an increment of.
    former: Option<usize>,
    end: Lsn,
    /// It holds one of these.
    contents: Vec<Rc<Contents>>,
}

type Contents = BTreeMap<String, Rc<Entries>>;

fn contents_of(view: &View) -> Rc<Contents> {
    Rc::new(view.names.iter().map(|(name, table)| (name.clone(), view.tables[table].clone())).collect())
}

impl Backups {
    pub fn new(seed: u64, options: &Options) -> Self {
        let disk = SimulatedDisk::new(seed.wrapping_add(2));
        Self { disk, options: options.clone(), taken: Vec::new(), count: 0, marks: Vec::new() }
    }
}

impl Run {
    /// Something with backups. It is unknown whether the changes of futures that are under way are in them.
    pub fn use_backups(&mut self) {
        if !self.unsettled.is_empty() {
            return;
        }
        match self.random.random_range(0..8) {
            0..3 => self.back_up(),
            3 => self.mark(),
            4 => self.restore_backup(),
            _ if self.feeds.archive.is_none() => self.back_up(),
            _ => self.restore_point(),
        }
    }

    fn back_up(&mut self) {
        let name = format!("backup {}", self.backups.count);
        self.backups.count += 1;
        let count = self.backups.taken.len();
        let former =
            (count > 0 && self.random.random_ratio(1, 2)).then(|| self.random.random_range(0..count));
        let disk = self.backups.disk.clone();
        let opened = former.map(|former| Backup::open_in(&disk, &self.backups.taken[former].name).unwrap());
        let fails = self.random.random_ratio(1, 8);
        let stops = self.random.random_ratio(1, 12);
        let changes = self.draw_meanwhile();
        self.tell(format!(
            "{name}, since {former:?}, fails {fails}, stops {stops}, beside {}",
            changes.len()
        ));
        if fails {
            self.begin_to_fail();
        }
        let database = self.database().clone();
        let (mut made, mut rest) = (0, changes.iter());
        let mut progress = |_| {
            if let Some((_, table, key, value)) = rest.next().filter(|_| !fails) {
                table.put(key, &value[..]).unwrap();
                made += 1;
            }
            !stops
        };
        let options = BackupOptions::default().progress(&mut progress);
        let options = match &opened {
            Some(former) => options.since(former),
            None => options,
        };
        let done = database.backup_in(Arc::new(disk.clone()), &name, options);
        drop(database);
        let mut contents = vec![contents_of(&self.model.view)];
        for (table, _, key, value) in changes.into_iter().take(made) {
            self.model.change(table, &[(key, Some(value))]);
            contents.push(contents_of(&self.model.view));
        }
        let has_log = self.database().log_state().is_some();
        match done {
            Ok(summary) => {
                assert!(has_log && !stops);
                self.tell(format!("it is done: {summary:?}, beside {made}"));
                self.backups.taken.push(Taken { name, former, end: summary.end, contents });
            }
            Err(error) => {
                let is_right = match &error {
                    Error::Backup(BackupError::Stopped) => stops,
                    Error::Backup(BackupError::WithoutLog) => !has_log,
                    error => self.is_failure(error),
                };
                assert!(is_right, "{error:?}");
                self.tell(format!("it has failed: {error}"));
                let names = disk.names().unwrap();
                assert!(!names.iter().any(|left| left.starts_with(&name)), "{names:?}");
            }
        }
        if fails {
            self.heal();
        }
        if self.random.random_ratio(1, 3) {
            self.restore_backup();
        }
    }

    /// Changes that are made while a backup is, which nobody is in the way of.
    fn draw_meanwhile(&mut self) -> Vec<(Id, vellum::Table, Key, Value)> {
        let (mut changes, mut seen) = (Vec::new(), Vec::new());
        for _ in 0..self.random.random_range(0..4) {
            let Some((source, table, handle)) = self.draw() else { break };
            if source.number.is_some() {
                continue;
            }
            let key = self.draw_key(table, &self.entries(&source, table));
            let value = self.draw_value();
            let is_free = self.model.clash(None, table, &key, Touch::Change) == Clash::None;
            if is_free && !seen.contains(&(table, key.clone())) && value.len() > 3 {
                seen.push((table, key.clone()));
                changes.push((table, handle.bytes.clone(), key, value));
            }
        }
        changes
    }

    /// What is committed now can be restored later.
    fn mark(&mut self) {
        match self.database().archive_log() {
            Ok(place) => {
                let until = if self.random.random_ratio(1, 3) { until_now() } else { Until::Before(place) };
                self.tell(format!("archived up to {place:?}, {until:?}"));
                let counts = (self.model.commits.count(), self.backups.taken.len());
                let contents = contents_of(&self.model.view);
                self.backups.marks.push(Mark { until, end: place, counts, contents });
            }
            Err(error) => {
                assert!(matches!(error, Error::WithoutArchive) && self.feeds.archive.is_none(), "{error:?}")
            }
        }
    }

    fn restore_backup(&mut self) {
        let count = self.backups.taken.len();
        let Some(last) = count.checked_sub(1) else { return };
        let last = if self.random.random_ratio(1, 2) { last } else { self.random.random_range(0..count) };
        let contents = self.backups.taken[last].contents.clone();
        self.tell(format!("{} is restored", self.backups.taken[last].name));
        self.restore(last, &contents, RestoreOptions::default);
    }

    /// Restores what there was at a moment, with the archive and perhaps the log.
    pub fn restore_point(&mut self) {
        let Some(archive) = self.feeds.archive.clone() else { return };
        let Some(first) = self.backups.taken.iter().map(|taken| taken.end).min() else { return };
        let count = self.backups.taken.len();
        let (until, end, count, contents) = match self.random.random_range(0..5) {
            0 => (Until::End, Lsn(u64::MAX), count, contents_of(&self.model.view)),
            1..4 => {
                let told = self.feeds.positions.iter().filter(|position| position.place.lsn() >= first);
                let all: Vec<_> =
                    told.filter_map(|position| Some((position, position.follow.contents()?))).collect();
                let chosen = self.random.random_range(0..all.len().max(1));
                let Some((position, contents)) = all.into_iter().nth(chosen) else { return };
                let contents = contents.into_iter().map(|(name, entries)| (name, Rc::new(entries)));
                // A commit that lies before the end of a backup is no target for it, even if it is the last before that.
                let (until, end) = match position.commit {
                    Some(commit) if self.random.random_ratio(1, 2) => (Until::Lsn(commit), commit),
                    _ => (Until::Before(position.place.lsn()), position.place.lsn()),
                };
                (until, end, count, Rc::new(contents.collect::<Contents>()))
            }
            _ => {
                // Nothing was committed at a time that is later than all that was.
                let is_before = |mark: &&Mark| match mark.until {
                    Until::Time(_) => self.model.commits.has_single_since(mark.counts.0),
                    _ => true,
                };
                let all: Vec<&Mark> =
                    self.backups.marks.iter().filter(|mark| mark.end >= first).filter(is_before).collect();
                let Some(mark) = all.get(self.random.random_range(0..all.len().max(1))) else { return };
                // A later backup may end at the same place, at a later time.
                let count = if matches!(mark.until, Until::Time(_)) { mark.counts.1 } else { count };
                (mark.until, mark.end, count, mark.contents.clone())
            }
        };
        let fits: Vec<usize> = (0..count).filter(|place| self.backups.taken[*place].end <= end).collect();
        let Some(last) = fits.get(self.random.random_range(0..fits.len().max(1))).copied() else { return };
        let has_log = self.random.random_ratio(1, 2);
        self.tell(format!(
            "{} is restored to {until:?}, with the log {has_log}",
            self.backups.taken[last].name
        ));
        // The log is that of a database that is lost now.
        let log: Option<Arc<dyn Directory>> = if has_log {
            self.database().sync().unwrap();
            Some(Arc::new(self.disk.crash()))
        } else {
            self.database().archive_log().unwrap();
            None
        };
        self.restore(last, &[contents], || {
            let how = RestoreOptions::default().archive_in(Arc::new(archive.clone())).until(until);
            match &log {
                Some(log) => how.log_in(log.clone()),
                None => how,
            }
        });
    }

    fn restore<'o>(&mut self, last: usize, contents: &[Rc<Contents>], how: impl Fn() -> RestoreOptions<'o>) {
        let mut chain = vec![last];
        while let Some(former) = chain.last().and_then(|last| self.backups.taken[*last].former) {
            chain.push(former);
        }
        let open =
            |place: &usize| Backup::open_in(&self.backups.disk, &self.backups.taken[*place].name).unwrap();
        let backups: Vec<Backup> = chain.iter().rev().map(open).collect();
        let target = SimulatedDisk::new(self.steps);
        let (directory, options) = (Arc::new(target.clone()), &self.backups.options.clone().log(true));
        if self.random.random_ratio(1, 8) {
            let operation =
                if self.random.random_ratio(1, 2) { FileOperation::Write } else { FileOperation::Read };
            target.fail_nth_of(operation, self.random.random_range(1..60));
            let done = Backup::restore_in(&backups, directory.clone(), "restored", options, how());
            target.heal();
            match done {
                Ok(_) => target.remove("restored").unwrap(),
                // It is a log that could not be written, perhaps.
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::Io | ErrorKind::OutcomeUnknown), "{error:?}");
                }
            }
            assert!(target.names().unwrap().is_empty(), "{:?}", target.names());
        }
        Backup::restore_in(&backups, directory.clone(), "restored", options, how()).unwrap();
        assert_eq!(target.names().unwrap(), ["restored"]);
        let database = Database::open_in(directory, "restored", options).unwrap();
        assert_clean(&database);
        let objections: Vec<String> =
            contents.iter().filter_map(|contents| objection(&database, contents)).collect();
        assert!(objections.len() < contents.len(), "{objections:?}");
        // It is a database as any.
        database.create_table("new").unwrap().put("key", "value").unwrap();
        database.close().unwrap();
    }
}

/// The present time, in a millisecond of its own.
fn until_now() -> Until {
    sleep(Duration::from_millis(3));
    let now = SystemTime::now();
    sleep(Duration::from_millis(3));
    Until::Time(now)
}

/// Why a database does not hold this; none if it does.
fn objection(database: &Database, contents: &Contents) -> Option<String> {
    let names: Vec<_> = database.tables().unwrap().into_iter().map(|table| table.name).collect();
    if !names.iter().eq(contents.keys()) {
        return Some(format!("there are {names:?}, and not {:?}", contents.keys()));
    }
    for (name, entries) in contents {
        let handle = database.table_as_bytes(name).unwrap();
        let mut expected = entries.iter();
        for entry in handle.range(..).unwrap() {
            let (key, value) = entry.unwrap();
            let wanted = expected.next();
            if wanted.is_none_or(|wanted| *wanted.0 != key || **wanted.1 != value) {
                let wanted = wanted.map(|(key, value)| format!("{} with {}", short(key), short(value)));
                return Some(format!("{} has {} in {name}, and not {wanted:?}", short(&key), short(&value)));
            }
        }
        if let Some((key, _)) = expected.next() {
            return Some(format!("{} is missing in {name}", short(key)));
        }
    }
    None
}
