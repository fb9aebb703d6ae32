//! One step of a descent: from a node to its child. All drivers use this step and no other.
//!
//! A step chooses the child, follows the reference to it, and checks that the child is a node one level below. The
//! parent is validated after the child is first read (*optimistic lock coupling*), so both belonged together at one
//! moment. Between choosing and following, a driver may prefetch what it will read of the child, and do other work
//! meanwhile.

use super::Towards;
use crate::{error::damaged, node::NodeView};
use vellum_base::{Bytes, PAGE_FORMAT_VERSION, PageId, PageKind};
use vellum_pool::{Interrupt, OptimisticPage, Pager};

/// Bytes 28..32 of the page of a node: its kind, the version of the header, and zeroes.
const KIND_WORD: u32 = PageKind::TREE_NODE.0 as u32 | (PAGE_FORMAT_VERSION as u32) << 8;

/// How a step reaches the child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::tree) enum Approach {
    /// Without a prefetch.
    Direct,
    /// After a prefetch of the bytes that are read first.
    Fetched,
    /// For a single read, which does not keep the page in memory.
    InPassing,
}

/// Bytes of a page that will be read soon.
#[derive(Clone, Copy)]
pub(in crate::tree) struct Fetch {
    pub page: PageId,
    pub at: usize,
    pub bytes: usize,
}

impl Fetch {
    #[inline]
    pub fn begin<P: Pager>(self, pager: &P) {
        pager.prefetch(self.page, self.at, self.bytes);
    }
}

/// An operation on its way down: the node that it has reached, and the place of the reference to follow.
pub(in crate::tree) struct Descent<'p, P: Pager + 'p> {
    pub node: P::Optimistic<'p>,
    pub level: u8,
    pub place: usize,
}

impl<'p, P: Pager + 'p> Clone for Descent<'p, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<'p, P: Pager + 'p> Copy for Descent<'p, P> {}

impl<'p, P: Pager + 'p> Descent<'p, P> {
    /// Begins at the root.
    #[inline(always)]
    pub fn begin(pager: &'p P, root: PageId) -> Result<Self, Interrupt> {
        let node = pager.root(root)?;
        let level = NodeView::new(node.bytes()).level();
        check_node(&node, level, None)?;
        Ok(Self { node, level, place: 0 })
    }

    /// The first half of a step: chooses the child. Only for inner nodes.
    #[inline(always)]
    pub fn choose(&mut self, towards: Towards<'_>) {
        let view = NodeView::new(self.node.bytes());
        self.place = match towards {
            Towards::Key(key) => view.child_for(key),
            Towards::After(key) => {
                let find = view.find(key);
                view.child_place(find.index + usize::from(find.found))
            }
            Towards::First => view.child_place(0),
            Towards::Last => view.child_place(view.count()),
        };
    }

    /// The second half of a step: goes to the chosen child. After an interrupt nothing has changed.
    // The new level is not part of the result: a byte in one arm of a `Result` makes the compiler move the other arms
    // in bytes too, and the processor stalls when it reads back as a whole what was stored in bytes.
    #[inline(always)]
    pub fn follow(&mut self, pager: &'p P, approach: Approach) -> Result<(), Interrupt> {
        let child = match approach {
            Approach::Direct => pager.child(&self.node, self.place)?,
            Approach::Fetched => pager.child_fetched(&self.node, self.place)?,
            Approach::InPassing => pager.child_in_passing(&self.node, self.place)?,
        };
        // No parent is a leaf. In a damaged tree one could be; its child is then refused for its level.
        let level = self.level.wrapping_sub(1);
        check_node(&child, level, Some(self.level))?;
        (self.node, self.level) = (child, level);
        Ok(())
    }

    /// A whole step: [`choose`](Self::choose), then [`follow`](Self::follow).
    #[inline(always)]
    pub fn step(&mut self, pager: &'p P, towards: Towards<'_>, approach: Approach) -> Result<(), Interrupt> {
        self.choose(towards);
        self.follow(pager, approach)
    }

    /// The bytes of the chosen child that are read first: its header and its hints.
    #[inline(always)]
    pub fn child_header(&self) -> Fetch {
        let page = NodeView::new(self.node.bytes()).child_at(self.place);
        Fetch { page, at: 0, bytes: NodeView::<&[u8]>::GUIDE_BYTES }
    }

    /// The slots that a search of the node will read.
    #[inline(always)]
    pub fn slots_for(&self, key: &[u8]) -> Fetch {
        let (at, bytes) = NodeView::new(self.node.bytes()).search_range(key);
        Fetch { page: self.node.id(), at, bytes }
    }

    /// Fetches the bytes with which a search of the node will compare what goes beyond heads, if it does.
    #[inline(always)]
    pub fn fetch_compared(&self, pager: &P, key: &[u8]) {
        let page = self.node.id();
        NodeView::new(self.node.bytes()).compared_at(key, |at| pager.prefetch(page, at, 1));
    }
}

/// Checks that a page is a node of this level, which is one below its parent's, so that every descent ends.
#[inline(always)]
pub(in crate::tree) fn check_node<O: OptimisticPage>(
    node: &O,
    level: u8,
    parent_level: Option<u8>,
) -> Result<(), Interrupt> {
    if NodeView::new(node.bytes()).level() == level && node.bytes().u32_at(28) == KIND_WORD {
        Ok(())
    } else {
        Err(not_a_node(*node, parent_level))
    }
}

// The guard is taken by value, so that it need not lie in memory on the normal path.
#[cold]
#[inline(never)]
fn not_a_node<O: OptimisticPage>(node: O, parent_level: Option<u8>) -> Interrupt {
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
