//! The design of Texas (Singhal, Kakkad, Wilson, *Texas: an efficient, portable persistent store*, 1992): pointers are swizzled at page-fault
//! time.
//!
//! Address space is reserved for all pages of a file, and protected. The first touch of a page is a fault (`SIGSEGV`); its handler reads the
//! page, turns every reference in it into an address, and lifts the protection. So the program follows plain pointers. A reference
//! in the file is the number of an object, and a table says where that is.
//!
//! Where Texas leaves it to the operating system to page out what does not fit, here so many pages stay as a limit says: those that came
//! first go first (`MADV_DONTNEED`), for a page that was only swizzled can be read and swizzled again. That is the best that could
//! be made of it: nothing is written, which a system that takes swizzled pages for changed ones would do. The file is read past the system's
//! cache, as the pool reads its own. One thread, and no changes.

use super::image::{self, AssemblyNode, CompositeNode, ConnectionNode, Image, PartNode};
use super::plan::Plan;
use super::{Assembly, Composite, Graph, Part};
use crate::Result;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use vellum_base::PAGE_SIZE;

/// A database whose pages are swizzled at the first touch.
pub struct TexasGraph {
    region: *mut Region,
}

/// The region that faults are about; one at a time.
static REGION: AtomicPtr<Region> = AtomicPtr::new(ptr::null_mut());

/// Reserved addresses, and what their handler needs. It allocates nothing and takes no lock.
struct Region {
    base: *mut u8,
    bytes: usize,
    file: File,
    objects: Vec<u64>,
    references: Vec<Vec<u16>>,
    /// The pages that are in memory, in the order in which they came, as a ring.
    resident: Vec<u32>,
    count: usize,
    oldest: usize,
    faults: u64,
    /// What was there before.
    former: libc::sigaction,
}

impl TexasGraph {
    /// Builds a database in a file, of which so many bytes may be in memory.
    ///
    /// # Errors
    /// If the system refuses addresses, the handler or the file.
    pub fn build(plan: &Plan, path: &Path, pool: u64) -> Result<Self> {
        let Image { bytes, objects, references, .. } = Image::build(plan);
        let mut file = File::create(path)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
        let file = direct.or_else(|_| File::open(path))?;
        let limit = (pool as usize / PAGE_SIZE).clamp(8, bytes.len() / PAGE_SIZE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping that overlaps nothing.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes.len(), libc::PROT_NONE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().into());
        }
        let mut region = Box::new(Region {
            base: base.cast(),
            bytes: bytes.len(),
            file,
            objects,
            references,
            resident: vec![0; limit],
            count: 0,
            oldest: 0,
            faults: 0,
            // SAFETY: all zero is a valid one.
            former: unsafe { std::mem::zeroed() },
        });
        // SAFETY: as above.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        // SAFETY: both structures are there for the call; the handler does nothing that a handler may not.
        if unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut region.former) } != 0 {
            return Err(io::Error::last_os_error().into());
        }
        let region = Box::into_raw(region);
        REGION.store(region, Ordering::Relaxed);
        Ok(Self { region })
    }

    /// Makes this one the region that faults are about: before a run of operations, if there are several.
    fn address(&self, object: usize) -> *const u8 {
        // SAFETY: the region lives as long as `self`, and only the handler changes it, on this thread.
        let region = unsafe { &*self.region };
        region.base.wrapping_add(region.objects[object] as usize)
    }
}

impl Drop for TexasGraph {
    fn drop(&mut self) {
        REGION.store(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: made by `Box::into_raw`, and used no more. The mapping has no users left.
        unsafe {
            let region = Box::from_raw(self.region);
            libc::sigaction(libc::SIGSEGV, &raw const region.former, ptr::null_mut());
            libc::munmap(region.base.cast(), region.bytes);
        }
    }
}

/// Brings the page of an address, or gives way to what is done with other faults.
extern "C" fn handle(signal: libc::c_int, information: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let region = REGION.load(Ordering::Relaxed);
    // SAFETY: the system gives the handler a valid structure; the region lives as long as it is named there, and no code of this
    // thread has a reference to it while it touches a page.
    let is_brought = !region.is_null()
        && unsafe {
            let address = (*information).si_addr().addr();
            let offset = address.wrapping_sub((*region).base.addr());
            offset < (*region).bytes && (*region).bring(offset / PAGE_SIZE)
        };
    if !is_brought {
        // SAFETY: the default action; the touch is done again, and ends the process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

impl Region {
    /// Brings a page, and lets the oldest one go if there is no room. Says whether that succeeded.
    fn bring(&mut self, page: usize) -> bool {
        self.faults += 1;
        if self.count == self.resident.len() {
            let victim = self.resident[self.oldest] as usize;
            let address = self.page(victim).cast();
            // SAFETY: the page lies in the mapping; what it held can be made again. A pointer to it faults.
            let gone = unsafe {
                libc::madvise(address, PAGE_SIZE, libc::MADV_DONTNEED) == 0
                    && libc::mprotect(address, PAGE_SIZE, libc::PROT_NONE) == 0
            };
            if !gone {
                return false;
            }
            self.resident[self.oldest] = page as u32;
            self.oldest = (self.oldest + 1) % self.resident.len();
        } else {
            self.resident[self.count] = page as u32;
            self.count += 1;
        }
        let (address, from) = (self.page(page), (page * PAGE_SIZE) as libc::off_t);
        // SAFETY: the page lies in the mapping and is not in memory; the read fills it.
        unsafe {
            if libc::mprotect(address.cast(), PAGE_SIZE, libc::PROT_READ | libc::PROT_WRITE) != 0
                || libc::pread(self.file.as_raw_fd(), address.cast(), PAGE_SIZE, from) != PAGE_SIZE as isize
            {
                return false;
            }
            image::swizzle(address, &self.references[page], &self.objects, self.base);
        }
        true
    }

    fn page(&self, page: usize) -> *mut u8 {
        self.base.wrapping_add(page * PAGE_SIZE)
    }
}

// Each pointer leads to an object of its type in the mapping, whose page is swizzled before any of it is seen.
impl Graph for TexasGraph {
    type Assembly = *const AssemblyNode;
    type Composite = *const CompositeNode;
    type Part = *const PartNode;
    type Connection = *const ConnectionNode;

    fn root(&mut self) -> Result<*const AssemblyNode> {
        Ok(self.address(image::ROOT).cast())
    }

    fn assembly(
        &mut self,
        id: *const AssemblyNode,
    ) -> Result<Assembly<*const AssemblyNode, *const CompositeNode>> {
        // SAFETY: see above; so for all others.
        Ok(unsafe { image::assembly(id) })
    }

    #[inline]
    fn composite(&mut self, id: *const CompositeNode) -> Result<Composite<*const PartNode>> {
        // SAFETY: as above.
        Ok(unsafe { image::composite(id) })
    }

    #[inline]
    fn part(&mut self, id: *const PartNode) -> Result<Part<*const ConnectionNode>> {
        // SAFETY: as above.
        Ok(unsafe { image::part(id) })
    }

    #[inline]
    fn connection(&mut self, id: *const ConnectionNode) -> Result<*const PartNode> {
        // SAFETY: as above.
        Ok(unsafe { image::connection(id) })
    }

    fn remarks(&self) -> Vec<(&'static str, u64)> {
        // SAFETY: as in `address`.
        vec![("pages_swizzled", unsafe { &*self.region }.faults)]
    }
}
