//! Nodes that are checked when they are read, from the root down: the common part of all walks of a whole tree.

use crate::node::NodeView;
use crate::tree::{Tree, descend::NOT_ITS_FENCES};
use vellum_base::{Extent, PageHeader, PageId, PageKind};
use vellum_pool::{Pager, PoolError, SharedPage};

/// A node that has not been read yet, with the level and the fences that follow from its parent.
pub(in crate::tree) struct Expected {
    pub page: PageId,
    level: Option<u8>,
    pub lower: Option<Vec<u8>>,
    pub upper: Option<Vec<u8>>,
    /// Whether it may end anywhere before its upper fence, because what came after it has been freed.
    ends_early: bool,
}

impl Expected {
    /// The root, which has any level and no fences.
    pub fn root(page: PageId) -> Self {
        Self { page, level: None, lower: None, upper: None, ends_early: false }
    }

    /// The root of a tree of which parts may be missing.
    pub fn root_of_rest(page: PageId) -> Self {
        Self { ends_early: true, ..Self::root(page) }
    }

    /// The children of this node, in the order of their keys. `node` is the node as it was read.
    pub fn children(self, node: NodeView<&[u8]>) -> impl Iterator<Item = Self> {
        let Self { mut lower, upper, ends_early, .. } = self;
        let level = node.level().checked_sub(1);
        node.children().enumerate().map(move |(index, page)| {
            let separator = if index < node.count() { Some(node.key(index)) } else { upper.clone() };
            let lower = std::mem::replace(&mut lower, separator.clone());
            Self { page, level, lower, upper: separator, ends_early }
        })
    }
}

impl<P: Pager> Tree<'_, P> {
    /// [`sound_node`](Self::sound_node), with a check of the fences too: a sound node may belong to another place.
    pub(in crate::tree) fn expected_node(&self, expected: &Expected) -> Result<Vec<u8>, PoolError> {
        let bytes = self.sound_node(expected.page, expected.level)?;
        let (lower, upper) = NodeView::new(&bytes[..]).fences();
        let is_end = upper == expected.upper
            || expected.ends_early && (expected.upper.is_none() || upper.is_some() && upper < expected.upper);
        if lower != expected.lower || !is_end {
            return Err(PoolError::contents(expected.page, NOT_ITS_FENCES));
        }
        Ok(bytes)
    }

    /// A copy of a node, after a check of all its invariants and of the level that follows from its parent. The node is
    /// not latched while its blobs are read.
    pub(in crate::tree) fn sound_node(&self, page: PageId, level: Option<u8>) -> Result<Vec<u8>, PoolError> {
        let bytes = self.pager.shared_certain(Extent::page(page))?.page().to_vec();
        if PageHeader::read(&bytes).kind != PageKind::TREE_NODE {
            return Err(PoolError::contents(page, "a tree's node should be here"));
        }
        let view = NodeView::new(&bytes[..]);
        view.validate().map_err(|fault| PoolError::contents(page, fault.to_string()))?;
        if level.is_some_and(|level| level != view.level()) {
            let what = format!("it has level {}, which its parent does not expect", view.level());
            return Err(PoolError::contents(page, what));
        }
        Ok(bytes)
    }
}
