//! Writes changed extents to storage; the caller decides whether they stay in memory.
//!
//! An extent is latched exclusively, stamped with its checksum, latched shared, and written, neighbours in one request.
//! Extents that cannot be latched at once are skipped, as are extents whose log records are not durable yet: no thread
//! waits for the log while it holds a latch.

use crate::{
    change_log::ChangeLog, error::PoolError, file::outage::copy_of, page::state::PageState,
    page_table::PageTable, plant::Plant, replacement::resident_pages::ResidentPages,
};
use vellum_base::primitive::Instant;
use vellum_base::{Extent, Lsn, PageHeader, stamp_checksum};
use vellum_vm::Request;

/// The longest write into which neighbours are joined, in bytes.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// The result of an attempt to write extents.
pub(super) struct Written {
    /// The first error that occurred. Extents that could not be written stay as they are.
    pub result: Result<(), PoolError>,
    /// The extents that were left alone because their log records are not durable yet, and the last of these records.
    pub waiting: Vec<Extent>,
    pub lsn: Lsn,
}

/// Writes changed extents, in ascending order, to storage. `keep` is called for each extent that was written, with its
/// latch shared and its dirty bit clear; it returns whether it has taken over the latch.
pub(super) fn write_back(
    pages: &ResidentPages,
    dirty: Vec<Extent>,
    mut keep: impl FnMut(&PageState, Extent) -> bool,
) -> Written {
    let (mut waiting, mut lsn) = (Vec::new(), Lsn(0));
    if dirty.is_empty() {
        return Written { result: Ok(()), waiting, lsn };
    }
    let (table, storage, counters) = (&pages.table, &pages.storage, &pages.table.counters);
    let mut result = storage.mark_in_use();
    if result.is_err() {
        return Written { result, waiting, lsn };
    }
    let durable = storage.log().map(ChangeLog::durable);
    let mut latched = Vec::with_capacity(dirty.len());
    for extent in dirty {
        match latch_for_writing(pages, extent, durable) {
            Latch::Held => latched.push(extent),
            Latch::Refused => {}
            Latch::Waiting(last) => {
                lsn = lsn.max(last);
                waiting.push(extent);
            }
        }
    }
    let mut requests = requests(table, &latched);
    let begun = Instant::now();
    // SAFETY: each extent is latched shared until its request is done, so no thread changes it; no two
    // overlap.
    unsafe { storage.file.run(&mut requests) };
    let (mut written, mut failures) = (0, 0);
    let mut extents = latched.into_iter().peekable();
    for request in requests {
        let end = request.offset + request.bytes as u64;
        while let Some(extent) = extents.next_if(|extent| extent.head.offset() < end) {
            let state = table.state(extent.head);
            let kept = if request.result.is_err() {
                counters.write_errors.add(1);
                failures += 1;
                false
            } else {
                written += 1;
                counters.pages_written.add(extent.pages as u64);
                state.clear_dirty();
                keep(state, extent)
            };
            if !kept {
                table.unlatch_shared(extent.head);
            }
            if let (Ok(()), Err(source)) = (&result, &request.result) {
                result = Err(PoolError::Write { extent, source: copy_of(source) });
            }
        }
    }
    // Some places can always be written: those that have storage already.
    if written > 0 && written >= failures {
        storage.outage.ends();
    } else if let Err(PoolError::Write { extent, source }) = &result {
        storage.outage.begins(*extent, source, begun);
        storage.suspend_changes();
    }
    Written { result, waiting, lsn }
}

/// The result of an attempt to take a changed extent's latch.
enum Latch {
    /// It is latched shared.
    Held,
    /// It is gone, or in use.
    Refused,
    /// The record of its last change is not durable.
    Waiting(Lsn),
}

/// Takes a changed extent's latch without waiting, stamps its checksum, and leaves it latched shared. If there is a
/// log, it is durable up to `durable`.
fn latch_for_writing(pages: &ResidentPages, extent: Extent, durable: Option<Lsn>) -> Latch {
    let table = &pages.table;
    let state = table.state(extent.head);
    let now = state.load();
    let free = now.is_marked() || now.is_unlocked();
    if !free || !now.is_dirty() || !state.try_exclusive(now) || !pages.is_still_there(extent) {
        return Latch::Refused;
    }
    // SAFETY: the latch is held exclusively.
    let bytes = unsafe { table.bytes_mut(extent) };
    if let Some(durable) = durable {
        let lsn = PageHeader::read(bytes).lsn;
        let planted = pages.storage.logged().is_some_and(|logged| logged.is_planted(Plant::PageBeforeLog));
        if lsn >= durable && lsn > Lsn(0) && !planted {
            table.unlatch(extent.head, false);
            return Latch::Waiting(lsn);
        }
        if pages.is_in_flight(extent) {
            return Latch::Refused;
        }
    }
    stamp_checksum(bytes);
    // The version stays: optimistic readers never look at the checksum, and nothing else has changed.
    table.wake(extent.head, state.downgrade(false));
    Latch::Held
}

/// One request for each run of neighbours.
fn requests(table: &PageTable, extents: &[Extent]) -> Vec<Request> {
    let mut requests: Vec<Request> = Vec::with_capacity(extents.len());
    for extent in extents {
        match requests.last_mut() {
            Some(last)
                if last.offset + last.bytes as u64 == extent.head.offset()
                    && last.bytes + extent.bytes() <= WRITE_BYTES_MAX =>
            {
                last.bytes += extent.bytes();
            }
            _ => {
                let address = table.address(extent.head);
                requests.push(Request::write(extent.head.offset(), address, extent.bytes()));
            }
        }
    }
    requests
}
