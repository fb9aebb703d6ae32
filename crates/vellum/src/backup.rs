//! Backups, made while the database is in use, and databases restored from them.
//!
//! The file that is being made has a temporary name until it is complete and durable, and never replaces an existing
//! file. A file that has the temporary name and is not what an interrupted attempt leaves is not replaced either.

use crate::{Database, Error, Options, Recovery, Result, log_place};
use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};
use vellum_base::{Lsn, PAGE_SIZE};
use vellum_pool::renew_database;
use vellum_txn::{
    BackupError, BackupFile, BackupProgress, BackupSummary, LogError, PointInTime, RestoredPoint, TxnError,
    Until, restore,
};
use vellum_vm::{AlignedBuffer, CreateMode, Directory, DiskDirectory, DiskFile, File, FileOptions, VmError};

/// The suffix of the name of an incomplete file.
const UNFINISHED: &str = ".unfinished";
/// What is in the first page of a backup, and at which offset.
const BACKUP: (usize, &[u8]) = (0, b"VELLUMBK");
/// What is in the first page of a database, behind the header that all pages have.
const DATABASE: (usize, &[u8]) = (32, b"VELLUMDB");
/// As much of a page is written at once, in bytes, if the power fails.
const SECTOR_BYTES: usize = 512;

/// Options of a backup: see [`Database::backup_with`].
#[derive(Default)]
#[must_use = "options do nothing until a backup is made with them"]
pub struct BackupOptions<'o> {
    former: Option<&'o Backup>,
    progress: Option<&'o mut dyn FnMut(BackupProgress) -> bool>,
}

impl<'o> BackupOptions<'o> {
    /// Makes an increment: it holds only what may have changed since another backup of this database, which is a full
    /// one or an increment itself. All pages are read, but few are written.
    pub fn since(mut self, former: &'o Backup) -> Self {
        self.former = Some(former);
        self
    }

    /// Reports progress now and then. If `progress` returns false, the backup ends and nothing of it is kept. It may use
    /// the database, but not make another backup of it: one is made at a time, so that would wait for itself.
    pub fn progress(mut self, progress: &'o mut dyn FnMut(BackupProgress) -> bool) -> Self {
        self.progress = Some(progress);
        self
    }
}

impl Database {
    /// Makes a backup while other threads keep working. The result is one file. It holds everything that was committed
    /// before the backup began, and of what is committed meanwhile everything up to some commit. [`Backup::restore`]
    /// makes a database from it.
    ///
    /// Pages are read past the pool and their checksums are verified. The log written since the backup began is kept
    /// until it has been copied, and towards the end freed pages are not reused for a moment: while the database or its
    /// disk is full, changes may wait for that, for up to five seconds. Until the file is complete and durable, its name
    /// ends in `.unfinished`.
    ///
    /// # Errors
    /// [`BackupError`]: if the target already exists or cannot be written, pages of the database are damaged, or the
    /// database is full and changes that go on need the space of what is being copied ([`BackupError::Full`]). The
    /// database is unaffected.
    ///
    /// # Examples
    /// ```
    /// use vellum::{Backup, Database, Options};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = |name| directory.path().join(name);
    /// let database = Database::create(path("fruit"), &Options::default())?;
    /// let table = database.create_table("fruit")?;
    /// table.put(b"apple", b"red")?;
    /// database.backup(path("monday"))?;
    /// table.put(b"apple", b"green")?;
    ///
    /// Backup::restore(&[Backup::open(path("monday"))?], path("restored"), &Options::default())?;
    /// let restored = Database::open(path("restored"), &Options::default())?;
    /// assert_eq!(restored.table("fruit")?.get(b"apple")?.as_deref(), Some(&b"red"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn backup(&self, target: impl AsRef<Path>) -> Result<BackupSummary> {
        self.backup_with(target, BackupOptions::default())
    }

    /// As [`backup`](Self::backup), or an increment: see [`BackupOptions`].
    ///
    /// # Errors
    /// As for `backup`; [`BackupError::Order`] if the former backup is not of this database, or the database was
    /// restored from a backup since.
    pub fn backup_with(&self, target: impl AsRef<Path>, options: BackupOptions<'_>) -> Result<BackupSummary> {
        self.backup_to(&Target::at(target.as_ref()), options)
    }

    /// As [`backup_with`](Self::backup_with), in a directory that may be simulated.
    ///
    /// # Errors
    /// As for `backup_with`.
    pub fn backup_in(
        &self,
        directory: Arc<dyn Directory>,
        name: &str,
        options: BackupOptions<'_>,
    ) -> Result<BackupSummary> {
        self.backup_to(&Target { directory, name: name.to_owned(), path: None }, options)
    }

    fn backup_to(&self, target: &Target, options: BackupOptions<'_>) -> Result<BackupSummary> {
        target.refuse_if_there()?;
        let file = target.open_unfinished(BACKUP)?;
        let mut quiet = |_| true;
        let progress = options.progress.unwrap_or(&mut quiet);
        let unfinished = Unfinished(target);
        let summary =
            self.inner().durable.back_up(file, options.former.map(|former| &former.file), progress)?;
        target.finish()?;
        unfinished.keep();
        Ok(summary)
    }
}

/// Options for restoring a database: see [`Backup::restore_with`].
#[derive(Default)]
#[must_use = "options do nothing until a database is restored with them"]
pub struct RestoreOptions<'o> {
    archive: Option<Arc<dyn Directory>>,
    log: Option<Arc<dyn Directory>>,
    until: Until,
    progress: Option<&'o mut dyn FnMut(u64, u64) -> bool>,
}

impl<'o> RestoreOptions<'o> {
    /// Continues with what was committed after the backup, from this archive of the log: see [`Options::log_archive`].
    /// The restored database then holds everything that was committed up to the [target](Self::until), and nothing
    /// after it, not even in part.
    pub fn archive(self, directory: impl AsRef<Path>) -> Self {
        self.archive_in(Arc::new(DiskDirectory::new(directory.as_ref())))
    }

    /// As [`archive`](Self::archive), in a directory that may be simulated.
    pub fn archive_in(mut self, directory: Arc<dyn Directory>) -> Self {
        self.archive = Some(directory);
        self
    }

    /// Continues, where the archive ends, with the log of the lost database, if that still exists: see
    /// [`Database::log_path`]. The log is not changed.
    pub fn log(self, directory: impl AsRef<Path>) -> Self {
        self.log_in(Arc::new(DiskDirectory::new(directory.as_ref())))
    }

    /// As [`log`](Self::log), in a directory that may be simulated.
    pub fn log_in(mut self, directory: Arc<dyn Directory>) -> Self {
        self.log = Some(directory);
        self
    }

    /// How far the archive is followed. By default to its end.
    pub fn until(mut self, until: Until) -> Self {
        self.until = until;
        self
    }

    /// Reports how many pages of how many have been written. If `progress` returns false, the restore ends and nothing
    /// of it is kept.
    pub fn progress(mut self, progress: &'o mut dyn FnMut(u64, u64) -> bool) -> Self {
        self.progress = Some(progress);
        self
    }
}

/// A complete backup, opened to restore it or to make an increment based on it.
pub struct Backup {
    file: BackupFile,
}

/// The result of restoring a database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Restored {
    /// What was redone from the log in the backup; none if the backup was made of a database that was closed.
    pub recovery: Option<Recovery>,
    /// The point up to which the archive was followed, if one was given.
    pub point: Option<RestoredPoint>,
}

impl Backup {
    /// Opens a backup and checks its beginning and its end. Other processes may open it at the same time.
    ///
    /// # Errors
    /// If there is no such file, or it is not a backup, is of a later version, was not finished, or is damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_file(
            DiskFile::open(path.as_ref(), &read_only()).map(|file| Arc::new(file) as Arc<dyn File>),
        )
    }

    /// As [`open`](Self::open), in a directory that may be simulated.
    ///
    /// # Errors
    /// As for `open`.
    pub fn open_in(directory: &dyn Directory, name: &str) -> Result<Self> {
        Self::open_file(directory.open(name, &read_only()))
    }

    fn open_file(file: std::result::Result<Arc<dyn File>, VmError>) -> Result<Self> {
        let file = file.map_err(BackupError::Open).map_err(Error::Backup)?;
        Ok(Self { file: BackupFile::open(file)? })
    }

    /// Whether it holds only what changed since another one.
    pub fn is_increment(&self) -> bool {
        self.file.former().is_some()
    }

    /// When the backup was begun and finished. It contains what was committed before the first time, and nothing that
    /// was begun after the second.
    pub fn times(&self) -> (SystemTime, SystemTime) {
        self.file.times()
    }

    /// How many pages it holds, and how many bytes of log.
    pub fn sizes(&self) -> (u64, u64) {
        self.file.sizes()
    }

    /// The first place in the log that is needed to restore a later point in time with this backup as the last one.
    pub fn log_needed(&self) -> Lsn {
        self.file.needed()
    }

    pub(crate) fn database(&self) -> [u8; 16] {
        self.file.database()
    }

    /// Makes a database from a full backup and the increments based on it, in their order. The new database is closed,
    /// and holds what was committed at one moment: the end of the last backup. It counts as a different database from
    /// then on: an increment of it must be based on a backup of the new database.
    ///
    /// # Errors
    /// If the target already exists, the backups do not follow on one another or are damaged, or something cannot be
    /// written. After an error nothing is left.
    pub fn restore(backups: &[Self], path: impl AsRef<Path>, options: &Options) -> Result<Restored> {
        Self::restore_with(backups, path, options, RestoreOptions::default())
    }

    /// As [`restore`](Self::restore), or to a later point in time, with the archive of the log: see [`RestoreOptions`].
    /// The restored database does not continue that archive: its own log needs another one.
    ///
    /// # Errors
    /// As for `restore`; also if parts of the archive that are needed are missing or damaged
    /// ([`ArchiveError`](crate::ArchiveError)), and if the target lies before the end of the backup or after the end of
    /// the archive.
    ///
    /// # Examples
    /// ```
    /// use vellum::{Backup, Database, Options, RestoreOptions, Until};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = |name| directory.path().join(name);
    /// let database = Database::create(path("fruit"), &Options::default().log_archive(path("archive")))?;
    /// let table = database.create_table("fruit")?;
    /// table.put(b"apple", b"red")?;
    /// database.backup(path("monday"))?;
    /// table.put(b"apple", b"green")?;
    /// let before = database.archive_log()?;
    /// database.run(|transaction| transaction.remove(&table, b"apple"))?;
    /// drop(table);
    /// database.close()?;
    ///
    /// let options = RestoreOptions::default().archive(path("archive")).until(Until::Before(before));
    /// Backup::restore_with(&[Backup::open(path("monday"))?], path("restored"), &Options::default(), options)?;
    /// let restored = Database::open(path("restored"), &Options::default())?;
    /// assert_eq!(restored.table("fruit")?.get(b"apple")?.as_deref(), Some(&b"green"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn restore_with(
        backups: &[Self],
        path: impl AsRef<Path>,
        options: &Options,
        how: RestoreOptions<'_>,
    ) -> Result<Restored> {
        let options = &options.clone().without_archive();
        let target = Target::at(path.as_ref());
        let log = log_place::path_of(path.as_ref());
        if std::fs::read_dir(&log).is_ok_and(|mut files| files.next().is_some()) {
            return Err(Error::RestoreExists { path: log, is_log: true });
        }
        let unfinished = target.directory_path().join(target.unfinished());
        let log = log_place::path_of(&unfinished);
        let made = std::fs::create_dir(&log).or_else(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Ok(()),
            _ => Err(error),
        });
        made.map_err(|source| Error::LogDirectory { path: log.clone(), source })?;
        let open = || Database::open(&unfinished, options);
        let restored = restore_to(backups, &target, &DiskDirectory::new(&log), (options, &open), how);
        // The directory is empty, after a failure too. If it is not, it does no harm.
        let _ = std::fs::remove_dir(&log);
        restored
    }

    /// As [`restore`](Self::restore), in a directory that may be simulated and holds the log of no other database.
    ///
    /// # Errors
    /// As for `restore`.
    pub fn restore_in(
        backups: &[Self],
        directory: Arc<dyn Directory>,
        name: &str,
        options: &Options,
        how: RestoreOptions<'_>,
    ) -> Result<Restored> {
        let options = &options.clone().without_archive();
        let target = Target { directory: directory.clone(), name: name.to_owned(), path: None };
        let unfinished = target.unfinished();
        let open = || Database::open_in(directory.clone(), &unfinished, options);
        restore_to(backups, &target, &*directory, (options, &open), how)
    }
}

fn restore_to(
    backups: &[Backup],
    target: &Target,
    log: &dyn Directory,
    (options, open): (&Options, &dyn Fn() -> Result<Database>),
    how: RestoreOptions<'_>,
) -> Result<Restored> {
    if target.is_there()? {
        return Err(Error::RestoreExists { path: target.shown(), is_log: false });
    }
    let RestoreOptions { archive, log: lost, until, progress } = how;
    let mut quiet = |_, _| true;
    let progress = progress.unwrap_or(&mut quiet);
    let has_lost = lost.is_some();
    let point = archive.map(|archive| PointInTime { archive, log: lost, until });
    let point = point.as_ref().map(|point| (point, options.log_settings.segment_bytes));
    let file = target.open_unfinished(DATABASE)?;
    let made = || {
        remove_segments(log)?;
        let files: Vec<&BackupFile> = backups.iter().map(|backup| &backup.file).collect();
        let point = restore(&files, &*file, log, point, progress).map_err(|error| match error {
            TxnError::Log(LogError::Missing { from, .. }) if has_lost => Error::LostLog { from },
            error => error.into(),
        })?;
        drop(file);
        let database = open()?;
        let recovery = database.recovery();
        database.close()?;
        let file = target.open(&target.unfinished(), CreateMode::OpenExisting)?;
        renew_database(&*file, &options.pool)?;
        target.finish()?;
        Ok(Restored { recovery, point })
    };
    made().inspect_err(|_| {
        target.give_up();
        // The next attempt removes what is left.
        let _ = remove_segments(log);
    })
}

/// Removes the segments left by an interrupted attempt.
fn remove_segments(log: &dyn Directory) -> Result<()> {
    let failed = |source| Error::from(TxnError::from(BackupError::Write { source }));
    for name in log.names().map_err(failed)? {
        if vellum_txn::is_segment(&name) {
            log.remove(&name).map_err(failed)?;
        }
    }
    Ok(())
}

/// Where a file is to be made.
struct Target {
    directory: Arc<dyn Directory>,
    /// Its name. In the file system the path counts: its name need not be text.
    name: String,
    /// Its path, in the file system.
    path: Option<PathBuf>,
}

impl Target {
    fn at(path: &Path) -> Self {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Self { directory: Arc::new(DiskDirectory::new(parent(path))), name, path: Some(path.to_owned()) }
    }

    fn directory_path(&self) -> PathBuf {
        self.path.as_deref().map_or_else(PathBuf::new, |path| parent(path).to_owned())
    }

    fn unfinished(&self) -> String {
        format!("{}{UNFINISHED}", self.name)
    }

    fn shown(&self) -> PathBuf {
        self.path.clone().unwrap_or_else(|| PathBuf::from(&self.name))
    }

    fn is_there(&self) -> Result<bool> {
        match &self.path {
            Some(path) => Ok(std::fs::symlink_metadata(path).is_ok()),
            None => Ok(self.directory.names().map_err(write_error)?.contains(&self.name)),
        }
    }

    fn refuse_if_there(&self) -> Result<()> {
        if self.is_there()? { Err(self.exists()) } else { Ok(()) }
    }

    fn exists(&self) -> Error {
        Error::Backup(BackupError::Exists { name: self.shown().display().to_string() })
    }

    fn open(&self, name: &str, create: CreateMode) -> Result<Arc<dyn File>> {
        let options = FileOptions { create, ..FileOptions::default() };
        let opened = self.directory.open(name, &options);
        opened.map_err(|error: VmError| Error::Backup(BackupError::Open(error)))
    }

    /// Opens the unfinished file, empty. What an interrupted attempt has left is overwritten, unless that attempt is
    /// still running. Anything else that has its name is left alone; `mark` is in the first page of a
    /// complete file.
    fn open_unfinished(&self, mark: (usize, &[u8])) -> Result<Arc<dyn File>> {
        let name = self.unfinished();
        let made = self.path.as_ref().map_or_else(|| PathBuf::from(&name), |path| path.with_file_name(&name));
        // A symbolic link is not followed: what it leads to is not an unfinished file.
        let is_foreign = |about: std::fs::Metadata| !about.is_file();
        if self.path.is_some() && std::fs::symlink_metadata(&made).is_ok_and(is_foreign) {
            return Err(Error::UnfinishedExists { path: made });
        }
        let file = self.open(&name, CreateMode::OpenOrCreate)?;
        if !is_unfinished(&*file, mark).map_err(write_error)? {
            return Err(Error::UnfinishedExists { path: made });
        }
        file.truncate(0).map_err(write_error)?;
        Ok(file)
    }

    /// Gives the complete and durable file its name, if no file has that name.
    fn finish(&self) -> Result<()> {
        let unfinished = self.unfinished();
        if let Some(path) = &self.path {
            let made = self.directory_path().join(&unfinished);
            match std::fs::hard_link(&made, path) {
                Ok(()) => {
                    return self
                        .directory
                        .remove(&unfinished)
                        .and_then(|()| self.directory.sync())
                        .map_err(write_error);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(self.exists()),
                // The file system has no hard links.
                Err(_) => {}
            }
        }
        self.refuse_if_there()?;
        let renamed = match &self.path {
            Some(path) => std::fs::rename(self.directory_path().join(&unfinished), path),
            None => self.directory.rename(&unfinished, &self.name),
        };
        renamed.and_then(|()| self.directory.sync()).map_err(write_error)
    }

    /// Removes the incomplete file. If that fails, the next attempt overwrites it.
    fn give_up(&self) {
        let _ = self.directory.remove(&self.unfinished());
    }
}

/// Removes the incomplete file when it is dropped: after an error, and after a panic in what a caller gave.
struct Unfinished<'t>(&'t Target);

impl Unfinished<'_> {
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

/// Whether a file is what an interrupted attempt may leave: empty, or with the mark in its first page, or one whose
/// first page was not written yet.
fn is_unfinished(file: &dyn File, (offset, mark): (usize, &[u8])) -> io::Result<bool> {
    let size = file.size()?;
    if size < PAGE_SIZE as u64 {
        return Ok(size == 0);
    }
    let mut page = AlignedBuffer::new(PAGE_SIZE);
    file.read_to(0, &mut page)?;
    let is_marked = page.get(offset..).is_some_and(|rest| rest.starts_with(mark));
    Ok(is_marked || page.iter().take(SECTOR_BYTES).all(|byte| *byte == 0))
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn read_only() -> FileOptions {
    FileOptions { read_only: true, ..FileOptions::default() }
}

fn write_error(source: io::Error) -> Error {
    Error::Backup(BackupError::Write { source })
}
