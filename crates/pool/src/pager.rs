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
//! [`Pager::run`] is the blocking way of running one: it resolves the interrupt and tries again. Who has many
//! operations to run gives their misses to a [`Misses`], and goes on with those that need not wait.

use crate::error::{Interrupt, Miss, PoolError};
use crate::io::miss_queue::{Begun, FinishedRead};
use std::collections::VecDeque;
use vellum_base::{Bytes, Extent, PageId, PageKind};
use vellum_vm::AlignedBuffer;

/// A guard that holds nothing: see [`OptimisticGuard`](crate::OptimisticGuard).
pub trait OptimisticPage: Copy {
    /// Its bytes.
    type View: Bytes;
    /// What it becomes by [`upgrade`](Self::upgrade).
    type Exclusive: ExclusivePage;

    /// Which page it is.
    fn id(&self) -> PageId;

    /// Stands for what the page holds at the moment: see [`Pager::reacquire`].
    fn token(&self) -> u64;

    /// Its bytes, as they are at the moment of each read.
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

/// A guard that lets read an extent: see [`SharedGuard`](crate::SharedGuard).
pub trait SharedPage {
    /// All bytes of the extent.
    fn page(&self) -> &[u8];
}

/// A guard that lets change an extent: see [`ExclusiveGuard`](crate::ExclusiveGuard).
pub trait ExclusivePage {
    /// Which page it is.
    fn id(&self) -> PageId;

    /// All bytes of the extent.
    fn page(&self) -> &[u8];

    /// All bytes of the extent, to be changed; the page header excepted.
    fn page_mut(&mut self) -> &mut [u8];

    /// Frees the extent, to which nothing refers any more.
    fn free(self);
}

/// A guard on a new extent that is freed unless kept: see [`AllocatedGuard`](crate::AllocatedGuard).
pub trait AllocatedPage {
    /// What it becomes.
    type Exclusive: ExclusivePage;

    /// Which page it is.
    fn id(&self) -> PageId;

    /// All bytes of the extent, to be filled; the page header excepted.
    fn page_mut(&mut self) -> &mut [u8];

    /// The extent is referred to from now on.
    fn keep(self) -> Self::Exclusive;
}

/// An extent that is written from its beginning to its end, past the pool: see
/// [`ExtentStream`](crate::ExtentStream).
pub trait ExtentWriter {
    /// Writes the next bytes. What comes first stands right behind the page header.
    ///
    /// # Errors
    /// If they cannot be written, or do not fit into the extent.
    fn append(&mut self, bytes: &[u8]) -> Result<(), PoolError>;

    /// Ends the extent, padding it with zeroes, and keeps it: it is referred to from now on.
    ///
    /// # Errors
    /// If it cannot be written; it is freed then.
    fn finish(self) -> Result<PageId, PoolError>;
}

/// Single pages that are written one after the other, consecutive on storage: see
/// [`PageStream`](crate::PageStream).
pub trait PageWriter {
    /// Writes the next page: `fill` is given its bytes, zeroes behind the page header, which it leaves alone. Nobody
    /// else sees the page before [`settle`](Self::settle).
    ///
    /// # Errors
    /// If there is no room for it or an earlier page could not be written, and what `fill` returns. Nothing more
    /// can be written then.
    fn append<E: From<PoolError>>(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<PageId, E>;

    /// Fetches bytes of the page that will probably be the next into the processor's cache, to be written: for whoever
    /// gathers its contents meanwhile. With its beginning goes what is needed beside it. Waits for nothing, and does
    /// nothing that a program can see.
    fn prefetch_next(&self, at: usize, bytes: usize);

    /// Takes over an extent that was allocated for the same purpose: it is freed with the pages.
    fn adopt(&mut self, extent: Extent);

    /// Waits until all pages can be read by whoever has a reference to them.
    ///
    /// # Errors
    /// If one could not be written.
    fn settle(&mut self) -> Result<(), PoolError>;

    /// All pages and extents are referred to from now on. Without this they are freed when the writer is dropped.
    fn keep(self);
}

/// Reads of what is missing, under way while their owner does something else: see
/// [`MissQueue`](crate::MissQueue).
pub trait Misses {
    /// How many reads were begun and not given back by [`reap`](Self::reap) yet.
    fn under_way(&self) -> usize;

    /// Begins to read what is missing, if that can be done without waiting.
    ///
    /// # Errors
    /// If it is not allocated, or larger than the pool.
    fn begin(&mut self, miss: &Miss) -> Result<Begun, PoolError>;

    /// Begins to read single pages that will be wanted soon, neighbours by one request, and returns how many
    /// requests there are: so many will be among what [`reap`](Self::reap) gives.
    fn begin_read_ahead(&mut self, pages: &[PageId]) -> usize;

    /// If memory is short, evicts pages of `passed`, from its beginning and until about `wanted` are free beyond what
    /// should be, and takes them out: single pages that were read ahead and have been used. What somebody else has
    /// come to use meanwhile stays in memory.
    fn give_up(&mut self, passed: &mut VecDeque<PageId>, wanted: usize);

    /// Lets the device begin.
    fn flush(&mut self);

    /// Appends the reads that are over to `finished`; waits for one if asked to, unless none is under way.
    fn reap(&mut self, wait: bool, finished: &mut Vec<FinishedRead>);

    /// The error that a finished read means for an operation that waited for it: none if the reference by which
    /// the operation came there does not stand any more, in which case it is to be tried again.
    fn verdict(&self, miss: &Miss, error: &PoolError) -> Option<PoolError>;
}

/// What brings pages into memory and keeps them there while they are used.
pub trait Pager: Send + Sync {
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
    /// The guard on a new extent.
    type Allocated<'p>: AllocatedPage<Exclusive = Self::Exclusive<'p>>
    where
        Self: 'p;

    /// The reads of what is missing that do not stop their owner.
    type Misses<'p>: Misses
    where
        Self: 'p;

    /// The writer of an extent that need not fit into memory.
    type Stream<'p>: ExtentWriter
    where
        Self: 'p;

    /// The writer of many single pages.
    type Pages<'p>: PageWriter
    where
        Self: 'p;

    /// Begins at a page that no page refers to: the root of a structure.
    ///
    /// # Errors
    /// The interrupts of the restart protocol.
    fn root(&self, page: PageId) -> Result<Self::Optimistic<'_>, Interrupt>;

    /// Looks at a page on which a guard had the token `token`, if the page is in memory and was not changed since.
    fn reacquire(&self, page: PageId, token: u64) -> Option<Self::Optimistic<'_>>;

    /// Gives up the latch on a page and goes on looking at it as it is now.
    fn relax<'p>(&'p self, guard: Self::Exclusive<'p>) -> Self::Optimistic<'p>;

    /// Goes from a page to the one that it refers to at byte `place`, a multiple of 8. Both are valid at one
    /// moment in between: the parent is validated after the child's look began.
    ///
    /// # Errors
    /// The interrupts of the restart protocol; a reference that leads nowhere is [`PoolError::Corruption`].
    fn child<'p>(
        &'p self,
        parent: &Self::Optimistic<'p>,
        place: usize,
    ) -> Result<Self::Optimistic<'p>, Interrupt>;

    /// Fetches bytes of a page that will be read soon into the processor's cache, and waits for none of it; from the
    /// beginning of the page also what a look at it needs beside it. Does nothing that a program can see, whatever the
    /// page.
    fn prefetch(&self, page: PageId, at: usize, bytes: usize);

    /// [`child`](Self::child), after a [`prefetch`](Self::prefetch) of it some time ago.
    ///
    /// # Errors
    /// As for `child`.
    fn child_fetched<'p>(
        &'p self,
        parent: &Self::Optimistic<'p>,
        place: usize,
    ) -> Result<Self::Optimistic<'p>, Interrupt>;

    /// [`child`](Self::child) for who comes by once and will not come again: the look does not keep the child in
    /// memory.
    ///
    /// # Errors
    /// As for `child`.
    fn child_in_passing<'p>(
        &'p self,
        parent: &Self::Optimistic<'p>,
        place: usize,
    ) -> Result<Self::Optimistic<'p>, Interrupt>;

    /// The same from a parent that is latched exclusively.
    ///
    /// # Errors
    /// As for [`child`](Self::child). A miss must be resolved with the parent's latch released.
    fn child_of_latched<'p>(
        &'p self,
        parent: &Self::Exclusive<'p>,
        place: usize,
    ) -> Result<Self::Optimistic<'p>, Interrupt>;

    /// Latches an extent shared to which `parent`, just read, refers; the parent is validated behind it.
    ///
    /// # Errors
    /// The interrupts of the restart protocol.
    fn shared<'p>(
        &'p self,
        parent: &Self::Optimistic<'p>,
        extent: Extent,
    ) -> Result<Self::Shared<'p>, Interrupt>;

    /// Allocates an extent.
    ///
    /// # Errors
    /// If the file cannot grow or the pool has no room.
    fn allocate(&self, pages: u32, kind: PageKind) -> Result<Self::Allocated<'_>, PoolError>;

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

    /// Reads pages of an extent to which `parent`, just read, refers, without bringing it into memory: from
    /// memory if it is there, from storage otherwise. What comes from storage has not been checked.
    ///
    /// # Errors
    /// The interrupts of the restart protocol, [`Interrupt::Miss`] excepted.
    fn read_part<'p>(
        &'p self,
        parent: &Self::Optimistic<'p>,
        extent: Extent,
        first_page: u32,
        buffer: &mut AlignedBuffer,
    ) -> Result<(), Interrupt>;

    /// Frees an extent to which nothing refers any more, without reading it in. If somebody still reads it,
    /// this does not wait: it is freed later.
    ///
    /// # Errors
    /// If it is not allocated as such.
    fn discard(&self, extent: Extent) -> Result<(), PoolError>;

    /// Whether exactly this extent is allocated.
    fn is_extent(&self, extent: Extent) -> bool;

    /// The most pages that an extent may have to be kept in memory beside others; larger ones are better
    /// written and read past the pool.
    fn comfortable_pages(&self) -> u32;

    /// Latches an extent shared that the caller knows to exist, waiting if need be.
    ///
    /// # Errors
    /// If it cannot be read in.
    fn shared_certain(&self, extent: Extent) -> Result<Self::Shared<'_>, PoolError>;

    /// Reads that do not stop their owner, of which up to `depth` are under way at once.
    ///
    /// # Errors
    /// If the system refuses what that takes.
    fn misses(&self, depth: usize) -> Result<Self::Misses<'_>, PoolError>;

    /// Whether somebody holds a page exclusively at this moment, so that looking at it fails.
    fn is_latched(&self, page: PageId) -> bool;

    /// Whether a page is not in memory at this moment.
    fn is_evicted(&self, page: PageId) -> bool;

    /// Waits for what an operation was interrupted for.
    ///
    /// # Errors
    /// What cannot be waited for.
    fn resolve(&self, interrupt: Interrupt) -> Result<(), PoolError>;

    /// The error of an operation that needs more pages in memory at once than can be there.
    fn no_room(&self) -> PoolError;

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
        let mut misses = 0;
        loop {
            match operation() {
                Ok(value) => return Ok(value),
                Err(interrupt) => {
                    misses += u32::from(matches!(interrupt, Interrupt::Miss(_)));
                    if misses > MISSES_MAX {
                        return Err(self.no_room());
                    }
                    self.resolve(interrupt)?;
                }
            }
        }
    }
}
