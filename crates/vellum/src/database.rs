//! A database: a file with tables.

use crate::{
    Error, Options, Result, Table, VerifyReport,
    catalog::{self, NAME_BYTES_MAX},
    shared::{Inner, OpenTable},
    verify::{self, Progress},
};
use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, OnceLock, Weak},
};
use vellum_access::Tree;
use vellum_base::PageId;
use vellum_pool::{AppendHints, Pool, PoolStatistics};
use vellum_vm::File;

/// What the pool has done, and how it stands.
pub type Statistics = PoolStatistics;

/// A database: one file with any number of tables.
///
/// Shared by threads through its [`Table`]s, or by cloning it. It is closed by [`close`](Self::close), or
/// when its last handle is dropped; only the former tells whether that succeeded.
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
    /// The page of its root.
    pub root_page: u64,
}

impl Database {
    /// Creates a database; the file must not exist.
    ///
    /// # Errors
    /// If it exists or cannot be written, or the system refuses memory.
    pub fn create(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        let path = path.as_ref();
        Self::initialise(Pool::create(path, &options.pool)?, options, Some(path))
    }

    /// Opens a database that was closed.
    ///
    /// # Errors
    /// If there is no such file, it is not a database of Vellum, is of a later version, damaged, truncated,
    /// in use by another process, or was not closed cleanly; or the system refuses memory.
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        Ok(Self::with(Pool::open(path, &options.pool)?, options, false))
    }

    /// Opens a database, or creates it if there is no file, or one that holds nothing because its creation was
    /// interrupted; [`was_created`](Self::was_created) tells which it did. Several processes may do so at once: one of
    /// them creates it.
    ///
    /// # Errors
    /// As for [`open`](Self::open) and [`create`](Self::create).
    pub fn open_or_create(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        let path = path.as_ref();
        match Pool::open_or_create(path, &options.pool)? {
            (pool, true) => Self::initialise(pool, options, Some(path)),
            (pool, false) => Ok(Self::with(pool, options, false)),
        }
    }

    /// As [`create`](Self::create), on any file that is empty: a simulated one, for tests.
    ///
    /// # Errors
    /// As for `create`.
    pub fn create_on(file: Arc<dyn File>, options: &Options) -> Result<Self> {
        Self::initialise(Pool::create_on(file, &options.pool)?, options, None)
    }

    /// As [`open`](Self::open), on any file.
    ///
    /// # Errors
    /// As for `open`.
    pub fn open_on(file: Arc<dyn File>, options: &Options) -> Result<Self> {
        Ok(Self::with(Pool::open_on(file, &options.pool)?, options, false))
    }

    fn initialise(pool: Pool, options: &Options, path: Option<&Path>) -> Result<Self> {
        if let Err(error) = catalog::create(&pool) {
            // It was created a moment ago, holds nothing yet, and is still locked.
            let _ = path.map(std::fs::remove_file);
            return Err(error);
        }
        Ok(Self::with(pool, options, true))
    }

    fn with(pool: Pool, options: &Options, created: bool) -> Self {
        let read_depth = options.read_depth;
        Self {
            inner: Arc::new(Inner {
                driver: OnceLock::new(),
                pool,
                read_depth,
                created,
                open: Mutex::new(HashMap::new()),
            }),
        }
    }

    /// Creates a table; its name has 1 to 255 bytes.
    ///
    /// # Errors
    /// If there is one of that name, or the file cannot grow.
    pub fn create_table(&self, name: &str) -> Result<Table> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Error::TableName { name: name.to_owned(), limit: NAME_BYTES_MAX });
        }
        let mut open = self.inner.lock();
        let pool = self.inner.pool();
        if catalog::find(pool, name)?.is_some() {
            return Err(Error::TableExists { name: name.to_owned() });
        }
        let tree = Tree::create(pool)?;
        let inserted = catalog::insert(pool, name, tree.root());
        if !matches!(inserted, Ok(true)) {
            tree.destroy()?;
            inserted?;
            return Err(Error::TableExists { name: name.to_owned() });
        }
        Ok(self.handle(&mut open, name, tree.root()))
    }

    /// Opens a table.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], or if the catalog cannot be read.
    pub fn table(&self, name: &str) -> Result<Table> {
        let mut open = self.inner.lock();
        let root = catalog::find(self.inner.pool(), name)?;
        let root = root.ok_or_else(|| Error::NoSuchTable { name: name.to_owned() })?;
        Ok(self.handle(&mut open, name, root))
    }

    /// Opens a table, or creates it if there is none of that name.
    ///
    /// # Errors
    /// As for [`table`](Self::table) and [`create_table`](Self::create_table).
    pub fn table_or_create(&self, name: &str) -> Result<Table> {
        match self.table(name) {
            Err(Error::NoSuchTable { .. }) => match self.create_table(name) {
                // Another thread was faster.
                Err(Error::TableExists { .. }) => self.table(name),
                other => other,
            },
            other => other,
        }
    }

    /// Drops a table with all its contents. It must have no handles.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], [`Error::TableInUse`], or if a page cannot be read: the table is gone then,
    /// but some of its space is not freed, as [`verify`](Self::verify) will say.
    pub fn drop_table(&self, name: &str) -> Result<()> {
        let mut open = self.inner.lock();
        let pool = self.inner.pool();
        let root = catalog::find(pool, name)?;
        let root = root.ok_or_else(|| Error::NoSuchTable { name: name.to_owned() })?;
        if open.get(name).is_some_and(|table| table.strong_count() > 0) {
            return Err(Error::TableInUse { name: name.to_owned() });
        }
        open.remove(name);
        catalog::remove(pool, name)?;
        Ok(Tree::open(pool, root).destroy()?)
    }

    /// All tables, in the order of their names' bytes.
    ///
    /// # Errors
    /// If the catalog cannot be read.
    pub fn tables(&self) -> Result<Vec<TableInformation>> {
        let tables = catalog::list(self.inner.pool())?.into_iter();
        Ok(tables.map(|(name, root)| TableInformation { name, root_page: root.0 }).collect())
    }

    /// What the pool has done since the database was opened, and how it stands.
    pub fn statistics(&self) -> Statistics {
        self.inner.pool.statistics()
    }

    /// Whether this handle, or the one that it was cloned from, created the file.
    pub fn was_created(&self) -> bool {
        self.inner.created
    }

    /// The file's path; empty for a file that has none.
    pub fn path(&self) -> &Path {
        self.inner.pool.path()
    }

    /// Walks every structure, reads every page, checks every checksum and every invariant, and finds pages
    /// that belong to nothing or to two things.
    ///
    /// No thread may change the database meanwhile: a state between two others would be reported.
    ///
    /// # Errors
    /// None of its own: what is wrong is in the report.
    pub fn verify(&self, progress: impl FnMut(Progress)) -> VerifyReport {
        verify::verify(self.inner.pool(), progress)
    }

    /// Writes everything and makes it durable, as [`close`](Self::close) does, and goes on. It needs to be
    /// the only handle.
    ///
    /// # Errors
    /// [`Error::StillInUse`] if there are other handles. If something cannot be written, it is still in
    /// memory, and this may be tried again; after a failed sync every further attempt fails.
    pub fn checkpoint(&mut self) -> Result<()> {
        let handles = Arc::strong_count(&self.inner) - 1;
        let inner = Arc::get_mut(&mut self.inner).ok_or(Error::StillInUse { handles })?;
        Ok(inner.pool.checkpoint()?)
    }

    /// Closes the database: everything is written and durable when this returns. Call
    /// [`checkpoint`](Self::checkpoint) first to be able to try again if it fails.
    ///
    /// # Errors
    /// As for [`checkpoint`](Self::checkpoint). With other handles left, the database is closed when the last
    /// of them is dropped.
    pub fn close(mut self) -> Result<()> {
        self.checkpoint()
    }

    fn handle(
        &self,
        open: &mut MutexGuard<'_, HashMap<String, Weak<OpenTable>>>,
        name: &str,
        root: PageId,
    ) -> Table {
        let existing = open.get(name).and_then(Weak::upgrade);
        let table = existing.unwrap_or_else(|| {
            let table = Arc::new(OpenTable { name: name.to_owned(), root, ends: AppendHints::default() });
            open.insert(name.to_owned(), Arc::downgrade(&table));
            table
        });
        Table::new(self.inner.clone(), table)
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "database {}", self.path().display())
    }
}
