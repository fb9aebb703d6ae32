//! Tables whose keys are neither bytes nor numbers only: what is shown must be in the order of their type.

use super::{
    Handle, Run, Source,
    model::{Entries, Id, Key, Value},
};
use crate::asynchronous::block_on;
use rand::RngExt;
use std::{
    collections::BTreeMap,
    fmt::Debug,
    ops::{Bound, RangeBounds},
};
use vellum::{AsKey, AsPrefix, KeyType, Prefix, Result, Table, Transaction};

/// The keys of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keys {
    Bytes,
    Numbers,
    Texts,
    Tuples,
}

impl Keys {
    pub const ALL: [Self; 4] = [Self::Bytes, Self::Numbers, Self::Texts, Self::Tuples];

    /// As the catalog calls them.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Numbers => "u64",
            Self::Texts => "str",
            Self::Tuples => "(u32, str, u8)",
        }
    }
}

pub type Tuple = (u32, String, u8);

/// Texts that begin like others, with characters of each length, also those that are encoded in a special way.
pub fn text(number: u64) -> String {
    let letter = ["a", "b", "\0", "\u{1}", "é", "\u{ffff}", "🦀"][number as usize % 7];
    match number / 7 {
        0 => letter.to_owned(),
        1 => String::new(),
        kind @ 2..6 => letter.repeat(kind as usize),
        kind @ 6..14 => {
            format!("a{letter}{}", ["", "\0", "\0\0", "\0\u{1}", "\u{1}", "z", "é", "\0z"][kind as usize - 6])
        }
        kind @ 14..18 => format!("{}{letter}", "much longer text ".repeat(kind as usize)),
        kind => format!("{letter}{kind}"),
    }
}

pub fn tuple(number: u64) -> Tuple {
    let first = [0, 1, 255, 256, 1 << 24, u32::MAX][number as usize % 6];
    // Texts inside of a tuple are encoded in another way than at its end.
    (first, text(number / 3), number as u8 % 3)
}

pub fn encoded<K: KeyType + ?Sized>(key: &impl AsKey<K>) -> Key {
    key.encoded().as_ref().to_vec()
}

pub fn decoded<K: KeyType + ?Sized>(key: &Key) -> K::Owned {
    K::from_bytes((&key[..]).into()).unwrap()
}

impl Run {
    /// Reads by a handle that knows the type. Whether there is one.
    pub fn read_typed(&mut self, source: &Source, table: Id, handle: &Handle, entries: &Entries) -> bool {
        let number = self.random.random_range(0..200);
        if let Some(texts) = &handle.texts {
            let mut prefix = text(number);
            while self.random.random_ratio(1, 2) && prefix.pop().is_some() {}
            let begins = |key: &String| key.starts_with(&prefix);
            self.read_in_order(source, texts, (0..200).map(text), entries, (prefix.as_str(), begins));
        } else if let Some(tuples) = &handle.tuples {
            let first = tuple(number).0;
            self.read_in_order(
                source,
                tuples,
                (0..200).map(tuple),
                entries,
                ((first,), |key: &Tuple| key.0 == first),
            );
        } else {
            return false;
        }
        self.model.note_read(source.number, table, (Bound::Unbounded, Bound::Unbounded), false);
        true
    }

    fn read_in_order<K>(
        &mut self,
        source: &Source,
        table: &Table<K, [u8]>,
        keys: impl Iterator<Item = K::Owned>,
        entries: &Entries,
        (prefix, begins): (impl AsPrefix<K>, impl Fn(&K::Owned) -> bool),
    ) where
        K: KeyType<Owned: AsKey<K> + Ord + Clone + Debug>,
    {
        let all: Vec<K::Owned> = keys.collect();
        let held: BTreeMap<K::Owned, Value> = all
            .iter()
            .filter_map(|key| Some((key.clone(), entries.get(&encoded::<K>(key))?.clone())))
            .collect();
        assert_eq!(held.len(), entries.len(), "other keys have the same encoding");
        let mut bound = || {
            let key = all[self.random.random_range(0..all.len())].clone();
            match self.random.random_range(0..5) {
                0 => Bound::Unbounded,
                1 | 2 => Bound::Included(key),
                _ => Bound::Excluded(key),
            }
        };
        let (bounds, key) = ((bound(), bound()), all[self.random.random_range(0..all.len())].clone());
        let way = self.random.random_range(0..11);
        self.tell(format!(
            "{} reads {bounds:?} or {key:?} in the order of the keys, way {way}",
            source.text()
        ));
        let within = held.iter().filter(|(key, _)| bounds.contains(*key));
        let transaction = source.transaction.as_deref();
        match way {
            0 | 1 => {
                let shown = match transaction {
                    Some(transaction) => transaction.range(table, bounds.clone()),
                    None => table.range(bounds.clone()),
                };
                same(shown.unwrap(), within, way == 1);
            }
            2 => {
                let shown = match transaction {
                    Some(transaction) => transaction.prefix(table, prefix),
                    None => table.prefix(prefix),
                };
                same(
                    shown.unwrap(),
                    held.iter().filter(|(key, _)| begins(key)),
                    self.random.random_ratio(1, 2),
                );
            }
            3 => {
                let ends = match transaction {
                    Some(transaction) => [transaction.first(table), transaction.last(table)],
                    None => [table.first(), table.last()],
                };
                let ends = ends.map(Result::unwrap);
                let owned = |entry: (&K::Owned, &Value)| (entry.0.clone(), entry.1.to_vec());
                assert_eq!(ends, [held.first_key_value().map(owned), held.last_key_value().map(owned)]);
            }
            4 => {
                let (count, wanted) = (within.count(), held.iter().filter(|(key, _)| begins(key)).count());
                let counts = match transaction {
                    Some(transaction) => {
                        [transaction.count(table, bounds.clone()), transaction.count(table, Prefix(prefix))]
                    }
                    None => [table.count(bounds.clone()), table.count(Prefix(prefix))],
                };
                assert_eq!(counts.map(Result::unwrap), [count as u64, wanted as u64]);
            }
            5..8 => {
                let count = self.random.random_range(0..90);
                let keys: Vec<K::Owned> =
                    (0..count).map(|_| all[self.random.random_range(0..all.len())].clone()).collect();
                many(transaction, table, &held, keys, way);
            }
            8 => {
                let mut cursor = match transaction {
                    Some(transaction) => transaction.cursor(table, bounds.clone()),
                    None => table.cursor(bounds.clone()),
                }
                .unwrap();
                for (key, _) in within {
                    assert_eq!(decoded::<K>(&cursor.next().unwrap().unwrap().key().to_vec()), *key);
                }
                assert!(cursor.next().unwrap().is_none());
                cursor.seek(encoded::<K>(&key)).unwrap();
                let previous = cursor.previous().unwrap().map(|entry| decoded::<K>(&entry.key().to_vec()));
                let wanted = held.keys().rfind(|held| **held < key && bounds.contains(*held));
                assert!(previous.as_ref() == wanted, "{previous:?} instead of {wanted:?}");
            }
            9 => {
                let mut shown = match transaction {
                    Some(transaction) => transaction.range_async(table, bounds.clone()),
                    None => table.range_async(bounds.clone()),
                }
                .unwrap();
                for (key, value) in within.rev() {
                    let shown = block_on(shown.next_back()).unwrap().unwrap();
                    assert!(shown.0 == *key && shown.1 == **value, "{:?} instead of {key:?}", shown.0);
                }
                assert!(block_on(shown.next_back()).is_none());
            }
            _ => {
                let shown = match transaction {
                    Some(transaction) => transaction.get(table, key.clone()),
                    None => table.get(key.clone()),
                };
                assert!(shown.unwrap().as_ref() == held.get(&key).map(|value| &**value), "{key:?}");
            }
        }
    }
}

/// What a lookup has found: the number of the key, the key, and its value.
type Found<K> = (usize, (K, Result<Option<Vec<u8>>>));

/// Reads these keys by one call.
fn many<K>(
    transaction: Option<&Transaction>,
    table: &Table<K, [u8]>,
    held: &BTreeMap<K::Owned, Value>,
    keys: Vec<K::Owned>,
    way: usize,
) where
    K: KeyType<Owned: AsKey<K> + Ord + Clone + Debug>,
{
    let shown: Vec<Option<Vec<u8>>> = match (transaction, way) {
        (Some(transaction), 5) => {
            transaction.multi_get(table, &keys).unwrap().into_iter().map(Result::unwrap).collect()
        }
        (None, 5) => table.multi_get(&keys).into_iter().map(Result::unwrap).collect(),
        _ => {
            let check = |(place, (key, value)): Found<K::Owned>| {
                assert_eq!(key, keys[place]);
                value.unwrap()
            };
            match transaction {
                Some(transaction) => {
                    let lookups = transaction.lookups(table, keys.iter().cloned()).unwrap();
                    lookups.enumerate().map(check).collect()
                }
                None => table.lookups(keys.iter().cloned()).enumerate().map(check).collect(),
            }
        }
    };
    assert_eq!(shown.len(), keys.len());
    for (key, value) in keys.iter().zip(shown) {
        assert!(value.as_ref() == held.get(key).map(|value| &**value), "{key:?}");
    }
}

fn same<'w, K: Ord + Debug + 'w>(
    shown: impl DoubleEndedIterator<Item = Result<(K, Vec<u8>)>>,
    wanted: impl DoubleEndedIterator<Item = (&'w K, &'w Value)>,
    is_backward: bool,
) {
    let shown: Vec<_> = if is_backward { shown.rev().collect() } else { shown.collect() };
    let shown: Vec<(K, Vec<u8>)> = shown.into_iter().map(Result::unwrap).collect();
    let wanted: Vec<_> = if is_backward { wanted.rev().collect() } else { wanted.collect() };
    let is_same =
        shown.iter().map(|(key, value)| (key, value)).eq(wanted.iter().map(|(key, value)| (*key, &***value)));
    let shown: Vec<_> = shown.iter().map(|entry| &entry.0).collect();
    let wanted: Vec<_> = wanted.iter().map(|entry| entry.0).collect();
    assert!(is_same, "{shown:?} instead of {wanted:?}, or other values");
}

impl Source {
    /// Takes the first or the last entry, and encodes its key.
    pub fn pop_typed<K>(&self, table: &Table<K, [u8]>, is_first: bool) -> Result<Option<(Key, Vec<u8>)>>
    where
        K: KeyType<Owned: AsKey<K>>,
    {
        let popped = match (&self.transaction, is_first) {
            (Some(transaction), true) => transaction.pop_first(table),
            (Some(transaction), false) => transaction.pop_last(table),
            (None, true) => table.pop_first(),
            (None, false) => table.pop_last(),
        };
        Ok(popped?.map(|(key, value)| (encoded::<K>(&key), value)))
    }
}
