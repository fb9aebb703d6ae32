//! Ranges of entries whose steps return futures, for any runtime.
//!
//! A step goes as far as it can on the thread that polls it. If the next leaf is not in memory, the
//! [driver](crate::asynchronous) of the database reads it, by looking up a key that belongs there, and then the step
//! continues. The driver also reads values of more than 1 KiB. Meanwhile the cursor's own read-ahead goes on, as for a
//! blocking range.
//!
//! What the driver has read may be evicted before the task runs again. After a few attempts, the step waits in place.
//! It also does so for anything that no lookup in the present table brings into memory: an earlier version in a file,
//! or a table that was cleared since the transaction began.

use crate::{
    Entries, KeyRange, KeyType, Result, Table, Task, Transaction, ValueType,
    asynchronous::hand_over,
    entries::{End, KeyAndValue, Source},
    shared::{Owned, Slot},
    transaction_future::FETCHES_MAX,
};
use std::{
    fmt,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
};

/// The entries of a range, in key order, each as a future: made by [`Table::range_async`](crate::Table::range_async)
/// and [`Transaction::range_async`](crate::Transaction::range_async). Entries in memory are ready at the first poll;
/// while something has to be read, the task waits, not the thread.
///
/// Entries may be taken from both ends in turn: each entry comes once. It returns the same entries as [`Entries`];
/// after an error it ends. Dropping a future of a step loses no entry: the next step at that end returns it, or one at
/// the other end that finds no other entry left.
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
/// let squares = database.create_table(vellum::TableName::<u32, u32>::new("squares"))?;
/// for number in 0..100 {
///     squares.put(number, number * number)?;
/// }
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let mut entries = squares.range_async(7..)?;
/// assert_eq!(entries.next().await.transpose()?, Some((7, 49)));
/// assert_eq!(entries.next_back().await.transpose()?, Some((99, 9801)));
/// let mut sum = 0;
/// while let Some(entry) = entries.next().await {
///     sum += entry?.1;
/// }
/// assert_eq!(sum, (8..99).map(|number| number * number).sum());
/// # Ok::<(), vellum::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// To make a `Stream` of the crate `futures`: `stream::poll_fn(move |context| entries.poll_next(context))`.
#[must_use = "nothing is read before it is asked for"]
pub struct AsyncEntries<'t, K: ?Sized = [u8], V: ?Sized = [u8]> {
    entries: Entries<'t, K, V>,
    front: Wait,
    back: Wait,
}

/// What an end waits for.
#[derive(Default)]
struct Wait {
    /// What the driver is reading.
    fetch: Option<Arc<Slot>>,
    fetches: u32,
    /// The key of an entry that the cursor has stepped over, and whose value is still to be read.
    key: Option<Vec<u8>>,
}

impl<'t, K: KeyType + ?Sized, V: ValueType + ?Sized> AsyncEntries<'t, K, V> {
    pub(crate) fn of(entries: Entries<'t, K, V>) -> Self {
        Self { entries, front: Wait::default(), back: Wait::default() }
    }

    /// The next entry from the front; `None` at the end.
    ///
    /// # Errors
    /// As for [`Table::get`](crate::Table::get) and [`Transaction::get`](crate::Transaction::get).
    pub async fn next(&mut self) -> Option<Result<(K::Owned, V::Owned)>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// The next entry from the back; `None` at the end.
    ///
    /// # Errors
    /// As for [`next`](Self::next).
    pub async fn next_back(&mut self) -> Option<Result<(K::Owned, V::Owned)>> {
        poll_fn(|context| self.poll_next_back(context)).await
    }

    /// [`next`](Self::next) as a poll function, for a `Stream`.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<KeyAndValue<K, V>>>> {
        self.poll_of(End::Front, context)
    }

    /// [`next_back`](Self::next_back) as a poll function.
    pub fn poll_next_back(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<KeyAndValue<K, V>>>> {
        self.poll_of(End::Back, context)
    }

    fn poll_of(&mut self, end: End, context: &mut Context<'_>) -> Poll<Option<Result<KeyAndValue<K, V>>>> {
        self.step(end, context).map(|entry| {
            if entry.is_err() {
                (self.front, self.back) = Default::default();
            }
            self.entries.shown(entry)
        })
    }

    /// The entry at an end. After the ends have met, what remains is what they wait for: each takes its own first, then
    /// the other's.
    fn step(&mut self, end: End, context: &mut Context<'_>) -> Poll<Result<Option<KeyAndValue<K, V>>>> {
        let (table, source) = self.entries.source();
        let (wait, other) = match end {
            End::Front => (&mut self.front, &mut self.back),
            End::Back => (&mut self.back, &mut self.front),
        };
        loop {
            if self.entries.has_ended() && wait.key.is_none() {
                if other.key.is_none() {
                    return Poll::Ready(Ok(None));
                }
                std::mem::swap(wait, other);
            }
            let mut fetched = None;
            if let Some(slot) = &wait.fetch {
                fetched = slot.take_or_wait(context.waker()).0;
                if fetched.is_none() {
                    return Poll::Pending;
                }
                wait.fetch = None;
            }
            let may_wait = wait.fetches == FETCHES_MAX;
            if let Some(key) = &wait.key {
                let value = match (source, fetched) {
                    (Source::Table, Some(Ok(Owned::Value(value)))) => Some(value),
                    (Source::Table, Some(Err(error))) => return Poll::Ready(Err(error)),
                    _ if may_wait => Some(source.value_of(table, key)?),
                    _ => source.value_now(table, key)?,
                };
                let Some(value) = value else {
                    wait.fetches += 1;
                    wait.fetch = Some(hand_over(table, key.clone(), Task::Get, context.waker()));
                    continue;
                };
                wait.fetches = 0;
                let key = wait.key.take().unwrap_or_default();
                // The entry may have been removed meanwhile.
                let Some(value) = value else { continue };
                let value = table.value_of::<V>(value.into()).map_err(|error| error.at(&key))?;
                return Poll::Ready(Ok(Some((table.key_of::<K>(&key)?, value))));
            }
            // If the driver cannot read something, the step reports why.
            if !may_wait && let Some(key) = self.entries.prepare(end)? {
                wait.fetches += 1;
                let leaf = Task::GetPart { offset: 0, length: 0 };
                wait.fetch = Some(hand_over(table, key, leaf, context.waker()));
                continue;
            }
            wait.fetches = 0;
            let Some(entry) = self.entries.advance(end)? else {
                self.entries.end();
                continue;
            };
            match entry.inline_value() {
                Some(value) => {
                    let value = table.value_of::<V>(value.into()).map_err(|error| error.at(entry.key()))?;
                    return Poll::Ready(Ok(Some((table.key_of::<K>(entry.key())?, value))));
                }
                None => wait.key = Some(entry.key().to_vec()),
            }
        }
    }
}

impl<K: KeyType + ?Sized, V: ValueType + ?Sized> Table<K, V> {
    /// [`range`](Self::range) whose steps are futures, for any runtime: see [`AsyncEntries`]. For a prefix, give a
    /// [`Prefix`](crate::Prefix).
    ///
    /// # Errors
    /// If a bound is longer than a key can be.
    pub fn range_async(&self, range: impl KeyRange<K>) -> Result<AsyncEntries<'_, K, V>> {
        self.range(range).map(AsyncEntries::of)
    }
}

impl Transaction {
    /// [`range`](Self::range) whose steps are futures, for any runtime: see [`AsyncEntries`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// let stock = database.create_table(vellum::TableName::<str, u32>::new("stock"))?;
    /// stock.put("apples", 5)?;
    /// stock.put("pears", 7)?;
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let transaction = database.begin()?;
    /// let mut entries = transaction.range_async(&stock, vellum::Prefix("a"))?;
    /// assert_eq!(entries.next().await.transpose()?, Some(("apples".to_owned(), 5)));
    /// assert!(entries.next().await.is_none());
    /// # Ok::<(), vellum::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn range_async<'t, K, V>(
        &'t self,
        table: &'t Table<K, V>,
        range: impl KeyRange<K>,
    ) -> Result<AsyncEntries<'t, K, V>>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        self.range(table, range).map(AsyncEntries::of)
    }

    /// [`range_async`](Self::range_async) of entries that need not stay unchanged: see
    /// [`range_untracked`](Self::range_untracked).
    ///
    /// # Errors
    /// As for `range_async`.
    pub fn range_untracked_async<'t, K, V>(
        &'t self,
        table: &'t Table<K, V>,
        range: impl KeyRange<K>,
    ) -> Result<AsyncEntries<'t, K, V>>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        self.range_untracked(table, range).map(AsyncEntries::of)
    }
}

impl<K: ?Sized, V: ?Sized> fmt::Debug for AsyncEntries<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncEntries").field(&self.entries).finish()
    }
}
