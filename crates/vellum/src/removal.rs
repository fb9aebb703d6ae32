//! Removing ranges of keys.

use crate::{
    Database, KeyBuffer, KeyRange, KeyType, Result, Table, Transaction, ValueType, handle::Handle,
    range::as_slice,
};
use std::ops::Bound;
use vellum_txn::Edge;

impl<K: KeyType + ?Sized, V: ValueType + ?Sized> Table<K, V> {
    /// Removes all entries of a range atomically, as its own transaction; returns how many there were. In a
    /// [plain](crate::TableOptions::versions) table they are removed one by one. To remove all entries of a table,
    /// [`Database::clear_table`] is faster.
    ///
    /// It is isolated as [`Options::isolation`](crate::Options::isolation) says. If that is not
    /// [`Serializable`](crate::IsolationLevel::Serializable), an entry that another transaction commits while the others are
    /// removed may stay.
    ///
    /// It waits for open transactions in its way, however long, and tries again, as [`Database::run`] does; other changes
    /// of a table give up after a moment. To limit that, use [`Database::run_with`].
    ///
    /// ```
    /// use vellum::TableName;
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// let log = database.create_table(TableName::<u64, str>::new("log"))?;
    /// for (time, what) in [(5, "woke up"), (8, "had breakfast"), (23, "slept")] {
    ///     log.put(time, what)?;
    /// }
    /// assert_eq!(log.remove_range(..20)?, 2);
    /// assert_eq!(log.first()?, Some((23, "slept".to_owned())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`range`](Self::range) and [`remove`](Self::remove). After an error nothing is removed, unless the table
    /// is plain.
    pub fn remove_range(&self, range: impl KeyRange<K>) -> Result<u64> {
        let (mut bounds, mut count) = (range.bounds(), 0);
        if !self.handle.is_plain() {
            let database = Database::of(&self.handle.inner);
            return database.run(|transaction| transaction.remove_bounds(&self.handle, &bounds));
        }
        loop {
            let mut cursor = self.handle.cursor(&bounds)?;
            let Some(key) = cursor.next()?.map(|entry| KeyBuffer::of::<[u8]>(entry.key())) else {
                return Ok(count);
            };
            drop(cursor);
            count += u64::from(self.handle.change(|tree| tree.remove(&key))?);
            bounds.0 = Bound::Excluded(key);
        }
    }
}

impl Transaction {
    /// Removes all keys of a range; returns how many there were.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn remove_range<K, V>(&self, table: &Table<K, V>, range: impl KeyRange<K>) -> Result<u64>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        self.remove_bounds(&table.handle, &range.bounds())
    }

    pub(crate) fn remove_bounds(
        &self,
        table: &Handle,
        (lower, upper): &(Bound<KeyBuffer>, Bound<KeyBuffer>),
    ) -> Result<u64> {
        /// How many keys are collected before they are removed.
        const KEYS: usize = 256;
        let mut lower = lower.clone();
        let root = self.read_keys(table, None::<&[u8]>)?.root();
        let edges = (Edge::lower(as_slice(&lower)), Edge::upper(as_slice(upper)));
        self.open.transaction.note_range(root, edges.0, edges.1);
        let mut count = 0;
        loop {
            let mut keys = Vec::with_capacity(KEYS);
            let mut cursor = self.read_untracked(table)?.range(as_slice(&lower), as_slice(upper))?;
            while keys.len() < KEYS
                && let Some(entry) = cursor.next()?
            {
                keys.push(KeyBuffer::of::<[u8]>(entry.key()));
            }
            drop(cursor);
            for key in &keys {
                count += u64::from(self.remove_bytes(table, key)?);
            }
            match keys.pop() {
                Some(last) if keys.len() + 1 == KEYS => lower = Bound::Excluded(last),
                _ => return Ok(count),
            }
        }
    }
}
