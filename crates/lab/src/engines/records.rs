//! Engines that keep single records, each durable when its operation returns (where the engine promises that): the
//! interface of the workloads `put`, `get`, `update` and `delete`, and through [`RecordStore`](super::record_store)
//! of YCSB.
//!
//! It is apart from [`Engine`](super::Engine) because most of these engines have no order, and durability is the point.

use super::dashmap::Dash;
use super::papaya::Papaya;
use super::pmem::Pmem;
#[cfg(feature = "rocksdb")]
use super::rocksdb_records::Rocks;
use crate::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::path::Path;
use vellum_pmem::{Fixed, Variable};

/// Engines that keep records, by name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
#[value(rename_all = "snake_case")]
#[serde(rename_all = "snake_case")]
pub enum RecordEngineName {
    /// This project's store for persistent memory, with records of one size if the sizes are built in
    Pmem,
    /// The same, with records of any size
    PmemVariable,
    /// A hash table in memory
    Dashmap,
    /// Another, whose readers take no locks
    Papaya,
    /// RocksDB with synced writes
    #[cfg(feature = "rocksdb")]
    Rocksdb,
}

/// What is done with an engine whose type is known by its name and the sizes of its records.
pub trait WithRecordEngine {
    /// What comes of it.
    type Output;

    /// Does it.
    fn with<E: RecordEngine + 'static>(self) -> Self::Output;
}

impl RecordEngineName {
    /// The name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pmem => "pmem",
            Self::PmemVariable => "pmem_variable",
            Self::Dashmap => "dashmap",
            Self::Papaya => "papaya",
            #[cfg(feature = "rocksdb")]
            Self::Rocksdb => "rocksdb",
        }
    }

    /// Whether it can show records in the order of their keys.
    pub fn is_ordered(self) -> bool {
        match self {
            Self::Pmem | Self::PmemVariable | Self::Dashmap | Self::Papaya => false,
            #[cfg(feature = "rocksdb")]
            Self::Rocksdb => true,
        }
    }

    /// Does something with the engine that has this name, for keys and values of these sizes.
    ///
    /// # Errors
    /// If the engine needs sizes that are built in, and these are not.
    pub fn with<W: WithRecordEngine>(
        self,
        key_bytes: usize,
        value_bytes: usize,
        what: W,
    ) -> Result<W::Output> {
        Ok(match (self, (key_bytes, value_bytes)) {
            (Self::Pmem, (8, 8)) => what.with::<Pmem<Fixed<8, 8>>>(),
            (Self::Pmem, (8, 200)) => what.with::<Pmem<Fixed<8, 200>>>(),
            (Self::Pmem, (8, 1000)) => what.with::<Pmem<Fixed<8, 1000>>>(),
            (Self::Pmem, (16, 200)) => what.with::<Pmem<Fixed<16, 200>>>(),
            (Self::Pmem, (16, 1000)) => what.with::<Pmem<Fixed<16, 1000>>>(),
            (Self::Pmem | Self::PmemVariable, _) => what.with::<Pmem<Variable>>(),
            (Self::Dashmap, (8, 8)) => what.with::<Dash<8, 8>>(),
            (Self::Dashmap, (8, 200)) => what.with::<Dash<8, 200>>(),
            (Self::Dashmap, (8, 1000)) => what.with::<Dash<8, 1000>>(),
            (Self::Dashmap, (16, 200)) => what.with::<Dash<16, 200>>(),
            (Self::Dashmap, (16, 1000)) => what.with::<Dash<16, 1000>>(),
            (Self::Papaya, (8, 8)) => what.with::<Papaya<8, 8>>(),
            (Self::Papaya, (8, 200)) => what.with::<Papaya<8, 200>>(),
            (Self::Papaya, (8, 1000)) => what.with::<Papaya<8, 1000>>(),
            (Self::Papaya, (16, 200)) => what.with::<Papaya<16, 200>>(),
            (Self::Papaya, (16, 1000)) => what.with::<Papaya<16, 1000>>(),
            (Self::Dashmap | Self::Papaya, _) => {
                return Err(format!(
                    "hash tables are built for some sizes only, and not for keys of {key_bytes} and values of \
                     {value_bytes} bytes; use --key-bytes 8 or 16 with --value-bytes 200 or 1000, or 8 with 8"
                )
                .into());
            }
            #[cfg(feature = "rocksdb")]
            (Self::Rocksdb, _) => what.with::<Rocks>(),
        })
    }
}

/// What an engine is told when it is made.
#[derive(Clone, Copy, Debug)]
pub struct RecordOptions {
    /// How many records there will be, about.
    pub records: u64,
    /// The size of each key, in bytes.
    pub key_bytes: usize,
    /// The size of each value, in bytes.
    pub value_bytes: usize,
}

/// A store of records, shared by threads.
pub trait RecordEngine: Sized + Sync {
    /// Works on behalf of one thread.
    type Handle<'a>: RecordHandle
    where
        Self: 'a;

    /// Makes an empty store in an empty folder.
    fn create(folder: &Path, options: &RecordOptions) -> Result<Self>;

    /// What a reader of the figures should know.
    fn note(&self) -> String;

    /// Finishes what goes on in the background after loading, so that it is not measured.
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    /// A handle for the calling thread.
    fn handle(&self) -> Result<Self::Handle<'_>>;

    /// The size of what is stored, in bytes, as it lies on storage; of keys and values where it lies in memory alone.
    fn data_bytes(&self) -> Result<u64>;

    /// Whatever the engine counts about itself.
    fn statistics(&self) -> Result<serde_json::Value> {
        Ok(serde_json::Value::Null)
    }
}

/// One thread's work.
pub trait RecordHandle {
    /// Stores a record.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Copies a value to a buffer, whose contents are replaced; `false` if there is none.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Changes a value without changing its length; no other thread changes it in between. `None` if there is none. `change`
    /// may be called again, with the value as it is then.
    fn modify<T>(&mut self, key: &[u8], change: impl FnMut(&mut [u8]) -> T) -> Result<Option<T>>;

    /// Adds one to the last eight bytes of a value; `false` if there is none.
    #[inline]
    fn update(&mut self, key: &[u8]) -> Result<bool> {
        Ok(self.modify(key, add_one)?.is_some())
    }

    /// Removes a record; `false` if there is none, where the engine finds that out.
    fn delete(&mut self, key: &[u8]) -> Result<bool>;

    /// Shows all records, in whatever order, while no thread changes any, until `visit` breaks off.
    fn for_each(&mut self, visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()>;

    /// Shows all records from `first` on, in the order of their keys, until `visit` breaks off.
    ///
    /// # Errors
    /// If the engine has no order, which is so by default.
    fn scan(&mut self, _first: &[u8], _visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
        Err("this engine keeps its records in no order, so there are no scans".into())
    }
}

/// Adds one to the number in the last eight bytes: the change that updates make.
fn add_one(value: &mut [u8]) {
    if let Some(last) = value.last_chunk_mut::<8>() {
        *last = u64::from_le_bytes(*last).wrapping_add(1).to_le_bytes();
    }
}
