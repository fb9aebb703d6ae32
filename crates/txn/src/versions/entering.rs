//! What is searched in undo buffers is entered in the table, and the table is left again.

use super::{Appended, Shard, Versions};
use crate::{before::Before, exposure::Exposure, write_set::WriteSet, writer::Writer};
use std::sync::Arc;
use vellum_base::primitive::Ordering;

impl Versions {
    /// Shows others what is known to a transaction only, if it is private.
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

    /// Enters in the table what is searched in undo buffers; `snapshots` gives the times of the open snapshots, in ascending
    /// order, and that of the last commit. No write set is locked that is among these.
    pub fn enter_all(&self, snapshots: impl FnOnce() -> (Vec<u64>, u64)) {
        if self.buffers.is_empty() {
            return;
        }
        // One thread at a time, so that the versions of a record are entered in their order.
        let _entering = self.entering.lock();
        // What these see was committed before they are looked up. It goes first: see the order in `undo_buffers`.
        let open = self.buffers.open();
        let (times, now) = snapshots();
        let snapshots = (&times[..], now);
        self.buffers.enter_committed(now, |id, time, left| {
            let writer = &Arc::new(Writer::committed_at(id, time));
            for undo in &left.changed {
                self.enter(writer, &undo.before, undo.is_removal, snapshots);
            }
            left.touched().iter().for_each(|record| _ = self.enter(writer, record, false, snapshots));
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

    /// Enters what a writer has claimed. Returns whether the record has no
    /// version of this writer yet.
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

    /// Finds out whether the table is needed still, if little is in it.
    #[cold]
    pub fn rest(&self) {
        /// To sweep these costs less than looking for others in vain.
        const FEW: usize = 1024;
        let is_used = self.is_used.0.load(Ordering::Relaxed);
        if !is_used || self.shards.iter().map(|shard| shard.lock().len()).sum::<usize>() > FEW {
            return;
        }
        self.sweep_all();
        // In their order; other threads lock one at a time.
        let shards: Vec<_> = self.shards.iter().map(Shard::lock_in_turn).collect();
        if shards.iter().all(|chains| chains.len() == 0) {
            self.is_used.0.store(false, Ordering::Release);
        }
    }
}
