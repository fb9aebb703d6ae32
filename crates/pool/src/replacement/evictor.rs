//! Making room: the mechanism of replacement. `clock` chooses the pages.
//!
//! A batch goes as follows. The clock names candidates. The dirty ones are written (see `write_back`). Then all are
//! latched exclusively, released to the kernel in one call, taken out of the resident set and unlatched. Pages that
//! cannot be latched at once are skipped: eviction waits for no latch, so a thread that needs room may hold latches.

use crate::{
    change_log::ChangeLog,
    error::PoolError,
    file::outage::Outage,
    page::state::Word,
    primitive::{Mutex, MutexGuard, lock},
    replacement::{
        clock::Clock,
        resident_pages::ResidentPages,
        write_back::{Written, write_back},
    },
};
use std::time::Duration;
use vellum_base::primitive::thread;
use vellum_base::{Extent, Lsn};

/// The most pages that one batch evicts; the kernel takes up to 1024 ranges in a call.
const BATCH_PAGES_MAX: usize = 512;
/// The most pages that are written to find out whether writes work again.
const ATTEMPT_PAGES: usize = 8;
/// How many slots of the resident set a thread that must not wait examines.
const SLOTS_AT_ONCE_MAX: usize = 8192;
/// How often a thread tries to make room without success before it gives up; after the first few tries it sleeps a
/// millisecond each time.
const FRUITLESS_TRIES_MAX: u32 = 1000;

/// Keeps the pages in memory within the limit.
pub(crate) struct Evictor {
    pub(crate) pages: ResidentPages,
    clock: Clock,
    /// Locked by the background thread while it evicts, and by a thread that wants it to pause.
    working: Mutex<()>,
}

impl Evictor {
    pub(crate) fn new(pages: ResidentPages) -> Self {
        Self { pages, clock: Clock::default(), working: Mutex::new(()) }
    }

    /// The log of page changes, if there is one.
    #[inline]
    pub(crate) fn log(&self) -> Option<&dyn ChangeLog> {
        self.pages.storage.log()
    }

    /// Keeps the background thread from evicting.
    pub(crate) fn pause(&self) -> MutexGuard<'_, ()> {
        lock(&self.working)
    }

    /// How many pages one batch should evict: a small part of a small pool.
    fn batch_pages(&self) -> usize {
        (self.pages.budget.limit() / 8).clamp(1, BATCH_PAGES_MAX)
    }

    /// Reserves the memory of an extent as long as it is wanted, evicting other extents if necessary; false, and nothing is
    /// reserved, if it no longer is. `complete_reads` completes asynchronous reads that are over, and returns how many: their
    /// pages cannot be evicted before that, and their owners may not look for a long time.
    pub(crate) fn reserve_while(
        &self,
        extent: Extent,
        complete_reads: impl Fn() -> usize,
        is_wanted: impl Fn() -> bool,
    ) -> Result<bool, PoolError> {
        let wanted_pages = extent.pages as usize;
        let pool_pages = self.pages.budget.limit();
        if wanted_pages > pool_pages {
            return Err(PoolError::LargerThanPool { extent, pool_pages });
        }
        let mut fruitless = 0;
        while is_wanted() {
            if self.pages.budget.try_reserve(wanted_pages) {
                return Ok(true);
            }
            match self.evict_batch() {
                Ok(evicted) if evicted > 0 => fruitless = 0,
                _ if complete_reads() > 0 => {}
                // Write errors are reported once nothing clean is left to evict instead.
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
        Ok(false)
    }

    /// Evicts pages for an extent that is going to be written to. Leaves a little to readers: if no page can be written
    /// back, they have that and the unchanged pages.
    pub(crate) fn make_room_for_new(&self, extent: Extent) -> Result<(), PoolError> {
        let (pages, budget) = (extent.pages as usize, &self.pages.budget);
        while pages <= budget.limit() && budget.is_scarce(pages) {
            let outcome = self.evict_batch();
            if let Some(error) = self.outage().error() {
                return Err(error);
            }
            if !matches!(outcome, Ok(1..)) {
                break;
            }
        }
        Ok(())
    }

    /// Reserves this many pages without waiting for anything: if there is no room, clean pages are evicted, and dirty
    /// ones are left to the background evictor.
    pub(crate) fn reserve_at_once(&self, pages: usize) -> bool {
        if self.pages.budget.try_reserve(pages) {
            return true;
        }
        let found = if self.outage().lasts() {
            self.gather(pages, SLOTS_AT_ONCE_MAX, |now| !now.is_dirty())
        } else {
            self.gather(self.batch_pages(), SLOTS_AT_ONCE_MAX, |_| true)
        };
        self.evict_clean(found) > 0 && self.pages.budget.try_reserve(pages)
    }

    /// Evicts those of the extents that are still there, unused and unchanged, and can be latched at once.
    pub(crate) fn evict_clean(&self, mut candidates: Vec<Extent>) -> usize {
        candidates.retain(|extent| self.pages.latch_clean(*extent));
        self.pages.evict_latched(candidates)
    }

    /// Evicts about a batch of pages and returns how many were evicted. An error means that some pages could not be
    /// written; if others have been evicted even so, their number is returned instead.
    ///
    /// While nothing can be written, writes are tried rarely and with few pages, and one unchanged extent is evicted at
    /// a time: there may be few of them, and readers need some of them at once.
    pub(crate) fn evict_batch(&self) -> Result<usize, PoolError> {
        let target = self.batch_pages();
        if !self.outage().lasts() {
            return self.evict(self.gather(target, self.two_rounds(), |_| true));
        }
        if self.outage().is_recent() {
            let evicted = self.evict_clean(self.gather(1, self.two_rounds(), |now| !now.is_dirty()));
            if evicted > 0 {
                return Ok(evicted);
            }
        }
        self.evict(self.gather(target.min(ATTEMPT_PAGES), self.two_rounds(), |_| true))
    }

    /// Checks that changes are allowed; called before each change.
    ///
    /// # Errors
    /// If the file is open for reading only or can never be closed cleanly, its superblocks cannot be written, or pages
    /// cannot be written, so that changes could not leave memory.
    #[inline]
    pub(crate) fn admit_changes(&self) -> Result<(), PoolError> {
        if self.pages.storage.admits_changes() { Ok(()) } else { self.admit_changes_first() }
    }

    #[cold]
    fn admit_changes_first(&self) -> Result<(), PoolError> {
        self.pages.storage.refuse_if_poisoned()?;
        if self.outage().lasts() {
            self.try_to_write()?;
        }
        self.log().map_or(Ok(()), ChangeLog::admit).map_err(PoolError::LogRefuses)?;
        self.pages.storage.admit_changes()
    }

    /// Tests whether pages can be written again, unless it is too early for that.
    ///
    /// # Errors
    /// The last error, if they cannot; that of the log, if it has ended.
    pub(crate) fn try_to_write(&self) -> Result<(), PoolError> {
        if !self.outage().is_recent() {
            let dirty = self.gather(ATTEMPT_PAGES, self.two_rounds(), |now| now.is_dirty());
            if dirty.is_empty() {
                self.outage().ends();
            }
            // The line below returns other errors. This one does not pass.
            if let Err(ended @ PoolError::Log(_)) = self.write_durably(dirty) {
                return Err(ended);
            }
        }
        self.outage().error().map_or(Ok(()), Err)
    }

    /// Whether pages can be written.
    pub(crate) fn outage(&self) -> &Outage {
        &self.pages.storage.outage
    }

    /// Two rounds suffice: the first marks, the second finds the marks.
    fn two_rounds(&self) -> usize {
        2 * self.pages.set.slots()
    }

    fn gather(&self, target: usize, slots_max: usize, wanted: impl Fn(Word) -> bool) -> Vec<Extent> {
        self.clock.advance(&self.pages.set, &self.pages.table, target, slots_max, wanted)
    }

    /// Evicts those of the extents that are still there and unused and can be latched at once. If none can be written
    /// before the log is durable, waits for the log first.
    fn evict(&self, candidates: Vec<Extent>) -> Result<usize, PoolError> {
        let (evicted, written) = self.evict_durable(candidates);
        if written.waiting.is_empty() {
            return if evicted > 0 { Ok(evicted) } else { written.result.map(|()| 0) };
        }
        if evicted > 0 {
            self.log().inspect(|log| log.request_durable());
            return Ok(evicted);
        }
        written.result?;
        self.wait_for_log(written.lsn, written.waiting.len())?;
        match self.evict_durable(written.waiting) {
            (0, written) => written.result.map(|()| 0),
            (evicted, _) => Ok(evicted),
        }
    }

    /// [`evict`](Self::evict) without the extents whose log records are not durable.
    fn evict_durable(&self, candidates: Vec<Extent>) -> (usize, Written) {
        let is_dirty = |extent: &Extent| self.pages.table.state(extent.head).load().is_dirty();
        let (dirty, clean): (Vec<_>, Vec<_>) = candidates.into_iter().partition(is_dirty);
        let mut victims = Vec::with_capacity(dirty.len() + clean.len());
        let written = write_back(&self.pages, dirty, |state, extent| {
            let upgraded = state.try_upgrade_shared();
            if upgraded && !self.pages.is_in_flight(extent) {
                victims.push(extent);
            }
            upgraded
        });
        // If nothing could be written, unchanged pages stay for readers; see `evict_batch`.
        if written.result.is_ok() || !self.outage().lasts() {
            victims.extend(clean.into_iter().filter(|extent| self.pages.latch_clean(*extent)));
        }
        (self.pages.evict_latched(victims), written)
    }

    /// Waits, on behalf of this many extents, until the record at `lsn` is durable.
    fn wait_for_log(&self, lsn: Lsn, extents: usize) -> Result<(), PoolError> {
        let Some(logged) = self.pages.storage.logged() else { return Ok(()) };
        logged.wait_for(lsn).inspect_err(|_| self.pages.table.counters.write_errors.add(extents as u64))
    }

    /// Writes changed extents, after waiting for the log if necessary. Latched extents are left out.
    fn write_durably(&self, dirty: Vec<Extent>) -> Result<(), PoolError> {
        let written = write_back(&self.pages, dirty, |_, _| false);
        written.result?;
        if written.waiting.is_empty() {
            return Ok(());
        }
        self.wait_for_log(written.lsn, written.waiting.len())?;
        write_back(&self.pages, written.waiting, |_, _| false).result
    }

    /// Writes everything that differs from storage. The caller makes sure that there are no guards and that the
    /// background thread pauses.
    ///
    /// # Errors
    /// If something cannot be written, or is still latched: its guard was leaked.
    pub(crate) fn flush(&self) -> Result<(), PoolError> {
        for batch in self.pages.changed().chunks(BATCH_PAGES_MAX) {
            self.write_durably(batch.to_vec())?;
        }
        match self.pages.changed().first() {
            Some(extent) => Err(PoolError::Latched { extent: *extent }),
            None => Ok(()),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
