//! Asynchronous reads that are watched on their way to the device.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering},
};
use vellum_base::PageId;
use vellum_pool::{Begun, FinishedRead, Miss, MissQueue, Misses, PoolError};

/// The requests for missing pages.
#[derive(Default)]
pub struct Requests {
    /// How many were begun.
    pub begun: AtomicU64,
    /// How many the device may not know of.
    pub unsubmitted: AtomicU64,
    /// How many calls did nothing but submit them.
    pub flushes: AtomicU64,
}

/// A queue of misses whose requests are counted.
pub struct Watched<'p> {
    pub(super) queue: MissQueue<'p>,
    pub(super) requests: &'p Requests,
}

impl Watched<'_> {
    fn note_begun(&self, count: u64) {
        self.requests.begun.fetch_add(count, Ordering::SeqCst);
        self.requests.unsubmitted.fetch_add(count, Ordering::SeqCst);
    }

    fn note_submitted(&self) {
        self.requests.unsubmitted.store(0, Ordering::SeqCst);
    }
}

impl Misses for Watched<'_> {
    fn under_way(&self) -> usize {
        self.queue.under_way()
    }

    fn begin(&mut self, miss: &Miss) -> Result<Begun, PoolError> {
        let begun = self.queue.begin(miss)?;
        self.note_begun(u64::from(begun == Begun::Reading));
        Ok(begun)
    }

    fn begin_read_ahead(&mut self, pages: &[PageId]) -> usize {
        let begun = self.queue.begin_read_ahead(pages);
        self.note_begun(begun as u64);
        begun
    }

    fn give_up(&mut self, passed: &mut VecDeque<PageId>, wanted: usize) {
        self.queue.give_up(passed, wanted);
    }

    fn flush(&mut self) {
        self.note_submitted();
        self.requests.flushes.fetch_add(1, Ordering::SeqCst);
        self.queue.flush();
    }

    fn reap(&mut self, wait: bool, finished: &mut Vec<FinishedRead>) {
        self.note_submitted();
        self.queue.reap(wait, finished);
    }

    fn reap_all(&mut self, finished: &mut Vec<FinishedRead>) {
        self.note_submitted();
        self.queue.reap_all(finished);
    }

    fn verdict(&self, miss: &Miss, error: &PoolError) -> Option<PoolError> {
        self.queue.verdict(miss, error)
    }
}
