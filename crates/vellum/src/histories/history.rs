//! Histories: what transactions did and saw, as tests record it, and the verdict of the crate `adya`.

use adya::history::{Interner, Mop, Op, OpType, ReadValue, Scalar};
use adya::{Opts, Report, Workload};
use std::collections::HashMap;

/// A value: what was appended to a list so far, or the one number of a register.
pub type Value = Vec<u32>;

/// What a transaction did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// It saw this under a key, or that nothing is there.
    Read { key: u8, seen: Option<Value> },
    /// It saw whether a key is there.
    Probe { key: u8, is_there: bool },
    /// It stored a value, whatever was there.
    Write { key: u8, value: Value },
    /// It appended an element to what was there, if anything.
    Append { key: u8, element: u32 },
    /// It removed a key, which may not have been there.
    Remove { key: u8 },
}

/// A transaction. `began` and `ended` are moments: others that ended before it began happened before.
#[derive(Clone, Debug)]
pub struct Done {
    pub client: usize,
    pub began: u64,
    pub ended: u64,
    pub is_committed: bool,
    pub steps: Vec<Step>,
}

/// What some clients did at the same time. A client does one transaction after the other.
#[derive(Clone, Default, Debug)]
pub struct History {
    pub transactions: Vec<Done>,
}

impl History {
    pub fn committed(&self) -> impl Iterator<Item = &Done> {
        self.transactions.iter().filter(|done| done.is_committed)
    }

    /// The anomalies that adya finds, among those that a consistency model excludes.
    ///
    /// A history of registers does not contain the order of a register's values. If `is_ordered`, it is the order of
    /// the commits: the transactions ended one after the other.
    pub fn anomalies(&self, workload: Workload, model: &str, is_ordered: bool) -> Vec<String> {
        let report = self.check(workload, model, is_ordered);
        assert!(!report.anomaly_types.iter().any(|kind| kind == "cycle-search-timeout"));
        report.anomaly_types
    }

    /// [`anomalies`](Self::anomalies), each explained.
    pub fn explained(&self, workload: Workload, model: &str, is_ordered: bool) -> Vec<String> {
        let report = self.check(workload, model, is_ordered);
        let found = report.anomalies.into_values().flatten();
        found.map(|anomaly| format!("{}: {}", anomaly.kind, anomaly.explanation)).collect()
    }

    fn check(&self, workload: Workload, model: &str, is_ordered: bool) -> Report {
        let (history, order) = self.adya(workload);
        let options = Opts {
            models: vec![model.to_owned()],
            timeout: std::time::Duration::from_secs(20),
            wfr_keys: !is_ordered,
            linearizable_keys: !is_ordered,
            transaction_order: is_ordered.then_some(order),
            ..Opts::default()
        };
        adya::check(&history, workload, &options)
    }

    /// The history in adya's format, and the order of commits. Whatever adya cannot express is left out.
    fn adya(&self, workload: Workload) -> (adya::History, HashMap<u64, i64>) {
        let mut interner = Interner::default();
        let mut events: Vec<(u64, OpType, &Done)> = Vec::new();
        for done in &self.transactions {
            let end = if done.is_committed { OpType::Ok } else { OpType::Fail };
            events.extend([(done.began, OpType::Invoke, done), (done.ended, end, done)]);
        }
        events.sort_by_key(|(moment, ..)| *moment);
        let (mut ops, mut order) = (Vec::new(), HashMap::new());
        for (index, (_, kind, done)) in events.into_iter().enumerate() {
            let mut number = |number: u32| interner.intern(Scalar::Int(i64::from(number)));
            let value = done.steps.iter().filter_map(|step| {
                Some(match step {
                    Step::Read { key, seen } => {
                        let key = number(u32::from(*key));
                        let mut seen = seen.iter().flatten().map(|element| number(*element));
                        let value = match (kind, workload) {
                            (OpType::Invoke, _) => ReadValue::Nil,
                            (_, Workload::ListAppend) => ReadValue::List(seen.collect()),
                            (_, Workload::RwRegister) => {
                                seen.next().map_or(ReadValue::Nil, ReadValue::Scalar)
                            }
                        };
                        Mop::Read { key, value }
                    }
                    Step::Append { key, element } => {
                        Mop::Append { key: number(u32::from(*key)), value: number(*element) }
                    }
                    Step::Write { key, value } => {
                        Mop::Write { key: number(u32::from(*key)), value: number(value[0]) }
                    }
                    Step::Probe { .. } | Step::Remove { .. } => return None,
                })
            });
            let value = value.collect();
            if kind == OpType::Ok {
                order.insert(index as u64, index as i64);
            }
            ops.push(Op { index: index as u64, kind, process: Some(done.client as i64), value, time: None });
        }
        (adya::History::from_ops(ops, interner), order)
    }
}
