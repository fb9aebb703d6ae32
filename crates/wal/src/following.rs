//! Reads the log while it grows: what it has given up is read from its archive. Keeps what is still to be read.
//!
//! Archive and log may overlap anywhere. A record may begin in a segment that only the archive has, and end in one that
//! only the log has. The log may continue elsewhere than where the archive ends, in a later segment, if it was opened
//! again in between.
//!
//! What the log gives up keeps its files as long as a reader may come to them. A file is only missing if something else
//! has removed it: [`Log::remove`], or a person. Then the archive is read from there on.

use crate::{
    ArchiveError, ArchiveReader, CheckedArchive, Durability, Log, LogError, LogKeeper, LogReader, Record,
    archive::Rest,
};
use std::sync::Arc;
use vellum_base::Lsn;

/// A log, and its archive, if it has one.
#[derive(Clone)]
pub struct FollowedLog {
    log: Arc<Log>,
    archive: Option<CheckedArchive>,
}

impl FollowedLog {
    /// Reads from the log itself, and from the archive where the log has been given up.
    pub fn new(log: Arc<Log>, archive: Option<CheckedArchive>) -> Self {
        Self { log, archive }
    }

    /// The log.
    pub fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// Reads from `from` on, where a record begins or the log once ended. The reader may outlive the log: see
    /// [`FollowingReader`].
    pub fn read(&self, from: Lsn) -> FollowingReader {
        FollowingReader { source: self.clone(), at: from, reader: Reader::None }
    }

    /// Keeps the log from `from` on until the returned value is dropped, but no more than `bytes_max` before its end.
    /// With an archive nothing need be kept.
    pub fn keep(&self, from: Lsn, bytes_max: u64) -> Option<LogKeep> {
        self.archive.is_none().then(|| {
            // A need without a limit is not that of a follower.
            let name = self.log.kept().add(from.0, bytes_max.min(u64::MAX - 1), LogKeeper::Follower);
            LogKeep { log: self.log.clone(), name }
        })
    }
}

/// Keeps a part of a log.
#[must_use = "it is kept until this is dropped"]
pub struct LogKeep {
    log: Arc<Log>,
    name: u64,
}

impl LogKeep {
    /// The log before `from` is no longer needed.
    pub fn advance(&self, from: Lsn) {
        self.log.kept().keep(self.name, from);
    }
}

impl Drop for LogKeep {
    fn drop(&mut self) {
        self.log.kept().keep_no_more(self.name);
    }
}

/// Reads the records of a log that grows.
///
/// After [`Log::remove`] it reads the archive only, which has all of the log if it was [archived to its
/// end](crate::LogArchiver::archive_all) before. Without an archive only a reader that has read everything goes on to
/// tell that there is nothing more; another one ends with [`LogError::Missing`]. It never reads the log that a later
/// opening begins in the same place.
pub struct FollowingReader {
    source: FollowedLog,
    /// Where the next record begins, or the log once ended.
    at: Lsn,
    reader: Reader,
}

enum Reader {
    None,
    Log(Box<LogReader>),
    Archive(Box<ArchiveReader>),
}

/// How far a reader was read.
enum Read {
    /// As far as it goes.
    All,
    /// Up to a record after which no more is wanted for now.
    Stopped,
    /// Up to where a file of the log is missing.
    Missing(LogError),
}

impl FollowingReader {
    /// All records before this place have been read.
    pub fn at(&self) -> Lsn {
        self.at
    }

    /// Gives the records before `to`, before which everything is durable, to `take`, until it returns false. There a
    /// record begins, or a void, or the log ended once. After an error the last record given is given again.
    ///
    /// # Errors
    /// [`LogError::Missing`] if neither the log nor the archive has the place any more, also if somebody has removed a
    /// file of the log that the archive does not have; the errors of `take`, and other errors of log and archive.
    pub fn read<E: From<LogError>>(
        &mut self,
        to: Lsn,
        mut take: impl FnMut(Record<'_>) -> Result<bool, E>,
    ) -> Result<(), E> {
        if matches!(self.reader, Reader::Log(_)) && self.source.log.is_removed() {
            self.reader = Reader::None;
        }
        let (mut is_stuck, mut archive) = (false, None);
        while self.at < to {
            let from = self.at;
            let (mut reader, is_new) =
                match (archive.take(), std::mem::replace(&mut self.reader, Reader::None)) {
                    (Some(archive), _) => (archive, true),
                    (None, Reader::None) => (self.open(to)?, true),
                    (None, reader) => (reader, false),
                };
            // On an error the reader is dropped, and opened again at the same place.
            match self.read_with(&mut reader, to, &mut take)? {
                Read::All => {}
                Read::Stopped => {
                    // One that has read everything is of no more use, but has a file open, and memory.
                    if self.at < to {
                        self.reader = reader;
                    }
                    return Ok(());
                }
                Read::Missing(missing) => {
                    archive = Some(self.open_archive(missing)?);
                    continue;
                }
            }
            if self.at > from || !is_new {
                is_stuck = false;
                continue;
            }
            if matches!(reader, Reader::Log(_)) {
                return Err(LogError::Hole { at: from, durable: to }.into());
            }
            match self.next_begin(to) {
                Some(next) if next > from => self.at = next,
                // The log there may just have been archived and given up.
                _ if !is_stuck => is_stuck = true,
                _ => return Err(LogError::Missing { from, oldest: Lsn(0) }.into()),
            }
        }
        Ok(())
    }

    /// Reads up to where a reader ends, or `take` returns false.
    fn read_with<E: From<LogError>>(
        &mut self,
        reader: &mut Reader,
        to: Lsn,
        take: &mut impl FnMut(Record<'_>) -> Result<bool, E>,
    ) -> Result<Read, E> {
        while self.at < to {
            let record = match reader {
                Reader::None => None,
                Reader::Log(reader) => match reader.next() {
                    Err(missing @ LogError::Missing { .. }) => return Ok(Read::Missing(missing)),
                    next => next?,
                },
                Reader::Archive(reader) => reader.next().map_err(LogError::from)?,
            };
            let Some(record) = record else { break };
            if record.lsn >= to {
                // The record was read in vain. Between the last one and it there is nothing but voids, so none of
                // what is wanted is left, and `to` is where a void or the record begins.
                self.at = to;
                return Ok(Read::All);
            }
            let (end, goes_on) = (record.end(), take(record)?);
            self.at = end;
            if !goes_on {
                return Ok(Read::Stopped);
            }
        }
        let end = match reader {
            Reader::None => self.at,
            Reader::Log(reader) => reader.end(),
            Reader::Archive(reader) => reader.at(),
        };
        self.at = self.at.max(end);
        Ok(Read::All)
    }

    fn open(&self, to: Lsn) -> Result<Reader, LogError> {
        if self.source.log.is_removed() {
            return self.open_archive(LogError::Missing { from: self.at, oldest: Lsn(0) });
        }
        // The device is locked for this statement only.
        let reader = self.source.log.device().follow(self.at, to);
        match reader {
            Ok(reader) => Ok(Reader::Log(Box::new(reader))),
            Err(missing @ LogError::Missing { .. }) => self.open_archive(missing),
            Err(error) => Err(error),
        }
    }

    /// Reads the archive from here on; `missing` is why the log is not read.
    fn open_archive(&self, missing: LogError) -> Result<Reader, LogError> {
        let Some(archive) = &self.source.archive else { return Err(missing) };
        let log = self.source.log.clone();
        let rest: Rest = Box::new(move |begin| {
            if log.is_removed() {
                return None;
            }
            let to = log.horizon(Durability::Synced);
            let mut parts = log.device().finished_parts(to.0, false);
            let at = parts.iter().position(|source| source.part.start == begin)?;
            Some(parts.swap_remove(at))
        });
        // Between two parts there is nothing to go on with, but where a segment was begun to which nothing was written, perhaps of another
        // size: if a crash has ended that life, the next one begins there. Another place may be one of a lost database, of which this one
        // was restored as it was earlier.
        let log = &self.source.log;
        let is_known = |at: Lsn| log.device().geometry().is_start(at.0) || log.lives.begin_at(at);
        match archive.get()?.read_then(self.at, rest) {
            Ok(reader) if reader.begins_between() && !is_known(self.at) => {
                Err(ArchiveError::Record { at: self.at }.into())
            }
            Ok(reader) => Ok(Reader::Archive(Box::new(reader))),
            Err(ArchiveError::Missing { oldest, .. }) => {
                Err(LogError::Missing { from: self.at, oldest: oldest.unwrap_or(Lsn(0)) })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Where the log continued after it once ended here.
    fn next_begin(&self, to: Lsn) -> Option<Lsn> {
        let parts = self.source.log.device().finished_parts(to.0, true);
        parts.iter().find(|source| source.follows_on(self.at)).map(|source| source.part.start)
    }
}
