//! Pages that a change has filled.
//!
//! A change takes pages that have room, and leaves each when it has filled it. If the change is not made, they have the
//! room that they had. So that there is room in a page is forgotten only when the change that has filled it was made;
//! otherwise nothing would lead to the page any more, and each change that fails would make the file longer.

use crate::{heap::Heap, state::ROOMY};
use vellum_base::PageId;
use vellum_pool::Pager;

/// The pages that a change has filled. When this is dropped, they are left for others, if they have room then.
pub(crate) struct Filled<'p, P: Pager> {
    heap: Heap<'p, P>,
    /// How many granules of each are free.
    pages: Vec<(PageId, usize)>,
}

impl<'p, P: Pager> Filled<'p, P> {
    pub fn new(heap: Heap<'p, P>) -> Self {
        Self { heap, pages: Vec::new() }
    }

    /// The thread leaves a page, of which so many granules are free without the change, and as the change sees it; `left`
    /// of them are for others.
    pub fn leave(&mut self, page: PageId, before: usize, free: usize, left: usize) {
        if left < ROOMY && before >= ROOMY && free < before {
            self.pages.push((page, before));
        } else {
            self.heap.state.leave(self.heap.directory(), page, left);
        }
    }

    /// The change was made: so many granules of a page are free now.
    pub fn keep(&mut self, page: PageId, free: usize) {
        self.pages.iter_mut().filter(|filled| filled.0 == page).for_each(|filled| filled.1 = free);
    }
}

impl<P: Pager> Drop for Filled<'_, P> {
    fn drop(&mut self) {
        for (page, free) in &self.pages {
            self.heap.state.leave(self.heap.directory(), *page, *free);
        }
    }
}
