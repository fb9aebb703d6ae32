//! A store of records in `BTreeMap`s, which tests the workloads without an engine. As in the engines without
//! transactions, each operation is atomic by itself.

use super::store::{Access, Session, Store, Transaction};
use super::{EngineOptions, Instance};
use crate::Result;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{RwLock, RwLockWriteGuard};
use vellum::Baton;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// The tables.
pub struct MemoryStore(Vec<RwLock<Map>>);

impl MemoryStore {
    /// So many empty tables.
    pub fn with(tables: usize) -> Self {
        Self((0..tables).map(|_| RwLock::default()).collect())
    }

    /// A table, to be looked at and changed.
    pub fn table(&self, table: usize) -> RwLockWriteGuard<'_, Map> {
        self.0[table].write().unwrap()
    }
}

impl Store for MemoryStore {
    type Session<'a> = &'a Self;

    const HAS_TRANSACTIONS: bool = false;

    fn create(_: &EngineOptions, tables: &[&str]) -> Result<Self> {
        Ok(Self::with(tables.len()))
    }

    fn session(&self) -> Result<&Self> {
        Ok(self)
    }
}

impl Instance for MemoryStore {
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    fn data_bytes(&self) -> Result<u64> {
        let size = |map: &Map| map.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum::<u64>();
        Ok(self.0.iter().map(|table| size(&table.read().unwrap())).sum())
    }

    fn cache_bytes_max(&self) -> u64 {
        u64::MAX
    }

    fn statistics(&self) -> Result<serde_json::Value> {
        Ok(serde_json::Value::Null)
    }

    fn close(self) -> Result<()> {
        Ok(())
    }
}

impl Session for &MemoryStore {
    type Transaction<'t>
        = &'t MemoryStore
    where
        Self: 't;

    fn begin(&mut self, _: Access) -> Result<&MemoryStore> {
        Ok(self)
    }

    fn wait_after(&mut self, _: &crate::Error) -> Option<Baton> {
        Some(Baton::default())
    }
}

impl Transaction for &MemoryStore {
    fn get<T>(&mut self, table: usize, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        Ok(self.0[table].read().unwrap().get(key).map(|value| read(value)))
    }

    fn insert(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        assert!(
            self.table(table).insert(key.to_vec(), value.to_vec()).is_none(),
            "{key:?} of {table} is there"
        );
        Ok(())
    }

    fn modify<T>(
        &mut self,
        table: usize,
        key: &[u8],
        mut change: impl FnMut(&mut [u8]) -> T,
    ) -> Result<Option<T>> {
        Ok(self.table(table).get_mut(key).map(|value| change(value)))
    }

    fn remove(&mut self, table: usize, key: &[u8]) -> Result<bool> {
        Ok(self.table(table).remove(key).is_some())
    }

    fn scan(
        &mut self,
        table: usize,
        first: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        for (key, value) in self.0[table].read().unwrap().range(first.to_vec()..) {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn commit(self) -> Result<()> {
        Ok(())
    }
}
