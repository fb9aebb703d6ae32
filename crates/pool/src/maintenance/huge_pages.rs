//! Huge pages behind pages that stay in memory.
//!
//! A lookup in a large pool spends much of its time in walks of the page table. Where all pages of an aligned run (2
//! MiB on x86-64) are in memory and nothing will have to be evicted soon, the background thread has the kernel copy the
//! run into one huge page. If one of its pages must leave after all, the huge page is split first, so that the page's
//! memory is free at once.
//!
//! This happens only while few pages a second are read from storage, written to it, allocated or evicted, because it
//! takes milliseconds for each run. Reads and changes of pages in memory do not hold it up. But a thread that touches the run
//! while it is copied waits, and random reads nearly always do. So the time in which the run cannot be touched is kept short: a
//! free huge page is found before (see [`SpareHugePage`]). And while other threads of the process use the processor, the
//! thread rests long enough that they lose a small part of their time. Runs with extents of several pages are left alone.
//!
//! For the runs themselves, and how one is collapsed and split, see `page::huge_runs`.

use crate::{allocator::Allocator, statistics::Counter};
use std::time::Duration;
use vellum_base::primitive::Instant;
use vellum_vm::{Collapse, SpareHugePage, cpu_time_of_others, huge_page_bytes};

/// How long the pool must have been quiet before the first run is collapsed.
const QUIET: Duration = Duration::from_millis(500);
/// The pool is quiet if no more pages a second than this (16 MiB) are read, written, evicted and allocated, all
/// together. Such work has to wait while a run is collapsed, and the same thread fetches memory for new pages.
const QUIET_PAGES: u64 = 4096;
/// How long runs are collapsed without a break while the process is idle, and how long the thread then rests.
const STRETCH: Duration = Duration::from_millis(50);
const REST: Duration = Duration::from_millis(5);
/// While the process is not idle, other threads wait for at most one part in this many of their time. The process is idle if
/// they use the processor for less than that.
const PART: u32 = 50;
/// While the process is not idle, huge pages are found in at most one part in this many of a processor's time.
const FINDING_PART: u32 = 8;
/// For how long a huge page that was found is taken to be at hand. The kernel gives free memory back to a host after two
/// seconds at the earliest.
const KEPT: Duration = Duration::from_secs(1);
/// How long to wait when all runs are done, or the system has no huge page to give.
const IDLE: Duration = Duration::from_secs(30);

/// The work of the background thread when it is not needed otherwise.
pub(crate) struct HugePageScheduler {
    /// How long to wait from the last check to the next one.
    patience: Duration,
    /// The next run to examine.
    run: u64,
    /// The activity at the last check, or when memory ran low.
    seen: Activity,
    /// None before the first run is collapsed, or if there is no room for it.
    spare: Option<SpareHugePage>,
    /// When the system last found a huge page that no run has got yet.
    found: Option<Instant>,
}

/// The numbers on which the background thread bases its decisions.
struct Activity {
    at: Instant,
    /// The numbers of misses, evicted pages, written pages and allocated pages.
    activity: [u64; 4],
    /// The processor time that other threads have used.
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
        Self { patience: QUIET, run: 0, seen: Activity::now(allocator), spare: None, found: None }
    }

    /// How long the thread should sleep; for ever if there will never be anything to do.
    pub fn patience(&self, allocator: &Allocator) -> Option<Duration> {
        allocator.table().huge_runs.is_enabled().then(|| self.patience.saturating_sub(self.seen.at.elapsed()))
    }

    /// Notes that memory ran low, so that it will take a while.
    pub fn disturbed(&mut self, allocator: &Allocator) {
        (self.patience, self.seen) = (QUIET, Activity::now(allocator));
    }

    /// Collapses some runs, if the pool has been quiet since the last check.
    pub fn run(&mut self, allocator: &Allocator) {
        let now = Activity::now(allocator);
        let before = std::mem::replace(&mut self.seen, now);
        if !self.seen.is_quiet_since(&before) || !allocator.pages().budget.is_ample() {
            (self.patience, self.run) = (QUIET, 0);
            return;
        }
        let busy = self.seen.is_busy_since(&before);
        self.collapse_some(allocator, busy);
        // The activity of this thread, and of threads that had to wait for it, says nothing about the others.
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
            let finding = self.find_spare();
            let collapsing = Instant::now();
            match allocator.pages().collapse(run) {
                Collapse::NoMemory | Collapse::Refused => break,
                Collapse::Busy => {}
                Collapse::Done => self.found = None,
            }
            if busy {
                self.patience = finding * FINDING_PART + collapsing.elapsed() * PART;
                return;
            }
            if begun.elapsed() >= STRETCH {
                self.patience = REST;
                return;
            }
        }
        (self.patience, self.run) = (IDLE, 0);
    }

    /// Makes sure that the system has a huge page for the next run. Returns how long that took.
    fn find_spare(&mut self) -> Duration {
        let begun = Instant::now();
        // While pages are written many runs cannot be collapsed, and a huge page that was found is still there.
        if self.found.is_some_and(|found| begun - found < KEPT) {
            return Duration::ZERO;
        }
        if self.spare.is_none() {
            self.spare = huge_page_bytes().and_then(|bytes| SpareHugePage::reserve(bytes).ok());
        }
        if let Some(spare) = &self.spare {
            spare.find();
            self.found = Some(Instant::now());
        }
        begun.elapsed()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
