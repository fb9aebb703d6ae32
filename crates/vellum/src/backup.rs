//! Backups, made while the database is in use, and databases restored from them.
//!
//! The file that is being made has a temporary name until it is complete and durable, and never replaces an existing
//! file: see [`unfinished`](crate::unfinished).

use crate::{
    Database, Error, Options, Recovery, Result,
    log_place::{self, LogPlace},
    nested::{self, Mark, Work},
    unfinished::{Kind, Target},
};
use std::{io, path::Path, sync::Arc, time::SystemTime};
use vellum_base::Lsn;
use vellum_pool::{PoolError, PoolFile, renew_database};
use vellum_txn::{
    ArchiveError, BackupError, BackupFile, BackupProgress, BackupSummary, LogError, PointInTime,
    RestoredPoint, TxnError, Until, restore,
};
use vellum_vm::{CreateMode, Directory, DiskDirectory, DiskFile, File, FileOptions, VmError};

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
    ///
    /// The backup fails with [`BackupError::Order`] if the database is not what became of the one that `former` was made
    /// of. That is known for the last 237 openings for changes in which a backup was made. Of a database that is opened read-only
    /// see [`Backup::note_in`].
    pub fn since(mut self, former: &'o Backup) -> Self {
        self.former = Some(former);
        self
    }

    /// Reports progress now and then. If `progress` returns false, the backup ends and nothing of it is kept. It may use
    /// the database, but not make another backup of it: one is made at a time ([`Error::NestedBackup`]). It may
    /// compact it, unless another thread compacts it and waits in the callback of that for this backup.
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
    /// [`Error::InProgress`] if another backup to this name is running, [`Error::UnfinishedExists`] if a file has the name
    /// that ends in `.unfinished` and is not what an interrupted backup leaves.
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
        self.backup_to(&Target::at(target.as_ref(), Kind::Backup), options)
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
        self.backup_to(&Target::within(directory, name, Kind::Backup), options)
    }

    fn backup_to(&self, target: &Target, options: BackupOptions<'_>) -> Result<BackupSummary> {
        nested::check(self.inner().durable.pool());
        let _mark = Mark::set(Work::Backup, &self.inner().nesting)?;
        let unfinished = target.make(&FileOptions::default(), &|| Ok(()))?;
        let mut quiet = |_| true;
        let progress = options.progress.unwrap_or(&mut quiet);
        let (file, former) = (unfinished.file().clone(), options.former.map(|former| &former.file));
        let summary = self.inner().durable.back_up(file, former, progress)?;
        unfinished.finish()?;
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

    /// How far the archive is followed. By default to its end. [`Until::Before`] the end of the last backup
    /// ([`BackupSummary::end`]) needs nothing of it. [`Until::Time`] is for a time before the last commit; to restore
    /// everything, use [`Until::End`].
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

    /// Notes in a database, which nobody has open, that this backup was made of it. Do so after a backup of a database that
    /// was opened [read-only](Options::read_only): increments can be based on it then, however often the database is opened for changes.
    /// Without that, they can be until it has been opened and changed 237 times. Changes nothing if the backup is of another
    /// database. No increment can be based on a backup of a database that had been changed without a log, and not with one
    /// since.
    ///
    /// # Errors
    /// If the database is open, may not be changed, is damaged, or is none.
    ///
    /// # Examples
    /// ```
    /// use vellum::{Backup, Database, Options};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = |name| directory.path().join(name);
    /// # Database::create(path("fruit"), &Options::default())?.close()?;
    /// let database = Database::open(path("fruit"), &Options::default().read_only(true))?;
    /// database.backup(path("monday"))?;
    /// drop(database);
    /// Backup::open(path("monday"))?.note_in(path("fruit"))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn note_in(&self, database: impl AsRef<Path>) -> Result<()> {
        let options = Options::default().pool;
        let file = DiskFile::open(database.as_ref(), &options.file_options(CreateMode::OpenExisting));
        Ok(self.file.note_in(&file.map_err(PoolError::Vm)?, &options)?)
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
    /// written; [`Error::RestoreOptions`] if `options` are to read only, or without a log; [`Error::InProgress`] if another
    /// restore to this name is running; [`Error::UnfinishedExists`] if a file has the name that ends in `.unfinished`, and
    /// is not what an interrupted restore leaves. After an error nothing is left.
    pub fn restore(backups: &[Self], path: impl AsRef<Path>, options: &Options) -> Result<Restored> {
        Self::restore_with(backups, path, options, RestoreOptions::default())
    }

    /// As [`restore`](Self::restore), or to a later point in time, with the archive of the log: see [`RestoreOptions`].
    /// The restored database does not continue that archive: its own log needs another one.
    ///
    /// # Errors
    /// As for `restore`; also if parts of the archive that are needed are missing or damaged
    /// ([`ArchiveError`], [`Error::EmptyArchive`]), if the target lies before the end of the backup or after the end of
    /// the archive, and if a target or a log is given without an archive ([`Error::RestoreOptions`]).
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
        let target = Target::at(path.as_ref(), Kind::Database);
        let place = LogPlace::beside(&target.unfinished_path());
        restore_to(backups, &target, (place, Some(&log_place::path_of(path.as_ref()))), options, how)
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
        let target = Target::within(directory.clone(), name, Kind::Database);
        restore_to(backups, &target, (LogPlace::given(directory), None), options, how)
    }
}

/// `place` is where the log lies while the database is made, and `own` where it lies afterwards, if that is elsewhere. Both
/// must hold no log.
fn restore_to(
    backups: &[Backup],
    target: &Target,
    (place, own): (LogPlace, Option<&Path>),
    options: &Options,
    how: RestoreOptions<'_>,
) -> Result<Restored> {
    check_restorable(backups, options, &how)?;
    let options = &options.clone().without_archive();
    let Some(log) = place.directory.as_deref() else { return Err(Error::WithoutLog) };
    let mut unfinished =
        target.make(&options.pool.file_options(CreateMode::CreateNew), &|| remove_segments(log))?;
    // From here on the name belongs to this call alone, and so does the log beside it.
    if let Some(path) = own
        && std::fs::read_dir(path).is_ok_and(|mut files| files.next().is_some())
    {
        let advice = ", or open the database to which this log belongs, and close it";
        return Err(Error::RestoreExists { path: path.to_owned(), advice });
    }
    if !segments(log)?.is_empty() {
        let path = log_place::path_of(&target.unfinished_path());
        let advice =
            ", or remove this directory: no file goes with it, so it is what an interrupted restore has left";
        return Err(Error::RestoreExists { path, advice });
    }
    place.make()?;
    unfinished.clean_with(|| {
        remove_segments(log)?;
        place.remove();
        Ok(())
    });
    let RestoreOptions { archive, log: lost, until, progress } = how;
    let mut quiet = |_, _| true;
    let progress = progress.unwrap_or(&mut quiet);
    let has_lost = lost.is_some();
    let end = backups.last().map(|backup| backup.file.end());
    // The backup by itself leads to where it ends.
    let is_end_of_backup = matches!(until, Until::Before(place) if Some(place) == end);
    let at_end = end.filter(|_| is_end_of_backup && archive.is_some()).map(RestoredPoint::at);
    let point =
        archive.filter(|_| !is_end_of_backup).map(|archive| PointInTime { archive, log: lost, until });
    let point = point.as_ref().map(|point| (point, options.log_settings.segment_bytes));
    let files: Vec<&BackupFile> = backups.iter().map(|backup| &backup.file).collect();
    let file = unfinished.file();
    let point = restore(&files, &**file, log, point, progress).map_err(|error| match error {
        TxnError::Log(LogError::Missing { from, .. }) if has_lost => Error::LostLog { from },
        TxnError::Log(LogError::Archive(ArchiveError::Missing { oldest: None, .. })) => Error::EmptyArchive,
        // A directory that does not exist holds nothing either.
        TxnError::Log(LogError::Archive(ArchiveError::Read { source }))
            if source.kind() == io::ErrorKind::NotFound =>
        {
            Error::EmptyArchive
        }
        error => error.into(),
    })?;
    let opened = PoolFile::open_restored(file.clone(), &options.pool)?;
    let database = Database::open_file(opened, place.clone(), options)?;
    let recovery = database.recovery();
    database.close()?;
    renew_database(&**file, &options.pool, point.map(|point| point.end).or(end).unwrap_or_default())?;
    unfinished.finish()?;
    Ok(Restored { recovery, point: point.or(at_end) })
}

/// Refuses what makes no sense, before anything is done.
fn check_restorable(backups: &[Backup], options: &Options, how: &RestoreOptions<'_>) -> Result<()> {
    if backups.is_empty() {
        let what = "no backup was named: name a full one, and then the increments based on it, in order";
        return Err(Error::Backup(BackupError::Order(what.to_owned())));
    }
    let refused = |why| Err(Error::RestoreOptions { why });
    if options.pool.file_options(CreateMode::OpenExisting).read_only {
        return refused("`Options::read_only` does not go with it, because it writes a database");
    }
    if !options.log {
        return refused(
            "`Options::log(false)` does not go with it, because it recovers the database by a log, which it removes",
        );
    }
    if how.archive.is_none() && (how.log.is_some() || how.until != Until::End) {
        return refused(
            "`RestoreOptions::until` and `log` need the archive of the log, which `RestoreOptions::archive` names",
        );
    }
    Ok(())
}

/// The names of the segments in a directory, which need not exist.
fn segments(log: &dyn Directory) -> Result<Vec<String>> {
    let names = match log.names() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        names => names.map_err(|error| Kind::Database.write_error(error))?,
    };
    Ok(names.into_iter().filter(|name| vellum_txn::is_segment(name)).collect())
}

/// Removes the segments left by an interrupted attempt.
fn remove_segments(log: &dyn Directory) -> Result<()> {
    let segments = segments(log)?;
    segments.iter().try_for_each(|name| log.remove(name)).map_err(|error| Kind::Database.write_error(error))
}

fn read_only() -> FileOptions {
    FileOptions { read_only: true, ..FileOptions::default() }
}

impl std::fmt::Debug for BackupOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackupOptions").field("since", &self.former).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for RestoreOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RestoreOptions")
            .field("archive", &self.archive.is_some())
            .field("log", &self.log.is_some())
            .field("until", &self.until)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Backup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = if self.is_increment() { "increment" } else { "full backup" };
        write!(f, "{what} of {} pages", self.sizes().0)
    }
}
