//! Room for a file that grows: its storage is allocated, so that no store ends in a signal, and its memory is mapped at
//! once.
//!
//! Memory that stands in for persistent memory gets huge pages, which persistent memory has anyway. While the file grows
//! that is cheap, because nothing has to be copied: of each huge page one small page is made, and the system turns that
//! into a huge one. Where it has none to give, or only slowly, small pages are allocated, and the background
//! ([`tend`](Medium::tend)) asks again later.

use super::{FileMedium, HUGE_PAGE_BYTES, Mapped};
use crate::{medium::Medium, options::Persistence};
use std::{
    io,
    os::fd::AsRawFd as _,
    time::{Duration, Instant},
};
use vellum_base::PAGE_SIZE;
use vellum_vm::{SpareHugePage, check_size_limit};

/// Since Linux 5.14; not every version of the C library's interface has a name for it.
const MADV_POPULATE_WRITE: libc::c_int = 23;
/// Since Linux 6.1; likewise.
const MADV_COLLAPSE: libc::c_int = 25;

/// A huge page that takes longer than this is not worth the wait: small pages for as much memory take about as long.
const HUGE_PAGE_TIME_MAX: Duration = Duration::from_millis(1);
/// How many times a file grows by small pages after that, before huge ones are tried again.
const GROWTHS_SKIPPED: u32 = 7;

impl FileMedium {
    /// Allocates storage for the bytes from `from` to `to`: a store to a hole could otherwise end in a signal.
    fn allocate(&self, from: u64, to: u64) -> io::Result<()> {
        let (from, bytes) = (from as libc::off_t, (to - from) as libc::off_t);
        loop {
            // SAFETY: the descriptor is open; no memory is involved.
            if unsafe { libc::fallocate(self.file.as_raw_fd(), 0, from, bytes) } == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EOPNOTSUPP) => return self.write_zeroes(from as u64, to),
                _ => return Err(error),
            }
        }
    }

    /// Allocates storage wherever a file has none, as a copy of it may have left out pages of zeroes.
    pub(super) fn fill_holes(&self, size: u64) -> io::Result<()> {
        let seek = |from: u64, what| {
            // SAFETY: the descriptor is open; no memory is involved.
            let found = unsafe { libc::lseek(self.file.as_raw_fd(), from as libc::off_t, what) };
            u64::try_from(found).map_err(|_| io::Error::last_os_error())
        };
        let mut at = 0;
        while at < size {
            let from = match seek(at, libc::SEEK_HOLE) {
                Ok(from) if from < size => from,
                // File systems that do not know their holes say that there is none, or that they do not know.
                Ok(_) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(()),
                Err(error) => return Err(error),
            };
            at = match seek(from, libc::SEEK_DATA) {
                Err(error) if error.raw_os_error() == Some(libc::ENXIO) => size,
                found => found?.min(size),
            };
            self.allocate(from, at)?;
        }
        Ok(())
    }

    /// The fallback of [`allocate`](Self::allocate) on file systems that do not support it.
    fn write_zeroes(&self, from: u64, to: u64) -> io::Result<()> {
        use std::os::unix::fs::FileExt as _;
        let zeroes = vec![0; 1 << 16];
        let mut at = from;
        while at < to {
            let bytes = (to - at).min(zeroes.len() as u64) as usize;
            self.file.write_all_at(zeroes.get(..bytes).unwrap_or(&zeroes), at)?;
            at += bytes as u64;
        }
        Ok(())
    }

    /// Maps all pages of new memory at once: mapping them one by one, at their first use, would cost a writer several
    /// times as much. A hint: pages that are not mapped now are mapped then.
    pub(super) fn populate(&self, from: u64, to: u64) {
        if self.persistence == Persistence::Msync {
            // Pages that were written to would have to be written back.
            return;
        }
        let from = from.next_multiple_of(PAGE_SIZE as u64);
        let _ = self.advise(from, to.saturating_sub(from) as usize, MADV_POPULATE_WRITE);
    }

    /// Makes the file longer; on failure its length is unchanged. What is mapped is known to `mapped`.
    pub(super) fn extend(&self, from: u64, to: u64, mapped: &mut Mapped) -> io::Result<()> {
        // The process would be ended by a signal.
        check_size_limit(to)?;
        self.populate_huge(from, to, mapped);
        // Also where there are huge pages: this alone says that storage was allocated.
        let extended = self.allocate(from, to);
        if extended.is_err() {
            mapped.huge = mapped.huge.min(from);
            let _ = self.file.set_len(from);
        }
        extended
    }

    /// Whether the memory only stands in for persistent memory, so that the system has to be asked for huge pages.
    fn is_stand_in(&self) -> bool {
        self.persistence != Persistence::Msync && !self.confirmed && !self.is_device
    }

    /// Gives huge pages to the part of the file that does not exist yet, which no thread uses. A hint: nothing is
    /// certain afterwards but that what was there before is the same.
    fn populate_huge(&self, from: u64, to: u64, mapped: &mut Mapped) {
        let huge = HUGE_PAGE_BYTES as u64;
        let (first, end) = (from.next_multiple_of(huge), to / huge * huge);
        if !self.is_stand_in() || first >= end || self.file.set_len(to).is_err() {
            return;
        }
        if self.map_up_to(to, mapped).is_err() {
            return;
        }
        // Memory that the system has to fetch first, such as a hypervisor's, takes longer by huge pages than by small
        // ones, of which the system has some at hand. The first huge page tells.
        if mapped.growths_to_skip > 0 {
            mapped.growths_to_skip -= 1;
            return;
        }
        let begin = Instant::now();
        let mut reached = first;
        while reached < end && self.make_huge_page(reached).is_ok() {
            reached += huge;
            if begin.elapsed() > HUGE_PAGE_TIME_MAX * ((reached - first) / huge) as u32 {
                mapped.growths_to_skip = GROWTHS_SKIPPED;
                break;
            }
        }
        if mapped.huge >= from {
            mapped.huge = mapped.huge.max(reached);
        }
    }

    /// Makes a huge page where there is no memory yet: one small page, because a part of a file without any is not
    /// turned into a huge page, and then the huge one.
    fn make_huge_page(&self, at: u64) -> io::Result<()> {
        self.advise(at, PAGE_SIZE, MADV_POPULATE_WRITE)?;
        self.collapse(at)
    }

    /// Makes the pages from byte `at` on into one huge page.
    fn collapse(&self, at: u64) -> io::Result<()> {
        self.advise(at, HUGE_PAGE_BYTES, MADV_COLLAPSE)
    }

    /// Advises the system on a range that is mapped; the advice given here leaves its contents as they are.
    fn advise(&self, from: u64, bytes: usize, advice: libc::c_int) -> io::Result<()> {
        let address = self.memory.address(from).cast_mut();
        // SAFETY: the range is mapped and its contents stay the same, also for threads that use them meanwhile.
        let outcome = unsafe { libc::madvise(address.cast(), bytes, advice) };
        if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Requests huge pages for memory that has none yet: without them reading records is slower, but correct. Returns
    /// whether there was any such memory.
    pub(super) fn tend_memory(&self) -> bool {
        let is_done = |mapped: &Mapped| mapped.huge.saturating_add(HUGE_PAGE_BYTES as u64) > self.capacity();
        if !self.is_stand_in() || is_done(&self.lock_mapped()) {
            return false;
        }
        // Threads that touch the memory wait while it is moved, but not while a huge page is found for it.
        if let Some(spare) = self.spare.get_or_init(|| SpareHugePage::reserve(HUGE_PAGE_BYTES).ok()) {
            spare.find();
        }
        // Held, so that no thread cuts the file meanwhile.
        let mut mapped = self.lock_mapped();
        if is_done(&mapped) {
            return false;
        }
        // A system that does not support this is not asked again; where no huge page is available now, small ones will
        // do.
        let refused = self.collapse(mapped.huge).err().and_then(|error| error.raw_os_error());
        let is_unknown = refused == Some(libc::EINVAL);
        mapped.huge = if is_unknown { u64::MAX } else { mapped.huge + HUGE_PAGE_BYTES as u64 };
        !is_unknown
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{
        file::Opening,
        options::{Options, Persistence},
    };
    use std::{os::unix::fs::MetadataExt as _, path::Path, sync::atomic::Ordering};

    #[test]
    fn all_of_a_file_that_grows_has_storage_and_reads_as_zeroes() {
        const MIB: u64 = 1 << 20;
        let options = Options {
            chunk_bytes: 16 * MIB,
            growth_bytes: 5 * MIB,
            capacity_bytes: 64 * MIB,
            persistence: Some(Persistence::Dax),
            vouch_for_memory: true,
            ..Options::default()
        };
        // A tmpfs gives huge pages, other file systems do not.
        let folders = ["/dev/shm", "/tmp"].into_iter().filter(|folder| Path::new(folder).is_dir());
        for folder in folders.filter_map(|folder| tempfile::tempdir_in(folder).ok()) {
            let medium = match FileMedium::open(&folder.path().join("store"), Opening::Create, &options) {
                Ok(medium) => medium,
                Err(error) => return eprintln!("not tested: {error}"),
            };
            for round in 1..=8 {
                let before = medium.capacity();
                medium.grow(before + 1).unwrap();
                let (capacity, found) = (medium.capacity(), medium.file.metadata().unwrap());
                assert_eq!((capacity, found.len()), (round * 5 * MIB, capacity));
                assert!(found.blocks() * 512 >= capacity, "{} bytes of {capacity}", found.blocks() * 512);
                let words = medium.memory().words(before, (capacity - before) as usize / 8);
                assert!(words.iter().all(|word| word.swap(1, Ordering::Relaxed) == 0));
            }
            while medium.tend() {}
            let words = medium.memory().words(0, medium.capacity() as usize / 8);
            assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 1));
            let reached = medium.lock_mapped().huge;
            assert!(reached == u64::MAX || reached == 40 * MIB, "{reached}");
            // What was cut off comes back as zeroes.
            medium.shrink(4 * MIB).unwrap();
            medium.grow(11 * MIB).unwrap();
            let words = medium.memory().words(5 * MIB, 10 * MIB as usize / 8);
            assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        }
    }
}
