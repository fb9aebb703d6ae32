//! Splitting full nodes.

use crate::error::{AccessError, damaged};
use crate::gateway::{AtomicChange, Fresh, Latched, PageChange, Recording, UnlinkedExtents};
use crate::node::{End, Find, NODE_BYTES, NodeFault, NodeMut, NodeView, Split};
use crate::tree::descend::{Approach, Place, Towards};
use crate::tree::{Tree, TreeHints};
use vellum_pool::{Interrupt, OptimisticPage, Pager};

impl<'p, P: Pager> Tree<'p, P> {
    /// Splits the node at `level` on the way to `key` if it has no room; its parent first if need be.
    ///
    /// There must be room for `entry`: in a leaf, the key with a value of `value_bytes` bytes; in an inner node, a
    /// separator. Another thread may have split the node since it was found full: splitting it again would be a waste,
    /// and it may have too little left in it.
    pub(in crate::tree) fn split(
        &self,
        key: &[u8],
        level: u8,
        entry: &[u8],
        value_bytes: usize,
    ) -> Result<(), AccessError> {
        let mut highest = 0;
        let divided = self.divide(key, level, entry, value_bytes, &mut highest);
        // Not before all separators are in their places: until then both halves may have a single child, and would be
        // merged again.
        for level in (1..=highest).rev() {
            // The node has been split, whether or not this succeeds, which saves space.
            let _ = self.settle(key, level);
        }
        divided
    }

    /// Splits a node as [`split`](Self::split) does. Raises `highest` to the level of the highest node that was split
    /// and of which a half may have a single child.
    fn divide(
        &self,
        key: &[u8],
        level: u8,
        entry: &[u8],
        value_bytes: usize,
        highest: &mut u8,
    ) -> Result<(), AccessError> {
        loop {
            match self.pager.run(|| self.try_split(key, level, entry, value_bytes))? {
                Divided::Done { few } => {
                    if few {
                        *highest = level.max(*highest);
                    }
                    return Ok(());
                }
                Divided::ParentFull { separator } => self.divide(key, level + 1, &separator, 0, highest)?,
                Divided::TooHigh => return Err(AccessError::TreeTooHigh { tree: self.root() }),
            }
        }
    }

    /// Splits the node, unless its parent has no room for the separator.
    fn try_split(
        &self,
        key: &[u8],
        level: u8,
        entry: &[u8],
        value_bytes: usize,
    ) -> Result<Divided, Interrupt> {
        let Some(Place { parent, node }) = self.node_at(Towards::Key(key), level, Approach::Direct, None)?
        else {
            // The tree has become lower meanwhile, so the full node is gone.
            return Ok(Divided::Done { few: false });
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
            return Ok(Divided::Done { few: false });
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
    ) -> Result<Divided, Interrupt> {
        // Allocated first, while nothing is latched: this may have to wait for memory.
        let _unlinked = UnlinkedExtents::begin(self.pager);
        let right = Fresh::allocate(self.pager)?;
        let (parent, node) = (Latched::latch(parent)?, Latched::latch(node)?);
        let (parent_id, node_id, right_id) = (parent.id(), node.id(), right.id());
        let mut change = self.change(((parent, node), right))?;
        let AtomicChange { pages: ((parent, node), right), recording, .. } = &mut change;
        let cut = Cut::plan(node.view(), key).map_err(|fault| damaged(node_id, fault))?;
        let separator = cut.separator();
        if !has_room_at(parent, place, separator)? {
            return Ok(Divided::ParentFull { separator: separator.to_vec() });
        }
        let insert = PageChange::InsertSeparator { separator, right: right_id };
        let few = has_few(node.view());
        let of_node = |error| damaged(node_id, error);
        let of_parent = |error| damaged(parent_id, error);
        match &cut {
            Cut::End(end) => {
                let begin = |page: &mut [u8]| NodeMut::begin_at(page, node.view(), end);
                recording.format(right, begin).map_err(of_node)?;
                recording.apply(parent, None, &insert).map_err(of_parent)?;
                recording.end(node, end);
            }
            Cut::Split(split) => {
                let begin = |page: &mut [u8]| NodeMut::begin_right(page, node.view(), split);
                recording.format(right, begin).map_err(of_node)?;
                let mut left = [0; NODE_BYTES];
                let split_off = PageChange::SplitOff { separator };
                let left = Recording::prepare(node, split_off, &mut left).map_err(of_node)?;
                recording.apply(parent, None, &insert).map_err(of_parent)?;
                recording.install(node, &left);
            }
        }
        let (_, right) = change.commit();
        if let (Cut::End(_), Some(TreeHints { ends, .. })) = (&cut, self.hints) {
            ends.mine().set(right.id(), right.token());
        }
        Ok(Divided::Done { few })
    }

    /// Splits the root, which keeps its page: its contents move to two new nodes, and it becomes their parent.
    fn split_root(&self, root: P::Optimistic<'p>, key: &[u8]) -> Result<Divided, Interrupt> {
        let _unlinked = UnlinkedExtents::begin(self.pager);
        let (left, right) = (Fresh::allocate(self.pager)?, Fresh::allocate(self.pager)?);
        let root = Latched::latch(root)?;
        let (root_id, left_id, right_id) = (root.id(), left.id(), right.id());
        if root.view().level() == LEVEL_MAX {
            return Ok(Divided::TooHigh);
        }
        let few = has_few(root.view());
        let mut change = self.change((root, (left, right)))?;
        let AtomicChange { pages: (root, (left, right)), recording, .. } = &mut change;
        let split = root.view().choose_separator(Some(key)).map_err(|fault| damaged(root_id, fault))?;
        let separator = &split.separator[..];
        let raise = PageChange::RaiseRoot { left: left_id, separator, right: right_id };
        recording
            .format(left, |page| NodeMut::begin_left(page, root.view(), separator))
            .and_then(|()| recording.format(right, |page| NodeMut::begin_right(page, root.view(), &split)))
            .and_then(|()| recording.apply(root, None, &raise))
            .map_err(|error| damaged(root_id, error))?;
        change.commit();
        Ok(Divided::Done { few })
    }
}

/// The level of the highest root that a tree can have.
const LEVEL_MAX: u8 = u8::MAX;

/// What came of an attempt to split a node.
enum Divided {
    /// There is room now. The node was an inner one with so `few` separators that one of its halves may have none.
    Done { few: bool },
    /// The parent has no room for the separator.
    ParentFull { separator: Vec<u8> },
    /// The root cannot become higher.
    TooHigh,
}

/// Whether a half of a node may have a single child, if the node is split for another separator.
fn has_few(view: NodeView<&[u8]>) -> bool {
    !view.is_leaf() && view.count() <= 2
}

/// How a node is divided.
enum Cut {
    /// A leaf ends after its last keys.
    End(End),
    Split(Split),
}

impl Cut {
    fn plan(node: NodeView<&[u8]>, incoming: &[u8]) -> Result<Self, NodeFault> {
        match node.plan_end(incoming)? {
            Some(end) => Ok(Self::End(end)),
            None => node.choose_separator(Some(incoming)).map(Self::Split),
        }
    }

    fn separator(&self) -> &[u8] {
        match self {
            Self::End(end) => &end.separator,
            Self::Split(split) => &split.separator,
        }
    }
}

/// Whether a latched parent has room for a separator that splits the child whose id stands at byte `place`.
fn has_room_at<P: Pager>(parent: &Latched<'_, P>, place: usize, separator: &[u8]) -> Result<bool, Interrupt> {
    let view = parent.view();
    if !view.has_room_for(separator, 0) {
        return Ok(false);
    }
    let find = view.find(separator);
    if find.found || find.index != view.child_index(place) || !view.covers(separator) {
        return Err(damaged(parent.id(), "its separators do not enclose its children's"));
    }
    Ok(true)
}
