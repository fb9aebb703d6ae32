//! Writes a backup: see *Backups* in FILE_FORMAT.md.

use super::format::{FRAME_PAGES_MAX, FRAME_PLACES_MAX, FrameHeader, Header, Kind, Place};
use crate::backup_error::BackupError;
use std::sync::Arc;
use vellum_base::{PAGE_SIZE, PageId, checksum};
use vellum_vm::{AlignedBuffer, File};

/// By how much the file grows at a time, in bytes.
const GROWTH_BYTES: u64 = 16 << 20;

/// Writes a backup from its beginning to its end.
pub(crate) struct BackupWriter {
    file: Arc<dyn File>,
    id: [u8; 16],
    /// Where the next frame goes, and how large the file is.
    offset: u64,
    size: u64,
    frames: u64,
    /// Room for the header of a frame, and for what the frame holds.
    buffer: AlignedBuffer,
    /// How many pages the frame holds, and where they belong.
    filled: usize,
    places: Vec<Place>,
    /// How many pages, and how many bytes of log, have been written.
    pub pages: u64,
    pub log_bytes: u64,
}

impl BackupWriter {
    /// Begins a backup in an empty file.
    pub fn begin(file: Arc<dyn File>, header: &Header, basis: &[u8]) -> Result<Self, BackupError> {
        let mut writer = Self {
            file,
            id: header.id,
            offset: 0,
            size: 0,
            frames: 0,
            buffer: AlignedBuffer::new((1 + FRAME_PAGES_MAX) * PAGE_SIZE),
            filled: 0,
            places: Vec::with_capacity(FRAME_PLACES_MAX),
            pages: 0,
            log_bytes: 0,
        };
        header.encode(writer.buffer.get_mut(..PAGE_SIZE).unwrap_or_default());
        writer.write_buffer(PAGE_SIZE)?;
        for part in basis.chunks(FRAME_PAGES_MAX * PAGE_SIZE) {
            if let Some(target) = writer.buffer.get_mut(..part.len()) {
                target.copy_from_slice(part);
            }
            writer.write_buffer(part.len())?;
        }
        Ok(writer)
    }

    /// Adds consecutive pages.
    pub fn push_pages(&mut self, first: PageId, bytes: &[u8]) -> Result<(), BackupError> {
        for (page, part) in (first.0..).zip(bytes.chunks_exact(PAGE_SIZE)) {
            if self.filled == FRAME_PAGES_MAX {
                self.end_frame(Kind::Pages)?;
            }
            match self.places.last_mut().filter(|(first, count)| first + count == page) {
                Some((_, count)) => *count += 1,
                None => {
                    if self.places.len() == FRAME_PLACES_MAX {
                        self.end_frame(Kind::Pages)?;
                    }
                    self.places.push((page, 1));
                }
            }
            let at = (1 + self.filled) * PAGE_SIZE;
            if let Some(target) = self.buffer.get_mut(at..at + PAGE_SIZE) {
                target.copy_from_slice(part);
            }
            self.filled += 1;
            self.pages += 1;
        }
        Ok(())
    }

    /// Adds pages of a segment of the log.
    pub fn push_log(&mut self, segment: u64, offset: u64, bytes: &[u8]) -> Result<(), BackupError> {
        self.end_frame(Kind::Pages)?;
        self.log_bytes += bytes.len() as u64;
        let parts = bytes.chunks(FRAME_PAGES_MAX * PAGE_SIZE);
        for (offset, part) in (offset..).step_by(FRAME_PAGES_MAX * PAGE_SIZE).zip(parts) {
            if let Some(target) = self.buffer.get_mut(PAGE_SIZE..PAGE_SIZE + part.len()) {
                target.copy_from_slice(part);
            }
            self.filled = part.len() / PAGE_SIZE;
            self.places.push((segment, offset));
            self.end_frame(Kind::Log)?;
        }
        Ok(())
    }

    /// Ends the backup, and makes it durable.
    pub fn finish(mut self, places: &[Place]) -> Result<u64, BackupError> {
        self.end_frame(Kind::Pages)?;
        self.places.extend_from_slice(places);
        self.end_frame(Kind::End)?;
        let ended = self.file.truncate(self.offset).and_then(|()| self.file.sync());
        ended.map_err(|source| BackupError::Write { source })?;
        Ok(self.offset)
    }

    fn end_frame(&mut self, kind: Kind) -> Result<(), BackupError> {
        if self.places.is_empty() {
            return Ok(());
        }
        let bytes = self.filled * PAGE_SIZE;
        let (header, payload) = self.buffer.split_at_mut(PAGE_SIZE);
        let frame = FrameHeader {
            kind,
            payload_bytes: bytes as u64,
            checksum: checksum(payload.get(..bytes).unwrap_or_default()),
            number: self.frames,
            id: self.id,
        };
        frame.encode(&self.places, header);
        self.frames += 1;
        self.filled = 0;
        self.places.clear();
        self.write_buffer(PAGE_SIZE + bytes)
    }

    fn write_buffer(&mut self, bytes: usize) -> Result<(), BackupError> {
        let end = self.offset + bytes as u64;
        let mut write = || {
            if end > self.size {
                let size = end.next_multiple_of(GROWTH_BYTES);
                // If there is no room for that much, there may be for less.
                self.size = match self.file.grow(size) {
                    Ok(()) => size,
                    Err(_) => self.file.grow(end).map(|()| end)?,
                };
            }
            self.file.write_from(self.offset, self.buffer.get(..bytes).unwrap_or_default())
        };
        write().map_err(|source| BackupError::Write { source })?;
        self.offset = end;
        Ok(())
    }
}
