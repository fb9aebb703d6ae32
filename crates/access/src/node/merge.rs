//! Merging a node with its right neighbour.

use super::{
    build::Builder,
    fault::{NodeError, NodeFault},
    frame::Frame,
    layout::*,
    shape::Shape,
    view::{NodeView, child_place},
    write::NodeMut,
};
use vellum_base::{Bytes, PageId};

impl<B: Bytes> NodeView<B> {
    /// Whether this node and its right neighbour seem to fit into one, with a separator of this length between them.
    /// `prefix_length` is that of their parent: the prefix of both together is as long at least.
    pub(crate) fn might_fit_with(self, right: Self, separator_length: usize, prefix_length: usize) -> bool {
        if !self.is_leaf() && self.count() + right.count() == 0 {
            // There is room for one separator, whatever the fences.
            return true;
        }
        let records = |view: Self| view.used_bytes().saturating_sub(view.fence_bytes());
        let comes_down = if self.is_leaf() {
            0
        } else {
            // Its entry takes the place of that of the last child on the left.
            record_bytes(INNER_STRIDE, separator_length, 0, prefix_length) - INNER_STRIDE
        };
        let used = records(self) + comes_down + records(right);
        // The fences that will remain, if the outer ones are about as long as the inner ones.
        let fences = self.fence_bytes().min(right.fence_bytes());
        used + fences <= self.used_bytes() + self.free_bytes()
    }
}

impl NodeMut<'_> {
    /// Takes over the contents of the right neighbour. `separator` is the one between them in the parent:
    /// the upper fence of this node and the lower fence of the other. In inner nodes it comes down and
    /// separates the last child of this node from the first one of the other. The caller removes it from
    /// the parent, see [`NodeMut::remove_separator`], and frees the other page.
    ///
    /// # Errors
    /// [`NodeError::Full`] if both do not fit into one node, or a fault. This node is then as it was.
    pub fn merge_from_right(&mut self, right: NodeView<&[u8]>, separator: &[u8]) -> Result<(), NodeError> {
        let left = self.view();
        let (left_shape, right_shape) = (Shape::read(left.bytes)?, Shape::read(right.bytes)?);
        let level = left_shape.word.level();
        if right_shape.word.level() != level {
            return Err(NodeFault::Level { level: right_shape.word.level() }.into());
        }
        let ((lower, left_upper), (right_lower, upper)) = (left.fences(), right.fences());
        if [left_upper, right_lower].iter().any(|fence| fence.as_deref() != Some(separator)) {
            return Err(NodeFault::Neighbour.into());
        }
        let mut frame = Frame::plain(lower.as_deref(), upper.as_deref());
        let records = |prefix_length: usize| {
            let comes_down =
                if level == 0 { 0 } else { record_bytes(INNER_STRIDE, separator.len(), 0, prefix_length) };
            left.records_bytes(0..left_shape.count, prefix_length)
                + comes_down
                + right.records_bytes(0..right_shape.count, prefix_length)
        };
        let (left_keys, right_keys) = (end_keys(left), end_keys(right));
        let separators = (level > 0).then(|| (separator.to_vec(), separator.to_vec()));
        let mut parts = [left_keys, separators, right_keys].into_iter().flatten();
        if let Some((first, last)) = parts.next() {
            let last = parts.last().map_or(last, |(_, last)| last);
            let count = left_shape.count + usize::from(level > 0) + right_shape.count;
            frame.lengthen(level, (&first, &last, count), records);
        }
        if frame.bytes(level, frame.prefix.len()) + records(frame.prefix.len()) > BODY_BYTES {
            return Err(NodeError::Full);
        }
        let last_child = if level == 0 { PageId(0) } else { right.child_at(child_place(right_shape.count)) };
        let mut page = [0; NODE_BYTES];
        let mut node = Builder::new(&mut page, level, &frame, last_child)?;
        node.append_range(left, 0..left_shape.count)?;
        if level > 0 {
            node.append(separator, 0, &[], Some(left.child_at(child_place(left_shape.count))))?;
        }
        node.append_range(right, 0..right_shape.count)?;
        node.finish();
        self.take_over(&page);
        Ok(())
    }
}

/// The first and the last key of a node that has any.
fn end_keys(view: NodeView<&[u8]>) -> Option<(Vec<u8>, Vec<u8>)> {
    let last = view.count().checked_sub(1)?;
    Some((view.key(0), view.key(last)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inner(lower: &[u8], upper: &[u8], separators: &[&[u8]]) -> Vec<u8> {
        let mut page = vec![0; NODE_BYTES];
        let mut node = NodeMut::init(&mut page, 1, Some(lower), Some(upper), PageId(1)).unwrap();
        for separator in separators {
            node.insert_separator(separator, PageId(2)).unwrap();
        }
        page
    }

    /// The separator that comes down between inner nodes counts: without it the right neighbour seems to fit, and the
    /// left one is never tried.
    #[test]
    fn the_separator_that_comes_down_needs_room_too() {
        let key = |place: u8| vec![place; MAX_KEY_BYTES];
        let merges = |left: &[u8], right: &[u8], separator: &[u8]| {
            let (left_view, right_view) = (NodeView::new(left), NodeView::new(right));
            let might = left_view.might_fit_with(right_view, separator.len(), 0);
            let mut page = left.to_vec();
            (might, NodeMut::new(&mut page).merge_from_right(right_view, separator).is_ok())
        };
        let single = |lower, upper| inner(&key(lower), &key(upper), &[]);
        let double = |lower, middle, upper| inner(&key(lower), &key(upper), &[&key(middle)]);
        // Two with a single child always fit; one of two children has no room for another long separator.
        assert_eq!(merges(&single(1, 2), &single(2, 3), &key(2)), (true, true));
        assert_eq!(merges(&single(1, 2), &double(2, 3, 4), &key(2)), (false, false));
        assert_eq!(merges(&double(1, 2, 3), &single(3, 4), &key(3)), (false, false));
        // A short one has room.
        let (left, right) = (inner(&key(1), &[2], &[]), inner(&[2], &key(4), &[&key(3)]));
        assert_eq!(merges(&left, &right, &[2]), (true, true));
    }
}
