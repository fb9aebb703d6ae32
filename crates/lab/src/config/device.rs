//! What is measured without an engine.

use super::Named;

/// What `lab evict` is told.
#[derive(Clone, Debug)]
pub struct EvictSettings {
    /// The methods, in the order of their turns.
    pub methods: Vec<ReleaseName>,
    /// The size of the mapping, in bytes.
    pub pool: u64,
    /// Pages that are touched, then released.
    pub batch: u64,
}

/// What `lab io` is told.
#[derive(Clone, Debug)]
pub struct IoSettings {
    /// The methods, in the order of their turns.
    pub methods: Vec<Method>,
    /// The size of the file, in bytes.
    pub size: u64,
    /// Reads in flight, a thread.
    pub depth: u32,
    /// Pages released in one call.
    pub batch: usize,
    /// What may be resident of the mapping, in bytes.
    pub pool: u64,
}

/// What `lab log` is told.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// The methods, in the order of their turns.
    pub methods: Vec<LogMethod>,
    /// The size of a record, in bytes.
    pub record_bytes: usize,
}

/// How records are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogMethod {
    /// Transactions of a database, synced.
    Transactions,
    /// The write-ahead log, synced.
    Log,
    /// The write-ahead log, written.
    Buffered,
    /// One write and one sync a record.
    Raw,
}

impl Named for LogMethod {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Transactions, "transactions", "Transactions of a database, each of which puts one record"),
        (Self::Log, "log", "The write-ahead log; threads share its syncs"),
        (Self::Buffered, "buffered", "The same, without waiting for the device"),
        (Self::Raw, "raw", "A write of as many pages and a sync for each record, in a file for each thread"),
    ];
}

/// Methods of release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReleaseName {
    /// One call a page.
    Madvise,
    /// One call a batch, on the own process.
    ProcessMadvise,
    /// The device of the exmap kernel module.
    Exmap,
}

impl Named for ReleaseName {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Madvise, "madvise", "One call a page"),
        (Self::ProcessMadvise, "process_madvise", "One call a batch, on the own process"),
        (Self::Exmap, "exmap", "The device of the exmap kernel module"),
    ];
}

/// How pages are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// `pread`, one at a time.
    Blocking,
    /// io_uring into registered buffers.
    UringFixed,
    /// io_uring into pages of a mapping, which are evicted in batches.
    UringPool,
    /// Large reads in the order of the file.
    Sequential,
}

impl Named for Method {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Blocking, "blocking", "`pread`, one at a time"),
        (Self::UringFixed, "uring_fixed", "io_uring into registered buffers"),
        (Self::UringPool, "uring_pool", "io_uring into pages of a mapping, which are evicted in batches"),
        (Self::Sequential, "sequential", "Large reads in the order of the file"),
    ];
}
