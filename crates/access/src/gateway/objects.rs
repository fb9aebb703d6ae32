//! Changes, and their records, of pages of objects, whose bytes are laid out by the crate `objects`.
//!
//! Changes of such a page are described as bytes, not by key: only recorded changes move objects. Such a page has no
//! versions, so nothing is undone, and it is not kept for snapshots.

use super::atomic::{Bug, PageSet, commit_recorded};
use super::page_change::PageChange;
use super::page_edits::PageEdits;
use super::record::{Record, written};
use super::unlinked::UnlinkedExtents;
use crate::blob::BlobReference;
use std::ops::Range;
use vellum_base::{HEADER_BYTES, Lsn, PageHeader, PageId, plant::is_planted, stamp_lsn};
use vellum_pool::{ExclusivePage, Interrupt, OptimisticPage, Pager};

/// Pages of objects of one heap under exclusive latches, to be changed together.
///
/// A thread that has latched one page does not wait for another one: if [`latch`](Self::latch) fails, the thread drops
/// all of them, and then resolves the interrupt.
#[must_use = "the latches are released at once"]
pub struct LatchedObjects<'p, P: Pager + 'p> {
    pager: &'p P,
    /// The root of the tree that lists the pages of the heap.
    owner: PageId,
    pages: Vec<P::Exclusive<'p>>,
}

impl<'p, P: Pager> LatchedObjects<'p, P> {
    /// An empty set, for the heap whose directory has this root.
    pub fn new(pager: &'p P, owner: PageId) -> Self {
        Self { pager, owner, pages: Vec::new() }
    }

    /// Latches one more page that was read optimistically, and returns its bytes.
    ///
    /// # Errors
    /// The interrupts of the restart protocol: the page has changed since the guard was made, or no change is allowed.
    pub fn latch(&mut self, page: P::Optimistic<'p>) -> Result<&[u8], Interrupt> {
        let page = self.pages.push_mut(page.upgrade()?);
        Ok(page.page())
    }

    /// Makes the changes, one for each page in the order in which they were latched, as one record. From then on the
    /// large values `made` are referred to, and those in `freed` no longer are. `made` are durable if there is a log.
    pub fn commit(mut self, edits: &[PageEdits], made: &[BlobReference], freed: &[BlobReference]) {
        debug_assert_eq!(edits.len(), self.pages.len(), "a page is latched to be changed");
        let mut record = self.pager.records().then(|| Record::new(self.owner));
        let last = self.pages.len().saturating_sub(1);
        for (index, (page, edits)) in self.pages.iter_mut().zip(edits).enumerate() {
            let is_left_out = index > 0 && index == last && is_planted("access", Bug::ObjectsLeftOut);
            if let Some(record) = record.as_mut().filter(|_| !is_left_out) {
                record.push(page.id(), &PageChange::Overwrite { edits: edits.as_bytes() });
            }
            let bytes = page.page_mut();
            for (at, new) in edits.iter().filter(|(at, _)| *at >= HEADER_BYTES) {
                bytes.get_mut(at..at + new.len()).unwrap_or_default().copy_from_slice(new);
            }
        }
        let _unlinked = (!freed.is_empty()).then(|| UnlinkedExtents::begin(self.pager));
        let (pager, set) = (self.pager, Changed { pages: self.pages, made, freed });
        match record {
            Some(record) => commit_recorded(pager, set, record, (None, None), None),
            None => set.release(pager, Lsn(0)),
        }
    }
}

/// The latched pages of a change that has been made, and the large values that it allocates and frees.
struct Changed<'c, 'p, P: Pager + 'p> {
    pages: Vec<P::Exclusive<'p>>,
    made: &'c [BlobReference],
    freed: &'c [BlobReference],
}

impl<'p, P: Pager + 'p> PageSet<'p, P> for Changed<'_, 'p, P> {
    type Seen = ();

    fn describe(&self, record: &mut Record) {
        for reference in self.made {
            record.push(reference.head, &written(*reference));
        }
        for reference in self.freed {
            record.push(reference.head, &PageChange::Free { pages: reference.extent().pages });
        }
    }

    fn describe_images(&self, lsns: &Range<Lsn>, record: &mut Record) {
        for page in self.pages.iter().filter(|page| lsns.contains(&PageHeader::read(page.page()).lsn)) {
            record.push(page.id(), &PageChange::ObjectsImage { contents: contents_of(page.page()) });
        }
    }

    fn stamp(&mut self, lsn: Lsn) {
        self.pages.iter_mut().for_each(|page| stamp_lsn(page.page_mut(), lsn));
    }

    fn release(self, pager: &'p P, lsn: Lsn) {
        drop(self.pages);
        for reference in self.made {
            pager.note_allocated(reference.extent(), lsn);
        }
        for reference in self.freed {
            // The object that referred to it was latched, so it was allocated: as for the large values of trees.
            let _ = pager.discard(reference.extent(), lsn);
        }
    }
}

/// The bytes after the header of a page, up to the last byte that is not zero.
pub(super) fn contents_of(page: &[u8]) -> &[u8] {
    let body = page.get(HEADER_BYTES..).unwrap_or_default();
    let end = body.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    body.get(..end).unwrap_or_default()
}
