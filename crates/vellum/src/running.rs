//! The transactions that a thread runs, nested in each other: [`Database::run`](crate::Database::run) inside the work
//! of another one.
//!
//! An operation of a table, or another transaction, that is run inside a transaction but not through it, may conflict
//! with it. It would conflict again however often it is tried, because the outer transaction ends only after it. Or the
//! outer transaction conflicts with what was done inside, each time it is run. This module detects both.

use crate::{
    Error, catalog,
    life::OpenTable,
    open_transaction::{Begun, OpenTransaction},
    shared::{Inner, OpenTables},
    shown::WHOLE_TABLE,
};
use std::{
    cell::RefCell,
    mem,
    panic::Location,
    sync::{Arc, Weak},
    task::{Wake, Waker},
    time::Duration,
};
use vellum_access::{AccessError, Tree};
use vellum_base::{PageId, primitive::thread};
use vellum_pool::Pool;
use vellum_txn::{Baton, Wait};

vellum_base::primitive::thread_local! {
    /// The transactions that this thread runs, the outermost first.
    static RUNNING: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
}

/// A transaction that is being run.
#[derive(Clone)]
struct Frame {
    /// The address of its database.
    database: usize,
    transaction: Arc<Begun>,
    passed_by: PassedBy,
    /// The number of the task that runs it, if that has its [turn](crate::turns).
    turn: Option<u64>,
}

/// What is committed past a transaction while it is run, as far as the thread that runs it knows.
///
/// Which records that has changed is not known. But commits are numbered: if this thread has committed something, and
/// the number is greater by no more than that, the others have committed nothing.
#[derive(Clone, Copy)]
pub(crate) struct PassedBy {
    /// The number of the last commit when the thread looked last.
    last: u64,
    /// Whether this thread has changed and committed something inside the transaction but not through it.
    own: bool,
    /// Whether others have committed something, or may have.
    others: bool,
}

impl PassedBy {
    /// Nothing yet. The transaction begins after this.
    pub fn none(inner: &Inner) -> Self {
        Self { last: inner.durable.last_commit(), own: false, others: false }
    }

    /// Whether what was committed since the transaction began was all committed inside it, and there is something.
    pub fn is_all_own(mut self, inner: &Inner) -> bool {
        self.look(inner.durable.last_commit());
        self.own && !self.others
    }

    /// Finds out what others have committed since the thread looked last, before it may commit something.
    fn look(&mut self, last: u64) {
        self.others |= last != self.last;
        self.last = last;
    }

    /// Notes that this thread has just committed something, or has found out that the driver has, for it. That may be
    /// noted twice, and a transaction that has changed nothing has no number.
    fn note_own(&mut self, last: u64) {
        let new = last.saturating_sub(self.last);
        self.own |= new > 0;
        self.others |= new > 1;
        self.last = last;
    }
}

/// Marks a transaction as run by this thread.
pub(crate) struct Running(PassedBy);

impl Running {
    /// `passed_by` says what was committed before, since the transaction began, and `turn` which number its task has,
    /// if that has its turn.
    pub fn begin(
        inner: &Arc<Inner>,
        transaction: &Arc<Begun>,
        (passed_by, turn): (PassedBy, Option<u64>),
    ) -> Self {
        let transaction = transaction.clone();
        change_running(|running| {
            own_frames(running, inner).for_each(|frame| frame.passed_by.look(inner.durable.last_commit()));
            running.push(Frame { database: address(inner), transaction, passed_by, turn });
        });
        Self(passed_by)
    }

    /// It is run no longer, or not by this thread. Returns what has been committed until now.
    pub fn end(self) -> PassedBy {
        let passed_by = |running: &RefCell<Vec<Frame>>| Some(running.borrow().last()?.passed_by);
        RUNNING.try_with(passed_by).ok().flatten().unwrap_or(self.0)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Transactions end in the opposite order.
        change_running(|running| drop(running.pop()));
    }
}

/// Notes that this thread has changed and committed something, as a transaction.
pub(crate) fn note_commit(inner: &Arc<Inner>) {
    change_running(|running| {
        own_frames(running, inner).for_each(|frame| frame.passed_by.note_own(inner.durable.last_commit()));
    });
}

/// Whether this thread is running a transaction of the task with this number, which has its turn.
pub(crate) fn is_inside_turn(inner: &Arc<Inner>, number: u64) -> bool {
    let is_inside = |frame: &Frame| frame.database == address(inner) && frame.turn == Some(number);
    RUNNING.try_with(|running| running.borrow().iter().any(is_inside)).unwrap_or_default()
}

/// A waker of a task that waits for a transaction. A thread may call it inside another transaction, and some runtimes then run
/// the task at once: that is not inside the transaction, which goes on only after it.
struct Outside(Waker);

/// A waker that calls this one outside of the transactions that the calling thread runs.
pub(crate) fn outside(waker: &Waker) -> Waker {
    Waker::from(Arc::new(Outside(waker.clone())))
}

impl Wake for Outside {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        /// What the thread runs again afterwards, also after a panic.
        struct Inside(Vec<Frame>);
        impl Drop for Inside {
            fn drop(&mut self) {
                change_running(|running| *running = mem::take(&mut self.0));
            }
        }
        let mut inside = Inside(Vec::new());
        change_running(|running| inside.0 = mem::take(running));
        self.0.wake_by_ref();
    }
}

/// The transactions of a database.
fn own_frames<'r>(running: &'r mut [Frame], inner: &Arc<Inner>) -> impl Iterator<Item = &'r mut Frame> {
    let database = address(inner);
    running.iter_mut().filter(move |frame| frame.database == database)
}

/// Changes the list of this thread. A thread that is about to end has none: nothing that it runs then is nested.
fn change_running(change: impl FnOnce(&mut Vec<Frame>)) {
    let _ = RUNNING.try_with(|running| change(&mut running.borrow_mut()));
}

fn address(inner: &Arc<Inner>) -> usize {
    Arc::as_ptr(inner).addr()
}

/// Turns an error of the work of a transaction into [`Error::OwnConflict`] if it is a conflict with this transaction,
/// or with an outer one. If this transaction is dead, it was itself refused, and is not what others conflict with.
#[cold]
pub(crate) fn explained(inner: &Arc<Inner>, is_dead: bool, error: Error) -> Error {
    let Error::Conflict { table, key, committed: false } = error else { return error };
    let mut own = RUNNING.try_with(|running| running.borrow().clone()).unwrap_or_default();
    if is_dead {
        own.pop();
    }
    own.retain(|frame| frame.database == address(inner));
    if own.iter().any(|frame| holds(inner, &frame.transaction, &table, &key)) {
        Error::OwnConflict { table, key }
    } else {
        Error::Conflict { table, key, committed: false }
    }
}

/// Turns a conflict that is final into [`Error::HeldByThread`] if it is with a transaction that this thread has begun and
/// not ended.
pub(crate) fn unless_held(inner: &Inner, error: Error) -> Error {
    let Error::Conflict { table, key, committed: false } = error else { return error };
    match begun_here(inner, &table, &key) {
        Some(begun_at) => Error::HeldByThread { table, key, begun_at },
        None => Error::Conflict { table, key, committed: false },
    }
}

/// Where this thread has begun the transaction that keeps others from changing a record or a table, if it was this
/// thread.
#[cold]
fn begun_here(inner: &Inner, table: &str, key: &[u8]) -> Option<&'static Location<'static>> {
    let durable = &inner.durable;
    durable.begun_here(tree_of(inner, table)?, key).or_else(|| {
        // The table is kept by a transaction that has changed its records, or is loading it.
        let name = str::from_utf8(key).ok().filter(|_| table == WHOLE_TABLE)?;
        let root = root_of(inner, name)?;
        let table = inner.lock().get(&root).and_then(Weak::upgrade)?;
        let own = durable.begun_by_this_thread();
        own.into_iter().find(|(transaction, _)| table.is_used_by(*transaction)).map(|(_, place)| place)
    })
}

/// Begins to wait for the open transaction that a conflict was with, if that is known and it is still open. Before that
/// those are rolled back that could not be before, in case the conflict was with one of them.
pub(crate) fn wait_for(inner: &Inner, conflict: &Error) -> Option<Wait> {
    let Error::Conflict { table, key, committed: false } = conflict else { return None };
    // If it fails, the last attempt of the caller meets the conflict again.
    let _ = inner.undo_rest();
    inner.durable.wait_for_keeper(tree_of(inner, table)?, key)
}

/// Waits for the transaction that a conflict was with, for at most `longest`; if it is not known, for a moment.
pub(crate) fn wait_or_pause(wait: Option<Wait>, longest: Duration) -> Option<Baton> {
    const PAUSE: Duration = Duration::from_micros(20);
    let Some(wait) = wait else {
        thread::sleep(PAUSE);
        return None;
    };
    wait.wait(longest)
}

/// The root of a table, or of the catalog.
fn tree_of(inner: &Inner, table: &str) -> Option<PageId> {
    if table == WHOLE_TABLE {
        Some(catalog::tree(inner.durable.pool()).root())
    } else {
        root_of(inner, table)
    }
}

fn root_of(inner: &Inner, table: &str) -> Option<PageId> {
    let catalog = catalog::tree(inner.durable.pool()).with_view(inner.durable.view());
    Some(catalog::find(catalog, table).ok()??.root)
}

/// Whether a transaction keeps others from changing a record, or a table.
fn holds(inner: &Arc<Inner>, transaction: &Begun, table: &str, key: &[u8]) -> bool {
    let name = if table == WHOLE_TABLE { str::from_utf8(key).unwrap_or_default() } else { table };
    let owns = |open: &OpenTables, root: PageId| {
        let table = open.get(&root).and_then(Weak::upgrade);
        table.is_some_and(|table: Arc<OpenTable>| table.is_used_by(transaction.id()))
    };
    let pool = inner.durable.pool();
    let seen = catalog::tree(pool).with_view(transaction.reading());
    let now = catalog::tree(pool).with_view(inner.durable.view());
    let roots = [&seen, &now].map(|catalog| Some(catalog::find(*catalog, name).ok()??.root));
    if table == WHOLE_TABLE && roots.iter().flatten().any(|root| owns(&inner.lock(), *root)) {
        return true;
    }
    let changed = |root: PageId| {
        let tree = Tree::open(pool, root);
        // Another transaction has changed the record.
        if tree.with_view(transaction.reading()).held(key).is_err() {
            return false;
        }
        let now = tree.with_view(inner.durable.view()).held(key);
        matches!(now, Err(AccessError::NeedsTransaction { .. }))
            || has_reserved(inner, transaction, (tree, key))
    };
    if table == WHOLE_TABLE { changed(seen.root()) } else { roots.into_iter().flatten().any(changed) }
}

/// Whether a transaction has reserved a record without changing it. This thread is not inside a change of the
/// transaction, but another thread may be.
fn has_reserved(inner: &Arc<Inner>, transaction: &Begun, (tree, key): (Tree<'_, Pool>, &[u8])) -> bool {
    let reserves = |transaction: &vellum_txn::Transaction| {
        transaction.writing(inner.pool()).is_ok_and(|view| tree.with_view(view).reserve(key).is_ok())
    };
    let other = OpenTransaction::begin(inner, false);
    let is_free = reserves(&other.transaction);
    drop(other);
    if is_free {
        return false;
    }
    let _changing = transaction.changing();
    reserves(transaction)
}
