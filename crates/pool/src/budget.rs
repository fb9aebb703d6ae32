//! The memory limit: how many pages are spoken for.

use std::sync::{
    Condvar, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

/// Counts pages that are resident or about to be; never passes its limit.
pub(crate) struct Budget {
    used: AtomicUsize,
    limit: usize,
    /// Below this many free pages the background evictor is woken.
    low_water: usize,
    /// It works until this many are free.
    high_water: usize,
    evictor_asleep: AtomicBool,
    stop: Mutex<bool>,
    wake: Condvar,
}

impl Budget {
    pub(crate) fn new(limit: usize) -> Self {
        // A sixteenth of a small pool, at most 16 MiB of a large one: enough for what a few thousand misses
        // need while a batch is being written.
        let low_water = (limit / 16).min(4096);
        Self {
            used: AtomicUsize::new(0),
            limit,
            low_water,
            high_water: low_water * 2,
            evictor_asleep: AtomicBool::new(false),
            stop: Mutex::new(false),
            wake: Condvar::new(),
        }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn used(&self) -> usize {
        // Relaxed: a number to look at; nothing else is read on the strength of it.
        self.used.load(Ordering::Relaxed)
    }

    /// Speaks for `pages` more, if the limit allows.
    pub(crate) fn try_reserve(&self, pages: usize) -> bool {
        // Relaxed: the count alone must be right; the memory itself is handed over under latches.
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(pages).filter(|sum| *sum <= self.limit)
        });
        if self.is_low() {
            self.wake_evictor();
        }
        taken.is_ok()
    }

    pub(crate) fn give_back(&self, pages: usize) {
        let before = self.used.fetch_sub(pages, Ordering::Relaxed);
        debug_assert!(before >= pages, "gave back {pages} pages of {before}");
    }

    fn is_low(&self) -> bool {
        self.limit - self.used().min(self.limit) < self.low_water
    }

    /// Whether the background evictor should go on.
    pub(crate) fn wants_more(&self) -> bool {
        self.limit - self.used().min(self.limit) < self.high_water
    }

    pub(crate) fn wake_evictor(&self) {
        // Relaxed is enough to try: if the flag is missed, the next reservation sees it, and the evictor
        // looks at the count itself before it sleeps, and again after a while.
        if self.evictor_asleep.load(Ordering::Relaxed) && self.evictor_asleep.swap(false, Ordering::Relaxed) {
            self.wake.notify_one();
        }
    }

    /// The evictor sleeps until it is needed. Returns false when it must end.
    pub(crate) fn sleep_until_low(&self) -> bool {
        let mut stop = self.stop.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        while !*stop && !self.is_low() {
            self.evictor_asleep.store(true, Ordering::Relaxed);
            let pause = std::time::Duration::from_millis(20);
            let woken = self.wake.wait_timeout(stop, pause);
            stop = woken.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        !*stop
    }

    /// The evictor found nothing to evict: it waits a moment. Returns false when it must end.
    pub(crate) fn pause(&self) -> bool {
        let stop = self.stop.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let pause = std::time::Duration::from_millis(1);
        let woken = self.wake.wait_timeout_while(stop, pause, |stop| !*stop);
        !*woken.unwrap_or_else(|poisoned| poisoned.into_inner()).0
    }

    /// Whether [`stop`](Self::stop) was called.
    pub(crate) fn is_stopped(&self) -> bool {
        *self.stop.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Ends the background evictor.
    pub(crate) fn stop(&self) {
        *self.stop.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = true;
        self.wake.notify_all();
    }
}
