//! Objects that are brought into memory side by side.
//!
//! Objects that were made one after the other lie in neighbouring pages, and a traversal that has come to one of them often comes to the
//! others. So a thread whose misses are near each other reads the pages around the next one with it, by one request. How many follows its misses, as the window
//! does with which Linux reads ahead from swap: it doubles with each one that is near the one before, and is halved otherwise. A thread that reads here and there
//! soon reads single pages.

use crate::{Heap, Ref, error::ObjectError};
use vellum_base::PageId;
use vellum_pool::{FinishedRead, Misses, Pager};

/// Brings objects into memory side by side, where one read after the other would take as many times as long. For one thread; it is made
/// once, and used for as long as it is useful.
pub struct Fetcher<'p, P: Pager + 'p> {
    pager: &'p P,
    misses: P::Misses<'p>,
    depth: usize,
    pages: Vec<PageId>,
    finished: Vec<FinishedRead>,
}

impl<'p, P: Pager> Heap<'p, P> {
    /// Makes what fetches objects, `depth` reads at a time.
    ///
    /// # Errors
    /// If the system has no resources for it.
    pub fn fetcher(&self, depth: usize) -> Result<Fetcher<'p, P>, ObjectError> {
        let (pager, depth) = (self.pager, depth.max(1));
        Ok(Fetcher { pager, misses: pager.misses(depth)?, depth, pages: Vec::new(), finished: Vec::new() })
    }

    /// Brings the pages of these objects into memory, all reads side by side, and returns when they are there. A thread that does so
    /// again and again keeps a [`fetcher`](Self::fetcher).
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

/// How many pages are read with a page that is missing, itself included, after the page that was missing before and how many were read then.
fn around(page: PageId, last: Option<(PageId, u64)>) -> u64 {
    match last {
        Some((last, count)) if last.0.abs_diff(page.0) < 2 * AROUND_MAX => (2 * count).min(AROUND_MAX),
        Some((_, count)) => (count / 2).max(1),
        None => 1,
    }
}

impl<P: Pager> Heap<'_, P> {
    /// Reads a page that is missing, with some that lie around it. That is a hint, as for a [`Fetcher`].
    pub(crate) fn read_around(&self, page: PageId) {
        if !self.pager.is_evicted(page) {
            return;
        }
        let missed = self.state.missed.mine();
        let count = around(page, missed.get());
        missed.set(page, count);
        // What is read at once must find room, and leave some to others.
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
    /// Begins to read the pages of these objects, as far as they are not in memory, and there is memory for them at once. What is begun goes
    /// on while the thread does something else; an object that is read meanwhile is waited for.
    ///
    /// That is a hint: a page that cannot be read now is read when an object of it is, and tells then what is wrong.
    pub fn begin<T>(&mut self, references: impl IntoIterator<Item = Ref<T>>) {
        let pager = self.pager;
        self.pages.clear();
        let pages = references.into_iter().map(|reference| reference.any().page());
        self.pages.extend(pages.filter(|page| pager.is_evicted(*page)));
        self.pages.sort_unstable();
        self.pages.dedup();
        for pages in self.pages.chunks(self.depth) {
            // Room for those that come.
            while self.misses.under_way() + pages.len() > self.depth && self.misses.under_way() > 0 {
                self.misses.reap(true, &mut self.finished);
            }
            self.misses.begin_read_ahead(pages);
            self.misses.flush();
            self.misses.reap(false, &mut self.finished);
            self.finished.clear();
        }
    }

    /// Waits until all that was begun is there.
    pub fn wait(&mut self) {
        while self.misses.under_way() > 0 {
            self.misses.reap(true, &mut self.finished);
        }
        self.finished.clear();
    }

    /// [`begin`](Self::begin), and waits until they are there.
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
