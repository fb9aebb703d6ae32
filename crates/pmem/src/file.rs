//! A file as the medium of a store: an ordinary one, one on a file system mounted with DAX, or a character device
//! that is persistent memory (devdax).
//!
//! Address space for the maximum size is reserved once, and the file is mapped into it chunk by chunk, in order, so
//! that the address of a place in the store never changes. A mapping with `MAP_SYNC` succeeds only if the system
//! guarantees that flushed stores survive; this distinguishes persistent memory from other files.
//!
//! The part that is cut off the end is first covered with anonymous memory: a thread may still be reading a record
//! there that has moved, and finds zeroes instead of getting a signal; or it flushes a word there that it changed
//! before the record moved, which writes back whatever lies there now. So what was ever mapped stays readable: where
//! the file grows again, the cover is replaced up to its new end only, and not for whole chunks. Nothing is stored there,
//! so the cover is only readable, and the system sets no memory aside for it.

mod room;

use crate::{
    cpu::{self, Flush},
    error::{PmemError, Result},
    medium::{Lane, Medium, Site, written_bytes},
    memory::{Memory, WORD, each_word},
    options::{Options, Persistence},
    syncs::Syncs,
};
use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::AsRawFd as _,
        unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use vellum_base::PAGE_SIZE;
use vellum_vm::{Mapping, SpareHugePage, lock, sync_directory};

/// Persistent memory is mapped with pages of this size where possible; a device can be mapped in no other way.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// No more address space is asked for, in bytes: more than a process has.
const ADDRESSES_MAX: u64 = 1 << 56;
/// More ranges than this are many: no single operation flushes as many.
const SCATTERED: usize = 8;
/// Up to this many bytes between two of many ranges are written back with them: the longest block.
const GAP_BYTES_MAX: u64 = 64 * PAGE_SIZE as u64;

/// A file, mapped.
#[derive(Debug)]
pub struct FileMedium {
    // Dropped before `file`, so that the file is still locked when it is removed.
    unfinished: Option<Unfinished>,
    memory: Memory,
    // Dropped after `memory`, which lies in it.
    _mapping: Mapping,
    file: File,
    path: PathBuf,
    persistence: Persistence,
    /// Whether the system confirmed the persistence.
    confirmed: bool,
    flush: Flush,
    read_only: bool,
    is_device: bool,
    chunk_bytes: u64,
    growth_bytes: u64,
    /// The most bytes that the file may have.
    limit: u64,
    capacity: AtomicU64,
    /// The syncs of the file, and of its memory.
    pub(crate) syncs: Syncs,
    /// Its lock also protects growing and shrinking.
    mapped: Mutex<Mapped>,
    /// Made when it is first wanted; none if there is no room for it.
    spare: OnceLock<Option<SpareHugePage>>,
}

/// How the file is mapped.
#[derive(Debug, Default)]
struct Mapped {
    /// The end of the part where the file is mapped, in bytes.
    to: u64,
    /// The end of what was ever mapped, in bytes; from `to` on it is covered with anonymous memory.
    highest: u64,
    /// The end of the part for which huge pages were requested, in bytes.
    huge: u64,
    /// How many times the file is to grow before huge pages are tried again.
    growths_to_skip: u32,
}

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opening {
    /// It must not exist, unless it is a device.
    Create,
    /// It must exist.
    Existing,
}

/// A file that was created and does not hold a store yet. It is removed when this is dropped, unless it is kept.
#[derive(Debug)]
struct Unfinished {
    path: PathBuf,
    /// What identifies the file: its device, and its number there.
    identity: (u64, u64),
    is_kept: AtomicBool,
}

impl Unfinished {
    fn new(path: &Path, metadata: &std::fs::Metadata) -> Self {
        let identity = (metadata.dev(), metadata.ino());
        Self { path: path.to_owned(), identity, is_kept: AtomicBool::new(false) }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let is_same = |found: std::fs::Metadata| (found.dev(), found.ino()) == self.identity;
        if !*self.is_kept.get_mut() && self.path.symlink_metadata().is_ok_and(is_same) {
            // If it cannot be removed, an empty file remains, which is not taken for a store.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl FileMedium {
    /// Opens a file or device, locks it, and determines how stores to it become durable. A file that is created is
    /// removed when the medium is dropped, unless [`keep`](Self::keep) was called.
    ///
    /// # Errors
    /// [`PmemError::File`], [`PmemError::Locked`], [`PmemError::NotPersistent`], [`PmemError::Vm`],
    /// [`PmemError::Full`].
    pub fn open(path: &Path, opening: Opening, options: &Options) -> Result<Self> {
        let failed = |action| move |source| PmemError::File { path: path.to_owned(), action, source };
        let read_only = options.read_only;
        let is_there_as_device = path.metadata().is_ok_and(|found| found.file_type().is_char_device());
        let mut how = OpenOptions::new();
        let creates = opening == Opening::Create && !is_there_as_device;
        // Opening a pipe would otherwise wait for its other end.
        how.read(true).write(!read_only).create_new(creates).custom_flags(libc::O_NONBLOCK);
        let file = how.open(path).map_err(failed(match opening {
            Opening::Create => "create",
            Opening::Existing => "open",
        }))?;
        let metadata = file.metadata().map_err(failed("look at"))?;
        let unfinished = creates.then(|| Unfinished::new(path, &metadata));
        lock(&file, path, read_only).map_err(PmemError::of_lock)?;
        let is_device = metadata.file_type().is_char_device();
        if !is_device && !metadata.is_file() {
            let source = io::Error::other("it is not a regular file, and no device of persistent memory");
            return Err(failed("open")(source));
        }
        // Once more, for another process may have had it until it was locked.
        let metadata = file.metadata().map_err(failed("look at"))?;
        let size =
            if is_device { device_bytes(&metadata).map_err(failed("measure"))? } else { metadata.len() };
        let page = PAGE_SIZE as u64;
        let capacity_bytes = (options.capacity_bytes / page * page).max(size);
        let chunks = |bytes: u64| bytes.checked_next_multiple_of(options.chunk_bytes).unwrap_or(u64::MAX);
        let (wanted, least) = (chunks(capacity_bytes), chunks(size).max(options.chunk_bytes));
        // Extra space, so that the memory can begin at a huge-page boundary.
        let bytes = |bytes: u64| bytes.min(ADDRESSES_MAX) as usize + HUGE_PAGE_BYTES;
        let mapping = Mapping::reserve_up_to(bytes(wanted), bytes(least), "a store of persistent memory")?;
        let skipped = mapping.first_huge_page(HUGE_PAGE_BYTES);
        // SAFETY: it lies in the mapping, which is larger than a huge page.
        let base = unsafe { mapping.base().add(skipped) };
        // SAFETY: the mapping is reserved until the medium is dropped, and only this memory gives access to it.
        let memory = unsafe { Memory::new(base, (mapping.len() - HUGE_PAGE_BYTES) as u64) };
        let mut medium = Self {
            unfinished,
            // It is mapped by whole chunks.
            limit: capacity_bytes.min(memory.bytes() / options.chunk_bytes * options.chunk_bytes).max(size),
            memory,
            _mapping: mapping,
            file,
            path: path.to_owned(),
            persistence: Persistence::Msync,
            confirmed: true,
            flush: Flush::detect().unwrap_or(Flush::Clflush),
            read_only,
            is_device,
            chunk_bytes: options.chunk_bytes,
            // The file is mapped and cut by whole pages.
            growth_bytes: options.growth_bytes.next_multiple_of(page),
            capacity: AtomicU64::new(size),
            syncs: Syncs::default(),
            mapped: Mutex::default(),
            spare: OnceLock::new(),
        };
        medium.choose(options, &metadata)?;
        if !read_only && !is_device {
            medium.fill_holes(size).map_err(medium.failed("allocate all of"))?;
        }
        medium.map_up_to(size.max(1), &mut medium.lock_mapped())?;
        Ok(medium)
    }

    /// Makes a created file durable by its name, and keeps it, because it holds a store now.
    ///
    /// # Errors
    /// [`PmemError::File`].
    pub fn keep(&self) -> Result<()> {
        let Some(unfinished) = &self.unfinished else { return Ok(()) };
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        sync_directory(parent.unwrap_or(Path::new("."))).map_err(self.failed("make durable the name of"))?;
        unfinished.is_kept.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// How stores become durable.
    pub fn persistence(&self) -> Persistence {
        self.persistence
    }

    /// Whether the system confirms this, and not only the user.
    pub fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// The instruction that writes cache lines back, if one is used.
    pub fn instruction(&self) -> Option<&'static str> {
        (self.persistence == Persistence::Dax).then(|| self.flush.name())
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn lock_mapped(&self) -> MutexGuard<'_, Mapped> {
        // A panic elsewhere leaves the numbers as right as they were.
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Determines [`Persistence`]: the requested one, if it is available; otherwise what the system confirms.
    fn choose(&mut self, options: &Options, metadata: &std::fs::Metadata) -> Result<()> {
        let synchronous = self.is_device || self.maps_synchronously();
        let has_flush = Flush::detect().is_some();
        let found = match (synchronous && has_flush, caches_persist(metadata)) {
            (false, _) => Persistence::Msync,
            (true, false) => Persistence::Dax,
            (true, true) => Persistence::Flushless,
        };
        let wanted = options.persistence.unwrap_or(found);
        let strength = |persistence| match persistence {
            Persistence::Msync => 0,
            Persistence::Dax => 1,
            Persistence::Flushless => 2,
        };
        let refused =
            |reason: &str| PmemError::NotPersistent { path: self.path.clone(), reason: reason.into() };
        if wanted == Persistence::Dax && !has_flush {
            return Err(refused("this processor has no instruction that writes cache lines back"));
        }
        if wanted == Persistence::Msync && self.is_device {
            return Err(refused("a device of persistent memory has no pages that msync could write"));
        }
        self.confirmed = strength(wanted) <= strength(found);
        if !self.confirmed && !options.vouch_for_memory && !self.read_only {
            return Err(refused(match wanted {
                Persistence::Flushless => "nothing says that this machine's caches survive a loss of power",
                _ => "the file is not mapped from persistent memory (MAP_SYNC is refused)",
            }));
        }
        self.persistence = wanted;
        Ok(())
    }

    /// Whether a mapping with `MAP_SYNC` is granted. The mapping need not overlap the file.
    fn maps_synchronously(&self) -> bool {
        let flags = libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC;
        let protection = self.protection();
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let address = unsafe {
            libc::mmap(std::ptr::null_mut(), PAGE_SIZE, protection, flags, self.file.as_raw_fd(), 0)
        };
        if address == libc::MAP_FAILED {
            return false;
        }
        // SAFETY: it was just mapped and no other code knows of it.
        unsafe { libc::munmap(address, PAGE_SIZE) };
        true
    }

    fn protection(&self) -> libc::c_int {
        if self.read_only { libc::PROT_READ } else { libc::PROT_READ | libc::PROT_WRITE }
    }

    /// Maps the file at least up to byte `to`: whole chunks at a time, except where anything was mapped before and is
    /// covered now.
    fn map_up_to(&self, to: u64, mapped: &mut Mapped) -> Result<()> {
        let step = if to > mapped.highest { self.chunk_bytes } else { PAGE_SIZE as u64 };
        let to = to.next_multiple_of(step);
        // Nothing after the end of a device can be mapped.
        let to = if self.is_device { to.min(self.capacity.load(Ordering::Relaxed)) } else { to };
        if to <= mapped.to {
            return Ok(());
        }
        if to > self.memory.bytes() {
            let reason = format!("the capacity of {} bytes is used up", self.memory.bytes());
            return Err(PmemError::Full { reason });
        }
        let mut flags = libc::MAP_SHARED | libc::MAP_FIXED;
        if self.persistence != Persistence::Msync && self.confirmed && !self.is_device {
            flags = libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC | libc::MAP_FIXED;
        }
        let how = (self.protection(), flags);
        self.map_range(mapped.to, to, how, self.file.as_raw_fd()).map_err(self.failed("map"))?;
        mapped.to = to;
        mapped.highest = mapped.highest.max(to);
        Ok(())
    }

    fn map_range(
        &self,
        from: u64,
        to: u64,
        (protection, flags): (libc::c_int, libc::c_int),
        file: libc::c_int,
    ) -> io::Result<()> {
        let address = self.memory.address(from).cast_mut();
        let bytes = (to - from) as usize;
        let offset = if file < 0 { 0 } else { from as libc::off_t };
        // SAFETY: the range lies in the address space that this medium reserved, and into which no references exist
        // but to atomic words, which stay readable.
        let outcome = unsafe { libc::mmap(address.cast(), bytes, protection, flags, file, offset) };
        if outcome == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn failed(&self, action: &'static str) -> impl Fn(io::Error) -> PmemError {
        let path = self.path.clone();
        move |source| {
            let no_room = matches!(
                source.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
            );
            if no_room {
                return PmemError::Full { reason: format!("cannot {action} {}: {source}", path.display()) };
            }
            PmemError::File { path: path.clone(), action, source }
        }
    }

    /// Writes back the pages of all pending ranges, neighbours in one call. A call takes long, and clean pages take
    /// nothing: of many ranges, those with little between them are written back with that. All of it is mapped.
    fn sync_pending(&self, pending: &mut Vec<(u64, u64)>) -> io::Result<()> {
        let page = PAGE_SIZE as u64;
        pending
            .iter_mut()
            .for_each(|(from, to)| (*from, *to) = (*from / page * page, to.next_multiple_of(page)));
        pending.sort_unstable();
        let gap = if pending.len() > SCATTERED { GAP_BYTES_MAX } else { 0 };
        let mut ranges = pending.drain(..);
        let Some(mut now) = ranges.next() else { return Ok(()) };
        for next in ranges {
            if next.0 <= now.1 + gap {
                now.1 = now.1.max(next.1);
            } else {
                self.sync_range(now)?;
                now = next;
            }
        }
        self.sync_range(now)
    }

    /// Makes the file durable, with its size. A failure is never only a lack of room: the system has dropped what it could
    /// not write, and another thread may have stored that.
    fn sync_file(&self) -> Result<()> {
        self.syncs.run(|| self.file.sync_all()).map_err(PmemError::Persist)
    }

    fn sync_range(&self, (from, to): (u64, u64)) -> io::Result<()> {
        let address = self.memory.address(from).cast_mut();
        // SAFETY: the range is mapped, as it was stored to; syncing changes nothing in it.
        let outcome = unsafe { libc::msync(address.cast(), (to - from) as usize, libc::MS_SYNC) };
        if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Medium for FileMedium {
    #[inline]
    fn memory(&self) -> &Memory {
        &self.memory
    }

    #[inline]
    fn flush(&self, lane: &mut Lane, _: Site, at: u64, bytes: usize) {
        match self.persistence {
            Persistence::Dax => self.flush.lines(self.memory.address(at), bytes),
            Persistence::Flushless => {}
            Persistence::Msync => lane.pending.push((at, at + bytes as u64)),
        }
    }

    #[inline]
    fn write(&self, lane: &mut Lane, site: Site, at: u64, parts: &[&[u8]], behind: usize) {
        let bytes = written_bytes(parts, behind);
        let mut words = self.memory.words(at, bytes / WORD).iter();
        let mut each = |store: fn(&AtomicU64, u64)| {
            for part in parts {
                each_word(part, |_, word| {
                    if let Some(to) = words.next() {
                        store(to, word);
                    }
                });
            }
            words.by_ref().for_each(|to| store(to, 0));
        };
        if self.persistence == Persistence::Dax {
            each(cpu::stream);
        } else {
            each(|to, word| to.store(word, Ordering::Relaxed));
            self.flush(lane, site, at, bytes);
        }
    }

    #[inline]
    fn fence(&self, lane: &mut Lane, _: Site) -> Result<()> {
        if self.persistence == Persistence::Msync {
            let synced = self.syncs.run(|| self.sync_pending(&mut lane.pending));
            return synced.map_err(PmemError::Persist);
        }
        cpu::fence();
        Ok(())
    }

    fn capacity(&self) -> u64 {
        // Acquire: memory is mapped before it is announced here.
        self.capacity.load(Ordering::Acquire)
    }

    fn grow(&self, to: u64) -> Result<()> {
        let mut mapped = self.lock_mapped();
        let from = self.capacity();
        if to <= from {
            return Ok(());
        }
        if self.is_device {
            return Err(PmemError::Full { reason: format!("all {from} bytes of the device are used") });
        }
        if to > self.limit {
            let reason = format!("the capacity of {} bytes is used up", self.limit);
            return Err(PmemError::Full { reason });
        }
        // Normally in whole steps; less if the last step does not fit.
        let step =
            to.checked_next_multiple_of(self.growth_bytes).map_or(self.limit, |step| step.min(self.limit));
        let extended = match self.extend(from, step, &mut mapped) {
            Err(_) if step > to => self.extend(from, to, &mut mapped).map(|()| to),
            outcome => outcome.map(|()| step),
        };
        let reached = extended.map_err(self.failed("extend"))?;
        // The new size must be durable before anything beyond the old one is.
        if let Err(error) = self.sync_file().and_then(|()| self.map_up_to(reached, &mut mapped)) {
            // What is not used remains beyond the end, at worst.
            let _ = self.file.set_len(from);
            return Err(error);
        }
        self.populate(from, reached);
        // Release: see `capacity`.
        self.capacity.store(reached, Ordering::Release);
        Ok(())
    }

    fn tend(&self) -> bool {
        self.tend_memory()
    }

    fn shrink(&self, to: u64) -> Result<()> {
        let mut mapped = self.lock_mapped();
        let to = to.checked_next_multiple_of(self.growth_bytes).unwrap_or(u64::MAX);
        if self.is_device || to >= self.capacity() {
            return Ok(());
        }
        let cover = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let covered = self.map_range(to, mapped.to, (libc::PROT_READ, cover), -1);
        // The file is mapped no further; `highest` stays. If it could not be covered, it is unknown what is mapped there, so
        // nothing is stored there any more, and the store takes no more changes.
        (mapped.to, mapped.huge) = (to, mapped.huge.min(to));
        self.capacity.store(to, Ordering::Release);
        covered.map_err(PmemError::Persist)?;
        self.file.set_len(to).map_err(self.failed("shorten"))?;
        self.sync_file()
    }
}

/// The size of a device of persistent memory.
fn device_bytes(metadata: &std::fs::Metadata) -> io::Result<u64> {
    let (major, minor) = (libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
    let text = std::fs::read_to_string(format!("/sys/dev/char/{major}:{minor}/size"))
        .map_err(|_| io::Error::other("it is no device of persistent memory"))?;
    text.trim().parse().map_err(|_| io::Error::other("the device does not tell its size"))
}

/// Whether the persistent-memory region on which a file or device lies reports that caches are saved as well.
fn caches_persist(metadata: &std::fs::Metadata) -> bool {
    let (kind, number) = match metadata.file_type().is_char_device() {
        true => ("char", metadata.rdev()),
        false => ("block", metadata.dev()),
    };
    let link = format!("/sys/dev/{kind}/{}:{}", libc::major(number), libc::minor(number));
    let Ok(device) = std::fs::canonicalize(link) else { return false };
    let mut above = device.ancestors().take_while(|folder| folder.starts_with("/sys/devices"));
    let domain = above.find_map(|folder| std::fs::read_to_string(folder.join("persistence_domain")).ok());
    domain.is_some_and(|domain| domain.trim() == "cpu_cache")
}
