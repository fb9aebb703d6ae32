//! The way down, without latches: one step, and three drivers for it.
//!
//! - `step`: from a node to its child;
//! - `blocking`: one operation at a time;
//! - `group`: many operations side by side, as long as all pages are in memory (group prefetching);
//! - `amac`: many operations as a queue of state machines, which may wait for pages (asynchronous memory access
//!   chaining).

pub(in crate::tree) mod amac;
mod blocking;
pub(in crate::tree) mod group;
mod step;

use crate::node::NodeView;
use vellum_base::PageId;
use vellum_pool::{OptimisticPage, Pager};

pub(in crate::tree) use crate::direction::Direction;
pub(in crate::tree) use step::{Approach, Descent, Fetch};

/// A node, and the place in its parent that refers to it.
pub(in crate::tree) struct Place<'p, P: Pager + 'p> {
    /// The parent, and the place of the child's id in it; `None` for the root.
    pub parent: Option<(P::Optimistic<'p>, usize)>,
    pub node: P::Optimistic<'p>,
}

impl<'p, P: Pager + 'p> Place<'p, P> {
    /// The page of the node `distance` nodes further in this direction, if both have the same parent. This is a guess
    /// unless the parent is validated.
    pub fn neighbour(&self, direction: Direction, distance: usize) -> Option<PageId> {
        let (parent, place) = self.sibling(direction, distance)?;
        Some(NodeView::new(parent.bytes()).child_at(place))
    }

    /// The parent, and the place in it that refers to the node `distance` nodes further in this direction, if both have
    /// the same parent. Meaningless unless the parent is validated.
    pub fn sibling(&self, direction: Direction, distance: usize) -> Option<(P::Optimistic<'p>, usize)> {
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

/// The child to which a step goes.
#[derive(Clone, Copy)]
pub(in crate::tree) enum Towards<'k> {
    /// The child that covers the key.
    Key(&'k [u8]),
    /// The child that covers the keys right after the key.
    After(&'k [u8]),
    /// The first child.
    First,
    /// The last child.
    Last,
}

/// Whether a node is the right one for `towards`. In a sound tree it always is. In a damaged tree it may not be, and a
/// cursor without this check could walk in a circle.
pub(in crate::tree) fn leads_on(node: NodeView<&[u8]>, towards: Towards<'_>) -> bool {
    match towards {
        Towards::Key(key) => node.covers(key),
        Towards::After(key) => node.covers_after(key),
        Towards::First => node.is_first(),
        Towards::Last => node.is_last(),
    }
}

/// The fault that [`leads_on`] detects.
pub(in crate::tree) const NOT_ITS_FENCES: &str = "its fences are not the separators of its parent";
