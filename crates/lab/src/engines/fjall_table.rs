//! fjall with a single table: a keyspace without transactions, whose operations are atomic one by one.
//!
//! Settings are those of its [transactions](super::fjall). What loads sorted input without a journal (`start_ingestion`) has a
//! type that cannot be named outside of fjall, so a bulk load is one of single inserts.

use super::fjall::{MEMTABLE_BYTES, persist};
use super::{Engine, EngineOptions, Instance, Reader, Writer};
use crate::Result;
use bytesize::ByteSize;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use serde_json::json;
use std::ops::ControlFlow;

/// A database of one table.
pub struct FjallTable {
    database: Database,
    table: Keyspace,
    persist: Option<PersistMode>,
    pool_bytes: u64,
    memtable_bytes: u64,
}

/// Reads the table.
pub struct FjallReader<'a>(&'a Keyspace);

/// Writes the table.
pub struct FjallWriter<'a>(&'a FjallTable);

impl Engine for FjallTable {
    type Reader<'a> = FjallReader<'a>;
    type Writer<'a> = FjallWriter<'a>;
    type Loader<'a> = FjallWriter<'a>;

    const CONCURRENT_WRITERS: bool = true;

    fn create(options: &EngineOptions) -> Result<Self> {
        let database = Database::builder(options.directory.join("fjall"))
            .cache_size(options.pool_bytes / 4 * 3)
            .manual_journal_persist(true)
            .open()?;
        let memtable_bytes = (options.pool_bytes / 4).clamp(*MEMTABLE_BYTES.start(), *MEMTABLE_BYTES.end());
        let settings = || KeyspaceCreateOptions::default().max_memtable_size(memtable_bytes);
        let table = database.keyspace("tuples", settings)?;
        Ok(Self {
            database,
            table,
            persist: persist(options),
            pool_bytes: options.pool_bytes,
            memtable_bytes,
        })
    }

    fn reader(&self) -> Result<FjallReader<'_>> {
        Ok(FjallReader(&self.table))
    }

    fn writer(&self) -> Result<FjallWriter<'_>> {
        Ok(FjallWriter(self))
    }

    fn loader(&self) -> Result<FjallWriter<'_>> {
        Engine::writer(self)
    }
}

impl Instance for FjallTable {
    fn notes(&self) -> Vec<String> {
        vec![format!(
            "fjall: no transactions, persist mode {:?}, no compression, {} of cache, a write buffer of {}; a key is looked \
             up before it is removed",
            self.persist,
            ByteSize(self.pool_bytes / 4 * 3),
            ByteSize(self.memtable_bytes),
        )]
    }

    fn data_bytes(&self) -> Result<u64> {
        Ok(self.database.disk_space()?)
    }

    fn cache_bytes_max(&self) -> u64 {
        self.pool_bytes / 4 * 3
    }

    fn statistics(&self) -> Result<serde_json::Value> {
        let (write_buffer_bytes, journals) =
            (self.database.write_buffer_size(), self.database.journal_count());
        Ok(json!({ "write_buffer_bytes": write_buffer_bytes, "journals": journals }))
    }

    fn close(self) -> Result<()> {
        Ok(())
    }
}

impl Reader for FjallReader<'_> {
    fn lookup(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let Some(found) = self.0.get(key)? else { return Ok(false) };
        value.clear();
        value.extend_from_slice(&found);
        Ok(true)
    }

    fn scan<F>(&mut self, first: &[u8], mut visit: F) -> Result<()>
    where
        F: FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    {
        for entry in self.0.range(first..) {
            let (key, value) = entry.into_inner()?;
            if visit(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }
}

impl FjallWriter<'_> {
    fn persisted(&self) -> Result<()> {
        self.0.persist.map_or(Ok(()), |mode| Ok(self.0.database.persist(mode)?))
    }
}

impl Writer for FjallWriter<'_> {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.table.insert(key, value)?;
        self.persisted()
    }

    fn remove(&mut self, key: &[u8]) -> Result<bool> {
        if !self.0.table.contains_key(key)? {
            return Ok(false);
        }
        self.0.table.remove(key)?;
        self.persisted()?;
        Ok(true)
    }
}
