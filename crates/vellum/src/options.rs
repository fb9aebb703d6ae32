//! How a database is opened.

use vellum_pool::PoolOptions;
use vellum_vm::{IoEngine, ReleaseMethod};

/// The name under which the pool knows the files of this crate.
const APPLICATION: &str = "vellum database";

/// How to open a database. The defaults suit a pool of 64 MiB on a machine of today.
///
/// ```
/// let options = vellum::Options::default().pool_bytes(1 << 30).read_only(true);
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) pool: PoolOptions,
    pub(crate) read_depth: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { pool: PoolOptions::default().application(APPLICATION), read_depth: 256 }
    }
}

impl Options {
    /// The most memory that pages may take, in bytes. Default 64 MiB, least
    /// [`POOL_BYTES_MIN`](crate::pool::POOL_BYTES_MIN) (64 KiB), most the machine's memory. Up to 16 bytes for each
    /// 4 KiB of data, and a few MiB, come on top.
    #[must_use]
    pub fn pool_bytes(mut self, bytes: u64) -> Self {
        self.pool = self.pool.pool_bytes(bytes);
        self
    }

    /// How large the file may become while it is open, in bytes: so much address space is reserved, which
    /// costs nothing until it is used. Default 1 TiB, least
    /// [`CAPACITY_BYTES_MIN`](crate::pool::CAPACITY_BYTES_MIN) (64 KiB). A file that has more than half of that already may
    /// become twice as large as it is.
    #[must_use]
    pub fn capacity_bytes(mut self, bytes: u64) -> Self {
        self.pool = self.pool.capacity_bytes(bytes);
        self
    }

    /// Forces a way of giving memory back to the system; by default the best one that works is found.
    #[must_use]
    pub fn release_method(mut self, method: ReleaseMethod) -> Self {
        self.pool = self.pool.release_method(method);
        self
    }

    /// Forces a way of doing I/O; by default io_uring where the system allows it.
    #[must_use]
    pub fn io_engine(mut self, engine: IoEngine) -> Self {
        self.pool = self.pool.io_engine(engine);
        self
    }

    /// Forces direct or buffered I/O; by default direct where the file system has it.
    #[must_use]
    pub fn direct_io(mut self, direct: bool) -> Self {
        self.pool = self.pool.direct_io(direct);
        self
    }

    /// How many reads of one batch (see [`Table::multi_get`](crate::Table::multi_get)) may be under way at once; 1
    /// to 4096, default 256. More keep a fast device busier and let a single read take longer.
    #[must_use]
    pub fn read_depth(mut self, depth: usize) -> Self {
        self.read_depth = depth.clamp(1, 4096);
        self
    }

    /// Opens for reading only: nothing is written, and several processes may do so at once.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.pool = self.pool.read_only(read_only);
        self
    }

    /// Counts the hits in the pool, too, which makes each of them slower.
    #[must_use]
    pub fn count_hits(mut self, count: bool) -> Self {
        self.pool = self.pool.count_hits(count);
        self
    }

    /// Whether runs of pages that stay in memory are moved into huge pages while storage is nearly idle (no more than 16 MiB a second), slowly if other threads
    /// are not, and a growing file gets huge pages in memory at once where they are quickly had. Lookups in a large
    /// pool become faster. Default true; needs [`background_eviction`](Self::background_eviction) and
    /// Linux 6.1.
    #[must_use]
    pub fn huge_pages(mut self, huge_pages: bool) -> Self {
        self.pool = self.pool.huge_pages(huge_pages);
        self
    }

    /// Whether a thread keeps free pages ready. Default true.
    #[must_use]
    pub fn background_eviction(mut self, background: bool) -> Self {
        self.pool = self.pool.background_eviction(background);
        self
    }
}
