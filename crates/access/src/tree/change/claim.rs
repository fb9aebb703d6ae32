//! Claiming records before they are changed: see [`isolation`](crate::isolation).

use crate::error::{AccessError, damaged};
use crate::gateway::{Latched, Recorder, ValueImage};
use crate::isolation::{Claim, View};
use crate::tree::Tree;
use vellum_base::{Extent, PageHeader};
use vellum_pool::{Interrupt, Pager};

impl<'p, P: Pager> Tree<'p, P> {
    /// Claims the record of `key` in a latched leaf, in slot `index` if it is there, which is about to be changed or removed.
    #[inline(always)]
    pub(in crate::tree) fn claim(
        &self,
        leaf: &Latched<'p, P>,
        (key, index): (&[u8], Option<usize>),
        removes: bool,
    ) -> Result<Result<(), Claim>, Interrupt> {
        match &self.view {
            None => Ok(Ok(())),
            Some(view) => self.claim_by(view, leaf, (key, index), removes),
        }
    }

    #[inline(never)]
    fn claim_by(
        &self,
        view: &View<'p>,
        leaf: &Latched<'p, P>,
        (key, index): (&[u8], Option<usize>),
        removes: bool,
    ) -> Result<Result<(), Claim>, Interrupt> {
        let nodes = leaf.view();
        let value = |index: usize| {
            let at = nodes.value_location(index);
            let bytes = nodes.bytes().get(at.at..at.at + at.length);
            let bytes =
                bytes.ok_or_else(|| damaged(leaf.id(), "a record of this leaf lies outside of it"))?;
            Ok::<_, Interrupt>(ValueImage { kind: at.kind, bytes })
        };
        let before = index.map(value).transpose()?;
        let lsn = PageHeader::read(leaf.page()).lsn;
        Ok(view.isolation.claim(self.root, key, lsn, before, removes))
    }

    /// Whether what a leaf holds under `key`, be that nothing, is what the writer sees. The leaf is validated afterwards.
    #[inline(always)]
    pub(in crate::tree) fn check(&self, leaf: &P::Optimistic<'p>, key: &[u8]) -> Result<(), Claim> {
        match &self.view {
            Some(view) if !self.is_settled(leaf) => view.isolation.check(self.root, key),
            _ => Ok(()),
        }
    }

    /// On whose behalf records are changed.
    #[inline(always)]
    pub(in crate::tree) fn recorder(&self) -> Option<&dyn Recorder> {
        self.view.as_ref().map(|view| view as &dyn Recorder)
    }

    /// The extent of a large value that the record of a change frees which replaces or removes it.
    #[inline(always)]
    pub(in crate::tree) fn freed(&self, extent: Option<Extent>) -> Option<Extent> {
        extent.filter(|_| self.view.as_ref().is_none_or(View::frees))
    }

    /// The error for a record that must not be changed.
    #[cold]
    pub(in crate::tree) fn denied(&self, claim: Claim, key: &[u8]) -> AccessError {
        match claim {
            Claim::Conflict { committed } => {
                AccessError::Conflict { tree: self.root, key: key.to_vec(), committed }
            }
            Claim::NeedsTransaction => AccessError::NeedsTransaction,
        }
    }
}
