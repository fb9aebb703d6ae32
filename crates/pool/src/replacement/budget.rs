//! The memory limit: how many pages are reserved.
//!
//! The background evictor sleeps as long as enough pages are free. No wake-up is lost: the evictor sets the flag that
//! it is asleep and then reads the count, a thread that reserves pages changes the count and then reads the flag, and
//! both do so across a sequentially consistent fence, so one of them sees the other. Requests to fetch memory work in
//! the same way.

use crate::primitive::{AtomicBool, AtomicUsize, Bug, Condvar, Mutex, Ordering, fence, lock, planted};

/// Counts pages that are resident or about to be; never exceeds its limit.
pub struct Budget {
    used: AtomicUsize,
    limit: usize,
    /// How many of the reserved pages are buffers of streams.
    buffers: AtomicUsize,
    /// Below this many free pages the background evictor is woken.
    low_water: usize,
    /// The evictor works until this many are free.
    high_water: usize,
    evictor_asleep: AtomicBool,
    memory_asked_for: AtomicBool,
    stop: Mutex<bool>,
    wake: Condvar,
}

/// Why the evictor woke up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// Little room is left.
    Low,
    /// A thread asked for memory to be fetched.
    Asked,
    /// The time for which the evictor was willing to sleep is over.
    Idle,
    /// The evictor must end.
    Stopped,
}

impl Budget {
    pub fn new(limit: usize) -> Self {
        // A sixteenth of a small pool, at most 16 MiB of a large one: enough for a few thousand misses while a batch is
        // being written.
        let low_water = (limit / 16).clamp(1, 4096);
        Self {
            used: AtomicUsize::new(0),
            limit,
            buffers: AtomicUsize::new(0),
            low_water,
            high_water: low_water * 2,
            evictor_asleep: AtomicBool::new(false),
            memory_asked_for: AtomicBool::new(false),
            stop: Mutex::new(false),
            wake: Condvar::new(),
        }
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    pub fn used(&self) -> usize {
        // Relaxed: a number for information; no other read depends on it.
        self.used.load(Ordering::Relaxed)
    }

    /// Reserves `pages` more, if the limit allows.
    pub fn try_reserve(&self, pages: usize) -> bool {
        // Relaxed: only the count itself must be right; the memory is handed over under latches.
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(pages).filter(|sum| *sum <= self.limit)
        });
        if taken.is_err() || self.is_low() {
            self.wake_evictor();
        }
        taken.is_ok()
    }

    pub fn give_back(&self, pages: usize) {
        let before = self.used.fetch_sub(pages, Ordering::Relaxed);
        debug_assert!(before >= pages, "gave back {pages} pages of {before}");
    }

    /// How many pages the buffers of one more stream may have, a multiple of `unit` up to `most` of these: an eighth of a pool
    /// in which there are no others, and the less the more these have. All together have little more than a quarter.
    pub fn pages_for_buffers(&self, unit: usize, most: usize) -> usize {
        // Relaxed: an estimate.
        self.share(self.buffers.load(Ordering::Relaxed), unit, most)
    }

    fn share(&self, buffers: usize, unit: usize, most: usize) -> usize {
        let pages = (self.limit / 4).saturating_sub(buffers) / 2;
        (pages / unit).clamp(1, most) * unit
    }

    /// Counts as many pages as buffers of a stream, and returns their number; `None` if all would have more than half of the
    /// pool.
    pub fn begin_buffers(&self, unit: usize, most: usize) -> Option<usize> {
        // Relaxed: only the count itself must be right.
        let taken = self.buffers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |buffers| {
            Some(buffers + self.share(buffers, unit, most)).filter(|sum| *sum <= self.limit / 2)
        });
        taken.ok().map(|buffers| self.share(buffers, unit, most))
    }

    /// They are buffers no longer, and still reserved.
    pub fn end_buffers(&self, pages: usize) {
        self.buffers.fetch_sub(pages, Ordering::Relaxed);
    }

    fn free(&self) -> usize {
        self.limit.saturating_sub(self.used())
    }

    fn is_low(&self) -> bool {
        self.free() < self.low_water
    }

    /// Whether so much is free that nothing will have to be evicted soon.
    pub fn is_ample(&self) -> bool {
        self.free() >= self.high_water + self.limit / 16
    }

    /// Whether too little would be left free after reserving this many pages.
    pub fn is_scarce(&self, pages: usize) -> bool {
        /// Enough for one reader, and its way down a structure.
        const LEAST: usize = 4;
        self.free() < pages + (self.limit / 64).max(LEAST)
    }

    /// Whether the background evictor should continue.
    pub fn wants_more(&self) -> bool {
        self.free() < self.high_water
    }

    /// How many pages are missing until this many more can be reserved without the background evictor being needed.
    pub fn shortage(&self, wanted: usize) -> usize {
        (self.high_water + wanted).saturating_sub(self.free())
    }

    /// Asks the evictor's thread to fetch memory for future pages.
    pub fn ask_for_memory(&self) {
        self.memory_asked_for.store(true, Ordering::Relaxed);
        self.wake_evictor();
    }

    fn wake_evictor(&self) {
        // SeqCst: orders the count, or the request, before the flag; see the module's first lines.
        if !planted(Bug::ReserverFence) {
            fence(Ordering::SeqCst);
        }
        if self.evictor_asleep.load(Ordering::Relaxed) {
            // While this holds the lock, the evictor is either asleep or has yet to read the count.
            let _stop = lock(&self.stop);
            if self.evictor_asleep.swap(false, Ordering::Relaxed) {
                self.wake.notify_one();
            }
        }
    }

    /// Sleeps until the evictor is needed, or for about as long as `patience`.
    pub fn sleep_until_low(&self, patience: Option<std::time::Duration>) -> Woken {
        let mut stop = lock(&self.stop);
        let mut waited = false;
        loop {
            if *stop {
                return Woken::Stopped;
            }
            self.evictor_asleep.store(true, Ordering::Relaxed);
            // SeqCst: orders the flag before the count and the request; see the module's first lines.
            if !planted(Bug::EvictorFence) {
                fence(Ordering::SeqCst);
            }
            let woken = if self.is_low() {
                Some(Woken::Low)
            } else if self.memory_asked_for.load(Ordering::Relaxed) {
                // Only this thread takes the request back, and no thread makes another request before this one has been
                // served.
                self.memory_asked_for.store(false, Ordering::Relaxed);
                Some(Woken::Asked)
            } else {
                patience.filter(|_| waited).map(|_| Woken::Idle)
            };
            if let Some(woken) = woken {
                self.evictor_asleep.store(false, Ordering::Relaxed);
                return woken;
            }
            match patience {
                Some(patience) => {
                    let woken = self.wake.wait_timeout(stop, patience);
                    stop = woken.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
                    waited = true;
                }
                None => stop = self.wake.wait(stop).unwrap_or_else(|poisoned| poisoned.into_inner()),
            }
        }
    }

    /// Waits a moment, because the evictor found nothing to evict. Returns false when it must end.
    pub fn pause(&self, time: std::time::Duration) -> bool {
        let stop = lock(&self.stop);
        !*stop && !*self.wake.wait_timeout(stop, time).unwrap_or_else(|poisoned| poisoned.into_inner()).0
    }

    /// Whether [`stop`](Self::stop) was called.
    pub fn is_stopped(&self) -> bool {
        *lock(&self.stop)
    }

    /// Ends the background evictor.
    pub fn stop(&self) {
        *lock(&self.stop) = true;
        self.wake.notify_all();
    }
}
