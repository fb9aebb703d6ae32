//! How much a cursor copies out of a leaf at a time.

use crate::node::CopySize;
use crate::tree::descend::Direction;

/// How many bytes of records a cursor copies in its first groups; after these groups it copies whole leaves.
pub(super) const GROUPS_BYTES: [usize; 2] = [256, 1024];

/// If no more entries than this are expected, their leaves are read together. Otherwise a scan reads ahead.
pub(super) const FEW: usize = 1024;

/// A range of this many entries may well begin in one leaf and end in another.
pub(super) const MAY_GO_ON: usize = 8;

/// A range that ends in this leaf, no more than this many records away, is copied up to its end.
const NEAR: usize = 32;

/// The position of a cursor in a leaf: the slot after the cursor, the number of slots, and the slot at which the range
/// ends, which is beyond them if the range goes on in the next leaf.
pub(super) type Reach = (usize, usize, usize);

/// How many records of the range a leaf has, from slot `index` on or before it.
fn rest((index, count, end): Reach, direction: Direction) -> usize {
    match direction {
        Direction::Forward => count.min(end).saturating_sub(index),
        Direction::Backward => index,
    }
}

/// How many further leaves like this one hold the expected entries.
pub(super) fn leaves_beyond(expected: usize, reach: Reach, direction: Direction) -> usize {
    let ends = direction == Direction::Forward && reach.2 <= reach.1;
    if ends || expected > FEW {
        return 0;
    }
    expected.saturating_sub(rest(reach, direction)).div_ceil(reach.1.max(1))
}

/// What a cursor copies next of such a leaf; `None` for all of it.
pub(super) fn copy_size(
    groups: usize,
    expected: usize,
    reach: Reach,
    direction: Direction,
) -> Option<CopySize> {
    let rest = rest(reach, direction);
    let ends = direction == Direction::Forward && reach.2 <= reach.1 && rest <= NEAR;
    if !ends && !(1..=FEW).contains(&expected) {
        return GROUPS_BYTES.get(groups).copied().map(CopySize::Bytes);
    }
    // Copying everything at once is faster than copying most records one by one.
    let records = expected.min(rest);
    (records * 4 < reach.1 * 3).then_some(CopySize::Records(records))
}

/// How many records of a leaf a cursor resolves that comes to it: those of its first groups, or as many as are expected,
/// and from then on all. Of those expected, many that are not seen may be in front.
pub(super) fn resolve_size(groups: usize, expected: usize) -> usize {
    const RECORDS: [usize; 2] = [12, 48];
    if (1..=FEW).contains(&expected) {
        return expected << (2 * groups.min(5));
    }
    RECORDS.get(groups).copied().unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Direction::{Backward, Forward};

    const ALL: usize = usize::MAX;

    #[test]
    fn a_range_that_ends_nearby_is_copied_up_to_its_end_and_not_further() {
        let records = |count| Some(CopySize::Records(count));
        assert_eq!(copy_size(0, ALL, (10, 100, ALL), Forward), Some(CopySize::Bytes(GROUPS_BYTES[0])));
        assert_eq!(copy_size(0, ALL, (10, 100, 17), Forward), records(7));
        assert_eq!(copy_size(0, 3, (10, 100, 17), Forward), records(3));
        assert_eq!(copy_size(0, 9, (10, 100, 17), Forward), records(7));
        assert_eq!(copy_size(0, ALL, (10, 100, 60), Forward), Some(CopySize::Bytes(GROUPS_BYTES[0])));
        assert_eq!(copy_size(0, 45, (10, 100, 60), Forward), records(45));
        assert_eq!(copy_size(0, ALL, (0, 10, 9), Forward), None);
        // Backwards, the end lies after the cursor.
        assert_eq!(copy_size(0, 9, (17, 100, 17), Backward), records(9));
        assert_eq!(copy_size(0, ALL, (17, 100, 17), Backward), Some(CopySize::Bytes(GROUPS_BYTES[0])));
    }

    /// Many records that are not seen do not cost a step each, however few are expected.
    #[test]
    fn more_and_more_records_are_resolved() {
        let sizes = |expected| [0, 1, 2, 9].map(|groups| resolve_size(groups, expected));
        assert_eq!(sizes(ALL), [12, 48, ALL, ALL]);
        assert_eq!(sizes(1), [1, 4, 16, 1024]);
        assert_eq!(sizes(20)[..2], [20, 80]);
    }

    #[test]
    fn further_leaves_are_counted_if_the_range_goes_on() {
        assert_eq!(leaves_beyond(20, (5, 10, ALL), Forward), 2);
        assert_eq!(leaves_beyond(20, (0, 20, ALL), Forward), 0);
        assert_eq!(leaves_beyond(21, (0, 20, ALL), Forward), 1);
        assert_eq!(leaves_beyond(21, (0, 20, 20), Forward), 0);
        assert_eq!(leaves_beyond(21, (9, 20, 9), Backward), 1);
        assert_eq!(leaves_beyond(FEW + 1, (0, 20, ALL), Forward), 0);
        assert_eq!(leaves_beyond(1, (0, 0, ALL), Forward), 1);
    }
}
