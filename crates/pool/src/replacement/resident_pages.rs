//! The extents that are in memory, and how much of the limit they take.
//!
//! # Invariant
//! An extent is in the resident set, and counted in the budget, from before its latch is first released after it came
//! in, until after the latch was last taken to drop it.

use crate::{
    file::storage::Storage, page_table::PageTable, replacement::budget::Budget,
    replacement::prefault_window::PrefaultWindow, replacement::resident_set::ResidentSet,
    replacement::strays::Strays,
};
use std::ops::Range;
use vellum_base::{Extent, PageId};
use vellum_vm::{Collapse, VmError, prefetch_to_write};

/// The extents of a file that are in memory. A thread that adds or removes an extent holds its exclusive latch.
pub(crate) struct ResidentPages {
    pub(crate) table: PageTable,
    pub(crate) storage: Storage,
    pub(crate) set: ResidentSet,
    pub(crate) budget: Budget,
    pub(crate) window: PrefaultWindow,
    pub(crate) strays: Strays,
}

/// The result of an attempt to fetch memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Prefaulted {
    Done,
    /// There is no room in the budget, or the file has grown beyond the window meanwhile.
    NotNow,
    /// The system gave no memory.
    Refused,
}

impl ResidentPages {
    pub(crate) fn new(table: PageTable, storage: Storage, limit_pages: usize) -> Result<Self, VmError> {
        let (set, budget) = (ResidentSet::new(limit_pages)?, Budget::new(limit_pages));
        let window = PrefaultWindow::new(storage.space.end());
        Ok(Self { table, storage, set, budget, window, strays: Strays::default() })
    }

    /// Removes an extent whose memory is released or reused, and gives its share of the budget back.
    pub(crate) fn remove(&self, head: PageId) -> Option<Extent> {
        let extent = self.set.remove(head)?;
        self.budget.give_back(extent.pages as usize);
        Some(extent)
    }

    /// Prefetches what inserting a page will touch besides the page into the processor's cache.
    pub(crate) fn prefetch_insertion(&self, page: PageId) {
        prefetch_to_write(std::ptr::from_ref(self.table.state(page)).cast(), 1);
        prefetch_to_write(std::ptr::from_ref(self.set.likely_slot(page)).cast(), 1);
    }

    /// Latches an extent exclusively if no thread has used it since the clock marked it, and it equals its image on
    /// storage.
    pub(crate) fn latch_clean(&self, extent: Extent) -> bool {
        let state = self.table.state(extent.head);
        let now = state.load();
        now.is_marked()
            && !now.is_dirty()
            && state.try_exclusive(now)
            && self.is_still_there(extent)
            && !self.is_in_flight(extent)
    }

    /// Whether a copy of an extent that is latched exclusively is on its way to storage: then nothing else may write
    /// the extent, and it stays in memory. In that case the latch is released.
    pub(crate) fn is_in_flight(&self, extent: Extent) -> bool {
        let in_flight = self.storage.logged().is_some_and(|logged| logged.is_in_flight(extent.head));
        if in_flight {
            self.table.unlatch(extent.head, false);
        }
        in_flight
    }

    /// Whether an extent that was seen in the resident set before its latch was taken exclusively is still there. If it
    /// has been freed meanwhile and another extent begins at its head, the latch is released.
    pub(crate) fn is_still_there(&self, extent: Extent) -> bool {
        let there = self.set.contains(extent);
        if !there {
            self.table.unlatch(extent.head, false);
        }
        there
    }

    /// Gives the memory of exclusively latched, unchanged extents back, and unlatches them. Returns their number of
    /// pages.
    pub(crate) fn evict_latched(&self, mut victims: Vec<Extent>) -> usize {
        if victims.is_empty() {
            return 0;
        }
        victims.sort_unstable();
        self.table.drop_memory_of_all(&victims);
        let mut pages = 0;
        for extent in &victims {
            self.remove(extent.head);
            pages += extent.pages as usize;
            self.table.unlatch_evicted(extent.head);
        }
        self.table.counters.pages_evicted.add(pages as u64);
        self.table.counters.eviction_batches.add(1);
        pages
    }

    /// Adds the next pages to the prefault window, and fetches their memory with `fetch`. No other thread fetches
    /// memory meanwhile.
    pub(crate) fn prefault(&self, run: Range<u64>, fetch: impl FnOnce() -> bool) -> Prefaulted {
        let count = (run.end - run.start) as usize;
        if !self.budget.try_reserve(count) {
            return Prefaulted::NotNow;
        }
        if !self.window.extend(&run) {
            self.budget.give_back(count);
            return Prefaulted::NotNow;
        }
        let fetched = fetch();
        if !fetched {
            self.shrink_window(run.start);
        }
        // Pages that were allocated meanwhile may have left memory again before their memory came.
        let start = self.window.start();
        if start > run.start {
            self.note_strays(run.start..start.min(run.end));
        }
        if fetched { Prefaulted::Done } else { Prefaulted::Refused }
    }

    /// Backs a run with a huge page.
    pub(crate) fn collapse(&self, run: u64) -> Collapse {
        let (table, is_whole) = (&self.table, |pages| self.table.is_whole(pages));
        let outcome = table.huge_runs.collapse(&table.pages, run, is_whole);
        if outcome == Collapse::Busy {
            // An evicted page may have got a page of zeroes in its place, which the budget does not count.
            self.note_strays(self.table.huge_runs.pages_of(run));
        }
        outcome
    }

    /// Releases memory that was given to those of the pages that are not in memory.
    fn note_strays(&self, pages: Range<u64>) {
        self.strays.add(pages);
        self.release_strays();
    }

    /// Releases memory that the budget does not count, where that is certain.
    pub(crate) fn release_strays(&self) {
        self.strays.release(&self.table, &self.storage.space);
    }

    /// [`prefault`](Self::prefault) for the run that begins at a page, as a huge page. Returns its number of pages;
    /// none if no run begins there, the window does not end there, or this was not possible.
    pub(crate) fn prefault_run(&self, first: PageId) -> Option<u64> {
        let count = |run: Range<u64>, fetch: &dyn Fn() -> bool| self.prefault(run, fetch) == Prefaulted::Done;
        self.table.huge_runs.populate(&self.table.pages, first, count)
    }

    /// Releases the memory of the window's pages from `from` on. No other thread fetches memory meanwhile.
    pub(crate) fn shrink_window(&self, from: u64) {
        self.window.shrink(from, |released| self.drop_prefaulted(released));
    }

    /// Releases memory that has left the window, because its pages are written past the pool.
    pub(crate) fn release_prefaulted(&self, pages: Range<u64>) {
        if !pages.is_empty() {
            // Some of it may be on its way only now.
            let _populating = self.window.populating();
            self.drop_prefaulted(pages);
        }
    }

    fn drop_prefaulted(&self, pages: Range<u64>) {
        let count = pages.end.saturating_sub(pages.start);
        if count > 0 {
            self.table.drop_memory(Extent { head: PageId(pages.start), pages: count as u32 });
            self.budget.give_back(count as usize);
        }
    }

    /// The extents in memory that differ from storage, in ascending order.
    pub(crate) fn changed(&self) -> Vec<Extent> {
        self.changed_among(|see| self.set.for_each(see))
    }

    /// The changed ones among the extents that are seen. A page that is evicted and read again meanwhile may be seen in
    /// both of its slots; if it were written twice at once, it could be torn.
    fn changed_among(&self, see_each: impl FnOnce(&mut dyn FnMut(Extent))) -> Vec<Extent> {
        let mut changed = Vec::new();
        see_each(&mut |extent| {
            if self.table.state(extent.head).load().is_dirty() {
                changed.push(extent);
            }
        });
        changed.sort_unstable();
        changed.dedup();
        changed
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
