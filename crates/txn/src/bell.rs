//! How a thread is told that there is work to do.

use std::time::Duration;
use vellum_base::primitive::{Condvar, Instant, Mutex, MutexGuard};

/// Tells a thread that there is work to do.
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
    /// A thread begins to wait, perhaps after another one was told to end.
    pub fn begin(&self) {
        self.lock().is_stopped = false;
    }

    /// Asks for a checkpoint.
    pub fn ring(&self) {
        self.lock().is_asked = true;
        self.rung.notify_one();
    }

    /// Waits until a checkpoint is asked for or the time has come, if it ever does; returns false if the thread is to
    /// end.
    pub fn wait(&self, until: Option<Instant>) -> bool {
        let mut state = self.lock();
        while !state.is_stopped && !state.is_asked {
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break;
            }
            state = match self.rung.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        state.is_asked = false;
        !state.is_stopped
    }

    /// Waits for this long. Returns false, and does not wait longer, if a checkpoint is asked for or the thread is to end.
    pub fn pause(&self, longest: Duration) -> bool {
        let state = self.lock();
        let is_calm = |state: &State| !state.is_stopped && !state.is_asked;
        if !is_calm(&state) {
            return false;
        }
        let state = match self.rung.wait_timeout(state, longest) {
            Ok((state, _)) => state,
            Err(poisoned) => poisoned.into_inner().0,
        };
        is_calm(&state)
    }

    /// Tells the waiting thread to end.
    pub fn stop(&self) {
        self.lock().is_stopped = true;
        self.rung.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
