//! Finds the contents of a file without its superblocks and its space map: each page's header says what it is, and has
//! a checksum.
//!
//! A scan tells which pages are sound, but not which are in use: freed pages keep their old bytes until they are
//! reused. A node counts if it is the root of a tree that the catalog names, or such a tree refers to it. If the
//! catalog is lost, each sound node that has no fences, and to which no other node refers, counts as a root: only roots
//! have no fences.

use crate::{Error, Result, catalog};
use std::collections::BTreeSet;
use vellum_access::node::{NodeView, ValueKind};
use vellum_base::{ChecksumStream, Extent, PAGE_SIZE, PageHeader, PageId, PageKind, verify_header};
use vellum_pool::PoolError;
use vellum_vm::{AlignedBuffer, File};

/// How much is read at once, in pages.
const CHUNK_PAGES: u64 = 256;
/// The bytes of a page that its checksum does not cover: the checksum itself.
const CHECKSUM_BYTES: usize = 8;

/// The result of scanning a file.
#[derive(Default)]
pub(crate) struct Scan {
    /// How many pages were examined.
    pub pages: u64,
    /// How many of them are sound nodes of trees, and how many large values are sound.
    pub nodes: u64,
    pub values: u64,
    /// Everything in order: sound nodes and values, and each other page by itself.
    pub extents: Vec<Extent>,
    /// Sound nodes without fences to which no other node refers.
    pub roots: Vec<PageId>,
}

impl Scan {
    /// Examines all pages of a file from `first` on that lie in extents for which `counts` returns true.
    ///
    /// # Errors
    /// If the size of the file cannot be determined. Pages that cannot be read count as damaged.
    pub fn of(file: &dyn File, first: PageId, counts: impl Fn(Extent) -> bool) -> Result<Self> {
        let failed = |source| PoolError::Read { extent: Extent::page(PageId(0)), source };
        let pages = file.size().map_err(failed)? / PAGE_SIZE as u64;
        let (mut scan, mut only_children) = (Self::default(), BTreeSet::new());
        let mut chunk = Chunk::new(file, pages);
        let mut page = first;
        while page.0 < pages {
            let mut extent = Extent::page(page);
            let bytes = chunk.page(page);
            let header = PageHeader::read(bytes);
            if header.kind == PageKind::TREE_NODE && counts(extent) && is_node(bytes, page) {
                scan.nodes += 1;
                let node = NodeView::new(bytes);
                if node.fences() == (None, None) {
                    scan.roots.push(page);
                }
                // The only child of a node has the fences of its parent, which may be none.
                if !node.is_leaf() && node.count() == 0 {
                    only_children.extend(node.children());
                }
            } else if header.kind == PageKind::BLOB
                && header.extent.head == page
                && header.extent.pages > 0
                && header.extent.end().0 <= pages
                && counts(header.extent)
                && is_value(file, header.extent)
            {
                scan.values += 1;
                extent = header.extent;
            }
            scan.extents.push(extent);
            page = extent.end();
        }
        scan.pages = pages.saturating_sub(first.0);
        scan.roots.retain(|root| !only_children.contains(root));
        Ok(scan)
    }

    /// The root of the catalog among the roots: that of the first tree of the file, or else the first that holds only
    /// what a catalog does.
    pub fn catalog(&self, file: &dyn File, first: PageId) -> Option<PageId> {
        let is_catalog = |root: &PageId| {
            let records = records(file, *root);
            records.iter().all(|(key, value)| catalog::is_record(key, value))
                && (!records.is_empty() || *root == first)
        };
        let first = self.roots.iter().find(|root| **root == first && is_catalog(root));
        first.or_else(|| self.roots.iter().find(|root| is_catalog(root))).copied()
    }
}

/// The records of a small tree, as far as its nodes are sound, with their values if these are in the leaves; other
/// records have none.
fn records(file: &dyn File, root: PageId) -> Vec<(Vec<u8>, Vec<u8>)> {
    /// More nodes than any catalog has: a larger tree is not one.
    const NODES_MAX: usize = 1 << 16;
    let (mut records, mut todo, mut seen) = (Vec::new(), vec![root], BTreeSet::new());
    let mut buffer = AlignedBuffer::new(PAGE_SIZE);
    while let Some(page) = todo.pop() {
        if seen.len() >= NODES_MAX || !seen.insert(page) || file.read_to(page.offset(), &mut buffer).is_err()
        {
            continue;
        }
        if !is_node(&buffer, page) {
            continue;
        }
        let node = NodeView::new(&buffer[..]);
        if !node.is_leaf() {
            todo.extend(node.children());
            continue;
        }
        for index in 0..node.count() {
            let value = node.value_location(index);
            let bytes = buffer.get(value.at..value.at + value.length).unwrap_or_default();
            let bytes = if value.kind == ValueKind::Inline { bytes } else { &[] };
            records.push((node.key(index), bytes.to_vec()));
        }
        // Stop reading a tree that is no catalog.
        if records.last().is_some_and(|(key, value)| !catalog::is_record(key, value)) {
            break;
        }
    }
    records
}

/// Whether these bytes are a sound node, of this page.
fn is_node(bytes: &[u8], page: PageId) -> bool {
    verify_header(bytes, Extent::page(page)).is_ok_and(|header| header.kind == PageKind::TREE_NODE)
        && NodeView::new(bytes).validate().is_ok()
}

/// Whether an extent holds a sound value; its first page says that it does.
fn is_value(file: &dyn File, extent: Extent) -> bool {
    let (mut buffer, mut sum) =
        (AlignedBuffer::new(CHUNK_PAGES as usize * PAGE_SIZE), ChecksumStream::default());
    let (mut page, mut stored) = (extent.head.0, None);
    while page < extent.end().0 {
        let bytes = (extent.end().0 - page).min(CHUNK_PAGES) as usize * PAGE_SIZE;
        let Some(target) = buffer.get_mut(..bytes) else { return false };
        if file.read_to(PageId(page).offset(), target).is_err() {
            return false;
        }
        let mut rest = &*target;
        if stored.is_none() {
            stored = rest.split_off(..CHECKSUM_BYTES).and_then(|stored| stored.first_chunk().copied());
        }
        sum.update(rest);
        page += (bytes / PAGE_SIZE) as u64;
    }
    stored.map(u64::from_le_bytes) == Some(sum.finish())
}

/// A part of a file in memory.
struct Chunk<'f> {
    file: &'f dyn File,
    pages: u64,
    buffer: AlignedBuffer,
    /// The pages that the buffer holds.
    first: u64,
    end: u64,
}

impl<'f> Chunk<'f> {
    fn new(file: &'f dyn File, pages: u64) -> Self {
        Self { file, pages, buffer: AlignedBuffer::new(CHUNK_PAGES as usize * PAGE_SIZE), first: 0, end: 0 }
    }

    /// A page of the file; zeroes if it cannot be read.
    fn page(&mut self, page: PageId) -> &[u8] {
        if !(self.first..self.end).contains(&page.0) {
            self.load(page.0);
        }
        let at = (page.0 - self.first) as usize * PAGE_SIZE;
        self.buffer.get(at..at + PAGE_SIZE).unwrap_or(&[0; PAGE_SIZE])
    }

    fn load(&mut self, first: u64) {
        (self.first, self.end) = (first, (first + CHUNK_PAGES).min(self.pages));
        let pages = (self.end - first) as usize;
        let Some(target) = self.buffer.get_mut(..pages * PAGE_SIZE) else { return };
        if self.file.read_to(PageId(first).offset(), target).is_ok() {
            return;
        }
        // A bad block must not hide its neighbours.
        for (number, page) in (first..).zip(target.chunks_exact_mut(PAGE_SIZE)) {
            if self.file.read_to(PageId(number).offset(), page).is_err() {
                page.fill(0);
            }
        }
    }
}

/// Whether a scan can make up for this error of the superblocks or the space map.
pub(crate) fn is_made_up_for(error: &Error) -> bool {
    matches!(
        error,
        Error::Pool(PoolError::Corruption { .. } | PoolError::NotVellum { .. } | PoolError::Truncated { .. })
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Database, Options};
    use std::sync::Arc;
    use vellum_vm::SimulatedDisk;

    /// Shows that the tests of salvage would detect a scan that does not ask the space map.
    #[test]
    fn a_dropped_table_is_found_only_if_the_space_map_is_not_asked() {
        let disk = SimulatedDisk::new(1);
        let options =
            Options::default().pool_bytes(1 << 20).capacity_bytes(1 << 30).background_checkpoints(false);
        let database = Database::create_in(Arc::new(disk.clone()), "data", &options).unwrap();
        for name in ["kept", "dropped"] {
            let table = database.create_table(name).unwrap();
            for key in 0..2000u32 {
                table.put(key.to_be_bytes(), [7; 50]).unwrap();
            }
        }
        database.checkpoint().unwrap();
        database.drop_table("dropped").unwrap();
        database.checkpoint().unwrap();
        let (file, pool) = (disk.file("data"), database.inner().pool());
        let first = vellum_pool::Remains::first_page();
        let scan = Scan::of(&file, first, |extent| pool.is_extent(extent)).unwrap();
        let catalog = catalog::tree(pool).root();
        assert_eq!(scan.catalog(&file, first), Some(catalog));
        let kept = catalog::find(catalog::tree(pool), "kept").unwrap().unwrap().root;
        assert_eq!(scan.roots, [catalog, kept]);
        let without = Scan::of(&file, first, |_| true).unwrap();
        assert!(without.roots.len() > 2 && without.nodes > scan.nodes, "{:?}", without.roots);
        // Each page is in one extent.
        let ends = without.extents.iter().map(|extent| extent.end());
        let begins = without.extents.iter().map(|extent| extent.head).skip(1);
        assert!(ends.zip(begins).all(|(end, begin)| end == begin));
    }
}
