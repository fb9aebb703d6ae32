//! Merging a node with its right neighbour.

use super::build::Builder;
use super::fault::{NodeError, NodeFault};
use super::frame::Frame;
use super::layout::*;
use super::shape::Shape;
use super::view::{NodeView, child_place};
use super::write::NodeMut;
use vellum_base::PageId;

/// Whether [`NodeMut::merge_from_right`] would succeed: both nodes are sound, neighbours at `separator`, and their
/// contents fit into one node. Exact, not an estimate.
pub fn can_merge(left: NodeView<&[u8]>, right: NodeView<&[u8]>, separator: &[u8]) -> bool {
    Merge::plan(left, right, separator).is_ok()
}

impl<'a> NodeMut<'a> {
    /// Takes over the contents of the right neighbour. `separator` is the one between them in the parent:
    /// the upper fence of this node and the lower fence of the other. In inner nodes it comes down and
    /// separates the last child of this node from the first one of the other. The caller removes it from
    /// the parent, see [`NodeMut::remove_separator`], and frees the other page.
    ///
    /// # Errors
    /// [`NodeError::Full`] if both do not fit into one node, or a fault. This node is then as it was.
    pub fn merge_from_right(&mut self, right: NodeView<&[u8]>, separator: &[u8]) -> Result<(), NodeError> {
        let left = self.view();
        let plan = Merge::plan(left, right, separator)?;
        let level = left.level();
        let mut page = [0; NODE_BYTES];
        let mut node = Builder::new(&mut page, level, &plan.frame, plan.last_child)?;
        node.append_range(left, 0..left.count())?;
        if level > 0 {
            node.append(separator, 0, &[], Some(left.child_at(child_place(left.count()))))?;
        }
        node.append_range(right, 0..right.count())?;
        node.finish();
        self.take_over(&page);
        Ok(())
    }
}

/// The fences, the prefix and the last child of the merged node.
struct Merge {
    frame: Frame,
    last_child: PageId,
}

impl Merge {
    fn plan(left: NodeView<&[u8]>, right: NodeView<&[u8]>, separator: &[u8]) -> Result<Self, NodeError> {
        let (left_shape, right_shape) = (Shape::read(left.bytes)?, Shape::read(right.bytes)?);
        let level = left_shape.word.level();
        if right_shape.word.level() != level {
            return Err(NodeFault::Level { level: right_shape.word.level() }.into());
        }
        let (mut left_upper, mut right_lower) = (Vec::new(), Vec::new());
        let meets = left.upper_fence(&mut left_upper) && right.lower_fence(&mut right_lower);
        if !meets || left_upper != separator || right_lower != separator {
            return Err(NodeFault::Neighbour.into());
        }
        let (mut lower, mut upper) = (Vec::new(), Vec::new());
        let lower = left.lower_fence(&mut lower).then_some(lower);
        let upper = right.upper_fence(&mut upper).then_some(upper);
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
        Ok(Self { frame, last_child })
    }
}

/// The first and the last key of a node that has any.
fn end_keys(view: NodeView<&[u8]>) -> Option<(Vec<u8>, Vec<u8>)> {
    let (mut first, mut last) = (Vec::new(), Vec::new());
    let end = view.count().checked_sub(1)?;
    view.append_key(0, &mut first);
    view.append_key(end, &mut last);
    Some((first, last))
}
