//! Guards: the only way to the bytes of a page. There is one type for each mode; changing the mode consumes the guard.
//!
//! | guard | others may | gives |
//! |---|---|---|
//! | [`OptimisticGuard`] | do anything | [`OptimisticBytes`], to be validated |
//! | [`SharedGuard`] | read | `&[u8]` |
//! | [`ExclusiveGuard`] | do nothing | `&mut [u8]` |
//! | [`AllocatedGuard`] | do nothing, and nothing refers to it yet | `&mut [u8]`; freed again unless kept |

use crate::{
    allocator::Allocator,
    error::{Interrupt, Miss},
    page::{optimistic_bytes::OptimisticBytes, state::PageState, state::Word},
    page_table::PageTable,
    pager::{AllocatedPage, ExclusivePage, OptimisticPage, SharedPage},
};
use std::mem::ManuallyDrop;
use vellum_base::{Extent, HEADER_BYTES, Lsn, PageId, stamp_lsn};

/// An optimistic read of a page, without a latch: the bytes read are valid if [`validate`](Self::validate) says so.
#[must_use = "what was read means nothing until it is validated"]
#[derive(Clone, Copy)]
pub struct OptimisticGuard<'p> {
    allocator: &'p Allocator,
    page: PageId,
    /// Stored, so that no read has to compute them.
    bytes: OptimisticBytes<'p>,
    seen: Word,
}

impl<'p> OptimisticGuard<'p> {
    /// A read of `page`, which lies within the capacity and had this state.
    #[inline(always)]
    fn new(allocator: &'p Allocator, page: PageId, seen: Word) -> Self {
        Self { allocator, page, bytes: allocator.table().optimistic_bytes(page), seen }
    }

    /// Begins to read `page`, if it lies within the capacity and can be read as it is: neither evicted nor
    /// latched exclusively, and not marked by the clock.
    ///
    /// A page nearly always can be, and every operation asks at every level. A caller that is refused finds out why by
    /// [`begin`](Self::begin).
    #[inline(always)]
    pub(crate) fn look(allocator: &'p Allocator, page: PageId) -> Option<Self> {
        let seen = allocator.table().state_uncounted(page)?.load();
        seen.is_readable().then(|| Self::new(allocator, page, seen))
    }

    /// A guard on a page on which an earlier guard had the token `token`, if its contents are still the same.
    #[inline]
    pub(crate) fn reacquire(allocator: &'p Allocator, page: PageId, token: u64) -> Option<Self> {
        let seen = Word(token);
        let guard = Self::look(allocator, page)?;
        // Later reads must be validated against the version that was seen then.
        guard.state().validate(seen).then_some(Self { seen, ..guard })
    }

    /// Begins to read `page`, which the caller has checked to lie within the capacity, and removes the clock's mark
    /// from it. Returns the page's state if it cannot be read.
    pub(crate) fn begin(allocator: &'p Allocator, page: PageId) -> Result<Self, Word> {
        let table = allocator.table();
        let state = table.state(page);
        let mut now = state.load();
        if now.is_marked() {
            // Whether this succeeds or another thread changes the word: load it again.
            state.try_unmark(now);
            now = state.load();
        }
        if !now.is_readable() && !now.is_marked() {
            return Err(now);
        }
        if table.count_hits {
            table.counters.hits.add(1);
        }
        Ok(Self::new(allocator, page, now))
    }

    /// Like [`begin`](Self::begin), but the clock's mark stays: the page is as likely to be evicted as before.
    pub(crate) fn begin_in_passing(allocator: &'p Allocator, page: PageId) -> Result<Self, Word> {
        let seen = allocator.table().state(page).load();
        if seen.is_marked() { Ok(Self::new(allocator, page, seen)) } else { Self::begin(allocator, page) }
    }

    #[inline]
    fn state(&self) -> &'p PageState {
        // SAFETY: a guard is only made for a page that lies within the capacity.
        unsafe { self.allocator.table().state_within(self.page) }
    }

    /// The page that is read.
    #[inline]
    pub fn id(&self) -> PageId {
        self.page
    }

    /// The page's bytes, as they are at the moment of each read.
    #[inline]
    pub fn bytes(&self) -> OptimisticBytes<'p> {
        self.bytes
    }

    /// Whether all that was read so far belongs to one state of the page.
    ///
    /// # Errors
    /// [`Interrupt::Conflict`] if it does not: discard what was computed, and start again.
    #[inline]
    pub fn validate(&self) -> Result<(), Interrupt> {
        if self.is_valid() { Ok(()) } else { Err(Interrupt::Conflict(self.page)) }
    }

    /// Whether [`validate`](Self::validate) succeeds.
    #[inline]
    pub(crate) fn is_valid(&self) -> bool {
        self.state().validate(self.seen)
    }

    /// Latches the page exclusively, if it is unchanged since it was read.
    ///
    /// # Errors
    /// [`Interrupt::Conflict`] if it has changed or another thread holds it; [`Interrupt::Fatal`] if the
    /// pool is open for reading only.
    #[inline(always)]
    pub fn upgrade(self) -> Result<ExclusiveGuard<'p>, Interrupt> {
        // The first change of all marks the file as in use; a file that is open for reading only never is.
        self.allocator.evictor().admit_changes()?;
        if self.state().try_upgrade_optimistic(self.seen) {
            Ok(ExclusiveGuard::adopt(self.allocator, Extent::page(self.page)))
        } else {
            Err(Interrupt::Conflict(self.page))
        }
    }

    /// Latches the page in shared mode, if it is unchanged since it was read. If it was read in passing, the latch does not
    /// count as a use of the page either.
    ///
    /// # Errors
    /// [`Interrupt::Conflict`] if it has changed.
    #[inline]
    pub fn share(self) -> Result<SharedGuard<'p>, Interrupt> {
        if self.state().try_share_optimistic(self.seen) {
            let (table, extent) = (self.allocator.table(), Extent::page(self.page));
            // Every other reader takes the mark away before it reads.
            Ok(SharedGuard { table, extent, is_marked: self.seen.is_marked() })
        } else {
            Err(Interrupt::Conflict(self.page))
        }
    }

    /// A miss of `extent`, to which this page refers.
    ///
    /// # Errors
    /// [`Interrupt::Conflict`] if this page has changed, so that the reference is meaningless.
    pub fn miss(&self, extent: Extent) -> Result<Miss, Interrupt> {
        self.validate()?;
        Ok(Miss { extent, referrer: Some((self.page, self.seen.0)) })
    }
}

/// An extent that other threads may also read, and none may change.
#[must_use = "the latch is released at once"]
pub struct SharedGuard<'p> {
    table: &'p PageTable,
    extent: Extent,
    /// Whether the page was marked, and the latch does not count as a use.
    is_marked: bool,
}

impl<'p> SharedGuard<'p> {
    /// Makes a guard for an extent that the caller has latched in shared mode.
    pub(crate) fn adopt(table: &'p PageTable, extent: Extent) -> Self {
        Self { table, extent, is_marked: false }
    }

    /// The latched extent.
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// All bytes of the extent, including the page header, as one slice.
    #[inline]
    pub fn page(&self) -> &[u8] {
        // SAFETY: the latch is held shared as long as the guard lives.
        unsafe { self.table.bytes(self.extent) }
    }

    /// The bytes after the page header.
    pub fn payload(&self) -> &[u8] {
        self.page().get(HEADER_BYTES..).unwrap_or_default()
    }
}

impl Drop for SharedGuard<'_> {
    fn drop(&mut self) {
        if self.is_marked {
            self.table.unlatch_shared_marked(self.extent.head);
        } else {
            self.table.unlatch_shared(self.extent.head);
        }
    }
}

/// An extent that no other thread may read or change.
#[must_use = "the latch is released at once"]
pub struct ExclusiveGuard<'p> {
    allocator: &'p Allocator,
    // The extent, and all fields in words without padding: moving a guard then takes three copies between registers.
    head: PageId,
    pages: u32,
    /// [`CHANGED`] and [`UNWINDING`].
    flags: u32,
}

/// The bytes of a latched page have been lent out to be changed.
const CHANGED: u32 = 1;
/// The page was latched by a thread that was already unwinding: no panic interrupts what it does then.
const UNWINDING: u32 = 2;

impl<'p> ExclusiveGuard<'p> {
    /// Makes a guard for an extent that the caller has latched exclusively.
    #[inline]
    pub(crate) fn adopt(allocator: &'p Allocator, extent: Extent) -> Self {
        let flags = if std::thread::panicking() { UNWINDING } else { 0 };
        Self { allocator, head: extent.head, pages: extent.pages, flags }
    }

    /// The latched extent.
    #[inline]
    pub fn extent(&self) -> Extent {
        Extent { head: self.head, pages: self.pages }
    }

    fn is_changed(&self) -> bool {
        self.flags & CHANGED != 0
    }

    /// The extent's first page, which identifies it.
    #[inline]
    pub fn id(&self) -> PageId {
        self.head
    }

    /// All bytes of the extent, including the page header, as one slice.
    #[inline]
    pub fn page(&self) -> &[u8] {
        // SAFETY: the latch is held exclusively as long as the guard lives, and `self` is borrowed shared.
        unsafe { self.allocator.table().bytes(self.extent()) }
    }

    /// All bytes of the extent, to be changed. The first [`HEADER_BYTES`] belong to the pool: if they are changed,
    /// the page will be found damaged when it is read again.
    #[inline]
    pub fn page_mut(&mut self) -> &mut [u8] {
        self.flags |= CHANGED;
        // SAFETY: the latch is held exclusively as long as the guard lives, and `self` is borrowed uniquely.
        unsafe { self.allocator.table().bytes_mut(self.extent()) }
    }

    /// The bytes after the page header.
    pub fn payload(&self) -> &[u8] {
        self.page().get(HEADER_BYTES..).unwrap_or_default()
    }

    /// The bytes after the page header, to be changed.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        self.page_mut().get_mut(HEADER_BYTES..).unwrap_or_default()
    }

    /// Stores the LSN of the log record of the last change. See [`ChangeLog`](crate::ChangeLog).
    pub fn set_lsn(&mut self, lsn: Lsn) {
        stamp_lsn(self.page_mut(), lsn);
    }

    /// Drops the extent from memory, whatever it holds, so that it is as on storage.
    pub(crate) fn forget(self) {
        let this = ManuallyDrop::new(self);
        this.allocator.forget(this.extent());
    }

    /// Turns the latch into a shared one, in one step: no thread changes the page in between.
    pub fn downgrade(self) -> SharedGuard<'p> {
        let this = ManuallyDrop::new(self);
        let table = this.allocator.table();
        table.wake(this.head, table.state(this.head).downgrade(this.is_changed()));
        SharedGuard::adopt(table, this.extent())
    }

    /// Releases the latch and continues to read the first page optimistically, as it is now.
    #[inline(always)]
    pub fn relax(self) -> OptimisticGuard<'p> {
        let this = ManuallyDrop::new(self);
        // The change is complete. The page is sound even if a panic is under way and a destructor has made the change.
        let seen = this.allocator.table().relax(this.head, this.is_changed());
        OptimisticGuard::new(this.allocator, this.head, seen)
    }

    /// Releases the latch of a guard.
    #[inline(always)]
    fn unlatch(allocator: &Allocator, head: PageId, flags: u32) {
        if flags == CHANGED && std::thread::panicking() {
            allocator.storage().note_panic();
        }
        allocator.table().unlatch(head, flags & CHANGED != 0);
    }

    /// [`unlatch`](Self::unlatch) for a guard that is dropped.
    #[inline(never)]
    fn unlatch_dropped(allocator: &Allocator, head: PageId, flags: u32) {
        Self::unlatch(allocator, head, flags);
    }

    /// The word as it will be when the latch is released, unless the page is changed before that.
    #[inline(always)]
    fn word_after(&self) -> Word {
        self.allocator.table().state(self.head).word_after(self.is_changed())
    }

    /// A miss of `page`, to which this page refers, and will refer if the latch is released without a change.
    pub(crate) fn miss(&self, page: PageId) -> Miss {
        Miss { extent: Extent::page(page), referrer: Some((self.head, self.word_after().0)) }
    }

    /// Frees the extent: its space will be reused. The caller has removed every reference to it.
    pub fn free(self) {
        self.free_by(Lsn(0));
    }

    /// [`free`](Self::free), with the LSN of the record that says so.
    pub(crate) fn free_by(self, lsn: Lsn) {
        let this = ManuallyDrop::new(self);
        this.allocator.free(this.extent(), lsn);
    }
}

impl Drop for ExclusiveGuard<'_> {
    // Passes copies on: a guard whose address is never needed stays in registers.
    #[inline(always)]
    fn drop(&mut self) {
        Self::unlatch_dropped(self.allocator, self.head, self.flags);
    }
}

/// A newly allocated extent: zeroes after a fresh header, latched exclusively.
///
/// The extent is freed again when the guard is dropped, unless [`keep`](Self::keep) says that something will refer to
/// it.
#[must_use = "the extent is freed again at once"]
pub struct AllocatedGuard<'p> {
    guard: ManuallyDrop<ExclusiveGuard<'p>>,
}

impl<'p> AllocatedGuard<'p> {
    pub(crate) fn adopt(allocator: &'p Allocator, extent: Extent) -> Self {
        let mut guard = ExclusiveGuard::adopt(allocator, extent);
        guard.flags |= CHANGED;
        Self { guard: ManuallyDrop::new(guard) }
    }

    /// The latched extent.
    pub fn extent(&self) -> Extent {
        self.guard.extent()
    }

    /// The extent's first page, which identifies it.
    pub fn id(&self) -> PageId {
        self.guard.head
    }

    /// All bytes of the extent, to be filled. The first [`HEADER_BYTES`] belong to the pool.
    pub fn page_mut(&mut self) -> &mut [u8] {
        self.guard.page_mut()
    }

    /// The bytes after the page header, to be filled.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        self.guard.payload_mut()
    }

    /// Keeps the extent allocated: something refers to it from now on.
    pub fn keep(self) -> ExclusiveGuard<'p> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is never used again, nor dropped.
        unsafe { ManuallyDrop::take(&mut this.guard) }
    }
}

impl Drop for AllocatedGuard<'_> {
    fn drop(&mut self) {
        // SAFETY: the guard is not used after this.
        unsafe { ManuallyDrop::take(&mut self.guard) }.free();
    }
}

impl<'p> OptimisticPage for OptimisticGuard<'p> {
    type View = OptimisticBytes<'p>;
    type Exclusive = ExclusiveGuard<'p>;
    type Shared = SharedGuard<'p>;

    #[inline]
    fn id(&self) -> PageId {
        OptimisticGuard::id(self)
    }

    #[inline]
    fn token(&self) -> u64 {
        self.seen.0
    }

    #[inline]
    fn bytes(&self) -> OptimisticBytes<'p> {
        OptimisticGuard::bytes(self)
    }

    #[inline]
    fn validate(&self) -> Result<(), Interrupt> {
        OptimisticGuard::validate(self)
    }

    #[inline(always)]
    fn upgrade(self) -> Result<ExclusiveGuard<'p>, Interrupt> {
        OptimisticGuard::upgrade(self)
    }

    #[inline(always)]
    fn share(self) -> Result<SharedGuard<'p>, Interrupt> {
        OptimisticGuard::share(self)
    }
}

impl SharedPage for SharedGuard<'_> {
    fn page(&self) -> &[u8] {
        SharedGuard::page(self)
    }
}

impl ExclusivePage for ExclusiveGuard<'_> {
    #[inline]
    fn id(&self) -> PageId {
        ExclusiveGuard::id(self)
    }

    #[inline]
    fn page(&self) -> &[u8] {
        ExclusiveGuard::page(self)
    }

    #[inline]
    fn page_mut(&mut self) -> &mut [u8] {
        ExclusiveGuard::page_mut(self)
    }

    fn free(self, lsn: Lsn) {
        self.free_by(lsn);
    }
}

impl<'p> AllocatedPage for AllocatedGuard<'p> {
    type Exclusive = ExclusiveGuard<'p>;

    fn id(&self) -> PageId {
        AllocatedGuard::id(self)
    }

    fn page_mut(&mut self) -> &mut [u8] {
        AllocatedGuard::page_mut(self)
    }

    fn keep(self, lsn: Lsn) -> ExclusiveGuard<'p> {
        self.guard.allocator.note_allocated(self.guard.extent(), lsn);
        AllocatedGuard::keep(self)
    }
}
