//! Making room: clock replacement in batches, write-back, and the thread that does it in the background.
//!
//! A batch: the clock's hand passes over the resident set, marks what is unlocked and gathers what is still
//! marked from its last round. Of those, the changed ones are latched, stamped with their checksum, latched
//! shared and written in one submission, neighbours as one write. Then all are latched exclusively, released
//! to the kernel in one call, taken out of the resident set and unlatched. What cannot be latched at once is
//! skipped: eviction waits for nobody, so whoever needs room may hold latches.
//!
//! Source: *Virtual-Memory Assisted Buffer Management*, section 3.3; the clock with an explicit mark.

use crate::{
    core::{Core, lock},
    error::PoolError,
    maintenance::huge_pages::HugePageScheduler,
    maintenance::prefault::Prefaulter,
    page::state::Word,
    replacement::budget::Woken,
};
use std::{
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};
use vellum_base::{Extent, Lsn, PageHeader, stamp_checksum};
use vellum_vm::{Operation, PageRange, Request};

/// The most pages that one batch evicts; the kernel takes up to 1024 ranges in a call.
const BATCH_PAGES_MAX: usize = 512;
/// The longest write that neighbours are joined into, in bytes.
const WRITE_BYTES_MAX: usize = 1 << 20;
/// The most pages that are written to find out whether pages can be written again.
const ATTEMPT_PAGES: usize = 8;
/// How many slots of the resident set are looked at by who must not wait.
const SLOTS_AT_ONCE_MAX: usize = 8192;
/// How often a thread tries to make room without getting anywhere before it gives up; it sleeps a
/// millisecond after the first few.
const FRUITLESS_TRIES_MAX: u32 = 1000;
/// The longest that the background evictor waits after it found nothing that it could evict.
const PAUSE_MAX: Duration = Duration::from_millis(64);

impl Core {
    /// How many pages one batch should evict: little of a small pool.
    fn batch_pages(&self) -> usize {
        (self.budget.limit() / 8).clamp(1, BATCH_PAGES_MAX)
    }

    /// Reserves the memory of an extent, evicting others if need be.
    pub(crate) fn reserve(&self, extent: Extent) -> Result<(), PoolError> {
        let wanted_pages = extent.pages as usize;
        let pool_pages = self.budget.limit();
        if wanted_pages > pool_pages {
            return Err(PoolError::LargerThanPool { extent, pool_pages });
        }
        let mut fruitless = 0;
        while !self.budget.try_reserve(wanted_pages) {
            match self.evict(self.batch_pages()) {
                Ok(evicted) if evicted > 0 => fruitless = 0,
                // Write errors are reported at once when nothing clean is left to evict instead.
                Err(error) if fruitless >= 16 => return Err(error),
                _ if fruitless >= FRUITLESS_TRIES_MAX => {
                    return Err(PoolError::PoolExhausted { pool_pages, wanted_pages });
                }
                _ if fruitless >= 16 => {
                    thread::sleep(Duration::from_millis(1));
                    fruitless += 1;
                }
                _ => fruitless += 1,
            }
        }
        Ok(())
    }

    /// Reserves the memory of an extent that is going to be written to. Leaves a little to those who read: if nothing
    /// can be written back, they have that and what is unchanged.
    pub(crate) fn reserve_for_new(&self, extent: Extent) -> Result<(), PoolError> {
        let pages = extent.pages as usize;
        while pages <= self.budget.limit() && self.budget.is_scarce(pages) {
            let outcome = self.evict(self.batch_pages());
            if let Some(error) = self.outage.error() {
                return Err(error);
            }
            if !matches!(outcome, Ok(1..)) {
                break;
            }
        }
        self.reserve(extent)
    }

    /// Reserves so many pages without waiting for anything: if there is no room, clean pages are evicted, and
    /// changed ones are left to the background evictor.
    pub(crate) fn reserve_at_once(&self, pages: usize) -> bool {
        if self.budget.try_reserve(pages) {
            return true;
        }
        let found = if self.outage.lasts() {
            self.gather_within(pages, SLOTS_AT_ONCE_MAX, |now| !now.is_dirty())
        } else {
            self.gather_within(self.batch_pages(), SLOTS_AT_ONCE_MAX, |_| true)
        };
        self.evict_clean(found) > 0 && self.budget.try_reserve(pages)
    }

    /// Evicts those of the extents that are still there, unused, unchanged and can be latched at once.
    pub(crate) fn evict_clean(&self, candidates: Vec<Extent>) -> usize {
        let victims = candidates.into_iter().filter(|extent| self.latch_clean(*extent)).collect();
        let evicted = self.drop_all(victims);
        if evicted > 0 {
            self.counters.eviction_batches.add(1);
        }
        evicted
    }

    /// Latches an extent exclusively that nobody used since the clock marked it, and that equals its image on
    /// storage.
    fn latch_clean(&self, extent: Extent) -> bool {
        let state = self.state(extent.head);
        let now = state.load();
        now.is_marked() && !now.is_dirty() && state.try_exclusive(now) && self.is_still_resident(extent)
    }

    /// Evicts about `target` pages and returns how many it did. An error means that some could not be
    /// written; others may have been evicted all the same, and then their number is returned.
    ///
    /// As long as nothing can be written it is tried seldom, with a few pages, and one unchanged extent goes at a time:
    /// there may be few, and those who read need some of them at once.
    pub(crate) fn evict(&self, target: usize) -> Result<usize, PoolError> {
        if !self.outage.lasts() {
            return self.evict_these(self.gather(target, |_| true));
        }
        if self.outage.is_recent() {
            let evicted = self.evict_clean(self.gather(1, |now| !now.is_dirty()));
            if evicted > 0 {
                return Ok(evicted);
            }
        }
        self.evict_these(self.gather(target.min(ATTEMPT_PAGES), |_| true))
    }

    /// Tries whether pages can be written again.
    pub(crate) fn try_to_write(&self) -> Result<(), PoolError> {
        if !self.outage.is_recent() {
            let dirty = self.gather(ATTEMPT_PAGES, |now| now.is_dirty());
            if dirty.is_empty() {
                self.outage.ends();
            }
            // Its error is found in the next lines.
            let _ = self.write_back(dirty, |_, _| false);
        }
        self.outage.error().map_or(Ok(()), Err)
    }

    /// Evicts those of the extents that are still there, unused and can be latched at once.
    fn evict_these(&self, candidates: Vec<Extent>) -> Result<usize, PoolError> {
        if candidates.is_empty() {
            return Ok(0);
        }
        let (dirty, clean): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|extent| self.state(extent.head).load().is_dirty());
        let mut victims = Vec::with_capacity(dirty.len() + clean.len());
        let written = self.write_back(dirty, |state, extent| {
            if state.try_upgrade_shared() {
                victims.push(extent);
                true
            } else {
                false
            }
        });
        // If nothing could be written, what is unchanged stays for those who read; see `evict`.
        if written.is_ok() || !self.outage.lasts() {
            victims.extend(clean.into_iter().filter(|extent| self.latch_clean(*extent)));
        }
        let evicted = self.drop_all(victims);
        if evicted > 0 {
            self.counters.eviction_batches.add(1);
        }
        match written {
            Err(error) if evicted == 0 => Err(error),
            _ => Ok(evicted),
        }
    }

    /// Moves the clock until enough pages are found that nobody used since it came by last.
    fn gather(&self, target: usize, wanted: impl Fn(Word) -> bool) -> Vec<Extent> {
        // Two rounds suffice: the first marks, the second finds the marks.
        self.gather_within(target, 2 * self.resident.slots(), wanted)
    }

    /// The same, over about so many slots at most.
    fn gather_within(&self, target: usize, slots_max: usize, wanted: impl Fn(Word) -> bool) -> Vec<Extent> {
        const STEP: usize = 64;
        let mut candidates = Vec::new();
        let (mut pages, mut passed) = (0, 0);
        while pages < target && passed < slots_max + STEP {
            self.resident.advance(STEP.min(self.resident.slots()), |extent| {
                let state = self.state(extent.head);
                let now = state.load();
                if now.is_unlocked() {
                    state.try_mark(now);
                } else if now.is_marked() && pages < target && wanted(now) {
                    pages += extent.pages as usize;
                    candidates.push(extent);
                }
            });
            passed += STEP;
        }
        // Two hands may have met on one page; neighbours in order can be written and released as one.
        candidates.sort_unstable();
        candidates.dedup_by_key(|extent| extent.head);
        candidates
    }

    /// Whether an extent that was seen in the resident set before its latch was taken exclusively is the one
    /// that is there now. If it has been freed meanwhile and another one begins at its head, the latch is
    /// given back.
    fn is_still_resident(&self, extent: Extent) -> bool {
        let there = self.resident.contains(extent);
        if !there {
            self.wake(extent.head, self.state(extent.head).release_exclusive(false));
        }
        there
    }

    /// Writes changed extents, in ascending order, to storage. `keep` is called for each that was written,
    /// with its latch shared and its dirty bit clear; it returns whether it took over the latch.
    ///
    /// # Errors
    /// The first that occurred. What could not be written stays as it is.
    fn write_back(
        &self,
        dirty: Vec<Extent>,
        mut keep: impl FnMut(&crate::page::state::PageState, Extent) -> bool,
    ) -> Result<usize, PoolError> {
        if dirty.is_empty() {
            return Ok(0);
        }
        self.mark_in_use()?;
        let mut lsn = Lsn(0);
        let latched: Vec<_> =
            dirty.into_iter().filter(|extent| self.latch_for_writing(*extent, &mut lsn)).collect();
        let mut result = self.log.make_durable(lsn).map_err(PoolError::Log);
        let mut requests = self.requests(&latched);
        let begun = Instant::now();
        if result.is_ok() {
            // SAFETY: each extent is latched shared until its request is done, so nobody changes it; no two
            // overlap.
            unsafe { self.file.run(&mut requests) };
        }
        let mut written = 0;
        let mut extents = latched.into_iter().peekable();
        for request in requests {
            let end = request.offset + request.bytes as u64;
            while let Some(extent) = extents.next_if(|extent| extent.head.offset() < end) {
                let state = self.state(extent.head);
                let failure = match (&result, &request.result) {
                    (Err(PoolError::Log(_)), _) => true,
                    (_, Err(_)) => true,
                    (_, Ok(())) => false,
                };
                let kept = if failure {
                    self.counters.write_errors.add(1);
                    false
                } else {
                    written += extent.pages as usize;
                    self.counters.pages_written.add(extent.pages as u64);
                    state.clear_dirty();
                    keep(state, extent)
                };
                if !kept {
                    self.wake(extent.head, state.release_shared());
                }
                if let (Ok(()), Err(source)) = (&result, &request.result) {
                    let source = std::io::Error::new(source.kind(), source.to_string());
                    result = Err(PoolError::Write { extent, source });
                }
            }
        }
        if written > 0 {
            self.outage.ends();
        } else if let Err(PoolError::Write { extent, source }) = &result {
            self.outage.begins(*extent, source, begun);
            self.changes_admitted.store(false, Ordering::Release);
        }
        result.map(|()| written)
    }

    /// Takes a changed extent's latch without waiting, stamps its checksum, and leaves it latched shared.
    fn latch_for_writing(&self, extent: Extent, lsn: &mut Lsn) -> bool {
        let state = self.state(extent.head);
        let now = state.load();
        let free = now.is_marked() || now.is_unlocked();
        if !free || !now.is_dirty() || !state.try_exclusive(now) || !self.is_still_resident(extent) {
            return false;
        }
        // SAFETY: the latch is held exclusively.
        let bytes = unsafe { self.bytes_mut(extent) };
        stamp_checksum(bytes);
        *lsn = (*lsn).max(PageHeader::read(bytes).lsn);
        // The version stays: optimistic readers never look at the checksum, and nothing else has changed.
        self.wake(extent.head, state.downgrade(false));
        true
    }

    /// One request for each run of neighbours.
    fn requests(&self, extents: &[Extent]) -> Vec<Request> {
        let mut requests: Vec<Request> = Vec::with_capacity(extents.len());
        for extent in extents {
            match requests.last_mut() {
                Some(last)
                    if last.offset + last.bytes as u64 == extent.head.offset()
                        && last.bytes + extent.bytes() <= WRITE_BYTES_MAX =>
                {
                    last.bytes += extent.bytes();
                }
                _ => requests.push(Request {
                    operation: Operation::Write,
                    offset: extent.head.offset(),
                    address: self.address(extent.head),
                    bytes: extent.bytes(),
                    result: Ok(()),
                }),
            }
        }
        requests
    }

    /// Gives the memory of exclusively latched, unchanged extents back.
    fn drop_all(&self, mut victims: Vec<Extent>) -> usize {
        if victims.is_empty() {
            return 0;
        }
        victims.sort_unstable();
        self.split_huge_pages(&victims);
        let mut ranges: Vec<PageRange> = Vec::with_capacity(victims.len());
        for extent in &victims {
            let address = self.address(extent.head);
            match ranges.last_mut() {
                Some(last) if last.address.wrapping_add(last.bytes) == address => {
                    last.bytes += extent.bytes();
                }
                _ => ranges.push(PageRange { address, bytes: extent.bytes() }),
            }
        }
        // SAFETY: all are latched exclusively by this thread, which holds no reference into them.
        let released = unsafe { self.release(&ranges) };
        if released.is_err() {
            // What the kernel did release reads as zeroes now, so nothing may be trusted.
            victims.iter().for_each(|extent| self.drop_memory(*extent));
        }
        let mut pages = 0;
        for extent in &victims {
            self.resident.remove(extent.head);
            self.budget.give_back(extent.pages as usize);
            pages += extent.pages as usize;
            self.wake(extent.head, self.state(extent.head).release_exclusive_evicted());
        }
        self.counters.pages_evicted.add(pages as u64);
        pages
    }

    /// The extents in memory that differ from storage, in ascending order.
    pub(crate) fn changed_extents(&self) -> Vec<Extent> {
        let mut changed = Vec::new();
        self.resident.for_each(|extent| {
            if self.state(extent.head).load().is_dirty() {
                changed.push(extent);
            }
        });
        changed.sort_unstable();
        changed
    }

    /// Writes everything that differs from storage. The caller sees to it that there are no guards and that
    /// the background evictor pauses.
    ///
    /// # Errors
    /// If something cannot be written, or is latched all the same: its guard was leaked.
    pub(crate) fn flush(&self) -> Result<(), PoolError> {
        for batch in self.changed_extents().chunks(BATCH_PAGES_MAX) {
            self.write_back(batch.to_vec(), |_, _| false)?;
        }
        match self.changed_extents().first() {
            Some(extent) => Err(PoolError::Latched { extent: *extent }),
            None => Ok(()),
        }
    }
}

/// The thread that keeps free pages ready.
pub(crate) struct Evictor {
    core: Arc<Core>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Evictor {
    /// # Errors
    /// If the system has no room for another thread.
    pub(crate) fn start(core: Arc<Core>) -> Result<Self, std::io::Error> {
        let shared = core.clone();
        let thread =
            thread::Builder::new().name("vellum-evictor".into()).spawn(move || Self::run(&shared))?;
        Ok(Self { core, thread: Some(thread) })
    }

    fn run(core: &Core) {
        let (mut scheduler, mut prefaulter) = (HugePageScheduler::new(core), Prefaulter::new());
        loop {
            let woken = core.budget.sleep_until_low(scheduler.patience(core));
            core.release_strays();
            match woken {
                Woken::Stopped => return,
                Woken::Idle => scheduler.run(core),
                Woken::Asked => prefaulter.run(core),
                Woken::Low => {
                    scheduler.disturbed(core);
                    prefaulter.release(core);
                    Self::make_room(core);
                }
            }
        }
    }

    fn make_room(core: &Core) {
        let mut pause = Duration::from_millis(1);
        while core.budget.wants_more() && !core.budget.is_stopped() {
            let outcome = {
                let _working = lock(&core.background);
                // What is unchanged stays for those who read.
                if core.outage.is_recent() { Ok(0) } else { core.evict(core.batch_pages()) }
            };
            // An error is counted, and found again by whoever needs the page's room.
            if matches!(outcome, Ok(1..)) {
                pause = Duration::from_millis(1);
            } else if core.budget.pause(pause) {
                pause = (pause * 2).min(PAUSE_MAX);
            } else {
                return;
            }
        }
    }
}

impl Drop for Evictor {
    fn drop(&mut self) {
        self.core.budget.stop();
        if let Some(thread) = self.thread.take() {
            // It cannot panic but by a broken invariant, of which the test that broke it should hear.
            let ended = thread.join();
            debug_assert!(ended.is_ok() || thread::panicking(), "the evictor panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Pool, PoolOptions};
    use std::sync::Arc;
    use vellum_base::{Extent, PageId, PageKind};
    use vellum_vm::SimulatedFile;

    fn filled(pool: &Pool, pages: u32, value: u8) -> Extent {
        let mut guard = pool.allocate(pages, PageKind::USER).unwrap();
        guard.payload_mut().fill(value);
        guard.keep().extent()
    }

    /// Between the moment when the clock finds an extent and the moment when it is latched, it is freed, and
    /// shorter ones take its place.
    #[test]
    fn an_extent_that_was_replaced_since_it_was_found_is_left_alone() {
        for dirty in [false, true] {
            let options = PoolOptions::default()
                .pool_bytes(64 * 4096)
                .capacity_bytes(1 << 24)
                .background_eviction(false);
            let mut pool = Pool::create_on(Arc::new(SimulatedFile::new(1)), &options).unwrap();
            let old = filled(&pool, 3, 1);
            pool.checkpoint().unwrap();
            if dirty {
                pool.exclusive(old).unwrap().payload_mut().fill(2);
            }
            // The next free page is one of these, so that the extent's place is taken by three single ones.
            let found = pool.core().gather(3, |_| true);
            assert_eq!(found, [old]);
            pool.exclusive(old).unwrap().free();
            let mut singles = Vec::new();
            while !(old.head.0..old.end().0).all(|page| singles.contains(&Extent::page(PageId(page)))) {
                assert!(singles.len() < 20, "the place is not taken");
                singles.push(filled(&pool, 1, 3));
            }
            if !dirty {
                pool.checkpoint().unwrap();
            }
            // The clock has passed the new ones as well.
            let head = pool.core().state(old.head);
            assert!(head.load().is_marked() || head.try_mark(head.load()));
            assert_eq!(head.load().is_dirty(), dirty);
            let resident = pool.statistics().pages_resident;
            let written = pool.statistics().pages_written;
            // One of them is held, as its owner may.
            let held = pool.exclusive(Extent::page(PageId(old.head.0 + 1))).unwrap();
            assert_eq!(pool.core().evict_these(found).unwrap(), 0);
            assert!(held.payload().iter().all(|byte| *byte == 3), "memory of another extent was released");
            drop(held);
            assert_eq!(pool.statistics().pages_resident, resident);
            assert_eq!(pool.statistics().pages_written, written);
            for single in singles {
                assert!(pool.shared(single).unwrap().payload().iter().all(|byte| *byte == 3));
            }
        }
    }
}
