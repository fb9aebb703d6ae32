//! Merging sparse nodes with their neighbours.
//!
//! A node of which less than two fifths are used is merged with a neighbour if both fit into one page.
//! Failing that is not an error, it only costs space.

use super::{
    Tree,
    descend::{Place, Towards},
    latch,
    split::copy_node,
    view_of,
};
use crate::{
    AccessError,
    error::{damaged, refused},
    node::{NODE_BYTES, NodeMut, NodeView, can_merge},
};
use vellum_base::{Bytes, HEADER_BYTES};
use vellum_pool::{ExclusivePage, Interrupt, OptimisticPage, Pager};

/// The bytes in use below which a node is sparse.
const SPARSE_BYTES: usize = (NODE_BYTES - HEADER_BYTES) * 2 / 5;

/// Whether a node should be merged with a neighbour.
pub(super) fn is_sparse<B: Bytes>(view: NodeView<B>) -> bool {
    view.used_bytes() < SPARSE_BYTES
}

enum Attempt {
    /// There is nothing to do, or nothing that can be done.
    Nothing,
    /// Two nodes became one, and the parent has become sparse.
    ParentSparse,
    /// The root took over its only child, and is one level lower.
    RootLowered,
}

impl<'p, P: Pager> Tree<'p, P> {
    /// Merges the node at `level` on the way to `key` with a neighbour, if it is sparse and they fit, and
    /// then its parent, and so on.
    pub(super) fn merge(&self, key: &[u8], level: u8) -> Result<(), AccessError> {
        let mut level = level;
        loop {
            match self.pager.run(|| self.try_merge(key, level))? {
                Attempt::Nothing => return Ok(()),
                Attempt::ParentSparse => level += 1,
                Attempt::RootLowered => level = level.saturating_sub(1),
            }
        }
    }

    fn try_merge(&self, key: &[u8], level: u8) -> Result<Attempt, Interrupt> {
        let Some(place) = self.node_at(Towards::Key(key), level)? else { return Ok(Attempt::Nothing) };
        if !is_sparse(NodeView::new(place.node.bytes())) {
            place.node.validate()?;
            return Ok(Attempt::Nothing);
        }
        match place {
            Place { parent: None, node } => self.lower_root(node),
            Place { parent: Some((parent, at)), node } => {
                let view = NodeView::new(parent.bytes());
                let (index, count) = (view.child_index(at), view.count());
                // The right neighbour, or else the left one.
                for left_index in [Some(index), index.checked_sub(1)].into_iter().flatten() {
                    if left_index < count && self.might_fit(&parent, left_index)? {
                        drop(node);
                        return self.merge_children(parent, left_index);
                    }
                }
                parent.validate()?;
                Ok(Attempt::Nothing)
            }
        }
    }

    /// Whether child `left_index` and the next one look as if they fit into one page.
    fn might_fit(&self, parent: &P::Optimistic<'p>, left_index: usize) -> Result<bool, Interrupt> {
        let view = NodeView::new(parent.bytes());
        let left = self.pager.child(parent, view.child_place(left_index))?;
        let right = self.pager.child(parent, view.child_place(left_index + 1))?;
        let used = NodeView::new(left.bytes()).used_bytes() + NodeView::new(right.bytes()).used_bytes();
        left.validate()?;
        right.validate()?;
        Ok(used < NODE_BYTES - HEADER_BYTES)
    }

    fn merge_children(&self, parent: P::Optimistic<'p>, index: usize) -> Result<Attempt, Interrupt> {
        let mut parent = latch::<P>(parent)?;
        let parent_id = parent.id();
        let view = view_of(&parent);
        if index >= view.count() {
            return Err(damaged(parent_id, "it has fewer children than it had a moment ago"));
        }
        let left = self.pager.child_of_latched(&parent, view.child_place(index))?;
        let right = self.pager.child_of_latched(&parent, view.child_place(index + 1))?;
        let (mut left, right) = (latch::<P>(left)?, latch::<P>(right)?);
        let mut separator = Vec::new();
        view.append_key(index, &mut separator);
        if !can_merge(view_of(&left), view_of(&right), &separator) {
            return Ok(Attempt::Nothing);
        }
        let left_id = left.id();
        NodeMut::new(left.page_mut())
            .merge_from_right(view_of(&right), &separator)
            .map_err(|error| refused(left_id, error))?;
        NodeMut::new(parent.page_mut()).remove_separator(index).map_err(|fault| damaged(parent_id, fault))?;
        right.free();
        let sparse = is_sparse(view_of(&parent));
        Ok(if sparse { Attempt::ParentSparse } else { Attempt::Nothing })
    }

    /// A root with one child takes over its contents.
    fn lower_root(&self, root: P::Optimistic<'p>) -> Result<Attempt, Interrupt> {
        let view = NodeView::new(root.bytes());
        if view.is_leaf() || view.count() > 0 {
            root.validate()?;
            return Ok(Attempt::Nothing);
        }
        let mut root = latch::<P>(root)?;
        let place = view_of(&root).child_place(0);
        let child = latch::<P>(self.pager.child_of_latched(&root, place)?)?;
        copy_node(child.page(), root.page_mut());
        child.free();
        Ok(Attempt::RootLowered)
    }
}
