//! The format of the first page of the buffer file.
//!
//! | bytes of its first page | what |
//! |---|---|
//! | 0..8 | magic `VELLUMLB` |
//! | 8..12 | version of the format |
//! | 16..32 | id of the database |
//! | 32..40 | timeline |
//! | 40..48 | size of the buffer in bytes |
//! | 48..56 | the life of the database that writes it; zero if that is unknown |
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
    page[48..56].copy_from_slice(&options.life.to_le_bytes());
    let sum = checksum(&page[..PAGE_SIZE - 8]);
    page[PAGE_SIZE - 8..].copy_from_slice(&sum.to_le_bytes());
    page
}

/// What the first page of the file says.
pub(crate) enum BufferPage {
    /// It is the first page of a buffer of this database.
    Sound {
        timeline: u64,
        bytes: u64,
        /// Zero if it is unknown.
        life: u64,
    },
    /// What a crash of the machine leaves of such a page, which is not synced: some of its sectors, and zeroes.
    Incomplete,
    /// It is of another database.
    Foreign,
    Damaged,
}

/// What the first page of a file says.
pub(crate) fn decode(page: &[u8; PAGE_SIZE], options: &LogOptions) -> Result<BufferPage, LogError> {
    let word = |at: usize| {
        page.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
    };
    if page[..8] != MAGIC || word(PAGE_SIZE - 8) != checksum(&page[..PAGE_SIZE - 8]) {
        return Ok(if is_incomplete(page) { BufferPage::Incomplete } else { BufferPage::Damaged });
    }
    match word(8) as u32 {
        BUFFER_VERSION => {}
        version => return Err(LogError::Version { version }),
    }
    let (timeline, bytes, life) = (word(32), word(40), word(48));
    if page[16..32] != options.database {
        return Ok(BufferPage::Foreign);
    }
    let is_possible = is_size(bytes);
    Ok(if is_possible { BufferPage::Sound { timeline, bytes, life } } else { BufferPage::Damaged })
}

/// Whether a buffer may have that many bytes.
pub(crate) fn is_size(bytes: u64) -> bool {
    bytes.is_power_of_two() && bytes >= 2 * PAGE_SIZE as u64
}

/// Whether a page has some sectors of a first page, and zeroes for the others. The file was empty before, so these are what
/// may be there if the page was being written when the machine crashed.
fn is_incomplete(page: &[u8; PAGE_SIZE]) -> bool {
    const SECTOR: usize = 512;
    let (first, rest) = page.split_at(SECTOR);
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    if is_zero(first) {
        // Nothing else is in the others but the checksum.
        return is_zero(&page[..PAGE_SIZE - 8]);
    }
    let mut whole = [0; PAGE_SIZE];
    whole[..SECTOR].copy_from_slice(first);
    let sum = checksum(&whole[..PAGE_SIZE - 8]);
    whole[PAGE_SIZE - 8..].copy_from_slice(&sum.to_le_bytes());
    let is_sound = page[..8] == MAGIC && page[8..12] == BUFFER_VERSION.to_le_bytes();
    let others = rest.chunks(SECTOR).zip(whole[SECTOR..].chunks(SECTOR));
    is_sound && is_zero(&page[56..SECTOR]) && others.into_iter().all(|(it, whole)| it == whole || is_zero(it))
}
