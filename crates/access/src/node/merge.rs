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
use vellum_base::PageId;

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
