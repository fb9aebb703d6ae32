//! The use of each page: two bits per page in reserved memory, which any thread may read at any time.
//!
//! One 64-bit word covers 32 pages: its lower half has a bit for each page that says *allocated*, its upper half one
//! that says *head*. So one load tells the use of a page, even while another thread changes it:
//!
//! | allocated | head | the page |
//! |---|---|---|
//! | 0 | 0 | is free |
//! | 0 | 1 | is claimed: taken by an allocation that is not finished |
//! | 1 | 1 | is the head of an extent |
//! | 1 | 0 | continues the extent of the page before it |
//!
//! An extent appears from its end and disappears from its beginning, a word at a time. So at no moment does a part of
//! it look like an extent, or its neighbour look longer than it is.

use std::sync::atomic::{AtomicU64, Ordering};
use vellum_base::Extent;
use vellum_vm::{Mapping, VmError};

/// The number of pages that a word covers.
const PAGES_PER_WORD: u64 = 32;

/// The use of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    Free,
    Claimed,
    Head,
    Inner,
}

/// The uses of as many pages as the address space holds; only touched parts take memory.
pub(super) struct UseTable {
    memory: Mapping,
    words: usize,
}

impl UseTable {
    pub(super) fn reserve(pages: u64, purpose: &'static str) -> Result<Self, VmError> {
        let words = pages.div_ceil(PAGES_PER_WORD) as usize;
        let bytes = (words * size_of::<u64>()).next_multiple_of(vellum_base::PAGE_SIZE);
        Ok(Self { memory: Mapping::reserve(bytes, purpose)?, words })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.words, "a page beyond the table");
        // SAFETY: the mapping is zeroed, page-aligned, at least `words * 8` bytes long and lives as long as
        // `self`; all access goes through atomics.
        unsafe { AtomicU64::from_ptr(self.memory.base().as_ptr().cast::<u64>().add(index)) }
    }

    /// The word of pages `32 * index` to `32 * index + 31`, or zero beyond the end.
    fn load(&self, index: usize) -> u64 {
        // Acquire: a thread that sees an extent sees what was done before the extent appeared. Certain answers require
        // the latch of the extent's head, which orders (see `space`).
        if index < self.words { self.word(index).load(Ordering::Acquire) } else { 0 }
    }

    /// The use of a page.
    pub(super) fn get(&self, page: u64) -> Use {
        let word = self.load((page / PAGES_PER_WORD) as usize);
        let bit = page % PAGES_PER_WORD;
        match (word >> bit & 1, word >> (bit + PAGES_PER_WORD) & 1) {
            (0, 0) => Use::Free,
            (0, _) => Use::Claimed,
            (_, 0) => Use::Inner,
            _ => Use::Head,
        }
    }

    /// Turns free pages into claimed ones.
    pub(super) fn claim(&self, head: u64, pages: u64) {
        for (index, mask) in Self::runs(head, pages) {
            let before = self.word(index).fetch_or(upper(mask), Ordering::AcqRel);
            debug_assert_eq!(before & both(mask), 0, "claimed what is not free");
        }
    }

    /// Turns claimed pages into an extent, all at once for a thread that looks at its head.
    pub(super) fn publish(&self, head: u64, pages: u64) {
        for (index, mask) in Self::runs(head, pages).rev() {
            let heads = if index as u64 == head / PAGES_PER_WORD { 1 << (head % PAGES_PER_WORD) } else { 0 };
            let before = self.word(index).fetch_xor(u64::from(mask) | upper(mask & !heads), Ordering::AcqRel);
            debug_assert_eq!(before & both(mask), upper(mask), "published what is not claimed");
        }
    }

    /// Turns the pages of an extent into claimed ones.
    pub(super) fn retire(&self, head: u64, pages: u64) {
        for (index, mask) in Self::runs(head, pages) {
            let claimed = |word: u64| Some(word & !u64::from(mask) | upper(mask));
            let _ = self.word(index).fetch_update(Ordering::AcqRel, Ordering::Acquire, claimed);
        }
    }

    /// Turns the pages of an extent into free ones.
    pub(super) fn clear(&self, head: u64, pages: u64) {
        for (index, mask) in Self::runs(head, pages) {
            self.word(index).fetch_and(!both(mask), Ordering::AcqRel);
        }
    }

    /// Turns the pages into an extent, whatever they were: extents that share pages with it become free. Returns how
    /// many of the pages were not allocated before, minus the pages that became free. No other thread changes the table
    /// meanwhile.
    pub(super) fn overwrite(&self, head: u64, pages: u64) -> i64 {
        let end = head + pages;
        let mut at = head;
        while at > 0 && self.get(at) == Use::Inner {
            at -= 1;
        }
        let mut cleared = 0;
        at = self.find_head(at, end);
        while at < end {
            let stop = self.find_not_inner(at + 1, u64::MAX);
            self.clear(at, stop - at);
            cleared += stop - at;
            at = self.find_head(stop, end);
        }
        self.clear(head, pages);
        self.claim(head, pages);
        self.publish(head, pages);
        pages.cast_signed() - cleared.cast_signed()
    }

    /// How many pages right before `end` are free: `most` at most.
    pub(super) fn free_tail(&self, end: u64, most: u64) -> u64 {
        let mut tail = 0;
        while tail < most && self.get(end - tail - 1) == Use::Free {
            tail += 1;
        }
        tail
    }

    /// The first page in `from..to` that is free, or `to`.
    pub(super) fn find_free(&self, from: u64, to: u64) -> u64 {
        self.find(from, to, |allocated, heads| !(allocated | heads))
    }

    /// The first page in `from..to` that is not free, or `to`.
    pub(super) fn find_taken(&self, from: u64, to: u64) -> u64 {
        self.find(from, to, |allocated, heads| allocated | heads)
    }

    /// The first head in `from..to`, or `to`.
    pub(super) fn find_head(&self, from: u64, to: u64) -> u64 {
        self.find(from, to, |allocated, heads| allocated & heads)
    }

    /// The first page in `from..to` that is claimed, or `to`.
    pub(super) fn find_claimed(&self, from: u64, to: u64) -> u64 {
        self.find(from, to, |allocated, heads| !allocated & heads)
    }

    /// The first page in `from..to` that does not continue an extent, or `to`.
    pub(super) fn find_not_inner(&self, from: u64, to: u64) -> u64 {
        self.find(from, to, |allocated, heads| !allocated | heads)
    }

    fn find(&self, from: u64, to: u64, wanted: impl Fn(u32, u32) -> u32) -> u64 {
        let mut at = from;
        while at < to {
            let word = self.load((at / PAGES_PER_WORD) as usize);
            let found = wanted(word as u32, (word >> PAGES_PER_WORD) as u32) >> (at % PAGES_PER_WORD);
            if found != 0 {
                return (at + u64::from(found.trailing_zeros())).min(to);
            }
            at += PAGES_PER_WORD - at % PAGES_PER_WORD;
        }
        to
    }

    /// Whether exactly this extent is allocated.
    pub(super) fn is_extent(&self, extent: Extent) -> bool {
        let (head, end) = (extent.head.0, extent.end().0);
        self.get(head) == Use::Head
            && self.find_not_inner(head + 1, end) == end
            && self.get(end) != Use::Inner
    }

    /// Writes an image of the first `pages` pages: see `space::image`. Pages that are only claimed are written as free.
    pub(super) fn write_image(&self, pages: u64, target: &mut [u8]) {
        for (index, pair) in target.chunks_exact_mut(16).take(pages.div_ceil(64) as usize).enumerate() {
            let (allocated, heads) = pair.split_at_mut(8);
            let (allocated_bits, head_bits) = self.load_pair(index);
            allocated.copy_from_slice(&allocated_bits.to_le_bytes());
            heads.copy_from_slice(&(head_bits & allocated_bits).to_le_bytes());
        }
    }

    /// The allocated bits and the head bits of pages `64 * index` to `64 * index + 63`.
    pub(super) fn load_pair(&self, index: usize) -> (u64, u64) {
        let (low, high) = (self.load(2 * index), self.load(2 * index + 1));
        (u64::from(low as u32) | high << 32, low >> 32 | (high >> 32) << 32)
    }

    /// Sets these bits, in a table that no other thread uses yet.
    pub(super) fn store_pair(&self, index: usize, allocated: u64, heads: u64) {
        let words = [
            u64::from(allocated as u32) | heads << 32,
            u64::from((allocated >> 32) as u32) | heads >> 32 << 32,
        ];
        for (word, value) in (2 * index..).zip(words) {
            if word < self.words {
                self.word(word).store(value, Ordering::Release);
            }
        }
    }

    /// The words that a range touches, each with a mask of its pages.
    fn runs(head: u64, pages: u64) -> impl DoubleEndedIterator<Item = (usize, u32)> {
        let (first, end) = (head / PAGES_PER_WORD, (head + pages).div_ceil(PAGES_PER_WORD));
        (first..end).map(move |index| {
            let base = index * PAGES_PER_WORD;
            let from = head.max(base) - base;
            let to = (head + pages).min(base + PAGES_PER_WORD) - base;
            (index as usize, (u32::MAX >> (PAGES_PER_WORD - (to - from))) << from)
        })
    }
}

fn upper(mask: u32) -> u64 {
    u64::from(mask) << PAGES_PER_WORD
}

fn both(mask: u32) -> u64 {
    u64::from(mask) | upper(mask)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_agrees_with_a_vector() {
        let pages = 1000;
        let table = UseTable::reserve(pages, "a test").unwrap();
        let mut model = vec![Use::Free; pages as usize];
        let mut extents = Vec::new();
        let mut seed = 3u64;
        for _ in 0..3000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let head = (seed >> 20) % pages;
            let length = (1 + (seed >> 40) % 90).min(pages - head);
            let range = head as usize..(head + length) as usize;
            if model[range.clone()].iter().all(|page| *page == Use::Free) {
                table.claim(head, length);
                assert!((head..head + length).all(|page| table.get(page) == Use::Claimed));
                table.publish(head, length);
                model[range.clone()].fill(Use::Inner);
                model[range.start] = Use::Head;
                extents.push((head, length));
            } else if seed >> 62 > 1 {
                let (head, length) = extents.swap_remove((seed >> 10) as usize % extents.len());
                table.clear(head, length);
                model[head as usize..(head + length) as usize].fill(Use::Free);
            }
            let from = (seed >> 12) % pages;
            let find = |wanted: fn(Use) -> bool| {
                (from..pages).find(|page| wanted(model[*page as usize])).unwrap_or(pages)
            };
            assert_eq!(table.get(from), model[from as usize]);
            assert_eq!(table.find_free(from, pages), find(|page| page == Use::Free));
            assert_eq!(table.find_taken(from, pages), find(|page| page != Use::Free));
            assert_eq!(table.find_head(from, pages), find(|page| page == Use::Head));
            assert_eq!(table.find_not_inner(from, pages), find(|page| page != Use::Inner));
        }
        let again = UseTable::reserve(pages, "a test").unwrap();
        for index in 0..pages.div_ceil(64) as usize {
            let (allocated, heads) = table.load_pair(index);
            again.store_pair(index, allocated, heads);
        }
        assert!((0..pages).all(|page| again.get(page) == model[page as usize]));
    }
}
