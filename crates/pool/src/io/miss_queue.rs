//! Misses that do not stop a thread: reads of pages that are under way while their owner does something else.
//!
//! A [`MissQueue`] belongs to one loop: a batch of lookups, a scan, an application's event loop. Beginning a read
//! reserves the memory, latches the evicted page exclusively and lets the device read straight into the page's
//! place. Whoever reaps the completion checks what was read exactly as the blocking way does, and gives the latch
//! up: the page is in memory, or evicted again and an error for those who wait.
//!
//! # Invariants
//! - A page that is being read is latched exclusively, counted in the budget, and entered in one queue, which is
//!   locked whenever one of the three changes.
//! - Nothing waits here but a reap that was asked to, and that only for the device.
//! - At most a quarter of the pool is being read this way, so that what the pages lead from stays in memory.
//!
//! # Lock order
//! A queue is locked with any latches held, and while it is locked latches are only tried and given up. The list of
//! queues is locked for no other.

use crate::{
    core::{Core, lock},
    error::{Miss, PoolError},
    io::outage::copy_of,
    page::state::Wake,
    pager::{Begun, FinishedRead, Misses},
};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, TryLockError, atomic::Ordering},
};
use vellum_base::{Extent, PAGE_SIZE, PageId};
use vellum_vm::{Completion, Queue, Request, Wait};

/// How many queues are kept for later when nobody uses them; each has a ring, which costs some locked memory.
const IDLE_MAX: usize = 16;

/// How many pages that were read ahead and used are remembered, to be given up first when memory is short. Those
/// beyond are left to the clock.
const PASSED_MAX: usize = 4096;

/// What one request reads.
#[derive(Clone, Copy, Debug)]
enum Reading {
    /// An extent that somebody misses.
    Extent(Extent),
    /// Consecutive single pages that somebody will want: they come in marked, and errors are left to be found
    /// by who needs the page.
    ReadAhead { first: PageId, pages: u32 },
}

impl Reading {
    fn span(self) -> Extent {
        match self {
            Self::Extent(extent) => extent,
            Self::ReadAhead { first, pages } => Extent { head: first, pages },
        }
    }

    /// Whether it holds the latch of this page.
    fn holds(self, page: PageId) -> bool {
        match self {
            Self::Extent(extent) => extent.head == page,
            Self::ReadAhead { .. } => (self.span().head..self.span().end()).contains(&page),
        }
    }
}

/// The reads of one queue, locked.
#[derive(Debug)]
pub(crate) struct Reads {
    queue: Box<dyn Queue>,
    /// By the tag of their requests.
    reading: Vec<Option<Reading>>,
    free: Vec<usize>,
    /// Reads that are over and that the owner has not seen yet.
    finished: Vec<FinishedRead>,
    completions: Vec<Completion>,
}

impl Reads {
    /// Whether one of the reads holds the latch of this page.
    pub(crate) fn holds(&self, page: PageId) -> bool {
        self.reading.iter().flatten().any(|reading| reading.holds(page))
    }

    /// Submits a read of what the caller has latched and reserved memory for.
    fn submit(&mut self, core: &Core, reading: Reading) {
        let tag = match self.free.pop() {
            Some(tag) => tag,
            None => {
                self.reading.push(None);
                self.reading.len() - 1
            }
        };
        if let Some(slot) = self.reading.get_mut(tag) {
            *slot = Some(reading);
        }
        let span = reading.span();
        let request = Request::read(span.head.offset(), core.address(span.head), span.bytes());
        // SAFETY: what is read lies in the mapping, and its latches are held until the completion is reaped; the
        // core drops its queues, which wait for their requests, before the mapping.
        unsafe { self.queue.submit(request, tag as u64) };
    }

    /// Ends the reads that are done, after waiting for one if asked to.
    pub(crate) fn finish(&mut self, core: &Core, wait: Wait) {
        let mut completions = std::mem::take(&mut self.completions);
        self.queue.reap(wait, &mut completions);
        for Completion { tag, result } in completions.drain(..) {
            let Some(reading) = self.reading.get_mut(tag as usize).and_then(Option::take) else { continue };
            self.free.push(tag as usize);
            // Relaxed: a number that limits, and orders nothing.
            core.reading_pages.fetch_sub(reading.span().pages as usize, Ordering::Relaxed);
            match reading {
                Reading::Extent(extent) => {
                    let result = core.admit(extent, result);
                    core.end_read(extent.head, result.is_ok());
                    self.finished.push(FinishedRead { page: extent.head, result });
                }
                Reading::ReadAhead { first, pages } => {
                    for page in (first.0..first.0 + pages as u64).map(PageId) {
                        let result = result.as_ref().map_err(copy_of).map(|_| ());
                        let admitted = core.admit(Extent::page(page), result).is_ok();
                        core.end_read(page, admitted);
                        if admitted {
                            // Whoever comes first turns the mark back; the scan itself does not.
                            let state = core.state(page);
                            state.try_mark(state.load());
                        }
                    }
                    self.finished.push(FinishedRead { page: first, result: Ok(()) });
                }
            }
        }
        self.completions = completions;
    }
}

/// Locks a queue unless somebody else has locked it.
fn try_lock(reads: &Mutex<Reads>) -> Option<MutexGuard<'_, Reads>> {
    match reads.try_lock() {
        Ok(reads) => Some(reads),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Reads of missing pages that are under way: see the trait [`Misses`](crate::Misses).
///
/// Dropping it waits for the reads that are under way.
pub struct MissQueue<'p> {
    core: &'p Core,
    reads: Arc<Mutex<Reads>>,
    depth: usize,
    /// Reads that were begun here and not given back by `reap` yet.
    under_way: usize,
}

impl<'p> MissQueue<'p> {
    pub(crate) fn new(core: &'p Core, depth: usize) -> Result<Self, PoolError> {
        let depth = depth.max(1);
        let idle = {
            let mut idle = lock(&core.reads_idle);
            let fitting = idle.iter().position(|reads| lock(reads).queue.depth() >= depth);
            fitting.map(|index| idle.swap_remove(index))
        };
        let reads = match idle {
            Some(reads) => reads,
            None => {
                let queue = core.file.queue(u32::try_from(depth).unwrap_or(u32::MAX));
                let queue = queue.map_err(PoolError::Queue)?;
                let reads = Arc::new(Mutex::new(Reads {
                    queue,
                    reading: Vec::new(),
                    free: Vec::new(),
                    finished: Vec::new(),
                    completions: Vec::new(),
                }));
                core.queues.add(reads.clone());
                reads
            }
        };
        Ok(Self { core, reads, depth, under_way: 0 })
    }

    /// How many reads were begun and not given back by [`reap`](Self::reap) yet.
    #[inline]
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Begins to read what is missing, if that can be done without waiting. The device may hear of it only at
    /// the next [`flush`](Self::flush) or [`reap`](Self::reap).
    ///
    /// # Errors
    /// If it is not allocated, or larger than the pool.
    pub fn begin(&mut self, miss: &Miss) -> Result<Begun, PoolError> {
        let (core, extent) = (self.core, miss.extent);
        core.check_bounds(extent)?;
        let pages = extent.pages as usize;
        if pages > core.budget.limit() {
            return Err(PoolError::LargerThanPool { extent, pool_pages: core.budget.limit() });
        }
        let state = core.state(extent.head);
        let now = state.load();
        if !now.is_evicted() {
            return Ok(if now.is_exclusive() { Begun::Latched } else { Begun::Ready });
        }
        // Somebody who ends reads in this queue waits for the device with the queue locked.
        let Some(mut reads) = try_lock(&self.reads) else { return Ok(Begun::NoRoom) };
        if self.under_way >= self.depth || !core.may_read(pages) {
            return Ok(Begun::NoRoom);
        }
        let taken = state.try_exclusive(now);
        if taken && core.is_allocated(extent) {
            core.counters.misses.add(1);
            reads.submit(core, Reading::Extent(extent));
            self.under_way += 1;
            return Ok(Begun::Reading);
        }
        drop(reads);
        core.will_not_read(pages);
        if !taken {
            return Ok(Begun::Latched);
        }
        core.end_read(extent.head, false);
        if core.still_refers(miss) { Err(PoolError::not_allocated(extent)) } else { Ok(Begun::Ready) }
    }

    /// Begins to read single pages that will be wanted soon, neighbours by one request, and returns how many
    /// requests there are: so many will be among what [`reap`](Self::reap) gives. Pages that are in memory, are
    /// latched, or are not allocated are left out; so is what finds no memory at once.
    ///
    /// The pages come in marked, as if nobody had wanted them since the clock passed: what a scan brings in is
    /// the first to go.
    pub fn begin_read_ahead(&mut self, pages: &[PageId]) -> usize {
        let Some(mut reads) = try_lock(&self.reads) else { return 0 };
        let mut run: Option<Extent> = None;
        let mut requests = 0;
        for page in pages.iter().copied() {
            if !self.core.latch_ahead(page) {
                continue;
            }
            run = match run {
                Some(Extent { head, pages })
                    if head.0 + pages as u64 == page.0 && pages < AHEAD_PAGES_MAX =>
                {
                    Some(Extent { head, pages: pages + 1 })
                }
                other => {
                    requests += reads.submit_run(self.core, other);
                    Some(Extent::page(page))
                }
            };
        }
        requests += reads.submit_run(self.core, run);
        self.under_way += requests;
        requests
    }

    /// If memory is short, evicts pages of `passed`, from its beginning and until about `wanted` are free beyond what
    /// should be, and takes them out: single pages that were read ahead and have been used. What somebody else has
    /// come to use meanwhile, or has changed, stays in memory.
    pub fn give_up(&mut self, passed: &mut VecDeque<PageId>, wanted: usize) {
        let count = self.core.budget.shortage(wanted).min(passed.len());
        if count > 0 {
            self.core.evict_clean(passed.drain(..count).map(Extent::page).collect());
        }
        passed.truncate(PASSED_MAX.max(wanted));
    }

    /// Lets the device begin.
    pub fn flush(&mut self) {
        // Whoever has locked it lets the device begin before it waits.
        if let Some(mut reads) = try_lock(&self.reads) {
            reads.queue.flush();
        }
    }

    /// Appends the reads that are over to `finished`; waits for one if asked to, unless none is under way.
    pub fn reap(&mut self, wait: bool, finished: &mut Vec<FinishedRead>) {
        if self.under_way == 0 {
            return;
        }
        let mut reads = match try_lock(&self.reads) {
            Some(reads) => reads,
            // Somebody helps, and waits for the device with the queue locked.
            None if !wait => return,
            None => lock(&self.reads),
        };
        let wait = if wait && reads.finished.is_empty() { Wait::ForOne } else { Wait::No };
        reads.finish(self.core, wait);
        self.under_way -= reads.finished.len();
        finished.append(&mut reads.finished);
    }

    /// The error that a finished read means for an operation that waited for it: none if the reference by which
    /// the operation came there does not stand any more, in which case it is to be tried again.
    pub fn verdict(&self, miss: &Miss, error: &PoolError) -> Option<PoolError> {
        if !self.core.still_refers(miss) {
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

/// The most pages that one request reads ahead: half a mebibyte.
const AHEAD_PAGES_MAX: u32 = 128;

impl Reads {
    /// Submits a run of pages that have been latched; gives how many requests that took.
    fn submit_run(&mut self, core: &Core, run: Option<Extent>) -> usize {
        let Some(Extent { head, pages }) = run else { return 0 };
        self.submit(core, Reading::ReadAhead { first: head, pages });
        1
    }
}

impl Drop for MissQueue<'_> {
    fn drop(&mut self) {
        let mut finished = Vec::new();
        while self.under_way > 0 {
            self.reap(true, &mut finished);
        }
        let mut idle = lock(&self.core.reads_idle);
        if idle.len() < IDLE_MAX {
            idle.push(self.reads.clone());
        } else {
            drop(idle);
            self.core.queues.remove(&self.reads);
        }
    }
}

impl Core {
    /// Reserves pages that are about to be read asynchronously, if that can be done at once.
    fn may_read(&self, pages: usize) -> bool {
        // Relaxed: a number that limits, and orders nothing.
        let most = (self.budget.limit() / 4).max(1);
        let reading = self.reading_pages.fetch_add(pages, Ordering::Relaxed);
        // Alone, anything that fits may be read.
        if (reading == 0 || reading + pages <= most) && self.reserve_at_once(pages) {
            return true;
        }
        self.reading_pages.fetch_sub(pages, Ordering::Relaxed);
        false
    }

    /// Takes back what [`may_read`](Self::may_read) said.
    fn will_not_read(&self, pages: usize) {
        self.reading_pages.fetch_sub(pages, Ordering::Relaxed);
        self.budget.give_back(pages);
    }

    /// Latches a page to be read ahead and reserves its memory, if that can be done at once and it is worth it. Called
    /// with the queue locked.
    fn latch_ahead(&self, page: PageId) -> bool {
        if page.0 >= self.capacity_pages {
            return false;
        }
        let state = self.state(page);
        let now = state.load();
        if !now.is_evicted() || !self.may_read(1) {
            return false;
        }
        let taken = state.try_exclusive(now);
        if taken && self.is_allocated(Extent::page(page)) {
            self.counters.misses.add(1);
            return true;
        }
        self.will_not_read(1);
        if taken {
            self.end_read(page, false);
        }
        false
    }

    /// Checks what was read and takes it into the resident set, or undoes everything but the latch.
    pub(crate) fn admit(&self, extent: Extent, read: std::io::Result<()>) -> Result<(), PoolError> {
        let result = read.map_err(|source| PoolError::Read { extent, source }).and_then(|()| {
            self.counters.pages_read.add(extent.pages as u64);
            self.verify(extent)
        });
        match result {
            Ok(()) => self.resident.insert(extent),
            Err(_) => {
                self.drop_memory(extent);
                self.budget.give_back(extent.pages as usize);
            }
        }
        result
    }

    /// Gives up the exclusive latch under which something was read in, or was not.
    pub(crate) fn end_read(&self, head: PageId, is_resident: bool) {
        let state = self.state(head);
        let wake: Wake =
            if is_resident { state.release_exclusive(false) } else { state.release_exclusive_evicted() };
        self.wake(head, wake);
    }
}

impl Misses for MissQueue<'_> {
    #[inline]
    fn under_way(&self) -> usize {
        MissQueue::under_way(self)
    }

    fn begin(&mut self, miss: &Miss) -> Result<Begun, PoolError> {
        MissQueue::begin(self, miss)
    }

    fn begin_read_ahead(&mut self, pages: &[PageId]) -> usize {
        MissQueue::begin_read_ahead(self, pages)
    }

    fn give_up(&mut self, passed: &mut VecDeque<PageId>, wanted: usize) {
        MissQueue::give_up(self, passed, wanted);
    }

    fn flush(&mut self) {
        MissQueue::flush(self);
    }

    fn reap(&mut self, wait: bool, finished: &mut Vec<FinishedRead>) {
        MissQueue::reap(self, wait, finished);
    }

    fn verdict(&self, miss: &Miss, error: &PoolError) -> Option<PoolError> {
        MissQueue::verdict(self, miss, error)
    }
}

const _: () = assert!(AHEAD_PAGES_MAX as usize * PAGE_SIZE == 512 << 10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pool, PoolOptions};
    use vellum_base::PageKind;
    use vellum_vm::SimulatedFile;

    #[test]
    fn nothing_but_a_reap_waits_for_somebody_who_has_locked_the_queue() {
        let options = PoolOptions::default().pool_bytes(64 * 4096).capacity_bytes(1 << 24);
        let file = SimulatedFile::new(1);
        let pool = Pool::create_on(Arc::new(file.clone()), &options).unwrap();
        let page = pool.allocate(1, PageKind::USER).unwrap().keep().extent();
        pool.close().unwrap();
        let pool = Pool::open_on(Arc::new(file), &options).unwrap();
        let (locked, unlock) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
        std::thread::scope(|scope| {
            let mut queue = MissQueue::new(pool.core(), 4).unwrap();
            let reads = queue.reads.clone();
            // Unlocks after a while even if it is waited for, so that the test fails and does not hang.
            scope.spawn(move || {
                let _held = lock(&reads);
                locked.0.send(()).unwrap();
                let _ = unlock.1.recv_timeout(std::time::Duration::from_secs(2));
            });
            locked.1.recv().unwrap();
            let begun = std::time::Instant::now();
            assert_eq!(queue.begin(&Miss::certain(page)).unwrap(), Begun::NoRoom);
            assert_eq!(queue.begin_read_ahead(&[page.head]), 0);
            queue.flush();
            queue.reap(false, &mut Vec::new());
            assert!(begun.elapsed() < std::time::Duration::from_secs(1));
            assert_eq!(pool.statistics().pages_resident, 0);
            unlock.0.send(()).unwrap();
            while queue.begin(&Miss::certain(page)).unwrap() == Begun::NoRoom {
                std::thread::yield_now();
            }
            let mut finished = Vec::new();
            queue.reap(true, &mut finished);
            assert!(finished.pop().unwrap().result.is_ok());
        });
    }
}
