//! Batches of requests through io_uring.
//!
//! A [`RingPool`] lends a ring to each thread that runs a batch, so that batches of several threads do not
//! wait for each other. The lock on the pool is held only to take a ring out and put it back, and no other
//! lock is taken meanwhile.
//!
//! Invariants:
//! - whatever happens, a run returns only when the kernel has returned every buffer: all requests that it accepted are
//!   reaped, and those that it did not accept never reach it, because their ring is dropped;
//! - never more requests are under way than the submission queue has entries, and the completion queue has twice as
//!   many, so neither can overflow;
//! - a ring that failed is not used again.
//!
//! Requests that a ring could not run for reasons of its own are reported as undone, and the caller runs them without a
//! ring.

use crate::request::{Operation, Request};
use crate::transfer::{CALL_BYTES_MAX, Transfer};
use io_uring::{IoUring, Probe, opcode, types};
use std::io;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How many rings are kept for reuse. Each costs some locked memory.
const RINGS_IDLE_MAX: usize = 64;

/// How often a call for which the kernel lacks resources is repeated before the ring counts as failed.
const ATTEMPTS: usize = 100;

/// The rings of one file.
pub(crate) struct RingPool {
    /// How many requests of a batch may be under way at once.
    depth: u32,
    /// The most that one submission asks for, in bytes.
    call_bytes_max: usize,
    idle: Mutex<Vec<Ring>>,
}

impl std::fmt::Debug for RingPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RingPool(depth {})", self.depth)
    }
}

impl RingPool {
    /// Sets up the first ring, and tests it.
    ///
    /// # Errors
    /// If the kernel does not let this process use io_uring, or does not support its reads and writes.
    pub fn new(depth: u32) -> io::Result<Self> {
        // The kernel takes 1 to 32768 entries.
        let depth = depth.clamp(1, 32768);
        let mut ring = Ring::new(depth)?;
        ring.prove()?;
        Ok(Self { depth, call_bytes_max: CALL_BYTES_MAX, idle: Mutex::new(vec![ring]) })
    }

    /// Runs all requests on a file, and returns the numbers of those that are left undone because no ring was available
    /// or it failed. The results of all others are set.
    ///
    /// # Safety
    /// As for [`File::run`](crate::File::run).
    pub unsafe fn run(&self, descriptor: RawFd, direct: bool, requests: &mut [Request]) -> Vec<usize> {
        let borrowed = self.idle().pop();
        let Ok(mut ring) = borrowed.map_or_else(|| Ring::new(self.depth), Ok) else {
            return (0..requests.len()).collect();
        };
        let mut batch = Batch::new(&mut ring, descriptor, direct, self.call_bytes_max, requests);
        // SAFETY: passed on from the caller.
        let usable = unsafe { batch.run() };
        let undone = batch.undone();
        if usable {
            let mut idle = self.idle();
            if idle.len() < RINGS_IDLE_MAX {
                idle.push(ring);
            }
        }
        undone
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Ring>> {
        // A thread that panicked held the lock only to push or pop, so the list is whole.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One ring and the memory to keep track of a batch.
struct Ring {
    uring: IoUring,
    depth: usize,
    /// The rest of each request of the batch; `None` once its result is set.
    transfers: Vec<Option<Transfer>>,
    /// Requests that were cut short and must be submitted again.
    again: Vec<usize>,
}

impl Ring {
    fn new(depth: u32) -> io::Result<Self> {
        let uring = build_ring(depth)?;
        Ok(Self { uring, depth: depth as usize, transfers: Vec::new(), again: Vec::new() })
    }

    /// Runs an empty operation through the kernel: some sandboxes allow a ring but not its use.
    fn prove(&mut self) -> io::Result<()> {
        let mut known = Probe::new();
        self.uring.submitter().register_probe(&mut known)?;
        if !known.is_supported(opcode::Read::CODE) || !known.is_supported(opcode::Write::CODE) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel is older than Linux 5.6"));
        }
        // SAFETY: an operation without buffers.
        let pushed = unsafe { self.uring.submission().push(&opcode::Nop::new().build()) };
        pushed.map_err(io::Error::other)?;
        while let Err(error) = self.uring.submit_and_wait(1) {
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        match self.uring.completion().next() {
            Some(entry) if entry.result() == 0 => Ok(()),
            other => Err(io::Error::other(format!("an empty operation ended with {other:?}"))),
        }
    }
}

/// A ring that does not interrupt the thread that uses it, where the kernel supports that.
pub(crate) fn build_ring(depth: u32) -> io::Result<IoUring> {
    let mut quiet = IoUring::builder();
    // Without the first flag, completions interrupt the thread; kernels before 5.19 do not have it.
    quiet.dontfork().setup_coop_taskrun().setup_taskrun_flag();
    quiet.build(depth).or_else(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => IoUring::builder().dontfork().build(depth),
        _ => Err(error),
    })
}

/// A batch on its way through a ring.
struct Batch<'a> {
    ring: &'a mut Ring,
    descriptor: RawFd,
    call_bytes_max: usize,
    requests: &'a mut [Request],
    /// The first request that has not been submitted yet.
    next: usize,
    /// How many are in the submission queue or with the kernel.
    in_flight: usize,
}

impl<'a> Batch<'a> {
    fn new(
        ring: &'a mut Ring,
        descriptor: RawFd,
        direct: bool,
        call_bytes_max: usize,
        requests: &'a mut [Request],
    ) -> Self {
        ring.again.clear();
        ring.transfers.clear();
        ring.transfers.extend(requests.iter().map(|request| {
            Some(Transfer::new(request.bytes, request.operation == Operation::Write, direct))
        }));
        Self { ring, descriptor, call_bytes_max, requests, next: 0, in_flight: 0 }
    }

    /// Runs the batch until the kernel has returned every buffer; returns whether the ring is still good.
    ///
    /// # Safety
    /// As for [`File::run`](crate::File::run).
    unsafe fn run(&mut self) -> bool {
        let mut attempts = 0;
        loop {
            // SAFETY: passed on from the caller.
            unsafe { self.submit() };
            if self.in_flight == 0 {
                return true;
            }
            // If there is more to submit, continue as soon as there is room for a good part of it.
            let exhausted = self.next == self.requests.len();
            let wanted = if exhausted { self.in_flight } else { (self.in_flight / 4).max(1) };
            let outcome = self.ring.uring.submit_and_wait(wanted);
            let progress = self.reap() > 0;
            attempts = if progress || outcome.is_ok() { 0 } else { attempts + 1 };
            match outcome.map_err(|error| error.raw_os_error()) {
                Ok(_) | Err(Some(libc::EINTR)) => {}
                Err(Some(libc::EAGAIN | libc::EBUSY)) if attempts < ATTEMPTS => std::thread::yield_now(),
                Err(_) => {
                    self.drain();
                    return false;
                }
            }
        }
    }

    /// The requests that have no result.
    fn undone(&self) -> Vec<usize> {
        let transfers = self.ring.transfers.iter().enumerate();
        transfers.filter_map(|(index, transfer)| transfer.map(|_| index)).collect()
    }

    /// Fills the submission queue.
    ///
    /// # Safety
    /// As for [`File::run`](crate::File::run).
    unsafe fn submit(&mut self) {
        let mut queue = self.ring.uring.submission();
        while self.in_flight < self.ring.depth {
            let index = self.ring.again.pop().unwrap_or(self.next);
            let (Some(request), Some(transfer)) =
                (self.requests.get_mut(index), self.ring.transfers.get_mut(index))
            else {
                return;
            };
            self.next = self.next.max(index + 1);
            let Some(remaining) = transfer.filter(|transfer| !transfer.is_complete()) else {
                (request.result, *transfer) = (Ok(()), None);
                continue;
            };
            if i64::try_from(request.offset).is_err() {
                let message = format!("no file reaches to offset {}", request.offset);
                request.result = Err(io::Error::new(io::ErrorKind::InvalidInput, message));
                *transfer = None;
                continue;
            }
            let entry = entry(self.descriptor, request, remaining, self.call_bytes_max);
            // SAFETY: the caller vouches for the buffer, and the batch is not left before it is reaped.
            match unsafe { queue.push(&entry.user_data(index as u64)) } {
                Ok(()) => self.in_flight += 1,
                // Cannot happen while no more are in flight than there are entries.
                Err(_) => return self.ring.again.push(index),
            }
        }
    }

    /// Takes completions off the completion queue; returns how many there were.
    fn reap(&mut self) -> usize {
        let mut count = 0;
        for completion in self.ring.uring.completion() {
            count += 1;
            let index = completion.user_data() as usize;
            let (Some(request), Some(slot)) =
                (self.requests.get_mut(index), self.ring.transfers.get_mut(index))
            else {
                continue;
            };
            let Some(mut transfer) = *slot else { continue };
            match outcome(completion.result(), &mut transfer) {
                Outcome::Complete(result) => (request.result, *slot) = (result, None),
                Outcome::CutShort => {
                    *slot = Some(transfer);
                    self.ring.again.push(index);
                }
                Outcome::Undone => {}
            }
        }
        self.in_flight = self.in_flight.saturating_sub(count);
        count
    }

    /// Waits, without the kernel's help, until it has returned all buffers that it accepted.
    fn drain(&mut self) {
        let unaccepted = self.ring.uring.submission().len();
        while self.in_flight > unaccepted {
            // Any entry into the kernel lets it post completions.
            std::thread::sleep(Duration::from_micros(50));
            self.reap();
        }
    }
}

/// The meaning of a completion.
pub(crate) enum Outcome {
    /// The request has its result.
    Complete(io::Result<()>),
    /// It must be submitted again for the rest.
    CutShort,
    /// The kernel gave up for reasons unrelated to the file.
    Undone,
}

pub(crate) fn outcome(result: i32, transfer: &mut Transfer) -> Outcome {
    match usize::try_from(result) {
        Ok(moved) => match transfer.advance(moved) {
            Ok(()) if transfer.is_complete() => Outcome::Complete(Ok(())),
            Ok(()) => Outcome::CutShort,
            Err(error) => Outcome::Complete(Err(error)),
        },
        Err(_) => match -result {
            libc::EINTR | libc::EAGAIN | libc::ECANCELED => Outcome::Undone,
            number => Outcome::Complete(Err(io::Error::from_raw_os_error(number))),
        },
    }
}

/// The rest of a request, in the form that the kernel takes.
fn entry(
    descriptor: RawFd,
    request: &Request,
    transfer: Transfer,
    call_bytes_max: usize,
) -> io_uring::squeue::Entry {
    let file = types::Fd(descriptor);
    let address = request.address.wrapping_add(transfer.done);
    let bytes = transfer.next_bytes(call_bytes_max) as u32; // at most CALL_BYTES_MAX
    // Cannot overflow: an offset is at most i64::MAX, and memory is smaller than that.
    let offset = request.offset + transfer.done as u64;
    match request.operation {
        Operation::Read => opcode::Read::new(file, address, bytes).offset(offset).build(),
        Operation::Write => opcode::Write::new(file, address, bytes).offset(offset).build(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AlignedBuffer;
    use crate::refuse;
    use std::os::fd::AsRawFd;
    use vellum_base::PAGE_SIZE;

    /// A file of this many pages, each filled with its number, and a buffer of the same size.
    fn sample(pages: usize) -> (std::fs::File, AlignedBuffer) {
        use std::io::Write;
        let mut file = tempfile::tempfile().unwrap();
        (0..pages).for_each(|page| file.write_all(&[page as u8; PAGE_SIZE]).unwrap());
        (file, AlignedBuffer::new(pages * PAGE_SIZE))
    }

    fn page_reads(buffer: &mut AlignedBuffer) -> Vec<Request> {
        let address = buffer.as_mut_ptr();
        (0..buffer.len() / PAGE_SIZE)
            .map(|page| page * PAGE_SIZE)
            .map(|place| Request::read(place as u64, address.wrapping_add(place), PAGE_SIZE))
            .collect()
    }

    fn assert_sample(buffer: &AlignedBuffer) {
        assert!(buffer.iter().enumerate().all(|(index, byte)| *byte == (index / PAGE_SIZE) as u8));
    }

    #[test]
    fn a_request_longer_than_one_submission_is_continued() {
        let Ok(mut pool) = RingPool::new(4) else { return };
        pool.call_bytes_max = 3 * PAGE_SIZE;
        let (file, mut buffer) = sample(100);
        let half = 50 * PAGE_SIZE;
        let mut requests = [
            Request::read(0, buffer.as_mut_ptr(), half),
            Request::read(half as u64, buffer.as_mut_ptr().wrapping_add(half), half),
        ];
        // SAFETY: the buffer outlives the call and is not looked at meanwhile.
        let undone = unsafe { pool.run(file.as_raw_fd(), false, &mut requests) };
        assert!(undone.is_empty());
        assert!(requests.iter().all(|request| request.result.is_ok()));
        assert_sample(&buffer);
    }

    #[test]
    fn every_batch_gives_its_ring_back() {
        let Ok(pool) = RingPool::new(4) else { return };
        let (file, mut buffer) = sample(20);
        for _ in 0..10 {
            let mut requests = page_reads(&mut buffer);
            // SAFETY: the buffer outlives the call and is not looked at meanwhile.
            assert!(unsafe { pool.run(file.as_raw_fd(), false, &mut requests) }.is_empty());
            assert_eq!(pool.idle().len(), 1);
        }
        assert_sample(&buffer);
    }

    #[test]
    fn a_ring_that_fails_half_way_keeps_no_buffer() {
        let threads = std::thread::spawn(|| {
            let Ok(mut ring) = Ring::new(8) else { return };
            let (file, mut buffer) = sample(20);
            let mut requests = page_reads(&mut buffer);
            let mut batch = Batch::new(&mut ring, file.as_raw_fd(), false, CALL_BYTES_MAX, &mut requests);
            // SAFETY: the buffer outlives the batch and is not looked at meanwhile.
            unsafe { batch.submit() };
            assert_eq!(batch.in_flight, 8);
            assert_eq!(batch.ring.uring.submit().unwrap(), 8);
            refuse::refuse(libc::SYS_io_uring_enter, libc::EPERM);
            // SAFETY: as above.
            assert!(!unsafe { batch.run() }, "a ring that the kernel refuses is not good");
            // Requests that were accepted before were reaped; later ones never reached the kernel.
            let undone = batch.undone();
            let accepted: Vec<_> = (0..20).filter(|index| !undone.contains(index)).collect();
            assert_eq!(accepted, (0..8).collect::<Vec<_>>());
            drop(ring);
            for page in accepted {
                assert!(requests[page].result.is_ok());
                assert!(buffer[page * PAGE_SIZE..][..PAGE_SIZE].iter().all(|byte| *byte == page as u8));
            }
            assert!(buffer[8 * PAGE_SIZE..].iter().all(|byte| *byte == 0));
        });
        threads.join().unwrap();
    }

    #[test]
    fn a_buffer_that_the_kernel_still_holds_is_waited_for() {
        let waiting = std::thread::spawn(|| {
            let Ok(mut ring) = Ring::new(8) else { return };
            // A read from a pipe belongs to the kernel until something is written.
            let (reader, mut writer) = std::io::pipe().unwrap();
            let mut buffer = AlignedBuffer::new(4 * PAGE_SIZE);
            let mut requests = page_reads(&mut buffer);
            let mut batch = Batch::new(&mut ring, reader.as_raw_fd(), false, CALL_BYTES_MAX, &mut requests);
            // SAFETY: the buffer outlives the batch and is not looked at meanwhile.
            unsafe { batch.submit() };
            assert_eq!(batch.ring.uring.submit().unwrap(), 4);
            let (writes, begun) = (Duration::from_millis(100), std::time::Instant::now());
            let later = std::thread::spawn(move || {
                use std::io::Write;
                std::thread::sleep(writes);
                (0..4).for_each(|page| writer.write_all(&[page; PAGE_SIZE]).unwrap());
            });
            refuse::refuse(libc::SYS_io_uring_enter, libc::EPERM);
            // SAFETY: as above.
            assert!(!unsafe { batch.run() });
            assert!(begun.elapsed() >= writes, "the kernel could still have written to the buffer");
            assert_eq!((batch.in_flight, batch.undone()), (0, Vec::new()));
            assert!(requests.iter().all(|request| request.result.is_ok()));
            later.join().unwrap();
            let mut pages: Vec<_> = buffer.chunks(PAGE_SIZE).map(|page| page[0]).collect();
            pages.sort_unstable();
            assert_eq!(pages, [0, 1, 2, 3]);
        });
        waiting.join().unwrap();
    }
}
