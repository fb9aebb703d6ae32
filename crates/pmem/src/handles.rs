//! The handles of a store: [`Reader`] and [`Client`].

use crate::{
    core::{Core, Put, Writer},
    error::{PmemError, Result},
    file::FileMedium,
    format::{Format, Layout, Record},
    medium::Medium,
    reclaim,
    superblock::Shape,
};
use std::sync::Arc;

/// Reads a store. Cheap to create and to clone; threads may have their own or share one.
#[derive(Debug)]
pub struct Reader<L: Layout, M: Medium = FileMedium> {
    core: Arc<Core<L, M>>,
}

impl<L: Layout, M: Medium> Clone for Reader<L, M> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone() }
    }
}

/// How many keys of a batch are looked up at a time.
const PREFETCH: usize = 16;

impl<L: Layout, M: Medium> Reader<L, M> {
    pub(crate) fn new(core: Arc<Core<L, M>>) -> Self {
        Self { core }
    }

    /// The value of a key. The value is durable, and was current at some moment of the call.
    ///
    /// # Errors
    /// [`PmemError::Damaged`] if the index leads to something that is no longer a record.
    pub fn get(&self, key: &L::Key) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// Copies the value of a key into a buffer, replacing its contents; returns whether there is one.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    #[inline]
    pub fn get_into(&self, key: &L::Key, value: &mut Vec<u8>) -> Result<bool> {
        let key = key.as_ref();
        let take = |record: &Record| self.core.load_value(record, value);
        Ok(self.core.read(self.core.hash(key), key, take)?.is_some())
    }

    /// Whether there is a value for a key.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn contains(&self, key: &L::Key) -> Result<bool> {
        let key = key.as_ref();
        Ok(self.core.read(self.core.hash(key), key, |_| ())?.is_some())
    }

    /// The values of several keys, in their order. Their cache misses overlap.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_batch<'k>(&self, keys: impl IntoIterator<Item = &'k L::Key>) -> Result<Vec<Option<Vec<u8>>>>
    where
        L::Key: 'k,
    {
        let mut keys = keys.into_iter().map(|key| (self.core.hash(key.as_ref()), key.as_ref())).peekable();
        let mut values = Vec::with_capacity(keys.size_hint().0);
        while keys.peek().is_some() {
            let group: Vec<(u64, &[u8])> = keys.by_ref().take(PREFETCH).collect();
            self.core.prefetch_all(group.iter().map(|(hash, _)| *hash));
            for (hash, key) in group {
                let mut value = Vec::new();
                let take = |record: &Record| self.core.load_value(record, &mut value);
                let found = self.core.read(hash, key, take)?.is_some();
                values.push(found.then_some(value));
            }
        }
        Ok(values)
    }

    /// Calls `visit` with all records, in no particular order, until it breaks off. A record that exists throughout is
    /// shown exactly once, with a value that it had at some moment of the call; a record that is stored or deleted
    /// meanwhile may or may not be shown.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn for_each(&self, mut visit: impl FnMut(&[u8], &[u8]) -> std::ops::ControlFlow<()>) -> Result<()> {
        let core = &self.core;
        let (mut hashes, mut cursor) = (Vec::new(), Some(0));
        let mut found: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        while let Some(at) = cursor {
            cursor = core.index.visit(at, &mut hashes);
            for hash in &hashes {
                found.clear();
                // All keys with the same hash are shown: each is found by skipping those already found.
                loop {
                    let (mut key, mut value) = (Vec::new(), Vec::new());
                    let next = core.read_matching(*hash, |record| {
                        record.load_key(&core.medium, &mut key);
                        core.load_value(record, &mut value);
                        // While others write, an entry may show a record with another hash.
                        let is_next =
                            core.hash(&key) == *hash && !found.iter().any(|(known, _)| *known == key);
                        is_next.then_some(())
                    })?;
                    match next {
                        Some(()) => found.push((key, value)),
                        None => break,
                    }
                    if key_has_own_hash::<L>() {
                        break;
                    }
                }
                for (key, value) in &found {
                    if visit(key, value).is_break() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// How many records there are.
    pub fn len(&self) -> u64 {
        self.core.index.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Whether equal hashes mean equal keys.
fn key_has_own_hash<L: Format>() -> bool {
    matches!(L::shape(), Shape::Fixed { key_bytes: 8, .. })
}

/// Reads and writes a store, for one thread at a time. Dereferences to its [`Reader`].
#[derive(Debug)]
pub struct Client<L: Layout, M: Medium = FileMedium> {
    reader: Reader<L, M>,
    writer: Writer<L>,
}

impl<L: Layout, M: Medium> std::ops::Deref for Client<L, M> {
    type Target = Reader<L, M>;

    fn deref(&self) -> &Reader<L, M> {
        &self.reader
    }
}

impl<L: Layout, M: Medium> Client<L, M> {
    pub(crate) fn new(reader: Reader<L, M>, writer: Writer<L>) -> Self {
        Self { reader, writer }
    }

    /// Runs an operation that needs room; if there is none, reclaims space and tries once more.
    fn with_room<T>(
        &mut self,
        mut operation: impl FnMut(&Core<L, M>, &mut Writer<L>) -> Result<T>,
    ) -> Result<T> {
        match operation(&self.reader.core, &mut self.writer) {
            Err(PmemError::Full { .. }) => {
                // This frees what the client itself has just replaced.
                self.reader.core.settle_owed(&mut self.writer)?;
                reclaim::now(&self.reader.core)?;
                operation(&self.reader.core, &mut self.writer)
            }
            outcome => outcome,
        }
    }

    /// Stores a value; durable when this returns.
    ///
    /// # Errors
    /// [`PmemError::Full`], after which nothing has changed; [`PmemError::TooLong`]; [`PmemError::Persist`], after
    /// which it is unknown whether the value is stored.
    pub fn put(&mut self, key: &L::Key, value: &L::Value) -> Result<Put> {
        self.with_room(|core, writer| core.put(writer, key.as_ref(), value.as_ref()))
    }

    /// Stores several values with fewer fences than one by one. Each is stored completely or not at all, and all are
    /// durable when this returns; together they are not atomic.
    ///
    /// # Errors
    /// As [`put`](Self::put); those before the one that failed are stored.
    pub fn put_batch<'b, I>(&mut self, entries: I) -> Result<()>
    where
        I: IntoIterator<Item = (&'b L::Key, &'b L::Value)> + Clone,
        L::Key: 'b,
        L::Value: 'b,
    {
        let mut stored = 0;
        self.with_room(|core, writer| {
            let rest = entries.clone().into_iter().skip(stored);
            core.put_batch(writer, rest.map(|(key, value)| (key.as_ref(), value.as_ref())), &mut stored)
        })
    }

    /// Changes the value of a key by a function; returns whether the key was there. Durable when this returns; no
    /// thread sees an intermediate state. If the change is within eight bytes (at a multiple of eight from the value's
    /// beginning), it is made in place; otherwise a changed copy replaces the value. Other changes of the key wait
    /// meanwhile.
    ///
    /// The function must not use the store. In a store of records of one size it must not change the length. It is
    /// called again if space had to be reclaimed first.
    ///
    /// # Errors
    /// As [`put`](Self::put); [`PmemError::OtherLength`] if the function changes a length that it must not change;
    /// [`PmemError::Damaged`] if the value is damaged.
    pub fn update(&mut self, key: &L::Key, mut change: impl FnMut(&mut Vec<u8>)) -> Result<bool> {
        self.with_room(|core, writer| core.update(writer, key.as_ref(), &mut change))
    }

    /// Removes a key; returns whether it was there. Durable when this returns.
    ///
    /// # Errors
    /// [`PmemError::Persist`], after which it is unknown whether the key is gone.
    pub fn delete(&mut self, key: &L::Key) -> Result<bool> {
        self.reader.core.delete(&mut self.writer, key.as_ref())
    }

    /// Removes several keys with fewer fences; returns how many were there.
    ///
    /// # Errors
    /// As [`delete`](Self::delete); any of them may be gone.
    pub fn delete_batch<'k>(&mut self, keys: impl IntoIterator<Item = &'k L::Key>) -> Result<u64>
    where
        L::Key: 'k,
    {
        self.reader.core.delete_batch(&mut self.writer, keys.into_iter().map(AsRef::as_ref))
    }

    /// A handle that only reads.
    pub fn reader(&self) -> Reader<L, M> {
        self.reader.clone()
    }
}

impl<L: Layout, M: Medium> Drop for Client<L, M> {
    fn drop(&mut self) {
        self.reader.core.end_writer(&mut self.writer);
    }
}
