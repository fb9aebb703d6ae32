//! Memory that the budget does not count: the kernel gave it to pages that were being evicted when a run was collapsed,
//! or that were allocated and freed while their memory was being fetched. It is released as soon as it is certain that
//! the pages are not in memory.

use crate::{
    page_table::PageTable,
    primitive::{Mutex, Ordering, fence, lock},
    space::SpaceMap,
};
use std::ops::Range;
use vellum_base::{Extent, PageId};

/// Pages that may have memory which the budget does not count.
#[derive(Default)]
pub(crate) struct Strays {
    pages: Mutex<Vec<PageId>>,
}

impl Strays {
    pub(crate) fn add(&self, pages: Range<u64>) {
        lock(&self.pages).extend(pages.map(PageId));
    }

    /// Releases the memory of those pages that are not in memory. A latched page, which may just be being evicted, is
    /// left for the next time.
    pub(crate) fn release(&self, table: &PageTable, space: &SpaceMap) {
        lock(&self.pages).retain(|page| !release(table, space, *page));
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.pages).is_empty()
    }
}

/// Releases the memory of a page unless it belongs to an extent in memory. Returns false if this is not certain yet.
fn release(table: &PageTable, space: &SpaceMap, page: PageId) -> bool {
    // The state of its extent's head, or its own if it has no extent, tells whether the page is in memory.
    let head = space.head_of(page).unwrap_or(page);
    let state = table.state(head);
    let now = state.load();
    if !now.is_evicted() || !state.try_exclusive(now) {
        let is_certain = !now.is_evicted() && !now.is_exclusive();
        return is_certain && space.head_of(page).unwrap_or(page) == head;
    }
    // SeqCst: orders the latch before the check of the map. An allocation that makes the page part of an extent claims
    // the page and then checks its latch (see `Allocator::publish`), so one of the two sees the other.
    fence(Ordering::SeqCst);
    let is_certain = match space.head_of(page) {
        Some(found) => found == head,
        None => page == head && !space.is_claimed(page),
    };
    if is_certain {
        table.drop_memory(Extent::page(page));
    }
    table.unlatch_evicted(head);
    is_certain
}
