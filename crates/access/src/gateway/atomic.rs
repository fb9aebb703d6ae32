//! The atomic change: the latches on the pages that are changed together, and the record of the changes.

use super::encoding::RecordKind;
use super::page_change::{NodeImage, PageChange, ValueImage};
use super::record::Record;
use super::unlinked::UnlinkedExtents;
use crate::node::{End, NODE_BYTES, NodeError, NodeFault, NodeMut, NodeView, ValueKind};
use std::{mem::ManuallyDrop, ops::Range};
use vellum_base::{Extent, Lsn, PageHeader, PageId, PageKind, plant::is_planted, stamp_lsn};
use vellum_pool::{AllocatedPage, ExclusivePage, Interrupt, OptimisticPage, Pager, PoolError};

/// A page under an exclusive latch.
pub(crate) struct Latched<'p, P: Pager + 'p>(P::Exclusive<'p>);

impl<'p, P: Pager> Latched<'p, P> {
    /// Latches a page that was read optimistically. Fails if the page has changed, so what was found in it still holds.
    #[inline(always)]
    pub fn latch(page: P::Optimistic<'p>) -> Result<Self, Interrupt> {
        Ok(Self(page.upgrade()?))
    }

    #[inline]
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

/// A newly allocated page for a node, to which nothing refers. It is freed again unless the change is committed.
pub(crate) struct Fresh<'p, P: Pager + 'p>(pub(super) P::Allocated<'p>);

impl<'p, P: Pager> Fresh<'p, P> {
    /// Allocates a page. This may wait for memory, so it comes before the first latch.
    pub fn allocate(pager: &'p P) -> Result<Self, PoolError> {
        pager.allocate(1, PageKind::TREE_NODE).map(Self)
    }

    /// [`allocate`](Self::allocate) before page `limit`; none if no page is free there.
    pub fn allocate_before(pager: &'p P, limit: PageId) -> Result<Option<Self>, PoolError> {
        Ok(pager.allocate_before(limit, 1, PageKind::TREE_NODE)?.map(Self))
    }

    pub fn id(&self) -> PageId {
        self.0.id()
    }
}

/// A bug that tests of whole databases plant, to show that they would find it.
#[derive(Debug)]
pub(super) enum Bug {
    /// The LSN of a page begins at zero each time the page is allocated anew.
    NewLifeWithoutLsn,
    /// The last of several pages of objects that are changed together is not recorded.
    ObjectsLeftOut,
    /// A node that has been merged or moved may be reused before the change is durable.
    FreedBeforeItIsDurable,
    /// A page is changed although a snapshot needs its old contents.
    PageNotKept,
}

/// A page that the commit frees.
pub(crate) struct Doomed<'p, P: Pager + 'p>(pub Latched<'p, P>);

/// The pages of an atomic change, one or several.
pub(crate) trait PageSet<'p, P: Pager + 'p> {
    /// Optimistic guards on the pages as the change has left them.
    type Seen;

    /// When the record counts, as far as the pages decide it.
    fn kind(&self) -> RecordKind {
        RecordKind::Single
    }
    /// Shows the pages that exist and have an LSN below `from`, before they are changed. If `is_changed`, it shows them
    /// after the change: new pages too, and none that the commit frees.
    fn show(&mut self, _from: Lsn, _is_changed: bool, _show: &mut dyn FnMut(&[u8])) {}
    /// Adds to the record what the commit itself does.
    fn describe(&self, _record: &mut Record) {}
    /// Adds to the record the present images of the pages that stay and whose LSN lies in this range.
    fn describe_images(&self, _lsns: &Range<Lsn>, _record: &mut Record) {}
    /// Sets the LSN of the pages that stay.
    fn stamp(&mut self, _lsn: Lsn) {}
    /// Releases the latches. `lsn` is the LSN of the record of the change; zero if it has none.
    fn release(self, pager: &'p P, lsn: Lsn) -> Self::Seen;
}

impl<'p, P: Pager> PageSet<'p, P> for Latched<'p, P> {
    type Seen = P::Optimistic<'p>;

    fn show(&mut self, from: Lsn, _: bool, show: &mut dyn FnMut(&[u8])) {
        let page = self.0.page();
        if PageHeader::read(page).lsn < from {
            show(page);
        }
    }

    fn describe_images(&self, lsns: &Range<Lsn>, record: &mut Record) {
        let page = self.0.page();
        if lsns.contains(&PageHeader::read(page).lsn) {
            record.push(self.0.id(), &PageChange::Image { image: NodeImage::of(page) });
        }
    }

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

    fn show(&mut self, _: Lsn, is_changed: bool, show: &mut dyn FnMut(&[u8])) {
        if is_changed {
            show(self.0.page_mut());
        }
    }

    fn stamp(&mut self, lsn: Lsn) {
        if is_planted("access", Bug::NewLifeWithoutLsn) {
            return;
        }
        stamp_lsn(self.0.page_mut(), lsn);
    }

    fn release(self, pager: &'p P, lsn: Lsn) -> Self::Seen {
        pager.relax(self.0.keep(lsn))
    }
}

impl<'p, P: Pager> PageSet<'p, P> for Doomed<'p, P> {
    type Seen = ();

    fn show(&mut self, from: Lsn, is_changed: bool, show: &mut dyn FnMut(&[u8])) {
        if !is_changed {
            self.0.show(from, is_changed, show);
        }
    }

    fn describe(&self, record: &mut Record) {
        record.push(self.0.id(), &PageChange::Free { pages: 1 });
    }

    fn release(self, _: &'p P, lsn: Lsn) {
        let is_planted = is_planted("access", Bug::FreedBeforeItIsDurable);
        self.0.0.free(if is_planted { Lsn(0) } else { lsn });
    }
}

impl<'p, P: Pager + 'p> PageSet<'p, P> for () {
    type Seen = ();

    fn release(self, _: &'p P, _: Lsn) {}
}

impl<'p, P: Pager + 'p, A: PageSet<'p, P>, B: PageSet<'p, P>> PageSet<'p, P> for (A, B) {
    type Seen = (A::Seen, B::Seen);

    fn kind(&self) -> RecordKind {
        match self.0.kind() {
            RecordKind::Single => self.1.kind(),
            kind => kind,
        }
    }

    fn show(&mut self, from: Lsn, is_changed: bool, show: &mut dyn FnMut(&[u8])) {
        self.0.show(from, is_changed, show);
        self.1.show(from, is_changed, show);
    }

    fn describe(&self, record: &mut Record) {
        self.0.describe(record);
        self.1.describe(record);
    }

    fn describe_images(&self, lsns: &Range<Lsn>, record: &mut Record) {
        self.0.describe_images(lsns, record);
        self.1.describe_images(lsns, record);
    }

    fn stamp(&mut self, lsn: Lsn) {
        self.0.stamp(lsn);
        self.1.stamp(lsn);
    }

    fn release(self, pager: &'p P, lsn: Lsn) -> Self::Seen {
        (self.0.release(pager, lsn), self.1.release(pager, lsn))
    }
}

/// The originator of changes of records.
pub(crate) trait Recorder {
    /// When the record counts.
    fn kind(&self) -> RecordKind;
    /// The change has its LSN, which is the place of its record if it is recorded. Its pages are still latched.
    fn recorded(&self, lsn: Lsn);
    /// Nothing was changed. The pages are still latched.
    fn unchanged(&self);
}

/// Describes the changes of the pages of an atomic change, and makes them.
pub(crate) struct Recording<'p, P: Pager> {
    pager: &'p P,
    /// The root of the tree that is changed.
    tree: PageId,
    /// One word, which stays in a register and is null if changes are not recorded. The code that fills it is out of
    /// line and works on copies, so that the data of a change lies in memory only if changes are recorded.
    record: ManuallyDrop<Option<Box<Record>>>,
    records: bool,
    changed: bool,
}

/// The old value of a record, where it is not needed.
const UNKNOWN: ValueImage<'static> = ValueImage { kind: ValueKind::Inline, bytes: &[] };

impl<'p, P: Pager> Recording<'p, P> {
    #[inline(always)]
    fn new(pager: &'p P, tree: PageId, records: bool) -> Self {
        Self { pager, tree, record: ManuallyDrop::new(None), records, changed: false }
    }

    /// Marks all further changes as restoring what was there before.
    pub fn restore(&mut self) {
        if self.records {
            *self.record = Some(Record::restoring(self.tree));
        }
    }

    /// Changes a page; on an error the page is unchanged, and the atomic change is to be dropped. `known` is the slot
    /// of the key, if the caller has found it since the page was latched.
    #[inline(always)]
    pub fn apply(
        &mut self,
        page: &mut Latched<'p, P>,
        known: Option<usize>,
        change: &PageChange<'_>,
    ) -> Result<(), NodeError> {
        self.describe(page.id(), change);
        self.make(page, known, change)
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
        self.describe_with_old(leaf, index, key, Some(value));
        self.make(leaf, Some(index), &PageChange::Replace { key, value, before: UNKNOWN })
    }

    /// Removes the record of `key`, in slot `index` of a leaf.
    #[inline(always)]
    pub fn remove(&mut self, leaf: &mut Latched<'p, P>, index: usize, key: &[u8]) -> Result<(), NodeError> {
        self.describe_with_old(leaf, index, key, None);
        self.make(leaf, Some(index), &PageChange::Remove { key, before: UNKNOWN })
    }

    /// Lets `change` change the value of `key`, in slot `index` of a leaf, in place. If changes are recorded, `change`
    /// gets a copy, and the bytes that differ afterwards go into the leaf.
    #[inline(always)]
    pub fn patch<T>(
        &mut self,
        leaf: &mut Latched<'p, P>,
        index: usize,
        key: &[u8],
        change: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, NodeError> {
        if self.records {
            let place = (self.tree, leaf.id());
            let is_whole = self.pager.records_values();
            let Some((_, before)) = leaf.view().value(index) else {
                return Err(NodeFault::Slot { index }.into());
            };
            let (result, record) =
                Record::with_patch(self.record.take(), place, before, (key, is_whole), change);
            if let Some(bytes) = record.patched() {
                let change = PageChange::Patch { key: &[], offset: bytes.0, bytes: bytes.1, before: &[] };
                self.make(leaf, Some(index), &change)?;
            }
            *self.record = Some(record);
            return Ok(result);
        }
        let mut node = NodeMut::new(leaf.0.page_mut());
        let result = change(node.value_mut(index)?);
        self.changed = true;
        Ok(result)
    }

    /// Fills a new page as a node.
    pub fn format(
        &mut self,
        page: &mut Fresh<'p, P>,
        fill: impl FnOnce(&mut [u8]) -> Result<(), NodeError>,
    ) -> Result<(), NodeError> {
        fill(page.0.page_mut())?;
        let id = page.id();
        self.describe(id, &PageChange::Format { image: NodeImage::of(page.0.page_mut()) });
        Ok(())
    }

    /// Makes a change in a copy of the page, so that [installing](Self::install) it cannot fail. `image` is zeroed.
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

    /// Makes the change that has been prepared for the page, which has stayed latched.
    pub fn install(&mut self, page: &mut Latched<'p, P>, prepared: &Prepared<'_>) {
        self.describe(page.id(), &prepared.change);
        NodeMut::new(page.0.page_mut()).take_over(prepared.image);
        self.changed = true;
    }

    /// Ends a leaf as planned. The leaf has stayed latched since the plan was made.
    pub fn end(&mut self, leaf: &mut Latched<'p, P>, end: &End) {
        self.describe(leaf.id(), &PageChange::EndAt { separator: &end.separator });
        NodeMut::new(leaf.0.page_mut()).end_at(end);
        self.changed = true;
    }

    #[inline(always)]
    fn make(
        &mut self,
        page: &mut Latched<'p, P>,
        known: Option<usize>,
        change: &PageChange<'_>,
    ) -> Result<(), NodeError> {
        debug_assert!(!self.changed, "a change that may fail comes first");
        let done = change.apply(page.0.page_mut(), known);
        self.changed = done.is_ok();
        done
    }

    /// Adds a change of a page to the record.
    #[inline(always)]
    fn describe(&mut self, page: PageId, change: &PageChange<'_>) {
        if self.records {
            *self.record = Some(Record::with(self.record.take(), (self.tree, page), *change));
        }
    }

    /// Adds to the record that the record of `key` gets another value, or is removed.
    #[inline(always)]
    fn describe_with_old(
        &mut self,
        leaf: &Latched<'p, P>,
        index: usize,
        key: &[u8],
        value: Option<ValueImage<'_>>,
    ) {
        if self.records {
            let place = (self.tree, leaf.id());
            let record = Record::with_changed(self.record.take(), place, (leaf.view(), index), key, value);
            *self.record = Some(record);
        }
    }
}

impl<P: Pager> Drop for Recording<'_, P> {
    // Inlined, like the drop of a guard: data dropped when a change fails need not lie in memory when it succeeds.
    #[inline(always)]
    fn drop(&mut self) {
        debug_assert!(!self.changed || std::thread::panicking(), "an atomic change was not committed");
        if let Some(record) = self.record.take() {
            drop_record(record);
        }
    }
}

#[cold]
#[inline(never)]
fn drop_record(record: Box<Record>) {
    drop(record);
}

/// A change that has been made in a copy of its page.
pub(crate) struct Prepared<'c> {
    change: PageChange<'c>,
    image: &'c [u8; NODE_BYTES],
}

/// What the pages of a change need besides their record.
#[derive(Clone, Copy)]
pub(crate) struct Needs {
    /// The place from which on pages are kept, as it was when the change began; none if its tree keeps no pages.
    kept: Option<Lsn>,
    /// Whether the pages get an LSN.
    lsn: bool,
}

/// Changes of one or several pages of a tree that happen together, under latches on all of them.
///
/// It may be taken apart and put together again: where a change of one leaf is made, its parts are dropped one by one
/// on a panic, and stay in registers otherwise.
#[must_use = "what was changed must be committed"]
pub(crate) struct AtomicChange<'p, P: Pager, H> {
    /// The latched pages.
    pub pages: H,
    /// The changes made to them.
    pub recording: Recording<'p, P>,
    /// What the pages need.
    pub needs: Needs,
}

impl<'p, P: Pager, H: PageSet<'p, P>> AtomicChange<'p, P, H> {
    /// Begins to change pages of the tree with this root. If `keeps`, snapshots may need the present contents of its
    /// pages. `needs_lsn` is what the pager answered when the pages were latched.
    #[inline(always)]
    pub fn new(pager: &'p P, tree: PageId, mut pages: H, keeps: bool, needs_lsn: bool) -> Self {
        let kept = (keeps && needs_lsn).then(|| pager.kept_from());
        if let Some(from @ Lsn(1..)) = kept
            && !is_planted("access", Bug::PageNotKept)
        {
            pages = show(pager, (tree, from), pages, false);
        }
        let recording = Recording::new(pager, tree, needs_lsn && pager.records());
        Self { pages, recording, needs: Needs { kept, lsn: needs_lsn } }
    }

    /// Ends the change: all threads see it from now on.
    #[inline(always)]
    pub fn commit(self) -> H::Seen {
        self.commit_by(None, None)
    }

    /// [`commit`](Self::commit) for the change of a record; also frees an extent to which the record referred until
    /// now.
    // Inlined, because every change ends here: so guards stay in registers.
    #[inline(always)]
    pub fn commit_by(self, recorder: Option<&dyn Recorder>, extent: Option<Extent>) -> H::Seen {
        let Self { pages, mut recording, needs: Needs { kept, lsn } } = self;
        let _unlinked = extent.map(|_| UnlinkedExtents::begin(recording.pager));
        recording.changed = false;
        if !lsn {
            let pager = recording.pager;
            std::mem::forget(recording);
            let seen = pages.release(pager, Lsn(0));
            discard(pager, extent, Lsn(0));
            return seen;
        }
        let (pager, record) = (recording.pager, recording.record.take());
        let kept = kept.map(|from| (recording.tree, from));
        // The record has been taken out, so nothing is left to free.
        std::mem::forget(recording);
        if let Some(record) = record {
            return commit_recorded(pager, pages, record, (recorder, extent), kept);
        }
        let lsn = pager.stamp();
        if lsn > Lsn(0) {
            return commit_stamped(pager, pages, lsn, (recorder, extent), kept);
        }
        let seen = pages.release(pager, Lsn(0));
        discard(pager, extent, Lsn(0));
        seen
    }
}

/// Ends a change that is not recorded, but whose pages need an LSN.
#[inline(never)]
fn commit_stamped<'p, P: Pager, H: PageSet<'p, P>>(
    pager: &'p P,
    pages: H,
    lsn: Lsn,
    (recorder, freed): (Option<&dyn Recorder>, Option<Extent>),
    kept: Option<(PageId, Lsn)>,
) -> H::Seen {
    let mut pages = keep_again(pager, kept, pages);
    recorder.iter().for_each(|recorder| recorder.recorded(lsn));
    pages.stamp(lsn);
    let seen = pages.release(pager, lsn);
    discard(pager, freed, lsn);
    seen
}

/// Reserves the record's place in the log while all pages are latched, and hands it over after they are released.
#[inline(never)]
pub(super) fn commit_recorded<'p, P: Pager, H: PageSet<'p, P>>(
    pager: &'p P,
    mut pages: H,
    mut record: Box<Record>,
    (recorder, freed): (Option<&dyn Recorder>, Option<Extent>),
    kept: Option<(PageId, Lsn)>,
) -> H::Seen {
    pages.describe(&mut record);
    if let Some(extent) = freed {
        record.push(extent.head, &PageChange::Free { pages: extent.pages });
    }
    record.set_kind(match recorder.map(Recorder::kind) {
        None | Some(RecordKind::Single) => pages.kind(),
        Some(kind) => kind,
    });
    let lsn = if record.is_empty() { Lsn(0) } else { reserve(pager, &pages, &mut record) };
    if lsn > Lsn(0) {
        pages = keep_again(pager, kept, pages);
        recorder.iter().for_each(|recorder| recorder.recorded(lsn));
        pages.stamp(lsn);
    } else {
        recorder.iter().for_each(|recorder| recorder.unchanged());
    }
    let seen = pages.release(pager, lsn);
    // Before the record is filled: a checkpoint waits for that, and then knows everything that is allocated and freed.
    if let Some(extent) = record.adopted {
        pager.note_allocated(extent, lsn);
    }
    discard(pager, freed, lsn);
    if lsn > Lsn(0) {
        pager.fill_record(lsn, record.bytes());
    }
    record.recycle();
    seen
}

/// Reserves the place of the record, which has images of all pages that need one at that place.
///
/// A checkpoint that begins meanwhile may place itself before the record: then more pages need an image.
fn reserve<'p, P: Pager, H: PageSet<'p, P>>(pager: &'p P, pages: &H, record: &mut Record) -> Lsn {
    let mut imaged = Lsn(0);
    let mut describe_images = |record: &mut Record| {
        let from = pager.images_from();
        if from > imaged {
            pages.describe_images(&(imaged..from), record);
            imaged = from;
        }
    };
    describe_images(record);
    loop {
        let bytes = record.bytes().len();
        let lsn = pager.reserve_record(bytes);
        describe_images(record);
        if record.bytes().len() == bytes {
            return lsn;
        }
        pager.cancel_record(lsn, bytes);
    }
}

/// Keeps the pages of a change that has its LSN, if pages are kept from another place on than when the change began.
#[inline(always)]
fn keep_again<'p, P: Pager + 'p, H: PageSet<'p, P>>(pager: &P, kept: Option<(PageId, Lsn)>, pages: H) -> H {
    if let Some((tree, before)) = kept
        && let from = pager.kept_from()
        && from != before
        && from > Lsn(0)
    {
        return show(pager, (tree, from), pages, true);
    }
    pages
}

/// Keeps pages of the tree with this root.
// The latches are taken by value and returned, so that they need not lie in memory while no page is kept.
#[cold]
#[inline(never)]
fn show<'p, P: Pager + 'p, H: PageSet<'p, P>>(
    pager: &P,
    (tree, from): (PageId, Lsn),
    mut pages: H,
    is_changed: bool,
) -> H {
    pages.show(from, is_changed, &mut |page| pager.keep_page(tree, page));
    pages
}

/// Frees an extent to which nothing refers any more, as the record at `lsn` says.
#[inline]
fn discard<P: Pager>(pager: &P, extent: Option<Extent>, lsn: Lsn) {
    // The extent was found to be allocated under the leaf's latch. So this fails only if an operation on a damaged
    // record elsewhere has freed it since; the change has been made all the same.
    let _ = extent.map(|extent| pager.discard(extent, lsn));
}
