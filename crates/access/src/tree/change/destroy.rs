//! Freeing a whole tree.

use crate::tree::Tree;
use crate::tree::read::record::{StoredValue, value_in};
use crate::{AccessError, gateway::RecordGroup, node::NodeView};
use std::collections::HashSet;
use vellum_base::{Extent, PageId};
use vellum_pool::{Pager, PoolError};

impl<'p, P: Pager> Tree<'p, P> {
    /// Frees all pages of the tree, the root's included. No other handle may use the tree meanwhile or afterwards.
    ///
    /// # Errors
    /// If a page cannot be read: the pages below it are not freed then, all others are. The first error is returned.
    pub fn destroy(self) -> Result<(), AccessError> {
        let mut group = RecordGroup::begin(self.pager);
        let result = self.destroy_in(&mut group);
        group.end();
        result
    }

    /// [`destroy`](Self::destroy) together with the removal of the record of another tree that says where this one is: see
    /// [`RecordGroup`]. Until then nothing is freed.
    ///
    /// # Errors
    /// As for `destroy`. The group may be ended all the same.
    pub fn destroy_in(self, group: &mut RecordGroup<'p, P>) -> Result<(), AccessError> {
        // Nothing is latched or allocated before the first record.
        self.pager.admit_changes()?;
        let (mut result, mut found) = (Ok(()), HashSet::new());
        let mut todo = vec![(self.root, None)];
        while let Some((page, level)) = todo.pop() {
            let step = self.find_extents(page, level, &mut todo, &mut found);
            result = result.and(step);
        }
        let mut extents: Vec<_> = found.into_iter().collect();
        extents.sort_unstable_by_key(|extent| extent.head);
        group.free(self.root, extents);
        result
    }

    /// Finds the extents of a node and its large values, and its children.
    fn find_extents(
        &self,
        page: PageId,
        level: Option<u8>,
        todo: &mut Vec<(PageId, Option<u8>)>,
        found: &mut HashSet<Extent>,
    ) -> Result<(), AccessError> {
        let mut find = |extent: Extent| {
            let what = match self.pager.is_extent(extent) {
                true if found.insert(extent) => return Ok(()),
                true => "a tree refers to it twice",
                false => "a tree refers to it, but it is not allocated",
            };
            Err(PoolError::contents(extent.head, what))
        };
        find(Extent::page(page))?;
        let bytes = self.sound_node(page, level)?;
        let view = NodeView::new(&bytes[..]);
        todo.extend(view.children().map(|child| (child, view.level().checked_sub(1))));
        let mut result = Ok(());
        for index in 0..if view.is_leaf() { view.count() } else { 0 } {
            if let Some(StoredValue::Blob(reference)) = value_in(view, index) {
                result = result.and(find(reference.extent()));
            }
        }
        Ok(result?)
    }
}
