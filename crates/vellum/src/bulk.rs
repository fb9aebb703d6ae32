//! Loading a table from sorted input.

use crate::{AsKey, AsValue, Error, KeyType, Result, ValueType, encoding::Types, handle::Handle, nested};
use std::{io::Read, marker::PhantomData};
use vellum_access::{AccessError, BulkLoad};
use vellum_base::PageId;
use vellum_pool::Pool;

/// Options of a bulk load: see [`Table::bulk_loader_with`](crate::Table::bulk_loader_with).
#[derive(Clone, Debug)]
pub struct BulkOptions {
    pub(crate) fill_percent: u8,
}

impl Default for BulkOptions {
    fn default() -> Self {
        Self { fill_percent: 100 }
    }
}

impl BulkOptions {
    /// How full pages become, in percent, from 50 to 100 (values outside are clamped). Default 100. Full pages need the
    /// least space and are the fastest to read. If entries will later be stored among the loaded ones, some free space,
    /// say with 90, avoids splits at first.
    #[must_use]
    pub fn fill_percent(mut self, percent: u8) -> Self {
        self.fill_percent = percent;
        self
    }
}

/// A load as part of a transaction.
pub(crate) trait Part: Send {
    /// See [`BulkLoader::finish`].
    fn finish(self: Box<Self>, table: &Handle, load: BulkLoad<'_, Pool>) -> Result<u64>;
}

/// Loads a table from entries in key order. Made by [`Table::bulk_loader`](crate::Table::bulk_loader), and as part of a
/// transaction by [`Transaction::bulk_loader`](crate::Transaction::bulk_loader).
///
/// The tree is built from its leaves up, beside the table. Pages are filled one after the other, are contiguous on
/// storage, and are written in large requests if memory is short, without evicting pages that others use. Until
/// [`finish`](Self::finish) nothing of the load is visible, and others may use the table; if they store something in
/// it, `finish` fails. A loader that is dropped leaves the table as it was, and frees what it wrote.
///
/// Large values go to their own extents, as always; their bytes are written while they are pushed.
#[must_use = "nothing is loaded before `finish`"]
pub struct BulkLoader<'t, K: ?Sized = [u8], V: ?Sized = [u8]> {
    load: BulkLoad<'t, Pool>,
    table: &'t Handle,
    /// The tree of the table when the load began.
    root: PageId,
    /// The transaction of which the load is part, if any.
    part: Option<Box<dyn Part + 't>>,
    types: Types<K, V>,
}

impl<'t, K: KeyType + ?Sized, V: ValueType + ?Sized> BulkLoader<'t, K, V> {
    pub(crate) fn new(
        load: BulkLoad<'t, Pool>,
        (table, root): (&'t Handle, PageId),
        part: Option<Box<dyn Part + 't>>,
    ) -> Self {
        Self { load, table, root, part, types: PhantomData }
    }

    /// Appends an entry, whose key must be greater than all keys before it.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if the key is not greater than the one before, or the key or
    /// the value is too long. The entry is then left out, and the loader may still be used. If the disk is full or a
    /// page cannot be written, the load has failed: drop the loader.
    #[inline]
    pub fn push(&mut self, key: impl AsKey<K>, value: impl AsValue<V>) -> Result<()> {
        nested::check(self.table.inner.durable.pool());
        Ok(self.load.push(key.encoded().as_ref(), value.encoded_value()?.as_ref())?)
    }

    /// How many entries were pushed.
    pub fn count(&self) -> u64 {
        self.load.count()
    }

    /// Puts all entries into the table, atomically for all threads, and returns their number. They are then as durable
    /// as after any other operation; if the load is part of a transaction, they become visible and durable when that is
    /// committed.
    ///
    /// # Errors
    /// [`AlreadyExists`](crate::ErrorKind::AlreadyExists) if something has been stored in the table meanwhile,
    /// [`Conflict`](crate::ErrorKind::Conflict) if it was cleared, or an open transaction has changed or reserved records
    /// of it, or has tried to, or loads, clears or drops it; or if records of it were stored, removed, or reserved while absent, since one began, even
    /// if that was undone; also if a page cannot be written. After an error the table is as it was.
    pub fn finish(self) -> Result<u64> {
        let Self { load, table, root, part, .. } = self;
        nested::check(table.inner.durable.pool());
        if let Some(part) = part {
            return part.finish(table, load);
        }
        // A transaction that could not be rolled back until now may have removed records.
        table.inner.undo_rest()?;
        let is_empty = load.count() == 0;
        let count = load.finish_beside(|| table.begin_finishing(root, is_empty).map_err(Failed::Other));
        let count = count.map_err(|failed| match failed {
            Failed::Load(error) => table.refused(error),
            Failed::Other(error) => error,
        })?;
        table.inner.commit()?;
        Ok(count)
    }
}

/// Why a load has failed.
enum Failed {
    Load(AccessError),
    Other(Error),
}

impl From<AccessError> for Failed {
    fn from(error: AccessError) -> Self {
        Self::Load(error)
    }
}

impl<K: KeyType + ?Sized> BulkLoader<'_, K> {
    /// Appends an entry whose value is the next `length` bytes of `source`, without holding all of them in memory.
    ///
    /// # Errors
    /// As for [`push`](Self::push), and if `source` fails or ends too early; in that case, too, the loader may still be
    /// used.
    pub fn push_from(&mut self, key: impl AsKey<K>, length: u64, source: &mut dyn Read) -> Result<()> {
        nested::check(self.table.inner.durable.pool());
        Ok(self.load.push_from(key.encoded().as_ref(), length, source)?)
    }
}

impl<K: ?Sized, V: ?Sized> std::fmt::Debug for BulkLoader<'_, K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "load of table {:?}", self.table.name)
    }
}
