//! Page tables that this process manages itself: the device `/dev/exmap` of the module in `kernel/exmap`.
//!
//! An [`Exmap`] is one *area* of address space and the *pool* of physical pages that may be mapped in it. No fault maps
//! anything there: pages come by [`supply`](Exmap::supply) or [`read`](Exmap::read) and go by
//! [`release`](Exmap::release), each a vector in one call. The pool is allocated, and charged to the locked memory of
//! the process, when the area is created.
//!
//! # Loads from pages that are not mapped
//! Optimistic readers may touch a page just after it was released. The area is set up so that such a load reads zeroes
//! (`EXMAP_FAULTS_BLANK`), as in anonymous memory, and the reader notices at validation. So no signal is ever raised
//! and none need be handled. A signal handler could not do this: Rust has no way to jump from it to the place where the
//! read began, and to step over the load the handler would have to know every load that the compiler generated for
//! optimistic reads. A *store* to such a page is a broken invariant, and does raise `SIGSEGV`.
//!
//! # Interfaces
//! The module has up to 256 free lists, so that threads do not contend. Each thread uses the list that its number
//! selects: a list of its own, as long as there are no more threads than lists. If one list runs short, the module
//! takes pages from other lists.

use crate::memory::{Mapping, PageRange};
use std::ffi::{c_int, c_ulong};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;
use vellum_base::{PAGE_SIZE, primitive::thread_number};

/// The path of the device, if the module is loaded.
const DEVICE: &str = "/dev/exmap";
/// The most interfaces that the module supports.
const INTERFACES_MAX: usize = 256;
/// An interface costs a page, so a pool has one interface for each group of this many pages.
const PAGES_PER_INTERFACE: usize = 64;
/// The number of pages beyond those that the owner reserves. Pages that were released while the kernel still held them,
/// for example at the end of a write, come back only when the kernel lets go of them.
const SPARE_PAGES: usize = 64;
/// How often a call that found no page is repeated at once, and then after a millisecond each time.
const TRIES_AT_ONCE: u32 = 100;
const TRIES_MAX: u32 = 3000;

/// The definitions of `kernel/exmap/exmap.h`.
mod abi {
    pub const SETUP: u64 = 0x4018_6b01;
    pub const VERSION: u64 = 0x8010_6b10;
    pub const BATCH: u64 = 0xc028_6b11;
    pub const COUNTERS: u64 = 0x8060_6b12;
    pub const OPTIONS: u64 = 0x4010_6b13;

    pub const READ: u32 = 0;
    pub const ALLOC: u32 = 1;
    pub const FREE: u32 = 2;

    pub const ABI_VERSION: u32 = 1;
    pub const FEATURE_BLANK: u32 = 1 << 1;
    pub const FEATURE_NO_FLUSH: u32 = 1 << 31;
    pub const FAULTS_BLANK: u32 = 1;

    #[repr(C)]
    pub struct Setup {
        pub fd: i32,
        pub max_interfaces: i32,
        pub buffer_size: u64,
        pub flags: u64,
    }

    #[repr(C)]
    #[derive(Default)]
    pub struct Version {
        pub abi: u32,
        pub features: u32,
        pub page_size: u32,
        pub max_ranges: u32,
    }

    #[repr(C)]
    #[derive(Clone, Copy)]
    pub struct Range {
        pub first: u64,
        pub count: u64,
        pub done: u64,
        pub error: i32,
        pub pad: u32,
    }

    #[repr(C)]
    pub struct Batch {
        pub ranges: u64,
        pub nr_ranges: u32,
        pub opcode: u32,
        pub interface: u32,
        pub flags: u32,
        pub pages_done: u64,
        pub ranges_failed: u32,
        pub pad: u32,
    }

    #[repr(C)]
    pub struct Options {
        pub faults: u32,
        pub pad: [u32; 3],
    }

    /// In the order of the header.
    pub type Counters = [u64; 12];

    const _: () = assert!(size_of::<Setup>() == 24 && size_of::<Version>() == 16);
    const _: () = assert!(size_of::<Range>() == 32 && size_of::<Batch>() == 40);
    const _: () = assert!(size_of::<Options>() == 16 && size_of::<Counters>() == 96);
}

/// What an area has done since it was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ExmapCounters {
    /// Pages that came, including those of reads.
    pub pages_supplied: u64,
    /// Pages that went.
    pub pages_released: u64,
    /// Pages that the module itself has read, in the call that supplied them.
    pub pages_read: u64,
    /// TLB flushes for releases.
    pub flushes: u64,
    /// TLB flushes because a page had been read while it was not mapped.
    pub flushes_blank: u64,
    /// Pages that an interface took from another one.
    pub pages_stolen: u64,
}

impl fmt::Display for ExmapCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pages_supplied, pages_released, pages_read, flushes, flushes_blank, pages_stolen } = self;
        write!(
            f,
            "{pages_supplied} pages supplied, {pages_read} of them read, {pages_released} released with {flushes} \
             TLB flushes ({flushes_blank} more where readers had looked too early), {pages_stolen} stolen"
        )
    }
}

/// An area, and its pool of physical pages.
#[derive(Debug)]
pub(crate) struct Exmap {
    device: File,
    base: NonNull<u8>,
    bytes: usize,
    interfaces: u64,
    /// The most ranges for one call.
    ranges_max: usize,
    /// Whether reads come from a file on disk, at the same offset as in the area.
    has_file: bool,
}

// SAFETY: an area is an address, a length and a descriptor; any thread may use any interface.
unsafe impl Send for Exmap {}
// SAFETY: as above.
unsafe impl Sync for Exmap {}

impl Exmap {
    /// Creates an area of `wanted` bytes or, where that is refused, less, down to `least`; and a pool of `pool_pages`
    /// pages, plus some spare ones. Reads come from `file`.
    ///
    /// # Errors
    /// If there is no device, it is a different one, or the kernel refuses memory or address space.
    pub fn reserve(
        wanted: usize,
        least: usize,
        pool_pages: usize,
        file: Option<BorrowedFd<'_>>,
        purpose: &'static str,
    ) -> io::Result<(Arc<Self>, Mapping)> {
        let device = File::options().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(DEVICE)?;
        let ranges_max = check_version(&device)?;
        let options = abi::Options { faults: abi::FAULTS_BLANK, pad: [0; 3] };
        // SAFETY: the structure is the one that the call reads.
        unsafe { control(&device, abi::OPTIONS, (&raw const options).cast_mut())? };
        let interfaces = (pool_pages / PAGES_PER_INTERFACE).clamp(1, INTERFACES_MAX);
        let setup = abi::Setup {
            fd: file.map_or(-1, |file| file.as_raw_fd()),
            max_interfaces: interfaces as i32,
            buffer_size: (pool_pages + SPARE_PAGES) as u64,
            flags: 0,
        };
        // SAFETY: as above.
        unsafe { control(&device, abi::SETUP, (&raw const setup).cast_mut())? };
        let (base, bytes) = map(&device, wanted, least)?;
        // SAFETY: the kernel has just made this mapping, and no other code knows of it.
        let mapping = unsafe { Mapping::adopt(base, bytes, purpose) };
        let interfaces = interfaces as u64;
        let area = Self { device, base, bytes, interfaces, ranges_max, has_file: file.is_some() };
        Ok((Arc::new(area), mapping))
    }

    /// Whether `address` lies in the area.
    pub fn contains(&self, address: *const u8) -> bool {
        address.addr().wrapping_sub(self.base.addr().get()) < self.bytes
    }

    /// Whether [`read`](Self::read) can read the bytes at `offset` of the file to `address`.
    pub fn can_read(&self, offset: u64, address: *const u8) -> bool {
        self.has_file && self.contains(address) && offset == (address.addr() - self.base.addr().get()) as u64
    }

    /// The interface of this thread: the thread's number, as the standard library counts.
    fn interface(&self) -> u32 {
        (thread_number() % self.interfaces) as u32
    }

    /// Maps pages wherever the ranges have none, in one call for all. Their contents are arbitrary. Returns for each
    /// range how many pages came, or why not all of them did; pages that came stay.
    pub fn supply(&self, ranges: impl Iterator<Item = PageRange>) -> Vec<io::Result<usize>> {
        let mut todo: Vec<abi::Range> = ranges.map(|range| self.range(range)).collect();
        let mut come = vec![0; todo.len()];
        let mut patience = Patience::default();
        loop {
            let failure =
                todo.chunks_mut(self.ranges_max).find_map(|part| self.batch(abi::ALLOC, part).err());
            let mut lacking = false;
            for (range, come) in todo.iter().zip(&mut come) {
                *come += range.done as usize;
                lacking |= range.error == -libc::ENOMEM;
            }
            if let Some(failure) = failure {
                let number = failure.raw_os_error().unwrap_or(libc::EIO);
                return todo.iter().map(|_| Err(io::Error::from_raw_os_error(number))).collect();
            }
            // There is a page for every reservation; some are on their way between two lists, or held by a write that
            // has just ended.
            if !lacking || !patience.wait() {
                break;
            }
        }
        let outcome = |(range, come): (&abi::Range, usize)| match range.error {
            0 => Ok(come),
            error => Err(io::Error::from_raw_os_error(-error)),
        };
        todo.iter().zip(come).map(outcome).collect()
    }

    /// Removes all pages from the ranges, with one TLB flush for all.
    ///
    /// # Errors
    /// The errors of the module; some pages may then be left.
    ///
    /// # Safety
    /// As for [`Releaser::release`](crate::Releaser::release).
    pub unsafe fn release(&self, ranges: impl Iterator<Item = PageRange>) -> io::Result<()> {
        let mut ranges: Vec<abi::Range> = ranges.map(|range| self.range(range)).collect();
        for part in ranges.chunks_mut(self.ranges_max) {
            self.batch(abi::FREE, part)?;
            if let Some(failed) = part.iter().find(|range| range.error != 0) {
                return Err(io::Error::from_raw_os_error(-failed.error));
            }
        }
        Ok(())
    }

    /// Maps `bytes` bytes at `address`, which [`can_read`](Self::can_read) has confirmed, and fills them from the file,
    /// in one call if all goes well. Returns how many bytes were filled; beyond them nothing was changed.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] past the end of the file; `EEXIST` at a page that is already mapped; or the
    /// errors of the file.
    ///
    /// # Safety
    /// As for [`File::read`](crate::File::read).
    pub unsafe fn read(&self, address: *mut u8, bytes: usize) -> (usize, io::Result<()>) {
        let operation = libc::off_t::from(self.interface()) | libc::off_t::from(abi::READ) << 8;
        let mut patience = Patience::default();
        let mut done = 0;
        while done < bytes {
            let rest = address.wrapping_add(done).cast();
            // SAFETY: passed on from the caller; the rest lies within what the caller vouches for.
            let outcome = unsafe { libc::pread(self.device.as_raw_fd(), rest, bytes - done, operation) };
            let Ok(moved) = usize::try_from(outcome) else {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EINTR) => continue,
                    Some(libc::ENOMEM) if patience.wait() => continue,
                    _ => return (done, Err(error)),
                }
            };
            if moved == 0 {
                return (done, Err(io::ErrorKind::UnexpectedEof.into()));
            }
            done += moved;
        }
        (done, Ok(()))
    }

    /// What the area has done.
    ///
    /// # Errors
    /// If this is a child made by `fork`, to which the area does not belong.
    pub fn counters(&self) -> io::Result<ExmapCounters> {
        let mut counters: abi::Counters = [0; 12];
        // SAFETY: the structure is the one that the call fills.
        unsafe { control(&self.device, abi::COUNTERS, &raw mut counters)? };
        let [_, _, _, supplied, released, read, flushes, last, random, any, _, flushes_blank] = counters;
        Ok(ExmapCounters {
            pages_supplied: supplied,
            pages_released: released,
            pages_read: read,
            flushes,
            flushes_blank,
            pages_stolen: last + random + any,
        })
    }

    fn range(&self, range: PageRange) -> abi::Range {
        // An address below the area becomes a page far above it, which the module refuses.
        let first = range.address.addr().wrapping_sub(self.base.addr().get()) / PAGE_SIZE;
        abi::Range { first: first as u64, count: (range.bytes / PAGE_SIZE) as u64, done: 0, error: 0, pad: 0 }
    }

    /// Carries out `opcode` on at most [`ranges_max`](Self::ranges_max) ranges, and stores in each its own result.
    fn batch(&self, opcode: u32, ranges: &mut [abi::Range]) -> io::Result<()> {
        let mut batch = abi::Batch {
            ranges: ranges.as_mut_ptr().expose_provenance() as u64,
            nr_ranges: ranges.len() as u32,
            opcode,
            interface: self.interface(),
            flags: 0,
            pages_done: 0,
            ranges_failed: 0,
            pad: 0,
        };
        loop {
            // SAFETY: the structure and the ranges that it names are those that the call reads and fills.
            match unsafe { control(&self.device, abi::BATCH, &raw mut batch) } {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => return outcome,
            }
        }
    }
}

/// Waiting for pages that are on their way.
#[derive(Default)]
struct Patience {
    tries: u32,
}

impl Patience {
    /// Waits a little; false if it has waited long enough.
    #[cold]
    fn wait(&mut self) -> bool {
        self.tries += 1;
        if self.tries < TRIES_AT_ONCE {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.tries < TRIES_MAX
    }
}

/// Checks that the device can be used; returns the most ranges of a call.
fn check_version(device: &File) -> io::Result<usize> {
    let mut version = abi::Version::default();
    // SAFETY: the structure is the one that the call fills.
    unsafe { control(device, abi::VERSION, &raw mut version) }.map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("{DEVICE} does not tell its version, so it is another module: {error}"),
        )
    })?;
    let unfit = |why: &str| Err(io::Error::new(io::ErrorKind::Unsupported, format!("{DEVICE} {why}")));
    if version.abi != abi::ABI_VERSION || version.features & abi::FEATURE_BLANK == 0 {
        return unfit("is of another version");
    }
    if version.features & abi::FEATURE_NO_FLUSH != 0 {
        return unfit("was built without TLB flushes, for tests only");
    }
    if version.page_size as usize != PAGE_SIZE || version.max_ranges == 0 {
        return unfit("has pages of another size");
    }
    Ok(version.max_ranges as usize)
}

/// Maps an area as large as the kernel permits.
fn map(device: &File, wanted: usize, least: usize) -> io::Result<(NonNull<u8>, usize)> {
    let mut bytes = wanted.max(least);
    loop {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let descriptor = device.as_raw_fd();
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, descriptor, 0) };
        if address != libc::MAP_FAILED {
            return NonNull::new(address.cast()).map(|base| (base, bytes)).ok_or(io::ErrorKind::Other.into());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ENOMEM) || bytes == least {
            return Err(error);
        }
        bytes = (bytes / 2 / PAGE_SIZE * PAGE_SIZE).max(least);
    }
}

/// A call to the device.
///
/// # Safety
/// The structure is the one that the request reads or fills, and everything to which it refers is live for the call.
unsafe fn control<T>(device: &File, request: u64, structure: *mut T) -> io::Result<()> {
    // SAFETY: passed on from the caller.
    let outcome: c_int = unsafe { libc::ioctl(device.as_raw_fd(), request as c_ulong, structure) };
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
