//! Commits, and feeds that follow them.

use super::{
    Branch, Run,
    history::{Check, Fact, told},
};
use rand::RngExt;
use vellum::{ChangesFrom, Error, Event};

impl Run {
    /// Commits so often, and compares what a feed tells of it.
    pub(super) fn commit(&mut self, branch: &mut Branch, count: usize) -> Check {
        let mut changes = branch.open_database()?.changes(ChangesFrom::Now).map_err(told)?;
        let mut made = Vec::new();
        let mut row = branch.history.records();
        {
            let database = branch.open_database()?;
            let table = database.table("log").or_else(|_| database.create_table("log")).map_err(told)?;
            for id in self.next..self.next + count as u64 {
                let records = self.random.random_range(1..4_u64);
                let mut value = || {
                    let mut value = id.to_le_bytes().to_vec();
                    value.resize([8, 100, 900][self.random.random_range(0..3)], id as u8);
                    value
                };
                if records == 1 {
                    table.put(row.to_be_bytes(), value()).map_err(told)?;
                } else {
                    let transaction = database.begin().map_err(told)?;
                    for row in row..row + records {
                        transaction.put(&table, row.to_be_bytes(), value()).map_err(told)?;
                    }
                    transaction.commit().map_err(told)?;
                }
                row += records;
                made.push((id, records));
            }
        }
        self.next += count as u64;
        for (id, records) in made {
            let commit = loop {
                let commit = changes.next().map_err(told)?.ok_or("a commit is not told")?;
                let is_creation = matches!(commit.changes.first(), Some(change) if matches!(change.event, Event::Created { .. }));
                if !is_creation {
                    break commit;
                }
            };
            if commit.changes.len() as u64 != records {
                return Err(format!("commit {id} is told otherwise: {commit:?}"));
            }
            branch.history.push(Fact::commit(id, records, Some((commit.lsn, commit.position.lsn()))));
            if self.random.random_ratio(1, 4) {
                self.note(branch, commit.position, "a commit");
            }
        }
        if self.random.random_ratio(1, 4) {
            self.note(branch, changes.position(), "all that was read");
        }
        Ok(())
    }

    pub(super) fn follow_all(&self, branch: &Branch) -> Check {
        (0..self.positions.len()).try_for_each(|index| {
            self.follow(branch, index).map_err(|why| {
                format!("{why}: {} in {} [{}]", self.positions[index].origin, branch.name, branch.origin)
            })
        })
    }

    /// Goes on at a position that any database has told.
    fn follow(&self, branch: &Branch, index: usize) -> Check {
        let (position, commits) = (&self.positions[index], branch.history.commits());
        let told_at = branch.history.facts().iter().position(|fact| fact.is_told(index));
        let ahead = commits.get(position.before.len()..).unwrap_or_default();
        let mut changes = match branch.open_database()?.changes(position.position) {
            Ok(changes) => changes,
            Err(Error::NoSuchPosition { end, .. }) => {
                let is_right = told_at.is_some() && ahead.iter().all(|commit| commit.place.is_some());
                let why = || format!("a right position is refused, the log ends at {end}");
                return if is_right { Err(why()) } else { Ok(()) };
            }
            Err(Error::ChangesDiscarded { .. }) => {
                // An archive begins with what is logged first.
                let since = told_at.and_then(|at| branch.history.facts().get(branch.archived_from..at));
                let is_logged = |fact: &Fact| matches!(fact, Fact::Commit(commit) if commit.place.is_some());
                let is_archived =
                    branch.archive.is_some() && since.is_some_and(|since| since.iter().any(is_logged));
                let why = || "a position is told as discarded that is in the archive".to_owned();
                return if is_archived { Err(why()) } else { Ok(()) };
            }
            Err(error) => return Err(told(error)),
        };
        // There only the place tells whether it is right.
        if Some(position.position.lsn()) == branch.restored_end {
            return Ok(());
        }
        if !commits.starts_with(&position.before) {
            return Err("a position of another history is accepted".to_owned());
        }
        let mut found = Vec::new();
        while let Some(commit) = changes.next().map_err(told)? {
            let mut id = None;
            for change in &commit.changes {
                match &change.event {
                    Event::Created { .. } => {}
                    Event::Inserted { value, .. } => {
                        let value = value.inline().ok_or("a value is not in the feed")?;
                        id = value.first_chunk().map(|id| u64::from_le_bytes(*id));
                    }
                    other => return Err(format!("{other:?} is told")),
                }
            }
            found.extend(id);
        }
        let is_right = ahead.iter().map(|commit| commit.id).eq(found.iter().copied());
        if is_right { Ok(()) } else { Err(format!("{found:?} are told, and not {ahead:?}")) }
    }
}
