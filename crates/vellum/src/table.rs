//! A table: an ordered map from keys to values.

use crate::{
    AsKey, AsPrefix, AsValue, BulkLoader, BulkOptions, Cursor, Entries, KeyBuffer, KeyRange, KeyType, Prefix,
    Result, ValueType,
    encoding::Types,
    entries::Source,
    handle::{Exchange, Handle},
};
use std::{marker::PhantomData, ops::Bound};
use vellum_access::{TreeShape, WriteMode, Written};

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
    /// The table's name, when it was opened.
    pub fn name(&self) -> &str {
        &self.handle.name
    }

    /// The value of `key`, copied.
    ///
    /// # Errors
    /// If the key is too long, or a page cannot be read or is damaged. A value that the pool has no room for is read
    /// past it; [`reader`](Table::reader) does not need memory for all of it. [`Error::Malformed`](crate::Error::Malformed) if what is stored is no
    /// value of this type.
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
        Ok(self.handle.tree().value_length(key.encoded().as_ref())?)
    }

    /// Stores `value` under `key`, replacing the value that it has, if any.
    ///
    /// # Errors
    /// If the key or the value is too long, the disk is full, or a page cannot be read or written. The table
    /// is then as it was.
    pub fn put(&self, key: impl AsKey<K>, value: impl AsValue<V>) -> Result<Put> {
        let (key, value) = (key.encoded(), value.encoded_value()?);
        let (key, value) = (key.as_ref(), value.as_ref());
        Ok(self.handle.write(key, value, WriteMode::Upsert)?.into())
    }

    /// Stores `value` under `key` if the key is new; returns whether it was.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn insert(&self, key: impl AsKey<K>, value: impl AsValue<V>) -> Result<bool> {
        let (key, value) = (key.encoded(), value.encoded_value()?);
        let (key, value) = (key.as_ref(), value.as_ref());
        Ok(self.handle.write(key, value, WriteMode::Insert)? == Written::Inserted)
    }

    /// Replaces the value of `key` if it has one; returns whether it did.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn update(&self, key: impl AsKey<K>, value: impl AsValue<V>) -> Result<bool> {
        let (key, value) = (key.encoded(), value.encoded_value()?);
        let (key, value) = (key.as_ref(), value.as_ref());
        Ok(self.handle.write(key, value, WriteMode::Update)? == Written::Replaced)
    }

    /// Removes `key` and its value; returns whether it was there.
    ///
    /// # Errors
    /// If a page cannot be read or written.
    pub fn remove(&self, key: impl AsKey<K>) -> Result<bool> {
        let key = key.encoded();
        let key = key.as_ref();
        self.handle.change(move |tree| tree.remove(key))
    }

    /// Begins to load entries in the order of their keys into this table, which must be empty. Much faster than
    /// storing them one by one: see [`BulkLoader`].
    ///
    /// This load is no transaction: its entries appear at once when it is finished, to transactions that are open as well.
    /// [`Transaction::bulk_loader`](crate::Transaction::bulk_loader) makes a load part of one.
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
        self.handle.check()?;
        let tree = self.handle.tree();
        Ok(BulkLoader::new(tree.bulk_load(options.fill_percent)?, (&self.handle, tree.root()), None))
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

    /// The entries of a range of keys, in their order: an iterator that goes in both directions.
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

    /// The entries whose keys begin with `prefix`: with some bytes or characters, or the first elements of a tuple.
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

    /// A cursor over the entries of a range of keys, as bytes, for what an iterator cannot do: it turns, goes to any key, and shows
    /// entries without copying their values.
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

    /// The entry with the least key.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn first(&self) -> Result<Option<(K::Owned, V::Owned)>> {
        self.range(..)?.next().transpose()
    }

    /// The entry with the greatest key.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn last(&self) -> Result<Option<(K::Owned, V::Owned)>> {
        self.range(..)?.next_back().transpose()
    }

    /// Removes the entry with the least key, and returns it. Threads that do so at once each get another one. An entry with a
    /// lesser key that is stored at the same moment may be passed over.
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
    /// As for [`get`](Self::get) and [`remove`](Self::remove). Nothing is removed then.
    pub fn pop_first(&self) -> Result<Option<(K::Owned, V::Owned)>> {
        self.pop(|cursor| Ok(cursor.next()?.map(|entry| KeyBuffer::of::<[u8]>(entry.key()))))
    }

    /// Removes the entry with the greatest key, and returns it: see [`pop_first`](Self::pop_first).
    ///
    /// # Errors
    /// As for `pop_first`.
    pub fn pop_last(&self) -> Result<Option<(K::Owned, V::Owned)>> {
        self.pop(|cursor| {
            cursor.seek_to_end();
            Ok(cursor.previous()?.map(|entry| KeyBuffer::of::<[u8]>(entry.key())))
        })
    }

    fn pop(
        &self,
        find: impl Fn(&mut Cursor<'_>) -> Result<Option<KeyBuffer>>,
    ) -> Result<Option<(K::Owned, V::Owned)>> {
        loop {
            let mut cursor = self.handle.cursor(&(Bound::Unbounded, Bound::Unbounded))?;
            let Some(key) = find(&mut cursor)? else { return Ok(None) };
            let mut popped = None;
            self.handle.exchange::<[u8; 0]>(&key, |value| {
                popped = value.map(|value| self.entry_of(&key, value)).transpose()?;
                Ok(Exchange::Remove)
            })?;
            if popped.is_some() {
                return Ok(popped);
            }
        }
    }

    /// Counts the entries of a range, one by one.
    ///
    /// # Errors
    /// As for [`range`](Self::range); and if a page cannot be read or is damaged.
    pub fn count(&self, range: impl KeyRange<K>) -> Result<u64> {
        self.cursor(range)?.count()
    }

    /// Replaces the value of `key` by what `change` makes of it, whatever length that has: with `None` there is, or shall be, no
    /// value. Atomic: if another thread changes the value meanwhile, `change` is called again with the value that it has then.
    ///
    /// It holds no latch, and may use the database. To change a few bytes where they lie [`modify`](Table::modify) is faster.
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
    /// As for [`get`](Self::get) and [`put`](Self::put). The value is then as it was.
    pub fn update_with<W: AsValue<V>>(
        &self,
        key: impl AsKey<K>,
        mut change: impl FnMut(Option<V::Owned>) -> Option<W>,
    ) -> Result<()> {
        self.handle.exchange(key.encoded().as_ref(), |value| self.changed(value, &mut change))
    }

    /// Stores `new` under `key` if its value is `old`; returns whether it was. [`insert`](Self::insert) does so if there is none.
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
    /// As for [`get`](Self::get) and [`put`](Self::put). The value is then as it was.
    pub fn compare_and_swap(
        &self,
        key: impl AsKey<K>,
        old: impl AsValue<V>,
        new: impl AsValue<V>,
    ) -> Result<bool> {
        let new = new.encoded_value()?;
        self.compare_and(key, old, || Exchange::Store(new.as_ref()))
    }

    /// Removes `key` if its value is `old`; returns whether it was. See [`compare_and_swap`](Self::compare_and_swap).
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

    /// Counts the table's entries and their bytes, which reads all of it. Others may change it meanwhile; the
    /// numbers are then approximate.
    ///
    /// # Errors
    /// If a page cannot be read or is damaged.
    pub fn shape(&self) -> Result<TreeShape> {
        Ok(self.handle.tree().shape()?)
    }

    /// An entry that is stored as these bytes.
    pub(crate) fn entry_of(&self, key: &[u8], value: &[u8]) -> Result<(K::Owned, V::Owned)> {
        Ok((self.handle.key_of::<K>(key)?, self.handle.value_of::<V>(value.into())?))
    }

    /// What `change` makes of a value.
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
