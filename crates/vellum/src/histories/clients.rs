//! Clients of a database that record what they do and see.

use super::history::{Done, History, Step, Value};
use crate::{
    Cursor, Database, Durability, Error, IsolationLevel, Options, Result, Table, Transaction, plant::Plant,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    thread,
};
use vellum_vm::SimulatedDisk;

/// What clients do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Actions {
    /// Keys hold lists to which clients append, after reading them.
    Lists,
    /// Keys hold numbers, which clients replace blindly.
    Registers,
    /// Keys are also removed, and operations tell whether they were there.
    All,
}

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub keys: u8,
    pub clients: usize,
    pub transactions: usize,
    pub steps_max: usize,
}

pub struct Place {
    pub database: Database,
    table: Table,
    size: Size,
    actions: Actions,
    moments: AtomicU64,
    elements: AtomicU32,
}

impl Place {
    pub fn new(seed: u64, level: IsolationLevel, (actions, size): (Actions, Size)) -> Self {
        let options = Options::default()
            .pool_bytes(1 << 20)
            .capacity_bytes(1 << 30)
            .log_segment_bytes(1 << 20)
            .log_buffer_bytes(4 << 20)
            .background_eviction(false)
            .huge_pages(false)
            .background_checkpoints(false)
            .version_memory_bytes([64 << 20, 0, 3000][seed as usize % 3])
            .durability(Durability::Deferred)
            // The results do not depend on it.
            .log(!seed.is_multiple_of(2))
            .isolation(level);
        let disk = SimulatedDisk::new(seed);
        let database = Database::create_in(Arc::new(disk), "data", &options).unwrap();
        let table = database.create_table("table").unwrap();
        Self { database, table, size, actions, moments: AtomicU64::new(1), elements: AtomicU32::new(1) }
    }

    pub fn plant(self, bug: Option<Plant>) -> Self {
        *self.database.inner().planted.lock().unwrap() = bug;
        self
    }

    fn moment(&self) -> u64 {
        self.moments.fetch_add(1, Ordering::SeqCst)
    }

    /// Clients that take turns on one thread, step by step.
    pub fn in_turns(&self, seed: u64) -> History {
        let mut random = StdRng::seed_from_u64(seed);
        let mut history = History::default();
        let mut open: Vec<Option<Client<'_>>> = Vec::new();
        open.resize_with(self.size.clients, || None);
        let mut left = self.size.transactions;
        while left > 0 || open.iter().any(Option::is_some) {
            let number = random.random_range(0..open.len());
            match open[number].take() {
                None if left > 0 && random.random_ratio(1, 6) => {
                    left -= 1;
                    history.transactions.push(self.alone(number, &mut random));
                }
                None if left > 0 => {
                    left -= 1;
                    open[number] = Some(Client::begin(self, number, &mut random));
                }
                None => {}
                Some(mut client) => match client.go_on(&mut random) {
                    Some(done) => history.transactions.push(done),
                    None => open[number] = Some(client),
                },
            }
        }
        self.look(&mut history);
        history
    }

    /// Clients on a thread each.
    pub fn at_once(&self, seed: u64) -> History {
        let mut history = History::default();
        thread::scope(|scope| {
            let run = |number: usize| {
                let mut random = StdRng::seed_from_u64(seed * 100 + number as u64);
                let mut done = Vec::new();
                for _ in 0..self.size.transactions / self.size.clients {
                    let mut client = Client::begin(self, number, &mut random);
                    loop {
                        if random.random_ratio(1, 4) {
                            thread::yield_now();
                        }
                        if let Some(end) = client.go_on(&mut random) {
                            break done.push(end);
                        }
                    }
                }
                done
            };
            let clients: Vec<_> =
                (0..self.size.clients).map(|number| scope.spawn(move || run(number))).collect();
            clients.into_iter().for_each(|client| history.transactions.extend(client.join().unwrap()));
        });
        self.look(&mut history);
        history
    }

    /// One operation outside of a transaction.
    fn alone(&self, client: usize, random: &mut StdRng) -> Done {
        let (began, key) = (self.moment(), random.random_range(0..self.size.keys));
        let element = self.elements.fetch_add(1, Ordering::Relaxed);
        let value = encode(&[element]);
        let write = Step::Write { key, value: vec![element] };
        let action = if self.actions == Actions::Lists { 0 } else { random.random_range(0..5) };
        let steps = match action {
            0 | 1 => self.table.get([key]).map(|seen| {
                let seen = seen.map(|bytes| decode(&bytes));
                vec![Step::Read { key, seen }]
            }),
            2 if self.actions == Actions::All => self
                .table
                .remove([key])
                .map(|is_there| vec![Step::Probe { key, is_there }, Step::Remove { key }]),
            3 if self.actions == Actions::All => self.table.insert([key], value).map(|inserted| {
                let probe = Step::Probe { key, is_there: !inserted };
                if inserted { vec![probe, write] } else { vec![probe] }
            }),
            _ => self.table.put([key], value).map(|_| vec![write]),
        };
        let is_committed = match &steps {
            Ok(_) => true,
            Err(Error::Conflict { .. }) => false,
            Err(error) => panic!("{error}"),
        };
        Done { client, began, ended: self.moment(), is_committed, steps: steps.unwrap_or_default() }
    }

    /// A last transaction, alone, that sees everything.
    fn look(&self, history: &mut History) {
        let mut random = StdRng::seed_from_u64(0);
        let mut client = Client::begin(self, self.size.clients, &mut random);
        for key in 0..self.size.keys {
            client.read(key).unwrap();
        }
        client.left = 0;
        client.gives_up = false;
        history.transactions.extend(client.go_on(&mut random));
    }
}

/// A client with an open transaction.
struct Client<'p> {
    place: &'p Place,
    transaction: Option<Transaction>,
    number: usize,
    began: u64,
    /// How many steps are still to be done.
    left: usize,
    gives_up: bool,
    steps: Vec<Step>,
}

impl<'p> Client<'p> {
    fn begin(place: &'p Place, number: usize, random: &mut StdRng) -> Self {
        let began = place.moment();
        Self {
            place,
            transaction: Some(place.database.begin().unwrap()),
            number,
            began,
            left: random.random_range(1..=place.size.steps_max),
            gives_up: random.random_ratio(1, 12),
            steps: Vec::new(),
        }
    }

    fn transaction(&self) -> &Transaction {
        self.transaction.as_ref().unwrap()
    }

    /// Takes a step, or ends the transaction: returns what it was.
    fn go_on(&mut self, random: &mut StdRng) -> Option<Done> {
        if self.left > 0 {
            self.left -= 1;
            return match self.step(random) {
                Ok(()) => None,
                Err(error) => self.end(Err(error)),
            };
        }
        let transaction = self.transaction.take()?;
        let result =
            if self.gives_up { transaction.rollback().and(Err(Error::Ended)) } else { transaction.commit() };
        self.end(result)
    }

    fn end(&mut self, result: Result<()>) -> Option<Done> {
        drop(self.transaction.take());
        let is_committed = match result {
            Ok(()) => true,
            Err(Error::Conflict { .. } | Error::Ended) => false,
            Err(error) => panic!("{error}"),
        };
        let (client, steps) = (self.number, std::mem::take(&mut self.steps));
        Some(Done { client, began: self.began, ended: self.place.moment(), is_committed, steps })
    }

    fn step(&mut self, random: &mut StdRng) -> Result<()> {
        let key = random.random_range(0..self.place.size.keys);
        match (random.random_range(0..12), self.place.actions) {
            (0..3, _) => self.read(key),
            (3..6, _) => self.scan(random),
            (_, Actions::Lists) => self.append(key, random),
            (_, Actions::Registers) => self.write(key),
            (6..8, Actions::All) => self.write(key),
            (8, Actions::All) => {
                let (place, element) = (self.place, self.element());
                let is_there = !self.transaction().insert(&place.table, [key], encode(&[element]))?;
                self.steps.push(Step::Probe { key, is_there });
                self.write_if(!is_there, key, element)
            }
            (9, Actions::All) => {
                let (place, element) = (self.place, self.element());
                let is_there = self.transaction().update(&place.table, [key], encode(&[element]))?;
                self.steps.push(Step::Probe { key, is_there });
                self.write_if(is_there, key, element)
            }
            (10, Actions::All) => {
                let is_there = self.transaction().remove(&self.place.table, [key])?;
                self.steps.extend([Step::Probe { key, is_there }, Step::Remove { key }]);
                Ok(())
            }
            (_, Actions::All) => {
                let end = random.random_range(key..self.place.size.keys);
                self.transaction().remove_range(&self.place.table, [key]..=[end])?;
                self.steps.extend((key..=end).map(|key| Step::Remove { key }));
                Ok(())
            }
        }
    }

    fn element(&self) -> u32 {
        self.place.elements.fetch_add(1, Ordering::Relaxed)
    }

    fn read(&mut self, key: u8) -> Result<()> {
        let seen = self.transaction().get(&self.place.table, [key])?.map(|bytes| decode(&bytes));
        self.steps.push(Step::Read { key, seen });
        Ok(())
    }

    fn append(&mut self, key: u8, random: &mut StdRng) -> Result<()> {
        let element = self.element();
        self.read(key)?;
        let Some(Step::Read { seen, .. }) = self.steps.last() else { unreachable!() };
        let mut value = seen.clone().unwrap_or_default();
        if random.random_ratio(1, 2) {
            // The implied read of the old value is not recorded.
            self.steps.pop();
        }
        value.push(element);
        // Refused operations are recorded: no client may ever see their effects.
        self.steps.push(Step::Append { key, element });
        self.transaction().put(&self.place.table, [key], encode(&value)).map(drop)
    }

    fn write(&mut self, key: u8) -> Result<()> {
        let element = self.element();
        self.steps.push(Step::Write { key, value: vec![element] });
        self.transaction().put(&self.place.table, [key], encode(&[element])).map(drop)
    }

    fn write_if(&mut self, written: bool, key: u8, element: u32) -> Result<()> {
        if written {
            self.steps.push(Step::Write { key, value: vec![element] });
        }
        Ok(())
    }

    /// Walks over part of a range, and perhaps back a little. It sees all keys there, including absent ones.
    fn scan(&mut self, random: &mut StdRng) -> Result<()> {
        let keys = self.place.size.keys;
        let (low, high) = (random.random_range(0..keys), random.random_range(0..keys));
        let (low, high) = (low.min(high), low.max(high));
        let is_forward = random.random_ratio(1, 2);
        let limit = random.random_range(1..=usize::from(keys) * 2);
        let back = random.random_range(0..3usize).saturating_sub(1);
        let place = self.place;
        let mut seen = Vec::new();
        let mut last = None;
        let mut cursor = self
            .transaction
            .as_ref()
            .unwrap()
            .cursor(&place.table, (Bound::Included([low]), Bound::Included([high])))?;
        if !is_forward {
            cursor.seek_to_end();
        }
        for _ in 0..limit {
            last = next(&mut cursor, is_forward)?;
            match &last {
                Some(entry) => seen.push(entry.clone()),
                None => break,
            }
        }
        for _ in 0..back {
            next(&mut cursor, !is_forward)?;
        }
        drop(cursor);
        let covered = match (last, is_forward) {
            (Some((key, _)), true) => low..=key,
            (Some((key, _)), false) => key..=high,
            (None, _) => low..=high,
        };
        self.steps.extend(covered.map(|key| {
            let seen = seen.iter().find(|(of, _)| *of == key).map(|(_, value)| value.clone());
            Step::Read { key, seen }
        }));
        Ok(())
    }
}

fn next(cursor: &mut Cursor<'_>, is_forward: bool) -> Result<Option<(u8, Value)>> {
    let entry = if is_forward { cursor.next()? } else { cursor.previous()? };
    let Some(entry) = entry else { return Ok(None) };
    let value = entry.value()?.unwrap();
    Ok(Some((entry.key()[0], decode(&value))))
}

/// A value with its length first, padded to a small or a large value.
fn encode(value: &[u32]) -> Vec<u8> {
    let mut bytes = (value.len() as u32).to_le_bytes().to_vec();
    value.iter().for_each(|element| bytes.extend(element.to_le_bytes()));
    let last = value.last().copied().unwrap_or_default();
    let padding = if last % 16 == 0 { 3000 } else { last as usize * 37 % 400 };
    bytes.resize(bytes.len() + padding, 0xee);
    bytes
}

fn decode(bytes: &[u8]) -> Value {
    let mut numbers = bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
    let length = numbers.next().unwrap() as usize;
    let value: Value = numbers.take(length).collect();
    assert_eq!(encode(&value), bytes, "a value is as it was stored");
    value
}
