//! Huge pages under what stays in memory.
//!
//! A lookup in a large pool spends much of its time in walks of the page table. Where all pages of an aligned run
//! (2 MiB on x86-64) are in memory and nothing will have to be evicted soon, the background thread has the kernel
//! copy the run into one huge page. When one of its pages must go after all, the huge page is split first, so
//! that the page's memory is free at once.
//!
//! It is done only while few pages a second are read from storage, written to it, allocated or evicted, because it
//! takes milliseconds a run and a thread that touches the run meanwhile waits. Reads and changes of pages in memory do
//! not hold it up; but random ones nearly always meet the run that is being moved, so while other threads of the
//! process use the processor, the thread rests fifty times as long as it worked. Runs that hold extents of several
//! pages are left alone.
//!
//! The runs themselves, and how one is collapsed and split: see `page::huge_runs`.

use crate::{allocator::Allocator, statistics::Counter};
use std::time::Duration;
use vellum_base::primitive::Instant;
use vellum_vm::{Collapse, cpu_time_of_others};

/// How long the pool must have been quiet before the first run is collapsed.
const QUIET: Duration = Duration::from_millis(500);
/// The pool is quiet if not more pages a second are read, written, evicted and allocated, all together: 16 MiB. What
/// happens there while a run is collapsed has to wait, and memory for new pages is fetched by the same thread.
const QUIET_PAGES: u64 = 4096;
/// For how long runs are collapsed at a stretch while the process is idle, and for how long the thread then rests.
const STRETCH: Duration = Duration::from_millis(50);
const REST: Duration = Duration::from_millis(5);
/// While it is not, other threads lose one part in so many. The process is idle if they use the processor for less than
/// that.
const PART: u32 = 50;
/// How long to wait when all is done, or the system has no huge page to give.
const IDLE: Duration = Duration::from_secs(30);

/// What the background thread does when it is not needed otherwise.
pub(crate) struct HugePageScheduler {
    /// How long to wait after the last look until the next one.
    patience: Duration,
    /// The next run to look at.
    run: u64,
    /// What there was at the last look, or when memory ran low.
    seen: Activity,
}

/// What the background thread decides by.
struct Activity {
    at: Instant,
    /// How much was read, evicted, written and allocated.
    activity: [u64; 4],
    /// How much processor time others have used.
    used: Duration,
}

impl Activity {
    fn now(allocator: &Allocator) -> Self {
        let counters = &allocator.table().counters;
        let numbers = [&counters.misses, &counters.pages_evicted, &counters.pages_written];
        let [misses, evicted, written] = numbers.map(Counter::get);
        let activity = [misses, evicted, written, allocator.storage().space.allocated_pages()];
        Self { at: Instant::now(), activity, used: cpu_time_of_others() }
    }

    /// Whether other threads have used the processor since `before`.
    fn is_busy_since(&self, before: &Self) -> bool {
        self.used.saturating_sub(before.used) * PART > self.at - before.at
    }

    /// Whether little has happened since `before`.
    fn is_quiet_since(&self, before: &Self) -> bool {
        let pages: u64 =
            self.activity.iter().zip(before.activity).map(|(now, then)| now.abs_diff(then)).sum();
        u128::from(pages) * 1000 <= u128::from(QUIET_PAGES) * (self.at - before.at).as_millis()
    }
}

impl HugePageScheduler {
    pub fn new(allocator: &Allocator) -> Self {
        Self { patience: QUIET, run: 0, seen: Activity::now(allocator) }
    }

    /// How long the thread should sleep; for ever if nothing will ever be to do.
    pub fn patience(&self, allocator: &Allocator) -> Option<Duration> {
        allocator.table().huge_runs.is_enabled().then(|| self.patience.saturating_sub(self.seen.at.elapsed()))
    }

    /// Memory ran low, so it will be a while.
    pub fn disturbed(&mut self, allocator: &Allocator) {
        (self.patience, self.seen) = (QUIET, Activity::now(allocator));
    }

    /// Collapses some runs, if it has been quiet since the last look.
    pub fn run(&mut self, allocator: &Allocator) {
        let now = Activity::now(allocator);
        let before = std::mem::replace(&mut self.seen, now);
        if !self.seen.is_quiet_since(&before) || !allocator.pages().budget.is_ample() {
            (self.patience, self.run) = (QUIET, 0);
            return;
        }
        let busy = self.seen.is_busy_since(&before);
        self.collapse_some(allocator, busy);
        // What this thread did, and what had to wait for it, tells nothing of the others.
        self.seen = Activity::now(allocator);
    }

    fn collapse_some(&mut self, allocator: &Allocator, busy: bool) {
        let begun = Instant::now();
        let (table, runs) = (allocator.table(), &allocator.table().huge_runs);
        let end = allocator.storage().space.end().min(table.capacity_pages);
        while runs.pages_of(self.run).end <= end {
            let run = self.run;
            self.run += 1;
            if runs.is_flagged(run) || !table.is_whole(runs.pages_of(run)) {
                continue;
            }
            if let Collapse::NoMemory | Collapse::Refused = allocator.pages().collapse(run) {
                break;
            }
            let worked = begun.elapsed();
            if busy || worked >= STRETCH {
                self.patience = if busy { worked * PART } else { REST };
                return;
            }
        }
        (self.patience, self.run) = (IDLE, 0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
