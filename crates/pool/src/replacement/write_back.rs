//! Writes changed extents to storage; whether they stay in memory is up to the caller.
//!
//! An extent is latched exclusively, stamped with its checksum, latched shared, and written, neighbours by one request,
//! after the log that covers it. What cannot be latched at once is skipped.

use crate::{
    change_log::ChangeLog, error::PoolError, file::outage::copy_of, page::state::PageState,
    page_table::PageTable, replacement::resident_pages::ResidentPages,
};
use std::time::Instant;
use vellum_base::{Extent, Lsn, PageHeader, stamp_checksum};
use vellum_vm::Request;

/// The longest write that neighbours are joined into, in bytes.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// Writes changed extents, in ascending order, to storage. `keep` is called for each that was written,
/// with its latch shared and its dirty bit clear; it returns whether it took over the latch.
///
/// # Errors
/// The first that occurred. What could not be written stays as it is.
pub(super) fn write_back(
    pages: &ResidentPages,
    log: Option<&dyn ChangeLog>,
    dirty: Vec<Extent>,
    mut keep: impl FnMut(&PageState, Extent) -> bool,
) -> Result<(), PoolError> {
    if dirty.is_empty() {
        return Ok(());
    }
    let (table, storage, counters) = (&pages.table, &pages.storage, &pages.table.counters);
    storage.mark_in_use()?;
    let mut lsn = Lsn(0);
    let latched: Vec<_> =
        dirty.into_iter().filter(|extent| latch_for_writing(pages, *extent, &mut lsn)).collect();
    let mut result = log.map_or(Ok(()), |log| log.make_durable(lsn)).map_err(PoolError::Log);
    let mut requests = requests(table, &latched);
    let begun = Instant::now();
    if result.is_ok() {
        // SAFETY: each extent is latched shared until its request is done, so no thread changes it; no two
        // overlap.
        unsafe { storage.file.run(&mut requests) };
    }
    let (mut written, mut failures) = (0, 0);
    let mut extents = latched.into_iter().peekable();
    for request in requests {
        let end = request.offset + request.bytes as u64;
        while let Some(extent) = extents.next_if(|extent| extent.head.offset() < end) {
            let state = table.state(extent.head);
            let failed = matches!(result, Err(PoolError::Log(_))) || request.result.is_err();
            let kept = if failed {
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
    // Some places may be writable all the time: those that have storage already.
    if written > 0 && written >= failures {
        storage.outage.ends();
    } else if let Err(PoolError::Write { extent, source }) = &result {
        storage.outage.begins(*extent, source, begun);
        storage.suspend_changes();
    }
    result
}

/// Takes a changed extent's latch without waiting, stamps its checksum, and leaves it latched shared.
fn latch_for_writing(pages: &ResidentPages, extent: Extent, lsn: &mut Lsn) -> bool {
    let table = &pages.table;
    let state = table.state(extent.head);
    let now = state.load();
    let free = now.is_marked() || now.is_unlocked();
    if !free || !now.is_dirty() || !state.try_exclusive(now) || !pages.is_still_there(extent) {
        return false;
    }
    // SAFETY: the latch is held exclusively.
    let bytes = unsafe { table.bytes_mut(extent) };
    stamp_checksum(bytes);
    *lsn = (*lsn).max(PageHeader::read(bytes).lsn);
    // The version stays: optimistic readers never look at the checksum, and nothing else has changed.
    table.wake(extent.head, state.downgrade(false));
    true
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
