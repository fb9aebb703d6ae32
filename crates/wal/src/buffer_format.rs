//! The format of the first page of the buffer file.
//!
//! | bytes of its first page | what |
//! |---|---|
//! | 0..8 | magic `VELLUMLB` |
//! | 8..12 | version of the format |
//! | 16..32 | id of the database |
//! | 32..40 | timeline |
//! | 40..48 | size of the buffer in bytes |
//! | 4088..4096 | checksum of the bytes before |
//!
//! All numbers are little-endian; all other bytes are zero. The buffer follows: the byte of the log at `lsn` lies at
//! `lsn` modulo the size of the buffer.

use crate::{LogError, LogOptions};
use vellum_base::{PAGE_SIZE, checksum};

const MAGIC: [u8; 8] = *b"VELLUMLB";
/// The version of the format of the buffer's file.
const BUFFER_VERSION: u32 = 1;

/// The first page of the buffer of a timeline.
pub(crate) fn encode(options: &LogOptions, timeline: u64) -> [u8; PAGE_SIZE] {
    let mut page = [0; PAGE_SIZE];
    page[..8].copy_from_slice(&MAGIC);
    page[8..12].copy_from_slice(&BUFFER_VERSION.to_le_bytes());
    page[16..32].copy_from_slice(&options.database);
    page[32..40].copy_from_slice(&timeline.to_le_bytes());
    page[40..48].copy_from_slice(&options.buffer_bytes.to_le_bytes());
    let sum = checksum(&page[..PAGE_SIZE - 8]);
    page[PAGE_SIZE - 8..].copy_from_slice(&sum.to_le_bytes());
    page
}

/// The timeline and the size of the buffer, if the page is the first one of this database's buffer.
pub(crate) fn decode(
    page: Option<&[u8; PAGE_SIZE]>,
    options: &LogOptions,
) -> Result<Option<(u64, u64)>, LogError> {
    let Some(page) = page else { return Ok(None) };
    let word = |at: usize| {
        page.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
    };
    if page[..8] != MAGIC || word(PAGE_SIZE - 8) != checksum(&page[..PAGE_SIZE - 8]) {
        return Ok(None);
    }
    match word(8) as u32 {
        BUFFER_VERSION => {}
        version => return Err(LogError::Version { version }),
    }
    let (timeline, bytes) = (word(32), word(40));
    let is_ours =
        page[16..32] == options.database && bytes.is_power_of_two() && bytes >= 2 * PAGE_SIZE as u64;
    Ok(is_ours.then_some((timeline, bytes)))
}
