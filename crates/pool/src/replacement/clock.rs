//! The replacement policy: a clock with an explicit mark. It chooses victims; `evictor` evicts them.
//!
//! The hand passes over the resident set, marks unlocked pages and finds those that are still marked from its last
//! round: no thread has used them since. A reader removes the mark from a page that it uses.
//!
//! Source: *Virtual-Memory Assisted Buffer Management*, section 3.3.

use crate::{page::state::Word, page_table::PageTable, replacement::resident_set::ResidentSet};
use vellum_base::Extent;
use vellum_base::primitive::{AtomicU64, Ordering};

/// The hand of the clock.
#[derive(Default)]
pub(crate) struct Clock {
    hand: AtomicU64,
}

impl Clock {
    /// Moves the hand until it has found `target` pages that are `wanted` and that no thread has used since the last
    /// round, over about `slots_max` slots at most. The result is in ascending order. Its extents may be gone, or in
    /// use again, a moment later.
    pub(crate) fn advance(
        &self,
        set: &ResidentSet,
        table: &PageTable,
        target: usize,
        slots_max: usize,
        wanted: impl Fn(Word) -> bool,
    ) -> Vec<Extent> {
        const STEP_MAX: usize = 64;
        // In a small set, steps as long as the set would always find the same extents first, even recently used ones.
        let step = STEP_MAX.min(set.slots().div_ceil(8));
        let mut candidates = Vec::new();
        let (mut pages, mut passed) = (0, 0);
        while pages < target && passed < slots_max + step {
            // Relaxed: two hands that pass the same place at once do no harm.
            let start = self.hand.fetch_add(step as u64, Ordering::Relaxed);
            set.visit(start, step, |extent| {
                let state = table.state(extent.head);
                let now = state.load();
                if now.is_unlocked() {
                    state.try_mark(now);
                } else if now.is_marked() && pages < target && wanted(now) {
                    pages += extent.pages as usize;
                    candidates.push(extent);
                }
            });
            passed += step;
        }
        // Two hands may have met on one page; neighbours in order can be written and released together.
        candidates.sort_unstable();
        candidates.dedup_by_key(|extent| extent.head);
        candidates
    }
}
