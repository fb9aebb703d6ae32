//! Misses that do not block a thread: reads of pages that are under way while their owner does something else.
//!
//! A [`MissQueue`] belongs to one loop: a batch of lookups, a scan, an application's event loop. Beginning a read
//! reserves the memory, latches the evicted page exclusively and lets the device read straight into the page's place.
//! The thread that reaps the completion checks the bytes exactly as the blocking path does, and releases the latch:
//! then the page is in memory, or evicted again with an error for the operations that wait.
//!
//! # Invariants
//! - A page that is being read is latched exclusively, counted in the budget, and entered in one queue, which is locked
//!   whenever one of the three changes.
//! - Only a reap that was asked to wait does so, and only for the device.
//! - At most a quarter of the pool is being read this way, so that the pages that refer to them stay in memory.
//!
//! # Lock order
//! A queue may be locked while any latches are held; while it is locked, latches are only tried and released. No lock
//! is taken while the list of queues is locked.

use crate::{
    error::{Miss, PoolError},
    file::outage::copy_of,
    io::{page_io::PageIo, reads::Reads},
    pager::{Begun, FinishedRead, Misses},
    primitive::{Mutex, lock, try_lock},
};
use std::{collections::VecDeque, sync::Arc};
use vellum_base::{Extent, PageId};
use vellum_vm::Wait;

/// How many pages that were read ahead and used are remembered, to be evicted first when memory is short. Pages beyond
/// this number are left to the clock.
const PASSED_MAX: usize = 4096;

/// Reads of missing pages that are under way: see the trait [`Misses`](crate::Misses).
///
/// Dropping it waits for the reads that are under way.
pub struct MissQueue<'p> {
    io: &'p PageIo,
    reads: Arc<Mutex<Reads>>,
    depth: usize,
    /// Reads that were begun here and not yet returned by `reap`.
    under_way: usize,
}

impl<'p> MissQueue<'p> {
    pub(crate) fn new(io: &'p PageIo, depth: usize) -> Result<Self, PoolError> {
        let depth = depth.max(1);
        Ok(Self { io, reads: io.queue(depth)?, depth, under_way: 0 })
    }

    fn reap_after(&mut self, wait: Wait, finished: &mut Vec<FinishedRead>) {
        if self.under_way == 0 {
            return;
        }
        let mut reads = match try_lock(&self.reads) {
            Some(reads) => reads,
            // Another thread completes reads, and waits for the device with the queue locked.
            None if wait == Wait::No => return,
            None => lock(&self.reads),
        };
        self.under_way -= reads.reap(&self.io.faults, wait, finished);
    }
}

impl Misses for MissQueue<'_> {
    #[inline]
    fn under_way(&self) -> usize {
        self.under_way
    }

    fn begin(&mut self, miss: &Miss) -> Result<Begun, PoolError> {
        // Before the queue is locked, because this takes a while after a crash.
        self.io.faults.prepare(miss)?;
        // A thread that completes reads of this queue waits for the device with the queue locked: then no read is
        // begun.
        let Some(mut reads) = try_lock(&self.reads) else {
            return self.io.faults.enter(miss, |_| Ok(false));
        };
        let begun = reads.begin(&self.io.faults, miss, self.under_way < self.depth)?;
        self.under_way += usize::from(begun == Begun::Reading);
        Ok(begun)
    }

    fn begin_read_ahead(&mut self, pages: &[PageId]) -> usize {
        for page in pages {
            // The thread that needs the page will meet any error.
            let _ = self.io.faults.prepare(&Miss::certain(Extent::page(*page)));
        }
        let Some(mut reads) = try_lock(&self.reads) else { return 0 };
        let requests = reads.begin_read_ahead(&self.io.faults, pages);
        self.under_way += requests;
        requests
    }

    fn give_up(&mut self, passed: &mut VecDeque<PageId>, wanted: usize) {
        let evictor = &self.io.faults.evictor;
        let count = evictor.pages.budget.shortage(wanted).min(passed.len());
        evictor.evict_clean(passed.drain(..count).map(Extent::page).collect());
        passed.truncate(PASSED_MAX.max(wanted));
    }

    fn flush(&mut self) {
        // A thread that has locked the queue lets the device begin before it waits.
        if let Some(mut reads) = try_lock(&self.reads) {
            reads.queue.flush();
        }
    }

    fn reap(&mut self, wait: bool, finished: &mut Vec<FinishedRead>) {
        self.reap_after(if wait { Wait::ForOne } else { Wait::No }, finished);
    }

    fn reap_all(&mut self, finished: &mut Vec<FinishedRead>) {
        self.reap_after(Wait::ForAll, finished);
    }

    fn verdict(&self, miss: &Miss, error: &PoolError) -> Option<PoolError> {
        if !self.io.faults.still_refers(miss) {
            return None;
        }
        let extent = miss.extent;
        Some(match error {
            PoolError::Corruption { fault, .. } => PoolError::Corruption { extent, fault: fault.clone() },
            PoolError::Read { source, .. } => PoolError::Read { extent, source: copy_of(source) },
            other => PoolError::Read { extent, source: std::io::Error::other(other.to_string()) },
        })
    }
}

impl Drop for MissQueue<'_> {
    fn drop(&mut self) {
        let mut finished = Vec::new();
        while self.under_way > 0 {
            self.reap(true, &mut finished);
        }
        self.io.take_back(&self.reads);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
