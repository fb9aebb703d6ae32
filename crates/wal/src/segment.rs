//! Segments: the files of the log, and how places in the log map to places in them.
//!
//! The log is one stream of bytes; an LSN is a place in it. Segment `n` is a file of fixed size that holds the bytes
//! from `n * payload` on, after one page with its header. Frames may cross the ends of segments.
//!
//! | bytes of the header | what |
//! |---|---|
//! | 0..8 | magic `VELLUMLG` |
//! | 8..12 | version of the format |
//! | 16..32 | id of the database |
//! | 32..40 | timeline |
//! | 40..48 | number of the segment |
//! | 48..56 | size of a segment in bytes, header included |
//! | 56..64 | LSN at which the log ended before this segment |
//! | 64..72 | checksum of what the segment before holds, up to that LSN |
//! | 72..80 | the life of the database that wrote it; zero if that is unknown |
//! | 512..520 | the checksum below, if what follows was written for it: a torn write leaves that of another segment in a recycled file |
//! | 520..528 | 1 if the segment has been left for the next one, whose file is needed then |
//! | 528..536 | the life of an opening after this segment that was taken back with its segments; zero if there is none |
//! | 536..544 | the redo point of the last durable checkpoint that was taken while the segment was written |
//! | 544..552 | the checksum of that; zero if there was none |
//! | 4088..4096 | checksum of the bytes before, with zeroes for 512..1024 |
//!
//! All numbers are little-endian; all other bytes are zero. The marks from 512 on have a sector of their own, because they are written
//! later than the rest: a torn write does not damage that.

use crate::buffer_file::BUFFER;
use vellum_base::{Lsn, PAGE_SIZE, checksum};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"VELLUMLG";
/// The version of the format of segments.
pub(crate) const FORMAT_VERSION: u32 = 3;
/// The first version that has marks.
pub(crate) const WITH_MARKS: u32 = 2;
/// The first version whose segments have a durable first page before anything is written to them. In earlier ones it became durable
/// together with what followed.
const WITH_DURABLE_HEADER: u32 = 3;
/// The sector of the marks. Zeroes are none.
pub(crate) const MARKS: std::ops::Range<usize> = 512..1024;
/// How the names of segments begin.
const PREFIX: &str = "segment-";
/// The name of a segment file that is being prepared.
pub(crate) const UNFINISHED: &str = "unfinished";

/// Maps LSNs to segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Geometry {
    /// The size of a segment's file, in bytes: a multiple of [`PAGE_SIZE`], at least two pages.
    pub segment_bytes: u64,
}

impl Geometry {
    /// How many bytes of the log a segment holds.
    pub fn payload(self) -> u64 {
        self.segment_bytes - PAGE_SIZE as u64
    }

    /// The segment in which the byte at `lsn` lies.
    pub fn number(self, lsn: u64) -> u64 {
        lsn / self.payload()
    }

    /// Where the byte at `lsn` lies in the file of its segment.
    pub fn offset(self, lsn: u64) -> u64 {
        PAGE_SIZE as u64 + lsn % self.payload()
    }

    /// The first LSN of a segment.
    pub fn start(self, number: u64) -> u64 {
        number * self.payload()
    }

    /// Whether a segment begins at `lsn`.
    pub fn is_start(self, lsn: u64) -> bool {
        lsn.is_multiple_of(self.payload())
    }
}

/// What a segment says about itself and the segment before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentHeader {
    pub database: [u8; 16],
    pub timeline: u64,
    pub number: u64,
    pub segment_bytes: u64,
    /// Where the log ended before this segment: its first LSN, or an earlier one if a timeline begins here.
    pub previous_end: u64,
    /// The checksum of what the segment of the byte before that LSN holds up to it; 0 if there is none.
    pub previous_checksum: u64,
    /// The life of the database that wrote it; zero if that is unknown.
    pub life: u64,
    pub version: u32,
    pub marks: Marks,
}

/// What a segment says of what came after it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Marks {
    /// Whether it has been left for the next segment: there is a file for that until another timeline begins.
    pub is_left: bool,
    /// The life of an opening that was [taken back](crate::Log::withdraw), with its segments; zero if there is none.
    pub withdrawn: u64,
    /// The redo point of a checkpoint that is durable; zero if there is none.
    pub checkpoint: u64,
}

/// The checksum of a redo point; zero if there is none.
fn checkpoint_sum(redo: u64) -> u64 {
    if redo == 0 { 0 } else { checksum(&redo.to_le_bytes()) }
}

impl SegmentHeader {
    /// The first page of the segment.
    pub fn encode(&self) -> [u8; PAGE_SIZE] {
        let mut page = [0; PAGE_SIZE];
        page[..8].copy_from_slice(&MAGIC);
        page[8..12].copy_from_slice(&self.version.to_le_bytes());
        page[16..32].copy_from_slice(&self.database);
        let ends = [self.previous_end, self.previous_checksum];
        let words = [self.timeline, self.number, self.segment_bytes, ends[0], ends[1], self.life];
        for (to, word) in page[32..80].chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let sum = checksum(&page[..PAGE_SIZE - 8]);
        page[PAGE_SIZE - 8..].copy_from_slice(&sum.to_le_bytes());
        if self.version >= WITH_MARKS {
            let Marks { is_left, withdrawn, checkpoint } = self.marks;
            let words = [sum, u64::from(is_left), withdrawn, checkpoint, checkpoint_sum(checkpoint)];
            for (to, word) in page[MARKS].chunks_exact_mut(8).zip(words) {
                to.copy_from_slice(&word.to_le_bytes());
            }
        }
        page
    }

    /// What the first page of a file says.
    pub fn decode(page: &[u8; PAGE_SIZE]) -> HeaderPage {
        let word = |at: usize| {
            page.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
        };
        if page[..8] != MAGIC {
            return HeaderPage::None;
        }
        let mut unmarked = *page;
        unmarked[MARKS].fill(0);
        if word(PAGE_SIZE - 8) != checksum(&unmarked[..PAGE_SIZE - 8]) {
            return HeaderPage::Damaged;
        }
        let version = word(8) as u32;
        if !(1..=FORMAT_VERSION).contains(&version) {
            return HeaderPage::Version(version);
        }
        // A database whose file is no older copy is not refused for a flipped bit.
        let checkpoint = Some(word(536)).filter(|redo| checkpoint_sum(*redo) == word(544)).unwrap_or(0);
        let marks = Marks { is_left: word(520) == 1, withdrawn: word(528), checkpoint };
        let are_its_own = version >= WITH_MARKS && word(512) == word(PAGE_SIZE - 8);
        let mut database = [0; 16];
        database.copy_from_slice(&page[16..32]);
        HeaderPage::Sound(Self {
            database,
            timeline: word(32),
            number: word(40),
            segment_bytes: word(48),
            previous_end: word(56),
            previous_checksum: word(64),
            life: word(72),
            version,
            marks: if are_its_own { marks } else { Marks::default() },
        })
    }

    /// Where the log ended before this segment.
    pub fn end_before(&self) -> EndBefore {
        EndBefore { lsn: Lsn(self.previous_end), checksum: self.previous_checksum }
    }

    /// Whether the next segment of this timeline has a durable first page before anything else is written to it.
    pub fn is_followed_by_durable_header(&self) -> bool {
        self.version >= WITH_DURABLE_HEADER
    }

    /// The salt of the checksums of the frames that begin in this segment.
    pub fn salt(&self) -> u64 {
        salt(self.database, self.timeline)
    }
}

/// Where a log ended before a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EndBefore {
    pub lsn: Lsn,
    /// The checksum of what the segment of that place holds up to it; 0 if it is not known.
    pub checksum: u64,
}

/// The salt of the frames of one timeline of a database.
pub(crate) fn salt(database: [u8; 16], timeline: u64) -> u64 {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(&database);
    bytes[16..].copy_from_slice(&timeline.to_le_bytes());
    xxh3_64(&bytes)
}

/// What lies at the beginning of a segment's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeaderPage {
    /// Nothing that was ever a header.
    None,
    /// A header that was not written completely, or has changed since.
    Damaged,
    /// The header of a version that this program does not know.
    Version(u32),
    Sound(SegmentHeader),
}

/// The name of the file of a segment.
pub fn name(number: u64) -> String {
    format!("{PREFIX}{number:016x}")
}

/// Whether a name is that of a file of a log.
pub fn is_segment(name: &str) -> bool {
    name == UNFINISHED || name == BUFFER || number_of(name).is_some()
}

/// The number of the segment that a file is, if it is one.
pub(crate) fn number_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX).filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn header() -> SegmentHeader {
        SegmentHeader {
            database: *b"0123456789abcdef",
            timeline: 3,
            number: 9,
            segment_bytes: 1 << 16,
            previous_end: 77,
            previous_checksum: 88,
            life: 99,
            version: FORMAT_VERSION,
            marks: Marks::default(),
        }
    }

    #[test]
    fn a_header_comes_back_and_damage_is_found() {
        let page = header().encode();
        assert_eq!(SegmentHeader::decode(&page), HeaderPage::Sound(header()));
        assert_eq!(SegmentHeader::decode(&[0; PAGE_SIZE]), HeaderPage::None);
        for byte in [8, 33, 41, 500, 1024, PAGE_SIZE - 1] {
            let mut damaged = page;
            damaged[byte] ^= 4;
            assert_eq!(SegmentHeader::decode(&damaged), HeaderPage::Damaged);
        }
        for (is_left, withdrawn, checkpoint) in
            [(true, 0, 0), (false, 7, 0), (true, u64::MAX, 5), (false, 0, u64::MAX)]
        {
            let marked = SegmentHeader { marks: Marks { is_left, withdrawn, checkpoint }, ..header() };
            assert_eq!(SegmentHeader::decode(&marked.encode()), HeaderPage::Sound(marked));
            // Each sector of the page as it was before or after it was marked.
            for sectors in 0..256 {
                let mut torn = page;
                for sector in (0..8).filter(|sector| sectors >> sector & 1 > 0) {
                    let bytes = sector * 512..sector * 512 + 512;
                    torn[bytes.clone()].copy_from_slice(&marked.encode()[bytes]);
                }
                let expected = if sectors & 2 > 0 { marked } else { header() };
                assert_eq!(SegmentHeader::decode(&torn), HeaderPage::Sound(expected));
            }
            // The file was recycled, and only the marks are left of what it was.
            let mut recycled = SegmentHeader { number: 10, ..header() }.encode();
            recycled[512..1024].copy_from_slice(&marked.encode()[512..1024]);
            let other = SegmentHeader { number: 10, ..header() };
            assert_eq!(SegmentHeader::decode(&recycled), HeaderPage::Sound(other));
            let first = SegmentHeader { version: 1, ..marked };
            let read = SegmentHeader { version: 1, ..header() };
            assert_eq!(SegmentHeader::decode(&first.encode()), HeaderPage::Sound(read));
        }
        // A checkpoint counts only with its checksum.
        let mut flipped =
            SegmentHeader { marks: Marks { checkpoint: 5, ..Marks::default() }, ..header() }.encode();
        flipped[537] ^= 4;
        assert_eq!(SegmentHeader::decode(&flipped), HeaderPage::Sound(header()));
        let mut later = page;
        later[8] = 9;
        later[MARKS].fill(0);
        let sum = checksum(&later[..PAGE_SIZE - 8]);
        later[PAGE_SIZE - 8..].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(SegmentHeader::decode(&later), HeaderPage::Version(9));
    }

    #[test]
    fn places_map_to_segments_and_back() {
        let geometry = Geometry { segment_bytes: 3 * PAGE_SIZE as u64 };
        assert_eq!((geometry.number(8191), geometry.number(8192)), (0, 1));
        assert_eq!((geometry.offset(8191), geometry.offset(8192)), (12287, 4096));
        assert_eq!(geometry.start(2), 16384);
    }

    #[test]
    fn names_are_numbers() {
        assert_eq!(name(0xabc), "segment-0000000000000abc");
        assert_eq!(number_of(&name(u64::MAX)), Some(u64::MAX));
        for other in ["segment-abc", "segment-000000000000000g", "unfinished", ""] {
            assert_eq!(number_of(other), None);
        }
    }
}
