//! Bringing objects into memory by parallel reads.
//!
//! Objects that were created one after the other lie in neighbouring pages, and a traversal that has reached one of
//! them often reaches the others. So a miss reads pages around the missing one with it, in one request: as many as the
//! thread has used around its last miss. See [`Run`].

use crate::{Heap, Ref, error::ObjectError};
use std::ops::RangeInclusive;
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

/// The most pages that one miss reads.
const READ_MAX: u64 = 24;

/// The longest run. A walk through more neighbouring pages is several runs.
const RUN_MAX: u64 = 64;

/// A run: neighbouring pages that a thread has read since its last jump.
///
/// A miss that is near the end of the run extends it, by as many pages as it has, so that reads double. A miss elsewhere
/// is a jump. It begins a new run, with as many pages on each side of it as were used of the run before; or half as many
/// as were expected to be used, if that is more, because a jump to a single object says little about the next one.
/// A thread that reads at random soon reads single pages. Linux adapts what it reads around a page in swap similarly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    /// The missing page with which it began.
    first: u64,
    /// How many pages before and after that one it has.
    pages: Sides,
    /// How many of them were expected to be used.
    expected: Sides,
}

/// Numbers of pages before a page and after it. At most [`RUN_MAX`] each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Sides {
    before: u64,
    after: u64,
}

impl Run {
    /// The run with the missing `page` in it, and the pages to be read. `is_used` tells whether a page has been used
    /// since it was read.
    fn go_to(last: Option<Self>, page: u64, is_used: impl Fn(u64) -> bool) -> (Self, RangeInclusive<u64>) {
        let Some(last) = last else { return Self::begin(page, Sides::default()) };
        let (low, high) = (last.first - last.pages.before, last.first + last.pages.after);
        let more = (high - low + 1).min(READ_MAX / 2);
        if page > high && page - high <= READ_MAX / 2 && page + more - last.first <= RUN_MAX {
            let after = page + more - 1 - last.first;
            return (Self { pages: Sides { after, ..last.pages }, ..last }, high + 1..=page + more - 1);
        }
        let lowest = page.saturating_sub(more - 1).max(1);
        if page < low && low - page <= READ_MAX / 2 && last.first - lowest <= RUN_MAX {
            let before = last.first - lowest;
            return (Self { pages: Sides { before, ..last.pages }, ..last }, lowest..=low - 1);
        }
        let farthest =
            |most: u64, page: &dyn Fn(u64) -> u64| (1..=most).rev().find(|far| is_used(page(*far)));
        let before = farthest(last.pages.before, &|far| last.first - far).unwrap_or(0);
        let after = farthest(last.pages.after, &|far| last.first + far).unwrap_or(0);
        let expected =
            Sides { before: before.max(last.expected.before / 2), after: after.max(last.expected.after / 2) };
        Self::begin(page, expected)
    }

    fn begin(page: u64, expected: Sides) -> (Self, RangeInclusive<u64>) {
        let after = expected.after.min(READ_MAX - 1);
        let before = expected.before.min(READ_MAX - 1 - after).min(page.saturating_sub(1));
        (Self { first: page, pages: Sides { before, after }, expected }, page - before..=page + after)
    }

    /// A hint holds a page and a word.
    fn from_hint((first, word): (PageId, u64)) -> Self {
        let [before, after, expected_before, expected_after, ..] = word.to_le_bytes().map(u64::from);
        let expected = Sides { before: expected_before, after: expected_after };
        Self { first: first.0, pages: Sides { before: before.min(first.0), after }, expected }
    }

    fn to_hint(self) -> (PageId, u64) {
        let sides = |sides: Sides| sides.before | sides.after << 8;
        (PageId(self.first), sides(self.pages) | sides(self.expected) << 16)
    }
}

impl<P: Pager> Heap<'_, P> {
    /// Reads a missing page together with some pages around it. This is a hint, as for a [`Fetcher`].
    pub(crate) fn read_around(&self, page: PageId) {
        if !self.pager.is_evicted(page) {
            return;
        }
        let missed = self.state.missed.mine();
        let last = missed.get().map(Run::from_hint);
        let (run, pages) = Run::go_to(last, page.0, |page| self.pager.is_used(PageId(page)));
        let (first, word) = run.to_hint();
        missed.set(first, word);
        // Pages that are read together must find room, and leave some to others.
        let most = self.pager.limit_pages() as u64 / 16;
        if pages.clone().count() < 2 || most < 2 {
            return;
        }
        let Ok(mut misses) = self.pager.misses(READ_MAX as usize) else { return };
        let pages: Vec<PageId> =
            pages.map(PageId).filter(|other| other.0.abs_diff(page.0) < most / 2).collect();
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

impl<'p, P: Pager + 'p> std::fmt::Debug for Fetcher<'p, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetcher").field("depth", &self.depth).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each of these misses reads, if of all pages that were read only those that `is_used` allows are used.
    fn reads(misses: &[u64], is_used: impl Fn(u64) -> bool) -> Vec<RangeInclusive<u64>> {
        let mut last = None;
        let read = misses.iter().map(|page| {
            let (run, read) = Run::go_to(last.map(|run: Run| Run::from_hint(run.to_hint())), *page, &is_used);
            last = Some(run);
            read
        });
        read.collect()
    }

    #[test]
    fn misses_next_to_each_other_read_more_and_more() {
        assert_eq!(reads(&[100, 101, 103, 107], |_| true), [100..=100, 101..=101, 102..=104, 105..=111]);
        assert_eq!(reads(&[100, 99, 97, 93], |_| true), [100..=100, 99..=99, 96..=98, 89..=95]);
        // However long the walk is, each page is read once.
        let mut last = None;
        let mut page = 1000;
        while page < 2000 {
            let (run, read) = Run::go_to(last, page, |_| true);
            assert_eq!(*read.start(), page);
            assert!(*read.end() - page < READ_MAX && run.pages.after <= RUN_MAX);
            (last, page) = (Some(run), read.end() + 1);
        }
    }

    #[test]
    fn a_jump_reads_what_was_used_around_the_one_before() {
        // Groups of twelve pages, entered at their first; then at their last.
        let group = |page: u64| page % 1000 < 12;
        assert_eq!(
            reads(&[1000, 1001, 1003, 1007, 5000, 3000], group)[3..],
            [1005..=1011, 5000..=5011, 3000..=3011]
        );
        assert_eq!(reads(&[1011, 1010, 1007, 1003, 5011], group)[4], 5000..=5011);
        // A jump to a single page between them halves what is expected once.
        let used = |page: u64| group(page) && page != 9001 && !(9001..9999).contains(&page);
        assert_eq!(reads(&[1000, 1001, 1003, 1007, 9000, 5000], used)[4..], [9000..=9011, 5000..=5005]);
    }

    #[test]
    fn random_misses_soon_read_single_pages() {
        let mut misses = vec![100, 101, 103, 107];
        misses.extend((1..9).map(|jump| jump * 1000));
        let counts: Vec<usize> = reads(&misses, |page| page < 120).into_iter().map(Iterator::count).collect();
        assert_eq!(counts[4..], [12, 6, 3, 2, 1, 1, 1, 1]);
        // At the beginning of the file there is less to read.
        assert_eq!(reads(&[40, 39, 38, 36, 2], |_| true)[4], 1..=2);
    }
}
