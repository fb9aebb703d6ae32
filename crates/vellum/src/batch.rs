//! Many keys in one call, by one thread: cache misses and reads overlap.

use crate::{
    AsKey, AsValue, KeyType, Put, Result, Table, ValueType, asynchronous::written, handle::Handle, nested,
};
use std::{
    cell::{Cell, RefCell},
    iter,
    ops::Range,
};
use vellum_access::{AccessError, Answer, Batch, Task, Written};
use vellum_base::Lsn;
use vellum_pool::{Pool, PoolError};

impl<K: KeyType + ?Sized, V: ValueType + ?Sized> Table<K, V> {
    /// The values of many keys, in their order.
    ///
    /// The lookups overlap: while one waits for a cache line or for the device, the others proceed. The more keys a
    /// call has, the better: from a few dozen on it is several times as fast as [`get`](Self::get) in memory, and
    /// beyond memory it keeps up to [`Options::read_depth`](crate::Options::read_depth) reads under way.
    ///
    /// The values need not belong to one moment: each is the one that its key had at some moment during the call.
    /// [`Transaction::multi_get`](crate::Transaction::multi_get) shows all of them as they were when the transaction began.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// # let table = database.create_table("t")?;
    /// table.multi_put(&[("apple", "red"), ("lime", "green")]).into_iter().try_for_each(|put| put.map(drop))?;
    /// let found: Vec<_> = table.multi_get(&["lime", "pear"]).into_iter().collect::<Result<_, _>>()?;
    /// assert_eq!(found, [Some(b"green".to_vec()), None]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Each lookup has its own error: as for [`get`](Self::get).
    pub fn multi_get<Q: AsKey<K>>(&self, keys: &[Q]) -> Vec<Result<Option<V::Owned>>> {
        let keys: Vec<_> = keys.iter().map(AsKey::encoded).collect();
        let mut values = Vec::with_capacity(keys.len());
        self.handle.multi_get(&keys, |_, value| {
            values.push(value.and_then(|value| self.handle.value_if_any::<V>(value)));
        });
        values
    }

    /// Stores many values, each under its key, and returns for each what [`put`](Self::put) would.
    ///
    /// Each put is atomic by itself, and they may happen in any order: if a key occurs twice, either of its values may
    /// be the one that remains.
    ///
    /// # Errors
    /// Each has its own error: as for [`put`](Self::put).
    pub fn multi_put<Q: AsKey<K>, W: AsValue<V>>(&self, entries: &[(Q, W)]) -> Vec<Result<Put>> {
        self.multi_write(entries, Task::Upsert, Put::from)
    }

    /// Replaces the values of those of many keys that have one, and returns for each whether it had.
    ///
    /// As for [`multi_put`](Self::multi_put), the order is unspecified.
    ///
    /// # Errors
    /// Each has its own error: as for [`update`](Self::update).
    pub fn multi_update<Q: AsKey<K>, W: AsValue<V>>(&self, entries: &[(Q, W)]) -> Vec<Result<bool>> {
        self.multi_write(entries, Task::Update, |written| written == Written::Replaced)
    }

    fn multi_write<'e, Q: AsKey<K>, W: AsValue<V>, T>(
        &self,
        entries: &'e [(Q, W)],
        task: fn(W::Encoded<'e>) -> Task<W::Encoded<'e>>,
        outcome: impl Fn(Written) -> T,
    ) -> Vec<Result<T>> {
        let encode = |(key, value): &'e (Q, W)| Ok((key.encoded(), task(value.encoded_value()?)));
        let Ok(tasks) = entries.iter().map(encode).collect::<Result<Vec<_>>>() else {
            // Values that can be encoded are still stored.
            let alone = |entry| {
                let (key, task) = encode(entry)?;
                self.handle.perform(key.as_ref(), &task).map(|done| outcome(written(&done)))
            };
            return entries.iter().map(alone).collect();
        };
        let mut outcomes = Vec::with_capacity(tasks.len());
        let committed = self.as_bytes().multi_run(tasks, |_, answer| {
            outcomes.push(answer.map(|answer| match answer {
                Answer::Written(written) => outcome(written),
                // Only writes were asked for.
                Answer::Value(_) | Answer::Removed(_) => outcome(Written::Refused),
            }));
        });
        all_unless(committed, outcomes)
    }
}

/// Operations that only tables of bytes have.
impl Table {
    /// As [`multi_get`](Self::multi_get), but instead of collecting the values calls `visit` with each, in the order of
    /// the keys and with the key's index.
    ///
    /// `visit` may use the table; reads of the batch are under way meanwhile.
    pub fn multi_get_with<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        visit: impl FnMut(usize, Result<Option<&[u8]>>),
    ) {
        self.handle.multi_get(keys, visit);
    }

    /// As [`multi_get_with`](Self::multi_get_with), but reads only those bytes of each value that lie in `part`. Of a
    /// value of up to 1 KiB no other bytes are touched. A larger one is brought into memory as a whole, and one larger
    /// than the pool is an error: of such values, [`get_part`](Self::get_part) reads no more than necessary.
    pub fn multi_get_part_with<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        part: Range<usize>,
        mut visit: impl FnMut(usize, Result<Option<&[u8]>>),
    ) {
        let tree = self.handle.tree();
        tree.multi_get_part(keys, self.handle.read_depth(), part.clone(), |index, value| {
            match (value, keys.get(index)) {
                // As for `multi_get`.
                (Ok(_), Some(key)) if self.handle.was_replaced(tree.numbered_root()) => {
                    match self.get_part(key.as_ref(), part.clone()) {
                        Ok(value) => visit(index, Ok(value.as_deref())),
                        Err(error) => visit(index, Err(error)),
                    }
                }
                (value, _) => visit(index, value.map_err(Into::into)),
            }
        });
    }

    /// Lets `change` change the values of many keys in place, each with its key's index, and returns for each whether
    /// there was one: like [`modify`](Self::modify), several at once.
    ///
    /// Each change is atomic by itself; if a key occurs twice, its value is changed twice. `change` must not use
    /// the database, and may be called again for a value of over 1 KiB, as for [`modify`](Self::modify).
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// # let table = database.create_table("t")?;
    /// table.put("apples", [5])?;
    /// table.put("limes", [7])?;
    /// let sold = [("apples", 2), ("limes", 3), ("figs", 1)];
    /// let changed = table.multi_modify(&sold.map(|(fruit, _)| fruit), |place, stock| stock[0] -= sold[place].1);
    /// let known: Vec<_> = changed.into_iter().collect::<Result<_, _>>()?;
    /// assert_eq!(known, [true, true, false]);
    /// assert_eq!(table.get("limes")?, Some(vec![4]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Each has its own error: as for [`modify`](Self::modify).
    ///
    /// # Panics
    /// In debug builds, if `change` uses the database.
    pub fn multi_modify<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        change: impl FnMut(usize, &mut [u8]),
    ) -> Vec<Result<bool>> {
        let mut changed = Vec::with_capacity(keys.len());
        let committed = self.multi_modify_with(keys, change, |_, result| changed.push(result));
        all_unless(committed, changed)
    }

    /// As [`multi_modify`](Self::multi_modify), but instead of collecting the results calls `visit` with each key's
    /// index and whether there was a value, in the order of the keys. The changes are durable when this has returned.
    ///
    /// # Errors
    /// If it is unknown whether the changes are durable.
    pub fn multi_modify_with<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        change: impl FnMut(usize, &mut [u8]),
        mut visit: impl FnMut(usize, Result<bool>),
    ) -> Result<()> {
        let change = RefCell::new(change);
        let alone = |place: usize, key: &K| {
            let changed = self.modify(key, |value| (change.borrow_mut())(place, value));
            changed.map(|done| done.is_some())
        };
        if self.handle.is_apart() {
            keys.iter().enumerate().for_each(|(place, key)| visit(place, alone(place, key)));
            return Ok(());
        }
        let pool = self.handle.pool();
        let last = LastChange::of(&self.handle);
        let together = |place, value: &mut [u8]| {
            last.keep();
            nested::latched(pool, || (change.borrow_mut())(place, value));
        };
        let tree = self.handle.tree();
        let visit = |place: usize, result: Result<bool, AccessError>| {
            last.keep();
            match (result, keys.get(place)) {
                // The tree may have been that of the table no longer.
                (Ok(false), Some(key)) if self.handle.was_replaced(tree.numbered_root()) => {
                    visit(place, alone(place, key));
                }
                // Transactions have begun since the batch did, or the table has been cleared.
                (
                    Err(AccessError::NeedsTransaction { .. } | AccessError::Pool(PoolError::Cancelled)),
                    Some(key),
                ) => visit(place, alone(place, key)),
                (result, _) => visit(place, result.map_err(|error| self.handle.refused(error))),
            }
        };
        tree.multi_modify(keys, self.handle.read_depth(), together, visit);
        last.commit()
    }

    /// Runs many operations of any kind, and calls `visit` with the answer of each, in the order in which they were
    /// given and with their indexes. The changes are durable when this has returned.
    ///
    /// Each operation is atomic by itself, and operations on the same key may happen in any order.
    ///
    /// ```
    /// use vellum::{Answer, Task};
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// # let table = database.create_table("t")?;
    /// # table.put("lime", "green")?;
    /// let tasks = [("lime", Task::Get), ("pear", Task::Upsert("green")), ("fig", Task::Remove)];
    /// table.multi_run(tasks, |number, answer| match answer {
    ///     Ok(Answer::Value(value)) => assert_eq!((number, value), (0, Some(&b"green"[..]))),
    ///     Ok(other) => println!("{other:?}"),
    ///     Err(error) => eprintln!("{error}"),
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn multi_run<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        tasks: impl IntoIterator<Item = (K, Task<V>)>,
        mut visit: impl FnMut(usize, Result<Answer<'_>>),
    ) -> Result<()> {
        if self.handle.is_apart() {
            for (number, (key, task)) in tasks.into_iter().enumerate() {
                let done = self.handle.perform(key.as_ref(), &task);
                match done {
                    Ok(done) => visit(number, Ok(done.answer())),
                    Err(error) => visit(number, Err(error)),
                }
            }
            return Ok(());
        }
        let mut batch: Batch<'_, Pool, K, V> = Batch::new(self.handle.pool(), self.handle.read_depth());
        let last = LastChange::of(&self.handle);
        let mut tasks = tasks.into_iter();
        let tasks = iter::from_fn(|| {
            last.keep();
            tasks.next()
        });
        let tree = self.handle.tree();
        batch.run(tree, tasks, |number, (key, task), answer| {
            last.keep();
            let (is_value, request) = (matches!(answer, Ok(Answer::Value(_))), (key.as_ref(), task));
            // The tree is no longer that of the table, and may have been before the operation began. A change finds that out.
            if is_value && self.handle.was_replaced(tree.numbered_root()) {
                let gone = Err(PoolError::Cancelled.into());
                self.handle.settle(request, gone, |answer| visit(number, answer));
            } else {
                self.handle.settle(request, answer, |answer| visit(number, answer));
            }
        });
        last.commit()
    }
}

/// The last change of a batch that calls a closure of the caller between its changes. What this closure commits must not
/// make the batch forget for what it has to wait.
struct LastChange<'h> {
    handle: &'h Handle,
    lsn: Cell<Option<Lsn>>,
}

impl<'h> LastChange<'h> {
    fn of(handle: &'h Handle) -> Self {
        Self { handle, lsn: Cell::new(None) }
    }

    /// Keeps the last change of this thread, if it has made one since the last call. Called before the closure.
    #[inline]
    fn keep(&self) {
        self.lsn.set(self.handle.inner.durable.take_last_change().or(self.lsn.get()));
    }

    /// Returns once the changes are as durable as they should be.
    fn commit(self) -> Result<()> {
        self.keep();
        let inner = &self.handle.inner;
        self.lsn.get().map_or(Ok(()), |lsn| Ok(inner.durable.wait(lsn, inner.durability)?))
    }
}

/// The outcomes of changes; if it is unknown whether they are durable, that becomes the outcome of each.
fn all_unless<T>(committed: Result<()>, mut outcomes: Vec<Result<T>>) -> Vec<Result<T>> {
    if let Err(error) = committed {
        outcomes
            .iter_mut()
            .filter(|outcome| outcome.is_ok())
            .for_each(|outcome| *outcome = Err(error.repeated()));
    }
    outcomes
}
