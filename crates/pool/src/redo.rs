//! The redo of pages that are not in memory. Nobody sees a page before it has all its changes.

use crate::{
    allocator::Allocator,
    error::{Fault, Miss, PoolError},
    guard::ExclusiveGuard,
    io::on_demand::RedoOnDemand,
    page::state::Want,
    pager::Begun,
    pool::Pool,
};
use std::{
    io,
    sync::{Arc, Weak},
};
use vellum_base::{Extent, PAGE_SIZE, PageId, PageKind};
use vellum_vm::{Completion, Queue, Request, Wait};

/// How many reads of pages overlap for each thread.
const READS: u32 = 128;

/// A page that is to be redone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageToRedo {
    /// The page.
    pub page: PageId,
    /// Whether its first change makes it anew: then it is not read, but begins as zeroes behind the header of a tree's node.
    pub is_fresh: bool,
}

/// What has the changes of pages, which it knows by their indices.
pub trait PageRedoes {
    /// Does the changes of a page again, of which it is given all bytes.
    ///
    /// # Errors
    /// Why it cannot.
    fn redo(&mut self, index: usize, page: &mut [u8]) -> Result<(), String>;

    /// A page could not be redone. It is as it is on storage.
    fn failed(&mut self, index: usize, error: PoolError);
}

/// Redoes pages of a pool, on any thread. Dropped before the pool is closed.
pub struct Redoer {
    allocator: Arc<Allocator>,
}

/// The reads of one thread that redoes pages.
#[derive(Default)]
pub struct RedoReads {
    /// None before the first read, and where the system refuses it: then pages are read one by one.
    queue: Option<Box<dyn Queue>>,
    completions: Vec<Completion>,
}

impl Pool {
    /// What redoes pages of this pool.
    pub fn redoer(&self) -> Redoer {
        Redoer { allocator: self.allocator().clone() }
    }
}

impl Redoer {
    /// From now on `redo` is asked before a page is read or freed that is not in memory, until [`end_on_demand`](Self::end_on_demand).
    /// If it is dropped before that, nothing can be read any more.
    pub fn begin_on_demand(&self, redo: Weak<dyn RedoOnDemand>) {
        self.allocator.io.faults.on_demand.begin(redo);
    }

    /// All pages are as the log tells.
    pub fn end_on_demand(&self) {
        self.allocator.io.faults.on_demand.end();
    }

    /// Redoes those of the pages that are allocated and not in memory, in no particular order; the others are right already. A page is in memory
    /// for other threads when it has been redone.
    ///
    /// A page is written in any case, also if it shows its changes already: after a sync that failed, the system's cache may hold what
    /// is not on storage, and no later sync would tell.
    ///
    /// # Errors
    /// If nothing can be changed.
    pub fn redo_evicted(
        &self,
        reads: &mut RedoReads,
        pages: &[PageToRedo],
        changes: &mut impl PageRedoes,
    ) -> Result<(), PoolError> {
        self.allocator.evictor().admit_changes()?;
        if reads.queue.is_none() && pages.iter().any(|page| !page.is_fresh) {
            reads.queue = self.allocator.storage().file.queue(READS).ok();
        }
        let mut run = Run { redoer: self, reads, pages, changes };
        for (index, page) in pages.iter().enumerate() {
            match run.begin(index, *page) {
                // It has been freed meanwhile.
                Err(PoolError::Corruption { fault: Fault::NotAllocated, .. }) => {}
                begun => begun.unwrap_or_else(|error| run.changes.failed(index, error)),
            }
        }
        while run.under_way() > 0 {
            run.reap(Wait::ForOne);
        }
        Ok(())
    }

    /// Latches a page that is not in memory, if `reserve` can reserve its memory.
    fn latch(
        &self,
        page: PageId,
        reserve: &mut dyn FnMut() -> Result<bool, PoolError>,
    ) -> Result<Begun, PoolError> {
        let io = &self.allocator.io;
        loop {
            match io.faults.latch_missing(&Miss::certain(Extent::page(page)), |_| reserve())? {
                Begun::Latched => io.wait(page, Want::Exclusive),
                begun => return Ok(begun),
            }
        }
    }
}

/// The redo of some pages.
struct Run<'r, C> {
    redoer: &'r Redoer,
    reads: &'r mut RedoReads,
    pages: &'r [PageToRedo],
    changes: &'r mut C,
}

impl<C: PageRedoes> Run<'_, C> {
    fn under_way(&self) -> usize {
        self.reads.queue.as_ref().map_or(0, |queue| queue.under_way())
    }

    /// Begins to read a page, or redoes it at once.
    fn begin(&mut self, index: usize, PageToRedo { page, is_fresh }: PageToRedo) -> Result<(), PoolError> {
        let (allocator, extent) = (&*self.redoer.allocator, Extent::page(page));
        if !allocator.storage().is_allocated(extent) {
            return Ok(());
        }
        // Other threads need memory as well.
        let most = (allocator.pages().budget.limit() / 16).clamp(1, READS as usize);
        while self.under_way() >= most {
            self.reap(Wait::ForOne);
        }
        loop {
            // What is being read cannot be evicted, so a thread that waits for memory reads nothing.
            let is_alone = self.under_way() == 0;
            let begun = self.redoer.latch(page, &mut || {
                let evictor = allocator.evictor();
                if is_alone { evictor.reserve(extent).map(|()| true) } else { Ok(evictor.reserve_at_once(1)) }
            })?;
            match begun {
                Begun::NoRoom => self.reap(Wait::ForOne),
                Begun::Reading => break,
                // It is in memory, so it has been redone.
                Begun::Ready | Begun::Latched => return Ok(()),
            }
        }
        if is_fresh {
            allocator.admit_blank(page, PageKind::TREE_NODE)?;
            return self.redo(index, page);
        }
        let address = allocator.table().address(page);
        match &mut self.reads.queue {
            Some(queue) => {
                let request = Request::read(page.offset(), address, PAGE_SIZE);
                // SAFETY: the page lies in the mapping, which the allocator keeps, and stays latched until the completion has been reaped; the
                // queue, which waits for its requests, is dropped before the allocator.
                unsafe { queue.submit(request, index as u64) };
                Ok(())
            }
            None => {
                // SAFETY: the page lies in the mapping and in no other, and its latch is held exclusively.
                let read = unsafe { allocator.storage().file.read(page.offset(), address, PAGE_SIZE) };
                self.admit(index, read)
            }
        }
    }

    /// Redoes pages whose reads are over.
    fn reap(&mut self, wait: Wait) {
        let mut completions = std::mem::take(&mut self.reads.completions);
        if let Some(queue) = &mut self.reads.queue {
            queue.reap(wait, &mut completions);
        }
        for Completion { tag, result } in completions.drain(..) {
            let index = tag as usize;
            if let Err(error) = self.admit(index, result) {
                self.changes.failed(index, error);
            }
        }
        self.reads.completions = completions;
    }

    /// Redoes a page that was read.
    fn admit(&mut self, index: usize, read: io::Result<()>) -> Result<(), PoolError> {
        let Some(PageToRedo { page, .. }) = self.pages.get(index).copied() else { return Ok(()) };
        self.redoer.allocator.io.faults.admit_latched(Extent::page(page), read)?;
        self.redo(index, page)
    }

    /// Redoes a page that is in memory and latched.
    fn redo(&mut self, index: usize, page: PageId) -> Result<(), PoolError> {
        let mut guard = ExclusiveGuard::adopt(&self.redoer.allocator, Extent::page(page));
        self.changes.redo(index, guard.page_mut()).map_err(|what| {
            guard.forget();
            PoolError::contents(page, what)
        })
    }
}
