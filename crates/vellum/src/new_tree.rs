//! A tree for a table, known only by its doomed record in the catalog so far.

use crate::{Result, catalog, life::OpenTable, shared::Inner};
use std::sync::Arc;
use vellum_base::PageId;

/// An empty tree that a table will get. It is freed unless it is [kept](Self::keep).
pub(crate) struct NewTree {
    inner: Arc<Inner>,
    pub(crate) open: Arc<OpenTable>,
    pub(crate) root: PageId,
    is_kept: bool,
}

impl NewTree {
    pub(crate) fn create(inner: &Arc<Inner>, open: &Arc<OpenTable>) -> Result<Self> {
        Ok(Self::of(inner, open, catalog::create_doomed(inner.pool())?))
    }

    /// Uses an existing tree.
    pub(crate) fn of(inner: &Arc<Inner>, open: &Arc<OpenTable>, root: PageId) -> Self {
        Self { inner: inner.clone(), open: open.clone(), root, is_kept: false }
    }

    /// Hands over responsibility for freeing the tree.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for NewTree {
    fn drop(&mut self) {
        if !self.is_kept {
            self.inner.doom(self.open.clone(), 0, Some(self.root));
        }
    }
}
