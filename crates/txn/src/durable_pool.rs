//! A pool with transactions, with or without a log: opening, recovery, commits, checkpoints and the close.

mod closing;
mod conflicts;
mod last_change;
mod lives;
mod older;
pub use conflicts::{Earlier, Loading};

use crate::{
    BackupError, BackupFile, BackupProgress, BackupSummary, Durability, LogSettings, TxnError,
    analysis::Analysis,
    backup::{LogSource, back_up},
    change_log::Changes,
    checkpoint::{CheckpointThread, Checkpoints, wait_before},
    follow::Follower,
    on_demand::OnDemand,
    places::Places,
    readable::{last_life, readable},
    redo::{Damage, redo_rest, undo_all},
    room::make_room,
    shares::Kept,
    single::Single,
    transaction::Transaction,
    transactions::{History, Transactions},
    versions::Spill,
};
use std::{
    panic::Location,
    sync::{Arc, Weak},
    time::Duration,
};
use vellum_access::{View, Writer};
use vellum_base::primitive::{Instant, Mutex, TryLockError};
use vellum_base::{Lsn, PageId};
use vellum_pool::{KeptPages, Pool, PoolFile, UndoSpace};
use vellum_vm::{Directory, File};
use vellum_wal::{
    Archive, ArchiveError, ArchiveState, Arrival, BufferDamage, FollowedLog, Log, LogArchiver, LogError,
    LogOptions, SyncCounts,
};

/// A pool, its transactions, and the log of its changes, if it has one.
pub struct DurablePool {
    // Dropped first: the thread uses the fields below.
    thread: Option<CheckpointThread>,
    pool: Pool,
    single: Single,
    logged: Option<Logged>,
    recovery: Option<Recovery>,
    damage: Vec<TxnError>,
    is_read_only: bool,
}

/// What a pool with a log has in addition.
struct Logged {
    changes: Arc<Changes>,
    checkpoints: Arc<Checkpoints>,
    /// How often checkpoints are taken in the background, if they are.
    checkpoint_interval: Option<Duration>,
    /// Locked by the thread that makes a backup.
    backing_up: Mutex<()>,
    archiver: Option<Arc<LogArchiver>>,
}

/// What was redone when a database was opened that had not been closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recovery {
    /// How many records of the log were read.
    pub records: u64,
    /// How many bytes of log these take, including their headers.
    pub log_bytes: u64,
    /// How many transactions were not committed, and how many changes of records were undone because of that.
    pub undone_transactions: u64,
    /// See `undone_transactions`.
    pub undone_changes: u64,
    /// What was wrong with the buffer that the process before has left in the log's directory. Commits that were only
    /// [`Buffered`](Durability::Buffered) may be lost with it.
    pub buffer_damage: Option<BufferDamage>,
    /// How long it took to open the database. Pages not needed for that are redone when they are first read, or in the
    /// background.
    pub duration: Duration,
}

/// The state of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogState {
    /// How many bytes of log a crash would make the next opening read.
    pub log_bytes: u64,
    /// How many bytes of log are not durable yet.
    pub volatile_bytes: u64,
    /// How many bytes of log there have been since the database was created.
    pub appended_bytes: u64,
    /// How many syncs have made log records durable since the database was opened, and for how many waiters: with group
    /// commit few syncs serve many waiters.
    pub syncs: SyncCounts,
    /// Why no checkpoint can be taken in the background, if the last one failed: the log then grows. It is retried
    /// every second, unless the thread that takes them has panicked.
    pub checkpoint_error: Option<String>,
    /// How far the archive of the log reaches; `None` without an archive.
    pub archive: Option<ArchiveState>,
}

/// What transactions share with their pool: the pages that are kept for old snapshots, and those that are kept for undo.
fn shared_with(pool: &Pool) -> (Arc<KeptPages>, Arc<UndoSpace>) {
    /// The pages that are kept for undo at all times: for nodes that are split because of a split, and for changes
    /// that were begun just before another transaction has made room.
    const ALWAYS: u64 = 16;
    pool.undo_space().keep(ALWAYS);
    (pool.kept_pages().clone(), pool.undo_space().clone())
}

impl DurablePool {
    /// A pool without a log: consistent on storage only when it is closed, or if it is read only. It has transactions,
    /// of which nothing survives a crash, as of everything else. Versions for which memory has no room go to the
    /// directory, if there is one, which is made then. What was left of an earlier log there is removed.
    ///
    /// # Errors
    /// If the file needs its log, or is [older](LogError::Newer) than the log there, or the system refuses memory.
    pub fn without_log(
        mut file: PoolFile,
        directory: Option<Arc<dyn Directory>>,
        settings: &LogSettings,
    ) -> Result<Self, TxnError> {
        let is_read_only = file.is_read_only();
        file.set_log_archived(false);
        let options = LogOptions::new(file.database());
        // A close may have been interrupted. Once something is changed, the file is another database to that log. But
        // storage may still hold superblocks that need it. If any of this fails, nothing needs those files until then.
        let left = directory.as_ref().filter(|_| !file.needs_recovery());
        let left = left.filter(|directory| Log::is_there(&***directory).unwrap_or_default());
        left.map_or(Ok(()), |directory| Self::refuse_older(&file, directory))?;
        let left = left.filter(|_| !is_read_only && file.confirm().is_ok());
        let pool = file.start(None)?;
        if let Some(directory) = left {
            let _ = vellum_wal::remove_left(directory, &options);
        }
        // It has a clock, because it has no log.
        let clock = pool.lsn_clock().cloned().unwrap_or_default();
        let spill = Spill::new(directory.filter(|_| !is_read_only), settings.version_memory_bytes);
        let places = Places::Clock(clock);
        let transactions =
            Arc::new(Transactions::new(1, settings.snapshot_limit, spill, shared_with(&pool), places));
        Ok(Self {
            thread: None,
            pool,
            single: Single { transactions },
            logged: None,
            recovery: None,
            damage: Vec::new(),
            is_read_only,
        })
    }

    /// Opens a file with the log in a directory. If the file was closed, a new log is begun. If it was not, everything
    /// in the log is redone first.
    ///
    /// # Errors
    /// If a setting is out of its range; if a log that is needed is not there, or is damaged; if the file is damaged;
    /// and what the system reports. The files then keep their contents, so opening can be tried again.
    pub fn open(
        mut file: PoolFile,
        directory: Arc<dyn Directory>,
        settings: &LogSettings,
    ) -> Result<Self, TxnError> {
        let bytes = settings.buffer_bytes;
        if !bytes.is_power_of_two() || bytes < LogSettings::BUFFER_BYTES_MIN {
            return Err(TxnError::Buffer { bytes });
        }
        let begun = Instant::now();
        let redo = file.redo();
        let options = LogOptions {
            segment_bytes: settings.segment_bytes,
            buffer_bytes: settings.buffer_bytes,
            least: redo,
            life: file.choose_life(),
            last_life: last_life(&file),
            readable: readable(file.known_lives(), Lsn(u64::MAX)),
            ..LogOptions::new(file.database())
        };
        let archive = settings.archive.clone().map(|archive| Archive::new(archive, file.database()));
        if let Some(Err(error @ ArchiveError::Foreign)) = archive.as_ref().map(Archive::last) {
            return Err(LogError::from(error).into());
        }
        // Before the superblocks are written, which is before anything is logged.
        file.set_log_archived(archive.is_some());
        let mut told = (Analysis::new(redo), Kept::new(redo, file.pool_pages()));
        let (is_fresh, is_continued) = (file.is_fresh(), file.needs_recovery());
        // Locked until the log is gone, if the opening fails: another process that waits for it opens the log, too.
        let _held = is_continued.then(|| file.hold());
        let is_given_up = !is_continued && Log::is_there(&*directory)?;
        let log = if is_continued {
            Log::open(directory.clone(), &options, file.undo(), |record| {
                let (analysis, kept) = &mut told;
                analysis.add(record, &mut file, |change| kept.add(record, change))
            })?
        } else {
            if is_given_up {
                vellum_wal::refuse_newer(&directory, &options)?;
                file.confirm()?;
            }
            Log::begin(directory.clone(), &options)?
        };
        let log = Arc::new(log);
        let spill = Spill::new(Some(directory), settings.version_memory_bytes);
        // A salvage takes what there is.
        let is_older = log.known_checkpoint() > redo && !settings.skip_damage;
        let life = if is_older {
            Err(LogError::NewerCheckpoint { redo, end: log.end() }.into())
        } else {
            Self::begin_life(&mut file, &log, is_continued)
        };
        // Otherwise a superblock may know the life, and looks for it in the log.
        let is_known = is_older || life.is_ok();
        let opened = life
            .and_then(|()| {
                // From now on nothing is given up before it is archived.
                let archiver = archive.map(|archive| LogArchiver::start(log.clone(), archive)).transpose();
                archiver.map_err(|source| TxnError::Thread { source })
            })
            .and_then(|archiver| Self::start(file, (&log, archiver, spill), told, settings, begun))
            .and_then(|opened| {
                // Places in the log that was given up may be known outside, and are not used again: the close notes where
                // this one ends.
                if is_given_up {
                    opened.pool.mark_in_use()?;
                }
                Ok(opened)
            });
        if opened.is_err() && is_fresh {
            // The log has nothing that is needed, and would be in the way of the next creation.
            let _ = log.remove();
        } else if opened.is_err() && is_continued && is_known {
            // An opening that is tried again and again takes no more room.
            let _ = log.withdraw();
        }
        let opened = opened?;
        // A crash would redo all this again. Not earlier: it names a place in the log that was begun. Another thread does it, if there is one.
        if is_continued {
            match &opened.logged {
                Some(logged) if opened.thread.is_some() => logged.changes.bell.ring(),
                Some(logged) if log.end().0.saturating_sub(redo.0) > settings.checkpoint_bytes => {
                    logged.checkpoints.take()?
                }
                _ => {}
            }
        }
        Ok(opened)
    }

    /// Starts a pool after the log has been analysed.
    fn start(
        file: PoolFile,
        (log, archiver, spill): (&Arc<Log>, Option<LogArchiver>, Spill),
        (mut analysis, kept): (Analysis, Kept),
        settings: &LogSettings,
        begun: Instant,
    ) -> Result<Self, TxnError> {
        let (redo, needs_recovery) = (file.redo(), file.needs_recovery());
        let changes = Arc::new(
            Changes::new(log.clone(), settings, archiver.is_some())
                .map_err(|source| TxnError::Thread { source })?,
        );
        let pool = file.start(Some(changes.clone()))?;
        let transactions = Arc::new(Transactions::new(
            log.end().0,
            settings.snapshot_limit,
            spill,
            shared_with(&pool),
            Places::Log(changes.clone()),
        ));
        let (mut recovery, mut on_demand) = (None, None);
        let damage = Arc::new(Damage::new(settings.skip_damage));
        if needs_recovery {
            // Before anything needs the pool's memory.
            let (lives, parts) = (Arc::new(analysis.take_lives()), kept.into_parts());
            let rest = parts.end;
            let begun_redo = OnDemand::begin(&pool, parts, lives.clone(), damage.clone());
            if rest.is_some() || settings.skip_damage {
                begun_redo.finish()?;
            }
            if let Some(rest) = rest {
                redo_rest(&pool, log, rest, &lives, &damage)?;
            }
            on_demand = Some(begun_redo);
            let undone = undo_all(&pool, &changes, &mut analysis, &damage)?;
            let (undone_transactions, undone_changes) = undone;
            let Analysis { records, bytes: log_bytes, .. } = analysis;
            let duration = begun.elapsed();
            let buffer_damage = log.buffer_damage();
            recovery = Some(Recovery {
                records,
                log_bytes,
                undone_transactions,
                undone_changes,
                buffer_damage,
                duration,
            });
        }
        let known = transactions.clone();
        let checkpoints = Arc::new(Checkpoints::new(&pool, changes.clone(), known, redo, on_demand));
        let archiver = archiver.map(Arc::new);
        // Not earlier: the transactions do not know what a recovery has yet to undo.
        let (weak_changes, weak_checkpoints) = (Arc::downgrade(&changes), Arc::downgrade(&checkpoints));
        let (weak_archiver, known) = (archiver.as_ref().map(Arc::downgrade), Arc::downgrade(&transactions));
        changes.make_room_by(Box::new(move || {
            let upgraded = (weak_changes.upgrade(), weak_checkpoints.upgrade(), known.upgrade());
            let (Some(changes), Some(checkpoints), Some(known)) = upgraded else {
                return Err(LogError::Closed);
            };
            let archiver = weak_archiver.as_ref().and_then(Weak::upgrade);
            make_room(&changes, &known, &checkpoints, archiver.as_deref())
        }));
        let checkpoint_interval = settings.background_checkpoints.then_some(settings.checkpoint_interval);
        let start = |interval| CheckpointThread::start(checkpoints.clone(), interval);
        let thread = checkpoint_interval.map(start).transpose();
        let thread = thread.map_err(|source| TxnError::Thread { source })?;
        Ok(Self {
            thread,
            pool,
            single: Single { transactions },
            logged: Some(Logged {
                changes,
                checkpoints,
                checkpoint_interval,
                backing_up: Mutex::default(),
                archiver,
            }),
            recovery,
            damage: damage.take_found(),
            is_read_only: false,
        })
    }

    /// The pool.
    #[inline]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// What was redone at opening, if the database had not been closed.
    pub fn recovery(&self) -> Option<Recovery> {
        self.recovery
    }

    /// Returns once all pages have been redone that a recovery has left for later. A checkpoint does this first, too.
    ///
    /// # Errors
    /// If a page cannot be redone; all others have been then.
    pub fn finish_recovery(&self) -> Result<(), TxnError> {
        self.logged.as_ref().map_or(Ok(()), |logged| logged.checkpoints.finish_recovery())
    }

    /// Whether there are pages left to redo.
    pub fn is_recovering(&self) -> bool {
        self.logged.as_ref().is_some_and(|logged| logged.checkpoints.is_recovering())
    }

    /// The same pool, of a file that was recovered in memory and is only read.
    pub fn recovered_in_memory(self, recovery: Option<Recovery>) -> Self {
        Self { recovery, ..self }
    }

    /// What the recovery has passed over, if it was told to.
    pub fn take_damage(&mut self) -> Vec<TxnError> {
        std::mem::take(&mut self.damage)
    }

    /// Begins a transaction. A serializable one notes what it reads.
    /// `place` is where the program begins it.
    pub fn begin(&self, is_serializable: bool, place: &'static Location<'static>) -> Transaction {
        Transaction::begin(&self.single.transactions, is_serializable, place)
    }

    /// Whether transactions are open.
    pub fn has_transactions(&self) -> bool {
        !self.single.transactions.none_open()
    }

    /// Whether no transaction is open, and none that has ended has left anything that is still to be freed.
    pub fn is_at_rest(&self) -> bool {
        self.single.transactions.are_at_rest()
    }

    /// Whether the transaction with this number is open.
    pub fn is_open(&self, transaction: u64) -> bool {
        self.single.transactions.is_open(transaction)
    }

    /// The view by which operations outside transactions see and change records.
    #[inline]
    pub fn view(&self) -> View<'_> {
        let (single, transactions) = (&self.single, &*self.single.transactions);
        let open = Some(transactions.open());
        View { settled: transactions.settled(), isolation: single, writer: Writer::None, open }
    }

    /// The number of the last commit.
    pub fn last_commit(&self) -> u64 {
        self.single.transactions.last_commit()
    }

    /// The times of the open snapshots, in ascending order, and the last commit that all of them see.
    pub fn open_snapshots(&self) -> (Vec<u64>, u64) {
        self.single.transactions.open_snapshots()
    }

    /// Whether something else than what the leaves of an empty tree hold is kept for an open snapshot: records have been
    /// stored, removed, or reserved while absent, since it was taken. No other thread changes the tree.
    ///
    /// # Errors
    /// If versions cannot be read.
    pub fn is_any_kept(&self, root: PageId) -> Result<bool, TxnError> {
        Ok(self.single.transactions.is_any_kept(root)?)
    }

    /// Notes that a tree is gone: its history is no longer needed.
    pub fn forget_tree(&self, root: PageId) {
        self.single.transactions.enter_all();
        self.single.transactions.versions.forget(root);
    }

    /// The state of the history.
    pub fn history(&self) -> History {
        let transactions = &self.single.transactions;
        let history = transactions.history(transactions.places.end());
        // Without a log places count changes, not bytes.
        if self.logged.is_some() { history } else { History { log_bytes: 0, ..history } }
    }

    /// Returns once everything that this thread has changed since the last call is as durable as requested.
    ///
    /// # Errors
    /// If that is unknown, because the log could not be written: nothing more is accepted from then on.
    #[inline]
    pub fn commit(&self, durability: Durability) -> Result<(), TxnError> {
        match &self.logged {
            Some(logged) => {
                logged.changes.take_last_change().map_or(Ok(()), |lsn| logged.wait(lsn, durability))
            }
            None => Ok(()),
        }
    }

    /// Returns once everything done so far is durable.
    ///
    /// # Errors
    /// As for [`commit`](Self::commit).
    pub fn sync(&self) -> Result<(), TxnError> {
        let Some(Logged { changes, .. }) = &self.logged else { return Ok(()) };
        Ok(wait_before(&changes.log, changes.log.end())?)
    }

    /// The state of the log; `None` without a log.
    pub fn log_state(&self) -> Option<LogState> {
        let Logged { changes, checkpoints, archiver, .. } = self.logged.as_ref()?;
        let end = changes.log.end().0;
        Some(LogState {
            log_bytes: end.saturating_sub(checkpoints.redo().0),
            volatile_bytes: end.saturating_sub(changes.log.horizon(vellum_wal::Durability::Synced).0),
            appended_bytes: end,
            syncs: changes.log.sync_counts(),
            checkpoint_error: checkpoints.error(),
            archive: archiver.as_ref().map(|archiver| archiver.state()),
        })
    }

    /// Archives everything done so far, and returns the place up to which that is. `None` if the log is not archived.
    ///
    /// # Errors
    /// If the log cannot be made durable, or the archive cannot be written. It is tried again in the background.
    pub fn archive_log(&self) -> Result<Option<Lsn>, TxnError> {
        let archiver = self.logged.as_ref().and_then(|logged| logged.archiver.as_ref());
        Ok(archiver.map(|archiver| archiver.archive_all(false)).transpose()?)
    }

    /// Follows commits from a place in the log on, or from its end; `None` without a log. See [`Follower`].
    ///
    /// # Errors
    /// If the log cannot be made durable.
    pub fn follow(
        &self,
        from: Option<Lsn>,
        (catalog, keep_bytes): (PageId, u64),
    ) -> Result<Option<Follower>, TxnError> {
        let Some(Logged { changes, archiver, .. }) = &self.logged else { return Ok(None) };
        let archive = archiver.as_ref().map(|archiver| archiver.checked());
        let source = FollowedLog::new(changes.log.clone(), archive);
        Follower::begin(source, (changes, &self.single.transactions), from, (catalog, keep_bytes)).map(Some)
    }

    /// Brings the file up to date while other threads go on, so that the log up to now is no longer needed. Without a
    /// log only [`close`](Self::close) does this.
    ///
    /// # Errors
    /// If something cannot be written; then the last checkpoint counts.
    pub fn checkpoint(&self) -> Result<(), TxnError> {
        self.logged.as_ref().map_or(Ok(()), |logged| logged.checkpoints.take())
    }

    /// Makes freed space usable, and cuts the file after the last page that is needed, while other threads go on. The
    /// file is not cut while a backup reads it.
    ///
    /// # Errors
    /// If something cannot be written. Then the file is longer than need be.
    pub fn cut(&self) -> Result<(), TxnError> {
        let Some(logged) = &self.logged else {
            self.pool.trim();
            self.pool.cut();
            return Ok(());
        };
        // Then the frees are durable, and the space map lies near the beginning.
        self.checkpoint()?;
        let _no_backup = match logged.backing_up.try_lock() {
            Ok(guard) => guard,
            // A thread panicked in a backup, which is over.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        self.pool.trim();
        // The file is as long as the checkpoint says.
        self.checkpoint()?;
        self.pool.cut();
        Ok(())
    }

    /// Makes a backup in an empty file, while other threads go on: of everything or, if a former backup is given, of
    /// what has changed since that was made. It ends if `progress` returns false. One backup at a time: another caller
    /// waits.
    ///
    /// # Errors
    /// [`BackupError`] says what is wrong. The database is unchanged.
    pub fn back_up(
        &self,
        file: Arc<dyn File>,
        former: Option<&BackupFile>,
        progress: &mut dyn FnMut(BackupProgress) -> bool,
    ) -> Result<BackupSummary, TxnError> {
        let Some(Logged { changes, checkpoints, backing_up, .. }) = &self.logged else {
            if !self.is_read_only || self.recovery.is_some() {
                return Err(BackupError::WithoutLog.into());
            }
            return back_up(&self.pool, self.pool.copy_basis()?, None, (file, former), progress);
        };
        let _turn = backing_up.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (basis, copy) = checkpoints.begin_copy(&self.pool)?;
        let log = LogSource { changes, log: &changes.log, copy };
        back_up(&self.pool, basis, Some(log), (file, former), progress)
    }

    /// The end of the log; `None` without a log.
    pub fn place_in_log(&self) -> Option<u64> {
        self.logged.as_ref().map(|_| self.single.transactions.places.end().0)
    }

    /// Removes the log of a database whose creation has failed: it has nothing that is needed.
    pub fn abandon(&mut self) {
        self.thread = None;
        if let Some(Logged { changes, .. }) = &self.logged {
            // A log that cannot be removed is in the way of the next creation, which reports it.
            let _ = changes.log.remove();
        }
    }

    /// The archive of the log, if it has one.
    pub fn archive(&self) -> Option<&Archive> {
        self.logged.as_ref()?.archiver.as_ref().map(|archiver| archiver.archive())
    }
}

impl Logged {
    fn wait(&self, lsn: Lsn, durability: Durability) -> Result<(), TxnError> {
        match wal_durability(durability) {
            Some(wanted) => Ok(self.changes.log.wait(lsn, wanted)?),
            // It would never be written.
            None if self.changes.log.has_failed() => {
                Ok(self.changes.log.wait(lsn, vellum_wal::Durability::Synced)?)
            }
            None => {
                self.flush_later();
                Ok(())
            }
        }
    }

    fn flush_later(&self) {
        self.changes.log.request_flush_soon();
    }
}

fn wal_durability(durability: Durability) -> Option<vellum_wal::Durability> {
    match durability {
        Durability::Deferred => None,
        Durability::Buffered => Some(vellum_wal::Durability::Buffered),
        Durability::Synced => Some(vellum_wal::Durability::Synced),
    }
}
