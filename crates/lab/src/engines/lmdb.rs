//! LMDB, as cheap as it allows.
//!
//! - No sync of data or meta pages, unless the run asks for it (its default is that a commit syncs both); no lock file, since one process uses it; no reader slots bound to
//!   threads; memory is not initialised before it is written.
//! - A reader is one read transaction for its thread's whole life, so that a lookup is one `mdb_get`.
//! - All inserts of a load, and all changes of a round, are one write transaction, without a hint that keys
//!   are in order, unless it is a bulk load.
//! - Read-ahead is switched off only where the data will not fit in memory, as the documentation advises.
//! - Writing through the map (`MDB_WRITEMAP`) or into copied pages is chosen by what was measured here; see
//!   [`WRITE_MAP_IS_FASTER`]. Where commits are synced they are copied, as by default.
//!
//! LMDB has no pool: what it may cache is bounded by the page cache, that is by the machine's memory (or
//! that of the control group), never by the pool size given to the run.

use super::{Choice, Durability, Engine, EngineOptions, Instance, Reader, Writer};
use crate::Result;
use crate::measure::machine;
use bytesize::ByteSize;
use heed::types::Bytes;
use heed::{
    CommitOrAbort, Database, DatabaseStat, Env, EnvFlags, EnvOpenOptions, PutFlags, RoTxn, RwTxn, WithoutTls,
};
use serde_json::json;
use std::ops::{Bound, ControlFlow};

/// A database of keys and values of bytes.
pub type Tuples = Database<'static, Bytes, Bytes>;

/// An open environment and its unnamed database.
pub struct Lmdb {
    opened: Opened,
    database: Tuples,
}

/// An open environment, and how it was opened.
pub struct Opened {
    /// The environment.
    pub env: Env<WithoutTls>,
    is_synced: bool,
    write_map: bool,
    read_ahead: bool,
    pool_bytes: u64,
}

/// A read transaction.
pub struct LmdbReader<'a> {
    transaction: RoTxn<'a, WithoutTls>,
    database: Tuples,
}

/// A write transaction.
pub struct LmdbWriter<'a> {
    transaction: RwTxn<'a>,
    database: Tuples,
}

/// A write transaction that appends: `MDB_APPEND`, which its documentation recommends for bulk loading.
pub struct LmdbAppender<'a>(LmdbWriter<'a>);

/// Whether `MDB_WRITEMAP` makes LMDB faster.
///
/// It did in every workload on tables that are loaded and read, and not in changes of a table that was committed, whose pages
/// are all copied (1 M addresses, values of 20 to 400 bytes): deletes 175k/s against 359k/s without it, updates in rounds of 2 s
/// 279k/s against 325k/s. So for these [`EngineOptions`] says no. The others (2 cores, Linux 6.18, ext4, 120-byte values):
/// sequential insertion of 10 M tuples 1.71 against 0.98 M/s, random insertion of 5 M tuples 0.45 against 0.26 M/s, lookups among 10 M
/// tuples 0.68 against 0.66 M/s. Repeat it with `--lmdb-write-map yes` and `no`.
const WRITE_MAP_IS_FASTER: bool = true;

impl Opened {
    /// Opens an environment in an empty folder, with room for so many named databases, as cheaply as it
    /// allows; `locks` is `NO_LOCK` or nothing.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn new(options: &EngineOptions, locks: EnvFlags, databases: u32) -> Result<Self> {
        let is_synced = options.transactions.durability == Durability::Synced;
        let write_map = match options.lmdb_write_map {
            Choice::Auto => WRITE_MAP_IS_FASTER && !is_synced,
            Choice::Yes => true,
            Choice::No => false,
        };
        // Pages may be a little over half full after random inserts, and each tuple has a header of its own.
        let map_bytes = (options.payload_bytes * 4 + (1 << 30)).next_multiple_of(1 << 20);
        let estimate = options.payload_bytes + options.payload_bytes / 2;
        let read_ahead = machine::available_bytes().is_none_or(|available| estimate < available);
        let mut flags = EnvFlags::NO_MEM_INIT | locks;
        flags.set(EnvFlags::NO_SYNC | EnvFlags::NO_META_SYNC, !is_synced);
        flags.set(EnvFlags::WRITE_MAP, write_map);
        flags.set(EnvFlags::NO_READ_AHEAD, !read_ahead);
        let mut builder = EnvOpenOptions::new().read_txn_without_tls();
        builder.map_size(usize::try_from(map_bytes)?);
        builder.max_readers(u32::try_from(options.threads_max + 8)?);
        builder.max_dbs(databases);
        // SAFETY: the folder was made for this environment alone, so no other process opens or changes it.
        // Without locks, writers and readers must be kept apart by the caller: there is a single thread, or the
        // lab writes with a single one and begins to read after that transaction is committed. Where nothing is
        // synced, durability is not wanted.
        let env = unsafe {
            builder.flags(flags);
            builder.open(&options.directory)?
        };
        Ok(Self { env, is_synced, write_map, read_ahead, pool_bytes: options.pool_bytes })
    }

    /// Creates a database, or the unnamed one.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn create_database(&self, name: Option<&str>) -> Result<Tuples> {
        let transaction = self.env.write_txn()?;
        let committed = self.env.create_databases_and_commit(transaction, |opener, transaction| {
            opener.create_database::<Bytes, Bytes>(transaction, name).map(CommitOrAbort::<_, ()>::Commit)
        })?;
        Ok(committed.unwrap_commit())
    }

    /// How it was opened, and what it cannot be held to; `locks` says how it locks.
    pub fn notes(&self, locks: &str) -> Vec<String> {
        vec![
            format!(
                "lmdb: {}, {locks}, no initialised memory, {}, read-ahead {}",
                if self.is_synced { "each commit synced" } else { "no sync, no meta sync" },
                if self.write_map { "writes through its map" } else { "writes into copied pages" },
                if self.read_ahead { "on" } else { "off" }
            ),
            format!(
                "lmdb: it has no pool, so nothing holds it to {}: the page cache of the whole machine serves \
                 it, and its resident size counts the pages of its file that it has touched",
                ByteSize(self.pool_bytes)
            ),
        ]
    }

    /// The size of all pages in use, in bytes.
    pub fn data_bytes(&self, page_bytes: u32) -> u64 {
        u64::from(page_bytes) * (self.env.info().last_page_number as u64 + 1)
    }

    /// What it counts about one database.
    pub fn statistics(&self, stat: &DatabaseStat) -> serde_json::Value {
        json!({
            "depth": stat.depth,
            "branch_pages": stat.branch_pages,
            "leaf_pages": stat.leaf_pages,
            "overflow_pages": stat.overflow_pages,
            "entries": stat.entries,
            "write_map": self.write_map,
            "read_ahead": self.read_ahead,
        })
    }
}

impl Lmdb {
    fn stat(&self) -> Result<DatabaseStat> {
        let transaction = self.opened.env.read_txn()?;
        Ok(self.database.stat(&transaction)?)
    }
}

impl Engine for Lmdb {
    type Reader<'a> = LmdbReader<'a>;
    type Writer<'a> = LmdbWriter<'a>;
    type Loader<'a> = LmdbAppender<'a>;

    const CONCURRENT_WRITERS: bool = false;

    fn create(options: &EngineOptions) -> Result<Self> {
        let opened = Opened::new(options, EnvFlags::NO_LOCK, 0)?;
        let database = opened.create_database(None)?;
        Ok(Self { opened, database })
    }

    fn reader(&self) -> Result<LmdbReader<'_>> {
        Ok(LmdbReader { transaction: self.opened.env.read_txn()?, database: self.database })
    }

    fn writer(&self) -> Result<LmdbWriter<'_>> {
        Ok(LmdbWriter { transaction: self.opened.env.write_txn()?, database: self.database })
    }

    fn loader(&self) -> Result<LmdbAppender<'_>> {
        Ok(LmdbAppender(self.writer()?))
    }
}

impl Instance for Lmdb {
    fn notes(&self) -> Vec<String> {
        let mut notes = self.opened.notes("no lock file");
        notes.push(
            "lmdb: one writer at a time; a workload that writes uses one thread for it, whatever was asked"
                .to_owned(),
        );
        notes
    }

    fn data_bytes(&self) -> Result<u64> {
        Ok(self.opened.data_bytes(self.stat()?.page_size))
    }

    fn cache_bytes_max(&self) -> u64 {
        machine::available_bytes().unwrap_or(0)
    }

    fn statistics(&self) -> Result<serde_json::Value> {
        Ok(self.opened.statistics(&self.stat()?))
    }

    fn close(self) -> Result<()> {
        self.opened.env.prepare_for_closing().wait();
        Ok(())
    }
}

impl Reader for LmdbReader<'_> {
    #[inline]
    fn lookup(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        match self.database.get(&self.transaction, key)? {
            Some(found) => {
                value.clear();
                value.extend_from_slice(found);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    #[inline]
    fn scan<F>(&mut self, first: &[u8], mut visit: F) -> Result<()>
    where
        F: FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    {
        let range: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(first), Bound::Unbounded);
        for entry in self.database.range(&self.transaction, &range)? {
            let (key, value) = entry?;
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }
}

impl Writer for LmdbWriter<'_> {
    #[inline]
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.database.put(&mut self.transaction, key, value)?)
    }

    #[inline]
    fn remove(&mut self, key: &[u8]) -> Result<bool> {
        Ok(self.database.delete(&mut self.transaction, key)?)
    }

    fn finish(self) -> Result<()> {
        Ok(self.transaction.commit()?)
    }
}

impl Writer for LmdbAppender<'_> {
    #[inline]
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let LmdbWriter { transaction, database } = &mut self.0;
        Ok(database.put_with_flags(transaction, PutFlags::APPEND, key, value)?)
    }

    fn remove(&mut self, key: &[u8]) -> Result<bool> {
        self.0.remove(key)
    }

    fn finish(self) -> Result<()> {
        self.0.finish()
    }
}
