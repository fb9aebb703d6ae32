//! A pager that records the changes of its pages in memory, as a log would; and redo and undo from the records.
#![allow(dead_code, unused_imports, reason = "each test uses a part")]

mod replay;
mod watched;

pub use replay::{Alter, History, as_it_is};
pub use watched::{Requests, Watched};

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
    Allocation, AsynchronousReads, ChangeRecords, ExclusiveGuard, ExtentStream, Interrupt, LsnClock,
    Navigation, OptimisticGuard, PageStream, PageWriter, Pool, PoolError, SharedGuard, Streams,
};
use vellum_vm::AlignedBuffer;

/// A pool whose changes are recorded.
pub struct RecordingPager {
    pub pool: Pool,
    /// If not, the pool's clock counts them.
    pub is_recording: bool,
    end: AtomicU64,
    images_from: AtomicU64,
    records: Mutex<Vec<(Lsn, Vec<u8>)>>,
    /// Places that were reserved and stay empty.
    cancelled: AtomicU64,
    /// How many groups were begun, and how many of them have not ended.
    groups: Mutex<(u64, u64)>,
    /// Where checkpoints were.
    checkpoints: Mutex<Vec<Lsn>>,
    /// The nodes of bulk loads, each with the log's end when it was written.
    nodes: Mutex<Vec<(PageId, Lsn, Vec<u8>)>>,
    /// The extents of large values that were made durable, each with the log's end then.
    persisted: Mutex<Vec<(Extent, Lsn)>>,
    /// Nodes as they were at some moment.
    seen: Mutex<Vec<(PageId, Vec<u8>)>>,
    /// The requests for missing pages.
    pub requests: Requests,
}

/// So that records are often divided.
const RECORD_BYTES_MAX: usize = 600;

impl RecordingPager {
    pub fn new(pool: Pool) -> Self {
        Self {
            pool,
            is_recording: true,
            end: AtomicU64::new(64),
            images_from: AtomicU64::new(0),
            records: Mutex::default(),
            cancelled: AtomicU64::new(0),
            groups: Mutex::default(),
            checkpoints: Mutex::default(),
            nodes: Mutex::default(),
            persisted: Mutex::default(),
            seen: Mutex::default(),
            requests: Requests::default(),
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
            checkpoints: self.checkpoints.lock().unwrap().clone(),
            cancelled: self.cancelled.load(Ordering::SeqCst),
            nodes: self.nodes.lock().unwrap().clone(),
            persisted: self.persisted.lock().unwrap().clone(),
            seen: self.seen.lock().unwrap().clone(),
            end: self.extents(),
        }
    }
}

impl RecordingPager {
    /// Where the next record will be.
    pub fn end(&self) -> Lsn {
        if !self.is_recording {
            return self.clock().advance();
        }
        Lsn(self.end.load(Ordering::SeqCst))
    }

    /// What gives LSNs if changes are not recorded.
    pub fn clock(&self) -> &LsnClock {
        self.pool.lsn_clock().unwrap()
    }

    /// The record at `lsn`.
    pub fn record(&self, lsn: Lsn) -> Vec<u8> {
        let records = self.records.lock().unwrap();
        records.iter().rfind(|(at, _)| *at == lsn).map(|(_, record)| record.clone()).unwrap()
    }

    /// A checkpoint begins here, unless a group is not complete.
    pub fn checkpoint(&self) {
        let groups = self.groups.lock().unwrap();
        if groups.1 == 0 {
            self.images_from.store(u64::MAX, Ordering::SeqCst);
            let redo = self.end();
            self.images_from.store(redo.0, Ordering::SeqCst);
            self.checkpoints.lock().unwrap().push(redo);
        }
    }
}

impl ChangeRecords for RecordingPager {
    fn records(&self) -> bool {
        self.is_recording
    }

    fn stamp(&self) -> Lsn {
        if self.is_recording { Lsn(0) } else { self.pool.stamp() }
    }

    fn record_bytes_max(&self) -> usize {
        RECORD_BYTES_MAX
    }

    fn images_from(&self) -> Lsn {
        Lsn(self.images_from.load(Ordering::SeqCst))
    }

    fn reserve_record(&self, bytes: usize) -> Lsn {
        assert!(bytes > 9, "there is no empty record");
        if self.end().0.is_multiple_of(400) {
            // Between the images of a record and its place.
            self.checkpoint();
        }
        Lsn(self.end.fetch_add(bytes as u64, Ordering::SeqCst))
    }

    fn cancel_record(&self, _: Lsn, _: usize) {
        self.cancelled.fetch_add(1, Ordering::SeqCst);
    }

    fn fill_record(&self, at: Lsn, record: &[u8]) {
        self.records.lock().unwrap().push((at, record.to_vec()));
    }

    fn begin_group(&self) -> u64 {
        let mut groups = self.groups.lock().unwrap();
        *groups = (groups.0 + 1, groups.1 + 1);
        groups.0
    }

    fn end_group(&self) {
        self.groups.lock().unwrap().1 -= 1;
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

    fn persist(&self, extents: &[Extent]) -> Result<(), PoolError> {
        let end = self.end();
        self.persisted.lock().unwrap().extend(extents.iter().map(|extent| (*extent, end)));
        Ok(())
    }

    fn is_extent(&self, extent: Extent) -> bool {
        self.pool.is_extent(extent)
    }
}

impl AsynchronousReads for RecordingPager {
    type Misses<'p> = Watched<'p>;

    fn misses(&self, depth: usize) -> Result<Watched<'_>, PoolError> {
        Ok(Watched { queue: self.pool.misses(depth)?, requests: &self.requests })
    }

    fn is_latched(&self, page: PageId) -> bool {
        self.pool.is_latched(page)
    }

    fn complete_read(&self, page: PageId) {
        self.pool.complete_read(page);
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
        Ok(KeptPages { pager: self, pages: self.pool.pages(kind)?, adopted: Vec::new() })
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
    adopted: Vec<Extent>,
}

impl PageWriter for KeptPages<'_> {
    fn append<E: From<PoolError>>(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<PageId, E> {
        let (nodes, end) = (&self.pager.nodes, self.pager.end());
        self.pages.append(|page| {
            fill(page)?;
            let header = PageHeader::read(page);
            assert_eq!(header.lsn, Lsn(0), "no record tells of it yet");
            nodes.lock().unwrap().push((header.extent.head, end, page.to_vec()));
            Ok(())
        })
    }

    fn prefetch_next(&self, at: usize, bytes: usize) {
        self.pages.prefetch_next(at, bytes);
    }

    fn adopt(&mut self, extent: Extent) {
        self.adopted.push(extent);
        self.pages.adopt(extent);
    }

    fn settle(&mut self) -> Result<(), PoolError> {
        self.pager.persist(&self.adopted)?;
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
