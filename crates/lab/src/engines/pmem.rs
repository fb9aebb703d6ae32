//! The store for persistent memory, on whatever the folder lies on.
//!
//! If that is not persistent memory (a tmpfs, as a stand-in), the lab vouches for it, so that cache lines are flushed and
//! fenced as they would be there. Space is reclaimed in the background, as by default.

use super::records::{RecordEngine, RecordHandle, RecordOptions};
use crate::Result;
use serde_json::json;
use std::ops::ControlFlow;
use std::path::Path;
use vellum_pmem::{Client, Layout, Options, Persistence, Store};

/// A store of one layout.
pub struct Pmem<L: Layout>(Store<L>);

/// A client of it.
pub struct PmemHandle<L: Layout>(Client<L>);

/// Layouts whose keys and values are made of any bytes.
pub trait FromBytes: Layout {
    /// A key, if the length is right.
    fn key(bytes: &[u8]) -> Result<&Self::Key>;
    /// A value, if the length is right.
    fn value(bytes: &[u8]) -> Result<&Self::Value>;
}

impl<const K: usize, const V: usize> FromBytes for vellum_pmem::Fixed<K, V> {
    fn key(bytes: &[u8]) -> Result<&[u8; K]> {
        Ok(bytes.try_into()?)
    }

    fn value(bytes: &[u8]) -> Result<&[u8; V]> {
        Ok(bytes.try_into()?)
    }
}

impl FromBytes for vellum_pmem::Variable {
    fn key(bytes: &[u8]) -> Result<&[u8]> {
        Ok(bytes)
    }

    fn value(bytes: &[u8]) -> Result<&[u8]> {
        Ok(bytes)
    }
}

impl<L: FromBytes> RecordEngine for Pmem<L> {
    type Handle<'a> = PmemHandle<L>;

    fn create(folder: &Path, _: &RecordOptions) -> Result<Self> {
        let options =
            Options { persistence: Some(Persistence::Dax), vouch_for_memory: true, ..Options::default() };
        Ok(Self(Store::create(folder.join("store"), &options)?))
    }

    fn note(&self) -> String {
        format!(
            "pmem: {}, cache lines are written back by {}; the folder {} persistent memory; checksums are on",
            self.0.statistics().shape,
            self.0.instruction().unwrap_or("nothing"),
            if self.0.is_confirmed() { "is" } else { "stands in for" },
        )
    }

    fn handle(&self) -> Result<PmemHandle<L>> {
        Ok(PmemHandle(self.0.client()?))
    }

    fn data_bytes(&self) -> Result<u64> {
        Ok(self.0.statistics().file_bytes)
    }

    fn statistics(&self) -> Result<serde_json::Value> {
        let statistics = self.0.statistics();
        Ok(json!({
            "records": statistics.records,
            "file_bytes": statistics.file_bytes,
            "index_bytes": statistics.index_bytes,
            "blocks": statistics.blocks,
            "blocks_free": statistics.blocks_free,
            "blocks_compacted": statistics.blocks_compacted,
        }))
    }
}

impl<L: FromBytes> RecordHandle for PmemHandle<L> {
    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.put(L::key(key)?, L::value(value)?)?;
        Ok(())
    }

    #[inline]
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        Ok(self.0.get_into(L::key(key)?, value)?)
    }

    #[inline]
    fn modify<T>(&mut self, key: &[u8], mut change: impl FnMut(&mut [u8]) -> T) -> Result<Option<T>> {
        let mut result = None;
        let found = self.0.update(L::key(key)?, |value| result = Some(change(value)))?;
        Ok(result.filter(|_| found))
    }

    #[inline]
    fn delete(&mut self, key: &[u8]) -> Result<bool> {
        Ok(self.0.delete(L::key(key)?)?)
    }

    fn for_each(&mut self, visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
        Ok(self.0.for_each(visit)?)
    }
}
