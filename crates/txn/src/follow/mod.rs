//! The log read as a feed of changes: what was committed, in commit order, from a place in the log on.
//!
//! The changes of a transaction are gathered until its commit is read; those that a savepoint takes back are dropped
//! (`gathering`). A change outside transactions, or a group of records, is a commit of its own. If a transaction began
//! before the place, its commit record says where: its changes are read again from there. That is where it got its
//! number, perhaps long before its first record.
//!
//! Only what is durable is read: from the log, and from its archive where the log has been given up. Without an archive
//! the log keeps what has not been read, from where the oldest transaction began that was open at the last commit
//! (`beginnings`): another feed that goes on there reads it again from that place.

mod beginnings;
mod changes;
mod contents;
mod gathering;

use crate::{
    TxnError,
    change_log::Changes,
    checkpoint::wait_before,
    plant::{Bug, planted},
    transactions::Transactions,
};
use beginnings::Beginnings;
use gathering::Gathering;
use std::{sync::Arc, time::SystemTime};
use vellum_base::{Lsn, PageId};
use vellum_wal::{Arrival, Durability, FollowedLog, FollowingReader, LogKeep};

pub use changes::{LargeValue, LoadedTree, LoggedValue, TreeChange, TreeChangeKind};

/// After this many bytes of log without a commit it is recomputed what the log must keep.
const PART_BYTES: u64 = 4 << 20;

/// Something that has been committed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Committed {
    /// The record of the commit.
    pub lsn: Lsn,
    /// Where that record ends. Later commits are read from there on.
    pub end: Lsn,
    /// The number of the commit, if it is that of a transaction.
    pub number: Option<u64>,
    /// When it was committed, as far as the log says.
    pub time: Option<SystemTime>,
    /// The changes, in order.
    pub changes: Vec<TreeChange>,
}

/// Follows a log.
pub struct Follower {
    source: FollowedLog,
    changes: Arc<Changes>,
    transactions: Arc<Transactions>,
    /// Makes the log keep what has not been read.
    kept: Option<LogKeep>,
    reader: FollowingReader,
    /// Of transactions that began before this place, not all changes have been gathered.
    begin: Lsn,
    /// How far back transactions began that are open at the position.
    beginnings: Beginnings,
    /// Everything committed before this place has been returned.
    position: Lsn,
    gathering: Gathering,
}

impl Follower {
    /// Follows a log from `from` on, where a record begins or the log once ended; from its end if `None`. Without an
    /// archive the log keeps what has not been read, but no more than `keep_bytes`. Changes of the tree `catalog` are
    /// returned with the values before them.
    ///
    /// # Errors
    /// If the log cannot be made durable.
    pub(crate) fn begin(
        source: FollowedLog,
        (changes, transactions): (&Arc<Changes>, &Arc<Transactions>),
        from: Option<Lsn>,
        (catalog, keep_bytes): (PageId, u64),
    ) -> Result<Self, TxnError> {
        // Everything, until it is known what is needed.
        let kept = source.keep(Lsn(0), keep_bytes);
        let from = match from {
            Some(from) => from,
            None => {
                let end = source.log().end();
                wait_before(source.log(), end)?;
                end
            }
        };
        Ok(Self {
            changes: changes.clone(),
            transactions: transactions.clone(),
            kept,
            reader: source.read(from),
            source,
            begin: from,
            beginnings: Beginnings::default(),
            position: from,
            gathering: Gathering::new(catalog, false),
        })
    }

    /// Reads to the current end, and returns the catalog's changes on the way. Then it is known what the log must keep.
    ///
    /// # Errors
    /// If neither the log nor its archive has all of it.
    pub fn look_ahead(&mut self) -> Result<Vec<TreeChange>, TxnError> {
        let log = self.source.log();
        let (end, oldest) = self.changes.needed_by(|| self.transactions.needed_at(|| log.end()));
        wait_before(log, end)?;
        let mut reader = self.source.read(self.begin);
        let mut gathering = self.gathering.of_catalog();
        let mut changes = Vec::new();
        while reader.at() < end {
            if let Some(mut commit) = step(&self.source, &mut reader, &mut gathering, self.begin, end)? {
                changes.append(&mut commit.changes);
            }
        }
        // Those that end on the way, and those that are open at the end.
        self.beginnings.add(self.begin, oldest.min(self.begin).min(gathering.least_first));
        self.beginnings.add(end, oldest);
        self.keep();
        Ok(changes)
    }

    /// Everything committed before this place has been returned.
    pub fn position(&self) -> Lsn {
        self.position
    }

    /// What is being read.
    pub fn source(&self) -> &FollowedLog {
        &self.source
    }

    /// The next commit; `None` if there is none yet. The caller is done with the one before.
    ///
    /// # Errors
    /// If it cannot be read, or has been given up because too much would have been kept. It may be tried again.
    #[expect(clippy::should_implement_trait, reason = "it may end for now, and go on")]
    pub fn next(&mut self) -> Result<Option<Committed>, TxnError> {
        loop {
            self.keep();
            let durable = self.durable();
            let Self { source, reader, gathering, begin, .. } = self;
            if let Some(commit) = step(source, reader, gathering, *begin, durable)? {
                self.position = commit.end;
                return Ok(Some(commit));
            }
            // What is no transaction and ends later, and what was written past the log for it, is read again by a feed that begins there.
            let at = self.reader.at();
            self.position = self.position.max(self.gathering.unended_before(at));
            if self.reader.at() >= durable {
                return Ok(None);
            }
        }
    }

    /// A future that is ready when there may be more to read.
    pub fn arrival(&self) -> Arrival {
        self.changes.flusher.arrival(self.reader.at(), Durability::Synced)
    }

    /// The log before this place is durable.
    fn durable(&self) -> Lsn {
        let is_planted = planted(Bug::ToldNotDurable);
        self.source.log().horizon(if is_planted { Durability::Buffered } else { Durability::Synced })
    }

    /// Makes the log keep what is needed from now on.
    fn keep(&mut self) {
        let Some(kept) = &self.kept else { return };
        let log = self.source.log();
        let is_caught_up = self.reader.at() >= log.end();
        if self.beginnings.are_outdated(log.end(), is_caught_up.then_some(self.position)) {
            let (end, oldest) = self.changes.needed_by(|| self.transactions.needed_at(|| log.end()));
            self.beginnings.add(end, oldest);
        }
        let needed = self.position.min(self.gathering.needed(self.reader.at()));
        kept.advance(needed.min(self.beginnings.before(self.position)));
    }
}

/// Reads up to the next commit that has changed something, up to `to`, or for a while. Of transactions that began
/// before `begin`, not all changes have been gathered.
fn step(
    source: &FollowedLog,
    reader: &mut FollowingReader,
    gathering: &mut Gathering,
    begin: Lsn,
    to: Lsn,
) -> Result<Option<Committed>, TxnError> {
    let (mut committed, stop) = (None, reader.at().0.saturating_add(PART_BYTES));
    reader.read(to, |record| {
        // First: if this fails, the record is taken again.
        if let Some((number, from)) = gathering.incomplete(&record, begin) {
            let mut again = gathering.again();
            source.read(from).read(record.lsn, |record| {
                again.take_of(number, &record)?;
                Ok::<_, TxnError>(true)
            })?;
            gathering.complete(number, from, again);
        }
        committed = gathering.take(&record)?.filter(|commit| !commit.changes.is_empty());
        Ok::<_, TxnError>(committed.is_none() && record.lsn.0 < stop)
    })?;
    Ok(committed)
}
