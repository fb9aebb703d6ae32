//! Reading the leaves ahead of a cursor.
//!
//! The node above the leaves names them; the read-ahead keeps a copy of that node. Leaves that are not in memory are
//! read in requests as large as consecutive pages allow, as many pages ahead as the *window* says. The window starts
//! small when a cursor has crossed its second leaf, so that short ranges read nothing in vain. Whenever half of the
//! window has been passed, it is filled again, so that reads are always under way. Once a leaf was missing, the window
//! is doubled each time, up to 8 MiB or an eighth of the pool. Nothing is read beyond the cursor's range, or after the
//! cursor was dropped.
//!
//! The copy may be out of date, and lead to pages that are no longer leaves of this tree. That costs a read and does no
//! harm: the cursor itself uses only nodes that it validates. So errors are left to the cursor too.
//!
//! The pages that a scan brings in do not push out pages that other operations use. They come in marked, as if unused
//! since the clock passed; the scan's own reads do not count as uses; and when memory is short the scan gives up the
//! pages that it has passed before it reads more.

use crate::node::{NODE_BYTES, NodeView};
use crate::tree::descend::{Approach, Direction, Towards};
use crate::tree::{Tree, hints::TreeHints};
use std::{cmp::Ordering, collections::VecDeque};
use vellum_base::{Bytes, PageId};
use vellum_pool::{FinishedRead, Misses, OptimisticPage, Pager};

/// How many leaves are fetched ahead at first.
const WINDOW_FIRST: usize = 8;
/// How many leaves are fetched ahead at most: 8 MiB.
const WINDOW_MAX: usize = 2048;
/// How many requests overlap.
const DEPTH: usize = 128;
/// A range with an unknown number of entries is read as a whole if it has no more leaves than this.
const NEAR: usize = 4;
/// Up to this many requests are waited for together: the thread sleeps once.
const TOGETHER: usize = 16;
/// After this many leaves a cursor counts as a scan, which does not influence what stays in memory.
const SCAN_LEAVES: usize = 8;

/// The leaves ahead of a cursor.
pub(in crate::tree) struct ReadAhead<'p, P: Pager + 'p> {
    /// `None` until a leaf is missing.
    reads: Option<P::Misses<'p>>,
    direction: Direction,
    /// Leaves crossed in this direction.
    crossed: usize,
    /// The number of leaves that were fetched ahead when the window was last filled.
    window: usize,
    /// A copy of the node above the leaves; empty before the first copy.
    parent: Vec<u8>,
    /// The next child of that node to be read ahead.
    next: usize,
    /// Whether a leaf was missing since the cursor began.
    missed: bool,
    /// Whether all leaves of the range have been read ahead.
    exhausted: bool,
    /// The leaves ahead, nearest first, and whether this scan has brought them in.
    ahead: VecDeque<(PageId, bool)>,
    /// The leaf that the cursor is in, if this scan has brought it in.
    current: Option<PageId>,
    /// Leaves that this scan has brought in and passed, oldest first.
    passed: VecDeque<PageId>,
    finished: Vec<FinishedRead>,
}

/// How many leaves may be read ahead.
fn most<P: Pager>(tree: &Tree<'_, P>) -> usize {
    WINDOW_MAX.min(tree.pager.comfortable_pages() as usize).max(2)
}

impl<'p, P: Pager> ReadAhead<'p, P> {
    pub fn new() -> Self {
        Self {
            reads: None,
            direction: Direction::Forward,
            crossed: 0,
            window: 0,
            parent: Vec::new(),
            next: 0,
            missed: false,
            exhausted: false,
            ahead: VecDeque::new(),
            current: None,
            passed: VecDeque::new(),
            finished: Vec::new(),
        }
    }

    /// Begins again, for a cursor that was moved or turned round.
    pub fn reset(&mut self, direction: Direction) {
        self.direction = direction;
        self.crossed = 0;
        self.window = 0;
        self.parent.clear();
        self.missed = false;
        self.exhausted = false;
        self.passed.extend(self.current.take());
        self.passed.extend(self.ahead.drain(..).filter_map(|(page, mine)| mine.then_some(page)));
    }

    /// Whether the cursor counts as a scan.
    pub fn is_scan(&self) -> bool {
        self.crossed >= SCAN_LEAVES
    }

    /// Reads ahead for a cursor that is about to go to the leaf beyond `fence`, to which the node above refers at
    /// `sibling` if that is known. The cursor's range ends at `bound`. If the cursor must not wait, this reads ahead
    /// only what it can without waiting.
    pub fn advance(
        &mut self,
        tree: &Tree<'p, P>,
        (direction, may_wait): (Direction, bool),
        (fence, sibling): (&[u8], Option<(P::Optimistic<'p>, usize)>),
        bound: Option<&[u8]>,
    ) {
        if direction != self.direction {
            self.reset(direction);
        }
        self.crossed += 1;
        if self.crossed < 2 {
            return;
        }
        if self.parent.is_empty() && !self.exhausted {
            match sibling {
                Some((parent, place)) if self.copy_parent(&parent, place) => {}
                _ => self.find_parent(tree, fence, may_wait),
            }
        }
        if !self.exhausted && self.ahead.len() <= self.window / 2 {
            self.fill(tree, bound, may_wait);
        }
        self.pass(tree, may_wait);
    }

    /// Waits for the next leaf, to which the cursor is about to go, if it is being read.
    pub fn go_on(&mut self, tree: &Tree<'p, P>, direction: Direction) {
        if direction != self.direction {
            self.reset(direction);
        }
        self.pass(tree, true);
    }

    fn pass(&mut self, tree: &Tree<'p, P>, may_wait: bool) {
        self.passed.extend(self.current.take());
        if let Some((page, mine)) = self.ahead.pop_front() {
            self.current = mine.then_some(page);
            self.arrive(tree, page, may_wait);
        }
    }

    /// Reads the missing leaf `towards` which the cursor goes, together with those that the cursor will probably reach
    /// after it, and waits for all of them. If it is known how many entries are `expected`, and whether from the edge
    /// of a leaf, these are the leaves that hold them; otherwise all leaves of the range, if they are few. A single
    /// missing leaf is left to the cursor.
    pub fn begin(
        &mut self,
        tree: &Tree<'p, P>,
        (direction, towards): (Direction, Towards<'_>),
        expected: Option<(usize, bool)>,
        bound: Option<&[u8]>,
    ) {
        self.reset(direction);
        let leaves = |(entries, from_edge)| TreeHints::leaves_of(tree.hints, entries, from_edge);
        let wanted = expected.map(leaves);
        if wanted == Some(1) {
            return;
        }
        // The cursor will meet any error itself.
        let Ok(Some(true)) = tree.copy_node(towards, 1, (Approach::Direct, true), &mut self.parent) else {
            self.parent.clear();
            return;
        };
        self.next = self.child(towards);
        // One leaf more, to see that the range ends before it.
        let missing = self.choose(tree, wanted.unwrap_or(NEAR + 1).min(most(tree)), bound, true);
        if wanted.is_none() && !self.exhausted {
            // None of them was read.
            self.ahead.clear();
            self.reset(direction);
            return;
        }
        if missing.len() > 1 {
            self.start(tree, missing);
            if let Some(reads) = self.reads.as_mut().filter(|reads| reads.under_way() <= TOGETHER) {
                reads.reap_all(&mut self.finished);
                self.finished.clear();
            }
        }
        // So that the next leaf counts as one of those that were read.
        self.crossed = usize::from(wanted.is_none());
        self.pass(tree, true);
    }

    /// Waits for the leaf to which the cursor goes now, or takes up finished reads.
    fn arrive(&mut self, tree: &Tree<'p, P>, page: PageId, may_wait: bool) {
        let Some(reads) = &mut self.reads else { return };
        while reads.under_way() > 0 && tree.pager.is_latched(page) {
            reads.reap(may_wait, &mut self.finished);
            self.finished.clear();
            if !may_wait {
                return;
            }
        }
    }

    /// Takes up finished reads.
    pub fn take_up(&mut self) {
        if let Some(reads) = &mut self.reads
            && reads.under_way() > 0
        {
            reads.reap(false, &mut self.finished);
            self.finished.clear();
        }
    }

    /// Copies a node above the leaves, if it is unchanged. Its child at `place` is the next to be read ahead.
    fn copy_parent(&mut self, parent: &P::Optimistic<'p>, place: usize) -> bool {
        self.parent.clear();
        parent.bytes().append_to(0, NODE_BYTES, &mut self.parent);
        if parent.validate().is_err() {
            self.parent.clear();
        }
        self.next = NodeView::new(&self.parent[..]).child_index(place);
        !self.parent.is_empty()
    }

    /// Copies the node above the leaf beyond `fence`.
    fn find_parent(&mut self, tree: &Tree<'p, P>, fence: &[u8], may_wait: bool) {
        let towards = match self.direction {
            Direction::Forward => Towards::After(fence),
            Direction::Backward => Towards::Key(fence),
        };
        match tree.copy_node(towards, 1, (Approach::Direct, may_wait), &mut self.parent) {
            Ok(Some(true)) => {}
            // The next leaf tries again.
            Ok(None) => return self.parent.clear(),
            Ok(Some(false)) | Err(_) => {
                self.exhausted = true;
                return;
            }
        }
        self.next = self.child(towards);
    }

    /// The index of the child of the copied node that lies in this direction.
    fn child(&self, towards: Towards<'_>) -> usize {
        let view = NodeView::new(&self.parent[..]);
        match towards {
            Towards::First => 0,
            Towards::Last => view.count(),
            Towards::Key(key) => view.find(key).index,
            Towards::After(key) => {
                let find = view.find(key);
                find.index + usize::from(find.found)
            }
        }
    }

    /// Begins to read leaves until the window is full.
    fn fill(&mut self, tree: &Tree<'p, P>, bound: Option<&[u8]>, may_wait: bool) {
        // While all leaves are in memory, there is no reason to look further ahead.
        let wider = if self.missed { self.window * 2 } else { self.window };
        self.window = wider.max(WINDOW_FIRST).min(most(tree));
        self.read(tree, self.window.saturating_sub(self.ahead.len()), bound, may_wait);
    }

    /// Begins to read this many further leaves.
    fn read(&mut self, tree: &Tree<'p, P>, wanted: usize, bound: Option<&[u8]>, may_wait: bool) {
        let missing = self.choose(tree, wanted, bound, may_wait);
        if !missing.is_empty() {
            self.start(tree, missing);
            self.take_up();
        }
    }

    /// Notes this many further leaves, and returns those that are not in memory.
    fn choose(
        &mut self,
        tree: &Tree<'p, P>,
        wanted: usize,
        bound: Option<&[u8]>,
        may_wait: bool,
    ) -> Vec<PageId> {
        let mut missing = Vec::new();
        for _ in 0..wanted {
            let Some(page) = self.next_leaf(tree, bound, may_wait) else { break };
            let is_missing = tree.pager.is_evicted(page);
            if is_missing {
                missing.push(page);
            }
            self.ahead.push_back((page, is_missing));
        }
        missing
    }

    /// Begins to read leaves. The requests reach the device when reads are taken up.
    fn start(&mut self, tree: &Tree<'p, P>, mut missing: Vec<PageId>) {
        self.missed = true;
        if self.reads.is_none() {
            // Without a queue, the cursor reads leaf by leaf.
            self.reads = tree.pager.misses(DEPTH).ok();
        }
        let Some(reads) = &mut self.reads else { return };
        if self.direction == Direction::Backward {
            missing.reverse();
        }
        reads.give_up(&mut self.passed, missing.len());
        reads.begin_read_ahead(&missing);
    }

    /// The next leaf in the direction of the cursor, within its range.
    fn next_leaf(&mut self, tree: &Tree<'p, P>, bound: Option<&[u8]>, may_wait: bool) -> Option<PageId> {
        loop {
            if self.parent.is_empty() || self.exhausted {
                return None;
            }
            let view = NodeView::new(&self.parent[..]);
            let count = view.count();
            // Backwards, `next` wraps below zero.
            if self.next <= count {
                let page = view.child_at(view.child_place(self.next));
                // How the separator before the child, in the cursor's direction, compares with the bound.
                let order = |index: usize| bound.map(|bound| view.compare_key(index, bound));
                (self.exhausted, self.next) = match self.direction {
                    Direction::Forward => {
                        let order = self.next.checked_sub(1).and_then(order);
                        (order.is_some_and(Ordering::is_ge), self.next + 1)
                    }
                    Direction::Backward => {
                        let order = Some(self.next).filter(|next| *next < count).and_then(order);
                        (order.is_some_and(Ordering::is_lt), self.next.wrapping_sub(1))
                    }
                };
                return (!self.exhausted).then_some(page);
            }
            let mut fence = Vec::new();
            let more = match self.direction {
                Direction::Forward => view.upper_fence(&mut fence),
                Direction::Backward => view.lower_fence(&mut fence),
            };
            if more {
                self.find_parent(tree, &fence, may_wait);
            }
            self.exhausted |= !more;
            if self.exhausted {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vellum_pool::{Pool, PoolOptions};

    /// They would stay for as long as the cursor does, and be evicted at last though others use them.
    #[test]
    fn leaves_that_were_not_read_do_not_count_as_passed() {
        let directory = tempfile::tempdir().unwrap();
        let options = PoolOptions::default().pool_bytes(64 * 4096);
        let pool = Pool::create(directory.path().join("file"), &options).unwrap();
        let tree = Tree::create(&pool).unwrap();
        for key in 0..5000_u32 {
            tree.insert(&key.to_be_bytes(), &[7; 100]).unwrap();
        }
        let mut ahead = ReadAhead::new();
        for key in (0..4000_u32).step_by(50) {
            let towards = (Direction::Forward, Towards::Key(&key.to_be_bytes()[..]));
            ahead.begin(&tree, towards, None, Some(&5000_u32.to_be_bytes()));
        }
        assert!(ahead.passed.is_empty(), "{:?}", ahead.passed);
    }
}
