//! What was committed, in its order, and whether a feed of changes tells it.
//!
//! A change by a single future is known to be made when the future says so, and may have been made at any moment since its
//! first poll: a feed may tell it earlier than the model has noted it. The operations of one call come in any order.

use super::model::{CATALOG, Entries, Id, Key, Value, View, short};
use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

type Names = BTreeMap<String, Id>;
/// What records have, or that they were removed.
type Records = BTreeMap<(Id, Key), Option<Value>>;
/// What whole tables hold.
type Tables = BTreeMap<Id, Rc<Entries>>;

#[derive(Clone)]
pub struct Recorded {
    /// When the model has noted it.
    pub time: u64,
    /// It was committed after what is of this time.
    after: u64,
    /// Those of the same call have the same one.
    call: u64,
    /// All of the call are one commit.
    is_one: bool,
    what: What,
}

#[derive(Clone)]
enum What {
    Transaction {
        begun: u64,
        changed: Records,
        /// What those tables hold that were created, cleared or loaded.
        replaced: Tables,
        /// All names, if some were changed.
        names: Option<Names>,
    },
    Single {
        table: Id,
        key: Key,
        value: Option<Value>,
    },
    Load {
        table: Id,
        entries: Rc<Entries>,
    },
    /// Large values may be told again that it has moved.
    Compaction,
}

#[derive(Clone, Default)]
pub struct Commits {
    all: Vec<Recorded>,
    /// Those that may have come earlier.
    early: BTreeSet<usize>,
}

impl Commits {
    fn add(&mut self, time: u64, what: What) {
        self.all.push(Recorded { time, after: time, call: time, is_one: false, what });
    }

    /// The tables that there are in the beginning: each was created, and then loaded.
    pub fn add_first(&mut self, view: &View) {
        let mut names = Names::new();
        for (name, table) in &view.names {
            names.insert(name.clone(), *table);
            let replaced = BTreeMap::from([(*table, Rc::default())]);
            let names = Some(names.clone());
            self.add(0, What::Transaction { begun: 0, changed: BTreeMap::new(), replaced, names });
            self.add_load(0, *table, view.tables[table].clone());
        }
    }

    pub fn add_transaction(
        &mut self,
        (time, begun): (u64, u64),
        (changed, replaced): (&BTreeSet<(Id, Key)>, &BTreeSet<Id>),
        view: &View,
    ) {
        let has_names = changed.iter().any(|(table, _)| *table == CATALOG);
        let is_known = |table: &Id| !replaced.contains(table) && view.tables.contains_key(table);
        let records = changed.iter().filter(|(table, _)| is_known(table));
        let changed =
            records.map(|(table, key)| ((*table, key.clone()), view.tables[table].get(key).cloned()));
        let replaced = replaced.iter().filter_map(|table| Some((*table, view.tables.get(table)?.clone())));
        let what = What::Transaction {
            begun,
            changed: changed.collect(),
            replaced: replaced.collect(),
            names: has_names.then(|| view.names.clone()),
        };
        self.add(time, what);
    }

    pub fn add_single(&mut self, time: u64, table: Id, key: &Key, value: Option<Value>) {
        self.add(time, What::Single { table, key: key.clone(), value });
    }

    pub fn add_load(&mut self, time: u64, table: Id, entries: Rc<Entries>) {
        self.add(time, What::Load { table, entries });
    }

    /// The last one was committed at some moment after this time.
    pub fn put_after(&mut self, time: u64) {
        let last = self.all.len() - 1;
        self.all[last].after = time;
        self.early.insert(last);
    }

    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Those since so many were made by one call.
    pub fn join(&mut self, since: usize) {
        let Some(call) = self.all.get(since).map(|first| first.call) else { return };
        self.all[since..].iter_mut().for_each(|recorded| recorded.call = call);
    }

    /// Those since so many are one commit.
    pub fn make_one(&mut self, since: usize) {
        self.all[since..].iter_mut().for_each(|recorded| recorded.is_one = true);
    }

    /// Whether a single operation was made after so many commits.
    pub fn has_single_since(&self, since: usize) -> bool {
        self.all[since..].iter().any(|recorded| matches!(recorded.what, What::Single { .. }))
    }

    pub fn add_compaction(&mut self, time: u64) {
        self.add(time, What::Compaction);
    }

    /// Whether a later one has changed this record, or replaced or dropped its table.
    pub fn is_changed_since(&self, (table, key): (Id, &Key), since: usize) -> bool {
        self.all[since..].iter().any(|recorded| match &recorded.what {
            What::Transaction { changed, replaced, names, .. } => {
                changed.contains_key(&(table, key.clone()))
                    || replaced.contains_key(&table)
                    || names.as_ref().is_some_and(|names| !names.values().any(|named| *named == table))
            }
            What::Single { table: other, key: changed, .. } => (*other, changed) == (table, key),
            What::Load { table: other, .. } => *other == table,
            // It may have stored the value somewhere else.
            What::Compaction => true,
        })
    }
}

/// A single change, and which commit it is.
type Change<'c> = (usize, Id, &'c Key, Option<&'c Value>);

/// A commit that may be told next, and whether it has no effect: then it need not be told.
type Candidate = (usize, bool);

/// A value as a feed tells it.
#[derive(Clone, PartialEq)]
pub enum Told {
    Value(Value),
    /// It is of this length.
    Gone(u64),
}

impl Told {
    fn is(&self, value: &Value) -> bool {
        match self {
            Self::Value(told) => told == value,
            Self::Gone(length) => *length == value.len() as u64,
        }
    }
}

/// A table as a feed has told it.
#[derive(Clone, Default)]
pub struct Replica {
    pub entries: BTreeMap<Key, Told>,
    /// Its load was not told: it holds what the table held later.
    pub is_ahead: bool,
    /// What the table held later is still to be read.
    pub is_missing: bool,
    /// The types of its keys, and whether it keeps no versions, as they were told.
    pub types: Option<(String, bool)>,
    /// The present commit has loaded it.
    pub has_load: bool,
    /// The present commit has created it.
    pub is_new: bool,
    /// What the present commit has changed, and whether the whole value was told.
    pub touched: BTreeMap<Key, bool>,
}

impl Replica {
    fn holds(&self, entries: &Entries) -> bool {
        let same =
            |(told, wanted): ((&Key, &Told), (&Key, &Value))| told.0 == wanted.0 && told.1.is(wanted.1);
        // What a table holds that is ahead is compared at the end.
        if self.is_ahead {
            return self.is_new || self.has_load || entries.is_empty();
        }
        self.entries.len() == entries.len() && self.entries.iter().zip(entries).all(same)
    }

    fn has(&self, key: &Key, value: Option<&Value>) -> bool {
        let is_whole = self.touched.get(key).copied();
        match (self.entries.get(key), value) {
            _ if self.is_ahead && is_whole != Some(true) => is_whole.is_some(),
            (Some(told), Some(value)) => told.is(value),
            (None, None) => true,
            _ => false,
        }
    }
}

/// What a feed says of a commit besides its changes.
pub struct Traits<'t> {
    pub is_numbered: bool,
    /// It has left all values as they were, and all are large.
    pub is_same: bool,
    /// The records in which it has stored the small values that they had.
    pub unchanged: &'t BTreeSet<(String, Key)>,
    /// It has created, dropped or renamed tables.
    pub has_tables: bool,
}

/// What a feed has told up to a place in the log.
#[derive(Clone, Default)]
pub struct Follow {
    pub tables: BTreeMap<String, Rc<Replica>>,
    names: Names,
    /// The first commit that was not told.
    next: usize,
    /// Those that were told before it.
    done: BTreeSet<usize>,
}

impl Follow {
    /// From now on.
    pub fn now(commits: &Commits, view: &View) -> Self {
        let replica = |entries: &Rc<Entries>| {
            let told = entries.iter().map(|(key, value)| (key.clone(), Told::Value(value.clone())));
            Rc::new(Replica { entries: told.collect(), ..Replica::default() })
        };
        let tables = view.names.iter().map(|(name, table)| (name.clone(), replica(&view.tables[table])));
        let (next, done) = (commits.all.len(), BTreeSet::new());
        Self { tables: tables.collect(), names: view.names.clone(), next, done }
    }

    pub fn table_named(&self, name: &str) -> Option<Id> {
        self.names.get(name).copied()
    }

    pub fn next(&self) -> usize {
        self.next
    }

    fn is_done(&self, place: usize) -> bool {
        place < self.next || self.done.contains(&place)
    }

    /// The commits that may be told next, and whether they have no effect: then they need not be told.
    pub fn candidates(&self, commits: &Commits) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        let missing = (self.next..commits.all.len()).filter(|place| !self.is_done(*place));
        for place in missing {
            let is_without_effect = self.is_without_effect(&commits.all[place]);
            candidates.push((place, is_without_effect));
            if !is_without_effect {
                break;
            }
        }
        let Some((place, false)) = candidates.last().copied() else { return candidates };
        let first = &commits.all[place];
        let rest = (place + 1..commits.all.len()).filter(|place| !self.is_done(*place));
        let is_same = |other: &usize| commits.all[*other].call == first.call;
        candidates.extend(rest.take_while(is_same).map(|other| (other, false)));
        // What is noted later may have been committed before this.
        let early = commits.early.range(place + 1..).filter(|early| !self.is_done(**early));
        let is_before = |early: &&usize| commits.all[**early].after < first.time;
        candidates.extend(early.filter(is_before).map(|early| (*early, false)));
        candidates
    }

    /// Whether nothing is missing.
    pub fn is_at_end(&self, commits: &Commits) -> bool {
        (self.next..commits.all.len())
            .filter(|place| !self.is_done(*place))
            .all(|place| self.is_without_effect(&commits.all[place]))
    }

    fn is_without_effect(&self, recorded: &Recorded) -> bool {
        let of = |table: &Id| {
            let name = self.names.iter().find(|(_, named)| *named == table)?;
            self.tables.get(name.0)
        };
        let has = |table: &Id, key: &Key, value: Option<&Value>| match of(table) {
            Some(replica) if replica.is_ahead => true,
            Some(replica) => match replica.entries.get(key) {
                Some(Told::Value(told)) => Some(told) == value,
                Some(Told::Gone(_)) => false,
                None => value.is_none(),
            },
            None => false,
        };
        match &recorded.what {
            What::Transaction { changed, replaced, names, .. } => {
                changed.iter().all(|((table, key), value)| has(table, key, value.as_ref()))
                    && replaced
                        .iter()
                        .all(|(table, entries)| of(table).is_some_and(|of| !of.is_ahead && of.holds(entries)))
                    && names.as_ref().is_none_or(|names| *names == self.names)
            }
            What::Single { table, key, value } => has(table, key, value.as_ref()),
            What::Load { entries, .. } => entries.is_empty(),
            What::Compaction => true,
        }
    }

    /// What was told is one of these; why it is none of them otherwise.
    pub fn settle(
        &mut self,
        commits: &Commits,
        candidates: &[Candidate],
        Traits { is_numbered, is_same, unchanged, has_tables }: Traits<'_>,
    ) -> Result<usize, String> {
        let mut objections = String::new();
        let is_compaction = |place: usize| matches!(commits.all[place].what, What::Compaction);
        let (last, first): (Vec<&Candidate>, Vec<&Candidate>) =
            candidates.iter().partition(|(place, _)| is_compaction(*place));
        for (place, _) in first.into_iter().chain(last) {
            let recorded = &commits.all[*place];
            let singles = self.told_at_once(commits, *place);
            let objection = match &recorded.what {
                What::Transaction { .. } if !is_numbered => Some("a transaction has a number".to_owned()),
                What::Transaction { names: None, .. } if has_tables => {
                    Some("it has changed no table".to_owned())
                }
                What::Transaction { changed, replaced, names, .. } => {
                    self.objection_to_transaction((changed, replaced), names.as_ref().unwrap_or(&self.names))
                }
                What::Single { .. } => self.objection_to_singles(&singles, unchanged),
                What::Load { table, entries } => self.objection_to_load(*table, entries),
                What::Compaction => (!is_same).then(|| "compaction changes nothing".to_owned()),
            };
            if let Some(objection) = objection {
                objections += &format!("\n  commit {place}: {objection}");
                continue;
            }
            if let What::Transaction { names: Some(names), .. } = &recorded.what {
                self.names = names.clone();
            }
            // A compaction may tell more.
            if !is_compaction(*place) {
                self.done.insert(*place);
            }
            self.done.extend(singles.iter().map(|(place, ..)| *place));
            if !commits.early.contains(place) {
                // Those of the same call come in any order. If the value is gone, it may be that a compaction was told.
                let is_passed = |(other, is_without_effect): &&(usize, bool)| {
                    *is_without_effect
                        && other < place
                        && commits.all[*other].call != recorded.call
                        && !(is_same && is_compaction(*other))
                };
                self.done.extend(candidates.iter().filter(is_passed).map(|(other, _)| *other));
            }
            while self.done.remove(&self.next) {
                self.next += 1;
            }
            let is_used = |replica: &&mut Rc<Replica>| {
                !replica.touched.is_empty() || replica.has_load || replica.is_new
            };
            for replica in self.tables.values_mut().filter(is_used) {
                let replica = Rc::make_mut(replica);
                replica.touched.clear();
                (replica.has_load, replica.is_new) = (false, false);
            }
            return Ok(*place);
        }
        Err(objections)
    }

    /// The single changes that make a commit: those of some calls are made at once.
    fn told_at_once<'c>(&self, commits: &'c Commits, place: usize) -> Vec<Change<'c>> {
        let Recorded { call, is_one, .. } = &commits.all[place];
        let all = (place..commits.all.len()).take_while(|other| commits.all[*other].call == *call);
        let count = if *is_one { usize::MAX } else { 1 };
        all.filter(|other| !self.is_done(*other))
            .filter_map(|other| match &commits.all[other].what {
                What::Single { table, key, value } => Some((other, *table, key, value.as_ref())),
                _ => None,
            })
            .take(count)
            .collect()
    }

    /// Marks what has no effect as told, at the end.
    pub fn skip_rest(&mut self, commits: &Commits) {
        self.next = commits.all.len();
        self.done.clear();
    }

    /// The records that were changed since the last commit was told.
    fn touched(&self) -> impl Iterator<Item = (&String, &Key)> {
        let all = self.tables.iter();
        all.flat_map(|(name, replica)| replica.touched.keys().map(move |key| (name, key)))
    }

    fn name_of(names: &Names, table: Id) -> Option<&String> {
        names.iter().find(|(_, named)| **named == table).map(|named| named.0)
    }

    /// Why what was told is not a transaction; none if it is.
    fn objection_to_transaction(
        &self,
        (changed, replaced): (&Records, &Tables),
        names: &Names,
    ) -> Option<String> {
        if !names.keys().eq(self.tables.keys()) {
            let told: Vec<_> = self.tables.keys().collect();
            return Some(format!("the tables are {names:?}, and not {told:?}"));
        }
        for (name, table) in names {
            if let Some(entries) = replaced.get(table)
                && !self.tables[name].holds(entries)
            {
                return Some(format!("{name} holds something else"));
            }
        }
        for ((table, key), value) in changed {
            let name = Self::name_of(names, *table);
            if let Some(objection) = name.and_then(|name| self.objection_to_record(name, key, value.as_ref()))
            {
                return Some(objection);
            }
        }
        let is_known = |name: &String, key: &Key| {
            replaced.contains_key(&names[name]) || changed.contains_key(&(names[name], key.clone()))
        };
        let other = self.touched().find(|(name, key)| !is_known(name, key));
        other.map(|(name, key)| format!("it has not changed {} in {name}", short(key)))
    }

    fn objection_to_record(&self, name: &String, key: &Key, value: Option<&Value>) -> Option<String> {
        let replica = &self.tables[name];
        if replica.has(key, value) {
            return None;
        }
        let (told, value) = (replica.entries.get(key).map(Told::text), value.map(|value| short(value)));
        Some(format!("{} in {name} has {value:?}, told is {told:?}", short(key)))
    }

    fn objection_to_singles(
        &self,
        changes: &[Change<'_>],
        unchanged: &BTreeSet<(String, Key)>,
    ) -> Option<String> {
        if !self.names.keys().eq(self.tables.keys()) {
            return Some("it has changed no table".to_owned());
        }
        let mut known = BTreeSet::new();
        for (_, table, key, value) in changes {
            let Some(name) = Self::name_of(&self.names, *table) else {
                return Some("it has no name".to_owned());
            };
            if let Some(objection) = self.objection_to_record(name, key, *value) {
                return Some(objection);
            }
            let is_unchanged = unchanged.contains(&(name.clone(), (*key).clone()));
            if !is_unchanged && !self.tables[name].touched.contains_key(*key) {
                return Some(format!("{} in {name} is missing", short(key)));
            }
            known.insert((name, *key));
        }
        let unchanged = unchanged.iter().map(|(name, key)| (name, key));
        let other = self.touched().chain(unchanged).find(|touched| !known.contains(touched));
        other.map(|(name, key)| format!("it has not changed {} in {name}", short(key)))
    }

    fn objection_to_load(&self, table: Id, entries: &Entries) -> Option<String> {
        if !self.names.keys().eq(self.tables.keys()) {
            return Some("it has changed no table".to_owned());
        }
        let Some(name) = Self::name_of(&self.names, table) else { return Some("it has no name".to_owned()) };
        if !self.tables[name].has_load || self.touched().next().is_some() {
            return Some(format!("{name} is loaded"));
        }
        (!self.tables[name].holds(entries)).then(|| format!("{name} holds something else than was loaded"))
    }

    /// When the transaction of a commit began.
    pub fn begun(commits: &Commits, place: usize) -> u64 {
        match &commits.all[place].what {
            What::Transaction { begun, .. } => *begun,
            _ => commits.all[place].after,
        }
    }

    /// Everything is told: it holds the same as the database.
    pub fn compare(&self, view: &View) {
        assert!(view.names.keys().eq(self.tables.keys()), "{:?}", self.tables.keys());
        for (name, table) in &view.names {
            let (replica, entries) = (&self.tables[name], &view.tables[table]);
            for (key, value) in &**entries {
                let told = replica.entries.get(key);
                let is_right = matches!(told, Some(Told::Value(told)) if told == value);
                assert!(
                    is_right,
                    "{} in {name} has {}, told is {:?}",
                    short(key),
                    short(value),
                    told.map(Told::text)
                );
            }
            let surplus = replica.entries.keys().find(|key| !entries.contains_key(*key));
            assert!(surplus.is_none(), "{} in {name} was removed", short(surplus.unwrap()));
        }
    }

    /// What the tables held, if all of that was told.
    pub fn contents(&self) -> Option<BTreeMap<String, Entries>> {
        let value = |(key, told): (&Key, &Told)| match told {
            Told::Value(value) => Some((key.clone(), value.clone())),
            Told::Gone(_) => None,
        };
        let table = |(name, replica): (&String, &Rc<Replica>)| {
            let entries: Option<Entries> = replica.entries.iter().map(value).collect();
            Some((name.clone(), entries.filter(|_| !replica.is_ahead)?))
        };
        self.tables.iter().map(table).collect()
    }
}

impl Told {
    /// Changes a part; whether it has such a part.
    pub fn patch(&mut self, offset: usize, bytes: &[u8]) -> bool {
        match self {
            Self::Value(value) => {
                let part = Rc::make_mut(value).get_mut(offset..offset + bytes.len());
                part.map(|part| part.copy_from_slice(bytes)).is_some()
            }
            Self::Gone(length) => offset as u64 + bytes.len() as u64 <= *length,
        }
    }

    /// Whether both may be the same value.
    pub fn may_be(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Value(value), told) | (told, Self::Value(value)) => told.is(value),
            (Self::Gone(length), Self::Gone(other)) => length == other,
        }
    }

    pub fn text(&self) -> String {
        match self {
            Self::Value(value) => short(value),
            Self::Gone(length) => format!("gone, {length}"),
        }
    }
}
