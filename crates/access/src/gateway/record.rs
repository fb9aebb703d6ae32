//! The record of an atomic change while it is being built, and its way to the log.

use super::difference::difference;
use super::encoding::{HEAD_BYTES_MAX, RecordKind};
use super::page_change::{PageChange, ValueImage};
use crate::{blob::BlobReference, node::NodeView, node::ValueKind};
use std::{cell::Cell, ops::Range};
use vellum_base::{Extent, PageId, PageKind};

/// The most memory that a record leaves to the next one, in bytes. Nearly all records need less.
const SPARE_BYTES_MAX: usize = 64 << 10;

/// The first bytes have room for the head of any kind of record; most records begin one byte before the tree.
const TREE_AT: usize = HEAD_BYTES_MAX;

thread_local! {
    /// An old record, whose memory the next one reuses, so that a change allocates none.
    static SPARE: Cell<Option<Box<Record>>> = const { Cell::new(None) };
}

/// The record of an atomic change.
#[derive(Default)]
pub(crate) struct Record {
    /// Where the record begins.
    start: usize,
    bytes: Vec<u8>,
    /// Scratch space: the value that a record is to get, and the range in which it differs from the present value.
    after: Vec<u8>,
    differing: Range<usize>,
    /// The extent of a large value to which a record refers from now on.
    pub(super) adopted: Option<Extent>,
    /// This restores what was there before: large values to which records refer from now on are allocated already.
    restores: bool,
}

impl Record {
    /// The record of a change of the tree with this root.
    pub(super) fn new(tree: PageId) -> Box<Self> {
        // Fails if the thread is about to end.
        let mut record = SPARE.try_with(Cell::take).ok().flatten().unwrap_or_default();
        record.bytes.clear();
        record.bytes.extend_from_slice(&[0; TREE_AT]);
        record.bytes.extend_from_slice(&tree.0.to_le_bytes());
        record.adopted = None;
        record.restores = false;
        // As if it had the longest head, until its kind is set.
        record.start = 0;
        record
    }

    /// The record of undoing a change.
    pub(super) fn restoring(tree: PageId) -> Box<Self> {
        let mut record = Self::new(tree);
        record.restores = true;
        record
    }

    /// Adds a change of a page. It may be the first one of the record.
    // Out of line, with all arguments by value: the data of a change stays in registers if there is no log.
    #[inline(never)]
    pub(super) fn with(
        this: Option<Box<Self>>,
        (tree, page): (PageId, PageId),
        change: PageChange<'_>,
    ) -> Box<Self> {
        let mut this = this.unwrap_or_else(|| Self::new(tree));
        this.push(page, &change);
        this
    }

    /// Adds that the record of `key` gets another value or is removed. The record is in slot `index` of a leaf that has
    /// not changed yet.
    #[inline(never)]
    pub(super) fn with_changed(
        this: Option<Box<Self>>,
        (tree, page): (PageId, PageId),
        (leaf, index): (NodeView<&[u8]>, usize),
        key: &[u8],
        value: Option<ValueImage<'_>>,
    ) -> Box<Self> {
        let mut this = this.unwrap_or_else(|| Self::new(tree));
        let (kind, bytes) = leaf.value(index).unwrap_or((ValueKind::Inline, &[]));
        let before = ValueImage { kind, bytes };
        this.push(
            page,
            &match value {
                Some(value) => PageChange::Replace { key, value, before },
                None => PageChange::Remove { key, before },
            },
        );
        this
    }

    /// Lets `change` change a copy of `before`, the value of `key` in a leaf, and adds the bytes that differ then, if
    /// any. If `is_whole`, it adds a replacement of the value, which does the same in the leaf: the length is the same.
    #[inline(never)]
    pub(super) fn with_patch<T>(
        this: Option<Box<Self>>,
        (tree, page): (PageId, PageId),
        before: &[u8],
        (key, is_whole): (&[u8], bool),
        change: impl FnOnce(&mut [u8]) -> T,
    ) -> (T, Box<Self>) {
        let mut this = this.unwrap_or_else(|| Self::new(tree));
        let Self { after, bytes, differing, .. } = &mut *this;
        after.clear();
        after.extend_from_slice(before);
        let result = change(after);
        *differing = difference(before, after);
        let (from, to) = (differing.start, differing.end);
        let (whole, old) = (&after[..], before);
        if let (Some(before), Some(after)) = (before.get(from..to), after.get(from..to))
            && from < to
        {
            let change = match is_whole {
                true => PageChange::Replace { key, value: inline(whole), before: inline(old) },
                false => PageChange::Patch { key, offset: from as u16, bytes: after, before },
            };
            change.encode(page, bytes);
        }
        (result, this)
    }

    /// The offset within the value of the bytes that [`with_patch`](Self::with_patch) changed, and their new contents;
    /// `None` if it changed none.
    pub(super) fn patched(&self) -> Option<(u16, &[u8])> {
        let bytes = self.after.get(self.differing.clone()).filter(|bytes| !bytes.is_empty())?;
        Some((self.differing.start as u16, bytes))
    }

    /// Adds a change of a page. If it makes a record refer to a new large value, also adds the extent's allocation.
    pub(super) fn push(&mut self, page: PageId, change: &PageChange<'_>) {
        if let PageChange::Insert { value, .. } | PageChange::Replace { value, .. } = change
            && value.kind == ValueKind::Blob
            && !self.restores
            && let Some(reference) = BlobReference::decode(value.bytes)
        {
            self.adopted = Some(reference.extent());
            written(reference).encode(reference.head, &mut self.bytes);
        }
        change.encode(page, &mut self.bytes);
    }

    /// Adds the changes of another record.
    pub(super) fn append(&mut self, other: &Self) {
        self.bytes.extend_from_slice(other.bytes.get(TREE_AT + 8..).unwrap_or_default());
    }

    pub(super) fn set_kind(&mut self, kind: RecordKind) {
        let (start, head) = kind.head();
        self.start = start;
        if let Some(place) = self.bytes.get_mut(..TREE_AT) {
            place.copy_from_slice(&head);
        }
    }

    /// Whether the record says nothing yet.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.len() <= TREE_AT + 8
    }

    /// The bytes of the whole record.
    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    /// Leaves the memory to the next record of this thread.
    pub(super) fn recycle(self: Box<Self>) {
        if self.bytes.capacity() <= SPARE_BYTES_MAX {
            let _ = SPARE.try_with(|spare| spare.set(Some(self)));
        }
    }
}

fn inline(bytes: &[u8]) -> ValueImage<'_> {
    ValueImage { kind: ValueKind::Inline, bytes }
}

/// The change that allocates the extent of a large value.
pub(super) fn written(reference: BlobReference) -> PageChange<'static> {
    let pages = reference.extent().pages;
    PageChange::Write { kind: PageKind::BLOB, pages, digest: reference.digest }
}
