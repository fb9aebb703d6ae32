//! What a database holds, what each open transaction sees of it, and which changes and commits are refused.

pub use super::bounds::{bounds_text, short, within};
use super::{commits::Commits, prefixes::History};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    rc::Rc,
};
use vellum::Durability;

pub type Key = Vec<u8>;
pub type Value = Rc<Vec<u8>>;
/// What a table holds.
pub type Entries = BTreeMap<Key, Value>;
pub type Bounds = (Bound<Key>, Bound<Key>);

/// A table, whatever its name is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Id(pub u32);

/// The names of tables as if they were the keys of a table.
pub const CATALOG: Id = Id(u32::MAX);

/// The number of an open transaction.
pub type Number = u64;

/// Whether something is refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Clash {
    None,
    /// It may be, and need not be.
    Maybe,
    Certain,
}

/// What is done to a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    /// Its value is changed.
    Change,
    /// It is kept for the transaction, and stays as it is.
    Reserve,
    /// It is found to be such that there is nothing to do.
    Check,
}

/// What somebody sees.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct View {
    pub names: BTreeMap<String, Id>,
    pub tables: BTreeMap<Id, Rc<Entries>>,
}

/// An open transaction.
#[derive(Clone)]
pub struct Open {
    pub begun: u64,
    pub is_serializable: bool,
    /// After a conflict it can only be rolled back.
    pub is_dead: bool,
    /// A request has failed: it has changed nothing, and may have kept or read something.
    pub is_unclear: bool,
    pub view: View,
    /// The records that it has changed.
    changed: BTreeSet<(Id, Key)>,
    /// The records that belong to it.
    held: BTreeSet<(Id, Key)>,
    /// Those that may belong to it.
    perhaps_held: BTreeSet<(Id, Key)>,
    /// The tables of which it has changed records.
    writes: BTreeSet<Id>,
    /// The tables that it has created, cleared, loaded or dropped.
    pub owned: BTreeSet<Id>,
    /// What those held that it has dropped.
    dropped: BTreeMap<Id, Rc<Entries>>,
    /// Those of them that have another tree for it.
    replaced: BTreeSet<Id>,
    pub created: BTreeSet<Id>,
    /// What it has read: certainly, and at most.
    read: Vec<(Id, Bounds)>,
    read_at_most: Vec<(Id, Bounds)>,
    /// The tables that must not be cleared or dropped, for what it has read.
    read_tables: BTreeSet<Id>,
}

/// What a savepoint goes back to.
#[derive(Clone)]
pub struct Saved {
    pub view: View,
    changed: BTreeSet<(Id, Key)>,
    owned: BTreeSet<Id>,
    replaced: BTreeSet<Id>,
    created: BTreeSet<Id>,
}

#[derive(Clone, Default)]
pub struct Model {
    /// The number of the last commit or beginning.
    now: u64,
    /// What was committed.
    pub view: View,
    /// What a dropped table held.
    gone: BTreeMap<Id, Rc<Entries>>,
    pub open: BTreeMap<Number, Open>,
    /// The commits that have last changed each record, and those that may have.
    changed: BTreeMap<Id, BTreeMap<Key, u64>>,
    perhaps_changed: BTreeMap<Id, BTreeMap<Key, u64>>,
    /// The commits that have last given each table another tree, or dropped it.
    replaced: BTreeMap<Id, u64>,
    /// The last commit that may have changed any record, as far as others can tell: something had failed.
    unclear: u64,
    /// What a transaction has kept may not be undone yet. A conflict lets the next one that begins try again.
    not_undone: Option<bool>,
    /// What tables have held, for a transaction or for all, one after the other, since something is held.
    past: Vec<(Option<Number>, Id, Rc<Entries>)>,
    /// The commits, while they are watched, and how durable those of single operations are.
    pub history: Option<History>,
    pub durability: Durability,
    pub commits: Commits,
}

impl Model {
    pub fn begin(&mut self, number: Number, is_serializable: bool) {
        if self.not_undone == Some(true) {
            self.note_undone();
        }
        // No two have begun at once.
        self.now += 1;
        let open = Open {
            begun: self.now,
            is_serializable,
            is_dead: false,
            is_unclear: false,
            view: self.view.clone(),
            changed: BTreeSet::new(),
            held: BTreeSet::new(),
            perhaps_held: BTreeSet::new(),
            writes: BTreeSet::new(),
            owned: BTreeSet::new(),
            dropped: BTreeMap::new(),
            replaced: BTreeSet::new(),
            created: BTreeSet::new(),
            read: Vec::new(),
            read_at_most: Vec::new(),
            read_tables: BTreeSet::new(),
        };
        self.open.insert(number, open);
    }

    /// What a table holds for a transaction, or for all; none if it is not seen.
    pub fn entries(&self, number: Option<Number>, table: Id) -> Option<Rc<Entries>> {
        match number {
            Some(number) => self.open[&number].view.tables.get(&table).cloned(),
            None => self.view.tables.get(&table).or_else(|| self.gone.get(&table)).cloned(),
        }
    }

    /// Whether a transaction other than `number` has the whole table for itself.
    pub fn is_owned(&self, number: Option<Number>, table: Id) -> bool {
        self.others(number).any(|(_, other)| other.owned.contains(&table))
    }

    fn others(&self, number: Option<Number>) -> impl Iterator<Item = (&Number, &Open)> {
        self.open.iter().filter(move |(other, _)| Some(**other) != number)
    }

    /// Whether a transaction, or a single operation, is refused when it does this to a record.
    pub fn clash(&self, number: Option<Number>, table: Id, key: &[u8], touch: Touch) -> Clash {
        if self.is_owned(number, table) {
            return Clash::Certain;
        }
        let record = (table, key.to_vec());
        let mut clash = self.clash_with_dead(number);
        for (_, other) in self.others(number) {
            if other.changed.contains(&record) || touch != Touch::Check && other.held.contains(&record) {
                return Clash::Certain;
            }
            if other.held.contains(&record) || other.perhaps_held.contains(&record) {
                clash = Clash::Maybe;
            }
        }
        let Some(open) = number.map(|number| &self.open[&number]) else { return clash };
        if open.replaced.contains(&table) {
            return clash;
        }
        let since = |commits: &BTreeMap<Id, BTreeMap<Key, u64>>| {
            commits
                .get(&table)
                .and_then(|commits| commits.get(key))
                .is_some_and(|commit| *commit > open.begun)
        };
        if self.is_replaced_since(open, table) || since(&self.changed) {
            Clash::Certain
        } else if since(&self.perhaps_changed) || self.unclear > open.begun {
            Clash::Maybe
        } else {
            clash
        }
    }

    fn is_replaced_since(&self, open: &Open, table: Id) -> bool {
        !open.replaced.contains(&table)
            && self.replaced.get(&table).is_some_and(|commit| *commit > open.begun)
    }

    /// Whether a transaction is refused when it takes a table for itself.
    pub fn clash_of_table(&self, number: Number, table: Id) -> Clash {
        let is_used = |other: &Open| other.owned.contains(&table) || other.writes.contains(&table);
        let is_certain = self.others(Some(number)).any(|(_, other)| is_used(other))
            || self.is_replaced_since(&self.open[&number], table);
        if is_certain { Clash::Certain } else { self.clash_with_dead(Some(number)) }
    }

    /// It is unknown what transactions have done whose last request has met a conflict.
    pub fn clash_with_dead(&self, number: Option<Number>) -> Clash {
        let is_unclear = |other: &Open| other.is_dead || other.is_unclear;
        if self.not_undone.is_some() || self.others(number).any(|(_, other)| is_unclear(other)) {
            Clash::Maybe
        } else {
            Clash::None
        }
    }

    /// Notes what a transaction has done to a record. `value` is what that is then.
    pub fn touch(&mut self, number: Number, table: Id, key: &[u8], touch: Touch, value: Option<Value>) {
        let open = self.open.get_mut(&number).unwrap();
        if table != CATALOG {
            open.writes.insert(table);
        }
        if touch == Touch::Check {
            return;
        }
        let record = (table, key.to_vec());
        // A tree of its own belongs to it as a whole.
        if !open.replaced.contains(&table) {
            open.held.insert(record.clone());
        }
        if touch == Touch::Reserve {
            return;
        }
        open.changed.insert(record);
        if table != CATALOG {
            let entries = Rc::make_mut(open.view.tables.get_mut(&table).unwrap());
            set(entries, key, value);
        }
    }

    /// A transaction may have kept a record for itself.
    pub fn perhaps_hold(&mut self, number: Number, table: Id, key: &[u8]) {
        let open = self.open.get_mut(&number).unwrap();
        open.perhaps_held.insert((table, key.to_vec()));
    }

    /// A single operation has changed these records.
    pub fn change(&mut self, table: Id, changes: &[(Key, Option<Value>)]) {
        self.now += 1;
        let entries = Rc::make_mut(self.view.tables.get_mut(&table).unwrap());
        for (key, value) in changes {
            set(entries, key, value.clone());
            self.changed.entry(table).or_default().insert(key.clone(), self.now);
            self.commits.add_single(self.now, table, key, value.clone());
        }
        self.note_past(table);
        self.note_commit(self.durability);
    }

    /// A single operation has changed a record before these transactions began, and after all others that are open.
    pub fn change_since(&mut self, table: Id, key: &Key, value: Option<&Value>, seen_by: &[Number]) {
        let count = self.commit_count();
        self.change(table, &[(key.clone(), value.cloned())]);
        self.promise_from(count, Durability::Deferred);
        let first = seen_by.iter().map(|number| self.open[number].begun).min();
        let commit = first.unwrap_or(self.now);
        self.changed.entry(table).or_default().insert(key.clone(), commit);
        for number in seen_by {
            let open = self.open.get_mut(number).unwrap();
            set(Rc::make_mut(open.view.tables.get_mut(&table).unwrap()), key, value.cloned());
        }
    }

    /// The number of the last commit or beginning.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The transactions that have begun since, in this order.
    pub fn begun_since(&self, time: u64) -> Vec<Number> {
        let since = self.open.iter().filter(|(_, open)| open.begun > time);
        since.map(|(number, _)| *number).collect()
    }

    /// Notes what a table holds now.
    fn note_past(&mut self, table: Id) {
        if let Some(entries) = self.view.tables.get(&table) {
            self.past.push((None, table, entries.clone()));
        }
    }

    /// How often the contents of tables have been noted.
    pub fn past_count(&self) -> usize {
        self.past.len()
    }

    /// What a table has held since so many notes.
    pub fn past_of(
        &self,
        number: Option<Number>,
        table: Id,
        since: usize,
    ) -> impl Iterator<Item = Rc<Entries>> {
        let past = self.past.get(since..).unwrap_or_default().iter();
        past.filter(move |past| (past.0, past.1) == (number, table)).map(|past| past.2.clone())
    }

    /// Nothing is held any more.
    pub fn forget_past(&mut self) {
        self.past.clear();
    }

    /// A single operation has left a record as it is. It may have been one that claims the record.
    pub fn leave(&mut self, table: Id, key: &[u8]) {
        self.now += 1;
        self.perhaps_changed.entry(table).or_default().insert(key.to_vec(), self.now);
    }

    /// A transaction may have ended without being rolled back.
    pub fn note_not_undone(&mut self) {
        self.not_undone = Some(false);
    }

    pub fn note_conflict(&mut self) {
        self.not_undone = self.not_undone.map(|_| true);
    }

    /// Everything is undone.
    pub fn note_undone(&mut self) {
        self.not_undone = None;
    }

    /// A single operation has failed.
    pub fn note_unclear(&mut self) {
        self.note_not_undone();
        self.now += 1;
        self.unclear = self.now;
    }

    /// A transaction gives a table other contents as a whole.
    pub fn replace(&mut self, number: Number, table: Id, entries: Entries) {
        let open = self.open.get_mut(&number).unwrap();
        let before = open.view.tables.insert(table, Rc::new(entries));
        self.past.extend(before.map(|before| (Some(number), table, before)));
        open.owned.insert(table);
        open.replaced.insert(table);
    }

    /// A transaction drops a table, which has lost its name.
    pub fn drop_table(&mut self, number: Number, table: Id) {
        let open = self.open.get_mut(&number).unwrap();
        open.owned.insert(table);
        let held = open.view.tables.remove(&table).unwrap();
        open.dropped.insert(table, held);
    }

    /// Whether a table was dropped and will not come back, or its creation was undone.
    pub fn is_gone(&self, table: Id) -> bool {
        let is_seen = |open: &Open| open.owned.contains(&table);
        !self.view.tables.contains_key(&table) && !self.open.values().any(is_seen)
    }

    /// What a table held when it was dropped, if that is known and shown.
    pub fn held_when_dropped(&self, number: Option<Number>, table: Id) -> Option<Rc<Entries>> {
        let held = self.gone.get(&table);
        let Some(open) = number.map(|number| &self.open[&number]) else { return held.cloned() };
        if open.owned.contains(&table) {
            return open.dropped.get(&table).cloned();
        }
        held.filter(|_| self.replaced.get(&table).is_some_and(|commit| *commit < open.begun)).cloned()
    }

    /// Whether there are records that a transaction which sees none has not removed itself.
    pub fn is_filled_for(&self, number: Number, table: Id) -> bool {
        let (open, now) = (&self.open[&number], self.view.tables.get(&table));
        let is_own = |key: &Key| open.changed.contains(&(table, key.clone()));
        !open.owned.contains(&table) && now.is_some_and(|now| !now.keys().all(is_own))
    }

    /// Whether a load outside of transactions is refused. What it loads is seen by all that see the same tree.
    pub fn clash_of_load(&self, table: Id) -> Clash {
        let mut clash = self.clash_with_dead(None);
        for open in self.open.values() {
            let sees = !self.is_replaced_since(open, table);
            let holds_any = open.view.tables.get(&table).is_some_and(|entries| !entries.is_empty());
            if open.owned.contains(&table) || open.writes.contains(&table) || sees && holds_any {
                return Clash::Certain;
            }
            // Something may be kept for it, also of changes that were undone.
            clash = Clash::Maybe;
        }
        clash
    }

    /// Returns the transactions that see it.
    pub fn load(&mut self, table: Id, entries: &Entries) -> Vec<Number> {
        self.now += 1;
        self.view.tables.insert(table, Rc::new(entries.clone()));
        let perhaps = self.perhaps_changed.entry(table).or_default();
        perhaps.extend(entries.keys().map(|key| (key.clone(), self.now)));
        self.commits.add_load(self.now, table, self.view.tables[&table].clone());
        let sees = |open: &Open| {
            open.view.tables.contains_key(&table)
                && self.replaced.get(&table).is_none_or(|commit| *commit <= open.begun)
        };
        let mut all = Vec::new();
        for (number, open) in &mut self.open {
            if sees(open) {
                open.view.tables.insert(table, Rc::new(entries.clone()));
                all.push(*number);
            }
        }
        self.note_past(table);
        self.note_commit(self.durability);
        all
    }

    /// A transaction gives tables names, or takes them away.
    pub fn name(&mut self, number: Number, name: &str, table: Option<Id>) {
        self.touch(number, CATALOG, name.as_bytes(), Touch::Change, None);
        let open = self.open.get_mut(&number).unwrap();
        match table {
            Some(table) => _ = open.view.names.insert(name.to_owned(), table),
            None => _ = open.view.names.remove(name),
        }
    }

    pub fn note_read(&mut self, number: Option<Number>, table: Id, bounds: Bounds, is_certain: bool) {
        let Some(open) = number.and_then(|number| self.open.get_mut(&number)) else { return };
        // Nobody else changes what has its own tree.
        if !open.is_serializable || open.replaced.contains(&table) {
            return;
        }
        if table != CATALOG {
            open.read_tables.insert(table);
        }
        if is_certain {
            open.read.push((table, bounds.clone()));
        }
        open.read_at_most.push((table, bounds));
    }

    pub fn note_key(&mut self, number: Option<Number>, table: Id, key: &[u8]) {
        self.note_read(number, table, (Bound::Included(key.to_vec()), Bound::Included(key.to_vec())), true);
    }

    /// Whether the commit of a transaction is refused.
    pub fn clash_of_commit(&self, number: Number) -> Clash {
        let open = &self.open[&number];
        if open.is_dead {
            return Clash::Certain;
        }
        if !open.is_serializable || open.held.is_empty() && open.owned.is_empty() {
            return Clash::None;
        }
        let is_changed = |commits: &BTreeMap<Id, BTreeMap<Key, u64>>, (table, bounds): &(Id, Bounds)| {
            let Some(commits) = commits.get(table) else { return false };
            within(commits, bounds).any(|(_, commit)| *commit > open.begun)
        };
        let is_replaced = open.read_tables.iter().any(|table| self.replaced.get(table) > Some(&open.begun));
        let is_certain = is_replaced || open.read.iter().any(|read| is_changed(&self.changed, read));
        let is_possible = |read| is_changed(&self.changed, read) || is_changed(&self.perhaps_changed, read);
        let has_changed = !open.changed.is_empty() || !open.owned.is_empty();
        if is_certain && has_changed && !open.is_unclear {
            Clash::Certain
        } else if is_certain
            || open.is_unclear
            || open.read_at_most.iter().any(is_possible)
            || self.unclear > open.begun
        {
            Clash::Maybe
        } else {
            Clash::None
        }
    }

    /// Large values may have been stored again where they lie better.
    pub fn compact(&mut self) {
        self.now += 1;
        self.commits.add_compaction(self.now);
        for (table, entries) in &self.view.tables {
            let large = entries.iter().filter(|(key, value)| key.len() + value.len() > 1024);
            let perhaps = self.perhaps_changed.entry(*table).or_default();
            perhaps.extend(large.map(|(key, _)| (key.clone(), self.now)));
        }
    }

    pub fn commit(&mut self, number: Number) {
        let open = self.open.remove(&number).unwrap();
        self.now += 1;
        if open.is_unclear {
            self.unclear = self.now;
        }
        for record in &open.held {
            let commits =
                if open.changed.contains(record) { &mut self.changed } else { &mut self.perhaps_changed };
            commits.entry(record.0).or_default().insert(record.1.clone(), self.now);
        }
        for (table, key) in &open.perhaps_held {
            self.perhaps_changed.entry(*table).or_default().insert(key.clone(), self.now);
        }
        for (table, key) in &open.changed {
            if *table == CATALOG {
                let name = std::str::from_utf8(key).unwrap();
                match open.view.names.get(name) {
                    Some(table) => _ = self.view.names.insert(name.to_owned(), *table),
                    None => _ = self.view.names.remove(name),
                }
            } else if !open.replaced.contains(table)
                && let Some(entries) = self.view.tables.get_mut(table)
                && let Some(own) = open.view.tables.get(table).or_else(|| open.dropped.get(table))
            {
                set(Rc::make_mut(entries), key, own.get(key).cloned());
            }
        }
        for table in &open.replaced {
            self.replaced.insert(*table, self.now);
            if let Some(entries) = open.view.tables.get(table) {
                self.view.tables.insert(*table, entries.clone());
            }
        }
        let is_named = |table: &Id| self.view.names.values().any(|named| named == table);
        let gone: Vec<Id> = self.view.tables.keys().copied().filter(|table| !is_named(table)).collect();
        for table in gone {
            self.replaced.insert(table, self.now);
            let held = self.view.tables.remove(&table).unwrap();
            // Nobody has promised whether a table that was cleared first shows what it held before.
            if !open.replaced.contains(&table) {
                self.gone.insert(table, held);
            }
        }
        self.commits.add_transaction((self.now, open.begun), (&open.changed, &open.replaced), &self.view);
        let touched = open.changed.iter().map(|(table, _)| *table).chain(open.replaced);
        touched.collect::<BTreeSet<Id>>().into_iter().for_each(|table| self.note_past(table));
    }

    pub fn roll_back(&mut self, number: Number) {
        self.open.remove(&number);
    }

    pub fn save(&self, number: Number) -> Saved {
        let open = &self.open[&number];
        Saved {
            view: open.view.clone(),
            changed: open.changed.clone(),
            owned: open.owned.clone(),
            replaced: open.replaced.clone(),
            created: open.created.clone(),
        }
    }

    pub fn go_back(&mut self, number: Number, saved: Saved) {
        let open = self.open.get_mut(&number).unwrap();
        let before = open.view.tables.iter().map(|(table, entries)| (Some(number), *table, entries.clone()));
        self.past.extend(before);
        // A tree that it has made and taken back is emptied: what it changes itself may be shown or not.
        let emptied = open.replaced.difference(&saved.replaced);
        self.past.extend(emptied.map(|table| (Some(number), *table, Rc::default())));
        (open.view, open.changed, open.owned) = (saved.view, saved.changed, saved.owned);
        (open.replaced, open.created) = (saved.replaced, saved.created);
    }
}

fn set(entries: &mut Entries, key: &[u8], value: Option<Value>) {
    match value {
        Some(value) => _ = entries.insert(key.to_vec(), value),
        None => _ = entries.remove(key),
    }
}
