//! Records of any size: each page is a log, a size word before each record, zero where the log ends.
//!
//! A log begins in memory that is zero. So where records carry checksums, a record is valid if its checksum is right:
//! its size word and the record are one run of stores with one fence, and after a crash in the middle of the run each
//! of its words is either there or zero. The log says up to where its records must be right, but only once they have
//! long been durable. A record beyond that point that is not right was torn by a crash, and does not exist; a record
//! before it is damaged. Without checksums the size word makes a record valid, after a fence. The size word also says
//! that a record was retracted.
//!
//! Logs are not continued after a crash, because the memory after their end may not be zero.
//!
//! A record that does not fit into the rest of a page begins the next one; one larger than a page begins a page that
//! extends over as many following pages as it needs, and the log continues there. A record that does not fit into a
//! block takes separate blocks: see `large.rs`. A record always lies in consecutive bytes.

use super::{Extent, ExtentKind, Format, Layout, Next, Record, Walked, large};
use crate::{
    cpu::LINE,
    error::{Damage, Result},
    layout::{
        Geometry, KIND_LARGE, KIND_LOG, LOG_AT, LOG_SETTLED_ALL, LOG_SETTLED_AT, PageWord, Place,
        RECORD_HEAD_BYTES, SIZE_RETRACTED, SIZE_VALID, SIZE_WORD_BYTES, SizeWord, checked_number, page_word,
        read_checked_number, read_page_word, read_size_word, size_word,
    },
    lock,
    medium::{Lane, Medium, Site},
    memory::{WORD, padded},
    superblock::Shape,
};
use std::sync::atomic::{Ordering, fence};
use vellum_base::PAGE_SIZE;

/// The layout of records whose keys and values have any length.
#[derive(Debug)]
pub struct Variable;

/// A client's position: which pages are unused, and the log that is being written.
#[derive(Debug)]
pub struct VariableCursor {
    block: u64,
    /// Pages that were formatted but not begun, one bit each.
    pages: u64,
    /// Where to look for the next page first.
    start: u32,
    /// The page in which the current log begins.
    page: u32,
    /// Where the next size word goes, in bytes from the beginning of that page.
    at: u64,
    /// Where the log must end.
    end: u64,
    /// Up to where the log says that its records must be right.
    settled: u64,
    /// The word that still has to be written to the previous log.
    full: Option<(u64, u64)>,
}

/// The size of a record of these lengths in a log, in bytes.
fn entry_bytes(key_bytes: usize, value_bytes: usize) -> u64 {
    (SIZE_WORD_BYTES + RECORD_HEAD_BYTES + padded(key_bytes) + padded(value_bytes)) as u64
}

/// The size of such an entry at byte `at`, with the gap after it: it ends with a cache line, if that costs at most an
/// eighth, so that the next entry touches no more lines than necessary, and all of each.
#[inline]
fn stride(at: u64, bytes: u64) -> u64 {
    let gap = (at + bytes).next_multiple_of(LINE) - (at + bytes);
    if gap * 8 <= bytes { bytes + gap } else { bytes }
}

/// The offset of the size word of a place.
#[inline]
fn size_at(geometry: Geometry, place: Place) -> u64 {
    geometry.page_at_of(place) + u64::from(geometry.record_of(place)) * 8
}

impl VariableCursor {
    /// Begins a log of `count` pages, if there are that many consecutive unused ones; returns its first page.
    fn begin_log(&mut self, geometry: Geometry, count: u32) -> Option<u32> {
        let fits = |page: u32| {
            let run = (u64::MAX >> (64 - count)) << page;
            page + count <= geometry.pages && self.pages & run == run
        };
        let page = (self.start..geometry.pages).chain(0..self.start).find(|page| fits(*page))?;
        self.full = self.unsettled(geometry);
        self.pages &= !((u64::MAX >> (64 - count)) << page);
        (self.page, self.start) = (page, (page + count) % geometry.pages);
        (self.at, self.end) = (LOG_AT, u64::from(count) * PAGE_SIZE as u64);
        self.settled = LOG_AT;
        Some(page)
    }

    /// The word in which the current log says up to where its records must be right, and what the word should say, if
    /// it does not yet.
    fn unsettled(&self, geometry: Geometry) -> Option<(u64, u64)> {
        let word_at = geometry.page_at(self.block, self.page) + LOG_SETTLED_AT;
        (self.at > self.settled).then_some((word_at, self.at))
    }
}

impl Variable {
    /// Prepares pages 1 and up, and the log of page 0, of a block whose first word says that it is unformatted.
    fn format_pages<M: Medium>(
        medium: &M,
        geometry: Geometry,
        lane: &mut Lane,
        block: u64,
        is_fresh: bool,
        checksums: bool,
    ) {
        let memory = medium.memory();
        for page in 0..geometry.pages {
            let at = geometry.page_at(block, page);
            let settled_at = at + LOG_SETTLED_AT;
            let settled = checked_number(settled_at, if checksums { LOG_AT } else { LOG_SETTLED_ALL });
            if is_fresh {
                memory.word(settled_at).store(settled, Ordering::Relaxed);
                medium.touched(settled_at, WORD);
            } else {
                if page > 0 {
                    // A thread that still reads one of its former records must notice before that is cleared.
                    drop(lock::seize(memory.word(at)));
                    medium.touched(at, WORD);
                }
                let behind = PAGE_SIZE - LOG_AT as usize;
                medium.write(lane, Site::EmptyLog, settled_at, &[&settled.to_le_bytes()], behind);
            }
            if page > 0 {
                // The version continues from whatever lies there: this may have been the middle of a record.
                let old = memory.word(at).load(Ordering::Relaxed);
                let new = page_word(block, page, KIND_LOG, 1) | lock::next_version(old);
                memory.word(at).store(new, Ordering::Relaxed);
                medium.touched(at, WORD);
            }
            medium.flush(lane, Site::PageHeads, at, LOG_AT as usize);
        }
    }

    /// Calls `visit` with the records of one log.
    fn walk_log<M: Medium>(
        medium: &M,
        geometry: Geometry,
        block: u64,
        page: u32,
        span: u32,
        visit: &mut dyn FnMut(Walked),
    ) {
        let page_at = geometry.page_at(block, page);
        let end = u64::from(span) * PAGE_SIZE as u64;
        let settled_at = page_at + LOG_SETTLED_AT;
        let settled = medium.memory().word(settled_at).load(Ordering::Relaxed);
        let settled = read_checked_number(settled_at, settled).unwrap_or_else(|| {
            visit(Walked::Damage(Damage::Word { at: settled_at }));
            LOG_SETTLED_ALL
        });
        let mut at = LOG_AT;
        while at + SIZE_WORD_BYTES as u64 <= end {
            let word = medium.memory().word(page_at + at).load(Ordering::Relaxed);
            match read_size_word(page_at + at, word) {
                // A log of records without checksums says nothing about where it ends.
                SizeWord::End if at < settled && settled != LOG_SETTLED_ALL => {
                    return visit(Walked::Damage(Damage::Word { at: page_at + at }));
                }
                SizeWord::End => return,
                SizeWord::Record { key_bytes, value_bytes, live }
                    if entry_bytes(key_bytes, value_bytes) <= end - at =>
                {
                    let record = Record { at: page_at + at + SIZE_WORD_BYTES as u64, key_bytes, value_bytes };
                    visit(if live {
                        let place = geometry.place(block, page, (at / 8) as u32);
                        Walked::Record(place, record, at < settled)
                    } else {
                        Walked::Retracted(Self::units(&record))
                    });
                    at += stride(at, entry_bytes(key_bytes, value_bytes));
                }
                // Also after the part that must be right: memory that was zero holds size words or zeroes.
                _ => return visit(Walked::Damage(Damage::Word { at: page_at + at })),
            }
        }
    }
}

impl Layout for Variable {
    type Key = [u8];
    type Value = [u8];
}

impl Format for Variable {
    type Cursor = VariableCursor;

    const HAS_LARGE: bool = true;

    fn shape() -> Shape {
        Shape::Variable
    }

    fn units_of_block(geometry: Geometry) -> u32 {
        (geometry.block_bytes() / 8) as u32
    }

    fn units(record: &Record) -> u32 {
        let bytes = (SIZE_WORD_BYTES + record.bytes()) as u64;
        (stride(record.at - SIZE_WORD_BYTES as u64, bytes) / 8) as u32
    }

    fn format<M: Medium>(
        medium: &M,
        geometry: Geometry,
        lane: &mut Lane,
        block: u64,
        is_fresh: bool,
        checksums: bool,
    ) -> Result<()> {
        let first = medium.memory().word(geometry.block_at(block));
        let first_at = geometry.block_at(block);
        let held = lock::seize(first);
        // The other pages may hold anything, because logs cross page boundaries.
        large::unformat(medium, geometry, lane, block)?;
        Self::format_pages(medium, geometry, lane, block, is_fresh, checksums);
        medium.fence(lane, Site::PageHeads)?;
        // A reader of a record that is later written here sees the new versions of the pages.
        fence(Ordering::Release);
        let locked = first.load(Ordering::Relaxed) & lock::LOCK_MASK;
        first.store(page_word(block, 0, KIND_LOG, 1) | locked, Ordering::Relaxed);
        medium.touched(first_at, 8);
        medium.flush(lane, Site::BlockHead, first_at, 8);
        drop(held);
        medium.touched(first_at, 8);
        Ok(())
    }

    fn begin(geometry: Geometry, block: u64, page: u32) -> VariableCursor {
        VariableCursor {
            block,
            pages: u64::MAX >> (64 - geometry.pages),
            start: page,
            page: 0,
            at: 0,
            end: 0,
            settled: 0,
            full: None,
        }
    }

    fn resume(_: Geometry, block: u64, spare: &[u64]) -> VariableCursor {
        let word = |index: usize| spare.get(index).copied().unwrap_or(0);
        let (page, at, end) = (word(1) as u32, word(2), word(3));
        // The client that had it before has recorded that its records must be right.
        VariableCursor { block, pages: word(0), start: 0, page, at, end, settled: at, full: None }
    }

    #[inline]
    fn block(cursor: &VariableCursor) -> u64 {
        cursor.block
    }

    fn suspend(cursor: &VariableCursor) -> Option<Box<[u64]>> {
        // Less than this is not worth coming back to.
        const WORTH_BYTES: u64 = 256;
        let has_room = cursor.pages != 0 || cursor.at + WORTH_BYTES <= cursor.end;
        has_room.then(|| [cursor.pages, u64::from(cursor.page), cursor.at, cursor.end].into())
    }

    fn next<M: Medium>(
        medium: &M,
        geometry: Geometry,
        lane: &mut Lane,
        cursor: &mut VariableCursor,
        key_bytes: usize,
        value_bytes: usize,
    ) -> Result<Next> {
        let bytes = entry_bytes(key_bytes, value_bytes);
        if LOG_AT + bytes > geometry.block_bytes() {
            return Ok(Next::Large(large::blocks_for(geometry, key_bytes, value_bytes)));
        }
        if cursor.at + bytes > cursor.end {
            let count = (LOG_AT + bytes).div_ceil(PAGE_SIZE as u64) as u32;
            let Some(page) = cursor.begin_log(geometry, count) else { return Ok(Next::BlockFull) };
            if count > 1 {
                let at = geometry.page_at(cursor.block, page);
                let word = medium.memory().word(at);
                let version = word.load(Ordering::Relaxed) & lock::LOCK_MASK;
                word.store(page_word(cursor.block, page, KIND_LOG, count) | version, Ordering::Relaxed);
                medium.touched(at, 8);
                medium.flush(lane, Site::SpanHead, at, 8);
                medium.fence(lane, Site::SpanHead)?;
            }
        }
        let place = geometry.place(cursor.block, cursor.page, (cursor.at / 8) as u32);
        let at = geometry.page_at(cursor.block, cursor.page) + cursor.at + SIZE_WORD_BYTES as u64;
        let stride = stride(cursor.at, bytes);
        cursor.at += stride;
        Ok(Next::At(place, Record { at, key_bytes, value_bytes }, (stride - bytes) as usize))
    }

    #[inline]
    fn prefetch<M: Medium>(medium: &M, geometry: Geometry, place: Place) {
        /// The length of the record is in its size word, which is not there yet.
        const GUESSED_BYTES: u64 = 256;
        medium.memory().prefetch(geometry.page_at_of(place), 8);
        medium.memory().prefetch(size_at(geometry, place), GUESSED_BYTES);
    }

    #[inline]
    fn locate<M: Medium>(medium: &M, geometry: Geometry, place: Place) -> Option<Record> {
        let at = size_at(geometry, place);
        // Acquire: the record was written before it became valid.
        let word = medium.memory().word(at).load(Ordering::Acquire);
        let SizeWord::Record { key_bytes, value_bytes, .. } = read_size_word(at, word) else { return None };
        let bytes = entry_bytes(key_bytes, value_bytes);
        let block_end = geometry.block_at(geometry.block_of(place) + 1);
        // A large record extends beyond its first block; whatever the word says, the record does not leave the store.
        let fits = at + bytes <= block_end
            || (LOG_AT + bytes > geometry.block_bytes() && at + bytes <= medium.capacity());
        fits.then_some(Record { at: at + SIZE_WORD_BYTES as u64, key_bytes, value_bytes })
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
        let at = size_at(geometry, place);
        let flags = if valid { SIZE_VALID } else { SIZE_VALID | SIZE_RETRACTED };
        let word = size_word(at, record.key_bytes, record.value_bytes, flags);
        if valid {
            // The record was written before, as the caller has passed a fence; and the index leads to it only after
            // another one.
            return medium.write(lane, site, at, &[&word.to_le_bytes()], 0);
        }
        // Through the caches, for another thread may flush it: see `stripes.rs`.
        medium.memory().word(at).store(word, Ordering::Relaxed);
        medium.touched(at, WORD);
        medium.flush(lane, site, at, WORD);
    }

    fn settling(geometry: Geometry, (place, record): (Place, &Record)) -> (u64, u64) {
        let from = u64::from(geometry.record_of(place)) * WORD as u64;
        let word_at = geometry.page_at_of(place) + LOG_SETTLED_AT;
        (word_at, from + u64::from(Self::units(record)) * WORD as u64)
    }

    #[inline]
    fn is_evident(geometry: Geometry, record: &Record) -> bool {
        // Large records are not: they do not lie in a log.
        LOG_AT + entry_bytes(record.key_bytes, record.value_bytes) <= geometry.block_bytes()
    }

    #[inline]
    fn word_before(record: &Record) -> Option<u64> {
        let at = record.at - SIZE_WORD_BYTES as u64;
        Some(size_word(at, record.key_bytes, record.value_bytes, SIZE_VALID))
    }

    fn take_full(_: Geometry, cursor: &mut VariableCursor) -> Option<(u64, u64)> {
        cursor.full.take()
    }

    fn begun(geometry: Geometry, cursor: &VariableCursor) -> Option<(u64, u64)> {
        cursor.unsettled(geometry)
    }

    fn settle<M: Medium>(medium: &M, lane: &mut Lane, site: Site, (at, end): (u64, u64)) {
        let word = medium.memory().word(at);
        // The block is the caller's, so no other thread changes the word.
        let now = read_checked_number(at, word.load(Ordering::Relaxed)).unwrap_or(0);
        // Release: the records it covers were written before.
        word.store(checked_number(at, now.max(end)), Ordering::Release);
        medium.touched(at, WORD);
        medium.flush(lane, site, at, WORD);
    }

    fn retracted_at(geometry: Geometry, (place, _): (Place, &Record)) -> u64 {
        size_at(geometry, place)
    }

    fn retracted_record<M: Medium>(medium: &M, at: u64) -> Option<Record> {
        match read_size_word(at, medium.memory().word(at).load(Ordering::Relaxed)) {
            SizeWord::Record { key_bytes, value_bytes, .. } => {
                Some(Record { at: at + SIZE_WORD_BYTES as u64, key_bytes, value_bytes })
            }
            _ => None,
        }
    }

    fn walk<M: Medium>(
        medium: &M,
        geometry: Geometry,
        block: u64,
        end: u64,
        visit: &mut dyn FnMut(Walked),
    ) -> Extent {
        let mut page = 0;
        while page < geometry.pages {
            let word = medium.memory().word(geometry.page_at(block, page)).load(Ordering::Relaxed);
            match read_page_word(word, block, page) {
                PageWord::Unformatted if page == 0 => return Extent::one(ExtentKind::Unformatted),
                PageWord::Formatted { kind: KIND_LARGE, span: 1 } if page == 0 => {
                    return large::walk(medium, geometry, block, end, visit);
                }
                PageWord::Formatted { kind: KIND_LOG, span } if span <= geometry.pages - page => {
                    Self::walk_log(medium, geometry, block, page, span, visit);
                    page += span;
                }
                other => {
                    visit(Walked::Damage(Damage::Page { block, page }));
                    if page == 0
                        && other == PageWord::Damaged
                        && let Some(blocks) = large::blocks_under_damage(medium, geometry, block, end)
                    {
                        return Extent { blocks, kind: ExtentKind::Large };
                    }
                    page += 1;
                }
            }
        }
        Extent::one(ExtentKind::Pages)
    }

    fn spare<M: Medium>(medium: &M, geometry: Geometry, block: u64) -> Option<Box<[u64]>> {
        let mut pages = 0u64;
        let mut page = 0;
        while page < geometry.pages {
            let at = geometry.page_at(block, page);
            match read_page_word(medium.memory().word(at).load(Ordering::Relaxed), block, page) {
                PageWord::Formatted { kind: KIND_LOG, span } if span <= geometry.pages - page => {
                    let words = medium.memory().words(at + LOG_AT, (PAGE_SIZE - LOG_AT as usize) / WORD);
                    // A page with remains of a record from a crash has no log, and none can begin in it.
                    if span == 1 && words.iter().all(|word| word.load(Ordering::Relaxed) == 0) {
                        pages |= 1 << page;
                        if lock::reset(medium.memory().word(at)) {
                            medium.touched(at, 8);
                        }
                    }
                    page += span;
                }
                _ => return None,
            }
        }
        (pages != 0).then(|| [pages, 0, 0, 0].into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_end_with_lines_where_that_costs_little_and_nowhere_else() {
        let page = |key_bytes, value_bytes| {
            let bytes = entry_bytes(key_bytes, value_bytes);
            let (mut at, mut starts) = (LOG_AT, Vec::new());
            while at + bytes <= PAGE_SIZE as u64 {
                starts.push(at);
                let stride = stride(at, bytes);
                assert!(stride >= bytes && (stride - bytes) * 8 <= bytes, "{at} {bytes}");
                at += stride;
            }
            starts
        };
        let starts = page(16, 200);
        assert_eq!(starts.len(), 16);
        assert!(starts.iter().skip(2).all(|at| at.is_multiple_of(LINE)), "{starts:?}");
        assert_eq!(page(8, 8).len(), 85, "as many as fit");
    }
}
