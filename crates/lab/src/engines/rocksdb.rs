//! RocksDB, without durability: a column family for each table, and no write-ahead log.
//!
//! - Options are those that its documentation recommends to begin with ("Setup options and basic tuning": levels
//!   whose sizes follow the data, blocks of 16 KiB, filters of 10 bits a key, index and filters in the cache);
//!   nothing is compressed, since the data of the workloads does not compress or is not meant to. Of the pool's
//!   size three quarters are block cache and one quarter is for write buffers.
//! - There are no transactions: each operation is atomic by itself, which is the cheapest that keeps the
//!   workloads correct. A value is read and written again under a lock of the lab, one of many by the key's hash.

use super::key_locks::KeyLocks;
use super::store::{Access, Session, Store, Transaction};
use super::{Engine, EngineOptions, Instance, Reader, Writer};
use crate::Result;
use bytesize::ByteSize;
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType, Options,
    WriteOptions,
};
use serde_json::json;
use std::ops::ControlFlow;

/// A database.
pub struct RocksDb {
    database: DB,
    names: Vec<String>,
    write_options: WriteOptions,
    locks: KeyLocks,
    pool_bytes: u64,
}

/// The database, and what one thread keeps in order not to look it up in each operation.
pub struct RocksDbSession<'a> {
    store: &'a RocksDb,
    tables: Vec<&'a ColumnFamily>,
    value: Vec<u8>,
}

impl RocksDb {
    fn property(&self, name: &str) -> Result<u64> {
        let mut sum = 0;
        for table in &self.names {
            let table = self.database.cf_handle(table).ok_or("a table is missing")?;
            sum += self.database.property_int_value_cf(table, name)?.unwrap_or(0);
        }
        Ok(sum)
    }

    /// The settings of a database, and of each table.
    ///
    /// # Errors
    /// If a size is out of its range.
    pub fn options(cache: &Cache, pool_bytes: u64) -> Result<Options> {
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_cache(cache);
        blocks.set_block_size(16 << 10);
        blocks.set_bloom_filter(10.0, false);
        blocks.set_cache_index_and_filter_blocks(true);
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        options.set_block_based_table_factory(&blocks);
        options.set_level_compaction_dynamic_level_bytes(true);
        options.set_bytes_per_sync(1 << 20);
        options.set_compression_type(DBCompressionType::None);
        options.increase_parallelism(i32::try_from(std::thread::available_parallelism()?.get())?);
        options.set_db_write_buffer_size(usize::try_from(pool_bytes / 4)?);
        Ok(options)
    }
}

impl Store for RocksDb {
    type Session<'a> = RocksDbSession<'a>;

    const HAS_TRANSACTIONS: bool = false;

    fn create(options: &EngineOptions, tables: &[&str]) -> Result<Self> {
        let cache = Cache::new_lru_cache(usize::try_from(options.pool_bytes / 4 * 3)?);
        let settings = Self::options(&cache, options.pool_bytes)?;
        let families = tables.iter().map(|name| ColumnFamilyDescriptor::new(*name, settings.clone()));
        let database = DB::open_cf_descriptors(&settings, options.directory.join("rocksdb"), families)?;
        let mut write_options = WriteOptions::default();
        write_options.disable_wal(true);
        Ok(Self {
            database,
            names: tables.iter().map(|name| (*name).to_owned()).collect(),
            write_options,
            locks: KeyLocks::default(),
            pool_bytes: options.pool_bytes,
        })
    }

    fn session(&self) -> Result<RocksDbSession<'_>> {
        let table = |name: &String| self.database.cf_handle(name).ok_or("a table is missing");
        let tables = self.names.iter().map(table).collect::<std::result::Result<_, _>>()?;
        Ok(RocksDbSession { store: self, tables, value: Vec::new() })
    }
}

impl Instance for RocksDb {
    fn notes(&self) -> Vec<String> {
        vec![format!(
            "rocksdb: no write-ahead log, no compression, filters of 10 bits a key, {} of block cache, {} of write \
             buffers; transactions are series of atomic operations, those that change a value under a lock of the lab",
            ByteSize(self.pool_bytes / 4 * 3),
            ByteSize(self.pool_bytes / 4),
        )]
    }

    fn data_bytes(&self) -> Result<u64> {
        Ok(self.property("rocksdb.total-sst-files-size")? + self.property("rocksdb.size-all-mem-tables")?)
    }

    fn cache_bytes_max(&self) -> u64 {
        self.pool_bytes / 4 * 3
    }

    fn statistics(&self) -> Result<serde_json::Value> {
        Ok(json!({
            "total_sst_files_size": self.property("rocksdb.total-sst-files-size")?,
            "live_sst_files_size": self.property("rocksdb.live-sst-files-size")?,
            "size_all_mem_tables": self.property("rocksdb.size-all-mem-tables")?,
            "estimate_num_keys": self.property("rocksdb.estimate-num-keys")?,
        }))
    }

    fn close(self) -> Result<()> {
        self.database.cancel_all_background_work(true);
        Ok(())
    }
}

impl Session for RocksDbSession<'_> {
    type Transaction<'t>
        = &'t mut Self
    where
        Self: 't;

    #[inline]
    fn begin(&mut self, _: Access) -> Result<&mut Self> {
        Ok(self)
    }
}

impl RocksDbSession<'_> {
    #[inline]
    fn find<T>(&self, table: usize, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let found = self.store.database.get_pinned_cf(self.tables[table], key)?;
        Ok(found.map(|value| read(&value)))
    }

    #[inline]
    fn put(&self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.store.database.put_cf_opt(self.tables[table], key, value, &self.store.write_options)?)
    }

    fn delete(&self, table: usize, key: &[u8]) -> Result<bool> {
        let _lock = self.store.locks.lock(&(table, key))?;
        if self.find(table, key, |_| ())?.is_none() {
            return Ok(false);
        }
        self.store.database.delete_cf_opt(self.tables[table], key, &self.store.write_options)?;
        Ok(true)
    }

    fn visit(
        &self,
        table: usize,
        first: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut entries = self.store.database.raw_iterator_cf(self.tables[table]);
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

impl Transaction for &mut RocksDbSession<'_> {
    #[inline]
    fn get<T>(&mut self, table: usize, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        self.find(table, key, read)
    }

    #[inline]
    fn insert(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        self.put(table, key, value)
    }

    fn modify<T>(
        &mut self,
        table: usize,
        key: &[u8],
        mut change: impl FnMut(&mut [u8]) -> T,
    ) -> Result<Option<T>> {
        let _lock = self.store.locks.lock(&(table, key))?;
        let mut value = std::mem::take(&mut self.value);
        value.clear();
        let found = self.find(table, key, |found| value.extend_from_slice(found))?;
        let result = found.map(|()| change(&mut value));
        if result.is_some() {
            self.put(table, key, &value)?;
        }
        self.value = value;
        Ok(result)
    }

    fn remove(&mut self, table: usize, key: &[u8]) -> Result<bool> {
        self.delete(table, key)
    }

    fn scan(
        &mut self,
        table: usize,
        first: &[u8],
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.visit(table, first, visit)
    }

    #[inline]
    fn commit(self) -> Result<()> {
        Ok(())
    }
}

/// Reads the only table.
pub struct RocksDbReader<'a>(RocksDbSession<'a>);

/// Writes the only table.
pub struct RocksDbWriter<'a>(RocksDbSession<'a>);

impl Engine for RocksDb {
    type Reader<'a> = RocksDbReader<'a>;
    type Writer<'a> = RocksDbWriter<'a>;
    type Loader<'a> = RocksDbWriter<'a>;

    const CONCURRENT_WRITERS: bool = true;

    fn create(options: &EngineOptions) -> Result<Self> {
        <Self as Store>::create(options, &["tuples"])
    }

    fn reader(&self) -> Result<RocksDbReader<'_>> {
        Ok(RocksDbReader(self.session()?))
    }

    fn writer(&self) -> Result<RocksDbWriter<'_>> {
        Ok(RocksDbWriter(self.session()?))
    }

    fn loader(&self) -> Result<RocksDbWriter<'_>> {
        Engine::writer(self)
    }
}

impl Reader for RocksDbReader<'_> {
    #[inline]
    fn lookup(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found = self.0.find(0, key, |found| {
            value.clear();
            value.extend_from_slice(found);
        })?;
        Ok(found.is_some())
    }

    fn scan<F>(&mut self, first: &[u8], visit: F) -> Result<()>
    where
        F: FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    {
        self.0.visit(0, first, visit)
    }
}

impl Writer for RocksDbWriter<'_> {
    #[inline]
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.put(0, key, value)
    }

    fn remove(&mut self, key: &[u8]) -> Result<bool> {
        self.0.delete(0, key)
    }
}
