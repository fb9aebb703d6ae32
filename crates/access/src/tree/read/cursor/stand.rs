//! Where a cursor stands, and where its range ends.

use crate::node::NodeView;
use crate::tree::descend::{Direction, Towards};
use std::ops::Bound;
use vellum_base::Bytes;

/// Between which keys a cursor stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stand {
    /// At the beginning of the range.
    Start,
    /// At the end of the range.
    End,
    /// Right before the cursor's key, which need not be in the tree.
    Before,
    /// Right after the cursor's key.
    After,
}

/// The way to the leaf in which a cursor with this direction stands.
pub(super) fn towards(stand: Stand, direction: Direction, key: &[u8]) -> Towards<'_> {
    match (stand, direction) {
        (Stand::Start, _) => Towards::First,
        (Stand::End, _) => Towards::Last,
        (Stand::After, Direction::Forward) => Towards::After(key),
        _ => Towards::Key(key),
    }
}

/// The slot of a leaf at which a range ends; the greatest number if the range extends beyond the leaf.
pub(super) fn end_in<B: Bytes>(leaf: NodeView<B>, upper: &Bound<Vec<u8>>) -> usize {
    let Some(key) = key_of(upper).filter(|key| !leaf.ends_before(key)) else { return usize::MAX };
    let find = leaf.find(key);
    find.index + usize::from(find.found && matches!(upper, Bound::Included(_)))
}

pub(super) fn key_of(bound: &Bound<Vec<u8>>) -> Option<&[u8]> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}
