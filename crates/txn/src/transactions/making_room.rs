//! Which versions leave memory when it has no room for them: those that old snapshots see go to a cover, others to the
//! file of versions.

use super::{Pruned, Transactions};
use crate::{generations::Covered, versions::Turn};
use vellum_base::Lsn;
use vellum_pool::PoolError;

impl Transactions {
    /// Makes room in memory if versions take more than they may; `end` gives the end of the log. No latch is held.
    ///
    /// # Errors
    /// If the file fails, and versions take so much more than they may that nothing may be changed. Nothing is lost.
    pub fn make_room(&self, end: impl FnOnce() -> Lsn) -> Result<(), PoolError> {
        /// Covering snapshots pays once so many transactions have been committed since the oldest.
        const COMMITS: u64 = if cfg!(test) { 3 } else { 8 };
        let is_old = || {
            let (times, now) = self.snapshots_now();
            times.first().is_some_and(|oldest| now - oldest >= COMMITS)
        };
        let Some(turn) = self.versions.turn_to_move(is_old) else { return Ok(()) };
        turn.end(|turn| {
            // What could not be written before comes first: until that is done, memory is to have no more of it.
            turn.write_frozen()?;
            match (is_old(), turn.is_full()) {
                _ if !turn.is_little() => Ok(()),
                (true, _) => self.cover(turn, end),
                (false, true) => turn.spill(|| self.snapshots_now()),
                (false, false) => Ok(()),
            }
        })
    }

    /// Covers the open snapshots.
    ///
    /// # Errors
    /// If the file fails. Nothing is lost.
    fn cover(&self, turn: &Turn<'_>, end: impl FnOnce() -> Lsn) -> Result<(), PoolError> {
        let generations = self.versions.generations();
        let spill = self.versions.spill();
        let generation = generations.begin_cover(&spill.file, spill.bytes)?;
        let mut state = self.lock_entered();
        let covered = Covered { id: state.next_id - 1, time: state.time };
        state.covering = covered.id;
        let times: Vec<_> = state.others().map(|begun| begun.time).collect();
        drop(state);
        turn.freeze(&generation, (times, covered.time), || generations.arm(&generation, end));
        generations.count(&generation);
        let mut pruned = Pruned::default();
        let mut others = 0;
        if generations.complete(&generation, covered) {
            let mut state = self.lock();
            state.covered = covered;
            others = state.oldest().of_others;
            state.prune_up_to(others, &mut pruned);
            self.versions.settle(others);
        } else {
            generations.give_up(&generation);
            // Versions may be left in undo buffers again.
            let mut state = self.lock();
            state.covering = state.covered.id;
        }
        generation.rest();
        let written = turn.write_frozen();
        pruned.all.iter().for_each(|(_, left)| self.versions.prune_all(left, others));
        self.condense(&pruned);
        written
    }
}
