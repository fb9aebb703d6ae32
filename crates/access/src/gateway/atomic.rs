//! The atomic change: the latches on what is changed together, and the record of what is done.

use super::page_change::{NodeImage, PageChange, ValueImage};
use crate::node::{End, MAX_INLINE_VALUE_BYTES, NODE_BYTES, NodeError, NodeMut, NodeView, ValueKind};
use vellum_base::{Lsn, PageId, PageKind, stamp_lsn};
use vellum_pool::{AllocatedPage, ExclusivePage, Interrupt, OptimisticPage, Pager, PoolError};

/// A page under an exclusive latch.
pub(crate) struct Latched<'p, P: Pager + 'p>(P::Exclusive<'p>);

impl<'p, P: Pager> Latched<'p, P> {
    /// Latches a page that was read optimistically. Fails if the page has changed, so what was found in it still holds.
    #[inline(always)]
    pub fn latch(page: P::Optimistic<'p>) -> Result<Self, Interrupt> {
        Ok(Self(page.upgrade()?))
    }

    pub fn id(&self) -> PageId {
        self.0.id()
    }

    #[inline]
    pub fn page(&self) -> &[u8] {
        self.0.page()
    }

    #[inline]
    pub fn view(&self) -> NodeView<&[u8]> {
        NodeView::new(self.0.page())
    }

    /// The page to which this one refers at byte `place`.
    pub fn child(&self, pager: &'p P, place: usize) -> Result<P::Optimistic<'p>, Interrupt> {
        pager.child_of_latched(&self.0, place)
    }
}

/// A newly allocated page for a node, to which nothing refers. It is freed again, unless the change is committed.
pub(crate) struct Fresh<'p, P: Pager + 'p>(P::Allocated<'p>);

impl<'p, P: Pager> Fresh<'p, P> {
    /// Allocates a page. That may wait for memory, so it comes before the first latch.
    pub fn allocate(pager: &'p P) -> Result<Self, PoolError> {
        pager.allocate(1, PageKind::TREE_NODE).map(Self)
    }

    pub fn id(&self) -> PageId {
        self.0.id()
    }
}

/// A page that the commit frees.
pub(crate) struct Doomed<'p, P: Pager + 'p>(pub Latched<'p, P>);

/// The pages of an atomic change: one, or several of them.
pub(crate) trait PageSet<'p, P: Pager + 'p> {
    /// Optimistic guards on the pages as the change left them.
    type Seen;

    /// Records what the commit itself does.
    fn describe(&self, _record: &mut Vec<u8>) {}
    /// Sets the LSN of the pages that stay.
    fn stamp(&mut self, _lsn: Lsn) {}
    /// Gives up the latches, after the record at `lsn` was reserved; zero if changes are not recorded.
    fn release(self, pager: &'p P, lsn: Lsn) -> Self::Seen;
}

impl<'p, P: Pager> PageSet<'p, P> for Latched<'p, P> {
    type Seen = P::Optimistic<'p>;

    fn stamp(&mut self, lsn: Lsn) {
        stamp_lsn(self.0.page_mut(), lsn);
    }

    #[inline(always)]
    fn release(self, pager: &'p P, _: Lsn) -> Self::Seen {
        pager.relax(self.0)
    }
}

impl<'p, P: Pager> PageSet<'p, P> for Fresh<'p, P> {
    type Seen = P::Optimistic<'p>;

    fn stamp(&mut self, lsn: Lsn) {
        stamp_lsn(self.0.page_mut(), lsn);
    }

    fn release(self, pager: &'p P, lsn: Lsn) -> Self::Seen {
        pager.relax(self.0.keep(lsn))
    }
}

impl<'p, P: Pager> PageSet<'p, P> for Doomed<'p, P> {
    type Seen = ();

    fn describe(&self, record: &mut Vec<u8>) {
        PageChange::Free { pages: 1 }.encode(self.0.id(), record);
    }

    fn release(self, _: &'p P, lsn: Lsn) {
        self.0.0.free(lsn);
    }
}

impl<'p, P: Pager + 'p, A: PageSet<'p, P>, B: PageSet<'p, P>> PageSet<'p, P> for (A, B) {
    type Seen = (A::Seen, B::Seen);

    fn describe(&self, record: &mut Vec<u8>) {
        self.0.describe(record);
        self.1.describe(record);
    }

    fn stamp(&mut self, lsn: Lsn) {
        self.0.stamp(lsn);
        self.1.stamp(lsn);
    }

    fn release(self, pager: &'p P, lsn: Lsn) -> Self::Seen {
        (self.0.release(pager, lsn), self.1.release(pager, lsn))
    }
}

/// Describes what is done to the pages of an atomic change, and does it.
pub(crate) struct Recording<'p, P: Pager> {
    pager: &'p P,
    /// The root of the tree that is changed.
    tree: PageId,
    record: Vec<u8>,
    changed: bool,
}

impl<'p, P: Pager> Recording<'p, P> {
    #[inline(always)]
    fn new(pager: &'p P, tree: PageId) -> Self {
        Self { pager, tree, record: Vec::new(), changed: false }
    }

    /// Changes a page; on an error it stays as it was. `known` is the slot of the key, if the caller has found it
    /// since the page was latched.
    #[inline(always)]
    pub fn apply(
        &mut self,
        page: &mut Latched<'p, P>,
        known: Option<usize>,
        change: &PageChange<'_>,
    ) -> Result<(), NodeError> {
        debug_assert!(!self.changed, "a change that may fail comes first");
        let start = self.record.len();
        if self.pager.records() {
            self.describe(page.id(), change);
        }
        let done = change.apply(page.0.page_mut(), known);
        if self.pager.records() && done.is_err() {
            self.record.truncate(start);
        }
        self.changed = done.is_ok();
        done
    }

    /// Gives the record of `key`, in slot `index` of a leaf, another value.
    #[inline(always)]
    pub fn replace(
        &mut self,
        leaf: &mut Latched<'p, P>,
        index: usize,
        key: &[u8],
        value: ValueImage<'_>,
    ) -> Result<(), NodeError> {
        let mut before = Vec::new();
        let kind =
            if self.pager.records() { leaf.view().append_value(index, &mut before) } else { value.kind };
        let before = ValueImage { kind, bytes: &before };
        self.apply(leaf, Some(index), &PageChange::Replace { key, value, before })
    }

    /// Removes the record of `key`, in slot `index` of a leaf.
    #[inline(always)]
    pub fn remove(&mut self, leaf: &mut Latched<'p, P>, index: usize, key: &[u8]) -> Result<(), NodeError> {
        let mut before = Vec::new();
        let kind = if self.pager.records() {
            leaf.view().append_value(index, &mut before)
        } else {
            ValueKind::Inline
        };
        let before = ValueImage { kind, bytes: &before };
        self.apply(leaf, Some(index), &PageChange::Remove { key, before })
    }

    /// Lets `change` change the value in slot `index` of a leaf where it lies. If changes are recorded, `change` gets a
    /// copy, and the bytes that then differ go into the leaf.
    #[inline(always)]
    pub fn patch<T>(
        &mut self,
        leaf: &mut Latched<'p, P>,
        index: usize,
        change: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, NodeError> {
        if self.pager.records() {
            return self.patch_recorded(leaf, index, change);
        }
        let mut node = NodeMut::new(leaf.0.page_mut());
        let result = change(node.value_mut(index)?);
        self.changed = true;
        Ok(result)
    }

    fn patch_recorded<T>(
        &mut self,
        leaf: &mut Latched<'p, P>,
        index: usize,
        change: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, NodeError> {
        let (mut key, mut before) = (Vec::new(), Vec::with_capacity(MAX_INLINE_VALUE_BYTES));
        leaf.view().append_key(index, &mut key);
        leaf.view().append_value(index, &mut before);
        let mut after = before.clone();
        let result = change(&mut after);
        let differs = |(a, b): (&u8, &u8)| a != b;
        let Some(from) = before.iter().zip(&after).position(differs) else { return Ok(result) };
        let to = before.iter().zip(&after).rposition(differs).map_or(from, |last| last + 1);
        let part = |bytes: &Vec<u8>| bytes.get(from..to).unwrap_or_default().to_vec();
        let (bytes, before) = (part(&after), part(&before));
        let change = PageChange::Patch { key: &key, offset: from as u16, bytes: &bytes, before: &before };
        self.apply(leaf, Some(index), &change)?;
        Ok(result)
    }

    /// Fills a new page as a node.
    pub fn format(
        &mut self,
        page: &mut Fresh<'p, P>,
        fill: impl FnOnce(&mut [u8]) -> Result<(), NodeError>,
    ) -> Result<(), NodeError> {
        fill(page.0.page_mut())?;
        if self.pager.records() {
            self.describe(page.id(), &PageChange::Format { image: NodeImage::of(page.0.page_mut()) });
        }
        Ok(())
    }

    /// Makes a change in a copy of the page, so that [installing](Self::install) it cannot fail. `image` is zero.
    pub fn prepare<'c>(
        page: &Latched<'p, P>,
        change: PageChange<'c>,
        image: &'c mut [u8; NODE_BYTES],
    ) -> Result<Prepared<'c>, NodeError> {
        if let PageChange::SplitOff { separator } = change {
            NodeMut::begin_left(image, page.view(), separator)?;
        } else {
            NodeMut::new(image).take_over(page.page());
            change.apply(image, None)?;
        }
        Ok(Prepared { change, image })
    }

    /// Does what has been prepared for the page, which has stayed latched.
    pub fn install(&mut self, page: &mut Latched<'p, P>, prepared: &Prepared<'_>) {
        if self.pager.records() {
            self.describe(page.id(), &prepared.change);
        }
        NodeMut::new(page.0.page_mut()).take_over(prepared.image);
        self.changed = true;
    }

    /// Ends a leaf as planned. The leaf has stayed latched since.
    pub fn end(&mut self, leaf: &mut Latched<'p, P>, end: &End) {
        if self.pager.records() {
            self.describe(leaf.id(), &PageChange::EndAt { separator: &end.separator });
        }
        NodeMut::new(leaf.0.page_mut()).end_at(end);
        self.changed = true;
    }

    /// Adds a change of a page to the record.
    pub(super) fn describe(&mut self, page: PageId, change: &PageChange<'_>) {
        if self.record.is_empty() {
            self.record.extend_from_slice(&self.tree.0.to_le_bytes());
        }
        change.encode(page, &mut self.record);
    }

    /// Records a change whose pages are not written here.
    pub(super) fn record_alone(pager: &'p P, tree: PageId, changes: &[(PageId, PageChange<'_>)]) -> Lsn {
        let mut recording = Self::new(pager, tree);
        changes.iter().for_each(|(page, change)| recording.describe(*page, change));
        let lsn = pager.reserve_record(recording.record.len());
        pager.fill_record(lsn, &recording.record);
        lsn
    }
}

impl<P: Pager> Drop for Recording<'_, P> {
    #[inline]
    fn drop(&mut self) {
        debug_assert!(!self.changed || std::thread::panicking(), "an atomic change was not committed");
    }
}

/// A change that has been made in a copy of its page.
pub(crate) struct Prepared<'c> {
    change: PageChange<'c>,
    image: &'c [u8; NODE_BYTES],
}

/// Changes of one or several pages of a tree that happen together, under latches on all of them.
#[must_use = "what was changed must be committed"]
pub(crate) struct AtomicChange<'p, P: Pager, H> {
    /// The latched pages.
    pub pages: H,
    /// The changes made to them.
    pub recording: Recording<'p, P>,
}

impl<'p, P: Pager, H: PageSet<'p, P>> AtomicChange<'p, P, H> {
    /// Begins to change pages of the tree with this root.
    #[inline(always)]
    pub fn new(pager: &'p P, tree: PageId, pages: H) -> Self {
        Self { pages, recording: Recording::new(pager, tree) }
    }

    /// Ends the change: all threads see it from now on.
    // Inlined, because every change ends here: guards stay in registers.
    #[inline(always)]
    pub fn commit(self) -> H::Seen {
        let Self { pages, mut recording } = self;
        recording.changed = false;
        if recording.pager.records() {
            return Self::commit_recorded(pages, recording);
        }
        let pager = recording.pager;
        // There is no record to be freed.
        std::mem::forget(recording);
        pages.release(pager, Lsn(0))
    }

    fn commit_recorded(mut pages: H, mut recording: Recording<'p, P>) -> H::Seen {
        let (pager, mut record) = (recording.pager, std::mem::take(&mut recording.record));
        if record.is_empty() {
            return pages.release(pager, Lsn(0));
        }
        pages.describe(&mut record);
        let lsn = pager.reserve_record(record.len());
        pages.stamp(lsn);
        let seen = pages.release(pager, lsn);
        pager.fill_record(lsn, &record);
        seen
    }
}
