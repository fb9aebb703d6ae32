//! The open file: what is allocated in it, how far it has grown, and the state of its superblocks.
//!
//! Space on storage is claimed and freed here. The layers above, which hold the latches that `space` requires, decide
//! when.
//!
//! # Invariants
//! - The superblocks on storage say "in use" before anything else is written.
//! - The file is as long as the map says, and has [room for the next map](super::map_room).
//! - After a failed sync nothing more is guaranteed about the file.
//!
//! # Lock order
//! The superblock's lock; the lock of the room for a map; then the space map's; then the lock of the file's size.

use crate::{
    change_log::ChangeLog,
    error::PoolError,
    file::admission::Admission,
    file::lifecycle::{
        damaged_superblocks, map_place_pages, space_map_pages, write_buffer, write_superblocks,
    },
    file::logged::Logged,
    file::outage::{Failure, Outage, copy_of},
    file::superblock::{SUPERBLOCKS, State, Superblock},
    kept_pages::KeptPages,
    lsn_clock::LsnClock,
    plant::Plant,
    primitive::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, lock},
    space::{RecordedMap, SpaceMap},
    undo_space::UndoSpace,
};
use std::{
    io,
    ops::RangeInclusive,
    sync::{Arc, OnceLock},
};
use vellum_base::primitive::{Instant, thread};
use vellum_base::{Extent, HEADER_BYTES, Lsn, PAGE_SIZE, PageHeader, PageId, PageKind, stamp_checksum};
use vellum_vm::{AlignedBuffer, File};

/// An open file of pages.
pub(crate) struct Storage {
    pub(crate) file: Arc<dyn File>,
    pub(crate) space: SpaceMap,
    capacity_pages: u64,
    read_only: bool,
    superblock: Mutex<Superblock>,
    logged: Option<Logged>,
    /// Gives LSNs if there is no log.
    clock: Option<Arc<LsnClock>>,
    kept: Arc<KeptPages>,
    pub(super) undo: Arc<UndoSpace>,
    /// The first page of the space map on storage; 0 if there is none.
    space_map_head: AtomicU64,
    /// Whether the superblock on storage says "in use": set before the first page is written.
    pub(super) marked_in_use: AtomicBool,
    /// Whether it is marked in use, and no outage or failed sync forbids changes.
    pub(super) admission: Admission,
    /// Whether pages can be written.
    pub(crate) outage: Outage,
    /// Why the first sync has failed, if one has: nothing more is guaranteed about this file.
    sync_failure: OnceLock<io::Error>,
    /// Whether a thread panicked while it changed a page: then pages in memory must not be declared sound.
    panicked: AtomicBool,
    /// The size to which the file has been grown, in pages.
    file_pages: Mutex<u64>,
    /// The size to which it recently could not be grown, in pages. Locked with `file_pages`.
    growth_failure: Mutex<Option<(u64, Failure)>>,
    /// A claimed place for the next map: see `map_room`.
    pub(super) kept_map_room: Mutex<Option<Extent>>,
    /// The end, in pages, of the map that storage may still name because naming a later one has failed; otherwise zero.
    /// Changed while the superblock is locked.
    pub(super) former_end: AtomicU64,
}

impl Storage {
    /// The file with its space map and superblock as read; `fresh` says that it was created just now.
    ///
    /// # Errors
    /// If the system does not tell its size, or it cannot grow to hold what the log allocates.
    pub(crate) fn new(
        file: Arc<dyn File>,
        space: SpaceMap,
        superblock: Superblock,
        capacity_pages: u64,
        read_only: bool,
        fresh: bool,
        log: Option<Arc<dyn ChangeLog>>,
    ) -> Result<Self, PoolError> {
        let size = file.size();
        let size = size.map_err(|source| PoolError::Read { extent: Extent::page(PageId(0)), source })?;
        // A new file says "in use" already; a new file with a log is yet to say so.
        let needs_recovery = superblock.state == State::Logged;
        let in_use = needs_recovery || (fresh && log.is_none());
        let logged =
            log.map(|log| Logged::new(log, &space, superblock.space_map, superblock.redo)).transpose()?;
        let clock = logged.is_none().then(|| Arc::new(LsnClock::new(superblock.redo)));
        let storage = Self {
            file,
            space,
            capacity_pages,
            read_only,
            space_map_head: AtomicU64::new(superblock.space_map.map_or(0, |map| map.head.0)),
            superblock: Mutex::new(superblock),
            logged,
            clock,
            kept: Arc::default(),
            undo: Arc::default(),
            marked_in_use: AtomicBool::new(in_use),
            admission: Admission::new(in_use),
            outage: Outage::default(),
            sync_failure: OnceLock::new(),
            panicked: AtomicBool::new(false),
            file_pages: Mutex::new(size / PAGE_SIZE as u64),
            growth_failure: Mutex::new(None),
            kept_map_room: Mutex::default(),
            former_end: AtomicU64::new(0),
        };
        if needs_recovery {
            storage.grow_file(storage.space.end())?;
        }
        Ok(storage)
    }

    /// The log of page changes, if there is one.
    #[inline]
    pub(crate) fn log(&self) -> Option<&dyn ChangeLog> {
        self.logged.as_ref().map(Logged::log)
    }

    /// The clock that gives LSNs if there is no log.
    #[inline]
    pub(crate) fn clock(&self) -> Option<&Arc<LsnClock>> {
        self.clock.as_ref()
    }

    /// Whether changes need LSNs: there is a log, or the clock is held.
    #[inline(always)]
    pub(crate) fn needs_lsn(&self) -> bool {
        self.clock.as_ref().is_none_or(|clock| clock.is_held())
    }

    /// Which pages are kept before they change.
    #[inline]
    pub(crate) fn kept_pages(&self) -> &Arc<KeptPages> {
        &self.kept
    }

    /// What is kept for undoing transactions.
    pub(crate) fn undo_space(&self) -> &Arc<UndoSpace> {
        &self.undo
    }

    /// The LSN of pages that are written past the log. It lies before the redo point of the last checkpoint, so that
    /// their first change carries the whole page, and as late as that allows, so that an incremental backup knows what
    /// is new. Zero without a log.
    pub(crate) fn lsn_past_log(&self) -> Lsn {
        let Some(log) = self.log() else { return Lsn(0) };
        loop {
            // In this order: a redo point that is chosen later than this lies after what is durable now.
            let (durable, from) = (log.durable(), log.images_from());
            if from < Lsn(u64::MAX) {
                return Lsn(durable.min(from).0.saturating_sub(1));
            }
            // A checkpoint is choosing its redo point, which may lie before what is durable. That takes a moment, and
            // waits for no latch.
            thread::yield_now();
        }
    }

    /// The state that is needed beside the map if there is a log.
    #[inline]
    pub(crate) fn logged(&self) -> Option<&Logged> {
        self.logged.as_ref()
    }

    pub(crate) fn lock_superblock(&self) -> MutexGuard<'_, Superblock> {
        lock(&self.superblock)
    }

    /// Whether exactly this extent is allocated to the application. Certain while its latch is held.
    pub(crate) fn is_allocated(&self, extent: Extent) -> bool {
        let head = extent.head.0;
        // Relaxed: it changes when a file is opened or closed cleanly, and at the first change after that; a page that
        // ceases to be the pool's own is passed on under the space map's lock.
        let is_own = head < SUPERBLOCKS || head == self.space_map_head.load(Ordering::Relaxed);
        !is_own && self.space.is_extent(extent)
    }

    /// Frees an extent that the caller has latched exclusively. `lsn` is the LSN of the record that says so; zero if
    /// there is none. Returns false, and does nothing, if no such extent is allocated.
    pub(crate) fn free(&self, extent: Extent, lsn: Lsn) -> bool {
        match &self.logged {
            Some(logged) => logged.free(&self.space, extent, lsn),
            None => self.space.free(extent),
        }
    }

    /// Makes the file hold `pages` pages, plus room for maps: see `map_room`.
    pub(super) fn grow_file_for(&self, pages: u64) -> Result<(), PoolError> {
        self.grow_file(pages + self.map_room_pages(pages))
    }

    /// How many pages beyond `pages` pages the file holds for maps when it grows.
    pub(super) fn map_room_pages(&self, pages: u64) -> u64 {
        if self.log().is_some() { 2 * map_place_pages(pages) } else { space_map_pages(pages).into() }
    }

    /// Makes the file hold `pages` pages. May be called with the space map locked.
    pub(super) fn grow_file(&self, pages: u64) -> Result<(), PoolError> {
        /// The file grows by an eighth of its size, within these bounds, in pages.
        const CHUNK_PAGES: RangeInclusive<u64> = 256..=65_536;
        if pages > self.capacity_pages {
            return Err(PoolError::CapacityExhausted { bytes: self.capacity_pages * PAGE_SIZE as u64 });
        }
        let mut file_pages = lock(&self.file_pages);
        if pages <= *file_pages {
            return Ok(());
        }
        let full = |source| PoolError::StorageFull { bytes: pages * PAGE_SIZE as u64, source };
        let mut failure = lock(&self.growth_failure);
        let pending = failure.as_ref().and_then(|(size, failure)| Some((*size, failure.pending()?)));
        if let Some((_, error)) = pending.as_ref().filter(|(size, _)| pages >= *size) {
            return Err(full(copy_of(error)));
        }
        let ahead = (pages / 8).clamp(*CHUNK_PAGES.start(), *CHUNK_PAGES.end());
        // Where a whole chunk does not fit, a part may. A size that was just refused is not requested again at once.
        let sizes = [ahead, ahead / 8, ahead / 64, 0].map(|ahead| (pages + ahead).min(self.capacity_pages));
        let refused = pending.map_or(u64::MAX, |(size, _)| size);
        let mut outcome = Ok(());
        for size in sizes.into_iter().filter(|size| *size < refused) {
            let begun = Instant::now();
            outcome = self.file.grow(size * PAGE_SIZE as u64);
            match &outcome {
                Ok(()) => {
                    *file_pages = size;
                    break;
                }
                Err(source) => *failure = Some((size, Failure::new(source, begun))),
            }
        }
        outcome.map_err(full)
    }

    /// Whether changes are allowed, as far as known: see `Evictor::admit_changes`.
    #[inline]
    pub(crate) fn admits_changes(&self) -> bool {
        // A thread that sees this may reuse the space of the old space map.
        self.admission.is_given()
    }

    /// Whether the superblocks say "in use".
    pub(crate) fn is_in_use(&self) -> bool {
        self.marked_in_use.load(Ordering::Acquire)
    }

    /// Makes the next change ask again.
    pub(crate) fn suspend_changes(&self) {
        self.admission.suspend();
    }

    /// Whether it is open for reading only.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Notes that a thread panicked while it changed a page, which may be half changed.
    #[cold]
    pub(crate) fn note_panic(&self) {
        self.panicked.store(true, Ordering::Release);
    }

    /// Whether a thread panicked while it changed a page.
    pub(crate) fn is_half_changed(&self) -> bool {
        self.panicked.load(Ordering::Acquire)
    }

    /// Whether the superblocks say "cleanly closed", and nothing has been allocated or freed since.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock_superblock().state == State::Closed && !self.space.is_changed()
    }

    /// The copies of the superblock that are damaged on storage, or cannot be read.
    pub(crate) fn damaged_superblocks(&self) -> Vec<PageId> {
        // While this holds the lock, no thread writes them.
        let _superblock = self.lock_superblock();
        damaged_superblocks(&*self.file)
    }

    /// Writes the superblocks again if copies of them are damaged on storage, and returns these. While the file is in use
    /// nothing is written, because the next checkpoint writes both.
    ///
    /// # Errors
    /// If the file is open for reading only, or they cannot be written.
    pub(crate) fn mend_superblocks(&self) -> Result<Vec<PageId>, PoolError> {
        if self.read_only {
            return Err(PoolError::ReadOnly);
        }
        self.refuse_if_poisoned()?;
        let mut superblock = self.lock_superblock();
        if superblock.state != State::Closed {
            return Ok(Vec::new());
        }
        let damaged = damaged_superblocks(&*self.file);
        if !damaged.is_empty() {
            // The newest sound copy is the second to be overwritten.
            if damaged == [superblock.page()] {
                superblock.generation += 1;
            }
            self.poison_if_sync_failed(write_superblocks(&*self.file, &mut superblock))?;
        }
        Ok(damaged)
    }

    /// # Errors
    /// If a sync has failed.
    pub(crate) fn refuse_if_poisoned(&self) -> Result<(), PoolError> {
        match self.sync_failure.get() {
            Some(first) => {
                let text = format!("an earlier attempt failed: {first}");
                Err(PoolError::Sync(io::Error::new(first.kind(), text)))
            }
            None => Ok(()),
        }
    }

    /// Whether the file is to be recovered from its log after a crash, as far as known.
    pub(crate) fn is_to_be_recovered(&self) -> bool {
        self.lock_superblock().state == State::Logged
    }

    /// Writes the map of a checkpoint, and makes everything durable.
    ///
    /// # Errors
    /// If the map cannot be written. If the sync fails, the file is poisoned.
    pub(crate) fn write_map(
        &self,
        recorded: &mut RecordedMap,
        extent: Extent,
        end: u64,
    ) -> Result<(), PoolError> {
        let mut buffer = AlignedBuffer::new(extent.bytes());
        recorded.write_image(extent, end, buffer.get_mut(HEADER_BYTES..).unwrap_or_default());
        PageHeader { extent, lsn: Lsn(0), kind: PageKind::SPACE_MAP }.write(&mut buffer);
        stamp_checksum(&mut buffer);
        write_buffer(&*self.file, extent, &buffer)?;
        if self.logged.as_ref().is_some_and(|logged| logged.is_planted(Plant::MapNotSynced)) {
            return Ok(());
        }
        self.sync()
    }

    /// Makes all writes so far durable.
    ///
    /// # Errors
    /// If that fails; the file is then poisoned.
    pub(crate) fn sync(&self) -> Result<(), PoolError> {
        self.refuse_if_poisoned()?;
        self.poison_if_sync_failed(self.file.sync().map_err(PoolError::Sync))
    }

    /// Makes the superblocks name a map that was written, and the place in the log to which it belongs. Returns the
    /// place of the previous map, which is claimed from now on.
    ///
    /// # Errors
    /// If the superblocks cannot be written. Storage may then name either map, and both are valid.
    pub(crate) fn name_map(
        &self,
        extent: Extent,
        end: u64,
        (redo, undo): (Lsn, Lsn),
        state: State,
    ) -> (Option<Extent>, Result<(), PoolError>) {
        let mut superblock = self.lock_superblock();
        let before = superblock.space_map.replace(extent);
        let end_before = superblock.end;
        (superblock.end, superblock.redo, superblock.undo, superblock.state) = (end, redo, undo, state);
        if state == State::Closed {
            // As in `close`.
            self.marked_in_use.store(false, Ordering::Release);
            self.suspend_changes();
        }
        let written = write_superblocks(&*self.file, &mut superblock);
        if written.is_err() {
            superblock.state = State::Logged;
            // Not the end of the superblock, which goes with the map.
            self.former_end.fetch_max(end_before, Ordering::Relaxed);
        } else {
            self.former_end.store(0, Ordering::Relaxed);
        }
        drop(superblock);
        if let Some(before) = before {
            self.space.retire(before);
        }
        (before, self.poison_if_sync_failed(written))
    }

    /// Claims room for the space map at the end of a clean close, as [`allocate`](Self::allocate) does.
    ///
    /// # Errors
    /// If the file cannot grow.
    pub(crate) fn allocate_space_map(&self, grown: impl FnOnce(u64)) -> Result<Extent, PoolError> {
        // A map whose place was kept, because there was no room for another one.
        if let Some(kept) = self.lock_superblock().space_map.take() {
            self.free_space_map(kept);
        }
        self.space.trim();
        let pages = space_map_pages(self.space.end());
        self.space.allocate(pages, |claimed| {
            let admitted = if claimed.has_grown { self.grow_file(claimed.end) } else { Ok(()) };
            admitted.map(|()| claimed.note_grown(grown))
        })
    }

    /// Marks a claimed and latched extent as the pool's own from here on.
    pub(crate) fn own_space_map(&self, extent: Extent) {
        self.space_map_head.store(extent.head.0, Ordering::Release);
    }

    /// Writes the space map to its extent, makes everything durable, and writes superblocks that say "cleanly closed".
    ///
    /// # Errors
    /// If something cannot be written; the next attempt then frees the extent. If a sync fails, the file is poisoned.
    pub(crate) fn close(&self, extent: Extent) -> Result<(), PoolError> {
        let end = self.space.end();
        let mut buffer = AlignedBuffer::new(extent.bytes());
        self.space.write_image(end, buffer.get_mut(HEADER_BYTES..).unwrap_or_default());
        PageHeader { extent, lsn: Lsn(0), kind: PageKind::SPACE_MAP }.write(&mut buffer);
        stamp_checksum(&mut buffer);
        let durable = write_buffer(&*self.file, extent, &buffer).and_then(|()| {
            self.cut_file(end);
            self.poison_if_sync_failed(self.file.sync().map_err(PoolError::Sync))
        });
        if let Err(error) = durable {
            self.lock_superblock().space_map = Some(extent);
            return Err(error);
        }
        let mut superblock = self.lock_superblock();
        superblock.state = State::Closed;
        superblock.space_map = Some(extent);
        superblock.end = end;
        if let Some(clock) = &self.clock {
            superblock.redo = superblock.redo.max(clock.redo());
            superblock.undo = superblock.redo;
        }
        // From here on the file may say "closed", so the next change must first say "in use" again, whether or not this
        // succeeds.
        self.marked_in_use.store(false, Ordering::Release);
        self.suspend_changes();
        let written = write_superblocks(&*self.file, &mut superblock);
        if written.is_err() {
            superblock.state = State::InUse;
        }
        self.poison_if_sync_failed(written)
    }

    /// After a failed sync the system may have dropped unwritten data. Nothing is guaranteed about this file any more.
    pub(super) fn poison_if_sync_failed(&self, result: Result<(), PoolError>) -> Result<(), PoolError> {
        if let Err(PoolError::Sync(source)) = &result {
            self.sync_failure.get_or_init(|| copy_of(source));
            self.suspend_changes();
        }
        result
    }

    /// Writes the superblocks again, so that storage certainly names the last map that was written.
    ///
    /// # Errors
    /// If they cannot be written.
    pub(crate) fn confirm_map(&self) -> Result<(), PoolError> {
        let mut superblock = self.lock_superblock();
        self.poison_if_sync_failed(write_superblocks(&*self.file, &mut superblock))
    }

    /// The length of the file, in pages.
    pub(crate) fn file_pages(&self) -> u64 {
        *lock(&self.file_pages)
    }

    /// Cuts off preallocated space. If that fails, the file is merely longer than necessary.
    pub(crate) fn cut_file(&self, end: u64) {
        let mut file_pages = lock(&self.file_pages);
        if *file_pages > end && self.file.truncate(end * PAGE_SIZE as u64).is_ok() {
            *file_pages = end;
        }
    }

    /// Frees the place of a space map. No thread latches the pool's own extents, and this one stays so until it is
    /// free.
    pub(super) fn free_space_map(&self, extent: Extent) {
        self.space.free(extent);
        self.space_map_head.store(0, Ordering::Release);
    }
}

/// Whether there was no room.
pub(crate) fn is_full<T>(claimed: &Result<T, PoolError>) -> bool {
    matches!(claimed, Err(PoolError::StorageFull { .. } | PoolError::CapacityExhausted { .. }))
}
