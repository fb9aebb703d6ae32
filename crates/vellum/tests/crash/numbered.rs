//! Clients that number what they commit, in tables of their own, so that what each has at any place of the log is known.
//!
//! Transactions make, load, clear, rename and drop tables and store large values; plain tables are changed by single operations.

use crate::model::{Contents, difference, value};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};
use vellum::{Database, Durability, Error, Lsn, Result, TableOptions, Transaction, TransactionOptions};

type Check<T = ()> = std::result::Result<T, String>;
type Entries = BTreeMap<Vec<u8>, Arc<Vec<u8>>>;
/// The tables of one client.
type Own = BTreeMap<String, Entries>;

/// What a client had after one of its commits, and where in the log that commit is at the least and at the most.
pub struct State {
    pub first: Lsn,
    pub last: Lsn,
    own: Own,
}

pub struct Client {
    number: usize,
    random: StdRng,
    /// In the order of its commits, of which the last may have failed.
    pub states: Vec<State>,
    /// The number of the last state that is certainly durable.
    synced: usize,
    /// The number of the last commit.
    count: u64,
}

/// What a life is about.
pub struct Life<'l> {
    pub database: &'l Database,
    /// Something has failed.
    pub is_over: &'l AtomicBool,
    /// How many clients still work.
    pub working: &'l AtomicU64,
    pub steps: u32,
}

pub fn end(database: &Database) -> Lsn {
    Lsn(database.log_state().map_or(0, |state| state.appended_bytes))
}

impl Client {
    pub fn new(number: usize, seed: u64) -> Self {
        let random = StdRng::seed_from_u64(seed ^ (number as u64 + 1) << 40);
        let states = vec![State { first: Lsn(0), last: Lsn(0), own: Own::new() }];
        Self { number, random, states, synced: 0, count: 0 }
    }

    fn now(&self) -> &State {
        &self.states[self.states.len() - 1]
    }

    /// Whether a table is one of its own.
    fn owns(&self, table: &str) -> bool {
        table.starts_with(&self.name(""))
    }

    fn name(&self, rest: &str) -> String {
        format!("client {} {rest}", self.number)
    }

    /// Works until it is over. Conflicts, which are with the compaction, are none of its errors.
    pub fn work(&mut self, life: &Life<'_>) -> Result<()> {
        for _ in 0..life.steps {
            if life.is_over.load(SeqCst) {
                break;
            }
            let done = match self.random.random_range(0..4) {
                0 => self.change_plain(life.database),
                _ => self.transact(life.database),
            };
            match done {
                Ok(()) | Err(Error::Conflict { .. }) => {}
                Err(error) => {
                    life.is_over.store(true, SeqCst);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Makes a plain table, loads it, or puts something into it: a commit of its own, which does not tell where it is.
    fn change_plain(&mut self, database: &Database) -> Result<()> {
        let name = self.name("plain");
        let mut own = self.now().own.clone();
        self.count += 1;
        let first = end(database);
        let done = match own.get_mut(&name) {
            None => {
                own.insert(name.clone(), Entries::new());
                database.create_table_with(&*name, TableOptions::default().versions(false)).map(drop)
            }
            Some(entries) => database.table(&*name).and_then(|table| {
                if entries.is_empty() && self.random.random() {
                    *entries = self.draw_entries();
                    return table.bulk_load(entries.iter().map(|(key, value)| (key, &**value))).map(drop);
                }
                let (key, value) = (self.draw_key(), self.draw_value());
                entries.insert(key.clone(), value.clone());
                table.put(key, &**value).map(drop)
            }),
        };
        if matches!(done, Err(Error::Conflict { .. })) {
            return done;
        }
        self.states.push(State {
            first,
            last: if done.is_ok() { end(database) } else { Lsn(u64::MAX) },
            own,
        });
        done?;
        // It is a commit as the options say.
        self.synced = self.states.len() - 1;
        Ok(())
    }

    fn transact(&mut self, database: &Database) -> Result<()> {
        let durability = [Durability::Synced, Durability::Buffered, Durability::Deferred];
        let durability = durability[self.random.random_range(0..durability.len())];
        let transaction = database.begin_with(TransactionOptions::default().durability(durability))?;
        let mut own = self.now().own.clone();
        let (mut savepoint, mut count) = (None, 0);
        for _ in 0..self.random.random_range(1..8) {
            self.change(&transaction, &mut own)?;
            count += 1;
            if self.random.random_ratio(1, 8) {
                savepoint = Some((transaction.savepoint(), own.clone()));
            }
            if self.random.random_ratio(1, 12)
                && let Some((to, then)) = savepoint.take()
            {
                transaction.rollback_to(to)?;
                own = then;
            }
        }
        if self.random.random_ratio(1, 6) || count == 0 {
            return transaction.rollback();
        }
        self.count += 1;
        let (mark, number) = (self.name("mark"), self.count.to_be_bytes().to_vec());
        if !own.contains_key(&mark) {
            transaction.create_table(&*mark)?;
        }
        transaction.put(&transaction.table(&*mark)?, "count", &number)?;
        own.entry(mark).or_default().insert(b"count".to_vec(), Arc::new(number));
        let first = end(database);
        self.states.push(State { first, last: Lsn(u64::MAX), own });
        let arrival = match transaction.commit_async() {
            Err(conflict @ Error::Conflict { .. }) => {
                self.states.pop();
                return Err(conflict);
            }
            committed => committed?,
        };
        let number = self.states.len() - 1;
        let state = &mut self.states[number];
        (state.first, state.last) = match &arrival {
            Some(arrival) => (arrival.lsn(), arrival.lsn()),
            None => (first, end(database)),
        };
        if durability == Durability::Synced {
            if let Some(arrival) = arrival {
                arrival.wait().map_err(|error| Error::Log(error.into()))?;
            }
            self.synced = number;
        }
        Ok(())
    }

    /// One change of a transaction.
    fn change(&mut self, transaction: &Transaction, own: &mut Own) -> Result<()> {
        let plain = self.name("plain");
        let names: Vec<_> = own.keys().filter(|name| name.contains("table")).cloned().collect();
        if names.is_empty() || (names.len() < 3 && self.random.random_ratio(1, 10)) {
            let number = self.random.random_range(0..1000);
            let name = self.name(&format!("table {number}"));
            if own.insert(name.clone(), Entries::new()).is_none() {
                let table = transaction.create_table(&*name)?;
                return self.load(transaction, &table, own.entry(name).or_default());
            }
            own.remove(&name);
            transaction.drop_table(&name)?;
            return Ok(());
        }
        let name = names[self.random.random_range(0..names.len())].clone();
        match self.random.random_range(0..40) {
            0 => {
                own.remove(&name);
                transaction.drop_table(&name)
            }
            1 => {
                transaction.clear_table(&name)?;
                own.insert(name, Entries::new());
                Ok(())
            }
            2 => {
                transaction.clear_table(&name)?;
                let table = transaction.table(&*name)?;
                let entries = own.entry(name).or_default();
                entries.clear();
                self.load(transaction, &table, entries)
            }
            3 => {
                let number = self.random.random_range(1000..2000);
                let new = self.name(&format!("table {number}"));
                if !own.contains_key(&new)
                    && let Some(entries) = own.remove(&name)
                {
                    transaction.rename_table(&name, &new)?;
                    own.insert(new, entries);
                }
                Ok(())
            }
            4 if own.remove(&plain).is_some() => transaction.drop_table(&plain),
            5..12 => {
                let entries = own.entry(name.clone()).or_default();
                let table = transaction.table(&*name)?;
                let known = entries.keys().nth(self.random.random_range(0..entries.len().max(1))).cloned();
                let key = known.unwrap_or_else(|| self.draw_key());
                entries.remove(&key);
                transaction.remove(&table, key).map(drop)
            }
            12..14 => {
                let (entries, table) = (own.entry(name.clone()).or_default(), transaction.table(&*name)?);
                let many = self.draw_entries();
                let put: Vec<_> = many.iter().map(|(key, value)| (key.clone(), value.to_vec())).collect();
                transaction.multi_put(&table, &put)?;
                entries.extend(many);
                Ok(())
            }
            _ => {
                let (key, value) = (self.draw_key(), self.draw_value());
                transaction.put(&transaction.table(&*name)?, &key, &**value)?;
                own.entry(name).or_default().insert(key, value);
                Ok(())
            }
        }
    }

    /// Loads an empty table, or leaves it empty.
    fn load(
        &mut self,
        transaction: &Transaction,
        table: &vellum::Table,
        entries: &mut Entries,
    ) -> Result<()> {
        if self.random.random() {
            *entries = self.draw_entries();
            transaction.bulk_load(table, entries.iter().map(|(key, value)| (key, &**value)))?;
        }
        Ok(())
    }

    fn draw_key(&mut self) -> Vec<u8> {
        let number: u16 = self.random.random_range(0..2000);
        let mut key = number.to_be_bytes().to_vec();
        key.resize(if number.is_multiple_of(17) { 200 } else { 6 }, number as u8);
        key
    }

    /// No two are the same.
    fn draw_value(&mut self) -> Arc<Vec<u8>> {
        let mut value = value(&mut self.random);
        value.extend(self.count.to_be_bytes());
        Arc::new(value)
    }

    fn draw_entries(&mut self) -> Entries {
        let count = [30, 400, 3000][self.random.random_range(0..3)];
        (0..count).map(|_| (self.draw_key(), self.draw_value())).collect()
    }

    /// What is its own of contents.
    fn own(&self, contents: &Contents) -> Contents {
        let own = contents.iter().filter(|(name, _)| self.owns(name));
        own.map(|(name, entries)| (name.clone(), entries.clone())).collect()
    }

    /// Finds how many of its commits are there after a crash, and goes on from there.
    pub fn go_on(&mut self, found: &Contents, end: Lsn) -> Check {
        let own = self.own(found);
        let Some(there) = self.states.iter().rposition(|state| is_same(&state.own, &own)) else {
            let why = differs(&self.now().own, &own);
            return Err(format!("client {} has no such state; to the last: {why}", self.number));
        };
        if there < self.synced {
            let why =
                format!("client {} has commit {there} of {} that were synced", self.number, self.synced);
            return Err(why);
        }
        self.states.truncate(there + 1);
        self.synced = there;
        let last = &mut self.states[there].last;
        *last = (*last).min(end);
        Ok(())
    }

    /// Whether contents are what it had at a place.
    pub fn check(&self, found: &Contents, at: Lsn) -> Check {
        let own = self.own(found);
        // All that are certain, and the one that may be.
        let certain = self.states.iter().rposition(|state| state.last <= at).unwrap_or(0);
        let possible = self.states.iter().rposition(|state| state.first <= at).unwrap_or(0);
        if (certain..=possible).any(|number| is_same(&self.states[number].own, &own)) {
            return Ok(());
        }
        let which = self.states.iter().position(|state| is_same(&state.own, &own));
        let why = differs(&self.states[certain].own, &own);
        Err(format!(
            "client {}: not commit {certain} (to {possible}), but {which:?} of {}: {why}",
            self.number,
            self.states.len()
        ))
    }
}

fn is_same(own: &Own, found: &Contents) -> bool {
    let is_equal =
        |(key, value): (&Vec<u8>, &Arc<Vec<u8>>), found: (&Vec<u8>, &Vec<u8>)| (key, &**value) == found;
    own.keys().eq(found.keys())
        && own.values().zip(found.values()).all(|(entries, found)| {
            entries.len() == found.len() && entries.iter().zip(found).all(|(one, other)| is_equal(one, other))
        })
}

/// Where they differ first, for people.
fn differs(own: &Own, found: &Contents) -> String {
    let plain =
        |entries: &Entries| entries.iter().map(|(key, value)| (key.clone(), value.to_vec())).collect();
    let own = own.iter().map(|(name, entries)| (name.clone(), plain(entries))).collect();
    difference(found, &own)
}
