//! The same requests to a transaction and to a table.

use super::{Handle, Source};
use crate::asynchronous::block_on;
use std::{io::Read, ops::Range};
use vellum::{AsyncEntries, Cursor, Entries, Prefix, Put, Result, ValueReader};

use super::model::{Bounds, Key, Value};

/// Ways to change one record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Call,
    Future,
    From,
    Many,
}

pub type Pairs = Vec<(Key, Value)>;

impl Source {
    pub fn put(&self, table: &Handle, key: &Key, value: &[u8], way: Way) -> Result<Put> {
        let (bytes, source) = (&table.bytes, &mut &value[..]);
        match (table, way) {
            (Handle { texts: Some(texts), .. }, Way::Call) => return self.put_typed(texts, key, value),
            (Handle { tuples: Some(tuples), .. }, Way::Call) => return self.put_typed(tuples, key, value),
            _ => {}
        }
        match (&self.transaction, way) {
            (Some(transaction), Way::Call) => transaction.put(bytes, key, value),
            (Some(transaction), Way::Future) => block_on(transaction.put_async(bytes, key, value)),
            (Some(transaction), Way::From) => transaction.put_from(bytes, key, value.len() as u64, source),
            (Some(transaction), Way::Many) => Ok(transaction.multi_put(bytes, &[(key, value)])?[0]),
            (None, Way::Call) => bytes.put(key, value),
            (None, Way::Future) => block_on(bytes.put_async(key, value)),
            (None, Way::From) => bytes.put_from(key, value.len() as u64, source),
            (None, Way::Many) => bytes.multi_put(&[(key, value)]).remove(0),
        }
    }

    pub fn insert(&self, table: &Handle, key: &Key, value: &[u8], way: Way) -> Result<bool> {
        let bytes = &table.bytes;
        match (&self.transaction, way) {
            (Some(transaction), Way::Future) => block_on(transaction.insert_async(bytes, key, value)),
            (Some(transaction), _) => transaction.insert(bytes, key, value),
            (None, Way::Future) => block_on(bytes.insert_async(key, value)),
            (None, _) => bytes.insert(key, value),
        }
    }

    pub fn update(&self, table: &Handle, key: &Key, value: &[u8], way: Way) -> Result<bool> {
        let bytes = &table.bytes;
        match (&self.transaction, way) {
            (Some(transaction), Way::Future) => block_on(transaction.update_async(bytes, key, value)),
            (Some(transaction), _) => transaction.update(bytes, key, value),
            (None, Way::Future) => block_on(bytes.update_async(key, value)),
            (None, Way::Many) => bytes.multi_update(&[(key, value)]).remove(0),
            (None, _) => bytes.update(key, value),
        }
    }

    pub fn remove(&self, table: &Handle, key: &Key, way: Way) -> Result<bool> {
        let bytes = &table.bytes;
        match (&self.transaction, way) {
            (Some(transaction), Way::Future) => block_on(transaction.remove_async(bytes, key)),
            (Some(transaction), _) => transaction.remove(bytes, key),
            (None, Way::Future) => block_on(bytes.remove_async(key)),
            (None, _) => bytes.remove(key),
        }
    }

    pub fn modify(&self, table: &Handle, key: &Key, way: Way, change: fn(&mut [u8])) -> Result<bool> {
        let bytes = &table.bytes;
        match (&self.transaction, way) {
            (Some(transaction), Way::Many) => {
                Ok(transaction.multi_modify(bytes, &[key], |_, value| change(value))?[0])
            }
            (Some(transaction), _) => Ok(transaction.modify(bytes, key, change)?.is_some()),
            (None, Way::Many) => bytes.multi_modify(&[key], |_, value| change(value)).remove(0),
            (None, _) => Ok(bytes.modify(key, change)?.is_some()),
        }
    }

    /// Replaces what is there; returns what was shown.
    pub fn update_with(&self, table: &Handle, key: &Key, new: Option<&Value>) -> Result<Option<Vec<u8>>> {
        let mut shown = None;
        let change = |value: Option<Vec<u8>>| {
            shown = value;
            new.map(|new| &new[..])
        };
        match &self.transaction {
            Some(transaction) => transaction.update_with(&table.bytes, key, change)?,
            None => table.bytes.update_with(key, change)?,
        }
        Ok(shown)
    }

    pub fn compare(&self, table: &Handle, key: &Key, old: &[u8], new: Option<&Value>) -> Result<bool> {
        let bytes = &table.bytes;
        match (&self.transaction, new) {
            (Some(transaction), Some(new)) => transaction.compare_and_swap(bytes, key, old, &new[..]),
            (Some(transaction), None) => transaction.compare_and_remove(bytes, key, old),
            (None, Some(new)) => bytes.compare_and_swap(key, old, &new[..]),
            (None, None) => bytes.compare_and_remove(key, old),
        }
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
        match &self.transaction {
            Some(transaction) => transaction.get_part(&table.bytes, key, part),
            None => table.bytes.get_part(key, part),
        }
    }

    pub fn reader<'s>(&'s self, table: &'s Handle, key: &Key) -> Result<Option<ValueReader<'s>>> {
        match &self.transaction {
            Some(transaction) => transaction.reader(&table.bytes, key),
            None => table.bytes.reader(key),
        }
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
