//! Closing a file cleanly: what changed is written, the space map with it, and the superblocks say so.
//!
//! No other thread uses the pool meanwhile. A close that fails may be tried again; after one that succeeds the pool
//! remains usable.

use crate::{allocator::Allocator, error::PoolError};

/// Writes everything, makes it durable and marks the file as cleanly closed.
///
/// # Errors
/// If something cannot be written, or is latched; if a sync has failed, or a thread panicked while it changed a page.
pub(crate) fn checkpoint(allocator: &Allocator) -> Result<(), PoolError> {
    let (evictor, storage) = (allocator.evictor(), allocator.storage());
    if storage.is_half_changed() {
        return Err(PoolError::Panicked);
    }
    let _pause = evictor.pause();
    allocator.free_pending();
    if storage.is_closed() && allocator.pages().changed().is_empty() {
        return Ok(());
    }
    storage.refuse_if_poisoned()?;
    // Also after an attempt that failed, so that the map which that left behind is freed.
    storage.mark_in_use()?;
    evictor.flush()?;
    storage.close(allocator.allocate_space_map()?)
}
