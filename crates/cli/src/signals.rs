//! Ctrl-C and termination requests: they are noticed between two steps of the work, so that the database is closed.
//!
//! The first signal sets a flag, which loops check; the second ends the process at once. No signal is caught until
//! [`watch`] is called, when a database is opened for writing.

use crate::failure::{Code, Failure, Result};
use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

const SIGNALS: [i32; 3] =
    [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP];

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on signals set the flag instead of ending the process.
pub fn watch() {
    FLAG.get_or_init(|| {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in SIGNALS {
            // If the system refuses, the signal ends the process as before.
            let code = Code::Interrupted as i32;
            let _ = signal_hook::flag::register_conditional_shutdown(signal, code, flag.clone());
            let _ = signal_hook::flag::register(signal, flag.clone());
        }
        flag
    });
}

/// From now on a write beyond the limit on the size of files (`ulimit -f`) is an error, and not the end of the process.
pub fn survive_file_size_limit() {
    // If the system refuses, the signal ends the process as before.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
}

/// Whether a signal has arrived.
pub fn interrupted() -> bool {
    // Relaxed: no other data depends on the flag.
    FLAG.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Fails if a signal has arrived.
pub fn check() -> Result {
    if interrupted() { Err(interruption()) } else { Ok(()) }
}

/// What came of work that a signal ends: what is done is done, even if a signal has arrived since.
pub fn outcome<T, E: Into<Failure>>(done: Result<T, E>) -> Result<T> {
    outcome_if(done, interrupted())
}

fn outcome_if<T, E: Into<Failure>>(done: Result<T, E>, interrupted: bool) -> Result<T> {
    done.map_err(|error| if interrupted { interruption() } else { error.into() })
}

fn interruption() -> Failure {
    Failure::new(Code::Interrupted, "interrupted")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_when_a_signal_arrives_is_done() {
        assert_eq!(outcome_if(Ok::<_, Failure>(7), true).unwrap(), 7);
        assert_eq!(outcome_if(Err::<(), _>(Failure::no("")), true).unwrap_err().code, Code::Interrupted);
        assert_eq!(outcome_if(Err::<(), _>(Failure::no("")), false).unwrap_err().code, Code::No);
    }
}
