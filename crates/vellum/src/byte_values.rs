//! Operations of tables whose values are bytes: parts of values, readers, and changes in place.

use crate::{
    AsKey, KeyType, Put, Result, Table, Transaction, Value, ValueReader, handle::with_result, nested,
};
use std::{io::Read, ops::Range};
use vellum_access::{AccessError, Tree};
use vellum_pool::{Pool, PoolError};

/// Operations that only values of bytes have.
impl<K: KeyType + ?Sized> Table<K> {
    /// Replaces the contents of `target` with the value of `key`, and returns whether there is one; if there is none,
    /// `target` is empty. The fastest way to read small values, as it allocates nothing.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    #[inline]
    pub fn get_into(&self, key: impl AsKey<K>, target: &mut Vec<u8>) -> Result<bool> {
        self.handle.get_into_inlined(key.encoded().as_ref(), target)
    }

    /// Some bytes of the value of `key`: those in the range `part` that exist, possibly none. `None` if there is no
    /// value.
    ///
    /// Of a value of up to 1 KiB no other bytes are touched, so reading a few bytes of many records costs fewer cache
    /// misses than [`get`](Self::get); of a larger value only the parts around these bytes are read from storage. To
    /// read many parts of one large value, use a [`reader`](Self::reader).
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// let table = database.create_table("t")?;
    /// table.put("key", "a long value")?;
    /// assert_eq!(table.get_part("key", 2..6)?, Some(b"long".to_vec()));
    /// assert_eq!(table.get_part("key", 7..100)?, Some(b"value".to_vec()));
    /// assert_eq!(table.get_part("none", 0..1)?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn get_part(&self, key: impl AsKey<K>, part: Range<usize>) -> Result<Option<Vec<u8>>> {
        let mut target = Vec::new();
        Ok(self.get_part_into(key, part, &mut target)?.then_some(target))
    }

    /// Replaces the contents of `target` with some bytes of the value of `key`: [`get_part`](Self::get_part) without an
    /// allocation. Returns whether there is a value; if there is none, `target` is empty.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    #[inline]
    pub fn get_part_into(
        &self,
        key: impl AsKey<K>,
        part: Range<usize>,
        target: &mut Vec<u8>,
    ) -> Result<bool> {
        let key = key.encoded();
        let read =
            |tree: Tree<'_, Pool>| Ok(tree.get_part_into(key.as_ref(), part.clone(), target)?.then_some(()));
        Ok(self.handle.find(read)?.is_some())
    }

    /// The value of `key` as one slice: a small value is copied, a large one is read in place, and stays latched as
    /// long as the result lives.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn value(&self, key: impl AsKey<K>) -> Result<Option<Value<'_>>> {
        let key = key.encoded();
        let value = self.handle.find(|tree| Ok(tree.value(key.as_ref())?));
        Ok(value.map_err(|error| self.handle.name_large(key.as_ref(), error))?.map(Value))
    }

    /// A reader of the value of `key` in parts, whatever its size.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn reader(&self, key: impl AsKey<K>) -> Result<Option<ValueReader<'_>>> {
        let key = key.encoded();
        self.handle.find(|tree| self.handle.reader(tree, key.as_ref()))
    }

    /// Stores the next `length` bytes of `source` under `key`, without holding all of them in memory. The room for them is
    /// taken first, so the length must be known.
    ///
    /// # Errors
    /// As for [`put`](Self::put), and if `source` fails or ends too early. `source` is read only once, and only after
    /// other transactions that have changed the record have ended: if one does not end, that is
    /// [`Error::Conflict`](crate::Error::Conflict).
    pub fn put_from(&self, key: impl AsKey<K>, length: u64, source: &mut dyn Read) -> Result<Put> {
        let (key, handle) = (key.encoded(), &self.handle);
        if handle.is_plain() {
            handle.check()?;
            let written = handle.tree().upsert_from(key.as_ref(), length, source);
            let written = written.map_err(|error| handle.refused(error))?;
            return handle.inner.commit().map(|()| written.into());
        }
        // The source can be read only once, so conflicts must be met before.
        let mut is_read = false;
        let change = |tree: Tree<'_, Pool>| {
            tree.reserve(key.as_ref())?;
            if std::mem::replace(&mut is_read, true) {
                // The snapshot was ended after the source was read.
                return Err(PoolError::Cancelled.into());
            }
            tree.upsert_from(key.as_ref(), length, source)
        };
        let written = with_result(change, |change| handle.change_in_turn(change))?;
        Ok(written.into())
    }

    /// Lets `change` change the bytes of the value of `key`, whose length stays the same, and returns the result of
    /// `change`; returns `None` without calling it if there is no value. Atomic: no other thread reads or writes the
    /// value in between.
    ///
    /// A value of up to 1 KiB is changed in place, without a copy, while no other thread can use its page: `change`
    /// must be short, and must not use the database, because it would wait for itself for ever. For a larger value
    /// `change` works on a copy, and may be called again if another thread replaces the value meanwhile; its last
    /// result counts. If `change` panics, the value is as it was; without a log, however, it may be half changed, and
    /// the database can no longer be closed cleanly.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// # let table = database.create_table("t")?;
    /// table.put("next", 1u64.to_le_bytes())?;
    /// let number = table.modify("next", |value| {
    ///     let number = u64::from_le_bytes(value.try_into().unwrap_or_default());
    ///     value.copy_from_slice(&(number + 1).to_le_bytes());
    ///     number
    /// })?;
    /// assert_eq!(number, Some(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`get`](Self::get) and [`put`](Self::put). After an error the value is as it was.
    ///
    /// # Panics
    /// In debug builds, if `change` uses the database.
    #[inline]
    pub fn modify<T>(&self, key: impl AsKey<K>, mut change: impl FnMut(&mut [u8]) -> T) -> Result<Option<T>> {
        let (key, pool) = (key.encoded(), self.handle.pool());
        self.handle.change(|tree| tree.modify(key.as_ref(), |value| nested::latched(pool, || change(value))))
    }
}

/// Large values in transactions.
impl Transaction {
    /// Some bytes of the value of a key. See [`Table::get_part`].
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn get_part<K: KeyType + ?Sized>(
        &self,
        table: &Table<K>,
        key: impl AsKey<K>,
        part: Range<usize>,
    ) -> Result<Option<Vec<u8>>> {
        let (key, mut target) = (key.encoded(), Vec::new());
        let tree = self.read_keys(&table.handle, [&key])?;
        Ok(tree.get_part_into(key.as_ref(), part, &mut target)?.then_some(target))
    }

    /// A reader of the value of a key in parts, as this transaction sees it. See [`Table::reader`].
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn reader<'t, K: KeyType + ?Sized>(
        &'t self,
        table: &'t Table<K>,
        key: impl AsKey<K>,
    ) -> Result<Option<ValueReader<'t>>> {
        let key = key.encoded();
        table.handle.reader(self.read_keys(&table.handle, [&key])?, key.as_ref())
    }

    /// Stores the next `length` bytes of `source` under a key, without holding all of them in memory. `source` may use
    /// this transaction. See [`Table::put_from`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// let pictures = database.create_table("pictures")?;
    /// let transaction = database.begin()?;
    /// transaction.put_from(&pictures, "white", 1 << 20, &mut std::io::repeat(255))?;
    /// let mut reader = transaction.reader(&pictures, "white")?.unwrap();
    /// assert_eq!(std::io::copy(&mut reader, &mut std::io::sink())?, 1 << 20);
    /// # drop(reader);
    /// transaction.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`put`](Self::put). If `source` fails or ends too early, nothing has happened, and the transaction may go
    /// on.
    pub fn put_from<K: KeyType + ?Sized>(
        &self,
        table: &Table<K>,
        key: impl AsKey<K>,
        length: u64,
        source: &mut dyn Read,
    ) -> Result<Put> {
        let (key, handle) = (key.encoded(), &table.handle);
        self.check()?;
        // The source may use this transaction, so no other change waits for it. What is read is no change yet: the
        // transaction is made ready for one in `write`.
        let tree = handle.tree_of(&self.open).map_err(|error| self.note_absence(handle, error))?;
        let prepared = tree.prepare(key.as_ref(), length, source).map_err(|error| match error {
            error @ AccessError::Source(_) => handle.named(error),
            error => self.die(handle.named(error)),
        })?;
        Ok(self.write(handle, |tree| tree.upsert_prepared(key.as_ref(), prepared))?.into())
    }
}
