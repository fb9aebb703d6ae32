//! The options of the commands, and the settings that they come to.

use super::names::{Contestants, engines_with_records, key_bytes, mixes, named};
use super::parse;
use crate::config::{
    AnyEngineName, Choice, Contestant, Distribution, Durability, EngineSettings, EvictSettings, GraphName,
    IoSettings, Isolation, KeyKind, LogMethod, LogSettings, Method, MixName, Oo7Operation, Oo7Settings,
    Oo7Size, RecoverySettings, ReleaseName, RunSettings, Skew, TableSettings, TransactionSettings,
    ValueSizes, Workload, YcsbSettings,
};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use std::path::PathBuf;
use std::time::Duration;

/// What all runs have.
#[derive(Clone, Debug, Args)]
pub struct RunArguments {
    /// Print JSON, one object a line
    #[arg(long)]
    pub json: bool,
    /// How long each round lasts at least
    #[arg(long, default_value = "3", value_parser = parse::seconds)]
    pub seconds: Duration,
    /// How many rounds each contestant has
    #[arg(long, default_value = "3", value_parser = parse_positive)]
    pub rounds: usize,
    /// How many threads work, or several numbers, each of which is measured
    #[arg(long, default_value = "1", value_delimiter = ',', value_parser = parse_positive)]
    pub threads: Vec<usize>,
    /// Where files are put; by default the system's folder for temporary files
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// What random choices depend on
    #[arg(long, default_value = "1")]
    pub seed: u64,
}

impl RunArguments {
    /// What they ask for.
    pub fn settings(self) -> RunSettings {
        let Self { seconds, rounds, threads, dir, seed, .. } = self;
        RunSettings { seconds, rounds, threads, clients: vec![1], dir, seed }
    }
}

/// What runs with engines have.
#[derive(Clone, Debug, Args)]
pub struct EngineArguments {
    /// The engines, in the order of their turns; ratios are of the first to the others. With settings of its own, as in
    /// vellum-tx@synced,vellum-tx@no-log, an engine can take part more than once. Several are joined by a plus sign: a
    /// durability, an isolation, `archive`, `checkpoint=SIZE` for --checkpoint-log (`checkpoint=none`: none after loading), and `held`, for which a snapshot is held
    /// open from the first round to the last
    #[arg(long, value_parser = Contestants::Tables, value_delimiter = ',', default_value = "vellum,lmdb")]
    pub engines: Vec<Contestant>,
    /// Their settings.
    #[command(flatten)]
    pub settings: SettingsArguments,
}

/// Settings of engines that keep tables, and of their runs.
#[derive(Clone, Debug, Args)]
pub struct SettingsArguments {
    /// The limit of the pool of an engine that has one
    #[arg(long, default_value = "4GiB", value_parser = parse::size)]
    pub pool: u64,
    /// How long the workload runs before the first round (at most a second where all data is in memory);
    /// by default as long as a round
    #[arg(long, value_parser = parse::seconds)]
    pub warm_up: Option<Duration>,
    /// Fail if vellum's resident size exceeded pool + 16 bytes for each 4 KiB of data + 64 MiB, or its data
    /// grew by more than a tenth under churn
    #[arg(long)]
    pub check: bool,
    /// Whether LMDB writes through its map; auto: whatever was measured to be faster for the workload
    #[arg(long, value_parser = named::<Choice>(), default_value = "auto")]
    pub lmdb_write_map: Choice,
    /// What the commit of a transaction waits for, as each engine's documentation advises for that; in vellum each operation
    /// is a transaction of its own
    #[arg(long, value_parser = named::<Durability>(), default_value = "no-log")]
    pub durability: Durability,
    /// How much log vellum's tables may have before a checkpoint; by default what the engine chooses
    #[arg(long, value_parser = parse::size)]
    pub checkpoint_log: Option<u64>,
    /// How the transactions of vellum-tx are kept apart
    #[arg(long, value_parser = named::<Isolation>(), default_value = "snapshot")]
    pub isolation: Isolation,
    /// Whether vellum's log is archived, to a folder beside the database
    #[arg(long)]
    pub archive: bool,
}

impl SettingsArguments {
    /// What they ask for.
    pub fn settings(self) -> EngineSettings {
        let Self { pool, warm_up, check, lmdb_write_map, durability, checkpoint_log, isolation, archive } =
            self;
        let transactions = TransactionSettings {
            durability,
            isolation,
            checkpoint_log,
            is_archived: archive,
            is_snapshot_held: false,
        };
        EngineSettings { pool, warm_up, check, lmdb_write_map, transactions }
    }
}

/// The table of those workloads that have a single one.
#[derive(Clone, Copy, Debug, Args)]
pub struct TableArguments {
    /// Tuples in the table
    #[arg(long, default_value = "10M", value_parser = parse::count)]
    pub tuples: u64,
    /// What keys are made of; their order is that of the tuples' numbers
    #[arg(long, default_value = "u64", value_parser = named::<KeyKind>())]
    pub keys: KeyKind,
    /// The size of each value in bytes, or the smallest and the largest, between which each tuple has its own
    #[arg(long, visible_alias = "value-bytes", value_name = "N|MIN..MAX", default_value = "120", value_parser = parse::value_sizes)]
    pub values: ValueSizes,
}

impl TableArguments {
    /// What they ask for.
    pub fn settings(self) -> TableSettings {
        let Self { tuples, keys, values } = self;
        TableSettings { tuples, keys, values }
    }
}

/// How tuples are chosen.
#[derive(Clone, Copy, Debug, Args)]
pub struct ChoiceArguments {
    /// Which tuples are used how often, and where short scans begin: all alike, after Zipf's law with an exponent
    /// below 1, the frequent ones spread over the table, or after that law those most often that were inserted last
    #[arg(long, value_name = "uniform|zipf:0.99|latest", default_value = "uniform", value_parser = parse::skew)]
    pub distribution: Skew,
}

/// What runs in batches have.
#[derive(Clone, Copy, Debug, Args)]
pub struct BatchArguments {
    /// Operations in one call; without it each is a call of its own. An engine that has no batches runs them one
    /// after the other
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub batch: Option<u64>,
    /// How many of a hundred operations of a batch are updates (vellum only)
    #[arg(long, default_value = "0", requires = "batch", value_parser = clap::value_parser!(u64).range(0..=100))]
    pub updates: u64,
    /// How many reads of a batch may be under way at once
    #[arg(long, default_value = "256", value_parser = RangedU64ValueParser::<usize>::new().range(1..=4096))]
    pub depth: usize,
}

impl BatchArguments {
    /// What they ask for.
    pub fn workload(&self) -> Workload {
        match self.batch {
            None => Workload::Lookup,
            Some(size) => Workload::Batch { size, updates_percent: self.updates, depth: self.depth },
        }
    }
}

/// What `lab evict` has.
#[derive(Clone, Debug, Args)]
pub struct EvictArguments {
    /// The methods, in the order of their turns
    #[arg(
        long,
        alias = "engines",
        value_parser = named::<ReleaseName>(),
        value_delimiter = ',',
        default_value = "process_madvise,madvise,exmap"
    )]
    pub methods: Vec<ReleaseName>,
    /// The size of the mapping
    #[arg(long, default_value = "1GiB", value_parser = parse::size)]
    pub pool: u64,
    /// Pages that are touched, then released
    #[arg(long, default_value = "512", value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub batch: u64,
}

impl EvictArguments {
    /// What they ask for.
    pub fn settings(self) -> EvictSettings {
        let Self { methods, pool, batch } = self;
        EvictSettings { methods, pool, batch }
    }
}

/// What `lab oo7` has.
#[derive(Clone, Debug, Args)]
pub struct Oo7Arguments {
    /// What keeps the objects, in the order of their turns
    #[arg(long, value_parser = named::<GraphName>(), value_delimiter = ',', default_value = "memory,heap")]
    pub engines: Vec<GraphName>,
    /// What is done
    #[arg(
        long,
        value_parser = named::<Oo7Operation>(),
        value_delimiter = ',',
        default_value = "t1,t1-sparse,t6,q1,q2,q3,q4,q5,q6,q7,q8,t2a,t2b,t2c,t3a,t3b,t3c"
    )]
    pub operations: Vec<Oo7Operation>,
    /// The size of the database
    #[arg(long, value_parser = named::<Oo7Size>(), default_value = "small")]
    pub size: Oo7Size,
    /// Composite parts; more than 500 make a larger database of which a traversal visits at most 2187
    #[arg(long, default_value = "500", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub composites: u32,
    /// How much of the database may be in memory; what is not a page counts for nothing. By default 256 MiB, or what
    /// --memory-limit leaves when a sixteenth and 4 MiB are kept for all else
    #[arg(long, value_parser = parse::size)]
    pub pool: Option<u64>,
    /// Run each operation in a new process within a memory cgroup of this size, with swap, and tell what was swapped; needs root
    #[arg(long, value_parser = parse::size)]
    pub memory_limit: Option<u64>,
}

impl Oo7Arguments {
    /// What they ask for.
    pub fn settings(self) -> Oo7Settings {
        let Self { engines: graphs, operations, size, composites, pool, memory_limit } = self;
        let within = |limit: u64| (limit - limit / 16).saturating_sub(4 << 20).max(limit / 2);
        let pool = pool.unwrap_or_else(|| memory_limit.map_or(256 << 20, within));
        Oo7Settings { graphs, operations, size, composites, pool, memory_limit }
    }
}

/// What `lab io` has.
#[derive(Clone, Debug, Args)]
pub struct IoArguments {
    /// The methods, in the order of their turns
    #[arg(
        long,
        alias = "engines",
        value_parser = named::<Method>(),
        value_delimiter = ',',
        default_value = "blocking,uring_fixed,uring_pool,sequential"
    )]
    pub methods: Vec<Method>,
    /// The size of the file; with --dir it stays there and is used again
    #[arg(long, default_value = "8GiB", value_parser = parse::size)]
    pub size: u64,
    /// Reads in flight, a thread
    #[arg(long, default_value = "128", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub depth: u32,
    /// Pages released in one call
    #[arg(long, default_value = "512", value_parser = RangedU64ValueParser::<usize>::new().range(1..=65536))]
    pub batch: usize,
    /// What may be resident of the mapping
    #[arg(long, default_value = "64MiB", value_parser = parse::size)]
    pub pool: u64,
}

impl IoArguments {
    /// What they ask for.
    pub fn settings(self) -> IoSettings {
        let Self { methods, size, depth, batch, pool } = self;
        IoSettings { methods, size, depth, batch, pool }
    }
}

/// What `lab log` has.
#[derive(Clone, Debug, Args)]
pub struct LogArguments {
    /// The methods, in the order of their turns
    #[arg(
        long,
        alias = "engines",
        value_parser = named::<LogMethod>(),
        value_delimiter = ',',
        default_value = "transactions,log,raw"
    )]
    pub methods: Vec<LogMethod>,
    /// The size of a record
    #[arg(long, default_value = "200", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
    pub record_bytes: usize,
}

impl LogArguments {
    /// What they ask for.
    pub fn settings(self) -> LogSettings {
        let Self { methods, record_bytes } = self;
        LogSettings { methods, record_bytes }
    }
}

/// The records of `lab transactions`, and what a transaction does with them.
#[derive(Clone, Copy, Debug, Args)]
pub struct TransactionArguments {
    /// Records in the table
    #[arg(long, default_value = "1M", value_parser = parse::count)]
    pub records: u64,
    /// The size of each value
    #[arg(long, default_value = "120", value_parser = RangedU64ValueParser::<usize>::new().range(16..=1 << 20))]
    pub value_bytes: usize,
    /// How many records a transaction reads
    #[arg(long, default_value = "0", value_parser = RangedU64ValueParser::<usize>::new().range(0..=10_000))]
    pub reads: usize,
    /// How many records it changes
    #[arg(long, default_value = "4", value_parser = RangedU64ValueParser::<usize>::new().range(0..=10_000))]
    pub updates: usize,
    /// Whether no two threads use the same record, though the same leaves: each conflict is a false one then. A transaction
    /// reads a range of eight records, changes one, and removes another or inserts it again
    #[arg(long, conflicts_with_all = ["reads", "updates"])]
    pub disjoint: bool,
}

impl TransactionArguments {
    /// What they ask for.
    pub fn workload(self) -> Workload {
        let Self { records, reads, updates, disjoint: is_disjoint, .. } = self;
        Workload::Transactions { records, reads, updates, is_disjoint }
    }
}

/// What `lab recovery` has.
#[derive(Clone, Debug, Args)]
pub struct RecoveryArguments {
    /// How much log the killed process leaves, or several sizes, each of which is measured
    #[arg(long, default_value = "128MiB,512MiB,1GiB", value_delimiter = ',', value_parser = parse::size)]
    pub log: Vec<u64>,
    /// The limit of the pool, or several, each of which is measured with each size of the log
    #[arg(long, default_value = "4GiB", value_delimiter = ',', value_parser = parse::size)]
    pub pool: Vec<u64>,
    /// TPC-C with so many warehouses makes the log, instead of updates of random records
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub warehouses: Option<u32>,
    /// The records and their updates.
    #[command(flatten)]
    pub records: TransactionArguments,
    /// Whether the files leave the system's cache before the database is opened, as after a crash of the machine
    #[arg(long)]
    pub cold: bool,
}

impl RecoveryArguments {
    /// What they ask for.
    pub fn settings(self) -> RecoverySettings {
        let Self { log, pool, warehouses, records, cold } = self;
        RecoverySettings {
            workload: warehouses.map_or(records.workload(), |warehouses| Workload::Tpcc { warehouses }),
            value_bytes: records.value_bytes,
            log,
            pools: pool,
            is_cold: cold,
        }
    }
}

/// The smallest field, in bytes.
const FIELD_BYTES_MIN: u64 = crate::config::FIELD_BYTES_MIN as u64;

/// What `lab ycsb` has.
#[derive(Clone, Debug, Args)]
pub struct YcsbArguments {
    /// The workloads, one after the other, each of which loads anew
    #[arg(long, value_parser = mixes(), ignore_case = true, value_delimiter = ',', required = true)]
    pub workload: Vec<MixName>,
    /// The engines, in the order of their turns; ratios are of the first to the others
    #[arg(long, value_parser = engines_with_records(), value_delimiter = ',', default_value = "vellum,lmdb")]
    pub engines: Vec<AnyEngineName>,
    /// Which records are used how often; by default the latest in D, zipfian otherwise
    #[arg(long, value_parser = named::<Distribution>())]
    pub distribution: Option<Distribution>,
    /// Records that are loaded
    #[arg(long, default_value = "1M", value_parser = parse::count)]
    pub records: u64,
    /// The size of each key: 8 or 16
    #[arg(long, default_value = "8", value_parser = key_bytes())]
    pub key_bytes: usize,
    /// Fields of a record
    #[arg(long, default_value = "10", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1000))]
    pub fields: usize,
    /// The size of each field
    #[arg(long, default_value = "100", value_parser = RangedU64ValueParser::<usize>::new().range(FIELD_BYTES_MIN..=1 << 20))]
    pub field_bytes: usize,
    /// The size of each value, which is a whole record, instead of --field-bytes; dashmap and papaya, where sizes must
    /// be known when the lab is built, have 200 and 1000 bytes, and 8 with keys of 8
    #[arg(long, conflicts_with = "field_bytes", value_parser = RangedU64ValueParser::<usize>::new().range(8..=1 << 20))]
    pub value_bytes: Option<usize>,
    /// The longest scan of E, in records
    #[arg(long, default_value = "100", value_parser = clap::value_parser!(u64).range(1..))]
    pub scan_max: u64,
    /// Whether RocksDB keeps a log and syncs each write, as in `lab put`; auto: if an engine of single records takes part
    #[cfg(feature = "rocksdb")]
    #[arg(long, value_parser = named::<Choice>(), default_value = "auto")]
    pub rocksdb_sync: Choice,
}

impl YcsbArguments {
    /// What they ask for.
    pub fn settings(self) -> YcsbSettings {
        #[cfg(feature = "rocksdb")]
        let rocksdb_sync = self.rocksdb_sync;
        #[cfg(not(feature = "rocksdb"))]
        let rocksdb_sync = Choice::Auto;
        let Self {
            workload,
            engines,
            distribution,
            records,
            key_bytes,
            fields,
            field_bytes,
            value_bytes,
            scan_max,
            ..
        } = self;
        YcsbSettings {
            workload,
            engines,
            distribution,
            records,
            key_bytes,
            fields,
            field_bytes,
            value_bytes,
            scan_max,
            rocksdb_sync,
        }
    }
}

fn parse_positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=1024) => Ok(number),
        _ => Err("it must be between 1 and 1024".to_owned()),
    }
}
