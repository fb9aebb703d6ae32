//! The log of the changes of pages, as the pool and the structures on it see it. The pool knows no log beyond this.

use std::io;
use vellum_base::{Lsn, PageId};

/// The log that a pool is started with.
///
/// A record is reserved under the latches of the pages that it is about, and filled after they have been released. So for each
/// page the order of its records is that of its changes, and no latch is held while bytes are copied.
///
/// A page's LSN is that of the record of its last change; zero if no record tells of it. A page is written to storage only
/// when that record is durable.
pub trait ChangeLog: Send + Sync {
    /// Whether the next change must be [admitted](Self::admit), because the log is running out of room.
    fn is_short(&self) -> bool {
        false
    }

    /// Makes room for what comes next; called before something is changed.
    ///
    /// # Errors
    /// If there is none, or the log has failed: nothing is changed then.
    fn admit(&self) -> io::Result<()> {
        Ok(())
    }

    /// Makes room after a change was [refused](Self::admit) with this error; then it is tried again. Called by a thread that has no
    /// latch and no new page; it may wait until the database has been brought up to date.
    ///
    /// # Errors
    /// If there is no room all the same.
    fn make_room(&self, refused: io::Error) -> io::Result<()> {
        Err(refused)
    }

    /// Gives back to the device what the log keeps for later only, because something else finds no room there. Returns whether there was
    /// something; if not, the log may give up more in a moment. The thread may hold latches.
    fn give_up_spare(&self) -> bool {
        false
    }

    /// Reserves the place of a record of so many bytes; gives its LSN, which is greater than those of all records before.
    /// Waits for nothing, and cannot fail, because pages have been changed: a log that has failed says so to the threads that
    /// wait for it.
    fn reserve(&self, bytes: usize) -> Lsn;

    /// Leaves a place of so many bytes empty that was reserved.
    fn cancel(&self, at: Lsn, bytes: usize);

    /// Fills a place that was reserved, exactly. May wait until the log has room, so no latch is held.
    fn fill(&self, at: Lsn, record: &[u8]);

    /// Whether the log is to have what is written past it, too: large values, and what bulk loads write.
    fn wants_contents(&self) -> bool {
        false
    }

    /// Whether the log is to have each value whole that is changed where it lies, and not the bytes alone that differ.
    fn wants_values(&self) -> bool {
        false
    }

    /// Appends what consecutive pages hold that were written past the log. The record that says that they are allocated
    /// comes later.
    ///
    /// # Errors
    /// If the log has no room, or has failed.
    fn append_contents(&self, _first: PageId, _pages: &[u8]) -> io::Result<()> {
        Ok(())
    }

    /// Begins a row of records that count only if the last of them is in the log; gives the row's number, which is never used
    /// again. Ends by [`end_group`](Self::end_group) on the same thread. No checkpoint divides it.
    fn begin_group(&self) -> u64;

    /// Ends a row of records.
    fn end_group(&self);

    /// A page whose LSN is less is logged whole when it is changed.
    fn images_from(&self) -> Lsn;

    /// Where the next record will be.
    fn end(&self) -> Lsn;

    /// All records before this place are durable.
    fn durable(&self) -> Lsn;

    /// Asks for all records so far to be made durable. Returns at once.
    fn request_durable(&self);

    /// Returns once the record at `lsn`, and all before it, are durable.
    ///
    /// # Errors
    /// If they cannot be.
    fn make_durable(&self, lsn: Lsn) -> io::Result<()>;
}
