//! A bitmap in reserved memory: readable by everyone at any time, changed by whoever holds the lock.

use std::sync::atomic::{AtomicU64, Ordering};
use vellum_vm::{Mapping, VmError};

/// One bit a page, for as many pages as the address space holds; only touched parts take memory.
pub(super) struct Bitmap {
    memory: Mapping,
    words: usize,
}

impl Bitmap {
    pub(super) fn reserve(bits: u64, purpose: &'static str) -> Result<Self, VmError> {
        let words = bits.div_ceil(64) as usize;
        let bytes = (words * 8).next_multiple_of(vellum_base::PAGE_SIZE);
        Ok(Self { memory: Mapping::reserve(bytes, purpose)?, words })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.words, "bit beyond the bitmap");
        // SAFETY: the mapping is zeroed, page-aligned, at least `words * 8` bytes long and lives as long as
        // `self`; all access goes through atomics.
        unsafe { AtomicU64::from_ptr(self.memory.base().as_ptr().cast::<u64>().add(index)) }
    }

    /// The word that holds bits `64 * index` to `64 * index + 63`, or zero beyond the end.
    pub(super) fn load(&self, index: usize) -> u64 {
        // SeqCst: see `space` on how a reader that holds a latch and an allocator agree.
        if index < self.words { self.word(index).load(Ordering::SeqCst) } else { 0 }
    }

    pub(super) fn store(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::SeqCst);
    }

    pub(super) fn get(&self, bit: u64) -> bool {
        self.load((bit / 64) as usize) >> (bit % 64) & 1 != 0
    }

    /// Sets or clears `length` bits from `start`.
    pub(super) fn fill(&self, start: u64, length: u64, value: bool) {
        let mut at = start;
        let end = start + length;
        while at < end {
            let take = (64 - at % 64).min(end - at);
            let mask = (u64::MAX >> (64 - take)) << (at % 64);
            let word = self.word((at / 64) as usize);
            if value {
                word.fetch_or(mask, Ordering::SeqCst);
            } else {
                word.fetch_and(!mask, Ordering::SeqCst);
            }
            at += take;
        }
    }

    /// The first bit in `from..to` that is `value`, or `to`.
    pub(super) fn find(&self, value: bool, from: u64, to: u64) -> u64 {
        let mut at = from;
        while at < to {
            let word = self.load((at / 64) as usize);
            let wanted = if value { word } else { !word } >> (at % 64);
            if wanted != 0 {
                return (at + wanted.trailing_zeros() as u64).min(to);
            }
            at += 64 - at % 64;
        }
        to
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn fill_and_find_agree_with_a_vector_of_bools() {
        let bitmap = Bitmap::reserve(1000, "a test").unwrap();
        let mut model = vec![false; 1000];
        let mut seed = 3u64;
        for _ in 0..2000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let start = (seed >> 20) % 1000;
            let length = ((seed >> 40) % 200).min(1000 - start);
            let value = seed >> 63 == 1;
            bitmap.fill(start, length, value);
            model[start as usize..(start + length) as usize].fill(value);
            let from = (seed >> 10) % 1000;
            let expected = (from..1000).find(|bit| model[*bit as usize] == value).unwrap_or(1000);
            assert_eq!(bitmap.find(value, from, 1000), expected);
            assert_eq!(bitmap.get(from), model[from as usize]);
        }
    }
}
