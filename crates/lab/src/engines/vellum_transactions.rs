//! Vellum as a store of records, in transactions: snapshots, first updater wins, serializable if asked for.

use super::store::{Access, Session, Store, Transaction};
use super::vellum::{create_tables, data_bytes, note, open_tables, statistics};
use super::{EngineOptions, Instance};
use crate::{
    Result,
    config::{Durability, Isolation, TransactionSettings},
};
use std::{ops::ControlFlow, time::Duration};
use vellum::{Arrival, Baton, Database, Table};

/// An open database and its tables.
pub struct VellumTransactions {
    database: Database,
    tables: Vec<Table>,
    pool_bytes: u64,
    transactions: TransactionSettings,
}

/// The database, and what one thread keeps in order not to allocate in each operation.
pub struct TransactionSession<'a> {
    store: &'a VellumTransactions,
    value: Vec<u8>,
}

/// An open transaction.
pub struct OpenTransaction<'t> {
    transaction: vellum::Transaction,
    tables: &'t [Table],
    value: &'t mut Vec<u8>,
}

impl VellumTransactions {
    /// Opens what a process has left that was killed; also says what recovery did.
    ///
    /// # Errors
    /// What the engine says.
    pub fn reopen(options: &EngineOptions, tables: &[&str]) -> Result<(Self, Option<::vellum::Recovery>)> {
        let (database, tables) = open_tables(options, tables)?;
        let recovery = database.recovery();
        Ok((Self::of(database, tables, options), recovery))
    }

    /// Returns once all pages are redone that the process has left behind.
    ///
    /// # Errors
    /// What the engine says.
    pub fn finish_recovery(&self) -> Result<()> {
        Ok(self.database.finish_recovery()?)
    }

    fn of(database: Database, tables: Vec<Table>, options: &EngineOptions) -> Self {
        let EngineOptions { pool_bytes, transactions, .. } = *options;
        Self { database, tables, pool_bytes, transactions }
    }
}

impl Store for VellumTransactions {
    type Session<'a> = TransactionSession<'a>;

    const HAS_TRANSACTIONS: bool = true;
    const COMMITS_LATER: bool = true;

    fn create(options: &EngineOptions, tables: &[&str]) -> Result<Self> {
        let (database, tables) = create_tables(options, tables)?;
        Ok(Self::of(database, tables, options))
    }

    fn session(&self) -> Result<TransactionSession<'_>> {
        Ok(TransactionSession { store: self, value: Vec::new() })
    }

    fn settle(&self) -> Result<()> {
        // Elsewhere the engine takes checkpoints itself.
        if self.transactions.checkpoint_log == Some(u64::MAX) {
            Ok(self.database.checkpoint()?)
        } else {
            Ok(())
        }
    }

    fn sync(&self) -> Result<()> {
        Ok(self.database.sync()?)
    }
}

impl Instance for VellumTransactions {
    fn notes(&self) -> Vec<String> {
        let waits = match self.transactions.durability {
            Durability::NoLog => "there is no log",
            Durability::Deferred => "a commit waits for nothing",
            Durability::Buffered => "a commit waits until the system has the log",
            Durability::Synced => "a commit waits until the device has the log",
        };
        let isolation = match self.transactions.isolation {
            Isolation::Snapshot => "snapshot isolation",
            Isolation::Serializable => "serializable",
        };
        vec![note(&self.database, self.pool_bytes), format!("vellum-tx: {isolation}, {waits}")]
    }

    fn data_bytes(&self) -> Result<u64> {
        Ok(data_bytes(&self.database))
    }

    fn cache_bytes_max(&self) -> u64 {
        self.pool_bytes
    }

    fn statistics(&self) -> Result<serde_json::Value> {
        Ok(statistics(&self.database))
    }

    fn close(self) -> Result<()> {
        drop(self.tables);
        Ok(self.database.close()?)
    }
}

impl<'a> Session for TransactionSession<'a> {
    type Transaction<'t>
        = OpenTransaction<'t>
    where
        Self: 't;

    fn begin(&mut self, _: Access) -> Result<OpenTransaction<'_>> {
        let transaction = self.store.database.begin()?;
        Ok(OpenTransaction { transaction, tables: &self.store.tables, value: &mut self.value })
    }

    fn wait_after(&mut self, conflict: &crate::Error) -> Option<Baton> {
        /// As `Database::run` does.
        const LONGEST: Duration = Duration::from_millis(100);
        self.store.database.wait_for_other(conflict.downcast_ref()?, LONGEST)
    }
}

impl Transaction for OpenTransaction<'_> {
    fn get<T>(&mut self, table: usize, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let found = self.transaction.get_into(&self.tables[table], key, self.value)?;
        Ok(found.then(|| read(self.value)))
    }

    fn get_heads<K: AsRef<[u8]>>(
        &mut self,
        table: usize,
        keys: &[K],
        bytes: usize,
        mut visit: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        let mut failed = None;
        self.transaction.multi_get_part_with(
            &self.tables[table],
            keys,
            0..bytes,
            |place, value| match value {
                Ok(value) => visit(place, value),
                Err(error) => failed = Some(error),
            },
        )?;
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    fn modify_all<K: AsRef<[u8]>>(
        &mut self,
        table: usize,
        keys: &[K],
        change: impl FnMut(usize, &mut [u8]),
    ) -> Result<bool> {
        let changed = self.transaction.multi_modify(&self.tables[table], keys, change)?;
        Ok(changed.into_iter().all(|changed| changed))
    }

    fn insert(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        if self.transaction.insert(&self.tables[table], key, value)? {
            return Ok(());
        }
        Err(format!("the key {key:02x?} of table {table} was to be new, and is there").into())
    }

    fn modify<T>(
        &mut self,
        table: usize,
        key: &[u8],
        change: impl FnMut(&mut [u8]) -> T,
    ) -> Result<Option<T>> {
        Ok(self.transaction.modify(&self.tables[table], key, change)?)
    }

    fn remove(&mut self, table: usize, key: &[u8]) -> Result<bool> {
        Ok(self.transaction.remove(&self.tables[table], key)?)
    }

    fn scan(
        &mut self,
        table: usize,
        first: &[u8],
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.scan_some(table, first, usize::MAX, visit)
    }

    fn scan_some(
        &mut self,
        table: usize,
        first: &[u8],
        records: usize,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let table = &self.tables[table];
        let mut cursor = self.transaction.cursor(table, first..)?;
        cursor.expect(records);
        super::vellum::scan(&mut cursor, visit, |entry| Ok(self.transaction.get(table, entry.key())?))
    }

    fn commit(self) -> Result<()> {
        Ok(self.transaction.commit()?)
    }

    fn commit_later(self) -> Result<Option<Arrival>> {
        Ok(self.transaction.commit_async()?)
    }
}
