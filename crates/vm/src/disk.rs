//! Files on a file system: opening, locking, direct I/O, growing, syncing.
//!
//! A single read or write goes through `pread` or `pwrite`, which is as fast as anything for one request. Batches go
//! through io_uring where the kernel allows it.
//!
//! A failed sync is final: Linux may have dropped the data that it could not write and report success for the next
//! call, so a [`DiskFile`] repeats the failure for as long as it is open.

use crate::file::{File, FileDescription, FileOptions};
use crate::lock::open_locked;
use crate::plain::{Plain, check_size_limit, file_offset};
use crate::queue::{DiskQueue, Queue};
use crate::request::{Operation, Request};
use crate::ring::RingPool;
use crate::{AlignedBuffer, IoEngine, VmError, WordTable, error::parent};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use vellum_base::PAGE_SIZE;

/// A file of pages on a file system.
///
/// While it is open it is locked (`flock`): against all others if it is writable, against writers if not. Dropping it
/// releases the lock.
#[derive(Debug)]
pub struct DiskFile {
    /// Its queues have it, too: they need no descriptor of their own.
    plain: Arc<Plain>,
    path: PathBuf,
    /// Whether opening it created it.
    created: bool,
    /// The process that opened it, and has the lock.
    process: u32,
    /// Present if and only if the engine is io_uring.
    rings: Option<RingPool>,
    /// The same file, opened a second time for writes into the system's page cache, if reads and writes bypass that
    /// cache.
    cached: OnceLock<Plain>,
    /// Locked while a thread writes through the system's page cache.
    writing: Arc<Mutex<()>>,
    /// Whether the size changed since the last sync.
    resized: AtomicBool,
    /// The error number of the first failed sync; 0 as long as none has failed.
    sync_failure: AtomicI32,
    /// How many syncs have begun.
    syncs_begun: AtomicU64,
    /// The number of the last one that has ended; locked during a sync.
    syncs_ended: Mutex<u64>,
}

impl DiskFile {
    /// Opens, and possibly creates, the file at `path` and locks it. A directory entry that this creates is durable
    /// when it returns, and gone again if it fails. It waits briefly for the lock, because the lock of a killed process
    /// outlives the process for a moment.
    ///
    /// # Errors
    /// [`VmError::Open`] if the file system refuses, [`VmError::Locked`] if another process or handle has it open,
    /// [`VmError::DirectUnavailable`] or [`VmError::EngineUnavailable`] if something that the options insist on is not
    /// available.
    pub fn open(path: &Path, options: &FileOptions) -> Result<Self, VmError> {
        Self::open_at(path, path.to_owned(), options)
    }

    /// As [`open`](Self::open), for a file that is opened at `place`, and has `path` as its name for people.
    pub(crate) fn open_at(place: &Path, path: PathBuf, options: &FileOptions) -> Result<Self, VmError> {
        let opened = open_locked(place, options).and_then(|(file, created)| {
            let prepared = prepare(&file, created, place, options).inspect_err(|_| {
                if created {
                    // The file is empty, and no other process can have it while it is locked.
                    let _ = std::fs::remove_file(place);
                }
            });
            prepared.map(|prepared| (file, created, prepared))
        });
        let (file, created, (direct, rings)) = opened.map_err(|error| error.of_file(&path))?;
        Ok(Self {
            plain: Arc::new(Plain::new(file, direct, options.read_only)),
            path,
            created,
            process: std::process::id(),
            rings,
            cached: OnceLock::new(),
            writing: Arc::default(),
            resized: AtomicBool::new(false),
            sync_failure: AtomicI32::new(0),
            syncs_begun: AtomicU64::new(0),
            syncs_ended: Mutex::default(),
        })
    }

    /// Whether opening it created it.
    pub fn was_created(&self) -> bool {
        self.created
    }

    /// Keeps other threads from writing through the system's page cache, because the system reports a failure only
    /// once.
    fn begin_writing(&self) -> Option<MutexGuard<'_, ()>> {
        (!self.plain.direct).then(|| self.writing.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes the file system find storage for a part of the file, by writing to it: storage that was promised must not
    /// be missing when pages are written.
    fn write_zeroes(&self, from: u64, to: u64) -> io::Result<()> {
        const BYTES_MAX: usize = 1 << 20;
        let bytes = |at: u64| usize::try_from(to - at).map_or(BYTES_MAX, |left| left.min(BYTES_MAX));
        let zeroes = AlignedBuffer::new(bytes(from));
        let mut at = from;
        while at < to {
            // SAFETY: the buffer is this function's own, and at least as long as that.
            unsafe { self.plain.write(at, zeroes.as_ptr(), bytes(at))? };
            at += bytes(at) as u64;
        }
        Ok(())
    }

    /// The file, for writes into the system's page cache.
    fn cached(&self) -> io::Result<&Plain> {
        if !self.plain.direct {
            return Ok(&self.plain);
        }
        if let Some(cached) = self.cached.get() {
            return Ok(cached);
        }
        // By its descriptor, because its name may have changed.
        let name = format!("/proc/self/fd/{}", self.plain.file.as_raw_fd());
        let file = std::fs::OpenOptions::new().read(true).write(true).open(name)?;
        Ok(self.cached.get_or_init(|| Plain::new(file, false, self.plain.read_only)))
    }

    /// Notes that the size, or other metadata of the file system, has changed.
    fn note_resized(&self) {
        // Release: pairs with the acquire in `sync`. A thread that sees the mark syncs after the change.
        self.resized.store(true, Ordering::Release);
    }
}

impl File for DiskFile {
    unsafe fn read(&self, offset: u64, address: *mut u8, bytes: usize) -> io::Result<()> {
        // SAFETY: passed on from the caller.
        unsafe { self.plain.read(offset, address, bytes) }
    }

    unsafe fn write(&self, offset: u64, address: *const u8, bytes: usize) -> io::Result<()> {
        let _writing = self.begin_writing();
        // SAFETY: as above.
        unsafe { self.plain.write(offset, address, bytes)? };
        self.plain.await_storage([(offset, bytes)].into_iter())
    }

    fn write_cached_from(&self, offset: u64, source: &[u8]) -> io::Result<()> {
        self.plain.check_writable()?;
        // Without `/proc`, this takes longer.
        let Ok(cached) = self.cached() else { return self.write_from(offset, source) };
        // SAFETY: the slice is borrowed for the length of the call.
        unsafe { cached.write(offset, source.as_ptr(), source.len()) }
    }

    unsafe fn run(&self, requests: &mut [Request]) {
        let writes = || requests.iter().any(|request| request.operation == Operation::Write);
        let ringless = requests.len() < 2 || requests.iter().any(|request| self.plain.refuses(request));
        let _writing = writes().then(|| self.begin_writing());
        match &self.rings {
            Some(rings) if !ringless => {
                // SAFETY: passed on from the caller.
                let undone = unsafe { rings.run(self.plain.file.as_raw_fd(), self.plain.direct, requests) };
                for index in undone {
                    if let Some(request) = requests.get_mut(index) {
                        // SAFETY: as above.
                        request.result = unsafe { self.plain.run(request) };
                    }
                }
            }
            // SAFETY: as above.
            _ => requests.iter_mut().for_each(|request| request.result = unsafe { self.plain.run(request) }),
        }
        let written =
            |request: &&mut Request| request.operation == Operation::Write && request.result.is_ok();
        let places = requests.iter_mut().filter(written).map(|request| (request.offset, request.bytes));
        if let Err(error) = self.plain.await_storage(places.collect::<Vec<_>>().into_iter()) {
            // The system does not tell which of them failed.
            for request in requests.iter_mut().filter(written) {
                request.result = Err(io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO)));
            }
        }
    }

    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>> {
        let writing = (!self.plain.direct).then(|| self.writing.clone());
        Ok(Box::new(DiskQueue::new(self.plain.clone(), depth, self.rings.is_some(), writing)))
    }

    fn sync(&self) -> io::Result<()> {
        // SeqCst: a sync with a greater number began after this, and so after all writes that the caller knows of.
        let before = self.syncs_begun.load(Ordering::SeqCst);
        // One after the other: the system tells of a failure once, and the other thread would be told that all is well.
        let mut ended = self.syncs_ended.lock().unwrap_or_else(PoisonError::into_inner);
        // Acquire and release: a failure that a thread finds is final; nothing else is ordered by it.
        let failure = self.sync_failure.load(Ordering::Acquire);
        if failure != 0 {
            return Err(io::Error::from_raw_os_error(failure));
        }
        if *ended > before {
            return Ok(());
        }
        let number = self.syncs_begun.fetch_add(1, Ordering::SeqCst) + 1;
        let resized = self.resized.swap(false, Ordering::AcqRel);
        let outcome = if resized { self.plain.file.sync_all() } else { self.plain.file.sync_data() };
        if let Err(error) = &outcome {
            let failure = error.raw_os_error().unwrap_or(libc::EIO);
            self.sync_failure.store(failure, Ordering::Release);
        }
        *ended = number;
        outcome
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.plain.file.as_fd())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.plain.file.metadata()?.len())
    }

    fn grow(&self, to: u64) -> io::Result<()> {
        self.plain.check_writable()?;
        let from = self.size()?;
        if to <= from {
            return Ok(());
        }
        check_size_limit(to)?;
        self.note_resized();
        match allocate(self.plain.file.as_raw_fd(), from, to) {
            Err(error) if lacks_allocation(&error) => self.write_zeroes(from, to),
            other => other,
        }
        .inspect_err(|_| {
            // The file system may have allocated part of it. Best effort: a larger file does no harm.
            let _ = self.plain.file.set_len(from);
        })
    }

    fn truncate(&self, to: u64) -> io::Result<()> {
        self.plain.check_writable()?;
        if to < self.size()? {
            self.note_resized();
            self.plain.file.set_len(to)?;
        }
        Ok(())
    }

    fn map_words(&self, offset: u64, words: usize) -> io::Result<Arc<WordTable>> {
        self.plain.check_writable()?;
        let end = (words as u64).checked_mul(8).and_then(|bytes| bytes.checked_add(offset));
        if end.is_none_or(|end| self.size().is_ok_and(|size| end > size)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if self.plain.direct || !keeps_room(self.plain.file.as_raw_fd()) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        WordTable::of_file(self.plain.file.as_fd(), offset, words).map(Arc::new)
    }

    fn description(&self) -> FileDescription {
        let engine = if self.rings.is_some() { IoEngine::IoUring } else { IoEngine::Pread };
        FileDescription { direct: self.plain.direct, engine, path: Some(self.path.clone()) }
    }
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        // Closing would suffice, but a child made by `fork` may hold another descriptor of the same open file. If this is
        // the child, its parent still needs the lock.
        if self.process == std::process::id() {
            let _ = self.plain.file.unlock();
        }
    }
}

/// Makes the entries of a directory durable.
///
/// # Errors
/// The errors of the file system.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    std::fs::File::open(directory)?.sync_all()
}

/// Whether a file system never needs new room to store a page that already has room. A file system that writes to a new
/// place each time may find none when a mapped page is stored, and the process would learn of that only by a signal.
fn keeps_room(descriptor: RawFd) -> bool {
    const EXT: u32 = 0xef53;
    const XFS: u32 = 0x5846_5342;
    const TMPFS: u32 = 0x0102_1994;
    let mut about = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: there is room for the result.
    if unsafe { libc::fstatfs(descriptor, about.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: it is zeroed, or written by the call.
    let kind = unsafe { about.assume_init() }.f_type as u32;
    matches!(kind, EXT | XFS | TMPFS)
}

/// Makes a new name durable, and chooses how the file is read and written.
fn prepare(
    file: &std::fs::File,
    created: bool,
    path: &Path,
    options: &FileOptions,
) -> Result<(bool, Option<RingPool>), VmError> {
    if created {
        let action = "make durable that there is now a file";
        sync_directory(parent(path)).map_err(|source| VmError::Open {
            path: path.to_owned(),
            action,
            source,
        })?;
    }
    Ok((choose_direct(file, path, options.direct)?, choose_engine(path, options)?))
}

/// Sets rings up if they are wanted or, without a preference, if possible.
fn choose_engine(path: &Path, options: &FileOptions) -> Result<Option<RingPool>, VmError> {
    let unavailable = |engine, source| VmError::EngineUnavailable { path: path.to_owned(), engine, source };
    match options.engine {
        Some(IoEngine::Pread) => Ok(None),
        None => Ok(RingPool::new(options.queue_depth).ok()),
        Some(engine @ IoEngine::IoUring) => {
            RingPool::new(options.queue_depth).map(Some).map_err(|source| unavailable(engine, source))
        }
        Some(engine @ IoEngine::Simulated) => {
            let source = io::Error::new(io::ErrorKind::Unsupported, "simulated files are not on disk");
            Err(unavailable(engine, source))
        }
    }
}

/// Switches direct I/O on if it is wanted or, without a preference, if possible; returns whether it is on.
fn choose_direct(file: &std::fs::File, path: &Path, wish: Option<bool>) -> Result<bool, VmError> {
    if wish == Some(false) {
        return Ok(false);
    }
    match enable_direct(file) {
        Ok(()) => Ok(true),
        Err(_) if wish.is_none() => Ok(false),
        Err(reason) => Err(VmError::DirectUnavailable { path: path.to_owned(), reason }),
    }
}

/// Switches direct I/O on, or says why that is impossible.
fn enable_direct(file: &std::fs::File) -> Result<(), String> {
    const PAGE: u32 = PAGE_SIZE as u32;
    let descriptor = file.as_raw_fd();
    if is_in_memory(descriptor) {
        return Err("the file system is in memory".to_owned());
    }
    if let Some((memory, offset)) = direct_alignment(descriptor) {
        if memory == 0 || offset == 0 {
            return Err("the file system does not have it".to_owned());
        }
        if !PAGE.is_multiple_of(memory) || !PAGE.is_multiple_of(offset) {
            return Err(format!("it wants memory aligned to {memory} and offsets to {offset} bytes"));
        }
    }
    set_direct(descriptor, true).map_err(|error| error.to_string())?;
    prove_direct(file).map_err(|error| {
        // Best effort: a file that cannot be switched back will fail its first read.
        let _ = set_direct(descriptor, false);
        format!("reading its first page failed: {error}")
    })
}

/// Reads the first page, if there is one: some file systems accept the mode and then refuse to read.
fn prove_direct(file: &std::fs::File) -> io::Result<()> {
    let mut page = AlignedBuffer::new(PAGE_SIZE);
    match std::os::unix::fs::FileExt::read_at(file, &mut page, 0) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Err(error),
        // A failing device is reported when the page is needed.
        _ => Ok(()),
    }
}

/// Whether the file system keeps its files in memory, so that bypassing a cache is meaningless.
#[expect(clippy::unnecessary_cast, reason = "the type of `f_type` differs among architectures")]
fn is_in_memory(descriptor: RawFd) -> bool {
    let mut about = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel fills the structure if it reports success, and only then is it read.
    unsafe {
        libc::fstatfs(descriptor, about.as_mut_ptr()) == 0
            && matches!(about.assume_init().f_type as i64, TMPFS_MAGIC | RAMFS_MAGIC)
    }
}

/// `TMPFS_MAGIC` of statfs(2), whose type differs among architectures.
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// `RAMFS_MAGIC` of statfs(2).
const RAMFS_MAGIC: i64 = 0x8584_58f6;

/// The alignment, in bytes, that direct I/O on this file requires of memory and of offsets; zeroes if the file system
/// lacks direct I/O, `None` if the kernel (before 6.1) does not report it.
fn direct_alignment(descriptor: RawFd) -> Option<(u32, u32)> {
    let mut about = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is an empty string that ends in zero, as AT_EMPTY_PATH requires, and the kernel fills the
    // structure, which is also valid as zeroes.
    let about = unsafe {
        let flags = libc::AT_EMPTY_PATH;
        if libc::statx(descriptor, c"".as_ptr(), flags, libc::STATX_DIOALIGN, about.as_mut_ptr()) != 0 {
            return None;
        }
        about.assume_init()
    };
    let told = about.stx_mask & libc::STATX_DIOALIGN != 0;
    told.then_some((about.stx_dio_mem_align, about.stx_dio_offset_align))
}

fn set_direct(descriptor: RawFd, on: bool) -> io::Result<()> {
    // SAFETY: reads and sets flags of an open descriptor.
    let outcome = unsafe {
        let flags = libc::fcntl(descriptor, libc::F_GETFL);
        let flags = if on { flags | libc::O_DIRECT } else { flags & !libc::O_DIRECT };
        libc::fcntl(descriptor, libc::F_SETFL, flags)
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Allocates storage for a file from its end to its new size, which it then has.
fn allocate(descriptor: RawFd, from: u64, to: u64) -> io::Result<()> {
    let (start, length) = (file_offset(from, 0)?, file_offset(to - from, 0)?);
    loop {
        // SAFETY: changes the file of an open descriptor, and no memory.
        if unsafe { libc::fallocate(descriptor, 0, start, length) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Whether the file system cannot allocate ahead, as opposed to having no space.
fn lacks_allocation(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS))
}
