//! Vellum as a store of records, through its published crate.
//!
//! There are no transactions yet: each operation is atomic by itself, and changes are made in the leaf where
//! the value lies. Nothing is synced before the database is closed.

use super::store::{Access, Session, Store, Transaction};
use super::vellum::{create_tables, data_bytes, note, statistics};
use super::{EngineOptions, Instance};
use crate::Result;
use std::ops::ControlFlow;
use vellum::{Cursor, Database, Table, Value};

/// An open database and its tables.
pub struct VellumStore {
    database: Database,
    tables: Vec<Table>,
    pool_bytes: u64,
}

/// The tables, and what one thread keeps in order not to allocate in each operation.
pub struct VellumSession<'a> {
    tables: &'a [Table],
    cursors: Vec<Cursor<'a>>,
    value: Vec<u8>,
}

impl Store for VellumStore {
    type Session<'a> = VellumSession<'a>;

    const HAS_TRANSACTIONS: bool = false;

    fn create(options: &EngineOptions, tables: &[&str]) -> Result<Self> {
        let (database, tables) = create_tables(options, tables)?;
        Ok(Self { database, tables, pool_bytes: options.pool_bytes })
    }

    fn session(&self) -> Result<VellumSession<'_>> {
        let cursors =
            self.tables.iter().map(|table| table.cursor(..)).collect::<std::result::Result<_, _>>()?;
        Ok(VellumSession { tables: &self.tables, cursors, value: Vec::new() })
    }
}

impl Instance for VellumStore {
    fn notes(&self) -> Vec<String> {
        vec![
            note(&self.database, self.pool_bytes),
            "vellum: transactions are series of atomic operations; those that are to be rolled back find it out \
             before their first change"
                .to_owned(),
        ]
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

impl<'a> Session for VellumSession<'a> {
    type Transaction<'t>
        = &'t mut Self
    where
        Self: 't;

    #[inline]
    fn begin(&mut self, _: Access) -> Result<&mut Self> {
        Ok(self)
    }
}

impl Transaction for &mut VellumSession<'_> {
    #[inline]
    fn get<T>(&mut self, table: usize, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let found = self.tables[table].get_into(key, &mut self.value)?;
        Ok(found.then(|| read(&self.value)))
    }

    fn get_heads<K: AsRef<[u8]>>(
        &mut self,
        table: usize,
        keys: &[K],
        bytes: usize,
        mut visit: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        let mut failed = None;
        self.tables[table].multi_get_part_with(keys, 0..bytes, |place, value| match value {
            Ok(value) => visit(place, value),
            Err(error) => failed = Some(error),
        });
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    #[inline]
    fn insert(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        if self.tables[table].insert(key, value)? {
            return Ok(());
        }
        Err(format!("the key {key:02x?} of table {table} was to be new, and is there").into())
    }

    #[inline]
    fn modify<T>(
        &mut self,
        table: usize,
        key: &[u8],
        change: impl FnMut(&mut [u8]) -> T,
    ) -> Result<Option<T>> {
        Ok(self.tables[table].modify(key, change)?)
    }

    fn modify_all<K: AsRef<[u8]>>(
        &mut self,
        table: usize,
        keys: &[K],
        change: impl FnMut(usize, &mut [u8]),
    ) -> Result<bool> {
        let (mut all, mut failed) = (true, None);
        self.tables[table].multi_modify_with(keys, change, |_, changed| match changed {
            Ok(changed) => all &= changed,
            Err(error) => failed = Some(error),
        })?;
        failed.map_or(Ok(all), |error| Err(error.into()))
    }

    #[inline]
    fn remove(&mut self, table: usize, key: &[u8]) -> Result<bool> {
        Ok(self.tables[table].remove(key)?)
    }

    #[inline]
    fn scan(
        &mut self,
        table: usize,
        first: &[u8],
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.scan_some(table, first, usize::MAX, visit)
    }

    #[inline]
    fn scan_some(
        &mut self,
        table: usize,
        first: &[u8],
        records: usize,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let cursor = &mut self.cursors[table];
        cursor.seek(first)?;
        cursor.expect(records);
        // Of a large value, what the key has now; if it was removed meanwhile, it is not there.
        super::vellum::scan(cursor, visit, |entry| Ok(entry.value()?.map(Value::into_vec)))
    }

    #[inline]
    fn commit(self) -> Result<()> {
        Ok(())
    }
}
