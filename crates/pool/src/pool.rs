//! The pool: a file whose pages are memory.

use crate::{
    allocator::{Allocator, SpaceMaker},
    change_log::ChangeLog,
    error::{Interrupt, PoolError},
    file::logged::Logged,
    file::storage::{Storage, is_full},
    file::superblock::{ROOTS, SUPERBLOCKS, State},
    guard::{AllocatedGuard, ExclusiveGuard, OptimisticGuard, SharedGuard},
    io::{copies::Progress, fault::Faults, page_io::PageIo},
    kept_pages::KeptPages,
    limits::EXTENT_PAGES_MAX,
    lsn_clock::LsnClock,
    maintenance::{background::BackgroundThread, checkpoint, prefault},
    options::PoolOptions,
    page::state::Want,
    page_table::PageTable,
    pager::Navigation,
    pool_file::{self, PoolFile},
    replacement::evictor::Evictor,
    replacement::resident_pages::ResidentPages,
    statistics::PoolStatistics,
    undo_space::{UndoSpace, is_undoing},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use vellum_base::{Extent, Lsn, PAGE_SIZE, PageId, PageKind};
use vellum_vm::{File, Named, PageMemory};

/// A file of pages, of which as many are in memory as the limit allows. See the [crate](crate).
///
/// Threads share it; any of them may call every method. A pool that is dropped and not closed leaves its file marked as
/// in use, if it was changed.
pub struct Pool {
    // Dropped first: the thread ends before the mapping is unmapped.
    _background: Option<BackgroundThread>,
    // Owns the layers, each of which owns the layer below it.
    allocator: Arc<Allocator>,
    path: PathBuf,
}

impl PoolFile {
    /// Makes the file a pool. With a log it can be recovered from its first change on.
    ///
    /// # Errors
    /// [`PoolError::NotClosedCleanly`] if the file [needs recovery](Self::needs_recovery) and no log is given; if the
    /// file cannot grow to the extents that were noted, or the system refuses memory.
    pub fn start(mut self, log: Option<Arc<dyn ChangeLog>>) -> Result<Pool, PoolError> {
        if self.needs_recovery() && log.is_none() {
            return Err(PoolError::NotClosedCleanly { path: self.path(), has_log: true });
        }
        let created = self.created.take();
        Pool::start(self, log).inspect_err(|_| pool_file::remove(created))
    }
}

impl Pool {
    /// Creates a file, which must not exist yet.
    ///
    /// # Errors
    /// If the file exists or cannot be written, an option makes no sense, or the system refuses memory.
    pub fn create(path: impl AsRef<Path>, options: &PoolOptions) -> Result<Self, PoolError> {
        PoolFile::create(path, options)?.start(options.log.clone())
    }

    /// Opens a file, or creates it if there is none, or if the creation of the existing file was interrupted before it
    /// held anything; returns whether it was created. Two processes that do this at once do not disturb each other.
    ///
    /// # Errors
    /// As for [`open`](Self::open) and [`create`](Self::create).
    pub fn open_or_create(path: impl AsRef<Path>, options: &PoolOptions) -> Result<(Self, bool), PoolError> {
        let (file, created) = PoolFile::open_or_create(path, options)?;
        Ok((Self::start_closed(file)?, created))
    }

    /// Opens a file that was closed cleanly. A file with a log that was not closed is opened as a [`PoolFile`].
    ///
    /// # Errors
    /// If the file does not exist, is not Vellum's, belongs to another application or a later version, is damaged,
    /// truncated, in use by another process, or was not closed cleanly; or the system refuses memory.
    pub fn open(path: impl AsRef<Path>, options: &PoolOptions) -> Result<Self, PoolError> {
        Self::start_closed(PoolFile::open(path, options)?)
    }

    /// Like [`create`](Self::create), on any empty file, such as a simulated one.
    ///
    /// # Errors
    /// As for `create`; [`PoolError::NotEmpty`] if the file is not empty.
    pub fn create_on(file: Arc<dyn File>, options: &PoolOptions) -> Result<Self, PoolError> {
        PoolFile::create_on(file, options)?.start(options.log.clone())
    }

    /// Like [`open`](Self::open), on any file.
    ///
    /// # Errors
    /// As for `open`.
    pub fn open_on(file: Arc<dyn File>, options: &PoolOptions) -> Result<Self, PoolError> {
        Self::start_closed(PoolFile::open_on(file, options)?)
    }

    fn start_closed(file: PoolFile) -> Result<Self, PoolError> {
        if file.needs_recovery() {
            return Err(PoolError::NotClosedCleanly { path: file.path(), has_log: true });
        }
        let log = file.options.log.clone();
        file.start(log)
    }

    fn start(file: PoolFile, log: Option<Arc<dyn ChangeLog>>) -> Result<Self, PoolError> {
        let PoolFile { options, memory, space, superblock, fresh, .. } = file;
        let PageMemory { pages, releaser, file } = memory;
        let path = file.description().path.unwrap_or_default();
        let table = PageTable::new(pages, releaser, options.count_hits, options.huge_pages)?;
        let prefaults = options.background_eviction && !options.read_only && table.faults_bring_memory();
        let capacity = table.capacity_pages;
        let log = log.filter(|_| !options.read_only);
        let needs_recovery = superblock.state == State::Logged;
        let storage = Storage::new(file, space, superblock, capacity, options.read_only, fresh, log)?;
        if needs_recovery {
            // On a full disk pages may be freed before the next checkpoint, which else fails.
            let _ = storage.keep_map_room([]);
        }
        let pages = ResidentPages::new(table, storage, (options.pool_bytes / PAGE_SIZE as u64) as usize)?;
        let allocator = Arc::new(Allocator::new(PageIo::new(Faults::new(Evictor::new(pages)))));
        if prefaults {
            allocator.pages().window.ask_at(prefault::first_request(allocator.storage().space.end()));
        }
        // Everything also works without the thread, only less smoothly.
        let start = || BackgroundThread::start(allocator.clone()).ok();
        let background = options.background_eviction.then(start).flatten();
        Ok(Self { _background: background, allocator, path })
    }

    #[inline]
    pub(crate) fn allocator(&self) -> &Arc<Allocator> {
        &self.allocator
    }

    #[cfg(test)]
    pub(crate) fn evictor(&self) -> &Evictor {
        self.allocator.evictor()
    }

    #[inline]
    pub(crate) fn table(&self) -> &PageTable {
        self.allocator.table()
    }

    /// The file's path; empty for a file that has none.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What has this name now, which the pool's file had.
    ///
    /// # Errors
    /// The errors of the file system.
    pub fn named(&self, path: &Path) -> std::io::Result<Named> {
        vellum_vm::named(path, &*self.allocator.storage().file)
    }

    /// Whether it is open for reading only.
    pub fn is_read_only(&self) -> bool {
        self.allocator.storage().is_read_only()
    }

    /// One of the [`ROOTS`] numbers that the superblock keeps for the application; 0 at first. An application stores
    /// there the pages at which its structures begin.
    ///
    /// # Panics
    /// If `slot` is not below `ROOTS`.
    #[cfg_attr(not(test), expect(clippy::indexing_slicing, reason = "the panic that is documented"))]
    pub fn root_slot(&self, slot: usize) -> u64 {
        assert!(slot < ROOTS, "a file has {ROOTS} roots");
        self.allocator.storage().lock_superblock().roots[slot]
    }

    /// Sets a root; durable when the file is closed.
    ///
    /// # Errors
    /// If the file is open for reading only, or its superblock cannot be written.
    ///
    /// # Panics
    /// If `slot` is not below `ROOTS`.
    #[cfg_attr(not(test), expect(clippy::indexing_slicing, reason = "the panic that is documented"))]
    pub fn set_root_slot(&self, slot: usize, value: u64) -> Result<(), PoolError> {
        assert!(slot < ROOTS, "a file has {ROOTS} roots");
        self.allocator.evictor().admit_changes()?;
        self.allocator.storage().lock_superblock().roots[slot] = value;
        Ok(())
    }

    /// The clock that gives changes their LSNs if there is no log, while it is held; none with a log.
    pub fn lsn_clock(&self) -> Option<&Arc<LsnClock>> {
        self.allocator.storage().clock()
    }

    /// How many pages are kept for undoing transactions: ordinary allocations leave them, and [`undoing`](crate::undoing)
    /// takes them.
    pub fn undo_space(&self) -> &Arc<UndoSpace> {
        self.allocator.storage().undo_space()
    }

    /// From now on, a thread that finds no space in the file, because the device is full or the capacity is reached, calls
    /// `maker`, and tries again if that returns true: it has freed something, or another thread has since this one asked
    /// last. A thread that holds latches gives them up first, and one that is in a group of records does not call it. What
    /// has been freed may wait for the log; the next attempt sees to that. Only the first maker is used.
    pub fn make_space_by(&self, maker: SpaceMaker) {
        self.allocator.make_space_by(maker);
    }

    /// Makes the file have room for the pages that are [kept](Self::undo_space) for undo, apart from `own` pages. If it
    /// cannot, nothing may take the room that open transactions have made in pages, except the one whose `own` these are.
    /// The thread holds no latch.
    ///
    /// # Errors
    /// [`PoolError::KeptForUndo`] if there is no room for them.
    pub fn admit_growth(&self, own: u64) -> Result<(), PoolError> {
        self.allocator.claim_or_make(|| {
            let admitted = self.allocator.storage().admit_growth(own);
            if is_full(&admitted) { Err(PoolError::KeptForUndo) } else { admitted }
        })
    }

    /// Whether leaves may be merged: the file has room for all that is [kept](Self::undo_space) for undo. The thread holds
    /// no latch.
    pub fn may_merge_leaves(&self) -> bool {
        let undo = self.undo_space();
        if undo.lacks_room() {
            return false;
        }
        // While a thread undoes, less is kept after each change: it would look for room each time, in vain.
        !undo.is_scarce() || (!is_undoing() && self.admit_growth(0).is_ok())
    }

    /// Which pages are kept before they change, and the keeper.
    pub fn kept_pages(&self) -> &Arc<KeptPages> {
        self.allocator.storage().kept_pages()
    }

    /// Begins an optimistic read of a page that is known to exist: [`Navigation::root`], which most code calls within
    /// [`Navigation::run`].
    ///
    /// # Errors
    /// The interrupts of the restart protocol.
    pub fn optimistic(&self, page: PageId) -> Result<OptimisticGuard<'_>, Interrupt> {
        self.root(page)
    }

    /// Latches an extent in shared mode, reading it in if necessary; waits while a thread holds it exclusively.
    ///
    /// A steady stream of readers can keep a writer waiting.
    ///
    /// # Errors
    /// If it is not allocated as exactly this extent, cannot be read, is damaged, or does not fit into the pool.
    pub fn shared(&self, extent: Extent) -> Result<SharedGuard<'_>, PoolError> {
        self.allocator.io.latch(extent, Want::Shared)?;
        Ok(SharedGuard::adopt(self.table(), extent))
    }

    /// Latches an extent exclusively, reading it in if necessary; waits while any thread holds it.
    ///
    /// # Errors
    /// As for [`shared`](Self::shared); and if the file is open for reading only.
    pub fn exclusive(&self, extent: Extent) -> Result<ExclusiveGuard<'_>, PoolError> {
        self.allocator.evictor().admit_changes()?;
        self.allocator.io.latch(extent, Want::Exclusive)?;
        Ok(ExclusiveGuard::adopt(&self.allocator, extent))
    }

    /// Redoes a change of a page from a log. `change` gets all bytes of the page, and its result is returned. A page
    /// that is `fresh` is not read: it starts as zeroes after the header of a tree node.
    ///
    /// The page is always written, even if it has the change already: after a failed sync, the system's cache may hold
    /// data that is not on storage, and no later sync would report that.
    ///
    /// # Errors
    /// As for [`exclusive`](Self::exclusive); and [`PoolError::Corruption`] with the message of `change`; the page then
    /// stays as it is on storage.
    pub fn redo<R>(
        &self,
        page: PageId,
        fresh: bool,
        change: impl FnOnce(&mut [u8]) -> Result<R, String>,
    ) -> Result<R, PoolError> {
        self.allocator.evictor().admit_changes()?;
        if fresh {
            self.allocator.latch_blank(page, PageKind::TREE_NODE)?;
        } else {
            self.allocator.io.latch(Extent::page(page), Want::Exclusive)?;
        }
        let mut guard = ExclusiveGuard::adopt(&self.allocator, Extent::page(page));
        match change(guard.page_mut()) {
            Ok(done) => Ok(done),
            Err(what) => {
                guard.forget();
                Err(PoolError::contents(page, what))
            }
        }
    }

    /// Allocates an extent of `pages` pages: zeroes after a header of `kind`, latched exclusively.
    ///
    /// # Errors
    /// If the file cannot grow, the capacity is exhausted, or the pool has no room.
    ///
    /// # Panics
    /// If `pages` or `kind` is 0.
    pub fn allocate(&self, pages: u32, kind: PageKind) -> Result<AllocatedGuard<'_>, PoolError> {
        assert!(pages > 0 && kind.0 > 0, "an extent has at least one page, and a kind");
        if pages > EXTENT_PAGES_MAX {
            let extent = Extent { head: PageId(0), pages };
            return Err(PoolError::LargerThanPool { extent, pool_pages: self.limit_pages() });
        }
        let extent = self.allocator.allocate(pages, kind)?;
        Ok(AllocatedGuard::adopt(&self.allocator, extent))
    }

    /// Forgets the free pages at the end of the file, so that it can be [cut](Self::cut) there: with a log, after the
    /// next checkpoint.
    pub fn trim(&self) {
        self.allocator.trim();
    }

    /// Returns the space after the last page that is needed to the file system.
    pub fn cut(&self) {
        self.allocator.storage().cut_unused();
    }

    /// The number of pages of the file, and how many of them are allocated.
    pub fn file_pages(&self) -> (u64, u64) {
        let storage = self.allocator.storage();
        (storage.file_pages(), storage.space.allocated_pages())
    }

    /// Shows every allocated extent to `visit`, in ascending order: the superblocks, the space map if the file has not
    /// been changed since it was opened, and the application's extents. An extent that was
    /// [discarded](crate::Allocation::discard) while a thread still read it is free, and not shown.
    pub fn for_each_extent(&self, visit: impl FnMut(Extent)) {
        self.allocator.for_each_extent(visit);
    }

    /// Notes which extents are allocated and freed from now on, until what is returned is dropped: see
    /// [`has_changed_hands`](crate::Allocation::has_changed_hands). So a walk of all structures beside changes can tell what
    /// it may have missed. Takes one bit for each page of the file.
    pub fn watch_space(&self) -> SpaceWatch<'_> {
        self.allocator.storage().space.begin_watch();
        SpaceWatch(self)
    }

    /// The extents that belong to the pool itself and not to the application.
    pub fn own_extents(&self) -> Vec<Extent> {
        let superblocks = (0..SUPERBLOCKS).map(|page| Extent::page(PageId(page)));
        superblocks.chain(self.allocator.storage().lock_superblock().space_map).collect()
    }

    /// Whether exactly this extent is allocated.
    pub fn is_extent(&self, extent: Extent) -> bool {
        self.allocator.storage().space.is_extent(extent)
    }

    /// The copies of the superblock that are now damaged on storage, or cannot be read. One intact copy suffices; the
    /// next change of state rewrites both.
    pub fn damaged_superblocks(&self) -> Vec<PageId> {
        self.allocator.storage().damaged_superblocks()
    }

    /// Writes the copies of the superblock again that are damaged on storage, and returns their pages. Nothing else
    /// changes. While the file is in use none is written: the close, or the next checkpoint, writes both.
    ///
    /// # Errors
    /// If the file is open for reading only, or they cannot be written.
    pub fn mend_superblocks(&self) -> Result<Vec<PageId>, PoolError> {
        self.allocator.storage().mend_superblocks()
    }

    /// What the pool has done, and its present state.
    pub fn statistics(&self) -> PoolStatistics {
        let (table, storage, counters) = (self.table(), self.allocator.storage(), &self.table().counters);
        if let Some(logged) = storage.logged() {
            logged.release_durable(&storage.space);
        }
        PoolStatistics {
            hits: table.count_hits.then(|| counters.hits.get()),
            misses: counters.misses.get(),
            pages_read: counters.pages_read.get(),
            pages_evicted: counters.pages_evicted.get(),
            pages_written: counters.pages_written.get(),
            write_errors: counters.write_errors.get(),
            eviction_batches: counters.eviction_batches.get(),
            waits: counters.waits.get(),
            restarts: counters.restarts.get(),
            frees_refused: counters.frees_refused.get(),
            releases_refused: counters.releases_refused.get(),
            checkpoints: counters.checkpoints.get(),
            checkpoint_pages_written: counters.checkpoint_pages_written.get(),
            pages_quarantined: storage.logged().map_or(0, Logged::quarantined_pages),
            pages_resident: self.allocator.pages().budget.used() as u64,
            pages_limit: self.limit_pages() as u64,
            pages_huge: table.huge_runs.pages(),
            pages_allocated: storage.space.allocated_pages(),
            pages_in_file: storage.space.end(),
            release_method: table.releaser.method(),
            file: storage.file.description(),
        }
    }

    /// The most pages that may be in memory.
    pub fn limit_pages(&self) -> usize {
        self.allocator.pages().budget.limit()
    }

    /// Takes memory of the pool for another use until the result is dropped; none if too little is free of pages.
    pub fn set_aside(&self, bytes: usize) -> Option<SetAside> {
        let pages = bytes.div_ceil(PAGE_SIZE);
        let is_there = self.allocator.pages().budget.try_reserve(pages);
        is_there.then(|| SetAside { allocator: self.allocator.clone(), pages })
    }

    /// Brings all changes whose records lie before `redo` to storage and records that place of the log, while other
    /// threads read and write. From now on recovery begins there. Does nothing without a log, or if nothing has changed
    /// since the file was closed. A second caller waits until the first is done.
    ///
    /// All records before `redo` must have been filled and be durable, and their pages no longer latched. The calling
    /// thread holds no guard.
    ///
    /// # Errors
    /// If something cannot be written: the previous redo point is still valid, and the checkpoint may be tried again.
    /// After a failed *sync*, or a panic of a thread while it changed a page, every further attempt fails.
    pub fn checkpoint_at(&self, redo: Lsn) -> Result<(), PoolError> {
        self.checkpointer().checkpoint_at(redo, redo)
    }

    /// Another handle, for a thread that changes pages by itself. Must be dropped, or no longer used, before the pool is
    /// closed.
    #[must_use]
    pub fn for_thread(&self) -> Self {
        let (allocator, path) = (self.allocator.clone(), self.path.clone());
        Self { _background: None, allocator, path }
    }

    /// An object for a thread that takes checkpoints of this pool. Must be dropped before the pool is closed.
    pub fn checkpointer(&self) -> Checkpointer {
        Checkpointer { allocator: self.allocator.clone() }
    }

    /// Writes everything, makes it durable and marks the file as cleanly closed. The pool remains usable; the next
    /// change marks the file as in use again.
    ///
    /// # Errors
    /// If something cannot be written, or is latched: it is then still in memory, and this may be tried again. After a
    /// failed *sync*, or a panic of a thread while it changed a page, every further attempt fails.
    pub fn checkpoint(&mut self) -> Result<(), PoolError> {
        let (evictor, storage) = (self.allocator.evictor(), self.allocator.storage());
        if storage.is_half_changed() {
            return Err(PoolError::Panicked);
        }
        let _pause = evictor.pause();
        self.allocator.free_pending();
        if storage.is_closed() && self.allocator.pages().changed().is_empty() {
            return Ok(());
        }
        storage.refuse_if_poisoned()?;
        // Also after a failed attempt, so that the map which it left behind is freed.
        storage.mark_in_use()?;
        evictor.flush()?;
        if let Some(logged) = storage.logged() {
            return checkpoint::close(&self.allocator, logged);
        }
        storage.close(self.allocator.allocate_space_map()?)
    }

    /// Closes the file cleanly. Call [`checkpoint`](Self::checkpoint) first to be able to try again if it fails.
    ///
    /// # Errors
    /// As for `checkpoint`. The next opening will then report that the file was not closed cleanly.
    pub fn close(mut self) -> Result<(), PoolError> {
        self.checkpoint()
    }
}

/// A watch of [what is allocated and freed](Pool::watch_space), until it is dropped.
pub struct SpaceWatch<'p>(&'p Pool);

impl SpaceWatch<'_> {
    /// A number for the operations that have begun by now and have extents to which nothing refers: not yet, or not any
    /// more.
    pub fn operations_by_now(&self) -> u64 {
        self.0.allocator.storage().space.number_unfinished()
    }

    /// Whether none of these operations is left.
    pub fn are_finished(&self, operations: u64) -> bool {
        self.0.allocator.storage().space.are_finished(operations)
    }
}

impl Drop for SpaceWatch<'_> {
    fn drop(&mut self) {
        self.0.allocator.storage().space.end_watch();
    }
}

/// Memory of a pool that pages cannot take: see [`Pool::set_aside`]. Must be dropped before the pool is closed.
#[must_use = "pages may take it at once"]
pub struct SetAside {
    allocator: Arc<Allocator>,
    pages: usize,
}

impl Drop for SetAside {
    fn drop(&mut self) {
        self.allocator.pages().budget.give_back(self.pages);
    }
}

/// Takes checkpoints of a pool, on any thread.
pub struct Checkpointer {
    allocator: Arc<Allocator>,
}

impl Checkpointer {
    /// Like [`Pool::checkpoint_at`]; also remembers that the records of what was not committed at `redo` begin at
    /// `undo`.
    ///
    /// # Errors
    /// As for `Pool::checkpoint_at`.
    pub fn checkpoint_at(&self, redo: Lsn, undo: Lsn) -> Result<(), PoolError> {
        self.checkpoint_paced(redo, undo, &mut |_| {}).map(drop)
    }

    /// Like [`checkpoint_at`](Self::checkpoint_at); calls `pace` between batches of pages, which are half a
    /// mebibyte in a large pool. It may wait, to leave more of the device to other threads. No latch is held meanwhile, but no other
    /// checkpoint is taken. Returns the redo point that both superblocks name on storage from now on; `None` if the file was closed, and
    /// has not changed since.
    ///
    /// # Errors
    /// As for `Pool::checkpoint_at`.
    pub fn checkpoint_paced(
        &self,
        redo: Lsn,
        undo: Lsn,
        pace: &mut dyn FnMut(Progress),
    ) -> Result<Option<Lsn>, PoolError> {
        checkpoint::checkpoint_at(&self.allocator, (redo, undo), pace)
    }
}
