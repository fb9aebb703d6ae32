//! Restores to a point in time: the log from a backup on, as it is in an archive and perhaps in the log of the lost
//! database, becomes the log from which the new database is recovered. It ends at that point; what is uncommitted there
//! is undone.
//!
//! The records keep their places, so they match the pages of the backup. What was written past the log, large values
//! and bulk loads, is in records of its own if the log is archived; it is written to the file.

use super::reader::BackupFile;
use crate::{
    TxnError,
    backup_error::BackupError,
    plant::{Bug, planted},
    readable::readable,
    records::LogRecord,
};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use vellum_access::{ChangeRecord, PageChange, RecordKind, SpaceEvent};
use vellum_base::{Extent, Lsn, PAGE_SIZE, PageId};
use vellum_pool::PoolError;
use vellum_vm::{AlignedBuffer, Directory, File};
use vellum_wal::{
    Archive, ArchiveError, ArchiveReader, LifeEnds, LogError, LogOptions, LogReader, LogRebuilder, Record,
};

/// The point up to which a database is restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Until {
    /// The end of the log.
    #[default]
    End,
    /// Everything committed by the record at this place, and before it: the place of a commit.
    Lsn(Lsn),
    /// Everything committed before this place, and not what the record there commits: a place up to which something was
    /// done, such as the end of an archive or of a backup. If it lies inside a record, as the end of an archive may, that
    /// record is not before it.
    Before(Lsn),
    /// Everything committed at this time, and before it. The times of operations outside transactions are exact to a
    /// millisecond. The last commit of the log must be of this time or later.
    Time(SystemTime),
}

impl Until {
    /// Records that begin at this place or later lie beyond the point, if it is a place.
    fn bound(self) -> Option<Lsn> {
        match self {
            Self::Lsn(last) => Some(Lsn(last.0.saturating_add(1))),
            Self::Before(end) => Some(end),
            Self::End | Self::Time(_) => None,
        }
    }

    /// Whether a record, after which the last commit is of `time`, lies beyond the point.
    fn excludes(self, record: &Record<'_>, time: u64) -> bool {
        match self {
            Self::End => false,
            Self::Lsn(last) => record.lsn > last,
            Self::Before(end) => record.end() > end,
            Self::Time(until) => time > nanoseconds(until),
        }
    }

    /// Whether the point is reached with everything that was read: `at` is where the next record begins, `end` where what
    /// was read ends, perhaps inside that record, and `time` that of the last commit.
    fn is_reached(self, (at, end): (Lsn, Lsn), time: u64) -> bool {
        match self {
            Self::End => true,
            Self::Lsn(last) => at > last,
            Self::Before(before) => end >= before,
            Self::Time(until) => time >= nanoseconds(until),
        }
    }
}

/// A point in time, and where to find the log that leads to it.
#[derive(Clone)]
pub struct PointInTime {
    /// The archive of the log.
    pub archive: Arc<dyn Directory>,
    /// The log of the lost database, which has what was not archived.
    pub log: Option<Arc<dyn Directory>>,
    /// The point itself.
    pub until: Until,
}

/// The point to which a database was restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RestoredPoint {
    /// Everything before this place in the log was redone, and nothing after it.
    pub end: Lsn,
    /// The time of the last commit before that, if the log has it.
    pub time: Option<SystemTime>,
}

impl RestoredPoint {
    /// The end of a backup, to which nothing else led.
    pub fn at(end: Lsn) -> Self {
        Self { end, time: None }
    }
}

/// The records of a log: first those that are in its archive, then those in the log itself.
struct LogStream<'p> {
    point: &'p PointInTime,
    options: LogOptions,
    archive: Option<ArchiveReader>,
    log: Option<LogReader>,
    /// Where the next record begins, and where what was read ends: an archive may end inside a record.
    at: Lsn,
    end: Lsn,
}

impl<'p> LogStream<'p> {
    fn begin(point: &'p PointInTime, backup: &BackupFile, from: Lsn) -> Result<Self, TxnError> {
        let database = backup.database();
        let lives = if planted(Bug::OtherHistoryRestored) { Vec::new() } else { backup.basis().lives() };
        let archive = match Archive::new(point.archive.clone(), database).read(from) {
            Ok(mut reader) => {
                let expected = reader.expect_lives(backup.end(), &lives, backup.segment_bytes());
                expected.map_err(LogError::from)?;
                Some(reader)
            }
            Err(ArchiveError::Missing { .. }) if point.log.is_some() => None,
            Err(error) => return Err(LogError::from(error).into()),
        };
        // Later lives are not known to the backup.
        let readable = readable(backup.basis().known_lives(), backup.end()).that_end(LifeEnds::of(&lives));
        let options = LogOptions { readable, ..LogOptions::new(database) };
        Ok(Self { point, options, archive, log: None, at: from, end: from })
    }

    /// Gives the records to `take`, until it returns false or there are no more. Returns whether `take` returned false.
    /// What lies beyond the point may be missing or damaged.
    fn read(&mut self, mut take: impl FnMut(Record<'_>) -> Result<bool, TxnError>) -> Result<bool, TxnError> {
        let until = self.point.until;
        let is_reached = |places| until.bound().is_some() && until.is_reached(places, 0);
        if let Some(reader) = &mut self.archive {
            let ended = loop {
                match reader.next() {
                    Ok(Some(record)) => {
                        if !take(record)? {
                            return Ok(true);
                        }
                    }
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                }
            };
            (self.at, self.end) = (reader.at(), reader.end());
            if is_reached((self.at, self.end)) {
                return Ok(false);
            }
            ended.map_err(LogError::from)?;
        }
        if let Some(directory) = &self.point.log {
            let log = match &self.archive {
                Some(archive) => archive.continue_in(directory.clone(), &self.options)?,
                None => LogReader::open(directory.clone(), &self.options, self.at)?,
            };
            let log = self.log.insert(log);
            while let Some(record) = log.next()? {
                if !take(record)? {
                    return Ok(true);
                }
            }
            (self.at, self.end) = (log.end(), log.end());
        }
        Ok(false)
    }
}

/// Writes the log of a backup's database, from where its recovery needs it up to the point, to a directory without a
/// log, and what was written past the log to the file. Returns the point, and the end of the allocated pages.
pub(super) fn replay(
    (backup, point): (&BackupFile, &PointInTime),
    file: &dyn File,
    directory: &dyn Directory,
    segment_bytes: u64,
) -> Result<(RestoredPoint, u64), TxnError> {
    let (undo, redo) = (backup.basis().undo(), backup.basis().redo());
    let (begun, finished) = backup.times();
    let bound = point.until.bound();
    let before_backup = || TxnError::from(BackupError::BeforeBackup { end: backup.end(), time: finished });
    let is_before = match (point.until, bound) {
        (Until::Time(until), _) => until < begun,
        // If the log that is read begins later, it is not known whether something was committed in between.
        (_, bound) => bound.is_some_and(|bound| bound <= undo && bound < backup.end()),
    };
    if is_before {
        return Err(before_backup());
    }
    let mut stream = LogStream::begin(point, backup, undo)?;
    let options = LogOptions { segment_bytes, ..LogOptions::new(backup.database()) };
    let mut rebuilt = LogRebuilder::begin(directory, &options, undo)?;
    let mut outside = Outside { file, pages: 0, end: backup.file_pages(), there: Vec::new() };
    let (mut time, mut committed, mut stopped, mut is_past) = (0, 0, None, false);
    let is_passed = stream.read(|record| {
        let told = LogRecord::decode(record.payload);
        let later = match &told {
            LogRecord::End(end) if end.is_committed => end.time.max(time),
            LogRecord::Time(now) => time.max(*now),
            _ => time,
        };
        let is_beyond = point.until.excludes(&record, later);
        if is_beyond && (is_past || !planted(Bug::BeyondTarget)) {
            stopped = Some(record.lsn);
            return Ok(false);
        }
        is_past = is_beyond && matches!(told, LogRecord::End(_));
        time = later;
        if is_commit(&record, &told) {
            committed = time;
        }
        if record.lsn >= redo {
            outside.add(&record, &told, backup.end())?;
        } else if let LogRecord::Contents(first, pages) = told {
            outside.add_early(first, pages, backup)?;
        }
        rebuilt.push(record.lsn, record.payload)?;
        Ok(true)
    })?;
    let shown = |time: u64| (time > 0).then(|| SystemTime::UNIX_EPOCH + Duration::from_nanos(time));
    // All the log has been read, or a record was found that lies beyond the point.
    let is_all_there = point.until.is_reached((stream.at, stream.end), time);
    let end = stopped.unwrap_or(stream.at);
    if end < backup.end() && (is_passed || bound.is_some_and(|bound| bound <= end)) {
        return Err(before_backup());
    }
    if !is_passed && (!is_all_there || end < backup.end()) {
        return Err(BackupError::AfterArchive { end, last: shown(committed) }.into());
    }
    let end = rebuilt.finish()?;
    Ok((RestoredPoint { end, time: shown(committed) }, outside.end))
}

/// Whether a record commits something: a transaction, or what is none. The time of day stands before what it is for, which may lie beyond
/// the point.
fn is_commit(record: &Record<'_>, told: &LogRecord<'_>) -> bool {
    match told {
        LogRecord::End(end) => end.is_committed,
        LogRecord::Change => {
            let kind = ChangeRecord::decode(record.payload).map(|change| change.kind);
            matches!(kind, Ok(RecordKind::Single | RecordKind::Last(_)))
        }
        _ => false,
    }
}

/// What was written past the log.
struct Outside<'f> {
    file: &'f dyn File,
    /// How many pages the file has room for.
    pages: u64,
    /// All allocated pages lie before this page.
    end: u64,
    /// One bit per page: the log has had its contents.
    there: Vec<u64>,
}

impl Outside<'_> {
    /// Takes a record into account. From `complete` on the log has everything.
    fn add(&mut self, record: &Record<'_>, told: &LogRecord<'_>, complete: Lsn) -> Result<(), TxnError> {
        match told {
            LogRecord::Contents(first, pages) => self.write(*first, pages),
            LogRecord::Change | LogRecord::Unknown => self.check(record, complete),
            _ => Ok(()),
        }
    }

    /// Takes contents that the log has before the redo point. A record after that point may refer to them, unless their
    /// pages belonged to something at that point: the backup has that.
    fn add_early(&mut self, first: PageId, pages: &[u8], backup: &BackupFile) -> Result<(), TxnError> {
        if planted(Bug::EarlyContentsForgotten) {
            return Ok(());
        }
        if planted(Bug::EarlyContentsAnywhere) {
            return self.write(first, pages);
        }
        let mut rest = first.0..first.0 + (pages.len() / PAGE_SIZE) as u64;
        while let Some(head) = rest.find(|page| backup.basis().is_free(PageId(*page))) {
            let is_taken = |page: &u64| !backup.basis().is_free(PageId(*page));
            let end = rest.clone().find(is_taken).unwrap_or(rest.end);
            let within = |page: u64| (page - first.0) as usize * PAGE_SIZE;
            self.write(PageId(head), pages.get(within(head)..within(end)).unwrap_or_default())?;
            rest.start = end;
        }
        Ok(())
    }

    fn check(&mut self, record: &Record<'_>, complete: Lsn) -> Result<(), TxnError> {
        let faulty = |fault| TxnError::Record { lsn: record.lsn, fault };
        let change = ChangeRecord::decode(record.payload).map_err(faulty)?;
        for event in change.space_events() {
            let (extent, event) = event.map_err(faulty)?;
            if event == SpaceEvent::Allocated {
                self.end = self.end.max(extent.end().0);
            }
        }
        if record.lsn < complete {
            return Ok(());
        }
        for change in change.changes() {
            let (page, change) = change.map_err(faulty)?;
            let pages = match change {
                PageChange::Write { pages, .. } => pages,
                PageChange::Nodes { count } => count,
                _ => continue,
            };
            if !(page.0..page.0.saturating_add(u64::from(pages))).all(|page| self.is_there(page)) {
                return Err(BackupError::LacksContents { at: record.lsn }.into());
            }
        }
        Ok(())
    }

    fn write(&mut self, first: PageId, pages: &[u8]) -> Result<(), TxnError> {
        let extent = Extent { head: first, pages: (pages.len() / PAGE_SIZE) as u32 };
        let end = extent.end().0;
        if end > self.pages {
            let bytes = end * PAGE_SIZE as u64;
            self.file.grow(bytes).map_err(|source| PoolError::StorageFull { bytes, source })?;
            self.pages = end;
        }
        let mut buffer = AlignedBuffer::new(extent.bytes());
        buffer.copy_from_slice(pages.get(..extent.bytes()).unwrap_or_default());
        let written = self.file.write_from(first.offset(), &buffer);
        written.map_err(|source| PoolError::Write { extent, source })?;
        for page in first.0..end {
            let (word, bit) = ((page / 64) as usize, 1 << (page % 64));
            if word >= self.there.len() {
                self.there.resize(word + 1, 0);
            }
            if let Some(word) = self.there.get_mut(word) {
                *word |= bit;
            }
        }
        Ok(())
    }

    fn is_there(&self, page: u64) -> bool {
        self.there.get((page / 64) as usize).is_some_and(|word| word >> (page % 64) & 1 != 0)
    }
}

/// Nanoseconds since 1970; the most that there can be, if the time is later than that.
fn nanoseconds(time: SystemTime) -> u64 {
    let elapsed = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}
