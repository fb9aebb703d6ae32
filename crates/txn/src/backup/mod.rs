//! Backups of a database while it is in use.
//!
//! A backup is such a copy as a crash would leave: pages, each as it was on storage at some moment since a checkpoint,
//! and the log from what that checkpoint needs up to a place `L`. It holds what was committed before `L`: a recovery
//! restores that.
//!
//! # Why this is correct
//! - A page that is written while it is copied was changed after the redo point. Its first record since then carries
//!   the whole page, so the copy may be torn, or old. A page that the log does not mention does not change, so its
//!   checksum must be right.
//! - Large values, and nodes of bulk loads, are not in the log. They are on storage before a record refers to them.
//!   They are copied after the pages, once the log has been read up to `L`. What was freed before `L` is not needed;
//!   what is freed later is not used again before it has been copied ([`HeldSpace`]).
//! - If the database is full, a change uses it all the same. Then another `L` is chosen, before which it was freed, so
//!   it is not needed. What was copied and is still needed was never freed, so it is not copied again.
//! - A node of a bulk load may have changed by then. If its copy is from after `L`, another `L` is chosen, too.
//! - So each round copies only what was written during the one before, and a few suffice: in the last no bulk load may
//!   finish, and changes of a full database wait until there is space that has been copied.
//! - The log may be recycled up to where it has been copied, and no further.
//!
//! Pages are read past the pool, so a backup pushes nothing out of it.

mod format;
mod point;
mod reader;
mod restore;
mod scan;
mod writer;

use crate::{
    TxnError, backup_error::BackupError, change_log::Changes, checkpoint::wait_before, records::now,
};
use format::Header;
pub use point::{PointInTime, RestoredPoint, Until};
pub use reader::BackupFile;
pub use restore::restore;
use scan::LogScan;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use vellum_base::{
    ChecksumStream, Extent, Lsn, PAGE_SIZE, PageHeader, PageId, checksum, primitive::random_id,
    stamp_checksum, verify_header,
};
use vellum_pool::{CopyBasis, Fault, HeldSpace, Pool, PoolError};
use vellum_vm::{AlignedBuffer, File};
use vellum_wal::{Durability, Log, LogCopy};
use writer::BackupWriter;

/// How many pages are read at once.
const SPAN_PAGES: usize = 256;
/// After this many pages the log is copied, so that it need not be kept longer.
const PAGES_A_TURN: u64 = 4096;
/// How often a page with a wrong checksum is read: another thread may be writing it.
const TRIES_MAX: u32 = 4;
/// From this round on no bulk load may finish, and changes of a full database wait for the backup.
const CLOSED_FROM_ROUND: u32 = 3;
/// After this many rounds the backup fails. They suffice unless changes would have to wait for longer than [`PATIENCE`].
const ROUNDS_MAX: u32 = 5;
/// How long changes wait in each of these rounds, at most.
const PATIENCE: Duration = Duration::from_secs(5);

/// How far a backup has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BackupProgress {
    /// How many pages have been looked at.
    pub pages_done: u64,
    /// How many pages were allocated when it began.
    pub pages_total: u64,
}

/// What a backup holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BackupSummary {
    /// It holds everything that was committed before this place in the log: as for [`Until::Before`].
    pub end: Lsn,
    /// How many pages were copied.
    pub pages: u64,
    /// How many bytes of log were copied.
    pub log_bytes: u64,
    /// The size of its file, in bytes.
    pub bytes: u64,
    /// How many rounds it took until pages and log matched; 0 without a log.
    pub rounds: u32,
}

/// The log of a pool that is being backed up.
pub(crate) struct LogSource<'c> {
    pub changes: &'c Changes,
    pub log: &'c Log,
    pub copy: LogCopy<'c>,
}

/// Makes a backup in an empty file.
pub(crate) fn back_up(
    pool: &Pool,
    basis: CopyBasis,
    log: Option<LogSource<'_>>,
    (file, former): (Arc<dyn File>, Option<&BackupFile>),
    progress: &mut dyn FnMut(BackupProgress) -> bool,
) -> Result<BackupSummary, TxnError> {
    if let Some(former) = former {
        former.check_continued(&basis)?;
    }
    let encoded = basis.encode();
    let header = Header {
        id: random_id(),
        former: former.map(BackupFile::id),
        database: basis.database(),
        begun: now(),
        basis_bytes: encoded.len() as u64,
        basis_checksum: checksum(&encoded),
        segment_bytes: log.as_ref().map_or(0, |log| log.copy.segment_bytes()),
    };
    let writer = BackupWriter::begin(file, &header, &encoded)?;
    let total = basis.pages_allocated();
    let mut copying = Copying {
        pool,
        scan: LogScan::new(basis.redo()),
        basis,
        writer,
        former,
        suspects: BTreeMap::new(),
        newest: Lsn(0),
        held: None,
        buffer: AlignedBuffer::new(SPAN_PAGES * PAGE_SIZE),
    };
    let mut log = log;
    copying.copy_pages(&mut log, |pages_done| progress(BackupProgress { pages_done, pages_total: total }))?;
    let (end, rounds) = match &mut log {
        Some(log) => {
            copying.copy_rest(log, || progress(BackupProgress { pages_done: total, pages_total: total }))?
        }
        None => {
            copying.resolve_suspects()?;
            (copying.basis.redo(), 0)
        }
    };
    let Copying { basis, writer, .. } = copying;
    let (pages, log_bytes) = (writer.pages, writer.log_bytes);
    let file_pages = pool.statistics().pages_in_file;
    let bytes = writer.finish(&[(basis.undo().0, end.0), (file_pages, pages), (now(), log_bytes)])?;
    Ok(BackupSummary { end, pages, log_bytes, bytes, rounds })
}

struct Copying<'c> {
    pool: &'c Pool,
    basis: CopyBasis,
    scan: LogScan,
    writer: BackupWriter,
    former: Option<&'c BackupFile>,
    /// Extents that were not sound when they were read, by first pages.
    suspects: BTreeMap<u64, Extent>,
    /// The LSN of the newest page that was copied in this round.
    newest: Lsn,
    /// The freed space that is still to be copied in this round.
    held: Option<HeldSpace<'c>>,
    buffer: AlignedBuffer,
}

impl<'c> Copying<'c> {
    /// Copies the extents that were allocated at the redo point.
    fn copy_pages(
        &mut self,
        log: &mut Option<LogSource<'_>>,
        mut progress: impl FnMut(u64) -> bool,
    ) -> Result<(), TxnError> {
        let (mut at, mut done, mut turn) = (0, 0, 0);
        let mut span = Vec::new();
        while let Some(extent) = self.basis.next_extent(at) {
            at = extent.end().0;
            self.gather(&mut span, extent)?;
            done += u64::from(extent.pages);
            if done >= turn + PAGES_A_TURN {
                turn = done;
                if !progress(done) {
                    return Err(BackupError::Stopped.into());
                }
                if let Some(LogSource { log, copy, .. }) = log {
                    self.advance(copy, log.horizon(Durability::Synced))?;
                }
            }
        }
        self.copy_span(&mut span)
    }

    /// Copies what was written past the log since, and the log, until both match: see the module. Returns the place up
    /// to which the copy has everything, and how many rounds it took.
    fn copy_rest(
        &mut self,
        source: &mut LogSource<'_>,
        mut progress: impl FnMut() -> bool,
    ) -> Result<(Lsn, u32), TxnError> {
        for round in 1..=ROUNDS_MAX {
            // No groups are closed meanwhile: it may begin some.
            if !progress() {
                return Err(BackupError::Stopped.into());
            }
            let closed = (round >= CLOSED_FROM_ROUND).then(|| source.changes.close_groups());
            self.held = Some(self.pool.hold_space(closed.is_some().then_some(PATIENCE)));
            let end = source.log.end();
            wait_before(source.log, end)?;
            self.advance(&mut source.copy, end)?;
            self.newest = Lsn(0);
            self.copy_outside()?;
            self.resolve_suspects()?;
            let is_intact = self.held.take().is_some_and(|held| held.is_intact());
            if is_intact && self.newest < end {
                return Ok((end, round));
            }
        }
        Err(BackupError::Full.into())
    }

    /// Copies what was written past the log, as far as the log was read. If the space of some of it has been reused by
    /// now, the log says later that it was freed before that: the next round does without it.
    fn copy_outside(&mut self) -> Result<(), TxnError> {
        let outside = std::mem::take(&mut self.scan.outside);
        self.suspects.retain(|head, _| !self.scan.is_renewed(PageId(*head)));
        let suspects = self.suspects.values().map(|extent| extent.head.0..extent.end().0);
        let wanted = outside.ranges().chain(suspects).collect();
        if let Some(held) = &self.held {
            held.narrow(wanted);
        }
        let mut span = Vec::new();
        outside.extents().try_for_each(|extent| self.gather(&mut span, extent))?;
        self.copy_span(&mut span)?;
        self.note_copied(PageId(u64::MAX));
        Ok(())
    }

    /// Notes that the pages before one have been copied: their space may be reused, up to the first suspect.
    fn note_copied(&self, before: PageId) {
        let suspect = self.suspects.keys().next().map_or(u64::MAX, |first| *first);
        if let Some(held) = &self.held {
            held.note_copied(PageId(before.0.min(suspect)));
        }
    }

    /// Copies the log up to a place.
    fn advance(&mut self, copy: &mut LogCopy<'_>, to: Lsn) -> Result<(), TxnError> {
        let Self { writer, scan, .. } = self;
        let write =
            |part: vellum_wal::LogPart<'_>| Ok(writer.push_log(part.segment, part.offset, part.bytes)?);
        copy.advance(to, write, |record| scan.add(record))
    }

    /// Adds an extent to those that are read at once.
    fn gather(&mut self, span: &mut Vec<Extent>, extent: Extent) -> Result<(), TxnError> {
        let fits =
            |first: &Extent| extent.head >= first.head && extent.end().0 - first.head.0 <= SPAN_PAGES as u64;
        if !span.first().is_none_or(fits) {
            self.copy_span(span)?;
        }
        if extent.pages as usize > SPAN_PAGES {
            self.copy_span(span)?;
            return self.copy_long(extent);
        }
        span.push(extent);
        Ok(())
    }

    /// Reads extents that lie near each other, including what is between them, and writes those that are wanted.
    fn copy_span(&mut self, span: &mut Vec<Extent>) -> Result<(), TxnError> {
        let (Some(first), Some(last)) = (span.first().copied(), span.last()) else { return Ok(()) };
        let mut buffer = std::mem::replace(&mut self.buffer, AlignedBuffer::new(0));
        let end = last.end();
        let bytes = (end.0 - first.head.0) as usize * PAGE_SIZE;
        let whole = buffer.get_mut(..bytes).unwrap_or_default();
        self.pool.read_stored(first.head, whole)?;
        for extent in span.drain(..) {
            let at = (extent.head.0 - first.head.0) as usize * PAGE_SIZE;
            let part = whole.get_mut(at..at + extent.bytes()).unwrap_or_default();
            let mut tries = 1;
            while verify_header(part, extent).is_err() && tries < TRIES_MAX {
                tries += 1;
                self.pool.read_stored(extent.head, part)?;
            }
            self.take(extent, part, verify_header(part, extent).is_ok())?;
        }
        self.buffer = buffer;
        self.note_copied(end);
        Ok(())
    }

    /// Writes an extent that was read, if it is wanted.
    fn take(&mut self, extent: Extent, bytes: &[u8], is_sound: bool) -> Result<(), TxnError> {
        if !is_sound {
            self.suspects.insert(extent.head.0, extent);
            return Ok(());
        }
        self.suspects.remove(&extent.head.0);
        let lsn = PageHeader::read(bytes).lsn;
        self.newest = self.newest.max(lsn);
        if self.is_wanted(extent, lsn) {
            self.writer.push_pages(extent.head, bytes)?;
        }
        Ok(())
    }

    /// Whether an extent may have changed since the backup on which this one is based.
    fn is_wanted(&self, extent: Extent, lsn: Lsn) -> bool {
        self.former.is_none_or(|former| former.lacks(extent, lsn))
    }

    /// Copies a large value, part by part.
    fn copy_long(&mut self, extent: Extent) -> Result<(), TxnError> {
        let mut buffer = std::mem::replace(&mut self.buffer, AlignedBuffer::new(0));
        let mut sum = ChecksumStream::default();
        let (mut head, mut wanted, mut stored) = (None, true, 0);
        for first in (0..extent.pages as usize).step_by(SPAN_PAGES) {
            let bytes = (extent.pages as usize - first).min(SPAN_PAGES) * PAGE_SIZE;
            let part = buffer.get_mut(..bytes).unwrap_or_default();
            let page = PageId(extent.head.0 + first as u64);
            self.pool.read_stored(page, part)?;
            if first == 0 {
                let header = PageHeader::read(part);
                stored = part.first_chunk().map_or(0, |sum| u64::from_le_bytes(*sum));
                // An extent that is not what it should be is looked at later.
                wanted = header.extent != extent || self.is_wanted(extent, header.lsn);
                head = Some(header);
                sum.update(part.get(8..).unwrap_or_default());
            } else {
                sum.update(part);
            }
            if !wanted {
                break;
            }
            self.writer.push_pages(page, part)?;
        }
        self.buffer = buffer;
        let is_sound =
            head.is_some_and(|header| header.extent == extent) && (!wanted || sum.finish() == stored);
        if is_sound {
            self.suspects.remove(&extent.head.0);
        } else {
            self.suspects.insert(extent.head.0, extent);
        }
        self.note_copied(extent.end());
        Ok(())
    }

    /// Takes extents that were not sound and are needed from the pool, where they may still be sound. Otherwise they
    /// are damaged.
    fn resolve_suspects(&mut self) -> Result<(), TxnError> {
        // This needs latches. Nothing before it does: a change that waits may have them.
        self.held.iter().for_each(HeldSpace::end_patience);
        let (mut extents, mut first) = (Vec::new(), None);
        for (_, extent) in std::mem::take(&mut self.suspects) {
            if self.scan.is_renewed(extent.head) {
                continue;
            }
            match self.pool.shared(extent) {
                Ok(guard) => {
                    let mut bytes = AlignedBuffer::new(extent.bytes());
                    bytes.copy_from_slice(guard.page());
                    drop(guard);
                    stamp_checksum(&mut bytes);
                    self.take(extent, &bytes, true)?;
                }
                // It was freed a moment ago; the next part of the log says so.
                Err(_) if !self.pool.is_extent(extent) => self.newest = Lsn(u64::MAX),
                // Something else may have been written there. If not, it is met again.
                Err(_) if self.held.as_ref().is_some_and(|held| !held.is_intact()) => {
                    self.suspects.insert(extent.head.0, extent);
                }
                Err(error) => {
                    extents.push(extent);
                    first.get_or_insert(error);
                }
            }
        }
        match first {
            None => Ok(()),
            Some(error) => {
                let first = match error {
                    PoolError::Corruption { fault: Fault::Header(fault), .. } => fault.to_string(),
                    other => other.to_string(),
                };
                Err(BackupError::Database { extents, first }.into())
            }
        }
    }
}
