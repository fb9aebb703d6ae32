//! Freeing a whole tree, at once or in parts, or all but its root.
//!
//! A large tree is freed from its end: [`Tree::free_end`] frees the last node at level 1 with all below it, and its
//! parent loses it in the same group. So each group is short, however large the tree is: the log has room for it, a
//! checkpoint can be taken between two of them, and what is gathered in memory is no more than one of them needs. What
//! cannot be read is passed over, and stays with what leads to it. What is left is a tree whose nodes may end before their
//! parents say: see [`Tree::verify_rest`].

use crate::error::{AccessError, damaged};
use crate::gateway::{AtomicChange, Latched, NodeImage, PageChange, RecordGroup, Recording};
use crate::node::{NODE_BYTES, NodeMut, NodeView};
use crate::tree::Tree;
use crate::tree::descend::{Approach, Towards};
use crate::tree::read::record::{StoredValue, value_in};
use std::cmp::Reverse;
use std::collections::{HashMap, hash_map::Entry};
use vellum_base::{Extent, PageId};
use vellum_pool::{Interrupt, Misses, OptimisticPage, Pager, PoolError};

/// Where a part of a tree is cut off.
struct Cut {
    /// A node, and its level.
    page: PageId,
    level: u8,
    /// One of its separators. The child after it is freed.
    separator: Vec<u8>,
    /// The extents of that child and all below it.
    extents: Extents,
}

/// Extents that are to be freed, with the levels of nodes.
type Extents = Vec<(Extent, u8)>;

/// How many parts are passed over at once because they cannot be read. On a device that fails, each may take seconds.
const UNREADABLE_MAX: usize = 8;

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
        group.free(self.root(), extents)?;
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
        group.free(self.root(), extents)?;
        result
    }

    /// Frees the end of a tree that is too large to be freed at once: some hundred leaves, their values, and the inner
    /// nodes that lead to nothing else. Returns false, and does nothing, if only that much is left: then
    /// [`destroy_in`](Self::destroy_in) frees the rest. No other handle may use the tree meanwhile or afterwards. A thread
    /// that reads it finds that what has led it there has changed. If some of the end cannot be read, what comes before it
    /// is freed.
    ///
    /// # Errors
    /// If a page cannot be read and nothing else is left to be freed, too many cannot be read, or the log has no room: then
    /// nothing has happened.
    pub fn free_end(&self) -> Result<bool, AccessError> {
        self.pager.admit_changes()?;
        let Some(mut cut) = self.last_cut((self.root(), None), &mut 0)? else { return Ok(false) };
        let mut group = RecordGroup::begin(self.pager);
        group.free(self.root(), std::mem::take(&mut cut.extents))?;
        self.pager.run(|| self.try_cut(&cut, &mut group))?;
        Ok(true)
    }

    /// The last part under a node that can be read: it is cut off the lowest node above level 1 that has more than one child.
    /// None if the node has no such part. Counts what cannot be read.
    fn last_cut(
        &self,
        (page, expected): (PageId, Option<u8>),
        unreadable: &mut usize,
    ) -> Result<Option<Cut>, AccessError> {
        let bytes = self.sound_node(page, expected).inspect_err(|_| *unreadable += 1)?;
        let view = NodeView::new(&bytes[..]);
        let (level, children) = (view.level(), view.children().collect::<Vec<_>>());
        let Some(below) = level.checked_sub(1).filter(|below| *below > 0) else { return Ok(None) };
        let mut result = Ok(None);
        for (index, child) in children.into_iter().enumerate().rev() {
            match self.last_cut((child, Some(below)), unreadable) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                failed => {
                    result = result.and(failed);
                    if *unreadable >= UNREADABLE_MAX {
                        break;
                    }
                    continue;
                }
            }
            // A first child goes with its parent.
            let Some(before) = index.checked_sub(1) else { break };
            let (extents, found) = self.extents_from(child, Some(below));
            let Err(error) = found else {
                return Ok(Some(Cut { page, level, separator: view.key(before), extents }));
            };
            result = result.and(Err(error));
            *unreadable += 1;
            if *unreadable >= UNREADABLE_MAX {
                break;
            }
        }
        result
    }

    fn try_cut(&self, cut: &Cut, group: &mut RecordGroup<'p, P>) -> Result<(), Interrupt> {
        let place = self.node_at(Towards::Key(&cut.separator), cut.level, Approach::Direct, None)?;
        let Some(place) = place.filter(|place| place.node.id() == cut.page) else {
            return Err(damaged(cut.page, "a tree that is being freed has changed"));
        };
        // The node is released first, so no thread reaches pages that are freed after that.
        let mut change = self.change((Latched::latch(place.node)?, group))?;
        let AtomicChange { pages: (node, _), recording, .. } = &mut change;
        let forget = PageChange::RemoveSeparator { separator: &cut.separator };
        recording.apply(node, None, &forget).map_err(|error| damaged(cut.page, error))?;
        change.commit();
        Ok(())
    }

    /// Moves all records to another tree, which is empty, and leaves the root as an empty leaf. The time that this takes
    /// does not depend on the size. No thread may still change the tree, as for [`truncate`](Self::truncate), and none
    /// may use the other one. A thread that reads the tree finds the old records, or nothing.
    ///
    /// # Errors
    /// If a root cannot be read, the other tree is not empty, or the log has no room: then nothing has happened.
    pub fn move_to(&self, other: &Self) -> Result<(), AccessError> {
        self.pager.admit_changes()?;
        Ok(self.pager.run(|| self.try_move_to(other))?)
    }

    fn try_move_to(&self, other: &Self) -> Result<(), Interrupt> {
        let (from, to) = (self.pager.root(self.root())?, self.pager.root(other.root())?);
        let (from, to) = (Latched::latch(from)?, Latched::latch(to)?);
        if !to.view().is_leaf() || to.view().count() > 0 {
            return Err(damaged(to.id(), "an empty tree should be here"));
        }
        let empty = to.page().to_vec();
        let mut change = self.change((from, to))?;
        let AtomicChange { pages: (from, to), recording, .. } = &mut change;
        let mut emptied = [0; NODE_BYTES];
        let replace = PageChange::ReplaceRoot { image: NodeImage::of(&empty) };
        let emptied = Recording::prepare(from, replace, &mut emptied);
        let emptied = emptied.map_err(|error| damaged(from.id(), error))?;
        let contents = PageChange::ReplaceRoot { image: NodeImage::of(from.page()) };
        recording.apply(to, None, &contents).map_err(|error| damaged(to.id(), error))?;
        recording.install(from, &emptied);
        change.commit();
        Ok(())
    }

    /// Whether the tree has so few nodes that [`free_end`](Self::free_end) would not divide it.
    ///
    /// # Errors
    /// If the root cannot be read.
    pub fn is_small(&self) -> Result<bool, AccessError> {
        let root = self.sound_node(self.root(), None)?;
        Ok(NodeView::new(&root[..]).level() < 2)
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
        extents.retain(|(extent, _)| extent.head != self.root());
        let mut group = RecordGroup::begin(self.pager);
        group.free(self.root(), extents)?;
        let mut empty = [0; NODE_BYTES];
        NodeMut::init(&mut empty, 0, None, None, PageId(0))
            .map_err(|error| PoolError::contents(self.root(), error.to_string()))?;
        Ok(self.pager.run(|| self.try_replace_root(&empty, &mut group))?)
    }

    fn try_replace_root(&self, image: &[u8], group: &mut RecordGroup<'p, P>) -> Result<(), Interrupt> {
        let root = Latched::latch(self.pager.root(self.root())?)?;
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
        self.extents_from(self.root(), None)
    }

    /// [`extents`](Self::extents) from a node on, of which the level may be known.
    fn extents_from(&self, page: PageId, level: Option<u8>) -> (Vec<(Extent, u8)>, Result<(), AccessError>) {
        let (mut result, mut found) = (Ok(()), HashMap::new());
        let mut todo = vec![(page, level)];
        while let Some((page, level)) = todo.pop() {
            let step = self.find_extents(page, level, &mut todo, &mut found);
            result = result.and(step);
        }
        let mut extents: Vec<_> = found.into_iter().collect();
        extents.sort_unstable_by_key(|(extent, level)| (Reverse(*level), extent.head));
        let extents = extents.into_iter().map(|(extent, level)| (extent, level.unwrap_or(0))).collect();
        (extents, result)
    }

    /// Brings leaves that are missing into memory, many at a time. The caller, which reads them next, meets all errors.
    fn fetch_children(&self, node: NodeView<&[u8]>) {
        /// How many requests overlap.
        const DEPTH: usize = 128;
        let mut missing: Vec<_> = node.children().filter(|child| self.pager.is_evicted(*child)).collect();
        // The last ones are read first.
        missing.drain(..missing.len().saturating_sub(self.pager.comfortable_pages() as usize));
        if missing.len() > 1
            && let Ok(mut reads) = self.pager.misses(DEPTH)
        {
            missing.sort_unstable();
            reads.begin_read_ahead(&missing);
            reads.reap_all(&mut Vec::new());
        }
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
        if view.level() == 1 {
            self.fetch_children(view);
        }
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
    use std::sync::Arc;
    use vellum_pool::{Pool, PoolOptions};
    use vellum_vm::{Faults, FileOperation, SimulatedFile};

    fn filled<'p>(pool: &'p Pool, entries: u32) -> Tree<'p, Pool> {
        let tree = Tree::create(pool).unwrap();
        for key in 0..entries {
            // Separators that are long enough for three levels of inner nodes, and values of all kinds.
            let name = format!("{:06}{:x<150}{}", key / 6, "", key % 6);
            let value = vec![7; if key.is_multiple_of(50) { 9000 } else { 700 }];
            tree.insert(name.as_bytes(), &value).unwrap();
        }
        tree
    }

    fn allocated(pool: &Pool) -> u64 {
        let mut pages = 0;
        pool.for_each_extent(|extent| pages += u64::from(extent.pages));
        pages
    }

    #[test]
    fn a_large_tree_is_freed_in_parts_and_the_rest_is_sound() {
        let directory = tempfile::tempdir().unwrap();
        let options = PoolOptions::default().pool_bytes(4 << 20);
        let pool = Pool::create(directory.path().join("file"), &options).unwrap();
        let before = allocated(&pool);
        let tree = filled(&pool, 5000);
        assert!(tree.shape().unwrap().height >= 4 && !tree.is_small().unwrap());
        let (mut parts, mut left) = (0, allocated(&pool));
        while tree.free_end().unwrap() {
            parts += 1;
            let now = allocated(&pool);
            assert!(now < left && left - now < 500, "{now} after {left}");
            left = now;
            if parts % 4 != 0 {
                continue;
            }
            let mut pages = 0;
            let report = tree.verify_rest(|extent| {
                pages += u64::from(extent.pages);
                true
            });
            assert!(report.problems.is_empty(), "{:?}", report.problems);
            assert_eq!(pages, left - before, "nothing is leaked or freed too early");
            assert!(!tree.verify(|_| true).problems.is_empty(), "no reader may use it");
        }
        assert!(parts > 10, "{parts} parts");
        tree.destroy().unwrap();
        assert_eq!(allocated(&pool), before);
    }

    /// Everything before it stayed until it could be read.
    #[test]
    fn a_page_that_cannot_be_read_keeps_little_else() {
        for depth in [0, 1, 2] {
            let file = SimulatedFile::new(1);
            let options = PoolOptions::default().pool_bytes(4 << 20).capacity_bytes(1 << 30);
            let pool = Pool::create_on(Arc::new(file.clone()), &options).unwrap();
            let before = allocated(&pool);
            let tree = filled(&pool, 8000);
            let (root, height) = (tree.root(), tree.shape().unwrap().height);
            assert!(height >= 4);
            let all = allocated(&pool) - before;
            // On the way to a leaf near the end, which is the last of none of its ancestors.
            let mut page = root;
            for _ in depth..height - 1 {
                let bytes = tree.sound_node(page, None).unwrap();
                let children: Vec<_> = NodeView::new(&bytes[..]).children().collect();
                page = children[children.len().saturating_sub(2)];
            }
            pool.close().unwrap();
            let bit = page.offset() * 8 + 8 * 2000;
            file.flip_bit(bit);
            let pool = Pool::open_on(Arc::new(file.clone()), &options).unwrap();
            let tree = Tree::open(&pool, root);
            let error = loop {
                match tree.free_end() {
                    Ok(is_freed) => assert!(is_freed, "the page that cannot be read is not freed"),
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, AccessError::Pool(PoolError::Corruption { .. })), "{error}");
            let mut pages = 0;
            let report = tree.verify_rest(|extent| {
                pages += u64::from(extent.pages);
                true
            });
            assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
            let left = allocated(&pool) - before;
            // A node at level 2 keeps about a fourth of the tree.
            let most = if depth < 2 { all / 8 } else { all / 3 };
            assert!(left < most, "{left} pages of {all} are left beside a node at level {depth}");
            assert!(pages <= left && (depth > 0 || pages == left), "{pages} of {left} pages");
            pool.close().unwrap();
            file.flip_bit(bit);
            let pool = Pool::open_on(Arc::new(file), &options).unwrap();
            let tree = Tree::open(&pool, root);
            while tree.free_end().unwrap() {}
            tree.destroy().unwrap();
            assert_eq!(allocated(&pool), before, "nothing is leaked");
        }
    }

    /// On a device that fails, each page may take seconds.
    #[test]
    fn not_all_pages_are_tried_that_cannot_be_read() {
        let file = SimulatedFile::new(1);
        let options = PoolOptions::default().pool_bytes(4 << 20).capacity_bytes(1 << 30);
        let pool = Pool::create_on(Arc::new(file.clone()), &options).unwrap();
        let root = filled(&pool, 8000).root();
        pool.close().unwrap();
        let pool = Pool::open_on(Arc::new(file.clone()), &options.background_eviction(false)).unwrap();
        let tree = Tree::open(&pool, root);
        tree.shape().unwrap();
        let before = file.counts();
        file.set_faults(Faults { read_error: 1.0, ..Faults::default() });
        // What is in memory can be freed.
        let error = loop {
            if let Err(error) = tree.free_end() {
                break error;
            }
        };
        assert!(matches!(error, AccessError::Pool(PoolError::Read { .. })), "{error}");
        let reads = file.counts().of(FileOperation::Read) - before.of(FileOperation::Read);
        // There are 1600 leaves in 80 parts, which are read twice.
        assert!(reads < 450, "{reads} reads");
    }

    #[test]
    fn a_tree_that_moves_to_another_root_leaves_an_empty_one() {
        let directory = tempfile::tempdir().unwrap();
        let pool = Pool::create(directory.path().join("file"), &PoolOptions::default()).unwrap();
        for entries in [0, 3, 5000] {
            let tree = filled(&pool, entries);
            let other = Tree::create(&pool).unwrap();
            tree.move_to(&other).unwrap();
            assert_eq!(tree.verify(|_| true).shape.entries, 0);
            let report = other.verify(|_| true);
            assert!(report.problems.is_empty());
            assert_eq!(report.shape.entries, u64::from(entries));
            assert_eq!(tree.move_to(&other).is_err(), entries > 0, "the other one is not empty");
            tree.insert(b"again", b"value").unwrap();
            assert_eq!(tree.verify(|_| true).shape.entries, 1);
        }
    }

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
