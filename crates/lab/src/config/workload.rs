//! What is done, and with what: all that an engine's process must know.

use super::{
    AnyEngineName, Choice, Distribution, KeyKind, Mix, Order, Skew, TransactionSettings, ValueSizes,
};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// What is done with a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// Point lookups.
    Lookup,
    /// Point lookups, and updates among them, so many in one call.
    Batch {
        /// Operations in one call.
        size: u64,
        /// How many of a hundred are updates.
        updates_percent: u64,
        /// How many reads may be under way at once.
        depth: usize,
    },
    /// Scans of so many tuples; of the whole table if zero.
    Scan {
        /// Tuples a scan.
        length: u64,
    },
    /// Ranges of so many tuples from random keys, each of which is one operation.
    Range {
        /// Tuples a range.
        length: u64,
    },
    /// Insertion of the whole table, anew in each round.
    Insert,
    /// Other values for random tuples.
    Update,
    /// Removal of all tuples, of a table that each round loads anew.
    Delete,
    /// Deletes and re-inserts of all tuples, with values of other sizes.
    Churn,
    /// The transactions of TPC-C.
    Tpcc {
        /// How many warehouses there are.
        warehouses: u32,
    },
    /// Reads and updates of a few random records in each transaction.
    Transactions {
        /// How many records there are.
        records: u64,
        /// How many records a transaction reads.
        reads: usize,
        /// How many it changes.
        updates: usize,
        /// Whether no two threads use the same record, though the same leaves.
        is_disjoint: bool,
    },
    /// Transfers between accounts.
    Bank {
        /// How many accounts there are.
        accounts: u32,
    },
    /// Records that are appended at one end and removed at the other.
    Queue {
        /// How many a queue has.
        records: u64,
        /// Whether a transaction is held open meanwhile.
        is_snapshot_held: bool,
    },
    /// A workload of YCSB.
    Ycsb {
        /// Which one.
        mix: Mix,
        /// Which records are used how often.
        distribution: Distribution,
        /// The size of each key, in bytes.
        key_bytes: usize,
        /// Fields of a record.
        fields: usize,
        /// The longest scan, in records.
        scan_max: u64,
    },
}

impl Workload {
    /// How many reads of one batch may be under way at once.
    pub fn read_depth(self) -> usize {
        match self {
            Self::Batch { depth, .. } => depth,
            _ => 256,
        }
    }

    /// The size of each key of a record, in bytes; zero where they differ.
    pub fn key_bytes(self) -> usize {
        match self {
            Self::Ycsb { key_bytes, .. } => key_bytes,
            _ => 0,
        }
    }

    /// Whether it uses records of several tables, and not one table of tuples.
    pub fn has_records(self) -> bool {
        use Workload::{Bank, Queue, Tpcc, Transactions, Ycsb};
        matches!(self, Tpcc { .. } | Transactions { .. } | Bank { .. } | Queue { .. } | Ycsb { .. })
    }

    /// Whether it changes a table of tuples, or makes one.
    pub fn changes_table(self) -> bool {
        matches!(self, Self::Insert | Self::Update | Self::Delete | Self::Churn)
    }

    /// Whether each round has a table of its own.
    pub fn has_table_each_round(self) -> bool {
        matches!(self, Self::Insert | Self::Delete)
    }

    /// Why it chooses no tuples, if so.
    pub fn without_choice(self) -> Option<&'static str> {
        match self {
            Self::Insert => Some("lab insert inserts each tuple once"),
            Self::Delete => Some("lab delete deletes each tuple once"),
            Self::Scan { length: 0 } => {
                Some("lab scan shows the whole table; ranges are for lab range, or lab scan --length N")
            }
            _ => None,
        }
    }

    /// The largest value that is stored in a table whose values have these sizes, in bytes.
    pub fn value_bytes_max(self, values: ValueSizes) -> usize {
        if self == Self::Churn { values.spread().max } else { values.max }
    }

    /// Whether what is stored is meant to grow after it was loaded, or may: values of other sizes find their leaves full.
    pub fn grows(self) -> bool {
        matches!(self, Self::Tpcc { .. } | Self::Queue { .. } | Self::Update)
            || matches!(self, Self::Ycsb { mix, .. } if mix.inserts())
    }

    /// The name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lookup | Self::Batch { .. } => "lookup",
            Self::Scan { .. } => "scan",
            Self::Range { .. } => "range",
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Churn => "churn",
            Self::Tpcc { .. } => "tpcc",
            Self::Transactions { .. } => "transactions",
            Self::Bank { .. } => "bank",
            Self::Queue { .. } => "queue",
            Self::Ycsb { mix, .. } => mix.as_str(),
        }
    }
}

/// Everything that an engine's process must know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Specification {
    /// Which engine.
    pub engine: AnyEngineName,
    /// What to do with it.
    pub workload: Workload,
    /// Tuples in the table; in all tables where there are several.
    pub tuples: u64,
    /// What keys are made of, where there is one table of tuples.
    pub keys: KeyKind,
    /// The sizes of values; zero where a workload on records has its own.
    pub values: ValueSizes,
    /// Which tuples are used how often.
    pub skew: Skew,
    /// The limit of the engine's pool, in bytes.
    pub pool_bytes: u64,
    /// The most threads of any round.
    pub threads_max: usize,
    /// The most clients of a thread.
    pub clients_max: usize,
    /// How long a round lasts at least.
    pub duration: Duration,
    /// How long the workload runs, at most, before the first round.
    pub warm_up: Duration,
    /// What random choices depend on.
    pub seed: u64,
    /// The order in which tuples are inserted.
    pub order: Order,
    /// Whether LMDB writes through its map.
    pub lmdb_write_map: Choice,
    /// How transactions are run.
    pub transactions: TransactionSettings,
    /// A folder for this engine alone.
    pub directory: PathBuf,
}
