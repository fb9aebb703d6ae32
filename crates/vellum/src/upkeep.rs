//! What is done to a database as a whole: mending its superblocks, and removing it.

use crate::{Database, Result, shared::Inner};
use std::io;
use vellum_pool::PoolError;
use vellum_txn::{LogError, TxnError};
use vellum_vm::VmError;

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
    /// database that one makes under the same name afterwards is not affected.
    ///
    /// # Errors
    /// [`Error::StillInUse`](crate::Error::StillInUse) if there are other handles; if something cannot be removed, which is then left, with what
    /// would be removed after it.
    ///
    /// [`Options::log_archive`]: crate::Options::log_archive
    pub fn discard(mut self) -> Result<()> {
        self.inner_if_alone()?.discard()
    }
}

impl Inner {
    fn discard(&mut self) -> Result<()> {
        // The close also waits for the archive. If it fails, the log is not needed all the same.
        if self.close().is_err() {
            self.durable.abandon();
        }
        if let Some(archive) = self.durable.archive() {
            archive.remove_parts().map_err(|error| TxnError::from(LogError::from(error)))?;
        }
        // Before the file: a process that makes a new one then makes this directory too, and it is another's.
        std::mem::take(&mut self.log_place).remove();
        let path = self.pool().path();
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(PoolError::from(VmError::Open { path: path.to_owned(), action: "remove", source: error })
                    .into())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Database, ErrorKind, Options};

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
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
