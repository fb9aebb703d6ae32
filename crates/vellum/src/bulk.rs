//! Loading a table from sorted input.

use crate::{AsKey, AsValue, KeyType, Result, ValueType, encoding::Types, handle::Handle, nested};
use std::{io::Read, marker::PhantomData};
use vellum_access::BulkLoad;
use vellum_base::PageId;
use vellum_pool::Pool;

/// How to load a table: see [`Table::bulk_loader_with`](crate::Table::bulk_loader_with).
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
    /// How full pages become, in percent, from 50 to 100 (what lies outside counts as the nearest of these); 100 by
    /// default. Full pages are the fewest, and the fastest to read. If entries will later be stored among those that
    /// are loaded, some room, say 90, saves splits in the beginning.
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

/// Loads a table from entries in the order of their keys: made by [`Table::bulk_loader`](crate::Table::bulk_loader), and as part of a
/// transaction by [`Transaction::bulk_loader`](crate::Transaction::bulk_loader).
///
/// The tree of the table is built from its leaves up, beside the table: pages are filled one after the other, lie
/// one after the other on storage, and are written in large requests where memory is short, without pushing out
/// what others use. Until [`finish`](Self::finish) nothing of it is visible, and others may use the table; if they
/// store something in it, `finish` fails. A loader that is dropped leaves the table as it was, and frees what it wrote.
///
/// Large values go to extents of their own, as ever; their bytes are written while they are pushed.
#[must_use = "nothing is loaded before `finish`"]
pub struct BulkLoader<'t, K: ?Sized = [u8], V: ?Sized = [u8]> {
    load: BulkLoad<'t, Pool>,
    table: &'t Handle,
    /// The tree of the table when the load began.
    root: PageId,
    /// As part of what transaction.
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

    /// Appends an entry, whose key is greater than all keys before it.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if the key is not greater than the one before, or key or
    /// value is too long. The entry is left out then, and the loader may be used on. If the
    /// disk is full or a page cannot be written, the load has failed: drop the loader.
    #[inline]
    pub fn push(&mut self, key: impl AsKey<K>, value: impl AsValue<V>) -> Result<()> {
        nested::check(self.table.inner.durable.pool());
        Ok(self.load.push(key.encoded().as_ref(), value.encoded_value()?.as_ref())?)
    }

    /// How many entries were pushed.
    pub fn count(&self) -> u64 {
        self.load.count()
    }

    /// Puts all entries into the table, at once for all threads, and returns how many they are. They are durable then like what any other
    /// operation has done; those that are part of a transaction are seen and durable when that is committed.
    ///
    /// # Errors
    /// [`AlreadyExists`](crate::ErrorKind::AlreadyExists) if something has been stored in the table meanwhile,
    /// [`Conflict`](crate::ErrorKind::Conflict) if it was cleared, or a transaction that is open loads, clears or drops it; and if a page
    /// cannot be written. The table is then as it was.
    pub fn finish(self) -> Result<u64> {
        let Self { load, table, root, part, .. } = self;
        nested::check(table.inner.durable.pool());
        if let Some(part) = part {
            return part.finish(table, load);
        }
        let finishing = table.begin_finishing(root)?;
        let count = load.finish().map_err(|error| table.refused(error))?;
        drop(finishing);
        table.inner.commit()?;
        Ok(count)
    }
}

impl<K: KeyType + ?Sized> BulkLoader<'_, K> {
    /// Appends an entry whose value is the next `length` bytes of `source`, without holding them in memory at once.
    ///
    /// # Errors
    /// As for [`push`](Self::push), and if `source` fails or ends too early; then, too, the loader may be used on.
    pub fn push_from(&mut self, key: impl AsKey<K>, length: u64, source: &mut dyn Read) -> Result<()> {
        nested::check(self.table.inner.durable.pool());
        Ok(self.load.push_from(key.encoded().as_ref(), length, source)?)
    }
}
