//! Places of records in the log: reserved in order, filled in parallel.

use crate::{Log, LogError, frame::frame_bytes};
use vellum_base::Lsn;

impl Log {
    /// Appends a record and returns its place. The record is neither written nor durable yet: see [`wait`](Self::wait).
    ///
    /// # Errors
    /// As for [`admit`](Self::admit), [`reserve`](Self::reserve) and [`Reservation::fill`].
    pub fn append(&self, payload: &[u8]) -> Result<Lsn, LogError> {
        self.admit()?;
        self.reserve(payload.len())?.fill(payload)
    }

    /// Reserves the place of a record of `payload_bytes`. This never waits, so it may be done under latches: records
    /// are in the order of their reservations.
    ///
    /// # Errors
    /// [`LogError::RecordTooLong`].
    #[inline]
    pub fn reserve(&self, payload_bytes: usize) -> Result<Reservation<'_>, LogError> {
        let bytes_max = self.options().record_bytes_max();
        if payload_bytes > bytes_max {
            return Err(LogError::RecordTooLong { bytes: payload_bytes, bytes_max });
        }
        let lsn = self.reserve_place(frame_bytes(payload_bytes));
        Ok(Reservation { log: self, lsn, payload_bytes, is_open: true })
    }
}

/// The place of a record that has not been written yet. All later records wait for it, so it must be filled at once. If
/// it is dropped, its place is filled with a void.
#[must_use = "the records after it wait for it"]
pub struct Reservation<'l> {
    log: &'l Log,
    lsn: u64,
    payload_bytes: usize,
    is_open: bool,
}

impl Reservation<'_> {
    /// Where the record will be.
    #[inline]
    pub fn lsn(&self) -> Lsn {
        Lsn(self.lsn)
    }

    /// Writes the record into its place, which has exactly its length. If the buffer is full this waits until the
    /// buffer has been written, so no latch may be held.
    ///
    /// # Errors
    /// As for [`Log::wait`]: the record is not in the log.
    ///
    /// # Panics
    /// If the payload has a different length.
    pub fn fill(mut self, payload: &[u8]) -> Result<Lsn, LogError> {
        assert_eq!(payload.len(), self.payload_bytes, "a record is as long as its place");
        self.is_open = false;
        self.log.fill_at(self.lsn(), payload)?;
        Ok(self.lsn())
    }

    /// Where the record will be, for a caller that keeps only that. The caller must fill the place by [`Log::fill_at`]
    /// or give it up by [`Log::cancel_at`].
    #[must_use = "the records after it wait for it"]
    pub fn into_lsn(mut self) -> Lsn {
        self.is_open = false;
        self.lsn()
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // If that fails the log accepts nothing more.
            let _ = self.log.cancel_at(self.lsn(), self.payload_bytes);
        }
    }
}
