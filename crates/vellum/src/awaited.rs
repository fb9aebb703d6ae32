//! What the trees wait for that are to be freed and cannot be freed yet.
//!
//! Each transaction that ends might be the one for which they have waited. If thousands of tables have been dropped or
//! cleared under an old snapshot, looking at all of them takes a thousand times as long as a small transaction. So a
//! [sweep](crate::shared::Inner::sweep) that leaves any notes what it has waited for, and the next ones look at tables of
//! which there is news only, as long as that has not come. Handles on tables that were cleared keep one page each, and are not waited for one by one: after as
//! many of those sweeps as a sixteenth of the trees, one looks at all. So each transaction pays for sixteen trees at most.

use crate::life::OpenTable;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use vellum_base::primitive::Instant;

/// What could not be freed yet, beside the trees themselves.
#[derive(Default)]
pub(crate) struct Waiting {
    /// Tables that are gone, of which nothing is left but roots that wait for older snapshots, by the commit that these
    /// must see. So a sweep does not look at each of them.
    pub(crate) resting: BTreeMap<u64, Vec<Arc<OpenTable>>>,
    pub(crate) awaited: Awaited,
    /// The addresses of tables with something to be freed of which there is news.
    pub(crate) news: BTreeSet<usize>,
}

/// What has to come before more can be freed than the last sweep has freed. By default the next one looks at all trees.
#[derive(Default)]
pub(crate) struct Awaited {
    /// The first commit that all snapshots must see.
    commit: Option<u64>,
    /// The times of snapshots that must end.
    snapshots: BTreeSet<u64>,
    /// When something is tried again that has failed.
    again: Option<Instant>,
    /// How many sweeps need not look at all trees.
    left_out: usize,
}

impl Awaited {
    /// Nothing yet, after a sweep that leaves so many trees.
    pub(crate) fn of(trees: usize) -> Self {
        /// For how many trees a transaction pays at most.
        const EACH: usize = 16;
        Self { left_out: trees / EACH, ..Self::default() }
    }

    /// All snapshots must see this commit.
    pub(crate) fn commit(&mut self, time: u64) {
        self.commit = Some(self.commit.map_or(time, |commit| commit.min(time)));
    }

    /// This snapshot must end.
    pub(crate) fn end_of(&mut self, snapshot: u64) {
        self.snapshots.insert(snapshot);
    }

    /// Something is tried again at this time.
    pub(crate) fn time(&mut self, again: Instant) {
        self.again = Some(self.again.map_or(again, |first| first.min(again)));
    }

    /// Whether nothing of it has come, and a sweep need not look at all trees. It is given the times of the open snapshots, in
    /// ascending order, and the last commit that all of them see.
    pub(crate) fn is_to_come(&mut self, snapshots: &[u64], oldest: u64) -> bool {
        let is_open = |time: &u64| snapshots.binary_search(time).is_ok();
        let Some(left_out) = self.left_out.checked_sub(1) else { return false };
        self.left_out = left_out;
        self.commit.is_none_or(|commit| commit > oldest)
            && self.snapshots.iter().all(is_open)
            && self.again.is_none_or(|again| again > Instant::now())
    }
}

/// A snapshot that sees a tree: it sees a later commit than `since`, and not the commit `time`.
pub(crate) fn seen_by(snapshots: &[u64], since: u64, time: u64) -> Option<u64> {
    let first = snapshots.partition_point(|snapshot| *snapshot <= since);
    snapshots.get(first).copied().filter(|snapshot| *snapshot < time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_sweep_is_left_out_until_one_of_the_things_comes() {
        let awaiting = |trees| {
            let mut awaited = Awaited::of(trees);
            awaited.commit(9);
            awaited.commit(7);
            awaited.commit(8);
            awaited.end_of(4);
            awaited.end_of(5);
            awaited
        };
        assert!(awaiting(100).is_to_come(&[3, 4, 5, 6], 3));
        assert!(!awaiting(100).is_to_come(&[7, 8], 7), "all see the first commit");
        assert!(!awaiting(100).is_to_come(&[3, 5, 6], 3), "a snapshot has ended");
        assert!(!awaiting(15).is_to_come(&[3, 4, 5, 6], 3), "they are few");
        assert!(!Awaited::default().is_to_come(&[3], 3));
        let mut many = awaiting(48);
        let left_out = (0..10).take_while(|_| many.is_to_come(&[4, 5], 4)).count();
        assert_eq!(left_out, 3, "handles may be gone");
        let now = Instant::now();
        for (again, is_to_come) in [(now, false), (now + Duration::from_secs(1000), true)] {
            let mut failed = Awaited::of(100);
            failed.time(again);
            failed.time(now + Duration::from_secs(2000));
            assert_eq!(failed.is_to_come(&[], 7), is_to_come);
        }
    }

    #[test]
    fn a_tree_is_seen_by_snapshots_between_its_beginning_and_its_end() {
        for (since, time, seen) in
            [(0, 3, None), (0, 4, Some(3)), (3, 5, None), (4, 9, Some(5)), (8, 9, None)]
        {
            assert_eq!(seen_by(&[3, 5, 8], since, time), seen, "{since} {time}");
        }
    }
}
