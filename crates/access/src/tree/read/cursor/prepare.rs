//! Cursors for callers that must not wait: preparing a step, and what to read before it.

use super::{Cursor, Fetched, Stand};
use crate::error::AccessError;
use crate::node::MAX_KEY_BYTES;
use crate::tree::descend::Direction;
use std::ops::Bound;
use vellum_pool::Pager;

impl<P: Pager> Cursor<'_, P> {
    /// Prepares [`next`](Self::next) without waiting. Returns false if a page is not in memory, or is latched.
    /// Otherwise `next` does not wait if it is called now, unless what is seen of the leaf lies elsewhere.
    ///
    /// # Errors
    /// As for `next`.
    pub fn prepare_next(&mut self) -> Result<bool, AccessError> {
        self.ahead.take_up();
        while !self.leaf.holds(self.index) && self.seen.as_ref().is_none_or(|seen| self.index >= seen.count())
        {
            match self.fetch(Direction::Forward, false)? {
                Fetched::More => {}
                Fetched::End => return Ok(true),
                Fetched::WouldWait => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Prepares [`previous`](Self::previous), as [`prepare_next`](Self::prepare_next) does for `next`.
    ///
    /// # Errors
    /// As for `previous`.
    pub fn prepare_previous(&mut self) -> Result<bool, AccessError> {
        self.ahead.take_up();
        while self.index.checked_sub(1).is_none_or(|index| !self.leaf.holds(index) && self.seen.is_none()) {
            match self.fetch(Direction::Backward, false)? {
                Fetched::More => {}
                Fetched::End => return Ok(true),
                Fetched::WouldWait => return Ok(false),
            }
        }
        Ok(true)
    }

    /// A key, in the tree or not, whose lookup reads the pages for which [`next`](Self::next) waits.
    pub fn key_ahead(&self) -> Vec<u8> {
        match (self.stand, &self.lower, &self.upper) {
            (Stand::Before, ..) => self.key.to_vec(),
            (Stand::After, ..) => successor(&self.key),
            (Stand::Start, Bound::Included(key), _) | (Stand::End, _, Bound::Excluded(key)) => key.clone(),
            (Stand::Start, Bound::Excluded(key), _) | (Stand::End, _, Bound::Included(key)) => successor(key),
            (Stand::Start, Bound::Unbounded, _) => Vec::new(),
            (Stand::End, _, Bound::Unbounded) => vec![u8::MAX; MAX_KEY_BYTES],
        }
    }

    /// A key, in the tree or not, whose lookup reads the pages for which [`previous`](Self::previous) waits.
    pub fn key_behind(&self) -> Vec<u8> {
        match (self.stand, &self.lower, &self.upper) {
            (Stand::Before | Stand::After, ..) => self.key.to_vec(),
            (Stand::Start, Bound::Included(key) | Bound::Excluded(key), _)
            | (Stand::End, _, Bound::Included(key) | Bound::Excluded(key)) => key.clone(),
            (Stand::Start, Bound::Unbounded, _) => Vec::new(),
            (Stand::End, _, Bound::Unbounded) => vec![u8::MAX; MAX_KEY_BYTES],
        }
    }
}

/// The least key after this one; the same key if it is the greatest of all.
fn successor(key: &[u8]) -> Vec<u8> {
    if key.len() < MAX_KEY_BYTES {
        return [key, &[0]].concat();
    }
    let kept = key.iter().rposition(|byte| *byte < u8::MAX).map_or(key.len(), |last| last + 1);
    let mut next = key.get(..kept).unwrap_or_default().to_vec();
    if let Some(last) = next.last_mut() {
        *last = last.saturating_add(1);
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_lies_between_a_key_and_its_successor() {
        assert_eq!(successor(b""), [0]);
        assert_eq!(successor(b"ab"), b"ab\0");
        let longest = |last: &[u8]| [&vec![7; MAX_KEY_BYTES - last.len()][..], last].concat();
        assert_eq!(successor(&longest(&[1])), longest(&[2]));
        assert_eq!(successor(&longest(&[1, 255, 255])), longest(&[2, 0, 0])[..MAX_KEY_BYTES - 2]);
        assert_eq!(successor(&[255; MAX_KEY_BYTES]), [255; MAX_KEY_BYTES]);
    }
}
