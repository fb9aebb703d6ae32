//! How far back transactions began that are open at a place in the log.

use std::collections::VecDeque;
use vellum_base::Lsn;

/// After how many bytes of log it is looked again which transactions are open.
const STEP_BYTES: u64 = 64 << 10;

/// Places in the log, in their order, each with one before which no transaction began that is open there or later.
#[derive(Default)]
pub(super) struct Beginnings(VecDeque<(Lsn, Lsn)>);

impl Beginnings {
    /// Whether the log, which ends at `end`, has grown so much that [`add`](Self::add) is due. It never is before the
    /// first one. If everything has been read up to `position`, any growth counts as long as something before is kept: it
    /// may be the log of a transaction that has ended.
    pub fn are_outdated(&self, end: Lsn, position: Option<Lsn>) -> bool {
        let is_held = position.is_some_and(|at| self.0.front().is_some_and(|(_, first)| *first < at));
        let step = if is_held { 1 } else { STEP_BYTES };
        self.0.back().is_some_and(|(last, _)| end.0.saturating_sub(last.0) >= step)
    }

    /// No transaction that is open at `at` or later began before `first`.
    pub fn add(&mut self, at: Lsn, first: Lsn) {
        self.0.push_back((at, first));
    }

    /// The place before which no transaction began that is open at `position` or later; the beginning of the log if
    /// that is not known. Earlier positions are not asked for any more.
    pub fn before(&mut self, position: Lsn) -> Lsn {
        while self.0.get(1).is_some_and(|(at, _)| *at <= position) {
            self.0.pop_front();
        }
        self.0.front().map_or(Lsn(0), |(_, first)| *first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_known_at_a_place_counts_up_to_the_next_one() {
        let mut beginnings = Beginnings::default();
        assert!(!beginnings.are_outdated(Lsn(1 << 30), None));
        assert_eq!(beginnings.before(Lsn(1)), Lsn(0));
        beginnings.add(Lsn(100), Lsn(50));
        beginnings.add(Lsn(200), Lsn(150));
        beginnings.add(Lsn(300), Lsn(300));
        assert_eq!(
            [100, 199, 200, 299].map(|position| beginnings.before(Lsn(position)).0),
            [50, 50, 150, 150]
        );
        let are_outdated = |beginnings: &Beginnings, end, position: Option<u64>| {
            beginnings.are_outdated(Lsn(end), position.map(Lsn))
        };
        assert!(are_outdated(&beginnings, 301, Some(301)) && !are_outdated(&beginnings, 300, Some(300)));
        assert_eq!([300, 1 << 40].map(|position| beginnings.before(Lsn(position)).0), [300, 300]);
        assert!(!are_outdated(&beginnings, 299 + STEP_BYTES, None));
        assert!(are_outdated(&beginnings, 300 + STEP_BYTES, None));
        assert!(!are_outdated(&beginnings, 301, Some(300)), "nothing before is kept");
    }
}
