//! Operations of transactions that return futures, for any runtime.
//!
//! A future tries its operation on the thread that polls it. If the operation would have to wait for a page, the
//! [driver](crate::asynchronous) of the database reads the path to the key, as it would for an operation of the table,
//! and the future tries again when the path is in memory. So it is always the task that makes a change, never the
//! driver, and a future that is dropped has either done its operation or not begun it.
//!
//! What the driver has read may be evicted before the task runs again. After a few attempts, the operation waits in
//! place. It also does so for anything that no read of the table brings into memory: a full leaf, a large value, or a
//! version that only an old snapshot sees.

use crate::{
    AsKey, AsValue, Error, KeyType, Put, Result, Table, Task, Transaction, ValueType, Written,
    asynchronous::{hand_over, written},
    handle::{Handle, perform_on},
    shared::{Owned, Slot},
    shown::shown_key,
};
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use vellum_pool::Pool;

/// How often the driver reads for one operation.
pub(crate) const FETCHES_MAX: u32 = 3;

/// An operation of a transaction that is under way, or will be when it is polled.
#[must_use = "nothing happens unless it is awaited"]
pub struct TransactionFuture<'t, T> {
    transaction: &'t Transaction,
    table: &'t Handle,
    key: Vec<u8>,
    /// The operation, or why the value cannot be encoded.
    task: Result<Task<Vec<u8>>>,
    /// What the driver is reading.
    fetch: Option<Arc<Slot>>,
    fetches: u32,
    is_reserving: bool,
    convert: fn(&Handle, Owned) -> Result<T>,
}

impl<T> TransactionFuture<'_, T> {
    /// Tries the operation; `None` if it would have to wait but must not.
    fn attempt(&self, task: &Task<Vec<u8>>, may_wait: bool) -> Result<Option<Owned>> {
        let Self { transaction, table, key, .. } = self;
        let try_on = |tree: vellum_access::Tree<'_, Pool>| match may_wait {
            true => perform_on(tree, key, task).map(Some),
            false => tree.try_now(key, task.by_ref(), |answer| Owned::from(answer)),
        };
        if matches!(task, Task::Get) {
            if self.is_reserving {
                let path = Task::<&[u8]>::GetPart { offset: 0, length: 0 };
                // To reserve a record waits for its leaf.
                if !may_wait {
                    let tree = transaction.read_untracked(table);
                    let tree = tree.map_err(|error| transaction.note_absence(table, error))?;
                    if tree.try_now(key, path, |_| ())?.is_none() {
                        return Ok(None);
                    }
                }
                transaction.write(table, |tree| tree.reserve(key))?;
            }
            let tree = match self.is_reserving {
                true => transaction.read_untracked(table)?,
                false => transaction.read_keys(table, [key])?,
            };
            return match try_on(tree).map_err(Error::from) {
                // The value is read past the pool.
                Err(error) if error.is_about_room() => Ok(Some(Owned::Value(table.get_by(tree, key)?))),
                found => found,
            };
        }
        let done = transaction.write(table, try_on)?;
        let is_unchanged = match &done {
            Some(Owned::Written(written)) => *written == Written::Refused,
            Some(Owned::Removed(removed)) => !removed,
            Some(Owned::Value(_)) | None => false,
        };
        transaction.note_unchanged(table, key, is_unchanged)?;
        Ok(done)
    }
}

impl<T> Future for TransactionFuture<'_, T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let this = self.get_mut();
        loop {
            if let Some(slot) = &this.fetch {
                // If the driver cannot read something, the operation reports why.
                if slot.take_or_wait(context.waker()).0.is_none() {
                    return Poll::Pending;
                }
                this.fetch = None;
            }
            let task = match &this.task {
                Ok(task) => task,
                Err(_) => {
                    return Poll::Ready(match std::mem::replace(&mut this.task, Ok(Task::Get)) {
                        Err(error) => Err(error),
                        Ok(_) => Err(Error::Ended),
                    });
                }
            };
            if let Some(done) = this.attempt(task, this.fetches == FETCHES_MAX)? {
                return Poll::Ready((this.convert)(this.table, done));
            }
            let is_read = matches!(task, Task::Get);
            // A write needs only the leaf. If the leaf is in memory, the write has to wait for something else.
            this.fetches = if is_read { this.fetches + 1 } else { FETCHES_MAX };
            let fetch = if is_read { Task::Get } else { Task::GetPart { offset: 0, length: 0 } };
            this.fetch = Some(hand_over(this.table, this.key.clone(), fetch, context.waker()));
        }
    }
}

impl<T> std::fmt::Debug for TransactionFuture<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransactionFuture")
            .field("table", &self.table.name)
            .field("key", &format_args!("\"{}\"", shown_key(&self.key)))
            .finish_non_exhaustive()
    }
}

impl Transaction {
    /// [`get`](Self::get) as a future, for any runtime. A value in memory is ready at the first poll; the reads of many
    /// such futures overlap.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// # let table = database.create_table(vellum::TableName::<str, u64>::new("t"))?;
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let transaction = database.begin()?;
    /// let count = transaction.get_async(&table, "limes").await?.unwrap_or(0);
    /// transaction.put_async(&table, "limes", count + 1).await?;
    /// if let Some(arrival) = transaction.commit_async()? {
    ///     arrival.await?; // durable
    /// }
    /// assert_eq!(table.get_async("limes").await?, Some(1));
    /// # Ok::<(), vellum::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_async<'t, K, V>(
        &'t self,
        table: &'t Table<K, V>,
        key: impl AsKey<K>,
    ) -> TransactionFuture<'t, Option<V::Owned>>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        self.future(table, key, Ok(Task::Get), |table, answer| match answer {
            Owned::Value(value) => table.value_if_any::<V>(value),
            Owned::Written(_) | Owned::Removed(_) => Ok(None),
        })
    }

    /// [`get_for_update`](Self::get_for_update) as a future.
    pub fn get_for_update_async<'t, K, V>(
        &'t self,
        table: &'t Table<K, V>,
        key: impl AsKey<K>,
    ) -> TransactionFuture<'t, Option<V::Owned>>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        TransactionFuture { is_reserving: true, ..self.get_async(table, key) }
    }

    /// [`put`](Self::put) as a future.
    pub fn put_async<'t, K, V>(
        &'t self,
        table: &'t Table<K, V>,
        key: impl AsKey<K>,
        value: impl AsValue<V>,
    ) -> TransactionFuture<'t, Put>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        let task = value.encoded_value().map(|value| Task::Upsert(value.as_ref().to_vec()));
        self.future(table, key, task, |_, answer| Ok(written(&answer).into()))
    }

    /// [`insert`](Self::insert) as a future.
    pub fn insert_async<'t, K, V>(
        &'t self,
        table: &'t Table<K, V>,
        key: impl AsKey<K>,
        value: impl AsValue<V>,
    ) -> TransactionFuture<'t, bool>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        let task = value.encoded_value().map(|value| Task::Insert(value.as_ref().to_vec()));
        self.future(table, key, task, |_, answer| Ok(written(&answer) == Written::Inserted))
    }

    /// [`update`](Self::update) as a future.
    pub fn update_async<'t, K, V>(
        &'t self,
        table: &'t Table<K, V>,
        key: impl AsKey<K>,
        value: impl AsValue<V>,
    ) -> TransactionFuture<'t, bool>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        let task = value.encoded_value().map(|value| Task::Update(value.as_ref().to_vec()));
        self.future(table, key, task, |_, answer| Ok(written(&answer) == Written::Replaced))
    }

    /// [`remove`](Self::remove) as a future.
    pub fn remove_async<'t, K, V>(
        &'t self,
        table: &'t Table<K, V>,
        key: impl AsKey<K>,
    ) -> TransactionFuture<'t, bool>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        self.future(table, key, Ok(Task::Remove), |_, answer| Ok(matches!(answer, Owned::Removed(true))))
    }

    fn future<'t, K, V, T>(
        &'t self,
        table: &'t Table<K, V>,
        key: impl AsKey<K>,
        task: Result<Task<Vec<u8>>>,
        convert: fn(&Handle, Owned) -> Result<T>,
    ) -> TransactionFuture<'t, T>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        TransactionFuture {
            transaction: self,
            table: &table.handle,
            key: key.encoded().as_ref().to_vec(),
            task,
            fetch: None,
            fetches: 0,
            is_reserving: false,
            convert,
        }
    }
}
