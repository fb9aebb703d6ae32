//! The contents of a feed of changes: commits, with their changes of tables.

use super::ChangesPosition;
use crate::{Lsn, Result, shared::Inner};
use std::{sync::Arc, time::SystemTime};
use vellum_txn::{FollowedLog, LoadedTree, LoggedValue};

/// A committed transaction, or an operation outside of transactions.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Commit {
    /// The place of its commit record in the log, which identifies it: later commits have greater ones.
    /// [`Until::Lsn`](crate::Until::Lsn) restores the database as it was after this commit.
    pub lsn: Lsn,
    /// Where the feed continues after this commit. A program that has processed the commit stores this, together with
    /// what it made of the commit, and starts there the next time: [`Database::changes`](crate::Database::changes). The
    /// next commit may begin at its [`lsn`](ChangesPosition::lsn), so [`Until::Before`](crate::Until::Before) is for it.
    pub position: ChangesPosition,
    /// The number of the commit. An operation outside of transactions has none, unless other transactions were open: then
    /// it was a transaction of its own. Numbers start anew when the database is opened.
    pub number: Option<u64>,
    /// When it was committed. An operation outside of transactions has the time of what precedes it in the log, which
    /// is accurate to a millisecond if the log is archived.
    pub time: Option<SystemTime>,
    /// The changes, in their order.
    pub changes: Vec<Change>,
}

/// A change of a table.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Change {
    /// The name of the table at that time.
    pub table: Arc<str>,
    /// What happened.
    pub event: Event,
}

/// What happened to a table or a record.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The table was created.
    Created {
        /// The type of its keys: see [`KeyType::type_name`](crate::KeyType::type_name).
        key_type: String,
        /// The type of its values.
        value_type: String,
        /// Whether it keeps no versions: see [`TableOptions::versions`](crate::TableOptions::versions).
        is_plain: bool,
    },
    /// The table was dropped with all its contents.
    Dropped,
    /// The table was renamed.
    Renamed {
        /// The new name.
        to: Arc<str>,
    },
    /// A key got its first value.
    Inserted {
        /// The key.
        key: Vec<u8>,
        /// The value.
        value: ChangedValue,
    },
    /// A key got another value.
    Replaced {
        /// The key.
        key: Vec<u8>,
        /// The new value.
        value: ChangedValue,
    },
    /// Some bytes of the value of a key were changed in place ([`Table::modify`](crate::Table::modify)); the others are
    /// as before. With [`Options::log_whole_values`](crate::Options::log_whole_values) such a change is reported as
    /// [`Replaced`](Self::Replaced), with the whole value.
    Patched {
        /// The key.
        key: Vec<u8>,
        /// The offset of the changed bytes in the value.
        offset: usize,
        /// The new bytes.
        bytes: Vec<u8>,
    },
    /// A key and its value were removed.
    Removed {
        /// The key.
        key: Vec<u8>,
    },
    /// The table, which was empty, was filled by a bulk load.
    Loaded {
        /// The loaded records.
        records: LoadedRecords,
    },
}

/// The source of contents that are not in the record of a change. It keeps the database open.
#[derive(Clone)]
pub(super) struct ContentsSource {
    pub log: FollowedLog,
    pub inner: Arc<Inner>,
}

/// A value that was stored.
#[derive(Clone)]
pub struct ChangedValue {
    pub(super) stored: LoggedValue,
    pub(super) source: ContentsSource,
}

/// The result of [`ChangedValue::read`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Contents {
    /// The value.
    Value(Vec<u8>),
    /// The value was a large one that was replaced or removed since, its pages have been reused, and the log does not
    /// have it. The feed reports its replacement or removal later.
    Gone,
}

impl Contents {
    /// The value, unless it is gone.
    pub fn value(self) -> Option<Vec<u8>> {
        match self {
            Self::Value(value) => Some(value),
            Self::Gone => None,
        }
    }
}

impl ChangedValue {
    /// The value, if it is a small one: up to 1 KiB.
    pub fn inline(&self) -> Option<&[u8]> {
        match &self.stored {
            LoggedValue::Inline(bytes) => Some(bytes),
            LoggedValue::Large(_) => None,
        }
    }

    /// Its length, in bytes.
    pub fn length(&self) -> u64 {
        match &self.stored {
            LoggedValue::Inline(bytes) => bytes.len() as u64,
            LoggedValue::Large(large) => large.length(),
        }
    }

    /// Reads the value as it was committed. A large value is read from the file while it is still there, and later from
    /// the log, which has it if the log is [archived](crate::Options::log_archive) or [holds whole
    /// values](crate::Options::log_whole_values). Without these it may be [`Gone`](Contents::Gone); with them only if
    /// the feed began between the logging of its contents and its commit, or the log has been discarded since.
    ///
    /// # Errors
    /// If the file or the log cannot be read.
    pub fn read(&self) -> Result<Contents> {
        match &self.stored {
            LoggedValue::Inline(bytes) => Ok(Contents::Value(bytes.clone())),
            LoggedValue::Large(large) => {
                let ContentsSource { inner, log } = &self.source;
                Ok(large.read(inner.pool(), log)?.map_or(Contents::Gone, Contents::Value))
            }
        }
    }
}

impl std::fmt::Debug for ChangedValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.inline() {
            Some(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            None => write!(f, "{} bytes", self.length()),
        }
    }
}

/// The records that a bulk load has put into a table.
#[derive(Clone)]
pub struct LoadedRecords {
    pub(super) tree: LoadedTree,
    pub(super) source: ContentsSource,
}

impl LoadedRecords {
    /// Calls `show` with the records in key order, each with its value, until `show` returns false. The log has the
    /// records if it is [archived](crate::Options::log_archive) or [holds whole
    /// values](crate::Options::log_whole_values), and always if they are so few that they fit into a page. It lacks
    /// them all the same if the feed began while a load that is not part of a transaction was being logged, if it loaded more
    /// than 2 GiB, or if the log has been discarded since.
    ///
    /// Returns false if the log lacks some or all of the records. In that case read the table
    /// ([`Table::range`](crate::Table::range)) and store its present contents: the feed later reports what has changed
    /// since, and the result is the same in the end. Until then a [`Patched`](Event::Patched) may not fit a value that
    /// was replaced since.
    ///
    /// # Errors
    /// If the log cannot be read, or `show` fails.
    pub fn for_each(&self, mut show: impl FnMut(Vec<u8>, ChangedValue) -> Result<bool>) -> Result<bool> {
        let source = &self.source;
        self.tree
            .for_each(&source.log, |key, stored| show(key, ChangedValue { stored, source: source.clone() }))
    }
}

impl std::fmt::Debug for LoadedRecords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("records")
    }
}
