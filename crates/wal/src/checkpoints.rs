//! Checkpoints of the database, which the log notes: a file that has only an earlier one is an older copy.

use crate::{Log, LogError};
use vellum_base::Lsn;

impl Log {
    /// Notes that the database's file has a checkpoint with this redo point, durably, and will always have that or a later one. The
    /// segment that is being written is marked with it. The mark becomes durable with what is logged next. See
    /// [`known_checkpoint`](Self::known_checkpoint).
    ///
    /// # Errors
    /// If the segment cannot be written. The log goes on.
    pub fn note_checkpoint(&self, redo: Lsn) -> Result<(), LogError> {
        let mut device = self.device();
        // Another opening may use the segment by now.
        if self.has_failed() {
            return Ok(());
        }
        let marked = device.mark_checkpoint(redo.0);
        marked.map_err(|source| LogError::Files { action: "mark the last segment", source })
    }
}
