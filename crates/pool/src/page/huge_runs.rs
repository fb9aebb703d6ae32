//! Which aligned runs of pages (2 MiB on x86-64) are backed by huge pages.
//!
//! # Invariant
//! A run that a huge page backs is flagged; or a thread is about to flag it, or is about to find that one of its pages
//! is gone, and to split it. So the thread that releases a page of the run splits it first, or another thread splits it
//! later. Each of two parties writes and then reads: the releasing thread latches the page and then reads the flag; the
//! collapsing thread sets the flag and then reads the latches; each has a sequentially consistent fence in between.
//!
//! This module does not decide when to collapse runs: see `maintenance::huge_pages`.

use crate::primitive::{AtomicBool, AtomicU64, Bug, Ordering, fence, planted};
use std::ops::Range;
use vellum_base::{Extent, PAGE_SIZE, PageId};
use vellum_vm::{Collapse, Mapping, huge_page_bytes};

/// What backs runs with huge pages: the mapping of all pages or, in the models, a stand-in.
pub(crate) trait Backing {
    /// See [`Mapping::collapse`].
    fn collapse(&self, offset: usize, bytes: usize) -> Collapse;

    /// See [`Mapping::populate_huge`].
    fn populate_huge(&self, offset: usize, bytes: usize) -> Collapse;

    /// See [`Mapping::split`].
    fn split(&self, offset: usize);

    /// The number of bytes.
    fn len(&self) -> usize;
}

impl Backing for Mapping {
    fn collapse(&self, offset: usize, bytes: usize) -> Collapse {
        Mapping::collapse(self, offset, bytes)
    }

    fn populate_huge(&self, offset: usize, bytes: usize) -> Collapse {
        Mapping::populate_huge(self, offset, bytes)
    }

    fn split(&self, offset: usize) {
        Mapping::split(self, offset);
    }

    fn len(&self) -> usize {
        Mapping::len(self)
    }
}

/// The runs of a mapping, and which of them are backed by a huge page.
pub(crate) struct HugeRuns {
    /// The first page of the first run.
    first_page: u64,
    /// The number of pages of a run; 0 if the system has no huge pages or none are wanted.
    run_pages: u64,
    flags: Box<[AtomicU64]>,
    count: AtomicU64,
    /// Whether the kernel cannot collapse runs.
    refused: AtomicBool,
}

impl HugeRuns {
    pub fn new(pages: &Mapping, wanted: bool) -> Self {
        let bytes = huge_page_bytes().filter(|_| wanted);
        let run = bytes.map(|bytes| (bytes, pages.first_huge_page(bytes)));
        let (bytes, first) = run.unwrap_or((usize::MAX, 0));
        let runs = pages.len().saturating_sub(first) / bytes;
        Self {
            first_page: (first / PAGE_SIZE) as u64,
            run_pages: if runs > 0 { (bytes / PAGE_SIZE) as u64 } else { 0 },
            flags: (0..runs.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            count: AtomicU64::new(0),
            refused: AtomicBool::new(false),
        }
    }

    /// Whether runs are ever collapsed.
    pub fn is_enabled(&self) -> bool {
        self.run_pages > 0 && !self.refused.load(Ordering::Relaxed)
    }

    /// How many pages are backed by huge pages.
    pub fn pages(&self) -> u64 {
        self.count.load(Ordering::Relaxed) * self.run_pages
    }

    /// The pages of a run.
    pub fn pages_of(&self, run: u64) -> Range<u64> {
        let first = self.first_page + run * self.run_pages;
        first..first + self.run_pages
    }

    pub fn is_flagged(&self, run: u64) -> bool {
        let word = self.flags.get((run / 64) as usize);
        // Relaxed: callers that depend on the order have fences next to the call.
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (run % 64) & 1 == 1)
    }

    /// The number of pages before the first run that begins after a page.
    pub fn pages_to_run(&self, page: u64) -> u64 {
        match (page.checked_sub(self.first_page), self.run_pages) {
            (_, 0) => u64::MAX,
            (None, _) => self.first_page - page,
            (Some(after), pages) => pages - after % pages,
        }
    }

    /// Splits the huge pages behind extents whose memory is about to be released. The caller has latched the extents
    /// exclusively.
    pub fn split(&self, pages: &impl Backing, extents: &[Extent]) {
        if self.run_pages == 0 {
            return;
        }
        // SeqCst: orders the latches before the flags; see the module's invariant.
        if !planted(Bug::ReleaserFence) {
            fence(Ordering::SeqCst);
        }
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        for extent in extents {
            let mut page = extent.head.0.max(self.first_page);
            while page < extent.end().0 {
                let run = (page - self.first_page) / self.run_pages;
                if self.is_flagged(run) && self.unflag(run) {
                    pages.split(PageId(page).offset() as usize);
                }
                page = self.pages_of(run).end;
            }
        }
    }

    /// Backs a run with a huge page, provided that it still `is_whole` afterwards. Otherwise it has small pages again;
    /// where there was no memory, the kernel may have put some, all zeroes.
    pub fn collapse(
        &self,
        pages: &impl Backing,
        run: u64,
        is_whole: impl FnOnce(Range<u64>) -> bool,
    ) -> Collapse {
        let range = self.pages_of(run);
        let offset = PageId(range.start).offset() as usize;
        let outcome = pages.collapse(offset, self.run_pages as usize * PAGE_SIZE);
        if outcome != Collapse::Done {
            // Relaxed: a hint not to try again.
            self.refused.fetch_or(outcome == Collapse::Refused, Ordering::Relaxed);
            return outcome;
        }
        self.flag(run);
        // SeqCst: orders the flag before the latches; see the module's invariant.
        if !planted(Bug::CollapserFence) {
            fence(Ordering::SeqCst);
        }
        if is_whole(range) {
            return Collapse::Done;
        }
        self.unflag(run);
        pages.split(offset);
        Collapse::Busy
    }

    /// Backs the run that begins at a page with a huge page of zeroes: `count` gets the pages of the run and a function
    /// that fetches their memory, and returns whether the memory was fetched. Returns the number of pages; none if no
    /// run begins there, or this was not possible.
    pub fn populate(
        &self,
        pages: &impl Backing,
        first: PageId,
        count: impl FnOnce(Range<u64>, &dyn Fn() -> bool) -> bool,
    ) -> Option<u64> {
        let after = first.0.checked_sub(self.first_page).filter(|_| self.is_enabled())?;
        let (run, bytes) = (after / self.run_pages, self.run_pages as usize * PAGE_SIZE);
        let offset = first.offset() as usize;
        if after % self.run_pages != 0 || offset + bytes > pages.len() || self.is_flagged(run) {
            return None;
        }
        // Before the pages are counted, which takes the lock that allocations take: a thread that releases a page of
        // the run has allocated it later, and sees the flag.
        self.flag(run);
        let fetch = || {
            let fetched = pages.populate_huge(offset, bytes) == Collapse::Done;
            // SeqCst: orders the memory before the check; see the module's invariant.
            fence(Ordering::SeqCst);
            if !self.is_flagged(run) && !planted(Bug::NoLookAfterFetch) {
                // A page of the run was allocated and released meanwhile, which split the run before it was there.
                pages.split(offset);
            }
            fetched
        };
        if count(self.pages_of(run), &fetch) {
            return Some(self.run_pages);
        }
        self.unflag(run);
        None
    }

    fn flag(&self, run: u64) {
        if let Some(word) = self.flags.get((run / 64) as usize)
            && word.fetch_or(1 << (run % 64), Ordering::Relaxed) >> (run % 64) & 1 == 0
        {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn unflag(&self, run: u64) -> bool {
        let Some(word) = self.flags.get((run / 64) as usize) else { return false };
        let was = word.fetch_and(!(1 << (run % 64)), Ordering::Relaxed) >> (run % 64) & 1 == 1;
        if was {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        was
    }

    /// A single run of `run_pages` pages, for models.
    #[cfg(all(test, loom))]
    pub fn of_one_run(run_pages: u64) -> Self {
        Self {
            first_page: 0,
            run_pages,
            flags: Box::new([AtomicU64::new(0)]),
            count: AtomicU64::new(0),
            refused: AtomicBool::new(false),
        }
    }

    /// The pages of a run, and the run in which a page lies, for tests.
    #[cfg(test)]
    pub fn run_pages(&self) -> u64 {
        self.run_pages
    }

    #[cfg(test)]
    pub fn run_of(&self, page: u64) -> u64 {
        (page - self.first_page) / self.run_pages
    }
}
