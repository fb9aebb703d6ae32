//! What a database should hold.

use rand::{RngExt, rngs::StdRng};
use std::collections::BTreeMap;
use vellum::{Database, Error, Result, Table, TableOptions, Transaction};

/// The tables, and what each holds.
pub type Contents = BTreeMap<String, Entries>;

/// What a table holds.
pub type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// Records, and what they are to be: none if they are removed.
pub type Changed = BTreeMap<Record, Option<Vec<u8>>>;

/// A table and a key of it.
pub type Record = (String, Vec<u8>);

/// What is done to a database.
#[derive(Clone, Debug)]
pub enum Operation {
    Put {
        table: String,
        key: Vec<u8>,
        value: Vec<u8>,
    },
    Remove {
        table: String,
        key: Vec<u8>,
    },
    /// Each byte of the value is changed by this.
    Modify {
        table: String,
        key: Vec<u8>,
        by: u8,
    },
    Create {
        table: String,
    },
    Drop {
        table: String,
    },
    Clear {
        table: String,
    },
    Rename {
        table: String,
        new: String,
    },
    /// Into a table that is empty.
    Load {
        table: String,
        entries: BTreeMap<Vec<u8>, Vec<u8>>,
    },
    /// Transactions have left this in the tables that are not [shared](is_shared).
    Tables {
        contents: Contents,
    },
    /// A transaction that has given these records these values, or removed them.
    Commit {
        changed: Changed,
    },
}

impl Operation {
    /// Anything that makes sense for these contents.
    pub fn draw(contents: &Contents, random: &mut StdRng) -> Self {
        let shared = || contents.iter().filter(|(name, _)| is_shared(name));
        let count = shared().count();
        if count == 0 || (count < 3 && random.random_ratio(1, 30)) {
            let unused = |name: &String| !contents.contains_key(name);
            let table = (0..).map(|number| format!("table {number}")).find(unused).unwrap_or_default();
            return Self::Create { table };
        }
        let (name, entries) = shared().nth(random.random_range(0..count)).unwrap();
        let table = name.clone();
        if entries.is_empty() && random.random_ratio(1, 3) {
            let one = Contents::from([(table, BTreeMap::new())]);
            return Self::draw_load(&one, random);
        }
        // Mostly keys that are there.
        let mut known = || match entries.len() {
            0 => key(&table, random),
            length => entries.keys().nth(random.random_range(0..length)).unwrap().clone(),
        };
        let known = known();
        match random.random_range(0..100) {
            0..2 if entries.len() % 2 == 0 => Self::Drop { table },
            0..2 => Self::Clear { table },
            2..30 => Self::Remove { table, key: known },
            // What changes nothing leaves no record.
            30..45 if entries.get(&known).is_some_and(|value| !value.is_empty()) => {
                Self::Modify { table, key: known, by: random.random_range(1..=255) }
            }
            45..60 => Self::Put { table, key: known, value: value(random) },
            _ => Self::Put { key: key(&table, random), table, value: value(random) },
        }
    }

    /// A load of any table.
    pub fn draw_load(contents: &Contents, random: &mut StdRng) -> Self {
        let shared = || contents.keys().filter(|name| is_shared(name));
        let number = random.random_range(0..shared().count().max(1));
        let table = shared().nth(number).cloned().unwrap_or_else(|| "table 2".to_owned());
        let entries = (0..random.random_range(0..400)).map(|_| (key(&table, random), value(random)));
        let entries = entries.collect();
        Self::Load { table, entries }
    }

    /// The record that it is about, if it is about one.
    pub fn record(&self) -> Option<Record> {
        match self {
            Self::Put { table, key, .. } | Self::Remove { table, key } | Self::Modify { table, key, .. } => {
                Some((table.clone(), key.clone()))
            }
            _ => None,
        }
    }

    /// The same if transactions can use its table.
    pub fn record_of_transactions(&self) -> Option<Record> {
        self.record().filter(|(table, _)| !is_plain(table))
    }

    /// The table that it loads, if transactions can use that.
    pub fn loaded_by_transactions(&self) -> Option<&str> {
        match self {
            Self::Load { table, entries } if !is_plain(table) && !entries.is_empty() => Some(table),
            _ => None,
        }
    }

    /// The table that it needs for itself.
    pub fn whole_table(&self) -> Option<&str> {
        match self {
            Self::Drop { table } | Self::Clear { table } | Self::Load { table, .. } => Some(table),
            _ => None,
        }
    }

    /// What becomes of its record, which has this value.
    pub fn result(&self, value: Option<&Vec<u8>>) -> Option<Vec<u8>> {
        match self {
            Self::Put { value, .. } => Some(value.clone()),
            Self::Modify { by, .. } => {
                value.map(|value| value.iter().map(|byte| byte.wrapping_add(*by)).collect())
            }
            _ => None,
        }
    }

    /// Whether there is anything to be changed.
    pub fn changes(&self, contents: &Contents) -> bool {
        match self {
            Self::Remove { table, key } | Self::Modify { table, key, .. } => {
                contents[table].contains_key(key)
            }
            Self::Load { entries, .. } => !entries.is_empty(),
            Self::Commit { changed } => !changed.is_empty(),
            Self::Tables { contents: new } => {
                let before = contents.iter().filter(|(name, _)| !is_shared(name));
                !before.eq(new)
            }
            _ => true,
        }
    }

    /// Does it to what a database should hold.
    pub fn apply(&self, contents: &mut Contents) {
        match self {
            Self::Put { table, key, value } => {
                contents.get_mut(table).unwrap().insert(key.clone(), value.clone());
            }
            Self::Remove { table, key } => {
                contents.get_mut(table).unwrap().remove(key);
            }
            Self::Modify { table, key, by } => {
                if let Some(value) = contents.get_mut(table).unwrap().get_mut(key) {
                    value.iter_mut().for_each(|byte| *byte = byte.wrapping_add(*by));
                }
            }
            Self::Create { table } | Self::Clear { table } => {
                contents.insert(table.clone(), BTreeMap::new());
            }
            Self::Drop { table } => {
                contents.remove(table);
            }
            Self::Rename { table, new } => {
                let entries = contents.remove(table).unwrap_or_default();
                contents.insert(new.clone(), entries);
            }
            Self::Load { table, entries } => {
                contents.insert(table.clone(), entries.clone());
            }
            Self::Tables { contents: new } => {
                contents.retain(|name, _| is_shared(name));
                contents.extend(new.clone());
            }
            Self::Commit { changed } => {
                for ((table, key), value) in changed {
                    let table = contents.get_mut(table).unwrap();
                    match value {
                        Some(value) => table.insert(key.clone(), value.clone()),
                        None => table.remove(key),
                    };
                }
            }
        }
    }

    /// Does it to a record, or loads a table, as part of a transaction. Says whether there was anything to be changed.
    pub fn perform_in(&self, transaction: &Transaction, database: &Database) -> Result<bool> {
        match self {
            Self::Put { table, key, value } => {
                transaction.put(&database.table(table)?, key, value).map(|_| true)
            }
            Self::Remove { table, key } => transaction.remove(&database.table(table)?, key),
            Self::Modify { table, key, by } => {
                let change =
                    |value: &mut [u8]| value.iter_mut().for_each(|byte| *byte = byte.wrapping_add(*by));
                Ok(transaction.modify(&database.table(table)?, key, change)?.is_some())
            }
            Self::Load { table, entries } => Ok(transaction.bulk_load(&database.table(table)?, entries)? > 0),
            _ => unreachable!("transactions do it in other ways"),
        }
    }

    /// Does it to a record of this table.
    pub fn perform_on(&self, table: &Table) -> Result<()> {
        match self {
            Self::Put { key, value, .. } => table.put(key, value).map(drop),
            Self::Remove { key, .. } => table.remove(key).map(drop),
            Self::Modify { key, by, .. } => {
                let change =
                    |value: &mut [u8]| value.iter_mut().for_each(|byte| *byte = byte.wrapping_add(*by));
                table.modify(key, change).map(drop)
            }
            _ => unreachable!("it is about no record"),
        }
    }

    /// Does it to a database.
    pub fn perform(&self, database: &Database) -> Result<()> {
        match self {
            Self::Put { table, .. } | Self::Remove { table, .. } | Self::Modify { table, .. } => {
                self.perform_on(&database.table(table)?)
            }
            Self::Create { table } => {
                let options = TableOptions::default().versions(!is_plain(table));
                database.create_table_with(table, options).map(drop)
            }
            Self::Drop { table } => database.drop_table(table),
            Self::Clear { table } => database.clear_table(table),
            Self::Rename { table, new } => database.rename_table(table, new),
            Self::Load { table, entries } if !is_plain(table) && entries.len() % 2 == 1 => {
                self.perform_by_transaction(database)
            }
            Self::Load { table, entries } => {
                let table = database.table(table)?;
                let mut loader = table.bulk_loader()?;
                for (key, value) in entries {
                    loader.push(key, value)?;
                }
                match loader.finish() {
                    // A snapshot sees what the table has lost. A transaction gives the table another tree.
                    Err(Error::Conflict { committed: true, .. }) => self.perform_by_transaction(database),
                    done => done.map(drop),
                }
            }
            Self::Commit { .. } | Self::Tables { .. } => unreachable!("it was performed step by step"),
        }
    }

    /// Does it to a database, by a transaction of its own.
    fn perform_by_transaction(&self, database: &Database) -> Result<()> {
        let transaction = database.begin()?;
        self.perform_in(&transaction, database)?;
        transaction.commit()
    }
}

/// Whether a table of this name has no versions: every third, and those that are renamed so.
pub fn is_plain(table: &str) -> bool {
    let number = table.strip_prefix("table ").and_then(|number| number.parse::<u32>().ok());
    table.ends_with(" plain") || number.is_some_and(|number| number % 3 == 2)
}

/// Whether any operation may change a table of this name; others are those of [`tables`](crate::tables).
pub fn is_shared(table: &str) -> bool {
    !table.starts_with("made ")
}

/// Whether inner nodes have room for one or two keys of a table of this name: those with names that begin so.
fn has_longest_keys(table: &str) -> bool {
    table.starts_with("table 1")
}

pub fn key(table: &str, random: &mut StdRng) -> Vec<u8> {
    // Some are drawn often, so that transactions meet.
    let most = if random.random_ratio(1, 5) { 8 } else { 2000_u32 };
    let number = random.random_range(0..most);
    if has_longest_keys(table) {
        let mut key = vec![number as u8 % 7; 990 + number as usize % 31];
        key.extend(number.to_be_bytes());
        return key;
    }
    let mut key = number.to_be_bytes().to_vec();
    // Some keys are long.
    key.resize(if number.is_multiple_of(17) { 200 } else { 6 }, number as u8);
    key
}

pub fn value(random: &mut StdRng) -> Vec<u8> {
    let length = match random.random_range(0..100) {
        0 => random.random_range(20_000..150_000),
        1..4 => random.random_range(3000..20_000),
        4..10 => random.random_range(500..3000),
        _ => random.random_range(0..200),
    };
    let first: u8 = random.random();
    (0..length).map(|at: usize| first.wrapping_add((at / 7) as u8)).collect()
}

/// All that a database holds.
pub fn contents(database: &Database) -> Result<Contents> {
    let mut contents = Contents::new();
    for information in database.tables()? {
        let table = database.table(&information.name)?;
        assert_eq!(information.is_plain, is_plain(&information.name));
        let entries = contents.entry(information.name).or_default();
        let mut cursor = table.cursor(..)?;
        while let Some(entry) = cursor.next()? {
            let value = match entry.inline_value() {
                Some(value) => value.to_vec(),
                None => table.get(entry.key())?.ok_or(Error::NoSuchTable { name: "a value".to_owned() })?,
            };
            entries.insert(entry.key().to_vec(), value);
        }
    }
    Ok(contents)
}

/// Where contents differ first, for people.
pub fn difference(found: &Contents, expected: &Contents) -> String {
    let names = |contents: &Contents| contents.keys().cloned().collect::<Vec<_>>();
    if names(found) != names(expected) {
        return format!("tables {:?}, not {:?}", names(found), names(expected));
    }
    let short = |value: Option<&Vec<u8>>| value.map(|value| (value.len(), value.first().copied()));
    for (name, entries) in expected {
        let found = &found[name];
        let keys = entries.keys().chain(found.keys());
        if let Some(key) = keys.into_iter().find(|key| entries.get(*key) != found.get(*key)) {
            let (found_value, value) = (short(found.get(key)), short(entries.get(key)));
            let counts = (found.len(), entries.len());
            return format!("{name}, {key:?}: {found_value:?}, not {value:?}; {counts:?} entries");
        }
    }
    "nothing".to_owned()
}
