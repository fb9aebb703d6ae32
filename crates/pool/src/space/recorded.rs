//! The space map according to the log: the one that checkpoints write.
//!
//! The extents allocated at a moment differ from those in the records before a place of the log: some are recorded
//! later, or never, and some are freed already. Recovery begins with the map as of its place in the log.

use super::{SpaceMap, table::UseTable};
use vellum_base::{Extent, Lsn};
use vellum_vm::VmError;

/// A record says that an extent is allocated, or that it is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SpaceEvent {
    pub(crate) lsn: Lsn,
    pub(crate) extent: Extent,
    pub(crate) allocated: bool,
}

/// The application's extents that are allocated by the records before a place of the log, and the superblocks.
pub(crate) struct RecordedMap {
    uses: UseTable,
    /// No page from here on is allocated in this map.
    end: u64,
    /// All records before this place count.
    upto: Lsn,
}

impl RecordedMap {
    pub(crate) fn new(capacity_pages: u64) -> Result<Self, VmError> {
        let uses = UseTable::reserve(capacity_pages, "the map of pages that are allocated by the log")?;
        Ok(Self { uses, end: 0, upto: Lsn(0) })
    }

    /// Takes over what is allocated at this moment, according to the records before `upto`, except the map on storage,
    /// `own`. No thread allocates or frees meanwhile.
    pub(crate) fn copy(&mut self, map: &SpaceMap, own: Option<Extent>, upto: Lsn) {
        let end = map.end();
        for index in 0..self.end.max(end).div_ceil(64) as usize {
            let (allocated, heads) = map.uses.load_pair(index);
            self.uses.store_pair(index, allocated, heads & allocated);
        }
        if let Some(own) = own {
            self.uses.clear(own.head.0, own.pages.into());
        }
        (self.end, self.upto) = (end, upto);
    }

    /// Applies the events of the records before `upto`, in order; returns the place before which all records count now.
    pub(crate) fn apply(&mut self, events: &[SpaceEvent], upto: Lsn) -> Lsn {
        for SpaceEvent { extent, allocated, .. } in events {
            let (head, pages) = (extent.head.0, extent.pages.into());
            if *allocated {
                self.uses.overwrite(head, pages);
                self.end = self.end.max(extent.end().0);
            } else if self.uses.is_extent(*extent) {
                self.uses.clear(head, pages);
            }
        }
        self.upto = self.upto.max(upto);
        self.upto
    }

    /// The page after the last one that is allocated. The file may be shorter by now: what was freed later counts here.
    pub(crate) fn end(&mut self) -> u64 {
        self.end -= self.uses.free_tail(self.end, self.end);
        self.end
    }

    /// Writes an image of the first `pages` pages, in which the map on storage, `own`, is allocated. An extent that is
    /// still allocated in its place has been freed durably: the log says so.
    pub(crate) fn write_image(&mut self, own: Extent, pages: u64, target: &mut [u8]) {
        self.uses.overwrite(own.head.0, own.pages.into());
        self.uses.write_image(pages, target);
        self.uses.clear(own.head.0, own.pages.into());
    }
}
