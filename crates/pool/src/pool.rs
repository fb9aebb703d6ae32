//! The pool: a file whose pages are memory.

use crate::{
    core::{Core, Parts},
    error::{Fault, Interrupt, Miss, PoolError},
    file::lifecycle,
    file::superblock::{APPLICATION_BYTES, ROOTS, SUPERBLOCKS},
    io::extent_stream::ExtentStream,
    io::miss_queue::MissQueue,
    io::page_stream::PageStream,
    options::{CAPACITY_BYTES_MIN, POOL_BYTES_MIN, PoolOptions},
    page::guard::{AllocatedGuard, ExclusiveGuard, OptimisticGuard, SharedGuard},
    page::optimistic_bytes::{LINE_BYTES, prefetch_line},
    page::state::Word,
    pager::{Allocation, AsynchronousReads, ChangeRecords, Navigation, Streams},
    replacement::evict::Evictor,
    replacement::resident_set::{EXTENT_PAGES_MAX, PAGE_ID_MAX},
    space::SpaceMap,
    statistics::PoolStatistics,
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use vellum_base::{Bytes, Extent, PAGE_SIZE, PageId, PageKind};
use vellum_vm::{
    AlignedBuffer, CreateMode, DiskFile, File, FileOptions, Mapping, PageMemory, PageMemoryOptions,
    ReleaseMethod, physical_bytes,
};

/// How many cache lines of a page are fetched ahead when a reference to it is followed: the header and the
/// first slots of a tree's node.
const PREFETCH_LINES: usize = 6;

/// A file of pages, of which as many are in memory as the limit allows. See the [crate](crate).
///
/// Shared by threads; every method may be called from any.
pub struct Pool {
    // Dropped first: the thread ends before the mapping goes.
    evictor: Option<Evictor>,
    core: Arc<Core>,
    path: PathBuf,
    damaged_superblock: Option<PageId>,
}

impl Pool {
    /// Creates a file, which must not exist yet.
    ///
    /// # Errors
    /// If the file exists or cannot be written, an option makes no sense, or the system refuses memory.
    pub fn create(path: impl AsRef<Path>, options: &PoolOptions) -> Result<Self, PoolError> {
        let path = path.as_ref();
        Self::check_creation(options)?;
        let file = Arc::new(Self::open_file(path, options, CreateMode::CreateNew)?);
        Self::create_in(file, path, options)
    }

    /// Opens a file, or creates it if there is none, or if there is one whose creation was interrupted before it held
    /// anything; says whether it was created. Two processes that do this at once do not disturb each other.
    ///
    /// # Errors
    /// As for [`open`](Self::open) and [`create`](Self::create).
    pub fn open_or_create(path: impl AsRef<Path>, options: &PoolOptions) -> Result<(Self, bool), PoolError> {
        let path = path.as_ref();
        if options.read_only {
            return Ok((Self::open(path, options)?, false));
        }
        Self::check(options)?;
        let file = Arc::new(Self::open_file(path, options, CreateMode::OpenOrCreate)?);
        if !lifecycle::is_unfinished(&*file, &options.application)? {
            return Ok((Self::open_on(file, options)?, false));
        }
        let unfinished = |source| PoolError::Write { extent: Extent::page(PageId(0)), source };
        file.truncate(0).map_err(unfinished)?;
        Ok((Self::create_in(file, path, options)?, true))
    }

    /// Makes a file on disk a pool's, or removes it if that fails: it holds nothing then, and would be in the way. Nobody
    /// else can have it while it is locked.
    fn create_in(file: Arc<DiskFile>, path: &Path, options: &PoolOptions) -> Result<Self, PoolError> {
        Self::create_on(file.clone(), options).inspect_err(|_| {
            if file.was_created() {
                // If that is refused, `open_or_create` will create it anew.
                let _ = std::fs::remove_file(path);
            }
        })
    }

    /// Opens a file that was closed cleanly.
    ///
    /// # Errors
    /// If there is no such file, it is not Vellum's, of another application, of a later version, damaged,
    /// truncated, in use by another process, or was not closed cleanly; or the system refuses memory.
    pub fn open(path: impl AsRef<Path>, options: &PoolOptions) -> Result<Self, PoolError> {
        Self::check(options)?;
        let file = Self::open_file(path.as_ref(), options, CreateMode::OpenExisting)?;
        Self::open_on(Arc::new(file), options)
    }

    /// As [`create`](Self::create), on any file that is empty: a simulated one, say.
    ///
    /// # Errors
    /// As for `create`; [`PoolError::NotEmpty`] if the file holds something.
    pub fn create_on(file: Arc<dyn File>, options: &PoolOptions) -> Result<Self, PoolError> {
        Self::check_creation(options)?;
        let (memory, capacity_pages) = Self::reserve(options, SUPERBLOCKS * PAGE_SIZE as u64, file.clone())?;
        let space = SpaceMap::new(capacity_pages, SUPERBLOCKS)?;
        let superblock = lifecycle::create(&*file, &options.application)?;
        Self::start(options, Found { memory, capacity_pages, space, superblock, damaged: None, fresh: true })
    }

    /// As [`open`](Self::open), on any file.
    ///
    /// # Errors
    /// As for `open`.
    pub fn open_on(file: Arc<dyn File>, options: &PoolOptions) -> Result<Self, PoolError> {
        Self::check(options)?;
        let path = file.description().path.unwrap_or_default();
        let opened = lifecycle::inspect(&*file, path, &options.application)?;
        let superblock = opened.superblock;
        let (memory, capacity_pages) =
            Self::reserve(options, superblock.end.saturating_mul(PAGE_SIZE as u64), file.clone())?;
        let space = lifecycle::read_space_map(&*file, &superblock, capacity_pages)?;
        let damaged = opened.damaged_superblock;
        Self::start(options, Found { memory, capacity_pages, space, superblock, damaged, fresh: false })
    }

    fn check(options: &PoolOptions) -> Result<(), PoolError> {
        if options.pool_bytes < POOL_BYTES_MIN {
            return Err(PoolError::PoolTooSmall { bytes: options.pool_bytes, least: POOL_BYTES_MIN });
        }
        let most = physical_bytes().unwrap_or(u64::MAX);
        if options.pool_bytes > most {
            return Err(PoolError::PoolTooLarge { bytes: options.pool_bytes, most });
        }
        if options.capacity_bytes < CAPACITY_BYTES_MIN {
            return Err(PoolError::CapacityTooSmall {
                bytes: options.capacity_bytes,
                least: CAPACITY_BYTES_MIN,
            });
        }
        let name = &options.application;
        if name.len() > APPLICATION_BYTES || name.contains('\0') {
            return Err(PoolError::ApplicationName { name: name.clone(), most: APPLICATION_BYTES });
        }
        Ok(())
    }

    fn check_creation(options: &PoolOptions) -> Result<(), PoolError> {
        if options.read_only { Err(PoolError::ReadOnly) } else { Self::check(options) }
    }

    fn open_file(path: &Path, options: &PoolOptions, create: CreateMode) -> Result<DiskFile, PoolError> {
        let file_options = FileOptions {
            engine: options.engine,
            direct: options.direct,
            read_only: options.read_only,
            create,
            ..FileOptions::default()
        };
        Ok(DiskFile::open(path, &file_options)?)
    }

    /// Reserves the address space for a file that now has `file_bytes` bytes.
    fn reserve(
        options: &PoolOptions,
        file_bytes: u64,
        file: Arc<dyn File>,
    ) -> Result<(PageMemory, u64), PoolError> {
        let page = PAGE_SIZE as u64;
        let largest = (PAGE_ID_MAX + 1) * page;
        let twice = |bytes: u64| bytes.saturating_mul(2).saturating_add(page).min(largest);
        let wanted = options.capacity_bytes.max(twice(file_bytes)).min(largest);
        let least = twice(file_bytes.max(options.pool_bytes)).min(wanted);
        let round = |bytes: u64| (bytes.next_multiple_of(page)) as usize;
        let wanted = PageMemoryOptions {
            wanted_bytes: round(wanted),
            least_bytes: round(least),
            resident_pages_max: (options.pool_bytes / page) as usize,
            method: options.release,
        };
        let memory = PageMemory::reserve(&wanted, file)?;
        let capacity_pages = (memory.pages.len() / PAGE_SIZE) as u64;
        Ok((memory, capacity_pages))
    }

    fn start(options: &PoolOptions, found: Found) -> Result<Self, PoolError> {
        let PageMemory { pages, releaser, file } = found.memory;
        let state_bytes = (found.capacity_pages as usize * size_of::<u64>()).next_multiple_of(PAGE_SIZE);
        let states = Mapping::reserve(state_bytes, "the states of the pages")?.for_table();
        let size = file.size();
        let size = size.map_err(|source| PoolError::Read { extent: Extent::page(PageId(0)), source })?;
        // The device maps small pages only, and none but those that are asked for.
        let faults_bring_memory = releaser.method() != ReleaseMethod::Exmap;
        let core = Arc::new(Core::new(Parts {
            capacity_pages: found.capacity_pages,
            pool_pages: (options.pool_bytes / PAGE_SIZE as u64) as usize,
            count_hits: options.count_hits,
            huge_pages: options.huge_pages && faults_bring_memory,
            prefault: options.background_eviction && !options.read_only && faults_bring_memory,
            read_only: options.read_only,
            releaser,
            log: options.log.clone(),
            space: found.space,
            superblock: found.superblock,
            marked_in_use: found.fresh,
            file_pages: size / PAGE_SIZE as u64,
            pages,
            states,
            file,
        }));
        // Without the thread everything works as well, only less smoothly.
        let evictor = options.background_eviction.then(|| Evictor::start(core.clone()).ok()).flatten();
        let path = core.file.description().path.unwrap_or_default();
        Ok(Self { evictor, core, path, damaged_superblock: found.damaged })
    }

    #[cfg(test)]
    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// The file's path; empty for a file that has none.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// One of the [`ROOTS`] numbers that are kept for the application in the superblock; 0 at first. An
    /// application keeps there the pages at which its structures begin.
    ///
    /// # Panics
    /// If `slot` is not below `ROOTS`.
    pub fn root_slot(&self, slot: usize) -> u64 {
        assert!(slot < ROOTS, "a file has {ROOTS} roots");
        self.core.lock_superblock().roots[slot]
    }

    /// Sets a root; durable when the file is closed.
    ///
    /// # Errors
    /// If the file is open for reading only, or its superblock cannot be written.
    ///
    /// # Panics
    /// If `slot` is not below `ROOTS`.
    pub fn set_root_slot(&self, slot: usize, value: u64) -> Result<(), PoolError> {
        assert!(slot < ROOTS, "a file has {ROOTS} roots");
        self.core.admit_changes()?;
        self.core.lock_superblock().roots[slot] = value;
        Ok(())
    }

    /// Begins to look at a page that is known to exist. Most code goes through [`Navigation::run`] and wants
    /// [`Navigation::root`], which this is.
    ///
    /// # Errors
    /// The interrupts of the restart protocol.
    pub fn optimistic(&self, page: PageId) -> Result<OptimisticGuard<'_>, Interrupt> {
        self.root(page)
    }

    /// Latches an extent shared, reading it in if need be; waits for who holds it exclusively.
    ///
    /// Readers that come one after another can keep a writer waiting.
    ///
    /// # Errors
    /// If it is not allocated as such, cannot be read, is damaged, or does not fit into the pool.
    pub fn shared(&self, extent: Extent) -> Result<SharedGuard<'_>, PoolError> {
        self.core.latch_shared(extent)?;
        Ok(SharedGuard::adopt(&self.core, extent))
    }

    /// Latches an extent exclusively, reading it in if need be; waits for who holds it.
    ///
    /// # Errors
    /// As for [`shared`](Self::shared); and if the file is open for reading only.
    pub fn exclusive(&self, extent: Extent) -> Result<ExclusiveGuard<'_>, PoolError> {
        self.core.latch_exclusive(extent)?;
        Ok(ExclusiveGuard::adopt(&self.core, extent))
    }

    /// Allocates an extent of `pages` pages: zeroes behind a header of `kind`, latched exclusively.
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
            return Err(PoolError::LargerThanPool { extent, pool_pages: self.core.budget.limit() });
        }
        let extent = self.core.allocate(pages, kind)?;
        Ok(AllocatedGuard::adopt(&self.core, extent))
    }

    /// Shows every allocated extent to `visit`, in ascending order: the superblocks, the space map if the
    /// file has not been changed since it was opened, and what the application allocated. What was
    /// [discarded](Allocation::discard) while somebody still read it is free, and not shown.
    pub fn for_each_extent(&self, visit: impl FnMut(Extent)) {
        self.core.for_each_extent(visit);
    }

    /// The extents that belong to the pool itself and not to the application.
    pub fn own_extents(&self) -> Vec<Extent> {
        let superblocks = (0..SUPERBLOCKS).map(|page| Extent::page(PageId(page)));
        superblocks.chain(self.core.lock_superblock().space_map).collect()
    }

    /// Whether exactly this extent is allocated.
    pub fn is_extent(&self, extent: Extent) -> bool {
        self.core.space.is_extent(extent)
    }

    /// The copy of the superblock that was found damaged when the file was opened, if one was. The other
    /// copy serves; the next change writes both anew.
    pub fn damaged_superblock(&self) -> Option<PageId> {
        self.damaged_superblock
    }

    /// What the pool has done, and how it stands.
    pub fn statistics(&self) -> PoolStatistics {
        self.core.counters.collect(&self.core)
    }

    /// The most pages that may be in memory.
    pub fn limit_pages(&self) -> usize {
        self.core.budget.limit()
    }

    /// Writes everything, makes it durable and marks the file as cleanly closed. The pool can be used on;
    /// the next change marks the file as in use again.
    ///
    /// # Errors
    /// If something cannot be written: it is still in memory then, and may be tried again. After a failed
    /// *sync* every further attempt fails.
    pub fn checkpoint(&mut self) -> Result<(), PoolError> {
        self.core.checkpoint()
    }

    /// Closes the file cleanly. Call [`checkpoint`](Self::checkpoint) first to be able to try again if it
    /// fails.
    ///
    /// # Errors
    /// As for `checkpoint`. The file will then say, when it is opened, that it was not closed cleanly.
    pub fn close(mut self) -> Result<(), PoolError> {
        self.checkpoint()
    }

    /// Waits for whatever made an optimistic look impossible.
    fn look_failed(&self, page: PageId, now: Word, miss: Miss) -> Interrupt {
        if now.is_evicted() { Interrupt::Miss(miss) } else { Interrupt::Conflict(page) }
    }

    /// A page that something refers to, if it lies within the capacity.
    #[inline]
    fn within(&self, page: PageId) -> bool {
        page.0 < self.core.capacity_pages
    }

    #[cold]
    fn dangling(referrer: PageId, page: PageId) -> Interrupt {
        PoolError::Corruption { extent: Extent::page(referrer), fault: Fault::Reference(page.0) }.into()
    }

    /// Fetches the first lines of a page, which a look at it will need, all at once. The page need not even exist.
    #[inline(always)]
    fn prefetch_lines(&self, page: PageId) {
        let start = self.core.address_of_any(page);
        for line in 0..PREFETCH_LINES {
            prefetch_line(start.wrapping_add(line * LINE_BYTES));
        }
    }

    /// [`Navigation::root`] if the page cannot simply be read.
    #[cold]
    #[inline(never)]
    fn root_closely(&self, page: PageId) -> Result<OptimisticGuard<'_>, Interrupt> {
        if !self.within(page) {
            return Err(Self::dangling(page, page));
        }
        OptimisticGuard::begin(&self.core, page)
            .map_err(|now| self.look_failed(page, now, Miss::certain(Extent::page(page))))
    }

    /// [`Navigation::child`] if `page`, to which the parent refers, cannot simply be read.
    // The guard is taken by value, so that it need not lie in memory while all is well.
    #[cold]
    #[inline(never)]
    fn child_closely<'p>(
        &'p self,
        parent: OptimisticGuard<'p>,
        page: PageId,
    ) -> Result<OptimisticGuard<'p>, Interrupt> {
        if !self.within(page) {
            parent.validate()?;
            return Err(Self::dangling(parent.id(), page));
        }
        self.follow(&parent, page, OptimisticGuard::begin(&self.core, page))
    }

    /// What a look at `page`, to which the parent refers, comes to.
    #[inline]
    fn follow<'p>(
        &'p self,
        parent: &OptimisticGuard<'p>,
        page: PageId,
        look: Result<OptimisticGuard<'p>, Word>,
    ) -> Result<OptimisticGuard<'p>, Interrupt> {
        match look {
            Ok(child) => {
                parent.validate()?;
                Ok(child)
            }
            Err(now) => {
                let miss = parent.miss(Extent::page(page))?;
                Err(self.look_failed(page, now, miss))
            }
        }
    }

    /// The page to which the parent refers at `place`.
    #[inline]
    fn referred(&self, parent: &OptimisticGuard<'_>, place: usize) -> Result<PageId, Interrupt> {
        let page = PageId(parent.bytes().u64_at(place));
        if self.within(page) {
            return Ok(page);
        }
        parent.validate()?;
        Err(Self::dangling(parent.id(), page))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // The evictor ends before the mapping goes. A pool that is dropped and not closed leaves the file
        // marked as in use, if it was changed.
        self.evictor = None;
    }
}

/// What was found in, or made of, the file.
struct Found {
    memory: PageMemory,
    capacity_pages: u64,
    space: SpaceMap,
    superblock: crate::file::superblock::Superblock,
    damaged: Option<PageId>,
    fresh: bool,
}

impl Navigation for Pool {
    type Optimistic<'p> = OptimisticGuard<'p>;
    type Shared<'p> = SharedGuard<'p>;
    type Exclusive<'p> = ExclusiveGuard<'p>;

    #[inline(always)]
    fn root(&self, page: PageId) -> Result<OptimisticGuard<'_>, Interrupt> {
        match OptimisticGuard::look(&self.core, page) {
            Some(root) => Ok(root),
            None => self.root_closely(page),
        }
    }

    #[inline(always)]
    fn child<'p>(
        &'p self,
        parent: &OptimisticGuard<'p>,
        place: usize,
    ) -> Result<OptimisticGuard<'p>, Interrupt> {
        self.prefetch_lines(PageId(parent.bytes().u64_at(place)));
        self.child_fetched(parent, place)
    }

    #[inline(always)]
    fn child_fetched<'p>(
        &'p self,
        parent: &OptimisticGuard<'p>,
        place: usize,
    ) -> Result<OptimisticGuard<'p>, Interrupt> {
        let page = PageId(parent.bytes().u64_at(place));
        match OptimisticGuard::look(&self.core, page) {
            Some(child) if parent.is_valid() => Ok(child),
            _ => self.child_closely(*parent, page),
        }
    }

    fn child_in_passing<'p>(
        &'p self,
        parent: &OptimisticGuard<'p>,
        place: usize,
    ) -> Result<OptimisticGuard<'p>, Interrupt> {
        let page = self.referred(parent, place)?;
        self.prefetch_lines(page);
        self.follow(parent, page, OptimisticGuard::begin_in_passing(&self.core, page))
    }

    fn child_of_latched<'p>(
        &'p self,
        parent: &ExclusiveGuard<'p>,
        place: usize,
    ) -> Result<OptimisticGuard<'p>, Interrupt> {
        let page = PageId(parent.page().u64_at(place));
        if !self.within(page) {
            return Err(Self::dangling(parent.id(), page));
        }
        // The parent's version will differ by the time the miss is resolved, if it is changed; if it is
        // not, the reference still stands.
        OptimisticGuard::begin(&self.core, page)
            .map_err(|now| self.look_failed(page, now, Miss::of_latched(&self.core, parent.id(), page)))
    }

    #[inline]
    fn reacquire(&self, page: PageId, token: u64) -> Option<OptimisticGuard<'_>> {
        OptimisticGuard::reacquire(&self.core, page, token)
    }

    #[inline]
    fn relax<'p>(&'p self, guard: ExclusiveGuard<'p>) -> OptimisticGuard<'p> {
        guard.relax()
    }

    #[inline]
    fn prefetch(&self, page: PageId, at: usize, bytes: usize) {
        self.core.prefetch(page, at, bytes);
    }

    fn shared<'p>(
        &'p self,
        parent: &OptimisticGuard<'p>,
        extent: Extent,
    ) -> Result<SharedGuard<'p>, Interrupt> {
        let beyond = extent.head.0.saturating_add(extent.pages as u64) > self.core.capacity_pages;
        if beyond || extent.pages == 0 {
            parent.validate()?;
            return Err(Self::dangling(parent.id(), extent.head));
        }
        let state = self.core.state(extent.head);
        let now = state.load();
        if now.is_evicted() {
            return Err(Interrupt::Miss(parent.miss(extent)?));
        }
        if !state.try_shared(now) {
            return Err(Interrupt::Conflict(extent.head));
        }
        let guard = SharedGuard::adopt(&self.core, extent);
        // The latch keeps the extent from being freed; whether it still was what the parent refers to when
        // it was latched, the parent tells.
        parent.validate()?;
        if !self.core.is_allocated(extent) {
            return Err(PoolError::not_allocated(extent).into());
        }
        Ok(guard)
    }

    fn shared_certain(&self, extent: Extent) -> Result<SharedGuard<'_>, PoolError> {
        Pool::shared(self, extent)
    }

    fn limit_pages(&self) -> usize {
        Pool::limit_pages(self)
    }

    fn outage(&self) -> Option<PoolError> {
        self.core.outage.error()
    }

    #[cold]
    fn resolve(&self, interrupt: Interrupt) -> Result<(), PoolError> {
        match interrupt {
            Interrupt::Conflict(page) => {
                self.core.counters.restarts.add(1);
                if self.within(page) {
                    self.core.wait_after_conflict(page);
                }
                Ok(())
            }
            Interrupt::Miss(miss) => {
                self.core.counters.restarts.add(1);
                self.core.fault(miss)
            }
            Interrupt::Fatal(error) => Err(*error),
        }
    }
}

impl Allocation for Pool {
    type Allocated<'p> = AllocatedGuard<'p>;

    fn allocate(&self, pages: u32, kind: PageKind) -> Result<AllocatedGuard<'_>, PoolError> {
        Pool::allocate(self, pages, kind)
    }

    fn discard(&self, extent: Extent) -> Result<(), PoolError> {
        self.core.discard(extent)
    }

    fn is_extent(&self, extent: Extent) -> bool {
        Pool::is_extent(self, extent)
    }
}

impl ChangeRecords for Pool {}

impl AsynchronousReads for Pool {
    type Misses<'p> = MissQueue<'p>;

    fn misses(&self, depth: usize) -> Result<MissQueue<'_>, PoolError> {
        MissQueue::new(&self.core, depth)
    }

    fn is_latched(&self, page: PageId) -> bool {
        self.within(page) && self.core.state(page).load().is_exclusive()
    }

    fn is_evicted(&self, page: PageId) -> bool {
        self.within(page) && self.core.state(page).load().is_evicted()
    }
}

impl Streams for Pool {
    type Stream<'p> = ExtentStream<'p>;
    type Pages<'p> = PageStream<'p>;

    fn stream(&self, pages: u32, kind: PageKind) -> Result<ExtentStream<'_>, PoolError> {
        ExtentStream::begin(&self.core, pages, kind)
    }

    fn pages(&self, kind: PageKind) -> Result<PageStream<'_>, PoolError> {
        PageStream::begin(&self.core, kind)
    }

    fn read_part<'p>(
        &'p self,
        parent: &OptimisticGuard<'p>,
        extent: Extent,
        first_page: u32,
        buffer: &mut AlignedBuffer,
    ) -> Result<(), Interrupt> {
        if extent.head.0.saturating_add(extent.pages as u64) > self.core.capacity_pages {
            parent.validate()?;
            return Err(Self::dangling(parent.id(), extent.head));
        }
        self.core.read_part(parent, extent, first_page, buffer)
    }
}
