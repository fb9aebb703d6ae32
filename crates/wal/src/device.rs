//! Writes the log to its segments, one thread at a time.

use crate::{
    ArchivedPart, Durability, LogError, LogReader,
    archive::PartSource,
    files::{FEW_BYTES, LogFiles, Made, Prepared, Segment, SegmentMaker},
    frame::FrameHeader,
    plant::Bug,
    previous_end::{PreviousEnd, make_durable},
    ring::Ring,
    segment::{FORMAT_VERSION, Geometry, Marks, SegmentHeader, WITH_MARKS},
    segment_file::{OpenSegment, SegmentFile},
};
use std::{io, sync::Arc};
use vellum_base::{ChecksumStream, Lsn, PAGE_SIZE};
use vellum_vm::{AlignedBuffer, File, VmError};

const PAGE: u64 = PAGE_SIZE as u64;
/// The most bytes that are written at once.
const PART_BYTES: u64 = 256 << 10;
/// How many bytes of a file that was never written are written at least, if that pays.
const BLANK_BYTES_MIN: u64 = 64 << 10;

/// How a write failed.
pub(crate) enum WriteError {
    /// The next segment is not prepared; what was written stays written.
    NoSegment,
    /// The next segment cannot be opened now; what was written stays written.
    NotOpened(VmError),
    /// What the files hold is unknown.
    Failed(io::Error),
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

pub(crate) struct Device {
    files: LogFiles,
    timeline: u64,
    /// The segment that is being written, and its number. Only this one may have something that is not durable.
    file: OpenSegment,
    number: u64,
    /// The first of the next segments that is not open, or does not exist.
    closed: u64,
    /// Where the log ended before this timeline.
    former_end: Lsn,
    /// Up to where the file has been written, in this life or before.
    used: u64,
    /// The checksum of what has been written to the segment.
    checksum: ChecksumStream,
    /// Up to where the log has been written, and the end of the last record that has been checked.
    written: u64,
    checked: u64,
    /// The end of the last record that has been written whole.
    released: u64,
    /// The end of the last whole record after the last complete write, and of the last record that is durable.
    whole: u64,
    synced: u64,
    scratch: AlignedBuffer,
    /// Whether something was written since the last sync, and whether part of it went into the system's page cache.
    is_unsynced: bool,
    is_cached: bool,
}

impl Device {
    /// Begins a new timeline in a new segment, durably.
    pub fn begin(
        mut files: LogFiles,
        maker: &mut SegmentMaker,
        previous: Option<PreviousEnd>,
    ) -> Result<Self, LogError> {
        let mut number = files.number_max() + 1;
        if files.options.planted(Bug::PlacesUsedAgain) {
            number = previous.map_or(number, |end| files.geometry.number(end.lsn) + 1);
        }
        if !files.options.planted(Bug::LeastIgnored) {
            number = number.max(files.options.least.0.div_ceil(files.geometry.payload()));
        }
        let timeline = files.timeline_max + 1;
        let failed = |source| LogError::Files { action: "begin a segment", source };
        if let Some(end) = previous.filter(|_| !files.options.planted(Bug::EndNotSynced)) {
            make_durable(&mut files, end).map_err(failed)?;
        }
        files.unsynced.clear();
        let Made { file, written: used } = maker.make(number, false, || files.idle.pop_first())?;
        let written = files.geometry.start(number);
        // After a close the former log is gone; its archive knows where it ended.
        let least = files.options.least.0.min(written);
        let (lsn, checksum) = previous.map_or((least, 0), |end| (end.lsn, end.checksum));
        let mut device = Self {
            files,
            timeline,
            file,
            number,
            closed: number + 1,
            former_end: Lsn(lsn),
            used,
            checksum: ChecksumStream::default(),
            written,
            checked: written,
            released: written,
            whole: written,
            synced: written,
            scratch: AlignedBuffer::new(PART_BYTES as usize),
            is_unsynced: false,
            is_cached: false,
        };
        device.write_header(lsn, checksum).map_err(failed)?;
        device.sync().map_err(failed)?;
        Ok(device)
    }

    /// Where the log ended when it was opened, or closed before that.
    pub fn former_end(&self) -> Lsn {
        self.former_end
    }

    /// Up to where records are durable.
    pub fn synced(&self) -> u64 {
        self.synced
    }

    /// Up to where the log has been written.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// The salt of this timeline's frames.
    pub fn salt(&self) -> u64 {
        crate::segment::salt(self.files.options.database, self.timeline)
    }

    /// Writes what the ring holds, and returns up to where that is. What is not to be synced at once goes into the page
    /// cache, which is ten times as fast; past it, write and sync are faster together. What is in the page cache is not
    /// written past it.
    pub fn write(&mut self, ring: &Ring, durability: Durability) -> Result<u64, WriteError> {
        let to = ring.advance();
        let goes_ahead = durability == Durability::Synced && to - self.written <= FEW_BYTES;
        while self.written < to {
            let end = self.files.geometry.start(self.number + 1);
            if self.written == end {
                self.next_segment()?;
                continue;
            }
            // What is in a buffer that outlives the process is with the operating system already.
            self.is_cached |= durability == Durability::Buffered && !ring.is_shared();
            let part_end = to.min(end).min(self.written - self.written % PAGE + PART_BYTES);
            let length = self.copy_part(ring, part_end, goes_ahead);
            let whole = self.check(ring, part_end, to)?;
            let outcome = self.write_part(part_end, length);
            if !self.files.options.planted(Bug::SwallowedWriteError) {
                outcome?;
            }
            self.written = part_end;
            // Whenever the process ends, a record is whole in the ring or in segments.
            self.released = if self.files.options.planted(Bug::ReleasedInPart) { part_end } else { whole };
            ring.release(self.released);
        }
        self.whole = to;
        Ok(to)
    }

    /// Checks that each record that begins in the copied part is what was put into the ring, where records are filled
    /// up to `to`. Returns the end of the last record that is whole by the end of the part. If the ring is a mapped
    /// file, and the system could not write a page of it, the system may have dropped the page and read the old one
    /// again: that must not reach the segments and be acknowledged.
    fn check(&mut self, ring: &Ring, part_end: u64, to: u64) -> io::Result<u64> {
        let (salt, from) = (self.salt(), self.written - self.written % PAGE);
        let part = self.scratch.get(..(part_end - from) as usize).unwrap_or_default();
        let mut whole = self.released;
        while self.checked <= part_end {
            let at = self.checked;
            whole = at;
            if at == part_end {
                break;
            }
            let rest = part.get((at - from) as usize..).unwrap_or_default();
            let header = rest.first_chunk().and_then(FrameHeader::from_bytes);
            let header = header.filter(|header| header.bytes() <= to - at);
            let is_sound = header.is_some_and(|header| {
                let is_sound = |frame: &[u8]| header.is_of(self.files.options.seed(salt, at), frame);
                // In the process's own memory nothing gets lost.
                !ring.is_shared()
                    || match rest.get(..header.bytes() as usize) {
                        Some(frame) => is_sound(frame),
                        // The frame reaches beyond the part.
                        None => is_sound(&ring.copy(at, header.bytes())),
                    }
            });
            let Some(header) = header.filter(|_| is_sound) else {
                return Err(io::Error::other(format!(
                    "its buffer does not hold the record any more that was put there at {at}; the device is likely to have failed"
                )));
            };
            self.checked = at + header.bytes();
        }
        Ok(whole)
    }

    /// Makes what has been written durable.
    pub fn sync(&mut self) -> io::Result<()> {
        if self.is_unsynced {
            if !self.files.options.planted(Bug::SkippedSync) {
                let outcome = self.file.sync();
                if outcome.is_err() && self.files.options.planted(Bug::SyncTriedAgain) {
                    return self.file.sync();
                }
                outcome?;
            }
            (self.is_unsynced, self.is_cached, self.synced) = (false, false, self.whole);
        }
        Ok(())
    }

    /// The segment to be prepared next.
    pub fn number_unprepared(&self) -> u64 {
        self.number + 1 + self.files.prepared.len() as u64
    }

    /// A file that may become another segment.
    pub fn take_idle(&mut self) -> Option<(u64, Arc<SegmentFile>)> {
        self.files.reuse_unread();
        self.files.idle.pop_first()
    }

    /// A file that may become another segment, unless it is needed for the log before `end`.
    pub fn take_idle_beyond(&mut self, end: u64) -> Option<(u64, Arc<SegmentFile>)> {
        self.files.reuse_unread();
        let last = self.number_unprepared() + self.files.idle.len() as u64;
        if self.files.geometry.start(last) < end + self.files.geometry.payload() {
            return None;
        }
        self.take_idle()
    }

    /// Where the segment ends that is being written.
    pub fn segment_end(&self) -> u64 {
        self.files.geometry.start(self.number + 1)
    }

    /// The file of the segment that was to be prepared next.
    pub fn add_prepared(&mut self, Made { file: open, written }: Made) {
        let (number, file) = (self.number_unprepared(), open.segment().clone());
        let open = self.is_near(number).then_some(open);
        if open.is_some() && self.closed == number {
            self.closed += 1;
        }
        self.files.prepared.insert(number, Prepared { file, open, written });
    }

    /// Whether records that are admitted before the next write may reach a segment: it must be open by then. Others,
    /// which are kept for undoing a long transaction say, may be more than the process may have open.
    fn is_near(&self, number: u64) -> bool {
        self.files.geometry.start(number) <= self.written + 2 * self.files.options.buffer_bytes
    }

    /// Opens the prepared segments that must be open.
    pub fn open_prepared(&mut self) -> Result<(), VmError> {
        while self.is_near(self.closed)
            && let Some(prepared) = self.files.prepared.get_mut(&self.closed)
        {
            prepared.open = Some(prepared.file.open()?);
            self.closed += 1;
        }
        Ok(())
    }

    /// Up to where records can be admitted: the end of the last segment that exists, or of the last that is open if the
    /// one after it must be, too.
    pub fn ready_end(&self) -> u64 {
        let opened_end = self.files.geometry.start(self.closed);
        if self.is_near(self.closed) { opened_end.min(self.prepared_end()) } else { self.prepared_end() }
    }

    /// The end of the last segment that exists.
    pub fn prepared_end(&self) -> u64 {
        self.files.geometry.start(self.number_unprepared())
    }

    /// Reads again what was there when this timeline began.
    pub fn reread(&self, from: Lsn) -> Result<LogReader, LogError> {
        LogReader::again(&self.files, from, self.timeline)
    }

    /// Reads the records from `from` up to `to`, before which everything is durable, and nothing before `from`.
    pub fn follow(&self, from: Lsn, to: Lsn) -> Result<LogReader, LogError> {
        LogReader::follow(&self.files, from, to)
    }

    /// Reads the records from `from` up to `to`, before which everything is durable.
    pub fn read_range(&self, from: Lsn, to: Lsn) -> Result<LogReader, LogError> {
        LogReader::range(&self.files, from, to)
    }

    /// The files of the segments from number `first` on that have been begun and hold something before `to`, in order.
    pub fn begun_segments(&self, first: u64, to: u64) -> Vec<(u64, Arc<SegmentFile>)> {
        let begun = self.files.segments.range(first..=self.files.geometry.number(to.saturating_sub(1)));
        begun.map(|(number, segment)| (*number, segment.file.clone())).collect()
    }

    /// The segment that is being written.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The finished contents of the segments: up to where the next segment says that the log ended, and in the last one
    /// up to `to`. With `with_blank`, the last one is included even if it is empty. A segment is not finished before
    /// the record that leaves it is durable: after a crash the log would end before that record.
    pub fn finished_parts(&self, to: u64, with_blank: bool) -> Vec<PartSource> {
        let geometry = self.files.geometry;
        let mut parts = Vec::new();
        let (mut limit, mut next) = (to, None::<SegmentHeader>);
        for (number, Segment { header, file }) in self.files.segments.iter().rev() {
            limit = match next {
                Some(next) if next.timeline != header.timeline => next.previous_end,
                Some(next) if next.timeline == self.timeline && self.synced >= next.previous_end => {
                    limit.max(next.previous_end)
                }
                _ => limit,
            };
            let (start, end) = (geometry.start(*number), limit.min(geometry.start(number + 1)));
            let is_blank = limit == start && next.is_none_or(|next| next.timeline != header.timeline);
            if let Some(later) = parts.last_mut().filter(|_| is_blank) {
                // Nothing was written to it, so the part before may be the one before this.
                let later: &mut PartSource = later;
                later.follows.push(header.end_before());
            } else if end > start || (is_blank && with_blank) {
                let part = ArchivedPart {
                    database: header.database,
                    timeline: header.timeline,
                    start: Lsn(start),
                    end: Lsn(end),
                    follows: Lsn(header.previous_end),
                    checksum: 0,
                    life: 0,
                };
                // A timeline that ended with a segment has the checksum of what follows on it, which is nothing.
                let is_whole = end == geometry.start(number + 1);
                let told = next.filter(|next| next.previous_end == end && next.previous_checksum != 0);
                let told = told.filter(|next| !is_whole || next.timeline == header.timeline);
                let checksum = told.map(|next| next.previous_checksum);
                let follows = vec![header.end_before()];
                parts.push(PartSource { part, file: file.clone(), checksum, follows });
            }
            next = Some(*header);
        }
        parts.reverse();
        parts
    }

    /// How places map to segments.
    pub fn geometry(&self) -> Geometry {
        self.files.geometry
    }

    /// Gives up prepared segments after `wanted`, but one. Returns the numbers to be removed before a segment is made.
    pub fn give_up_prepared(&mut self, wanted: u64) -> Vec<u64> {
        let mut removed = Vec::new();
        while self.prepared_end().saturating_sub(2 * self.files.geometry.payload()) > wanted
            && let Some((number, _)) = self.files.prepared.pop_last()
        {
            removed.push(number);
        }
        self.closed = self.closed.min(self.number_unprepared());
        removed
    }

    /// Gives up the segments before `lsn`, for reuse. Returns the numbers of those to be removed.
    pub fn discard(&mut self, lsn: u64) -> Vec<u64> {
        let mut first = self.files.geometry.number(lsn).min(self.number);
        if self.files.options.planted(Bug::RecycledTooEarly) {
            first = (first + 1).min(self.number);
        }
        self.files.discard(first)
    }

    /// Whether a segment would be given up if nothing before `lsn` were needed.
    pub fn gives_up(&self, lsn: u64) -> bool {
        let first = self.files.geometry.number(lsn).min(self.number);
        self.files.segments.first_key_value().is_some_and(|(number, _)| *number < first)
    }

    /// The numbers of the segments of a timeline to which nothing was appended: of the one that is being written and of those that
    /// are prepared. The first one is left out if no file before it shows that its number must not be used again: the file that did may
    /// have been recycled.
    pub fn withdrawable_numbers(&self) -> Vec<u64> {
        let (mut segments, mut idle) =
            (self.files.segments.range(..self.number), self.files.idle.range(..self.number));
        let before =
            segments.next_back().map(|(number, _)| *number).max(idle.next_back().map(|(number, _)| *number));
        let first = Some(self.number).filter(|number| before >= number.checked_sub(1));
        first.into_iter().chain(self.files.prepared.keys().copied()).collect()
    }

    /// How many bytes the segments have that have been begun.
    pub fn begun_bytes(&self) -> u64 {
        self.files.segments.len() as u64 * self.files.geometry.segment_bytes
    }

    fn next_segment(&mut self) -> Result<(), WriteError> {
        let number = self.number + 1;
        if !self.files.prepared.contains_key(&number) {
            return Err(WriteError::NoSegment);
        }
        self.mark_left()?;
        // The next segment says where this one ends, so this one must be durable first. Once it is, it may be closed.
        if !self.files.options.planted(Bug::SegmentBeforeSync) {
            self.sync()?;
        }
        debug_assert!(!self.is_unsynced || self.files.options.planted(Bug::SegmentBeforeSync));
        let Some(next) = self.files.prepared.get_mut(&number) else { return Err(WriteError::NoSegment) };
        let (written, open) = (next.written, next.open.take());
        let file = open.map_or_else(|| next.file.open(), Ok).map_err(WriteError::NotOpened)?;
        self.files.prepared.remove(&number);
        self.closed = self.closed.max(number + 1);
        let checksum = std::mem::take(&mut self.checksum).finish();
        (self.file, self.number, self.used) = (file, number, written);
        self.write_header(self.written, checksum)?;
        // A record in a file without this page shows that the page was lost afterwards.
        if !self.files.options.planted(Bug::HeaderNotSynced) {
            self.sync()?;
        }
        Ok(())
    }

    /// Marks the segment that is being written as left for the next one, whose file has its name durably.
    fn mark_left(&mut self) -> io::Result<()> {
        self.mark(|marks| marks.is_left = true)
    }

    /// Marks the segment that is being written with the redo point of a durable checkpoint. The mark becomes durable with what follows.
    pub fn mark_checkpoint(&mut self, redo: u64) -> io::Result<()> {
        self.mark(|marks| marks.checkpoint = redo)
    }

    fn mark(&mut self, mark: impl FnOnce(&mut Marks)) -> io::Result<()> {
        let Some(segment) = self.files.segments.get_mut(&self.number) else { return Ok(()) };
        mark(&mut segment.header.marks);
        if let Some(page) = self.scratch.get_mut(..PAGE_SIZE) {
            page.copy_from_slice(&segment.header.encode());
            let write = if self.is_cached { File::write_cached_from } else { File::write_from };
            self.is_unsynced = true;
            write(&*self.file, 0, page)?;
        }
        Ok(())
    }

    /// Notes durably, in the segment before this timeline, that this life is taken back. Returns false if there is no such segment.
    pub fn note_withdrawn(&mut self) -> io::Result<bool> {
        if self.files.options.planted(Bug::WithdrawnUnnoted) {
            return Ok(true);
        }
        let Some((_, former)) = self.files.segments.range_mut(..self.number).next_back() else {
            return Ok(false);
        };
        former.header.marks.withdrawn = self.files.options.life;
        former.header.version = former.header.version.max(WITH_MARKS);
        let mut page = AlignedBuffer::new(PAGE_SIZE);
        page.copy_from_slice(&former.header.encode());
        let file = former.file.open().map_err(io::Error::other)?;
        file.write_from(0, &page)?;
        file.sync()?;
        Ok(true)
    }

    fn write_header(&mut self, previous_end: u64, previous_checksum: u64) -> io::Result<()> {
        let header = SegmentHeader {
            database: self.files.options.database,
            timeline: self.timeline,
            number: self.number,
            segment_bytes: self.files.geometry.segment_bytes,
            previous_end,
            previous_checksum,
            life: self.files.options.life,
            version: FORMAT_VERSION,
            marks: Marks::default(),
        };
        if let Some(page) = self.scratch.get_mut(..PAGE_SIZE) {
            page.copy_from_slice(&header.encode());
            self.file.write_from(0, page)?;
        }
        self.is_unsynced = true;
        self.files.segments.insert(self.number, Segment { header, file: self.file.segment().clone() });
        Ok(())
    }

    /// Copies a part that lies in the segment and fits into the scratch buffer; returns how many bytes to write. The
    /// first page is written from its beginning, the last one with zeroes after the end: what is still being filled
    /// there is not shown to the device. If it `goes_ahead` where the file was never written, more zeroes follow, about
    /// as many bytes as the segment holds: the next syncs there are faster, and a log that remains short costs little.
    fn copy_part(&mut self, ring: &Ring, to: u64, goes_ahead: bool) -> usize {
        let from = self.written - self.written % PAGE;
        let (bytes, offset) = ((to - from) as usize, self.files.geometry.offset(from));
        let mut length = (bytes as u64).next_multiple_of(PAGE);
        if offset + length > self.used {
            let blank = if goes_ahead { offset.clamp(BLANK_BYTES_MIN, PART_BYTES) } else { 0 };
            length = length.max(blank.min(self.files.geometry.segment_bytes - offset));
            self.used = offset + length;
        }
        if let Some((contents, zeroes)) =
            self.scratch.get_mut(..length as usize).and_then(|part| part.split_at_mut_checked(bytes))
        {
            ring.copy_to(from, contents);
            zeroes.fill(0);
        }
        length as usize
    }

    /// Writes `length` bytes of the part that has been copied, up to `to`.
    fn write_part(&mut self, to: u64, length: usize) -> io::Result<()> {
        let from = self.written - self.written % PAGE;
        let offset = self.files.geometry.offset(from);
        let part = self.scratch.get(..length).ok_or(io::ErrorKind::InvalidInput)?;
        let new = (self.written - from) as usize..(to - from) as usize;
        self.checksum.update(part.get(new).unwrap_or_default());
        self.is_unsynced = true;
        if self.is_cached {
            self.file.write_cached_from(offset, part)
        } else {
            self.file.write_from(offset, part)
        }
    }
}
