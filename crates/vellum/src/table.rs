//! A table: an ordered map from bytes to bytes.

use crate::{
    BulkLoader, BulkOptions, Cursor, Error, KeyRange, Result, Task, Value, ValueReader, nested,
    open_transaction::OpenTransaction,
    range::end_of_prefix,
    shared::{Inner, OpenTable, Owned},
};
use std::{
    io::Read,
    ops::{Bound, Range},
    sync::Arc,
};
use vellum_access::{AccessError, Tree, TreeShape, Written};
use vellum_base::{PAGE_SIZE, PageId};
use vellum_pool::Pool;

/// A table of a database: an ordered map from keys of up to [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES) to
/// values of up to [`MAX_VALUE_BYTES`](crate::MAX_VALUE_BYTES). Keys are compared as bytes.
///
/// A cheap handle, to be cloned and given to threads: all operations take `&self`, and each is atomic. The
/// database cannot be closed while handles exist.
#[derive(Clone)]
pub struct Table {
    // What an operation needs is at hand; the rest keeps the table from being dropped.
    inner: Arc<Inner>,
    root: PageId,
    open: Arc<OpenTable>,
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

impl Table {
    pub(crate) fn new(inner: Arc<Inner>, open: Arc<OpenTable>) -> Self {
        Self { inner, root: open.root, open }
    }

    #[inline]
    #[track_caller]
    pub(crate) fn tree(&self) -> Tree<'_, Pool> {
        let tree = Tree::open(self.inner.pool(), self.root).with_append_hints(&self.open.ends);
        match self.inner.durable.view() {
            Some(view) => tree.with_view(view),
            None => tree,
        }
    }

    /// The tree, for a transaction of a database, which must be this table's.
    pub(crate) fn tree_of(&self, inner: &Arc<Inner>) -> Result<Tree<'_, Pool>> {
        if !Arc::ptr_eq(inner, &self.inner) {
            return Err(Error::OtherDatabase { table: self.name().to_owned() });
        }
        Ok(Tree::open(self.inner.pool(), self.root).with_append_hints(&self.open.ends))
    }

    #[track_caller]
    pub(crate) fn pool(&self) -> &Pool {
        self.inner.pool()
    }

    /// Changes the tree, and returns once that is as durable as it should be. While transactions are open the change is one of
    /// them, so that they see it or not.
    #[inline(always)]
    #[track_caller]
    fn change<T>(
        &self,
        mut change: impl FnMut(Tree<'_, Pool>) -> std::result::Result<T, AccessError>,
    ) -> Result<T> {
        match change(self.tree()) {
            Ok(done) => {
                self.inner.commit()?;
                Ok(done)
            }
            Err(AccessError::NeedsTransaction { .. }) => self.change_in_transaction(change),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a change as a transaction of its own.
    #[cold]
    #[inline(never)]
    fn change_in_transaction<T>(
        &self,
        mut change: impl FnMut(Tree<'_, Pool>) -> std::result::Result<T, AccessError>,
    ) -> Result<T> {
        loop {
            // It reads nothing but what it changes, so it is serializable as it is.
            let own = OpenTransaction::begin(&self.inner, false)?;
            let tree = self.tree_of(&self.inner)?.with_view(own.transaction.writing());
            match change(tree) {
                Ok(done) => return own.commit().map_err(|_| Error::Ended)?.commit().map(|()| done),
                // Another one was faster, and is done: this one comes after it.
                Err(AccessError::Conflict { committed: true, .. }) => own.rollback()?,
                Err(error) => return own.rollback().and(Err(self.named(error))),
            }
        }
    }

    /// Whether changes must be transactions, because some are open.
    pub(crate) fn needs_transactions(&self) -> bool {
        self.inner.durable.has_transactions()
    }

    /// One operation by itself.
    pub(crate) fn perform(&self, key: &[u8], task: &Task<impl AsRef<[u8]>>) -> Result<Owned> {
        let written = |put: bool, done: Written| if put { done } else { Written::Refused };
        Ok(match task {
            Task::Get => Owned::Value(self.get(key)?),
            Task::GetPart { offset, length } => {
                Owned::Value(self.get_part(key, *offset..offset.saturating_add(*length))?)
            }
            Task::Insert(value) => Owned::Written(written(self.insert(key, value)?, Written::Inserted)),
            Task::Update(value) => Owned::Written(written(self.update(key, value)?, Written::Replaced)),
            Task::Upsert(value) => Owned::Written(match self.put(key, value)? {
                Put::Inserted => Written::Inserted,
                Put::Replaced => Written::Replaced,
            }),
            Task::Remove => Owned::Removed(self.remove(key)?),
        })
    }

    /// An error, with the table's name.
    pub(crate) fn named(&self, error: AccessError) -> Error {
        match error {
            AccessError::Conflict { key, committed, .. } => {
                Error::Conflict { table: self.name().to_owned(), key, committed }
            }
            AccessError::NeedsTransaction { key, .. } => {
                Error::Conflict { table: self.name().to_owned(), key, committed: false }
            }
            error => error.into(),
        }
    }

    /// What keeps the database open, and the table from being dropped.
    pub(crate) fn handles(&self) -> (&Arc<Inner>, &Arc<OpenTable>) {
        (&self.inner, &self.open)
    }

    /// How many reads of one batch may be under way at once.
    pub(crate) fn read_depth(&self) -> usize {
        self.inner.read_depth
    }

    /// The table's name.
    pub fn name(&self) -> &str {
        &self.open.name
    }

    /// The value of `key`, copied.
    ///
    /// # Errors
    /// If the key is too long, or a page cannot be read or is damaged. A value that the pool has no room for is read
    /// past it; [`reader`](Self::reader) does not need memory for all of it.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        match self.tree().get(key.as_ref()).map_err(Error::from) {
            Err(error) if error.is_about_room() => self.read_whole(key.as_ref()),
            value => value,
        }
    }

    /// Replaces the contents of `target` by the value of `key`, and returns whether there is one; without
    /// one, `target` is empty. The fastest way to read small values, as it allocates nothing.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    #[inline]
    pub fn get_into(&self, key: impl AsRef<[u8]>, target: &mut Vec<u8>) -> Result<bool> {
        match self.tree().get_into(key.as_ref(), target).map_err(Error::from) {
            Err(error) if error.is_about_room() => {
                let whole = self.read_whole(key.as_ref())?;
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
    pub fn get_part(&self, key: impl AsRef<[u8]>, part: Range<usize>) -> Result<Option<Vec<u8>>> {
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
        key: impl AsRef<[u8]>,
        part: Range<usize>,
        target: &mut Vec<u8>,
    ) -> Result<bool> {
        Ok(self.tree().get_part_into(key.as_ref(), part, target)?)
    }

    /// The value of `key`, as one slice: a small one is copied, a large one is read where it lies, and stays
    /// latched as long as the result lives.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn value(&self, key: impl AsRef<[u8]>) -> Result<Option<Value<'_>>> {
        let value = self.tree().value(key.as_ref());
        Ok(value.map_err(|error| self.name_large(key.as_ref(), error.into()))?.map(Value))
    }

    /// A copy of a value that the pool has no room for: read in parts, past the pool.
    #[cold]
    pub(crate) fn read_whole(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        loop {
            let Some(mut reader) = self.reader(key)? else { return Ok(None) };
            let mut value = vec![0; reader.len() as usize];
            match reader.read_at(0, &mut value) {
                // It was replaced meanwhile.
                Err(Error::Access(AccessError::ValueChanged)) => {}
                done => return done.map(|_| Some(value)),
            }
        }
    }

    /// Says which value the pool has no room for, and what to do, if that is the error.
    #[cold]
    fn name_large(&self, key: &[u8], error: Error) -> Error {
        let length = if error.is_about_room() { self.value_length(key) } else { Ok(None) };
        match length {
            Ok(Some(bytes)) => Error::LargerThanPool {
                key: key.to_vec(),
                bytes,
                pool_bytes: self.inner.durable.pool().limit_pages() as u64 * PAGE_SIZE as u64,
            },
            _ => error,
        }
    }

    /// A reader of the value of `key` in parts, whatever its size.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn reader(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueReader<'_>>> {
        let (tree, key) = (self.tree(), key.as_ref());
        loop {
            if let Some(reader) = tree.reader(key)? {
                return Ok(Some(ValueReader::large(reader, self.pool())));
            }
            match tree.value(key)? {
                None => return Ok(None),
                // It was replaced by a large one in between: look again.
                Some(value) if value.is_in_place() => {}
                Some(value) => return Ok(Some(ValueReader::small(value.into_vec()))),
            }
        }
    }

    /// Whether `key` has a value.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.value_length(key)?.is_some())
    }

    /// The length of the value of `key` in bytes, without reading it.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn value_length(&self, key: impl AsRef<[u8]>) -> Result<Option<u64>> {
        Ok(self.tree().value_length(key.as_ref())?)
    }

    /// Stores `value` under `key`, replacing the value that it has, if any.
    ///
    /// # Errors
    /// If the key or the value is too long, the disk is full, or a page cannot be read or written. The table
    /// is then as it was.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Put> {
        Ok(self.change(|tree| tree.upsert(key.as_ref(), value.as_ref()))?.into())
    }

    /// Stores the next `length` bytes of `source` under `key`, without holding them in memory at once.
    ///
    /// # Errors
    /// As for [`put`](Self::put), and if `source` fails or ends too early.
    pub fn put_from(&self, key: impl AsRef<[u8]>, length: u64, source: &mut dyn Read) -> Result<Put> {
        let key = key.as_ref();
        // The source is read once: whether this must be a transaction is found out before.
        let written = if self.needs_transactions() {
            self.change_in_transaction(|tree| tree.upsert_from(key, length, source))?
        } else {
            let written = self.tree().upsert_from(key, length, source).map_err(|error| self.named(error))?;
            self.inner.commit()?;
            written
        };
        Ok(written.into())
    }

    /// Stores `value` under `key` if the key is new; returns whether it was.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        self.change(|tree| tree.insert(key.as_ref(), value.as_ref()))
    }

    /// Replaces the value of `key` if it has one; returns whether it did.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn update(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        self.change(|tree| tree.update(key.as_ref(), value.as_ref()))
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
    pub fn modify<T>(
        &self,
        key: impl AsRef<[u8]>,
        mut change: impl FnMut(&mut [u8]) -> T,
    ) -> Result<Option<T>> {
        let pool = self.pool();
        self.change(|tree| tree.modify(key.as_ref(), |value| nested::changing(pool, || change(value))))
    }

    /// Removes `key` and its value; returns whether it was there.
    ///
    /// # Errors
    /// If a page cannot be read or written.
    pub fn remove(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.change(|tree| tree.remove(key.as_ref()))
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
    pub fn bulk_loader(&self) -> Result<BulkLoader<'_>> {
        self.bulk_loader_with(&BulkOptions::default())
    }

    /// The same with options.
    ///
    /// # Errors
    /// As for [`bulk_loader`](Self::bulk_loader).
    pub fn bulk_loader_with(&self, options: &BulkOptions) -> Result<BulkLoader<'_>> {
        Ok(BulkLoader { load: self.tree().bulk_load(options.fill_percent)?, inner: &self.inner })
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
    pub fn bulk_load<K, V>(&self, entries: impl IntoIterator<Item = (K, V)>) -> Result<u64>
    where
        K: AsRef<[u8]>,
        V: AsRef<[u8]>,
    {
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
    pub fn range(&self, range: impl KeyRange) -> Result<Cursor<'_>> {
        let (lower, upper) = range.bounds();
        Ok(Cursor::new(self.tree().range(lower, upper)?, self.pool()))
    }

    /// A cursor over the entries whose keys begin with `prefix`.
    ///
    /// # Errors
    /// If the prefix is longer than a key can be.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Result<Cursor<'_>> {
        let prefix = prefix.as_ref();
        let end = end_of_prefix(prefix);
        let upper = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        Ok(Cursor::new(self.tree().range(Bound::Included(prefix), upper)?, self.pool()))
    }

    /// Counts the table's entries and their bytes, which reads all of it. Others may change it meanwhile; the
    /// numbers are then approximate.
    ///
    /// # Errors
    /// If a page cannot be read or is damaged.
    pub fn shape(&self) -> Result<TreeShape> {
        Ok(self.tree().shape()?)
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "table {:?}", self.name())
    }
}
