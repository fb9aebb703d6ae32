//! Reserved addresses whose pages are brought at their first touch.
//!
//! What a touch needs is in [`Pages`], which is used by the handler of a signal or by a thread of its own, and by nothing else meanwhile. It
//! allocates nothing and takes no lock.

use super::super::image::{self, Layout};
use super::Design;
use super::userfault::Userfault;
use crate::Result;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::thread::JoinHandle;
use vellum_base::PAGE_SIZE;
use vellum_vm::AlignedBuffer;

/// Reserved addresses.
pub struct Region {
    pages: *mut Pages,
    /// The thread that brings pages, and what tells it to end.
    thread: Option<(JoinHandle<()>, UnixStream)>,
}

/// The pages that signals are about, of all regions that have signals.
static SIGNALLED: [AtomicPtr<Pages>; 4] = [const { AtomicPtr::new(ptr::null_mut()) }; 4];

/// What is needed to bring a page.
struct Pages {
    base: *mut u8,
    bytes: usize,
    file: File,
    objects: Vec<u64>,
    references: Vec<Vec<u16>>,
    design: Design,
    /// The pages that are in memory, in the order in which they came, as a ring: of [`Design::Drop`].
    resident: Vec<u32>,
    count: usize,
    oldest: usize,
    /// What tells of missing pages, and where one is swizzled before it is put into its place.
    userfault: Option<Userfault>,
    staging: *mut u8,
    _staging: AlignedBuffer,
    swizzled: AtomicU64,
}

impl Region {
    /// Reserves addresses for the pages of a file.
    ///
    /// # Errors
    /// If the system refuses addresses, what catches touches, or the file.
    pub fn reserve(layout: Layout, path: &Path, pool: u64, design: Design) -> Result<Self> {
        let Layout { bytes, objects, references, .. } = layout;
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
        let file = direct.or_else(|_| File::open(path))?;
        let limit = match design {
            Design::Drop => (pool as usize / PAGE_SIZE).clamp(8, bytes / PAGE_SIZE),
            _ => 0,
        };
        let signal = match design {
            Design::Swap | Design::Drop => Some(libc::SIGSEGV),
            Design::Free => Some(libc::SIGBUS),
            Design::Thread => None,
        };
        let is_protected = signal == Some(libc::SIGSEGV);
        let protection = if is_protected { libc::PROT_NONE } else { libc::PROT_READ | libc::PROT_WRITE };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping that overlaps nothing.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().into());
        }
        let mut staging = AlignedBuffer::new(PAGE_SIZE);
        let pages = Box::into_raw(Box::new(Pages {
            base: base.cast(),
            bytes,
            file,
            objects,
            references,
            design,
            resident: vec![0; limit],
            count: 0,
            oldest: 0,
            userfault: None,
            staging: staging.as_mut_ptr(),
            _staging: staging,
            swizzled: AtomicU64::new(0),
        }));
        // From here on dropping it takes all of it back.
        let mut region = Self { pages, thread: None };
        // SAFETY: the mapping is this region's. A page is the unit of all designs.
        unsafe { libc::madvise(base, bytes, libc::MADV_NOHUGEPAGE) };
        if !is_protected {
            let watched = Userfault::watch(base.cast(), bytes, signal.is_some())
                .map_err(|error| format!("userfaultfd is refused: {error}"))?;
            // SAFETY: nobody touches the region yet.
            unsafe { (*pages).userfault = Some(watched) };
        }
        match signal {
            Some(signal) => region.catch(signal)?,
            None => region.thread = Some(start(pages)?),
        }
        Ok(region)
    }

    /// Has a signal handled. That lasts as long as the process: other faults get the default action.
    fn catch(&self, signal: libc::c_int) -> Result<()> {
        let claim = |slot: &AtomicPtr<Pages>| {
            // Release: the handler of another thread would see what the pointer leads to.
            slot.compare_exchange(ptr::null_mut(), self.pages, Ordering::Release, Ordering::Relaxed).is_ok()
        };
        if !SIGNALLED.iter().any(claim) {
            return Err("there are too many databases whose pages are swizzled at signals".into());
        }
        // SAFETY: all zero is a valid one.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        // SAFETY: the structure is there for the call; the handler does nothing that a handler may not.
        if unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error().into());
        }
        Ok(())
    }

    /// The address of an object.
    pub fn address(&self, object: usize) -> *const u8 {
        // SAFETY: what is read never changes, and lives as long as `self`.
        let (base, offset) = unsafe { ((*self.pages).base, (&(*self.pages).objects)[object]) };
        base.wrapping_add(offset as usize)
    }

    /// Takes all pages away, as the system may do with those that were given to `MADV_FREE`. For designs that catch missing pages.
    #[cfg(test)]
    pub fn lose(&self) {
        // SAFETY: what the mapping holds can be made again, and a touch of it is caught.
        unsafe { libc::madvise((*self.pages).base.cast(), (*self.pages).bytes, libc::MADV_DONTNEED) };
    }

    /// How many pages were read and swizzled.
    pub fn swizzled(&self) -> u64 {
        // SAFETY: an atomic number that lives as long as `self`. Relaxed: nothing else follows from it.
        unsafe { (*self.pages).swizzled.load(Ordering::Relaxed) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some((thread, stop)) = self.thread.take() {
            // The thread sees the end of it.
            drop(stop);
            let _ = thread.join();
        }
        for slot in &SIGNALLED {
            // Relaxed: handlers run on the thread that touches the region, and none does any more.
            let _ = slot.compare_exchange(self.pages, ptr::null_mut(), Ordering::Relaxed, Ordering::Relaxed);
        }
        // SAFETY: made by `Box::into_raw`, and used no more. The mapping has no users left.
        unsafe {
            let pages = Box::from_raw(self.pages);
            libc::munmap(pages.base.cast(), pages.bytes);
        }
    }
}

/// Starts the thread that brings pages.
fn start(pages: *mut Pages) -> Result<(JoinHandle<()>, UnixStream)> {
    struct Sent(*mut Pages);
    // SAFETY: all threads only read what is behind it until this one is joined; the buffer for swizzling is this thread's alone.
    unsafe impl Send for Sent {}
    let (stop, stopped) = UnixStream::pair()?;
    let sent = Sent(pages);
    let thread = std::thread::Builder::new().name("texas".to_owned()).spawn(move || {
        let sent = sent;
        // SAFETY: as above.
        let pages = unsafe { &*sent.0 };
        while let Some(userfault) = &pages.userfault {
            let touched = userfault.next(stopped.as_raw_fd());
            match touched.map(|address| address.map(|address| pages.put(pages.number(address)))) {
                Ok(Some(true)) => {}
                Ok(None) => break,
                failed => {
                    // The thread that has touched the page waits for ever otherwise.
                    eprintln!("lab: a page cannot be brought: {failed:?}");
                    std::process::abort();
                }
            }
        }
    })?;
    Ok((thread, stop))
}

/// Brings the page of an address, or gives way to what is done with other faults.
extern "C" fn handle(signal: libc::c_int, information: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the system gives the handler a valid structure.
    let address = unsafe { (*information).si_addr().addr() };
    let is_brought = SIGNALLED.iter().any(|pages| {
        // Acquire: see `catch`.
        let pages = pages.load(Ordering::Acquire);
        // SAFETY: the pages live as long as they are named there, and no code of this thread has a reference to what changes in them
        // while it touches one.
        !pages.is_null() && unsafe { (*pages).has(address) && (*pages).bring(address) }
    });
    if !is_brought {
        // SAFETY: the default action; the touch is done again, and ends the process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

impl Pages {
    /// Whether an address lies in the region.
    fn has(&self, address: usize) -> bool {
        address.wrapping_sub(self.base.addr()) < self.bytes
    }

    /// The number of the page of an address in the region.
    fn number(&self, address: usize) -> usize {
        (address - self.base.addr()) / PAGE_SIZE
    }

    /// Brings the page of an address in the region. Says whether that succeeded.
    fn bring(&mut self, address: usize) -> bool {
        let page = self.number(address);
        match self.design {
            Design::Swap => self.unprotect(page),
            Design::Drop => self.make_room(page) && self.unprotect(page),
            Design::Thread => self.put(page),
            Design::Free => {
                let address = self.page(page).cast();
                // SAFETY: the page lies in the mapping, and nothing will be written to it. If it is dropped it is missing.
                self.put(page) && unsafe { libc::madvise(address, PAGE_SIZE, libc::MADV_FREE) == 0 }
            }
        }
    }

    /// Lets the oldest page go if there is no room for another one, which is noted.
    fn make_room(&mut self, page: usize) -> bool {
        if self.count < self.resident.len() {
            self.resident[self.count] = page as u32;
            self.count += 1;
            return true;
        }
        let address = self.page(self.resident[self.oldest] as usize).cast();
        self.resident[self.oldest] = page as u32;
        self.oldest = (self.oldest + 1) % self.resident.len();
        // SAFETY: the page lies in the mapping; what it held can be made again. A pointer to it faults.
        unsafe {
            libc::madvise(address, PAGE_SIZE, libc::MADV_DONTNEED) == 0
                && libc::mprotect(address, PAGE_SIZE, libc::PROT_NONE) == 0
        }
    }

    /// Reads and swizzles a protected page in its place.
    fn unprotect(&mut self, page: usize) -> bool {
        let address = self.page(page);
        // SAFETY: the buffer is one page, and used by nothing else meanwhile; the page lies in the mapping and is not in memory.
        unsafe {
            self.read(page, self.staging)
                && libc::mprotect(address.cast(), PAGE_SIZE, libc::PROT_READ | libc::PROT_WRITE) == 0
                && {
                    ptr::copy_nonoverlapping(self.staging, address, PAGE_SIZE);
                    true
                }
        }
    }

    /// Reads and swizzles a page elsewhere, and puts it into its place.
    fn put(&self, page: usize) -> bool {
        // SAFETY: the buffer is one page, and used by nothing else meanwhile.
        let is_read = unsafe { self.read(page, self.staging) };
        is_read
            && self.userfault.as_ref().is_some_and(|userfault| userfault.put(self.page(page), self.staging))
    }

    /// Reads a page and swizzles it.
    ///
    /// # Safety
    /// There is a page of memory to write to, to which nothing refers.
    unsafe fn read(&self, page: usize, to: *mut u8) -> bool {
        // Relaxed: it is only counted.
        self.swizzled.fetch_add(1, Ordering::Relaxed);
        let from = (page * PAGE_SIZE) as libc::off_t;
        // SAFETY: as the caller promises; the read fills the page.
        unsafe {
            if libc::pread(self.file.as_raw_fd(), to.cast(), PAGE_SIZE, from) != PAGE_SIZE as isize {
                return false;
            }
            image::swizzle(to, &self.references[page], &self.objects, self.base);
        }
        true
    }

    fn page(&self, page: usize) -> *mut u8 {
        self.base.wrapping_add(page * PAGE_SIZE)
    }
}
