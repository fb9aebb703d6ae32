//! Memory that ended transactions no longer need, and that threads keep for their next ones.
//!
//! What a transaction keeps of the records that it changes is often freed by another thread: the one that finds that no
//! snapshot needs it. An allocator takes locks for that, and splits and merges what comes back. So a thread keeps some
//! of what it frees, by size, and hands over the excess; it takes a kept buffer, or one that was handed over, before it
//! asks the allocator: see [`depot`](crate::depot).

use crate::depot::{Depot, Kept};
use std::{cell::RefCell, iter, sync::Arc};

/// The lengths of buffers are multiples of this.
const STEP_BYTES: usize = 32;
/// Longer buffers are not kept, and have exactly the requested length.
const LENGTH_MAX: usize = 1024;
/// How many different lengths are kept.
const LENGTHS: usize = LENGTH_MAX / STEP_BYTES;
/// How many bytes the buffers of a batch have: a thread keeps two batches of each length.
const BATCH_BYTES: usize = 8 << 10;
/// How many batches of one length the depot holds at most: half a MiB, for few lengths are in use at a time.
const BATCHES_MAX: usize = 64;

/// Buffers by their lengths in steps, beginning with one step.
type Spare = [Kept<Arc<[u8]>>; LENGTHS];

thread_local! {
    static SPARE: RefCell<Spare> = const { RefCell::new([const { Kept::new() }; _]) };
}

/// What threads have handed over. There is one for all databases of a process, as there is one allocator.
static DEPOTS: [Depot<Arc<[u8]>>; LENGTHS] = [const { Depot::new(BATCHES_MAX) }; _];

/// A key followed by a value, in a buffer that may be longer.
pub(crate) fn joined(key: &[u8], value: &[u8]) -> Arc<[u8]> {
    let length = key.len() + value.len();
    let mut buffer = take_buffer(length).unwrap_or_else(|| {
        let length = if length > LENGTH_MAX { length } else { length.next_multiple_of(STEP_BYTES) };
        iter::repeat_n(0, length).collect()
    });
    match Arc::get_mut(&mut buffer).and_then(|buffer| buffer.get_mut(..length)) {
        Some(place) => {
            let (first, second) = place.split_at_mut(key.len());
            first.copy_from_slice(key);
            second.copy_from_slice(value);
            buffer
        }
        // A buffer with another owner was not kept.
        None => Arc::from([key, value].concat()),
    }
}

/// A buffer of at least this length, if there is one.
fn take_buffer(length: usize) -> Option<Arc<[u8]>> {
    with_spare(length.div_ceil(STEP_BYTES), |kept, depot| kept.take(depot))
}

/// Gives up a buffer, which is kept if it has no other owner.
pub(crate) fn give_up(buffer: Arc<[u8]>) {
    let length = buffer.len();
    // No thread that does not have it yet can get it.
    if Arc::strong_count(&buffer) > 1 || !length.is_multiple_of(STEP_BYTES) {
        return;
    }
    with_spare(length / STEP_BYTES, |kept, depot| {
        kept.keep(buffer, depot, BATCH_BYTES / length.max(STEP_BYTES));
        Some(())
    });
}

/// Calls `with` on the kept buffers of so many steps. `None` if there are none, or the thread is about to end.
fn with_spare<T>(
    steps: usize,
    with: impl FnOnce(&mut Kept<Arc<[u8]>>, &'static Depot<Arc<[u8]>>) -> Option<T>,
) -> Option<T> {
    let index = steps.checked_sub(1)?;
    let depot = DEPOTS.get(index)?;
    SPARE.try_with(|spare| with(spare.borrow_mut().get_mut(index)?, depot)).ok()?
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    /// How many buffers the thread keeps of each length, whose length is checked.
    fn kept() -> Vec<usize> {
        SPARE.with_borrow(|spare| {
            let counts = spare.iter().enumerate().map(|(index, kept)| {
                let length = (index + 1) * STEP_BYTES;
                assert!(kept.items().iter().all(|buffer| buffer.len() == length));
                kept.items().len()
            });
            counts.collect()
        })
    }

    #[test]
    fn memory_is_used_again_once_nobody_has_it_and_no_more_is_kept_than_may_be() {
        let mut random = StdRng::seed_from_u64(5);
        let mut held: Vec<(Arc<[u8]>, Vec<u8>)> = Vec::new();
        let mut most = 0;
        for step in 0..20_000_u32 {
            if random.random_ratio(if step / 4000 % 2 == 0 { 1 } else { 2 }, 3) && !held.is_empty() {
                let (buffer, bytes) = held.swap_remove(random.random_range(0..held.len()));
                assert_eq!(buffer.get(..bytes.len()), Some(&bytes[..]));
                // A second owner keeps it from being used again.
                let other = random.random_ratio(1, 4).then(|| buffer.clone());
                let counts = kept();
                give_up(buffer);
                assert!(other.is_none() || kept() == counts);
            } else {
                let key: Vec<u8> = (0..random.random_range(0..60)).map(|_| random.random()).collect();
                let length = random.random_range(0..[40, 400, 4000][step as usize % 3]);
                let value: Vec<u8> = (0..length).map(|_| random.random()).collect();
                held.push((joined(&key, &value), [key, value].concat()));
            }
            let counts = kept();
            let bytes = counts.iter().enumerate().map(|(index, count)| count * (index + 1) * STEP_BYTES);
            most = most.max(bytes.max().unwrap());
            assert!(most <= BATCH_BYTES * 2);
        }
        assert!(most > BATCH_BYTES, "{most}");
        held.into_iter().for_each(|(buffer, _)| give_up(buffer));
        // Others may take what this thread hands over, and hand over what they do not need.
        while let Some(buffer) = take_buffer(100) {
            assert!(buffer.len() == 128);
        }
        let count = kept()[3];
        give_up(joined(&[7; 90], &[8; 20]));
        assert_eq!(kept()[3], count + 1);
        let again = joined(&[9; 90], &[6; 30]);
        assert_eq!((kept()[3], &again[..90], &again[90..120]), (count, &[9; 90][..], &[6; 30][..]));
        // Nothing is kept of what is empty.
        give_up(Arc::default());
    }
}
