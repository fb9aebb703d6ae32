//! Changes of a page as data, and the code that makes them.

use super::page_edits::PageEdits;
use crate::node::{NODE_BYTES, NodeError, NodeFault, NodeMut, NodeView, ValueKind};
use vellum_base::{Extent, HEADER_BYTES, Lsn, PageHeader, PageId, PageKind, stamp_lsn};

/// The contents of a record: the value, or a reference to a large one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ValueImage<'a> {
    /// Whether the bytes are the value itself or a reference.
    pub kind: ValueKind,
    /// The value, or the reference to it.
    pub bytes: &'a [u8],
}

/// The contents of a node without the page header and the free bytes between slots and heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeImage<'a> {
    /// From the end of the page header to the end of the slots.
    pub front: &'a [u8],
    /// From the beginning of the heap to the end of the page.
    pub heap: &'a [u8],
}

impl<'a> NodeImage<'a> {
    /// The image of a node.
    pub fn of(page: &'a [u8]) -> Self {
        let (front, heap) = NodeView::new(page).parts();
        Self { front, heap }
    }

    /// Writes the node to a page, whose header it leaves alone.
    fn write_to(self, page: &mut [u8]) -> Result<(), NodeError> {
        let body = page.get_mut(HEADER_BYTES..).unwrap_or_default();
        let free = body.len().checked_sub(self.front.len() + self.heap.len());
        let free =
            free.ok_or(NodeFault::Size { bytes: HEADER_BYTES + self.front.len() + self.heap.len() })?;
        let (front, rest) = body.split_at_mut(self.front.len());
        let (gap, heap) = rest.split_at_mut(free);
        front.copy_from_slice(self.front);
        gap.fill(0);
        heap.copy_from_slice(self.heap);
        Ok(())
    }
}

/// A change of one page.
///
/// Records are identified by their keys, and children by their separators, not by their slots. A change of a record
/// also has the old value, so that it can be [undone](Self::inverse).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageChange<'a> {
    /// A leaf gets a record with a new key.
    Insert {
        /// The key.
        key: &'a [u8],
        /// Its value.
        value: ValueImage<'a>,
    },
    /// A record of a leaf gets another value.
    Replace {
        /// The key.
        key: &'a [u8],
        /// The new value.
        value: ValueImage<'a>,
        /// The old value.
        before: ValueImage<'a>,
    },
    /// A leaf loses a record.
    Remove {
        /// The key.
        key: &'a [u8],
        /// The value of the record.
        before: ValueImage<'a>,
    },
    /// Some bytes of a value change where they lie.
    Patch {
        /// The key.
        key: &'a [u8],
        /// Where in the value the bytes begin.
        offset: u16,
        /// The new bytes.
        bytes: &'a [u8],
        /// The old bytes, just as many.
        before: &'a [u8],
    },
    /// An inner node gets a separator after a child was split.
    InsertSeparator {
        /// The separator.
        separator: &'a [u8],
        /// The child to the right of the separator.
        right: PageId,
    },
    /// An inner node loses a separator, and with it the child to its right, which was merged into the child to its
    /// left.
    RemoveSeparator {
        /// The separator.
        separator: &'a [u8],
    },
    /// A leaf ends with a new upper fence, and the few records beyond it go into another leaf.
    EndAt {
        /// The new upper fence.
        separator: &'a [u8],
    },
    /// A node keeps its lower half, and the upper one goes into another node.
    SplitOff {
        /// The new upper fence.
        separator: &'a [u8],
    },
    /// A node takes over the contents of its right neighbour.
    Absorb {
        /// The fence between the two.
        separator: &'a [u8],
        /// The neighbour.
        right: NodeImage<'a>,
    },
    /// The contents of a root have moved to two new nodes. The root becomes their parent, one level higher.
    RaiseRoot {
        /// The node of the lower half.
        left: PageId,
        /// The separator between the two.
        separator: &'a [u8],
        /// The node of the upper half.
        right: PageId,
    },
    /// The contents of a root are replaced: by those of its only child, or those of a bulk load.
    ReplaceRoot {
        /// The contents.
        image: NodeImage<'a>,
    },
    /// An inner node refers to another page for one of its children, which has moved there.
    Redirect {
        /// The page where the child was.
        from: PageId,
        /// The page where the child is now.
        to: PageId,
    },
    /// A page is allocated and becomes a node.
    Format {
        /// The node.
        image: NodeImage<'a>,
    },
    /// An extent is allocated, whose contents were written past the log and are durable.
    Write {
        /// The kind of the extent.
        kind: PageKind,
        /// The number of its pages.
        pages: u32,
        /// For a large value, the digest in its reference.
        digest: u64,
    },
    /// An extent is freed.
    Free {
        /// The number of its pages.
        pages: u32,
    },
    /// A node as it is after the other change of it in the same record. The other change need not be redone then.
    Image {
        /// The node.
        image: NodeImage<'a>,
    },
    /// Bytes of a page of objects change.
    Overwrite {
        /// The bytes, and their offsets: see [`PageEdits`](super::PageEdits).
        edits: &'a [u8],
    },
    /// A page is allocated and becomes a page of objects.
    FormatObjects {
        /// The bytes after the page header, up to the last byte that is not zero.
        contents: &'a [u8],
    },
    /// A page of objects as it is after the other change of it in the same record, which need not be redone then.
    ObjectsImage {
        /// The bytes after the page header, up to the last byte that is not zero.
        contents: &'a [u8],
    },
    /// An inner node gets other contents, because a child has passed from it or to it or between two of its children.
    Rearrange {
        /// The contents.
        image: NodeImage<'a>,
    },
    /// Consecutive pages are allocated, each a node that was written past the log and is durable. The page is the first
    /// one.
    Nodes {
        /// How many there are.
        count: u32,
    },
}

impl<'a> PageChange<'a> {
    /// The change that reverts this one, if this is a change of a record. The page may be another one by then, since
    /// splits and merges may have moved the record.
    pub fn inverse(&self) -> Option<Self> {
        match *self {
            Self::Insert { key, value } => Some(Self::Remove { key, before: value }),
            Self::Remove { key, before } => Some(Self::Insert { key, value: before }),
            Self::Replace { key, value, before } => Some(Self::Replace { key, value: before, before: value }),
            Self::Patch { key, offset, bytes, before } => {
                Some(Self::Patch { key, offset, bytes: before, before: bytes })
            }
            _ => None,
        }
    }

    /// Makes the change in a page, except for its header; on an error the page is unchanged. `known` is the slot of the
    /// key or of the separator, if the caller has found it already.
    // Inlined where the kind of change is known, so that no branch on the kind remains.
    #[inline(always)]
    pub(super) fn apply(&self, page: &mut [u8], known: Option<usize>) -> Result<(), NodeError> {
        match *self {
            Self::Overwrite { edits } => return overwrite(page, edits),
            Self::FormatObjects { contents } | Self::ObjectsImage { contents } => {
                return set_contents(page, contents);
            }
            _ => {}
        }
        let mut node = NodeMut::new(page);
        let slot_of = |node: &NodeMut<'_>, key: &[u8]| known.map_or_else(|| find(node.view(), key), Ok);
        match *self {
            Self::Insert { key, value } => match known {
                Some(index) => node.insert_at(index, key, value.bytes, value.kind),
                None => node.insert(key, value.bytes, value.kind).map(drop),
            },
            Self::Replace { key, value, .. } => node.replace(slot_of(&node, key)?, value.bytes, value.kind),
            Self::Remove { key, .. } => Ok(node.remove(slot_of(&node, key)?)?),
            Self::Patch { key, offset, bytes, .. } => {
                let index = slot_of(&node, key)?;
                let from = node.value_mut(index)?.get_mut(offset as usize..).unwrap_or_default();
                from.get_mut(..bytes.len()).ok_or(NodeFault::NotRecorded)?.copy_from_slice(bytes);
                Ok(())
            }
            Self::InsertSeparator { separator, right } => node.insert_separator(separator, right).map(drop),
            Self::RemoveSeparator { separator } => Ok(node.remove_separator(slot_of(&node, separator)?)?),
            Self::EndAt { separator } => {
                let end = node.view().planned_end(separator)?;
                node.end_at(&end);
                Ok(())
            }
            Self::SplitOff { separator } => node.split_off(separator),
            Self::Absorb { separator, right } => {
                let mut neighbour = [0; NODE_BYTES];
                right.write_to(&mut neighbour)?;
                node.merge_from_right(NodeView::new(&neighbour), separator)
            }
            Self::Redirect { from, to } => node.redirect(from, to),
            Self::RaiseRoot { left, separator, right } => node.raise(left, separator, right),
            Self::ReplaceRoot { image }
            | Self::Rearrange { image }
            | Self::Format { image }
            | Self::Image { image } => image.write_to(page),
            _ => Err(NodeFault::NotRecorded.into()),
        }
    }
}

/// Redoes in page `id` the change recorded under `lsn`; returns false if the page already has it.
///
/// The page is as it was at some time since it was last allocated. If the change [makes it
/// anew](super::PageRedo::fresh), the page is given as zeroes.
///
/// # Errors
/// If the change cannot have been made to this page, or it changes no page but only space.
pub fn redo(page: &mut [u8], id: PageId, lsn: Lsn, change: &PageChange<'_>) -> Result<bool, NodeError> {
    if page.len() != NODE_BYTES {
        return Err(NodeFault::Size { bytes: page.len() }.into());
    }
    if PageHeader::read(page).lsn >= lsn {
        return Ok(false);
    }
    change.apply(page, None)?;
    let kind = match change {
        PageChange::Format { .. } | PageChange::Image { .. } => PageKind::TREE_NODE,
        PageChange::FormatObjects { .. } | PageChange::ObjectsImage { .. } => PageKind::OBJECTS,
        _ => {
            stamp_lsn(page, lsn);
            return Ok(true);
        }
    };
    PageHeader { extent: Extent::page(id), lsn, kind }.write(page);
    Ok(true)
}

/// Changes bytes of a page of objects.
fn overwrite(page: &mut [u8], edits: &[u8]) -> Result<(), NodeError> {
    let is_sound = PageHeader::read(page).kind == PageKind::OBJECTS
        && PageEdits::each(edits)
            .all(|edit| edit.is_some_and(|(at, bytes)| at >= HEADER_BYTES && at + bytes.len() <= page.len()));
    if !is_sound {
        return Err(NodeFault::NotRecorded.into());
    }
    for (at, bytes) in PageEdits::each(edits).flatten() {
        page.get_mut(at..at + bytes.len()).unwrap_or_default().copy_from_slice(bytes);
    }
    Ok(())
}

/// Replaces everything after the header of a page of objects.
fn set_contents(page: &mut [u8], contents: &[u8]) -> Result<(), NodeError> {
    let bytes = HEADER_BYTES + contents.len();
    let body = page.get_mut(HEADER_BYTES..).and_then(|body| body.split_at_mut_checked(contents.len()));
    let (front, rest) = body.ok_or(NodeFault::Size { bytes })?;
    front.copy_from_slice(contents);
    rest.fill(0);
    Ok(())
}

fn find(view: NodeView<&[u8]>, key: &[u8]) -> Result<usize, NodeError> {
    let find = view.find(key);
    if find.found { Ok(find.index) } else { Err(NodeFault::NotRecorded.into()) }
}
