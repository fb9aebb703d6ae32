//! Many records in one call of a transaction: cache misses and reads overlap.

use crate::{
    Answer, AsKey, AsValue, KeyType, MAX_KEY_BYTES, MAX_VALUE_BYTES, Put, Result, Table, Task, Transaction,
    ValueType, handle::Handle, nested, operations::SeenIfPanicking,
};
use std::{collections::HashSet, ops::Range};
use vellum_access::{AccessError, Batch, Tree};
use vellum_pool::Pool;

/// How many records are changed before the room for undoing them is looked at again.
const PART: usize = 512;

impl Transaction {
    /// The values of many keys, in their order, all of the moment when this transaction began, with its own changes. See
    /// [`Table::multi_get`].
    ///
    /// # Errors
    /// Each lookup has its own error: as for [`get`](Self::get).
    pub fn multi_get<K, V, Q: AsKey<K>>(
        &self,
        table: &Table<K, V>,
        keys: &[Q],
    ) -> Result<Vec<Result<Option<V::Owned>>>>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        let keys: Vec<_> = keys.iter().map(AsKey::encoded).collect();
        let mut values = Vec::with_capacity(keys.len());
        table.handle.multi_get_by(self.read_keys(&table.handle, &keys)?, &keys, |_, value| {
            values.push(value.and_then(|value| table.handle.value_if_any::<V>(value)));
        });
        Ok(values)
    }

    /// [`multi_get`](Self::multi_get), but calls `visit` with each value instead of collecting them. See
    /// [`Table::multi_get_with`].
    ///
    /// # Errors
    /// As for [`get`](Self::get); in addition, each lookup has its own error.
    pub fn multi_get_with<K: AsRef<[u8]>>(
        &self,
        table: &Table,
        keys: &[K],
        visit: impl FnMut(usize, Result<Option<&[u8]>>),
    ) -> Result<()> {
        table.handle.multi_get_by(self.read_keys(&table.handle, keys)?, keys, visit);
        Ok(())
    }

    /// Some bytes of the values of many keys. See [`Table::multi_get_part_with`].
    ///
    /// # Errors
    /// Each lookup has its own error: as for [`get`](Self::get).
    pub fn multi_get_part_with<K: AsRef<[u8]>>(
        &self,
        table: &Table,
        keys: &[K],
        part: Range<usize>,
        mut visit: impl FnMut(usize, Result<Option<&[u8]>>),
    ) -> Result<()> {
        let tree = self.read_keys(&table.handle, keys)?;
        tree.multi_get_part(keys, table.handle.read_depth(), part, |index, value| {
            visit(index, value.map_err(Into::into))
        });
        Ok(())
    }

    /// Stores many values, each under its key, and returns for each what [`put`](Self::put) would. The result is that
    /// of puts one after the other: if a key occurs twice, its last value stays. But the puts overlap: while one waits
    /// for a cache line or for the device, the others proceed. If any key occurs twice, they do not overlap.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// use vellum::{Put, TableName};
    ///
    /// let stock = database.create_table(TableName::<str, u32>::new("stock"))?;
    /// stock.put("apples", 5)?;
    /// let puts = database.run(|transaction| transaction.multi_put(&stock, &[("apples", 6), ("pears", 7)]))?;
    /// assert_eq!(puts, [Put::Replaced, Put::Inserted]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If a key is longer than [`MAX_KEY_BYTES`], a value is longer than [`MAX_VALUE_BYTES`], or a value cannot be
    /// encoded: nothing has been stored then. Otherwise the first error that occurs, as for `put`:
    /// [`Error::Conflict`](crate::Error::Conflict) names the table and the key.
    pub fn multi_put<K, V, Q: AsKey<K>, W: AsValue<V>>(
        &self,
        table: &Table<K, V>,
        entries: &[(Q, W)],
    ) -> Result<Vec<Put>>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        let handle = &table.handle;
        let mut encoded = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            encoded.push((key.encoded(), value.encoded_value()?));
        }
        let pairs = || encoded.iter().map(|(key, value)| (key.as_ref(), value.as_ref()));
        pairs().try_for_each(|(key, value)| check_lengths(key, value))?;
        let mut puts = Vec::with_capacity(encoded.len());
        for part in encoded.chunks(PART) {
            let pairs = || part.iter().map(|(key, value)| (key.as_ref(), value.as_ref()));
            let mut seen = HashSet::with_capacity(part.len());
            let is_each_once = pairs().all(|(key, _)| seen.insert(key));
            self.write_part(handle, part.len(), |tree| {
                if !is_each_once {
                    return pairs().try_for_each(|(key, value)| {
                        puts.push(tree.upsert(key, value)?.into());
                        Ok(())
                    });
                }
                let mut failed = None;
                let tasks = pairs().map(|(key, value)| (key, Task::Upsert(value)));
                Batch::new(handle.pool(), handle.read_depth()).run(
                    tree,
                    tasks,
                    |_, _, answer| match answer {
                        Ok(Answer::Written(written)) => puts.push(written.into()),
                        // Only writes were asked for.
                        Ok(Answer::Value(_) | Answer::Removed(_)) => {}
                        Err(error) => failed = failed.take().or(Some(error)),
                    },
                );
                failed.map_or(Ok(()), Err)
            })?;
        }
        Ok(puts)
    }

    /// Changes many records of a table. The transaction then looks at what undoing them needs.
    fn write_part(
        &self,
        table: &Handle,
        count: usize,
        change: impl FnOnce(Tree<'_, Pool>) -> std::result::Result<(), AccessError>,
    ) -> Result<()> {
        self.write(table, change)?;
        if count == PART {
            self.open.transaction.expect_more();
        }
        Ok(())
    }

    /// Lets `change` change the values of many keys in place, each with its key's index; returns for each whether there
    /// was one. See [`Table::multi_modify`].
    ///
    /// # Errors
    /// If a key is longer than [`MAX_KEY_BYTES`]: nothing has been changed then. Otherwise the first error that occurs,
    /// as for [`put`](Self::put).
    ///
    /// # Panics
    /// In debug builds, if `change` uses the database.
    pub fn multi_modify<K: AsRef<[u8]>>(
        &self,
        table: &Table,
        keys: &[K],
        mut change: impl FnMut(usize, &mut [u8]),
    ) -> Result<Vec<bool>> {
        let table = &table.handle;
        keys.iter().try_for_each(|key| check_lengths(key.as_ref(), &[]))?;
        let pool = table.pool();
        let _seen = SeenIfPanicking { transaction: self, table, keys };
        let mut changed = Vec::with_capacity(keys.len());
        for part in keys.chunks(PART) {
            let first = changed.len();
            self.write_part(table, part.len(), |tree| {
                let mut failed = None;
                let change = |place, value: &mut [u8]| nested::latched(pool, || change(first + place, value));
                tree.multi_modify(part, table.read_depth(), change, |_, result| match result {
                    Ok(found) => changed.push(found),
                    Err(error) => failed = failed.take().or(Some(error)),
                });
                failed.map_or(Ok(()), Err)
            })?;
        }
        for (key, changed) in keys.iter().zip(&changed) {
            self.note_unchanged(table, key, !changed)?;
        }
        Ok(changed)
    }
}

/// # Errors
/// If a key or a value is longer than it can be.
fn check_lengths(key: &[u8], value: &[u8]) -> Result<()> {
    let bytes = value.len() as u64;
    if key.len() > MAX_KEY_BYTES {
        return Err(AccessError::KeyTooLong { bytes: key.len() }.into());
    }
    if bytes > MAX_VALUE_BYTES { Err(AccessError::ValueTooLong { bytes }.into()) } else { Ok(()) }
}
