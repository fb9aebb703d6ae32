//! An embedded storage engine for data larger than memory, whose buffer pool is the processor's page table.
//!
//! A page's number is its address: page *p* lives at *base + 4096 p* of one mapping as large as the database.
//! A hit is an ordinary memory access, translated by the TLB; misses and evictions stay under the engine's
//! control. The design is that of *Virtual-Memory Assisted Buffer Management* (SIGMOD 2023).
//!
//! ```
//! use vellum::{Database, Options};
//!
//! let directory = tempfile::tempdir()?;
//! let database = Database::create(directory.path().join("fruit.vellum"), &Options::default())?;
//! let table = database.create_table("fruit")?;
//! table.put(b"apple", b"red")?;
//! table.put(b"banana", b"yellow")?;
//! assert_eq!(table.get(b"apple")?.as_deref(), Some(&b"red"[..]));
//!
//! for entry in table.range("b"..)? {
//!     let (key, value) = entry?;
//!     println!("{} bytes under {key:?}", value.len());
//! }
//! # drop(table);
//! database.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it promises today
//! - Each operation on a table is atomic and at once visible to all threads. It is durable when it returns, to the
//!   degree that [`Options::durability`] asks for. A database whose process was killed, or that lost power, recovers
//!   when it is opened: everything that was acknowledged is there, and nothing is there in part.
//! - A [`Transaction`] groups several operations that happen together or not at all. It sees the database as it was
//!   when it began (snapshot isolation, or serializable: [`IsolationLevel`]) and never blocks a reader.
//!   [`Database::run`] runs a transaction again after a conflict.
//! - A database opened with [`Options::log`]`(false)` still has transactions, but nothing is durable: the whole
//!   database is lost unless it is closed.
//! - Memory stays within [`Options::pool_bytes`], plus 16 bytes for each 4 KiB of data and a few MiB.
//! - Bytes that were damaged on storage cause an error that names the page, never a panic or a silently wrong result.
//! - Handles belong to the process that has opened the database. A child made by `fork` can drop them, which changes
//!   nothing, but not use them: it has neither the pages nor the threads.
//!
//! # Parts
//! - [`Database`], [`Table`], [`Entries`], [`Cursor`], [`Value`], [`ValueReader`]: the key-value store;
//! - [`TableName`], [`KeyType`], [`ValueType`]: tables with typed keys and values; [`TableOptions`]: plain tables,
//!   without versions;
//! - [`Transaction`], [`Savepoint`], [`Durability`]: several operations as one unit;
//! - [`Table::multi_get`] and similar methods: many keys in one call, whose cache misses and reads overlap;
//! - [`Table::bulk_load`] and [`BulkLoader`]: a table built from sorted input, several times as fast as by inserts;
//!   [`Transaction::bulk_load`] as part of a transaction;
//! - [`Table::lookups`], [`Transaction::lookups`]: the values of the keys of an iterator, with as many reads under way
//!   as the device can handle at once;
//! - [`Table::get_async`], [`Transaction::get_async`] and similar methods: futures for any runtime; [`Submissions`]:
//!   for your own event loop;
//! - [`Database::backup`], [`Backup`]: full and incremental backups of a database in use, and restoring from them;
//! - [`Options::log_archive`], [`RestoreOptions`], [`LogArchive`]: an archive of the log, and databases restored to a
//!   point in time;
//! - [`Database::changes`]: a feed of commits for other programs to follow;
//! - [`Database::compact`]: shortens the file after much was removed;
//! - [`Salvage`]: inspects a crashed or damaged database without changing it;
//! - [`objects`]: heaps of objects that refer to each other, in the same file as tables;
//! - [`pool`]: the pool by itself, for your own structures on pages.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

mod async_entries;
mod async_run;
mod asynchronous;
mod attempts;
mod awaited;
mod backup;
mod batch;
mod bulk;
mod byte_values;
mod catalog;
mod changes;
mod closing;
mod compact;
mod coverage;
mod cursor;
mod database;
mod doomed_trees;
mod dooming;
mod driver;
mod encoding;
mod entries;
mod error;
mod error_kind;
mod freeing;
mod generations;
mod handle;
mod heap;
#[cfg(all(test, not(shuttle)))]
mod histories;
mod in_memory;
mod isolation_level;
mod life;
mod loading;
mod log_archive;
mod log_place;
mod lookups;
mod nested;
mod new_tree;
pub mod objects;
mod open_transaction;
mod operations;
mod options;
mod owned;
mod patience;
mod pauses;
mod plant;
pub mod pool;
mod range;
mod removal;
mod running;
mod salvage;
mod savepoints;
mod scan;
mod schema;
mod shared;
mod shown;
mod submissions;
mod table;
mod table_options;
mod tables_read;
mod transaction;
mod transaction_batches;
mod transaction_future;
mod turns;
mod unfinished;
mod upkeep;
mod value;
mod verify;
mod writers;

pub use async_entries::AsyncEntries;
pub use asynchronous::TableFuture;
pub use backup::{Backup, BackupOptions, RestoreOptions, Restored};
pub use bulk::{BulkLoader, BulkOptions};
pub use changes::{
    Change, ChangedValue, Changes, ChangesFrom, ChangesOptions, ChangesPosition, Commit, Contents, Event,
    LoadedRecords, NextCommit, ParsePositionError,
};
pub use compact::Compaction;
pub use cursor::{Cursor, Entry};
pub use database::{Database, Statistics, TableInformation};
#[cfg(feature = "serde")]
pub use encoding::Serde;
pub use encoding::{AsKey, AsPrefix, AsValue, KeyBuffer, KeyType, NamesTable, Place, TableName, ValueType};
pub use entries::Entries;
pub use error::Error;
pub use error_kind::ErrorKind;
pub use isolation_level::IsolationLevel;
pub use log_archive::LogArchive;
pub use lookups::Lookups;
pub use options::Options;
pub use range::{KeyRange, Prefix};
pub use salvage::{LeftBy, Piece, Salvage, Scanned};
pub use savepoints::Savepoint;
pub use submissions::Submissions;
pub use table::{Put, Table};
pub use table_options::TableOptions;
pub use transaction::{Transaction, TransactionOptions};
pub use transaction_future::TransactionFuture;
pub use value::{Value, ValueReader};
pub use vellum_access::{
    AccessError, Answer, MAX_VALUE_BYTES, Task, TreeShape, Written, node::MAX_KEY_BYTES,
};
pub use vellum_base::Lsn;
pub use vellum_txn::{
    ArchiveError, ArchiveState, ArchivedPart, Arrival, BackupError, BackupProgress, BackupSummary, Baton,
    BufferDamage, BufferFlaw, Durability, History, LogState, OldestSnapshot, Recovery, RestoredPoint,
    SnapshotLimit, SyncCounts, TxnError, Until, shown_time,
};
pub use vellum_vm::{
    Directory, DiskDirectory, FileDescription, IoEngine, ReleaseMethod, resident_bytes, resident_bytes_peak,
};
pub use verify::{Problem, Progress, VerifyReport};

/// A result whose error is [`Error`] by default.
pub type Result<T, E = Error> = std::result::Result<T, E>;
