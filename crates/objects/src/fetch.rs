//! Bringing objects into memory by parallel reads.
//!
//! Objects that were created one after the other lie in neighbouring pages, and a traversal that has reached one of
//! them often reaches the others. So a thread whose misses are near each other reads the pages around the next miss
//! together with it, in one request. The number of pages adapts to the misses, like the window with which Linux reads
//! ahead from swap: it doubles with each miss near the previous one, and is halved otherwise. A thread that reads at
//! random soon reads single pages.

use crate::{Heap, Ref, error::ObjectError};
use vellum_base::PageId;
use vellum_pool::{FinishedRead, Misses, Pager};

/// Brings objects into memory by parallel reads, which takes a fraction of the time of reading them one after the
/// other. For one thread; it is made once, and kept as long as it is useful.
pub struct Fetcher<'p, P: Pager + 'p> {
    pager: &'p P,
    misses: P::Misses<'p>,
    depth: usize,
    pages: Vec<PageId>,
    finished: Vec<FinishedRead>,
}

impl<'p, P: Pager> Heap<'p, P> {
    /// Makes a fetcher of objects, with up to `depth` reads at a time.
    ///
    /// # Errors
    /// If the system has no resources for it.
    pub fn fetcher(&self, depth: usize) -> Result<Fetcher<'p, P>, ObjectError> {
        let (pager, depth) = (self.pager, depth.max(1));
        Ok(Fetcher { pager, misses: pager.misses(depth)?, depth, pages: Vec::new(), finished: Vec::new() })
    }

    /// Brings the pages of these objects into memory by parallel reads, and returns when they are there. A thread that
    /// does so repeatedly keeps a [`fetcher`](Self::fetcher).
    ///
    /// # Errors
    /// If the system has no resources for it.
    pub fn fetch_all<T>(&self, references: impl IntoIterator<Item = Ref<T>>) -> Result<(), ObjectError> {
        /// How many reads keep a device busy.
        const DEPTH: usize = 64;
        self.fetcher(DEPTH)?.fetch_all(references);
        Ok(())
    }
}

/// The most pages that are read around a missing one.
const AROUND_MAX: u64 = 16;

/// How many pages are read for a missing page, including itself. `last` is the previous missing page, and how many
/// pages were read for it.
fn around(page: PageId, last: Option<(PageId, u64)>) -> u64 {
    match last {
        Some((last, count)) if last.0.abs_diff(page.0) < 2 * AROUND_MAX => (2 * count).min(AROUND_MAX),
        Some((_, count)) => (count / 2).max(1),
        None => 1,
    }
}

impl<P: Pager> Heap<'_, P> {
    /// Reads a missing page together with some pages around it. This is a hint, as for a [`Fetcher`].
    pub(crate) fn read_around(&self, page: PageId) {
        if !self.pager.is_evicted(page) {
            return;
        }
        let missed = self.state.missed.mine();
        let count = around(page, missed.get());
        missed.set(page, count);
        // Pages that are read together must find room, and leave some to others.
        let count = count.min(self.pager.limit_pages() as u64 / 16);
        if count < 2 {
            return;
        }
        let Ok(mut misses) = self.pager.misses(AROUND_MAX as usize) else { return };
        let first = page.0 - page.0 % count;
        let pages: Vec<PageId> = (first..first + count).map(PageId).collect();
        misses.begin_read_ahead(&pages);
        let mut finished = Vec::new();
        while misses.under_way() > 0 {
            misses.reap(true, &mut finished);
        }
    }
}

impl<P: Pager> Fetcher<'_, P> {
    /// Begins to read those pages of these objects that are not in memory, as far as there is memory for them at once.
    /// The reads go on while the thread does something else; reading an object whose page is still being read waits for
    /// it.
    ///
    /// This is only a hint: a page that cannot be read now is read when one of its objects is, which then reports the
    /// error.
    pub fn begin<T>(&mut self, references: impl IntoIterator<Item = Ref<T>>) {
        let pager = self.pager;
        self.pages.clear();
        let pages = references.into_iter().map(|reference| reference.any().page());
        self.pages.extend(pages.filter(|page| pager.is_evicted(*page)));
        self.pages.sort_unstable();
        self.pages.dedup();
        for pages in self.pages.chunks(self.depth) {
            // Make room for the next reads.
            while self.misses.under_way() + pages.len() > self.depth && self.misses.under_way() > 0 {
                self.misses.reap(true, &mut self.finished);
            }
            self.misses.begin_read_ahead(pages);
            self.misses.flush();
            self.misses.reap(false, &mut self.finished);
            self.finished.clear();
        }
    }

    /// Waits until all fetches that were begun are done.
    pub fn wait(&mut self) {
        while self.misses.under_way() > 0 {
            self.misses.reap(true, &mut self.finished);
        }
        self.finished.clear();
    }

    /// [`begin`](Self::begin), and waits until the objects are in memory.
    pub fn fetch_all<T>(&mut self, references: impl IntoIterator<Item = Ref<T>>) {
        self.begin(references);
        self.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_that_are_near_each_other_read_more_and_others_less() {
        let mut last = None;
        let mut counts = Vec::new();
        for page in [1000, 1003, 990, 1010, 1020, 1021, 5000, 9000, 100, 7000, 300, 301] {
            let count = around(PageId(page), last);
            last = Some((PageId(page), count));
            counts.push(count);
        }
        assert_eq!(counts, [1, 2, 4, 8, 16, 16, 8, 4, 2, 1, 1, 2]);
    }
}
