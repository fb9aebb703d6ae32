//! Checkpoints, and the thread that takes them.

use crate::{TxnError, change_log::Changes};
use std::{
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};
use vellum_base::Lsn;
use vellum_pool::{Checkpointer, Pool};
use vellum_wal::{Durability, Log, LogError};

/// Waits until all records before a place are durable.
pub(crate) fn wait_before(log: &Log, end: Lsn) -> Result<(), LogError> {
    log.wait(Lsn(end.0.saturating_sub(1)), Durability::Synced)
}

/// Takes checkpoints, one at a time.
pub(crate) struct Checkpoints {
    changes: Arc<Changes>,
    pool: Checkpointer,
    /// The redo point of the last one.
    redo: AtomicU64,
    is_asked: AtomicBool,
    turn: Mutex<()>,
}

impl Checkpoints {
    pub fn new(pool: &Pool, changes: Arc<Changes>, redo: Lsn) -> Self {
        Self {
            changes,
            pool: pool.checkpointer(),
            redo: AtomicU64::new(redo.0),
            is_asked: AtomicBool::new(false),
            turn: Mutex::new(()),
        }
    }

    /// The redo point of the last one.
    pub fn redo(&self) -> Lsn {
        // Relaxed: a hint.
        Lsn(self.redo.load(Ordering::Relaxed))
    }

    /// Has the thread take one, which may have been asked for already.
    #[cold]
    pub fn ask(&self, bell: &Bell) {
        // Relaxed: a checkpoint too many does no harm.
        if !self.is_asked.swap(true, Ordering::Relaxed) {
            bell.ring();
        }
    }

    /// Takes one, unless nothing has happened since the last.
    pub fn take(&self) -> Result<(), TxnError> {
        let _turn = self.turn();
        self.is_asked.store(false, Ordering::Relaxed);
        if self.changes.log.end().0 == self.redo.load(Ordering::Relaxed) {
            return Ok(());
        }
        let redo = self.changes.begin_checkpoint();
        // Each record before the redo point is filled then, after its latches have been released.
        wait_before(&self.changes.log, redo)?;
        self.pool.checkpoint_at(redo)?;
        self.redo.store(redo.0, Ordering::Relaxed);
        Ok(self.changes.log.discard(redo)?)
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// How long the thread waits after a checkpoint that failed.
const PAUSE: Duration = Duration::from_secs(1);

/// Takes a checkpoint when one is asked for, and when the last one has become old. Ends when it is dropped.
pub(crate) struct CheckpointThread {
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

/// How the thread is told of something.
#[derive(Default)]
pub(crate) struct Bell {
    state: Mutex<State>,
    rung: Condvar,
}

#[derive(Default)]
struct State {
    is_asked: bool,
    is_stopped: bool,
}

impl Bell {
    /// Asks for a checkpoint.
    pub fn ring(&self) {
        self.lock().is_asked = true;
        self.rung.notify_one();
    }

    /// Waits until a checkpoint is asked for or the time has come; false if it is to end.
    fn wait(&self, until: Instant) -> bool {
        let mut state = self.lock();
        while !state.is_stopped && !state.is_asked {
            let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
            else {
                break;
            };
            state = match self.rung.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        state.is_asked = false;
        !state.is_stopped
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl CheckpointThread {
    pub fn start(checkpoints: Arc<Checkpoints>, bell: Arc<Bell>, interval: Duration) -> io::Result<Self> {
        let heard = bell.clone();
        let work = move || {
            let mut next = Instant::now() + interval;
            while heard.wait(next) {
                // What went wrong is remembered, and shown by the statistics; it is tried again.
                let wait = if checkpoints.take().is_ok() { interval } else { PAUSE };
                next = Instant::now() + wait;
            }
        };
        let thread = Builder::new().name("vellum-checkpoint".to_owned()).spawn(work)?;
        Ok(Self { bell, thread: Some(thread) })
    }
}

impl Drop for CheckpointThread {
    fn drop(&mut self) {
        self.bell.lock().is_stopped = true;
        self.bell.rung.notify_all();
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, there would be nothing to do about it here.
            let _ = thread.join();
        }
    }
}
