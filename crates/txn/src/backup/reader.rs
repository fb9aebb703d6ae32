//! Reads a backup.

use super::format::{FRAME_PAGES_MAX, FrameHeader, Header, Kind, Place};
use crate::{TxnError, backup_error::BackupError};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use vellum_base::{Extent, Lsn, PAGE_SIZE, checksum};
use vellum_pool::{CopyBasis, PoolOptions, note_backup};
use vellum_vm::{AlignedBuffer, File};

/// A complete backup.
pub struct BackupFile {
    file: Arc<dyn File>,
    header: Header,
    basis: CopyBasis,
    end: End,
    /// The offset of its first frame.
    first: u64,
}

/// What its last frame says.
#[derive(Clone, Copy, Debug)]
struct End {
    /// Where the log in the backup begins and ends.
    log: (u64, u64),
    /// All allocated pages lie before this page.
    file_pages: u64,
    pages: u64,
    ended: u64,
    log_bytes: u64,
}

/// A part of a backup.
pub(super) enum Part<'p> {
    /// Pages of the database, one after the other, and where they belong: first pages and counts.
    Pages(&'p [Place], &'p [u8]),
    /// Pages of a log segment: the segment's number, and the offset in its file.
    Log(Place, &'p [u8]),
}

impl BackupFile {
    /// Opens a backup and reads its description. Its pages are checked when they are read.
    ///
    /// # Errors
    /// If it is not a backup, is of a later version, was not finished, or is damaged.
    pub fn open(file: Arc<dyn File>) -> Result<Self, TxnError> {
        let size = file.size().map_err(|source| BackupError::Read { source })?;
        if size < PAGE_SIZE as u64 {
            return Err(BackupError::Foreign.into());
        }
        let header = Header::decode(&read(&*file, 0, PAGE_SIZE)?)?;
        let first = PAGE_SIZE as u64 + header.basis_bytes;
        if !size.is_multiple_of(PAGE_SIZE as u64) || size < first + PAGE_SIZE as u64 {
            return Err(BackupError::Unfinished.into());
        }
        let last = FrameHeader::decode(&read(&*file, size - PAGE_SIZE as u64, PAGE_SIZE)?);
        let last = last.filter(|(frame, _)| frame.kind == Kind::End && frame.id == header.id);
        let (_, places) = last.ok_or(BackupError::Unfinished)?;
        let [log, (file_pages, pages), (ended, log_bytes)] = places[..] else {
            return Err(damaged("its last page is malformed").into());
        };
        let bytes = read(&*file, PAGE_SIZE as u64, header.basis_bytes as usize)?;
        if checksum(&bytes) != header.basis_checksum {
            return Err(damaged("the checksum of its space map is wrong").into());
        }
        let basis = CopyBasis::decode(&bytes)?;
        Ok(Self { file, header, basis, end: End { log, file_pages, pages, ended, log_bytes }, first })
    }

    /// The id of the backup.
    pub fn id(&self) -> [u8; 16] {
        self.header.id
    }

    /// The id of the backup on which this one is based; `None` if it holds everything.
    pub fn former(&self) -> Option<[u8; 16]> {
        self.header.former
    }

    /// The id of the database.
    pub fn database(&self) -> [u8; 16] {
        self.header.database
    }

    /// It holds what was committed before this place in the log.
    pub fn end(&self) -> Lsn {
        Lsn(self.end.log.1)
    }

    /// When it was begun, and when it was finished.
    pub fn times(&self) -> (SystemTime, SystemTime) {
        let time = |nanoseconds| SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds);
        (time(self.header.begun), time(self.end.ended))
    }

    /// How many pages of the database and how many bytes of log it holds.
    pub fn sizes(&self) -> (u64, u64) {
        (self.end.pages, self.end.log_bytes)
    }

    /// A recovery of a database restored from it needs the log from here on.
    pub fn needed(&self) -> Lsn {
        self.basis.undo()
    }

    pub(super) fn basis(&self) -> &CopyBasis {
        &self.basis
    }

    pub(super) fn file_pages(&self) -> u64 {
        self.end.file_pages
    }

    /// The size of the segments of its log; zero if it has none.
    pub(super) fn segment_bytes(&self) -> u64 {
        self.header.segment_bytes
    }

    /// Whether the copy may lack an extent as it is now.
    pub(super) fn lacks(&self, extent: Extent, lsn: Lsn) -> bool {
        // What was written past the log has the LSN before a checkpoint's redo point, which is not before this one.
        lsn.0.saturating_add(1) >= self.basis.redo().0 || !self.basis.is_extent(extent)
    }

    /// Notes in the file of a database, which is not open, that this backup was made of it.
    ///
    /// # Errors
    /// If the file is not a database's, or cannot be read or written.
    pub fn note_in(&self, database: &dyn File, options: &PoolOptions) -> Result<(), TxnError> {
        Ok(note_backup(database, options, &self.basis)?)
    }

    /// Whether a database continues from where this backup was made; `basis` is that of its last checkpoint.
    pub(super) fn check_continued(&self, basis: &CopyBasis) -> Result<(), BackupError> {
        let order = |why: &str| {
            Err(BackupError::Order(format!(
                "{why}; an increment begins with a full backup of this database: leave --since out"
            )))
        };
        if basis.database() != self.header.database {
            return order(
                "the former backup is of another database, or of this one before it was restored, or was changed without a log",
            );
        }
        if !self.basis.knows_history() {
            return order(
                "the former backup does not say to which history of the database it belongs, because the database was \
                 changed without a log before that, or by an earlier version of Vellum, or the backup was made with one",
            );
        }
        if !basis.continues(&self.basis, self.end()) || basis.redo() < self.basis.redo() {
            return order(
                "the database is not what became of the one that the former backup was made of: it is an older copy that was put \
                 back since, or a copy that went on elsewhere, or it was opened too often since",
            );
        }
        Ok(())
    }

    /// Gives all parts, in order, to `take`.
    pub(super) fn read_parts(
        &self,
        mut take: impl FnMut(Part<'_>) -> Result<(), TxnError>,
    ) -> Result<(), TxnError> {
        let mut buffer = AlignedBuffer::new(FRAME_PAGES_MAX * PAGE_SIZE);
        let mut offset = self.first;
        for number in 0.. {
            let wrong = |what: &str| damaged(format_args!("{what} at byte {offset}"));
            let frame = FrameHeader::decode(&read(&*self.file, offset, PAGE_SIZE)?);
            let frame = frame.filter(|(frame, _)| (frame.id, frame.number) == (self.header.id, number));
            let (frame, places) = frame.ok_or_else(|| wrong("what should be a header is none,"))?;
            let bytes = frame.payload_bytes as usize;
            let payload = buffer.get_mut(..bytes).unwrap_or_default();
            let read = self.file.read_to(offset + PAGE_SIZE as u64, payload);
            read.map_err(|source| BackupError::Read { source })?;
            if checksum(payload) != frame.checksum {
                return Err(wrong("the checksum is wrong").into());
            }
            match (frame.kind, &places[..]) {
                (Kind::End, _) => return Ok(()),
                (Kind::Log, [place]) => take(Part::Log(*place, payload))?,
                (Kind::Pages, places)
                    if places.iter().map(|(_, count)| *count).sum::<u64>() * PAGE_SIZE as u64
                        == bytes as u64 =>
                {
                    take(Part::Pages(places, payload))?;
                }
                _ => return Err(wrong("a header is malformed").into()),
            }
            offset += (PAGE_SIZE + bytes) as u64;
        }
        Ok(())
    }
}

fn damaged(what: impl std::fmt::Display) -> BackupError {
    BackupError::Damaged { what: what.to_string() }
}

fn read(file: &dyn File, offset: u64, bytes: usize) -> Result<AlignedBuffer, BackupError> {
    let mut buffer = AlignedBuffer::new(bytes);
    match file.read_to(offset, &mut buffer) {
        Ok(()) => Ok(buffer),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(BackupError::Unfinished),
        Err(source) => Err(BackupError::Read { source }),
    }
}
