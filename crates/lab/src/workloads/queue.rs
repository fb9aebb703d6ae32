//! Queues: each thread appends a record at the end of its own and removes the first, in one transaction. A transaction that
//! was begun before may be held open meanwhile, and sees the queues as they were.

use crate::config::{Specification, Workload};
use crate::engines::store::{Access, Session, Store, Transaction, is_conflict};
use crate::measure::statistics::Latencies;
use crate::workloads::record_workload::{Findings, RecordWorkload};
use crate::workloads::{Pace, Pass, run_threads, until_deadline};
use crate::{Failure, Result};
use serde_json::json;
use std::ops::ControlFlow;
use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

const VALUE: [u8; 100] = [0x51; 100];

/// The workload.
pub struct Queue {
    /// How many records a queue has.
    records: u64,
    is_snapshot_held: bool,
    /// The number that comes next at the end of each queue.
    ends: Mutex<Vec<u64>>,
    moved: AtomicU64,
    conflicts: AtomicU64,
}

/// The key of a record: the number of its queue, and its own there.
fn key(queue: usize, number: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&(queue as u32).to_be_bytes());
    key[4..].copy_from_slice(&number.to_be_bytes());
    key
}

impl Queue {
    fn ends(&self) -> Result<MutexGuard<'_, Vec<u64>>> {
        self.ends.lock().map_err(|_| "a thread panicked while it counted".into())
    }

    /// All keys, as a transaction sees them.
    fn keys(transaction: &mut impl Transaction) -> Result<Vec<[u8; 12]>> {
        let mut keys = Vec::new();
        transaction.scan(0, &[], |key, _| {
            keys.extend(<[u8; 12]>::try_from(key));
            ControlFlow::Continue(())
        })?;
        Ok(keys)
    }

    fn move_one<S: Store>(session: &mut S::Session<'_>, queue: usize, end: u64) -> Result<()> {
        let mut transaction = session.begin(Access::Write)?;
        transaction.insert(0, &key(queue, end), &VALUE)?;
        let mut first = [0; 12];
        transaction.scan(0, &key(queue, 0), |key, _| {
            if let Ok(key) = key.try_into() {
                first = key;
            }
            ControlFlow::Break(())
        })?;
        if !transaction.remove(0, &first)? {
            return Err(Failure::Check("the first record of a queue cannot be removed".to_owned()).into());
        }
        transaction.commit()
    }

    fn run<S: Store>(&self, store: &S, pace: &Pace) -> Result<Pass> {
        let prepare = |queue: usize| {
            let end = self.ends()?.get(queue).copied().ok_or("there are more threads than queues")?;
            Ok((store.session()?, queue, end))
        };
        run_threads(pace.threads, prepare, |(mut session, queue, mut end), start| {
            let (mut moved, mut conflicts) = (0, 0);
            let work = until_deadline(pace, start, Latencies::new()?, || {
                while let Err(error) = Self::move_one::<S>(&mut session, queue, end) {
                    if !is_conflict(&error) {
                        return Err(error);
                    }
                    conflicts += 1;
                }
                end += 1;
                moved += 1;
                Ok(())
            });
            if let Some(last) = self.ends()?.get_mut(queue) {
                *last = end;
            }
            // Relaxed: counts, read when the threads have ended.
            self.moved.fetch_add(moved, Ordering::Relaxed);
            self.conflicts.fetch_add(conflicts, Ordering::Relaxed);
            work
        })
    }
}

impl RecordWorkload for Queue {
    const TIMES_ALL: bool = true;

    fn new(specification: &Specification) -> Result<Self> {
        let Workload::Queue { records, is_snapshot_held } = specification.workload else {
            return Err("the specification is not of queues".into());
        };
        let ends = Mutex::new(vec![records; specification.threads_max]);
        let [moved, conflicts] = [0; 2].map(AtomicU64::new);
        Ok(Self { records, is_snapshot_held, ends, moved, conflicts })
    }

    fn tables(&self) -> &'static [&'static str] {
        &["queue"]
    }

    fn payload_bytes(&self) -> u64 {
        let queues = self.ends.lock().map_or(1, |ends| ends.len()) as u64;
        queues * self.records * (12 + VALUE.len() as u64)
    }

    fn load<S: Store>(&self, store: &S) -> Result<()> {
        let mut session = store.session()?;
        let mut transaction = session.begin(Access::Write)?;
        for queue in 0..self.ends()?.len() {
            for number in 0..self.records {
                transaction.insert(0, &key(queue, number), &VALUE)?;
            }
        }
        transaction.commit()
    }

    fn pass<S: Store>(&self, store: &S, pace: &Pace) -> Result<Pass> {
        if !self.is_snapshot_held {
            return self.run(store, pace);
        }
        let mut session = store.session()?;
        let mut held = session.begin(Access::Read)?;
        let before = Self::keys(&mut held)?;
        let pass = self.run(store, pace)?;
        let is_same = Self::keys(&mut held)? == before;
        held.commit()?;
        if S::HAS_TRANSACTIONS && !is_same {
            return Err(Failure::Check("a snapshot has seen the queues change".to_owned()).into());
        }
        Ok(pass)
    }

    fn check<S: Store>(&self, store: &S) -> Result<Findings> {
        let mut session = store.session()?;
        let mut transaction = session.begin(Access::Read)?;
        let keys = Self::keys(&mut transaction)?;
        transaction.commit()?;
        let ends = self.ends()?;
        let numbers =
            |(queue, end): (usize, &u64)| (end - self.records..*end).map(move |number| key(queue, number));
        let expected = ends.iter().enumerate().flat_map(numbers);
        let mut findings = Findings { checked: "all records of all queues".to_owned(), problems: Vec::new() };
        if !expected.eq(keys.iter().copied()) {
            findings.add(format!("there are other records than the {} of each queue", self.records));
        }
        Ok(findings)
    }

    fn summary(&self) -> Result<(serde_json::Value, Vec<String>)> {
        let [moved, conflicts] = [&self.moved, &self.conflicts].map(|count| count.load(Ordering::Relaxed));
        let text = format!("{moved} records were appended and as many removed, {conflicts} conflicts");
        Ok((json!({ "moved": moved, "conflicts": conflicts }), vec![text]))
    }
}
