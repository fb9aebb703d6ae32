//! Scans: showing entries where they lie.
//!
//! A leaf is latched in shared mode as long as its entries are shown, so nothing is copied, except each key: leaves
//! keep its prefix elsewhere. What a leaf does not hold is shown without a latch, as a cursor's steps do: large values,
//! and what the tree's view sees instead of the leaf's records.

use super::{Cursor, Entry, Fetched, Stand, copy_size::Reach};
use crate::error::AccessError;
use crate::node::NodeView;
use crate::tree::Tree;
use crate::tree::descend::Direction;
use crate::tree::read::record::{StoredValue, value_in};
use std::ops::{ControlFlow, Range};
use vellum_pool::{Interrupt, OptimisticPage, Pager, SharedPage};

/// How many records are fetched into the processor's cache before the first is shown, at most: the processor itself
/// fetches what lies further on.
const RECORDS_FETCHED: usize = 32;

impl<'p, P: Pager> Cursor<'p, P> {
    /// Steps over the entries after the cursor and shows each to `visit`, until it breaks or the range ends; returns
    /// whether it broke, and with what.
    ///
    /// Small values are shown where they lie, with their leaf latched in shared mode: other threads read it meanwhile, and
    /// wait to change it. So `visit` should be short, and must not change the tree or wait for a thread that does.
    ///
    /// # Errors
    /// As for [`next`](Self::next).
    pub fn scan<B>(
        &mut self,
        mut visit: impl FnMut(Entry<'_, 'p, P>) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>, AccessError> {
        loop {
            if let Some(leaf) = self.latched.take()
                && let ControlFlow::Break(with) = self.show(NodeView::new(leaf.page()), &mut visit)?
            {
                return Ok(ControlFlow::Break(with));
            }
            if self.place.is_some() && !self.is_at_end(Direction::Forward) {
                let Some(entry) = self.next()? else { return Ok(ControlFlow::Continue(())) };
                if let ControlFlow::Break(with) = visit(entry) {
                    return Ok(ControlFlow::Break(with));
                }
                continue;
            }
            self.in_place = true;
            let fetched = self.fetch(Direction::Forward, true);
            self.in_place = false;
            if fetched? != Fetched::More {
                return Ok(ControlFlow::Continue(()));
            }
        }
    }

    /// Shows the entries of a latched leaf up to the end of the range, of the leaf, or before a large value.
    fn show<B>(
        &mut self,
        leaf: NodeView<&[u8]>,
        visit: &mut impl FnMut(Entry<'_, 'p, P>) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>, AccessError> {
        let end = leaf.count().min(self.end);
        while self.index < end {
            self.key.load(leaf, self.index);
            self.stand = Stand::Before;
            match value_in(leaf, self.index) {
                Some(value @ StoredValue::Inline(_)) => {
                    (self.stand, self.index) = (Stand::After, self.index + 1);
                    self.expected = self.expected.wrapping_sub(1);
                    let entry = Entry { tree: &self.tree, key: &self.key, value };
                    if let ControlFlow::Break(with) = visit(entry) {
                        return Ok(ControlFlow::Break(with));
                    }
                }
                Some(StoredValue::Blob(_)) => break,
                None => return Err(self.damaged()),
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Latches a leaf in shared mode, and fetches the records that will be shown.
#[inline]
pub(super) fn latch<'p, P: Pager>(
    tree: &Tree<'p, P>,
    leaf: &P::Optimistic<'p>,
    (index, count, end): Reach,
    expected: usize,
) -> Result<P::Shared<'p>, Interrupt> {
    let view = NodeView::new(leaf.bytes());
    let last = index.saturating_add(expected.min(RECORDS_FETCHED)).min(end).min(count);
    (index..last).for_each(|slot| fetch(tree, leaf, view.record_range(slot)));
    leaf.share()
}

/// Prefetches bytes of a leaf into the processor's cache.
#[inline]
pub(super) fn fetch<'p, P: Pager>(tree: &Tree<'p, P>, leaf: &P::Optimistic<'p>, bytes: Range<usize>) {
    tree.pager.prefetch(leaf.id(), bytes.start, bytes.len());
}
