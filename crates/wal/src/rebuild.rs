//! A log built from records that already have their places: a database that is restored from a backup and an archive is
//! recovered from it.

use crate::{
    LogError, LogOptions,
    frame::{FrameHeader, HEADER_BYTES, Kind, PAYLOAD_BYTES_MAX, frame_bytes, seed},
    segment::{Geometry, SegmentHeader, name, salt},
};
use std::io;
use vellum_base::{Lsn, PAGE_SIZE, checksum};
use vellum_vm::{AlignedBuffer, CreateMode, Directory, FileOptions};

/// The timeline of such a log; the database that is recovered from it continues with the next one.
const TIMELINE: u64 = 1;

/// Writes the files of a log. Gaps between records are filled with voids.
pub struct LogRebuilder<'d> {
    directory: &'d dyn Directory,
    options: LogOptions,
    geometry: Geometry,
    /// Where the log continues.
    at: u64,
    /// The segment that is being filled: its number, and its file, header included.
    number: u64,
    segment: AlignedBuffer,
    /// Where the log ended before this segment, and the checksum of the one before.
    previous: (u64, u64),
}

impl<'d> LogRebuilder<'d> {
    /// Begins the log at `at`, in a directory that holds none.
    ///
    /// # Errors
    /// If the options are out of range.
    pub fn begin(directory: &'d dyn Directory, options: &LogOptions, at: Lsn) -> Result<Self, LogError> {
        options.check()?;
        let geometry = Geometry { segment_bytes: options.segment_bytes };
        Ok(Self {
            directory,
            geometry,
            at: at.0,
            number: geometry.number(at.0),
            segment: AlignedBuffer::new(options.segment_bytes as usize),
            previous: (at.0, 0),
            options: options.clone(),
        })
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
                let payload = self.segment.get(PAGE_SIZE..).unwrap_or_default();
                self.previous = (end, checksum(payload));
                self.segment.fill(0);
                self.number += 1;
                continue;
            }
            let (now, later) = bytes.split_at(bytes.len().min((end - self.at) as usize));
            let offset = self.geometry.offset(self.at) as usize;
            if let Some(target) = self.segment.get_mut(offset..offset + now.len()) {
                target.copy_from_slice(now);
            }
            self.at += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }

    fn write_segment(&mut self) -> Result<(), LogError> {
        let header = SegmentHeader {
            database: self.options.database,
            timeline: TIMELINE,
            number: self.number,
            segment_bytes: self.geometry.segment_bytes,
            previous_end: self.previous.0,
            previous_checksum: self.previous.1,
        };
        if let Some(page) = self.segment.get_mut(..PAGE_SIZE) {
            page.copy_from_slice(&header.encode());
        }
        let options = FileOptions { create: CreateMode::CreateNew, ..FileOptions::default() };
        let file = self.directory.open(&name(self.number), &options)?;
        let write = || {
            file.grow(self.geometry.segment_bytes)?;
            file.write_from(0, &self.segment)?;
            file.sync()
        };
        write().map_err(failed)
    }
}

fn failed(source: io::Error) -> LogError {
    LogError::Files { action: "write a segment", source }
}
