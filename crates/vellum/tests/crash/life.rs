//! What was done to a database in its lives, and what it has to show for it.

use crate::model::{Contents, Operation, contents, difference};
use vellum::{Database, Durability};

/// All that was done, and how much of it must survive.
#[derive(Default)]
pub struct Journal {
    /// What is surely there.
    sure: Contents,
    /// What was done after that, in order. A crash leaves a first part of it.
    later: Vec<Operation>,
    /// How many of those survive a loss of power, and the end of the process, at least.
    synced: usize,
    buffered: usize,
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
        if durability >= Durability::Buffered {
            self.buffered = self.later.len();
        }
        if durability == Durability::Synced {
            self.sync();
        }
    }

    /// An operation has been done, or will perhaps be found to have been done.
    pub fn attempt(&mut self, operation: Operation) {
        operation.apply(&mut self.now);
        self.later.push(operation);
    }

    /// All so far was acknowledged as durable.
    pub fn sync(&mut self) {
        self.synced = self.later.len();
        self.buffered = self.synced;
    }

    /// What was written may be lost, because a write or a sync has failed.
    pub fn distrust(&mut self) {
        self.buffered = self.synced;
    }

    /// Whether a database holds what it should after an operation that failed: all of it or nothing of it. False if it has to be
    /// opened anew.
    pub fn settle(&mut self, operation: &Operation, database: &Database) -> Result<bool, String> {
        let found = match contents(database) {
            Ok(found) => found,
            // With a log that has failed no page can leave a pool that is full.
            Err(_) if database.sync().is_err() => {
                self.attempt(operation.clone());
                return Ok(false);
            }
            Err(error) => return Err(format!("after {operation:.60?} failed it cannot be read: {error}")),
        };
        let mut after = self.now.clone();
        operation.apply(&mut after);
        if found == after && after != self.now {
            self.attempt(operation.clone());
            return Ok(true);
        }
        match found == self.now {
            true => Ok(true),
            false => Err(format!("{operation:.60?} was done in part: {}", difference(&found, &self.now))),
        }
    }

    /// Whether a database that was opened again holds what it should; it does from now on.
    pub fn check(&mut self, database: &Database, end: End) -> Result<(), String> {
        let found = contents(database).map_err(|error| format!("it cannot be read: {error}"))?;
        let least = match end {
            End::PowerLoss => self.synced,
            End::Killed => self.buffered,
            End::Closed => self.later.len(),
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
        let report = database.verify(|_| {});
        match report.problems.first() {
            Some(problem) => Err(format!("after {end:?}, {} problems: {problem}", report.problems.len())),
            None => Ok(()),
        }
    }
}
