//! Latches that bring their page into memory, and the queues of asynchronous reads.
//!
//! # Lock order
//! No lock is taken while the list of queues is locked. The list of idle queues is locked before a queue.

use crate::{
    error::{Miss, PoolError},
    io::{cooperative::Queues, fault::Faults, reads::Reads},
    page::{parking::CooperativeCompletion, state::Want},
    pager::Begun,
    primitive::{Mutex, lock, spin_loop},
};
use std::sync::Arc;
use vellum_base::{Extent, PageId};
use vellum_vm::Wait;

/// How many unused queues are kept for reuse; each has a ring, which costs some locked memory.
const IDLE_MAX: usize = 16;

/// Reads of pages, and waiting for them.
pub(crate) struct PageIo {
    queues: Queues<Reads>,
    idle: Mutex<Vec<Arc<Mutex<Reads>>>>,
    pub(crate) faults: Faults,
}

impl PageIo {
    pub(crate) fn new(faults: Faults) -> Self {
        Self { queues: Queues::new(), idle: Mutex::new(Vec::new()), faults }
    }

    /// Waits until `want` may be possible. If the page is being read by a queue whose owner is busy elsewhere, this
    /// thread completes the read (see `io::cooperative`).
    pub(crate) fn wait(&self, page: PageId, want: Want) {
        self.faults.table().wait(page, want, || self.complete(page, Wait::ForOne));
    }

    /// If `page` is being read by a queue, completes its reads that are done. Waits for nothing.
    pub(crate) fn complete_read(&self, page: PageId) {
        self.complete(page, Wait::No);
    }

    fn complete(&self, page: PageId, wait: Wait) -> CooperativeCompletion {
        self.queues.complete(|reads| reads.holds(page), |reads| _ = reads.finish(&self.faults, wait))
    }

    /// Completes the asynchronous reads that are over, whose owners may not look for a long time; returns their number. Waits
    /// for nothing.
    pub(crate) fn complete_reads(&self) -> usize {
        self.queues.sum(|reads| reads.finish(&self.faults, Wait::No))
    }

    /// Reserves the memory of an extent, evicting other extents if necessary.
    ///
    /// # Errors
    /// If there is no room, or pages cannot be written.
    pub(crate) fn reserve(&self, extent: Extent) -> Result<(), PoolError> {
        self.faults.evictor.reserve_while(extent, || self.complete_reads(), || true).map(drop)
    }

    /// [`reserve`](Self::reserve) for an extent that is going to be written to.
    ///
    /// # Errors
    /// As for `reserve`.
    pub(crate) fn reserve_for_new(&self, extent: Extent) -> Result<(), PoolError> {
        self.faults.evictor.make_room_for_new(extent)?;
        self.reserve(extent)
    }

    /// Latches a missing extent, and reserves its memory: see [`Faults::latch_reserved`].
    ///
    /// # Errors
    /// As for that.
    pub(crate) fn latch_reserved(&self, miss: &Miss) -> Result<Begun, PoolError> {
        self.faults.latch_reserved(miss, || self.complete_reads())
    }

    /// Makes an extent resident, unless another thread does so first. This is the blocking path.
    ///
    /// If it turns out that the reference was stale, nothing happens: the operation will notice that itself.
    ///
    /// # Errors
    /// If it is not allocated, does not fit into the pool, cannot be read, or is damaged.
    pub(crate) fn fault(&self, miss: &Miss) -> Result<(), PoolError> {
        let (extent, faults) = (miss.extent, &self.faults);
        faults.check_bounds(extent)?;
        if !faults.prepare(miss)? || self.latch_reserved(miss)? != Begun::Reading {
            return Ok(());
        }
        let (address, file) = (faults.table().address(extent.head), &faults.evictor.pages.storage.file);
        // SAFETY: the extent lies in the mapping and in no other, and its latch is held exclusively.
        let read = unsafe { file.read(extent.head.offset(), address, extent.bytes()) };
        let admitted = faults.admit(extent, read);
        admitted.or_else(|error| if faults.still_refers(miss) { Err(error) } else { Ok(()) })
    }

    /// Waits a little after an optimistic read of `page` has failed, or could not be upgraded.
    pub(crate) fn wait_after_conflict(&self, page: PageId) {
        let now = self.faults.table().state(page).load();
        if now.is_exclusive() {
            self.wait(page, Want::Read);
        } else if now.shared_holders() > 0 {
            // The upgrade may have failed because of readers, or of the thread that writes the page to storage.
            self.faults.table().wait_for_readers(page);
        } else {
            spin_loop();
        }
    }

    /// Latches an extent, reading it in if necessary.
    pub(crate) fn latch(&self, extent: Extent, want: Want) -> Result<(), PoolError> {
        self.faults.check_bounds(extent)?;
        let state = self.faults.table().state(extent.head);
        loop {
            let now = state.load();
            if now.is_evicted() {
                self.fault(&Miss::certain(extent))?;
                continue;
            }
            let taken = match want {
                Want::Exclusive => (now.is_unlocked() || now.is_marked()) && state.try_exclusive(now),
                Want::Shared | Want::Read => state.try_shared(now),
            };
            if taken {
                break;
            }
            self.wait(extent.head, want);
        }
        // The latched extent must match the space map, or the slice would reach into extents that are not latched, or
        // show freed pages.
        if self.faults.evictor.pages.storage.is_allocated(extent) {
            return Ok(());
        }
        match want {
            Want::Exclusive => self.faults.table().unlatch(extent.head, false),
            Want::Shared | Want::Read => self.faults.table().unlatch_shared(extent.head),
        }
        Err(PoolError::not_allocated(extent))
    }

    /// A queue of asynchronous reads, with up to `depth` under way: an idle one, or a new one.
    ///
    /// # Errors
    /// If the system refuses the resources.
    pub(crate) fn queue(&self, depth: usize) -> Result<Arc<Mutex<Reads>>, PoolError> {
        let mut idle = lock(&self.idle);
        if let Some(index) = idle.iter().position(|reads| lock(reads).queue.depth() >= depth) {
            return Ok(idle.swap_remove(index));
        }
        drop(idle);
        let queue = self.faults.evictor.pages.storage.file.queue(u32::try_from(depth).unwrap_or(u32::MAX));
        let reads = Arc::new(Mutex::new(Reads::new(queue.map_err(PoolError::Queue)?)));
        self.queues.add(reads.clone());
        Ok(reads)
    }

    /// Takes back a queue that has no reads under way. It is not used again if the next one may do better.
    pub(crate) fn take_back(&self, reads: &Arc<Mutex<Reads>>) {
        let is_degraded = lock(reads).queue.is_degraded();
        let mut idle = lock(&self.idle);
        if idle.len() < IDLE_MAX && !is_degraded {
            idle.push(reads.clone());
        } else {
            drop(idle);
            self.queues.remove(reads);
        }
    }
}

impl Drop for PageIo {
    /// Waits for all reads, before the mapping goes, which `faults` owns: a queue whose owner was leaked has reads under
    /// way, and is never dropped.
    fn drop(&mut self) {
        self.queues.for_each(|reads| _ = reads.finish(&self.faults, Wait::ForAll));
    }
}
