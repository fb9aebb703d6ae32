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
//! part of the time.
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
/// Huge pages that take longer than small ones may cost one part in this many of a processor's time.
const PART: u32 = 4;

/// The page beyond which the background thread is first asked for memory, in a file that ends at page `end`.
pub(crate) fn first_request(end: u64) -> u64 {
    end + WINDOW_MIN
}

/// The progress of the background thread.
pub(crate) struct Prefaulter {
    window: u64,
    /// How long a small page takes, on average.
    small_page: Duration,
    /// No huge page is fetched before.
    small_until: Instant,
}

impl Prefaulter {
    pub fn new() -> Self {
        Self { window: WINDOW_MIN, small_page: Duration::ZERO, small_until: Instant::now() }
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
        let begun = Instant::now();
        if self.window < WINDOW_MAX || begun < self.small_until {
            return false;
        }
        let Some(pages) = allocator.pages().prefault_run(PageId(from)) else { return false };
        self.judge(pages, begun, Instant::now());
        true
    }

    /// Decides when the next huge page may be fetched, after one for so many pages.
    fn judge(&mut self, pages: u64, begun: Instant, ended: Instant) {
        let lost = (ended - begun).saturating_sub(self.small_page * pages as u32);
        self.small_until = begun + lost * PART;
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
