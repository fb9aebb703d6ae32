//! Freeing a whole tree.

use super::Tree;
use crate::{
    AccessError,
    blob::BlobReference,
    node::{NodeView, ValueKind},
};
use vellum_base::{Bytes, Extent, PageId};
use vellum_pool::{Pager, SharedPage};

impl<P: Pager> Tree<'_, P> {
    /// Frees all pages of the tree, the root's included. Nobody may use it any more, nor afterwards.
    ///
    /// # Errors
    /// If a page cannot be read: what is below it is not freed then, all else is. The first error is
    /// returned.
    pub fn destroy(self) -> Result<(), AccessError> {
        let mut result = Ok(());
        let mut todo = vec![self.root];
        while let Some(page) = todo.pop() {
            let step = self.destroy_node(page, &mut todo);
            result = result.and(step);
        }
        result
    }

    fn destroy_node(&self, page: PageId, todo: &mut Vec<PageId>) -> Result<(), AccessError> {
        let bytes = self.pager.shared_certain(Extent::page(page))?.page().to_vec();
        let view = NodeView::new(&bytes[..]);
        view.validate().map_err(|fault| vellum_pool::PoolError::contents(page, fault.to_string()))?;
        todo.extend(view.children());
        let mut result = Ok(());
        for index in 0..if view.is_leaf() { view.count() } else { 0 } {
            let at = view.value_location(index);
            let mut reference = Vec::new();
            if at.kind == ValueKind::Blob {
                view.bytes().append_to(at.at, at.length, &mut reference);
            }
            if let Some(reference) = BlobReference::decode(&reference) {
                result = result.and(self.pager.discard(reference.extent()));
            }
        }
        Ok(result.and(self.pager.discard(Extent::page(page)))?)
    }
}
