//! Transactions that create, load, clear, rename and drop tables, with savepoints, and store values for which the log has no room.
//!
//! One such transaction is open at a time, among all others of a history. Its tables have names of their own, so that nothing else
//! changes them, and whatever it does succeeds unless the disk fails. A snapshot from before it sees what there was.

use crate::model::{Contents, Operation, is_shared, key, value};
use rand::{RngExt, rngs::StdRng};
use std::collections::BTreeMap;
use vellum::{Database, Durability, Error, Result, Savepoint, Table, Transaction, TransactionOptions};

/// The most that there are.
const TABLES_MAX: usize = 5;

/// Handles on tables by their present names, which they may have got since.
type Handles = BTreeMap<String, Table>;

/// The transaction that is open.
struct Open {
    transaction: Transaction,
    durability: Durability,
    /// What its tables hold as it sees them.
    view: Contents,
    handles: Handles,
    savepoints: Vec<(Savepoint, Contents, Handles)>,
}

/// The transaction that changes tables, if one is open, and a snapshot.
#[derive(Default)]
pub struct Tables {
    open: Option<Open>,
    /// A transaction that only reads, what these tables held when it began, and its handles.
    reader: Option<(Transaction, Contents, Handles)>,
    /// One could perhaps not be rolled back, or large values have been moved since the open one began: it may conflict.
    may_conflict: bool,
    /// What the last step has done, for people.
    pub done: Vec<&'static str>,
}

/// How a step ended.
pub enum Step {
    Done,
    Commit(Transaction, Durability, Operation),
    /// The disk has failed.
    Failed(Error),
}

/// What the tables hold that only these transactions change.
fn own(contents: &Contents) -> Contents {
    let own = contents.iter().filter(|(name, _)| !is_shared(name));
    own.map(|(name, entries)| (name.clone(), entries.clone())).collect()
}

/// The same, as a transaction sees it.
fn seen_by(transaction: &Transaction, handles: &mut Handles) -> Result<Contents> {
    let mut seen = Contents::new();
    for information in transaction.tables()?.into_iter().filter(|table| !is_shared(&table.name)) {
        let table = handle(transaction, handles, &information.name)?;
        let entries = seen.entry(information.name).or_default();
        let mut cursor = transaction.cursor(&table, ..)?;
        while let Some(entry) = cursor.next()? {
            let value = match entry.inline_value() {
                Some(value) => value.to_vec(),
                None => transaction.get(&table, entry.key())?.unwrap_or_default(),
            };
            entries.insert(entry.key().to_vec(), value);
        }
    }
    Ok(seen)
}

/// A handle on a table: one that there is, or a new one.
fn handle(transaction: &Transaction, handles: &mut Handles, name: &str) -> Result<Table> {
    if let Some(handle) = handles.get(name) {
        return Ok(handle.clone());
    }
    let handle = transaction.table(name)?;
    handles.insert(name.to_owned(), handle.clone());
    Ok(handle)
}

/// A name that no table has.
fn unused(view: &Contents, random: &mut StdRng) -> String {
    let first = random.random_range(0..2 * TABLES_MAX);
    let names = (first..).map(|number| format!("made {}", number % (2 * TABLES_MAX)));
    names.into_iter().find(|name| !view.contains_key(name)).unwrap_or_default()
}

/// One or two mebibytes and more, once in a while.
fn any_value(random: &mut StdRng) -> Vec<u8> {
    if !random.random_ratio(1, 60) {
        return value(random);
    }
    let length = random.random_range(1 << 20..3 << 20);
    let first: u8 = random.random();
    (0..length).map(|at: usize| first.wrapping_add((at / 1021) as u8)).collect()
}

impl Open {
    fn begin(database: &Database, now: &Contents, random: &mut StdRng) -> Result<Self> {
        let durability = [Durability::Synced, Durability::Buffered, Durability::Deferred];
        let durability = durability[random.random_range(0..3)];
        let transaction = database.begin_with(TransactionOptions::default().durability(durability))?;
        Ok(Self { transaction, durability, view: own(now), handles: Handles::new(), savepoints: Vec::new() })
    }

    /// Does something to a table or to a record. Says what.
    fn change(&mut self, random: &mut StdRng) -> Result<&'static str> {
        let Self { transaction, view, handles, .. } = self;
        if random.random_ratio(1, 8) {
            handles.clear();
        }
        let count = view.len();
        if count == 0 || (count < TABLES_MAX && random.random_ratio(1, 8)) {
            let name = unused(view, random);
            transaction.create_table(name.as_str())?;
            view.insert(name, BTreeMap::new());
            return Ok("create");
        }
        let name = view.keys().nth(random.random_range(0..count)).cloned().unwrap_or_default();
        let entries = &view[&name];
        match random.random_range(0..30) {
            0..2 => {
                transaction.drop_table(&name)?;
                view.remove(&name);
                handles.remove(&name);
                Ok("drop")
            }
            2..4 => {
                transaction.clear_table(&name)?;
                view.insert(name, BTreeMap::new());
                Ok("clear")
            }
            4..7 => {
                let new = unused(view, random);
                transaction.rename_table(&name, &new)?;
                handles.remove(&name).map(|handle| handles.insert(new.clone(), handle));
                let entries = view.remove(&name).unwrap_or_default();
                view.insert(new, entries);
                Ok("rename")
            }
            7..14 if entries.is_empty() => {
                let count = random.random_range(1..100);
                let entries: BTreeMap<_, _> =
                    (0..count).map(|_| (key(&name, random), value(random))).collect();
                transaction.bulk_load(&handle(transaction, handles, &name)?, &entries)?;
                view.insert(name, entries);
                Ok("load")
            }
            14..18 if !entries.is_empty() => {
                let key = entries.keys().nth(random.random_range(0..entries.len())).cloned();
                let key = key.unwrap_or_default();
                transaction.remove(&handle(transaction, handles, &name)?, &key)?;
                view.get_mut(&name).map(|entries| entries.remove(&key));
                Ok("remove")
            }
            _ => {
                let (key, value) = (key(&name, random), any_value(random));
                transaction.put(&handle(transaction, handles, &name)?, &key, &value)?;
                let is_large = value.len() >= 1 << 20;
                view.get_mut(&name).map(|entries| entries.insert(key, value));
                Ok(if is_large { "large" } else { "put" })
            }
        }
    }

    /// Goes back to a savepoint, if there is any.
    fn roll_back(&mut self, random: &mut StdRng) -> Result<&'static str> {
        if self.savepoints.is_empty() {
            return Ok("nothing");
        }
        let to = random.random_range(0..self.savepoints.len());
        self.savepoints.truncate(to + 1);
        let (savepoint, view, handles) = &self.savepoints[to];
        self.transaction.rollback_to(*savepoint)?;
        (self.view, self.handles) = (view.clone(), handles.clone());
        Ok("rollback_to")
    }
}

impl Tables {
    /// How many transactions are open.
    pub fn open_count(&self) -> usize {
        usize::from(self.open.is_some()) + usize::from(self.reader.is_some())
    }

    /// Large values may have been moved, by transactions.
    pub fn note_moves(&mut self) {
        self.may_conflict |= self.open.is_some();
    }

    /// A transaction was not committed because the disk has failed, and could perhaps not be rolled back.
    pub fn note_failure(&mut self) {
        self.may_conflict = true;
    }

    /// Some steps of the transaction, which begins if none is open.
    pub fn step(
        &mut self,
        database: &Database,
        now: &Contents,
        random: &mut StdRng,
    ) -> std::result::Result<Step, String> {
        self.done.clear();
        match self.try_step(database, now, random) {
            Ok(step) => step,
            Err(Error::Conflict { .. }) if self.may_conflict => {
                self.open = None;
                Ok(Step::Done)
            }
            Err(
                error @ (Error::Conflict { .. }
                | Error::Ended
                | Error::NoSuchTable { .. }
                | Error::TableExists { .. }
                | Error::NoSuchSavepoint),
            ) => Err(format!("a table that nobody else changes: {error}")),
            Err(error) => {
                self.note_failure();
                (self.open, self.reader) = (None, None);
                Ok(Step::Failed(error))
            }
        }
    }

    fn try_step(
        &mut self,
        database: &Database,
        now: &Contents,
        random: &mut StdRng,
    ) -> Result<std::result::Result<Step, String>> {
        if let Some(wrong) = self.read(database, now, random)? {
            return Ok(Err(wrong));
        }
        if self.open.is_none() {
            self.open = Some(Open::begin(database, now, random)?);
        }
        let Some(open) = &mut self.open else { return Ok(Ok(Step::Done)) };
        for _ in 0..random.random_range(1..5) {
            let done = match random.random_range(0..24) {
                0..3 => {
                    open.savepoints.push((
                        open.transaction.savepoint(),
                        open.view.clone(),
                        open.handles.clone(),
                    ));
                    "savepoint"
                }
                3..6 => open.roll_back(random)?,
                6..8 => {
                    let seen = seen_by(&open.transaction, &mut open.handles)?;
                    if seen != open.view {
                        let difference = crate::model::difference(&seen, &open.view);
                        return Ok(Err(format!("a transaction does not see its own tables: {difference}")));
                    }
                    "look"
                }
                _ => open.change(random)?,
            };
            self.done.push(done);
        }
        match random.random_range(0..12) {
            0..3 => {
                let Some(Open { transaction, durability, view, .. }) = self.open.take() else {
                    return Ok(Ok(Step::Done));
                };
                self.done.push("commit");
                Ok(Ok(Step::Commit(transaction, durability, Operation::Tables { contents: view })))
            }
            3 => {
                self.done.push("rollback");
                self.open.take().map_or(Ok(()), |open| open.transaction.rollback())?;
                Ok(Ok(Step::Done))
            }
            _ => Ok(Ok(Step::Done)),
        }
    }

    /// Begins a reader, has it look, or ends it. Says what is wrong.
    fn read(&mut self, database: &Database, now: &Contents, random: &mut StdRng) -> Result<Option<String>> {
        match (random.random_range(0..12), &mut self.reader) {
            (0..3, None) => self.reader = Some((database.begin()?, own(now), Handles::new())),
            (0..2, Some((transaction, then, handles))) => {
                let seen = seen_by(transaction, handles)?;
                if seen != *then {
                    let difference = crate::model::difference(&seen, then);
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
        self.reader = None;
        self.open.take().map_or(Ok(()), |open| open.transaction.rollback())
    }
}
