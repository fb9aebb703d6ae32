//! A database: a file with tables.

use crate::{
    Error, History, LogState, NamesTable, Options, Recovery, Result, Table, VerifyReport,
    catalog::{self, TableRecord},
    freeing::Freeing,
    handle::Handle,
    in_memory::{self, Recovered},
    log_place::{self, LogPlace},
    nested::{self, Nesting},
    shared::Inner,
    turns::Turns,
    verify::{self, Progress},
};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};
use vellum_access::Tree;
use vellum_base::Lsn;
use vellum_base::primitive::{AtomicBool, AtomicUsize, Mutex};
use vellum_pool::{Pool, PoolError, PoolFile, PoolStatistics};
use vellum_txn::{Archive, ArchiveError, DurablePool};
use vellum_vm::{CreateMode, Directory, File};

/// The pool's counters and its current state.
pub type Statistics = PoolStatistics;

/// A database: one file with any number of tables.
///
/// Threads share it through its [`Table`]s, or by cloning it. It is closed by [`close`](Self::close), or when its last
/// handle is dropped; only `close` reports whether closing succeeded.
#[derive(Clone)]
pub struct Database {
    inner: Arc<Inner>,
}

/// A table, as [`Database::tables`] lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TableInformation {
    /// Its name.
    pub name: String,
    /// The page number of its root.
    pub root_page: u64,
    /// The type of its keys: see [`KeyType::type_name`](crate::KeyType::type_name).
    pub key_type: String,
    /// The type of its values.
    pub value_type: String,
    /// Whether it keeps no versions: see [`TableOptions::versions`](crate::TableOptions::versions).
    pub is_plain: bool,
}

impl Database {
    /// Creates a database; the file must not exist. While the database is open, its log is a directory beside the file,
    /// whose name ends in `-log`.
    ///
    /// # Errors
    /// If the file exists or cannot be written, or the system refuses memory.
    pub fn create(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        let path = path.as_ref();
        let file = PoolFile::create(path, &options.pool)?;
        Self::initialise(file, LogPlace::beside(path), options, |_| std::fs::remove_file(path))
    }

    /// Opens a database. If the database was not closed, its log is replayed first: everything that was acknowledged as
    /// durable is there, and nothing is there in part. [`recovery`](Self::recovery) reports what was redone. If the
    /// database is opened for reading only, recovery takes place in memory and the files stay as they are; that takes
    /// about as much memory as the log is long.
    ///
    /// # Errors
    /// If there is no such file; if it is not a Vellum database, is of a later version, damaged, truncated or in use by
    /// another process; if it was not closed and has no log, or its log is missing or damaged; or if the system refuses
    /// memory.
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        let path = path.as_ref();
        match PoolFile::open(path, &options.pool) {
            Err(error) if is_to_be_recovered(&error, options) => {
                let log = Arc::new(log_place::directory_of(path));
                Self::recover_in_memory(Arc::new(in_memory::open_base(path, options)?), log, options)
            }
            file => Self::open_file(file?, LogPlace::beside(path), options),
        }
    }

    /// Opens a database, or creates it if there is no file, or only one that holds nothing because its creation was
    /// interrupted. [`was_created`](Self::was_created) tells which happened. Several processes may call this at once:
    /// one of them creates the database.
    ///
    /// # Errors
    /// As for [`open`](Self::open) and [`create`](Self::create).
    pub fn open_or_create(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        let path = path.as_ref();
        let was_empty = std::fs::metadata(path).is_ok_and(|file| file.len() == 0);
        match PoolFile::open_or_create(path, &options.pool) {
            Ok((file, true)) => {
                // An empty file, or the file to which a link leads, was there before, and stays.
                let is_own = file.was_created();
                let take_back = |held: &dyn File| match is_own {
                    true => std::fs::remove_file(path),
                    false => held.truncate(0),
                };
                let mut database = Self::initialise(file, LogPlace::beside(path), options, take_back)?;
                database.inner_if_alone()?.keeps_file = was_empty && !is_own;
                Ok(database)
            }
            Ok((file, false)) => Self::open_file(file, LogPlace::beside(path), options),
            Err(error) if is_to_be_recovered(&error, options) => Self::open(path, options),
            Err(error) => Err(error.into()),
        }
    }

    /// As [`create`](Self::create), in a directory that may be simulated, for tests. The file and the log lie beside
    /// each other.
    ///
    /// # Errors
    /// As for `create`.
    pub fn create_in(directory: Arc<dyn Directory>, name: &str, options: &Options) -> Result<Self> {
        let held = options.open_in(&*directory, name, CreateMode::CreateNew)?;
        let created = PoolFile::create_on(held.clone(), &options.pool);
        let file = created.inspect_err(|_| drop(directory.remove(name)))?;
        drop(held);
        Self::initialise(file, LogPlace::given(directory.clone()), options, |_| directory.remove(name))
    }

    /// As [`open`](Self::open), in a directory that may be simulated.
    ///
    /// # Errors
    /// As for `open`.
    pub fn open_in(directory: Arc<dyn Directory>, name: &str, options: &Options) -> Result<Self> {
        let file = options.open_in(&*directory, name, CreateMode::OpenExisting)?;
        match PoolFile::open_on(file.clone(), &options.pool) {
            Err(error) if is_to_be_recovered(&error, options) => {
                Self::recover_in_memory(file, directory, options)
            }
            opened => Self::open_file(opened?, LogPlace::given(directory), options),
        }
    }

    /// A database that has crashed and is opened for reading only: its log is replayed in memory.
    fn recover_in_memory(file: Arc<dyn File>, log: Arc<dyn Directory>, options: &Options) -> Result<Self> {
        let recovered = in_memory::recover_in_memory(&file, log, options, false)?;
        let Recovered { file, recovery, damaged_superblocks, .. } = recovered;
        let mut database = Self::looked_at(PoolFile::open_on(file, &options.pool)?, recovery, options)?;
        database.inner_if_alone()?.damaged_superblocks = damaged_superblocks;
        Ok(database)
    }

    /// A database that is opened for reading only.
    pub(crate) fn looked_at(file: PoolFile, recovery: Option<Recovery>, options: &Options) -> Result<Self> {
        let durable = DurablePool::without_log(file, None, &options.log_settings)?;
        Ok(Self::with(durable.recovered_in_memory(recovery), LogPlace::default(), options, false))
    }

    /// As [`create`](Self::create), on any empty file, and without a log.
    ///
    /// # Errors
    /// As for `create`.
    pub fn create_on(file: Arc<dyn File>, options: &Options) -> Result<Self> {
        let options = options.clone().log(false);
        Self::initialise(PoolFile::create_on(file, &options.pool)?, LogPlace::default(), &options, |_| Ok(()))
    }

    /// As [`open`](Self::open), on any cleanly closed file, and without a log.
    ///
    /// # Errors
    /// As for `open`.
    pub fn open_on(file: Arc<dyn File>, options: &Options) -> Result<Self> {
        let options = options.clone().log(false);
        Self::open_file(PoolFile::open_on(file, &options.pool)?, LogPlace::default(), &options)
    }

    /// Makes a database in a file that holds nothing yet. If that fails, the log is removed, and `remove_file` removes the
    /// file.
    fn initialise(
        mut file: PoolFile,
        place: LogPlace,
        options: &Options,
        remove_file: impl Fn(&dyn File) -> std::io::Result<()>,
    ) -> Result<Self> {
        // Locked until the file is removed: another process that waits for it must not create its database in it.
        let held = file.hold();
        let (mut durable, place) =
            Self::start(file, place, options).inspect_err(|_| drop(remove_file(&*held)))?;
        let created = catalog::create(durable.pool()).and_then(|()| Ok(durable.checkpoint()?));
        if let Err(error) = created {
            durable.abandon();
            place.remove();
            let _ = remove_file(&*held);
            return Err(error);
        }
        Ok(Self::with(durable, place, options, true))
    }

    /// Opens a file that holds a database, or one whose creation was interrupted after its log had begun.
    pub(crate) fn open_file(file: PoolFile, place: LogPlace, options: &Options) -> Result<Self> {
        let is_read_only = file.is_read_only();
        let (durable, place) = Self::start(file, place, options)?;
        if durable.recovery().is_some() && catalog::complete(durable.pool())? {
            durable.checkpoint()?;
        }
        let opened = Self::with(durable, place, options, false);
        if !is_read_only {
            // Trees that could not be freed before, because of a crash or an unreadable page. A damaged catalog is
            // reported when it is used.
            let rest = catalog::doomed(catalog::tree(opened.inner.durable.pool())).unwrap_or_default();
            rest.into_iter().for_each(|root| opened.inner.freeing.free(root));
        }
        Ok(opened)
    }

    fn start(file: PoolFile, place: LogPlace, options: &Options) -> Result<(DurablePool, LogPlace)> {
        if file.is_read_only() {
            let opened = DurablePool::without_log(file, place.directory, &options.log_settings)?;
            return Ok((opened, LogPlace::default()));
        }
        if file.is_log_archived() && !options.ends_archive {
            check_archive(&file, options)?;
        }
        let directory = match place.directory.clone() {
            Some(directory) if options.log => directory,
            directory => {
                return Ok((DurablePool::without_log(file, directory, &options.log_settings)?, place));
            }
        };
        if let Some(path) = &options.archive_path {
            // If this fails, the archive reports it.
            let _ = log_place::make_directory(path);
        }
        place.make()?;
        let opened = DurablePool::open(file, directory, &options.log_settings);
        Ok((opened.inspect_err(|_| place.remove())?, place))
    }

    fn with(durable: DurablePool, log_place: LogPlace, options: &Options, created: bool) -> Self {
        let pool = durable.pool().for_thread();
        let freeing = Freeing::new(move |root| catalog::free_part(&pool, root));
        freeing.make_space_in(durable.pool());
        Self {
            inner: Arc::new(Inner {
                driver: OnceLock::new(),
                turns: Turns::default(),
                freeing,
                durable,
                durability: options.durability,
                isolation: options.isolation,
                log_place,
                nesting: Nesting::default(),
                compaction: Mutex::new(()),
                compacting: AtomicUsize::new(0),
                read_depth: options.read_depth,
                created,
                keeps_file: false,
                damaged_superblocks: Vec::new(),
                open: Mutex::new(HashMap::new()),
                created_after: Mutex::default(),
                doomed: Mutex::default(),
                waiting: Mutex::default(),
                has_doomed: AtomicBool::new(false),
                awaits_handles: AtomicBool::new(false),
                writers: Arc::default(),
                not_undone: Mutex::default(),
                has_not_undone: AtomicBool::new(false),
                undo_again: Mutex::default(),
                #[cfg(test)]
                planted: Mutex::default(),
            }),
        }
    }

    /// Opens a table.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`]; [`Error::TableTypes`] if the types of its keys or values differ; or if the catalog
    /// cannot be read.
    pub fn table<N: NamesTable>(&self, table: N) -> Result<Table<N::Key, N::Value>> {
        let handle =
            self.open_table(table.name(), |record| record.expect(table.name(), catalog::types_of::<N>()))?;
        Ok(Table::new(handle))
    }

    /// Opens a table of any types as bytes: see [`Table::as_bytes`].
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], or if the catalog cannot be read.
    pub fn table_as_bytes(&self, name: &str) -> Result<Table> {
        Ok(Table::new(self.open_table(name, |record| record.expect_table(name))?))
    }

    pub(crate) fn open_table(
        &self,
        name: &str,
        check: impl FnOnce(&TableRecord) -> Result<()>,
    ) -> Result<Handle> {
        let mut open = self.inner.lock();
        let record = catalog::find(self.catalog(), name)?;
        let record = record.ok_or_else(|| Error::NoSuchTable { name: name.to_owned() })?;
        check(&record)?;
        Ok(Handle::of(&self.inner, &mut open, name, &record))
    }

    /// The catalog, as the last commits left it.
    pub(crate) fn catalog(&self) -> Tree<'_, Pool> {
        catalog::tree(self.inner.pool()).with_view(self.inner.durable.view())
    }

    /// All tables, in the order of their names' bytes. For heaps of objects see [`heaps`](Self::heaps).
    ///
    /// # Errors
    /// If the catalog cannot be read.
    pub fn tables(&self) -> Result<Vec<TableInformation>> {
        let tables = catalog::list(self.catalog())?.into_iter().filter(|(_, record)| !record.is_heap);
        Ok(tables.map(TableInformation::from).collect())
    }

    /// The pool's counters since the database was opened, and its current state.
    pub fn statistics(&self) -> Statistics {
        self.inner.durable.pool().statistics()
    }

    /// Whether this handle, or the handle it was cloned from, created the file.
    pub fn was_created(&self) -> bool {
        self.inner.created
    }

    /// The log directory of the database at `path`. It exists only while the database is open, and after a crash. After
    /// a crash it is needed to open the database, so it must go with the file wherever that is moved or copied. If the
    /// path is a symbolic link, it is beside the file to which the link leads.
    pub fn log_path(path: impl AsRef<Path>) -> PathBuf {
        log_place::path_of(path.as_ref())
    }

    /// The file's path; empty if the file has none.
    pub fn path(&self) -> &Path {
        self.inner.durable.pool().path()
    }

    /// Walks every structure, reads every page, checks every checksum and every invariant, and finds pages
    /// that belong to nothing or to two things.
    ///
    /// Others may use the database meanwhile, and change it. What is found to be damaged is damaged. Pages that nothing was
    /// found to refer to are reported as leaked if no transaction, snapshot or load that was under way meanwhile can still
    /// need them; otherwise they are [undecided](VerifyReport::undecided_pages). To decide, verification may read the
    /// database a second time, and wait for others, for a few seconds at most. Heaps of objects can be judged as a whole
    /// only while nobody changes them: see [`undecided_heaps`](VerifyReport::undecided_heaps).
    ///
    /// Transactions that have ended and could not be rolled back are rolled back first. If that fails again, the report
    /// has the error, the tables are verified with the changes of those transactions, and what these have replaced is
    /// no leak.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// # database.create_table("t")?.put("key", "value")?;
    /// let report = database.verify(|progress| {
    ///     eprintln!("{} of about {} pages", progress.pages_done, progress.pages_total);
    /// });
    /// for problem in &report.problems {
    ///     eprintln!("{problem}");
    /// }
    /// assert!(report.is_clean());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns none itself: all problems are in the report. `progress` may use the database.
    pub fn verify(&self, mut progress: impl FnMut(Progress)) -> VerifyReport {
        verify::verify(&self.inner, &mut progress)
    }

    /// Takes a checkpoint while other threads keep working: after a crash, the next opening then redoes only later
    /// changes. Checkpoints are also taken in the background, see [`Options::checkpoint_log_bytes`].
    ///
    /// # Errors
    /// [`Error::WithoutLog`] if the database has no log, or [`ErrorKind::ReadOnly`](crate::ErrorKind::ReadOnly). If
    /// something cannot be written, the previous checkpoint stays in force, and the call may be repeated; after a
    /// failed sync every further attempt fails.
    pub fn checkpoint(&self) -> Result<()> {
        nested::check(self.inner.durable.pool());
        self.inner.require_log()?;
        Ok(self.inner.durable.checkpoint()?)
    }

    /// Returns once everything done so far, by any thread, is durable, whatever [`Options::durability`] says.
    ///
    /// # Errors
    /// [`Error::WithoutLog`] if the database has no log, or [`ErrorKind::ReadOnly`](crate::ErrorKind::ReadOnly). If the
    /// log cannot be written, it is unknown whether the last changes are durable, and no more changes are accepted; the
    /// answer is known once the database is opened again.
    pub fn sync(&self) -> Result<()> {
        nested::check(self.inner.durable.pool());
        self.inner.require_log()?;
        Ok(self.inner.durable.sync()?)
    }

    /// The *durable horizon*: a place in the log. A commit whose record lies before it survives any crash. A commit
    /// after it is already visible, but a crash may take it back. A program that must not act on such a commit notes
    /// the end of the log after reading and waits until the horizon has passed it:
    /// [`wait_until_durable`](Self::wait_until_durable). None if the database has no log.
    ///
    /// ```
    /// use vellum::{Durability, Lsn};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let options = vellum::Options::default().durability(Durability::Deferred);
    /// # let database = vellum::Database::create(directory.path().join("d"), &options)?;
    /// let table = database.create_table("orders")?;
    /// table.put("1", "three pears")?;
    /// // Another thread reads it, and sends the pears once the order can not be lost any more.
    /// let order = table.get("1")?;
    /// let end = Lsn(database.log_state().unwrap().appended_bytes);
    /// database.wait_until_durable(end)?;
    /// assert!(database.durable_horizon().unwrap() >= end);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn durable_horizon(&self) -> Option<Lsn> {
        let state = self.inner.durable.log_state()?;
        Some(Lsn(state.appended_bytes - state.volatile_bytes))
    }

    /// Returns once the record at `place` in the log, and all records before it, are durable: the [durable
    /// horizon](Self::durable_horizon) has passed it. The place of a commit is [`Arrival::lsn`](crate::Arrival::lsn). A
    /// place beyond the end of the log counts as the end.
    ///
    /// # Errors
    /// As for [`sync`](Self::sync).
    pub fn wait_until_durable(&self, place: Lsn) -> Result<()> {
        self.inner.require_log()?;
        if self.durable_horizon().is_some_and(|horizon| horizon > place) {
            return Ok(());
        }
        Ok(self.inner.durable.sync()?)
    }

    /// The state of the log; none if the database has no log.
    pub fn log_state(&self) -> Option<LogState> {
        self.inner.durable.log_state()
    }

    /// Archives everything done so far, by any thread: see [`Options::log_archive`]. Returns the place in the log before
    /// which everything is archived. [`Until::Before`](crate::Until::Before) restores what the database holds now.
    ///
    /// # Errors
    /// [`Error::WithoutArchive`] if the log is not archived. If the archive cannot be written, the write is retried in
    /// the background.
    pub fn archive_log(&self) -> Result<Lsn> {
        self.inner.durable.archive_log()?.ok_or(Error::WithoutArchive)
    }

    /// What recovery redid when the database was opened, if it had not been closed. Pages may still be waiting for
    /// redo: see [`finish_recovery`](Self::finish_recovery).
    pub fn recovery(&self) -> Option<Recovery> {
        self.inner.durable.recovery()
    }

    /// Returns once recovery from a crash has redone all pages.
    ///
    /// A database opens as soon as its log has been read. Each page is redone when it is read for the first time; the
    /// others are redone in the background, or by the next checkpoint if there is no
    /// [background](Options::background_checkpoints) thread. So only measurements need to wait for this. If the log
    /// takes more than a fourth of the pool, it is redone before the database opens.
    ///
    /// # Errors
    /// If a page cannot be redone: operations that read it get the same error. All other pages are still redone.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> vellum::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// let database = vellum::Database::open_or_create(folder.path().join("data"), &vellum::Options::default())?;
    /// database.finish_recovery()?;
    /// assert!(!database.is_recovering());
    /// # Ok(())
    /// # }
    /// ```
    pub fn finish_recovery(&self) -> Result<()> {
        Ok(self.inner.durable.finish_recovery()?)
    }

    /// Whether pages are left that recovery from a crash has not redone yet.
    pub fn is_recovering(&self) -> bool {
        self.inner.durable.is_recovering()
    }

    /// Closes the database: when this returns, everything is written and durable, the log is removed, and the next
    /// opening has nothing to recover. This must be the only handle.
    ///
    /// What holds the database and its tables drops the tables first:
    ///
    /// ```
    /// struct Shop {
    ///     stock: vellum::Table<str, u32>,
    ///     database: vellum::Database,
    /// }
    ///
    /// impl Shop {
    ///     fn close(self) -> vellum::Result<()> {
    ///         drop(self.stock);
    ///         self.database.close()
    ///     }
    /// }
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// # let stock = database.create_table(vellum::TableName::new("stock"))?;
    /// # Shop { stock, database }.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StillInUse`] if there are other handles: the database is then closed when the last of them is dropped.
    /// If something cannot be written, a database with a log is left as after a crash: the next opening recovers it.
    pub fn close(mut self) -> Result<()> {
        self.close_in_place()
    }

    /// As [`close`](Self::close), but keeps the handle. A database without a log stays open whether this fails or
    /// succeeds. With a log, nothing more can be changed afterwards.
    ///
    /// # Errors
    /// As for `close`. Without a log the call may be repeated; after a failed sync every further attempt fails.
    pub fn close_in_place(&mut self) -> Result<()> {
        self.inner_if_alone()?.close()
    }

    /// What all handles share, if this is the only one.
    pub(crate) fn inner_if_alone(&mut self) -> Result<&mut Inner> {
        let handles = Arc::strong_count(&self.inner) - 1;
        Arc::get_mut(&mut self.inner).ok_or(Error::StillInUse { handles })
    }

    /// The space taken by the history of records that transactions may still read.
    pub fn history(&self) -> History {
        self.inner.durable.history()
    }

    /// Another handle.
    pub(crate) fn of(inner: &Arc<Inner>) -> Self {
        Self { inner: inner.clone() }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

impl From<(String, TableRecord)> for TableInformation {
    fn from((name, record): (String, TableRecord)) -> Self {
        let TableRecord { root, types: (key_type, value_type), is_plain, .. } = record;
        Self { name, root_page: root.0, key_type, value_type, is_plain }
    }
}

/// Makes sure that the archive is named which the log of a database has. One that was closed has archived all of it, so
/// an archive that holds nothing is another one.
fn check_archive(file: &PoolFile, options: &Options) -> Result<()> {
    let refused = |is_empty| Error::ArchiveNotNamed { path: file.path(), is_empty };
    let archive = options.log_settings.archive.clone().filter(|_| options.log);
    let archive = Archive::new(archive.ok_or_else(|| refused(false))?, file.database());
    let is_empty = match archive.last() {
        Ok(last) => last.is_none(),
        // Another error is met again where the archive is used.
        Err(ArchiveError::Read { source }) => source.kind() == std::io::ErrorKind::NotFound,
        Err(_) => false,
    };
    if is_empty && !file.needs_recovery() { Err(refused(true)) } else { Ok(()) }
}

/// Whether a file was refused because it has crashed and is to be opened for reading only.
fn is_to_be_recovered(error: &PoolError, options: &Options) -> bool {
    options.log && matches!(error, PoolError::NotClosedCleanly { has_log: true, .. })
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "database {}", self.path().display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_creation_that_was_interrupted_is_begun_anew_beside_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let options = Options::default().pool_bytes(1 << 20).capacity_bytes(1 << 30);
        let file = PoolFile::create(&path, &options.pool).unwrap();
        // The log has been started, the catalog has not.
        drop(Database::start(file, LogPlace::beside(&path), &options).unwrap());
        assert!(Database::open(&path, &options).is_err());
        let database = Database::open_or_create(&path, &options).unwrap();
        assert!(database.was_created());
        database.create_table("table").unwrap().put("key", "value").unwrap();
        database.close().unwrap();
        let database = Database::open(&path, &options).unwrap();
        assert_eq!(database.table("table").unwrap().get("key").unwrap().unwrap(), b"value");
    }
}
