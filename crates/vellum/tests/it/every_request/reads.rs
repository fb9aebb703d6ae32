//! Reads of records by their keys, and of the tables there are.

use super::{
    Handle, Run, Source,
    model::{CATALOG, Entries, Id, Key, short},
    requests::read_all,
    typed::Keys,
};
use crate::asynchronous::block_on;
use rand::RngExt;
use std::{
    fmt::Debug,
    io::{Seek, SeekFrom},
    ops::{Bound, Range},
};
use vellum::{ErrorKind, Result};

impl Run {
    /// Any read, compared with the model.
    pub fn read(&mut self) {
        if self.random.random_ratio(1, 12) {
            return self.read_tables();
        }
        let Some((source, table, handle)) = self.draw() else { return };
        let entries = self.entries(&source, table);
        match self.random.random_range(0..10) {
            0..3 => self.read_key(&source, table, &handle, &entries),
            3 => self.read_part(&source, table, &handle, &entries),
            4 => self.read_many(&source, table, &handle, &entries),
            9 if self.read_typed(&source, table, &handle, &entries) => {}
            _ => self.read_range(&source, table, &handle, &entries),
        }
    }

    /// The value of one key, in any way that shows all of it, or its length.
    fn read_key(&mut self, source: &Source, table: Id, handle: &Handle, entries: &Entries) {
        let key = self.draw_key(table, entries);
        let wanted = entries.get(&key).map(|value| &value[..]);
        let way = self.random.random_range(0..9);
        self.tell(format!("{} gets {table:?} {} in way {way}", source.text(), short(&key)));
        let mut is_tracked = true;
        let mut target = b"before".to_vec();
        let bytes = &handle.bytes;
        let length = wanted.map(|wanted| wanted.len() as u64);
        match (&source.transaction, way) {
            (Some(transaction), 0) => same(transaction.get(bytes, &key), wanted),
            (Some(transaction), 1) => {
                assert_eq!(transaction.get_into(bytes, &key, &mut target).unwrap(), wanted.is_some());
                assert!(target == wanted.unwrap_or_default(), "{}", short(&target));
            }
            (Some(transaction), 2) => {
                is_tracked = false;
                same(transaction.get_untracked(bytes, &key), wanted);
            }
            (Some(transaction), 3) => {
                assert_eq!(transaction.contains(bytes, &key).unwrap(), wanted.is_some())
            }
            (Some(transaction), 4 | 5) => same(block_on(transaction.get_async(bytes, &key)), wanted),
            (None, 0) => same(bytes.get(&key), wanted),
            (None, 1) => {
                assert_eq!(bytes.get_into(&key, &mut target).unwrap(), wanted.is_some());
                assert!(target == wanted.unwrap_or_default(), "{}", short(&target));
            }
            (None, 2) => match bytes.value(&key) {
                Ok(value) => assert!(value.as_deref() == wanted),
                Err(error) => self.expect_huge(&error, length),
            },
            (None, 3) => assert_eq!(bytes.contains(&key).unwrap(), wanted.is_some()),
            (None, 4) => assert_eq!(bytes.value_length(&key).unwrap(), length),
            (None, 5) => same(block_on(bytes.get_async(&key)), wanted),
            (_, 6) => {
                let Some(numbers) = &handle.numbers else { return };
                let number = u64::from_be_bytes(key[..].try_into().unwrap());
                match &source.transaction {
                    Some(transaction) => same(transaction.get(numbers, number), wanted),
                    None => same(numbers.get(number), wanted),
                }
            }
            _ => {
                let mut reader = source.reader(handle, &key).unwrap();
                assert_eq!(reader.as_ref().map(|reader| reader.len()), length);
                if let (Some(reader), Some(wanted)) = (&mut reader, wanted) {
                    assert!(read_all(reader) == wanted);
                }
            }
        }
        if is_tracked {
            self.model.note_key(source.number, table, &key);
        }
    }

    #[track_caller]
    fn expect_huge(&self, error: &vellum::Error, length: Option<u64>) {
        let is_about_room = matches!(error.kind(), ErrorKind::OutOfMemory);
        assert!(is_about_room && self.is_huge(length.unwrap_or(0) as usize), "{length:?}: {error:?}");
    }

    fn draw_part(&mut self, length: usize) -> Range<usize> {
        let begin = self.random.random_range(0..length + 3);
        // Also parts that end before they begin.
        let end = if self.random.random_ratio(1, 10) {
            begin / 2
        } else {
            begin + self.random.random_range(0..length + 3)
        };
        begin..end
    }

    fn read_part(&mut self, source: &Source, table: Id, handle: &Handle, entries: &Entries) {
        let key = self.draw_key(table, entries);
        let value = entries.get(&key).cloned();
        let part = self.draw_part(value.as_ref().map_or(5, |value| value.len()));
        self.tell(format!("{} gets {part:?} of {table:?} {}", source.text(), short(&key)));
        let wanted = value.as_ref().map(|value| part_of(value, &part));
        if self.random.random_ratio(1, 2) {
            same(source.get_part(handle, &key, part), wanted);
        } else {
            let mut reader = source.reader(handle, &key).unwrap();
            assert_eq!(reader.is_some(), wanted.is_some());
            if let (Some(reader), Some(value)) = (&mut reader, &value) {
                let mut buffer = vec![0; part.len()];
                let count = reader.read_at(part.start as u64, &mut buffer).unwrap();
                assert!(buffer[..count] == *part_of(value, &part));
                let back = self.random.random_range(0..value.len() + 1);
                reader.seek(SeekFrom::End(-(back as i64))).unwrap();
                assert!(read_all(reader) == value[value.len() - back..]);
            }
        }
        self.model.note_key(source.number, table, &key);
    }

    pub fn draw_keys(&mut self, table: Id, entries: &Entries) -> Vec<Key> {
        let count = if self.random.random_ratio(1, 5) { 120 } else { 12 };
        let mut keys: Vec<Key> =
            (0..self.random.random_range(0..count)).map(|_| self.draw_key(table, entries)).collect();
        if let Some(first) = keys.first().cloned()
            && self.random.random_ratio(1, 3)
        {
            keys.push(first);
        }
        keys
    }

    fn read_many(&mut self, source: &Source, table: Id, handle: &Handle, entries: &Entries) {
        let keys = self.draw_keys(table, entries);
        let way = self.random.random_range(0..6);
        self.tell(format!("{} gets {} of {table:?} in way {way}", source.text(), keys.len()));
        let wanted: Vec<Option<&[u8]>> =
            keys.iter().map(|key| entries.get(key).map(|value| &value[..])).collect();
        match way {
            0 => {
                let found = source.multi_get(handle, &keys).unwrap();
                assert!(found.iter().map(Option::as_deref).eq(wanted));
            }
            1 | 2 => {
                let part = (way == 2).then(|| self.draw_part(300));
                let mut next = 0;
                let visit = |place: usize, found: Result<Option<&[u8]>>| {
                    assert_eq!(place, next);
                    next += 1;
                    let wanted = wanted[place].map(|value| match &part {
                        Some(part) => part_of(value, part),
                        None => value,
                    });
                    match found {
                        Ok(found) => assert!(found == wanted, "{}", short(&keys[place])),
                        Err(error) => self
                            .expect_huge(&error, entries.get(&keys[place]).map(|value| value.len() as u64)),
                    }
                };
                source.multi_get_with(handle, &keys, part.clone(), visit).unwrap();
                assert_eq!(next, keys.len());
            }
            3 => {
                let found = source.lookups(handle, &keys).unwrap();
                assert!(found.iter().map(|(key, value)| (key, value.as_deref())).eq(keys.iter().zip(wanted)));
            }
            4 => {
                let Some(numbers) = &handle.numbers else { return };
                let all: Vec<u64> =
                    keys.iter().map(|key| u64::from_be_bytes(key[..].try_into().unwrap())).collect();
                let found = match &source.transaction {
                    Some(transaction) => transaction.multi_get(numbers, &all).unwrap(),
                    None => numbers.multi_get(&all),
                };
                assert!(
                    found
                        .into_iter()
                        .map(Result::unwrap)
                        .eq(wanted.iter().map(|value| value.map(<[u8]>::to_vec)))
                );
            }
            _ => {
                // Several futures at once.
                for key in &keys {
                    let wanted = entries.get(key).map(|value| &value[..]);
                    match &source.transaction {
                        Some(transaction) => {
                            same(block_on(transaction.get_async(&handle.bytes, key)), wanted)
                        }
                        None => same(block_on(handle.bytes.get_async(key)), wanted),
                    }
                }
            }
        }
        for key in &keys {
            self.model.note_key(source.number, table, key);
        }
    }

    fn read_tables(&mut self) {
        let source = self.draw_source();
        let names = match source.number {
            Some(number) => &self.model.open[&number].view.names,
            None => &self.model.view.names,
        };
        let listed = match &source.transaction {
            Some(transaction) => transaction.tables().unwrap(),
            None => self.database().tables().unwrap(),
        };
        assert!(listed.iter().map(|table| &table.name).eq(names.keys()), "{}: {listed:?}", source.text());
        for (table, id) in listed.iter().zip(names.values()) {
            let handle = &self.tables[id];
            let type_name = handle.keys.name();
            assert_eq!((table.is_plain, &table.key_type[..]), (handle.is_plain, type_name));
        }
        // A name leads to the table that has it.
        let name = format!("table {}", self.random.random_range(0..6));
        let found = match &source.transaction {
            Some(transaction) => transaction.table(name.as_str()).map(drop),
            None => self.database().table_as_bytes(&name).map(drop),
        };
        match names.get(&name) {
            None => assert_eq!(found.unwrap_err().kind(), ErrorKind::NotFound),
            // A transaction is asked for a table of bytes.
            Some(id) => {
                assert_eq!(found.is_ok(), source.number.is_none() || self.tables[id].keys == Keys::Bytes)
            }
        }
        self.model.note_read(source.number, CATALOG, (Bound::Unbounded, Bound::Unbounded), true);
    }
}

/// The bytes of a value that lie in a range and exist.
pub fn part_of<'v>(value: &'v [u8], part: &Range<usize>) -> &'v [u8] {
    value.get(part.start..part.end.min(value.len())).unwrap_or_default()
}

#[track_caller]
fn same<T: AsRef<[u8]> + Debug>(found: Result<Option<T>>, wanted: Option<&[u8]>) {
    let found = found.unwrap();
    let found = found.as_ref().map(AsRef::as_ref);
    assert!(found == wanted, "{:?} instead of {:?}", found.map(short), wanted.map(short));
}
