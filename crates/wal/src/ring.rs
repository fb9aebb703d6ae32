//! The buffer of the log: a ring in memory, into which threads write frames in parallel.
//!
//! A place is reserved by one atomic addition. The thread that reserved it waits until the ring has room there, copies
//! its frame, and then publishes where the frame ends. The flushing thread follows the published ends: it never passes
//! a frame that is still being copied. (MySQL 8.0 calls such a list of published ends a link buffer.)
//!
//! # Invariants
//! - Only the thread that reserved a frame writes its bytes, after the bytes of the lap before at that place have been
//!   released, and before the end of the frame is published.
//! - The end at a place belongs to this lap if it is greater than the place, by at most one lap. An end of an earlier
//!   lap is at most the place, and one of a later lap is farther away, as no frame is longer than the ring.
//!
//! The words may lie in a file that is mapped shared. Then a frame that is [filled](Ring::advance), and all before it,
//! is with the operating system: what one thread has stored and another has seen stays there when both are killed.

use crate::{
    frame::{ALIGNMENT, FrameHeader, HEADER_BYTES},
    primitive::{AtomicU64, Ordering, RingBug, Words, planted, unless_planted, words},
};
use vellum_base::{Apart, PAGE_SIZE};
use vellum_vm::{VmError, prefetch_to_write};

const WORD_BYTES: u64 = size_of::<u64>() as u64;

pub(crate) struct Ring {
    words: Words,
    /// For each place at which a frame may begin, the end of that frame.
    ends: Words,
    bytes: u64,
    reserved: Apart<AtomicU64>,
    /// What lies before this may be overwritten.
    released: Apart<AtomicU64>,
    /// All frames before this have been published.
    frontier: Apart<AtomicU64>,
    is_shared: bool,
}

impl Ring {
    /// As [`over`](Self::over), in memory.
    #[cfg(test)]
    pub fn new(bytes: u64, lsn: u64) -> Result<Self, VmError> {
        Self::over(None, bytes, lsn)
    }

    /// A ring of `bytes`, a power of two, of a log that goes on at `lsn`: over words that outlive the process, or in
    /// memory.
    pub fn over(shared: Option<Words>, bytes: u64, lsn: u64) -> Result<Self, VmError> {
        debug_assert!(bytes.is_power_of_two() && (bytes >= PAGE_SIZE as u64 || cfg!(loom)));
        let count = (bytes / WORD_BYTES) as usize;
        debug_assert!(shared.as_ref().is_none_or(|words| words.len() == count));
        let ring = Self {
            is_shared: shared.is_some(),
            words: shared.map_or_else(|| words(count), Ok)?,
            ends: words((bytes / ALIGNMENT) as usize)?,
            bytes,
            reserved: Apart(AtomicU64::new(lsn)),
            released: Apart(AtomicU64::new(0)),
            frontier: Apart(AtomicU64::new(lsn)),
        };
        ring.release(lsn);
        Ok(ring)
    }

    /// Reserves a place for a frame, and returns it.
    #[inline]
    pub fn reserve(&self, frame_bytes: u64) -> u64 {
        // SeqCst, here and in `reserved`: a thread that announces something and then reads where the log ends knows
        // that whatever is reserved after that place finds the announcement.
        self.reserved.0.fetch_add(frame_bytes, Ordering::SeqCst)
    }

    /// The place up to which the ring is reserved.
    pub fn reserved(&self) -> u64 {
        self.reserved.0.load(Ordering::SeqCst)
    }

    /// Whether a frame that ends at `end` can be written now.
    #[inline]
    pub fn has_room(&self, end: u64) -> bool {
        // Acquire: what was there has been read before it is overwritten.
        let order = unless_planted(RingBug::RelaxedRoom, Ordering::Acquire);
        end <= self.released.0.load(order) + self.bytes || planted(RingBug::NoLookAtRoom)
    }

    /// Writes a frame into its place, which has room, and publishes it.
    #[inline]
    pub fn fill(&self, lsn: u64, header: &FrameHeader, payload: &[u8]) {
        debug_assert!(self.has_room(lsn + header.bytes()));
        for (place, word) in (lsn..).step_by(WORD_BYTES as usize).zip(header.encode()) {
            // Relaxed, here and below: published by the end of the frame.
            self.word(place).store(word, Ordering::Relaxed);
        }
        let begin = lsn + HEADER_BYTES as u64;
        let (ahead, again) = self.words_from(begin);
        match payload.split_at_checked(ahead.len() * WORD_BYTES as usize) {
            Some((first, second)) => {
                store(ahead, first);
                store(again, second);
            }
            None => store(ahead, payload),
        }
        let end = lsn + header.bytes();
        let mut at = begin + (payload.len() as u64).next_multiple_of(WORD_BYTES);
        while at < end {
            self.word(at).store(0, Ordering::Relaxed);
            at += WORD_BYTES;
        }
        // Release: a thread that finds the end finds the frame.
        self.end_at(lsn).store(end, unless_planted(RingBug::RelaxedEnd, Ordering::Release));
        self.fetch_after(end);
    }

    /// Prefetches the memory of the frame after the one that ends at `end`, if its place has not been reserved:
    /// otherwise the next latch would wait for stores to memory that the processor must fetch first.
    #[inline]
    fn fetch_after(&self, end: u64) {
        /// Most frames are shorter.
        const FETCHED_BYTES: usize = 256;
        if self.reserved() == end {
            prefetch_to_write(std::ptr::from_ref(self.word(end)).cast(), FETCHED_BYTES);
            prefetch_to_write(std::ptr::from_ref(self.end_at(end)).cast(), 1);
        }
    }

    /// Whether the frames outlive the process.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// The place up to which all frames from `from` on have been published; maybe less if `from` has been released.
    pub fn filled(&self, from: u64) -> u64 {
        let mut at = from;
        loop {
            // Acquire: pairs with the release above.
            let end = self.end_at(at).load(unless_planted(RingBug::RelaxedLook, Ordering::Acquire));
            let is_of_lap = end > at && (end <= at + self.bytes || planted(RingBug::NoLookAtLap));
            if !is_of_lap {
                return at;
            }
            at = end;
        }
    }

    /// The place up to which all frames have been published. Threads may call this in parallel; a slow one may get
    /// less.
    #[inline]
    pub fn advance(&self) -> u64 {
        let known = self.frontier();
        let filled = self.filled(known);
        if filled > known {
            // Release: pairs with `frontier`.
            self.frontier.0.fetch_max(filled, unless_planted(RingBug::RelaxedAdvance, Ordering::Release));
        }
        filled
    }

    /// The last place that [`advance`](Self::advance) reached.
    pub fn frontier(&self) -> u64 {
        // Acquire: the frames before it may have been published by threads of which this one learns only through it.
        self.frontier.0.load(unless_planted(RingBug::RelaxedFrontier, Ordering::Acquire))
    }

    /// Copies what lies at `from`, which has been published and not released. Both are multiples of a word.
    pub fn copy_to(&self, from: u64, target: &mut [u8]) {
        let (ahead, again) = self.words_from(from);
        match target.split_at_mut_checked(ahead.len() * WORD_BYTES as usize) {
            Some((first, second)) => {
                load(ahead, first);
                load(again, second);
            }
            None => load(ahead, target),
        }
    }

    /// Copies `bytes` from `from`, as [`copy_to`](Self::copy_to) does.
    pub fn copy(&self, from: u64, bytes: u64) -> Vec<u8> {
        let mut copy = vec![0; bytes as usize];
        self.copy_to(from, &mut copy);
        copy
    }

    /// What lies before the page of `lsn` may be overwritten. That page stays: it is written to the file once more.
    pub fn release(&self, lsn: u64) {
        let page = if cfg!(loom) { ALIGNMENT } else { PAGE_SIZE as u64 };
        // Release: the reads of it are done.
        let order = unless_planted(RingBug::RelaxedRelease, Ordering::Release);
        self.released.0.store(lsn - lsn % page, order);
    }

    #[cfg_attr(
        not(test),
        expect(clippy::indexing_slicing, reason = "the bytes are a power of two, and so many words")
    )]
    #[inline]
    fn word(&self, lsn: u64) -> &AtomicU64 {
        &self.words[((lsn & (self.bytes - 1)) / WORD_BYTES) as usize]
    }

    /// The words from a place on, up to the end of the ring, and those from its beginning.
    #[cfg_attr(
        not(test),
        expect(clippy::indexing_slicing, reason = "the bytes are a power of two, and so many words")
    )]
    fn words_from(&self, lsn: u64) -> (&[AtomicU64], &[AtomicU64]) {
        let index = ((lsn & (self.bytes - 1)) / WORD_BYTES) as usize;
        (&self.words[index..], &self.words[..index])
    }

    #[cfg_attr(
        not(test),
        expect(clippy::indexing_slicing, reason = "the bytes are a power of two, and so many places")
    )]
    #[inline]
    fn end_at(&self, lsn: u64) -> &AtomicU64 {
        &self.ends[((lsn & (self.bytes - 1)) / ALIGNMENT) as usize]
    }
}

/// Stores bytes in words; the last word is filled up with zeroes.
#[inline]
fn store(words: &[AtomicU64], bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    for (word, chunk) in words.iter().zip(whole) {
        // Relaxed: published by the end of the frame.
        word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
    }
    if let Some(word) = words.get(whole.len()).filter(|_| !rest.is_empty()) {
        word.store(last_word(bytes, rest), Ordering::Relaxed);
    }
}

/// The last bytes, fewer than a word, filled up with zeroes.
// Not through memory: a word read back from several smaller stores waits until all earlier stores are done.
#[inline]
fn last_word(bytes: &[u8], rest: &[u8]) -> u64 {
    match bytes.last_chunk() {
        Some(last) => u64::from_le_bytes(*last) >> (64 - 8 * rest.len()),
        None => rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// Copies words, as many as fit the bytes.
#[inline]
fn load(words: &[AtomicU64], target: &mut [u8]) {
    let (target, rest) = target.as_chunks_mut::<8>();
    debug_assert!(rest.is_empty());
    for (word, to) in words.iter().zip(target) {
        // Relaxed: the end of the frame has been seen.
        *to = word.load(Ordering::Relaxed).to_le_bytes();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::frame::Kind;

    fn frame(lsn: u64, payload: &[u8]) -> FrameHeader {
        FrameHeader::new(Kind::Record, 1, lsn, 0, payload)
    }

    #[test]
    fn frames_are_seen_in_order_lap_after_lap() {
        let ring = Ring::new(8192, 8192).unwrap();
        let mut seen = 8192;
        for round in 0..1000u64 {
            let payload = vec![round as u8; (round * 7 % 900) as usize];
            let header = frame(0, &payload);
            let (first, second) = (ring.reserve(header.bytes()), ring.reserve(header.bytes()));
            assert!(ring.has_room(second + header.bytes()));
            ring.fill(second, &frame(second, &payload), &payload);
            assert_eq!(ring.filled(seen), seen, "the first is not there yet");
            ring.fill(first, &frame(first, &payload), &payload);
            assert_eq!(ring.filled(seen), second + header.bytes());
            let mut bytes = vec![1; header.bytes() as usize];
            ring.copy_to(second, &mut bytes);
            assert_eq!(bytes[16..16 + payload.len()], payload);
            assert!(bytes[16 + payload.len()..].iter().all(|byte| *byte == 0));
            seen = second + header.bytes();
            ring.release(seen);
        }
    }

    #[test]
    fn there_is_room_for_a_lap_from_the_page_that_is_written_next() {
        let ring = Ring::new(8192, 4096 + 16).unwrap();
        assert!(ring.has_room(4096 + 8192) && !ring.has_room(4096 + 8192 + 16));
        ring.release(8192 - 16);
        assert!(!ring.has_room(4096 + 8192 + 16));
        ring.release(8192);
        assert!(ring.has_room(8192 + 8192));
    }
}
