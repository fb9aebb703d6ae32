//! Pages are made resident and released again, by each method of release. They come by a write to each; or by one
//! call for a batch, where the method has one, and are then written to.
//!
//! All threads of a method work in one mapping that is one VMA, as the pool's is, each in a part of its own. A thread
//! takes pages in a pseudorandom order of its part, so that hardly any two of a batch adjoin: one batch is
//! touched page by page, then released. An operation is one page; a latency is that of a whole batch.

use super::{Pace, Pass, Work, run_threads};
use crate::Result;
use crate::keys::{Generator, Permutation};
use crate::measure::statistics::Latencies;
use std::time::Instant;
use vellum_base::PAGE_SIZE;
use vellum_vm::{Mapping, PageRange, Releaser};

/// Touches and releases pages until the time is over, `batch` pages at a time.
///
/// # Errors
/// If the kernel refuses to release pages, or the mapping has fewer than `batch` pages a thread.
pub fn pass(mapping: &Mapping, releaser: &Releaser, batch: u64, pace: &Pace) -> Result<Pass> {
    let part = (mapping.len() / PAGE_SIZE / pace.threads) as u64;
    if part < batch || batch == 0 {
        return Err(format!("{part} pages a thread are too few for batches of {batch}").into());
    }
    let prepare = |thread: usize| {
        let seed = Generator::new(pace.round, thread as u64, 0).next();
        let ranges = Vec::with_capacity(usize::try_from(batch)?);
        Ok((thread as u64 * part, Permutation::new(part, seed), ranges, Latencies::new()?))
    };
    run_threads(pace.threads, prepare, |(first, order, mut ranges, mut latencies), start| {
        let deadline = start + pace.duration;
        let mut operations = 0;
        let mut position = 0;
        let mut begin = start;
        loop {
            ranges.clear();
            for _ in 0..batch {
                let page = first + order.at(position);
                position = if position + 1 == part { 0 } else { position + 1 };
                let address = mapping.base().as_ptr().wrapping_add(page as usize * PAGE_SIZE);
                ranges.push(PageRange { address, bytes: PAGE_SIZE });
            }
            releaser.supply(&ranges)?;
            for range in &ranges {
                // SAFETY: the page lies in the mapping, in the part that only this thread touches, and
                // no reference into it exists. Volatile, so that the store is made.
                unsafe { range.address.write_volatile(1) };
            }
            // SAFETY: the ranges lie in the mapping, which outlives the call, and only this thread uses
            // them, through no reference.
            unsafe { releaser.release(&ranges)? };
            operations += batch;
            let end = Instant::now();
            latencies.record(end - begin);
            begin = end;
            if end >= deadline {
                return Ok(Work::new(operations, latencies));
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn pages_are_counted_in_batches_and_all_are_released() {
        let mapping = Mapping::reserve(1024 * PAGE_SIZE, "a test").unwrap().for_pages().unwrap();
        let pace =
            Pace { clients: 1, threads: 2, round: 0, duration: Duration::from_millis(20), sample_every: 1 };
        let pass = super::pass(&mapping, &Releaser::new(None).unwrap(), 100, &pace).unwrap();
        assert!(pass.operations >= 200 && pass.operations.is_multiple_of(100));
        assert_eq!(pass.latencies.samples() * 100, pass.operations);
        for page in 0..1024 {
            // SAFETY: the page lies in the mapping and all threads that wrote to it have ended.
            let byte = unsafe { mapping.base().as_ptr().add(page * PAGE_SIZE).read_volatile() };
            assert_eq!(byte, 0, "page {page} is still resident");
        }
    }

    #[test]
    fn a_mapping_that_is_too_small_is_refused() {
        let mapping = Mapping::reserve(64 * PAGE_SIZE, "a test").unwrap();
        let pace =
            Pace { clients: 1, threads: 2, round: 0, duration: Duration::from_millis(1), sample_every: 1 };
        assert!(super::pass(&mapping, &Releaser::new(None).unwrap(), 33, &pace).is_err());
    }
}
