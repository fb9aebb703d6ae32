//! Ranges of entries as iterators.
//!
//! An iterator has a cursor for each of its ends, made when that end is first used: an iterator that goes in one
//! direction has only one. The positions of the two cursors tell when they have met.

use crate::{
    Answer, Cursor, Error, KeyBuffer, KeyType, Result, Task, Value, ValueType, coverage::Step, cursor::Entry,
    encoding::Types, handle::Handle,
};
use std::{fmt, marker::PhantomData, ops::Bound};
use vellum_access::{CursorPosition, Tree};
use vellum_pool::Pool;

/// The entries of a range, in key order: made by [`Table::range`](crate::Table::range),
/// [`Transaction::range`](crate::Transaction::range) and similar methods. [`rev`](Iterator::rev) goes backwards, and
/// entries may be taken from both ends in turn: each entry comes once.
///
/// It holds no latch: others may change the table meanwhile. An iterator of a transaction shows one moment throughout;
/// an iterator of a table shows an entry that exists all the while exactly once, as a [`Cursor`] does. After an error
/// the iterator ends.
///
/// What the transaction itself changes meanwhile may be shown or not. A loop that stores entries beyond the one that it
/// is shown may come to these, and so never end: collect what is to be changed first, or bound the range.
///
/// ```
/// use vellum::TableName;
///
/// # let directory = tempfile::tempdir()?;
/// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
/// let squares = database.create_table(TableName::<i32, i64>::new("squares"))?;
/// for number in -5..=5 {
///     squares.put(number, i64::from(number) * i64::from(number))?;
/// }
/// let mut sum = 0;
/// for entry in squares.range(-1..)? {
///     let (_number, square) = entry?;
///     sum += square;
/// }
/// assert_eq!(sum, 1 + 55);
/// let last: Vec<i32> = squares.range(..)?.rev().take(2).map(|entry| Ok(entry?.0)).collect::<vellum::Result<_>>()?;
/// assert_eq!(last, [5, 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing is read before it is asked for"]
pub struct Entries<'t, K: ?Sized = [u8], V: ?Sized = [u8]> {
    table: &'t Handle,
    source: Source<'t>,
    bounds: (Bound<KeyBuffer>, Bound<KeyBuffer>),
    /// The first cursor, before either end has been asked for.
    unused: Option<Cursor<'t>>,
    front: Option<Cursor<'t>>,
    back: Option<Cursor<'t>>,
    has_ended: bool,
    /// The maximum number of entries still to be returned.
    limit: Option<usize>,
    types: Types<K, V>,
}

/// The source that an iterator reads.
#[derive(Clone, Copy)]
pub(crate) enum Source<'t> {
    /// The present contents of the table.
    Table,
    /// What a transaction sees; the transaction notes what is read if it is serializable.
    Transaction(&'t dyn Reads),
    /// What a transaction sees, without noting it as read.
    Untracked(&'t dyn Reads),
}

/// The interface of transactions for iterators.
pub(crate) trait Reads: Sync {
    /// A cursor, which notes what it reads if the transaction is serializable.
    fn cursor_of<'t>(
        &'t self,
        table: &'t Handle,
        bounds: &(Bound<KeyBuffer>, Bound<KeyBuffer>),
    ) -> Result<Cursor<'t>>;

    /// A cursor that does not note what it reads.
    fn untracked_cursor_of<'t>(
        &'t self,
        table: &'t Handle,
        bounds: &(Bound<KeyBuffer>, Bound<KeyBuffer>),
    ) -> Result<Cursor<'t>>;

    /// The tree, for reading entries that a cursor has reached.
    fn tree_of_noted<'t>(&'t self, table: &'t Handle) -> Result<Tree<'t, Pool>>;

    /// A copy of a value whose key a cursor has reached.
    fn value_of_noted(&self, table: &Handle, key: &[u8]) -> Result<Option<Vec<u8>>>;
}

/// An end of an iterator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Front,
    Back,
}

pub(crate) type KeyAndValue<K, V> = (<K as KeyType>::Owned, <V as ValueType>::Owned);

impl<'t, K: KeyType + ?Sized, V: ValueType + ?Sized> Entries<'t, K, V> {
    pub(crate) fn begin(
        table: &'t Handle,
        source: Source<'t>,
        bounds: (Bound<KeyBuffer>, Bound<KeyBuffer>),
    ) -> Result<Self> {
        let unused = Some(source.cursor(table, &bounds)?);
        Ok(Self {
            table,
            source,
            bounds,
            unused,
            front: None,
            back: None,
            has_ended: false,
            limit: None,
            types: PhantomData,
        })
    }

    /// Returns at most `entries` entries, counted from both ends. Unlike [`take`](Iterator::take) it announces the
    /// limit to the range: up to a limit of 1024, the pages of the range that are not in memory are read in parallel,
    /// and none that lies beyond them. If an earlier limit leaves fewer, that one stands.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// # let table = database.create_table("table")?;
    /// # for number in 0..100_u32 { table.put(number.to_be_bytes(), "value")?; }
    /// let page = table.range(40_u32.to_be_bytes()..)?.limit(20).collect::<vellum::Result<Vec<_>>>()?;
    /// assert_eq!(page.len(), 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn limit(mut self, entries: usize) -> Self {
        let entries = self.limit.map_or(entries, |limit| limit.min(entries));
        self.limit = Some(entries);
        for cursor in [&mut self.unused, &mut self.front, &mut self.back].into_iter().flatten() {
            cursor.expect(entries);
        }
        self
    }

    /// The cursor of one end, and the cursor of the other, if there is one.
    #[inline(always)]
    fn cursors(&mut self, end: End) -> Result<(&mut Cursor<'t>, Option<&Cursor<'t>>)> {
        let (own, other) = match end {
            End::Front => (&mut self.front, &self.back),
            End::Back => (&mut self.back, &self.front),
        };
        let cursor = match own {
            Some(cursor) => cursor,
            None => {
                let unused = self.unused.take();
                let cursor = unused.map_or_else(|| self.source.cursor(self.table, &self.bounds), Ok)?;
                let cursor = own.insert(cursor);
                if let Some(limit) = self.limit {
                    cursor.expect(limit);
                }
                if end == End::Back {
                    cursor.seek_to_end();
                }
                cursor
            }
        };
        Ok((cursor, other.as_ref()))
    }

    /// Prepares the cursor of an end to [`advance`](Self::advance) without waiting. If that is impossible, returns a
    /// key whose lookup reads what the step would wait for.
    pub(crate) fn prepare(&mut self, end: End) -> Result<Option<Vec<u8>>> {
        let (cursor, _) = self.cursors(end)?;
        cursor.prepare(end.step())
    }

    /// Steps over the entry at an end.
    #[inline(always)]
    pub(crate) fn advance(&mut self, end: End) -> Result<Option<Entry<'_, 't>>> {
        let (cursor, other) = self.cursors(end)?;
        let entry = match end {
            End::Front => cursor.next()?,
            End::Back => cursor.previous()?,
        };
        let Some(entry) = entry else { return Ok(None) };
        // The other end may stand between two leaves.
        let have_met = match (end, other.map(Cursor::position)) {
            (End::Front, Some(CursorPosition::Before(taken))) => entry.key() >= taken,
            (End::Front, Some(CursorPosition::After(limit))) => entry.key() > limit,
            (End::Back, Some(CursorPosition::After(taken))) => entry.key() <= taken,
            (End::Back, Some(CursorPosition::Before(limit))) => entry.key() < limit,
            _ => false,
        };
        Ok((!have_met).then_some(entry))
    }

    /// The next entry at an end, as an iterator returns it.
    // The entry is built directly where the caller wants it, from what the cursor shows, and is not moved in between.
    #[inline(always)]
    fn next_of(&mut self, end: End) -> Option<Result<KeyAndValue<K, V>>> {
        if self.has_ended {
            return None;
        }
        if self.is_full() {
            return self.shown(Ok(None));
        }
        let (source, table) = (self.source, self.table);
        let (key, value) = loop {
            let large = match self.advance(end) {
                Ok(Some(entry)) => match entry.inline_value() {
                    Some(value) => break (K::from_bytes(entry.key().into()), V::from_bytes(value.into())),
                    None => source.large_value(table, &entry).map(|value| (entry.key(), value)),
                },
                Ok(None) => return self.shown(Ok(None)),
                Err(error) => Err(error),
            };
            match large {
                Ok((key, Some(value))) => break (K::from_bytes(key.into()), V::from_bytes(value.into())),
                // The entry was removed meanwhile.
                Ok((_, None)) => {}
                Err(error) => return self.shown(Err(error)),
            }
        };
        match (key, value) {
            (Some(key), Some(value)) => {
                self.count_down();
                Some(Ok((key, value)))
            }
            (None, _) => self.refuse(end, table.malformed("key", K::type_name())),
            (_, None) => self.refuse(end, table.malformed("value", V::type_name())),
        }
    }

    /// What an iterator returns if the entry over which the cursor of an end has stepped is not of the table's types.
    #[cold]
    fn refuse(&mut self, end: End, malformed: Error) -> Option<Result<KeyAndValue<K, V>>> {
        let named = match self.cursors(end) {
            Ok((cursor, _)) => match cursor.position() {
                CursorPosition::Before(key) | CursorPosition::After(key) => malformed.at(key),
                _ => malformed,
            },
            Err(error) => error,
        };
        self.shown(Err(named))
    }

    /// Counts an entry that has been returned.
    fn count_down(&mut self) {
        if let Some(limit) = &mut self.limit {
            *limit = limit.saturating_sub(1);
        }
    }

    /// Whether the limit allows no further entry.
    pub(crate) fn is_full(&self) -> bool {
        self.limit == Some(0)
    }

    /// Records the outcome of a step and returns it as an item: after an error, or the end, the iterator has ended.
    pub(crate) fn shown<T>(&mut self, entry: Result<Option<T>>) -> Option<Result<T>> {
        self.count_down();
        if !matches!(entry, Ok(Some(_))) {
            self.end();
        }
        entry.transpose()
    }

    /// Nothing remains at either end.
    pub(crate) fn end(&mut self) {
        self.has_ended = true;
        (self.unused, self.front, self.back) = (None, None, None);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub(crate) fn source(&self) -> (&'t Handle, Source<'t>) {
        (self.table, self.source)
    }
}

impl End {
    fn step(self) -> Step {
        match self {
            Self::Front => Step::Forward,
            Self::Back => Step::Backward,
        }
    }
}

impl<'t> Source<'t> {
    pub(crate) fn cursor(
        self,
        table: &'t Handle,
        bounds: &(Bound<KeyBuffer>, Bound<KeyBuffer>),
    ) -> Result<Cursor<'t>> {
        match self {
            Self::Table => table.cursor(bounds),
            Self::Transaction(transaction) => transaction.cursor_of(table, bounds),
            Self::Untracked(transaction) => transaction.untracked_cursor_of(table, bounds),
        }
    }

    /// The large value of an entry; none if it was removed meanwhile.
    #[inline(never)]
    fn large_value(self, table: &Handle, entry: &Entry<'_, 't>) -> Result<Option<Vec<u8>>> {
        match entry.value() {
            Err(error) if error.is_about_room() => self.value_of(table, entry.key()),
            value => Ok(value?.map(Value::into_vec)),
        }
    }

    /// The value of a key that a cursor has reached; none if it was removed meanwhile.
    pub(crate) fn value_of(self, table: &Handle, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self {
            Self::Table => table.get(key),
            Self::Transaction(reads) | Self::Untracked(reads) => reads.value_of_noted(table, key),
        }
    }

    /// The same without waiting; the outer `None` if waiting would be necessary.
    pub(crate) fn value_now(self, table: &Handle, key: &[u8]) -> Result<Option<Option<Vec<u8>>>> {
        let own = |answer: Answer<'_>| match answer {
            Answer::Value(value) => value.map(<[u8]>::to_vec),
            Answer::Written(_) | Answer::Removed(_) => None,
        };
        let found = match self {
            Self::Table => {
                let tree = table.tree();
                // The tree that has replaced it is read with waiting.
                tree.try_now(key, Task::<&[u8]>::Get, own)
                    .map(|found| found.filter(|_| !table.was_replaced(tree.numbered_root())))
            }
            Self::Transaction(reads) | Self::Untracked(reads) => {
                reads.tree_of_noted(table)?.try_now(key, Task::<&[u8]>::Get, own)
            }
        };
        match found.map_err(Error::from) {
            // The value has to be read past the pool.
            Err(error) if error.is_about_room() => Ok(None),
            found => found,
        }
    }
}

impl<K: KeyType + ?Sized, V: ValueType + ?Sized> Iterator for Entries<'_, K, V> {
    type Item = Result<KeyAndValue<K, V>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.next_of(End::Front)
    }
}

impl<K: KeyType + ?Sized, V: ValueType + ?Sized> DoubleEndedIterator for Entries<'_, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.next_of(End::Back)
    }
}

impl<K: KeyType + ?Sized, V: ValueType + ?Sized> std::iter::FusedIterator for Entries<'_, K, V> {}

impl<K: ?Sized, V: ?Sized> fmt::Debug for Entries<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entries")
            .field("table", &self.table.name)
            .field("bounds", &self.bounds)
            .finish_non_exhaustive()
    }
}
