//! Archives the log while it is written: the log keeps what is not in the archive yet.
//!
//! A segment is copied once the next one has been begun, because it is durable then. What the current segment holds is
//! copied when the database is closed or [`LogArchiver::archive_all`] is called. After a failure it is tried again;
//! meanwhile the log grows.
//!
//! Only what is durable is copied, so an archive that goes further than its log did when it was opened, or holds
//! something else, has the log of a copy of the database. Nothing is added to it. The first copy compares everything that
//! both have; later ones what comes before and after the part that they add.
//!
//! Lock order: the turn; the log's locks. The state is locked only for moments.

use crate::{
    Archive, ArchiveError, ArchivedPart, Durability, Log, LogError, LogKeeper, archive::PartSource,
    plant::Bug,
};
use std::{
    io,
    sync::{Arc, OnceLock},
    time::Duration,
};
use vellum_base::primitive::{
    Mutex, MutexGuard,
    thread::{Builder, JoinHandle},
};
use vellum_base::{Lsn, tell_panic};

/// How long the thread waits after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// How far the archive of a log reaches.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ArchiveState {
    /// Everything before this place in the log is in the archive; `None` until the archive could be examined.
    pub end: Option<Lsn>,
    /// The archive lacks the log between these places, which was written while there was no archive.
    pub gap: Option<(Lsn, Lsn)>,
    /// Why nothing can be archived now. It is retried every second, unless the thread that archives has panicked; the log
    /// keeps what is not archived.
    pub error: Option<String>,
}

/// Copies a log to its archive. It stops when this is dropped; the next archiver copies what is not archived then.
#[must_use = "nothing is archived once it is dropped"]
pub struct LogArchiver {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    log: Arc<Log>,
    archive: Archive,
    /// The key under which the log keeps what is not archived.
    kept: u64,
    /// Held by the thread that copies.
    turn: Mutex<()>,
    state: Mutex<ArchiveState>,
    /// Set once the archive is known to be of this log.
    is_examined: OnceLock<()>,
    /// Why nothing is archived in the background any more, if that is so.
    panic: OnceLock<String>,
}

impl LogArchiver {
    /// Makes the log keep everything that it has, and begins to archive it.
    ///
    /// # Errors
    /// If the system has no room for a thread.
    pub fn start(log: Arc<Log>, archive: Archive) -> io::Result<Self> {
        let from = if log.options().planted(Bug::RecycledUnarchived) { u64::MAX } else { 0 };
        let kept = log.kept().add(from, u64::MAX, LogKeeper::Archive);
        let (turn, state) = (Mutex::default(), Mutex::default());
        let (is_examined, panic) = (OnceLock::new(), OnceLock::new());
        let shared = Arc::new(Shared { log, archive, kept, turn, state, is_examined, panic });
        let copied = shared.clone();
        let work = move || {
            let mut pause = Some(Duration::ZERO);
            while copied.log.archive_bell().wait(pause) {
                pause = copied.copy(None, false).is_err().then_some(PAUSE);
            }
        };
        let told = shared.clone();
        let work = move || {
            tell_panic(work, |panic| {
                told.panic.get_or_init(|| panic);
            });
        };
        let thread = Builder::new().name("vellum-archive".to_owned()).spawn(work)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// How far the archive reaches.
    pub fn state(&self) -> ArchiveState {
        let mut state = lock(&self.shared.state).clone();
        state.error = self.shared.panic.get().cloned().or(state.error);
        state
    }

    /// The archive.
    pub fn archive(&self) -> &Archive {
        &self.shared.archive
    }

    /// The archive, for what reads it while the log is open.
    pub fn checked(&self) -> CheckedArchive {
        CheckedArchive(self.shared.clone())
    }

    /// Archives everything appended until now, and returns the place up to which that is. If it `is_last`, an empty last segment is archived too: the next log
    /// says that it follows on that.
    ///
    /// # Errors
    /// If the log cannot be made durable, or the archive cannot be written: [`LogError::Archive`].
    pub fn archive_all(&self, is_last: bool) -> Result<Lsn, LogError> {
        self.shared.log.flush_all(Durability::Synced)?;
        let end = self.shared.log.horizon(Durability::Synced);
        self.shared.copy(Some(end), is_last)?;
        // A log to which nothing was appended begins behind the place where the archive ends.
        let archived = lock(&self.shared.state).end;
        Ok(archived.map_or(end, |archived| archived.min(end)))
    }
}

impl Drop for LogArchiver {
    fn drop(&mut self) {
        self.shared.log.archive_bell().stop();
        if let Some(thread) = self.thread.take() {
            // A panic has been noted.
            let _ = thread.join();
        }
    }
}

/// The archive of an open log, for what reads both.
#[derive(Clone)]
pub struct CheckedArchive(Arc<Shared>);

impl CheckedArchive {
    /// The archive, if it is of this log.
    ///
    /// # Errors
    /// [`ArchiveError::Diverged`] if it has the log of another copy of the database, and if it cannot be read.
    pub fn get(&self) -> Result<&Archive, ArchiveError> {
        self.0.examine()?;
        Ok(&self.0.archive)
    }
}

impl Shared {
    /// Finds out whether the archive is of this log, unless that is known.
    fn examine(&self) -> Result<(), ArchiveError> {
        if self.is_examined.get().is_some() {
            return Ok(());
        }
        let _turn = lock(&self.turn);
        let (end, sources) = self.known_end(self.log.horizon(Durability::Synced).0, false)?;
        // Also what would be added next.
        if let Some(next) = sources.iter().find(|source| end.is_some_and(|end| source.part.end > end)) {
            self.archive.check_source(&self.archive.names()?, next)?;
        }
        // An archive that holds nothing yet is examined again.
        if end.is_some() {
            self.is_examined.get_or_init(|| ());
        }
        Ok(())
    }

    /// How far the archive reaches, and the finished parts of the log.
    fn known_end(&self, to: u64, with_blank: bool) -> Result<(Option<Lsn>, Vec<PartSource>), ArchiveError> {
        let known = lock(&self.state).end;
        let durable = self.log.horizon(Durability::Synced).0;
        let (log_end, mut all, mut sources) = {
            let device = self.log.device();
            let all = if known.is_none() { device.finished_parts(durable, true) } else { Vec::new() };
            (device.former_end(), all, device.finished_parts(to, with_blank))
        };
        let lives = &self.log.lives;
        all.iter_mut().chain(&mut sources).for_each(|source| source.part.life = lives.of(source.part.start));
        let end = match known {
            Some(end) => Some(end),
            None => self.archive.check(log_end, &all, lives)?,
        };
        Ok((end, sources))
    }

    /// Copies finished segments, and what the current one holds up to `to`, if given.
    fn copy(&self, to: Option<Lsn>, with_blank: bool) -> Result<(), ArchiveError> {
        let _turn = lock(&self.turn);
        let copied = self.copy_in_turn(to, with_blank);
        lock(&self.state).error = copied.as_ref().err().map(ToString::to_string);
        copied
    }

    fn copy_in_turn(&self, to: Option<Lsn>, with_blank: bool) -> Result<(), ArchiveError> {
        let (mut end, sources) = self.known_end(to.map_or(0, |to| to.0), with_blank)?;
        for source in sources {
            let ArchivedPart { start, end: part_end, .. } = source.part;
            if end.is_some_and(|end| part_end <= end) {
                continue;
            }
            self.archive.write(&source, end)?;
            let gap = end.filter(|end| start > *end && !source.follows_on(*end)).map(|end| (end, start));
            end = Some(part_end);
            let mut state = lock(&self.state);
            state.end = end;
            state.gap = state.gap.or(gap);
            drop(state);
            // What something refers to is not used again.
            drop(source);
            self.release(part_end);
        }
        lock(&self.state).end = end;
        Ok(())
    }

    /// Lets the log give up what is archived.
    fn release(&self, end: Lsn) {
        self.log.kept().keep(self.kept, end);
        // A file that cannot be removed is reused, or removed, after the log has been opened again.
        let _ = self.log.discard_again();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{
        LogOptions,
        segment::{self, Geometry},
    };
    use vellum_vm::{CrashModel, Directory, SimulatedDisk};

    fn start(disk: &SimulatedDisk, parts: &SimulatedDisk) -> (Arc<Log>, LogArchiver) {
        let log = open(disk, Lsn(0));
        let archiver = archive(&log, parts);
        (log, archiver)
    }

    fn options(least: Lsn) -> LogOptions {
        LogOptions { segment_bytes: 16 << 10, buffer_bytes: 1 << 20, least, ..LogOptions::new([1; 16]) }
    }

    fn open(disk: &SimulatedDisk, from: Lsn) -> Arc<Log> {
        let log = Log::open(Arc::new(disk.clone()), &options(Lsn(0)), from, |_| Ok::<_, LogError>(()));
        Arc::new(log.unwrap())
    }

    fn archive(log: &Arc<Log>, parts: &SimulatedDisk) -> LogArchiver {
        let archive = Archive::new(Arc::new(parts.clone()), log.options().database);
        LogArchiver::start(log.clone(), archive).unwrap()
    }

    /// Appends `count` records of a kibibyte, durably.
    fn fill(log: &Log, with: u8, count: usize) {
        for _ in 0..count {
            log.append(&[with; 1008]).unwrap();
        }
        log.flush_all(Durability::Synced).unwrap();
    }

    /// Nothing is archived, and the log keeps everything from `from` on.
    fn assert_refused(archiver: &LogArchiver, parts: &SimulatedDisk, from: Lsn) {
        let before = archiver.archive().parts().unwrap();
        let refused = |error: &LogError| matches!(error, LogError::Archive(ArchiveError::Diverged { .. }));
        for _ in 0..2 {
            assert!(archiver.archive_all(false).is_err_and(|error| refused(&error)));
            fill(&archiver.shared.log, 9, 30);
        }
        assert!(archiver.archive_all(true).is_err_and(|error| refused(&error)));
        assert!(archiver.state().error.unwrap().contains("another directory"));
        assert_eq!((archiver.state().end, archiver.archive().parts().unwrap()), (None, before));
        archiver.shared.log.discard(archiver.shared.log.end()).unwrap();
        let kept = archiver.shared.log.device().follow(from, archiver.shared.log.end());
        assert!(kept.unwrap().next().unwrap().is_some());
        assert!(parts.names().unwrap().iter().all(|name| name != "log.unfinished"));
    }

    #[test]
    fn a_log_that_ended_with_a_segment_is_archived() {
        let (disk, parts) = (SimulatedDisk::new(1), SimulatedDisk::new(2));
        let (log, archiver) = start(&disk, &parts);
        let begin = log.end();
        while log.end().0 < begin.0 + (12 << 10) {
            log.append(&[7; 1008]).unwrap();
        }
        assert_eq!(log.end().0, begin.0 + (12 << 10), "a segment is full");
        log.flush_all(Durability::Synced).unwrap();
        let crashed = disk.crash();
        drop((archiver, log));
        let (log, archiver) = start(&crashed, &parts);
        let last = log.append(b"after it").unwrap();
        assert!(archiver.archive_all(false).unwrap() > last);
        assert_eq!(archiver.state().gap, None);
        let mut reader = archiver.archive().read(begin).unwrap();
        let mut count = 0;
        while reader.next().unwrap().is_some() {
            count += 1;
        }
        assert_eq!(count, 13);
    }

    #[test]
    fn a_segment_is_archived_when_the_record_that_leaves_it_is_durable() {
        let (log, archiver) = start(&SimulatedDisk::new(1), &SimulatedDisk::new(2));
        let begin = log.end();
        let mut last = begin;
        while last.0 < begin.0 + (20 << 10) {
            last = log.append(&[7; 1000]).unwrap();
        }
        // All of it is one write, in which a segment ends.
        log.wait(last, Durability::Buffered).unwrap();
        archiver.shared.copy(None, false).unwrap();
        assert_eq!((log.horizon(Durability::Synced), archiver.state().end), (begin, None));
        // After a crash the log might end before that record now, in the middle of the segment.
        log.wait(last, Durability::Synced).unwrap();
        archiver.shared.copy(None, false).unwrap();
        assert_eq!(archiver.state().end, Some(Lsn(begin.0 + (12 << 10))));
    }

    /// Whatever fails while the archive has nothing of this life yet: it is not taken for one of another copy.
    #[test]
    fn a_part_that_was_made_although_the_copy_failed_is_known_again() {
        // The part is that of a segment, or of the beginning of one.
        let cases = [(true, 30, 1), (true, 30, 0), (true, 2, 0), (false, 30, 1), (false, 2, 1)];
        let cases = [true, false].into_iter().flat_map(|first| cases.map(|case| (first, case)));
        for (is_first, (to_end, records, more)) in cases {
            for operation in 1.. {
                let (mut disk, parts) = (SimulatedDisk::new(1), SimulatedDisk::new(2));
                let (mut log, mut archiver) = start(&disk, &parts);
                let begin = log.end();
                if !is_first {
                    fill(&log, 1, 5);
                    archiver.archive_all(true).unwrap();
                    disk = disk.crash();
                    drop((archiver, log));
                    (log, archiver) = start(&disk, &parts);
                }
                parts.fail_nth(operation);
                fill(&log, 2, records);
                // Or the thread of the archive meets it.
                let _ = archiver.archive_all(false);
                let has_failed = parts.counts().scheduled_failures > 0;
                parts.heal();
                fill(&log, 3, more);
                let again = |to_end: bool| match to_end {
                    true => archiver.archive_all(false).map(drop),
                    false => archiver.shared.copy(None, false).map_err(LogError::from),
                };
                again(to_end).unwrap_or_else(|error| panic!("{operation}: {error}"));
                if to_end {
                    // It is durable, whatever failed before.
                    let durable = Archive::new(Arc::new(parts.crash_with(CrashModel::LoseAll)), [1; 16]);
                    assert_eq!(durable.last().unwrap().unwrap().end, log.end(), "{operation}");
                }
                archiver.archive_all(true).unwrap();
                assert_eq!((archiver.state().error, archiver.state().gap), (None, None), "{operation}");
                let mut reader = archiver.archive().read(begin).unwrap();
                let mut count = 0;
                while reader.next().unwrap().is_some() {
                    count += 1;
                }
                assert_eq!(count, records + more + if is_first { 0 } else { 5 }, "{operation}");
                if !has_failed {
                    break;
                }
            }
        }
    }

    #[test]
    fn what_a_killed_process_has_archived_is_made_durable() {
        // Some of these are beyond the last; which one is it differs with what the thread of the archive does first.
        for operation in 1..=20 {
            let (disk, parts) = (SimulatedDisk::new(1), SimulatedDisk::new(2));
            let (log, archiver) = start(&disk, &parts);
            parts.fail_nth(operation);
            fill(&log, 1, 5);
            let _ = archiver.archive_all(false);
            let (disk, parts) = (disk.kill(), parts.kill());
            drop((archiver, log));
            parts.heal();
            let (log, archiver) = start(&disk, &parts);
            let end = log.device().former_end();
            archiver.archive_all(false).unwrap();
            let durable = Archive::new(Arc::new(parts.crash_with(CrashModel::LoseAll)), [1; 16]);
            assert_eq!(durable.last().unwrap().unwrap().end, end, "{operation}");
        }
    }

    #[test]
    fn an_older_log_that_was_put_back_is_not_archived() {
        // The copy is of a log that crashed in a segment, at the end of a segment, or of a closed one. Its original
        // has gone on in the segment that the archive ends with, to the end of that, or in a later one.
        for (before, after) in [(3, 2), (3, 9), (3, 20), (12, 1), (12, 12), (0, 5)] {
            let (disk, parts) = (SimulatedDisk::new(1), SimulatedDisk::new(2));
            let (log, archiver) = start(&disk, &parts);
            let begin = log.end();
            fill(&log, 1, before);
            archiver.archive_all(false).unwrap();
            let copy = disk.crash();
            fill(&log, 2, after);
            archiver.archive_all(false).unwrap();
            drop(archiver);
            let log = open(&copy, begin);
            let first = log.append(b"after the copy").unwrap();
            log.wait(first, Durability::Synced).unwrap();
            assert_refused(&archive(&log, &parts), &parts, first);
            // Without a log, as after a close.
            let log =
                Log::begin(Arc::new(SimulatedDisk::new(3)), &options(Lsn(begin.0 + 1024 * before as u64)));
            let log = Arc::new(log.unwrap());
            let first = log.append(b"after the copy").unwrap();
            log.wait(first, Durability::Synced).unwrap();
            assert_refused(&archive(&log, &parts), &parts, first);
        }
    }

    #[test]
    fn a_copy_that_went_further_without_its_archive_does_not_continue_it() {
        // The archive ends in a segment, or at the end of one.
        for archived in [5, 12, 15, 24] {
            let parts = SimulatedDisk::new(2);
            let (log, archiver) = start(&SimulatedDisk::new(1), &parts);
            let begin = log.end();
            fill(&log, 1, 2);
            fill(&log, 2, archived - 2);
            archiver.archive_all(false).unwrap();
            drop(archiver);
            // The log of the copy has all of it, also if that ends where the archive does; or only what follows on the
            // last whole segment that the archive has.
            for (count, given_up) in [(40, 0), (archived, 0), (40, archived / 12)] {
                let disk = SimulatedDisk::new(3);
                let log = open(&disk, Lsn(0));
                fill(&log, 1, 2);
                fill(&log, 3, count - 2);
                let first = log.device().number();
                drop(log);
                let disk = disk.crash();
                let geometry = Geometry { segment_bytes: options(begin).segment_bytes };
                for number in geometry.number(begin.0)..geometry.number(begin.0) + given_up as u64 {
                    disk.remove(&segment::name(number)).unwrap();
                }
                let from = Lsn(begin.0 + (12 << 10) * given_up as u64);
                let log = open(&disk, from);
                assert!(log.device().number() > first);
                assert_refused(&archive(&log, &parts), &parts, from);
            }
        }
    }

    #[test]
    fn the_logs_of_a_database_and_its_copy_that_run_at_once_are_not_mixed() {
        for is_copy_first in [true, false] {
            let (disk, parts) = (SimulatedDisk::new(1), SimulatedDisk::new(2));
            let (log, archiver) = start(&disk, &parts);
            let begin = log.end();
            fill(&log, 1, 5);
            let end = archiver.archive_all(false).unwrap();
            let copy = open(&disk.crash(), begin);
            let copy_archiver = archive(&copy, &parts);
            copy_archiver.archive_all(false).unwrap();
            assert_eq!(copy_archiver.state().end, Some(end));
            // One goes on in the segment, and the other in the next one.
            fill(&log, 2, 2);
            fill(&copy, 3, 2);
            let (first, second) =
                if is_copy_first { (&copy_archiver, &archiver) } else { (&archiver, &copy_archiver) };
            first.archive_all(false).unwrap();
            let before = first.archive().parts().unwrap();
            let refused = second.archive_all(false);
            assert!(
                matches!(refused, Err(LogError::Archive(ArchiveError::Diverged { .. }))),
                "{is_copy_first}"
            );
            assert_eq!(first.archive().parts().unwrap(), before);
            assert!(second.state().error.is_some());
            fill(&first.shared.log, 4, 20);
            first.archive_all(true).unwrap();
        }
    }

    /// A directory in which something happens before a part is begun.
    struct Meeting {
        parts: SimulatedDisk,
        before: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    }

    impl std::fmt::Debug for Meeting {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            self.parts.fmt(f)
        }
    }

    impl Directory for Meeting {
        fn open(
            &self,
            name: &str,
            options: &vellum_vm::FileOptions,
        ) -> Result<Arc<dyn vellum_vm::File>, vellum_vm::VmError> {
            if name == "log.unfinished"
                && let Some(before) = lock(&self.before).take()
            {
                before();
            }
            self.parts.open(name, options)
        }

        fn names(&self) -> io::Result<Vec<String>> {
            self.parts.names()
        }

        fn remove(&self, name: &str) -> io::Result<()> {
            self.parts.remove(name)
        }

        fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            self.parts.rename(from, to)
        }

        fn sync(&self) -> io::Result<()> {
            self.parts.sync()
        }
    }

    /// A part that another process has added since the archive was looked at is not overwritten.
    #[test]
    fn the_log_of_a_copy_that_adds_the_same_part_at_the_same_moment_is_not_overwritten() {
        let (disk, parts) = (SimulatedDisk::new(1), SimulatedDisk::new(2));
        let (log, archiver) = start(&disk, &parts);
        let begin = log.end();
        fill(&log, 1, 5);
        archiver.archive_all(false).unwrap();
        let copy = open(&disk.crash(), begin);
        drop((archiver, log));
        let log = open(&disk.crash(), begin);
        fill(&log, 2, 2);
        fill(&copy, 3, 2);
        let other = archive(&copy, &parts);
        let first = Arc::new(Mutex::new(None));
        let (told, archived) = (first.clone(), other.archive().clone());
        let before: Box<dyn FnOnce() + Send> = Box::new(move || {
            other.archive_all(false).unwrap();
            *lock(&told) = Some(other.archive().parts().unwrap());
        });
        let meeting = Meeting { parts, before: Mutex::new(Some(before)) };
        let archive = Archive::new(Arc::new(meeting), log.options().database);
        let archiver = LogArchiver::start(log, archive).unwrap();
        let refused = archiver.archive_all(false);
        assert!(matches!(refused, Err(LogError::Archive(ArchiveError::Diverged { .. }))), "{refused:?}");
        assert_eq!(Some(archived.parts().unwrap()), *lock(&first));
    }

    #[test]
    fn a_segment_that_was_archived_blank_continues_in_another_life() {
        let (disk, parts) = (SimulatedDisk::new(1), SimulatedDisk::new(2));
        let (log, archiver) = start(&disk, &parts);
        let begin = log.end();
        fill(&log, 1, 3);
        archiver.archive_all(false).unwrap();
        drop((archiver, log));
        // Nothing is written on the second timeline. After the close the log begins with the first one again.
        let log = open(&disk.crash(), begin);
        let archiver = archive(&log, &parts);
        archiver.archive_all(true).unwrap();
        let end = log.end();
        drop(archiver);
        let log = Arc::new(Log::begin(Arc::new(SimulatedDisk::new(3)), &options(end)).unwrap());
        assert_eq!(log.end(), end);
        fill(&log, 2, 3);
        let archiver = archive(&log, &parts);
        archiver.archive_all(true).unwrap();
        let ends: Vec<_> =
            archiver.archive().parts().unwrap().iter().map(|part| (part.start, part.end)).collect();
        assert_eq!(ends, [(begin, Lsn(begin.0 + 3072)), (end, Lsn(end.0 + 3072))]);
        assert_eq!(archiver.state().gap, None);
    }
}
