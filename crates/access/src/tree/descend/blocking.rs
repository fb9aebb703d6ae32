//! One operation at a time: a page that is not in memory interrupts it, and [`Navigation::run`] waits for the page.
//!
//! [`Navigation::run`]: vellum_pool::Navigation::run

use super::{Approach, Descent, Direction, NOT_ITS_FENCES, Place, Towards, leads_on, step::check_node};
use crate::error::{AccessError, damaged};
use crate::node::{NODE_BYTES, NodeView};
use crate::tree::Tree;
use vellum_base::Bytes;
use vellum_pool::{Interrupt, OptimisticPage, Pager, PoolError};

impl<'p, P: Pager> Tree<'p, P> {
    /// The leaf that covers `key`.
    #[inline(always)]
    pub(in crate::tree) fn leaf(&self, key: &[u8]) -> Result<P::Optimistic<'p>, Interrupt> {
        let mut descent = Descent::<P>::begin(self.pager, self.root())?;
        while descent.level > 0 {
            descent.step(self.pager, Towards::Key(key), Approach::Direct)?;
        }
        Ok(descent.node)
    }

    /// The node at `level` in the given direction, with its parent. `None` if the tree is not that high. The last step
    /// uses the given approach. If the operation `goes_on` to the next node in some direction, the beginning of that
    /// node is fetched into the processor's cache as well.
    pub(in crate::tree) fn node_at(
        &self,
        towards: Towards<'_>,
        level: u8,
        approach: Approach,
        goes_on: Option<Direction>,
    ) -> Result<Option<Place<'p, P>>, Interrupt> {
        let mut descent = Descent::<P>::begin(self.pager, self.root())?;
        let mut parent = None;
        if descent.level < level {
            descent.node.validate()?;
            return Ok(None);
        }
        while descent.level > level {
            let last = descent.level == level + 1;
            let node = descent.node;
            descent.choose(towards);
            parent = Some((node, descent.place));
            if last && let Some(direction) = goes_on {
                let place = Place::<P> { parent, node };
                if let Some(page) = place.neighbour(direction, 1) {
                    self.pager.prefetch(page, 0, NodeView::<&[u8]>::GUIDE_BYTES);
                }
            }
            descent.follow(self.pager, if last { approach } else { Approach::Direct })?;
        }
        Ok(Some(Place { parent, node: descent.node }))
    }

    /// The leaf in the given direction, with its parent.
    pub(in crate::tree) fn leaf_at(
        &self,
        towards: Towards<'_>,
        approach: Approach,
        goes_on: Option<Direction>,
    ) -> Result<Place<'p, P>, Interrupt> {
        // Every tree has leaves.
        let place = self.node_at(towards, 0, approach, goes_on)?;
        place.ok_or_else(|| damaged(self.root(), "the root of a tree should be here"))
    }

    /// The leaf to which `parent` refers at `place`.
    pub(in crate::tree) fn leaf_of(
        &self,
        parent: P::Optimistic<'p>,
        place: usize,
        approach: Approach,
    ) -> Result<Place<'p, P>, Interrupt> {
        let mut descent = Descent::<P> { node: parent, level: 1, place };
        descent.follow(self.pager, approach)?;
        Ok(Place { parent: Some((parent, place)), node: descent.node })
    }

    /// Copies the node at `level` in the given direction, as of one moment. `Some(false)` if the tree is not that high;
    /// `None` if this would have to wait, and must not.
    pub(in crate::tree) fn copy_node(
        &self,
        towards: Towards<'_>,
        level: u8,
        (approach, may_wait): (Approach, bool),
        copy: &mut Vec<u8>,
    ) -> Result<Option<bool>, AccessError> {
        let page = self.attempt(may_wait, || {
            copy.clear();
            let Some(Place { node, .. }) = self.node_at(towards, level, approach, None)? else {
                return Ok(None);
            };
            node.bytes().append_to(0, NODE_BYTES, copy);
            node.validate().map(|()| Some(node.id()))
        })?;
        match page {
            Some(Some(page)) if !leads_on(NodeView::new(&copy[..]), towards) => {
                Err(PoolError::contents(page, NOT_ITS_FENCES).into())
            }
            found => Ok(found.map(|found| found.is_some())),
        }
    }

    /// Runs an operation until it ends. If it must not wait: `None` if a page is not in memory or stays latched, or the log
    /// has no room.
    pub(in crate::tree) fn attempt<T>(
        &self,
        may_wait: bool,
        mut operation: impl FnMut() -> Result<T, Interrupt>,
    ) -> Result<Option<T>, PoolError> {
        /// How often an operation that must not wait is restarted.
        const CONFLICTS_MAX: u32 = 8;
        if may_wait {
            return self.pager.run(operation).map(Some);
        }
        for _ in 0..=CONFLICTS_MAX {
            match operation() {
                Ok(done) => return Ok(Some(done)),
                Err(Interrupt::Conflict(_)) => {}
                Err(Interrupt::Miss(_)) => return Ok(None),
                // To make room takes a checkpoint.
                Err(Interrupt::Fatal(why)) if matches!(*why, PoolError::LogRefuses(_)) => return Ok(None),
                Err(fatal @ Interrupt::Fatal(_)) => self.pager.resolve(fatal)?,
            }
        }
        Ok(None)
    }

    /// The level of a node, after a check that it is one below its parent's.
    pub(in crate::tree) fn level_of(
        &self,
        node: &P::Optimistic<'p>,
        parent_level: Option<u8>,
    ) -> Result<u8, Interrupt> {
        let level = NodeView::new(node.bytes()).level();
        // No parent is a leaf.
        let expected = parent_level.map_or(level, |parent| parent.saturating_sub(1));
        check_node(node, expected, parent_level).map(|()| level)
    }
}
