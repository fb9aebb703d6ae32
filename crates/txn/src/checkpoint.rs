//! Checkpoints, and the thread that takes them.

use crate::{
    TxnError,
    change_log::Changes,
    on_demand::OnDemand,
    pacing::{Hurry, Pacing, Waiting},
    plant::{Bug, planted},
    transactions::Transactions,
};
use std::{
    io,
    sync::{Arc, OnceLock, TryLockError},
    time::Duration,
};
use vellum_base::primitive::{
    AtomicU64, Instant, Mutex, MutexGuard, Ordering,
    thread::{self, Builder, JoinHandle},
};
use vellum_base::{Lsn, tell_panic};
use vellum_pool::{Checkpointer, CopyBasis, Pool};
use vellum_wal::{Durability, Log, LogCopy, LogError};

/// Waits until all records before a place are durable.
pub(crate) fn wait_before(log: &Log, end: Lsn) -> Result<(), LogError> {
    log.wait(Lsn(end.0.saturating_sub(1)), Durability::Synced)
}

/// Takes checkpoints, one at a time.
pub(crate) struct Checkpoints {
    changes: Arc<Changes>,
    transactions: Arc<Transactions>,
    pool: Checkpointer,
    /// The redo point of the last checkpoint.
    redo: AtomicU64,
    /// What a recovery has left to redo. The log before the redo point is needed until that is done.
    on_demand: Option<Arc<OnDemand>>,
    turn: Mutex<()>,
    /// The threads that wait for the turn.
    waiting: Waiting,
    /// Why the last checkpoint failed, if it did.
    error: Mutex<Option<String>>,
    /// Why no more checkpoints are taken in the background, if that is so.
    panic: OnceLock<String>,
}

impl Checkpoints {
    pub fn new(
        pool: &Pool,
        changes: Arc<Changes>,
        transactions: Arc<Transactions>,
        redo: Lsn,
        on_demand: Option<Arc<OnDemand>>,
    ) -> Self {
        Self {
            changes,
            transactions,
            pool: pool.checkpointer(),
            redo: AtomicU64::new(redo.0),
            on_demand,
            turn: Mutex::new(()),
            waiting: Waiting::default(),
            error: Mutex::new(None),
            panic: OnceLock::new(),
        }
    }

    /// The redo point of the last checkpoint.
    pub fn redo(&self) -> Lsn {
        // Relaxed: only a hint.
        Lsn(self.redo.load(Ordering::Relaxed))
    }

    /// Redoes what a recovery has left for later.
    ///
    /// # Errors
    /// If a page cannot be redone, or [`interrupt`](Self::interrupt) was called.
    pub fn finish_recovery(&self) -> Result<(), TxnError> {
        self.on_demand.as_ref().map_or(Ok(()), |left| left.finish())
    }

    /// Whether a recovery has left something to redo.
    pub fn is_recovering(&self) -> bool {
        self.on_demand.as_ref().is_some_and(|left| !left.is_done())
    }

    fn interrupt(&self, is_interrupted: bool) {
        self.on_demand.iter().for_each(|left| left.interrupt(is_interrupted));
    }

    /// Takes a checkpoint at the pace of the log, unless nothing has been logged since the last one.
    pub fn take_if_due(&self) -> Result<(), TxnError> {
        if self.changes.log.end() == self.redo() {
            return Ok(());
        }
        let _turn = self.turn();
        self.take_and_discard(true)
    }

    /// As long as the result exists, no checkpoint takes its time.
    pub fn hurry(&self) -> Hurry<'_> {
        self.waiting.hurry()
    }

    /// Takes a checkpoint even if nothing has been logged since the last: other parts of the superblock may have
    /// changed.
    pub fn take(&self) -> Result<(), TxnError> {
        let _turn = self.turn();
        self.take_and_discard(false)
    }

    /// Takes a checkpoint if `is_wanted`, asked when no other can be taken. `None` if another thread has the turn.
    pub fn try_take(&self, is_wanted: impl FnOnce() -> bool) -> Option<Result<(), TxnError>> {
        let _turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(if is_wanted() { self.take_and_discard(false) } else { Ok(()) })
    }

    fn take_and_discard(&self, is_paced: bool) -> Result<(), TxnError> {
        self.note_error(self.take_in_turn(is_paced).and_then(|undo| Ok(self.changes.log.discard(undo)?)))
    }

    /// Notes whether the last checkpoint has failed, and why.
    fn note_error<T>(&self, taken: Result<T, TxnError>) -> Result<T, TxnError> {
        *self.lock_error() = taken.as_ref().err().map(ToString::to_string);
        taken
    }

    /// Takes a checkpoint, and begins to copy the log from what it needs on. A backup begins like this.
    pub fn begin_copy(&self, pool: &Pool) -> Result<(CopyBasis, LogCopy<'_>), TxnError> {
        let _turn = self.turn();
        pool.mark_in_use()?;
        pool.note_backup();
        let undo = self.note_error(self.take_in_turn(false))?;
        let copy = self.changes.log.copy(undo)?;
        Ok((pool.copy_basis()?, copy))
    }

    /// Why the last checkpoint failed, if it did, or why none is taken in the background any more.
    pub fn error(&self) -> Option<String> {
        self.panic.get().cloned().or_else(|| self.lock_error().clone())
    }

    /// Takes a checkpoint, at the pace of the log if it `is_paced`. Returns its undo point; the log before that point is not
    /// given up yet.
    fn take_in_turn(&self, is_paced: bool) -> Result<Lsn, TxnError> {
        if !planted(Bug::CheckpointBeforeRedo) {
            self.finish_recovery()?;
        }
        let mut needed = Lsn(0);
        let redo = self.changes.begin_checkpoint(|end| {
            let redo;
            (redo, needed) = self.changes.needed_by(|| self.transactions.needed_at(end));
            redo
        });
        // After this every record before the redo point has been filled, and so its latches have been released.
        wait_before(&self.changes.log, redo)?;
        let undo = if planted(Bug::CutTooEarly) { redo } else { needed.min(redo) };
        let changes = &self.changes;
        let (log_bytes, bell) = (changes.checkpoint_bytes, &changes.bell);
        let pacing = is_paced.then_some(Pacing { begun: redo, log_bytes, bell, waiting: &self.waiting });
        let named = self.pool.checkpoint_paced(redo, undo, &mut |progress| {
            if let Some(pacing) = &pacing {
                pacing.wait(progress, || changes.log.end());
            }
        })?;
        self.redo.store(redo.0, Ordering::Relaxed);
        self.changes.end_checkpoint(redo);
        // Not earlier: both superblocks have it now.
        named.map(|named| self.changes.log.note_checkpoint(named)).transpose()?;
        Ok(undo)
    }

    fn lock_error(&self) -> MutexGuard<'_, Option<String>> {
        self.error.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// No checkpoint is taken while this is held.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        let _hurry = self.hurry();
        self.turn.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// How long the thread waits after a failed checkpoint.
const PAUSE: Duration = Duration::from_secs(1);
/// The shortest time between checkpoints that are taken because the last one has become old.
const INTERVAL_MIN: Duration = Duration::from_millis(1);

/// Takes a checkpoint when asked to, and when the last one has become old. The thread ends when this is dropped.
pub(crate) struct CheckpointThread {
    checkpoints: Arc<Checkpoints>,
    thread: Option<JoinHandle<()>>,
}

impl CheckpointThread {
    pub fn start(checkpoints: Arc<Checkpoints>, interval: Duration) -> io::Result<Self> {
        checkpoints.changes.bell.begin();
        checkpoints.interrupt(false);
        let taken = checkpoints.clone();
        let interval = interval.max(INTERVAL_MIN);
        let work = move || {
            let mut wait = interval;
            // If that time never comes, it waits for the bell alone.
            while taken.changes.bell.wait(Instant::now().checked_add(wait)) {
                // The error is kept, and shown in the state of the log.
                wait = if taken.take_if_due().is_ok() { interval } else { PAUSE };
            }
        };
        let told = checkpoints.clone();
        let work = move || {
            tell_panic(work, |panic| {
                told.panic.get_or_init(|| panic);
            });
        };
        let thread = Builder::new().name("vellum-checkpoint".to_owned()).spawn(work)?;
        Ok(Self { checkpoints, thread: Some(thread) })
    }
}

impl Drop for CheckpointThread {
    fn drop(&mut self) {
        self.checkpoints.changes.bell.stop();
        self.checkpoints.interrupt(true);
        // It may itself drop the last handle, in a waker that it calls: then it ends by itself.
        if let Some(thread) =
            self.thread.take().filter(|thread| thread.thread().id() != thread::current().id())
        {
            // A panic has been noted.
            let _ = thread.join();
        }
        self.checkpoints.interrupt(false);
    }
}
