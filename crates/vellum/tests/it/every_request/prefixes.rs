//! Which commits a database may hold that was opened anew: those up to one of them, in their order.

use super::{
    Run,
    model::{Entries, Id, Key, Model, Value, View, short},
    typed::Keys,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};
use vellum::{Database, Durability, Result};

/// What was there after each commit, and how durable the commit was said to be.
#[derive(Clone)]
pub struct History {
    commits: Vec<(View, Durability)>,
    /// The first and the last of those that were made by one call, and in any order.
    batches: Vec<(usize, usize)>,
}

/// A change by a single operation that may have been made at any moment.
pub struct Floating {
    pub key: Key,
    pub value: Option<Value>,
    /// What was said of it, if it was acknowledged.
    pub promise: Option<Durability>,
}

/// What a database holds.
#[derive(Default)]
pub struct Found {
    tables: BTreeMap<String, FoundTable>,
}

struct FoundTable {
    key_type: String,
    is_plain: bool,
    entries: BTreeMap<Key, Vec<u8>>,
}

impl Model {
    /// A database that holds this, and whose single operations are so durable.
    pub fn of(view: View, durability: Durability) -> Self {
        let mut model = Self::default();
        (model.view, model.durability) = (view, durability);
        model
    }

    /// Watches commits from now on, where everything is durable.
    pub fn watch_commits(&mut self) {
        let commits = vec![(self.view.clone(), Durability::Synced)];
        self.history = Some(History { commits, batches: Vec::new() });
    }

    /// Notes what there is after a commit.
    pub fn note_commit(&mut self, promise: Durability) {
        let Some(History { commits: all, .. }) = &mut self.history else { return };
        // A commit that changes nothing promises nothing.
        if all.last().is_none_or(|(last, _)| *last != self.view) {
            all.push((self.view.clone(), promise));
        }
    }

    /// Everything so far is durable.
    pub fn note_sync(&mut self) {
        self.promise_from(0, Durability::Synced);
    }

    /// Sets what was promised of the commits from number `first` on.
    pub fn promise_from(&mut self, first: usize, promise: Durability) {
        let all = self.history.iter_mut().flat_map(|history| &mut history.commits);
        all.skip(first).for_each(|commit| commit.1 = promise);
    }

    pub fn commit_count(&self) -> usize {
        self.history.as_ref().map_or(0, |history| history.commits.len())
    }

    /// The commits from number `first` on were made by one call, in any order.
    pub fn note_batch(&mut self, first: usize) {
        let last = self.commit_count().saturating_sub(1);
        if let Some(history) = self.history.as_mut().filter(|_| last >= first) {
            history.batches.push((first, last));
        }
    }

    /// The last commit that was said to be so durable.
    pub fn last_promised(&self, least: Durability) -> usize {
        let all = &self.history.as_ref().unwrap().commits;
        all.iter().rposition(|(_, promise)| *promise >= least).unwrap()
    }

    /// Goes on with what was found, if it is what there was after one of the commits from `first` on, with some of the changes
    /// that may have been made at any moment to a table.
    pub fn take_found(
        &mut self,
        found: &Found,
        first: usize,
        floating: Option<&(Id, Vec<Floating>)>,
        least: Durability,
    ) -> usize {
        let History { commits: all, batches } = self.history.take().unwrap();
        let mut reasons = Vec::new();
        let whole = (first..all.len()).map(|number| (number, all[number].0.clone()));
        let begun = batches.iter().filter(|(_, last)| *last > first);
        let in_part =
            begun.map(|(begin, last)| (*last, in_part(&all[begin.saturating_sub(1)..=*last], found)));
        for (number, mut view) in whole.chain(in_part) {
            if let Some((table, floating)) = floating {
                float(&mut view, *table, floating, found, least);
            }
            match found.objection(&view, &BTreeSet::new()) {
                None => {
                    *self = Self::of(view, self.durability);
                    return all.len() - number;
                }
                Some(reason) => reasons.push(format!("{number}: {reason}")),
            }
        }
        panic!("it is none of the commits from {first} on: {}", reasons.join("\n"));
    }
}

/// What there is if each record has some value that it had during a batch: that which was found, if it is one of those.
fn in_part(commits: &[(View, Durability)], found: &Found) -> View {
    let mut view = commits[0].0.clone();
    for (name, table) in &view.names {
        let Some(found) = found.tables.get(name) else { continue };
        let values = |key: &Key| {
            commits.iter().filter_map(|(view, _)| Some(view.tables.get(table)?.get(key))).collect::<Vec<_>>()
        };
        let keys: BTreeSet<Key> =
            commits.iter().flat_map(|(view, _)| view.tables[table].keys().cloned()).collect();
        let entries: &mut Entries = Rc::make_mut(view.tables.get_mut(table).unwrap());
        for key in keys {
            let found = found.entries.get(&key);
            if let Some(value) = values(&key).into_iter().find(|value| value.map(|value| &**value) == found) {
                match value.cloned() {
                    Some(value) => _ = entries.insert(key, value),
                    None => _ = entries.remove(&key),
                }
            }
        }
    }
    view
}

/// Makes those of the changes that were found, or had to be.
fn float(view: &mut View, table: Id, floating: &[Floating], found: &Found, least: Durability) {
    let Some((name, _)) = view.names.iter().find(|(_, named)| **named == table) else { return };
    let Some(found) = found.tables.get(name) else { return };
    let entries: &mut Entries = Rc::make_mut(view.tables.get_mut(&table).unwrap());
    for Floating { key, value, promise } in floating {
        let is_there = found.entries.get(key) == value.as_ref().map(|value| &**value);
        if is_there || promise.is_some_and(|promise| promise >= least) {
            match value {
                Some(value) => _ = entries.insert(key.clone(), value.clone()),
                None => _ = entries.remove(key),
            }
        }
    }
}

impl Found {
    pub fn read(database: &Database) -> Result<Self> {
        let mut tables = BTreeMap::new();
        for info in database.tables()? {
            let entries = database.table_as_bytes(&info.name)?.range(..)?.collect::<Result<_>>()?;
            let (key_type, is_plain) = (info.key_type, info.is_plain);
            tables.insert(info.name, FoundTable { key_type, is_plain, entries });
        }
        Ok(Self { tables })
    }

    /// How it differs from this, leaving out some tables.
    pub fn objection(&self, view: &View, left_out: &BTreeSet<Id>) -> Option<String> {
        if !self.tables.keys().eq(view.names.keys()) {
            return Some(format!("tables {:?} and not {:?}", self.tables.keys(), view.names.keys()));
        }
        for (name, table) in view.names.iter().filter(|(_, table)| !left_out.contains(table)) {
            let (found, expected) = (&self.tables[name].entries, &view.tables[table]);
            let differs = |key: &&Key| found.get(*key) != expected.get(*key).map(|value| &**value);
            if let Some(key) = found.keys().chain(expected.keys()).find(differs) {
                let (found, expected) = (found.get(key), expected.get(key));
                return Some(format!(
                    "{} in {name} has {:?} and not {:?}",
                    short(key),
                    found.map(|value| short(value)),
                    expected.map(|value| short(value))
                ));
            }
        }
        None
    }
}

impl Run {
    /// The tables are of the types with which they were created.
    pub fn compare_types(&self, found: &Found, types: &BTreeMap<Id, (Keys, bool)>) {
        for (name, table) in &self.model.view.names {
            // One that was dropped is not known any more.
            let Some((keys, is_plain)) = types.get(table) else { continue };
            let found = &found.tables[name];
            assert!(found.key_type == keys.name() && found.is_plain == *is_plain, "{name}");
        }
    }
}
