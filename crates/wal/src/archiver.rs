//! Archives the log while it is written: the log keeps what is not in the archive yet.
//!
//! A segment is copied once the next one has been begun, because it is durable then. What the current segment holds is
//! copied when the database is closed or [`LogArchiver::archive_all`] is called. After a failure it is tried again;
//! meanwhile the log grows.
//!
//! Lock order: the turn; the log's locks. The state is locked only for moments.

use crate::{Archive, ArchiveError, ArchivedPart, Durability, Log, LogError, LogKeeper, plant::Bug};
use std::{io, sync::Arc, time::Duration};
use vellum_base::Lsn;
use vellum_base::primitive::{
    Mutex, MutexGuard,
    thread::{Builder, JoinHandle},
};

/// How long the thread waits after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// How far the archive of a log reaches.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ArchiveState {
    /// Everything before this place in the log is in the archive; `None` until the archive could be examined.
    pub end: Option<Lsn>,
    /// The archive lacks the log between these places, which was written while there was no archive.
    pub gap: Option<(Lsn, Lsn)>,
    /// Why nothing can be archived now. It is retried every second; the log keeps what is not archived.
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
}

impl LogArchiver {
    /// Makes the log keep everything that it has, and begins to archive it.
    ///
    /// # Errors
    /// If the system has no room for a thread.
    pub fn start(log: Arc<Log>, archive: Archive) -> io::Result<Self> {
        let from = if log.options().planted(Bug::RecycledUnarchived) { u64::MAX } else { 0 };
        let kept = log.kept().add(from, u64::MAX, LogKeeper::Archive);
        let shared = Arc::new(Shared { log, archive, kept, turn: Mutex::default(), state: Mutex::default() });
        let copied = shared.clone();
        let work = move || {
            let mut pause = Some(Duration::ZERO);
            while copied.log.archive_bell().wait(pause) {
                pause = copied.copy(None, false).is_err().then_some(PAUSE);
            }
        };
        let thread = Builder::new().name("vellum-archive".to_owned()).spawn(work)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// How far the archive reaches.
    pub fn state(&self) -> ArchiveState {
        lock(&self.shared.state).clone()
    }

    /// The archive.
    pub fn archive(&self) -> &Archive {
        &self.shared.archive
    }

    /// Archives everything appended until now. If it `is_last`, an empty last segment is archived too: the next log
    /// says that it follows on that.
    ///
    /// # Errors
    /// If the log cannot be made durable, or the archive cannot be written: [`LogError::Archive`].
    pub fn archive_all(&self, is_last: bool) -> Result<Lsn, LogError> {
        self.shared.log.flush_all(Durability::Synced)?;
        let end = self.shared.log.horizon(Durability::Synced);
        self.shared.copy(Some(end), is_last)?;
        Ok(end)
    }
}

impl Drop for LogArchiver {
    fn drop(&mut self) {
        self.shared.log.archive_bell().stop();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic; if it did, nothing could be done about it here.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Copies finished segments, and what the current one holds up to `to`, if given.
    fn copy(&self, to: Option<Lsn>, with_blank: bool) -> Result<(), ArchiveError> {
        let _turn = lock(&self.turn);
        let copied = self.copy_in_turn(to, with_blank);
        lock(&self.state).error = copied.as_ref().err().map(ToString::to_string);
        copied
    }

    fn copy_in_turn(&self, to: Option<Lsn>, with_blank: bool) -> Result<(), ArchiveError> {
        let known = lock(&self.state).end;
        let mut end = match known {
            Some(end) => Some(end),
            None => self.archive.last()?.map(|part| part.end),
        };
        let sources = self.log.device().finished_parts(to.map_or(0, |to| to.0), with_blank);
        for source in sources {
            let ArchivedPart { start, end: part_end, .. } = source.part;
            if end.is_some_and(|end| part_end <= end) {
                continue;
            }
            self.archive.write(&source, end)?;
            let gap = end.filter(|end| start > *end && !source.follows.contains(end)).map(|end| (end, start));
            end = Some(part_end);
            let mut state = lock(&self.state);
            state.end = end;
            state.gap = state.gap.or(gap);
            drop(state);
            self.release(part_end);
        }
        let mut state = lock(&self.state);
        state.end = end.or(state.end);
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
    use crate::LogOptions;
    use vellum_vm::SimulatedDisk;

    fn start(disk: &SimulatedDisk, parts: &SimulatedDisk) -> (Arc<Log>, LogArchiver) {
        let options =
            LogOptions { segment_bytes: 16 << 10, buffer_bytes: 1 << 20, ..LogOptions::new([1; 16]) };
        let log = Log::open(Arc::new(disk.clone()), &options, Lsn(0), |_| Ok::<_, LogError>(())).unwrap();
        let (log, archive) = (Arc::new(log), Archive::new(Arc::new(parts.clone()), options.database));
        (log.clone(), LogArchiver::start(log, archive).unwrap())
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
}
