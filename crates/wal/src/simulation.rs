//! Crashes and failures at every moment, on a simulated disk; and whether each planted bug is noticed.
//!
//! A run is a seed: a few lives of one log. In each life the log is opened, and records are appended, waited for and
//! discarded, until the disk fails. Then it crashes, and any part of what was not synced survives. The model knows
//! everything that was appended and how far it was acknowledged.

use crate::{Durability, Log, LogError, LogOptions, LogReader, ReadableLives, plant::Bug, segment};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{collections::BTreeMap, sync::Arc};
use vellum_base::{Lsn, PAGE_SIZE};
use vellum_vm::{Directory, Faults, FileOperation, SimulatedDisk};

/// What must hold.
#[derive(Default)]
struct Model {
    /// All records that were appended and may still be there.
    records: BTreeMap<u64, Vec<u8>>,
    /// The log has been discarded before this.
    from: Lsn,
    /// All before this was acknowledged as durable.
    acknowledged: Lsn,
    /// All before this was acknowledged as written.
    buffered: Lsn,
    /// The greatest LSN that was handed out.
    last: Lsn,
    /// The log accepts nothing more.
    has_failed: bool,
    /// The database was closed: it no longer needs the log, which was removed, or is about to be.
    is_closed: bool,
    /// The lives that the database knows: each is noted before it logs anything, and after its log was begun.
    lives: Vec<u64>,
    /// How often the log was opened, or that was tried.
    openings: u64,
}

type Check = Result<(), String>;

fn options(bug: Option<Bug>) -> LogOptions {
    LogOptions {
        segment_bytes: 4 * PAGE_SIZE as u64,
        buffer_bytes: 8192,
        spare_segments_min: 2,
        bug,
        ..LogOptions::new(*b"the id of it all")
    }
}

impl Model {
    /// Of each opening the life is another one. Only those that are known may have logged something.
    fn with_lives(&mut self, options: &LogOptions) -> LogOptions {
        self.openings += 1;
        let readable = ReadableLives::only(self.lives.clone(), Lsn(0)..Lsn(u64::MAX));
        let last_life = self.lives.last().copied().unwrap_or(0);
        LogOptions { life: self.openings, readable, last_life, ..options.clone() }
    }

    /// Opens the log, and compares its contents with what they should be.
    fn open(&mut self, disk: &SimulatedDisk, options: &LogOptions) -> Result<Option<Log>, String> {
        if self.is_closed {
            return self.begin(disk, options);
        }
        let (mut found, options) = (Vec::new(), &self.with_lives(options));
        let outcome = Log::open(Arc::new(disk.clone()), options, self.from, |record| {
            found.push((record.lsn.0, record.payload.to_vec()));
            Ok::<_, LogError>(())
        });
        let log = match outcome {
            Ok(log) => log,
            Err(
                error @ (LogError::Hole { .. }
                | LogError::HeaderLost { .. }
                | LogError::Misplaced { .. }
                | LogError::Missing { .. }
                | LogError::OtherLife { .. }
                | LogError::LastLifeMissing { .. }
                | LogError::Foreign { .. }),
            ) => {
                return Err(format!("what is whole is refused: {error}"));
            }
            // The disk failed again.
            Err(_) => return Ok(None),
        };
        let expected: Vec<_> =
            self.records.range(self.from.0..).map(|(lsn, it)| (*lsn, it.clone())).collect();
        if !expected.starts_with(&found) {
            let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
            return Err(format!("{} records, of which {wrong:?} is wrong", found.len()));
        }
        let kept = self.acknowledged.max(self.buffered);
        if let Some((lost, _)) = expected.get(found.len()).filter(|(lsn, _)| *lsn < kept.0) {
            return Err(format!("{lost} is lost, though all before {kept} was acknowledged"));
        }
        if log.end() <= self.last {
            return Err(format!("{} is used again", log.end()));
        }
        self.records = found.into_iter().collect();
        (self.acknowledged, self.buffered, self.has_failed) = (log.end(), log.end(), false);
        // The database may know of the life before anything is logged, and the opening may fail after that.
        if self.openings.is_multiple_of(2) {
            self.lives.push(self.openings);
            if self.openings.is_multiple_of(3) {
                let _ = log.withdraw();
                return Ok(None);
            }
        }
        Ok(Some(log))
    }

    /// Begins a log when nothing of the former one is needed.
    fn begin(&mut self, disk: &SimulatedDisk, options: &LogOptions) -> Result<Option<Log>, String> {
        let options = LogOptions { least: self.from, ..self.with_lives(options) };
        let Ok(log) = Log::begin(Arc::new(disk.clone()), &options) else { return Ok(None) };
        if log.end() <= self.last {
            return Err(format!("{} is used again after a close", log.end()));
        }
        (self.from, self.is_closed, self.has_failed) = (log.end(), false, false);
        // The database needs the log from when it knows of the life.
        self.lives.push(self.openings);
        (self.acknowledged, self.buffered) = (log.end(), log.end());
        Ok(Some(log))
    }

    /// Closes the database: a superblock says so, and then the log is removed.
    fn close(&mut self, log: &Log, disk: &SimulatedDisk) -> Check {
        (self.from, self.is_closed) = (log.end(), true);
        self.records.clear();
        match log.remove() {
            Ok(()) if !disk.crash().names().is_ok_and(|names| names.is_empty()) => {
                Err("a removed log comes back".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Compares what is read again, as far as it can be read, with what was found.
    fn check_reread(&self, mut reader: LogReader, expected: &[(u64, Vec<u8>)]) -> Check {
        let mut expected = expected.iter();
        loop {
            let record = match reader.next() {
                Ok(record) => record.map(|record| (record.lsn.0, record.payload)),
                Err(LogError::Files { .. } | LogError::Unread { .. }) => return Ok(()),
                Err(error) => return Err(format!("what was read before is refused: {error}")),
            };
            let wanted = expected.next().map(|(lsn, payload)| (*lsn, payload.as_slice()));
            match (record, wanted) {
                (None, None) => return Ok(()),
                (record, wanted) if record == wanted => {}
                (record, _) => {
                    return Err(format!("another record is read again: {:?}", record.map(|(lsn, _)| lsn)));
                }
            }
        }
    }

    /// Appends and waits until the disk fails, or enough has been done.
    fn live(&mut self, log: &Log, random: &mut StdRng, steps: u32) {
        for _ in 0..steps {
            let outcome = match random.random_range(0..20) {
                0 => self.records.keys().next_back().map_or(Ok(()), |last| {
                    log.wait(Lsn(*last), Durability::Synced).map(|()| {
                        // As a checkpoint does it: nothing before is needed any more.
                        self.from = Lsn(*last);
                        let _ = log.discard(self.from);
                    })
                }),
                1 => log.prepare(),
                2 => {
                    let bytes = random.random_range(0..600);
                    log.reserve(bytes).and_then(|place| {
                        self.last = self.last.max(place.lsn());
                        if random.random() {
                            return log.cancel_at(place.into_lsn(), bytes);
                        }
                        drop(place);
                        Ok(())
                    })
                }
                step => self.append(log, random).and_then(|lsn| match step {
                    3..7 => log.wait(lsn, Durability::Synced),
                    7..9 => log.wait(lsn, Durability::Buffered),
                    _ => Ok(()),
                }),
            };
            self.acknowledged = self.acknowledged.max(log.horizon(Durability::Synced));
            self.buffered = self.buffered.max(log.horizon(Durability::Buffered));
            if let Err(error) = outcome {
                self.has_failed = matches!(error, LogError::OutcomeUnknown { .. });
                return;
            }
        }
    }

    fn append(&mut self, log: &Log, random: &mut StdRng) -> Result<Lsn, LogError> {
        let bytes = match random.random_range(0..10) {
            0 => 0,
            1 => random.random_range(1000..log.options().record_bytes_max()),
            _ => random.random_range(1..300),
        };
        let payload: Vec<u8> = (0..bytes).map(|_| random.random()).collect();
        log.admit()?;
        if self.lives.last() != Some(&self.openings) {
            self.lives.push(self.openings);
        }
        let place = log.reserve(bytes)?;
        let lsn = place.lsn();
        // From now on the record may be found after a crash.
        self.last = self.last.max(lsn);
        self.records.insert(lsn.0, payload.clone());
        if random.random() {
            return place.fill(&payload);
        }
        log.fill_at(place.into_lsn(), &payload).map(|()| lsn)
    }
}

fn run(seed: u64, bug: Option<Bug>) -> Check {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut model, mut disk) = (Model::default(), SimulatedDisk::new(seed));
    for _ in 0..random.random_range(2..7) {
        if random.random_ratio(1, 5) {
            disk.fail_from(random.random_range(1..40));
        }
        // The log relies on no file for what it has to remember.
        let forgotten_failures = seed.is_multiple_of(2) || bug == Some(Bug::SyncTriedAgain);
        disk.set_faults(Faults { forgotten_failures, ..Faults::default() });
        if let Some(log) = model.open(&disk, &options(bug))? {
            let steps = random.random_range(1..150);
            match random.random_range(0..6) {
                0..3 => disk.fail_from(random.random_range(1..120)),
                3 => disk.fail_nth_of(FileOperation::Sync, random.random_range(1..20)),
                4 => disk.fail_nth_of(FileOperation::Write, random.random_range(1..30)),
                _ => {}
            }
            let past: Vec<_> = model.records.iter().map(|(lsn, payload)| (*lsn, payload.clone())).collect();
            let first = random.random_range(0..=past.len());
            let reader = past.get(first).map(|(lsn, _)| log.reread(Lsn(*lsn)));
            model.live(&log, &mut random, steps);
            match reader {
                Some(Ok(reader)) => model.check_reread(reader, &past[first..])?,
                Some(Err(LogError::Files { .. } | LogError::Unread { .. })) | None => {}
                Some(Err(error)) => return Err(format!("what was read before is refused: {error}")),
            }
            if random.random_ratio(1, 6) {
                model.close(&log, &disk)?;
            }
        }
        if random.random_ratio(1, 3) && !model.has_failed {
            // The process is killed: what it has written stays, and is no more durable than before.
            disk.heal();
        } else {
            // The power fails, or the system drops what it could not write.
            model.buffered = model.acknowledged;
            disk = disk.crash();
        }
    }
    disk.heal();
    // It may have been taken back once.
    let log = model
        .open(&disk, &options(bug))?
        .map_or_else(|| model.open(&disk, &options(bug)), |log| Ok(Some(log)))?;
    log.map(drop).ok_or_else(|| "a disk that is well does not open".to_owned())
}

/// Damages part of what was durable and followed by another sync, or the first page of any segment. It must not look like the end of
/// the log.
fn damage(seed: u64, bug: Option<Bug>) -> Check {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut model, disk) = (Model::default(), SimulatedDisk::new(seed));
    let Some(log) = model.open(&disk, &options(bug))? else { return Ok(()) };
    let begin = log.end();
    let mut shown = begin;
    for _ in 0..random.random_range(3..30) {
        shown = model.acknowledged;
        for _ in 0..random.random_range(1..10) {
            model.append(&log, &mut random).map_err(|error| error.to_string())?;
        }
        log.wait(model.last, Durability::Synced).map_err(|error| error.to_string())?;
        model.acknowledged = log.horizon(Durability::Synced);
    }
    drop(log);
    let geometry = segment::Geometry { segment_bytes: options(bug).segment_bytes };
    let is_header = random.random_ratio(1, 8);
    let durable = if is_header { model.acknowledged } else { shown };
    let at = random.random_range(begin.0..durable.0);
    let file = disk.file(&segment::name(geometry.number(at)));
    let offset = if is_header { random.random_range(0..80) } else { geometry.offset(at) };
    // What comes after the damage is whole, and shows it.
    let (sector, page) = (at / 512 * 512, at / 4096 * 4096);
    match random.random_range(0..3) {
        0 if sector + 512 <= durable.0 => file.overwrite(offset / 512 * 512, &[0; 512]),
        1 if page + 4096 <= durable.0 => file.overwrite(offset / 4096 * 4096, &[0; 4096]),
        _ => file.flip_bit(offset * 8 + random.random_range(0..8)),
    }
    let mut found = Vec::new();
    let outcome = Log::open(Arc::new(disk.crash()), &options(bug), begin, |record| {
        found.push((record.lsn.0, record.payload.to_vec()));
        Ok::<_, LogError>(())
    });
    match outcome {
        // The damaged part is filled with zeroes up to the next record, or is not read.
        Ok(_) if found == model.records.into_iter().collect::<Vec<_>>() => Ok(()),
        Ok(_) => Err(format!("{} records without a word, damaged at {at}", found.len())),
        Err(_) => Ok(()),
    }
}

/// The disk has no room for another segment, so a record is written only in part, and the process is killed.
fn short_of_segments(bug: Option<Bug>) -> Check {
    const PAYLOAD: usize = 1104;
    let (disk, options) = (SimulatedDisk::new(1), options(bug));
    let failed = |error: LogError| error.to_string();
    let log =
        Log::open(Arc::new(disk.clone()), &options, Lsn(0), |_| Ok::<_, LogError>(())).map_err(failed)?;
    disk.fail_from_of(FileOperation::Name, 1);
    let (begin, mut count) = (log.end(), 0_usize);
    while log.has_room_for(PAYLOAD) {
        log.reserve(PAYLOAD).and_then(|place| place.fill(&[count as u8; PAYLOAD])).map_err(failed)?;
        count += 1;
        if log.end().0 - begin.0 < options.segment_bytes - PAGE_SIZE as u64 {
            log.wait(Lsn(log.end().0 - 1), Durability::Synced).map_err(failed)?;
        } else if !matches!(log.flush_all(Durability::Synced), Err(LogError::NoRoom { .. })) {
            return Err("there was room for a segment".to_owned());
        }
    }
    if log.horizon(Durability::Buffered) != log.end() || log.horizon(Durability::Synced) == log.end() {
        return Err("all is filled, and not all is durable".to_owned());
    }
    let mut found = 0;
    let again = Log::open(Arc::new(disk.kill()), &options, begin, |_| {
        found += 1;
        Ok::<_, LogError>(())
    });
    match again {
        Ok(_) if found == count => Ok(()),
        Ok(_) => Err(format!("{found} of {count} records are there")),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn a_record_that_was_written_in_part_survives_the_process() {
    short_of_segments(None).unwrap();
}

/// How many seeds a test tries: `VELLUM_SEEDS`, or `default`.
fn seeds(default: u64) -> u64 {
    std::env::var("VELLUM_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(default)
}

#[test]
fn what_was_acknowledged_survives_every_crash() {
    for seed in 0..seeds(2000) {
        run(seed, None).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn damage_to_what_was_durable_is_never_taken_for_the_end() {
    for seed in 0..seeds(2000) {
        damage(seed, None).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn planted_bugs_are_noticed() {
    // Seeds that have found a bug each come first.
    const KNOWN: [u64; 12] = [0, 1, 3, 9, 14, 15, 35, 51, 80, 116, 465, 3358];
    for bug in Bug::ALL {
        if short_of_segments(Some(bug)).is_err() {
            println!("{bug:?}: noticed without a seed");
            continue;
        }
        let mut seeds = KNOWN.into_iter().chain(0..20_000);
        let seed = seeds.find(|seed| run(*seed, Some(bug)).is_err() || damage(*seed, Some(bug)).is_err());
        let seed = seed.unwrap_or_else(|| panic!("nothing notices {bug:?}"));
        println!("{bug:?}: noticed by seed {seed}");
    }
}
