//! The way down, without latches.

pub(in crate::tree) mod batch;
pub(in crate::tree) mod group;
pub(in crate::tree) mod operation;

use crate::tree::Tree;
use crate::{
    AccessError,
    error::damaged,
    node::{NODE_BYTES, NodeView},
};
use vellum_base::{Bytes, PAGE_FORMAT_VERSION, PageId, PageKind};
use vellum_pool::{Interrupt, OptimisticPage, Pager, PoolError};

/// Bytes 28..32 of the page of a node: its kind, the version of the header, and zeroes.
const KIND_WORD: u32 = PageKind::TREE_NODE.0 as u32 | (PAGE_FORMAT_VERSION as u32) << 8;

/// A node, and where its parent refers to it.
pub(in crate::tree) struct Place<'p, P: Pager + 'p> {
    /// The parent and the place of the child's id in it; none for the root.
    pub(in crate::tree) parent: Option<(P::Optimistic<'p>, usize)>,
    pub(in crate::tree) node: P::Optimistic<'p>,
}

impl<'p, P: Pager + 'p> Place<'p, P> {
    /// The parent, and the place in it that refers to the neighbour of this node, if they have the same parent. Means
    /// nothing unless the parent is validated.
    pub(in crate::tree) fn sibling(&self, direction: Direction) -> Option<(P::Optimistic<'p>, usize)> {
        self.sibling_at(direction, 1)
    }

    /// The page of the node that comes so many behind this one in this direction, if they have the same parent. A
    /// guess, unless the parent is validated.
    pub(in crate::tree) fn neighbour(&self, direction: Direction, distance: usize) -> Option<PageId> {
        let (parent, place) = self.sibling_at(direction, distance)?;
        Some(NodeView::new(parent.bytes()).child_at(place))
    }

    fn sibling_at(&self, direction: Direction, distance: usize) -> Option<(P::Optimistic<'p>, usize)> {
        let (parent, place) = self.parent?;
        let view = NodeView::new(parent.bytes());
        let index = view.child_index(place);
        let next = match direction {
            Direction::Forward => Some(index + distance).filter(|next| *next <= view.count()),
            Direction::Backward => index.checked_sub(distance),
        };
        next.map(|next| (parent, view.child_place(next)))
    }
}

/// Where a cursor goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::tree) enum Direction {
    Forward,
    Backward,
}

/// Which child to go to.
#[derive(Clone, Copy)]
pub(in crate::tree) enum Towards<'k> {
    /// The one that covers the key.
    Key(&'k [u8]),
    /// The one that covers the keys right behind the key.
    Behind(&'k [u8]),
    /// The first one.
    First,
    /// The last one.
    Last,
}

impl<'p, P: Pager> Tree<'p, P> {
    /// The leaf that covers `key`.
    #[inline(always)]
    pub(in crate::tree) fn leaf(&self, key: &[u8]) -> Result<P::Optimistic<'p>, Interrupt> {
        let mut node = self.pager.root(self.root)?;
        let mut level = NodeView::new(node.bytes()).level();
        self.check_node(&node, level, None)?;
        while level > 0 {
            let place = NodeView::new(node.bytes()).child_for(key);
            let child = self.pager.child(&node, place)?;
            level -= 1;
            self.check_node(&child, level, Some(level + 1))?;
            node = child;
        }
        Ok(node)
    }

    /// The node at `level` in the given direction, with its parent. Nothing if the tree is not that high.
    pub(in crate::tree) fn node_at(
        &self,
        towards: Towards<'_>,
        level: u8,
    ) -> Result<Option<Place<'p, P>>, Interrupt> {
        self.node_at_by(towards, level, false)
    }

    /// The same; `in_passing` says that the look does not keep the node itself in memory.
    fn node_at_by(
        &self,
        towards: Towards<'_>,
        level: u8,
        in_passing: bool,
    ) -> Result<Option<Place<'p, P>>, Interrupt> {
        let mut place: Place<'p, P> = Place { parent: None, node: self.pager.root(self.root)? };
        let mut at = self.level_of(&place.node, None)?;
        if at < level {
            place.node.validate()?;
            return Ok(None);
        }
        while at > level {
            let view = NodeView::new(place.node.bytes());
            let child_place = match towards {
                Towards::Key(key) => view.child_for(key),
                Towards::Behind(key) => {
                    let find = view.find(key);
                    view.child_place(find.index + usize::from(find.found))
                }
                Towards::First => view.child_place(0),
                Towards::Last => view.child_place(view.count()),
            };
            let child = if in_passing && at == level + 1 {
                self.pager.child_in_passing(&place.node, child_place)?
            } else {
                self.pager.child(&place.node, child_place)?
            };
            at = self.level_of(&child, Some(at))?;
            place = Place { parent: Some((place.node, child_place)), node: child };
        }
        Ok(Some(place))
    }

    /// The leaf in the given direction, with its parent. `in_passing` says that the look does not keep it in memory.
    pub(in crate::tree) fn leaf_at(
        &self,
        towards: Towards<'_>,
        in_passing: bool,
    ) -> Result<Place<'p, P>, Interrupt> {
        // Every tree has leaves.
        let place = self.node_at_by(towards, 0, in_passing)?;
        place.ok_or_else(|| damaged(self.root, "the root of a tree should be here"))
    }

    /// The leaf to which `parent` refers at `place`.
    pub(in crate::tree) fn leaf_of(
        &self,
        parent: P::Optimistic<'p>,
        place: usize,
        in_passing: bool,
    ) -> Result<Place<'p, P>, Interrupt> {
        let node = if in_passing {
            self.pager.child_in_passing(&parent, place)?
        } else {
            self.pager.child(&parent, place)?
        };
        self.level_of(&node, Some(1))?;
        Ok(Place { parent: Some((parent, place)), node })
    }

    /// Copies the node at `level` in the given direction, as it is at one moment. False if the tree is not that
    /// high. `in_passing` says that the look does not keep the node in memory.
    pub(in crate::tree) fn copy_node(
        &self,
        towards: Towards<'_>,
        level: u8,
        in_passing: bool,
        copy: &mut Vec<u8>,
    ) -> Result<bool, AccessError> {
        let page = self.pager.run(|| {
            copy.clear();
            let Some(Place { node, .. }) = self.node_at_by(towards, level, in_passing)? else {
                return Ok(None);
            };
            node.bytes().append_to(0, NODE_BYTES, copy);
            node.validate().map(|()| Some(node.id()))
        })?;
        match page {
            Some(page) if !leads_on(NodeView::new(&copy[..]), towards) => {
                Err(PoolError::contents(page, NOT_ITS_FENCES).into())
            }
            found => Ok(found.is_some()),
        }
    }

    /// The level of a node, which must be one below its parent's, so that a way down always ends.
    #[inline(always)]
    pub(in crate::tree) fn level_of(
        &self,
        node: &P::Optimistic<'p>,
        parent_level: Option<u8>,
    ) -> Result<u8, Interrupt> {
        let level = NodeView::new(node.bytes()).level();
        // No parent is a leaf.
        let expected = parent_level.map_or(level, |parent| parent.saturating_sub(1));
        self.check_node(node, expected, parent_level).map(|()| level)
    }

    /// Makes sure that a node is one, and of this level.
    // The level is no part of the result: a byte in one arm of a `Result` makes the compiler move the others in
    // bytes too, and the processor stalls when it reads the whole of what was stored so.
    #[inline(always)]
    fn check_node(
        &self,
        node: &P::Optimistic<'p>,
        level: u8,
        parent_level: Option<u8>,
    ) -> Result<(), Interrupt> {
        if NodeView::new(node.bytes()).level() == level && node.bytes().u32_at(28) == KIND_WORD {
            Ok(())
        } else {
            Err(self.not_a_node(*node, parent_level))
        }
    }

    // The guard is taken by value, so that it need not lie in memory while all is well.
    #[cold]
    #[inline(never)]
    fn not_a_node(&self, node: P::Optimistic<'p>, parent_level: Option<u8>) -> Interrupt {
        if let Err(interrupt) = node.validate() {
            return interrupt;
        }
        match parent_level {
            None => damaged(node.id(), "the root of a tree should be here"),
            Some(parent) => {
                let level = parent.saturating_sub(1);
                damaged(node.id(), format!("a tree's node of level {level} should be here"))
            }
        }
    }
}

/// Whether a node is one that is looked for in this direction. In a sound tree it always is; in a damaged one it
/// may not be, and a cursor that believed it could walk in a circle.
pub(in crate::tree) fn leads_on(node: NodeView<&[u8]>, towards: Towards<'_>) -> bool {
    match towards {
        Towards::Key(key) => node.covers(key),
        Towards::Behind(key) => node.covers_behind(key),
        Towards::First => node.is_first(),
        Towards::Last => node.is_last(),
    }
}

/// What [`leads_on`] tells of.
pub(in crate::tree) const NOT_ITS_FENCES: &str = "its fences are not the separators of its parent";
