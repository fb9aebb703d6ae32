//! The engines that the workloads compare, with one small interface and static dispatch.
//!
//! Each engine is used as its own documentation recommends for speed, and does the same work as the others:
//! a lookup copies the value into a buffer of the caller, a scan shows every key and value.
//!
//! [`Engine`] is one table of tuples; [`store::Store`] is several tables with keys and values
//! of any size, and transactions where the engine has them; [`records::RecordEngine`] keeps single records, durable one
//! by one, and becomes a `Store` of one table by [`record_store::RecordStore`]. [`graphs`] are what keeps objects that refer to each
//! other.

pub mod bf_tree;
pub mod by_name;
pub mod counted;
pub mod dashmap;
pub mod fjall;
pub mod fjall_table;
pub mod graphs;
pub mod hash_table;
#[cfg(feature = "rocksdb")]
mod key_locks;
pub mod lmdb;
pub mod lmdb_store;
#[cfg(test)]
pub mod memory;
#[cfg(test)]
pub mod memory_store;
pub mod papaya;
pub mod pmem;
pub mod raw;
pub mod record_store;
pub mod records;
pub mod redb;
pub mod redb_table;
#[cfg(feature = "rocksdb")]
pub mod rocksdb;
#[cfg(feature = "rocksdb")]
pub mod rocksdb_records;
#[cfg(feature = "rocksdb")]
pub mod rocksdb_transactions;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod store;
pub mod vellum;
pub mod vellum_snapshots;
pub mod vellum_store;
pub mod vellum_transactions;

use crate::Result;
use crate::config::{Choice, Durability, Isolation, Specification, TransactionSettings, Workload};
use crate::keys::TEXT_BYTES_MAX;
use ::vellum::IsolationLevel;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// What an engine is told when it is opened.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// An empty folder of its own.
    pub directory: PathBuf,
    /// The limit of its buffer pool, in bytes, if it has one.
    pub pool_bytes: u64,
    /// How many tuples will be loaded.
    pub tuples: u64,
    /// The size of each key, in bytes, where all have the same; zero otherwise.
    pub key_bytes: usize,
    /// The size of each value, in bytes, where all have the same; zero otherwise.
    pub value_bytes: usize,
    /// The sizes of the largest key and of the largest value of a table of tuples, in bytes.
    pub bytes_max: (usize, usize),
    /// How much data will be stored, in bytes of keys and values.
    pub payload_bytes: u64,
    /// How many threads will use it at once, at most.
    pub threads_max: usize,
    /// Whether LMDB writes through its map.
    pub lmdb_write_map: Choice,
    /// How transactions are run.
    pub transactions: TransactionSettings,
    /// How many reads one batch of lookups may have under way.
    pub read_depth: usize,
}

impl EngineOptions {
    /// What a specification says of an engine whose files lie in this folder, and which will have so many bytes of keys and
    /// values.
    pub fn new(specification: &Specification, directory: PathBuf, payload_bytes: u64) -> Self {
        let Specification { workload, keys, .. } = specification;
        let is_snapshot_held = specification.transactions.is_snapshot_held
            || matches!(workload, Workload::Queue { is_snapshot_held: true, .. });
        Self {
            directory,
            pool_bytes: specification.pool_bytes,
            tuples: specification.tuples,
            key_bytes: if workload.has_records() { workload.key_bytes() } else { keys.bytes() },
            value_bytes: specification.values.same(),
            bytes_max: (
                if keys.bytes() == 0 { TEXT_BYTES_MAX } else { keys.bytes() },
                workload.value_bytes_max(specification.values),
            ),
            payload_bytes,
            threads_max: specification.threads_max * specification.clients_max
                + usize::from(is_snapshot_held),
            lmdb_write_map: match (specification.lmdb_write_map, workload) {
                // Measured: see `lmdb`.
                (Choice::Auto, Workload::Update | Workload::Delete) => Choice::No,
                (choice, _) => choice,
            },
            transactions: specification.transactions,
            read_depth: workload.read_depth(),
        }
    }

    /// The options of a database of Vellum.
    pub fn vellum(&self) -> ::vellum::Options {
        let options = ::vellum::Options::default().pool_bytes(self.pool_bytes).read_depth(self.read_depth);
        let options = options.isolation(match self.transactions.isolation {
            Isolation::Snapshot => IsolationLevel::Snapshot,
            Isolation::Serializable => IsolationLevel::Serializable,
        });
        let options = match self.transactions.checkpoint_log {
            Some(bytes) => options.checkpoint_log_bytes(bytes).background_checkpoints(bytes < u64::MAX),
            None => options,
        };
        let options = if self.transactions.is_archived {
            options.log_archive(self.directory.join("archive"))
        } else {
            options
        };
        match self.transactions.durability {
            Durability::NoLog => options.log(false),
            Durability::Deferred => options.durability(::vellum::Durability::Deferred),
            Durability::Buffered => options.durability(::vellum::Durability::Buffered),
            Durability::Synced => options.durability(::vellum::Durability::Synced),
        }
    }
}

/// An engine that runs, whatever it stores.
pub trait Instance: Sized + Sync {
    /// What a reader of the figures should know about how this engine is run.
    fn notes(&self) -> Vec<String>;

    /// The size of what is stored, in bytes, as it lies on storage.
    fn data_bytes(&self) -> Result<u64>;

    /// The most data that it can hold in memory, in bytes, as far as is known.
    fn cache_bytes_max(&self) -> u64;

    /// Whatever the engine counts about itself.
    fn statistics(&self) -> Result<serde_json::Value>;

    /// Closes it. Its files may be removed afterwards.
    fn close(self) -> Result<()>;
}

/// A store of tuples, shared by threads.
pub trait Engine: Instance {
    /// Reads on behalf of one thread.
    type Reader<'a>: Reader
    where
        Self: 'a;
    /// Writes on behalf of one thread.
    type Writer<'a>: Writer
    where
        Self: 'a;

    /// Loads an empty store with tuples in the order of their keys, on behalf of one thread.
    type Loader<'a>: Writer
    where
        Self: 'a;

    /// Whether several writers may be at work at the same time.
    const CONCURRENT_WRITERS: bool;

    /// Creates an empty store.
    fn create(options: &EngineOptions) -> Result<Self>;

    /// A reader for the calling thread. It sees all tuples of finished writers.
    fn reader(&self) -> Result<Self::Reader<'_>>;

    /// A writer for the calling thread.
    fn writer(&self) -> Result<Self::Writer<'_>>;

    /// Begins to load the empty store in the order of keys, in the way that the engine recommends for that.
    fn loader(&self) -> Result<Self::Loader<'_>>;
}

/// One of a batch: a key, and its new value if it is to be updated.
pub type Operation<K> = (K, Option<Vec<u8>>);

/// Reads tuples.
pub trait Reader {
    /// Copies the value of `key` into `value`, whose contents are replaced; `false` if there is none.
    fn lookup(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Runs many operations and shows the place of each lookup among them, with the value that it found, to `visit`. An
    /// update is of a tuple that exists. By default one after the other, and lookups only.
    fn batch<K, F>(&mut self, operations: &[Operation<K>], mut visit: F) -> Result<()>
    where
        K: AsRef<[u8]>,
        F: FnMut(usize, Option<&[u8]>) -> Result<()>,
    {
        let mut value = Vec::new();
        for (place, (key, update)) in operations.iter().enumerate() {
            if update.is_some() {
                return Err("only vellum updates in batches".into());
            }
            let found = self.lookup(key.as_ref(), &mut value)?;
            visit(place, found.then_some(&value[..]))?;
        }
        Ok(())
    }

    /// Shows all tuples from `first` on, in the order of their keys, until `visit` breaks off.
    fn scan<F>(&mut self, first: &[u8], visit: F) -> Result<()>
    where
        F: FnMut(&[u8], &[u8]) -> ControlFlow<()>;

    /// [`scan`](Self::scan), of which it is known that `visit` breaks off after so many tuples at the latest.
    fn scan_some<F>(&mut self, first: &[u8], _tuples: u64, visit: F) -> Result<()>
    where
        F: FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    {
        self.scan(first, visit)
    }
}

/// Inserts, changes and removes tuples.
pub trait Writer {
    /// Inserts a tuple whose key is new.
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Gives a tuple that is there another value. By default it is inserted: most engines replace what is there.
    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.insert(key, value)
    }

    /// Removes a tuple; `false` if there is none with this key.
    fn remove(&mut self, key: &[u8]) -> Result<bool>;

    /// Makes all that was done visible to readers; it need not be durable. Does nothing by default.
    fn finish(self) -> Result<()>
    where
        Self: Sized,
    {
        Ok(())
    }
}
