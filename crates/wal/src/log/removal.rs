//! The end of a log: after a close, or after an opening that failed.

use super::{Log, lock};
use crate::{
    LogError,
    files::{remove, remove_all},
    turn::Failure,
};

impl Log {
    /// Removes the log, durably: the database is closed, and no longer needs it. The log accepts nothing more. The next
    /// log [begins](Self::begin) at the [end](Self::end) of this one.
    ///
    /// # Errors
    /// If the system cannot remove a file. The next log gives up what is left; so does an opening without a log.
    pub fn remove(&self) -> Result<(), LogError> {
        self.end_with(Failure::Removed);
        // Whatever is being made or written is finished first.
        let (_maker, _device) = (lock(&self.maker), lock(&self.device));
        remove_all(&*self.directory, &self.options)
    }

    /// Whether it was [removed](Self::remove).
    pub fn is_removed(&self) -> bool {
        matches!(lock(&self.turn).failure, Some(Failure::Removed))
    }

    /// Takes back what [`open`](Self::open) has begun, if nothing was appended since: otherwise each opening that fails
    /// would leave a segment more. The log accepts nothing more. The database knows this life durably, or never will.
    ///
    /// # Errors
    /// If the system cannot write or remove a file. The next opening begins after it then.
    pub fn withdraw(&self) -> Result<(), LogError> {
        self.end_with(Failure::Removed);
        // Whatever is being made or written is finished first.
        let (_maker, mut device) = (lock(&self.maker), lock(&self.device));
        if self.end().0 > self.begin {
            return Ok(());
        }
        // The next opening does not look for a segment of this life. What is not noted stays.
        let noted = device.note_withdrawn();
        let is_noted = noted.map_err(|source| LogError::Files { action: "mark the last segment", source })?;
        // A crash may bring the files back: the segment says that it follows on the log that is still there.
        if is_noted { remove(&*self.directory, &device.withdrawable_numbers()) } else { Ok(()) }
    }
}
