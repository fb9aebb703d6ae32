//! Reads the log: its records in order, to where it ends; and tells an end from a hole.
//!
//! The log is a sequence of *timelines*: one ends where reading ended after a crash, and the next begins in a new
//! segment, which says where that was. So all timelines but the last have a known end, and records must reach it
//! exactly. The end of the last one is the first place that has no record of it: what was written after the last sync
//! may be there in part. That place is not the end but a hole, and an error, if part of the log before or after it
//! shows that the log was durable beyond it:
//! - a segment is begun only when the one before is durable;
//! - each record says up to where the log was durable when it was made;
//! - a file has its full size before it is a segment, so a shorter one was cut.

use crate::{
    LogError, LogOptions,
    buffer_damage::BufferDamage,
    files::{LogFiles, Segment, read_header},
    frame::{ALIGNMENT, FrameHeader, HEADER_BYTES, Kind, frame_bytes},
    previous_end::PreviousEnd,
    read_ahead::{Chunk, ReadAhead},
    segment::{Geometry, HeaderPage, name},
    segment_file::{OpenSegment, SegmentFile},
    tail::Tail,
    window::Window,
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};
use vellum_base::{ChecksumStream, Lsn, PAGE_SIZE};
use vellum_vm::{Directory, OverlayDirectory};

/// How many bytes are read at once.
const CHUNK_BYTES: u64 = 1 << 20;

/// A record of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'r> {
    /// Where the record begins; this names the record.
    pub lsn: Lsn,
    /// The contents of the record.
    pub payload: &'r [u8],
}

impl Record<'_> {
    /// Where the next record begins, or the log once ended.
    pub fn end(&self) -> Lsn {
        Lsn(self.lsn.0 + frame_bytes(self.payload.len()))
    }
}

/// A part of the log that was written without a crash in between.
struct Timeline {
    number: u64,
    salt: u64,
    /// The first LSN of its segments that are there, and the first LSN of its last segment.
    begin: u64,
    last_segment: u64,
    /// Where it ends, and the checksum of what its segment holds up to there; unknown for the last timeline.
    end: Option<(u64, u64)>,
}

/// Reads the records of a log in order. As long as it exists, the files that it is still to read are not overwritten. Only
/// the one that it reads now is open.
pub struct LogReader {
    options: LogOptions,
    geometry: Geometry,
    /// The segments from the one of this place on.
    segments: BTreeMap<u64, Segment>,
    /// Files beyond the segments, if a log is read that is not open.
    idle: BTreeMap<u64, Arc<SegmentFile>>,
    open: Option<Arc<OpenSegment>>,
    /// The timelines that are still to be read, the current one first.
    timelines: VecDeque<Timeline>,
    /// Where the next frame begins, and where the segment of that place ends.
    at: u64,
    segment_end: u64,
    /// Up to where this timeline was durable, according to its records.
    durable: u64,
    /// The checksum of what the segment holds up to `summed`, if all of that was read. It lags: only many bytes at once
    /// are fast.
    checksum: ChecksumStream,
    summed: u64,
    is_checked: bool,
    /// Whether another life than those of this database has written the segment of that place.
    is_of_another: bool,
    /// Where the life ended that has written it.
    life_end: u64,
    /// Whether segments that are read completely are checked, too.
    checks: bool,
    /// What has been read, and what is being read.
    window: Window,
    ahead: Option<ReadAhead>,
    /// Nothing is read from here on.
    until: u64,
    /// Whether the log has ended, and what lies after its end is being examined.
    is_beyond_end: bool,
    /// The buffer, which may have what the segments lack.
    tail: Option<Tail>,
    /// A planted bug.
    pub(crate) ends_at_holes: bool,
}

impl LogReader {
    /// Reads from `from` on, where a record begins or the log once ended; from the beginning of what is there if it is
    /// zero.
    pub(crate) fn new(files: &LogFiles, from: Lsn) -> Result<Self, LogError> {
        Self::begin(files, (from > Lsn(0)).then_some(from), timelines(files), true)
    }

    /// Reads the log in a directory from `from` on, where a record begins or the log once ended. Changes nothing there.
    ///
    /// # Errors
    /// As for [`Log::open`](crate::Log::open).
    pub fn open(directory: Arc<dyn Directory>, options: &LogOptions, from: Lsn) -> Result<Self, LogError> {
        // What a killed process has left in its buffer is written in memory only.
        let directory: Arc<dyn Directory> = Arc::new(OverlayDirectory::over(directory));
        let files = LogFiles::open(&directory, options)?;
        let from = Self::after_blank(&files, from);
        Self::with_tail(Tail::find(directory, files)?, from)
    }

    /// Reads from `from` on, as [`new`](Self::new), and also what the buffer has and the segments lack.
    pub(crate) fn with_tail(tail: Tail, from: Lsn) -> Result<Self, LogError> {
        let reader = Self::new(&tail.files, from)?;
        Ok(Self { idle: tail.files.idle.clone(), tail: Some(tail), ..reader })
    }

    /// The files, with what was taken from the buffer.
    pub(crate) fn into_files(self) -> Option<LogFiles> {
        self.tail.map(|tail| tail.files)
    }

    /// Reads from `from` up to `to`, as [`range`](Self::range), but zero is a place like any other. What lies before
    /// `from` in the segment is not read, so its checksum is not compared.
    pub(crate) fn follow(files: &LogFiles, from: Lsn, to: Lsn) -> Result<Self, LogError> {
        let (from, oldest) = (Self::after_blank(files, from), files.whole_from());
        if from < oldest {
            return Err(LogError::Missing { from, oldest });
        }
        Ok(Self { until: to.0, ..Self::begin(files, Some(from), timelines(files), false)? })
    }

    /// Where the log continues if it ended at `from`: nothing before that place need be there.
    fn after_blank(files: &LogFiles, from: Lsn) -> Lsn {
        let begins = |(number, segment): (&u64, &Segment)| {
            let start = files.geometry.start(*number);
            (segment.header.previous_end == from.0 && start > from.0).then_some(Lsn(start))
        };
        files.segments.iter().find_map(begins).unwrap_or(from)
    }

    /// Reads from `from` up to `to`, where a record begins or the log once ended, and before which all is durable.
    pub(crate) fn range(files: &LogFiles, from: Lsn, to: Lsn) -> Result<Self, LogError> {
        Ok(Self { until: to.0, ..Self::new(files, from)? })
    }

    /// Reads again, from `from` up to where `timeline` begins; what lies before `from` in the segment is not read.
    pub(crate) fn again(files: &LogFiles, from: Lsn, timeline: u64) -> Result<Self, LogError> {
        let mut timelines = timelines(files);
        timelines.retain(|read| read.number < timeline);
        // In a second reading the checksum of each record suffices.
        let from = (from > Lsn(0)).then_some(from);
        Ok(Self { checks: false, ..Self::begin(files, from, timelines, false)? })
    }

    fn begin(
        files: &LogFiles,
        from: Option<Lsn>,
        mut timelines: VecDeque<Timeline>,
        is_checked: bool,
    ) -> Result<Self, LogError> {
        let oldest = timelines.front().map_or(0, |timeline| timeline.begin);
        let at = from.map_or(oldest, |from| from.0);
        while timelines.get(1).is_some_and(|next| next.begin <= at) {
            timelines.pop_front();
        }
        let is_there = timelines
            .front()
            .is_some_and(|timeline| timeline.begin <= at && timeline.end.is_none_or(|(end, _)| at <= end));
        if let Some(from) = from.filter(|_| !is_there) {
            return Err(LogError::Missing { from, oldest: Lsn(oldest) });
        }
        let mut reader = Self {
            options: files.options.clone(),
            geometry: files.geometry,
            segments: files.segments.clone(),
            idle: BTreeMap::new(),
            open: None,
            timelines,
            at: 0,
            segment_end: 0,
            is_checked,
            is_of_another: false,
            life_end: u64::MAX,
            checks: true,
            durable: 0,
            checksum: ChecksumStream::default(),
            summed: 0,
            window: Window::new(CHUNK_BYTES.min(files.geometry.segment_bytes) as usize),
            ahead: None,
            until: u64::MAX,
            is_beyond_end: false,
            tail: None,
            ends_at_holes: false,
        };
        reader.go_to(if is_checked { files.geometry.start(files.geometry.number(at)) } else { at });
        while reader.at < at {
            let bytes = (at - reader.at).min(CHUNK_BYTES);
            if !reader.load(reader.at, bytes as usize)? {
                return Err(LogError::Hole { at: Lsn(reader.at), durable: Lsn(at) });
            }
            reader.advance(bytes)?;
        }
        Ok(reader)
    }

    /// The next record; `None` at the end of the log.
    ///
    /// # Errors
    /// [`LogError::Hole`] if the log was durable beyond where it ends now; and if the log cannot be read.
    #[expect(clippy::should_implement_trait, reason = "the record borrows from the reader")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, LogError> {
        loop {
            let Some(timeline) = self.timelines.front() else { return Ok(None) };
            let (salt, end, at) = (timeline.salt, timeline.end, self.at);
            if at >= self.until {
                return Ok(None);
            }
            if let Some((_, checksum)) = end.filter(|(end, _)| *end == at) {
                self.leave_timeline(checksum)?;
                continue;
            }
            let header = self.frame_at(at, salt)?;
            let Some(header) = header.filter(|header| end.is_none_or(|(end, _)| at + header.bytes() <= end))
            else {
                if self.go_on_in_tail()? {
                    continue;
                }
                self.check_end()?;
                return Ok(None);
            };
            if (self.is_of_another || at >= self.life_end) && header.kind == Kind::Record {
                return Err(self.other_life());
            }
            self.durable = self.durable.max(header.durable(at));
            self.advance(header.bytes())?;
            if header.kind == Kind::Record {
                let payload = self.window.get(at + HEADER_BYTES as u64, header.payload_bytes);
                return Ok(Some(Record { lsn: Lsn(at), payload: payload.unwrap_or_default() }));
            }
        }
    }

    /// Why the record at this place is not read.
    #[cold]
    fn other_life(&self) -> LogError {
        let number = self.geometry.number(self.at);
        let life = self.segments.get(&number).map_or(0, |segment| segment.header.life);
        let known = self.options.readable.last();
        LogError::OtherLife { file: name(number), at: Lsn(self.at), life, known }
    }

    /// Where the log ends, once all of it has been read.
    pub fn end(&self) -> Lsn {
        Lsn(self.at)
    }

    /// What is wrong with the buffer, once all of the log has been read.
    pub(crate) fn buffer_damage(&self) -> Option<BufferDamage> {
        self.tail.as_ref()?.buffer_damage()
    }

    /// Whether the buffer has what follows on the segments. If so, the segments have it too after this.
    fn go_on_in_tail(&mut self) -> Result<bool, LogError> {
        let is_last = self.timelines.len() == 1;
        let Some(end) = self.previous_end().filter(|_| is_last) else { return Ok(false) };
        let Some(mut tail) = self.tail.take() else { return Ok(false) };
        let has_written = tail.write(end);
        if matches!(has_written, Ok(true)) {
            self.segments = tail.files.segments.clone();
            self.idle = tail.files.idle.clone();
            let last = self.segments.keys().next_back().map_or(0, |number| self.geometry.start(*number));
            self.timelines.iter_mut().for_each(|timeline| timeline.last_segment = last);
            // What was read of their places must be read again.
            self.window.move_to(u64::MAX);
            self.ahead = None;
        }
        self.tail = Some(tail);
        has_written
    }

    /// What the next timeline must know of the log, all of which has been read.
    pub(crate) fn previous_end(&mut self) -> Option<PreviousEnd> {
        self.sum_up();
        let last = self.timelines.front()?;
        // A segment is begun only when the one before is durable.
        let durable = self.durable.max(last.last_segment);
        Some(PreviousEnd { lsn: self.at, durable, checksum: self.checksum.finish() })
    }

    /// The frame at a place, if the timeline has one there; its bytes are then in the window.
    fn frame_at(&mut self, at: u64, salt: u64) -> Result<Option<FrameHeader>, LogError> {
        let seed = self.options.seed(salt, at);
        loop {
            let mut wanted = HEADER_BYTES;
            let bytes = self.window.from(at);
            if let Some((words, body)) = bytes.split_first_chunk() {
                let Some(header) = FrameHeader::from_bytes(words) else { return Ok(None) };
                wanted = header.bytes() as usize;
                if let Some(payload) = body.get(..header.payload_bytes).filter(|_| bytes.len() >= wanted) {
                    return Ok(header.verify(seed, payload).then_some(header));
                }
            }
            if !self.load(at, wanted)? {
                return Ok(None);
            }
        }
    }

    /// The bytes at a place, read as the header of a frame.
    fn header_at(&mut self, at: u64) -> Result<Option<FrameHeader>, LogError> {
        let there = self.load(at, HEADER_BYTES)?;
        let bytes = self.window.from(at).first_chunk().filter(|_| there);
        Ok(bytes.and_then(FrameHeader::from_bytes))
    }

    /// Moves on by `bytes`, which are in the window.
    fn advance(&mut self, bytes: u64) -> Result<(), LogError> {
        let end = self.at + bytes;
        while end >= self.segment_end {
            self.go_on_to(self.segment_end);
            let checksum = std::mem::take(&mut self.checksum).finish();
            if std::mem::replace(&mut self.is_checked, self.checks) {
                self.check_segment(self.at, checksum)?;
            }
        }
        self.at = end;
        Ok(())
    }

    /// Moves on to `at` within the window.
    fn go_on_to(&mut self, at: u64) {
        self.at = at;
        self.sum_up();
        self.go_to(at);
    }

    /// Notes that the next frame begins at `at`.
    fn go_to(&mut self, at: u64) {
        (self.at, self.summed) = (at, at);
        let number = self.geometry.number(at);
        self.segment_end = self.geometry.start(number + 1);
        self.segments = self.segments.split_off(&number);
        let start = self.geometry.start(number);
        let life = self.segments.get(&number).map_or(0, |segment| segment.header.life);
        self.is_of_another = life != self.options.life && self.options.readable.refuse(life, start);
        self.life_end = self.options.readable.end(life);
    }

    /// Adds what was passed to the checksum.
    fn sum_up(&mut self) {
        if self.is_checked {
            let bytes = self.window.get(self.summed, (self.at - self.summed) as usize);
            self.checksum.update(bytes.unwrap_or_default());
        }
        self.summed = self.at;
    }

    /// Checks that the segment that begins at `at` follows on the one that has just been read.
    fn check_segment(&self, at: u64, checksum: u64) -> Result<(), LogError> {
        let next = self.segment_of(at).map(|segment| segment.header);
        match next.filter(|next| (next.previous_end, next.previous_checksum) != (at, checksum)) {
            Some(_) => Err(LogError::Hole { at: Lsn(at), durable: Lsn(at) }),
            None => Ok(()),
        }
    }

    /// Continues where the next timeline begins.
    fn leave_timeline(&mut self, checksum: u64) -> Result<(), LogError> {
        self.sum_up();
        // A log that was begun after a close does not know the checksum.
        if std::mem::replace(&mut self.is_checked, self.checks)
            && checksum != 0
            && self.checksum.finish() != checksum
        {
            return Err(LogError::Hole { at: Lsn(self.at), durable: Lsn(self.at) });
        }
        self.timelines.pop_front();
        self.durable = 0;
        self.checksum = ChecksumStream::default();
        self.window.move_to(u64::MAX);
        self.go_to(self.timelines.front().map_or(self.at, |next| next.begin));
        Ok(())
    }

    /// Checks whether the log may end here, where there is no record.
    fn check_end(&mut self) -> Result<(), LogError> {
        let Some(timeline) = self.timelines.front() else { return Ok(()) };
        let (at, salt, last_segment, end) = (self.at, timeline.salt, timeline.last_segment, timeline.end);
        let durable = match end {
            Some((end, _)) => Some(end),
            // A file has its full size before it is a segment, so it was cut, and may have had more.
            None if self.is_cut(at)? => Some(at),
            None if at < last_segment && !self.reaches_beyond(at, last_segment)? => Some(last_segment),
            None => self.durable_beyond(at, salt, last_segment)?,
        };
        let durable = durable.filter(|_| !self.ends_at_holes);
        match durable {
            Some(durable) => Err(LogError::Hole { at: Lsn(at), durable: Lsn(durable) }),
            None => {
                self.check_next_header(at, salt)?;
                self.tail.as_ref().map_or(Ok(()), Tail::check_later)
            }
        }
    }

    /// Checks that no record from `at` on, where the log ends, is whole in a file without a first page. Before anything is written to
    /// a segment its first page is durable, so it was lost afterwards.
    fn check_next_header(&mut self, at: u64, salt: u64) -> Result<(), LogError> {
        // Those of the reader begin with the one of this place.
        let last = self.tail.as_ref().and_then(|tail| tail.files.segments.last_key_value());
        let Some((last, segment)) = last else { return Ok(()) };
        let (next, is_durable) = (last + 1, segment.header.is_followed_by_durable_header());
        // One that a long record passes over.
        if let Some(lost) =
            (self.geometry.number(at)..next).find(|number| !self.segments.contains_key(number))
        {
            return Err(LogError::HeaderLost { segment: name(lost) });
        }
        self.is_beyond_end = true;
        if !is_durable || !self.has_frame_in(next, at, salt)? {
            return Ok(());
        }
        let Some(file) = self.idle.get(&next) else { return Ok(()) };
        let page = read_header(&*file.open_at(Lsn(at))?).map_err(|source| file.not_read(source))?;
        match page {
            // The log is being written, and the segment was begun after the files were looked through.
            HeaderPage::Sound(header) if header.number == next => Ok(()),
            _ => Err(LogError::HeaderLost { segment: name(next) }),
        }
    }

    /// Whether one of the consecutive frames from `at` on has something in segment `next`. Zeroes are nothing: they may have been
    /// there before, and so complete a frame of which only the first part was written.
    fn has_frame_in(&mut self, next: u64, mut at: u64, salt: u64) -> Result<bool, LogError> {
        let start = self.geometry.start(next);
        while let Some(header) = self.frame_at(at, salt)? {
            let end = at + header.bytes();
            let from = at.max(start);
            let there = self.window.get(from, end.saturating_sub(from) as usize);
            if there.is_some_and(|bytes| bytes.iter().any(|byte| *byte != 0)) {
                return Ok(true);
            }
            at = end;
        }
        Ok(false)
    }

    /// Whether a file is shorter than a segment that holds a place, or the rest of the incomplete frame there, or would if
    /// it had a header.
    fn is_cut(&mut self, at: u64) -> Result<bool, LogError> {
        let bytes = self.header_at(at)?.map_or(1, |header| header.bytes());
        for number in self.geometry.number(at)..=self.geometry.number(at + bytes - 1) {
            let file = self.segments.get(&number).map(|segment| &segment.file);
            let Some(file) = file.or_else(|| self.idle.get(&number)) else { continue };
            if file.open_at(Lsn(at))?.size().map_err(|source| file.not_read(source))?
                < self.geometry.segment_bytes
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the incomplete frame at `at` ends after the beginning of the last segment: its first part was durable
    /// when that segment was begun, but the rest need not have been.
    fn reaches_beyond(&mut self, at: u64, last_segment: u64) -> Result<bool, LogError> {
        Ok(self.header_at(at)?.is_some_and(|header| at + header.bytes() > last_segment))
    }

    /// The place beyond `at` up to which the log was durable according to a record after `at`, if there is one.
    fn durable_beyond(&mut self, at: u64, salt: u64, last_segment: u64) -> Result<Option<u64>, LogError> {
        // The segment after the last one may have lost its header.
        self.is_beyond_end = true;
        let end = last_segment + 2 * self.geometry.payload();
        for place in (at + ALIGNMENT..end).step_by(ALIGNMENT as usize) {
            if !self.load(place, HEADER_BYTES)? {
                break;
            }
            let durable = self.header_at(place)?.map_or(0, |header| header.durable(place));
            if durable > at && self.frame_at(place, salt)?.is_some() {
                return Ok(Some(durable));
            }
        }
        Ok(None)
    }

    /// Brings bytes of the log into the window; false if the segments do not have them.
    #[inline]
    fn load(&mut self, at: u64, bytes: usize) -> Result<bool, LogError> {
        if self.window.get(at, bytes).is_some() { Ok(true) } else { self.load_chunks(at, bytes) }
    }

    fn load_chunks(&mut self, at: u64, bytes: usize) -> Result<bool, LogError> {
        self.sum_up();
        self.window.move_to(at);
        while self.window.get(at, bytes).is_none() {
            if !self.load_chunk(self.window.end())? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Adds the next chunk to the window; false if no segment has it.
    fn load_chunk(&mut self, at: u64) -> Result<bool, LogError> {
        let Some(chunk) = self.chunk_at(at)? else { return Ok(false) };
        // A short log has only one chunk.
        let goes_on = self.window.has_read();
        let segment = chunk.file.segment().clone();
        let failed = |source| segment.not_read(source);
        let ahead = self.ahead.take().and_then(|ahead| ahead.finish(&chunk));
        let (room, read) = ahead.unwrap_or_else(|| chunk.read(self.window.room_for(chunk.bytes)));
        match read {
            Ok(()) => self.window.follow(room, chunk.bytes, chunk.passed_over),
            // The file was cut. What is left of it counts.
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                let Some(chunk) = chunk.left().map_err(failed)? else { return Ok(false) };
                let (room, read) = chunk.read(room);
                read.map_err(failed)?;
                self.window.follow(room, chunk.bytes, chunk.passed_over);
            }
            Err(source) => return Err(failed(source)),
        }
        if goes_on && self.until == u64::MAX && !self.is_beyond_end {
            // What cannot be opened is no error before it is needed.
            let next = self.chunk_at(self.window.end()).ok().flatten();
            self.ahead = next.and_then(|next| ReadAhead::begin(next, self.window.room()));
        }
        Ok(true)
    }

    /// The chunk to read from `at` on; `None` if no segment has it.
    fn chunk_at(&mut self, at: u64) -> Result<Option<Chunk>, LogError> {
        let Some(file) = self.file_of(at).cloned() else { return Ok(None) };
        let file = self.open_file(&file, at)?;
        let offset = self.geometry.offset(at);
        let from = offset - offset % PAGE_SIZE as u64;
        let passed_over = (offset - from) as usize;
        // No more than requested: a feed reads the log again and again as it grows.
        let wanted = self.until.saturating_sub(at).max(1).saturating_add(offset - from);
        let wanted = wanted.min(self.window.chunk_bytes() as u64).next_multiple_of(PAGE_SIZE as u64);
        let bytes = wanted.min(self.geometry.segment_bytes - from) as usize;
        Ok(Some(Chunk { file, from, bytes, passed_over }))
    }

    /// The file that holds a place, open instead of the one that was read before.
    fn open_file(&mut self, file: &Arc<SegmentFile>, at: u64) -> Result<Arc<OpenSegment>, LogError> {
        match self.open.take_if(|open| Arc::ptr_eq(open.segment(), file)) {
            Some(open) => Ok(self.open.insert(open).clone()),
            None => Ok(self.open.insert(Arc::new(file.open_at(Lsn(at))?)).clone()),
        }
    }

    /// The segment that holds a place of the current timeline.
    fn segment_of(&self, at: u64) -> Option<&Segment> {
        let timeline = self.timelines.front()?.number;
        let segment = self.segments.get(&self.geometry.number(at))?;
        (segment.header.timeline == timeline).then_some(segment)
    }

    /// The file that holds a place of the current timeline; after its end also the one that would, if it had a header.
    fn file_of(&self, at: u64) -> Option<&Arc<SegmentFile>> {
        let idle = || self.idle.get(&self.geometry.number(at)).filter(|_| self.is_beyond_end);
        self.segment_of(at).map(|segment| &segment.file).or_else(idle)
    }
}

/// The timelines of a log, in order. A missing segment is noticed when records do not reach the next timeline.
fn timelines(files: &LogFiles) -> VecDeque<Timeline> {
    let mut timelines = VecDeque::<Timeline>::new();
    for (number, Segment { header, .. }) in &files.segments {
        let begin = files.geometry.start(*number);
        if let Some(last) = timelines.back_mut() {
            if last.number == header.timeline {
                last.last_segment = begin;
                continue;
            }
            last.end = Some((header.previous_end, header.previous_checksum));
        }
        let (number, salt) = (header.timeline, header.salt());
        timelines.push_back(Timeline { number, salt, begin, last_segment: begin, end: None });
    }
    timelines
}
