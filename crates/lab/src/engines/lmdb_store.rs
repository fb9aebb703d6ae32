//! LMDB as a store of records: one write transaction for each transaction that changes something.
//!
//! It is opened as cheaply as for the other workloads (see [`lmdb`](super::lmdb)). With several threads it
//! needs its own locks, for one writer at a time, and so that the pages of a reader are not used again; with a
//! single one it goes without.

use super::lmdb::{Opened, Tuples};
use super::store::{Access, Session, Store, Transaction};
use super::{EngineOptions, Instance};
use crate::Result;
use crate::measure::machine;
use heed::{EnvFlags, PutFlags, RoTxn, RwTxn, WithoutTls};
use serde_json::json;
use std::ops::{Bound, ControlFlow};

/// An open environment and its databases.
pub struct LmdbStore {
    opened: Opened,
    tables: Vec<Tuples>,
    names: Vec<String>,
    locks: bool,
}

/// The environment, and room for a value that is changed.
pub struct LmdbSession<'a> {
    store: &'a LmdbStore,
    value: Vec<u8>,
}

/// A transaction of the environment.
pub struct LmdbTransaction<'t> {
    inner: Inner<'t>,
    tables: &'t [Tuples],
    value: &'t mut Vec<u8>,
}

enum Inner<'t> {
    Read(RoTxn<'t, WithoutTls>),
    Write(RwTxn<'t>),
}

impl Store for LmdbStore {
    type Session<'a> = LmdbSession<'a>;

    const HAS_TRANSACTIONS: bool = true;

    fn create(options: &EngineOptions, tables: &[&str]) -> Result<Self> {
        let locks = options.threads_max > 1;
        let flags = if locks { EnvFlags::empty() } else { EnvFlags::NO_LOCK };
        let opened = Opened::new(options, flags, u32::try_from(tables.len())?)?;
        let names = tables.iter().map(|name| (*name).to_owned()).collect();
        let tables = tables.iter().map(|name| opened.create_database(Some(name))).collect::<Result<_>>()?;
        Ok(Self { opened, tables, names, locks })
    }

    fn session(&self) -> Result<LmdbSession<'_>> {
        Ok(LmdbSession { store: self, value: Vec::new() })
    }
}

impl Instance for LmdbStore {
    fn notes(&self) -> Vec<String> {
        let mut notes =
            self.opened.notes(if self.locks { "its own locks, for several threads" } else { "no lock file" });
        notes.push("lmdb: one writer at a time, whatever the number of threads".to_owned());
        notes
    }

    fn data_bytes(&self) -> Result<u64> {
        let transaction = self.opened.env.read_txn()?;
        let table = self.tables.first().ok_or("there are no tables")?;
        Ok(self.opened.data_bytes(table.stat(&transaction)?.page_size))
    }

    fn cache_bytes_max(&self) -> u64 {
        machine::available_bytes().unwrap_or(0)
    }

    fn statistics(&self) -> Result<serde_json::Value> {
        let transaction = self.opened.env.read_txn()?;
        let mut all = serde_json::Map::new();
        for (table, name) in self.tables.iter().zip(&self.names) {
            all.insert(name.clone(), self.opened.statistics(&table.stat(&transaction)?));
        }
        Ok(json!(all))
    }

    fn close(self) -> Result<()> {
        self.opened.env.prepare_for_closing().wait();
        Ok(())
    }
}

impl Session for LmdbSession<'_> {
    type Transaction<'t>
        = LmdbTransaction<'t>
    where
        Self: 't;

    #[inline]
    fn begin(&mut self, access: Access) -> Result<LmdbTransaction<'_>> {
        let env = &self.store.opened.env;
        let inner = match access {
            Access::Read => Inner::Read(env.read_txn()?),
            Access::Write => Inner::Write(env.write_txn()?),
        };
        Ok(LmdbTransaction { inner, tables: &self.store.tables, value: &mut self.value })
    }
}

/// What a transaction that may only read says of a change.
const READ_ONLY: &str = "a transaction that may only read was to change something";

impl Transaction for LmdbTransaction<'_> {
    #[inline]
    fn get<T>(&mut self, table: usize, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let found = match &self.inner {
            Inner::Read(transaction) => self.tables[table].get(transaction, key)?,
            Inner::Write(transaction) => self.tables[table].get(transaction, key)?,
        };
        Ok(found.map(read))
    }

    #[inline]
    fn insert(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        let Inner::Write(transaction) = &mut self.inner else { return Err(READ_ONLY.into()) };
        Ok(self.tables[table].put_with_flags(transaction, PutFlags::NO_OVERWRITE, key, value)?)
    }

    #[inline]
    fn modify<T>(
        &mut self,
        table: usize,
        key: &[u8],
        mut change: impl FnMut(&mut [u8]) -> T,
    ) -> Result<Option<T>> {
        let Inner::Write(transaction) = &mut self.inner else { return Err(READ_ONLY.into()) };
        let Some(found) = self.tables[table].get(transaction, key)? else { return Ok(None) };
        self.value.clear();
        self.value.extend_from_slice(found);
        let result = change(self.value);
        self.tables[table].put(transaction, key, self.value)?;
        Ok(Some(result))
    }

    #[inline]
    fn remove(&mut self, table: usize, key: &[u8]) -> Result<bool> {
        let Inner::Write(transaction) = &mut self.inner else { return Err(READ_ONLY.into()) };
        Ok(self.tables[table].delete(transaction, key)?)
    }

    #[inline]
    fn scan(
        &mut self,
        table: usize,
        first: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        // It has no empty keys, not even as a bound.
        let lower = if first.is_empty() { Bound::Unbounded } else { Bound::Included(first) };
        let range: (Bound<&[u8]>, Bound<&[u8]>) = (lower, Bound::Unbounded);
        let entries = match &self.inner {
            Inner::Read(transaction) => self.tables[table].range(transaction, &range)?,
            Inner::Write(transaction) => self.tables[table].range(transaction, &range)?,
        };
        for entry in entries {
            let (key, value) = entry?;
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    #[inline]
    fn commit(self) -> Result<()> {
        match self.inner {
            Inner::Read(_) => Ok(()),
            Inner::Write(transaction) => Ok(transaction.commit()?),
        }
    }
}
