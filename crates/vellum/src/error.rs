//! The error type of the public interface.

use crate::{
    Lsn,
    shown::{shown_conflict, shown_key, shown_name, shown_part, shown_record},
};
use std::{io, panic::Location, path::PathBuf};
use vellum_access::AccessError;
use vellum_objects::ObjectError;
use vellum_pool::PoolError;
use vellum_txn::{BackupError, LogError, TxnError};
use vellum_vm::advice;

/// What went wrong. The message says what was being done, to what, and what can be done about it; [`kind`](Error::kind)
/// sorts errors for programs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool, the file or the system failed.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A tree or a large value failed.
    #[error(transparent)]
    Access(AccessError),
    /// A value that is to be held in memory as one slice does not fit into the pool.
    #[error(
        "the value of the key \"{}\" has {bytes} bytes, for which a pool of {pool_bytes} bytes has no room; read it in \
         parts (`Table::reader`), copy it (`Table::get`), or raise `pool_bytes`",
        shown_key(key)
    )]
    LargerThanPool {
        /// The key.
        key: Vec<u8>,
        /// The value's length.
        bytes: u64,
        /// The pool's size.
        pool_bytes: u64,
    },
    /// The log, or its connection with the pool, failed.
    #[error(transparent)]
    Log(TxnError),
    /// A backup could not be made or used.
    #[error(transparent)]
    Backup(BackupError),
    /// A restored database would take the place of something that exists.
    #[error("{} is there already, and restoring a database overwrites nothing: choose another place{advice}", path.display())]
    RestoreExists {
        /// The existing path.
        path: PathBuf,
        /// What else can be done, as the rest of the message.
        advice: &'static str,
    },
    /// A file has the name that a backup or database needs while it is made, and is not what an interrupted attempt leaves.
    #[error(
        "{} is there already, and is a whole backup or database, or nothing that an interrupted backup or restore leaves. If one \
         left it that was interrupted at its end, it is whole: rename it to {}. Otherwise move it away, or choose another place: a \
         file of this name is needed for a while",
        path.display(),
        path.with_extension("").display()
    )]
    UnfinishedExists {
        /// The existing path.
        path: PathBuf,
    },
    /// A backup or a database of this name is being made.
    #[error(
        "another backup or restore to {} is running, or its file of this name with `.unfinished` behind it is in use: {holder} has it \
         open. Wait until that ends, or choose another place",
        path.display()
    )]
    InProgress {
        /// The path of what is to be made.
        path: PathBuf,
        /// The process that has the file open.
        holder: String,
    },
    /// Options of a restore make no sense.
    #[error("a database cannot be restored like that: {why}; leave it out, or add what it needs")]
    RestoreOptions {
        /// Which, and why.
        why: &'static str,
    },
    /// The archive of the log that a restore is to follow is empty, or does not exist.
    #[error(
        "the archive of the log holds nothing, or does not exist: name the directory that was given as the archive of the database. If nothing was \
         archived since the backup, restore without it (`--archive`): the backup by itself leads to where it ends"
    )]
    EmptyArchive,
    /// The log that a restore is to follow where the archive ends lacks what comes there.
    #[error(
        "the log of the lost database does not go on where the archive ends: it is needed from {from} on, and is not in the \
         directory that was named (`--log`). Name the directory of that log, or leave it out: then what the archive holds is \
         restored, which is all if the database was closed and not changed since"
    )]
    LostLog {
        /// The place from which on it is needed.
        from: Lsn,
    },
    /// The directory of the log cannot be created or opened.
    #[error("cannot make the directory {} for the log, or make that durable: {source}{}", path.display(),
        match (advice(source), source.kind()) {
            ("", io::ErrorKind::NotADirectory) => "; something else has this name: move it away",
            ("", io::ErrorKind::InvalidFilename) => "; choose a shorter name for the database",
            ("", _) => "; this process must be allowed to make it, and to read the directory in which it is",
            (advice, _) => advice,
        }
    )]
    LogDirectory {
        /// Where it is, or should be.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Another transaction has changed the record that this one was about to change.
    /// Or another transaction has created, changed, renamed or dropped the table that this one was about to create, change,
    /// rename or drop.
    #[error(
        "{}; roll this transaction back and run it again, or try an operation of the table itself again",
        shown_conflict(table, key, *committed)
    )]
    Conflict {
        /// The table. It is empty if the conflict is not about a record, but about the table whose name the key is.
        table: String,
        /// The key, or the name of the table. If very many keys were changed while a serializable transaction was open, or after a snapshot was
        /// covered, only a bitmap of their hashes is kept. Then it may be a key that was not changed, or one near
        /// the key that was, and the transaction may have been refused in vain.
        key: Vec<u8>,
        /// Whether the other transaction has already been committed.
        committed: bool,
    },
    /// An operation conflicts with the transaction inside which it is run: see [`Database::run`](crate::Database::run).
    #[error(
        "{} is being changed by a transaction that this thread is running, which cannot end before this does; change it by that \
         transaction, not by the table itself or another transaction",
        shown_record(table, key)
    )]
    OwnConflict {
        /// The table, as in [`Conflict`](Self::Conflict).
        table: String,
        /// The key, or the name of the table.
        key: Vec<u8>,
    },
    /// A transaction of [`Database::run`](crate::Database::run) conflicts with one that its thread has begun before and
    /// that is still open. If that thread is the one to end it, this never happens while it waits.
    #[error(
        "{} is kept by the transaction that this thread began at {begun_at}, which was not ended in the time that `Database::run` tries; \
         end it first, or make the change by it",
        shown_record(table, key)
    )]
    HeldByThread {
        /// The table, as in [`Conflict`](Self::Conflict).
        table: String,
        /// The key, or the name of the table.
        key: Vec<u8>,
        /// Where the transaction was begun.
        begun_at: &'static Location<'static>,
    },
    /// The transaction was open for too long, or held back too much: see
    /// [`Options::snapshot_limit`](crate::Options::snapshot_limit). Or what is kept for it could not be written,
    /// because the disk of the log's directory is full or fails.
    #[error(
        "the transaction was ended, because it went beyond the limit of the database for old snapshots, or what is kept for it \
         could not be written; roll it back, and run it again in less time, with a higher `Options::snapshot_limit`, or with more \
         room on the disk of the log"
    )]
    SnapshotTooOld,
    /// The transaction can only be rolled back.
    #[error("an earlier operation of this transaction failed: it can only be rolled back, and run again")]
    Ended,
    /// The transaction has no such savepoint.
    #[error(
        "the transaction has no such savepoint: the savepoint belongs to another transaction, or was released when this one \
         was rolled back to an earlier savepoint"
    )]
    NoSuchSavepoint,
    /// A table is used in a transaction of a different database.
    #[error("the table {table:?} belongs to another database than the transaction")]
    OtherDatabase {
        /// The table.
        table: String,
    },
    /// A transaction cannot use a table that keeps no versions.
    #[error(
        "the table {table:?} is plain (`TableOptions::versions(false)`): it keeps no versions, so a transaction can neither read nor \
         change it. Call the table itself, outside of the transaction; what transactions need belongs into a table with versions"
    )]
    PlainTable {
        /// The table.
        table: String,
    },
    /// The database has no log.
    #[error("the database was opened without a log: nothing is durable until it is closed")]
    WithoutLog,
    /// The log of the database is not archived.
    #[error("the log of the database is not archived: `Options::log_archive` names a directory for that")]
    WithoutArchive,
    /// The log was archived when the database was last changed, and the archive is not named now: see
    /// [`Options::end_log_archive`](crate::Options::end_log_archive). Nothing has been changed.
    #[error(
        "the log of {} is archived, and {}: what is changed now would be missing in its archive, and nothing could be restored \
         beyond that gap. Name the archive (`--archive`, `Options::log_archive`); or end it (`--no-archive`, \
         `Options::end_log_archive`), and then make a new backup",
        path.display(),
        if *is_empty { "the directory that was named holds nothing of it" } else { "no archive was named" }
    )]
    ArchiveNotNamed {
        /// The database.
        path: PathBuf,
        /// Whether a directory was named that holds no archive.
        is_empty: bool,
    },
    /// The changes that a feed is to start or continue with have been discarded. See
    /// [`Database::changes`](crate::Database::changes).
    #[error(
        "the log no longer has the changes from {from} on, nor does an archive of it{}. Copy the tables anew, and follow the \
         changes from then on. `Options::log_archive` keeps the log for feeds that were away; without it, raise \
         `ChangesOptions::keep_bytes` for one that is slow",
        oldest.map_or(String::new(), |oldest| format!(", which goes on at {oldest}"))
    )]
    ChangesDiscarded {
        /// The first place that is needed.
        from: Lsn,
        /// Where the remaining changes begin, if known.
        oldest: Option<Lsn>,
    },
    /// The place in the log from which changes were to be followed is not a position of a feed of this database.
    #[error(
        "no feed of changes of this database was ever at {position}, and its log ends at {end}: the position is of another database, \
         or this one was restored as it was earlier; copy its tables anew, and follow the changes from then on"
    )]
    NoSuchPosition {
        /// The place.
        position: Lsn,
        /// Where the log ends.
        end: Lsn,
    },
    /// There is no table of that name, or no heap.
    #[error(
        "there is no table {name:?}, and no such heap of objects; `tables` and `heaps` list what there is"
    )]
    NoSuchTable {
        /// The name.
        name: String,
    },
    /// A table of that name already exists, or a heap: they share their names.
    #[error("there already is a table {name:?}, or a heap of objects that is called so")]
    TableExists {
        /// The name.
        name: String,
    },
    /// A table cannot be opened with types other than those of its keys and values.
    #[error(
        "the table {name:?} is one from {} to {}, and was to be opened as one from {} to {}; open it with its own types, or \
         as bytes (`Database::table_as_bytes`)", stored.0, stored.1, wanted.0, wanted.1
    )]
    TableTypes {
        /// The table.
        name: String,
        /// The types of its keys and values.
        stored: (String, String),
        /// The requested types.
        wanted: (String, String),
    },
    /// The name of a type of keys or values is too long for the catalog.
    #[error("the name of a type of keys or values has up to {limit} bytes, and {type_name:?} has {}", type_name.len())]
    TypeName {
        /// The name.
        type_name: String,
        /// The longest name, in bytes.
        limit: usize,
    },
    /// The stored bytes are no key or value of the table's type.
    #[error(
        "{} is not of the type {type_name}; it was stored as bytes, or by another version of the type. `Table::as_bytes` \
         shows it",
        shown_part(table, what, key.as_deref())
    )]
    Malformed {
        /// The table.
        table: String,
        /// The key, as it is stored. `None` where it is the one that was asked for.
        key: Option<Vec<u8>>,
        /// Whether it is a key or a value.
        what: &'static str,
        /// The type.
        type_name: String,
    },
    /// A value cannot be encoded.
    #[error("a value of the type {type_name} cannot be encoded: {source}")]
    NotEncoded {
        /// The type.
        type_name: String,
        /// The error of the serialisation.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The work of [`Database::run_async`](crate::Database::run_async) has kept a handle on its transaction. The
    /// transaction is rolled back when that handle is dropped.
    #[error("the work of a transaction has kept a handle on it; drop all of them before the work returns")]
    TransactionKept,
    /// A table that is to be dropped is open.
    #[error(
        "the table {name:?} is in use; drop all its handles, and end the transactions that have changed it, first"
    )]
    TableInUse {
        /// The name.
        name: String,
    },
    /// A table or a heap cannot have this name.
    #[error("a table's name has 1 to {limit} bytes, and {} has {}", shown_name(name), name.len())]
    TableName {
        /// The name.
        name: String,
        /// The longest name, in bytes.
        limit: usize,
    },
    /// A heap of objects is used as a table.
    #[error(
        "{name:?} is a heap of objects, and no table: use it as that (`Database::heap`, `Database::drop_heap`)"
    )]
    IsHeap {
        /// The name.
        name: String,
    },
    /// A table is used as a heap of objects.
    #[error("{name:?} is a table, and no heap of objects: use it as that (`Database::table`)")]
    IsTable {
        /// The name.
        name: String,
    },
    /// A heap of objects failed.
    #[error(transparent)]
    Objects(ObjectError),
    /// The callback that decides whether a compaction goes on tried to compact or to back up the same database.
    #[error("this thread is compacting the database already: let that end first")]
    NestedCompaction,
    /// The callback that is told the progress of a backup tried to make another one of the same database.
    #[error("this thread is making a backup of the database already: let that end first")]
    NestedBackup,
    /// A database that is to be closed is still in use.
    #[error(
        "the database is still in use: {handles} references of tables, clones, transactions and feeds of changes are left; drop \
         these first"
    )]
    StillInUse {
        /// How many other references to it exist. A transaction counts as two.
        handles: usize,
    },
    /// A child made by `fork` tried to close a database that its parent has opened.
    #[error(
        "the database was opened by the parent of this process, which was made by `fork`; only the parent can use and close it"
    )]
    Inherited,
    /// The program itself has given up a transaction: see [`Error::other`].
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl From<AccessError> for Error {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::Pool(PoolError::Cancelled) => Self::SnapshotTooOld,
            AccessError::Pool(error) => Self::Pool(error),
            other => Self::Access(other),
        }
    }
}

impl From<ObjectError> for Error {
    fn from(error: ObjectError) -> Self {
        match error {
            ObjectError::Pool(error) => Self::Pool(error),
            ObjectError::Access(error) => error.into(),
            other => Self::Objects(other),
        }
    }
}

impl From<TxnError> for Error {
    fn from(error: TxnError) -> Self {
        match error {
            TxnError::Pool(error) => Self::Pool(error),
            TxnError::Backup(error) => Self::Backup(error),
            other => Self::Log(other),
        }
    }
}

/// The error of an [`Arrival`](crate::Arrival).
impl From<LogError> for Error {
    fn from(error: LogError) -> Self {
        Self::Log(error.into())
    }
}

impl Error {
    /// An error of the program's own. The work of [`Database::run`](crate::Database::run) returns it to give its transaction
    /// up: the transaction is rolled back, and not run again. Its kind is [`ErrorKind::Other`](crate::ErrorKind::Other).
    ///
    /// ```
    /// use vellum::{Error, TableName};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// let stock = database.create_table(TableName::<str, u32>::new("stock"))?;
    /// stock.put("figs", 3)?;
    /// let sold = database.run(|transaction| {
    ///     let left = transaction.get(&stock, "figs")?.unwrap_or(0);
    ///     transaction.put(&stock, "sold figs", 5)?;
    ///     transaction.put(&stock, "figs", left.checked_sub(5).ok_or_else(|| Error::other("too few figs"))?)
    /// });
    /// assert!(matches!(&sold, Err(Error::Other(error)) if error.to_string() == "too few figs"));
    /// assert_eq!(stock.get("sold figs")?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Other(error.into())
    }

    /// The error names the key at which it was met, if it is that what is stored there is not of its type.
    #[cold]
    pub(crate) fn at(mut self, met_at: &[u8]) -> Self {
        if let Self::Malformed { key: key @ None, .. } = &mut self {
            *key = Some(met_at.to_vec());
        }
        self
    }

    /// The same error of the log, for another operation that it affects.
    pub(crate) fn repeated(&self) -> Self {
        let source = match self {
            Self::Log(TxnError::Log(LogError::OutcomeUnknown { source })) => source.clone(),
            other => std::sync::Arc::new(io::Error::other(other.to_string())),
        };
        Self::Log(LogError::OutcomeUnknown { source }.into())
    }

    /// Whether the pool had no room for something.
    pub(crate) fn is_about_room(&self) -> bool {
        matches!(self, Self::Pool(PoolError::LargerThanPool { .. } | PoolError::PoolExhausted { .. }))
    }
}
