//! Ranges of entries as iterators.
//!
//! An iterator has a cursor for each of its ends, made when that end is asked for first: one that goes in one direction only has
//! one. Where the two are tells when they have met.

use crate::{
    Cursor, KeyBuffer, KeyType, Result, Value, ValueType, cursor::Entry, encoding::Types, handle::Handle,
};
use std::{borrow::Cow, fmt, marker::PhantomData, ops::Bound};
use vellum_access::CursorPosition;

/// The entries of a range, in the order of their keys: of [`Table::range`](crate::Table::range),
/// [`Transaction::range`](crate::Transaction::range) and their like. [`rev`](Iterator::rev) goes backwards, and both ends may
/// be taken from in turn: each entry comes once.
///
/// It holds no latch: others may change the table meanwhile. One of a transaction shows one moment throughout; one of a table
/// shows an entry that is there all the while exactly once, as a [`Cursor`] does. After an error it ends.
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
    types: Types<K, V>,
}

/// What an iterator reads.
#[derive(Clone, Copy)]
pub(crate) enum Source<'t> {
    /// The present.
    Table,
    /// What a transaction sees, which notes what is read if it is serializable.
    Transaction(&'t dyn Reads),
    /// What a transaction sees.
    Untracked(&'t dyn Reads),
}

/// A transaction, as iterators know it.
pub(crate) trait Reads: Sync {
    /// A cursor, which notes what it reads if the transaction is serializable.
    fn cursor_of<'t>(
        &'t self,
        table: &'t Handle,
        bounds: &(Bound<KeyBuffer>, Bound<KeyBuffer>),
    ) -> Result<Cursor<'t>>;

    /// A cursor that does not.
    fn untracked_cursor_of<'t>(
        &'t self,
        table: &'t Handle,
        bounds: &(Bound<KeyBuffer>, Bound<KeyBuffer>),
    ) -> Result<Cursor<'t>>;

    /// A copy of a value whose key a cursor has come to.
    fn value_of_noted(&self, table: &Handle, key: &[u8]) -> Result<Option<Vec<u8>>>;
}

/// An end of an iterator.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Front,
    Back,
}

type KeyAndValue<K, V> = (<K as KeyType>::Owned, <V as ValueType>::Owned);

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
            types: PhantomData,
        })
    }

    /// The entry at an end.
    fn step(&mut self, end: End) -> Result<Option<KeyAndValue<K, V>>> {
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
                if end == End::Back {
                    cursor.seek_to_end();
                }
                cursor
            }
        };
        loop {
            let entry = match end {
                End::Front => cursor.next()?,
                End::Back => cursor.previous()?,
            };
            let Some(entry) = entry else { return Ok(None) };
            let have_met = match (end, other.as_ref().map(Cursor::position)) {
                (End::Front, Some(CursorPosition::Before(taken))) => entry.key() >= taken,
                (End::Back, Some(CursorPosition::After(taken))) => entry.key() <= taken,
                _ => false,
            };
            if have_met {
                return Ok(None);
            }
            // It may have been removed meanwhile.
            if let Some(value) = self.source.value(self.table, &entry)? {
                return Ok(Some((self.table.key_of::<K>(entry.key())?, self.table.value_of::<V>(value)?)));
            }
        }
    }

    fn next_of(&mut self, end: End) -> Option<Result<KeyAndValue<K, V>>> {
        if self.has_ended {
            return None;
        }
        let entry = self.step(end).transpose();
        if !matches!(entry, Some(Ok(_))) {
            self.has_ended = true;
            (self.unused, self.front, self.back) = (None, None, None);
        }
        entry
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

    /// The value of an entry; none if it is a large one that was removed meanwhile.
    fn value<'c>(self, table: &Handle, entry: &Entry<'c, 't>) -> Result<Option<Cow<'c, [u8]>>> {
        if let Some(value) = entry.inline_value() {
            return Ok(Some(Cow::Borrowed(value)));
        }
        let value = match (entry.value(), self) {
            (Err(error), source) if error.is_about_room() => match source {
                Self::Table => table.read_whole(table.tree(), entry.key())?,
                Self::Transaction(reads) | Self::Untracked(reads) => {
                    reads.value_of_noted(table, entry.key())?
                }
            },
            (value, _) => value?.map(Value::into_vec),
        };
        Ok(value.map(Cow::Owned))
    }
}

impl<K: KeyType + ?Sized, V: ValueType + ?Sized> Iterator for Entries<'_, K, V> {
    type Item = Result<KeyAndValue<K, V>>;

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
