//! Writing pages that differ from storage while other threads read and write them.
//!
//! A page is copied by an optimistic read, and the copy is stamped and written. So no thread waits for the log or the
//! device while it holds a latch, and a hot page is never waited for. The page ceases to be dirty if it still equals
//! the copy. While the copy is on its way, the page is announced in `file::logged`.

use crate::{
    error::PoolError,
    file::{logged::Logged, outage::copy_of},
    io::page_io::PageIo,
    page::state::{Want, Word},
    plant::Plant,
    primitive::lock,
};
use vellum_base::{Bytes, Extent, Lsn, PAGE_SIZE, PageHeader, PageId, stamp_checksum};
use vellum_vm::{AlignedBuffer, Request};

/// How many pages are copied and written at a time in a large pool: half a mebibyte.
const BATCH_PAGES_MAX: usize = 128;
/// How many pages that were written past the log one of its records takes, at most.
const CONTENTS_PAGES: usize = 64;
/// How often an optimistic read of a page is tried before the page is latched shared.
const TRIES_MAX: u32 = 4;

/// How far a checkpoint has come with writing pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// How many pages and extents have been written, or needed no writing.
    pub written: u64,
    /// How many there are to write.
    pub of: u64,
}

/// Makes the contents of extents durable: see `Allocation::persist`.
pub(crate) fn persist(io: &PageIo, extents: &[Extent]) -> Result<(), PoolError> {
    let storage = &io.faults.evictor.pages.storage;
    let Some(logged) = storage.logged().filter(|_| !extents.is_empty()) else { return Ok(()) };
    storage.mark_in_use()?;
    let is_dirty = |extent: &&Extent| io.faults.table().state(extent.head).load().is_dirty();
    let mut dirty: Vec<Extent> = extents.iter().filter(is_dirty).copied().collect();
    dirty.sort_unstable();
    write_changed(io, logged, &dirty, &mut |_| {})?;
    storage.sync()
}

/// Passes the contents of extents, in ascending order, to the log if it wants them. They are durable, but not yet
/// referred to.
pub(crate) fn record_contents(io: &PageIo, extents: impl Iterator<Item = Extent>) -> Result<(), PoolError> {
    let storage = &io.faults.evictor.pages.storage;
    let Some(log) = storage.log().filter(|log| log.wants_contents()) else { return Ok(()) };
    let mut buffer = AlignedBuffer::new(CONTENTS_PAGES * PAGE_SIZE);
    let (mut at, mut end) = (0, 0);
    for extent in extents.map(Some).chain([None]) {
        if let Some(extent) = extent.filter(|extent| extent.head.0 == end) {
            end = extent.end().0;
            continue;
        }
        while at < end {
            let pages = (end - at).min(CONTENTS_PAGES as u64);
            let part = buffer.get_mut(..pages as usize * PAGE_SIZE).unwrap_or_default();
            let run = Extent { head: PageId(at), pages: pages as u32 };
            let read = storage.file.read_to(run.head.offset(), part);
            read.map_err(|source| PoolError::Read { extent: run, source })?;
            log.append_contents(run.head, part).map_err(PoolError::LogRefuses)?;
            at += pages;
        }
        (at, end) = extent.map_or((0, 0), |extent| (extent.head.0, extent.end().0));
    }
    Ok(())
}

/// Writes those of the extents, in ascending order, that still differ from storage. Calls `pace` between batches. The
/// caller holds no latch.
pub(crate) fn write_changed(
    io: &PageIo,
    logged: &Logged,
    changed: &[Extent],
    pace: &mut dyn FnMut(Progress),
) -> Result<(), PoolError> {
    // The evictor leaves these pages alone meanwhile, so they must be a small part of the pool.
    let most = (io.faults.evictor.pages.budget.limit() / 8).clamp(1, BATCH_PAGES_MAX);
    let mut buffer = AlignedBuffer::new(changed.len().min(most) * PAGE_SIZE);
    for (index, batch) in changed.chunks(most).enumerate() {
        if index > 0 {
            pace(Progress { written: (index * most) as u64, of: changed.len() as u64 });
        }
        let (singles, longs): (Vec<Extent>, Vec<Extent>) = batch.iter().partition(|extent| extent.pages == 1);
        write_copies(io, logged, &singles, &mut buffer)?;
        for extent in longs {
            write_in_place(io, logged, extent, &mut buffer)?;
        }
    }
    Ok(())
}

/// Writes copies of single pages.
fn write_copies(
    io: &PageIo,
    logged: &Logged,
    pages: &[Extent],
    buffer: &mut AlignedBuffer,
) -> Result<(), PoolError> {
    if pages.is_empty() {
        return Ok(());
    }
    let (table, storage) = (io.faults.table(), &io.faults.evictor.pages.storage);
    let turn = lock(&logged.writing);
    let _in_flight = logged.announce(pages.iter().map(|extent| extent.head), &turn);
    let mut copied: Vec<(Extent, Word)> = Vec::with_capacity(pages.len());
    let mut lsn = Lsn(0);
    for extent in pages.iter().copied() {
        let Some(target) = buffer.chunks_exact_mut(PAGE_SIZE).nth(copied.len()) else { break };
        if let Some(seen) = copy(io, extent, target) {
            lsn = lsn.max(PageHeader::read(target).lsn);
            copied.push((extent, seen));
        }
    }
    logged.wait_for(lsn)?;
    buffer.chunks_exact_mut(PAGE_SIZE).take(copied.len()).for_each(stamp_checksum);
    let mut requests: Vec<Request> = Vec::with_capacity(copied.len());
    for ((extent, _), bytes) in copied.iter().zip(buffer.chunks_exact(PAGE_SIZE)) {
        match requests.last_mut() {
            Some(last) if last.offset + last.bytes as u64 == extent.head.offset() => last.bytes += PAGE_SIZE,
            _ => requests.push(Request::write(extent.head.offset(), bytes.as_ptr().cast_mut(), PAGE_SIZE)),
        }
    }
    // SAFETY: the buffer is this thread's own; the pages are announced, so no other thread writes them, except one that
    // had already begun, which writes the same bytes.
    unsafe { storage.file.run(&mut requests) };
    let mut result = Ok(());
    let mut copied = copied.into_iter().peekable();
    for request in &requests {
        let end = request.offset + request.bytes as u64;
        while let Some((extent, seen)) = copied.next_if(|(extent, _)| extent.head.offset() < end) {
            let source = match &request.result {
                Ok(()) => {
                    count_written(io, extent);
                    let changed = logged.is_planted(Plant::CleanThoughChanged);
                    let state = table.state(extent.head);
                    state.try_clean(if changed { state.load() } else { seen });
                    continue;
                }
                Err(_) if logged.is_planted(Plant::SwallowedWriteError) => {
                    table.state(extent.head).try_clean(seen);
                    continue;
                }
                Err(source) => copy_of(source),
            };
            table.counters.write_errors.add(1);
            result = result.and(Err(PoolError::Write { extent, source }));
        }
    }
    result
}

fn count_written(io: &PageIo, extent: Extent) {
    let counters = &io.faults.table().counters;
    counters.pages_written.add(extent.pages.into());
    counters.checkpoint_pages_written.add(extent.pages.into());
}

/// Copies a page that differs from storage, and returns the word that it had; `None` if it no longer differs, because
/// it was written or freed, or if another extent begins there.
fn copy(io: &PageIo, extent: Extent, target: &mut [u8]) -> Option<Word> {
    let (table, page) = (io.faults.table(), extent.head);
    let state = table.state(page);
    let mut tries = 0;
    loop {
        let now = state.load();
        if now.is_evicted() || !now.is_dirty() {
            return None;
        }
        if now.is_exclusive() {
            io.wait(page, Want::Shared);
            continue;
        }
        tries += 1;
        let is_whole = if tries <= TRIES_MAX {
            table.optimistic_bytes(page).copy_to(0, target);
            state.validate(now)
        } else {
            let latched = state.try_shared(now);
            if latched {
                table.optimistic_bytes(page).copy_to(0, target);
                table.unlatch_shared(page);
            }
            latched
        };
        if is_whole {
            return (PageHeader::read(target).extent == extent).then_some(now);
        }
    }
}

/// Writes an extent of several pages from its place, under a shared latch: only a thread that changes such an extent
/// waits, which is rare. The first page is written from a copy, which has the checksum.
fn write_in_place(
    io: &PageIo,
    logged: &Logged,
    extent: Extent,
    buffer: &mut AlignedBuffer,
) -> Result<(), PoolError> {
    let (table, storage) = (io.faults.table(), &io.faults.evictor.pages.storage);
    let state = table.state(extent.head);
    loop {
        let now = state.load();
        if now.is_evicted() || !now.is_dirty() {
            return Ok(());
        }
        if now.is_exclusive() || !state.try_shared(now) {
            io.wait(extent.head, Want::Shared);
            continue;
        }
        // SAFETY: the latch is held shared, and the first page is in memory, whichever extent it belongs to.
        let header = PageHeader::read(unsafe { table.bytes(Extent::page(extent.head)) });
        if header.extent != extent || !storage.is_allocated(extent) {
            table.unlatch_shared(extent.head);
            return Ok(());
        }
        if header.lsn == Lsn(0) || logged.log().durable() > header.lsn {
            break;
        }
        table.unlatch_shared(extent.head);
        logged.wait_for(header.lsn)?;
    }
    // SAFETY: the latch is held shared, and the space map has confirmed the extent.
    let written = unsafe { write_stamped(io, extent, buffer) };
    match &written {
        Ok(()) => {
            state.clear_dirty();
            count_written(io, extent);
        }
        Err(_) => table.counters.write_errors.add(1),
    }
    table.unlatch_shared(extent.head);
    written
}

/// Writes an extent with its checksum, which its memory lacks.
///
/// # Safety
/// The caller holds the extent's latch.
unsafe fn write_stamped(io: &PageIo, extent: Extent, buffer: &mut AlignedBuffer) -> Result<(), PoolError> {
    // SAFETY: passed on from the caller.
    let bytes = unsafe { io.faults.table().bytes(extent) };
    let (Some(first), Some(target)) = (bytes.get(..PAGE_SIZE), buffer.get_mut(..PAGE_SIZE)) else {
        return Ok(());
    };
    target.copy_from_slice(first);
    let sum = vellum_base::checksum(bytes.get(8..).unwrap_or_default());
    if let Some(place) = target.first_chunk_mut() {
        *place = sum.to_le_bytes();
    }
    let mut requests = [
        Request::write(extent.head.offset(), target.as_mut_ptr(), PAGE_SIZE),
        Request::write(
            extent.head.offset() + PAGE_SIZE as u64,
            io.faults.table().address(extent.head).wrapping_add(PAGE_SIZE),
            extent.bytes() - PAGE_SIZE,
        ),
    ];
    // SAFETY: no thread changes the extent while it is latched; the buffer is this thread's own.
    unsafe { io.faults.evictor.pages.storage.file.run(&mut requests) };
    for request in &requests {
        if let Err(source) = &request.result {
            return Err(PoolError::Write { extent, source: copy_of(source) });
        }
    }
    Ok(())
}
