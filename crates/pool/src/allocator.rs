//! Allocates extents on storage and in memory, and frees them, at once or later.
//!
//! # Invariants
//! - A page becomes or ceases to be a head only under its exclusive latch (see `space`).
//! - An extent is published when its head is latched and nothing of its pages is left in memory.
//!
//! # Lock order
//! Latches of pages, in the order in which the structure on them prescribes; the list of pending frees, under which
//! latches are only tried; then the locks of `file::storage`.

use crate::{
    error::{Miss, PoolError},
    file::storage::Storage,
    file::superblock::State,
    io::page_io::PageIo,
    page::state::Want,
    page_table::PageTable,
    pager::Begun,
    plant::Plant,
    primitive::{Mutex, Ordering, fence, lock, try_lock},
    replacement::{evictor::Evictor, resident_pages::ResidentPages},
};
use vellum_base::{Extent, Lsn, PageHeader, PageId, PageKind};

/// How often an extent is waited for that another thread can hold only by a stale reference, or to copy it, and not for long.
const WAITS_MAX: u32 = 1000;

/// What becomes of memory that a newly allocated page still has from its last life.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// The memory of a single page is used again: the caller has reserved memory and wants zeroes in it.
    Keep,
    /// The memory is released: the extent is not brought into memory now.
    Drop,
}

/// Allocates and frees extents. It owns all layers below: what a guard needs, it reaches from here.
pub(crate) struct Allocator {
    pub(crate) io: PageIo,
    /// Extents that nothing refers to any more, but a thread still reads, and the records that free them.
    pending_frees: Mutex<Vec<(Extent, Lsn)>>,
}

impl Allocator {
    pub(crate) fn new(io: PageIo) -> Self {
        Self { io, pending_frees: Mutex::new(Vec::new()) }
    }

    #[inline]
    pub(crate) fn evictor(&self) -> &Evictor {
        &self.io.faults.evictor
    }

    #[inline]
    pub(crate) fn pages(&self) -> &ResidentPages {
        &self.evictor().pages
    }

    #[inline]
    pub(crate) fn table(&self) -> &PageTable {
        &self.pages().table
    }

    #[inline]
    pub(crate) fn storage(&self) -> &Storage {
        &self.pages().storage
    }

    /// Allocates an extent on storage and in memory. Its head is latched exclusively, its contents are
    /// zeroes behind a fresh header.
    pub(crate) fn allocate(&self, pages: u32, kind: PageKind) -> Result<Extent, PoolError> {
        self.evictor().admit_changes()?;
        self.evictor().reserve_for_new(Extent { head: PageId(0), pages })?;
        let claimed = self.claim(pages, Memory::Keep);
        let extent = claimed.inspect_err(|_| self.pages().budget.give_back(pages as usize))?;
        self.admit_new(extent, kind)?;
        Ok(extent)
    }

    /// [`allocate`](Self::allocate) before page `limit`; none if no room is free there.
    pub(crate) fn allocate_before(
        &self,
        limit: PageId,
        pages: u32,
        kind: PageKind,
    ) -> Result<Option<Extent>, PoolError> {
        self.evictor().admit_changes()?;
        self.evictor().reserve_for_new(Extent { head: PageId(0), pages })?;
        let Some(extent) = self.storage().claim_before(limit.0, pages) else {
            self.pages().budget.give_back(pages as usize);
            return Ok(None);
        };
        self.admit_new(extent, kind)?;
        Ok(Some(extent))
    }

    /// Forgets the free pages at the end of the file, and drops what is left in memory of them: they count as never used.
    pub(crate) fn trim(&self) {
        self.free_pending();
        if let Some(logged) = self.storage().logged() {
            logged.release_durable(&self.storage().space);
        }
        for page in self.storage().space.trim().map(PageId) {
            // One that is latched is being read by a stale reference, or allocated again.
            if let Some(before) = self.table().try_latch(page) {
                match !before.is_evicted() && self.storage().space.is_free(page) {
                    true => self.forget(Extent::page(page)),
                    false if before.is_evicted() => self.table().unlatch_evicted(page),
                    false => self.table().unlatch(page, false),
                }
            }
        }
    }

    /// Claims room on storage for an extent. If it is not to be brought into memory now, what was fetched ahead for it
    /// is released.
    pub(crate) fn claim(&self, pages: u32, memory: Memory) -> Result<Extent, PoolError> {
        let mut prefaulted = 0..0;
        let claimed = self.storage().allocate(pages, |end| prefaulted = self.pages().window.leave(end));
        match memory {
            Memory::Keep => self.pages().budget.give_back(prefaulted.count()),
            Memory::Drop => self.pages().release_prefaulted(prefaulted),
        }
        claimed
    }

    /// Makes what was claimed an extent that is in memory: see [`allocate`](Self::allocate). The caller has reserved
    /// its memory.
    ///
    /// # Errors
    /// If the system has no memory for it; it is free again then, and so is what was reserved.
    pub(crate) fn admit_new(&self, extent: Extent, kind: PageKind) -> Result<(), PoolError> {
        self.publish(extent, Memory::Keep);
        let table = self.table();
        if let Err(error) = table.supply_zeroes(extent) {
            table.drop_memory(extent);
            self.pages().budget.give_back(extent.pages as usize);
            self.storage().space.free(extent);
            table.unlatch_evicted(extent.head);
            return Err(error.into());
        }
        // SAFETY: the head's latch is held exclusively, and the other pages are reachable only through it.
        let bytes = unsafe { table.bytes_mut(extent) };
        PageHeader { extent, lsn: self.storage().lsn_past_log(), kind }.write(bytes);
        self.pages().set.insert(extent);
        if self.pages().window.is_to_be_asked(extent.end().0) {
            self.pages().budget.ask_for_memory();
        }
        Ok(())
    }

    /// Latches an allocated page exclusively, whose contents are zeroes behind a fresh header then, whatever they were.
    ///
    /// # Errors
    /// If it is not allocated, or there is no memory.
    pub(crate) fn latch_blank(&self, page: PageId, kind: PageKind) -> Result<(), PoolError> {
        let (extent, table) = (Extent::page(page), self.table());
        loop {
            let reserve = |extent| self.evictor().reserve(extent).map(|()| true);
            if self.io.faults.enter(&Miss::certain(extent), reserve)? == Begun::Reading {
                return self.admit_blank(page, kind);
            }
            let state = table.state(page);
            let now = state.load();
            if (now.is_unlocked() || now.is_marked()) && state.try_exclusive(now) {
                if self.storage().is_allocated(extent) {
                    break;
                }
                table.unlatch(page, false);
                return Err(PoolError::not_allocated(extent));
            }
            self.io.wait(page, Want::Exclusive);
        }
        self.make_blank(page, kind);
        Ok(())
    }

    /// Makes a page that was [entered](crate::io::fault::Faults::enter), and not read, zeroes behind a fresh header. It stays latched, unless
    /// there is an error.
    ///
    /// # Errors
    /// If there is no memory.
    pub(crate) fn admit_blank(&self, page: PageId, kind: PageKind) -> Result<(), PoolError> {
        let (extent, table) = (Extent::page(page), self.table());
        if let Err(error) = table.supply_zeroes(extent) {
            table.drop_memory(extent);
            self.pages().budget.give_back(1);
            table.unlatch_evicted(page);
            return Err(error.into());
        }
        self.pages().set.insert(extent);
        self.make_blank(page, kind);
        Ok(())
    }

    fn make_blank(&self, page: PageId, kind: PageKind) {
        let extent = Extent::page(page);
        // SAFETY: the latch is held exclusively.
        let bytes = unsafe { self.table().bytes_mut(extent) };
        bytes.fill(0);
        PageHeader { extent, lsn: Lsn(0), kind }.write(bytes);
    }

    /// Drops an extent from memory that the caller has latched exclusively, with what was changed in it, and releases the
    /// latch.
    pub(crate) fn forget(&self, extent: Extent) {
        self.table().drop_memory(extent);
        self.pages().remove(extent.head);
        self.table().unlatch_evicted(extent.head);
    }

    /// Makes what was claimed an extent that is not in memory, and unlatched.
    pub(crate) fn admit_on_storage(&self, extent: Extent) {
        self.publish(extent, Memory::Drop);
        self.table().unlatch_evicted(extent.head);
    }

    /// Allocates the extent of the space map, which belongs to the pool itself.
    pub(crate) fn allocate_space_map(&self) -> Result<Extent, PoolError> {
        let mut prefaulted = 0..0;
        let extent = self.storage().allocate_space_map(|end| prefaulted = self.pages().window.leave(end))?;
        self.pages().release_prefaulted(prefaulted);
        self.publish(extent, Memory::Drop);
        self.storage().own_space_map(extent);
        self.table().unlatch_evicted(extent.head);
        Ok(extent)
    }

    /// Latches the head of a newly claimed extent, drops what is left in memory of each of its pages from
    /// their last life, and publishes it. See `space` on why nothing new can come meanwhile.
    fn publish(&self, extent: Extent, memory: Memory) {
        let table = self.table();
        // Before the latch is taken: a thread that redoes pages may wait for it.
        self.io.faults.on_demand.forget(extent);
        if extent.pages > 1 {
            // SeqCst: orders the claim on storage before the look at pages that are not latched here; see
            // `replacement::strays`.
            fence(Ordering::SeqCst);
        }
        for page in (extent.head.0..extent.end().0).map(PageId) {
            if page != extent.head && table.state(page).load().is_evicted() {
                continue;
            }
            let before = loop {
                match table.try_latch(page) {
                    Some(before) => break before,
                    None => self.io.wait(page, Want::Exclusive),
                }
            };
            if !before.is_evicted()
                && let Some(stale) = self.pages().remove(page)
            {
                table.state(page).clear_dirty();
                if memory == Memory::Keep && extent.pages == 1 && stale.pages == 1 {
                    // Its memory is used again as it is: no trip to the kernel.
                    // SAFETY: the latch is held exclusively.
                    unsafe { table.bytes_mut(stale) }.fill(0);
                } else {
                    table.drop_memory(stale);
                }
            }
            if page != extent.head {
                table.unlatch_evicted(page);
            }
        }
        self.storage().space.publish(extent);
    }

    /// The record at `lsn` says that an extent is allocated; zero if none does.
    #[inline]
    pub(crate) fn note_allocated(&self, extent: Extent, lsn: Lsn) {
        if let Some(logged) = self.storage().logged() {
            logged.note(extent, lsn, true);
        }
    }

    /// The record at `lsn` says that an extent is free; zero if none does.
    fn note_freed(&self, extent: Extent, lsn: Lsn) {
        if let Some(logged) = self.storage().logged() {
            logged.note(extent, lsn, false);
        }
    }

    /// Claims room for the map of a checkpoint, and says how many pages it will cover.
    pub(crate) fn claim_map(&self) -> Result<(Extent, u64), PoolError> {
        loop {
            let mut prefaulted = 0..0;
            let claimed = self.storage().claim_map(|end| prefaulted = self.pages().window.leave(end));
            self.pages().release_prefaulted(prefaulted);
            match claimed? {
                (extent, end, true) => return Ok((extent, end)),
                (extent, ..) => self.storage().space.unclaim(extent.head.0..extent.end().0),
            }
        }
    }

    /// Makes the superblocks name a map that was written: see [`Storage::name_map`]. The place of the one before is free from
    /// now on, unless a superblock may name it still.
    pub(crate) fn name_map(
        &self,
        extent: Extent,
        end: u64,
        places: (Lsn, Lsn),
        state: State,
    ) -> Result<(), PoolError> {
        let storage = self.storage();
        let (before, written) = storage.name_map(extent, end, places, state);
        self.publish(extent, Memory::Drop);
        storage.own_space_map(extent);
        self.table().unlatch_evicted(extent.head);
        if let Some(logged) = storage.logged() {
            let mut superseded = lock(&logged.superseded);
            superseded.extend(before);
            if written.is_ok() || logged.is_planted(Plant::NamedMapFreed) {
                superseded.drain(..).for_each(|old| storage.space.unclaim(old.head.0..old.end().0));
            }
        }
        written
    }

    /// Frees an extent whose head the caller has latched exclusively, and releases the latch.
    ///
    /// The memory of a single page stays until the clock finds it, for the next allocation to use. That of
    /// a longer extent goes first, because its pages may be given to others one by one.
    ///
    /// What is not allocated as such stays as it is, and is counted: only a structure that refers to the same
    /// page twice, because it is damaged or its owner errs, asks for that.
    pub(crate) fn free(&self, extent: Extent, lsn: Lsn) {
        self.note_freed(extent, lsn);
        self.free_noted(extent, lsn);
    }

    /// [`free`](Self::free), after what the record says has been noted.
    fn free_noted(&self, extent: Extent, lsn: Lsn) {
        let (table, storage) = (self.table(), self.storage());
        if !storage.is_allocated(extent) {
            table.counters.frees_refused.add(1);
            table.unlatch(extent.head, true);
        } else if extent.pages == 1 {
            storage.free(extent, lsn);
            table.wake(extent.head, table.state(extent.head).release_exclusive_clean());
        } else {
            table.drop_memory(extent);
            self.pages().remove(extent.head);
            storage.free(extent, lsn);
            table.unlatch_evicted(extent.head);
        }
    }

    /// Frees an extent to which nothing refers any more, now or when its last reader has gone.
    pub(crate) fn discard(&self, extent: Extent, lsn: Lsn) -> Result<(), PoolError> {
        // The change that took the last reference away was admitted, and this is a part of it.
        self.storage().mark_in_use()?;
        // The bounds are checked before the state is looked at. An extent that waits to be freed has no owner any more:
        // the second of two frees would hit the extent that is given its place between them.
        let is_pending = lock(&self.pending_frees).iter().any(|(pending, _)| *pending == extent);
        if is_pending || !self.storage().is_allocated(extent) {
            return Err(PoolError::not_allocated(extent));
        }
        self.note_freed(extent, lsn);
        self.free_pending();
        if !self.try_discard(extent, lsn) {
            lock(&self.pending_frees).push((extent, lsn));
        }
        Ok(())
    }

    /// Waits until an extent has been freed that was discarded. The evictor may be writing it, or another thread be copying it.
    pub(crate) fn await_discarded(&self, extent: Extent) {
        for _ in 0..WAITS_MAX {
            if !lock(&self.pending_frees).iter().any(|(pending, _)| *pending == extent) {
                return;
            }
            self.io.wait(extent.head, Want::Exclusive);
            self.free_pending();
        }
    }

    /// Frees an extent of which only stale references are left. The evictor may be writing it, which is waited for.
    pub(crate) fn discard_waiting(&self, extent: Extent) {
        for _ in 0..WAITS_MAX {
            if self.try_discard(extent, Lsn(0)) {
                return;
            }
            self.io.wait(extent.head, Want::Exclusive);
        }
        // The extent stays allocated until it can be freed.
        let _ = self.discard(extent, Lsn(0));
    }

    /// Frees what had to wait, as far as its readers have gone.
    pub(crate) fn free_pending(&self) {
        // A thread that holds the lock does the same.
        if let Some(mut pending) = try_lock(&self.pending_frees) {
            pending.retain(|(extent, lsn)| !self.try_discard(*extent, *lsn));
        }
    }

    /// Shows all that is allocated, without what only waits until it can be freed.
    pub(crate) fn for_each_extent(&self, mut visit: impl FnMut(Extent)) {
        self.free_pending();
        let waiting = lock(&self.pending_frees).clone();
        self.storage().space.for_each(|extent| {
            if !waiting.iter().any(|(waiting, _)| *waiting == extent) {
                visit(extent);
            }
        });
    }

    /// Frees an allocated extent unless a thread holds it.
    fn try_discard(&self, extent: Extent, lsn: Lsn) -> bool {
        let (table, storage) = (self.table(), self.storage());
        let Some(before) = table.try_latch(extent.head) else { return false };
        if before.is_evicted() {
            if !storage.is_allocated(extent) || !storage.free(extent, lsn) {
                table.counters.frees_refused.add(1);
            }
            table.unlatch_evicted(extent.head);
        } else {
            self.free_noted(extent, lsn);
        }
        true
    }
}
