//! The format of a backup's file: see *Backups* in FILE_FORMAT.md.

use crate::backup_error::BackupError;
use vellum_base::{Bytes, PAGE_SIZE, checksum};

const MAGIC: [u8; 8] = *b"VELLUMBK";
/// The version of the format of backups.
const FORMAT_VERSION: u32 = 1;
const KIND_FULL: u32 = 1;
const KIND_INCREMENT: u32 = 2;
const FRAME_PAGES: u32 = 1;
const FRAME_LOG: u32 = 2;
const FRAME_END: u32 = 3;
/// The offset of the checksum in the first page, and in a frame's first page.
const CHECKSUM_AT: usize = 4088;
/// The offset of the places in a frame's first page.
const PLACES_AT: usize = 48;
/// The most pages that a frame holds after its first.
pub(super) const FRAME_PAGES_MAX: usize = 256;
/// The most places of a frame.
pub(super) const FRAME_PLACES_MAX: usize = 252;

/// Two numbers that say where a piece belongs.
pub(super) type Place = (u64, u64);

/// The first page of a backup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    /// Random.
    pub id: [u8; 16],
    /// The id of the backup on which this one is based, if it is an increment.
    pub former: Option<[u8; 16]>,
    pub database: [u8; 16],
    /// When it was begun, in nanoseconds since 1970.
    pub begun: u64,
    pub basis_bytes: u64,
    pub basis_checksum: u64,
    /// The size of the log's segments; zero if there is no log.
    pub segment_bytes: u64,
}

impl Header {
    pub fn encode(&self, page: &mut [u8]) {
        page.fill(0);
        let kind = if self.former.is_some() { KIND_INCREMENT } else { KIND_FULL };
        put(page, 0, &MAGIC);
        put(page, 8, &FORMAT_VERSION.to_le_bytes());
        put(page, 12, &kind.to_le_bytes());
        put(page, 16, &self.id);
        put(page, 32, &self.former.unwrap_or_default());
        put(page, 48, &self.database);
        let words = [self.begun, self.basis_bytes, self.basis_checksum, self.segment_bytes];
        words.iter().zip((64..).step_by(8)).for_each(|(word, at)| put(page, at, &word.to_le_bytes()));
        seal(page);
    }

    pub fn decode(page: &[u8]) -> Result<Self, BackupError> {
        if page.get(..8) != Some(&MAGIC) {
            return Err(BackupError::Foreign);
        }
        let damaged = |what: &str| BackupError::Damaged { what: what.to_owned() };
        let version = page.u32_at(8);
        if !is_sealed(page) {
            return Err(damaged("the checksum of its first page is wrong"));
        }
        if version != FORMAT_VERSION {
            return Err(BackupError::Version { version });
        }
        let former = match page.u32_at(12) {
            KIND_FULL => None,
            KIND_INCREMENT => Some(id_at(page, 32)),
            _ => return Err(damaged("its kind is unknown")),
        };
        Ok(Self {
            id: id_at(page, 16),
            former,
            database: id_at(page, 48),
            begun: page.u64_at(64),
            basis_bytes: page.u64_at(72),
            basis_checksum: page.u64_at(80),
            segment_bytes: page.u64_at(88),
        })
    }
}

/// What a frame holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Pages of the database.
    Pages,
    /// Pages of a segment of the log.
    Log,
    /// Nothing: this is the last frame, which describes the backup.
    End,
}

/// The first page of a frame, without its places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FrameHeader {
    pub kind: Kind,
    pub payload_bytes: u64,
    pub checksum: u64,
    pub number: u64,
    /// The id of the backup.
    pub id: [u8; 16],
}

impl FrameHeader {
    pub fn encode(&self, places: &[Place], page: &mut [u8]) {
        page.fill(0);
        let kind = match self.kind {
            Kind::Pages => FRAME_PAGES,
            Kind::Log => FRAME_LOG,
            Kind::End => FRAME_END,
        };
        put(page, 0, &kind.to_le_bytes());
        put(page, 4, &(places.len() as u32).to_le_bytes());
        let words = [self.payload_bytes, self.checksum, self.number];
        words.iter().zip((8..).step_by(8)).for_each(|(word, at)| put(page, at, &word.to_le_bytes()));
        put(page, 32, &self.id);
        for ((first, second), at) in places.iter().zip((PLACES_AT..).step_by(16)) {
            put(page, at, &first.to_le_bytes());
            put(page, at + 8, &second.to_le_bytes());
        }
        seal(page);
    }

    /// The frame that begins with this page, and its places; `None` if no frame does.
    pub fn decode(page: &[u8]) -> Option<(Self, Vec<Place>)> {
        let kind = match page.u32_at(0) {
            FRAME_PAGES => Kind::Pages,
            FRAME_LOG => Kind::Log,
            FRAME_END => Kind::End,
            _ => return None,
        };
        let places = page.u32_at(4) as usize;
        let payload_bytes = page.u64_at(8);
        let is_sound = is_sealed(page)
            && places <= FRAME_PLACES_MAX
            && payload_bytes <= (FRAME_PAGES_MAX * PAGE_SIZE) as u64
            && payload_bytes.is_multiple_of(PAGE_SIZE as u64);
        let place = |at| (page.u64_at(at), page.u64_at(at + 8));
        let frame = Self {
            kind,
            payload_bytes,
            checksum: page.u64_at(16),
            number: page.u64_at(24),
            id: id_at(page, 32),
        };
        is_sound.then(|| (frame, (PLACES_AT..).step_by(16).take(places).map(place).collect()))
    }
}

fn put(page: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(target) = page.get_mut(at..at + bytes.len()) {
        target.copy_from_slice(bytes);
    }
}

fn id_at(page: &[u8], at: usize) -> [u8; 16] {
    page.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default()
}

fn seal(page: &mut [u8]) {
    let sum = checksum(page.get(..CHECKSUM_AT).unwrap_or_default());
    put(page, CHECKSUM_AT, &sum.to_le_bytes());
}

fn is_sealed(page: &[u8]) -> bool {
    page.len() == PAGE_SIZE
        && checksum(page.get(..CHECKSUM_AT).unwrap_or_default()) == page.u64_at(CHECKSUM_AT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_pages_come_back_and_every_flipped_byte_is_noticed() {
        let header = Header {
            id: [7; 16],
            former: Some([8; 16]),
            database: [9; 16],
            begun: 1,
            basis_bytes: 8192,
            basis_checksum: 3,
            segment_bytes: 4,
        };
        let frame = FrameHeader { kind: Kind::Log, payload_bytes: 4096, checksum: 5, number: 6, id: [7; 16] };
        let places = [(1, 2), (3, 4)];
        let (mut first, mut second) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
        header.encode(&mut first);
        frame.encode(&places, &mut second);
        assert_eq!(Header::decode(&first).unwrap(), header);
        assert_eq!(FrameHeader::decode(&second).unwrap(), (frame, places.to_vec()));
        for at in 0..PAGE_SIZE {
            first[at] ^= 0x40;
            second[at] ^= 0x40;
            assert!(Header::decode(&first).is_err() && FrameHeader::decode(&second).is_none(), "{at}");
            first[at] ^= 0x40;
            second[at] ^= 0x40;
        }
        assert!(matches!(Header::decode(&[0; PAGE_SIZE]), Err(BackupError::Foreign)));
    }
}
