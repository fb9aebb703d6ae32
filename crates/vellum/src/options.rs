//! Options for opening a database.

use crate::{IsolationLevel, Result};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use vellum_pool::{PoolError, PoolOptions};
use vellum_txn::{Durability, LogSettings, SnapshotLimit};
use vellum_vm::{CreateMode, Directory, DiskDirectory, File, IoEngine, ReleaseMethod};

/// The name under which the pool knows the files of this crate.
const APPLICATION: &str = "vellum database";

/// How to open a database. The defaults suit a pool of 64 MiB on a current machine.
///
/// ```
/// let options = vellum::Options::default().pool_bytes(1 << 30).read_only(true);
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) pool: PoolOptions,
    pub(crate) read_depth: usize,
    pub(crate) log: bool,
    pub(crate) log_settings: LogSettings,
    pub(crate) durability: Durability,
    pub(crate) isolation: IsolationLevel,
    /// The directory of the archive, which is created if it does not exist.
    pub(crate) archive_path: Option<PathBuf>,
    /// Whether the archive of the log ends, if the database has one.
    pub(crate) ends_archive: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pool: PoolOptions::default().application(APPLICATION),
            read_depth: 256,
            log: true,
            log_settings: LogSettings::default(),
            durability: Durability::Synced,
            isolation: IsolationLevel::Snapshot,
            archive_path: None,
            ends_archive: false,
        }
    }
}

impl Options {
    /// The most memory that pages may take, in bytes. Default 64 MiB; at least
    /// [`POOL_BYTES_MIN`](crate::pool::POOL_BYTES_MIN) (64 KiB), at most the machine's memory. Up to 16 bytes for each
    /// 4 KiB of data, and a few MiB, come on top.
    #[must_use]
    pub fn pool_bytes(mut self, bytes: u64) -> Self {
        self.pool = self.pool.pool_bytes(bytes);
        self
    }

    /// How large the file may become while it is open, in bytes. That much address space is reserved, which costs
    /// nothing until it is used. Default 1 TiB, at least [`CAPACITY_BYTES_MIN`](crate::pool::CAPACITY_BYTES_MIN) (64
    /// KiB). A file that is already larger than half of this may grow to twice its size. A process has 128 TiB of
    /// addresses: a program that opens more than a hundred databases at once should give each less.
    #[must_use]
    pub fn capacity_bytes(mut self, bytes: u64) -> Self {
        self.pool = self.pool.capacity_bytes(bytes);
        self
    }

    /// Forces a method of returning memory to the system; by default the best one that works is used.
    #[must_use]
    pub fn release_method(mut self, method: ReleaseMethod) -> Self {
        self.pool = self.pool.release_method(method);
        self
    }

    /// Forces an I/O engine; by default io_uring where the system allows it.
    #[must_use]
    pub fn io_engine(mut self, engine: IoEngine) -> Self {
        self.pool = self.pool.io_engine(engine);
        self
    }

    /// Forces direct or buffered I/O; by default direct where the file system supports it.
    #[must_use]
    pub fn direct_io(mut self, direct: bool) -> Self {
        self.pool = self.pool.direct_io(direct);
        self
    }

    /// How many reads of one batch (see [`Table::multi_get`](crate::Table::multi_get)) may be under way at once; 1 to
    /// 4096, default 256. A higher number keeps a fast device busier, but a single read takes longer.
    #[must_use]
    pub fn read_depth(mut self, depth: usize) -> Self {
        self.read_depth = depth.clamp(1, 4096);
        self
    }

    /// Opens for reading only: nothing is written, and several processes may have the database open at once.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.pool = self.pool.read_only(read_only);
        self
    }

    /// Also counts the hits in the pool, which makes each of them slower.
    #[must_use]
    pub fn count_hits(mut self, count: bool) -> Self {
        self.pool = self.pool.count_hits(count);
        self
    }

    /// Whether runs of pages that stay in memory are moved into huge pages, which makes lookups in a large pool faster.
    /// That happens while storage is nearly idle (no more than 16 MiB a second), and slowly while other threads are
    /// busy. A growing file gets huge pages from the start where they are cheap to obtain. Default true; needs
    /// [`background_eviction`](Self::background_eviction) and Linux 6.1.
    #[must_use]
    pub fn huge_pages(mut self, huge_pages: bool) -> Self {
        self.pool = self.pool.huge_pages(huge_pages);
        self
    }

    /// Whether a background thread keeps free pages ready. Default true.
    #[must_use]
    pub fn background_eviction(mut self, background: bool) -> Self {
        self.pool = self.pool.background_eviction(background);
        self
    }

    /// Whether changes are logged. Default true. Without a log a database is consistent on storage only when it has
    /// been closed: after a crash, or when its process is killed, **all of it is lost**, including committed
    /// transactions. Otherwise transactions work as usual. This is for databases that can be rebuilt, and for
    /// measurements. A database may be opened with a log at one time and without at another, if it was closed in
    /// between.
    #[must_use]
    pub fn log(mut self, log: bool) -> Self {
        self.log = log;
        self
    }

    /// How durable a change is when the operation that makes it returns. Default [`Durability::Synced`].
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// The isolation level of transactions that ask for no other. Default [`IsolationLevel::Snapshot`].
    #[must_use]
    pub fn isolation(mut self, isolation: IsolationLevel) -> Self {
        self.isolation = isolation;
        self
    }

    /// How long a transaction may be open, and how much it may hold back. A transaction that exceeds the limit gets
    /// [`Error::SnapshotTooOld`](crate::Error::SnapshotTooOld), and what was kept for it is discarded. By default there
    /// is no limit.
    #[must_use]
    pub fn snapshot_limit(mut self, limit: SnapshotLimit) -> Self {
        self.log_settings.snapshot_limit = limit;
        self
    }

    /// Archives the log in a directory, which is created if it does not exist. Everything that is committed is copied
    /// there: a segment ([`log_segment_bytes`](Self::log_segment_bytes)) at a time when it is full, and the rest when
    /// the database is closed or by [`Database::archive_log`](crate::Database::archive_log). From a backup and the
    /// archive, a database can be restored as it was at any later moment: see
    /// [`RestoreOptions::archive`](crate::RestoreOptions::archive).
    ///
    /// The log keeps what is not archived yet. So if the archive cannot be written, the log grows, but nothing else
    /// happens: [`LogState::archive`](crate::LogState) says why and how far the archive is; the write is retried every
    /// second. Only closing the database fails in that state. You may delete files of the archive, but not the last one;
    /// [`LogArchive`](crate::LogArchive) says which ones a backup needs. If the last one is gone, the file system of the archive is perhaps
    /// not mounted, and nothing is archived until it is back.
    ///
    /// An older copy of a database that is put back needs another directory, and a backup with which that archive begins:
    /// nothing is added to an archive that has the log of what was done after the copy
    /// ([`ArchiveError::Diverged`](crate::ArchiveError)).
    ///
    /// Large values and bulk loads are written to the log, too. The database remembers that its log is archived: see
    /// [`end_log_archive`](Self::end_log_archive). If the log is archived again after it was not, the archive has a gap,
    /// and nothing can be restored across that; a new backup makes a new start. A database that was changed without a log
    /// meanwhile counts as another one, and needs another directory.
    #[must_use]
    pub fn log_archive(mut self, directory: impl AsRef<Path>) -> Self {
        let directory = DiskDirectory::new(directory.as_ref());
        self.archive_path = Some(directory.path().to_owned());
        self.log_settings.archive = Some(Arc::new(directory));
        self
    }

    /// Whether the archive that the log has had so far ends here. A database remembers that its log was archived when it was
    /// last changed. It is then not opened for changes without [`log_archive`](Self::log_archive), nor, if it was closed,
    /// with a directory that holds nothing: an option that was forgotten or mistyped would leave a gap in the archive, across
    /// which nothing can be restored. With this option it is opened all the same: without an archive, and from its first
    /// change on it needs none, or with a `log_archive` that begins here. Default false.
    ///
    /// ```
    /// # use vellum::{Database, Options};
    /// # let directory = tempfile::tempdir()?;
    /// # let (path, archive) = (directory.path().join("data"), directory.path().join("archive"));
    /// Database::create(&path, &Options::default().log_archive(archive))?.close()?;
    /// let error = Database::open(&path, &Options::default()).unwrap_err();
    /// assert!(matches!(error, vellum::Error::ArchiveNotNamed { .. }));
    /// Database::open(&path, &Options::default().end_log_archive(true))?.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn end_log_archive(mut self, ends: bool) -> Self {
        self.ends_archive = ends;
        self
    }

    /// Whether the log holds every value in full, for feeds of changes
    /// ([`Database::changes`](crate::Database::changes)) that must tell what a record was after each change: changes by
    /// [`Table::modify`](crate::Table::modify) are logged together with the unchanged bytes, and large values and bulk
    /// loads are logged as well. The log takes more room: up to twice the value for each `modify`. Default false. The
    /// option affects only what is logged from now on; feeds report earlier changes as they were logged.
    #[must_use]
    pub fn log_whole_values(mut self, whole: bool) -> Self {
        self.log_settings.whole_values = whole;
        self
    }

    /// As [`log_archive`](Self::log_archive), in a directory that may be simulated.
    #[must_use]
    pub fn log_archive_in(mut self, directory: Arc<dyn Directory>) -> Self {
        self.archive_path = None;
        self.log_settings.archive = Some(directory);
        self
    }

    /// The same options without an archive, whether or not the database has one.
    pub(crate) fn without_archive(mut self) -> Self {
        (self.archive_path, self.ends_archive) = (None, true);
        self.log_settings.archive = None;
        self
    }

    /// How much memory, in bytes, earlier versions of records may take that open transactions still see; the undo data
    /// of each open transaction may take an eighth of it. Beyond that, both go to a file in the log's directory, which
    /// exists only while it is needed and may grow to 1 TiB; it has a cache of a quarter of this limit, at least 1 MiB,
    /// in addition to the pool. Old snapshots are shown leaves as they were, which are kept in that file. While the file
    /// cannot be written, versions take up to an eighth more; then changes by transactions fail until it can be
    /// written, or old transactions have ended. Default 64 MiB.
    #[must_use]
    pub fn version_memory_bytes(mut self, bytes: u64) -> Self {
        self.log_settings.version_memory_bytes = bytes;
        self
    }

    /// The size of the log's files, in bytes: a multiple of 4096, from 8192 to 1 TiB. Default 16 MiB. An existing log keeps
    /// its size.
    ///
    /// The log always has files for a whole [buffer](Self::log_buffer_bytes) ahead of its end, so that what was begun can be
    /// undone on a full disk. They are made when the database is created, each with a sync: of 8192 bytes, with the
    /// default buffer, that is 4,096 files and takes seconds. Small files want a small buffer.
    #[must_use]
    pub fn log_segment_bytes(mut self, bytes: u64) -> Self {
        self.log_settings.segment_bytes = bytes;
        self
    }

    /// The size of the log's buffer in memory, in bytes: a power of two, at least 4 MiB. Default 16 MiB.
    #[must_use]
    pub fn log_buffer_bytes(mut self, bytes: u64) -> Self {
        self.log_settings.buffer_bytes = bytes;
        self
    }

    /// How much log may accumulate, in bytes, before a checkpoint is taken in the background. It writes at the pace at
    /// which the log grows, to be done before that much again has accumulated: after a crash about twice that much is read
    /// when the database is opened, and more if the device is slower than the log grows. Default 512 MiB; `u64::MAX` disables these checkpoints.
    #[must_use]
    pub fn checkpoint_log_bytes(mut self, bytes: u64) -> Self {
        self.log_settings.checkpoint_bytes = bytes;
        self
    }

    /// How old the last checkpoint may become while the database is changed: at least a millisecond. Default 60 seconds;
    /// [`Duration::MAX`] disables these checkpoints.
    #[must_use]
    pub fn checkpoint_interval(mut self, interval: Duration) -> Self {
        self.log_settings.checkpoint_interval = interval;
        self
    }

    /// Whether a background thread takes checkpoints. Default true. Without it the log grows until
    /// [`Database::checkpoint`](crate::Database::checkpoint) is called. After a crash, too, the opening takes a
    /// checkpoint only if there is more log than [`checkpoint_log_bytes`](Self::checkpoint_log_bytes).
    #[must_use]
    pub fn background_checkpoints(mut self, background: bool) -> Self {
        self.log_settings.background_checkpoints = background;
        self
    }

    /// Opens the file of a database in a directory.
    pub(crate) fn open_in(
        &self,
        directory: &dyn Directory,
        name: &str,
        create: CreateMode,
    ) -> Result<Arc<dyn File>> {
        let options = self.pool.file_options(create);
        Ok(directory.open(name, &options).map_err(PoolError::from)?)
    }
}
