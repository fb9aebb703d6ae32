//! Engines that keep single records, each durable when its operation returns (where the engine promises that): the
//! interface of the workloads `put`, `get`, `update` and `delete`.
//!
//! It is apart from [`Engine`](super::Engine) because these engines have no order, and durability is the point.

use crate::Result;
use std::path::Path;

/// What an engine is told when it is made.
#[derive(Clone, Copy, Debug)]
pub struct RecordOptions {
    /// How many records there will be.
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
}

/// One thread's work.
pub trait RecordHandle {
    /// Stores a record.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Copies a value to a buffer, whose contents are replaced; `false` if there is none.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Adds one to the last eight bytes of a value; `false` if there is none.
    fn update(&mut self, key: &[u8]) -> Result<bool>;

    /// Removes a record; `false` if there is none.
    fn delete(&mut self, key: &[u8]) -> Result<bool>;
}

/// Adds one to the number in the last eight bytes: the change that updates make.
pub fn add_one(value: &mut [u8]) {
    if let Some(last) = value.last_chunk_mut::<8>() {
        *last = u64::from_le_bytes(*last).wrapping_add(1).to_le_bytes();
    }
}
