//! Records of one size: pages of slots, with an occupancy bit for each.
//!
//! The first word of a page is its head; then come the words of occupancy bits, for 48 slots each, then the slots.
//! Their number is computed when the program is compiled.
//!
//! Where records carry checksums, a record is valid if its checksum is right: it takes one run of stores and one fence,
//! and no other line is written. The bit of a slot says that its record must be right. It is set once the record has
//! long been durable, together with those of the whole page; so a record that is not right and has no bit was torn by a
//! crash, and one that has a bit is damaged. Without checksums the bit makes a record valid, after a fence. The word of
//! checksums says that a record was retracted.

use super::{Extent, ExtentKind, Format, Layout, Next, Record, Walked};
use crate::{
    cpu::LINE,
    error::{Damage, Result},
    layout::{
        Geometry, KIND_FIXED, OCCUPANCY_AT, OCCUPANCY_BITS, PageWord, Place, RECORD_HEAD_BYTES,
        occupancy_word, page_word, read_occupancy, read_page_word, retracted_sums,
    },
    lock,
    medium::{Lane, Medium, Site},
    memory::{WORD, padded},
    superblock::Shape,
};
use std::sync::atomic::Ordering;
use vellum_base::PAGE_SIZE;

/// The layout of records with keys of `K` bytes and values of `V` bytes.
#[derive(Debug)]
pub struct Fixed<const K: usize, const V: usize>;

/// The offset of the slots in a page with this number of slots.
const fn slots_at(slots: usize, alignment: usize) -> usize {
    (OCCUPANCY_AT as usize + slots.div_ceil(OCCUPANCY_BITS as usize) * 8).next_multiple_of(alignment)
}

/// How many slots a page has for records of this size and alignment.
const fn slots(record_bytes: usize, alignment: usize) -> usize {
    let slot_bytes = record_bytes.next_multiple_of(alignment);
    let mut slots = PAGE_SIZE / slot_bytes;
    while slots > 0 && slots_at(slots, alignment) + slots * slot_bytes > PAGE_SIZE {
        slots -= 1;
    }
    slots
}

/// The alignment of slots for records of this size: up to a cache line, if that costs at most one slot in eight, so
/// that a record touches no more lines than necessary.
const fn alignment(record_bytes: usize) -> usize {
    let most = slots(record_bytes, WORD);
    let mut alignment = LINE as usize;
    while alignment > WORD && slots(record_bytes, alignment) * 8 < most * 7 {
        alignment /= 2;
    }
    alignment
}

impl<const K: usize, const V: usize> Fixed<K, V> {
    /// Bytes of a record.
    const RECORD_BYTES: usize = RECORD_HEAD_BYTES + padded(K) + padded(V);
    const ALIGNMENT: usize = alignment(Self::RECORD_BYTES);
    /// Bytes of a slot.
    pub const SLOT_BYTES: usize = Self::RECORD_BYTES.next_multiple_of(Self::ALIGNMENT);
    /// Slots of a page. Keys and values so large that there would be none cause a compile error.
    pub const SLOTS: usize = {
        let slots = slots(Self::RECORD_BYTES, Self::ALIGNMENT);
        assert!(K > 0 && slots > 0, "a record must have a key and fit into a page");
        slots
    };
    /// Words of occupancy bits of a page.
    const WORDS: usize = Self::SLOTS.div_ceil(OCCUPANCY_BITS as usize);
    const SLOTS_AT: u64 = slots_at(Self::SLOTS, Self::ALIGNMENT) as u64;

    fn record_at(page_at: u64, slot: usize) -> Record {
        Record {
            at: page_at + Self::SLOTS_AT + (slot * Self::SLOT_BYTES) as u64,
            key_bytes: K,
            value_bytes: V,
        }
    }

    /// The bits of an occupancy word that represent slots.
    fn all_bits(word: usize) -> u64 {
        let slots = (Self::SLOTS - word * OCCUPANCY_BITS as usize).min(OCCUPANCY_BITS as usize);
        (1 << slots) - 1
    }

    fn occupancy_at(page_at: u64, word: usize) -> u64 {
        page_at + OCCUPANCY_AT + word as u64 * 8
    }

    /// Makes sure that no slot of a page holds a record, whatever was there.
    fn empty_slots<M: Medium>(medium: &M, lane: &mut Lane, page_at: u64) {
        for slot in 0..Self::SLOTS {
            let record = Self::record_at(page_at, slot);
            // Unconditionally: the contents may come from a process that was killed before it flushed them. Both words,
            // because the next record in the slot may have the same sequence number as what lies there.
            medium.memory().word(record.at).store(0, Ordering::Relaxed);
            medium.memory().word(record.sums_at()).store(retracted_sums(record.at), Ordering::Relaxed);
            medium.touched(record.at, 2 * WORD);
            medium.flush(lane, Site::EmptySlot, record.at, 2 * WORD);
        }
    }

    /// Stores the head of a page, whose version stays.
    fn store_head<M: Medium>(medium: &M, block: u64, page: u32, at: u64) {
        let head = medium.memory().word(at);
        let version = head.load(Ordering::Relaxed) & lock::LOCK_MASK;
        head.store(page_word(block, page, KIND_FIXED, 1) | version, Ordering::Relaxed);
        medium.touched(at, WORD);
    }

    /// What a slot holds, apart from its bit.
    fn slot_state<M: Medium>(medium: &M, record: &Record) -> Slot {
        let [sequence, sums] =
            [record.at, record.sums_at()].map(|at| medium.memory().word(at).load(Ordering::Relaxed));
        match (sequence, sums == retracted_sums(record.at)) {
            (0, true) => Slot::Unused,
            (_, true) => Slot::Retracted,
            // A checksum without a number means that the record is torn; it could become whole if the next record in
            // the slot had its number.
            (0, false) if sums == 0 => Slot::Unused,
            _ => Slot::Record,
        }
    }
}

/// What a slot holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slot {
    Unused,
    Retracted,
    Record,
}

/// A client's position: the unused part of each page, and which page is next.
#[derive(Debug)]
pub struct FixedCursor {
    block: u64,
    /// The page that is being filled.
    page: u32,
    /// How many pages were begun.
    begun: u32,
    /// For each word of occupancy bits of each page, the slots that may be used.
    spare: Box<[u64]>,
    /// The same at the beginning.
    spare_once: Box<[u64]>,
    /// The word whose last slot was just used up.
    full: Option<usize>,
}

impl FixedCursor {
    fn new(block: u64, page: u32, spare: Box<[u64]>) -> Self {
        Self { block, page, begun: 1, spare_once: spare.clone(), spare, full: None }
    }

    /// The offset of a word of occupancy bits, given their number in a page, and the bits of the slots that were used.
    fn used(&self, geometry: Geometry, words: usize, word: usize) -> Option<(u64, u64)> {
        let bits = self.spare_once.get(word)? & !self.spare.get(word)?;
        let page_at = geometry.page_at(self.block, (word / words) as u32);
        Some((page_at + OCCUPANCY_AT + (word % words * WORD) as u64, bits))
    }
}

impl<const K: usize, const V: usize> Layout for Fixed<K, V> {
    type Key = [u8; K];
    type Value = [u8; V];
}

impl<const K: usize, const V: usize> Format for Fixed<K, V> {
    type Cursor = FixedCursor;

    const HAS_LARGE: bool = false;

    fn shape() -> Shape {
        Shape::Fixed { key_bytes: K as u32, value_bytes: V as u32 }
    }

    fn units_of_block(geometry: Geometry) -> u32 {
        geometry.pages * Self::SLOTS as u32
    }

    fn units(_: &Record) -> u32 {
        1
    }

    fn format<M: Medium>(
        medium: &M,
        geometry: Geometry,
        lane: &mut Lane,
        block: u64,
        is_fresh: bool,
        _: bool,
    ) -> Result<()> {
        let memory = medium.memory();
        let first_at = geometry.block_at(block);
        let is_formatted =
            read_page_word(memory.word(first_at).load(Ordering::Relaxed), block, 0) != PageWord::Unformatted;
        for page in (0..geometry.pages).rev() {
            let at = geometry.page_at(block, page);
            // If it was formatted before, all its records are retracted, durably, and stay so until others are written
            // there.
            for word in 0..Self::WORDS {
                memory.word(Self::occupancy_at(at, word)).store(0, Ordering::Relaxed);
            }
            medium.touched(at + OCCUPANCY_AT, Self::WORDS * 8);
            if is_formatted {
                // A thread that still reads one of its former records must notice.
                drop(lock::seize(memory.word(at)));
                medium.touched(at, 8);
            } else {
                if !is_fresh {
                    // The same, if the block was formatted before the file was cut.
                    drop(lock::seize(memory.word(at)));
                    medium.touched(at, 8);
                    Self::empty_slots(medium, lane, at);
                }
                if page > 0 {
                    Self::store_head(medium, block, page, at);
                }
            }
            medium.flush(lane, Site::PageHeads, at, OCCUPANCY_AT as usize + Self::WORDS * 8);
        }
        medium.fence(lane, Site::PageHeads)?;
        if !is_formatted {
            Self::store_head(medium, block, 0, first_at);
            medium.flush(lane, Site::BlockHead, first_at, 8);
        }
        Ok(())
    }

    fn begin(geometry: Geometry, block: u64, page: u32) -> FixedCursor {
        let words = (0..geometry.pages).flat_map(|_| (0..Self::WORDS).map(Self::all_bits));
        FixedCursor::new(block, page, words.collect())
    }

    fn resume(_: Geometry, block: u64, spare: &[u64]) -> FixedCursor {
        FixedCursor::new(block, 0, spare.into())
    }

    #[inline]
    fn block(cursor: &FixedCursor) -> u64 {
        cursor.block
    }

    fn suspend(cursor: &FixedCursor) -> Option<Box<[u64]>> {
        let has_room = cursor.spare.iter().any(|word| *word != 0);
        has_room.then(|| cursor.spare.clone())
    }

    fn next<M: Medium>(
        _: &M,
        geometry: Geometry,
        _: &mut Lane,
        cursor: &mut FixedCursor,
        _: usize,
        _: usize,
    ) -> Result<Next> {
        loop {
            let first = cursor.page as usize * Self::WORDS;
            let words = cursor.spare.iter_mut().skip(first).take(Self::WORDS);
            if let Some((number, word)) = words.enumerate().find(|(_, word)| **word != 0) {
                let slot = number * OCCUPANCY_BITS as usize + word.trailing_zeros() as usize;
                *word &= *word - 1;
                if *word == 0 {
                    cursor.full = Some(first + number);
                }
                let place = geometry.place(cursor.block, cursor.page, slot as u32);
                let record = Self::record_at(geometry.page_at(cursor.block, cursor.page), slot);
                return Ok(Next::At(place, record, Self::SLOT_BYTES - Self::RECORD_BYTES));
            }
            if cursor.begun >= geometry.pages {
                return Ok(Next::BlockFull);
            }
            cursor.begun += 1;
            cursor.page = (cursor.page + 1) % geometry.pages;
        }
    }

    #[inline]
    fn prefetch<M: Medium>(medium: &M, geometry: Geometry, place: Place) {
        /// The processor's own prefetching continues from here.
        const BYTES_MAX: u64 = 512;
        let page_at = geometry.page_at_of(place);
        let record = Self::record_at(page_at, geometry.record_of(place) as usize);
        medium.memory().prefetch(page_at, 8);
        medium.memory().prefetch(record.at, BYTES_MAX.min(Self::RECORD_BYTES as u64));
    }

    #[inline]
    fn locate<M: Medium>(_: &M, geometry: Geometry, place: Place) -> Option<Record> {
        let slot = geometry.record_of(place) as usize;
        (slot < Self::SLOTS).then(|| Self::record_at(geometry.page_at_of(place), slot))
    }

    #[inline]
    fn set_valid<M: Medium>(
        medium: &M,
        geometry: Geometry,
        lane: &mut Lane,
        site: Site,
        (place, record): (Place, &Record),
        valid: bool,
    ) {
        if !valid {
            let at = record.sums_at();
            medium.memory().word(at).store(retracted_sums(record.at), Ordering::Relaxed);
            medium.touched(at, WORD);
            return medium.flush(lane, site, at, WORD);
        }
        Self::settle(medium, lane, site, Self::settling(geometry, (place, record)));
    }

    fn settling(geometry: Geometry, (place, _): (Place, &Record)) -> (u64, u64) {
        let slot = geometry.record_of(place);
        let at = Self::occupancy_at(geometry.page_at_of(place), (slot / OCCUPANCY_BITS) as usize);
        (at, 1 << (slot % OCCUPANCY_BITS))
    }

    fn retracted_at(_: Geometry, (_, record): (Place, &Record)) -> u64 {
        record.sums_at()
    }

    fn retracted_record<M: Medium>(_: &M, at: u64) -> Option<Record> {
        Some(Record { at: at - WORD as u64, key_bytes: K, value_bytes: V })
    }

    #[inline]
    fn is_evident(_: Geometry, _: &Record) -> bool {
        true
    }

    #[inline]
    fn word_before(_: &Record) -> Option<u64> {
        None
    }

    fn take_full(geometry: Geometry, cursor: &mut FixedCursor) -> Option<(u64, u64)> {
        let word = cursor.full.take()?;
        cursor.used(geometry, Self::WORDS, word)
    }

    fn begun(geometry: Geometry, cursor: &FixedCursor) -> Option<(u64, u64)> {
        let first = cursor.page as usize * Self::WORDS;
        let words = first..first + Self::WORDS;
        // The words before it are full, those after it are not begun.
        let is_begun = |word: &usize| cursor.spare.get(*word).is_some_and(|bits| *bits != 0);
        cursor.used(geometry, Self::WORDS, words.into_iter().find(is_begun)?).filter(|(_, bits)| *bits != 0)
    }

    fn settle<M: Medium>(medium: &M, lane: &mut Lane, site: Site, (at, bits): (u64, u64)) {
        let word = medium.memory().word(at);
        let mask = (1 << OCCUPANCY_BITS) - 1;
        // The block is the caller's, so no other thread changes the word. Release: the records it covers were written
        // before.
        let now = word.load(Ordering::Relaxed) & mask;
        word.store(occupancy_word(at, now | bits), Ordering::Release);
        medium.touched(at, WORD);
        medium.flush(lane, site, at, WORD);
    }

    fn walk<M: Medium>(
        medium: &M,
        geometry: Geometry,
        block: u64,
        _: u64,
        visit: &mut dyn FnMut(Walked),
    ) -> Extent {
        let memory = medium.memory();
        for page in 0..geometry.pages {
            let page_at = geometry.page_at(block, page);
            match read_page_word(memory.word(page_at).load(Ordering::Relaxed), block, page) {
                PageWord::Unformatted if page == 0 => return Extent::one(ExtentKind::Unformatted),
                PageWord::Formatted { kind: KIND_FIXED, span: 1 } => {}
                _ => {
                    visit(Walked::Damage(Damage::Page { block, page }));
                    continue;
                }
            }
            for word in 0..Self::WORDS {
                let at = Self::occupancy_at(page_at, word);
                let bits = read_occupancy(at, memory.word(at).load(Ordering::Relaxed));
                let Some(bits) = bits.filter(|bits| bits & !Self::all_bits(word) == 0) else {
                    visit(Walked::Damage(Damage::Word { at }));
                    continue;
                };
                let first = word * OCCUPANCY_BITS as usize;
                for slot in first..Self::SLOTS.min(first + OCCUPANCY_BITS as usize) {
                    let record = Self::record_at(page_at, slot);
                    let must_be_right = bits & 1 << (slot - first) != 0;
                    let state = Self::slot_state(medium, &record);
                    if state == Slot::Record || (state == Slot::Unused && must_be_right) {
                        visit(Walked::Record(
                            geometry.place(block, page, slot as u32),
                            record,
                            must_be_right,
                        ));
                    }
                }
            }
        }
        Extent::one(ExtentKind::Pages)
    }

    fn spare<M: Medium>(medium: &M, geometry: Geometry, block: u64) -> Option<Box<[u64]>> {
        let mut spare = Vec::with_capacity(geometry.pages as usize * Self::WORDS);
        for page in 0..geometry.pages {
            let page_at = geometry.page_at(block, page);
            if lock::reset(medium.memory().word(page_at)) {
                medium.touched(page_at, 8);
            }
            for word in 0..Self::WORDS {
                let at = Self::occupancy_at(page_at, word);
                let bits = read_occupancy(at, medium.memory().word(at).load(Ordering::Relaxed))?;
                let first = word * OCCUPANCY_BITS as usize;
                // Slots that held a retracted record are not reused before the whole block is.
                let is_unused =
                    |slot: &usize| Self::slot_state(medium, &Self::record_at(page_at, *slot)) == Slot::Unused;
                let slots = first..Self::SLOTS.min(first + OCCUPANCY_BITS as usize);
                let unused = slots.filter(is_unused).fold(0, |bits, slot| bits | 1 << (slot - first));
                spare.push(!bits & unused);
            }
        }
        spare.iter().any(|word| *word != 0).then(|| spare.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_bits_fill_a_page_and_do_not_leave_it() {
        fn check<const K: usize, const V: usize>() {
            let slots = Fixed::<K, V>::SLOTS;
            let end = Fixed::<K, V>::record_at(0, slots - 1).at as usize + Fixed::<K, V>::SLOT_BYTES;
            assert!(slots * 8 >= super::slots(Fixed::<K, V>::RECORD_BYTES, 8) * 7, "{K} {V}: {slots}");
            assert!(end <= PAGE_SIZE, "{K} {V}: {end}");
            let lines = |at: usize| (at + Fixed::<K, V>::RECORD_BYTES - 1) / 64 - at / 64;
            for slot in 0..slots {
                let at = Fixed::<K, V>::record_at(0, slot).at as usize;
                assert!(
                    Fixed::<K, V>::ALIGNMENT < 64 || lines(at) == lines(0),
                    "{K} {V}: more lines than it must"
                );
            }
            let bits: u32 =
                (0..Fixed::<K, V>::WORDS).map(|word| Fixed::<K, V>::all_bits(word).count_ones()).sum();
            assert_eq!(bits as usize, slots);
        }
        check::<8, 8>();
        check::<16, 200>();
        check::<1, 0>();
        check::<1, 4040>();
        assert_eq!((Fixed::<8, 8>::SLOTS, Fixed::<16, 200>::SLOTS), (101, 15));
    }
}
