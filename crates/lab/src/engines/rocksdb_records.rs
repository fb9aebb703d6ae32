//! RocksDB with its log, each write synced before it is acknowledged.
//!
//! Options are those that its documentation recommends for point lookups in data that fits into memory: a cache that is
//! larger than all data, filters of 10 bits a key for tables and write buffers, blocks with a hash index, and nothing
//! compressed. What was loaded is compacted, and work in the background is waited for, before gets or updates are measured.
//!
//! A change of a value reads it and writes it again, under a lock of the lab, one of many by the key's hash.

use super::key_locks::KeyLocks;
use super::records::{RecordEngine, RecordHandle, RecordOptions};
use crate::Result;
use ::rocksdb::{
    BlockBasedOptions, Cache, CompactOptions, DB, DBCompressionType, DataBlockIndexType, Options,
    ReadOptions, WaitForCompactOptions, WriteOptions,
};
use bytesize::ByteSize;
use std::ops::ControlFlow;
use std::path::Path;

/// Bytes of a write buffer.
const WRITE_BUFFER_BYTES: usize = 256 << 20;
/// The smallest cache.
const CACHE_BYTES_MIN: usize = 256 << 20;

/// An open database.
pub struct Rocks {
    database: DB,
    locks: KeyLocks,
    cache_bytes: usize,
}

/// A reference to it.
pub struct RocksHandle<'a> {
    database: &'a DB,
    locks: &'a KeyLocks,
    value: Vec<u8>,
    synced: WriteOptions,
    read: ReadOptions,
}

fn options(cache_bytes: usize) -> Options {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(&Cache::new_lru_cache(cache_bytes));
    blocks.set_bloom_filter(10.0, false);
    blocks.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
    blocks.set_data_block_hash_ratio(0.75);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&blocks);
    options.set_compression_type(DBCompressionType::None);
    options.set_level_compaction_dynamic_level_bytes(true);
    options.set_memtable_prefix_bloom_ratio(0.02);
    options.set_memtable_whole_key_filtering(true);
    options.set_write_buffer_size(WRITE_BUFFER_BYTES);
    options.set_max_write_buffer_number(4);
    // Work in the background beside the threads that are measured.
    options.increase_parallelism(2);
    options
}

impl RecordEngine for Rocks {
    type Handle<'a> = RocksHandle<'a>;

    fn create(folder: &Path, options: &RecordOptions) -> Result<Self> {
        let record_bytes = options.key_bytes + options.value_bytes + 64;
        let cache_bytes = (usize::try_from(options.records)? * record_bytes * 2).max(CACHE_BYTES_MIN);
        let database = DB::open(&self::options(cache_bytes), folder)?;
        Ok(Self { database, locks: KeyLocks::default(), cache_bytes })
    }

    fn note(&self) -> String {
        format!(
            "rocksdb: with its log, every write synced; nothing compressed, {} of block cache, filters of 10 bits a key, \
             blocks with a hash index, write buffers of {}; compacted before gets and updates",
            ByteSize(self.cache_bytes as u64),
            ByteSize(WRITE_BUFFER_BYTES as u64),
        )
    }

    fn settle(&self) -> Result<()> {
        self.database.flush()?;
        self.database.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &CompactOptions::default());
        Ok(self.database.wait_for_compact(&WaitForCompactOptions::default())?)
    }

    fn handle(&self) -> Result<RocksHandle<'_>> {
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        Ok(RocksHandle {
            database: &self.database,
            locks: &self.locks,
            value: Vec::new(),
            synced,
            read: ReadOptions::default(),
        })
    }

    fn data_bytes(&self) -> Result<u64> {
        let property = |name| Ok::<_, crate::Error>(self.database.property_int_value(name)?.unwrap_or(0));
        Ok(property("rocksdb.total-sst-files-size")? + property("rocksdb.size-all-mem-tables")?)
    }
}

impl RecordHandle for RocksHandle<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.database.put_opt(key, value, &self.synced)?)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let Some(found) = self.database.get_pinned_opt(key, &self.read)? else { return Ok(false) };
        value.clear();
        value.extend_from_slice(&found);
        Ok(true)
    }

    fn modify<T>(&mut self, key: &[u8], mut change: impl FnMut(&mut [u8]) -> T) -> Result<Option<T>> {
        let _lock = self.locks.lock(&key)?;
        let mut value = std::mem::take(&mut self.value);
        let found = self.get(key, &mut value)?;
        let result = found.then(|| change(&mut value));
        if found {
            self.put(key, &value)?;
        }
        self.value = value;
        Ok(result)
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool> {
        self.database.delete_opt(key, &self.synced)?;
        Ok(true)
    }

    fn for_each(&mut self, visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
        self.scan(&[], visit)
    }

    fn scan(&mut self, first: &[u8], mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
        let mut entries = self.database.raw_iterator();
        entries.seek(first);
        while let Some((key, value)) = entries.item() {
            if visit(key, value).is_break() {
                return Ok(());
            }
            entries.next();
        }
        Ok(entries.status()?)
    }
}
