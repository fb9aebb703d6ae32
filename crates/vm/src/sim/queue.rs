//! The simulated file's queue: what is submitted happens later, in any order, with all the faults of the file.
//!
//! From submission on, the memory of a read is the device's: it may hold anything, and does. What a reap finds
//! done is drawn from the seed, so a request that was submitted first may be reaped last, or long after.

use super::file::{SimulatedFile, assert_aligned, assert_disjoint};
use crate::file::{File, Operation, Request};
use crate::queue::{Completion, Queue, Wait};

/// Requests to a simulated file that are under way.
#[derive(Debug)]
pub(super) struct SimulatedQueue {
    file: SimulatedFile,
    depth: usize,
    under_way: Vec<(Request, u64)>,
}

impl SimulatedQueue {
    pub fn new(file: SimulatedFile, depth: u32) -> Self {
        Self { file, depth: depth.max(1) as usize, under_way: Vec::new() }
    }

    /// Lets one of the requests happen.
    fn complete(&mut self, index: usize) -> Completion {
        let (request, tag) = self.under_way.swap_remove(index);
        let Request { operation, offset, address, bytes, .. } = request;
        // SAFETY: as was promised when it was submitted.
        let result = unsafe {
            match operation {
                Operation::Read => self.file.read(offset, address, bytes),
                Operation::Write => self.file.write(offset, address, bytes),
            }
        };
        Completion { tag, result }
    }

    /// How many of the requests that overlap are there to choose from.
    fn eligible(&self) -> usize {
        self.under_way.len().min(self.depth)
    }
}

impl Queue for SimulatedQueue {
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
        let mut least = usize::from(wait == Wait::ForOne);
        while self.eligible() > 0 && (least > 0 || self.file.draw(2) == 0) {
            let index = self.file.draw(self.eligible() as u64) as usize;
            let completion = self.complete(index);
            done.push(completion);
            least = 0;
        }
    }
}

impl Drop for SimulatedQueue {
    fn drop(&mut self) {
        while !self.under_way.is_empty() {
            self.complete(self.under_way.len() - 1);
        }
    }
}
