//! userfaultfd: the kernel tells of pages that are missing in a range of addresses, and puts pages there.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use vellum_base::PAGE_SIZE;

// From `linux/userfaultfd.h`.
const UFFD_API: u64 = 0xaa;
const UFFDIO_API: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
const UFFDIO_REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
const UFFDIO_COPY: libc::Ioctl = 0xc028_aa03_u32 as libc::Ioctl;
const UFFD_USER_MODE_ONLY: libc::c_int = 1;
const UFFD_FEATURE_SIGBUS: u64 = 1 << 7;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;
const UFFD_EVENT_PAGEFAULT: u64 = 0x12;

/// A range of addresses whose missing pages are told.
pub struct Userfault {
    file: OwnedFd,
}

impl Userfault {
    /// Watches a range of a private anonymous mapping: a touch of a missing page is a `SIGBUS`, or waits until a thread that calls
    /// [`next`](Self::next) has brought the page. Touches by the kernel fail.
    ///
    /// # Errors
    /// If the kernel has no userfaultfd, or the process may not use it.
    pub fn watch(base: *mut u8, bytes: usize, signals: bool) -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | UFFD_USER_MODE_ONLY;
        // SAFETY: a system call that touches no memory of this process.
        let file = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: new, and nobody else's.
        let file = unsafe { OwnedFd::from_raw_fd(file as RawFd) };
        let mut api = [UFFD_API, if signals { UFFD_FEATURE_SIGBUS } else { 0 }, 0];
        let mut register = [base.expose_provenance() as u64, bytes as u64, UFFDIO_REGISTER_MODE_MISSING, 0];
        // SAFETY: both have the layout that the call expects, and are there for it.
        let done = unsafe {
            libc::ioctl(file.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) == 0
                && libc::ioctl(file.as_raw_fd(), UFFDIO_REGISTER, register.as_mut_ptr()) == 0
        };
        if done { Ok(Self { file }) } else { Err(io::Error::last_os_error()) }
    }

    /// Puts a copy of a page where one is missing, and lets the threads go on that wait for it. Says whether it is there. A handler of
    /// signals may do so.
    pub fn put(&self, to: *mut u8, from: *const u8) -> bool {
        let (to, from) = (to.expose_provenance() as u64, from.expose_provenance() as u64);
        let mut copy = [to, from, PAGE_SIZE as u64, 0, 0];
        // SAFETY: the layout that the call expects; both pages belong to the caller, and nothing refers to the one that is filled.
        unsafe { libc::ioctl(self.file.as_raw_fd(), UFFDIO_COPY, copy.as_mut_ptr()) == 0 }
    }

    /// Waits for the next touch of a missing page, and gives its address; none once `stop` can be read.
    ///
    /// # Errors
    /// Those of the system.
    pub fn next(&self, stop: RawFd) -> io::Result<Option<usize>> {
        loop {
            let ask = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut ready = [ask(self.file.as_raw_fd()), ask(stop)];
            let mut message = [0u64; 4];
            // SAFETY: both are there for the calls, and as long as these are told.
            let read = unsafe {
                if libc::poll(ready.as_mut_ptr(), 2, -1) < 0 {
                    return Err(io::Error::last_os_error());
                }
                if ready[1].revents != 0 {
                    return Ok(None);
                }
                libc::read(self.file.as_raw_fd(), message.as_mut_ptr().cast(), size_of_val(&message))
            };
            // The first byte says what has happened; the address is the third word.
            if read == size_of_val(&message) as isize && message[0] & 0xff == UFFD_EVENT_PAGEFAULT {
                return Ok(Some(message[2] as usize));
            }
        }
    }
}
