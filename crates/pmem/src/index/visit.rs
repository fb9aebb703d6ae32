//! Visiting all entries while others change the index.
//!
//! Segments are visited in the order of the bit-reversed hash. A segment covers all hashes that end in its pattern,
//! which form one interval of reversed hashes; splits divide intervals and never join them. So a cursor that has passed
//! a point has seen everything before it exactly once.

use super::{ENTRY_WORDS, Index, segment::TOMBSTONE};
use std::sync::atomic::Ordering;

impl Index {
    /// The hashes of the segment that covers the reversed hash `cursor`, each once, from `cursor` on. Returns where to
    /// continue, or none after the last segment.
    pub fn visit(&self, cursor: u64, hashes: &mut Vec<u64>) -> Option<u64> {
        hashes.clear();
        let segment = self.lock_segment_of(cursor.reverse_bits());
        for entry in self.entries(segment.number).chunks_exact(ENTRY_WORDS) {
            let [hash, place] = entry else { continue };
            let at = place.load(Ordering::Relaxed);
            let hash = hash.load(Ordering::Relaxed);
            if at != 0 && at != TOMBSTONE && hash.reverse_bits() >= cursor {
                hashes.push(hash);
            }
        }
        let (pattern, depth) = self.pattern(segment.number);
        drop(segment);
        // The bits above the pattern are the lower ones of the reversed hash: in the interval's last point all of them
        // are set.
        let last = if depth == 0 { u64::MAX } else { pattern.reverse_bits() | (u64::MAX >> depth) };
        let in_overflow = |entry: &&(u64, u64)| (cursor..=last).contains(&entry.0.reverse_bits());
        hashes.extend(self.lock_overflow().iter().filter(in_overflow).map(|(hash, _)| *hash));
        hashes.sort_unstable();
        hashes.dedup();
        last.checked_add(1)
    }
}
