//! Records that do not fit into a block: each takes separate consecutive blocks.
//!
//! The first page begins with its head, then the number of blocks, then, as in a log, the size word and the record,
//! which extends through all blocks. So the heads of the blocks after the first mean nothing while the head of the
//! first says that it belongs to a large record: that head is made durable before anything is written there. Before that,
//! a log that was in the first block is gone: its head must not be found with the number of blocks, or with the size word
//! that was cleared. When such blocks are freed, the inner ones are made to say "unformatted" before the first one is.

use super::{Extent, ExtentKind, Record, Walked};
use crate::{
    error::{Damage, Result},
    layout::{
        Geometry, KIND_LARGE, KIND_LOG, LARGE_BLOCKS_AT, LOG_AT, PageWord, Place, RECORD_HEAD_BYTES,
        SIZE_WORD_BYTES, SizeWord, checked_number, page_word, read_checked_number, read_page_word,
        read_size_word,
    },
    lock,
    medium::{Lane, Medium, Site},
    memory::padded,
};
use std::sync::atomic::Ordering;

/// The length of a large record with everything before it, in bytes.
fn bytes_for(key_bytes: usize, value_bytes: usize) -> u64 {
    LOG_AT + (SIZE_WORD_BYTES + RECORD_HEAD_BYTES + padded(key_bytes) + padded(value_bytes)) as u64
}

/// How many blocks a record takes.
pub fn blocks_for(geometry: Geometry, key_bytes: usize, value_bytes: usize) -> u64 {
    bytes_for(key_bytes, value_bytes).div_ceil(geometry.block_bytes())
}

/// Durably makes a block whose first word is locked into an unformatted one, so that no crash leaves its former head with
/// a part of what comes next.
///
/// # Errors
/// If that cannot be made durable.
pub fn unformat<M: Medium>(medium: &M, geometry: Geometry, lane: &mut Lane, block: u64) -> Result<()> {
    let at = geometry.block_at(block);
    let first = medium.memory().word(at);
    let now = first.load(Ordering::Relaxed);
    if read_page_word(now, block, 0) == PageWord::Unformatted {
        return Ok(());
    }
    first.store(now & lock::LOCK_MASK, Ordering::Relaxed);
    medium.touched(at, 8);
    medium.flush(lane, Site::Unformat, at, 8);
    medium.fence(lane, Site::Unformat)
}

/// Prepares blocks, which no other client has, for a large record, and returns the place of the record.
///
/// # Errors
/// If that cannot be made durable.
pub fn begin<M: Medium>(
    medium: &M,
    geometry: Geometry,
    lane: &mut Lane,
    block: u64,
    blocks: u64,
    (key_bytes, value_bytes): (usize, usize),
) -> Result<(Place, Record)> {
    let memory = medium.memory();
    let at = geometry.block_at(block);
    let first = memory.word(at);
    let held = lock::seize(first);
    let version = first.load(Ordering::Relaxed) & lock::LOCK_MASK;
    unformat(medium, geometry, lane, block)?;
    let count_at = at + LARGE_BLOCKS_AT;
    memory.word(count_at).store(checked_number(count_at, blocks), Ordering::Relaxed);
    memory.word(at + LOG_AT).store(0, Ordering::Relaxed);
    medium.touched(count_at, (LOG_AT + 8 - LARGE_BLOCKS_AT) as usize);
    medium.flush(lane, Site::PageHeads, count_at, (LOG_AT + 8 - LARGE_BLOCKS_AT) as usize);
    medium.fence(lane, Site::PageHeads)?;
    first.store(page_word(block, 0, KIND_LARGE, 1) | version, Ordering::Relaxed);
    medium.touched(at, 8);
    medium.flush(lane, Site::LargeHead, at, 8);
    medium.fence(lane, Site::LargeHead)?;
    drop(held);
    medium.touched(at, 8);
    let place = geometry.place(block, 0, (LOG_AT / 8) as u32);
    let record = Record { at: at + LOG_AT + SIZE_WORD_BYTES as u64, key_bytes, value_bytes };
    Ok((place, record))
}

/// Durably makes the blocks of a large record that is no longer valid into unformatted ones.
///
/// # Errors
/// If that cannot be made durable.
pub fn dismantle<M: Medium>(
    medium: &M,
    geometry: Geometry,
    lane: &mut Lane,
    block: u64,
    blocks: u64,
) -> Result<()> {
    let memory = medium.memory();
    for inner in block + 1..block + blocks {
        let at = geometry.block_at(inner);
        let old = memory.word(at).load(Ordering::Relaxed);
        memory.word(at).store(lock::next_version(old), Ordering::Relaxed);
        medium.touched(at, 8);
        medium.flush(lane, Site::InnerBlocks, at, 8);
    }
    medium.fence(lane, Site::InnerBlocks)?;
    let at = geometry.block_at(block);
    let first = memory.word(at);
    let held = lock::seize(first);
    first.store(first.load(Ordering::Relaxed) & lock::LOCK_MASK, Ordering::Relaxed);
    medium.touched(at, 8);
    medium.flush(lane, Site::LargeGone, at, 8);
    medium.fence(lane, Site::LargeGone)?;
    drop(held);
    medium.touched(at, 8);
    Ok(())
}

/// What a block is to the blocks after it.
pub enum Start {
    /// It is unformatted: unused, or the rest of a large record whose beginning is damaged.
    Unformatted,
    /// So many blocks belong together, starting with this one: 1 unless it is the first of a large record.
    Blocks(u64),
    /// It is damaged, and may be the first of a large record: nothing says how many blocks belong together.
    Unknown,
}

/// What a block is that does not lie inside a large record.
pub fn start<M: Medium>(medium: &M, geometry: Geometry, block: u64, end: u64) -> Start {
    let head = |page| {
        let word = medium.memory().word(geometry.page_at(block, page)).load(Ordering::Relaxed);
        read_page_word(word, block, page)
    };
    match head(0) {
        PageWord::Unformatted => Start::Unformatted,
        PageWord::Formatted { kind: KIND_LARGE, span: 1 } => {
            Start::Blocks(walk(medium, geometry, block, end, &mut |_| {}).blocks)
        }
        PageWord::Formatted { .. } => Start::Blocks(1),
        PageWord::Damaged => match blocks_under_damage(medium, geometry, block, end) {
            Some(blocks) => Start::Blocks(blocks),
            // A large record covers the heads of the other pages.
            None if (1..geometry.pages)
                .any(|page| matches!(head(page), PageWord::Formatted { kind: KIND_LOG, .. })) =>
            {
                Start::Blocks(1)
            }
            None => Start::Unknown,
        },
    }
}

/// How many blocks a large record takes of which the first word is damaged, if the two words after that agree about it.
pub fn blocks_under_damage<M: Medium>(medium: &M, geometry: Geometry, block: u64, end: u64) -> Option<u64> {
    let memory = medium.memory();
    let at = geometry.block_at(block);
    let (count_at, size_at) = (at + LARGE_BLOCKS_AT, at + LOG_AT);
    let count = read_checked_number(count_at, memory.word(count_at).load(Ordering::Relaxed))?;
    let size = read_size_word(size_at, memory.word(size_at).load(Ordering::Relaxed));
    let SizeWord::Record { key_bytes, value_bytes, .. } = size else { return None };
    let is_possible = count > 1 && count <= end - block;
    (is_possible && blocks_for(geometry, key_bytes, value_bytes) == count).then_some(count)
}

/// The word that is to say that a damaged large record ends at block `end`, the last one that there is, and what it is to
/// be: none if that is known. Otherwise the record would take in what is later stored behind it.
pub fn bound<M: Medium>(medium: &M, geometry: Geometry, block: u64, end: u64) -> Option<(u64, u64)> {
    let (at, blocks) = (geometry.block_at(block), end - block);
    let count_at = at + LARGE_BLOCKS_AT;
    let [head, count] = [at, count_at].map(|at| medium.memory().word(at).load(Ordering::Relaxed));
    let is_unbounded = match read_page_word(head, block, 0) {
        PageWord::Formatted { kind: KIND_LARGE, span: 1 } => {
            walk(medium, geometry, block, end, &mut |_| {}).blocks == blocks
                && read_checked_number(count_at, count) != Some(blocks)
        }
        PageWord::Damaged => {
            blocks_under_damage(medium, geometry, block, u64::MAX).is_some_and(|said| said > blocks)
        }
        _ => false,
    };
    is_unbounded.then(|| (count_at, checked_number(count_at, blocks)))
}

/// Calls `visit` with the record of blocks whose first one says that they hold a large record.
pub fn walk<M: Medium>(
    medium: &M,
    geometry: Geometry,
    block: u64,
    end: u64,
    visit: &mut dyn FnMut(Walked),
) -> Extent {
    let memory = medium.memory();
    let at = geometry.block_at(block);
    let count_at = at + LARGE_BLOCKS_AT;
    let size_at = at + LOG_AT;
    let size = read_size_word(size_at, memory.word(size_at).load(Ordering::Relaxed));
    // One block is what is left of a record of which the others were cut off.
    let is_possible = |count: &u64| *count > 0 && *count <= end - block;
    let count = read_checked_number(count_at, memory.word(count_at).load(Ordering::Relaxed));
    let blocks = count.filter(is_possible).or_else(|| {
        visit(Walked::Damage(Damage::Word { at: count_at }));
        // The size says the same: it has belonged to this record since the head of the block became durable.
        let SizeWord::Record { key_bytes, value_bytes, .. } = size else { return None };
        Some(blocks_for(geometry, key_bytes, value_bytes)).filter(is_possible)
    });
    // Otherwise the blocks after it cannot be distinguished from the record.
    let Some(blocks) = blocks else { return Extent { blocks: end - block, kind: ExtentKind::Large } };
    match size {
        SizeWord::Record { key_bytes, value_bytes, live: true }
            if blocks_for(geometry, key_bytes, value_bytes) == blocks =>
        {
            let record = Record { at: size_at + SIZE_WORD_BYTES as u64, key_bytes, value_bytes };
            visit(Walked::Record(geometry.place(block, 0, (LOG_AT / 8) as u32), record, true));
            Extent { blocks, kind: ExtentKind::Large }
        }
        SizeWord::End | SizeWord::Record { live: false, .. } => Extent { blocks, kind: ExtentKind::Remains },
        _ => {
            visit(Walked::Damage(Damage::Word { at: size_at }));
            Extent { blocks, kind: ExtentKind::Large }
        }
    }
}
