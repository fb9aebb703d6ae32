//! Single pages that are written one after the other, in any number: the output of a bulk load.
//!
//! A [`PageStream`] claims runs of consecutive pages and fills them in order. As long as memory is ample, a page goes
//! into the pool like any other changed page. When it is not, pages are gathered in a few buffers beside the mapping,
//! stamped with their checksums, and written a buffer at a time while the next one is being filled. So they push
//! nothing out of the pool, cost no page fault, and reach the device in large requests.
//!
//! # Invariants
//! - Nothing refers to the pages before [`settle`](PageWriter::settle). Pages that are written past the pool stay
//!   *claimed* until then: no thread allocates them or brings them into memory, and no latch is held meanwhile.
//! - Between two calls no latch is held, whatever the caller does in between.
//! - Pages that are not kept are freed without reading anything, whatever has failed.
//! - The buffers are counted in the budget.

use crate::{
    allocator::Allocator, change_log::ChangeLog, error::PoolError, guard::AllocatedGuard, io::copies,
    pager::PageWriter, plant::Plant, replacement::budget::Budget,
};
use std::{cell::Cell, ops::Range};
use vellum_base::{Extent, Lsn, PAGE_SIZE, PageHeader, PageId, PageKind, stamp_checksum};
use vellum_vm::{AlignedBuffer, Completion, Queue, Request, Wait, prefetch_to_write};

/// The pages of the first run; each run is twice as long as the one before.
const RUN_PAGES_FIRST: u32 = 16;
/// The most pages of a run.
const RUN_PAGES_MAX: u32 = 256;
/// The most pages that one request writes: 1 MiB.
const BUFFER_PAGES_MAX: usize = 256;
/// How many buffers there are: one is filled while the others are written.
const BUFFERS: usize = 4;

/// Writes single pages one after the other, consecutive on storage as far as there is room. Made by
/// [`Streams::pages`](crate::Streams::pages).
///
/// The pages are freed when the stream is dropped, unless [`keep`](PageWriter::keep) says that something refers to
/// them.
#[must_use = "the pages are freed again at once"]
pub struct PageStream<'p> {
    allocator: &'p Allocator,
    kind: PageKind,
    /// Claimed pages that are to be filled next, and how many will be claimed after them.
    ahead: Range<u64>,
    run_pages: u32,
    /// The claimed pages whose memory was fetched ahead and is counted in the budget.
    prefaulted: Range<u64>,
    /// Pages that were or will be written past the pool: claimed.
    past: Ranges,
    /// The ranges in which the allocated pages and extents lie, and nothing else.
    allocated: Ranges,
    buffers: Option<Buffers<'p>>,
    /// Whether a page could not be written, or is being written.
    failed: bool,
}

impl<'p> PageStream<'p> {
    pub(crate) fn begin(allocator: &'p Allocator, kind: PageKind) -> Result<Self, PoolError> {
        assert!(kind.0 > 0, "a page has a kind");
        allocator.evictor().admit_changes()?;
        Ok(Self {
            allocator,
            kind,
            ahead: 0..0,
            run_pages: RUN_PAGES_FIRST,
            prefaulted: 0..0,
            past: Ranges::default(),
            allocated: Ranges::default(),
            buffers: None,
            failed: false,
        })
    }

    fn refuse_if_failed(&self) -> Result<(), PoolError> {
        if self.failed {
            let extent = Extent::page(PageId(self.ahead.start));
            let source = std::io::Error::other("an earlier page could not be written");
            return Err(PoolError::Write { extent, source });
        }
        Ok(())
    }

    /// The next claimed page.
    fn next(&mut self) -> Result<PageId, PoolError> {
        self.refuse_if_failed()?;
        // Until the page is written.
        self.failed = true;
        if self.ahead.is_empty() {
            let prefaulted = Cell::new(0..0);
            let window = &self.allocator.pages().window;
            let claim = || {
                let grown = |end| prefaulted.set(window.leave(end));
                self.allocator.storage().claim_run(self.run_pages, grown)
            };
            self.ahead = self.allocator.claim_or_make(claim)?;
            self.prefaulted = prefaulted.into_inner();
            self.run_pages = (self.run_pages * 2).min(RUN_PAGES_MAX);
        }
        Ok(PageId(self.ahead.start))
    }

    /// Writes a page into the pool. Its memory has been reserved.
    fn append_in_memory<E: From<PoolError>>(
        &mut self,
        page: PageId,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let extent = Extent::page(page);
        self.ahead.start += 1;
        if self.prefaulted.start == page.0 && self.prefaulted.next().is_some() {
            self.allocator.pages().budget.give_back(1);
        }
        self.allocator.admit_new(extent, self.kind)?;
        let mut guard = AllocatedGuard::adopt(self.allocator, extent);
        fill(guard.page_mut())?;
        drop(guard.keep());
        self.allocated.add(extent);
        Ok(())
    }

    /// Writes a page into the buffer, and the buffer to storage if no more pages go into it.
    fn append_past<E: From<PoolError>>(
        &mut self,
        page: PageId,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.allocator.pages().release_prefaulted(std::mem::take(&mut self.prefaulted));
        let mut buffers = match self.buffers.take() {
            Some(buffers) => buffers,
            None => Buffers::new(self.allocator)?,
        };
        let buffers = self.buffers.insert(buffers.open(page).map(|()| buffers)?);
        let Some(bytes) = buffers.next_page() else { return Ok(()) };
        bytes.fill(0);
        let lsn = self.allocator.storage().lsn_past_log();
        PageHeader { extent: Extent::page(page), lsn, kind: self.kind }.write(bytes);
        fill(bytes)?;
        stamp_checksum(bytes);
        self.ahead.start += 1;
        self.past.add(Extent::page(page));
        buffers.filled += 1;
        if buffers.filled == buffers.pages || self.ahead.is_empty() {
            buffers.submit();
        }
        Ok(())
    }

    /// Makes all pages and extents durable, before a record refers to them.
    fn persist(&self) -> Result<(), PoolError> {
        let (storage, table) = (self.allocator.storage(), self.allocator.table());
        let mut in_memory = Vec::new();
        for pages in &self.allocated.0 {
            storage.space.for_each_in(pages.clone(), |extent| {
                // At least one: pages that were evicted or written past the pool are synced along with it.
                if in_memory.is_empty() || !table.state(extent.head).load().is_evicted() {
                    in_memory.push(extent);
                }
            });
        }
        copies::persist(&self.allocator.io, &in_memory)?;
        let mut all = Vec::new();
        if self.allocator.evictor().log().is_some_and(ChangeLog::wants_contents) {
            for pages in &self.allocated.0 {
                storage.space.for_each_in(pages.clone(), |extent| all.push(extent));
            }
        }
        copies::record_contents(&self.allocator.io, all.into_iter())
    }
}

impl PageWriter for PageStream<'_> {
    fn append<E: From<PoolError>>(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<PageId, E> {
        let page = self.next()?;
        let gathering = self.buffers.as_ref().is_some_and(|buffers| buffers.filled > 0);
        let budget = &self.allocator.pages().budget;
        // Room is left for the buffers, so that they push nothing out when they are needed.
        let buffers = if self.buffers.is_none() { Buffers::pages_of_all(budget) } else { 0 };
        if !gathering && budget.shortage(1 + buffers) == 0 && budget.try_reserve(1) {
            self.append_in_memory(page, fill)?;
        } else {
            self.append_past(page, fill)?;
        }
        self.failed = false;
        Ok(page)
    }

    #[inline]
    fn prefetch_next(&self, at: usize, bytes: usize) {
        // Pages that are written past the pool go into buffers, which are in the cache anyway.
        if self.buffers.is_none() && !self.ahead.is_empty() {
            let page = PageId(self.ahead.start);
            if at == 0 {
                self.allocator.pages().prefetch_insertion(page);
            }
            prefetch_to_write(self.allocator.table().address_of_any(page).wrapping_add(at), bytes);
        }
    }

    fn adopt(&mut self, extent: Extent) {
        self.allocated.add(extent);
    }

    fn settle(&mut self) -> Result<(), PoolError> {
        self.refuse_if_failed()?;
        if let Some(buffers) = &mut self.buffers {
            buffers.finish().inspect_err(|_| self.failed = true)?;
        }
        self.buffers = None;
        for page in std::mem::take(&mut self.past).0.into_iter().flatten().map(PageId) {
            let extent = Extent::page(page);
            self.allocator.admit_on_storage(extent);
            self.allocated.add(extent);
        }
        match self.allocator.storage().logged() {
            Some(logged) if !logged.is_planted(Plant::LoadNotDurable) => self.persist(),
            _ => Ok(()),
        }
    }

    fn keep(mut self, lsn: Lsn) {
        let space = &self.allocator.storage().space;
        if lsn > Lsn(0) {
            for pages in &self.allocated.0 {
                space.for_each_in(pages.clone(), |extent| self.allocator.note_allocated(extent, lsn));
            }
        }
        self.allocated.0.clear();
    }
}

impl Drop for PageStream<'_> {
    fn drop(&mut self) {
        // Waits for writes under way, so that no other owner's pages are overwritten.
        self.buffers = None;
        self.allocator.pages().release_prefaulted(std::mem::take(&mut self.prefaulted));
        let space = &self.allocator.storage().space;
        space.unclaim(self.ahead.clone());
        std::mem::take(&mut self.past).0.into_iter().for_each(|pages| space.unclaim(pages));
        for pages in std::mem::take(&mut self.allocated).0 {
            let mut extents = Vec::new();
            space.for_each_in(pages, |extent| extents.push(extent));
            extents.into_iter().for_each(|extent| self.allocator.discard_waiting(extent));
        }
    }
}

/// Pages, as ranges of their numbers. Ranges that are added in the order of places take little memory.
#[derive(Default)]
struct Ranges(Vec<Range<u64>>);

impl Ranges {
    fn add(&mut self, extent: Extent) {
        /// Pages and large values grow at a few places in turn.
        const PLACES: usize = 4;
        let (start, end) = (extent.head.0, extent.end().0);
        match self.0.iter_mut().rev().take(PLACES).find(|range| range.end == start) {
            Some(range) => range.end = end,
            None => self.0.push(start..end),
        }
    }
}

/// The buffers for pages that are written past the pool.
struct Buffers<'p> {
    allocator: &'p Allocator,
    // Dropped before the memory: the queue waits until the kernel has given the buffers back.
    queue: Box<dyn Queue>,
    /// The buffers, and for each buffer that is being written, its extent.
    memory: Vec<(AlignedBuffer, Extent)>,
    /// Buffers that are not being written; the last one is being filled.
    free: Vec<usize>,
    /// Where the buffer that is being filled will be written, and how many of its pages are filled.
    first: PageId,
    filled: usize,
    /// The number of pages of each buffer.
    pages: usize,
    done: Vec<Completion>,
}

impl<'p> Buffers<'p> {
    /// Reserves the memory.
    fn new(allocator: &'p Allocator) -> Result<Self, PoolError> {
        let budget = &allocator.pages().budget;
        let queue = allocator.storage().file.queue(BUFFERS as u32).map_err(PoolError::Queue)?;
        let Some(all) = budget.begin_buffers(BUFFERS, BUFFER_PAGES_MAX) else {
            return Err(PoolError::TooManyStreams { pool_pages: budget.limit() });
        };
        let pages = all / BUFFERS;
        let reserved = allocator.io.reserve(Self::all(pages));
        reserved.inspect_err(|_| budget.end_buffers(all))?;
        let buffer = |_| (AlignedBuffer::new(pages * PAGE_SIZE), Extent::page(PageId(0)));
        let memory = (0..BUFFERS).map(buffer).collect();
        let free = (0..BUFFERS).collect();
        Ok(Self { allocator, queue, memory, free, first: PageId(0), filled: 0, pages, done: Vec::new() })
    }

    /// The number of pages of all buffers of one more stream together.
    fn pages_of_all(budget: &Budget) -> usize {
        budget.pages_for_buffers(BUFFERS, BUFFER_PAGES_MAX)
    }

    /// An extent that stands for the memory of all buffers.
    fn all(pages: usize) -> Extent {
        Extent { head: PageId(0), pages: (pages * BUFFERS) as u32 }
    }

    /// Makes sure that there is a buffer with room for a page.
    fn open(&mut self, page: PageId) -> Result<(), PoolError> {
        if self.filled > 0 {
            return Ok(());
        }
        self.reap(Wait::No)?;
        while self.free.is_empty() {
            self.reap(Wait::ForOne)?;
        }
        self.first = page;
        Ok(())
    }

    /// The bytes of the next page.
    fn next_page(&mut self) -> Option<&mut [u8]> {
        let (buffer, _) = self.memory.get_mut(*self.free.last()?)?;
        buffer.chunks_exact_mut(PAGE_SIZE).nth(self.filled)
    }

    /// Lets the device begin to write the open buffer.
    fn submit(&mut self) {
        if self.filled == 0 {
            return;
        }
        let extent = Extent { head: self.first, pages: self.filled as u32 };
        self.filled = 0;
        if let Some(index) = self.free.pop()
            && let Some((buffer, writing)) = self.memory.get_mut(index)
        {
            *writing = extent;
            let request = Request::write(extent.head.offset(), buffer.as_ptr(), extent.bytes());
            // SAFETY: the buffer is not touched before its completion has been reaped, and is dropped after the queue;
            // the pages are claimed, so nothing else reads or writes that part of the file.
            unsafe { self.queue.submit(request, index as u64) };
            self.queue.flush();
        }
    }

    /// Takes back buffers that have been written.
    fn reap(&mut self, wait: Wait) -> Result<(), PoolError> {
        let mut result = Ok(());
        self.queue.reap(wait, &mut self.done);
        for Completion { tag, result: written } in self.done.drain(..) {
            let index = tag as usize;
            let extent = self.memory.get(index).map_or(Extent::page(self.first), |(_, extent)| *extent);
            self.free.push(index);
            match written {
                Ok(()) => self.allocator.table().counters.pages_written.add(extent.pages as u64),
                Err(source) => {
                    self.allocator.table().counters.write_errors.add(1);
                    result = Err(PoolError::Write { extent, source });
                }
            }
        }
        result
    }

    /// Writes the remaining pages, and waits for all writes.
    fn finish(&mut self) -> Result<(), PoolError> {
        self.submit();
        while self.queue.under_way() > 0 {
            self.reap(Wait::ForOne)?;
        }
        Ok(())
    }
}

impl Drop for Buffers<'_> {
    fn drop(&mut self) {
        while self.queue.under_way() > 0 {
            // The caller has been told what could not be written.
            let _ = self.reap(Wait::ForOne);
        }
        let (budget, all) = (&self.allocator.pages().budget, Self::all(self.pages));
        budget.end_buffers(all.pages as usize);
        budget.give_back(all.pages as usize);
    }
}
