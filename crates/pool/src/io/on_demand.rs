//! Redo on demand: after a crash a page is redone when it is brought into memory for the first time, and others later. See [`RedoOnDemand`].

use crate::{
    error::PoolError,
    plant::Plant,
    primitive::{AtomicBool, Mutex, Ordering, lock},
};
use std::{
    io,
    sync::{Arc, Weak},
};
use vellum_base::{Extent, PageId};

/// Brings pages up to date that lack changes of which the log tells.
///
/// A page that lacks some is not in memory, and it is asked for before it is read. So what is in memory is always right, and costs nothing to look
/// at.
///
/// After *instant recovery*: Graefe, Guy, Sauer: *Instant Recovery with Write-Ahead Logging*, 2nd edition, 2016, chapter 4.
pub trait RedoOnDemand: Send + Sync {
    /// Returns once a page lacks nothing. The thread may hold latches of other pages, all of which lack nothing.
    ///
    /// # Errors
    /// If the page cannot be brought up to date. It may be tried again.
    fn redo(&self, page: PageId) -> Result<(), PoolError>;

    /// A page is going to be used anew: what it lacks was of an earlier life. The thread may hold latches of other pages, and not that of this one.
    fn forget(&self, page: PageId);
}

/// Whom to ask before a page is read.
pub(crate) struct OnDemand {
    is_needed: AtomicBool,
    redo: Mutex<Option<Weak<dyn RedoOnDemand>>>,
}

impl OnDemand {
    pub(crate) fn new() -> Self {
        Self { is_needed: AtomicBool::new(false), redo: Mutex::new(None) }
    }

    /// From now on it is asked, as long as it is there. Without it nothing is read any more.
    pub(crate) fn begin(&self, redo: Weak<dyn RedoOnDemand>) {
        *lock(&self.redo) = Some(redo);
        // Release: pairs with `before`.
        self.is_needed.store(true, Ordering::Release);
    }

    /// No page lacks anything any more.
    pub(crate) fn end(&self) {
        // Release: a thread that sees it finds on storage what was redone, or in memory.
        self.is_needed.store(false, Ordering::Release);
        *lock(&self.redo) = None;
    }

    /// Before an extent is latched to be read. Only single pages are redone.
    ///
    /// # Errors
    /// If it cannot be brought up to date.
    #[inline]
    pub(crate) fn before(&self, extent: Extent) -> Result<(), PoolError> {
        // Acquire: pairs with `end`.
        if extent.pages == 1 && self.is_needed.load(Ordering::Acquire) {
            self.ask(extent.head)
        } else {
            Ok(())
        }
    }

    /// An extent that was claimed is about to be allocated.
    #[inline]
    pub(crate) fn forget(&self, extent: Extent) {
        // Acquire: as above.
        if extent.pages == 1 && self.is_needed.load(Ordering::Acquire) {
            let redo = lock(&self.redo).as_ref().and_then(Weak::upgrade);
            redo.into_iter().for_each(|redo| redo.forget(extent.head));
        }
    }

    #[cold]
    fn ask(&self, page: PageId) -> Result<(), PoolError> {
        if vellum_base::plant::is_planted("pool", Plant::ReadNotRedone) {
            return Ok(());
        }
        // It has ended since if there is none.
        let Some(redo) = lock(&self.redo).clone() else { return Ok(()) };
        let gone =
            || PoolError::Log(io::Error::other("the pool is being closed, and a page was not redone yet"));
        Weak::upgrade(&redo).ok_or_else(gone).and_then(|redo: Arc<_>| redo.redo(page))
    }
}
