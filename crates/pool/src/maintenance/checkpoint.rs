//! Fuzzy checkpoints: all changes before a place of the log go to storage, while other threads read and write.
//!
//! Pages that differ from storage are written from copies (`io::copies`).
//!
//! The map written with them is what the records before that place say of space (`space::recorded`). Everything is
//! synced before the superblocks name the map and the place: an error leaves the last checkpoint as it is.

use crate::{
    allocator::Allocator,
    error::PoolError,
    file::{logged::Logged, superblock::State},
    io::copies::{Progress, write_changed},
    primitive::lock,
};
use vellum_base::Lsn;

/// Brings all changes before `redo` to storage, and names that place and the undo point: see `Checkpointer::checkpoint_at`.
/// Calls `pace` between batches, see `write_changed`. Returns the place that both superblocks name on storage, unless there was nothing
/// to do.
pub(crate) fn checkpoint_at(
    allocator: &Allocator,
    (redo, undo): (Lsn, Lsn),
    pace: &mut dyn FnMut(Progress),
) -> Result<Option<Lsn>, PoolError> {
    let (storage, counters) = (allocator.storage(), &allocator.table().counters);
    let Some(logged) = storage.logged() else { return Ok(None) };
    // Locked until the end: one checkpoint at a time.
    let mut recorded = lock(&logged.recorded);
    storage.refuse_if_poisoned()?;
    if storage.is_half_changed() {
        return Err(PoolError::Panicked);
    }
    if !storage.is_in_use() {
        if !storage.is_to_be_recovered() {
            return Ok(None);
        }
        // A close has failed, and the superblocks on storage may name an older place.
        storage.mark_in_use()?;
    }
    write_changed(&allocator.io, logged, &allocator.pages().changed(), pace)?;
    // Pages freed meanwhile have not been written: if a crash could bring them back, they would lack their changes.
    logged.make_frees_durable()?;
    let redo = recorded.apply(&logged.take_events(redo), redo);
    let (map, end) = allocator.claim_map(recorded.end())?;
    if let Err(error) = storage.write_map(&mut recorded, map, end) {
        let _ = storage.keep_map_room([map]);
        return Err(error);
    }
    allocator.name_map(map, end, (redo, undo.min(redo)), State::Logged)?;
    counters.checkpoints.add(1);
    Ok(Some(redo))
}

/// Completes a clean close of a file with a log: everything has been written, and no other thread is active.
pub(crate) fn close(allocator: &Allocator, logged: &Logged) -> Result<(), PoolError> {
    let storage = allocator.storage();
    logged.make_frees_durable()?;
    logged.release_held(&storage.space);
    logged.release_all(&storage.space)?;
    storage.space.trim();
    let mut recorded = lock(&logged.recorded);
    let redo = logged.log().end().max(storage.lock_superblock().redo);
    // Allocations that are in no record count too.
    logged.take_events(Lsn(u64::MAX));
    let own = storage.lock_superblock().space_map;
    recorded.copy(&storage.space, own, redo);
    let (map, end) = allocator.claim_map(recorded.end())?;
    if let Err(error) = storage.write_map(&mut recorded, map, end) {
        let _ = storage.keep_map_room([map]);
        return Err(error);
    }
    allocator.name_map(map, end, (redo, redo), State::Closed)?;
    storage.cut_closed();
    storage.space.note_written();
    Ok(())
}
