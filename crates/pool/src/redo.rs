//! The redo of pages that are not in memory. No thread sees such a page before it has all its changes.

use crate::{
    allocator::Allocator,
    error::{Fault, Miss, PoolError},
    guard::ExclusiveGuard,
    io::on_demand::RedoOnDemand,
    page::state::Want,
    pager::Begun,
    pool::Pool,
};
use std::sync::{Arc, Weak};
use vellum_base::{Extent, PageId, PageKind};

/// Redoes pages of a pool, on any thread. Must be dropped before the pool is closed.
pub struct Redoer {
    allocator: Arc<Allocator>,
}

impl Pool {
    /// An object that redoes pages of this pool.
    pub fn redoer(&self) -> Redoer {
        Redoer { allocator: self.allocator().clone() }
    }
}

impl Redoer {
    /// From now on, before a page that is not in memory is read, `redo` is asked, until
    /// [`end_on_demand`](Self::end_on_demand). If `redo` is dropped before that, nothing can be read any more.
    pub fn begin_on_demand(&self, redo: Weak<dyn RedoOnDemand>) {
        self.allocator.io.faults.on_demand.begin(redo);
    }

    /// Ends redo on demand: all pages are as the log says.
    pub fn end_on_demand(&self) {
        self.allocator.io.faults.on_demand.end();
    }

    /// Redoes a page, as [`Pool::redo`] does, unless it is in memory or not allocated: then it is right already. Other
    /// threads can use the page once `change` has returned.
    ///
    /// # Errors
    /// If it cannot be read, is damaged, or does not fit into the pool; [`PoolError::Corruption`] if `change` fails.
    pub fn redo_evicted(
        &self,
        page: PageId,
        is_fresh: bool,
        change: impl FnOnce(&mut [u8]) -> Result<(), String>,
    ) -> Result<(), PoolError> {
        // Not admitted like a change: a thread that needs the page may read it after a sync has failed.
        let (allocator, extent) = (&*self.allocator, Extent::page(page));
        allocator.storage().mark_in_use()?;
        if !self.latch(extent)? {
            return Ok(());
        }
        if is_fresh {
            allocator.admit_blank(page, PageKind::TREE_NODE)?;
        } else {
            let (address, bytes) = (allocator.table().address(page), extent.bytes());
            // SAFETY: the page lies in the mapping and in no other, and its latch is held exclusively.
            let read = unsafe { allocator.storage().file.read(page.offset(), address, bytes) };
            allocator.io.faults.admit_latched(extent, read)?;
        }
        let mut guard = ExclusiveGuard::adopt(allocator, extent);
        change(guard.page_mut()).map_err(|what| {
            guard.forget();
            PoolError::contents(page, what)
        })
    }

    /// Latches a page that is not in memory, and reserves its memory; false if it is in memory or not allocated.
    fn latch(&self, extent: Extent) -> Result<bool, PoolError> {
        let io = &self.allocator.io;
        while self.allocator.storage().is_allocated(extent) {
            match io.latch_reserved(&Miss::certain(extent)) {
                Ok(Begun::Latched) => io.wait(extent.head, Want::Exclusive),
                Ok(begun) => return Ok(begun == Begun::Reading),
                // The page has been freed meanwhile.
                Err(PoolError::Corruption { fault: Fault::NotAllocated, .. }) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}
