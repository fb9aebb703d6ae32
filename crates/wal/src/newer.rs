//! A log that goes on after the place at which the file of its database was closed: the file is an older copy.
//!
//! A clean close needs nothing of the log, and removes it. If that fails, the log ends where the file says that it was closed. Nothing
//! is logged before the file says that it needs the log. So a record after that place was logged by a later life of the
//! database, whose file this is not.

use crate::{LogError, LogOptions, LogReader, ReadableLives, files::LogFiles, segment::salt};
use std::sync::Arc;
use vellum_base::Lsn;
use vellum_vm::{Directory, OverlayDirectory};

/// How many timelines a segment without a first page may be of. There are several only if openings followed on crashes.
const TIMELINES_TRIED: usize = 16;

/// Checks that the log in a directory holds nothing after [`LogOptions::least`], where its database was closed.
///
/// # Errors
/// [`LogError::Newer`] if it does; [`LogError::Foreign`] or [`LogError::Version`] if the files are not a log of this database;
/// what the system reports.
pub fn refuse_newer(directory: &Arc<dyn Directory>, options: &LogOptions) -> Result<(), LogError> {
    // Nothing is changed there.
    let directory: Arc<dyn Directory> = Arc::new(OverlayDirectory::over(directory.clone()));
    let options = &LogOptions { readable: ReadableLives::default(), ..options.clone() };
    let files = LogFiles::open(&directory, options)?;
    let closed = options.least;
    // Any life that has logged something there is one too many.
    let newer = |end| Err(LogError::Newer { closed, end });
    // A segment is begun when all before it is durable.
    let end = files.segments.values().map(|segment| Lsn(segment.header.previous_end)).max();
    if let Some(end) = end.filter(|end| *end > closed) {
        return newer(end);
    }
    // A later life begins with a segment of its own.
    let starts = files.segments.keys().map(|number| Lsn(files.geometry.start(*number)));
    let starts: Vec<Lsn> = starts.filter(|start| *start >= closed).collect();
    // A segment that has lost its first page still begins with a record. After a close timelines are counted from one again.
    let latest = files.named_otherwise.values().map(|header| header.timeline).max().unwrap_or(0);
    let latest = latest.max(files.timeline_max) + 1;
    let nameless = files.idle.keys().copied();
    for number in nameless.filter(|number| files.geometry.start(*number) >= closed.0) {
        for timeline in (1..=latest).rev().take(TIMELINES_TRIED) {
            if files.begins_with_frame(number, salt(options.database, timeline))? {
                return newer(Lsn(files.geometry.start(number)));
            }
        }
    }
    drop(files);
    for start in starts {
        match LogReader::open(directory.clone(), options, start).and_then(|mut log| read_one(&mut log)) {
            Ok(Some(end)) => return newer(end),
            // The buffer has something, although it is not of the process that wrote the segments.
            Err(LogError::OtherLife { at, .. }) => return newer(at),
            // What was durable there is lost.
            Err(LogError::Hole { durable, .. }) => return newer(durable),
            read => drop(read?),
        }
    }
    Ok(())
}

/// The end of the first record, if there is one.
fn read_one(log: &mut LogReader) -> Result<Option<Lsn>, LogError> {
    Ok(log.next()?.map(|record| record.end()))
}
