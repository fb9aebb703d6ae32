//! Inspecting the archive of a log.

use crate::{Backup, Result};
use std::{path::Path, sync::Arc};
use vellum_txn::{Archive, ArchivedPart, LogError, TxnError};
use vellum_vm::{Directory, DiskDirectory};

/// The contents of the archive of a database's log. [`Options::log_archive`](crate::Options::log_archive) fills an
/// archive.
pub struct LogArchive {
    parts: Vec<ArchivedPart>,
}

impl LogArchive {
    /// Reads the list of files of an archive; `backup` identifies the database to which it belongs.
    ///
    /// # Errors
    /// If the archive cannot be read, or a file in it is damaged or belongs to another database.
    pub fn open(path: impl AsRef<Path>, backup: &Backup) -> Result<Self> {
        Self::open_in(Arc::new(DiskDirectory::new(path.as_ref())), backup)
    }

    /// As [`open`](Self::open), in a directory that may be simulated.
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

    /// The first file that is needed to restore later points in time with `backup` as the last one. Only earlier
    /// backups need the files before it. The last file always counts as needed: the archive goes on after it.
    pub fn needed_by(&self, backup: &Backup) -> Option<&ArchivedPart> {
        self.parts.iter().find(|part| part.end > backup.log_needed()).or(self.parts.last())
    }
}

impl std::fmt::Debug for LogArchive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "archive of a log in {} files", self.parts.len())
    }
}
