//! Engines that keep single records, each durable when its operation returns (where the engine promises that): the
//! interface of the workloads `put`, `get`, `update` and `delete`, and through [`RecordStore`](super::record_store)
//! of YCSB.
//!
//! It is apart from [`Engine`](super::Engine) because most of these engines have no order, and durability is the point.

use crate::Result;
use std::ops::ControlFlow;
use std::path::Path;

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
pub trait RecordEngine: Sized + Send + Sync + 'static {
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
