//! One of the transactions that change tables: what it sees of them, what it has claimed, and what is left once it is committed.

use crate::{
    claims::{Claim, Claims, Id},
    model::{Contents, Operation, is_plain, is_shared},
    table_requests::{Ids, change_ids, refusal},
};
use rand::{RngExt, rngs::StdRng};
use std::collections::{BTreeMap, BTreeSet};
use vellum::{
    Database, Durability, Error, ErrorKind, Result, Savepoint, Table, TableOptions, Transaction,
    TransactionOptions,
};

/// Handles on tables by their present names, which they may have got since.
pub type Handles = BTreeMap<String, Table>;

/// A transaction that is open.
pub struct Open {
    pub transaction: Transaction,
    durability: Durability,
    /// Which tables there were when it began.
    before: Ids,
    /// What its tables are and hold as it sees them; of plain ones that is known only if it has made what they hold.
    pub ids: Ids,
    pub view: Contents,
    pub handles: Handles,
    pub claims: Claims,
    savepoints: Vec<(Savepoint, Saved)>,
}

/// What a transaction has at a savepoint: its tables, what they hold, its handles, and how much it has claimed.
type Saved = (Ids, Contents, Handles, usize);

/// A transaction that is to be committed.
pub struct Commit {
    pub transaction: Transaction,
    pub durability: Durability,
    pub operation: Operation,
    pub committed: Committed,
}

/// What is known once it is.
pub struct Committed {
    pub ids: Ids,
    pub claims: Claims,
    /// What it has left as it was.
    pub unchanged: BTreeSet<Claim>,
}

impl Open {
    pub fn begin(
        database: &Database,
        (ids, now): (&Ids, &Contents),
        claims: Claims,
        random: &mut StdRng,
    ) -> Result<Self> {
        let durability = [Durability::Synced, Durability::Buffered, Durability::Deferred];
        let durability = durability[random.random_range(0..3)];
        let transaction = database.begin_with(TransactionOptions::default().durability(durability))?;
        let (view, handles, savepoints) = (without_plain(own(now)), Handles::new(), Vec::new());
        let (before, ids) = (ids.clone(), ids.clone());
        Ok(Self { transaction, durability, before, ids, view, handles, claims, savepoints })
    }

    /// The error with which something is refused that makes no sense.
    pub fn refusal(&self, operation: &Operation) -> Option<ErrorKind> {
        let is_used = match operation {
            Operation::Load { table, .. } => !self.has_created(table),
            operation => operation.record().is_some(),
        };
        let table = operation.record().map(|(table, _)| table);
        let table = table.as_deref().or(operation.whole_table());
        let is_of_plain = is_used && table.is_some_and(is_plain);
        if is_of_plain { Some(ErrorKind::InvalidInput) } else { refusal(operation, &self.view) }
    }

    fn has_created(&self, table: &str) -> bool {
        let id = self.ids.get(table);
        !self.before.values().any(|before| Some(before) == id)
    }

    /// Whether a table holds something that others have stored, though this one sees none of it.
    pub fn overlooks(&self, table: &str, ids: &Ids, now: &Contents) -> bool {
        let id = self.ids[table];
        let Some((name, _)) = ids.iter().find(|(_, other)| **other == id) else { return false };
        let is_removed = |key: &Vec<u8>| self.claims.has(&Claim::Record(id, key.clone()));
        !self.claims.has(&Claim::Contents(id)) && !now[name].keys().all(is_removed)
    }

    /// Does something. A load may be begun only.
    pub fn perform(&mut self, operation: &Operation, is_begun_only: bool) -> Result<()> {
        let Self { transaction, handles, .. } = self;
        let mut handle = |name: &str| handle(transaction, handles, name);
        match operation {
            Operation::Create { table } => {
                let options = TableOptions::default().versions(!is_plain(table));
                transaction.create_table_with(table.as_str(), options).map(drop)
            }
            Operation::Drop { table } => transaction.drop_table(table),
            Operation::Clear { table } => transaction.clear_table(table),
            Operation::Rename { table, new } => transaction.rename_table(table, new),
            Operation::Load { table, entries } if is_begun_only => {
                let table = handle(table)?;
                let mut loader = transaction.bulk_loader(&table)?;
                entries.iter().take(5).try_for_each(|(key, value)| loader.push(key, value))
            }
            Operation::Load { table, entries } => transaction.bulk_load(&handle(table)?, entries).map(drop),
            Operation::Put { table, key, value } => transaction.put(&handle(table)?, key, value).map(drop),
            Operation::Remove { table, key } => transaction.remove(&handle(table)?, key).map(drop),
            Operation::Modify { table, key, by } => {
                let change =
                    |value: &mut [u8]| value.iter_mut().for_each(|byte| *byte = byte.wrapping_add(*by));
                transaction.modify(&handle(table)?, key, change).map(drop)
            }
            Operation::Tables { .. } | Operation::Commit { .. } => unreachable!("it is done step by step"),
        }
    }

    /// It has done something.
    pub fn note(&mut self, operation: &Operation, claims: Vec<Claim>, new_id: Id) {
        self.claims.add(claims);
        operation.apply(&mut self.view);
        change_ids(operation, &mut self.ids, new_id);
        match operation {
            Operation::Drop { table } => drop(self.handles.remove(table)),
            Operation::Rename { table, new } => {
                let handle = self.handles.remove(table);
                handle.map(|handle| self.handles.insert(new.clone(), handle));
            }
            _ => {}
        }
    }

    pub fn save(&mut self) {
        let saved = (self.ids.clone(), self.view.clone(), self.handles.clone(), self.claims.len());
        self.savepoints.push((self.transaction.savepoint(), saved));
    }

    /// Goes back to a savepoint, if there is any; says to which.
    pub fn roll_back(&mut self, random: &mut StdRng) -> Result<Option<usize>> {
        if self.savepoints.is_empty() {
            return Ok(None);
        }
        let to = random.random_range(0..self.savepoints.len());
        self.savepoints.truncate(to + 1);
        let (savepoint, (ids, view, handles, claimed)) = &self.savepoints[to];
        self.transaction.rollback_to(*savepoint)?;
        (self.ids, self.view, self.handles) = (ids.clone(), view.clone(), handles.clone());
        self.claims.go_back(*claimed);
        Ok(Some(to))
    }

    /// What all tables are and hold once it is committed.
    pub fn commit(self, ids: &Ids, now: &Contents) -> Commit {
        let Self { transaction, durability, before, ids: own_ids, mut view, claims, .. } = self;
        let name_in =
            |ids: &Ids, id| ids.iter().find(|(_, other)| **other == id).map(|(name, _)| name.clone());
        let (mut contents, mut new_ids, mut unchanged) = (own(now), Ids::new(), BTreeSet::new());
        let mut new_contents = Contents::new();
        for (name, id) in ids {
            let mut entries = contents.remove(name).unwrap_or_default();
            let (old, own_name) = (name_in(&before, *id), name_in(&own_ids, *id));
            // Others may have renamed it, if this one has not.
            let Some(new) = (if old == own_name { Some(name.clone()) } else { own_name.clone() }) else {
                continue;
            };
            if claims.has(&Claim::Contents(*id)) {
                entries = own_name.and_then(|name| view.remove(&name)).unwrap_or_default();
            } else if let Some(own) = own_name.and_then(|name| view.get(&name)) {
                let keys: BTreeSet<_> = claims.iter().filter_map(|claim| claim.key_in(*id)).collect();
                for key in keys {
                    let done = match own.get(key) {
                        Some(value) => entries.insert(key.clone(), value.clone()),
                        None => entries.remove(key),
                    };
                    if done.is_none() && !own.contains_key(key) {
                        unchanged.insert(Claim::Record(*id, key.clone()));
                    }
                }
            }
            new_ids.insert(new.clone(), *id);
            new_contents.insert(new, entries);
        }
        let is_new = |id: &Id| !before.values().chain(ids.values()).any(|other| other == id);
        for (name, id) in own_ids.into_iter().filter(|(_, id)| is_new(id)) {
            new_contents.insert(name.clone(), view.remove(&name).unwrap_or_default());
            assert!(new_ids.insert(name, id).is_none(), "two tables of one name");
        }
        for name in claims.iter().filter_map(Claim::name) {
            let id = ids.get(name);
            if id == new_ids.get(name) && id.is_none_or(|id| !claims.has(&Claim::Contents(*id))) {
                unchanged.insert(Claim::Name(name.clone()));
            }
        }
        let operation = Operation::Tables { contents: new_contents };
        Commit {
            transaction,
            durability,
            operation,
            committed: Committed { ids: new_ids, claims, unchanged },
        }
    }
}

/// The tables that only these clients change.
pub fn own(contents: &Contents) -> Contents {
    let own = contents.iter().filter(|(name, _)| !is_shared(name));
    own.map(|(name, entries)| (name.clone(), entries.clone())).collect()
}

/// What tables with versions hold, and the names of the others.
pub fn without_plain(mut contents: Contents) -> Contents {
    contents.iter_mut().filter(|(name, _)| is_plain(name)).for_each(|(_, entries)| entries.clear());
    contents
}

/// The same, as a transaction sees it.
pub fn seen_by(transaction: &Transaction, handles: &mut Handles) -> Result<Contents> {
    let mut seen = Contents::new();
    for information in transaction.tables()?.into_iter().filter(|table| !is_shared(&table.name)) {
        assert_eq!(information.is_plain, is_plain(&information.name));
        let table = handle(transaction, handles, &information.name)?;
        let entries = seen.entry(information.name).or_default();
        if information.is_plain {
            let refused = transaction.cursor(&table, ..).map(drop);
            assert!(matches!(refused, Err(Error::PlainTable { .. })), "{refused:?}");
            continue;
        }
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
