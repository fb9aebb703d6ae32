//! Enters in the table what others search in undo buffers, and stops using the table when it is empty.

use super::{Shard, Versions, claiming::Appended};
use crate::{
    before::{Before, BeforeImage},
    exposure::Exposure,
    leftovers::Leftovers,
    plant::{Bug, planted},
    write_set::WriteSet,
    writer::Writer,
};
use smallvec::SmallVec;
use std::sync::Arc;
use vellum_base::primitive::Ordering;

impl Versions {
    /// Shows others the changes of a transaction, if its write set is private.
    #[cold]
    pub fn publish(&self, writes: &Arc<WriteSet>) {
        let mut state = writes.lock_of_other();
        if state.exposure != Exposure::Private {
            return;
        }
        let is_searched = !state.is_large(self.spill.bytes_each()) && self.generations.is_empty();
        match if is_searched { self.buffers.take(writes) } else { None } {
            Some(slot) => state.show(slot, |hash, is_removal| self.buffers.note(slot, hash, is_removal)),
            None => {
                state.enter(|before, is_removal| self.enter(writes.writer(), before, is_removal, (&[], 0)))
            }
        }
    }

    /// Enters in the table what others search in undo buffers. `snapshots` is given the open transactions that will be
    /// entered, and gives the times of the open snapshots, in ascending order, and that of the last commit. This thread
    /// holds the lock of none of these write sets.
    pub fn enter_all(&self, snapshots: impl FnOnce(&[u64]) -> (Vec<u64>, u64)) {
        if self.buffers.is_empty() {
            return;
        }
        // One thread at a time, so that the versions of a record are entered in order.
        let _entering = self.entering.lock();
        // What these write sets see was committed before this call. It is entered first: see the order in
        // `undo_buffers`.
        let open = self.buffers.open();
        let ids: SmallVec<[u64; 4]> = open.iter().map(|writes| writes.id()).collect();
        let (times, now) = snapshots(&ids);
        let snapshots = (&times[..], now);
        self.buffers.enter_committed(now, |id, time, left| self.enter_commit((id, time), left, snapshots));
        for writes in open {
            let mut state = writes.lock_of_other();
            if let Exposure::Searched(slot) = state.exposure {
                state.enter(|before, is_removal| self.enter(writes.writer(), before, is_removal, snapshots));
                self.buffers.leave(slot);
            }
        }
    }

    /// Enters the oldest commits in the table: `oldest` gives these, each by its time and its slot, with the times of the
    /// open snapshots, in ascending order, and that of the last commit. Calls `entered` with them. Does nothing if
    /// another thread is entering. This thread holds the lock of no write set.
    pub fn enter_oldest(
        &self,
        oldest: impl FnOnce() -> (SmallVec<[(u64, usize); 16]>, (Vec<u64>, u64)),
        entered: impl FnOnce(&[(u64, usize)]),
    ) {
        // In order, and after what was there before: see the order in `undo_buffers`.
        let Some(_entering) = self.entering.try_lock() else { return };
        let (oldest, (times, now)) = oldest();
        for (time, slot) in &oldest {
            self.buffers.give_up(*slot, *time, |id, time, left| {
                self.enter_commit((id, time), left, (&times, now));
            });
        }
        entered(&oldest);
    }

    /// Enters what a transaction that was committed has left behind. Its slot is locked.
    fn enter_commit(&self, (id, time): (u64, u64), left: &Leftovers, snapshots: (&[u64], u64)) {
        // It is about to be forgotten. The table may already have versions of later commits, and they must stay the last
        // ones of their records.
        if time <= self.seen_by_all() {
            return self.note_forgotten(left);
        }
        let writer = &Arc::new(Writer::committed_at(id, time));
        for undo in left.changed.iter() {
            self.enter(writer, undo.before, undo.is_removal, snapshots);
        }
        left.touched()
            .iter()
            .rev()
            .for_each(|record| _ = self.enter(writer, record.image(), record.value().is_none(), snapshots));
        left.note_entered();
    }

    /// Enters what a writer has claimed. Returns whether the record had no version of this writer yet.
    fn enter(
        &self,
        writer: &Arc<Writer>,
        before: BeforeImage<'_>,
        is_removal: bool,
        snapshots: (&[u64], u64),
    ) -> bool {
        let shard = self.shard(before.hash());
        let mut chains = shard.lock();
        let appended = self.append((shard, &mut chains), (writer, before), is_removal, |_| Ok(()));
        drop(chains);
        // It cannot be refused: it was admitted when it was made.
        let Ok(Appended { is_first, is_long }) = appended else { return false };
        if is_long {
            self.cut(before, snapshots);
        }
        is_first
    }

    /// Forgets the undo buffer of a commit, at this time, that every snapshot sees that is not covered. Covered ones find
    /// its records among those that have changed.
    pub fn forget_buffer(&self, slot: usize, time: u64) {
        self.buffers.give_up(slot, time, |_, _, left| self.note_forgotten(left));
    }

    /// Notes for covered snapshots which records were changed by a commit whose undo buffer is forgotten.
    fn note_forgotten(&self, left: &Leftovers) {
        let mut records = left
            .changed
            .iter()
            .map(|undo| undo.before)
            .chain(left.touched().iter().map(Before::image))
            .peekable();
        let filter = records.peek().and_then(|first| self.lock(first.hash()).changed.clone());
        let Some(filter) = filter.filter(|_| !planted(Bug::BufferNotNoted)) else { return };
        // First without locks: most lines are in memory, and the processor fetches several at once. It is the filter
        // of all shards: snapshots are covered only when no undo buffer is left.
        let hashes: SmallVec<[(u64, bool); 64]> =
            records.map(|record| (record.hash(), filter.has(record.hash()))).collect();
        let new = hashes.into_iter().filter(|(_, is_noted)| !is_noted);
        new.for_each(|(hash, _)| self.lock(hash).note_changed(hash));
    }

    /// Finds out whether the table is still needed, if little is in it or nothing that a snapshot needs.
    #[cold]
    pub fn rest(&self) {
        /// To sweep so few costs less than searching the table in vain.
        const FEW: usize = 1024;
        if !self.is_used.load(Ordering::Relaxed) {
            return;
        }
        let are_few = || self.shards.iter().map(|shard| shard.lock().len()).sum::<usize>() <= FEW;
        if self.in_table.0.load(Ordering::Acquire) > self.seen_by_all() && !are_few() {
            return;
        }
        self.sweep_all();
        // In order; other threads lock one at a time.
        let shards: Vec<_> = self.shards.iter().map(Shard::lock_in_turn).collect();
        if shards.iter().all(|chains| chains.len() == 0) {
            // Relaxed: see `note_used`.
            self.is_used.store(false, Ordering::Relaxed);
        }
    }
}
