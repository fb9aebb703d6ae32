//! Claiming records before they are changed: see [`isolation`](crate::isolation).

use crate::error::{AccessError, damaged};
use crate::gateway::{Latched, Recorder, ValueImage};
use crate::isolation::{Claim, Intent, View};
use crate::node::NodeView;
use crate::tree::Tree;
use vellum_base::{Bytes as _, Extent, LSN_AT, Lsn, PageHeader, PageId};
use vellum_pool::{Interrupt, OptimisticPage as _, Pager, PoolError};

impl<'p, P: Pager> Tree<'p, P> {
    /// Whether records are [claimed](Self::claim) before a change. `needs_lsn` was asked when the leaf was latched.
    #[inline(always)]
    pub(in crate::tree) fn claims(&self, needs_lsn: bool) -> bool {
        self.view.as_ref().is_some_and(|view| !view.is_alone(needs_lsn))
    }

    /// Claims the record of `key` in a latched leaf before it is changed or removed. `index` is its slot if it exists.
    #[inline(always)]
    pub(in crate::tree) fn claim(
        &self,
        leaf: &Latched<'p, P>,
        (key, index): (&[u8], Option<usize>),
        intent: Intent,
    ) -> Result<Result<(), Claim>, Interrupt> {
        match &self.view {
            None => Ok(Ok(())),
            // The code out of line gets copies, so that the guard stays in registers if there is no view.
            Some(view) => claim_by(view, (self.root, leaf.id()), leaf.page(), (key, index), intent),
        }
    }

    /// Checks that the writer sees what a leaf holds under `key`, even if that is nothing. The leaf is validated later.
    #[inline(always)]
    pub(in crate::tree) fn check(&self, leaf: &P::Optimistic<'p>, key: &[u8]) -> Result<(), Claim> {
        match &self.view {
            Some(view) => {
                let lsn = Lsn(leaf.bytes().u64_at(LSN_AT));
                if view.is_settled(lsn) { Ok(()) } else { view.isolation.check(self.root, key, lsn) }
            }
            _ => Ok(()),
        }
    }

    /// The originator of changes of records, for their log records.
    #[inline(always)]
    pub(in crate::tree) fn recorder(&self) -> Option<&dyn Recorder> {
        self.view.as_ref().map(|view| view as &dyn Recorder)
    }

    /// The extent of a large value, if the log record that replaces or removes the value also frees it.
    #[inline(always)]
    pub(in crate::tree) fn freed(&self, extent: Option<Extent>) -> Option<Extent> {
        match &self.view {
            Some(view) if !view.frees() => None,
            _ => extent,
        }
    }

    /// The error for a record that must not be changed.
    #[cold]
    pub(in crate::tree) fn denied(&self, claim: Claim, key: &[u8]) -> AccessError {
        match claim {
            Claim::Conflict { committed } => {
                AccessError::Conflict { tree: self.root, key: key.to_vec(), committed }
            }
            Claim::Ended => PoolError::Cancelled.into(),
            Claim::Failed(error) => (*error).into(),
            Claim::NeedsTransaction => AccessError::NeedsTransaction { tree: self.root, key: key.to_vec() },
        }
    }
}

#[inline(never)]
fn claim_by(
    view: &View<'_>,
    (tree, leaf): (PageId, PageId),
    page: &[u8],
    (key, index): (&[u8], Option<usize>),
    intent: Intent,
) -> Result<Result<(), Claim>, Interrupt> {
    let before = match index {
        Some(index) => {
            let Some((kind, bytes)) = NodeView::new(page).value(index) else {
                return Err(damaged(leaf, "a record of this leaf lies outside of it"));
            };
            Some(ValueImage { kind, bytes })
        }
        None => None,
    };
    match view.isolation.claim(tree, key, PageHeader::read(page).lsn, before, intent) {
        Ok(()) => Ok(Ok(())),
        Err(refused) => refuse(refused),
    }
}

/// Out of line, so that the usual result is built in place, and not copied with the data around it.
#[cold]
#[inline(never)]
fn refuse(refused: Claim) -> Result<Result<(), Claim>, Interrupt> {
    Ok(Err(refused))
}
