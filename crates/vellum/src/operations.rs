//! The operations of a transaction on records.

use crate::{
    AsKey, AsPrefix, AsValue, Cursor, Entries, KeyBuffer, KeyRange, KeyType, Prefix, Put, Result, Table,
    Transaction, ValueType,
    entries::{Reads, Source},
    handle::{Exchange, Handle},
    nested,
};
use std::ops::Bound;
use vellum_access::Tree;
use vellum_pool::Pool;

impl Transaction {
    /// The value of a key. See [`Table::get`].
    ///
    /// # Errors
    /// As for `Table::get`; [`Error::Ended`](crate::Error::Ended) after a conflict.
    pub fn get<K, V>(&self, table: &Table<K, V>, key: impl AsKey<K>) -> Result<Option<V::Owned>>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        let key = key.encoded();
        let value = table.handle.get_by(self.read_keys(&table.handle, [&key])?, key.as_ref())?;
        table.handle.value_if_any::<V>(value)
    }

    /// [`get`](Self::get) into a buffer. See [`Table::get_into`].
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn get_into<K>(&self, table: &Table<K>, key: impl AsKey<K>, target: &mut Vec<u8>) -> Result<bool>
    where
        K: KeyType + ?Sized,
    {
        let key = key.encoded();
        table.handle.get_into_by(self.read_keys(&table.handle, [&key])?, key.as_ref(), target)
    }

    /// [`get`](Self::get) of a value that need not stay unchanged until this transaction is committed. If this
    /// transaction is serializable, a change of the value by others does not make it fail.
    ///
    /// # Errors
    /// As for `get`.
    pub fn get_untracked<K, V>(&self, table: &Table<K, V>, key: impl AsKey<K>) -> Result<Option<V::Owned>>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        let value = self.get_bytes_untracked(&table.handle, key.encoded().as_ref())?;
        table.handle.value_if_any::<V>(value)
    }

    fn get_bytes_untracked(&self, table: &Handle, key: &[u8]) -> Result<Option<Vec<u8>>> {
        table.get_by(self.read_untracked(table)?, key)
    }

    /// The value of a key that this transaction is about to change, or that no other transaction may change meanwhile:
    /// until this transaction has ended, no other one can change the value, or store one if there is none.
    ///
    /// # Errors
    /// As for [`get`](Self::get); [`Error::Conflict`](crate::Error::Conflict) if another transaction has changed it.
    pub fn get_for_update<K, V>(&self, table: &Table<K, V>, key: impl AsKey<K>) -> Result<Option<V::Owned>>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        let (key, handle) = (key.encoded(), &table.handle);
        self.write(handle, |tree| tree.reserve(key.as_ref()))?;
        handle.value_if_any::<V>(self.get_bytes_untracked(handle, key.as_ref())?)
    }

    /// Whether a key has a value.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn contains<K, V>(&self, table: &Table<K, V>, key: impl AsKey<K>) -> Result<bool>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        let key = key.encoded();
        Ok(self.read_keys(&table.handle, [&key])?.value_length(key.as_ref())?.is_some())
    }

    /// The entries of a range of keys, in their order. See [`Table::range`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// let stock = database.create_table(vellum::TableName::<str, u32>::new("stock"))?;
    /// stock.put("apples", 5)?;
    /// stock.put("pears", 7)?;
    /// let all = database.run(|transaction| {
    ///     let mut sum = 0;
    ///     for entry in transaction.range(&stock, ..)? {
    ///         sum += entry?.1;
    ///     }
    ///     transaction.put(&stock, "in all", sum)?;
    ///     Ok(sum)
    /// })?;
    /// assert_eq!(all, 12);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn range<'t, K, V>(
        &'t self,
        table: &'t Table<K, V>,
        range: impl KeyRange<K>,
    ) -> Result<Entries<'t, K, V>>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        Entries::begin(&table.handle, Source::Transaction(self), range.bounds())
    }

    /// [`range`](Self::range) of entries that need not stay unchanged until this transaction is committed. If this
    /// transaction is serializable, a change of them by others does not make it fail.
    ///
    /// # Errors
    /// As for `range`.
    pub fn range_untracked<'t, K, V>(
        &'t self,
        table: &'t Table<K, V>,
        range: impl KeyRange<K>,
    ) -> Result<Entries<'t, K, V>>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        Entries::begin(&table.handle, Source::Untracked(self), range.bounds())
    }

    /// The entries whose keys begin with `prefix`. See [`Table::prefix`].
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn prefix<'t, K, V>(
        &'t self,
        table: &'t Table<K, V>,
        prefix: impl AsPrefix<K>,
    ) -> Result<Entries<'t, K, V>>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        self.range(table, Prefix(prefix))
    }

    /// A cursor over the entries of a range of keys, as bytes. See [`Table::cursor`].
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn cursor<'t, K, V>(&'t self, table: &'t Table<K, V>, range: impl KeyRange<K>) -> Result<Cursor<'t>>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        Source::Transaction(self).cursor(&table.handle, &range.bounds())
    }

    /// Counts the entries of a range, one by one. See [`Table::count`].
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn count<K, V>(&self, table: &Table<K, V>, range: impl KeyRange<K>) -> Result<u64>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        self.cursor(table, range)?.count()
    }

    /// Whether a table has no entries. See [`Table::is_empty`].
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn is_empty<K, V>(&self, table: &Table<K, V>) -> Result<bool>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        Ok(self.cursor(table, ..)?.next()?.is_none())
    }

    /// The entry with the smallest key.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn first<K, V>(&self, table: &Table<K, V>) -> Result<Option<(K::Owned, V::Owned)>>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        self.range(table, ..)?.next().transpose()
    }

    /// The entry with the largest key.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn last<K, V>(&self, table: &Table<K, V>) -> Result<Option<(K::Owned, V::Owned)>>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        self.range(table, ..)?.next_back().transpose()
    }

    /// Removes the entry with the smallest key and returns it.
    ///
    /// # Errors
    /// As for [`get`](Self::get) and [`remove`](Self::remove). If two transactions take the same entry, the second
    /// immediately gets a conflict.
    pub fn pop_first<K, V>(&self, table: &Table<K, V>) -> Result<Option<(K::Owned, V::Owned)>>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        loop {
            let mut cursor = self.cursor(table, ..)?;
            let Some(entry) = cursor.next()? else { return Ok(None) };
            if let Some(popped) = self.pop(table, entry.key())? {
                return Ok(Some(popped));
            }
        }
    }

    /// Removes the entry with the largest key and returns it: see [`pop_first`](Self::pop_first).
    ///
    /// # Errors
    /// As for `pop_first`.
    pub fn pop_last<K, V>(&self, table: &Table<K, V>) -> Result<Option<(K::Owned, V::Owned)>>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        loop {
            let mut cursor = self.cursor(table, ..)?;
            cursor.seek_to_end();
            let Some(entry) = cursor.previous()? else { return Ok(None) };
            if let Some(popped) = self.pop(table, entry.key())? {
                return Ok(Some(popped));
            }
        }
    }

    /// Removes an entry and returns it, unless another thread that shares the transaction has removed it.
    fn pop<K, V>(&self, table: &Table<K, V>, key: &[u8]) -> Result<Option<(K::Owned, V::Owned)>>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        let value = self.get_bytes_untracked(&table.handle, key)?;
        let Some(value) = value else { return Ok(None) };
        let popped = table.entry_of(key, &value)?;
        Ok(self.remove_bytes(&table.handle, key)?.then_some(popped))
    }

    /// Replaces the value of a key with the result of `change`, which may have any length. `None` stands for no value,
    /// both as the argument and as the result. `change` may use this transaction; if that changes the same value,
    /// `change` is called again. See [`Table::update_with`].
    ///
    /// # Errors
    /// As for [`get`](Self::get) and [`put`](Self::put).
    pub fn update_with<K, V, W: AsValue<V>>(
        &self,
        table: &Table<K, V>,
        key: impl AsKey<K>,
        mut change: impl FnMut(Option<V::Owned>) -> Option<W>,
    ) -> Result<()>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        self.exchange(&table.handle, key.encoded().as_ref(), |value| table.changed(value, &mut change))
    }

    /// Stores `new` under a key if the current value is `old`; returns whether it was. See [`Table::compare_and_swap`].
    ///
    /// # Errors
    /// As for [`get`](Self::get) and [`put`](Self::put).
    pub fn compare_and_swap<K, V>(
        &self,
        table: &Table<K, V>,
        key: impl AsKey<K>,
        old: impl AsValue<V>,
        new: impl AsValue<V>,
    ) -> Result<bool>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        let new = new.encoded_value()?;
        self.compare_and(table, key, old, || Exchange::Store(new.as_ref()))
    }

    /// Removes a key if the current value is `old`; returns whether it was. See [`Table::compare_and_swap`].
    ///
    /// # Errors
    /// As for [`get`](Self::get) and [`remove`](Self::remove).
    pub fn compare_and_remove<K, V>(
        &self,
        table: &Table<K, V>,
        key: impl AsKey<K>,
        old: impl AsValue<V>,
    ) -> Result<bool>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        self.compare_and(table, key, old, || Exchange::<&[u8]>::Remove)
    }

    fn compare_and<'b, K, V>(
        &self,
        table: &Table<K, V>,
        key: impl AsKey<K>,
        old: impl AsValue<V>,
        new: impl Fn() -> Exchange<&'b [u8]>,
    ) -> Result<bool>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        let (old, mut is_equal) = (old.encoded_value()?, false);
        self.exchange(&table.handle, key.encoded().as_ref(), |value| {
            is_equal = value == Some(old.as_ref());
            Ok(if is_equal { new() } else { Exchange::Keep })
        })?;
        Ok(is_equal)
    }

    /// Changes, stores or removes a value. For a serializable transaction this counts as a read, whatever the outcome.
    fn exchange<B: AsRef<[u8]>>(
        &self,
        table: &Handle,
        key: &[u8],
        mut change: impl FnMut(Option<&[u8]>) -> Result<Exchange<B>>,
    ) -> Result<()> {
        loop {
            let held = self.write(table, |tree| tree.held(key))?;
            // Before the caller sees the value: what follows may fail, or panic, and the transaction may go on.
            self.note_unchanged(table, key, true)?;
            // It may use this transaction, so it runs between two changes, and not in one.
            let new = match change(held.value())? {
                Exchange::Store(new) => Some(new),
                Exchange::Remove => None,
                Exchange::Keep => return Ok(()),
            };
            let new = new.as_ref().map(AsRef::as_ref);
            if self.write(table, |tree| tree.exchange(key, &held, new))? {
                return Ok(());
            }
        }
    }

    /// Stores a value under a key. See [`Table::put`].
    ///
    /// # Errors
    /// As for `Table::put`; [`Error::Conflict`](crate::Error::Conflict) if another transaction has changed the record, [`Error::Ended`](crate::Error::Ended) after that.
    pub fn put<K, V>(&self, table: &Table<K, V>, key: impl AsKey<K>, value: impl AsValue<V>) -> Result<Put>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        let (key, value) = (key.encoded(), value.encoded_value()?);
        let written = self.write(&table.handle, |tree| tree.upsert(key.as_ref(), value.as_ref()))?;
        Ok(written.into())
    }

    /// Stores a value under a key that has none; returns whether it stored it. See [`Table::insert`].
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn insert<K, V>(
        &self,
        table: &Table<K, V>,
        key: impl AsKey<K>,
        value: impl AsValue<V>,
    ) -> Result<bool>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        let (key, value) = (key.encoded(), value.encoded_value()?);
        let done = self.write(&table.handle, |tree| tree.insert(key.as_ref(), value.as_ref()))?;
        self.note_unchanged(&table.handle, &key, !done)?;
        Ok(done)
    }

    /// Replaces the value of a key that has one; returns whether it did so. See [`Table::update`].
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn update<K, V>(
        &self,
        table: &Table<K, V>,
        key: impl AsKey<K>,
        value: impl AsValue<V>,
    ) -> Result<bool>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        let (key, value) = (key.encoded(), value.encoded_value()?);
        let done = self.write(&table.handle, |tree| tree.update(key.as_ref(), value.as_ref()))?;
        self.note_unchanged(&table.handle, &key, !done)?;
        Ok(done)
    }

    /// Lets `change` change a value in place. See [`Table::modify`].
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    ///
    /// # Panics
    /// In debug builds, if `change` uses the database.
    pub fn modify<K: KeyType + ?Sized, T>(
        &self,
        table: &Table<K>,
        key: impl AsKey<K>,
        mut change: impl FnMut(&mut [u8]) -> T,
    ) -> Result<Option<T>> {
        let pool = table.handle.pool();
        let key = key.encoded();
        let change = |value: &mut [u8]| nested::latched(pool, || change(value));
        let keys = [&key];
        let _seen = SeenIfPanicking { transaction: self, table: &table.handle, keys: &keys };
        let done = self.write(&table.handle, |tree| tree.modify(key.as_ref(), change))?;
        self.note_unchanged(&table.handle, &key, done.is_none())?;
        Ok(done)
    }

    /// Removes a key and its value; returns whether the key was there. See [`Table::remove`].
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn remove<K, V>(&self, table: &Table<K, V>, key: impl AsKey<K>) -> Result<bool>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        self.remove_bytes(&table.handle, key.encoded().as_ref())
    }

    pub(crate) fn remove_bytes(&self, table: &Handle, key: &[u8]) -> Result<bool> {
        let done = self.write(table, |tree| tree.remove(key))?;
        self.note_unchanged(table, key, !done)?;
        Ok(done)
    }
}

impl Reads for Transaction {
    fn cursor_of<'t>(
        &'t self,
        table: &'t Handle,
        bounds: &(Bound<KeyBuffer>, Bound<KeyBuffer>),
    ) -> Result<Cursor<'t>> {
        self.read_range(table, bounds)
    }

    fn untracked_cursor_of<'t>(
        &'t self,
        table: &'t Handle,
        bounds: &(Bound<KeyBuffer>, Bound<KeyBuffer>),
    ) -> Result<Cursor<'t>> {
        self.read_range_untracked(table, bounds)
    }

    fn tree_of_noted<'t>(&'t self, table: &'t Handle) -> Result<Tree<'t, Pool>> {
        self.read_untracked(table)
    }

    fn value_of_noted(&self, table: &Handle, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.get_bytes_untracked(table, key)
    }
}

/// Notes values as read if a closure panics that may have seen them: its transaction may go on, without the change.
pub(crate) struct SeenIfPanicking<'t, K: AsRef<[u8]>> {
    pub(crate) transaction: &'t Transaction,
    pub(crate) table: &'t Handle,
    pub(crate) keys: &'t [K],
}

impl<K: AsRef<[u8]>> Drop for SeenIfPanicking<'_, K> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // If the table cannot be found, its keys are not noted, and the transaction cannot go on with it.
            let _ = self.transaction.read_keys(self.table, self.keys);
        }
    }
}
