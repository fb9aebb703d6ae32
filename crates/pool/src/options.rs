//! The options with which a pool is opened.

use crate::change_log::ChangeLog;
use std::sync::Arc;
use vellum_vm::{CreateMode, FileOptions, IoEngine, ReleaseMethod};

/// The smallest pool, in bytes: enough for one thread that splits nodes all the way to the root.
pub const POOL_BYTES_MIN: u64 = 64 << 10;

/// The smallest capacity, in bytes.
pub const CAPACITY_BYTES_MIN: u64 = 64 << 10;

/// Options for opening a pool. The defaults suit a pool of 64 MiB on a present-day machine.
#[derive(Clone)]
#[must_use = "options do nothing until a pool is opened with them"]
pub struct PoolOptions {
    pub(crate) pool_bytes: u64,
    pub(crate) capacity_bytes: u64,
    pub(crate) application: String,
    pub(crate) release: Option<ReleaseMethod>,
    pub(crate) engine: Option<IoEngine>,
    pub(crate) direct: Option<bool>,
    pub(crate) read_only: bool,
    pub(crate) count_hits: bool,
    pub(crate) background_eviction: bool,
    pub(crate) huge_pages: bool,
    pub(crate) log: Option<Arc<dyn ChangeLog>>,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            pool_bytes: 64 << 20,
            capacity_bytes: 1 << 40,
            application: String::new(),
            release: None,
            engine: None,
            direct: None,
            read_only: false,
            count_hits: false,
            background_eviction: true,
            huge_pages: true,
            log: None,
        }
    }
}

impl PoolOptions {
    /// The most memory that pages may take, in bytes; rounded down to whole pages. Default 64 MiB, minimum
    /// [`POOL_BYTES_MIN`], maximum the machine's memory. The process needs up to 16 bytes more for each page of data.
    pub fn pool_bytes(mut self, bytes: u64) -> Self {
        self.pool_bytes = bytes;
        self
    }

    /// How large the file may become while it is open, in bytes: this much address space is reserved, which costs
    /// nothing until it is used. Default 1 TiB, minimum [`CAPACITY_BYTES_MIN`]. A file that is already larger than half
    /// of that may grow to twice its size. If the system refuses, less is reserved, but at least twice the size of the
    /// file and of the pool.
    pub fn capacity_bytes(mut self, bytes: u64) -> Self {
        self.capacity_bytes = bytes;
        self
    }

    /// A name of up to 16 bytes that is stored in the file and must be the same when it is opened again, so
    /// that one application does not misread the structures of another. Default empty.
    pub fn application(mut self, name: &str) -> Self {
        self.application = name.to_owned();
        self
    }

    /// Forces a method of giving memory back. By default the pool chooses the best method that works when it opens: the
    /// device of the kernel module exmap, then `process_madvise`, then `madvise`. With the device the memory of the
    /// whole pool is taken, and locked, when the file is opened.
    pub fn release_method(mut self, method: ReleaseMethod) -> Self {
        self.release = Some(method);
        self
    }

    /// Forces a method of doing I/O; by default io_uring where the system allows it.
    pub fn io_engine(mut self, engine: IoEngine) -> Self {
        self.engine = Some(engine);
        self
    }

    /// Forces direct or buffered I/O; by default direct where the file system supports it.
    pub fn direct_io(mut self, direct: bool) -> Self {
        self.direct = Some(direct);
        self
    }

    /// Opens the file for reading only: nothing is written, and several processes may do so at once.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Also counts hits, for [`PoolStatistics::hits`](crate::PoolStatistics::hits). Every hit then writes to one shared
    /// counter, which makes hits slower, and much slower with many threads.
    pub fn count_hits(mut self, count: bool) -> Self {
        self.count_hits = count;
        self
    }

    /// Whether a thread of the pool keeps free pages ready, and memory for up to 4 MiB of future pages while the file
    /// grows. Default true; without it a thread that needs room makes it itself.
    pub fn background_eviction(mut self, background: bool) -> Self {
        self.background_eviction = background;
        self
    }

    /// Whether runs of pages that stay in memory are moved into huge pages, by the thread of
    /// [`background_eviction`](Self::background_eviction), while no more than 4096 pages a second are read from
    /// storage, written to it, allocated and evicted, all together. Pages in memory may be changed meanwhile; a thread
    /// that touches a run while it is being moved waits for milliseconds, so while other threads of the process are
    /// busy, only one fiftieth of the time is spent on this. With nothing to do, the thread looks every 30 seconds. A
    /// file that grows gets huge pages from the start where they cost less than small ones. Default true; see
    /// [`PoolStatistics::pages_huge`](crate::PoolStatistics::pages_huge).
    pub fn huge_pages(mut self, huge_pages: bool) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// The options for opening a pool's file by other means than its path.
    pub fn file_options(&self, create: CreateMode) -> FileOptions {
        FileOptions {
            engine: self.engine,
            direct: self.direct,
            read_only: self.read_only,
            create,
            ..FileOptions::default()
        }
    }

    /// The log of the changes of pages. Default: none.
    pub fn change_log(mut self, log: Arc<dyn ChangeLog>) -> Self {
        self.log = Some(log);
        self
    }
}

impl std::fmt::Debug for PoolOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { pool_bytes, capacity_bytes, application, release, engine, direct, .. } = self;
        let Self { read_only, count_hits, background_eviction, huge_pages, log, .. } = self;
        f.debug_struct("PoolOptions")
            .field("pool_bytes", pool_bytes)
            .field("capacity_bytes", capacity_bytes)
            .field("application", application)
            .field("release", release)
            .field("engine", engine)
            .field("direct", direct)
            .field("read_only", read_only)
            .field("count_hits", count_hits)
            .field("background_eviction", background_eviction)
            .field("huge_pages", huge_pages)
            .field("has_log", &log.is_some())
            .finish()
    }
}
