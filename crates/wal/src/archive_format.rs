//! The format of a file in the archive of a log: see *Archived log* in FILE_FORMAT.md.

use crate::ArchiveError;
use vellum_base::{Bytes, Lsn, PAGE_SIZE, checksum};

const MAGIC: [u8; 8] = *b"VELLUMLA";
/// The version of the format of archived parts of the log.
const ARCHIVE_VERSION: u32 = 1;
/// How the names of the files begin.
pub(crate) const PREFIX: &str = "log-";

/// A part of a log in an archive: one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArchivedPart {
    /// The database that the log belongs to.
    pub database: [u8; 16],
    /// The timeline of its records.
    pub timeline: u64,
    /// The place at which its contents begin.
    pub start: Lsn,
    /// The place at which its contents end.
    pub end: Lsn,
    /// Where the log ended before it: where another part ends, if none is missing.
    pub follows: Lsn,
    /// The checksum of its contents.
    pub checksum: u64,
    /// The life of the database that wrote it; zero if that is unknown.
    pub life: u64,
}

impl ArchivedPart {
    /// The name of its file.
    pub fn name(&self) -> String {
        name_at(self.start)
    }

    pub(crate) fn encode(&self, page: &mut [u8]) {
        page.fill(0);
        put(page, 0, &MAGIC);
        put(page, 8, &ARCHIVE_VERSION.to_le_bytes());
        put(page, 16, &self.database);
        let words = [self.timeline, self.start.0, self.end.0, self.follows.0, self.checksum, self.life];
        words.iter().zip((32..).step_by(8)).for_each(|(word, at)| put(page, at, &word.to_le_bytes()));
        let sum = checksum(page.get(..PAGE_SIZE - 8).unwrap_or_default());
        put(page, PAGE_SIZE - 8, &sum.to_le_bytes());
    }

    pub(crate) fn decode(name: &str, page: &[u8]) -> Result<Self, ArchiveError> {
        let damaged = || ArchiveError::Damaged { name: name.to_owned() };
        if page.get(..8) != Some(&MAGIC)
            || page.u64_at(PAGE_SIZE - 8) != checksum(page.get(..PAGE_SIZE - 8).unwrap_or_default())
        {
            return Err(damaged());
        }
        let version = page.u32_at(8);
        if version != ARCHIVE_VERSION {
            return Err(ArchiveError::Version { name: name.to_owned(), version });
        }
        let part = Self {
            database: page.get(16..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default(),
            timeline: page.u64_at(32),
            start: Lsn(page.u64_at(40)),
            end: Lsn(page.u64_at(48)),
            follows: Lsn(page.u64_at(56)),
            checksum: page.u64_at(64),
            life: page.u64_at(72),
        };
        if part.name() != name || part.end < part.start { Err(damaged()) } else { Ok(part) }
    }
}

impl ArchivedPart {
    /// Whether another life of the database than this wrote it, as far as both are known. What holds nothing belongs to
    /// any.
    pub(crate) fn is_of_another_life(&self, life: u64) -> bool {
        self.end > self.start && self.life != 0 && life != 0 && self.life != life
    }
}

/// The name of the file of a part that begins at a place. Names are in the order of the places.
pub(crate) fn name_at(start: Lsn) -> String {
    format!("{PREFIX}{:016x}", start.0)
}

fn put(page: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(target) = page.get_mut(at..at + bytes.len()) {
        target.copy_from_slice(bytes);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_first_page_comes_back_and_every_flipped_byte_is_noticed() {
        let (start, end, follows) = (Lsn(4096), Lsn(8192), Lsn(4000));
        let part = ArchivedPart { database: [7; 16], timeline: 3, start, end, follows, checksum: 9, life: 8 };
        let (name, mut page) = (part.name(), [0; PAGE_SIZE]);
        part.encode(&mut page);
        assert_eq!(ArchivedPart::decode(&name, &page).unwrap(), part);
        for at in 0..PAGE_SIZE {
            page[at] ^= 0x10;
            assert!(ArchivedPart::decode(&name, &page).is_err(), "{at}");
            page[at] ^= 0x10;
        }
        assert!(ArchivedPart::decode("log-0000000000000000", &page).is_err());
    }
}
