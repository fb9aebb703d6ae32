//! Bulk load: building a tree from its leaves up, out of records sorted by key.
//!
//! Leaves are filled one after the other and never searched, and the nodes above grow along with them, one node per
//! level at a time. The pages come from a [`NodeStream`], so leaves are consecutive on storage, and those for which
//! memory has no room are written in large requests while the next ones are being filled.
//!
//! The new nodes are separate from the tree. Other threads may read and change the tree meanwhile; they see nothing of
//! the load until [`BulkLoad::finish`] latches the root's page, makes sure that the tree is still empty, and puts the
//! new root's contents there. A load that ends in any other way frees what it wrote.

use crate::error::{AccessError, damaged};
use crate::gateway::{
    AtomicChange, Latched, NodeImage, NodeStream, PageChange, PinnedContents, RecordGroup, not_a_node,
};
use crate::node::{InnerBuilder, LeafBuilder, NODE_BYTES, NodeView, ValueKind};
use crate::tree::change::blob::write_blob;
use crate::tree::{Tree, change::write::is_inline, check_key};
use std::io::Read;
use vellum_base::{PageHeader, PageId};
use vellum_pool::{Interrupt, OptimisticPage, Pager, PoolError};

/// A tree under construction: see [`Tree::bulk_load`].
#[must_use = "nothing is loaded before `finish`"]
pub struct BulkLoad<'p, P: Pager> {
    tree: Tree<'p, P>,
    pages: NodeStream<'p, P>,
    /// The leaf that is being filled.
    leaf: LeafBuilder,
    /// The byte of the leaf's page from which on the page has been fetched into the processor's cache.
    fetched_from: usize,
    /// The nodes above the leaf that are being filled, from level 1 up.
    inner: Vec<InnerBuilder>,
    fill_percent: u8,
    count: u64,
    /// Whether a page could not be written, so that records are missing in the middle.
    failed: bool,
}

impl<'p, P: Pager> Tree<'p, P> {
    /// Begins to load records in key order into the tree, which must be empty.
    ///
    /// Nodes are filled to `fill_percent` percent (from 50 to 100; other values are clamped to this range). Full nodes
    /// are fewest and fastest to read; free room in them delays the first splits if records will be inserted among them
    /// later.
    ///
    /// # Errors
    /// [`AccessError::NotEmpty`], and if the root cannot be read or no change is allowed.
    ///
    /// ```
    /// # use vellum_access::Tree;
    /// # use vellum_pool::{Pool, PoolOptions};
    /// # let directory = tempfile::tempdir()?;
    /// # let pool = Pool::create(directory.path().join("file"), &PoolOptions::default())?;
    /// let tree = Tree::create(&pool)?;
    /// let mut load = tree.bulk_load(100)?;
    /// for number in 0..1000u64 {
    ///     load.push(&number.to_be_bytes(), b"value")?;
    /// }
    /// assert!(load.push(b"\0", b"value").is_err(), "it does not come after the others");
    /// assert_eq!(tree.get(&7u64.to_be_bytes())?, None);
    /// assert_eq!(load.finish()?, 1000);
    /// assert_eq!(tree.get(&7u64.to_be_bytes())?.as_deref(), Some(&b"value"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn bulk_load(&self, fill_percent: u8) -> Result<BulkLoad<'p, P>, AccessError> {
        self.pager.run(|| self.empty_root())?.ok_or(AccessError::NotEmpty)?;
        let fill_percent = fill_percent.clamp(50, 100);
        Ok(BulkLoad {
            tree: *self,
            pages: NodeStream::begin(self.pager, self.root())?,
            leaf: LeafBuilder::new(fill_percent),
            fetched_from: NODE_BYTES,
            inner: Vec::new(),
            fill_percent,
            count: 0,
            failed: false,
        })
    }
}

impl<P: Pager> BulkLoad<'_, P> {
    /// Appends a record, whose key must be greater than all keys before it.
    ///
    /// # Errors
    /// [`AccessError::KeyOrder`] and [`AccessError::KeyTwice`] if it is not greater, and if key or value is too long:
    /// the load continues as if nothing had been pushed. If a page cannot be written, or there is no space for it, the
    /// load has failed.
    #[inline]
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), AccessError> {
        if self.failed || !self.leaf.push_next(key, value) {
            return self.push_any(key, value);
        }
        self.pushed();
        Ok(())
    }

    /// Appends a record whose value is the next `length` bytes of `source`, without holding all of them in memory at
    /// once.
    ///
    /// # Errors
    /// As for [`push`](Self::push), and if `source` fails or ends too early, after which the load can also continue.
    pub fn push_from(&mut self, key: &[u8], length: u64, source: &mut dyn Read) -> Result<(), AccessError> {
        self.check(key)?;
        if !is_inline(key, length) {
            return self.append_blob(key, length, source);
        }
        let mut value = vec![0; length as usize];
        source.read_exact(&mut value).map_err(AccessError::Source)?;
        self.append(key, &value, ValueKind::Inline)
    }

    /// The number of records that have been pushed.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Puts all records into the tree in one atomic change, and returns their number.
    ///
    /// # Errors
    /// [`AccessError::NotEmpty`] if the tree has received records meanwhile; [`AccessError::LoadFailed`] after an
    /// earlier failure; and if a page cannot be written. The tree is then unchanged, and what was written is freed.
    pub fn finish(self) -> Result<u64, AccessError> {
        self.finish_beside(|| Ok(()))
    }

    /// [`finish`](Self::finish) that calls `begin` when everything has been written, shortly before the tree gets the
    /// records. What that returns is dropped when the tree has them.
    ///
    /// # Errors
    /// As for `finish`, and those of `begin`, with the same effect.
    pub fn finish_beside<G, E: From<AccessError>>(
        self,
        begin: impl FnOnce() -> Result<G, E>,
    ) -> Result<u64, E> {
        self.finish_for(None, begin)
    }

    /// [`finish`](Self::finish) as part of the transaction with this number in the log, which has changed something
    /// before. No other transaction may see the tree unless this one commits. If it does not, undo leaves the tree
    /// alone, and it is freed as a whole.
    ///
    /// # Errors
    /// As for `finish`.
    pub fn finish_in(self, transaction: u64) -> Result<u64, AccessError> {
        self.finish_for(Some(transaction), || Ok(()))
    }

    fn finish_for<G, E: From<AccessError>>(
        mut self,
        transaction: Option<u64>,
        begin: impl FnOnce() -> Result<G, E>,
    ) -> Result<u64, E> {
        if self.failed {
            return Err(AccessError::LoadFailed.into());
        }
        if self.count == 0 {
            return begin().map(|_| 0);
        }
        let top = self.complete()?;
        let _pinned = PinnedContents::begin(self.tree.pager);
        let mut group = self.pages.settle().map_err(AccessError::from)?;
        transaction.into_iter().for_each(|number| group.of_transaction(number));
        let Self { tree, pages, count, .. } = self;
        let mut pages = Some(pages);
        let _begun = begin()?;
        let installed = tree.pager.run(|| tree.try_install(&top, &mut group, &mut pages));
        if installed.map_err(AccessError::from)? { Ok(count) } else { Err(AccessError::NotEmpty.into()) }
    }

    /// Appends a record of any kind.
    fn push_any(&mut self, key: &[u8], value: &[u8]) -> Result<(), AccessError> {
        self.check(key)?;
        if is_inline(key, value.len() as u64) {
            self.append(key, value, ValueKind::Inline)
        } else {
            self.append_blob(key, value.len() as u64, &mut &value[..])
        }
    }

    fn check(&self, key: &[u8]) -> Result<(), AccessError> {
        if self.failed {
            return Err(AccessError::LoadFailed);
        }
        check_key(key)?;
        if self.leaf.is_next(key) { Ok(()) } else { Err(self.misplaced(key)) }
    }

    #[cold]
    fn misplaced(&self, key: &[u8]) -> AccessError {
        let before = self.leaf.last_key().unwrap_or_default();
        let number = self.count + 1;
        if key == before {
            AccessError::KeyTwice { key: key.to_vec(), number }
        } else {
            AccessError::KeyOrder { key: key.to_vec(), before, number }
        }
    }

    fn append_blob(&mut self, key: &[u8], length: u64, source: &mut dyn Read) -> Result<(), AccessError> {
        let reference = write_blob(self.tree.pager, length, source)?;
        self.pages.adopt(reference);
        self.append(key, &reference.encode(), ValueKind::Blob)
    }

    fn append(&mut self, key: &[u8], value: &[u8], kind: ValueKind) -> Result<(), AccessError> {
        let root = self.tree.root();
        let refused = |error| not_a_node(root, error);
        if !self.leaf.push(key, value, kind).map_err(refused)? {
            self.close_leaf(key).inspect_err(|_| self.failed = true)?;
            self.leaf.push(key, value, kind).map_err(refused)?;
            self.fetched_from = NODE_BYTES;
        }
        self.pushed();
        Ok(())
    }

    /// Counts a record that is in the leaf.
    #[inline]
    fn pushed(&mut self) {
        self.count += 1;
        if self.leaf.heap_start() < self.fetched_from {
            self.fetch_page();
        }
    }

    /// Prefetches the page for the leaf into the processor's cache, a part at a time, somewhat ahead of the records:
    /// otherwise writing the page waits for memory that the kernel has cleared on another processor.
    fn fetch_page(&mut self) {
        /// The size of a part, and of the first part: headers, hints, and the slots of a leaf of large records.
        const PART: usize = 128;
        const FIRST: usize = 256;
        if self.fetched_from == NODE_BYTES {
            self.pages.prefetch_next(0, FIRST);
        }
        let ahead = self.leaf.heap_start().saturating_sub(PART) / PART * PART;
        // Finally the slots in between.
        let from = if self.leaf.room() < 2 * PART { FIRST } else { ahead.max(FIRST) };
        self.pages.prefetch_next(from, self.fetched_from.saturating_sub(from));
        self.fetched_from = from;
    }

    /// Writes the leaf, which is complete because it has no room for the record with the key `next`.
    fn close_leaf(&mut self, next: &[u8]) -> Result<(), AccessError> {
        let plan = self.leaf.plan(Some(next));
        let page = self.pages.append(|page| self.leaf.write(&plan, page))?;
        let fence = self.leaf.restart(plan);
        self.add_child(0, page, fence)
    }

    /// Adds a child and the separator after it to the node that is being filled at level `index` + 1.
    fn add_child(&mut self, index: usize, child: PageId, separator: Vec<u8>) -> Result<(), AccessError> {
        let (mut index, mut child, mut separator) = (index, child, separator);
        loop {
            if index == self.inner.len() {
                let level = u8::try_from(index + 1)
                    .map_err(|_| PoolError::contents(self.tree.root(), "the tree is too high"))?;
                self.inner.push(InnerBuilder::new(level, self.fill_percent));
            }
            let Some(builder) = self.inner.get_mut(index) else { return Ok(()) };
            let Err(refused) = builder.push(child, separator) else { return Ok(()) };
            let empty = || PoolError::contents(self.tree.root(), "a node without children");
            let plan = builder.plan().ok_or_else(empty)?;
            let page = self.pages.append(|page| builder.write(&plan, page))?;
            let fence = builder.take(plan);
            // The builder is empty, so it has room for the refused child.
            let pushed = builder.push(child, refused);
            debug_assert!(pushed.is_ok(), "an empty node has room for a child");
            (index, child, separator) = (index + 1, page, fence);
        }
    }

    /// Writes the last node of each level except the highest, and returns the contents of the highest.
    fn complete(&mut self) -> Result<Vec<u8>, AccessError> {
        let root = self.tree.root();
        let refused = |error| not_a_node(root, error);
        let mut top = vec![0; NODE_BYTES];
        let plan = self.leaf.plan(None);
        if self.inner.is_empty() {
            self.leaf.write(&plan, &mut top).map_err(refused)?;
            return Ok(top);
        }
        let mut child = self.pages.append(|page| self.leaf.write(&plan, page))?;
        let mut index = 0;
        loop {
            let is_highest = index + 1 == self.inner.len();
            let Some(builder) = self.inner.get_mut(index) else { return Ok(top) };
            match builder.last_plan(child) {
                Ok(plan) if is_highest => builder.write(&plan, &mut top).map_err(refused)?,
                Ok(plan) => child = self.pages.append(|page| builder.write(&plan, page))?,
                Err(first) => {
                    let page = self.pages.append(|page| builder.write(&first, page))?;
                    let fence = builder.take(first);
                    self.add_child(index + 1, page, fence)?;
                    continue;
                }
            }
            index += 1;
        }
    }
}

impl<'p, P: Pager> Tree<'p, P> {
    /// The root, if the tree is empty.
    fn empty_root(&self) -> Result<Option<P::Optimistic<'p>>, Interrupt> {
        let root = self.pager.root(self.root())?;
        self.level_of(&root, None)?;
        let empty = is_empty(NodeView::new(root.bytes()));
        root.validate().map(|()| empty.then_some(root))
    }

    /// Puts contents into the root if the tree is empty, and keeps the pages; false if the tree is not empty.
    fn try_install(
        &self,
        top: &[u8],
        group: &mut RecordGroup<'p, P>,
        pages: &mut Option<NodeStream<'p, P>>,
    ) -> Result<bool, Interrupt> {
        let Some(root) = self.empty_root()? else { return Ok(false) };
        let root = Latched::latch(root)?;
        let Some(pages) = pages.take() else { return Ok(false) };
        // Snapshots that are shown leaves as they were are shown what was loaded: no leaf has the place of the empty root
        // any more, unless it is the root itself.
        let is_leaf = NodeView::new(top).is_leaf();
        let viewed = if is_leaf { *self } else { Self { view: None, ..*self } };
        if is_leaf && self.view.is_some() && PageHeader::read(root.page()).lsn < self.pager.kept_from() {
            self.pager.keep_page(self.root(), top);
        }
        let mut change = viewed.change((root, (group, pages)))?;
        let AtomicChange { pages: (root, _), recording, .. } = &mut change;
        debug_assert!(is_empty(root.view()), "latching fails if the root has changed");
        let contents = PageChange::ReplaceRoot { image: NodeImage::of(top) };
        recording.apply(root, None, &contents).map_err(|error| damaged(root.id(), error))?;
        change.commit();
        Ok(true)
    }
}

fn is_empty<B: vellum_base::Bytes>(root: NodeView<B>) -> bool {
    root.is_leaf() && root.count() == 0
}
