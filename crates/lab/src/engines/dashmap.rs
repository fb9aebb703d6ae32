//! A concurrent hash table in memory that persists nothing (the crate `dashmap`), for scale.

use super::records::{RecordEngine, RecordHandle, RecordOptions};
use crate::Result;
use ::dashmap::DashMap;
use std::ops::ControlFlow;
use std::path::Path;

/// The table, with keys of `K` bytes and values of `V` bytes.
pub struct Dash<const K: usize, const V: usize>(DashMap<[u8; K], [u8; V]>);

/// A reference to it.
pub struct DashHandle<'a, const K: usize, const V: usize>(&'a DashMap<[u8; K], [u8; V]>);

impl<const K: usize, const V: usize> RecordEngine for Dash<K, V> {
    type Handle<'a> = DashHandle<'a, K, V>;

    fn create(_: &Path, _: &RecordOptions) -> Result<Self> {
        Ok(Self(DashMap::new()))
    }

    fn note(&self) -> String {
        "dashmap: in memory alone, keys and values as arrays in the table, grows from nothing".to_owned()
    }

    fn handle(&self) -> Result<DashHandle<'_, K, V>> {
        Ok(DashHandle(&self.0))
    }

    fn data_bytes(&self) -> Result<u64> {
        Ok((self.0.len() * (K + V)) as u64)
    }
}

impl<const K: usize, const V: usize> RecordHandle for DashHandle<'_, K, V> {
    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.insert(key.try_into()?, value.try_into()?);
        Ok(())
    }

    #[inline]
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let key: &[u8; K] = key.try_into()?;
        let Some(found) = self.0.get(key) else { return Ok(false) };
        value.clear();
        value.extend_from_slice(&*found);
        Ok(true)
    }

    #[inline]
    fn modify<T>(&mut self, key: &[u8], mut change: impl FnMut(&mut [u8]) -> T) -> Result<Option<T>> {
        let key: &[u8; K] = key.try_into()?;
        Ok(self.0.get_mut(key).map(|mut found| change(&mut *found)))
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<bool> {
        let key: &[u8; K] = key.try_into()?;
        Ok(self.0.remove(key).is_some())
    }

    fn for_each(&mut self, mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
        let _ = self.0.iter().try_for_each(|record| visit(record.key(), record.value()));
        Ok(())
    }
}
