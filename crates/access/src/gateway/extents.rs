//! Extents whose contents are written past the log: large values, and the nodes of bulk loads.

use super::{atomic::Recording, page_change::PageChange};
use crate::{AccessError, node::NodeError};
use vellum_base::{Extent, HEADER_BYTES, Lsn, PageHeader, PageId, PageKind, checksum, stamp_lsn};
use vellum_pool::{AllocatedPage, ExtentWriter, PageWriter, Pager, PoolError};

/// Makes an extent for a large value of the tree `tree`, in memory. `fill` writes the contents and returns their digest.
/// Nothing refers to the extent yet: the caller refers to it, or discards it.
pub(crate) fn new_blob<P: Pager>(
    pager: &P,
    tree: PageId,
    pages: u32,
    fill: impl FnOnce(&mut [u8]) -> Result<u64, AccessError>,
) -> Result<(PageId, u64), AccessError> {
    let mut guard = pager.allocate(pages, PageKind::BLOB)?;
    let digest = fill(guard.page_mut())?;
    let head = guard.id();
    let lsn = record_written(pager, tree, Extent { head, pages }, digest);
    drop(guard.keep(lsn));
    Ok((head, digest))
}

/// Appends bytes to an extent.
pub(crate) type Append<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), PoolError>;

/// [`new_blob`], written past the pool from its beginning to its end: `write` appends the contents.
pub(crate) fn stream_blob<P: Pager>(
    pager: &P,
    tree: PageId,
    pages: u32,
    write: impl FnOnce(Append<'_>) -> Result<u64, AccessError>,
) -> Result<(PageId, u64), AccessError> {
    let mut stream = pager.stream(pages, PageKind::BLOB)?;
    let digest = write(&mut |bytes| stream.append(bytes))?;
    let head = stream.finish()?;
    let lsn = record_written(pager, tree, Extent { head, pages }, digest);
    pager.note_allocated(Extent { head, pages }, lsn);
    Ok((head, digest))
}

/// Frees an extent to which nothing of the tree `tree` refers any more, without reading it in.
pub(crate) fn discard<P: Pager>(pager: &P, tree: PageId, extent: Extent) -> Result<(), PoolError> {
    // Recorded before it is freed, so that the record of its next allocation comes later.
    let mut lsn = Lsn(0);
    if pager.records() && pager.is_extent(extent) {
        lsn =
            Recording::record_alone(pager, tree, &[(extent.head, PageChange::Free { pages: extent.pages })]);
    }
    pager.discard(extent, lsn)
}

fn record_written<P: Pager>(pager: &P, tree: PageId, extent: Extent, digest: u64) -> Lsn {
    if !pager.records() {
        return Lsn(0);
    }
    let change = PageChange::Write { kind: PageKind::BLOB, pages: extent.pages, digest };
    Recording::record_alone(pager, tree, &[(extent.head, change)])
}

/// Nodes of a bulk load that are written one after the other. Nodes and adopted extents are freed again unless kept.
pub(crate) struct NodeStream<'p, P: Pager + 'p> {
    // Before the pages, so that it is dropped before they are freed.
    written: Written<'p, P>,
    pages: P::Pages<'p>,
}

/// The error for a node of a bulk load that cannot be written, which would be a fault of the load.
#[cold]
pub(crate) fn not_a_node(root: PageId, error: NodeError) -> AccessError {
    PoolError::contents(root, format!("a bulk load into this tree made a node that is none: {error}")).into()
}

/// The extents that have been recorded as written, and are recorded as freed unless they are kept.
struct Written<'p, P: Pager> {
    pager: &'p P,
    tree: PageId,
    extents: Vec<Extent>,
}

impl<'p, P: Pager> NodeStream<'p, P> {
    pub fn begin(pager: &'p P, tree: PageId) -> Result<Self, PoolError> {
        let pages = pager.pages(PageKind::TREE_NODE)?;
        Ok(Self { written: Written { pager, tree, extents: Vec::new() }, pages })
    }

    /// Writes the next node: `fill` is given a page that is zero after its header.
    pub fn append(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> Result<(), NodeError>,
    ) -> Result<PageId, AccessError> {
        let written = &mut self.written;
        self.pages.append(|page| {
            fill(page).map_err(|error| not_a_node(written.tree, error))?;
            if written.pager.records() {
                written.record(page);
            }
            Ok(())
        })
    }

    /// Fetches bytes of the page that will probably be next into the processor's cache.
    #[inline]
    pub fn prefetch_next(&self, at: usize, bytes: usize) {
        self.pages.prefetch_next(at, bytes);
    }

    /// Takes over an extent of a large value.
    pub fn adopt(&mut self, extent: Extent) {
        if self.written.pager.records() {
            self.written.extents.push(extent);
        }
        self.pages.adopt(extent);
    }

    /// Waits until all nodes can be read.
    pub fn settle(&mut self) -> Result<(), PoolError> {
        self.pages.settle()
    }

    /// Keeps all nodes and adopted extents: from now on the tree refers to them.
    pub fn keep(self) {
        let Self { mut written, pages } = self;
        written.extents.clear();
        pages.keep(Lsn(0));
    }
}

impl<P: Pager> Written<'_, P> {
    /// Records a node; its LSN becomes the record's number.
    fn record(&mut self, page: &mut [u8]) {
        let extent = PageHeader::read(page).extent;
        let digest = checksum(page.get(HEADER_BYTES..).unwrap_or_default());
        let change = PageChange::Write { kind: PageKind::TREE_NODE, pages: 1, digest };
        stamp_lsn(page, Recording::record_alone(self.pager, self.tree, &[(extent.head, change)]));
        self.extents.push(extent);
    }
}

impl<P: Pager> Drop for Written<'_, P> {
    fn drop(&mut self) {
        for Extent { head, pages } in self.extents.drain(..) {
            Recording::record_alone(self.pager, self.tree, &[(head, PageChange::Free { pages })]);
        }
    }
}
