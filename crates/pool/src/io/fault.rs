//! The way into memory. Every page that is read takes it, whether a thread waits for the read or not:
//! [`enter`](Faults::enter), then the read, then [`admit`](Faults::admit). After a crash, changes that a page lacks are
//! [redone](crate::io::on_demand) before it is entered.
//!
//! # Invariants
//! - Nothing is read into memory that the space map does not confirm, under the latch, as exactly that extent.
//! - A page that is being read is latched exclusively and counted in the budget.
//! - At most a quarter of the pool is being read asynchronously, so that the pages that refer to them stay in memory.

use crate::{
    error::{Fault, Miss, PoolError},
    io::on_demand::OnDemand,
    limits::EXTENT_PAGES_MAX,
    page::state::Word,
    page_table::PageTable,
    pager::Begun,
    replacement::evictor::Evictor,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use vellum_base::{Extent, verify_header};

/// Brings extents into memory.
pub(crate) struct Faults {
    pub(crate) evictor: Evictor,
    pub(crate) on_demand: OnDemand,
    /// How many pages are being read asynchronously.
    reading_pages: AtomicUsize,
}

impl Faults {
    pub(crate) fn new(evictor: Evictor) -> Self {
        Self { evictor, on_demand: OnDemand::new(), reading_pages: AtomicUsize::new(0) }
    }

    #[inline]
    pub(crate) fn table(&self) -> &PageTable {
        &self.evictor.pages.table
    }

    /// Refuses extents that cannot be in this file, so that the state of the others may be read.
    pub(crate) fn check_bounds(&self, extent: Extent) -> Result<(), PoolError> {
        let end = extent.head.0.saturating_add(extent.pages as u64);
        if extent.pages == 0 || end > self.table().capacity_pages {
            return Err(PoolError::not_allocated(extent));
        }
        if extent.pages > EXTENT_PAGES_MAX { Err(self.too_large(extent)) } else { Ok(()) }
    }

    fn too_large(&self, extent: Extent) -> PoolError {
        PoolError::LargerThanPool { extent, pool_pages: self.evictor.pages.budget.limit() }
    }

    /// Latches a missing extent exclusively, makes sure that it is allocated, and lets `reserve` reserve its memory. If
    /// the result is [`Begun::Reading`], the caller reads it; otherwise nothing has happened.
    ///
    /// # Errors
    /// If it is not allocated and the reference is still valid, and the errors of `reserve`.
    pub(crate) fn enter(
        &self,
        miss: &Miss,
        reserve: impl FnOnce(Extent) -> Result<bool, PoolError>,
    ) -> Result<Begun, PoolError> {
        let extent = miss.extent;
        self.check_bounds(extent)?;
        if self.prepare(miss)? { self.latch_missing(miss, reserve) } else { Ok(Begun::Ready) }
    }

    /// Has the changes that a missing extent lacks redone; false if that fails and the reference is stale. An extent
    /// without an address lacks nothing.
    ///
    /// # Errors
    /// If it fails, and the reference is still valid.
    pub(crate) fn prepare(&self, miss: &Miss) -> Result<bool, PoolError> {
        match self.on_demand.before(miss.extent) {
            Ok(()) => Ok(true),
            Err(error) if self.still_refers(miss) => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// [`enter`](Self::enter) for an extent that lacks no changes, or is about to be redone.
    ///
    /// # Errors
    /// As for `enter`.
    pub(crate) fn latch_missing(
        &self,
        miss: &Miss,
        reserve: impl FnOnce(Extent) -> Result<bool, PoolError>,
    ) -> Result<Begun, PoolError> {
        let extent = miss.extent;
        let state = self.table().state(extent.head);
        let now = state.load();
        if !now.is_evicted() {
            return Ok(if now.is_exclusive() { Begun::Latched } else { Begun::Ready });
        }
        if !state.try_exclusive(now) {
            return Ok(Begun::Latched);
        }
        if !self.evictor.pages.storage.is_allocated(extent) {
            self.table().unlatch_evicted(extent.head);
            let stale = !self.still_refers(miss);
            return if stale { Ok(Begun::Ready) } else { Err(PoolError::not_allocated(extent)) };
        }
        let reserved = reserve(extent);
        if let Ok(true) = reserved {
            self.table().counters.misses.add(1);
            return Ok(Begun::Reading);
        }
        self.table().unlatch_evicted(extent.head);
        reserved.map(|_| Begun::NoRoom)
    }

    /// [`latch_missing`](Self::latch_missing) of an extent for which memory has been reserved before: the thread may wait for that.
    ///
    /// While it waits it has no latch. For the evictor may wait for the log, and so for a record that another thread has
    /// reserved; and that thread, before it fills the record, may wait until [all have left](crate::Allocation::discard_now) the extent.
    ///
    /// # Errors
    /// If it is not allocated and the reference is still valid, and if it does not fit into the pool.
    /// `complete_reads` is as for [`Evictor::reserve_while`].
    pub(super) fn latch_reserved(
        &self,
        miss: &Miss,
        complete_reads: impl Fn() -> usize,
    ) -> Result<Begun, PoolError> {
        let (extent, pages) = (miss.extent, &self.evictor.pages);
        // Nothing is evicted because of a stale reference, or for what another thread has begun to read.
        let is_wanted =
            || self.table().state(extent.head).load().is_evicted() && pages.storage.is_allocated(extent);
        loop {
            let has_room = match self.evictor.reserve_while(extent, &complete_reads, is_wanted) {
                Ok(has_room) => has_room,
                Err(_) if !self.still_refers(miss) => return Ok(Begun::Ready),
                Err(_) if !is_wanted() => false,
                Err(error) => return Err(error),
            };
            let begun = self.latch_missing(miss, |_| Ok(has_room));
            if has_room && !matches!(begun, Ok(Begun::Reading)) {
                pages.budget.give_back(extent.pages as usize);
            }
            if !matches!(begun, Ok(Begun::NoRoom)) {
                return begun;
            }
        }
    }

    /// Checks the bytes that were read. The extent is then in memory, or what [`enter`](Self::enter) did is undone. The
    /// latch is released.
    ///
    /// # Errors
    /// If it could not be read, or is damaged.
    pub(crate) fn admit(&self, extent: Extent, read: std::io::Result<()>) -> Result<(), PoolError> {
        self.admit_latched(extent, read)?;
        self.table().unlatch(extent.head, false);
        Ok(())
    }

    /// [`admit`](Self::admit), but the extent stays latched, except on an error.
    ///
    /// # Errors
    /// As for `admit`.
    pub(crate) fn admit_latched(&self, extent: Extent, read: std::io::Result<()>) -> Result<(), PoolError> {
        let (table, pages) = (self.table(), &self.evictor.pages);
        let result = read.map_err(|source| PoolError::Read { extent, source }).and_then(|()| {
            table.counters.pages_read.add(extent.pages as u64);
            // SAFETY: the latch is held exclusively.
            let header = verify_header(unsafe { table.bytes(extent) }, extent);
            header.map_err(|fault| PoolError::Corruption { extent, fault: Fault::Header(fault) })
        });
        if result.is_ok() {
            pages.set.insert(extent);
        } else {
            table.drop_memory(extent);
            pages.budget.give_back(extent.pages as usize);
            table.unlatch_evicted(extent.head);
        }
        result.map(|_| ())
    }

    /// Whether the reference that led to a miss is still valid.
    pub(crate) fn still_refers(&self, miss: &Miss) -> bool {
        miss.referrer.is_none_or(|(page, seen)| {
            page.0 < self.table().capacity_pages && self.table().state(page).validate(Word(seen))
        })
    }

    /// Reserves pages that are about to be read asynchronously, if that is possible at once.
    ///
    /// # Errors
    /// If they will never fit.
    pub(crate) fn reserve_to_read(&self, extent: Extent) -> Result<bool, PoolError> {
        let (pages, limit) = (extent.pages as usize, self.evictor.pages.budget.limit());
        if pages > limit {
            return Err(self.too_large(extent));
        }
        // Relaxed: the number is only a limit, and orders nothing.
        let most = (limit / 4).max(1);
        let reading = self.reading_pages.fetch_add(pages, Ordering::Relaxed);
        // If no other read is under way, anything that fits may be read.
        let reserved = (reading == 0 || reading + pages <= most) && self.evictor.reserve_at_once(pages);
        if !reserved {
            self.reading_pages.fetch_sub(pages, Ordering::Relaxed);
        }
        Ok(reserved)
    }

    /// Notes that this many pages are no longer being read asynchronously.
    pub(crate) fn read_is_over(&self, pages: u32) {
        // Relaxed: as in `reserve_to_read`.
        self.reading_pages.fetch_sub(pages as usize, Ordering::Relaxed);
    }
}
