//! What is done to a database as a whole: mending its superblocks, and removing it.

use crate::{Database, Error, Result, shared::Inner};
use std::{fs::OpenOptions, io, path::Path};
use vellum_pool::PoolError;
use vellum_txn::{ArchiveError, LogError, TxnError};
use vellum_vm::{Named, VmError};

impl Database {
    /// Writes the copies of the superblock again that are damaged ([`Problem::DamagedSuperblock`]), and returns how many
    /// that were. Nothing else is changed. After the first change of the database nothing is left to be done, because a
    /// change writes both copies.
    ///
    /// # Errors
    /// If the database is open for reading only, or they cannot be written.
    ///
    /// [`Problem::DamagedSuperblock`]: crate::Problem::DamagedSuperblock
    pub fn mend_superblocks(&self) -> Result<usize> {
        Ok(self.inner().pool().mend_superblocks()?.len())
    }

    /// Removes the database: its file, its log, and what is archived of its log ([`Options::log_archive`]), if it was
    /// opened with the archive. This must be the only handle. No other process can open the database meanwhile, and a
    /// database that one makes under the same name afterwards is not affected. An archive that has the log of another copy
    /// of the database ([`ArchiveError::Diverged`](crate::ArchiveError)) stays as it is. A symbolic link by which the
    /// database was opened stays, and leads to nothing. An empty file in which this handle has
    /// [created](Self::open_or_create) the database stays, too, and is empty again.
    ///
    /// # Errors
    /// [`Error::StillInUse`] if there are other handles; if the database is open for reading only; if the file has been
    /// moved since it was opened, whether or not another one has its place now: then nothing is removed. If something cannot
    /// be removed, it is left, with what would be removed after it.
    ///
    /// [`Options::log_archive`]: crate::Options::log_archive
    pub fn discard(mut self) -> Result<()> {
        self.inner_if_alone()?.discard()
    }
}

impl Inner {
    fn discard(&mut self) -> Result<()> {
        if self.pool().is_read_only() {
            return Err(PoolError::ReadOnly.into());
        }
        let file = self.log_place.file().unwrap_or(self.pool().path()).to_owned();
        // Before anything is removed.
        self.has_its_name(&file)?;
        let has_own_archive = self.has_own_archive()?;
        // The close also waits for the archive. If it fails, the log is not needed all the same.
        let is_closed = self.close().is_ok();
        if !is_closed {
            self.freeing.stop();
            self.durable.abandon();
        }
        if let Some(archive) = self.durable.archive().filter(|_| has_own_archive) {
            archive.remove_parts().map_err(|error| TxnError::from(LogError::from(error)))?;
        }
        // Before the file: a process that makes a new one then makes this directory too, and it is another's.
        std::mem::take(&mut self.log_place).remove();
        if !self.has_its_name(&file)? {
            return Ok(());
        }
        // What could not be closed may still be written to.
        let removed = match self.keeps_file && is_closed {
            true => OpenOptions::new().write(true).open(&file).and_then(|held| held.set_len(0)),
            false => std::fs::remove_file(&file),
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(not_removed(&file, error)),
            _ => Ok(()),
        }
    }

    /// Whether a path leads to the file of the database. If not, it was removed.
    ///
    /// # Errors
    /// If it was moved, whatever has its place now.
    fn has_its_name(&self, file: &Path) -> Result<bool> {
        let why = match self.pool().named(file).map_err(|error| not_removed(file, error))? {
            Named::Itself => return Ok(true),
            Named::Removed => return Ok(false),
            Named::Another => "another file stands there now, and the database was moved or removed",
            Named::Moved => "the database was moved; open it where it is now",
        };
        Err(not_removed(file, io::Error::other(why)))
    }

    /// Whether the archive is known to have the log of this database, or nothing yet, and not the log of another copy of
    /// it.
    ///
    /// # Errors
    /// If that cannot be found out.
    fn has_own_archive(&self) -> Result<bool> {
        let Some(archive) = self.durable.archive() else { return Ok(false) };
        // The archive is examined before anything is added to it.
        let archived = self.durable.archive_log();
        if self
            .durable
            .log_state()
            .is_some_and(|state| state.archive.is_some_and(|archive| archive.end.is_some()))
        {
            return Ok(true);
        }
        let is_of_another =
            |error: &ArchiveError| matches!(error, ArchiveError::Diverged { .. } | ArchiveError::Foreign);
        match (archived, archive.last()) {
            (Err(TxnError::Log(LogError::Archive(error))), _) if is_of_another(&error) => Ok(false),
            // There is nothing in it. What the close adds is this database's.
            (_, Ok(None)) => Ok(true),
            (archived, _) => Ok(archived.map(|_| false)?),
        }
    }
}

fn not_removed(path: &Path, source: io::Error) -> Error {
    PoolError::from(VmError::Open { path: path.to_owned(), action: "remove", source }).into()
}

#[cfg(test)]
mod tests {
    use crate::{Database, ErrorKind, Options};
    use std::sync::Arc;
    use vellum_vm::{Directory as _, FileOperation, SimulatedDisk};

    #[test]
    fn what_is_discarded_is_gone_and_so_is_what_was_archived() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        let options = Options::default().pool_bytes(1 << 20).capacity_bytes(1 << 30);
        let archived = options.clone().log_archive(path("archive"));
        for _ in 0..2 {
            let database = Database::create(path("data"), &archived).unwrap();
            let table = database.create_table("table").unwrap();
            table.put("key", "value").unwrap();
            database.archive_log().unwrap();
            assert!(std::fs::read_dir(path("archive")).unwrap().count() > 0);
            let error = database.clone().discard().unwrap_err();
            assert_eq!(error.kind(), crate::Error::StillInUse { handles: 1 }.kind());
            drop(table);
            database.discard().unwrap();
            assert!(!path("data").exists() && !path("data-log").exists());
            assert_eq!(std::fs::read_dir(path("archive")).unwrap().count(), 0);
        }
    }

    #[test]
    fn what_a_close_archives_after_a_passing_failure_is_gone_too() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options::default().pool_bytes(1 << 20).capacity_bytes(1 << 30);
        for operation in
            [FileOperation::Name, FileOperation::Resize, FileOperation::Write, FileOperation::Sync]
        {
            for nth in 1..=3 {
                let (path, parts) = (folder.path().join("data"), SimulatedDisk::new(1));
                let archived = options.clone().log_archive_in(Arc::new(parts.clone()));
                let database = Database::create(&path, &archived).unwrap();
                database.create_table("table").unwrap().put("key", "value").unwrap();
                parts.fail_nth_of(operation, nth);
                let discarded = database.discard();
                assert!(discarded.is_ok() || nth > 1, "{operation}: {}", discarded.unwrap_err());
                if discarded.is_err() {
                    let without = options.clone().end_log_archive(true);
                    Database::open(&path, &without).unwrap().discard().unwrap();
                    continue;
                }
                assert_eq!(parts.names().unwrap(), [""; 0], "{operation} {nth}");
                assert!(!path.exists());
            }
        }
    }

    #[test]
    fn a_database_made_anew_while_another_is_discarded_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let options = Options::default().pool_bytes(1 << 20).capacity_bytes(1 << 30);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut rounds = 0;
                    while rounds < 10 {
                        let database = match Database::open_or_create(&path, &options) {
                            Err(error) if error.kind() == ErrorKind::Busy => continue,
                            opened => opened.unwrap(),
                        };
                        assert!(database.was_created(), "all others are discarded");
                        database.create_table("table").unwrap().put("key", "value").unwrap();
                        database.discard().unwrap();
                        rounds += 1;
                    }
                });
            }
        });
        let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap()).collect();
        let left: Vec<_> =
            left.iter().map(|entry| (entry.file_name(), entry.metadata().unwrap().len())).collect();
        assert_eq!(left, []);
    }
}
