//! The end of a log that a killed process has left only in its buffer: it is written to the segments, where it belongs.

use crate::{
    LogError,
    buffer_damage::{BufferDamage, BufferFlaw},
    buffer_file::{BUFFER, BufferFile, LeftBuffer},
    files::{LogFiles, Segment, SegmentMaker, names_of},
    plant::Bug,
    previous_end::{PreviousEnd, make_durable},
    segment::{FORMAT_VERSION, Marks, SegmentHeader, WITH_MARKS, name, salt},
};
use std::{io, sync::Arc};
use vellum_base::{ChecksumStream, Lsn, PAGE_SIZE};
use vellum_vm::{AlignedBuffer, Directory, File};

const PAGE: u64 = PAGE_SIZE as u64;
/// How many bytes are read at once for a checksum.
const PART_BYTES: u64 = 1 << 20;

/// The files of a log, and what its last process has left in the buffer.
pub(crate) struct Tail {
    pub files: LogFiles,
    directory: Arc<dyn Directory>,
    buffer: Option<LeftBuffer>,
    /// Up to where frames were taken from the buffer, and how many bytes.
    taken: u64,
    bytes_taken: u64,
}

impl Tail {
    /// Finds what was left. A buffer of an earlier timeline has nothing that the segments lack.
    pub fn find(directory: Arc<dyn Directory>, files: LogFiles) -> Result<Self, LogError> {
        let last = files.segments.last_key_value().map(|(_, segment)| segment.header.timeline);
        let buffer = if last.is_some() { LeftBuffer::find(&*directory, &files.options)? } else { None };
        let buffer = buffer.filter(|buffer| buffer.timeline.is_none() || buffer.timeline >= last);
        if files.options.planted(Bug::BufferUsedAgain) {
            drop(BufferFile::begin(&*directory, &files.options, files.timeline_max + 1));
        }
        Ok(Self { files, directory, buffer, taken: 0, bytes_taken: 0 })
    }

    /// What is wrong with the buffer, once the log has been read.
    pub fn buffer_damage(&self) -> Option<BufferDamage> {
        let buffer = self.buffer.as_ref()?;
        let is_later = buffer.timeline > Some(self.files.timeline_max);
        let flaw = buffer.flaw.or_else(|| is_later.then_some(BufferFlaw::Later))?;
        Some(BufferDamage { flaw, bytes_taken: self.bytes_taken })
    }

    /// Checks that no segment after the last one has got another's name, and that none is lost:
    /// - the last one says whether it was left, and then there was a file for the next;
    /// - the first page of a later timeline was durable before the first record of it was written. So if there is such a record, in a
    ///   file without that page or in the buffer, the page was lost afterwards;
    /// - the last life of the database has a segment, unless it was taken back.
    pub fn check_later(&self) -> Result<(), LogError> {
        /// How many segments after all files that are there are looked for in the buffer.
        const BEYOND: u64 = 8;
        let Some((last, Segment { header, .. })) = self.files.segments.last_key_value() else {
            return Ok(());
        };
        // A file gets another name when its segment is given up, which is before the last one.
        let is_misplaced = |(_, there): &(&u64, &SegmentHeader)| {
            there.number > *last && there.timeline >= header.timeline && there.database == header.database
        };
        if let Some((number, there)) = self.files.named_otherwise.iter().find(is_misplaced) {
            return Err(LogError::Misplaced { file: name(*number), segment: name(there.number) });
        }
        if header.marks.is_left && !self.has_file(last + 1)? {
            return Err(LogError::HeaderLost { segment: name(last + 1) });
        }
        let next = self.files.timeline_max + 1;
        let buffered = self.buffer.as_ref().and_then(|buffer| buffer.timeline);
        for number in last + 1..=self.files.number_max() + BEYOND {
            let start = self.files.geometry.start(number);
            for timeline in [next].into_iter().chain(buffered.filter(|timeline| *timeline > next)) {
                let salt = salt(self.files.options.database, timeline);
                let is_buffered = |buffer: &LeftBuffer| buffer.has_frame(start, salt, &self.files.options);
                if self.buffer.as_ref().is_some_and(is_buffered)
                    || self.files.begins_with_frame(number, salt)?
                {
                    return Err(LogError::HeaderLost { segment: name(number) });
                }
            }
        }
        self.check_last_life()
    }

    /// Whether there is a file for a segment that was not begun when the files were looked through. If the log is being written, it
    /// may have been made since.
    fn has_file(&self, number: u64) -> Result<bool, LogError> {
        let is_there = || Ok(names_of(&*self.directory)?.iter().any(|(there, _)| *there == number));
        if self.files.idle.contains_key(&number) { Ok(true) } else { is_there() }
    }

    /// Checks that the last life of the database is in the log: its first segment was durable before the database knew of it.
    fn check_last_life(&self) -> Result<(), LogError> {
        let life = self.files.options.last_life;
        let headers = || self.files.segments.values().map(|segment| &segment.header);
        // The first version did not note what it took back.
        let are_known = headers().all(|header| header.life != 0 && header.version >= WITH_MARKS);
        let is_there = |header: &SegmentHeader| header.life == life || header.marks.withdrawn == life;
        if life != 0 && are_known && !headers().any(is_there) {
            return Err(LogError::LastLifeMissing { life });
        }
        Ok(())
    }

    /// Writes to the segments what the buffer has of the last timeline from their end on. It is not made durable.
    /// Returns whether there was anything.
    pub fn write(&mut self, end: PreviousEnd) -> Result<bool, LogError> {
        let (Some(buffer), Some((_, last))) = (&self.buffer, self.files.segments.last_key_value()) else {
            return Ok(false);
        };
        let header = last.header;
        // An opening after this segment that was taken back had put what it found into the segments.
        if header.marks.withdrawn != 0 {
            return Ok(false);
        }
        let mut frames = buffer.frames(end.lsn, header.salt(), &self.files.options);
        if end.lsn < self.taken || frames.is_empty() {
            return Ok(false);
        }
        if buffer.is_of_another_life(header.life) {
            return Err(LogError::OtherLife {
                file: BUFFER.to_owned(),
                at: Lsn(end.lsn),
                life: buffer.life,
                known: header.life,
            });
        }
        self.taken = end.lsn + frames.len() as u64;
        self.bytes_taken += frames.len() as u64;
        let mut at = end.lsn;
        while at < self.taken {
            let number = self.files.geometry.number(at);
            if !self.files.segments.contains_key(&number) {
                self.begin_segment(number, &header, end.durable)?;
            }
            let bytes = (self.taken - at).min(self.files.geometry.start(number + 1) - at);
            let rest = frames.split_off(bytes as usize);
            if let Some(segment) = self.files.segments.get(&number) {
                let offset = self.files.geometry.offset(at);
                let file = segment.file.open()?;
                let written = write_into(&*file, self.files.geometry.segment_bytes, offset, &frames);
                self.files.unsynced.push(file);
                written.map_err(failed)?;
            }
            (at, frames) = (at + bytes, rest);
        }
        Ok(true)
    }

    /// Begins a segment when everything before it is durable.
    fn begin_segment(
        &mut self,
        number: u64,
        &SegmentHeader { timeline, life, .. }: &SegmentHeader,
        durable: u64,
    ) -> Result<(), LogError> {
        let start = self.files.geometry.start(number);
        make_durable(&mut self.files, PreviousEnd { lsn: start, durable, checksum: 0 }).map_err(failed)?;
        let previous_checksum = self.sum(number.saturating_sub(1)).map_err(failed)?;
        let file = match self.files.idle.remove(&number) {
            Some(file) => file.open()?,
            None => {
                let mut maker = SegmentMaker::new(self.directory.clone(), &self.files);
                maker.make(number, true, || None)?.file
            }
        };
        let header = SegmentHeader {
            database: self.files.options.database,
            timeline,
            number,
            segment_bytes: self.files.geometry.segment_bytes,
            previous_end: start,
            previous_checksum,
            life,
            version: FORMAT_VERSION,
            marks: Marks::default(),
        };
        let mut page = AlignedBuffer::new(PAGE_SIZE);
        page.copy_from_slice(&header.encode());
        let written = file.write_from(0, &page).and_then(|()| file.sync());
        self.files.segments.insert(number, Segment { header, file: file.segment().clone() });
        self.files.unsynced.push(file);
        written.map_err(failed)
    }

    /// The checksum of the contents of a full segment.
    fn sum(&self, number: u64) -> io::Result<u64> {
        let mut checksum = ChecksumStream::default();
        let Some(segment) = self.files.segments.get(&number) else { return Ok(0) };
        let file = segment.file.open().map_err(io::Error::other)?;
        let bytes = self.files.geometry.segment_bytes;
        let mut buffer = AlignedBuffer::new(PART_BYTES.min(bytes - PAGE) as usize);
        let mut at = PAGE;
        while at < bytes {
            let part = buffer.get_mut(..PART_BYTES.min(bytes - at) as usize).unwrap_or_default();
            file.read_to(at, part)?;
            checksum.update(part);
            at += part.len() as u64;
        }
        Ok(checksum.finish())
    }
}

/// Writes bytes into a segment. The rest of their pages stays.
fn write_into(file: &dyn File, segment_bytes: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
    // After some crashes a file is shorter than it was.
    file.grow(segment_bytes)?;
    let from = offset - offset % PAGE;
    let to = (offset + bytes.len() as u64).next_multiple_of(PAGE);
    let mut pages = AlignedBuffer::new((to - from) as usize);
    file.read_to(from, &mut pages)?;
    if let Some(target) = pages.get_mut((offset - from) as usize..).and_then(|to| to.get_mut(..bytes.len())) {
        target.copy_from_slice(bytes);
    }
    file.write_from(from, &pages)
}

fn failed(source: io::Error) -> LogError {
    LogError::Files { action: "write what was in the buffer to a segment", source }
}
