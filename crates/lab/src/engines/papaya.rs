//! Another concurrent hash table in memory that persists nothing (the crate `papaya`), whose readers take no locks.

use super::records::{RecordEngine, RecordHandle, RecordOptions};
use crate::Result;
use ::papaya::HashMap;
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::path::Path;

/// The table, with keys of `K` bytes and values of `V` bytes.
pub struct Papaya<const K: usize, const V: usize>(HashMap<[u8; K], [u8; V]>);

/// A reference to it.
pub struct PapayaHandle<'a, const K: usize, const V: usize>(&'a HashMap<[u8; K], [u8; V]>);

impl<const K: usize, const V: usize> RecordEngine for Papaya<K, V> {
    type Handle<'a> = PapayaHandle<'a, K, V>;

    fn create(_: &Path, _: &RecordOptions) -> Result<Self> {
        Ok(Self(HashMap::new()))
    }

    fn note(&self) -> String {
        "papaya: in memory alone, keys and values as arrays, pinned for each operation, grows from nothing"
            .to_owned()
    }

    fn handle(&self) -> Result<PapayaHandle<'_, K, V>> {
        Ok(PapayaHandle(&self.0))
    }

    fn data_bytes(&self) -> Result<u64> {
        Ok((self.0.len() * (K + V)) as u64)
    }
}

impl<const K: usize, const V: usize> RecordHandle for PapayaHandle<'_, K, V> {
    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.pin().insert(key.try_into()?, value.try_into()?);
        Ok(())
    }

    #[inline]
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let key: &[u8; K] = key.try_into()?;
        let table = self.0.pin();
        let Some(found) = table.get(key) else { return Ok(false) };
        value.clear();
        value.extend_from_slice(found);
        Ok(true)
    }

    #[inline]
    fn modify<T>(&mut self, key: &[u8], change: impl FnMut(&mut [u8]) -> T) -> Result<Option<T>> {
        // The table wants a function that changes nothing; it calls it again if another thread was faster, never in itself.
        let state = RefCell::new((change, None));
        let changed = |value: &[u8; V]| {
            let mut value = *value;
            let (change, result) = &mut *state.borrow_mut();
            *result = Some(change(&mut value));
            value
        };
        let found = self.0.pin().update(key.try_into()?, changed).is_some();
        Ok(state.into_inner().1.filter(|_| found))
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<bool> {
        let key: &[u8; K] = key.try_into()?;
        Ok(self.0.pin().remove(key).is_some())
    }

    fn for_each(&mut self, mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
        let _ = self.0.pin().iter().try_for_each(|(key, value)| visit(key, value));
        Ok(())
    }
}
