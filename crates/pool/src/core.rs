//! What guards, evictor and pool share: the mapping, the states, and the way in and out of memory.
//!
//! # Invariants
//! - A page that is evicted has no memory, or such that was never written: it reads as zeroes.
//! - An extent is in the resident set, and counted in the budget, from before its latch is first released
//!   after it came in until after it was last taken to drop it.
//! - Of an extent only the head's state is used, and only heads that the space map confirms are read in.
//! - The pool's own extents (superblocks, the space map on storage) are never in the mapping.
//!
//! # Lock order
//! The pause of the background evictor; latches of pages, in the order in which the structure on them
//! prescribes; the list of pending frees, under which latches are only tried; then the superblock's lock; then
//! the space map's; then the file's size. A bucket of the parking lot is locked for no other. Eviction waits
//! for no latch, so it may run under any.

use crate::{
    error::{Fault, Miss, PoolError},
    file::lifecycle::space_map_pages,
    file::superblock::{SUPERBLOCKS, Superblock},
    io::cooperative::{CooperativeCompletion, Queues},
    io::miss_queue::Reads,
    io::outage::{Failure, Outage, copy_of},
    maintenance::huge_pages::HugeRuns,
    maintenance::prefault::PrefaultWindow,
    options::LogBarrier,
    page::optimistic_bytes::{OptimisticBytes, prefetch, prefetch_to_write},
    page::parking::ParkingLot,
    page::simd,
    page::state::{PageState, Wake, Want, Word},
    primitive::spin_loop,
    replacement::budget::Budget,
    replacement::resident_set::{EXTENT_PAGES_MAX, ResidentSet},
    space::SpaceMap,
    statistics::Counters,
};
use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
};
use std::time::{Duration, Instant};
use vellum_base::{Extent, Lsn, PAGE_SIZE, PageHeader, PageId, PageKind, verify_header};
use vellum_vm::{File, Mapping, PageRange, Releaser, VmError, Wait};

/// How often a latch is looked at before the thread goes to sleep: about as long as a short critical
/// section takes.
const SPINS: u32 = 100;

/// How long an operation that failed because of shared holders waits for them to go before it tries again: about
/// as long as a write of the page takes.
const READERS_WAIT_MAX: Duration = Duration::from_micros(200);

pub(crate) struct Core {
    // What a hit needs comes first, in one cache line, and never changes.
    base: *mut u8,
    states: *const PageState,
    pub(crate) capacity_pages: u64,
    /// The capacity again; or 0 if hits are counted, so that looks at pages take the way on which they are.
    pub(crate) pages_uncounted: u64,
    pub(crate) count_hits: bool,
    pub(crate) read_only: bool,

    pub(crate) file: Arc<dyn File>,
    pub(crate) releaser: Releaser,
    pub(crate) log: Arc<dyn LogBarrier>,
    pub(crate) budget: Budget,
    pub(crate) resident: ResidentSet,
    pub(crate) parking: ParkingLot,
    pub(crate) space: SpaceMap,
    pub(crate) superblock: Mutex<Superblock>,
    /// The first page of the space map on storage; 0 if there is none.
    pub(crate) space_map_head: AtomicU64,
    /// Locked by the background evictor while it works, and by whoever wants it to pause.
    pub(crate) background: Mutex<()>,
    /// The superblock on storage says "in use": set before the first page is written.
    pub(crate) marked_in_use: AtomicBool,
    /// That, and nothing else speaks against changes.
    pub(crate) changes_admitted: AtomicBool,
    /// Whether pages can be written.
    pub(crate) outage: Outage,
    /// A sync failed: nothing more can be promised about this file.
    pub(crate) poisoned: AtomicBool,
    /// A thread panicked while it changed a page: what is in memory must not be declared sound.
    pub(crate) panicked: AtomicBool,
    pub(crate) counters: Counters,
    /// Extents that nothing refers to any more, but somebody still reads: see `io::extent_stream`.
    pub(crate) pending_frees: Mutex<Vec<Extent>>,
    /// The file's size as far as it has been grown, in pages.
    pub(crate) file_pages: Mutex<u64>,
    /// The size to which it could not be grown lately, in pages. Locked with `file_pages`.
    pub(crate) growth_failure: Mutex<Option<(u64, Failure)>>,
    /// All queues of asynchronous reads; those that nobody uses at the moment; how many pages they read.
    pub(crate) queues: Queues<Reads>,
    pub(crate) reads_idle: Mutex<Vec<Arc<Mutex<Reads>>>>,
    pub(crate) reading_pages: AtomicUsize,
    pub(crate) prefault: PrefaultWindow,
    // Last, so that they outlive everything that points into them.
    pub(crate) huge: HugeRuns,
    /// The memory of the pages.
    pub(crate) pages: Mapping,
    _states: Mapping,
}

/// Locks what a panic cannot leave half-done: nothing panics under these locks but for a broken invariant.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// What becomes of memory that a newly allocated page still has from its last life.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// It is used again, if there is one page of it: the caller has reserved memory and wants zeroes in it.
    Keep,
    /// It goes: the extent is not brought into memory now.
    Drop,
}

/// The parts of a [`Core`] that depend on what is in the file.
pub(crate) struct Parts {
    pub(crate) capacity_pages: u64,
    pub(crate) pool_pages: usize,
    pub(crate) count_hits: bool,
    pub(crate) huge_pages: bool,
    pub(crate) prefault: bool,
    pub(crate) read_only: bool,
    pub(crate) file: Arc<dyn File>,
    pub(crate) releaser: Releaser,
    pub(crate) log: Arc<dyn LogBarrier>,
    pub(crate) space: SpaceMap,
    pub(crate) superblock: Superblock,
    pub(crate) marked_in_use: bool,
    pub(crate) file_pages: u64,
    pub(crate) pages: Mapping,
    pub(crate) states: Mapping,
}

// SAFETY: the raw pointers lead into the two mappings, which the core owns and which never move. States
// are atomics. Page contents are accessed through guards, whose latches exclude conflicting access, or
// through `OptimisticBytes`, which reads atomically.
unsafe impl Send for Core {}
// SAFETY: as above.
unsafe impl Sync for Core {}

impl Core {
    pub(crate) fn new(parts: Parts) -> Self {
        simd::detect();
        Self {
            base: parts.pages.base().as_ptr(),
            states: parts.states.base().as_ptr().cast(),
            capacity_pages: parts.capacity_pages,
            pages_uncounted: if parts.count_hits { 0 } else { parts.capacity_pages },
            count_hits: parts.count_hits,
            read_only: parts.read_only,
            file: parts.file,
            releaser: parts.releaser,
            log: parts.log,
            budget: Budget::new(parts.pool_pages),
            resident: ResidentSet::new(parts.pool_pages),
            parking: ParkingLot::new(),
            space_map_head: AtomicU64::new(parts.superblock.space_map.map_or(0, |map| map.head.0)),
            background: Mutex::new(()),
            superblock: Mutex::new(parts.superblock),
            marked_in_use: AtomicBool::new(parts.marked_in_use),
            changes_admitted: AtomicBool::new(parts.marked_in_use),
            outage: Outage::default(),
            poisoned: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            counters: Counters::default(),
            pending_frees: Mutex::new(Vec::new()),
            file_pages: Mutex::new(parts.file_pages),
            growth_failure: Mutex::new(None),
            queues: Queues::new(),
            reads_idle: Mutex::new(Vec::new()),
            reading_pages: AtomicUsize::new(0),
            prefault: PrefaultWindow::new(parts.space.end(), parts.prefault),
            huge: HugeRuns::new(&parts.pages, parts.huge_pages),
            space: parts.space,
            pages: parts.pages,
            _states: parts.states,
        }
    }

    /// The state of a page.
    ///
    /// # Panics
    /// If the page lies beyond the capacity: references are checked before they are followed.
    #[inline]
    pub(crate) fn state(&self, page: PageId) -> &PageState {
        assert!(page.0 < self.capacity_pages, "{page} is beyond the capacity");
        // SAFETY: it is not.
        unsafe { self.state_within(page) }
    }

    /// The state of a page that is known to lie within the capacity.
    ///
    /// # Safety
    /// It does.
    #[inline]
    pub(crate) unsafe fn state_within(&self, page: PageId) -> &PageState {
        debug_assert!(page.0 < self.capacity_pages);
        // SAFETY: the mapping of states has one zeroed word for each page of the capacity and lives as long
        // as `self`.
        unsafe { &*self.states.add(page.0 as usize) }
    }

    /// Where a page lives.
    #[inline]
    pub(crate) fn address(&self, page: PageId) -> *mut u8 {
        debug_assert!(page.0 < self.capacity_pages);
        // SAFETY: the mapping of pages is as long as the capacity.
        unsafe { self.base.add(page.offset() as usize) }
    }

    /// Where a page would live, whether or not it exists.
    #[inline]
    pub(crate) fn address_of_any(&self, page: PageId) -> *const u8 {
        self.base.wrapping_add(page.0.wrapping_mul(PAGE_SIZE as u64) as usize)
    }

    /// Fetches bytes of a page into the processor's cache, and with its beginning the page's state.
    #[inline]
    pub(crate) fn prefetch(&self, page: PageId, at: usize, bytes: usize) {
        // Any page will do, also one beyond the capacity: a prefetch does nothing that a program can see.
        let page = page.0 as usize;
        if at == 0 {
            prefetch(self.states.wrapping_add(page).cast(), 1);
        }
        prefetch(self.base.wrapping_add(page.wrapping_mul(PAGE_SIZE).wrapping_add(at)), bytes);
    }

    /// The bytes of a page, for whoever validates what it reads.
    #[inline]
    pub(crate) fn optimistic_bytes(&self, page: PageId) -> OptimisticBytes<'_> {
        // SAFETY: the mapping stays readable as long as `self`, resident or not.
        unsafe { OptimisticBytes::new(self.address(page)) }
    }

    /// The bytes of an extent.
    ///
    /// # Safety
    /// The caller holds the extent's latch, shared or exclusively, as long as the slice lives.
    #[inline]
    pub(crate) unsafe fn bytes(&self, extent: Extent) -> &[u8] {
        // SAFETY: within the mapping, because the space map or a single page's capacity check confirmed the
        // extent; the latch excludes writers.
        unsafe { std::slice::from_raw_parts(self.address(extent.head), extent.bytes()) }
    }

    /// The bytes of an extent, to be changed.
    ///
    /// # Safety
    /// The caller holds the extent's latch exclusively as long as the slice lives, which is the only one.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the latch in the state word is what makes it unique")]
    pub(crate) unsafe fn bytes_mut(&self, extent: Extent) -> &mut [u8] {
        // SAFETY: as in `bytes`; the exclusive latch excludes every other slice.
        unsafe { std::slice::from_raw_parts_mut(self.address(extent.head), extent.bytes()) }
    }

    pub(crate) fn wake(&self, page: PageId, wake: Wake) {
        self.parking.wake(page, wake);
    }

    /// Waits until `want` may be possible: spins a little, then sleeps. If the page is being read by a queue whose
    /// owner is elsewhere, this thread ends the read (see `io::cooperative`).
    pub(crate) fn wait(&self, page: PageId, want: Want) {
        let state = self.state(page);
        for _ in 0..SPINS {
            if !want.is_blocked_by(state.load()) {
                return;
            }
            spin_loop();
        }
        if self.parking.park(page, state, want, None, || self.complete_cooperatively(page)) {
            self.counters.waits.add(1);
        }
    }

    /// Looks for the queue that reads `page`, and ends reads of it.
    fn complete_cooperatively(&self, page: PageId) -> CooperativeCompletion {
        self.queues.complete(|reads| reads.holds(page), |reads| reads.finish(self, Wait::ForOne))
    }

    /// Waits a little after an optimistic read of `page` has failed, or could not be upgraded.
    pub(crate) fn wait_after_conflict(&self, page: PageId) {
        let now = self.state(page).load();
        if now.is_exclusive() {
            self.wait(page, Want::Read);
        } else if now.shared_holders() > 0 {
            // Readers, or who writes the page to storage, may be what an upgrade failed for. They may also stay
            // for long and have nothing to do with it, so this does not wait until they have gone.
            let state = self.state(page);
            if self.parking.park(page, state, Want::Exclusive, Some(READERS_WAIT_MAX), || {
                CooperativeCompletion::NotReading
            }) {
                self.counters.waits.add(1);
            }
        } else {
            spin_loop();
        }
    }

    /// Latches an extent shared, reading it in if need be.
    pub(crate) fn latch_shared(&self, extent: Extent) -> Result<(), PoolError> {
        self.latch(extent, Want::Shared)
    }

    /// Latches an extent exclusively, reading it in if need be.
    pub(crate) fn latch_exclusive(&self, extent: Extent) -> Result<(), PoolError> {
        self.admit_changes()?;
        self.latch(extent, Want::Exclusive)
    }

    fn latch(&self, extent: Extent, want: Want) -> Result<(), PoolError> {
        self.check_bounds(extent)?;
        let state = self.state(extent.head);
        loop {
            let now = state.load();
            if now.is_evicted() {
                self.fault(Miss::certain(extent))?;
                continue;
            }
            let taken = match want {
                Want::Exclusive => (now.is_unlocked() || now.is_marked()) && state.try_exclusive(now),
                Want::Shared | Want::Read => state.try_shared(now),
            };
            if taken {
                break;
            }
            self.wait(extent.head, want);
        }
        // Whatever was latched must be what the space map says, or the slice would reach into extents whose
        // latches nobody holds, or show what was freed.
        if !self.is_allocated(extent) {
            let wake = match want {
                Want::Exclusive => state.release_exclusive(false),
                Want::Shared | Want::Read => state.release_shared(),
            };
            self.wake(extent.head, wake);
            return Err(PoolError::not_allocated(extent));
        }
        Ok(())
    }

    /// Refuses what cannot be an extent of this file, so that its state may be looked at.
    pub(crate) fn check_bounds(&self, extent: Extent) -> Result<(), PoolError> {
        if extent.pages == 0 || extent.head.0.saturating_add(extent.pages as u64) > self.capacity_pages {
            return Err(PoolError::not_allocated(extent));
        }
        if extent.pages > EXTENT_PAGES_MAX {
            return Err(PoolError::LargerThanPool { extent, pool_pages: self.budget.limit() });
        }
        Ok(())
    }

    /// Whether exactly this extent is allocated to the application. Certain while its latch is held.
    pub(crate) fn is_allocated(&self, extent: Extent) -> bool {
        !self.is_own(extent.head) && self.space.is_extent(extent)
    }

    /// Whether an extent of the pool itself begins at this page.
    fn is_own(&self, head: PageId) -> bool {
        // Relaxed: it changes when a file is opened or closed cleanly, and at the first change after that; a
        // page that ceases to be the pool's own is handed on under the space map's lock.
        head.0 < SUPERBLOCKS || head.0 == self.space_map_head.load(Ordering::Relaxed)
    }

    /// Makes an extent resident, unless somebody else does so first.
    ///
    /// If it turns out that the reference was stale, nothing happens: whoever asked finds out by itself.
    pub(crate) fn fault(&self, miss: Miss) -> Result<(), PoolError> {
        self.check_bounds(miss.extent)?;
        let head = miss.extent.head;
        let state = self.state(head);
        let now = state.load();
        if !now.is_evicted() || !state.try_exclusive(now) {
            return Ok(());
        }
        let result = self.read_in(miss.extent);
        self.end_read(head, result.is_ok());
        match result {
            Err(PoolError::Corruption { .. } | PoolError::Read { .. }) if !self.still_refers(&miss) => Ok(()),
            other => other,
        }
    }

    /// Whether what led to a miss still stands.
    pub(crate) fn still_refers(&self, miss: &Miss) -> bool {
        miss.referrer.is_none_or(|(page, seen)| self.state(page).validate(Word(seen)))
    }

    /// Reads an extent whose head the caller has latched exclusively; undoes everything on failure.
    fn read_in(&self, extent: Extent) -> Result<(), PoolError> {
        if !self.is_allocated(extent) {
            return Err(PoolError::not_allocated(extent));
        }
        self.reserve(extent)?;
        self.counters.misses.add(1);
        // SAFETY: the extent lies in the mapping and in no other, and its latch is held exclusively.
        let read = unsafe { self.file.read(extent.head.offset(), self.address(extent.head), extent.bytes()) };
        self.admit(extent, read)
    }

    /// Checks an extent that has just been read, whose latch is held exclusively.
    pub(crate) fn verify(&self, extent: Extent) -> Result<(), PoolError> {
        // SAFETY: the latch is held exclusively.
        let bytes = unsafe { self.bytes(extent) };
        verify_header(bytes, extent)
            .map_err(|fault| PoolError::Corruption { extent, fault: Fault::Header(fault) })?;
        Ok(())
    }

    /// Gives the memory of ranges back to the system. The kernel refuses to if the process has locked it; that is undone
    /// for the pool, whose limit is worth nothing otherwise.
    ///
    /// # Safety
    /// As for [`Releaser::release`].
    pub(crate) unsafe fn release(&self, ranges: &[PageRange]) -> Result<(), VmError> {
        // SAFETY: passed on from the caller.
        unsafe { self.releaser.release(ranges) }.or_else(|error| {
            self.counters.releases_refused.add(1);
            self.pages.unlock().map_err(|_| error)?;
            // SAFETY: as above.
            unsafe { self.releaser.release(ranges) }
        })
    }

    /// Gives the memory of an exclusively latched extent back at once.
    pub(crate) fn drop_memory(&self, extent: Extent) {
        self.split_huge_pages(&[extent]);
        let range = PageRange { address: self.address(extent.head), bytes: extent.bytes() };
        // SAFETY: the caller holds the latch exclusively and keeps no reference.
        if unsafe { self.release(&[range]) }.is_err() {
            // The kernel kept the pages, or some. They must still read as zeroes, so that "evicted" means empty.
            if self.releaser.supply(&[range]).is_ok() {
                // SAFETY: as above.
                unsafe { self.bytes_mut(extent) }.fill(0);
            }
        }
    }

    /// Allocates an extent on storage and in memory. Its head is latched exclusively, its contents are
    /// zeroes behind a fresh header.
    pub(crate) fn allocate(&self, pages: u32, kind: PageKind) -> Result<Extent, PoolError> {
        self.admit_changes()?;
        let wanted = Extent { head: PageId(0), pages };
        self.reserve_for_new(wanted)?;
        let extent = match self.claim_space(pages, Memory::Keep) {
            Ok(extent) => extent,
            Err(error) => {
                self.budget.give_back(pages as usize);
                return Err(error);
            }
        };
        self.admit_new(extent, kind)?;
        Ok(extent)
    }

    /// Fetches what [`admit_new`](Self::admit_new) of a page will touch beside the page into the processor's cache.
    pub(crate) fn prefetch_admission(&self, page: PageId) {
        prefetch_to_write(std::ptr::from_ref(self.state(page)).cast(), 1);
        prefetch_to_write(std::ptr::from_ref(self.resident.likely_slot(page)).cast(), 1);
    }

    /// Makes what was claimed an extent that is in memory: see [`allocate`](Self::allocate). The caller has reserved
    /// its memory.
    ///
    /// # Errors
    /// If the system has no memory for it; it is free again then, and so is what was reserved.
    pub(crate) fn admit_new(&self, extent: Extent, kind: PageKind) -> Result<(), PoolError> {
        self.claim(extent, Memory::Keep);
        let range = PageRange { address: self.address(extent.head), bytes: extent.bytes() };
        // SAFETY: the head's latch is held exclusively, and the other pages are reachable only through it.
        if let Err(error) = unsafe { self.releaser.supply_zeroes(range) } {
            self.drop_memory(extent);
            self.budget.give_back(extent.pages as usize);
            self.space.free(extent);
            self.wake(extent.head, self.state(extent.head).release_exclusive_evicted());
            return Err(error.into());
        }
        // SAFETY: as above.
        let bytes = unsafe { self.bytes_mut(extent) };
        PageHeader { extent, lsn: Lsn(0), kind }.write(bytes);
        self.resident.insert(extent);
        self.allocated_up_to(extent.end().0);
        Ok(())
    }

    /// Latches the head of a newly claimed extent, drops what is left in memory of each of its pages from
    /// their last life, and publishes it. See `space` on why nothing new can come meanwhile.
    pub(crate) fn claim(&self, extent: Extent, memory: Memory) {
        if extent.pages > 1 {
            // SeqCst: orders the claim on storage before the look at pages that are not latched here; see
            // `Core::release_strays`.
            fence(Ordering::SeqCst);
        }
        for page in (extent.head.0..extent.end().0).map(PageId) {
            let state = self.state(page);
            if page != extent.head && state.load().is_evicted() {
                continue;
            }
            let was_resident = loop {
                let now = state.load();
                let free = now.is_evicted() || now.is_unlocked() || now.is_marked();
                if free && state.try_exclusive(now) {
                    break !now.is_evicted();
                }
                if !free {
                    self.wait(page, Want::Exclusive);
                }
            };
            if was_resident && let Some(stale) = self.resident.remove(page) {
                state.clear_dirty();
                if memory == Memory::Keep && extent.pages == 1 && stale.pages == 1 {
                    // Its memory is used again as it is: no trip to the kernel.
                    // SAFETY: the latch is held exclusively.
                    unsafe { self.bytes_mut(stale) }.fill(0);
                } else {
                    self.drop_memory(stale);
                }
                self.budget.give_back(stale.pages as usize);
            }
            if page != extent.head {
                self.wake(page, state.release_exclusive_evicted());
            }
        }
        self.space.publish(extent);
    }

    /// Frees an extent whose head the caller has latched exclusively, and releases the latch.
    ///
    /// The memory of a single page stays until the clock finds it, for the next allocation to use. That of
    /// a longer extent goes first, because its pages may be given to others one by one.
    ///
    /// What is not allocated as such stays as it is, and is counted: only a structure that refers to the same
    /// page twice, because it is damaged or its owner errs, asks for that.
    pub(crate) fn free(&self, extent: Extent) {
        let state = self.state(extent.head);
        let wake = if !self.is_allocated(extent) {
            self.counters.frees_refused.add(1);
            state.release_exclusive(true)
        } else if extent.pages == 1 {
            self.space.free(extent);
            state.release_exclusive_clean()
        } else {
            self.drop_memory(extent);
            if self.resident.remove(extent.head).is_some() {
                self.budget.give_back(extent.pages as usize);
            }
            self.space.free(extent);
            state.release_exclusive_evicted()
        };
        self.wake(extent.head, wake);
    }

    /// Claims room on storage for an extent. If it is not to be brought into memory now, what was fetched ahead for it
    /// is released.
    pub(crate) fn claim_space(&self, pages: u32, memory: Memory) -> Result<Extent, PoolError> {
        let mut prefaulted = 0..0;
        let claimed = self.space.allocate(pages, |end| {
            self.grow_file_for(end)?;
            prefaulted = self.prefault.leave(end);
            Ok(())
        });
        match memory {
            Memory::Keep => self.budget.give_back(prefaulted.count()),
            Memory::Drop => self.release_prefaulted(prefaulted),
        }
        claimed
    }

    /// Makes the file hold `pages` pages, and beside them the map that a close will write: a full disk must
    /// not keep a file from being closed.
    pub(crate) fn grow_file_for(&self, pages: u64) -> Result<(), PoolError> {
        self.grow_file(pages + u64::from(space_map_pages(pages)))
    }

    /// Makes the file hold `pages` pages. Called with the space map locked.
    pub(crate) fn grow_file(&self, pages: u64) -> Result<(), PoolError> {
        /// The file grows by an eighth of its size, within these bounds, in pages.
        const CHUNK_PAGES: std::ops::RangeInclusive<u64> = 256..=65_536;
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
        // Where a whole chunk does not fit, less may. What has just been refused is not asked for again at once.
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

    /// Starts an optimistic read of a page that is resident and not latched exclusively.
    #[inline]
    pub(crate) fn readable(&self, state: &PageState) -> Result<Word, Word> {
        let now = state.load();
        if now.is_readable() { Ok(now) } else { self.make_readable(state, now) }
    }

    #[cold]
    fn make_readable(&self, state: &PageState, now: Word) -> Result<Word, Word> {
        if now.is_marked() {
            // Whether this succeeds or somebody else changes the word: look again.
            state.try_unmark(now);
            let now = state.load();
            return if now.is_readable() || now.is_marked() { Ok(now) } else { Err(now) };
        }
        Err(now)
    }

    /// A thread panicked while it changed a page, which may be half changed.
    #[cold]
    pub(crate) fn note_panic(&self) {
        self.panicked.store(true, Ordering::Release);
    }

    /// Whether a sync has failed.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }
}
