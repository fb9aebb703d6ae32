//! Keeping a tree low whose separators are so long that an inner node has room for few of them.
//!
//! Two fences, one separator and the last child always fit into an inner node, but with keys of the greatest length no
//! more does: it has two children then. When it is split for a third one, one half is left with a single child. Without
//! further care such halves stay, each level gets about as many nodes as the one below, and every split goes all the way
//! up. So after an inner node with one or two separators was split, its surroundings are *settled*. Nodes with a single
//! child are then as in the 1-2 brother trees of Ottmann and Six (*Eine neue Klasse von ausgeglichenen Binärbäumen*,
//! Angewandte Informatik 9, 1976):
//!
//! - of two neighbours below one parent, not both have a single child: such two always fit into one node;
//! - a node that is its parent's only child has itself several children (or is a leaf).
//!
//! So a node with several children has at least one child with several children, and the only child of a node has several
//! children too. A subtree of `h` levels then has at least as many leaves as the `h`-th Fibonacci number, and the height
//! is at most 1.44 times the binary logarithm of the number of leaves.
//!
//! # Steps
//! Each step is one atomic change below one parent: neighbours are [merged](Tree::merge), or a child is passed on from a
//! neighbour, whose first or last separator then takes the place of the one in the parent. Nothing is latched between
//! the steps, and each one begins at the root. If other threads change the same nodes meanwhile, if a page cannot be
//! read, or if a parent with several separators has no room for a longer one, some nodes stay as they are. That costs
//! space, until the next split or removal beside them.

use crate::error::{AccessError, damaged};
use crate::gateway::{AtomicChange, Latched, NodeImage, PageChange, Recording};
use crate::node::{NODE_BYTES, NodeError, NodeMut, NodeView, Side, exchange_separator, pass_child};
use crate::tree::change::merge::{Merged, is_sparse};
use crate::tree::descend::{Approach, Place, Towards};
use crate::tree::{Tree, check_key};
use vellum_pool::{Interrupt, OptimisticPage, Pager};

/// How many steps are taken after a split. Usually it takes fewer than ten.
const STEPS_MAX: u32 = 100;

/// A node, as far as it matters here.
#[derive(Clone, Copy)]
enum Found {
    /// It has several children, or there is none at this level.
    Settled,
    /// The root, with a single child.
    Root,
    /// It has a single child, and is the only child of its parent.
    OnlyChild,
    /// It has a single child, and neighbours with so many separators.
    Beside { left: Option<usize>, right: Option<usize> },
}

impl<'p, P: Pager> Tree<'p, P> {
    /// Merges the node at `level` on the way to `key` with a neighbour, if it is sparse and they fit, and then its
    /// parent, and so on; settles what is left with a single child. A leaf that [undo may need](vellum_pool::UndoSpace) stays
    /// as it is, and the tree's view is told.
    ///
    /// # Errors
    /// If a page cannot be obtained. What was done until then is complete.
    pub(in crate::tree) fn merge(&self, key: &[u8], level: u8) -> Result<(), AccessError> {
        if level == 0 && !self.pager.may_merge_leaves() {
            if let Some(view) = self.view {
                view.isolation.put_off_merge(self.root(), key);
            }
            return Ok(());
        }
        match self.merge_upwards(key, level)? {
            Some(level) => self.settle(key, level),
            None => Ok(()),
        }
    }

    /// Merges the leaf of `key` with a neighbour, if it is sparse and both fit into one page.
    ///
    /// # Errors
    /// If a page cannot be obtained. What was done until then is complete.
    pub fn merge_at(&self, key: &[u8]) -> Result<(), AccessError> {
        check_key(key)?;
        self.merge(key, 0)
    }

    /// [Merges](Self::merge_at) the leaves that may hold keys from `first` to `last`, but looks at no more than `most`.
    ///
    /// # Errors
    /// As for `merge_at`.
    pub fn merge_between(&self, (first, last): (&[u8], &[u8]), most: u64) -> Result<(), AccessError> {
        let (mut key, mut copy) = (first.to_vec(), Vec::new());
        for _ in 0..most {
            let approach = (Approach::InPassing, true);
            if self.copy_node(Towards::Key(&key), 0, approach, &mut copy)? != Some(true) {
                return Ok(());
            }
            let (leaf, mut upper) = (NodeView::new(&copy[..]), Vec::new());
            let has_next = leaf.upper_fence(&mut upper) && &*upper < last;
            if is_sparse(leaf) {
                self.merge(&key, 0)?;
            }
            if !has_next {
                return Ok(());
            }
            key = after(upper);
        }
        Ok(())
    }

    /// Settles the node at `level` on the way to `key`, its neighbours at that level, and their only children. One or
    /// two of these nodes are the halves of a node that was split.
    ///
    /// # Errors
    /// If a page cannot be obtained. What was done until then is complete.
    pub(in crate::tree) fn settle(&self, key: &[u8], level: u8) -> Result<(), AccessError> {
        let fences = self.pager.run(|| {
            let Some(Place { node, .. }) = self.node_at(Towards::Key(key), level, Approach::Direct, None)?
            else {
                return Ok(None);
            };
            let fences = NodeView::new(node.bytes()).fences();
            node.validate().map(|()| Some(fences))
        })?;
        let Some((lower, upper)) = fences else { return Ok(()) };
        let mut steps = STEPS_MAX;
        for key in [Some(key.to_vec()), lower, upper.map(after)].into_iter().flatten() {
            self.settle_node(&key, level, &mut steps)?;
            if level > 1 {
                self.settle_node(&key, level - 1, &mut steps)?;
            }
        }
        Ok(())
    }

    /// Settles one node, and then its parent if that has lost a child.
    pub(in crate::tree) fn settle_node(
        &self,
        key: &[u8],
        level: u8,
        steps: &mut u32,
    ) -> Result<(), AccessError> {
        if *steps == 0 {
            return Ok(());
        }
        *steps -= 1;
        match self.pager.run(|| self.look(key, level))? {
            Found::Settled => Ok(()),
            Found::Root => self.merge_upwards(key, level).map(drop),
            Found::OnlyChild => {
                self.settle_node(key, level + 1, steps)?;
                match self.pager.run(|| self.look(key, level))? {
                    // The neighbours of its parent have two children each.
                    Found::OnlyChild => self.gain_neighbour(key, level, steps),
                    Found::Beside { .. } => self.settle_node(key, level, steps),
                    _ => Ok(()),
                }
            }
            Found::Beside { left, right } => {
                let sides = [(Side::Right, right), (Side::Left, left)];
                for (side, _) in sides.iter().filter(|(_, separators)| separators.is_some()) {
                    if self.pager.run(|| self.merge_beside(key, level, *side))? {
                        return self.settle_node(key, level + 1, steps);
                    }
                }
                for (side, _) in sides.iter().filter(|(_, separators)| separators.is_some_and(|all| all > 1))
                {
                    if self.pager.run(|| self.try_pass(key, level, *side, 2))?.is_some() {
                        break;
                    }
                }
                Ok(())
            }
        }
    }

    /// Gives a node with a single child, which is the only child of its parent, a neighbour: the nearest child of a
    /// neighbour of the parent. The parent has several children then, or has one with several.
    fn gain_neighbour(&self, key: &[u8], level: u8, steps: &mut u32) -> Result<(), AccessError> {
        let Some(above) = level.checked_add(1) else { return Ok(()) };
        for side in [Side::Right, Side::Left] {
            let Some(border) = self.pager.run(|| self.try_pass(key, above, side, 1))? else { continue };
            self.settle_node(key, level, steps)?;
            if let Found::Beside { .. } = self.pager.run(|| self.look(key, level))? {
                // The neighbour has two children. Once it has given one away, it may be merged with another node or be
                // given back.
                self.pager.run(|| self.try_pass(key, level, side, 1))?;
            }
            // The other parent may have a single child now, and that one too.
            let beyond = if side == Side::Right { after(border) } else { border };
            return self.settle_node(&beyond, level, steps);
        }
        Ok(())
    }

    fn look(&self, key: &[u8], level: u8) -> Result<Found, Interrupt> {
        let Some(Place { parent, node }) = self.node_at(Towards::Key(key), level, Approach::Direct, None)?
        else {
            return Ok(Found::Settled);
        };
        let view = NodeView::new(node.bytes());
        let has_one = !view.is_leaf() && view.count() == 0;
        node.validate()?;
        let Some((parent, place)) = parent.filter(|_| has_one) else {
            return Ok(if has_one { Found::Root } else { Found::Settled });
        };
        let view = NodeView::new(parent.bytes());
        let (index, count) = (view.child_index(place), view.count());
        if count == 0 {
            parent.validate()?;
            return Ok(Found::OnlyChild);
        }
        let separators = |left: usize, of_left: bool| {
            if left >= count {
                return Ok(None);
            }
            let pair = self.pair(&parent, left)?;
            let neighbour = if of_left { pair.0 } else { pair.1 };
            let separators = NodeView::new(neighbour.bytes()).count();
            neighbour.validate().map(|()| Some(separators))
        };
        let left = index.checked_sub(1).map_or(Ok(None), |left| separators(left, true))?;
        Ok(Found::Beside { left, right: separators(index, false)? })
    }

    /// Merges a node that has a single child with a neighbour, if they fit; returns whether it did.
    // Out of line, as the next function: their copies of pages are not on the stack while a node above is settled.
    #[inline(never)]
    fn merge_beside(&self, key: &[u8], level: u8, side: Side) -> Result<bool, Interrupt> {
        let Some((parent, left)) = self.poor(key, level, side)? else { return Ok(false) };
        // Both are checked before they are latched.
        self.pair(&parent, left)?;
        Ok(!matches!(self.merge_children(parent, left)?, Merged::Nothing))
    }

    /// Passes a child on to a node that has a single child, from the neighbour on this side, if that has at least so
    /// many separators. Returns the new separator between the two.
    #[inline(never)]
    fn try_pass(
        &self,
        key: &[u8],
        level: u8,
        from: Side,
        least: usize,
    ) -> Result<Option<Vec<u8>>, Interrupt> {
        let Some((parent, index)) = self.poor(key, level, from)? else { return Ok(None) };
        // Both are checked before they are latched.
        let (left, right) = self.pair(&parent, index)?;
        let giver = if from == Side::Left { &left } else { &right };
        let is_rich = NodeView::new(giver.bytes()).count() >= least;
        giver.validate()?;
        if !is_rich {
            return Ok(None);
        }
        let parent = Latched::latch(parent)?;
        let (left, right) = (Latched::latch(left)?, Latched::latch(right)?);
        let parent_id = parent.id();
        let mut change = self.change((parent, (left, right)))?;
        let AtomicChange { pages: (parent, (left, right)), recording, .. } = &mut change;
        let mut images = [[0; NODE_BYTES]; 3];
        let [above, lefts, rights] = &mut images;
        NodeMut::new(above).take_over(parent.page());
        let old = parent.view().key(index);
        let passed = pass_child((left.view(), right.view()), &old, from, (lefts, rights))
            .and_then(|new| exchange_separator(above, index, &new).map(|()| new));
        let new = match passed {
            Ok(new) => new,
            Err(NodeError::Full) => return Ok(None),
            Err(error) => return Err(damaged(parent_id, error)),
        };
        let mut prepared = [[0; NODE_BYTES]; 3];
        let pages = [&*parent, &*left, &*right].into_iter().zip(&images).zip(&mut prepared);
        let mut ready = Vec::with_capacity(3);
        for ((page, image), copy) in pages {
            let change = PageChange::Rearrange { image: NodeImage::of(image) };
            ready.push(Recording::prepare(page, change, copy).map_err(|error| damaged(page.id(), error))?);
        }
        for (page, image) in [parent, left, right].into_iter().zip(&ready) {
            recording.install(page, image);
        }
        change.commit();
        Ok(Some(new))
    }

    /// The parent of an inner node at `level` that has a single child, and the number of the left one of the node and
    /// its neighbour on this side, if it has one.
    fn poor(
        &self,
        key: &[u8],
        level: u8,
        side: Side,
    ) -> Result<Option<(P::Optimistic<'p>, usize)>, Interrupt> {
        let place = self.node_at(Towards::Key(key), level, Approach::Direct, None)?;
        let Some(Place { parent: Some((parent, at)), node }) = place else { return Ok(None) };
        let view = NodeView::new(node.bytes());
        let has_one = !view.is_leaf() && view.count() == 0;
        node.validate()?;
        let view = NodeView::new(parent.bytes());
        let index = view.child_index(at);
        let left = if side == Side::Right { Some(index) } else { index.checked_sub(1) };
        let left = left.filter(|left| has_one && *left < view.count());
        if left.is_none() {
            parent.validate()?;
        }
        Ok(left.map(|left| (parent, left)))
    }
}

/// The least key above `key`.
fn after(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}
