//! Reading the log while it goes on: what it has given up is read from its archive. And keeping what is still to be read.
//!
//! Archive and log overlap at any place. A record may begin in a segment that is in the archive only and end in one that is in the log
//! only. The log may have gone on elsewhere than where the archive ends, in a later segment, if it was opened anew between.

use crate::{
    Archive, ArchiveError, ArchiveReader, Durability, Log, LogError, LogKeeper, LogReader, Record,
    archive::Rest,
};
use std::sync::Arc;
use vellum_base::Lsn;

/// A log, and its archive, if it has one.
#[derive(Clone)]
pub struct FollowedLog {
    log: Arc<Log>,
    archive: Option<Archive>,
}

impl FollowedLog {
    /// The log is read from itself, and where it has been given up from the archive.
    pub fn new(log: Arc<Log>, archive: Option<Archive>) -> Self {
        Self { log, archive }
    }

    /// The log.
    pub fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// Reads from `from` on, which is where a record begins or the log ended once.
    pub fn read(&self, from: Lsn) -> FollowingReader {
        FollowingReader { source: self.clone(), at: from, reader: Reader::None }
    }

    /// Keeps what lies from `from` on until the answer is dropped, but no more than so many bytes before the end. Nothing need
    /// be kept if there is an archive.
    pub fn keep(&self, from: Lsn, bytes_max: u64) -> Option<LogKeep> {
        self.archive.is_none().then(|| {
            // That without a limit is told apart from what follows.
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
    /// What lies before `from` is not needed any more.
    pub fn advance(&self, from: Lsn) {
        self.log.kept().keep(self.name, from);
    }
}

impl Drop for LogKeep {
    fn drop(&mut self) {
        self.log.kept().keep_no_more(self.name);
    }
}

/// Reads the records of a log that goes on.
pub struct FollowingReader {
    source: FollowedLog,
    /// Where the next record begins, or the log has ended once.
    at: Lsn,
    reader: Reader,
}

enum Reader {
    None,
    Log(Box<LogReader>),
    Archive(Box<ArchiveReader>),
}

impl FollowingReader {
    /// All records before this place have been read.
    pub fn at(&self) -> Lsn {
        self.at
    }

    /// Gives the records before `to` to `take`, until that returns false. All before `to` is durable. After an error the record
    /// that was given last comes again.
    ///
    /// # Errors
    /// [`LogError::Missing`] if neither the log nor the archive has the place any more, those of `take`, and what else is wrong
    /// with either.
    pub fn read<E: From<LogError>>(
        &mut self,
        to: Lsn,
        mut take: impl FnMut(Record<'_>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let mut is_stuck = false;
        while self.at < to {
            let from = self.at;
            let (mut reader, is_new) = match std::mem::replace(&mut self.reader, Reader::None) {
                Reader::None => (self.open(to)?, true),
                reader => (reader, false),
            };
            // It is dropped on an error, and opened again where it was.
            if !self.read_with(&mut reader, to, &mut take)? {
                self.reader = reader;
                return Ok(());
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
                // What was in the log may have been archived and given up just now.
                _ if !is_stuck => is_stuck = true,
                _ => return Err(LogError::Missing { from, oldest: Lsn(0) }.into()),
            }
        }
        Ok(())
    }

    /// Reads up to where a reader ends; false if `take` wants no more.
    fn read_with<E: From<LogError>>(
        &mut self,
        reader: &mut Reader,
        to: Lsn,
        take: &mut impl FnMut(Record<'_>) -> Result<bool, E>,
    ) -> Result<bool, E> {
        while self.at < to {
            let record = match reader {
                Reader::None => None,
                Reader::Log(reader) => reader.next()?,
                Reader::Archive(reader) => reader.next().map_err(LogError::from)?,
            };
            let Some(record) = record else { break };
            if record.lsn >= to {
                // It has been read for nothing.
                return Ok(true);
            }
            let (end, goes_on) = (record.end(), take(record)?);
            self.at = end;
            if !goes_on {
                return Ok(false);
            }
        }
        let end = match reader {
            Reader::None => self.at,
            Reader::Log(reader) => reader.end(),
            Reader::Archive(reader) => reader.at(),
        };
        self.at = self.at.max(end);
        Ok(true)
    }

    fn open(&self, to: Lsn) -> Result<Reader, LogError> {
        // The device is locked for this statement only.
        let missing = match self.source.log.device().follow(self.at, to) {
            Ok(reader) => return Ok(Reader::Log(Box::new(reader))),
            Err(missing @ LogError::Missing { .. }) => missing,
            Err(error) => return Err(error),
        };
        let Some(archive) = &self.source.archive else { return Err(missing) };
        let log = self.source.log.clone();
        let rest: Rest = Box::new(move |begin| {
            let to = log.horizon(Durability::Synced);
            let mut parts = log.device().finished_parts(to.0, false);
            let at = parts.iter().position(|source| source.part.start == begin)?;
            Some(parts.swap_remove(at))
        });
        match archive.read_then(self.at, rest) {
            Ok(reader) => Ok(Reader::Archive(Box::new(reader))),
            Err(ArchiveError::Missing { oldest, .. }) => {
                Err(LogError::Missing { from: self.at, oldest: oldest.unwrap_or(Lsn(0)) })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Where the log goes on that ended here once.
    fn next_begin(&self, to: Lsn) -> Option<Lsn> {
        let parts = self.source.log.device().finished_parts(to.0, true);
        parts.iter().find(|source| source.follows.contains(&self.at)).map(|source| source.part.start)
    }
}
