//! Every request that reads or changes tables, in any order, compared with a model that knows all versions.
//!
//! One thread interleaves transactions, single operations and changes of tables, from a seed. What is under way over several
//! steps (iterators, cursors, lookups, readers, submissions, futures) is held by a nested call, while the steps within it do
//! anything else. `VELLUM_SEED` repeats a seed, `VELLUM_STEPS` ends it early, `VELLUM_SEEDS` and `VELLUM_FIRST_SEED` run
//! others. What the database's own threads do for futures may happen at other moments when a seed is repeated. A run has either
//! feeds and backups, or a log that fails for good.

mod backups;
mod bounds;
mod changes;
mod commits;
mod dropped;
mod failures;
mod feed;
mod futures;
mod held;
mod many;
mod model;
mod poisoned;
mod prefixes;
mod ranges;
mod reads;
mod requests;
mod tables;
mod typed;
mod under_way;
mod watch;

use crate::support::{assert_clean, options};
use backups::Backups;
use feed::Feeds;
use model::{Clash, Entries, Id, Key, Model, Number, Saved, Value, View, short};
use poisoned::Poison;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    rc::Rc,
    sync::Arc,
};
use typed::{Keys, Tuple, encoded};
use vellum::{Database, Durability, ErrorKind, Options, Savepoint, Table, Transaction};
use vellum_vm::SimulatedDisk;

/// How much is held at a time.
const DEPTH_MAX: usize = 3;
const TRANSACTIONS_MAX: usize = 4;

#[test]
fn all_requests_answer_as_the_model_does() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let steps = number("VELLUM_STEPS").unwrap_or(u64::MAX);
    let (first, count) = match number("VELLUM_SEED") {
        Some(seed) => (seed, 1),
        None => (number("VELLUM_FIRST_SEED").unwrap_or(0), number("VELLUM_SEEDS").unwrap_or(20)),
    };
    for seed in first..first + count {
        Run::new(seed, steps).run();
    }
}

/// A table's handles.
#[derive(Clone)]
struct Handle {
    bytes: Table,
    keys: Keys,
    /// The same table, if its keys are numbers, texts or tuples.
    numbers: Option<Table<u64, [u8]>>,
    texts: Option<Table<String, [u8]>>,
    tuples: Option<Table<Tuple, [u8]>>,
    is_plain: bool,
}

/// An open transaction of the database.
struct Begun {
    number: Number,
    transaction: Rc<Transaction>,
    durability: Durability,
    savepoints: Vec<(Savepoint, Saved)>,
}

/// The source that is read, or what is changed: a transaction, or the database itself.
#[derive(Clone)]
struct Source {
    number: Option<Number>,
    transaction: Option<Rc<Transaction>>,
}

struct Run {
    random: StdRng,
    disk: SimulatedDisk,
    options: Options,
    database: Option<Database>,
    model: Model,
    tables: BTreeMap<Id, Handle>,
    /// Handles on tables that nobody sees any more.
    dropped: Vec<(Id, Handle)>,
    begun: Vec<Begun>,
    story: Story,
    /// How much is held by calls below this one.
    depth: usize,
    next_id: u32,
    next_number: Number,
    /// Makes each value another one.
    next_value: u64,
    pool_bytes: usize,
    /// Each operation of the device takes a while.
    is_slow: bool,
    /// The device fails now.
    is_failing: bool,
    /// How often it has begun to fail.
    failures: u64,
    /// The log, or the file's syncs, fail for good.
    poison: Option<Poison>,
    /// Whether that may happen in this run. A crash takes back commits that were told and archived, so there are no feeds,
    /// backups and archives then.
    has_poison: bool,
    compactions: u32,
    /// The tables that futures are changing: nothing else uses them.
    unsettled: BTreeSet<Id>,
    /// Whether futures were dropped, for which the database may still be doing something.
    has_cancelled: bool,
    feeds: Feeds,
    backups: Backups,
    steps: u64,
    steps_max: u64,
}

/// What has been done, printed if something is wrong.
struct Story {
    seed: u64,
    lines: Vec<String>,
}

impl Drop for Story {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let first = self.lines.len().saturating_sub(60);
            for (number, line) in self.lines.iter().enumerate().skip(first) {
                eprintln!("{number:5} {line}");
            }
            eprintln!("VELLUM_SEED={} shows it again", self.seed);
        }
    }
}

impl Run {
    fn new(seed: u64, steps: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let disk = SimulatedDisk::new(seed);
        let pool_bytes = [64 << 10, 96 << 10, 256 << 10, 512 << 10, 1 << 20][random.random_range(0..5)];
        let versions = [8_000, 20_000, 50_000, 200_000, 64 << 20][random.random_range(0..5)];
        let has_log = random.random_ratio(9, 10);
        let options = options()
            .pool_bytes(pool_bytes as u64)
            .version_memory_bytes(versions)
            .durability(Durability::Deferred)
            .log(has_log);
        let backups = Backups::new(seed, &options);
        let has_poison = random.random_ratio(1, 2);
        let (options, feeds) = Feeds::draw(&mut random, options, has_log && !has_poison);
        let database = Database::create_in(Arc::new(disk.clone()), "data", &options).unwrap();
        let is_slow = random.random_ratio(1, 5);
        let story = Story {
            seed,
            lines: vec![format!("pool of {pool_bytes}, versions in {versions}, slow {is_slow}")],
        };
        Self {
            steps_max: steps.min(random.random_range(60..400)),
            random,
            disk,
            options,
            database: Some(database),
            model: Model::of(View::default(), Durability::Deferred),
            tables: BTreeMap::new(),
            dropped: Vec::new(),
            begun: Vec::new(),
            story,
            depth: 0,
            next_id: 0,
            next_number: 0,
            next_value: 0,
            pool_bytes,
            is_slow,
            is_failing: false,
            failures: 0,
            poison: None,
            has_poison,
            compactions: 0,
            unsettled: BTreeSet::new(),
            has_cancelled: false,
            feeds,
            backups,
            steps: 0,
        }
    }

    fn run(mut self) {
        self.heal();
        for number in 0..3 {
            self.create_first(number);
        }
        self.model.commits.add_first(&self.model.view);
        while self.steps < self.steps_max {
            self.step();
        }
        self.end_all();
        self.read_all_feeds();
        self.restore_point();
        self.dropped.clear();
        self.compare_all();
        assert_clean(self.database());
    }

    fn database(&self) -> &Database {
        self.database.as_ref().unwrap()
    }

    /// Anything, and reads after it.
    fn step(&mut self) {
        self.steps += 1;
        self.end_dead();
        match self.random.random_range(0..106) {
            0..38 => self.change(),
            38..46 => self.change_many(),
            46..56 => self.begin(),
            56..64 => self.end(),
            64..68 => self.save_or_go_back(),
            68..76 => self.change_tables(),
            76..88 if self.depth < DEPTH_MAX => self.hold(),
            88 => self.churn(),
            89 if self.depth == 0 => self.reopen(),
            90 => self.maintain(),
            91 | 92 => self.use_dropped(),
            93..96 => self.fail(),
            96 if self.has_poison && self.depth == 0 => self.poison(),
            96..101 if !self.has_poison => self.feed(),
            101..106 if !self.has_poison => self.use_backups(),
            _ => {}
        }
        for _ in 0..self.random.random_range(1..4) {
            self.read();
        }
    }

    fn tell(&mut self, what: String) {
        let line = format!("{}{what}", "  ".repeat(self.depth));
        if std::env::var_os("VELLUM_TELL").is_some() {
            eprintln!("{line}");
        }
        self.story.lines.push(line);
    }

    /// Any table, and who reads or changes it. None if nobody can.
    fn draw(&mut self) -> Option<(Source, Id, Handle)> {
        let source = self.draw_source();
        let mut tables: Vec<Id> = match source.number {
            Some(number) => {
                let seen = self.model.open[&number].view.tables.keys().copied();
                seen.filter(|table| self.tables.get(table).is_some_and(|handle| !handle.is_plain)).collect()
            }
            None => self
                .model
                .view
                .tables
                .keys()
                .copied()
                .filter(|table| self.tables.contains_key(table))
                .collect(),
        };
        tables.retain(|table| !self.unsettled.contains(table));
        let table = *tables.get(self.random.random_range(0..tables.len().max(1)))?;
        Some((source, table, self.tables[&table].clone()))
    }

    fn draw_source(&mut self) -> Source {
        let alive: Vec<&Begun> =
            self.begun.iter().filter(|begun| !self.model.open[&begun.number].is_dead).collect();
        match alive.get(self.random.random_range(0..alive.len() + 2)) {
            Some(begun) => {
                Source { number: Some(begun.number), transaction: Some(begun.transaction.clone()) }
            }
            None => Source { number: None, transaction: None },
        }
    }

    fn entries(&self, source: &Source, table: Id) -> Rc<Entries> {
        self.model.entries(source.number, table).unwrap()
    }

    /// A key of a table, mostly one that is there.
    fn draw_key(&mut self, table: Id, entries: &Entries) -> Key {
        if !entries.is_empty() && self.random.random_ratio(1, 2) {
            let place = self.random.random_range(0..entries.len());
            return entries.keys().nth(place).unwrap().clone();
        }
        let number = self.random.random_range(0..200_u64);
        self.key(table, number)
    }

    /// The keys that a table may have, in no order.
    fn key(&self, table: Id, number: u64) -> Key {
        let dropped = || self.dropped.iter().find(|dropped| dropped.0 == table).map(|dropped| &dropped.1);
        match self.tables.get(&table).or_else(dropped).map(|handle| handle.keys) {
            Some(Keys::Numbers) => return (number * number).to_be_bytes().to_vec(),
            Some(Keys::Texts) => return encoded::<String>(&typed::text(number)),
            Some(Keys::Tuples) => return encoded::<Tuple>(&typed::tuple(number)),
            Some(Keys::Bytes) | None => {}
        }
        let text = format!("{number:03}");
        match number % 8 {
            0 if number == 0 => Vec::new(),
            0 => vec![0xff; number as usize / 8],
            1 | 2 => [&b"long shared prefix ".repeat(12)[..], text.as_bytes()].concat(),
            3 => [vec![b'm'; vellum::MAX_KEY_BYTES - 3], text.into_bytes()].concat(),
            4 => text.repeat(number as usize % 5).into_bytes(),
            5 => vec![b'l'; number as usize],
            _ => text.into_bytes(),
        }
    }

    /// A value that no other record has, unless it is very short.
    fn draw_value(&mut self) -> Value {
        let length = match self.random.random_range(0..200) {
            0..5 => self.random.random_range(0..3),
            5 | 6 => self.random.random_range(1020..1030),
            // With the longest keys these are the longest that lie in leaves.
            7 | 8 => self.random.random_range(880..896),
            9 => {
                (self.random.random_range(1..6) * 4096_usize).saturating_sub(self.random.random_range(0..80))
            }
            10..110 => self.random.random_range(1..100),
            110..170 => self.random.random_range(100..1024),
            170..185 => self.random.random_range(1024..9000),
            185..199 => self.random.random_range(9000..40_000),
            _ if self.random.random_ratio(1, 4) && self.pool_bytes < 300_000 => {
                self.random.random_range(300_000..400_000)
            }
            // One that nearly fills the pool may be refused: a callback that shows it may read another one.
            _ => self.random.random_range(40_000..self.pool_bytes.min(600_000) * 5 / 8),
        };
        self.value_of(length)
    }

    fn value_of(&mut self, length: usize) -> Value {
        self.next_value += 1;
        let number = (self.next_value as u32).to_le_bytes();
        Rc::new(number.iter().copied().cycle().take(length).collect())
    }

    /// Whether a value may be too large to be read as one in the pool.
    fn is_huge(&self, length: usize) -> bool {
        length > self.room()
    }

    fn room(&self) -> usize {
        self.pool_bytes * 5 / 8
    }

    /// Compares what a change has answered; returns whether it was made. A transaction is dead after a conflict.
    #[track_caller]
    fn settle<T: PartialEq + Debug>(
        &mut self,
        source: &Source,
        clash: Clash,
        done: vellum::Result<T>,
        expected: T,
    ) -> bool {
        match done {
            Ok(done) => {
                assert_ne!(clash, Clash::Certain, "there should be a conflict, and not {done:?}");
                assert_eq!(done, expected);
                true
            }
            Err(error) if error.kind() == ErrorKind::Conflict => {
                assert_ne!(clash, Clash::None, "a needless conflict: {error:?}");
                if let Some(number) = source.number {
                    if matches!(error, vellum::Error::Conflict { committed: false, .. }) {
                        self.model.note_conflict();
                    }
                    self.tell(format!("T{number} is dead"));
                    self.model.open.get_mut(&number).unwrap().is_dead = true;
                }
                false
            }
            Err(error) => {
                assert!(self.is_failure(&error), "{error:?}");
                if source.number.is_none() && self.doubts(&error) {
                    return true;
                }
                self.note_failure(source, &error);
                false
            }
        }
    }

    /// Whether a request that will certainly conflict is made nevertheless. That of a single operation takes a while.
    fn dares(&mut self, source: &Source, clash: Clash) -> bool {
        clash == Clash::None || self.random.random_ratio(1, if source.number.is_some() { 3 } else { 12 })
    }

    /// Everything that is in the database, read again.
    fn compare_all(&mut self) {
        let names: Vec<_> = self.database().tables().unwrap().into_iter().map(|table| table.name).collect();
        assert!(names.iter().eq(self.model.view.names.keys()), "{names:?}");
        for (name, table) in &self.model.view.names {
            let handle = self.database().table_as_bytes(name).unwrap();
            let mut expected = self.model.view.tables[table].iter();
            for entry in handle.range(..).unwrap() {
                let (key, value) = entry.unwrap();
                let (wanted, wanted_value) = expected.next().unwrap();
                assert!(key == *wanted && value == **wanted_value, "{} in {name}", short(&key));
            }
            assert!(expected.next().is_none());
        }
    }
}

impl Source {
    fn text(&self) -> String {
        self.number.map_or("single".to_owned(), |number| format!("T{number}"))
    }
}
