//! Merging sparse nodes with their neighbours.
//!
//! A node is sparse if its records take less than two fifths of the bytes that its fences leave them. It is merged with
//! a neighbour if both fit into one page. If they do not fit, that is no error; it only costs space.

use crate::error::{AccessError, damaged};
use crate::gateway::{AtomicChange, Doomed, Latched, NodeImage, PageChange, Recording, UnlinkedExtents};
use crate::node::{NODE_BYTES, NodeView};
use crate::tree::Tree;
use crate::tree::descend::{Approach, Place, Towards};
use vellum_base::Bytes;
use vellum_pool::{Interrupt, OptimisticPage, Pager};

/// Whether a node should be merged with a neighbour.
pub(in crate::tree) fn is_sparse<B: Bytes>(view: NodeView<B>) -> bool {
    let (free, fences) = (view.free_bytes(), view.fence_bytes());
    let records = view.used_bytes().saturating_sub(fences);
    records * 3 < free * 2
}

/// How an attempt to merge ended.
pub(in crate::tree) enum Merged {
    /// The node is not sparse, or fits with no neighbour.
    Nothing,
    /// Two nodes became one, and the parent has enough left in it.
    Done,
    /// Two nodes became one, and the parent has become sparse.
    ParentSparse,
    /// An inner node has a single child, and fits with no neighbour.
    SingleChild,
    /// The root took over its only child, and is one level lower.
    RootLowered,
}

impl<'p, P: Pager> Tree<'p, P> {
    /// Merges the node at `level` on the way to `key` with a neighbour, if it is sparse and they fit, and
    /// then its parent, and so on. Returns the level of the last node if that has a single child and fits with no
    /// neighbour.
    pub(in crate::tree) fn merge_upwards(&self, key: &[u8], level: u8) -> Result<Option<u8>, AccessError> {
        let mut level = level;
        loop {
            match self.pager.run(|| self.try_merge(key, level))? {
                Merged::Nothing | Merged::Done => return Ok(None),
                Merged::SingleChild => return Ok(Some(level)),
                Merged::ParentSparse => level += 1,
                Merged::RootLowered => level = level.saturating_sub(1),
            }
        }
    }

    fn try_merge(&self, key: &[u8], level: u8) -> Result<Merged, Interrupt> {
        let Some(place) = self.node_at(Towards::Key(key), level, Approach::Direct, None)? else {
            return Ok(Merged::Nothing);
        };
        if !is_sparse(NodeView::new(place.node.bytes())) {
            place.node.validate()?;
            return Ok(Merged::Nothing);
        }
        match place {
            Place { parent: None, node } => self.lower_root(node),
            Place { parent: Some((parent, at)), node } => {
                let view = NodeView::new(node.bytes());
                let has_one_child = !view.is_leaf() && view.count() == 0;
                node.validate()?;
                let view = NodeView::new(parent.bytes());
                let (index, count) = (view.child_index(at), view.count());
                if count == 0 {
                    // The node has no neighbour below its parent, but the parent may have one.
                    parent.validate()?;
                    return Ok(Merged::ParentSparse);
                }
                // The right neighbour, or else the left one.
                for left_index in [Some(index), index.checked_sub(1)].into_iter().flatten() {
                    if left_index < count && self.might_fit(&parent, left_index)? {
                        return self.merge_children(parent, left_index);
                    }
                }
                parent.validate()?;
                Ok(if has_one_child { Merged::SingleChild } else { Merged::Nothing })
            }
        }
    }

    /// Whether child `left_index` and the next child seem to fit into one page.
    fn might_fit(&self, parent: &P::Optimistic<'p>, left_index: usize) -> Result<bool, Interrupt> {
        let (left, right) = self.pair(parent, left_index)?;
        let view = NodeView::new(parent.bytes());
        let mut separator = Vec::new();
        view.append_key(left_index, &mut separator);
        let (left_view, right_view) = (NodeView::new(left.bytes()), NodeView::new(right.bytes()));
        let fits = left_view.might_fit_with(right_view, separator.len(), view.prefix_len());
        left.validate()?;
        right.validate()?;
        Ok(fits)
    }

    /// Child `left_index` of a node and the next child, both of the level that they should have.
    pub(in crate::tree) fn pair(
        &self,
        parent: &P::Optimistic<'p>,
        left_index: usize,
    ) -> Result<(P::Optimistic<'p>, P::Optimistic<'p>), Interrupt> {
        let view = NodeView::new(parent.bytes());
        let level = Some(view.level());
        let left = self.pager.child(parent, view.child_place(left_index))?;
        let right = self.pager.child(parent, view.child_place(left_index + 1))?;
        // Both are checked because both will be latched: a damaged parent may refer to a page that this thread has
        // already latched, for which it would wait for ever.
        self.level_of(&left, level)?;
        self.level_of(&right, level)?;
        if left.id() == right.id() {
            parent.validate()?;
            return Err(damaged(parent.id(), "it refers to one node twice"));
        }
        Ok((left, right))
    }

    pub(in crate::tree) fn merge_children(
        &self,
        parent: P::Optimistic<'p>,
        index: usize,
    ) -> Result<Merged, Interrupt> {
        let parent = Latched::latch(parent)?;
        let parent_id = parent.id();
        let view = parent.view();
        if index >= view.count() {
            return Err(damaged(parent_id, "it has fewer children than it had a moment ago"));
        }
        let left = parent.child(self.pager, view.child_place(index))?;
        let right = parent.child(self.pager, view.child_place(index + 1))?;
        let (left, right) = (Latched::latch(left)?, Latched::latch(right)?);
        let separator = view.key(index);
        let mut change = self.change(((parent, left), Doomed(right)))?;
        let AtomicChange { pages: ((parent, left), Doomed(right)), recording, .. } = &mut change;
        let right = NodeImage::of(right.page());
        let absorb = PageChange::Absorb { separator: &separator, right };
        // Usually fails because they do not fit into one page.
        let mut both = [0; NODE_BYTES];
        let Ok(both) = Recording::prepare(left, absorb, &mut both) else { return Ok(Merged::Nothing) };
        let forget = PageChange::RemoveSeparator { separator: &separator };
        recording.apply(parent, Some(index), &forget).map_err(|error| damaged(parent_id, error))?;
        recording.install(left, &both);
        let sparse = is_sparse(parent.view());
        let _unlinked = UnlinkedExtents::begin(self.pager);
        change.commit();
        Ok(if sparse { Merged::ParentSparse } else { Merged::Done })
    }

    /// Makes a root with one child take over the child's contents.
    fn lower_root(&self, root: P::Optimistic<'p>) -> Result<Merged, Interrupt> {
        let view = NodeView::new(root.bytes());
        if view.is_leaf() || view.count() > 0 {
            root.validate()?;
            return Ok(Merged::Nothing);
        }
        let (level, root) = (view.level(), Latched::latch(root)?);
        let place = root.view().child_place(0);
        if root.view().child_at(place) == root.id() {
            return Err(damaged(root.id(), "it refers to itself"));
        }
        let child = root.child(self.pager, place)?;
        self.level_of(&child, Some(level))?;
        let mut change = self.change((root, Doomed(Latched::latch(child)?)))?;
        let AtomicChange { pages: (root, Doomed(child)), recording, .. } = &mut change;
        let image = NodeImage::of(child.page());
        recording
            .apply(root, None, &PageChange::ReplaceRoot { image })
            .map_err(|error| damaged(root.id(), error))?;
        let _unlinked = UnlinkedExtents::begin(self.pager);
        change.commit();
        Ok(Merged::RootLowered)
    }
}
