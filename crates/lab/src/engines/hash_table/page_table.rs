//! From pages to frames: an open-addressing hash table whose readers take no locks.
//!
//! A slot is one word, a page (plus one) and its frame, so that a reader sees a pair that was there. Whether the frame
//! still holds the page it finds out at the frame. Writers of a shard exclude each other by its lock; while one closes the
//! gap of a page that went, a reader may miss a page that is there: it takes the slow way then, which locks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use vellum_base::PageId;
use vellum_pool::PoolError;
use vellum_vm::Mapping;

/// Frames have numbers of so many bits.
const FRAME_BITS: u32 = 24;

/// The most frames: 64 GiB of them.
pub const FRAMES_MAX: usize = 1 << FRAME_BITS;

/// A table has at least so many slots for each frame, so that searches are short; at most twice as many.
const SLOTS_A_FRAME: usize = 2;

/// Counters of events by the hash of their page, for reads that run beside them.
const STAMPS: usize = 4096;

/// The table.
pub struct PageTable {
    slots: Mapping,
    shard_bits: u32,
    slot_bits: u32,
    shards: Box<[Mutex<()>]>,
    /// How often an image on storage may have changed, or begun to mean something else, while its page was not here.
    stamps: Box<[AtomicU64]>,
}

/// A shard, locked: that of one page, and others by chance.
pub struct Shard<'t> {
    table: &'t PageTable,
    _lock: MutexGuard<'t, ()>,
}

impl PageTable {
    /// How many slots a table for so many frames has.
    pub fn slots(frames: usize) -> usize {
        (frames * SLOTS_A_FRAME).next_power_of_two().max(1024)
    }

    /// An empty table.
    ///
    /// # Errors
    /// If there is no address space for it.
    pub fn new(frames: usize) -> Result<Self, PoolError> {
        let slots = Self::slots(frames);
        // A shard of thousands of slots, of which half are free on average, does not fill up by chance.
        let shard_bits = (slots >> 14).next_power_of_two().ilog2().min(8);
        let mapping = Mapping::reserve((slots * 8).next_multiple_of(4096), "a table of pages")?;
        Ok(Self {
            slots: mapping.for_table(),
            shard_bits,
            slot_bits: slots.ilog2() - shard_bits,
            shards: (0..1 << shard_bits).map(|_| Mutex::new(())).collect(),
            stamps: (0..STAMPS).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    #[inline]
    fn slot(&self, index: usize) -> &AtomicU64 {
        // SAFETY: the index is below the number of slots, for which the mapping has room; zeroes are a slot, and atomics
        // may be shared.
        unsafe { &*self.slots.base().as_ptr().cast::<AtomicU64>().add(index) }
    }

    /// The shard of a page, and where in it the search begins.
    #[inline]
    fn place(&self, page: PageId) -> (usize, usize) {
        let hash = page.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = (hash >> (64 - self.shard_bits - self.slot_bits)) as usize;
        (place >> self.slot_bits, place & ((1 << self.slot_bits) - 1))
    }

    /// The slots of a page's shard in the order of its search, with their contents.
    #[inline]
    fn search(&self, page: PageId) -> impl Iterator<Item = (usize, u64)> {
        let (shard, first) = self.place(page);
        let mask = (1 << self.slot_bits) - 1;
        (0..=mask).map(move |step| {
            let index = (shard << self.slot_bits) + ((first + step) & mask);
            // Acquire: who finds a frame sees it as it was when the page was entered.
            (index, self.slot(index).load(Ordering::Acquire))
        })
    }

    /// The frame of a page, as far as can be seen without a lock.
    #[inline]
    pub fn find(&self, page: PageId) -> Option<u32> {
        for (_, slot) in self.search(page) {
            if slot == 0 {
                return None;
            }
            if slot >> FRAME_BITS == page.0 + 1 {
                return Some((slot & (FRAMES_MAX as u64 - 1)) as u32);
            }
        }
        None
    }

    /// Locks the shard of a page.
    pub fn lock(&self, page: PageId) -> Shard<'_> {
        let lock = self.shards[self.place(page).0].lock().unwrap_or_else(PoisonError::into_inner);
        Shard { table: self, _lock: lock }
    }

    #[inline]
    fn stamp_of(&self, page: PageId) -> &AtomicU64 {
        &self.stamps[page.0 as usize % STAMPS]
    }
}

impl Shard<'_> {
    /// The frame of a page.
    pub fn find(&self, page: PageId) -> Option<u32> {
        self.table.find(page)
    }

    /// Enters a page that is not there; `false` if there is no slot for it.
    pub fn insert(&mut self, page: PageId, frame: u32) -> bool {
        let Some((index, _)) = self.table.search(page).find(|(_, slot)| *slot == 0) else { return false };
        // Release: see `search`.
        self.table.slot(index).store((page.0 + 1) << FRAME_BITS | u64::from(frame), Ordering::Release);
        true
    }

    /// Takes a page out, and moves those whose search would end at its slot.
    pub fn remove(&mut self, page: PageId) {
        let found = |(_, slot): &(usize, u64)| *slot == 0 || *slot >> FRAME_BITS == page.0 + 1;
        let Some((mut gap, 1..)) = self.table.search(page).find(found) else { return };
        let mask = (1 << self.table.slot_bits) - 1;
        let mut index = gap;
        loop {
            index = (index & !mask) | ((index + 1) & mask);
            let slot = self.table.slot(index).load(Ordering::Relaxed);
            if slot == 0 || index == gap {
                break;
            }
            let (_, home) = self.table.place(PageId((slot >> FRAME_BITS) - 1));
            // It may go to the gap unless its search begins behind that.
            if (index.wrapping_sub(home) & mask) >= (index.wrapping_sub(gap) & mask) {
                self.table.slot(gap).store(slot, Ordering::Release);
                gap = index;
            }
        }
        self.table.slot(gap).store(0, Ordering::Release);
    }

    /// Notes that the image of a page on storage may not be what it was.
    pub fn note_change(&mut self, page: PageId) {
        // Relaxed: read and written with the shard locked, or by others by chance, who only see it change too often.
        self.table.stamp_of(page).fetch_add(1, Ordering::Relaxed);
    }

    /// What changes whenever [`note_change`](Self::note_change) is called for the page.
    pub fn stamp(&self, page: PageId) -> u64 {
        self.table.stamp_of(page).load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn pages_are_found_as_long_as_they_are_there() {
        let table = PageTable::new(500).unwrap();
        let mut model = HashMap::new();
        let mut generator = crate::keys::Generator::new(7, 0, 0);
        for _ in 0..200_000 {
            let page = PageId(generator.below(1500));
            let mut shard = table.lock(page);
            if model.contains_key(&page) && generator.below(2) == 0 {
                shard.remove(page);
                model.remove(&page);
            } else if model.len() < 500 && !model.contains_key(&page) {
                let frame = generator.below(500) as u32;
                assert!(shard.insert(page, frame));
                model.insert(page, frame);
            }
            let other = PageId(generator.below(1500));
            assert_eq!(table.find(other), model.get(&other).copied());
        }
        assert!(model.len() > 300);
    }
}
