//! Where threads that wait for a latch sleep: a parking lot keyed by page id.
//!
//! One bit of a latch's state word says that threads wait for it, but not which. They sleep in one of a fixed number of
//! buckets. Pages that share a bucket sometimes wake each other's waiters, which then check the word and sleep again.
//!
//! No wake-up is lost: a sleeper checks the waiting bit with the bucket locked, and the thread that clears the bit
//! locks the bucket before it wakes. If the sleeper saw the bit, the waker comes after the sleep has begun; if the
//! sleeper did not see it, it does not sleep.

use crate::{
    page::state::{PageState, Wake, Want},
    primitive::{Bug, Condvar, Mutex, MutexGuard, lock, planted},
};
use std::time::Duration;
use vellum_base::PageId;

/// How long a thread sleeps if it is not certain to be woken.
const UNSURE_MAX: Duration = Duration::from_millis(1);

#[cfg(not(loom))]
const BUCKETS: usize = 256;
#[cfg(loom)]
const BUCKETS: usize = 1;

/// The result of a thread's attempt to complete the read of the page that it wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CooperativeCompletion {
    /// No queue reads the page: the thread that latched it will release it.
    NotReading,
    /// A queue was busy, and may read the page.
    Unsure,
    /// A queue read the page, and some of its reads have been completed.
    Completed,
}

/// The parking lot of a pool.
pub struct ParkingLot {
    buckets: Box<[Bucket]>,
}

// Each has its own cache line, so that waiting on one page does not slow the waiters of its neighbours.
#[repr(align(64))]
struct Bucket {
    mutex: Mutex<()>,
    condition: Condvar,
}

impl ParkingLot {
    /// An empty parking lot.
    pub fn new() -> Self {
        let bucket = |_| Bucket { mutex: Mutex::new(()), condition: Condvar::new() };
        Self { buckets: (0..BUCKETS).map(bucket).collect() }
    }

    /// Sleeps until `want` may be possible on `page`, but no longer than `most`; may return early. Returns whether it
    /// slept. `complete` is called first: it completes the read of the page if a queue reads it (see
    /// `io::cooperative`).
    pub fn park(
        &self,
        page: PageId,
        state: &PageState,
        want: Want,
        most: Option<Duration>,
        complete: impl Fn() -> CooperativeCompletion,
    ) -> bool {
        let early = planted(Bug::LookBeforeAnnouncing).then(&complete);
        if !state.announce_waiting(want) {
            return false;
        }
        let most = match early.unwrap_or_else(complete) {
            CooperativeCompletion::Completed => return false,
            CooperativeCompletion::Unsure => Some(most.unwrap_or(UNSURE_MAX).min(UNSURE_MAX)),
            CooperativeCompletion::NotReading => most,
        };
        let bucket = self.bucket(page);
        let guard = lock(&bucket.mutex);
        if !state.must_sleep(want) && !planted(Bug::SleepWithoutLook) {
            return false;
        }
        bucket.sleep(guard, most);
        true
    }

    /// Wakes the threads that wait for `page`, if its release said so.
    #[inline]
    pub fn wake(&self, page: PageId, wake: Wake) {
        if wake == Wake::All {
            self.wake_all(page);
        }
    }

    #[cold]
    fn wake_all(&self, page: PageId) {
        let bucket = self.bucket(page);
        if !planted(Bug::WakeWithoutLock) {
            drop(lock(&bucket.mutex));
        }
        bucket.condition.notify_all();
    }

    #[cfg_attr(not(test), expect(clippy::indexing_slicing, reason = "a remainder by the number of buckets"))]
    fn bucket(&self, page: PageId) -> &Bucket {
        let hash = page.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.buckets[hash as usize % BUCKETS]
    }
}

impl Bucket {
    fn sleep(&self, guard: MutexGuard<'_, ()>, most: Option<Duration>) {
        match most {
            None => drop(self.condition.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner())),
            #[cfg(not(loom))]
            Some(most) => {
                drop(self.condition.wait_timeout(guard, most).map_err(|poisoned| poisoned.into_inner()))
            }
            // No time passes in a model: any sleep may end at once.
            #[cfg(loom)]
            Some(_) => {
                drop(guard);
                loom::thread::yield_now();
            }
        }
    }
}
