//! Closing a database.

use super::{DurablePool, Logged};
use crate::{
    TxnError,
    checkpoint::{CheckpointThread, wait_before},
};
use std::io;

impl DurablePool {
    /// Brings the file up to date, marks it as closed, and removes the log. The next change opens it again only if
    /// there is no log.
    ///
    /// # Errors
    /// If something cannot be written. With a log the next opening recovers everything; until then all goes on as
    /// before.
    pub fn close(&mut self) -> Result<(), TxnError> {
        // It would go on to write to what is removed below.
        self.thread = None;
        let closed = self.close_without_thread();
        if closed.is_err()
            && let Some(Logged { checkpoints, checkpoint_interval: Some(interval), .. }) = &self.logged
        {
            // If the system has no room for a thread, a change that finds the log full takes a checkpoint.
            self.thread = CheckpointThread::start(checkpoints.clone(), *interval).ok();
        }
        closed
    }

    /// Keeps what would wait for threads, or use pages in memory, from being dropped: this process is a child, made by `fork`,
    /// of the one that has opened the database, and has neither.
    pub fn leave(&mut self) {
        let pool = self.pool.for_thread();
        std::mem::forget(std::mem::replace(&mut self.pool, pool));
        std::mem::forget((self.thread.take(), self.logged.take(), self.single.transactions.clone()));
    }

    fn close_without_thread(&mut self) -> Result<(), TxnError> {
        let transactions = &self.single.transactions;
        let Some(Logged { changes, checkpoints, archiver, .. }) = &self.logged else {
            if transactions.has_writers() {
                return Err(TxnError::NotRolledBack { has_log: false });
            }
            self.pool.checkpoint()?;
            transactions.versions.spill().file.remove_name();
            return Ok(());
        };
        if changes.log.is_removed() {
            return Ok(());
        }
        if transactions.has_writers() {
            // The checkpoint makes the next opening, which undoes the rest, quick.
            checkpoints.take()?;
            return Err(TxnError::NotRolledBack { has_log: true });
        }
        checkpoints.finish_recovery()?;
        wait_before(&changes.log, changes.log.end())?;
        // Otherwise the superblock stays as it is, and nothing was logged.
        if let Some(archiver) = archiver.as_ref().filter(|_| !self.pool.is_closed()) {
            // So that what is archived is its log: a first change that failed may have left this undone.
            self.pool.mark_in_use()?;
            let archived = archiver.archive_all(true);
            archived.map_err(|source| {
                // So that the next opening is quick.
                let _ = checkpoints.take();
                TxnError::NotArchived { source }
            })?;
        }
        let closed = self.pool.checkpoint().map_err(TxnError::from).and_then(|()| {
            transactions.versions.spill().file.remove_name();
            Ok(changes.log.remove()?)
        });
        if closed.is_err() {
            // A superblock may say that the log is needed from here on only: what changes from now on needs new images.
            changes.begin_checkpoint(|end| end());
        }
        closed
    }
}

impl Drop for Logged {
    /// A commit may still be waited for, which does not keep the database open. If this was not closed, nobody flushes the log
    /// any more; nor may the one that waits, because the log may have been opened anew.
    fn drop(&mut self) {
        // Of a database that was closed all is durable, and its log has ended already.
        self.changes.log.fail(io::Error::other("the database is gone, and was not closed"));
    }
}
