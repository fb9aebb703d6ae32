//! Memory that ended transactions do not need any more, which each thread keeps for its next ones.
//!
//! What a transaction keeps of the records that it changes is often freed by another thread: by whichever finds that no snapshot needs
//! it. An allocator takes locks for that, and joins and divides what comes back. So a thread keeps some of what it frees, of each
//! size apart, and takes from that before it asks the allocator.

use std::{cell::RefCell, iter, sync::Arc};

/// The lengths of buffers are multiples of this.
const STEP_BYTES: usize = 32;
/// Longer buffers are not kept, and have the length that is asked for.
const LENGTH_MAX: usize = 1024;
/// A thread keeps buffers of so many bytes.
const BYTES_MAX: usize = 64 << 10;

/// What a thread keeps.
struct Spare {
    /// By their lengths in steps.
    buffers: [Vec<Arc<[u8]>>; LENGTH_MAX / STEP_BYTES + 1],
    /// How long they are together.
    bytes: usize,
}

thread_local! {
    static SPARE: RefCell<Spare> = const {
        RefCell::new(Spare { buffers: [const { Vec::new() }; _], bytes: 0 })
    };
}

/// A key and a value, one after the other, in a buffer that may be longer.
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
        // It was not kept if somebody else had it.
        None => Arc::from([key, value].concat()),
    }
}

/// A buffer of at least this length, if there is one.
fn take_buffer(length: usize) -> Option<Arc<[u8]>> {
    with_spare(|spare| {
        let buffer = spare.buffers.get_mut(length.div_ceil(STEP_BYTES))?.pop()?;
        spare.bytes -= buffer.len();
        Some(buffer)
    })
}

/// Gives up a buffer, which is kept if nobody else has it.
pub(crate) fn give_up(buffer: Arc<[u8]>) {
    // Nobody who does not have it yet can get it.
    if Arc::strong_count(&buffer) > 1 || !buffer.len().is_multiple_of(STEP_BYTES) {
        return;
    }
    with_spare(|spare| {
        let bytes = spare.bytes + buffer.len();
        let same = spare.buffers.get_mut(buffer.len() / STEP_BYTES).filter(|_| bytes <= BYTES_MAX)?;
        same.push(buffer);
        spare.bytes = bytes;
        Some(())
    });
}

/// Nothing, if the thread is about to end.
fn with_spare<T>(with: impl FnOnce(&mut Spare) -> Option<T>) -> Option<T> {
    SPARE.try_with(|spare| with(&mut spare.borrow_mut())).ok()?
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    fn kept() -> (usize, usize, usize) {
        SPARE.with_borrow(|spare| {
            let buffers = spare.buffers.iter().flatten();
            (buffers.clone().count(), buffers.map(|buffer| buffer.len()).sum(), spare.bytes)
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
                let count = kept().0;
                give_up(buffer);
                assert!(other.is_none() || kept().0 == count);
            } else {
                let key: Vec<u8> = (0..random.random_range(0..60)).map(|_| random.random()).collect();
                let length = random.random_range(0..[40, 400, 4000][step as usize % 3]);
                let value: Vec<u8> = (0..length).map(|_| random.random()).collect();
                held.push((joined(&key, &value), [key, value].concat()));
            }
            let (_, bytes, counted) = kept();
            assert!(bytes == counted && bytes <= BYTES_MAX);
            most = most.max(bytes);
        }
        assert!(most > BYTES_MAX - LENGTH_MAX, "{most}");
        held.into_iter().for_each(|(buffer, _)| give_up(buffer));
        while let Some(buffer) = take_buffer(100) {
            assert!(buffer.len() == 128);
        }
        // Now there is room for another.
        (0..100).for_each(|_| _ = take_buffer(LENGTH_MAX));
        let count = kept().0;
        give_up(joined(&[7; 90], &[8; 20]));
        assert_eq!(kept().0, count + 1);
        let again = joined(&[9; 90], &[6; 30]);
        assert_eq!((kept().0, &again[..90], &again[90..120]), (count, &[9; 90][..], &[6; 30][..]));
    }
}
