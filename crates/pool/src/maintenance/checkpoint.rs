//! Fuzzy checkpoints: all that was changed before a place of the log goes to storage, while other threads read and write.
//!
//! What differs from storage is written from copies (`io::copies`).
//!
//! The map that is written with it is what the records before that place say of space (`space::recorded`). Everything is
//! synced before the superblocks name the map and the place: an error on the way leaves the last checkpoint as it is.

use crate::{
    allocator::Allocator,
    error::PoolError,
    file::{logged::Logged, superblock::State},
    io::copies::write_changed,
    primitive::lock,
};
use std::time::Duration;
use vellum_base::Lsn;

/// Brings all changes before `redo` to storage, and names that place and the undo point: see `Checkpointer::checkpoint_at`.
pub(crate) fn checkpoint_at(
    allocator: &Allocator,
    (redo, undo): (Lsn, Lsn),
    pause: Duration,
) -> Result<(), PoolError> {
    let (storage, counters) = (allocator.storage(), &allocator.table().counters);
    let Some(logged) = storage.logged() else { return Ok(()) };
    // Locked to the end: one checkpoint at a time.
    let mut recorded = lock(&logged.recorded);
    storage.refuse_if_poisoned()?;
    if storage.is_half_changed() {
        return Err(PoolError::Panicked);
    }
    if !storage.is_marked_in_use() {
        return Ok(());
    }
    write_changed(&allocator.io, logged, &allocator.pages().changed(), pause)?;
    // What was freed meanwhile has not been written: if a crash could bring it back, it would lack its changes.
    logged.make_frees_durable()?;
    let redo = recorded.apply(&logged.take_events(redo), redo);
    let (map, end) = allocator.claim_map()?;
    if let Err(error) = storage.write_map(&mut recorded, map, end) {
        storage.space.unclaim(map.head.0..map.end().0);
        return Err(error);
    }
    allocator.name_map(map, end, (redo, undo.min(redo)), State::Logged)?;
    counters.checkpoints.add(1);
    Ok(())
}

/// Ends a clean close of a file with a log: everything has been written, and no other thread does anything.
pub(crate) fn close(allocator: &Allocator, logged: &Logged) -> Result<(), PoolError> {
    let storage = allocator.storage();
    logged.make_frees_durable()?;
    logged.release_all(&storage.space)?;
    storage.space.trim();
    let mut recorded = lock(&logged.recorded);
    let redo = logged.log().end().max(storage.lock_superblock().redo);
    // What no record tells is there too.
    logged.take_events(Lsn(u64::MAX));
    let own = storage.lock_superblock().space_map;
    recorded.copy(&storage.space, own, redo);
    let (map, end) = allocator.claim_map()?;
    if let Err(error) = storage.write_map(&mut recorded, map, end) {
        storage.space.unclaim(map.head.0..map.end().0);
        return Err(error);
    }
    allocator.name_map(map, end, (redo, redo), State::Closed)?;
    storage.cut_file(end);
    storage.space.note_written();
    Ok(())
}
