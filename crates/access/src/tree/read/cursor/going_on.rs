//! How a cursor goes on at the end of what it has of a leaf.

use super::{
    Cursor, Fetched, Stand,
    copy_size::{FEW, GROUPS_BYTES},
    key_of,
};
use crate::error::AccessError;
use crate::tree::descend::Direction;
use vellum_pool::Pager;

impl<'p, P: Pager> Cursor<'p, P> {
    /// Goes from the end of a leaf to the next leaf in this direction, if that leaf has any part of the range.
    pub(super) fn go_on(&mut self, direction: Direction, may_wait: bool) -> Result<Fetched, AccessError> {
        if self.seen.as_ref().is_some_and(|seen| seen.has_more(direction)) {
            return self.resolve_more(direction, may_wait);
        }
        let fence = self.key.cleared();
        let view = self.leaf.view();
        let bound = key_of(if direction == Direction::Forward { &self.upper } else { &self.lower });
        let more = match direction {
            Direction::Forward => view.upper_fence(fence) && bound.is_none_or(|upper| &fence[..] < upper),
            Direction::Backward => view.lower_fence(fence) && !self.is_before_range(&self.key),
        };
        if !more {
            self.stand = match direction {
                Direction::Forward => Stand::End,
                Direction::Backward => Stand::Start,
            };
            return Ok(Fetched::End);
        }
        self.stand = Stand::After;
        let sibling = self.place.as_ref().and_then(|place| place.sibling(direction, 1));
        if may_wait && self.expected <= FEW {
            return self.go_on_to_few(direction, sibling);
        }
        self.ahead.advance(&self.tree, (direction, may_wait), (&self.key, sibling), bound);
        // A cursor that has come this far will read the next leaves too. Their headers are fetched first: translating a
        // page's address takes longest, and the current leaf is copied meanwhile.
        let far = self.groups >= GROUPS_BYTES.len();
        if far {
            self.fetch_header(direction, 3);
            if self.groups == GROUPS_BYTES.len() {
                self.fetch_header(direction, 2);
            }
        }
        let landed = self.land(direction, sibling, may_wait)?;
        if far && landed == Fetched::More {
            self.fetch_contents(direction);
        }
        Ok(landed)
    }

    /// Resolves more of the leaf, which may have changed meanwhile.
    fn resolve_more(&mut self, direction: Direction, may_wait: bool) -> Result<Fetched, AccessError> {
        if direction == Direction::Forward
            && let Some(slot) = self.seen.as_ref().and_then(|seen| seen.last_before_more())
        {
            self.leaf.view().append_key(slot, self.key.cleared());
            self.stand = Stand::After;
        }
        self.leave();
        self.arrive(direction, may_wait)
    }

    /// Goes to the next leaf if few entries are expected: prefetches into the cache only the leaves that hold them.
    fn go_on_to_few(
        &mut self,
        direction: Direction,
        sibling: Option<(P::Optimistic<'p>, usize)>,
    ) -> Result<Fetched, AccessError> {
        let leaves = self.expected.div_ceil(self.leaf.count().max(1));
        if leaves > 1 {
            self.fetch_header(direction, 2);
        }
        self.ahead.go_on(&self.tree, direction);
        self.land_together(direction, (sibling, true), true)
    }
}
