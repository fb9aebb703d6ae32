//! Claiming records before they are changed: see [`isolation`](crate::isolation).

use crate::error::{AccessError, damaged};
use crate::gateway::{Latched, Recorder, ValueImage};
use crate::isolation::{Claim, Intent, Isolation, View};
use crate::node::NodeView;
use crate::tree::Tree;
use std::mem;
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
            Some(view) => claim_by(view, (self.root(), leaf.id()), leaf.page(), (key, index), intent),
        }
    }

    /// Takes the claim of a record back that is not changed. Its leaf is still latched.
    #[cold]
    pub(in crate::tree) fn give_up_claim(&self) {
        if let Some(view) = &self.view {
            view.isolation.give_up(None);
        }
    }

    /// Lets `change` change a value that has been claimed. If it panics, the value becomes what it was, and the claim is
    /// taken back.
    #[inline(always)]
    pub(in crate::tree) fn change_claimed<T>(
        &self,
        value: &mut [u8],
        change: impl FnOnce(&mut [u8]) -> T,
    ) -> T {
        let Some(view) = &self.view else { return change(value) };
        let claimed = ClaimedValue { isolation: view.isolation, value };
        let result = change(claimed.value);
        mem::forget(claimed);
        result
    }

    /// Checks that the writer sees what a leaf holds under `key`, even if that is nothing. The leaf is validated later.
    #[inline(always)]
    pub(in crate::tree) fn check(&self, leaf: &P::Optimistic<'p>, key: &[u8]) -> Result<(), Claim> {
        match &self.view {
            Some(view) => {
                let lsn = Lsn(leaf.bytes().u64_at(LSN_AT));
                if view.is_settled(lsn) { Ok(()) } else { view.isolation.check(self.root(), key, lsn) }
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
                AccessError::Conflict { tree: self.root(), key: key.to_vec(), committed }
            }
            Claim::Ended => PoolError::Cancelled.into(),
            Claim::Failed(error) => (*error).into(),
            Claim::NeedsTransaction => AccessError::NeedsTransaction { tree: self.root(), key: key.to_vec() },
        }
    }
}

/// A claimed value that is being changed. Dropped on a panic, before its leaf is released.
struct ClaimedValue<'v> {
    isolation: &'v dyn Isolation,
    value: &'v mut [u8],
}

impl Drop for ClaimedValue<'_> {
    #[cold]
    fn drop(&mut self) {
        self.isolation.give_up(Some(self.value));
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
