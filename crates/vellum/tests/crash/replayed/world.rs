//! The steps of transactions, and a map of tables that goes through the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

pub const CLIENTS: usize = 3;
pub const NAMES: [&str; 3] = ["a", "b", "c"];
pub const KEYS: u8 = 40;

/// A value: the number that it consists of, and its length.
pub type Value = (u32, usize);
/// What a step has shown.
pub type Seen = Vec<(u8, Option<Value>)>;

pub fn key(number: u8) -> Vec<u8> {
    vec![number; 1 + usize::from(number % 4) * 30]
}

pub fn bytes((number, length): Value) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(length).collect()
}

pub fn value(bytes: &[u8]) -> Value {
    let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
    let whole = number.to_le_bytes();
    assert!(bytes.iter().zip(whole.iter().cycle()).all(|(one, other)| one == other), "a value in parts");
    (number, bytes.len())
}

pub fn modified((number, length): Value) -> Value {
    (number.wrapping_add(10_000_000), length)
}

/// In which way a range is read.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    Forward,
    Backward,
    Limited,
    LimitedBackward,
    Both(u32),
    Scan,
}

#[derive(Clone, Debug)]
pub enum Step {
    Get(u8),
    MultiGet(Vec<u8>),
    Lookups(Vec<u8>),
    Range { low: u8, high: u8, way: Way, take: usize },
    End { is_first: bool },
    Count { low: u8, high: u8 },
    Put(u8, Value),
    Insert(u8, Value),
    Update(u8, Value),
    Remove(u8),
    Exchange(u8, Option<Value>),
    Compare(u8, Value, Value),
    Modify(u8),
    RemoveRange { low: u8, high: u8 },
    Pop { is_first: bool },
    ForUpdate(u8),
    MultiPut(Vec<(u8, Value)>),
    MultiModify(Vec<u8>),
    Clear,
    Load(Vec<(u8, Value)>),
    Create(u32),
    Drop,
    Rename(usize),
    Save,
    Back(usize),
}

/// A step, and what came of it.
#[derive(Clone, Debug)]
pub struct Done {
    pub table: usize,
    pub step: Step,
    pub seen: Seen,
}

/// There is no such table, or there is one already.
pub fn refused() -> Seen {
    vec![(255, None)]
}

pub fn flag(is: bool) -> Seen {
    vec![(u8::from(is), None)]
}

/// An operation outside of transactions.
#[derive(Debug)]
pub struct Single {
    pub done: Vec<u64>,
    /// Asked for when it had ended.
    pub asked: Vec<u64>,
    pub all: Done,
}

/// A transaction as it was.
#[derive(Debug)]
pub struct Past {
    pub client: usize,
    pub is_serializable: bool,
    /// The commits of all clients that were done before it began, and those that were asked for when it had begun.
    pub done: Vec<u64>,
    pub asked: Vec<u64>,
    pub steps: Vec<Done>,
    /// The number of its commit, if it was committed and has a mark.
    pub commit: Option<u64>,
}

#[derive(Clone, Default, Debug)]
pub struct Contents {
    pub entries: Rc<BTreeMap<u8, Value>>,
    /// How often it got other contents as a whole.
    pub replaced: u32,
    pub is_loaded: bool,
}

#[derive(Clone, Default, Debug)]
pub struct World {
    pub names: BTreeMap<usize, u32>,
    pub tables: BTreeMap<u32, Contents>,
}

pub fn shown(entries: &BTreeMap<u8, Value>, low: u8, high: u8, way: Way, take: usize) -> Seen {
    let mut all: Vec<(u8, Option<Value>)> = Vec::new();
    if low <= high {
        all.extend(entries.range(low..=high).map(|(key, value)| (*key, Some(*value))));
    }
    match way {
        Way::Forward | Way::Limited | Way::Scan => all.into_iter().take(take).collect(),
        Way::Backward | Way::LimitedBackward => all.into_iter().rev().take(take).collect(),
        Way::Both(bits) => {
            let mut all = all.into_iter();
            (0..take)
                .map_while(|at| if bits >> (at % 32) & 1 == 0 { all.next() } else { all.next_back() })
                .collect()
        }
    }
}

impl World {
    pub fn entries(&self, name: usize) -> Option<&Rc<BTreeMap<u8, Value>>> {
        Some(&self.tables.get(self.names.get(&name)?)?.entries)
    }

    fn change(&mut self, name: usize, change: impl FnOnce(&mut BTreeMap<u8, Value>) -> Seen) -> Seen {
        let Some(table) = self.names.get(&name).and_then(|id| self.tables.get_mut(id)) else {
            return refused();
        };
        change(Rc::make_mut(&mut table.entries))
    }

    pub fn step(&mut self, name: usize, step: &Step) -> Seen {
        match step {
            Step::Create(id) => {
                if self.names.contains_key(&name) {
                    return refused();
                }
                self.names.insert(name, *id);
                self.tables.insert(*id, Contents::default());
                return flag(true);
            }
            Step::Rename(to) if self.names.contains_key(&name) => {
                if self.names.contains_key(to) {
                    return refused();
                }
                let id = self.names.remove(&name).unwrap();
                self.names.insert(*to, id);
                return flag(true);
            }
            _ => {}
        }
        let Some(entries) = self.entries(name).cloned() else { return refused() };
        let id = self.names[&name];
        let get = |key: u8| (key, entries.get(&key).copied());
        match step {
            Step::Get(key) | Step::ForUpdate(key) => vec![get(*key)],
            Step::MultiGet(keys) | Step::Lookups(keys) => keys.iter().map(|key| get(*key)).collect(),
            Step::Range { low, high, way, take } => shown(&entries, *low, *high, *way, *take),
            Step::End { is_first } => {
                let end = if *is_first { entries.first_key_value() } else { entries.last_key_value() };
                end.map(|(key, value)| (*key, Some(*value))).into_iter().collect()
            }
            Step::Count { low, high } => {
                vec![(shown(&entries, *low, *high, Way::Forward, usize::MAX).len() as u8, None)]
            }
            Step::Put(key, value) => self.change(name, |all| flag(all.insert(*key, *value).is_some())),
            Step::Insert(key, value) => self.change(name, |all| {
                let is_new = !all.contains_key(key);
                all.entry(*key).or_insert(*value);
                flag(is_new)
            }),
            Step::Update(key, value) => self.change(name, |all| {
                let old = all.get_mut(key);
                let is_there = old.is_some();
                old.into_iter().for_each(|old| *old = *value);
                flag(is_there)
            }),
            Step::Remove(key) => self.change(name, |all| flag(all.remove(key).is_some())),
            Step::Exchange(key, new) => self.change(name, |all| {
                let old = match new {
                    Some(new) => all.insert(*key, *new),
                    None => all.remove(key),
                };
                vec![(*key, old)]
            }),
            Step::Compare(key, old, new) => self.change(name, |all| {
                let is_equal = all.get(key) == Some(old);
                if is_equal {
                    all.insert(*key, *new);
                }
                flag(is_equal)
            }),
            Step::Modify(key) => self.change(name, |all| {
                let old = all.get_mut(key);
                let is_there = old.is_some();
                old.into_iter().for_each(|old| *old = modified(*old));
                flag(is_there)
            }),
            Step::RemoveRange { low, high } => self.change(name, |all| {
                let before = all.len();
                all.retain(|key, _| key < low || key > high);
                vec![((before - all.len()) as u8, None)]
            }),
            Step::Pop { is_first } => self.change(name, |all| {
                let popped = if *is_first { all.pop_first() } else { all.pop_last() };
                popped.map(|(key, value)| (key, Some(value))).into_iter().collect()
            }),
            Step::MultiPut(pairs) => self.change(name, |all| {
                pairs
                    .iter()
                    .map(|(key, value)| (u8::from(all.insert(*key, *value).is_some()), None))
                    .collect()
            }),
            Step::MultiModify(keys) => self.change(name, |all| {
                let modify = |key: &u8| {
                    let old = all.get_mut(key);
                    let is_there = old.is_some();
                    old.into_iter().for_each(|old| *old = modified(*old));
                    (u8::from(is_there), None)
                };
                keys.iter().map(modify).collect()
            }),
            Step::Clear => {
                let replaced = self.tables[&id].replaced + 1;
                self.tables.insert(id, Contents { replaced, ..Contents::default() });
                flag(true)
            }
            Step::Load(pairs) => {
                if !entries.is_empty() {
                    return refused();
                }
                let replaced = self.tables[&id].replaced + 1;
                let entries = Rc::new(pairs.iter().copied().collect());
                self.tables.insert(id, Contents { entries, replaced, is_loaded: true });
                flag(true)
            }
            Step::Drop => {
                self.names.remove(&name);
                self.tables.remove(&id);
                flag(true)
            }
            Step::Create(_) | Step::Rename(_) | Step::Save | Step::Back(_) => unreachable!(),
        }
    }

    /// What becomes of it by all steps, or the first of them that has shown something else, and what it should have shown.
    pub fn replay(&self, steps: &[Done]) -> std::result::Result<Self, (usize, Seen)> {
        let (mut world, mut saved) = (self.clone(), Vec::new());
        for (number, done) in steps.iter().enumerate() {
            match done.step {
                Step::Save => saved.push(world.clone()),
                Step::Back(to) => {
                    saved.truncate(to + 1);
                    world = saved[to].clone();
                }
                ref step => {
                    let seen = world.step(done.table, step);
                    if seen != done.seen {
                        return Err((number, seen));
                    }
                }
            }
        }
        Ok(world)
    }

    /// Makes the changes that lead from `base` to `after`; says what others have changed of that since `base`.
    pub fn apply(&mut self, base: &Self, after: &Self) -> std::result::Result<(), String> {
        let names: BTreeSet<usize> = base.names.keys().chain(after.names.keys()).copied().collect();
        let now = self.clone();
        for name in names {
            let (old, new) = (base.names.get(&name), after.names.get(&name));
            if old == new {
                continue;
            }
            if now.names.get(&name) != old {
                return Err(format!("others have changed table {}", NAMES[name]));
            }
            match new {
                Some(id) => self.names.insert(name, *id),
                None => self.names.remove(&name),
            };
        }
        for id in base.tables.keys().filter(|id| !after.tables.contains_key(id)) {
            self.tables.remove(id);
        }
        for (id, new) in &after.tables {
            let Some(old) = base.tables.get(id) else {
                self.tables.insert(*id, new.clone());
                continue;
            };
            if old.replaced == new.replaced && old.entries == new.entries {
                continue;
            }
            let Some(table) = self.tables.get_mut(id) else {
                return Err(format!("others have dropped table {id}"));
            };
            if table.replaced != old.replaced {
                return Err(format!("others have cleared table {id}"));
            }
            if new.replaced != old.replaced {
                let replaced = new.replaced;
                if new.is_loaded && new.replaced == old.replaced + 1 && table.entries != old.entries {
                    return Err(format!("others have stored something in table {id}, which was loaded"));
                }
                *table = Contents { replaced, ..new.clone() };
                continue;
            }
            let keys: BTreeSet<u8> = old.entries.keys().chain(new.entries.keys()).copied().collect();
            let entries = Rc::make_mut(&mut table.entries);
            for key in keys.into_iter().filter(|key| old.entries.get(key) != new.entries.get(key)) {
                if entries.get(&key) != old.entries.get(&key) {
                    return Err(format!("others have changed record {key} of table {id}"));
                }
                match new.entries.get(&key) {
                    Some(value) => entries.insert(key, *value),
                    None => entries.remove(&key),
                };
            }
        }
        Ok(())
    }
}
