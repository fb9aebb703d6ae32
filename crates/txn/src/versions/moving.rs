//! Where versions go for which memory has no room: to covers of old snapshots, or to a file.

use super::{Shard, Version, Versions};
use crate::generations::{self, Frozen, Generation, Moving};
use crate::lock_order::OrderedGuard;
use crate::writer::State;
use std::sync::Arc;
use vellum_base::primitive::Ordering;
use vellum_pool::PoolError;

/// The turn to move versions.
pub(crate) struct Turn<'v> {
    versions: &'v Versions,
    /// Whether no room is left; otherwise there is little.
    pub is_full: bool,
    _turn: OrderedGuard<'v, ()>,
}

impl Versions {
    /// The turn to move versions, if they take more memory than they should and no other thread moves them. While there
    /// is still some room, only if `is_worth_it`.
    pub fn turn_to_move(&self, is_worth_it: impl FnOnce() -> bool) -> Option<Turn<'_>> {
        let (little, full) = self.room();
        let is_due = full || little && is_worth_it();
        if !is_due {
            return None;
        }
        self.sweep_all();
        let (little, full) = self.room();
        if !little {
            return None;
        }
        let turn = if full {
            // Threads that bring more versions wait.
            self.turn.lock()
        } else {
            self.turn.try_lock()?
        };
        let (little, is_full) = self.room();
        little.then_some(Turn { versions: self, is_full, _turn: turn })
    }

    /// Whether there is little room in memory, and whether there is none.
    fn room(&self) -> (bool, bool) {
        let (bytes, most) = (self.bytes(), self.spill.bytes);
        // Frozen versions may take the other half: see `write_frozen`. Of this one, a quarter is left for what comes.
        (bytes > most / 8 * 3, bytes + self.generations.frozen_bytes() > most)
    }

    /// Stops noting changes, unless another cover needs the notes.
    #[cold]
    pub(super) fn note_no_more(&self) {
        for shard in &self.shards {
            shard.lock().changed.take_if(|changed| !self.generations.notes_in(changed));
        }
    }

    /// About how much memory the versions take that are not frozen.
    fn bytes(&self) -> usize {
        self.shards.iter().map(Shard::bytes).sum()
    }
}

impl Turn<'_> {
    /// Moves all versions to the file. `snapshots` gives the times of the open snapshots that are not covered, in
    /// ascending order, and the number of the last commit.
    ///
    /// # Errors
    /// If the file fails. Nothing is lost.
    pub fn spill(&self, snapshots: impl Fn() -> (Vec<u64>, u64)) -> Result<(), PoolError> {
        /// How many shards are moved at a time: what is being moved is in memory twice.
        const SHARDS: usize = 16;
        let (times, now) = snapshots();
        let oldest = times.first().copied().unwrap_or(now);
        let generation = self.versions.generations.current(&self.versions.spill.file, oldest)?;
        let moved = self.versions.shards.chunks(SHARDS).try_for_each(|shards| {
            let moving = self.copy(shards);
            // After the copy: everything that was committed until then is known.
            let (times, now) = snapshots();
            self.put(moving, &generation, (&times, now))
        });
        generation.rest();
        moved
    }

    /// Takes all versions out of memory for a generation that covers snapshots, and calls `arm` at that moment. Later
    /// changes are noted.
    pub fn freeze(&self, generation: &Generation, arm: impl FnOnce()) {
        let versions = self.versions;
        generation.freeze(&versions.generations, || {
            // In order; other threads lock one at a time.
            let mut shards: Vec<_> = versions.shards.iter().map(Shard::lock_in_turn).collect();
            arm();
            let mut bytes = 0;
            let parts = shards.iter_mut().zip(&versions.shards).map(|(chains, shard)| {
                bytes += shard.take_bytes();
                chains.take(generation.changed().cloned())
            });
            let parts = parts.collect();
            let removed = std::mem::take(&mut *versions.lock_removed());
            versions.removed_count.store(0, Ordering::Release);
            Frozen::new(parts, removed, bytes)
        });
    }

    /// Writes frozen versions to the file, if they take too much memory. `snapshots` are the times of the snapshots
    /// that were open when they were frozen, in ascending order, and the number of the last commit then.
    ///
    /// # Errors
    /// If the file fails. Nothing is lost.
    pub fn write_frozen(&self, generation: &Generation, snapshots: (&[u64], u64)) -> Result<(), PoolError> {
        if self.versions.generations.frozen_bytes() <= self.versions.spill.bytes / 2 {
            return Ok(());
        }
        self.versions.generations.write_frozen(generation, snapshots)
    }

    fn copy(&self, shards: &[Shard]) -> Vec<Moving> {
        let mut moving = Vec::new();
        for shard in shards {
            moving.extend(shard.lock().iter().map(Moving::of));
        }
        moving
    }

    fn put(
        &self,
        mut moving: Vec<Moving>,
        generation: &Arc<Generation>,
        snapshots: (&[u64], u64),
    ) -> Result<(), PoolError> {
        // In key order, which suits the tree.
        moving.sort_unstable_by(|one, other| generations::order(one.record(), other.record()));
        generation.take(&moving, snapshots)?;
        for chain in &moving {
            let Some(record) = chain.record() else { continue };
            self.versions.change(record.image(), |now| {
                // The record was removed after the copy: only memory knows.
                if !chain.is_removed && now.is_removed {
                    return false;
                }
                // Versions that were added meanwhile stay.
                let is_moved = |version: &Version| {
                    chain.versions.iter().any(|(writer, ..)| writer.id == version.writer.id)
                };
                let stays = now.versions.iter().position(|version| !is_moved(version));
                now.versions.drain(..stays.unwrap_or(now.versions.len()));
                // The generation may go before the covered snapshots do. It notes by itself what is committed later.
                chain.versions.iter().any(|(_, state, _)| matches!(state, State::Committed(_)))
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        before::BeforeImage,
        versions::{Refusal, Spill, Target},
        writer::Writer,
    };
    use vellum_base::{Lsn, PageId};
    use vellum_vm::SimulatedDisk;

    #[test]
    fn a_claim_that_comes_to_nothing_stays_if_its_version_is_on_its_way_to_the_file() {
        let record = (PageId(9), &b"key"[..]);
        let target = Target::without_buffers(record, Lsn(100));
        for is_moved in [false, true] {
            let spill = Spill::new(Some(Arc::new(SimulatedDisk::new(1))), 0);
            let versions = Versions::new(spill, Arc::default());
            let (first, second) = (Arc::new(Writer::new(1)), Arc::new(Writer::new(2)));
            let claim =
                |writer| versions.claim(target, (writer, 1), None, false, Vec::new).unwrap().map(drop);
            claim(&first).unwrap();
            let turn = versions.turn_to_move(|| true).unwrap();
            let current = || versions.generations.current(&versions.spill.file, 1).unwrap();
            let moving = is_moved.then(|| (current(), turn.copy(&versions.shards)));
            let image = BeforeImage::new(record, target.hash, None);
            assert_eq!(versions.retract_claim(image, first.id), !is_moved);
            if let Some((generation, moving)) = moving {
                turn.put(moving, &generation, (&[], 1)).unwrap();
                generation.rest();
            }
            assert_eq!(claim(&second), if is_moved { Err(Refusal::Open) } else { Ok(()) });
        }
    }
}
