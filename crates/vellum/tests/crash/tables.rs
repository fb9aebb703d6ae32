//! Transactions that create, load, clear, rename and drop tables, with savepoints, and store values for which the log has no room.
//!
//! Some of them are open at a time, beside each other and among all other transactions of a history, and single operations are done
//! that are no transactions. The tables have names of their own, some of them are plain. Which client is first has what it claims
//! ([`claims`](crate::claims)): whatever else they do succeeds unless the disk fails. What makes no sense is refused and changes
//! nothing. A snapshot from before it all sees what there was.

use crate::{
    claims::{Book, Claim, Id, Verdict},
    model::{Contents, Operation, difference, is_shared},
    table_changes::{Commit, Committed, Handles, Open, own, seen_by, without_plain},
    table_requests::{Ids, change_ids, claims, draw, in_short, is_of_disk, refusal},
};
use rand::{RngExt, rngs::StdRng};
use std::collections::{BTreeMap, BTreeSet};
use vellum::{Database, Error, Result, Table, Transaction};

/// The most transactions that are open at a time.
const OPEN_MAX: usize = 3;

/// The transactions that change tables, and a snapshot.
#[derive(Default)]
pub struct Tables {
    open: Vec<Open>,
    /// A transaction that only reads, what these tables held when it began, and its handles.
    reader: Option<(Transaction, Contents, Handles)>,
    /// Handles of those that are no transactions, which have them for long, also on tables that are gone.
    kept: BTreeMap<Id, Table>,
    /// Which tables there are, and what was changed of them.
    ids: Ids,
    last_id: Id,
    book: Book,
    /// One could perhaps not be rolled back: any may conflict with it.
    may_conflict: bool,
    /// What the last step has done, for people.
    pub done: Vec<String>,
}

/// How a step ended.
pub enum Step {
    Done,
    /// A transaction is to be committed.
    Commit(Box<Commit>),
    /// Something that was no transaction is done.
    Acknowledged(Operation),
    /// The disk has failed; what was no transaction may be done or not.
    Failed(Error, Option<Operation>),
}

/// How a request ended.
enum Outcome {
    Done,
    /// Another client was first.
    Conflict,
    Failed(Error),
}

impl Tables {
    /// How many transactions are open.
    pub fn open_count(&self) -> usize {
        self.open.len() + usize::from(self.reader.is_some())
    }

    /// Large values may have been moved, by transactions.
    pub fn note_moves(&mut self) {
        self.open.iter_mut().for_each(|open| open.claims.doubt());
    }

    /// Something was changed that nobody else may change meanwhile.
    pub fn note_commit(&mut self, Committed { ids, claims, unchanged }: Committed) {
        self.ids = ids;
        self.book.commit(claims, &unchanged);
    }

    /// The disk has failed, and what was to be done is done or not: all begin anew.
    pub fn note_failure(&mut self) {
        *self = Self { done: std::mem::take(&mut self.done), may_conflict: true, ..Self::default() };
    }

    /// A step of a transaction, or of something that is none. So many others are open.
    pub fn step(
        &mut self,
        database: &Database,
        (now, others): (&Contents, usize),
        random: &mut StdRng,
    ) -> std::result::Result<Step, String> {
        self.done.clear();
        for name in now.keys().filter(|name| !is_shared(name)) {
            if !self.ids.contains_key(name) {
                self.last_id += 1;
                self.ids.insert(name.clone(), self.last_id);
            }
        }
        match self.try_step(database, (now, others), random) {
            Ok(step) => step,
            Err(
                error @ (Error::Conflict { .. }
                | Error::Ended
                | Error::NoSuchTable { .. }
                | Error::TableExists { .. }
                | Error::NoSuchSavepoint),
            ) => Err(format!("a table that nobody else changes: {error}")),
            Err(error) => {
                self.note_failure();
                Ok(Step::Failed(error, None))
            }
        }
    }

    fn try_step(
        &mut self,
        database: &Database,
        (now, others): (&Contents, usize),
        random: &mut StdRng,
    ) -> Result<std::result::Result<Step, String>> {
        if let Some(wrong) = self.read(database, now, random)? {
            return Ok(Err(wrong));
        }
        if random.random_ratio(1, 5) {
            return Ok(self.single(database, now, random));
        }
        if self.open.is_empty() || (self.open.len() < OPEN_MAX && random.random_ratio(1, 3)) {
            let open = Open::begin(database, (&self.ids, now), self.book.begin(), random)?;
            self.open.push(open);
        }
        let number = random.random_range(0..self.open.len());
        for _ in 0..random.random_range(1..5) {
            let open = &mut self.open[number];
            match random.random_range(0..24) {
                0..3 => {
                    open.save();
                    self.done.push(format!("{number}: savepoint"));
                }
                3..6 => {
                    let to = open.roll_back(random)?;
                    self.done.push(format!("{number}: back to {to:?}"));
                }
                6..8 => {
                    let (seen, view) =
                        (seen_by(&open.transaction, &mut open.handles)?, without_plain(open.view.clone()));
                    if seen != view {
                        let difference = difference(&seen, &view);
                        return Ok(Err(format!("a transaction does not see its own tables: {difference}")));
                    }
                }
                _ => match self.change(number, now, random) {
                    Ok(Outcome::Done) => {}
                    Ok(Outcome::Conflict) => {
                        self.done.push("conflict".to_owned());
                        return Ok(self.lose((number, others), database, random));
                    }
                    Ok(Outcome::Failed(error)) => return Err(error),
                    Err(wrong) => return Ok(Err(wrong)),
                },
            }
        }
        match random.random_range(0..16) {
            0..3 => {
                self.done.push(format!("{number}: commit"));
                let commit = self.open.swap_remove(number).commit(&self.ids, now);
                Ok(Ok(Step::Commit(Box::new(commit))))
            }
            3 => {
                self.done.push(format!("{number}: rollback"));
                self.open.swap_remove(number).transaction.rollback()?;
                Ok(Ok(Step::Done))
            }
            _ => Ok(Ok(Step::Done)),
        }
    }

    /// A transaction does something to a table or to a record.
    fn change(
        &mut self,
        number: usize,
        now: &Contents,
        random: &mut StdRng,
    ) -> std::result::Result<Outcome, String> {
        self.last_id += 1;
        let new_id = self.last_id;
        let open = &mut self.open[number];
        if random.random_ratio(1, 8) {
            open.handles.clear();
        }
        let operation = draw(&open.view, random);
        let what = in_short(&operation);
        self.done.push(format!("{number}: {what}"));
        if let Some(kind) = open.refusal(&operation) {
            return match open.perform(&operation, false) {
                Err(error) if error.kind() == kind => Ok(Outcome::Done),
                Err(error) if is_of_disk(&error) => Ok(Outcome::Failed(error)),
                done => Err(format!("{what} makes no sense and is not refused: {done:?}")),
            };
        }
        let mut claims = claims(&operation, &open.ids, new_id);
        let is_load = matches!(operation, Operation::Load { .. });
        let is_begun_only = is_load && random.random_ratio(1, 6);
        if is_begun_only {
            claims.retain(|claim| matches!(claim, Claim::Whole(_)));
        }
        let overlooks =
            is_load && operation.whole_table().is_some_and(|table| open.overlooks(table, &self.ids, now));
        let others =
            (0..).zip(&self.open).filter(|(other, _)| *other != number).map(|(_, open)| &open.claims);
        let verdict = match self.book.judge(&claims, &self.open[number].claims, others) {
            _ if overlooks => Verdict::Refused,
            Verdict::Granted if self.may_conflict => Verdict::Uncertain,
            verdict => verdict,
        };
        let open = &mut self.open[number];
        match open.perform(&operation, is_begun_only) {
            Ok(()) if verdict == Verdict::Refused => {
                Err(format!("{what} of what another client has changed"))
            }
            Ok(()) if is_begun_only => {
                open.claims.add(claims);
                Ok(Outcome::Done)
            }
            Ok(()) => {
                open.note(&operation, claims, new_id);
                Ok(Outcome::Done)
            }
            Err(Error::Conflict { .. }) if verdict > Verdict::Granted => Ok(Outcome::Conflict),
            Err(error) if is_of_disk(&error) => Ok(Outcome::Failed(error)),
            Err(error) => Err(format!("{what}, which is {verdict:?}: {error}")),
        }
    }

    /// A transaction can only be rolled back after a conflict.
    fn lose(
        &mut self,
        (number, others): (usize, usize),
        database: &Database,
        random: &mut StdRng,
    ) -> std::result::Result<Step, String> {
        let open = self.open.swap_remove(number);
        if random.random() && open.transaction.commit().is_ok() {
            return Err("a transaction is committed after its conflict".to_owned());
        }
        // What it has undone when it was dropped is free again, unless the disk failed.
        self.may_conflict |= database.history().open > others + self.open_count();
        Ok(Step::Done)
    }

    /// Does something that is no transaction.
    fn single(
        &mut self,
        database: &Database,
        now: &Contents,
        random: &mut StdRng,
    ) -> std::result::Result<Step, String> {
        let operation = draw(now, random);
        // To load a table with versions needs a transaction, or else it appears to all.
        if operation.loaded_by_transactions().is_some() {
            return Ok(Step::Done);
        }
        let what = in_short(&operation);
        self.done.push(format!("alone: {what}"));
        if random.random_ratio(1, 4) {
            self.forget_gone()?;
        }
        let Some(kind) = refusal(&operation, now) else {
            return self.single_of_sense(operation, database, random);
        };
        match operation.perform(database) {
            Err(error) if error.kind() == kind => Ok(Step::Done),
            // Perhaps a transaction has it.
            Err(Error::Conflict { .. }) if operation.whole_table().is_some() => Ok(Step::Done),
            Err(error) if is_of_disk(&error) => Ok(Step::Failed(error, None)),
            done => Err(format!("{what} makes no sense and is not refused: {done:?}")),
        }
    }

    fn single_of_sense(
        &mut self,
        operation: Operation,
        database: &Database,
        random: &mut StdRng,
    ) -> std::result::Result<Step, String> {
        let what = in_short(&operation);
        self.last_id += 1;
        let mut claimed = self.book.begin();
        let mut claims = claims(&operation, &self.ids, self.last_id);
        if let Operation::Load { table, .. } = &operation {
            claims = vec![Claim::Records(self.ids[table])];
        }
        let verdict = self.book.judge(&claims, &claimed, self.open.iter().map(|open| &open.claims));
        let may_conflict = verdict > Verdict::Granted || self.may_conflict;
        let is_drop = matches!(operation, Operation::Drop { .. });
        let has_handle = is_drop
            && claims.iter().any(|claim| matches!(claim, Claim::Whole(id) if self.kept.contains_key(id)));
        match self.perform(&operation, database, random) {
            Ok(()) if verdict == Verdict::Refused => Err(format!("{what} of what a transaction has changed")),
            Ok(()) if has_handle => Err(format!("{what}, which has a handle")),
            Ok(()) => {
                claimed.add(claims);
                change_ids(&operation, &mut self.ids, self.last_id);
                self.book.commit(claimed, &BTreeSet::new());
                Ok(Step::Acknowledged(operation))
            }
            Err(Error::Conflict { .. }) if may_conflict => Ok(Step::Done),
            // Transactions may have handles, too.
            Err(Error::TableInUse { .. }) if is_drop && (has_handle || self.open_count() > 0) => {
                Ok(Step::Done)
            }
            Err(error) if is_of_disk(&error) => {
                match operation.record() {
                    // Perhaps it was changed since those began that are open.
                    Some(_) => self.may_conflict = true,
                    None => self.note_failure(),
                }
                Ok(Step::Failed(error, Some(operation)))
            }
            Err(error) => Err(format!("{what}, which is {verdict:?}: {error}")),
        }
    }

    /// Does it, to a record mostly by a handle from before.
    fn perform(&mut self, operation: &Operation, database: &Database, random: &mut StdRng) -> Result<()> {
        let Some((name, _)) = operation.record() else { return operation.perform(database) };
        let id = self.ids[&name];
        let table = match self.kept.remove(&id) {
            Some(table) => table,
            None => database.table(&name)?,
        };
        if random.random_ratio(3, 4) {
            self.kept.insert(id, table.clone());
        }
        operation.perform_on(&table)
    }

    /// Whether tables that are gone refuse changes; their handles are given up then.
    fn forget_gone(&mut self) -> std::result::Result<(), String> {
        let ids = &self.ids;
        for (_, table) in self.kept.extract_if(.., |id, _| !ids.values().any(|other| other == id)) {
            match table.put("key", "value") {
                Err(Error::NoSuchTable { .. }) => {}
                done => return Err(format!("a put into a table that was dropped: {done:?}")),
            }
        }
        Ok(())
    }

    /// Begins a reader, has it look, or ends it. Says what is wrong.
    fn read(&mut self, database: &Database, now: &Contents, random: &mut StdRng) -> Result<Option<String>> {
        match (random.random_range(0..12), &mut self.reader) {
            (0..3, None) => {
                self.reader = Some((database.begin()?, without_plain(own(now)), Handles::new()));
            }
            (0..2, Some((transaction, then, handles))) => {
                let seen = seen_by(transaction, handles)?;
                if seen != *then {
                    let difference = difference(&seen, then);
                    return Ok(Some(format!("a snapshot does not see the tables of its time: {difference}")));
                }
            }
            (2, Some(_)) => self.reader = None,
            _ => {}
        }
        Ok(None)
    }

    /// Rolls all back.
    pub fn end(&mut self) -> Result<()> {
        let open = std::mem::take(self).open;
        open.into_iter().try_for_each(|open| open.transaction.rollback())
    }
}
