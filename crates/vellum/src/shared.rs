//! What the handles of a database share: the pool, its tables that are open, and orders for its driver.

use crate::{
    Answer, IsolationLevel, Result, Task, Written, catalog,
    driver::{Driver, lock},
    life::{Doomed, OpenTable},
    log_place::LogPlace,
    nested,
    plant::Plant,
};
use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock, Weak},
    task::Waker,
};
use vellum_access::Tree;
use vellum_base::PageId;
use vellum_base::primitive::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering};
use vellum_pool::{Pool, PoolError};
use vellum_txn::{Durability, DurablePool};

/// The tables that have handles, by their roots.
pub(crate) type OpenTables = HashMap<PageId, Weak<OpenTable>>;

/// Tries to roll a transaction back that has ended.
pub(crate) type Undo = Box<dyn FnMut(&Inner) -> Result<()> + Send>;

/// What all handles share.
pub(crate) struct Inner {
    /// The thread of asynchronous calls, once there was one that had to wait. Ends before the pool goes.
    pub(crate) driver: OnceLock<Option<Driver<Order>>>,
    pub(crate) durable: DurablePool,
    /// When a change counts as done.
    pub(crate) durability: Durability,
    /// How transactions are kept apart that ask for nothing else.
    pub(crate) isolation: IsolationLevel,
    pub(crate) log_place: LogPlace,
    /// Locked by a thread that compacts the file, and the address of the table that it works on.
    pub(crate) compaction: Mutex<()>,
    pub(crate) compacting: AtomicUsize,
    /// How many reads of one batch may be under way at once.
    pub(crate) read_depth: usize,
    /// Whether opening it created it.
    pub(crate) created: bool,
    /// The tables that have handles, by their roots. Locked while tables are created, opened and dropped, never during an
    /// operation on one.
    pub(crate) open: Mutex<OpenTables>,
    /// The tables whose pages are to be freed.
    pub(crate) doomed: Mutex<Vec<Doomed>>,
    /// Transactions that are yet to be rolled back, and whether there are any.
    pub(crate) not_undone: Mutex<Vec<Undo>>,
    pub(crate) has_not_undone: AtomicBool,
    /// A bug that a test has planted.
    #[cfg(test)]
    pub(crate) planted: Mutex<Option<Plant>>,
}

impl Inner {
    #[cfg(test)]
    pub(crate) fn is_planted(&self, bug: Plant) -> bool {
        *lock(&self.planted) == Some(bug)
    }

    #[cfg(not(test))]
    #[inline(always)]
    #[expect(clippy::unused_self, reason = "as in tests")]
    pub(crate) const fn is_planted(&self, _: Plant) -> bool {
        false
    }

    /// The pool, for an operation on it.
    #[inline]
    #[track_caller]
    pub(crate) fn pool(&self) -> &Pool {
        nested::check(self.durable.pool());
        self.durable.pool()
    }

    /// The tree of a table, as single operations see it.
    pub(crate) fn tree_of(&self, open: &OpenTable) -> Tree<'_, Pool> {
        let tree = Tree::open(self.durable.pool(), open.root);
        if open.is_plain { tree } else { tree.with_view(self.durable.view()) }
    }

    /// Returns once what this thread has changed is as durable as it should be.
    #[inline]
    pub(crate) fn commit(&self) -> Result<()> {
        Ok(self.durable.commit(self.durability)?)
    }

    /// Writes everything, and marks the file as closed.
    pub(crate) fn close(&mut self) -> Result<()> {
        // What is left the next opening undoes.
        let _ = self.undo_rest();
        self.sweep();
        self.durable.close()?;
        self.log_place.remove();
        Ok(())
    }

    /// Frees the pages of tables that are gone, those that nobody can use any more. What cannot be freed, or is not when the
    /// database crashes, is in the catalog, and freed when the database is opened.
    pub(crate) fn sweep(&self) {
        let mut open = self.lock();
        let mut doomed = lock(&self.doomed);
        if doomed.is_empty() {
            return;
        }
        let oldest = self.durable.oldest_snapshot();
        // Handles are made while the tables are locked, and by snapshots that see the table.
        let is_free = |doomed: &mut Doomed| doomed.time <= oldest && Arc::strong_count(&doomed.open) == 1;
        let free: Vec<Doomed> = doomed.extract_if(.., is_free).collect();
        free.iter().for_each(|doomed| drop(open.remove(&doomed.open.root)));
        drop((open, doomed));
        for Doomed { open, .. } in free {
            if catalog::free(self.durable.pool(), open.root).is_ok() {
                self.durable.forget_tree(open.root);
            }
        }
    }

    /// A transaction has ended and could not be rolled back.
    #[cold]
    pub(crate) fn undo_later(&self, transaction: Undo) {
        let mut rest = lock(&self.not_undone);
        rest.push(transaction);
        // Relaxed, here and where it is read: a thread that does not see it yet meets a conflict, and one that begins later tries.
        self.has_not_undone.store(true, Ordering::Relaxed);
    }

    /// Rolls back what could not be rolled back before, if that can be done now.
    ///
    /// # Errors
    /// Why it cannot. The transactions that have ended go on to keep others from what they have changed.
    #[inline]
    pub(crate) fn undo_rest(&self) -> Result<()> {
        if self.has_not_undone.load(Ordering::Relaxed) { self.try_to_undo_rest() } else { Ok(()) }
    }

    #[cold]
    fn try_to_undo_rest(&self) -> Result<()> {
        let mut rest = lock(&self.not_undone);
        let mut undone = Ok(());
        rest.retain_mut(|undo| undo(self).map_err(|error| undone = Err(error)).is_err());
        self.has_not_undone.store(!rest.is_empty(), Ordering::Relaxed);
        undone
    }

    /// Tries something again, if a transaction that has ended, and was not rolled back until now, may have been in its way.
    ///
    /// # Errors
    /// As the second time; if that transaction cannot be rolled back, why.
    #[cold]
    pub(crate) fn try_again<T>(&self, attempt: impl FnOnce() -> Result<T>) -> Result<T> {
        let undone = self.undo_rest();
        attempt().or_else(|error| undone.and(Err(error)))
    }

    pub(crate) fn doom(&self, open: Arc<OpenTable>, time: u64) {
        lock(&self.doomed).push(Doomed { open, time });
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, OpenTables> {
        self.open.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // After a panic something may be half done: then it is better that opening says so.
        if !std::thread::panicking() {
            // An error has nowhere to go; opening will say that the file was not closed cleanly.
            let _ = self.close();
        }
    }
}

/// An operation for the driver.
pub(crate) struct Order {
    pub(crate) inner: Arc<Inner>,
    pub(crate) open: Arc<OpenTable>,
    pub(crate) key: Vec<u8>,
    pub(crate) task: Task<Vec<u8>>,
    pub(crate) slot: Owed,
}

/// An [`Answer`] that owns its value.
pub(crate) enum Owned {
    Value(Option<Vec<u8>>),
    Written(Written),
    Removed(bool),
}

impl Owned {
    /// The answer as it is shown.
    pub(crate) fn answer(&self) -> Answer<'_> {
        match self {
            Self::Value(value) => Answer::Value(value.as_deref()),
            Self::Written(written) => Answer::Written(*written),
            Self::Removed(removed) => Answer::Removed(*removed),
        }
    }
}

impl From<Answer<'_>> for Owned {
    fn from(answer: Answer<'_>) -> Self {
        match answer {
            Answer::Value(value) => Self::Value(value.map(<[u8]>::to_vec)),
            Answer::Written(written) => Self::Written(written),
            Answer::Removed(removed) => Self::Removed(removed),
        }
    }
}

/// What a future and the driver share.
#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) state: Mutex<SlotState>,
}

#[derive(Default)]
pub(crate) struct SlotState {
    pub(crate) result: Option<Result<Owned>>,
    pub(crate) waker: Option<Waker>,
}

impl Slot {
    pub(crate) fn fill(&self, result: Result<Owned>) {
        let mut state = lock(&self.state);
        state.result = Some(result);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            // A runtime's waker that panics has been reported by the panic itself, and is no concern of other futures.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

/// A result that somebody waits for: if it is dropped, the future fails.
pub(crate) struct Owed(Option<Arc<Slot>>);

impl Owed {
    pub(crate) fn new(slot: Arc<Slot>) -> Self {
        Self(Some(slot))
    }

    pub(crate) fn fill(mut self, result: Result<Owned>) {
        if let Some(slot) = self.0.take() {
            slot.fill(result);
        }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            slot.fill(Err(PoolError::Panicked.into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_undone_fails_and_does_not_wait_for_ever() {
        let slot = Arc::new(Slot::default());
        drop(Owed::new(slot.clone()));
        assert!(matches!(lock(&slot.state).result, Some(Err(_))));
        let slot = Arc::new(Slot::default());
        Owed::new(slot.clone()).fill(Ok(Owned::Removed(true)));
        assert!(matches!(lock(&slot.state).result, Some(Ok(Owned::Removed(true)))));
    }
}
