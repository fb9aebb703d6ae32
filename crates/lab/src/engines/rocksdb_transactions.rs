//! RocksDB with its write-ahead log and its transactions: settings are otherwise those of [`rocksdb`](super::rocksdb).
//!
//! - Transactions are those of its `TransactionDB`, which its documentation advises where many want the same records: what is
//!   changed is locked, and deadlocks are found out. One that only reads has a snapshot; one that writes reads what is
//!   committed, which is its default.
//! - The log is synced by each commit if the run asks for it; threads that commit at the same time share a sync. Its files are
//!   used again, which its documentation advises where they are synced: a sync need not write how long a file is then.

use super::rocksdb::RocksDb;
use super::store::{Access, Session, Store, Transaction};
use super::{EngineOptions, Instance};
use crate::Result;
use crate::config::Durability;
use bytesize::ByteSize;
use rocksdb::{
    Cache, ColumnFamily, ColumnFamilyDescriptor, DBAccess, DBRawIteratorWithThreadMode,
    SnapshotWithThreadMode, TransactionDB, TransactionDBOptions, TransactionOptions, WriteOptions,
};
use serde_json::json;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// How many files of the log are kept to be used again.
const RECYCLED_LOGS: usize = 4;

/// A database.
pub struct RocksDbTransactions {
    database: TransactionDB,
    path: PathBuf,
    names: Vec<String>,
    is_synced: bool,
    pool_bytes: u64,
}

/// The database, and what one thread keeps in order not to make it in each transaction.
pub struct RocksDbTransactionSession<'a> {
    database: &'a TransactionDB,
    tables: Vec<&'a ColumnFamily>,
    value: Vec<u8>,
    write: WriteOptions,
    settings: TransactionOptions,
}

/// A transaction.
pub struct RocksDbTransaction<'t> {
    inner: Inner<'t>,
    tables: &'t [&'t ColumnFamily],
    value: &'t mut Vec<u8>,
}

enum Inner<'t> {
    Read(SnapshotWithThreadMode<'t, TransactionDB>),
    Write(rocksdb::Transaction<'t, TransactionDB>),
}

impl Store for RocksDbTransactions {
    type Session<'a> = RocksDbTransactionSession<'a>;

    const HAS_TRANSACTIONS: bool = true;

    fn create(options: &EngineOptions, tables: &[&str]) -> Result<Self> {
        let cache = Cache::new_lru_cache(usize::try_from(options.pool_bytes / 4 * 3)?);
        let mut settings = RocksDb::options(&cache, options.pool_bytes)?;
        settings.set_recycle_log_file_num(RECYCLED_LOGS);
        let families = tables.iter().map(|name| ColumnFamilyDescriptor::new(*name, settings.clone()));
        let path = options.directory.join("rocksdb");
        let database =
            TransactionDB::open_cf_descriptors(&settings, &TransactionDBOptions::default(), &path, families)?;
        Ok(Self {
            database,
            path,
            names: tables.iter().map(|name| (*name).to_owned()).collect(),
            is_synced: options.transactions.durability == Durability::Synced,
            pool_bytes: options.pool_bytes,
        })
    }

    fn session(&self) -> Result<RocksDbTransactionSession<'_>> {
        let table = |name: &String| self.database.cf_handle(name).ok_or("a table is missing");
        let tables = self.names.iter().map(table).collect::<std::result::Result<_, _>>()?;
        let (mut write, mut settings) = (WriteOptions::default(), TransactionOptions::default());
        write.set_sync(self.is_synced);
        settings.set_deadlock_detect(true);
        Ok(RocksDbTransactionSession { database: &self.database, tables, value: Vec::new(), write, settings })
    }
}

impl Instance for RocksDbTransactions {
    fn notes(&self) -> Vec<String> {
        vec![format!(
            "rocksdb: transactions with locks, its log {}, no compression, filters of 10 bits a key, {} of block cache, {} of \
             write buffers",
            if self.is_synced { "synced by each commit" } else { "written and not synced" },
            ByteSize(self.pool_bytes / 4 * 3),
            ByteSize(self.pool_bytes / 4),
        )]
    }

    fn data_bytes(&self) -> Result<u64> {
        std::fs::read_dir(&self.path)?.try_fold(0, |sum, entry| {
            // A file may be removed meanwhile.
            Ok(sum + entry?.metadata().map_or(0, |metadata| metadata.len()))
        })
    }

    fn cache_bytes_max(&self) -> u64 {
        self.pool_bytes / 4 * 3
    }

    fn statistics(&self) -> Result<serde_json::Value> {
        Ok(json!({ "files_bytes": self.data_bytes()? }))
    }

    fn close(self) -> Result<()> {
        Ok(())
    }
}

impl Session for RocksDbTransactionSession<'_> {
    type Transaction<'t>
        = RocksDbTransaction<'t>
    where
        Self: 't;

    fn begin(&mut self, access: Access) -> Result<RocksDbTransaction<'_>> {
        let inner = match access {
            Access::Read => Inner::Read(self.database.snapshot()),
            Access::Write => Inner::Write(self.database.transaction_opt(&self.write, &self.settings)),
        };
        Ok(RocksDbTransaction { inner, tables: &self.tables, value: &mut self.value })
    }
}

impl<'t> RocksDbTransaction<'t> {
    fn writing(&self) -> Result<&rocksdb::Transaction<'t, TransactionDB>> {
        match &self.inner {
            Inner::Read(_) => Err("a transaction that may only read was to change something".into()),
            Inner::Write(transaction) => Ok(transaction),
        }
    }
}

/// Shows what there is from `first` on.
fn show<D: DBAccess>(
    mut entries: DBRawIteratorWithThreadMode<'_, D>,
    first: &[u8],
    mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
) -> Result<()> {
    entries.seek(first);
    while let Some((key, value)) = entries.item() {
        if visit(key, value).is_break() {
            return Ok(());
        }
        entries.next();
    }
    Ok(entries.status()?)
}

impl Transaction for RocksDbTransaction<'_> {
    fn get<T>(&mut self, table: usize, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let found = match &self.inner {
            Inner::Read(snapshot) => snapshot.get_pinned_cf(self.tables[table], key)?,
            Inner::Write(transaction) => transaction.get_pinned_cf(self.tables[table], key)?,
        };
        Ok(found.map(|value| read(&value)))
    }

    fn insert(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.writing()?.put_cf(self.tables[table], key, value)?)
    }

    fn modify<T>(
        &mut self,
        table: usize,
        key: &[u8],
        mut change: impl FnMut(&mut [u8]) -> T,
    ) -> Result<Option<T>> {
        let table = self.tables[table];
        let mut value = std::mem::take(self.value);
        value.clear();
        let transaction = self.writing()?;
        let found = transaction.get_pinned_for_update_cf(table, key, true)?;
        let result = found.map(|found| {
            value.extend_from_slice(&found);
            change(&mut value)
        });
        if result.is_some() {
            transaction.put_cf(table, key, &value)?;
        }
        *self.value = value;
        Ok(result)
    }

    fn remove(&mut self, table: usize, key: &[u8]) -> Result<bool> {
        let (table, transaction) = (self.tables[table], self.writing()?);
        let is_there = transaction.get_pinned_for_update_cf(table, key, true)?.is_some();
        if is_there {
            transaction.delete_cf(table, key)?;
        }
        Ok(is_there)
    }

    fn scan(
        &mut self,
        table: usize,
        first: &[u8],
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        match &self.inner {
            Inner::Read(snapshot) => show(snapshot.raw_iterator_cf(self.tables[table]), first, visit),
            Inner::Write(transaction) => show(transaction.raw_iterator_cf(self.tables[table]), first, visit),
        }
    }

    fn commit(self) -> Result<()> {
        match self.inner {
            Inner::Read(_) => Ok(()),
            Inner::Write(transaction) => Ok(transaction.commit()?),
        }
    }
}
