//! How to keep a log.

use crate::{LogError, ReadableLives, frame::PAYLOAD_BYTES_MAX};
use vellum_base::{Lsn, PAGE_SIZE};

/// The largest size of a segment, in bytes. Far from where sums of places would overflow.
const SEGMENT_BYTES_MAX: u64 = 1 << 40;

/// Whether segments can have a size.
pub(crate) fn is_segment_size(bytes: u64) -> bool {
    bytes.is_multiple_of(PAGE_SIZE as u64) && (2 * PAGE_SIZE as u64..=SEGMENT_BYTES_MAX).contains(&bytes)
}

/// How to keep a log. The defaults suit a database on a current machine.
///
/// # Examples
/// ```
/// use vellum_wal::LogOptions;
/// let options = LogOptions { segment_bytes: 1 << 20, ..LogOptions::new(*b"sixteen bytes id") };
/// assert_eq!(options.buffer_bytes, 16 << 20);
/// ```
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The database that the log belongs to: the log of another database is refused.
    pub database: [u8; 16],
    /// The size of a new log's segments, in bytes: a multiple of [`PAGE_SIZE`], at least two pages, and at most a
    /// tebibyte. An existing log keeps its size.
    pub segment_bytes: u64,
    /// The size of the buffer in memory, in bytes: a power of two, at least two pages. A record takes at most a quarter of it.
    pub buffer_bytes: u64,
    /// How many segments that are no longer needed are kept for reuse at least. If more were begun between two times
    /// that segments were [discarded](crate::Log::discard), as many are kept.
    pub spare_segments_min: usize,
    /// The log continues at this LSN or after it, even if there are no files that show it: after
    /// [`Log::remove`](crate::Log::remove) it is where the log ended.
    pub least: Lsn,
    /// The life of the database that opens the log, which each segment carries; zero if that is unknown.
    pub life: u64,
    /// Which lives of the database may have written what is read.
    pub readable: ReadableLives,
    /// The last life that the database knows, if its log is needed: the log has a segment of it. Zero if that is unknown.
    pub last_life: u64,
    #[cfg(test)]
    pub(crate) bug: Option<crate::plant::Bug>,
}

impl LogOptions {
    /// The default options for the log of a database: segments of 64 MiB, a buffer of 16 MiB, 4 spare segments.
    pub fn new(database: [u8; 16]) -> Self {
        Self {
            database,
            segment_bytes: 64 << 20,
            buffer_bytes: 16 << 20,
            spare_segments_min: 4,
            least: Lsn(0),
            life: 0,
            readable: ReadableLives::default(),
            last_life: 0,
            #[cfg(test)]
            bug: None,
        }
    }

    pub(crate) fn check(&self) -> Result<(), LogError> {
        let page = PAGE_SIZE as u64;
        if !is_segment_size(self.segment_bytes) {
            return Err(LogError::Option { option: "log_segment_bytes", bytes: self.segment_bytes });
        }
        if !self.buffer_bytes.is_power_of_two() || self.buffer_bytes < 2 * page {
            return Err(LogError::Option { option: "log_buffer_bytes", bytes: self.buffer_bytes });
        }
        Ok(())
    }

    /// The longest record, in bytes.
    pub fn record_bytes_max(&self) -> usize {
        PAYLOAD_BYTES_MAX.min((self.buffer_bytes / 4) as usize - crate::frame::HEADER_BYTES)
    }
}
