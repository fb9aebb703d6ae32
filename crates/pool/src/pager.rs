//! How structures reach pages, independent of how pages get into memory: the interface between `access` and the pool.
//!
//! A structure follows a reference by asking for *the child at this place of this parent*, with a guard on the parent
//! in hand. The pool reads a page id at that place and goes to its address. Other designs do something else: one looks
//! the id up in a table of frames, another swizzles, and finds a pointer there or stores one. That is why the place is
//! given, and not the id.
//!
//! # The restart protocol
//! An operation is a function that reads optimistically and may be run again from its beginning. It
//! returns `Err(Interrupt)` before it has changed anything:
//! - [`Interrupt::Conflict`]: what it read has changed;
//! - [`Interrupt::Miss`]: what it needs is not in memory;
//! - [`Interrupt::Fatal`]: it cannot be done.
//!
//! [`Navigation::run`] is the blocking way to run one: it resolves the interrupt and tries again. A loop with many
//! operations to run gives their misses to a [`Misses`], and goes on with those that need not wait.
//!
//! # What a pager provides
//! | trait | purpose | least to write |
//! |---|---|---|
//! | [`Navigation`] | from page to page, and waiting | `root`, `child`, `child_of_latched`, `shared`, `shared_certain`, `relax`, `resolve`, `limit_pages` |
//! | [`Allocation`] | new and freed extents | `allocate`, `discard`, `is_extent` |
//! | [`AsynchronousReads`] | misses that do not stop a thread | `misses` |
//! | [`Streams`] | extents and pages written in order, values read in parts | `stream`, `pages` |
//!
//! A type that has all four is a [`Pager`]. Every other method has a default that suits a pager without a better
//! implementation.

use crate::{
    change_records::ChangeRecords,
    error::{Interrupt, Miss, PoolError},
    limits::EXTENT_PAGES_MAX,
};
use std::collections::VecDeque;
use vellum_base::{Bytes, Extent, Lsn, PAGE_SIZE, PageId, PageKind};
use vellum_vm::AlignedBuffer;

/// A guard that holds no latch: see [`OptimisticGuard`](crate::OptimisticGuard).
pub trait OptimisticPage: Copy {
    /// The page's bytes.
    type View: Bytes;
    /// The guard that [`upgrade`](Self::upgrade) gives.
    type Exclusive: ExclusivePage;
    /// The guard that [`share`](Self::share) gives.
    type Shared: SharedPage;

    /// The page, or the first page of an extent.
    fn id(&self) -> PageId;

    /// Identifies the present contents of the page: see [`Navigation::reacquire`].
    fn token(&self) -> u64;

    /// The page's bytes, as they are at the moment of each read.
    fn bytes(&self) -> Self::View;

    /// Whether all that was read so far belongs to one state of the page.
    ///
    /// # Errors
    /// [`Interrupt::Conflict`] if it does not.
    fn validate(&self) -> Result<(), Interrupt>;

    /// Latches the page exclusively, if it is unchanged since it was read.
    ///
    /// # Errors
    /// [`Interrupt::Conflict`] if it has changed, [`Interrupt::Fatal`] if nothing may be changed.
    fn upgrade(self) -> Result<Self::Exclusive, Interrupt>;

    /// Latches the page in shared mode, if it is unchanged since it was read.
    ///
    /// # Errors
    /// [`Interrupt::Conflict`] if it has changed, or another thread holds it exclusively.
    fn share(self) -> Result<Self::Shared, Interrupt>;
}

/// A shared guard on an extent: see [`SharedGuard`](crate::SharedGuard).
pub trait SharedPage {
    /// All bytes of the extent.
    fn page(&self) -> &[u8];
}

/// An exclusive guard on an extent: see [`ExclusiveGuard`](crate::ExclusiveGuard).
pub trait ExclusivePage {
    /// The page, or the first page of an extent.
    fn id(&self) -> PageId;

    /// All bytes of the extent.
    fn page(&self) -> &[u8];

    /// All bytes of the extent, to be changed, except the page header.
    fn page_mut(&mut self) -> &mut [u8];

    /// Frees the extent, to which nothing refers any more. `lsn` is the LSN of the record that says so; zero if there
    /// is none.
    fn free(self, lsn: Lsn);
}

/// A guard on a new extent that is freed unless kept: see [`AllocatedGuard`](crate::AllocatedGuard).
pub trait AllocatedPage {
    /// The guard that [`keep`](Self::keep) gives.
    type Exclusive: ExclusivePage;

    /// The page, or the first page of an extent.
    fn id(&self) -> PageId;

    /// All bytes of the extent, to be filled, except the page header.
    fn page_mut(&mut self) -> &mut [u8];

    /// Keeps the extent, to which something refers from now on. `lsn` is the LSN of the record that says that it is
    /// allocated; zero if there is none yet, see [`Allocation::note_allocated`].
    fn keep(self, lsn: Lsn) -> Self::Exclusive;
}

/// An extent that is written from its beginning to its end, past the pool: see
/// [`ExtentStream`](crate::ExtentStream).
pub trait ExtentWriter {
    /// Writes the next bytes. The first bytes follow right after the page header.
    ///
    /// # Errors
    /// If they cannot be written, or do not fit into the extent.
    fn append(&mut self, bytes: &[u8]) -> Result<(), PoolError>;

    /// Ends the extent, pads it with zeroes, and keeps it: something will refer to it. No record says so yet.
    ///
    /// # Errors
    /// If the extent cannot be written; it is then freed.
    fn finish(self) -> Result<PageId, PoolError>;
}

/// Single pages that are written one after the other, consecutive on storage: see
/// [`PageStream`](crate::PageStream).
pub trait PageWriter {
    /// Writes the next page: `fill` gets its bytes, which are zero after the page header; it leaves the header alone.
    /// No other thread sees the page before [`settle`](Self::settle).
    ///
    /// # Errors
    /// If there is no room for the page or an earlier page could not be written, and the errors of `fill`. After an
    /// error nothing more can be written.
    fn append<E: From<PoolError>>(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<PageId, E>;

    /// Fetches bytes of the page that will probably be next into the processor's cache, for writing, while the caller
    /// gathers its contents. If they include the beginning of the page, also fetches what else writing it needs. Does
    /// not wait, and has no effect that a program can see.
    fn prefetch_next(&self, at: usize, bytes: usize);

    /// Takes over an extent that was allocated for the same purpose: it is freed together with the pages.
    fn adopt(&mut self, extent: Extent);

    /// Waits until all pages can be read by every thread that has a reference to them. If changes are recorded, the
    /// pages and the extents are then durable.
    ///
    /// # Errors
    /// If a page could not be written, or synced.
    fn settle(&mut self) -> Result<(), PoolError>;

    /// Keeps all pages and extents, to which something refers from now on. `lsn` is the LSN of the record that says so;
    /// zero if there is none. Without this call they are freed when the writer is dropped.
    fn keep(self, lsn: Lsn);
}

/// The outcome of an attempt to begin a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "unless the read has begun, the caller must try again"]
pub enum Begun {
    /// The extent is being read, and will be among the results of [`Misses::reap`].
    Reading,
    /// There is nothing to read: the extent is in memory, or the reference was stale. Try the operation again.
    Ready,
    /// Another thread has latched the extent, possibly to read it. Try the operation again later.
    Latched,
    /// The maximum number of reads is under way, or no memory is available without waiting.
    NoRoom,
}

/// A finished read.
#[derive(Debug)]
pub struct FinishedRead {
    /// The first page of the extent that was read.
    pub page: PageId,
    /// Why the extent is not in memory, if it is not.
    pub result: Result<(), PoolError>,
}

/// Reads of missing extents, under way while their owner does something else: see [`MissQueue`](crate::MissQueue).
pub trait Misses {
    /// How many reads have begun and not yet been returned by [`reap`](Self::reap).
    fn under_way(&self) -> usize;

    /// Begins to read a missing extent, if that is possible without waiting. The request may reach the device only at
    /// the next [`flush`](Self::flush) or [`reap`](Self::reap).
    ///
    /// # Errors
    /// If the extent is not allocated, or is larger than the pool.
    fn begin(&mut self, miss: &Miss) -> Result<Begun, PoolError>;

    /// Begins to read single pages that will be wanted soon, neighbours in one request, and returns the number of
    /// requests: [`reap`](Self::reap) will return this many. Pages that are in memory, are latched, or are not
    /// allocated are left out, as are pages for which no memory is available at once. The pages read are the first to
    /// be evicted again.
    fn begin_read_ahead(&mut self, pages: &[PageId]) -> usize;

    /// If memory is short, evicts pages of `passed`, from its beginning, until about `wanted` pages are free beyond the
    /// number that should be free, and removes them from `passed`. These are single pages that were read ahead and have
    /// been used. Pages that another thread has used meanwhile stay in memory.
    fn give_up(&mut self, passed: &mut VecDeque<PageId>, wanted: usize);

    /// Submits the requests that have begun to the device.
    fn flush(&mut self);

    /// Appends finished reads to `finished`; if `wait` is set, waits for one unless none is under way.
    fn reap(&mut self, wait: bool, finished: &mut Vec<FinishedRead>);

    /// Waits for all reads and appends them to `finished`: submitting them and waiting is then one call.
    fn reap_all(&mut self, finished: &mut Vec<FinishedRead>) {
        while self.under_way() > 0 {
            self.reap(true, finished);
        }
    }

    /// The error that a finished read means for an operation that waited for it: none if the reference that led the
    /// operation there is no longer valid. In that case the operation is to be tried again.
    fn verdict(&self, miss: &Miss, error: &PoolError) -> Option<PoolError>;
}

/// All that a structure needs of the layer that brings its pages into memory.
pub trait Pager: Navigation + Allocation + AsynchronousReads + Streams + ChangeRecords {}

impl<P: Navigation + Allocation + AsynchronousReads + Streams + ChangeRecords> Pager for P {}

/// The result of following a reference: a guard on the page to which it leads, or an interrupt of the restart protocol.
pub type Followed<'p, P> = Result<<P as Navigation>::Optimistic<'p>, Interrupt>;

/// Going from page to page, and waiting for what is in the way.
pub trait Navigation: Send + Sync {
    /// The guard for optimistic reading.
    type Optimistic<'p>: OptimisticPage<Exclusive = Self::Exclusive<'p>, Shared = Self::Shared<'p>>
    where
        Self: 'p;
    /// The guard for reading.
    type Shared<'p>: SharedPage
    where
        Self: 'p;
    /// The guard for changing.
    type Exclusive<'p>: ExclusivePage
    where
        Self: 'p;

    /// Begins at a page that no page refers to: the root of a structure.
    ///
    /// # Errors
    /// The interrupts of the restart protocol.
    fn root(&self, page: PageId) -> Followed<'_, Self>;

    /// [`root`](Self::root) for a page that is in memory and can be read at once. `None` if it is not: `root` then says
    /// why.
    #[inline]
    fn look(&self, page: PageId) -> Option<Self::Optimistic<'_>> {
        self.root(page).ok()
    }

    /// Goes from a page to the page to which the word at byte `place` refers, a multiple of 8: see
    /// [`PageId::referred`]. Both are valid at one moment in between: the parent is validated after the read of the child
    /// has begun.
    ///
    /// # Errors
    /// The interrupts of the restart protocol; a reference that leads nowhere is [`PoolError::Corruption`].
    fn child<'p>(&'p self, parent: &Self::Optimistic<'p>, place: usize) -> Followed<'p, Self>;

    /// [`child`](Self::child), some time after a [`prefetch`](Self::prefetch) of the child.
    ///
    /// # Errors
    /// As for `child`.
    #[inline(always)]
    fn child_fetched<'p>(&'p self, parent: &Self::Optimistic<'p>, place: usize) -> Followed<'p, Self> {
        self.child(parent, place)
    }

    /// [`child`](Self::child) for a thread that will not come back: its read does not keep the child in memory.
    ///
    /// # Errors
    /// As for `child`.
    fn child_in_passing<'p>(&'p self, parent: &Self::Optimistic<'p>, place: usize) -> Followed<'p, Self> {
        self.child(parent, place)
    }

    /// [`child`](Self::child) for a parent that is latched exclusively.
    ///
    /// # Errors
    /// As for [`child`](Self::child). A miss must be resolved with the parent's latch released.
    fn child_of_latched<'p>(&'p self, parent: &Self::Exclusive<'p>, place: usize) -> Followed<'p, Self>;

    /// A guard on a page on which an earlier guard had the token `token`, if the page is in memory and has not changed
    /// since. None by default.
    #[inline]
    fn reacquire(&self, _page: PageId, _token: u64) -> Option<Self::Optimistic<'_>> {
        None
    }

    /// Releases the latch on a page and continues to read it optimistically, as it is now.
    fn relax<'p>(&'p self, guard: Self::Exclusive<'p>) -> Self::Optimistic<'p>;

    /// Fetches bytes of a page that will be read soon into the processor's cache, without waiting; if they include the
    /// beginning of the page, also what else a read needs. Has no effect that a program can see, whatever the page;
    /// does nothing by default.
    #[inline]
    fn prefetch(&self, _page: PageId, _at: usize, _bytes: usize) {}

    /// Takes a shared latch on an extent to which `parent`, which was just read, refers, and then validates the parent.
    ///
    /// # Errors
    /// The interrupts of the restart protocol.
    fn shared<'p>(
        &'p self,
        parent: &Self::Optimistic<'p>,
        extent: Extent,
    ) -> Result<Self::Shared<'p>, Interrupt>;

    /// Takes a shared latch on an extent that the caller knows to exist, waiting if necessary.
    ///
    /// # Errors
    /// If it cannot be read in.
    fn shared_certain(&self, extent: Extent) -> Result<Self::Shared<'_>, PoolError>;

    /// The most pages that may be in memory.
    fn limit_pages(&self) -> usize;

    /// The reason why changed pages cannot leave memory at the moment, if any: there is less room then.
    fn outage(&self) -> Option<PoolError> {
        None
    }

    /// The error of an operation that needs more pages in memory at once than fit.
    fn no_room(&self) -> PoolError {
        let exhausted = || PoolError::PoolExhausted { pool_pages: self.limit_pages(), wanted_pages: 1 };
        self.outage().unwrap_or_else(exhausted)
    }

    /// Waits until the cause of an interrupt is gone.
    ///
    /// # Errors
    /// Causes that cannot be waited for.
    fn resolve(&self, interrupt: Interrupt) -> Result<(), PoolError>;

    /// Completes asynchronous reads that are over and whose owners are busy elsewhere: until then, what they have read cannot
    /// be evicted. Waits for nothing; does nothing by default.
    fn complete_reads(&self) {}

    /// Runs an operation until it ends, and waits for what it needs.
    ///
    /// # Errors
    /// The error of the operation; and [`PoolError::PoolExhausted`] if what it needs was not in memory thousands of
    /// times in a row: then each page that it reads in evicts another page that it also needs, because all others are
    /// latched.
    #[inline]
    fn run<T>(&self, mut operation: impl FnMut() -> Result<T, Interrupt>) -> Result<T, PoolError>
    where
        Self: Sized,
    {
        let mut misses = 0;
        loop {
            match operation() {
                Ok(value) => return Ok(value),
                Err(interrupt) => misses = self.overcome(interrupt, misses)?,
            }
        }
    }

    /// Waits until the cause of an interrupt is gone, after so many misses of an operation; returns how many there are now.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    #[cold]
    #[inline(never)]
    fn overcome(&self, interrupt: Interrupt, misses: u32) -> Result<u32, PoolError> {
        /// About a second's worth of reads.
        const MISSES_MAX: u32 = 10_000;
        /// The limit while pages cannot be written.
        const MISSES_IN_OUTAGE_MAX: u32 = 256;
        /// More than this many in a row are no way down a tree: what it needs does not fit beside what is latched.
        const MISSES_MANY: u32 = 64;
        let misses = misses + u32::from(matches!(interrupt, Interrupt::Miss(_)));
        let short = misses > MISSES_IN_OUTAGE_MAX && self.outage().is_some();
        if short || misses > MISSES_MAX {
            return Err(self.no_room());
        }
        if misses > MISSES_MANY {
            self.complete_reads();
        }
        self.resolve(interrupt)?;
        Ok(misses)
    }
}

/// Allocating extents, and freeing extents to which nothing refers any more.
pub trait Allocation: Navigation {
    /// The guard on a new extent.
    type Allocated<'p>: AllocatedPage<Exclusive = Self::Exclusive<'p>>
    where
        Self: 'p;

    /// Allocates an extent.
    ///
    /// # Errors
    /// If the file cannot grow or the pool has no room.
    fn allocate(&self, pages: u32, kind: PageKind) -> Result<Self::Allocated<'_>, PoolError>;

    /// Allocates an extent before page `limit`, as close to the beginning of the file as possible; none if there is no
    /// room, or if the pager chooses the places of extents freely.
    ///
    /// # Errors
    /// If the pool has no room.
    fn allocate_before(
        &self,
        _limit: PageId,
        _pages: u32,
        _kind: PageKind,
    ) -> Result<Option<Self::Allocated<'_>>, PoolError> {
        Ok(None)
    }

    /// Whether leaves may be merged: what is undone later finds pages for the halves into which it splits them. The thread
    /// holds no latch.
    fn may_merge_leaves(&self) -> bool {
        true
    }

    /// Frees an extent to which nothing refers any more, without reading it in. `lsn` is the LSN of the record that
    /// says so; zero if there is none, because no record said that it was allocated. This does not wait for a thread
    /// that still reads the extent: the extent is then freed later.
    ///
    /// # Errors
    /// If it is not allocated as exactly this extent.
    fn discard(&self, extent: Extent, lsn: Lsn) -> Result<(), PoolError>;

    /// [`discard`](Self::discard), but waits while a thread has the extent latched, which cannot last long.
    ///
    /// # Errors
    /// As for `discard`.
    fn discard_now(&self, extent: Extent, lsn: Lsn) -> Result<(), PoolError> {
        self.discard(extent, lsn)
    }

    /// Notes that the record at `lsn` says that a kept extent is allocated. Does nothing if changes are not recorded.
    fn note_allocated(&self, _extent: Extent, _lsn: Lsn) {}

    /// Makes contents of extents that are in no record durable, before a record refers to them. Does nothing if changes
    /// are not recorded.
    ///
    /// # Errors
    /// If they cannot be written, or synced.
    fn persist(&self, _extents: &[Extent]) -> Result<(), PoolError> {
        Ok(())
    }

    /// Whether exactly this extent is allocated.
    fn is_extent(&self, extent: Extent) -> bool;

    /// Notes that something is about to refer to an extent again to which nothing has referred for a while, though it was
    /// kept. Does nothing if nobody looks for extents to which nothing refers.
    fn note_referred_to_again(&self, _extent: Extent) {}

    /// An operation is about to have extents to which nothing refers yet, or not any more. Returns a number for
    /// [`end_unfinished`](Self::end_unfinished).
    fn begin_unfinished(&self) -> u64 {
        0
    }

    /// Something refers to the extents of such an operation, or they are free.
    fn end_unfinished(&self, _number: u64) {}

    /// Whether an extent may have been allocated or freed, or [referred to again](Self::note_referred_to_again), since
    /// somebody began to look for extents to which nothing refers. False if nobody does.
    fn has_changed_hands(&self, _extent: Extent) -> bool {
        false
    }

    /// The most pages that an extent may have to be kept in memory beside others; larger ones are better written and
    /// read past the pool.
    fn comfortable_pages(&self) -> u32 {
        (self.limit_pages() / 8).min(EXTENT_PAGES_MAX as usize) as u32
    }
}

/// Reads that are under way while a thread does something else.
pub trait AsynchronousReads: Navigation {
    /// The type of reads of missing extents that do not block their owner.
    type Misses<'p>: Misses
    where
        Self: 'p;

    /// Reads that do not block their owner, with up to `depth` under way at once.
    ///
    /// # Errors
    /// If the system refuses the resources.
    fn misses(&self, depth: usize) -> Result<Self::Misses<'_>, PoolError>;

    /// Whether a thread holds a page exclusively now, so that reading it would fail. A hint; false by default.
    fn is_latched(&self, _page: PageId) -> bool {
        false
    }

    /// If other reads than those of the caller bring this page, begins them, and completes those that are done: their
    /// owner may be busy elsewhere. Waits for nothing; does nothing by default.
    fn complete_read(&self, _page: PageId) {}

    /// Whether a page is not in memory at this moment, so that it is worth reading ahead. A hint; false by default.
    fn is_evicted(&self, _page: PageId) -> bool {
        false
    }

    /// Whether a page is in memory, and was used since it was read ahead or the clock passed it. A hint; false by default.
    fn is_used(&self, _page: PageId) -> bool {
        false
    }
}

/// Extents and pages that are written in order or read in parts, past the pool.
pub trait Streams: Navigation {
    /// The writer of an extent that need not fit into memory.
    type Stream<'p>: ExtentWriter
    where
        Self: 'p;
    /// The writer of many single pages.
    type Pages<'p>: PageWriter
    where
        Self: 'p;

    /// Allocates an extent to be written past the pool, whatever its size.
    ///
    /// # Errors
    /// If the file cannot grow.
    fn stream(&self, pages: u32, kind: PageKind) -> Result<Self::Stream<'_>, PoolError>;

    /// Begins to write single pages of a kind, of any number.
    ///
    /// # Errors
    /// If the file is open for reading only.
    fn pages(&self, kind: PageKind) -> Result<Self::Pages<'_>, PoolError>;

    /// Reads pages of an extent to which `parent`, which was just read, refers: from memory if the extent is there,
    /// otherwise from storage without bringing it into memory. Bytes from storage have not been checked. By default the
    /// whole extent is brought into memory.
    ///
    /// # Errors
    /// The interrupts of the restart protocol.
    fn read_part<'p>(
        &'p self,
        parent: &Self::Optimistic<'p>,
        extent: Extent,
        first_page: u32,
        buffer: &mut AlignedBuffer,
    ) -> Result<(), Interrupt> {
        copy_part(self.shared(parent, extent)?.page(), extent, first_page, buffer)
    }
}

/// Copies pages of an extent that is in memory.
pub(crate) fn copy_part(
    bytes: &[u8],
    extent: Extent,
    first_page: u32,
    buffer: &mut AlignedBuffer,
) -> Result<(), Interrupt> {
    let part = bytes.get(first_page as usize * PAGE_SIZE..).and_then(|rest| rest.get(..buffer.len()));
    buffer.copy_from_slice(part.ok_or(PoolError::not_allocated(extent))?);
    Ok(())
}
