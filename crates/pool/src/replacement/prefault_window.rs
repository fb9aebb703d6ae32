//! Pages beyond the end of the file whose memory has been fetched ahead.
//!
//! They are zero, like pages that were never touched. They form the *window*, which begins at the highest end that the
//! file has had, and are counted in the budget until they are allocated: the thread that allocates them counts them
//! again, or releases their memory if it writes past the pool.
//!
//! # Lock order
//! The lock of fetching memory; then the window's.

use crate::primitive::{AtomicU64, Mutex, MutexGuard, Ordering, lock};
use std::ops::Range;

/// Which memory has been fetched ahead, and when to fetch more.
pub(crate) struct PrefaultWindow {
    /// The background thread is asked for more when the file ends beyond this page.
    ask_at: AtomicU64,
    /// The pages that have memory or are about to get it, are counted in the budget, and were never allocated.
    pages: Mutex<Range<u64>>,
    /// Locked while memory is fetched for pages that are already in the window.
    populating: Mutex<()>,
}

impl PrefaultWindow {
    /// A window for a file that ends at page `end`. No memory is asked for yet.
    pub(crate) fn new(end: u64) -> Self {
        let (pages, populating) = (Mutex::new(end..end), Mutex::new(()));
        Self { ask_at: AtomicU64::new(u64::MAX), pages, populating }
    }

    /// Lets the background thread be asked for memory when the file ends beyond this page.
    pub(crate) fn ask_at(&self, page: u64) {
        // Relaxed, here and below: it only affects which thread asks, and when.
        self.ask_at.store(page, Ordering::Relaxed);
    }

    /// Whether the background thread is to be asked for memory, now that the file ends at page `end`. True once for
    /// each [`ask_at`](Self::ask_at).
    #[inline]
    pub(crate) fn is_to_be_asked(&self, end: u64) -> bool {
        end > self.ask_at.load(Ordering::Relaxed) && self.ask_at.swap(u64::MAX, Ordering::Relaxed) != u64::MAX
    }

    /// Notes that the file now ends at page `end`. Returns the pages that leave the window: the caller then owns their
    /// memory, and their share of the budget.
    pub(crate) fn leave(&self, end: u64) -> Range<u64> {
        let mut pages = lock(&self.pages);
        let left = pages.start..pages.end.min(end.max(pages.start));
        let start = pages.start.max(end);
        *pages = start..pages.end.max(start);
        left
    }

    /// Where the window begins.
    pub(crate) fn start(&self) -> u64 {
        lock(&self.pages).start
    }

    /// Where the window ends.
    pub(crate) fn end(&self) -> u64 {
        lock(&self.pages).end
    }

    /// Adds pages that follow the window; returns false, and does nothing, if they do not follow it.
    pub(crate) fn extend(&self, run: &Range<u64>) -> bool {
        let mut pages = lock(&self.pages);
        let follows = pages.end == run.start;
        if follows {
            pages.end = run.end;
        }
        follows
    }

    /// Removes the pages from `from` on from the window. None of them is allocated while `release` gives their memory
    /// back.
    pub(crate) fn shrink(&self, from: u64, release: impl FnOnce(Range<u64>)) {
        let mut pages = lock(&self.pages);
        let from = from.max(pages.start);
        let released = from..pages.end.max(from);
        pages.end = from.min(pages.end);
        release(released);
    }

    /// Waits until no memory is being fetched, and keeps other threads from fetching any.
    pub(crate) fn populating(&self) -> MutexGuard<'_, ()> {
        lock(&self.populating)
    }
}
