//! How structures reach pages, whatever brings the pages: the interface between `access` and the pool.
//!
//! A structure follows a reference by asking for *the child at this place of this parent*, with a guard on
//! the parent in hand. The pool reads a page id at that place and goes to its address. Other designs do
//! other things there: a table of frames looks the id up, swizzling finds a pointer, or puts one. That is
//! why the place is given, and not the id.
//!
//! # The restart protocol
//! An operation is a function that reads optimistically and may be run again from its beginning. It
//! returns `Err(Interrupt)` before it has changed anything:
//! - [`Interrupt::Conflict`]: what it read has changed;
//! - [`Interrupt::Miss`]: what it needs is not in memory;
//! - [`Interrupt::Fatal`]: it cannot be done.
//!
//! [`Navigation::run`] is the blocking way of running one: it resolves the interrupt and tries again. A loop that has
//! many operations to run gives their misses to a [`Misses`], and goes on with those that need not wait.
//!
//! # What a pager provides
//! | trait | purpose | least to write |
//! |---|---|---|
//! | [`Navigation`] | from page to page, and waiting | `root`, `child`, `child_of_latched`, `shared`, `shared_certain`, `relax`, `resolve`, `limit_pages` |
//! | [`Allocation`] | new and freed extents | `allocate`, `discard`, `is_extent` |
//! | [`AsynchronousReads`] | misses that do not stop a thread | `misses` |
//! | [`Streams`] | extents and pages written in order, values read in parts | `stream`, `pages` |
//!
//! A type that has all four is a [`Pager`]. Every other method has a default that is right for a pager that knows
//! nothing better.

use crate::{
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

    /// The page, or the first of an extent.
    fn id(&self) -> PageId;

    /// Identifies what the page holds at the moment: see [`Navigation::reacquire`].
    fn token(&self) -> u64;

    /// The page's bytes, as they are at the moment of each read.
    fn bytes(&self) -> Self::View;

    /// Whether all that was read so far belongs to one state of the page.
    ///
    /// # Errors
    /// [`Interrupt::Conflict`] if not.
    fn validate(&self) -> Result<(), Interrupt>;

    /// Latches the page exclusively, if it still is what was read.
    ///
    /// # Errors
    /// [`Interrupt::Conflict`] if it is not, [`Interrupt::Fatal`] if nothing may be changed.
    fn upgrade(self) -> Result<Self::Exclusive, Interrupt>;
}

/// A shared guard on an extent: see [`SharedGuard`](crate::SharedGuard).
pub trait SharedPage {
    /// All bytes of the extent.
    fn page(&self) -> &[u8];
}

/// An exclusive guard on an extent: see [`ExclusiveGuard`](crate::ExclusiveGuard).
pub trait ExclusivePage {
    /// The page, or the first of an extent.
    fn id(&self) -> PageId;

    /// All bytes of the extent.
    fn page(&self) -> &[u8];

    /// All bytes of the extent, to be changed; the page header excepted.
    fn page_mut(&mut self) -> &mut [u8];

    /// Frees the extent, to which nothing refers any more, as the record at `lsn` says; zero if none does.
    fn free(self, lsn: Lsn);
}

/// A guard on a new extent that is freed unless kept: see [`AllocatedGuard`](crate::AllocatedGuard).
pub trait AllocatedPage {
    /// The guard that [`keep`](Self::keep) gives.
    type Exclusive: ExclusivePage;

    /// The page, or the first of an extent.
    fn id(&self) -> PageId;

    /// All bytes of the extent, to be filled; the page header excepted.
    fn page_mut(&mut self) -> &mut [u8];

    /// The extent is referred to from now on. The record at `lsn` says that it is allocated; zero if none does yet, see
    /// [`Allocation::note_allocated`].
    fn keep(self, lsn: Lsn) -> Self::Exclusive;
}

/// An extent that is written from its beginning to its end, past the pool: see
/// [`ExtentStream`](crate::ExtentStream).
pub trait ExtentWriter {
    /// Writes the next bytes. The first bytes stand right behind the page header.
    ///
    /// # Errors
    /// If they cannot be written, or do not fit into the extent.
    fn append(&mut self, bytes: &[u8]) -> Result<(), PoolError>;

    /// Ends the extent, padding it with zeroes, and keeps it: it is referred to from now on. No record says so yet.
    ///
    /// # Errors
    /// If it cannot be written; it is freed then.
    fn finish(self) -> Result<PageId, PoolError>;
}

/// Single pages that are written one after the other, consecutive on storage: see
/// [`PageStream`](crate::PageStream).
pub trait PageWriter {
    /// Writes the next page: `fill` is given its bytes, zeroes behind the page header, which it leaves alone. No other
    /// thread sees the page before [`settle`](Self::settle).
    ///
    /// # Errors
    /// If there is no room for it or an earlier page could not be written, and what `fill` returns. Nothing more
    /// can be written then.
    fn append<E: From<PoolError>>(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<PageId, E>;

    /// Fetches bytes of the page that will probably be the next into the processor's cache, to be written, while the
    /// caller gathers its contents. From the beginning of the page, also what writing it needs beside it. Waits for
    /// nothing, and does nothing that a program can see.
    fn prefetch_next(&self, at: usize, bytes: usize);

    /// Takes over an extent that was allocated for the same purpose: it is freed with the pages.
    fn adopt(&mut self, extent: Extent);

    /// Waits until all pages can be read by every thread that has a reference to them. If changes are recorded, the pages and
    /// the extents are durable then.
    ///
    /// # Errors
    /// If one could not be written, or synced.
    fn settle(&mut self) -> Result<(), PoolError>;

    /// All pages and extents are referred to from now on, as the record at `lsn` says; zero if none does. Without this they
    /// are freed when the writer is dropped.
    fn keep(self, lsn: Lsn);
}

/// The outcome of an attempt to begin a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "unless the read has begun, the caller must try again"]
pub enum Begun {
    /// The extent is being read, and will be among what [`Misses::reap`] gives.
    Reading,
    /// There is nothing to read: the extent is in memory, or the reference was stale. Try the operation again.
    Ready,
    /// Another thread has latched the extent, perhaps to read it. Try the operation again later.
    Latched,
    /// As many reads are under way as may be, or there is no memory that could be had without waiting.
    NoRoom,
}

/// A read that is over.
#[derive(Debug)]
pub struct FinishedRead {
    /// The first page of what was read.
    pub page: PageId,
    /// Why the extent is not in memory, if it is not.
    pub result: Result<(), PoolError>,
}

/// Reads of what is missing, under way while their owner does something else: see
/// [`MissQueue`](crate::MissQueue).
pub trait Misses {
    /// How many reads were begun and not given back by [`reap`](Self::reap) yet.
    fn under_way(&self) -> usize;

    /// Begins to read what is missing, if that can be done without waiting. The request may reach the device only at
    /// the next [`flush`](Self::flush) or [`reap`](Self::reap).
    ///
    /// # Errors
    /// If it is not allocated, or larger than the pool.
    fn begin(&mut self, miss: &Miss) -> Result<Begun, PoolError>;

    /// Begins to read single pages that will be wanted soon, neighbours by one request, and returns how many requests
    /// there are: so many will be among what [`reap`](Self::reap) gives. Pages that are in memory, are latched, or are
    /// not allocated are left out; so is what finds no memory at once. What is read is the first to be evicted again.
    fn begin_read_ahead(&mut self, pages: &[PageId]) -> usize;

    /// If memory is short, evicts pages of `passed`, from its beginning and until about `wanted` are free beyond what
    /// should be, and takes them out: single pages that were read ahead and have been used. What another thread has
    /// used meanwhile stays in memory.
    fn give_up(&mut self, passed: &mut VecDeque<PageId>, wanted: usize);

    /// Submits what was begun to the device.
    fn flush(&mut self);

    /// Appends the reads that are over to `finished`; waits for one if asked to, unless none is under way.
    fn reap(&mut self, wait: bool, finished: &mut Vec<FinishedRead>);

    /// Appends all reads to `finished`, after waiting for them: to submit them and to wait is one thing for the device then.
    fn reap_all(&mut self, finished: &mut Vec<FinishedRead>) {
        while self.under_way() > 0 {
            self.reap(true, finished);
        }
    }

    /// The error that a finished read means for an operation that waited for it: none if the reference by which
    /// the operation came there does not stand any more, in which case it is to be tried again.
    fn verdict(&self, miss: &Miss, error: &PoolError) -> Option<PoolError>;
}

/// Everything that a structure needs of what brings its pages into memory.
pub trait Pager: Navigation + Allocation + AsynchronousReads + Streams + ChangeRecords {}

impl<P: Navigation + Allocation + AsynchronousReads + Streams + ChangeRecords> Pager for P {}

/// What following a reference gives: a guard on the page that it leads to, or an interrupt of the restart protocol.
pub type Followed<'p, P> = Result<<P as Navigation>::Optimistic<'p>, Interrupt>;

/// The ways from page to page, and waiting for what is in the way.
pub trait Navigation: Send + Sync {
    /// The guard for optimistic reading.
    type Optimistic<'p>: OptimisticPage<Exclusive = Self::Exclusive<'p>>
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

    /// [`root`](Self::root) for a page that is in memory and can be read at once. None if it may be neither: `root` says what to do.
    #[inline]
    fn look(&self, page: PageId) -> Option<Self::Optimistic<'_>> {
        self.root(page).ok()
    }

    /// Goes from a page to the one that it refers to at byte `place`, a multiple of 8. Both are valid at one
    /// moment in between: the parent is validated after the read of the child began.
    ///
    /// # Errors
    /// The interrupts of the restart protocol; a reference that leads nowhere is [`PoolError::Corruption`].
    fn child<'p>(&'p self, parent: &Self::Optimistic<'p>, place: usize) -> Followed<'p, Self>;

    /// [`child`](Self::child), after a [`prefetch`](Self::prefetch) of it some time ago.
    ///
    /// # Errors
    /// As for `child`.
    #[inline(always)]
    fn child_fetched<'p>(&'p self, parent: &Self::Optimistic<'p>, place: usize) -> Followed<'p, Self> {
        self.child(parent, place)
    }

    /// [`child`](Self::child) for a thread that will not come again: its read does not keep the child in memory.
    ///
    /// # Errors
    /// As for `child`.
    fn child_in_passing<'p>(&'p self, parent: &Self::Optimistic<'p>, place: usize) -> Followed<'p, Self> {
        self.child(parent, place)
    }

    /// [`child`](Self::child) of a parent that is latched exclusively.
    ///
    /// # Errors
    /// As for [`child`](Self::child). A miss must be resolved with the parent's latch released.
    fn child_of_latched<'p>(&'p self, parent: &Self::Exclusive<'p>, place: usize) -> Followed<'p, Self>;

    /// A guard on a page on which an earlier guard had the token `token`, if the page is in memory and was not changed
    /// since. By default none.
    #[inline]
    fn reacquire(&self, _page: PageId, _token: u64) -> Option<Self::Optimistic<'_>> {
        None
    }

    /// Gives up the latch on a page and goes on reading it optimistically, as it is now.
    fn relax<'p>(&'p self, guard: Self::Exclusive<'p>) -> Self::Optimistic<'p>;

    /// Fetches bytes of a page that will be read soon into the processor's cache, and waits for none of it; from the
    /// beginning of the page also what a read needs beside it. Does nothing that a program can see, whatever the page;
    /// nothing at all by default.
    #[inline]
    fn prefetch(&self, _page: PageId, _at: usize, _bytes: usize) {}

    /// Takes a shared latch on an extent to which `parent`, just read, refers, and then validates the parent.
    ///
    /// # Errors
    /// The interrupts of the restart protocol.
    fn shared<'p>(
        &'p self,
        parent: &Self::Optimistic<'p>,
        extent: Extent,
    ) -> Result<Self::Shared<'p>, Interrupt>;

    /// Takes a shared latch on an extent that the caller knows to exist, waiting if need be.
    ///
    /// # Errors
    /// If it cannot be read in.
    fn shared_certain(&self, extent: Extent) -> Result<Self::Shared<'_>, PoolError>;

    /// The most pages that may be in memory.
    fn limit_pages(&self) -> usize;

    /// Why changed pages cannot leave memory at the moment, if they cannot: there is less room then.
    fn outage(&self) -> Option<PoolError> {
        None
    }

    /// The error of an operation that needs more pages in memory at once than can be there.
    fn no_room(&self) -> PoolError {
        let exhausted = || PoolError::PoolExhausted { pool_pages: self.limit_pages(), wanted_pages: 1 };
        self.outage().unwrap_or_else(exhausted)
    }

    /// Waits for what an operation was interrupted for.
    ///
    /// # Errors
    /// What cannot be waited for.
    fn resolve(&self, interrupt: Interrupt) -> Result<(), PoolError>;

    /// Runs an operation until it ends, waiting for what it needs.
    ///
    /// # Errors
    /// What the operation fails with; and [`PoolError::PoolExhausted`] if what it needs was not in memory
    /// thousands of times in a row: then each page that it reads in pushes another one out that it needs too,
    /// because all others are latched.
    #[inline]
    fn run<T>(&self, mut operation: impl FnMut() -> Result<T, Interrupt>) -> Result<T, PoolError>
    where
        Self: Sized,
    {
        /// About a second's worth of reads.
        const MISSES_MAX: u32 = 10_000;
        /// The most while pages cannot be written.
        const MISSES_IN_OUTAGE_MAX: u32 = 256;
        let mut misses = 0;
        loop {
            match operation() {
                Ok(value) => return Ok(value),
                Err(interrupt) => {
                    misses += u32::from(matches!(interrupt, Interrupt::Miss(_)));
                    let short = misses > MISSES_IN_OUTAGE_MAX && self.outage().is_some();
                    if short || misses > MISSES_MAX {
                        return Err(self.no_room());
                    }
                    self.resolve(interrupt)?;
                }
            }
        }
    }
}

/// Allocating extents, and freeing those to which nothing refers any more.
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

    /// Allocates an extent before page `limit`, as near to the beginning of the file as there is room; none if there is none, or the
    /// pager places extents as it likes.
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

    /// Frees an extent to which nothing refers any more, without reading it in, as the record at `lsn` says; zero if none does,
    /// because none said that it was allocated. While a thread still reads it, this does not wait: the extent is freed
    /// later.
    ///
    /// # Errors
    /// If it is not allocated as such.
    fn discard(&self, extent: Extent, lsn: Lsn) -> Result<(), PoolError>;

    /// [`discard`](Self::discard), but while a thread has the extent latched, which cannot be for long, this waits.
    ///
    /// # Errors
    /// As for `discard`.
    fn discard_now(&self, extent: Extent, lsn: Lsn) -> Result<(), PoolError> {
        self.discard(extent, lsn)
    }

    /// The record at `lsn` says that an extent is allocated that was kept before. Nothing to do if changes are not recorded.
    fn note_allocated(&self, _extent: Extent, _lsn: Lsn) {}

    /// Makes the contents of extents durable that no record tells, before one refers to them. Nothing to do if changes are not
    /// recorded.
    ///
    /// # Errors
    /// If they cannot be written, or synced.
    fn persist(&self, _extents: &[Extent]) -> Result<(), PoolError> {
        Ok(())
    }

    /// Whether exactly this extent is allocated.
    fn is_extent(&self, extent: Extent) -> bool;

    /// The most pages that an extent may have to be kept in memory beside others; larger ones are better
    /// written and read past the pool.
    fn comfortable_pages(&self) -> u32 {
        (self.limit_pages() / 8).min(EXTENT_PAGES_MAX as usize) as u32
    }
}

/// Reads that are under way while a thread does something else.
pub trait AsynchronousReads: Navigation {
    /// The reads of what is missing that do not stop their owner.
    type Misses<'p>: Misses
    where
        Self: 'p;

    /// Reads that do not stop their owner, of which up to `depth` are under way at once.
    ///
    /// # Errors
    /// If the system refuses what that takes.
    fn misses(&self, depth: usize) -> Result<Self::Misses<'_>, PoolError>;

    /// Whether a thread holds a page exclusively at this moment, so that reading it fails. A hint: by default, no.
    fn is_latched(&self, _page: PageId) -> bool {
        false
    }

    /// Whether a page is not in memory at this moment, so that it is worth reading ahead. A hint: by default, no.
    fn is_evicted(&self, _page: PageId) -> bool {
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

    /// Begins to write single pages of a kind, as many as there will be.
    ///
    /// # Errors
    /// If the file is open for reading only.
    fn pages(&self, kind: PageKind) -> Result<Self::Pages<'_>, PoolError>;

    /// Reads pages of an extent to which `parent`, just read, refers: from memory if it is there, otherwise from
    /// storage without bringing it into memory. What comes from storage has not been checked. By default the whole
    /// extent is brought into memory.
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

/// Where the records of changes go: to a log, if there is one. By default there is none. See [`ChangeLog`](crate::ChangeLog).
pub trait ChangeRecords {
    /// Whether changes are recorded. If not, nothing is gathered for that, and of what follows only [`stamp`](Self::stamp) and
    /// what keeps pages are called.
    #[inline(always)]
    fn records(&self) -> bool {
        false
    }

    /// Whether a change whose pages are latched needs an LSN. If not, it is not recorded, no page is kept, and no transaction is
    /// open: a thread that begins one asks for LSNs before it is open, and then reads these pages after the change.
    #[inline(always)]
    fn needs_lsn(&self) -> bool {
        true
    }

    /// The LSN of a change that is not recorded, whose pages are latched: greater than those of all changes of them before. Zero if
    /// they need none, because no thread asks when they were changed.
    #[inline(always)]
    fn stamp(&self) -> Lsn {
        Lsn(0)
    }

    /// A page whose LSN is less is [kept](Self::keep_page) before it changes; zero if none is.
    #[inline(always)]
    fn kept_from(&self) -> Lsn {
        Lsn(0)
    }

    /// Keeps what a page of the tree with this root holds, for snapshots that are older than the change that follows. See
    /// [`KeptPages`](crate::KeptPages).
    fn keep_page(&self, _tree: PageId, _page: &[u8]) {}

    /// Admits changes: a record that is reserved before may lie before the place from which a crash makes the log be read. The thread
    /// has no latch and no new page: this may wait until the log has room.
    ///
    /// # Errors
    /// If the file cannot be marked as in use, or the log has no room.
    fn admit_changes(&self) -> Result<(), PoolError> {
        Ok(())
    }

    /// The bytes beyond which a change is divided among several records, if that can be done.
    fn record_bytes_max(&self) -> usize {
        vellum_base::plant::record_bytes_max().unwrap_or(256 << 10)
    }

    /// A page whose LSN is less is recorded whole when it is changed.
    fn images_from(&self) -> Lsn {
        Lsn(0)
    }

    /// Reserves the place of a record that is `bytes` long, and gives its LSN. All pages that the change is about are
    /// latched, so for each page the order of the LSNs is that of its changes.
    fn reserve_record(&self, _bytes: usize) -> Lsn {
        Lsn(0)
    }

    /// Leaves the place of a record empty.
    fn cancel_record(&self, _at: Lsn, _bytes: usize) {}

    /// Fills the place of a record, after its latches have been released.
    fn fill_record(&self, _at: Lsn, _record: &[u8]) {}

    /// Whether [`persist`](Allocation::persist) and [`settle`](PageWriter::settle) record the contents of what they make durable.
    /// Then no place at which recovery begins may lie between these and the record that refers to them: all of it happens
    /// between [`begin_group`](Self::begin_group) and [`end_group`](Self::end_group).
    fn records_contents(&self) -> bool {
        false
    }

    /// Whether the record of a value that is changed where it lies has all of it, and not the bytes alone that differ.
    fn records_values(&self) -> bool {
        false
    }

    /// Begins a row of records that count only if the last of them is there; gives its number.
    fn begin_group(&self) -> u64 {
        0
    }

    /// Ends a row of records.
    fn end_group(&self) {}
}
