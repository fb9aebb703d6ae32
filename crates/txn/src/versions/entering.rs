//! Enters in the table what others search in undo buffers, and stops using the table when it is empty.

use super::{Shard, Versions, claiming::Appended};
use crate::{
    before::Before,
    exposure::Exposure,
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

    /// Enters in the table what others search in undo buffers. `snapshots` gives the times of the open snapshots, in
    /// ascending order, and that of the last commit. This thread holds the lock of none of these write sets.
    pub fn enter_all(&self, snapshots: impl FnOnce() -> (Vec<u64>, u64)) {
        if self.buffers.is_empty() {
            return;
        }
        // One thread at a time, so that the versions of a record are entered in order.
        let _entering = self.entering.lock();
        // What these write sets see was committed before this call. It is entered first: see the order in
        // `undo_buffers`.
        let open = self.buffers.open();
        let (times, now) = snapshots();
        let snapshots = (&times[..], now);
        self.buffers.enter_committed(now, |id, time, left| {
            let writer = &Arc::new(Writer::committed_at(id, time));
            for undo in &left.changed {
                self.enter(writer, &undo.before, undo.is_removal, snapshots);
            }
            left.touched().iter().rev().for_each(|record| _ = self.enter(writer, record, false, snapshots));
            left.note_entered();
        });
        for writes in open {
            let mut state = writes.lock_of_other();
            if let Exposure::Searched(slot) = state.exposure {
                state.enter(|before, is_removal| self.enter(writes.writer(), before, is_removal, snapshots));
                self.buffers.leave(slot);
            }
        }
    }

    /// Enters what a writer has claimed. Returns whether the record had no version of this writer yet.
    fn enter(
        &self,
        writer: &Arc<Writer>,
        before: &Before,
        is_removal: bool,
        snapshots: (&[u64], u64),
    ) -> bool {
        let before = &before.hashed();
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
        self.buffers.give_up(slot, time, |_, _, left| {
            let mut records = left.changed.iter().map(|undo| &undo.before).chain(left.touched()).peekable();
            let filter = records.peek().and_then(|first| self.lock(first.hash()).changed.clone());
            let Some(filter) = filter.filter(|_| !planted(Bug::BufferNotNoted)) else { return };
            // First without locks: most lines are in memory, and the processor fetches several at once. It is the filter
            // of all shards: snapshots are covered only when no undo buffer is left.
            let hashes: SmallVec<[(u64, bool); 64]> =
                records.map(|record| (record.hash(), filter.has(record.hash()))).collect();
            let new = hashes.into_iter().filter(|(_, is_noted)| !is_noted);
            new.for_each(|(hash, _)| self.lock(hash).note_changed(hash));
        });
    }

    /// Finds out whether the table is still needed, if little is in it.
    #[cold]
    pub fn rest(&self) {
        /// To sweep so few costs less than searching the table in vain.
        const FEW: usize = 1024;
        let is_used = self.is_used.0.load(Ordering::Relaxed);
        if !is_used || self.shards.iter().map(|shard| shard.lock().len()).sum::<usize>() > FEW {
            return;
        }
        self.sweep_all();
        // In order; other threads lock one at a time.
        let shards: Vec<_> = self.shards.iter().map(Shard::lock_in_turn).collect();
        if shards.iter().all(|chains| chains.len() == 0) {
            self.is_used.0.store(false, Ordering::Release);
        }
    }
}
