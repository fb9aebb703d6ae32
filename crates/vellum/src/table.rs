//! A table: an ordered map from keys to values.

use crate::{
    AsKey, AsPrefix, AsValue, BulkLoader, BulkOptions, Cursor, Error, KeyBuffer, KeyRange, KeyType, Result,
    Value, ValueReader, ValueType,
    encoding::Types,
    handle::Handle,
    nested,
    range::{as_slice, end_of_prefix},
};
use std::{
    borrow::Cow,
    io::Read,
    marker::PhantomData,
    ops::{Bound, Range},
};
use vellum_access::{TreeShape, Written};

/// A table of a database: an ordered map from keys of up to [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES) to values of up to
/// [`MAX_VALUE_BYTES`](crate::MAX_VALUE_BYTES).
///
/// A `Table` without further types is one from bytes to bytes: keys are compared as bytes, and anything that has bytes may be
/// given. A [`TableName`](crate::TableName) says of which types keys and values are otherwise: numbers, text, tuples, and others.
/// Their encoding has the order of the keys, see [`KeyType`]. The catalog stores the types, and a table is opened with those
/// only; [`as_bytes`](Self::as_bytes) shows what is stored.
///
/// A cheap handle, to be cloned and given to threads: all operations take `&self`, and each is atomic. The
/// database cannot be closed while handles exist.
///
/// ```
/// use vellum::TableName;
///
/// const FRUIT: TableName<str, u32> = TableName::new("fruit");
///
/// # let directory = tempfile::tempdir()?;
/// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
/// let fruit = database.create_table(FRUIT)?;
/// fruit.put("apples", 5)?;
/// assert_eq!(fruit.get("apples")?, Some(5));
/// assert_eq!(fruit.get("pears")?, None);
///
/// let wrong = database.table(TableName::<str, f64>::new("fruit"));
/// assert!(wrong.unwrap_err().to_string().contains("u32"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Table<K: ?Sized = [u8], V: ?Sized = [u8]> {
    pub(crate) handle: Handle,
    types: Types<K, V>,
}

/// What [`Table::put`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Put {
    /// The key was new.
    Inserted,
    /// The key had a value, which was replaced.
    Replaced,
}

impl From<Written> for Put {
    fn from(written: Written) -> Self {
        match written {
            Written::Replaced => Self::Replaced,
            Written::Inserted | Written::Refused => Self::Inserted,
        }
    }
}

impl<K: ?Sized, V: ?Sized> Table<K, V> {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle, types: PhantomData }
    }

    /// The same table as bytes: the encodings of its keys and values. What is stored by it should be such encodings; what is
    /// not is found damaged when it is read.
    pub fn as_bytes(&self) -> Table {
        Table::new(self.handle.clone())
    }
}

impl<K: KeyType + ?Sized, V: ValueType + ?Sized> Table<K, V> {
    /// The table's name.
    pub fn name(&self) -> &str {
        &self.handle.open.name
    }

    /// The value of `key`, copied.
    ///
    /// # Errors
    /// If the key is too long, or a page cannot be read or is damaged. A value that the pool has no room for is read
    /// past it; [`reader`](Table::reader) does not need memory for all of it. [`Error::Malformed`] if what is stored is no
    /// value of this type.
    #[inline]
    pub fn get(&self, key: impl AsKey<K>) -> Result<Option<V::Owned>> {
        let key = key.encoded();
        self.value_if_any(self.handle.get(key.as_ref())?)
    }

    /// Whether `key` has a value.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn contains(&self, key: impl AsKey<K>) -> Result<bool> {
        Ok(self.value_length(key)?.is_some())
    }

    /// The length of the value of `key` in bytes, as it is stored, without reading it.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn value_length(&self, key: impl AsKey<K>) -> Result<Option<u64>> {
        Ok(self.handle.tree().value_length(key.encoded().as_ref())?)
    }

    /// Stores `value` under `key`, replacing the value that it has, if any.
    ///
    /// # Errors
    /// If the key or the value is too long, the disk is full, or a page cannot be read or written. The table
    /// is then as it was.
    pub fn put(&self, key: impl AsKey<K>, value: impl AsValue<V>) -> Result<Put> {
        let (key, value) = (key.encoded(), value.encoded_value()?);
        Ok(self.handle.change(|tree| tree.upsert(key.as_ref(), value.as_ref()))?.into())
    }

    /// Stores `value` under `key` if the key is new; returns whether it was.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn insert(&self, key: impl AsKey<K>, value: impl AsValue<V>) -> Result<bool> {
        let (key, value) = (key.encoded(), value.encoded_value()?);
        self.handle.change(|tree| tree.insert(key.as_ref(), value.as_ref()))
    }

    /// Replaces the value of `key` if it has one; returns whether it did.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn update(&self, key: impl AsKey<K>, value: impl AsValue<V>) -> Result<bool> {
        let (key, value) = (key.encoded(), value.encoded_value()?);
        self.handle.change(|tree| tree.update(key.as_ref(), value.as_ref()))
    }

    /// Removes `key` and its value; returns whether it was there.
    ///
    /// # Errors
    /// If a page cannot be read or written.
    pub fn remove(&self, key: impl AsKey<K>) -> Result<bool> {
        let key = key.encoded();
        self.handle.change(|tree| tree.remove(key.as_ref()))
    }

    /// Begins to load entries in the order of their keys into this table, which must be empty. Much faster than
    /// storing them one by one: see [`BulkLoader`].
    ///
    /// A load is no transaction: its entries appear at once when it is finished, to transactions that are open as well.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// let table = database.create_table("squares")?;
    /// let mut loader = table.bulk_loader()?;
    /// for number in 0..10_000u64 {
    ///     loader.push(number.to_be_bytes(), (number * number).to_le_bytes())?;
    /// }
    /// assert_eq!(loader.finish()?, 10_000);
    /// assert_eq!(table.get(12u64.to_be_bytes())?.as_deref(), Some(&144u64.to_le_bytes()[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`](crate::ErrorKind::AlreadyExists) if the table holds entries; and if it cannot be read,
    /// or the database is open for reading only.
    pub fn bulk_loader(&self) -> Result<BulkLoader<'_, K, V>> {
        self.bulk_loader_with(&BulkOptions::default())
    }

    /// The same with options.
    ///
    /// # Errors
    /// As for [`bulk_loader`](Self::bulk_loader).
    pub fn bulk_loader_with(&self, options: &BulkOptions) -> Result<BulkLoader<'_, K, V>> {
        Ok(BulkLoader::new(self.handle.tree().bulk_load(options.fill_percent)?, &self.handle.inner))
    }

    /// Loads entries in the order of their keys into this table, which must be empty, and returns how many there
    /// were. All become visible at once; after an error the table is as it was.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// let fruit = std::collections::BTreeMap::from([("pear", "green"), ("apple", "red")]);
    /// let table = database.create_table("fruit")?;
    /// assert_eq!(table.bulk_load(&fruit)?, 2);
    /// assert_eq!(table.get("pear")?.as_deref(), Some(&b"green"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`bulk_loader`](Self::bulk_loader), [`BulkLoader::push`] and [`BulkLoader::finish`].
    pub fn bulk_load<Q: AsKey<K>, W: AsValue<V>>(
        &self,
        entries: impl IntoIterator<Item = (Q, W)>,
    ) -> Result<u64> {
        let mut loader = self.bulk_loader()?;
        for (key, value) in entries {
            loader.push(key, value)?;
        }
        loader.finish()
    }

    /// A cursor over the entries of a range of keys.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// # let table = database.create_table("t")?;
    /// for key in ["a", "b", "c", "d"] {
    ///     table.put(key, "value")?;
    /// }
    /// let mut cursor = table.range("b"..="c")?;
    /// cursor.seek_to_end();
    /// assert_eq!(cursor.previous()?.unwrap().key(), b"c");
    /// assert_eq!(cursor.previous()?.unwrap().key(), b"b");
    /// assert!(cursor.previous()?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If a bound is longer than a key can be.
    pub fn range(&self, range: impl KeyRange<K>) -> Result<Cursor<'_>> {
        let (lower, upper) = range.bounds();
        let cursor = self.handle.tree().range(as_slice(&lower), as_slice(&upper))?;
        Ok(Cursor::new(cursor, self.handle.pool()))
    }

    /// A cursor over the entries whose keys begin with `prefix`.
    ///
    /// # Errors
    /// If the prefix is longer than a key can be.
    pub fn prefix(&self, prefix: impl AsPrefix<K>) -> Result<Cursor<'_>> {
        let (lower, upper) = bounds_of_prefix(prefix);
        let cursor = self.handle.tree().range(as_slice(&lower), as_slice(&upper))?;
        Ok(Cursor::new(cursor, self.handle.pool()))
    }

    /// Counts the table's entries and their bytes, which reads all of it. Others may change it meanwhile; the
    /// numbers are then approximate.
    ///
    /// # Errors
    /// If a page cannot be read or is damaged.
    pub fn shape(&self) -> Result<TreeShape> {
        Ok(self.handle.tree().shape()?)
    }

    /// The value that is stored as these bytes, if any are.
    #[inline]
    pub(crate) fn value_if_any<'v>(
        &self,
        bytes: Option<impl Into<Cow<'v, [u8]>>>,
    ) -> Result<Option<V::Owned>> {
        let Some(bytes) = bytes else { return Ok(None) };
        let value = V::from_bytes(bytes.into());
        value.map(Some).ok_or_else(|| self.malformed("value", V::type_name()))
    }

    #[cold]
    fn malformed(&self, what: &'static str, type_name: String) -> Error {
        Error::Malformed { table: self.name().to_owned(), what, type_name }
    }
}

/// What only values that are bytes have.
impl<K: KeyType + ?Sized> Table<K> {
    /// Replaces the contents of `target` by the value of `key`, and returns whether there is one; without
    /// one, `target` is empty. The fastest way to read small values, as it allocates nothing.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    #[inline]
    pub fn get_into(&self, key: impl AsKey<K>, target: &mut Vec<u8>) -> Result<bool> {
        let key = key.encoded();
        match self.handle.tree().get_into(key.as_ref(), target).map_err(Error::from) {
            Err(error) if error.is_about_room() => {
                let whole = self.handle.read_whole(key.as_ref())?;
                let found = whole.is_some();
                *target = whole.unwrap_or_default();
                Ok(found)
            }
            found => found,
        }
    }

    /// Some bytes of the value of `key`: those of `part` that it has, which may be none. `None` if there is no value.
    ///
    /// Of a value of up to 1 KiB no other bytes are touched, so reading a few bytes of many records costs fewer
    /// cache misses than [`get`](Self::get); of a larger one only the parts around them are read from storage. To
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

    /// Replaces the contents of `target` by some bytes of the value of `key`: [`get_part`](Self::get_part) without
    /// allocating. Returns whether there is a value; without one, `target` is empty.
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
        Ok(self.handle.tree().get_part_into(key.encoded().as_ref(), part, target)?)
    }

    /// The value of `key`, as one slice: a small one is copied, a large one is read where it lies, and stays
    /// latched as long as the result lives.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn value(&self, key: impl AsKey<K>) -> Result<Option<Value<'_>>> {
        let key = key.encoded();
        let value = self.handle.tree().value(key.as_ref());
        Ok(value.map_err(|error| self.handle.name_large(key.as_ref(), error.into()))?.map(Value))
    }

    /// A reader of the value of `key` in parts, whatever its size.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn reader(&self, key: impl AsKey<K>) -> Result<Option<ValueReader<'_>>> {
        self.handle.reader(key.encoded().as_ref())
    }

    /// Stores the next `length` bytes of `source` under `key`, without holding them in memory at once.
    ///
    /// # Errors
    /// As for [`put`](Self::put), and if `source` fails or ends too early.
    pub fn put_from(&self, key: impl AsKey<K>, length: u64, source: &mut dyn Read) -> Result<Put> {
        let (key, handle) = (key.encoded(), &self.handle);
        // The source is read once: whether this must be a transaction is found out before.
        let written = if handle.needs_transactions() {
            handle.change_in_transaction(|tree| tree.upsert_from(key.as_ref(), length, source))?
        } else {
            let written = handle.tree().upsert_from(key.as_ref(), length, source);
            let written = written.map_err(|error| handle.named(error))?;
            handle.inner.commit()?;
            written
        };
        Ok(written.into())
    }

    /// Lets `change` change the bytes of the value of `key`, whose length stays the same, and returns what it
    /// returns; `None`, without calling it, if there is no value. Atomic: no other thread reads or writes the value in
    /// between.
    ///
    /// A value of up to 1 KiB is changed where it lies, without a copy, while no other thread can use its page: be
    /// short, and do not use the database inside, which would wait for itself for ever. For a larger value `change`
    /// works on a copy, and may be called again if another thread replaces the value meanwhile; what it returned last
    /// counts. If it panics, the database cannot be closed cleanly any more.
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
    /// As for [`get`](Self::get) and [`put`](Self::put). The value is then as it was.
    ///
    /// # Panics
    /// In debug builds, if `change` uses the database.
    #[inline]
    pub fn modify<T>(&self, key: impl AsKey<K>, mut change: impl FnMut(&mut [u8]) -> T) -> Result<Option<T>> {
        let (key, pool) = (key.encoded(), self.handle.pool());
        self.handle.change(|tree| tree.modify(key.as_ref(), |value| nested::changing(pool, || change(value))))
    }
}

impl<K: ?Sized, V: ?Sized> Clone for Table<K, V> {
    fn clone(&self) -> Self {
        Self::new(self.handle.clone())
    }
}

impl<K: ?Sized, V: ?Sized> std::fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "table {:?}", self.handle.open.name)
    }
}

/// Where the keys lie that begin with something.
pub(crate) fn bounds_of_prefix<K: KeyType + ?Sized>(
    prefix: impl AsPrefix<K>,
) -> (Bound<KeyBuffer>, Bound<KeyBuffer>) {
    let mut lower = KeyBuffer::default();
    prefix.encode_prefix(&mut lower);
    let upper = end_of_prefix(&lower).map_or(Bound::Unbounded, Bound::Excluded);
    (Bound::Included(lower), upper)
}
