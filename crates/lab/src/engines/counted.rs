//! A store whose transactions count the bytes that they change, for the measure of how much is written for them.
//!
//! Of an inserted record the key and the value count, of a changed one the value, of a removed one the key; of a transaction
//! that is not committed nothing.

use super::store::{Access, Session, Store, Transaction};
use super::{EngineOptions, Instance};
use crate::Result;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use vellum::{Arrival, Baton};

/// A store.
pub struct Counted<S> {
    inner: S,
    changed_bytes: AtomicU64,
}

/// A session, which tells the store what it has counted when it ends: threads do not share a counter meanwhile.
pub struct CountedSession<'a, S> {
    inner: S,
    changed_bytes: u64,
    total: &'a AtomicU64,
}

/// A transaction.
pub struct CountedTransaction<'t, T> {
    inner: T,
    changed_bytes: u64,
    total: &'t mut u64,
}

impl<S> Counted<S> {
    /// What all ended sessions have changed, in bytes.
    pub fn changed_bytes(&self) -> u64 {
        // Relaxed: a count; the threads that added to it have ended.
        self.changed_bytes.load(Ordering::Relaxed)
    }
}

impl<S: Store> Store for Counted<S> {
    type Session<'a> = CountedSession<'a, S::Session<'a>>;

    const HAS_TRANSACTIONS: bool = S::HAS_TRANSACTIONS;
    const COMMITS_LATER: bool = S::COMMITS_LATER;

    fn create(options: &EngineOptions, tables: &[&str]) -> Result<Self> {
        Ok(Self { inner: S::create(options, tables)?, changed_bytes: AtomicU64::new(0) })
    }

    fn session(&self) -> Result<Self::Session<'_>> {
        Ok(CountedSession { inner: self.inner.session()?, changed_bytes: 0, total: &self.changed_bytes })
    }

    fn settle(&self) -> Result<()> {
        self.inner.settle()
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }
}

impl<S: Store> Instance for Counted<S> {
    fn notes(&self) -> Vec<String> {
        self.inner.notes()
    }

    fn data_bytes(&self) -> Result<u64> {
        self.inner.data_bytes()
    }

    fn cache_bytes_max(&self) -> u64 {
        self.inner.cache_bytes_max()
    }

    fn statistics(&self) -> Result<serde_json::Value> {
        self.inner.statistics()
    }

    fn close(self) -> Result<()> {
        self.inner.close()
    }
}

impl<S> Drop for CountedSession<'_, S> {
    fn drop(&mut self) {
        // Relaxed: a count.
        self.total.fetch_add(self.changed_bytes, Ordering::Relaxed);
    }
}

impl<S: Session> Session for CountedSession<'_, S> {
    type Transaction<'t>
        = CountedTransaction<'t, S::Transaction<'t>>
    where
        Self: 't;

    #[inline]
    fn begin(&mut self, access: Access) -> Result<Self::Transaction<'_>> {
        let Self { inner, changed_bytes: total, .. } = self;
        Ok(CountedTransaction { inner: inner.begin(access)?, changed_bytes: 0, total })
    }

    fn wait_after(&mut self, conflict: &crate::Error) -> Option<Baton> {
        self.inner.wait_after(conflict)
    }
}

impl<T: Transaction> Transaction for CountedTransaction<'_, T> {
    #[inline]
    fn get<R>(&mut self, table: usize, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        self.inner.get(table, key, read)
    }

    #[inline]
    fn copy(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.inner.copy(table, key, value)
    }

    fn get_heads<K: AsRef<[u8]>>(
        &mut self,
        table: usize,
        keys: &[K],
        bytes: usize,
        visit: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        self.inner.get_heads(table, keys, bytes, visit)
    }

    #[inline]
    fn insert(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        self.changed_bytes += (key.len() + value.len()) as u64;
        self.inner.insert(table, key, value)
    }

    #[inline]
    fn modify<R>(
        &mut self,
        table: usize,
        key: &[u8],
        mut change: impl FnMut(&mut [u8]) -> R,
    ) -> Result<Option<R>> {
        let mut bytes = 0;
        let changed = self.inner.modify(table, key, |value| {
            bytes = value.len() as u64;
            change(value)
        });
        self.changed_bytes += bytes;
        changed
    }

    fn modify_all<K: AsRef<[u8]>>(
        &mut self,
        table: usize,
        keys: &[K],
        mut change: impl FnMut(usize, &mut [u8]),
    ) -> Result<bool> {
        let changed_bytes = &mut self.changed_bytes;
        self.inner.modify_all(table, keys, |place, value| {
            // A change that an engine repeats counts again, which is rare.
            *changed_bytes += value.len() as u64;
            change(place, value);
        })
    }

    fn remove(&mut self, table: usize, key: &[u8]) -> Result<bool> {
        let is_removed = self.inner.remove(table, key)?;
        self.changed_bytes += if is_removed { key.len() as u64 } else { 0 };
        Ok(is_removed)
    }

    #[inline]
    fn scan(
        &mut self,
        table: usize,
        first: &[u8],
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.inner.scan(table, first, visit)
    }

    #[inline]
    fn scan_some(
        &mut self,
        table: usize,
        first: &[u8],
        records: usize,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.inner.scan_some(table, first, records, visit)
    }

    fn for_each(&mut self, table: usize, visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
        self.inner.for_each(table, visit)
    }

    #[inline]
    fn commit(self) -> Result<()> {
        self.inner.commit()?;
        *self.total += self.changed_bytes;
        Ok(())
    }

    #[inline]
    fn commit_later(self) -> Result<Option<Arrival>> {
        let arrival = self.inner.commit_later()?;
        *self.total += self.changed_bytes;
        Ok(arrival)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::memory_store::MemoryStore;

    #[test]
    fn what_is_committed_counts() {
        let store = Counted { inner: MemoryStore::with(1), changed_bytes: AtomicU64::new(0) };
        let mut session = store.session().unwrap();
        let mut transaction = session.begin(Access::Write).unwrap();
        transaction.insert(0, b"key", &[0; 10]).unwrap();
        transaction.modify(0, b"key", |value| value.fill(1)).unwrap();
        assert!(transaction.modify(0, b"none", |_| ()).unwrap().is_none());
        assert!(transaction.modify_all(0, &[b"key"], |_, value| value.fill(2)).unwrap());
        assert!(!transaction.remove(0, b"none").unwrap());
        transaction.commit().unwrap();
        let mut transaction = session.begin(Access::Write).unwrap();
        assert!(transaction.remove(0, b"key").unwrap());
        transaction.commit_later().unwrap();
        session.begin(Access::Write).unwrap().insert(0, b"other", &[0; 100]).unwrap();
        assert_eq!(store.changed_bytes(), 0, "the session goes on");
        drop(session);
        assert_eq!(store.changed_bytes(), 3 + 10 + 10 + 10 + 3);
    }

    #[test]
    fn a_session_waits_after_a_conflict_as_the_engine_does() {
        let store = Counted { inner: MemoryStore::with(1), changed_bytes: AtomicU64::new(0) };
        assert!(store.session().unwrap().wait_after(&"conflict".into()).is_some());
    }
}
