//! Reading and writing by `pread` and `pwrite`: one request at a time, which works everywhere.

use crate::request::{Operation, Request};
use crate::transfer::{Transfer, transfer_all};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// A file on a file system, and the permitted ways of using it.
#[derive(Debug)]
pub(crate) struct Plain {
    pub file: std::fs::File,
    pub direct: bool,
    pub read_only: bool,
    /// The process's limit on files when it was last looked at; 0 before.
    size_limit: AtomicU64,
}

impl Plain {
    pub fn new(file: std::fs::File, direct: bool, read_only: bool) -> Self {
        Self { file, direct, read_only, size_limit: AtomicU64::new(0) }
    }

    /// Refuses a change of a file that was opened read-only.
    pub fn check_writable(&self) -> io::Result<()> {
        if self.read_only {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the file was opened read-only"));
        }
        Ok(())
    }

    /// Refuses a change of a file that was opened read-only, and a write beyond the process's limit on files: a file may be
    /// longer than that, because another process has made it so.
    fn check_write(&self, offset: u64, bytes: usize) -> io::Result<()> {
        self.check_writable()?;
        let end = offset.saturating_add(bytes as u64);
        // Relaxed, here and below: the number orders nothing. Looking at the limit anew each time would cost a system call.
        if end <= self.size_limit.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.size_limit.store(check_size_limit(end)?, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the request is a write that is [refused](Self::check_write).
    pub fn refuses(&self, request: &Request) -> bool {
        request.operation == Operation::Write && self.check_write(request.offset, request.bytes).is_err()
    }

    /// # Safety
    /// As for [`File::read`](crate::File::read).
    pub unsafe fn read(&self, offset: u64, address: *mut u8, bytes: usize) -> io::Result<()> {
        let descriptor = self.file.as_raw_fd();
        transfer_all(Transfer::new(bytes, false, self.direct), |done, length| {
            let at = file_offset(offset, done)?;
            // SAFETY: the caller vouches for `bytes` bytes at `address`, and `done + length` is within them.
            moved(unsafe { libc::pread(descriptor, address.add(done).cast(), length, at) })
        })
    }

    /// # Safety
    /// As for [`File::write`](crate::File::write).
    pub unsafe fn write(&self, offset: u64, address: *const u8, bytes: usize) -> io::Result<()> {
        self.check_write(offset, bytes)?;
        let descriptor = self.file.as_raw_fd();
        transfer_all(Transfer::new(bytes, true, self.direct), |done, length| {
            let at = file_offset(offset, done)?;
            // SAFETY: as for `read`.
            moved(unsafe { libc::pwrite(descriptor, address.add(done).cast(), length, at) })
        })
    }

    /// Waits until data that was written through the system's page cache has left it. If that fails, the system forgets
    /// the data sooner or later, and a read would find the old data; so no thread may discard its copy before this. The
    /// system reports a failure only once, so no other thread writes meanwhile.
    pub fn await_storage(&self, places: impl Iterator<Item = (u64, usize)> + Clone) -> io::Result<()> {
        if self.direct {
            return Ok(());
        }
        let (begin, end) = (libc::SYNC_FILE_RANGE_WRITE, libc::SYNC_FILE_RANGE_WAIT_AFTER);
        let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE | begin | end;
        for flags in [begin, all] {
            for (offset, bytes) in places.clone() {
                let (start, length) = (file_offset(offset, 0)?, file_offset(bytes as u64, 0)?);
                // SAFETY: changes no memory.
                let outcome = unsafe { libc::sync_file_range(self.file.as_raw_fd(), start, length, flags) };
                let error = io::Error::last_os_error();
                // A system that cannot wait for a part of a file reports a failure when the whole file is synced.
                if outcome != 0 && !matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL)) {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Runs a request from its beginning.
    ///
    /// # Safety
    /// As for `read` or `write`, depending on the request.
    pub unsafe fn run(&self, request: &Request) -> io::Result<()> {
        // SAFETY: passed on from the caller.
        unsafe {
            match request.operation {
                Operation::Read => self.read(request.offset, request.address, request.bytes),
                Operation::Write => self.write(request.offset, request.address, request.bytes),
            }
        }
    }
}

/// The offset at which a transfer continues after `done` bytes.
pub(crate) fn file_offset(offset: u64, done: usize) -> io::Result<libc::off_t> {
    offset.checked_add(done as u64).and_then(|at| libc::off_t::try_from(at).ok()).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("no file reaches to offset {offset}"))
    })
}

/// The number of bytes that `pread` or `pwrite` moved.
fn moved(outcome: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(outcome).map_err(|_| io::Error::last_os_error())
}

/// Refuses a size beyond the process's limit on files (RLIMIT_FSIZE), and returns the limit. The kernel would send a signal
/// that ends the process.
///
/// # Errors
/// [`io::ErrorKind::FileTooLarge`].
pub fn check_size_limit(to: u64) -> io::Result<u64> {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: the kernel fills the structure if it reports success, and only then is it read.
    let most = unsafe {
        if libc::getrlimit(libc::RLIMIT_FSIZE, limit.as_mut_ptr()) != 0 {
            return Ok(u64::MAX);
        }
        limit.assume_init().rlim_cur
    };
    if most == libc::RLIM_INFINITY {
        return Ok(u64::MAX);
    }
    if to > most {
        let message = format!(
            "{to} bytes are more than this process may have in a file ({most}): raise `ulimit -f` (RLIMIT_FSIZE)"
        );
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(most)
}
