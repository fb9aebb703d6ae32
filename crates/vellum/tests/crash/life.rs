//! What was done to a database in its lives, and what it has to show for it.

use crate::model::{Contents, Operation, contents, difference};
use vellum::{Database, Durability};

/// All that was done, and how much of it must survive.
#[derive(Clone, Default)]
pub struct Journal {
    /// What is surely there.
    sure: Contents,
    /// What was done after that, in order. A crash leaves a first part of it.
    later: Vec<Operation>,
    /// How many of those survive a loss of power, and the end of the process, at least.
    synced: usize,
    buffered: usize,
    /// How many were synced before those that were synced last.
    synced_before: usize,
    /// What the database should show now.
    pub now: Contents,
}

/// What happened to a database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// What was not synced is lost in part.
    PowerLoss,
    /// What was written is there.
    Killed,
    Closed,
    /// After a loss of power something was damaged that was durable.
    Damaged,
}

impl std::fmt::Display for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} done, {} written, {} synced", self.later.len(), self.buffered, self.synced)
    }
}

impl Journal {
    /// An operation has been done, and acknowledged.
    pub fn acknowledge(&mut self, operation: Operation, durability: Durability) {
        // What changes nothing is as a read: it says nothing of what was done before.
        let changes = operation.changes(&self.now);
        self.attempt(operation);
        if !changes {
            return;
        }
        self.acknowledge_to(self.later.len(), durability);
    }

    /// The first so many have been acknowledged.
    pub fn acknowledge_to(&mut self, count: usize, durability: Durability) {
        if durability >= Durability::Buffered {
            self.buffered = self.buffered.max(count);
        }
        if durability == Durability::Synced && count > self.synced {
            self.synced_before = self.synced;
            self.synced = count;
        }
    }

    /// How many there are that may be lost.
    pub fn count(&self) -> usize {
        self.later.len()
    }

    /// An operation has been done, or will perhaps be found to have been done.
    pub fn attempt(&mut self, operation: Operation) {
        operation.apply(&mut self.now);
        self.later.push(operation);
    }

    /// All so far was acknowledged as durable.
    pub fn sync(&mut self) {
        self.acknowledge_to(self.later.len(), Durability::Synced);
    }

    /// What was written may be lost, because a write or a sync has failed.
    pub fn distrust(&mut self) {
        self.buffered = self.synced;
    }

    /// Whether a database holds what it should after an operation that failed: all of it or nothing of it. False if it has to be
    /// opened anew.
    pub fn settle(&mut self, operation: Option<&Operation>, database: &Database) -> Result<bool, String> {
        let found = match contents(database) {
            Ok(found) => found,
            // With a log that has failed no page can leave a pool that is full.
            Err(_) if database.sync().is_err() => {
                operation.cloned().into_iter().for_each(|operation| self.attempt(operation));
                return Ok(false);
            }
            Err(error) => return Err(format!("after {operation:.60?} failed it cannot be read: {error}")),
        };
        if let Some(operation) = operation {
            let mut after = self.now.clone();
            operation.apply(&mut after);
            if found == after && after != self.now {
                self.attempt(operation.clone());
                return Ok(true);
            }
        }
        match found == self.now {
            true => Ok(true),
            false => Err(format!("{operation:.60?} was done in part: {}", difference(&found, &self.now))),
        }
    }

    /// Whether a database that was opened again holds what it should, and is sound; it does from now on.
    pub fn check(&mut self, database: &Database, end: End) -> Result<(), String> {
        self.check_contents(database, end)?;
        let report = database.verify(|_| {});
        match report.problems.first() {
            Some(problem) => Err(format!("after {end:?}, {} problems: {problem}", report.problems.len())),
            None => Ok(()),
        }
    }

    /// Whether it holds what it should.
    pub fn check_contents(&mut self, database: &Database, end: End) -> Result<(), String> {
        let found = contents(database).map_err(|error| format!("it cannot be read: {error}"))?;
        let least = match end {
            End::PowerLoss => self.synced,
            End::Killed => self.buffered,
            End::Closed => self.later.len(),
            // The last record of a log that is damaged is taken for one that was being written.
            End::Damaged => self.synced_before,
        };
        let (mut candidate, mut nearest) = (std::mem::take(&mut self.sure), String::new());
        let mut is_found = false;
        for number in 0..=self.later.len() {
            if let Some(operation) = number.checked_sub(1).and_then(|before| self.later.get(before)) {
                operation.apply(&mut candidate);
            }
            if number == least {
                nearest = difference(&found, &candidate);
            }
            if number >= least && candidate == found {
                is_found = true;
                break;
            }
        }
        let all = self.later.len();
        *self = Self { sure: found.clone(), now: found, ..Self::default() };
        if !is_found {
            return Err(format!(
                "after {end:?} it holds no first part of what was done, of which {least} of {all} were acknowledged: {nearest}"
            ));
        }
        Ok(())
    }
}
