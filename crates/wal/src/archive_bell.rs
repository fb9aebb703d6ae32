//! Wakes the thread that archives a log.

use std::time::Duration;
use vellum_base::primitive::{Condvar, Mutex, MutexGuard};

/// Tells the archiver of a log that there is work to do.
#[derive(Default)]
pub(crate) struct ArchiveBell {
    state: Mutex<BellState>,
    rung: Condvar,
}

#[derive(Default)]
struct BellState {
    is_rung: bool,
    is_stopped: bool,
}

impl ArchiveBell {
    pub fn ring(&self) {
        lock(&self.state).is_rung = true;
        self.rung.notify_all();
    }

    pub fn stop(&self) {
        lock(&self.state).is_stopped = true;
        self.rung.notify_all();
    }

    /// Waits until it rings, or for `pause`; returns false if the thread is to end.
    pub fn wait(&self, pause: Option<Duration>) -> bool {
        let waits = |state: &mut BellState| !state.is_stopped && (pause.is_some() || !state.is_rung);
        let state = lock(&self.state);
        let mut state = match pause {
            Some(pause) => match self.rung.wait_timeout_while(state, pause, waits) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            },
            None => self.rung.wait_while(state, waits).unwrap_or_else(|poisoned| poisoned.into_inner()),
        };
        state.is_rung = false;
        !state.is_stopped
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
