//! The record of an atomic change, as it is read from the log.

use super::encoding::{RecordFault, RecordKind};
use super::page_change::{PageChange, ValueImage};
use crate::gateway::encoding::Field;
use vellum_base::{Extent, PageId};

/// The record of an atomic change.
///
/// It has at most one change of a page that is there before and after it, and perhaps the image of that page.
#[derive(Clone, Copy, Debug)]
pub struct ChangeRecord<'a> {
    /// Whether it counts by itself.
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

/// A change of a page as recovery does it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageRedo<'a> {
    /// The page.
    pub page: PageId,
    /// What [`redo`](super::redo) does to it.
    pub change: PageChange<'a>,
    /// Whether the change makes the page anew: it is given as zeroes, whatever it holds.
    pub fresh: bool,
}

/// How the change of a record is undone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UndoChange<'a> {
    /// The record becomes what it was.
    Restore {
        /// The key.
        key: &'a [u8],
        /// The value that it had, if there was one.
        before: Option<ValueImage<'a>>,
    },
    /// Some bytes of its value become what they were.
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
    /// Takes bytes for a record.
    ///
    /// # Errors
    /// If there are too few bytes, or it is another kind of record. All other faults show when the changes are read.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, RecordFault> {
        let mut rest = bytes;
        let kind = RecordKind::decode(&mut rest).ok_or(RecordFault { left: bytes.len() })?;
        let tree = PageId::decode(&mut rest).ok_or(RecordFault { left: bytes.len() })?;
        Ok(Self { kind, tree, rest })
    }

    /// The changes, each with its page, up to the first fault.
    pub fn changes(self) -> impl Iterator<Item = Result<(PageId, PageChange<'a>), RecordFault>> {
        let mut rest = self.rest;
        std::iter::from_fn(move || {
            let left = rest.len();
            let change = (left > 0).then(|| PageChange::decode(&mut rest).ok_or(RecordFault { left }));
            if matches!(change, Some(Err(_))) {
                rest = &[];
            }
            change
        })
    }

    /// How what this does to a record of a tree is undone: by [`Tree::undo`](crate::Tree::undo) of the tree with this root.
    /// `None` if it changes none. The record of a change of a transaction changes one.
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

    /// What the record says of extents, up to the first fault. The extents may be any; of a run of nodes, each is one.
    pub fn space_events(self) -> impl Iterator<Item = Result<(Extent, SpaceEvent), RecordFault>> {
        self.changes().flat_map(|change| {
            let (head, pages, count, event) = match change {
                Ok((page, PageChange::Format { .. })) => (page, 1, 1, SpaceEvent::Allocated),
                Ok((page, PageChange::Write { pages, .. })) => (page, pages, 1, SpaceEvent::Allocated),
                Ok((page, PageChange::Nodes { count })) => (page, 1, count, SpaceEvent::Allocated),
                Ok((page, PageChange::Free { pages })) => (page, pages, 1, SpaceEvent::Freed),
                Ok((page, _)) => (page, 0, 0, SpaceEvent::Freed),
                Err(_) => (PageId(0), 0, 0, SpaceEvent::Freed),
            };
            let event = move |number| {
                let head = PageId(head.0.saturating_add(u64::from(number)));
                Ok((Extent { head, pages }, event))
            };
            (0..count).map(event).chain(change.err().map(Err))
        })
    }

    /// What is to be redone of the record in each page, up to the first fault.
    pub fn page_changes(self) -> impl Iterator<Item = Result<PageRedo<'a>, RecordFault>> {
        // Images come last. Most records have none.
        let is_image = |change: &PageChange<'_>| matches!(change, PageChange::Image { .. });
        let has_images = self.changes().any(|change| change.is_ok_and(|(_, change)| is_image(&change)));
        let has_image = move |page| {
            let mut changes = self.changes().map_while(Result::ok);
            has_images && changes.any(|(other, change)| other == page && is_image(&change))
        };
        self.changes().filter_map(move |change| match change {
            Ok((_, PageChange::Write { .. } | PageChange::Nodes { .. } | PageChange::Free { .. })) => None,
            Ok((page, change)) => {
                let fresh = is_image(&change) || matches!(change, PageChange::Format { .. });
                (fresh || !has_image(page)).then_some(Ok(PageRedo { page, change, fresh }))
            }
            Err(fault) => Some(Err(fault)),
        })
    }
}
