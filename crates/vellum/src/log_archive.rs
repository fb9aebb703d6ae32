//! The archive of a log, looked at.

use crate::{Backup, Result};
use std::{path::Path, sync::Arc};
use vellum_txn::{Archive, ArchivedPart, LogError, TxnError};
use vellum_vm::{Directory, DiskDirectory};

/// The archive of the log of a database, to see what is in it. [`Options::log_archive`](crate::Options::log_archive) fills one.
pub struct LogArchive {
    parts: Vec<ArchivedPart>,
}

impl LogArchive {
    /// Looks at the archive of the database of which a backup was made.
    ///
    /// # Errors
    /// If it cannot be read, or a file of it is damaged or belongs to another database.
    pub fn open(path: impl AsRef<Path>, backup: &Backup) -> Result<Self> {
        Self::open_in(Arc::new(DiskDirectory::new(path.as_ref())), backup)
    }

    /// As [`open`](Self::open), in a directory that may be a simulated one.
    ///
    /// # Errors
    /// As for `open`.
    pub fn open_in(directory: Arc<dyn Directory>, backup: &Backup) -> Result<Self> {
        let parts = Archive::new(directory, backup.database()).parts();
        Ok(Self { parts: parts.map_err(|error| TxnError::from(LogError::from(error)))? })
    }

    /// The files, in the order of the log.
    pub fn parts(&self) -> &[ArchivedPart] {
        &self.parts
    }

    /// The first file that is needed to restore later points in time with a backup as the last one. Those before it are needed by
    /// earlier backups only.
    pub fn needed_by(&self, backup: &Backup) -> Option<&ArchivedPart> {
        self.parts.iter().find(|part| part.end > backup.log_needed())
    }
}
