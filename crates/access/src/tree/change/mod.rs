//! Changing a tree: records in leaves, and the splits and merges that result.

pub(super) mod blob;
mod claim;
pub(super) mod destroy;
pub(super) mod exchange;
mod expected;
pub(super) mod last;
pub(super) mod merge;
pub(super) mod modify;
pub(super) mod relocate;
mod settle;
pub(super) mod split;
mod undo;
pub(super) mod write;

use crate::gateway::{AtomicChange, PageSet};
use crate::tree::Tree;
use vellum_pool::{Interrupt, Pager, PoolError};

impl<'p, P: Pager> Tree<'p, P> {
    /// Begins to change latched pages of the tree. The records to be changed have been claimed already, so if this
    /// change does not keep its pages, a keeper that is armed later finds the claims.
    ///
    /// # Errors
    /// If the tree has been replaced by another one.
    #[inline(always)]
    pub(in crate::tree) fn change<S: PageSet<'p, P>>(
        &self,
        pages: S,
    ) -> Result<AtomicChange<'p, P, S>, Interrupt> {
        self.check_root()?;
        Ok(self.begin_change(pages, self.pager.needs_lsn()))
    }

    /// Checks that the tree was not replaced. Asked with pages latched, before [`begin_change`](Self::begin_change).
    ///
    /// # Errors
    /// If it has been replaced.
    #[inline(always)]
    pub(in crate::tree) fn check_root(&self) -> Result<(), Interrupt> {
        if self.current.is_some_and(|current| !current.is_latched(self.at)) {
            return Err(PoolError::Cancelled.into());
        }
        Ok(())
    }

    /// Checks that the tree had not been replaced when a record was looked for in vain: the tree may have been emptied, and
    /// the next one has the record. Asked after the leaf has been validated.
    ///
    /// # Errors
    /// If it has been replaced.
    pub(in crate::tree) fn check_vain(&self) -> Result<(), Interrupt> {
        if self.current.is_some_and(|current| !current.is(self.at)) {
            return Err(PoolError::Cancelled.into());
        }
        Ok(())
    }

    /// [`change`](Self::change) after [`check_root`](Self::check_root): a change that is wrapped in a `Result` and
    /// unwrapped is copied with its padding, in pieces that the processor cannot forward to each other.
    #[inline(always)]
    pub(in crate::tree) fn begin_change<S: PageSet<'p, P>>(
        &self,
        pages: S,
        needs_lsn: bool,
    ) -> AtomicChange<'p, P, S> {
        AtomicChange::new(self.pager, self.root(), pages, self.view.is_some(), needs_lsn)
    }
}
