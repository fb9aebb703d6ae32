//! Changing a tree: records in leaves, and the splits and merges that follow from that.

pub(super) mod blob;
mod claim;
pub(super) mod destroy;
pub(super) mod exchange;
mod expected;
pub(super) mod last;
pub(super) mod merge;
pub(super) mod modify;
pub(super) mod relocate;
pub(super) mod split;
mod undo;
pub(super) mod write;

use crate::gateway::{AtomicChange, PageSet};
use crate::tree::Tree;
use vellum_base::primitive::Ordering;
use vellum_pool::{Interrupt, Pager, PoolError};

impl<'p, P: Pager> Tree<'p, P> {
    /// Begins to change pages of the tree that are latched. Records that will be changed have been claimed: a thread that finds the claims
    /// later finds that pages are kept, or these are kept.
    ///
    /// # Errors
    /// If there is another tree in its place.
    #[inline(always)]
    pub(in crate::tree) fn change<S: PageSet<'p, P>>(
        &self,
        pages: S,
    ) -> Result<AtomicChange<'p, P, S>, Interrupt> {
        self.check_root()?;
        Ok(self.begin_change(pages, self.pager.needs_lsn()))
    }

    /// Makes sure that there is no other tree in its place: asked when pages are latched, before [`begin_change`](Self::begin_change).
    ///
    /// # Errors
    /// If there is.
    #[inline(always)]
    pub(in crate::tree) fn check_root(&self) -> Result<(), Interrupt> {
        // Relaxed: a thread that truncates the tree has stored another root before it latched any page of it, so what is latched after that is
        // refused, and it sees what was latched before.
        if self.current.is_some_and(|current| current.load(Ordering::Relaxed) != self.root.0) {
            return Err(PoolError::Cancelled.into());
        }
        Ok(())
    }

    /// [`change`](Self::change) after [`check_root`](Self::check_root): a change that is wrapped in a `Result` and taken out again is copied with
    /// its padding, in pieces that the processor cannot forward to each other.
    #[inline(always)]
    pub(in crate::tree) fn begin_change<S: PageSet<'p, P>>(
        &self,
        pages: S,
        needs_lsn: bool,
    ) -> AtomicChange<'p, P, S> {
        AtomicChange::new(self.pager, self.root, pages, self.view.is_some(), needs_lsn)
    }
}
