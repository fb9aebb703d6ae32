//! Walks of a whole tree: its size, and whether it is sound.

mod walk;

use crate::blob::{BlobCheck, BlobReference};
use crate::tree::descend::{Approach, Descent, Towards};
use crate::tree::read::record::{StoredValue, value_in};
use crate::tree::{Tree, sound::Expected};
use crate::{error::AccessError, node::NodeView};
use vellum_base::{Extent, PAGE_SIZE, PageHeader};
use vellum_pool::{OptimisticPage, Pager, PoolError, SharedPage};
use vellum_vm::AlignedBuffer;

/// A value that does not fit into the pool is read in pieces of this many pages.
const PIECE_PAGES: u32 = 256;

/// The size of a tree.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TreeShape {
    /// The number of levels, including the leaves.
    pub height: u32,
    /// The number of entries.
    pub entries: u64,
    /// The number of nodes above the leaves.
    pub inner_nodes: u64,
    /// The number of leaves.
    pub leaves: u64,
    /// Bytes in use in the leaves.
    pub leaf_bytes_used: u64,
    /// The number of values in extents of their own.
    pub large_values: u64,
    /// The number of pages of these extents.
    pub large_value_pages: u64,
    /// The bytes of all keys and values.
    pub data_bytes: u64,
}

impl TreeShape {
    fn add(&mut self, node: NodeView<&[u8]>) {
        if !node.is_leaf() {
            self.inner_nodes += 1;
            return;
        }
        self.leaves += 1;
        self.leaf_bytes_used += node.used_bytes() as u64;
        let mut key = Vec::new();
        for index in 0..node.count() {
            key.clear();
            node.append_key(index, &mut key);
            self.entries += 1;
            self.data_bytes += key.len() as u64;
            match value_in(node, index) {
                Some(StoredValue::Blob(reference)) => {
                    self.large_values += 1;
                    self.large_value_pages += reference.extent().pages as u64;
                    self.data_bytes += reference.length;
                }
                Some(StoredValue::Inline(value)) => self.data_bytes += value.len() as u64,
                None => {}
            }
        }
    }
}

/// The findings of [`Tree::verify`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct TreeReport {
    /// The size of the tree, as far as it could be walked.
    pub shape: TreeShape,
    /// The problems found.
    pub problems: Vec<AccessError>,
}

impl<P: Pager> Tree<'_, P> {
    /// Walks the whole tree, reads all its pages and checks every checksum and every invariant of nodes, of their
    /// references to each other, and of large values. `visit` is called with each extent of the tree, so that the
    /// caller can find pages that belong to nothing or to two owners; it returns whether to go on into the extent.
    ///
    /// Other threads may change the tree meanwhile. What is in it all the while is shown and checked; of what is not, only
    /// some. An extent that has been freed may be shown, and a second time if it has become part of the tree again: see
    /// [`has_changed_hands`](vellum_pool::Allocation::has_changed_hands). If the root is freed, there are problems that are
    /// none.
    ///
    /// # Errors
    /// None: all problems are in the report. Nodes below a damaged node are not checked.
    ///
    /// ```
    /// use std::collections::HashSet;
    /// use vellum_access::Tree;
    /// use vellum_pool::{Pool, PoolOptions};
    ///
    /// let directory = tempfile::tempdir()?;
    /// let pool = Pool::create(directory.path().join("file"), &PoolOptions::default())?;
    /// let tree = Tree::create(&pool)?;
    /// tree.upsert(b"key", &[7; 100_000])?;
    ///
    /// let mut owned: HashSet<_> = pool.own_extents().into_iter().collect();
    /// let report = tree.verify(|extent| owned.insert(extent)); // false: it belongs to something else too
    /// assert!(report.problems.is_empty());
    /// assert_eq!((report.shape.entries, report.shape.large_values), (1, 1));
    /// pool.for_each_extent(|extent| assert!(owned.contains(&extent), "{extent} is leaked"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn verify(&self, visit: impl FnMut(Extent) -> bool) -> TreeReport {
        let mut walk = walk::Walk { tree: self, report: TreeReport::default(), visit };
        walk.whole();
        walk.report
    }

    /// [`verify`](Self::verify) of a tree of which some may have been [freed](Self::free_end) already, or is freed
    /// meanwhile. No thread may change it otherwise.
    pub fn verify_rest(&self, mut visit: impl FnMut(Extent) -> bool) -> TreeReport {
        let mut report = TreeReport::default();
        let mut todo = vec![Expected::root_of_rest(self.root())];
        while let Some(expected) = todo.pop() {
            if !visit(Extent::page(expected.page)) {
                continue;
            }
            let page = expected.page;
            if let Err(error) = self.verify_node(expected, &mut todo, &mut report, &mut visit)
                && !self.pager.has_changed_hands(Extent::page(page))
            {
                report.problems.push(error);
            }
        }
        report
    }

    /// The size of the tree. If it changes meanwhile, the numbers are approximate.
    ///
    /// # Errors
    /// If a page cannot be read or is damaged.
    pub fn shape(&self) -> Result<TreeShape, AccessError> {
        let root_level = self.pager.run(|| {
            let root = Descent::<P>::begin(self.pager, self.root())?;
            root.node.validate().map(|()| root.level)
        })?;
        let mut shape = TreeShape { height: root_level as u32 + 1, ..TreeShape::default() };
        for level in 0..=root_level {
            self.for_each_node(level, |node| shape.add(node))?;
        }
        Ok(shape)
    }

    /// Shows copies of all nodes of a level to `visit`, in the order of their keys.
    fn for_each_node(&self, level: u8, mut visit: impl FnMut(NodeView<&[u8]>)) -> Result<(), AccessError> {
        let approach = if level == 0 { Approach::InPassing } else { Approach::Direct };
        let (mut copy, mut fence, mut towards_first) = (Vec::new(), Vec::new(), true);
        loop {
            let towards = if towards_first { Towards::First } else { Towards::After(&fence) };
            if self.copy_node(towards, level, (approach, true), &mut copy)? != Some(true) {
                return Ok(());
            }
            let node = NodeView::new(&copy[..]);
            visit(node);
            fence.clear();
            if !node.upper_fence(&mut fence) {
                return Ok(());
            }
            towards_first = false;
        }
    }

    fn verify_node(
        &self,
        expected: Expected,
        todo: &mut Vec<Expected>,
        report: &mut TreeReport,
        visit: &mut impl FnMut(Extent) -> bool,
    ) -> Result<(), AccessError> {
        let bytes = self.expected_node(&expected)?;
        let view = NodeView::new(&bytes[..]);
        report.shape.height = report.shape.height.max(view.level() as u32 + 1);
        report.shape.add(view);
        if view.is_leaf() {
            self.verify_blobs(view, (None, true), report, visit);
        } else {
            todo.extend(expected.children(view));
        }
        Ok(())
    }

    /// Checks the large values of a leaf whose keys lie after `from`. Perhaps the tree `is_freed` meanwhile.
    fn verify_blobs(
        &self,
        leaf: NodeView<&[u8]>,
        (from, is_freed): (Option<&[u8]>, bool),
        report: &mut TreeReport,
        visit: &mut impl FnMut(Extent) -> bool,
    ) {
        for index in 0..leaf.count() {
            let key = leaf.key(index);
            if from.is_some_and(|from| *key <= *from) {
                continue;
            }
            let verified = match value_in(leaf, index) {
                Some(StoredValue::Blob(reference)) if visit(reference.extent()) => {
                    let verified = self.verify_blob(&key, reference);
                    // It may have been replaced and freed meanwhile, or freed with the whole tree.
                    let may_be_gone = |error| match self.refers_to(&key, reference)? {
                        true if !is_freed || !self.pager.has_changed_hands(reference.extent()) => Err(error),
                        _ => Ok(()),
                    };
                    verified.or_else(may_be_gone)
                }
                Some(_) => Ok(()),
                None => {
                    let page = PageHeader::read(leaf.bytes()).extent.head;
                    Err(PoolError::contents(page, "a reference to a large value is damaged").into())
                }
            };
            report.problems.extend(verified.err());
        }
    }

    /// Whether a record refers to this large value.
    fn refers_to(&self, key: &[u8], reference: BlobReference) -> Result<bool, AccessError> {
        let newest = Self { view: None, ..*self };
        newest.with_large(key, |_, found| Ok(found.is_some_and(|found| found.reference == reference)))
    }

    /// Reads a whole large value and checks it.
    fn verify_blob(&self, key: &[u8], reference: BlobReference) -> Result<(), AccessError> {
        let extent = reference.extent();
        let newest = Self { view: None, ..*self };
        let mut check = BlobCheck::new(reference);
        let in_memory = extent.pages <= self.pager.comfortable_pages();
        if in_memory {
            check.update(self.pager.shared_certain(extent)?.page());
        }
        let mut page = if in_memory { extent.pages } else { 0 };
        while page < extent.pages {
            let pages = PIECE_PAGES.min(extent.pages - page);
            let mut piece = AlignedBuffer::new(pages as usize * PAGE_SIZE);
            let found = newest.with_large(key, |leaf, found| {
                if found.is_none_or(|found| found.reference != reference) {
                    return Ok(false);
                }
                self.pager.read_part(leaf, extent, page, &mut piece).map(|()| true)
            })?;
            if !found {
                let what = "a key of the leaf that refers to it is not found from the root";
                return Err(PoolError::contents(reference.head, what).into());
            }
            check.update(&piece);
            page += pages;
        }
        // A value that fits was checked as a whole when it was read in, or has not been written yet.
        Ok(check.finish(!in_memory)?)
    }
}
