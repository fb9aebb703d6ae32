//! The same requests to a transaction and to a table.

use super::{
    Handle, Source,
    model::{Bounds, Key, Value},
    typed::{Tuple, decoded},
};
use crate::asynchronous::block_on;
use std::{io::Read, ops::Range};
use vellum::{AsyncEntries, Cursor, Entries, Prefix, Put, Result, ValueReader};

/// Ways to change one record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Call,
    Future,
    From,
    Many,
}

pub type Pairs = Vec<(Key, Value)>;

/// Does the same with the handle that knows the type of the keys and the decoded key, or with bytes.
macro_rules! typed_or_bytes {
    ($handle:expr, $is_typed:expr, $key:expr, |$table:ident, $decoded:ident| $body:expr) => {
        match $handle {
            Handle { texts: Some($table), .. } if $is_typed => {
                let $decoded = decoded::<String>($key);
                $body
            }
            Handle { tuples: Some($table), .. } if $is_typed => {
                let $decoded = decoded::<Tuple>($key);
                $body
            }
            Handle { bytes: $table, .. } => {
                let $decoded: &Key = $key;
                $body
            }
        }
    };
}

impl Source {
    pub fn put(&self, table: &Handle, key: &Key, value: &[u8], way: Way) -> Result<Put> {
        let (source, is_typed) = (&mut &value[..], value.len().is_multiple_of(2));
        typed_or_bytes!(table, is_typed, key, |table, key| match (&self.transaction, way) {
            (Some(transaction), Way::Call) => transaction.put(table, key, value),
            (Some(transaction), Way::Future) => block_on(transaction.put_async(table, key, value)),
            (Some(transaction), Way::From) => transaction.put_from(table, key, value.len() as u64, source),
            (Some(transaction), Way::Many) => Ok(transaction.multi_put(table, &[(key, value)])?[0]),
            (None, Way::Call) => table.put(key, value),
            (None, Way::Future) => block_on(table.put_async(key, value)),
            (None, Way::From) => table.put_from(key, value.len() as u64, source),
            (None, Way::Many) => table.multi_put(&[(key, value)]).remove(0),
        })
    }

    pub fn insert(&self, table: &Handle, key: &Key, value: &[u8], way: Way) -> Result<bool> {
        typed_or_bytes!(
            table,
            value.len().is_multiple_of(2),
            key,
            |table, key| match (&self.transaction, way) {
                (Some(transaction), Way::Future) => block_on(transaction.insert_async(table, key, value)),
                (Some(transaction), _) => transaction.insert(table, key, value),
                (None, Way::Future) => block_on(table.insert_async(key, value)),
                (None, _) => table.insert(key, value),
            }
        )
    }

    pub fn update(&self, table: &Handle, key: &Key, value: &[u8], way: Way) -> Result<bool> {
        typed_or_bytes!(
            table,
            value.len().is_multiple_of(2),
            key,
            |table, key| match (&self.transaction, way) {
                (Some(transaction), Way::Future) => block_on(transaction.update_async(table, key, value)),
                (Some(transaction), _) => transaction.update(table, key, value),
                (None, Way::Future) => block_on(table.update_async(key, value)),
                (None, Way::Many) => table.multi_update(&[(key, value)]).remove(0),
                (None, _) => table.update(key, value),
            }
        )
    }

    pub fn remove(&self, table: &Handle, key: &Key, way: Way) -> Result<bool> {
        typed_or_bytes!(table, way != Way::Many, key, |table, key| match (&self.transaction, way) {
            (Some(transaction), Way::Future) => block_on(transaction.remove_async(table, key)),
            (Some(transaction), _) => transaction.remove(table, key),
            (None, Way::Future) => block_on(table.remove_async(key)),
            (None, _) => table.remove(key),
        })
    }

    pub fn modify(&self, table: &Handle, key: &Key, way: Way, change: fn(&mut [u8])) -> Result<bool> {
        match (&self.transaction, way) {
            (Some(transaction), Way::Many) => {
                Ok(transaction.multi_modify(&table.bytes, &[key], |_, value| change(value))?[0])
            }
            (None, Way::Many) => table.bytes.multi_modify(&[key], |_, value| change(value)).remove(0),
            _ => {
                typed_or_bytes!(table, way != Way::From, key, |table, key| match &self.transaction {
                    Some(transaction) => Ok(transaction.modify(table, key, change)?.is_some()),
                    None => Ok(table.modify(key, change)?.is_some()),
                })
            }
        }
    }

    /// Replaces what is there; returns what was shown.
    pub fn update_with(&self, table: &Handle, key: &Key, new: Option<&Value>) -> Result<Option<Vec<u8>>> {
        let mut shown = None;
        let change = |value: Option<Vec<u8>>| {
            shown = value;
            new.map(|new| &new[..])
        };
        let is_typed = new.is_none_or(|new| new.len().is_multiple_of(2));
        typed_or_bytes!(table, is_typed, key, |table, key| match &self.transaction {
            Some(transaction) => transaction.update_with(table, key, change)?,
            None => table.update_with(key, change)?,
        });
        Ok(shown)
    }

    pub fn compare(&self, table: &Handle, key: &Key, old: &[u8], new: Option<&Value>) -> Result<bool> {
        typed_or_bytes!(
            table,
            old.len().is_multiple_of(2),
            key,
            |table, key| match (&self.transaction, new) {
                (Some(transaction), Some(new)) => transaction.compare_and_swap(table, key, old, &new[..]),
                (Some(transaction), None) => transaction.compare_and_remove(table, key, old),
                (None, Some(new)) => table.compare_and_swap(key, old, &new[..]),
                (None, None) => table.compare_and_remove(key, old),
            }
        )
    }

    pub fn pop(&self, table: &Handle, is_first: bool) -> Result<Option<(Key, Vec<u8>)>> {
        match table {
            Handle { texts: Some(texts), .. } => return self.pop_typed(texts, is_first),
            Handle { tuples: Some(tuples), .. } => return self.pop_typed(tuples, is_first),
            _ => {}
        }
        let bytes = &table.bytes;
        match (&self.transaction, is_first) {
            (Some(transaction), true) => transaction.pop_first(bytes),
            (Some(transaction), false) => transaction.pop_last(bytes),
            (None, true) => bytes.pop_first(),
            (None, false) => bytes.pop_last(),
        }
    }

    pub fn remove_range(&self, table: &Handle, bounds: &Bounds) -> Result<u64> {
        match &self.transaction {
            Some(transaction) => transaction.remove_range(&table.bytes, bounds.clone()),
            None => table.bytes.remove_range(bounds.clone()),
        }
    }

    pub fn get_part(&self, table: &Handle, key: &Key, part: Range<usize>) -> Result<Option<Vec<u8>>> {
        typed_or_bytes!(table, part.start.is_multiple_of(2), key, |table, key| match &self.transaction {
            Some(transaction) => transaction.get_part(table, key, part),
            None => table.get_part(key, part),
        })
    }

    pub fn reader<'s>(&'s self, table: &'s Handle, key: &Key) -> Result<Option<ValueReader<'s>>> {
        typed_or_bytes!(table, true, key, |table, key| match &self.transaction {
            Some(transaction) => transaction.reader(table, key),
            None => table.reader(key),
        })
    }

    pub fn multi_get(&self, table: &Handle, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>> {
        let all = match &self.transaction {
            Some(transaction) => transaction.multi_get(&table.bytes, keys)?,
            None => table.bytes.multi_get(keys),
        };
        all.into_iter().collect()
    }

    pub fn multi_get_with(
        &self,
        table: &Handle,
        keys: &[Key],
        part: Option<Range<usize>>,
        visit: impl FnMut(usize, Result<Option<&[u8]>>),
    ) -> Result<()> {
        let bytes = &table.bytes;
        match (&self.transaction, part) {
            (Some(transaction), None) => transaction.multi_get_with(bytes, keys, visit)?,
            (Some(transaction), Some(part)) => transaction.multi_get_part_with(bytes, keys, part, visit)?,
            (None, None) => bytes.multi_get_with(keys, visit),
            (None, Some(part)) => bytes.multi_get_part_with(keys, part, visit),
        }
        Ok(())
    }

    pub fn range<'s>(&'s self, table: &'s Handle, bounds: &Bounds, is_tracked: bool) -> Result<Entries<'s>> {
        match &self.transaction {
            Some(transaction) if is_tracked => transaction.range(&table.bytes, bounds.clone()),
            Some(transaction) => transaction.range_untracked(&table.bytes, bounds.clone()),
            None => table.bytes.range(bounds.clone()),
        }
    }

    pub fn range_async<'s>(
        &'s self,
        table: &'s Handle,
        bounds: &Bounds,
        is_tracked: bool,
    ) -> Result<AsyncEntries<'s>> {
        match &self.transaction {
            Some(transaction) if is_tracked => transaction.range_async(&table.bytes, bounds.clone()),
            Some(transaction) => transaction.range_untracked_async(&table.bytes, bounds.clone()),
            None => table.bytes.range_async(bounds.clone()),
        }
    }

    pub fn cursor<'s>(&'s self, table: &'s Handle, bounds: &Bounds) -> Result<Cursor<'s>> {
        match &self.transaction {
            Some(transaction) => transaction.cursor(&table.bytes, bounds.clone()),
            None => table.bytes.cursor(bounds.clone()),
        }
    }

    pub fn prefix<'s>(&'s self, table: &'s Handle, prefix: &Key) -> Result<Entries<'s>> {
        match &self.transaction {
            Some(transaction) => transaction.prefix(&table.bytes, prefix),
            None => table.bytes.prefix(prefix),
        }
    }

    pub fn count(&self, table: &Handle, bounds: &Bounds) -> Result<u64> {
        match &self.transaction {
            Some(transaction) => transaction.count(&table.bytes, bounds.clone()),
            None => table.bytes.count(bounds.clone()),
        }
    }

    pub fn count_of_prefix(&self, table: &Handle, prefix: &Key) -> Result<u64> {
        match &self.transaction {
            Some(transaction) => transaction.count(&table.bytes, Prefix(prefix)),
            None => table.bytes.count(Prefix(prefix)),
        }
    }

    pub fn end(&self, table: &Handle, is_first: bool) -> Result<Option<(Key, Vec<u8>)>> {
        let bytes = &table.bytes;
        match (&self.transaction, is_first) {
            (Some(transaction), true) => transaction.first(bytes),
            (Some(transaction), false) => transaction.last(bytes),
            (None, true) => bytes.first(),
            (None, false) => bytes.last(),
        }
    }

    pub fn lookups(&self, table: &Handle, keys: &[Key]) -> Result<Vec<(Key, Option<Vec<u8>>)>> {
        let owned = |(key, value): (&Key, Result<Option<Vec<u8>>>)| Ok((key.clone(), value?));
        match &self.transaction {
            Some(transaction) => transaction.lookups(&table.bytes, keys)?.map(owned).collect(),
            None => table.bytes.lookups(keys).map(owned).collect(),
        }
    }
}

/// Reads a value to its end, in the pieces that the reader makes.
pub fn read_all(reader: &mut ValueReader<'_>) -> Vec<u8> {
    let mut all = Vec::new();
    reader.read_to_end(&mut all).unwrap();
    all
}
