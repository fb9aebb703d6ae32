//! What the log knows of the lives of the database.

use super::{DurablePool, Logged};
use crate::{
    TxnError,
    plant::{Bug, planted},
};
use vellum_base::Lsn;
use vellum_pool::PoolFile;
use vellum_wal::Log;

impl DurablePool {
    /// Begins a life of the database, if its log is continued, and tells the log of all lives.
    pub(super) fn begin_life(file: &mut PoolFile, log: &Log, is_continued: bool) -> Result<(), TxnError> {
        if is_continued {
            file.begin_life(log.former_end());
            // From now on space is used that the last checkpoint gave up.
            file.confirm()?;
        }
        let (lives, are_some_forgotten) = file.lives();
        if lives.is_empty() {
            // The file may have been changed without a log, after lives that it does not know.
            log.lives.note_known_from(log.former_end());
        }
        lives.into_iter().for_each(|(begin, number)| log.lives.note(begin, number));
        file.known_lives().1.iter().for_each(|begin| log.lives.note_known_from(*begin));
        if are_some_forgotten {
            log.lives.note_forgotten();
        }
        Ok(())
    }

    /// Whether what is before a place in the log is what a life of the database has logged, as far as the number of the life is
    /// known. Without a log, false.
    pub fn has_logged(&self, before: Lsn, life: u64) -> bool {
        let has = |logged: &Logged| logged.changes.log.lives.have(before, life);
        self.logged.as_ref().is_some_and(has) || planted(Bug::OtherHistoryFollowed)
    }
}
