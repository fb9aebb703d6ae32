//! The two pages at the beginning of a file that identify it and locate its parts.
//!
//! They are written alternately, each time with a higher generation, so that a torn write leaves the other one. Layout
//! after the page header, little-endian:
//!
//! | bytes | field |
//! |---|---|
//! | 32..40 | magic `VELLUMDB` |
//! | 40..44 | format version |
//! | 44..48 | page size in bytes |
//! | 48..56 | generation |
//! | 56..60 | state: 1 in use, 2 cleanly closed, 3 in use with a log |
//! | 60..64 | bit 0: a database is being restored into the file; bit 1: the log was archived at the last change; the others zero |
//! | 64..80 | name of the application, padded with zeroes |
//! | 80..88 | first page of the space map's extent, or 0 |
//! | 88..92 | its length in pages |
//! | 92..96 | zero |
//! | 96..104 | how many pages the space map covers |
//! | 104..232 | sixteen roots, which belong to the application |
//! | 232..248 | id of the database; zero in version 1 |
//! | 248..256 | redo point: an LSN; zero in version 1 |
//! | 256..264 | undo point: an LSN; zero in version 1 |
//! | 264..4072 | the latest lives, each of 16 bytes: a random number, and the LSN where the life before ended; zeroes follow |
//! | 4072..4080 | the LSN from which on all lives are noted, and one more; zero if that is unknown |
//!
//! Version 1 ends at byte 232, and has no state 3.

use super::lives::{Lives, SINCE_END};
use vellum_base::{
    Bytes, Extent, Lsn, PAGE_SIZE, PageHeader, PageId, PageKind, stamp_checksum, verify_header,
};

pub(crate) const MAGIC: [u8; 8] = *b"VELLUMDB";
pub(crate) const FORMAT_VERSION: u32 = 4;
/// Pages 0 and 1 are the superblocks.
pub(crate) const SUPERBLOCKS: u64 = 2;
/// The number of roots that an application can store.
pub const ROOTS: usize = 16;
/// The longest name of an application, in bytes.
pub const APPLICATION_BYTES: usize = 16;

/// The offset of the lives.
const LIVES_AT: usize = 264;
/// The length of the id of a database, in bytes.
pub(crate) const DATABASE_BYTES: usize = 16;

const BEING_RESTORED: u32 = 1;
const LOG_ARCHIVED: u32 = 2;

const STATE_IN_USE: u32 = 1;
const STATE_CLOSED: u32 = 2;
const STATE_LOGGED: u32 = 3;

/// How far the file's contents can be trusted.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It was changed and not closed: some of its pages are from one moment and some from another.
    #[default]
    InUse,
    /// It is complete.
    Closed,
    /// It was changed and not closed, and the log has all changes since the redo point.
    Logged,
}

#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) generation: u64,
    pub(crate) state: State,
    pub(crate) application: [u8; APPLICATION_BYTES],
    pub(crate) space_map: Option<Extent>,
    pub(crate) end: u64,
    pub(crate) roots: [u64; ROOTS],
    /// Distinguishes databases; zero if the file is of version 1.
    pub(crate) database: [u8; DATABASE_BYTES],
    /// All changes whose records lie before this place of the log are in the file.
    pub(crate) redo: Lsn,
    /// The records of everything not committed at the redo point begin at this place or later.
    pub(crate) undo: Lsn,
    /// None if no version that notes them has changed the file, or an earlier one has changed it without a log.
    pub(crate) lives: Lives,
    /// Whether a database is being restored into the file: it is not one yet.
    pub(crate) is_being_restored: bool,
    /// Whether the log was archived when the file was last changed.
    pub(crate) is_log_archived: bool,
    /// Whether the log is archived from the next change on. In memory only.
    pub(crate) archives_log: bool,
}

/// The result of decoding a superblock's page.
#[derive(Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there are two of them, when a file is opened")]
pub(crate) enum Decoded {
    Valid(Superblock),
    /// The magic is there and the version is later than ours. Without a sound checksum, which a later version may
    /// compute differently, this may also be damage.
    TooNew {
        version: u32,
        sound: bool,
    },
    /// The magic is there, the rest is damaged or was never finished.
    Damaged,
    /// There is no sign that this was ever a superblock.
    Foreign,
}

impl Superblock {
    /// The page that this generation is written to.
    pub(crate) fn page(&self) -> PageId {
        PageId(self.generation % SUPERBLOCKS)
    }

    pub(crate) fn encode(&self, bytes: &mut [u8]) {
        bytes.fill(0);
        let header =
            PageHeader { extent: Extent::page(self.page()), lsn: Lsn(0), kind: PageKind::SUPERBLOCK };
        header.write(bytes);
        let map = self.space_map.unwrap_or(Extent { head: PageId(0), pages: 0 });
        let Some(page) = bytes.first_chunk_mut::<PAGE_SIZE>() else { panic!("a superblock is a page") };
        page[32..40].copy_from_slice(&MAGIC);
        page[40..44].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        page[44..48].copy_from_slice(&(PAGE_SIZE as u32).to_le_bytes());
        page[48..56].copy_from_slice(&self.generation.to_le_bytes());
        let state = match self.state {
            State::InUse => STATE_IN_USE,
            State::Closed => STATE_CLOSED,
            State::Logged => STATE_LOGGED,
        };
        page[56..60].copy_from_slice(&state.to_le_bytes());
        let restored = if self.is_being_restored { BEING_RESTORED } else { 0 };
        let archived = if self.is_log_archived { LOG_ARCHIVED } else { 0 };
        page[60..64].copy_from_slice(&(restored | archived).to_le_bytes());
        page[64..80].copy_from_slice(&self.application);
        page[80..88].copy_from_slice(&map.head.0.to_le_bytes());
        page[88..92].copy_from_slice(&map.pages.to_le_bytes());
        page[96..104].copy_from_slice(&self.end.to_le_bytes());
        for (root, target) in self.roots.iter().zip(page[104..232].chunks_exact_mut(8)) {
            target.copy_from_slice(&root.to_le_bytes());
        }
        page[232..248].copy_from_slice(&self.database);
        page[248..256].copy_from_slice(&self.redo.0.to_le_bytes());
        page[256..264].copy_from_slice(&self.undo.0.to_le_bytes());
        self.lives.encode(&mut page[LIVES_AT..LIVES_AT + SINCE_END]);
        stamp_checksum(bytes);
    }

    /// Decodes superblock page `page` as it was read. The magic and the version are checked before the checksum, so
    /// that a later format is reported as such.
    pub(crate) fn decode(bytes: &[u8], page: PageId) -> Decoded {
        if bytes.get(32..40) != Some(&MAGIC) {
            return Decoded::Foreign;
        }
        let version = bytes.u32_at(40);
        let header = verify_header(bytes, Extent::page(page));
        if version > FORMAT_VERSION {
            return Decoded::TooNew { version, sound: header.is_ok() };
        }
        let sound = header.is_ok_and(|header| header.kind == PageKind::SUPERBLOCK)
            && version > 0
            && bytes.u32_at(44) == PAGE_SIZE as u32;
        let state = match bytes.u32_at(56) {
            STATE_IN_USE => State::InUse,
            STATE_CLOSED => State::Closed,
            STATE_LOGGED if version > 1 => State::Logged,
            _ => return Decoded::Damaged,
        };
        if !sound {
            return Decoded::Damaged;
        }
        let map = Extent { head: PageId(bytes.u64_at(80)), pages: bytes.u32_at(88) };
        let application = bytes.get(64..).and_then(|rest| rest.first_chunk());
        // Zero in version 1.
        let database = bytes.get(232..).and_then(|rest| rest.first_chunk());
        Decoded::Valid(Self {
            generation: bytes.u64_at(48),
            state,
            application: application.copied().unwrap_or_default(),
            space_map: (map.pages > 0).then_some(map),
            end: bytes.u64_at(96),
            roots: std::array::from_fn(|index| bytes.u64_at(104 + 8 * index)),
            database: database.copied().unwrap_or_default(),
            redo: Lsn(bytes.u64_at(248)),
            undo: Lsn(bytes.u64_at(256)),
            lives: Lives::decode(bytes.get(LIVES_AT..).unwrap_or_default()),
            is_being_restored: Self::is_marked(bytes),
            is_log_archived: bytes.u32_at(60) & LOG_ARCHIVED != 0,
            archives_log: bytes.u32_at(60) & LOG_ARCHIVED != 0,
        })
    }

    /// Whether a page that may be torn or damaged begins as a superblock of a file into which a database is being
    /// restored.
    pub(crate) fn is_marked(bytes: &[u8]) -> bool {
        bytes.get(32..40) == Some(&MAGIC) && bytes.u32_at(60) & BEING_RESTORED != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_superblock_comes_back_and_every_flipped_byte_is_noticed() {
        let mut lives = Lives::default();
        assert!((1..4).all(|begin| lives.begin(Lsn(begin)) > 0));
        let superblock = Superblock {
            generation: 7,
            state: State::Logged,
            application: *b"test\0\0\0\0\0\0\0\0\0\0\0\0",
            space_map: Some(Extent { head: PageId(9), pages: 3 }),
            end: 12,
            roots: std::array::from_fn(|index| index as u64),
            database: std::array::from_fn(|index| index as u8 + 100),
            redo: Lsn(0x1234_5678_9abc_def0),
            undo: Lsn(0x1234_5678_9abc_0000),
            lives,
            is_being_restored: true,
            is_log_archived: true,
            archives_log: true,
        };
        let mut bytes = vec![0u8; PAGE_SIZE];
        superblock.encode(&mut bytes);
        assert_eq!(Superblock::decode(&bytes, PageId(1)), Decoded::Valid(superblock.clone()));
        assert_eq!(Superblock::decode(&bytes, PageId(0)), Decoded::Damaged);
        for at in 0..PAGE_SIZE {
            bytes[at] ^= 0x40;
            assert_ne!(Superblock::decode(&bytes, PageId(1)), Decoded::Valid(superblock.clone()), "{at}");
            bytes[at] ^= 0x40;
        }
        bytes[40..44].copy_from_slice(&99u32.to_le_bytes());
        let too_new = |sound| Decoded::TooNew { version: 99, sound };
        assert_eq!(Superblock::decode(&bytes, PageId(1)), too_new(false));
        stamp_checksum(&mut bytes);
        assert_eq!(Superblock::decode(&bytes, PageId(1)), too_new(true));
        assert_eq!(Superblock::decode(&[0u8; PAGE_SIZE], PageId(0)), Decoded::Foreign);
    }
}
