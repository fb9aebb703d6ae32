//! The record of an atomic change, as it is read from the log.

use super::encoding::{RecordFault, RecordKind};
use super::page_change::{PageChange, ValueImage};
use crate::gateway::encoding::Field;
use vellum_base::{Extent, PageId};

/// The record of an atomic change.
///
/// It has at most one change of a page that exists both before and after it, and perhaps the image of that page.
#[derive(Clone, Copy, Debug)]
pub struct ChangeRecord<'a> {
    /// When the record counts.
    pub kind: RecordKind,
    /// The root of the tree that was changed.
    pub tree: PageId,
    rest: &'a [u8],
}

/// What a record says of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpaceEvent {
    /// It is allocated.
    Allocated,
    /// It is freed.
    Freed,
}

/// A change of a page as recovery redoes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageRedo<'a> {
    /// The page.
    pub page: PageId,
    /// What [`redo`](super::redo) does to it.
    pub change: PageChange<'a>,
    /// Whether the change makes the page anew: redo then starts from zeroes, whatever the page holds.
    pub fresh: bool,
    /// The bytes of the record that describe the change; [`decode`](Self::decode) decodes them.
    pub bytes: &'a [u8],
}

impl<'a> PageRedo<'a> {
    fn new(page: PageId, change: PageChange<'a>, bytes: &'a [u8]) -> Self {
        let fresh = change.is_format() || change.is_image();
        Self { page, change, fresh, bytes }
    }

    /// Takes the [`bytes`](Self::bytes) of one change off those of several.
    ///
    /// # Errors
    /// If they are not the bytes of a change.
    // Inlined where a caller looks at little of the change. Also, a value that is moved as a whole right after its
    // parts were written is read back in other pieces, which makes the processor wait until its earlier stores are in
    // the cache.
    #[inline(always)]
    pub fn decode(rest: &mut &'a [u8]) -> Result<Self, RecordFault> {
        let whole = *rest;
        let (page, change) = PageChange::decode(rest).ok_or(RecordFault { left: whole.len() })?;
        let bytes = whole.get(..whole.len() - rest.len()).unwrap_or_default();
        Ok(Self::new(page, change, bytes))
    }

    /// The [`bytes`](Self::bytes) with an empty before-image, which only undo needs.
    #[inline]
    pub fn redo_bytes(&self) -> RedoBytes<'a> {
        /// The length of an empty run.
        const EMPTY: &[u8] = &[0; 2];
        let before = match self.change {
            PageChange::Replace { before, .. } | PageChange::Remove { before, .. } => before.bytes,
            PageChange::Patch { before, .. } => before,
            _ => return RedoBytes { first: self.bytes, last: &[] },
        };
        // The before-image is the last field of each of them, and its length precedes it.
        let first = self.bytes.len().saturating_sub(EMPTY.len() + before.len());
        RedoBytes { first: self.bytes.get(..first).unwrap_or_default(), last: EMPTY }
    }
}

/// The bytes of a change that redo needs, in the form that [`PageRedo::decode`] takes, in two pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RedoBytes<'a> {
    /// The first piece.
    pub first: &'a [u8],
    /// The second piece, which is empty if the first one is all.
    pub last: &'static [u8],
}

impl RedoBytes<'_> {
    /// The number of bytes of both pieces.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a change is never empty")]
    pub fn len(&self) -> usize {
        self.first.len() + self.last.len()
    }
}

impl PageChange<'_> {
    /// Whether it makes a new page.
    #[inline]
    pub fn is_format(&self) -> bool {
        matches!(self, Self::Format { .. } | Self::FormatObjects { .. })
    }

    /// Whether it is the image of a whole page, as another change in the same record leaves it.
    #[inline]
    pub fn is_image(&self) -> bool {
        matches!(self, Self::Image { .. } | Self::ObjectsImage { .. })
    }

    /// The space events of this change, if `page` is its page.
    #[inline]
    pub fn space_events(&self, page: PageId) -> impl Iterator<Item = (Extent, SpaceEvent)> + use<> {
        let (pages, count, event) = match *self {
            Self::Format { .. } | Self::FormatObjects { .. } => (1, 1, SpaceEvent::Allocated),
            Self::Write { pages, .. } => (pages, 1, SpaceEvent::Allocated),
            Self::Nodes { count } => (1, count, SpaceEvent::Allocated),
            Self::Free { pages } => (pages, 1, SpaceEvent::Freed),
            _ => (0, 0, SpaceEvent::Freed),
        };
        (0..count).map(move |number| {
            let head = PageId(page.0.saturating_add(u64::from(number)));
            (Extent { head, pages }, event)
        })
    }
}

/// How to undo the change of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UndoChange<'a> {
    /// Restore the record to what it was.
    Restore {
        /// The key.
        key: &'a [u8],
        /// The value that it had, if there was one.
        before: Option<ValueImage<'a>>,
    },
    /// Restore some bytes of the value.
    Patch {
        /// The key.
        key: &'a [u8],
        /// Where in the value the bytes begin.
        offset: u16,
        /// The bytes.
        before: &'a [u8],
    },
}

impl<'a> ChangeRecord<'a> {
    /// Decodes the beginning of a record.
    ///
    /// # Errors
    /// If there are too few bytes, or this is another kind of record. Other faults are found when the changes are read.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, RecordFault> {
        let mut rest = bytes;
        let kind = RecordKind::decode(&mut rest).ok_or(RecordFault { left: bytes.len() })?;
        let tree = PageId::decode(&mut rest).ok_or(RecordFault { left: bytes.len() })?;
        Ok(Self { kind, tree, rest })
    }

    /// The changes, each with its page, up to the first fault.
    #[inline]
    pub fn changes(self) -> impl Iterator<Item = Result<(PageId, PageChange<'a>), RecordFault>> {
        self.each().map(|change| change.map(|PageRedo { page, change, .. }| (page, change)))
    }

    #[inline]
    fn each(self) -> impl Iterator<Item = Result<PageRedo<'a>, RecordFault>> {
        let mut rest = self.rest;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let redo = PageRedo::decode(&mut rest);
            if redo.is_err() {
                rest = &[];
            }
            Some(redo)
        })
    }

    /// How to undo the change that this makes to a record of a tree: by [`Tree::undo`](crate::Tree::undo) of the tree
    /// with this root. `None` if it changes no record. A transaction's record of a change always changes one.
    ///
    /// # Errors
    /// If a change is malformed.
    pub fn undo(self) -> Result<Option<(PageId, UndoChange<'a>)>, RecordFault> {
        for change in self.changes() {
            let undo = match change?.1 {
                PageChange::Insert { key, .. } => UndoChange::Restore { key, before: None },
                PageChange::Replace { key, before, .. } | PageChange::Remove { key, before } => {
                    UndoChange::Restore { key, before: Some(before) }
                }
                PageChange::Patch { key, offset, before, .. } => UndoChange::Patch { key, offset, before },
                _ => continue,
            };
            return Ok(Some((self.tree, undo)));
        }
        Ok(None)
    }

    /// The space events of the record, up to the first fault. The extents are unchecked; each node of a run is an
    /// extent.
    pub fn space_events(self) -> impl Iterator<Item = Result<(Extent, SpaceEvent), RecordFault>> {
        self.changes().flat_map(|change| {
            let fault = change.err().map(Err);
            change.ok().into_iter().flat_map(|(page, change)| change.space_events(page)).map(Ok).chain(fault)
        })
    }

    /// The changes of the record that are to be redone, each with its page, up to the first fault.
    pub fn page_changes(self) -> impl Iterator<Item = Result<PageRedo<'a>, RecordFault>> {
        self.redone_and_others().filter_map(|change| match change {
            Ok((change, is_redone)) => is_redone.then_some(Ok(change)),
            Err(fault) => Some(Err(fault)),
        })
    }

    /// Whether the record has the image of a page.
    #[cold]
    fn has_image(self, page: PageId) -> bool {
        let mut changes = self.each().map_while(Result::ok);
        changes.any(|other| other.page == page && other.change.is_image())
    }

    /// The changes, and whether each is to be redone in its page, up to the first fault.
    #[inline]
    pub fn redone_and_others(self) -> impl Iterator<Item = Result<(PageRedo<'a>, bool), RecordFault>> {
        // Images come last, and most records have one change: for the last change no search is needed.
        let mut left = self.rest.len();
        self.each().map(move |redo| {
            let redo = redo?;
            left -= redo.bytes.len();
            let is_redone = match redo.change {
                PageChange::Write { .. } | PageChange::Nodes { .. } | PageChange::Free { .. } => false,
                _ => redo.fresh || left == 0 || !self.has_image(redo.page),
            };
            Ok((redo, is_redone))
        })
    }
}
