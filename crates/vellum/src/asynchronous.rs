//! Calls that return futures, for any runtime.
//!
//! A future tries its operation at the first poll: an operation that need not wait is done there and then. An operation
//! that has to wait, mostly for the device, is handed to one thread of the database, the *driver*, which is started
//! when it is first needed. The driver runs all such operations as one batch, so that their reads overlap, and wakes
//! the task that waits for each.
//!
//! The driver holds handles on the database only while it has operations. It drops them before it reports the last
//! operation as done, so that a program that has awaited everything can close the database at once.
//!
//! Lock order: the inbox of the driver; a future's state. Neither is held while an operation runs or a waker is called.

use crate::{
    AsKey, AsValue, Error, KeyType, Put, Result, Table, Task, ValueType, Written,
    driver::{Driver, lock},
    handle::Handle,
    life::{OpenTable, Writing},
    running,
    shared::{Order, Owed, Owned, Slot},
};
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};
use vellum_access::{AccessError, Batch};
use vellum_pool::{Pool, PoolError};
use vellum_txn::{Arrival, TxnError};

/// An operation on a table that is under way, or will be once it is polled.
///
/// Nothing happens before the first poll. If a future is dropped after that, its write may or may not be done.
#[must_use = "nothing happens unless it is awaited"]
pub struct TableFuture<T> {
    /// The handle keeps the table and the database open until the end.
    table: Option<Handle>,
    request: Option<(Vec<u8>, Task<Vec<u8>>)>,
    slot: Option<Arc<Slot>>,
    /// The operation is done, and waits to become durable.
    arrival: Option<(Arrival, Owned)>,
    /// Why the value cannot be encoded.
    failed: Option<Error>,
    convert: fn(&str, Owned) -> Result<T>,
}

impl<T> TableFuture<T> {
    /// Tries the operation without waiting, and hands it to the driver if it would have to wait.
    fn begin(&mut self, waker: &Waker) -> Poll<Result<Owned>> {
        let (Some(table), Some((key, task))) = (&self.table, self.request.take()) else {
            return Poll::Pending;
        };
        if !matches!(task, Task::Get | Task::GetPart { .. }) && table.check().is_err() {
            return Poll::Ready(table.perform(&key, &task));
        }
        match table.tree().try_now(&key, task.by_ref(), |answer| Owned::from(answer)) {
            // What this thread has changed before is not waited for.
            Ok(Some(answer)) if matches!(task, Task::Get | Task::GetPart { .. }) => {
                return Poll::Ready(Ok(answer));
            }
            Ok(Some(answer)) => {
                let inner = &table.inner;
                let Some(arrival) = inner.durable.commit_later(inner.durability) else {
                    return Poll::Ready(Ok(answer));
                };
                self.arrival = Some((arrival, answer));
                return Poll::Pending;
            }
            Ok(None) => {}
            // The operation must run as a transaction, which fails if it conflicts; only the log is waited for. Or the
            // table has been cleared.
            Err(AccessError::NeedsTransaction { .. } | AccessError::Pool(PoolError::Cancelled)) => {
                return Poll::Ready(table.perform(&key, &task));
            }
            // The driver reads values for which the pool has no room.
            Err(error) => match Error::from(error) {
                error if error.is_about_room() => {}
                error => return Poll::Ready(Err(error)),
            },
        }
        self.slot = Some(hand_over(table, key, task, waker));
        Poll::Pending
    }
}

/// Hands an operation to the driver, which wakes the task when it is done.
pub(crate) fn hand_over(table: &Handle, key: Vec<u8>, task: Task<Vec<u8>>, waker: &Waker) -> Arc<Slot> {
    let slot = Arc::new(Slot::default());
    lock(&slot.state).waker = Some(waker.clone());
    let (inner, open) = (table.inner.clone(), table.open.clone());
    let order = Order { inner, open, key, task, slot: Owed::new(slot.clone()) };
    match table.inner.driver.get_or_init(|| Driver::start(run_orders)) {
        Some(driver) => driver.put(order),
        // The system cannot start a thread: the operation is done here, and blocks.
        None => run_orders(vec![order], &Vec::new),
    }
    slot
}

impl<T> Future for TableFuture<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let this = self.get_mut();
        if let Some(error) = this.failed.take() {
            (this.table, this.request) = (None, None);
            return Poll::Ready(Err(error));
        }
        let mut ready = Poll::Pending;
        if this.request.is_some() {
            ready = this.begin(context.waker());
        }
        if let Some((arrival, _)) = &mut this.arrival
            && let Poll::Ready(arrived) = Pin::new(arrival).poll(context)
            && let Some((_, answer)) = this.arrival.take()
        {
            let failed = |error| Error::Log(TxnError::Log(error));
            ready = Poll::Ready(arrived.map(|()| answer).map_err(failed));
        }
        if let Some(slot) = &this.slot {
            let mut state = lock(&slot.state);
            match state.result.take() {
                Some(result) => ready = Poll::Ready(result),
                None => state.waker = Some(context.waker().clone()),
            }
        }
        ready.map(|result| {
            let table = this.table.take();
            if let (
                Some(table),
                Ok(Owned::Written(Written::Inserted | Written::Replaced) | Owned::Removed(true)),
            ) = (&table, &result)
            {
                // The future may have been polled inside a transaction, while the driver ran the operation.
                running::note_commit(&table.inner);
            }
            let name = table.as_ref().map_or("", |table| &*table.name);
            result.and_then(|answer| (this.convert)(name, answer))
        })
    }
}

impl<K: KeyType + ?Sized, V: ValueType + ?Sized> Table<K, V> {
    /// [`get`](Self::get) as a future, for any runtime. A value in memory is ready at the first poll; the reads of many
    /// such futures overlap.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// # let table = database.create_table("t")?;
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// table.put_async("lime", "green").await?;
    /// assert_eq!(table.get_async("lime").await?, Some(b"green".to_vec()));
    /// # Ok::<(), vellum::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_async(&self, key: impl AsKey<K>) -> TableFuture<Option<V::Owned>> {
        self.future(key, Task::Get, |table, answer| match answer {
            Owned::Value(Some(value)) => V::from_bytes(value.into()).map(Some).ok_or_else(|| {
                Error::Malformed { table: table.to_owned(), what: "value", type_name: V::type_name() }
            }),
            Owned::Value(None) | Owned::Written(_) | Owned::Removed(_) => Ok(None),
        })
    }

    /// [`put`](Self::put) as a future.
    pub fn put_async(&self, key: impl AsKey<K>, value: impl AsValue<V>) -> TableFuture<Put> {
        self.write(key, value, Task::Upsert, |_, answer| Ok(written(&answer).into()))
    }

    /// [`insert`](Self::insert) as a future.
    pub fn insert_async(&self, key: impl AsKey<K>, value: impl AsValue<V>) -> TableFuture<bool> {
        self.write(key, value, Task::Insert, |_, answer| Ok(written(&answer) == Written::Inserted))
    }

    /// [`update`](Self::update) as a future.
    pub fn update_async(&self, key: impl AsKey<K>, value: impl AsValue<V>) -> TableFuture<bool> {
        self.write(key, value, Task::Update, |_, answer| Ok(written(&answer) == Written::Replaced))
    }

    /// [`remove`](Self::remove) as a future.
    pub fn remove_async(&self, key: impl AsKey<K>) -> TableFuture<bool> {
        self.future(key, Task::Remove, |_, answer| Ok(matches!(answer, Owned::Removed(true))))
    }

    fn write<T>(
        &self,
        key: impl AsKey<K>,
        value: impl AsValue<V>,
        task: fn(Vec<u8>) -> Task<Vec<u8>>,
        convert: fn(&str, Owned) -> Result<T>,
    ) -> TableFuture<T> {
        match value.encoded_value() {
            Ok(value) => self.future(key, task(value.as_ref().to_vec()), convert),
            Err(error) => TableFuture { failed: Some(error), ..self.future(key, Task::Get, convert) },
        }
    }

    fn future<T>(
        &self,
        key: impl AsKey<K>,
        task: Task<Vec<u8>>,
        convert: fn(&str, Owned) -> Result<T>,
    ) -> TableFuture<T> {
        let request = Some((key.encoded().as_ref().to_vec(), task));
        let table = Some(self.handle.clone());
        TableFuture { table, request, arrival: None, slot: None, failed: None, convert }
    }
}

/// The result of a write; for other answers the result means nothing.
pub(crate) fn written(answer: &Owned) -> Written {
    match answer {
        Owned::Written(written) => *written,
        Owned::Value(_) | Owned::Removed(_) => Written::Refused,
    }
}

/// An operation of the driver's batch.
struct UnderWay {
    slot: Owed,
    open: Arc<OpenTable>,
    is_get: bool,
    _writing: Option<Writing>,
}

/// Runs orders of one database, and further orders that `more` returns in between, until all are done.
fn run_orders(mut orders: Vec<Order>, more: &dyn Fn() -> Vec<Order>) {
    let Some(inner) = orders.first().map(|order| order.inner.clone()) else { return };
    let mut under_way: Vec<Option<UnderWay>> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    let mut done: Vec<(Owed, Result<Owned>)> = Vec::new();
    let mut batch: Batch<'_, Pool, Vec<u8>, Vec<u8>> = Batch::new(inner.durable.pool(), inner.read_depth);
    loop {
        for Order { inner: order, open, key, task, slot } in orders.drain(..) {
            let table = Handle::new(order, open.clone());
            let (is_write, root) = (!matches!(task, Task::Get | Task::GetPart { .. }), open.current().root);
            let writing = if is_write { open.begin_writing(None, root).ok() } else { None };
            if is_write && (writing.is_none() || table.is_apart()) {
                done.push((slot, table.perform(&key, &task)));
                continue;
            }
            drop(table);
            let tree = inner.tree_of(&open, root);
            let tag = free.pop().unwrap_or_else(|| {
                under_way.push(None);
                under_way.len() - 1
            });
            if let Some(place) = under_way.get_mut(tag) {
                *place = Some(UnderWay { slot, open, is_get: matches!(task, Task::Get), _writing: writing });
            }
            batch.begin(tree, key, task, tag as u64);
        }
        batch.advance(true);
        while let Some((tag, result)) = batch
            .take(|tag, request, answer| (tag, answer.map(Owned::from).map_err(|error| (error, request))))
        {
            if let Some(order) = under_way.get_mut(tag as usize).and_then(Option::take) {
                free.push(tag as usize);
                let UnderWay { slot, open, is_get, _writing } = order;
                let result = result.or_else(|(error, (key, task))| {
                    let table = Handle::new(inner.clone(), open);
                    if matches!(error, AccessError::NeedsTransaction { .. }) {
                        return table.perform(&key, &task);
                    }
                    match table.refused(error) {
                        // The pool has no room for the value: it is read past the pool.
                        error if is_get && error.is_about_room() => {
                            table.read_whole(table.tree(), &key).map(Owned::Value)
                        }
                        error => Err(error),
                    }
                });
                done.push((slot, result));
            }
        }
        if let Err(error) = inner.commit() {
            done.iter_mut().for_each(|(_, result)| *result = Err(error.repeated()));
        }
        orders = more();
        if orders.is_empty() && batch.is_empty() {
            break;
        }
        done.drain(..).for_each(|(slot, result)| slot.fill(result));
    }
    // A program that has awaited the last of these may close the database at once.
    drop(batch);
    drop(inner);
    done.drain(..).for_each(|(slot, result)| slot.fill(result));
}
