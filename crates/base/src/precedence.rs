//! Precedence: work that has lost to others again and again goes first.
//!
//! A long transaction may never succeed among short ones: they change what it reads or is about to change, and commit
//! first. While it has precedence, transactions of other threads wait before their first change, and before it begins
//! it waits for those that have already changed something. So nothing that it could conflict with is committed
//! meanwhile, except by transactions that were just about to begin. The same holds of a long change of objects.
//!
//! Both waits last for a limited time only, because a caller's code may itself wait for such a thread. The second one
//! takes a small part of the time of precedence, or a transaction that is open and does nothing would use it all up.

use crate::primitive::{
    AtomicBool, Condvar, Instant, Mutex, MutexGuard, Ordering,
    thread::{self, ThreadId},
};
use std::time::Duration;

/// The pause between two checks whether others have ended.
const PAUSE: Duration = Duration::from_micros(50);
/// The part of the time of precedence that is spent, at most, until others have ended. What is left should be longer than
/// the last attempt took, or no attempt might get further than the one before; callers give twice that time, up to a limit.
const WAITING: u32 = 4;

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
    /// None if it belongs to an outer one of the same thread.
    own: Option<Holder>,
}

impl Precedence {
    /// Gives this thread precedence for at most `longest`. Up to a quarter of that time is spent until `is_idle` says
    /// that no open transaction has changed anything.
    ///
    /// If this thread has precedence already, that is all it gets: the outer one lasts as long as it would have. It
    /// does not wait then, nor if the time of the outer one is over, because what the outer transaction has changed stays
    /// open.
    pub fn take(&self, longest: Duration, is_idle: impl Fn() -> bool) -> Preceding<'_> {
        let mut holder = self.wait(self.lock());
        let (thread, now) = (thread::current().id(), Instant::now());
        // Another thread's time is over.
        let outer = holder.filter(|holder| holder.thread == thread);
        if outer.is_some_and(|outer| now < outer.until) {
            return Preceding { precedence: self, own: None };
        }
        let own = Holder { thread, until: now + longest };
        *holder = Some(own);
        drop(holder);
        // Relaxed: a transaction that does not see it yet counts as one that has begun before.
        self.is_given.store(true, Ordering::Relaxed);
        let enough = now + longest / WAITING;
        while outer.is_none() && !is_idle() && Instant::now() < enough {
            thread::sleep(PAUSE);
        }
        Preceding { precedence: self, own: Some(own) }
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
        if self.own.is_none() {
            return;
        }
        let mut holder = self.precedence.lock();
        // If its time was over, another thread may have precedence now.
        if *holder == self.own {
            *holder = None;
            self.precedence.is_given.store(false, Ordering::Relaxed);
            self.precedence.ended.notify_all();
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    /// The time of precedence in these tests.
    const LONGEST: Duration = Duration::from_secs(1);

    /// Asserts that another thread waits until this thread's precedence has ended, which `end` does.
    fn assert_heeded(precedence: &Precedence, end: impl FnOnce()) {
        thread::scope(|scope| {
            let heeding = scope.spawn(|| {
                precedence.heed();
                Instant::now()
            });
            thread::sleep(Duration::from_millis(50));
            let ended = Instant::now();
            end();
            let heeded = heeding.join().unwrap();
            assert!(heeded >= ended, "{:?} too early", ended - heeded);
            assert!(heeded - ended < LONGEST / 2, "{:?} too late", heeded - ended);
        });
    }

    #[test]
    fn precedence_outlasts_the_wait_for_those_that_do_not_end() {
        let precedence = Precedence::default();
        let begun = Instant::now();
        let preceding = precedence.take(LONGEST, || false);
        assert!(begun.elapsed() <= LONGEST / 2, "{:?}", begun.elapsed());
        assert_heeded(&precedence, || drop(preceding));
        // Others wait no longer than they are told, if it does not end.
        let _preceding = precedence.take(LONGEST / 10, || false);
        thread::scope(|scope| scope.spawn(|| precedence.heed()).join().unwrap());
        assert!(begun.elapsed() < 2 * LONGEST);
    }

    #[test]
    fn precedence_inside_precedence_neither_waits_nor_ends_it() {
        let precedence = Precedence::default();
        let outer = precedence.take(LONGEST, || true);
        drop(precedence.take(LONGEST / 100, || panic!("the outer one may never be idle")));
        assert_heeded(&precedence, || drop(outer));
        // When that time is over, the thread takes it anew.
        let outer = precedence.take(Duration::ZERO, || true);
        let inner = precedence.take(LONGEST, || true);
        drop(outer);
        assert_heeded(&precedence, || drop(inner));
    }
}
