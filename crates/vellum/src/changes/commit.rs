//! What a feed of changes tells: commits, with the changes of tables.

use crate::{Lsn, Result, shared::Inner};
use std::{sync::Arc, time::SystemTime};
use vellum_txn::{FollowedLog, LoadedTree, LoggedValue};

/// A transaction that was committed, or an operation that was none.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Commit {
    /// The place of its commit in the log, which names it: later ones have greater ones.
    pub lsn: Lsn,
    /// Where the feed goes on after it. A program that has dealt with the commit keeps this, together with what it made of the
    /// commit, and begins there the next time: [`Database::changes`](crate::Database::changes).
    pub position: Lsn,
    /// The number of the commit; none for an operation that was no transaction. They begin anew when the database is opened.
    pub number: Option<u64>,
    /// When it was committed. An operation that was no transaction has the time of what is before it in the log; right within a
    /// millisecond if the log is archived.
    pub time: Option<SystemTime>,
    /// What was done, in its order.
    pub changes: Vec<Change>,
}

/// A change of a table.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Change {
    /// The name of the table, as it was then.
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
        /// It keeps no versions: see [`TableOptions::versions`](crate::TableOptions::versions).
        is_plain: bool,
    },
    /// The table was dropped, with all that it held.
    Dropped,
    /// The table got this name.
    Renamed {
        /// Its name from then on.
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
        /// The value that it has now.
        value: ChangedValue,
    },
    /// Some bytes of the value of a key were changed where they lie ([`Table::modify`](crate::Table::modify)); the others are as before. With
    /// [`Options::log_whole_values`](crate::Options::log_whole_values) that is told as [`Replaced`](Self::Replaced), with the whole value.
    Patched {
        /// The key.
        key: Vec<u8>,
        /// Where in the value they begin.
        offset: usize,
        /// What they are now.
        bytes: Vec<u8>,
    },
    /// A key and its value were removed.
    Removed {
        /// The key.
        key: Vec<u8>,
    },
    /// The table, which was empty, was filled by a bulk load.
    Loaded {
        /// What it held then.
        records: LoadedRecords,
    },
}

/// From where contents are read that are not in the record of a change. It keeps the database open.
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

/// What [`ChangedValue::read`] finds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Contents {
    /// The value.
    Value(Vec<u8>),
    /// It was a large one that was replaced or removed since, its pages are used for something else, and the log does not have
    /// it. The feed tells of its end later.
    Gone,
}

impl Contents {
    /// The value, if it is not gone.
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

    /// Reads the value as it was committed. A large one is read from the file as long as it is there, and then from the log, which has it if it
    /// is [archived](crate::Options::log_archive) or [holds whole values](crate::Options::log_whole_values). Without these it may be
    /// [`Gone`](Contents::Gone); with them only if the feed began between its contents and its commit, or the log has been given up
    /// since.
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
    /// Shows the records in the order of their keys, each with its value, until `show` returns false. The log has them if it is
    /// [archived](crate::Options::log_archive) or [holds whole values](crate::Options::log_whole_values), and always the few that fit
    /// into a page.
    ///
    /// Returns false if the log does not have them, or not all. Then read the table ([`Table::range`](crate::Table::range)) and store
    /// what it holds now: the feed tells later of what has changed since, and that is the same in the end. Until then a
    /// [`Patched`](Event::Patched) may not fit to a value that was replaced since.
    ///
    /// # Errors
    /// If the log cannot be read, and those of `show`.
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
