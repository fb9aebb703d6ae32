//! How much a cursor copies out of a leaf at a time.

use crate::node::CopySize;
use crate::tree::descend::Direction;

/// How many bytes of records a cursor copies at a time, to begin with; after these groups it copies whole leaves.
pub(super) const GROUPS_BYTES: [usize; 2] = [256, 1024];

/// If no more entries are expected, their leaves are read together. Otherwise a scan reads ahead.
pub(super) const FEW: usize = 1024;

/// How many records a leaf has, of `count`, from slot `index` on or before it.
fn rest((index, count): (usize, usize), direction: Direction) -> usize {
    match direction {
        Direction::Forward => count.saturating_sub(index),
        Direction::Backward => index,
    }
}

/// Whether the entries that are expected go beyond a leaf with so many records, from slot `index` on.
pub(super) fn goes_beyond(expected: usize, place: (usize, usize), direction: Direction) -> bool {
    (1..=FEW).contains(&expected) && expected > rest(place, direction)
}

/// What a cursor copies next of such a leaf; `None` if that is all of it.
pub(super) fn copy_size(
    groups: usize,
    expected: usize,
    (index, count): (usize, usize),
    direction: Direction,
) -> Option<CopySize> {
    if !(1..=FEW).contains(&expected) {
        return GROUPS_BYTES.get(groups).copied().map(CopySize::Bytes);
    }
    // All at once is faster than most of them one by one.
    let records = expected.min(rest((index, count), direction));
    (records * 4 < count * 3).then_some(CopySize::Records(records))
}
