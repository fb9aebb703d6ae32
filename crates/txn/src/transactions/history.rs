//! What is kept of the past, and for which transaction.

use super::{Begun, Transactions};
use std::{panic::Location, time::Duration};
use vellum_base::Lsn;

/// The state of the history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct History {
    /// How many transactions are open, those included whose snapshots have been ended.
    pub open: usize,
    /// How many leaves are kept as they were for old snapshots.
    pub kept_leaves: usize,
    /// The transaction that holds back the most: one whose snapshot has been ended and that has changed something, or
    /// else the oldest snapshot.
    pub oldest: Option<OldestSnapshot>,
    /// How many records have earlier versions.
    pub records: usize,
    /// How many earlier versions there are.
    pub versions: usize,
    /// How many bytes of keys and values they have.
    pub version_bytes: u64,
    /// How many ended transactions have left something behind. Those with no snapshot between them may count as one.
    pub leftovers: usize,
    /// How many bytes of log must stay because they are needed to undo open transactions, or to free large values.
    pub log_bytes: u64,
}

/// The transaction that has been open for longest, and what is kept for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OldestSnapshot {
    /// Its number: see [`Transaction::id`](crate::Transaction::id).
    pub transaction: u64,
    /// How long it has been open.
    pub age: Duration,
    /// Where the program began it.
    pub begun_at: &'static Location<'static>,
    /// How many transactions have been committed since.
    pub commits: u64,
    /// How many bytes of keys and values these have changed, counting the old keys and values.
    pub bytes: u64,
}

impl Transactions {
    /// The state of the history, and of the log, which ends at `end`.
    pub fn history(&self, end: Lsn) -> History {
        self.enter_all();
        self.versions.sweep_all();
        let (versions, version_bytes) = self.versions.measure();
        let records = self.versions.records();
        let log_bytes = end.0.saturating_sub(self.needed_at(|| end).1.0);
        // Last: under it no versions are looked at.
        let state = self.lock();
        // One that has been ended holds back the log of its changes, if it has made any.
        let is_writer = |begun: &&Begun| state.writers.iter().any(|(_, id)| *id == begun.id);
        let oldest = state.ended.iter().find(is_writer).or(state.snapshots.front());
        let oldest = oldest.map(|begun| OldestSnapshot {
            transaction: begun.id,
            age: begun.when.elapsed(),
            begun_at: begun.place,
            commits: state.time - begun.time,
            bytes: state.changed_bytes - begun.changed_bytes,
        });
        History {
            kept_leaves: self.versions.generations().images(),
            open: state.open,
            oldest,
            records,
            versions,
            version_bytes,
            leftovers: state.leftovers.len(),
            log_bytes,
        }
    }
}
