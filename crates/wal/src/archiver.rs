//! Archiving the log while it is written: what is not in the archive yet the log keeps.
//!
//! A segment is copied once the next one has been begun, because it is durable then; and what the present one holds when the
//! database is closed or [`LogArchiver::archive_all`] is called. What fails is tried again; meanwhile the log grows.
//!
//! Lock order: the turn; the log's locks. What is known of the archive is locked for moments.

use crate::{Archive, ArchiveError, ArchivedPart, Durability, Log, LogError};
use std::{
    io,
    sync::{Arc, Mutex, MutexGuard},
    thread::{Builder, JoinHandle},
    time::Duration,
};
use vellum_base::Lsn;

/// How long the thread waits after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// How far the archive of a log is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ArchiveState {
    /// Everything before this place of the log is in the archive; none as long as the archive could not be looked at.
    pub end: Option<Lsn>,
    /// The archive lacks the log between these places: it was not archived when that was written.
    pub gap: Option<(Lsn, Lsn)>,
    /// Why nothing can be archived now. It is tried again every second; the log keeps what is not archived.
    pub error: Option<String>,
}

/// Copies a log to its archive. It ends when this is dropped; what is not archived then the next one copies.
#[must_use = "nothing is archived once it is dropped"]
pub struct LogArchiver {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    log: Arc<Log>,
    archive: Archive,
    /// By what name the log knows what is kept.
    kept: u64,
    /// Held by the thread that copies.
    turn: Mutex<()>,
    state: Mutex<ArchiveState>,
}

impl LogArchiver {
    /// Keeps everything that the log has, and begins to archive it.
    ///
    /// # Errors
    /// If the system has no room for a thread.
    pub fn start(log: Arc<Log>, archive: Archive) -> io::Result<Self> {
        let kept = log.keep_all();
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

    /// How far it is.
    pub fn state(&self) -> ArchiveState {
        lock(&self.shared.state).clone()
    }

    /// The archive.
    pub fn archive(&self) -> &Archive {
        &self.shared.archive
    }

    /// Archives all that has been appended until now. If it `is_last`, also where the log ends to which nothing was appended: the next
    /// one says that it follows on that.
    ///
    /// # Errors
    /// If the log cannot be made durable, or the archive not be written: [`LogError::Archive`].
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
            // It does not panic; if it did, there would be nothing to do about it here.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Copies what is finished, and what the present segment holds up to `to`, if that is given.
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
        for source in self.log.finished_parts(to, with_blank) {
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

    /// The log may give up what is archived.
    fn release(&self, end: Lsn) {
        self.log.kept().keep(self.kept, end);
        // What cannot be removed is used again, or removed, after the log has been opened the next time.
        let _ = self.log.discard_again();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
