//! Any engine of single records as a [`Store`] of one table, so that YCSB runs on it as on the others.
//!
//! There are no transactions: each operation is atomic by itself, and durable when it returns where the engine promises
//! that. The settings are those of `lab put`. An engine without order has no scans.

use super::records::{RecordEngine, RecordHandle, RecordOptions};
use super::store::{Access, Session, Store, Transaction};
use super::{EngineOptions, Instance};
use crate::Result;
use std::ops::ControlFlow;

/// The engine, which is the only table.
pub struct RecordStore<E>(E);

/// One thread's handle, and a buffer, in order not to allocate in each operation.
pub struct RecordStoreSession<H> {
    handle: H,
    value: Vec<u8>,
}

impl<E: RecordEngine> Store for RecordStore<E> {
    type Session<'a>
        = RecordStoreSession<E::Handle<'a>>
    where
        E: 'a;

    const HAS_TRANSACTIONS: bool = false;

    fn create(options: &EngineOptions, tables: &[&str]) -> Result<Self> {
        if tables.len() != 1 {
            return Err("an engine of single records has one table".into());
        }
        let EngineOptions { tuples: records, key_bytes, value_bytes, .. } = *options;
        Ok(Self(E::create(&options.directory, &RecordOptions { records, key_bytes, value_bytes })?))
    }

    fn session(&self) -> Result<Self::Session<'_>> {
        Ok(RecordStoreSession { handle: self.0.handle()?, value: Vec::new() })
    }

    fn settle(&self) -> Result<()> {
        self.0.settle()
    }
}

impl<E: RecordEngine> Instance for RecordStore<E> {
    fn notes(&self) -> Vec<String> {
        vec![self.0.note()]
    }

    fn data_bytes(&self) -> Result<u64> {
        self.0.data_bytes()
    }

    fn cache_bytes_max(&self) -> u64 {
        u64::MAX
    }

    fn statistics(&self) -> Result<serde_json::Value> {
        self.0.statistics()
    }

    fn close(self) -> Result<()> {
        Ok(())
    }
}

impl<H: RecordHandle> Session for RecordStoreSession<H> {
    type Transaction<'t>
        = &'t mut Self
    where
        H: 't;

    #[inline]
    fn begin(&mut self, _: Access) -> Result<&mut Self> {
        Ok(self)
    }
}

impl<H: RecordHandle> Transaction for &mut RecordStoreSession<H> {
    #[inline]
    fn get<T>(&mut self, _: usize, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let found = self.handle.get(key, &mut self.value)?;
        Ok(found.then(|| read(&self.value)))
    }

    #[inline]
    fn copy(&mut self, _: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.handle.get(key, value)
    }

    #[inline]
    fn insert(&mut self, _: usize, key: &[u8], value: &[u8]) -> Result<()> {
        self.handle.put(key, value)
    }

    #[inline]
    fn modify<T>(&mut self, _: usize, key: &[u8], change: impl FnMut(&mut [u8]) -> T) -> Result<Option<T>> {
        self.handle.modify(key, change)
    }

    fn remove(&mut self, _: usize, key: &[u8]) -> Result<bool> {
        self.handle.delete(key)
    }

    fn scan(
        &mut self,
        _: usize,
        first: &[u8],
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.handle.scan(first, visit)
    }

    fn for_each(&mut self, _: usize, visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
        self.handle.for_each(visit)
    }

    #[inline]
    fn commit(self) -> Result<()> {
        Ok(())
    }
}
