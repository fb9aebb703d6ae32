//! The simulated file's queue: submitted requests happen later, in any order, with all the faults of the file.
//!
//! From submission on, the memory of a read belongs to the device: it may hold anything, and does. The requests that a
//! reap finds done are drawn from the seed, so a request that was submitted first may be reaped last, or long after.

use crate::file::File;
use crate::queue::{Completion, Queue, Wait};
use crate::request::{Operation, Request};
use vellum_base::PAGE_SIZE;

/// The file to which a queue of requests belongs.
pub(super) trait Device: File {
    /// A random number below `end`.
    fn draw(&self, end: u64) -> u64;

    /// Leaves in memory what a failing read may leave: anything.
    ///
    /// # Safety
    /// As for [`File::read`].
    unsafe fn scribble(&self, address: *mut u8, bytes: usize);
}

/// Requests to a simulated file that are under way.
#[derive(Debug)]
pub(super) struct SimulatedQueue<D: Device> {
    file: D,
    depth: usize,
    under_way: Vec<(Request, u64)>,
}

impl<D: Device> SimulatedQueue<D> {
    pub fn new(file: D, depth: u32) -> Self {
        Self { file, depth: depth.max(1) as usize, under_way: Vec::new() }
    }

    /// Runs one of the requests.
    fn complete(&mut self, index: usize) -> Completion {
        let (request, tag) = self.under_way.swap_remove(index);
        let Request { operation, offset, address, bytes, .. } = request;
        // SAFETY: as the caller promised when it submitted the request.
        let result = unsafe {
            match operation {
                Operation::Read => self.file.read(offset, address, bytes),
                Operation::Write => self.file.write(offset, address, bytes),
            }
        };
        Completion { tag, result }
    }

    /// How many of the overlapping requests there are to choose from.
    fn eligible(&self) -> usize {
        self.under_way.len().min(self.depth)
    }
}

impl<D: Device> Queue for SimulatedQueue<D> {
    fn depth(&self) -> usize {
        self.depth
    }

    fn under_way(&self) -> usize {
        self.under_way.len()
    }

    unsafe fn submit(&mut self, request: Request, tag: u64) {
        assert_aligned(request.offset, request.address, request.bytes);
        if request.operation == Operation::Read {
            // SAFETY: passed on from the caller.
            unsafe { self.file.scribble(request.address, request.bytes) };
        }
        self.under_way.push((request, tag));
        assert_disjoint(self.under_way.iter().map(|(request, _)| request));
    }

    fn flush(&mut self) {}

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) {
        let mut least = match wait {
            Wait::No => 0,
            Wait::ForOne => 1,
            Wait::ForAll => self.under_way.len(),
        };
        while self.eligible() > 0 && (least > 0 || self.file.draw(2) == 0) {
            let index = self.file.draw(self.eligible() as u64) as usize;
            let completion = self.complete(index);
            done.push(completion);
            least = least.saturating_sub(1);
        }
    }
}

impl<D: Device> Drop for SimulatedQueue<D> {
    fn drop(&mut self) {
        while !self.under_way.is_empty() {
            self.complete(self.under_way.len() - 1);
        }
    }
}

pub(super) fn assert_aligned(offset: u64, address: *const u8, bytes: usize) {
    let page = PAGE_SIZE as u64;
    assert!(
        offset.is_multiple_of(page)
            && bytes.is_multiple_of(PAGE_SIZE)
            && address.addr().is_multiple_of(PAGE_SIZE),
        "direct I/O wants whole pages, not {bytes} bytes between offset {offset} and address {address:?}"
    );
}

/// Requests of one batch happen at the same time, so no other request may touch what one writes.
pub(super) fn assert_disjoint<'a>(requests: impl Iterator<Item = &'a Request> + Clone) {
    let check = |place: fn(&Request) -> u64, writing: Operation| {
        let mut sorted: Vec<_> = requests.clone().filter(|request| request.bytes > 0).collect();
        sorted.sort_by_key(|request| place(request));
        // How far any earlier request reaches, and how far the earlier writes reach.
        let (mut reached, mut written) = (0, 0);
        for request in sorted {
            let (start, end) = (place(request), place(request).saturating_add(request.bytes as u64));
            let writes = request.operation == writing;
            let clear = start >= if writes { reached } else { written };
            assert!(clear, "a request of this batch overlaps another one: {request:?}");
            reached = reached.max(end);
            written = if writes { written.max(end) } else { written };
        }
    };
    check(|request| request.offset, Operation::Write);
    check(|request| request.address.addr() as u64, Operation::Read);
}
