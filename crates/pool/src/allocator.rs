//! Allocates extents on storage and in memory, and frees them, now or later.
//!
//! # Invariants
//! - A page becomes or ceases to be a head only under its exclusive latch (see `space`).
//! - An extent is published when its head is latched and none of its pages is left in memory.
//!
//! Latches of pages, in the order prescribed by the structure on them; then the list of pending frees, under which
//! latches are only tried; then the locks of `file::storage`.

use crate::{
    change_log::ChangeLog,
    error::{Miss, PoolError},
    file::storage::{Storage, is_full},
    file::superblock::State,
    io::page_io::PageIo,
    page::state::Want,
    page_table::PageTable,
    pager::Begun,
    plant::Plant,
    primitive::{Mutex, Ordering, fence, lock, try_lock},
    replacement::{evictor::Evictor, resident_pages::ResidentPages},
};
use std::sync::OnceLock;
use vellum_base::{Extent, Lsn, PageHeader, PageId, PageKind};

/// How often a thread waits for an extent that another thread can hold only briefly, by a stale reference or to copy
/// it.
const WAITS_MAX: u32 = 1000;

/// What happens to memory that a newly allocated page still has from its last life.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// The memory of a single page is reused: the caller has reserved memory and wants zeroes in it.
    Keep,
    /// The memory is released: the extent is not brought into memory now.
    Drop,
}

/// Allocates and frees extents. It owns all layers below, so a guard reaches everything that it needs from here.
pub(crate) struct Allocator {
    pub(crate) io: PageIo,
    /// Extents to which nothing refers any more but which a thread still reads, and the records that free them.
    pending_frees: Mutex<Vec<(Extent, Lsn)>>,
    /// See [`Pool::make_space_by`](crate::Pool::make_space_by).
    space_maker: OnceLock<SpaceMaker>,
}

/// Frees something in a file that is full: see [`Pool::make_space_by`](crate::Pool::make_space_by).
pub type SpaceMaker = Box<dyn Fn() -> bool + Send + Sync>;

impl Allocator {
    pub(crate) fn new(io: PageIo) -> Self {
        Self { io, pending_frees: Mutex::new(Vec::new()), space_maker: OnceLock::new() }
    }

    /// From now on `maker` makes space.
    pub(crate) fn make_space_by(&self, maker: SpaceMaker) {
        // It is set once.
        let _ = self.space_maker.set(maker);
    }

    /// Has something freed if a claim found no space; the claim is then tried again. The thread holds no latch and no new
    /// page.
    ///
    /// # Errors
    /// The same error, if it is another one, or nothing could be freed.
    #[cold]
    pub(crate) fn make_space(&self, refused: PoolError) -> Result<(), PoolError> {
        let is_for_this = matches!(
            refused,
            PoolError::StorageFull { .. } | PoolError::CapacityExhausted { .. } | PoolError::KeptForUndo
        );
        // What frees may wait for a checkpoint, which would wait for the group.
        let is_in_group = || self.evictor().log().is_some_and(ChangeLog::is_in_group);
        match self.space_maker.get() {
            Some(make) if is_for_this && !is_in_group() && make() => Ok(()),
            _ => Err(refused),
        }
    }

    /// Claims space by `claim`, and [makes some](Self::make_space) if there is none. The thread holds no latch and no new
    /// page.
    pub(crate) fn claim_or_make<T>(
        &self,
        mut claim: impl FnMut() -> Result<T, PoolError>,
    ) -> Result<T, PoolError> {
        loop {
            match claim() {
                Err(refused) => self.make_space(refused)?,
                claimed => return claimed,
            }
        }
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

    /// Allocates an extent on storage and in memory. Its head is latched exclusively, and its contents are zeroes after
    /// a fresh header.
    pub(crate) fn allocate(&self, pages: u32, kind: PageKind) -> Result<Extent, PoolError> {
        self.evictor().admit_changes()?;
        self.io.reserve_for_new(Extent { head: PageId(0), pages })?;
        let claimed = self.claim(pages, Memory::Keep);
        let extent = claimed.inspect_err(|_| self.pages().budget.give_back(pages as usize))?;
        self.admit_new(extent, kind)?;
        Ok(extent)
    }

    /// [`allocate`](Self::allocate) before page `limit`; none if there is no free room.
    pub(crate) fn allocate_before(
        &self,
        limit: PageId,
        pages: u32,
        kind: PageKind,
    ) -> Result<Option<Extent>, PoolError> {
        self.evictor().admit_changes()?;
        self.io.reserve_for_new(Extent { head: PageId(0), pages })?;
        let Some(extent) = self.storage().claim_before(limit.0, pages) else {
            self.pages().budget.give_back(pages as usize);
            return Ok(None);
        };
        self.admit_new(extent, kind)?;
        Ok(Some(extent))
    }

    /// Forgets the free pages at the end of the file, and drops them from memory: they count as never used.
    pub(crate) fn trim(&self) {
        self.free_pending();
        if let Some(logged) = self.storage().logged() {
            logged.release_durable(&self.storage().space);
        }
        for page in self.storage().space.trim().map(PageId) {
            // A latched page is being read by a stale reference, or is allocated again.
            if let Some(before) = self.table().try_latch(page) {
                match !before.is_evicted() && self.storage().space.is_free(page) {
                    true => self.forget(Extent::page(page)),
                    false if before.is_evicted() => self.table().unlatch_evicted(page),
                    false => self.table().unlatch(page, false),
                }
            }
        }
    }

    /// Claims room on storage for an extent. If the extent is not to be brought into memory now, memory that was
    /// fetched ahead for it is released.
    pub(crate) fn claim(&self, pages: u32, memory: Memory) -> Result<Extent, PoolError> {
        let mut prefaulted = 0..0;
        let claimed = self.storage().allocate(pages, |end| prefaulted = self.pages().window.leave(end));
        match memory {
            Memory::Keep => self.pages().budget.give_back(prefaulted.count()),
            Memory::Drop => self.pages().release_prefaulted(prefaulted),
        }
        claimed
    }

    /// Turns claimed room into an extent in memory: see [`allocate`](Self::allocate). The caller has reserved its
    /// memory.
    ///
    /// # Errors
    /// If the system has no memory for it; the extent is then free again, and so is the reserved memory.
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

    /// Latches an allocated page exclusively, and makes it zeroes after a fresh header, whatever it held.
    ///
    /// # Errors
    /// If the page is not allocated, or there is no memory.
    pub(crate) fn latch_blank(&self, page: PageId, kind: PageKind) -> Result<(), PoolError> {
        let (extent, table) = (Extent::page(page), self.table());
        loop {
            let (faults, miss) = (&self.io.faults, Miss::certain(extent));
            faults.check_bounds(extent)?;
            faults.prepare(&miss)?;
            if self.io.latch_reserved(&miss)? == Begun::Reading {
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

    /// Fills a page that was [entered](crate::io::fault::Faults::enter), and not read, with zeroes after a fresh
    /// header. It stays latched, except on an error.
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

    /// Drops an extent that the caller has latched exclusively from memory, together with its changes, and releases the
    /// latch.
    pub(crate) fn forget(&self, extent: Extent) {
        self.table().drop_memory(extent);
        self.pages().remove(extent.head);
        self.table().unlatch_evicted(extent.head);
    }

    /// Turns claimed room into an extent that is not in memory, and unlatched.
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

    /// Latches the head of a newly claimed extent, drops each of its pages that is left in memory from its last life,
    /// and publishes the extent. See `space` on why no page can enter memory meanwhile.
    fn publish(&self, extent: Extent, memory: Memory) {
        let table = self.table();
        // Before the latch is taken, because a thread that redoes pages may wait for it.
        self.io.faults.on_demand.forget(extent);
        if extent.pages > 1 {
            // SeqCst: orders the claim on storage before the check of pages that are not latched here; see
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
                    // Its memory is reused as it is: no system call.
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

    /// Notes that the record at `lsn` says that an extent is allocated; zero if there is no record.
    #[inline]
    pub(crate) fn note_allocated(&self, extent: Extent, lsn: Lsn) {
        if let Some(logged) = self.storage().logged() {
            logged.note(extent, lsn, true);
        }
    }

    /// Notes that the record at `lsn` says that an extent is free; zero if there is no record.
    fn note_freed(&self, extent: Extent, lsn: Lsn) {
        if let Some(logged) = self.storage().logged() {
            logged.note(extent, lsn, false);
        }
    }

    /// Claims room for the map of a checkpoint, and returns how many pages the map will cover: `least` at least.
    pub(crate) fn claim_map(&self, least: u64) -> Result<(Extent, u64), PoolError> {
        loop {
            let mut prefaulted = 0..0;
            let claimed = self.storage().claim_map(least, |end| prefaulted = self.pages().window.leave(end));
            self.pages().release_prefaulted(prefaulted);
            if is_full(&claimed) && self.settle_superseded()? {
                continue;
            }
            match claimed? {
                (extent, end, true) => return Ok((extent, end)),
                (extent, ..) => self.storage().space.unclaim(extent.head.0..extent.end().0),
            }
        }
    }

    /// Makes sure that no superblock names a map that was superseded, so that its place can be used. Returns false if
    /// there is none.
    fn settle_superseded(&self) -> Result<bool, PoolError> {
        let storage = self.storage();
        let Some(logged) = storage.logged() else { return Ok(false) };
        let mut superseded = lock(&logged.superseded);
        if superseded.is_empty() {
            return Ok(false);
        }
        storage.confirm_map()?;
        // If there is no room, the next attempt says so.
        let _ = storage.keep_map_room(superseded.drain(..));
        Ok(true)
    }

    /// Makes the superblocks name a map that was written: see [`Storage::name_map`]. The place of the previous map is
    /// free from now on, unless a superblock may still name it, or it is kept for the next map.
    pub(crate) fn name_map(
        &self,
        extent: Extent,
        end: u64,
        places: (Lsn, Lsn),
        state: State,
    ) -> Result<(), PoolError> {
        let storage = self.storage();
        // The place of the previous map belongs to nothing for a moment.
        let operation = storage.space.begin_unfinished();
        let (before, written) = storage.name_map(extent, end, places, state);
        storage.space.end_unfinished(operation);
        self.publish(extent, Memory::Drop);
        storage.own_space_map(extent);
        self.table().unlatch_evicted(extent.head);
        if let Some(logged) = storage.logged() {
            let mut superseded = lock(&logged.superseded);
            superseded.extend(before);
            if written.is_ok() || logged.is_planted(Plant::NamedMapFreed) {
                // If there is no room for the next map, the next checkpoint says so.
                let _ = storage.keep_map_room(superseded.drain(..));
            }
        }
        written
    }

    /// Frees an extent whose head the caller has latched exclusively, and releases the latch.
    ///
    /// The memory of a single page stays until the clock finds it, for the next allocation to use. The memory of a
    /// longer extent goes first, because its pages may be given to others one by one.
    ///
    /// What is not allocated as exactly this extent stays as it is, and is counted: only a structure that refers to the
    /// same page twice, because the structure is damaged or its owner has a bug, asks for that.
    pub(crate) fn free(&self, extent: Extent, lsn: Lsn) {
        self.note_freed(extent, lsn);
        self.free_noted(extent, lsn);
    }

    /// [`free`](Self::free), after the record's space event has been noted.
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

    /// Frees an extent to which nothing refers any more, now or when its last reader is gone.
    pub(crate) fn discard(&self, extent: Extent, lsn: Lsn) -> Result<(), PoolError> {
        // The change that removed the last reference was admitted, and this is a part of it.
        self.storage().mark_in_use()?;
        // The bounds are checked before the state is read. An extent that is pending has no owner any more: of two
        // frees, the second would hit the extent that was allocated in its place between them.
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

    /// Waits until a discarded extent has been freed. The evictor may be writing it, or another thread copying it.
    pub(crate) fn await_discarded(&self, extent: Extent) {
        for _ in 0..WAITS_MAX {
            if !lock(&self.pending_frees).iter().any(|(pending, _)| *pending == extent) {
                return;
            }
            self.io.wait(extent.head, Want::Exclusive);
            self.free_pending();
        }
    }

    /// Frees an extent to which only stale references are left. If the evictor is writing it, this waits.
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

    /// Frees pending extents, as far as their readers are gone.
    pub(crate) fn free_pending(&self) {
        // A thread that holds the lock does the same work.
        if let Some(mut pending) = try_lock(&self.pending_frees) {
            pending.retain(|(extent, lsn)| !self.try_discard(*extent, *lsn));
        }
    }

    /// Shows all allocated extents, without those that only wait to be freed.
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
