//! Where versions go for which memory has no room: to covers of old snapshots, or to a file.

use super::{Shard, Version, Versions, failure::Failure};
use crate::before::Before;
use crate::generations::{self, Frozen, Generation, Moving};
use crate::lock_order::OrderedGuard;
use crate::writer::State;
use std::sync::Arc;
use vellum_base::primitive::{Instant, Ordering};
use vellum_pool::PoolError;

/// The turn to move versions.
pub(crate) struct Turn<'v> {
    versions: &'v Versions,
    room: Room,
    /// The last failure of the file, until it has succeeded.
    failure: OrderedGuard<'v, Option<Failure>>,
}

/// How much room versions have in memory.
#[derive(Clone, Copy)]
struct Room {
    /// Whether there is little.
    is_little: bool,
    /// Whether there is none.
    is_full: bool,
    /// Whether frozen versions take more than their part: the last ones are not in the file yet.
    is_frozen_much: bool,
    /// Whether so much more is used that nothing may be added.
    is_exceeded: bool,
}

impl Room {
    /// Whether there is something to do.
    fn is_due(self) -> bool {
        self.is_little || self.is_frozen_much
    }
}

impl Versions {
    /// The turn to move versions, if they take more memory than they should and no other thread moves them. While there
    /// is still some room, only if `is_worth_it`.
    pub fn turn_to_move(&self, is_worth_it: impl FnOnce() -> bool) -> Option<Turn<'_>> {
        let room = self.room();
        let is_worth_it = room.is_full || room.is_frozen_much || room.is_little && is_worth_it();
        if !is_worth_it {
            self.note_exceeded(false);
            return None;
        }
        let failure = if room.is_full {
            // Threads that bring more versions wait.
            self.turn.lock()
        } else {
            self.turn.try_lock()?
        };
        let is_paused = failure.as_ref().is_some_and(|failure| failure.is_paused(room.is_full));
        // That looks at all versions, so not each time while the file fails.
        if room.is_little && !is_paused {
            self.sweep_all();
        }
        let room = self.room();
        if !room.is_due() {
            self.note_exceeded(false);
            return None;
        }
        Some(Turn { versions: self, room, failure })
    }

    fn room(&self) -> Room {
        let (bytes, most) = (self.bytes(), self.spill.bytes);
        let frozen = self.generations.frozen_bytes();
        let all = bytes.saturating_add(frozen);
        Room {
            // Frozen versions may take the other half. Of this one, a quarter is left for what comes.
            is_little: bytes > most / 8 * 3,
            is_full: all > most,
            is_frozen_much: frozen > most / 2,
            is_exceeded: all > most.saturating_add(most / 8),
        }
    }

    /// Whether versions take so much more memory than they may that each transaction is to make room before it changes
    /// anything.
    #[inline]
    pub fn is_room_exceeded(&self) -> bool {
        // Relaxed: a thread that finds this late adds some more.
        self.is_room_exceeded.load(Ordering::Relaxed)
    }

    fn note_exceeded(&self, is_exceeded: bool) {
        // Most do not change it, and leave other threads the line.
        if self.is_room_exceeded() != is_exceeded {
            self.is_room_exceeded.store(is_exceeded, Ordering::Relaxed);
        }
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
        /// How many parts are moved one after the other: what is being moved is in memory twice.
        const PARTS: usize = 8;
        let (times, now) = snapshots();
        let oldest = times.first().copied().unwrap_or(now);
        let generation = self.versions.generations.current(&self.versions.spill.file, oldest)?;
        // Each part is a range of keys. So every leaf of the tree is read and written once, and not once for each part.
        let limits = self.limits(PARTS);
        let moved = Self::parts(&limits).try_for_each(|is_in_part| {
            let moving = self.copy(is_in_part);
            // After the copy: everything that was committed until then is known.
            let (times, now) = snapshots();
            self.put(moving, &generation, (&times, now))
        });
        generation.rest();
        moved
    }

    /// Takes all versions out of memory for a generation that covers snapshots, and calls `arm` at that moment. Later
    /// changes are noted. `snapshots` are the times of the open snapshots that are not covered, in ascending order, and
    /// the number of the last commit.
    pub fn freeze(&self, generation: &Generation, snapshots: (Vec<u64>, u64), arm: impl FnOnce()) {
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
            Frozen::new(parts, removed, bytes, snapshots)
        });
    }

    /// Writes frozen versions to the file, also those that could not be written before, as long as they take too much
    /// memory.
    ///
    /// # Errors
    /// If the file fails. Nothing is lost.
    pub fn write_frozen(&self) -> Result<(), PoolError> {
        self.versions.generations.write_frozen(self.versions.spill.bytes / 2)
    }

    /// Whether there is little room in memory.
    pub fn is_little(&self) -> bool {
        self.room.is_little
    }

    /// Whether there is none.
    pub fn is_full(&self) -> bool {
        self.room.is_full
    }

    /// Moves versions by `moved`, unless the file has failed just now.
    ///
    /// # Errors
    /// If the file fails, or has failed, and there is so little room that nothing may be added.
    pub fn end(mut self, moved: impl FnOnce(&Self) -> Result<(), PoolError>) -> Result<(), PoolError> {
        if !self.failure.as_ref().is_some_and(|failure| failure.is_paused(self.room.is_full)) {
            let begun = Instant::now();
            let outcome = moved(&self);
            let taken = begun.elapsed();
            *self.failure = outcome.err().map(|error| Failure::new(error, taken, self.failure.as_ref()));
        }
        let is_exceeded = self.versions.room().is_exceeded;
        let cause = self.failure.as_ref().filter(|_| is_exceeded).map(Failure::cause);
        self.versions.note_exceeded(cause.is_some());
        cause.map_or(Ok(()), |cause| Err(PoolError::NoRoomForVersions(cause)))
    }

    /// Records that divide all others into about so many parts of the same size, in order.
    fn limits(&self, parts: usize) -> Vec<Before> {
        /// Records are spread over the shards by their hashes, so any few have a fair sample.
        const SAMPLED: usize = 4;
        let mut records = Vec::new();
        for shard in self.versions.shards.iter().take(SAMPLED) {
            records.extend(shard.lock().iter().filter_map(|chain| chain.first().cloned()));
        }
        records.sort_unstable_by(|one, other| generations::order(Some(one), Some(other)));
        let between = (1..parts).filter_map(|part| records.get(records.len() * part / parts));
        between.cloned().collect()
    }

    /// Which records are in each of the parts that these limits divide.
    fn parts(limits: &[Before]) -> impl Iterator<Item = impl Fn(&Before) -> bool> {
        (0..=limits.len()).map(|part| {
            let lower = part.checked_sub(1).and_then(|before| limits.get(before));
            let upper = limits.get(part);
            move |record: &Before| {
                lower.is_none_or(|lower| generations::order(Some(lower), Some(record)).is_le())
                    && upper.is_none_or(|upper| generations::order(Some(record), Some(upper)).is_lt())
            }
        })
    }

    /// Copies the chains of some records.
    fn copy(&self, is_wanted: impl Fn(&Before) -> bool) -> Vec<Moving> {
        let mut moving = Vec::new();
        for shard in &self.versions.shards {
            let chains = shard.lock();
            moving
                .extend(chains.iter().filter(|chain| chain.first().is_some_and(&is_wanted)).map(Moving::of));
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
                    return (false, 0);
                }
                // Versions that were added meanwhile stay.
                let is_moved = |version: &Version| {
                    chain.versions.iter().any(|(writer, ..)| writer.id == version.writer.id)
                };
                let stays = now.versions.iter().position(|version| !is_moved(version));
                let lost = now.drop_first(stays.unwrap_or(now.versions.len()));
                // The generation may go before the covered snapshots do. It notes by itself what is committed later.
                (chain.versions.iter().any(|(_, state, _)| matches!(state, State::Committed(_))), lost)
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
        writer::{Sight, Writer},
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
            let moving = is_moved.then(|| (current(), turn.copy(|_| true)));
            let image = BeforeImage::new(record, target.hash, None);
            assert_eq!(versions.retract_claim(image, first.id), !is_moved);
            if let Some((generation, moving)) = moving {
                turn.put(moving, &generation, (&[], 1)).unwrap();
                generation.rest();
            }
            assert_eq!(claim(&second), if is_moved { Err(Refusal::Open) } else { Ok(()) });
        }
    }

    /// Of the records that it has changed, a large transaction may change some again, and meanwhile others that no
    /// generation has: neither costs a look into the file.
    #[test]
    fn a_transaction_need_not_look_in_the_file_for_versions_of_its_own() {
        const COUNT: u32 = 2_000;
        let versions =
            Versions::new(Spill::new(Some(Arc::new(SimulatedDisk::new(1))), 100_000), Arc::default());
        let (own, other) = (Arc::new(Writer::new(1)), Arc::new(Writer::new(2)));
        let claim = |writer, number: u32| {
            let key = number.to_be_bytes();
            let target = Target::without_buffers((PageId(9), &key), Lsn(100));
            versions.claim(target, (writer, 4), None, false, Vec::new).unwrap().map(drop)
        };
        let spill = || {
            let turn = versions.turn_to_move(|| true).unwrap();
            turn.spill(|| (vec![4], 4)).unwrap();
        };
        (0..COUNT).for_each(|number| claim(&own, number.wrapping_mul(0x9e37_79b1)).unwrap());
        spill();
        assert_eq!((versions.measure().0, versions.generations.records()), (0, COUNT as usize));
        let needed = |own, time| versions.generations.needed_by(Sight { time, own }).len();
        assert_eq!((needed(1, 4), needed(2, 4)), (0, 1));
        assert_eq!((claim(&own, 0), claim(&other, 0x9e37_79b1)), (Ok(()), Err(Refusal::Open)));
        // Another one is open, and then committed later.
        (0..COUNT).for_each(|number| claim(&other, !number.wrapping_mul(0x9e37_79b1)).unwrap());
        spill();
        assert_eq!((needed(1, 4), needed(2, 4)), (1, 1));
        other.commit(5);
        assert_eq!((needed(1, 4), needed(1, 5), needed(3, 5)), (1, 0, 1));
        assert_eq!(claim(&own, !0), Err(Refusal::Later));
    }

    /// So that leaves are written once. They would be written for each part if that had records of all of them.
    #[test]
    fn what_is_moved_at_a_time_is_a_range_of_keys() {
        let versions = Versions::new(Spill::new(Some(Arc::new(SimulatedDisk::new(1))), 0), Arc::default());
        let writer = Arc::new(Writer::new(1));
        for number in 0..8_000_u32 {
            let key = number.wrapping_mul(0x9e37_79b1).to_be_bytes();
            let target = Target::without_buffers((PageId(9), &key), Lsn(100));
            versions.claim(target, (&writer, 4), None, false, Vec::new).unwrap().unwrap();
        }
        let turn = versions.turn_to_move(|| true).unwrap();
        let limits = turn.limits(8);
        let parts: Vec<_> = Turn::parts(&limits).map(|part| turn.copy(part)).collect();
        assert_eq!(parts.len(), 8);
        let mut before: &[u8] = &[];
        for part in &parts {
            assert!((300..2_000).contains(&part.len()), "{} of 8000", part.len());
            let keys = || part.iter().map(|chain| chain.record().unwrap().key());
            assert!(keys().min().unwrap() > before || before.is_empty());
            before = keys().max().unwrap();
        }
        assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), 8_000);
    }
}
