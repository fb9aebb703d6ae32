//! Calls that return futures, for any runtime.
//!
//! A future tries its operation at the first poll: an operation that need not wait is done there and then. An operation
//! that has to wait, mostly for the device, is handed to one thread of the database, the *driver*, which is started
//! when it is first needed. The driver runs all such operations as one batch, so that their reads overlap, and wakes
//! the task that waits for each.
//!
//! A change that must be a transaction, because some are open, is made by its own task, which waits for those in its way
//! without a thread. Operations that are under way together have no order among each other, not even those of one key.
//!
//! The driver holds handles on the database only while it has operations. It drops them before it reports the last
//! operation as done, so that a program that has awaited everything can close the database at once.
//!
//! Lock order: the inbox of the driver; a future's state. Neither is held while an operation runs or a waker is called.

use crate::{
    AsKey, AsValue, Error, KeyType, Put, Result, Table, Task, ValueType, Written,
    async_run::waited,
    driver::{Driver, lock},
    handle::{Handle, perform_on, with_result},
    life::{OpenTable, Writing},
    patience::Patience,
    running,
    shared::{Order, Owed, Owned, Slot},
};
use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};
use vellum_access::{AccessError, Batch, NumberedRoot, Tree};
use vellum_pool::{Pool, PoolError};
use vellum_txn::{Arrival, TxnError};

/// How often a future tries a change again that the driver has left to it, before it waits where it is polled.
const RETURNS_MAX: u32 = 3;
/// How long a change pauses that conflicts with a transaction which is not known.
const PAUSE: Duration = Duration::from_micros(20);

/// An operation on a table that is under way, or will be once it is polled.
///
/// Nothing happens before the first poll. If a future is dropped after that, its write may or may not be done.
#[must_use = "nothing happens unless it is awaited"]
pub struct TableFuture<T> {
    /// The handle keeps the table and the database open until the end.
    table: Option<Handle>,
    request: Option<(Vec<u8>, Task<Vec<u8>>)>,
    slot: Option<Arc<Slot>>,
    /// How often the driver has left the change to this future.
    returned: u32,
    /// The operation is done, and waits to become durable.
    arrival: Option<(Arrival, Owned)>,
    /// The change is made as a transaction.
    in_turn: Option<Pin<Box<dyn Future<Output = Result<Owned>> + Send>>>,
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
        let tree = table.tree();
        match tree.try_now(&key, task.by_ref(), |answer| Owned::from(answer)) {
            // The driver looks again.
            Ok(Some(Owned::Value(_))) if table.was_replaced(tree.numbered_root()) => {}
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
            Err(AccessError::NeedsTransaction { .. }) => {
                self.in_turn = Some(Box::pin(change_in_turn(table.clone(), key, task)));
                return Poll::Pending;
            }
            // The table has been cleared.
            Err(AccessError::Pool(PoolError::Cancelled)) => return Poll::Ready(table.perform(&key, &task)),
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

impl<T> std::fmt::Debug for TableFuture<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let table = self.table.as_ref().map(|table| &*table.name);
        f.debug_struct("TableFuture").field("table", &table).finish_non_exhaustive()
    }
}

/// Makes a change as its own transaction, and waits for those in its way, and until the change is durable, without a
/// thread.
async fn change_in_turn(table: Handle, key: Vec<u8>, task: Task<Vec<u8>>) -> Result<Owned> {
    let (inner, mut patience) = (&*table.inner, Patience::new());
    let mut baton = None;
    loop {
        let perform = |tree: Tree<'_, Pool>| perform_on(tree, &key, &task);
        let done = with_result(perform, |change| table.change_and_commit(change));
        // A waker may run its task at once, which commits something and waits for it: that is not what this one waits for.
        inner.durable.keep_last_change(|| drop(baton.take()));
        let (conflict, committed) = match done {
            Ok(done) => {
                // What this thread has logged last.
                if let Some(arrival) = inner.durable.commit_later(inner.durability) {
                    arrival.await.map_err(|error| Error::Log(TxnError::Log(error)))?;
                }
                return Ok(done);
            }
            Err(conflict @ Error::Conflict { committed, .. }) => (conflict, committed),
            Err(error) => return Err(error),
        };
        let wait = running::wait_for(inner, &conflict);
        let left = patience.left(wait.as_ref());
        if committed || left.is_zero() {
            // The conflict may be with a transaction that has ended and cannot be rolled back.
            return inner.undo_rest().and(Err(conflict));
        }
        match wait {
            Some(wait) => baton = waited(inner, wait, left).await,
            None => inner.turns.pauses.pause(PAUSE).await,
        }
    }
}

/// Hands an operation to the driver, which wakes the task when it is done.
pub(crate) fn hand_over(table: &Handle, key: Vec<u8>, task: Task<Vec<u8>>, waker: &Waker) -> Arc<Slot> {
    let slot = Arc::new(Slot::default());
    lock(&slot.state).waker = Some(waker.clone());
    let (inner, open) = (table.inner.clone(), table.open.clone());
    let order = Order { inner, open, key, task, slot: Owed::new(slot.clone()) };
    match Driver::of(&table.inner.driver, run_orders) {
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
        let ready = loop {
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
            if let Some(change) = &mut this.in_turn
                && let Poll::Ready(done) = change.as_mut().poll(context)
            {
                this.in_turn = None;
                ready = Poll::Ready(done);
            }
            let Some(slot) = &this.slot else { break ready };
            let (result, undone) = slot.take_or_wait(context.waker());
            match (undone, &this.table) {
                // What was read may have been evicted again.
                (Some(undone), _) if this.returned < RETURNS_MAX => {
                    this.returned += 1;
                    (this.slot, this.request) = (None, Some(undone));
                }
                (Some((key, task)), Some(table)) if table.needs_transactions() => {
                    this.slot = None;
                    this.in_turn = Some(Box::pin(change_in_turn(table.clone(), key, task)));
                }
                (Some((key, task)), Some(table)) => break Poll::Ready(table.perform(&key, &task)),
                _ => break result.map_or(ready, Poll::Ready),
            }
        };
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
            Owned::Value(Some(value)) => {
                V::from_bytes(value.into()).map(Some).ok_or_else(|| Error::Malformed {
                    table: table.to_owned(),
                    key: None,
                    what: "value",
                    type_name: V::type_name(),
                })
            }
            Owned::Value(None) | Owned::Written(_) | Owned::Removed(_) => Ok(None),
        })
    }

    /// [`put`](Self::put) as a future.
    ///
    /// Futures that are under way together have no order, not even those of one key. Where the order matters, await one
    /// before the next is polled.
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
        TableFuture {
            table,
            request,
            arrival: None,
            in_turn: None,
            slot: None,
            returned: 0,
            failed: None,
            convert,
        }
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
    seen: NumberedRoot,
    is_get: bool,
    /// The change that the future is to make, for which only the path is read.
    undone: Option<(Vec<u8>, Task<Vec<u8>>)>,
    _writing: Option<Writing>,
}

/// What has become of an operation.
enum Outcome {
    Done(Result<Owned>),
    /// A change, which is yet to become durable.
    Changed(Owned),
    /// The future is to make the change.
    Undone((Vec<u8>, Task<Vec<u8>>)),
}

impl Outcome {
    /// Tells the future; `committed` says whether the changes are durable.
    fn tell(self, slot: Owed, committed: &Result<()>) {
        match (self, committed) {
            (Self::Done(result), _) => slot.fill(result),
            (Self::Changed(_), Err(error)) => slot.fill(Err(error.repeated())),
            (Self::Changed(answer), Ok(())) => slot.fill(Ok(answer)),
            (Self::Undone(undone), _) => slot.give_back(undone),
        }
    }
}

/// Runs orders of one database, and further orders that `more` returns in between, until all are done.
///
/// A change that must be a transaction is left to its future: it may have to wait for another transaction, whose task
/// may be waiting for a read.
fn run_orders(orders: Vec<Order>, more: &dyn Fn() -> Vec<Order>) {
    // Those that wait for their turn may be unwanted by then.
    let mut orders = VecDeque::from(orders);
    let Some(inner) = orders.front().map(|order| order.inner.clone()) else { return };
    let mut under_way: Vec<Option<UnderWay>> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    let mut done: Vec<(Owed, Outcome)> = Vec::new();
    let mut batch: Batch<'_, Pool, Vec<u8>, Vec<u8>> = Batch::new(inner.durable.pool(), inner.read_depth);
    let committed = loop {
        while !batch.is_full()
            && let Some(Order { inner: order, open, key, task, slot }) = orders.pop_front()
        {
            let table = Handle::new(order, open.clone());
            if slot.is_unwanted() {
                continue;
            }
            let (is_write, seen) = (!matches!(task, Task::Get | Task::GetPart { .. }), open.current().1);
            let writing = if is_write { open.begin_writing(None, seen.root()).ok() } else { None };
            let is_left = is_write && (writing.is_none() || table.is_apart());
            drop(table);
            let tree = inner.tree_of(&open, seen.root());
            let tag = free.pop().unwrap_or_else(|| {
                under_way.push(None);
                under_way.len() - 1
            });
            let is_get = matches!(task, Task::Get);
            let (undone, task) = match is_left {
                true => (Some((key.clone(), task)), Task::GetPart { offset: 0, length: 0 }),
                false => (None, task),
            };
            if let Some(place) = under_way.get_mut(tag) {
                let _writing = writing.filter(|_| !is_left);
                *place = Some(UnderWay { slot, open, seen, is_get, undone, _writing });
            }
            batch.begin(tree, key, task, tag as u64);
        }
        batch.advance(true);
        while let Some((tag, result)) = batch.take(|tag, request, answer| match answer.map(Owned::from) {
            Ok(Owned::Value(value)) => (tag, Ok(Err((request, value)))),
            Ok(answer) => (tag, Ok(Ok(answer))),
            Err(error) => (tag, Err((error, request))),
        }) {
            if let Some(order) = under_way.get_mut(tag as usize).and_then(Option::take) {
                free.push(tag as usize);
                let UnderWay { slot, open, seen, is_get, undone, _writing } = order;
                let outcome = match (undone, result) {
                    // If something cannot be read, the future finds out why.
                    (Some(undone), _) => Outcome::Undone(undone),
                    (
                        None,
                        Ok(Ok(
                            answer @ (Owned::Written(Written::Inserted | Written::Replaced)
                            | Owned::Removed(true)),
                        )),
                    ) => Outcome::Changed(answer),
                    (None, Ok(Ok(answer))) => Outcome::Done(Ok(answer)),
                    (None, Ok(Err(((key, task), value)))) => {
                        let table = Handle::new(inner.clone(), open);
                        Outcome::Done(match table.was_replaced(seen) {
                            true => table.perform(&key, &task),
                            false => Ok(Owned::Value(value)),
                        })
                    }
                    (None, Err((AccessError::NeedsTransaction { .. }, undone))) => Outcome::Undone(undone),
                    (None, Err((error, (key, _)))) => {
                        let table = Handle::new(inner.clone(), open);
                        Outcome::Done(match table.refused(error) {
                            // The pool has no room for the value: it is read past the pool.
                            error if is_get && error.is_about_room() => {
                                table.find(|tree| table.read_whole(tree, &key)).map(Owned::Value)
                            }
                            error => Err(error),
                        })
                    }
                };
                done.push((slot, outcome));
            }
        }
        let committed = inner.commit();
        orders.extend(more());
        if orders.is_empty() && batch.is_empty() {
            break committed;
        }
        done.drain(..).for_each(|(slot, outcome)| outcome.tell(slot, &committed));
    };
    // A program that has awaited the last of these may close the database at once.
    drop(batch);
    drop(inner);
    done.drain(..).for_each(|(slot, outcome)| outcome.tell(slot, &committed));
}
