//! A file whose pages are read into an area of `/dev/exmap`, where no page fault supplies memory.
//!
//! A read into the area supplies the pages and fills them: by the module, in one call, if the file is on disk and this
//! is a single read; otherwise one call supplies all pages of a batch before the reads begin. All other operations go
//! to the file unchanged.

use crate::exmap::Exmap;
use crate::file::{File, FileDescription};
use crate::memory::PageRange;
use crate::queue::{Completion, Queue, Wait};
use crate::request::{Operation, Request};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A file in front of an area.
#[derive(Debug)]
pub(crate) struct ExmapFile {
    file: Arc<dyn File>,
    area: Arc<Exmap>,
}

impl ExmapFile {
    pub fn new(file: Arc<dyn File>, area: Arc<Exmap>) -> Self {
        Self { file, area }
    }
}

/// Whether a request needs pages of the area.
fn needs_pages(area: &Exmap, request: &Request) -> bool {
    request.operation == Operation::Read && area.contains(request.address)
}

fn range(request: &Request) -> PageRange {
    PageRange { address: request.address, bytes: request.bytes }
}

impl File for ExmapFile {
    unsafe fn read(&self, offset: u64, address: *mut u8, bytes: usize) -> io::Result<()> {
        let mut done = 0;
        if self.area.can_read(offset, address) {
            // SAFETY: passed on from the caller.
            let (read, outcome) = unsafe { self.area.read(address, bytes) };
            match outcome {
                // A page is already mapped. The caller asked to read over it, so the file does the rest.
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => done = read,
                outcome => return outcome,
            }
        }
        let (offset, address, bytes) = (offset + done as u64, address.wrapping_add(done), bytes - done);
        if self.area.contains(address) {
            let range = PageRange { address, bytes };
            self.area.supply(std::iter::once(range)).into_iter().try_for_each(|outcome| outcome.map(drop))?;
        }
        // SAFETY: passed on from the caller.
        unsafe { self.file.read(offset, address, bytes) }
    }

    unsafe fn write(&self, offset: u64, address: *const u8, bytes: usize) -> io::Result<()> {
        // SAFETY: passed on from the caller.
        unsafe { self.file.write(offset, address, bytes) }
    }

    unsafe fn run(&self, requests: &mut [Request]) {
        let needing = requests.iter().filter(|request| needs_pages(&self.area, request)).map(range);
        let supplied = self.area.supply(needing);
        if supplied.iter().all(Result::is_ok) {
            // SAFETY: passed on from the caller.
            unsafe { self.file.run(requests) };
            return;
        }
        // One by one, so that each request gets its own result.
        let mut supplied = supplied.into_iter();
        for request in requests {
            let lacking = needs_pages(&self.area, request).then(|| supplied.next()).flatten();
            match lacking {
                Some(Err(error)) => request.result = Err(error),
                // SAFETY: passed on from the caller.
                _ => unsafe { self.file.run(std::slice::from_mut(request)) },
            }
        }
    }

    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>> {
        let queue = self.file.queue(depth)?;
        Ok(Box::new(ExmapQueue { queue, area: self.area.clone(), waiting: Vec::new(), failed: Vec::new() }))
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn grow(&self, to: u64) -> io::Result<()> {
        self.file.grow(to)
    }

    fn truncate(&self, to: u64) -> io::Result<()> {
        self.file.truncate(to)
    }

    fn description(&self) -> FileDescription {
        self.file.description()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.descriptor()
    }
}

/// A queue whose reads are held back until one call has supplied all their pages.
#[derive(Debug)]
struct ExmapQueue {
    // Dropped first: it waits for requests under way.
    queue: Box<dyn Queue>,
    area: Arc<Exmap>,
    waiting: Vec<(Request, u64)>,
    failed: Vec<Completion>,
}

impl ExmapQueue {
    /// Passes on the requests that were held back.
    fn begin(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let supplied = self.area.supply(self.waiting.iter().map(|(request, _)| range(request)));
        for ((request, tag), supplied) in self.waiting.drain(..).zip(supplied) {
            match supplied {
                // SAFETY: as the caller promised when it submitted the request here.
                Ok(_) => unsafe { self.queue.submit(request, tag) },
                Err(error) => self.failed.push(Completion { tag, result: Err(error) }),
            }
        }
    }
}

impl Queue for ExmapQueue {
    fn depth(&self) -> usize {
        self.queue.depth()
    }

    fn under_way(&self) -> usize {
        self.queue.under_way() + self.waiting.len() + self.failed.len()
    }

    fn is_degraded(&self) -> bool {
        self.queue.is_degraded()
    }

    unsafe fn submit(&mut self, request: Request, tag: u64) {
        if needs_pages(&self.area, &request) {
            self.waiting.push((request, tag));
        } else {
            // SAFETY: passed on from the caller.
            unsafe { self.queue.submit(request, tag) };
        }
    }

    fn flush(&mut self) {
        self.begin();
        self.queue.flush();
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) {
        self.begin();
        let wait = if self.failed.is_empty() || wait == Wait::ForAll { wait } else { Wait::No };
        done.append(&mut self.failed);
        self.queue.reap(wait, done);
    }
}
