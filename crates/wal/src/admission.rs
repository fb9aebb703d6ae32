//! Whether the log has room for what comes next.
//!
//! Before anything is changed there are segments for a buffer of records beyond the end of the log, and for the undo of
//! the open transactions: these can be rolled back on a full disk, by the process or by the recovery after it.

use crate::{Log, LogError, files::remove, primitive::Ordering};
use std::iter;

impl Log {
    /// Makes the next segments before they are needed, so that no transaction waits for that.
    ///
    /// # Errors
    /// [`LogError::NoRoom`] if they cannot be made. It is tried again when they are needed.
    pub fn prepare(&self) -> Result<(), LogError> {
        self.prepare_to(self.wanted(self.end().0), false)
    }

    /// Makes sure that there are segments for what comes next. Called before anything that will be logged is latched or
    /// done.
    ///
    /// # Errors
    /// [`LogError::NoRoom`] if there is no room for them. Nothing has happened then, and it may be tried again.
    #[inline]
    pub fn admit(&self) -> Result<(), LogError> {
        if self.is_short() {
            self.prepare_to(self.needed().max(self.end_of_small_segment()), true)
        } else {
            Ok(())
        }
    }

    /// Whether it accepts nothing more: [`check`](Self::check) says why.
    #[inline]
    pub fn has_failed(&self) -> bool {
        // Acquire: pairs with the failure.
        self.has_failed.load(Ordering::Acquire)
    }

    /// Up to where segments are needed to fill the present one, if they are smaller than the buffer: see
    /// [`give_up_idle`](Self::give_up_idle). Of larger ones, an additional one would cost much.
    fn end_of_small_segment(&self) -> u64 {
        let (geometry, buffer) = (self.device().geometry(), self.options().buffer_bytes);
        let end = geometry.start(geometry.number(self.end().0) + 1) + buffer;
        if geometry.payload() < buffer { end } else { 0 }
    }

    /// Up to where segments are needed for whatever comes next, and for the undo of all open transactions.
    #[inline]
    fn needed(&self) -> u64 {
        // Relaxed: it grows before the changes that need it, and there is a buffer in addition.
        self.end().0 + self.options().buffer_bytes + self.for_undo.load(Ordering::Relaxed)
    }

    /// As [`admit`](Self::admit), for a thread that has begun what must be recorded as a whole, so that it cannot wait for room.
    /// Others may have used some of the room that it found: half of the buffer that they leave suffices.
    ///
    /// # Errors
    /// As for `admit`.
    pub fn admit_rest(&self) -> Result<(), LogError> {
        let buffer = self.options().buffer_bytes;
        self.prepare_to(self.needed() - buffer / 2, true)
    }

    /// As [`admit`](Self::admit), for undoing a transaction. A quarter of the buffer that others leave suffices, and it
    /// takes what is [kept](Self::keep_for_undo) for undo, so that a transaction can be rolled back on a full disk.
    ///
    /// # Errors
    /// As for `admit`.
    pub fn admit_undo(&self) -> Result<(), LogError> {
        self.prepare_to(self.end().0 + self.options().buffer_bytes / 4, true)
    }

    /// Whether [`admit`](Self::admit) would have to make segments, or the log accepts nothing more.
    #[inline]
    pub fn is_short(&self) -> bool {
        // Relaxed: a hint. What is reserved between this call and the caller's reservation is far less than a buffer.
        self.needed() > self.prepared.end()
    }

    /// Keeps `more` additional bytes, and `fewer` bytes less, of the room that is [admitted](Self::admit) for
    /// [undoing](Self::admit_undo) transactions.
    pub fn keep_for_undo(&self, more: u64, fewer: u64) {
        // Relaxed: it grows before the changes that need it, and there is a buffer in addition.
        if more >= fewer {
            self.for_undo.fetch_add(more - fewer, Ordering::Relaxed);
        } else {
            self.for_undo.fetch_sub(fewer - more, Ordering::Relaxed);
        }
    }

    /// Removes files that are kept for later segments, so that others find room on the device. Returns whether there
    /// were any. What has been [admitted](Self::admit) still has its segments, and changes are admitted until the
    /// present segment is full: then the log can go on in what a checkpoint gives up, which is not the present segment.
    pub fn give_up_idle(&self) -> bool {
        let mut device = self.device();
        let kept = device.segment_end() + self.options().buffer_bytes;
        let idle: Vec<u64> =
            iter::from_fn(|| device.take_idle_beyond(kept)).map(|(number, _)| number).collect();
        drop(device);
        !idle.is_empty() && remove(self.directory(), &idle).is_ok()
    }
}
