//! Redo on demand: after a crash a page is redone when it first enters memory, or later. See [`RedoOnDemand`].

use crate::{
    error::PoolError,
    plant::Plant,
    primitive::{AtomicBool, Bug, Mutex, Ordering, lock, planted, unless_planted},
};
use std::{io, sync::Weak};
use vellum_base::{Extent, PageId};

/// Brings pages up to date that lack changes from the log.
///
/// A page that lacks changes is not in memory, and this is asked for the page before it is read. So pages in memory are
/// always right, and cost nothing to check.
///
/// After *instant recovery*: Graefe, Guy, Sauer: *Instant Recovery with Write-Ahead Logging*, 2nd ed., 2016, chapter 4.
pub trait RedoOnDemand: Send + Sync {
    /// Returns once a page lacks no changes. The thread may hold latches of other pages, none of which lacks changes.
    ///
    /// # Errors
    /// If the page cannot be brought up to date. The call may be repeated.
    fn redo(&self, page: PageId) -> Result<(), PoolError>;

    /// A page will be reused: changes it lacks belong to an earlier life. The thread may hold latches of other
    /// pages, but not of this one.
    fn forget(&self, page: PageId);
}

/// The object to ask before a page is read.
pub(crate) struct OnDemand {
    is_needed: AtomicBool,
    redo: Mutex<Option<Weak<dyn RedoOnDemand>>>,
}

impl OnDemand {
    pub(crate) fn new() -> Self {
        Self { is_needed: AtomicBool::new(false), redo: Mutex::new(None) }
    }

    /// From now on `redo` is asked, as long as it exists. Without it nothing is read any more.
    pub(crate) fn begin(&self, redo: Weak<dyn RedoOnDemand>) {
        if planted(Bug::NeededBeforeNamed) {
            self.is_needed.store(true, Ordering::Relaxed);
        }
        *lock(&self.redo) = Some(redo);
        // Relaxed: a thread that sees this takes the lock later than this one has, and finds the object.
        self.is_needed.store(true, Ordering::Relaxed);
    }

    /// Ends redo on demand: no page lacks changes any more.
    pub(crate) fn end(&self) {
        // Release: a thread that sees this finds redone pages on storage, or in memory.
        self.is_needed.store(false, unless_planted(Bug::RelaxedEndOfRedo, Ordering::Release));
        *lock(&self.redo) = None;
    }

    /// Whether pages may lack changes.
    #[inline]
    pub(crate) fn is_needed(&self) -> bool {
        // Acquire: pairs with `end`.
        self.is_needed.load(unless_planted(Bug::RelaxedLookAtRedo, Ordering::Acquire))
    }

    /// Called before an extent is latched to be read. Only single pages are redone.
    ///
    /// # Errors
    /// If the page cannot be brought up to date.
    #[inline]
    pub(crate) fn before(&self, extent: Extent) -> Result<(), PoolError> {
        if extent.pages == 1 && self.is_needed() { self.ask(extent.head) } else { Ok(()) }
    }

    /// Called when a claimed extent is about to be allocated.
    #[inline]
    pub(crate) fn forget(&self, extent: Extent) {
        if extent.pages == 1 && self.is_needed() {
            let redo = lock(&self.redo).as_ref().and_then(Weak::upgrade);
            redo.into_iter().for_each(|redo| redo.forget(extent.head));
        }
    }

    #[cold]
    fn ask(&self, page: PageId) -> Result<(), PoolError> {
        if vellum_base::plant::is_planted("pool", Plant::ReadNotRedone) {
            return Ok(());
        }
        // With the lock held: the object may be dropped once redo on demand has ended.
        let redo = lock(&self.redo).as_ref().map(Weak::upgrade);
        // If there was none, redo on demand has ended since.
        let Some(redo) = redo else { return Ok(()) };
        let gone =
            || PoolError::Log(io::Error::other("the pool is being closed, and a page was not redone yet"));
        redo.ok_or_else(gone)?.redo(page)
    }
}
