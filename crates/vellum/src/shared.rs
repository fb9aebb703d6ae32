//! The state that the handles of a database share: the pool, the open tables, and orders for its driver.

use crate::{
    Answer, Error, ErrorKind, IsolationLevel, Result, Task, Written,
    awaited::{Awaited, Waiting, seen_by},
    catalog,
    doomed_trees::DoomedTrees,
    driver::{Driver, lock},
    freeing::Freeing,
    life::{Contents, Doomed, OpenTable},
    log_place::LogPlace,
    nested::{self, Nesting},
    plant::Plant,
    turns::Turns,
    writers::Writers,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock, Weak},
    task::Waker,
    time::Duration,
};
use vellum_access::Tree;
use vellum_base::primitive::{AtomicBool, AtomicUsize, Instant, Mutex, MutexGuard, Ordering, thread};
use vellum_base::{Extent, PageId};
use vellum_pool::{Pool, PoolError};
use vellum_txn::{Durability, DurablePool};

/// The tables that have handles, by their roots.
pub(crate) type OpenTables = HashMap<PageId, Weak<OpenTable>>;

/// A transaction that has ended and could not be rolled back.
pub(crate) trait NotUndone: Send {
    /// Tries again.
    fn undo(&mut self, inner: &Inner) -> Result<()>;

    /// What it needs to be rolled back, and nothing else refers to.
    fn extents(&self) -> Vec<Extent>;
}

/// The state shared by all handles.
// The reference counts are on a separate cache line from what all operations read.
#[repr(align(64))]
pub(crate) struct Inner {
    /// The thread of asynchronous calls, once a call has had to wait. It ends before the pool is dropped.
    pub(crate) driver: OnceLock<Driver<Order>>,
    /// Which of the tasks that run transactions has precedence.
    pub(crate) turns: Turns,
    /// Frees trees that nobody needs any more.
    pub(crate) freeing: Freeing,
    pub(crate) durable: DurablePool,
    /// The durability that a change must have when it returns.
    pub(crate) durability: Durability,
    /// The isolation level of transactions that ask for no other.
    pub(crate) isolation: IsolationLevel,
    pub(crate) log_place: LogPlace,
    /// Locked by a thread that compacts the file; `compacting` is the address of the table that it is working on.
    pub(crate) compaction: Mutex<()>,
    pub(crate) compacting: AtomicUsize,
    /// How many reads of one batch may be under way at once.
    pub(crate) read_depth: usize,
    /// Whether opening created the file.
    pub(crate) created: bool,
    /// Whether it created the database in an empty file that was there: discarding the database leaves that, empty.
    pub(crate) keeps_file: bool,
    /// The damaged copies of the superblock in a file that was recovered in memory, where others are used.
    pub(crate) damaged_superblocks: Vec<PageId>,
    /// What its threads do in callbacks.
    pub(crate) nesting: Nesting,
    /// The tables that have handles, by their roots. Locked while tables are created, opened and dropped, never during
    /// an operation on a table.
    pub(crate) open: Mutex<OpenTables>,
    /// The last commit before each table was created, by its root, if that was since the database was opened.
    pub(crate) created_after: Mutex<HashMap<PageId, u64>>,
    /// The tables, and earlier generations of tables, whose pages are to be freed.
    pub(crate) doomed: Mutex<DoomedTrees>,
    /// What of them could not be freed, and waits. Locked after them.
    pub(crate) waiting: Mutex<Waiting>,
    /// Whether any may be freed now, or when a snapshot ends.
    pub(crate) has_doomed: AtomicBool,
    /// Whether any can be freed only when a table has no handles any more.
    pub(crate) awaits_handles: AtomicBool,
    /// Which transactions have changed records of which tables.
    pub(crate) writers: Arc<Writers>,
    /// Ended transactions that are still to be rolled back, and whether there are any.
    pub(crate) not_undone: Mutex<Vec<Box<dyn NotUndone>>>,
    pub(crate) has_not_undone: AtomicBool,
    /// When transactions that begin try again to roll them back, and how long they have waited for that; none before the
    /// first failure.
    pub(crate) undo_again: Mutex<Option<(Instant, Duration)>>,
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

    /// A tree of a table, as single operations see it. An operation that changes the tree must keep the table from
    /// being cleared.
    pub(crate) fn tree_of(&self, open: &OpenTable, root: PageId) -> Tree<'_, Pool> {
        let tree = Tree::open(self.durable.pool(), root);
        if open.is_plain { tree } else { tree.with_view(self.durable.view()) }
    }

    /// Returns once the changes of this thread are as durable as they should be.
    #[inline(always)]
    pub(crate) fn commit(&self) -> Result<()> {
        Ok(self.durable.commit(self.durability)?)
    }

    /// # Errors
    /// If the database has no log.
    pub(crate) fn require_log(&self) -> Result<()> {
        match self.durable.log_state() {
            None if self.pool().is_read_only() => Err(PoolError::ReadOnly.into()),
            None => Err(Error::WithoutLog),
            Some(_) => Ok(()),
        }
    }

    /// Frees the pages of tables that are gone and can no longer be used, and the contents of earlier generations of
    /// tables: see [`freeing`](crate::freeing).
    #[inline]
    pub(crate) fn sweep(&self) {
        // Acquire: an entry is swept when it is added, and again when the snapshots that were open then end. A thread
        // that ends such a snapshot sees the flag by way of the list of snapshots.
        if self.has_doomed.load(Ordering::Acquire) {
            self.sweep_doomed();
        }
    }

    /// A handle, or something else that uses a table, is about to go: the next transaction that ends looks whether it was
    /// the last one. If the last two go at once, a later event may be the first that finds it.
    pub(crate) fn sweep_later(&self) {
        // Relaxed: if this is missed, the space is freed later.
        if self.awaits_handles.load(Ordering::Relaxed) {
            self.has_doomed.store(true, Ordering::Release);
        }
    }

    /// There is news of something to be freed of a table: the next sweep looks at that.
    #[cold]
    pub(crate) fn note_news(&self, table: &Arc<OpenTable>) {
        // Relaxed: otherwise nothing is to be freed. A caller that has just added something has set the flag.
        if self.has_doomed.load(Ordering::Relaxed) {
            lock(&self.waiting).news.insert(Arc::as_ptr(table).addr());
        }
    }

    #[cold]
    fn sweep_doomed(&self) {
        let mut open = self.lock();
        let (mut doomed, mut waiting) = (lock(&self.doomed), lock(&self.waiting));
        if doomed.is_empty() && waiting.resting.is_empty() {
            // Release, here and below: the flag is changed while the list is locked.
            self.has_doomed.store(false, Ordering::Release);
            self.awaits_handles.store(false, Ordering::Relaxed);
            return;
        }
        let (snapshots, oldest) = self.durable.open_snapshots();
        let Waiting { resting, awaited, news } = &mut *waiting;
        let (is_whole, news) = (!awaited.is_to_come(&snapshots, oldest), std::mem::take(news));
        if !is_whole && news.is_empty() {
            return;
        }
        // Handles are made only while the tables are locked, and only through snapshots that see the table.
        let looked_at = doomed.tables((!is_whole).then_some(news));
        let mut without_handles = BTreeSet::new();
        let (mut free, mut at_rest) = (Vec::new(), Vec::new());
        for table in looked_at.iter().copied() {
            let entries = doomed.of(table);
            let Some(Doomed { open: table_open, .. }) = entries.first() else { continue };
            table_open.unite(oldest);
            if Arc::strong_count(table_open) != entries.len() {
                continue;
            }
            without_handles.insert(table);
            if entries.iter().all(|entry| entry.time <= oldest && entry.contents != Contents::Going) {
                free.extend(doomed.take(table));
            } else if entries.iter().all(|entry| entry.contents == Contents::Nothing)
                && entries.iter().any(|entry| entry.tree.is_none())
            {
                // Nobody can get a handle on such a table any more. The entries of its earlier trees have earlier times.
                at_rest.extend(doomed.take(table).into_iter().find(|entry| entry.tree.is_none()));
            }
        }
        let mut roots = BTreeSet::new();
        let later = resting.split_off(&oldest.saturating_add(1));
        for table in std::mem::replace(resting, later).into_values().flatten() {
            for generation in table.generations() {
                open.remove(&generation.root);
                roots.insert(generation.root);
            }
        }
        for entry in at_rest {
            resting.entry(entry.time).or_default().push(entry.open);
        }
        for Doomed { open: table, tree, .. } in free {
            table.generations().for_each(|generation| drop(open.remove(&generation.root)));
            match tree {
                Some(root) => roots.extend([root]),
                None => roots.extend(table.generations().map(|generation| generation.root)),
            }
        }
        let mut emptied = BTreeMap::new();
        if is_whole {
            *awaited = Awaited::of(doomed.len());
        }
        resting.keys().next().into_iter().for_each(|time| awaited.commit(*time));
        for table in looked_at {
            for entry in doomed.of_mut(table) {
                if entry.time > oldest {
                    awaited.commit(entry.time);
                }
                let is_due = match entry.contents {
                    Contents::Whole => true,
                    Contents::Failed(until) => {
                        awaited.time(until);
                        until <= Instant::now()
                    }
                    Contents::Going | Contents::Nothing => false,
                };
                // The last tree of a table that is gone is reached by handles.
                if is_due && (entry.tree.is_some() || without_handles.contains(&table)) {
                    match seen_by(&snapshots, entry.since, entry.time) {
                        Some(snapshot) => awaited.end_of(snapshot),
                        None => {
                            entry.contents = Contents::Going;
                            emptied.insert(entry.root(), table);
                        }
                    }
                }
            }
        }
        // All that is left are roots of tables that have handles: transactions that end need not look at them again.
        let is_left = |doomed: &Doomed| {
            doomed.contents == Contents::Nothing && doomed.time <= oldest && !doomed.open.is_divided()
        };
        if is_whole && resting.is_empty() && doomed.iter().all(is_left) {
            self.has_doomed.store(false, Ordering::Release);
            self.awaits_handles.store(!doomed.is_empty(), Ordering::Relaxed);
        }
        drop((open, doomed, waiting));
        for root in roots {
            // Before that, because its root may be that of another tree at once.
            lock(&self.created_after).remove(&root);
            self.durable.forget_tree(root);
            self.freeing.free(root);
        }
        emptied.into_iter().for_each(|(root, table)| self.truncate(root, table));
    }

    /// Frees the contents of a tree that the table at this address has had.
    pub(crate) fn truncate(&self, root: PageId, table: usize) {
        /// Until then no transaction that ends tries it again.
        const RETRY: Duration = Duration::from_secs(1);
        let left = match self.empty(root) {
            Ok(()) => Contents::Nothing,
            Err(_) => Contents::Failed(Instant::now() + RETRY),
        };
        let mut doomed = lock(&self.doomed);
        doomed
            .of_mut(table)
            .iter_mut()
            .filter(|doomed| doomed.contents == Contents::Going && doomed.root() == root)
            .for_each(|doomed| {
                doomed.contents = left;
                self.note_news(&doomed.open);
            });
    }

    /// Frees all pages of a tree but its root. If they are many, or one cannot be read, they become those of a doomed
    /// tree first, unless the file has no page for its root.
    pub(crate) fn empty(&self, root: PageId) -> Result<()> {
        let tree = Tree::open(self.durable.pool(), root);
        if !tree.is_small()? || tree.truncate().is_err() {
            match self.move_to_doomed(&tree) {
                Err(error) if error.kind() == ErrorKind::OutOfSpace => tree.truncate()?,
                moved => moved?,
            }
        }
        self.durable.forget_tree(root);
        Ok(())
    }

    /// Moves all of a tree but its root to a doomed tree.
    fn move_to_doomed(&self, tree: &Tree<'_, Pool>) -> Result<()> {
        let pool = self.durable.pool();
        let rest = catalog::create_doomed(pool)?;
        let moved = tree.move_to(&Tree::open(pool, rest));
        self.freeing.free(rest);
        Ok(moved?)
    }

    /// The last commit before the table with this root was created; 0 if that is not known.
    pub(crate) fn created_after(&self, root: PageId) -> u64 {
        lock(&self.created_after).get(&root).copied().unwrap_or_default()
    }

    /// How many of the handles on a table belong to the program.
    pub(crate) fn handles(&self, table: &Weak<OpenTable>) -> usize {
        let own = lock(&self.doomed).of(table.as_ptr().addr()).len()
            + usize::from(self.compacting.load(Ordering::Relaxed) == table.as_ptr().addr());
        table.strong_count().saturating_sub(own)
    }

    /// Keeps an ended transaction that could not be rolled back.
    #[cold]
    pub(crate) fn undo_later(&self, transaction: Box<dyn NotUndone>) {
        let mut rest = lock(&self.not_undone);
        rest.push(transaction);
        // Relaxed, here and where it is read: a thread that does not see it yet meets a conflict, and a thread that
        // begins later tries.
        self.has_not_undone.store(true, Ordering::Relaxed);
    }

    /// Rolls back the transactions that could not be rolled back before, if that is possible now.
    ///
    /// # Errors
    /// Why it is not possible. The ended transactions continue to block others from changing their records.
    #[inline]
    pub(crate) fn undo_rest(&self) -> Result<()> {
        if self.has_not_undone.load(Ordering::Relaxed) { self.try_to_undo_rest() } else { Ok(()) }
    }

    /// [`undo_rest`](Self::undo_rest) for a transaction that begins, which does not need it. Not at once after a failure:
    /// on a device that fails, each attempt may take seconds.
    #[inline]
    pub(crate) fn undo_rest_if_due(&self) {
        if self.has_not_undone.load(Ordering::Relaxed)
            && lock(&self.undo_again).is_none_or(|(again, _)| again <= Instant::now())
        {
            // An operation that meets a remaining change gets the error.
            let _ = self.try_to_undo_rest();
        }
    }

    /// Somebody has met a conflict, perhaps with a transaction that could not be rolled back: the next transaction that
    /// begins tries that again, so that a conflict which is met again and again is not one of these.
    pub(crate) fn undo_soon(&self) {
        if self.has_not_undone.load(Ordering::Relaxed)
            && let Some((again, _)) = &mut *lock(&self.undo_again)
        {
            *again = Instant::now();
        }
    }

    #[cold]
    fn try_to_undo_rest(&self) -> Result<()> {
        /// How long a transaction that begins does not try again, at first and at most.
        const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];
        let mut rest = lock(&self.not_undone);
        self.has_not_undone.store(false, Ordering::Relaxed);
        let mut undone = Ok(());
        // Not under the lock: rolling back calls wakers, which may begin a transaction.
        let mut taken = std::mem::take(&mut *rest);
        drop(rest);
        taken.retain_mut(|transaction| transaction.undo(self).map_err(|error| undone = Err(error)).is_err());
        if !taken.is_empty() {
            lock(&self.not_undone).append(&mut taken);
            self.has_not_undone.store(true, Ordering::Relaxed);
        }
        let [first, most] = PAUSES;
        let mut again = lock(&self.undo_again);
        let pause = again.map_or(first, |(_, pause)| (pause * 2).min(most));
        *again = undone.is_err().then(|| (Instant::now() + pause, pause));
        drop(again);
        undone
    }

    /// What the transactions that could not be rolled back need for that, and nothing else refers to.
    pub(crate) fn not_undone_extents(&self) -> Vec<Extent> {
        lock(&self.not_undone).iter().flat_map(|transaction| transaction.extents()).collect()
    }

    /// Repeats an attempt, in case an ended transaction was in its way: one that was not rolled back until now, or one
    /// that owns the table and is about to let go of it. So does a load outside of transactions whose records are being
    /// put into the tree.
    ///
    /// # Errors
    /// Those of the last attempt; instead of a conflict, why a transaction cannot be rolled back.
    #[cold]
    pub(crate) fn try_again<T>(&self, table: &OpenTable, attempt: impl Fn() -> Result<T>) -> Result<T> {
        const PAUSE: Duration = Duration::from_micros(20);
        let undone = self.undo_rest();
        loop {
            // Before the attempt, so that it is known of the owner which the attempt has met.
            let owner = table.owner();
            let error = match attempt() {
                Err(error @ Error::Conflict { .. }) => error,
                // Whatever could not be rolled back is not what is in the way: the table is gone, for example.
                done => return done,
            };
            // What it has committed is seen already.
            if owner.is_none_or(|owner| self.durable.is_open(owner)) {
                return undone.and(Err(error));
            }
            thread::sleep(PAUSE);
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, OpenTables> {
        self.open.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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
    /// The answer with a borrowed value.
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

/// The state shared by a future and the driver.
#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) state: Mutex<SlotState>,
}

/// The key of an operation, and the operation.
type Undone = (Vec<u8>, Task<Vec<u8>>);

#[derive(Default)]
pub(crate) struct SlotState {
    pub(crate) result: Option<Result<Owned>>,
    /// A change that the future is to make itself: the path to its key was read, or could not be.
    pub(crate) undone: Option<Undone>,
    pub(crate) waker: Option<Waker>,
}

impl Slot {
    pub(crate) fn fill(&self, result: Result<Owned>) {
        self.wake_with(|state| state.result = Some(result));
    }

    /// The result, or the change that is left to the future. If there is neither yet, `waker` is called when there is. It is
    /// the caller's code, and so is that of the one before: both are cloned and dropped without the lock.
    pub(crate) fn take_or_wait(&self, waker: &Waker) -> (Option<Result<Owned>>, Option<Undone>) {
        let waker = waker.clone();
        let mut state = lock(&self.state);
        let told = (state.result.take(), state.undone.take());
        let needless = if let (None, None) = &told { state.waker.replace(waker) } else { Some(waker) };
        drop((state, needless));
        told
    }

    fn wake_with(&self, change: impl FnOnce(&mut SlotState)) {
        let mut state = lock(&self.state);
        change(&mut state);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            // If a runtime's waker panics, the panic itself has reported that, and other futures must not be affected.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

/// A result that a future waits for: if this is dropped, the future fails.
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

    /// Whether the future has been dropped.
    pub(crate) fn is_unwanted(&self) -> bool {
        self.0.as_ref().is_none_or(|slot| Arc::strong_count(slot) == 1)
    }

    /// Leaves a change to the future.
    pub(crate) fn give_back(mut self, undone: Undone) {
        if let Some(slot) = self.0.take() {
            slot.wake_with(|state| state.undone = Some(undone));
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

    #[test]
    fn wakers_are_dropped_without_the_lock() {
        struct Looks(Arc<Slot>);
        impl std::task::Wake for Looks {
            fn wake(self: Arc<Self>) {}
        }
        impl Drop for Looks {
            fn drop(&mut self) {
                drop(self.0.state.try_lock().unwrap());
            }
        }
        let slot = Arc::new(Slot::default());
        assert!(slot.take_or_wait(&Waker::from(Arc::new(Looks(slot.clone())))).0.is_none());
        assert!(slot.take_or_wait(Waker::noop()).0.is_none());
    }
}
