//! Copies the log while it is written, for a backup: the log keeps what has not been copied.

use crate::{
    Log, LogError, LogKeeper, Record,
    segment::{Geometry, MARKS},
};
use vellum_base::{Lsn, PAGE_SIZE};
use vellum_vm::AlignedBuffer;

const PAGE: u64 = PAGE_SIZE as u64;
/// How many bytes are copied at once.
const PART_BYTES: u64 = 1 << 20;

/// Pages of a segment's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogPart<'p> {
    /// The number of the segment.
    pub segment: u64,
    /// Their offset in the file, in bytes.
    pub offset: u64,
    /// Whole pages.
    pub bytes: &'p [u8],
}

/// Copies a log from a place on. What has not been copied is not given up.
pub struct LogCopy<'l> {
    log: &'l Log,
    /// The key under which the log keeps what is not copied.
    kept: u64,
    geometry: Geometry,
    /// Up to where records have been shown.
    shown: u64,
    /// Up to where the log has been copied.
    copied: u64,
    buffer: AlignedBuffer,
}

impl Log {
    /// Where the log ended when it was opened, or closed before that.
    pub fn former_end(&self) -> Lsn {
        self.device().former_end()
    }

    /// Copies the log from `from` on, where a record begins or the log once ended, while it grows. Nothing from there
    /// on is given up before it has been copied.
    ///
    /// # Errors
    /// [`LogError::Missing`] if it has been given up.
    pub fn copy(&self, from: Lsn) -> Result<LogCopy<'_>, LogError> {
        // Nothing is discarded under this lock.
        let mut kept = self.kept();
        let device = self.device();
        let geometry = device.geometry();
        // A log that ends where a segment would begin needs nothing of that segment.
        let is_there = !device.begun_segments(geometry.number(from.0), from.0 + 1).is_empty();
        if from.0 < device.written() && !is_there {
            return Err(LogError::Missing { from, oldest: Lsn(0) });
        }
        drop(device);
        let kept = kept.add(from.0, u64::MAX, LogKeeper::Backup);
        let segment = geometry.start(geometry.number(from.0));
        let buffer = AlignedBuffer::new(PART_BYTES.min(geometry.segment_bytes) as usize);
        Ok(LogCopy { log: self, kept, geometry, shown: from.0, copied: segment, buffer })
    }
}

impl LogCopy<'_> {
    /// The size of the log's files, in bytes.
    pub fn segment_bytes(&self) -> u64 {
        self.geometry.segment_bytes
    }

    /// Copies what follows up to `to`, where a record begins or the log ends, and before which everything is durable:
    /// gives the pages of segments to `write`, and the records to `show`. The rest of a page that is not full is zero,
    /// and the page comes again the next time. The log may give up what has been copied.
    ///
    /// # Errors
    /// [`LogError::Hole`] and [`LogError::Missing`] if records are missing, the errors of `write` and `show`, and what
    /// the system reports.
    pub fn advance<E: From<LogError>>(
        &mut self,
        to: Lsn,
        mut write: impl FnMut(LogPart<'_>) -> Result<(), E>,
        mut show: impl FnMut(Record<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if to.0 <= self.copied.min(self.shown) {
            return Ok(());
        }
        let begun = self.log.device().begun_segments(self.geometry.number(self.copied), to.0);
        for (number, file) in begun {
            let start = self.geometry.start(number);
            let segment = file;
            let file = segment.open_at(Lsn(self.copied.max(start)))?;
            let end = to.0.min(self.geometry.start(number + 1));
            let mut at = self.copied.max(start);
            at -= (at - start) % PAGE;
            // The first page of the file, which describes it, comes along with the segment's beginning.
            let mut offset = if at == start { 0 } else { self.geometry.offset(at) };
            let stop = PAGE + (end - start);
            while offset < stop {
                let bytes = (stop - offset).next_multiple_of(PAGE).min(self.buffer.len() as u64);
                let part = self.buffer.get_mut(..bytes as usize).unwrap_or_default();
                let read = file.read_to(offset, part);
                read.map_err(|source| segment.not_read(source))?;
                if let Some(beyond) = part.get_mut((stop - offset).min(bytes) as usize..) {
                    beyond.fill(0);
                }
                if offset == 0 {
                    // The copy may end in a segment that the log has left.
                    part.get_mut(MARKS).unwrap_or_default().fill(0);
                }
                write(LogPart { segment: number, offset, bytes: part })?;
                offset += bytes;
            }
        }
        self.copied = to.0;
        let mut reader = self.log.device().read_range(Lsn(self.shown), to)?;
        while let Some(record) = reader.next()? {
            show(record)?;
        }
        self.shown = to.0;
        self.log.kept().keep(self.kept, to);
        Ok(())
    }
}

impl Drop for LogCopy<'_> {
    fn drop(&mut self) {
        self.log.kept().keep_no_more(self.kept);
    }
}
