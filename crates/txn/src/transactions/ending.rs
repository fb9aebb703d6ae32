//! How transactions end: their commits, and what closing their snapshots makes needless.

use super::{Pruned, Snapshot, State, Transactions};
use crate::{
    before::Before,
    generations::Oldest,
    leftovers::{Left, Leftovers},
    lock_order::OrderedGuard,
    plant::{Bug, planted},
    reads::ReadSet,
    settings::SnapshotLimit,
    undo_buffers::UndoBuffers,
    writer::Writer,
};
use smallvec::SmallVec;
use std::sync::Arc;
use vellum_base::primitive::Ordering;
use vellum_base::{Lsn, PageId};
use vellum_pool::PoolError;

/// Why a transaction cannot be committed.
#[derive(Debug)]
pub(crate) enum Refused {
    /// A record that it has read was changed: this one.
    Changed(Box<Before>),
    /// Something was loaded into this tree, of which it has read something.
    Loaded(PageId),
    /// Its snapshot has been ended.
    Ended,
    /// Others' changes cannot be read.
    Failed(PoolError),
}

/// What is to be done after a snapshot has been closed.
pub(crate) struct Ended {
    pub oldest: Oldest,
    /// No transaction is open any more.
    pub is_last: bool,
    /// What transactions have left behind and no snapshot needs any more, each with the number by which
    /// [`cleaned_up`](Transactions::cleaned_up) knows it.
    pub free: Left,
    pub pruned: Pruned,
    /// Undo buffers that are to be forgotten, each by its commit and its slot, once their records are noted as changed.
    pub forgotten: SmallVec<[(u64, usize); 2]>,
    /// Whether so many undo buffers are searched that the oldest are to be entered in the table of versions.
    pub are_many_searched: bool,
}

impl Transactions {
    /// Commits a transaction whose records begin after `first`, takes over what it leaves behind, and closes its
    /// snapshot. `reserve` reserves the last record.
    ///
    /// # Errors
    /// If its snapshot has been ended. If it has `reads`, and another transaction that was committed after the snapshot
    /// was taken has changed one of them. What it leaves behind comes back; nothing has happened then.
    pub fn commit(
        &self,
        (writer, snapshot): (&Writer, &Snapshot),
        (first, left): (Lsn, Leftovers),
        reads: Option<&ReadSet>,
        reserve: impl FnOnce(u64) -> Lsn,
    ) -> Result<(Lsn, Ended), Box<(Refused, Leftovers)>> {
        let tested = reads.map_or(Ok(0), |reads| self.test(snapshot.time, reads));
        let left = Arc::new(left);
        // No other thread has it.
        let take_back = |left| Arc::into_inner(left).unwrap_or_default();
        let mut state = self.lock();
        // Snapshots are ended while the state is locked; a test without that lock may have been incomplete.
        if self.is_ended(snapshot) {
            return Err(Box::new((Refused::Ended, take_back(left))));
        }
        let tested = match (tested, reads) {
            (Ok(since), Some(reads)) => {
                state.since(since).try_for_each(|(.., left)| refuse_if(left.find(reads))).and_then(|()| {
                    state.loads.find(snapshot.id, reads).map_or(Ok(()), |tree| Err(Refused::Loaded(tree)))
                })
            }
            (tested, _) => tested.map(drop),
        };
        if let Err(refused) = tested {
            return Err(Box::new((refused, take_back(left))));
        }
        let time = state.time + 1;
        let lsn = reserve(time);
        writer.commit(time);
        state.time = time;
        state.end_writing(writer.id, Some(time));
        state.end_private(&self.has_private, writer.id);
        // Under the same lock, so that at every moment one of the two keeps the log.
        state.changed_bytes += left.bytes;
        self.versions.buffers().commit((writer.id, time), &left);
        if let Some(slot) = left.slot {
            state.searched.push(time, slot, &left);
        }
        state.leftovers.push_back((time, first, left));
        state.join_at(time - 1);
        // Release: a thread that finds this time finds the undo buffers of all commits up to it.
        self.time.store(time, Ordering::Release);
        self.publish(&state);
        Ok((lsn, self.close(state, snapshot)))
    }

    /// Tests the reads of a transaction whose snapshot is of `time` against the commits since, except the last few, so
    /// that little is left to test while the state is locked. Returns the last commit that was tested.
    ///
    /// # Errors
    /// As for [`commit`](Self::commit).
    fn test(&self, time: u64, reads: &ReadSet) -> Result<u64, Refused> {
        /// How many commits may be left.
        const FEW: usize = 4;
        /// How many are tested at a time.
        const MANY: usize = 1024;
        let mut since = time;
        loop {
            let state = self.lock();
            // They stay as long as the snapshot is open.
            let newer: Vec<_> =
                state.since(since).take(MANY).map(|(time, _, left)| (*time, left.clone())).collect();
            drop(state);
            // If possible, nothing is read from a file while the state is locked, and not much is tested.
            if newer.len() <= FEW && newer.iter().all(|(_, left)| !left.is_long_to_test()) {
                return Ok(since);
            }
            for (time, left) in newer {
                refuse_if(left.find(reads))?;
                since = time;
            }
        }
    }

    /// Notes that a transaction has undone everything.
    pub fn end_writing(&self, id: u64) {
        let mut state = self.lock();
        state.end_writing(id, None);
        state.end_private(&self.has_private, id);
        self.publish(&state);
    }

    /// Closes the snapshot of a transaction that has not been committed. Those that wait for it are yet to be called.
    pub fn end(&self, snapshot: &Snapshot) -> Ended {
        self.close(self.lock(), snapshot)
    }

    /// Closes a snapshot, and ends those beyond the limit.
    fn close(&self, mut state: OrderedGuard<'_, State>, snapshot: &Snapshot) -> Ended {
        // If its snapshot was ended before, its transaction is still open: single operations must heed its changes.
        if let Ok(index) = state.snapshots.binary_search_by_key(&snapshot.id, |begun| begun.id) {
            state.snapshots.remove(index);
        } else {
            state.ended.retain(|begun| begun.id != snapshot.id);
        }
        state.open -= 1;
        let is_last = state.open == 0;
        if is_last {
            self.open.store(0, Ordering::SeqCst);
        }
        let (mut free, mut pruned) = (SmallVec::new(), Pruned::default());
        loop {
            let mut oldest = state.oldest();
            state.free_up_to(oldest.of_all, &mut free);
            match state.beyond(&self.limit) {
                Some(time) => {
                    // Release, and before versions are forgotten: see `is_ended`.
                    self.ended_before.0.store(time + 1, Ordering::Release);
                    let count = state.snapshots.partition_point(|begun| begun.time <= time);
                    let State { snapshots, ended, .. } = &mut *state;
                    ended.extend(snapshots.drain(..count));
                }
                None => {
                    state.join_at(snapshot.time);
                    state.prune_up_to(oldest.of_others, &mut pruned);
                    free.append(&mut state.unseen);
                    self.versions.settle(oldest.of_others);
                    let forgotten = state.forget_buffers(oldest.of_others, self.versions.buffers());
                    let are_many_searched = state.searched.are_many(self.versions.spill().bytes);
                    oldest.open = (!self.versions.generations().is_empty()).then(|| state.open_snapshots());
                    drop(state);
                    return Ended { oldest, is_last, free, pruned, forgotten, are_many_searched };
                }
            }
        }
    }
}

impl State {
    /// Gives up the slots of commits up to this one; their undo buffers are searched no more. If there are covered
    /// snapshots, returns them instead.
    fn forget_buffers(&mut self, oldest: u64, buffers: &UndoBuffers) -> SmallVec<[(u64, usize); 2]> {
        let oldest = if planted(Bug::BufferForgottenEarly) { u64::MAX } else { oldest };
        let are_noted = self.covered_count() > 0;
        let mut to_be_noted = SmallVec::new();
        while let Some((time, slot)) = self.searched.pop(oldest) {
            if are_noted {
                to_be_noted.push((time, slot));
            } else {
                buffers.forget(slot, time);
            }
        }
        to_be_noted
    }

    /// The time of the oldest snapshots, if they are to be ended. Either all snapshots of one time are ended or none,
    /// for each holds back what the others do.
    fn beyond(&self, limit: &SnapshotLimit) -> Option<u64> {
        if limit.age.is_none() && limit.bytes.is_none() {
            return None;
        }
        let time = self.snapshots.front()?.time;
        let youngest = self.snapshots.iter().take_while(|begun| begun.time == time).last()?;
        let is_old = limit.age.is_some_and(|age| youngest.when.elapsed() > age);
        let changed = self.changed_bytes - youngest.changed_bytes;
        let is_large = limit.bytes.is_some_and(|bytes| changed > bytes);
        (self.time > time && (is_old || is_large)).then_some(time)
    }
}

fn refuse_if(found: Result<Option<Before>, PoolError>) -> Result<(), Refused> {
    match found {
        Ok(None) => Ok(()),
        Ok(Some(record)) => Err(Refused::Changed(Box::new(record))),
        Err(error) => Err(Refused::Failed(error)),
    }
}
