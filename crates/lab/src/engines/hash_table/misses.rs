//! Reads that do not stop their owner.
//!
//! A page is read into a frame that nobody knows, and enters the table when its read is over, unless somebody else has
//! brought it in meanwhile, or its image on storage may have changed since: then the read was in vain, and whoever wants the
//! page tries again. So no page is held by a queue, and nobody waits for one.

use super::pool::{HashPool, count};
use std::collections::VecDeque;
use std::io;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use vellum_base::{Extent, PAGE_SIZE, PageId};
use vellum_pool::{Begun, Fault, FinishedRead, Miss, Misses, PoolError};
use vellum_vm::{Completion, Queue, Request, Wait};

/// Evicted together when there is no free frame.
const BATCH: usize = 64;

/// How many pages that were read ahead and used are remembered.
const PASSED_MAX: usize = 4096;

/// A read under way.
struct Reading {
    page: PageId,
    frame: u32,
    stamp: u64,
    /// Whether somebody misses the page; otherwise it was read ahead, and is the first to go.
    is_missed: bool,
}

/// The reads of one loop.
pub struct Reads<'p> {
    pool: &'p HashPool,
    queue: Box<dyn Queue>,
    depth: usize,
    reading: Vec<Option<Reading>>,
    idle: Vec<usize>,
    under_way: usize,
    completions: Vec<Completion>,
}

impl<'p> Reads<'p> {
    /// A queue.
    ///
    /// # Errors
    /// If the system refuses it.
    pub fn new(pool: &'p HashPool, depth: usize) -> Result<Self, PoolError> {
        let depth = depth.max(1);
        let queue = pool.file.queue(u32::try_from(depth).unwrap_or(u32::MAX)).map_err(PoolError::Queue)?;
        Ok(Self {
            pool,
            queue,
            depth,
            reading: Vec::new(),
            idle: Vec::new(),
            under_way: 0,
            completions: Vec::new(),
        })
    }

    /// A frame to read into, if one can be had without waiting.
    fn frame(&self) -> Option<u32> {
        let most = (self.pool.frames.count() / 4).max(1);
        // Relaxed: a number that limits, and orders nothing.
        if self.under_way > 0 && self.pool.frames_reading.load(Ordering::Relaxed) >= most {
            return None;
        }
        self.pool.take_free().or_else(|| {
            self.pool.evict_some_clean(BATCH);
            self.pool.take_free()
        })
    }

    /// Begins to read a page into a frame of its own.
    ///
    /// # Errors
    /// If the page is not in use.
    fn start(&mut self, page: PageId, frame: u32, is_missed: bool) -> Result<Begun, PoolError> {
        let shard = self.pool.table.lock(page);
        let is_there = shard.find(page).is_some();
        let extent = Extent::page(page);
        if is_there || !self.pool.space.is_extent(extent) {
            drop(shard);
            self.pool.give_back(&[frame]);
            return match is_there {
                true => Ok(Begun::Ready),
                false => Err(PoolError::Corruption { extent, fault: Fault::NotAllocated }),
            };
        }
        let stamp = shard.stamp(page);
        drop(shard);
        *self.pool.reading.lock().unwrap_or_else(PoisonError::into_inner).entry(page).or_default() += 1;
        self.pool.frames_reading.fetch_add(1, Ordering::Relaxed);
        let tag = self.idle.pop().unwrap_or_else(|| {
            self.reading.push(None);
            self.reading.len() - 1
        });
        self.reading[tag] = Some(Reading { page, frame, stamp, is_missed });
        self.under_way += 1;
        let request = Request::read(page.offset(), self.pool.frames.address(frame), PAGE_SIZE);
        // SAFETY: the frame is held exclusively and in no table until the completion is reaped; dropping this waits for
        // all of them, and the pool outlives it.
        unsafe { self.queue.submit(request, tag as u64) };
        Ok(Begun::Reading)
    }

    /// Ends a read.
    fn finish(&self, reading: &Reading, result: io::Result<()>) -> Result<(), PoolError> {
        let Reading { page, frame, stamp, is_missed } = *reading;
        let pool = self.pool;
        self.pool.frames_reading.fetch_sub(1, Ordering::Relaxed);
        let checked = pool.checked(frame, page, result);
        let mut shard = pool.table.lock(page);
        let is_current = shard.find(page).is_none()
            && shard.stamp(page) == stamp
            && pool.space.is_extent(Extent::page(page));
        let state = pool.frames.state(frame);
        let entered = is_current && checked.is_ok() && {
            state.set_page(page, is_missed);
            shard.insert(page, frame)
        };
        drop(shard);
        if entered {
            state.release_replaced();
        } else {
            pool.give_back(&[frame]);
        }
        let mut all = pool.reading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&page) {
            *count -= 1;
            if *count == 0 {
                all.remove(&page);
            }
        }
        // What was overtaken is tried again, whatever it brought.
        if is_current { checked } else { Ok(()) }
    }
}

impl Misses for Reads<'_> {
    fn under_way(&self) -> usize {
        self.under_way
    }

    fn begin(&mut self, miss: &Miss) -> Result<Begun, PoolError> {
        if miss.extent.pages > 1 || self.pool.table.find(miss.extent.head).is_some() {
            let is_latched = miss.extent.pages == 1 && self.pool.is_latched(miss.extent.head);
            return Ok(if is_latched { Begun::Latched } else { Begun::Ready });
        }
        if self.under_way >= self.depth {
            return Ok(Begun::NoRoom);
        }
        let Some(frame) = self.frame() else { return Ok(Begun::NoRoom) };
        match self.start(miss.extent.head, frame, true) {
            Err(_) if !self.pool.still_refers(miss) => Ok(Begun::Ready),
            outcome => outcome,
        }
    }

    fn begin_read_ahead(&mut self, pages: &[PageId]) -> usize {
        let before = self.under_way;
        for page in pages {
            let Some(frame) = self.frame() else { break };
            // What cannot be read is found out by who needs it.
            let _ = self.start(*page, frame, false);
        }
        self.under_way - before
    }

    fn give_up(&mut self, passed: &mut VecDeque<PageId>, wanted: usize) {
        let count = self.pool.shortage(wanted).min(passed.len());
        if count > 0 {
            self.pool.evict_clean(passed.drain(..count));
        }
        passed.truncate(PASSED_MAX.max(wanted));
    }

    fn flush(&mut self) {
        self.queue.flush();
    }

    fn reap(&mut self, wait: bool, finished: &mut Vec<FinishedRead>) {
        if self.under_way == 0 {
            return;
        }
        let mut completions = std::mem::take(&mut self.completions);
        self.queue.reap(if wait { Wait::ForOne } else { Wait::No }, &mut completions);
        for Completion { tag, result } in completions.drain(..) {
            let Some(reading) = self.reading[tag as usize].take() else { continue };
            self.idle.push(tag as usize);
            self.under_way -= 1;
            let result = self.finish(&reading, result);
            // Of what was read ahead, errors are found out by who needs it.
            let result = if reading.is_missed { result } else { Ok(()) };
            finished.push(FinishedRead { page: reading.page, result });
        }
        self.completions = completions;
    }

    fn verdict(&self, miss: &Miss, error: &PoolError) -> Option<PoolError> {
        if !self.pool.still_refers(miss) {
            return None;
        }
        let extent = miss.extent;
        Some(match error {
            PoolError::Corruption { fault, .. } => PoolError::Corruption { extent, fault: fault.clone() },
            other => PoolError::Read { extent, source: io::Error::other(other.to_string()) },
        })
    }
}

impl Drop for Reads<'_> {
    fn drop(&mut self) {
        let mut finished = Vec::new();
        while self.under_way > 0 {
            self.reap(true, &mut finished);
        }
    }
}

impl super::pool::Shared {
    /// Evicts clean pages, without waiting for the device.
    pub fn evict_some_clean(&self, wanted: usize) {
        let going = self.candidates(wanted, false);
        going.iter().for_each(|frame| self.unmap(*frame));
        count(&self.counters.pages_evicted, going.len() as u64);
        self.give_back(&going);
    }
}
