//! The workloads A to F of the Yahoo! Cloud Serving Benchmark (Cooper, Silberstein, Tam, Ramakrishnan, Sears:
//! *Benchmarking cloud serving systems with YCSB*, SoCC 2010) on one table of records.
//!
//! | workload | operations | keys by default |
//! |---|---|---|
//! | A | half reads, half updates of one field | zipfian |
//! | B | 95 % reads, 5 % updates | zipfian |
//! | C | reads | zipfian |
//! | D | 95 % reads, 5 % insertions | the latest |
//! | E | 95 % scans of 1 to 100 records, 5 % insertions | zipfian |
//! | F | half reads, half reads of a record with an update of one field of it | zipfian |
//!
//! A record is one value: its fields, one behind the other. A read copies the whole record and checks it, an update
//! changes one field, in place where the engine allows it; in F what the update writes depends on what it finds.
//! Each operation is a transaction. Zipfian keys are *scrambled*: which records are the frequent ones follows no
//! order. Keys are hashed numbers, so records that are inserted are spread over the table; E begins its scans at
//! records that were loaded, and meets the others on the way.

mod records;
mod zipfian;

use crate::Result;
use crate::engines::store::{Access, Session, Store, Transaction};
use crate::keys::{Generator, KEY_BYTES, Permutation};
use crate::protocol::{Specification, Workload};
use crate::record_worker::{Findings, RecordWorkload};
use crate::statistics::Latencies;
use crate::workloads::{Pace, Pass, Work, run_threads};
use clap::ValueEnum;
use records::{Layout, Numbers, fill_field, key};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::ops::ControlFlow;
use std::time::Instant;
use zipfian::Zipfian;

/// The one table.
const RECORDS: usize = 0;

/// How many records are loaded in one transaction.
const LOADED_AT_ONCE: u64 = 10_000;

/// The workloads by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mix {
    /// Half reads, half updates
    A,
    /// 95 % reads, 5 % updates
    B,
    /// Reads
    C,
    /// 95 % reads of the latest records, 5 % insertions
    D,
    /// 95 % scans, 5 % insertions
    E,
    /// Half reads, half reads with an update of what was read
    F,
}

/// What is done with a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    Read,
    Update,
    Insert,
    Scan,
    ReadModifyWrite,
}

impl Mix {
    /// The name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::A => "ycsb_a",
            Self::B => "ycsb_b",
            Self::C => "ycsb_c",
            Self::D => "ycsb_d",
            Self::E => "ycsb_e",
            Self::F => "ycsb_f",
        }
    }

    /// The distribution of keys unless another one is asked for.
    pub fn distribution(self) -> Distribution {
        if self == Self::D { Distribution::Latest } else { Distribution::Zipfian }
    }

    /// Whether it inserts records.
    pub fn inserts(self) -> bool {
        matches!(self, Self::D | Self::E)
    }

    /// The operation that a number below 100 stands for.
    fn operation(self, number: u64) -> Operation {
        match self {
            Self::A if number < 50 => Operation::Update,
            Self::B if number < 5 => Operation::Update,
            Self::F if number < 50 => Operation::ReadModifyWrite,
            Self::D | Self::E if number < 5 => Operation::Insert,
            Self::E => Operation::Scan,
            Self::A | Self::B | Self::C | Self::D | Self::F => Operation::Read,
        }
    }
}

/// Which records are used how often.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// By Zipf's law, in no order
    Zipfian,
    /// All alike
    Uniform,
    /// By Zipf's law, those inserted last most often
    Latest,
}

/// The workload.
pub struct Ycsb {
    mix: Mix,
    distribution: Distribution,
    layout: Layout,
    scan_max: u64,
    loaded: u64,
    seed: u64,
    numbers: Numbers,
    zipfian: Zipfian,
    /// From ranks to the numbers of records that were loaded.
    scramble: Permutation,
}

impl RecordWorkload for Ycsb {
    const TIMES_ALL: bool = false;

    fn new(specification: &Specification) -> Result<Self> {
        let Workload::Ycsb { mix, distribution, fields, scan_max } = specification.workload else {
            return Err("the specification is not of YCSB".into());
        };
        let (loaded, seed) = (specification.tuples, specification.seed);
        Ok(Self {
            mix,
            distribution,
            layout: Layout { fields, field_bytes: specification.value_bytes / fields.max(1) },
            scan_max,
            loaded,
            seed,
            numbers: Numbers::new(loaded),
            zipfian: Zipfian::new(loaded, zipfian::THETA),
            scramble: Permutation::new(loaded, seed),
        })
    }

    fn tables(&self) -> &'static [&'static str] {
        &["usertable"]
    }

    fn payload_bytes(&self) -> u64 {
        let grown = if self.mix.inserts() { 4 << 30 } else { 0 };
        self.loaded * (KEY_BYTES + self.layout.bytes()) as u64 + grown
    }

    fn load<S: Store>(&self, store: &S) -> Result<()> {
        let mut session = store.session()?;
        let mut record = vec![0; self.layout.bytes()];
        for first in (0..self.loaded).step_by(LOADED_AT_ONCE as usize) {
            let mut transaction = session.begin(Access::Write)?;
            for number in first..self.loaded.min(first + LOADED_AT_ONCE) {
                self.layout.fill(&key(number), 0, &mut record);
                transaction.insert(RECORDS, &key(number), &record)?;
            }
            transaction.commit()?;
        }
        Ok(())
    }

    fn pass<S: Store>(&self, store: &S, pace: &Pace) -> Result<Pass> {
        let prepare = |thread: usize| {
            let generator = Generator::new(self.seed, thread as u64, pace.round);
            let record = vec![0; self.layout.bytes()];
            let mut zipfian = self.zipfian.clone();
            zipfian.grow(self.numbers.limit());
            let client = Client { workload: self, session: store.session()?, generator, zipfian, record };
            Ok((client, Latencies::new()?))
        };
        run_threads(pace.threads, prepare, |(mut client, mut latencies), start| {
            let deadline = start + pace.duration;
            let mut operations = 0;
            loop {
                let begin = Instant::now();
                client.one()?;
                let end = Instant::now();
                latencies.record(end - begin);
                if end >= deadline {
                    return Ok(Work { operations: operations + 1, latencies });
                }
                for _ in 1..pace.sample_every {
                    client.one()?;
                }
                operations += pace.sample_every.max(1);
            }
        })
    }

    fn check<S: Store>(&self, store: &S) -> Result<Findings> {
        let mut findings = Findings::default();
        let mut session = store.session()?;
        let mut transaction = session.begin(Access::Read)?;
        let (mut count, mut sum) = (0u64, 0u64);
        transaction.scan(RECORDS, &[], |key, record| {
            count += 1;
            sum = sum.wrapping_add(number_of(key));
            if !self.layout.matches(key, record) {
                findings.add(format!("the record with the key {key:02x?} is not what was written"));
            }
            ControlFlow::Continue(())
        })?;
        transaction.commit()?;
        let expected = self.numbers.limit();
        // The sum of the hashes tells whether they are the right ones, too.
        let hashes = (0..expected).fold(0u64, |sum, number| sum.wrapping_add(number_of(&key(number))));
        if count != expected || sum != hashes {
            findings.add(format!("there are {count} records where {expected} were inserted, or wrong ones"));
        }
        findings.checked = format!("all {count} records, each field of which begins with its key");
        Ok(findings)
    }

    fn summary(&self) -> Result<(serde_json::Value, Vec<String>)> {
        let inserted = self.numbers.limit() - self.loaded;
        Ok((json!({ "records_loaded": self.loaded, "records_inserted": inserted }), Vec::new()))
    }
}

fn number_of(key: &[u8]) -> u64 {
    key.try_into().map_or(0, u64::from_be_bytes)
}

/// What one thread does.
struct Client<'w, S> {
    workload: &'w Ycsb,
    session: S,
    generator: Generator,
    zipfian: Zipfian,
    record: Vec<u8>,
}

impl<S: Session> Client<'_, S> {
    /// One operation.
    fn one(&mut self) -> Result<()> {
        match self.workload.mix.operation(self.generator.below(100)) {
            Operation::Read => self.read(),
            Operation::Update => self.update(false),
            Operation::ReadModifyWrite => self.update(true),
            Operation::Insert => self.insert(),
            Operation::Scan => self.scan(),
        }
    }

    /// The number of a record that is there.
    fn choose(&mut self) -> u64 {
        let workload = self.workload;
        match workload.distribution {
            Distribution::Uniform if workload.mix == Mix::E => self.generator.below(workload.loaded),
            Distribution::Uniform => self.generator.below(workload.numbers.limit()),
            Distribution::Zipfian => {
                workload.scramble.at(self.zipfian.draw(&mut self.generator) % workload.loaded)
            }
            Distribution::Latest => {
                let limit = workload.numbers.limit();
                self.zipfian.grow(limit);
                limit - 1 - self.zipfian.draw(&mut self.generator).min(limit - 1)
            }
        }
    }

    fn read(&mut self) -> Result<()> {
        let key = key(self.choose());
        let mut transaction = self.session.begin(Access::Read)?;
        let record = &mut self.record;
        let found = transaction.get(RECORDS, &key, |found| {
            record.clear();
            record.extend_from_slice(found);
        })?;
        transaction.commit()?;
        if found.is_some() && self.workload.layout.matches(&key, &self.record) {
            return Ok(());
        }
        Err(wrong(&key))
    }

    /// Writes one field; `after_reading` it, so that what is written depends on what was there.
    fn update(&mut self, after_reading: bool) -> Result<()> {
        let key = key(self.choose());
        let layout = self.workload.layout;
        let field = layout.field(self.generator.below(layout.fields as u64) as usize);
        let version = self.generator.next();
        let mut transaction = self.session.begin(Access::Write)?;
        let copy = &mut self.record;
        let right = transaction.modify(RECORDS, &key, |record| {
            let mut version = version;
            let right = if after_reading {
                copy.clear();
                copy.extend_from_slice(record);
                version ^= copy.iter().rev().take(8).fold(0, |word, byte| word << 8 | u64::from(*byte));
                layout.matches(&key, copy)
            } else {
                record.len() == layout.bytes()
            };
            if right {
                fill_field(&key, version, &mut record[field.clone()]);
            }
            right
        })?;
        transaction.commit()?;
        if right == Some(true) { Ok(()) } else { Err(wrong(&key)) }
    }

    fn insert(&mut self) -> Result<()> {
        let numbers = &self.workload.numbers;
        let number = numbers.hand_out()?;
        self.record.resize(self.workload.layout.bytes(), 0);
        self.workload.layout.fill(&key(number), 0, &mut self.record);
        let mut transaction = self.session.begin(Access::Write)?;
        transaction.insert(RECORDS, &key(number), &self.record)?;
        transaction.commit()?;
        numbers.inserted(number);
        Ok(())
    }

    fn scan(&mut self) -> Result<()> {
        let key = key(self.choose());
        let layout = self.workload.layout;
        let mut left = 1 + self.generator.below(self.workload.scan_max);
        let (mut first, mut right) = (true, true);
        let mut transaction = self.session.begin(Access::Read)?;
        let record = &mut self.record;
        transaction.scan(RECORDS, &key, |found_key, found| {
            record.clear();
            record.extend_from_slice(found);
            right &= layout.matches(found_key, record) && (!first || *found_key == key);
            first = false;
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        transaction.commit()?;
        if right && !first { Ok(()) } else { Err(wrong(&key)) }
    }
}

#[cold]
fn wrong(key: &[u8]) -> crate::Error {
    format!("the record with the key {key:02x?}, or one behind it, is missing or wrong").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::memory_store::MemoryStore;
    use crate::engines::{Choice, EngineName};
    use crate::keys::Order;
    use std::collections::HashMap;
    use std::path::PathBuf;
    use std::time::Duration;

    const ALL: [Mix; 6] = [Mix::A, Mix::B, Mix::C, Mix::D, Mix::E, Mix::F];

    fn workload(mix: Mix, distribution: Distribution, records: u64) -> Ycsb {
        let workload = Workload::Ycsb { mix, distribution, fields: 5, scan_max: 20 };
        let specification = Specification {
            engine: EngineName::Vellum,
            workload,
            tuples: records,
            value_bytes: 60,
            pool_bytes: 1 << 30,
            threads_max: 4,
            duration: Duration::from_millis(30),
            warm_up: Duration::ZERO,
            seed: 3,
            order: Order::Random,
            lmdb_write_map: Choice::Auto,
            directory: PathBuf::new(),
        };
        Ycsb::new(&specification).unwrap()
    }

    fn pace(threads: usize) -> Pace {
        Pace { threads, round: 0, duration: Duration::from_millis(30), sample_every: 8 }
    }

    #[test]
    fn every_mix_runs_and_leaves_what_it_should() {
        for mix in ALL {
            for distribution in [Distribution::Zipfian, Distribution::Uniform, Distribution::Latest] {
                for (threads, records) in [(1, 1), (3, 2000)] {
                    let (workload, store) = (workload(mix, distribution, records), MemoryStore::with(1));
                    workload.load(&store).unwrap();
                    let before = store.table(RECORDS).clone();
                    let pass = workload.pass(&store, &pace(threads)).unwrap();
                    assert!(pass.operations > 50, "{mix:?} {distribution:?}");
                    let findings = workload.check(&store).unwrap();
                    assert!(
                        findings.problems.is_empty(),
                        "{mix:?} {distribution:?}: {:?}",
                        findings.problems
                    );
                    let after = store.table(RECORDS);
                    assert_eq!(after.len() > before.len(), mix.inserts(), "{mix:?}");
                    let changed = before.iter().any(|(key, record)| after[key] != *record);
                    assert_eq!(changed, matches!(mix, Mix::A | Mix::B | Mix::F), "{mix:?}");
                }
            }
        }
    }

    #[test]
    fn mixes_have_their_parts() {
        for (mix, operation, percent) in [
            (Mix::A, Operation::Update, 50),
            (Mix::B, Operation::Update, 5),
            (Mix::C, Operation::Read, 100),
            (Mix::D, Operation::Insert, 5),
            (Mix::E, Operation::Scan, 95),
            (Mix::F, Operation::ReadModifyWrite, 50),
        ] {
            let count = (0..100).filter(|number| mix.operation(*number) == operation).count();
            assert_eq!(count, percent, "{mix:?}");
        }
    }

    fn chosen(workload: &Ycsb) -> HashMap<u64, u32> {
        let store = MemoryStore::with(1);
        let mut client = Client {
            workload,
            session: store.session().unwrap(),
            generator: Generator::new(1, 1, 1),
            zipfian: workload.zipfian.clone(),
            record: Vec::new(),
        };
        let mut counts = HashMap::new();
        for _ in 0..100_000 {
            *counts.entry(client.choose()).or_insert(0) += 1;
        }
        counts
    }

    #[test]
    fn records_are_chosen_as_they_should_be() {
        let uniform = chosen(&workload(Mix::C, Distribution::Uniform, 1000));
        assert!(uniform.len() == 1000 && uniform.values().all(|count| (30..250).contains(count)));
        // The most frequent of 1000 by Zipf's law is about 13 in 100, and anywhere; of the latest it is the last.
        let zipfian = chosen(&workload(Mix::C, Distribution::Zipfian, 1000));
        let (first, count) = zipfian.iter().max_by_key(|(_, count)| **count).unwrap();
        assert!((11_000..15_000).contains(count) && ![0, 999].contains(first), "{first}: {count}");
        let latest = chosen(&workload(Mix::D, Distribution::Latest, 1000));
        assert!((11_000..15_000).contains(&latest[&999]) && latest[&998] > latest[&900]);
    }

    #[test]
    fn damage_and_loss_are_noticed() {
        let store = MemoryStore::with(1);
        let workload = workload(Mix::C, Distribution::Uniform, 100);
        workload.load(&store).unwrap();
        store.table(RECORDS).get_mut(&key(5)[..]).unwrap()[13] ^= 1;
        assert!(workload.pass(&store, &pace(1)).is_err());
        assert_eq!(workload.check(&store).unwrap().problems.len(), 1);
        store.table(RECORDS).remove(&key(5)[..]);
        assert!(workload.pass(&store, &pace(1)).is_err());
        assert_eq!(workload.check(&store).unwrap().problems.len(), 1);
    }
}
