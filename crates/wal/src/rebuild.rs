//! A log built from records that already have their places: a database that is restored from a backup and an archive is
//! recovered from it.

use crate::{
    LogError, LogOptions,
    frame::{FrameHeader, HEADER_BYTES, Kind, PAYLOAD_BYTES_MAX, frame_bytes, seed},
    segment::{FORMAT_VERSION, Geometry, Marks, SegmentHeader, name, salt},
    segment_file::file_options,
};
use std::{io, sync::Arc};
use vellum_base::{ChecksumStream, Lsn, PAGE_SIZE};
use vellum_vm::{AlignedBuffer, CreateMode, Directory, File};

const PAGE: u64 = PAGE_SIZE as u64;
/// The timeline of such a log; the database that is recovered from it continues with the next one.
const TIMELINE: u64 = 1;
/// How many bytes are written at once.
const PART_BYTES: u64 = 1 << 20;

/// Writes the files of a log. Gaps between records are filled with voids.
pub struct LogRebuilder<'d> {
    directory: &'d dyn Directory,
    options: LogOptions,
    geometry: Geometry,
    /// Where the log continues.
    at: u64,
    /// The segment that is being filled, and its number.
    file: Arc<dyn File>,
    number: u64,
    /// What is written next, from this offset in the file on.
    part: AlignedBuffer,
    from: u64,
    /// The checksum of what the segment holds before that.
    sum: ChecksumStream,
    /// Where the log ended before this segment, and the checksum of the one before.
    previous: (u64, u64),
}

impl<'d> LogRebuilder<'d> {
    /// Begins the log at `at`, in a directory that holds none.
    ///
    /// # Errors
    /// If the options are out of range; [`LogError::NoRoom`] if there is no room for a segment.
    pub fn begin(directory: &'d dyn Directory, options: &LogOptions, at: Lsn) -> Result<Self, LogError> {
        options.check()?;
        let geometry = Geometry { segment_bytes: options.segment_bytes };
        let number = geometry.number(at.0);
        let mut begun = Self {
            directory,
            geometry,
            at: geometry.start(number),
            file: make(directory, number, geometry)?,
            number,
            part: AlignedBuffer::new(PART_BYTES.min(geometry.payload()) as usize),
            from: PAGE,
            sum: ChecksumStream::default(),
            previous: (at.0, 0),
            options: options.clone(),
        };
        // The checksum of the segment is of all of it.
        let zeroes = [0; PAGE_SIZE];
        while begun.at < at.0 {
            let bytes = (at.0 - begun.at).min(PAGE) as usize;
            begun.append(zeroes.get(..bytes).unwrap_or_default())?;
        }
        Ok(begun)
    }

    /// Adds a record, which lies after all others.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn push(&mut self, lsn: Lsn, payload: &[u8]) -> Result<(), LogError> {
        while self.at < lsn.0 {
            let gap = (lsn.0 - self.at).min(frame_bytes(PAYLOAD_BYTES_MAX));
            self.push_frame(Kind::Void, &vec![0; (gap as usize).saturating_sub(HEADER_BYTES)])?;
        }
        self.push_frame(Kind::Record, payload)
    }

    /// Makes the log durable. Returns where it ends.
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    pub fn finish(mut self) -> Result<Lsn, LogError> {
        self.write_segment()?;
        self.directory.sync().map_err(failed)?;
        Ok(Lsn(self.at))
    }

    fn push_frame(&mut self, kind: Kind, payload: &[u8]) -> Result<(), LogError> {
        let seed = seed(salt(self.options.database, TIMELINE), self.at);
        let header = FrameHeader::new(kind, seed, self.at, self.at, payload);
        let head = header.encode().map(u64::to_le_bytes);
        let padding = [0; 16];
        let rest = (header.bytes() as usize).saturating_sub(HEADER_BYTES + payload.len());
        for part in [head.as_flattened(), payload, padding.get(..rest).unwrap_or_default()] {
            self.append(part)?;
        }
        Ok(())
    }

    fn append(&mut self, mut bytes: &[u8]) -> Result<(), LogError> {
        while !bytes.is_empty() {
            let end = self.geometry.start(self.number + 1);
            if self.at == end {
                self.write_segment()?;
                self.previous = (end, std::mem::take(&mut self.sum).finish());
                self.number += 1;
                self.file = make(self.directory, self.number, self.geometry)?;
                self.from = PAGE;
                continue;
            }
            let filled = (self.geometry.offset(self.at) - self.from) as usize;
            if filled == self.part.len() {
                self.write_part(filled)?;
                continue;
            }
            let room = (self.part.len() - filled).min((end - self.at) as usize);
            let (now, later) = bytes.split_at(bytes.len().min(room));
            if let Some(target) = self.part.get_mut(filled..filled + now.len()) {
                target.copy_from_slice(now);
            }
            self.at += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }

    /// Writes the part that has been filled, to whole pages.
    fn write_part(&mut self, filled: usize) -> Result<(), LogError> {
        let pages = self.part.get_mut(..filled.next_multiple_of(PAGE_SIZE)).unwrap_or_default();
        pages.get_mut(filled..).unwrap_or_default().fill(0);
        self.file.write_from(self.from, pages).map_err(failed)?;
        self.sum.update(pages.get(..filled).unwrap_or_default());
        self.from += filled as u64;
        Ok(())
    }

    /// Writes the rest of the segment, and its header, durably.
    fn write_segment(&mut self) -> Result<(), LogError> {
        let end = self.at.min(self.geometry.start(self.number + 1)) - self.geometry.start(self.number);
        self.write_part((PAGE + end - self.from) as usize)?;
        let header = SegmentHeader {
            database: self.options.database,
            timeline: TIMELINE,
            number: self.number,
            segment_bytes: self.geometry.segment_bytes,
            previous_end: self.previous.0,
            previous_checksum: self.previous.1,
            life: self.options.life,
            version: FORMAT_VERSION,
            marks: Marks::default(),
        };
        let mut page = AlignedBuffer::new(PAGE_SIZE);
        page.copy_from_slice(&header.encode());
        self.file.write_from(0, &page).and_then(|()| self.file.sync()).map_err(failed)
    }
}

/// Makes the file of a segment, with all its room.
fn make(directory: &dyn Directory, number: u64, geometry: Geometry) -> Result<Arc<dyn File>, LogError> {
    let file = directory.open(&name(number), &file_options(CreateMode::CreateNew))?;
    file.grow(geometry.segment_bytes).map_err(|source| LogError::NoRoom { source, held: None })?;
    Ok(file)
}

fn failed(source: io::Error) -> LogError {
    LogError::Files { action: "write a segment", source }
}
