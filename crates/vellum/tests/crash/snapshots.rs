//! Old snapshots, for which leaves are kept as they were, beside everything that changes leaves; and changes by their transactions.

use crate::for_seeds;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{collections::BTreeMap, sync::Arc};
use vellum::{Database, Durability, Error, Options, Savepoint, Table, Transaction};
use vellum_vm::SimulatedDisk;

type World = BTreeMap<Vec<u8>, Vec<u8>>;

const KEYS: u32 = 1200;

fn options(seed: u64) -> Options {
    Options::default()
        .pool_bytes(1 << 20)
        .capacity_bytes(1 << 30)
        .log_segment_bytes(1 << 20)
        .log_buffer_bytes(4 << 20)
        .background_checkpoints(false)
        .huge_pages(false)
        .durability(Durability::Deferred)
        .version_memory_bytes([0, 20_000, 100_000][seed as usize % 3])
        .log(has_log(seed))
}

fn has_log(seed: u64) -> bool {
    seed % 4 != 3
}

fn key(number: u32) -> Vec<u8> {
    let mut key = number.to_be_bytes().to_vec();
    if number.is_multiple_of(97) {
        key.splice(0..0, [7; 1015]);
    }
    key
}

fn value(random: &mut StdRng) -> Vec<u8> {
    let length = if random.random_ratio(1, 50) { 5000 } else { random.random_range(0..300) };
    vec![random.random(); length]
}

fn seen_by(transaction: &Transaction, table: &Table) -> World {
    let mut cursor = transaction.cursor(table, ..).unwrap();
    let mut found = World::new();
    while let Some(entry) = cursor.next().unwrap() {
        found.insert(entry.key().to_vec(), entry.value().unwrap().unwrap().to_vec());
    }
    found
}

/// A snapshot, what it sees, and what its transaction has changed.
struct Held {
    transaction: Transaction,
    world: World,
    /// How many commits there were when it began.
    commits: u64,
    changed: BTreeMap<u32, Vec<u8>>,
    /// A place to which it may be rolled back, and what it saw and had changed there.
    saved: Option<(Savepoint, World, BTreeMap<u32, Vec<u8>>)>,
    /// The other tables that it sees.
    others: Others,
}

/// Tables that come and go, by their numbers, and what is in them.
type Others = BTreeMap<u32, World>;

/// Its name, which is so long that few of them fill a leaf of the catalog.
fn name(number: u32) -> String {
    format!("{number:0>250}")
}

fn other(database: &Database, number: u32) -> Table {
    database.table(&name(number)).unwrap()
}

/// A database, what is in it, and the last commit that has changed each record, or has been undone there.
struct Place {
    database: Database,
    table: Table,
    now: World,
    commits: u64,
    changed: BTreeMap<u32, u64>,
    touched: BTreeMap<u32, u64>,
    held: Vec<Held>,
    others: Others,
    others_made: u32,
    random: StdRng,
    has_log: bool,
    kept_leaves: usize,
}

impl Place {
    /// Some records are changed together, and that is committed or rolled back.
    fn change(&mut self) {
        let transaction = self.database.begin().unwrap();
        let (mut changed, mut numbers) = (self.now.clone(), Vec::new());
        let first = self.random.random_range(0..KEYS);
        // Long runs are removed, so that leaves are merged, and filled again.
        let removes = self.random.random_ratio(1, 3);
        for number in first..first + self.random.random_range(1..40) {
            let busy = self.held.iter().any(|held| held.changed.contains_key(&number));
            if busy {
                continue;
            }
            let (key, value) = (key(number), value(&mut self.random));
            if removes {
                let is_there = changed.remove(&key).is_some();
                assert_eq!(transaction.remove(&self.table, &key).unwrap(), is_there);
                if !is_there {
                    continue;
                }
            } else {
                transaction.put(&self.table, &key, &value).unwrap();
                changed.insert(key, value);
            }
            numbers.push(number);
        }
        if self.random.random_ratio(4, 5) {
            transaction.commit().unwrap();
            self.now = changed;
            self.commits += 1;
            numbers.iter().for_each(|number| _ = self.changed.insert(*number, self.commits));
        } else {
            transaction.rollback().unwrap();
        }
        numbers.iter().for_each(|number| _ = self.touched.insert(*number, self.commits + 1));
    }

    /// A held transaction changes a record, or is refused because another has. Returns whether it is there still.
    fn change_by_held(&mut self, index: usize) -> bool {
        // Those at the end nobody else changes.
        let number = self.random.random_range(0..KEYS + 300);
        let busy = self.held.iter().enumerate();
        let busy =
            busy.filter(|(other, held)| *other != index && held.changed.contains_key(&number)).count() > 0;
        let value = value(&mut self.random);
        let held = &mut self.held[index];
        let is_new = !held.changed.contains_key(&number);
        let later =
            |commits: &BTreeMap<u32, u64>| commits.get(&number).is_some_and(|last| *last > held.commits);
        let (must, may) =
            (is_new && (busy || later(&self.changed)), is_new && (busy || later(&self.touched)));
        match held.transaction.put(&self.table, key(number), &value) {
            Ok(_) => {
                assert!(!must, "{number} was changed by another");
                held.world.insert(key(number), value.clone());
                held.changed.insert(number, value);
            }
            Err(Error::Conflict { .. }) => {
                assert!(may, "{number} was changed by nobody");
                let held = self.held.swap_remove(index);
                held.changed.keys().for_each(|number| _ = self.touched.insert(*number, self.commits + 1));
                drop(held);
                return false;
            }
            Err(error) => panic!("{error}"),
        }
        true
    }

    /// A held transaction takes a savepoint and changes a few records, or is rolled back to it: what it has changed since stays its own.
    fn save(&mut self, index: usize) {
        let held = &mut self.held[index];
        match held.saved.take() {
            None => {
                let saved = (held.transaction.savepoint(), held.world.clone(), held.changed.clone());
                held.saved = Some(saved);
                let _ = (0..4).all(|_| self.change_by_held(index));
            }
            Some((savepoint, world, changed)) => {
                held.transaction.rollback_to(savepoint).unwrap();
                held.world = world;
                for (number, value) in &mut held.changed {
                    // It is as it was, and still reserved.
                    let before = held.world.get(&key(*number)).cloned();
                    *value = changed.get(number).cloned().or(before).unwrap_or_default();
                }
            }
        }
    }

    fn end(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let held = self.held.swap_remove(self.random.random_range(0..self.held.len()));
        self.look(&held);
        let is_committed = self.random.random_ratio(1, 2);
        for (number, value) in &held.changed {
            self.touched.insert(*number, self.commits + 1);
            // What was undone is as it was.
            if is_committed && held.world.contains_key(&key(*number)) {
                self.changed.insert(*number, self.commits + 1);
                self.now.insert(key(*number), value.clone());
            }
        }
        if is_committed {
            held.transaction.commit().unwrap();
            self.commits += 1;
        } else {
            held.transaction.rollback().unwrap();
        }
    }

    fn look(&self, held: &Held) {
        assert!(seen_by(&held.transaction, &self.table) == held.world);
        for number in (0..KEYS + 300).step_by(7) {
            let seen = held.transaction.get(&self.table, key(number)).unwrap();
            assert_eq!(seen.as_ref(), held.world.get(&key(number)), "{number}");
        }
        for (number, world) in &self.others {
            let table = other(&self.database, *number);
            match held.others.get(number) {
                Some(world) => assert!(seen_by(&held.transaction, &table) == *world, "other {number}"),
                None => {
                    for key in world.keys() {
                        match held.transaction.get(&table, key) {
                            Ok(None) | Err(Error::NoSuchTable { .. }) => {}
                            seen => panic!(
                                "{number} is there later: {:?}",
                                seen.map(|value| value.unwrap().len())
                            ),
                        }
                    }
                }
            }
        }
    }

    /// Another table comes, is filled, or goes.
    fn change_others(&mut self) {
        let number = self.others.keys().nth(self.random.random_range(0..40)).copied();
        let Some(number) = number else {
            self.others_made += 1;
            drop(self.database.create_table(&name(self.others_made)).unwrap());
            self.others.insert(self.others_made, World::new());
            return self.fill(self.others_made);
        };
        if self.random.random_ratio(1, 2) {
            self.others.remove(&number);
            return self.database.drop_table(&name(number)).unwrap();
        }
        self.fill(number);
    }

    /// Fills another table, by a load if that is empty, or record by record.
    fn fill(&mut self, number: u32) {
        let (table, world) = (other(&self.database, number), self.others.get_mut(&number).unwrap());
        let first = self.random.random_range(0..KEYS);
        let numbers = first..first + self.random.random_range(1..60);
        let entries: World = numbers.map(|number| (key(number), value(&mut self.random))).collect();
        let transaction = self.database.begin().unwrap();
        if world.is_empty() && self.random.random_ratio(1, 2) {
            transaction.bulk_load(&table, &entries).unwrap();
        } else {
            entries.iter().for_each(|(key, value)| _ = transaction.put(&table, key, value).unwrap());
        }
        transaction.commit().unwrap();
        world.extend(entries);
    }

    fn step(&mut self) {
        match self.random.random_range(0..100) {
            0..4 if self.held.len() < 4 => self.held.push(Held {
                transaction: self.database.begin().unwrap(),
                world: self.now.clone(),
                commits: self.commits,
                changed: BTreeMap::new(),
                saved: None,
                others: self.others.clone(),
            }),
            4..6 => self.end(),
            kind @ 6..20 if !self.held.is_empty() => {
                let index = self.random.random_range(0..self.held.len());
                match kind {
                    6..13 => _ = self.change_by_held(index),
                    13..17 => self.save(index),
                    _ => self.look(&self.held[index]),
                }
            }
            20 if self.has_log => self.database.checkpoint().unwrap(),
            21 if self.has_log => {
                let _ = self.database.compact(|_| true).unwrap();
                // It moves large values, which is a change for those that change them as well.
                (0..KEYS + 300).for_each(|number| _ = self.touched.insert(number, self.commits + 1));
            }
            22..25 => self.change_others(),
            _ => self.change(),
        }
        self.kept_leaves = self.kept_leaves.max(self.database.history().kept_leaves);
    }
}

impl Place {
    /// A transaction that is covered, and open alone by then, changes a record: it sees that, and not what was kept of the leaf.
    fn change_alone(&mut self) -> Result<(), String> {
        const RECORDS: u32 = 800;
        let table = self.database.create_table("alone").unwrap();
        (0..RECORDS).for_each(|number| _ = table.put(key(number), [0; 200]).unwrap());
        let old = self.database.begin().unwrap();
        let mut rounds = 1..20;
        while self.database.history().kept_leaves == 0 {
            let Some(round) = rounds.next() else { return Err("it was not covered".to_owned()) };
            for number in (0..RECORDS).step_by(2) {
                let put = |new: &Transaction| new.put(&table, key(number), [round; 200]).map(drop);
                self.database.run(put).unwrap();
            }
        }
        let number = self.random.random_range(0..RECORDS / 2) * 2 + 1;
        old.put(&table, key(number), "own").unwrap();
        let seen = old.get(&table, key(number)).unwrap();
        old.commit().unwrap();
        drop(table);
        self.database.drop_table("alone").unwrap();
        let is_own = seen.as_deref() == Some(b"own");
        if is_own {
            Ok(())
        } else {
            Err(format!("a transaction that is alone does not see its own change: {seen:?}"))
        }
    }
}

fn live(seed: u64) -> Result<(), String> {
    let disk = SimulatedDisk::new(seed);
    let database = Database::create_in(Arc::new(disk), "data", &options(seed)).unwrap();
    let table = database.create_table("table").unwrap();
    let mut random = StdRng::seed_from_u64(seed);
    let mut now = World::new();
    for number in 0..KEYS {
        let (key, value) = (key(number), value(&mut random));
        table.put(&key, &value).unwrap();
        now.insert(key, value);
    }
    let mut place = Place {
        database,
        table,
        now,
        commits: 1,
        changed: BTreeMap::new(),
        touched: BTreeMap::new(),
        held: Vec::new(),
        others: Others::new(),
        others_made: 0,
        random,
        has_log: has_log(seed),
        kept_leaves: 0,
    };
    // Leaves of the catalog lie anywhere.
    (0..20).for_each(|_| place.change_others());
    (0..600).for_each(|_| place.step());
    while !place.held.is_empty() {
        place.end();
    }
    place.change_alone()?;
    // What is left of a cover goes when the next transaction ends.
    place.change();
    let history = place.database.history();
    let left = (history.open, history.records, history.leftovers, history.kept_leaves);
    if left != (0, 0, 0, 0) {
        return Err(format!("something is left of the history: {history:?}"));
    }
    if seen_by(&place.database.begin().unwrap(), &place.table) != place.now {
        return Err("the last state is not what it should be".to_owned());
    }
    if place.kept_leaves == 0 { Err("no snapshot was covered".to_owned()) } else { Ok(()) }
}

#[test]
fn snapshots() {
    for_seeds(16, live);
}
