//! Splitting full nodes.

use super::{
    Tree,
    descend::{Place, Towards},
    latch, view_of,
};
use crate::{
    AccessError,
    error::{damaged, refused},
    node::{NODE_BYTES, NodeMut, NodeView},
};
use vellum_base::{HEADER_BYTES, PageKind};
use vellum_pool::{AllocatedPage, ExclusivePage, Interrupt, Pager};

enum Attempt {
    Done,
    /// The parent has no room for another separator.
    ParentFull,
}

impl<'p, P: Pager> Tree<'p, P> {
    /// Splits the node at `level` on the way to `key`, which is full; its parent first if need be.
    pub(super) fn split(&self, key: &[u8], level: u8) -> Result<(), AccessError> {
        loop {
            match self.pager.run(|| self.try_split(key, level))? {
                Attempt::Done => return Ok(()),
                Attempt::ParentFull => self.split(key, level + 1)?,
            }
        }
    }

    fn try_split(&self, key: &[u8], level: u8) -> Result<Attempt, Interrupt> {
        let Some(place) = self.node_at(Towards::Key(key), level)? else {
            // The tree has become lower meanwhile, so what was full is not there any more.
            return Ok(Attempt::Done);
        };
        match place {
            Place { parent: None, node } => self.split_root(node, key),
            Place { parent: Some((parent, _)), node } => self.split_below(parent, node, key),
        }
    }

    fn split_below(
        &self,
        parent: P::Optimistic<'p>,
        node: P::Optimistic<'p>,
        key: &[u8],
    ) -> Result<Attempt, Interrupt> {
        // Allocated first: it may have to wait for memory, and nothing is latched yet.
        let mut right = self.pager.allocate(1, PageKind::TREE_NODE)?;
        let mut parent = latch::<P>(parent)?;
        let mut node = latch::<P>(node)?;
        let (parent_id, node_id) = (parent.id(), node.id());
        let mut left = NodeMut::new(node.page_mut());
        let split = left.choose_separator(Some(key)).map_err(|fault| damaged(node_id, fault))?;
        if !view_of(&parent).has_room(split.separator.len(), 0) {
            return Ok(Attempt::ParentFull);
        }
        // In this order nothing has changed if the node turns out to be damaged, and nothing can fail after
        // it has: the parent has room, and its fences enclose the node's.
        if !view_of(&parent).covers(&split.separator) || view_of(&parent).find(&split.separator).found {
            return Err(damaged(parent_id, "its separators do not enclose its children's"));
        }
        left.split_into(right.page_mut(), &split).map_err(|error| refused(node_id, error))?;
        NodeMut::new(parent.page_mut())
            .insert_separator(&split.separator, right.id())
            .map_err(|error| refused(parent_id, error))?;
        drop(right.keep());
        Ok(Attempt::Done)
    }

    /// The root keeps its page: its contents move to two new ones, of which it becomes the parent.
    fn split_root(&self, root: P::Optimistic<'p>, key: &[u8]) -> Result<Attempt, Interrupt> {
        let mut left = self.pager.allocate(1, PageKind::TREE_NODE)?;
        let mut right = self.pager.allocate(1, PageKind::TREE_NODE)?;
        let mut root = latch::<P>(root)?;
        let (root_id, left_id) = (root.id(), left.id());
        copy_node(root.page(), left.page_mut());
        let mut node = NodeMut::new(left.page_mut());
        let split = node.choose_separator(Some(key)).map_err(|fault| damaged(root_id, fault))?;
        node.split_into(right.page_mut(), &split).map_err(|error| refused(root_id, error))?;
        let level = view_of(&root).level();
        let mut top = [0; NODE_BYTES];
        let mut above = level
            .checked_add(1)
            .ok_or_else(|| damaged(root_id, "the tree is too high"))
            .and_then(|level| {
                NodeMut::init(&mut top, level, None, None, left_id).map_err(|fault| damaged(root_id, fault))
            })?;
        above.insert_separator(&split.separator, right.id()).map_err(|error| refused(root_id, error))?;
        copy_node(&top, root.page_mut());
        drop((left.keep(), right.keep()));
        Ok(Attempt::Done)
    }
}

/// Copies the contents of a node, and leaves the page header of the target alone.
pub(super) fn copy_node(from: &[u8], to: &mut [u8]) {
    let from = NodeView::new(from).bytes().get(HEADER_BYTES..).unwrap_or_default();
    if let Some(target) = to.get_mut(HEADER_BYTES..HEADER_BYTES + from.len()) {
        target.copy_from_slice(from);
    }
}
