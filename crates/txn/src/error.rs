//! What can go wrong.

use crate::{LogSettings, backup_error::BackupError};
use vellum_access::{AccessError, RecordFault};
use vellum_base::Lsn;
use vellum_pool::PoolError;
use vellum_wal::LogError;

/// Why something could not be made durable or recovered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TxnError {
    /// The pool or the file failed.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A change could not be undone, or what it replaced could not be freed.
    #[error(transparent)]
    Access(AccessError),
    /// The log failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The size of the log's buffer is out of its range.
    #[error(
        "the log's buffer cannot be {bytes} bytes: it is a power of two, and at least {} bytes",
        LogSettings::BUFFER_BYTES_MIN
    )]
    Buffer {
        /// The size that was given.
        bytes: u64,
    },
    /// A backup could not be made or used.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// A record of the log is not one that this version writes.
    #[error("the log's record at {lsn} cannot be read: {fault}. Restore the database from a backup")]
    Record {
        /// The place of the record.
        lsn: Lsn,
        /// What is wrong with it.
        fault: RecordFault,
    },
    /// A transaction changed something that could not be undone.
    #[error(
        "a transaction could not be rolled back: {}",
        if *has_log {
            "open the database anew, which undoes it"
        } else {
            "there is no log to undo it by later, so the database is closed only when that succeeds. Make room on the disk and \
             close it again"
        }
    )]
    NotRolledBack {
        /// Whether there is a log.
        has_log: bool,
    },
    /// The rest of the log could not be archived, so the database was not closed.
    #[error(
        "the database was not closed, because its log could not be archived to the end: {source}. Nothing is lost. Open \
         and close it again when the archive can be written; or end the archive there (`--no-archive`, `Options::end_log_archive`)"
    )]
    NotArchived {
        /// Why.
        source: LogError,
    },
    /// A thread that was redoing changes panicked.
    #[error("recovery failed: a thread that redid changes panicked, which is a fault of Vellum")]
    Panicked,
    /// The system has no room for a thread that the log needs.
    #[error("cannot start a thread for the log: {source}")]
    Thread {
        /// What the system reports.
        source: std::io::Error,
    },
}

impl From<AccessError> for TxnError {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::Pool(error) => Self::Pool(error),
            other => Self::Access(other),
        }
    }
}
