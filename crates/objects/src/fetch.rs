//! Objects that are brought into memory side by side.

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
