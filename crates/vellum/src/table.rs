//! A table: an ordered map from keys to values.

use crate::{
    AsKey, AsPrefix, AsValue, BulkLoader, BulkOptions, Cursor, Entries, KeyBuffer, KeyRange, KeyType, Prefix,
    Result, ValueType,
    encoding::Types,
    entries::Source,
    handle::{Exchange, Handle, exchange},
};
use std::{marker::PhantomData, ops::Bound};
use vellum_access::{AccessError, TreeShape, WriteMode, Written};
use vellum_pool::Pool;

/// Finds the key of an entry that is to be taken.
type Find = fn(&mut vellum_access::Cursor<'_, Pool>) -> std::result::Result<Option<KeyBuffer>, AccessError>;

/// A table of a database: an ordered map from keys of up to [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES) to values of up to
/// [`MAX_VALUE_BYTES`](crate::MAX_VALUE_BYTES).
///
/// A `Table` without type parameters maps bytes to bytes: keys are compared as bytes, and anything that has bytes may
/// be given. A [`TableName`](crate::TableName) names other types of keys and values: numbers, text, tuples, and others.
/// Their encoding preserves the order of the keys, see [`KeyType`]. The catalog stores the types, and a table can only
/// be opened with the same ones; [`as_bytes`](Self::as_bytes) shows the stored bytes.
///
/// A `Table` is a cheap handle, to be cloned and given to threads: all operations take `&self`, and each is atomic. The
/// database cannot be closed while handles exist.
///
/// A change of a record that an open transaction has changed waits for that transaction for 20 milliseconds, and then
/// fails with [`Error::Conflict`](crate::Error::Conflict): nothing has happened, and it may be tried again. For the next
/// transaction in its way it waits as long again, up to a second for all of them. Inside of
/// [`Database::run`](crate::Database::run), which tries again by itself, use the operations of the transaction.
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

/// The result of [`Table::put`].
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

    /// The same table as bytes: the encodings of its keys and values. Only such encodings should be stored through it;
    /// anything else is reported as damaged when it is read.
    pub fn as_bytes(&self) -> Table {
        Table::new(self.handle.clone())
    }
}

impl<K: KeyType + ?Sized, V: ValueType + ?Sized> Table<K, V> {
    /// The table's name at the time it was opened.
    pub fn name(&self) -> &str {
        &self.handle.name
    }

    /// The value of `key`, copied.
    ///
    /// # Errors
    /// If the key is too long, or a page cannot be read or is damaged. A value for which the pool has no room is read
    /// past the pool; [`reader`](Table::reader) does not need memory for all of it.
    /// [`Error::Malformed`](crate::Error::Malformed) if the stored bytes are no value of this type.
    #[inline]
    pub fn get(&self, key: impl AsKey<K>) -> Result<Option<V::Owned>> {
        let mut value = Vec::new();
        match self.handle.get_into(key.encoded().as_ref(), &mut value) {
            Ok(true) => self.handle.value_of::<V>(value.into()).map(Some),
            Ok(false) => Ok(None),
            Err(error) => Err(error),
        }
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
        let key = key.encoded();
        self.handle.find(|tree| Ok(tree.value_length(key.as_ref())?))
    }

    /// Stores `value` under `key`, replacing the previous value, if any.
    ///
    /// # Errors
    /// If the key or the value is too long, the disk is full, or a page cannot be read or written. The table
    /// is then as it was.
    pub fn put(&self, key: impl AsKey<K>, value: impl AsValue<V>) -> Result<Put> {
        let (key, value) = (key.encoded(), value.encoded_value()?);
        let (key, value) = (key.as_ref(), value.as_ref());
        Ok(self.handle.write(key, value, WriteMode::Upsert)?.into())
    }

    /// Stores `value` under `key` if the key has no value yet; returns whether it stored it.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn insert(&self, key: impl AsKey<K>, value: impl AsValue<V>) -> Result<bool> {
        let (key, value) = (key.encoded(), value.encoded_value()?);
        let (key, value) = (key.as_ref(), value.as_ref());
        Ok(self.handle.write(key, value, WriteMode::Insert)? == Written::Inserted)
    }

    /// Replaces the value of `key` if it has one; returns whether it did so.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn update(&self, key: impl AsKey<K>, value: impl AsValue<V>) -> Result<bool> {
        let (key, value) = (key.encoded(), value.encoded_value()?);
        let (key, value) = (key.as_ref(), value.as_ref());
        Ok(self.handle.write(key, value, WriteMode::Update)? == Written::Replaced)
    }

    /// Removes `key` and its value; returns whether the key was there.
    ///
    /// # Errors
    /// If a page cannot be read or written.
    pub fn remove(&self, key: impl AsKey<K>) -> Result<bool> {
        let key = key.encoded();
        let key = key.as_ref();
        self.handle.change(move |tree| tree.remove(key))
    }

    /// Begins to load entries in key order into this table, which must be empty. Much faster than storing them one by
    /// one: see [`BulkLoader`].
    ///
    /// The load is not part of a transaction: its entries appear all at once when it is finished, even to transactions
    /// that are already open. [`Transaction::bulk_loader`](crate::Transaction::bulk_loader) makes a load part of a
    /// transaction.
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
    /// [`ErrorKind::AlreadyExists`](crate::ErrorKind::AlreadyExists) if the table holds entries; also if it cannot be
    /// read, or the database is open for reading only.
    pub fn bulk_loader(&self) -> Result<BulkLoader<'_, K, V>> {
        self.bulk_loader_with(&BulkOptions::default())
    }

    /// As [`bulk_loader`](Self::bulk_loader), with options.
    ///
    /// # Errors
    /// As for [`bulk_loader`](Self::bulk_loader).
    pub fn bulk_loader_with(&self, options: &BulkOptions) -> Result<BulkLoader<'_, K, V>> {
        self.handle.check()?;
        let tree = self.handle.tree();
        Ok(BulkLoader::new(tree.bulk_load(options.fill_percent)?, (&self.handle, tree.root()), None))
    }

    /// Loads entries in key order into this table, which must be empty, and returns their number. All become visible at
    /// once; after an error the table is as it was.
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

    /// The entries of a range of keys, in key order: an iterator that can go in both directions. A range whose end lies
    /// before its beginning is empty.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// # let table = database.create_table("t")?;
    /// for key in ["a", "b", "c", "d"] {
    ///     table.put(key, "value")?;
    /// }
    /// for entry in table.range("b"..="c")?.rev() {
    ///     let (key, value) = entry?;
    ///     println!("{} bytes under {key:?}", value.len());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If a bound is longer than a key can be. The iterator's errors are those of [`get`](Self::get).
    pub fn range(&self, range: impl KeyRange<K>) -> Result<Entries<'_, K, V>> {
        Entries::begin(&self.handle, Source::Table, range.bounds())
    }

    /// The entries whose keys begin with `prefix`: some bytes or characters, or the first elements of a tuple.
    ///
    /// ```
    /// use vellum::TableName;
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// let visits = database.create_table(TableName::<(String, u32), ()>::new("visits"))?;
    /// visits.put(("ada", 3), ())?;
    /// visits.put(("ada", 1), ())?;
    /// visits.put(("adam", 2), ())?;
    /// let ada: Vec<u32> = visits.prefix(("ada",))?.map(|entry| Ok(entry?.0.1)).collect::<vellum::Result<_>>()?;
    /// assert_eq!(ada, [1, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`range`](Self::range).
    pub fn prefix(&self, prefix: impl AsPrefix<K>) -> Result<Entries<'_, K, V>> {
        self.range(Prefix(prefix))
    }

    /// A cursor over the entries of a range of keys, as bytes, for what an iterator cannot do: it can turn around, seek
    /// any key, and show many entries fast, where they lie ([`Cursor::scan`]).
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// # let table = database.create_table("t")?;
    /// for key in ["a", "b", "c", "d"] {
    ///     table.put(key, "value")?;
    /// }
    /// let mut cursor = table.cursor("b"..="c")?;
    /// cursor.seek_to_end();
    /// assert_eq!(cursor.previous()?.unwrap().key(), b"c");
    /// assert_eq!(cursor.previous()?.unwrap().key(), b"b");
    /// assert!(cursor.previous()?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If a bound is longer than a key can be.
    pub fn cursor(&self, range: impl KeyRange<K>) -> Result<Cursor<'_>> {
        self.handle.cursor(&range.bounds())
    }

    /// Whether the table has no entries. It looks for the first one, and reads no value.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// let fruit = database.create_table(vellum::TableName::<str, u32>::new("fruit"))?;
    /// assert!(fruit.is_empty()?);
    /// fruit.put("apples", 5)?;
    /// assert!(!fruit.is_empty()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.cursor(..)?.next()?.is_none())
    }

    /// The entry with the smallest key.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn first(&self) -> Result<Option<(K::Owned, V::Owned)>> {
        self.range(..)?.next().transpose()
    }

    /// The entry with the largest key.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn last(&self) -> Result<Option<(K::Owned, V::Owned)>> {
        self.range(..)?.next_back().transpose()
    }

    /// Removes the entry with the smallest key and returns it. Threads that call this at the same time each get a
    /// different entry. An entry with a smaller key that is stored at the same moment may be missed.
    ///
    /// ```
    /// use vellum::TableName;
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// let queue = database.create_table(TableName::<u64, str>::new("queue"))?;
    /// queue.put(1, "wash")?;
    /// queue.put(2, "dry")?;
    /// assert_eq!(queue.pop_first()?, Some((1, "wash".to_owned())));
    /// assert_eq!(queue.pop_last()?, Some((2, "dry".to_owned())));
    /// assert_eq!(queue.pop_first()?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`get`](Self::get) and [`remove`](Self::remove). After an error nothing has been removed.
    pub fn pop_first(&self) -> Result<Option<(K::Owned, V::Owned)>> {
        self.pop(|cursor| Ok(cursor.next()?.map(|entry| KeyBuffer::of::<[u8]>(entry.key()))))
    }

    /// Removes the entry with the largest key and returns it: see [`pop_first`](Self::pop_first).
    ///
    /// # Errors
    /// As for `pop_first`.
    pub fn pop_last(&self) -> Result<Option<(K::Owned, V::Owned)>> {
        self.pop(|cursor| {
            cursor.seek_to_end();
            Ok(cursor.previous()?.map(|entry| KeyBuffer::of::<[u8]>(entry.key())))
        })
    }

    fn pop(&self, find: Find) -> Result<Option<(K::Owned, V::Owned)>> {
        // After it has waited for a transaction, that one may have stored another entry before this one.
        self.handle.change(|tree| {
            loop {
                let key = find(&mut tree.range(Bound::Unbounded, Bound::Unbounded)?)?;
                let Some(key) = key else { return Ok(Ok(None)) };
                let mut popped = None;
                let done = exchange::<[u8; 0]>(tree, &key, &mut |value| {
                    popped = value.map(|value| self.entry_of(&key, value)).transpose()?;
                    Ok(Exchange::Remove)
                })?;
                if done.is_err() || popped.is_some() {
                    return Ok(done.map(|()| popped));
                }
            }
        })?
    }

    /// Counts the entries of a range, one by one.
    ///
    /// # Errors
    /// As for [`range`](Self::range); also if a page cannot be read or is damaged.
    pub fn count(&self, range: impl KeyRange<K>) -> Result<u64> {
        self.cursor(range)?.count()
    }

    /// Replaces the value of `key` with the result of `change`, which may have any length. `None` stands for no value,
    /// both as the argument and as the result. Atomic: if another thread changes the value meanwhile, `change` is
    /// called again with the new value.
    ///
    /// `change` runs without a latch and may use the database. To change a few bytes in place,
    /// [`modify`](Table::modify) is faster.
    ///
    /// ```
    /// use vellum::TableName;
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// let words = database.create_table(TableName::<str, u64>::new("words"))?;
    /// for word in "the more the merrier".split(' ') {
    ///     words.update_with(word, |count| Some(count.unwrap_or(0) + 1))?;
    /// }
    /// assert_eq!(words.get("the")?, Some(2));
    /// words.update_with("the", |count| count.filter(|count| *count > 2))?;
    /// assert_eq!(words.get("the")?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`get`](Self::get) and [`put`](Self::put). After an error the value is as it was.
    pub fn update_with<W: AsValue<V>>(
        &self,
        key: impl AsKey<K>,
        mut change: impl FnMut(Option<V::Owned>) -> Option<W>,
    ) -> Result<()> {
        self.handle.exchange(key.encoded().as_ref(), |value| self.changed(value, &mut change))
    }

    /// Stores `new` under `key` if the current value is `old`; returns whether it was. To store a value only if there
    /// is none, use [`insert`](Self::insert).
    ///
    /// If both are equal and the value is small, nothing is logged: it is only checked, and in a transaction reserved.
    ///
    /// Values are equal if their encodings are. Two equal hash maps or sets, in a `Serde` value, are usually encoded in
    /// different orders: use ordered ones, or [`update_with`](Self::update_with).
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// # let table = database.create_table("t")?;
    /// table.put("leader", "ada")?;
    /// assert!(table.compare_and_swap("leader", "ada", "alan")?);
    /// assert!(!table.compare_and_swap("leader", "ada", "grace")?);
    /// assert!(table.compare_and_remove("leader", "alan")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`get`](Self::get) and [`put`](Self::put). After an error the value is as it was.
    pub fn compare_and_swap(
        &self,
        key: impl AsKey<K>,
        old: impl AsValue<V>,
        new: impl AsValue<V>,
    ) -> Result<bool> {
        let new = new.encoded_value()?;
        self.compare_and(key, old, || Exchange::Store(new.as_ref()))
    }

    /// Removes `key` if the current value is `old`; returns whether it was. See
    /// [`compare_and_swap`](Self::compare_and_swap).
    ///
    /// # Errors
    /// As for `compare_and_swap`.
    pub fn compare_and_remove(&self, key: impl AsKey<K>, old: impl AsValue<V>) -> Result<bool> {
        self.compare_and(key, old, || Exchange::<&[u8]>::Remove)
    }

    fn compare_and<'b>(
        &self,
        key: impl AsKey<K>,
        old: impl AsValue<V>,
        new: impl Fn() -> Exchange<&'b [u8]>,
    ) -> Result<bool> {
        let (old, mut is_equal) = (old.encoded_value()?, false);
        self.handle.exchange(key.encoded().as_ref(), |value| {
            is_equal = value == Some(old.as_ref());
            Ok(if is_equal { new() } else { Exchange::Keep })
        })?;
        Ok(is_equal)
    }

    /// Counts the table's entries and their bytes, which reads the whole table. If other threads change it meanwhile,
    /// the numbers are approximate.
    ///
    /// # Errors
    /// If a page cannot be read or is damaged.
    pub fn shape(&self) -> Result<TreeShape> {
        Ok(self.handle.tree().shape()?)
    }

    /// Decodes an entry.
    pub(crate) fn entry_of(&self, key: &[u8], value: &[u8]) -> Result<(K::Owned, V::Owned)> {
        let value = self.handle.value_of::<V>(value.into()).map_err(|error| error.at(key))?;
        Ok((self.handle.key_of::<K>(key)?, value))
    }

    /// Calls `change` with a decoded value, and encodes its result.
    pub(crate) fn changed<W: AsValue<V>>(
        &self,
        value: Option<&[u8]>,
        change: &mut impl FnMut(Option<V::Owned>) -> Option<W>,
    ) -> Result<Exchange<Vec<u8>>> {
        Ok(match change(self.handle.value_if_any::<V>(value)?) {
            Some(new) => Exchange::Store(new.encoded_value()?.as_ref().to_vec()),
            None => Exchange::Remove,
        })
    }
}

impl<K: ?Sized, V: ?Sized> Clone for Table<K, V> {
    fn clone(&self) -> Self {
        Self::new(self.handle.clone())
    }
}

impl<K: ?Sized, V: ?Sized> std::fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "table {:?}", self.handle.name)
    }
}
