//! The files of a log, as they are found when it is opened.

use crate::{
    LogError, LogOptions,
    plant::Bug,
    segment::{Geometry, HeaderPage, SegmentHeader, UNFINISHED, name, number_of},
};
use std::{collections::BTreeMap, io, sync::Arc};
use vellum_base::PAGE_SIZE;
use vellum_vm::{AlignedBuffer, CreateMode, Directory, File, FileOptions};

/// A segment that has been begun.
pub(crate) struct Segment {
    pub header: SegmentHeader,
    pub file: Arc<dyn File>,
}

/// All files of a log.
pub(crate) struct LogFiles {
    directory: Arc<dyn Directory>,
    pub options: LogOptions,
    pub geometry: Geometry,
    /// By number.
    pub segments: BTreeMap<u64, Segment>,
    /// Files for the next segments.
    pub prepared: BTreeMap<u64, Arc<dyn File>>,
    /// Files of segments that were not begun or are not needed any more, by the number that they are named by.
    pub idle: BTreeMap<u64, Arc<dyn File>>,
    /// What was left of a segment that was being made.
    is_unfinished: bool,
    are_names_unsynced: bool,
}

impl LogFiles {
    /// Opens all files of a log; changes nothing.
    pub fn open(directory: Arc<dyn Directory>, options: &LogOptions) -> Result<Self, LogError> {
        options.check()?;
        let geometry = Geometry { segment_bytes: options.segment_bytes };
        let mut files = Self {
            directory,
            options: options.clone(),
            geometry,
            segments: BTreeMap::new(),
            prepared: BTreeMap::new(),
            idle: BTreeMap::new(),
            is_unfinished: false,
            are_names_unsynced: false,
        };
        let names = files.directory.names();
        let names = names.map_err(|source| LogError::Files { action: "list the segments", source })?;
        for name in names {
            files.is_unfinished |= name == UNFINISHED;
            if let Some(number) = number_of(&name) {
                files.take(number, name)?;
            }
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

    fn take(&mut self, number: u64, name: String) -> Result<(), LogError> {
        let file = self.directory.open(&name, &FileOptions::default())?;
        match read_header(&*file)? {
            HeaderPage::Sound(header) if header.number == number => {
                if header.database != self.options.database {
                    return Err(LogError::Foreign { segment: name });
                }
                self.segments.insert(number, Segment { header, file });
            }
            HeaderPage::Version(version) => return Err(LogError::Version { version }),
            // A header that is damaged was being written when the process ended. If it has changed since, the reader finds that
            // what the segment holds was durable.
            HeaderPage::Sound(_) | HeaderPage::None | HeaderPage::Damaged => {
                self.idle.insert(number, file);
            }
        }
        Ok(())
    }

    /// The highest number by which a file is named; 0 if there are none.
    pub fn number_max(&self) -> u64 {
        let last = |number: Option<&u64>| number.copied().unwrap_or(0);
        last(self.segments.keys().next_back()).max(last(self.idle.keys().next_back()))
    }

    /// Makes sure that there is a file for segment `number`, by which none is named.
    pub fn prepare(&mut self, number: u64) -> Result<(), LogError> {
        if !self.prepared.contains_key(&number) {
            let file = match self.idle.pop_first() {
                Some((idle, file)) => self.rename(idle, file, number),
                None => self.create(number),
            };
            self.prepared.insert(number, file.map_err(|source| LogError::NoRoom { source })?);
        }
        if self.are_names_unsynced && !self.options.planted(Bug::NameNotSynced) {
            self.directory.sync().map_err(|source| LogError::NoRoom { source })?;
            self.are_names_unsynced = false;
        }
        Ok(())
    }

    /// Gives the file of an idle segment another number.
    fn rename(&mut self, idle: u64, file: Arc<dyn File>, number: u64) -> io::Result<Arc<dyn File>> {
        self.are_names_unsynced = true;
        let renamed = self.directory.rename(&name(idle), &name(number));
        // If it is still there it is tried again. If it is not, another one is made.
        if renamed.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::NotFound) {
            self.idle.insert(idle, file.clone());
        }
        renamed.map(|()| file)
    }

    /// Makes a file for a segment, all of it written.
    fn create(&mut self, number: u64) -> io::Result<Arc<dyn File>> {
        if std::mem::replace(&mut self.is_unfinished, true) {
            self.directory.remove(UNFINISHED).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })?;
        }
        let options = FileOptions { create: CreateMode::CreateNew, ..FileOptions::default() };
        let file = self.directory.open(UNFINISHED, &options).map_err(io::Error::other)?;
        let bytes = self.geometry.segment_bytes;
        file.grow(bytes)?;
        let zeroes = AlignedBuffer::new(bytes.min(1 << 20) as usize);
        let mut at = 0;
        while at < bytes {
            let part = zeroes.len().min((bytes - at) as usize);
            file.write_from(at, zeroes.get(..part).unwrap_or_default())?;
            at += part as u64;
        }
        file.sync()?;
        self.are_names_unsynced = true;
        self.directory.rename(UNFINISHED, &name(number))?;
        self.is_unfinished = false;
        Ok(file)
    }

    /// Gives up the segments before `first`; keeps some of their files for new ones.
    pub fn discard(&mut self, first: u64) -> Result<(), LogError> {
        let kept = self.segments.split_off(&first);
        let given_up = std::mem::replace(&mut self.segments, kept);
        self.idle.extend(given_up.into_iter().map(|(number, segment)| (number, segment.file)));
        while self.idle.len() > self.options.spare_segments_max {
            let Some((number, _)) = self.idle.pop_first() else { break };
            let removed = self.directory.remove(&name(number));
            removed.map_err(|source| LogError::Files { action: "remove a segment", source })?;
        }
        Ok(())
    }
}

fn read_header(file: &dyn File) -> Result<HeaderPage, LogError> {
    let failed = |source| LogError::Files { action: "read a segment", source };
    let mut buffer = AlignedBuffer::new(PAGE_SIZE);
    if file.size().map_err(failed)? < PAGE_SIZE as u64 {
        return Ok(HeaderPage::None);
    }
    file.read_to(0, &mut buffer).map_err(failed)?;
    Ok(buffer.first_chunk().map_or(HeaderPage::None, SegmentHeader::decode))
}
