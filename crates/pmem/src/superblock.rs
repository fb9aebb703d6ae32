//! The description of a store: two copies of the same superblock, written when the store is created and never again.

use crate::{
    error::{Damage, PmemError, Result},
    layout::{BLOCKS_END_AT, Geometry, checked_number},
    medium::{Lane, Medium, Site},
    memory::{WORD, load_bytes, store_bytes},
    options::Options,
};
use std::{path::Path, sync::atomic::Ordering};
use vellum_base::{PAGE_SIZE, checksum};

/// The first bytes of a superblock.
pub const MAGIC: [u8; 8] = *b"VELLUMPM";
/// The version of the format. Earlier versions differ in the layout of records, and are refused.
pub const FORMAT_VERSION: u32 = 4;
/// Bytes of a superblock; zeroes fill its page.
pub const SUPERBLOCK_BYTES: usize = 72;
/// Flag of a superblock: records carry checksums.
pub const FLAG_CHECKSUMS: u32 = 1;
/// Kind of a store: records of one size.
pub const STORE_FIXED: u32 = 1;
/// Kind of a store: records of any size.
pub const STORE_VARIABLE: u32 = 2;

/// The description of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Pages in a block.
    pub pages_per_block: u32,
    /// How much is mapped at once, in bytes.
    pub chunk_bytes: u64,
    /// Whether records carry checksums.
    pub checksums: bool,
    /// The kind of its records.
    pub shape: Shape,
}

/// The shape of the records of a store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Shape {
    /// All keys have one length and all values have one length, in bytes.
    Fixed {
        /// Length of a key.
        key_bytes: u32,
        /// Length of a value.
        value_bytes: u32,
    },
    /// Any length.
    Variable,
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fixed { key_bytes, value_bytes } => {
                write!(f, "keys of {key_bytes} bytes and values of {value_bytes} bytes")
            }
            Self::Variable => f.write_str("keys and values of any length"),
        }
    }
}

impl Superblock {
    /// The superblock of a new store of this shape.
    pub fn new(shape: Shape, options: &Options) -> Self {
        Self {
            pages_per_block: options.pages_per_block,
            chunk_bytes: options.chunk_bytes,
            checksums: options.checksums,
            shape,
        }
    }

    fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let (kind, key_bytes, value_bytes) = match self.shape {
            Shape::Fixed { key_bytes, value_bytes } => (STORE_FIXED, key_bytes, value_bytes),
            Shape::Variable => (STORE_VARIABLE, 0, 0),
        };
        let flags = if self.checksums { FLAG_CHECKSUMS } else { 0 };
        let mut out = [0; SUPERBLOCK_BYTES];
        let numbers =
            [FORMAT_VERSION, PAGE_SIZE as u32, self.pages_per_block, flags, kind, key_bytes, value_bytes];
        out[..8].copy_from_slice(&MAGIC);
        for (number, to) in numbers.iter().zip(out[8..36].chunks_exact_mut(4)) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        out[40..48].copy_from_slice(&self.chunk_bytes.to_le_bytes());
        let sum = checksum(&out[..SUPERBLOCK_BYTES - 8]);
        out[SUPERBLOCK_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8; SUPERBLOCK_BYTES]) -> Result<Self, Invalid> {
        let number = |at: usize| {
            bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |chunk| u32::from_le_bytes(*chunk))
        };
        let long = |at: usize| u64::from(number(at)) | u64::from(number(at + 4)) << 32;
        if !bytes.starts_with(&MAGIC) {
            return Err(if bytes.iter().all(|byte| *byte == 0) { Invalid::Empty } else { Invalid::Foreign });
        }
        // Checked before the checksum, so that a later version is reported as that and not as damage.
        if number(8) > FORMAT_VERSION {
            return Err(Invalid::Version(number(8)));
        }
        if checksum(&bytes[..SUPERBLOCK_BYTES - 8]) != long(SUPERBLOCK_BYTES - 8) {
            return Err(Invalid::Damaged);
        }
        if number(8) < FORMAT_VERSION {
            return Err(Invalid::Version(number(8)));
        }
        let shape = match number(24) {
            STORE_FIXED => Shape::Fixed { key_bytes: number(28), value_bytes: number(32) },
            STORE_VARIABLE => Shape::Variable,
            _ => return Err(Invalid::Damaged),
        };
        let superblock = Self {
            pages_per_block: number(16),
            chunk_bytes: long(40),
            checksums: number(20) & FLAG_CHECKSUMS != 0,
            shape,
        };
        let sane = number(12) == PAGE_SIZE as u32
            && (1..=64).contains(&superblock.pages_per_block)
            && superblock.chunk_bytes > 0
            && superblock.chunk_bytes.is_multiple_of(1 << 20);
        if sane { Ok(superblock) } else { Err(Invalid::Damaged) }
    }

    /// Durably invalidates whatever a medium holds: first the superblocks, so that no parts of an older store remain,
    /// then the heads of all blocks, which become durable before recovery looks at them. A file that was just created
    /// holds nothing; a device may hold anything.
    ///
    /// # Errors
    /// If that cannot be made durable.
    pub fn clear<M: Medium>(medium: &M, lane: &mut Lane, geometry: Geometry) -> Result<()> {
        let blocks = geometry.blocks_in(medium.capacity());
        if blocks <= geometry.first_block() {
            return Ok(());
        }
        let clear = |at: u64, words: usize| {
            medium.memory().words(at, words).iter().for_each(|word| word.store(0, Ordering::Relaxed));
            medium.touched(at, words * WORD);
        };
        for at in [0, PAGE_SIZE as u64] {
            clear(at, SUPERBLOCK_BYTES / WORD);
            medium.flush(lane, Site::OldSuperblock, at, SUPERBLOCK_BYTES);
        }
        medium.fence(lane, Site::OldSuperblock)?;
        // These are flushed before the number of used blocks is raised over them, see `Space`.
        for block in geometry.first_block()..blocks {
            clear(geometry.block_at(block), 1);
        }
        Ok(())
    }

    /// Durably writes both copies, and records that no blocks are used.
    ///
    /// # Errors
    /// If they cannot be made durable.
    pub fn write<M: Medium>(&self, medium: &M, lane: &mut Lane, first_block: u64) -> Result<()> {
        let memory = medium.memory();
        memory.word(BLOCKS_END_AT).store(checked_number(BLOCKS_END_AT, first_block), Ordering::Relaxed);
        medium.touched(BLOCKS_END_AT, 8);
        medium.flush(lane, Site::BlocksEnd, BLOCKS_END_AT, 8);
        // Before the superblocks: if one is valid, there is a store.
        medium.fence(lane, Site::BlocksEnd)?;
        let bytes = self.encode();
        for at in [0, PAGE_SIZE as u64] {
            store_bytes(memory.words(at, SUPERBLOCK_BYTES / 8), &bytes);
            medium.touched(at, SUPERBLOCK_BYTES);
            medium.flush(lane, Site::Superblock, at, SUPERBLOCK_BYTES);
        }
        medium.fence(lane, Site::Superblock)
    }

    /// Reads the superblock: the first valid copy counts.
    ///
    /// # Errors
    /// [`PmemError::NotAStore`], [`PmemError::Version`], or [`Damage::Superblocks`].
    pub fn read<M: Medium>(medium: &M, path: &Path) -> Result<Self> {
        let not_a_store = |reason| PmemError::NotAStore { path: path.to_owned(), reason };
        if medium.capacity() < 2 * PAGE_SIZE as u64 + 8 {
            return Err(not_a_store("it is too short to hold superblocks"));
        }
        let copies = [0, PAGE_SIZE as u64].map(|at| {
            let mut bytes = [0; SUPERBLOCK_BYTES];
            load_bytes(medium.memory().words(at, SUPERBLOCK_BYTES / 8), &mut bytes);
            Self::decode(&bytes)
        });
        match copies {
            [Ok(superblock), _] | [_, Ok(superblock)] => Ok(superblock),
            [Err(Invalid::Version(found)), _] | [_, Err(Invalid::Version(found))] => {
                Err(PmemError::Version { path: path.to_owned(), found, known: FORMAT_VERSION })
            }
            [Err(Invalid::Empty), Err(Invalid::Empty)] => Err(not_a_store(
                "it begins with zeroes: perhaps its creation was interrupted; delete it then",
            )),
            [Err(Invalid::Damaged), _] | [_, Err(Invalid::Damaged)] => {
                Err(PmemError::Damaged(Damage::Superblocks))
            }
            _ => Err(not_a_store("it does not begin as one")),
        }
    }
}

/// Why a superblock is not valid.
enum Invalid {
    Empty,
    Foreign,
    Version(u32),
    Damaged,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_superblock_comes_back_and_every_flipped_bit_is_noticed() {
        let shape = Shape::Fixed { key_bytes: 16, value_bytes: 200 };
        let superblock = Superblock::new(shape, &Options { checksums: false, ..Options::default() });
        let mut bytes = superblock.encode();
        assert!(Superblock::decode(&bytes).is_ok_and(|read| read == superblock));
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(&bytes).is_err(), "{bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        bytes[8] = 5;
        assert!(matches!(Superblock::decode(&bytes), Err(Invalid::Version(5))));
        bytes[8] = 3;
        assert!(
            matches!(Superblock::decode(&bytes), Err(Invalid::Damaged)),
            "its checksum is that of another version"
        );
        let sum = checksum(&bytes[..SUPERBLOCK_BYTES - 8]);
        bytes[SUPERBLOCK_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
        assert!(matches!(Superblock::decode(&bytes), Err(Invalid::Version(3))));
    }
}
