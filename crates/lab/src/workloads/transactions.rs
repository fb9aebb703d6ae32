//! Transactions that read and change a few random records of one table; what they change keeps its length.
//!
//! Where threads are *disjoint*, records lie in blocks, each of which belongs to one thread, while a leaf has blocks of all. A
//! transaction scans a block, changes a record of it, and removes another or inserts it again. So no two transactions of
//! different threads touch the same record or range: each conflict is a false one. Threads give way to each other in the
//! middle of their transactions, so that these overlap.

use crate::config::{Specification, Workload};
use crate::engines::store::{Access, Session, Store, Transaction, is_conflict};
use crate::keys::{self, Generator};
use crate::measure::statistics::Latencies;
use crate::workloads::record_workload::{Findings, RecordWorkload};
use crate::workloads::{Pace, Pass, run_threads, until_deadline};
use crate::{Failure, Result};
use serde_json::json;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// The records of a block.
const BLOCK: u64 = 8;
/// The place of the one that comes and goes.
const COMING: u64 = 4;
/// How many records are loaded by one transaction.
const LOADED_AT_ONCE: u64 = 1000;
/// After so many transactions of loading the engine may finish what it does in the background.
const SETTLE_EVERY: u64 = 250;
/// A value begins with its record's number and with how often it was changed.
const COUNT: std::ops::Range<usize> = 8..16;

/// The workload.
pub struct Transactions {
    records: u64,
    reads: usize,
    updates: usize,
    is_disjoint: bool,
    value_bytes: usize,
    seed: u64,
    transactions: AtomicU64,
    conflicts: AtomicU64,
    changes: AtomicU64,
}

/// What one thread works with.
struct Client<S> {
    session: S,
    generator: Generator,
    thread: u64,
    threads: u64,
    value: Vec<u8>,
    conflicts: u64,
}

/// Fills a value: what follows the number and the count depends on both and does not compress.
fn fill(number: u64, count: u64, value: &mut [u8]) {
    keys::fill_value(number.wrapping_add(count << 40), value);
    value[..COUNT.start].copy_from_slice(&number.to_be_bytes());
    value[COUNT].copy_from_slice(&count.to_be_bytes());
}

/// How often a record was changed; none if this is not a value of it.
fn count(number: u64, value: &[u8]) -> Option<u64> {
    let (first, rest) = value.split_first_chunk()?;
    (u64::from_be_bytes(*first) == number)
        .then(|| rest.first_chunk().map(|count| u64::from_be_bytes(*count)))?
}

/// Changes a value; whether it was one of this record.
fn change(number: u64, value: &mut [u8]) -> bool {
    let found = count(number, value);
    if let Some(count) = found {
        fill(number, count + 1, value);
    }
    found.is_some()
}

fn wrong(number: u64) -> crate::Error {
    Failure::Check(format!("record {number} is missing or has the value of another")).into()
}

impl Transactions {
    /// One transaction on records that were drawn: the first are read, the others changed.
    fn mixed<S: Session>(&self, client: &mut Client<S>, numbers: &[u64]) -> Result<()> {
        let access = if self.updates == 0 { Access::Read } else { Access::Write };
        let mut transaction = client.session.begin(access)?;
        let (read, changed) = numbers.split_at(self.reads);
        for number in read {
            let found = transaction.get(0, &keys::key(*number), |value| count(*number, value).is_some())?;
            found.filter(|is_right| *is_right).ok_or_else(|| wrong(*number))?;
        }
        for number in changed {
            let found = transaction.modify(0, &keys::key(*number), |value| change(*number, value))?;
            found.filter(|is_right| *is_right).ok_or_else(|| wrong(*number))?;
        }
        transaction.commit()
    }

    /// One transaction on a block that no other thread uses, which begins with `first`; it changes the record at `place`.
    fn in_block<S: Session>(client: &mut Client<S>, first: u64, place: u64) -> Result<()> {
        let mut transaction = client.session.begin(Access::Write)?;
        let (mut seen, mut is_there) = (0, false);
        let last = keys::key(first + BLOCK - 1);
        transaction.scan(0, &keys::key(first), |key, _| {
            seen += 1;
            is_there |= key == keys::key(first + COMING);
            // The next record is another thread's.
            if key == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if seen != BLOCK - 1 + u64::from(is_there) {
            return Err(wrong(first));
        }
        thread::yield_now();
        let number = first + place;
        let found = transaction.modify(0, &keys::key(number), |value| change(number, value))?;
        found.filter(|is_right| *is_right).ok_or_else(|| wrong(number))?;
        thread::yield_now();
        let number = first + COMING;
        if !is_there {
            fill(number, 0, &mut client.value);
            transaction.insert(0, &keys::key(number), &client.value)?;
        } else if !transaction.remove(0, &keys::key(number))? {
            return Err(wrong(number));
        }
        thread::yield_now();
        transaction.commit()
    }

    /// One transaction, as often as it conflicts; gives how many records it has changed.
    fn one<S: Session>(&self, client: &mut Client<S>, numbers: &mut Vec<u64>) -> Result<u64> {
        numbers.clear();
        if self.is_disjoint {
            let own = self.records / BLOCK / client.threads;
            let block = client.generator.below(own) * client.threads + client.thread;
            let place = client.generator.below(BLOCK - 1);
            numbers.extend([block * BLOCK, place + u64::from(place >= COMING)]);
        } else {
            numbers.extend((0..self.reads + self.updates).map(|_| client.generator.below(self.records)));
            // In one order, so that engines with locks have no deadlocks.
            numbers[self.reads..].sort_unstable();
        }
        let mut baton = None;
        loop {
            let done = match numbers[..] {
                [first, place] if self.is_disjoint => Self::in_block(client, first, place).map(|()| 1),
                _ => self.mixed(client, numbers).map(|()| self.updates as u64),
            };
            drop(baton.take());
            match done {
                Err(error) if is_conflict(&error) => {
                    client.conflicts += 1;
                    baton = client.session.wait_after(&error);
                }
                done => return done,
            }
        }
    }

    /// Finds what is missing or is not as it should be, and how often all records together were changed.
    fn look<S: Store>(&self, store: &S) -> Result<(Findings, u64)> {
        let mut findings = Findings { checked: "all records".to_owned(), problems: Vec::new() };
        let (mut next, mut changes, mut expected) = (0, 0, vec![0; self.value_bytes]);
        let mut session = store.session()?;
        let mut transaction = session.begin(Access::Read)?;
        transaction.scan(0, &[], |key, value| {
            next += u64::from(self.is_disjoint && next % BLOCK == COMING && key != keys::key(next));
            let count = count(next, value);
            fill(next, count.unwrap_or(0), &mut expected);
            if key != keys::key(next) || value != expected {
                findings.add(format!("record {next} is missing, or has the key {key:02x?} or a wrong value"));
                return ControlFlow::Break(());
            }
            changes += count.unwrap_or(0);
            next += 1;
            ControlFlow::Continue(())
        })?;
        transaction.commit()?;
        if findings.problems.is_empty() && next != self.records {
            findings.add(format!("there are {next} records, where there were {}", self.records));
        }
        Ok((findings, changes))
    }

    /// Checks what a killed process has left.
    ///
    /// # Errors
    /// What the engine says.
    pub fn check_remains<S: Store>(&self, store: &S) -> Result<Findings> {
        Ok(self.look(store)?.0)
    }
}

impl RecordWorkload for Transactions {
    const TIMES_ALL: bool = true;

    fn new(specification: &Specification) -> Result<Self> {
        let Workload::Transactions { records, reads, updates, is_disjoint } = specification.workload else {
            return Err("the specification is not of transactions on random records".into());
        };
        let value_bytes = specification.values.same();
        if value_bytes < COUNT.end {
            return Err(format!("a value must have at least {} bytes", COUNT.end).into());
        }
        // Whole blocks, and at least one for each thread.
        let least = BLOCK * specification.threads_max as u64;
        let records = if is_disjoint { records.max(least) / BLOCK * BLOCK } else { records };
        let [transactions, conflicts, changes] = [0; 3].map(AtomicU64::new);
        let seed = specification.seed;
        Ok(Self { records, reads, updates, is_disjoint, value_bytes, seed, transactions, conflicts, changes })
    }

    fn tables(&self) -> &'static [&'static str] {
        &["records"]
    }

    fn payload_bytes(&self) -> u64 {
        self.records * (keys::key(0).len() + self.value_bytes) as u64
    }

    fn load<S: Store>(&self, store: &S) -> Result<()> {
        let (mut session, mut value) = (store.session()?, vec![0; self.value_bytes]);
        for (place, first) in (0..self.records).step_by(LOADED_AT_ONCE as usize).enumerate() {
            let mut transaction = session.begin(Access::Write)?;
            for number in first..(first + LOADED_AT_ONCE).min(self.records) {
                fill(number, 0, &mut value);
                transaction.insert(0, &keys::key(number), &value)?;
            }
            transaction.commit()?;
            if place as u64 % SETTLE_EVERY == SETTLE_EVERY - 1 {
                store.settle()?;
            }
        }
        Ok(())
    }

    fn pass<S: Store>(&self, store: &S, pace: &Pace) -> Result<Pass> {
        let prepare = |thread: usize| {
            Ok(Client {
                session: store.session()?,
                generator: Generator::new(self.seed, thread as u64, pace.round),
                thread: thread as u64,
                threads: pace.threads as u64,
                value: vec![0; self.value_bytes],
                conflicts: 0,
            })
        };
        run_threads(pace.threads, prepare, |mut client, start| {
            let (mut changes, mut numbers) = (0, Vec::new());
            let work = until_deadline(pace, start, Latencies::new()?, || {
                changes += self.one(&mut client, &mut numbers)?;
                Ok(())
            })?;
            for (total, count) in [
                (&self.transactions, work.operations),
                (&self.conflicts, client.conflicts),
                (&self.changes, changes),
            ] {
                // Relaxed: counts, read when the threads have ended.
                total.fetch_add(count, Ordering::Relaxed);
            }
            Ok(work)
        })
    }

    fn check<S: Store>(&self, store: &S) -> Result<Findings> {
        let (mut findings, found) = self.look(store)?;
        let changes = self.changes.load(Ordering::Relaxed);
        if findings.problems.is_empty() && found != changes {
            findings.add(format!("records were changed {found} times, and not {changes} times"));
        }
        Ok(findings)
    }

    fn summary(&self) -> Result<(serde_json::Value, Vec<String>)> {
        let [transactions, conflicts] =
            [&self.transactions, &self.conflicts].map(|count| count.load(Ordering::Relaxed));
        let percent = 100.0 * conflicts as f64 / (transactions + conflicts).max(1) as f64;
        let is_false =
            if self.is_disjoint { ", each of them false: no two threads use the same record" } else { "" };
        let text = format!("{transactions} transactions, {conflicts} conflicts ({percent:.3} %){is_false}");
        Ok((json!({ "transactions": transactions, "conflicts": conflicts }), vec![text]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Choice, EngineName, KeyKind, Order, Skew, TransactionSettings, ValueSizes};
    use crate::engines::memory_store::MemoryStore;
    use std::path::PathBuf;
    use std::time::Duration;

    fn workload(is_disjoint: bool) -> Transactions {
        let specification = Specification {
            engine: EngineName::Vellum.into(),
            workload: Workload::Transactions { records: 500, reads: 2, updates: 3, is_disjoint },
            tuples: 500,
            keys: KeyKind::U64,
            values: ValueSizes::one(30),
            skew: Skew::Uniform,
            pool_bytes: 1 << 30,
            threads_max: 3,
            clients_max: 1,
            duration: Duration::from_millis(30),
            warm_up: Duration::ZERO,
            seed: 3,
            order: Order::Sequential,
            lmdb_write_map: Choice::Auto,
            transactions: TransactionSettings::default(),
            directory: PathBuf::new(),
        };
        Transactions::new(&specification).unwrap()
    }

    #[test]
    fn what_threads_change_is_found_and_what_is_damaged_too() {
        for is_disjoint in [false, true] {
            let (workload, store) = (workload(is_disjoint), MemoryStore::with(1));
            workload.load(&store).unwrap();
            for threads in [1, 3] {
                let duration = Duration::from_millis(30);
                let pace = Pace { clients: 1, threads, round: 0, duration, sample_every: 1 };
                assert!(workload.pass(&store, &pace).unwrap().operations > 0);
                assert_eq!(workload.check(&store).unwrap().problems, Vec::<String>::new());
            }
            let key = keys::key(9).to_vec();
            let value = store.table(0).get(&key).unwrap().clone();
            change(9, store.table(0).get_mut(&key).unwrap());
            assert!(workload.check_remains(&store).unwrap().problems.is_empty());
            assert_eq!(workload.check(&store).unwrap().problems.len(), 1, "one change too many");
            store.table(0).get_mut(&key).unwrap()[20] ^= 1;
            assert_eq!(workload.check_remains(&store).unwrap().problems.len(), 1, "a damaged value");
            store.table(0).insert(key.clone(), value);
            assert!(workload.check(&store).unwrap().problems.is_empty());
            store.table(0).remove(&key);
            assert_eq!(workload.check(&store).unwrap().problems.len(), 1, "a missing record");
        }
    }
}
