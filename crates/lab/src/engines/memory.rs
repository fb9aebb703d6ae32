//! A store in a `BTreeMap`, which tests the workloads without an engine, and which can be told to err.

use super::{Engine, EngineOptions, Instance, Reader, Writer};
use crate::Result;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{RwLock, RwLockReadGuard};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// The store.
#[derive(Default)]
pub struct Memory {
    pub map: RwLock<Map>,
}

/// Holds the store against writers.
pub struct MemoryReader<'a>(RwLockReadGuard<'a, Map>);

/// Takes the store anew for each insert.
pub struct MemoryWriter<'a>(&'a RwLock<Map>);

impl Engine for Memory {
    type Reader<'a> = MemoryReader<'a>;
    type Writer<'a> = MemoryWriter<'a>;
    type Loader<'a> = MemoryWriter<'a>;

    const CONCURRENT_WRITERS: bool = true;

    fn create(_: &EngineOptions) -> Result<Self> {
        Ok(Self::default())
    }

    fn reader(&self) -> Result<MemoryReader<'_>> {
        Ok(MemoryReader(self.map.read().unwrap()))
    }

    fn writer(&self) -> Result<MemoryWriter<'_>> {
        Ok(MemoryWriter(&self.map))
    }

    fn loader(&self) -> Result<MemoryWriter<'_>> {
        Engine::writer(self)
    }
}

impl Instance for Memory {
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    fn data_bytes(&self) -> Result<u64> {
        Ok(self.map.read().unwrap().iter().map(|(key, value)| (key.len() + value.len()) as u64).sum())
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

impl Reader for MemoryReader<'_> {
    fn lookup(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.0.get(key);
        value.extend_from_slice(found.map_or(&[], Vec::as_slice));
        Ok(found.is_some())
    }

    fn scan<F>(&mut self, first: &[u8], mut visit: F) -> Result<()>
    where
        F: FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    {
        for (key, value) in self.0.range(first.to_vec()..) {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }
}

impl Writer for MemoryWriter<'_> {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.write().unwrap().insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<bool> {
        Ok(self.0.write().unwrap().remove(key).is_some())
    }
}
