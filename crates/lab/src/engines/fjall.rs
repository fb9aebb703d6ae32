//! fjall: log-structured merge trees, a keyspace for each table, and one journal for all.
//!
//! - Transactions are those of its single writer: one writes at a time, and readers see snapshots beside it.
//! - A commit is synced to the journal (`SyncData`), is given to the operating system (`Buffer`), or waits for nothing
//!   (`manual_journal_persist`), as the run asks for.
//! - Of the pool's size three quarters are its cache and one quarter is divided among the write buffers of the tables, within
//!   what its documentation recommends. Nothing is compressed.

use super::store::{Access, Session, Store, Transaction};
use super::{EngineOptions, Instance};
use crate::Result;
use crate::config::Durability;
use bytesize::ByteSize;
use fjall::{
    KeyspaceCreateOptions, PersistMode, Readable, SingleWriterTxDatabase, SingleWriterTxKeyspace,
    SingleWriterWriteTx, Snapshot,
};
use serde_json::json;
use std::ops::{ControlFlow, RangeInclusive};

/// A database.
pub struct Fjall {
    database: SingleWriterTxDatabase,
    tables: Vec<SingleWriterTxKeyspace>,
    persist: Option<PersistMode>,
    pool_bytes: u64,
    memtable_bytes: u64,
}

/// A transaction.
pub struct FjallTransaction<'t> {
    inner: Inner<'t>,
    tables: &'t [SingleWriterTxKeyspace],
}

enum Inner<'t> {
    Read(Snapshot),
    Write(SingleWriterWriteTx<'t>),
}

/// How large its documentation recommends that the write buffer of a keyspace be.
pub(super) const MEMTABLE_BYTES: RangeInclusive<u64> = 8 << 20..=64 << 20;

/// What a change waits for, if anything.
pub fn persist(options: &EngineOptions) -> Option<PersistMode> {
    match options.transactions.durability {
        Durability::NoLog | Durability::Deferred => None,
        Durability::Buffered => Some(PersistMode::Buffer),
        Durability::Synced => Some(PersistMode::SyncData),
    }
}

impl Store for Fjall {
    type Session<'a> = &'a Self;

    const HAS_TRANSACTIONS: bool = true;

    fn create(options: &EngineOptions, tables: &[&str]) -> Result<Self> {
        let persist = persist(options);
        let database = SingleWriterTxDatabase::builder(options.directory.join("fjall"))
            .cache_size(options.pool_bytes / 4 * 3)
            .manual_journal_persist(true)
            .open()?;
        let share = options.pool_bytes / 4 / tables.len().max(1) as u64;
        let memtable_bytes = share.clamp(*MEMTABLE_BYTES.start(), *MEMTABLE_BYTES.end());
        let settings = || KeyspaceCreateOptions::default().max_memtable_size(memtable_bytes);
        let open = |name: &&str| database.keyspace(name, settings);
        let tables = tables.iter().map(open).collect::<fjall::Result<_>>()?;
        Ok(Self { database, tables, persist, pool_bytes: options.pool_bytes, memtable_bytes })
    }

    fn session(&self) -> Result<&Self> {
        Ok(self)
    }
}

impl Instance for Fjall {
    fn notes(&self) -> Vec<String> {
        let waits = match self.persist {
            Some(mode) => format!("commits with persist mode {mode:?}"),
            None => "commits that wait for nothing".to_owned(),
        };
        vec![format!(
            "fjall: one writer at a time, {waits}, no compression, {} of cache, write buffers of {}",
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

impl Session for &Fjall {
    type Transaction<'t>
        = FjallTransaction<'t>
    where
        Self: 't;

    fn begin(&mut self, access: Access) -> Result<FjallTransaction<'_>> {
        let inner = match access {
            Access::Read => Inner::Read(self.database.read_tx()),
            Access::Write => Inner::Write(self.database.write_tx().durability(self.persist)),
        };
        Ok(FjallTransaction { inner, tables: &self.tables })
    }
}

impl<'t> FjallTransaction<'t> {
    fn find(&self, table: usize, key: &[u8]) -> Result<Option<fjall::Slice>> {
        Ok(match &self.inner {
            Inner::Read(snapshot) => snapshot.get(&self.tables[table], key)?,
            Inner::Write(transaction) => transaction.get(&self.tables[table], key)?,
        })
    }

    fn writing(&mut self) -> Result<&mut SingleWriterWriteTx<'t>> {
        match &mut self.inner {
            Inner::Read(_) => Err("a transaction that may only read was to change something".into()),
            Inner::Write(transaction) => Ok(transaction),
        }
    }
}

impl Transaction for FjallTransaction<'_> {
    fn get<T>(&mut self, table: usize, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        Ok(self.find(table, key)?.map(|value| read(&value)))
    }

    fn insert(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        let tables = self.tables;
        self.writing()?.insert(&tables[table], key, value);
        Ok(())
    }

    fn modify<T>(
        &mut self,
        table: usize,
        key: &[u8],
        mut change: impl FnMut(&mut [u8]) -> T,
    ) -> Result<Option<T>> {
        let Some(found) = self.find(table, key)? else { return Ok(None) };
        let mut value = found.to_vec();
        let result = change(&mut value);
        self.insert(table, key, &value)?;
        Ok(Some(result))
    }

    fn remove(&mut self, table: usize, key: &[u8]) -> Result<bool> {
        let (tables, is_there) = (self.tables, self.find(table, key)?.is_some());
        if is_there {
            self.writing()?.remove(&tables[table], key);
        }
        Ok(is_there)
    }

    fn scan(
        &mut self,
        table: usize,
        first: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let table = &self.tables[table];
        let entries = match &self.inner {
            Inner::Read(snapshot) => snapshot.range(table, first..),
            Inner::Write(transaction) => transaction.range(table, first..),
        };
        for entry in entries {
            let (key, value) = entry.into_inner()?;
            if visit(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn commit(self) -> Result<()> {
        match self.inner {
            Inner::Read(_) => Ok(()),
            Inner::Write(transaction) => Ok(transaction.commit()?),
        }
    }
}
