//! The layout of the file: blocks, pages, places, and the words that describe them.
//!
//! The constants here, and those of `superblock.rs`, define the format; FILE_FORMAT.md describes it.

use crate::lock::LOCK_MASK;
use vellum_base::PAGE_SIZE;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// How many pages at the beginning hold the superblocks and the word that follows them.
pub const META_PAGES: u64 = 3;
/// The offset of the word that says how many blocks are used.
pub const BLOCKS_END_AT: u64 = 8192;

/// A page of records of one size.
pub const KIND_FIXED: u64 = 1;
/// One or several pages of consecutive records of any size.
pub const KIND_LOG: u64 = 2;
/// The first page of several blocks with one large record.
pub const KIND_LARGE: u64 = 3;

/// The bit at which the kind begins in the first word of a page.
pub const KIND_SHIFT: u32 = 8;
/// The bit at which the number of pages begins.
pub const SPAN_SHIFT: u32 = 16;
/// The bit at which the check begins.
pub const PAGE_CHECK_SHIFT: u32 = 32;
/// How many records one word of occupancy bits represents; its check is in the bits above.
pub const OCCUPANCY_BITS: u32 = 48;
/// The offset of the words of occupancy bits in a page.
pub const OCCUPANCY_AT: u64 = 8;
/// The offset of the number of blocks of a large record.
pub const LARGE_BLOCKS_AT: u64 = 8;
/// The offset of the word of a log that says up to where its records must be right.
pub const LOG_SETTLED_AT: u64 = 8;
/// Its value if all records must be right, because records carry no checksums.
pub const LOG_SETTLED_ALL: u64 = 0xffff_ffff_ffff;
/// The offset of the records of a log.
pub const LOG_AT: u64 = 16;
/// Sequence number, checksums and changed word before each key, in bytes.
pub const RECORD_HEAD_BYTES: usize = 24;
/// The longest value, in bytes, of which one word is changed with one fence: recovery may have to find out which word.
pub const ONE_FENCE_BYTES_MAX: usize = 4096;
/// The size word before the head of a record of variable size, in bytes.
pub const SIZE_WORD_BYTES: usize = 8;

/// Bit of a size word: there is a record.
pub const SIZE_VALID: u64 = 1;
/// Bit of a size word: the record is no longer valid.
pub const SIZE_RETRACTED: u64 = 2;
/// The bit at which the key's length begins in a size word.
pub const KEY_SHIFT: u32 = 2;
/// The bit at which the value's length begins.
pub const VALUE_SHIFT: u32 = 18;
/// The bit at which the check begins.
pub const SIZE_CHECK_SHIFT: u32 = 50;
/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 65_535;
/// The longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 4_294_967_295;

/// How many bits of a place name the record in its page.
pub const RECORD_BITS: u32 = 16;
/// How many bits of a place name the page in its block, at least.
pub const PAGE_BITS: u32 = 3;

/// The sizes and numbers that follow from the options with which a store was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Pages in a block.
    pub pages: u32,
    page_bits: u32,
}

/// Where a record is: block, page, and the record in it, from the highest bits down. Never zero, as the first block
/// holds the superblocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place(pub u64);

impl Geometry {
    /// The geometry for blocks of `pages` pages, 1 to 64.
    pub fn new(pages: u32) -> Self {
        let page_bits = PAGE_BITS.max(pages.next_power_of_two().trailing_zeros());
        Self { pages, page_bits }
    }

    /// Bytes of a block.
    #[inline]
    pub fn block_bytes(self) -> u64 {
        u64::from(self.pages) * PAGE_SIZE as u64
    }

    /// The first block that holds records.
    #[inline]
    pub fn first_block(self) -> u64 {
        META_PAGES.div_ceil(u64::from(self.pages))
    }

    /// How many whole blocks fit into `bytes` bytes.
    #[inline]
    pub fn blocks_in(self, bytes: u64) -> u64 {
        bytes / self.block_bytes()
    }

    /// The offset of a block.
    #[inline]
    pub fn block_at(self, block: u64) -> u64 {
        block * self.block_bytes()
    }

    /// The offset of a page.
    #[inline]
    pub fn page_at(self, block: u64, page: u32) -> u64 {
        self.block_at(block) + u64::from(page) * PAGE_SIZE as u64
    }

    /// The place of a record.
    #[inline]
    pub fn place(self, block: u64, page: u32, record: u32) -> Place {
        debug_assert!(record < 1 << RECORD_BITS && page < self.pages);
        Place((((block << self.page_bits) | u64::from(page)) << RECORD_BITS) | u64::from(record))
    }

    /// The block of a place.
    #[inline]
    pub fn block_of(self, place: Place) -> u64 {
        place.0 >> (RECORD_BITS + self.page_bits)
    }

    /// The page of a place in its block.
    #[inline]
    pub fn page_of(self, place: Place) -> u32 {
        ((place.0 >> RECORD_BITS) & ((1 << self.page_bits) - 1)) as u32
    }

    /// The offset of the page of a place.
    #[inline]
    pub fn page_at_of(self, place: Place) -> u64 {
        self.page_at(self.block_of(place), self.page_of(place))
    }

    /// The record of a place in its page.
    #[inline]
    pub fn record_of(self, place: Place) -> u32 {
        (place.0 & ((1 << RECORD_BITS) - 1)) as u32
    }
}

/// Mixes a word's bits well; the result is the same on every machine and at all times.
#[inline]
pub fn mix(mut word: u64) -> u64 {
    word ^= word >> 32;
    word = word.wrapping_mul(0xd6e8_feb8_6659_fd93);
    word ^= word >> 32;
    word = word.wrapping_mul(0xd6e8_feb8_6659_fd93);
    word ^ (word >> 32)
}

/// The first word of a page, without its lock byte.
#[inline]
pub fn page_word(block: u64, page: u32, kind: u64, span: u32) -> u64 {
    let said = (kind << KIND_SHIFT) | (u64::from(span) << SPAN_SHIFT);
    said | (mix(said ^ mix((block << 8) | u64::from(page) | 1 << 63)) >> 32 << PAGE_CHECK_SHIFT)
}

/// The meaning of the first word of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageWord {
    /// The page, and the rest of its block if it is the first, means nothing.
    Unformatted,
    /// It has a kind, and extends over a number of pages.
    Formatted {
        /// Its kind.
        kind: u64,
        /// How many pages.
        span: u32,
    },
    /// It is damaged.
    Damaged,
}

/// Reads the first word of a page; the lock byte is ignored.
#[inline]
pub fn read_page_word(word: u64, block: u64, page: u32) -> PageWord {
    let word = word & !LOCK_MASK;
    if word == 0 {
        return PageWord::Unformatted;
    }
    let (kind, span) = ((word >> KIND_SHIFT) & 0xff, ((word >> SPAN_SHIFT) & 0xffff) as u32);
    if word == page_word(block, page, kind, span) && span > 0 {
        PageWord::Formatted { kind, span }
    } else {
        PageWord::Damaged
    }
}

/// Occupancy bits with their check, for the word at byte `at`. Without any bits the word is zero.
#[inline]
pub fn occupancy_word(at: u64, bits: u64) -> u64 {
    let check = |bits: u64| mix(bits ^ mix(at)) >> OCCUPANCY_BITS;
    bits | ((check(bits) ^ check(0)) << OCCUPANCY_BITS)
}

/// The bits of an occupancy word, if its check is right.
#[inline]
pub fn read_occupancy(at: u64, word: u64) -> Option<u64> {
    let bits = word & ((1 << OCCUPANCY_BITS) - 1);
    (occupancy_word(at, bits) == word).then_some(bits)
}

/// The size word of a record at byte `at`.
#[inline]
pub fn size_word(at: u64, key_bytes: usize, value_bytes: usize, flags: u64) -> u64 {
    let said = flags | ((key_bytes as u64) << KEY_SHIFT) | ((value_bytes as u64) << VALUE_SHIFT);
    said | (mix(said ^ mix(at)) >> SIZE_CHECK_SHIFT << SIZE_CHECK_SHIFT)
}

/// The meaning of a size word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SizeWord {
    /// There is no record: the log ends here.
    End,
    /// There is a record.
    Record {
        /// Length of its key, in bytes.
        key_bytes: usize,
        /// Length of its value, in bytes.
        value_bytes: usize,
        /// Whether it is still valid.
        live: bool,
    },
    /// It is damaged.
    Damaged,
}

/// Reads the size word at byte `at`.
#[inline]
pub fn read_size_word(at: u64, word: u64) -> SizeWord {
    if word == 0 {
        return SizeWord::End;
    }
    let key_bytes = ((word >> KEY_SHIFT) & 0xffff) as usize;
    let value_bytes = ((word >> VALUE_SHIFT) & 0xffff_ffff) as usize;
    let flags = word & (SIZE_VALID | SIZE_RETRACTED);
    if flags & SIZE_VALID == 0 || size_word(at, key_bytes, value_bytes, flags) != word {
        return SizeWord::Damaged;
    }
    SizeWord::Record { key_bytes, value_bytes, live: flags & SIZE_RETRACTED == 0 }
}

/// A number below 2^48 with a check, for a word that must change atomically.
#[inline]
pub fn checked_number(at: u64, number: u64) -> u64 {
    let number = number & ((1 << 48) - 1);
    number | (mix(number ^ mix(at)) >> 48 << 48)
}

/// The number of such a word, if its check is right.
#[inline]
pub fn read_checked_number(at: u64, word: u64) -> Option<u64> {
    let number = word & ((1 << 48) - 1);
    (checked_number(at, number) == word).then_some(number)
}

/// The word of checksums of a record of one size at byte `at` that is no longer valid.
#[inline]
pub fn retracted_sums(at: u64) -> u64 {
    mix(!at)
}

/// The checksum of a record: it covers the sequence number, the key, the value, and the division of the bytes between
/// them.
#[inline]
pub fn record_sum(sequence: u64, key: &[u8], value: &[u8]) -> u32 {
    let seed = xxh3_64_with_seed(key, sequence ^ ((key.len() as u64) << 48));
    xxh3_64_with_seed(value, seed) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_apart_as_they_were_put_together() {
        for pages in [1, 2, 6, 8, 9, 64] {
            let geometry = Geometry::new(pages);
            let block = (1 << (48 - geometry.page_bits)) - 1;
            let place = geometry.place(block, pages - 1, 65_535);
            assert_eq!(geometry.block_of(place), block);
            assert_eq!(geometry.page_of(place), pages - 1);
            assert_eq!(geometry.record_of(place), 65_535);
        }
        assert_eq!(Geometry::new(6).page_bits, 3, "the default is 45, 3 and 16 bits");
    }

    #[test]
    fn every_flipped_bit_of_a_word_is_noticed_but_in_the_lock_byte() {
        let page = page_word(7, 3, KIND_LOG, 2);
        let occupancy = occupancy_word(4096, 0xdead_beef);
        let size = size_word(4096, 16, 200, SIZE_VALID);
        let number = checked_number(8192, 12_345);
        assert_eq!(read_page_word(page | 0x55, 7, 3), PageWord::Formatted { kind: KIND_LOG, span: 2 });
        assert_eq!(read_occupancy(4096, occupancy), Some(0xdead_beef));
        assert_eq!(read_checked_number(8192, number), Some(12_345));
        let record = SizeWord::Record { key_bytes: 16, value_bytes: 200, live: true };
        assert_eq!(read_size_word(4096, size), record);
        for bit in 0..64 {
            let flip = 1 << bit;
            assert!(bit < 8 || read_page_word(page ^ flip, 7, 3) == PageWord::Damaged, "{bit}");
            assert_eq!(read_occupancy(4096, occupancy ^ flip), None, "{bit}");
            assert_eq!(read_size_word(4096, size ^ flip), SizeWord::Damaged, "{bit}");
            assert_eq!(read_checked_number(8192, number ^ flip), None, "{bit}");
        }
        assert_eq!(read_page_word(page, 8, 3), PageWord::Damaged, "in the wrong place");
        assert_eq!((occupancy_word(99, 0), read_size_word(1, 0)), (0, SizeWord::End));
    }

    #[test]
    fn a_sum_depends_on_every_part() {
        let sum = record_sum(1, b"key", b"value");
        assert_ne!(sum, record_sum(2, b"key", b"value"));
        assert_ne!(sum, record_sum(1, b"keyv", b"alue"));
        assert_ne!(sum, record_sum(1, b"kez", b"value"));
        assert_ne!(sum, record_sum(1, b"key", b"valuf"));
    }
}
