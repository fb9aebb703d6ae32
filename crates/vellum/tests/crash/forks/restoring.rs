//! Backups of the databases, and what is restored from them.

use super::{
    Branch, NAME, Run,
    history::{Check, Fact, History, contents, told},
};
use rand::RngExt;
use std::sync::Arc;
use vellum::{Backup, BackupOptions, ChangesFrom, Database, Lsn, RestoreOptions, Until};
use vellum_vm::SimulatedDisk;

/// A backup.
pub struct Taken {
    name: String,
    /// The one on which it builds.
    former: Option<usize>,
    end: Lsn,
    /// The history of the database, its name, and which one it is.
    history: History,
    of: usize,
    identity: usize,
}

/// What is to come out of a restore.
struct Expected {
    history: History,
    /// Whether it must come out. Otherwise it is any part of one history that has the backup.
    is_certain: bool,
    /// Nothing after this place, if one was asked for.
    bound: Option<Lsn>,
}

impl Run {
    /// Makes a backup, or an increment on any other backup.
    pub(super) fn back_up(&mut self, branch: &mut Branch) -> Check {
        let own: Vec<usize> = (0..self.taken.len()).filter(|at| self.taken[*at].of == branch.name).collect();
        let former = if !own.is_empty() && self.random.random() {
            Some(own[self.random.random_range(0..own.len())])
        } else if !self.taken.is_empty() && self.random.random_ratio(1, 4) {
            Some(self.random.random_range(0..self.taken.len()))
        } else {
            None
        };
        let opened = former.map(|former| Backup::open_in(&self.backups, &self.taken[former].name));
        let opened = opened.transpose().map_err(told)?;
        let options = opened
            .as_ref()
            .map_or_else(BackupOptions::default, |former| BackupOptions::default().since(former));
        let name = format!("backup {}", self.taken.len());
        let made = branch.open_database()?.backup_in(Arc::new(self.backups.clone()), &name, options);
        let former = former.map(|former| (former, &self.taken[former]));
        match made {
            Ok(summary) => {
                let is_of = |former: &Taken| branch.history.commits().starts_with(&former.history.commits());
                if former.is_some_and(|(_, former)| !is_of(former)) {
                    return Err(format!(
                        "an increment of {} builds on a backup of another history",
                        branch.name
                    ));
                }
                let former = former.map(|(former, _)| former);
                branch.backups.push(self.taken.len());
                self.taken.push(Taken {
                    name,
                    former,
                    end: summary.end,
                    history: branch.history.clone(),
                    of: branch.name,
                    identity: branch.identity,
                });
                Ok(())
            }
            Err(error) if former.is_none_or(|(_, former)| former.of == branch.name) && !branch.forgets => {
                Err(format!("{error}: a backup of {} [{}]", branch.name, branch.origin))
            }
            Err(_) => Ok(()),
        }
    }

    /// A backup, with those on which it builds.
    fn row(&self, last: usize) -> Check<Vec<Backup>> {
        let mut numbers = vec![last];
        while let Some(former) = self.taken[numbers[numbers.len() - 1]].former {
            numbers.push(former);
        }
        let open = |number: &usize| Backup::open_in(&self.backups, &self.taken[*number].name).map_err(told);
        numbers.iter().rev().map(open).collect()
    }

    /// Restores a backup, perhaps with the archive of a branch and its log, up to some place.
    pub(super) fn restore(&mut self, branch: &Branch) -> Check<Option<Branch>> {
        if self.taken.is_empty() {
            return Ok(None);
        }
        let number = self.random.random_range(0..self.taken.len());
        let row = self.row(number)?;
        let mut origin = format!("{} of {}", self.taken[number].name, self.taken[number].of);
        let (mut how, mut expected) = (
            RestoreOptions::default(),
            Expected { history: self.taken[number].history.clone(), is_certain: true, bound: None },
        );
        if let Some(archive) = &branch.archive
            && self.random.random_ratio(3, 4)
        {
            origin += &format!(" with the archive of {}", branch.name);
            how = how.archive_in(Arc::new(archive.clone()));
            (how, expected) = self.choose_point(branch, number, how)?;
        }
        let name = self.name();
        let mut restored = Branch {
            name,
            disk: SimulatedDisk::new(name as u64 + 1000),
            archive: None,
            archived_from: usize::MAX,
            segment_bytes: branch.segment_bytes,
            history: History::default(),
            database: None,
            origin: format!("restored from {origin}, {:?}", expected.bound),
            forgets: false,
            backups: Vec::new(),
            restored_end: None,
            identity: name,
        };
        let basis = &self.taken[number].history;
        let outcome =
            Backup::restore_in(&row, Arc::new(restored.disk.clone()), NAME, &restored.options(), how);
        let outcome = match outcome {
            Ok(outcome) => outcome,
            // The archive leads to nothing that the backup does not have.
            Err(_) if expected.history.commits() == basis.commits() => return Ok(None),
            Err(error) if expected.is_certain => return Err(format!("{error}: {}", restored.origin)),
            Err(_) => return Ok(None),
        };
        if self.random.random() {
            restored.archive = Some(SimulatedDisk::new(name as u64 + 2000));
        }
        let opened =
            Database::open_in(Arc::new(restored.disk.clone()), NAME, &restored.options()).map_err(told)?;
        let begin = opened.changes(ChangesFrom::Now).map_err(told)?.position();
        restored.restored_end = Some(begin.lsn());
        restored.history = if !expected.is_certain {
            self.find_history(&contents(&opened)?, number, &expected)
                .map_err(|why| format!("{why}: {}", restored.origin))?
        } else {
            // A position may lie after what was restored.
            let end = outcome.point.filter(|_| expected.bound.is_none()).map(|point| point.end);
            expected
                .history
                .retain(|fact| !matches!(fact, Fact::Told { lsn, .. } if end.is_some_and(|end| *lsn > end)));
            expected.history
        };
        restored.database = Some(opened);
        if restored.archive.is_some() {
            restored.archived_from = restored.history.len();
        }
        restored.compare()?;
        if self.random.random() {
            self.note_end(&mut restored)?;
        }
        Ok(Some(restored))
    }

    /// Chooses up to where a branch's archive is restored, with its log or not.
    fn choose_point<'o>(
        &mut self,
        branch: &Branch,
        number: usize,
        mut how: RestoreOptions<'o>,
    ) -> Check<(RestoreOptions<'o>, Expected)> {
        let taken = &self.taken[number];
        // A copy may have the same history, and is another life all the same.
        let is_ancestor = branch.identity == taken.identity && branch.backups.contains(&number);
        let mut is_certain = is_ancestor && taken.history.len() >= branch.archived_from;
        if self.random.random() {
            // As if it were killed now.
            how = how.log_in(Arc::new(branch.disk.kill()));
        } else {
            branch.open_database()?.archive_log().map_err(told)?;
        }
        let mut history = branch.history.clone();
        let places: Vec<_> = history.commits().iter().filter_map(|commit| commit.place).collect();
        if places.is_empty() || self.random.random_ratio(1, 3) {
            return Ok((how, Expected { history, is_certain, bound: None }));
        }
        let (lsn, end) = places[self.random.random_range(0..places.len())];
        let (until, place, bound) = match self.random.random_range(0..3) {
            0 => (Until::Lsn(lsn), lsn, end),
            1 => (Until::Before(lsn), lsn, lsn),
            _ => (Until::Before(end), end, end),
        };
        is_certain &= place >= taken.end;
        history.retain(|fact| match fact {
            Fact::Commit(commit) => commit.place.is_none_or(|(_, end)| end <= bound),
            Fact::Told { lsn, .. } => *lsn <= bound,
        });
        Ok((how.until(until), Expected { history, is_certain, bound: Some(bound) }))
    }

    /// The history that a restored database has. Which of the positions it has is not certain.
    fn find_history(&self, found: &[u64], number: usize, expected: &Expected) -> Check<History> {
        let basis = &self.taken[number].history;
        let mut histories =
            [&expected.history, basis].into_iter().chain(self.taken.iter().map(|taken| &taken.history));
        let mut history = histories
            .find_map(|history| history.with_contents(found))
            .ok_or_else(|| format!("{found:?} was in no database"))?;
        if !history.commits().starts_with(&basis.commits()) && expected.bound.is_none() {
            return Err("what the backup has is not there".to_owned());
        }
        history.retain(|fact| matches!(fact, Fact::Commit(_)));
        Ok(history)
    }
}
