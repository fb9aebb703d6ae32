//! Ctrl-C and termination requests: they are noticed between two steps of the work, so that the database is closed.
//!
//! The first signal sets a flag, which loops check; the second ends the process at once. No signal is caught until
//! [`watch`] is called, when a database is opened for writing.

use crate::failure::{Code, Failure};
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

/// Whether a signal has arrived.
pub fn interrupted() -> bool {
    // Relaxed: no other data depends on the flag.
    FLAG.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Fails if a signal has arrived.
pub fn check() -> crate::failure::Result {
    if interrupted() { Err(Failure::new(Code::Interrupted, "interrupted")) } else { Ok(()) }
}
