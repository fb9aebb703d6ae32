//! The engines, by name.

use super::Named;
use serde::{Deserialize, Serialize};

/// Engines that keep tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineName {
    /// This project's engine.
    Vellum,
    /// The same, whose records are kept in transactions.
    VellumTx,
    /// LMDB through the crate `heed`.
    Lmdb,
    /// redb.
    Redb,
    /// fjall.
    Fjall,
    /// The Bf-Tree of Microsoft Research.
    BfTree,
    /// Vellum's tree on a pool of the classic kind.
    HashTable,
    /// No engine.
    Raw,
    /// RocksDB through the crate `rocksdb`.
    #[cfg(feature = "rocksdb")]
    Rocksdb,
    /// SQLite through the crate `rusqlite`.
    #[cfg(feature = "sqlite")]
    Sqlite,
}

impl Named for EngineName {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Vellum, "vellum", "This project's engine"),
        (
            Self::VellumTx,
            "vellum-tx",
            "The same, in transactions; lookups and scans of one table read by one transaction a thread",
        ),
        (Self::Lmdb, "lmdb", "LMDB through the crate `heed`"),
        (Self::Redb, "redb", "redb"),
        (Self::Fjall, "fjall", "fjall"),
        (Self::BfTree, "bf-tree", "Microsoft's Bf-Tree, which has a single table of tuples"),
        (
            Self::HashTable,
            "hash-table",
            "Vellum's tree on a pool of the classic kind: frames, found by a concurrent hash table",
        ),
        (
            Self::Raw,
            "raw",
            "No engine: one blocking direct read of a page for each lookup, the place of which is computed",
        ),
        #[cfg(feature = "rocksdb")]
        (Self::Rocksdb, "rocksdb", "RocksDB through the crate `rocksdb`"),
        #[cfg(feature = "sqlite")]
        (Self::Sqlite, "sqlite", "SQLite through the crate `rusqlite`"),
    ];
}

impl EngineName {
    /// Whether it has a single table of tuples, and no records.
    pub fn has_one_table(self) -> bool {
        matches!(self, Self::Raw | Self::HashTable | Self::BfTree)
    }
}

/// Engines that keep single records.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordEngineName {
    /// This project's store for persistent memory, with records of one size if the sizes are built in.
    Pmem,
    /// The same, with records of any size.
    PmemVariable,
    /// A hash table in memory.
    Dashmap,
    /// Another, whose readers take no locks.
    Papaya,
    /// RocksDB with synced writes.
    #[cfg(feature = "rocksdb")]
    Rocksdb,
}

impl Named for RecordEngineName {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (
            Self::Pmem,
            "pmem",
            "This project's store for persistent memory, with records of one size if the sizes are built in",
        ),
        (Self::PmemVariable, "pmem_variable", "The same, with records of any size"),
        (Self::Dashmap, "dashmap", "A hash table in memory"),
        (Self::Papaya, "papaya", "Another, whose readers take no locks"),
        #[cfg(feature = "rocksdb")]
        (Self::Rocksdb, "rocksdb", "RocksDB with synced writes"),
    ];
}

impl RecordEngineName {
    /// Whether it can show records in the order of their keys.
    pub fn is_ordered(self) -> bool {
        match self {
            Self::Pmem | Self::PmemVariable | Self::Dashmap | Self::Papaya => false,
            #[cfg(feature = "rocksdb")]
            Self::Rocksdb => true,
        }
    }
}

/// Any engine: one that keeps tables, or one that keeps single records.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnyEngineName {
    /// Tables.
    Tables(EngineName),
    /// Single records, as `lab put` runs them.
    Records(RecordEngineName),
}

impl AnyEngineName {
    /// The name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tables(engine) => engine.as_str(),
            Self::Records(engine) => engine.as_str(),
        }
    }

    /// Whether it can show records in the order of their keys.
    pub fn is_ordered(self) -> bool {
        match self {
            Self::Tables(_) => true,
            Self::Records(engine) => engine.is_ordered(),
        }
    }

    /// All of them. RocksDB is among them once; what it is run as is decided later.
    pub fn all() -> Vec<Self> {
        let mut all: Vec<_> = EngineName::ALL.iter().map(|(engine, ..)| Self::Tables(*engine)).collect();
        for engine in RecordEngineName::ALL.iter().map(|(engine, ..)| Self::Records(*engine)) {
            if all.iter().all(|other| other.as_str() != engine.as_str()) {
                all.push(engine);
            }
        }
        all
    }

    /// Those that have several tables, or single records.
    pub fn with_records() -> Vec<Self> {
        let mut all = Self::all();
        all.retain(|engine| !matches!(engine, Self::Tables(engine) if engine.has_one_table()));
        all
    }

    /// The engine of single records that has this name.
    pub fn single(self) -> Option<RecordEngineName> {
        let name = self.as_str();
        RecordEngineName::ALL.iter().find(|(_, other, _)| *other == name).map(|(engine, ..)| *engine)
    }
}

impl From<EngineName> for AnyEngineName {
    fn from(engine: EngineName) -> Self {
        Self::Tables(engine)
    }
}

/// What a change waits for, or the commit of a transaction. What an engine does not have it replaces by the next safer that
/// it has; its remarks say what it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// For nothing, and there is no log where the engine can do without.
    NoLog,
    /// For nothing: the log is written and synced within a millisecond, or as soon as the device is free.
    Deferred,
    /// Until the operating system has the log.
    Buffered,
    /// Until the device has the log.
    Synced,
}

impl Named for Durability {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::NoLog, "no-log", "Nothing; there is no log where the engine can do without"),
        (Self::Deferred, "deferred", "Nothing; the log is written and synced soon after"),
        (Self::Buffered, "buffered", "The operating system has the log"),
        (Self::Synced, "synced", "The device has the log"),
    ];
}

/// How transactions of Vellum are kept apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Each sees a snapshot, and the first to change a record wins.
    Snapshot,
    /// Also what they have read is tested when they are committed.
    Serializable,
}

impl Named for Isolation {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Snapshot, "snapshot", "Each sees a snapshot, and the first to change a record wins"),
        (Self::Serializable, "serializable", "Also what they have read is tested when they are committed"),
    ];
}

/// A choice that the lab makes unless it is forced; how it does so, the option says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// Left to the lab.
    Auto,
    /// Always.
    Yes,
    /// Never.
    No,
}

impl Named for Choice {
    const ALL: &'static [(Self, &'static str, &'static str)] =
        &[(Self::Auto, "auto", "Left to the lab"), (Self::Yes, "yes", "Always"), (Self::No, "no", "Never")];
}
