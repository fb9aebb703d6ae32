//! Reserving address space, and how much of it is resident.
//!
//! A [`Mapping`] is one anonymous private mapping. Reserving costs no memory: a page becomes resident when it is first
//! written, and reads as zeroes until then. The mapping that holds a database's pages is a single virtual memory area
//! (VMA) for as long as it lives: all advice is given to the whole of it, because the kernel releases batches of pages
//! quickly only within one VMA.
//!
//! A `Mapping` gives out its address and no references: the layers above decide which bytes may be touched when.

use crate::VmError;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64 as StdAtomicU64, Ordering};
use std::{io, slice};
use vellum_base::PAGE_SIZE;
use vellum_base::primitive::AtomicU64;

/// Not every version of the C library's interface has this constant yet.
pub(crate) const MADV_POPULATE_WRITE: libc::c_int = 23;

/// The addresses that large reservations leave to the rest of a process.
const SPARE_BYTES: usize = 16 << 30;

/// A run of whole pages in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageRange {
    /// The first byte; a multiple of [`PAGE_SIZE`].
    pub address: *mut u8,
    /// The size in bytes; a multiple of [`PAGE_SIZE`].
    pub bytes: usize,
}

// SAFETY: a range is two numbers; unsafe code decides how the address is used.
unsafe impl Send for PageRange {}
// SAFETY: as above.
unsafe impl Sync for PageRange {}

/// A range of address space that belongs to the owner of this value; unmapped when dropped.
///
/// # Examples
/// ```
/// use vellum_vm::Mapping;
/// let terabyte = Mapping::reserve(1 << 40, "an example")?.for_pages()?;
/// // SAFETY: the byte lies in the mapping and no other code uses it.
/// let byte = unsafe { terabyte.base().add(1 << 39).read() };
/// assert_eq!(byte, 0);
/// # Ok::<(), vellum_vm::VmError>(())
/// ```
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    purpose: &'static str,
}

// SAFETY: a mapping is an address and a length; it belongs to no thread, and its methods neither read nor
// write the memory.
unsafe impl Send for Mapping {}
// SAFETY: as above; shared access gives only the address and the length.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves exactly `bytes` of zero-filled address space, none of it resident.
    ///
    /// `purpose` completes "for ..." in errors.
    ///
    /// # Errors
    /// [`VmError::BasePage`] on a system whose pages are not 4096 bytes; [`VmError::Length`] if `bytes` is
    /// zero or not a multiple of that; [`VmError::AddressSpace`] if the kernel refuses.
    pub fn reserve(bytes: usize, purpose: &'static str) -> Result<Self, VmError> {
        Self::check(bytes, purpose)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // In a process that locks all memory that it will map (`mlockall` with `MCL_FUTURE`), the kernel would bring memory
        // to all of it at once. It does not to what cannot be accessed, and no more once that is unlocked.
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists, and only it is
        // unlocked and made accessible.
        let address = unsafe {
            let address = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0);
            let is_open = address != libc::MAP_FAILED
                && libc::munlock(address, bytes) == 0
                && libc::mprotect(address, bytes, protection) == 0;
            if !is_open && address != libc::MAP_FAILED {
                let source = io::Error::last_os_error();
                libc::munmap(address, bytes);
                return Err(VmError::AddressSpace { purpose, bytes, source });
            }
            address
        };
        let refused = |source| VmError::AddressSpace { purpose, bytes, source };
        if address == libc::MAP_FAILED {
            return Err(refused(io::Error::last_os_error()));
        }
        match NonNull::new(address.cast()) {
            Some(base) => Ok(Self { base, bytes, purpose }),
            None => Err(refused(io::Error::other("the kernel mapped it at address zero"))),
        }
    }

    /// Reserves `wanted` bytes or, where that is refused, half of it, and so on down to `least`. Where something is
    /// refused there is a limit, of which the program needs a part for other things: half of what is granted is given
    /// back. A process without limits on its memory has 128 TiB of addresses; the last 16 GiB of them are not taken for
    /// a reservation of more than that, because without addresses no thread starts and allocators end the process.
    ///
    /// # Errors
    /// As for [`reserve`](Self::reserve), about `least` bytes, or about what would have left too little.
    pub fn reserve_up_to(wanted: usize, least: usize, purpose: &'static str) -> Result<Self, VmError> {
        let wanted = wanted.max(least);
        let half = |bytes: usize| (bytes / 2 / PAGE_SIZE * PAGE_SIZE).max(least);
        let leaves_enough = || wanted <= SPARE_BYTES || has_spare_addresses();
        let mut bytes = wanted;
        loop {
            match Self::reserve(bytes, purpose) {
                Err(VmError::AddressSpace { .. }) if bytes > least => bytes = half(bytes),
                Ok(granted) if half(bytes) < bytes && (bytes < wanted || !leaves_enough()) => {
                    drop(granted);
                    bytes = half(bytes);
                    let granted = Self::reserve(bytes, purpose)?;
                    if leaves_enough() {
                        return Ok(granted);
                    }
                    drop(granted);
                    let source = io::Error::from_raw_os_error(libc::ENOMEM);
                    return Err(VmError::AddressSpace { purpose, bytes, source });
                }
                outcome => return outcome,
            }
        }
    }

    /// The first byte.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Refuses a length that no mapping can have.
    pub(crate) fn check(bytes: usize, purpose: &'static str) -> Result<(), VmError> {
        let found = base_page_bytes();
        if found != PAGE_SIZE {
            return Err(VmError::BasePage { found });
        }
        if bytes == 0 || !bytes.is_multiple_of(PAGE_SIZE) {
            return Err(VmError::Length { purpose, bytes });
        }
        Ok(())
    }

    /// Takes over memory that was mapped elsewhere.
    ///
    /// # Safety
    /// The `bytes` bytes at `base` are a whole mapping, which no other code unmaps.
    pub(crate) unsafe fn adopt(base: NonNull<u8>, bytes: usize, purpose: &'static str) -> Self {
        Self { base, bytes, purpose }
    }

    /// The size in bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Prepares it to hold the pages of a database.
    ///
    /// It is kept out of children made by `fork` (direct I/O into memory shared with a child corrupts it) and out of
    /// core dumps (they would be as large as the database), and page faults bring no huge pages (evicting one small
    /// page would have to split one; see [`collapse`](Self::collapse)).
    ///
    /// # Errors
    /// [`VmError::Advise`] if the kernel refuses one of the first two; a kernel without huge pages has
    /// nothing to switch off.
    pub fn for_pages(self) -> Result<Self, VmError> {
        for (advice, name) in [(libc::MADV_DONTFORK, "MADV_DONTFORK"), (libc::MADV_DONTDUMP, "MADV_DONTDUMP")]
        {
            self.advise(advice).map_err(|source| VmError::Advise {
                purpose: self.purpose,
                advice: name,
                bytes: self.bytes,
                source,
            })?;
        }
        // EINVAL from a kernel that is built without transparent huge pages: there is nothing to avoid.
        let _ = self.advise(libc::MADV_NOHUGEPAGE);
        Ok(self)
    }

    /// Fetches memory for the `bytes` bytes at `offset`, as if each page were written, but faster than page by page.
    /// The contents stay the same. Returns whether all of them have memory now, which is not so if the system has none,
    /// or is older than Linux 5.14.
    pub fn populate(&self, offset: usize, bytes: usize) -> bool {
        self.advise_part(offset, bytes, MADV_POPULATE_WRITE).is_ok()
    }

    /// Allows the mapping's memory to be given back even if the process has locked all its memory (`mlockall`).
    ///
    /// # Errors
    /// The errors of the kernel.
    pub fn unlock(&self) -> io::Result<()> {
        // SAFETY: the range lies in the mapping; its contents stay the same.
        let outcome = unsafe { libc::munlock(self.base.as_ptr().cast(), self.bytes) };
        if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Prepares it to hold a table of which all parts are used often, such as the states of pages: huge pages where the
    /// kernel has them, and kept out of core dumps. Best effort.
    ///
    /// Unlike a mapping of pages it is inherited, copied on write, by children made by `fork`.
    #[must_use]
    pub fn for_table(self) -> Self {
        // Neither changes the contents of the memory, so refusals do not matter.
        let _ = self.advise(libc::MADV_HUGEPAGE);
        let _ = self.advise(libc::MADV_DONTDUMP);
        self
    }

    /// Gives advice on the whole mapping.
    fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        self.advise_part(0, self.bytes, advice)
    }

    /// Gives advice that does not change the contents of the memory.
    pub(crate) fn advise_part(&self, offset: usize, bytes: usize, advice: libc::c_int) -> io::Result<()> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: the range lies in the mapping, and none of the advice given here and in `huge` changes its contents.
        let outcome = unsafe { libc::madvise(self.base.as_ptr().wrapping_add(offset).cast(), bytes, advice) };
        if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// An array of atomic words in a mapping of its own, all zero at first.
///
/// It is backed by huge pages where the kernel has them: a table that is used everywhere then costs few page faults and
/// few entries of the TLB.
#[derive(Debug)]
pub struct WordTable {
    mapping: Mapping,
    words: usize,
}

impl WordTable {
    /// A table of `words` words, at least one. `purpose` completes "for ..." in errors.
    ///
    /// # Errors
    /// As for [`Mapping::reserve`].
    pub fn new(words: usize, purpose: &'static str) -> Result<Self, VmError> {
        let bytes = (words.saturating_mul(size_of::<AtomicU64>())).max(1).next_multiple_of(PAGE_SIZE);
        Ok(Self { mapping: Mapping::reserve(bytes, purpose)?.for_table(), words })
    }

    /// The words of a file from `offset` on, which is a multiple of [`PAGE_SIZE`]: a stored word is with the operating
    /// system at once, and outlives the process. The file must have room for them, and must not be cut as long as they
    /// live. Children made by `fork` do not have them.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if the words do not fill whole pages of the file, or the errors of the kernel.
    pub(crate) fn of_file(file: BorrowedFd<'_>, offset: u64, words: usize) -> io::Result<Self> {
        let bytes = words.checked_mul(size_of::<AtomicU64>()).filter(|bytes| bytes.is_multiple_of(PAGE_SIZE));
        let start = libc::off_t::try_from(offset).ok().filter(|_| offset.is_multiple_of(PAGE_SIZE as u64));
        let (Some(bytes @ 1..), Some(start), PAGE_SIZE) = (bytes, start, base_page_bytes()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let address = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), start)
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let Some(base) = NonNull::new(address.cast()) else {
            return Err(io::Error::other("the kernel mapped it at address zero"));
        };
        // SAFETY: it was just mapped, as a whole.
        let mapping = unsafe { Mapping::adopt(base, bytes, "words of a file") };
        mapping.advise(libc::MADV_DONTFORK)?;
        // The contents do not change if this is refused.
        let _ = mapping.advise(libc::MADV_DONTDUMP);
        Ok(Self { mapping, words })
    }

    /// Copies the contents of the words from byte `from` on, as they are at this moment, to a whole number of words.
    pub(crate) fn copy_bytes(&self, from: usize, target: &mut [u8]) {
        for (chunk, word) in target.as_chunks_mut::<8>().0.iter_mut().zip(self.plain().skip(from / 8)) {
            // Relaxed: a copy of words that may change meanwhile.
            *chunk = word.load(Ordering::Relaxed).to_le_bytes();
        }
    }

    /// Replaces the contents of the words.
    pub(crate) fn fill_from(&self, source: &[u8]) {
        for (word, chunk) in self.plain().zip(source.as_chunks::<8>().0) {
            // Relaxed: no other thread has the words yet.
            word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
        }
    }

    /// The words as plain atomics of the processor, in which no scheduler takes part.
    fn plain(&self) -> impl Iterator<Item = &StdAtomicU64> {
        let base = self.mapping.base.cast::<u64>();
        // SAFETY: this many words lie in the mapping, which lives as long as `self`, and all access to them is atomic.
        (0..self.words).map(move |index| unsafe { StdAtomicU64::from_ptr(base.as_ptr().add(index)) })
    }
}

impl Deref for WordTable {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has room for this many words, is page-aligned, and lives as long as `self`. This process
        // accesses it only as atomic words, and any initial contents are valid words.
        unsafe { slice::from_raw_parts(self.mapping.base.as_ptr().cast(), self.words) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `reserve` or adopted, and its owner has ended all use of it before dropping it.
        let outcome = unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert_eq!(outcome, 0, "a mapping can always be unmapped");
    }
}

/// The resident size of this process now, in bytes (`VmRSS`).
///
/// Kernels before 6.2 count per thread and sum up every 64 pages, so the figure may lag by that much.
///
/// # Errors
/// If `/proc/self/statm` cannot be read, as where `/proc` is not mounted.
pub fn resident_bytes() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages = text.split_ascii_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
    let pages = pages.ok_or_else(|| io::Error::other("/proc/self/statm has no resident size"))?;
    Ok(pages * base_page_bytes() as u64)
}

/// The largest resident size that this process ever had, in bytes (`VmHWM`).
///
/// # Errors
/// If `/proc/self/status` cannot be read or lacks the figure.
pub fn resident_bytes_peak() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let kilobytes = text
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.split_ascii_whitespace().next())
        .and_then(|word| word.parse::<u64>().ok());
    kilobytes
        .map(|kilobytes| kilobytes * 1024)
        .ok_or_else(|| io::Error::other("/proc/self/status has no peak resident size"))
}

/// The memory of this machine, in bytes; `None` if the system does not tell.
pub fn physical_bytes() -> Option<u64> {
    // SAFETY: sysconf reads a number of the system.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    let bytes = u64::try_from(pages).ok()?.checked_mul(base_page_bytes() as u64)?;
    (bytes > 0).then_some(bytes)
}

/// Whether [`SPARE_BYTES`] of addresses are left. A process whose memory is limited is answered yes: it has addresses.
fn has_spare_addresses() -> bool {
    let is_limited = [libc::RLIMIT_AS, libc::RLIMIT_DATA].into_iter().any(|resource| {
        let mut limit = MaybeUninit::<libc::rlimit>::uninit();
        // SAFETY: the kernel fills the structure if it reports success, and only then is it read.
        unsafe {
            libc::getrlimit(resource, limit.as_mut_ptr()) == 0
                && limit.assume_init().rlim_cur != libc::RLIM_INFINITY
        }
    });
    is_limited || {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists. Nobody can access it, and
        // only it is unmapped.
        unsafe {
            let address = libc::mmap(std::ptr::null_mut(), SPARE_BYTES, libc::PROT_NONE, flags, -1, 0);
            address != libc::MAP_FAILED && libc::munmap(address, SPARE_BYTES) == 0
        }
    }
}

/// The size of this system's memory pages, in bytes; 0 if it does not tell.
fn base_page_bytes() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| {
        // SAFETY: sysconf reads a constant of the system.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(bytes).unwrap_or(0)
    })
}
