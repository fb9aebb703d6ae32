//! Reading and writing pages of a file: the interface, whatever the file is.
//!
//! Offsets, lengths and addresses are multiples of [`PAGE_SIZE`](vellum_base::PAGE_SIZE), because direct
//! I/O wants that. Buffers are raw addresses, because they are pages of the pool, into which optimistic
//! readers may look while the kernel fills them.

use crate::queue::Queue;
use crate::request::Request;
use crate::{IoEngine, VmError, WordTable};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// A file of pages. Shared by threads; all methods block until they are done. Reads and writes that do not block
/// go through a [`queue`](Self::queue).
pub trait File: Send + Sync + fmt::Debug {
    /// Reads exactly `bytes` bytes at `offset`, however many short reads it takes.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] past the end of the file, or what the device reports. The memory
    /// then holds anything.
    ///
    /// # Safety
    /// `address` is valid for writes of `bytes` bytes, and only optimistic readers, which validate what they
    /// read, access them during the call.
    unsafe fn read(&self, offset: u64, address: *mut u8, bytes: usize) -> io::Result<()>;

    /// Writes exactly `bytes` bytes at `offset`. Durable only after [`sync`](Self::sync).
    ///
    /// # Errors
    /// What the device reports, such as [`io::ErrorKind::StorageFull`]. Any part may have been written.
    ///
    /// # Safety
    /// `address` is valid for reads of `bytes` bytes, and no thread writes to them during the call.
    unsafe fn write(&self, offset: u64, address: *const u8, bytes: usize) -> io::Result<()>;

    /// [`read`](Self::read) to memory of one's own, part of an [`AlignedBuffer`](crate::AlignedBuffer) that begins and ends
    /// at a multiple of [`PAGE_SIZE`](vellum_base::PAGE_SIZE).
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    fn read_to(&self, offset: u64, target: &mut [u8]) -> io::Result<()> {
        // SAFETY: the slice is borrowed uniquely for the length of the call.
        unsafe { self.read(offset, target.as_mut_ptr(), target.len()) }
    }

    /// [`write`](Self::write) from such memory.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    fn write_from(&self, offset: u64, source: &[u8]) -> io::Result<()> {
        // SAFETY: the slice is borrowed for the length of the call, so no thread writes to it.
        unsafe { self.write(offset, source.as_ptr(), source.len()) }
    }

    /// Writes from such memory into the system's page cache, and returns without waiting for storage: what was written survives the
    /// end of the process. If storage fails later, the next [`sync`](Self::sync) says so. Until then the pages are written
    /// in this way only.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    fn write_cached_from(&self, offset: u64, source: &[u8]) -> io::Result<()> {
        self.write_from(offset, source)
    }

    /// Runs all requests, overlapped as far as the file can, in no particular order, and sets the `result`
    /// of each. Returns when all are done: until then the buffers are the kernel's.
    ///
    /// # Safety
    /// What [`read`](Self::read) or [`write`](Self::write) asks for holds for each request, and no two
    /// requests overlap in memory or in the file, unless both only read what they share.
    unsafe fn run(&self, requests: &mut [Request]);

    /// A queue of requests to this file, of which up to `depth` (at least 1) overlap with each other and with
    /// what the caller does meanwhile. It may outlive the file.
    ///
    /// # Errors
    /// If the process can have no more file descriptors.
    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>>;

    /// Makes all completed writes and the size durable.
    ///
    /// # Errors
    /// What the device reports. What had been written since the last success may then be lost although it
    /// can still be read, and a later success does not mean otherwise: see [`DiskFile`](crate::DiskFile).
    fn sync(&self) -> io::Result<()>;

    /// The size in bytes.
    ///
    /// # Errors
    /// What the file system reports.
    fn size(&self) -> io::Result<u64>;

    /// Makes the file at least `to` bytes large, with storage for all of it; new parts read as zeroes.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`] and the like; the file is then as it was.
    fn grow(&self, to: u64) -> io::Result<()>;

    /// Cuts the file to `to` bytes, if it is larger.
    ///
    /// # Errors
    /// What the file system reports.
    fn truncate(&self, to: u64) -> io::Result<()>;

    /// Words of the file from `offset` on: what is stored in them is with the operating system at once, and outlives a process that
    /// is killed. What of it a crash of the machine leaves is any part, old and new, because no sync is made of it. The file has
    /// room for all of them already. Stored words and [`read`](Self::read) agree if the file was opened for cached access
    /// ([`FileOptions::direct`] is false). A device that cannot read back what the system has taken out of memory, and a
    /// file system that takes no writes any more after an error, end the process (`SIGBUS`).
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] where there is no such thing: by default; on file systems that may need room to store what has
    /// room already; what the system reports.
    fn map_words(&self, _offset: u64, _words: usize) -> io::Result<Arc<WordTable>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// How the file is accessed.
    fn description(&self) -> FileDescription;

    /// The file as the kernel knows it, if it does: for reads that go past this interface.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl FromStr for IoEngine {
    type Err = VmError;

    fn from_str(name: &str) -> Result<Self, VmError> {
        match name {
            "io_uring" => Ok(Self::IoUring),
            "pread" => Ok(Self::Pread),
            "simulated" => Ok(Self::Simulated),
            _ => Err(VmError::UnknownName {
                what: "I/O engine",
                name: name.to_owned(),
                known: "io_uring, pread, simulated",
            }),
        }
    }
}

/// Whether opening a file may or must create it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum CreateMode {
    /// It must exist.
    #[default]
    OpenExisting,
    /// It must not exist.
    CreateNew,
    /// It is created if it does not exist.
    OpenOrCreate,
}

/// How to open a [`DiskFile`](crate::DiskFile).
///
/// # Examples
/// ```
/// use vellum_vm::{CreateMode, FileOptions};
/// let options = FileOptions { create: CreateMode::OpenOrCreate, ..FileOptions::default() };
/// assert_eq!(options.queue_depth, 128);
/// ```
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// The engine to use; the best that works here if none is given.
    pub engine: Option<IoEngine>,
    /// Whether to bypass the system's page cache; where possible if not given.
    pub direct: Option<bool>,
    /// Refuse writes, and let others read at the same time.
    pub read_only: bool,
    /// Whether to create it.
    pub create: CreateMode,
    /// How many requests of one batch may be under way at once.
    pub queue_depth: u32,
}

impl Default for FileOptions {
    /// The best engine, direct I/O where possible, writable, an existing file, 128 requests at once.
    fn default() -> Self {
        Self {
            engine: None,
            direct: None,
            read_only: false,
            create: CreateMode::OpenExisting,
            queue_depth: 128,
        }
    }
}

/// How a file is accessed, for people to read.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FileDescription {
    /// Whether the system's page cache is bypassed.
    pub direct: bool,
    /// How requests reach the device.
    pub engine: IoEngine,
    /// Where the file is, if it is anywhere.
    pub path: Option<PathBuf>,
}

impl fmt::Display for FileDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}: ", path.display())?;
        }
        let access = if self.direct { "direct" } else { "buffered" };
        match self.engine {
            IoEngine::Simulated => f.write_str("simulated, in memory"),
            engine => write!(f, "{access} I/O through {engine}"),
        }
    }
}
