//! Transactions: several operations that happen together or not at all, on an unchanging state of the database.

use crate::{
    Cursor, Database, Error, ErrorKind, IsolationLevel, KeyBuffer, Result,
    attempts::{Attempts, Repeated, Work},
    catalog::{self, TableRecord},
    coverage::Coverage,
    driver::lock,
    handle::Handle,
    life::{Writing, conflict},
    nested,
    open_transaction::OpenTransaction,
    plant::Plant,
    range::as_slice,
    running::{self, Running},
    savepoints::{Savepoint, Savepoints},
    shared::Inner,
    tables_read::TablesRead,
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
use vellum_txn::{Arrival, Baton, CommitError, Durability};

/// Options of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TransactionOptions {
    durability: Option<Durability>,
    isolation: Option<IsolationLevel>,
    pub(crate) retry_for: Option<Duration>,
}

impl TransactionOptions {
    /// How durable the transaction is when its commit returns. By default as
    /// [`Options::durability`](crate::Options::durability) says.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = Some(durability);
        self
    }

    /// How it is isolated from other transactions. By default as [`Options::isolation`](crate::Options::isolation)
    /// says.
    #[must_use]
    pub fn isolation(mut self, isolation: IsolationLevel) -> Self {
        self.isolation = Some(isolation);
        self
    }

    /// For how long [`Database::run_with`] and [`Database::run_async_with`] keep running it again after conflicts; after
    /// that they return the last conflict as their error. By default there is no limit, except that `run_with` waits
    /// only five seconds for a transaction that the same thread has begun and not ended. If the last conflict is with such
    /// a transaction, the error of `run_with` is [`Error::HeldByThread`].
    #[must_use]
    pub fn retry_for(mut self, time: Duration) -> Self {
        self.retry_for = Some(time);
        self
    }
}

/// A transaction, which sees the database as it was when it began, and its own changes. Other transactions see these
/// changes once it has been [committed](Self::commit), all at once; if it is [rolled back](Self::rollback) or dropped,
/// they never do. The same holds across a crash.
///
/// Transactions are isolated from each other by *snapshots*. Readers never block other threads. If two transactions
/// change the same record, the first updater wins; the other immediately gets [`Error::Conflict`] and can only be
/// rolled back. It is also a conflict to change a record that was changed by a transaction committed after this one
/// began. Two transactions that each read what the other changes, and change different records, can both be committed
/// (*write skew*); [`get_for_update`](Self::get_for_update) prevents that for one record, and
/// [`IsolationLevel::Serializable`] for everything that is read.
///
/// A transaction belongs to no thread and borrows nothing; threads that share one make their changes one at a time.
/// While it is open, the database keeps the past versions that it may still read, and the log of its changes; see
/// [`Database::history`] and [`Options::snapshot_limit`](crate::Options::snapshot_limit).
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
    savepoints: Mutex<Savepoints>,
    /// An operation has failed in a way that leaves only a rollback.
    is_dead: AtomicBool,
    /// The conflict that was the reason of that, if it was one.
    conflict: Mutex<Option<Box<Error>>>,
    // Dropped last.
    read: TablesRead,
}

impl Database {
    /// Begins a transaction. If the database is open for reading only, the transaction can only read.
    ///
    /// # Errors
    /// None at present.
    #[track_caller]
    pub fn begin(&self) -> Result<Transaction> {
        self.begin_with(TransactionOptions::default())
    }

    /// Begins a transaction with options other than the database's.
    ///
    /// # Errors
    /// As for [`begin`](Self::begin).
    #[track_caller]
    pub fn begin_with(&self, options: TransactionOptions) -> Result<Transaction> {
        Ok(Transaction::begin(self.inner(), options))
    }

    /// Runs a transaction and commits it. If it conflicts with another one, it is rolled back and run again: when that
    /// other one has ended, if it was open, else after a pause that becomes longer each time. Of those that wait for the
    /// same transaction one goes on after the other. After several conflicts it gets *precedence*, which one transaction has at
    /// a time: transactions of other threads wait before their first change, for up to twice as long as its last
    /// attempt took, and at most ten seconds. So a long transaction can finish among any number of short ones. `work`
    /// may be called several times. A conflict counts even if `work` passes over it: it has ended the transaction.
    ///
    /// If a record is held by a transaction that this thread has [begun](Self::begin) and not ended, the wait is
    /// limited: unless that transaction was given to another thread, only this thread could end it. After five seconds
    /// it is an error, unless [`retry_for`](TransactionOptions::retry_for) sets another limit.
    ///
    /// `work` should do everything through its transaction. An operation on a table itself, or another transaction,
    /// knows nothing of this transaction and is not part of it. It returns [`Error::other`] to give the transaction up for a
    /// reason of its own.
    ///
    /// # Errors
    /// The error that `work` returns, except a conflict: the transaction is then rolled back. [`Error::OwnConflict`] if
    /// something that `work` does outside the transaction conflicts with the transaction itself, which is noticed unless
    /// others commit something during each attempt;
    /// [`Error::HeldByThread`] if the transaction conflicts with one that this thread has begun before. Also the errors
    /// of [`commit`](Transaction::commit).
    #[track_caller]
    pub fn run<T>(&self, work: impl FnMut(&Transaction) -> Result<T>) -> Result<T> {
        self.run_with(TransactionOptions::default(), work)
    }

    /// [`run`](Self::run), with options other than the database's.
    ///
    /// # Errors
    /// As for `run`.
    #[track_caller]
    pub fn run_with<T>(
        &self,
        options: TransactionOptions,
        work: impl FnMut(&Transaction) -> Result<T>,
    ) -> Result<T> {
        let mut work = Work::new(work);
        self.run_attempts(options, &mut work)?;
        Ok(work.result())
    }

    /// [`run_with`](Self::run_with), which is compiled once for all kinds of work.
    #[track_caller]
    fn run_attempts(&self, options: TransactionOptions, work: &mut dyn Repeated<Transaction>) -> Result<()> {
        let inner = self.inner();
        let mut attempts = Attempts::new(options.retry_for);
        let mut baton = None;
        loop {
            let preceding = attempts.precedence().map(|longest| inner.durable.precede(longest));
            attempts.begin();
            let passed_by = running::PassedBy::none(inner);
            let transaction = self.begin_with(options)?;
            let running = Running::begin(inner, &transaction.open.transaction, (passed_by, None));
            let worked = transaction.outcome(work.run(&transaction));
            let passed_by = running.end();
            let done = worked.and_then(|()| transaction.commit());
            let done = match attempts.is_over_if_held() {
                true => done.map_err(|error| running::unless_held(inner, error)),
                false => done,
            };
            if done.is_err() {
                work.discard();
            }
            // Others that have waited for the same transaction go on.
            drop(baton.take());
            let wait = done.as_ref().err().and_then(|conflict| running::wait_for(inner, conflict));
            // While it has precedence, few other threads change anything.
            let may_be_own = preceding.is_some() && passed_by.is_all_own(inner);
            if let ControlFlow::Break(done) = attempts.end(done, may_be_own) {
                return done.map_err(|error| running::unless_held(inner, error));
            }
            drop(preceding);
            match wait {
                Some(wait) => {
                    baton = wait.wait(attempts.longest_wait());
                    attempts.waited(baton.is_some());
                }
                None => thread::sleep(attempts.pause()),
            }
        }
    }

    /// Waits, after a conflict with a transaction that is open, until that one has ended, for at most `longest`. For
    /// programs that begin transactions and run them again themselves; [`run`](Self::run) does it. The transaction that
    /// met the conflict should have been rolled back, or others wait for it meanwhile.
    ///
    /// Those that wait for the same transaction go on one after the other: each when the [`Baton`] of the one before it
    /// has been dropped. So the baton should be kept until the next attempt has been committed or rolled back, and no
    /// longer. `None` if `conflict` is no such conflict, if the other transaction has ended already, or if it is still
    /// open when the time is over; none of that keeps the caller from trying again.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// # let table = database.create_table("table")?;
    /// use std::time::Duration;
    /// use vellum::Error;
    ///
    /// let mut baton = None;
    /// loop {
    ///     let transaction = database.begin()?;
    ///     let attempt = transaction.put(&table, "key", "value").and_then(|_| transaction.commit());
    ///     drop(baton.take());
    ///     match attempt {
    ///         Err(error @ Error::Conflict { .. }) => baton = database.wait_for_other(&error, Duration::from_millis(100)),
    ///         ended => break ended?,
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait_for_other(&self, conflict: &Error, longest: Duration) -> Option<Baton> {
        running::wait_for(self.inner(), conflict)?.wait(longest)
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
            savepoints: Mutex::default(),
            is_dead: AtomicBool::new(false),
            conflict: Mutex::default(),
            read: TablesRead::new(inner),
        }
    }

    /// Its number among all transactions since the database was opened; [`Database::history`] identifies the oldest one
    /// by it.
    pub fn id(&self) -> u64 {
        self.open.transaction.id()
    }

    /// A place to which this transaction can be [rolled back](Self::rollback_to). It is never inside a change that
    /// another thread is making through this transaction.
    pub fn savepoint(&self) -> Savepoint {
        let _changing = self.changing();
        let mut savepoints = lock(&self.savepoints);
        let (number, at) = (savepoints.add(), self.open.transaction.savepoint());
        let owned_count = lock(&self.open.owned).count();
        Savepoint { transaction: self.name(), number, at, owned_count }
    }

    /// Undoes everything done since the savepoint, which remains; later savepoints are discarded. The records that were
    /// changed stay reserved for this transaction.
    ///
    /// The space of tables that were created, and of what was stored in tables that were created, cleared or loaded, is
    /// free at once, except for a page for each. That page is used for the next table that this transaction creates, or the
    /// next time that it clears or loads the table. It is not used, and only freed once the transaction has ended, if
    /// there still are handles on the created table, or if the snapshot of the
    /// transaction is so old that it is [covered](crate::History::kept_leaves).
    ///
    /// An iterator of this transaction shows what there is when it comes to it. If a clearing or a load of its table is undone, it
    /// may end early.
    ///
    /// # Errors
    /// [`Error::NoSuchSavepoint`] if the savepoint was discarded or belongs to another transaction, [`Error::Ended`] after a
    /// conflict: nothing has happened then. If a page cannot be read or changed, the transaction can only be rolled back.
    pub fn rollback_to(&self, savepoint: Savepoint) -> Result<()> {
        let changing = self.changing();
        self.check()?;
        self.go_back(&changing, savepoint)
    }

    /// [`rollback_to`](Self::rollback_to), also if the transaction can only be rolled back. The caller holds the lock of
    /// the tables.
    pub(crate) fn go_back(
        &self,
        _changing: &MutexGuard<'_, Vec<Writing>>,
        savepoint: Savepoint,
    ) -> Result<()> {
        let mut savepoints = lock(&self.savepoints);
        if savepoint.transaction != self.name() || !savepoints.has(savepoint.number) {
            return Err(Error::NoSuchSavepoint);
        }
        savepoints.go_back(savepoint.number);
        self.undo_after(savepoint)
    }

    /// Distinguishes this transaction from all others of this process.
    fn name(&self) -> (u64, usize) {
        (self.id(), Arc::as_ptr(&self.open.inner).addr())
    }

    /// Undoes everything after a savepoint. The caller holds the lock of the tables.
    fn undo_after(&self, savepoint: Savepoint) -> Result<()> {
        let undone = self.open.transaction.rollback_to(self.open.inner.pool(), savepoint.at);
        if undone.is_ok() {
            self.open.undo_owned(Some(savepoint));
        }
        if undone.is_err() {
            self.is_dead.store(true, Ordering::Relaxed);
        }
        Ok(undone?)
    }

    /// Commits. When this returns, the changes are visible to others, all at once, and as durable as the options say.
    ///
    /// # Errors
    /// [`Error::Ended`] after a conflict, and [`Error::Conflict`] if the transaction is
    /// [serializable](IsolationLevel::Serializable) and something it has read was changed: nothing has happened then.
    /// If the log cannot be written, it is unknown whether the transaction is durable until the database is opened
    /// again.
    pub fn commit(self) -> Result<()> {
        let durability = self.durability;
        Ok(self.end()?.durable.commit(durability)?)
    }

    /// As [`commit`](Self::commit), but does not wait: the changes are visible when this returns, and durable when the
    /// returned [`Arrival`] says so. Returns none if there is nothing to wait for.
    ///
    /// # Errors
    /// As for `commit`.
    pub fn commit_async(self) -> Result<Option<Arrival>> {
        let durability = self.durability;
        Ok(self.end()?.durable.commit_later(durability))
    }

    /// Undoes all changes.
    ///
    /// # Errors
    /// If a page cannot be read or changed: the records then stay reserved, and the next opening of the database undoes
    /// what is left.
    pub fn rollback(self) -> Result<()> {
        self.open.rollback()
    }

    fn end(self) -> Result<Arc<Inner>> {
        self.check()?;
        let Self { open, savepoints, read, .. } = self;
        let inner = open.inner.clone();
        let catalog = catalog::tree(open.inner.pool()).root();
        let has_number = open.transaction.has_number();
        let committed = open.commit();
        drop(savepoints);
        let committed = committed
            .inspect(|inner| {
                if has_number {
                    running::note_commit(inner)
                }
            })
            .map_err(|error| {
                let (tree, key) = match error {
                    CommitError::Invalidated { tree, key } => (tree, key),
                    CommitError::Ended => return Error::SnapshotTooOld,
                    CommitError::Failed(error) => return error.into(),
                };
                let text_of = |root| read.name_of(root).unwrap_or_else(|| format!("with the root {root}"));
                if tree != catalog {
                    return Error::Conflict { table: text_of(tree), key: key.to_vec(), committed: true };
                }
                // What a serializable transaction reads of the catalog are tables, and whether their trees are doomed.
                match catalog::doomed_root(&key) {
                    Some(root) => conflict(&text_of(root), true),
                    None => conflict(&String::from_utf8_lossy(&key), true),
                }
            });
        inner.durable.keep_last_change(|| drop(read));
        committed
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

    /// The tree, for looking up these keys, which are noted as read.
    pub(crate) fn read_keys<'t>(
        &'t self,
        table: &'t Handle,
        keys: impl IntoIterator<Item: AsRef<[u8]>>,
    ) -> Result<Tree<'t, Pool>> {
        let tree = self.read_untracked(table).map_err(|error| self.note_absence(table, error))?;
        if self.open.transaction.is_serializable() {
            if self.open.inner.is_planted(Plant::AbsentKeysForgotten) {
                let is_there = |key: &_| matches!(tree.get(AsRef::as_ref(key)), Ok(Some(_)));
                // Nothing is looked up while what was read is locked.
                let present: Vec<_> = keys.into_iter().filter(is_there).collect();
                self.note_keys(table, tree.root(), present);
            } else {
                self.note_keys(table, tree.root(), keys);
            }
        }
        Ok(tree)
    }

    /// Notes keys as read in the tree of a table with this root.
    pub(crate) fn note_keys(&self, table: &Handle, root: PageId, keys: impl IntoIterator<Item: AsRef<[u8]>>) {
        if self.open.transaction.note_keys(root, keys) {
            self.keep(table, root);
        }
    }

    /// If an error says that this transaction does not see a table, notes as read that none of its trees has become one.
    #[cold]
    pub(crate) fn note_absence(&self, table: &Handle, error: Error) -> Error {
        if matches!(error, Error::NoSuchTable { .. }) && self.open.transaction.is_serializable() {
            let doomed = table.open.generations().map(|generation| catalog::doomed_key(generation.root));
            self.open.transaction.note_keys(catalog::tree(self.open.inner.pool()).root(), doomed);
            self.read.add_once(&table.open);
        }
        error
    }

    /// A cursor that notes what it reads.
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

    /// A cursor that does not note what it reads.
    pub(crate) fn read_range_untracked<'t>(
        &'t self,
        table: &'t Handle,
        (lower, upper): &(Bound<KeyBuffer>, Bound<KeyBuffer>),
    ) -> Result<Cursor<'t>> {
        let tree = self.read_untracked(table)?;
        Ok(Cursor::new(tree.range(as_slice(lower), as_slice(upper))?, table.pool()))
    }

    /// Notes a key as read if a change has left it as it was, because that told whether the key is there.
    pub(crate) fn note_unchanged(
        &self,
        table: &Handle,
        key: impl AsRef<[u8]>,
        is_unchanged: bool,
    ) -> Result<()> {
        let is_noted = is_unchanged && !self.open.inner.is_planted(Plant::UnchangedForgotten);
        if is_noted { self.read_keys(table, [key]).map(drop) } else { Ok(()) }
    }

    /// Keeps a table that was read from being dropped, and notes as read that it was not dropped or cleared.
    #[cold]
    fn keep(&self, table: &Handle, root: PageId) {
        let catalog = catalog::tree(self.open.inner.pool()).root();
        self.open.transaction.note_keys(catalog, [catalog::doomed_key(root)]);
        self.read.add(&table.open);
    }

    /// The tree, for reads that are noted elsewhere or need not be noted.
    pub(crate) fn read_untracked<'t>(&'t self, table: &'t Handle) -> Result<Tree<'t, Pool>> {
        let tree = table.tree_of(&self.open);
        // After the tree was chosen: what an ended snapshot sees may be forgotten, and then another tree is chosen.
        self.check()?;
        Ok(tree?.with_view(self.open.transaction.reading()))
    }

    #[inline]
    pub(crate) fn write<T>(
        &self,
        table: &Handle,
        change: impl FnOnce(Tree<'_, Pool>) -> std::result::Result<T, AccessError>,
    ) -> Result<T> {
        let mut changing = self.changing();
        self.check()?;
        let tree = table.tree_of(&self.open).map_err(|error| self.note_absence(table, error))?;
        let tree = tree.with_view(self.writing()?);
        if table.open.is_dropped() {
            self.check_not_dropped(table)?;
        }
        if let Err(place) = Writing::find(&changing, &table.open, tree.root()) {
            changing.insert(place, self.begin_writing(table, tree.root())?);
        }
        change(tree).map_err(|error| self.die(table.named(error)))
    }

    /// Makes sure that this transaction has not dropped a table, or taken its creation back: nothing would be left of what
    /// it changes there, or it would be in the next table with the same pages.
    #[cold]
    fn check_not_dropped(&self, table: &Handle) -> Result<()> {
        if lock(&self.open.owned).has_dropped(&table.open) {
            return Err(Error::NoSuchTable { name: table.name.as_ref().to_owned() });
        }
        Ok(())
    }

    /// The view through which it changes records. The caller holds the lock of the tables: the undo that is moved to
    /// a file here must not be that of a change under way.
    #[inline(always)]
    pub(crate) fn writing(&self) -> Result<View<'_>> {
        self.open.transaction.writing(self.open.inner.pool()).map_err(|error| self.die(error.into()))
    }

    /// Enters this transaction as a writer of a table.
    fn begin_writing(&self, table: &Handle, seen: PageId) -> Result<Writing> {
        table.begin_writing(self.id(), seen).map_err(|error| match error {
            // If this transaction sees the table, it was dropped after the transaction began.
            Error::NoSuchTable { name } => match table.seen_by(&self.open) {
                Ok(Some(_)) => self.die(conflict(&name, true)),
                Ok(None) => Error::NoSuchTable { name },
                Err(error) => error,
            },
            error => self.die(error),
        })
    }

    /// The catalog, for reading.
    pub(crate) fn catalog(&self) -> Result<Tree<'_, Pool>> {
        self.check()?;
        Ok(catalog::tree(self.open.inner.pool()).with_view(self.open.transaction.reading()))
    }

    pub(crate) fn look_up(&self, name: &str) -> Result<Option<TableRecord>> {
        let catalog = self.catalog()?;
        self.open.transaction.note_keys(catalog.root(), [name.as_bytes()]);
        catalog::find(catalog, name)
    }

    /// The outcome of work that is being run with this transaction. If a conflict has ended the transaction, and the work
    /// has passed over that, it is the conflict.
    pub(crate) fn outcome<T>(&self, worked: Result<T>) -> Result<T> {
        let ended = match worked.and_then(|value| self.check().map(|()| value)) {
            Err(Error::Ended) => Err(lock(&self.conflict).take().map_or(Error::Ended, |conflict| *conflict)),
            worked => worked,
        };
        let is_dead = self.is_dead.load(Ordering::Relaxed);
        ended.map_err(|error| running::explained(&self.open.inner, is_dead, error))
    }

    /// Marks the transaction as one that can only be rolled back, and passes the error on.
    pub(crate) fn die(&self, error: Error) -> Error {
        if let Error::Conflict { committed: false, .. } = &error {
            self.open.inner.undo_soon();
        }
        // An invalid request has changed nothing, and the next request may succeed.
        if error.kind() != ErrorKind::InvalidInput {
            if let Error::Conflict { table, key, committed } = &error {
                let same = Error::Conflict { table: table.clone(), key: key.clone(), committed: *committed };
                lock(&self.conflict).get_or_insert_with(|| Box::new(same));
            }
            self.is_dead.store(true, Ordering::Relaxed);
        }
        error
    }

    /// Locks the list of the tables that it has changed, so that it makes one change at a time.
    #[inline]
    pub(crate) fn changing(&self) -> MutexGuard<'_, Vec<Writing>> {
        // A closure that runs inside a change would wait for itself.
        nested::check(self.open.inner.durable.pool());
        self.open.transaction.changing()
    }
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "transaction of {}", self.open.inner.durable.pool().path().display())
    }
}
