//! Engines as stores of records: several tables, keys and values of any size, read and changed in place where
//! the engine allows it.
//!
//! A workload works in transactions. What they give differs: those of LMDB, SQLite, redb and fjall that write run one after
//! the other, each whole or not at all; so are those of Vellum and of RocksDB with a log, beside each other. The tables of
//! Vellum by themselves, and RocksDB without a log, have none, and each operation is atomic by itself. So a workload must be correct if only [`Transaction::modify`] and the other single operations are
//! atomic, and must find out whether it wants to go through with a transaction before its first change.

use super::{EngineOptions, Instance};
use crate::Result;
use ::vellum::{Arrival, Baton};
use std::ops::ControlFlow;

/// Whether a transaction failed because another one was faster, so that it is to be run again.
pub fn is_conflict(error: &crate::Error) -> bool {
    #[cfg(feature = "rocksdb")]
    if let Some(error) = error.downcast_ref::<::rocksdb::Error>() {
        use ::rocksdb::ErrorKind::{Busy, TimedOut, TryAgain};
        return matches!(error.kind(), Busy | TimedOut | TryAgain);
    }
    error.downcast_ref::<::vellum::Error>().is_some_and(|error| error.kind() == ::vellum::ErrorKind::Conflict)
}

/// What a transaction will do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Read only.
    Read,
    /// Read and change.
    Write,
}

/// Several tables, shared by threads. Tables are known by their number.
pub trait Store: Instance + Send + 'static {
    /// What one thread uses.
    type Session<'a>: Session
    where
        Self: 'a;

    /// Whether transactions happen as wholes, and each sees one moment.
    const HAS_TRANSACTIONS: bool;

    /// Whether a transaction can be committed without waiting until it is durable, so that a thread can serve many clients.
    const COMMITS_LATER: bool = false;

    /// Creates empty tables of these names.
    fn create(options: &EngineOptions, tables: &[&str]) -> Result<Self>;

    /// A session for the calling thread.
    fn session(&self) -> Result<Self::Session<'_>>;

    /// Finishes what goes on in the background after loading, where the engine does not do so in the rounds of others.
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    /// Makes all commits so far durable, whatever they have waited for, where the engine has a log that can be asked for that.
    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

/// What one thread uses.
pub trait Session {
    /// A transaction.
    type Transaction<'t>: Transaction
    where
        Self: 't;

    /// Begins a transaction. Where the engine has one writer at a time, this waits for it.
    fn begin(&mut self, access: Access) -> Result<Self::Transaction<'_>>;

    /// Waits after a conflict, as the engine advises, before the transaction is run again. What is returned is kept until
    /// that attempt has ended.
    fn wait_after(&mut self, conflict: &crate::Error) -> Option<Baton> {
        let _ = conflict;
        None
    }
}

/// A transaction, or, where the engine has none, a series of operations.
pub trait Transaction {
    /// Shows the value of `key` to `read`; `None` if there is none.
    fn get<T>(&mut self, table: usize, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>>;

    /// Copies the value of `key` to a buffer, whose contents are replaced; `false` if there is none.
    fn copy(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found = self.get(table, key, |found| {
            value.clear();
            value.extend_from_slice(found);
        })?;
        Ok(found.is_some())
    }

    /// Shows the first bytes of the values of several keys, in their order and with their places, and whether there is
    /// one. An engine that can looks for all of them at once; one that copies values copies only these bytes.
    fn get_heads<K: AsRef<[u8]>>(
        &mut self,
        table: usize,
        keys: &[K],
        bytes: usize,
        mut visit: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        for (place, key) in keys.iter().enumerate() {
            let head = |value: &[u8]| visit(place, Some(&value[..bytes.min(value.len())]));
            if self.get(table, key.as_ref(), head)?.is_none() {
                visit(place, None);
            }
        }
        Ok(())
    }

    /// Stores a record whose key is new.
    fn insert(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()>;

    /// Changes the value of `key` without changing its length; no other thread reads or writes it in between. `None`
    /// if there is none. `change` may be called again, with the value as it is then.
    fn modify<T>(
        &mut self,
        table: usize,
        key: &[u8],
        change: impl FnMut(&mut [u8]) -> T,
    ) -> Result<Option<T>>;

    /// Changes the values of several keys, each with its place among them, as [`modify`](Self::modify) does; one by one
    /// unless the engine can do better. `false` if one of them is missing; the others are changed all the same.
    fn modify_all<K: AsRef<[u8]>>(
        &mut self,
        table: usize,
        keys: &[K],
        mut change: impl FnMut(usize, &mut [u8]),
    ) -> Result<bool> {
        let mut all = true;
        for (place, key) in keys.iter().enumerate() {
            all &= self.modify(table, key.as_ref(), |value| change(place, value))?.is_some();
        }
        Ok(all)
    }

    /// Removes a record; `false` if there is none with this key. Of several threads that remove the same one, one
    /// is told `true`.
    fn remove(&mut self, table: usize, key: &[u8]) -> Result<bool>;

    /// Shows all records from `first` on, in the order of their keys, until `visit` breaks off.
    fn scan(
        &mut self,
        table: usize,
        first: &[u8],
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()>;

    /// [`scan`](Self::scan), of which it is known that `visit` breaks off after so many records at the latest.
    fn scan_some(
        &mut self,
        table: usize,
        first: &[u8],
        _records: usize,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.scan(table, first, visit)
    }

    /// Shows all records until `visit` breaks off, in whatever order, while no thread changes any.
    fn for_each(&mut self, table: usize, visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
        self.scan(table, &[], visit)
    }

    /// Ends the transaction, and waits until its changes are as durable as the run asks for.
    fn commit(self) -> Result<()>;

    /// As [`commit`](Self::commit), but gives what is to be waited for, where the [store can](Store::COMMITS_LATER).
    fn commit_later(self) -> Result<Option<Arrival>>
    where
        Self: Sized,
    {
        self.commit().map(|()| None)
    }
}
