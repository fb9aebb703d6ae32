//! The files of a log, as found when it is opened.

use crate::{
    LogError, LogOptions,
    frame::FrameHeader,
    options::is_segment_size,
    plant::Bug,
    segment::{Geometry, HeaderPage, SegmentHeader, UNFINISHED, is_segment, name, number_of},
    segment_file::{OpenSegment, SegmentFile, file_options, is_missing},
};
use std::{collections::BTreeMap, io, sync::Arc};
use vellum_base::{Lsn, PAGE_SIZE};
use vellum_vm::{AlignedBuffer, CreateMode, Directory, File, VmError, is_full};

const PAGE: u64 = PAGE_SIZE as u64;
/// A sync of newly allocated bytes takes about 50 us more than one of bytes that were written before; in that time a
/// device writes about this many bytes. So writing them twice pays if syncs bring no more than that, and not in a log
/// that is not synced.
pub(crate) const FEW_BYTES: u64 = 16 << 10;

/// A segment that has been begun.
#[derive(Clone)]
pub(crate) struct Segment {
    pub header: SegmentHeader,
    pub file: Arc<SegmentFile>,
}

/// A file that has been made for a segment.
pub(crate) struct Made {
    pub file: OpenSegment,
    /// Up to where it has been written before. The part that was allocated and never written is synced more slowly.
    pub written: u64,
}

/// A file for one of the next segments.
pub(crate) struct Prepared {
    pub file: Arc<SegmentFile>,
    /// The same file, if it is open.
    pub open: Option<OpenSegment>,
    /// As of [`Made`].
    pub written: u64,
}

/// All files of a log.
pub(crate) struct LogFiles {
    pub options: LogOptions,
    pub geometry: Geometry,
    /// By number.
    pub segments: BTreeMap<u64, Segment>,
    /// Files for the next segments.
    pub prepared: BTreeMap<u64, Prepared>,
    /// Files of segments that were not begun or are no longer needed, by the number in their names.
    pub idle: BTreeMap<u64, Arc<SegmentFile>>,
    /// What idle files say that they are: they have the names of other segments. Most were to become those.
    pub named_otherwise: BTreeMap<u64, SegmentHeader>,
    /// Files of segments that have been given up, and may still be read: they keep their names so long.
    given_up: BTreeMap<u64, Arc<SegmentFile>>,
    /// Files that may have something that is not durable: the last segment, as it was found, and what was written since.
    pub unsynced: Vec<OpenSegment>,
    /// The latest timeline of the segments that were found; 0 if there were none.
    pub timeline_max: u64,
    /// How many segments are begun between two times that some are given up, as an estimate.
    pace: Pace,
}

/// How fast segments are used.
#[derive(Default)]
struct Pace {
    /// The last segment when some were last given up.
    last: Option<u64>,
    /// About how many are begun between two such times.
    segments: usize,
}

impl Pace {
    /// Notes that some are given up while `last` is the last segment. A faster pace counts at once, a slower one
    /// gradually: a log that was long does not keep files for ever, and a busy one need not create new ones.
    fn note(&mut self, last: u64) {
        /// The fraction by which the estimate approaches a slower pace.
        const STEP: usize = 4;
        if let Some(before) = self.last.replace(last) {
            let begun = usize::try_from(last.saturating_sub(before)).unwrap_or(usize::MAX);
            self.segments = begun.max(self.segments - self.segments.saturating_sub(begun).div_ceil(STEP));
        }
    }
}

impl LogFiles {
    /// Finds all files of a log; changes nothing. Of the segments only the last one stays open.
    pub fn open(directory: &Arc<dyn Directory>, options: &LogOptions) -> Result<Self, LogError> {
        options.check()?;
        let mut files = Self {
            options: options.clone(),
            geometry: Geometry { segment_bytes: options.segment_bytes },
            segments: BTreeMap::new(),
            prepared: BTreeMap::new(),
            idle: BTreeMap::new(),
            named_otherwise: BTreeMap::new(),
            given_up: BTreeMap::new(),
            unsynced: Vec::new(),
            timeline_max: 0,
            pace: Pace::default(),
        };
        for (number, name) in names_of(&**directory)? {
            files.take(SegmentFile::new(directory, number), number, name)?;
        }
        if let Some((_, last)) = files.segments.last_key_value() {
            files.geometry.segment_bytes = last.header.segment_bytes;
        }
        let foreign = |segment: &&Segment| segment.header.segment_bytes != files.geometry.segment_bytes;
        match files.segments.values().find(foreign) {
            Some(segment) => Err(LogError::Foreign { segment: name(segment.header.number) }),
            None => Ok(files),
        }
    }

    fn take(&mut self, file: Arc<SegmentFile>, number: u64, name: String) -> Result<(), LogError> {
        let open = file.open()?;
        match read_header(&*open).map_err(|source| file.not_read(source))? {
            HeaderPage::Sound(header) if header.number == number => {
                if header.database != self.options.database || !is_segment_size(header.segment_bytes) {
                    return Err(LogError::Foreign { segment: name });
                }
                self.timeline_max = self.timeline_max.max(header.timeline);
                self.segments.insert(number, Segment { header, file });
                // Numbers come in order. All before the last segment was durable when that was begun.
                self.unsynced = vec![open];
            }
            HeaderPage::Version(version) => return Err(LogError::Version { version }),
            // A damaged header was being written when the process ended. If it has changed since, the reader finds that
            // the contents of the segment were durable.
            page @ (HeaderPage::Sound(_) | HeaderPage::None | HeaderPage::Damaged) => {
                if let HeaderPage::Sound(header) = page {
                    self.named_otherwise.insert(number, header);
                }
                self.idle.insert(number, file);
            }
        }
        Ok(())
    }

    /// The place from which on no segment is missing. Of what was given up before, a crash may leave some files and not the
    /// ones that followed on them.
    pub fn whole_from(&self) -> Lsn {
        let (mut from, mut follows) = (0, None);
        for (number, segment) in self.segments.iter().rev() {
            if follows.is_some_and(|end| end > self.geometry.start(number + 1)) {
                break;
            }
            (from, follows) = (self.geometry.start(*number), Some(segment.header.previous_end));
        }
        Lsn(from)
    }

    /// Whether a file without a valid first page holds a frame after it.
    pub fn begins_with_frame(&self, number: u64, salt: u64) -> Result<bool, LogError> {
        let Some(file) = self.idle.get(&number) else { return Ok(false) };
        let failed_to_read = |source| file.not_read(source);
        let file = file.open()?;
        let room = file.size().map_err(failed_to_read)? / PAGE * PAGE;
        let mut bytes = PAGE;
        loop {
            if PAGE + bytes > room {
                return Ok(false);
            }
            let mut frame = AlignedBuffer::new(bytes as usize);
            file.read_to(PAGE, &mut frame).map_err(failed_to_read)?;
            let Some(header) = frame.first_chunk().and_then(FrameHeader::from_bytes) else {
                return Ok(false);
            };
            if header.bytes() <= bytes {
                let seed = self.options.seed(salt, self.geometry.start(number));
                return Ok(header.is_of(seed, &frame));
            }
            bytes = header.bytes().next_multiple_of(PAGE);
        }
    }

    /// The highest number in the name of a file; 0 if there are none.
    pub fn number_max(&self) -> u64 {
        let last = |number: Option<&u64>| number.copied().unwrap_or(0);
        last(self.segments.keys().next_back()).max(last(self.idle.keys().next_back()))
    }

    /// Gives up the segments before `first`. Keeps as many of their files as segments will be begun until some are
    /// given up again, but [a few](LogOptions::spare_segments_min) at least. Returns the others' numbers, to be
    /// removed.
    pub fn discard(&mut self, first: u64) -> Vec<u64> {
        let last = self.segments.last_key_value().map(|(number, _)| *number);
        let kept = self.segments.split_off(&first);
        if let Some(last) = last.filter(|_| !self.segments.is_empty()) {
            self.pace.note(last);
        }
        let given_up = std::mem::replace(&mut self.segments, kept);
        self.given_up.extend(given_up.into_iter().map(|(number, segment)| (number, segment.file)));
        self.reuse_unread();
        let mut removed = Vec::new();
        while self.idle.len() > self.pace.segments.max(self.options.spare_segments_min) {
            removed.extend(self.idle.pop_first().map(|(number, _)| number));
        }
        removed
    }

    /// Makes files of segments that have been given up, and that nothing reads any more, idle. A reader could not open
    /// one that has another name, nor go on in one that is overwritten.
    pub fn reuse_unread(&mut self) {
        let is_planted = self.options.planted(Bug::RecycledWhileRead);
        // Only segments that are not given up get new readers.
        let is_unread = |_: &u64, file: &mut Arc<SegmentFile>| Arc::get_mut(file).is_some() || is_planted;
        self.idle.extend(self.given_up.extract_if(.., is_unread));
    }
}

/// Makes and removes segment files. This never holds up a thread that writes to the log.
pub(crate) struct SegmentMaker {
    directory: Arc<dyn Directory>,
    options: LogOptions,
    segment_bytes: u64,
    /// Whether there may be a file of a segment that was being made.
    is_unfinished: bool,
    /// A file that could not be renamed, and one that has its name, but not durably: both are retried.
    spare: Option<(u64, Arc<SegmentFile>)>,
    unsynced: Option<(u64, Made)>,
    /// How many bytes had been appended, in how many syncs, when a segment was last made.
    made_at: (u64, u64),
}

impl SegmentMaker {
    pub fn new(directory: Arc<dyn Directory>, files: &LogFiles) -> Self {
        Self {
            directory,
            options: files.options.clone(),
            segment_bytes: files.geometry.segment_bytes,
            is_unfinished: true,
            spare: None,
            unsynced: None,
            made_at: (0, 0),
        }
    }

    /// Whether it pays to write the next segment before it is used, when `bytes` have been appended in `syncs`: it does
    /// if the syncs since the last segment was made brought [few bytes](FEW_BYTES) each.
    pub fn is_to_be_written(&mut self, bytes: u64, syncs: u64) -> bool {
        let (from, before) = std::mem::replace(&mut self.made_at, (bytes, syncs));
        bytes.saturating_sub(from) <= syncs.saturating_sub(before).saturating_mul(FEW_BYTES)
    }

    /// Makes the file for segment `number`, a number that no file has; from an idle one, if there is one. A new file
    /// has all its room allocated, and is written if requested.
    pub fn make(
        &mut self,
        number: u64,
        is_written: bool,
        idle: impl FnOnce() -> Option<(u64, Arc<SegmentFile>)>,
    ) -> Result<Made, LogError> {
        self.try_make(number, is_written, idle).map_err(|source| LogError::NoRoom { source, held: None })
    }

    fn try_make(
        &mut self,
        number: u64,
        is_written: bool,
        idle: impl FnOnce() -> Option<(u64, Arc<SegmentFile>)>,
    ) -> io::Result<Made> {
        let made = match self.unsynced.take().filter(|(made, _)| *made == number) {
            Some((_, made)) => made,
            None => match self.spare.take().or_else(idle) {
                Some((idle, file)) => self.rename(idle, file, number)?,
                None => self.create(number, is_written)?,
            },
        };
        if !self.options.planted(Bug::NameNotSynced)
            && let Err(error) = self.directory.sync()
        {
            self.unsynced = Some((number, made));
            return Err(error);
        }
        Ok(made)
    }

    /// Gives the file of an idle segment another number.
    fn rename(&mut self, idle: u64, file: Arc<SegmentFile>, number: u64) -> io::Result<Made> {
        // Opened first: what fails for want of descriptors, or of room, has changed nothing.
        let (renamed, is_missing) = match file.open() {
            Ok(open) => {
                let renamed = self
                    .lengthen(&*open)
                    .and_then(|written| self.directory.rename(&name(idle), &name(number)).map(|()| written));
                let is_missing = renamed.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
                (renamed.map(|written| Made { file: open.renamed(number), written }), is_missing)
            }
            Err(error) => {
                let is_missing = is_missing(&error);
                (Err(io::Error::other(error)), is_missing)
            }
        };
        // If the file is still there, this is retried. If not, another one is made.
        if renamed.is_err() && !is_missing {
            self.spare = Some((idle, file));
        }
        renamed
    }

    /// Makes sure that a file is as long as a segment: it may be from a log whose segments were shorter. Returns how many
    /// bytes it had of these.
    fn lengthen(&self, file: &dyn File) -> io::Result<u64> {
        let bytes = file.size()?.min(self.segment_bytes);
        if bytes < self.segment_bytes {
            file.grow(self.segment_bytes)?;
            file.sync()?;
        }
        Ok(bytes)
    }

    /// Creates a segment file, and writes all of it if requested.
    fn create(&mut self, number: u64, is_written: bool) -> io::Result<Made> {
        if std::mem::replace(&mut self.is_unfinished, true) {
            self.directory.remove(UNFINISHED).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })?;
        }
        let made = self.fill(number, is_written);
        if made.is_err() {
            // On a full disk others need the room. What cannot be removed now is removed before the next one is made.
            let _ = self.directory.remove(UNFINISHED);
        }
        made
    }

    fn fill(&mut self, number: u64, is_written: bool) -> io::Result<Made> {
        let options = file_options(CreateMode::CreateNew);
        let file = self.directory.open(UNFINISHED, &options).map_err(not_made)?;
        file.grow(self.segment_bytes)?;
        let bytes = if is_written { self.segment_bytes } else { 0 };
        let zeroes = AlignedBuffer::new(bytes.min(1 << 20) as usize);
        let mut at = 0;
        while at < bytes {
            let part = zeroes.len().min((bytes - at) as usize);
            file.write_from(at, zeroes.get(..part).unwrap_or_default())?;
            at += part as u64;
        }
        file.sync()?;
        self.directory.rename(UNFINISHED, &name(number))?;
        self.is_unfinished = false;
        Ok(Made { file: OpenSegment::named(&self.directory, number, file), written: bytes })
    }
}

/// Why the file of a segment could not be made; if there is no room, no more than that.
fn not_made(error: VmError) -> io::Error {
    match error {
        VmError::Open { source, .. } if is_full(&source) => source,
        error => io::Error::other(error),
    }
}

/// Removes segment files. One that cannot be removed is reused, or removed, after the log has been opened again.
pub(crate) fn remove(directory: &dyn Directory, numbers: &[u64]) -> Result<(), LogError> {
    let mut outcome = Ok(());
    for number in numbers {
        outcome = outcome.and(directory.remove(&name(*number)));
    }
    outcome.map_err(|source| LogError::Files { action: "remove a segment", source })
}

/// The numbers and names of the segments in a directory.
pub(crate) fn names_of(directory: &dyn Directory) -> Result<Vec<(u64, String)>, LogError> {
    let names = directory.names();
    let names = names.map_err(|source| not_listed(directory, source))?;
    Ok(names.into_iter().filter_map(|name| Some((number_of(&name)?, name))).collect())
}

fn not_listed(directory: &dyn Directory, source: io::Error) -> LogError {
    LogError::NotListed { directory: directory.path().map(Into::into), source }
}

/// Removes all files of a log, durably.
pub(crate) fn remove_all(directory: &dyn Directory, options: &LogOptions) -> Result<(), LogError> {
    let names = directory.names().map_err(|source| not_listed(directory, source))?;
    let remove = || {
        for name in names.iter().filter(|name| is_segment(name)) {
            directory.remove(name)?;
        }
        if options.planted(Bug::RemovalNotSynced) { Ok(()) } else { directory.sync() }
    };
    remove().map_err(|source| LogError::Files { action: "remove the segments", source })
}

/// Removes what a directory has of an earlier log of this database, which is no longer needed. Files of another database
/// stay.
///
/// # Errors
/// What the system reports.
pub fn remove_left(directory: &Arc<dyn Directory>, options: &LogOptions) -> Result<(), LogError> {
    match LogFiles::open(directory, options) {
        Err(LogError::Foreign { .. }) => Ok(()),
        opened => opened.and_then(|_| remove_all(&**directory, options)),
    }
}

pub(crate) fn read_header(file: &dyn File) -> io::Result<HeaderPage> {
    let mut buffer = AlignedBuffer::new(PAGE_SIZE);
    if file.size()? < PAGE_SIZE as u64 {
        return Ok(HeaderPage::None);
    }
    file.read_to(0, &mut buffer)?;
    Ok(buffer.first_chunk().map_or(HeaderPage::None, SegmentHeader::decode))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_listing_that_fails_is_told_as_that() {
        let missing = vellum_vm::DiskDirectory::new(std::path::Path::new("/nowhere/log"));
        let error = remove_all(&missing, &LogOptions::new([1; 16])).unwrap_err();
        assert!(error.to_string().starts_with("cannot list the segments of the log"), "{error}");
        assert!(error.to_string().contains("/nowhere/log"), "{error}");
    }

    #[test]
    fn a_faster_pace_counts_at_once_and_a_slower_one_by_and_by() {
        let mut pace = Pace::default();
        let mut told = Vec::new();
        let mut last = 7;
        for begun in [0, 3, 32, 32, 5, 5, 5, 0, 0, 40] {
            last += begun;
            pace.note(last);
            told.push(pace.segments);
        }
        assert_eq!(told, [0, 3, 32, 32, 25, 20, 16, 12, 9, 40]);
        (0..20).for_each(|_| pace.note(last));
        assert_eq!(pace.segments, 0, "nothing is kept for ever");
    }
}
