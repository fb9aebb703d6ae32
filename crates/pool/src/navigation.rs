//! The pool as a pager: how a guard on one page leads to a guard on the next.
//!
//! The fast paths come first, and load only two words: the child's state and the parent's. The slow paths find out why
//! a page cannot be read.

use crate::{
    allocator::Allocator,
    change_log::ChangeLog,
    change_records::ChangeRecords,
    error::{Fault, Interrupt, Miss, PoolError},
    guard::{AllocatedGuard, ExclusiveGuard, OptimisticGuard, SharedGuard},
    io::{copies, miss_queue::MissQueue},
    page::state::Word,
    pager::{Allocation, AsynchronousReads, Followed, Navigation, Streams, copy_part},
    pool::Pool,
    stream::{extent_stream, extent_stream::ExtentStream, page_stream::PageStream},
};
use vellum_base::{Bytes, Extent, Lsn, PageId, PageKind};
use vellum_vm::{AlignedBuffer, LINE_BYTES, prefetch_line};

/// How many cache lines of a page are prefetched when a reference to it is followed: the header and the first slots of
/// a tree node.
const PREFETCH_LINES: usize = 6;

impl Pool {
    /// Makes room in the log or the file if a change was refused for that; the change is then tried again. The thread
    /// holds no latch.
    ///
    /// # Errors
    /// The same error, or the reason why there is no room.
    #[cold]
    fn make_room(&self, refused: PoolError) -> Result<(), PoolError> {
        match (refused, self.allocator().evictor().log()) {
            (PoolError::LogRefuses(error), Some(log)) => log.make_room(error).map_err(PoolError::LogRefuses),
            // Whoever keeps room for undo looks for it elsewhere.
            (error @ PoolError::KeptForUndo, _) => Err(error),
            (error, _) => self.allocator().make_space(error),
        }
    }

    /// The interrupt of a read that cannot begin.
    fn look_failed(&self, page: PageId, now: Word, miss: Miss) -> Interrupt {
        if now.is_evicted() { Interrupt::Miss(miss) } else { Interrupt::Conflict(page) }
    }

    #[inline]
    fn within(&self, page: PageId) -> bool {
        page.0 < self.table().capacity_pages
    }

    #[cold]
    fn dangling(referrer: PageId, page: PageId) -> Interrupt {
        PoolError::Corruption { extent: Extent::page(referrer), fault: Fault::Reference(page.0) }.into()
    }

    /// Prefetches the first lines of a page, which a read will need, all at once. The page need not even exist.
    #[inline(always)]
    fn prefetch_lines(&self, page: PageId) {
        let start = self.table().address_of_any(page);
        for line in 0..PREFETCH_LINES {
            prefetch_line(start.wrapping_add(line * LINE_BYTES));
        }
    }

    /// [`Navigation::root`] if the page cannot simply be read.
    #[cold]
    #[inline(never)]
    fn root_closely(&self, page: PageId) -> Followed<'_, Self> {
        if !self.within(page) {
            return Err(Self::dangling(page, page));
        }
        OptimisticGuard::begin(self.allocator(), page)
            .map_err(|now| self.look_failed(page, now, Miss::certain(Extent::page(page))))
    }

    /// [`Navigation::child`] if `page`, to which the parent refers, cannot simply be read.
    // The guard is taken by value, so that it need not lie in memory on the normal path.
    #[cold]
    #[inline(never)]
    fn child_closely<'p>(&'p self, parent: OptimisticGuard<'p>, page: PageId) -> Followed<'p, Self> {
        self.follow(&parent, page, OptimisticGuard::begin)
    }

    /// The result of a read of `page`, to which the parent refers, that starts with `begin`.
    #[inline]
    fn follow<'p>(
        &'p self,
        parent: &OptimisticGuard<'p>,
        page: PageId,
        begin: impl FnOnce(&'p Allocator, PageId) -> Result<OptimisticGuard<'p>, Word>,
    ) -> Followed<'p, Self> {
        if !self.within(page) {
            parent.validate()?;
            return Err(Self::dangling(parent.id(), page));
        }
        match begin(self.allocator(), page) {
            Ok(child) => parent.validate().map(|()| child),
            Err(now) => Err(self.look_failed(page, now, parent.miss(Extent::page(page))?)),
        }
    }
}

impl Navigation for Pool {
    type Optimistic<'p> = OptimisticGuard<'p>;
    type Shared<'p> = SharedGuard<'p>;
    type Exclusive<'p> = ExclusiveGuard<'p>;

    #[inline(always)]
    fn look(&self, page: PageId) -> Option<OptimisticGuard<'_>> {
        OptimisticGuard::look(self.allocator(), page)
    }

    #[inline(always)]
    fn root(&self, page: PageId) -> Followed<'_, Self> {
        match self.look(page) {
            Some(root) => Ok(root),
            None => self.root_closely(page),
        }
    }

    #[inline(always)]
    fn child<'p>(&'p self, parent: &OptimisticGuard<'p>, place: usize) -> Followed<'p, Self> {
        self.prefetch_lines(PageId::referred(parent.bytes().u64_at(place)));
        self.child_fetched(parent, place)
    }

    #[inline(always)]
    fn child_fetched<'p>(&'p self, parent: &OptimisticGuard<'p>, place: usize) -> Followed<'p, Self> {
        let page = PageId::referred(parent.bytes().u64_at(place));
        match OptimisticGuard::look(self.allocator(), page) {
            Some(child) if parent.is_valid() => Ok(child),
            _ => self.child_closely(*parent, page),
        }
    }

    fn child_in_passing<'p>(&'p self, parent: &OptimisticGuard<'p>, place: usize) -> Followed<'p, Self> {
        let page = PageId::referred(parent.bytes().u64_at(place));
        self.prefetch_lines(page);
        self.follow(parent, page, OptimisticGuard::begin_in_passing)
    }

    fn child_of_latched<'p>(&'p self, parent: &ExclusiveGuard<'p>, place: usize) -> Followed<'p, Self> {
        let page = PageId::referred(parent.page().u64_at(place));
        if !self.within(page) {
            return Err(Self::dangling(parent.id(), page));
        }
        // If the parent is changed, its version will differ by the time the miss is resolved; if not, the reference is
        // still valid.
        OptimisticGuard::begin(self.allocator(), page)
            .map_err(|now| self.look_failed(page, now, parent.miss(page)))
    }

    #[inline]
    fn reacquire(&self, page: PageId, token: u64) -> Option<OptimisticGuard<'_>> {
        OptimisticGuard::reacquire(self.allocator(), page, token)
    }

    #[inline(always)]
    fn relax<'p>(&'p self, guard: ExclusiveGuard<'p>) -> OptimisticGuard<'p> {
        guard.relax()
    }

    #[inline]
    fn prefetch(&self, page: PageId, at: usize, bytes: usize) {
        self.table().prefetch(page, at, bytes);
    }

    fn shared<'p>(
        &'p self,
        parent: &OptimisticGuard<'p>,
        extent: Extent,
    ) -> Result<SharedGuard<'p>, Interrupt> {
        let beyond = extent.head.0.saturating_add(extent.pages as u64) > self.table().capacity_pages;
        if beyond || extent.pages == 0 {
            parent.validate()?;
            return Err(Self::dangling(parent.id(), extent.head));
        }
        let state = self.table().state(extent.head);
        let now = state.load();
        if now.is_evicted() {
            return Err(Interrupt::Miss(parent.miss(extent)?));
        }
        if !state.try_shared(now) {
            // Otherwise it may be a stranger's by now, who keeps it latched for long.
            parent.validate()?;
            return Err(Interrupt::Conflict(extent.head));
        }
        let guard = SharedGuard::adopt(self.table(), extent);
        // The latch keeps the extent from being freed. The parent tells whether it still referred to the extent when
        // the extent was latched.
        parent.validate()?;
        if !self.allocator().storage().is_allocated(extent) {
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
        let evictor = self.allocator().evictor();
        // Pages that changed after what is durable stay in memory when the log has ended.
        let ended = || evictor.log().and_then(|log| log.check().err()).map(PoolError::Log);
        evictor.outage().error().or_else(ended)
    }

    #[cold]
    fn complete_reads(&self) {
        self.allocator().io.complete_reads();
    }

    #[cold]
    fn resolve(&self, interrupt: Interrupt) -> Result<(), PoolError> {
        match interrupt {
            Interrupt::Conflict(page) => {
                self.table().counters.restarts.add(1);
                if self.within(page) {
                    self.allocator().io.wait_after_conflict(page);
                }
                Ok(())
            }
            Interrupt::Miss(miss) => {
                self.table().counters.restarts.add(1);
                self.allocator().io.fault(&miss)
            }
            Interrupt::Fatal(error) => self.make_room(*error),
        }
    }
}

impl Allocation for Pool {
    type Allocated<'p> = AllocatedGuard<'p>;

    fn allocate(&self, pages: u32, kind: PageKind) -> Result<AllocatedGuard<'_>, PoolError> {
        Pool::allocate(self, pages, kind)
    }

    fn may_merge_leaves(&self) -> bool {
        Pool::may_merge_leaves(self)
    }

    fn allocate_before(
        &self,
        limit: PageId,
        pages: u32,
        kind: PageKind,
    ) -> Result<Option<AllocatedGuard<'_>>, PoolError> {
        let extent = self.allocator().allocate_before(limit, pages, kind)?;
        Ok(extent.map(|extent| AllocatedGuard::adopt(self.allocator(), extent)))
    }

    fn discard(&self, extent: Extent, lsn: Lsn) -> Result<(), PoolError> {
        self.allocator().discard(extent, lsn)
    }

    fn discard_now(&self, extent: Extent, lsn: Lsn) -> Result<(), PoolError> {
        self.allocator().discard(extent, lsn)?;
        self.allocator().await_discarded(extent);
        Ok(())
    }

    fn note_allocated(&self, extent: Extent, lsn: Lsn) {
        self.allocator().note_allocated(extent, lsn);
    }

    fn persist(&self, extents: &[Extent]) -> Result<(), PoolError> {
        let io = &self.allocator().io;
        copies::persist(io, extents)?;
        copies::record_contents(io, extents.iter().copied())
    }

    fn is_extent(&self, extent: Extent) -> bool {
        Pool::is_extent(self, extent)
    }

    fn note_referred_to_again(&self, extent: Extent) {
        self.allocator().storage().space.note_referred_to_again(extent);
    }

    fn begin_unfinished(&self) -> u64 {
        self.allocator().storage().space.begin_unfinished()
    }

    fn end_unfinished(&self, number: u64) {
        self.allocator().storage().space.end_unfinished(number);
    }

    fn has_changed_hands(&self, extent: Extent) -> bool {
        self.allocator().storage().space.has_changed_hands(extent)
    }
}

impl ChangeRecords for Pool {
    #[inline(always)]
    fn records(&self) -> bool {
        self.allocator().evictor().log().is_some()
    }

    #[inline(always)]
    fn needs_lsn(&self) -> bool {
        self.allocator().storage().needs_lsn()
    }

    fn admit_changes(&self) -> Result<(), PoolError> {
        loop {
            match self.allocator().evictor().admit_changes() {
                Ok(()) => return Ok(()),
                Err(error) => self.make_room(error)?,
            }
        }
    }

    #[inline(always)]
    fn stamp(&self) -> Lsn {
        self.allocator().storage().clock().map_or(Lsn(0), |clock| clock.stamp())
    }

    #[inline(always)]
    fn kept_from(&self) -> Lsn {
        self.allocator().storage().kept_pages().from()
    }

    fn keep_page(&self, tree: PageId, page: &[u8]) {
        self.allocator().storage().kept_pages().keep(tree, page);
    }

    fn images_from(&self) -> Lsn {
        self.allocator().evictor().log().map_or(Lsn(0), ChangeLog::images_from)
    }

    fn reserve_record(&self, bytes: usize) -> Lsn {
        let Some(log) = self.allocator().evictor().log() else { return Lsn(0) };
        let lsn = log.reserve(bytes);
        if log.is_short() {
            self.allocator().storage().suspend_changes();
        }
        lsn
    }

    fn cancel_record(&self, at: Lsn, bytes: usize) {
        self.allocator().evictor().log().inspect(|log| log.cancel(at, bytes));
    }

    fn fill_record(&self, at: Lsn, record: &[u8]) {
        self.allocator().evictor().log().inspect(|log| log.fill(at, record));
    }

    fn records_contents(&self) -> bool {
        self.allocator().evictor().log().is_some_and(ChangeLog::wants_contents)
    }

    fn pin_contents(&self) -> Lsn {
        self.allocator().evictor().log().map_or(Lsn(0), ChangeLog::pin_contents)
    }

    fn unpin_contents(&self, from: Lsn) {
        self.allocator().evictor().log().inspect(|log| log.unpin_contents(from));
    }

    #[inline]
    fn records_values(&self) -> bool {
        self.allocator().evictor().log().is_some_and(ChangeLog::wants_values)
    }

    fn begin_group(&self) -> u64 {
        self.allocator().evictor().log().map_or(0, ChangeLog::begin_group)
    }

    fn end_group(&self) {
        self.allocator().evictor().log().inspect(|log| log.end_group());
    }
}

impl AsynchronousReads for Pool {
    type Misses<'p> = MissQueue<'p>;

    fn misses(&self, depth: usize) -> Result<MissQueue<'_>, PoolError> {
        MissQueue::new(&self.allocator().io, depth)
    }

    fn is_latched(&self, page: PageId) -> bool {
        self.within(page) && self.table().state(page).load().is_exclusive()
    }

    fn complete_read(&self, page: PageId) {
        self.allocator().io.complete_read(page);
    }

    fn is_evicted(&self, page: PageId) -> bool {
        self.within(page) && self.table().state(page).load().is_evicted()
    }

    fn is_used(&self, page: PageId) -> bool {
        let is_used = |now: Word| !now.is_evicted() && !now.is_marked();
        self.within(page) && is_used(self.table().state(page).load())
    }
}

impl Streams for Pool {
    type Stream<'p> = ExtentStream<'p>;
    type Pages<'p> = PageStream<'p>;

    fn stream(&self, pages: u32, kind: PageKind) -> Result<ExtentStream<'_>, PoolError> {
        self.admit_changes()?;
        ExtentStream::begin(self.allocator(), pages, kind)
    }

    fn pages(&self, kind: PageKind) -> Result<PageStream<'_>, PoolError> {
        self.admit_changes()?;
        PageStream::begin(self.allocator(), kind)
    }

    fn read_part<'p>(
        &'p self,
        parent: &OptimisticGuard<'p>,
        extent: Extent,
        first_page: u32,
        buffer: &mut AlignedBuffer,
    ) -> Result<(), Interrupt> {
        match Navigation::shared(self, parent, extent) {
            Err(Interrupt::Miss(_)) => {
                extent_stream::read_part(self.allocator(), parent, extent, first_page, buffer)
            }
            guard => copy_part(guard?.page(), extent, first_page, buffer),
        }
    }
}
