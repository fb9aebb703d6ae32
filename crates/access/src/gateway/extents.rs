//! Extents whose contents are written past the log: large values, and the nodes of bulk loads.
//!
//! No record mentions them until something refers to them. By then they are durable.

use super::allocation::allocate;
use super::atomic::{PageSet, commit_recorded};
use super::record::{Record, written};
use super::{group::RecordGroup, page_change::PageChange, unlinked::UnlinkedExtents};
use crate::{blob::BlobReference, error::AccessError, node::NodeError};
use vellum_base::{Lsn, PageId, PageKind};
use vellum_pool::{AllocatedPage, ExtentWriter, PageWriter, Pager, PoolError};

/// Creates an extent for a large value, in memory. `fill` writes the contents and returns their digest. Nothing refers
/// to the extent yet: the caller [persists](persist) it and refers to it, or [abandons](abandon) it.
pub(crate) fn new_blob<P: Pager>(
    pager: &P,
    pages: u32,
    fill: impl FnOnce(&mut [u8]) -> Result<u64, AccessError>,
) -> Result<(PageId, u64), AccessError> {
    pager.admit_changes()?;
    let mut guard = allocate(pager, pages, PageKind::BLOB)?;
    let digest = fill(guard.page_mut())?;
    let head = guard.id();
    drop(guard.keep(Lsn(0)));
    Ok((head, digest))
}

/// [`new_blob`] before page `limit`; none if there is no room, or `fill` returns false.
pub(crate) fn moved_blob<P: Pager>(
    pager: &P,
    (pages, limit): (u32, PageId),
    fill: impl FnOnce(&mut [u8]) -> Result<bool, AccessError>,
) -> Result<Option<PageId>, AccessError> {
    pager.admit_changes()?;
    let Some(mut guard) = pager.allocate_before(limit, pages, PageKind::BLOB)? else { return Ok(None) };
    if !fill(guard.page_mut())? {
        return Ok(None);
    }
    let head = guard.id();
    drop(guard.keep(Lsn(0)));
    Ok(Some(head))
}

/// Appends bytes to an extent.
pub(crate) type Append<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), PoolError>;

/// [`new_blob`], written past the pool from its beginning to its end: `write` appends the contents.
pub(crate) fn stream_blob<P: Pager>(
    pager: &P,
    pages: u32,
    write: impl FnOnce(Append<'_>) -> Result<u64, AccessError>,
) -> Result<(PageId, u64), AccessError> {
    let mut stream = pager.stream(pages, PageKind::BLOB)?;
    let digest = write(&mut |bytes| stream.append(bytes))?;
    Ok((stream.finish()?, digest))
}

/// Makes the contents of a new large value durable if changes are recorded, because the record that refers to it may
/// become durable at any moment.
pub(crate) fn persist<P: Pager>(pager: &P, reference: BlobReference) -> Result<(), PoolError> {
    pager.persist(&[reference.extent()])
}

/// While one exists, the log keeps what [`persist`] and [`NodeStream::settle`] have recorded of contents, until it has the
/// record that refers to them.
pub(crate) struct PinnedContents<'p, P: Pager>(Option<(&'p P, Lsn)>);

impl<'p, P: Pager> PinnedContents<'p, P> {
    /// Begins, before the contents are recorded.
    pub fn begin(pager: &'p P) -> Self {
        let recording = (pager.records() && pager.records_contents()).then_some(pager);
        Self(recording.map(|pager| (pager, pager.pin_contents())))
    }
}

impl<P: Pager> Drop for PinnedContents<'_, P> {
    fn drop(&mut self) {
        self.0.inspect(|(pager, from)| pager.unpin_contents(*from));
    }
}

/// Frees a new large value to which nothing will refer.
pub(crate) fn abandon<P: Pager>(pager: &P, reference: BlobReference) {
    // No record says that it was allocated, so none needs to say that it is freed. It is allocated, so this does not
    // fail.
    let _ = pager.discard(reference.extent(), Lsn(0));
}

/// Frees a large value of the tree with the root `tree` that a transaction has replaced or removed. No record refers to
/// it any more, undo cannot refer to it again, and no snapshot sees it.
///
/// # Errors
/// If the large value is not allocated.
pub fn free_large<P: Pager>(pager: &P, tree: PageId, reference: BlobReference) -> Result<(), AccessError> {
    let extent = reference.extent();
    if !pager.is_extent(extent) {
        return Err(PoolError::contents(extent.head, "a large value was here, and is not allocated").into());
    }
    if !pager.records() {
        return Ok(pager.discard(extent, Lsn(0))?);
    }
    commit_recorded(pager, (), Record::new(tree), (None, Some(extent)), None);
    Ok(())
}

/// Nodes of a bulk load that are written one after the other. Nodes and adopted extents are freed again unless they are
/// pages of an atomic change that is committed.
pub(crate) struct NodeStream<'p, P: Pager + 'p> {
    pager: &'p P,
    tree: PageId,
    pages: P::Pages<'p>,
    /// The runs of nodes to be recorded, if changes are recorded.
    runs: Vec<(PageId, u32)>,
    blobs: Vec<BlobReference>,
    // Last: the pages and extents are freed before, if they are.
    _unlinked: UnlinkedExtents<'p, P>,
}

/// The error for a node of a bulk load that cannot be written, which would be a bug of the load.
#[cold]
pub(crate) fn not_a_node(root: PageId, error: NodeError) -> AccessError {
    PoolError::contents(root, format!("a bulk load into this tree made a node that is none: {error}")).into()
}

impl<'p, P: Pager> NodeStream<'p, P> {
    pub fn begin(pager: &'p P, tree: PageId) -> Result<Self, PoolError> {
        let unlinked = UnlinkedExtents::begin(pager);
        let pages = pager.pages(PageKind::TREE_NODE)?;
        Ok(Self { pager, tree, pages, runs: Vec::new(), blobs: Vec::new(), _unlinked: unlinked })
    }

    /// Writes the next node: `fill` is given a page that is zero after its header.
    pub fn append(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> Result<(), NodeError>,
    ) -> Result<PageId, AccessError> {
        let tree = self.tree;
        let page = self.pages.append(|page| fill(page).map_err(|error| not_a_node(tree, error)))?;
        if self.pager.records() {
            match self.runs.last_mut().filter(|(first, count)| first.0 + u64::from(*count) == page.0) {
                Some((_, count)) => *count += 1,
                None => self.runs.push((page, 1)),
            }
        }
        Ok(page)
    }

    /// Fetches bytes of the page that will probably be next into the processor's cache.
    #[inline]
    pub fn prefetch_next(&self, at: usize, bytes: usize) {
        self.pages.prefetch_next(at, bytes);
    }

    /// Takes over the extent of a large value.
    pub fn adopt(&mut self, reference: BlobReference) {
        if self.pager.records() {
            self.blobs.push(reference);
        }
        self.pages.adopt(reference.extent());
    }

    /// Waits until all nodes can be read, and, if changes are recorded, until they and the large values are durable.
    /// Returns what is to be recorded of them, as a group that has begun in the log.
    pub fn settle(&mut self) -> Result<RecordGroup<'p, P>, PoolError> {
        self.pages.settle()?;
        let mut group = RecordGroup::begin(self.pager);
        if self.pager.records() {
            // Even if it is a single record: a backup waits in the end until no load finishes.
            group.enter_log();
        }
        for (page, count) in self.runs.drain(..) {
            group.push(self.tree, page, &PageChange::Nodes { count })?;
        }
        for reference in self.blobs.drain(..) {
            group.push(self.tree, reference.head, &written(reference))?;
        }
        Ok(group)
    }
}

/// Keeps all nodes and adopted extents: from now on the tree refers to them.
impl<'p, P: Pager> PageSet<'p, P> for NodeStream<'p, P> {
    type Seen = ();

    fn release(self, _: &'p P, lsn: Lsn) {
        self.pages.keep(lsn);
    }
}
