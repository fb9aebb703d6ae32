//! Memory for future pages.
//!
//! A thread that fills a new page first waits for the kernel to find memory and to clear it: on a virtual machine,
//! whose host may have to find it too, this takes several microseconds. While a structure grows at the end of the file,
//! the background thread fetches the memory of the next pages ahead of it. The distance starts small and doubles, so
//! that little is fetched for a thread that allocates little.
//!
//! Once the window spans a run that a huge page can back, such runs come as huge pages: this takes half the time, and
//! readers walk the page table less. But on a virtual machine that must first get the memory from its host, a huge page
//! takes several times as long. Then small pages, which are more often available, are fetched until the loss is a small
//! part of all.
//!
//! The pages are counted in the budget (see `replacement::prefault_window`). At most [`WINDOW_MAX`] and a run of them
//! are fetched ahead, never more than a quarter of the pool, and none while memory is short.

use crate::{allocator::Allocator, replacement::resident_pages::Prefaulted};
use std::time::Duration;
use vellum_base::PageId;
use vellum_base::primitive::Instant;

/// How many pages to fetch beyond the end of the file: at first, and at most (4 MiB).
const WINDOW_MIN: u64 = 64;
const WINDOW_MAX: u64 = 1024;
/// How many pages are fetched at once, before checking again whether memory is short.
const STEP: u64 = 64;
/// Huge pages that take longer than small ones may cost one part in this many of the time. And for how many pages at
/// most no huge pages are tried after one that took long.
const PART: u32 = 16;
const SMALL_MAX: u64 = 1 << 16;

/// The page beyond which the background thread is first asked for memory, in a file that ends at page `end`.
pub(crate) fn first_request(end: u64) -> u64 {
    end + WINDOW_MIN
}

/// The progress of the background thread.
pub(crate) struct Prefaulter {
    window: u64,
    /// How long a small page takes, on average.
    small_page: Duration,
    /// Before this page no huge pages are tried.
    small_before: u64,
}

impl Prefaulter {
    pub fn new() -> Self {
        Self { window: WINDOW_MIN, small_page: Duration::ZERO, small_before: 0 }
    }

    /// Fetches the memory of pages beyond the end of the file, after a thread has asked for it.
    pub fn run(&mut self, allocator: &Allocator) {
        let (table, pages, budget) = (allocator.table(), allocator.pages(), &allocator.pages().budget);
        let end = allocator.storage().space.end();
        // Until this thread gives them back, which may be late on a busy machine, nothing else has these pages.
        let farthest = end + budget.limit() as u64 / 4;
        let stop = (end + self.window).min(farthest).min(table.capacity_pages);
        while budget.is_ample() && !budget.is_stopped() {
            let _populating = pages.window.populating();
            let from = pages.window.end();
            if from >= stop {
                break;
            }
            let run_end = from.saturating_add(table.huge_runs.pages_to_run(from));
            if run_end <= farthest && self.prefault_run(allocator, from) {
                continue;
            }
            let count = STEP.min(stop - from).min(table.huge_runs.pages_to_run(from));
            let begun = Instant::now();
            match pages.prefault(from..from + count, || table.populate(PageId(from), count)) {
                Prefaulted::Done => {}
                Prefaulted::NotNow => break,
                // No memory, or the kernel cannot do this. No thread asks again.
                Prefaulted::Refused => return,
            }
            self.small_page = (self.small_page * 7 + begun.elapsed() / count as u32) / 8;
        }
        pages.window.ask_at(stop - (stop - end) / 2);
        self.window = (self.window * 2).min(WINDOW_MAX);
    }

    /// Gives the fetched memory back, because memory is short.
    pub fn release(&mut self, allocator: &Allocator) {
        let _populating = allocator.pages().window.populating();
        allocator.pages().shrink_window(0);
        self.window = WINDOW_MIN;
    }

    /// Fetches a run as a huge page, if one begins at page `from` and is worthwhile. Returns whether it did.
    fn prefault_run(&mut self, allocator: &Allocator, from: u64) -> bool {
        if self.window < WINDOW_MAX || from < self.small_before {
            return false;
        }
        let begun = Instant::now();
        let Some(pages) = allocator.pages().prefault_run(PageId(from)) else { return false };
        self.judge(from, pages, begun.elapsed());
        true
    }

    /// Decides whether to continue with huge pages, after the one for the run at page `from` took this long.
    fn judge(&mut self, from: u64, pages: u64, took: Duration) {
        let lost = took.saturating_sub(self.small_page * pages as u32);
        let small = (lost * PART).as_nanos() / self.small_page.as_nanos().max(1);
        self.small_before = from + u64::try_from(small).unwrap_or(SMALL_MAX).min(SMALL_MAX);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
