//! Builds an inner node from children in the order of their keys, for bulk loads.

use super::{build::Builder, fault::NodeError, frame::Frame, layout::*};
use vellum_base::PageId;

/// Children that will be an inner node, each with the separator after it.
///
/// The children fit into a node whose upper fence is the last of these separators.
pub(crate) struct InnerBuilder {
    level: u8,
    lower: Option<Vec<u8>>,
    children: Vec<(PageId, Vec<u8>)>,
    /// The length that the lower fence has in common with all separators; 0 if there is no lower fence.
    prefix_length: usize,
    /// The bytes that the entries of all children take with this prefix.
    used: usize,
    limit: usize,
}

/// The children of a builder that become one node: so many separators, the child after them, and the fences.
pub(crate) struct InnerPlan {
    separators: usize,
    last: PageId,
    frame: Frame,
}

impl InnerBuilder {
    /// An empty builder without a lower fence, for a node that is filled to `percent`, with at least two children.
    pub fn new(level: u8, percent: u8) -> Self {
        let limit = fill_limit(percent);
        Self { level, lower: None, children: Vec::new(), prefix_length: 0, used: 0, limit }
    }

    /// Appends a child and the separator after it; gives the separator back if there is no room.
    pub fn push(&mut self, child: PageId, separator: Vec<u8>) -> Result<(), Vec<u8>> {
        let lower = self.lower.as_deref().unwrap_or_default();
        let start = lower.get(..self.prefix_length).unwrap_or_default();
        let prefix_length = common_length(start, &separator);
        let used = if prefix_length == self.prefix_length {
            self.used
        } else {
            self.entries_bytes(self.children.len(), prefix_length)
        };
        let fences = fence_bytes(lower.len(), separator.len(), prefix_length);
        // A node always has room for two fences and one separator.
        if INNER_STRIDE + used + fences > self.limit && self.children.len() > 1 {
            return Err(separator);
        }
        self.prefix_length = prefix_length;
        self.used = used + record_bytes(INNER_STRIDE, separator.len(), 0, prefix_length);
        self.children.push((child, separator));
        Ok(())
    }

    /// The node of all children, whose upper fence is the last separator.
    pub fn plan(&self) -> Option<InnerPlan> {
        self.plan_of(self.children.len())
    }

    /// The last node of the level, whose last child is `last` and which has no upper fence.
    ///
    /// # Errors
    /// If there is no room for all children: a node without the last two, which is to be written and then
    /// [taken](Self::take) off.
    pub fn last_plan(&self, last: PageId) -> Result<InnerPlan, InnerPlan> {
        let whole = self.planned(self.children.len(), last, None);
        let bytes = self.entries_bytes(whole.separators, whole.frame.prefix.len())
            + whole.frame.bytes(self.level, whole.frame.prefix.len());
        let part = self.plan_of(self.children.len().saturating_sub(1));
        // For one separator there is always room.
        part.filter(|_| bytes > BODY_BYTES).map_or(Ok(whole), Err)
    }

    /// The node of the first `count` children.
    fn plan_of(&self, count: usize) -> Option<InnerPlan> {
        let separators = count.checked_sub(1)?;
        let (last, upper) = self.children.get(separators)?;
        Some(self.planned(separators, *last, Some(upper)))
    }

    fn planned(&self, separators: usize, last: PageId, upper: Option<&[u8]>) -> InnerPlan {
        let mut frame = Frame::plain(self.lower.as_deref(), upper);
        let key = |index: usize| self.children.get(index).map_or(&[][..], |(_, key)| key);
        if separators > 0 {
            let keys = (key(0), key(separators - 1), separators);
            frame.lengthen(self.level, keys, |length| self.entries_bytes(separators, length));
        }
        InnerPlan { separators, last, frame }
    }

    /// Writes a node to a page that is zero after its header.
    ///
    /// # Errors
    /// None, if the separators were in order.
    pub fn write(&self, plan: &InnerPlan, page: &mut [u8]) -> Result<(), NodeError> {
        let mut node = Builder::new(page, self.level, &plan.frame, plan.last)?;
        for (child, separator) in self.children.iter().take(plan.separators) {
            node.append(separator, 0, &[], Some(*child))?;
        }
        node.finish();
        Ok(())
    }

    /// Takes off the children of which a node was written; gives the separator after them.
    pub fn take(&mut self, plan: InnerPlan) -> Vec<u8> {
        self.children.drain(..(plan.separators + 1).min(self.children.len()));
        let fence = plan.frame.upper.unwrap_or_default();
        self.lower = Some(fence.clone());
        let last = self.children.last().map_or(&fence, |(_, separator)| separator);
        self.prefix_length = common_length(&fence, last);
        self.used = self.entries_bytes(self.children.len(), self.prefix_length);
        fence
    }

    /// The bytes that the entries of the first `count` children take.
    fn entries_bytes(&self, count: usize, prefix_length: usize) -> usize {
        let bytes =
            |(_, separator): &(_, Vec<u8>)| record_bytes(INNER_STRIDE, separator.len(), 0, prefix_length);
        self.children.iter().take(count).map(bytes).sum()
    }
}
