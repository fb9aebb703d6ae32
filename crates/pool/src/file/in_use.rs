//! The first change of all marks the file as in use, so that it is not taken for a closed one after a crash.

use crate::{
    error::PoolError,
    file::lifecycle::write_superblocks,
    file::storage::Storage,
    file::superblock::State,
    primitive::{Bug, Ordering, planted},
};

impl Storage {
    /// Admits changes if the file can be marked as in use.
    ///
    /// # Errors
    /// If it cannot be marked, or a sync or a write has failed meanwhile.
    pub(crate) fn admit_changes(&self) -> Result<(), PoolError> {
        self.mark_in_use()?;
        self.admission.give(|| {
            self.refuse_if_poisoned()?;
            self.outage.error().map_or(Ok(()), Err)
        })
    }

    /// Makes the superblocks say "in use", if they do not say so yet.
    ///
    /// # Errors
    /// If the file is open for reading only, or the superblocks cannot be written.
    pub(crate) fn mark_in_use(&self) -> Result<(), PoolError> {
        if self.marked_in_use.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.is_read_only() {
            return Err(PoolError::ReadOnly);
        }
        let mut superblock = self.lock_superblock();
        if self.marked_in_use.load(Ordering::Acquire) && !planted(Bug::MarkedTwice) {
            return Ok(());
        }
        if let Some(log) = self.log() {
            // A log that was removed must not be needed again.
            log.check().map_err(PoolError::LogRefuses)?;
            // The map stays until a checkpoint has written the next one, for which there must be room. A file without a
            // map is still being created: if it grew before it says that it has a log, it could not be opened after a
            // crash.
            superblock.is_log_archived = superblock.archives_log;
            let is_new = superblock.space_map.is_none();
            if !is_new {
                self.keep_map_room([])?;
            }
            // An attempt before may have failed to write it: this is the same life.
            if superblock.state != State::Logged {
                superblock.state = State::Logged;
                let end = superblock.redo;
                log.note_life(end, superblock.lives.begin(end));
            }
            superblock.redo = superblock.redo.max(log.end());
            superblock.undo = superblock.redo;
            self.poison_if_sync_failed(write_superblocks(&*self.file, &mut superblock))?;
            if is_new {
                self.keep_map_room([])?;
            }
            self.marked_in_use.store(true, Ordering::Release);
            return Ok(());
        }
        superblock.is_log_archived = superblock.archives_log;
        // From here on the file may say "in use", whether or not this write succeeds.
        superblock.state = State::InUse;
        // Changes from now on have no LSN, so no incremental backup may build on a backup of the earlier state.
        superblock.renew_database();
        // No feed has all that was done since the log ended: when a log goes on, it does not follow on that place.
        superblock.redo.0 += 1;
        let end = superblock.redo;
        superblock.lives.begin_without_log(end);
        let old_map = superblock.space_map.take();
        if let Err(error) = self.poison_if_sync_failed(write_superblocks(&*self.file, &mut superblock)) {
            superblock.space_map = old_map;
            return Err(error);
        }
        if let Some(extent) = old_map {
            // The old map's place may be reused only if there is room for the next map elsewhere.
            match self.grow_file_for(self.space.end()) {
                Ok(()) => self.free_space_map(extent),
                Err(_) => superblock.space_map = old_map,
            }
        }
        self.marked_in_use.store(true, Ordering::Release);
        Ok(())
    }
}
