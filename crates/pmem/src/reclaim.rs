//! Reclaiming space: compacting blocks that are largely dead, and returning the end of the file to the file system.
//!
//! The live records of a block are copied to another block, some at a time, under the locks of their keys: the copies
//! are made durable, then valid, then the index leads to them, and the originals are made invalid, durably. Readers,
//! and writers of other keys, go on meanwhile. A copy has the sequence number of its original, because it is not a new
//! value.
//!
//! If much is free, but not the last block, its records are moved towards the beginning too, so that the file can be
//! cut.

use crate::{
    blocks::State,
    core::{Core, Sites, Writer},
    error::{PmemError, Result},
    format::{Format, Record, Walked},
    index::Look,
    layout::Place,
    medium::{Medium, Site},
    space::Purpose,
};
use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

const COPY: Sites = Sites { record: Site::CopyRecord, publish: Site::CopyPublish };

/// How many records are moved under one set of locks.
const GROUP: usize = 32;
/// The last blocks are moved if at least one block in this many is free.
const EVACUATE_SHARE: u64 = 5;

/// The result of reclaiming space.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct Reclaimed {
    /// Blocks that were compacted.
    pub blocks_compacted: u64,
    /// Records that were moved.
    pub records_moved: u64,
    /// Blocks that were returned to the file system.
    pub blocks_returned: u64,
}

/// Reclaims space as fast as possible.
pub fn now<L: Format, M: Medium>(core: &Core<L, M>) -> Result<Reclaimed> {
    let mut writer = core.writer(Purpose::Reclaim)?;
    let outcome = pass(core, &mut writer, &mut Pace::new(1.0, &|_| false));
    core.end_writer(&mut writer);
    outcome
}

/// Makes reclaiming leave time to other threads, and ends it on request.
pub struct Pace<'a> {
    busy_share: f64,
    since: Instant,
    stop: &'a dyn Fn(Duration) -> bool,
}

impl<'a> Pace<'a> {
    /// Works for this share of the time; `stop` sleeps and returns whether to end.
    pub fn new(busy_share: f64, stop: &'a dyn Fn(Duration) -> bool) -> Self {
        Self { busy_share, since: Instant::now(), stop }
    }

    /// Sleeps if necessary; returns whether to end.
    pub fn rest(&mut self) -> bool {
        let worked = self.since.elapsed();
        if self.busy_share >= 1.0 || worked < Duration::from_micros(500) {
            return (self.stop)(Duration::ZERO);
        }
        let rest = worked.as_secs_f64() * (1.0 / self.busy_share - 1.0);
        // A share may be so small that no duration is long enough.
        let stop = (self.stop)(Duration::try_from_secs_f64(rest).unwrap_or(Duration::MAX));
        self.since = Instant::now();
        stop
    }
}

/// Reclaims all space that can be reclaimed.
///
/// # Errors
/// If changes cannot be made durable, now or before. Lack of room is not an error: less is reclaimed then.
pub fn pass<L: Format, M: Medium>(
    core: &Core<L, M>,
    writer: &mut Writer<L>,
    pace: &mut Pace<'_>,
) -> Result<Reclaimed> {
    core.check_writable()?;
    let mut done = Reclaimed::default();
    let units = f64::from(L::units_of_block(core.geometry));
    let is_worth_it = |block: u64| {
        let dead = f64::from(core.space.block(block).load().2);
        dead > 0.0 && dead >= units * core.reclaim.free_share
    };
    // One in which nothing is live is free as soon as it is closed.
    core.space.close_partial(|block| is_worth_it(block) || core.space.block(block).load().1 == 0);
    let mut outcome = core.free_of_others(writer, |block| core.space.block(block).load().0 == State::Large);
    for block in core.geometry.first_block()..core.space.end() {
        if outcome.is_ok() && is_worth_it(block) {
            outcome = compact(core, writer, block, pace, &mut done).map(drop);
            if outcome.is_err() || pace.rest() {
                break;
            }
        }
    }
    if outcome.is_ok() {
        outcome = evacuate(core, writer, pace, &mut done);
    }
    core.give_back(writer);
    match outcome {
        Ok(()) | Err(PmemError::Full { .. }) => core.check_writable()?,
        Err(error) => return Err(error),
    }
    // The space that is cut may soon be needed again, so an eighth of the used space is kept.
    let counts = core.space.counts();
    let slack = (counts.blocks - counts.free.min(counts.blocks)) / 8;
    done.blocks_returned = core.watch(core.space.cut(&core.medium, &mut writer.lane, slack))?;
    Ok(done)
}

/// Moves the last blocks to free ones before them.
fn evacuate<L: Format, M: Medium>(
    core: &Core<L, M>,
    writer: &mut Writer<L>,
    pace: &mut Pace<'_>,
    done: &mut Reclaimed,
) -> Result<()> {
    core.give_back(writer);
    loop {
        let counts = core.space.counts();
        if counts.free < counts.blocks.div_ceil(EVACUATE_SHARE) {
            return Ok(());
        }
        let Some((last, free_before)) = core.space.last_used() else { return Ok(()) };
        // Two, because the copies of one block may begin in the middle of another.
        if free_before < 2 || pace.rest() {
            return Ok(());
        }
        core.space.close_partial_at(last);
        // A block that cannot be compacted stays the last one: another thread compacts it, or it is in no list, because
        // the thread that took it could not format it.
        if !compact(core, writer, last, pace, done)? || core.space.block(last).load().0 != State::Free {
            return Ok(());
        }
    }
}

/// Moves all live records of a block elsewhere; if a client has the block open, that client takes another for its next
/// record. Does nothing if the block cannot be compacted now; returns whether it could.
fn compact<L: Format, M: Medium>(
    core: &Core<L, M>,
    writer: &mut Writer<L>,
    block: u64,
    pace: &mut Pace<'_>,
    done: &mut Reclaimed,
) -> Result<bool> {
    if !core.space.block(block).begin_compaction() {
        return Ok(false);
    }
    let mut records = Vec::new();
    L::walk(&core.medium, core.geometry, block, block + 1, &mut |found| {
        if let Walked::Record(place, record, _) = found {
            records.push((place, record));
        }
    });
    let mut outcome = Ok(());
    for group in records.chunks(GROUP) {
        // Another thread may have failed meanwhile: then it is unknown what is durable.
        let moved = core.check_writable().and_then(|()| move_group(core, writer, group));
        outcome = moved.map(|moved| done.records_moved += moved);
        if outcome.is_err() || pace.rest() {
            break;
        }
    }
    if matches!(outcome, Err(PmemError::Damaged(_))) {
        // The block is left alone from now on; verification names the damage.
        let (_, live, dead) = core.space.block(block).load();
        core.space.block(block).set(State::Damaged, live, dead);
        return Ok(true);
    }
    if outcome.is_ok() && core.space.block(block).load().1 > 0 {
        outcome = core.free_of_others(writer, |other| other == block);
    }
    core.space.close(block);
    done.blocks_compacted += 1;
    core.compacted.fetch_add(1, Ordering::Relaxed);
    outcome.map(|()| true)
}

/// Moves some records of one block; returns how many were still live.
fn move_group<L: Format, M: Medium>(
    core: &Core<L, M>,
    writer: &mut Writer<L>,
    group: &[(Place, Record)],
) -> Result<u64> {
    let medium = &core.medium;
    let keys: Vec<(u64, Vec<u8>)> = group
        .iter()
        .map(|(_, record)| {
            let mut key = Vec::new();
            record.load_key(medium, &mut key);
            (core.hash(&key), key)
        })
        .collect();
    let held = core.stripes.lock_all(keys.iter().map(|(hash, _)| *hash));
    let mut value = Vec::new();
    let mut moved = Vec::with_capacity(group.len());
    let mut failure = Ok(());
    for ((place, record), (hash, key)) in group.iter().zip(&keys) {
        let is_current = |at: u64| if at == place.0 { Look::Found(()) } else { Look::Pass };
        if core.index.find(*hash, |entry| is_current(entry.at)).is_none() {
            continue;
        }
        record.load_value(medium, &mut value);
        let sequence = record.sequence(medium);
        if core.superblock.checksums && !record.is_sound(medium, key, &value) {
            failure = Err(PmemError::Damaged(crate::Damage::Record { at: record.at }));
            break;
        }
        // Not those of the original: after a change in place they are those of two values, and a torn copy with the
        // former value would count as a record.
        let head = (sequence, core.sums(sequence, key, &value));
        match core.append(writer, Site::CopyRecord, head, key, &value) {
            Ok((copy, copied)) => moved.push((*hash, *place, record, copy, copied)),
            Err(error) => {
                failure = Err(error);
                break;
            }
        }
    }
    // The copies made so far are completed whatever failed: a log ends at a record that is not valid.
    core.publish(writer, COPY, moved.iter().map(|(_, _, _, copy, copied)| (*copy, copied)))?;
    for (hash, place, _, copy, _) in &moved {
        core.index.replace(*hash, place.0, copy.0);
    }
    for (_, place, record, _, _) in &moved {
        core.retract(writer, Site::CopyRetract, *place, record);
    }
    core.fence(writer, Site::CopyRetract)?;
    drop(held);
    for (_, place, record, _, _) in &moved {
        core.freed(writer, *place, record)?;
    }
    failure.map(|()| moved.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_pace_of_next_to_nothing_is_a_long_rest() {
        let rested = Cell::new(Duration::ZERO);
        let stop = |time| {
            rested.set(time);
            false
        };
        let mut pace = Pace::new(1e-300, &stop);
        std::thread::sleep(Duration::from_millis(1));
        assert!(!pace.rest());
        assert!(rested.get() > Duration::from_secs(1 << 30), "{:?}", rested.get());
    }
}
