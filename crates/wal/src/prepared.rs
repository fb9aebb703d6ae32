//! Up to where segments are ready.

use crate::primitive::{AtomicU64, Ordering, RingBug, planted};

/// Up to where segments are ready: a hint, as there is a buffer in addition. Nowhere, once the log has ended: then whatever
/// comes next must ask, and is refused.
#[derive(Debug)]
pub(crate) struct Prepared(AtomicU64);

/// The log has ended. Nothing else is zero, as each segment begins with a header.
const ENDED: u64 = 0;

impl Prepared {
    pub fn new(end: u64) -> Self {
        Self(AtomicU64::new(end.max(1)))
    }

    #[inline]
    pub fn end(&self) -> u64 {
        // Relaxed, as everywhere here: one word, with which nothing else is ordered.
        self.0.load(Ordering::Relaxed)
    }

    /// Notes up to where they are ready, unless the log has ended.
    pub fn note(&self, end: u64) {
        if planted(RingBug::NoLookAtEnd) {
            return self.0.store(end, Ordering::Relaxed);
        }
        let goes_on = |now: u64| (now != ENDED).then_some(end.max(1));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, goes_on);
    }

    /// Nothing is ready from now on.
    pub fn end_for_good(&self) {
        // An exchange, as in `note`: loom orders these, but lets a store fall before an exchange that came earlier.
        self.0.swap(ENDED, Ordering::Relaxed);
    }
}
