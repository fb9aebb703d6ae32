//! Transactions: several operations that happen together or not at all, on a state of the database that does not change.

use crate::{
    Cursor, Database, Error, ErrorKind, IsolationLevel, KeyBuffer, Result,
    attempts::Attempts,
    catalog::{self, TableRecord},
    coverage::Coverage,
    driver::lock,
    handle::Handle,
    life::{OpenTable, Writing, conflict},
    open_transaction::OpenTransaction,
    plant::Plant,
    range::as_slice,
    running::{self, Running},
    savepoints::{Savepoint, Savepoints},
    shared::Inner,
};
use std::{
    ops::{Bound, ControlFlow},
    sync::Arc,
    time::Duration,
};
use vellum_access::{AccessError, Tree, View};
use vellum_base::primitive::{AtomicBool, Mutex, MutexGuard, Ordering, thread};
use vellum_base::{PageId, plant::is_planted};
use vellum_pool::Pool;
use vellum_txn::{Arrival, CommitError, Durability};

/// How a transaction begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TransactionOptions {
    durability: Option<Durability>,
    isolation: Option<IsolationLevel>,
    pub(crate) retry_for: Option<Duration>,
}

impl TransactionOptions {
    /// When the transaction counts as done. By default as [`Options::durability`](crate::Options::durability) says.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = Some(durability);
        self
    }

    /// How it is kept apart from others. By default as [`Options::isolation`](crate::Options::isolation) says.
    #[must_use]
    pub fn isolation(mut self, isolation: IsolationLevel) -> Self {
        self.isolation = Some(isolation);
        self
    }

    /// For how long [`Database::run_with`] runs it again after conflicts; the last conflict is its error then. By default without
    /// end, but for conflicts with a transaction that the same thread has begun and not ended: five seconds.
    #[must_use]
    pub fn retry_for(mut self, time: Duration) -> Self {
        self.retry_for = Some(time);
        self
    }
}

/// A transaction, which sees the database as it was when it began, and its own changes. Others see these when it has been
/// [committed](Self::commit), all at once; if it is [rolled back](Self::rollback) or dropped, they never do. So it is in a
/// crash as well.
///
/// Transactions are isolated from each other by *snapshots*. Readers keep no thread from anything. Of two transactions that
/// change the same record, the first wins; the other is told at once, by [`Error::Conflict`], and can only be rolled back. A record
/// conflicts also if a transaction has changed it that was committed after this one began. Two transactions that read what
/// the other changes, and change different records, are not kept apart (*write skew*);
/// [`get_for_update`](Self::get_for_update) does that for a record, and [`IsolationLevel::Serializable`] for all that is read.
///
/// A transaction belongs to no thread, and keeps nothing borrowed; threads that share one change something one after the
/// other. As long as it is open the database keeps what it may still read of the past, and the log of what it has changed;
/// see [`Database::history`], and [`Options::snapshot_limit`](crate::Options::snapshot_limit).
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
/// let accounts = database.create_table("accounts")?;
/// accounts.put("alice", [10])?;
/// accounts.put("bob", [3])?;
/// let moved = database.run(|transaction| {
///     let has = transaction.get(&accounts, "alice")?.is_some_and(|balance| balance[0] >= 4);
///     if has {
///         transaction.modify(&accounts, "alice", |balance| balance[0] -= 4)?;
///         transaction.modify(&accounts, "bob", |balance| balance[0] += 4)?;
///     }
///     Ok(has)
/// })?;
/// assert!(moved);
/// assert_eq!(accounts.get("bob")?, Some(vec![7]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "it is rolled back at once"]
pub struct Transaction {
    pub(crate) open: OpenTransaction,
    durability: Durability,
    /// The tables that it has changed, which cannot be dropped meanwhile. Locked by each change, so that it makes one at a
    /// time.
    tables: Mutex<Vec<Writing>>,
    /// The tables that it has read, if it is serializable, which cannot be dropped meanwhile either.
    tables_read: Mutex<Vec<Arc<OpenTable>>>,
    savepoints: Mutex<Savepoints>,
    /// An operation failed after which it can only be rolled back.
    is_dead: AtomicBool,
    // Dropped last.
    _sweeper: Sweeper,
}

/// Frees what is not used any more when a transaction has let go of everything.
struct Sweeper(Arc<Inner>);

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.0.sweep();
    }
}

impl Database {
    /// Begins a transaction. In a database that is open for reading only it can only read.
    ///
    /// # Errors
    /// None at present.
    #[track_caller]
    pub fn begin(&self) -> Result<Transaction> {
        self.begin_with(TransactionOptions::default())
    }

    /// Begins a transaction with other options than the database's.
    ///
    /// # Errors
    /// As for [`begin`](Self::begin).
    #[track_caller]
    pub fn begin_with(&self, options: TransactionOptions) -> Result<Transaction> {
        Ok(Transaction::begin(self.inner(), options))
    }

    /// Runs a transaction and commits it. If it conflicts with another one, it is rolled back and run again, after a pause that
    /// becomes longer each time. After some conflicts it gets *precedence*, one at a time: transactions of other threads wait before
    /// their first change, up to twice as long as its last attempt took, and ten seconds at most. So a long transaction ends among
    /// any number of short ones. `work` may be run several times.
    ///
    /// A record that is kept by a transaction which this thread has [begun](Self::begin) and not ended is not waited for without end: unless it
    /// was given to another thread, nobody else ends that one. After five seconds that is an error, unless
    /// [`retry_for`](TransactionOptions::retry_for) says how long it is tried.
    ///
    /// All that `work` does to the database it does by its transaction. An operation of a table itself, or another transaction, knows
    /// nothing of this one, and is no part of it.
    ///
    /// # Errors
    /// What `work` returns, except a conflict: the transaction is rolled back then. [`Error::OwnConflict`] if `work` meets a conflict
    /// with the transaction itself, by what it does past that; [`Error::HeldByThread`] if it conflicts with one that this thread has begun
    /// before. And what [`commit`](Transaction::commit) returns.
    #[track_caller]
    pub fn run<T>(&self, work: impl FnMut(&Transaction) -> Result<T>) -> Result<T> {
        self.run_with(TransactionOptions::default(), work)
    }

    /// [`run`](Self::run) of a transaction with other options than the database's.
    ///
    /// # Errors
    /// As for `run`.
    #[track_caller]
    pub fn run_with<T>(
        &self,
        options: TransactionOptions,
        mut work: impl FnMut(&Transaction) -> Result<T>,
    ) -> Result<T> {
        let inner = self.inner();
        let mut attempts = Attempts::new(options.retry_for);
        loop {
            let preceding = attempts.precedence().map(|longest| inner.durable.precede(longest));
            attempts.begin();
            let transaction = self.begin_with(options)?;
            let running = Running::begin(inner, &transaction.open.transaction);
            let worked =
                work(&transaction).map_err(|error| running::explained(inner, transaction.is_dead(), error));
            // While it has precedence no other thread changes anything.
            let may_be_own = running.is_passed_by() && preceding.is_some();
            drop(running);
            let done = worked.and_then(|value| transaction.commit().map(|()| value));
            if let Err(Error::Conflict { table, key, committed: false }) = &done
                && attempts.is_over_if_held()
                && let Some(begun_at) = running::begun_here(inner, table, key)
            {
                return Err(Error::HeldByThread { table: table.clone(), key: key.clone(), begun_at });
            }
            if let ControlFlow::Break(done) = attempts.end(done, may_be_own) {
                return done;
            }
            drop(preceding);
            thread::sleep(attempts.pause());
        }
    }
}

impl Transaction {
    #[track_caller]
    fn begin(inner: &Arc<Inner>, options: TransactionOptions) -> Self {
        let isolation = options.isolation.unwrap_or(inner.isolation);
        let is_serializable = isolation == IsolationLevel::Serializable;
        Self {
            open: OpenTransaction::begin(inner, is_serializable && !inner.is_planted(Plant::NothingTested)),
            durability: options.durability.unwrap_or(inner.durability),
            tables: Mutex::default(),
            tables_read: Mutex::default(),
            savepoints: Mutex::default(),
            is_dead: AtomicBool::new(false),
            _sweeper: Sweeper(inner.clone()),
        }
    }

    /// Its number among all transactions since the database was opened, by which [`Database::history`] names the oldest.
    pub fn id(&self) -> u64 {
        self.open.transaction.id()
    }

    /// A place to which this transaction can be [rolled back](Self::rollback_to).
    pub fn savepoint(&self) -> Savepoint {
        let mut savepoints = lock(&self.savepoints);
        let (number, at) = (savepoints.add(), self.open.transaction.savepoint());
        Savepoint { transaction: self.name(), number, at }
    }

    /// Undoes what was done since the savepoint, which stays; those that came after it are gone. What was changed stays reserved for
    /// this transaction.
    ///
    /// # Errors
    /// [`Error::NoSuchSavepoint`] if it is gone, or one of another transaction: nothing has happened then. If a page cannot be read or
    /// changed the transaction can only be rolled back.
    pub fn rollback_to(&self, savepoint: Savepoint) -> Result<()> {
        let _changing = self.changing();
        let mut savepoints = lock(&self.savepoints);
        if savepoint.transaction != self.name() || !savepoints.has(savepoint.number) {
            return Err(Error::NoSuchSavepoint);
        }
        savepoints.go_back(savepoint.number);
        self.undo_after(savepoint.at)
    }

    /// What tells this transaction from all others of this process.
    fn name(&self) -> (u64, usize) {
        (self.id(), Arc::as_ptr(&self.open.inner).addr())
    }

    /// Undoes what was done after a place in the transaction. The lock of the tables is held.
    fn undo_after(&self, place: vellum_txn::Savepoint) -> Result<()> {
        let undone = self.open.transaction.rollback_to(self.open.inner.pool(), place);
        if undone.is_ok() {
            self.open.undo_owned(Some(place));
        }
        if undone.is_err() {
            self.is_dead.store(true, Ordering::Relaxed);
        }
        Ok(undone?)
    }

    /// Commits: what was changed is visible to others, all at once, and as durable when this returns as the options say.
    ///
    /// # Errors
    /// [`Error::Ended`] after a conflict, and [`Error::Conflict`] if it is [serializable](IsolationLevel::Serializable) and
    /// what it has read was changed: nothing has happened then. If the log cannot be written, whether the transaction is
    /// durable shows when the database is opened anew.
    pub fn commit(self) -> Result<()> {
        let durability = self.durability;
        Ok(self.end()?.durable.commit(durability)?)
    }

    /// As [`commit`](Self::commit), but does not wait: what was changed is visible when this returns, and durable when
    /// what it returns says so. Nothing is returned if there is nothing to wait for.
    ///
    /// # Errors
    /// As for `commit`.
    pub fn commit_async(self) -> Result<Option<Arrival>> {
        let durability = self.durability;
        Ok(self.end()?.durable.commit_later(durability))
    }

    /// Undoes everything.
    ///
    /// # Errors
    /// If a page cannot be read or changed: the records stay reserved then, and the next opening of the database undoes what
    /// is left.
    pub fn rollback(self) -> Result<()> {
        self.open.rollback()
    }

    fn end(self) -> Result<Arc<Inner>> {
        self.check()?;
        let Self { open, tables_read, .. } = self;
        let committed = open.commit();
        committed.inspect(running::note_commit).map_err(|error| {
            let (tree, key) = match error {
                CommitError::Invalidated { tree, key } => (tree, key),
                CommitError::Ended => return Error::SnapshotTooOld,
                CommitError::Failed(error) => return error.into(),
            };
            let tables = tables_read.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
            let table = tables
                .iter()
                .find(|table| table.generation(tree).is_some())
                .map(|table| table.name.to_string());
            Error::Conflict { table: table.unwrap_or_default(), key: key.to_vec(), committed: true }
        })
    }

    /// # Errors
    /// If it can only be rolled back.
    pub(crate) fn check(&self) -> Result<()> {
        let is_dead =
            self.is_dead.load(Ordering::Relaxed) && !is_planted("vellum", Plant::CommitAfterConflict);
        if self.open.transaction.is_ended() {
            Err(Error::SnapshotTooOld)
        } else if is_dead {
            Err(Error::Ended)
        } else {
            Ok(())
        }
    }

    /// The tree, to look these keys up.
    pub(crate) fn read_keys<'t>(
        &'t self,
        table: &'t Handle,
        keys: impl IntoIterator<Item: AsRef<[u8]>>,
    ) -> Result<Tree<'t, Pool>> {
        let tree = self.read_untracked(table)?;
        if self.open.transaction.is_serializable() {
            let forgets = self.open.inner.is_planted(Plant::AbsentKeysForgotten);
            let keys =
                keys.into_iter().filter(|key| !forgets || matches!(tree.get(key.as_ref()), Ok(Some(_))));
            if self.open.transaction.note_keys(tree.root(), keys) {
                self.keep(table, tree.root());
            }
        }
        Ok(tree)
    }

    /// A cursor, which notes what it reads.
    pub(crate) fn read_range<'t>(
        &'t self,
        table: &'t Handle,
        (lower, upper): &(Bound<KeyBuffer>, Bound<KeyBuffer>),
    ) -> Result<Cursor<'t>> {
        let (lower, upper) = (as_slice(lower), as_slice(upper));
        let tree = self.read_keys(table, None::<&[u8]>)?;
        let mut cursor = Cursor::new(tree.range(lower, upper)?, table.pool());
        cursor.coverage =
            Coverage::begin(&self.open.transaction, tree.root(), (lower, upper), &self.open.inner);
        Ok(cursor)
    }

    /// A cursor that does not.
    pub(crate) fn read_range_untracked<'t>(
        &'t self,
        table: &'t Handle,
        (lower, upper): &(Bound<KeyBuffer>, Bound<KeyBuffer>),
    ) -> Result<Cursor<'t>> {
        let tree = self.read_untracked(table)?;
        Ok(Cursor::new(tree.range(as_slice(lower), as_slice(upper))?, table.pool()))
    }

    /// Notes that a key has been read if a change has left it as it was, which told whether it is there.
    pub(crate) fn note_unchanged(
        &self,
        table: &Handle,
        key: impl AsRef<[u8]>,
        is_unchanged: bool,
    ) -> Result<()> {
        let is_noted = is_unchanged && !self.open.inner.is_planted(Plant::UnchangedForgotten);
        if is_noted { self.read_keys(table, [key]).map(drop) } else { Ok(()) }
    }

    /// Keeps a table from being dropped that has been read, and notes that it was not dropped or cleared.
    #[cold]
    fn keep(&self, table: &Handle, root: PageId) {
        let catalog = catalog::tree(self.open.inner.pool()).root();
        self.open.transaction.note_keys(catalog, [catalog::doomed_key(root)]);
        let mut tables = self.tables_read.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        tables.push(table.open.clone());
    }

    /// The tree, to read what is noted otherwise or need not be.
    pub(crate) fn read_untracked<'t>(&'t self, table: &'t Handle) -> Result<Tree<'t, Pool>> {
        self.check()?;
        Ok(table.tree_of(&self.open)?.with_view(self.open.transaction.reading()))
    }

    #[inline]
    pub(crate) fn write<T>(
        &self,
        table: &Handle,
        change: impl FnOnce(Tree<'_, Pool>) -> std::result::Result<T, AccessError>,
    ) -> Result<T> {
        self.check()?;
        let tree = table.tree_of(&self.open)?.with_view(self.writing()?);
        let mut changing = self.changing();
        if !changing.iter().any(|writing| writing.is_of(&table.open, tree.root())) {
            changing.push(self.begin_writing(table, tree.root())?);
        }
        change(tree).map_err(|error| self.die(table.named(error)))
    }

    /// How it changes something.
    #[inline(always)]
    pub(crate) fn writing(&self) -> Result<View<'_>> {
        self.open.transaction.writing().map_err(|error| self.die(error.into()))
    }

    /// Enters this transaction as a writer of a table.
    fn begin_writing(&self, table: &Handle, seen: PageId) -> Result<Writing> {
        table.begin_writing(self.id(), seen).map_err(|error| match error {
            // If this one sees the table, it was dropped since.
            Error::NoSuchTable { name } => match table.seen_by(&self.open) {
                Ok(Some(_)) => self.die(conflict(&name, true)),
                Ok(None) => Error::NoSuchTable { name },
                Err(error) => error,
            },
            error => self.die(error),
        })
    }

    /// The catalog, to be read.
    pub(crate) fn catalog(&self) -> Result<Tree<'_, Pool>> {
        self.check()?;
        Ok(catalog::tree(self.open.inner.pool()).with_view(self.open.transaction.reading()))
    }

    pub(crate) fn look_up(&self, name: &str) -> Result<Option<TableRecord>> {
        let catalog = self.catalog()?;
        self.open.transaction.note_keys(catalog.root(), [name.as_bytes()]);
        catalog::find(catalog, name)
    }

    /// Whether it can only be rolled back.
    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    /// What an operation failed with, after which the transaction may only be rolled back.
    pub(crate) fn die(&self, error: Error) -> Error {
        // A request that makes no sense has changed nothing, and the next one may.
        if error.kind() != ErrorKind::InvalidInput {
            self.is_dead.store(true, Ordering::Relaxed);
        }
        error
    }

    pub(crate) fn changing(&self) -> MutexGuard<'_, Vec<Writing>> {
        self.tables.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "transaction of {}", self.open.inner.durable.pool().path().display())
    }
}
