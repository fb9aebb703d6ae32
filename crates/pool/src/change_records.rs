//! The records of changes, as seen by the structures on the pool.

use crate::error::PoolError;
use vellum_base::{Lsn, PageId};

/// The destination of the records of changes: a log, if there is one. None by default. See
/// [`ChangeLog`](crate::ChangeLog).
pub trait ChangeRecords {
    /// Whether changes are recorded. If not, nothing is gathered for records, and of the methods below only
    /// [`stamp`](Self::stamp) and those for kept pages are called.
    #[inline(always)]
    fn records(&self) -> bool {
        false
    }

    /// Whether a change whose pages are latched needs an LSN. If not, it is not recorded, no page is kept, and no
    /// transaction is open: a thread that begins one asks for LSNs before it opens it, and then reads these pages after
    /// the change.
    #[inline(always)]
    fn needs_lsn(&self) -> bool {
        true
    }

    /// The LSN of a change that is not recorded, whose pages are latched: greater than those of all earlier changes of
    /// these pages. Zero if they need no LSN, because no thread asks when they changed.
    #[inline(always)]
    fn stamp(&self) -> Lsn {
        Lsn(0)
    }

    /// A page whose LSN is smaller is [kept](Self::keep_page) before it changes; zero if no page is.
    #[inline(always)]
    fn kept_from(&self) -> Lsn {
        Lsn(0)
    }

    /// Keeps the contents of a page of the tree with this root, for snapshots that are older than the change that
    /// follows. See [`KeptPages`](crate::KeptPages).
    fn keep_page(&self, _tree: PageId, _page: &[u8]) {}

    /// Admits changes: a record that is reserved without this may lie before the place at which recovery begins to
    /// read. The thread holds no latch and no new page, since this may wait until the log has room.
    ///
    /// # Errors
    /// If the file cannot be marked as in use, or the log has no room.
    fn admit_changes(&self) -> Result<(), PoolError> {
        Ok(())
    }

    /// The number of bytes beyond which a change is divided among several records, if possible.
    fn record_bytes_max(&self) -> usize {
        vellum_base::plant::record_bytes_max().unwrap_or(256 << 10)
    }

    /// A page whose LSN is smaller is recorded as a whole when it is changed.
    fn images_from(&self) -> Lsn {
        Lsn(0)
    }

    /// Reserves the place of a record of `bytes` bytes, and returns its LSN. All pages of the change are latched, so
    /// for each page the order of the LSNs is that of its changes.
    fn reserve_record(&self, _bytes: usize) -> Lsn {
        Lsn(0)
    }

    /// Leaves the place of a record empty.
    fn cancel_record(&self, _at: Lsn, _bytes: usize) {}

    /// Fills the place of a record, after its latches have been released.
    fn fill_record(&self, _at: Lsn, _record: &[u8]) {}

    /// Whether [`persist`](crate::Allocation::persist) and [`settle`](crate::PageWriter::settle) record the contents that they make
    /// durable. Then the log must keep these contents at least until the record that refers to them: all of it happens
    /// between [`pin_contents`](Self::pin_contents) and [`unpin_contents`](Self::unpin_contents).
    fn records_contents(&self) -> bool {
        false
    }

    /// See [`ChangeLog::pin_contents`](crate::ChangeLog::pin_contents).
    fn pin_contents(&self) -> Lsn {
        Lsn(0)
    }

    /// See [`ChangeLog::unpin_contents`](crate::ChangeLog::unpin_contents).
    fn unpin_contents(&self, _from: Lsn) {}

    /// Whether the record of a value that is changed in place has the whole value, and not only the bytes that differ.
    fn records_values(&self) -> bool {
        false
    }

    /// Begins a group of records that count only if the last of them exists; returns its number.
    fn begin_group(&self) -> u64 {
        0
    }

    /// Ends a group of records.
    fn end_group(&self) {}
}
