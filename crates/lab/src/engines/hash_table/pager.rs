//! The pool as the tree knows it.

use super::frame::EXCLUSIVE;
use super::guards::{Allocated, Exclusive, Look, SharedExtent};
use super::misses::Reads;
use super::pool::{HashPool, from_token, missing};
use super::writers::{Pages, Stream};
use vellum_base::{Bytes, Extent, Lsn, PAGE_SIZE, PageHeader, PageId, PageKind, verify_header};
use vellum_pool::{
    Allocation, AsynchronousReads, ChangeRecords, ExclusivePage, Fault, Interrupt, Navigation,
    OptimisticPage, PoolError, SharedPage, Streams,
};
use vellum_vm::{AlignedBuffer, LINE_BYTES, prefetch_line};

/// How many lines from the beginning of a node are wanted by whoever goes there.
const PREFETCH_LINES: usize = 4;

/// No page of a file of ours has such a number.
const PAGE_ID_END: u64 = 1 << 39;

impl HashPool {
    /// Looks at a page, if it is in memory and not held exclusively. The beginning of its node is fetched beside its state.
    #[inline(always)]
    fn look(&self, page: PageId, lines: usize) -> Option<Look<'_>> {
        let frame = self.table.find(page)?;
        let address = self.frames.address(frame);
        for line in 0..lines {
            prefetch_line(address.wrapping_add(line * LINE_BYTES));
        }
        let state = self.frames.state(frame);
        let seen = state.load();
        (seen & EXCLUSIVE == 0 && state.holds(page)).then(|| Look::new(self, page, frame, seen))
    }

    /// Why a page could not be looked at: the interrupt of who was led there by `referrer`.
    #[cold]
    #[inline(never)]
    fn why_not(&self, page: PageId, referrer: Option<(PageId, u64)>) -> Interrupt {
        if page.0 == 0 || page.0 >= PAGE_ID_END {
            let from = referrer.map_or(page, |(from, _)| from);
            let fault = Fault::Reference(page.0);
            return PoolError::Corruption { extent: Extent::page(from), fault }.into();
        }
        match self.table.find(page) {
            Some(_) => Interrupt::Conflict(page),
            None => missing(page, referrer),
        }
    }

    #[inline(always)]
    fn follow<'p>(&'p self, parent: &Look<'p>, place: usize, lines: usize) -> Result<Look<'p>, Interrupt> {
        let page = PageId::referred(parent.bytes().u64_at(place));
        match self.look(page, lines) {
            Some(child) if parent.is_valid() => Ok(child),
            _ => Err(self.why_not_from(*parent, page)),
        }
    }

    #[cold]
    #[inline(never)]
    fn why_not_from(&self, parent: Look<'_>, page: PageId) -> Interrupt {
        match parent.validate() {
            Ok(()) => self.why_not(page, Some((parent.id(), parent.token()))),
            Err(conflict) => conflict,
        }
    }

    /// Reads an extent of several pages.
    fn copy(&self, extent: Extent) -> Result<AlignedBuffer, PoolError> {
        if !self.space.is_extent(extent) {
            return Err(PoolError::Corruption { extent, fault: Fault::NotAllocated });
        }
        let mut bytes = AlignedBuffer::new(extent.bytes());
        // SAFETY: the buffer is this call's own, and as long as the extent.
        unsafe { self.file.read(extent.head.offset(), bytes.as_mut_ptr(), bytes.len()) }
            .map_err(|source| PoolError::Read { extent, source })?;
        super::pool::count(&self.counters.pages_read, u64::from(extent.pages));
        match verify_header(&bytes, extent) {
            Ok(_) => Ok(bytes),
            Err(fault) => Err(PoolError::Corruption { extent, fault: Fault::Header(fault) }),
        }
    }

    /// Holds a single page shared.
    fn share(&self, page: PageId, referrer: Option<(PageId, u64)>) -> Result<SharedExtent<'_>, Interrupt> {
        let Some(frame) = self.table.find(page) else { return Err(self.why_not(page, referrer)) };
        let state = self.frames.state(frame);
        if !state.try_shared(state.load()) {
            return Err(Interrupt::Conflict(page));
        }
        let guard = SharedExtent::Frame { pool: self, frame };
        if state.holds(page) { Ok(guard) } else { Err(Interrupt::Conflict(page)) }
    }
}

impl Navigation for HashPool {
    type Optimistic<'p> = Look<'p>;
    type Shared<'p> = SharedExtent<'p>;
    type Exclusive<'p> = Exclusive<'p>;

    #[inline(always)]
    fn root(&self, page: PageId) -> Result<Look<'_>, Interrupt> {
        self.look(page, 0).ok_or_else(|| self.why_not(page, None))
    }

    #[inline(always)]
    fn child<'p>(&'p self, parent: &Look<'p>, place: usize) -> Result<Look<'p>, Interrupt> {
        self.follow(parent, place, PREFETCH_LINES)
    }

    #[inline(always)]
    fn child_fetched<'p>(&'p self, parent: &Look<'p>, place: usize) -> Result<Look<'p>, Interrupt> {
        self.follow(parent, place, 0)
    }

    fn child_in_passing<'p>(&'p self, parent: &Look<'p>, place: usize) -> Result<Look<'p>, Interrupt> {
        let page = PageId::referred(parent.bytes().u64_at(place));
        if let Some(frame) = self.table.find(page) {
            let state = self.frames.state(frame);
            let seen = state.load();
            if seen & EXCLUSIVE == 0 && state.page() == page && parent.is_valid() {
                return Ok(Look::new(self, page, frame, seen));
            }
        }
        self.follow(parent, place, 0)
    }

    fn child_of_latched<'p>(&'p self, parent: &Exclusive<'p>, place: usize) -> Result<Look<'p>, Interrupt> {
        let page = PageId::referred(parent.page().u64_at(place));
        self.look(page, 0).ok_or_else(|| self.why_not(page, Some((parent.id(), parent.token()))))
    }

    #[inline]
    fn reacquire(&self, page: PageId, token: u64) -> Option<Look<'_>> {
        let (frame, seen) = from_token(token);
        let state = self.frames.state(frame);
        let now = state.load();
        let look = Look::new(self, page, frame, now);
        (now & EXCLUSIVE == 0 && state.validate(seen) && state.holds(page)).then_some(look)
    }

    #[inline]
    fn relax<'p>(&'p self, guard: Exclusive<'p>) -> Look<'p> {
        guard.relax()
    }

    #[inline]
    fn prefetch(&self, page: PageId, at: usize, bytes: usize) {
        let Some(frame) = self.table.find(page) else { return };
        if at == 0 {
            prefetch_line(std::ptr::from_ref(self.frames.state(frame)).cast());
        }
        let start = self.frames.address(frame).wrapping_add(at);
        for line in 0..bytes.div_ceil(LINE_BYTES) {
            prefetch_line(start.wrapping_add(line * LINE_BYTES));
        }
    }

    fn shared<'p>(&'p self, parent: &Look<'p>, extent: Extent) -> Result<SharedExtent<'p>, Interrupt> {
        parent.validate()?;
        if extent.pages == 1 {
            let guard = self.share(extent.head, Some((parent.id(), parent.token())))?;
            parent.validate()?;
            return Ok(guard);
        }
        let copy = self.copy(extent);
        // What was read, or why it could not be, counts if the reference stands still.
        parent.validate()?;
        Ok(SharedExtent::Copy(copy?))
    }

    fn shared_certain(&self, extent: Extent) -> Result<SharedExtent<'_>, PoolError> {
        if extent.pages > 1 {
            return Ok(SharedExtent::Copy(self.copy(extent)?));
        }
        self.run(|| self.share(extent.head, None))
    }

    fn limit_pages(&self) -> usize {
        self.frames.count()
    }

    #[cold]
    fn resolve(&self, interrupt: Interrupt) -> Result<(), PoolError> {
        match interrupt {
            Interrupt::Conflict(page) => {
                self.wait(page);
                Ok(())
            }
            Interrupt::Miss(miss) => self.load(&miss),
            Interrupt::Fatal(error) => Err(*error),
        }
    }
}

impl Allocation for HashPool {
    type Allocated<'p> = Allocated<'p>;

    fn allocate(&self, pages: u32, kind: PageKind) -> Result<Allocated<'_>, PoolError> {
        if pages == 1 {
            return Ok(Allocated::frame(self, (**self).allocate(kind)?));
        }
        let extent = self.space.allocate(pages, &*self.file)?;
        let mut bytes = AlignedBuffer::new(extent.bytes());
        PageHeader { extent, lsn: Lsn(0), kind }.write(&mut bytes);
        Ok(Allocated::buffer(self, extent, bytes))
    }

    fn discard(&self, extent: Extent, _: Lsn) -> Result<(), PoolError> {
        (**self).discard(extent)
    }

    fn is_extent(&self, extent: Extent) -> bool {
        self.space.is_extent(extent)
    }
}

impl AsynchronousReads for HashPool {
    type Misses<'p> = Reads<'p>;

    fn misses(&self, depth: usize) -> Result<Reads<'_>, PoolError> {
        Reads::new(self, depth)
    }

    fn is_latched(&self, page: PageId) -> bool {
        (**self).is_latched(page)
    }

    fn is_evicted(&self, page: PageId) -> bool {
        self.table.find(page).is_none()
    }
}

impl Streams for HashPool {
    type Stream<'p> = Stream<'p>;
    type Pages<'p> = Pages<'p>;

    fn stream(&self, pages: u32, kind: PageKind) -> Result<Stream<'_>, PoolError> {
        Stream::new(self, pages, kind)
    }

    fn pages(&self, kind: PageKind) -> Result<Pages<'_>, PoolError> {
        Ok(Pages::new(self, kind))
    }

    fn read_part<'p>(
        &'p self,
        parent: &Look<'p>,
        extent: Extent,
        first_page: u32,
        buffer: &mut AlignedBuffer,
    ) -> Result<(), Interrupt> {
        parent.validate()?;
        let start = first_page as usize * PAGE_SIZE;
        let not_allocated = || PoolError::Corruption { extent, fault: Fault::NotAllocated };
        if !self.space.is_extent(extent) || start + buffer.len() > extent.bytes() {
            parent.validate()?;
            return Err(not_allocated().into());
        }
        if extent.pages == 1 {
            // It may be in memory, and changed; it is no more than a page to bring in, too.
            let guard = match self.share(extent.head, Some((parent.id(), parent.token()))) {
                Err(Interrupt::Miss(miss)) => {
                    self.load(&miss)?;
                    return Err(Interrupt::Conflict(extent.head));
                }
                other => other?,
            };
            parent.validate()?;
            let part = guard.page().get(start..).and_then(|rest| rest.get(..buffer.len()));
            buffer.copy_from_slice(part.ok_or_else(not_allocated)?);
            return Ok(());
        }
        // SAFETY: the buffer is this caller's own.
        let read =
            unsafe { self.file.read(extent.head.offset() + start as u64, buffer.as_mut_ptr(), buffer.len()) };
        parent.validate()?;
        read.map_err(|source| PoolError::Read { extent, source })?;
        Ok(())
    }
}

// There is no log.
impl ChangeRecords for HashPool {}
