//! Precedence: work that has lost to others again and again goes first.
//!
//! A long transaction may never succeed among short ones: they change what it reads or is about to change, and commit
//! first. While it has precedence, transactions of other threads wait before their first change, and before it begins
//! it waits for those that have already changed something. So nothing that it could conflict with is committed
//! meanwhile, except by transactions that were just about to begin. The same holds of a long change of objects.
//!
//! Both waits last for a limited time only, because a caller's code may itself wait for such a thread.

use crate::primitive::{
    AtomicBool, Condvar, Instant, Mutex, MutexGuard, Ordering,
    thread::{self, ThreadId},
};
use std::time::Duration;

/// The pause between two checks whether others have ended.
const PAUSE: Duration = Duration::from_micros(50);

/// Which thread goes first.
#[derive(Default)]
pub struct Precedence {
    is_given: AtomicBool,
    holder: Mutex<Option<Holder>>,
    ended: Condvar,
}

/// The thread that has precedence, and until when.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Holder {
    thread: ThreadId,
    until: Instant,
}

/// While it exists, and for a limited time, transactions of other threads wait before their first change.
pub struct Preceding<'t> {
    precedence: &'t Precedence,
    own: Holder,
}

impl Precedence {
    /// Gives this thread precedence for at most `longest`. Part of that time is spent until `is_idle` says that no open
    /// transaction has changed anything.
    pub fn take(&self, longest: Duration, is_idle: impl Fn() -> bool) -> Preceding<'_> {
        let mut holder = self.wait(self.lock());
        let own = Holder { thread: thread::current().id(), until: Instant::now() + longest };
        *holder = Some(own);
        drop(holder);
        // Relaxed: a transaction that does not see it yet counts as one that has begun before.
        self.is_given.store(true, Ordering::Relaxed);
        while !is_idle() && Instant::now() < own.until {
            thread::sleep(PAUSE);
        }
        Preceding { precedence: self, own }
    }

    /// Waits as long as another thread has precedence.
    #[inline]
    pub fn heed(&self) {
        // Relaxed: see `take`.
        if self.is_given.load(Ordering::Relaxed) {
            drop(self.wait(self.lock()));
        }
    }

    #[cold]
    fn wait<'h>(&self, mut holder: MutexGuard<'h, Option<Holder>>) -> MutexGuard<'h, Option<Holder>> {
        loop {
            let now = Instant::now();
            match *holder {
                Some(Holder { thread, until }) if thread != thread::current().id() && now < until => {
                    let waited = self.ended.wait_timeout(holder, until - now);
                    holder = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
                }
                _ => return holder,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Holder>> {
        self.holder.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Preceding<'_> {
    fn drop(&mut self) {
        let mut holder = self.precedence.lock();
        // If its time was over, another thread may have precedence now.
        if *holder == Some(self.own) {
            *holder = None;
            self.precedence.is_given.store(false, Ordering::Relaxed);
            self.precedence.ended.notify_all();
        }
    }
}
