//! The set of resident extents, over which the clock's hand moves.
//!
//! An open-addressing hash table whose size follows the pool's memory and not the storage. Hits never touch it: an
//! extent enters when it becomes resident and leaves when it is evicted or freed, both under its exclusive latch, so no
//! two threads ever insert or remove the same page at once.
//!
//! There is only one kind of empty slot. No thread looks for an extent that is not in the set, so a search ends by
//! finding it, and an emptied slot needs no tombstone.

use crate::{
    limits::{EXTENT_PAGES_MAX, PAGE_BITS, PAGE_ID_MAX},
    primitive::{AtomicU64, Bug, Ordering, planted},
};
use vellum_base::{Extent, PageId};
use vellum_vm::VmError;

const EMPTY: u64 = 0;
/// An entry has the extent's length above the bits of its head's page id.
const PAGE_MASK: u64 = PAGE_ID_MAX;

/// This many consecutive pages have slots side by side: they usually come, and go, together.
const RUN_SLOTS: u64 = 8;

/// In a pool of 6 GiB the slots take 32 MiB, of which nothing is touched before it is used.
#[cfg(not(loom))]
type Slots = vellum_vm::WordTable;
#[cfg(loom)]
type Slots = Box<[AtomicU64]>;

/// The resident extents of a pool. Each slot holds the head's page id in 40 bits and the length in 24.
pub struct ResidentSet {
    slots: Slots,
    mask: u64,
}

impl ResidentSet {
    /// A set with room for `capacity` extents; its load factor stays at a half or below.
    ///
    /// # Errors
    /// If the system has no address space for it.
    pub fn new(capacity: usize) -> Result<Self, VmError> {
        let slots = (capacity.max(1) * 2).next_power_of_two();
        let mask = slots as u64 - 1;
        // The slots are zero, which is `EMPTY`.
        #[cfg(not(loom))]
        let slots = Slots::new(slots, "the set of resident pages")?;
        #[cfg(loom)]
        let slots = (0..slots).map(|_| AtomicU64::new(EMPTY)).collect();
        Ok(Self { slots, mask })
    }

    /// The number of slots that the clock has to pass to see everything once.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Adds an extent that is not in the set; the caller holds its exclusive latch.
    ///
    /// # Panics
    /// If the set is full, which the pool's memory limit excludes: each entry stands for at least one page
    /// of reserved memory.
    pub fn insert(&self, extent: Extent) {
        debug_assert!(extent.head.0 <= PAGE_ID_MAX && extent.pages >= 1 && extent.pages <= EXTENT_PAGES_MAX);
        let entry = ((extent.pages as u64) << PAGE_BITS) | extent.head.0;
        for probe in 0..=self.mask {
            let slot = self.slot(Self::home(extent.head) + probe);
            // Relaxed throughout: a slot carries no other data, and the page to which an entry leads is protected by
            // its latch, which orders.
            if slot.load(Ordering::Relaxed) != EMPTY {
                continue;
            }
            if planted(Bug::InsertWithoutExchange) {
                slot.store(entry, Ordering::Relaxed);
                return;
            }
            if slot.compare_exchange(EMPTY, entry, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return;
            }
        }
        panic!("the resident set is full, though the memory limit should have kept it half empty");
    }

    /// The slot in which an extent that begins here will probably be, to be fetched into the processor's cache.
    pub fn likely_slot(&self, head: PageId) -> &AtomicU64 {
        self.slot(Self::home(head))
    }

    /// Removes an extent and returns it with its length; the caller holds its exclusive latch.
    ///
    /// Returns `None` if it is not in the set, after searching all of it: the pool never asks for that.
    pub fn remove(&self, head: PageId) -> Option<Extent> {
        for probe in 0..=self.mask {
            let slot = self.slot(Self::home(head) + probe);
            let entry = slot.load(Ordering::Relaxed);
            if entry == EMPTY && planted(Bug::RemoveStopsAtEmpty) {
                return None;
            }
            if entry != EMPTY && entry & PAGE_MASK == head.0 {
                // Only this thread may change an entry of this page, because it holds the latch.
                slot.store(EMPTY, Ordering::Relaxed);
                return Some(Self::extent(entry));
            }
        }
        None
    }

    /// Whether exactly this extent is in the set; the caller holds its exclusive latch, and some extent that
    /// begins at its head is in the set.
    pub fn contains(&self, extent: Extent) -> bool {
        let slots = (0..=self.mask).map(|probe| self.slot(Self::home(extent.head) + probe));
        let mut entries = slots.map(|slot| slot.load(Ordering::Relaxed));
        entries
            .find(|entry| *entry != EMPTY && entry & PAGE_MASK == extent.head.0)
            .is_some_and(|entry| Self::extent(entry) == extent)
    }

    /// Shows each extent in `slots` slots from slot `start` on, counted around the end, to `visit`.
    pub fn visit(&self, start: u64, slots: usize, mut visit: impl FnMut(Extent)) {
        for slot in start..start + slots as u64 {
            let entry = self.slot(slot).load(Ordering::Relaxed);
            if entry != EMPTY {
                visit(Self::extent(entry));
            }
        }
    }

    /// Shows every extent to `visit`; extents that come or go meanwhile may be missed.
    pub fn for_each(&self, visit: impl FnMut(Extent)) {
        let entries = self.slots.iter().map(|slot| slot.load(Ordering::Relaxed));
        entries.filter(|entry| *entry != EMPTY).map(Self::extent).for_each(visit);
    }

    fn extent(entry: u64) -> Extent {
        Extent { head: PageId(entry & PAGE_MASK), pages: (entry >> PAGE_BITS) as u32 }
    }

    /// The slot of this number, counted around the end.
    #[cfg_attr(
        not(test),
        expect(clippy::indexing_slicing, reason = "there are as many slots as the mask lets through")
    )]
    #[inline]
    fn slot(&self, number: u64) -> &AtomicU64 {
        &self.slots[(number & self.mask) as usize]
    }

    /// Where the search for a page begins, modulo the number of slots.
    pub(crate) fn home(page: PageId) -> u64 {
        // Fibonacci hashing spreads consecutive runs of pages; its upper bits are the well-mixed ones.
        let run = (page.0 / RUN_SLOTS).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        run * RUN_SLOTS + page.0 % RUN_SLOTS
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn what_was_inserted_and_not_removed_is_there() {
        let set = ResidentSet::new(1000).unwrap();
        let mut model = HashSet::new();
        let mut seed = 7u64;
        for round in 0..20_000u64 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let extent = Extent { head: PageId((seed >> 33) % 3000), pages: 1 + (round % 5) as u32 };
            let present = model.iter().find(|e: &&Extent| e.head == extent.head).copied();
            match present {
                Some(there) => {
                    assert!(set.contains(there));
                    assert!(!set.contains(Extent { pages: there.pages + 1, ..there }));
                    assert_eq!(set.remove(extent.head), Some(there));
                    model.remove(&there);
                }
                None if model.len() < 1000 => {
                    set.insert(extent);
                    model.insert(extent);
                }
                None => assert_eq!(set.remove(extent.head), None),
            }
        }
        let mut seen = HashSet::new();
        set.visit(7, set.slots(), |extent| assert!(seen.insert(extent)));
        assert_eq!(seen, model);
    }
}
