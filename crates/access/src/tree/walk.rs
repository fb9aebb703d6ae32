//! Looking at a whole tree: how large it is, and whether everything in it is as it should be.

use super::{Tree, blob_reference};
use crate::{
    AccessError,
    blob::{BlobReference, CHUNK_BYTES, read_part},
    node::{NodeView, ValueKind},
};
use vellum_base::{Bytes, Extent, PageHeader, PageId, PageKind};
use vellum_pool::{OptimisticPage, Pager, PoolError, SharedPage};

/// How large a tree is.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TreeShape {
    /// Levels, the leaves' included.
    pub height: u32,
    /// Entries.
    pub entries: u64,
    /// Nodes above the leaves.
    pub inner_nodes: u64,
    /// Leaves.
    pub leaves: u64,
    /// Bytes in use in the leaves.
    pub leaf_bytes_used: u64,
    /// Values in extents of their own.
    pub large_values: u64,
    /// Pages of these extents.
    pub large_value_pages: u64,
    /// Bytes of all keys and values.
    pub data_bytes: u64,
}

/// What [`Tree::verify`] found.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct TreeReport {
    /// How large the tree is, as far as it could be walked.
    pub shape: TreeShape,
    /// What is wrong.
    pub problems: Vec<AccessError>,
}

/// A node to be looked at, and what its parent says of it.
struct Expected {
    page: PageId,
    level: Option<u8>,
    lower: Option<Vec<u8>>,
    upper: Option<Vec<u8>>,
}

impl<P: Pager> Tree<'_, P> {
    /// Walks the whole tree, reads every page of it and checks every checksum and every invariant of nodes,
    /// of what they say of each other, and of large values. `visit` is shown each extent that belongs to
    /// the tree, so that the caller finds pages that belong to nothing or to two things; it returns whether
    /// to go on into it.
    ///
    /// Nobody may change the tree meanwhile: what is in between two states would be reported.
    ///
    /// # Errors
    /// None of its own: what is wrong is in the report.
    pub fn verify(&self, mut visit: impl FnMut(Extent) -> bool) -> TreeReport {
        let mut report = TreeReport::default();
        let mut todo = vec![Expected { page: self.root, level: None, lower: None, upper: None }];
        while let Some(expected) = todo.pop() {
            if !visit(Extent::page(expected.page)) {
                continue;
            }
            if let Err(error) = self.verify_node(&expected, &mut todo, &mut report, &mut visit) {
                report.problems.push(error);
            }
        }
        report
    }

    /// How large the tree is. Others may change it meanwhile; the numbers are then approximate.
    ///
    /// # Errors
    /// If a page cannot be read or is damaged.
    pub fn shape(&self) -> Result<TreeShape, AccessError> {
        let mut shape = TreeShape::default();
        let mut cursor = self.range(std::ops::Bound::Unbounded, std::ops::Bound::Unbounded)?;
        while let Some(entry) = cursor.next()? {
            shape.entries += 1;
            shape.data_bytes += entry.key().len() as u64 + entry.value_length();
            if entry.inline_value().is_none() {
                shape.large_values += 1;
            }
        }
        let root = self.pager.run(|| {
            let root = self.pager.root(self.root)?;
            let level = self.level_of(&root, None)?;
            root.validate().map(|()| level)
        })?;
        shape.height = root as u32 + 1;
        Ok(shape)
    }

    fn verify_node(
        &self,
        expected: &Expected,
        todo: &mut Vec<Expected>,
        report: &mut TreeReport,
        visit: &mut impl FnMut(Extent) -> bool,
    ) -> Result<(), AccessError> {
        let page = expected.page;
        let problem = |what: String| AccessError::Pool(PoolError::contents(page, what));
        // A copy, so that the node is not latched while its blobs are read.
        let bytes = self.pager.shared_certain(Extent::page(page))?.page().to_vec();
        if PageHeader::read(&bytes).kind != PageKind::TREE_NODE {
            return Err(problem("a tree's node should be here".into()));
        }
        let view = NodeView::new(&bytes[..]);
        view.validate().map_err(|fault| problem(fault.to_string()))?;
        if expected.level.is_some_and(|level| level != view.level()) {
            return Err(problem(format!("it has level {}, which its parent has not", view.level())));
        }
        let fence = |(exists, key): (bool, Vec<u8>)| exists.then_some(key);
        let (mut lower, mut upper) = (Vec::new(), Vec::new());
        let lower = fence((view.lower_fence(&mut lower), lower));
        let upper = fence((view.upper_fence(&mut upper), upper));
        if lower != expected.lower || upper != expected.upper {
            return Err(problem("its fences are not the separators of its parent".into()));
        }
        let shape = &mut report.shape;
        shape.height = shape.height.max(view.level() as u32 + 1);
        if view.is_leaf() {
            shape.leaves += 1;
            shape.leaf_bytes_used += view.used_bytes() as u64;
            self.verify_records(view, report, visit);
        } else {
            shape.inner_nodes += 1;
            Self::push_children(view, lower, upper, todo);
        }
        Ok(())
    }

    fn push_children(
        view: NodeView<&[u8]>,
        mut lower: Option<Vec<u8>>,
        upper: Option<Vec<u8>>,
        todo: &mut Vec<Expected>,
    ) {
        for (index, page) in view.children().enumerate() {
            let separator = if index < view.count() {
                let mut key = Vec::new();
                view.append_key(index, &mut key);
                Some(key)
            } else {
                upper.clone()
            };
            let level = view.level().checked_sub(1);
            let lower = std::mem::replace(&mut lower, separator.clone());
            todo.push(Expected { page, level, lower, upper: separator });
        }
    }

    fn verify_records(
        &self,
        view: NodeView<&[u8]>,
        report: &mut TreeReport,
        visit: &mut impl FnMut(Extent) -> bool,
    ) {
        let mut key = Vec::new();
        for index in 0..view.count() {
            key.clear();
            view.append_key(index, &mut key);
            let at = view.value_location(index);
            report.shape.entries += 1;
            report.shape.data_bytes += key.len() as u64;
            if at.kind == ValueKind::Inline {
                report.shape.data_bytes += at.length as u64;
                continue;
            }
            report.shape.large_values += 1;
            let mut reference = Vec::new();
            view.bytes().append_to(at.at, at.length, &mut reference);
            match BlobReference::decode(&reference) {
                None => {
                    let page = PageHeader::read(view.bytes()).extent.head;
                    let problem = PoolError::contents(page, "a reference to a large value is damaged");
                    report.problems.push(problem.into());
                }
                Some(reference) => {
                    report.shape.data_bytes += reference.length;
                    report.shape.large_value_pages += reference.extent().pages as u64;
                    if visit(reference.extent())
                        && let Err(error) = self.verify_blob(&key, reference)
                    {
                        report.problems.push(error);
                    }
                }
            }
        }
    }

    /// Reads a large value chunk by chunk, and the whole extent's checksum if it fits into the pool.
    fn verify_blob(&self, key: &[u8], reference: BlobReference) -> Result<(), AccessError> {
        if reference.extent().pages <= self.pager.comfortable_pages() {
            let guard = self.pager.shared_certain(reference.extent())?;
            if PageHeader::read(guard.page()).kind != PageKind::BLOB {
                let what = "a large value should be here";
                return Err(PoolError::contents(reference.head, what).into());
            }
        }
        let mut sums = None;
        for index in 0..reference.length.div_ceil(CHUNK_BYTES) {
            let read = self.pager.run(|| {
                let leaf = self.leaf(key)?;
                let view = NodeView::new(leaf.bytes());
                let same = match view.get(key) {
                    Some(at) if at.kind == ValueKind::Blob => blob_reference::<P>(&leaf, at)? == reference,
                    _ => false,
                };
                leaf.validate()?;
                if !same {
                    return Ok(None);
                }
                read_part(self.pager, &leaf, reference, &mut sums, index).map(Some)
            })?;
            if read.is_none() {
                let what = "a key of the leaf that refers to it is not found from the root";
                return Err(PoolError::contents(reference.head, what).into());
            }
        }
        Ok(())
    }
}
