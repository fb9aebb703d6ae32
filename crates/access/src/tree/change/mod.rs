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
use vellum_pool::Pager;

impl<'p, P: Pager> Tree<'p, P> {
    /// Begins to change pages of the tree that are latched.
    #[inline(always)]
    pub(in crate::tree) fn change<S: PageSet<'p, P>>(&self, pages: S) -> AtomicChange<'p, P, S> {
        AtomicChange::new(self.pager, self.root, pages)
    }
}
