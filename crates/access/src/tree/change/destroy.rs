//! Freeing a whole tree, or all but its root.

use crate::error::{AccessError, damaged};
use crate::gateway::{AtomicChange, Latched, NodeImage, PageChange, RecordGroup};
use crate::node::{NODE_BYTES, NodeMut, NodeView};
use crate::tree::Tree;
use crate::tree::read::record::{StoredValue, value_in};
use std::cmp::Reverse;
use std::collections::{HashMap, hash_map::Entry};
use vellum_base::{Extent, PageId};
use vellum_pool::{Interrupt, Pager, PoolError};

impl<'p, P: Pager> Tree<'p, P> {
    /// Frees all pages of the tree, including the root. No other handle may use the tree meanwhile or afterwards.
    ///
    /// # Errors
    /// If a page cannot be read: then the pages below it are not freed, and all others are. The first error is
    /// returned. If the log has no room: then nothing has happened.
    pub fn destroy(self) -> Result<(), AccessError> {
        self.pager.admit_changes()?;
        let (extents, result) = self.extents();
        let mut group = RecordGroup::begin(self.pager);
        group.free(self.root, extents)?;
        group.end();
        result
    }

    /// [`destroy`](Self::destroy) together with the removal of the record of another tree that says where this tree is:
    /// see [`RecordGroup`]. Until the group ends nothing is freed.
    ///
    /// # Errors
    /// As for `destroy`. If a page cannot be read, the group may be ended even so; if the log has no room, it can only be
    /// dropped.
    pub fn destroy_in(self, group: &mut RecordGroup<'p, P>) -> Result<(), AccessError> {
        // Nothing is latched or allocated before the first record.
        self.pager.admit_changes()?;
        let (extents, result) = self.extents();
        group.free(self.root, extents)?;
        result
    }

    /// Removes all records at once, and leaves the root as an empty leaf. No thread may still change the tree: see
    /// [`while_current`](Self::while_current). A thread that reads it finds the old records, or nothing.
    ///
    /// # Errors
    /// If a page cannot be read, or the log has no room: then the tree is unchanged.
    pub fn truncate(&self) -> Result<(), AccessError> {
        self.pager.admit_changes()?;
        let (mut extents, found) = self.extents();
        found?;
        extents.retain(|(extent, _)| extent.head != self.root);
        let mut group = RecordGroup::begin(self.pager);
        group.free(self.root, extents)?;
        let mut empty = [0; NODE_BYTES];
        NodeMut::init(&mut empty, 0, None, None, PageId(0))
            .map_err(|error| PoolError::contents(self.root, error.to_string()))?;
        Ok(self.pager.run(|| self.try_replace_root(&empty, &mut group))?)
    }

    fn try_replace_root(&self, image: &[u8], group: &mut RecordGroup<'p, P>) -> Result<(), Interrupt> {
        let root = Latched::latch(self.pager.root(self.root)?)?;
        // The root is released first, so no thread reaches pages that are freed after that.
        let mut change = self.change((root, group))?;
        let AtomicChange { pages: (root, _), recording, .. } = &mut change;
        let contents = PageChange::ReplaceRoot { image: NodeImage::of(image) };
        recording.apply(root, None, &contents).map_err(|error| damaged(root.id(), error))?;
        change.commit();
        Ok(())
    }

    /// The extents of the tree with the levels of nodes, upper levels first; values come last, with the level of leaves. So
    /// a thread that finds an extent freed also finds that what has led it there has changed. If a page cannot be read,
    /// the extents below it are missing, and the first such error is returned.
    fn extents(&self) -> (Vec<(Extent, u8)>, Result<(), AccessError>) {
        let (mut result, mut found) = (Ok(()), HashMap::new());
        let mut todo = vec![(self.root, None)];
        while let Some((page, level)) = todo.pop() {
            let step = self.find_extents(page, level, &mut todo, &mut found);
            result = result.and(step);
        }
        let mut extents: Vec<_> = found.into_iter().collect();
        extents.sort_unstable_by_key(|(extent, level)| (Reverse(*level), extent.head));
        let extents = extents.into_iter().map(|(extent, level)| (extent, level.unwrap_or(0))).collect();
        (extents, result)
    }

    /// Finds the extents of a node and its large values, and its children.
    fn find_extents(
        &self,
        page: PageId,
        level: Option<u8>,
        todo: &mut Vec<(PageId, Option<u8>)>,
        found: &mut HashMap<Extent, Option<u8>>,
    ) -> Result<(), AccessError> {
        // A value has no level.
        let mut find = |extent: Extent, level: Option<u8>| {
            let what = match (self.pager.is_extent(extent), found.entry(extent)) {
                (true, Entry::Vacant(entry)) => {
                    entry.insert(level);
                    return Ok(());
                }
                (true, _) => "a tree refers to it twice",
                (false, _) => "a tree refers to it, but it is not allocated",
            };
            Err(PoolError::contents(extent.head, what))
        };
        find(Extent::page(page), level.or(Some(u8::MAX)))?;
        let bytes = self.sound_node(page, level)?;
        let view = NodeView::new(&bytes[..]);
        todo.extend(view.children().map(|child| (child, view.level().checked_sub(1))));
        let mut result = Ok(());
        for index in 0..if view.is_leaf() { view.count() } else { 0 } {
            if let Some(StoredValue::Blob(reference)) = value_in(view, index) {
                result = result.and(find(reference.extent(), None));
            }
        }
        Ok(result?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vellum_pool::{Pool, PoolOptions};

    /// Otherwise a thread that has read a reference finds the value freed and the leaf unchanged: that is damage.
    #[test]
    fn values_are_freed_after_all_leaves() {
        let directory = tempfile::tempdir().unwrap();
        let pool = Pool::create(directory.path().join("file"), &PoolOptions::default()).unwrap();
        let tree = Tree::create(&pool).unwrap();
        for key in 0..500_u32 {
            let value = vec![7; if key.is_multiple_of(5) { 9000 } else { 300 }];
            tree.insert(&key.to_be_bytes(), &value).unwrap();
        }
        let (extents, result) = tree.extents();
        result.unwrap();
        let is_value = |(extent, level): &(Extent, u8)| extent.pages > 1 && *level == 0;
        assert_eq!(extents.iter().filter(|found| is_value(found)).count(), 100);
        assert!(extents.is_sorted_by_key(|(_, level)| Reverse(*level)), "{extents:?}");
        assert!(extents.is_sorted_by_key(is_value), "{extents:?}");
        let leaves = extents.iter().filter(|found| found.1 == 0 && !is_value(found)).count();
        assert!(leaves > 20, "{leaves} leaves");
    }
}
