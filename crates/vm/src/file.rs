//! Reading and writing pages of a file: the interface, for all kinds of files.
//!
//! Offsets, lengths and addresses are multiples of [`PAGE_SIZE`](vellum_base::PAGE_SIZE), as direct I/O requires.
//! Buffers are raw addresses, because they are pages of the pool, which optimistic readers may read while the kernel
//! fills them.

use crate::queue::Queue;
use crate::request::Request;
use crate::{IoEngine, VmError, WordTable};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// A file of pages. Shared by threads; all methods block until they are done. Reads and writes that do not block go
/// through a [`queue`](Self::queue).
pub trait File: Send + Sync + fmt::Debug {
    /// Reads exactly `bytes` bytes at `offset`, however many short reads it takes.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] past the end of the file, or the error of the device. The contents of the
    /// memory are then arbitrary.
    ///
    /// # Safety
    /// `address` is valid for writes of `bytes` bytes, and only optimistic readers, which validate what they
    /// read, access them during the call.
    unsafe fn read(&self, offset: u64, address: *mut u8, bytes: usize) -> io::Result<()>;

    /// Writes exactly `bytes` bytes at `offset`. Durable only after [`sync`](Self::sync).
    ///
    /// # Errors
    /// The error of the device, such as [`io::ErrorKind::StorageFull`]. Any part may have been written.
    ///
    /// # Safety
    /// `address` is valid for reads of `bytes` bytes, and no thread writes to them during the call.
    unsafe fn write(&self, offset: u64, address: *const u8, bytes: usize) -> io::Result<()>;

    /// [`read`](Self::read) to memory of the caller, part of an [`AlignedBuffer`](crate::AlignedBuffer) that begins and
    /// ends at a multiple of [`PAGE_SIZE`](vellum_base::PAGE_SIZE).
    ///
    /// # Errors
    /// As for [`read`](Self::read). If the file ends before the memory does, what it has has been read.
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

    /// Writes from such memory into the system's page cache, and returns without waiting for storage: the data survives
    /// the end of the process. If storage fails later, the next [`sync`](Self::sync) reports it. Until then these pages
    /// must be written only with this method.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    fn write_cached_from(&self, offset: u64, source: &[u8]) -> io::Result<()> {
        self.write_from(offset, source)
    }

    /// Runs all requests, overlapped as far as the file can, in no particular order, and sets the `result` of each.
    /// Returns when all are done: until then the buffers belong to the kernel.
    ///
    /// # Safety
    /// The requirements of [`read`](Self::read) or [`write`](Self::write) hold for each request, and no two requests
    /// overlap in memory or in the file, unless both only read what they share.
    unsafe fn run(&self, requests: &mut [Request]);

    /// A queue of requests to this file, of which up to `depth` (at least 1) overlap with each other and with other
    /// work of the caller. It may outlive the file.
    ///
    /// # Errors
    /// If the system refuses what it needs. The queue of a [`DiskFile`](crate::DiskFile) needs nothing: where it can have no
    /// ring, its requests are done as they are submitted.
    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>>;

    /// Makes all completed writes and the size durable.
    ///
    /// # Errors
    /// The error of the device. Data written since the last success may then be lost although it can still be read. As
    /// nothing changes that, each later sync of the same opening fails too, and so do those of other threads that have not
    /// returned by then: none may take the loss for success. See [`DiskFile`](crate::DiskFile).
    fn sync(&self) -> io::Result<()>;

    /// The size in bytes.
    ///
    /// # Errors
    /// The errors of the file system.
    fn size(&self) -> io::Result<u64>;

    /// Makes the file at least `to` bytes large, with storage for all of it; new parts read as zeroes.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`] and the like; the file is then unchanged.
    fn grow(&self, to: u64) -> io::Result<()>;

    /// Cuts the file to `to` bytes, if it is larger.
    ///
    /// # Errors
    /// The errors of the file system.
    fn truncate(&self, to: u64) -> io::Result<()>;

    /// Words of the file from `offset` on: a stored word is with the operating system at once, and outlives a process
    /// that is killed. A crash of the machine leaves any mixture of old and new words, because they are never synced.
    /// The file must already have room for all of them. Stored words and [`read`](Self::read) agree if the file was
    /// opened for cached access ([`FileOptions::direct`] is false). If a device cannot read back what the system has
    /// taken out of memory, or a file system takes no more writes after an error, the process ends (`SIGBUS`).
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] where this is not available: by default, and on file systems that may need new
    /// room to store what already has room; and the errors of the system.
    fn map_words(&self, _offset: u64, _words: usize) -> io::Result<Arc<WordTable>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// How the file is accessed.
    fn description(&self) -> FileDescription;

    /// The file's descriptor in the kernel, if it has one: for reads that bypass this interface.
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
    /// The engine to use; if none is given, the best that works here.
    pub engine: Option<IoEngine>,
    /// Whether to bypass the system's page cache; if not given, where possible.
    pub direct: Option<bool>,
    /// Refuse writes, and let other processes read at the same time.
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

/// How a file is accessed, for display.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FileDescription {
    /// Whether the system's page cache is bypassed.
    pub direct: bool,
    /// How requests reach the device.
    pub engine: IoEngine,
    /// The path of the file, if it has one.
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
