//! TPC-C, after revision 5.11 of its specification: nine tables and two secondary indexes, five transactions in
//! their mix, and the consistency conditions.
//!
//! - [`load`]: the population of the tables; [`rows`], [`keys`]: what they are as bytes; [`random`];
//! - [`new_order`], [`payment`], [`reports`] (order-status and stock-level), [`delivery`]: the transactions;
//! - [`terminal`]: what one thread does; [`clients`]: the clients for which it does that; [`check`]: the conditions of clause 3.3.2.
//!
//! What differs from the specification, as in published measurements of storage engines: no terminal thinks or
//! types between transactions, so that few threads do the work of all terminals of their warehouses; deliveries
//! are carried out at once; nothing is durable unless that is asked for. So the figures are no results in the sense of the TPC.
//!
//! # Without transactions
//! Some engines have atomic operations only. So the order of operations is such that all conditions hold when
//! no terminal is at work, whatever the number of threads:
//! - a new-order that is to be rolled back finds its unused item before it has changed anything;
//! - numbers of orders are handed out by one atomic change of the district, and all sums are kept by atomic
//!   changes;
//! - an order's lines come first, then the order and its index entry, and last its entry among the new orders,
//!   so that a delivery finds it whole;
//! - the thread that removed that entry delivers the order. Where several threads work for one warehouse, an order is
//!   delivered only after the one before it, so that conditions 2 and 3 hold.

mod check;
mod clients;
mod delivery;
mod keys;
mod load;
mod new_order;
mod outcome;
mod payment;
mod random;
mod reports;
mod rows;
mod terminal;
#[cfg(test)]
mod tests;

use crate::Result;
use crate::config::{Specification, Workload};
use crate::engines::store::Store;
use crate::keys::Generator;
use crate::workloads::record_workload::{Findings, RecordWorkload};
use crate::workloads::{Pace, Pass, Work, run_threads};
use random::{Constants, Random};
use std::sync::{Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};
use terminal::{Counts, Plan, Terminal};

/// Items.
pub const ITEMS: u32 = 100_000;
/// Districts of a warehouse.
pub const DISTRICTS: u8 = 10;
/// Customers of a district, and orders with which it is loaded.
pub const CUSTOMERS: u32 = 3000;
/// Orders of a district that are delivered when it is loaded.
pub const DELIVERED: u32 = 2100;

/// What the data of some items and stock contains.
const ORIGINAL: &[u8; 8] = b"ORIGINAL";

/// Rows of all tables after loading, index entries not counted, ten lines an order.
pub fn tuples(warehouses: u32) -> u64 {
    let district = 1 + u64::from(CUSTOMERS) * (3 + 10) + u64::from(CUSTOMERS - DELIVERED);
    let warehouse = 1 + u64::from(ITEMS) + u64::from(DISTRICTS) * district;
    u64::from(ITEMS) + u64::from(warehouses) * warehouse
}

/// Checks what a process has left that was killed while transactions ran; all conditions but those of fresh tables.
///
/// # Errors
/// What the engine says.
pub fn check_remains<S: Store>(store: &S, warehouses: u32) -> Result<Findings> {
    check::check(store, warehouses, false)
}

/// Whether data contains `ORIGINAL`.
fn is_original(data: &[u8]) -> bool {
    data.windows(ORIGINAL.len()).any(|window| window == ORIGINAL)
}

/// The time, in microseconds since 1970.
fn now() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX)
}

/// The workload.
pub struct Tpcc {
    warehouses: u32,
    seed: u64,
    constants: Constants,
    /// What all threads did in all rounds.
    totals: Mutex<Totals>,
}

/// What outlives a round.
#[derive(Default)]
struct Totals {
    counts: Option<Counts>,
    /// How many payments each thread has made.
    payments: Vec<u64>,
    /// What was written of the log, if the engine counts it.
    log: Option<LogCounts>,
}

impl Tpcc {
    fn totals(&self) -> Result<MutexGuard<'_, Totals>> {
        self.totals.lock().map_err(|_| "a thread panicked while it counted".into())
    }

    fn payments(&self, thread: usize) -> Result<u64> {
        Ok(self.totals()?.payments.get(thread).copied().unwrap_or(0))
    }

    /// Keeps what a thread did in a round.
    fn keep(&self, thread: usize, counts: Counts, payments: u64) -> Result<()> {
        let mut totals = self.totals()?;
        if totals.payments.len() <= thread {
            totals.payments.resize(thread + 1, 0);
        }
        totals.payments[thread] = payments;
        match &mut totals.counts {
            Some(all) => all.add(&counts),
            none => {
                *none = Some(counts);
                Ok(())
            }
        }
    }
}

impl RecordWorkload for Tpcc {
    const TIMES_ALL: bool = true;

    fn new(specification: &Specification) -> Result<Self> {
        let Workload::Tpcc { warehouses } = specification.workload else {
            return Err("the specification is not of TPC-C".into());
        };
        Ok(Self {
            warehouses,
            seed: specification.seed,
            constants: Constants::new(specification.seed),
            totals: Mutex::default(),
        })
    }

    fn tables(&self) -> &'static [&'static str] {
        keys::TABLES
    }

    fn payload_bytes(&self) -> u64 {
        // A warehouse has some 75 MB of rows; what is ordered in some minutes comes on top.
        u64::from(self.warehouses) * (80 << 20) + (2 << 30)
    }

    fn load<S: Store>(&self, store: &S) -> Result<()> {
        load::load(store, 1..=self.warehouses, &self.constants, self.seed)
    }

    fn pass<S: Store>(&self, store: &S, pace: &Pace) -> Result<Pass> {
        // A client that cannot leave its thread has one of its own.
        let (threads, clients) =
            if S::COMMITS_LATER { (pace.threads, pace.clients) } else { (pace.threads * pace.clients, 1) };
        let prepare = |thread: usize| {
            let plan = Plan {
                thread,
                threads,
                clients,
                is_shared: threads as u64 > u64::from(self.warehouses) && !S::HAS_TRANSACTIONS,
                warehouses: self.warehouses,
                constants: self.constants,
                random: Random::new(Generator::new(self.seed, thread as u64, pace.round)),
            };
            Ok((thread, Terminal::new(plan, store.session()?, self.payments(thread)?)?))
        };
        let before = LogCounts::of(store)?;
        let pass = run_threads(threads, prepare, |(thread, mut terminal), start| {
            terminal.work(start, start + pace.duration)?;
            let (counts, payments) = terminal.finish();
            let work = Work::new(counts.operations(), counts.all()?);
            self.keep(thread, counts, payments)?;
            Ok(work)
        })?;
        if let (Some(before), Some(after)) = (before, LogCounts::of(store)?) {
            let mut totals = self.totals()?;
            let log = totals.log.get_or_insert_default();
            log.bytes += after.bytes - before.bytes;
            log.syncs += after.syncs - before.syncs;
            log.waiting += after.waiting - before.waiting;
            log.acknowledged += after.acknowledged - before.acknowledged;
        }
        Ok(pass)
    }

    fn check<S: Store>(&self, store: &S) -> Result<Findings> {
        let fresh = self.totals()?.counts.is_none();
        check::check(store, self.warehouses, fresh)
    }

    fn summary(&self) -> Result<(serde_json::Value, Vec<String>)> {
        let totals = self.totals()?;
        let counts = totals.counts.as_ref().ok_or("no transaction was run")?;
        let mut remarks = vec![counts.remark()];
        if let Some(LogCounts { bytes, syncs, waiting, acknowledged }) = totals.log {
            let mut remark = format!("{} bytes of log a transaction", bytes / counts.operations().max(1));
            if syncs > 0 {
                let each = |count: u64| count as f64 / syncs as f64;
                remark += &format!(", {:.2} commits a sync", each(counts.commits()));
                if waiting > 0 {
                    let share = acknowledged as f64 / waiting as f64;
                    remark += &format!(
                        ", which acknowledged {share:.3} of the {:.2} that waited when it began",
                        each(waiting)
                    );
                }
            }
            if let Some(waiting) = counts.clients_waiting() {
                remark += &format!(", {waiting:.1} clients of a thread waiting at a commit, on average");
            }
            remarks.push(remark);
        }
        Ok((counts.to_json(), remarks))
    }
}

/// What a store has written of its log.
#[derive(Clone, Copy, Default)]
struct LogCounts {
    bytes: u64,
    syncs: u64,
    /// The clients that waited when a sync began, and those of them that it acknowledged.
    waiting: u64,
    acknowledged: u64,
}

impl LogCounts {
    /// None if the store does not count it.
    fn of(store: &impl Store) -> Result<Option<Self>> {
        let statistics = store.statistics()?;
        let count = |name: &str| statistics[name].as_u64();
        let counts = || {
            Some(Self {
                bytes: count("log_appended_bytes")?,
                syncs: count("log_syncs")?,
                waiting: count("log_sync_waiting").unwrap_or(0),
                acknowledged: count("log_sync_acknowledged").unwrap_or(0),
            })
        };
        Ok(counts())
    }
}
