//! Passing a child of an inner node on to a neighbour, where the two do not fit into one node.

use super::{
    build::Builder,
    fault::{NodeError, NodeFault},
    frame::Frame,
    shape::Shape,
    split::fill,
    view::{NodeView, child_place},
};
use vellum_base::PageId;

/// The side of a node on which a neighbour is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Left,
    Right,
}

/// Fills two pages with what the inner nodes `left` and `right` are once the child nearest to the border has gone from
/// the one on the side `from` to the other. `separator` is the one between them in the parent. Returns the one that
/// takes its place, which comes from the node that loses the child. The pages are zero, and their headers stay.
///
/// # Errors
/// [`NodeError::Full`] if the child has no room, or a fault, if the node has no child that it can lose.
pub(crate) fn pass_child(
    (left, right): (NodeView<&[u8]>, NodeView<&[u8]>),
    separator: &[u8],
    from: Side,
    (left_page, right_page): (&mut [u8], &mut [u8]),
) -> Result<Vec<u8>, NodeError> {
    let (left_shape, right_shape) = (Shape::read(left.bytes)?, Shape::read(right.bytes)?);
    let level = left_shape.word.level();
    if level == 0 || right_shape.word.level() != level {
        return Err(NodeFault::Level { level: right_shape.word.level() }.into());
    }
    let ((lower, left_upper), (right_lower, upper)) = (left.fences(), right.fences());
    if [left_upper, right_lower].iter().any(|fence| fence.as_deref() != Some(separator)) {
        return Err(NodeFault::Neighbour.into());
    }
    let (left_count, right_count) = (left_shape.count, right_shape.count);
    let last = left.child_at(child_place(left_count));
    match from {
        Side::Right => {
            let new = key_of(right, 0, right_count)?;
            let frame = Frame::plain(lower.as_deref(), Some(&new));
            let mut node = Builder::new(left_page, level, &frame, right.child_at(child_place(0)))?;
            node.append_range(left, 0..left_count)?;
            node.append(separator, 0, &[], Some(last))?;
            node.finish();
            fill(right_page, right, 1..right_count, (Some(&new), upper.as_deref()))?;
            Ok(new)
        }
        Side::Left => {
            let kept = left_count.wrapping_sub(1);
            let new = key_of(left, kept, left_count)?;
            let frame = Frame::plain(Some(&new), upper.as_deref());
            let right_last = right.child_at(child_place(right_count));
            let mut node = Builder::new(right_page, level, &frame, right_last)?;
            node.append(separator, 0, &[], Some(last))?;
            node.append_range(right, 0..right_count)?;
            node.finish();
            fill(left_page, left, 0..kept, (lower.as_deref(), Some(&new)))?;
            Ok(new)
        }
    }
}

fn key_of(view: NodeView<&[u8]>, index: usize, count: usize) -> Result<Vec<u8>, NodeFault> {
    if index < count { Ok(view.key(index)) } else { Err(NodeFault::Index { index }) }
}

/// Makes the page of an inner node what it is once separator `index` is another one, `separator`, and the child after it
/// is still the same.
///
/// # Errors
/// [`NodeError::Full`] if the separator has no room, or a fault.
pub(crate) fn exchange_separator(page: &mut [u8], index: usize, separator: &[u8]) -> Result<(), NodeError> {
    let mut node = super::NodeMut::new(page);
    let right: PageId = node.view().child_at(child_place(index + 1));
    node.remove_separator(index)?;
    if node.insert_separator(separator, right)? == index {
        Ok(())
    } else {
        Err(NodeFault::Order { index }.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{NodeMut, layout::*};

    fn key(place: u8) -> Vec<u8> {
        vec![place; MAX_KEY_BYTES]
    }

    /// An inner node with children numbered from `first` on, and a separator with the number of each but the last.
    fn inner(lower: Option<u8>, upper: Option<u8>, first: u8, separators: u8) -> Vec<u8> {
        let mut page = vec![0; NODE_BYTES];
        let (lower, upper) = (lower.map(key), upper.map(key));
        let child = PageId(u64::from(first));
        let mut node = NodeMut::init(&mut page, 2, lower.as_deref(), upper.as_deref(), child).unwrap();
        for number in first..first + separators {
            // Short ones, so that there is room for several.
            node.insert_separator(&[number], PageId(u64::from(number) + 1)).unwrap();
        }
        page
    }

    fn contents(page: &[u8]) -> (Vec<Vec<u8>>, Vec<u64>) {
        let view = NodeView::new(page);
        view.validate().unwrap();
        let keys = (0..view.count()).map(|index| view.key(index)).collect();
        (keys, view.children().map(|child| child.0).collect())
    }

    #[test]
    fn a_child_goes_to_the_neighbour_and_takes_the_separator_along() {
        let fresh = || (vec![0; NODE_BYTES], vec![0; NODE_BYTES]);
        for (lower, upper) in [(None, None), (Some(1), None), (None, Some(90)), (Some(1), Some(90))] {
            // One with a single child, and one with three; the separator between them is the longest there is.
            let (poor, rich) = (inner(lower, Some(20), 10, 0), inner(Some(20), upper, 30, 2));
            let (mut left, mut right) = fresh();
            let pair = (NodeView::new(&poor[..]), NodeView::new(&rich[..]));
            let new = pass_child(pair, &key(20), Side::Right, (&mut left, &mut right)).unwrap();
            assert_eq!(new, [30]);
            assert_eq!(contents(&left), (vec![key(20)], vec![10, 30]));
            assert_eq!(contents(&right), (vec![vec![31]], vec![31, 32]));
            let fences = [NodeView::new(&left[..]).fences(), NodeView::new(&right[..]).fences()];
            assert_eq!(fences, [(lower.map(key), Some(vec![30])), (Some(vec![30]), upper.map(key))]);

            let (rich, poor) = (inner(lower, Some(40), 10, 2), inner(Some(40), upper, 50, 0));
            let (mut left, mut right) = fresh();
            let pair = (NodeView::new(&rich[..]), NodeView::new(&poor[..]));
            let new = pass_child(pair, &key(40), Side::Left, (&mut left, &mut right)).unwrap();
            assert_eq!(new, [11]);
            assert_eq!(contents(&left), (vec![vec![10]], vec![10, 11]));
            assert_eq!(contents(&right), (vec![key(40)], vec![12, 50]));
            // The one with a single child cannot lose it, and only neighbours pass a child on.
            let lost = pass_child(pair, &key(40), Side::Right, (&mut left, &mut right));
            assert_eq!(lost, Err(NodeFault::Index { index: 0 }.into()));
            let others = pass_child(pair, &key(41), Side::Left, (&mut left, &mut right));
            assert_eq!(others, Err(NodeFault::Neighbour.into()));
        }
    }

    #[test]
    fn a_root_whose_only_separator_is_exchanged_has_the_new_one() {
        for (old, new) in [(key(20), key(30)), (vec![1; 8], vec![2; 8]), (vec![1; 8], vec![2; 6])] {
            let mut page = inner(None, None, 10, 0);
            NodeMut::new(&mut page).insert_separator(&old, PageId(11)).unwrap();
            exchange_separator(&mut page, 0, &new).unwrap();
            assert_eq!(contents(&page), (vec![new], vec![10, 11]));
        }
    }

    #[test]
    fn a_parent_takes_the_new_separator_if_it_has_room() {
        let mut page = inner(Some(1), Some(90), 10, 2);
        exchange_separator(&mut page, 0, &key(10)).unwrap();
        assert_eq!(contents(&page), (vec![key(10), vec![11]], vec![10, 11, 12]));
        let full = exchange_separator(&mut page, 1, &key(20));
        assert_eq!(full, Err(NodeError::Full));
        let mut page = inner(Some(1), Some(90), 10, 2);
        let order = exchange_separator(&mut page, 0, &[12]);
        assert_eq!(order, Err(NodeFault::Order { index: 0 }.into()));
    }
}
