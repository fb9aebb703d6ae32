//! The memory that a store lies in, as words of eight bytes.
//!
//! Data that several threads may access is read and written by whole aligned words, with atomic operations: eight bytes
//! are also what reaches persistent memory in one piece. So a reader that comes too late sees old or new words and
//! never undefined behaviour, and validates the result.
//!
//! Only this module makes references from addresses. Offsets are computed from places that the store itself handed out
//! or has checked; an offset outside the memory is a bug of the store, and causes a panic.

use crate::cpu::{self, LINE};
use std::{
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

/// The unit of reading, writing and persisting in one piece, in bytes.
pub const WORD: usize = 8;

/// Words in the memory of a medium, which outlives this.
#[derive(Debug)]
pub struct Memory {
    base: NonNull<u8>,
    bytes: u64,
}

// SAFETY: it is an address and a length; what lies there is only ever accessed atomically.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// The memory at `base`.
    ///
    /// # Safety
    /// `base` is aligned to pages; `bytes` bytes from there are address space that stays reserved as long as
    /// this value is used, and that no thread accesses but through it (or, as the kernel and other processes do
    /// with a shared mapping, in ways that the compiler does not see). Parts that are not mapped are not
    /// accessed.
    pub unsafe fn new(base: NonNull<u8>, bytes: u64) -> Self {
        Self { base, bytes }
    }

    /// The size in bytes, mapped or not.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The address of an offset, for flush instructions.
    #[inline]
    pub fn address(&self, at: u64) -> *const u8 {
        debug_assert!(at <= self.bytes);
        self.base.as_ptr().wrapping_add(at as usize)
    }

    /// Prefetches the cache lines of `bytes` bytes from byte `at` on. A hint: anything outside the memory is ignored.
    #[inline]
    pub fn prefetch(&self, at: u64, bytes: u64) {
        let end = at.saturating_add(bytes).min(self.bytes);
        let mut line = at / LINE * LINE;
        while line < end {
            cpu::prefetch(self.address(line));
            line += LINE;
        }
    }

    /// The `count` words from byte `at` on.
    ///
    /// # Panics
    /// If `at` is not aligned or the range leaves the memory: places come from the store itself.
    #[inline]
    pub fn words(&self, at: u64, count: usize) -> &[AtomicU64] {
        let bytes = (count as u64) * WORD as u64;
        assert!(
            at.is_multiple_of(WORD as u64) && bytes <= self.bytes && at <= self.bytes - bytes,
            "a place outside of the store's memory"
        );
        // SAFETY: the range lies in the memory and is aligned; all bytes are initialised, as they are those of a
        // mapping; they are only ever accessed as these atomic words (`new`).
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(at as usize).cast::<AtomicU64>(), count) }
    }

    /// The word at byte `at`.
    ///
    /// # Panics
    /// As [`words`](Self::words).
    #[inline]
    pub fn word(&self, at: u64) -> &AtomicU64 {
        let [word] = self.words(at, 1) else { unreachable!("one word was asked for") };
        word
    }
}

/// `bytes` rounded up to whole words.
#[inline]
pub const fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(WORD)
}

/// How many words `bytes` bytes take.
#[inline]
pub const fn words_of(bytes: usize) -> usize {
    bytes.div_ceil(WORD)
}

/// A word made of up to eight bytes, padded with zeroes.
#[inline]
fn word_from(bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        Some(chunk) => u64::from_le_bytes(*chunk),
        None => {
            let mut word = [0; WORD];
            for (to, from) in word.iter_mut().zip(bytes) {
                *to = *from;
            }
            u64::from_le_bytes(word)
        }
    }
}

/// Calls `show` with bytes as words, numbered from 0; the last word is padded with zeroes.
#[inline]
pub fn each_word(bytes: &[u8], mut show: impl FnMut(usize, u64)) {
    let mut chunks = bytes.chunks_exact(WORD);
    let mut number = 0;
    for chunk in chunks.by_ref() {
        show(number, word_from(chunk));
        number += 1;
    }
    if !chunks.remainder().is_empty() {
        show(number, word_from(chunks.remainder()));
    }
}

/// Stores bytes in words, padded with zeroes up to the end of the last word.
///
/// Relaxed: publishing the record orders the stores, and readers validate.
#[inline]
pub fn store_bytes(words: &[AtomicU64], bytes: &[u8]) {
    let mut target = words.iter();
    each_word(bytes, |_, word| {
        if let Some(to) = target.next() {
            to.store(word, Ordering::Relaxed);
        }
    });
}

/// Copies words to bytes, as many as there is room for.
///
/// Relaxed: the words may be changing, and the caller validates afterwards.
#[inline]
pub fn load_bytes(words: &[AtomicU64], bytes: &mut [u8]) {
    let mut source = words.iter();
    let mut chunks = bytes.chunks_exact_mut(WORD);
    for (chunk, word) in chunks.by_ref().zip(source.by_ref()) {
        chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
    }
    let rest = chunks.into_remainder();
    if let (false, Some(word)) = (rest.is_empty(), source.next()) {
        for (to, from) in rest.iter_mut().zip(word.load(Ordering::Relaxed).to_le_bytes()) {
            *to = from;
        }
    }
}

/// Whether words hold these bytes. What lies behind them in the last word means nothing: no checksum covers it. Relaxed, as
/// in [`load_bytes`].
#[inline]
pub fn equal_bytes(words: &[AtomicU64], bytes: &[u8]) -> bool {
    let differs = |chunk: &[u8], word: &AtomicU64| {
        let bits_behind = (WORD - chunk.len()) * 8;
        (word_from(chunk) ^ word.load(Ordering::Relaxed)) << bits_behind != 0
    };
    words.len() == words_of(bytes.len())
        && !bytes.chunks(WORD).zip(words).any(|(chunk, word)| differs(chunk, word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words<const N: usize>() -> [AtomicU64; N] {
        [const { AtomicU64::new(u64::MAX) }; N]
    }

    #[test]
    fn bytes_of_any_length_come_back_and_are_padded_with_zeroes() {
        for length in 0..=24 {
            let bytes: Vec<u8> = (1..=length as u8).collect();
            let memory = words::<4>();
            store_bytes(&memory[..words_of(length)], &bytes);
            let mut back = vec![0xee; length];
            load_bytes(&memory[..words_of(length)], &mut back);
            assert_eq!(back, bytes);
            assert!(equal_bytes(&memory[..words_of(length)], &bytes));
            assert_eq!(memory[words_of(length)].load(Ordering::Relaxed), u64::MAX, "beyond the end");
            if length % WORD != 0 {
                let last = memory[length / WORD].load(Ordering::Relaxed).to_le_bytes();
                assert!(last[length % WORD..].iter().all(|byte| *byte == 0));
            }
        }
    }

    #[test]
    fn different_bytes_and_lengths_are_not_equal() {
        let memory = words::<2>();
        store_bytes(&memory, b"0123456789");
        assert!(equal_bytes(&memory, b"0123456789"));
        assert!(!equal_bytes(&memory, b"0123456780") && !equal_bytes(&memory, b"01234567"));
        assert!(!equal_bytes(&memory[..1], b"0123456789"));
        memory[1].fetch_or(1 << 63, Ordering::Relaxed);
        assert!(equal_bytes(&memory, b"0123456789"), "what lies behind means nothing");
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn a_place_outside_is_refused() {
        let mut area = vec![0u64; 4];
        // SAFETY: the area outlives the memory and is used through it alone.
        let memory = unsafe { Memory::new(NonNull::new(area.as_mut_ptr().cast()).unwrap(), 32) };
        memory.words(24, 2);
    }
}
