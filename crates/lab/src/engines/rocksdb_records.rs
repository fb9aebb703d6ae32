//! RocksDB with its log, each write synced before it is acknowledged.

use super::records::{RecordEngine, RecordHandle, RecordOptions, add_one};
use crate::Result;
use ::rocksdb::{DB, DBCompressionType, Options, WriteOptions};
use std::path::Path;

/// An open database.
pub struct Rocks(DB);

/// A reference to it.
pub struct RocksHandle<'a> {
    database: &'a DB,
    synced: WriteOptions,
}

impl RecordEngine for Rocks {
    type Handle<'a> = RocksHandle<'a>;

    fn create(folder: &Path, _: &RecordOptions) -> Result<Self> {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_compression_type(DBCompressionType::None);
        // Work in the background beside the two threads that are measured.
        options.increase_parallelism(2);
        options.set_write_buffer_size(256 << 20);
        Ok(Self(DB::open(&options, folder)?))
    }

    fn note(&self) -> String {
        "rocksdb: with its log, every write synced; no compression, write buffers of 256 MiB".to_owned()
    }

    fn handle(&self) -> Result<RocksHandle<'_>> {
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        Ok(RocksHandle { database: &self.0, synced })
    }
}

impl RecordHandle for RocksHandle<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.database.put_opt(key, value, &self.synced)?)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let Some(found) = self.database.get_pinned(key)? else { return Ok(false) };
        value.clear();
        value.extend_from_slice(&found);
        Ok(true)
    }

    fn update(&mut self, key: &[u8]) -> Result<bool> {
        // Read, change, write: two threads may lose one of two changes of the same record, which costs no time.
        let Some(mut value) = self.database.get(key)? else { return Ok(false) };
        add_one(&mut value);
        self.database.put_opt(key, value, &self.synced).map(|()| Ok(true))?
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool> {
        self.database.delete_opt(key, &self.synced)?;
        Ok(true)
    }
}
