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
//! A record is one value: its fields, one after the other. A read copies the whole record and checks it, an update
//! changes one field, in place where the engine allows it; in F what the update writes depends on what it finds.
//! Each operation is a transaction.
//!
//! After loading and at the end all records are compared with what was written: how many there are, and the sum of the
//! digests of all their fields ([`records::digest_field`]), which every change of a field carries on. So a record that is
//! missing, one too many, and one that is not as its last change left it are all noticed; a lost or stale one changes the sum,
//! but only the sum, so the message cannot name it.
//!
//! Zipfian keys are *scrambled*: which records are the frequent ones follows no
//! order. Keys are hashed numbers, so records that are inserted are spread over the table; E begins its scans at
//! records that were loaded, and meets the others on the way.

mod records;

use crate::Result;
use crate::config::{Distribution, Mix, Specification, Workload};
use crate::engines::store::{Access, Session, Store, Transaction, is_conflict};
use crate::keys::{Generator, Key, Permutation};
use crate::measure::statistics::Latencies;
use crate::workloads::record_workload::{Findings, RecordWorkload};
use crate::workloads::zipfian::{self, Zipfian};
use crate::workloads::{Pace, Pass, run_threads, until_deadline};
use records::{Layout, Numbers, digest_field};
use serde_json::json;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// The one table.
const RECORDS: usize = 0;

/// How many records are loaded in one transaction.
const LOADED_AT_ONCE: u64 = 10_000;

/// What is done with a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    Read,
    Update,
    Insert,
    Scan,
    ReadModifyWrite,
}

/// The operation that a number below 100 stands for.
fn operation(mix: Mix, number: u64) -> Operation {
    match mix {
        Mix::A if number < 50 => Operation::Update,
        Mix::B if number < 5 => Operation::Update,
        Mix::F if number < 50 => Operation::ReadModifyWrite,
        Mix::D | Mix::E if number < 5 => Operation::Insert,
        Mix::E => Operation::Scan,
        Mix::A | Mix::B | Mix::C | Mix::D | Mix::F => Operation::Read,
    }
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
    /// The sum of the digests of all fields of all records, as they must be.
    digests: AtomicU64,
    zipfian: Zipfian,
    /// From ranks to the numbers of records that were loaded.
    scramble: Permutation,
}

impl RecordWorkload for Ycsb {
    const TIMES_ALL: bool = false;

    fn new(specification: &Specification) -> Result<Self> {
        let Workload::Ycsb { mix, distribution, key_bytes, fields, scan_max } = specification.workload else {
            return Err("the specification is not of YCSB".into());
        };
        let (loaded, seed) = (specification.tuples, specification.seed);
        Ok(Self {
            mix,
            distribution,
            layout: Layout { fields, field_bytes: specification.values.same() / fields.max(1), key_bytes },
            scan_max,
            loaded,
            seed,
            numbers: Numbers::new(loaded),
            digests: AtomicU64::new(0),
            zipfian: Zipfian::new(loaded, zipfian::THETA),
            scramble: Permutation::new(loaded, seed),
        })
    }

    fn tables(&self) -> &'static [&'static str] {
        &["usertable"]
    }

    fn payload_bytes(&self) -> u64 {
        let grown = if self.mix.inserts() { 4 << 30 } else { 0 };
        self.loaded * (self.layout.key_bytes + self.layout.bytes()) as u64 + grown
    }

    fn load<S: Store>(&self, store: &S) -> Result<()> {
        let mut session = store.session()?;
        let mut record = vec![0; self.layout.bytes()];
        let mut digests = 0u64;
        for first in (0..self.loaded).step_by(LOADED_AT_ONCE as usize) {
            let mut transaction = session.begin(Access::Write)?;
            for number in first..self.loaded.min(first + LOADED_AT_ONCE) {
                let key = self.layout.key(number);
                self.layout.fill(key.bytes(), 0, &mut record);
                digests = digests.wrapping_add(self.layout.digest(key.bytes(), &record));
                transaction.insert(RECORDS, key.bytes(), &record)?;
            }
            transaction.commit()?;
        }
        self.digests.store(digests, Ordering::SeqCst);
        Ok(())
    }

    fn pass<S: Store>(&self, store: &S, pace: &Pace) -> Result<Pass> {
        let prepare = |thread: usize| {
            let generator = Generator::new(self.seed, thread as u64, pace.round);
            let record = vec![0; self.layout.bytes()];
            let mut zipfian = self.zipfian.clone();
            zipfian.grow(self.numbers.limit());
            let session = store.session()?;
            Ok((
                Client { workload: self, session, generator, zipfian, record, digests: 0 },
                Latencies::new()?,
            ))
        };
        run_threads(pace.threads, prepare, |(mut client, latencies), start| {
            let work = until_deadline(pace, start, latencies, || client.one())?;
            // A pass that fails ends the run, so that the sum is not asked for.
            self.digests.fetch_add(client.digests, Ordering::SeqCst);
            Ok(work)
        })
    }

    fn check<S: Store>(&self, store: &S) -> Result<Findings> {
        let mut findings = Findings::default();
        let mut session = store.session()?;
        let mut transaction = session.begin(Access::Read)?;
        let (mut count, mut digests) = (0u64, 0u64);
        transaction.for_each(RECORDS, |key, record| {
            count += 1;
            digests = digests.wrapping_add(self.layout.digest(key, record));
            if key.len() != self.layout.key_bytes || !self.layout.matches(key, record) {
                findings.add(format!("the record with the key {key:02x?} is not what was written"));
            }
            ControlFlow::Continue(())
        })?;
        transaction.commit()?;
        let expected = self.numbers.limit();
        if count != expected {
            findings.add(format!("there are {count} records where {expected} were inserted"));
        } else if digests != self.digests.load(Ordering::SeqCst) && findings.problems.is_empty() {
            findings.add(
                "some record is not as its last change left it: a change was lost or came twice, or a record of another \
                 key stands for one that is missing"
                    .to_owned(),
            );
        }
        findings.checked = format!("all {count} records, every field of which is as its last change left it");
        Ok(findings)
    }

    fn summary(&self) -> Result<(serde_json::Value, Vec<String>)> {
        let inserted = self.numbers.limit() - self.loaded;
        Ok((json!({ "records_loaded": self.loaded, "records_inserted": inserted }), Vec::new()))
    }
}

/// What one thread does.
struct Client<'w, S> {
    workload: &'w Ycsb,
    session: S,
    generator: Generator,
    zipfian: Zipfian,
    record: Vec<u8>,
    /// By how much its changes added to the sum of all digests.
    digests: u64,
}

impl<S: Session> Client<'_, S> {
    /// One operation.
    fn one(&mut self) -> Result<()> {
        match operation(self.workload.mix, self.generator.below(100)) {
            Operation::Read => self.read(),
            Operation::Update => self.update(false),
            Operation::ReadModifyWrite => self.update(true),
            Operation::Insert => self.insert(),
            Operation::Scan => self.scan(),
        }
    }

    /// The key of a record that is there.
    #[inline]
    fn choose_key(&mut self) -> Key {
        self.workload.layout.key(self.choose())
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
        let key = self.choose_key();
        let mut transaction = self.session.begin(Access::Read)?;
        let found = transaction.copy(RECORDS, key.bytes(), &mut self.record)?;
        transaction.commit()?;
        if found && self.workload.layout.matches(key.bytes(), &self.record) {
            return Ok(());
        }
        Err(wrong(&key))
    }

    /// Writes one field; `after_reading` it, so that what is written depends on what was there. If another client is
    /// about to change the record, or has just changed it, the transaction is run again.
    fn update(&mut self, after_reading: bool) -> Result<()> {
        let key = self.choose_key();
        let number = self.generator.below(self.workload.layout.fields as u64) as usize;
        let version = self.generator.next();
        let mut baton = None;
        let grown = loop {
            let written = self.write_field(&key, (number, version), after_reading);
            drop(baton.take());
            match written {
                Err(error) if is_conflict(&error) => {
                    baton = self.session.wait_after(&error);
                    thread::yield_now();
                }
                written => break written?.ok_or_else(|| wrong(&key))?,
            }
        };
        self.digests = self.digests.wrapping_add(grown);
        Ok(())
    }

    /// Returns by how much the sum of the digests grows; nothing, if the record is wrong.
    fn write_field(
        &mut self,
        key: &Key,
        (number, version): (usize, u64),
        after_reading: bool,
    ) -> Result<Option<u64>> {
        let layout = self.workload.layout;
        let mut transaction = self.session.begin(Access::Write)?;
        let copy = &mut self.record;
        let grown = transaction.modify(RECORDS, key.bytes(), |record| {
            let mut version = version;
            let right = if after_reading {
                copy.clear();
                copy.extend_from_slice(record);
                version ^= copy.iter().rev().take(8).fold(0, |word, byte| word << 8 | u64::from(*byte));
                layout.matches(key.bytes(), copy)
            } else {
                record.len() == layout.bytes()
            };
            right.then(|| {
                let field = &mut record[layout.field(number)];
                let before = digest_field(key.bytes(), number, field);
                layout.fill_field(key.bytes(), version, field);
                digest_field(key.bytes(), number, field).wrapping_sub(before)
            })
        })?;
        transaction.commit()?;
        Ok(grown.flatten())
    }

    fn insert(&mut self) -> Result<()> {
        let numbers = &self.workload.numbers;
        let number = numbers.hand_out()?;
        let layout = self.workload.layout;
        let key = layout.key(number);
        self.record.resize(layout.bytes(), 0);
        layout.fill(key.bytes(), 0, &mut self.record);
        self.digests = self.digests.wrapping_add(layout.digest(key.bytes(), &self.record));
        let mut transaction = self.session.begin(Access::Write)?;
        transaction.insert(RECORDS, key.bytes(), &self.record)?;
        transaction.commit()?;
        numbers.inserted(number);
        Ok(())
    }

    fn scan(&mut self) -> Result<()> {
        let key = self.choose_key();
        let layout = self.workload.layout;
        let mut left = 1 + self.generator.below(self.workload.scan_max);
        let (mut first, mut right) = (true, true);
        let mut transaction = self.session.begin(Access::Read)?;
        let record = &mut self.record;
        transaction.scan_some(RECORDS, key.bytes(), left as usize, |found_key, found| {
            record.clear();
            record.extend_from_slice(found);
            right &= layout.matches(found_key, record) && (!first || found_key == key.bytes());
            first = false;
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        transaction.commit()?;
        if right && !first { Ok(()) } else { Err(wrong(&key)) }
    }
}

#[cold]
fn wrong(key: &Key) -> crate::Error {
    format!("the record with the key {:02x?}, or one behind it, is missing or wrong", key.bytes()).into()
}

#[cfg(test)]
mod tests;
