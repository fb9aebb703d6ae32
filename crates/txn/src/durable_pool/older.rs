//! Files that are older than their log.

use super::DurablePool;
use crate::TxnError;
use std::sync::Arc;
use vellum_pool::PoolFile;
use vellum_vm::Directory;
use vellum_wal::{LogError, LogOptions};

impl DurablePool {
    /// Fails if a closed file is [older](LogError::Newer) than the log in a directory. Any other log is not needed, and may belong
    /// to another database.
    ///
    /// # Errors
    /// That, and nothing else.
    pub fn refuse_older(file: &PoolFile, directory: &Arc<dyn Directory>) -> Result<(), TxnError> {
        let options = LogOptions { least: file.redo(), ..LogOptions::new(file.database()) };
        match vellum_wal::refuse_newer(directory, &options) {
            Err(error @ LogError::Newer { .. }) => Err(error.into()),
            _ => Ok(()),
        }
    }
}
