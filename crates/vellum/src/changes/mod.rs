//! The feed of changes: commits in their order, for other programs to follow.
//!
//! - `commit`: the contents of the feed;
//! - `position`: where a feed continues;
//! - `tables`: which table a tree belonged to at a place in the log;
//! - here: following, waiting, and where a feed continues.

mod commit;
mod position;
mod tables;

use crate::{Database, Error, Lsn, Result, catalog, driver::lock, shared::Inner};
use commit::ContentsSource;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};
use tables::Tables;
use vellum_base::primitive::{Condvar, Instant, Mutex};
use vellum_txn::{ArchiveError, Arrival, Committed, Follower, LogError, TxnError};

pub use commit::{Change, ChangedValue, Commit, Contents, Event, LoadedRecords};
pub use position::{ChangesPosition, ParsePositionError};

/// Where a feed of changes starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ChangesFrom {
    /// With what is committed from now on.
    Now,
    /// Where an earlier feed was: with what was committed after its [`Commit::position`] or [`Changes::position`].
    Position(ChangesPosition),
    /// With what was committed at this place in the log or later. A feed has told the place, or it is the end of a backup
    /// ([`BackupSummary::end`](crate::BackupSummary::end)). Zero, where no record ever begins, is the place before all changes of the
    /// database. Whether the place was told by a database that was lost, and of which this one is an earlier state, is not
    /// known: use a position.
    Lsn(Lsn),
}

impl From<ChangesPosition> for ChangesFrom {
    fn from(position: ChangesPosition) -> Self {
        Self::Position(position)
    }
}

impl From<Lsn> for ChangesFrom {
    fn from(place: Lsn) -> Self {
        Self::Lsn(place)
    }
}

/// Options of a feed: see [`Database::changes_with`].
#[derive(Clone, Copy, Debug)]
#[must_use = "options do nothing until changes are followed with them"]
pub struct ChangesOptions {
    keep_bytes: u64,
}

impl Default for ChangesOptions {
    fn default() -> Self {
        Self { keep_bytes: 1 << 30 }
    }
}

impl ChangesOptions {
    /// How much unread log is kept for this feed, in bytes, if there is no archive. Default 1 GiB. A feed that falls
    /// further behind may fail with [`Error::ChangesDiscarded`].
    pub fn keep_bytes(mut self, bytes: u64) -> Self {
        self.keep_bytes = bytes;
        self
    }
}

/// A feed of commits, in their order: see [`Database::changes`].
///
/// It is a handle on the database, which cannot be closed meanwhile.
pub struct Changes {
    follower: Follower,
    tables: Tables,
    bell: Arc<Bell>,
    /// What a waiting thread or task waits for.
    arrival: Option<Arrival>,
    // Dropped last: it may be the last handle, and then closes the database.
    inner: Arc<Inner>,
}

impl Database {
    /// Follows what is committed, in the order of the commits: for each transaction its changes, in their order. The
    /// feed contains neither what was rolled back nor what a crash could take back: it reports only what is durable. An
    /// operation outside of transactions counts as a commit; one that changes nothing does not appear.
    ///
    /// **Where to continue.** Each commit has a [`position`](Commit::position). A program that stores it together with
    /// what it made of the commit sees each commit exactly once, even after the program or the database was closed or
    /// has crashed: it passes the last stored position to this method. A program that starts with a copy of tables
    /// begins the feed first, and then copies them in a transaction. What was committed in between appears again in the
    /// feed, and storing a value twice does no harm.
    ///
    /// **How far back.** The changes are read from the log, and from its archive
    /// ([`Options::log_archive`](crate::Options::log_archive)) where the log has been discarded. Without an archive the
    /// log keeps what an open feed has not read, which takes that much disk space, up to
    /// [`ChangesOptions::keep_bytes`]. A database that is closed discards its log, so only with an archive can a feed
    /// that was not open continue.
    ///
    /// **Which values.** A small value is reported with its change. [`Table::modify`](crate::Table::modify) logs only
    /// the bytes that differ, and large values and bulk loads are in the file only: [`Event::Patched`],
    /// [`ChangedValue::read`] and [`LoadedRecords`] say what that means. With
    /// [`Options::log_whole_values`](crate::Options::log_whole_values) the log has all of these.
    ///
    /// **After a restore.** A database that was restored accepts positions up to the place to which it was restored, as far as
    /// its own log or archive has what follows. It refuses what the lost one has told after that: what was made of those
    /// commits has to be made anew.
    ///
    /// This call reads the log from the position to its end, to find out which tables and transactions there were.
    ///
    /// # Errors
    /// [`Error::WithoutLog`] if the database has no log, or is open for reading only; [`Error::ChangesDiscarded`] if
    /// neither the log nor its archive has the position any more; [`Error::NoSuchPosition`] if it is not a position of
    /// this database.
    ///
    /// # Examples
    /// ```
    /// use vellum::{ChangesFrom, Database, Event, Options};
    /// # let directory = tempfile::tempdir()?;
    /// let database = Database::create(directory.path().join("fruit"), &Options::default())?;
    /// let table = database.create_table("fruit")?;
    /// let mut changes = database.changes(ChangesFrom::Now)?;
    /// table.put(b"apple", b"red")?;
    /// table.put(b"lime", b"green")?;
    ///
    /// let commit = changes.next()?.expect("something was committed");
    /// assert_eq!(&*commit.changes[0].table, "fruit");
    /// assert!(matches!(&commit.changes[0].event, Event::Inserted { key, value } if key == b"apple" && value.inline() == Some(b"red")));
    ///
    /// // Another feed goes on after it.
    /// let mut changes = database.changes(commit.position)?;
    /// let commit = changes.next()?.expect("something was committed");
    /// assert!(matches!(&commit.changes[0].event, Event::Inserted { key, .. } if key == b"lime"));
    /// assert!(changes.next()?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn changes(&self, from: impl Into<ChangesFrom>) -> Result<Changes> {
        self.changes_with(from, ChangesOptions::default())
    }

    /// [`changes`](Self::changes) with options.
    ///
    /// # Errors
    /// As for `changes`.
    pub fn changes_with(&self, from: impl Into<ChangesFrom>, options: ChangesOptions) -> Result<Changes> {
        let inner = self.inner().clone();
        inner.require_log()?;
        let root = catalog::tree(inner.pool()).root();
        let end = Lsn(inner.durable.log_state().ok_or(Error::WithoutLog)?.appended_bytes);
        let (from, life) = match from.into() {
            ChangesFrom::Now => (None, 0),
            ChangesFrom::Position(position) => (Some(position.lsn()), position.life()),
            ChangesFrom::Lsn(place) => (Some(place), 0),
        };
        let is_here = |from| from <= end && inner.durable.has_logged(from, life);
        if let Some(position) = from.filter(|from| !is_here(*from)) {
            return Err(Error::NoSuchPosition { position, end });
        }
        let follower = inner.durable.follow(from, (root, options.keep_bytes))?;
        let mut follower = follower.ok_or(Error::WithoutLog)?;
        let from = follower.position();
        // The tables as they are now, taken back to what they were where the feed begins.
        let mut tables = Tables::new(root, catalog::list(self.catalog())?);
        let ahead = follower.look_ahead().map_err(|error| match error {
            TxnError::Log(LogError::Hole { at, .. } | LogError::Archive(ArchiveError::Record { at }))
                if at == from =>
            {
                Error::NoSuchPosition { position: from, end }
            }
            error => discarded(from, error),
        })?;
        tables.go_back(&ahead);
        Ok(Changes { inner, follower, tables, bell: Arc::default(), arrival: None })
    }
}

impl Changes {
    /// The next commit; none if there is no further one yet.
    ///
    /// # Errors
    /// If the log cannot be read; [`Error::ChangesDiscarded`] if it has been discarded because the feed was too far
    /// behind. The call may be repeated.
    #[expect(clippy::should_implement_trait, reason = "it may end for now, and go on")]
    pub fn next(&mut self) -> Result<Option<Commit>> {
        loop {
            let position = self.follower.position();
            let next = self.follower.next().map_err(|error| discarded(position, error))?;
            let Some(Committed { lsn, end, number, time, changes }) = next else { return Ok(None) };
            let position = self.position_at(end);
            let source = ContentsSource { inner: self.inner.clone(), log: self.follower.source().clone() };
            let changes = self.tables.translate(changes, &source);
            if !changes.is_empty() {
                return Ok(Some(Commit { lsn, position, number, time, changes }));
            }
        }
    }

    /// The next commit. This thread waits for it, for at most `timeout`; with [`Duration::MAX`] without limit. While a
    /// feed waits, commits with less than [`Durability::Synced`](crate::Durability::Synced) are synced for it.
    ///
    /// # Errors
    /// As for [`next`](Self::next); also if the log has failed.
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Commit>> {
        let end = Instant::now().checked_add(timeout);
        let waker = Waker::from(self.bell.clone());
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(next) = self.poll_next(&mut context) {
                return next.map(Some);
            }
            if !self.bell.wait_until(end) {
                return Ok(None);
            }
        }
    }

    /// The next commit, for which the task waits. The log flush that makes the commit durable wakes the task. The
    /// task's thread reads the log, or its archive.
    ///
    /// ```
    /// # use vellum::{ChangesFrom, Database, Options};
    /// # let directory = tempfile::tempdir()?;
    /// # let database = Database::create(directory.path().join("d"), &Options::default())?;
    /// # let table = database.create_table("t")?;
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let mut changes = database.changes(ChangesFrom::Now)?;
    /// table.put_async("lime", "green").await?;
    /// let commit = changes.next_async().await?;
    /// assert_eq!(commit.changes.len(), 1);
    /// # Ok::<(), vellum::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn next_async(&mut self) -> NextCommit<'_> {
        NextCommit(self)
    }

    /// The position of the feed: everything that was committed before this place in the log has been returned, and
    /// another feed can continue here, as at a [`Commit::position`]. It lies beyond the position of the last commit if
    /// nothing was committed since.
    pub fn position(&self) -> ChangesPosition {
        self.position_at(self.follower.position())
    }

    fn position_at(&self, lsn: Lsn) -> ChangesPosition {
        let (lsn, life) = self.follower.source().log().told_place(lsn);
        ChangesPosition::new(lsn, life)
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Commit>> {
        loop {
            if let Some(commit) = self.next()? {
                return Poll::Ready(Ok(commit));
            }
            // If it is for an earlier place, it is ready.
            let arrival = self.arrival.get_or_insert_with(|| self.follower.arrival());
            let Poll::Ready(arrived) = Pin::new(arrival).poll(context) else { return Poll::Pending };
            self.arrival = None;
            if let Err(error) = arrived {
                return Poll::Ready(Err(Error::Log(error.into())));
            }
        }
    }
}

impl std::fmt::Debug for Changes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "changes of {} from {} on", self.inner.durable.pool().path().display(), self.position())
    }
}

/// A future of the next commit: see [`Changes::next_async`]. Dropping it loses nothing.
#[derive(Debug)]
#[must_use = "nothing happens unless it is awaited"]
pub struct NextCommit<'c>(&'c mut Changes);

impl Future for NextCommit<'_> {
    type Output = Result<Commit>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Commit>> {
        self.0.poll_next(context)
    }
}

/// Wakes a thread that waits for a commit.
#[derive(Default)]
struct Bell {
    is_rung: Mutex<bool>,
    rung: Condvar,
}

impl Bell {
    /// Waits until the bell is rung; false if that has not happened by `end`.
    fn wait_until(&self, end: Option<Instant>) -> bool {
        let mut is_rung = lock(&self.is_rung);
        while !*is_rung {
            is_rung = match end.map(|end| end.saturating_duration_since(Instant::now())) {
                None => self.rung.wait(is_rung).unwrap_or_else(|poisoned| poisoned.into_inner()),
                Some(left) if left.is_zero() => return false,
                Some(left) => {
                    let waited = self.rung.wait_timeout(is_rung, left);
                    waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0
                }
            };
        }
        *is_rung = false;
        true
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *lock(&self.is_rung) = true;
        self.rung.notify_all();
    }
}

/// The error for a log that lacks the part to be read.
fn discarded(from: Lsn, error: TxnError) -> Error {
    let oldest = match error {
        TxnError::Log(LogError::Missing { oldest, .. }) => (oldest > from).then_some(oldest),
        TxnError::Log(LogError::Archive(ArchiveError::Gap { to, .. })) => Some(to),
        error => return error.into(),
    };
    Error::ChangesDiscarded { from, oldest }
}
