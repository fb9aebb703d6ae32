//! Requests that are submitted now and reaped later: the interface, and the queue of a file on disk.
//!
//! A [`Queue`] belongs to one loop at a time, which submits, goes on with something else, and reaps. The memory of a
//! request belongs to the kernel from [`submit`](Queue::submit) until its completion has been reaped.
//!
//! Invariants:
//! - dropping a queue waits until the kernel has returned every buffer;
//! - each submitted request is reaped exactly once, whatever fails;
//! - never more requests are with the kernel than the ring has entries, so that its queues cannot overflow. Requests
//!   submitted beyond that wait here for their turn.
//!
//! A ring that fails is drained and not used again; requests that it did not run, and all later ones, are run with
//! `pread` and `pwrite` at submission. The same happens from the beginning where there is no io_uring.

use crate::plain::Plain;
use crate::request::{Operation, Request};
use crate::ring::{Outcome, build_ring, outcome};
use crate::transfer::{CALL_BYTES_MAX, Transfer};
use io_uring::{IoUring, opcode, squeue, types};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often a call for which the kernel lacks resources is repeated before the ring counts as failed.
const ATTEMPTS_MAX: u32 = 100;

/// A finished request.
#[derive(Debug)]
pub struct Completion {
    /// The tag given with the request.
    pub tag: u64,
    /// The result.
    pub result: io::Result<()>,
}

/// Whether to wait when nothing is done yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Return at once.
    No,
    /// Wait until a request is done, unless none is under way.
    ForOne,
    /// Wait until all requests under way are done.
    ForAll,
}

/// Reads and writes of one file that overlap with other work of their owner. Made by
/// [`File::queue`](crate::File::queue).
pub trait Queue: Send + fmt::Debug {
    /// How many requests overlap. More may be submitted; they wait for their turn.
    fn depth(&self) -> usize;

    /// How many requests were submitted and have not been reaped.
    fn under_way(&self) -> usize;

    /// Whether requests no longer overlap, though the file can do better: something that may pass has failed.
    fn is_degraded(&self) -> bool {
        false
    }

    /// Accepts a request. It may not begin before [`flush`](Self::flush) or [`reap`](Self::reap).
    ///
    /// # Safety
    /// The requirements of [`File::read`](crate::File::read) or [`File::write`](crate::File::write) hold from now until
    /// the request's completion has been reaped or the queue is dropped.
    unsafe fn submit(&mut self, request: Request, tag: u64);

    /// Begins submitted requests, as far as they can overlap.
    fn flush(&mut self);

    /// Begins submitted requests, and appends finished ones to `done`, in no particular order.
    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>);
}

/// A request with the kernel, or on its way there.
#[derive(Debug)]
struct Entry {
    request: Request,
    tag: u64,
    transfer: Transfer,
}

/// The queue of a file on disk.
pub(crate) struct DiskQueue {
    /// `None` where io_uring is refused or has failed.
    ring: Option<Ring>,
    /// Whether there should be one.
    with_ring: bool,
    depth: usize,
    plain: Arc<Plain>,
    /// Locked while a thread writes through the system's page cache, if the file's writes do.
    writing: Option<Arc<Mutex<()>>>,
    done: Vec<Completion>,
}

struct Ring {
    uring: IoUring,
    /// Whether the file is registered with the ring, as number 0.
    registered: bool,
    entries: Vec<Option<Entry>>,
    free: Vec<usize>,
    /// Entries that are yet to be passed to the kernel.
    todo: VecDeque<usize>,
    /// How many are in the submission queue or with the kernel.
    in_kernel: usize,
}

impl DiskQueue {
    pub fn new(plain: Arc<Plain>, depth: u32, with_ring: bool, writing: Option<Arc<Mutex<()>>>) -> Self {
        let depth = depth.clamp(1, 4096);
        let ring = if with_ring { Ring::new(depth, &plain).ok() } else { None };
        Self { ring, with_ring, depth: depth as usize, plain, writing, done: Vec::new() }
    }

    /// Gives up the ring, and runs the requests that it left undone.
    #[cold]
    fn fail(&mut self) {
        let Some(mut ring) = self.ring.take() else { return };
        ring.drain(&self.plain, &mut self.done);
        // None of the remaining requests is with the kernel: the ring is dropped with those that it never submitted.
        let left: Vec<_> = ring.entries.iter_mut().filter_map(Option::take).collect();
        drop(ring);
        for Entry { request, tag, .. } in left {
            // SAFETY: as the caller promised when it submitted the request.
            let result = unsafe { self.plain.run(&request) };
            self.done.push(Completion { tag, result });
        }
    }

    /// Gives the kernel as many requests as it has room for, and lets it work; false if the ring has failed.
    fn enter(&mut self, wait: Wait) -> bool {
        let Some(ring) = &mut self.ring else { return true };
        let mut attempts = 0;
        loop {
            ring.push(&self.plain, &mut self.done);
            let idle = ring.uring.submission().is_empty() && !ring.uring.submission().taskrun();
            let wanted = match wait {
                Wait::No => 0,
                Wait::ForOne => usize::from(self.done.is_empty() && ring.in_kernel > 0),
                Wait::ForAll => ring.in_kernel,
            };
            if idle && (wanted == 0 || ring.has_completions()) {
                return true;
            }
            match ring.uring.submit_and_wait(wanted) {
                Ok(_) => return true,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) if wait != Wait::No => {}
                    Some(libc::EINTR) => return true,
                    // The kernel lacks memory, or wants completions to be taken first.
                    Some(libc::EAGAIN | libc::EBUSY) if attempts < ATTEMPTS_MAX => {
                        attempts += 1;
                        if ring.collect(&self.plain, &mut self.done) > 0 {
                            return true;
                        }
                        std::thread::yield_now();
                    }
                    _ => return false,
                },
            }
        }
    }
}

impl Queue for DiskQueue {
    fn depth(&self) -> usize {
        self.depth
    }

    fn is_degraded(&self) -> bool {
        self.with_ring && self.ring.is_none()
    }

    fn under_way(&self) -> usize {
        let ring = self.ring.as_ref().map_or(0, |ring| ring.entries.len() - ring.free.len());
        ring + self.done.len()
    }

    unsafe fn submit(&mut self, request: Request, tag: u64) {
        if let Some(writing) = self.writing.as_ref().filter(|_| request.operation == Operation::Write) {
            // It is complete when it has left the system's cache, as other writes of such a file: see `DiskFile`.
            let _writing = writing.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: passed on from the caller.
            let written = unsafe { self.plain.run(&request) };
            let place = (request.offset, request.bytes);
            let result = written.and_then(|()| self.plain.await_storage([place].into_iter()));
            self.done.push(Completion { tag, result });
            return;
        }
        match &mut self.ring {
            Some(ring) if i64::try_from(request.offset).is_ok() && !self.plain.refuses(&request) => {
                ring.add(request, tag, self.plain.direct);
            }
            _ => {
                // SAFETY: passed on from the caller.
                let result = unsafe { self.plain.run(&request) };
                self.done.push(Completion { tag, result });
            }
        }
    }

    fn flush(&mut self) {
        if !self.enter(Wait::No) {
            self.fail();
        }
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) {
        loop {
            if !self.enter(wait) {
                self.fail();
            }
            if let Some(ring) = &mut self.ring {
                ring.collect(&self.plain, &mut self.done);
            }
            // A request that was cut short is not a completion yet.
            let is_over = match wait {
                Wait::No => true,
                Wait::ForOne => !self.done.is_empty() || self.under_way() == 0,
                Wait::ForAll => self.under_way() == self.done.len(),
            };
            if is_over {
                done.append(&mut self.done);
                return;
            }
        }
    }
}

impl Drop for DiskQueue {
    fn drop(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.drain(&self.plain, &mut self.done);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel tears a closed ring down later, in its own thread. Until then the ring would hold the file, and
        // with it the file's space if it was deleted meanwhile.
        if self.registered {
            let _ = self.uring.submitter().unregister_files();
        }
    }
}

impl fmt::Debug for DiskQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let engine = if self.ring.is_some() { "io_uring" } else { "pread" };
        write!(f, "DiskQueue({engine}, depth {}, {} under way)", self.depth, self.under_way())
    }
}

impl Ring {
    fn new(depth: u32, plain: &Plain) -> io::Result<Self> {
        let uring = build_ring(depth)?;
        let registered = uring.submitter().register_files(&[plain.file.as_raw_fd()]).is_ok();
        Ok(Self {
            uring,
            registered,
            entries: Vec::new(),
            free: Vec::new(),
            todo: VecDeque::new(),
            in_kernel: 0,
        })
    }

    fn add(&mut self, request: Request, tag: u64, direct: bool) {
        let transfer = Transfer::new(request.bytes, request.operation == Operation::Write, direct);
        let entry = Some(Entry { request, tag, transfer });
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.entries.push(None);
                self.entries.len() - 1
            }
        };
        if let Some(slot) = self.entries.get_mut(index) {
            *slot = entry;
        }
        self.todo.push_back(index);
    }

    /// Fills the submission queue.
    fn push(&mut self, plain: &Plain, done: &mut Vec<Completion>) {
        if self.todo.is_empty() {
            return;
        }
        let depth = self.uring.params().sq_entries() as usize;
        while self.in_kernel < depth {
            let Some(index) = self.todo.pop_front() else { return };
            let Some(Some(entry)) = self.entries.get(index) else { continue };
            if entry.transfer.is_complete() {
                self.finish(index, Ok(()), done);
                continue;
            }
            let built = build(entry, self.registered, plain).user_data(index as u64);
            // SAFETY: the submitter of the request vouches for its memory until it is reaped, and neither the ring nor
            // this queue is dropped before that.
            match unsafe { self.uring.submission().push(&built) } {
                Ok(()) => self.in_kernel += 1,
                // Cannot happen while no more are in flight than there are entries.
                Err(_) => return self.todo.push_front(index),
            }
        }
    }

    fn has_completions(&mut self) -> bool {
        !self.uring.completion().is_empty()
    }

    /// Takes completions off the completion queue; returns how many there were.
    fn collect(&mut self, plain: &Plain, done: &mut Vec<Completion>) -> usize {
        let mut count = 0;
        while let Some(completion) = { self.uring.completion().next() } {
            count += 1;
            self.in_kernel = self.in_kernel.saturating_sub(1);
            let index = completion.user_data() as usize;
            let Some(Some(entry)) = self.entries.get_mut(index) else { continue };
            match outcome(completion.result(), &mut entry.transfer) {
                Outcome::Complete(result) => self.finish(index, result, done),
                Outcome::CutShort => self.todo.push_back(index),
                Outcome::Undone => {
                    // SAFETY: the kernel has returned the memory, and its owner does not have it back yet.
                    let result = unsafe { plain.run(&entry.request) };
                    self.finish(index, result, done);
                }
            }
        }
        count
    }

    fn finish(&mut self, index: usize, result: io::Result<()>, done: &mut Vec<Completion>) {
        if let Some(entry) = self.entries.get_mut(index).and_then(Option::take) {
            self.free.push(index);
            done.push(Completion { tag: entry.tag, result });
        }
    }

    /// Waits, whether or not the ring still works, until the kernel has returned all buffers that it accepted.
    fn drain(&mut self, plain: &Plain, done: &mut Vec<Completion>) {
        let unaccepted = self.uring.submission().len();
        while self.in_kernel > unaccepted {
            // Normally this waits in the kernel; if the ring is broken, any entry into the kernel lets it post
            // completions.
            let waited = unaccepted == 0 && self.uring.submit_and_wait(1).is_ok();
            if self.collect(plain, done) == 0 && !waited {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }
}

/// The rest of a request, in the form that the kernel takes.
fn build(entry: &Entry, registered: bool, plain: &Plain) -> squeue::Entry {
    let Entry { request, transfer, .. } = entry;
    let address = request.address.wrapping_add(transfer.done);
    let bytes = transfer.next_bytes(CALL_BYTES_MAX) as u32; // at most CALL_BYTES_MAX
    // Cannot overflow: an offset is at most i64::MAX, and memory is smaller than that.
    let offset = request.offset + transfer.done as u64;
    let plain = types::Fd(plain.file.as_raw_fd());
    match (request.operation, registered) {
        (Operation::Read, true) => opcode::Read::new(types::Fixed(0), address, bytes).offset(offset).build(),
        (Operation::Read, false) => opcode::Read::new(plain, address, bytes).offset(offset).build(),
        (Operation::Write, true) => {
            opcode::Write::new(types::Fixed(0), address, bytes).offset(offset).build()
        }
        (Operation::Write, false) => opcode::Write::new(plain, address, bytes).offset(offset).build(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refuse;
    use crate::{AlignedBuffer, CreateMode, DiskFile, File, FileOptions, IoEngine};
    use vellum_base::PAGE_SIZE;

    /// A ring that fails with requests under way returns every buffer, and every request gets its result.
    #[test]
    fn a_ring_that_fails_half_way_is_done_without() {
        let directory = tempfile::tempdir().unwrap();
        let options = FileOptions { create: CreateMode::CreateNew, ..FileOptions::default() };
        let file = DiskFile::open(&directory.path().join("file"), &options).unwrap();
        let mut pages = AlignedBuffer::new(40 * PAGE_SIZE);
        pages.chunks_mut(PAGE_SIZE).enumerate().for_each(|(page, bytes)| bytes.fill(page as u8 + 1));
        // SAFETY: the buffer is borrowed for the call.
        unsafe { file.write(0, pages.as_ptr(), pages.len()) }.unwrap();
        let alone = std::thread::spawn(move || {
            let mut queue = file.queue(8).unwrap();
            let mut read = AlignedBuffer::new(40 * PAGE_SIZE);
            let address = read.as_mut_ptr();
            let mut done = Vec::new();
            for page in 0..40 {
                let at = page * PAGE_SIZE;
                let request = Request::read(at as u64, address.wrapping_add(at), PAGE_SIZE);
                // SAFETY: the buffer outlives the queue's requests, which are all reaped below.
                unsafe { queue.submit(request, page as u64) };
                if page == 20 {
                    queue.flush();
                    refuse::refuse(libc::SYS_io_uring_enter, libc::EPERM);
                }
            }
            assert!(!queue.is_degraded());
            while queue.under_way() > 0 {
                queue.reap(Wait::ForOne, &mut done);
            }
            assert!(queue.is_degraded());
            let mut tags: Vec<_> = done.iter().map(|completion| completion.tag).collect();
            tags.sort_unstable();
            assert_eq!(tags, (0..40).collect::<Vec<_>>());
            assert!(done.iter().all(|completion| completion.result.is_ok()), "{done:?}");
            assert!(*read == *pages);
        });
        alone.join().unwrap();
    }

    #[test]
    fn a_queue_is_degraded_if_its_ring_was_refused_and_not_if_none_is_wanted() {
        let directory = tempfile::tempdir().unwrap();
        let open = |name, engine| {
            let options = FileOptions { create: CreateMode::CreateNew, engine, ..FileOptions::default() };
            DiskFile::open(&directory.path().join(name), &options).unwrap()
        };
        let files = [open("pread", Some(IoEngine::Pread)), open("any", None)];
        let alone = std::thread::spawn(move || {
            refuse::refuse(libc::SYS_io_uring_setup, libc::EMFILE);
            for file in files {
                let wanted = file.description().engine == IoEngine::IoUring;
                assert_eq!(file.queue(8).unwrap().is_degraded(), wanted, "{file:?}");
            }
        });
        alone.join().unwrap();
    }
}
