//! Gathers the changes of transactions until these are committed.

use super::{
    Committed,
    changes::{TreeChange, tree_changes},
    contents::{Contents, LoggedPages},
};
use crate::{
    TxnError,
    plant::{Bug, planted},
    records::{End, LogRecord},
};
use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};
use vellum_access::{ChangeRecord, RecordKind};
use vellum_base::{Lsn, PageId};
use vellum_wal::Record;

/// How many bytes of memory the changes of a transaction may take. If they need more, its commit reads them again.
const TRANSACTION_BYTES_MAX: usize = 16 << 20;
/// For how many bytes of log the contents written past the log wait for the change that refers to them.
const CONTENTS_BYTES_MAX: u64 = 2 << 30;

/// What is known of transactions, and groups of records, that have not ended.
pub(super) struct Gathering {
    catalog: PageId,
    /// Whether only changes of the catalog are gathered.
    only_catalog: bool,
    open: HashMap<u64, Open>,
    groups: HashMap<u64, Group>,
    contents: Contents,
    /// The last time in the log, in nanoseconds since 1970.
    time: u64,
    /// The least place at which a transaction began whose end has been read.
    pub least_first: Lsn,
}

/// A transaction that has not ended.
struct Open {
    /// Where the log has the first of its records that were read, or of the contents that its changes refer to.
    from: Lsn,
    /// Each with the place of its record.
    changes: Vec<(Lsn, TreeChange)>,
    bytes: usize,
    /// Whether not all of its changes are here.
    is_partial: bool,
}

struct Group {
    /// Where its first record is.
    first: Lsn,
    /// Where the log has that record, or the first of the contents that its changes refer to.
    from: Lsn,
    changes: Vec<TreeChange>,
    pages: LoggedPages,
}

/// How much of the log is kept for what need not be there: contents, which the file has as well, and groups, which may
/// never end.
const KEPT_BYTES: u64 = 64 << 20;

impl Gathering {
    pub fn new(catalog: PageId, only_catalog: bool) -> Self {
        Self {
            catalog,
            only_catalog,
            open: HashMap::new(),
            groups: HashMap::new(),
            contents: Contents::default(),
            time: 0,
            least_first: Lsn(u64::MAX),
        }
    }

    /// A gathering of the catalog's changes alone.
    pub fn of_catalog(&self) -> Self {
        Self::new(self.catalog, true)
    }

    /// A gathering like this one, for a transaction that is read again.
    pub fn again(&self) -> Self {
        Self::new(self.catalog, self.only_catalog)
    }

    /// From where on the log is needed for what has not ended, if everything before `at` has been taken.
    pub fn needed(&self, at: Lsn) -> Lsn {
        let open = self.open.values().map(|open| open.from);
        open.min().unwrap_or(at).min(self.unended_before(at))
    }

    /// The place before `at` from which on a feed finds all of what is no transaction and has not ended: groups of records, and
    /// contents written past the log to which no change has referred yet.
    pub fn unended_before(&self, at: Lsn) -> Lsn {
        let recent = Lsn(at.0.saturating_sub(KEPT_BYTES));
        let groups = self.groups.values().filter(|group| group.first >= recent).map(|group| group.from);
        groups.chain(self.contents.oldest(recent)).min().unwrap_or(at)
    }

    /// The transaction that a record commits if it began before `begin`, or not all of it was gathered, and from where
    /// on it must be read again. If all of it was read before, that is not where it began: its first record may have
    /// come much later, and the log before that need not be there.
    pub fn incomplete(&self, record: &Record<'_>, begin: Lsn) -> Option<(u64, Lsn)> {
        let LogRecord::End(End { number, is_committed: true, first, .. }) = LogRecord::decode(record.payload)
        else {
            return None;
        };
        let open = self.open.get(&number);
        match first {
            Some(first) if first < begin => Some((number, first)),
            _ => open.filter(|open| open.is_partial).map(|open| (number, open.from)),
        }
    }

    /// Takes over the changes of a transaction that was read again.
    pub fn complete(&mut self, number: u64, from: Lsn, mut again: Self) {
        let changes = again.open.remove(&number).map_or_else(Vec::new, |open| open.changes);
        self.open.insert(number, Open { from, changes, bytes: 0, is_partial: false });
    }

    /// Takes the next record into account, if it may belong to this transaction, and gathers all changes.
    pub fn take_of(&mut self, number: u64, record: &Record<'_>) -> Result<(), TxnError> {
        let is_wanted = match LogRecord::decode(record.payload) {
            LogRecord::Contents(..) => true,
            LogRecord::Change => match ChangeRecord::decode(record.payload).map(|change| change.kind) {
                Ok(
                    RecordKind::Transaction(of)
                    | RecordKind::Loaded { transaction: of, .. }
                    | RecordKind::Undo { transaction: of, .. },
                ) => of == number,
                // The last record of the group says to which transaction it belongs.
                Ok(RecordKind::Member(_)) => true,
                _ => false,
            },
            _ => false,
        };
        if is_wanted {
            self.take_change(record, usize::MAX)?;
        }
        Ok(())
    }

    /// Takes the next record into account. Returns what it commits.
    pub fn take(&mut self, record: &Record<'_>) -> Result<Option<Committed>, TxnError> {
        let (lsn, end) = (record.lsn, record.end());
        let shown = |time: u64| (time > 0).then(|| SystemTime::UNIX_EPOCH + Duration::from_nanos(time));
        match LogRecord::decode(record.payload) {
            LogRecord::End(End { number, is_committed, commit, time, first }) => {
                let ended = self.open.remove(&number);
                if !is_committed {
                    return Ok(None);
                }
                self.least_first = self.least_first.min(first.unwrap_or(lsn));
                self.time = time.max(self.time);
                let changes = ended.map_or_else(Vec::new, |open| open.changes);
                let changes = changes.into_iter().map(|(_, change)| change).collect();
                Ok(Some(Committed { lsn, end, number: Some(commit), time: shown(self.time), changes }))
            }
            LogRecord::Time(time) => {
                self.time = time.max(self.time);
                Ok(None)
            }
            LogRecord::Contents(..) | LogRecord::Change | LogRecord::Unknown => {
                let changes = self.take_change(record, TRANSACTION_BYTES_MAX)?;
                let time = shown(self.time);
                Ok(changes.map(|changes| Committed { lsn, end, number: None, time, changes }))
            }
        }
    }

    /// Takes a change into account. Returns what it commits outside transactions.
    fn take_change(
        &mut self,
        record: &Record<'_>,
        bytes_max: usize,
    ) -> Result<Option<Vec<TreeChange>>, TxnError> {
        let lsn = record.lsn;
        if let LogRecord::Contents(first, pages) = LogRecord::decode(record.payload) {
            if !self.only_catalog {
                self.contents.add(first.0, pages.len(), lsn);
                self.contents.forget_before(Lsn(lsn.0.saturating_sub(CONTENTS_BYTES_MAX)));
            }
            return Ok(None);
        }
        let faulty = |fault| TxnError::Record { lsn, fault };
        let change = ChangeRecord::decode(record.payload).map_err(faulty)?;
        let group = match change.kind {
            RecordKind::Member(number)
            | RecordKind::Last(number)
            | RecordKind::Loaded { group: number, .. } => self.groups.remove(&number),
            _ => None,
        };
        let new = || Group { first: lsn, from: lsn, changes: Vec::new(), pages: LoggedPages::default() };
        let mut group = group.unwrap_or_else(new);
        let mut changes = Vec::new();
        if !self.only_catalog || change.tree == self.catalog {
            let read = tree_changes(change, self.catalog, &mut self.contents, &mut group.pages);
            let oldest;
            (changes, oldest) = read.map_err(faulty)?;
            group.from = oldest.map_or(group.from, |oldest| group.from.min(oldest));
        }
        match change.kind {
            RecordKind::Transaction(_) if planted(Bug::ToldUncommitted) => Ok(Some(changes)),
            RecordKind::Transaction(number) | RecordKind::Loaded { transaction: number, .. } => {
                group.changes.append(&mut changes);
                let new = || Open { from: lsn, changes: Vec::new(), bytes: 0, is_partial: false };
                let open = self.open.entry(number).or_insert_with(new);
                open.from = open.from.min(group.from);
                open.add(lsn, group.changes, record.payload.len(), bytes_max);
                Ok(None)
            }
            RecordKind::Undo { transaction, of } => {
                if let Some(open) = self.open.get_mut(&transaction)
                    && !planted(Bug::ToldTakenBack)
                {
                    open.take_back(of);
                }
                Ok(None)
            }
            RecordKind::Member(number) => {
                group.changes.append(&mut changes);
                self.groups.insert(number, group);
                Ok(None)
            }
            RecordKind::Last(_) => {
                group.changes.append(&mut changes);
                Ok(Some(group.changes))
            }
            RecordKind::Single => Ok(Some(changes)),
        }
    }
}

impl Open {
    fn add(&mut self, lsn: Lsn, changes: Vec<TreeChange>, bytes: usize, bytes_max: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > bytes_max {
            self.is_partial = true;
            self.changes = Vec::new();
            return;
        }
        self.changes.extend(changes.into_iter().map(|change| (lsn, change)));
    }

    /// Takes back the change at `of`, which has been undone: nearly always the last one.
    fn take_back(&mut self, of: Lsn) {
        while self.changes.pop_if(|(lsn, _)| *lsn == of).is_some() {}
        if self.changes.last().is_some_and(|(lsn, _)| *lsn > of) {
            self.changes.retain(|(lsn, _)| *lsn != of);
        }
    }
}
