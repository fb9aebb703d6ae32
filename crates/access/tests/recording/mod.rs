//! A pager that records the changes of its pages in memory, as a log would; and redo and undo from the records.

mod replay;

pub use replay::{Alter, History, as_it_is};

use std::{
    collections::HashMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};
use vellum_access::AccessError;
use vellum_base::{Extent, Lsn, PageHeader, PageId, PageKind};
use vellum_pool::{
    Allocation, AsynchronousReads, ChangeRecords, ExclusiveGuard, ExtentStream, Interrupt, MissQueue,
    Navigation, OptimisticGuard, PageStream, PageWriter, Pool, PoolError, SharedGuard, Streams,
};
use vellum_vm::AlignedBuffer;

/// A pool whose changes are recorded.
pub struct RecordingPager {
    pub pool: Pool,
    last: AtomicU64,
    records: Mutex<Vec<(Lsn, Vec<u8>)>>,
    /// The nodes that were written past the log: their bytes on storage, by page and number.
    written: Mutex<HashMap<(PageId, Lsn), Vec<u8>>>,
    /// Nodes as they were at some moment.
    seen: Mutex<Vec<(PageId, Vec<u8>)>>,
}

impl RecordingPager {
    pub fn new(pool: Pool) -> Self {
        Self {
            pool,
            last: AtomicU64::new(0),
            records: Mutex::default(),
            written: Mutex::default(),
            seen: Mutex::default(),
        }
    }

    /// All extents that are not the pool's own, each with its bytes.
    pub fn extents(&self) -> HashMap<Extent, Vec<u8>> {
        let (mut extents, own) = (Vec::new(), self.pool.own_extents());
        self.pool.for_each_extent(|extent| extents.push(extent));
        extents.retain(|extent| !own.contains(extent));
        let bytes = |extent| self.pool.shared(extent).unwrap().page().to_vec();
        extents.into_iter().map(|extent| (extent, bytes(extent))).collect()
    }

    /// Keeps the bytes of a page as they are now, as an eviction might write them, if it is a node.
    pub fn see(&self, page: PageId) {
        let extent = Extent::page(page);
        let Ok(guard) = self.pool.shared(extent) else { return };
        if self.pool.is_extent(extent) && PageHeader::read(guard.page()).kind == PageKind::TREE_NODE {
            self.seen.lock().unwrap().push((page, guard.page().to_vec()));
        }
    }

    /// The history since the extents were these.
    pub fn history(&self, start: HashMap<Extent, Vec<u8>>) -> History {
        let mut records = self.records.lock().unwrap().clone();
        records.sort();
        History {
            start,
            records,
            written: self.written.lock().unwrap().clone(),
            seen: self.seen.lock().unwrap().clone(),
            end: self.extents(),
        }
    }
}

impl ChangeRecords for RecordingPager {
    fn records(&self) -> bool {
        true
    }

    fn reserve_record(&self, bytes: usize) -> Lsn {
        assert!(bytes > 8, "there is no empty record");
        Lsn(self.last.fetch_add(bytes as u64, Ordering::SeqCst) + bytes as u64)
    }

    fn fill_record(&self, at: Lsn, record: &[u8]) {
        self.records.lock().unwrap().push((at, record.to_vec()));
    }
}

impl Navigation for RecordingPager {
    type Optimistic<'p> = OptimisticGuard<'p>;
    type Shared<'p> = SharedGuard<'p>;
    type Exclusive<'p> = ExclusiveGuard<'p>;

    fn root(&self, page: PageId) -> Result<OptimisticGuard<'_>, Interrupt> {
        Navigation::root(&self.pool, page)
    }

    fn child<'p>(
        &'p self,
        parent: &OptimisticGuard<'p>,
        place: usize,
    ) -> Result<OptimisticGuard<'p>, Interrupt> {
        Navigation::child(&self.pool, parent, place)
    }

    fn child_of_latched<'p>(
        &'p self,
        parent: &ExclusiveGuard<'p>,
        place: usize,
    ) -> Result<OptimisticGuard<'p>, Interrupt> {
        self.pool.child_of_latched(parent, place)
    }

    fn reacquire(&self, page: PageId, token: u64) -> Option<OptimisticGuard<'_>> {
        self.pool.reacquire(page, token)
    }

    fn relax<'p>(&'p self, guard: ExclusiveGuard<'p>) -> OptimisticGuard<'p> {
        guard.relax()
    }

    fn shared<'p>(
        &'p self,
        parent: &OptimisticGuard<'p>,
        extent: Extent,
    ) -> Result<SharedGuard<'p>, Interrupt> {
        Navigation::shared(&self.pool, parent, extent)
    }

    fn shared_certain(&self, extent: Extent) -> Result<SharedGuard<'_>, PoolError> {
        self.pool.shared_certain(extent)
    }

    fn limit_pages(&self) -> usize {
        self.pool.limit_pages()
    }

    fn resolve(&self, interrupt: Interrupt) -> Result<(), PoolError> {
        self.pool.resolve(interrupt)
    }
}

impl Allocation for RecordingPager {
    type Allocated<'p> = vellum_pool::AllocatedGuard<'p>;

    fn allocate(&self, pages: u32, kind: PageKind) -> Result<Self::Allocated<'_>, PoolError> {
        self.pool.allocate(pages, kind)
    }

    fn discard(&self, extent: Extent, lsn: Lsn) -> Result<(), PoolError> {
        self.pool.discard(extent, lsn)
    }

    fn is_extent(&self, extent: Extent) -> bool {
        self.pool.is_extent(extent)
    }
}

impl AsynchronousReads for RecordingPager {
    type Misses<'p> = MissQueue<'p>;

    fn misses(&self, depth: usize) -> Result<MissQueue<'_>, PoolError> {
        self.pool.misses(depth)
    }

    fn is_latched(&self, page: PageId) -> bool {
        self.pool.is_latched(page)
    }

    fn is_evicted(&self, page: PageId) -> bool {
        self.pool.is_evicted(page)
    }
}

impl Streams for RecordingPager {
    type Stream<'p> = ExtentStream<'p>;
    type Pages<'p> = KeptPages<'p>;

    fn stream(&self, pages: u32, kind: PageKind) -> Result<ExtentStream<'_>, PoolError> {
        self.pool.stream(pages, kind)
    }

    fn pages(&self, kind: PageKind) -> Result<KeptPages<'_>, PoolError> {
        Ok(KeptPages { pager: self, pages: self.pool.pages(kind)? })
    }

    fn read_part<'p>(
        &'p self,
        parent: &OptimisticGuard<'p>,
        extent: Extent,
        first_page: u32,
        buffer: &mut AlignedBuffer,
    ) -> Result<(), Interrupt> {
        self.pool.read_part(parent, extent, first_page, buffer)
    }
}

/// Pages of a bulk load, whose contents are kept as storage has them.
pub struct KeptPages<'p> {
    pager: &'p RecordingPager,
    pages: PageStream<'p>,
}

impl PageWriter for KeptPages<'_> {
    fn append<E: From<PoolError>>(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<PageId, E> {
        let written = &self.pager.written;
        self.pages.append(|page| {
            fill(page)?;
            let header = PageHeader::read(page);
            written.lock().unwrap().insert((header.extent.head, header.lsn), page.to_vec());
            Ok(())
        })
    }

    fn prefetch_next(&self, at: usize, bytes: usize) {
        self.pages.prefetch_next(at, bytes);
    }

    fn adopt(&mut self, extent: Extent) {
        self.pages.adopt(extent);
    }

    fn settle(&mut self) -> Result<(), PoolError> {
        self.pages.settle()
    }

    fn keep(self, lsn: Lsn) {
        self.pages.keep(lsn);
    }
}

/// Whether an operation found no room because other operations held all pages of the pool.
pub fn no_room<T>(result: &Result<T, AccessError>) -> bool {
    matches!(result, Err(AccessError::Pool(PoolError::PoolExhausted { .. })))
}
