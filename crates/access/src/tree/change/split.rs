//! Splitting full nodes.

use crate::tree::{
    Tree,
    descend::{Place, Towards},
    latch, view_of,
};
use crate::{
    AccessError,
    error::{damaged, refused},
    node::{Find, NODE_BYTES, NodeMut, NodeView},
};
use vellum_base::{HEADER_BYTES, PageKind};
use vellum_pool::{AllocatedPage, ExclusivePage, Interrupt, OptimisticPage, Pager};

enum Attempt {
    Done,
    /// The parent has no room for this separator.
    ParentFull {
        separator: Vec<u8>,
    },
}

impl<'p, P: Pager> Tree<'p, P> {
    /// Splits the node at `level` on the way to `key` if it has no room; its parent first if need be.
    ///
    /// What must have room is `entry`: in a leaf, the key with a value of `value_bytes` bytes; in an inner node,
    /// a separator. Somebody else may have split the node since it was found full: splitting
    /// it again would be a waste, and what is left of it may have nothing to be split.
    pub(in crate::tree) fn split(
        &self,
        key: &[u8],
        level: u8,
        entry: &[u8],
        value_bytes: usize,
    ) -> Result<(), AccessError> {
        loop {
            match self.pager.run(|| self.try_split(key, level, entry, value_bytes))? {
                Attempt::Done => return Ok(()),
                Attempt::ParentFull { separator } => self.split(key, level + 1, &separator, 0)?,
            }
        }
    }

    fn try_split(
        &self,
        key: &[u8],
        level: u8,
        entry: &[u8],
        value_bytes: usize,
    ) -> Result<Attempt, Interrupt> {
        let Some(Place { parent, node }) = self.node_at(Towards::Key(key), level)? else {
            // The tree has become lower meanwhile, so what was full is not there any more.
            return Ok(Attempt::Done);
        };
        let view = NodeView::new(node.bytes());
        let find = if level == 0 { view.find(key) } else { Find { index: 0, found: false } };
        let has_room = if find.found {
            view.has_room_to_replace(find.index, value_bytes)
        } else {
            view.has_room_for(entry, value_bytes)
        };
        if has_room {
            node.validate()?;
            return Ok(Attempt::Done);
        }
        match parent {
            None => self.split_root(node, key),
            Some((parent, place)) => self.split_below(parent, place, node, key),
        }
    }

    fn split_below(
        &self,
        parent: P::Optimistic<'p>,
        place: usize,
        node: P::Optimistic<'p>,
        key: &[u8],
    ) -> Result<Attempt, Interrupt> {
        // Allocated first: it may have to wait for memory, and nothing is latched yet.
        let mut right = self.pager.allocate(1, PageKind::TREE_NODE)?;
        let mut parent = latch::<P>(parent)?;
        let mut node = latch::<P>(node)?;
        let (parent_id, node_id) = (parent.id(), node.id());
        if let Some(end) =
            NodeView::new(node.page()).plan_end(key).map_err(|fault| damaged(node_id, fault))?
        {
            if !has_room_at::<P>(&parent, place, &end.separator)? {
                return Ok(Attempt::ParentFull { separator: end.separator });
            }
            NodeMut::begin_at(right.page_mut(), NodeView::new(node.page()), &end)
                .map_err(|error| refused(node_id, error))?;
            NodeMut::new(parent.page_mut())
                .insert_separator(&end.separator, right.id())
                .map_err(|error| refused(parent_id, error))?;
            NodeMut::new(node.page_mut()).end_at(&end);
            let right = right.keep();
            if let Some(ends) = self.ends {
                let right = self.pager.relax(right);
                ends.mine().set(right.id(), right.token());
            }
            return Ok(Attempt::Done);
        }
        // The left half is made beside the node, so that nothing has changed if either node turns out to be
        // damaged.
        let mut page = [0; NODE_BYTES];
        copy_node(node.page(), &mut page);
        let mut left = NodeMut::new(&mut page);
        let split = left.choose_separator(Some(key)).map_err(|fault| damaged(node_id, fault))?;
        if !has_room_at::<P>(&parent, place, &split.separator)? {
            return Ok(Attempt::ParentFull { separator: split.separator });
        }
        left.split_into(right.page_mut(), &split).map_err(|error| refused(node_id, error))?;
        NodeMut::new(parent.page_mut())
            .insert_separator(&split.separator, right.id())
            .map_err(|error| refused(parent_id, error))?;
        copy_node(&page, node.page_mut());
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

/// Whether a latched parent has room for a separator that splits the child whose id stands at byte `place`.
fn has_room_at<'p, P: Pager + 'p>(
    parent: &P::Exclusive<'p>,
    place: usize,
    separator: &[u8],
) -> Result<bool, Interrupt> {
    let view = view_of(parent);
    if !view.has_room_for(separator, 0) {
        return Ok(false);
    }
    let find = view.find(separator);
    if find.found || find.index != view.child_index(place) || !view.covers(separator) {
        return Err(damaged(parent.id(), "its separators do not enclose its children's"));
    }
    Ok(true)
}

/// Copies the contents of a node, and leaves the page header of the target alone.
pub(in crate::tree) fn copy_node(from: &[u8], to: &mut [u8]) {
    let from = NodeView::new(from).bytes().get(HEADER_BYTES..).unwrap_or_default();
    if let Some(target) = to.get_mut(HEADER_BYTES..HEADER_BYTES + from.len()) {
        target.copy_from_slice(from);
    }
}
