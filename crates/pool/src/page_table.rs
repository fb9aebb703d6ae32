//! The page table: where pages live, their states, and the memory behind them.
//!
//! It owns the mapping of the pages, the array of their states, the parking lot in which threads wait for latches, and
//! the releaser, which gives memory back to the system. It knows no layer above it: not which pages are allocated, nor
//! how many may be in memory, nor how they get there.
//!
//! # Invariants
//! - An evicted page reads as zeroes: it has no memory, or memory that was never written.
//! - Addresses and states stay within the capacity, whatever page is asked for.
//! - Only the state of an extent's head is used.
//!
//! # Lock order
//! No lock is taken while a bucket of the parking lot is locked.

use crate::{
    page::huge_runs::HugeRuns,
    page::optimistic_bytes::OptimisticBytes,
    page::parking::{CooperativeCompletion, ParkingLot},
    page::simd,
    page::state::{PageState, Wake, Want, Word},
    primitive::spin_loop,
    statistics::Counters,
};
use std::{ops::Range, time::Duration};
use vellum_base::{Extent, PAGE_SIZE, PageId};
use vellum_vm::{Mapping, PageRange, ReleaseMethod, Releaser, VmError, prefetch};

/// How often a thread loads the state word before it sleeps: about as long as a short critical
/// section takes.
const SPINS: u32 = 100;

/// How long an operation that failed because of shared holders waits for them before it tries again: about as long as a
/// write of the page takes.
const READERS_WAIT_MAX: Duration = Duration::from_micros(200);

/// The mapping of a pool's pages and their states.
// The fields that a hit needs come first, in one cache line, and never change.
#[repr(C, align(64))]
pub(crate) struct PageTable {
    base: *mut u8,
    states: *const PageState,
    pub(crate) capacity_pages: u64,
    /// The capacity again; or 0 if hits are counted, so that reads take the path that counts them.
    pages_uncounted: u64,
    pub(crate) count_hits: bool,
    /// The counters of the whole pool: kept here, where every layer can reach them.
    pub(crate) counters: Counters,
    parking: ParkingLot,
    pub(crate) releaser: Releaser,
    pub(crate) huge_runs: HugeRuns,
    // Last, so that they outlive everything that points into them.
    pub(crate) pages: Mapping,
    _states: Mapping,
}

// SAFETY: the raw pointers lead into the two mappings, which the table owns and which never move. States
// are atomics. Page contents are accessed through guards, whose latches exclude conflicting access, or
// through `OptimisticBytes`, which reads atomically.
unsafe impl Send for PageTable {}
// SAFETY: as above.
unsafe impl Sync for PageTable {}

impl PageTable {
    /// A table for `pages`, none of which is in memory.
    ///
    /// # Errors
    /// If the system has no address space for the states.
    pub(crate) fn new(
        pages: Mapping,
        releaser: Releaser,
        count_hits: bool,
        huge_pages: bool,
    ) -> Result<Self, VmError> {
        simd::detect();
        let capacity_pages = (pages.len() / PAGE_SIZE) as u64;
        let state_bytes = (capacity_pages as usize * size_of::<u64>()).next_multiple_of(PAGE_SIZE);
        let states = Mapping::reserve(state_bytes, "the states of the pages")?.for_table();
        let huge_runs = HugeRuns::new(&pages, huge_pages && releaser.method() != ReleaseMethod::Exmap);
        Ok(Self {
            base: pages.base().as_ptr(),
            states: states.base().as_ptr().cast(),
            capacity_pages,
            pages_uncounted: if count_hits { 0 } else { capacity_pages },
            count_hits,
            counters: Counters::default(),
            parking: ParkingLot::new(),
            releaser,
            huge_runs,
            pages,
            _states: states,
        })
    }

    /// Whether a page fault brings memory when a page is written. The device of exmap maps only small pages, and only
    /// those that are asked for.
    pub(crate) fn faults_bring_memory(&self) -> bool {
        self.releaser.method() != ReleaseMethod::Exmap
    }

    /// The state of a page, if it lies within the capacity and hits are not counted.
    #[inline(always)]
    pub(crate) fn state_uncounted(&self, page: PageId) -> Option<&PageState> {
        // SAFETY: it lies within the capacity.
        (page.0 < self.pages_uncounted).then(|| unsafe { self.state_within(page) })
    }

    /// The state of a page.
    ///
    /// # Panics
    /// If the page lies beyond the capacity: references are checked before they are followed.
    #[inline]
    pub(crate) fn state(&self, page: PageId) -> &PageState {
        if page.0 >= self.capacity_pages {
            beyond_capacity(page);
        }
        // SAFETY: it lies within the capacity, as was just checked.
        unsafe { self.state_within(page) }
    }

    /// The state of a page that is known to lie within the capacity.
    ///
    /// # Safety
    /// The page lies within the capacity.
    #[inline]
    pub(crate) unsafe fn state_within(&self, page: PageId) -> &PageState {
        debug_assert!(page.0 < self.capacity_pages);
        // SAFETY: the mapping of states has one zeroed word for each page of the capacity and lives as long
        // as `self`.
        unsafe { &*self.states.add(page.0 as usize) }
    }

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
        // Any page will do, even one beyond the capacity: a prefetch has no effect that a program can see.
        let page = page.0 as usize;
        if at == 0 {
            prefetch(self.states.wrapping_add(page).cast(), 1);
        }
        prefetch(self.base.wrapping_add(page.wrapping_mul(PAGE_SIZE).wrapping_add(at)), bytes);
    }

    /// The bytes of a page, for a reader that validates what it reads.
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

    /// Latches a page exclusively, in memory or not, if no thread holds it at this moment; returns its previous word.
    pub(crate) fn try_latch(&self, page: PageId) -> Option<Word> {
        let state = self.state(page);
        let now = state.load();
        let is_free = now.is_evicted() || now.is_unlocked() || now.is_marked();
        (is_free && state.try_exclusive(now)).then_some(now)
    }

    /// Releases the exclusive latch of a page that is in memory.
    #[inline(always)]
    pub(crate) fn unlatch(&self, page: PageId, changed: bool) {
        self.relax(page, changed);
    }

    /// [`unlatch`](Self::unlatch), but returns the page's new state, which holds unless another thread changes it.
    #[inline(always)]
    pub(crate) fn relax(&self, page: PageId, changed: bool) -> Word {
        let (after, wake) = self.state(page).release_exclusive(changed);
        self.wake(page, wake);
        after
    }

    /// Releases the exclusive latch of a page that is no longer in memory, or never was.
    pub(crate) fn unlatch_evicted(&self, page: PageId) {
        self.wake(page, self.state(page).release_exclusive_evicted());
    }

    pub(crate) fn unlatch_shared(&self, page: PageId) {
        self.wake(page, self.state(page).release_shared());
    }

    /// Releases the shared latch of a page that was marked, and is not counted as used.
    pub(crate) fn unlatch_shared_marked(&self, page: PageId) {
        self.wake(page, self.state(page).release_shared_marked());
    }

    /// Wakes the threads that wait for a page, if its release said so.
    #[inline]
    pub(crate) fn wake(&self, page: PageId, wake: Wake) {
        self.parking.wake(page, wake);
    }

    /// Waits until `want` may be possible: spins a little, then sleeps. `complete` completes the read of the page if a
    /// queue reads it (see `io::cooperative`).
    pub(crate) fn wait(&self, page: PageId, want: Want, complete: impl Fn() -> CooperativeCompletion) {
        let state = self.state(page);
        for _ in 0..SPINS {
            if !want.is_blocked_by(state.load()) {
                return;
            }
            spin_loop();
        }
        self.counters.waits.add(self.parking.park(page, state, want, None, complete).into());
    }

    /// Waits a little, until the readers of a page may be gone. They may also stay long and be unrelated to the
    /// failure, so this does not wait for the last of them.
    pub(crate) fn wait_for_readers(&self, page: PageId) {
        let (state, most) = (self.state(page), Some(READERS_WAIT_MAX));
        let not_reading = || CooperativeCompletion::NotReading;
        self.counters.waits.add(self.parking.park(page, state, Want::Exclusive, most, not_reading).into());
    }

    /// Gives an extent memory, all zeroes. The caller has latched its head exclusively, and its other pages cannot be
    /// reached otherwise.
    ///
    /// # Errors
    /// If the system has no memory.
    pub(crate) fn supply_zeroes(&self, extent: Extent) -> Result<(), VmError> {
        // SAFETY: as the caller promises.
        unsafe { self.releaser.supply_zeroes(self.range(extent)) }
    }

    /// Gives the memory of ranges back to the system. The kernel refuses if the process has locked the memory; in that
    /// case the pool's memory is unlocked, because its limit would otherwise mean nothing.
    ///
    /// # Safety
    /// As for [`Releaser::release`].
    unsafe fn release(&self, ranges: &[PageRange]) -> Result<(), VmError> {
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
        self.huge_runs.split(&self.pages, &[extent]);
        let range = self.range(extent);
        // SAFETY: the caller holds the latch exclusively and keeps no reference.
        if unsafe { self.release(&[range]) }.is_err() {
            // The kernel kept the pages, or some of them. They must still read as zeroes, because "evicted" means
            // empty.
            if self.releaser.supply(&[range]).is_ok() {
                // SAFETY: as above.
                unsafe { self.bytes_mut(extent) }.fill(0);
            }
        }
    }

    /// Gives the memory of exclusively latched extents, in ascending order, back in one call.
    pub(crate) fn drop_memory_of_all(&self, extents: &[Extent]) {
        self.huge_runs.split(&self.pages, extents);
        let mut ranges: Vec<PageRange> = Vec::with_capacity(extents.len());
        for extent in extents {
            let range = self.range(*extent);
            match ranges.last_mut() {
                Some(last) if last.address.wrapping_add(last.bytes) == range.address => {
                    last.bytes += range.bytes;
                }
                _ => ranges.push(range),
            }
        }
        // SAFETY: all are latched exclusively by this thread, which holds no reference into them.
        if unsafe { self.release(&ranges) }.is_err() {
            // The pages that the kernel did release read as zeroes now, so none can be trusted.
            extents.iter().for_each(|extent| self.drop_memory(*extent));
        }
    }

    fn range(&self, extent: Extent) -> PageRange {
        PageRange { address: self.address(extent.head), bytes: extent.bytes() }
    }

    /// Fetches memory for pages that are not in use yet. Returns whether the system had it.
    pub(crate) fn populate(&self, first: PageId, pages: u64) -> bool {
        self.pages.populate(first.offset() as usize, pages as usize * PAGE_SIZE)
    }

    /// Whether every page of a run is in memory, an extent of its own, and not being changed.
    pub(crate) fn is_whole(&self, mut pages: Range<u64>) -> bool {
        pages.all(|page| {
            let now = self.state(PageId(page)).load();
            !now.is_evicted() && !now.is_exclusive()
        })
    }

    #[cfg(test)]
    pub(crate) fn split_huge_pages(&self, extents: &[Extent]) {
        self.huge_runs.split(&self.pages, extents);
    }
}

// Out of line: the message would keep the callers from being inlined.
#[cold]
#[inline(never)]
fn beyond_capacity(page: PageId) -> ! {
    panic!("{page} is beyond the capacity")
}
