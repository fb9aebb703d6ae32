//! Rebuilds what is not persistent: the index, the free blocks, the clock. The same happens after a clean end and after
//! a crash.
//!
//! Threads take blocks in turn and put the records they find into the index. Of two records with the same key the one
//! with the higher sequence number is the later one; the other is made invalid, durably, before the store is used: if
//! it stayed, it would return when the later one is deleted. Records that a crash tore are made invalid too, records
//! that it left whole get their bits, and words whose change it interrupted are set to what was acknowledged
//! (`update.rs`). Copies that compaction had not finished with have the same number and the same contents as their
//! originals; the one at the lower place stays. Blocks of large records without a valid record become free blocks. Lock
//! bits that a crash left are cleared.
//!
//! All changes that recovery makes may be repeated, in any order, by the next recovery, if a crash interrupts it.

use crate::{
    blocks::State,
    core::{CLIENT_BITS, CLOCK_MAX, Core, Writer},
    error::{Damage, PmemError, Result},
    format::{
        ExtentKind, Format, Judgement, Record, Walked,
        large::{self, Start},
    },
    index::Look,
    layout::{BLOCKS_END_AT, Geometry, Place, read_checked_number},
    lock,
    medium::{Lane, Medium, Site},
    memory::WORD,
    options::Options,
    space::{Partial, Purpose},
};
use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    thread::ScopedJoinHandle,
};
use vellum_base::primitive::spawn_scoped;

/// The result of recovery.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Recovery {
    /// Valid records, one for each key.
    pub records: u64,
    /// Records that were older than another of the same key.
    pub superseded: u64,
    /// Records that were being written, or had just been, when a process or the machine ended, and are whole.
    pub unsettled: u64,
    /// Such records that are not whole: they were never acknowledged, and do not exist.
    pub torn: u64,
    /// Large records of which only blocks remained.
    pub remains: u64,
    /// Blocks that were examined.
    pub blocks: u64,
    /// The first thousand damaged items.
    pub damage: Vec<Damage>,
    /// The number of all damaged items.
    pub damage_count: u64,
}

/// How many of [`Recovery::damage`] are kept.
const DAMAGE_KEPT: usize = 1000;
/// How many blocks a thread takes at a time.
const BLOCKS_AT_ONCE: usize = 32;
/// A block is refilled after recovery if one part in this many is unused; otherwise it is left to compaction.
const REFILL_SHARE: u32 = 4;

/// The assumed size of a record of variable size, in units: 256 bytes.
const GUESSED_UNITS: u64 = 32;

/// The lanes of clients have numbers below this.
const FIRST_LANE: u64 = 1 << 17;

/// The findings of one thread.
struct Share {
    superseded: Vec<(u64, Place, Record)>,
    unsettled: Vec<(Place, Record)>,
    torn: Vec<(Place, Record)>,
    /// Words of values that are not yet as acknowledged, if nothing may be written.
    late: BTreeMap<u64, (usize, u64)>,
    remains: Vec<(u64, u64)>,
    /// Words that bound damaged large records at the end of the file, and what they are to be.
    bounds: Vec<(u64, u64)>,
    damage: Vec<Damage>,
    damage_count: u64,
    clock: u64,
    /// Records of the current block: their hashes, and where they are.
    found: Vec<(u64, Place, Record)>,
    lane: Lane,
    /// Whether what was read is durable.
    durable: Result<()>,
}

impl Default for Share {
    fn default() -> Self {
        Self {
            superseded: Vec::new(),
            unsettled: Vec::new(),
            torn: Vec::new(),
            late: BTreeMap::new(),
            remains: Vec::new(),
            bounds: Vec::new(),
            damage: Vec::new(),
            damage_count: 0,
            clock: 0,
            found: Vec::new(),
            lane: Lane::default(),
            durable: Ok(()),
        }
    }
}

impl Share {
    fn damaged(&mut self, damage: Damage) {
        self.damage_count += 1;
        if self.damage.len() < DAMAGE_KEPT {
            self.damage.push(damage);
        }
    }

    fn add(&mut self, other: Self) {
        self.superseded.extend(other.superseded);
        self.unsettled.extend(other.unsettled);
        self.torn.extend(other.torn);
        self.late.extend(other.late);
        self.remains.extend(other.remains);
        self.bounds.extend(other.bounds);
        self.damage_count += other.damage_count;
        self.damage.extend(other.damage);
        self.damage.truncate(DAMAGE_KEPT);
        self.clock = self.clock.max(other.clock);
        if self.durable.is_ok() {
            self.durable = other.durable;
        }
    }
}

/// Rebuilds everything. `progress` is called with the number of blocks done, and their total.
///
/// # Errors
/// [`PmemError::Damaged`], unless damage is tolerated, or if changes cannot be made durable.
pub fn recover<L: Format, M: Medium>(
    core: &Core<L, M>,
    options: &Options,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Recovery> {
    let mut all = Share::default();
    let end = used_end(core, options, &mut all)?;
    let first = core.geometry.first_block();
    if !core.read_only {
        // Like the blocks, see `scan`.
        all.lane.number = FIRST_LANE - 1;
        core.medium.flush(&mut all.lane, Site::RecoveryMeta, 0, BLOCKS_END_AT as usize + WORD);
        core.watch(core.medium.fence(&mut all.lane, Site::RecoveryMeta))?;
    }
    let Starts { starts, hidden } = starts(core, first, end);
    core.index.expect(expected_records::<L>(core.geometry, &starts, end));
    let threads = options
        .recovery_threads
        .or_else(|| std::thread::available_parallelism().ok())
        .map_or(1, NonZeroUsize::get)
        .min(starts.len().div_ceil(BLOCKS_AT_ONCE))
        .max(1);
    let next = AtomicUsize::new(0);
    let done = AtomicU64::new(0);
    let lanes = AtomicU64::new(FIRST_LANE);
    let work = || {
        let number = lanes.fetch_add(1, Ordering::Relaxed);
        let mut share = Share { lane: Lane { number, ..Lane::default() }, ..Share::default() };
        loop {
            let from = next.fetch_add(BLOCKS_AT_ONCE, Ordering::Relaxed);
            let Some(part) = starts.get(from..).filter(|part| !part.is_empty()) else {
                if !core.read_only {
                    fence(core, &mut share, Site::RecoveryScan);
                }
                return share;
            };
            let part = part.get(..BLOCKS_AT_ONCE).unwrap_or(part);
            for block in part {
                scan(core, *block, end, &mut share);
            }
            let done = done.fetch_add(part.len() as u64, Ordering::Relaxed) + part.len() as u64;
            progress(done, starts.len() as u64);
        }
    };
    let shares: Vec<_> = std::thread::scope(|scope| {
        // If the system refuses a thread, those that there are do the work: this one at least.
        let others = (1..threads).map_while(|_| spawn_scoped(scope, "pmem-recover", work).ok());
        let others: Vec<_> = others.collect();
        let own = work();
        others.into_iter().map(ScopedJoinHandle::join).chain([Ok(own)]).collect()
    });
    for share in shares {
        match share {
            Ok(share) => all.add(share),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    hidden.iter().for_each(|block| core.space.block(*block).set(State::Damaged, 0, 0));
    if let (false, Some(damage)) = (options.tolerate_damage, all.damage.first()) {
        return Err(PmemError::Damaged(*damage));
    }
    std::mem::replace(&mut all.durable, Ok(()))?;
    // Relaxed: no other thread has the store yet.
    core.clock.store(all.clock, Ordering::Relaxed);
    if !core.read_only {
        let mut writer = core.writer(Purpose::Reclaim)?;
        clean(core, &mut writer, &all)?;
        core.end_writer(&mut writer);
    }
    let (free, partial) = classify(core, first, end);
    core.space.restore(end, free, partial, core.medium.capacity());
    core.space.watch_room(core.medium.capacity());
    if !all.late.is_empty() {
        let _ = core.late.set(all.late);
    }
    Ok(Recovery {
        records: core.index.len(),
        superseded: all.superseded.len() as u64,
        unsettled: all.unsettled.len() as u64,
        torn: all.torn.len() as u64,
        remains: all.remains.len() as u64,
        blocks: end - first,
        damage: all.damage,
        damage_count: all.damage_count,
    })
}

/// The block after the last that may be in use.
fn used_end<L: Format, M: Medium>(core: &Core<L, M>, options: &Options, all: &mut Share) -> Result<u64> {
    let geometry = core.geometry;
    let first = geometry.first_block();
    let most = geometry.blocks_in(core.medium.capacity()).max(first);
    let word = core.medium.memory().word(BLOCKS_END_AT).load(Ordering::Relaxed);
    let damage = match read_checked_number(BLOCKS_END_AT, word).filter(|end| *end >= first) {
        None => Damage::BlocksEnd { word },
        Some(end) if end > most => {
            Damage::Truncated { needed: geometry.block_at(end), found: core.medium.capacity() }
        }
        Some(end) => return Ok(end),
    };
    if !options.tolerate_damage {
        return Err(PmemError::Damaged(damage));
    }
    all.damaged(damage);
    Ok(most)
}

/// The blocks that are examined, and those that are not.
struct Starts {
    /// The blocks that do not lie inside large records.
    starts: Vec<u64>,
    /// Blocks that look unused, and may be the rest of a large record of which nothing is right but that: up to the next
    /// formatted block after one with a damaged head.
    hidden: Vec<u64>,
}

fn starts<L: Format, M: Medium>(core: &Core<L, M>, first: u64, end: u64) -> Starts {
    if !L::HAS_LARGE {
        return Starts { starts: (first..end).collect(), hidden: Vec::new() };
    }
    let (mut starts, mut hidden) = (Vec::with_capacity((end - first) as usize), Vec::new());
    let (mut block, mut is_unknown) = (first, false);
    while block < end {
        let blocks = match large::start(&core.medium, core.geometry, block, end) {
            Start::Unformatted if is_unknown => {
                hidden.push(block);
                block += 1;
                continue;
            }
            Start::Unformatted => 1,
            Start::Blocks(blocks) => {
                is_unknown = false;
                blocks
            }
            Start::Unknown => {
                is_unknown = true;
                1
            }
        };
        starts.push(block);
        block += blocks;
    }
    Starts { starts, hidden }
}

/// An estimate of how many records there are, from above for records of one size: an index that need not grow is filled
/// twice as fast.
fn expected_records<L: Format>(geometry: Geometry, starts: &[u64], end: u64) -> u64 {
    let units = u64::from(L::units_of_block(geometry));
    if !L::HAS_LARGE {
        return starts.len() as u64 * units;
    }
    let after = starts.iter().skip(1).chain(std::iter::once(&end));
    let large = starts.iter().zip(after).filter(|(start, next)| **next > **start + 1).count();
    (starts.len() - large) as u64 * (units / GUESSED_UNITS) + large as u64
}

/// Adds the contents of a block.
fn scan<L: Format, M: Medium>(core: &Core<L, M>, block: u64, end: u64, share: &mut Share) {
    let (mut dead, mut is_damaged) = (0u32, false);
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let mut found = std::mem::take(&mut share.found);
    let extent = L::walk(&core.medium, core.geometry, block, end, &mut |walked| match walked {
        Walked::Record(place, record, must_be_right) => {
            record.load_key(&core.medium, &mut key);
            // A higher one would leave none to draw.
            let is_possible = record.sequence(&core.medium) >> CLIENT_BITS <= CLOCK_MAX;
            if core.superblock.checksums {
                record.load_value(&core.medium, &mut value);
                match record.judge(&core.medium, &key, &value) {
                    Judgement::Sound | Judgement::Late { .. } if !is_possible => {}
                    Judgement::Sound => {}
                    Judgement::Late { number, word } => make_good(core, &record, number, word, share),
                    Judgement::Unsound if must_be_right => {
                        is_damaged = true;
                        return share.damaged(Damage::Record { at: record.at });
                    }
                    Judgement::Unsound => return share.torn.push((place, record)),
                }
                if !must_be_right && is_possible {
                    share.unsettled.push((place, record));
                }
            } else if !must_be_right {
                // The record was not published.
                return;
            }
            if !is_possible {
                is_damaged = true;
                return share.damaged(Damage::Record { at: record.at });
            }
            // Their cache misses overlap.
            let hash = core.hash(&key);
            core.index.prefetch(hash);
            found.push((hash, place, record));
        }
        Walked::Retracted(units) => dead += units,
        Walked::Damage(damage) => {
            is_damaged = true;
            share.damaged(damage);
        }
    });
    if is_damaged && L::HAS_LARGE {
        share.bounds.extend(large::bound(&core.medium, core.geometry, block, end));
    }
    let live = found.len() as u32;
    for (hash, place, record) in found.drain(..) {
        take_in(core, hash, place, record, share);
    }
    share.found = found;
    if !core.read_only {
        // The contents may have been read from a cache that a killed process did not flush; from now on they count as
        // durable. Of an unformatted block that is the word that says so.
        let bytes = match extent.kind {
            ExtentKind::Unformatted => WORD as u64,
            _ => extent.blocks * core.geometry.block_bytes(),
        };
        core.medium.flush(&mut share.lane, Site::RecoveryScan, core.geometry.block_at(block), bytes as usize);
    }
    let state = match extent.kind {
        _ if is_damaged => State::Damaged,
        ExtentKind::Unformatted => State::Free,
        ExtentKind::Pages => State::Waiting,
        ExtentKind::Large => State::Large,
        ExtentKind::Remains => {
            share.remains.push((block, extent.blocks));
            State::Large
        }
    };
    // Slots that were never used and slots of retracted records look the same.
    if !L::HAS_LARGE && state == State::Waiting {
        dead = L::units_of_block(core.geometry).saturating_sub(live);
    }
    for block in block..block + extent.blocks {
        core.space.block(block).set(state, live, dead);
    }
}

/// Waits until what a thread flushed is durable; the first failure counts.
fn fence<L: Format, M: Medium>(core: &Core<L, M>, share: &mut Share, site: Site) {
    let fenced = core.watch(core.medium.fence(&mut share.lane, site));
    share.durable = std::mem::replace(&mut share.durable, Ok(())).and(fenced);
}

/// Sets a word of a value to what was acknowledged, or remembers it if nothing may be written. It becomes durable with
/// the block; before that, the head of the record must be, which a killed process may have left only in the caches.
fn make_good<L: Format, M: Medium>(
    core: &Core<L, M>,
    record: &Record,
    number: usize,
    word: u64,
    share: &mut Share,
) {
    if core.read_only {
        share.late.insert(record.at, (number, word));
        return;
    }
    core.medium.flush(&mut share.lane, Site::RecoveryHead, record.sums_at(), 2 * WORD);
    fence(core, share, Site::RecoveryHead);
    if share.durable.is_err() {
        return;
    }
    let at = record.value_at() + (number * WORD) as u64;
    core.medium.memory().word(at).store(word, Ordering::Relaxed);
    core.medium.touched(at, WORD);
}

/// Puts a record into the index, unless there is a later one of the same key.
fn take_in<L: Format, M: Medium>(
    core: &Core<L, M>,
    hash: u64,
    place: Place,
    record: Record,
    share: &mut Share,
) {
    let (medium, geometry) = (&core.medium, core.geometry);
    if !core.read_only && lock::reset(medium.memory().word(geometry.page_at_of(place))) {
        medium.touched(geometry.page_at_of(place), 8);
    }
    let sequence = record.sequence(medium);
    share.clock = share.clock.max(sequence >> CLIENT_BITS);
    let _held = core.stripes.lock(hash);
    let other = core.index.find(hash, |entry| {
        let mut key = Vec::new();
        record.load_key(medium, &mut key);
        let place = Place(entry.at);
        match L::locate(medium, geometry, place) {
            Some(other) if other.has_key(medium, &key) => Look::Found((place, other)),
            _ => Look::Pass,
        }
    });
    let Some((other, other_record)) = other else { return core.index.insert(hash, place.0) };
    let rank = |sequence: u64, place: Place| (sequence, std::cmp::Reverse(place));
    if rank(sequence, place) > rank(other_record.sequence(medium), other) {
        core.index.replace(hash, other.0, place.0);
        share.superseded.push((hash, other, other_record));
    } else {
        share.superseded.push((hash, place, record));
    }
}

/// Makes superseded records invalid and blocks of incomplete large records free, and bounds those that were cut off,
/// durably.
fn clean<L: Format, M: Medium>(core: &Core<L, M>, writer: &mut Writer<L>, all: &Share) -> Result<()> {
    let geometry = core.geometry;
    let superseded = all.superseded.iter().map(|(_, place, record)| (place, record));
    // A torn record would become whole if others were written over it and happened to complete it.
    for (place, record) in superseded.chain(all.torn.iter().map(|(place, record)| (place, record))) {
        core.retract(writer, Site::RecoveryRetract, *place, record);
    }
    for (at, word) in &all.bounds {
        core.medium.memory().word(*at).store(*word, Ordering::Relaxed);
        core.medium.touched(*at, WORD);
        core.medium.flush(&mut writer.lane, Site::RecoveryRetract, *at, WORD);
    }
    core.fence(writer, Site::RecoveryRetract)?;
    if !all.unsettled.is_empty() {
        // They are durable, like everything that was read.
        for (place, record) in &all.unsettled {
            let word = L::settling(geometry, (*place, record));
            L::settle(&core.medium, &mut writer.lane, Site::RecoveryOccupancy, word);
        }
        core.fence(writer, Site::RecoveryOccupancy)?;
    }
    for (_, place, record) in &all.superseded {
        let block = geometry.block_of(*place);
        let word = core.space.block(block);
        if word.load().0 == State::Large {
            let blocks = large::blocks_for(geometry, record.key_bytes, record.value_bytes);
            dismantle(core, writer, block, blocks)?;
        } else {
            let is_free = word.retracted(L::units(record));
            debug_assert!(!is_free, "it waits, and does so until it is classified");
        }
    }
    all.remains.iter().try_for_each(|(block, blocks)| dismantle(core, writer, *block, *blocks))
}

fn dismantle<L: Format, M: Medium>(
    core: &Core<L, M>,
    writer: &mut Writer<L>,
    block: u64,
    blocks: u64,
) -> Result<()> {
    core.watch(large::dismantle(&core.medium, core.geometry, &mut writer.lane, block, blocks))?;
    (block..block + blocks).for_each(|block| core.space.block(block).set(State::Free, 0, 0));
    Ok(())
}

/// Classifies the blocks: free ones, ones to be refilled, and the rest.
fn classify<L: Format, M: Medium>(core: &Core<L, M>, first: u64, end: u64) -> (Vec<u64>, Vec<Partial>) {
    let (mut free, mut partial) = (Vec::new(), Vec::new());
    for block in first..end {
        let word = core.space.block(block);
        let (state, _, dead) = word.load();
        if state == State::Free || (state == State::Waiting && word.close()) {
            free.push(block);
        } else if state == State::Waiting && !core.read_only {
            let is_sparse = L::HAS_LARGE || dead >= L::units_of_block(core.geometry) / REFILL_SHARE;
            let spare = if is_sparse { L::spare(&core.medium, core.geometry, block) } else { None };
            if let Some(spare) = spare {
                let (_, live, dead) = word.load();
                word.set(State::Waiting, live, dead);
                partial.push(Partial { block, spare });
            }
        }
    }
    // The blocks at the beginning of the file are taken first.
    partial.reverse();
    (free, partial)
}
