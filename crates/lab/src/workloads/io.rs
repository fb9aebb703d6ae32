//! Raw random reads of 4 KiB pages from a large file, past the page cache: what the device gives when
//! nothing else is in the way.
//!
//! - `blocking`: one `pread` at a time a thread;
//! - `uring_fixed`: an io_uring a thread, into buffers registered with it;
//! - `uring_pool`: the same into pages of a mapping as large as the file (page `p` of the file into page `p`
//!   of the mapping), which are released again, oldest first, in batches;
//! - `sequential`: half a mebibyte at a time, in the order of the file, through a queue of the engine's own; the sum is
//!   in pages as well.
//!
//! Each thread reads in a part of the file of its own. Every page begins with its own number, which is
//! checked. An operation is one page; a latency lasts from submission until the completion is seen.

use super::{Pace, Pass, Work, run_threads};
use crate::Result;
use crate::config::Method;
use crate::keys::Generator;
use crate::measure::statistics::Latencies;
use io_uring::{IoUring, cqueue, opcode, types};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;
use vellum_base::PAGE_SIZE;
use vellum_vm::{
    AlignedBuffer, DiskFile, File as PagesFile, FileOptions, Mapping, PageRange, Releaser, Request, Wait,
};

/// A file of numbered pages.
pub struct PageFile {
    file: File,
    /// The same as the engine opens it.
    pages_file: DiskFile,
    /// How many pages it has.
    pub pages: u64,
    /// Whether reads go past the page cache.
    pub direct: bool,
}

/// What the methods read into, and how far they go.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    /// As many pages as the file has.
    pub mapping: &'a Mapping,
    /// How its pages are given back.
    pub releaser: &'a Releaser,
    /// Requests in flight, a thread.
    pub depth: u32,
    /// Pages released in one call.
    pub batch: usize,
    /// Pages of the mapping that may be resident, a thread.
    pub resident_pages_max: usize,
}

impl PageFile {
    /// Opens the file at `path` if it has so many pages of the right contents, and writes it otherwise.
    /// Whether it was written is the second result.
    ///
    /// # Errors
    /// Whatever keeps the file from being read or written.
    pub fn open_or_create(path: &Path, pages: u64) -> Result<(Self, bool)> {
        if let Ok(found) = Self::open(path, pages)
            && found.looks_right()
        {
            return Ok((found, false));
        }
        write(path, pages).map_err(|error| format!("{}: {error}", path.display()))?;
        let file = Self::open(path, pages).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok((file, true))
    }

    fn open(path: &Path, pages: u64) -> std::io::Result<Self> {
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
        let (file, direct) = match direct {
            Ok(file) => (file, true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => (File::open(path)?, false),
            Err(error) => return Err(error),
        };
        let options = FileOptions { read_only: true, ..FileOptions::default() };
        let pages_file = DiskFile::open(path, &options).map_err(std::io::Error::other)?;
        Ok(Self { file, pages_file, pages, direct })
    }

    /// Whether the length and a few pages are as written.
    fn looks_right(&self) -> bool {
        let mut buffer = AlignedBuffer::new(PAGE_SIZE);
        let length = self.file.metadata().map_or(0, |metadata| metadata.len());
        length == self.pages * PAGE_SIZE as u64
            && (0..64).all(|step| {
                let page = step * (self.pages - 1) / 63;
                self.read(page, &mut buffer).is_ok()
            })
    }

    fn read(&self, page: u64, buffer: &mut AlignedBuffer) -> Result<()> {
        self.file.read_exact_at(buffer, page * PAGE_SIZE as u64)?;
        verify(page, first_word(buffer))
    }
}

/// What the first eight bytes of a page hold, so that none is zero.
fn mark(page: u64) -> u64 {
    page + 1
}

fn first_word(page: &[u8]) -> u64 {
    page.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn verify(page: u64, found: u64) -> Result<()> {
    if found == mark(page) {
        return Ok(());
    }
    Err(format!("page {page} begins with {found} instead of {}", mark(page)).into())
}

/// Writes a file of numbered pages whose other bytes are random.
fn write(path: &Path, pages: u64) -> Result<()> {
    const CHUNK_PAGES: u64 = 1024;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    let mut file = options.clone().custom_flags(libc::O_DIRECT).open(path).or_else(|_| options.open(path))?;
    let bytes = libc::off_t::try_from(pages * PAGE_SIZE as u64)?;
    // SAFETY: the descriptor is open; the call touches no memory.
    let refused = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes) };
    if refused != 0 {
        return Err(std::io::Error::from_raw_os_error(refused).into());
    }
    let mut buffer = AlignedBuffer::new(CHUNK_PAGES as usize * PAGE_SIZE);
    let mut generator = Generator::new(pages, 0, 0);
    for first in (0..pages).step_by(CHUNK_PAGES as usize) {
        for (page, bytes) in (first..pages).zip(buffer.chunks_mut(PAGE_SIZE)) {
            for word in bytes.chunks_mut(8) {
                word.copy_from_slice(&generator.next().to_le_bytes());
            }
            bytes[..8].copy_from_slice(&mark(page).to_le_bytes());
        }
        let count = CHUNK_PAGES.min(pages - first) as usize;
        file.write_all(&buffer[..count * PAGE_SIZE])?;
    }
    Ok(file.sync_all()?)
}

/// Reads random pages until the time is over.
///
/// # Errors
/// If a read fails or falls short, or a page does not begin with its number, or there are too few pages.
pub fn pass(file: &PageFile, method: Method, setting: &Setting<'_>, pace: &Pace) -> Result<Pass> {
    let part = file.pages / pace.threads as u64;
    let least = (setting.resident_pages_max + setting.depth as usize) as u64 * 2;
    if part < least {
        return Err(format!("{part} pages a thread are too few: there must be {least}").into());
    }
    let prepare = |thread: usize| {
        let generator = Generator::new(file.pages, thread as u64, pace.round);
        Ok(Pages { first: thread as u64 * part, count: part, generator })
    };
    run_threads(pace.threads, prepare, |mut pages, start| match method {
        Method::Blocking => blocking(file, &mut pages, start, pace),
        Method::Sequential => sequential(file, &pages, start, pace),
        Method::UringFixed => {
            let buffers = Buffers::Fixed(AlignedBuffer::new(setting.depth as usize * PAGE_SIZE));
            overlapped(file, setting, pages, buffers, start, pace)
        }
        Method::UringPool => {
            let resident = Resident { pages: VecDeque::new(), set: vec![0; part.div_ceil(64) as usize] };
            overlapped(file, setting, pages, Buffers::Pool(resident), start, pace)
        }
    })
}

/// The part of a file that one thread reads, in random order.
struct Pages {
    first: u64,
    count: u64,
    generator: Generator,
}

impl Pages {
    fn next(&mut self) -> u64 {
        self.first + self.generator.below(self.count)
    }
}

fn blocking(file: &PageFile, pages: &mut Pages, start: Instant, pace: &Pace) -> Result<Work> {
    let mut buffer = AlignedBuffer::new(PAGE_SIZE);
    let mut latencies = Latencies::new()?;
    let deadline = start + pace.duration;
    let mut begin = start;
    let mut operations = 0;
    loop {
        file.read(pages.next(), &mut buffer)?;
        operations += 1;
        let end = Instant::now();
        latencies.record(end - begin);
        begin = end;
        if end >= deadline {
            return Ok(Work::new(operations, latencies));
        }
    }
}

/// Reads a part of the file from its beginning to its end, again and again, several large requests at a time.
fn sequential(file: &PageFile, pages: &Pages, start: Instant, pace: &Pace) -> Result<Work> {
    const REQUEST_PAGES: u64 = 128;
    const REQUESTS: u64 = 8;
    let request_bytes = REQUEST_PAGES as usize * PAGE_SIZE;
    let mut buffers = AlignedBuffer::new(REQUESTS as usize * request_bytes);
    let address = buffers.as_mut_ptr();
    // Declared after the buffers, so that it is dropped, and waits for its requests, before they are.
    let mut queue = file.pages_file.queue(REQUESTS as u32)?;
    let mut begun = [(0, start); REQUESTS as usize];
    let mut free: Vec<u64> = (0..REQUESTS).collect();
    let (mut next, mut operations) = (0, 0);
    let mut latencies = Latencies::new()?;
    let mut done = Vec::new();
    let mut now = start;
    loop {
        while now < start + pace.duration
            && let Some(slot) = free.pop()
        {
            let first = pages.first + next;
            next = if next + 2 * REQUEST_PAGES > pages.count { 0 } else { next + REQUEST_PAGES };
            let target = address.wrapping_add(slot as usize * request_bytes);
            let request = Request::read(first * PAGE_SIZE as u64, target, request_bytes);
            // SAFETY: each slot has a buffer of its own, which outlives the queue.
            unsafe { queue.submit(request, slot) };
            begun[slot as usize] = (first, now);
        }
        if queue.under_way() == 0 {
            return Ok(Work::new(operations, latencies));
        }
        queue.reap(Wait::ForOne, &mut done);
        now = Instant::now();
        for completion in done.drain(..) {
            completion.result?;
            let (first, begin) = begun[completion.tag as usize];
            for page in 0..REQUEST_PAGES {
                let at = completion.tag as usize * request_bytes + page as usize * PAGE_SIZE;
                // SAFETY: the request is complete, so the kernel no longer writes there. Volatile, because it did.
                let found = unsafe { address.wrapping_add(at).cast::<u64>().read_volatile() };
                verify(first + page, u64::from_le(found))?;
            }
            operations += REQUEST_PAGES;
            latencies.record(now - begin);
            free.push(completion.tag);
        }
    }
}

/// Where overlapped reads go.
enum Buffers {
    /// One page for each request in flight, registered with the ring.
    Fixed(AlignedBuffer),
    /// Pages of the mapping.
    Pool(Resident),
}

/// The pages of one thread's part of the mapping that are resident or being read.
struct Resident {
    /// Those that have been read, oldest first.
    pages: VecDeque<u64>,
    /// All of them, one bit a page of the part.
    set: Vec<u64>,
}

impl Resident {
    /// Adds a page of the part; false if it is there already.
    fn add(&mut self, index: u64) -> bool {
        let (word, bit) = ((index / 64) as usize, 1u64 << (index % 64));
        let new = self.set[word] & bit == 0;
        self.set[word] |= bit;
        new
    }

    fn remove(&mut self, index: u64) {
        self.set[(index / 64) as usize] &= !(1u64 << (index % 64));
    }
}

/// One thread's ring and what is in flight in it.
struct Reader<'a> {
    setting: &'a Setting<'a>,
    pages: Pages,
    ring: IoUring,
    buffers: Buffers,
    /// For each slot, the page that is read and when that was submitted.
    slots: Vec<(u64, Instant)>,
    in_flight: usize,
    ranges: Vec<PageRange>,
}

fn overlapped(
    file: &PageFile,
    setting: &Setting<'_>,
    pages: Pages,
    buffers: Buffers,
    start: Instant,
    pace: &Pace,
) -> Result<Work> {
    let mut reader = Reader {
        setting,
        pages,
        ring: ring(setting.depth)?,
        buffers,
        slots: vec![(0, start); setting.depth as usize],
        in_flight: 0,
        ranges: Vec::with_capacity(setting.batch),
    };
    reader.ring.submitter().register_files(&[file.file.as_raw_fd()])?;
    reader.register_buffers()?;
    let outcome = reader.run(start, pace);
    if reader.in_flight > 0 {
        // The ring failed with requests in flight: the kernel may still write to their memory.
        std::mem::forget(reader);
        return outcome;
    }
    // The next pass begins with nothing resident.
    reader.evict(0)?;
    outcome
}

/// A ring for one thread, without interrupts of that thread where the kernel can do so.
fn ring(depth: u32) -> Result<IoUring> {
    let quiet = IoUring::builder().setup_single_issuer().setup_coop_taskrun().build(depth);
    Ok(quiet.or_else(|_| IoUring::new(depth))?)
}

impl Reader<'_> {
    fn register_buffers(&mut self) -> Result<()> {
        if let Buffers::Fixed(buffer) = &mut self.buffers {
            let vectors: Vec<libc::iovec> = buffer
                .chunks_mut(PAGE_SIZE)
                .map(|page| libc::iovec { iov_base: page.as_mut_ptr().cast(), iov_len: page.len() })
                .collect();
            // SAFETY: the buffer lives as long as the ring, or is leaked with it.
            unsafe { self.ring.submitter().register_buffers(&vectors)? };
        }
        Ok(())
    }

    /// Reads until the time is over, then waits for what is in flight, also after an error.
    fn run(&mut self, start: Instant, pace: &Pace) -> Result<Work> {
        let deadline = start + pace.duration;
        let mut latencies = Latencies::new()?;
        let mut operations = 0;
        let mut failed = None;
        let mut free: Vec<u32> = (0..self.setting.depth).collect();
        let mut now = start;
        loop {
            if failed.is_none() && now < deadline {
                for slot in free.drain(..) {
                    self.push(slot, now)?;
                }
            }
            if self.in_flight == 0 {
                return failed.map_or(Ok(Work::new(operations, latencies)), Err);
            }
            match self.ring.submit_and_wait(1) {
                Err(error) if error.raw_os_error() != Some(libc::EINTR) => return Err(error.into()),
                _ => {}
            }
            now = Instant::now();
            while let Some(entry) = self.next_completion() {
                self.in_flight -= 1;
                let slot = entry.user_data() as u32;
                free.push(slot);
                latencies.record(now - self.slots[slot as usize].1);
                match self.complete(slot, entry.result()) {
                    Ok(()) => operations += 1,
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            let resident_pages_max = self.setting.resident_pages_max.max(self.setting.batch);
            if let Err(error) = self.evict(resident_pages_max) {
                failed = failed.or(Some(error));
            }
        }
    }

    fn next_completion(&mut self) -> Option<cqueue::Entry> {
        self.ring.completion().next()
    }

    /// Where the page that a slot reads goes.
    fn address(&self, slot: u32, page: u64) -> *mut u8 {
        match &self.buffers {
            Buffers::Fixed(buffer) => buffer.as_ptr().cast_mut().wrapping_add(slot as usize * PAGE_SIZE),
            Buffers::Pool(_) => self.setting.mapping.base().as_ptr().wrapping_add(page as usize * PAGE_SIZE),
        }
    }

    /// Queues the read of a random page.
    fn push(&mut self, slot: u32, now: Instant) -> Result<()> {
        let mut page = self.pages.next();
        if let Buffers::Pool(resident) = &mut self.buffers {
            while !resident.add(page - self.pages.first) {
                page = self.pages.next();
            }
        }
        let (address, bytes) = (self.address(slot, page), PAGE_SIZE as u32);
        let entry = match &self.buffers {
            Buffers::Fixed(_) => opcode::ReadFixed::new(types::Fixed(0), address, bytes, slot as u16)
                .offset(page * PAGE_SIZE as u64)
                .build(),
            Buffers::Pool(_) => {
                opcode::Read::new(types::Fixed(0), address, bytes).offset(page * PAGE_SIZE as u64).build()
            }
        };
        // SAFETY: the memory is this slot's buffer, or a page of the mapping that this thread alone uses
        // and does not release before the request is completed; both outlive the ring or are leaked.
        unsafe { self.ring.submission().push(&entry.user_data(u64::from(slot)))? };
        self.slots[slot as usize] = (page, now);
        self.in_flight += 1;
        Ok(())
    }

    /// Checks what a slot has read.
    fn complete(&mut self, slot: u32, result: i32) -> Result<()> {
        let page = self.slots[slot as usize].0;
        if let Buffers::Pool(resident) = &mut self.buffers {
            resident.pages.push_back(page);
        }
        if result < 0 {
            return Err(std::io::Error::from_raw_os_error(-result).into());
        }
        if result as usize != PAGE_SIZE {
            return Err(format!("a read of page {page} gave {result} bytes").into());
        }
        // SAFETY: the request is complete, so the kernel no longer writes there, and its page or buffer is
        // still in place. Volatile, because the kernel wrote it.
        let found = unsafe { self.address(slot, page).cast::<u64>().read_volatile() };
        verify(page, u64::from_le(found))
    }

    /// Releases the oldest resident pages, a batch at a time, while there are more than so many.
    fn evict(&mut self, resident_pages_max: usize) -> Result<()> {
        let Buffers::Pool(resident) = &mut self.buffers else { return Ok(()) };
        while resident.pages.len() > resident_pages_max {
            self.ranges.clear();
            for _ in 0..self.setting.batch {
                let Some(page) = resident.pages.pop_front() else { break };
                resident.remove(page - self.pages.first);
                let address = self.setting.mapping.base().as_ptr().wrapping_add(page as usize * PAGE_SIZE);
                self.ranges.push(PageRange { address, bytes: PAGE_SIZE });
            }
            // SAFETY: the pages lie in the mapping, in the part of this thread; they have been read and
            // none of them is in flight, because a page in the set is not read again.
            unsafe { self.setting.releaser.release(&self.ranges)? };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const METHODS: [Method; 4] =
        [Method::Blocking, Method::UringFixed, Method::UringPool, Method::Sequential];

    fn run(file: &PageFile, method: Method, threads: usize) -> Result<Pass> {
        let mapping = Mapping::reserve(file.pages as usize * PAGE_SIZE, "a test")?.for_pages()?;
        let releaser = Releaser::new(None)?;
        let setting =
            Setting { mapping: &mapping, releaser: &releaser, depth: 8, batch: 16, resident_pages_max: 64 };
        let pace =
            Pace { clients: 1, threads, round: 0, duration: Duration::from_millis(30), sample_every: 1 };
        pass(file, method, &setting, &pace)
    }

    #[test]
    fn every_method_reads_and_checks_pages() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pages");
        let (file, written) = PageFile::open_or_create(&path, 1500).unwrap();
        assert!(written);
        for method in METHODS {
            for threads in [1, 2] {
                let pass = run(&file, method, threads).unwrap();
                assert!(pass.operations >= 2, "{method:?}");
                let pages = if method == Method::Sequential { 128 } else { 1 };
                assert_eq!(pass.latencies.samples() * pages, pass.operations);
            }
        }
        assert!(!PageFile::open_or_create(&path, 1500).unwrap().1, "it is used again");
        assert!(PageFile::open_or_create(&path, 1400).unwrap().1, "another size is written anew");
    }

    #[test]
    fn a_page_in_the_wrong_place_is_noticed_by_every_method() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pages");
        let (file, _) = PageFile::open_or_create(&path, 600).unwrap();
        std::fs::write(&path, vec![9u8; 600 * PAGE_SIZE]).unwrap();
        for method in METHODS {
            assert!(run(&file, method, 1).is_err(), "{method:?}");
        }
        drop(file);
        assert!(PageFile::open_or_create(&path, 600).unwrap().1, "it is written anew");
    }
}
