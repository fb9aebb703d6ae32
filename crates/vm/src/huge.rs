//! Huge pages for parts of a mapping of small pages.
//!
//! The pages of a database come and go one by one, so their mapping is kept free of huge pages. But where a whole
//! aligned run of them (2 MiB on x86-64) is in memory and likely to stay, one huge page serves it with one entry of the
//! TLB instead of 512, and with one level less to walk on a miss. [`Mapping::collapse`] makes the kernel copy such a
//! run into a huge page, and [`Mapping::split`] turns it back into small pages, which can be released one by one.
//! Neither changes the contents of the memory, and both may run while other threads use it.
//!
//! Needs `MADV_COLLAPSE` of Linux 6.1.

use crate::{
    VmError,
    memory::{MADV_POPULATE_WRITE, Mapping},
};
use std::sync::OnceLock;
use vellum_base::PAGE_SIZE;

/// Not every version of the C library's interface has these constants yet.
const MADV_COLD: libc::c_int = 20;
const MADV_COLLAPSE: libc::c_int = 25;

/// The size of a huge page that the page table maps with one entry; `None` if the system has none.
pub fn huge_page_bytes() -> Option<usize> {
    static BYTES: OnceLock<Option<usize>> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").ok()?;
        let bytes: usize = text.trim().parse().ok()?;
        (bytes.is_power_of_two() && bytes > PAGE_SIZE).then_some(bytes)
    })
}

/// The result of an attempt to back a run with a huge page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Collapse {
    /// The run is backed by a huge page.
    Done,
    /// Not at the moment: for example, a device reads or writes some of its pages.
    Busy,
    /// The system has no huge page to give.
    NoMemory,
    /// The kernel does not support it, or the range is not possible.
    Refused,
}

impl Mapping {
    /// The offset of the first byte at which a huge page may begin.
    pub fn first_huge_page(&self, huge_page_bytes: usize) -> usize {
        self.base().as_ptr().align_offset(huge_page_bytes)
    }

    /// Backs the `bytes` bytes at `offset`, where a huge page may begin, with one huge page. Memory that was missing is
    /// filled with zeroes.
    ///
    /// A thread that touches the memory meanwhile waits: for half a millisecond while all is copied, and ten times as
    /// long if the host of a virtual machine must find the memory of the huge page (see [`SpareHugePage`]).
    pub fn collapse(&self, offset: usize, bytes: usize) -> Collapse {
        self.back_with_huge_page(offset, bytes, &[MADV_COLLAPSE])
    }

    /// Backs the `bytes` bytes at `offset`, where a huge page may begin and where there is no memory yet, with one huge
    /// page of zeroes.
    ///
    /// This takes a tenth of the time of [`collapse`](Self::collapse), as nothing is copied.
    pub fn populate_huge(&self, offset: usize, bytes: usize) -> Collapse {
        // The first step succeeds with small pages if no huge page is available; the second changes nothing if one was.
        self.back_with_huge_page(offset, bytes, &[MADV_POPULATE_WRITE, MADV_COLLAPSE])
    }

    fn back_with_huge_page(&self, offset: usize, bytes: usize, steps: &[libc::c_int]) -> Collapse {
        // The kernel collapses only where huge pages are not forbidden. Forbidding them again joins the part with the
        // rest of the mapping.
        let allowed = self.advise_part(offset, bytes, libc::MADV_HUGEPAGE);
        let advised = |()| steps.iter().try_for_each(|step| self.advise_part(offset, bytes, *step));
        let collapsed = allowed.and_then(advised);
        // Cannot fail where the opposite succeeded; if it does, the mapping stays in parts, which is only slower.
        let _ = self.advise_part(offset, bytes, libc::MADV_NOHUGEPAGE);
        match collapsed.map_err(|error| error.raw_os_error()) {
            Ok(()) => Collapse::Done,
            Err(Some(libc::EAGAIN | libc::EBUSY | libc::EINTR)) => Collapse::Busy,
            Err(Some(libc::ENOMEM)) => Collapse::NoMemory,
            Err(_) => Collapse::Refused,
        }
    }

    /// Makes sure that no huge page spans the page at `offset`: releasing the page then frees its memory at once, and
    /// not only when the whole huge page is released.
    pub fn split(&self, offset: usize) {
        // Advice about a part of a huge page makes the kernel split it. The advice that the part is rarely used is
        // true: it is about to be released. If the kernel refuses, the memory is only freed a little later.
        let _ = self.advise_part(offset, PAGE_SIZE, MADV_COLD);
    }
}

/// Makes sure that the system has a huge page at hand when a run is [collapsed](Mapping::collapse).
///
/// A virtual machine may have returned its free memory to its host. Then the first use of each small page in a free huge
/// page waits for the host, 5 ms in all, and a collapse would have the threads wait that touch the run. So the thread that is
/// about to collapse a run first uses a huge page that no other thread knows of, and frees it. The system keeps the huge
/// pages that a processor freed last for what that processor wants next.
#[derive(Debug)]
pub struct SpareHugePage {
    mapping: Mapping,
    offset: usize,
    bytes: usize,
}

impl SpareHugePage {
    /// Reserves address space for the page; `bytes` is the size of a huge page.
    ///
    /// # Errors
    /// As for [`Mapping::reserve`].
    pub fn reserve(bytes: usize) -> Result<Self, VmError> {
        let mapping = Mapping::reserve(bytes.saturating_mul(2), "a spare huge page")?;
        let offset = mapping.first_huge_page(bytes);
        // If the system refuses, it has no huge pages, and none will be collapsed.
        let _ = mapping.advise_part(offset, bytes, libc::MADV_HUGEPAGE);
        Ok(Self { mapping, offset, bytes })
    }

    /// Has the system find a huge page and clear it, and frees it. Where there is none, nothing happens.
    pub fn find(&self) {
        if self.mapping.advise_part(self.offset, self.bytes, MADV_POPULATE_WRITE).is_ok() {
            let page = self.mapping.base().as_ptr().wrapping_add(self.offset);
            // SAFETY: the page lies in the mapping, and nothing is ever read from it or written to it.
            let _ = unsafe { libc::madvise(page.cast(), self.bytes, libc::MADV_DONTNEED) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PageRange, Releaser};
    use std::{
        os::unix::fs::FileExt,
        sync::{Mutex, PoisonError},
    };

    /// Held by each test that has huge pages: the kernel joins neighbouring areas, and counts theirs together.
    static TURN: Mutex<()> = Mutex::new(());

    /// The number of bytes backed by huge pages in the area around `address`, according to the kernel.
    fn huge_bytes(address: usize) -> u64 {
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in text.lines() {
            let range = line.split_whitespace().next().and_then(|word| word.split_once('-'));
            if let Some((start, end)) = range
                && let (Ok(start), Ok(end)) =
                    (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16))
            {
                inside = (start..end).contains(&address);
            } else if inside && let Some(rest) = line.strip_prefix("AnonHugePages:") {
                return rest.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024;
            }
        }
        0
    }

    /// How many of the bytes from `address` on have memory.
    fn resident_bytes(address: usize, bytes: usize) -> usize {
        let mut entries = vec![0; bytes / PAGE_SIZE * 8];
        let map = std::fs::File::open("/proc/self/pagemap").unwrap();
        map.read_exact_at(&mut entries, (address / PAGE_SIZE * 8) as u64).unwrap();
        // Bit 63 of a page's 64 bits says that the page is in memory.
        entries.chunks_exact(8).filter(|entry| entry[7] & 0x80 != 0).count() * PAGE_SIZE
    }

    #[test]
    fn a_run_is_collapsed_and_split_and_keeps_its_contents() {
        let Some(bytes) = huge_page_bytes() else { return };
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mapping = Mapping::reserve(4 * bytes, "test").unwrap().for_pages().unwrap();
        let offset = mapping.first_huge_page(bytes);
        let start = mapping.base().as_ptr().wrapping_add(offset);
        // SAFETY: the run lies in the mapping, and no other code knows of it.
        let run = unsafe { std::slice::from_raw_parts_mut(start, bytes) };
        for (index, page) in run.chunks_mut(PAGE_SIZE).enumerate() {
            page.fill(index as u8 | 1);
        }
        match mapping.collapse(offset, bytes) {
            Collapse::Done => assert_eq!(huge_bytes(start.addr()), bytes as u64),
            // A system may have no huge page free, or not know how.
            other => return eprintln!("not collapsed: {other:?}"),
        }
        assert!(run.chunks(PAGE_SIZE).enumerate().all(|(index, page)| page[0] == index as u8 | 1));
        assert_eq!(resident_bytes(start.addr(), bytes), bytes);
        mapping.split(offset + 5 * PAGE_SIZE);
        assert_eq!(huge_bytes(start.addr()), 0);
        let page = PageRange { address: start.wrapping_add(5 * PAGE_SIZE), bytes: PAGE_SIZE };
        // SAFETY: no thread looks at the page meanwhile.
        unsafe { Releaser::new(None).unwrap().release(&[page]).unwrap() };
        assert_eq!(resident_bytes(start.addr(), bytes), bytes - PAGE_SIZE);
        for (index, page) in run.chunks(PAGE_SIZE).enumerate() {
            assert_eq!(page[0], if index == 5 { 0 } else { index as u8 | 1 });
        }
    }

    #[test]
    fn a_run_without_memory_gets_a_huge_page_of_zeroes() {
        let Some(bytes) = huge_page_bytes() else { return };
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mapping = Mapping::reserve(4 * bytes, "test").unwrap().for_pages().unwrap();
        let offset = mapping.first_huge_page(bytes);
        let start = mapping.base().as_ptr().wrapping_add(offset);
        match mapping.populate_huge(offset, bytes) {
            Collapse::Done => assert_eq!(huge_bytes(start.addr()), bytes as u64),
            other => return eprintln!("no huge page: {other:?}"),
        }
        // SAFETY: the run lies in the mapping, and no other code knows of it.
        let run = unsafe { std::slice::from_raw_parts_mut(start, bytes) };
        assert!(run.iter().all(|byte| *byte == 0));
        run.fill(7);
        assert_eq!(mapping.populate_huge(offset, bytes), Collapse::Done);
        assert!(run.iter().all(|byte| *byte == 7), "what was there stays");
    }

    #[test]
    fn a_spare_huge_page_is_free_again_once_found() {
        let Some(bytes) = huge_page_bytes() else { return };
        let spare = SpareHugePage::reserve(bytes).unwrap();
        for _ in 0..3 {
            spare.find();
            let page = spare.mapping.base().as_ptr().wrapping_add(spare.offset);
            assert_eq!(page.addr() % bytes, 0);
            assert_eq!(resident_bytes(page.addr(), bytes), 0);
        }
    }

    #[test]
    fn what_lies_beyond_the_mapping_is_refused() {
        let mapping = Mapping::reserve(4 << 20, "test").unwrap();
        assert_eq!(mapping.collapse(4 << 20, 2 << 20), Collapse::Refused);
        mapping.split(usize::MAX);
    }
}
