//! Reads on in the log of a lost database where its archive ends.
//!
//! The archive may end inside a record: a segment is archived when the record that leaves it is durable. The beginning of
//! that record may be in the archive only, because the log gives up what is archived, and its rest in the log only. Then
//! the archived segment is put back, in memory, before those that the log has. So the reader compares its checksum with
//! the one that the next segment has of it.

use crate::{
    ArchiveError, ArchiveReader, ArchivedPart, LogError, LogOptions, LogReader,
    archive::{copy, diverged, may_follow},
    archive_format::name_at,
    files::LogFiles,
    segment::{self, FORMAT_VERSION, Marks, SegmentHeader},
    segment_file::file_options,
};
use std::{io, sync::Arc};
use vellum_base::{ChecksumStream, Lsn, PAGE_SIZE};
use vellum_vm::{AlignedBuffer, CreateMode, Directory, OverlayDirectory};

impl ArchiveReader {
    /// Reads on in the log in a directory, once the archive has been read to its end. Changes nothing there.
    ///
    /// # Errors
    /// [`LogError::Missing`] if the log begins after the end of the archive, [`ArchiveError::Diverged`] if it is not the
    /// log that was archived, and as for [`LogReader::open`].
    pub fn continue_in(
        &self,
        directory: Arc<dyn Directory>,
        options: &LogOptions,
    ) -> Result<LogReader, LogError> {
        let overlay: Arc<dyn Directory> = Arc::new(OverlayDirectory::over(directory));
        let files = LogFiles::open(&overlay, options)?;
        let parts = self.unfinished_parts()?;
        if let Some(last) = parts.last() {
            check(&files, last)?;
        }
        if self.at() < self.end() {
            let wanted = files.geometry.number(self.end().0);
            if !files.segments.contains_key(&wanted) {
                let first = files.segments.keys().find(|number| **number > wanted);
                let oldest = first.map_or(Lsn(0), |first| Lsn(files.geometry.start(*first)));
                return Err(LogError::Missing { from: self.end(), oldest });
            }
            // What comes before the first part is not read.
            let mut previous_checksum = 0;
            for part in &parts {
                self.put_back(part, previous_checksum, &files, &*overlay)?;
                previous_checksum = part.checksum;
            }
        }
        drop(files);
        LogReader::open(overlay, options, self.at())
    }

    /// The last part of the archive, and those before it that the record at its end begins in.
    fn unfinished_parts(&self) -> Result<Vec<ArchivedPart>, ArchiveError> {
        let (archive, after, at) = (self.archive(), name_at(self.end()), name_at(self.at()));
        let mut names = archive.names()?;
        names.retain(|name| *name < after);
        let first = names.partition_point(|name| *name <= at).saturating_sub(1);
        names.iter().skip(first).map(|name| archive.part(name)).collect()
    }

    /// Puts a part back as the segment that it was, if the log does not have that.
    fn put_back(
        &self,
        part: &ArchivedPart,
        previous_checksum: u64,
        files: &LogFiles,
        directory: &dyn Directory,
    ) -> Result<(), LogError> {
        let geometry = files.geometry;
        let number = geometry.number(part.start.0);
        if files.segments.contains_key(&number) {
            return Ok(());
        }
        // Only a full segment ends inside a record.
        if (part.start.0, part.end.0) != (geometry.start(number), geometry.start(number + 1)) {
            return Err(diverged(part).into());
        }
        let header = SegmentHeader {
            database: part.database,
            timeline: part.timeline,
            number,
            segment_bytes: geometry.segment_bytes,
            previous_end: part.follows.0,
            previous_checksum,
            life: part.life,
            version: FORMAT_VERSION,
            marks: Marks::default(),
        };
        let target = directory.open(&segment::name(number), &file_options(CreateMode::OpenOrCreate))?;
        let source = self.archive().open(&part.name())?;
        let mut page = AlignedBuffer::new(PAGE_SIZE);
        page.copy_from_slice(&header.encode());
        let mut sum = ChecksumStream::default();
        let mut put = || {
            target.write_from(0, &page)?;
            copy(&*source, part, |at, bytes| {
                sum.update(bytes);
                target.write_from(PAGE_SIZE as u64 + at, bytes)
            })
        };
        let damaged = || ArchiveError::Damaged { name: part.name() };
        put().map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => damaged(),
            _ => ArchiveError::Read { source },
        })?;
        if sum.finish() == part.checksum { Ok(()) } else { Err(damaged().into()) }
    }
}

/// Checks that the log, where it has the last part of the archive or what follows on it, is the one that was archived.
fn check(files: &LogFiles, last: &ArchivedPart) -> Result<(), LogError> {
    let number = files.geometry.number(last.start.0);
    let is_of = |number: &u64, header: &SegmentHeader| {
        *number <= files.geometry.number(last.start.0) || may_follow(&header.end_before(), last)
    };
    if !files.segments.iter().all(|(number, segment)| is_of(number, &segment.header)) {
        return Err(diverged(last).into());
    }
    let there = files.segments.get(&number).filter(|_| files.geometry.start(number) == last.start.0);
    let Some(there) = there else { return Ok(()) };
    let mut sum = ChecksumStream::default();
    let read = copy(&*there.file.open_at(last.start)?, last, |_, bytes| {
        sum.update(bytes);
        Ok(())
    });
    match read {
        Ok(()) if sum.finish() != last.checksum => Err(diverged(last).into()),
        // A log that was cut is for its reader to judge.
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(there.file.not_read(error)),
        _ => Ok(()),
    }
}
