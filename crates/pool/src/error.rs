//! Errors of the pool, and the two interrupts by which an operation asks to be run again.

use std::{io, path::PathBuf, sync::Arc};
use vellum_base::{Extent, HeaderFault, PageId, shown};
use vellum_vm::{VmError, advice, is_full};

/// An error of the pool. Its message says what was being done, on what, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// Memory could not be mapped or the file could not be opened.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// The file could not be read.
    #[error("cannot read {extent}: {source}")]
    Read {
        /// What was being read.
        extent: Extent,
        /// The error of the system.
        source: io::Error,
    },
    /// The file could not be written. Changes of pages are still in memory, and will be written later.
    #[error("cannot write {extent}: {source}{}", advice(source))]
    Write {
        /// What was being written.
        extent: Extent,
        /// The error of the system.
        source: io::Error,
    },
    /// The system could not guarantee that written data is on storage.
    #[error(
        "cannot make the file durable: {0}; what was written may or may not be on storage, so the file will not be marked as \
         cleanly closed. {begin}f it has a log, open it again, which recovers it; otherwise restore it from a backup, or import \
         its data again",
        begin = if is_full(.0) { "Make room, and i" } else { "I" }
    )]
    Sync(#[source] io::Error),
    /// A thread panicked in the middle of a change.
    #[error(
        "a thread panicked while it was changing a page, which may be half changed; the file will not be marked as \
         cleanly closed. If it has a log, open it again, which recovers it; otherwise restore it from a backup, or import its data \
         again"
    )]
    Panicked,
    /// The file cannot grow.
    #[error(
        "cannot extend the file to {bytes} bytes: {source}; free space on the file system, or delete data"
    )]
    StorageFull {
        /// The size it should have had.
        bytes: u64,
        /// The error of the system.
        source: io::Error,
    },
    /// The bytes of an extent are not what was written there.
    #[error("{extent} {} damaged: {fault}; restore the file from a backup", if extent.pages == 1 { "is" } else { "are" })]
    Corruption {
        /// The damaged extent.
        extent: Extent,
        /// What is wrong with it.
        fault: Fault,
    },
    /// Every page of the pool is in use, or the pages that one operation needs were never in memory all at once.
    #[error(
        "the pool of {pool_pages} pages has no room for {wanted_pages} more: all others are latched, or needed \
         by the same operation; hold fewer guards at once, or raise the pool's size"
    )]
    PoolExhausted {
        /// The pool's limit.
        pool_pages: usize,
        /// The number of pages asked for.
        wanted_pages: usize,
    },
    /// The buffers of streams of pages have half of the pool already.
    #[error(
        "half of the pool of {pool_pages} pages is buffers of bulk loads under way: finish or drop one of them first, or \
         raise the pool's size"
    )]
    TooManyStreams {
        /// The pool's limit.
        pool_pages: usize,
    },
    /// The extent can never fit into the pool.
    #[error(
        "{extent} cannot be held in a pool of {pool_pages} pages; raise the pool's size, or read it in parts"
    )]
    LargerThanPool {
        /// What was asked for.
        extent: Extent,
        /// The pool's limit.
        pool_pages: usize,
    },
    /// The pool's limit is too low.
    #[error("a pool of {bytes} bytes is too small; it needs at least {least} bytes")]
    PoolTooSmall {
        /// The size asked for.
        bytes: u64,
        /// The smallest size that works.
        least: u64,
    },
    /// The pool's limit is higher than the machine's memory.
    #[error(
        "a pool of {bytes} bytes is larger than the {most} bytes of memory of this machine; lower the pool's size"
    )]
    PoolTooLarge {
        /// The size asked for.
        bytes: u64,
        /// The machine's memory.
        most: u64,
    },
    /// The capacity is too low.
    #[error("a capacity of {bytes} bytes is too small; it needs at least {least} bytes")]
    CapacityTooSmall {
        /// The capacity asked for.
        bytes: u64,
        /// The smallest capacity that works.
        least: u64,
    },
    /// The data has outgrown the address space that was reserved for it.
    #[error(
        "the file has reached the {bytes} bytes of address space that were reserved for it; open it again with a \
         larger capacity"
    )]
    CapacityExhausted {
        /// The size of the reserved address space.
        bytes: u64,
    },
    /// There is room, but undoing the open transactions may need it.
    #[error(
        "the file is full: what is free is kept, so that the open transactions can be rolled back; try again when \
         they have ended"
    )]
    KeptForUndo,
    /// The file is not Vellum's.
    #[error("{path} is not a Vellum file: {why}", path = shown(path))]
    NotVellum {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The file is a backup.
    #[error("{path} is a backup: `vellum restore BACKUP DATABASE`, or `Backup::restore`, makes a database of it", path = shown(path))]
    Backup {
        /// Which file.
        path: PathBuf,
    },
    /// The file is empty or unfinished.
    #[error(
        "{path} is not a Vellum file yet: it is empty, or its creation was interrupted; it holds nothing, so \
         delete it, or open it in a way that creates what is not there", path = shown(path)
    )]
    Unfinished {
        /// Which file.
        path: PathBuf,
    },
    /// A database is being restored into the file.
    #[error(
        "{path} is not a database yet: it is being restored, or that was interrupted; repeat the restore, which begins anew, or \
         delete the file", path = shown(path)
    )]
    BeingRestored {
        /// Which file.
        path: PathBuf,
    },
    /// The file was made by a later version.
    #[error(
        "{path} has format version {found}, and this program reads up to version {supported}; use a newer \
         program", path = shown(path)
    )]
    FormatTooNew {
        /// Which file.
        path: PathBuf,
        /// The file's version.
        found: u32,
        /// The latest version that this program supports.
        supported: u32,
    },
    /// The file belongs to another application of the pool.
    #[error("{path} was made by the application {found:?}, not {expected:?}", path = shown(path))]
    OtherApplication {
        /// Which file.
        path: PathBuf,
        /// The application that made it.
        found: String,
        /// The application that opens it.
        expected: String,
    },
    /// The process that last had the file open did not close it.
    #[error("{path} was not closed cleanly, {}", if *has_log {
        "and its log has the changes that may be missing in it: open it for writing as a database, with its log, \
         which recovers it"
    } else {
        "so parts of its latest changes may be missing; restore it from a backup or import its data again"
    }, path = shown(path))]
    NotClosedCleanly {
        /// Which file.
        path: PathBuf,
        /// Whether there is a log from which the file can be recovered.
        has_log: bool,
    },
    /// The file is shorter than it was when it was closed.
    #[error(
        "{path} is truncated: it has {found} bytes and should have {expected}; restore it from a backup",
        path = shown(path)
    )]
    Truncated {
        /// Which file.
        path: PathBuf,
        /// The file's size.
        found: u64,
        /// The size according to its superblock.
        expected: u64,
    },
    /// A change was attempted on a file that is open for reading only.
    #[error("the file is open for reading only")]
    ReadOnly,
    /// A guard was leaked, so its extent stays latched for ever.
    #[error(
        "cannot write {extent}: a guard on it was leaked (with mem::forget, say) and still holds its latch; drop \
         every guard before the file is closed"
    )]
    Latched {
        /// The latched extent.
        extent: Extent,
    },
    /// The name of the application cannot be stored.
    #[error("the application's name {name:?} cannot be stored; use at most {most} bytes, none of them zero")]
    ApplicationName {
        /// The name asked for.
        name: String,
        /// The greatest length in bytes.
        most: usize,
    },
    /// A pool was to be created in a file that is not empty.
    #[error("cannot create a pool in a file that has {bytes} bytes already; open it, or choose another file")]
    NotEmpty {
        /// The file's size.
        bytes: u64,
    },
    /// The system refused to queue reads.
    #[error("cannot make a queue of reads: {0}; raise the limit on open files (`ulimit -n`, RLIMIT_NOFILE)")]
    Queue(#[source] io::Error),
    /// The log could not be made durable up to the changes of the pages to be written.
    #[error("cannot write pages before the log that covers them: {0}")]
    Log(#[source] io::Error),
    /// The file for earlier versions of records failed, which a database uses while memory has no room for them.
    #[error("cannot keep or read earlier versions of records in their file, next to the log: {0}")]
    Versions(#[source] Box<PoolError>),
    /// Memory has no room for more earlier versions of records, and their file cannot be written. Nothing has been
    /// changed. The file is tried again.
    #[error(
        "memory has no room for more earlier versions of records: {0}; end the oldest transactions, or see to that file's device"
    )]
    NoRoomForVersions(#[source] Arc<PoolError>),
    /// The log takes no more records, so nothing can be changed. Nothing has been changed.
    #[error(transparent)]
    LogRefuses(io::Error),
    /// The operation was cancelled by the code for which it was run. Nothing has happened.
    #[error("the operation was cancelled")]
    Cancelled,
}

/// What is wrong with the bytes of an extent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The page header does not fit the contents or the location.
    #[error("{0}")]
    Header(HeaderFault),
    /// Something refers to the extent, but it is not allocated, or not with that length.
    #[error("something refers to it, but no such extent was allocated to the application")]
    NotAllocated,
    /// A page refers to a page beyond the end of the file.
    #[error("it refers to page {0}, which does not exist")]
    Reference(u64),
    /// The contents are not what the owner of the extent would have written.
    #[error("{0}")]
    Contents(String),
}

impl PoolError {
    /// The error of a reference to an extent that is not allocated.
    pub fn not_allocated(extent: Extent) -> Self {
        Self::Corruption { extent, fault: Fault::NotAllocated }
    }

    /// An error about the contents of a page.
    pub fn contents(page: PageId, what: impl Into<String>) -> Self {
        Self::Corruption { extent: Extent::page(page), fault: Fault::Contents(what.into()) }
    }
}

/// The reason why an operation stopped without having changed anything.
///
/// The first two are *restarts*: [`Navigation::resolve`](crate::Navigation::resolve) waits for what was missing, and
/// the operation is run again from its beginning. The caller of the operation decides how to wait; the operation itself
/// knows nothing of it. The third is an error, which passes through.
#[derive(Debug)]
#[must_use = "an interrupt must be resolved or passed on"]
pub enum Interrupt {
    /// The page that was read optimistically has changed, or is latched.
    Conflict(PageId),
    /// The extent is not in memory.
    Miss(Miss),
    /// The operation cannot be done.
    Fatal(Box<PoolError>),
}

/// An extent that is not in memory, and the page that referred to it.
///
/// Between the moment when an optimistic reader follows a reference and the moment when the page is read from storage,
/// the page may have been freed, and storage may hold anything. So a miss remembers the page that referred to it and
/// that page's version: only if that version is still the same after the read is a bad page corrupt; otherwise the
/// reference was merely stale.
#[derive(Debug, Clone, Copy)]
pub struct Miss {
    /// The extent to be read.
    pub extent: Extent,
    /// The page that referred to it, and the token of the guard on it: see
    /// [`OptimisticPage::token`](crate::OptimisticPage::token).
    pub referrer: Option<(PageId, u64)>,
}

impl Miss {
    /// A miss of an extent that certainly exists as long as the caller uses it, such as a root.
    pub fn certain(extent: Extent) -> Self {
        Self { extent, referrer: None }
    }
}

impl From<PoolError> for Interrupt {
    #[cold]
    fn from(error: PoolError) -> Self {
        Self::Fatal(Box::new(error))
    }
}
