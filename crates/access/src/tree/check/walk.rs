//! A walk of a whole tree, from its root down and from its first key to its last, while other threads change it.
//!
//! Each node is read by a descent of its own, together with its parent, as of one moment. So what the parent says of its
//! fences can be compared, whatever happens before and after. A walk that has read a node goes on right after the node's
//! upper fence, wherever that leads by then. That fence may lie beyond what the copy of its parent says, if the node has
//! absorbed its neighbour since, and beyond the parent's own.
//!
//! Every node that is in the tree from the beginning of the walk to its end is read. Only the root changes its level. Of
//! two nodes that are merged the left one stays, and a node that is split stays the left one. So a node keeps its lower
//! fence as long as it is there, and the walk comes to it where it begins. The root keeps its page.

use super::TreeReport;
use crate::error::AccessError;
use crate::node::{NODE_BYTES, NodeView};
use crate::tree::Tree;
use crate::tree::descend::{Approach, Descent, NOT_ITS_FENCES, Place, Towards, leads_on};
use vellum_base::{Bytes, Extent, PageId};
use vellum_pool::{OptimisticPage, Pager, PoolError};

/// A walk, what it has found, and whom it tells of extents.
pub(super) struct Walk<'w, 'p, P: Pager, V> {
    pub tree: &'w Tree<'p, P>,
    pub report: TreeReport,
    pub visit: V,
}

/// The lower and the upper fence of a node. Keys lie after the lower one, and not after the upper one.
type Fences = (Option<Vec<u8>>, Option<Vec<u8>>);

impl<P: Pager, V: FnMut(Extent) -> bool> Walk<'_, '_, P, V> {
    pub fn whole(&mut self) {
        if !(self.visit)(Extent::page(self.tree.root())) {
            return;
        }
        let level = self.tree.pager.run(|| {
            let root = Descent::<P>::begin(self.tree.pager, self.tree.root())?;
            root.node.validate().map(|()| root.level)
        });
        match level {
            Ok(level) => drop(self.nodes(level, (None, None), None)),
            Err(error) => self.report.problems.push(error.into()),
        }
    }

    /// Walks all nodes of a level between two keys, with everything below them. The first of them is probably `first`. Returns
    /// the key after which the walk goes on: the second one, or a later one. `None` is the end of the tree. After a node that
    /// cannot be read, the walk goes on after the second key.
    fn nodes(&mut self, level: u8, (mut from, to): Fences, mut first: Option<PageId>) -> Option<Vec<u8>> {
        loop {
            let towards = from.as_deref().map_or(Towards::First, Towards::After);
            let upper = match self.tree.sound_at(towards, level) {
                Ok(Some((page, bytes))) => self.node((page, NodeView::new(&bytes[..])), from),
                // The root has become lower.
                Ok(None) => match level.checked_sub(1) {
                    Some(level) => return self.nodes(level, (from, to), None),
                    None => return to,
                },
                Err(error) => {
                    self.unsound(level, first, error);
                    return to;
                }
            };
            if upper.is_none() || to.is_some() && upper >= to {
                return upper;
            }
            (from, first) = (upper, None);
        }
    }

    /// Reports the error of a descent to a node, or what is wrong with the page itself.
    fn unsound(&mut self, level: u8, page: Option<PageId>, error: AccessError) {
        if page.is_some_and(|page| !(self.visit)(Extent::page(page))) {
            return;
        }
        let own = page.and_then(|page| self.tree.sound_node(page, Some(level)).err());
        self.report.problems.push(own.map_or(error, AccessError::from));
    }

    /// Walks what belongs to a node after a key; returns the node's upper fence, or the later key to which something below it
    /// reached.
    fn node(&mut self, (page, view): (PageId, NodeView<&[u8]>), from: Option<Vec<u8>>) -> Option<Vec<u8>> {
        let (lower, upper) = view.fences();
        // One that begins before has been read, and has since absorbed its neighbour.
        let is_new = lower == from;
        if is_new && page != self.tree.root() && !(self.visit)(Extent::page(page)) {
            return upper;
        }
        self.report.shape.height = self.report.shape.height.max(u32::from(view.level()) + 1);
        if is_new {
            self.report.shape.add(view);
        }
        let Some(below) = view.level().checked_sub(1) else {
            self.tree.verify_blobs(view, (from.as_deref(), false), &mut self.report, &mut self.visit);
            return upper;
        };
        let mut start = from;
        for (index, child) in (0..=view.count()).zip(view.children()) {
            let end = if index < view.count() { Some(view.key(index)) } else { upper.clone() };
            // Before what is to be walked.
            if end.is_some() && start >= end {
                continue;
            }
            start = Some(self.nodes(below, (start, end), Some(child))?);
        }
        start
    }
}

impl<P: Pager> Tree<'_, P> {
    /// A copy of the node at `level` in this direction, after a check of all its invariants, and of its fences against those
    /// that its parent has for it at the same moment. `None` if the tree is not that high.
    fn sound_at(&self, towards: Towards<'_>, level: u8) -> Result<Option<(PageId, Vec<u8>)>, AccessError> {
        let (mut bytes, mut above) = (Vec::new(), Vec::new());
        let approach = if level == 0 { Approach::InPassing } else { Approach::Direct };
        let found = self.pager.run(|| {
            bytes.clear();
            above.clear();
            let Some(Place { node, parent }) = self.node_at(towards, level, approach, None)? else {
                return Ok(None);
            };
            node.bytes().append_to(0, NODE_BYTES, &mut bytes);
            node.validate()?;
            let place = match parent {
                Some((parent, place)) => {
                    parent.bytes().append_to(0, NODE_BYTES, &mut above);
                    // After the node, so that it was this parent's child when it was copied.
                    parent.validate().map(|()| Some(place))?
                }
                None => None,
            };
            Ok(Some((node.id(), place)))
        })?;
        let Some((page, place)) = found else { return Ok(None) };
        let view = NodeView::new(&bytes[..]);
        view.validate().map_err(|fault| PoolError::contents(page, fault.to_string()))?;
        let expected: Fences = place.map_or((None, None), |place| {
            let parent = NodeView::new(&above[..]);
            let (index, (lower, upper)) = (parent.child_index(place), parent.fences());
            let before = index.checked_sub(1).map(|before| parent.key(before));
            (before.or(lower), if index < parent.count() { Some(parent.key(index)) } else { upper })
        });
        if view.fences() != expected || !leads_on(view, towards) {
            return Err(PoolError::contents(page, NOT_ITS_FENCES).into());
        }
        Ok(Some((page, bytes)))
    }
}
