//! The archive of a log: a directory to which segments are copied before the log gives them up.
//!
//! Each file holds what one segment has from its beginning to its end, or to where the log ended in it. A file is
//! written under another name and renamed when it is durable, so a file that has its final name is complete. Names are
//! in log order. A file says where the log ended before it, so a missing file is noticed.

use crate::{
    ArchiveError, ArchivedPart, Record,
    archive_format::{PREFIX, name_at},
    frame::{FrameHeader, HEADER_BYTES, Kind, seed},
    lives::{LifeEnds, LogLives},
    segment::{EndBefore, salt},
    segment_file::{SegmentFile, file_options, is_missing},
};
use std::{collections::VecDeque, io, sync::Arc, time::Duration};
use vellum_base::primitive::thread;
use vellum_base::{Bytes, ChecksumStream, Lsn, PAGE_SIZE, checksum};
use vellum_vm::{AlignedBuffer, CreateMode, Directory, File, FileOptions, VmError};

/// The name of a file while it is written.
const UNFINISHED: &str = "log.unfinished";
/// How many bytes are read and written at once.
const CHUNK_BYTES: usize = 1 << 20;

/// The archive of the log of one database.
#[derive(Clone)]
pub struct Archive {
    directory: Arc<dyn Directory>,
    database: [u8; 16],
}

/// A segment that is to become a part of an archive.
pub(crate) struct PartSource {
    pub part: ArchivedPart,
    /// The file of the segment.
    pub file: Arc<SegmentFile>,
    /// The checksum that the next segment has of it.
    pub checksum: Option<u64>,
    /// Where the log may have ended before it: in the segment before, or earlier, if nothing was written to that. The
    /// last such place first.
    pub follows: Vec<EndBefore>,
}

impl Archive {
    /// The archive of the log of a database in a directory, which may be empty.
    pub fn new(directory: Arc<dyn Directory>, database: [u8; 16]) -> Self {
        Self { directory, database }
    }

    /// The parts in the archive, in order.
    ///
    /// # Errors
    /// If the directory cannot be read, or a file is damaged or of another database.
    pub fn parts(&self) -> Result<Vec<ArchivedPart>, ArchiveError> {
        self.names()?.iter().map(|name| self.part(name)).collect()
    }

    /// The last part.
    ///
    /// # Errors
    /// As for [`parts`](Self::parts).
    pub fn last(&self) -> Result<Option<ArchivedPart>, ArchiveError> {
        self.names()?.last().map(|name| self.part(name)).transpose()
    }

    /// Reads the records from `from` on, where a record begins or the log once ended.
    ///
    /// # Errors
    /// [`ArchiveError::Missing`] if the archive does not have that place, and as for [`parts`](Self::parts).
    pub fn read(&self, from: Lsn) -> Result<ArchiveReader, ArchiveError> {
        self.read_then(from, Box::new(|_| None))
    }

    /// As [`read`](Self::read), if a record continues beyond the archive: `rest` gives the part of the log from there
    /// on.
    pub(crate) fn read_then(&self, from: Lsn, rest: Rest) -> Result<ArchiveReader, ArchiveError> {
        let mut names: VecDeque<String> = self.names()?.into();
        let first = name_at(from);
        // The last part that begins at or before the place, and those after it.
        names.drain(..names.partition_point(|name| *name <= first).saturating_sub(1));
        let mut next = names.pop_front().map(|name| self.part(&name)).transpose()?;
        let oldest = next.map(|part| part.follows);
        let before = next.filter(|part| part.end <= from);
        let end = before.map(|part| part.end);
        if before.is_some() {
            next = names.pop_front().map(|name| self.part(&name)).transpose()?;
        }
        let is_there = match &next {
            Some(next) => next.follows <= from,
            None => end == Some(from),
        };
        if !is_there {
            return Err(ArchiveError::Missing { from, oldest });
        }
        let (archive, window) = (self.clone(), Vec::new());
        Ok(ArchiveReader {
            archive,
            next,
            names,
            rest,
            at: from,
            end: from,
            salt: 0,
            window,
            is_begun: false,
            before,
            part: None,
            expected: ExpectedLives::default(),
        })
    }

    /// Removes the parts, of a database that is not needed any more.
    ///
    /// # Errors
    /// As for [`parts`](Self::parts), and if a file cannot be removed. Those before it are gone then.
    pub fn remove_parts(&self) -> Result<(), ArchiveError> {
        // The last first: what is left if this is interrupted has no gap.
        for part in self.parts()?.iter().rev() {
            self.directory.remove(&part.name()).map_err(write_error)?;
        }
        self.remove_unfinished()?;
        self.directory.sync().map_err(write_error)
    }

    /// Removes what a failed copy has left, unless another process is writing it.
    fn remove_unfinished(&self) -> Result<(), ArchiveError> {
        let _locked = match self.directory.open(UNFINISHED, &file_options(CreateMode::OpenExisting)) {
            Err(VmError::Locked { .. }) => return Ok(()),
            Err(VmError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        self.directory.remove(UNFINISHED).map_err(write_error)
    }

    /// The names of the parts. They have 16 hexadecimal digits, so their order is that of the log.
    pub(crate) fn names(&self) -> Result<Vec<String>, ArchiveError> {
        let names = self.directory.names().map_err(|source| ArchiveError::Read { source })?;
        let is_part = |name: &String| {
            name.strip_prefix(PREFIX).is_some_and(|digits| {
                digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
            })
        };
        let mut names: Vec<String> = names.into_iter().filter(is_part).collect();
        names.sort_unstable();
        Ok(names)
    }

    pub(crate) fn part(&self, name: &str) -> Result<ArchivedPart, ArchiveError> {
        let mut page = AlignedBuffer::new(PAGE_SIZE);
        let file = self.open(name)?;
        let (size, damaged) =
            (file.size().map_err(read_error)?, || ArchiveError::Damaged { name: name.to_owned() });
        if size < PAGE_SIZE as u64 {
            return Err(damaged());
        }
        file.read_to(0, &mut page).map_err(read_error)?;
        let part = ArchivedPart::decode(name, &page)?;
        if size - (PAGE_SIZE as u64) < part.end.0 - part.start.0 {
            return Err(damaged());
        }
        if part.database != self.database {
            return Err(ArchiveError::Foreign);
        }
        Ok(part)
    }

    pub(crate) fn open(&self, name: &str) -> Result<Arc<dyn File>, ArchiveError> {
        /// A part is locked for a moment after it has got its name.
        const ATTEMPTS: u32 = 200;
        const PAUSE: Duration = Duration::from_millis(1);
        let options = FileOptions { read_only: true, ..file_options(CreateMode::OpenExisting) };
        for _ in 0..ATTEMPTS {
            match self.directory.open(name, &options) {
                Err(VmError::Locked { .. }) => thread::sleep(PAUSE),
                opened => return Ok(opened?),
            }
        }
        Ok(self.directory.open(name, &options)?)
    }

    /// Appends the contents of a part to `window`.
    fn load(&self, part: &ArchivedPart, window: &mut Vec<u8>) -> Result<(), ArchiveError> {
        let file = self.open(&part.name())?;
        let before = window.len();
        append(&*file, part, window).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => ArchiveError::Damaged { name: part.name() },
            _ => read_error(error),
        })?;
        if checksum(window.get(before..).unwrap_or_default()) != part.checksum {
            return Err(ArchiveError::Damaged { name: part.name() });
        }
        Ok(())
    }

    /// Copies a part of the log, durably, after the parts that end at `end`. It replaces a copy that ends earlier.
    pub(crate) fn write(&self, source: &PartSource, end: Option<Lsn>) -> Result<(), ArchiveError> {
        // Then no file is left where nothing is to be added.
        // A listing takes as long as there are parts.
        let check = || {
            let names = self.names()?;
            self.check_end(&names, end).and_then(|()| self.check_source(&names, source))
        };
        check()?;
        let segment = source.file.open().map_err(ArchiveError::Segment)?;
        // Locked until the part has its name. Another process may have added a part until now, and does not from now on.
        let file = self.directory.open(UNFINISHED, &file_options(CreateMode::OpenOrCreate))?;
        let former = check()?;
        let mut part = source.part;
        let follows = end.filter(|end| source.follows_on(*end)).unwrap_or(part.follows);
        part.follows = former.map_or(follows, |former| former.follows);
        let mut page = AlignedBuffer::new(CHUNK_BYTES);
        let mut sum = ChecksumStream::default();
        let bytes = (part.end.0 - part.start.0).next_multiple_of(PAGE_SIZE as u64);
        let grown = file.truncate(0).and_then(|()| file.grow(PAGE_SIZE as u64 + bytes));
        grown.map_err(write_error)?;
        let copied = copy(&*segment, &part, |at, bytes| {
            sum.update(bytes);
            let pages = page.get_mut(..bytes.len().next_multiple_of(PAGE_SIZE)).unwrap_or_default();
            let (target, zeroes) = pages.split_at_mut(bytes.len());
            target.copy_from_slice(bytes);
            zeroes.fill(0);
            file.write_from(PAGE_SIZE as u64 + at, pages)
        });
        copied.map_err(write_error)?;
        part.checksum = sum.finish();
        if source.checksum.is_some_and(|checksum| checksum != part.checksum) {
            return Err(ArchiveError::Source { at: part.start });
        }
        let finish = || {
            let page = page.get_mut(..PAGE_SIZE).unwrap_or_default();
            part.encode(page);
            file.write_from(0, page)?;
            file.sync()?;
            self.directory.rename(UNFINISHED, &part.name())?;
            drop(file);
            self.directory.sync()
        };
        finish().map_err(write_error)
    }

    /// Checks that the archive goes no further than the log did that ended at `log_end` when it was opened, or with what
    /// the log has had since, and holds what the log holds before its end. Returns how far it went before the log was
    /// opened; there may be damaged parts after that. Otherwise the database is an older copy of one that has gone on, or
    /// was itself copied and has gone on.
    pub(crate) fn check(
        &self,
        log_end: Lsn,
        sources: &[PartSource],
        lives: &LogLives,
    ) -> Result<Option<Lsn>, ArchiveError> {
        let (names, log_end_name) = (self.names()?, name_at(log_end));
        let mut left = &names[..];
        // A part that is damaged does not count: it is written again, if the log still has it.
        let last = loop {
            let Some((name, before)) = left.split_last() else { return Ok(None) };
            left = before;
            let source = sources.iter().find(|source| source.part.name() == *name);
            if *name > log_end_name && source.is_none() {
                return Err(ArchiveError::Diverged { name: name.clone() });
            }
            match (self.sound_part(name)?, source) {
                (None, _) => {}
                // A copy of the database wrote it, which had gone on before.
                (Some(part), _) if part.end > part.start && !lives.may_have(part.life) => {
                    return Err(diverged(&part));
                }
                (Some(part), _) if part.end <= log_end => break part,
                // A copy failed when it had made the part, which may not be durable. It is made again.
                (Some(part), Some(source)) if source.begins_with(&part)? => {}
                (Some(part), _) => return Err(diverged(&part)),
            }
        };
        for source in sources.iter().filter(|source| source.part.end <= last.end) {
            self.check_source(&names, source)?;
        }
        // A process that was killed may have left it in the system's cache only.
        self.directory.sync().map_err(write_error)?;
        Ok(Some(last.end))
    }

    /// Checks that what was archived before `end` is there: another directory may be at its path by now, such as the one in
    /// which its file system was mounted.
    fn check_end(&self, names: &[String], end: Option<Lsn>) -> Result<(), ArchiveError> {
        let Some(to) = end else { return Ok(()) };
        let from = match names.last().map(|name| self.sound_part(name)).transpose()? {
            None => None,
            Some(Some(last)) if last.end < to => Some(last.end),
            // One that is damaged says nothing.
            Some(_) => return Ok(()),
        };
        Err(ArchiveError::Replaced { from, to })
    }

    /// Checks that a part of the log begins with what the archive has of it, and lies between the others as the log
    /// says. Returns what the archive has of it.
    pub(crate) fn check_source(
        &self,
        names: &[String],
        source: &PartSource,
    ) -> Result<Option<ArchivedPart>, ArchiveError> {
        let name = source.part.name();
        let at = names.partition_point(|other| *other < name);
        let is_there = names.get(at) == Some(&name);
        let before = at.checked_sub(1).and_then(|before| names.get(before));
        if let Some(before) = before.map_or(Ok(None), |name| self.sound_part(name))?
            && !source.continues(&before)
        {
            return Err(diverged(&before));
        }
        let after = names.get(at + usize::from(is_there));
        if let Some(after) = after.map_or(Ok(None), |name| self.sound_part(name))?
            && after.follows < source.part.end
        {
            return Err(diverged(&after));
        }
        // A part that is damaged is written again.
        let former = if is_there { self.sound_part(&name)? } else { None };
        let Some(former) = former else { return Ok(None) };
        if source.begins_with(&former)? { Ok(Some(former)) } else { Err(diverged(&former)) }
    }

    /// A part, if it is not damaged.
    fn sound_part(&self, name: &str) -> Result<Option<ArchivedPart>, ArchiveError> {
        match self.part(name) {
            Ok(part) => Ok(Some(part)),
            Err(ArchiveError::Damaged { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl PartSource {
    /// Whether the log may have ended before it at a place.
    pub fn follows_on(&self, end: Lsn) -> bool {
        self.follows.iter().any(|former| former.lsn == end)
    }

    /// Whether this part of the log can come after a part of the archive.
    fn continues(&self, before: &ArchivedPart) -> bool {
        let is_of = |former: &EndBefore| may_follow(former, before);
        self.follows.first().is_none_or(|last| before.end <= last.lsn) && self.follows.iter().all(is_of)
    }

    /// Whether it begins with what the archive has of it.
    fn begins_with(&self, former: &ArchivedPart) -> Result<bool, ArchiveError> {
        if former.end > self.part.end {
            return Ok(false);
        }
        if let Some(checksum) = self.checksum.filter(|_| former.end == self.part.end) {
            return Ok(checksum == former.checksum);
        }
        let mut sum = ChecksumStream::default();
        let file = match self.file.open() {
            Ok(file) => file,
            // Somebody has removed it: it does not contradict the archive, from which it may be read instead.
            Err(error) if is_missing(&error) => return Ok(true),
            Err(error) => return Err(ArchiveError::Segment(error)),
        };
        let read = copy(&*file, former, |_, bytes| {
            sum.update(bytes);
            Ok(())
        });
        read.map_err(write_error)?;
        Ok(sum.finish() == former.checksum)
    }
}

/// Whether the log may have ended with a part of the archive, according to the segment after it.
pub(crate) fn may_follow(former: &EndBefore, part: &ArchivedPart) -> bool {
    // If a segment was full where the log ended, its checksum is that of nothing.
    let unknown = [0, checksum(&[])];
    former.lsn != part.end || former.checksum == part.checksum || unknown.contains(&former.checksum)
}

pub(crate) fn diverged(part: &ArchivedPart) -> ArchiveError {
    ArchiveError::Diverged { name: part.name() }
}

/// Gives the contents of a part, after the first page of a file, to `take`, piece by piece.
pub(crate) fn copy(
    file: &dyn File,
    part: &ArchivedPart,
    mut take: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let bytes = part.end.0 - part.start.0;
    let mut buffer = AlignedBuffer::new(CHUNK_BYTES.min(bytes.next_multiple_of(PAGE_SIZE as u64) as usize));
    let mut at = 0;
    while at < bytes {
        let rest = (bytes - at).min(buffer.len() as u64) as usize;
        let pages = buffer.get_mut(..rest.next_multiple_of(PAGE_SIZE)).unwrap_or_default();
        file.read_to(PAGE_SIZE as u64 + at, pages)?;
        take(at, pages.get(..rest).unwrap_or_default())?;
        at += rest as u64;
    }
    Ok(())
}

/// Appends the contents of a part to `window`.
fn append(file: &dyn File, part: &ArchivedPart, window: &mut Vec<u8>) -> io::Result<()> {
    copy(file, part, |_, bytes| {
        window.extend_from_slice(bytes);
        Ok(())
    })
}

/// Gives the part of the log that begins at a place, if the log has it.
pub(crate) type Rest = Box<dyn Fn(Lsn) -> Option<PartSource> + Send + Sync>;

/// Reads the records of an archive in order, one part at a time.
pub struct ArchiveReader {
    archive: Archive,
    /// What is still to be read: the next part, and the names of the later ones.
    next: Option<ArchivedPart>,
    names: VecDeque<String>,
    rest: Rest,
    /// Where the next frame begins, and where the window ends.
    at: Lsn,
    end: Lsn,
    salt: u64,
    window: Vec<u8>,
    /// Whether a part has been loaded.
    is_begun: bool,
    /// The part that ends where it begins to read, or before.
    before: Option<ArchivedPart>,
    /// The part that was loaded last, and where the life ended that wrote it.
    part: Option<(ArchivedPart, Lsn)>,
    expected: ExpectedLives,
}

/// Which lives of the database must have written what a reader begins with.
#[derive(Default)]
struct ExpectedLives {
    /// The lives; none if none is known.
    lives: Vec<u64>,
    /// Where they ended.
    ends: LifeEnds,
    /// What begins before this place must be of one of them.
    before: Lsn,
    /// What follows on an earlier place must be of one of them, too, unless the place is among these, or nothing had been logged at all.
    followed: Option<Vec<Lsn>>,
}

impl ArchiveReader {
    /// From now on, what begins before a place, where the log ended, or follows on an earlier one, must have been written by one of these
    /// lives of the database, each with its beginning, if any is known: otherwise it is the archive of a copy, which may have the same
    /// places. So it is if one has gone on where the next had begun. The log had segments of `segment_bytes`, or none if that is zero.
    ///
    /// # Errors
    /// [`ArchiveError::OtherHistory`] if it was not, here and later.
    pub fn expect_lives(
        &mut self,
        before: Lsn,
        lives: &[(Lsn, u64)],
        segment_bytes: u64,
    ) -> Result<(), ArchiveError> {
        // A log that ended where a segment begins, of whatever size, may have had nothing in it. Then a later life may follow on what was
        // before.
        let (mut end, mut followed) = (before, Vec::new());
        for (begin, _) in lives.iter().rev() {
            if !end.0.is_multiple_of(PAGE_SIZE as u64) {
                break;
            }
            followed.push(*begin);
            end = *begin;
        }
        let followed = (segment_bytes > 0).then_some(followed);
        let numbers = lives.iter().map(|(_, number)| *number).collect();
        self.expected = ExpectedLives { lives: numbers, ends: LifeEnds::of(lives), before, followed };
        self.before.map_or(Ok(()), |part| self.check_life(&part))
    }

    fn check_life(&self, part: &ArchivedPart) -> Result<(), ArchiveError> {
        let ExpectedLives { lives, before, followed, .. } = &self.expected;
        let is_known = |followed: &Vec<Lsn>| part.follows >= *before || followed.contains(&part.follows);
        let is_early = part.start < *before || !followed.as_ref().is_none_or(is_known);
        let is_other = is_early && lives.iter().all(|life| part.is_of_another_life(*life));
        if is_other && !lives.is_empty() {
            return Err(ArchiveError::OtherHistory { name: part.name() });
        }
        Ok(())
    }

    /// The next record; `None` at the end of the archive, also if that lies inside a record.
    ///
    /// # Errors
    /// If a part is missing or damaged, or cannot be read.
    #[expect(clippy::should_implement_trait, reason = "the record borrows from the reader")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, ArchiveError> {
        loop {
            let Some(header) = self.frame()? else {
                if !self.load_part()? {
                    return Ok(None);
                }
                continue;
            };
            let lsn = self.at;
            self.at = Lsn(lsn.0 + header.bytes());
            if header.kind == Kind::Record {
                if let Some((part, _)) = self.part.filter(|(_, life_end)| lsn >= *life_end) {
                    return Err(ArchiveError::OtherHistory { name: part.name() });
                }
                let from = self.window.len() - (self.end.0 - lsn.0) as usize + HEADER_BYTES;
                let payload = self.window.get(from..from + header.payload_bytes).unwrap_or_default();
                return Ok(Some(Record { lsn, payload }));
            }
        }
    }

    /// Whether it is to begin where the log has nothing: after the place where it ended, and before the one where it went on.
    pub(crate) fn begins_between(&self) -> bool {
        self.next.is_some_and(|next| next.follows < self.at && self.at < next.start)
    }

    /// Where the next record begins, or the archive ends.
    pub fn at(&self) -> Lsn {
        self.at
    }

    /// Up to where the archive has been read: at its end this is where it ends, perhaps inside the record that begins at
    /// [`at`](Self::at).
    pub fn end(&self) -> Lsn {
        self.end
    }

    /// The archive.
    pub(crate) fn archive(&self) -> &Archive {
        &self.archive
    }

    /// The frame at the current place; `None` if the window does not have all of it.
    fn frame(&self) -> Result<Option<FrameHeader>, ArchiveError> {
        let rest = (self.end.0 - self.at.0) as usize;
        let bytes = self.window.get(self.window.len() - rest..).unwrap_or_default();
        let Some((head, behind)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let damaged = || ArchiveError::Record { at: self.at };
        let words = [head.as_slice().u64_at(0), head.as_slice().u64_at(8)];
        let header = FrameHeader::decode(words).ok_or_else(damaged)?;
        if (rest as u64) < header.bytes() {
            return Ok(None);
        }
        let payload = behind.get(..header.payload_bytes).unwrap_or_default();
        if header.verify(seed(self.salt, self.at.0), payload) { Ok(Some(header)) } else { Err(damaged()) }
    }

    /// Loads the next part; false if there is none.
    fn load_part(&mut self) -> Result<bool, ArchiveError> {
        let rest = (self.end.0 - self.at.0) as usize;
        let mut next = match self.next.take() {
            Some(next) => Some(next),
            None => self.names.pop_front().map(|name| self.archive.part(&name)).transpose()?,
        };
        if next.is_none() && rest > 0 {
            let live = (self.rest)(self.end).map(|live| Ok((live.file.open()?, live)));
            // A log that was removed, or a file of it, does not have it any more.
            let live = live.filter(|live| !live.as_ref().is_err_and(is_missing)).transpose();
            if let Some((file, live)) = live.map_err(ArchiveError::Segment)? {
                self.window.drain(..self.window.len() - rest);
                append(&*file, &live.part, &mut self.window).map_err(read_error)?;
                self.end = live.part.end;
                return Ok(true);
            }
            // It may have been archived, and given up, just now.
            let name = name_at(self.end);
            let is_archived = self.archive.names()?.contains(&name);
            next = is_archived.then(|| self.archive.part(&name)).transpose()?;
        }
        // A segment that is full is archived whole, and most of them end inside a record. The rest of the last one was
        // not archived yet.
        let Some(part) = next else { return Ok(false) };
        // Where the log ended, it ended with a whole record.
        if rest > 0 && part.start != self.end {
            return Err(match part.follows == self.end {
                false => ArchiveError::Gap { from: self.end, to: part.start },
                true => ArchiveError::Record { at: self.at },
            });
        }
        if self.is_begun && part.follows != self.end {
            return Err(ArchiveError::Gap { from: self.end, to: part.start });
        }
        self.check_life(&part)?;
        self.is_begun = true;
        self.window.drain(..self.window.len() - rest);
        self.archive.load(&part, &mut self.window)?;
        self.salt = salt(part.database, part.timeline);
        self.at = if rest > 0 { self.at } else { self.at.max(part.start) };
        (self.end, self.part) = (part.end, Some((part, self.expected.ends.end(part.life))));
        Ok(true)
    }
}

fn read_error(source: io::Error) -> ArchiveError {
    ArchiveError::Read { source }
}

fn write_error(source: io::Error) -> ArchiveError {
    ArchiveError::Write { source }
}
