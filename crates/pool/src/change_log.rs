//! The log of page changes, as seen by the pool and the structures on it. The pool knows nothing else of a log.

use std::io;
use vellum_base::{Lsn, PageId};

/// The log that a pool is started with.
///
/// A record is reserved under the latches of its pages, and filled after they have been released. So for each page the
/// order of its records is that of its changes, and no latch is held while bytes are copied.
///
/// A page's LSN is that of the record of its last change; zero if it has no record. A page is written to storage only
/// after that record is durable.
pub trait ChangeLog: Send + Sync {
    /// Whether the next change must be [admitted](Self::admit), because the log is running out of room.
    fn is_short(&self) -> bool {
        false
    }

    /// Makes room for the records of the next change; called before the change begins.
    ///
    /// # Errors
    /// If there is no room, or the log has failed: then nothing is changed.
    fn admit(&self) -> io::Result<()> {
        Ok(())
    }

    /// Makes room after a change was [refused](Self::admit) with this error; the change is then tried again. The
    /// calling thread holds no latch and no new page; it may wait until the database has been brought up to date.
    ///
    /// # Errors
    /// If there is still no room.
    fn make_room(&self, refused: io::Error) -> io::Result<()> {
        Err(refused)
    }

    /// Whether the calling thread is in a [group](Self::begin_group): it waits for nobody then, because others may wait for
    /// the end of the group.
    fn is_in_group(&self) -> bool {
        false
    }

    /// Returns to the device the space that the log only keeps in reserve, because another file finds no room there.
    /// Returns whether there was any; if not, the log may free more in a moment. The thread may hold latches.
    fn give_up_spare(&self) -> bool {
        false
    }

    /// Asks for a checkpoint soon, and does not wait for it: what the pool notes for the next one takes much memory.
    /// Does nothing by default.
    fn request_checkpoint(&self) {}

    /// Reserves the place of a record of this many bytes; returns its LSN, which is greater than those of all earlier
    /// records. Never waits, and cannot fail, because pages have been changed: if the log has failed, the threads that
    /// wait for it learn of it.
    fn reserve(&self, bytes: usize) -> Lsn;

    /// Leaves a reserved place of this many bytes empty.
    fn cancel(&self, at: Lsn, bytes: usize);

    /// Fills a reserved place, exactly. May wait until the log has room, so the caller holds no latch.
    fn fill(&self, at: Lsn, record: &[u8]);

    /// Notes the life of the database that begins where the log of the life before ended, before anything of it is logged.
    fn note_life(&self, _begin: Lsn, _number: u64) {}

    /// Whether the log also takes what is written past it: large values, and the pages of bulk loads.
    fn wants_contents(&self) -> bool {
        false
    }

    /// Whether the log takes the whole value when a value is changed in place, and not only the bytes that differ.
    fn wants_values(&self) -> bool {
        false
    }

    /// Begins to append contents, and a record that refers to them. Until [`unpin_contents`](Self::unpin_contents) is called
    /// with the returned place, everything from there on is kept, and a copy of the database that is begun meanwhile has
    /// it. Nothing waits for that end.
    fn pin_contents(&self) -> Lsn {
        Lsn(0)
    }

    /// The record is in the log, or will never be: see [`pin_contents`](Self::pin_contents).
    fn unpin_contents(&self, _from: Lsn) {}

    /// Appends the contents of consecutive pages that were written past the log. The record that says that they are
    /// allocated comes later. Both come between [`pin_contents`](Self::pin_contents) and
    /// [`unpin_contents`](Self::unpin_contents).
    ///
    /// # Errors
    /// If the log has no room, or has failed.
    fn append_contents(&self, _first: PageId, _pages: &[u8]) -> io::Result<()> {
        Ok(())
    }

    /// Begins a group of records that count only if the last of them is in the log; returns the group's number, which
    /// is never reused. It ends with [`end_group`](Self::end_group) on the same thread. No checkpoint divides it.
    fn begin_group(&self) -> u64;

    /// Ends a group of records.
    fn end_group(&self);

    /// A page whose LSN is smaller is logged as a whole when it is changed.
    fn images_from(&self) -> Lsn;

    /// The place of the next record.
    fn end(&self) -> Lsn;

    /// All records before this place are durable.
    fn durable(&self) -> Lsn;

    /// Asks that all records so far be made durable. Returns at once.
    fn request_durable(&self);

    /// Returns once the record at `lsn`, and all before it, are durable.
    ///
    /// # Errors
    /// If they cannot be made durable.
    fn make_durable(&self, lsn: Lsn) -> io::Result<()>;

    /// Whether it takes records.
    ///
    /// # Errors
    /// Why it has ended: nothing more is made durable.
    fn check(&self) -> io::Result<()> {
        Ok(())
    }
}
