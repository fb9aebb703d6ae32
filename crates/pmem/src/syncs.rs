//! Syncs of one file by several threads, of which none misses an error that the system tells another.
//!
//! Linux reports that pages could not be written once for each open file: to the thread whose `msync` or `fsync` asks
//! first, whatever that thread has stored. The thread that stored to those pages is told nothing. So a thread whose sync
//! has succeeded waits for the others that began before its own ended. If one of them has failed, or any sync before, its
//! own has failed too. Syncs that begin later are not waited for: an error that they are told is not about pages that were
//! written by then.

use std::{
    collections::BTreeSet,
    io,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

/// The syncs of a file.
#[derive(Debug, Default)]
pub struct Syncs {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How many have begun; each has its number.
    begun: u64,
    under_way: BTreeSet<u64>,
    has_failed: bool,
}

impl Syncs {
    /// Runs a sync.
    ///
    /// # Errors
    /// Its own; or, if any other has failed that began before it ended, an error that says so.
    pub fn run(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let own = {
            let mut state = self.lock();
            state.begun += 1;
            let own = state.begun;
            state.under_way.insert(own);
            own
        };
        let outcome = sync();
        let mut state = self.lock();
        state.under_way.remove(&own);
        state.has_failed |= outcome.is_err();
        self.ended.notify_all();
        outcome?;
        let last = state.begun;
        while !state.has_failed && state.under_way.first().is_some_and(|first| *first <= last) {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.has_failed {
            return Err(io::Error::other("something stored to the file before could not be written"));
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    };

    #[test]
    fn an_error_that_another_thread_is_told_is_an_error_of_all() {
        let (syncs, is_told) = (Syncs::default(), AtomicBool::new(false));
        let (begin, begun) = mpsc::channel();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                syncs.run(|| {
                    begin.send(()).unwrap();
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    is_told.store(true, Ordering::Relaxed);
                    Err(io::Error::other("told"))
                })
            });
            begun.recv().unwrap();
            assert!(syncs.run(|| Ok(())).is_err());
            assert!(is_told.load(Ordering::Relaxed), "it has waited");
            assert!(other.join().unwrap().is_err());
        });
        assert!(syncs.run(|| Ok(())).is_err(), "what is lost stays lost");
    }

    #[test]
    fn syncs_that_succeed_wait_for_none_that_begins_later() {
        let syncs = Syncs::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| assert!(syncs.run(|| Ok(())).is_ok())));
            }
        });
        let state = syncs.lock();
        assert!(state.begun == 4000 && state.under_way.is_empty());
    }
}
