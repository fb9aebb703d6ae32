//! Freeing a whole tree.

use crate::tree::Tree;
use crate::tree::read::record::{StoredValue, value_in};
use crate::{AccessError, gateway::discard, node::NodeView};
use vellum_base::{Extent, PageId};
use vellum_pool::{Pager, PoolError};

impl<P: Pager> Tree<'_, P> {
    /// Frees all pages of the tree, the root's included. No other handle may use the tree meanwhile or afterwards.
    ///
    /// # Errors
    /// If a page cannot be read: the pages below it are not freed then, all others are. The first error is returned.
    pub fn destroy(self) -> Result<(), AccessError> {
        let mut result = Ok(());
        let mut todo = vec![(self.root, None)];
        while let Some((page, level)) = todo.pop() {
            let step = self.destroy_node(page, level, &mut todo);
            result = result.and(step);
        }
        result
    }

    fn destroy_node(
        &self,
        page: PageId,
        level: Option<u8>,
        todo: &mut Vec<(PageId, Option<u8>)>,
    ) -> Result<(), AccessError> {
        // A page to which two nodes refer is free when it is met again.
        if !self.pager.is_extent(Extent::page(page)) {
            let what = "a tree's node should be here, but it is not allocated";
            return Err(PoolError::contents(page, what).into());
        }
        let bytes = self.sound_node(page, level)?;
        let view = NodeView::new(&bytes[..]);
        todo.extend(view.children().map(|child| (child, view.level().checked_sub(1))));
        let mut result = Ok(());
        for index in 0..if view.is_leaf() { view.count() } else { 0 } {
            if let Some(StoredValue::Blob(reference)) = value_in(view, index) {
                result = result.and(discard(self.pager, self.root, reference.extent()));
            }
        }
        Ok(result.and(discard(self.pager, self.root, Extent::page(page)))?)
    }
}
