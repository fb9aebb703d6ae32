//! Transactions that are run by tasks, and run again after conflicts.
//!
//! A task may continue on another thread after each `await`, and its thread does other work meanwhile. So precedence
//! cannot belong to a thread: the tasks of a database take [turns](crate::turns).

use crate::{
    Database, Error, Result, Transaction, TransactionOptions,
    attempts::Attempts,
    running::{self, PassedBy, Running},
    shared::Inner,
    turns::Turned,
};
use std::{
    future::{Future, poll_fn},
    ops::ControlFlow,
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use vellum_txn::{Baton, TxnError, Wait};

impl Database {
    /// [`run`](Self::run) for tasks of any runtime: runs a transaction and commits it, and runs it again after
    /// conflicts. Neither the pauses nor the wait for durability block the thread. `work` returns a future, which uses
    /// the transaction through the transaction's own futures, such as [`get_async`](Transaction::get_async), and keeps
    /// no handle on it.
    ///
    /// After several conflicts a transaction gets its *turn*, which one transaction has at a time: other tasks wait
    /// before their next attempt, for up to twice as long as its last attempt took, and at most ten seconds.
    /// Transactions of threads, by `run` or [`begin`](Self::begin), do not wait.
    ///
    /// Which transactions a task has begun is not known. So a conflict with a transaction that the task itself has
    /// [begun](Self::begin), and that ends only after this future, goes on for ever, unless
    /// [`retry_for`](TransactionOptions::retry_for) sets a limit ([`run_async_with`](Self::run_async_with)). So does a
    /// conflict with what `work` commits outside the transaction, as long as others commit something during each
    /// attempt.
    ///
    /// If the future is dropped, the transaction is rolled back, unless it has already been committed and is only
    /// waiting to become durable.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// let stock = database.create_table(vellum::TableName::<str, u32>::new("stock"))?;
    /// stock.put("apples", 5)?;
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let stock = &stock;
    /// let left = database.run_async(|transaction| async move {
    ///     let left = transaction.get_async(stock, "apples").await?.unwrap_or(0).saturating_sub(2);
    ///     transaction.put_async(stock, "apples", left).await?;
    ///     Ok(left)
    /// });
    /// assert_eq!(left.await?, 3);
    /// # Ok::<(), vellum::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for `run`, except [`Error::HeldByThread`]; [`Error::TransactionKept`] if `work` has kept a handle on its
    /// transaction.
    pub async fn run_async<T, F>(&self, work: impl FnMut(Arc<Transaction>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        self.run_async_with(TransactionOptions::default(), work).await
    }

    /// [`run_async`](Self::run_async), with options other than the database's.
    ///
    /// # Errors
    /// As for `run_async`.
    pub async fn run_async_with<T, F>(
        &self,
        options: TransactionOptions,
        mut work: impl FnMut(Arc<Transaction>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let inner = self.inner();
        let mut attempts = Attempts::new(options.retry_for);
        // The number of the first attempt's transaction, which no other task has.
        let mut number = None;
        let mut baton: Option<Baton> = None;
        loop {
            let is_inside = |turn| running::is_inside_turn(inner, turn);
            let turn = inner.turns.take(number, attempts.precedence(), is_inside).await;
            attempts.begin();
            let passed_by = PassedBy::none(inner);
            let transaction = Arc::new(self.begin_with(options)?);
            number = number.or(Some(transaction.id()));
            let known = (passed_by, turn.as_ref().and_then(Turned::number));
            let (worked, passed_by) = watched(inner, &transaction, known, work(transaction.clone())).await;
            let done = match (worked, Arc::into_inner(transaction)) {
                (Ok(value), Some(transaction)) => committed(transaction).await.map(|()| value),
                (Ok(_), None) => return Err(Error::TransactionKept),
                // It is still open, so another attempt would only meet it.
                (Err(error), None) => return Err(error),
                (Err(error), Some(transaction)) => {
                    // Others must not meet what it has changed while it waits.
                    drop(transaction);
                    Err(error)
                }
            };
            drop(baton.take());
            let wait = done.as_ref().err().and_then(|conflict| running::wait_for(inner, conflict));
            let may_be_own = turn.is_some() && passed_by.is_all_own(inner);
            if let ControlFlow::Break(done) = attempts.end(done, may_be_own) {
                return done;
            }
            drop(turn);
            match wait {
                Some(wait) => {
                    baton = waited(inner, wait, attempts.longest_wait()).await;
                    attempts.waited(baton.is_some());
                }
                None => inner.turns.pauses.pause(attempts.pause()).await,
            }
        }
    }
}

/// Waits for another transaction, for at most `longest`.
pub(crate) async fn waited(inner: &Inner, mut wait: Wait, longest: Duration) -> Option<Baton> {
    let mut pause = pin!(inner.turns.pauses.pause(longest));
    poll_fn(|context| match wait.poll(&Context::from_waker(&running::outside(context.waker()))) {
        Poll::Ready(baton) => Poll::Ready(Some(baton)),
        Poll::Pending => pause.as_mut().poll(context).map(|()| None),
    })
    .await
}

/// Runs the work of a transaction. Also returns what was committed meanwhile. `known` is what was committed before, and
/// the number of the task if that has its turn.
async fn watched<T>(
    inner: &Arc<Inner>,
    transaction: &Transaction,
    (mut passed_by, turn): (PassedBy, Option<u64>),
    work: impl Future<Output = Result<T>>,
) -> (Result<T>, PassedBy) {
    let mut work = pin!(work);
    let worked = poll_fn(|context| {
        let running = Running::begin(inner, &transaction.open.transaction, (passed_by, turn));
        let polled = work.as_mut().poll(context);
        let polled = polled.map(|worked| transaction.outcome(worked));
        passed_by = running.end();
        polled
    });
    let worked = worked.await;
    (worked, passed_by)
}

/// Commits, and waits until that is as durable as the options say.
async fn committed(transaction: Transaction) -> Result<()> {
    match transaction.commit_async()? {
        Some(arrival) => arrival.await.map_err(|error| Error::Log(TxnError::Log(error))),
        None => Ok(()),
    }
}
