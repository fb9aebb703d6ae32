//! Merging sparse nodes with their neighbours.
//!
//! A node is sparse if its records take less than two fifths of what its fences leave them. It is merged with
//! a neighbour if both fit into one page. Failing that is not an error, it only costs space.

use crate::tree::{
    Tree,
    change::split::copy_node,
    descend::{Place, Towards},
    latch, view_of,
};
use crate::{
    AccessError,
    error::{damaged, refused},
    node::{NODE_BYTES, NodeMut, NodeView, can_merge},
};
use vellum_base::Bytes;
use vellum_pool::{ExclusivePage, Interrupt, OptimisticPage, Pager};

/// Whether a node should be merged with a neighbour.
pub(in crate::tree) fn is_sparse<B: Bytes>(view: NodeView<B>) -> bool {
    let (free, fences) = (view.free_bytes(), view.fence_bytes());
    let records = view.used_bytes().saturating_sub(fences);
    records * 3 < free * 2
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
    pub(in crate::tree) fn merge(&self, key: &[u8], level: u8) -> Result<(), AccessError> {
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
            Place { parent: Some((parent, at)), .. } => {
                let view = NodeView::new(parent.bytes());
                let (index, count) = (view.child_index(at), view.count());
                if count == 0 {
                    // It has no neighbour below its parent, but its parent may have one.
                    parent.validate()?;
                    return Ok(Attempt::ParentSparse);
                }
                // The right neighbour, or else the left one.
                for left_index in [Some(index), index.checked_sub(1)].into_iter().flatten() {
                    if left_index < count && self.might_fit(&parent, left_index)? {
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
        let level = Some(view.level());
        let left = self.pager.child(parent, view.child_place(left_index))?;
        let right = self.pager.child(parent, view.child_place(left_index + 1))?;
        // Both are looked at closely because both will be latched: of pages that a damaged parent refers to,
        // one may be latched already, and it would be waited for forever.
        self.level_of(&left, level)?;
        self.level_of(&right, level)?;
        let (left_view, right_view) = (NodeView::new(left.bytes()), NodeView::new(right.bytes()));
        let records = |view: NodeView<_>| view.used_bytes().saturating_sub(view.fence_bytes());
        let used = records(left_view) + records(right_view);
        // The fences that will remain, if the outer ones are about as long as the inner ones.
        let fences = left_view.fence_bytes().min(right_view.fence_bytes());
        let fits = used + fences <= left_view.used_bytes() + left_view.free_bytes();
        left.validate()?;
        right.validate()?;
        if left.id() == right.id() {
            return Err(damaged(parent.id(), "it refers to one node twice"));
        }
        Ok(fits)
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
        // Both become one beside them, so that nothing has changed if the parent turns out to be damaged.
        let mut page = [0; NODE_BYTES];
        copy_node(left.page(), &mut page);
        NodeMut::new(&mut page)
            .merge_from_right(view_of(&right), &separator)
            .map_err(|error| refused(left.id(), error))?;
        NodeMut::new(parent.page_mut()).remove_separator(index).map_err(|fault| damaged(parent_id, fault))?;
        copy_node(&page, left.page_mut());
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
        let (level, mut root) = (view.level(), latch::<P>(root)?);
        let place = view_of(&root).child_place(0);
        if view_of(&root).child_at(place) == root.id() {
            return Err(damaged(root.id(), "it refers to itself"));
        }
        let child = self.pager.child_of_latched(&root, place)?;
        self.level_of(&child, Some(level))?;
        let child = latch::<P>(child)?;
        copy_node(child.page(), root.page_mut());
        child.free();
        Ok(Attempt::RootLowered)
    }
}
