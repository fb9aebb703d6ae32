//! The transactions that are open at the same time in a history of one thread, and which of them may do what.

use crate::{
    model::{Changed, Contents, Operation, Record, is_plain},
    tables::Tables,
};
use rand::{RngExt, rngs::StdRng};
use std::collections::{BTreeMap, BTreeSet};
use vellum::{Database, Durability, Error, ErrorKind, Savepoint, Transaction, TransactionOptions};

/// The most that are open at a time.
const OPEN_MAX: usize = 4;

/// One that is open.
struct Open {
    transaction: Transaction,
    durability: Durability,
    /// How many changes had been done when it began.
    begun: u64,
    /// What it has changed, without what it took back.
    changed: Changed,
    /// What it has changed and perhaps taken back: others cannot change it.
    reserved: BTreeSet<Record>,
    /// The tables of which it has handles.
    tables: BTreeSet<String>,
    savepoints: Vec<(Savepoint, Changed)>,
    /// The tables that it has loaded and perhaps taken back: what others may change of them is uncertain.
    uncertain: BTreeSet<String>,
}

impl Open {
    /// Whether a record is its own, and whether that is certain.
    fn has(&self, record: &Record) -> (bool, bool) {
        let is_reserved = self.reserved.contains(record) || self.reserved.contains(&all_of(&record.0));
        let is_uncertain = self.uncertain.contains(&record.0);
        (is_reserved || is_uncertain, is_reserved && !is_uncertain)
    }
}

/// All that are open.
#[derive(Default)]
pub struct Transactions {
    open: Vec<Open>,
    /// The records of those that could not be rolled back, which nobody can change until the database is opened anew.
    stuck: BTreeSet<Record>,
    /// How many changes have been done, and which was the last of each record.
    changes: u64,
    last: BTreeMap<Record, u64>,
    /// Of those that may have been changed: a transaction has taken it back before it was committed, or something has failed.
    last_perhaps: BTreeMap<Record, u64>,
    /// Those that change tables as a whole.
    pub tables: Tables,
}

/// A transaction that is to be committed.
pub struct Commit {
    pub transaction: Transaction,
    pub durability: Durability,
    pub changed: Changed,
    pub reserved: BTreeSet<Record>,
}

/// How a step of a transaction ended.
pub enum Step {
    Done,
    /// It is to be committed.
    Commit(Box<Commit>),
    /// The disk has failed.
    Failed(Error),
}

/// Whether an error says that another transaction was first.
pub fn is_conflict(error: &Error) -> bool {
    matches!(error, Error::Conflict { .. })
}

/// All records of a table, as one: it was cleared or loaded.
pub fn all_of(table: &str) -> Record {
    (table.to_owned(), Vec::new())
}

impl Transactions {
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// How many are open that do not change tables as a whole.
    pub fn count(&self) -> usize {
        self.open.len()
    }

    /// Whether any has to do with a table.
    pub fn use_table(&self, table: &str) -> bool {
        let in_table = |(name, _): &Record| name == table;
        self.stuck.iter().any(in_table) || self.open.iter().any(|open| open.tables.contains(table))
    }

    /// Whether an operation that is no transaction is refused, and whether that is certain.
    pub fn refuse(&self, record: &Record) -> (bool, bool) {
        let has: Vec<_> = self.open.iter().map(|open| open.has(record)).collect();
        let perhaps = has.iter().any(|(perhaps, _)| *perhaps);
        (perhaps || self.is_stuck(record), has.iter().any(|(_, certain)| *certain))
    }

    /// Whether a record may be of a transaction that could not be rolled back.
    fn is_stuck(&self, record: &Record) -> bool {
        self.stuck.contains(record) || self.stuck.contains(&all_of(&record.0))
    }

    /// A record was changed, and that counts from now on.
    pub fn note(&mut self, record: Record) {
        self.changes += 1;
        self.last.insert(record, self.changes);
    }

    /// Something has failed that was to change a record.
    pub fn note_attempt(&mut self, record: Record) {
        self.changes += 1;
        self.last_perhaps.insert(record, self.changes);
    }

    /// A transaction was committed.
    pub fn note_commit(&mut self, changed: &Changed, reserved: BTreeSet<Record>) {
        self.changes += 1;
        self.last.extend(changed.keys().map(|record| (record.clone(), self.changes)));
        self.last_perhaps.extend(reserved.into_iter().map(|record| (record, self.changes)));
    }

    /// A table is gone.
    pub fn forget_table(&mut self, table: &str) {
        self.last.retain(|(name, _), _| name != table);
    }

    pub fn begin(&mut self, database: &Database, random: &mut StdRng) -> Result<(), String> {
        if self.open.len() == OPEN_MAX {
            return Ok(());
        }
        let durability = [Durability::Synced, Durability::Buffered, Durability::Deferred];
        let durability = durability[random.random_range(0..3)];
        let options = TransactionOptions::default().durability(durability);
        let transaction = database.begin_with(options).map_err(|error| format!("begin: {error}"))?;
        self.open.push(Open {
            transaction,
            durability,
            begun: self.changes,
            changed: Changed::new(),
            reserved: BTreeSet::new(),
            tables: BTreeSet::new(),
            savepoints: Vec::new(),
            uncertain: BTreeSet::new(),
        });
        Ok(())
    }

    /// Some step of one that is open, of which there is one.
    pub fn step(&mut self, database: &Database, now: &Contents, random: &mut StdRng) -> Result<Step, String> {
        let number = random.random_range(0..self.open.len());
        match random.random_range(0..20) {
            0..2 => {
                let Open { transaction, durability, changed, reserved, .. } = self.open.swap_remove(number);
                return Ok(Step::Commit(Box::new(Commit { transaction, durability, changed, reserved })));
            }
            2 => {
                let open = self.open.swap_remove(number);
                if let Err(error) = open.transaction.rollback() {
                    self.stuck.extend(open.reserved);
                    return Ok(Step::Failed(error));
                }
            }
            3 => {
                let open = &mut self.open[number];
                open.savepoints.push((open.transaction.savepoint(), open.changed.clone()));
            }
            4 => return Ok(self.roll_back(number, random)),
            5..7 => return self.look(number, database),
            7 if random.random_ratio(1, 4) => {
                // Mostly it is not empty, but this transaction may not see that.
                let operation = Operation::draw_load(now, random);
                if let Some(table) = operation.loaded_by_transactions() {
                    return self.load(number, (&operation, table), database, now);
                }
            }
            _ => {
                // Some transactions change much at a time.
                let count = if random.random_ratio(1, 15) { 40 } else { 1 };
                for _ in 0..count {
                    let operation = Operation::draw(now, random);
                    if let Some(table) = operation.loaded_by_transactions() {
                        return self.load(number, (&operation, table), database, now);
                    }
                    let Some(record) = operation.record() else { break };
                    if is_plain(&record.0) {
                        match operation.perform_in(&self.open[number].transaction, database) {
                            Err(Error::PlainTable { .. }) => break,
                            Ok(_) => return Err(format!("{operation:.60?} of a plain table")),
                            Err(error) => return Ok(self.give_up(number, error)),
                        }
                    }
                    match self.perform(number, &operation, record, database, now, random)? {
                        Some(Step::Done) => {}
                        Some(step) => return Ok(step),
                        None => break,
                    }
                }
            }
        }
        Ok(Step::Done)
    }

    /// Rolls one back to a savepoint, if it has any.
    fn roll_back(&mut self, number: usize, random: &mut StdRng) -> Step {
        let open = &mut self.open[number];
        if open.savepoints.is_empty() {
            return Step::Done;
        }
        let to = random.random_range(0..open.savepoints.len());
        open.savepoints.truncate(to + 1);
        let (savepoint, changed) = open.savepoints[to].clone();
        match open.transaction.rollback_to(savepoint) {
            Ok(()) => {
                open.changed = changed;
                // A load that is taken back leaves the table to others, but for what was changed before.
                let loaded = open.reserved.iter().filter(|record| **record == all_of(&record.0));
                open.uncertain.extend(loaded.map(|(table, _)| table.clone()));
                Step::Done
            }
            Err(error) => self.give_up(number, error),
        }
    }

    /// Whether one sees what it has changed itself.
    fn look(&self, number: usize, database: &Database) -> Result<Step, String> {
        let Open { transaction, changed, .. } = &self.open[number];
        for ((table, key), value) in changed.iter().take(20) {
            let found = database.table(table).and_then(|table| transaction.get(&table, key));
            match found {
                Ok(found) if found == *value => {}
                Ok(found) => {
                    let lengths = (found.map(|value| value.len()), value.as_ref().map(Vec::len));
                    return Err(format!("a transaction does not see its own {table}, {key:?}: {lengths:?}"));
                }
                Err(error) => return Ok(Step::Failed(error)),
            }
        }
        Ok(Step::Done)
    }

    /// Does something to a record. None if the transaction is over, because another was first.
    fn perform(
        &mut self,
        number: usize,
        operation: &Operation,
        record: Record,
        database: &Database,
        now: &Contents,
        random: &mut StdRng,
    ) -> Result<Option<Step>, String> {
        let (perhaps_mine, mine) = self.open[number].has(&record);
        let others = || {
            (0..).zip(&self.open).filter(|(index, _)| *index != number).map(|(_, other)| other.has(&record))
        };
        let begun = self.open[number].begun;
        let after = |changes: &BTreeMap<Record, u64>, record: &Record| {
            changes.get(record).is_some_and(|change| *change > begun)
        };
        let certain = !perhaps_mine && (others().any(|(_, certain)| certain) || after(&self.last, &record));
        // Clearing conflicts with those that see the table: some have begun before it was created.
        let all = all_of(&record.0);
        let perhaps = self.is_stuck(&record)
            || others().any(|(perhaps, _)| perhaps)
            || after(&self.last, &record)
            || [&record, &all].iter().any(|record| after(&self.last_perhaps, record));
        let conflicts = certain || (!mine && perhaps);
        let is_replaced = after(&self.last_perhaps, &all);
        self.open[number].tables.insert(record.0.clone());
        let done = operation.perform_in(&self.open[number].transaction, database);
        let open = &mut self.open[number];
        match done {
            Ok(false) => {}
            // It was created since this one began, and has got another tree, or will.
            Err(Error::NoSuchTable { .. })
                if is_replaced
                    || matches!(open.transaction.table(&record.0), Err(Error::NoSuchTable { .. })) => {}
            Ok(true) if certain => {
                return Err(format!("{operation:.60?} of two transactions at a time"));
            }
            Ok(true) => {
                let before = match open.changed.get(&record) {
                    Some(value) => value.as_ref(),
                    None => now[&record.0].get(&record.1),
                };
                let value = operation.result(before);
                open.reserved.insert(record.clone());
                open.changed.insert(record, value);
            }
            Err(error) if is_conflict(&error) && conflicts => {
                let open = self.open.swap_remove(number);
                if random.random() && open.transaction.commit().is_ok() {
                    return Err(format!("a transaction is committed after its conflict, {error}"));
                }
                // What it has undone when it was dropped is free again, unless the disk failed.
                if database.history().open > self.open.len() + self.tables.open_count() {
                    self.stuck.extend(open.reserved);
                }
                return Ok(None);
            }
            Err(error) if is_conflict(&error) => return Err(format!("{operation:.60?}: {error}")),
            Err(error) => return Ok(Some(self.give_up(number, error))),
        }
        Ok(Some(Step::Done))
    }

    /// One loads a table, if that is empty.
    fn load(
        &mut self,
        number: usize,
        (operation, table): (&Operation, &str),
        database: &Database,
        now: &Contents,
    ) -> Result<Step, String> {
        let in_table = |(name, _): &Record| name == table;
        let mut entries = now[table].clone();
        for ((_, key), value) in self.open[number].changed.iter().filter(|(record, _)| in_table(record)) {
            match value {
                Some(value) => entries.insert(key.clone(), value.clone()),
                None => entries.remove(key),
            };
        }
        // One that has found nothing to be changed there counts as well.
        let is_taken = self.stuck.iter().any(in_table)
            || (0..).zip(&self.open).any(|(index, other)| index != number && other.tables.contains(table));
        let begun = self.open[number].begun;
        let is_changed = [&self.last, &self.last_perhaps]
            .iter()
            .any(|changes| changes.iter().any(|(record, change)| in_table(record) && *change > begun));
        self.open[number].tables.insert(table.to_owned());
        let done = operation.perform_in(&self.open[number].transaction, database);
        let open = &mut self.open[number];
        match done {
            Ok(_) if !entries.is_empty() => Err(format!("{table} is loaded over {} entries", entries.len())),
            Ok(_) => {
                let Operation::Load { entries, .. } = operation else { unreachable!("it loads") };
                let entries =
                    entries.iter().map(|(key, value)| ((table.to_owned(), key.clone()), Some(value.clone())));
                open.changed.extend(entries);
                open.reserved.insert(all_of(table));
                Ok(Step::Done)
            }
            // It sees something that has been removed since.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && (is_changed || !entries.is_empty()) => {
                Ok(Step::Done)
            }
            // The table was created since.
            Err(Error::NoSuchTable { .. }) => Ok(Step::Done),
            Err(error) if is_conflict(&error) && (is_taken || is_changed) => {
                let open = self.open.swap_remove(number);
                drop(open.transaction);
                if database.history().open > self.open.len() + self.tables.open_count() {
                    self.stuck.extend(open.reserved);
                }
                Ok(Step::Done)
            }
            Err(error) if is_conflict(&error) => Err(format!("{operation:.60?}: {error}")),
            Err(error) => Ok(self.give_up(number, error)),
        }
    }

    /// One is given up after an error. Whether it can be rolled back nobody knows.
    fn give_up(&mut self, number: usize, error: Error) -> Step {
        let open = self.open.swap_remove(number);
        self.stuck.extend(open.reserved);
        Step::Failed(error)
    }

    /// Gives up all.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Rolls all back.
    pub fn end(&mut self) -> Result<(), Error> {
        self.tables.end()?;
        for open in std::mem::take(&mut self.open) {
            if let Err(error) = open.transaction.rollback() {
                self.stuck.extend(open.reserved);
                return Err(error);
            }
        }
        Ok(())
    }
}
