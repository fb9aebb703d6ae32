//! Giving the memory of evicted pages back to the system, many pages at a time.
//!
//! The address space stays reserved: a released page reads as zeroes, and writing to it makes it resident again. There
//! are three methods, and which of them works is tested at run time:
//! - the device `/dev/exmap`, whose pages come by [`Releaser::supply`] and not by writing to them: one system call and
//!   one TLB flush for a whole batch, on the older kernels for which the module exists;
//! - `process_madvise` on the own process: one system call and one TLB flush for a whole batch (Linux 6.13);
//! - `madvise`, one call per range: works everywhere.
//!
//! A [`Releaser`] belongs to the process that made it. In a child made by `fork` it must not be used; the
//! mapping of pages does not exist there either.

use crate::exmap::{Exmap, ExmapCounters};
use crate::memory::{Mapping, PageRange};
use crate::{ReleaseMethod, VmError};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vellum_base::PAGE_SIZE;

/// How many ranges go into one call: half of what the kernel accepts; more no longer pays.
const RANGES_PER_CALL: usize = 512;

impl FromStr for ReleaseMethod {
    type Err = VmError;

    fn from_str(name: &str) -> Result<Self, VmError> {
        match name {
            "process_madvise" => Ok(Self::ProcessMadvise),
            "madvise" => Ok(Self::Madvise),
            "exmap" => Ok(Self::Exmap),
            _ => Err(VmError::UnknownName {
                what: "way to release pages",
                name: name.to_owned(),
                known: "process_madvise, madvise, exmap",
            }),
        }
    }
}

/// Releases batches of pages by the method that works here.
#[derive(Debug)]
pub struct Releaser {
    way: Way,
    /// How many batches it left unfinished, so that `madvise` had to do the rest.
    fallbacks: AtomicU64,
}

/// What each method needs.
#[derive(Debug)]
enum Way {
    /// A handle on this process.
    ProcessMadvise(OwnedFd),
    Madvise,
    Exmap(Arc<Exmap>),
}

impl Releaser {
    /// Finds the best method that works here for anonymous memory, or uses the one that is `forced`.
    ///
    /// # Errors
    /// [`VmError::ReleaseUnavailable`] if the forced method does not work here, or for anonymous memory: see
    /// [`PageMemory`](crate::PageMemory) for `exmap`.
    pub fn new(forced: Option<ReleaseMethod>) -> Result<Self, VmError> {
        let way = match forced {
            Some(ReleaseMethod::Madvise) => Way::Madvise,
            None => working_process_handle().map_or(Way::Madvise, Way::ProcessMadvise),
            Some(method @ ReleaseMethod::ProcessMadvise) => {
                let unavailable = |source| VmError::ReleaseUnavailable { method, source };
                Way::ProcessMadvise(working_process_handle().map_err(unavailable)?)
            }
            Some(method @ ReleaseMethod::Exmap) => {
                let source = io::Error::new(io::ErrorKind::Unsupported, "this memory is not of the device");
                return Err(VmError::ReleaseUnavailable { method, source });
            }
        };
        Ok(Self { way, fallbacks: AtomicU64::new(0) })
    }

    /// The releaser that supplies memory to the pages of an area, and takes it away.
    pub(crate) fn of_exmap(area: Arc<Exmap>) -> Self {
        Self { way: Way::Exmap(area), fallbacks: AtomicU64::new(0) }
    }

    /// The method in use.
    pub fn method(&self) -> ReleaseMethod {
        match self.way {
            Way::ProcessMadvise(_) => ReleaseMethod::ProcessMadvise,
            Way::Madvise => ReleaseMethod::Madvise,
            Way::Exmap(_) => ReleaseMethod::Exmap,
        }
    }

    /// Supplies memory to all pages of the ranges that have none, so that they may be written to. Their contents are
    /// then arbitrary. Does nothing where page faults supply memory.
    ///
    /// # Errors
    /// [`VmError::Supply`] for the first range that did not get all it lacks; pages that came for it and others stay.
    pub fn supply(&self, ranges: &[PageRange]) -> Result<(), VmError> {
        self.supply_counted(ranges).map(drop)
    }

    /// [`supply`](Self::supply) for one range of released pages, which then read as zeroes.
    ///
    /// # Errors
    /// As for [`supply`](Self::supply).
    ///
    /// # Safety
    /// The range lies in the mapping, no reference into it exists, and only optimistic readers access it during the
    /// call.
    pub unsafe fn supply_zeroes(&self, range: PageRange) -> Result<(), VmError> {
        if self.supply_counted(&[range])? > 0 {
            // SAFETY: passed on from the caller, and all pages have memory now.
            unsafe { range.address.write_bytes(0, range.bytes) };
        }
        Ok(())
    }

    /// [`supply`](Self::supply); returns how many pages came.
    fn supply_counted(&self, ranges: &[PageRange]) -> Result<usize, VmError> {
        let Way::Exmap(area) = &self.way else { return Ok(0) };
        let ranges = || ranges.iter().copied().filter(|range| range.bytes > 0);
        let outcomes = ranges().zip(area.supply(ranges())).map(|(range, outcome)| {
            let PageRange { address, bytes } = range;
            outcome.map_err(|source| VmError::Supply { address: address.addr(), bytes, source })
        });
        outcomes.sum()
    }

    /// What the device has done, if the method is `exmap`.
    pub fn exmap_counters(&self) -> Option<ExmapCounters> {
        match &self.way {
            Way::Exmap(area) => area.counters().ok(),
            Way::ProcessMadvise(_) | Way::Madvise => None,
        }
    }

    /// How many batches the method left unfinished, so that plain `madvise` had to do the rest.
    pub fn fallback_count(&self) -> u64 {
        // Relaxed: a statistic that orders nothing.
        self.fallbacks.load(Ordering::Relaxed)
    }

    /// Gives the physical memory of the ranges back; they read as zero afterwards.
    ///
    /// Ranges that are adjacent in the given order are joined. An empty list does nothing.
    ///
    /// # Errors
    /// [`VmError::Release`] for the first range that the kernel would not release. Later ranges may or may not have
    /// been released.
    ///
    /// # Safety
    /// Every range lies in a live [`Mapping`], no reference into it exists, and only optimistic readers, which validate
    /// what they read, access it during the call.
    pub unsafe fn release(&self, ranges: &[PageRange]) -> Result<(), VmError> {
        let mut batch = Batch::new();
        for range in ranges.iter().filter(|range| range.bytes > 0) {
            if !batch.add(*range) {
                // SAFETY: the batch holds ranges that the caller vouches for.
                unsafe { self.release_batch(&mut batch)? };
                batch.add(*range);
            }
        }
        // SAFETY: as above.
        unsafe { self.release_batch(&mut batch) }
    }

    /// Releases the ranges in the batch and empties it.
    ///
    /// # Safety
    /// As for [`release`](Self::release).
    unsafe fn release_batch(&self, batch: &mut Batch) -> Result<(), VmError> {
        match &self.way {
            Way::ProcessMadvise(process) => {
                // SAFETY: passed on from the caller.
                while !batch.is_empty() && unsafe { self.advance(process, batch) } {}
            }
            Way::Exmap(area) if !batch.is_empty() => {
                // SAFETY: passed on from the caller.
                match unsafe { area.release(batch.ranges()) } {
                    Ok(()) => batch.clear(),
                    // `madvise` works on the area, too.
                    Err(_) => self.note_fallback(),
                }
            }
            Way::Madvise | Way::Exmap(_) => {}
        }
        while let Some(range) = batch.first() {
            // SAFETY: passed on from the caller.
            unsafe { release_one(range) }.map_err(|source| VmError::Release {
                address: range.address.addr(),
                bytes: range.bytes,
                source,
            })?;
            batch.done(range.bytes);
        }
        batch.clear();
        Ok(())
    }

    /// Makes one call of `process_madvise`; returns whether another one is worth trying.
    ///
    /// # Safety
    /// As for [`release`](Self::release).
    unsafe fn advance(&self, process: &OwnedFd, batch: &mut Batch) -> bool {
        // SAFETY: passed on from the caller.
        match unsafe { process_madvise(process, batch.remaining()) } {
            // The kernel takes at most 2 GiB per call, so partial progress is normal.
            Ok(bytes) if bytes > 0 => {
                batch.done(bytes);
                true
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => true,
            _ => {
                self.note_fallback();
                false
            }
        }
    }

    fn note_fallback(&self) {
        self.fallbacks.fetch_add(1, Ordering::Relaxed); // a statistic
    }
}

/// Ranges on their way to the kernel, in the form that it takes.
struct Batch {
    /// `vectors[..filled]` are initialised.
    vectors: [MaybeUninit<libc::iovec>; RANGES_PER_CALL],
    filled: usize,
    /// How many vectors are done.
    released: usize,
}

impl Batch {
    fn new() -> Self {
        Self { vectors: [const { MaybeUninit::uninit() }; RANGES_PER_CALL], filled: 0, released: 0 }
    }

    /// Adds a range; false if there is no room.
    fn add(&mut self, range: PageRange) -> bool {
        if let Some(last) = self.remaining_mut().last_mut()
            && last.iov_base.addr() + last.iov_len == range.address.addr()
        {
            last.iov_len += range.bytes;
            return true;
        }
        let Some(slot) = self.vectors.get_mut(self.filled) else { return false };
        slot.write(libc::iovec { iov_base: range.address.cast(), iov_len: range.bytes });
        self.filled += 1;
        true
    }

    /// The ranges still to be released.
    fn remaining(&self) -> &[libc::iovec] {
        let vectors = self.vectors.get(self.released..self.filled).unwrap_or_default();
        // SAFETY: the vectors up to `filled` are initialised, and `released` never passes it.
        unsafe { vectors.assume_init_ref() }
    }

    fn remaining_mut(&mut self) -> &mut [libc::iovec] {
        let vectors = self.vectors.get_mut(self.released..self.filled).unwrap_or_default();
        // SAFETY: as above.
        unsafe { vectors.assume_init_mut() }
    }

    /// The remaining vectors, as ranges.
    fn ranges(&self) -> impl Iterator<Item = PageRange> + '_ {
        let range =
            |vector: &libc::iovec| PageRange { address: vector.iov_base.cast(), bytes: vector.iov_len };
        self.remaining().iter().map(range)
    }

    fn first(&self) -> Option<PageRange> {
        self.ranges().next()
    }

    fn is_empty(&self) -> bool {
        self.released == self.filled
    }

    fn clear(&mut self) {
        self.filled = 0;
        self.released = 0;
    }

    /// Takes `bytes` bytes off the beginning of the remaining ranges.
    fn done(&mut self, mut bytes: usize) {
        while bytes > 0 {
            let Some(first) = self.remaining_mut().first_mut() else { return };
            if bytes < first.iov_len {
                first.iov_base = first.iov_base.wrapping_byte_add(bytes);
                first.iov_len -= bytes;
                return;
            }
            bytes -= first.iov_len;
            self.released += 1;
        }
    }
}

/// Releases one range with `madvise`.
///
/// # Safety
/// As for [`Releaser::release`].
unsafe fn release_one(range: PageRange) -> io::Result<()> {
    /// How often to retry when the kernel is temporarily short of resources.
    const ATTEMPTS: usize = 100;
    for _ in 0..ATTEMPTS {
        // SAFETY: passed on from the caller; the memory is anonymous, so it only turns to zeroes.
        if unsafe { libc::madvise(range.address.cast(), range.bytes, libc::MADV_DONTNEED) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EAGAIN) => std::thread::yield_now(),
            _ => return Err(error),
        }
    }
    Err(io::Error::from_raw_os_error(libc::EAGAIN))
}

/// Calls `process_madvise` with `MADV_DONTNEED`; returns how many bytes it released.
///
/// # Safety
/// As for [`Releaser::release`]; `process` refers to this process.
unsafe fn process_madvise(process: &OwnedFd, vectors: &[libc::iovec]) -> io::Result<usize> {
    // SAFETY: passed on from the caller; the vectors are live for the length of the call.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            process.as_raw_fd(),
            vectors.as_ptr(),
            vectors.len(),
            libc::MADV_DONTNEED,
            0usize,
        )
    };
    usize::try_from(outcome).map_err(|_| io::Error::last_os_error())
}

/// A handle on this process with which `process_madvise` is proven to release pages.
fn working_process_handle() -> io::Result<OwnedFd> {
    // SAFETY: asks for a new descriptor of the own process.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // A descriptor fits: the kernel stores them in an int.
    // SAFETY: the kernel has just made this descriptor for us alone.
    let process = unsafe { OwnedFd::from_raw_fd(descriptor as i32) };
    prove(&process)?;
    Ok(process)
}

/// Releases two of three written pages and checks the result.
fn prove(process: &OwnedFd) -> io::Result<()> {
    let scratch = Mapping::reserve(3 * PAGE_SIZE, "a probe").map_err(io::Error::other)?;
    let page = |number: usize| scratch.base().as_ptr().wrapping_add(number * PAGE_SIZE);
    let vector = |number| libc::iovec { iov_base: page(number).cast(), iov_len: PAGE_SIZE };
    for number in 0..3 {
        // SAFETY: the three pages are ours alone.
        unsafe { page(number).write_volatile(1) };
    }
    // SAFETY: as above, and no reference into them exists.
    let bytes = unsafe { process_madvise(process, &[vector(0), vector(2)])? };
    // SAFETY: as above. Volatile, because the kernel changed them and the compiler does not know.
    let seen = [0, 1, 2].map(|number| unsafe { page(number).read_volatile() });
    if bytes == 2 * PAGE_SIZE && seen == [0, 1, 0] {
        Ok(())
    } else {
        Err(io::Error::other(format!("it released {bytes} of {} bytes", 2 * PAGE_SIZE)))
    }
}
